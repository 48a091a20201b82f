-module(erlmcp_channel).
-moduledoc """
A way to a server: what every transport of the client gives. A behaviour, and the types that it
shares with the calls that use it.

A channel has a process, which belongs to the client's own process, and a handle, by which any
process sends on it without asking that one. What is sent is an exchange, and the process that sent
it, a call's, is told what came of it: each message in its mailbox is shown to `c:received/2`.

A channel carries bytes and headers. It decodes JSON within the limits, knows which message is the
response to which exchange, and knows nothing of methods, eras or results.

Internal.
""".

-export_type([channel/0, handle/0, exchange/0, settings/0, outgoing/0, event/0, reason/0]).

-doc "A transport and the handle of its channel; small, for it is copied to every call.".
-type channel() :: {module(), handle()}.
-type handle() :: term().
-type exchange() :: term().

-doc """
What a channel is opened with beside its own options: the bounds of what comes (`m:erlmcp_json`),
and how many calls and subscriptions there will be at once.
""".
-type settings() :: #{
    limits := erlmcp_json:limits(),
    connect_timeout := pos_integer(),
    calls => pos_integer(),
    subscriptions => pos_integer(),
    options := map()
}.

-doc """
What is sent. `id` is the request's, or `none` for notifications and responses. `headers` are those
of HTTP, with lower-case names, and so is `session`, the id of the session that it belongs to.
`deadline` is in milliseconds of `erlang:monotonic_time/1`; whoever sends may wait longer once
something has come, up to `last_deadline`. `stream` says that the exchange lives long and has no
response of its own soon (`subscriptions/listen`, a session's GET stream), so that it may not take
the place of calls.
""".
-type outgoing() :: #{
    kind := request | notification | response | stream,
    id := erlmcp_message:id() | none,
    message := iodata(),
    headers := [{binary(), iodata()}],
    session := binary() | none,
    deadline := integer(),
    last_deadline => integer(),
    resumes => boolean(),
    token => binary() | integer(),
    generation => non_neg_integer(),
    named => boolean()
}.

-doc """
What came of an exchange.

- `{message, Message}`: a decoded message that belongs to it: the response, or before it a
  notification or a request of the server's.
- `{headers, Headers}`: those of an HTTP response that was accepted, before its messages.
- `sent`: a notification or a response was taken by the server.
- `{failed, Reason}`: it is over, and nothing more comes.
""".
-type event() ::
    {message, erlmcp_message:message()}
    | {headers, #{binary() => binary()}}
    | sent
    | {failed, reason()}.

-doc """
Why an exchange failed.

- `{connect, Why}`: the server could not be reached; nothing was sent.
- `{closed, Why}`: the connection ended before the response. Whether the server did the work is
  unknown, unless `Why` is `unprocessed`.
- `{http, Status, Headers, Body}`: HTTP's own refusal, without a JSON-RPC message in it; `Body` is
  at most its first 4096 bytes.
- `session_lost`: the server does not know the session (any more); nothing was done.
- `{redirect, Location}`: it leads elsewhere, and is not followed.
- `{unauthorized, Why}`: authorization failed, or there is none to try.
- `{protocol, What}`: what came is not MCP; `What` names the place, what was expected, what came.
- `{too_large, Limit}`: what came is larger than `message_bytes`.
- `{overload, Limit}`: a bound of this client's own; nothing was sent.
- `timeout`: the deadline passed.
""".
-type reason() ::
    {connect, term()}
    | {closed, term()}
    | {http, Status :: pos_integer(), #{binary() => binary()}, Body :: binary()}
    | session_lost
    | {redirect, Location :: binary()}
    | {unauthorized, term()}
    | {protocol, What :: binary()}
    | {too_large, Limit :: pos_integer()}
    | {overload, Limit :: pos_integer()}
    | timeout.

-doc """
Starts the channel, linked to the calling process, which is its owner. It need not have reached the
server yet, and it reaches it anew whenever that is due, with a growing pause between failures.

The owner is sent `{erlmcp_channel, Pid, Event}`: `{up, Generation}` when there is a new connection
that begins without memory of the one before (stdio, TCP; never HTTP), `{down, Reason}` when that
ended, `{message, Message}` for a message of the server's that belongs to no exchange. `Generation`
counts up from 1.
""".
-callback open(Target :: term(), settings()) -> {ok, pid(), handle()} | {error, reason() | term()}.

-doc """
Sends. What comes of it is told to the calling process, in messages for `c:received/2`. Waits at
most until the deadline, and only where the bytes cannot leave yet.
""".
-callback send(outgoing(), handle()) -> {ok, exchange()} | {error, reason()}.

-doc "What a message in the mailbox means; `other` for one that is not this exchange's.".
-callback received(Message :: term(), exchange()) -> {[event()], exchange()} | other.

-doc """
Ends an exchange that is not over: nothing more comes of it. `true` if that alone tells the server
that the request is cancelled, as closing a stream of HTTP does in 2026-07-28.
""".
-callback abort(exchange()) -> boolean().

-doc "Ends the session on the server where the transport has something for it (HTTP's DELETE).".
-callback leave(Session :: binary() | none, Headers :: [{binary(), iodata()}],
                Deadline :: integer(), handle()) -> ok.

-doc "Ends the channel in the order that its transport's page prescribes.".
-callback close(pid()) -> ok.

-doc """
Changes to an older way of the same transport, and gives the generation of the connection that it
has there; from then on the owner is told of others.
""".
-callback fall_back(handle(), Deadline :: integer()) ->
    {ok, Generation :: pos_integer()} | {error, reason()}.

-optional_callbacks([fall_back/2]).
