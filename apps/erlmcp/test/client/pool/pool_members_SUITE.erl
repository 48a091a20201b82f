-module(pool_members_SUITE).
-moduledoc """
`m:erlmcp_pool`: which member a call goes to, what is tried again, and how a member that fails is
left out and comes back. The servers are erlmcp's own, and scripts on sockets where they must
misbehave.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([every_operation_works/1, fewest_calls_first/1, keys_stay/1, keys_move_only_from_the_lost/1,
         unsent_call_is_tried_elsewhere/1, reading_is_tried_again/1, doing_is_not/1,
         each_failure_of_http_has_its_tries/1, a_call_that_has_begun_is_not_begun_again/1,
         what_is_tried_again_asks_again/1,
         silence_and_nonsense_are_failures/1,
         busy_member_is_passed_over/1,
         repeatable_tool_is_tried_again/1, retries_end/1, late_calls_are_not_tried_again/1,
         breaker_opens_at_its_limit/1,
         a_call_that_was_not_sent_changes_no_breaker/1,
         half_open_lets_one_try/1, a_trial_that_is_given_up_is_none/1, each_opening_has_its_time/1,
         simultaneous_failures_open_it_once/1, what_is_no_call_is_no_try/1,
         dead_caller_leaves_no_trace/1, all_open_is_refused_at_once/1,
         cancelled_call_ends/1, progress_for_a_slow_reader_is_dropped/1,
         subscription_at_a_member/1, member_is_started_again/1, dead_member_has_no_calls/1,
         options_are_checked/1, the_application_must_run/1, supervised_by_name/1,
         deadline_holds_over_tries/1, tasks_are_reached_by_key/1,
         secrets_are_in_no_child_specification/1, a_receiver_that_dies_ends_its_call/1,
         calls_that_are_over_leave_nothing/1, a_pool_that_has_just_ended_is_stopped/1,
         a_call_when_the_application_ends_is_refused/1]).

-import(erlmcp_test_peer, [result/2]).

-define(WAIT, 30_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [every_operation_works, fewest_calls_first, keys_stay, keys_move_only_from_the_lost,
     unsent_call_is_tried_elsewhere, reading_is_tried_again, doing_is_not,
     each_failure_of_http_has_its_tries, a_call_that_has_begun_is_not_begun_again,
     what_is_tried_again_asks_again, silence_and_nonsense_are_failures,
     busy_member_is_passed_over,
     repeatable_tool_is_tried_again, retries_end, late_calls_are_not_tried_again,
     breaker_opens_at_its_limit,
     a_call_that_was_not_sent_changes_no_breaker,
     half_open_lets_one_try, a_trial_that_is_given_up_is_none, each_opening_has_its_time,
     simultaneous_failures_open_it_once,
     what_is_no_call_is_no_try, dead_caller_leaves_no_trace, all_open_is_refused_at_once,
     cancelled_call_ends, progress_for_a_slow_reader_is_dropped, subscription_at_a_member,
     member_is_started_again, dead_member_has_no_calls, options_are_checked,
     the_application_must_run, supervised_by_name, deadline_holds_over_tries,
     tasks_are_reached_by_key, secrets_are_in_no_child_specification,
     a_receiver_that_dies_ends_its_call, calls_that_are_over_leave_nothing,
     a_pool_that_has_just_ended_is_stopped, a_call_when_the_application_ends_is_refused].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    erlmcp_test_sent:listen(Config).

end_per_testcase(_, Config) ->
    erlmcp_test_sent:heard(Config, []).

every_operation_works(_) ->
    Pool = pool([server(~"a")], #{}),
    {ok, pong} = erlmcp_client:ping(Pool),
    {ok, [_ | _]} = erlmcp_client:list_tools(Pool),
    ~"a" = who(Pool, #{}),
    {ok, #{server_info := #{~"name" := ~"a"}}} = erlmcp_client:server(Pool),
    {ok, Reference} = erlmcp_client:async(Pool, {call_tool, ~"who", #{}}),
    receive {erlmcp, Reference, {ok, #{~"content" := [_]}}} -> ok after ?WAIT -> error(late) end,
    ok = erlmcp_client:stop(Pool),
    {error, stopped} = erlmcp_client:ping(Pool),
    {error, stopped} = erlmcp_pool:info(Pool).

fewest_calls_first(_) ->
    Pool = pool([server(~"a"), server(~"b")], #{}),
    Busy = who_waits(Pool),
    {Name, _, _} = Busy,
    [Other] = lists:usort([who(Pool, #{}) || _ <- lists:seq(1, 10)]),
    true = Other =/= Name,
    [0, 1] = lists:sort([Calls || #{calls := Calls} <- erlmcp_pool:info(Pool)]),
    finish(Busy),
    ok = erlmcp_pool:stop(Pool).

keys_stay(_) ->
    Pool = pool([server(~"a"), server(~"b"), server(~"c")], #{}),
    Keys = lists:seq(1, 60),
    First = [who(Pool, #{key => Key}) || Key <- Keys],
    First = [who(Pool, #{key => Key}) || Key <- Keys],
    [~"a", ~"b", ~"c"] = lists:usort(First),
    ok = erlmcp_pool:stop(Pool).

%% The keys of those that work stay where they are; those of the lost come back to it.
keys_move_only_from_the_lost(_) ->
    #{pid := Lost} = A = server(~"a"),
    Pool = pool([A, server(~"b"), server(~"c")], #{failures => 1, retries => 2}),
    Keys = lists:seq(1, 60),
    Before = [{Key, who(Pool, #{key => Key})} || Key <- Keys],
    ok = erlmcp:stop_server(Lost),
    After = [{Key, who(Pool, #{key => Key, repeatable => true})} || Key <- Keys],
    [] = [Key || {{Key, Name}, {Key, Now}} <- lists:zip(Before, After),
                 Name =/= ~"a", Name =/= Now],
    [] = [Key || {Key, ~"a"} <- After],
    ok = erlmcp_pool:stop(Pool).

%% A task is at the server that made it, and so is its key's member.
tasks_are_reached_by_key(_) ->
    Tool = #{name => ~"print", task => required, handler => fun(_, _) -> ~"printed" end},
    Urls = [begin
                {ok, Pid} = erlmcp:start_server(#{name => ~"p", version => ~"1", tools => [Tool],
                                                  listen => [{http, #{}}]}),
                [#{url := Url}] = erlmcp:listeners(Pid),
                Url
            end || _ <- [1, 2, 3]],
    Targets = [{http, Url, #{tasks => true}} || Url <- Urls],
    {ok, Pool} = erlmcp_pool:start_link(#{targets => Targets}),
    [begin
         At = #{key => Key},
         {ok, Task} = erlmcp_client:call_tool(Pool, ~"print", #{}, At#{task => handle}),
         {ok, #{~"content" := [_]}} = erlmcp_client:await_task(Pool, Task, At),
         {ok, #{~"status" := ~"completed"}} = erlmcp_client:task(Pool, Task, At),
         {ok, _} = erlmcp_client:cancel_task(Pool, Task, At)
     end || Key <- [1, 2, 3, 4]],
    ok = erlmcp_pool:stop(Pool).

%% Nothing was sent: a tool may be called at another member.
unsent_call_is_tried_elsewhere(_) ->
    Pool = pool([nobody(), server(~"b")], #{}),
    [~"b"] = lists:usort([who(Pool, #{}) || _ <- lists:seq(1, 10)]),
    ok = erlmcp_pool:stop(Pool).

reading_is_tried_again(_) ->
    Pool = pool([closing(), server(~"b")], #{}),
    [{ok, [_ | _]} = erlmcp_client:list_tools(Pool, #{fresh => true}) || _ <- lists:seq(1, 6)],
    ok = erlmcp_pool:stop(Pool).

%% It may have been done, and a tool may do anything: the caller has to decide.
doing_is_not(_) ->
    Pool = pool([closing()], #{}),
    {error, {closed, _}} = erlmcp_client:call_tool(Pool, ~"who", #{}),
    1 = calls(),
    ok = erlmcp_pool:stop(Pool).

%% The client of the key's member has as many calls as it may have.
busy_member_is_passed_over(_) ->
    Targets = [{http, Url, #{timeout => ?WAIT, calls => 1}}
               || #{url := Url} <- [server(~"a"), server(~"b")]],
    {ok, Pool} = erlmcp_pool:start_link(#{targets => Targets}),
    {ok, Reference} = erlmcp_client:async(Pool, {call_tool, ~"wait", #{}}, #{key => 1}),
    {Handler, Name} = receive {running, Pid, Of} -> {Pid, Of} after ?WAIT -> error(late) end,
    [Other] = [~"a", ~"b"] -- [Name],
    Other = who(Pool, #{key => 1}),
    finish({Name, Handler, Reference}),
    ok = erlmcp_pool:stop(Pool).

%% A server that answers 429 or 503 has not run the call. After another 5xx it may have run it, and
%% the call is tried again if it may be repeated. An error of the caller is the same everywhere.
each_failure_of_http_has_its_tries(_) ->
    [begin
         Pool = pool([answering(Status)], #{retries => 2, failures => 100}),
         {error, {http, Status, _, _}} =
             erlmcp_client:call_tool(Pool, ~"who", #{}, #{repeatable => Repeatable}),
         {Status, Repeatable, Calls} = {Status, Repeatable, calls()},
         %% Failures of the member count for its breaker, and no others.
         [#{failed := Failed}] = erlmcp_pool:info(Pool),
         {Status, Failed} = {Status, case Status of S when S < 500 -> 0; _ -> Calls end},
         ok = erlmcp_pool:stop(Pool)
     end || {Status, Repeatable, Calls} <- [{500, false, 1}, {500, true, 3}, {502, false, 1},
                                            {503, false, 3}, {429, false, 3}, {400, true, 1}]].

%% A call runs at its server once it is a task, or has been asked for input. When a later request of
%% the call fails, no member gets the call anew.
a_call_that_has_begun_is_not_begun_again(_) ->
    [begin
         #{url := Url} = erlmcp_test_peer:http(fun
             (#{message := #{~"method" := ~"server/discover"}} = Request) ->
                 failing(Request);
             (#{message := #{~"method" := ~"tools/call", ~"params" := Params} = Message}) when
                 not is_map_key(~"requestState", Params)
             ->
                 {200, [], result(Message, First)};
             (_) ->
                 {Status, [], none}
         end),
         {ok, Pool} = erlmcp_pool:start_link(#{
             targets => [{http, Url, #{timeout => ?WAIT, tasks => true}}], failures => 100}),
         {error, {closed, {http, Status, _, _}}} = erlmcp_client:call_tool(Pool, ~"who", #{}),
         {Status, Calls} = {Status, calls()},
         [#{failed := Failed}] = erlmcp_pool:info(Pool),
         ok = erlmcp_pool:stop(Pool)
     end || {Status, Failed} <- [{429, 0}, {503, 1}],
            {First, Calls} <- [{#{resultType => task, taskId => ~"t-1", status => working,
                                  createdAt => ~"2026-01-01T00:00:00Z", ttlMs => null,
                                  lastUpdatedAt => ~"2026-01-01T00:00:00Z",
                                  pollIntervalMs => 50}, 1},
                               {#{resultType => input_required, requestState => ~"s"}, 2}]].

%% The answers belong to the member that has asked.
what_is_tried_again_asks_again(_) ->
    Asked = counters:new(1, []),
    #{url := Url} = erlmcp_test_peer:http(fun
        (#{message := #{~"method" := ~"prompts/get", ~"params" := Params} = Message}) ->
            case {Params, counters:get(Asked, 1)} of
                {#{~"inputResponses" := _}, 1} ->
                    {500, [], none};
                {#{~"inputResponses" := _}, _} ->
                    {200, [], result(Message, #{resultType => complete, messages => []})};
                {_, _} ->
                    {200, [], result(Message, #{resultType => input_required,
                                                inputRequests => #{a => #{method => ~"roots/list"}},
                                                requestState => ~"s"})}
            end;
        (Request) ->
            failing(Request)
    end),
    Roots = fun() -> ok = counters:add(Asked, 1, 1), [] end,
    {ok, Pool} = erlmcp_pool:start_link(#{
        targets => [{http, Url, #{timeout => ?WAIT, inputs => #{roots => Roots}}}]}),
    {ok, #{~"messages" := []}} = erlmcp_client:get_prompt(Pool, ~"p", #{}),
    2 = counters:get(Asked, 1),
    ok = erlmcp_pool:stop(Pool).

silence_and_nonsense_are_failures(_) ->
    [begin
         Pool = pool([Peer], #{failures => 100}),
         {ok, _} = erlmcp_client:server(Pool),
         {error, Reason} =
             erlmcp_client:call_tool(Pool, ~"who", #{}, #{timeout => Timeout, repeatable => true}),
         Kind = element(1, Reason),
         [#{failed := 1}] = erlmcp_pool:info(Pool),
         ok = erlmcp_pool:stop(Pool)
     end || {Peer, Timeout, Kind} <- [{answering(200), ?WAIT, protocol},
                                      {answering(silence), 500, timeout}]].

answering(silence) ->
    erlmcp_test_peer:http(fun
        (#{message := #{~"method" := ~"server/discover"}} = Request) -> failing(Request);
        (_) -> silence
    end);
answering(Status) ->
    erlmcp_test_peer:http(fun
        (#{message := #{~"method" := ~"server/discover"}} = Request) -> failing(Request);
        (_) -> {Status, [], none}
    end).

repeatable_tool_is_tried_again(_) ->
    Pool = pool([closing(), server(~"b")], #{}),
    [~"b"] = lists:usort([who(Pool, #{repeatable => true}) || _ <- lists:seq(1, 6)]),
    ok = erlmcp_pool:stop(Pool).

retries_end(_) ->
    Pool = pool([closing()], #{retries => 3}),
    {error, {closed, _}} = erlmcp_client:call_tool(Pool, ~"who", #{}, #{repeatable => true}),
    4 = calls(),
    ok = erlmcp_pool:stop(Pool).

%% Progress has kept the call longer than its `timeout`, so none is left for another try.
late_calls_are_not_tried_again(_) ->
    Peer = erlmcp_test_peer:http(fun
        (#{message := #{~"method" := ~"server/discover"}} = Request) ->
            failing(Request);
        (#{message := #{~"params" := #{~"_meta" := #{~"progressToken" := Token}}}}) ->
            Progress = fun(Step) ->
                erlmcp_test_peer:event(#{jsonrpc => ~"2.0", method => ~"notifications/progress",
                                         params => #{progressToken => Token, progress => Step}})
            end,
            {events, [Progress(1), {wait, 1_800}, Progress(2), {wait, 1_800}, close]}
    end),
    Pool = pool([Peer], #{retries => 3}),
    {error, {closed, _}} =
        erlmcp_client:call_tool(Pool, ~"who", #{}, #{timeout => 3_000, repeatable => true,
                                                     progress => fun(_) -> ok end}),
    1 = calls(),
    ok = erlmcp_pool:stop(Pool).

%% At the limit minus one it is closed still.
breaker_opens_at_its_limit(_) ->
    Pool = pool([closing()], #{retries => 0, failures => 3, open_ms => 60_000,
                               longest_open_ms => 60_000}),
    Fail = fun() -> {error, {closed, _}} = erlmcp_client:call_tool(Pool, ~"who", #{}) end,
    _ = [Fail() || _ <- [1, 2]],
    [#{state := closed, failed := 2}] = erlmcp_pool:info(Pool),
    _ = Fail(),
    [#{state := open, failed := 3}] = erlmcp_pool:info(Pool),
    ok = erlmcp_pool:stop(Pool).

%% The client has as many calls as it may have, which says nothing about its server.
a_call_that_was_not_sent_changes_no_breaker(_) ->
    {#{url := Url}, Behave} = behaving(),
    {ok, Pool} = erlmcp_pool:start_link(#{
        targets => [{http, Url, #{timeout => ?WAIT, calls => 1}}],
        retries => 0, failures => 2, open_ms => 60_000, longest_open_ms => 60_000}),
    ok = Behave(fails),
    {error, {closed, _}} = erlmcp_client:call_tool(Pool, ~"who", #{}),
    ok = Behave(waits),
    {ok, Reference} = erlmcp_client:async(Pool, {call_tool, ~"who", #{}}),
    Connection = receive {trying, Pid} -> Pid after ?WAIT -> error(not_called) end,
    {error, {overload, 1}} = erlmcp_client:call_tool(Pool, ~"who", #{}),
    [#{state := closed, failed := 1}] = erlmcp_pool:info(Pool),
    Connection ! go,
    receive {erlmcp, Reference, {error, {closed, _}}} -> ok after ?WAIT -> error(late) end,
    [#{state := open, failed := 2}] = erlmcp_pool:info(Pool),
    ok = erlmcp_pool:stop(Pool).

half_open_lets_one_try(_) ->
    Good = counters:new(1, []),
    Test = self(),
    Peer = erlmcp_test_peer:http(fun(Request) ->
        case counters:get(Good, 1) of
            0 -> failing(Request);
            1 -> slowly_good(Request, Test)
        end
    end),
    Pool = pool([Peer], #{retries => 0, failures => 1, open_ms => 100, longest_open_ms => 60_000}),
    {error, {closed, _}} = erlmcp_client:call_tool(Pool, ~"who", #{}),
    ok = counters:put(Good, 1, 1),
    ok = half_open(Pool),
    {ok, Reference} = erlmcp_client:async(Pool, {call_tool, ~"who", #{}}),
    Connection = receive {trying, Pid} -> Pid after ?WAIT -> error(nobody_tries) end,
    {error, {unavailable, _}} = erlmcp_client:call_tool(Pool, ~"who", #{}),
    Connection ! go,
    receive {erlmcp, Reference, {ok, _}} -> ok after ?WAIT -> error(late) end,
    [#{state := closed, failed := 0}] = erlmcp_pool:info(Pool),
    ok = erlmcp_pool:stop(Pool).

%% It says nothing about the member, so the next call tries it.
a_trial_that_is_given_up_is_none(_) ->
    [begin
         {Peer, Behave} = behaving(),
         Pool = pool([Peer], #{retries => 0, failures => 1, open_ms => 100,
                               longest_open_ms => 600_000}),
         ok = Behave(fails),
         {error, {closed, _}} = erlmcp_client:call_tool(Pool, ~"who", #{}),
         ok = half_open(Pool),
         ok = Behave(waits),
         ok = GiveUp(Pool),
         ok = Behave(works),
         ok = until(fun() -> {ok, _} = erlmcp_client:call_tool(Pool, ~"who", #{}), true end),
         [#{state := closed, failed := 0}] = erlmcp_pool:info(Pool),
         ok = erlmcp_pool:stop(Pool)
     end || GiveUp <- [fun cancelled_trial/1, fun killed_trial/1]].

cancelled_trial(Pool) ->
    {ok, Reference} = erlmcp_client:async(Pool, {call_tool, ~"who", #{}}),
    receive {trying, _} -> ok after ?WAIT -> error(nobody_tries) end,
    {error, {unavailable, 1}} = erlmcp_client:call_tool(Pool, ~"who", #{}),
    ok = erlmcp_client:cancel(Pool, Reference),
    receive {erlmcp, Reference, {error, cancelled}} -> ok after ?WAIT -> error(late) end.

killed_trial(Pool) ->
    Caller = spawn(fun() -> erlmcp_client:call_tool(Pool, ~"who", #{}) end),
    receive {trying, _} -> ok after ?WAIT -> error(nobody_tries) end,
    exit(Caller, kill),
    ok.

%% The time doubles up to the longest, and begins anew after a call that was served. A tenth of it
%% may come in addition.
each_opening_has_its_time(_) ->
    erlmcp_test_pauses:undisturbed(300, fun opening_has_its_time/0).

opening_has_its_time() ->
    {Peer, Behave} = behaving(),
    Pool = pool([Peer], #{retries => 0, failures => 1, open_ms => 600, longest_open_ms => 900}),
    Opens = fun() ->
        ok = Behave(fails),
        {error, {closed, _}} = erlmcp_client:call_tool(Pool, ~"who", #{}),
        opens_in(Pool)
    end,
    true = Opens() =< 660,
    ok = half_open(Pool),
    true = Opens() =< 990,
    ok = half_open(Pool),
    ok = Behave(works),
    {ok, _} = erlmcp_client:call_tool(Pool, ~"who", #{}),
    true = Opens() =< 660,
    ok = erlmcp_pool:stop(Pool).

simultaneous_failures_open_it_once(_) ->
    {Peer, Behave} = behaving(),
    Pool = pool([Peer], #{retries => 0, failures => 1, open_ms => 10_000,
                          longest_open_ms => 60_000}),
    ok = Behave(waits),
    Calls = [begin
                 {ok, Reference} = erlmcp_client:async(Pool, {call_tool, ~"who", #{}}),
                 receive {trying, Pid} -> {Reference, Pid} after ?WAIT -> error(not_called) end
             end || _ <- [1, 2]],
    [First, Second] = [begin
                           Pid ! go,
                           receive {erlmcp, Reference, {error, {closed, _}}} -> opens_in(Pool) end
                       end || {Reference, Pid} <- Calls],
    true = Second =< First,
    ok = erlmcp_pool:stop(Pool).

%% A member that is asked for something else is not tried by that, and a call may try it.
what_is_no_call_is_no_try(_) ->
    {Peer, Behave} = behaving(),
    Pool = pool([Peer], #{retries => 0, failures => 1, open_ms => 1}),
    ok = Behave(fails),
    {error, {closed, _}} = erlmcp_client:call_tool(Pool, ~"who", #{}),
    ok = half_open(Pool),
    {ok, _} = erlmcp_client:server(Pool),
    ok = Behave(works),
    {ok, _} = erlmcp_client:call_tool(Pool, ~"who", #{}),
    ok = erlmcp_pool:stop(Pool).

%% A server whose calls fail, work, or wait until they are told to fail.
behaving() ->
    Test = self(),
    Behaviours = {fails, works, waits},
    Now = atomics:new(1, []),
    Peer = erlmcp_test_peer:http(fun
        (#{message := #{~"method" := ~"tools/call"} = Message} = Request) ->
            case element(atomics:get(Now, 1), Behaviours) of
                fails -> failing(Request);
                works -> {200, [], result(Message, #{resultType => complete, content => []})};
                waits -> Test ! {trying, self()}, receive go -> failing(Request) end
            end;
        (Request) ->
            failing(Request)
    end),
    Numbers = #{fails => 1, works => 2, waits => 3},
    {Peer, fun(Behaviour) -> atomics:put(Now, 1, map_get(Behaviour, Numbers)) end}.

opens_in(Pool) ->
    {error, {unavailable, Milliseconds}} = erlmcp_client:call_tool(Pool, ~"who", #{}),
    Milliseconds.

half_open(Pool) ->
    until(fun() -> [half_open] =:= [State || #{state := State} <- erlmcp_pool:info(Pool)] end).

dead_caller_leaves_no_trace(_) ->
    Pool = pool([server(~"a")], #{}),
    Caller = spawn(fun() -> erlmcp_client:call_tool(Pool, ~"wait", #{}) end),
    Handler = running(),
    [#{calls := 1}] = erlmcp_pool:info(Pool),
    Monitor = monitor(process, Handler),
    exit(Caller, kill),
    receive {'DOWN', Monitor, process, Handler, _} -> ok after ?WAIT -> error(not_cancelled) end,
    ok = until(fun() -> [0] =:= [Calls || #{calls := Calls} <- erlmcp_pool:info(Pool)] end),
    ok = erlmcp_pool:stop(Pool).

all_open_is_refused_at_once(_) ->
    Pool = pool([nobody(), nobody()], #{failures => 1, retries => 1, open_ms => 60_000,
                                        longest_open_ms => 60_000}),
    {error, {connect, econnrefused}} = erlmcp_client:ping(Pool),
    %% Who waited would hear that the time is over.
    {error, {unavailable, Milliseconds}} = erlmcp_client:ping(Pool),
    true = Milliseconds > 0 andalso Milliseconds =< 66_000,
    ok = erlmcp_pool:stop(Pool).

cancelled_call_ends(_) ->
    Pool = pool([server(~"a")], #{}),
    {ok, Reference} = erlmcp_client:async(Pool, {call_tool, ~"wait", #{}}),
    Handler = running(),
    Monitor = monitor(process, Handler),
    ok = erlmcp_client:cancel(Pool, Reference),
    receive {erlmcp, Reference, {error, cancelled}} -> ok after ?WAIT -> error(late) end,
    receive {'DOWN', Monitor, process, Handler, _} -> ok after ?WAIT -> error(not_cancelled) end,
    ok = erlmcp_pool:stop(Pool).

%% As without a pool.
progress_for_a_slow_reader_is_dropped(_) ->
    Pool = pool([server(~"a")], #{}),
    {ok, Read} = erlmcp_client:async(Pool, {call_tool, ~"report", #{}}),
    receive {erlmcp, Read, {progress, #{~"progress" := 1}}} -> ok after ?WAIT -> error(late) end,
    receive {erlmcp, Read, {ok, _}} -> ok after ?WAIT -> error(late) end,
    _ = [self() ! unread || _ <- lists:seq(1, 1001)],
    {ok, Unread} = erlmcp_client:async(Pool, {call_tool, ~"report", #{}}),
    receive {erlmcp, Unread, {ok, _}} -> ok after ?WAIT -> error(late) end,
    receive {erlmcp, Unread, {progress, _}} -> error(not_dropped) after 0 -> ok end,
    ok = erlmcp_pool:stop(Pool).

a_receiver_that_dies_ends_its_call(_) ->
    Pool = pool([server(~"a")], #{}),
    Receiver = spawn(fun() ->
        {ok, _} = erlmcp_client:async(Pool, {call_tool, ~"wait", #{}}),
        receive never -> ok end
    end),
    Handler = running(),
    Monitor = monitor(process, Handler),
    exit(Receiver, kill),
    receive {'DOWN', Monitor, process, Handler, _} -> ok after ?WAIT -> error(not_cancelled) end,
    ok = erlmcp_pool:stop(Pool).

%% The table of a pool has no more rows after calls than before.
calls_that_are_over_leave_nothing(_) ->
    Before = ets:all(),
    Pool = pool([server(~"a")], #{}),
    {ok, _} = erlmcp_client:call_tool(Pool, ~"who", #{}),
    Sizes = fun() ->
        #{Table => ets:info(Table, size) || Table <- ets:all() -- Before,
                                            ets:info(Table, name) =:= members}
    end,
    First = Sizes(),
    1 = map_size(First),
    References = [begin
                      {ok, Reference} = erlmcp_client:async(Pool, {call_tool, ~"who", #{}}),
                      Reference
                  end || _ <- lists:seq(1, 10)],
    [receive {erlmcp, Reference, {ok, _}} -> ok after ?WAIT -> error(late) end
     || Reference <- References],
    First = Sizes(),
    ok = erlmcp_pool:stop(Pool).

subscription_at_a_member(_) ->
    #{pid := Server} = A = server(~"a"),
    Pool = pool([A], #{size => 2}),
    {ok, Reference} = erlmcp_client:subscribe(Pool, #{tools_changed => true}),
    receive {erlmcp, Reference, subscribed} -> ok after ?WAIT -> error(late) end,
    ok = erlmcp:add(Server, tool, #{name => ~"new", handler => fun(_, _) -> ~"" end}),
    receive {erlmcp, Reference, tools_changed} -> ok after ?WAIT -> error(late) end,
    ok = erlmcp_client:unsubscribe(Pool, Reference),
    ok = erlmcp_pool:stop(Pool).

%% Options have secrets, and a supervisor reports what it starts.
secrets_are_in_no_child_specification(_) ->
    #{url := Url} = server(~"a"),
    {ok, Pool} = erlmcp_pool:start_link(#{targets => [{http, Url, #{token => ~"a secret"}}]}),
    [{Id, _, _, _}] = supervisor:which_children(Pool),
    {ok, Spec} = supervisor:get_childspec(Pool, Id),
    nomatch = string:find(io_lib:format("~p", [Spec]), "a secret"),
    ok = erlmcp_pool:stop(Pool).

member_is_started_again(_) ->
    Pool = pool([server(~"a")], #{}),
    ~"a" = who(Pool, #{}),
    [{_, Member, worker, _}] = supervisor:which_children(Pool),
    Monitor = monitor(process, Member),
    exit(Member, kill),
    receive {'DOWN', Monitor, process, Member, killed} -> ok end,
    ok = until(fun() -> who(Pool, #{}) =:= ~"a" end),
    %% The table of clients has not begun to watch the pool once more.
    {monitors, Monitors} = process_info(whereis(erlmcp_client_table), monitors),
    [Pool] = [Pid || {process, Pid} <- Monitors, Pid =:= Pool],
    ok = erlmcp_pool:stop(Pool).

%% The row of a dead member is still in the table of clients, whose process removes it.
dead_member_has_no_calls(_) ->
    Pool = pool([server(~"a")], #{}),
    [{_, Member, worker, _}] = supervisor:which_children(Pool),
    Monitor = monitor(process, Member),
    ok = sys:suspend(erlmcp_client_table),
    try
        exit(Member, kill),
        receive {'DOWN', Monitor, process, Member, killed} -> ok end,
        [#{calls := 0}] = erlmcp_pool:info(Pool),
        #{calls := 0, cache := #{entries := 0}} = erlmcp_client:info(Member)
    after
        ok = sys:resume(erlmcp_client_table)
    end,
    ok = erlmcp_pool:stop(Pool).

the_application_must_run(_) ->
    ok = application:stop(erlmcp),
    Trapped = process_flag(trap_exit, true),
    Started = erlmcp_pool:start_link(#{targets => [{http, ~"http://127.0.0.1:1/mcp", #{}}]}),
    true = process_flag(trap_exit, Trapped),
    ok = application:start(erlmcp),
    {error, {not_started, erlmcp}} = Started.

options_are_checked(_) ->
    {error, {bad_option, targets, _}} = erlmcp_pool:start_link(#{}),
    [{error, {bad_option, targets, _}} = erlmcp_pool:start_link(#{targets => Wrong})
     || Wrong <- [[], [{server, a, #{}} | b]]],
    Targets = [{http, ~"http://127.0.0.1:1/mcp", #{}}],
    {error, {bad_option, size, ~"a positive integer"}} =
        erlmcp_pool:start_link(#{targets => Targets, size => 0}),
    {error, {bad_option, sise, ~"no such option"}} =
        erlmcp_pool:start_link(#{targets => Targets, sise => 1}),
    {error, {bad_option, retries, _}} =
        erlmcp_pool:start_link(#{targets => Targets, retries => -1}),
    {error, {bad_option, timeout, _}} =
        erlmcp_pool:start_link(#{targets => [{http, ~"http://127.0.0.1:1/mcp", #{timeout => 0}}]}).

supervised_by_name(_) ->
    #{url := Url} = server(~"a"),
    Spec = erlmcp_pool:child_spec({{local, pool_of_mine}, #{targets => [{http, Url, #{}}]}}),
    #{start := {Module, Function, Arguments}} = Spec,
    {ok, _} = apply(Module, Function, Arguments),
    ~"a" = who(pool_of_mine, #{}),
    ok = erlmcp_pool:stop(pool_of_mine).

%% Its own table is gone, and its row among the node's clients is not.
a_pool_that_has_just_ended_is_stopped(_) ->
    Pool = pool([server(~"a")], #{}),
    Monitor = monitor(process, Pool),
    true = unlink(Pool),
    ok = sys:suspend(erlmcp_client_table),
    try
        exit(Pool, kill),
        receive {'DOWN', Monitor, process, Pool, _} -> ok end,
        {ok, _} = erlmcp_client_table:find(Pool),
        {error, stopped} = erlmcp_pool:info(Pool),
        ok = erlmcp_client:unsubscribe(Pool, make_ref()),
        false = lists:keymember(Pool, 1, erlmcp_client_metrics:pools())
    after
        ok = sys:resume(erlmcp_client_table)
    end.

%% The call has found its pool just before that.
a_call_when_the_application_ends_is_refused(_) ->
    Pool = pool([server(~"a")], #{}),
    true = unlink(Pool),
    {ok, Members} = erlmcp_client_table:find(Pool),
    %% It must not end with its members.
    ok = sys:suspend(Pool),
    ok = application:stop(erlmcp),
    try
        {error, {unavailable, _}} =
            erlmcp_pool_members:run({call_tool, ~"who", #{}}, Members, #{})
    after
        exit(Pool, kill),
        ok = application:start(erlmcp)
    end.

deadline_holds_over_tries(_) ->
    Silent = erlmcp_test_peer:http(
        fun(#{message := #{~"method" := ~"server/discover"}} = Request) -> failing(Request);
           (_) -> silence
        end),
    Pool = pool([Silent], #{retries => 5}),
    {Time, {error, {timeout, _}}} =
        timer:tc(fun() -> erlmcp_client:call_tool(Pool, ~"who", #{}, #{timeout => 3000}) end,
                 millisecond),
    %% Once, not six times.
    true = Time < 2 * 3000,
    ok = erlmcp_pool:stop(Pool).

pool(Servers, Options) ->
    Targets = [{http, Url, #{timeout => ?WAIT}} || #{url := Url} <- Servers],
    {ok, Pool} = erlmcp_pool:start_link(Options#{targets => Targets}),
    Pool.

server(Name) ->
    Test = self(),
    {ok, Pid} = erlmcp:start_server(#{
        name => Name, version => ~"1.0.0",
        tools => [#{name => ~"who", handler => fun(_, _) -> Name end},
                  #{name => ~"report", handler => fun(_, Context) ->
                      ok = erlmcp:progress(Context, 1, #{}),
                      Name
                  end},
                  #{name => ~"wait", handler => fun(_, _) ->
                      Test ! {running, self(), Name},
                      receive finish -> Name end
                  end}],
        listen => [{http, #{}}]}),
    [#{url := Url}] = erlmcp:listeners(Pid),
    #{pid => Pid, url => Url}.

nobody() ->
    Port = integer_to_binary(erlmcp_test_port:unused()),
    #{url => <<"http://127.0.0.1:", Port/binary, "/mcp">>}.

%% Says what it is, and takes requests to close the connection in the middle of its answer.
closing() ->
    erlmcp_test_peer:http(fun failing/1).

failing(#{message := #{~"method" := ~"server/discover"} = Message}) ->
    {200, [], result(Message, #{resultType => complete, supportedVersions => [~"2026-07-28"],
                                capabilities => #{}, ttlMs => 0, cacheScope => public})};
failing(_) ->
    {events, [~":\n\n", close]}.

slowly_good(#{message := #{~"method" := ~"tools/call"} = Message}, Test) ->
    Test ! {trying, self()},
    receive go -> ok end,
    {200, [], result(Message, #{resultType => complete, content => []})}.

who(Pool, Options) ->
    {ok, #{~"content" := [#{~"text" := Name}]}} =
        erlmcp_client:call_tool(Pool, ~"who", #{}, Options),
    Name.

running() ->
    receive {running, Handler, _} -> Handler after ?WAIT -> error(not_called) end.

who_waits(Pool) ->
    {ok, Reference} = erlmcp_client:async(Pool, {call_tool, ~"wait", #{}}),
    receive {running, Handler, Name} -> {Name, Handler, Reference} after ?WAIT -> error(late) end.

finish({Name, Handler, Reference}) ->
    Handler ! finish,
    receive
        {erlmcp, Reference, {ok, #{~"content" := [#{~"text" := Name}]}}} -> ok
    after ?WAIT -> error(late)
    end.

%% The calls of tools that a script has got.
calls() ->
    receive
        {peer, #{~"method" := ~"tools/call"}} -> 1 + calls();
        {peer, _} -> calls()
    after 0 -> 0
    end.

until(Is) ->
    until(Is, ?WAIT div 20).

until(Is, Left) when Left > 0 ->
    case try Is() catch error:{badmatch, {error, _}} -> false end of
        true -> ok;
        false -> receive after 20 -> until(Is, Left - 1) end
    end.
