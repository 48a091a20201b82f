-module(erlmcp_rate).
-moduledoc """
A rate of messages: one word of an `atomics` array. So many may come at once, and then one after
each so-manieth part of the period: the generic cell rate algorithm, as in "Traffic Control and
Congestion Control in B-ISDN" (ITU-T I.371). The word is the time until which all that came was
paid for, in nanoseconds; the caller brings the clock.

Internal.
""".

-export([take_all/4, give_all/3, is_idle/3, reset/2]).

-export_type([rate/0, period/0]).

-type period() :: second | minute | day.
-doc "So many in a period.".
-type rate() :: {period(), pos_integer()}.

-doc """
Counts a message in all of these, or says which one has it wait, and how long. Their words stand
after the one of this index.
""".
-spec take_all([rate()], erlmcp_gate_account:words(), erlmcp_gate_account:index(),
               Now :: pos_integer()) ->
    ok | {wait, rate(), Milliseconds :: pos_integer()}.
take_all([], _, _, _) ->
    ok;
take_all([{Period, Most} = Rate | Rates], Words, Index, Now) ->
    Interval = interval(Rate),
    At = Index + place(Period),
    case take(Words, At, Interval, Now + Interval * Most, Now, atomics:get(Words, At)) of
        ok ->
            case take_all(Rates, Words, Index, Now) of
                ok ->
                    ok;
                Wait ->
                    ok = give_all([Rate], Words, Index),
                    Wait
            end;
        {wait, Milliseconds} ->
            {wait, Rate, Milliseconds}
    end.

take(Words, At, Interval, Latest, Now, Paid) ->
    case max(Paid, Now) + Interval of
        Next when Next > Latest ->
            {wait, (Next - Latest + 999_999) div 1_000_000};
        Next ->
            case atomics:compare_exchange(Words, At, Paid, Next) of
                ok -> ok;
                Changed -> take(Words, At, Interval, Latest, Now, Changed)
            end
    end.

-doc "A message that was counted did not come after all.".
-spec give_all([rate()], erlmcp_gate_account:words(), erlmcp_gate_account:index()) -> ok.
give_all(Rates, Words, Index) ->
    lists:foreach(fun({Period, _} = Rate) ->
                      atomics:sub(Words, Index + place(Period), interval(Rate))
                  end, Rates).

-doc "Whether nothing of the past counts any more in the words after the one of this index.".
-spec is_idle(erlmcp_gate_account:words(), erlmcp_gate_account:index(), Now :: pos_integer()) ->
    boolean().
is_idle(Words, Index, Now) ->
    lists:all(fun(Period) -> atomics:get(Words, Index + place(Period)) =< Now end, periods()).

-doc "There was nothing yet.".
-spec reset(erlmcp_gate_account:words(), erlmcp_gate_account:index()) -> ok.
reset(Words, Index) ->
    lists:foreach(fun(Period) -> atomics:put(Words, Index + place(Period), 0) end, periods()).

periods() ->
    [second, minute, day].

place(second) -> 1;
place(minute) -> 2;
place(day) -> 3.

interval({Period, Most}) ->
    max(1, nanoseconds(Period) div Most).

nanoseconds(second) -> 1_000_000_000;
nanoseconds(minute) -> 60_000_000_000;
nanoseconds(day) -> 86_400_000_000_000.
