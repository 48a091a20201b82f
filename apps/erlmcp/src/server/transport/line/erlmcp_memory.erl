-module(erlmcp_memory).
-moduledoc """
A connection to a server of this node, without a socket: lines go to and fro in messages, and each
side takes a piece before it is sent the next. The process is the server's, as those of its sockets
are; it ends with its client and with its server.
""".

-behaviour(erlmcp_connection_process).

-export([start/3]).
-export([received/2, write/2, close/1]).

%% Milliseconds in which a client has to take what it is sent.
-define(TAKE, 30_000).

-record(channel, {
    client :: pid(),
    client_monitor :: reference(),
    server_monitor :: reference()
}).

-doc """
Starts one, for the calling process. It is sent `{erlmcp_memory, Pid, Bytes}`, and sends the same
with its own pid; the other side confirms each with `{erlmcp_memory, Pid, taken}`. It is sent
`{erlmcp_memory, Pid, lost}` when the client has left.
""".
-spec start(Server :: pid(), erlmcp_instance:instance(), erlmcp_auth:principal()) -> pid().
start(Server, #{limits := Limits} = Instance, Principal) ->
    Client = self(),
    proc_lib:spawn(fun() ->
        ok = erlmcp_heap:bound_connection(Limits),
        Channel = #channel{client = Client, client_monitor = monitor(process, Client),
                           server_monitor = monitor(process, Server)},
        Connection = erlmcp_connection:new(Instance, Principal, local),
        erlmcp_connection_process:run(?MODULE, Channel, Server, Connection, infinity)
    end).

-doc false.
received({?MODULE, From, Bytes}, _) when is_binary(Bytes) ->
    From ! {?MODULE, self(), taken},
    {data, Bytes};
received({?MODULE, _, taken}, _) ->
    ignore;
received({?MODULE, Client, lost}, #channel{client = Client}) ->
    lost;
received({'DOWN', Monitor, process, _, _}, #channel{client_monitor = Monitor}) ->
    lost;
received({'DOWN', Monitor, process, _, _}, #channel{server_monitor = Monitor}) ->
    lost;
received(_, _) ->
    other.

-doc false.
write(#channel{client = Client, client_monitor = Monitor}, Bytes) ->
    Client ! {?MODULE, self(), iolist_to_binary(Bytes)},
    receive
        {?MODULE, Client, taken} ->
            ok;
        {'DOWN', Monitor, process, _, _} = Down ->
            self() ! Down,
            {error, closed};
        {?MODULE, Client, lost} ->
            {error, closed}
    after ?TAKE ->
        {error, timeout}
    end.

-doc false.
close(_) ->
    ok.
