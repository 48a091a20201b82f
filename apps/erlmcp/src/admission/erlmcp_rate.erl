-module(erlmcp_rate).
-moduledoc """
A rate of messages: one word of an `atomics` array. So many may come at once, and then one after
each so-manieth part of the period: the generic cell rate algorithm, as in "Traffic Control and
Congestion Control in B-ISDN" (ITU-T I.371). The word is the time until which all that came was paid
for, in nanoseconds; the caller brings the clock.
""".

-export([take/4, give/3, is_idle/3]).

-export_type([rate/0, period/0]).

-type period() :: second | minute | day.
-doc "So many in a period.".
-type rate() :: {period(), pos_integer()}.

-doc "Counts a message, or says after how many milliseconds it may come.".
-spec take(erlmcp_account:words(), erlmcp_account:index(), rate(), Now :: pos_integer()) ->
    ok | {wait, Milliseconds :: pos_integer()}.
take(Words, Index, {Period, Most}, Now) ->
    Interval = interval(Period, Most),
    take(Words, Index, Interval, Now + Interval * Most, Now, atomics:get(Words, Index)).

take(Words, Index, Interval, Latest, Now, Paid) ->
    case max(Paid, Now) + Interval of
        Next when Next > Latest ->
            {wait, (Next - Latest + 999_999) div 1_000_000};
        Next ->
            case atomics:compare_exchange(Words, Index, Paid, Next) of
                ok -> ok;
                Changed -> take(Words, Index, Interval, Latest, Now, Changed)
            end
    end.

-doc "Takes back a message that was counted, and did not come after all.".
-spec give(erlmcp_account:words(), erlmcp_account:index(), rate()) -> ok.
give(Words, Index, {Period, Most}) ->
    atomics:sub(Words, Index, interval(Period, Most)).

-doc "Whether nothing of the past counts any more.".
-spec is_idle(erlmcp_account:words(), erlmcp_account:index(), Now :: pos_integer()) -> boolean().
is_idle(Words, Index, Now) ->
    atomics:get(Words, Index) =< Now.

interval(Period, Most) ->
    max(1, nanoseconds(Period) div Most).

nanoseconds(second) -> 1_000_000_000;
nanoseconds(minute) -> 60_000_000_000;
nanoseconds(day) -> 86_400_000_000_000.
