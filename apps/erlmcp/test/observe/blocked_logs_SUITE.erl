-module(blocked_logs_SUITE).
-moduledoc """
A handler of the log that blocks, as OTP's does where nobody reads what it writes: a call that was
late or died is answered all the same, and so is what its connection, session or task is asked.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([init_per_testcase/2, end_per_testcase/2]).
-export([log/2]).
-export([lines_are_answered/1, sessions_are_answered/1, tasks_end/1, quick_calls_are_ended/1,
         reports_that_wait_are_bounded/1]).

-import(erlmcp_test_http, [start/1, stop/1, call/4, initialize/2]).
-import(erlmcp_test_line, [serve/1, connect/1, close/1, send/2, recv_many/2, stateless/3,
                           ask_stateless/4]).

%% Reports that may wait for the handlers of the log.
-define(WAITING, 1000).
-define(AT_ONCE, 50).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [lines_are_answered, sessions_are_answered, tasks_end, quick_calls_are_ended,
     reports_that_wait_are_bounded].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    ok = logger:add_handler(?MODULE, ?MODULE, #{config => self()}),
    Config.

end_per_testcase(_, _) ->
    logger:remove_handler(?MODULE).

%% A handler is called in the process that logs.
-doc false.
log(#{msg := {report, #{incident := _} = Report}}, #{config := Test}) ->
    Monitor = monitor(process, Test),
    Test ! {blocked, self(), Report},
    receive
        {?MODULE, go} -> ok;
        {'DOWN', Monitor, process, _, _} -> ok
    end;
log(_, _) ->
    ok.

lines_are_answered(_) ->
    Socket = connect(serve(#{tools => tools()})),
    [begin
         #{~"error" := #{~"code" := Code, ~"data" := #{~"incident" := Incident}}} =
             ask_stateless(Socket, 1, ~"tools/call", #{~"name" => Tool}),
         #{~"result" := _} = ask_stateless(Socket, 2, ~"server/discover", #{}),
         ok = let_go(blocked(What, Incident))
     end || {Tool, Code, What} <- [{~"slow", 1069, call_timed_out}, {~"dies", -32603, call_died}]],
    ok = close(Socket).

%% A subscription is taken in by the process of the session.
sessions_are_answered(_) ->
    Resource = #{uri => ~"a:b", name => ~"a", handler => fun(_, _) -> ~"b" end},
    Server = start(#{tools => tools(), resources => [Resource]}),
    Session = #{session => initialize(Server, ~"2025-11-25")},
    [begin
         #{messages := [#{~"error" := #{~"code" := Code,
                                        ~"data" := #{~"incident" := Incident}}}]} =
             call(Server, ~"tools/call", #{name => Tool}, Session),
         #{messages := [#{~"result" := _}]} =
             call(Server, ~"resources/subscribe", #{uri => ~"a:b"}, Session),
         ok = let_go(blocked(What, Incident))
     end || {Tool, Code, What} <- [{~"slow", 1069, call_timed_out}, {~"dies", -32603, call_died}]],
    stop(Server).

tasks_end(_) ->
    Server = start(#{tools => tools(), limits => #{task_timeout_ms => 20}}),
    Extensions = #{extensions => #{~"io.modelcontextprotocol/tasks" => #{}}},
    Task = #{meta => #{~"io.modelcontextprotocol/clientCapabilities" => Extensions}},
    #{messages := [#{~"result" := #{~"taskId" := Id}}]} =
        call(Server, ~"tools/call", #{name => ~"slow"}, Task),
    #{~"data" := #{~"incident" := Incident}} = failure(Server, Id, Task),
    ok = let_go(blocked(call_timed_out, Incident)),
    stop(Server).

%% The case's time is the bound.
failure(Server, Id, Options) ->
    #{messages := [#{~"result" := Task}]} =
        call(Server, ~"tasks/get", #{taskId => Id}, Options),
    case Task of
        #{~"status" := ~"failed", ~"error" := Error} -> Error;
        #{~"status" := ~"working"} -> receive after 20 -> failure(Server, Id, Options) end
    end.

%% One process of the node watches them all.
quick_calls_are_ended(_) ->
    Names = [~"spins", ~"spins too"],
    Server = serve(#{tools => [#{name => Name, quick => true, handler => fun(_, _) -> spin() end}
                               || Name <- Names]}),
    [begin
         Socket = connect(Server),
         ok = send(Socket, stateless(1, ~"tools/call", #{~"name" => Name})),
         {error, closed} = gen_tcp:recv(Socket, 0, 30_000)
     end || Name <- Names],
    [receive {blocked, Pid, #{what := quick_call_late, target := Name}} -> let_go(Pid) end
     || Name <- Names].

spin() ->
    spin().

%% "At most 1,000 of their reports wait, on a node; what is over that is left out, and the next of
%% them says how many were, as `dropped`."
reports_that_wait_are_bounded(_) ->
    Socket = connect(serve(#{tools => tools()})),
    Told = lists:append([late(Socket) || _ <- lists:seq(1, ?WAITING div ?AT_ONCE + 1)]),
    Blocked = [blocked(call_timed_out, Incident) || Incident <- lists:sublist(Told, ?WAITING)],
    ok = lists:foreach(fun let_go/1, Blocked),
    %% These log side by side: the first of their processes says it, whichever that is.
    [?AT_ONCE] = [Dropped || Incident <- late(Socket),
                             {_, #{dropped := Dropped}} <- [blocked_with(Incident)]],
    LeftOut = lists:nthtail(?WAITING, Told),
    ?AT_ONCE = length(LeftOut),
    [] = [Incident || Incident <- LeftOut, has_come(Incident)],
    ok = close(Socket).

%% The incidents of calls that are late together, in the order of their answers.
late(Socket) ->
    Ids = lists:seq(1, ?AT_ONCE),
    [send(Socket, stateless(Id, ~"tools/call", #{~"name" => ~"slow"})) || Id <- Ids],
    [begin
         #{~"error" := #{~"code" := 1069, ~"data" := #{~"incident" := Incident}}} = Answer,
         Incident
     end || Answer <- recv_many(Socket, ?AT_ONCE)].

tools() ->
    Dies = fun(_, _) ->
        _ = spawn_link(fun() -> exit(on_purpose) end),
        receive never -> ~"" end
    end,
    [#{name => ~"slow", timeout_ms => 20, task => optional,
       handler => fun(_, _) -> receive never -> ~"" end end},
     #{name => ~"dies", handler => Dies}].

%% The case's time is the bound.
blocked(What, Incident) ->
    {Pid, #{what := What} = Report} = blocked_with(Incident),
    false = is_map_key(dropped, Report),
    Pid.

blocked_with(Incident) ->
    receive {blocked, Pid, #{incident := Incident} = Report} -> {Pid, Report} end.

has_come(Incident) ->
    receive {blocked, _, #{incident := Incident}} -> true after 0 -> false end.

%% Until it has.
let_go(Pid) ->
    Monitor = monitor(process, Pid),
    Pid ! {?MODULE, go},
    receive {'DOWN', Monitor, process, _, normal} -> ok end.
