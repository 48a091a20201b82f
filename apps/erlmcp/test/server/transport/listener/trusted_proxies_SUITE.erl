-module(trusted_proxies_SUITE).
-moduledoc """
Clients behind a proxy that a listener trusts (`trusted_proxies`, `proxy_protocol`) are told apart
by their own addresses: in their rates and bounds, however their requests come. Nobody else's word
counts.

The proxy here is the suite, at 127.0.0.1; real ones are in `m:haproxy_and_nginx_SUITE`.
""".

-compile(nowarn_missing_spec_documented).

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([clients_have_their_own_rates/1, what_a_client_says_of_itself_is_not_read/1,
         a_direct_client_is_its_address/1]).
-export([clients_wait_for_their_own_turns/1, a_stream_is_its_clients/1,
         who_asks_hears_of_the_client/1, connections_of_a_proxy_have_no_address/1,
         only_a_proxys_connection_is_many_clients/1]).
-export([untrusted_headers_are_logged_once/1, listeners_without_proxies_log_it_too/1]).
-export([header_of_version_1/1, header_of_version_2/1, the_proxy_itself/1, header_in_pieces/1,
         no_header/1, silence_ends/1, headers_of_others_are_not_read/1,
         the_client_behind_both/1, connections_are_counted_by_client/1]).
-export([wrong_options/1]).
-export([log/2]).

-define(TIMEOUT, 30_000).
-define(PROXY, "127.0.0.1").
%% Nobody trusts this one.
-define(OTHER, {127, 0, 0, 9}).
-define(TRUSTED, [~"127.0.0.1", ~"10.0.0.0/8"]).
%% Requests that an address has in a minute.
-define(RATE, 3).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [{group, Group} || {Group, _, _} <- groups()]
        ++ [clients_wait_for_their_own_turns, a_stream_is_its_clients, who_asks_hears_of_the_client,
            connections_of_a_proxy_have_no_address, only_a_proxys_connection_is_many_clients,
            untrusted_headers_are_logged_once, listeners_without_proxies_log_it_too,
            the_client_behind_both, wrong_options].

groups() ->
    ByHeader = [clients_have_their_own_rates, what_a_client_says_of_itself_is_not_read,
                a_direct_client_is_its_address],
    Protocol = [header_of_version_1, header_of_version_2, the_proxy_itself, header_in_pieces,
                no_header, silence_ends, headers_of_others_are_not_read,
                connections_are_counted_by_client],
    %% `read_on` has heads that the listener's own reader leaves to cowboy.
    [{Group, [], ByHeader} || Group <- [http1, read_on, http2, tls, http2_tls, asked]]
        ++ [{Group, [], Protocol} || Group <- [proxy_http, proxy_tls, proxy_tcp]].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, gun, ssl], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(Group, Config) ->
    [{group, Group} | Config].

end_per_group(_, _) -> ok.

init_per_testcase(_, Config) ->
    ok = logger:add_handler(?MODULE, ?MODULE, #{config => #{test => self()}}),
    Config.

end_per_testcase(_, _) ->
    ok = logger:remove_handler(?MODULE).

-doc false.
log(#{msg := {report, #{what := _} = Report}}, #{config := #{test := Test}}) ->
    Test ! {logged, Report};
log(#{level := error} = Crash, #{config := #{test := Test}}) ->
    Test ! {crashed, Crash};
log(_, _) ->
    ok.

logged(What) ->
    receive
        {logged, #{what := What} = Report} -> Report
    after ?TIMEOUT ->
        error({not_logged, What})
    end.

is_logged(What) ->
    receive
        {logged, #{what := What}} -> true
    after 0 ->
        false
    end.

%% The server.

serve(Listener, Limits) ->
    erlmcp_test_http:start((erlmcp_test_http:definitions(self()))#{
        limits => Limits, listen => [Listener]}).

rated(Config) ->
    {Transport, Options} = listener(proplists:get_value(group, Config)),
    serve({Transport, Options#{trusted_proxies => ?TRUSTED}},
          #{principal_messages_per_minute => ?RATE}).

listener(asked) -> {http, #{authenticate => fun(_) -> {ok, anonymous} end}};
listener(proxy_http) -> {http, #{proxy_protocol => true}};
listener(proxy_tls) -> {http, #{proxy_protocol => true, tls => erlmcp_test_http:shown()}};
listener(proxy_tcp) -> {tcp, #{proxy_protocol => true}};
listener(Tls) when Tls =:= tls; Tls =:= http2_tls -> {http, #{tls => erlmcp_test_http:shown()}};
listener(_) -> {http, #{}}.

%% Its clients: connections of each group, and the status that a request has.

open(Server, Config) ->
    open(Server, {127, 0, 0, 1}, Config).

open(#{port := Port} = Server, From, Config) ->
    case proplists:get_value(group, Config) of
        http2 -> {http2, gun(Port, #{tcp_opts => [{ip, From}]})};
        http2_tls -> {http2, gun(Port, #{transport => tls, tcp_opts => [{ip, From}],
                                         tls_opts => [{verify, verify_none}]})};
        read_on -> {read_on, connect(Server, From, ~"")};
        _ -> {http1, connect(Server, From, ~"")}
    end.

gun(Port, Options) ->
    {ok, Connection} = gun:open(?PROXY, Port, Options#{protocols => [http2], retry => 0}),
    {ok, http2} = gun:await_up(Connection, ?TIMEOUT),
    Connection.

%% A connection whose first bytes, before TLS, are a proxy's.
connect(#{port := Port} = Server, From, First) ->
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port,
                                   [binary, {active, false}, {nodelay, true}, {ip, From}],
                                   ?TIMEOUT),
    ok = gen_tcp:send(Socket, First),
    case Server of
        #{url := <<"https:", _/binary>>} ->
            case ssl:connect(Socket, [{verify, verify_none}], ?TIMEOUT) of
                {ok, Secure} -> Secure;
                {error, _} -> closed
            end;
        #{} ->
            Socket
    end.

ask({http2, Connection}, Headers) ->
    {Known, Body} = echo(),
    Stream = gun:post(Connection, ~"/mcp", Headers ++ Known, Body),
    {response, nofin, Status, _} = gun:await(Connection, Stream, ?TIMEOUT),
    {ok, _} = gun:await_body(Connection, Stream, ?TIMEOUT),
    Status;
ask({read_on, Socket}, Headers) ->
    ask({http1, Socket}, [{~"connection", ~"x"} | Headers]);
ask({http1, Socket}, Headers) ->
    {Known, Body} = echo(),
    ok = erlmcp_test_http:send(Socket, ~"POST", Headers ++ Known, Body),
    #{status := Status} = erlmcp_test_http:response(Socket),
    Status.

echo() ->
    erlmcp_test_http:message(~"tools/call", #{name => ~"echo", arguments => #{text => ~"x"}}, #{}).

ask_on_lines(Socket) ->
    Listing = erlmcp_test_line:stateless(1, ~"tools/list", #{}),
    ok = gen_tcp:send(Socket, [json:encode(Listing), $\n]),
    ok = inet:setopts(Socket, [{packet, line}, {buffer, 65_536}]),
    {ok, Line} = gen_tcp:recv(Socket, 0, ?TIMEOUT),
    case json:decode(Line) of
        #{~"result" := _} -> 200;
        #{~"error" := #{~"code" := 1058}} -> 429;
        #{~"error" := #{~"code" := 1060}} -> 429
    end.

close({http2, Connection}) -> gun:close(Connection);
close({_, Socket}) -> erlmcp_test_http:close(Socket).

%% Statuses of requests on one connection.
asked(Connection, Headers, Times) ->
    [ask(Connection, Headers) || _ <- lists:seq(1, Times)].

served(Times) -> lists:duplicate(Times, 200).

%% By header.

clients_have_their_own_rates(Config) ->
    Server = rated(Config),
    Connection = open(Server, Config),
    Full = served(?RATE) ++ [429],
    Full = asked(Connection, [{~"x-forwarded-for", ~"203.0.113.1"}], ?RATE + 1),
    %% Another connection, and the other header, of the same client.
    Other = open(Server, Config),
    429 = ask(Other, [{~"forwarded", ~"for=203.0.113.1;proto=http"}]),
    429 = ask(Other, [{~"forwarded", ~"for=\"203.0.113.1:4711\", for=10.1.2.3"}]),
    %% On the same connections, others.
    Full = asked(Connection, [{~"forwarded", ~"for=203.0.113.2"}], ?RATE + 1),
    Full = asked(Other, [{~"forwarded", ~"by=_p;For=\"[2001:db8::1]\""}], ?RATE + 1),
    429 = ask(Other, [{~"x-forwarded-for", ~"2001:db8::ffff"}]),
    Full = asked(Other, [{~"x-forwarded-for", ~"203.0.113.3, 10.0.0.1, 10.2.0.1"}], ?RATE + 1),
    %% The proxy's own, and those that nobody knows, are one.
    [200, 200] = asked(Connection, [], 2),
    200 = ask(Other, [{~"forwarded", ~"for=_hidden"}]),
    429 = ask(Other, [{~"x-forwarded-for", ~"unknown"}]),
    close(Connection),
    close(Other),
    erlmcp_test_http:stop(Server).

%% The proxy writes its client behind what that wrote; in a line of its own, as HAProxy does, too.
what_a_client_says_of_itself_is_not_read(Config) ->
    Server = rated(Config),
    Connection = open(Server, Config),
    Client = ~"203.0.113.1",
    Spoofed = [[{~"x-forwarded-for", <<"6.6.6.6, ", Client/binary>>}],
               [{~"x-forwarded-for", ~"6.6.6.7"}, {~"x-forwarded-for", Client}],
               [{~"forwarded", <<"for=6.6.6.8;x=\"a, for=", Client/binary>>}],
               [{~"x-forwarded-for", Client}],
               [{~"forwarded", ~"for=6.6.6.9"}, {~"forwarded", <<"for=", Client/binary>>}]],
    [200, 200, 200, 429, 429] = [ask(Connection, Headers) || Headers <- Spoofed],
    %% One header of the client's own beside the proxy's: neither of both is taken.
    Differing = fun(Number) -> [{~"forwarded", [~"for=6.6.7.", integer_to_binary(Number)]},
                                {~"x-forwarded-for", ~"203.0.113.9"}] end,
    [200, 200, 200, 429] = [ask(Connection, Differing(Number)) || Number <- [1, 2, 3, 4]],
    close(Connection),
    erlmcp_test_http:stop(Server).

a_direct_client_is_its_address(Config) ->
    Server = rated(Config),
    Connection = open(Server, ?OTHER, Config),
    Claimed = fun(Number) ->
        [{~"x-forwarded-for", <<"203.0.113.", (integer_to_binary(Number))/binary>>}]
    end,
    [200, 200, 200, 429] = [ask(Connection, Claimed(Number)) || Number <- [1, 2, 3, 4]],
    %% Nobody has lost anything by it.
    Proxy = open(Server, Config),
    200 = ask(Proxy, Claimed(1)),
    close(Connection),
    close(Proxy),
    erlmcp_test_http:stop(Server).

%% One has all of its places in the queue; who comes behind it, through the same proxy, has its own.
clients_wait_for_their_own_turns(_) ->
    #{pid := Pid} = Server = serve({http, #{trusted_proxies => ?TRUSTED}},
                                   #{in_flight => 1, queue => 10, queue_per_principal => 1,
                                     queue_ms => ?TIMEOUT}),
    Of = fun(Address) -> [{~"x-forwarded-for", Address}] end,
    Begin = fun(Address) ->
        Socket = connect(Server, {127, 0, 0, 1}, ~""),
        {Headers, Body} = erlmcp_test_http:message(~"tools/call", #{name => ~"wait"}, #{}),
        ok = erlmcp_test_http:send(Socket, ~"POST", Of(Address) ++ Headers, Body),
        Socket
    end,
    Wait = fun(Number) ->
        until(fun() -> map_get(waiting, erlmcp:info(Pid)) =:= Number end)
    end,
    Runs = Begin(~"203.0.113.1"),
    {First, _} = erlmcp_test_http:running(),
    Waits = Begin(~"203.0.113.1"),
    Wait(1),
    Refused = {http1, connect(Server, {127, 0, 0, 1}, ~"")},
    429 = ask(Refused, Of(~"203.0.113.1")),
    Other = Begin(~"203.0.113.2"),
    Wait(2),
    ok = erlmcp_test_http:finish(First, ~"done"),
    _ = [begin
             {Next, _} = erlmcp_test_http:running(),
             erlmcp_test_http:finish(Next, ~"done")
         end || _ <- [second, third]],
    [#{status := 200} = erlmcp_test_http:response(Socket) || Socket <- [Runs, Waits, Other]],
    [erlmcp_test_http:close(Socket) || Socket <- [Runs, Waits, Other]],
    close(Refused),
    erlmcp_test_http:stop(Server).

%% Looked at again and again until it is so.
until(Condition) ->
    case Condition() of
        true -> ok;
        false -> receive after 10 -> until(Condition) end
    end.

a_stream_is_its_clients(_) ->
    Server = serve({http, #{sse => #{}, trusted_proxies => ?TRUSTED}},
                   #{principal_messages_per_minute => ?RATE}),
    Asked = fun(Client) ->
        [begin
             Ping = #{jsonrpc => ~"2.0", id => Id, method => ~"ping"},
             case erlmcp_test_sse:post(Client, json:encode(Ping)) of
                 {202, _, _} -> is_map_key(~"result", erlmcp_test_sse:message(Client))
             end
         end || Id <- lists:seq(1, ?RATE + 1)]
    end,
    [begin
         Client = erlmcp_test_sse:open(Server, #{headers => [{~"x-forwarded-for", Address}]}),
         [true, true, true, false] = Asked(Client),
         erlmcp_test_sse:close(Client)
     end || Address <- [~"203.0.113.1", ~"203.0.113.2"]],
    erlmcp_test_http:stop(Server).

who_asks_hears_of_the_client(_) ->
    Test = self(),
    Server = serve({http, #{trusted_proxies => ?TRUSTED,
                            authenticate => fun(#{peer := Peer}) ->
                                Test ! {peer, Peer},
                                {ok, ~"ada"}
                            end}}, #{}),
    Connection = {http1, connect(Server, {127, 0, 0, 1}, ~"")},
    200 = ask(Connection, [{~"x-forwarded-for", ~"203.0.113.7"}]),
    {{203, 0, 113, 7}, 0} = receive {peer, Client} -> Client end,
    200 = ask(Connection, []),
    {{127, 0, 0, 1}, Port} = receive {peer, Proxy} -> Proxy end,
    true = Port > 0,
    close(Connection),
    erlmcp_test_http:stop(Server).

connections_of_a_proxy_have_no_address(_) ->
    Server = serve({http, #{trusted_proxies => ?TRUSTED}}, #{connections_per_address => 1}),
    Of = fun(From) -> {http1, connect(Server, From, ~"")} end,
    Proxys = [Of({127, 0, 0, 1}) || _ <- [1, 2, 3]],
    [200, 200, 200] = [ask(Connection, []) || Connection <- Proxys],
    Other = Of(?OTHER),
    200 = ask(Other, []),
    Refused = Of(?OTHER),
    429 = ask(Refused, []),
    [close(Connection) || Connection <- [Refused, Other | Proxys]],
    erlmcp_test_http:stop(Server).

only_a_proxys_connection_is_many_clients(_) ->
    Refusal = erlmcp_refusal:new(concurrent_limit_exceeded, ~"too many",
                                 #{retry_after_ms => 3_600_000}),
    Header = #{~"x-forwarded-for" => ~"203.0.113.1"},
    Kept = fun(Headers, Config) ->
        %% Told apart from the ones before by its process.
        {Pid, Monitor} = spawn_monitor(fun() ->
            0 = erlmcp_admission:hold_back(Refusal, Headers, Config),
            exit({kept, lists:sum([erlmcp_admission:hold_back(Refusal, Headers, Config)
                                   || _ <- lists:seq(1, 10)])})
        end),
        receive {'DOWN', Monitor, process, Pid, {kept, Milliseconds}} -> Milliseconds > 0 end
    end,
    false = Kept(#{}, #{proxied => true}),
    false = Kept(Header, #{proxied => true}),
    true = Kept(Header, #{proxied => false}),
    true = Kept(#{~"via" => ~"1.1 x"}, #{proxied => false}),
    %% Where no proxy is trusted, the headers are believed: it costs nobody but who says so.
    false = Kept(Header, #{}),
    true = Kept(#{}, #{}).

%% Logs.

untrusted_headers_are_logged_once(_) ->
    is_logged_once(serve({http, #{trusted_proxies => ?TRUSTED}}, #{}), ?OTHER).

listeners_without_proxies_log_it_too(_) ->
    is_logged_once(serve({http, #{}}, #{}), {127, 0, 0, 1}),
    is_logged_once(serve({http, #{authenticate => fun(_) -> {ok, ~"ada"} end}}, #{}),
                   {127, 0, 0, 1}).

is_logged_once(Server, From) ->
    Connections = [{http1, connect(Server, From, ~"")} || _ <- [1, 2]],
    [200 = ask(Connection, []) || Connection <- Connections],
    false = is_logged(forwarding_header_not_trusted),
    [200 = ask(Connection, [{Name, ~"for=203.0.113.1"}])
     || Connection <- Connections, Name <- [~"forwarded", ~"x-forwarded-for"]],
    #{address := From, advice := Advice} = logged(forwarding_header_not_trusted),
    {_, _} = binary:match(Advice, ~"trusted_proxies"),
    false = is_logged(forwarding_header_not_trusted),
    [close(Connection) || Connection <- Connections],
    erlmcp_test_http:stop(Server).

%% The PROXY protocol.

proxied(Server, First, Config) ->
    proxied(Server, {127, 0, 0, 1}, First, Config).

proxied(Server, From, First, Config) ->
    {proplists:get_value(group, Config), connect(Server, From, First)}.

status({proxy_tcp, Socket}) -> ask_on_lines(Socket);
status({_, Socket}) -> ask({http1, Socket}, []).

%% Requests on connections of their own.
statuses(Server, First, Times, Config) ->
    [begin
         Connection = proxied(Server, First, Config),
         Status = status(Connection),
         close(Connection),
         Status
     end || _ <- lists:seq(1, Times)].

header_of_version_1(Config) ->
    Server = rated(Config),
    Full = served(?RATE) ++ [429],
    Of = fun(Family, Address) ->
        [~"PROXY ", Family, $\s, Address, $\s, Address, ~" 4711 80\r\n"]
    end,
    [Full = statuses(Server, Of(Family, Address), ?RATE + 1, Config)
     || {Family, Address} <- [{~"TCP4", ~"203.0.113.1"}, {~"TCP4", ~"203.0.113.2"},
                              {~"TCP6", ~"2001:db8::1"}]],
    [429] = statuses(Server, Of(~"TCP6", ~"2001:db8::2"), 1, Config),
    [200] = statuses(Server, Of(~"TCP6", ~"2001:db8:1::2"), 1, Config),
    erlmcp_test_http:stop(Server).

version_2(Command, Family, Rest) ->
    [~"\r\n\r\n\0\r\nQUIT\n", <<2:4, Command:4, Family, (iolist_size(Rest)):16>>, Rest].

header_of_version_2(Config) ->
    Server = rated(Config),
    Full = served(?RATE) ++ [429],
    Of = fun(Address) ->
        version_2(1, 16#11, [<<Address:32, 127, 0, 0, 1, 4711:16, 80:16>>,
                             %% its name for the server, as TLS told it
                             <<2, 3:16, "mcp">>])
    end,
    Full = statuses(Server, Of(16#CB007101), ?RATE + 1, Config),
    Full = statuses(Server, Of(16#CB007102), ?RATE + 1, Config),
    Of6 = fun(Address) ->
        version_2(1, 16#21, <<16#20010db8:32, 0:88, Address, 0:128, 4711:16, 80:16>>)
    end,
    Full = statuses(Server, Of6(1), ?RATE + 1, Config),
    [429] = statuses(Server, Of6(2), 1, Config),
    erlmcp_test_http:stop(Server).

%% As it asks whether the server is well, or knows no address.
the_proxy_itself(Config) ->
    Server = rated(Config),
    [200] = statuses(Server, version_2(0, 0, ~""), 1, Config),
    [200] = statuses(Server, ~"PROXY UNKNOWN\r\n", 1, Config),
    Unix = <<"/client", 0:808, "/server", 0:808>>,
    [200] = statuses(Server, version_2(1, 16#31, Unix), 1, Config),
    [429] = statuses(Server, version_2(1, 0, ~""), 1, Config),
    erlmcp_test_http:stop(Server).

%% What a proxy has to send at once is not put together; nor is what is none.
header_in_pieces(Config) ->
    Server = rated(Config),
    is_closed(Server, ~"PROXY TCP4 203.0.113.1", Config),
    #{address := {127, 0, 0, 1}, advice := _} = logged(proxy_header_expected),
    [is_closed(Server, First, Config)
     || First <- [~"PROXY TCP4 203.0.113.256 127.0.0.1 1 2\r\n", ~"PROXY\r\n",
                  version_2(1, 16#11, <<0:32>>), version_2(7, 16#11, <<0:96>>),
                  %% a checksum behind a length that is none
                  version_2(1, 16#11, <<0:96, 2, 0:16, 3, 4:16>>),
                  [~"\r\n\r\n\0\r\nQUIT\n", <<2:4, 1:4, 16#11, 15:16, 0:96, 3, 4:16, 1:32>>]]],
    %% Once is enough.
    false = is_logged(proxy_header_expected),
    [200] = statuses(Server, ~"PROXY UNKNOWN\r\n", 1, Config),
    receive {crashed, Crash} -> error(Crash) after 0 -> ok end,
    erlmcp_test_http:stop(Server).

is_closed(Server, First, Config) ->
    case proxied(Server, First, Config) of
        {_, closed} ->
            ok;
        {_, Socket} when is_port(Socket) ->
            {error, Reason} = gen_tcp:recv(Socket, 0, ?TIMEOUT),
            true = Reason =:= closed orelse Reason =:= econnreset,
            gen_tcp:close(Socket)
    end.

no_header(Config) ->
    Server = rated(Config),
    is_closed(Server, ~"POST /mcp HTTP/1.1\r\nhost: localhost\r\n\r\n", Config),
    #{address := {127, 0, 0, 1}} = logged(proxy_header_expected),
    erlmcp_test_http:stop(Server).

silence_ends(Config) ->
    {Transport, Options} = listener(proplists:get_value(group, Config)),
    Server = serve({Transport, Options#{trusted_proxies => ?TRUSTED}},
                   #{receive_timeout_ms => 100}),
    #{port := Port} = Server,
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}], ?TIMEOUT),
    ok = ends(Socket),
    false = is_logged(proxy_header_expected),
    erlmcp_test_http:stop(Server).

%% TLS says farewell, in alerts.
ends(Socket) ->
    case gen_tcp:recv(Socket, 0, 4000) of
        {ok, <<21, _/binary>>} -> ends(Socket);
        {error, closed} -> ok
    end.

headers_of_others_are_not_read(Config) ->
    Server = rated(Config),
    Direct = [begin
                  Connection = proxied(Server, ?OTHER, ~"", Config),
                  Status = status(Connection),
                  close(Connection),
                  Status
              end || _ <- lists:seq(1, ?RATE + 1)],
    Direct = served(?RATE) ++ [429],
    %% It is no request of theirs, either.
    case proxied(Server, ?OTHER, ~"PROXY TCP4 203.0.113.1 203.0.113.1 1 2\r\n", Config) of
        {proxy_tls, closed} ->
            ok;
        {proxy_http, Socket} ->
            {400, _} = erlmcp_test_http:head(Socket);
        {proxy_tcp, Socket} ->
            {ok, <<"{", _/binary>> = Line} = gen_tcp:recv(Socket, 0, ?TIMEOUT),
            #{~"error" := #{~"code" := -32700}} = json:decode(Line)
    end,
    erlmcp_test_http:stop(Server).

connections_are_counted_by_client(Config) ->
    {Transport, Options} = listener(proplists:get_value(group, Config)),
    Server = serve({Transport, Options#{trusted_proxies => ?TRUSTED}},
                   #{connections_per_address => 1}),
    Of = fun(Address) ->
        proxied(Server, [~"PROXY TCP4 ", Address, ~" 127.0.0.1 1 2\r\n"], Config)
    end,
    Ada = Of(~"203.0.113.1"),
    200 = status(Ada),
    Refused = Of(~"203.0.113.1"),
    429 = status(Refused),
    Eve = Of(~"203.0.113.2"),
    200 = status(Eve),
    %% The proxy asks for itself as often as it likes.
    Itself = [proxied(Server, ~"PROXY UNKNOWN\r\n", Config) || _ <- [1, 2]],
    [200, 200] = [status(Connection) || Connection <- Itself],
    [close(Connection) || Connection <- [Ada, Eve, Refused | Itself]],
    erlmcp_test_http:stop(Server).

%% A proxy of lines in front of one of HTTP.
the_client_behind_both(_) ->
    Server = serve({http, #{trusted_proxies => ?TRUSTED, proxy_protocol => true}},
                   #{principal_messages_per_minute => ?RATE}),
    Through = fun(Proxy) ->
        {http1, connect(Server, {127, 0, 0, 1}, [~"PROXY TCP4 ", Proxy, ~" 127.0.0.1 1 2\r\n"])}
    end,
    Header = [{~"x-forwarded-for", ~"203.0.113.1"}],
    Trusted = Through(~"10.0.0.1"),
    [200, 200, 200, 429] = asked(Trusted, Header, ?RATE + 1),
    Client = Through(~"203.0.113.2"),
    [200, 200, 200, 429] = asked(Client, Header, ?RATE + 1),
    #{address := {203, 0, 113, 2}} = logged(forwarding_header_not_trusted),
    [close(Connection) || Connection <- [Trusted, Client]],
    erlmcp_test_http:stop(Server).

wrong_options(_) ->
    Refused = fun(Listener) ->
        {error, {bad_option, Option, <<_/binary>> = Expected}} =
            erlmcp:start_server(#{name => ~"x", version => ~"1", listen => [Listener]}),
        {Option, Expected}
    end,
    [{{Transport, trusted_proxies}, ~"a list of addresses and networks, one at least"} =
         Refused({Transport, #{trusted_proxies => Wrong}})
     || Transport <- [http, tcp], Wrong <- [[], any, ~"10.0.0.1", #{}]],
    {{http, trusted_proxies, {10, 0, 0, 1}},
     ~"a binary: an IP address, or a network like 10.0.0.0/8"} =
        Refused({http, #{trusted_proxies => [~"::1", {10, 0, 0, 1}]}}),
    {{http, trusted_proxies, ~"proxy.local"}, ~"an IP address, or a network like 10.0.0.0/8"} =
        Refused({http, #{trusted_proxies => [~"proxy.local"]}}),
    {{http, trusted_proxies, ~"0.0.0.0/0"}, ~"a prefix of 1 to 32 bits"} =
        Refused({http, #{trusted_proxies => [~"0.0.0.0/0"]}}),
    {{http, trusted_proxies, ~"10.0.0.1/8"},
     ~"10.0.0.0/8, whose address is zero after the prefix"} =
        Refused({http, #{trusted_proxies => [~"10.0.0.1/8"]}}),
    {{http, proxy_protocol}, ~"true or false"} =
        Refused({http, #{trusted_proxies => [~"::1"], proxy_protocol => v2}}),
    [{{Transport, proxy_protocol}, ~"trusted_proxies too: the header is read from these alone"} =
         Refused({Transport, #{proxy_protocol => true}}) || Transport <- [http, tcp]],
    [{{tcp, trusted_proxies}, ~"proxy_protocol => true, too"} =
         Refused({tcp, Options#{trusted_proxies => [~"::1"]}})
     || Options <- [#{}, #{proxy_protocol => false}]],
    {{stdio, trusted_proxies}, _} = Refused({stdio, #{trusted_proxies => [~"::1"]}}).
