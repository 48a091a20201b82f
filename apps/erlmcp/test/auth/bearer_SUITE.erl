-module(bearer_SUITE).
-moduledoc """
Who asks, by a bearer token: good ones, hostile ones, and what happens when the authorization server
is slow, away or changes its keys. The server is real (`m:erlmcp_test_issuer`), and so is HTTP to it.
""".

-include_lib("proper/include/proper.hrl").

-export([all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2, end_per_testcase/2]).
-export([a_token_says_who_asks/1, every_algorithm_serves/1, a_client_of_its_own/1]).
-export([a_fun_makes_the_principal/1, requests_without_a_token/1]).
-export([claims_that_are_refused/1, times_at_their_bounds/1, audiences/1]).
-export([no_algorithm_but_those/1, a_public_key_is_no_secret/1, keys_of_another_kind/1]).
-export([what_a_header_cannot_say/1, what_can_be_read_in_two_ways/1, types/1, sizes/1]).
-export([mutated_tokens_are_never_accepted/1, mutated_claims_are_never_accepted/1]).
-export([keys_are_fetched_once/1, keys_are_rotated/1, unknown_keys_are_no_flood/1]).
-export([old_keys_serve_while_new_ones_are_fetched/1, a_withdrawn_key_ends_its_tokens/1]).
-export([keys_that_cannot_be_had/1, a_slow_issuer_has_a_deadline/1, keys_without_https/1]).
-export([tokens_are_introspected/1, an_answer_is_kept_for_a_while/1, no_answer_is_no_token/1]).
-export([introspections_are_bounded/1, nobody_waits_for_a_dead_process/1]).
-export([static_tokens/1, a_fun_knows_tokens/1, a_fun_that_crashes/1, sources_in_their_order/1]).
-export([a_token_of_a_certificate/1, unknown_bindings/1]).
-export([challenges/1, metadata/1, options_that_are_wrong/1, no_secret_is_shown/1]).
-export([log/2]).

-define(URL, ~"https://mcp.example/mcp").
-define(HS_CLAIMS, [~"iss", ~"sub", ~"aud", ~"exp", ~"nbf", ~"iat"]).

all() ->
    [Name || {Name, 1} <- ?MODULE:module_info(exports),
             not lists:member(Name, [module_info, init_per_suite, end_per_suite])].

init_per_suite(Config) ->
    erlmcp_test_applications:start([gun, jose, cowboy, inets], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    [{issuer, erlmcp_test_issuer:start()} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_issuer:stop(issuer(Config)).

issuer(Config) -> proplists:get_value(issuer, Config).

%% A listener's, with these options beside or in place of those that a test need not name.
handle(Options, Config) ->
    Given = maps:merge(#{tokens => [jwt(#{}, issuer(Config))], resource => ?URL}, Options),
    ok = erlmcp_bearer_options:check(Given),
    Handle = erlmcp_bearer:new(erlmcp_bearer_options:settings(Given)),
    #{start := {Module, Function, Arguments}} = erlmcp_bearer:child_spec(Handle),
    {ok, _} = apply(Module, Function, Arguments),
    Handle.

jwt(Options, Issuer) ->
    {jwt, maps:merge(#{issuer => erlmcp_test_issuer:url(Issuer),
                       jwks => {uri, erlmcp_test_issuer:url(Issuer, ~"/jwks")}}, Options)}.

introspection(Options, Issuer) ->
    {introspection, maps:merge(#{issuer => erlmcp_test_issuer:url(Issuer),
                                 uri => erlmcp_test_issuer:url(Issuer, ~"/introspect"),
                                 client_id => ~"server", client_secret => ~"server-secret"},
                               Options)}.

token(Changes, Config) ->
    erlmcp_test_issuer:token(maps:merge(#{~"aud" => ?URL}, Changes), issuer(Config)).

opaque(Changes, Config) ->
    erlmcp_test_issuer:opaque(maps:merge(#{~"aud" => ?URL}, Changes), issuer(Config)).

request(Headers) ->
    #{url => ~"https://127.0.0.1:8443/mcp", method => ~"POST", path => ~"/mcp", headers => Headers,
      peer => {{127, 0, 0, 1}, 5}, tls => true}.

bearer(Token) -> request(#{~"authorization" => <<"Bearer ", Token/binary>>}).

verify(Token, Handle) -> answer(bearer(Token), Handle).

answer(Request, Handle) ->
    awaited(begun(Request, Handle), Handle).

%% Each request is told of under a tag of its own.
begun(Request, Handle) ->
    Tag = make_ref(),
    {Tag, erlmcp_bearer:verify(Handle, Request, {self(), Tag})}.

awaited({Tag, {wait, Wait}}, Handle) ->
    receive
        {Tag, Message} -> awaited({Tag, erlmcp_bearer:awaited(Handle, Message, Wait)}, Handle)
    after 30_000 ->
        ct:fail(nobody_was_told)
    end;
awaited({_, Answer}, _) ->
    Answer.

%% The number of a refusal, its status and the error that the client is told.
refusal({error, #{refusal := Refusal} = Failure}) ->
    Name = erlmcp_refusal:name(Refusal),
    {Name, erlmcp_refusal:status(Refusal), maps:get(error, Failure, none)}.

refused(Token, Handle) -> refusal(verify(Token, Handle)).

asked(Path, Config) -> length(oauth_peer:asked(issuer(Config), Path)).

-define(INVALID, {auth_invalid_credentials, 401, ~"invalid_token"}).
-define(EXPIRED, {auth_expired, 401, ~"invalid_token"}).
-define(UNAVAILABLE, {dependency_unavailable, 503, none}).

%% Who asks.

a_token_says_who_asks(Config) ->
    Handle = handle(#{}, Config),
    Url = erlmcp_test_issuer:url(issuer(Config)),
    Token = token(#{~"scope" => ~"files:read files:write", ~"mail" => ~"ada@example.com"}, Config),
    {ok, #{principal := {Url, ~"ada"}, scopes := [~"files:read", ~"files:write"],
           expires_at := End, claims := #{~"mail" := ~"ada@example.com"}} = Identity} =
        verify(Token, Handle),
    true = End > erlang:system_time(second) + 250,
    false = is_map_key(dpop_nonce, Identity),
    %% The second time it is known, and nobody is waited for.
    {ok, Identity} = erlmcp_bearer:verify(Handle, bearer(Token), {self(), unused}),
    {ok, #{scopes := [~"a", ~"b"]}} = verify(token(#{~"scp" => [~"a", ~"b", ~"c d", 1]}, Config),
                                             Handle),
    {ok, #{scopes := []}} = verify(token(#{}, Config), Handle),
    {ok, _} = answer(request(#{~"authorization" => <<"bearer  ", Token/binary>>}), Handle).

every_algorithm_serves(Config) ->
    [begin
         erlmcp_test_issuer:rotate(Algorithm, issuer(Config)),
         Handle = handle(#{tokens => [jwt(#{algorithms => [Algorithm]}, issuer(Config))]}, Config),
         {Algorithm, {ok, _}} = {Algorithm, verify(token(#{}, Config), Handle)}
     end || Algorithm <- [~"RS256", ~"PS256", ~"RS512", ~"ES256", ~"ES384", ~"EdDSA"]].

a_client_of_its_own(Config) ->
    Handle = handle(#{}, Config),
    Url = erlmcp_test_issuer:url(issuer(Config)),
    {ok, #{principal := {Url, {client, ~"a-client"}}}} =
        verify(token(#{~"sub" => remove}, Config), Handle),
    %% A client called as a user is not that user.
    {ok, #{principal := Client}} =
        verify(token(#{~"sub" => remove, ~"client_id" => ~"ada"}, Config), Handle),
    {ok, #{principal := User}} = verify(token(#{}, Config), Handle),
    true = Client =/= User,
    [?INVALID = refused(token(Changes, Config), Handle)
     || Changes <- [#{~"sub" => remove, ~"client_id" => remove}, #{~"sub" => 7}, #{~"sub" => ~""},
                    #{~"sub" => null}]].

a_fun_makes_the_principal(Config) ->
    Mail = fun(#{~"mail" := Address}) -> {mail, Address} end,
    Handle = handle(#{principal => Mail}, Config),
    {ok, #{principal := {mail, ~"a@b"}}} = verify(token(#{~"mail" => ~"a@b"}, Config), Handle),
    {internal_error, 500, none} = refused(token(#{}, Config), Handle).

requests_without_a_token(Config) ->
    Handle = handle(#{}, Config),
    Token = token(#{}, Config),
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
    0 = asked(~"/jwks", Config).

%% Claims.

claims_that_are_refused(Config) ->
    Handle = handle(#{}, Config),
    {ok, _} = verify(token(#{}, Config), Handle),
    Now = erlang:system_time(second),
    [{Changes, Expected} = {Changes, refused(token(Changes, Config), Handle)}
     || {Changes, Expected} <- [
            {#{~"iss" => ~"https://evil.example"}, ?INVALID}, {#{~"iss" => remove}, ?INVALID},
            {#{~"iss" => [erlmcp_test_issuer:url(issuer(Config))]}, ?INVALID},
            {#{~"exp" => remove}, ?INVALID}, {#{~"exp" => ~"9999999999"}, ?INVALID},
            {#{~"exp" => null}, ?INVALID}, {#{~"exp" => Now - 3600}, ?EXPIRED},
            {#{~"exp" => 0}, ?EXPIRED}, {#{~"exp" => -1.0e300}, ?EXPIRED},
            {#{~"nbf" => Now + 3600}, ?INVALID}, {#{~"nbf" => ~"0"}, ?INVALID},
            {#{~"iat" => Now + 3600}, ?INVALID}, {#{~"iat" => []}, ?INVALID},
            {#{~"cnf" => ~"x"}, ?INVALID}]],
    {ok, #{expires_at := End}} = verify(token(#{~"exp" => 1.0e300}, Config), Handle),
    true = is_integer(End).

%% What is taken ends with its time and the difference of clocks that is allowed.
times_at_their_bounds(_) ->
    Wanted = #{issuer => ~"i", audience => [~"a"], now => 1000, leeway => 60,
               introspected => false},
    Good = #{~"iss" => ~"i", ~"aud" => ~"a", ~"exp" => 941, ~"nbf" => 1060, ~"iat" => 1060},
    ok = erlmcp_claims:check(Good, Wanted),
    {ok, #{expires_at := 1001}} = erlmcp_claims:identity(Good#{~"sub" => ~"s"}, Wanted),
    {error, expired} = erlmcp_claims:check(Good, Wanted#{now := 1001}),
    {error, expired} = erlmcp_claims:check(Good#{~"exp" := 940}, Wanted),
    {error, not_yet} = erlmcp_claims:check(Good#{~"nbf" := 1061}, Wanted),
    {error, issued_at} = erlmcp_claims:check(Good#{~"iat" := 1061}, Wanted).

audiences(Config) ->
    Handle = handle(#{}, Config),
    [{Audience, {ok, _}} = {Audience, verify(token(#{~"aud" => Audience}, Config), Handle)}
     || Audience <- [?URL, [~"other", ?URL], ~"HTTPS://MCP.example:443/mcp"]],
    [{Audience, ?INVALID} = {Audience, refused(token(#{~"aud" => Audience}, Config), Handle)}
     || Audience <- [~"https://mcp.example", ~"https://mcp.example/mcp/", ~"https://mcp.example/mcp?",
                     ~"http://mcp.example/mcp", ~"https://mcp.example:8443/mcp",
                     ~"https://mcp.example.evil/mcp", ~"https://other.example/mcp", [], [[?URL]],
                     remove, null, #{?URL => true}, ~"https://127.0.0.1:8443/mcp", ~""]],
    Root = handle(#{resource => [~"https://a.example/", ~"https://b.example"]}, Config),
    [{ok, _} = verify(token(#{~"aud" => Audience}, Config), Root)
     || Audience <- [~"https://a.example", ~"https://a.example/", ~"https://b.example/"]],
    Named = handle(#{tokens => [jwt(#{audience => ~"api://mcp"}, issuer(Config))]}, Config),
    {ok, _} = verify(token(#{~"aud" => ~"api://mcp"}, Config), Named),
    ?INVALID = refused(token(#{}, Config), Named),
    %% Without an option the endpoint's own URL counts, whatever name of the loopback is used.
    Own = handle(#{tokens => [jwt(#{}, issuer(Config))]}, Config, [resource]),
    [{Audience, {ok, _}} = {Audience, verify(token(#{~"aud" => Audience}, Config), Own)}
     || Audience <- [~"https://127.0.0.1:8443/mcp", ~"https://localhost:8443/mcp",
                     ~"https://[::1]:8443/mcp"]],
    ?INVALID = refused(token(#{~"aud" => ~"https://127.0.0.1:8444/mcp"}, Config), Own).

%% The same without some options.
handle(Options, Config, Without) ->
    Given = maps:without(Without, maps:merge(#{tokens => [jwt(#{}, issuer(Config))]}, Options)),
    Handle = erlmcp_bearer:new(erlmcp_bearer_options:settings(Given)),
    #{start := {Module, Function, Arguments}} = erlmcp_bearer:child_spec(Handle),
    {ok, _} = apply(Module, Function, Arguments),
    Handle.

%% RFC 8725.

part(Map) ->
    base64:encode(iolist_to_binary(json:encode(Map)), #{mode => urlsafe, padding => false}).

encode(Bytes) -> base64:encode(Bytes, #{mode => urlsafe, padding => false}).

claims(Config) ->
    (erlmcp_test_issuer:claims(issuer(Config)))#{~"aud" => ?URL}.

no_algorithm_but_those(Config) ->
    Handle = handle(#{}, Config),
    {ok, _} = verify(token(#{}, Config), Handle),
    Claims = part(claims(Config)),
    [_, _, Signature] = binary:split(token(#{}, Config), ~".", [global]),
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
    ?INVALID = refused(token(#{}, Config), Other).

a_public_key_is_no_secret(Config) ->
    [begin
         erlmcp_test_issuer:rotate(Algorithm, issuer(Config)),
         Handle = handle(#{}, Config),
         {ok, _} = verify(token(#{}, Config), Handle),
         #{~"keys" := [#{~"kid" := Kid} = Jwk]} = erlmcp_test_issuer:keys(issuer(Config)),
         Key = jose_jwk:from_map(maps:with([~"kty", ~"n", ~"e", ~"crv", ~"x", ~"y"], Jwk)),
         {_, Pem} = jose_jwk:to_pem(Key),
         Jwks = iolist_to_binary(json:encode(Jwk)),
         [begin
              Input = <<(part(#{~"alg" => ~"HS256", ~"kid" => Kid, ~"typ" => ~"JWT"}))/binary, ".",
                        (part(claims(Config)))/binary>>,
              Mac = crypto:mac(hmac, sha256, Secret, Input),
              ?INVALID = refused(<<Input/binary, ".", (encode(Mac))/binary>>, Handle)
          end || Secret <- [Pem, string:trim(Pem), Jwks, maps:get(~"n", Jwk, ~"")]]
     end || Algorithm <- [~"RS256", ~"ES256"]].

keys_of_another_kind(Config) ->
    Issuer = issuer(Config),
    #{~"keys" := [Jwk]} = erlmcp_test_issuer:keys(Issuer),
    Secret = #{~"kty" => ~"oct", ~"k" => encode(~"secret-secret-secret-secret-secret!"),
               ~"kid" => ~"key-1", ~"alg" => ~"HS256"},
    Served = fun(Keys) ->
        oauth_peer:change(Issuer, ~"/jwks", oauth_peer:json(200, #{~"keys" => Keys})),
        handle(#{}, Config)
    end,
    {ok, _} = verify(token(#{}, Config), Served([Secret, 7, #{}, Jwk#{~"kid" := 1}, Jwk])),
    [{Wrong, ?INVALID} = {Wrong, refused(token(#{}, Config), Served([spare(), Wrong]))}
     || Wrong <- [Jwk#{~"use" := ~"enc"}, Jwk#{~"alg" := ~"ES384"}, Jwk#{~"alg" := ~"RS256"},
                  Jwk#{~"key_ops" => [~"sign"]}, Jwk#{~"key_ops" => ~"verify"},
                  Jwk#{~"crv" := ~"P-384"}, Jwk#{~"kty" := ~"OKP"}, Jwk#{~"kid" := ~"key-2"},
                  maps:remove(~"kid", Jwk), Jwk#{~"y" := maps:get(~"x", Jwk)},
                  Jwk#{~"x" := ~"AA"}, Secret]],
    %% Nothing in it serves: that is an issuer that cannot be asked.
    ?UNAVAILABLE = refused(token(#{}, Config), Served([Secret])),
    Short = jose_jwk:generate_key({rsa, 1024}),
    {_, ShortMap} = jose_jwk:to_public_map(Short),
    {_, Weak} = jose_jws:compact(jose_jwt:sign(Short, #{~"alg" => ~"RS256"}, claims(Config))),
    ?INVALID = refused(Weak, Served([spare(), ShortMap])).

%% Another key, so that a set without the token's is one all the same.
spare() ->
    {_, Map} = jose_jwk:to_public_map(jose_jwk:generate_key({okp, 'Ed25519'})),
    Map#{~"kid" => ~"spare"}.

%% Nothing in a header leads to a key: RFC 8725, section 3.10.
what_a_header_cannot_say(Config) ->
    Handle = handle(#{}, Config),
    {ok, _} = verify(token(#{}, Config), Handle),
    Evil = oauth_peer:start(),
    Own = jose_jwk:generate_key({ec, ~"P-256"}),
    {_, Public} = jose_jwk:to_public_map(Own),
    oauth_peer:change(Evil, ~"/keys", oauth_peer:json(200, #{~"keys" => [Public]})),
    Uri = oauth_peer:url(Evil, ~"/keys"),
    [begin
         {_, Token} = jose_jws:compact(jose_jws:sign(Own, iolist_to_binary(json:encode(claims(Config))),
                                                     Header#{~"alg" => ~"ES256"})),
         {Header, ?INVALID} = {Header, refused(Token, Handle)}
     end || Header <- [#{~"jwk" => Public}, #{~"jku" => Uri}, #{~"x5u" => Uri}, #{},
                       #{~"kid" => Uri}, #{~"kid" => ~"../../dev/null"}, #{~"kid" => ~""},
                       #{~"jwk" => Public, ~"kid" => ~"key-1"}]],
    [] = oauth_peer:asked(Evil),
    oauth_peer:stop(Evil),
    [{Header, ?INVALID} =
         {Header, refused(erlmcp_test_issuer:sign(Header, claims(Config), issuer(Config)), Handle)}
     || Header <- [#{~"crit" => [~"exp"], ~"exp" => 1}, #{~"crit" => []}, #{~"kid" => 1},
                   #{~"kid" => null}, #{~"typ" => 1}]].

what_can_be_read_in_two_ways(Config) ->
    Handle = handle(#{}, Config),
    Token = token(#{}, Config),
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
        erlmcp_test_issuer:sign(#{~"typ" => Type}, claims(Config), issuer(Config))
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
    Long = fun(Bytes) -> token(#{~"x" => binary:copy(~"x", Bytes)}, Config) end,
    %% Three bytes are four characters.
    Base = byte_size(Long(0)),
    Fits = (16_384 - Base) * 3 div 4 - 2,
    true = byte_size(Long(Fits)) =< 16_384,
    {ok, _} = verify(Long(Fits), Handle),
    {invalid_header, 400, _} = refused(Long(Fits + 6), Handle),
    Deep = lists:foldl(fun(_, Inside) -> [Inside] end, [], lists:seq(1, 40)),
    ?INVALID = refused(token(#{~"x" => Deep}, Config), Handle),
    Wide = #{integer_to_binary(Key) => 1 || Key <- lists:seq(1, 1100)},
    ?INVALID = refused(token(#{~"x" => Wide}, Config), Handle).

%% Whatever is done to a token, it is the same token or none.

mutated_tokens_are_never_accepted(Config) ->
    [begin
         erlmcp_test_issuer:rotate(Algorithm, issuer(Config)),
         Handle = handle(#{}, Config),
         Token = token(#{~"scope" => ~"read"}, Config),
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
    Token = token(#{}, Config),
    {ok, _} = verify(Token, Handle),
    [Header, Claims, Signature] = binary:split(Token, ~".", [global]),
    Changed = fun(Encoded, Key, Value) ->
        {ok, Json} = erlmcp_jwk:decode(Encoded),
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

%% Keys.

%% The path is answered when the test says so; the fun is given how many were asked meanwhile.
held(Path, Answer, Config) ->
    Test = self(),
    oauth_peer:change(issuer(Config), Path, fun(Request) ->
        Test ! {asked, self(), Request},
        receive
            go_on -> Answer(Request)
        end
    end).

next_asked() ->
    receive
        {asked, Pid, _} -> Pid
    after 30_000 ->
        ct:fail(nobody_asks)
    end.

nobody_asked() ->
    receive
        {asked, _, _} -> ct:fail(asked)
    after 0 ->
        ok
    end.

keys_are_fetched_once(Config) ->
    Issuer = issuer(Config),
    held(~"/jwks", fun(_) -> oauth_peer:json(200, erlmcp_test_issuer:keys(Issuer)) end, Config),
    Handle = handle(#{}, Config),
    Waits = [begun(bearer(token(#{}, Config)), Handle) || _ <- lists:seq(1, 50)],
    50 = length([Wait || {_, {wait, Wait}} <- Waits]),
    next_asked() ! go_on,
    [{ok, _} = awaited(Wait, Handle) || Wait <- Waits],
    nobody_asked(),
    1 = asked(~"/jwks", Config).

%% Time that has passed since the keys were fetched, as far as asking again goes.
later(#{tables := Tables}) ->
    erlmcp_bearer_tables:fetch_again(1, 0, Tables).

keys_are_rotated(Config) ->
    Handle = handle(#{}, Config),
    {ok, _} = verify(token(#{}, Config), Handle),
    erlmcp_test_issuer:rotate(issuer(Config)),
    later(Handle),
    {ok, _} = verify(token(#{}, Config), Handle),
    2 = asked(~"/jwks", Config),
    %% Without an id in the header too.
    erlmcp_test_issuer:rotate(issuer(Config)),
    later(Handle),
    {ok, _} = verify(erlmcp_test_issuer:sign(#{~"kid" => remove}, claims(Config), issuer(Config)),
                     Handle),
    3 = asked(~"/jwks", Config).

unknown_keys_are_no_flood(Config) ->
    Handle = handle(#{}, Config),
    Unknown = fun() ->
        Kid = binary:encode_hex(crypto:strong_rand_bytes(8)),
        erlmcp_test_issuer:sign(#{~"kid" => Kid}, claims(Config), issuer(Config))
    end,
    [?INVALID = refused(Unknown(), Handle) || _ <- lists:seq(1, 50)],
    1 = asked(~"/jwks", Config),
    later(Handle),
    [?INVALID = refused(Unknown(), Handle) || _ <- lists:seq(1, 50)],
    2 = asked(~"/jwks", Config),
    {ok, _} = verify(token(#{}, Config), Handle).

old_keys_serve_while_new_ones_are_fetched(Config) ->
    #{tables := Tables} = Handle = handle(#{}, Config),
    {ok, _} = verify(token(#{}, Config), Handle),
    {_, Keys, _} = erlmcp_bearer_tables:keys(1, erlang:monotonic_time(millisecond), Tables),
    Stale = fun() ->
        ok = erlmcp_bearer_tables:put_keys(1, Keys, 0, Tables),
        later(Handle)
    end,
    Stale(),
    held(~"/jwks", fun(_) -> {500, #{}, ~""} end, Config),
    %% At once, as often as somebody asks, and the issuer is asked once.
    [{ok, _} = erlmcp_bearer:verify(Handle, bearer(token(#{}, Config)), {self(), unused})
     || _ <- lists:seq(1, 20)],
    next_asked() ! go_on,
    nobody_asked(),
    {ok, _} = erlmcp_bearer:verify(Handle, bearer(token(#{}, Config)), {self(), unused}),
    %% There is an end to it.
    none = erlmcp_bearer_tables:keys(1, erlang:monotonic_time(millisecond) + 6 * 3_600_000, Tables).

a_withdrawn_key_ends_its_tokens(Config) ->
    Handle = handle(#{}, Config),
    Old = token(#{}, Config),
    {ok, _} = verify(Old, Handle),
    erlmcp_test_issuer:rotate(issuer(Config)),
    later(Handle),
    {ok, _} = verify(token(#{}, Config), Handle),
    ?INVALID = refused(Old, Handle).

keys_that_cannot_be_had(Config) ->
    Issuer = issuer(Config),
    Handle = handle(#{}, Config),
    [begin
         oauth_peer:change(Issuer, ~"/jwks", Answer),
         later(Handle),
         {Answer, ?UNAVAILABLE} = {Answer, refused(token(#{}, Config), Handle)}
     end || Answer <- [{500, #{}, ~""}, {200, #{}, ~"no json"}, oauth_peer:json(200, []),
                       oauth_peer:json(200, #{~"keys" => []}),
                       oauth_peer:json(200, #{~"keys" => ~"x"}),
                       {302, #{~"location" => ~"http://169.254.169.254/"}, ~""},
                       oauth_peer:json(404, erlmcp_test_issuer:keys(Issuer))]],
    Asked = asked(~"/jwks", Config),
    %% Not all who come are let ask.
    {error, #{refusal := Refusal}} =
        erlmcp_bearer:verify(Handle, bearer(token(#{}, Config)), {self(), unused}),
    1 = erlmcp_refusal:retry_after(Refusal),
    Asked = asked(~"/jwks", Config),
    oauth_peer:change(Issuer, ~"/jwks", oauth_peer:json(200, erlmcp_test_issuer:keys(Issuer))),
    later(Handle),
    {ok, _} = verify(token(#{}, Config), Handle).

a_slow_issuer_has_a_deadline(Config) ->
    Handle = handle(#{wait_ms => 50}, Config),
    held(~"/jwks", fun(_) -> {500, #{}, ~""} end, Config),
    ?UNAVAILABLE = refused(token(#{}, Config), Handle),
    %% Somebody else can ask again.
    oauth_peer:change(issuer(Config), ~"/jwks",
                      oauth_peer:json(200, erlmcp_test_issuer:keys(issuer(Config)))),
    until(fun() ->
              later(Handle),
              element(1, verify(token(#{}, Config), Handle)) =:= ok
          end).

until(Holds) ->
    until(Holds, 200).

until(Holds, Left) when Left > 0 ->
    case Holds() of
        true -> ok;
        false -> receive after 20 -> until(Holds, Left - 1) end
    end.

keys_without_https(Config) ->
    Jwt = fun(Uri) -> #{tokens => [jwt(#{jwks => {uri, Uri}}, issuer(Config))]} end,
    [{Uri, {error, {bad_option, {tokens, 1, jwks}, _}}} =
         {Uri, erlmcp_bearer_options:check(Jwt(Uri))}
     || Uri <- [~"http://as.example/jwks", ~"file:///etc/keys", ~"https://", ~"", ~"jwks",
                ~"https://user@as.example/jwks", ~"http://127.0.0.1.example/jwks"]],
    ok = erlmcp_bearer_options:check(Jwt(~"https://as.example/jwks")),
    %% Keys that are given need nobody.
    #{~"keys" := Keys} = erlmcp_test_issuer:keys(issuer(Config)),
    Handle = handle(#{tokens => [jwt(#{jwks => {keys, Keys}}, issuer(Config))]}, Config),
    {ok, _} = erlmcp_bearer:verify(Handle, bearer(token(#{}, Config)), {self(), unused}),
    ?INVALID = refused(erlmcp_test_issuer:sign(#{~"kid" => ~"other"}, claims(Config),
                                               issuer(Config)), Handle),
    0 = asked(~"/jwks", Config).

%% Introspection.

introspecting(Options, Config) ->
    handle((maps:with([wait_ms], Options))#{
        tokens => [introspection(maps:without([wait_ms], Options), issuer(Config))]}, Config).

tokens_are_introspected(Config) ->
    Handle = introspecting(#{}, Config),
    Url = erlmcp_test_issuer:url(issuer(Config)),
    {ok, #{principal := {Url, ~"ada"}, scopes := [~"read"], claims := Claims}} =
        verify(opaque(#{~"scope" => ~"read"}, Config), Handle),
    false = is_map_key(~"active", Claims),
    ?INVALID = refused(~"nobody-knows-it", Handle),
    {ok, #{expires_at := infinity, principal := {Url, ~"ada"}}} =
        verify(opaque(#{~"iss" => remove, ~"exp" => remove, ~"iat" => remove}, Config), Handle),
    Now = erlang:system_time(second),
    [{Changes, Expected} = {Changes, refused(opaque(Changes, Config), Handle)}
     || {Changes, Expected} <- [{#{~"aud" => remove}, ?INVALID}, {#{~"aud" => ~"other"}, ?INVALID},
                                {#{~"iss" => ~"https://evil.example"}, ?INVALID},
                                {#{~"exp" => Now - 1}, ?EXPIRED}, {#{~"exp" => ~"x"}, ?INVALID},
                                {#{~"sub" => remove, ~"client_id" => remove}, ?INVALID}]],
    [#{headers := #{~"authorization" := <<"Basic ", _/binary>>}, method := ~"POST"} | _] =
        oauth_peer:asked(issuer(Config), ~"/introspect").

an_answer_is_kept_for_a_while(Config) ->
    Handle = introspecting(#{}, Config),
    Token = opaque(#{}, Config),
    [{ok, _} = verify(Token, Handle) || _ <- lists:seq(1, 10)],
    1 = asked(~"/introspect", Config),
    [?INVALID = refused(~"unknown", Handle) || _ <- lists:seq(1, 10)],
    2 = asked(~"/introspect", Config),
    Always = introspecting(#{cache_s => 0}, Config),
    [{ok, _} = verify(Token, Always) || _ <- lists:seq(1, 3)],
    5 = asked(~"/introspect", Config),
    erlmcp_test_issuer:revoke(Token, issuer(Config)),
    ?INVALID = refused(Token, Always),
    %% Not longer than it serves.
    Now = erlang:system_time(second),
    #{tables := Tables} = Handle,
    ok = erlmcp_bearer_tables:remember(~"d", Now + 30, lasting, {#{}, []}, Tables),
    {ok, _, _} = erlmcp_bearer_tables:known(~"d", Now + 29, Tables),
    unknown = erlmcp_bearer_tables:known(~"d", Now + 30, Tables).

no_answer_is_no_token(Config) ->
    Issuer = issuer(Config),
    Wrong = introspecting(#{client_secret => fun() -> {ok, ~"wrong"} end}, Config),
    ?UNAVAILABLE = refused(opaque(#{}, Config), Wrong),
    Crashing = introspecting(#{client_secret => fun() -> exit(no_vault) end}, Config),
    ?UNAVAILABLE = refused(opaque(#{}, Config), Crashing),
    Handle = introspecting(#{}, Config),
    [begin
         oauth_peer:change(Issuer, ~"/introspect", Answer),
         Token = binary:encode_hex(crypto:strong_rand_bytes(8)),
         {Answer, Expected} = {Answer, refused(Token, Handle)}
     end || {Answer, Expected} <- [
                {{500, #{}, ~""}, ?UNAVAILABLE}, {{200, #{}, ~"true"}, ?UNAVAILABLE},
                {oauth_peer:json(200, #{}), ?UNAVAILABLE},
                {oauth_peer:json(200, #{~"active" => ~"true"}), ?UNAVAILABLE},
                {oauth_peer:json(401, #{~"active" => true}), ?UNAVAILABLE},
                {oauth_peer:json(200, #{~"active" => true}), ?INVALID},
                {oauth_peer:json(200, #{~"active" => false}), ?INVALID}]].

introspections_are_bounded(Config) ->
    Handle = introspecting(#{wait_ms => 60_000}, Config),
    held(~"/introspect", fun(_) -> oauth_peer:json(200, #{~"active" => false}) end, Config),
    %% Two ask for each of 500 tokens, and there is no place for another.
    Waits = [begun(bearer(<<"t", (integer_to_binary(Number))/binary>>), Handle)
             || Number <- lists:seq(1, 500), _ <- [one, two]],
    1000 = length([Wait || {_, {wait, Wait}} <- Waits]),
    {_, Full} = begun(bearer(~"another"), Handle),
    {backpressure_active, 503, none} = refusal(Full),
    First = [next_asked() || _ <- lists:seq(1, 16)],
    nobody_asked(),
    oauth_peer:change(issuer(Config), ~"/introspect",
                      oauth_peer:json(200, #{~"active" => false})),
    [Pid ! go_on || Pid <- First],
    [?INVALID = refusal(awaited(Wait, Handle)) || Wait <- Waits],
    500 = asked(~"/introspect", Config),
    ?INVALID = refused(~"another", Handle).

nobody_waits_for_a_dead_process(Config) ->
    process_flag(trap_exit, true),
    #{tables := Tables} = Handle = introspecting(#{wait_ms => 100}, Config),
    held(~"/introspect", fun(_) -> oauth_peer:json(200, #{~"active" => false}) end, Config),
    Known = erlmcp_test_issuer:opaque(#{}, issuer(Config)),
    Wait = begun(bearer(Known), Handle),
    _ = next_asked(),
    {ok, Keeper} = erlmcp_bearer_tables:keeper(Tables),
    exit(Keeper, kill),
    receive {'EXIT', Keeper, killed} -> ok end,
    ?UNAVAILABLE = refusal(awaited(Wait, Handle)).

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
               (_, _) -> unknown
            end,
    Handle = handle(#{tokens => [{verify, Knows}]}, Config),
    {ok, #{principal := ada, scopes := [], expires_at := infinity}} = verify(~"good", Handle),
    {ok, #{scopes := [~"x"], claims := #{~"a" := 1}}} = verify(~"whole", Handle),
    ?EXPIRED = refused(~"old", Handle),
    ?INVALID = refused(~"bad", Handle),
    ?INVALID = refused(~"none", Handle),
    [{internal_error, 500, none} = refused(Token, Handle) || Token <- [~"odd", ~"odder"]],
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
            #{what := authenticate_failed, reason := not_this, incident := <<_/binary>>} = Report,
            nomatch = binary:match(iolist_to_binary(io_lib:format("~p", [Report])), ~"very-secret")
    after 5000 ->
        ct:fail(not_logged)
    end.

log(#{msg := {report, Report}}, #{config := Pid}) -> Pid ! {logged, Report};
log(_, _) -> ok.

sources_in_their_order(Config) ->
    Issuer = issuer(Config),
    Other = erlmcp_test_issuer:start(),
    Handle = handle(#{tokens => [{static, [#{token => ~"s", principal => static}]},
                                 jwt(#{}, Issuer), jwt(#{}, Other), introspection(#{}, Issuer),
                                 introspection(#{}, Other)]}, Config),
    {ok, #{principal := static}} = verify(~"s", Handle),
    {ok, #{principal := {One, _}}} = verify(token(#{}, Config), Handle),
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

%% RFC 8705.

a_token_of_a_certificate(Config) ->
    Handle = handle(#{}, Config),
    Der = ~"a certificate",
    Bound = token(#{~"cnf" => #{~"x5t#S256" => encode(crypto:hash(sha256, Der))}}, Config),
    {ok, _} = answer((bearer(Bound))#{certificate => Der}, Handle),
    ?INVALID = refusal(answer((bearer(Bound))#{certificate => ~"another"}, Handle)),
    ?INVALID = refused(Bound, Handle).

unknown_bindings(Config) ->
    Handle = handle(#{}, Config),
    [{Binding, ?INVALID} = {Binding, refused(token(#{~"cnf" => Binding}, Config), Handle)}
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
    #{~"www-authenticate" := ~B(Bearer error="invalid_token", error_description="the token has expired")} =
        Headers(verify(token(#{~"exp" => Now - 1000}, Config), Handle), #{}),
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
    #{~"dpop_bound_access_tokens_required" := true, ~"authorization_servers" := [~"https://b.example"],
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
            {Good#{resource => []}, resource}, {Good#{resource => ~"https://a.example/#f"}, resource},
            {Good#{authorization_servers => [~"http://a.example"]}, authorization_servers},
            {Good#{principal => x}, principal}, {Good#{dpop => true}, dpop},
            {Good#{dpop_nonce => yes}, dpop_nonce}, {Good#{tls => #{}}, tls},
            {Good#{wait_ms => 0}, wait_ms},
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

%% What is printed of a listener's state has no token and no secret.
no_secret_is_shown(Config) ->
    Handle = handle(#{tokens => [{static, [#{token => ~"st4tic", principal => p}]},
                                 introspection(#{client_secret => ~"s3cret"}, issuer(Config))]},
                    Config),
    #{tables := Tables} = Handle,
    {ok, Keeper} = erlmcp_bearer_tables:keeper(Tables),
    held(~"/introspect", fun(_) -> {500, #{}, ~""} end, Config),
    Wait = begun(bearer(~"0paque"), Handle),
    Asked = next_asked(),
    Shown = iolist_to_binary(io_lib:format("~p ~p ~p", [erlmcp_bearer:child_spec(Handle),
                                                        sys:get_state(Keeper),
                                                        ets:tab2list(maps:get(known, Tables))])),
    [{Secret, nomatch} = {Secret, binary:match(Shown, Secret)}
     || Secret <- [~"st4tic", ~"s3cret", ~"0paque"]],
    Asked ! go_on,
    ?UNAVAILABLE = refusal(awaited(Wait, Handle)).
