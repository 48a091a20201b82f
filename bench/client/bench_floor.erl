-module(bench_floor).
-moduledoc """
What is beneath this project's client, as `bench/client.sh` measures it: the same request in a loop
on a bare socket of HTTP/1.1, and by gun. Nothing in a response is looked at but its end.
""".

-export([main/1]).

-doc "`socket | gun TARGET ERA CALLERS SECONDS`".
-spec main([string(), ...]) -> ok.
main([Kind, Target, Era, Callers, Seconds]) ->
    {ok, _} = application:ensure_all_started(gun),
    {Protocol, Url} = case Target of
        "h2+" ++ Rest -> {http2, Rest};
        _ -> {http, Target}
    end,
    #{host := Host, port := Port, path := Path} = uri_string:parse(Url),
    {Headers, Body} = request(Era),
    Asked = {Path, [{~"host", [Host, $:, integer_to_binary(Port)]} | Headers], Body},
    bench_client:measure(Callers, Seconds, floor(Kind, Protocol, Port, Asked)).

%% As the client sends it.
request(Era) ->
    Revision = erlmcp_revision:latest(list_to_existing_atom(Era)),
    {Message, Headers} = erlmcp_client_request:request(
        1, {~"tools/call", #{~"name" => ~"echo", ~"arguments" => #{~"text" => ~"hello"}}}, #{},
        {Revision, #{info => #{name => ~"bench", version => ~"1.0.0"}, capabilities => #{}}}),
    {[{~"accept", ~"application/json, text/event-stream"},
      {~"content-type", ~"application/json"} | Headers], iolist_to_binary(Message)}.

%% Connections of HTTP/1.1 are a caller's own; that of HTTP/2 is for all.
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
floor("gun", http, Port, Asked) ->
    fun() -> posting(opened(http, Port), Asked) end;
floor("gun", http2, Port, Asked) ->
    Connection = opened(http2, Port),
    fun() -> posting(Connection, Asked) end.

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
