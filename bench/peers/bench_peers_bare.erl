-module(bench_peers_bare).
-moduledoc """
A server of bare sockets: it sends the answers of the server at a URL, without reading the requests.
It shows the limit of the runtime, as nginx shows that of the machine.

Each connection has a process, which receives and sends as erlmcp's do. All requests of a connection
have the length of its first one, and each of them gets an answer.
""".

-export([serve/1]).

%% Packets between two activations of a socket, as in erlmcp.
-define(ACTIVE, 100).

-doc "Serves the answers of a URL on a port, until its node ends.".
-spec serve([string()]) -> no_return().
serve([Url, Port]) ->
    Answers = #{Path => All || {Path, All, _} <- bench_peers_http:answers(Url)},
    {ok, Listening} = gen_tcp:listen(list_to_integer(Port),
                                     [binary, {ip, {127, 0, 0, 1}}, {active, false},
                                      {nodelay, true}, {backlog, erlmcp_listener:backlog()}]),
    _ = [spawn_link(fun() -> accept(Listening, Answers) end)
         || _ <- lists:seq(1, erlmcp_listener:acceptors())],
    receive after infinity -> ok end.

accept(Listening, Answers) ->
    {ok, Socket} = gen_tcp:accept(Listening),
    Connection = spawn(fun() -> receive go -> first(Socket, <<>>, Answers) end end),
    ok = gen_tcp:controlling_process(Socket, Connection),
    Connection ! go,
    accept(Listening, Answers).

first(Socket, Before, Answers) ->
    {ok, Bytes} = gen_tcp:recv(Socket, 0),
    Received = <<Before/binary, Bytes/binary>>,
    maybe
        [Head, Body] ?= binary:split(Received, ~"\r\n\r\n"),
        {match, [Path]} ?= re:run(Head, "^POST /(\\w+)", [{capture, all_but_first, binary}]),
        {match, [Length]} ?= re:run(Head, "content-length: *(\\d+)",
                                    [caseless, {capture, all_but_first, binary}]),
        true ?= byte_size(Body) >= binary_to_integer(Length),
        ok = inet:setopts(Socket, [{active, ?ACTIVE}]),
        Whole = byte_size(Head) + 4 + binary_to_integer(Length),
        answered(Received, Whole, Socket, map_get(Path, Answers))
    else
        _ -> first(Socket, Received, Answers)
    end.

answered(Received, Whole, Socket, Answer) when byte_size(Received) >= Whole ->
    <<_:Whole/binary, Behind/binary>> = Received,
    case erlmcp_tcp_send:send(Socket, Answer) of
        ok -> answered(Behind, Whole, Socket, Answer);
        {error, _} -> ok
    end;
answered(Received, Whole, Socket, Answer) ->
    receive
        {tcp, Socket, Bytes} when Received =:= <<>> -> answered(Bytes, Whole, Socket, Answer);
        {tcp, Socket, Bytes} ->
            answered(<<Received/binary, Bytes/binary>>, Whole, Socket, Answer);
        {tcp_passive, Socket} ->
            ok = inet:setopts(Socket, [{active, ?ACTIVE}]),
            answered(Received, Whole, Socket, Answer);
        {tcp_closed, Socket} -> ok;
        {tcp_error, Socket, _} -> ok
    end.
