-module(erlmcp_memory).
-moduledoc """
The transport of a connection to a server of this node, without a socket. Lines are sent as messages
in both directions, and each side confirms a piece before it is sent the next one. The process of
the connection is one of the server's, and ends when the client or the server ends.

Internal.
""".

-behaviour(erlmcp_connection_process).

-export([start/3]).
-export([received/2, write/2, close/1]).

%% Milliseconds in which a client has to confirm a piece.
-define(TAKE, 30_000).

-record(transport, {
    client :: pid(),
    client_monitor :: reference(),
    server_monitor :: reference()
}).

-doc """
Starts a connection for the calling process, which is the client, and returns the connection's
process. This process ends when the process `Server` ends. Each side sends its bytes as
`{erlmcp_memory, Pid, Bytes}`, with its own pid, and confirms those of the other side with
`{erlmcp_memory, Pid, taken}`. A client that does not confirm a piece within 30 seconds loses the
connection. A client that leaves sends `{erlmcp_memory, Pid, lost}`.
""".
-spec start(Server :: pid(), erlmcp_instance:instance(), erlmcp_auth:principal()) -> pid().
start(Server, #{limits := Limits, key := Key} = Instance, Principal) ->
    Client = self(),
    proc_lib:spawn(fun() ->
        ok = erlmcp_label:set([erlmcp_connection, memory, Client], Key),
        ok = erlmcp_heap:bound_connection(Limits),
        Transport = #transport{client = Client, client_monitor = monitor(process, Client),
                           server_monitor = monitor(process, Server)},
        Connection = erlmcp_connection:new(Instance, Principal, local),
        erlmcp_connection_process:run(?MODULE, Transport, Server, Connection, infinity)
    end).

-doc false.
received({?MODULE, From, Bytes}, _) when is_binary(Bytes) ->
    From ! {?MODULE, self(), taken},
    {data, Bytes};
received({?MODULE, _, taken}, _) ->
    ignore;
received({?MODULE, Client, lost}, #transport{client = Client}) ->
    lost;
received({'DOWN', Monitor, process, _, _}, #transport{client_monitor = Monitor}) ->
    lost;
received({'DOWN', Monitor, process, _, _}, #transport{server_monitor = Monitor}) ->
    lost;
received(_, _) ->
    other.

-doc false.
write(#transport{client = Client, client_monitor = Monitor}, Bytes) ->
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
