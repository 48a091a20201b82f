-module(bench_floor).
-moduledoc """
The lower layers of this project's client for `bench/client.sh`: the same request in a loop on a
bare socket of HTTP/1.1, and through gun. Only the end of a response is checked.
""".

-export([main/1]).

-doc "Measures a lower layer. The arguments are `socket | gun TARGET ERA CALLERS SECONDS`.".
-spec main([string(), ...]) -> ok.
main([Kind, Target, Era, Callers, Seconds]) ->
    {ok, _} = application:ensure_all_started(gun),
    {Protocol, Url} = case Target of
        "h2+" ++ Rest -> {http2, Rest};
        _ -> {http, Target}
    end,
    #{host := Host, port := Port, path := Path} = uri_string:parse(Url),
    {Headers, Body} = request(Era),
    Request = {Path, [{~"host", [Host, $:, integer_to_binary(Port)]} | Headers], Body},
    bench_client:measure(Callers, Seconds, floor(Kind, Protocol, Port, Request)).

%% The request of the client.
request(Era) ->
    Revision = erlmcp_revision:latest(list_to_existing_atom(Era)),
    {Message, Headers} = erlmcp_client_request:request(
        1, {~"tools/call", #{~"name" => ~"echo", ~"arguments" => #{~"text" => ~"hello"}}}, #{},
        {Revision, #{info => #{name => ~"bench", version => ~"1.0.0"}, capabilities => #{}}}),
    {[{~"accept", ~"application/json, text/event-stream"},
      {~"content-type", ~"application/json"} | Headers], iolist_to_binary(Message)}.

%% Each caller has its own connection of HTTP/1.1. All callers share that of HTTP/2.
floor("socket", http, Port, {Path, Headers, Body}) ->
    Length = {~"content-length", integer_to_binary(byte_size(Body))},
    Bytes = [cow_http:request(~"POST", Path, 'HTTP/1.1', [Length | Headers]), Body],
    fun() ->
        {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, true},
                                                             {nodelay, true}]),
        fun() ->
            ok = gen_tcp:send(Socket, Bytes),
            receive {tcp, Socket, _} -> ok end
        end
    end;
floor("gun", http, Port, Request) ->
    fun() -> posting(opened(http, Port), Request) end;
floor("gun", http2, Port, Request) ->
    Connection = opened(http2, Port),
    fun() -> posting(Connection, Request) end.

opened(Protocol, Port) ->
    {ok, Connection} = gun:open({127, 0, 0, 1}, Port, #{protocols => [Protocol],
                                                        tcp_opts => [{nodelay, true}]}),
    {ok, Protocol} = gun:await_up(Connection),
    Connection.

posting(Connection, {Path, Headers, Body}) ->
    fun() ->
        Stream = gun:post(Connection, Path, Headers, Body),
        {response, nofin, 200, _} = gun:await(Connection, Stream),
        {ok, _} = gun:await_body(Connection, Stream),
        ok
    end.
