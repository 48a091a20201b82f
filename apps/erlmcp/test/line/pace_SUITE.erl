-module(pace_SUITE).
-moduledoc "How long a connection waits for its client before it hibernates.".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0]).
-export([who_comes_back_soon_is_waited_for/1, who_is_long_away_is_not/1, it_is_never_long/1]).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [who_comes_back_soon_is_waited_for, who_is_long_away_is_not, it_is_never_long].

who_comes_back_soon_is_waited_for(_) ->
    First = erlmcp_pace:first_ms(),
    [true = erlmcp_pace:next_ms(First, Pause - First) > Pause || Pause <- [1_001, 2_000, 6_000]],
    ok.

who_is_long_away_is_not(_) ->
    First = erlmcp_pace:first_ms(),
    Learnt = erlmcp_pace:next_ms(First, 2_000),
    [First = erlmcp_pace:next_ms(Waited, 60_000) || Waited <- [First, Learnt]],
    ok.

it_is_never_long(_) ->
    ok = erlmcp_test_property:holds(?FORALL(Pauses, list(non_neg_integer()),
        begin
            Last = lists:foldl(fun(Slept, Waited) -> erlmcp_pace:next_ms(Waited, Slept) end,
                               erlmcp_pace:first_ms(), Pauses),
            Last >= erlmcp_pace:first_ms() andalso Last =< 9_000
        end), 100).
