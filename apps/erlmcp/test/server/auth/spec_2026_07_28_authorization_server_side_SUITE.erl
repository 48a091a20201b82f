-module(spec_2026_07_28_authorization_server_side_SUITE).
-moduledoc """
What a listener tells of who may enter, and asks of who does: its metadata, its challenges, scopes,
and what becomes of a stream whose token has served. Quotes are of specification 2026-07-28,
"Authorization", and of its page "Authorization Server Discovery".

How tokens are checked is in the suites of `bearer`; here a fun says who asks.
""".

-behaviour(erlmcp_page).

-compile(nowarn_missing_spec_documented).

-export([all/0, groups/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([metadata_is_public/1, metadata_of_a_resource_behind_a_proxy/1,
         metadata_of_the_sse_endpoint/1, no_metadata_without_an_issuer/1,
         only_its_paths_are_public/1]).
-export([a_challenge_names_the_metadata/1, a_bad_token_is_named/1,
         nothing_odd_is_in_a_challenge/1, octets_need_not_be_text/1]).
-export([scopes_of_a_tool/1, scopes_of_resources/1, scopes_of_prompts/1, scopes_of_completions/1,
         scopes_of_subscriptions/1, scopes_of_all_requests/1, broader_scopes/1,
         all_are_listed/1, every_request_has_its_own/1, handlers_know_scopes_and_claims/1,
         scopes_on_other_transports/1, scopes_over_http_sse/1, wrong_scopes/1]).
-export([others_do_not_wait/1, a_body_that_comes_meanwhile/1, nobody_says_in_time/1,
         a_process_that_dies/1, a_client_that_leaves/1]).
-export([a_subscription_ends_with_its_token/1, a_session_stream_ends_with_its_token/1,
         an_sse_stream_ends_with_its_token/1, a_call_does_not/1,
         a_stream_that_has_ended_leaves_no_timer/1]).
-export([wrong_options/1]).
-export([handle/2]).

-define(TIMEOUT, 60_000).
-define(PRM, ~"/.well-known/oauth-protected-resource").

all() ->
    [{group, metadata}, {group, challenges}, {group, scopes}, {group, waiting}, {group, expiry},
     wrong_options].

groups() ->
    [{metadata, [metadata_is_public, metadata_of_a_resource_behind_a_proxy,
                 metadata_of_the_sse_endpoint, no_metadata_without_an_issuer,
                 only_its_paths_are_public]},
     {challenges, [a_challenge_names_the_metadata, a_bad_token_is_named,
                   nothing_odd_is_in_a_challenge, octets_need_not_be_text]},
     {scopes, [scopes_of_a_tool, scopes_of_resources, scopes_of_prompts, scopes_of_completions,
               scopes_of_subscriptions, scopes_of_all_requests, broader_scopes, all_are_listed,
               every_request_has_its_own, handlers_know_scopes_and_claims,
               scopes_on_other_transports, scopes_over_http_sse, wrong_scopes]},
     {waiting, [others_do_not_wait, a_body_that_comes_meanwhile, nobody_says_in_time,
                a_process_that_dies, a_client_that_leaves]},
     {expiry, [a_subscription_ends_with_its_token, a_session_stream_ends_with_its_token,
               an_sse_stream_ends_with_its_token, a_call_does_not,
               a_stream_that_has_ended_leaves_no_timer]}].

suite() ->
    [{timetrap, {minutes, 4}}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, inets, gun], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

%% The server.

with_server(Listener, Fun) ->
    with_server(Listener, #{}, Fun).

with_server(Listener, Options, Fun) ->
    Server = erlmcp_test_http:start((definitions())#{
        listen => [{http, maps:merge(#{authenticate => fun by_token/1,
                                       protected_resource => #{authorization_servers =>
                                                                   [~"https://as.example"]}},
                                     Listener)}, {tcp, #{}}],
        limits => maps:get(limits, Options, #{})}),
    try
        Fun(Server)
    after
        erlmcp_test_http:stop(Server)
    end.

definitions() ->
    #{tools := Tools} = Shared = erlmcp_test_http:definitions(self()),
    Say = fun(_, #{scopes := Scopes} = Context) ->
        iolist_to_binary(io_lib:format("~0p ~0p", [Scopes, maps:get(claims, Context, none)]))
    end,
    Shared#{
        tools := [#{name => ~"free", handler => Say},
                  #{name => ~"write", scopes => [~"files:read", ~"files:write"], handler => Say}
                  | Tools],
        resources => [#{uri => ~"test://free", name => ~"free", handler => fun(_, _) -> ~"1" end},
                      #{uri => ~"test://kept", name => ~"kept", scopes => [~"files:read"],
                        handler => fun(_, _) -> ~"2" end}],
        resource_templates => [#{uri_template => ~"test://item/{id}", name => ~"item",
                                 scopes => [~"files:read"], complete => #{~"id" => [~"1"]},
                                 handler => fun(_, _) -> ~"3" end}],
        prompts => [#{name => ~"kept", scopes => [~"prompts"], handler => fun(_, _) -> ~"4" end}]}.

%% `Bearer NAME SCOPE,SCOPE`, whose token is good until a second of system time if there is a third.
by_token(#{headers := #{~"authorization" := <<"Bearer ", Token/binary>>}}) ->
    case binary:split(Token, ~"!", [global]) of
        [~"bad"] -> {error, <<"no \"such\" token: ", 195, 164>>};
        [Name] -> {ok, Name};
        [Name, Scopes] -> {ok, Name, #{scopes => scopes(Scopes), claims => #{~"sub" => Name}}};
        [Name, Scopes, Second] -> {ok, Name, #{scopes => scopes(Scopes),
                                               expires_at => binary_to_integer(Second)}}
    end;
by_token(_) ->
    {error, ~"a token is needed"}.

scopes(~"") -> [];
scopes(Scopes) -> binary:split(Scopes, ~",", [global]).

with(Token) ->
    #{headers => #{~"authorization" => <<"Bearer ", Token/binary>>}}.

soon() ->
    integer_to_binary(erlang:system_time(second) + 1).

%% A request without a body and with what it says of the listener alone.
get(#{url := Url}, Path, Headers) ->
    get(get, Url, Path, Headers).

get(Method, Url, Path, Headers) ->
    Target = uri_string:recompose((uri_string:parse(Url))#{path => Path}),
    {ok, {{_, Status, _}, Received, Body}} =
        httpc:request(Method, {binary_to_list(Target), Headers}, [{timeout, ?TIMEOUT}],
                      [{body_format, binary}]),
    {Status, maps:from_list(Received), Body}.

challenge(#{headers := #{~"www-authenticate" := Field}}) ->
    [#{scheme := ~"bearer", params := Parameters}] = erlmcp_challenge:parse(Field),
    Parameters.

%% Metadata.

%% "The Protected Resource Metadata document returned by the MCP server MUST include the
%% authorization_servers field containing at least one authorization server." "At the path of the
%% server's MCP endpoint" and "at the root".
metadata_is_public(_) ->
    with_server(#{scopes => [~"mcp"]}, fun(#{url := Url} = Server) ->
        [begin
             {200, #{"content-type" := "application/json", "access-control-allow-origin" := "*"},
              Body} = get(Server, Path, [{"origin", "https://elsewhere.example"}]),
             #{~"resource" := Url, ~"authorization_servers" := [~"https://as.example"],
               ~"scopes_supported" := [~"mcp"]} = json:decode(Body)
         end || Path <- [?PRM, <<?PRM/binary, "/mcp">>]],
        {200, #{"content-length" := Length}, <<>>} = get(head, Url, ?PRM, []),
        true = list_to_integer(Length) > 50,
        {204, #{"access-control-allow-methods" := "GET, HEAD, OPTIONS"}, _} =
            get(options, Url, ?PRM, []),
        {405, #{"allow" := "GET, HEAD, OPTIONS"}, _} = get(delete, Url, ?PRM, []),
        %% The loopback has several names, and a client takes its own alone.
        #{port := Port} = Server,
        Local = <<"http://localhost:", (integer_to_binary(Port))/binary, "/mcp">>,
        {200, _, Own} = get(get, Local, ?PRM, []),
        #{~"resource" := Local} = json:decode(Own)
    end).

metadata_of_a_resource_behind_a_proxy(_) ->
    Resource = ~"https://mcp.example.com/public/mcp",
    Fields = #{resource => Resource, authorization_servers => [~"https://as.example"],
               resource_name => ~"Files", scopes_supported => [~"files:read"]},
    with_server(#{protected_resource => Fields}, fun(Server) ->
        [begin
             {200, _, Body} = get(Server, Path, []),
             #{~"resource" := Resource, ~"resource_name" := ~"Files",
               ~"scopes_supported" := [~"files:read"]} = json:decode(Body)
         end || Path <- [?PRM, <<?PRM/binary, "/mcp">>, <<?PRM/binary, "/public/mcp">>]],
        #{status := 401} = Refused = erlmcp_test_http:call(Server, ~"tools/list", #{}),
        Metadata = <<"https://mcp.example.com", ?PRM/binary, "/public/mcp">>,
        #{~"resource_metadata" := Metadata} = challenge(Refused)
    end),
    %% RFC 9728, 3.1: "between the host component and the path and/or query components".
    WithQuery = <<Resource/binary, "?tenant=a">>,
    with_server(#{protected_resource => Fields#{resource := WithQuery}}, fun(Server) ->
        {200, _, Body} = get(Server, <<?PRM/binary, "/public/mcp">>, []),
        #{~"resource" := WithQuery} = json:decode(Body),
        #{status := 401} = Refused = erlmcp_test_http:call(Server, ~"tools/list", #{}),
        Metadata = <<"https://mcp.example.com", ?PRM/binary, "/public/mcp?tenant=a">>,
        #{~"resource_metadata" := Metadata} = challenge(Refused)
    end).

metadata_of_the_sse_endpoint(_) ->
    with_server(#{sse => #{}}, fun(Server) ->
        {200, _, _} = get(Server, <<?PRM/binary, "/sse">>, []),
        {404, _, _} = get(Server, <<?PRM/binary, "/messages">>, [])
    end).

no_metadata_without_an_issuer(_) ->
    with_server(#{protected_resource => #{resource_name => ~"Files"}}, fun(Server) ->
        {404, _, _} = get(Server, ?PRM, []),
        #{status := 401} = Refused = erlmcp_test_http:call(Server, ~"tools/list", #{}),
        false = is_map_key(~"resource_metadata", challenge(Refused))
    end).

only_its_paths_are_public(_) ->
    with_server(#{}, fun(#{url := Url} = Server) ->
        {401, _, _} = get(Server, ~"/mcp", []),
        {404, _, _} = get(Server, <<?PRM/binary, "/other">>, []),
        {403, _, _} = get(get, Url, ?PRM, [{"host", "attacker.example"}])
    end).

%% Challenges.

%% "MCP servers SHOULD include a scope parameter in the WWW-Authenticate header"; "under
%% resource_metadata when returning 401 Unauthorized responses".
a_challenge_names_the_metadata(_) ->
    with_server(#{scopes => [~"mcp", ~"more"]}, fun(Server) ->
        #{status := 401} = Refused = erlmcp_test_http:call(Server, ~"tools/list", #{}),
        #{~"resource_metadata" := Metadata, ~"scope" := ~"mcp more"} = Parameters =
            challenge(Refused),
        2 = map_size(Parameters),
        {200, _, _} = get(get, Metadata, maps:get(path, uri_string:parse(Metadata)), [])
    end).

%% "Invalid or expired tokens MUST receive a HTTP 401 response."
a_bad_token_is_named(_) ->
    with_server(#{}, fun(Server) ->
        Refused = erlmcp_test_http:call(Server, ~"tools/list", #{}, with(~"bad")),
        #{status := 401} = Refused,
        #{~"error" := ~"invalid_token", ~"resource_metadata" := _} = challenge(Refused)
    end).

%% RFC 9110, 5.5: "a recipient SHOULD treat other allowed octets in field content (i.e., obs-text)
%% as opaque data." A stranger must not be able to have each request logged as a crash.
octets_need_not_be_text(_) ->
    Tokens = [{static, [#{token => ~"t", principal => ada}]}],
    Listener = #{authenticate => {bearer, #{tokens => Tokens, dpop => optional}},
                 protected_resource => #{}},
    with_server(Listener, fun(Server) ->
        {Headers, Body} = erlmcp_test_http:message(~"tools/list", #{}, #{}),
        [begin
             Socket = erlmcp_test_http:connect(Server),
             ok = erlmcp_test_http:send(Socket, ~"POST", [{~"authorization", Field} | Headers],
                                        Body),
             {Field, #{status := Status}} = {Field, erlmcp_test_http:response(Socket)},
             ok = erlmcp_test_http:close(Socket)
         end || {Status, Field} <- [{401, <<255, " t">>}, {400, <<"Bearer ", 255>>},
                                    {400, <<"Bearer t", 255>>}, {400, <<"DPoP  ", 16#C3, 40, " ">>},
                                    {200, ~"BEARER  t"}, {400, ~"Bearer t t"}]]
    end).

%% RFC 6750, 3: "values for the error_description attribute MUST NOT include characters outside the
%% set %x20-21 / %x23-5B / %x5D-7E".
nothing_odd_is_in_a_challenge(_) ->
    with_server(#{}, fun(Server) ->
        Refused = erlmcp_test_http:call(Server, ~"tools/list", #{}, with(~"bad")),
        #{~"error_description" := ~"no ?such? token: ??"} = challenge(Refused)
    end).

%% Scopes.

%% "HTTP 403 Forbidden", "error=insufficient_scope", "scope", "resource_metadata"; "servers SHOULD
%% include all scopes required for the current operation in a single challenge". In sessions too.
scopes_of_a_tool(_) ->
    with_server(#{scopes => [~"mcp"]}, fun(Server) ->
        Good = with(~"ada!mcp,files:read,files:write"),
        Session = {session(Server, Good), ~"2025-11-25"},
        [begin
             Refused = erlmcp_test_http:call(Server, ~"tools/call", #{name => ~"write"},
                                             maps:merge(Era, with(~"ada!mcp,files:read"))),
             #{status := 403, messages := [#{~"id" := 1, ~"error" := Error}]} = Refused,
             #{~"code" := 1014, ~"data" := #{~"name" := ~"authz_forbidden",
                                             ~"scopes" := [~"files:read", ~"files:write"]}} = Error,
             #{~"error" := ~"insufficient_scope", ~"scope" := ~"mcp files:read files:write",
               ~"resource_metadata" := _, ~"error_description" := _} = challenge(Refused),
             #{status := 200, messages := [#{~"result" := #{}}]} =
                 erlmcp_test_http:call(Server, ~"tools/call", #{name => ~"write"},
                                       maps:merge(Era, Good)),
             #{status := 200} = erlmcp_test_http:call(Server, ~"tools/call", #{name => ~"free"},
                                                      maps:merge(Era, with(~"ada!mcp")))
         end || Era <- [#{}, #{session => Session}]]
    end).

session(Server, #{headers := Headers}) ->
    #{status := 200, headers := #{~"mcp-session-id" := Id}} =
        erlmcp_test_http:initialize(Server, ~"2025-11-25", Headers),
    Id.

both(Server, Fun) ->
    Token = with(~"ada!files:read"),
    Fun(#{}),
    Fun(#{session => {session(Server, Token), ~"2025-11-25"}}).

refused(Server, Method, Params, Era, Scope) ->
    Refused = erlmcp_test_http:call(Server, Method, Params, maps:merge(Era, with(~"ada!other"))),
    {Method, #{status := 403}} = {Method, Refused},
    #{~"scope" := Scope} = challenge(Refused).

taken(Server, Method, Params, Era, Token) ->
    #{status := 200, messages := [#{~"result" := Result}]} =
        erlmcp_test_http:call(Server, Method, Params, maps:merge(Era, with(Token))),
    Result.

scopes_of_resources(_) ->
    with_server(#{}, fun(Server) ->
        both(Server, fun(Era) ->
            [begin
                 refused(Server, ~"resources/read", #{uri => Uri}, Era, ~"files:read"),
                 taken(Server, ~"resources/read", #{uri => Uri}, Era, ~"ada!files:read")
             end || Uri <- [~"test://kept", ~"test://item/7"]],
            taken(Server, ~"resources/read", #{uri => ~"test://free"}, Era, ~"ada!")
        end)
    end).

scopes_of_prompts(_) ->
    with_server(#{}, fun(Server) ->
        both(Server, fun(Era) ->
            refused(Server, ~"prompts/get", #{name => ~"kept"}, Era, ~"prompts"),
            taken(Server, ~"prompts/get", #{name => ~"kept"}, Era, ~"ada!prompts")
        end)
    end).

scopes_of_completions(_) ->
    with_server(#{}, fun(Server) ->
        Params = #{ref => #{type => ~"ref/resource", uri => ~"test://item/{id}"},
                   argument => #{name => ~"id", value => ~""}},
        both(Server, fun(Era) ->
            refused(Server, ~"completion/complete", Params, Era, ~"files:read"),
            taken(Server, ~"completion/complete", Params, Era, ~"ada!files:read")
        end)
    end).

%% Who may not read a resource is not told when it changes.
scopes_of_subscriptions(_) ->
    with_server(#{}, fun(Server) ->
        Session = #{session => {session(Server, with(~"ada!")), ~"2025-11-25"}},
        refused(Server, ~"resources/subscribe", #{uri => ~"test://kept"}, Session, ~"files:read"),
        taken(Server, ~"resources/subscribe", #{uri => ~"test://kept"}, Session, ~"ada!files:read"),
        [begin
             {Socket, #{~"notifications" := Agreed}} = listen(Server, Token),
             ok = erlmcp_test_http:close(Socket)
         end || {Token, Agreed} <- [
             {~"ada!files:read", #{~"resourceSubscriptions" => [~"test://kept", ~"test://free"]}},
             {~"ada!other", #{~"resourceSubscriptions" => [~"test://free"]}}]]
    end).

listen(Server, Token) ->
    Socket = erlmcp_test_http:connect(Server),
    Filter = #{resourceSubscriptions => [~"test://kept", ~"test://free"]},
    {Headers, Body} = erlmcp_test_http:message(~"subscriptions/listen", #{notifications => Filter},
                                               with(Token)),
    ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
    {200, _} = erlmcp_test_http:head(Socket),
    {event, #{~"params" := Acknowledged}} = erlmcp_test_http:event(Socket),
    {Socket, Acknowledged}.

%% Before the body is read: what is asked for is not known then.
scopes_of_all_requests(_) ->
    with_server(#{scopes => [~"mcp"]}, fun(Server) ->
        Socket = erlmcp_test_http:connect(Server),
        ok = erlmcp_test_http:send(Socket, ~"POST", [{~"content-length", ~"1000"},
                                                     {~"authorization", ~"Bearer ada!other"}], ~""),
        #{status := 403} = Refused = erlmcp_test_http:response(Socket),
        #{~"error" := ~"insufficient_scope", ~"scope" := ~"mcp"} = challenge(Refused),
        ok = erlmcp_test_http:close(Socket),
        #{status := 200} = erlmcp_test_http:call(Server, ~"tools/list", #{}, with(~"ada!mcp")),
        %% What a fun does not limit may do all.
        #{status := 200} = erlmcp_test_http:call(Server, ~"tools/list", #{}, with(~"ada"))
    end).

%% "Servers MUST account for scope hierarchies, where a broader scope implies narrower ones".
broader_scopes(_) ->
    Implied = #{~"admin" => [~"files:write"], ~"files:write" => [~"files:read", ~"admin"]},
    with_server(#{implied_scopes => Implied}, fun(Server) ->
        [taken(Server, ~"tools/call", #{name => ~"write"}, #{}, Token)
         || Token <- [~"ada!admin", ~"ada!files:write"]],
        refused(Server, ~"tools/call", #{name => ~"write"}, #{}, ~"files:read files:write")
    end).

%% Who lacks a scope sees what there is, and can ask for more; `visible` hides.
all_are_listed(_) ->
    with_server(#{}, fun(Server) ->
        #{~"tools" := Tools} = taken(Server, ~"tools/list", #{}, #{}, ~"ada!"),
        [~"free", ~"write" | _] = [Name || #{~"name" := Name} <- Tools],
        [] = [Tool || #{~"scopes" := _} = Tool <- Tools]
    end).

%% A session is its principal's; what may be done in it is said by each token.
every_request_has_its_own(_) ->
    with_server(#{}, fun(Server) ->
        Era = #{session => {session(Server, with(~"ada!files:read,files:write")), ~"2025-11-25"}},
        refused(Server, ~"tools/call", #{name => ~"write"}, Era, ~"files:read files:write"),
        taken(Server, ~"tools/call", #{name => ~"write"}, Era, ~"ada!files:write,files:read")
    end).

handlers_know_scopes_and_claims(_) ->
    with_server(#{}, fun(Server) ->
        both(Server, fun(Era) ->
            [#{~"content" := [#{~"text" := Text}]} =
                 taken(Server, ~"tools/call", #{name => ~"free"}, Era, Token)
             || {Token, Text} <- [
                    {~"ada!a,b", ~"[<<\"a\">>,<<\"b\">>] #{<<\"sub\">> => <<\"ada\">>}"},
                    {~"ada", ~"all none"}]]
        end)
    end).

%% A principal that a listener gives has all scopes.
scopes_on_other_transports(_) ->
    with_server(#{}, fun(#{pid := Pid}) ->
        [Port] = [Port || #{transport := tcp, port := Port} <- erlmcp:listeners(Pid)],
        Socket = erlmcp_test_line:connect(Port),
        #{~"result" := #{~"content" := [#{~"text" := ~"all none"}]}} =
            erlmcp_test_line:ask_stateless(Socket, 1, ~"tools/call", #{name => ~"write"}),
        ok = erlmcp_test_line:close(Socket)
    end).

%% Its answers come on the stream, and so does the refusal.
scopes_over_http_sse(_) ->
    with_server(#{sse => #{}}, fun(Server) ->
        Headers = [{~"authorization", ~"Bearer ada!files:read"}],
        Client = erlmcp_test_sse:open(Server, #{headers => Headers}),
        _ = erlmcp_test_sse:initialize(Client, ~"2024-11-05"),
        #{~"error" := #{~"code" := 1014, ~"data" := #{~"scopes" := [_, _]}}} =
            erlmcp_test_sse:ask(Client, 2, ~"tools/call", #{name => ~"write"}),
        #{~"result" := #{}} = erlmcp_test_sse:ask(Client, 3, ~"tools/call", #{name => ~"free"}),
        ok = erlmcp_test_sse:close(Client)
    end).

wrong_scopes(_) ->
    [{error, {bad_definition, tool, ~"t", scopes, _}} =
         erlmcp:start_server(#{name => ~"test", version => ~"1", tools => [
             #{name => ~"t", scopes => Scopes, handler => fun(_, _) -> [] end}]})
     || Scopes <- [~"read", [read], [~""], [~"two words"], [~"a\"b"], [~"a" | ~"b"]]].

%% Those who have to ask first.

%% The connection's other streams go on while it is found out who asks.
others_do_not_wait(_) ->
    Test = self(),
    Ask = fun(#{headers := #{~"authorization" := ~"Bearer slow"}} = _) ->
                 Test ! {asked, self()},
                 receive {say, Answer} -> Answer end;
             (Request) ->
                 by_token(Request)
          end,
    with_server(#{authenticate => {process, Ask}}, fun(#{port := Port}) ->
        {ok, Connection} = gun:open("127.0.0.1", Port, #{protocols => [http2]}),
        {ok, http2} = gun:await_up(Connection, ?TIMEOUT),
        Slow = post(Connection, ~"slow"),
        Asked = receive {asked, Pid} -> Pid after ?TIMEOUT -> error(not_asked) end,
        {response, nofin, 200, _} = gun:await(Connection, post(Connection, ~"ada"), ?TIMEOUT),
        Asked ! {say, {ok, ~"slow"}},
        {response, nofin, 200, _} = gun:await(Connection, Slow, ?TIMEOUT),
        {ok, _} = gun:await_body(Connection, Slow, ?TIMEOUT),
        ok = gun:close(Connection)
    end).

post(Connection, Token) ->
    {Headers, Body} = erlmcp_test_http:message(~"tools/list", #{}, with(Token)),
    gun:post(Connection, "/mcp", Headers, Body).

%% What came of it is there when it is wanted, and forgotten when it is not.
a_body_that_comes_meanwhile(_) ->
    Test = self(),
    Ask = fun(Request) ->
        Test ! {asked, self()},
        receive go_on -> by_token(Request) end
    end,
    with_server(#{authenticate => {process, Ask}}, fun(Server) ->
        Socket = erlmcp_test_http:connect(Server),
        [begin
             {Headers, Body} = erlmcp_test_http:message(
                 ~"tools/call",
                 #{name => ~"echo", arguments => #{text => binary:copy(~"x", Size)}}, with(Token)),
             ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
             receive {asked, Pid} -> Pid ! go_on after ?TIMEOUT -> error(not_asked) end,
             {Status, #{status := Status}} = {Status, erlmcp_test_http:response(Socket)}
         end || {Status, Token, Size} <- [{200, ~"ada", 10}, {401, ~"bad", 10},
                                          {200, ~"ada", 300_000}, {401, ~"bad", 300_000},
                                          {200, ~"ada", 10}]],
        ok = erlmcp_test_http:close(Socket)
    end).

nobody_says_in_time(_) ->
    Test = self(),
    Ask = fun(_) -> Test ! {asked, self()}, receive never -> ok end end,
    with_server(#{authenticate => {process, Ask}}, #{limits => #{authenticate_timeout_ms => 1000}},
                fun(Server) ->
        #{status := 503, headers := #{~"retry-after" := ~"1"}, messages := [#{~"error" := Error}]} =
            erlmcp_test_http:call(Server, ~"tools/list", #{}, with(~"ada")),
        #{~"code" := 1080, ~"data" := #{~"limit" := 1000}} = Error,
        killed = receive {asked, Pid} -> ended(Pid) after ?TIMEOUT -> error(not_asked) end
    end).

ended(Pid) ->
    Monitor = monitor(process, Pid),
    receive
        {'DOWN', Monitor, process, Pid, noproc} -> killed;
        {'DOWN', Monitor, process, Pid, Reason} -> Reason
    after ?TIMEOUT ->
        error(still_alive)
    end.

a_process_that_dies(_) ->
    Ask = fun(_) -> exit(self(), kill), receive never -> ok end end,
    with_server(#{authenticate => {process, Ask}}, fun(Server) ->
        #{status := 500, messages := [#{~"error" := #{~"data" := #{~"incident" := _}}}]} =
            erlmcp_test_http:call(Server, ~"tools/list", #{}, with(~"ada"))
    end).

%% Nobody is asked for nobody.
a_client_that_leaves(_) ->
    Test = self(),
    Ask = fun(_) -> Test ! {asked, self()}, receive never -> ok end end,
    with_server(#{authenticate => {process, Ask}}, fun(Server) ->
        Socket = erlmcp_test_http:connect(Server),
        {Headers, Body} = erlmcp_test_http:message(~"tools/list", #{}, with(~"ada")),
        ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
        Asked = receive {asked, Pid} -> Pid after ?TIMEOUT -> error(not_asked) end,
        ok = erlmcp_test_http:close(Socket),
        _ = ended(Asked)
    end).

%% What is open ends with its token.

a_subscription_ends_with_its_token(_) ->
    with_server(#{}, fun(Server) ->
        {Socket, _} = listen(Server, <<"ada!files:read!", (soon())/binary>>),
        [{_, #{~"method" := ~"notifications/cancelled"}}, {_, #{~"result" := _}}] =
            erlmcp_test_http:events(erlmcp_test_http:chunk(Socket)),
        fin = erlmcp_test_http:event(Socket),
        ok = erlmcp_test_http:close(Socket)
    end).

%% And the session stays: its client comes back with another token.
a_session_stream_ends_with_its_token(_) ->
    with_server(#{}, fun(Server) ->
        Session = {session(Server, with(~"ada!")), ~"2025-11-25"},
        Get = fun(Token) ->
            erlmcp_test_http:get_stream(Server, Session,
                                        [{~"accept", ~"text/event-stream"},
                                         {~"authorization", <<"Bearer ", Token/binary>>}])
        end,
        {Socket, {200, _}} = Get(<<"ada!!", (soon())/binary>>),
        fin = erlmcp_test_http:event(Socket),
        ok = erlmcp_test_http:close(Socket),
        {Other, {200, _}} = Get(~"ada!"),
        ok = erlmcp_test_http:close(Other)
    end).

an_sse_stream_ends_with_its_token(_) ->
    with_server(#{sse => #{}}, fun(#{port := Port}) ->
        {ok, Connection} = gun:open("127.0.0.1", Port, #{protocols => [http]}),
        {ok, http} = gun:await_up(Connection, ?TIMEOUT),
        Stream = gun:get(Connection, "/sse", [{~"accept", ~"text/event-stream"},
                                              {~"authorization",
                                               <<"Bearer ada!!", (soon())/binary>>}]),
        {response, nofin, 200, _} = gun:await(Connection, Stream, ?TIMEOUT),
        {ok, <<"event: endpoint", _/binary>>} = gun:await_body(Connection, Stream, ?TIMEOUT),
        ok = gun:close(Connection)
    end).

%% It was allowed when it began.
a_call_does_not(_) ->
    with_server(#{}, fun(Server) ->
        Socket = erlmcp_test_http:connect(Server),
        End = erlang:system_time(second) + 3,
        {Headers, Body} = erlmcp_test_http:message(
            ~"tools/call", #{name => ~"wait"}, with(<<"ada!!", (integer_to_binary(End))/binary>>)),
        ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
        {Call, _} = erlmcp_test_http:running(),
        ok = expired(End),
        ok = erlmcp_test_http:finish(Call, ~"done"),
        #{status := 200} = erlmcp_test_http:response(Socket),
        ok = erlmcp_test_http:close(Socket)
    end).

expired(End) ->
    case erlang:system_time(second) > End of
        true -> ok;
        false -> receive after 50 -> expired(End) end
    end.

%% A connection may have any number of streams, and a token be good for days.
a_stream_that_has_ended_leaves_no_timer(_) ->
    Pages = #{~"/page" => {?MODULE, [], #{authenticate => true}}},
    with_server(#{sse => #{}, pages => Pages}, fun(#{port := Port} = Server) ->
        Id = session(Server, with(~"ada!")),
        {ok, Connection} = gun:open("127.0.0.1", Port, #{protocols => [http2]}),
        {ok, http2} = gun:await_up(Connection, ?TIMEOUT),
        Now = erlang:system_time(second),
        First = <<"Bearer ada!!", (integer_to_binary(Now + 5))/binary>>,
        Second = <<"Bearer ada!!", (integer_to_binary(Now + 6))/binary>>,
        Get = fun(Path, Headers) ->
            Stream = gun:get(Connection, Path, [{~"accept", ~"text/event-stream"},
                                                {~"authorization", First} | Headers]),
            {response, nofin, 200, _} = gun:await(Connection, Stream, ?TIMEOUT),
            Stream
        end,
        Listen = fun(Authorization) ->
            {Headers, Body} = erlmcp_test_http:message(
                ~"subscriptions/listen", #{notifications => #{toolsListChanged => true}},
                #{headers => #{~"authorization" => Authorization}}),
            Stream = gun:post(Connection, "/mcp", Headers, Body),
            {response, nofin, 200, _} = gun:await(Connection, Stream, ?TIMEOUT),
            Stream
        end,
        Listening = Listen(First),
        #{socket := Socket} = gun:info(Connection),
        {connected, Pid} = erlang:port_info(erlmcp_test_http:other_side(Socket), connected),
        1 = erlang:trace(Pid, true, ['receive']),
        [ok = gun:cancel(Connection, Stream)
         || Stream <- [Listening, Get(~"/sse", []), Get(~"/page", []),
                       Get(~"/mcp", [{~"mcp-session-id", Id}])]],
        {ok, _} = gun:await_body(Connection, Listen(Second), ?TIMEOUT),
        Delivered = erlang:trace_delivered(Pid),
        receive {trace_delivered, Pid, Delivered} -> ok end,
        [_] = expiries(Pid),
        ok = gun:close(Connection)
    end).

expiries(Pid) ->
    receive
        {trace, Pid, 'receive', {_, {identity, expired}} = Message} -> [Message | expiries(Pid)];
        {trace, Pid, 'receive', _} -> expiries(Pid)
    after 0 ->
        []
    end.

handle(_, _) ->
    {stream, #{}, fun(Send) ->
        ok = Send(~"a"),
        receive never -> ok end
    end}.

wrong_options(_) ->
    [{error, {bad_option, Key, _}} =
         erlmcp:start_server(#{name => ~"test", version => ~"1", listen => [{http, Options}]})
     || {Key, Options} <- [
         {{http, scopes}, #{scopes => [~"a b"]}},
         {{http, implied_scopes}, #{implied_scopes => #{~"a" => ~"b"}}},
         {{http, implied_scopes}, #{implied_scopes => []}},
         {{http, authenticate}, #{authenticate => {process, fun() -> ok end}}},
         {{http, authenticate, principal}, #{authenticate => {certificate, #{principal => cn}}}},
         {{http, protected_resource}, #{protected_resource => []}},
         {{http, protected_resource, resource},
          #{protected_resource => #{resource => ~"mcp.example.com"}}},
         {{http, protected_resource, resource},
          #{protected_resource => #{resource => ~"https://mcp.example.com#a"}}},
         {{http, protected_resource, authorization_servers},
          #{protected_resource => #{authorization_servers => []}}},
         {{http, protected_resource, jwks_uri},
          #{protected_resource => #{jwks_uri => ~"https://a.example"}}}
     ]].
