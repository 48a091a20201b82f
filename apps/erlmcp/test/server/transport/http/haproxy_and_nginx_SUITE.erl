-module(haproxy_and_nginx_SUITE).
-moduledoc """
A server behind HAProxy and nginx, which speak HTTP/1.1 or HTTP/2 to it: real ones, as
scripts/with_proxy.sh sets them up.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([events_come_at_once/1, leaving_client_cancels_its_call/1,
         leaving_client_cancels_its_stream/1, sessions_have_their_stream_and_end/1,
         quiet_streams_outlive_the_patience_of_the_proxy/1, large_messages_pass/1]).
-export([clients_are_told_apart/1, clients_of_lines_are_told_apart/1,
         a_header_of_the_client_changes_nothing/1,
         the_header_that_the_proxy_does_not_write_is_not_taken/1]).
-export([a_server_that_is_not_ready_gets_no_requests/1]).

-import(erlmcp_test_suite, [server/1]).
-import(erlmcp_test_http, [call/3, call/4, message/3, connect/1, send/4, close/1, chunk/1, head/1,
                           initialize/2, delete/2, get_stream/2, finish/2, ended/1]).

%% Seconds of silence that the proxies bear, and milliseconds after which the server breaks its own.
-define(PATIENCE, 4).
-define(KEEP_ALIVE, 250).
-define(TIMEOUT, 30_000).
%% Requests that an address has in a minute, where clients are told apart.
-define(RATE, 3).

suite() ->
    [{timetrap, {minutes, 4}}].

all() -> [{group, Group} || {Group, _, _} <- groups()].

groups() ->
    Cases = [events_come_at_once, leaving_client_cancels_its_call,
             leaving_client_cancels_its_stream, sessions_have_their_stream_and_end,
             quiet_streams_outlive_the_patience_of_the_proxy, large_messages_pass],
    [{Group, [parallel], case Client of
                             none -> Cases;
                             _ -> told_by(Proxy, Client)
                         end}
     || {Group, {Proxy, _, Client}} <- proxies()].

%% Which one it is, what it speaks to the server, and how it tells whose a request is, or whether it
%% checks the server.
proxies() ->
    [{haproxy_1_1, {"haproxy", "1.1", none}}, {haproxy_2, {"haproxy", "2", none}},
     {nginx_1_1, {"nginx", "1.1", none}}, {nginx_2, {"nginx", "2", none}},
     {haproxy_1_1_addresses, {"haproxy", "1.1", "x-forwarded-for"}},
     {haproxy_2_addresses, {"haproxy", "2", "x-forwarded-for"}},
     {nginx_1_1_addresses, {"nginx", "1.1", "x-forwarded-for"}},
     {nginx_2_addresses, {"nginx", "2", "x-forwarded-for"}},
     {haproxy_1_1_forwarded, {"haproxy", "1.1", "forwarded"}},
     {haproxy_2_forwarded, {"haproxy", "2", "forwarded"}},
     {nginx_1_1_forwarded, {"nginx", "1.1", "forwarded"}},
     {nginx_2_forwarded, {"nginx", "2", "forwarded"}},
     {haproxy_protocol_1, {"haproxy", "1.1", "proxy-v1"}},
     {haproxy_protocol_2, {"haproxy", "1.1", "proxy-v2"}},
     {haproxy_2_protocol_2, {"haproxy", "2", "proxy-v2"}},
     {nginx_protocol_1, {"nginx", "1.1", "proxy-v1"}},
     {haproxy_1_1_checks, {"haproxy", "1.1", check}}].

told_by(_, check) ->
    [a_server_that_is_not_ready_gets_no_requests];
told_by(_, "proxy-" ++ _) ->
    [clients_are_told_apart, clients_of_lines_are_told_apart,
     a_header_of_the_client_changes_nothing];
%% It hands on what it does not write.
told_by("haproxy", _) ->
    [clients_are_told_apart, a_header_of_the_client_changes_nothing,
     the_header_that_the_proxy_does_not_write_is_not_taken];
told_by("nginx", _) ->
    [clients_are_told_apart, a_header_of_the_client_changes_nothing].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(Group, Config) ->
    {Group, Proxy} = lists:keyfind(Group, 1, proxies()),
    [{proxy, Proxy} | Config].

end_per_group(_, _) -> ok.

init_per_testcase(Case, Config) ->
    Proxy = proplists:get_value(proxy, Config),
    Server = erlmcp_test_http:start((erlmcp_test_http:definitions(self()))#{
        limits => limits(Proxy), listen => [listener(Case, Proxy)]}),
    {Port, Front} = start_proxy(Proxy, Server),
    [{server, Server}, {proxy_port, Port}, {front, Server#{port := Front}} | Config].

listener(_, {_, _, none}) ->
    {http, #{}};
listener(_, {_, _, check}) ->
    {http, #{health => true}};
listener(Case, {_, _, Client}) ->
    Options = #{trusted_proxies => [~"127.0.0.1"],
                proxy_protocol => lists:prefix("proxy-", Client)},
    case Case of
        clients_of_lines_are_told_apart -> {tcp, Options};
        _ -> {http, Options}
    end.

limits({_, _, none}) -> #{keep_alive_ms => ?KEEP_ALIVE};
limits({_, _, check}) -> #{};
limits(_) -> #{principal_messages_per_minute => ?RATE}.

end_per_testcase(_, Config) ->
    true = port_close(proplists:get_value(proxy_port, Config)),
    erlmcp_test_http:stop(server(Config)).

%% It ends when its input does.
start_proxy({Name, Version, Client}, #{url := Url}) ->
    Proxy = open_port({spawn_executable, filename:join(root(), "scripts/with_proxy.sh")},
                      [{args, [Name, Version, Url, "sh", "-c", "echo $ERLMCP_URL; exec cat"]},
                       {env, [{"ERLMCP_PROXY_PATIENCE", integer_to_list(?PATIENCE)}
                              | setting(Client)]},
                       {line, 1000}, binary, exit_status]),
    receive
        {Proxy, {data, {eol, Front}}} ->
            #{port := Port} = uri_string:parse(Front),
            {Proxy, Port};
        {Proxy, {exit_status, Status}} ->
            error({no_proxy, Name, Status})
    after 200_000 ->
        error({no_proxy, Name, timeout})
    end.

setting(none) -> [];
setting(check) -> [{"ERLMCP_PROXY_CHECK", "/health/ready"}];
setting(Client) -> [{"ERLMCP_PROXY_CLIENT", Client}].

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
    receive
        {running, Call, _} -> {Socket, Call}
    after ?TIMEOUT ->
        %% What the proxy has said in its place, if anything.
        error({no_call_runs, received(Socket)})
    end.

received(Socket) when is_port(Socket) -> gen_tcp:recv(Socket, 0, 0);
received(Socket) -> ssl:recv(Socket, 0, 0).

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
         #{pid := Pid} = server(Config),
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

%% Clients at addresses of their own: 127.0.0.1 is the proxy, to the server.

connect_from(Last, #{port := Port}) ->
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port,
                                   [binary, {active, false}, {nodelay, true},
                                    {ip, {127, 0, 0, Last}}], ?TIMEOUT),
    Socket.

status(Socket, Headers) ->
    {Known, Body} = message(~"tools/list", #{}, #{}),
    ok = send(Socket, ~"POST", Headers ++ Known, Body),
    #{status := Status} = erlmcp_test_http:response(Socket),
    Status.

ask(Last, Headers, Front) ->
    Socket = connect_from(Last, Front),
    Status = status(Socket, Headers),
    close(Socket),
    Status.

full() -> lists:duplicate(?RATE, 200) ++ [429].

%% Each has its rate, on one connection to the proxy and on several.
clients_are_told_apart(Config) ->
    Front = front(Config),
    Sockets = [connect_from(Last, Front) || Last <- [11, 12]],
    [true = full() =:= [status(Socket, []) || _ <- full()] || Socket <- Sockets],
    [close(Socket) || Socket <- Sockets],
    true = full() =:= [ask(13, [], Front) || _ <- full()],
    [429, 429, 200] = [ask(Last, [], Front) || Last <- [11, 12, 14]].

clients_of_lines_are_told_apart(Config) ->
    Front = front(Config),
    Listing = [json:encode(erlmcp_test_line:stateless(1, ~"tools/list", #{})), $\n],
    Ask = fun(Last) ->
        Socket = connect_from(Last, Front),
        ok = inet:setopts(Socket, [{packet, line}, {buffer, 65_536}]),
        ok = gen_tcp:send(Socket, Listing),
        {ok, Line} = gen_tcp:recv(Socket, 0, ?TIMEOUT),
        close(Socket),
        is_map_key(~"result", json:decode(Line))
    end,
    [[true, true, true, false] = [Ask(Last) || _ <- full()] || Last <- [11, 12]].

%% The address that it claims stands in front of the one that the proxy writes.
a_header_of_the_client_changes_nothing(Config) ->
    Front = front(Config),
    Header = case proplists:get_value(proxy, Config) of
        {_, _, "forwarded"} -> fun(Claimed) -> {~"Forwarded", [~"for=", Claimed]} end;
        _ -> fun(Claimed) -> {~"X-Forwarded-For", Claimed} end
    end,
    Claimed = [[~"6.6.6.", integer_to_list(Number)] || Number <- lists:seq(1, length(full()))],
    true = full() =:= [ask(11, [Header(Address)], Front) || Address <- Claimed],
    %% Whose address it claimed has lost nothing, and nobody else has.
    true = full() =:= [ask(12, [Header(~"127.0.0.11")], Front) || _ <- full()].

%% Then the server cannot know which of the two is the proxy's, and takes it for the proxy's own.
the_header_that_the_proxy_does_not_write_is_not_taken(Config) ->
    Front = front(Config),
    Other = case proplists:get_value(proxy, Config) of
        {_, _, "forwarded"} -> fun(Claimed) -> {~"X-Forwarded-For", Claimed} end;
        _ -> fun(Claimed) -> {~"Forwarded", [~"for=", Claimed]} end
    end,
    Claimed = [[~"6.6.6.", integer_to_list(Number)] || Number <- lists:seq(1, length(full()))],
    true = full() =:= [ask(11, [Other(Address)], Front) || Address <- Claimed],
    [200, 200] = [ask(Last, [], Front) || Last <- [11, 12]].

%% HAProxy asks the server every 100 ms, and answers 503 itself while that is not ready.
a_server_that_is_not_ready_gets_no_requests(Config) ->
    ok = until_called(200, Config),
    ok = application:set_env(erlmcp, memory_bytes, 1),
    #{pid := Pid} = server(Config),
    ok = until_not_ready(Pid),
    ok = until_called(503, Config),
    ok = application:unset_env(erlmcp, memory_bytes),
    ok = until_called(200, Config).

until_not_ready(Pid) ->
    case erlmcp:health(Pid) of
        #{ready := false} -> ok;
        #{ready := true} -> receive after 10 -> until_not_ready(Pid) end
    end.

%% A refusal of the server has a body in JSON, and that of the proxy has none.
until_called(Status, Config) ->
    Socket = connect(front(Config)),
    {Headers, Body} = message(~"tools/list", #{}, #{}),
    ok = send(Socket, ~"POST", Headers, Body),
    {Answered, #{~"content-type" := Type}} = head(Socket),
    close(Socket),
    case {Answered, Type} of
        {200, _} when Status =:= 200 -> ok;
        {503, ~"text/html"} when Status =:= 503 -> ok;
        _ -> until_called(Status, Config)
    end.
