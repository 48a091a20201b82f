-module(erlmcp_bearer_options).
-moduledoc """
The options of `authenticate => {bearer, Options}`, checked once when the server starts. Not pure:
it calls the fun of a secret for JWTs, and makes secrets.

Internal.
""".

-export([check/1, settings/1, in_cluster/2, resources/2]).

-export_type([settings/0]).

-doc """
The options of `t:erlmcp_listen:bearer/0` with their defaults. Secrets are in funs, and static
tokens are hashed. These members are not options:

- `sources`: the option `tokens`, each source with its number.
- `blind`: returns the hash under which a token stands in the tables. Only this node can compute it.
- `nonces`: returns the secrets of DPoP nonces.
- `cluster`: the cluster whose nodes share nonces and used proofs, or `none`.
- `server`: the key of the listener's server (`m:erlmcp_log`).
""".
-type settings() :: #{
    sources := [{pos_integer(), erlmcp_bearer_source:source()}],
    resource := [binary()],
    authorization_servers := [binary()],
    principal := default | fun((map()) -> erlmcp_auth:principal()),
    dpop := off | optional | required,
    dpop_nonce := boolean(),
    dpop_proofs := pos_integer(),
    dpop_proofs_per_key := pos_integer(),
    wait_ms := pos_integer(),
    tls := [ssl:tls_client_option()],
    blind := fun((binary()) -> binary()),
    nonces := fun(() -> erlmcp_dpop_nonce:secrets()),
    cluster := none | {module(), State :: term()},
    server => reference()
}.

-define(WAIT_MS, 10_000).
-define(PROOFS, 100_000).
-define(PROOFS_PER_KEY, 10_000).
-define(LEEWAY_S, 60).
-define(CACHE_S, 30).
-define(MOST_S, 300).
-define(TYPES, [~"at+jwt", ~"JWT"]).
-define(DEFAULT_ALGORITHMS, [~"RS256", ~"PS256", ~"ES256", ~"EdDSA"]).
-define(STATIC, 10_000).

-doc """
Checks the options of `authenticate => {bearer, Options}`. `Expected` never quotes a secret or a
token. Options of a source are named by their path: `{tokens, 1, issuer}`. If the fun of a secret
for JWTs raises an error, so does this function.
""".
-spec check(term()) -> ok | {error, {bad_option, Option :: term(), Expected :: binary()}}.
check(#{} = Options) ->
    maybe
        ok ?= each(maps:to_list(Options), fun option/2, fun(Name) -> Name end),
        #{tokens := _} ?= Options,
        ok
    else
        {error, _} = Error -> Error;
        #{} -> bad(tokens, ~"at least one source")
    end;
check(_) ->
    bad(bearer, ~"a map").

each([], _, _) ->
    ok;
each([{Name, Value} | Options], Expected, Path) ->
    case Expected(Name, Value) of
        true -> each(Options, Expected, Path);
        {Inner, Text} -> bad(Inner, Text);
        Text -> bad(Path(Name), Text)
    end.

bad(Option, Expected) ->
    {error, {bad_option, Option, Expected}}.

option(tokens, [_ | _] = Sources) when length(Sources) > 0 ->
    sources(lists:enumerate(Sources));
option(tokens, _) ->
    ~"a list of at least one source";
option(resource, Value) ->
    one_or_more(Value, fun is_resource/1)
        orelse ~"an http or https URL without a fragment, or a list of them";
option(authorization_servers, Value) ->
    erlmcp_user_term:is_list_of(fun is_issuer/1, Value)
        orelse ~"a list of https URLs";
option(principal, Value) ->
    is_function(Value, 1) orelse ~"a fun of one argument";
option(dpop, Value) ->
    lists:member(Value, [off, optional, required]) orelse ~"off, optional or required";
option(dpop_nonce, Value) ->
    is_boolean(Value) orelse ~"true or false";
option(Name, Value) when Name =:= dpop_proofs; Name =:= dpop_proofs_per_key ->
    is_integer(Value) andalso Value > 0 orelse ~"a number of proofs, at least 1";
option(wait_ms, Value) ->
    erlmcp_user_term:check_wait(Value);
option(tls, Value) ->
    erlmcp_user_term:is_proper_list(Value) orelse ~"a list of options of ssl";
option(_, _) ->
    ~"an option of bearer".

sources([]) ->
    true;
sources([{Index, {jwt, #{} = Jwt}} | Sources]) ->
    case members(Index, Jwt, [issuer, jwks], fun jwt/2, []) of
        true ->
            case keys_and_algorithms(Jwt) of
                true -> sources(Sources);
                {Name, Text} -> {{tokens, Index, Name}, Text}
            end;
        Wrong ->
            Wrong
    end;
sources([{Index, {introspection, #{} = Introspection}} | Sources]) ->
    Secret = case Introspection of
        #{key := _} -> key;
        #{} -> client_secret
    end,
    members(Index, Introspection, [uri, issuer, client_id, Secret], fun introspection/2, Sources);
sources([{Index, {static, Tokens}} | Sources]) ->
    case erlmcp_user_term:is_list_of(fun is_static/1, Tokens) andalso length(Tokens) =< ?STATIC of
        true -> sources(Sources);
        _ -> {{tokens, Index, static},
              ~"a list of maps with token or sha256, principal, and if need be scopes, expires_at"}
    end;
sources([{Index, {verify, Fun}} | Sources]) ->
    case is_function(Fun, 2) of
        true -> sources(Sources);
        false -> {{tokens, Index, verify}, ~"a fun of two arguments"}
    end;
sources([{Index, _} | _]) ->
    {{tokens, Index}, ~"{jwt | introspection | static | verify, Options}"}.

members(Index, Given, Needed, Expected, Sources) ->
    maybe
        ok ?= each(maps:to_list(Given), Expected, fun(Name) -> {tokens, Index, Name} end),
        [] ?= Needed -- maps:keys(Given),
        sources(Sources)
    else
        {error, {bad_option, Option, Text}} -> {Option, Text};
        [Missing | _] -> {{tokens, Index, Missing}, ~"it is needed"}
    end.

jwt(issuer, Value) ->
    is_text(Value) orelse ~"a binary that is not empty";
jwt(jwks, {uri, Uri}) ->
    is_issuer(Uri) orelse ~"{uri, Url}, https or on the loopback";
jwt(jwks, {keys, [First | _] = Keys}) ->
    erlmcp_jwk:set(#{~"keys" => Keys}) =/= []
        orelse iolist_to_binary(["{keys, Jwks}, of which one at least serves for signatures; "
                                 "of the first, ", erlmcp_jwk:problem(First)]);
jwt(jwks, {secret, _}) ->
    true;
jwt(jwks, _) ->
    ~"{uri, Url}, {keys, Jwks} or {secret, Secret}";
jwt(algorithms, [_ | _] = Value) when length(Value) > 0 ->
    case Value -- (erlmcp_jwk:algorithms() ++ erlmcp_jwk:secret_algorithms()) of
        [] -> true;
        [Unknown | _] ->
            iolist_to_binary([~"a list of ", words(erlmcp_jwk:algorithms()), ~", or of ",
                              words(erlmcp_jwk:secret_algorithms()), ~", got ",
                              shown(Unknown)])
    end;
jwt(algorithms, _) ->
    ~"a list of at least one algorithm";
jwt(types, Value) ->
    Value =/= [] andalso erlmcp_user_term:is_list_of(fun is_text/1, Value)
        orelse ~"a list of values of typ";
jwt(leeway_s, Value) ->
    is_seconds(Value) orelse ~"seconds, 0 to 300";
jwt(audience, Value) ->
    is_audience(Value);
jwt(_, _) ->
    ~"an option of jwt".

words(Names) -> lists:join(~", ", Names).

shown(Name) when is_binary(Name) -> erlmcp_printable:quoted(Name);
shown(Name) when is_atom(Name) -> [~"the atom ", erlmcp_printable:quoted(atom_to_binary(Name))];
shown(_) -> ~"a term that is not a binary".

%% A client that can choose a token's algorithm could have a public key taken for a secret. So a
%% source has either keys or a secret, and a secret only with named algorithms.
keys_and_algorithms(#{jwks := {secret, Secret}} = Jwt) ->
    case maps:get(algorithms, Jwt, []) of
        [] ->
            {algorithms, ~"HS256, HS384 or HS512, by name: jwks has a secret"};
        Algorithms ->
            case Algorithms -- erlmcp_jwk:secret_algorithms() of
                [] -> secret(Secret, Algorithms);
                [Other | _] ->
                    {algorithms, <<"HS256, HS384 and HS512 only, since jwks has a secret; ",
                                   Other/binary, " needs public keys">>}
            end
    end;
keys_and_algorithms(#{jwks := Keys} = Jwt) ->
    Algorithms = maps:get(algorithms, Jwt, ?DEFAULT_ALGORITHMS),
    case [One || One <- Algorithms, lists:member(One, erlmcp_jwk:secret_algorithms())] of
        [] -> some_fits(Keys, Algorithms);
        [Secret | _] -> {algorithms, <<"algorithms with public keys, since jwks has such keys; ",
                                       Secret/binary, " needs jwks => {secret, Secret}">>}
    end.

secret(Secret, Algorithms) ->
    case revealed(Secret) of
        {ok, Text} ->
            case erlmcp_jwk:secret_problem(Text, Algorithms) of
                none -> true;
                Problem -> {jwks, <<"{secret, Secret} with ", Problem/binary>>}
            end;
        _ ->
            {jwks, ~"{secret, Secret} with a binary, or a fun that gives {ok, Secret}"}
    end.

revealed(Secret) when is_function(Secret, 0) -> Secret();
revealed(Secret) -> {ok, Secret}.

some_fits({uri, _}, _) ->
    true;
some_fits({keys, Given}, Algorithms) ->
    Keys = erlmcp_jwk:set(#{~"keys" => Given}),
    lists:any(fun(Algorithm) -> erlmcp_jwk:candidates(Algorithm, none, Keys) =/= [] end, Algorithms)
        orelse {algorithms, iolist_to_binary(["an algorithm that one of the keys serves for: none "
                                              "does for ", words(Algorithms)])}.

introspection(uri, Value) ->
    is_issuer(Value) orelse ~"a URL, https or on the loopback";
introspection(Name, Value) when Name =:= issuer; Name =:= client_id ->
    is_text(Value) orelse ~"a binary that is not empty";
introspection(Name, Value) when Name =:= client_secret; Name =:= key ->
    is_text(Value) orelse is_function(Value, 0)
        orelse ~"a binary that is not empty, or a fun without arguments";
introspection(algorithm, Value) ->
    lists:member(Value, [~"ES256", ~"RS256", ~"PS256", ~"EdDSA"])
        orelse ~"ES256, RS256, PS256 or EdDSA";
introspection(cache_s, Value) ->
    is_seconds(Value) orelse ~"seconds, 0 to 300";
introspection(audience, Value) ->
    is_audience(Value);
introspection(_, _) ->
    ~"an option of introspection".

is_static(#{principal := _, token := Token} = Static) ->
    is_text(Token) andalso is_static(maps:remove(token, Static), [principal]);
is_static(#{principal := _, sha256 := Hash} = Static) ->
    is_sha256(Hash) andalso is_static(maps:remove(sha256, Static), [principal]);
is_static(_) ->
    false.

is_static(Static, Needed) ->
    maps:keys(maps:without([scopes, expires_at | Needed], Static)) =:= []
        andalso is_scopes(maps:get(scopes, Static, []))
        andalso is_integer(maps:get(expires_at, Static, 0)).

is_sha256(Hash) ->
    is_binary(Hash) andalso byte_size(Hash) =:= 64
        andalso re:run(Hash, ~"^[0-9a-fA-F]*$", [{capture, none}, dollar_endonly]) =:= match.

is_text(Value) -> is_binary(Value) andalso Value =/= ~"".

is_scopes(all) -> true;
is_scopes(Values) -> erlmcp_user_term:is_list_of(fun is_text/1, Values).

is_seconds(Value) -> is_integer(Value) andalso Value >= 0 andalso Value =< ?MOST_S.

is_audience(Value) ->
    one_or_more(Value, fun is_text/1) orelse ~"a binary that is not empty, or a list of them".

is_issuer(Value) -> is_binary(Value) andalso erlmcp_oauth_url:allowed(Value, [loopback]).

is_resource(Value) -> is_binary(Value) andalso element(1, erlmcp_oauth_url:canonical(Value)) =:= ok.

one_or_more([_ | _] = Values, Is) -> erlmcp_user_term:is_list_of(Is, Values);
one_or_more(Value, Is) -> Is(Value).

-doc """
Returns the settings for options that `check/1` accepted. Each call makes new secrets, so call this
function once for each listener. Calls the fun of a secret for JWTs again, and crashes if that fun
fails now.
""".
-spec settings(erlmcp_listen:bearer()) -> settings().
settings(#{tokens := Tokens} = Options) ->
    Secret = crypto:strong_rand_bytes(32),
    Blind = fun(Token) -> blinded(crypto:hash(sha256, Token), Secret) end,
    Sources = [{Index, source(Source, Secret)} || {Index, Source} <- lists:enumerate(Tokens)],
    Nonces = erlmcp_dpop_nonce:new(),
    #{sources => Sources,
      resource => listed(maps:get(resource, Options, [])),
      authorization_servers => maps:get(authorization_servers, Options, issuers(Tokens)),
      principal => maps:get(principal, Options, default),
      dpop => maps:get(dpop, Options, off),
      dpop_nonce => maps:get(dpop_nonce, Options, false),
      dpop_proofs => maps:get(dpop_proofs, Options, ?PROOFS),
      dpop_proofs_per_key => maps:get(dpop_proofs_per_key, Options, ?PROOFS_PER_KEY),
      wait_ms => maps:get(wait_ms, Options, ?WAIT_MS),
      tls => maps:get(tls, Options, []),
      blind => Blind,
      nonces => fun() -> Nonces end,
      cluster => none}.

-doc """
Returns the settings with the secrets of DPoP nonces that all nodes of a cluster share. While the
node is in no cluster, the listener uses secrets of its own. The first argument is the module of the
option `cluster` and its state. With `none` the settings stay as they are.
""".
-spec in_cluster(none | {module(), State :: term()}, settings()) -> settings().
in_cluster(none, Settings) ->
    Settings;
in_cluster({Module, State} = Cluster, #{nonces := Own} = Settings) ->
    Settings#{cluster := Cluster,
              nonces := fun() ->
                  case Module:keys(dpop, State) of
                      {ok, Secrets} -> Secrets;
                      none -> Own()
                  end
              end}.

%% Tables are keyed by a hash that only this node can compute, so the time of a look-up reveals
%% nothing about the tokens in it.
blinded(Hash, Secret) ->
    crypto:mac(hmac, sha256, Secret, Hash).

issuers(Tokens) ->
    lists:uniq([Issuer || {_, #{issuer := Issuer}} <- Tokens, is_issuer(Issuer)]).

source({jwt, #{issuer := Issuer, jwks := Keys} = Jwt}, _) ->
    {jwt, #{issuer => Issuer, keys => keys(Keys), audience => audience(Jwt),
            algorithms => maps:get(algorithms, Jwt, ?DEFAULT_ALGORITHMS),
            types => [string:lowercase(Type) || Type <- maps:get(types, Jwt, ?TYPES)],
            leeway_s => maps:get(leeway_s, Jwt, ?LEEWAY_S)}};
source({introspection, Introspection}, _) ->
    {introspection, (maps:with([uri, issuer], Introspection))#{
        client => client(Introspection), audience => audience(Introspection),
        cache_s => maps:get(cache_s, Introspection, ?CACHE_S)}};
source({static, Tokens}, Secret) ->
    {static, #{blinded(sha256(Token), Secret) => static(Token) || Token <- Tokens}};
source({verify, Fun}, _) ->
    {verify, Fun}.

keys({keys, Keys}) -> {keys, erlmcp_jwk:set(#{~"keys" => Keys})};
keys({uri, Uri}) -> {uri, Uri};
%% A secret stays in a fun.
keys({secret, Secret}) ->
    {ok, Text} = revealed(Secret),
    Key = erlmcp_jwk:secret(Text),
    {secret, fun() -> Key end}.

client(#{client_id := Id, key := Key} = Introspection) ->
    #{client => #{client_id => Id, auth => private_key_jwt},
      settings => #{key => revealing(Key),
                    algorithm => maps:get(algorithm, Introspection, ~"ES256")}};
client(#{client_id := Id, client_secret := Secret}) ->
    #{client => #{client_id => Id, client_secret => revealing(Secret), auth => client_secret_basic},
      settings => #{}}.

revealing(Secret) when is_binary(Secret) -> fun() -> {ok, Secret} end;
revealing(Secret) -> Secret.

audience(#{audience := Audience}) -> listed(Audience);
audience(#{}) -> resource.

sha256(#{token := Token}) -> crypto:hash(sha256, Token);
sha256(#{sha256 := Hash}) -> binary:decode_hex(Hash).

static(#{principal := Principal} = Static) ->
    #{principal => Principal, scopes => maps:get(scopes, Static, []),
      expires_at => maps:get(expires_at, Static, infinity), claims => #{}}.

listed(Values) when is_list(Values) -> Values;
listed(Value) -> [Value].

-doc """
Returns the URIs of the resources for which tokens are accepted, unless their source has an
`audience` of its own. Without the option `resource`, the only resource is `Url`, the URL of the
endpoint. If then `Url` has a loopback address, the same URLs with `localhost`, `127.0.0.1` and
`::1` are among the resources, too.
""".
-spec resources(settings(), Url :: binary()) -> [binary(), ...].
resources(#{resource := [_ | _] = Resources}, _) ->
    Resources;
resources(_, Url) ->
    {ok, {_, Host, _}} = erlmcp_oauth_url:origin(Url),
    case erlmcp_oauth_url:loopback(Host) of
        true -> [Url | [erlmcp_oauth_url:with_host(Url, Other)
                        || Other <- [~"localhost", ~"127.0.0.1", ~"::1"], Other =/= Host]];
        false -> [Url]
    end.
