-module(quick_handlers_SUITE).
-moduledoc """
"Quick handlers" of `docs/tools.md`: definitions that say `quick => true`, on HTTP, TCP and stdio
and in both eras. A handler says in which process it runs: its connection's, or its own.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2]).
-export([quick_calls_run_in_their_connection/1, all_kinds_can_be_quick/1,
         answers_are_those_of_others/1, failures_are_those_of_others/1,
         guards_and_middleware_hold/1, mounted_tools_stay_quick/1]).
-export([who_is_told_of_progress_has_a_process/1, sessions_are_sent_the_log/1,
         reports_without_room_are_left_out_at_once/1,
         calls_that_wait_have_a_process/1, a_short_deadline_needs_a_process/1,
         lines_run_one_call_in_their_process/1, many_have_processes_beside_each_other/1,
         http2_runs_one_call_in_its_process/1, http2_answers_are_not_kept/1]).
-export([too_much_work_is_not_quick/1, what_hangs_ends_with_its_connection/1,
         a_drain_does_not_end_connections/1, on_stdio_what_hangs_ends_the_node/1,
         wrong_definitions_are_refused/1]).
-export([stdio/0]).

-import(erlmcp_test_http, [start/1, send/4, response/1, message/3,
                           initialize/2]).

-define(PATIENCE, 30_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [quick_calls_run_in_their_connection, all_kinds_can_be_quick, answers_are_those_of_others,
     failures_are_those_of_others, guards_and_middleware_hold, mounted_tools_stay_quick,
     who_is_told_of_progress_has_a_process, sessions_are_sent_the_log,
     reports_without_room_are_left_out_at_once, calls_that_wait_have_a_process,
     lines_run_one_call_in_their_process,
     many_have_processes_beside_each_other, http2_runs_one_call_in_its_process,
     http2_answers_are_not_kept,
     too_much_work_is_not_quick, a_drain_does_not_end_connections,
     wrong_definitions_are_refused, {group, waiting}].

%% Those that take their time wait beside each other.
groups() ->
    [{waiting, [parallel],
      [what_hangs_ends_with_its_connection, on_stdio_what_hangs_ends_the_node,
       a_short_deadline_needs_a_process]}].

init_per_suite(Config) ->
    %% Handlers that crash say so to the log at length.
    #{level := Level} = logger:get_primary_config(),
    ok = logger:set_primary_config(level, none),
    erlmcp_test_applications:start([erlmcp, gun], [{log_level, Level} | Config]).

end_per_suite(Config) ->
    ok = logger:set_primary_config(level, proplists:get_value(log_level, Config)),
    erlmcp_test_applications:stop(Config).

init_per_group(_, Config) ->
    Config.

end_per_group(_, _) ->
    ok.

%% A server with a tool that does what its argument says, quickly or not, and where it listens.

serve(Options) ->
    Usual = #{tools => [tool(~"quick", #{quick => true}), tool(~"other", #{})],
              on_event => teller(), listen => [{http, #{}}, {tcp, #{}}]},
    start(maps:merge(Usual, Options)).

tool(Name, More) ->
    More#{name => Name, handler => fun act/2}.

act(#{~"do" := ~"say where"}, _) -> pid();
act(#{~"do" := ~"structure"}, _) -> #{a => [1, 2.5, ~"three"]};
act(#{~"do" := ~"say no"}, _) -> {error, ~"no"};
act(#{~"do" := ~"refuse"}, _) ->
    {refuse, erlmcp_refusal:new(dependency_unavailable, ~"it is off", #{retry_after_ms => 1500})};
act(#{~"do" := ~"fail"}, _) -> error(on_purpose);
act(#{~"do" := ~"throw"}, _) -> throw(on_purpose);
act(#{~"do" := ~"exit"}, _) -> exit(on_purpose);
act(#{~"do" := ~"exit normally"}, _) -> exit(normal);
act(#{~"do" := ~"shut down"}, _) -> exit(shutdown);
act(#{~"do" := ~"return nothing"}, _) -> nothing;
act(#{~"do" := ~"return too much"}, _) -> binary:copy(~"x", 20_000);
act(#{~"do" := ~"ask"}, _) ->
    {input_required, #{~"who" => erlmcp_input:elicit(~"Who?", #{properties => #{}})}};
act(#{~"do" := ~"work a little"}, _) -> work(5_000);
act(#{~"do" := ~"work more"}, _) -> work(10_000);
act(#{~"do" := ~"work"}, _) -> work(100_000);
act(#{~"do" := ~"wait to go on"}, _) -> receive go_on -> pid() end;
act(#{~"do" := ~"hang"}, _) -> receive after infinity -> ok end;
act(#{~"do" := ~"loop"} = Same, Context) -> act(Same, Context);
act(#{~"do" := ~"remember"}, _) -> integer_to_binary(length(more([])));
act(#{~"do" := ~"log"}, Context) ->
    [ok = erlmcp:log(Context, Level, Level) || Level <- [debug, info, error]],
    pid();
act(#{~"do" := ~"log much"}, Context) ->
    Began = erlang:monotonic_time(millisecond),
    [ok = erlmcp:log(Context, error, N) || N <- lists:seq(1, 20)],
    integer_to_binary(erlang:monotonic_time(millisecond) - Began);
act(#{~"do" := ~"have it logged"}, Context) ->
    {_, Monitor} = spawn_monitor(fun() -> ok = erlmcp:log(Context, error, ~"from elsewhere") end),
    receive {'DOWN', Monitor, process, _, normal} -> pid() end;
act(#{~"do" := ~"have it closed"}, Context) ->
    {_, Monitor} = spawn_monitor(fun() -> ok = erlmcp:close_connection(Context) end),
    receive {'DOWN', Monitor, process, _, normal} -> ok end,
    %% Its connection's process is no owner that would take it.
    receive {quick, Message} -> error({sent, Message})
    after 0 -> pid()
    end;
act(#{~"do" := ~"progress"}, Context) ->
    [ok = erlmcp:progress(Context, N, #{}) || N <- [1, 2]],
    pid().

work(Much) ->
    _ = [erlang:phash2(N) || N <- lists:seq(1, Much)],
    pid().

more(List) -> more([make_ref() | List]).

pid() -> list_to_binary(pid_to_list(self())).

teller() ->
    Test = self(),
    fun(Event) -> Test ! Event end.

told(Name) ->
    receive
        #{event := Name} = Event -> Event
    after ?PATIENCE ->
        error({not_told, Name})
    end.

%% Its clients: each has one connection, and gives the answers to what it asks.

clients(#{pid := Pid} = Server) ->
    Clients = [{http, Server, connect(Server), #{}},
               {http, Server, connect(Server), #{session => initialize(Server, ~"2025-11-25")}}
               | [erlmcp_test_two_eras:open(Revision, Pid)
                  || Revision <- erlmcp_test_two_eras:eras()]],
    ok = lists:foreach(fun(Client) -> put({open, socket(Client)}, true) end, Clients),
    Clients.

connect(Server) ->
    Socket = erlmcp_test_http:connect(Server),
    _ = put({open, Socket}, true),
    Socket.

%% A connection that its client has closed is not waited for.
stop(Server) ->
    _ = [gen_tcp:close(Socket) || {{open, Socket}, true} <- get()],
    erlmcp_test_http:stop(Server).

ask({http, _, Socket, Options}, Method, Params) ->
    {Headers, Body} = message(Method, Params, Options),
    ok = send(Socket, ~"POST", Headers, Body),
    #{messages := Messages} = response(Socket),
    lists:last(Messages);
ask(Client, Method, Params) ->
    erlmcp_test_two_eras:ask(Client, Method,
                             #{atom_to_binary(Key) => Value || Key := Value <- Params}).

call(Client, Tool, What) ->
    ask(Client, ~"tools/call", #{name => Tool, arguments => #{~"do" => What}}).

where(Client, Tool) ->
    erlmcp_test_two_eras:text(call(Client, Tool, ~"say where")).

%% Twice the same process, which is no other call's.
is_in_connection(Client, Tool) ->
    One = where(Client, Tool),
    One =:= where(Client, Tool) andalso One =/= where(Client, ~"other").

quick_calls_run_in_their_connection(_) ->
    Server = serve(#{}),
    Clients = clients(Server),
    [true = is_in_connection(Client, ~"quick") || Client <- Clients],
    [false = is_in_connection(Client, ~"other") || Client <- Clients],
    %% Each in its own.
    4 = length(lists:uniq([where(Client, ~"quick") || Client <- Clients])),
    stop(Server).

all_kinds_can_be_quick(_) ->
    Quick = fun(Definition) ->
        Definition#{quick => true, handler => fun(_, _) -> pid() end}
    end,
    Server = serve(#{resources => [Quick(#{uri => ~"test://one", name => ~"one"})],
                     resource_templates => [Quick(#{uri_template => ~"test://of/{id}",
                                                    name => ~"of"})],
                     prompts => [Quick(#{name => ~"prompt"})]}),
    [[Pid, Pid, Pid, Pid] =
         [erlmcp_test_two_eras:text(ask(Client, Method, Params))
          || {Method, Params} <- [{~"tools/call", #{name => ~"quick",
                                                    arguments => #{~"do" => ~"say where"}}},
                                  {~"resources/read", #{uri => ~"test://one"}},
                                  {~"resources/read", #{uri => ~"test://of/1"}},
                                  {~"prompts/get", #{name => ~"prompt"}}]]
     || Client <- clients(Server), Pid <- [where(Client, ~"quick")]],
    stop(Server).

answers_are_those_of_others(_) ->
    Server = serve(#{}),
    [begin
         Answers = [maps:remove(~"id", call(Client, Tool, What)) || Tool <- [~"quick", ~"other"]],
         [Same, Same] = Answers
     end || Client <- clients(Server), What <- [~"structure", ~"say no", ~"refuse"]],
    stop(Server).

%% An incident for each, and the connection goes on. A quick handler has nobody to ask.
failures_are_those_of_others(_) ->
    Schema = #{~"do" => string},
    Tools = [tool(~"quick", #{quick => true, input_schema => Schema}),
             tool(~"other", #{input_schema => Schema})],
    Server = serve(#{tools => Tools, limits => #{reply_bytes => 16_384}}),
    [begin
         [Quick, Other] = [failure(call(Client, Tool, What)) || Tool <- [~"quick", ~"other"]],
         {_, Quick, Other} = {What, Other, Quick},
         true = is_in_connection(Client, ~"quick")
     end || Client <- clients(Server),
            What <- [~"fail", ~"throw", ~"exit", ~"exit normally", ~"shut down",
                     ~"return nothing", ~"return too much", 7]],
    [{-32603, _} = failure(call(Client, ~"quick", ~"ask")) || Client <- clients(Server)],
    #{what := call_crashed, method := ~"tools/call", target := ~"quick"} = told(incident),
    stop(Server).

%% What was observed of a reply's bytes has the digits of its id in it.
failure(#{~"error" := #{~"code" := Code, ~"data" := Data}}) ->
    {Code, maps:without([~"incident", ~"observed"], Data)};
failure(#{~"result" := #{~"isError" := true, ~"content" := Content}}) ->
    Content.

guards_and_middleware_hold(_) ->
    Around = fun(Arguments, Context, Next) ->
        {structured, [~"around", Next(Arguments, Context)]}
    end,
    Rare = tool(~"rare", #{quick => true, rates => #{day => 1}, max_calls => 1}),
    Server = serve(#{tools => [Rare, tool(~"other", #{})], middleware => [Around]}),
    [Client | _] = clients(Server),
    #{~"result" := #{~"structuredContent" := [~"around", _]}} =
        call(Client, ~"rare", ~"say where"),
    #{~"error" := #{~"data" := #{~"name" := _}}} = call(Client, ~"rare", ~"say where"),
    stop(Server).

mounted_tools_stay_quick(_) ->
    #{pid := Inner} = serve(#{id => quick_inner}),
    Server = serve(#{tools => [tool(~"other", #{})],
                     mounts => [{~"in", quick_inner}]}),
    [true = is_in_connection(Client, ~"in_quick") || Client <- clients(Server)],
    stop(Server),
    ok = erlmcp:stop_server(Inner).

who_is_told_of_progress_has_a_process(_) ->
    Server = serve(#{}),
    Socket = connect(Server),
    Params = #{name => ~"quick", arguments => #{~"do" => ~"progress"}},
    [begin
         {Headers, Body} = message(~"tools/call", Params, Options),
         ok = send(Socket, ~"POST", Headers, Body),
         #{messages := [#{~"method" := ~"notifications/progress"},
                        #{~"method" := ~"notifications/progress"}, Answer]} = response(Socket),
         false = erlmcp_test_two_eras:text(Answer) =:= where({http, Server, Socket, #{}}, ~"quick")
     end || Options <- [#{meta => #{~"progressToken" => 1}}]],
    Logged = #{meta => #{~"io.modelcontextprotocol/logLevel" => ~"info"}},
    {Headers, Body} = message(~"tools/call", Params#{arguments := #{~"do" => ~"log"}}, Logged),
    ok = send(Socket, ~"POST", Headers, Body),
    #{messages := [#{~"params" := #{~"level" := ~"info"}}, #{~"params" := #{~"level" := ~"error"}},
                   _]} = response(Socket),
    stop(Server).

%% After the call and before its answer: on HTTP in the call's stream, whose events are numbered.
sessions_are_sent_the_log(_) ->
    #{pid := Pid} = Server = serve(#{}),
    Socket = connect(Server),
    Options = #{session => initialize(Server, ~"2025-11-25")},
    Connection = where({http, Server, Socket, Options}, ~"quick"),
    Params = #{name => ~"quick", arguments => #{~"do" => ~"log"}},
    [begin
         {Headers, Body} = message(~"tools/call", Params, Options),
         ok = send(Socket, ~"POST", Headers, Body),
         #{messages := [#{~"params" := #{~"level" := ~"info"}},
                        #{~"params" := #{~"level" := ~"error"}}, Answer],
           body := Stream} = response(Socket),
         Connection = erlmcp_test_two_eras:text(Answer),
         3 = length([Id || {Id, _} <- erlmcp_test_http:events(Stream), Id =/= none])
     end || _ <- [1, 2]],
    %% What another process says for it is not a part of it.
    [begin
         Elsewhere = #{name => ~"quick", arguments => #{~"do" => Do}},
         {Before, Having} = message(~"tools/call", Elsewhere, Options),
         ok = send(Socket, ~"POST", Before, Having),
         #{messages := [Alone]} = response(Socket),
         Connection = erlmcp_test_two_eras:text(Alone)
     end || Do <- [~"have it logged", ~"have it closed"]],
    {_, Lines} = erlmcp_test_two_eras:open(~"2025-11-25", Pid),
    erlmcp_test_line:send(Lines, erlmcp_test_line:request(
        1, ~"tools/call", #{~"name" => ~"quick", ~"arguments" => #{~"do" => ~"log"}})),
    [#{~"params" := #{~"level" := ~"info"}}, #{~"params" := #{~"level" := ~"error"}},
     #{~"id" := 1}] = erlmcp_test_line:recv_many(Lines, 3),
    stop(Server).

%% The connection's process cannot free the room of its own reports, so it waits for none.
reports_without_room_are_left_out_at_once(_) ->
    #{pid := Pid} = Server = serve(#{limits => #{unread_messages => 5}}),
    {_, Lines} = erlmcp_test_two_eras:open(~"2025-11-25", Pid),
    Times = [begin
                 erlmcp_test_line:send(Lines, erlmcp_test_line:request(
                     Id, ~"tools/call",
                     #{~"name" => ~"quick", ~"arguments" => #{~"do" => ~"log much"}})),
                 [#{~"id" := Id} = Answer | Reports] =
                     lists:reverse(erlmcp_test_line:recv_many(Lines, 6)),
                 5 = length(Reports),
                 binary_to_integer(erlmcp_test_two_eras:text(Answer))
             end || Id <- [1, 2, 3]],
    {true, _} = {lists:min(Times) < 400, Times},
    stop(Server).

%% Behind one that has the only place.
calls_that_wait_have_a_process(_) ->
    Tools = [tool(~"quick", #{quick => true}), tool(~"other", #{}),
             erlmcp_test_line:waiting_tool(~"wait")],
    #{pid := Pid} = Server = serve(#{tools => Tools,
                                     limits => #{in_flight => 1, queue => 10, queue_ms => 60_000}}),
    {ok, _, #{gate := Gate}} = erlmcp_registry:whereis(Pid),
    [begin
         Connection = where(Client, ~"quick"),
         {_, Lines} = erlmcp_test_two_eras:open(~"2026-07-28", Pid),
         erlmcp_test_line:send(Lines, erlmcp_test_line:stateless(1, ~"tools/call",
                                                                 #{~"name" => ~"wait"})),
         Waiting = erlmcp_test_line:await_call(),
         Self = self(),
         Asking = spawn_link(fun() ->
             receive go -> Self ! {answered, self(), where(Client, ~"quick")} end
         end),
         ok = given(Client, Asking),
         Asking ! go,
         erlmcp_test_two_eras:await(fun() -> erlmcp_gate:held(Gate, waiting) =:= 1 end),
         Waiting ! {answer, ~"done"},
         receive {answered, Asking, Where} -> true = Where =/= Connection end
     end || Client <- clients(Server)],
    stop(Server).

given({http, _, Socket, _}, Pid) -> gen_tcp:controlling_process(Socket, Pid);
given({_, Socket}, Pid) -> gen_tcp:controlling_process(Socket, Pid).

%% In a process it is ended alone.
a_short_deadline_needs_a_process(_) ->
    Server = serve(#{tools => [tool(~"short", #{quick => true, timeout_ms => 900}),
                               tool(~"other", #{})]}),
    [begin
         false = is_in_connection(Client, ~"short"),
         {1069, _} = failure(call(Client, ~"short", ~"hang"))
     end || Client <- clients(Server)],
    stop(Server).

lines_run_one_call_in_their_process(_) ->
    Tools = [tool(~"quick", #{quick => true}), tool(~"other", #{}),
             erlmcp_test_line:waiting_tool(~"wait")],
    #{pid := Pid} = Server = serve(#{tools => Tools}),
    {_, Socket} = Client = erlmcp_test_two_eras:open(~"2026-07-28", Pid),
    true = is_in_connection(Client, ~"quick"),
    erlmcp_test_line:send(Socket, erlmcp_test_line:stateless(1, ~"tools/call",
                                                             #{~"name" => ~"wait"})),
    Waiting = erlmcp_test_line:await_call(),
    false = is_in_connection(Client, ~"quick"),
    Waiting ! {answer, ~"done"},
    ~"done" = erlmcp_test_two_eras:text(erlmcp_test_line:recv(Socket)),
    true = is_in_connection(Client, ~"quick"),
    %% Some that came together are answered in their order.
    true = lists:seq(1, 20)
        =:= [Id || #{~"id" := Id} <- together(~"say where", 20, Socket)],
    stop(Server).

together(What, Count, Socket) ->
    Params = #{~"name" => ~"quick", ~"arguments" => #{~"do" => What}},
    Lines = [json:encode(erlmcp_test_line:stateless(Id, ~"tools/call", Params))
             || Id <- lists:seq(1, Count)],
    erlmcp_test_line:send(Socket, iolist_to_binary(lists:join($\n, Lines))),
    erlmcp_test_line:recv_many(Socket, Count).

%% The first of them begin at once, and what they take together is bounded.
many_have_processes_beside_each_other(_) ->
    #{pid := Pid} = Server = serve(#{}),
    {_, Socket} = Client = erlmcp_test_two_eras:open(~"2026-07-28", Pid),
    Connection = where(Client, ~"quick"),
    Where =
        [erlmcp_test_two_eras:text(Answer) || Answer <- together(~"work a little", 200, Socket)],
    true = lists:member(Connection, Where),
    true = length(lists:uniq(Where)) > 10,
    Connection = where(Client, ~"quick"),
    stop(Server).

%% On HTTP/2 a connection has other requests, too: calls that would end with it.
http2_runs_one_call_in_its_process(_) ->
    Tools = [tool(~"quick", #{quick => true}), tool(~"other", #{}),
             erlmcp_test_line:waiting_tool(~"wait")],
    #{port := Port} = Server = serve(#{tools => Tools}),
    {ok, Gun} = gun:open({127, 0, 0, 1}, Port, #{protocols => [http2]}),
    {ok, http2} = gun:await_up(Gun, ?PATIENCE),
    Connection = http2_where(Gun, ~"quick"),
    Connection = http2_where(Gun, ~"quick"),
    false = Connection =:= http2_where(Gun, ~"other"),
    Waiting = http2_call(Gun, ~"wait", #{}),
    Call = erlmcp_test_line:await_call(),
    One = http2_where(Gun, ~"quick"),
    false = lists:member(Connection, [One, http2_where(Gun, ~"quick")]),
    Call ! {answer, ~"done"},
    ~"done" = http2_answer(Gun, Waiting),
    Connection = http2_where(Gun, ~"quick"),
    %% A call that its client cancels is over, too.
    Cancelled = http2_call(Gun, ~"wait", #{}),
    _ = erlmcp_test_line:await_call(),
    ok = gun:cancel(Gun, Cancelled),
    Connection = http2_where(Gun, ~"quick"),
    %% Some that came together are answered each on its own stream.
    Together = [http2_call(Gun, ~"quick", #{~"do" => ~"say where"}) || _ <- lists:seq(1, 20)],
    [Connection = http2_answer(Gun, Stream) || Stream <- Together],
    ok = gun:close(Gun),
    stop(Server).

http2_where(Gun, Tool) ->
    http2_answer(Gun, http2_call(Gun, Tool, #{~"do" => ~"say where"})).

http2_call(Gun, Tool, Arguments) ->
    {Headers, Body} = message(~"tools/call", #{name => Tool, arguments => Arguments}, #{}),
    gun:post(Gun, ~"/mcp", Headers, Body).

http2_answer(Gun, Stream) ->
    {response, nofin, 200, _} = gun:await(Gun, Stream, ?PATIENCE),
    {ok, Answer} = gun:await_body(Gun, Stream, ?PATIENCE),
    erlmcp_test_two_eras:text(json:decode(Answer)).

%% An answer does not wait for the calls behind it.
http2_answers_are_not_kept(_) ->
    #{port := Port} = Server = serve(#{}),
    {ok, Gun} = gun:open({127, 0, 0, 1}, Port, #{protocols => [http2]}),
    {ok, http2} = gun:await_up(Gun, ?PATIENCE),
    Where = http2_where(Gun, ~"quick"),
    Connection = list_to_pid(binary_to_list(Where)),
    ok = sys:suspend(Connection),
    [First, Second] = [http2_call(Gun, ~"quick", #{~"do" => Do})
                       || Do <- [~"say where", ~"wait to go on"]],
    ok = sys:resume(Connection),
    Where = http2_answer(Gun, First),
    Connection ! go_on,
    Where = http2_answer(Gun, Second),
    ok = gun:close(Gun),
    stop(Server).

too_much_work_is_not_quick(_) ->
    Names = [~"one", ~"two", ~"three", ~"four"],
    Server = serve(#{tools => [tool(~"other", #{}) | [tool(Name, #{quick => true})
                                                      || Name <- Names]]}),
    [begin
         Connection = where(Client, Name),
         Connection = erlmcp_test_two_eras:text(call(Client, Name, ~"work")),
         #{method := ~"tools/call", target := Name, why := reductions, limit := _} =
             told(not_quick),
         false = is_in_connection(Client, Name),
         %% It is told once.
         _ = call(Client, Name, ~"work")
     end || {Name, Client} <- lists:zip(Names, clients(Server))],
    stop(Server),
    receive #{event := not_quick} -> error(told_again) after 0 -> ok end.

%% One that hangs, one that takes memory without end and one that works without end, of each client,
%% each of its own tool: what they share is not quick any more. The others do not notice, and next
%% time they are calls as all.
what_hangs_ends_with_its_connection(_) ->
    Names = [<<What/binary, (integer_to_binary(N))/binary>>
             || What <- [~"hang", ~"remember", ~"loop"], N <- lists:seq(1, 4)],
    Server = serve(#{tools => [tool(~"other", #{}), tool(~"quick", #{quick => true})
                               | [tool(Name, #{quick => true})
                                  || Name <- Names]],
                     limits => #{message_bytes => 65_536, reply_bytes => 65_536,
                                 unread_bytes => 65_536, call_heap_bytes => 4_000_000}}),
    [Fine | _] = clients(Server),
    Others = lists:append([clients(Server) || _ <- lists:seq(1, 3)]),
    Begun = [begin
                 ok = begin_call(Client, Name, What),
                 {Client, Name, What}
             end || {Name, Client} <- lists:zip(Names, Others),
                    What <- [binary:part(Name, 0, byte_size(Name) - 1)]],
    true = is_in_connection(Fine, ~"quick"),
    [ok = erlmcp_test_http:closed(socket(Client)) || {Client, _, _} <- Begun],
    Told = [told(incident) || _ <- Begun],
    true = lists:sort(Names) =:= lists:sort([Target || #{target := Target} <- Told]),
    [quick_call_late = Died || {_, Name, What} <- Begun, What =/= ~"remember",
                               #{target := Target, what := Died} <- Told, Target =:= Name],
    %% What takes memory may be seen at work before it has passed its bound.
    Why = #{Target => {Because, Limit} || _ <- Begun, #{target := Target, why := Because,
                                                        limit := Limit} <- [told(not_quick)]},
    true = lists:sort(Names) =:= lists:sort(maps:keys(Why)),
    [{deadline, 1_000} = map_get(Name, Why) || {_, Name, ~"hang"} <- Begun],
    [{reductions, 40_000} = map_get(Name, Why) || {_, Name, ~"loop"} <- Begun],
    true = is_in_connection(Fine, ~"quick"),
    [false = is_in_connection(Fine, Name) || Name <- Names],
    {1089, _} = failure(call(Fine, ~"remember1", ~"remember")),
    stop(Server).

begin_call({http, _, Socket, Options}, Tool, What) ->
    Params = #{name => Tool, arguments => #{~"do" => What}},
    {Headers, Body} = message(~"tools/call", Params, Options),
    send(Socket, ~"POST", Headers, Body);
begin_call({Revision, Socket}, Tool, What) ->
    Params = #{~"name" => Tool, ~"arguments" => #{~"do" => What}},
    erlmcp_test_line:send(Socket, case Revision of
        ~"2026-07-28" -> erlmcp_test_line:stateless(1, ~"tools/call", Params);
        _ -> erlmcp_test_line:request(1, ~"tools/call", Params)
    end).

socket({http, _, Socket, _}) -> Socket;
socket({_, Socket}) -> Socket.

%% What a drain does to calls that are left when its time is over.
a_drain_does_not_end_connections(_) ->
    Ended = fun(_, _) ->
        {ok, _, #{gate := Gate}} = erlmcp_registry:whereis(quick_drained),
        true = lists:member(self(), erlmcp_gate:calls(Gate)),
        [true = exit(Call, {shutdown, draining}) || Call <- erlmcp_gate:calls(Gate)],
        pid()
    end,
    Server = serve(#{id => quick_drained,
                     tools => [#{name => ~"ended", quick => true, handler => Ended},
                               tool(~"quick", #{quick => true})]}),
    [begin
         Connection = erlmcp_test_two_eras:text(call(Client, ~"ended", ~"")),
         Connection = where(Client, ~"quick")
     end || Client <- clients(Server)],
    stop(Server).

%% A node that serves this suite's tool on its streams, and writes what it tells into a file.
on_stdio_what_hangs_ends_the_node(Config) ->
    Told = filename:join(proplists:get_value(priv_dir, Config), "told"),
    Erl = filename:join([code:root_dir(), "bin", "erl"]),
    Port = open_port({spawn_executable, Erl},
                     [{args, ["-noinput", "-pa" | code:get_path()]
                             ++ ["-s", atom_to_list(?MODULE), "stdio"]},
                      {env, [{"TOLD", Told}, {"ERL_CRASH_DUMP_SECONDS", "0"}]},
                      {line, 65_536}, binary, exit_status]),
    Ask = fun(What) ->
        Params = #{~"name" => ~"quick", ~"arguments" => #{~"do" => What}},
        port_command(Port, [json:encode(erlmcp_test_line:stateless(1, ~"tools/call", Params)), $\n])
    end,
    Where = fun() ->
        true = Ask(~"say where"),
        receive {Port, {data, {eol, Line}}} -> erlmcp_test_two_eras:text(json:decode(Line)) end
    end,
    true = Where() =:= Where(),
    true = Ask(~"hang"),
    receive {Port, {exit_status, 1}} -> ok after ?PATIENCE -> error(not_ended) end,
    {ok, Bytes} = file:read_file(Told),
    %% Nothing of a client that does not read; the last event may come too late.
    [~"not_quick" | Last] = binary:split(string:trim(Bytes), ~"\n", [global]),
    [] = Last -- [~"incident"].

stdio() ->
    ok = logger:set_primary_config(level, none),
    {ok, _} = application:ensure_all_started(erlmcp),
    Told = os:getenv("TOLD"),
    Tell = fun(#{event := Event}) ->
        ok = file:write_file(Told, [atom_to_binary(Event), $\n], [append])
    end,
    _ = spawn(fun() ->
        {ok, _} = erlmcp:start_server(#{name => ~"test", version => ~"1.0.0", on_event => Tell,
                                        tools => [tool(~"quick", #{quick => true})],
                                        listen => [{stdio, #{}}]}),
        receive after infinity -> ok end
    end),
    ok.

wrong_definitions_are_refused(_) ->
    Expected = ~"a definition without workers, breaker, cache and task",
    [{error, {bad_definition, tool, ~"wrong", quick, Expected}} =
         erlmcp:start_server(#{name => ~"wrong", version => ~"1", workers => #{w => worker()},
                               tools => [tool(~"wrong", More#{quick => true})]})
     || More <- [#{workers => w}, #{breaker => #{}}, #{cache => #{ttl_ms => 1}},
                 #{task => optional}]],
    {error, {bad_definition, tool, ~"wrong", quick, ~"true or false"}} =
        erlmcp:start_server(#{name => ~"wrong", version => ~"1",
                              tools => [tool(~"wrong", #{quick => yes})]}),
    Server = serve(#{tools => [tool(~"not", #{quick => false, task => optional}),
                               tool(~"other", #{})]}),
    [Client | _] = clients(Server),
    false = is_in_connection(Client, ~"not"),
    stop(Server).

worker() ->
    #{size => 1, start => fun() -> {ok, spawn_link(fun() -> receive stop -> ok end end)} end}.
