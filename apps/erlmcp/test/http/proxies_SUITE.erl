-module(proxies_SUITE).
-moduledoc """
A server behind HAProxy and nginx, which speak HTTP/1.1 or HTTP/2 to it: real ones, as
scripts/with_proxy.sh sets them up.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([events_come_at_once/1, leaving_client_cancels_its_call/1,
         leaving_client_cancels_its_stream/1, sessions_have_their_stream_and_end/1,
         quiet_streams_outlive_the_patience_of_the_proxy/1, large_messages_pass/1]).

-import(erlmcp_test_http, [call/3, call/4, message/3, connect/1, send/4, close/1, chunk/1, head/1,
                           initialize/2, delete/2, get_stream/2, running/0, finish/2, ended/1]).

%% Seconds of silence that the proxies bear, and milliseconds after which the server breaks its own.
-define(PATIENCE, 2).
-define(KEEP_ALIVE, 250).

suite() ->
    [{timetrap, {minutes, 4}}].

all() -> [{group, Group} || {Group, _, _} <- groups()].

groups() ->
    Cases = [events_come_at_once, leaving_client_cancels_its_call,
             leaving_client_cancels_its_stream, sessions_have_their_stream_and_end,
             quiet_streams_outlive_the_patience_of_the_proxy, large_messages_pass],
    [{Group, [parallel], Cases} || Group <- [haproxy_1_1, haproxy_2, nginx_1_1, nginx_2]].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(haproxy_1_1, Config) -> [{proxy, {"haproxy", "1.1"}} | Config];
init_per_group(haproxy_2, Config) -> [{proxy, {"haproxy", "2"}} | Config];
init_per_group(nginx_1_1, Config) -> [{proxy, {"nginx", "1.1"}} | Config];
init_per_group(nginx_2, Config) -> [{proxy, {"nginx", "2"}} | Config].

end_per_group(_, _) -> ok.

init_per_testcase(_, Config) ->
    Server = erlmcp_test_http:start((erlmcp_test_http:definitions(self()))#{
        limits => #{keep_alive_ms => ?KEEP_ALIVE}}),
    {Proxy, Port} = start_proxy(proplists:get_value(proxy, Config), Server),
    [{server, Server}, {proxy_port, Proxy}, {front, Server#{port := Port}} | Config].

end_per_testcase(_, Config) ->
    true = port_close(proplists:get_value(proxy_port, Config)),
    erlmcp_test_http:stop(proplists:get_value(server, Config)).

%% It ends when its input does.
start_proxy({Name, Version}, #{url := Url}) ->
    Proxy = open_port({spawn_executable, filename:join(root(), "scripts/with_proxy.sh")},
                      [{args, [Name, Version, Url, "sh", "-c", "echo $ERLMCP_URL; exec cat"]},
                       {env, [{"ERLMCP_PROXY_PATIENCE", integer_to_list(?PATIENCE)}]},
                       {line, 1000}, binary, exit_status]),
    receive
        {Proxy, {data, {eol, Front}}} ->
            #{port := Port} = uri_string:parse(Front),
            {Proxy, Port};
        {Proxy, {exit_status, Status}} ->
            error({no_proxy, Name, Status})
    after 120_000 ->
        error({no_proxy, Name, timeout})
    end.

%% This file stands somewhere below the repository's root.
root() ->
    root(filename:dirname(proplists:get_value(source, module_info(compile)))).

root(Folder) ->
    case filelib:is_regular(filename:join(Folder, "scripts/with_proxy.sh")) of
        true -> Folder;
        false -> root(filename:dirname(Folder))
    end.

front(Config) -> proplists:get_value(front, Config).

%% Sends a stateless call of a tool that waits; gives the connection and the handler's process.
start(Front, Tool) ->
    Socket = connect(Front),
    {Headers, Body} = message(~"tools/call", #{name => Tool, '_meta' => #{progressToken => 1}},
                              #{meta => #{progressToken => 1}}),
    ok = send(Socket, ~"POST", Headers, Body),
    {Call, _} = running(),
    {Socket, Call}.

%% Reads chunks until these bytes have come so many times. A proxy cuts a stream as it likes.
read_until(Socket, Bytes, Times) ->
    read_until(Socket, Bytes, Times, <<>>).

read_until(Socket, Bytes, Times, Read) ->
    case length(binary:matches(Read, Bytes)) of
        Found when Found >= Times ->
            ok;
        _ ->
            <<_, _/binary>> = Chunk = chunk(Socket),
            read_until(Socket, Bytes, Times, <<Read/binary, Chunk/binary>>)
    end.

ends(Socket) ->
    case chunk(Socket) of
        <<>> -> close(Socket);
        _ -> ends(Socket)
    end.

%% What the server says while the call runs is read before it ends.
events_come_at_once(Config) ->
    {Socket, Call} = start(front(Config), ~"stream"),
    {200, #{~"content-type" := ~"text/event-stream"}} = head(Socket),
    ok = read_until(Socket, ~"notifications/progress", 1),
    finish(Call, ~"done"),
    ok = read_until(Socket, ~"\"done\"", 1),
    ends(Socket).

%% "The client closes the SSE response stream": with HTTP, that is how a request is cancelled.
leaving_client_cancels_its_call(Config) ->
    {Socket, Call} = start(front(Config), ~"wait"),
    close(Socket),
    _ = ended(Call),
    #{status := 200} = call(front(Config), ~"tools/list", #{}).

leaving_client_cancels_its_stream(Config) ->
    {Socket, Call} = start(front(Config), ~"stream"),
    {200, _} = head(Socket),
    ok = read_until(Socket, ~"notifications/progress", 1),
    close(Socket),
    _ = ended(Call),
    #{status := 200} = call(front(Config), ~"tools/list", #{}).

sessions_have_their_stream_and_end(Config) ->
    [begin
         Session = initialize(front(Config), Revision),
         {Stream, {200, _}} = get_stream(front(Config), Session),
         #{pid := Pid} = proplists:get_value(server, Config),
         ok = erlmcp:add(Pid, tool, #{name => ~"new", handler => fun(_, _) -> ~"new" end}),
         ok = read_until(Stream, ~"notifications/tools/list_changed", 1),
         ok = erlmcp:remove(Pid, tool, ~"new"),
         #{status := 204} = delete(front(Config), Session),
         ends(Stream),
         #{status := 404} = call(front(Config), ~"ping", #{}, #{session => Session})
     end || Revision <- [~"2025-03-26", ~"2025-11-25"]].

%% Comments keep them open: twice as long as the proxy waits.
quiet_streams_outlive_the_patience_of_the_proxy(Config) ->
    Comments = ?PATIENCE * 2000 div ?KEEP_ALIVE,
    {Socket, Call} = start(front(Config), ~"stream"),
    {Stream, {200, _}} = get_stream(front(Config), initialize(front(Config), ~"2025-06-18")),
    {200, _} = head(Socket),
    [ok = read_until(Open, ~":\n\n", Comments) || Open <- [Socket, Stream]],
    finish(Call, ~"done"),
    ok = read_until(Socket, ~"\"done\"", 1),
    ends(Socket),
    close(Stream).

large_messages_pass(Config) ->
    Text = binary:copy(~"0123456789abcdef", 1 bsl 17),
    #{status := 200, messages := [#{~"result" := #{~"content" := [#{~"text" := Text}]}}]} =
        call(front(Config), ~"tools/call", #{name => ~"echo", arguments => #{text => Text}}).
