-module(erlmcp_stdio).
-moduledoc """
The connection on standard input and output. When it starts, text that handlers and the node's
loggers print is redirected to standard error, so that standard output carries only MCP.

Two writers inside a node can still reach file descriptor 1: processes of other applications, which
print through their application's master, and `erlang:display/1`. To exclude them, pass the real
output under another descriptor, as `bin/erlmcp` does: `{stdio, #{output => 3}}` with `3>&1 1>&2`.

When the input ends, accepted requests are answered, and the node stops with status 0. It also stops
with status 0 when nothing can be written any more, and with 1 if the connection's process crashes
or is killed. If the server is stopped, the connection ends and the node goes on. But the node stops
with status 1 if the client does not read the last answers within 200 milliseconds.

Source: specification 2026-07-28, "Transports / stdio".

Internal.
""".

-behaviour(erlmcp_connection_process).

-export([child_spec/2]).
-export([start_link/2, init/4]).
-export([received/2, write/2, close/1]).

%% Milliseconds that the client has to read the last answers after the end, and milliseconds between
%% two looks at how many bytes are unread.
-define(DRAIN, 30_000).
-define(POLL, 10).
%% Milliseconds between two attempts to write, and how many attempts there are between two garbage
%% collections.
-define(LOOK, 1).
-define(LOOKS, 100).

-doc """
Returns the child specification of the stdio connection. A node can have only one: its start
redirects the node's other output, and its end stops the node, except when the server is stopped.
""".
-spec child_spec(map(), erlmcp_instance:instance()) -> supervisor:child_spec().
child_spec(Options, Instance) ->
    #{id => stdio, start => {?MODULE, start_link, [Options, Instance]},
      restart => temporary, shutdown => 200}.

-doc false.
-spec start_link(map(), erlmcp_instance:instance()) -> {ok, pid()}.
start_link(Options, #{key := Key} = Instance) ->
    Output = maps:get(output, Options, 1),
    Principal = maps:get(principal, Options, anonymous),
    ok = redirect(),
    Pid = proc_lib:spawn_link(?MODULE, init, [self(), Output, Principal, Instance]),
    _ = spawn(fun() -> stop_node_with(Pid, Key) end),
    {ok, Pid}.

%% Makes standard error the group leader of every process whose group leader is `user`, and so of
%% the processes that these start. The logger writes to the name `user`, so a process that forwards
%% to standard error gets that name.
redirect() ->
    User = whereis(user),
    Error = whereis(standard_error),
    Forward = spawn(fun() -> forward(Error) end),
    true = unregister(user),
    true = register(user, Forward),
    _ = [group_leader(Error, Pid)
         || Pid <- processes(), {group_leader, Leader} <- [process_info(Pid, group_leader)],
            Leader =:= User],
    ok.

%% The process of standard error replies to the process that asked.
forward(Error) ->
    ok = erlmcp_label:set([erlmcp_stdio, stdout]),
    passed_on(Error).

passed_on(Error) ->
    receive
        Request ->
            Error ! Request,
            passed_on(Error)
    end.

%% A client stops a server by closing its input. Then the node has nothing left to do.
stop_node_with(Pid, Key) ->
    ok = erlmcp_label:set([erlmcp_stdio, node_stopper], Key),
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
init(Parent, Output, Principal, #{limits := Limits, key := Key} = Instance) ->
    ok = erlmcp_label:set([erlmcp_connection, stdio], Key),
    ok = erlmcp_heap:bound_connection(Limits),
    %% The processes of its calls inherit the group leader.
    true = group_leader(whereis(standard_error), self()),
    Port = open_port({fd, 0, Output}, [binary, eof, stream]),
    %% The client is the program that has started the node, and may send as slowly as it likes.
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

%% A client that reads slowly may go on sending, since a port cannot be paused. The memory bound of
%% connections limits the bytes that it sends. The runtime checks that bound at a garbage
%% collection, so a process that waits to write collects garbage.
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

%% A client that reads late misses nothing. A client that never reads delays the end for a bounded
%% time.
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
