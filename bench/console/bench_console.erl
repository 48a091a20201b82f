-module(bench_console).
-moduledoc """
A server with the tool `echo`, with the console or without it, and viewers of the console's stream.
""".

-export([main/1]).

-doc """
`serve without` and `serve with`: the server, without the console's application or with it. Prints
its URL, and runs until it is killed. `view URL COUNT`: that many viewers of the console of the
server at `URL`. Prints `ready` when each has its first snapshot, and reads on until it is killed.
""".
-spec main([string()]) -> no_return().
main(["serve", Console]) ->
    {ok, _} = application:ensure_all_started(erlmcp),
    Echo = #{name => ~"echo", description => ~"Echoes", input_schema => #{text => string},
             handler => fun(#{~"text" := Text}, _) -> Text end},
    {ok, _} = erlmcp:start_server(#{id => bench, name => ~"bench", version => ~"1",
                                    tools => [Echo], listen => [{http, pages(Console)}]}),
    [#{url := Url} | _] = erlmcp:listeners(bench),
    io:format("~ts~n", [Url]),
    receive after infinity -> ok end;
main(["view", Url, Count]) ->
    #{host := Host, port := Port} = uri_string:parse(Url),
    Viewers = [view(Host, Port) || _ <- lists:seq(1, list_to_integer(Count))],
    ok = lists:foreach(fun first_snapshot/1, Viewers),
    io:format("ready~n"),
    read_on().

pages("without") ->
    #{};
pages("with") ->
    {ok, _} = application:ensure_all_started(erlmcp_console),
    #{pages => #{~"/console" => erlmcp_console:page(#{})}}.

view(Host, Port) ->
    {ok, Socket} = gen_tcp:connect(Host, Port, [binary, {active, true}]),
    ok = gen_tcp:send(Socket, ["GET /console/feed HTTP/1.1\r\nHost: ", Host, $:,
                               integer_to_list(Port), "\r\n\r\n"]),
    Socket.

first_snapshot(Socket) ->
    receive
        {tcp, Socket, Bytes} ->
            case binary:match(Bytes, ~"event: snapshot") of
                nomatch -> first_snapshot(Socket);
                _ -> ok
            end
    end.

read_on() ->
    receive
        {tcp, _, _} -> read_on();
        {tcp_closed, _} -> exit(closed)
    end.
