-module(erlmcp_rate).
-moduledoc """
A rate of messages: a number of them may come at once, and then one after each part of the period.
This is the generic cell rate algorithm, as in "Traffic Control and Congestion Control in B-ISDN"
(ITU-T I.371). Its whole state is one number: the time until which all messages so far are paid for,
in nanoseconds of the caller's clock. Pure; the gate keeps that number (`m:erlmcp_gate_counters`).

Internal.
""".

-export([count/3, interval/1]).

-export_type([rate/0, period/0]).

-type period() :: second | minute | day.
-doc "A number of messages in a period.".
-type rate() :: {period(), pos_integer()}.

-doc """
Counts a message that comes at `Now`, where `Paid` is the time until which earlier ones are paid
for. Returns that time with this message, or the milliseconds until one may come.
""".
-spec count(rate(), Paid :: integer(), Now :: pos_integer()) ->
    {ok, Paid :: pos_integer()} | {wait, Milliseconds :: pos_integer()}.
count({_, Most} = Rate, Paid, Now) ->
    Interval = interval(Rate),
    Latest = Now + Interval * Most,
    case max(Paid, Now) + Interval of
        Next when Next > Latest -> {wait, (Next - Latest + 999_999) div 1_000_000};
        Next -> {ok, Next}
    end.

-doc "Returns the nanoseconds that one message of a rate pays for.".
-spec interval(rate()) -> pos_integer().
interval({Period, Most}) ->
    max(1, nanoseconds(Period) div Most).

nanoseconds(second) -> 1_000_000_000;
nanoseconds(minute) -> 60_000_000_000;
nanoseconds(day) -> 86_400_000_000_000.
