-module(erlmcp_stdio).
-moduledoc """
MCP on standard input and output. From the start of this process on, standard output carries MCP
and nothing else: what the node's processes print goes to standard error.

When the input ends, what was accepted is answered and the node stops with status 0.

Source: specification 2026-07-28, "Transports / stdio".
""".

-behaviour(erlmcp_shell).

-export([child_spec/1]).
-export([start_link/1, init/2]).
-export([received/2, write/2, close/1]).

-doc "The child specification of the stdio connection. A node has one at most.".
-spec child_spec(erlmcp_instance:instance()) -> supervisor:child_spec().
child_spec(Instance) ->
    #{id => stdio, start => {?MODULE, start_link, [Instance]}, restart => temporary,
      shutdown => 1000}.

-doc false.
-spec start_link(erlmcp_instance:instance()) -> {ok, pid()}.
start_link(Instance) ->
    Pid = proc_lib:spawn_link(?MODULE, init, [self(), Instance]),
    _ = spawn(fun() -> stop_node_with(Pid) end),
    {ok, Pid}.

%% The end of the input is the client's way to stop a server; nothing else can come of this node.
stop_node_with(Pid) ->
    Monitor = monitor(process, Pid),
    receive
        {'DOWN', Monitor, process, Pid, normal} -> init:stop(0);
        {'DOWN', Monitor, process, Pid, shutdown} -> ok;
        {'DOWN', Monitor, process, Pid, _} -> init:stop(1)
    end.

-doc false.
-spec init(pid(), erlmcp_instance:instance()) -> ok.
init(Parent, Instance) ->
    ok = erlmcp_stdout:redirect(),
    Port = open_port({fd, 0, 1}, [binary, eof, stream]),
    %% The client is the parent; it may take its time.
    erlmcp_shell:run(?MODULE, Port, Parent, Instance, infinity).

-doc false.
received({Port, {data, Data}}, Port) -> {data, Data};
received({Port, eof}, Port) -> end_of_input;
received({'EXIT', Port, _}, Port) -> lost;
received(_, _) -> other.

-doc false.
write(Port, Bytes) ->
    try
        true = port_command(Port, Bytes),
        ok
    catch
        error:badarg -> {error, closed}
    end.

%% What was written leaves before the port closes.
-doc false.
close(Port) ->
    try port_close(Port) of
        true -> ok
    catch
        error:badarg -> ok
    end.
