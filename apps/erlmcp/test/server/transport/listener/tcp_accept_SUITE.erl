-module(tcp_accept_SUITE).
-moduledoc """
Sockets that `erlmcp_tcp_accept` accepts are as those of `gen_tcp`; and who starts
their connections.
""".

-include_lib("stdlib/include/assert.hrl").

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([it_has_the_options_of_the_listening_one/1, another_process_has_it/1,
         a_listener_that_is_closed_is_an_error/1, connections_start_before_others_go_on/1,
         it_is_found_out_once_whose_a_connection_is/1]).

-define(OPTIONS, [{send_timeout, 12_345}, {send_timeout_close, true}, {nodelay, true},
                  {keepalive, true}, {buffer, 54_321}, {exit_on_close, false},
                  {show_econnreset, true}, {linger, {true, 3}}, {tos, 16}]).
-define(ASKED, [Name || {Name, _} <- ?OPTIONS] ++ [active, mode, packet, priority, delay_send]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [it_has_the_options_of_the_listening_one, another_process_has_it,
     a_listener_that_is_closed_is_an_error, connections_start_before_others_go_on,
     it_is_found_out_once_whose_a_connection_is].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

it_has_the_options_of_the_listening_one(_) ->
    Listening = listening(),
    {_, Ours} = accepted(erlmcp_tcp_accept, Listening),
    {_, Theirs} = accepted(gen_tcp, Listening),
    {ok, Expected} = inet:getopts(Theirs, ?ASKED),
    ?assertEqual({ok, Expected}, inet:getopts(Ours, ?ASKED)),
    ?assertEqual([], [nodelay, keepalive, linger, buffer, send_timeout]
                     -- [Name || {Name, Value} <- Expected,
                                 lists:member({Name, Value}, ?OPTIONS)]).

another_process_has_it(_) ->
    {Client, Socket} = accepted(erlmcp_tcp_accept, listening()),
    Test = self(),
    {Pid, Monitor} = spawn_monitor(fun() ->
        receive yours -> ok end,
        ok = inet:setopts(Socket, [{active, once}]),
        receive {tcp, Socket, Bytes} -> Test ! {came, Bytes} end,
        ok = gen_tcp:send(Socket, ~"back")
    end),
    ok = erlmcp_tcp_accept:controlling_process(Socket, Pid),
    Pid ! yours,
    ok = gen_tcp:send(Client, ~"there"),
    receive {came, ~"there"} -> ok end,
    {ok, ~"back"} = gen_tcp:recv(Client, 0),
    %% It is closed with the process that has it.
    receive {'DOWN', Monitor, process, Pid, normal} -> ok end,
    {error, closed} = gen_tcp:recv(Client, 0),
    {error, closed} = erlmcp_tcp_accept:controlling_process(Socket, self()).

a_listener_that_is_closed_is_an_error(_) ->
    Listening = listening(),
    {_, Monitor} = spawn_monitor(fun() ->
        exit(erlmcp_tcp_accept:accept(Listening, infinity))
    end),
    ok = gen_tcp:close(Listening),
    receive {'DOWN', Monitor, process, _, Reason} -> {error, _} = Reason end,
    %% Ranch's acceptors end for these.
    {error, closed} = erlmcp_tcp_accept:accept(Listening, infinity).

%% Of all that there is to do with a connection, its start alone.
connections_start_before_others_go_on(_) ->
    {ok, Server} = erlmcp:start_server(#{id => ?MODULE, name => ~"starts", version => ~"1",
                                         listen => [{tcp, #{}}, {http, #{}}]}),
    [begin
         {ok, Client} = gen_tcp:connect(Ip, Port, [binary]),
         Connection = connection(Ref),
         Starts = parent(Connection),
         ?assertEqual([{priority, normal}, {priority, high}],
                      [process_info(Pid, priority) || Pid <- [Connection, Starts]]),
         ok = gen_tcp:close(Client)
     end || {{listener, Ref}, _, _, _} <- supervisor:which_children(Server),
            {Ip, Port} <- [ranch:get_addr(Ref)]],
    ok = erlmcp:stop_server(Server).

%% The system calls of a connection are a part of the cost of opening it.
it_is_found_out_once_whose_a_connection_is(_) ->
    {ok, Server} = erlmcp:start_server(#{id => ?MODULE, name => ~"asks", version => ~"1",
                                         listen => [{http, #{}}]}),
    [{{listener, Ref}, _, _, _}] = [Child || {{listener, _}, _, _, _} = Child
                                                 <- supervisor:which_children(Server)],
    Session = trace:session_create(?MODULE, self(), []),
    1 = trace:function(Session, {prim_inet, peername, 1}, true, []),
    _ = trace:process(Session, new_processes, true, [call]),
    {Ip, Port} = ranch:get_addr(Ref),
    {ok, Client} = gen_tcp:connect(Ip, Port, [binary]),
    Connection = connection(Ref),
    ok = waits(Connection),
    Delivered = trace:delivered(Session, Connection),
    receive {trace_delivered, Connection, Delivered} -> ok end,
    ?assertEqual(1, length(asked(Connection))),
    true = trace:session_destroy(Session),
    ok = gen_tcp:close(Client),
    ok = erlmcp:stop_server(Server).

waits(Connection) ->
    case process_info(Connection, current_function) of
        {current_function, {erlmcp_httpd_http1, loop, _}} -> ok;
        {current_function, _} -> receive after 5 -> waits(Connection) end
    end.

asked(Connection) ->
    receive
        {trace, Connection, call, {prim_inet, peername, _} = Call} -> [Call | asked(Connection)]
    after 0 ->
        []
    end.

connection(Ref) ->
    case ranch:procs(Ref, connections) of
        [Pid] -> Pid;
        [] -> receive after 5 -> connection(Ref) end
    end.

%% A process that has just been spawned does not have the key yet.
parent(Pid) ->
    {dictionary, Dictionary} = process_info(Pid, dictionary),
    case maps:from_list(Dictionary) of
        #{'$ancestors' := [Parent | _]} -> Parent;
        #{} -> receive after 5 -> parent(Pid) end
    end.

listening() ->
    {ok, Listening} = erlmcp_tcp_accept:listen(#{socket_opts => [{ip, {127, 0, 0, 1}} | ?OPTIONS]}),
    Listening.

accepted(Module, Listening) ->
    {ok, {Ip, Port}} = inet:sockname(Listening),
    {ok, Client} = gen_tcp:connect(Ip, Port, [binary, {active, false}]),
    {ok, Socket} = Module:accept(Listening, infinity),
    {Client, Socket}.
