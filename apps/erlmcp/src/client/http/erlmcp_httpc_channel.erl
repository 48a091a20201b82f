-module(erlmcp_httpc_channel).
-moduledoc """
The channel to a server's URL by HTTP/1.1 and HTTP/2. Its process supervises the pool, the
authorizer, and the process of HTTP+SSE. Each message is an `m:erlmcp_httpc_exchange` in the process
that sends it. After the fallback to HTTP+SSE, messages are exchanges of `m:erlmcp_httpc_sse`.

Internal.
""".

-behaviour(erlmcp_channel).
-behaviour(supervisor).

-export([open/2, send/2, received/2, received_bytes/1, abort/1, leave/4, close/1, fall_back/2]).
-export([connections/1]).
-export([init/1]).

-export_type([handle/0, exchange/0]).

-type handle() :: erlmcp_httpc_exchange:route().
-type exchange() ::
    {http, erlmcp_httpc_exchange:exchange()} | {sse, erlmcp_httpc_sse:exchange()}.

%% The exchanges that may be open at once if the settings do not say.
-define(CALLS, 1000).
-define(SUBSCRIPTIONS, 100).

-doc """
Starts a channel to the server at the URL `Target`. It has a pool of connections, a process for
HTTP+SSE and, with the option `auth`, an authorizer. No connection is opened yet. Returns the
channel's process and its handle.

The `options` of the settings are those of `erlmcp_httpc_options:check/2`. The error is one of the
errors of that function, or of `erlmcp_authorizer:start_link/2`.
""".
-spec open(Target :: term(), erlmcp_channel:settings()) ->
    {ok, pid(), erlmcp_channel:handle()}
    | {error, {bad_option, Key :: term(), Expected :: binary()} | term()}.
open(Target, #{options := Options, limits := Limits} = Settings) ->
    maybe
        {ok, #{url := Url, headers := Headers, pool := Own, auth := Auth}} ?=
            erlmcp_httpc_options:check(Target, Options),
        #{connect_timeout := ConnectTimeout} = Settings,
        Pool = waiting(Settings, Own#{origin => erlmcp_httpc_target:origin(Url),
                                      connect_timeout => ConnectTimeout}),
        {ok, Pid} ?= started(supervisor:start_link(?MODULE, fun() -> {Pool, Target, Auth} end)),
        Children = #{Id => Child || {Id, Child, _, _} <- supervisor:which_children(Pid)},
        Route = #{pool => erlmcp_httpc_pool:handle(maps:get(pool, Children)), url => Url,
                  path => erlmcp_httpc_target:path(Url), limits => Limits,
                  headers => [{~"host", erlmcp_httpc_target:authority(Url)} | Headers],
                  authorizer => authorizer(Children)},
        {ok, Stream} ?= supervisor:start_child(Pid, stream(Pid, Route, Settings)),
        {ok, Pid, Route#{sse => Stream}}
    end.

%% At worst all calls wait for a connection.
waiting(#{calls := Calls}, Pool) -> Pool#{waiting => Calls};
waiting(#{}, Pool) -> Pool.

started({error, {shutdown, {failed_to_start_child, _, Reason}}}) -> {error, Reason};
started(Other) -> Other.

authorizer(#{authorizer := Pid}) -> erlmcp_authorizer:handle(Pid);
authorizer(#{}) -> none.

%% The child specification of the HTTP+SSE process. It is killed at once: it may be waiting for a
%% connection, and has nothing to close in order.
stream(Channel, Route, #{connect_timeout := Timeout} = Settings) ->
    Most = maps:get(calls, Settings, ?CALLS) + maps:get(subscriptions, Settings, ?SUBSCRIPTIONS),
    #{id => sse, shutdown => brutal_kill,
      start => {erlmcp_httpc_sse, start_link,
                [{self(), Channel}, fun() -> Route end, {Timeout, Most}]}}.

-doc false.
-spec init(fun(() -> {map(), Url :: binary(), none | fun(() -> map())})) ->
    {ok, {supervisor:sup_flags(), [supervisor:child_spec()]}}.
init(Given) ->
    {#{origin := {Scheme, Host, Port}} = Pool, Url, Auth} = Given(),
    ok = erlmcp_label:set([erlmcp_channel, Scheme, {Host, Port}]),
    %% Calls have handles with the pids of these processes, so none of them can be restarted alone.
    {ok, {#{strategy => one_for_all, intensity => 0},
          [#{id => pool, start => {erlmcp_httpc_pool, start_link, [fun() -> Pool end]}}
           | [#{id => authorizer, start => {erlmcp_authorizer, start_link, [Auth, Url]}}
              || Auth =/= none]]}}.

-doc """
Sends a message, or requests the GET stream of a session, as `erlmcp_httpc_exchange:start/2` does. A
message with a `generation` above 0 belongs to the HTTP+SSE stream of that generation. After an
error there is no exchange.
""".
-spec send(erlmcp_channel:outgoing(), handle()) ->
    {ok, exchange()} | {error, erlmcp_channel:reason()}.
send(#{generation := Generation} = Outgoing, #{sse := Stream} = Route) when Generation > 0 ->
    sent(sse, erlmcp_httpc_sse:start(Outgoing, {Stream, Route}));
send(Outgoing, Route) ->
    sent(http, erlmcp_httpc_exchange:start(Outgoing, Route)).

sent(Kind, {ok, Exchange}) -> {ok, {Kind, Exchange}};
sent(_, {error, _} = Error) -> Error.

-doc """
Returns what a message of the mailbox means for the exchange: its new events, in order, and its next
state. Returns `other` if the message does not belong to the exchange.
""".
-spec received(term(), exchange()) -> {[erlmcp_channel:event()], exchange()} | other.
received(Message, {http, Exchange}) ->
    happened(http, erlmcp_httpc_exchange:received(Message, Exchange));
received(Message, {sse, Exchange}) ->
    happened(sse, erlmcp_httpc_sse:received(Message, Exchange)).

happened(Kind, {Events, Exchange}) -> {Events, {Kind, Exchange}};
happened(_, other) -> other.

-doc "Returns how many bytes of messages the exchange has received until now.".
-spec received_bytes(exchange()) -> non_neg_integer().
received_bytes({http, Exchange}) -> erlmcp_httpc_exchange:received_bytes(Exchange);
received_bytes({sse, Exchange}) -> erlmcp_httpc_sse:received_bytes(Exchange).

-doc """
Returns how many connections are open, and how many messages wait for one. Both are 0 if the channel
has ended.
""".
-spec connections(handle()) -> {Open :: non_neg_integer(), Waiting :: non_neg_integer()}.
connections(#{pool := Pool}) ->
    #{open := Open, waiting := Waiting} = erlmcp_httpc_pool:info(Pool),
    {Open, Waiting}.

-doc """
Ends an exchange early. On Streamable HTTP, closes its stream and returns `true`, since this tells a
server of 2026-07-28 of the cancellation. Returns `false` on HTTP+SSE, where a request has no stream
of its own, so that the server is not told.
""".
-spec abort(exchange()) -> boolean().
abort({http, Exchange}) -> erlmcp_httpc_exchange:abort(Exchange);
abort({sse, Exchange}) -> erlmcp_httpc_sse:abort(Exchange).

-doc "Opens a stream of HTTP+SSE, as `erlmcp_httpc_sse:open/2` does.".
-spec fall_back(handle(), Deadline :: integer()) ->
    {ok, Generation :: pos_integer()} | {error, erlmcp_channel:reason()}.
fall_back(#{sse := Stream}, Deadline) ->
    erlmcp_httpc_sse:open(Stream, Deadline).

-doc """
Ends the session with the id `Session` by a DELETE request with the given headers. Waits for the
answer at most until `Deadline`, in monotonic milliseconds. Ignores the answer, and any failure.
Does nothing if `Session` is `none`.
""".
-spec leave(Session :: binary() | none, [{binary(), iodata()}], Deadline :: integer(), handle()) ->
    ok.
leave(none, _, _, _) ->
    ok;
leave(Session, Headers, Deadline, Route) ->
    erlmcp_httpc_exchange:delete(Session, Headers, Deadline, Route).

-doc "Ends the channel, closes its connections, and waits until its process has ended.".
-spec close(pid()) -> ok.
close(Pid) ->
    gen_server:stop(Pid, normal, infinity).
