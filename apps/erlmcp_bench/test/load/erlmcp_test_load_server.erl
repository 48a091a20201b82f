-module(erlmcp_test_load_server).
-moduledoc """
Faulty servers for the suites of the load generator. A fun gets each request, with its number (from
1 on, over all connections) and its id (`none` for a notification). The fun returns what the server
does.

`{reply, Bytes}` writes them, `nothing` does not, and `close` closes the connection. `{pause, Ms,
Then}` delays everything on the connection. The steps of a list run in their order.
""".

-compile(nowarn_missing_spec_documented).

-export([start/2, url/1, port/1, good/1, good/2, http/1, http/2, line/1]).

%% {Kind, Port}; it ends with the calling process.
start(Kind, Fun) ->
    {ok, Listener} = gen_tcp:listen(0, [binary, {active, false}, {ip, {127, 0, 0, 1}},
                                        {backlog, 256}, {nodelay, true}]),
    {ok, Port} = inet:port(Listener),
    Numbers = atomics:new(1, []),
    Acceptor = spawn_link(fun() -> receive go -> accept(Kind, Listener, Numbers, Fun) end end),
    ok = gen_tcp:controlling_process(Listener, Acceptor),
    Acceptor ! go,
    {Kind, Port}.

url({http, Port}) -> iolist_to_binary(["http://127.0.0.1:", integer_to_list(Port), "/mcp"]).

port({lines, Port}) -> Port.

accept(Kind, Listener, Numbers, Fun) ->
    {ok, Socket} = gen_tcp:accept(Listener),
    Pid = spawn_link(fun() -> receive go -> serve(Kind, Socket, ~"", Numbers, Fun) end end),
    ok = gen_tcp:controlling_process(Socket, Pid),
    Pid ! go,
    accept(Kind, Listener, Numbers, Fun).

serve(Kind, Socket, Bytes, Numbers, Fun) ->
    case request(Kind, Bytes) of
        {ok, Body, Rest} ->
            Id = maps:get(~"id", json:decode(Body), none),
            case act(Fun(atomics:add_get(Numbers, 1, 1), Id), Socket) of
                ok -> serve(Kind, Socket, Rest, Numbers, Fun);
                closed -> gen_tcp:close(Socket)
            end;
        more ->
            case gen_tcp:recv(Socket, 0) of
                {ok, More} -> serve(Kind, Socket, <<Bytes/binary, More/binary>>, Numbers, Fun);
                {error, _} -> ok
            end
    end.

request(lines, Bytes) ->
    case binary:split(Bytes, ~"\n") of
        [Line, Rest] -> {ok, Line, Rest};
        [_] -> more
    end;
request(http, Bytes) ->
    maybe
        [Head, Rest] ?= binary:split(Bytes, ~"\r\n\r\n"),
        {match, [Digits]} = re:run(Head, "content-length: *([0-9]+)",
                                   [caseless, {capture, all_but_first, binary}]),
        Length = binary_to_integer(Digits),
        <<Body:Length/binary, Others/binary>> ?= Rest,
        {ok, Body, Others}
    else
        _ -> more
    end.

act([], _) -> ok;
act([Action | Actions], Socket) ->
    case act(Action, Socket) of
        ok -> act(Actions, Socket);
        closed -> closed
    end;
act(nothing, _) -> ok;
act(close, _) -> closed;
act({pause, Milliseconds, Then}, Socket) ->
    receive after Milliseconds -> act(Then, Socket) end;
act({reply, Bytes}, Socket) ->
    %% The client may have given up.
    case gen_tcp:send(Socket, Bytes) of
        ok -> ok;
        {error, _} -> closed
    end.

%% The answer of an `echo` to the default request of the generator: 64 bytes.
good(Id) -> good(Id, binary:copy(~"x", 64)).

good(Id, Text) ->
    json:encode(#{jsonrpc => ~"2.0", id => Id,
                  result => #{content => [#{type => text, text => Text}]}}).

http(Body) -> http(200, Body).

http(Status, Body) ->
    {reply, ["HTTP/1.1 ", integer_to_list(Status), " said\r\nContent-Type: application/json\r\n"
             "Content-Length: ", integer_to_list(iolist_size(Body)), "\r\n\r\n", Body]}.

line(Body) -> {reply, [Body, $\n]}.
