-module(erlmcp_channel).
-moduledoc """
The channel of a client to its server: the behaviour of every client transport, and the types that
it shares with calls.

A channel has a process, linked to the client's, and a handle with which any process sends without
asking another one. Each message that is sent begins an exchange. Its events come to the sending
process, a call's, which shows each message of its mailbox to `c:received/2`.

A channel carries bytes and headers. It decodes JSON within the limits and finds the exchange of
each response. It knows nothing of methods, eras or results.

Internal.
""".

-export_type([channel/0, handle/0, exchange/0, settings/0, outgoing/0, event/0, reason/0]).

-doc "A transport and the handle of its channel. The term is small, since every call copies it.".
-type channel() :: {module(), handle()}.
-type handle() :: term().
-type exchange() :: term().

-doc """
The settings that every channel has, next to its own options. They are the limits of received
messages (`m:erlmcp_json`), and how many calls and subscriptions may be open at once.
""".
-type settings() :: #{
    limits := erlmcp_json:limits(),
    connect_timeout := pos_integer(),
    calls => pos_integer(),
    subscriptions => pos_integer(),
    options := map()
}.

-doc """
A message to send.

- `id`: the request's id, or `none` for notifications and responses.
- `headers`, `session`: HTTP headers with lower-case names, and the id of the message's session.
- `deadline`: in milliseconds of `erlang:monotonic_time/1`. The sender may wait longer, up to
  `last_deadline`, once a message has come.
- `kind`: `stream` is an exchange that lives long and gets no response soon (`subscriptions/listen`,
  a session's GET stream). Such an exchange may not take the place of calls.
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
An event of an exchange.

- `{message, Message}`: a decoded message of the exchange: the response, or before it a notification
  or a request of the server.
- `{headers, Headers}`: the headers of an accepted HTTP response, before its messages.
- `sent`: the server has taken a notification or a response.
- `{failed, Reason}`: the exchange is over.
""".
-type event() ::
    {message, erlmcp_message:message()}
    | {headers, #{binary() => binary()}}
    | sent
    | {failed, reason()}.

-doc """
The reason for which an exchange failed.

- `{connect, Why}`: the server could not be reached; nothing was sent.
- `{closed, Why}`: the connection ended before the response. The server may have done the work,
  unless `Why` is `unprocessed`.
- `{http, Status, Headers, Body}`: a refusal of HTTP without a JSON-RPC message; `Body` is at most
  its first 4096 bytes.
- `session_lost`: the server does not know the session (any more); nothing was done.
- `{redirect, Location}`: the server redirects to a place that is not followed.
- `{unauthorized, Why}`: authorization failed, or there is none to try.
- `{protocol, What}`: the server's bytes are not MCP; `What` names the place, the expected and the
  received.
- `{too_large, Limit}`: a message is larger than `message_bytes`.
- `{overload, Limit}`: a limit of this client is reached; nothing was sent.
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
Starts the channel, linked to the calling process, which is its owner. The server need not be
reached yet. The channel connects whenever a connection is missing, with a growing pause between
failures.

The owner is sent `{erlmcp_channel, Pid, Event}`. `{up, Generation}` tells of a new connection that
remembers nothing of the one before (stdio, TCP; never HTTP). `{down, Reason}` tells of its end.
`{message, Message}` is a message of the server that belongs to no exchange. `Generation` counts up
from 1.
""".
-callback open(Target :: term(), settings()) -> {ok, pid(), handle()} | {error, reason() | term()}.

-doc """
Sends a message. Its events come to the calling process, in messages for `c:received/2`. The call
waits at most until the deadline, and only while the bytes cannot leave.
""".
-callback send(outgoing(), handle()) -> {ok, exchange()} | {error, reason()}.

-doc "Returns the events in a message of the mailbox; `other` for a message of something else.".
-callback received(Message :: term(), exchange()) -> {[event()], exchange()} | other.

-doc """
Ends an exchange that is not over, of which no more events come. Returns `true` if the abort itself
tells the server of the cancellation, as closing a stream of HTTP does in 2026-07-28.
""".
-callback abort(exchange()) -> boolean().

-doc "Ends the session on the server, if the transport has a way to (HTTP's DELETE).".
-callback leave(Session :: binary() | none, Headers :: [{binary(), iodata()}],
                Deadline :: integer(), handle()) -> ok.

-doc "Ends the channel in the order that the specification of its transport prescribes.".
-callback close(pid()) -> ok.

-doc """
Changes to an older variant of the same transport, and returns the generation of its connection. The
owner is told of later generations.
""".
-callback fall_back(handle(), Deadline :: integer()) ->
    {ok, Generation :: pos_integer()} | {error, reason()}.

-optional_callbacks([fall_back/2]).
