-module(erlmcp_channel).
-moduledoc """
The channel of a client to its server: the behaviour of every client transport, and the types that
it shares with calls.

A channel has a process, linked to the client's, and a handle, with which any process can send
messages. Each message that is sent begins an exchange, whose events come to the process that sent
it. This process passes each message of its mailbox to `c:received/2`.

Internal.
""".

-export([is_given_up/1]).

-export_type([channel/0, handle/0, exchange/0, settings/0, outgoing/0, event/0, reason/0]).

-doc """
The module of a transport, and the handle of a channel. The term is small, since every call copies
it.
""".
-type channel() :: {module(), handle()}.
-type handle() :: term().
-type exchange() :: term().

-doc """
The settings of every channel, in addition to the `options` of its transport. `limits` are those of
received messages (`m:erlmcp_json`), and `connect_timeout` is in milliseconds. On lines and
HTTP+SSE, at most `calls` plus `subscriptions` requests and streams are open at once. On Streamable
HTTP, at most `calls` requests wait for a connection, and as many messages without a response;
`subscriptions` has no effect.
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

- `id`: the request's id, or `none` for notifications, responses and a session's GET stream.
- `headers`, `session`: HTTP headers with lower-case names, and the id of the message's session.
- `deadline`: in milliseconds of `erlang:monotonic_time/1`. After a message such as progress the
  sender may wait longer.
- `kind`: `stream` is an exchange that stays open without a response (`subscriptions/listen`, a
  session's GET stream). Streamable HTTP bounds streams apart from calls, and other transports bound
  both together.
- `token`: the progress token whose notifications belong to the exchange.
- `generation`: the connection that the message must go to; any if it is left out. On HTTP it is 0,
  except for HTTP+SSE.
- `resumes`: whether an HTTP stream that ends before the response is resumed.
- `named`: whether the events of an HTTP stream are left undecoded (`m:erlmcp_httpc_exchange`).
- `caller`, `cancel`: the reference of a monitor, and that of a cancellation. A message that waits
  for a connection is not sent if a `'DOWN'` message of this monitor comes, or the message
  `{erlmcp_cancel, Reference}`.
""".
-type outgoing() :: #{
    kind := request | notification | response | stream,
    id := erlmcp_message:id() | none,
    message := iodata(),
    headers := [{binary(), iodata()}],
    session := binary() | none,
    deadline := integer(),
    resumes => boolean(),
    token => binary() | integer(),
    generation => non_neg_integer(),
    named => boolean(),
    caller => reference(),
    cancel => reference()
}.

-doc """
An event of an exchange.

- `{message, Message}`: a decoded message of the exchange: the response, or before it a notification
  or a request of the server.
- `{headers, Headers}`: the headers of an accepted HTTP response, before its messages.
- `sent`: a notification or a response was delivered.
- `{failed, Reason}`: the exchange has failed.

The exchange is over after the response, `sent` and `failed`.
""".
-type event() ::
    {message, erlmcp_message:message()}
    | {headers, #{binary() => binary()}}
    | sent
    | {failed, reason()}.

-doc """
The reason why an exchange failed.

- `{connect, Why}`: the server could not be reached; nothing was sent.
- `{closed, Why}`: the connection ended before the response. The server may have done the work,
  unless `Why` is `unprocessed`.
- `{http, Status, Headers, Body}`: a refusal of HTTP without a JSON-RPC message; `Body` is at most
  its first 4096 bytes.
- `session_lost`: the server does not know the session; nothing was done.
- `{redirect, Location}`: the server redirects to a URL that the client does not follow.
- `{unauthorized, Why}`: authorization failed, or the client has no credentials to try.
- `{protocol, What}`: the server's bytes are not MCP; `What` says in a sentence what is wrong. A
  message of the client that cannot be sent has this reason, too.
- `{too_large, Limit}`: a message is larger than `message_bytes`.
- `{overload, Limit}`: a limit of this client is reached; nothing was sent.
- `timeout`: the deadline passed.
- `cancelled`: the caller gave up before the message was sent.
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
    | timeout
    | cancelled.

-doc """
Starts the channel, linked to the calling process, which is its owner. The error names a wrong
target or option, or says why the client's authorization could not be started. The server need not
be reached yet. The channel connects whenever a connection is missing, with a growing pause between
failures; on HTTP, it connects when a message is sent.

The owner is sent `{erlmcp_channel, Pid, Event}`. `{up, Generation}` reports a new connection, on
which the server knows nothing of the one before. `{down, Reason}` reports its end, or an attempt to
connect that failed. On HTTP only HTTP+SSE has these two events. `{message, Message}` is a request
or a notification of the server that belongs to no exchange. `Generation` counts up from 1.
""".
-callback open(Target :: term(), settings()) -> {ok, pid(), handle()} | {error, reason() | term()}.

-doc """
Sends a message. The events of its exchange come to the calling process, in messages for
`c:received/2`. The function waits only while the bytes cannot be sent, at most until the deadline.
After an error (`t:reason/0`) there is no exchange.
""".
-callback send(outgoing(), handle()) -> {ok, exchange()} | {error, reason()}.

-doc """
Returns the events that a message of the mailbox has for the exchange; `other` if the message does
not belong to the exchange. A transport may send again because of the message, and waits then as
`c:send/2` does.
""".
-callback received(Message :: term(), exchange()) -> {[event()], exchange()} | other.

-doc "Returns how many bytes of messages an exchange has received until now.".
-callback received_bytes(exchange()) -> non_neg_integer().

-doc """
Ends an exchange early; no more events of it come. Returns `true` if the abort itself tells a server
of 2026-07-28 of the cancellation, as closing an HTTP stream does. In a session an abort never tells
the server.
""".
-callback abort(exchange()) -> boolean().

-doc """
Ends the session on the server, if the transport has a request for that (DELETE on HTTP). `Headers`
are further headers of that request. Waits at most until `Deadline`, in monotonic milliseconds, and
ignores a failure. Does nothing if `Session` is `none`.
""".
-callback leave(Session :: binary() | none, Headers :: [{binary(), iodata()}],
                Deadline :: integer(), handle()) -> ok.

-doc """
Ends the channel, in the steps that the specification prescribes for its transport, and waits for
its end.
""".
-callback close(pid()) -> ok.

-doc """
Changes to an older variant of the transport (HTTP+SSE), and waits until `Deadline`, in monotonic
milliseconds, for the connection to be open. Returns the generation of the connection, which each
message sent on it must carry. The owner is told of later generations. The error says why the
connection could not be opened, or is `timeout`.
""".
-callback fall_back(handle(), Deadline :: integer()) ->
    {ok, Generation :: pos_integer()} | {error, reason()}.

-doc """
Returns how many connections are open, and how many messages wait for one. Both are 0 if the channel
has ended. Any process may call this function. If a transport lacks this callback, a client has one
connection while the outcome of its negotiation is published, and none otherwise.
""".
-callback connections(handle()) -> {Open :: non_neg_integer(), Waiting :: non_neg_integer()}.

-optional_callbacks([fall_back/2, connections/1]).

-doc """
Returns `true` if the caller has given up: a message of `caller` or `cancel` (`t:outgoing/0`) has
come. The message is taken out of the mailbox.
""".
-spec is_given_up(#{caller => reference(), cancel => reference(), _ => _}) -> boolean().
is_given_up(Ends) ->
    Caller = maps:get(caller, Ends, none),
    Cancel = maps:get(cancel, Ends, none),
    receive
        {'DOWN', Caller, process, _, _} -> true;
        {erlmcp_cancel, Cancel} -> true
    after 0 ->
        false
    end.
