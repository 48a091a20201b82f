-module(inline_call_watchdog_SUITE).
-moduledoc """
Who ends quick calls that are not (`m:erlmcp_inline_call_watchdog`): what is late and done is not
ended, what hangs is, whatever becomes of the watch. The processes here are in calls of their own;
whole ones are in `quick_handlers_SUITE`.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1]).
-export([late_is_not_ended_once_it_is_over/1, late_is_not_ended_without_a_processor/1,
         late_once_is_watched_again/1, calls_in_turn_are_watched/1,
         the_latest_definition_is_named/1,
         one_in_native_code_is_not_ended_before_it_comes_back/1,
         one_that_comes_to_native_code_later_is_seen_in_it/1, one_that_died_is_forgotten/1]).
-export([calls_send_no_message/1, what_was_forgotten_is_watched_again/1,
         a_look_that_was_lost_is_asked_for_again/1, another_watch_finds_all_calls/1,
         one_that_is_over_says_so_to_another_watch/1, none_is_ended_that_is_not_in_a_call/1,
         where_nobody_watches_no_call_is_quick/1]).

-define(PATIENCE, 60_000).

suite() ->
    [{timetrap, {minutes, 3}}].

all() ->
    [{group, waiting}, one_that_comes_to_native_code_later_is_seen_in_it, calls_send_no_message,
     what_was_forgotten_is_watched_again,
     a_look_that_was_lost_is_asked_for_again, another_watch_finds_all_calls,
     one_that_is_over_says_so_to_another_watch, none_is_ended_that_is_not_in_a_call,
     where_nobody_watches_no_call_is_quick].

%% They wait beside each other.
groups() ->
    [{waiting, [parallel],
      [late_is_not_ended_once_it_is_over, late_is_not_ended_without_a_processor,
       late_once_is_watched_again, calls_in_turn_are_watched, the_latest_definition_is_named,
       one_in_native_code_is_not_ended_before_it_comes_back, one_that_died_is_forgotten]}].

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
    true = erlmcp_inline_call_watchdog:has_ended(Late),
    false = erlmcp_inline_call_watchdog:has_ended(Done),
    receive {'DOWN', Monitor, process, Done, _} -> error(ended) after 0 -> ok end,
    true = exit(Done, kill).

%% What had no processor since its time was over is not ended for that, and stays quick, as one does
%% neither that hangs and is late after it. A process that is suspended is one of those. When it has
%% the processor again it is looked at as any other.
late_is_not_ended_without_a_processor(_) ->
    {Mark, _} = Watched = a_definition(),
    Quick = atomics:get(Mark, 1),
    {Waits, Monitor} = suspended_in_a_call(Watched),
    [begin
         {Hangs, Other} = hangs(a_definition()),
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

%% And the definition that it is in now is named, and only that.
the_latest_definition_is_named(_) ->
    {First, _} = Before = a_definition(),
    {Second, _} = Latest = a_definition(),
    Quick = atomics:get(First, 1),
    {Hangs, Monitor} = spawn_monitor(fun() ->
        [ok = erlmcp_inline_call_watchdog:end_of_call(may_last(1_000, Watched))
         || _ <- [1, 2], Watched <- [Before, Latest]],
        _ = may_last(1, Latest),
        receive after infinity -> ok end
    end),
    ok = ended(Hangs, Monitor),
    Quick = atomics:get(First, 1),
    true = atomics:get(Second, 1) > erlang:monotonic_time(millisecond).

%% A server lives in its user's tree, and may outlive the application. When that is there again, who
%% had calls before is watched as all are.
where_nobody_watches_no_call_is_quick(_) ->
    Watched = a_definition(),
    Test = self(),
    {Hangs, Monitor} = spawn_monitor(fun() ->
        ok = erlmcp_inline_call_watchdog:end_of_call(may_last(1_000, Watched)),
        Test ! {over, self()},
        receive go_on -> ok end,
        _ = may_last(6_000, Watched),
        receive after infinity -> ok end
    end),
    receive {over, Hangs} -> ok end,
    ok = application:stop(erlmcp),
    none = erlmcp_inline_call_watchdog:watch(erlang:monotonic_time(millisecond) + 20, Watched),
    ok = application:start(erlmcp),
    Hangs ! go_on,
    ok = ended(Hangs, Monitor).

%% Native code all the time, here the opening of a pipe that nobody writes to: its definition is not
%% quick meanwhile, and it is not ended for it. It comes back when that is seen.
one_in_native_code_is_not_ended_before_it_comes_back(Config) ->
    Pipe = pipe("pipe", Config),
    {Mark, _} = Watched = a_definition(),
    Quick = atomics:get(Mark, 1),
    {Pid, Monitor} = spawn_monitor(fun() ->
        InCall = may_last(1, Watched),
        {ok, _} = file:open(Pipe, [read, raw, device]),
        ok = erlmcp_inline_call_watchdog:end_of_call(InCall)
    end),
    ok = paused(Mark, Quick),
    {status, running} = process_info(Pid, status),
    {ok, _} = file:open(Pipe, [write, raw, device]),
    receive
        {'DOWN', Monitor, process, Pid, Reason} -> normal = Reason
    after ?PATIENCE ->
        error(not_back)
    end,
    false = erlmcp_inline_call_watchdog:has_ended(Pid).

%% One that has no processor when it is first looked at, and is in native code for long later.
one_that_comes_to_native_code_later_is_seen_in_it(Config) ->
    Pipe = pipe("later", Config),
    {Mark, _} = Watched = a_definition(),
    Quick = atomics:get(Mark, 1),
    Test = self(),
    May = atomics:new(1, []),
    {Pid, Monitor} = spawn_monitor(fun() ->
        InCall = may_last(500, Watched),
        Test ! {in_call, self()},
        ok = spin(May),
        {ok, _} = file:open(Pipe, [read, raw, device]),
        ok = erlmcp_inline_call_watchdog:end_of_call(InCall)
    end),
    receive {in_call, Pid} -> true = erlang:suspend_process(Pid) end,
    ok = atomics:put(May, 1, 1),
    ok = until_late(Pid),
    %% The first two looks at it are a tenth of a second apart.
    receive after 300 -> ok end,
    true = erlang:resume_process(Pid),
    ok = paused(Mark, Quick),
    {status, running} = process_info(Pid, status),
    {ok, _} = file:open(Pipe, [write, raw, device]),
    receive {'DOWN', Monitor, process, Pid, Reason} -> normal = Reason
    after ?PATIENCE -> error(not_back) end,
    false = erlmcp_inline_call_watchdog:has_ended(Pid).

%% A pipe: who opens it to read waits in native code until another one writes.
pipe(Name, Config) ->
    Pipe = filename:join(proplists:get_value(priv_dir, Config), Name),
    "" = os:cmd("mkfifo '" ++ Pipe ++ "'"),
    %% To load code is to wait, and much work.
    {ok, Both} = file:open(Pipe, [read, write, raw, device]),
    ok = file:close(Both),
    Pipe.

spin(May) ->
    case atomics:get(May, 1) of
        0 -> spin(May);
        1 -> ok
    end.

until_late(Pid) ->
    Late = element(4, sys:get_state(erlmcp_inline_call_watchdog)),
    case [Caller || {Caller, _, _} <- maps:values(Late), Caller =:= Pid] of
        [_] -> ok;
        [] -> receive after 5 -> until_late(Pid) end
    end.

%% One that has an end in a call leaves nothing, as one that was ended does neither.
one_that_died_is_forgotten(_) ->
    {Mark, _} = Watched = a_definition(),
    {Dies, Monitor} = spawn_monitor(fun() -> may_last(1, Watched) end),
    receive {'DOWN', Monitor, process, Dies, normal} -> ok end,
    ok = paused(Mark, atomics:get(Mark, 1)),
    {Hangs, Other} = hangs(Watched),
    ok = ended(Hangs, Other),
    ok = no_rows_of([Dies, Hangs]).

%% What is said of one process may come later than what is said of the next one.
no_rows_of(Pids) ->
    case [Pid || Pid <- Pids, _ <- rows(Pid)] of
        [] -> ok;
        _ -> receive after 10 -> no_rows_of(Pids) end
    end.

%% Two thousand processes that make a call now and again cost the watch a few looks, and when they
%% make none any more, not even that. The last look leaves nothing.
calls_send_no_message(_) ->
    Watched = a_definition(),
    Watch = whereis(erlmcp_inline_call_watchdog),
    ok = forgotten(Watch),
    1 = erlang:trace(Watch, true, ['receive']),
    Callers = [spawn(fun() -> asked(Watched) end) || _ <- lists:seq(1, 2_000)],
    [begin
         [Caller ! {ask, self()} || Caller <- Callers],
         [receive {asked, Caller} -> ok after ?PATIENCE -> error(not_asked) end
          || Caller <- Callers],
         looked(Watch)
     end || _ <- lists:seq(1, 4)],
    1 = erlang:trace(Watch, false, ['receive']),
    Messages = received(Watch),
    true = length(Messages) < 50 orelse error({messages, length(Messages)}),
    ok = forgotten(Watch),
    [exit(Caller, kill) || Caller <- Callers],
    ok.

%% One that made no call for so long that nothing was known of it any more.
what_was_forgotten_is_watched_again(_) ->
    Watched = a_definition(),
    {Caller, Monitor} = spawn_monitor(fun() ->
        ok = asked(Watched),
        _ = may_last(1, Watched),
        receive after infinity -> ok end
    end),
    Caller ! {ask, self()},
    receive {asked, Caller} -> ok end,
    [_] = rows(Caller),
    ok = forgotten(whereis(erlmcp_inline_call_watchdog)),
    [] = rows(Caller),
    Caller ! hang,
    ok = ended(Caller, Monitor).

%% Who asked for it was ended before that was heard: it does not come, and once it should have come
%% long ago, the next call sees that.
a_look_that_was_lost_is_asked_for_again(_) ->
    ok = forgotten(whereis(erlmcp_inline_call_watchdog)),
    [{due, Due}] = ets:lookup(erlmcp_inline_call_watchdog, due),
    ok = atomics:put(Due, 8, erlang:monotonic_time(millisecond) - 5_000),
    {Hangs, Monitor} = hangs(a_definition()),
    ok = ended(Hangs, Monitor).

%% It was ended itself: the calls that it had found late are so for the next one, and may be over,
%% and those that were not late yet will be.
another_watch_finds_all_calls(_) ->
    {Mark, _} = Late = a_definition(),
    Quick = atomics:get(Mark, 1),
    Hanging = [hangs(Late), hangs(a_definition(), 300)],
    {Done, Monitor} = done(),
    ok = paused(Mark, Quick),
    ok = supervisor:terminate_child(erlmcp_sup, inline_call_watchdog),
    %% Nobody hears that a look is wanted.
    Hung = [hangs(a_definition()) | Hanging],
    {ok, _} = supervisor:restart_child(erlmcp_sup, inline_call_watchdog),
    [ok = ended(Pid, Other) || {Pid, Other} <- Hung],
    receive {'DOWN', Monitor, process, Done, _} -> error(ended) after 0 -> ok end,
    true = exit(Done, kill),
    ok.

%% It says so while the watch ends, and the next one has found it late before it knows: it says so
%% again, and is not ended.
one_that_is_over_says_so_to_another_watch(_) ->
    {Mark, _} = Watched = a_definition(),
    Quick = atomics:get(Mark, 1),
    Self = self(),
    {Done, Monitor} = spawn_monitor(fun() ->
        InCall = may_last(1, Watched),
        ok = paused(Mark, Quick),
        Self ! {late, self()},
        receive go -> ok end,
        ok = erlmcp_inline_call_watchdog:end_of_call(InCall),
        receive after infinity -> ok end
    end),
    receive {late, Done} -> ok after ?PATIENCE -> error(not_late) end,
    ok = sys:suspend(erlmcp_inline_call_watchdog),
    Done ! go,
    ok = asks(Done),
    true = erlang:suspend_process(Done),
    ok = supervisor:terminate_child(erlmcp_sup, inline_call_watchdog),
    {ok, _} = supervisor:restart_child(erlmcp_sup, inline_call_watchdog),
    false = erlmcp_inline_call_watchdog:has_ended(Done),
    true = erlang:resume_process(Done),
    {Hangs, Other} = hangs(a_definition()),
    ok = ended(Hangs, Other),
    receive {'DOWN', Monitor, process, Done, _} -> error(ended) after 0 -> ok end,
    true = exit(Done, kill),
    ok.

asks(Pid) ->
    case process_info(Pid, [status, current_function]) of
        [{status, waiting}, {current_function, {gen, do_call, 4}}] -> ok;
        _ ->
            _ = erlang:yield(),
            asks(Pid)
    end.

%% Many are in calls, of which some pass their deadline, while the watch ends and begins again and
%% again. Those that hang are ended, and nobody else is, but in a call that lasted for its second
%% and more.
none_is_ended_that_is_not_in_a_call(_) ->
    In = ets:new(in, [public]),
    Definitions = [a_definition() || _ <- [1, 2, 3]],
    Callers = #{Pid => Monitor
                || N <- lists:seq(1, 300),
                   {Pid, Monitor} <- [spawn_monitor(fun() -> at_random(N, In, Definitions) end)]},
    ok = restarted(40),
    ok = all_ended(Callers, In),
    ok = forgotten(whereis(erlmcp_inline_call_watchdog)).

at_random(N, In, Definitions) ->
    [begin
         Watched = lists:nth(rand:uniform(length(Definitions)), Definitions),
         true = ets:insert(In, {self(), erlang:monotonic_time(millisecond)}),
         InCall = may_last(rand:uniform(20), Watched),
         receive after lists:nth(rand:uniform(4), [0, 0, 5, 40]) -> ok end,
         ok = erlmcp_inline_call_watchdog:end_of_call(InCall),
         true = ets:insert(In, {self(), none}),
         receive after rand:uniform(20) -> ok end
     end || _ <- lists:seq(1, 100)],
    case N rem 3 of
        0 ->
            true = ets:insert(In, {self(), hangs}),
            _ = may_last(10, hd(Definitions)),
            receive after infinity -> ok end;
        1 ->
            true = ets:insert(In, {self(), none}),
            %% Longer than it takes to end one for nothing.
            receive after 3_000 -> ok end;
        2 ->
            ok
    end.

restarted(0) ->
    ok;
restarted(Times) ->
    receive after rand:uniform(100) -> ok end,
    ok = supervisor:terminate_child(erlmcp_sup, inline_call_watchdog),
    receive after rand:uniform(20) - 1 -> ok end,
    {ok, _} = supervisor:restart_child(erlmcp_sup, inline_call_watchdog),
    restarted(Times - 1).

all_ended(Callers, _) when map_size(Callers) =:= 0 ->
    ok;
all_ended(Callers, In) ->
    receive
        {'DOWN', Monitor, process, Pid, Reason} when map_get(Pid, Callers) =:= Monitor ->
            true = may_end(Reason, ets:lookup_element(In, Pid, 2))
                orelse error({ended, Reason, ets:lookup(In, Pid)}),
            all_ended(maps:remove(Pid, Callers), In)
    after ?PATIENCE ->
        error({not_ended, map_size(Callers)})
    end.

may_end(normal, none) -> true;
may_end(killed, hangs) -> true;
may_end(killed, Begun) when is_integer(Begun) -> erlang:monotonic_time(millisecond) - Begun > 1_000;
may_end(_, _) -> false.

%% Makes a call whenever it is asked to, until it is to hang.
asked(Watched) ->
    receive
        {ask, From} ->
            ok = erlmcp_inline_call_watchdog:end_of_call(may_last(1_000, Watched)),
            From ! {asked, self()},
            asked(Watched);
        hang ->
            ok
    end.

%% The next look, where nothing else tells.
looked(Watch) ->
    receive {trace, Watch, 'receive', {timeout, _, look}} = Seen -> self() ! {again, Seen}, ok
    after ?PATIENCE -> error(no_look)
    end.

received(Watch) ->
    receive
        {trace, Watch, 'receive', Message} -> [Message | received(Watch)];
        {again, {trace, Watch, 'receive', Message}} -> [Message | received(Watch)]
    after 0 -> []
    end.

%% Look after look, until the latest has left no row, and so none is to come.
forgotten(Watch) ->
    1 = erlang:trace(Watch, true, ['receive']),
    {Last, Monitor} = spawn_monitor(fun() ->
        ok = erlmcp_inline_call_watchdog:end_of_call(may_last(1_000, a_definition()))
    end),
    receive {'DOWN', Monitor, process, Last, normal} -> ok end,
    ok = no_rows(Watch),
    1 = erlang:trace(Watch, false, ['receive']),
    _ = received(Watch),
    ok.

no_rows(Watch) ->
    %% What it received before, it is done with.
    false = erlmcp_inline_call_watchdog:has_ended(self()),
    case rows('_') of
        [] -> ok;
        _ ->
            receive {trace, Watch, 'receive', {timeout, _, look}} -> no_rows(Watch)
            after ?PATIENCE -> error({remembered, rows('_')})
            end
    end.

rows(Pid) ->
    ets:match_object(erlmcp_inline_call_watchdog, {'_', Pid, '_'}).

hangs(Watched) ->
    hangs(Watched, 1).

%% The one that asks for it knows that it is in the call.
hangs(Watched, Ms) ->
    Self = self(),
    Ref = make_ref(),
    Hangs = spawn_monitor(fun() ->
        _ = may_last(Ms, Watched),
        Self ! Ref,
        receive after infinity -> ok end
    end),
    receive Ref -> Hangs after ?PATIENCE -> error(not_in_call) end.

%% In time, before it is looked at.
suspended_in_a_call(Watched) ->
    Deadline = erlang:monotonic_time(millisecond) + 300,
    {Pid, Monitor} = Waits = hangs(Watched, 300),
    true = erlang:suspend_process(Pid),
    case erlang:monotonic_time(millisecond) < Deadline of
        true ->
            Waits;
        false ->
            true = demonitor(Monitor, [flush]),
            true = exit(Pid, kill),
            suspended_in_a_call(Watched)
    end.

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
        ok = erlmcp_inline_call_watchdog:end_of_call(InCall),
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
    {erlmcp_inline_call_watchdog:mark(), {make_ref(), ~"tools/call", ~"late"}}.

watched(Watched) ->
    may_last(1, Watched).

may_last(Ms, Watched) ->
    erlmcp_inline_call_watchdog:watch(erlang:monotonic_time(millisecond) + Ms, Watched).

%% One after the other until then: who looks finds calls that may last longer, and none.
calls(Until, Watched) ->
    ok = erlmcp_inline_call_watchdog:end_of_call(watched(Watched)),
    _ = erlang:yield(),
    case erlang:monotonic_time(millisecond) < Until of
        true -> calls(Until, Watched);
        false -> ok
    end.

%% Its definition is quick no more: it was seen late.
paused(Mark, Until) ->
    case atomics:get(Mark, 1) of
        Until ->
            receive after 5 -> paused(Mark, Until) end;
        _ ->
            ok
    end.
