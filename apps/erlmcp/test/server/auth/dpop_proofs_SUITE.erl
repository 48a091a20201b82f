-module(dpop_proofs_SUITE).
-moduledoc """
Tokens that are bound to a key (RFC 9449), as a listener checks them. Proofs are the client's own
(`m:erlmcp_dpop`) where they are good, and written by hand where they are not.
""".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([a_bound_token_with_its_proof/1, every_algorithm_serves/1, what_a_listener_takes/1]).
-export([a_bound_token_is_no_bearer_token/1, an_unbound_token_needs_no_proof_and_gets_none/1]).
-export([another_key_is_no_use/1, what_a_proof_must_say/1, what_is_no_proof/1, urls/1,
         paths_need_not_be_text/1]).
-export([a_proof_serves_once/1, how_old_and_how_far_ahead/1, proofs_are_bounded/1,
         proofs_of_one_key_are_bounded/1, keys_leave_room_for_others/1, keys_are_forgotten/1,
         all_of_a_flood_is_forgotten/1]).
-export([a_flood_of_one_key_shuts_out_no_other/1, discovery_is_not_told_429/1]).
-export([nonces/1, nonces_change/1]).
-export([mutated_proofs_are_never_accepted/1, challenges/1,
         an_error_is_in_the_challenge_of_its_scheme/1]).

-import(erlmcp_test_suite, [issuer/1]).
-import(erlmcp_test_bearer, [encode/1, part/1]).

-define(URL, ~"https://mcp.example/mcp").

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

%% Keys that are given: nobody waits, and no process is needed.
handle(Options, Config) ->
    #{~"keys" := Keys} = erlmcp_test_issuer:keys(issuer(Config)),
    Given = maps:merge(#{tokens => [{jwt, #{issuer => erlmcp_test_issuer:url(issuer(Config)),
                                            jwks => {keys, Keys}}}],
                         resource => ?URL, dpop => optional}, Options),
    ok = erlmcp_bearer_options:check(Given),
    erlmcp_bearer:new(erlmcp_bearer_options:settings(Given), make_ref()).

token(Confirmation, Config) ->
    erlmcp_test_issuer:token(#{~"aud" => ?URL, ~"cnf" => Confirmation}, issuer(Config)).

bound(Key, Config) ->
    token(#{~"jkt" => erlmcp_dpop:thumbprint(Key)}, Config).

verify(Scheme, Token, Proof, Handle) ->
    verify(~"/mcp", Scheme, Token, Proof, Handle).

verify(Path, Scheme, Token, Proof, Handle) ->
    Headers = #{~"authorization" => <<Scheme/binary, " ", Token/binary>>,
                ~"dpop" => Proof},
    Request = #{url => ~"https://127.0.0.1:8443/mcp", method => ~"POST", path => Path,
                headers => maps:filter(fun(_, Value) -> Value =/= none end, Headers)},
    erlmcp_bearer:verify(Handle, Request, {self(), unused}).

refused(Scheme, Token, Proof, Handle) ->
    {error, #{refusal := Refusal} = Failure} = verify(Scheme, Token, Proof, Handle),
    {erlmcp_refusal:name(Refusal), erlmcp_refusal:status(Refusal),
     maps:get(error, Failure, none)}.

-define(INVALID, {auth_invalid_credentials, 401, ~"invalid_token"}).
-define(NO_PROOF, {auth_failed, 401, ~"invalid_dpop_proof"}).
-define(MISSING, {auth_missing, 401, none}).

proof(Token, Key) ->
    erlmcp_dpop:proof(~"POST", ?URL, #{access_token => Token}, Key).

a_bound_token_with_its_proof(Config) ->
    Key = erlmcp_dpop:new(),
    Token = bound(Key, Config),
    [begin
         Handle = handle(#{dpop => Dpop}, Config),
         {ok, #{principal := {_, ~"ada"}} = Identity} =
             verify(~"DPoP", Token, proof(Token, Key), Handle),
         false = is_map_key(dpop_nonce, Identity),
         {ok, _} = verify(~"dpop", Token, proof(Token, Key), Handle)
     end || Dpop <- [optional, required]].

%% A proof that is written by hand, with these changes.
written(Token, Jose, Algorithm, Header, Claims) ->
    {_, Public} = jose_jwk:to_public_map(Jose),
    Now = erlang:system_time(second),
    Payload = maps:merge(#{~"jti" => jti(), ~"htm" => ~"POST", ~"htu" => ?URL, ~"iat" => Now,
                           ~"ath" => encode(crypto:hash(sha256, Token))}, Claims),
    Protected = maps:merge(#{~"typ" => ~"dpop+jwt", ~"alg" => Algorithm, ~"jwk" => Public}, Header),
    {_, Proof} = jose_jws:compact(jose_jws:sign(
        Jose, iolist_to_binary(json:encode(present(Payload))), present(Protected))),
    Proof.

present(Map) -> maps:filter(fun(_, Value) -> Value =/= remove end, Map).

jti() -> binary:encode_hex(crypto:strong_rand_bytes(8)).

thumbprint(Jose) -> jose_jwk:thumbprint(Jose).

every_algorithm_serves(Config) ->
    Handle = handle(#{}, Config),
    [begin
         Token = token(#{~"jkt" => thumbprint(Jose)}, Config),
         {Algorithm, {ok, _}} =
             {Algorithm, verify(~"DPoP", Token, written(Token, Jose, Algorithm, #{}, #{}), Handle)}
     end || {Algorithm, Jose} <- [{~"ES256", jose_jwk:generate_key({ec, ~"P-256"})},
                                  {~"EdDSA", jose_jwk:generate_key({okp, 'Ed25519'})},
                                  {~"RS256", jose_jwk:generate_key({rsa, 2048})},
                                  {~"PS256", jose_jwk:generate_key({rsa, 2048})}]],
    [begin
         Token = token(#{~"jkt" => thumbprint(Jose)}, Config),
         {Algorithm, ?NO_PROOF} =
             {Algorithm, refused(~"DPoP", Token, written(Token, Jose, Algorithm, #{}, #{}), Handle)}
     end || {Algorithm, Jose} <- [{~"ES384", jose_jwk:generate_key({ec, ~"P-384"})},
                                  {~"RS256", jose_jwk:generate_key({rsa, 1024})}]].

what_a_listener_takes(Config) ->
    Key = erlmcp_dpop:new(),
    Bound = bound(Key, Config),
    Plain = token(remove, Config),
    [{Dpop, Scheme, Expected} =
         {Dpop, Scheme, outcome(verify(Scheme, Token, proof(Token, Key),
                                       handle(#{dpop => Dpop}, Config)))}
     || {Dpop, Scheme, Token, Expected} <- [
            {off, ~"Bearer", Plain, ok}, {off, ~"Bearer", Bound, ~"invalid_token"},
            {off, ~"DPoP", Bound, none}, {optional, ~"Bearer", Plain, ok},
            {optional, ~"Bearer", Bound, ~"invalid_token"}, {optional, ~"DPoP", Bound, ok},
            {optional, ~"DPoP", Plain, ~"invalid_token"}, {required, ~"Bearer", Plain, none},
            {required, ~"Bearer", Bound, none}, {required, ~"DPoP", Bound, ok},
            {required, ~"DPoP", Plain, ~"invalid_token"}]].

outcome({ok, _}) -> ok;
outcome({error, Failure}) -> maps:get(error, Failure, none).

%% "...MUST be rejected": section 7.2.
a_bound_token_is_no_bearer_token(Config) ->
    Key = erlmcp_dpop:new(),
    Token = bound(Key, Config),
    Handle = handle(#{}, Config),
    %% Not before it was used with a proof, and not after, when it is known.
    ?INVALID = refused(~"Bearer", Token, none, Handle),
    {ok, _} = verify(~"DPoP", Token, proof(Token, Key), Handle),
    ?INVALID = refused(~"Bearer", Token, none, Handle),
    ?INVALID = refused(~"Bearer", Token, proof(Token, Key), Handle).

an_unbound_token_needs_no_proof_and_gets_none(Config) ->
    Token = token(remove, Config),
    Handle = handle(#{}, Config),
    {ok, _} = verify(~"Bearer", Token, none, Handle),
    ?INVALID = refused(~"DPoP", Token, proof(Token, erlmcp_dpop:new()), Handle).

another_key_is_no_use(Config) ->
    Key = erlmcp_dpop:new(),
    Token = bound(Key, Config),
    Handle = handle(#{}, Config),
    ?INVALID = refused(~"DPoP", Token, proof(Token, erlmcp_dpop:new()), Handle),
    {ok, _} = verify(~"DPoP", Token, proof(Token, Key), Handle),
    %% Nor is the key's, with what another token is bound to.
    Other = token(#{~"jkt" => ~"nobody"}, Config),
    ?INVALID = refused(~"DPoP", Other, proof(Other, Key), Handle).

what_a_proof_must_say(Config) ->
    Jose = jose_jwk:generate_key({ec, ~"P-256"}),
    Token = token(#{~"jkt" => thumbprint(Jose)}, Config),
    Handle = handle(#{}, Config),
    Now = erlang:system_time(second),
    Proof = fun(Claims) -> written(Token, Jose, ~"ES256", #{}, Claims) end,
    [{Claims, {ok, _}} = {Claims, verify(~"DPoP", Token, Proof(Claims), Handle)}
     || Claims <- [#{}, #{~"iat" => Now - 30}, #{~"iat" => Now + 5}, #{~"iat" => Now + 0.5},
                   #{~"more" => true}, #{~"more" => binary:copy(~"m", 10_000)},
                   #{~"jti" => binary:copy(~"j", 256)}]],
    [{Claims, ?NO_PROOF} = {Claims, refused(~"DPoP", Token, Proof(Claims), Handle)}
     || Claims <- [#{~"jti" => remove}, #{~"jti" => ~""}, #{~"jti" => 1},
                   #{~"jti" => binary:copy(~"j", 257)}, #{~"htm" => remove}, #{~"htm" => ~"GET"},
                   #{~"htm" => ~"post"}, #{~"htu" => remove}, #{~"htu" => 1},
                   #{~"iat" => remove}, #{~"iat" => Now - 3600}, #{~"iat" => Now + 3600},
                   #{~"iat" => Now + 60}, #{~"iat" => 1.0e300}, #{~"iat" => -1.0e300},
                   #{~"iat" => integer_to_binary(Now)}, #{~"ath" => remove},
                   #{~"ath" => encode(crypto:hash(sha256, ~"another"))}, #{~"ath" => ~""},
                   #{~"ath" => Token}, #{~"more" => binary:copy(~"m", 13_000)}]].

what_is_no_proof(Config) ->
    Jose = jose_jwk:generate_key({ec, ~"P-256"}),
    Token = token(#{~"jkt" => thumbprint(Jose)}, Config),
    Handle = handle(#{}, Config),
    {_, Private} = jose_jwk:to_map(Jose),
    {_, Public} = jose_jwk:to_public_map(Jose),
    {_, Other} = jose_jwk:to_public_map(jose_jwk:generate_key({ec, ~"P-256"})),
    Headers = [#{~"typ" => remove}, #{~"typ" => ~"JWT"}, #{~"typ" => ~"at+jwt"},
               #{~"jwk" => remove}, #{~"jwk" => Private}, #{~"jwk" => Other}, #{~"jwk" => #{}},
               #{~"jwk" => ~"x"}, #{~"crit" => [~"jwk"]},
               #{~"jwk" => Public#{~"p" => ~"AQ"}}, #{~"jwk" => Public#{~"q" => ~"AQ"}},
               #{~"jwk" => Public#{~"k" => ~"AQ"}},
               #{~"jwk" => #{~"kty" => ~"oct", ~"k" => ~"AAAA"}}],
    [{Header, ?NO_PROOF} =
         {Header, refused(~"DPoP", Token, written(Token, Jose, ~"ES256", Header, #{}), Handle)}
     || Header <- Headers],
    Good = written(Token, Jose, ~"ES256", #{}, #{}),
    [Header, Claims, _] = binary:split(Good, ~".", [global]),
    None = part(#{~"typ" => ~"dpop+jwt", ~"alg" => ~"none",
                  ~"jwk" => Public}),
    [{Text, ?NO_PROOF} = {Text, refused(~"DPoP", Token, Text, Handle)}
     || Text <- [none, ~"", ~"x", <<Good/binary, ", ", Good/binary>>,
                 <<None/binary, ".", Claims/binary, ".">>,
                 <<None/binary, ".", Claims/binary, ".AAAA">>,
                 <<Header/binary, ".", Claims/binary, ".">>, binary:copy(~"a", 20_000)]].

%% Where a proxy stands before it, the client's URL is on the resource's origin.
urls(Config) ->
    Jose = jose_jwk:generate_key({ec, ~"P-256"}),
    Token = token(#{~"jkt" => thumbprint(Jose)}, Config),
    Proof = fun(Url) -> written(Token, Jose, ~"ES256", #{}, #{~"htu" => Url}) end,
    Handle = handle(#{resource => [?URL, ~"https://b.example/public"]}, Config),
    [{Url, {ok, _}} = {Url, verify(~"DPoP", Token, Proof(Url), Handle)}
     || Url <- [?URL, ~"https://mcp.example:443/mcp?a=b#c", ~"HTTPS://MCP.Example/mcp",
                ~"https://b.example/mcp", ~"https://b.example/public"]],
    [{Url, ?NO_PROOF} = {Url, refused(~"DPoP", Token, Proof(Url), Handle)}
     || Url <- [~"https://mcp.example", ~"https://mcp.example/other", ~"http://mcp.example/mcp",
                ~"https://mcp.example:8443/mcp", ~"https://c.example/mcp", ~"/mcp", ~"",
                ~"https://mcp.example/MCP", ~"https://127.0.0.1:8443/mcp",
                ~"https://mcp.example@evil.example/mcp"]].

%% A client sends any octets in a path. In a URL they are percent-encoded.
paths_need_not_be_text(Config) ->
    Key = erlmcp_dpop:new(),
    Token = bound(Key, Config),
    Handle = handle(#{}, Config),
    Verify = fun(Path, Url) ->
        Proof = erlmcp_dpop:proof(~"POST", Url, #{access_token => Token}, Key),
        verify(Path, ~"DPoP", Token, Proof, Handle)
    end,
    [begin
         {Path, {ok, _}} = {Path, Verify(Path, Url)},
         {error, #{error := ~"invalid_dpop_proof"}} = Verify(Path, <<Url/binary, "%E9">>)
     end || {Path, Url} <- [{<<"/mcp/", 233>>, ~"https://mcp.example/mcp/%E9"},
                            {<<"/mcp/", 195, 169, "%41">>, ~"https://mcp.example/mcp/%C3%A9%41"},
                            {<<"/", 255, "/", 128>>, ~"https://mcp.example/%FF/%80"}]].

a_proof_serves_once(Config) ->
    Key = erlmcp_dpop:new(),
    Token = bound(Key, Config),
    Handle = handle(#{}, Config),
    Proof = proof(Token, Key),
    {ok, _} = verify(~"DPoP", Token, Proof, Handle),
    ?NO_PROOF = refused(~"DPoP", Token, Proof, Handle),
    {ok, _} = verify(~"DPoP", Token, proof(Token, Key), Handle),
    %% Of many at the same time one.
    Again = proof(Token, Key),
    Test = self(),
    Pids = [spawn_link(fun() ->
                           receive go -> Test ! {self(), verify(~"DPoP", Token, Again, Handle)} end
                       end) || _ <- lists:seq(1, 20)],
    [Pid ! go || Pid <- Pids],
    Answers = [receive {Pid, Answer} -> Answer end || Pid <- Pids],
    1 = length([ok || {ok, _} <- Answers]),
    %% What was refused for another reason is not used up, and an id is the key's own.
    Same = #{~"jti" => ~"the-same"},
    [begin
         Jose = jose_jwk:generate_key({ec, ~"P-256"}),
         Own = token(#{~"jkt" => thumbprint(Jose)}, Config),
         ?NO_PROOF = refused(~"DPoP", Own, written(Own, Jose, ~"ES256", #{},
                                                   Same#{~"htm" => ~"GET"}), Handle),
         {ok, _} = verify(~"DPoP", Own, written(Own, Jose, ~"ES256", #{}, Same), Handle)
     end || _ <- [one, two]].

%% "...MAY accept DPoP proofs that carry an iat time in the reasonably near future": section 11.1.
how_old_and_how_far_ahead(_) ->
    Jose = jose_jwk:generate_key({ec, ~"P-256"}),
    Now = 1_000_000,
    Checked = fun(At) ->
        erlmcp_dpop_proof:check(written(~"t", Jose, ~"ES256", #{}, #{~"iat" => At}),
                                #{method => ~"POST", urls => [?URL], token => ~"t", now => Now})
    end,
    {ok, #{until := 1_000_066}} = Checked(Now + 5),
    {ok, #{until := 1_000_001}} = Checked(Now - 60),
    [{At, {error, Text}} = {At, Checked(At)}
     || {At, Text} <- [
            {Now + 6, ~"iat: the proof is 6 s ahead of this server's clock: at most 5"},
            {Now + 5.5, ~"iat: the proof is 6 s ahead of this server's clock: at most 5"},
            {Now - 61, ~"iat: the proof is 61 s behind this server's clock: at most 60"},
            {1.0e300, ~"iat: the proof is 1000000000 s ahead of this server's clock: at most 5"},
            {~"1000000", ~"iat: expected a number of seconds"}]].

%% The bounds of a table with these options.
tables(Options, Config) ->
    #{tables := Tables} = Handle = handle(Options, Config),
    {Tables, Handle}.

used(Thumbprint, Count, Tables) ->
    [erlmcp_bearer_tables:use_proof({Thumbprint, integer_to_binary(Id)},
                                    erlang:system_time(second) + 60, Tables)
     || Id <- lists:seq(1, Count)].

proofs_are_bounded(Config) ->
    {Tables, Handle} = tables(#{dpop_proofs => 100, dpop_proofs_per_key => 100}, Config),
    Key = erlmcp_dpop:new(),
    Token = bound(Key, Config),
    [ok] = lists:usort(used(~"another", 99, Tables)),
    {ok, _} = verify(~"DPoP", Token, proof(Token, Key), Handle),
    {backpressure_active, 503, none} = refused(~"DPoP", Token, proof(Token, Key), Handle),
    Now = erlang:system_time(second),
    0 = erlmcp_bearer_tables:sweep(Now, Tables),
    %% With the token, which was remembered too.
    101 = erlmcp_bearer_tables:sweep(Now + 62, Tables),
    {ok, _} = verify(~"DPoP", Token, proof(Token, Key), Handle).

proofs_of_one_key_are_bounded(Config) ->
    {Tables, Handle} = tables(#{dpop_proofs_per_key => 20}, Config),
    Key = erlmcp_dpop:new(),
    Token = bound(Key, Config),
    [ok] = lists:usort(used(erlmcp_dpop:thumbprint(Key), 19, Tables)),
    {ok, _} = verify(~"DPoP", Token, proof(Token, Key), Handle),
    {error, #{refusal := Refusal} = Failure} = verify(~"DPoP", Token, proof(Token, Key), Handle),
    {rate_limit_exceeded, 429} = {erlmcp_refusal:name(Refusal), erlmcp_refusal:status(Refusal)},
    #{~"message" := <<"DPoP: the key", _/binary>>,
      ~"data" := #{~"limit" := 20, ~"refusal" := 1056, ~"retryAfterMs" := 5000}} =
        json:decode(iolist_to_binary(erlmcp_refusal:encode(Refusal))),
    %% No token helps, so none is asked for.
    0 = map_size(erlmcp_bearer:headers(Handle, Failure, #{})),
    %% A proof that is sent again counts once.
    Other = erlmcp_dpop:new(),
    Bound = bound(Other, Config),
    Again = proof(Bound, Other),
    {ok, _} = verify(~"DPoP", Bound, Again, Handle),
    [?NO_PROOF = refused(~"DPoP", Bound, Again, Handle) || _ <- lists:seq(1, 40)],
    {ok, _} = verify(~"DPoP", Bound, proof(Bound, Other), Handle).

%% Many keys of one flood: each has less than the one before, and one that comes after has room.
keys_leave_room_for_others(Config) ->
    {Tables, _} = tables(#{dpop_proofs => 1000, dpop_proofs_per_key => 100}, Config),
    Flood = [length([ok || ok <- used(integer_to_binary(Name), 101, Tables)])
             || Name <- lists:seq(1, 30)],
    100 = hd(Flood),
    true = Flood =:= lists:reverse(lists:sort(Flood)),
    true = lists:sum(Flood) < 1000,
    [ok, ok] = used(~"good", 2, Tables).

%% What is remembered of keys ends with their proofs.
keys_are_forgotten(Config) ->
    {#{provers := Provers} = Tables, _} = tables(#{dpop_proofs_per_key => 2}, Config),
    [[ok, ok, {full, key, 2}] = used(integer_to_binary(Name), 3, Tables)
     || Name <- lists:seq(1, 2000)],
    2000 = ets:info(Provers, size),
    4000 = erlmcp_bearer_tables:sweep(erlang:system_time(second) + 60, Tables),
    0 = ets:info(Provers, size).

%% The table is smaller with each proof, and still no other is left out.
all_of_a_flood_is_forgotten(Config) ->
    Many = 50_000,
    {#{proofs := Proofs} = Tables, _} =
        tables(#{dpop_proofs => Many, dpop_proofs_per_key => Many}, Config),
    [ok] = lists:usort(used(~"flood", Many, Tables)),
    Many = erlmcp_bearer_tables:sweep(erlang:system_time(second) + 60, Tables),
    0 = ets:info(Proofs, size).

%% The attack: one token and its key, and as many good proofs as they like.
a_flood_of_one_key_shuts_out_no_other(_) ->
    with_listener(#{dpop => required, dpop_proofs => 60, dpop_proofs_per_key => 20},
                  fun(Server) ->
        Flood = erlmcp_dpop:new(),
        Good = erlmcp_dpop:new(),
        [#{status := 200} = asked(~"tools/list", Flood, Server) || _ <- lists:seq(1, 20)],
        [begin
             #{status := 429, headers := #{~"retry-after" := ~"5"} = Headers,
               messages := [#{~"error" := #{~"data" := #{~"name" := ~"rate_limit_exceeded",
                                                         ~"limit" := 20}}}]} =
                 asked(~"tools/list", Flood, Server),
             false = is_map_key(~"www-authenticate", Headers)
         end || _ <- lists:seq(1, 100)],
        [#{status := 200} = asked(~"tools/list", Good, Server) || _ <- lists:seq(1, 10)]
    end).

discovery_is_not_told_429(_) ->
    with_listener(#{dpop => required, dpop_proofs_per_key => 1}, fun(Server) ->
        Key = erlmcp_dpop:new(),
        #{status := 200} = asked(~"server/discover", Key, Server),
        #{status := 503, messages := [#{~"error" := #{~"data" := #{~"refusal" := 1056}}}]} =
            asked(~"server/discover", Key, Server)
    end).

%% Tokens that are the thumbprints of the keys that they are bound to.
with_listener(Options, Fun) ->
    Applications = erlmcp_test_applications:start([erlmcp], []),
    Verify = fun(Token, _) ->
        {ok, #{principal => Token, scopes => all,
               claims => #{~"cnf" => #{~"jkt" => Token}}}}
    end,
    Bearer = Options#{tokens => [{verify, Verify}],
                      authorization_servers => [~"https://as.example"]},
    Server = erlmcp_test_http:start(#{listen => [{http, #{authenticate => {bearer, Bearer}}}]}),
    try
        Fun(Server)
    after
        erlmcp_test_http:stop(Server),
        erlmcp_test_applications:stop(Applications)
    end.

asked(Method, Key, #{url := Url} = Server) ->
    Token = erlmcp_dpop:thumbprint(Key),
    Proof = erlmcp_dpop:proof(~"POST", Url, #{access_token => Token}, Key),
    erlmcp_test_http:call(Server, Method, #{},
                          #{headers => #{~"authorization" => <<"DPoP ", Token/binary>>,
                                         ~"dpop" => Proof}}).

nonces(Config) ->
    Key = erlmcp_dpop:new(),
    Token = bound(Key, Config),
    Handle = handle(#{dpop_nonce => true}, Config),
    {error, #{error := ~"use_dpop_nonce", dpop_nonce := Nonce} = Failure} =
        verify(~"DPoP", Token, proof(Token, Key), Handle),
    #{~"dpop-nonce" := Nonce, ~"www-authenticate" := Challenge} =
        erlmcp_bearer:headers(Handle, Failure, #{}),
    [#{scheme := ~"bearer", params := NoError},
     #{scheme := ~"dpop", params := #{~"error" := ~"use_dpop_nonce"}}] =
        erlmcp_challenge:parse(Challenge),
    0 = map_size(NoError),
    With = fun(Given) ->
        erlmcp_dpop:proof(~"POST", ?URL, #{access_token => Token, nonce => Given}, Key)
    end,
    {ok, _} = verify(~"DPoP", Token, With(Nonce), Handle),
    %% Another listener's is none.
    Other = handle(#{dpop_nonce => true}, Config),
    [{auth_failed, 401, ~"use_dpop_nonce"} = refused(~"DPoP", Token, With(Wrong), Handle)
     || Wrong <- [~"", ~"x", <<Nonce/binary, "A">>]],
    {auth_failed, 401, ~"use_dpop_nonce"} = refused(~"DPoP", Token, With(Nonce), Other).

nonces_change(_) ->
    Secret = erlmcp_dpop_nonce:new(),
    Now = 1_000_000 * 300,
    Nonce = erlmcp_dpop_nonce:current(Secret, Now),
    Nonce = erlmcp_dpop_nonce:current(Secret, Now + 299),
    Next = erlmcp_dpop_nonce:current(Secret, Now + 300),
    true = Next =/= Nonce,
    [Is = erlmcp_dpop_nonce:period(Secret, Nonce, At)
     || {At, Is} <- [{Now, current}, {Now + 299, current}, {Now + 300, previous},
                     {Now + 599, previous}, {Now + 600, false}, {Now - 1, false}]],
    [false = erlmcp_dpop_nonce:period(Secret, Wrong, Now) || Wrong <- [none, 1, ~"", null]].

mutated_proofs_are_never_accepted(Config) ->
    Key = erlmcp_dpop:new(),
    Token = bound(Key, Config),
    Handle = handle(#{}, Config),
    Property = ?FORALL({At, Change, Byte}, {non_neg_integer(), oneof([replace, insert, delete]),
                                            oneof([integer($A, $Z), integer($0, $9), $., $-])},
        begin
            Proof = proof(Token, Key),
            Mutated = mutated(At * 37 rem byte_size(Proof), Change, Byte, Proof),
            Mutated =:= Proof
                orelse element(1, verify(~"DPoP", Token, Mutated, Handle)) =:= error
        end),
    ok = erlmcp_test_property:holds(Property, 200).

mutated(At, Change, Byte, Proof) ->
    <<Before:At/binary, Old, After/binary>> = Proof,
    case Change of
        replace -> <<Before/binary, Byte, After/binary>>;
        insert -> <<Before/binary, Byte, Old, After/binary>>;
        delete -> <<Before/binary, After/binary>>
    end.

challenges(Config) ->
    Challenge = fun(Dpop, Failure) ->
        #{~"www-authenticate" := Field} =
            erlmcp_bearer:headers(handle(#{dpop => Dpop}, Config), Failure, #{}),
        Field
    end,
    {error, Missing} = erlmcp_bearer:verify(handle(#{}, Config),
                                            #{url => ?URL, method => ~"POST", path => ~"/mcp",
                                              headers => #{}}, {self(), unused}),
    ~"Bearer" = Challenge(off, Missing),
    ~B(Bearer, DPoP algs="ES256 EdDSA RS256 PS256") = Challenge(optional, Missing),
    ~B(DPoP algs="ES256 EdDSA RS256 PS256") = Challenge(required, Missing),
    {error, Unbound} = verify(~"DPoP", token(remove, Config), none, handle(#{}, Config)),
    [#{scheme := ~"bearer", params := None},
     #{scheme := ~"dpop", params := #{~"error" := ~"invalid_token"}}] =
        erlmcp_challenge:parse(Challenge(optional, Unbound)),
    0 = map_size(None),
    ?MISSING = refused(~"Basic", ~"x", none, handle(#{}, Config)).

%% RFC 9449, section 7.2: the error stands with the scheme that the client has used.
an_error_is_in_the_challenge_of_its_scheme(Config) ->
    Key = erlmcp_dpop:new(),
    Expired = erlmcp_test_issuer:token(
        #{~"aud" => ?URL, ~"exp" => erlang:system_time(second) - 3600,
          ~"cnf" => #{~"jkt" => erlmcp_dpop:thumbprint(Key)}}, issuer(Config)),
    Handle = handle(#{}, Config),
    [begin
         {error, Failure} = verify(Used, Expired, proof(Expired, Key), Handle),
         {Used, [{Scheme, ~"invalid_token"}]} =
             {Used, errors(erlmcp_bearer:headers(Handle, Failure, #{}))}
     end || {Used, Scheme} <- [{~"DPoP", ~"dpop"}, {~"Bearer", ~"bearer"}]],
    Bound = bound(Key, Config),
    {ok, Identity} = verify(~"DPoP", Bound, proof(Bound, Key), Handle),
    [{~"dpop", ~"insufficient_scope"}] =
        errors(erlmcp_httpd_auth:insufficient({bearer, Handle}, Identity, [~"admin"], #{})).

errors(#{~"www-authenticate" := Field}) ->
    [{Scheme, Error} || #{scheme := Scheme, params := #{~"error" := Error}}
                            <- erlmcp_challenge:parse(Field)].
