-module(bearer_jwt_SUITE).
-moduledoc """
JWTs that are good, and hostile ones (RFC 8725): whatever is done to a token, it is the same token
or none.
""".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([every_algorithm_serves/1, claims_that_are_refused/1, times_at_their_bounds/1]).
-export([a_remembered_token_ends_with_its_time/1]).
-export([audiences/1, no_algorithm_but_those/1, a_public_key_is_no_secret/1]).
-export([secrets_where_they_are_asked_for/1, a_secret_and_public_keys_do_not_mix/1]).
-export([keys_of_another_kind/1, what_a_header_cannot_say/1, what_can_be_read_in_two_ways/1]).
-export([types/1, sizes/1, mutated_tokens_are_never_accepted/1]).
-export([mutated_claims_are_never_accepted/1]).
-export([log/2]).

-import(erlmcp_test_suite, [issuer/1]).
-import(erlmcp_test_bearer, [handle/2, jwt/2, claims/1, token/2, part/1, encode/1, verify/2,
                             refused/2]).

-define(URL, ~"https://mcp.example/mcp").
-define(INVALID, {auth_invalid_credentials, 401, ~"invalid_token"}).
-define(EXPIRED, {auth_expired, 401, ~"invalid_token"}).
-define(UNAVAILABLE, {dependency_unavailable, 503, none}).
-define(HS_CLAIMS, [~"iss", ~"sub", ~"aud", ~"exp", ~"nbf", ~"iat"]).

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

every_algorithm_serves(Config) ->
    [begin
         erlmcp_test_issuer:rotate(Algorithm, issuer(Config)),
         Handle = handle(#{tokens => [jwt(#{algorithms => [Algorithm]}, issuer(Config))]}, Config),
         {Algorithm, {ok, _}} = {Algorithm, verify(token(#{}, issuer(Config)), Handle)}
     end || Algorithm <- [~"RS256", ~"PS256", ~"RS512", ~"ES256", ~"ES384", ~"EdDSA"]].

claims_that_are_refused(Config) ->
    Handle = handle(#{}, Config),
    {ok, _} = verify(token(#{}, issuer(Config)), Handle),
    Now = erlang:system_time(second),
    [{Changes, Expected} = {Changes, refused(token(Changes, issuer(Config)), Handle)}
     || {Changes, Expected} <- [
            {#{~"iss" => ~"https://evil.example"}, ?INVALID}, {#{~"iss" => remove}, ?INVALID},
            {#{~"iss" => [erlmcp_test_issuer:url(issuer(Config))]}, ?INVALID},
            {#{~"exp" => remove}, ?INVALID}, {#{~"exp" => ~"9999999999"}, ?INVALID},
            {#{~"exp" => null}, ?INVALID}, {#{~"exp" => Now - 3600}, ?EXPIRED},
            {#{~"exp" => 0}, ?EXPIRED}, {#{~"exp" => -1.0e300}, ?EXPIRED},
            {#{~"nbf" => Now + 3600}, ?INVALID}, {#{~"nbf" => ~"0"}, ?INVALID},
            {#{~"iat" => Now + 3600}, ?INVALID}, {#{~"iat" => []}, ?INVALID},
            {#{~"cnf" => ~"x"}, ?INVALID}]],
    {ok, #{expires_at := End}} = verify(token(#{~"exp" => 1.0e300}, issuer(Config)), Handle),
    true = is_integer(End).

%% What is taken ends with its time and the difference of clocks that is allowed.
times_at_their_bounds(_) ->
    Wanted = #{issuer => ~"i", audience => [~"a"], now => 1000, leeway => 60,
               introspected => false},
    Good = #{~"iss" => ~"i", ~"aud" => ~"a", ~"exp" => 941, ~"nbf" => 1060, ~"iat" => 1060},
    ok = erlmcp_token_claims:check(Good, Wanted),
    #{expires_at := 1001} = erlmcp_token_claims:identity(ada, Good, Wanted),
    {error, expired} = erlmcp_token_claims:check(Good, Wanted#{now := 1001}),
    {error, expired} = erlmcp_token_claims:check(Good#{~"exp" := 940}, Wanted),
    {error, not_yet} = erlmcp_token_claims:check(Good#{~"nbf" := 1061}, Wanted),
    {error, issued_at} = erlmcp_token_claims:check(Good#{~"iat" := 1061}, Wanted).

%% A token that was checked is not taken for longer than it says, though it is remembered.
a_remembered_token_ends_with_its_time(Config) ->
    Handle = handle(#{tokens => [jwt(#{leeway_s => 0}, issuer(Config))]}, Config),
    %% This fetches the issuer's keys.
    {ok, _} = verify(token(#{}, issuer(Config)), Handle),
    End = erlang:system_time(second) + 3,
    Token = token(#{~"exp" => End}, issuer(Config)),
    {ok, #{expires_at := End}} = verify(Token, Handle),
    ok = timer:sleep(max(0, 1000 * End - erlang:system_time(millisecond))),
    ?EXPIRED = refused(Token, Handle).

audiences(Config) ->
    Handle = handle(#{}, Config),
    [{Audience, {ok, _}} = {Audience, verify(token(#{~"aud" => Audience}, issuer(Config)), Handle)}
     || Audience <- [?URL, [~"other", ?URL], ~"HTTPS://MCP.example:443/mcp"]],
    [{Audience, ?INVALID} =
         {Audience, refused(token(#{~"aud" => Audience}, issuer(Config)), Handle)}
     || Audience <- [~"https://mcp.example", ~"https://mcp.example/mcp/",
                     ~"https://mcp.example/mcp?", ~"http://mcp.example/mcp",
                     ~"https://mcp.example:8443/mcp",
                     ~"https://mcp.example.evil/mcp", ~"https://other.example/mcp", [], [[?URL]],
                     remove, null, #{?URL => true}, ~"https://127.0.0.1:8443/mcp", ~""]],
    Root = handle(#{resource => [~"https://a.example/", ~"https://b.example"]}, Config),
    [{ok, _} = verify(token(#{~"aud" => Audience}, issuer(Config)), Root)
     || Audience <- [~"https://a.example", ~"https://a.example/", ~"https://b.example/"]],
    Named = handle(#{tokens => [jwt(#{audience => ~"api://mcp"}, issuer(Config))]}, Config),
    {ok, _} = verify(token(#{~"aud" => ~"api://mcp"}, issuer(Config)), Named),
    ?INVALID = refused(token(#{}, issuer(Config)), Named),
    %% Without an option the endpoint's own URL counts, whatever name of the loopback is used.
    Own = handle(#{resource => none}, Config),
    [{Audience, {ok, _}} = {Audience, verify(token(#{~"aud" => Audience}, issuer(Config)), Own)}
     || Audience <- [~"https://127.0.0.1:8443/mcp", ~"https://localhost:8443/mcp",
                     ~"https://[::1]:8443/mcp"]],
    ?INVALID = refused(token(#{~"aud" => ~"https://127.0.0.1:8444/mcp"}, issuer(Config)), Own).

%% RFC 8725.

no_algorithm_but_those(Config) ->
    Handle = handle(#{}, Config),
    {ok, _} = verify(token(#{}, issuer(Config)), Handle),
    Claims = part(claims(issuer(Config))),
    [_, _, Signature] = binary:split(token(#{}, issuer(Config)), ~".", [global]),
    [{Header, ?INVALID} = {Header, refused(<<(part(Header))/binary, ".", Claims/binary, ".",
                                             Written/binary>>, Handle)}
     || Algorithm <- [~"none", ~"None", ~"NONE", ~"nOnE", ~"", ~"ES256 ", ~"es256", ~"HS256",
                      ~"ES256K", ~"RS1", null, 256, [~"ES256"], #{}],
        Header <- [#{~"alg" => Algorithm}, #{~"alg" => Algorithm, ~"kid" => ~"key-1"}],
        Written <- [~"", Signature]],
    ?INVALID = refused(<<(part(#{~"typ" => ~"JWT"}))/binary, ".", Claims/binary, ".",
                         Signature/binary>>, Handle),
    %% Good elsewhere, and not among those that this source takes.
    Other = handle(#{tokens => [jwt(#{algorithms => [~"RS256"]}, issuer(Config))]}, Config),
    ?INVALID = refused(token(#{}, issuer(Config)), Other).

a_public_key_is_no_secret(Config) ->
    [begin
         erlmcp_test_issuer:rotate(Algorithm, issuer(Config)),
         Handle = handle(#{}, Config),
         {ok, _} = verify(token(#{}, issuer(Config)), Handle),
         #{~"keys" := [#{~"kid" := Kid} = Jwk]} = erlmcp_test_issuer:keys(issuer(Config)),
         Key = jose_jwk:from_map(maps:with([~"kty", ~"n", ~"e", ~"crv", ~"x", ~"y"], Jwk)),
         {_, Pem} = jose_jwk:to_pem(Key),
         Jwks = iolist_to_binary(json:encode(Jwk)),
         [begin
              Input = <<(part(#{~"alg" => ~"HS256", ~"kid" => Kid, ~"typ" => ~"JWT"}))/binary, ".",
                        (part(claims(issuer(Config))))/binary>>,
              Mac = crypto:mac(hmac, sha256, Secret, Input),
              ?INVALID = refused(<<Input/binary, ".", (encode(Mac))/binary>>, Handle)
          end || Secret <- [Pem, string:trim(Pem), Jwks, maps:get(~"n", Jwk, ~"")]]
     end || Algorithm <- [~"RS256", ~"ES256"]].

%% What a secret signs. The header may have an id, which no secret has.
macced(Hash, Header, Secret, Config) ->
    Input = <<(part(maps:merge(#{~"typ" => ~"JWT"}, Header)))/binary, ".",
              (part((claims(issuer(Config)))#{~"aud" => ?URL}))/binary>>,
    <<Input/binary, ".", (encode(crypto:mac(hmac, Hash, Secret, Input)))/binary>>.

secret(Secret, Algorithms, Config) ->
    jwt(#{jwks => {secret, Secret}, algorithms => Algorithms}, issuer(Config)).

%% RFC 7518, 3.2: "A key of the same size as the hash output [...] or larger MUST be used".
secrets_where_they_are_asked_for(Config) ->
    [begin
         Secret = crypto:strong_rand_bytes(Bytes),
         Handles = [handle(#{tokens => [secret(Given, [Algorithm], Config)]}, Config)
                    || Given <- [Secret, fun() -> {ok, Secret} end]],
         [{Algorithm, {ok, #{principal := {_, ~"ada"}}}} =
              {Algorithm, verify(macced(Hash, Header#{~"alg" => Algorithm}, Secret, Config),
                                 Handle)}
          || Handle <- Handles, Header <- [#{}, #{~"kid" => ~"any"}]],
         Handle = hd(Handles),
         Other = crypto:strong_rand_bytes(Bytes),
         [{Token, ?INVALID} = {Token, refused(Token, Handle)}
          || Token <- [macced(Hash, #{~"alg" => Algorithm}, Other, Config),
                       macced(Hash, #{~"alg" => Algorithm}, ~"", Config),
                       macced(sha224, #{~"alg" => Algorithm}, Secret, Config),
                       macced(Hash, #{~"alg" => ~"none"}, Secret, Config),
                       token(#{}, issuer(Config))]
                      ++ [macced(Wrong, #{~"alg" => Name}, Secret, Config)
                          || {Name, Wrong} <- hashes(), Name =/= Algorithm]],
         Short = binary:part(Secret, 0, Bytes - 1),
         {error, {bad_option, {tokens, 1, jwks}, Text}} =
             erlmcp_bearer_options:check(#{tokens => [secret(Short, [Algorithm], Config)]}),
         nomatch = binary:match(Text, Short)
     end || {{Algorithm, Hash}, Bytes} <- lists:zip(hashes(), [32, 48, 64])].

hashes() -> [{~"HS256", sha256}, {~"HS384", sha384}, {~"HS512", sha512}].

%% RFC 8725, 2.1: an algorithm that the token chooses makes a public key a secret. There is no
%% listener that takes both from one issuer, and none whose secret is a public key.
a_secret_and_public_keys_do_not_mix(Config) ->
    erlmcp_test_issuer:rotate(~"RS256", issuer(Config)),
    #{~"keys" := [Jwk]} = erlmcp_test_issuer:keys(issuer(Config)),
    Public = jose_jwk:from_map(maps:with([~"kty", ~"n", ~"e"], Jwk)),
    {_, Pem} = jose_jwk:to_pem(Public),
    [{_, Der, _}] = public_key:pem_decode(Pem),
    Pkcs1 = public_key:pem_encode([public_key:pem_entry_encode(
        'RSAPublicKey', element(2, jose_jwk:to_key(Public)))]),
    [{'RSAPublicKey', Inner, _}] = public_key:pem_decode(Pkcs1),
    Check = fun(Options) ->
        {error, {bad_option, {tokens, 1, Name}, _}} =
            erlmcp_bearer_options:check(#{tokens => [jwt(Options, issuer(Config))]}),
        Name
    end,
    Text = base64:encode(crypto:strong_rand_bytes(51)),
    Ssh = [<<Type/binary, " ", Text/binary, " me@a.example\n">>
           || Type <- [~"ssh-rsa", ~"ssh-dss", ~"ssh-ed25519", ~"ssh-ed448",
                       ~"ecdsa-sha2-nistp256", ~"sk-ssh-ed25519@openssh.com",
                       ~"sk-ecdsa-sha2-nistp256@openssh.com",
                       ~"ssh-ed25519-cert-v01@openssh.com"]],
    Ssh2 = <<"---- BEGIN SSH2 PUBLIC KEY ----\n", Text/binary,
             "\n---- END SSH2 PUBLIC KEY ----\n">>,
    [{Known, jwks} = {Known, Check(#{jwks => {secret, Known}, algorithms => [~"HS256"]})}
     || Known <- [Pem, Pkcs1, Der, Inner, iolist_to_binary(json:encode(Jwk)),
                  iolist_to_binary(json:encode(#{keys => [Jwk]})), Ssh2,
                  fun() -> {ok, Pem} end | Ssh]],
    Secret = crypto:strong_rand_bytes(64),
    [{Options, algorithms} = {Options, Check(Options)}
     || Options <- [#{jwks => {secret, Secret}},
                    #{jwks => {secret, Secret}, algorithms => [~"HS256", ~"RS256"]},
                    #{jwks => {secret, Secret}, algorithms => [~"RS256"]},
                    #{jwks => {keys, [Jwk]}, algorithms => [~"RS256", ~"HS256"]},
                    #{jwks => {keys, [Jwk]}, algorithms => [~"HS256"]},
                    #{jwks => {uri, ~"https://a.example/jwks"}, algorithms => [~"HS256"]}]],
    %% With a source of each, a token is checked by the first of its issuer, and by no other.
    Both = handle(#{tokens => [jwt(#{jwks => {keys, [Jwk]}}, issuer(Config)),
                               secret(Secret, [~"HS256"], Config)]}, Config),
    {ok, _} = verify(token(#{}, issuer(Config)), Both),
    [?INVALID = refused(macced(sha256, #{~"alg" => ~"HS256"}, Known, Config), Both)
     || Known <- [Secret, Pem, Der]].

keys_of_another_kind(Config) ->
    Issuer = issuer(Config),
    #{~"keys" := [Jwk]} = erlmcp_test_issuer:keys(Issuer),
    Secret = #{~"kty" => ~"oct", ~"k" => encode(~"secret-secret-secret-secret-secret!"),
               ~"kid" => ~"key-1", ~"alg" => ~"HS256"},
    Served = fun(Keys) ->
        erlmcp_test_oauth:change(Issuer, ~"/jwks", erlmcp_test_oauth:json(200, #{~"keys" => Keys})),
        handle(#{}, Config)
    end,
    {ok, _} = verify(token(#{}, issuer(Config)), Served([Secret, 7, #{}, Jwk#{~"kid" := 1}, Jwk])),
    [{Wrong, ?INVALID} = {Wrong, refused(token(#{}, issuer(Config)), Served([spare(), Wrong]))}
     || Wrong <- [Jwk#{~"use" := ~"enc"}, Jwk#{~"alg" := ~"ES384"}, Jwk#{~"alg" := ~"RS256"},
                  Jwk#{~"key_ops" => [~"sign"]}, Jwk#{~"key_ops" => ~"verify"},
                  Jwk#{~"crv" := ~"P-384"}, Jwk#{~"kty" := ~"OKP"}, Jwk#{~"kid" := ~"key-2"},
                  maps:remove(~"kid", Jwk), Jwk#{~"y" := maps:get(~"x", Jwk)},
                  Jwk#{~"x" := ~"AA"}, Secret]],
    %% Nothing in it serves: that is an issuer that cannot be asked.
    ok = logger:add_handler(?MODULE, ?MODULE, #{config => self()}),
    ?UNAVAILABLE = refused(token(#{}, issuer(Config)), Served([Secret])),
    receive {logged, #{reason := no_keys, server := ~"of the test"}} -> ok
    after 5000 -> ct:fail(not_logged)
    end,
    ok = logger:remove_handler(?MODULE),
    Short = jose_jwk:generate_key({rsa, 1024}),
    {_, ShortMap} = jose_jwk:to_public_map(Short),
    {_, Weak} = jose_jws:compact(jose_jwt:sign(Short, #{~"alg" => ~"RS256"}, claims(Issuer))),
    ?INVALID = refused(Weak, Served([spare(), ShortMap])).

log(#{msg := {report, #{what := authorization_server_unavailable} = Report}}, #{config := Test}) ->
    Test ! {logged, Report};
log(_, _) ->
    ok.

%% Another key, so that a set without the token's is one all the same.
spare() ->
    {_, Map} = jose_jwk:to_public_map(jose_jwk:generate_key({okp, 'Ed25519'})),
    Map#{~"kid" => ~"spare"}.

%% Nothing in a header leads to a key: RFC 8725, section 3.10.
what_a_header_cannot_say(Config) ->
    Handle = handle(#{}, Config),
    {ok, _} = verify(token(#{}, issuer(Config)), Handle),
    Evil = erlmcp_test_oauth:start(),
    Own = jose_jwk:generate_key({ec, ~"P-256"}),
    {_, Public} = jose_jwk:to_public_map(Own),
    erlmcp_test_oauth:change(Evil, ~"/keys", erlmcp_test_oauth:json(200, #{~"keys" => [Public]})),
    Uri = erlmcp_test_oauth:url(Evil, ~"/keys"),
    [begin
         {_, Token} = jose_jws:compact(jose_jwt:sign(Own, Header#{~"alg" => ~"ES256"},
                                                     claims(issuer(Config)))),
         {Header, ?INVALID} = {Header, refused(Token, Handle)}
     end || Header <- [#{~"jwk" => Public}, #{~"jku" => Uri}, #{~"x5u" => Uri}, #{},
                       #{~"kid" => Uri}, #{~"kid" => ~"../../dev/null"}, #{~"kid" => ~""},
                       #{~"jwk" => Public, ~"kid" => ~"key-1"}]],
    [] = erlmcp_test_oauth:asked(Evil),
    erlmcp_test_oauth:stop(Evil),
    [{Header, ?INVALID} =
         {Header, refused(erlmcp_test_issuer:sign(Header, claims(issuer(Config)), issuer(Config)),
                          Handle)}
     || Header <- [#{~"crit" => [~"exp"], ~"exp" => 1}, #{~"crit" => []}, #{~"kid" => 1},
                   #{~"kid" => null}, #{~"typ" => 1}, #{~"b64" => true}]].

what_can_be_read_in_two_ways(Config) ->
    Handle = handle(#{}, Config),
    Token = token(#{}, issuer(Config)),
    {ok, _} = verify(Token, Handle),
    [Header, Claims, Signature] = binary:split(Token, ~".", [global]),
    Twice = encode(~B({"alg":"ES256","kid":"key-1","alg":"ES256"})),
    [?INVALID = refused(iolist_to_binary(lists:join(~".", Parts)), Handle)
     || Parts <- [[Header, Claims], [Header, Claims, Signature, ~""], [Header, Claims, ~""],
                  [Header, ~"", Signature], [Twice, Claims, Signature],
                  [Header, Claims, <<Signature/binary, "==">>],
                  [Header, Claims, Signature, Header, Claims],
                  [encode(~"[]"), Claims, Signature], [encode(~"{"), Claims, Signature],
                  [encode(<<255>>), Claims, Signature], [Header, Claims, ~"A"]]],
    %% The last character of a signature of 64 bytes has four bits that mean nothing.
    Most = byte_size(Token) - 1,
    <<Start:Most/binary, Last>> = Token,
    Others = [Other || Other <- lists:seq($A, $Z) ++ lists:seq($a, $z), Other =/= Last],
    [?INVALID = refused(<<Start/binary, Other>>, Handle) || Other <- Others].

types(Config) ->
    Handle = handle(#{}, Config),
    Typed = fun(Type) ->
        erlmcp_test_issuer:sign(#{~"typ" => Type}, claims(issuer(Config)), issuer(Config))
    end,
    [{ok, _} = verify(Typed(Type), Handle)
     || Type <- [~"at+jwt", ~"AT+JWT", ~"application/at+jwt", ~"JWT", ~"jwt", remove]],
    [{Type, ?INVALID} = {Type, refused(Typed(Type), Handle)}
     || Type <- [~"dpop+jwt", ~"logout+jwt", ~"oauth-id-jag+jwt", ~"", ~"at", ~"none"]],
    Strict = handle(#{tokens => [jwt(#{types => [~"at+jwt"]}, issuer(Config))]}, Config),
    {ok, _} = verify(Typed(~"application/at+JWT"), Strict),
    [?INVALID = refused(Typed(Type), Strict) || Type <- [~"JWT", remove]].

sizes(Config) ->
    Handle = handle(#{}, Config),
    Long = fun(Bytes) -> token(#{~"x" => binary:copy(~"x", Bytes)}, issuer(Config)) end,
    %% Three bytes are four characters.
    Base = byte_size(Long(0)),
    Fits = (16_384 - Base) * 3 div 4 - 2,
    true = byte_size(Long(Fits)) =< 16_384,
    {ok, _} = verify(Long(Fits), Handle),
    {invalid_header, 400, _} = refused(Long(Fits + 6), Handle),
    Deep = lists:foldl(fun(_, Inside) -> [Inside] end, [], lists:seq(1, 40)),
    ?INVALID = refused(token(#{~"x" => Deep}, issuer(Config)), Handle),
    Wide = #{integer_to_binary(Key) => 1 || Key <- lists:seq(1, 1100)},
    ?INVALID = refused(token(#{~"x" => Wide}, issuer(Config)), Handle).

%% Whatever is done to a token, it is the same token or none.

mutated_tokens_are_never_accepted(Config) ->
    [begin
         erlmcp_test_issuer:rotate(Algorithm, issuer(Config)),
         Handle = handle(#{}, Config),
         Token = token(#{~"scope" => ~"read"}, issuer(Config)),
         {ok, _} = verify(Token, Handle),
         Property = ?FORALL(Mutated, mutated(Token),
                            Mutated =:= Token orelse
                                element(1, verify(Mutated, Handle)) =:= error),
         ok = erlmcp_test_property:holds(Property, 150)
     end || Algorithm <- [~"ES256", ~"RS256", ~"EdDSA"]].

mutated(Token) ->
    Bytes = byte_size(Token),
    ?LET(Changes, non_empty(list({integer(0, Bytes - 1), oneof([replace, insert, delete, swap]),
                                  oneof([integer($A, $Z), integer($a, $z), integer($0, $9), $-, $_,
                                         $., $=])})),
         lists:foldl(fun mutate/2, Token, Changes)).

mutate({At, _, _}, Token) when At >= byte_size(Token) -> Token;
mutate({At, Change, Byte}, Token) ->
    <<Before:At/binary, Old, After/binary>> = Token,
    case Change of
        replace -> <<Before/binary, Byte, After/binary>>;
        insert -> <<Before/binary, Byte, Old, After/binary>>;
        delete -> <<Before/binary, After/binary>>;
        swap -> <<After/binary, Old, Before/binary>>
    end.

%% Other claims or another header under a signature that was good.
mutated_claims_are_never_accepted(Config) ->
    Handle = handle(#{}, Config),
    Token = token(#{}, issuer(Config)),
    {ok, _} = verify(Token, Handle),
    [Header, Claims, Signature] = binary:split(Token, ~".", [global]),
    Changed = fun(Encoded, Key, Value) ->
        {ok, Json} = erlmcp_base64url:decode(Encoded),
        part((json:decode(Json))#{Key => Value})
    end,
    Value = oneof([integer(), ~"root", ~"none", true, [], #{}, ~"HS256", ~"key-1"]),
    Key = oneof([~"alg", ~"kid", ~"typ", ~"jwk", ~"b64" | ?HS_CLAIMS]),
    Property = ?FORALL({Part, Name, New}, {oneof([header, claims]), Key, Value},
        begin
            Mutated = case Part of
                header -> [Changed(Header, Name, New), Claims, Signature];
                claims -> [Header, Changed(Claims, Name, New), Signature]
            end,
            Text = iolist_to_binary(lists:join(~".", Mutated)),
            Text =:= Token orelse element(1, verify(Text, Handle)) =:= error
        end),
    ok = erlmcp_test_property:holds(Property, 200).
