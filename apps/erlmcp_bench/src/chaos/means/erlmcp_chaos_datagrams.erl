-module(erlmcp_chaos_datagrams).
-moduledoc """
A process that counts the datagrams that arrive in the server's node. Unlike data on TCP, a lost
datagram is not sent again.
""".

-export([open/1, arrived/0]).
-export([init/2]).

-doc """
Runs in the server's node, once: starts the process, which receives datagrams at a free port of
`Ip`, and returns the port.
""".
-spec open(Ip :: inet:ip_address()) -> {ok, inet:port_number()}.
open(Ip) ->
    proc_lib:start(?MODULE, init, [self(), Ip]).

-doc "Runs in the server's node: returns how many datagrams have arrived. Fails before `open/1`.".
-spec arrived() -> non_neg_integer().
arrived() ->
    ?MODULE ! {arrived, self()},
    receive {?MODULE, Arrived} -> Arrived end.

-doc false.
init(Parent, Ip) ->
    true = register(?MODULE, self()),
    {ok, Socket} = gen_udp:open(0, [{ip, Ip}, binary]),
    {ok, Port} = inet:port(Socket),
    ok = proc_lib:init_ack(Parent, {ok, Port}),
    count(Socket, 0).

count(Socket, Arrived) ->
    receive
        {udp, Socket, _, _, _} ->
            count(Socket, Arrived + 1);
        {arrived, From} ->
            From ! {?MODULE, Arrived},
            count(Socket, Arrived)
    end.
