-module(erlmcp_jwt).
-moduledoc """
Reads signed JWTs in their compact form, within bounds, and checks their signatures. Base64url that
is not canonical, JSON with a repeated member, and a header with `crit` or `b64` are refused. Pure.

Sources: RFC 7515, RFC 7519, RFC 8725.

Internal.
""".

-export([read/1, check_signature/3]).

-export_type([jwt/0]).

-doc "The content of a JWT, which is not trusted before its signature was checked.".
-type jwt() :: #{
    text := binary(),
    header := #{binary() => erlmcp_json:json_term()},
    claims := #{binary() => erlmcp_json:json_term()},
    algorithm := binary(),
    kid := binary() | none,
    type := binary() | none
}.

-define(BYTES, 16_384).
-define(HEADER_LIMITS, #{message_bytes => 8_192, depth => 4, members => 64}).
-define(CLAIMS_LIMITS, #{message_bytes => ?BYTES, depth => 16, members => 1_000}).

-doc """
Reads the header and the claims of a compact JWS with a signature, of at most 16,384 bytes. `type`
is its `typ` in lower case, without `application/`. The signature is not checked. Returns `error`
for any other text, and for a header or claims that exceed the bounds of this module.
""".
-spec read(binary()) -> {ok, jwt()} | error.
read(Text) when byte_size(Text) =< ?BYTES ->
    maybe
        [Header, Claims, Signature] ?= binary:split(Text, ~".", [global]),
        {ok, #{~"alg" := Algorithm} = HeaderMap} ?= object(Header, ?HEADER_LIMITS),
        true ?= is_binary(Algorithm) andalso not is_map_key(~"crit", HeaderMap)
            andalso not is_map_key(~"b64", HeaderMap),
        {ok, Kid} ?= text(~"kid", HeaderMap),
        {ok, Type} ?= text(~"typ", HeaderMap),
        {ok, <<_, _/binary>>} ?= erlmcp_base64url:decode(Signature),
        {ok, ClaimsMap} ?= object(Claims, ?CLAIMS_LIMITS),
        {ok, #{text => Text, header => HeaderMap, claims => ClaimsMap, algorithm => Algorithm,
               kid => Kid, type => media_type(Type)}}
    else
        _ -> error
    end;
read(_) ->
    error.

object(Encoded, Limits) ->
    maybe
        {ok, Json} ?= erlmcp_base64url:decode(Encoded),
        {ok, #{} = Object} ?= erlmcp_json:decode(Json, Limits),
        {ok, Object}
    else
        _ -> error
    end.

text(Name, Map) ->
    case Map of
        #{Name := Text} when is_binary(Text) -> {ok, Text};
        #{Name := _} -> error;
        #{} -> {ok, none}
    end.

media_type(none) ->
    none;
media_type(Type) ->
    case string:lowercase(Type) of
        <<"application/", Rest/binary>> -> Rest;
        Lower -> Lower
    end.

-doc """
Checks that one of `Keys` signed the JWT, with an algorithm of `Algorithms`. `algorithm` means that
the JWT has another algorithm, and `signature` that its signature is wrong. `unknown_key` means that
a key which was not tried may have signed the JWT. Either no key in `Keys` has the JWT's key id and
algorithm, or the JWT has no key id. At most 8 keys are tried.
""".
-spec check_signature(jwt(), Algorithms :: [binary()], Keys :: [erlmcp_jwk:key()]) ->
    ok | {error, algorithm | unknown_key | signature}.
check_signature(#{text := Text, algorithm := Algorithm, kid := Kid}, Algorithms, Keys) ->
    maybe
        true ?= lists:member(Algorithm, Algorithms) orelse {error, algorithm},
        [_ | _] = Candidates ?= erlmcp_jwk:candidates(Algorithm, Kid, Keys),
        Verifies = fun(Key) -> erlmcp_jwk:verifies(Text, Algorithm, Key) end,
        case lists:any(Verifies, Candidates) of
            true -> ok;
            %% Without an id, a key that is not known yet may have signed it.
            false when Kid =:= none -> {error, unknown_key};
            false -> {error, signature}
        end
    else
        [] -> {error, unknown_key};
        {error, _} = Error -> Error
    end.
