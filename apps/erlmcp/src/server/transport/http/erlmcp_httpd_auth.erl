-module(erlmcp_httpd_auth).
-moduledoc """
Finds the identity of a request's sender, for the stream of that request. Some ways to identify
clients answer at once. Others ask a process or another machine first. Then the stream keeps a value
of type `t:wait/0`, and passes the messages that its owner is sent to `answered/3`.

Internal.
""".

-export([ask/4, answered/3, forget/1, expire/2, forget_expiry/1, headers/3, insufficient/4]).

-export_type([auth/0, answer/0, wait/0, expiry/0]).

-doc """
The listener's way to identify clients. A fun in `process` runs in a process of its own, and any
other fun in that of the connection. `erlmcp_bearer:new/2` makes the handle of `bearer`.
""".
-type auth() ::
    none | erlmcp_listen:ask() | {process, erlmcp_listen:ask()}
    | {certificate, erlmcp_listen:certificate()} | {bearer, erlmcp_bearer:handle()}.
-doc "The identity, the failure of the request, or a wait with commands for cowboy.".
-type answer() ::
    {ok, erlmcp_auth:identity()}
    | {error, erlmcp_bearer_failure:failure()}
    | {wait, cowboy_stream:commands(), wait()}.
-opaque wait() ::
    {process, pid(), Timer :: reference(), Milliseconds :: pos_integer(), Key :: reference()}
    | {bearer, erlmcp_bearer:wait()}.
-doc """
The timer that ends a stream when the identity of its client expires, or `none` if the identity does
not expire.
""".
-type expiry() :: none | reference().

%% Milliseconds that a process has to end by itself when its request has ended.
-define(SHUTDOWN, 1000).
%% The longest time of a timer in Erlang, in milliseconds.
-define(LONGEST, 16#ffffffff).

-doc """
Finds the identity of a request's sender. `url` of the request is the endpoint's URL. The calling
process must be the owner's, and trap exits. If the answer is `wait`, the caller passes messages to
`answered/3`. It calls `forget/1` if the request ends before the identity or a failure is known.
""".
-spec ask(auth(), erlmcp_listen:request(), erlmcp_call:owner(), erlmcp_instance:instance()) ->
    answer().
ask(none, _, _, _) ->
    {ok, erlmcp_auth:anonymous()};
ask({bearer, Handle}, Request, Owner, _) ->
    verified(erlmcp_bearer:verify(Handle, Request, Owner));
ask({certificate, Options}, Request, _, #{key := Key}) ->
    identified(erlmcp_certificate:identity(Options, Request, Key));
ask({process, Ask}, Request, {Owner, Tag}, #{key := Key, limits := Limits}) ->
    #{authenticate_timeout_ms := Timeout} = Limits,
    Asked = fun() ->
        Owner ! {Tag, {identity, self(), erlmcp_auth:identity(Ask, Request, Key)}}
    end,
    Pid = spawn_opt(Asked, [link, {max_heap_size, erlmcp_heap:max_of_call(Limits)}]),
    Timer = erlang:send_after(Timeout, Owner, {Tag, {nobody_said, Pid}}),
    {wait, [{spawn, Pid, ?SHUTDOWN}], {process, Pid, Timer, Timeout, Key}};
ask(Ask, Request, _, #{key := Key}) ->
    identified(erlmcp_auth:identity(Ask, Request, Key)).

verified({wait, Wait}) -> {wait, [], {bearer, Wait}};
verified(Decided) -> Decided.

identified({ok, Identity}) ->
    {ok, Identity};
identified({error, Refusal}) ->
    case erlmcp_refusal:name(Refusal) of
        Invalid when Invalid =:= auth_invalid_credentials; Invalid =:= auth_expired ->
            {error, #{refusal => Refusal, error => ~"invalid_token"}};
        _ ->
            {error, #{refusal => Refusal}}
    end.

-doc """
Returns the answer that follows from a message to the owner, which is given without its tag. The
message may also be the exit signal of the process that was asked. The answer may be another wait.
Returns `ignored` for any other message. Kills a process that has not answered in time.
""".
-spec answered(auth(), Message :: term(), wait()) -> answer() | ignored.
answered({bearer, Handle}, {erlmcp_bearer, _, _} = Message, {bearer, Wait}) ->
    verified(erlmcp_bearer:awaited(Handle, Message, Wait));
answered(_, {identity, Pid, Answer}, {process, Pid, Timer, _, _}) ->
    _ = erlang:cancel_timer(Timer),
    identified(Answer);
answered(_, {'EXIT', Pid, _}, {process, Pid, Timer, _, Key}) ->
    _ = erlang:cancel_timer(Timer),
    {error, #{refusal => erlmcp_auth:died(Key)}};
answered(_, {nobody_said, Pid}, {process, Pid, _, Timeout, _}) ->
    exit(Pid, kill),
    {error, #{refusal => erlmcp_auth:unavailable(Timeout)}};
answered(_, _, _) ->
    ignored.

-doc """
Forgets a wait whose request has ended, and stops its timer. Cowboy ends the process that was asked.
If `bearer` was asked, the owner ignores the message that still comes.
""".
-spec forget(wait()) -> ok.
forget({process, _, Timer, _, _}) ->
    _ = erlang:cancel_timer(Timer),
    ok;
forget({bearer, _}) ->
    ok.

-doc """
Starts the timer that sends the owner `{Tag, {identity, expired}}` when the identity expires, or
after 49 days if that is earlier. Returns `none` for an identity that does not expire.
""".
-spec expire(erlmcp_auth:identity(), erlmcp_call:owner()) -> expiry().
expire(#{expires_at := Second}, {Pid, Tag}) when is_integer(Second) ->
    Left = Second * 1000 - erlang:system_time(millisecond),
    erlang:send_after(max(0, min(Left, ?LONGEST)), Pid, {Tag, {identity, expired}});
expire(_, _) ->
    none.

-doc "Stops the timer of `expire/2`, since its stream has ended.".
-spec forget_expiry(expiry()) -> ok.
forget_expiry(none) ->
    ok;
forget_expiry(Timer) ->
    _ = erlang:cancel_timer(Timer),
    ok.

-doc """
Returns the headers of a refusal, such as `www-authenticate`. There are none if the listener asks
for certificates. `resource_metadata` is the URL of the listener's metadata, and `scope` has the
scopes that the request needs.
""".
-spec headers(auth(), erlmcp_bearer_failure:failure(),
              #{resource_metadata => binary(), scope => [erlmcp:scope()]}) ->
    #{binary() => iodata()}.
headers({bearer, Handle}, Failure, Known) ->
    erlmcp_bearer:headers(Handle, Failure, Known);
headers({certificate, _}, _, _) ->
    #{};
headers(_, Failure, Known) ->
    erlmcp_bearer_failure:headers(Failure, Known, #{dpop => off}).

-doc "Returns the headers of the refusal of a request that lacks the scopes `Needed`.".
-spec insufficient(auth(), erlmcp_auth:identity(), [erlmcp:scope(), ...],
                   #{resource_metadata => binary()}) -> #{binary() => iodata()}.
insufficient(Auth, Identity, Needed, Known) ->
    Failure = erlmcp_bearer_failure:insufficient(
        ~"this needs more than what the token was given for", Needed),
    headers(Auth, maps:merge(Failure, maps:with([scheme], Identity)), Known).
