-module(outbound_requests_SUITE).
-moduledoc """
The requests of the authorization flow: where they may go, and that no answer is waited for, read or
followed without a bound.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([only_https_is_called/1, plain_http_calls_its_own_kind/1]).
-export([a_distant_server_leads_nowhere/1]).
-export([redirects_within_the_origin/1, redirects_to_elsewhere/1, a_post_is_not_redirected/1]).
-export([a_body_of_the_most_bytes/1, a_body_without_an_end/1, a_body_with_trailers/1,
         a_body_that_is_no_json/1,
         a_head_without_an_end/1, endless_heads/1]).
-export([silence_has_an_end/1, a_dripping_body_has_an_end/1, nobody_listens/1]).
-export([a_dead_address_leaves_time_for_another/1]).
-export([a_certificate_is_verified/1]).
-export([which_urls_belong_together/1, queries/1, scopes/1]).

-import(erlmcp_test_suite, [peer/1]).

-define(BODY_BYTES, 1_048_576).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    erlmcp_test_suite:cases(?MODULE).

init_per_suite(Config) ->
    erlmcp_test_applications:start([gun, jose, cowboy, inets], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    [{peer, erlmcp_test_oauth:start()} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_oauth:stop(peer(Config)).

settings() -> settings(10_000).

settings(Ms) ->
    #{deadline => erlang:monotonic_time(millisecond) + Ms, plain => [loopback], tls => []}.

get(Peer, Path) -> get(Peer, Path, settings()).

get(Peer, Path, Settings) ->
    erlmcp_fetch:get_json(erlmcp_test_oauth:url(Peer, Path), Settings).

only_https_is_called(Config) ->
    Peer = peer(Config),
    Strict = (settings())#{plain := []},
    Url = erlmcp_test_oauth:url(Peer),
    {error, {url_not_allowed, Url}} = erlmcp_fetch:get_json(Url, Strict),
    lists:foreach(fun(Bad) ->
        {error, {url_not_allowed, Bad}} = erlmcp_fetch:get_json(Bad, settings())
    end, [~"http://intranet.example.com/", ~"file:///etc/passwd", ~"gopher://localhost/", ~"/mcp",
          ~"http://user@localhost/", ~"http://127.0.0.1.example.com/", ~"javascript:alert(1)",
          ~"http://localhost:0/", ~"http://localhost:70000/", ~"http://local host/", ~""]),
    [] = erlmcp_test_oauth:asked(Peer).

%% A server on plain http is one on this machine, or one of a test.
plain_http_calls_its_own_kind(_) ->
    [loopback] = erlmcp_oauth_url:plain_hosts(~"http://localhost:8080/mcp"),
    [loopback] = erlmcp_oauth_url:plain_hosts(~"http://127.0.0.1/mcp"),
    [~"mcp.test"] = Distant = erlmcp_oauth_url:plain_hosts(~"http://mcp.test/mcp"),
    false = erlmcp_oauth_url:allowed(~"http://127.0.0.1:6379/", Distant),
    false = erlmcp_oauth_url:allowed(~"http://localhost/", Distant),
    Plain = [loopback | Distant],
    [] = erlmcp_oauth_url:plain_hosts(~"https://localhost/mcp"),
    [true, true, true, true, false, false] =
        [erlmcp_oauth_url:allowed(Url, Plain)
         || Url <- [~"http://mcp.test:81/x", ~"http://127.0.0.2/", ~"http://[::1]:80/",
                    ~"https://elsewhere.example.com/", ~"http://10.0.0.1/",
                    ~"http://elsewhere.example.com/"]].

%% Metadata of a server on https names a listener on this machine.
a_distant_server_leads_nowhere(Config) ->
    Inside = peer(Config),
    {Certificate, Roots} = certificate(),
    Peer = erlmcp_test_oauth:start(#{ssl => Certificate}),
    erlmcp_test_oauth:change(Peer, ~"/mcp", {401, #{~"www-authenticate" => ~"Bearer"}, ~""}),
    Options = erlmcp_test_oauth:logged_in(#{tls => Roots}),
    Outcome = fun(Challenge) ->
        {ok, Pid} = erlmcp_authorizer:start_link(Options, erlmcp_test_oauth:url(Peer)),
        erlmcp_authorizer:challenged(erlmcp_authorizer:handle(Pid), [],
                                     {401, #{~"www-authenticate" => iolist_to_binary(Challenge)}},
                                     none, erlmcp_test_oauth:deadline())
    end,
    Url = erlmcp_test_oauth:url(Inside, ~""),
    {error, {url_not_allowed, Url}} = Outcome([~"Bearer resource_metadata=\"", Url, $"]),
    erlmcp_test_oauth:resource(Peer, #{~"authorization_servers" => [Url]}),
    {error, {url_not_allowed, Url}} = Outcome(~"Bearer"),
    erlmcp_test_oauth:resource(Peer, #{}),
    lists:foreach(fun(Name) ->
        erlmcp_test_oauth:metadata(Peer, #{Name => Url}),
        {error, {url_not_allowed, Url}} = Outcome(~"Bearer")
    end, [~"registration_endpoint", ~"authorization_endpoint", ~"token_endpoint"]),
    [] = erlmcp_test_oauth:asked(Inside),
    erlmcp_test_oauth:stop(Peer).

redirect(Peer, Path, Location) ->
    erlmcp_test_oauth:change(Peer, Path, {302, #{~"location" => Location}, ~""}).

redirects_within_the_origin(Config) ->
    Peer = peer(Config),
    erlmcp_test_oauth:change(Peer, ~"/3", erlmcp_test_oauth:json(200, #{~"here" => true})),
    redirect(Peer, ~"/2", ~"/3"),
    redirect(Peer, ~"/1", erlmcp_test_oauth:url(Peer, ~"/2")),
    redirect(Peer, ~"/a/0", ~"../1"),
    {ok, #{status := 200, json := {ok, #{~"here" := true}}}} = get(Peer, ~"/a/0"),
    redirect(Peer, ~"/a/more", ~"0"),
    Last = erlmcp_test_oauth:url(Peer, ~"/3"),
    {error, {redirect, Last}} = get(Peer, ~"/a/more"),
    redirect(Peer, ~"/loop", ~"/loop"),
    {error, {redirect, _}} = get(Peer, ~"/loop"),
    4 = length(erlmcp_test_oauth:asked(Peer, ~"/loop")).

redirects_to_elsewhere(Config) ->
    Peer = peer(Config),
    Other = erlmcp_test_oauth:start(),
    lists:foreach(fun(Location) ->
        redirect(Peer, ~"/away", Location),
        {error, {redirect, Location}} = get(Peer, ~"/away")
    end, [erlmcp_test_oauth:url(Other, ~"/mcp"), ~"https://evil.example.com/",
          ~"file:///etc/passwd"]),
    [] = erlmcp_test_oauth:asked(Other),
    erlmcp_test_oauth:stop(Other).

a_post_is_not_redirected(Config) ->
    Peer = peer(Config),
    Target = erlmcp_test_oauth:url(Peer, ~"/other"),
    erlmcp_test_oauth:change(Peer, ~"/token", {307, #{~"location" => ~"/other"}, ~""}),
    {error, {redirect, Target}} =
        erlmcp_fetch:post_form(erlmcp_test_oauth:url(Peer, ~"/token"), [], [{~"code", ~"secret"}],
                               settings()),
    [] = erlmcp_test_oauth:asked(Peer, ~"/other").

a_body_of_the_most_bytes(Config) ->
    Peer = peer(Config),
    Body = fun(Bytes) -> <<$", (binary:copy(~"x", Bytes - 2))/binary, $">> end,
    Answer = fun(Bytes) -> {200, #{~"content-type" => ~"application/json"}, Body(Bytes)} end,
    erlmcp_test_oauth:change(Peer, ~"/most", Answer(?BODY_BYTES)),
    {ok, #{json := {ok, _}}} = get(Peer, ~"/most"),
    erlmcp_test_oauth:change(Peer, ~"/more", Answer(?BODY_BYTES + 1)),
    {error, {too_large, ?BODY_BYTES}} = get(Peer, ~"/more").

%% A peer that sends these bytes to whoever connects, and goes on with a fun.
raw(Bytes, Then) ->
    {ok, Listener} = gen_tcp:listen(0, [binary, {active, false}, {ip, {127, 0, 0, 1}}]),
    {ok, Port} = inet:port(Listener),
    _ = spawn_link(fun() ->
        {ok, Socket} = gen_tcp:accept(Listener),
        {ok, _} = gen_tcp:recv(Socket, 0),
        _ = gen_tcp:send(Socket, Bytes),
        Then(Socket)
    end),
    <<"http://127.0.0.1:", (integer_to_binary(Port))/binary, "/">>.

-define(ENDLESS, ~"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n").

a_body_without_an_end(_) ->
    Url = raw(?ENDLESS, fun(Socket) -> flood(Socket, binary:copy(~" ", 65536)) end),
    {error, {too_large, ?BODY_BYTES}} = erlmcp_fetch:get_json(Url, settings()).

%% The fields after the last chunk (RFC 9112, 7.1.2) say nothing here.
a_body_with_trailers(_) ->
    Url = raw([~"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n",
               ~"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx: y\r\n\r\n"],
              fun(Socket) -> gen_tcp:recv(Socket, 0) end),
    {ok, #{status := 200, json := {ok, #{}}}} = erlmcp_fetch:get_json(Url, settings()).

%% More than 100,000 bytes of one are not read.
a_head_without_an_end(_) ->
    Field = iolist_to_binary([~"x: ", binary:copy(~"y", 1000), ~"\r\n"]),
    Url = raw(~"HTTP/1.1 200 OK\r\n", fun(Socket) -> flood(Socket, binary:copy(Field, 64)) end),
    {error, {closed, connection_error}} = erlmcp_fetch:get_json(Url, settings(60_000)).

%% Each of them is complete, and none is the answer.
endless_heads(_) ->
    Early = binary:copy(~"HTTP/1.1 103 Early Hints\r\nx: y\r\n\r\n", 1000),
    Url = raw(~"", fun(Socket) -> flood(Socket, Early) end),
    {error, timeout} = erlmcp_fetch:get_json(Url, settings(500)),
    {message_queue_len, 0} = process_info(self(), message_queue_len).

flood(Socket, Bytes) ->
    case gen_tcp:send(Socket, Bytes) of
        ok -> flood(Socket, Bytes);
        {error, _} -> ok
    end.

a_body_that_is_no_json(Config) ->
    Peer = peer(Config),
    lists:foreach(fun({Type, Body}) ->
        erlmcp_test_oauth:change(Peer, ~"/body", {200, #{~"content-type" => Type}, Body}),
        {ok, #{status := 200, json := none}} = get(Peer, ~"/body")
    end, [{~"text/html", ~"{}"}, {~"text/plain", ~"{}"}, {~"application/json", ~"{"},
          {~"application/jsonp", ~"{}"}, {<<255>>, ~"{}"}, {~"application/json", ~"{} {}"},
          {~"application/json", binary:copy(~"[", 100)}]),
    lists:foreach(fun(Type) ->
        erlmcp_test_oauth:change(Peer, ~"/body", {200, #{~"content-type" => Type}, ~"{}"}),
        {ok, #{json := {ok, #{}}}} = get(Peer, ~"/body")
    end, [~"application/json", ~"application/json; charset=utf-8", ~"Application/JSON",
          ~"application/oauth-metadata+json"]).

within(Most, Fun) ->
    Before = erlang:monotonic_time(millisecond),
    Result = Fun(),
    true = erlang:monotonic_time(millisecond) - Before < Most,
    Result.

silence_has_an_end(Config) ->
    Peer = peer(Config),
    erlmcp_test_oauth:change(Peer, ~"/hang", hang),
    {error, timeout} = within(20_000, fun() -> get(Peer, ~"/hang", settings(200)) end).

a_dripping_body_has_an_end(_) ->
    Url = raw(?ENDLESS, fun drip/1),
    {error, timeout} = within(20_000, fun() -> erlmcp_fetch:get_json(Url, settings(300)) end).

drip(Socket) ->
    case gen_tcp:recv(Socket, 0, 20) of
        {error, timeout} ->
            _ = gen_tcp:send(Socket, ~" "),
            drip(Socket);
        _ ->
            ok
    end.

nobody_listens(_) ->
    Url = <<"http://127.0.0.1:", (integer_to_binary(erlmcp_test_port:unused()))/binary, "/">>,
    {error, {connect, econnrefused}} = erlmcp_fetch:get_json(Url, settings()),
    Closing = raw(~"", fun gen_tcp:close/1),
    {error, {closed, _}} = erlmcp_fetch:get_json(Closing, settings()),
    %% Nothing of gun's is left in the mailbox of who asked.
    {messages, []} = process_info(self(), messages).

%% The first address of the name takes connections and says nothing on them.
a_dead_address_leaves_time_for_another(_) ->
    Lookup = inet_db:res_option(lookup),
    ok = inet_db:set_lookup([file | Lookup -- [file]]),
    {Dead, Alive} = {{127, 0, 0, 2}, {127, 0, 0, 3}},
    named(["two.test"], [Alive, Dead]),
    {ok, [First, Second]} = inet:getaddrs("two.test", inet),
    {Certificate, Roots} = certificate("two.test"),
    Peer = erlmcp_test_oauth:start(#{ssl => [{ip, Second} | Certificate]}),
    erlmcp_test_oauth:change(Peer, ~"/x", erlmcp_test_oauth:json(200, #{})),
    Url = binary:replace(erlmcp_test_oauth:url(Peer, ~"/x"), ~"localhost", ~"two.test"),
    #{port := Port} = uri_string:parse(Url),
    {ok, Silent} = gen_tcp:listen(Port, [{ip, First}]),
    {ok, #{status := 200}} = erlmcp_fetch:get_json(Url, (settings(8_000))#{tls := Roots}),
    [_] = erlmcp_test_oauth:asked(Peer),
    erlmcp_test_oauth:stop(Peer),
    %% Where there is no other, there is no answer in time.
    Third = {127, 0, 0, 4},
    {ok, Mute} = gen_tcp:listen(Port, [{ip, Third}]),
    unnamed([Dead, Alive]),
    named(["two.test"], [First, Third]),
    {error, timeout} = erlmcp_fetch:get_json(Url, (settings(400))#{tls := Roots}),
    {messages, []} = process_info(self(), messages),
    [ok = gen_tcp:close(Socket) || Socket <- [Silent, Mute]],
    unnamed([First, Third]),
    ok = inet_db:set_lookup(Lookup).

named(Names, Addresses) ->
    [ok = inet_db:add_host(Address, Names) || Address <- Addresses].

unnamed(Addresses) ->
    [inet_db:del_host(Address) || Address <- Addresses].

certificate() -> certificate("localhost").

certificate(Name) ->
    Key = [{digest, sha256}, {key, {namedCurve, secp256r1}}],
    San = {extensions, [{'Extension', {2, 5, 29, 17}, false, [{dNSName, Name}]}]},
    #{server_config := Server, client_config := Client} = public_key:pkix_test_data(#{
        server_chain => #{root => Key, intermediates => [], peer => [San | Key]},
        client_chain => #{root => Key, intermediates => [], peer => Key}}),
    {Server, [lists:keyfind(cacerts, 1, Client)]}.

a_certificate_is_verified(_) ->
    {Certificate, Roots} = certificate(),
    Peer = erlmcp_test_oauth:start(#{ssl => Certificate}),
    erlmcp_test_oauth:change(Peer, ~"/x", erlmcp_test_oauth:json(200, #{})),
    {ok, #{status := 200}} = get(Peer, ~"/x", (settings())#{tls := Roots}),
    %% Neither signed by whom we trust, nor for this host.
    {error, {connect, {tls_alert, unknown_ca}}} = get(Peer, ~"/x"),
    Address = binary:replace(erlmcp_test_oauth:url(Peer, ~"/x"), ~"localhost", ~"127.0.0.1"),
    {error, {connect, {tls_alert, bad_certificate}}} =
        erlmcp_fetch:get_json(Address, (settings())#{tls := Roots}),
    [_] = erlmcp_test_oauth:asked(Peer),
    erlmcp_test_oauth:stop(Peer).

which_urls_belong_together(_) ->
    Within = fun erlmcp_oauth_url:within/2,
    [true, true, true, true, true, true] =
        [Within(Url, Resource)
         || {Url, Resource} <- [{~"https://a.example/mcp", ~"https://a.example/mcp"},
                                {~"https://a.example/mcp", ~"https://a.example"},
                                {~"https://a.example/mcp", ~"HTTPS://A.example:443/"},
                                {~"https://a.example/x/mcp", ~"https://a.example/x"},
                                {~"https://a.example/mcp?q=1", ~"https://a.example/mcp"},
                                {~"https://a.example/mcp?q=1", ~"https://a.example/mcp?q=1"}]],
    [false, false, false, false, false, false] =
        [Within(Url, Resource)
         || {Url, Resource} <- [{~"https://a.example/mcp", ~"http://a.example/mcp"},
                                {~"https://a.example/mcp", ~"https://a.example:8443/mcp"},
                                {~"https://a.example/mcp2", ~"https://a.example/mcp"},
                                {~"https://a.example/x/../y", ~"https://a.example/x"},
                                {~"https://a.example/mcp", ~"https://a.example/mcp?q=1"},
                                {~"https://a.example/mcp", ~"https://b.example/mcp"}]],
    {ok, ~"https://a.example"} = erlmcp_oauth_url:canonical(~"HTTPS://A.Example/"),
    {ok, ~"https://a.example/Path/"} = erlmcp_oauth_url:canonical(~"https://a.example/Path/").

queries(_) ->
    ~"https://a.example/x?a=1&b=c+%26d" =
        erlmcp_oauth_url:with_query(~"https://a.example/x?a=1", [{~"b", ~"c &d"}]),
    {ok, #{~"a" := ~"1 2", ~"b" := ~"&"}} =
        erlmcp_oauth_url:query(~"http://localhost:9/cb?a=1+2&b=%26"),
    [{error, invalid_url} = erlmcp_oauth_url:query(Url)
     || Url <- [~"http://localhost:9/cb?a=1&a=2", ~"cb?a=1", ~"http://localhost:9/cb?a=%26%23",
                <<"http://localhost:9/cb?", (binary:copy(~"a&", 3000))/binary>>]].

scopes(_) ->
    [~"a", ~"b:c"] = erlmcp_oauth_scope:parse(<<" a  b:c a \"x d\\e f", 233, " ">>) -- [~"d\\e"],
    {ok, [~"a", ~"b"]} = erlmcp_oauth_scope:more([~"a"], [~"b", ~"a"], [~"c"]),
    {ok, [~"a", ~"c"]} = erlmcp_oauth_scope:more([~"a"], [], [~"c"]),
    none = erlmcp_oauth_scope:more([~"a"], [~"a"], [~"c"]),
    none = erlmcp_oauth_scope:more([~"a"], [], none).
