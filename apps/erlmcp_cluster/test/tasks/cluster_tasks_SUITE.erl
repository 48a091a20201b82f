-module(cluster_tasks_SUITE).
-moduledoc """
Tasks of a server on three nodes, each a process of the operating system, over real sockets: every
node answers for every task, a lost node's tasks end or run again, and no task ends twice.

The last case kills a node.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([the_rules_of_a_store_hold/1, each_node_answers_for_a_task/1,
         a_killed_process_repeats_its_task/1, a_task_that_runs_again_asks_anew/1,
         a_task_that_cannot_start_fails_alone/1,
         a_server_may_end_meanwhile/1,
         questions_are_answered_on_another_node/1,
         a_session_waits_on_another_node/1, a_late_report_is_dropped/1,
         a_list_has_the_tasks_of_all_nodes/1, a_node_that_is_behind_catches_up/1,
         reads_share_their_catch_ups/1,
         limits_hold_over_nodes/1, a_large_result_fails_its_task/1,
         large_requests_fail_their_task/1,
         arguments_that_repeat_are_bounded/1, few_changes_are_written/1,
         an_unknown_request_is_unsupported/1, an_explicit_store_wins/1,
         tasks_end_with_their_server/1, expired_tasks_are_deleted/1,
         a_cancelled_task_stays_so/1, a_task_that_the_tables_lack_ends/1,
         a_node_that_begins_again_ends_its_tasks/1,
         a_task_that_runs_again_ends_here_first/1,
         a_store_that_ends_while_it_is_used_is_unavailable/1,
         a_node_with_a_full_disk_comes_back/1, a_minority_refuses/1,
         a_node_that_stood_still_ends_nothing/1, a_killed_node_loses_its_tasks_once/1]).
%% On the nodes.
-export([look_while_it_ends/1]).
-export([sweep/1, stop_sweeping/1, update/2, read_at_once/2, consistent_queries/0,
         wait_for_cluster/2, wait/2, ask/2, ask_again/2, ask_much/2, report/2, large/2, repeat/2,
         running_tasks/1, finish_in_another_incarnation/1, returns/1, create/2,
         begins_again/0, used_at_its_end/2]).

-import(erlmcp_test_cluster, [incarnation/1]).
-import(erlmcp_test_cluster_node, [answered/1]).
-import(erlmcp_test_tasks, [id/1, refused/2, next/1]).
-import(erlmcp_test_client, [answer/3, over/1, request/4]).

-define(EXTENSION, #{~"io.modelcontextprotocol/tasks" => #{}}).
%% Of the death of a node and the end of its tasks: 1,250 ms of stillness, at most 350 ms until both
%% are noticed, an election, and the other suites of this machine.
-define(LOST_MS, 6_000).
-define(DISK_BYTES, 33_554_432).
-define(OF_CLUSTER, [cluster, cluster_disk]).

suite() ->
    [{timetrap, {minutes, 3}}].

all() ->
    [the_rules_of_a_store_hold, each_node_answers_for_a_task, a_killed_process_repeats_its_task,
     a_task_that_runs_again_asks_anew, a_task_that_cannot_start_fails_alone,
     a_server_may_end_meanwhile,
     questions_are_answered_on_another_node, a_session_waits_on_another_node,
     a_late_report_is_dropped, a_list_has_the_tasks_of_all_nodes, a_node_that_is_behind_catches_up,
     reads_share_their_catch_ups,
     limits_hold_over_nodes, a_large_result_fails_its_task, large_requests_fail_their_task,
     arguments_that_repeat_are_bounded,
     few_changes_are_written, an_unknown_request_is_unsupported, an_explicit_store_wins,
     tasks_end_with_their_server, expired_tasks_are_deleted, a_cancelled_task_stays_so,
     a_task_that_the_tables_lack_ends, a_node_that_begins_again_ends_its_tasks,
     a_task_that_runs_again_ends_here_first,
     a_store_that_ends_while_it_is_used_is_unavailable,
     a_node_with_a_full_disk_comes_back, a_minority_refuses,
     a_node_that_stood_still_ends_nothing, a_killed_node_loses_its_tasks_once].

init_per_suite(Config) ->
    [#{options := Options} = First | Others] = erlmcp_test_cluster:start(Config, #{}),
    {More, Disk} = disk(string:trim(os:cmd("id -u")) =:= "0"),
    Members = [First#{options := maps:merge(Options, More)} | Others],
    [ok, ok, ok] = erlmcp_test_cluster:join(Members),
    {_, Sorted} = lists:unzip(lists:sort([{incarnation(Member), Member} || Member <- Members])),
    [{members, Sorted}, {disk, {maps:get(node, First), Disk}} | Config].

%% One node has a disk of its own, where the machine allows it. The disk ends with its holder.
disk(false) ->
    {#{}, none};
disk(true) ->
    Caller = self(),
    _ = spawn(fun() ->
        {ok, Disk} = erlmcp_chaos_tmpfs:start(?DISK_BYTES),
        Caller ! {disk, self(), Disk},
        receive stop -> erlmcp_chaos_tmpfs:stop(Disk) end
    end),
    receive
        {disk, Holder, Disk} ->
            {#{data_dir => filename:join(erlmcp_chaos_tmpfs:folder(Disk), "data")}, {Holder, Disk}}
    end.

end_per_suite(Config) ->
    lists:foreach(fun erlmcp_test_cluster:stop/1, members(Config)),
    _ = [Holder ! stop || {disk, {_, {Holder, _}}} <- Config],
    ok.

%% Each case has a server of its own on each node.
init_per_testcase(Case, Config) ->
    [{servers, [served(Member, Case, options(Case)) || Member <- members(Config)]} | Config].

end_per_testcase(_, Config) ->
    lists:foreach(fun stop/1, servers(Config)).

options(limits_hold_over_nodes) -> #{limits => #{tasks => 7, tasks_per_principal => 7}};
options(expired_tasks_are_deleted) -> #{limits => #{task_ttl_ms => 200}};
options(_) -> #{}.

%% The oldest incarnation first.
members(Config) ->
    proplists:get_value(members, Config).

servers(Config) ->
    proplists:get_value(servers, Config).

%% The servers.

served(Member, Id, Options) ->
    {Pid, [#{port := Port}]} = erlmcp_test_cluster_node:serve(Member,
                                                             maps:merge(server(Id), Options)),
    #{member => Member, id => Id, pid => Pid, port => Port, url => ~"http://127.0.0.1"}.

stop(#{member := #{peer := Peer} = Member, id := Id}) ->
    _ = is_process_alive(Peer) andalso erlmcp_test_cluster:call(Member, erlmcp, stop_server, [Id]),
    ok.

server(Id) ->
    Task = #{task => optional},
    #{id => Id, name => ~"tasks", version => ~"1.0.0", cluster => erlmcp_cluster,
      listen => [{http, #{authenticate => fun(_) -> {ok, ~"alice"} end}}],
      tools => [Task#{name => ~"wait", handler => fun ?MODULE:wait/2},
                Task#{name => ~"ask", handler => fun ?MODULE:ask/2},
                Task#{name => ~"ask_again", repeatable => true, handler => fun ?MODULE:ask_again/2},
                Task#{name => ~"ask_much", handler => fun ?MODULE:ask_much/2},
                Task#{name => ~"report", handler => fun ?MODULE:report/2},
                Task#{name => ~"large", handler => fun ?MODULE:large/2},
                Task#{name => ~"repeat", repeatable => true, handler => fun ?MODULE:repeat/2}]}.

%% The node looks now for what it looks for every few seconds.
-doc false.
sweep(Id) ->
    {ok, _, Instance} = erlmcp_registry:whereis(Id),
    ok = erlmcp_tasks:sweep(Instance),
    erlmcp_cluster_lost_tasks ! behind,
    _ = sys:get_state(erlmcp_cluster_lost_tasks),
    ok.

%% The server does not look by itself any more.
-doc false.
stop_sweeping(Server) ->
    {_, Sweeper, _, _} = lists:keyfind(task_sweeper, 1, supervisor:which_children(Server)),
    sys:suspend(Sweeper).

%% Runs under a name, until it is told its return.
-doc false.
wait(#{~"label" := Label}, _) ->
    erlmcp_test_cluster_node:wait(Label).

-doc false.
ask(_, #{input := #{~"name" := #{~"content" := #{~"name" := Name}}}}) ->
    <<"hello ", Name/binary>>;
ask(_, _) ->
    {input_required, #{~"name" => erlmcp_input:elicit(~"Who?", #{type => object, properties =>
        #{name => #{type => string}}})}}.

%% Waits, if it gets its own label.
-doc false.
ask_again(#{~"label" := Label} = Arguments,
          #{input := #{~"name" := #{~"content" := #{~"name" := Label}}}} = Context) ->
    wait(Arguments, Context);
ask_again(Arguments, Context) ->
    ask(Arguments, Context).

%% Reports first, or does not. A change that comes soon after another one is written later.
-doc false.
ask_much(#{~"reports" := Reports}, Context) ->
    _ = [ok = erlmcp:progress(Context, 1, #{message => ~"asks"}) || Reports],
    {input_required, #{~"name" => erlmcp_input:elicit(binary:copy(~"?", 1_048_577),
                                                      #{name => string})}}.

-doc false.
report(Arguments, Context) ->
    {reports, Count} = wait(Arguments, Context),
    [ok = erlmcp:progress(Context, N, #{message => integer_to_binary(N)})
     || N <- lists:seq(1, Count)],
    receive {finish, Return} -> Return end.

-doc false.
large(#{~"bytes" := Bytes}, _) ->
    binary:copy(~"a", Bytes).

%% Writes where it runs. Waits, if it runs for the first time.
-doc false.
repeat(#{~"file" := File, ~"label" := Label} = Arguments, Context) ->
    ok = file:write_file(File, [atom_to_binary(node()), $\n], [append]),
    case file:read_file(File) of
        {ok, Runs} when Label =/= null ->
            case binary:split(Runs, ~"\n", [global, trim]) of
                [_] -> wait(Arguments, Context);
                _ -> ~"ran again"
            end;
        {ok, _} ->
            ~"ran"
    end.

finish(#{member := Member}, Label, Return) ->
    erlmcp_test_cluster_node:finish(Member, Label, Return).

running(#{member := Member}, Label) ->
    erlmcp_test_cluster_node:await_waiting(Member, Label).

%% The clients.

client(Server) ->
    erlmcp_test_client:open(Server, http, ~"2026-07-28",
                            #{elicitation => #{}, extensions => ?EXTENSION}).

session(#{member := Member} = Server) ->
    {_, _} = erlmcp_test_cluster:await(fun() -> is_newer(Member, 0) end, 30_000),
    erlmcp_test_client:open(Server, http, ~"2025-11-25", #{elicitation => #{}}).

call(Client, Tool, Arguments) ->
    answered(fun() -> call_once(Client, Tool, Arguments) end).

call_once(Client, Tool, Arguments) ->
    erlmcp_test_client:ask(Client, ~"tools/call", #{name => Tool, arguments => Arguments}).

waiting(Server, Label) ->
    Id = id(call(client(Server), ~"wait", #{label => Label})),
    _ = running(Server, Label),
    Id.

ask(Client, Method, Id) ->
    erlmcp_test_client:ask(Client, Method, #{taskId => Id}).

get(Client, Id) ->
    #{~"result" := Task} = answered(fun() -> ask(Client, ~"tasks/get", Id) end),
    Task.

cancel(Client, Id) ->
    #{~"result" := Result} = answered(fun() -> ask(Client, ~"tasks/cancel", Id) end),
    Result.

clients(Config) ->
    [client(Server) || Server <- servers(Config)].

%% The server of the node that leads, and the others. During an election none leads.
by_leader(Config) ->
    {Leader, _} = erlmcp_test_cluster:await(fun() ->
        #{leader := Leads} = erlmcp_test_cluster:status(hd(members(Config))),
        Leads =/= none andalso Leads
    end, 30_000),
    lists:partition(fun(#{member := #{node := Node}}) -> Node =:= Leader end, servers(Config)).

%% The cases.

the_rules_of_a_store_hold(Config) ->
    [Member | _] = members(Config),
    [_, _ | _] = Rules = lists:append([Cases || {_, Cases} <- task_store_SUITE:groups()]),
    %% A command that a pause delays by a second is refused. The next try has tables of its own.
    [_ = erlmcp_test_pauses:undisturbed(250, fun() ->
         erlmcp_test_cluster:call(Member, task_store_SUITE, Rule,
                                  [[{module, erlmcp_cluster_task_store},
                                    {options, #{server => {Rule, make_ref()}}}]])
     end) || Rule <- Rules].

each_node_answers_for_a_task(Config) ->
    [A, B, C] = servers(Config),
    Done = waiting(A, ~"done"),
    [#{~"status" := ~"working"} = get(Client, Done) || Client <- clients(Config)],
    ok = finish(A, ~"done", ~"finished"),
    [#{~"result" := #{~"content" := [#{~"text" := ~"finished"}]}} =
         until(Client, Done, ~"completed") || Client <- clients(Config)],
    %% What one client has been answered, every node knows.
    Cancelled = waiting(A, ~"cancelled"),
    Handler = running(A, ~"cancelled"),
    #{~"resultType" := ~"complete"} = cancel(client(B), Cancelled),
    [#{~"status" := ~"cancelled"} = get(Client, Cancelled) || Client <- clients(Config)],
    #{member := Member} = A,
    {_, _} = erlmcp_test_cluster:await(fun() ->
        not erlmcp_test_cluster:call(Member, erlang, is_process_alive, [Handler])
    end, 30_000),
    %% One that is over is acknowledged.
    #{} = cancel(client(C), Cancelled),
    %% A process that is killed loses its task alone.
    Killed = waiting(A, ~"killed"),
    #{~"status" := ~"working"} = get(client(B), Killed),
    true = erlmcp_test_cluster:call(Member, erlang, exit, [process(A, Killed), kill]),
    #{~"status" := ~"failed", ~"error" := #{~"message" := ~"the task was lost"}} =
        until(client(A), Killed, ~"failed"),
    #{~"status" := ~"failed"} = get(client(C), Killed),
    [_ = refused(-32602, ask(Client, ~"tasks/get", ~"none")) || Client <- clients(Config)].

%% A task that may be repeated is not lost with its process, whoever asks for it meanwhile.
a_killed_process_repeats_its_task(Config) ->
    [#{member := Member} = A, B, _] = servers(Config),
    {File, Id} = repeated(A, ~"killed_process", Config),
    %% The node would look by itself every ten seconds.
    ok = erlmcp_test_cluster:call(Member, sys, suspend, [erlmcp_cluster_lost_tasks]),
    true = erlmcp_test_cluster:call(Member, erlang, exit, [process(A, Id), kill]),
    [#{~"status" := ~"working"} = get(client(Server), Id) || Server <- [A, B]],
    ok = erlmcp_test_cluster:call(Member, sys, resume, [erlmcp_cluster_lost_tasks]),
    ok = erlmcp_test_cluster:call(Member, ?MODULE, sweep, [?FUNCTION_NAME]),
    #{~"result" := #{~"content" := [#{~"text" := ~"ran again"}]}} =
        until(client(B), Id, ~"completed"),
    2 = length(runs(File)).

%% A client answers each key once. So the questions of the next run have other keys.
a_task_that_runs_again_asks_anew(Config) ->
    [#{member := Member} = A, B, _] = servers(Config),
    Client = client(B),
    Id = id(call(client(A), ~"ask_again", #{label => ~"asks"})),
    #{~"inputRequests" := First} = until(Client, Id, ~"input_required"),
    [Key] = maps:keys(First),
    ok = give(Client, Id, Key, ~"asks"),
    _ = running(A, ~"asks"),
    true = erlmcp_test_cluster:call(Member, erlang, exit, [process(A, Id), kill]),
    ok = erlmcp_test_cluster:call(Member, ?MODULE, sweep, [?FUNCTION_NAME]),
    %% The answer was not written down yet, and so the record may still have the first question.
    {Next, _} = erlmcp_test_cluster:await(fun() ->
        case get(Client, Id) of
            #{~"inputRequests" := Requests} when Requests =/= First -> hd(maps:keys(Requests));
            #{} -> false
        end
    end, 30_000),
    %% An answer to the first run is for nobody any more.
    ok = give(Client, Id, Key, ~"Eve"),
    ok = give(Client, Id, Next, ~"Ada"),
    #{~"result" := #{~"content" := [#{~"text" := ~"hello Ada"}]}} =
        until(Client, Id, ~"completed").

give(Client, Id, Key, Name) ->
    Answers = #{Key => erlmcp_test_tasks:accept(name, Name)},
    #{~"result" := #{}} = answered(fun() ->
        erlmcp_test_client:ask(Client, ~"tasks/update", #{taskId => Id, inputResponses => Answers})
    end),
    ok.

%% Its record lacks what its process needs, as that of another release may.
a_task_that_cannot_start_fails_alone(Config) ->
    [#{member := Member} = A, B, _] = servers(Config),
    {_, Bad} = repeated(A, ~"cannot_start", Config),
    {_, Good} = repeated(A, ~"starts", Config),
    #{version := Version, repeat := #{context := Context} = Repeat} = Task = record(A, Bad),
    ok = erlmcp_test_cluster:call(Member, ?MODULE, update, [
        ?FUNCTION_NAME, Task#{version := Version + 1,
                              repeat := Repeat#{context := maps:remove(method, Context)}}]),
    [true = erlmcp_test_cluster:call(Member, erlang, exit, [process(A, Id), kill])
     || Id <- [Bad, Good]],
    ok = erlmcp_test_cluster:call(Member, ?MODULE, sweep, [?FUNCTION_NAME]),
    #{~"error" := #{~"message" := ~"its server has ended, and it cannot run again"}} =
        until(client(B), Bad, ~"failed"),
    #{~"result" := #{~"content" := [#{~"text" := ~"ran again"}]}} =
        until(client(B), Good, ~"completed").

%% The node has found the server when that ends with its catalog and its tables.
a_server_may_end_meanwhile(Config) ->
    [Member | _] = members(Config),
    Ending = served(Member, ending, #{}),
    {_, Id} = repeated(Ending, ~"ends_meanwhile", Config),
    true = erlmcp_test_cluster:call(Member, erlang, exit, [process(Ending, Id), kill]),
    true = erlmcp_test_cluster:call(Member, ?MODULE, look_while_it_ends, [ending]),
    stop(Ending).

-doc false.
look_while_it_ends(Id) ->
    Looks = whereis(erlmcp_cluster_lost_tasks),
    {ok, _, #{key := Key, tasks := {_, Processes}}} = erlmcp_registry:whereis(Id),
    true = persistent_term:erase({erlmcp_published_catalog, Key}),
    Looks ! behind,
    _ = sys:get_state(Looks),
    true = ets:delete(Processes),
    %% As if the node had a new incarnation.
    _ = sys:replace_state(Looks, fun(State) -> setelement(2, State, none) end),
    Looks ! look,
    _ = sys:get_state(Looks),
    Looks =:= whereis(erlmcp_cluster_lost_tasks).

process(#{member := #{node := Node}} = Server, Id) ->
    #{process := Process} = record(Server, Id),
    Node = node(Process),
    Process.

%% A node has the record a moment after the leader.
record(#{member := Member, id := Server}, Id) ->
    {{_, _, Task}, _} = erlmcp_test_cluster:await(fun() ->
        case erlmcp_test_cluster:call(Member, erlmcp_cluster_task_tables, find,
                                      [erlmcp_cluster_task_tables:server(Server), Id]) of
            {ok, Found} -> Found;
            error -> false
        end
    end, 30_000),
    Task.

questions_are_answered_on_another_node(Config) ->
    [A, B, C] = clients(Config),
    Id = id(call(A, ~"ask", #{})),
    #{~"inputRequests" := #{~"name.1" := _}} = until(B, Id, ~"input_required"),
    Answers = #{~"name.1" => erlmcp_test_tasks:accept(name, ~"Ada")},
    #{~"result" := #{}} = answered(fun() ->
        erlmcp_test_client:ask(C, ~"tasks/update", #{taskId => Id, inputResponses => Answers})
    end),
    #{~"result" := #{~"content" := [#{~"text" := ~"hello Ada"}]}} = until(B, Id, ~"completed").

a_session_waits_on_another_node(Config) ->
    [A, B, _] = servers(Config),
    One = session(A),
    Other = session(B),
    Start = fun(Tool, Arguments) ->
        id(erlmcp_test_tasks:ask(One, ~"tools/call", #{name => Tool, arguments => Arguments,
                                                       task => #{},
                                                       '_meta' => #{progressToken => 1}}))
    end,
    %% The question comes on the stream that waits, and so does the answer's effect.
    Asks = Start(~"ask", #{}),
    Exchange = request(Other, 5, ~"tasks/result", #{taskId => Asks}),
    #{~"method" := ~"elicitation/create", ~"id" := Question} = next(Exchange),
    ok = answer(Other, Question, erlmcp_test_tasks:accept(name, ~"Bob")),
    #{~"id" := 5, ~"result" := #{~"content" := [#{~"text" := ~"hello Bob"}]}} = next(Exchange),
    ok = over(Exchange),
    %% So do reports.
    Reports = Start(~"report", #{label => ~"reports"}),
    Waiting = request(Other, 6, ~"tasks/result", #{taskId => Reports}),
    _ = running(A, ~"reports"),
    {_, _} = erlmcp_test_cluster:await(fun() -> is_waited_for(A, Reports) end, 30_000),
    ok = finish(A, ~"reports", {reports, 1_500}),
    ok = finish(A, ~"reports", ~"reported"),
    {Before, #{~"result" := #{~"content" := [#{~"text" := ~"reported"}]}}} =
        erlmcp_test_client:answered(Waiting),
    1_500 = length([Progress || #{~"method" := ~"notifications/progress"} = Progress <- Before]),
    %% The result of an ended one is there at once, and that of a cancelled one is an error.
    #{~"result" := #{}} = ask(session(B), ~"tasks/result", Reports),
    Cancelled = Start(~"wait", #{label => ~"waited_for"}),
    _ = running(A, ~"waited_for"),
    Last = request(Other, 7, ~"tasks/result", #{taskId => Cancelled}),
    #{~"result" := #{~"status" := ~"cancelled"}} = ask(session(B), ~"tasks/cancel", Cancelled),
    #{~"id" := 7, ~"error" := #{~"code" := -32603}} = next(Last),
    ok = over(Last),
    %% Here, too, who comes too late is told so.
    _ = refused(-32602, ask(session(B), ~"tasks/cancel", Cancelled)).

is_waited_for(Server, Id) ->
    waiting_for(Server, Id) =/= [].

waiting_for(#{member := Member} = Server, Id) ->
    State = erlmcp_test_cluster:call(Member, sys, get_state, [process(Server, Id)]),
    [Pid || Pids <- tuple_to_list(State), is_list(Pids), Pid <- Pids, is_pid(Pid)].

%% A process that ran the task before it was taken over, on a node that stood still meanwhile, goes
%% on to report until its node ends it.
a_late_report_is_dropped(Config) ->
    [#{member := Member} = A, B, _] = servers(Config),
    Id = id(erlmcp_test_tasks:ask(session(A), ~"tools/call",
                                  #{name => ~"wait", arguments => #{label => ~"late"},
                                    task => #{}})),
    _ = running(A, ~"late"),
    Exchange = request(session(B), 5, ~"tasks/result", #{taskId => Id}),
    {[Waiting], _} = erlmcp_test_cluster:await(fun() ->
        case waiting_for(A, Id) of [] -> false; Pids -> Pids end
    end, 30_000),
    Other = erlmcp_test_cluster:call(Member, erlang, whereis, [erlmcp_cluster_lost_tasks]),
    _ = erlmcp_test_cluster:call(Member, erlang, send, [
        Waiting, {erlmcp_task, 1, {notification, ~"{}", Other}}]),
    ok = finish(A, ~"late", ~"done"),
    #{~"id" := 5, ~"result" := #{~"content" := [#{~"text" := ~"done"}]}} = next(Exchange),
    ok = over(Exchange).

a_list_has_the_tasks_of_all_nodes(Config) ->
    Ids = [id(call(client(Server), ~"large", #{bytes => 1})) || Server <- servers(Config)],
    %% A client that has its answer finds its task at once, wherever it asks.
    [begin
         #{~"result" := #{~"tasks" := Tasks}} =
             erlmcp_test_tasks:ask(session(Server), ~"tasks/list", #{}),
         Ids = [Id || #{~"taskId" := Id} <- Tasks]
     end || Server <- servers(Config)].

%% Its part of the store stands still while a task is created elsewhere. If a busy machine lets it
%% stand still for longer, its lease ends.
a_node_that_is_behind_catches_up(Config) ->
    {_, [#{member := Member} = Behind, Other]} = by_leader(Config),
    Waiting = session(Behind),
    Began = erlang:monotonic_time(millisecond),
    ok = erlmcp_test_cluster:call(Member, sys, suspend, [erlmcp_cluster]),
    Id = id(call(client(Other), ~"large", #{bytes => 1})),
    Get = request(client(Behind), 1, ~"tasks/get", #{taskId => Id}),
    List = request(Waiting, 2, ~"tasks/list", #{}),
    receive after 100 -> ok end,
    ok = erlmcp_test_cluster:call(Member, sys, resume, [erlmcp_cluster]),
    Took = erlang:monotonic_time(millisecond) - Began,
    Answers = [next(Exchange) || Exchange <- [Get, List]],
    [ok = over(Exchange) || Exchange <- [Get, List]],
    case Took =< 500 of
        true ->
            [#{~"result" := #{~"taskId" := Id}}, #{~"result" := #{~"tasks" := Tasks}}] = Answers,
            true = lists:member(Id, [Listed || #{~"taskId" := Listed} <- Tasks]);
        false ->
            a_node_that_is_behind_catches_up(Config)
    end.

%% Whoever asks for tasks that do not exist costs the cluster a few heartbeats, not one for each.
reads_share_their_catch_ups(Config) ->
    {[#{member := Leader}], [#{member := Follower}, _]} = by_leader(Config),
    Queries = fun() -> erlmcp_test_cluster:call(Leader, ?MODULE, consistent_queries, []) end,
    Reads = 1_000,
    [begin
         Before = Queries(),
         {[error], Took} = erlmcp_test_cluster:call(Member, ?MODULE, read_at_once,
                                                    [?FUNCTION_NAME, Reads]),
         Made = Queries() - Before,
         ct:pal("~b reads at once at the ~s: ~b consistent queries, ~b ms",
                [Reads, Name, Made, Took]),
         true = Made < Reads div 10
     end || {Name, Member} <- [{"leader", Leader}, {"follower", Follower}]].

%% Reads tasks that do not exist, in as many processes. Returns the answers that differ, and the
%% milliseconds until all were there.
-doc false.
read_at_once(Server, Count) ->
    {ok, _, #{tasks := {Store, _}}} = erlmcp_registry:whereis(Server),
    Began = erlang:monotonic_time(millisecond),
    Read = fun(N) -> exit(erlmcp_task_records:get(integer_to_binary(N), Store)) end,
    Reading = [spawn_monitor(fun() -> Read(N) end) || N <- lists:seq(1, Count)],
    Answers = [receive {'DOWN', Monitor, process, _, Answer} -> Answer end
               || {_, Monitor} <- Reading],
    {lists:usort(Answers), erlang:monotonic_time(millisecond) - Began}.

-doc false.
consistent_queries() ->
    #{consistent_queries := Count} = ra_counters:overview({erlmcp_cluster, node()}),
    Count.

limits_hold_over_nodes(Config) ->
    [A, B, C] = Clients = clients(Config),
    [_ = id(call(Client, ~"large", #{bytes => 1})) || Client <- Clients ++ Clients],
    _ = id(call(A, ~"large", #{bytes => 1})),
    %% A node counts a task of another one a moment later.
    {_, _} = erlmcp_test_cluster:await(fun() ->
        [7] =:= lists:usort([count(?FUNCTION_NAME, Member) || Member <- members(Config)])
    end, 30_000),
    [#{~"limit" := 7, ~"observed" := 8, ~"retryAfterMs" := 1000} =
         refused(1060, call(Client, ~"large", #{bytes => 1})) || Client <- [A, B, C]].

%% How many tasks of a server a node knows.
count(Server, Member) ->
    erlmcp_test_cluster:call(Member, erlmcp_cluster_task_tables, count,
                             [erlmcp_cluster_task_tables:server(Server), tasks]).

a_large_result_fails_its_task(Config) ->
    [A, B, _] = clients(Config),
    %% The result has the text, and 55 bytes around it.
    Fits = id(call(A, ~"large", #{bytes => 1_048_000})),
    #{~"result" := #{~"content" := [_]}} = until(B, Fits, ~"completed"),
    TooLarge = id(call(A, ~"large", #{bytes => 1_048_577})),
    #{~"error" := #{~"code" := 1089, ~"data" := #{~"limit" := 1_048_576}}} =
        until(B, TooLarge, ~"failed").

large_requests_fail_their_task(Config) ->
    [#{member := Member} = A, B, _] = servers(Config),
    [begin
         Id = id(call(client(A), ~"ask_much", #{reports => Reports})),
         Process = process(A, Id),
         #{~"error" := #{~"code" := 1089, ~"data" := #{~"limit" := 1_048_576}}} =
             until(client(B), Id, ~"failed"),
         {_, _} = erlmcp_test_cluster:await(fun() ->
             not erlmcp_test_cluster:call(Member, erlang, is_process_alive, [Process])
         end, 30_000)
     end || Reports <- [false, true]].

arguments_that_repeat_are_bounded(Config) ->
    [A, _, _] = clients(Config),
    Arguments = #{file => ~"none", label => null, more => binary:copy(~"a", 1_048_577)},
    #{~"limit" := 1_048_576} = refused(1068, call(A, ~"repeat", Arguments)).

%% However often a handler reports.
few_changes_are_written(Config) ->
    [A, B, _] = servers(Config),
    Began = erlang:monotonic_time(millisecond),
    Id = id(call(client(A), ~"report", #{label => ~"few"})),
    _ = running(A, ~"few"),
    ok = finish(A, ~"few", {reports, 200}),
    #{~"statusMessage" := ~"200"} = erlmcp_test_tasks:told(client(B), Id, ~"200"),
    ok = finish(A, ~"few", ~"done"),
    _ = until(client(B), Id, ~"completed"),
    Seconds = (erlang:monotonic_time(millisecond) - Began) div 1000,
    #{version := Version} = record(A, Id),
    ct:pal("~b versions in ~b seconds", [Version, Seconds]),
    %% The first one, the last one, and one for each second that has begun.
    true = Version =< 3 + Seconds.

an_unknown_request_is_unsupported(Config) ->
    [A, B, _] = servers(Config),
    Id = waiting(A, ~"later"),
    Process = process(A, Id),
    #{member := Member} = B,
    unsupported = erlmcp_test_cluster:call(Member, gen_server, call, [Process, {cancel, 2}]),
    ok = erlmcp_test_cluster:call(Member, gen_server, cast, [Process, {wait, 2, self()}]),
    #{~"status" := ~"working"} = get(client(B), Id),
    #{} = cancel(client(B), Id).

an_explicit_store_wins(Config) ->
    [Member | _] = members(Config),
    Own = served(Member, own, #{task_store => {erlmcp_task_store_ets, #{}}}),
    Id = id(call(client(Own), ~"large", #{bytes => 1})),
    #{} = until(client(Own), Id, ~"completed"),
    error = erlmcp_test_cluster:call(Member, erlmcp_cluster_task_tables, find,
                                     [erlmcp_cluster_task_tables:server(own), Id]),
    stop(Own).

%% The node lives, and its server starts again.
tasks_end_with_their_server(Config) ->
    [#{member := Member} = A, B, _] = servers(Config),
    Id = waiting(A, ~"ends"),
    ok = stop(A),
    Again = served(Member, ?FUNCTION_NAME, #{}),
    ok = erlmcp_test_cluster:call(Member, ?MODULE, sweep, [?FUNCTION_NAME]),
    #{~"status" := ~"failed", ~"error" := #{~"message" := ~"its server has ended"}} =
        until(client(B), Id, ~"failed"),
    stop(Again).

expired_tasks_are_deleted(Config) ->
    [#{member := Oldest}, _, #{member := Other}] = Servers = servers(Config),
    [ok = erlmcp_test_cluster:call(Member, ?MODULE, stop_sweeping, [Pid])
     || #{member := Member, pid := Pid} <- Servers],
    Ids = [id(call(client(Server), ~"large", #{bytes => 1})) || Server <- Servers],
    [ok = erlmcp_test_tasks:gone(Client, Id) || Client <- clients(Config), Id <- Ids],
    Count = fun(Member) -> count(?FUNCTION_NAME, Member) end,
    Sweep = fun(Member) ->
        erlmcp_test_cluster:call(Member, ?MODULE, sweep, [?FUNCTION_NAME])
    end,
    %% The oldest incarnation does it.
    ok = Sweep(Other),
    3 = Count(Other),
    %% A sweep ends if the store does not answer.
    {_, _} = erlmcp_test_cluster:await(fun() ->
        ok = Sweep(Oldest),
        Count(Oldest) =:= 0
    end, 30_000).

%% A node's part of the store ends, and begins again with what it has noted as agreed on. Its disk
%% is slow, and the leader says nothing yet, so that is less than what was answered before.
a_cancelled_task_stays_so(Config) ->
    {[#{member := Leader}], [#{member := Member} = A, _]} = by_leader(Config),
    Client = client(A),
    {_, Id} = repeated(A, ~"stays_cancelled", Config),
    #{~"status" := ~"working"} = get(Client, Id),
    #{log_meta := Notes} = erlmcp_test_cluster:call(Member, ra_system, derive_names,
                                                    [erlmcp_cluster]),
    ok = erlmcp_test_cluster:call(Member, sys, suspend, [Notes]),
    #{} = cancel(Client, Id),
    ok = erlmcp_test_cluster:call(Leader, sys, suspend, [erlmcp_cluster]),
    true = erlmcp_test_cluster:call(Member, ?MODULE, begins_again, []),
    Asked = request(Client, 1, ~"tasks/get", #{taskId => Id}),
    receive after 100 -> ok end,
    [ok = erlmcp_test_cluster:call(At, sys, resume, [Process])
     || {At, Process} <- [{Member, Notes}, {Leader, erlmcp_cluster}]],
    Answer = next(Asked),
    ok = over(Asked),
    case Answer of
        #{~"result" := #{~"status" := Status}} -> ~"cancelled" = Status;
        %% A busy machine takes longer, and the lease ends.
        #{~"error" := #{~"code" := 1080}} -> ok
    end,
    #{~"status" := ~"cancelled"} = until(Client, Id, ~"cancelled").

%% As before, and the task was created after what the part has noted.
a_task_that_the_tables_lack_ends(Config) ->
    {[#{member := Leader}], [#{member := Member} = A, _]} = by_leader(Config),
    #{log_meta := Notes} = erlmcp_test_cluster:call(Member, ra_system, derive_names,
                                                    [erlmcp_cluster]),
    ok = erlmcp_test_cluster:call(Member, sys, suspend, [Notes]),
    Id = waiting(A, ~"lacks"),
    ok = erlmcp_test_cluster:call(Leader, sys, suspend, [erlmcp_cluster]),
    true = erlmcp_test_cluster:call(Member, ?MODULE, begins_again, []),
    ok = finish(A, ~"lacks", ~"done"),
    receive after 100 -> ok end,
    [ok = erlmcp_test_cluster:call(At, sys, resume, [Process])
     || {At, Process} <- [{Member, Notes}, {Leader, erlmcp_cluster}]],
    #{~"status" := ~"completed"} = until(client(A), Id, ~"completed").

%% Ends this node's part of the store, and returns whether it is there again with its tables.
-doc false.
begins_again() ->
    Store = whereis(erlmcp_cluster),
    true = exit(Store, kill),
    {_, _} = erlmcp_test_cluster:await(fun() ->
        whereis(erlmcp_cluster) =/= Store andalso erlmcp_cluster_task_tables:are_there()
    end, 30_000),
    is_pid(whereis(erlmcp_cluster)).

%% Another process of the lease has another incarnation. Until the node has ended them, its tasks
%% may write what is not accepted any more, each of them once. The node looks for them each 100 ms,
%% so on a busy machine few may have returned before.
a_node_that_begins_again_ends_its_tasks(Config) ->
    [Member | _] = members(Config),
    %% No other node has this server, and takes them over.
    Alone = served(Member, alone, #{}),
    Labels = [<<"begins_again", (integer_to_binary(N))/binary>> || N <- lists:seq(1, 20)],
    [Id | _] = [waiting(Alone, Label) || Label <- Labels],
    Task = record(Alone, Id),
    Before = last_entry(Member),
    Returned = erlmcp_test_cluster:call(Member, ?MODULE, finish_in_another_incarnation, [Labels]),
    {_, _} = erlmcp_test_cluster:in_time(fun() ->
        0 =:= erlmcp_test_cluster:call(Member, ?MODULE, running_tasks, [alone])
    end, 5_000),
    Entries = last_entry(Member) - Before,
    ct:pal("~b have returned, and ~b entries are in the log", [Returned, Entries]),
    true = Entries < 200,
    %% A task that had its turn only now, and that nobody would run.
    {error, unavailable} =
        erlmcp_test_cluster:call(Member, ?MODULE, create, [alone, Task#{id := ~"late"}]),
    stop(Alone),
    Returned >= 10 orelse a_node_that_begins_again_ends_its_tasks(Config).

%% The node looks for tasks that stayed behind, before it has seen that it is another incarnation. A
%% process still runs the task for the one before.
a_task_that_runs_again_ends_here_first(Config) ->
    [#{node := Node} = Member, Other, _] = members(Config),
    %% No other node has this server.
    Alone = served(Member, alone, #{}),
    {File, Id} = repeated(Alone, ~"ends_first", Config),
    Handler = running(Alone, ~"ends_first"),
    Number = incarnation(Member),
    Looks = fun(Function) ->
        erlmcp_test_cluster:call(Member, sys, Function, [erlmcp_cluster_lost_tasks])
    end,
    Before = Looks(get_state),
    ok = Looks(suspend),
    ok = erlmcp_test_cluster:pause(Member),
    {_, _} = erlmcp_test_cluster:await(fun() ->
        #{alive := Alive} = erlmcp_test_cluster:status(Other),
        not lists:member(Node, maps:values(Alive))
    end, 30_000),
    ok = erlmcp_test_cluster:resume(Member),
    {_, _} = erlmcp_test_cluster:await(fun() -> is_newer(Member, Number) end, 30_000),
    %% The process keeps its own timer, for the cases after this one.
    {state, Own, Epoch, _} = Before,
    _ = erlmcp_test_cluster:call(Member, erlmcp_cluster_lost_tasks, handle_info,
                                 [behind, {state, Own, Epoch, make_ref()}]),
    {_, _} = erlmcp_test_cluster:await(fun() ->
        not erlmcp_test_cluster:call(Member, erlang, is_process_alive, [Handler])
    end, 30_000),
    ok = Looks(resume),
    #{~"result" := #{~"content" := [#{~"text" := ~"ran again"}]}} =
        until(client(Alone), Id, ~"completed"),
    2 = length(runs(File)),
    stop(Alone).

-doc false.
create(Server, Task) ->
    {ok, _, #{tasks := {Store, _}}} = erlmcp_registry:whereis(Server),
    erlmcp_task_records:put(Task, Store).

%% Handlers return as soon as the node has another incarnation. Returns how many do: the node may
%% have ended others before.
-doc false.
finish_in_another_incarnation(Labels) ->
    Number = erlmcp_cluster_lease:incarnation(),
    true = exit(whereis(erlmcp_cluster_lease), kill),
    ok = await_other_than(Number),
    length([Label || Label <- Labels, returns(Label)]).

%% The case's time is the bound.
await_other_than(Number) ->
    case lists:member(erlmcp_cluster_lease:incarnation(), [Number, none]) of
        true -> receive after 1 -> await_other_than(Number) end;
        false -> ok
    end.

%% Whether a handler that waits returns now.
-doc false.
returns(Label) ->
    try
        ok =:= erlmcp_test_cluster_node:finish_here(Label, ~"too late")
    catch
        error:badarg -> false
    end.

last_entry(#{node := Node} = Member) ->
    #{last_index := Index} = erlmcp_test_cluster:call(Member, ra, key_metrics,
                                                      [{erlmcp_cluster, Node}]),
    Index.

-doc false.
running_tasks(Server) ->
    {ok, _, Instance} = erlmcp_registry:whereis(Server),
    erlmcp_tasks:running(Instance).

a_minority_refuses(Config) ->
    [A, B, C] = servers(Config),
    [_, _, #{node := _} = Alone] = Members = members(Config),
    Others = Members -- [Alone],
    Number = incarnation(Alone),
    Id = waiting(C, ~"alone"),
    Handler = running(C, ~"alone"),
    Elsewhere = waiting(A, ~"elsewhere"),
    Session = session(C),
    ok = erlmcp_test_cluster:cut([Alone], Others),
    {_, Took} = erlmcp_test_cluster:await(fun() ->
        lists:all(fun(Each) -> is_refused(client(C), Each) end, [Elsewhere, Id])
    end, 30_000),
    ct:pal("refused after ~b ms", [Took]),
    Refused = [call_once(client(C), ~"large", #{bytes => 1}), ask(client(C), ~"tasks/get", Id),
               ask(client(C), ~"tasks/cancel", Id),
               erlmcp_test_tasks:ask(Session, ~"tasks/list", #{})],
    [#{~"retryAfterMs" := 1000} = refused(1080, Answer) || Answer <- Refused],
    %% Its task fails, and it cannot end it a second time.
    #{~"error" := #{~"message" := ~"its node was lost"}} =
        until(client(B), Id, ~"failed", ?LOST_MS div 10),
    #{version := Version} = record(B, Id),
    ok = finish(C, ~"alone", ~"too late"),
    ok = erlmcp_test_cluster:heal([Alone], Others),
    {_, _} = erlmcp_test_cluster:await(fun() -> is_newer(Alone, Number) end, 30_000),
    {_, _} = erlmcp_test_cluster:await(fun() ->
        not erlmcp_test_cluster:call(Alone, erlang, is_process_alive, [Handler])
    end, 30_000),
    [#{~"status" := ~"failed"} = get(Client, Id) || Client <- clients(Config)],
    #{version := Version} = record(C, Id),
    ok = finish(A, ~"elsewhere", ~"done"),
    [_ = until(Client, Elsewhere, ~"completed") || Client <- clients(Config)].

is_refused(Client, Id) ->
    case ask(Client, ~"tasks/get", Id) of
        #{~"error" := #{~"code" := 1080}} -> true;
        #{~"result" := _} -> false
    end.

is_newer(Member, Number) ->
    case erlmcp_test_cluster:status(Member) of
        #{incarnation := New, lease_ms := Left} when New > Number, Left > 0 -> true;
        _ -> false
    end.

%% Its part on a node ends, as when the disk is full, and the node's lease is still valid for a
%% moment. A busy machine may let the lease end before.
a_store_that_ends_while_it_is_used_is_unavailable(Config) ->
    [#{member := Member} = A, _, _] = servers(Config),
    Id = id(call(client(A), ~"large", #{bytes => 1})),
    _ = until(client(A), Id, ~"completed"),
    {Put, Used, Lasting} = erlmcp_test_cluster:call(Member, ?MODULE, used_at_its_end,
                                                    [?FUNCTION_NAME, record(A, Id)]),
    {error, unavailable} = Unavailable = Put,
    [[Unavailable, Unavailable, Unavailable, ok] = Answers || Answers <- Used],
    %% The part starts again.
    _ = until(client(A), Id, ~"completed"),
    Lasting =/= none orelse a_store_that_ends_while_it_is_used_is_unavailable(Config).

%% Returns the answers, and the incarnation that has a lease after them.
-doc false.
used_at_its_end(Server, #{id := Id, owner := Owner, version := Version} = Task) ->
    {ok, _, #{tasks := {Store, _}}} = erlmcp_registry:whereis(Server),
    Use = fun() ->
        [erlmcp_task_records:get(Id, Store),
         erlmcp_task_records:list(Owner, first, 1, Store),
         erlmcp_task_records:update(Task#{version := Version + 1}, Store),
         erlmcp_task_records:sweep(erlmcp_task_records:now_ms(Store), Store)]
    end,
    %% This process would start the part again.
    ok = sys:suspend(erlmcp_cluster_store),
    ok = ra_system:stop(erlmcp_cluster),
    Put = erlmcp_task_records:put(Task#{id := ~"new"}, Store),
    Without = Use(),
    %% While the tables are deleted, one after the other, one of them may still be there.
    erlmcp_cluster_task_counts = ets:new(erlmcp_cluster_task_counts, [named_table, public]),
    WithOne = Use(),
    true = ets:delete(erlmcp_cluster_task_counts),
    Lasting = erlmcp_cluster_lease:lasting(),
    ok = sys:resume(erlmcp_cluster_store),
    {Put, [Without, WithOne], Lasting}.

%% Its tasks fail, as those of a dead node. It says what it lacks, and comes back by itself.
a_node_with_a_full_disk_comes_back(Config) ->
    case proplists:get_value(disk, Config) of
        {_, none} -> {skip, "needs root"};
        {Node, {_, Disk}} -> a_full_disk(Node, Disk, Config)
    end.

a_full_disk(Node, Disk, Config) ->
    {[#{member := Member} = Full], [Other | _] = Others} =
        lists:partition(fun(#{member := #{node := Its}}) -> Its =:= Node end, servers(Config)),
    Before = incarnation(Member),
    ok = await_healthy(Full),
    Id = waiting(Full, ~"on_a_full_disk"),
    ok = erlmcp_chaos_tmpfs:fill(Disk),
    {_, _} = erlmcp_test_cluster:await(
        fun() -> health(Full) =:= {false, [cluster, cluster_disk]} end, 30_000),
    #{~"retryAfterMs" := 1000} = refused(1080, ask(client(Full), ~"tasks/get", Id)),
    _ = refused(1080, call_once(client(Full), ~"large", #{bytes => 1})),
    #{~"error" := #{~"message" := ~"its node was lost"}} =
        until(client(Other), Id, ~"failed", ?LOST_MS div 10),
    lists:foreach(fun await_healthy/1, Others),
    ok = erlmcp_chaos_tmpfs:free(Disk),
    {_, _} = erlmcp_test_cluster:await(fun() -> is_newer(Member, Before) end, 30_000),
    ok = await_healthy(Full),
    #{~"status" := ~"failed"} = get(client(Full), Id),
    [#{~"result" := #{~"content" := [_]}} =
         until(client(Each), id(call(client(Full), ~"large", #{bytes => 1})), ~"completed")
     || Each <- [Full | Others]].

%% A busy machine may let a lease end for a moment.
await_healthy(Server) ->
    {_, _} = erlmcp_test_cluster:await(fun() -> health(Server) =:= {true, []} end, 30_000),
    ok.

health(#{member := Member, id := Id}) ->
    #{ready := Ready, checks := Checks} = erlmcp_test_cluster:call(Member, erlmcp, health, [Id]),
    {Ready, [Name || Name := #{passes := false} <- Checks, lists:member(Name, ?OF_CLUSTER)]}.

%% It is stopped while its tasks run, and wakes up after others have taken them over. It does not
%% lead, so that the others keep their leases.
a_node_that_stood_still_ends_nothing(Config) ->
    {[C], [#{member := Still} = A, B]} = by_leader(Config),
    Number = incarnation(Still),
    Id = waiting(A, ~"still"),
    Handler = running(A, ~"still"),
    {File, Repeated} = repeated(A, ~"still_again", Config),
    Exchange = request(session(B), 5, ~"tasks/result", #{taskId => Id}),
    Stale = record(A, Id),
    ok = erlmcp_test_cluster:pause(Still),
    %% It does not answer, and takes no more. The request waits until the others have declared it
    %% dead.
    #{member := Asking} = B,
    ok = erlmcp_test_cluster_node:fill(Asking, Still),
    #{~"result" := #{}} = waited_for(B, fun() -> ask(client(B), ~"tasks/cancel", Id) end),
    #{~"error" := #{~"message" := ~"its node was lost"}} =
        until(client(B), Id, ~"failed", ?LOST_MS div 10),
    #{~"id" := 5, ~"error" := #{~"code" := -32603}} = next(Exchange),
    ok = over(Exchange),
    #{~"result" := #{~"content" := [#{~"text" := ~"ran again"}]}} =
        until(client(C), Repeated, ~"completed", ?LOST_MS div 10),
    Records = [record(B, Each) || Each <- [Id, Repeated]],
    ok = erlmcp_test_cluster:resume(Still),
    %% One handler would end its task now, and the other one still runs, until it is ended. On a
    %% busy machine the node may have ended both.
    _ = erlmcp_test_cluster:call(Still, ?MODULE, returns, [~"still_again"]),
    {_, _} = erlmcp_test_cluster:await(fun() -> is_newer(Still, Number) end, 30_000),
    {_, _} = erlmcp_test_cluster:await(fun() ->
        not erlmcp_test_cluster:call(Still, erlang, is_process_alive, [Handler])
    end, 30_000),
    %% A change of the old incarnation finds its record gone, with whatever version.
    #{node := Node} = Still,
    #{version := Version} = hd(Records),
    [{error, changed} =
         erlmcp_test_cluster:call(Still, ?MODULE, update,
                                  [?FUNCTION_NAME, Stale#{version := Next, node := Node}])
     || Next <- [maps:get(version, Stale) + 1, Version + 1]],
    [#{~"status" := ~"failed"} = get(Client, Id) || Client <- clients(Config)],
    Records = [record(A, Each) || Each <- [Id, Repeated]],
    2 = length(runs(File)).

%% A task that may run again, which waits for the first time.
repeated(Server, Label, Config) ->
    File = filename:join(proplists:get_value(priv_dir, Config), Label),
    Id = id(call(client(Server), ~"repeat", #{file => iolist_to_binary(File), label => Label})),
    _ = running(Server, Label),
    {File, Id}.

runs(File) ->
    {ok, Runs} = file:read_file(File),
    binary:split(Runs, ~"\n", [global, trim]).

-doc false.
update(Server, Task) ->
    {ok, _, #{tasks := {Store, _}}} = erlmcp_registry:whereis(Server),
    erlmcp_task_records:update(Task, Store).

%% The killed node leads.
a_killed_node_loses_its_tasks_once(Config) ->
    {[#{member := Killed} = A], [#{member := BMember} = B, #{member := CMember} = C]} =
        by_leader(Config),
    Survivors = [BMember, CMember],
    Ids = [waiting(A, <<"lost", (integer_to_binary(N))/binary>>) || N <- lists:seq(1, 10)],
    {File, Repeated} = repeated(A, ~"killed_again", Config),
    #{version := Before, created := Created, ttl := Ttl} = record(B, Repeated),
    Exchange = request(session(B), 5, ~"tasks/result", #{taskId => hd(Ids)}),
    %% At one of the others, as many requests wait as may.
    ok = erlmcp_test_cluster:call(CMember, ?MODULE, wait_for_cluster, [?FUNCTION_NAME, 1_000]),
    Cancelling = session(B),
    ok = erlmcp_test_cluster:kill(Killed),
    At = erlang:monotonic_time(millisecond),
    #{~"limit" := 1000} = refused(1005, ask(client(C), ~"tasks/cancel", hd(Ids))),
    %% What is asked now waits for the next leader, or until the task is taken over.
    Cancel = request(Cancelling, 6, ~"tasks/cancel", #{taskId => lists:last(Ids)}),
    #{~"result" := #{~"status" := Status}} =
        waited_for(B, fun() -> ask(client(B), ~"tasks/get", hd(Ids)) end),
    true = lists:member(Status, [~"working", ~"failed"]),
    #{~"result" := #{~"content" := [_]}} =
        until(client(B), id(waited_for(B, fun() ->
            call_once(client(B), ~"large", #{bytes => 1})
        end)), ~"completed"),
    Answer = case next(Cancel) of
        #{~"error" := #{~"code" := 1080}} ->
            waited_for(B, fun() -> ask(Cancelling, ~"tasks/cancel", lists:last(Ids)) end);
        First ->
            First
    end,
    ok = over(Cancel),
    #{~"error" := #{~"code" := -32602, ~"message" := ~"taskId: the task is over: failed"}} = Answer,
    {_, _} = erlmcp_test_cluster:in_time(fun() ->
        lists:all(fun(Id) -> is_lost(client(B), Id) end, Ids)
    end, ?LOST_MS),
    ct:pal("the tasks of a killed node had failed after ~b ms",
           [erlang:monotonic_time(millisecond) - At]),
    #{~"id" := 5, ~"error" := #{~"code" := -32603, ~"message" := ~"its node was lost"}} =
        next(Exchange),
    ok = over(Exchange),
    #{~"result" := #{~"content" := [#{~"text" := ~"ran again"}]}} =
        until(client(C), Repeated, ~"completed", ?LOST_MS div 10),
    %% Once, in the time that it had.
    [_, Node] = runs(File),
    true = lists:member(Node, [atom_to_binary(maps:get(node, Member)) || Member <- Survivors]),
    #{version := After, created := Created, ttl := Ttl} = Ended = record(B, Repeated),
    true = After >= Before + 2,
    false = is_map_key(repeat, Ended),
    %% It comes back as another incarnation, and changes nothing.
    Records = [record(B, Id) || Id <- [Repeated | Ids]],
    Back = erlmcp_test_cluster:revive(Killed),
    try
        [ok] = erlmcp_test_cluster:join([Back]),
        Again = served(Back, ?FUNCTION_NAME, #{}),
        [#{~"status" := ~"failed"} = get(client(Again), Id) || Id <- Ids],
        ok = erlmcp_test_cluster:call(Back, ?MODULE, sweep, [?FUNCTION_NAME]),
        Records = [record(Again, Id) || Id <- [Repeated | Ids]]
    after
        erlmcp_test_cluster:stop(Back)
    end.

%% A request waits for two seconds, unless the node has no lease. On a busy machine the cluster may
%% need longer.
waited_for(Server, Ask) ->
    waited_for(Server, Ask, 1).

%% A node may have a lease again before the suite looks, but hardly twice.
waited_for(#{member := Member} = Server, Ask, Early) when Early >= 0 ->
    case timer:tc(Ask, millisecond) of
        {Took, #{~"error" := #{~"code" := 1080}}} ->
            IsEarly = Took < 2_000 andalso is_newer(Member, 0),
            receive after 50 -> ok end,
            waited_for(Server, Ask, case IsEarly of true -> Early - 1; false -> Early end);
        {_, Answer} ->
            Answer
    end.

is_lost(Client, Id) ->
    case ask(Client, ~"tasks/get", Id) of
        #{~"result" := #{~"status" := ~"failed"}} -> true;
        _ -> false
    end.

%% Takes the permits of requests that wait for the cluster.
-doc false.
wait_for_cluster(Id, Count) ->
    {ok, _, #{gate := Gate}} = erlmcp_registry:whereis(Id),
    Caller = self(),
    Holder = spawn(fun() ->
        _ = [{ok, _} = erlmcp_gate:wait_for_cluster(Tenant, Gate)
             || Tenant <- lists:seq(1, Count)],
        Caller ! {self(), waits},
        receive never -> ok end
    end),
    receive {Holder, waits} -> ok end.

until(Client, Id, Status) ->
    until(Client, Id, Status, 3_000).

%% Awaits a status, `Tries` times ten milliseconds and the time of each look. While a new leader is
%% elected, a node refuses.
until(Client, Id, Status, Tries) when Tries > 0 ->
    case ask(Client, ~"tasks/get", Id) of
        #{~"result" := #{~"status" := Status} = Task} -> Task;
        _ -> receive after 10 -> until(Client, Id, Status, Tries - 1) end
    end.
