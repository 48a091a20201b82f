-module(erlmcp_test_bounds_stdio).
-moduledoc """
Servers on stdio for `m:erlmcp_test_bounds_client`, in a node of their own. The node has a pipe for
its input and one for its output, and is told what to do over a socket. One server at a time uses
the pipes, and the next one begins where that one was stopped. The node ends with the process that
started it.
""".

-export([start/0, stop/1]).
-export([serve/2, stop_server/1, held/2, running/1, finish/3]).
-export([send/2, recv/1]).
-export([main/0]).

-export_type([node_/0]).

-type node_() :: {Streams :: port(), Control :: gen_tcp:socket()}.

-define(TIMEOUT, 30_000).

-doc "Starts a node without a server.".
-spec start() -> node_().
start() ->
    {ok, Listen} = gen_tcp:listen(0, [binary, {ip, {127, 0, 0, 1}}, {packet, 4}, {active, false}]),
    {ok, Port} = inet:port(Listen),
    Erl = filename:join([code:root_dir(), "bin", "erl"]),
    Streams = open_port({spawn_executable, Erl},
                        [{args, ["-noinput", "-pa" | code:get_path()]
                                ++ ["-s", atom_to_list(?MODULE), "main"]},
                         {env, [{"BOUNDS_CONTROL", integer_to_list(Port)},
                                {"ERL_CRASH_DUMP_SECONDS", "0"}]},
                         {line, 65_536}, binary, exit_status]),
    {ok, Control} = gen_tcp:accept(Listen, ?TIMEOUT),
    ok = gen_tcp:close(Listen),
    {Streams, Control}.

-doc "Ends a node, and waits for its end.".
-spec stop(node_()) -> ok.
stop({Streams, Control}) ->
    ok = gen_tcp:close(Control),
    receive
        {Streams, {exit_status, _}} -> ok
    after ?TIMEOUT ->
        error(still_running)
    end.

-doc """
Starts a server with these limits, and with the tools `echo` and `wait`. `running/1` returns the
process of a call of `wait`, which returns the term of `finish/3`.
""".
-spec serve(Limits :: map(), node_()) -> ok.
serve(Limits, Node) -> call({serve, Limits}, Node).

-doc "Stops the server of a node.".
-spec stop_server(node_()) -> ok.
stop_server(Node) -> call(stop_server, Node).

-doc "Returns how many permits of this kind the server's gate holds.".
-spec held(erlmcp_gate_counters:name(), node_()) -> non_neg_integer().
held(Key, Node) -> call({held, Key}, Node).

-doc "Waits for the next call of `wait`, and returns its process in the node.".
-spec running(node_()) -> pid().
running(Node) -> call(running, Node).

-doc "Lets a call of `wait` return `Return`.".
-spec finish(pid(), Return :: term(), node_()) -> ok.
finish(Handler, Return, Node) -> call({finish, Handler, Return}, Node).

call(Request, {_, Control}) ->
    ok = gen_tcp:send(Control, term_to_binary(Request)),
    {ok, Reply} = gen_tcp:recv(Control, 0, ?TIMEOUT),
    binary_to_term(Reply).

-doc "Sends a message to the server.".
-spec send(binary(), node_()) -> ok.
send(Message, {Streams, _}) ->
    ok = erlmcp_test_wire:sent(Streams, #{}, Message),
    true = port_command(Streams, [Message, $\n]),
    ok.

-doc "Reads the next message of the server.".
-spec recv(node_()) -> map().
recv({Streams, _}) ->
    recv(Streams, []).

recv(Streams, Parts) ->
    receive
        {Streams, {data, {noeol, Part}}} ->
            recv(Streams, [Part | Parts]);
        {Streams, {data, {eol, Part}}} ->
            Line = iolist_to_binary(lists:reverse(Parts, [Part])),
            erlmcp_test_wire:received(Streams, json:decode(Line));
        {Streams, {exit_status, Status}} ->
            error({ended, Status})
    after ?TIMEOUT ->
        error(no_message)
    end.

%% The node's own side.

-doc false.
main() ->
    {ok, _} = application:ensure_all_started(erlmcp),
    {ok, Control} = gen_tcp:connect({127, 0, 0, 1}, list_to_integer(os:getenv("BOUNDS_CONTROL")),
                                    [binary, {packet, 4}, {active, false}], ?TIMEOUT),
    %% `-s` waits for its end, and what it starts is linked to it.
    Pid = spawn(fun() -> receive {own, Socket} -> obey(Socket, none) end end),
    ok = gen_tcp:controlling_process(Control, Pid),
    Pid ! {own, Control},
    ok.

obey(Control, Server) ->
    case gen_tcp:recv(Control, 0) of
        {ok, Request} ->
            {Reply, Next} = obeyed(binary_to_term(Request), Server),
            ok = gen_tcp:send(Control, term_to_binary(Reply)),
            obey(Control, Next);
        {error, _} ->
            halt(0)
    end.

obeyed({serve, Limits}, none) ->
    Self = self(),
    {ok, Server} = erlmcp:start_server(#{
        name => ~"bounds", version => ~"1.0.0", limits => Limits, listen => [{stdio, #{}}],
        tools => [#{name => ~"echo", handler => fun(_, _) -> ~"echo" end},
                  #{name => ~"wait", handler => fun(_, _) ->
                      Self ! {running, self()},
                      receive {finish, Return} -> Return end
                  end}]}),
    {ok, Server};
obeyed(stop_server, Server) ->
    {erlmcp:stop_server(Server), none};
obeyed({held, Key}, Server) ->
    {ok, _, #{gate := Gate}} = erlmcp_registry:whereis(Server),
    {erlmcp_gate:held(Gate, Key), Server};
obeyed(running, Server) ->
    receive {running, Handler} -> {Handler, Server} end;
obeyed({finish, Handler, Return}, Server) ->
    Handler ! {finish, Return},
    {ok, Server}.
