-module(server_end_logs_SUITE).
-moduledoc "What a server's end, or its failing start, writes to the log: reasons, and no secrets.".

-behaviour(supervisor).
-behaviour(erlmcp_task_store).

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([keys_are_in_no_log/1, keys_in_a_fun_are_in_no_supervisors_log/1]).
-export([a_listener_that_asks_nobody_is_warned_of/1, closed_listeners_are_told/1]).
-export([tls_secrets_are_in_no_log/1, a_taken_id_is_no_crash/1, keys_of_tasks_are_in_no_log/1]).
-export([log/2, init/1]).
-export([open/2, put/2, get/2, update/2, list/4, delete/2, sweep/2]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [keys_are_in_no_log, keys_in_a_fun_are_in_no_supervisors_log, tls_secrets_are_in_no_log,
     a_taken_id_is_no_crash, keys_of_tasks_are_in_no_log,
     a_listener_that_asks_nobody_is_warned_of, closed_listeners_are_told].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, ssl], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    process_flag(trap_exit, true),
    ok = logger:add_handler(?MODULE, ?MODULE, #{config => #{test => self()}}),
    Config.

end_per_testcase(_, _) ->
    logger:remove_handler(?MODULE).

-doc false.
log(Event, #{config := #{test := Test}}) ->
    Text = logger_formatter:format(Event, #{single_line => false}),
    Test ! {logged, unicode:characters_to_binary(Text)}.

%% A server ends with its starter; OTP logs what ended, and what it was started with.
keys_are_in_no_log(_) ->
    Key = ~"0123456789abcdefghijklmnopqrstuv",
    Test = self(),
    Starter = spawn(fun() ->
        {ok, Server} = erlmcp:start_server(options(#{keys => [Key], listen => [{tcp, #{}}]})),
        Test ! {started, Server},
        receive stop -> exit(on_purpose) end
    end),
    Server = receive {started, Pid} -> Pid end,
    Monitor = monitor(process, Server),
    Starter ! stop,
    receive {'DOWN', Monitor, process, Server, on_purpose} -> ok end,
    Logged = logged(),
    {_, _} = binary:match(Logged, ~"on_purpose"),
    nomatch = binary:match(Logged, Key).

%% The user's supervisor logs the options that it starts a server with.
keys_in_a_fun_are_in_no_supervisors_log(_) ->
    Key = ~"0123456789abcdefghijklmnopqrstuv",
    Spec = erlmcp:child_spec(options(#{id => ?MODULE, keys => fun() -> [Key] end})),
    {ok, Supervisor} = supervisor:start_link(?MODULE, [Spec]),
    [{_, Server, _, _}] = supervisor:which_children(Supervisor),
    exit(Server, kill),
    Logged = iolist_to_binary(logged(~"start_server")),
    {_, _} = binary:match(Logged, ~"killed"),
    nomatch = binary:match(Logged, Key),
    ok = gen_server:stop(Supervisor).

init(Specs) ->
    {ok, {#{strategy => one_for_one}, Specs}}.

tls_secrets_are_in_no_log(_) ->
    Tls = [{certfile, "no such file"}, {password, "open sesame"}],
    {error, {listen, http, {file, "no such file", enoent}}} =
        erlmcp:start_server(options(#{listen => [{http, #{tls => Tls}}]})),
    Logged = logged(),
    {_, _} = binary:match(Logged, ~"no such file"),
    nomatch = binary:match(Logged, ~"open sesame").

%% Its starter is told; there is nothing for an operator to see.
a_taken_id_is_no_crash(_) ->
    {ok, Server} = erlmcp:start_server(options(#{id => ?MODULE})),
    {error, {already_started, Server}} = erlmcp:start_server(options(#{id => ?MODULE})),
    ok = erlmcp:stop_server(Server),
    nomatch = binary:match(logged(), ~"already_started").

%% A store that fails takes the keeper of a task with it, which knows the call that was to run.
keys_of_tasks_are_in_no_log(_) ->
    Key = ~"0123456789abcdefghijklmnopqrstuv",
    Tool = #{name => ~"tool", task => required, handler => fun(_, _) -> ~"" end},
    Server = erlmcp_test_http:start(#{keys => [Key], task_store => {?MODULE, #{}},
                                      tools => [Tool]}),
    Tasks = #{extensions => #{~"io.modelcontextprotocol/tasks" => #{}}},
    #{messages := [#{~"error" := #{~"code" := -32603}}]} =
        erlmcp_test_http:call(Server, ~"tools/call", #{name => ~"tool"},
                              #{meta => #{~"io.modelcontextprotocol/clientCapabilities" => Tasks}}),
    Logged = logged(),
    {_, _} = binary:match(Logged, ~"no_store"),
    nomatch = binary:match(Logged, Key),
    erlmcp_test_http:stop(Server).

%% Who is meant by everybody is said, once for each start of such a listener.
a_listener_that_asks_nobody_is_warned_of(_) ->
    Anybody = {0, 0, 0, 0},
    [begin
         {ok, Server} = erlmcp:start_server(options(#{id => warned, listen => [Listener]})),
         ok = erlmcp:stop_server(Server),
         Logged = logged(),
         {Listener, Times} = {Listener, length(binary:matches(Logged, ~"listener_asks_nobody"))},
         Times =:= 0 orelse binary:match(Logged, [~"authenticate", ~"principal"]) =/= nomatch
             orelse ct:fail(Logged)
     end || {Listener, Times} <- [
         {{http, #{ip => Anybody}}, 1},
         {{tcp, #{ip => Anybody}}, 1},
         {{http, #{ip => Anybody, authenticate => fun(_) -> {ok, somebody} end}}, 0},
         {{tcp, #{ip => Anybody, principal => everybody}}, 0},
         {{http, #{ip => {127, 1, 2, 3}}}, 0},
         {{http, #{}}, 0},
         {{tcp, #{}}, 0}]].

%% "servers of other applications open no listeners"
closed_listeners_are_told(_) ->
    ok = application:set_env(erlmcp, listening_applications, [somebody_elses]),
    try
        {group_leader, Master} = process_info(whereis(erlmcp_sup), group_leader),
        Own = group_leader(),
        true = group_leader(Master, self()),
        {ok, Closed} = erlmcp:start_server(options(#{id => closed, listen => [{http, #{}}]})),
        [] = erlmcp:listeners(Closed),
        {_, _} = binary:match(logged(), ~"listeners_stay_closed"),
        ok = erlmcp:stop_server(Closed),
        %% One that is no application's is meant by whoever starts it.
        true = group_leader(Own, self()),
        {ok, Open} = erlmcp:start_server(options(#{id => open, listen => [{http, #{}}]})),
        [_] = erlmcp:listeners(Open),
        ok = erlmcp:stop_server(Open)
    after
        application:unset_env(erlmcp, listening_applications)
    end.

%% A store of tasks that fails.
-doc false.
open(#{}, _) -> none.

-doc false.
put(_, none) -> error(no_store).

-doc false.
get(_, none) -> error.

-doc false.
update(_, none) -> {error, changed}.

-doc false.
list(_, _, _, none) -> {[], false}.

-doc false.
delete(_, none) -> ok.

-doc false.
sweep(_, none) -> ok.

%% All that was logged until now.
logged() ->
    Mark = integer_to_binary(erlang:unique_integer()),
    logger:notice("~ts", [Mark]),
    iolist_to_binary(logged(Mark)).

%% The same until this word was.
logged(Mark) ->
    receive
        {logged, Text} ->
            case binary:match(Text, Mark) of
                nomatch -> [Text | logged(Mark)];
                _ -> [Text]
            end
    after 30_000 ->
        error(not_logged)
    end.

options(Options) ->
    maps:merge(#{name => ~"logs", version => ~"1",
                 tools => [#{name => ~"tool", handler => fun(_, _) -> ~"" end}]}, Options).
