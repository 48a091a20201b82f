-module(erlmcp_bearer).
-moduledoc """
Who asks, by the access token of an HTTP request: `authenticate => {bearer, Options}` of a listener.

A request whose token is known already, is in a list, or was signed with a key that is known, is
answered at once, in the process that asks. What has to ask another machine (keys that are not known
yet, an introspection) runs in a process of its own, of which there is a bounded number, with a
deadline; the process that asks is sent a message when it goes on, and waits for nothing meanwhile.

Sources: specification 2026-07-28, "Authorization"; RFC 6750 (bearer tokens), RFC 9068 and RFC 8725
(JWT), RFC 7662 (introspection), RFC 9449 (DPoP), RFC 8705 (tokens bound to a certificate).

Internal.
""".

-export([new/2, child_spec/1, verify/3, awaited/3]).
-export([headers/3, metadata/2]).

-export_type([handle/0, owner/0, identity/0, answer/0, wait/0]).

-doc "What one listener's requests are checked with.".
-opaque handle() :: #{settings := erlmcp_bearer_options:settings(),
                      tables := erlmcp_bearer_tables:tables()}.
-doc """
Who is told that a request goes on: the process gets `{Tag, {erlmcp_bearer, Reference, Outcome}}`,
and gives the inner tuple to `awaited/3`.
""".
-type owner() :: {pid(), Tag :: term()}.
-doc """
Who asks, and what for. `expires_at` is the second of system time from which the token is not taken
any more: a stream that is open then has to end. `claims` are the token's (of a `static` token
none). `dpop_nonce` is there if the client should use this nonce from now on, and is sent as
`DPoP-Nonce` with the answer.
""".
-type identity() :: #{
    principal := erlmcp_auth:principal(),
    scopes := all | [binary()],
    expires_at := integer() | infinity,
    claims := #{binary() => term()},
    dpop_nonce => binary()
}.
-type answer() :: {ok, identity()} | {error, erlmcp_bearer_failure:failure()} | {wait, wait()}.
-doc "A request that goes on later.".
-opaque wait() :: #{reference := reference(), timer := reference(), owner := owner(),
                    deadline := integer(), request := erlmcp_listen:request(),
                    outcomes := erlmcp_bearer_source:outcomes()}.

-doc """
What a listener's requests are checked with, from options that were checked. Its tables belong to
the calling process, which is to live as long as the listener; `Server` is its server's key.
""".
-spec new(erlmcp_bearer_options:settings(), Server :: reference()) -> handle().
new(Settings, Server) ->
    #{settings => Settings#{server => Server}, tables => erlmcp_bearer_tables:new(Settings)}.

-doc """
The process that a handle needs: it fetches keys, asks for introspections, and forgets what is old.
Without it, what is known is known, and what is not is refused as unavailable.
""".
-spec child_spec(handle()) -> supervisor:child_spec().
child_spec(#{settings := Settings, tables := Tables}) ->
    #{id => ?MODULE, start => {erlmcp_bearer_keeper, start_link, [Settings, Tables]}}.

-doc """
Who asks, or why the request is refused, or `{wait, Wait}`: the owner is sent a message then, within
`wait_ms` and whatever happens. What comes for a request that does not wait any more is dropped.
""".
-spec verify(handle(), erlmcp_listen:request(), owner()) -> answer().
verify(#{settings := #{wait_ms := WaitMs}} = Handle, Request, Owner) ->
    Deadline = erlang:monotonic_time(millisecond) + WaitMs,
    decided(Handle, Request, #{}, Owner, Deadline).

-doc """
The same with a message that the owner was sent. It may be `{wait, Wait}` again: with more than one
source, and where the message belongs to an earlier wait.
""".
-spec awaited(handle(), {?MODULE, reference(), term()}, wait()) -> answer().
awaited(Handle, {?MODULE, Reference, Outcome}, #{reference := Reference} = Wait) ->
    #{timer := Timer, owner := Owner, deadline := Deadline, request := Request,
      outcomes := Outcomes} = Wait,
    _ = erlang:cancel_timer(Timer, [{async, true}, {info, false}]),
    case Outcome of
        {Subject, Result} ->
            decided(Handle, Request, Outcomes#{Subject => Result}, Owner, Deadline);
        timeout ->
            {error, erlmcp_bearer_failure:unavailable(~"the token cannot be checked in time")}
    end;
awaited(_, {?MODULE, _, _}, Wait) ->
    {wait, Wait}.

decided(#{settings := Settings, tables := Tables} = Handle, Request, Outcomes, Owner, Deadline) ->
    maybe
        {ok, Scheme, Token} ?= erlmcp_bearer_credentials:read(Request, Settings),
        {ok, Identity, Confirmation} ?=
            erlmcp_bearer_source:identity(Token, Request, Outcomes, Settings, Tables),
        {ok, Proved} ?= erlmcp_bearer_credentials:bound(Scheme, Token, Confirmation, Request,
                                                        Settings, Tables),
        {ok, maps:merge(Identity, Proved)}
    else
        {wait, Subject, Question} ->
            waiting(Handle, Subject, Question, Request, Outcomes, Owner, Deadline);
        {error, Failure} ->
            {error, Failure}
    end.

%% The timer is the caller's own, so that nobody waits for a process that is not there any more.
waiting(#{tables := Tables}, Subject, Question, Request, Outcomes, {Pid, Tag} = Owner, Deadline) ->
    Reference = make_ref(),
    case erlmcp_bearer_keeper:ask(Subject, Question, {Owner, Reference}, Deadline, Tables) of
        ok ->
            Timer = erlang:send_after(Deadline, Pid, {Tag, {?MODULE, Reference, timeout}},
                                      [{abs, true}]),
            {wait, #{reference => Reference, timer => Timer, owner => Owner, deadline => Deadline,
                     request => Request, outcomes => Outcomes}};
        {error, Failure} ->
            {error, Failure}
    end.

-doc """
The headers of the answer to a request that is refused: `WWW-Authenticate`, with what the listener
takes and what was wrong, and `DPoP-Nonce` where there is one. `resource_metadata` is the URL of the
listener's metadata, `scope` the scopes that the request needs.
""".
-spec headers(handle(), erlmcp_bearer_failure:failure(),
              #{resource_metadata => binary(), scope => [binary()]}) -> #{binary() => binary()}.
headers(#{settings := Settings}, Failure, Parameters) ->
    erlmcp_bearer_failure:headers(Failure, Parameters, Settings).

-doc """
The listener's metadata as a protected resource (RFC 9728), as far as its options say it: the
resource, which is the first of `resource` or else the endpoint's URL, the authorization servers,
and how tokens are sent and bound.
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
