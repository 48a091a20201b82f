-module(erlmcp_load_wire).
-moduledoc """
The behaviour of a wire: a protocol below MCP, on a connection of the load generator. Pure.

A wire makes a template for each kind of request. A request then only needs its id inserted. Ids
always have ten digits, so that a length in the template stays true.
""".

-export([id/1, tag/1, spliced/2, spliced_size/1, is_event_stream/1]).

-export_type([tag/0, pieces/0, message/0, options/0, event/0, event_status/0, state/0,
              template/0]).

-doc "The number of a request on its connection, from 0 on. A wrong reply may have any integer.".
-type tag() :: integer().

-doc "The bytes of a message, in pieces between which the id is inserted.".
-type pieces() :: [binary(), ...].

-doc """
A message with its own HTTP headers. A GET or a DELETE has one empty piece. `{id}` in a header's
value is the request's id.
""".
-type message() :: #{
    method := post | get | delete,
    pieces := pieces(),
    headers := [{Name :: binary(), Value :: binary()}]
}.

-doc """
The `scheme`, `authority` and `path` of a target on HTTP, and headers for every message. `max_bytes`
is the most bytes that a reply, or an event of a stream, may have.
""".
-type options() :: #{
    authority => binary(), path => binary(), scheme => http | https,
    headers => [{binary(), binary()}], max_bytes => pos_integer(), _ => _
}.

-doc """
An incoming event.

- `reply`: the reply to a request. Its body may be empty, and only HTTP has a status.
- `message`: a message that answers no request, such as a notification.
- `stray`: a reply that answers no request.
- `session`: the `Mcp-Session-Id` of the reply that follows.
- `failed`: a request that gets no reply, such as one that the peer dropped.
- `closing`: the peer takes no more requests on this connection. On HTTP/2 it still answers requests
  that were sent, except those that it drops.
""".
-type event() ::
    {reply, tag(), event_status(), Body :: binary()}
    | {message, Body :: binary()}
    | {stray, Body :: binary()}
    | {session, tag(), Id :: binary()}
    | {failed, tag(), Reason :: atom()}
    | closing.

-doc "The HTTP status of a reply; `none` on other wires.".
-type event_status() :: 100..599 | none.

-type state() :: term().
-type template() :: term().

-doc "Returns the state of a connection that is being opened.".
-callback new(options()) -> state().

-doc "Returns the first bytes to send on a connection. Most wires have none.".
-callback opened(state()) -> {iodata(), state()}.

-doc "Prepares a message, so that requests only need their ids.".
-callback template(message(), options()) -> template().

-doc """
Returns the bytes of a request, to send after those of earlier requests. If the peer does not take
all of them now, `received/2` or `abandoned/2` returns the others later.
""".
-callback request(tag(), template(), state()) -> {iodata(), state()}.

-doc """
Cancels a request on a wire whose replies are not ordered. Returns the bytes of the cancellation, if
there are any, and those of requests that have waited.
""".
-callback abandoned(tag(), state()) -> {iodata(), state()}.

-doc """
Reads bytes. Returns their events in order, and bytes to send. An error ends the connection, and
comes with the events before it.

- `too_large`: a reply, or an event, is over `max_bytes`.
- `unasked_reply`: a reply comes and no request waits for it.
- any other reason: the bytes are invalid.

If replies are ordered, every reason except `unasked_reply` counts against the oldest request.
""".
-callback received(binary(), state()) ->
    {ok, [event()], ToSend :: iodata(), state()} | {error, Reason :: atom(), [event()]}.

-doc "Returns the events of the end of the connection, such as a reply that this end completes.".
-callback ended(state()) -> [event()].

-doc """
Returns the traits of the wire.

- `answers_notifications`: notifications get replies, as requests do (HTTP).
- `ordered`: replies come in the order of the requests, so after a request without an answer no
  later one is answered.
- `in_flight`: the most requests that an open loop has on a connection by default.
- `sessions`: a connection can have more than one session.
""".
-callback traits() -> #{answers_notifications := boolean(), ordered := boolean(),
                        in_flight := pos_integer(), sessions := boolean()}.

-define(FIRST, 1_000_000_000).

-doc "Returns the id of a request, in ten digits.".
-spec id(tag()) -> <<_:80>>.
id(Tag) -> integer_to_binary(?FIRST + Tag).

-doc "Returns the number of the request with the id `Id`.".
-spec tag(Id :: integer()) -> tag().
tag(Id) when is_integer(Id) -> Id - ?FIRST.

-doc "Returns the pieces of a message with `Id` between each two of them.".
-spec spliced(pieces(), Id :: binary()) -> iodata().
spliced([Piece], _) -> Piece;
spliced([Piece | Pieces], Id) -> [Piece, Id | spliced(Pieces, Id)].

-doc "Returns the number of bytes that `spliced/2` returns for an id of ten digits.".
-spec spliced_size(pieces()) -> non_neg_integer().
spliced_size(Pieces) ->
    iolist_size(Pieces) + 10 * (length(Pieces) - 1).

-doc "Returns `true` if a `Content-Type`, in any case of its letters, means a stream of events.".
-spec is_event_stream(ContentType :: binary()) -> boolean().
is_event_stream(<<Type:17/binary, _/binary>>) ->
    cowboy_bstr:to_lower(Type) =:= ~"text/event-stream";
is_event_stream(_) ->
    false.
