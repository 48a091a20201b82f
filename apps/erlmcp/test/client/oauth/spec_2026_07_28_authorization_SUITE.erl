-module(spec_2026_07_28_authorization_SUITE).
-moduledoc """
The client's part of the pages "Authorization", "Authorization Server Discovery", "Client
Registration" and "Security Considerations" of 2026-07-28, against a server and an authorization
server on real sockets. Each case quotes what it proves.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([the_challenge_names_the_metadata/1, the_well_known_paths_are_tried_in_order/1]).
-export([a_resource_of_another_server_is_refused/1, a_resource_above_the_server_is_taken/1]).
-export([the_query_of_the_server_stays/1, no_authorization_server_is_an_error/1]).
-export([server_metadata_is_tried_in_order/1, server_metadata_without_a_path/1]).
-export([another_issuer_in_the_metadata_is_refused/1, a_page_of_html_is_no_metadata/1]).
-export([a_server_of_2025_03_26_is_its_own_authorization_server/1]).
-export([the_default_endpoints_of_2025_03_26/1]).
-export([pkce_is_sent_and_verified/1, each_login_has_a_new_verifier/1]).
-export([without_s256_nothing_is_asked/1]).
-export([the_resource_is_sent_byte_for_byte/1]).
-export([scopes_of_the_challenge_come_first/1, scopes_of_the_metadata_come_second/1]).
-export([no_scopes_omit_the_parameter/1, scopes_of_the_options/1]).
-export([offline_access_where_it_is_offered/1, offline_access_alone_is_not_asked/1]).
-export([iss_advertised_and_right/1, iss_advertised_and_missing/1, iss_advertised_and_wrong/1]).
-export([iss_not_advertised_and_missing/1, iss_not_advertised_and_wrong/1]).
-export([iss_is_not_normalised/1, an_error_with_a_wrong_iss_is_not_shown/1]).
-export([another_state_is_refused/1, a_refusal_is_named/1]).
-export([dynamic_registration_has_its_fields/1, a_refused_registration_is_named/1]).
-export([a_metadata_document_comes_before_registration/1, pre_registered_comes_first/1]).
-export([no_way_to_register_is_an_error/1]).
-export([an_issuer_that_was_set_is_asked/1]).
-export([credentials_stay_with_their_issuer/1, the_first_issuer_counts_without_a_named_one/1]).
-export([another_authorization_server_gets_a_new_registration/1]).
-export([the_token_is_in_every_request/1, a_token_stays_with_its_origin/1]).
-export([a_later_login_keeps_the_scopes/1]).
-export([a_step_up_asks_for_the_union/1, a_step_up_for_nothing_more_ends/1]).
-export([a_step_up_is_bounded/1, another_403_is_no_step_up/1]).

-import(erlmcp_test_suite, [peer/1]).

-define(PRM, ~"/.well-known/oauth-protected-resource/mcp").
-define(ROOT_PRM, ~"/.well-known/oauth-protected-resource").
-define(METADATA, ~"/.well-known/oauth-authorization-server").

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

started(Options, Peer) ->
    {ok, Authorizer} = erlmcp_authorizer:start_link(Options, erlmcp_test_oauth:url(Peer)),
    erlmcp_authorizer:handle(Authorizer).

%% What comes of a request by a client whose user agrees.
outcome(Peer) -> outcome(#{}, Peer).

outcome(More, Peer) ->
    erlmcp_test_oauth:call(started(erlmcp_test_oauth:logged_in(More), Peer), Peer).

challenge_of(Peer, Parameters) ->
    erlmcp_test_oauth:change(Peer, ~"/mcp", fun(#{headers := Headers}) ->
        case Headers of
            #{~"authorization" := _} -> {200, #{}, ~"{}"};
            #{} -> {401, #{~"www-authenticate" => [~"Bearer ", Parameters]}, ~""}
        end
    end).

discovery(Peer) ->
    [Path || <<"/.well-known/", _/binary>> = Path <- erlmcp_test_oauth:asked(Peer)].

authorized_with(Peer) ->
    [#{query := Query} | _] = lists:reverse(erlmcp_test_oauth:asked(Peer, ~"/authorize")),
    Query.

token_form(Peer) ->
    [#{form := Form} | _] = lists:reverse(erlmcp_test_oauth:asked(Peer, ~"/token")),
    Form.

%% "use the resource metadata URL from the parsed WWW-Authenticate headers when present"
the_challenge_names_the_metadata(Config) ->
    Peer = peer(Config),
    challenge_of(Peer, [~"resource_metadata=\"", erlmcp_test_oauth:url(Peer, ~"/custom.json"), $"]),
    erlmcp_test_oauth:change(Peer, ~"/custom.json",
                             erlmcp_test_oauth:json(200,
                                                    #{~"resource" => erlmcp_test_oauth:url(Peer),
                                                      ~"authorization_servers" =>
                                                          [erlmcp_test_oauth:url(Peer, ~"")]})),
    {ok, 200} = outcome(Peer),
    [?METADATA] = discovery(Peer),
    [_] = erlmcp_test_oauth:asked(Peer, ~"/custom.json").

%% "otherwise, they MUST fall back to constructing and requesting the well-known URIs in the order"
the_well_known_paths_are_tried_in_order(Config) ->
    Peer = peer(Config),
    challenge_of(Peer, ~"realm=\"x\""),
    erlmcp_test_oauth:change(Peer, ?PRM, {404, #{}, ~""}),
    erlmcp_test_oauth:change(Peer, ?ROOT_PRM,
                             erlmcp_test_oauth:json(200,
                                                    #{~"resource" =>
                                                          erlmcp_test_oauth:url(Peer, ~""),
                                                      ~"authorization_servers" =>
                                                          [erlmcp_test_oauth:url(Peer, ~"")]})),
    {ok, 200} = outcome(Peer),
    [?PRM, ?ROOT_PRM, ?METADATA] = discovery(Peer).

%% RFC 9728, 3.1: "inserting /.well-known/ and the well-known URI path suffix between the host
%% component and the path and/or query components".
the_query_of_the_server_stays(Config) ->
    Peer = peer(Config),
    Url = <<(erlmcp_test_oauth:url(Peer))/binary, "?tenant=a">>,
    challenge_of(Peer, ~"realm=\"x\""),
    erlmcp_test_oauth:resource(Peer, #{~"resource" => Url}),
    {ok, Authorizer} = erlmcp_authorizer:start_link(erlmcp_test_oauth:logged_in(#{}), Url),
    {ok, 200} = erlmcp_test_oauth:call(erlmcp_authorizer:handle(Authorizer), Peer),
    [#{query := #{~"tenant" := ~"a"}}] = erlmcp_test_oauth:asked(Peer, ?PRM),
    #{~"resource" := Url} = authorized_with(Peer).

%% RFC 9728, 3.3: "If these values are not identical, the data contained in the response MUST NOT
%% be used." A parent of the server's URL is its resource, too, as the page on tokens has it.
a_resource_of_another_server_is_refused(Config) ->
    Peer = peer(Config),
    lists:foreach(fun(Resource) ->
        erlmcp_test_oauth:resource(Peer, #{~"resource" => Resource}),
        {error, {resource_mismatch, Resource}} = outcome(Peer)
    end, [~"https://evil.example.com/mcp", <<(erlmcp_test_oauth:url(Peer))/binary, "/below">>,
          erlmcp_test_oauth:url(Peer, ~"/mc"), <<(erlmcp_test_oauth:url(Peer))/binary, "?other=1">>,
          ~"not a url"]),
    [] = erlmcp_test_oauth:asked(Peer, ~"/authorize"),
    [] = erlmcp_test_oauth:asked(Peer, ~"/register").

a_resource_above_the_server_is_taken(Config) ->
    Peer = peer(Config),
    lists:foreach(fun(Resource) ->
        erlmcp_test_oauth:resource(Peer, #{~"resource" => Resource}),
        {ok, 200} = outcome(Peer)
    end, [erlmcp_test_oauth:url(Peer, ~""), erlmcp_test_oauth:url(Peer, ~"/"),
          erlmcp_test_oauth:url(Peer, ~"/mcp/")]).

%% "MUST include the authorization_servers field containing at least one authorization server"
no_authorization_server_is_an_error(Config) ->
    Peer = peer(Config),
    Url = erlmcp_test_oauth:url(Peer, ?PRM),
    lists:foreach(fun(Servers) ->
        erlmcp_test_oauth:resource(Peer, #{~"authorization_servers" => Servers}),
        {error, {metadata, Url, {member, ~"authorization_servers"}}} = outcome(Peer)
    end, [[], remove, ~"https://as.example.com", [1]]).

%% "For issuer URLs with path components [...], clients MUST try endpoints in the following
%% priority order"
server_metadata_is_tried_in_order(Config) ->
    Peer = peer(Config),
    Issuer = erlmcp_test_oauth:url(Peer, ~"/tenant1"),
    erlmcp_test_oauth:resource(Peer, #{~"authorization_servers" => [Issuer]}),
    Last = ~"/tenant1/.well-known/openid-configuration",
    erlmcp_test_oauth:change(Peer, Last,
                             erlmcp_test_oauth:json(200, #{
                                 ~"issuer" => Issuer,
                                 ~"authorization_endpoint" =>
                                     erlmcp_test_oauth:url(Peer, ~"/authorize"),
                                 ~"token_endpoint" => erlmcp_test_oauth:url(Peer, ~"/token"),
                                 ~"registration_endpoint" =>
                                     erlmcp_test_oauth:url(Peer, ~"/register"),
                                 ~"code_challenge_methods_supported" => [~"S256"],
                                 ~"token_endpoint_auth_methods_supported" => [~"none"]})),
    %% The iss of the answer is the origin's.
    {error, {answer, iss}} = outcome(Peer),
    [?PRM, ~"/.well-known/oauth-authorization-server/tenant1",
     ~"/.well-known/openid-configuration/tenant1"] =
        discovery(Peer),
    [_] = erlmcp_test_oauth:asked(Peer, Last).

%% "For issuer URLs without path components [...], clients MUST try"
server_metadata_without_a_path(Config) ->
    Peer = peer(Config),
    erlmcp_test_oauth:change(Peer, ?METADATA, {404, #{}, ~""}),
    Issuer = erlmcp_test_oauth:url(Peer, ~""),
    {error, {no_metadata, Issuer}} = outcome(Peer),
    [?PRM, ?METADATA, ~"/.well-known/openid-configuration"] = discovery(Peer).

%% "the issuer value in the document MUST be identical to the issuer identifier used to construct
%% the well-known URL. If they differ, the client MUST NOT use the metadata."
another_issuer_in_the_metadata_is_refused(Config) ->
    Peer = peer(Config),
    Issuer = erlmcp_test_oauth:url(Peer, ~""),
    lists:foreach(fun(Found) ->
        erlmcp_test_oauth:metadata(Peer, #{~"issuer" => Found}),
        {error, {issuer_mismatch, Issuer, Found}} = outcome(Peer)
    end, [~"https://attacker.example.com", <<Issuer/binary, "/">>, string:uppercase(Issuer)]),
    [] = erlmcp_test_oauth:asked(Peer, ~"/authorize"),
    [] = erlmcp_test_oauth:asked(Peer, ~"/token"),
    [] = erlmcp_test_oauth:asked(Peer, ~"/register").

a_page_of_html_is_no_metadata(Config) ->
    Peer = peer(Config),
    erlmcp_test_oauth:change(Peer, ?METADATA,
                             fun(#{base := Base}) ->
                                 {200, #{~"content-type" => ~"text/html"},
                                  json:encode(#{~"issuer" => Base, ~"token_endpoint" => Base})}
                             end),
    {error, {no_metadata, _}} = outcome(Peer),
    Url = erlmcp_test_oauth:url(Peer, ?PRM),
    erlmcp_test_oauth:change(Peer, ?PRM, {200, #{~"content-type" => ~"text/html"}, ~"{}"}),
    {error, {metadata, Url, not_json}} = outcome(Peer).

%% 2025-03-26: "the authorization base URL MUST be determined from the MCP server URL by discarding
%% any existing path component"
a_server_of_2025_03_26_is_its_own_authorization_server(Config) ->
    Peer = peer(Config),
    challenge_of(Peer, ~"realm=\"x\""),
    erlmcp_test_oauth:change(Peer, ?PRM, {404, #{}, ~""}),
    {ok, 200} = outcome(Peer),
    [?PRM, ?ROOT_PRM, ?METADATA] = discovery(Peer).

%% 2025-03-26: "clients MUST use the following default endpoint paths relative to the authorization
%% base URL"
the_default_endpoints_of_2025_03_26(Config) ->
    Peer = peer(Config),
    challenge_of(Peer, ~"realm=\"x\""),
    erlmcp_test_oauth:change(Peer, ?PRM, {404, #{}, ~""}),
    erlmcp_test_oauth:change(Peer, ?METADATA, {404, #{}, ~""}),
    {ok, 200} = outcome(Peer),
    [_] = erlmcp_test_oauth:asked(Peer, ~"/register"),
    [_] = erlmcp_test_oauth:asked(Peer, ~"/authorize"),
    [_] = erlmcp_test_oauth:asked(Peer, ~"/token").

%% "MCP clients MUST implement PKCE", "MUST use the S256 code challenge method"
pkce_is_sent_and_verified(Config) ->
    Peer = peer(Config),
    {ok, 200} = outcome(Peer),
    #{~"code_challenge_method" := ~"S256", ~"code_challenge" := Challenge,
      ~"response_type" := ~"code"} = authorized_with(Peer),
    #{~"code_verifier" := Verifier} = token_form(Peer),
    Challenge = s256(Verifier),
    %% The example of RFC 7636, appendix B.
    ~"E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM" =
        s256(~"dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk").

%% RFC 7636, 4.1: 43 to 128 characters, letters, digits and "-._~"; "a different code verifier for
%% every authorization request".
each_login_has_a_new_verifier(Config) ->
    Peer = peer(Config),
    {ok, 200} = outcome(Peer),
    {ok, 200} = outcome(Peer),
    [First, Second] = [Verifier || #{form := #{~"code_verifier" := Verifier}}
                                       <- erlmcp_test_oauth:asked(Peer, ~"/token")],
    true = First =/= Second,
    [match = re:run(Verifier, ~"^[A-Za-z0-9._~-]{43,128}$", [{capture, none}])
     || Verifier <- [First, Second]].

s256(Verifier) ->
    base64:encode(crypto:hash(sha256, Verifier), #{mode => urlsafe, padding => false}).

%% "If the field is absent, MCP clients MUST refuse to proceed."
without_s256_nothing_is_asked(Config) ->
    Peer = peer(Config),
    Issuer = erlmcp_test_oauth:url(Peer, ~""),
    lists:foreach(fun(Methods) ->
        erlmcp_test_oauth:metadata(Peer, #{~"code_challenge_methods_supported" => Methods}),
        {error, {pkce_not_supported, Issuer}} = outcome(Peer)
    end, [remove, [], [~"plain"]]),
    [] = erlmcp_test_oauth:asked(Peer, ~"/authorize").

%% "MUST be included in both authorization requests and token requests"
the_resource_is_sent_byte_for_byte(Config) ->
    Peer = peer(Config),
    lists:foreach(fun(Resource) ->
        erlmcp_test_oauth:resource(Peer, #{~"resource" => Resource}),
        {ok, 200} = outcome(Peer),
        #{~"resource" := Resource} = authorized_with(Peer),
        #{~"resource" := Resource} = token_form(Peer)
    end, [erlmcp_test_oauth:url(Peer), erlmcp_test_oauth:url(Peer, ~""),
          erlmcp_test_oauth:url(Peer, ~"/")]).

%% "Use scope parameter from the initial WWW-Authenticate header in the 401 response, if provided"
scopes_of_the_challenge_come_first(Config) ->
    Peer = peer(Config),
    challenge_of(Peer, ~"scope=\"files:read files:list\""),
    erlmcp_test_oauth:resource(Peer, #{~"scopes_supported" => [~"everything"]}),
    {ok, 200} = outcome(Peer),
    #{~"scope" := ~"files:read files:list"} = authorized_with(Peer).

%% "use all scopes defined in scopes_supported from the Protected Resource Metadata document"
scopes_of_the_metadata_come_second(Config) ->
    Peer = peer(Config),
    erlmcp_test_oauth:resource(Peer, #{~"scopes_supported" => [~"read", ~"write"]}),
    {ok, 200} = outcome(Peer),
    #{~"scope" := ~"read write"} = authorized_with(Peer).

%% "omitting the scope parameter if scopes_supported is undefined"
no_scopes_omit_the_parameter(Config) ->
    Peer = peer(Config),
    {ok, 200} = outcome(Peer),
    false = is_map_key(~"scope", authorized_with(Peer)).

scopes_of_the_options(Config) ->
    Peer = peer(Config),
    erlmcp_test_oauth:resource(Peer, #{~"scopes_supported" => [~"read", ~"write"]}),
    {ok, 200} = outcome(#{scope => ~"read"}, Peer),
    #{~"scope" := ~"read"} = authorized_with(Peer),
    challenge_of(Peer, ~"scope=\"list\""),
    {ok, 200} = outcome(#{scope => ~"read"}, Peer),
    #{~"scope" := ~"list read"} = authorized_with(Peer).

%% "MAY add offline_access to the scope parameter [...] when the Authorization Server metadata
%% contains it in scopes_supported"
offline_access_where_it_is_offered(Config) ->
    Peer = peer(Config),
    erlmcp_test_oauth:resource(Peer, #{~"scopes_supported" => [~"read"]}),
    {ok, 200} = outcome(Peer),
    #{~"scope" := ~"read"} = authorized_with(Peer),
    erlmcp_test_oauth:metadata(Peer, #{~"scopes_supported" => [~"read", ~"offline_access"]}),
    {ok, 200} = outcome(Peer),
    #{~"scope" := ~"read offline_access"} = authorized_with(Peer).

offline_access_alone_is_not_asked(Config) ->
    Peer = peer(Config),
    erlmcp_test_oauth:metadata(Peer, #{~"scopes_supported" => [~"offline_access"]}),
    {ok, 200} = outcome(Peer),
    false = is_map_key(~"scope", authorized_with(Peer)).

%% The table of "Authorization Response Validation", and its text.
iss_advertised_and_right(Config) ->
    {ok, 200} = outcome(peer(Config)).

iss_advertised_and_missing(Config) ->
    refused_before_the_token(answering(#{~"iss" => remove}), iss_missing, peer(Config)).

iss_advertised_and_wrong(Config) ->
    refused_before_the_token(answering(#{~"iss" => ~"https://evil.example.com"}), iss,
                             peer(Config)).

iss_not_advertised_and_missing(Config) ->
    Peer = peer(Config),
    not_advertised(Peer),
    {ok, 200} = outcome(#{browser => answering(#{~"iss" => remove})}, Peer).

iss_not_advertised_and_wrong(Config) ->
    Peer = peer(Config),
    not_advertised(Peer),
    refused_before_the_token(answering(#{~"iss" => ~"https://evil.example.com"}), iss, Peer).

%% "clients MUST NOT apply scheme or host case folding, default-port elision, trailing-slash, or
%% percent-encoding normalization"
iss_is_not_normalised(Config) ->
    Peer = peer(Config),
    Issuer = erlmcp_test_oauth:url(Peer, ~""),
    refused_before_the_token(answering(#{~"iss" => <<Issuer/binary, "/">>}), iss, Peer),
    refused_before_the_token(answering(#{~"iss" => string:replace(Issuer, "http", "HTTP")}), iss,
                             Peer).

%% "on mismatch the client MUST NOT act on or display error, error_description, or error_uri"
an_error_with_a_wrong_iss_is_not_shown(Config) ->
    Browser = answering(#{~"iss" => ~"https://evil.example.com", ~"code" => remove,
                          ~"error" => ~"access_denied", ~"error_description" => ~"call 555"}),
    refused_before_the_token(Browser, iss, peer(Config)).

%% "discard any results that do not include or have a mismatch with the original state"
another_state_is_refused(Config) ->
    Peer = peer(Config),
    refused_before_the_token(answering(#{~"state" => remove}), state, Peer),
    refused_before_the_token(answering(#{~"state" => ~"another"}), state, Peer),
    Twice = fun(Url) ->
        {ok, Redirected} = erlmcp_test_oauth:browser(Url),
        {ok, <<Redirected/binary, "&state=another">>}
    end,
    refused_before_the_token(Twice, query, Peer),
    refused_before_the_token(fun(_) -> {ok, ~"http://localhost:9/other?code=1"} end, redirect_uri,
                             Peer).

a_refusal_is_named(Config) ->
    Peer = peer(Config),
    Browser = answering(#{~"code" => remove, ~"error" => ~"access_denied",
                          ~"error_description" => <<"no", 10, "way">>}),
    {error, {refused, ~"access_denied", ~"no?way"}} = outcome(#{browser => Browser}, Peer),
    [] = erlmcp_test_oauth:asked(Peer, ~"/token").

refused_before_the_token(Browser, What, Peer) ->
    {error, {answer, What}} = outcome(#{browser => Browser}, Peer),
    [] = erlmcp_test_oauth:asked(Peer, ~"/token").

not_advertised(Peer) ->
    erlmcp_test_oauth:metadata(Peer,
                               #{~"authorization_response_iss_parameter_supported" => remove}).

%% A browser that comes back with other parameters than the authorization server gave.
answering(Changes) ->
    fun(Url) ->
        {ok, Redirected} = erlmcp_test_oauth:browser(Url),
        [Endpoint, Query] = binary:split(Redirected, ~"?"),
        Parameters = maps:merge(maps:from_list(uri_string:dissect_query(Query)), Changes),
        Kept = [{Name, iolist_to_binary(Value)} || Name := Value <- Parameters, Value =/= remove],
        {ok, iolist_to_binary([Endpoint, $?, uri_string:compose_query(Kept)])}
    end.

%% "MCP clients MUST specify an appropriate application_type during Dynamic Client Registration";
%% "SHOULD include refresh_token in their grant_types client metadata"
dynamic_registration_has_its_fields(Config) ->
    Peer = peer(Config),
    {ok, 200} = outcome(#{client_name => ~"Prüfer"}, Peer),
    [#{body := Native}] = erlmcp_test_oauth:asked(Peer, ~"/register"),
    #{~"application_type" := ~"native", ~"client_name" := ~"Prüfer",
      ~"redirect_uris" := [~"http://localhost:9/callback"], ~"response_types" := [~"code"],
      ~"grant_types" := [~"authorization_code", ~"refresh_token"],
      ~"token_endpoint_auth_method" := ~"none"} = json:decode(Native),
    {ok, 200} = outcome(#{redirect_uri => ~"https://app.example.com/back"}, Peer),
    [_, #{body := Web}] = erlmcp_test_oauth:asked(Peer, ~"/register"),
    #{~"application_type" := ~"web",
      ~"redirect_uris" := [~"https://app.example.com/back"]} = json:decode(Web),
    #{~"client_id" := ~"client-2"} = authorized_with(Peer),
    #{~"client_id" := ~"client-2"} = token_form(Peer).

%% "clients SHOULD surface a meaningful error to the user or developer"
a_refused_registration_is_named(Config) ->
    Peer = peer(Config),
    erlmcp_test_oauth:change(Peer, ~"/register",
                             erlmcp_test_oauth:json(400, #{~"error" => ~"invalid_redirect_uri",
                                                           ~"error_description" => ~"https only"})),
    {error, {registration_refused, 400, ~"invalid_redirect_uri", ~"https only"}} = outcome(Peer),
    erlmcp_test_oauth:change(Peer, ~"/register", {500, #{}, ~"oops"}),
    {error, {registration_refused, 500, none, none}} = outcome(Peer).

%% "Use Client ID Metadata Documents if the Authorization Server indicates that it supports them"
a_metadata_document_comes_before_registration(Config) ->
    Peer = peer(Config),
    Url = ~"https://app.example.com/client.json",
    {ok, 200} = outcome(#{client_metadata_url => Url}, Peer),
    [_] = erlmcp_test_oauth:asked(Peer, ~"/register"),
    erlmcp_test_oauth:metadata(Peer, #{~"client_id_metadata_document_supported" => true}),
    {ok, 200} = outcome(#{client_metadata_url => Url}, Peer),
    [_] = erlmcp_test_oauth:asked(Peer, ~"/register"),
    #{~"client_id" := Url} = authorized_with(Peer),
    #{~"client_id" := Url} = token_form(Peer).

%% "Use pre-registered client information for the server if the client has it available"
pre_registered_comes_first(Config) ->
    Peer = peer(Config),
    erlmcp_test_oauth:metadata(Peer, #{~"client_id_metadata_document_supported" => true}),
    {ok, 200} = outcome(#{client_metadata_url => ~"https://app.example.com/client.json",
                          client_id => ~"mine"}, Peer),
    [] = erlmcp_test_oauth:asked(Peer, ~"/register"),
    #{~"client_id" := ~"mine"} = authorized_with(Peer).

no_way_to_register_is_an_error(Config) ->
    Peer = peer(Config),
    Issuer = erlmcp_test_oauth:url(Peer, ~""),
    erlmcp_test_oauth:metadata(Peer, #{~"registration_endpoint" => remove}),
    {error, {no_client, Issuer}} = outcome(Peer).

%% "If the authorization server indicated by protected resource metadata no longer matches the one
%% the credentials were registered with, clients SHOULD surface an error"
credentials_stay_with_their_issuer(Config) ->
    Peer = peer(Config),
    Mine = #{client_id => ~"mine", client_secret => ~"s3cret", issuer => ~"https://as.example.com"},
    Found = erlmcp_test_oauth:url(Peer, ~""),
    {error, {issuer_not_offered, ~"https://as.example.com", [Found]}} = outcome(Mine, Peer),
    [] = erlmcp_test_oauth:asked(Peer, ~"/authorize"),
    [] = erlmcp_test_oauth:asked(Peer, ~"/token").

%% Of a server without metadata: "Abort or use pre-configured values"
an_issuer_that_was_set_is_asked(Config) ->
    Peer = peer(Config),
    Other = erlmcp_test_oauth:start(),
    challenge_of(Peer, ~"realm=\"x\""),
    erlmcp_test_oauth:change(Peer, ?PRM, {404, #{}, ~""}),
    {ok, 200} = outcome(#{client_id => ~"mine", issuer => erlmcp_test_oauth:url(Other, ~"")}, Peer),
    #{~"client_id" := ~"mine"} = authorized_with(Other),
    Url = erlmcp_test_oauth:url(Peer),
    #{~"resource" := Url} = token_form(Other),
    [] = erlmcp_test_oauth:asked(Peer, ?METADATA),
    erlmcp_test_oauth:stop(Other).

the_first_issuer_counts_without_a_named_one(Config) ->
    Peer = peer(Config),
    Other = erlmcp_test_oauth:start(),
    Handle = started(erlmcp_test_oauth:logged_in(#{client_id => ~"mine"}), Peer),
    {ok, 200} = erlmcp_test_oauth:call(Handle, Peer),
    erlmcp_test_oauth:resource(Peer,
                               #{~"authorization_servers" => [erlmcp_test_oauth:url(Other, ~"")]}),
    revoke(Peer),
    {One, Two} = {erlmcp_test_oauth:url(Peer, ~""), erlmcp_test_oauth:url(Other, ~"")},
    {error, {issuer_changed, One, Two}} = erlmcp_test_oauth:call(Handle, Peer),
    [] = erlmcp_test_oauth:asked(Other, ~"/authorize"),
    erlmcp_test_oauth:stop(Other).

revoke(#{table := Table}) ->
    true = ets:match_delete(Table, {{token, '_'}}).

%% "clients MUST NOT reuse client credentials from a different authorization server and MUST
%% re-register with the new authorization server"
another_authorization_server_gets_a_new_registration(Config) ->
    Peer = peer(Config),
    Other = erlmcp_test_oauth:start(),
    Handle = started(erlmcp_test_oauth:logged_in(#{}), Peer),
    {ok, 200} = erlmcp_test_oauth:call(Handle, Peer),
    erlmcp_test_oauth:resource(Peer,
                               #{~"authorization_servers" => [erlmcp_test_oauth:url(Other, ~"")]}),
    revoke(Peer),
    erlmcp_test_oauth:change(Other, ~"/register",
                             erlmcp_test_oauth:json(201, #{~"client_id" => ~"of-other"})),
    erlmcp_test_oauth:change(Other, ~"/token", fun(_) ->
        erlmcp_test_oauth:json(200, erlmcp_test_oauth:token_answer(Peer))
    end),
    {ok, 200} = erlmcp_test_oauth:call(Handle, Peer),
    #{~"client_id" := ~"of-other"} = authorized_with(Other),
    #{~"client_id" := ~"of-other", ~"grant_type" := ~"authorization_code"} = token_form(Other),
    [] = [Body || #{body := Body} <- erlmcp_test_oauth:asked(Other, ~"/token"),
                  binary:match(Body, [~"client-1", ~"refresh-1"]) =/= nomatch],
    erlmcp_test_oauth:stop(Other).

%% "authorization MUST be included in every HTTP request from client to server"
the_token_is_in_every_request(Config) ->
    Peer = peer(Config),
    Handle = started(erlmcp_test_oauth:logged_in(#{}), Peer),
    {ok, 200} = erlmcp_test_oauth:call(Handle, Peer),
    {ok, 200} = erlmcp_test_oauth:call(Handle, Peer),
    [none, ~"Bearer token-1", ~"Bearer token-1"] =
        [maps:get(~"authorization", Headers, none)
         || #{headers := Headers} <- erlmcp_test_oauth:asked(Peer, ~"/mcp")],
    [_] = erlmcp_test_oauth:asked(Peer, ~"/authorize").

a_token_stays_with_its_origin(Config) ->
    Peer = peer(Config),
    Handle = started(erlmcp_test_oauth:logged_in(#{}), Peer),
    {ok, 200} = erlmcp_test_oauth:call(Handle, Peer),
    {ok, [{~"authorization", _}]} =
        erlmcp_authorizer:headers(Handle, get, erlmcp_test_oauth:url(Peer, ~"/other"), 0),
    {ok, []} = erlmcp_authorizer:headers(Handle, get, ~"https://evil.example.com/mcp", 0).

%% "computing the union of the client's previously requested scope set and the scopes from the
%% current challenge"
a_step_up_asks_for_the_union(Config) ->
    Peer = peer(Config),
    %% What the token's authorization asked for tells what it is good for.
    erlmcp_test_oauth:change(Peer, ~"/mcp", fun(#{headers := Headers}) ->
        case Headers of
            #{~"authorization" := ~"Bearer token-1"} -> insufficient(~"write");
            #{~"authorization" := _} -> {200, #{}, ~"{}"};
            #{} -> {401, #{~"www-authenticate" => ~"Bearer scope=\"read\""}, ~""}
        end
    end),
    erlmcp_test_oauth:resource(Peer, #{~"scopes_supported" => [~"decoy"]}),
    {ok, 200} = outcome(Peer),
    [#{query := #{~"scope" := ~"read"}}, #{query := #{~"scope" := ~"read write"}}] =
        erlmcp_test_oauth:asked(Peer, ~"/authorize").

%% "clients SHOULD include these scopes alongside any previously granted scopes"
a_later_login_keeps_the_scopes(Config) ->
    Peer = peer(Config),
    erlmcp_test_oauth:change(Peer, ~"/token", fun(_) ->
        erlmcp_test_oauth:json(200,
                               maps:remove(~"refresh_token", erlmcp_test_oauth:token_answer(Peer)))
    end),
    erlmcp_test_oauth:change(Peer, ~"/mcp", fun(#{headers := Headers}) ->
        case Headers of
            #{~"authorization" := ~"Bearer token-1"} ->
                {401, #{~"www-authenticate" => ~"Bearer scope=\"list\""}, ~""};
            #{~"authorization" := _} ->
                {200, #{}, ~"{}"};
            #{} ->
                {401, #{~"www-authenticate" => ~"Bearer scope=\"read\""}, ~""}
        end
    end),
    {ok, 200} = outcome(Peer),
    [#{query := #{~"scope" := ~"read"}}, #{query := #{~"scope" := ~"read list"}}] =
        erlmcp_test_oauth:asked(Peer, ~"/authorize").

insufficient(Scope) ->
    {403, #{~"www-authenticate" => [~"Bearer error=\"insufficient_scope\", scope=\"", Scope, $"]},
     ~""}.

%% "Retry the original request with the new authorization no more than a few times and treat this
%% as a permanent authorization failure"
a_step_up_for_nothing_more_ends(Config) ->
    Peer = peer(Config),
    erlmcp_test_oauth:change(Peer, ~"/mcp", fun(#{headers := Headers}) ->
        case Headers of
            #{~"authorization" := _} -> insufficient(~"read");
            #{} -> {401, #{~"www-authenticate" => ~"Bearer scope=\"read\""}, ~""}
        end
    end),
    Handle = started(erlmcp_test_oauth:logged_in(#{}), Peer),
    {error, {insufficient_scope, [~"read"]}} = erlmcp_test_oauth:call(Handle, Peer),
    {error, {insufficient_scope, [~"read"]}} = erlmcp_test_oauth:call(Handle, Peer),
    [_] = erlmcp_test_oauth:asked(Peer, ~"/authorize").

%% A server that wants another scope each time.
a_step_up_is_bounded(Config) ->
    Peer = peer(Config),
    erlmcp_test_oauth:change(Peer, ~"/mcp", fun(#{headers := Headers}) ->
        case Headers of
            #{~"authorization" := <<"Bearer ", Token/binary>>} -> insufficient(Token);
            #{} -> {401, #{}, ~""}
        end
    end),
    Handle = started(erlmcp_test_oauth:logged_in(#{}), Peer),
    {ok, 403} = erlmcp_test_oauth:call(Handle, Peer),
    3 = length(erlmcp_test_oauth:asked(Peer, ~"/authorize")),
    {ok, 403} = erlmcp_test_oauth:call(Handle, Peer),
    {error, {too_many_logins, 6}} = erlmcp_test_oauth:call(Handle, Peer),
    6 = length(erlmcp_test_oauth:asked(Peer, ~"/authorize")).

another_403_is_no_step_up(Config) ->
    Peer = peer(Config),
    erlmcp_test_oauth:change(Peer, ~"/mcp", {403, #{}, ~""}),
    {error, {forbidden, none}} = outcome(Peer),
    erlmcp_test_oauth:change(Peer, ~"/mcp", {403, #{~"www-authenticate" =>
                                                        ~"Bearer error=\"invalid_token\""}, ~""}),
    {error, {forbidden, ~"invalid_token"}} = outcome(Peer),
    [] = erlmcp_test_oauth:asked(Peer, ~"/authorize").
