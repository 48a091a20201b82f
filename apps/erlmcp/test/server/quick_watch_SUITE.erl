-module(quick_watch_SUITE).
-moduledoc """
Who ends quick calls that are not (`m:erlmcp_quick_watch`): what is late and done is not ended, what
hangs is. The processes here are in calls of their own; whole ones are in `quick_handlers_SUITE`.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1]).
-export([late_is_not_ended_once_it_is_over/1, late_is_not_ended_without_a_processor/1,
         late_once_is_watched_again/1, calls_in_turn_are_watched/1]).

-define(PATIENCE, 60_000).

suite() ->
    [{timetrap, {minutes, 3}}].

all() ->
    [{group, waiting}].

%% They wait beside each other.
groups() ->
    [{waiting, [parallel],
      [late_is_not_ended_once_it_is_over, late_is_not_ended_without_a_processor,
       late_once_is_watched_again, calls_in_turn_are_watched]}].

init_per_suite(Config) ->
    #{level := Level} = logger:get_primary_config(),
    ok = logger:set_primary_config(level, none),
    erlmcp_test_applications:start([erlmcp], [{log_level, Level} | Config]).

end_per_suite(Config) ->
    ok = logger:set_primary_config(level, proplists:get_value(log_level, Config)),
    erlmcp_test_applications:stop(Config).

%% One whose time is over says that it is done, and goes on; the next one that does not say so shows
%% that it would have been ended meanwhile.
late_is_not_ended_once_it_is_over(_) ->
    {Done, Monitor} = done(),
    {Late, LateMonitor} = spawn_monitor(fun() ->
        Watched = a_definition(),
        ok = calls(erlang:monotonic_time(millisecond) + 20, Watched),
        _ = watched(Watched),
        receive after infinity -> ok end
    end),
    ok = ended(Late, LateMonitor),
    true = erlmcp_quick_watch:has_ended(Late),
    false = erlmcp_quick_watch:has_ended(Done),
    receive {'DOWN', Monitor, process, Done, _} -> error(ended) after 0 -> ok end,
    true = exit(Done, kill).

%% What had no processor since its time was over is not ended for that, and stays quick, as one does
%% neither that hangs and is late after it. A process that is suspended is one of those. When it has
%% the processor again it is looked at as any other.
late_is_not_ended_without_a_processor(_) ->
    {Waits, Monitor} = spawn_monitor(fun() -> receive after infinity -> ok end end),
    true = erlang:suspend_process(Waits),
    Now = erlang:monotonic_time(millisecond),
    Words = atomics:new(2, []),
    ok = atomics:put(Words, 1, Now),
    {Mark, _} = Watched = a_definition(),
    Quick = atomics:get(Mark, 1),
    _ = erlang:start_timer(Now, erlmcp_quick_watch, {Waits, Words, Watched}, [{abs, true}]),
    [begin
         {Hangs, Other} = spawn_monitor(fun() ->
             _ = watched(a_definition()),
             receive after infinity -> ok end
         end),
         ok = ended(Hangs, Other)
     end || _ <- [1, 2]],
    receive {'DOWN', Monitor, process, Waits, _} -> error(ended) after 0 -> ok end,
    Quick = atomics:get(Mark, 1),
    true = erlang:resume_process(Waits),
    ok = ended(Waits, Monitor),
    true = atomics:get(Mark, 1) > Quick.

%% One that was late, and done, is in the next call as in its first.
late_once_is_watched_again(_) ->
    {Done, Monitor} = done(),
    Done ! again,
    ok = ended(Done, Monitor).

%% So is one whose calls before it came to their end in time, whatever look is due.
calls_in_turn_are_watched(_) ->
    {Hangs, Monitor} = spawn_monitor(fun() ->
        Watched = a_definition(),
        ok = calls(erlang:monotonic_time(millisecond) + 200, Watched),
        %% Nothing tells that a look has found no call.
        receive after 200 -> ok end,
        _ = watched(Watched),
        receive after infinity -> ok end
    end),
    ok = ended(Hangs, Monitor).

ended(Pid, Monitor) ->
    receive
        {'DOWN', Monitor, process, Pid, killed} -> ok
    after ?PATIENCE ->
        true = exit(Pid, kill),
        error(not_ended)
    end.

%% It may have been too slow to say so.
done() ->
    Self = self(),
    {Pid, Monitor} = spawn_monitor(fun() ->
        {Mark, _} = Watched = a_definition(),
        Until = atomics:get(Mark, 1),
        InCall = watched(Watched),
        ok = paused(Mark, Until),
        ok = erlmcp_quick_watch:over(InCall),
        Self ! {done, self()},
        receive again -> ok end,
        _ = watched(Watched),
        receive after infinity -> ok end
    end),
    receive
        {done, Pid} -> {Pid, Monitor};
        {'DOWN', Monitor, process, Pid, killed} -> done()
    after ?PATIENCE ->
        true = exit(Pid, kill),
        error(not_done)
    end.

a_definition() ->
    {erlmcp_quick:mark(), {make_ref(), ~"tools/call", ~"late"}}.

watched(Watched) ->
    erlmcp_quick_watch:watch(erlang:monotonic_time(millisecond) + 1, Watched).

%% One after the other until then: who looks finds calls that may last longer, and none.
calls(Until, Watched) ->
    ok = erlmcp_quick_watch:over(watched(Watched)),
    _ = erlang:yield(),
    case erlang:monotonic_time(millisecond) < Until of
        true -> calls(Until, Watched);
        false -> ok
    end.

%% Its definition is quick no more: it was seen late.
paused(Mark, Until) ->
    case atomics:get(Mark, 1) of
        Until ->
            _ = erlang:yield(),
            paused(Mark, Until);
        _ ->
            ok
    end.
