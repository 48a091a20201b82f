-module(bearer_tokens_SUITE).
-moduledoc """
Who asks, by a bearer token: where tokens come from, what they are bound to, and what a client
without a good one is told. The authorization server is real (`m:erlmcp_test_issuer`).
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([a_token_says_who_asks/1, a_client_of_its_own/1, a_fun_makes_the_principal/1,
         a_fun_names_what_has_no_subject/1]).
-export([requests_without_a_token/1, static_tokens/1, a_fun_knows_tokens/1]).
-export([a_fun_that_crashes/1, a_fun_is_called_once/1, sources_in_their_order/1,
         a_token_of_a_certificate/1]).
-export([tokens_are_bounded/1, static_tokens_are_bounded/1, what_is_remembered_is_bounded/1,
         scopes_of_a_token/1, numbers_are_at_least_one/1]).
-export([unknown_bindings/1, challenges/1, metadata/1, options_that_are_wrong/1]).
-export([an_option_that_is_wrong_says_why/1, an_algorithm_that_is_not_taken_is_named/1]).
-export([no_secret_is_shown/1]).
-export([log/2]).

-import(erlmcp_test_suite, [issuer/1]).
-import(erlmcp_test_bearer, [handle/2, jwt/2, introspection/2, token/2, encode/1, request/1,
                             bearer/1, verify/2, answer/2, begun/2, awaited/2, refusal/1, refused/2,
                             held/3, next_asked/0, asked/2]).

-define(URL, ~"https://mcp.example/mcp").
-define(INVALID, {auth_invalid_credentials, 401, ~"invalid_token"}).
-define(EXPIRED, {auth_expired, 401, ~"invalid_token"}).
-define(UNAVAILABLE, {dependency_unavailable, 503, none}).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    erlmcp_test_suite:cases(?MODULE).

init_per_suite(Config) ->
    erlmcp_test_applications:start([gun, jose, cowboy, inets], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    [{issuer, erlmcp_test_issuer:start()} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_issuer:stop(issuer(Config)).

a_token_says_who_asks(Config) ->
    Handle = handle(#{}, Config),
    Url = erlmcp_test_issuer:url(issuer(Config)),
    Token = token(#{~"scope" => ~"files:read files:write", ~"mail" => ~"ada@example.com"},
                  issuer(Config)),
    {ok, #{principal := {Url, ~"ada"}, scopes := [~"files:read", ~"files:write"],
           expires_at := End, claims := #{~"mail" := ~"ada@example.com"}} = Identity} =
        verify(Token, Handle),
    true = End > erlang:system_time(second) + 250,
    false = is_map_key(dpop_nonce, Identity),
    %% The second time it is known, and nobody is waited for.
    {ok, Identity} = erlmcp_bearer:verify(Handle, bearer(Token), {self(), unused}),
    Listed = token(#{~"scp" => [~"a", ~"b", ~"c d", 1]}, issuer(Config)),
    {ok, #{scopes := [~"a", ~"b"]}} = verify(Listed, Handle),
    {ok, #{scopes := []}} = verify(token(#{}, issuer(Config)), Handle),
    {ok, _} = answer(request(#{~"authorization" => <<"bearer  ", Token/binary>>}), Handle).

a_client_of_its_own(Config) ->
    Handle = handle(#{}, Config),
    Url = erlmcp_test_issuer:url(issuer(Config)),
    {ok, #{principal := {Url, {client, ~"a-client"}}}} =
        verify(token(#{~"sub" => remove}, issuer(Config)), Handle),
    %% A client called as a user is not that user.
    {ok, #{principal := Client}} =
        verify(token(#{~"sub" => remove, ~"client_id" => ~"ada"}, issuer(Config)), Handle),
    {ok, #{principal := User}} = verify(token(#{}, issuer(Config)), Handle),
    true = Client =/= User,
    [?INVALID = refused(token(Changes, issuer(Config)), Handle)
     || Changes <- [#{~"sub" => remove, ~"client_id" => remove}, #{~"sub" => 7}, #{~"sub" => ~""},
                    #{~"sub" => null}]].

a_fun_makes_the_principal(Config) ->
    Mail = fun(#{~"mail" := Address}) -> {mail, Address} end,
    Handle = handle(#{principal => Mail}, Config),
    Known = token(#{~"mail" => ~"a@b"}, issuer(Config)),
    {ok, #{principal := {mail, ~"a@b"}}} = verify(Known, Handle),
    {internal_error, 500, none} = refused(token(#{}, issuer(Config)), Handle).

%% A token without `sub` and `client_id`, as of a server that names a user in `username` alone. A
%% `sub` that is there has to be valid, so that a fun can rely on it.
a_fun_names_what_has_no_subject(Config) ->
    Issuer = issuer(Config),
    Name = fun(#{~"username" := Username}) -> {user, Username};
              (#{~"sub" := Subject}) -> Subject
           end,
    Handle = handle(#{principal => Name,
                      tokens => [jwt(#{}, Issuer), introspection(#{}, Issuer)]}, Config),
    Unnamed = #{~"sub" => remove, ~"client_id" => remove, ~"username" => ~"ada"},
    [{ok, #{principal := {user, ~"ada"}}} = verify(Token, Handle)
     || Token <- [token(Unnamed, Issuer), erlmcp_test_bearer:opaque(Unnamed, Issuer)]],
    [{Subject, ?INVALID} = {Subject, refused(token(Unnamed#{~"sub" := Subject}, Issuer), Handle)}
     || Subject <- [7, ~"", null]].

requests_without_a_token(Config) ->
    Handle = handle(#{}, Config),
    Token = token(#{}, issuer(Config)),
    [{Field, Expected} = {Field, refusal(answer(request(Headers), Handle))}
     || {Field, Expected} <- [
            {none, {auth_missing, 401, none}},
            {~"Basic YTpi", {auth_missing, 401, none}},
            {~"Bearer", {auth_missing, 401, none}},
            {<<"DPoP ", Token/binary>>, {auth_missing, 401, none}},
            {~"Bearer ", {invalid_header, 400, ~"invalid_request"}},
            {<<"Bearer ", Token/binary, ", Bearer ", Token/binary>>,
             {invalid_header, 400, ~"invalid_request"}},
            {<<"Bearer ", Token/binary, " more">>, {invalid_header, 400, ~"invalid_request"}},
            {<<"Bearer ", Token/binary, "\n">>, {invalid_header, 400, ~"invalid_request"}},
            {~"Bearer \x{1}", {invalid_header, 400, ~"invalid_request"}},
            {~"Bearer nonsense", ?INVALID}],
        Headers <- [#{~"authorization" => Field || Field =/= none}]],
    0 = asked(~"/jwks", issuer(Config)).

%% Other sources.

static_tokens(Config) ->
    Hash = binary:encode_hex(crypto:hash(sha256, ~"hashed")),
    Past = erlang:system_time(second) - 1,
    Handle = handle(#{tokens => [{static, [
        #{token => ~"plain", principal => {user, ~"ada"}, scopes => [~"read"]},
        #{sha256 => string:lowercase(Hash), principal => bob},
        #{token => ~"root", principal => root, scopes => all},
        #{token => ~"old", principal => eve, expires_at => Past}]}]}, Config),
    {ok, #{principal := {user, ~"ada"}, scopes := [~"read"], expires_at := infinity,
           claims := #{}}} = verify(~"plain", Handle),
    {ok, #{principal := bob, scopes := []}} = verify(~"hashed", Handle),
    {ok, #{scopes := all}} = verify(~"root", Handle),
    ?EXPIRED = refused(~"old", Handle),
    [?INVALID = refused(Token, Handle) || Token <- [~"plai", ~"plainn", ~"PLAIN", Hash]].

a_fun_knows_tokens(Config) ->
    Past = erlang:system_time(second) - 1,
    Knows = fun(~"good", #{method := ~"POST", headers := #{}}) -> {ok, #{principal => ada}};
               (~"whole", _) -> {ok, #{principal => ada, scopes => [~"x"], expires_at => infinity,
                                       claims => #{~"a" => 1}}};
               (~"old", _) -> {ok, #{principal => ada, expires_at => Past}};
               (~"bad", _) -> {error, <<"no \"", 195, 164, "\" here">>};
               (~"odd", _) -> {ok, ada};
               (~"odder", _) -> {ok, #{principal => ada, scopes => x}};
               (~"oddest", _) -> {error, denied};
               (~"no_text", _) -> {error, <<255>>};
               (~"more", _) -> {ok, #{principal => ada, more => x}};
               (_, _) -> unknown
            end,
    Handle = handle(#{tokens => [{verify, Knows}]}, Config),
    {ok, #{principal := ada, scopes := [], expires_at := infinity}} = verify(~"good", Handle),
    {ok, #{scopes := [~"x"], claims := #{~"a" := 1}}} = verify(~"whole", Handle),
    ?EXPIRED = refused(~"old", Handle),
    ?INVALID = refused(~"bad", Handle),
    ?INVALID = refused(~"none", Handle),
    [{internal_error, 500, none} = refused(Token, Handle)
     || Token <- [~"odd", ~"odder", ~"oddest", ~"no_text"]],
    {ok, More} = verify(~"more", Handle),
    false = is_map_key(more, More),
    {error, Failure} = verify(~"bad", Handle),
    #{~"www-authenticate" :=
        ~B(Bearer error="invalid_token", error_description="no ???? here")} =
        erlmcp_bearer:headers(Handle, Failure, #{}).

%% The log has the incident, and nothing of the request.
a_fun_that_crashes(Config) ->
    Handle = handle(#{tokens => [{verify, fun(Token, _) -> error({not_this, Token}) end}]}, Config),
    ok = logger:add_handler(?MODULE, ?MODULE, #{config => self()}),
    Answer = verify(~"very-secret", Handle),
    ok = logger:remove_handler(?MODULE),
    {internal_error, 500, none} = refusal(Answer),
    receive
        {logged, Report} ->
            #{what := authenticate_failed, reason := not_this, incident := <<_/binary>>,
              server := ~"of the test"} = Report,
            nomatch = binary:match(iolist_to_binary(io_lib:format("~p", [Report])), ~"very-secret")
    after 5000 ->
        ct:fail(not_logged)
    end.

log(#{msg := {report, Report}}, #{config := Pid}) -> Pid ! {logged, Report};
log(_, _) -> ok.

%% "At most once for a request", though later sources ask other machines.
a_fun_is_called_once(Config) ->
    Issuer = issuer(Config),
    Other = erlmcp_test_issuer:start(),
    Calls = counters:new(1, []),
    Unknown = fun(_, _) -> counters:add(Calls, 1, 1), unknown end,
    Handle = handle(#{tokens => [{verify, Unknown}, jwt(#{}, Issuer), introspection(#{}, Issuer),
                                 introspection(#{}, Other)]}, Config),
    Theirs = #{~"aud" => ?URL},
    [begin
         ok = counters:put(Calls, 1, 0),
         {ok, _} = verify(Token, Handle),
         1 = counters:get(Calls, 1)
     end || Token <- [token(#{}, Issuer), erlmcp_test_issuer:opaque(Theirs, Issuer),
                      erlmcp_test_issuer:opaque(Theirs, Other)]],
    erlmcp_test_issuer:stop(Other).

sources_in_their_order(Config) ->
    Issuer = issuer(Config),
    Other = erlmcp_test_issuer:start(),
    Handle = handle(#{tokens => [{static, [#{token => ~"s", principal => static}]},
                                 jwt(#{}, Issuer), jwt(#{}, Other), introspection(#{}, Issuer),
                                 introspection(#{}, Other)]}, Config),
    {ok, #{principal := static}} = verify(~"s", Handle),
    {ok, #{principal := {One, _}}} = verify(token(#{}, issuer(Config)), Handle),
    One = erlmcp_test_issuer:url(Issuer),
    Theirs = #{~"aud" => ?URL},
    {ok, #{principal := {Two, _}}} = verify(erlmcp_test_issuer:token(Theirs, Other), Handle),
    Two = erlmcp_test_issuer:url(Other),
    {ok, #{principal := {Two, _}}} = verify(erlmcp_test_issuer:opaque(Theirs, Other), Handle),
    %% One issuer's keys serve for its own tokens alone.
    Claims = (erlmcp_test_issuer:claims(Issuer))#{~"aud" => ?URL},
    ?INVALID = refused(erlmcp_test_issuer:sign(Claims, Other), Handle),
    ?INVALID = refused(~"nobody", Handle),
    erlmcp_test_issuer:stop(Other).

%% Bounds: each at its limit, and one above.

tokens_are_bounded(Config) ->
    Token = fun(Size) -> binary:copy(~"t", Size) end,
    Handle = handle(#{tokens => [{static, [#{token => Token(Size), principal => Size}
                                           || Size <- [16_384, 16_385]]}]}, Config),
    {ok, #{principal := 16_384}} = verify(Token(16_384), Handle),
    {invalid_header, 400, ~"invalid_request"} = refused(Token(16_385), Handle).

static_tokens_are_bounded(_) ->
    Tokens = fun(Count) ->
        [{static, [#{sha256 => binary:encode_hex(<<Number:256>>, lowercase), principal => Number}
                   || Number <- lists:seq(1, Count)]}]
    end,
    Check = fun(Count) ->
        erlmcp_bearer_options:check(#{resource => ?URL, tokens => Tokens(Count)})
    end,
    ok = Check(10_000),
    {error, {bad_option, {tokens, 1, static}, _}} = Check(10_001).

numbers_are_at_least_one(_) ->
    Static = [{static, [#{token => ~"t", principal => a}]}],
    [{Name, Expected} = {Name, case erlmcp_bearer_options:check(
         #{resource => ?URL, tokens => Static, Name => Value}) of
             ok -> ok;
             {error, {bad_option, Wrong, _}} -> Wrong
         end}
     || Name <- [dpop_proofs, dpop_proofs_per_key, wait_ms],
        {Value, Expected} <- [{1, ok}, {0, Name}, {1.0, Name}]].

what_is_remembered_is_bounded(Config) ->
    #{tables := Tables} = handle(#{}, Config),
    Numbers = lists:seq(1, 10_001),
    [ok = erlmcp_bearer_tables:remember(Number, 1, lasting, {#{}, []}, Tables)
     || Number <- Numbers],
    [ok = erlmcp_bearer_tables:remember_inactive({1, Number}, 0, Tables) || Number <- Numbers],
    {ok, _, _} = erlmcp_bearer_tables:identity(10_000, 0, Tables),
    unknown = erlmcp_bearer_tables:identity(10_001, 0, Tables),
    [true, false] = [erlmcp_bearer_tables:is_inactive({1, Number}, 9, Tables)
                     || Number <- [10_000, 10_001]],
    false = erlmcp_bearer_tables:is_inactive({1, 1}, 10, Tables).

%% Two members have them, as text or as a list. What is none is left out.
scopes_of_a_token(Config) ->
    Handle = handle(#{}, Config),
    [{Claims, {ok, #{scopes := Scopes}}} = {Claims, verify(token(Claims, issuer(Config)), Handle)}
     || {Claims, Scopes} <- [{#{Member => Value}, Scopes}
                             || Member <- [~"scope", ~"scp"],
                                {Value, Scopes} <- [{~"a b", [~"a", ~"b"]},
                                                    {[~"a", ~"c d", 1], [~"a"]}, {7, []}]]].

%% RFC 8705.

a_token_of_a_certificate(Config) ->
    Handle = handle(#{}, Config),
    Der = ~"a certificate",
    Bound = token(#{~"cnf" => #{~"x5t#S256" => encode(crypto:hash(sha256, Der))}}, issuer(Config)),
    {ok, _} = answer((bearer(Bound))#{certificate => Der}, Handle),
    ?INVALID = refusal(answer((bearer(Bound))#{certificate => ~"another"}, Handle)),
    ?INVALID = refused(Bound, Handle).

unknown_bindings(Config) ->
    Handle = handle(#{}, Config),
    [{Binding, ?INVALID} = {Binding, refused(token(#{~"cnf" => Binding}, issuer(Config)), Handle)}
     || Binding <- [#{}, #{~"jwk" => #{}}, #{~"x5t#S256" => 1}, #{~"jkt" => ~"x"}, null, [],
                    #{~"x5t#S256" => ~"x", ~"kid" => ~"y"}]].

%% What the client is told.

challenges(Config) ->
    Url = ~"https://mcp.example/.well-known/oauth-protected-resource/mcp",
    Handle = handle(#{}, Config),
    Headers = fun(Answer, Parameters) ->
        {error, Failure} = Answer,
        erlmcp_bearer:headers(Handle, Failure, Parameters)
    end,
    Missing = answer(request(#{}), Handle),
    #{~"www-authenticate" := ~"Bearer"} = Headers(Missing, #{}),
    #{~"www-authenticate" := <<"Bearer scope=\"files:read x\", resource_metadata=\"", Url:60/binary,
                               "\"">>} =
        Headers(Missing, #{resource_metadata => Url, scope => [~"files:read", ~"x"]}),
    Now = erlang:system_time(second),
    #{~"www-authenticate" :=
        ~B(Bearer error="invalid_token", error_description="the token has expired")} =
        Headers(verify(token(#{~"exp" => Now - 1000}, issuer(Config)), Handle), #{}),
    #{~"www-authenticate" := <<"Bearer error=\"insufficient_scope\"", Rest/binary>>} =
        Headers({error, erlmcp_bearer_failure:insufficient(~"more is needed", [~"admin"])},
                #{scope => [~"read"]}),
    {match, _} = re:run(Rest, ~"scope=\"admin\""),
    #{} = None = Headers({error, erlmcp_bearer_failure:unavailable(~"x")}, #{}),
    0 = map_size(None),
    %% What our own client reads of it.
    [#{scheme := ~"bearer", params := #{~"resource_metadata" := Url}}] =
        erlmcp_challenge:parse(maps:get(~"www-authenticate",
                                        Headers(Missing, #{resource_metadata => Url}))).

metadata(Config) ->
    Url = erlmcp_test_issuer:url(issuer(Config)),
    #{~"resource" := ?URL, ~"authorization_servers" := [Url],
      ~"bearer_methods_supported" := [~"header"]} =
        erlmcp_bearer:metadata(handle(#{}, Config), ~"https://127.0.0.1/mcp"),
    #{~"dpop_bound_access_tokens_required" := true,
      ~"authorization_servers" := [~"https://b.example"],
      ~"dpop_signing_alg_values_supported" := [_ | _]} =
        erlmcp_bearer:metadata(handle(#{dpop => required,
                                        authorization_servers => [~"https://b.example"]}, Config),
                               ?URL).

options_that_are_wrong(Config) ->
    Jwt = #{issuer => ~"i", jwks => {uri, ~"https://i.example/jwks"}},
    Asking = #{issuer => ~"i", uri => ~"https://i.example/i", client_id => ~"c",
               client_secret => ~"s"},
    Good = #{tokens => [{jwt, Jwt}]},
    ok = erlmcp_bearer_options:check(Good),
    With = fun(Source) -> Good#{tokens := [{static, []}, Source]} end,
    [{Options, {error, {bad_option, Path, <<_/binary>>}}} =
         {Options, erlmcp_bearer_options:check(Options)}
     || {Options, Path} <- [
            {[], bearer}, {#{}, tokens}, {#{tokens => []}, tokens}, {#{tokens => x}, tokens},
            {Good#{unknown => 1}, unknown}, {Good#{resource => ~"mcp.example"}, resource},
            {Good#{resource => []}, resource},
            {Good#{resource => ~"https://a.example/#f"}, resource},
            {Good#{authorization_servers => [~"http://a.example"]}, authorization_servers},
            {Good#{tokens => [{static, []} | x]}, tokens},
            {Good#{resource => [~"https://a.example" | x]}, resource},
            {Good#{authorization_servers => [~"https://a.example" | x]}, authorization_servers},
            {With({static, [#{principal => a, token => ~"t"} | x]}), {tokens, 2, static}},
            {With({static, [#{principal => a, token => ~"t", scopes => [~"s" | x]}]}),
             {tokens, 2, static}},
            {With({jwt, Jwt#{types => [~"JWT" | x]}}), {tokens, 2, types}},
            {With({jwt, Jwt#{audience => [~"a" | x]}}), {tokens, 2, audience}},
            {With({jwt, Jwt#{algorithms => [~"ES256" | x]}}), {tokens, 2, algorithms}},
            {Good#{principal => x}, principal}, {Good#{dpop => true}, dpop},
            {Good#{dpop_nonce => yes}, dpop_nonce}, {Good#{tls => #{}}, tls},
            {Good#{wait_ms => 0}, wait_ms}, {Good#{dpop_proofs => 0}, dpop_proofs},
            {Good#{dpop_proofs_per_key => infinity}, dpop_proofs_per_key},
            {With(x), {tokens, 2}}, {With({jwt, x}), {tokens, 2}},
            {With({jwt, maps:remove(issuer, Jwt)}), {tokens, 2, issuer}},
            {With({jwt, maps:remove(jwks, Jwt)}), {tokens, 2, jwks}},
            {With({jwt, Jwt#{jwks := {keys, [#{}]}}}), {tokens, 2, jwks}},
            {With({jwt, Jwt#{jwks := {keys, [#{~"kty" => ~"oct", ~"k" => ~"AA"}]}}}),
             {tokens, 2, jwks}},
            {With({jwt, Jwt#{algorithms => [~"HS256"]}}), {tokens, 2, algorithms}},
            {With({jwt, Jwt#{algorithms => [~"none"]}}), {tokens, 2, algorithms}},
            {With({jwt, Jwt#{algorithms => []}}), {tokens, 2, algorithms}},
            {With({jwt, Jwt#{leeway_s => 301}}), {tokens, 2, leeway_s}},
            {With({jwt, Jwt#{types => ~"JWT"}}), {tokens, 2, types}},
            {With({jwt, Jwt#{audience => any}}), {tokens, 2, audience}},
            {With({jwt, Jwt#{key => 1}}), {tokens, 2, key}},
            {With({introspection, maps:remove(client_secret, Asking)}), {tokens, 2, client_secret}},
            {With({introspection, Asking#{uri := ~"http://i.example"}}), {tokens, 2, uri}},
            {With({introspection, Asking#{cache_s => 301}}), {tokens, 2, cache_s}},
            {With({introspection, Asking#{algorithm => ~"none"}}), {tokens, 2, algorithm}},
            {With({static, [#{token => ~"t"}]}), {tokens, 2, static}},
            {With({static, [#{principal => p}]}), {tokens, 2, static}},
            {With({static, [#{principal => p, token => ~""}]}), {tokens, 2, static}},
            {With({static, [#{principal => p, sha256 => ~"x"}]}), {tokens, 2, static}},
            {With({static, [#{principal => p, token => ~"t", sha256 => ~"x"}]}),
             {tokens, 2, static}},
            {With({static, [#{principal => p, token => ~"t", scopes => ~"a"}]}),
             {tokens, 2, static}},
            {With({verify, fun(_) -> unknown end}), {tokens, 2, verify}}]],
    [ok = erlmcp_bearer_options:check(Options)
     || Options <- [With({jwt, Jwt#{leeway_s => 300, audience => [~"a", ~"b"]}}),
                    With({introspection, Asking}), Good#{resource => [~"https://a.example/mcp"]},
                    With({introspection, (maps:remove(client_secret, Asking))#{key => ~"pem"}})]],
    _ = Config.

%% Which key, which member, what was expected and what came; and no secret.
an_option_that_is_wrong_says_why(_) ->
    Rsa = fun(Bits) ->
        element(2, jose_jwk:to_public_map(jose_jwk:generate_key({rsa, Bits})))
    end,
    {_, Ec} = jose_jwk:to_public_map(jose_jwk:generate_key({ec, ~"P-256"})),
    Short = ~"a secret of 31 bytes, or nearly.",
    Keys = fun(Jwk) -> #{jwks => {keys, [Jwk]}} end,
    OfFirst = ~"{keys, Jwks}, of which one at least serves for signatures; of the first, ",
    [begin
         {error, {bad_option, {tokens, 1, Name}, Text} = Reason} =
             erlmcp_bearer_options:check(#{tokens => [{jwt, maps:merge(
                 #{issuer => ~"i", jwks => {uri, ~"https://i.example/jwks"}}, Options)}]}),
         {Name, Text} = {Name, iolist_to_binary(Expected)},
         nomatch = binary:match(iolist_to_binary(io_lib:format("~p", [Reason])), ~"a secret of 31")
     end || {Name, Options, Expected} <- [
            {algorithms, #{algorithms => [~"RS256", ~"HS257"]},
             "a list of RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512, EdDSA, or "
             "of HS256, HS384, HS512, got \"HS257\""},
            {algorithms, #{algorithms => ['RS256']},
             "a list of RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512, EdDSA, or "
             "of HS256, HS384, HS512, got the atom \"RS256\""},
            {algorithms, #{algorithms => []}, ~"a list of at least one algorithm"},
            {algorithms, #{algorithms => [~"HS256"]},
             "algorithms with public keys, since jwks has such keys; HS256 needs jwks => "
             "{secret, Secret}"},
            {algorithms, #{jwks => {secret, Short}},
             ~"HS256, HS384 or HS512, by name: jwks has a secret"},
            {algorithms, (Keys(Ec))#{algorithms => [~"RS256", ~"PS256"]},
             ~"an algorithm that one of the keys serves for: none does for RS256, PS256"},
            {jwks, #{jwks => {secret, binary:part(Short, 0, 31)}, algorithms => [~"HS256"]},
             ~"{secret, Secret} with a secret of at least 32 bytes for HS256, got 31"},
            {jwks, #{jwks => {secret, Short}, algorithms => [~"HS256", ~"HS512"]},
             ~"{secret, Secret} with a secret of at least 64 bytes for HS512, got 32"},
            {jwks, #{jwks => {secret, secret}, algorithms => [~"HS256"]},
             ~"{secret, Secret} with a secret as a binary, or a fun that gives {ok, Secret}"},
            {jwks, #{jwks => {secret, fun() -> {error, nothing} end}, algorithms => [~"HS256"]},
             ~"{secret, Secret} with a binary, or a fun that gives {ok, Secret}"},
            {jwks, #{jwks => ~"https://i.example/jwks"},
             ~"{uri, Url}, {keys, Jwks} or {secret, Secret}"},
            {jwks, Keys(Rsa(1024)), [OfFirst, "n: expected a number of 2048 to 8192 bits, got "
                                              "1024"]},
            {jwks, Keys(#{~"kty" => ~"oct", ~"k" => Short}),
             [OfFirst, ~"kty: oct is a secret, which is given as {secret, Secret}"]},
            {jwks, Keys(#{~"kty" => ~"rsa"}),
             [OfFirst, ~"kty: expected RSA, EC or OKP, got \"rsa\""]},
            {jwks, Keys(#{kty => ~"RSA"}),
             [OfFirst, ~"kty: expected names and values that are binaries"]},
            {jwks, Keys(#{~"n" => ~"AQAB"}), [OfFirst, "kty: expected RSA, EC or OKP, got "
                                                       "nothing"]},
            {jwks, Keys(Ec#{~"crv" => ~"secp256k1"}),
             [OfFirst, ~"crv: expected P-256, P-384 or P-521, got \"secp256k1\""]},
            {jwks, Keys(Ec#{~"y" => ~"AQAB"}), [OfFirst, "y: expected 32 bytes in base64url, got "
                                                         "3"]},
            {jwks, Keys(Ec#{~"use" => ~"enc"}), [OfFirst, ~"use: expected sig, got \"enc\""]},
            {jwks, Keys(Ec#{~"key_ops" => [~"sign"]}),
             [OfFirst, ~"key_ops: expected a list with verify, got no text"]},
            {jwks, Keys(Ec#{~"key_ops" => [~"verify"], ~"x" => ~"AQAB"}),
             [OfFirst, ~"x: expected 32 bytes in base64url, got 3"]},
            {jwks, Keys(maps:remove(~"x", Ec)),
             [OfFirst, ~"x: expected 32 bytes in base64url, got none"]},
            {jwks, Keys(maps:remove(~"crv", Ec)),
             [OfFirst, ~"crv: expected P-256, P-384 or P-521, got nothing"]},
            {jwks, Keys(Ec#{~"kid" => 1}),
             [OfFirst, ~"alg and kid: expected texts of at most 1024 bytes, got others: kid"]},
            {jwks, Keys(#{~"kty" => ~"OKP", ~"crv" => ~"X25519"}),
             [OfFirst, ~"crv: expected Ed25519, got \"X25519\""]},
            {jwks, Keys(#{~"kty" => ~"OKP", ~"crv" => ~"Ed25519", ~"x" => ~"AQAB"}),
             [OfFirst, ~"x: expected 32 bytes in base64url, got 3"]},
            {jwks, Keys((Rsa(2048))#{~"n" => 1}),
             [OfFirst, ~"n: expected a number in base64url, got no text"]},
            {jwks, Keys((Rsa(2048))#{~"e" => ~"AQAAAAE"}),
             [OfFirst, ~"e: expected a number of at most 4 bytes in base64url, got \"AQAAAAE\""]},
            {jwks, Keys((Rsa(2048))#{~"alg" => 1}),
             [OfFirst, ~"alg and kid: expected texts of at most 1024 bytes, got others: alg"]},
            {jwks, Keys(~"-----BEGIN PUBLIC KEY-----"),
             [OfFirst, ~"expected a map with kty and the members of its kind"]}]],
    %% A crash of the user's fun is not a wrong option.
    Crashing = {jwt, #{issuer => ~"i", algorithms => [~"HS256"],
                       jwks => {secret, fun() -> error(on_purpose) end}}},
    {error, on_purpose} = erlmcp_test_servers:started(#{
        name => ~"api", version => ~"1",
        listen => [{http, #{port => 0, authenticate => {bearer, #{tokens => [Crashing]}}}}]}).

an_algorithm_that_is_not_taken_is_named(Config) ->
    erlmcp_test_issuer:rotate(~"ES384", issuer(Config)),
    {error, #{refusal := Refusal}} = verify(token(#{}, issuer(Config)), handle(#{}, Config)),
    ~"the token's algorithm ES384 is not accepted, only RS256, PS256, ES256, EdDSA" =
        erlmcp_refusal:message(Refusal).

%% What is printed of a listener's state has no token and no secret.
no_secret_is_shown(Config) ->
    Hmac = #{jwks => {secret, ~"an hm4c secret of 32 bytes, and more"}, algorithms => [~"HS256"],
             issuer => ~"https://hmac.example"},
    Handle = handle(#{tokens => [{static, [#{token => ~"st4tic", principal => p}]},
                                 jwt(Hmac, issuer(Config)),
                                 introspection(#{client_secret => ~"s3cret"}, issuer(Config))]},
                    Config),
    #{tables := #{identities := Identities} = Tables} = Handle,
    {ok, Keeper} = erlmcp_bearer_tables:keeper(Tables),
    held(~"/introspect", {500, #{}, ~""}, issuer(Config)),
    Wait = begun(bearer(~"0paque"), Handle),
    Asked = next_asked(),
    Shown = iolist_to_binary(io_lib:format("~p ~p ~p", [erlmcp_bearer:child_spec(Handle),
                                                        sys:get_state(Keeper),
                                                        ets:tab2list(Identities)])),
    [{Secret, nomatch} = {Secret, binary:match(Shown, Secret)}
     || Secret <- [~"st4tic", ~"s3cret", ~"0paque", ~"hm4c"]],
    Asked ! go_on,
    ?UNAVAILABLE = refusal(awaited(Wait, Handle)).
