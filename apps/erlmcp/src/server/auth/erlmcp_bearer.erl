-module(erlmcp_bearer).
-moduledoc """
The authentication of an HTTP request by its access token: `authenticate => {bearer, Options}` of a
listener.

A token is checked at once, in the calling process, if no other machine is needed. Otherwise an
issuer is asked for its keys, or an authorization server about the token. The caller gets a message
when its request can go on, and does not block meanwhile.

Sources: specification 2026-07-28, "Authorization"; RFC 6750 (bearer tokens), RFC 9068 and RFC 8725
(JWT), RFC 7662 (introspection), RFC 9449 (DPoP), RFC 8705 (tokens bound to a certificate).

Internal.
""".

-export([new/2, child_spec/1, verify/3, awaited/3, proof_used/3]).
-export([headers/3, metadata/2]).

-export_type([handle/0, owner/0, identity/0, answer/0, wait/0]).

-define(TOKEN_BYTES, 16_384).

-doc "The settings and tables of one listener.".
-opaque handle() :: #{settings := erlmcp_bearer_options:settings(),
                      tables := erlmcp_bearer_tables:tables()}.
-doc """
The process that continues a waiting request, and the tag of the messages to it. The process is sent
`{Tag, {erlmcp_bearer, Reference, Outcome}}`. It must pass the inner tuple to `awaited/3`.
""".
-type owner() :: {pid(), Tag :: term()}.
-doc """
The identity of a request. The token is invalid from `expires_at` on, in seconds of system time.
`claims` are the claims of the token, or those that the fun of a `verify` source has returned; a
`static` token has none. `scheme` is the scheme of `Authorization`, and `dpop_nonce` a new nonce for
the client. Only identities from `verify/3` and `awaited/3` have these two.
""".
-type identity() :: #{
    principal := erlmcp_auth:principal(),
    scopes := all | [binary()],
    expires_at := integer() | infinity,
    claims := #{binary() => term()},
    scheme => bearer | dpop,
    dpop_nonce => binary()
}.
-type answer() :: {ok, identity()} | {error, erlmcp_bearer_failure:failure()} | {wait, wait()}.
-doc "The state of a request that waits for the answer of another machine.".
-opaque wait() :: #{reference := reference(), timer := reference(), owner := owner(),
                    deadline := integer(), request := erlmcp_listen:request()}.

-doc """
Creates the handle of a listener from the settings of its checked options. The handle's tables
belong to the calling process, which must live as long as the listener. `Server` is the key of the
listener's server.
""".
-spec new(erlmcp_bearer_options:settings(), Server :: reference()) -> handle().
new(Settings, Server) ->
    #{settings => Settings#{server => Server}, tables => erlmcp_bearer_tables:new(Settings)}.

-doc """
Returns the child specification of the handle's process (`m:erlmcp_bearer_keeper`). While this
process does not run, a token for which another machine must be asked is refused with 503. A request
that waited when the process ended is refused after `wait_ms` at the latest.
""".
-spec child_spec(handle()) -> supervisor:child_spec().
child_spec(#{settings := Settings, tables := Tables}) ->
    #{id => ?MODULE, start => {erlmcp_bearer_keeper, start_link, [Settings, Tables]}}.

-doc """
Returns the identity of a request, or its failure, or `{wait, Wait}` if another machine must be
asked. After `{wait, Wait}` the owner always gets a message, within the `wait_ms` of the settings.
The owner must ignore messages for a request that does not wait any more. A valid proof of
possession is used up, so call this function only once for a request.
""".
-spec verify(handle(), erlmcp_listen:request(), owner()) -> answer().
verify(#{settings := #{wait_ms := WaitMs}} = Handle, Request, Owner) ->
    Deadline = erlmcp_clock:now_ms() + WaitMs,
    decided(Handle, Request, none, Owner, Deadline).

-doc """
Continues a request with the inner tuple of a message that its owner was sent. `Wait` is the state
of the request from the last `{wait, Wait}`. Returns `{wait, Wait}` again if another source must be
asked, or if the message belongs to an earlier wait. The deadline stays that of `verify/3`. At the
deadline the result is a 503.
""".
-spec awaited(handle(), {?MODULE, reference(), term()}, wait()) -> answer().
awaited(Handle, {?MODULE, Reference, Outcome}, #{reference := Reference} = Wait) ->
    #{timer := Timer, owner := Owner, deadline := Deadline, request := Request} = Wait,
    _ = erlang:cancel_timer(Timer, [{async, true}, {info, false}]),
    case Outcome of
        {_, _} = Answer ->
            decided(Handle, Request, Answer, Owner, Deadline);
        timeout ->
            {error, erlmcp_bearer_failure:unavailable(~"the token cannot be checked in time")}
    end;
awaited(_, {?MODULE, _, _}, Wait) ->
    {wait, Wait}.

decided(#{settings := Settings} = Handle, Request, Answer, Owner, Deadline) ->
    maybe
        {ok, Scheme, Token} ?= credentials(Request, Settings),
        case identity(Scheme, Token, Request, Answer, Handle) of
            {ok, Identity} ->
                {ok, Identity#{scheme => Scheme}};
            {error, Failure} ->
                {error, Failure#{scheme => Scheme}};
            {wait, Subject, Question} ->
                waiting(Handle, Subject, Question, Request, Owner, Deadline)
        end
    end.

identity(Scheme, Token, Request, Answer, #{settings := Settings, tables := Tables}) ->
    maybe
        {ok, Identity, Confirmation} ?=
            erlmcp_bearer_source:identity(Token, Request, Answer, Settings, Tables),
        {ok, Proved} ?=
            check_binding(Scheme, Token, Confirmation, Request, Settings, Tables),
        {ok, maps:merge(Identity, Proved)}
    end.

%% The caller has its own timer, so that it does not depend on the keeper's life.
waiting(#{tables := Tables}, Subject, Question, Request, {Pid, Tag} = Owner, Deadline) ->
    Reference = make_ref(),
    case erlmcp_bearer_keeper:ask(Subject, Question, {Owner, Reference}, Deadline, Tables) of
        ok ->
            Timer = erlang:send_after(Deadline, Pid, {Tag, {?MODULE, Reference, timeout}},
                                      [{abs, true}]),
            {wait, #{reference => Reference, timer => Timer, owner => Owner, deadline => Deadline,
                     request => Request}};
        {error, Failure} ->
            {error, Failure}
    end.

%% The scheme and the token of `Authorization`. A scheme that the listener does not accept counts as
%% none.
credentials(#{headers := #{~"authorization" := Field}}, #{dpop := Dpop}) ->
    maybe
        [Name, Rest] ?= binary:split(Field, ~" "),
        {ok, Scheme} ?= scheme(cowboy_bstr:to_lower(Name), Dpop),
        {match, [Token]} ?= token(Rest),
        {ok, Scheme, Token}
    else
        nomatch -> {error, erlmcp_bearer_failure:malformed(~"Authorization: expected one token")};
        _ -> {error, erlmcp_bearer_failure:missing()}
    end;
credentials(_, _) ->
    {error, erlmcp_bearer_failure:missing()}.

scheme(~"bearer", Dpop) when Dpop =/= required -> {ok, bearer};
scheme(~"dpop", Dpop) when Dpop =/= off -> {ok, dpop};
scheme(_, _) -> none.

%% The characters of RFC 6750; a comma would be a second field. The octets need not be text.
token(Octets) when byte_size(Octets) =< ?TOKEN_BYTES ->
    re:run(Octets, ~"^ *([A-Za-z0-9._~+/-]+=*) *$",
           [{capture, all_but_first, binary}, dollar_endonly]);
token(_) ->
    nomatch.

%% Checks that the sender may use the token, by its key (DPoP) or by the certificate of the
%% connection. Returns the nonce to use next if there is a new one. A proof serves once, and is used
%% up here; so it is checked last.
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
    {error, erlmcp_bearer_failure:invalid(~"the token is bound to no key")};
key(dpop, {jkt, Thumbprint}, Token, #{headers := #{~"dpop" := Text}} = Request, Settings, Tables) ->
    Now = erlang:system_time(second),
    maybe
        {ok, #{thumbprint := Thumbprint} = Proof} ?=
            erlmcp_dpop_proof:check(Text, wanted(Token, Request, Settings, Now)),
        {ok, Next} ?= nonce(Proof, Settings, Now),
        ok ?= use_proof(Proof, Settings, Tables),
        {ok, Next}
    else
        {ok, _} -> {error, erlmcp_bearer_failure:invalid(~"the token is bound to another key")};
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
    case erlmcp_dpop_nonce:period(Secret(), Nonce, Now) of
        current -> {ok, #{}};
        previous -> {ok, #{dpop_nonce => erlmcp_dpop_nonce:current(Secret(), Now)}};
        false -> {error, erlmcp_bearer_failure:nonce(erlmcp_dpop_nonce:current(Secret(), Now))}
    end.

use_proof(#{thumbprint := Thumbprint, id := Id, until := Until}, Settings, Tables) ->
    Key = {Thumbprint, Id},
    case erlmcp_bearer_tables:use_proof(Key, Until, Tables) of
        ok -> pass_on({proof, Key, Until}, Settings);
        used -> {error, ~"jti: the proof was used before"};
        {full, Whose, Limit} -> {error, erlmcp_bearer_failure:proofs(Whose, Limit)}
    end.

pass_on(_, #{cluster := none}) -> ok;
pass_on(Change, #{cluster := {Module, State}}) -> Module:publish(Change, State).

-doc """
Records that a proof was used on another node, so that it is refused here until `Until`, in seconds
of system time.
""".
-spec proof_used({Thumbprint :: binary(), Id :: binary()}, Until :: integer(), handle()) -> ok.
proof_used(Proof, Until, #{tables := Tables}) ->
    erlmcp_bearer_tables:proof_used(Proof, Until, Tables).

-doc "Returns the headers of an answer with the given failure (`erlmcp_bearer_failure:headers/3`).".
-spec headers(handle(), erlmcp_bearer_failure:failure(),
              #{resource_metadata => binary(), scope => [binary()]}) -> #{binary() => binary()}.
headers(#{settings := Settings}, Failure, Parameters) ->
    erlmcp_bearer_failure:headers(Failure, Parameters, Settings).

-doc """
Returns the listener's metadata as a protected resource (RFC 9728), from its options. `Url` is the
URL of the endpoint. If the option `resource` is absent, `Url` is the resource.
""".
-spec metadata(handle(), Url :: binary()) -> #{binary() => json:encode_value()}.
metadata(#{settings := Settings}, Url) ->
    #{authorization_servers := Servers, dpop := Dpop} = Settings,
    [Resource | _] = erlmcp_bearer_options:resources(Settings, Url),
    Metadata = #{~"resource" => Resource, ~"bearer_methods_supported" => [~"header"],
                 ~"authorization_servers" => Servers},
    case Dpop of
        off -> Metadata;
        _ -> Metadata#{~"dpop_signing_alg_values_supported" => erlmcp_dpop_proof:algorithms(),
                       ~"dpop_bound_access_tokens_required" => Dpop =:= required}
    end.
