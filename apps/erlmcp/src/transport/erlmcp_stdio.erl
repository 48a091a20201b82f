-module(erlmcp_stdio).
-moduledoc """
MCP on standard input and output. From its start on, what handlers and the node's loggers print
goes to standard error, and standard output carries MCP.

Two things inside a node can still reach file descriptor 1: processes of other applications that
print by their application's master, and `erlang:display/1`. A launcher that wants to be certain
gives the node another one for its output, and MCP the real one by a number of its own:
`{stdio, #{output => 3}}` with `3>&1 1>&2`, as `bin/erlmcp` does.

A port has another thread write to whatever is no terminal, and is told by it when that is done;
this costs more than an answer does (`ERLMCP_BENCH=peers_stdio_1 bench/peers.sh`). So where the
output is a pipe or a socket, as `/dev/fd` says, `m:socket` writes it: what is no socket it takes
for what it is told, and writes without blocking. From then on writing to that pipe blocks nobody
else either.

When the input ends, what was accepted is answered and the node stops with status 0.

Source: specification 2026-07-28, "Transports / stdio".
""".

-behaviour(erlmcp_shell).

-include_lib("kernel/include/file.hrl").

-export([child_spec/2]).
-export([start_link/2, init/4]).
-export([received/2, write/2, close/1]).

%% Milliseconds that what was written has to be read after the end, and between two looks at it.
-define(DRAIN, 30_000).
-define(POLL, 10).
%% Milliseconds between two tries to write, and tries between two looks at the own memory.
-define(LOOK, 1).
-define(LOOKS, 100).

%% What is read, and what is written: one port for both where the output is no pipe.
-record(stdio, {
    input :: port(),
    output :: port() | socket:socket()
}).

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
            _ = erlmcp_quick_watch:has_ended(Pid)
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
    %% The client is the parent; it may take its time.
    erlmcp_shell:run(?MODULE, opened(Output), Parent,
                     erlmcp_connection:new(Instance, Principal, local), infinity).

opened(Output) ->
    case pipe(Output) of
        {ok, Pipe} ->
            #stdio{input = open_port({fd, 0, 0}, [in, binary, eof, stream]), output = Pipe};
        {error, _} ->
            Port = open_port({fd, 0, Output}, [binary, eof, stream]),
            #stdio{input = Port, output = Port}
    end.

pipe(Output) ->
    case file:read_file_info("/dev/fd/" ++ integer_to_list(Output), [raw]) of
        {ok, #file_info{type = other}} ->
            socket:open(Output, #{domain => local, type => stream, dup => false,
                                  use_registry => false});
        {ok, #file_info{type = Type}} ->
            {error, Type};
        {error, Reason} ->
            {error, Reason}
    end.

-doc false.
received({Port, {data, Data}}, #stdio{input = Port}) -> {data, Data};
received({Port, eof}, #stdio{input = Port}) -> end_of_input;
received({'EXIT', Port, _}, #stdio{input = Port}) -> lost;
received(_, _) -> other.

-doc false.
write(#stdio{output = Port}, Bytes) when is_port(Port) -> write(Port, Bytes, ?LOOKS);
write(#stdio{output = Pipe}, Bytes) -> send(Pipe, erlang:iolist_to_iovec(Bytes)).

send(Pipe, Bytes) ->
    case socket:sendv(Pipe, Bytes, nowait) of
        ok -> ok;
        {select, {{select_info, _, Handle}, Left}} -> await(Pipe, Handle, Left);
        {select, {select_info, _, Handle}} -> await(Pipe, Handle, Bytes);
        {error, _} -> {error, closed}
    end.

%% As where a port is full.
await(Pipe, Handle, Left) ->
    receive
        {'$socket', Pipe, select, Handle} -> send(Pipe, Left);
        {'$socket', Pipe, abort, {Handle, _}} -> {error, closed}
    after ?LOOK * ?LOOKS ->
        true = garbage_collect(),
        await(Pipe, Handle, Left)
    end.

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
close(#stdio{input = Port, output = Output}) ->
    drain(Port, ?DRAIN div ?POLL),
    %% Another server may begin here when this one was stopped, with the same output.
    _ = is_port(Output) orelse socket:close(Output),
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
