-module(erlmcp_bearer_credentials).
-moduledoc """
The token of a request, and the proof that its sender may use it: of a key (DPoP), or the
certificate of the connection.

Sources: RFC 6750, section 2.1; RFC 9449, section 7; RFC 8705, section 3.

Internal.
""".

-export([read/2, check_binding/6]).

-export_type([scheme/0]).

-type scheme() :: bearer | dpop.

-define(TOKEN_BYTES, 16_384).

-doc """
Returns the scheme and the token of `Authorization`. A scheme that the listener does not accept
counts as none.
""".
-spec read(erlmcp_listen:request(), erlmcp_bearer_options:settings()) ->
    {ok, scheme(), Token :: binary()} | {error, erlmcp_bearer_failure:failure()}.
read(#{headers := #{~"authorization" := Field}}, #{dpop := Dpop}) ->
    maybe
        [Name, Rest] ?= binary:split(Field, ~" "),
        {ok, Scheme} ?= scheme(string:lowercase(Name), Dpop),
        Token = string:trim(Rest, both, " "),
        true ?= is_token(Token),
        {ok, Scheme, Token}
    else
        false -> {error, erlmcp_bearer_failure:malformed(~"Authorization: expected one token")};
        _ -> {error, erlmcp_bearer_failure:missing()}
    end;
read(_, _) ->
    {error, erlmcp_bearer_failure:missing()}.

scheme(~"bearer", Dpop) when Dpop =/= required -> {ok, bearer};
scheme(~"dpop", Dpop) when Dpop =/= off -> {ok, dpop};
scheme(_, _) -> none.

%% The characters of RFC 6750; a comma would be a second field.
is_token(Token) ->
    Token =/= ~"" andalso byte_size(Token) =< ?TOKEN_BYTES
        andalso match =:= re:run(Token, ~"^[A-Za-z0-9._~+/-]+=*$",
                                 [{capture, none}, dollar_endonly]).

-doc """
Checks that the sender may use the token, and returns the nonce to use next if there is a new one. A
proof serves once, and is used up here; so it is checked last.
""".
-spec check_binding(scheme(), Token :: binary(), erlmcp_token_claims:confirmation(),
                    erlmcp_listen:request(),
                    erlmcp_bearer_options:settings(), erlmcp_bearer_tables:tables()) ->
    {ok, #{dpop_nonce => binary()}} | {error, erlmcp_bearer_failure:failure()}.
check_binding(_, _, unknown, _, _, _) ->
    {error, erlmcp_bearer_failure:invalid(~"the token has a binding that is not supported here")};
check_binding(Scheme, Token, Bindings, Request, Settings, Tables) ->
    maybe
        ok ?= certificate(lists:keyfind(certificate, 1, Bindings), Request),
        key(Scheme, lists:keyfind(jkt, 1, Bindings), Token, Request, Settings, Tables)
    end.

certificate(false, _) ->
    ok;
certificate({certificate, Thumbprint}, #{certificate := Der}) ->
    case erlmcp_base64url:encode(crypto:hash(sha256, Der)) of
        Thumbprint -> ok;
        _ -> {error, erlmcp_bearer_failure:invalid(~"the token is bound to another certificate")}
    end;
certificate(_, _) ->
    {error, erlmcp_bearer_failure:invalid(~"the token is bound to a certificate")}.

key(bearer, false, _, _, _, _) ->
    {ok, #{}};
key(bearer, _, _, _, _, _) ->
    {error, erlmcp_bearer_failure:invalid(~"the token is bound to a key, and needs a proof")};
key(dpop, false, _, _, _, _) ->
    {error, erlmcp_bearer_failure:bound(~"the token is bound to no key")};
key(dpop, {jkt, Thumbprint}, Token, #{headers := #{~"dpop" := Text}} = Request, Settings, Tables) ->
    Now = erlang:system_time(second),
    maybe
        {ok, #{thumbprint := Thumbprint} = Proof} ?=
            erlmcp_dpop_proof:check(Text, wanted(Token, Request, Settings, Now)),
        {ok, Next} ?= nonce(Proof, Settings, Now),
        ok ?= use_proof(Proof, Tables),
        {ok, Next}
    else
        {ok, _} -> {error, erlmcp_bearer_failure:bound(~"the token is bound to another key")};
        {error, Reason} when is_binary(Reason) -> {error, erlmcp_bearer_failure:proof(Reason)};
        {error, Failure} -> {error, Failure}
    end;
key(dpop, _, _, _, _, _) ->
    {error, erlmcp_bearer_failure:proof(~"DPoP: the proof is missing")}.

%% Behind a proxy, the client's URL has the resource's origin, and its path may be the resource's.
wanted(Token, #{method := Method, path := Path, url := Url}, Settings, Now) ->
    Resources = erlmcp_bearer_options:resources(Settings, Url),
    Targets = [erlmcp_oauth_url:under_origin(Resource, Path) || Resource <- Resources],
    #{method => Method, token => Token, now => Now,
      urls => Targets ++ [erlmcp_oauth_url:endpoint(Resource) || Resource <- Resources]}.

nonce(_, #{dpop_nonce := false}, _) ->
    {ok, #{}};
nonce(#{nonce := Nonce}, #{nonces := Secret}, Now) ->
    case erlmcp_dpop_nonce:is_known(Secret(), Nonce, Now) of
        current -> {ok, #{}};
        previous -> {ok, #{dpop_nonce => erlmcp_dpop_nonce:current(Secret(), Now)}};
        false -> {error, erlmcp_bearer_failure:nonce(erlmcp_dpop_nonce:current(Secret(), Now))}
    end.

use_proof(#{thumbprint := Thumbprint, id := Id, until := Until}, Tables) ->
    case erlmcp_bearer_tables:use_proof({Thumbprint, Id}, Until, Tables) of
        ok -> ok;
        used -> {error, ~"jti: the proof was used before"};
        {full, Whose, Limit} -> {error, erlmcp_bearer_failure:proofs(Whose, Limit)}
    end.
