-module(erlmcp_stdio).
-moduledoc """
MCP on standard input and output. From its start on, what handlers and the node's loggers print
goes to standard error, and standard output carries MCP.

Two things inside a node can still reach file descriptor 1: processes of other applications that
print by their application's master, and `erlang:display/1`. A launcher that wants to be certain
gives the node another one for its output, and MCP the real one by a number of its own:
`{stdio, #{output => 3}}` with `3>&1 1>&2`, as `bin/erlmcp` does.

When the input ends, what was accepted is answered and the node stops with status 0.

Source: specification 2026-07-28, "Transports / stdio".
""".

-behaviour(erlmcp_connection_process).

-export([child_spec/2]).
-export([start_link/2, init/4]).
-export([received/2, write/2, close/1]).

%% Milliseconds that what was written has to be read after the end, and between two looks at it.
-define(DRAIN, 30_000).
-define(POLL, 10).
%% Milliseconds between two tries to write, and tries between two looks at the own memory.
-define(LOOK, 1).
-define(LOOKS, 100).

-doc "The child specification of the stdio connection. A node has one at most.".
-spec child_spec(map(), erlmcp_instance:instance()) -> supervisor:child_spec().
child_spec(Options, Instance) ->
    #{id => stdio, start => {?MODULE, start_link, [Options, Instance]},
      restart => temporary, shutdown => 200}.

-doc false.
-spec start_link(map(), erlmcp_instance:instance()) -> {ok, pid()}.
start_link(Options, #{key := Key} = Instance) ->
    Output = maps:get(output, Options, 1),
    Principal = maps:get(principal, Options, anonymous),
    ok = erlmcp_stdout:redirect(),
    Pid = proc_lib:spawn_link(?MODULE, init, [self(), Output, Principal, Instance]),
    _ = spawn(fun() -> stop_node_with(Pid, Key) end),
    {ok, Pid}.

%% The end of the input is the client's way to stop a server; nothing else can come of this node.
stop_node_with(Pid, Key) ->
    Monitor = monitor(process, Pid),
    receive
        {'DOWN', Monitor, process, Pid, normal} -> init:stop(0);
        {'DOWN', Monitor, process, Pid, shutdown} -> ok;
        {'DOWN', Monitor, process, Pid, killed} ->
            _ = erlmcp_inline_call_watchdog:has_ended(Pid)
                orelse erlmcp_slow_consumer:cut(Key, unread_bytes),
            init:stop(1);
        {'DOWN', Monitor, process, Pid, _} -> init:stop(1)
    end.

-doc false.
-spec init(pid(), pos_integer(), erlmcp_auth:principal(), erlmcp_instance:instance()) -> ok.
init(Parent, Output, Principal, #{limits := Limits} = Instance) ->
    ok = erlmcp_heap:bound_connection(Limits),
    %% The calls that it starts inherit it.
    true = group_leader(whereis(standard_error), self()),
    Port = open_port({fd, 0, Output}, [binary, eof, stream]),
    %% The client is the parent; it may take its time.
    erlmcp_connection_process:run(?MODULE, Port, Parent,
                                  erlmcp_connection:new(Instance, Principal, local),
                                  infinity).

-doc false.
received({Port, {data, Data}}, Port) -> {data, Data};
received({Port, eof}, Port) -> end_of_input;
received({'EXIT', Port, _}, Port) -> lost;
received(_, _) -> other.

-doc false.
write(Port, Bytes) ->
    write(Port, Bytes, ?LOOKS).

%% The client may take its time, and may send on meanwhile, which nothing holds up: what it sends is
%% kept within the memory bound of connections. A process looks at that when it collects garbage, so
%% one that waits has to do that.
write(Port, Bytes, 0) ->
    true = garbage_collect(),
    write(Port, Bytes, ?LOOKS);
write(Port, Bytes, Left) ->
    try port_command(Port, Bytes, [nosuspend]) of
        true -> ok;
        false -> receive after ?LOOK -> write(Port, Bytes, Left - 1) end
    catch
        error:badarg -> {error, closed}
    end.

%% A client that reads late misses nothing; one that does not read holds up nobody for ever.
-doc false.
close(Port) ->
    drain(Port, ?DRAIN div ?POLL),
    try port_close(Port) of
        true -> ok
    catch
        error:badarg -> ok
    end.

drain(Port, Left) ->
    case erlang:port_info(Port, queue_size) of
        {queue_size, Size} when Size > 0, Left > 0 ->
            receive
            after ?POLL -> drain(Port, Left - 1)
            end;
        _ ->
            ok
    end.
