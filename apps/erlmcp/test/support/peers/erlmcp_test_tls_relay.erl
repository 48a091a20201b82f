-module(erlmcp_test_tls_relay).
-moduledoc """
A relay between a server and a client, which sees the records that the server sends over TLS 1.2. In
that version the type of a record is readable from outside: 21 is an alert.
""".

-export([record_types/3]).

-doc """
Gives a client's socket to `Talk`, and returns the types of all records that the server has sent
when it has closed the connection.
""".
-spec record_types(erlmcp_test_http:server(), [ssl:tls_client_option()],
                   Talk :: fun((ssl:sslsocket()) -> ok)) -> [byte()].
record_types(#{port := Port}, Options, Talk) ->
    {ok, Listener} = gen_tcp:listen(0, [binary, {ip, {127, 0, 0, 1}}]),
    {ok, Here} = inet:port(Listener),
    Test = self(),
    Relay = spawn_link(fun() ->
        {ok, Client} = gen_tcp:accept(Listener),
        {ok, Server} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary]),
        Test ! {self(), relayed(Client, Server, <<>>)}
    end),
    {ok, Socket} = ssl:connect({127, 0, 0, 1}, Here, [{versions, ['tlsv1.2']}, {active, false},
                                                      {verify, verify_none}, binary | Options]),
    ok = Talk(Socket),
    ok = gen_tcp:close(Listener),
    types(receive {Relay, Bytes} -> Bytes after 30_000 -> error(open) end).

relayed(Client, Server, Bytes) ->
    receive
        {tcp, Client, Sent} ->
            %% The server may have closed: then this process is about to hear so.
            _ = gen_tcp:send(Server, Sent),
            relayed(Client, Server, Bytes);
        {tcp, Server, Sent} ->
            _ = gen_tcp:send(Client, Sent),
            relayed(Client, Server, <<Bytes/binary, Sent/binary>>);
        {tcp_closed, Client} ->
            _ = gen_tcp:shutdown(Server, write),
            relayed(Client, Server, Bytes);
        {tcp_closed, Server} ->
            _ = gen_tcp:shutdown(Client, write),
            Bytes
    end.

types(<<Type, _:16, Size:16, _:Size/binary, Records/binary>>) ->
    [Type | types(Records)];
types(<<>>) ->
    [].
