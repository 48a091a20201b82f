-module(erlmcp_chaos_datagrams).
-moduledoc """
A process that counts the datagrams that arrive in the server's node. Unlike data on TCP, a lost
datagram is not sent again.
""".

-export([open/1, arrived/0]).
-export([init/2]).

-doc """
Runs in the server's node: starts the process that counts datagrams. Returns the free port of `Ip`
at which the process receives them. The function may be called once in a node.
""".
-spec open(Ip :: inet:ip_address()) -> {ok, inet:port_number()}.
open(Ip) ->
    proc_lib:start(?MODULE, init, [self(), Ip]).

-doc """
Runs in the server's node: returns how many datagrams have arrived since `open/1`. Fails if `open/1`
was not called.
""".
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
