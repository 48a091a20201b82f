-module(erlmcp_bearer_failure).
-moduledoc """
The reasons why a request's token is refused, and the headers of these refusals. Pure.

Sources: RFC 6750, section 3; RFC 9449, sections 7.1 and 9; RFC 9728, section 5.1.

Internal.
""".

-export([missing/0, malformed/1, invalid/1, expired/0, proof/1, nonce/1]).
-export([insufficient/2, unavailable/1, busy/1, proofs/2, refused/1]).
-export([headers/3]).

-export_type([failure/0]).

-doc """
A failure: the refusal, and the parts of the challenge. `error` is an error code of RFC 6750 or RFC
9449, if the client gets one. `scheme` is the scheme of the client's token, if it has sent one.
`dpop_nonce` is a nonce for its proofs, and `scope` has the scopes that the request needs.
""".
-type failure() :: #{
    refusal := erlmcp_refusal:refusal(),
    error => binary(),
    scheme => bearer | dpop,
    dpop_nonce => binary(),
    scope => [binary()]
}.

-define(RETRY_MS, 1000).
%% Milliseconds between sweeps of old proofs.
-define(SWEEP_MS, 5_000).

-doc "Returns the failure of a request without a token: 401 without an error code (RFC 6750).".
-spec missing() -> failure().
missing() ->
    #{refusal => erlmcp_refusal:new(auth_missing, ~"an access token is needed")}.

-doc """
Returns the failure for an `Authorization` whose token has a wrong form: 400. `Text` is the message
of the refusal.
""".
-spec malformed(Text :: binary()) -> failure().
malformed(Text) ->
    #{refusal => erlmcp_refusal:new(invalid_header, Text, #{status => 400}),
      error => ~"invalid_request"}.

-doc """
Returns the failure for a token that the listener does not accept: 401. `Text` is the message of the
refusal.
""".
-spec invalid(Text :: binary()) -> failure().
invalid(Text) ->
    #{refusal => erlmcp_refusal:new(auth_invalid_credentials, Text), error => ~"invalid_token"}.

-doc "Returns the failure for a token that has expired: 401.".
-spec expired() -> failure().
expired() ->
    #{refusal => erlmcp_refusal:new(auth_expired, ~"the token has expired"),
      error => ~"invalid_token"}.

-doc """
Returns the failure for a missing, invalid or used proof of possession: 401. `Text` is the message
of the refusal.
""".
-spec proof(Text :: binary()) -> failure().
proof(Text) ->
    #{refusal => erlmcp_refusal:new(auth_failed, Text), error => ~"invalid_dpop_proof"}.

-doc "Returns the failure for a proof without a valid nonce: 401, with `Nonce` for the next proof.".
-spec nonce(Nonce :: binary()) -> failure().
nonce(Nonce) ->
    #{refusal => erlmcp_refusal:new(auth_failed, ~"the proof needs the nonce in DPoP-Nonce"),
      error => ~"use_dpop_nonce", dpop_nonce => Nonce}.

-doc """
Returns the failure for a valid token that lacks scopes: 403. `Text` is the message of the refusal.
`Scopes` are all scopes that the request needs.
""".
-spec insufficient(Text :: binary(), Scopes :: [binary()]) -> failure().
insufficient(Text, Scopes) ->
    #{refusal => erlmcp_refusal:new(authz_forbidden, Text), error => ~"insufficient_scope",
      scope => Scopes}.

-doc """
Returns the failure if another machine cannot be asked, or does not answer in time: 503. `Text` is
the message of the refusal.
""".
-spec unavailable(Text :: binary()) -> failure().
unavailable(Text) ->
    #{refusal => erlmcp_refusal:new(dependency_unavailable, Text, #{retry_after_ms => ?RETRY_MS})}.

-doc """
Returns the failure if too many tokens wait to be checked: 503. The refusal has `Limit`, the most
tokens that may wait.
""".
-spec busy(Limit :: pos_integer()) -> failure().
busy(Limit) ->
    #{refusal => erlmcp_refusal:new(backpressure_active, ~"too many tokens wait to be checked",
                                    #{retry_after_ms => ?RETRY_MS, limit => Limit})}.

-doc """
Returns the failure if too many proofs are in use. `key` is for those of the key that signed the
proof (429), and `all` for those of all keys (503). The refusal has `Limit`, the most proofs that
may be in use.
""".
-spec proofs(key | all, Limit :: pos_integer()) -> failure().
proofs(key, Limit) ->
    full(rate_limit_exceeded, ~"DPoP: the key of this proof has too many proofs in use", Limit);
proofs(all, Limit) ->
    full(backpressure_active, ~"DPoP: all keys together have too many proofs in use", Limit).

full(Name, Text, Limit) ->
    #{refusal => erlmcp_refusal:new(Name, Text, #{retry_after_ms => ?SWEEP_MS, limit => Limit})}.

-doc """
Returns the failure for any other reason, with the given refusal, such as that for a user's fun that
crashed.
""".
-spec refused(erlmcp_refusal:refusal()) -> failure().
refused(Refusal) ->
    #{refusal => Refusal}.

-doc """
Returns the headers of an answer with the given failure. `DPoP-Nonce` is there if the failure has a
nonce, and `WWW-Authenticate` unless the status of the refusal is 429 or at least 500.
`WWW-Authenticate` has a challenge for each scheme that the listener accepts, according to `dpop` of
the settings. The error code is in the challenge of the failure's `scheme`, or in the first one if
the failure has no scheme.

`resource_metadata` is the URL of the listener's metadata. `scope` has the scopes that the request
needs, unless the failure has its own.
""".
-spec headers(failure(), #{resource_metadata => binary(), scope => [binary()]},
              #{dpop := off | optional | required, _ => _}) -> #{binary() => binary()}.
headers(#{refusal := Refusal} = Failure, Parameters, #{dpop := Dpop}) ->
    Fields = maps:merge(Parameters, maps:with([scope], Failure)),
    Nonce = #{~"dpop-nonce" => Nonce || #{dpop_nonce := Nonce} <- [Failure]},
    case erlmcp_refusal:status(Refusal) of
        %% No other token helps.
        Status when Status >= 500; Status =:= 429 ->
            Nonce;
        _ ->
            Schemes = schemes(Dpop),
            Used = maps:get(scheme, Failure, hd(Schemes)),
            Challenges = [challenge(Scheme, Scheme =:= Used, Failure, Fields) || Scheme <- Schemes],
            Nonce#{~"www-authenticate" => iolist_to_binary(lists:join(~", ", Challenges))}
    end.

%% Most clients know Bearer, so it comes first.
schemes(off) -> [bearer];
schemes(optional) -> [bearer, dpop];
schemes(required) -> [dpop].

challenge(Scheme, IsUsed, Failure, Fields) ->
    Parameters = algorithms(Scheme) ++ named(IsUsed, Failure)
        ++ [{~"scope", erlmcp_oauth_scope:text(Scope)} || #{scope := [_ | _] = Scope} <- [Fields]]
        ++ [{~"resource_metadata", Url} || #{resource_metadata := Url} <- [Fields]],
    Words = [[Name, ~"=\"", quotable(Value), ~"\""] || {Name, Value} <- Parameters],
    lists:join(~" ", [name(Scheme) | [lists:join(~", ", Words) || Words =/= []]]).

name(bearer) -> ~"Bearer";
name(dpop) -> ~"DPoP".

algorithms(bearer) -> [];
algorithms(dpop) -> [{~"algs", lists:join(~" ", erlmcp_dpop_proof:algorithms())}].

named(true, #{error := Error, refusal := Refusal}) ->
    [{~"error", Error}, {~"error_description", erlmcp_refusal:message(Refusal)}];
named(_, _) ->
    [].

%% Replaces characters that RFC 6750 does not allow between the quotes. A user's fun may return any.
quotable(Text) ->
    << <<(case Byte >= 32 andalso Byte < 127 andalso Byte =/= $" andalso Byte =/= $\\ of
              true -> Byte;
              false -> $?
          end)>> || <<Byte>> <= iolist_to_binary(Text) >>.
