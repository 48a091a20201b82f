-module(erlmcp_dpop_proof).
-moduledoc """
Checks the proof of possession in the header `DPoP` of a request. Pure.

Source: RFC 9449, sections 4.2, 4.3, 7 and 11.1.

Internal.
""".

-export([algorithms/0, check/2]).

-export_type([wanted/0, proof/0]).

-doc """
The request that the proof must be for: its method, its accepted URLs, its access token, and `now`
in seconds of system time.
""".
-type wanted() :: #{method := binary(), urls := [binary(), ...], token := binary(),
                    now := integer()}.
-doc """
A valid proof: the thumbprint of its key, an id that is unique for the key, and its nonce or `none`.
The proof cannot be used from `until` on, in seconds of system time.
""".
-type proof() :: #{thumbprint := binary(), id := binary(), nonce := term(), until := integer()}.

%% Seconds that a proof may be old, and ahead of this server's clock (section 11.1). A proof is
%% remembered until it is too old, so for both together at most.
-define(OLDEST_S, 60).
-define(AHEAD_S, 5).
%% The greatest number of seconds in an error text.
-define(MOST_SHOWN_S, 1_000_000_000).
-define(ID_BYTES, 256).

-doc "Returns the algorithms that proofs may have.".
-spec algorithms() -> [binary(), ...].
algorithms() ->
    [~"ES256", ~"EdDSA", ~"RS256", ~"PS256"].

-doc """
Checks that `Proof` is a valid proof for the request. Checks neither its nonce nor an earlier use.
An error says what is wrong.
""".
-spec check(Proof :: binary(), wanted()) -> {ok, proof()} | {error, Text :: binary()}.
check(Text, Wanted) ->
    maybe
        {ok, #{type := ~"dpop+jwt", header := #{~"jwk" := #{} = Jwk}} = Jwt} ?=
            erlmcp_jwt:read(Text),
        false ?= is_private(Jwk),
        {ok, Key} ?= erlmcp_jwk:public(Jwk),
        %% The proof contains its key, so the id in the header is ignored.
        ok ?= erlmcp_jwt:check_signature(Jwt#{kid := none}, algorithms(), [Key]),
        check_claims(Jwt, Key, Wanted)
    else
        {error, _} -> {error, ~"the proof's signature is not valid"};
        _ -> {error, ~"a proof must be a JWT of the type dpop+jwt with a public jwk"}
    end.

is_private(Jwk) ->
    lists:any(fun(Member) -> is_map_key(Member, Jwk) end, [~"d", ~"p", ~"q", ~"k"]).

check_claims(#{claims := Claims}, Key, #{method := Method, token := Token, now := Now} = Wanted) ->
    maybe
        #{~"jti" := Id, ~"htm" := Htm, ~"htu" := Htu, ~"iat" := At} ?= Claims,
        true ?= is_binary(Id) andalso Id =/= ~"" andalso byte_size(Id) =< ?ID_BYTES
            orelse {error, ~"jti: expected 1 to 256 bytes"},
        true ?= Htm =:= Method orelse {error, ~"htm: it is not the request's method"},
        true ?= is_url(Htu, Wanted) orelse {error, ~"htu: it is not the request's URL"},
        ok ?= time(At, Now),
        true ?= maps:get(~"ath", Claims, none) =:= hash(Token)
            orelse {error, ~"ath: it is not the token's hash"},
        {ok, #{thumbprint => erlmcp_jwk:thumbprint(Key), id => Id,
               nonce => maps:get(~"nonce", Claims, none), until => trunc(At) + ?OLDEST_S + 1}}
    else
        #{} -> {error, ~"jti, htm, htu and iat are needed"};
        {error, _} = Error -> Error
    end.

time(At, _) when not is_number(At) ->
    {error, ~"iat: expected a number of seconds"};
time(At, Now) when At > Now + ?AHEAD_S ->
    {error, off(At - Now, ~"ahead of", ?AHEAD_S)};
time(At, Now) when At < Now - ?OLDEST_S ->
    {error, off(Now - At, ~"behind", ?OLDEST_S)};
time(_, _) ->
    ok.

off(Seconds, Where, Most) ->
    iolist_to_binary(io_lib:format("iat: the proof is ~b s ~s this server's clock: at most ~b",
                                   [ceil(min(Seconds, ?MOST_SHOWN_S)), Where, Most])).

is_url(Htu, #{urls := Urls}) when is_binary(Htu) ->
    Target = erlmcp_oauth_url:endpoint(Htu),
    lists:any(fun(Url) -> erlmcp_oauth_url:same_resource(Target, Url) end, Urls);
is_url(_, _) ->
    false.

hash(Token) ->
    erlmcp_base64url:encode(crypto:hash(sha256, Token)).
