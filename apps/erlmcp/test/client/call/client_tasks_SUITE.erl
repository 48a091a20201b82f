-module(client_tasks_SUITE).
-moduledoc """
Calls that become tasks, as a client has them: the extension `io.modelcontextprotocol/tasks`, and
2025-11-25, "Tasks". The server is erlmcp's own, and a script where one has to misbehave.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([result_is_waited_for/1, error_is_the_calls/1, tool_error_is_a_result/1,
         input_is_given_once/1, task_can_be_kept/1, cancelled_call_cancels_the_task/1,
         dead_caller_cancels_the_task/1, deadline_cancels_the_task/1, cancelled_elsewhere/1,
         task_takes_longer_than_a_call/1, without_tasks_there_are_none/1]).
-export([unasked_task_is_refused/1, malformed_tasks_are_refused/1,
         the_result_in_a_session_is_checked/1, pace_is_the_servers/1,
         each_look_has_the_time_of_a_call/1, a_late_look_is_repeated/1,
         two_late_looks_end_the_wait/1, time_of_the_user_is_not_the_servers/1,
         pace_that_is_none_is_a_second/1, failed_tasks_have_their_data/1,
         each_question_is_asked_once/1, a_task_without_an_answer_ends_its_call/1,
         a_server_that_goes_has_got_the_call/1]).

-import(erlmcp_test_suite, [server/1]).
-import(erlmcp_test_peer, [result/2]).

-define(WAIT, 30_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, stateless}, {group, session}, {group, peers}].

groups() ->
    Cases = [result_is_waited_for, error_is_the_calls, tool_error_is_a_result, input_is_given_once,
             task_can_be_kept, cancelled_call_cancels_the_task, dead_caller_cancels_the_task,
             deadline_cancels_the_task, task_takes_longer_than_a_call, cancelled_elsewhere,
             without_tasks_there_are_none],
    [{stateless, [], Cases}, {session, [], Cases},
     {peers, [], [unasked_task_is_refused, malformed_tasks_are_refused,
                  the_result_in_a_session_is_checked, pace_is_the_servers,
                  each_look_has_the_time_of_a_call, a_late_look_is_repeated,
                  two_late_looks_end_the_wait, time_of_the_user_is_not_the_servers,
                  pace_that_is_none_is_a_second, failed_tasks_have_their_data,
                  each_question_is_asked_once, a_task_without_an_answer_ends_its_call,
                  a_server_that_goes_has_got_the_call]}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(Era, Config) -> [{era, Era} | Config].

end_per_group(_, _) -> ok.

init_per_testcase(_, Config0) ->
    Config = erlmcp_test_sent:listen(Config0),
    case proplists:get_value(era, Config) of
        peers -> Config;
        Era -> started(Era, Config)
    end.

started(Era, Config) ->
    Test = self(),
    {ok, Server} = erlmcp:start_server(#{
        name => ~"test", version => ~"1.0.0", listen => [{http, #{}}],
        tools => [tool(~"slow", fun(_, _) -> wait(Test) end),
                  tool(~"crash", fun(_, _) -> error(on_purpose) end),
                  tool(~"fail", fun(_, _) -> {error, ~"no paper"} end),
                  tool(~"ask", fun(_, #{input := #{~"q" := #{~"content" := #{~"n" := N}}}}) ->
                                       integer_to_binary(N);
                                  (_, _) ->
                                       {input_required, #{~"q" =>
                                           erlmcp_input:elicit(~"How many?", #{n => integer})}}
                               end)]}),
    [#{url := Url}] = erlmcp:listeners(Server),
    Options = #{era => Era, tasks => true, timeout => ?WAIT,
                inputs => #{elicit => fun(_) -> Test ! asked, {accept, #{n => 7}} end}},
    {ok, Client} = erlmcp_client:start_link({http, Url, Options}),
    %% A session's client learns from the list which tools are to be tasks.
    {ok, _} = erlmcp_client:list_tools(Client),
    [{server, Server}, {client, Client}, {url, Url} | Config].

end_per_testcase(_, Config) ->
    case server(Config) of
        undefined ->
            ok;
        Server ->
            ok = erlmcp_client:stop(proplists:get_value(client, Config)),
            ok = erlmcp:stop_server(Server)
    end,
    erlmcp_test_sent:heard(Config, []).

tool(Name, Handler) ->
    #{name => Name, task => required, handler => Handler}.

wait(Test) ->
    Test ! {running, self()},
    receive finish -> ~"done" end.

running() ->
    receive {running, Pid} -> Pid after ?WAIT -> error(not_called) end.

ended(Pid) ->
    Monitor = monitor(process, Pid),
    receive {'DOWN', Monitor, process, Pid, _} -> ok after ?WAIT -> error(runs_still) end.

client(Config) -> proplists:get_value(client, Config).

result_is_waited_for(Config) ->
    {ok, Reference} = erlmcp_client:async(client(Config), {call_tool, ~"slow", #{}}),
    running() ! finish,
    {ok, #{~"content" := [#{~"text" := ~"done"}]}} = outcome(Reference).

outcome(Reference) ->
    receive
        {erlmcp, Reference, {Is, _} = Outcome} when Is =:= ok; Is =:= error -> Outcome
    after ?WAIT -> error(late)
    end.

error_is_the_calls(Config) ->
    {error, {rpc, #{code := -32603}}} = erlmcp_client:call_tool(client(Config), ~"crash", #{}).

tool_error_is_a_result(Config) ->
    {ok, #{~"isError" := true, ~"content" := [#{~"text" := ~"no paper"}]}} =
        erlmcp_client:call_tool(client(Config), ~"fail", #{}).

%% "Clients SHOULD deduplicate `inputRequests` keys across consecutive polls".
input_is_given_once(Config) ->
    {ok, #{~"content" := [#{~"text" := ~"7"}]}} =
        erlmcp_client:call_tool(client(Config), ~"ask", #{}),
    receive asked -> ok after 0 -> error(not_asked) end,
    receive asked -> error(asked_twice) after 0 -> ok end.

%% "Clients SHOULD persist task IDs to durable storage so that polling can resume".
task_can_be_kept(Config) ->
    {ok, #{~"taskId" := Id, ~"status" := ~"working"}} =
        erlmcp_client:call_tool(client(Config), ~"slow", #{}, #{task => handle}),
    Pid = running(),
    Kept = #{~"taskId" => Id},
    {ok, #{~"status" := ~"working"}} = erlmcp_client:task(client(Config), Kept),
    Pid ! finish,
    {ok, #{~"content" := [#{~"text" := ~"done"}]}} = erlmcp_client:await_task(client(Config), Kept),
    {ok, #{~"status" := ~"completed"}} = erlmcp_client:task(client(Config), Kept).

%% "A client sends a tasks/cancel request to signal its intent to cancel an in-progress task."
cancelled_call_cancels_the_task(Config) ->
    Client = client(Config),
    {Task, Pid} = kept(Client),
    {ok, Reference} = erlmcp_client:async(Client, {task, await, Task}),
    ok = erlmcp_client:cancel(Client, Reference),
    {error, cancelled} = outcome(Reference),
    ended(Pid).

%% A task that the client knows of, and the process that works on it.
kept(Client) ->
    {ok, Task} = erlmcp_client:call_tool(Client, ~"slow", #{}, #{task => handle}),
    {Task, running()}.

dead_caller_cancels_the_task(Config) ->
    Client = client(Config),
    {Task, Pid} = kept(Client),
    Caller = spawn(fun() -> erlmcp_client:await_task(Client, Task) end),
    ok = until(fun() -> map_get(calls, erlmcp_client:info(Client)) =:= 1 end),
    exit(Caller, kill),
    ended(Pid).

until(Is) ->
    case Is() of
        true -> ok;
        false -> receive after 10 -> until(Is) end
    end.

deadline_cancels_the_task(Config) ->
    {error, {timeout, _}} = erlmcp_client:call_tool(client(Config), ~"slow", #{},
                                                    #{timeout => 1500, max_timeout => 1500}),
    ended(running()).

%% A look at a task has the time of a call; the task may take longer. The second look comes half a
%% second before the end. If a pause makes it last until then, its own time is the reason.
task_takes_longer_than_a_call(Config) ->
    Client = client(Config),
    erlmcp_test_pauses:undisturbed(400, fun() ->
        {Task, Pid} = kept(Client),
        Most = #{timeout => 2000, max_timeout => 2500},
        Began = erlang:monotonic_time(millisecond),
        {error, {timeout, 2500}} = erlmcp_client:await_task(Client, Task, Most),
        true = erlang:monotonic_time(millisecond) - Began >= 2500,
        ended(Pid)
    end).

cancelled_elsewhere(Config) ->
    Client = client(Config),
    {ok, #{~"taskId" := Id}} =
        erlmcp_client:call_tool(Client, ~"slow", #{}, #{task => handle}),
    Pid = running(),
    {ok, _} = erlmcp_client:cancel_task(Client, #{~"taskId" => Id}),
    ended(Pid),
    {error, cancelled} = erlmcp_client:await_task(Client, #{~"taskId" => Id}).

%% "A server MUST NOT return CreateTaskResult to a client that did not include the extension".
without_tasks_there_are_none(Config) ->
    {ok, Client} = erlmcp_client:start_link({http, proplists:get_value(url, Config),
                                             #{era => proplists:get_value(era, Config)}}),
    {error, {rpc, #{code := Code}}} = erlmcp_client:call_tool(Client, ~"slow", #{}),
    true = lists:member(Code, [-32021, -32601]),
    ok = erlmcp_client:stop(Client).

unasked_task_is_refused(_) ->
    Client = peer(#{}, fun(Message) -> result(Message, task(~"working")) end),
    {error, {protocol, _}} = erlmcp_client:call_tool(Client, ~"x", #{}),
    %% "A client that receives CreateTaskResult in response to an unsupported request type MUST
    %% interpret this as an invalid response to the request."
    Prompts = peer(#{tasks => true}, fun(Message) -> result(Message, task(~"working")) end),
    {error, {protocol, _}} = erlmcp_client:get_prompt(Prompts, ~"x", #{}).

malformed_tasks_are_refused(_) ->
    [begin
         Client = peer(#{tasks => true},
                       fun(#{~"method" := ~"tools/call"} = Message) -> result(Message, Created);
                          (Message) -> result(Message, Now)
                       end),
         {error, {protocol, What}} = erlmcp_client:call_tool(Client, ~"x", #{}),
         {_, _} = binary:match(What, Named)
     end || {Created, Now, Named} <-
            [{maps:remove(taskId, task(~"working")), #{}, ~"taskId"},
             {task(~"working"), #{resultType => complete}, ~"status"},
             {task(~"working"), (task(~"dancing"))#{resultType => complete}, ~"status"},
             {task(~"working"), (task(~"completed"))#{resultType => complete,
                                                      result => #{content => none}}, ~"content"},
             {task(~"working"), (task(~"failed"))#{resultType => complete,
                                                   error => #{code => ~"x", message => ~"no"}},
              ~"code"}]].

%% As of a call that did not become a task.
the_result_in_a_session_is_checked(_) ->
    #{port := Port} = erlmcp_test_peer:tcp(fun
        (#{~"method" := ~"initialize"} = Message) ->
            [result(Message, #{protocolVersion => ~"2025-11-25",
                               capabilities => #{tools => #{}, tasks => #{
                                   requests => #{tools => #{call => #{}}}}},
                               serverInfo => #{name => ~"peer", version => ~"1"}})];
        (#{~"method" := ~"tools/call"} = Message) ->
            [result(Message, #{task => task(~"working")})];
        (#{~"method" := ~"tasks/get"} = Message) ->
            [result(Message, task(~"completed"))];
        (#{~"method" := ~"tasks/result"} = Message) ->
            [result(Message, #{})];
        (_) ->
            []
    end),
    {ok, Client} = erlmcp_client:start_link({tcp, ~"127.0.0.1", Port,
                                             #{era => session, tasks => true}}),
    {ok, Task} = erlmcp_client:call_tool(Client, ~"x", #{}, #{task => handle}),
    {error, {protocol, What}} = erlmcp_client:await_task(Client, Task),
    {_, _} = binary:match(What, ~"content").

%% "Clients SHOULD respect the `pollIntervalMs` provided in responses".
pace_is_the_servers(_) ->
    Looks = counters:new(1, []),
    Client = peer(#{tasks => true},
                  fun(#{~"method" := ~"tools/call"} = Message) ->
                          result(Message, (task(~"working"))#{pollIntervalMs => 300});
                     (#{~"method" := ~"tasks/get"} = Message) ->
                          ok = counters:add(Looks, 1, 1),
                          Status = case counters:get(Looks, 1) of
                              3 -> (task(~"completed"))#{result => #{content => []}};
                              _ -> (task(~"working"))#{pollIntervalMs => 100}
                          end,
                          result(Message, Status#{resultType => complete})
                  end),
    {Time, {ok, #{~"content" := []}}} =
        timer:tc(fun() -> erlmcp_client:call_tool(Client, ~"x", #{}) end, millisecond),
    true = Time >= 500,
    3 = counters:get(Looks, 1).

%% Of a task that works on for longer, and ends well. All looks together have the call's last time.
each_look_has_the_time_of_a_call(_) ->
    Until = erlang:monotonic_time(millisecond) + 2_000,
    Client = peer(#{tasks => true},
                  fun(#{~"method" := ~"tools/call"} = Message) ->
                          result(Message, task(~"working"));
                     (#{~"method" := ~"tasks/get"} = Message) ->
                          Now = erlang:monotonic_time(millisecond),
                          result(Message, (case Now < Until of
                                               true -> task(~"working");
                                               false -> completed()
                                           end)#{resultType => complete})
                  end),
    {ok, #{~"content" := []}} =
        erlmcp_client:call_tool(Client, ~"x", #{}, #{timeout => 1_500, max_timeout => ?WAIT}).

%% A task that works well is not lost because one answer was.
a_late_look_is_repeated(_) ->
    Looks = counters:new(1, []),
    Client = peer(#{tasks => true},
                  fun(#{~"method" := ~"tools/call"} = Message) ->
                          result(Message, task(~"working"));
                     (#{~"method" := ~"tasks/get"} = Message) ->
                          ok = counters:add(Looks, 1, 1),
                          case counters:get(Looks, 1) of
                              1 -> silence;
                              _ -> result(Message, (completed())#{resultType => complete})
                          end
                  end),
    {ok, #{~"content" := []}} =
        erlmcp_client:call_tool(Client, ~"x", #{}, #{timeout => 1_500, max_timeout => ?WAIT}),
    true = counters:get(Looks, 1) >= 2.

%% A server that answers nothing any more holds nobody up for the time of all looks. The task ends
%% with the wait.
two_late_looks_end_the_wait(_) ->
    Looks = counters:new(1, []),
    Client = peer(#{tasks => true},
                  fun(#{~"method" := ~"tools/call"} = Message) ->
                          result(Message, task(~"working"));
                     (#{~"method" := ~"tasks/get"}) ->
                          ok = counters:add(Looks, 1, 1),
                          silence;
                     (#{~"method" := ~"tasks/cancel"} = Message) ->
                          result(Message, #{resultType => complete})
                  end),
    {error, {timeout, 1_500}} =
        erlmcp_client:call_tool(Client, ~"x", #{}, #{timeout => 1_500, max_timeout => ?WAIT}),
    _ = erlmcp_test_peer:received(~"tasks/cancel"),
    2 = counters:get(Looks, 1).

completed() ->
    (task(~"completed"))#{result => #{content => []}}.

%% One who thinks for longer than the call may take has his answer sent all the same.
time_of_the_user_is_not_the_servers(_) ->
    Answered = counters:new(1, []),
    Client = peer(#{tasks => true,
                    inputs => #{elicit => fun(_) -> receive after 1_800 -> decline end end}},
                  fun(#{~"method" := ~"tools/call"} = Message) ->
                          result(Message, task(~"working"));
                     (#{~"method" := ~"tasks/get"} = Message) ->
                          Now = case counters:get(Answered, 1) of
                              0 -> (task(~"input_required"))#{inputRequests => #{q => question()}};
                              _ -> completed()
                          end,
                          result(Message, Now#{resultType => complete});
                     (#{~"method" := ~"tasks/update"} = Message) ->
                          ok = counters:add(Answered, 1, 1),
                          result(Message, #{resultType => complete})
                  end),
    {ok, #{~"content" := []}} =
        erlmcp_client:call_tool(Client, ~"x", #{}, #{timeout => 1_500, max_timeout => 1_500}).

question() ->
    #{method => ~"elicitation/create",
      params => #{message => ~"?", requestedSchema => #{type => object, properties => #{}}}}.

%% And one that is too short is twenty looks a second, so that no server has itself asked all day.
pace_that_is_none_is_a_second(_) ->
    Paces = [{#{pollIntervalMs => ~"soon"}, 1_000}, {#{pollInterval => ~"soon"}, 1_000},
             {#{}, 1_000}, {#{pollIntervalMs => 0}, 50}, {#{pollInterval => 300}, 300}],
    Test = self(),
    Calls = [spawn_link(fun() ->
                 Client = peer(#{tasks => true},
                               fun(#{~"method" := ~"tools/call"} = Message) ->
                                       result(Message, maps:merge(maps:remove(
                                           pollIntervalMs, task(~"working")), Pace));
                                  (#{~"method" := ~"tasks/get"} = Message) ->
                                       result(Message, (completed())#{resultType => complete})
                               end),
                 {Took, {ok, _}} = timer:tc(fun() ->
                     erlmcp_client:call_tool(Client, ~"x", #{}, #{max_timeout => 10_000})
                 end, millisecond),
                 Test ! {self(), Took}
             end) || {Pace, _} <- Paces],
    Took = [receive {Pid, Time} -> Time after ?WAIT -> error(late) end || Pid <- Calls],
    [{Pace, true} = {Pace, Time >= Expected}
     || {{Pace, Expected}, Time} <- lists:zip(Paces, Took)],
    %% The shortest was not as long as the others.
    true = lists:nth(4, Took) < lists:nth(3, Took).

failed_tasks_have_their_data(_) ->
    [begin
         Client = peer(#{tasks => true},
                       fun(#{~"method" := ~"tools/call"} = Message) ->
                               result(Message, task(~"working"));
                          (Message) ->
                               result(Message, (task(~"failed"))#{resultType => complete,
                                                                  error => Error})
                       end),
         {error, {rpc, Reason}} = erlmcp_client:call_tool(Client, ~"x", #{})
     end || {Error, Reason} <- [{#{code => 7, message => ~"no"}, #{code => 7, message => ~"no"}},
                                {#{code => 7, message => ~"no", data => [1]},
                                 #{code => 7, message => ~"no", data => [1]}}]].

%% "Clients SHOULD deduplicate `inputRequests` keys across consecutive polls": of what a later look
%% asks, only what is new is asked and sent.
each_question_is_asked_once(_) ->
    Test = self(),
    Looks = counters:new(1, []),
    Client = peer(#{tasks => true, inputs => #{elicit => fun(_) -> Test ! asked, decline end}},
                  fun(#{~"method" := ~"tools/call"} = Message) ->
                          result(Message, task(~"working"));
                     (#{~"method" := ~"tasks/get"} = Message) ->
                          ok = counters:add(Looks, 1, 1),
                          Now = case counters:get(Looks, 1) of
                              1 -> asking([~"a"]);
                              2 -> asking([~"a"]);
                              3 -> asking([~"a", ~"b"]);
                              _ -> completed()
                          end,
                          result(Message, Now#{resultType => complete});
                     (Message) ->
                          result(Message, #{resultType => complete})
                  end),
    {ok, #{~"content" := []}} = erlmcp_client:call_tool(Client, ~"x", #{}),
    [[~"a"], [~"b"]] = [maps:keys(Answers)
                        || _ <- [1, 2], #{~"params" := #{~"inputResponses" := Answers}}
                                            <- [erlmcp_test_peer:received(~"tasks/update")]],
    receive {peer, #{~"method" := ~"tasks/update"}} -> error(sent_again) after 0 -> ok end,
    2 = length([asked || _ <- [1, 2], receive asked -> true after 0 -> false end]),
    receive asked -> error(asked_again) after 0 -> ok end.

asking(Keys) ->
    (task(~"input_required"))#{inputRequests => #{Key => question() || Key <- Keys}}.

%% The call ends, and says whose answer it lacks.
a_task_without_an_answer_ends_its_call(_) ->
    Client = peer(#{tasks => true, inputs => #{elicit => fun(_) -> error(on_purpose) end}},
                  fun(#{~"method" := ~"tools/call"} = Message) ->
                          result(Message, task(~"working"));
                     (Message) ->
                          result(Message, (asking([~"a"]))#{resultType => complete})
                  end),
    {error, {input, ~"a", crashed}} = erlmcp_client:call_tool(Client, ~"x", #{}).

%% `{connect, Why}` would say that the call was not sent.
a_server_that_goes_has_got_the_call(_) ->
    {Client, Peer} = client_and_peer(#{tasks => true}, fun(#{~"method" := Method} = Message) ->
        result(Message, case Method of
            ~"tools/call" -> task(~"working");
            ~"tasks/get" -> (task(~"working"))#{resultType => complete}
        end)
    end),
    {ok, Reference} = erlmcp_client:async(Client, {call_tool, ~"x", #{}}),
    _ = erlmcp_test_peer:received(~"tasks/get"),
    ok = erlmcp_test_peer:stop(Peer),
    {error, {closed, {connect, econnrefused}}} = outcome(Reference).

task(Status) ->
    #{resultType => task, taskId => ~"t-1", status => Status, createdAt => ~"2026-01-01T00:00:00Z",
      lastUpdatedAt => ~"2026-01-01T00:00:00Z", ttlMs => null, pollIntervalMs => 50}.

peer(Options, Answer) ->
    {Client, _} = client_and_peer(Options, Answer),
    Client.

client_and_peer(Options, Answer) ->
    #{url := Url} = Peer = erlmcp_test_peer:http(
        fun(#{message := #{~"method" := ~"server/discover"} = Message}) ->
                {200, [], result(Message, #{resultType => complete,
                                            supportedVersions => [~"2026-07-28"],
                                            capabilities => #{}, ttlMs => 0,
                                            cacheScope => public})};
           (#{message := Message}) ->
                case Answer(Message) of
                    silence -> silence;
                    Body -> {200, [], Body}
                end
        end),
    {ok, Client} = erlmcp_client:start_link({http, Url, Options}),
    %% What is short in a case is the call's time alone.
    {ok, _} = erlmcp_client:server(Client),
    {Client, Peer}.
