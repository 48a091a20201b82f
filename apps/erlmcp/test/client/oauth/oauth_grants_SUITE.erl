-module(oauth_grants_SUITE).
-moduledoc """
How a client says who it is at the token endpoint, the grants without a user, and tokens that are
bound to a key.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([a_secret_in_the_header/1, a_secret_in_the_form/1, a_secret_that_nobody_takes/1]).
-export([a_registered_secret/1, a_registered_secret_that_ended/1]).
-export([a_key_of_its_own/1, a_key_beside_a_metadata_document/1, a_key_that_is_none/1]).
-export([client_credentials_are_renewed/1, client_credentials_step_up/1]).
-export([a_secret_is_asked_for_each_time/1, a_secret_that_cannot_be_had/1]).
-export([a_workload_shows_its_assertion_once/1, an_identity_is_exchanged/1]).
-export([an_exchange_for_something_else_is_refused/1, an_identity_provider_refuses/1]).
-export([proofs_go_with_every_request/1, nonces_of_both_servers/1, the_latest_nonce_counts/1]).
-export([bytes_that_are_no_nonce_are_ignored/1]).
-export([an_assertion_is_used_once/1]).
-export([a_token_without_its_key_is_refused/1, a_key_outlives_the_process/1]).

-import(erlmcp_test_suite, [peer/1]).

-define(JWT_BEARER, ~"urn:ietf:params:oauth:grant-type:jwt-bearer").

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
    {ok, Pid} = erlmcp_authorizer:start_link(Options, erlmcp_test_oauth:url(Peer)),
    erlmcp_authorizer:handle(Pid).

outcome(Options, Peer) -> erlmcp_test_oauth:call(started(Options, Peer), Peer).

methods(Methods, Peer) ->
    erlmcp_test_oauth:metadata(Peer, #{~"token_endpoint_auth_methods_supported" => Methods}).

last_token_request(Peer) ->
    lists:last(erlmcp_test_oauth:asked(Peer, ~"/token")).

machine() ->
    #{grant => client_credentials, client_id => ~"the id", client_secret => ~"s:e%c&r+et"}.

%% RFC 6749, 2.3.1: both are encoded before they are put together.
a_secret_in_the_header(Config) ->
    Peer = peer(Config),
    lists:foreach(fun(Methods) ->
        methods(Methods, Peer),
        {ok, 200} = outcome(machine(), Peer),
        #{headers := #{~"authorization" := <<"Basic ", Pair/binary>>}, form := Form} =
            last_token_request(Peer),
        ~"the%20id:s%3Ae%25c%26r%2Bet" = base64:decode(Pair),
        #{~"grant_type" := ~"client_credentials", ~"resource" := _} = Form,
        false = is_map_key(~"client_secret", Form)
    end, [remove, [~"client_secret_basic"], [~"client_secret_post", ~"client_secret_basic"]]).

a_secret_in_the_form(Config) ->
    Peer = peer(Config),
    methods([~"none", ~"client_secret_post"], Peer),
    {ok, 200} = outcome(machine(), Peer),
    #{headers := Headers, form := #{~"client_id" := ~"the id",
                                    ~"client_secret" := ~"s:e%c&r+et"}} =
        last_token_request(Peer),
    false = is_map_key(~"authorization", Headers).

a_secret_that_nobody_takes(Config) ->
    Peer = peer(Config),
    methods([~"tls_client_auth"], Peer),
    {error, {client_auth_not_supported, [~"tls_client_auth"]}} = outcome(machine(), Peer),
    [] = erlmcp_test_oauth:asked(Peer, ~"/token").

a_registered_secret(Config) ->
    Peer = peer(Config),
    methods([~"client_secret_post"], Peer),
    Registered = #{~"client_id" => ~"c", ~"client_secret" => ~"s"},
    erlmcp_test_oauth:change(Peer, ~"/register", erlmcp_test_oauth:json(201, Registered)),
    {ok, 200} = outcome(erlmcp_test_oauth:logged_in(#{}), Peer),
    #{form := #{~"client_id" := ~"c", ~"client_secret" := ~"s"}} = last_token_request(Peer),
    [#{body := Body}] = erlmcp_test_oauth:asked(Peer, ~"/register"),
    #{~"token_endpoint_auth_method" := ~"client_secret_post"} = json:decode(Body),
    %% The authorization server's word on the method is the last.
    erlmcp_test_oauth:change(Peer, ~"/register", erlmcp_test_oauth:json(201, Registered#{
        ~"token_endpoint_auth_method" => ~"client_secret_basic"})),
    {ok, 200} = outcome(erlmcp_test_oauth:logged_in(#{}), Peer),
    #{headers := #{~"authorization" := ~"Basic Yzpz"}} = last_token_request(Peer),
    %% A method that wants a secret, without one, is no registration.
    erlmcp_test_oauth:change(Peer, ~"/register",
                             erlmcp_test_oauth:json(201, #{~"client_id" => ~"c"})),
    {error, {registration_refused, 201, none, none}} =
        outcome(erlmcp_test_oauth:logged_in(#{}), Peer).

a_registered_secret_that_ended(Config) ->
    Peer = peer(Config),
    methods([~"client_secret_basic"], Peer),
    erlmcp_test_oauth:change(Peer, ~"/token",
                             erlmcp_test_oauth:json(400, #{~"error" => ~"invalid_grant"})),
    Registrations = fun(Until) ->
        erlmcp_test_oauth:change(Peer, ~"/register", erlmcp_test_oauth:json(201, #{
            ~"client_id" => ~"c", ~"client_secret" => ~"s",
            ~"client_secret_expires_at" => Until})),
        Before = length(erlmcp_test_oauth:asked(Peer, ~"/register")),
        Handle = started(erlmcp_test_oauth:logged_in(#{}), Peer),
        {error, {token_refused, 400, _, _}} = erlmcp_test_oauth:call(Handle, Peer),
        {error, {token_refused, 400, _, _}} = erlmcp_test_oauth:call(Handle, Peer),
        length(erlmcp_test_oauth:asked(Peer, ~"/register")) - Before
    end,
    Now = erlang:system_time(second),
    [1, 1, 2] = [Registrations(Until) || Until <- [0, Now + 1000, Now - 1]].

pem() ->
    Key = jose_jwk:generate_key({ec, ~"P-256"}),
    {_, Pem} = jose_jwk:to_pem(Key),
    {Pem, jose_jwk:to_public(Key)}.

claims(Jwt, Public) ->
    {true, {jose_jwt, Claims}, _} = jose_jwt:verify_strict(Public, [~"ES256"], Jwt),
    Claims.

a_key_of_its_own(Config) ->
    Peer = peer(Config),
    methods([~"private_key_jwt"], Peer),
    {Pem, Public} = pem(),
    {ok, 200} = outcome(#{grant => client_credentials, client_id => ~"mine", key => Pem}, Peer),
    #{form := #{~"client_assertion_type" :=
                    ~"urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
                ~"client_assertion" := Jwt}} = last_token_request(Peer),
    Issuer = erlmcp_test_oauth:url(Peer, ~""),
    #{~"iss" := ~"mine", ~"sub" := ~"mine", ~"aud" := Issuer, ~"exp" := _} = claims(Jwt, Public).

a_key_beside_a_metadata_document(Config) ->
    Peer = peer(Config),
    methods([~"private_key_jwt", ~"none"], Peer),
    erlmcp_test_oauth:metadata(Peer, #{~"client_id_metadata_document_supported" => true,
                                       ~"token_endpoint_auth_methods_supported" =>
                                           [~"private_key_jwt"]}),
    {Pem, Public} = pem(),
    Url = ~"https://app.example.com/client.json",
    {ok, 200} =
        outcome(erlmcp_test_oauth:logged_in(#{client_metadata_url => Url, key => Pem}), Peer),
    #{form := #{~"client_id" := Url, ~"client_assertion" := Jwt}} = last_token_request(Peer),
    #{~"sub" := Url} = claims(Jwt, Public).

a_key_that_is_none(Config) ->
    Peer = peer(Config),
    methods([~"private_key_jwt"], Peer),
    {error, {assertion, no_key}} =
        outcome(#{grant => client_credentials, client_id => ~"mine", key => ~"no key"}, Peer),
    [] = erlmcp_test_oauth:asked(Peer, ~"/token").

short_tokens(Peer) ->
    erlmcp_test_oauth:change(Peer, ~"/token", fun(_) ->
        Tokens = maps:remove(~"refresh_token", erlmcp_test_oauth:token_answer(Peer)),
        erlmcp_test_oauth:json(200, Tokens#{~"expires_in" => 0})
    end).

client_credentials_are_renewed(Config) ->
    Peer = peer(Config),
    methods([~"client_secret_basic"], Peer),
    short_tokens(Peer),
    Handle = started(machine(), Peer),
    {ok, 200} = erlmcp_test_oauth:call(Handle, Peer),
    {ok, 200} = erlmcp_test_oauth:call(Handle, Peer),
    %% Only the first request was sent without a token.
    [none | Others] = [maps:get(~"authorization", Headers, none)
                       || #{headers := Headers} <- erlmcp_test_oauth:asked(Peer, ~"/mcp")],
    false = lists:member(none, Others).

client_credentials_step_up(Config) ->
    Peer = peer(Config),
    methods([~"client_secret_basic"], Peer),
    erlmcp_test_oauth:change(Peer, ~"/mcp", fun(#{headers := Headers}) ->
        case Headers of
            #{~"authorization" := ~"Bearer token-2"} ->
                {200, #{}, ~"{}"};
            #{~"authorization" := _} ->
                {403, #{~"www-authenticate" =>
                            ~"Bearer error=\"insufficient_scope\", scope=\"write\""}, ~""};
            #{} ->
                {401, #{~"www-authenticate" => ~"Bearer scope=\"read\""}, ~""}
        end
    end),
    {ok, 200} = outcome(machine(), Peer),
    [~"read", ~"read write"] =
        [Scope || #{form := #{~"scope" := Scope}} <- erlmcp_test_oauth:asked(Peer, ~"/token")].

a_secret_is_asked_for_each_time(Config) ->
    Peer = peer(Config),
    methods([~"client_secret_post"], Peer),
    short_tokens(Peer),
    Asked = counters:new(1, []),
    Secret = fun() ->
        counters:add(Asked, 1, 1),
        {ok, integer_to_binary(counters:get(Asked, 1))}
    end,
    {ok, 200} = outcome((machine())#{client_secret => Secret}, Peer),
    [~"1", ~"2"] = [Text || #{form := #{~"client_secret" := Text}} <-
                                erlmcp_test_oauth:asked(Peer, ~"/token")].

a_secret_that_cannot_be_had(Config) ->
    Peer = peer(Config),
    methods([~"client_secret_post"], Peer),
    {error, {secret, no_vault}} =
        outcome((machine())#{client_secret => fun() -> {error, no_vault} end}, Peer).

%% SEP-1933: an assertion that is refused is not sent again, nor is another grant tried.
a_workload_shows_its_assertion_once(Config) ->
    Peer = peer(Config),
    Issuer = erlmcp_test_oauth:url(Peer, ~""),
    Options = #{grant => jwt_bearer, client_id => ~"workload",
                assertion => fun(For) -> {ok, <<"a-jwt-for-", For/binary>>} end},
    {ok, 200} = outcome(Options, Peer),
    Assertion = <<"a-jwt-for-", Issuer/binary>>,
    #{form := #{~"grant_type" := ?JWT_BEARER, ~"assertion" := Assertion,
                ~"client_id" := ~"workload"}} = last_token_request(Peer),
    erlmcp_test_oauth:change(Peer, ~"/token",
                             erlmcp_test_oauth:json(400, #{~"error" => ~"invalid_grant"})),
    {error, {token_refused, 400, ~"invalid_grant", none}} =
        outcome(Options#{assertion := ~"a-jwt"}, Peer),
    {error, {secret, no_vault}} =
        outcome(Options#{assertion := fun(_) -> {error, no_vault} end}, Peer),
    2 = length(erlmcp_test_oauth:asked(Peer, ~"/token")).

enterprise(Provider) ->
    #{grant => enterprise, client_id => ~"mine", client_secret => ~"secret",
      idp => #{token_endpoint => erlmcp_test_oauth:url(Provider, ~"/exchange"),
               client_id => ~"at-idp", id_token => ~"an-id-token"}}.

%% Enterprise-Managed Authorization: the identity token becomes an ID-JAG, and that a token.
an_identity_is_exchanged(Config) ->
    Peer = peer(Config),
    methods([~"client_secret_basic"], Peer),
    Provider = erlmcp_test_oauth:start(),
    erlmcp_test_oauth:change(Provider, ~"/exchange", erlmcp_test_oauth:json(200, #{
        ~"access_token" => ~"an-id-jag", ~"token_type" => ~"N_A",
        ~"issued_token_type" => ~"urn:ietf:params:oauth:token-type:id-jag"})),
    {ok, 200} = outcome(enterprise(Provider), Peer),
    [#{form := Exchange}] = erlmcp_test_oauth:asked(Provider, ~"/exchange"),
    {Issuer, Url} = {erlmcp_test_oauth:url(Peer, ~""), erlmcp_test_oauth:url(Peer)},
    #{~"grant_type" := ~"urn:ietf:params:oauth:grant-type:token-exchange",
      ~"requested_token_type" := ~"urn:ietf:params:oauth:token-type:id-jag",
      ~"subject_token" := ~"an-id-token",
      ~"subject_token_type" := ~"urn:ietf:params:oauth:token-type:id_token",
      ~"audience" := Issuer, ~"resource" := Url, ~"client_id" := ~"at-idp"} = Exchange,
    #{form := #{~"grant_type" := ?JWT_BEARER, ~"assertion" := ~"an-id-jag"},
      headers := #{~"authorization" := <<"Basic ", _/binary>>}} = last_token_request(Peer),
    %% What is one's is not the other's.
    [] = [Body || #{body := Body} <- erlmcp_test_oauth:asked(Peer, ~"/token"),
                  binary:match(Body, ~"an-id-token") =/= nomatch],
    erlmcp_test_oauth:stop(Provider).

an_exchange_for_something_else_is_refused(Config) ->
    Peer = peer(Config),
    methods([~"client_secret_basic"], Peer),
    Provider = erlmcp_test_oauth:start(),
    erlmcp_test_oauth:change(Provider, ~"/exchange", erlmcp_test_oauth:json(200, #{
        ~"access_token" => ~"x", ~"token_type" => ~"N_A",
        ~"issued_token_type" => ~"urn:ietf:params:oauth:token-type:access_token"})),
    {error, {token, issued_token_type}} = outcome(enterprise(Provider), Peer),
    [] = erlmcp_test_oauth:asked(Peer, ~"/token"),
    erlmcp_test_oauth:stop(Provider).

an_identity_provider_refuses(Config) ->
    Peer = peer(Config),
    methods([~"client_secret_basic"], Peer),
    Provider = erlmcp_test_oauth:start(),
    erlmcp_test_oauth:change(Provider, ~"/exchange",
                             erlmcp_test_oauth:json(400, #{~"error" => ~"no_policy"})),
    {error, {token_refused, 400, ~"no_policy", none}} = outcome(enterprise(Provider), Peer),
    erlmcp_test_oauth:stop(Provider).

%% A server that takes bound tokens only, and a nonce if it wants one.
bound(Peer, Nonce) ->
    erlmcp_test_oauth:change(Peer, ~"/token", fun(#{headers := Headers}) ->
        case nonced(Headers, Nonce) of
            true -> erlmcp_test_oauth:json(200, #{~"access_token" => ~"bound",
                                                  ~"token_type" => ~"DPoP"});
            false ->
                with_nonce(erlmcp_test_oauth:json(400, #{~"error" => ~"use_dpop_nonce"}), Nonce)
        end
    end),
    erlmcp_test_oauth:change(Peer, ~"/mcp", fun(#{headers := Headers}) ->
        case Headers of
            #{~"authorization" := ~"DPoP bound"} ->
                case nonced(Headers, Nonce) of
                    true -> {200, #{}, ~"{}"};
                    false -> with_nonce({401, #{~"www-authenticate" =>
                                                    ~"DPoP error=\"use_dpop_nonce\""}, ~""}, Nonce)
                end;
            #{} ->
                {401, #{~"www-authenticate" => ~"DPoP algs=\"ES256\""}, ~""}
        end
    end).

nonced(_, none) -> true;
nonced(#{~"dpop" := Proof}, Nonce) ->
    maps:get(~"nonce", proof(Proof), none) =:= Nonce.

with_nonce({Status, Headers, Body}, Nonce) ->
    {Status, Headers#{~"dpop-nonce" => Nonce}, Body}.

%% The claims of a proof that its own key has signed.
proof(Proof) ->
    [Header | _] = binary:split(Proof, ~"."),
    #{~"typ" := ~"dpop+jwt", ~"alg" := ~"ES256", ~"jwk" := Jwk} =
        json:decode(base64:decode(Header, #{mode => urlsafe, padding => false})),
    false = is_map_key(~"d", Jwk),
    claims(Proof, jose_jwk:from_map(Jwk)).

proofs(Path, Peer) ->
    [proof(Proof) || #{headers := #{~"dpop" := Proof}} <- erlmcp_test_oauth:asked(Peer, Path)].

%% RFC 9449, 7.1: "Authorization: DPoP", and a proof of its own for each request.
proofs_go_with_every_request(Config) ->
    Peer = peer(Config),
    bound(Peer, none),
    Handle = started(erlmcp_test_oauth:logged_in(#{dpop => true}), Peer),
    {ok, 200} = erlmcp_test_oauth:call(Handle, Peer),
    {ok, 200} = erlmcp_test_oauth:call(Handle, Peer),
    [#{body := Registration}] = erlmcp_test_oauth:asked(Peer, ~"/register"),
    #{~"dpop_bound_access_tokens" := true} = json:decode(Registration),
    {Url, TokenUrl} = {erlmcp_test_oauth:url(Peer), erlmcp_test_oauth:url(Peer, ~"/token")},
    [#{~"htm" := ~"POST", ~"htu" := TokenUrl, ~"jti" := Id0} = AtToken] = proofs(~"/token", Peer),
    false = is_map_key(~"ath", AtToken),
    Hash = base64:encode(crypto:hash(sha256, ~"bound"), #{mode => urlsafe, padding => false}),
    [#{~"htm" := ~"POST", ~"htu" := Url, ~"ath" := Hash, ~"jti" := Id1},
     #{~"ath" := Hash, ~"jti" := Id2}] = proofs(~"/mcp", Peer),
    3 = length(lists:usort([Id0, Id1, Id2])),
    [#{query := #{~"dpop_jkt" := _}}] = erlmcp_test_oauth:asked(Peer, ~"/authorize").

nonces_of_both_servers(Config) ->
    Peer = peer(Config),
    bound(Peer, ~"a-nonce"),
    Handle = started(erlmcp_test_oauth:logged_in(#{dpop => true}), Peer),
    {ok, 200} = erlmcp_test_oauth:call(Handle, Peer),
    [_, #{~"nonce" := ~"a-nonce"}] = proofs(~"/token", Peer),
    [_, #{~"nonce" := ~"a-nonce"}] = proofs(~"/mcp", Peer),
    {ok, 200} = erlmcp_test_oauth:call(Handle, Peer),
    [_, _, #{~"nonce" := ~"a-nonce"}] = proofs(~"/mcp", Peer),
    %% One that wants another one each time gets one more try.
    erlmcp_test_oauth:change(Peer, ~"/token", with_nonce(
        erlmcp_test_oauth:json(400, #{~"error" => ~"use_dpop_nonce"}), ~"another")),
    {error, {token_refused, 400, ~"use_dpop_nonce", none}} =
        outcome(erlmcp_test_oauth:logged_in(#{dpop => true}), Peer),
    4 = length(proofs(~"/token", Peer)).

%% RFC 7523, section 3: the server "MAY ensure that JWTs are not replayed" by their `jti`. So the
%% request with the nonce has another assertion.
an_assertion_is_used_once(Config) ->
    Peer = peer(Config),
    methods([~"private_key_jwt"], Peer),
    bound(Peer, ~"a-nonce"),
    {Pem, Public} = pem(),
    {ok, 200} = outcome(#{grant => client_credentials, client_id => ~"mine", key => Pem,
                          dpop => true}, Peer),
    [First, Second] = [maps:get(~"jti", claims(Jwt, Public))
                       || #{form := #{~"client_assertion" := Jwt}} <-
                              erlmcp_test_oauth:asked(Peer, ~"/token")],
    true = First =/= Second.

%% RFC 9449, 8.2: a new nonce comes with any response.
the_latest_nonce_counts(Config) ->
    Peer = peer(Config),
    bound(Peer, none),
    Handle = started(erlmcp_test_oauth:logged_in(#{dpop => true}), Peer),
    {ok, 200} = erlmcp_test_oauth:call(Handle, Peer),
    ok = erlmcp_authorizer:notice(Handle, #{~"dpop-nonce" => ~"newer"}),
    %% The process has it by the time it answers anything else.
    retry =
        erlmcp_authorizer:challenged(Handle, [], {401, #{}}, none, erlmcp_test_oauth:deadline()),
    {ok, 200} = erlmcp_test_oauth:call(Handle, Peer),
    #{~"nonce" := ~"newer"} = lists:last(proofs(~"/mcp", Peer)).

%% RFC 9449, 8.1: "nonce = 1*NQCHAR".
bytes_that_are_no_nonce_are_ignored(Config) ->
    Peer = peer(Config),
    bound(Peer, none),
    Handle = started(erlmcp_test_oauth:logged_in(#{dpop => true}), Peer),
    {ok, 200} = erlmcp_test_oauth:call(Handle, Peer),
    ok = erlmcp_authorizer:notice(Handle, #{~"dpop-nonce" => ~"good"}),
    [begin
         ok = erlmcp_authorizer:notice(Handle, #{~"dpop-nonce" => Bad}),
         {ok, 200} = erlmcp_test_oauth:call(Handle, Peer),
         #{~"nonce" := ~"good"} = lists:last(proofs(~"/mcp", Peer))
     end || Bad <- [<<"caf", 16#e9>>, <<"café"/utf8>>, ~"a\tb", ~"", binary:copy(~"x", 1025)]],
    erlmcp_test_oauth:change(Peer, ~"/token", with_nonce(
        erlmcp_test_oauth:json(400, #{~"error" => ~"use_dpop_nonce"}), <<"caf", 16#e9>>)),
    {error, {token_refused, 400, ~"use_dpop_nonce", none}} =
        outcome(erlmcp_test_oauth:logged_in(#{dpop => true}), Peer).

a_token_without_its_key_is_refused(Config) ->
    Peer = peer(Config),
    {error, {token, token_type}} = outcome(erlmcp_test_oauth:logged_in(#{dpop => true}), Peer),
    bound(Peer, none),
    {error, {token, token_type}} = outcome(erlmcp_test_oauth:logged_in(#{}), Peer).

a_key_outlives_the_process(Config) ->
    Peer = peer(Config),
    bound(Peer, none),
    Folder = filename:join(proplists:get_value(priv_dir, Config), "tokens"),
    Options = erlmcp_test_oauth:logged_in(#{dpop => true,
                                            store => {erlmcp_token_store_file,
                                                      #{folder => Folder}}}),
    {ok, 200} = outcome(Options, Peer),
    {ok, 200} = outcome(Options, Peer),
    [_] = erlmcp_test_oauth:asked(Peer, ~"/authorize"),
    Keys =
        [jwk(Proof) || #{headers := #{~"dpop" := Proof}} <- erlmcp_test_oauth:asked(Peer, ~"/mcp")],
    [_, _] = Keys,
    [_] = lists:usort(Keys).

jwk(Proof) ->
    [Header | _] = binary:split(Proof, ~"."),
    maps:get(~"jwk", json:decode(base64:decode(Header, #{mode => urlsafe, padding => false}))).
