-module(httpd_route_SUITE).
-moduledoc """
What the head of a request comes to (`erlmcp_httpd_route`), without a socket: where it comes from,
who asks, and what is asked for. The suites of the specification have the same over connections.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([methods_are_routed/1, hosts_are_checked/1, origins_are_checked/1,
         pages_have_their_headers/1, media_types_are_checked/1, lengths_are_checked/1,
         scopes_are_checked/1, senders_are_asked_for/1, sse_has_its_endpoints/1,
         metadata_is_public/1, addresses_are_those_of_urls/1,
         a_route_is_kept_where_nobody_is_asked/1]).

-define(PAGE, ~"https://app.example.com").

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    erlmcp_test_suite:cases(?MODULE).

%% The date of an answer is cowboy's.
init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, cowboy], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

options(Given) ->
    Options = #{erlmcp_route => erlmcp_httpd_route:listener(Given),
                erlmcp_trusted_proxies => erlmcp_trusted_proxies:new(Given, make_ref()),
                erlmcp => #{path => maps:get(path, Given, ~"/mcp"), message_bytes => 1000}},
    case erlmcp_listen_options:sse(Given) of
        none -> Options;
        Endpoints -> Options#{erlmcp_sse => Endpoints}
    end.

request(Changed) ->
    maps:merge(#{method => ~"POST", path => ~"/mcp", qs => <<>>, version => 'HTTP/1.1',
                 headers => #{~"content-type" => ~"application/json"}, host => ~"localhost",
                 scheme => ~"http", cert => undefined, peer => {{127, 0, 0, 1}, 50_000},
                 sock => {{127, 0, 0, 1}, 80}, has_body => true, body_length => 10}, Changed).

get_request(Headers) ->
    #{method => ~"GET", headers => Headers, has_body => false, body_length => 0}.

resolved(Changed, Given) ->
    erlmcp_httpd_route:resolve(request(Changed), options(Given)).

%% The status that a head is refused with, and the headers.
refused(Changed, Given) ->
    {refuse, Refusal, Headers} = resolved(Changed, Given),
    {erlmcp_refusal:status(Refusal), Headers}.

asks(Changed, Given) ->
    {serve, #{asks := Asks}} = resolved(Changed, Given),
    Asks.

with(Headers) ->
    #{headers => Headers#{~"content-type" => ~"application/json"}}.

methods_are_routed(_) ->
    {post, both, {post, both}} = asks(#{}, #{}),
    {get, ~"a"} = asks(get_request(#{~"mcp-session-id" => ~"a"}), #{}),
    {delete, ~"a"} = asks((get_request(#{~"mcp-session-id" => ~"a"}))#{method := ~"DELETE"}, #{}),
    [{Status, _} = refused(Changed, #{})
     || {Status, Changed} <- [{405, #{method => ~"PUT"}}, {405, #{method => ~"OPTIONS"}},
                              {405, #{method => ~"HEAD"}}, {405, get_request(#{})},
                              {400, (get_request(#{}))#{method := ~"DELETE"}},
                              {400, (get_request(#{}))#{has_body := true, body_length := 1}},
                              {404, #{path => ~"/other"}}]],
    {post, both, {announced, ~"tools/list", _}} =
        asks(with(#{~"mcp-protocol-version" => ~"2026-07-28", ~"mcp-method" => ~"tools/list"}),
             #{}).

%% The defence against DNS rebinding.
hosts_are_checked(_) ->
    [{post, _, _} = asks(#{host => Host}, #{})
     || Host <- [~"localhost", ~"127.0.0.1", ~"[::1]", ~"10.0.0.1"]],
    [{403, _} = refused(#{host => Host}, #{}) || Host <- [~"evil.example.com", <<>>]],
    Given = #{allowed_hosts => [~"mcp.example.com"]},
    {post, _, _} = asks(#{host => ~"mcp.example.com"}, Given),
    {403, _} = refused(#{host => ~"evil.example.com"}, Given),
    {post, _, _} = asks(#{host => ~"evil.example.com"}, #{allowed_hosts => any}).

origins_are_checked(_) ->
    From = fun(Origin) -> with(#{~"origin" => Origin}) end,
    [{post, _, _} = asks(From(Origin), #{})
     || Origin <- [~"http://localhost:3000", ~"http://127.0.0.1"]],
    [{403, _} = refused(From(Origin), #{})
     || Origin <- [?PAGE, ~"null", <<"http://", 255>>, ~""]],
    {post, _, _} = asks(From(?PAGE), #{allowed_origins => any}).

pages_have_their_headers(_) ->
    Given = #{allowed_origins => [?PAGE]},
    Origin = #{~"origin" => ?PAGE},
    {serve, #{extra := #{~"access-control-allow-origin" := ?PAGE}}} = resolved(with(Origin), Given),
    {415, #{~"access-control-allow-origin" := ?PAGE}} =
        refused(#{headers => Origin#{~"content-type" => ~"text/plain"}}, Given),
    Asks = Origin#{~"access-control-request-method" => ~"POST"},
    Preflight = (get_request(Asks))#{method := ~"OPTIONS"},
    {answer, [{response, 204, #{~"access-control-allow-origin" := ?PAGE,
                                ~"access-control-allow-methods" := ~"POST, GET, DELETE"}, <<>>},
              stop]} = resolved(Preflight, Given),
    %% A browser has no token then.
    {answer, _} = resolved(Preflight, Given#{authenticate => fun(_) -> {error, ~"no"} end}),
    {403, _} = refused(Preflight#{host => ~"evil.example.com"}, Given),
    {serve, #{extra := Nothing}} = resolved(#{}, Given),
    0 = map_size(Nothing).

media_types_are_checked(_) ->
    [{Accept, {post, Accepted, _}} = {Accept, asks(with(#{~"accept" => Accept}), #{})}
     || {Accept, Accepted} <- [{~"application/json", json}, {~"text/event-stream", stream},
                               {~"*/*", both}, {~"application/*, text/*", both}]],
    [{Status, _} = refused(#{headers => Headers}, #{})
     || {Status, Headers} <-
            [{415, #{}}, {415, #{~"content-type" => ~"text/plain"}},
             {415, #{~"content-type" => ~"application/json", ~"content-encoding" => ~"gzip"}},
             {406, #{~"content-type" => ~"application/json", ~"accept" => ~"text/html"}},
             {400, #{~"content-type" => ~"application/json", ~"accept" => ~"json"}}]],
    Json = #{~"mcp-session-id" => ~"a", ~"accept" => ~"application/json"},
    {406, _} = refused(get_request(Json), #{}).

%% Bounded refusal: at the limit and one more; without a length it is seen while it arrives.
lengths_are_checked(_) ->
    {post, _, _} = asks(#{body_length => 1000}, #{}),
    {413, _} = refused(#{body_length => 1001}, #{}),
    {post, _, _} = asks(#{body_length => undefined}, #{}).

scopes_are_checked(_) ->
    Given = #{scopes => [~"read"], implied_scopes => #{~"all" => [~"read"]},
              authenticate => fun(_) -> error(not_asked_here) end},
    Options = options(Given),
    {ask, Question} = erlmcp_httpd_route:resolve(request(#{}), Options),
    Identified = fun(Scopes) ->
        Identity = (erlmcp_auth:anonymous())#{principal := ada, scopes := Scopes},
        erlmcp_httpd_route:identified({ok, Identity}, Question, Options)
    end,
    [{serve, #{principal := ada}} = Identified(Scopes) || Scopes <- [[~"read"], [~"all"]]],
    {refuse, Refusal, #{~"www-authenticate" := Challenge}} = Identified([~"write"]),
    403 = erlmcp_refusal:status(Refusal),
    {_, _} = binary:match(iolist_to_binary(Challenge), ~"insufficient_scope").

%% Nothing of a request that is refused for its head is shown to whoever says who asks.
senders_are_asked_for(_) ->
    Options = options(#{authenticate => fun(_) -> error(not_asked_here) end}),
    {ask, Question} = erlmcp_httpd_route:resolve(request(#{}), Options),
    #{method := ~"POST", path := ~"/mcp", url := ~"http://127.0.0.1:80/mcp", tls := false} =
        erlmcp_httpd_route:question(Question, Options),
    {refuse, _, _} = erlmcp_httpd_route:resolve(request(#{host => ~"evil.example.com"}), Options),
    {refuse, _, _} = erlmcp_httpd_route:resolve(request(#{path => ~"/other"}), Options),
    Nobody = erlmcp_refusal:new(auth_invalid_credentials, ~"a token is needed"),
    {refuse, Nobody, #{~"www-authenticate" := _}} =
        erlmcp_httpd_route:identified({error, #{refusal => Nobody}}, Question, Options).

sse_has_its_endpoints(_) ->
    Given = #{sse => #{}},
    {sse, {open, ~"/messages"}} = asks((get_request(#{}))#{path => ~"/sse"}, Given),
    {sse, {message, ~"a"}} = asks(#{path => ~"/messages", qs => ~"sessionId=a"}, Given),
    {405, #{~"allow" := ~"GET"}} = refused(#{path => ~"/sse"}, Given),
    {405, #{~"allow" := ~"POST"}} = refused((get_request(#{}))#{path => ~"/messages"}, Given),
    {400, #{}} = refused(#{path => ~"/messages"}, Given),
    {404, _} = refused((get_request(#{}))#{path => ~"/sse"}, #{}),
    {post, _, _} = asks(#{}, Given).

metadata_is_public(_) ->
    Given = #{authenticate => fun(_) -> error(not_asked_here) end,
              protected_resource => #{authorization_servers => [~"https://as.example"]}},
    At = fun(Method) ->
        (get_request(#{~"origin" => ?PAGE}))#{method := Method,
                                      path => ~"/.well-known/oauth-protected-resource"}
    end,
    [{answer, [{response, Status, #{~"access-control-allow-origin" := ~"*"}, _}, stop]} =
         resolved(At(Method), Given)
     || {Status, Method} <- [{200, ~"GET"}, {200, ~"HEAD"}, {204, ~"OPTIONS"}, {405, ~"PUT"}]],
    {403, _} = refused((At(~"GET"))#{host => ~"evil.example.com"}, Given),
    {404, _} = refused(At(~"GET"), #{}).

%% A socket of IPv6 takes clients of IPv4, too, and gives their addresses as IPv6.
addresses_are_those_of_urls(_) ->
    Given = #{authenticate => fun(_) -> error(not_asked_here) end,
              protected_resource => #{authorization_servers => [~"https://as.example"]}},
    [begin
         Head = #{sock => {Ip, 80}, host => Host},
         {ask, Question} = erlmcp_httpd_route:resolve(request(Head), options(Given)),
         Url = <<"http://", Own/binary, "/mcp">>,
         #{url := Url} = erlmcp_httpd_route:question(Question, options(Given)),
         At = ~"/.well-known/oauth-protected-resource",
         {answer, [{response, 200, _, Body}, stop]} =
             resolved(maps:merge((get_request(#{}))#{path => At}, Head), Given),
         Resource = <<"http://", Shown/binary, "/mcp">>,
         #{~"resource" := Resource} = json:decode(iolist_to_binary(Body))
     end || {Ip, Host, Own, Shown} <- [
                {{127, 0, 0, 1}, ~"localhost", ~"127.0.0.1:80", ~"localhost:80"},
                {{0, 0, 0, 0, 0, 0, 0, 1}, ~"localhost", ~"[::1]:80", ~"localhost:80"},
                {{0, 0, 0, 0, 0, 16#ffff, 16#7f00, 1}, ~"localhost", ~"127.0.0.1:80",
                 ~"localhost:80"},
                {{0, 0, 0, 0, 0, 16#ffff, 16#c000, 16#201}, ~"192.0.2.1", ~"192.0.2.1:80",
                 ~"192.0.2.1:80"}]].

a_route_is_kept_where_nobody_is_asked(_) ->
    Kept = fun(Changed, Given) ->
        is_map_key(route, erlmcp_httpd_route:kept(request(Changed), options(Given)))
    end,
    true = Kept(#{}, #{}),
    false = Kept(#{}, #{authenticate => fun(_) -> {ok, ada} end}),
    false = Kept(get_request(#{~"mcp-session-id" => ~"a"}), #{}),
    false = Kept(#{headers => #{}}, #{}).
