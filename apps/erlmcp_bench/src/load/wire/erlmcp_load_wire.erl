-module(erlmcp_load_wire).
-moduledoc """
What a protocol below MCP does for a connection of the load generator: a behaviour. Pure; the socket
is `m:erlmcp_load_socket`'s, the connection `m:erlmcp_load_connection`'s, and the clock
`m:erlmcp_load_group`'s.

A wire gets the messages in pieces and is asked to make a template of them, once for each kind of
request. A request costs no more than the splicing of its id into it. Ids have ten digits, always,
so that a length that stands in the template stays true.
""".

-export([id/1, tag/1, spliced/2, spliced_size/1]).

-export_type([tag/0, pieces/0, message/0, options/0, event/0, event_status/0, state/0,
              template/0]).

-doc "The number of a request on its connection.".
-type tag() :: 0..8_999_999_999.

-doc "Bytes with an id between each two of them.".
-type pieces() :: [binary(), ...].

-doc """
A message, or nothing with the method DELETE, with the HTTP headers that are its own. `{id}` in a
header's value is the request's id.
""".
-type message() :: #{
    method := post | delete,
    pieces := pieces(),
    headers := [{Name :: binary(), Value :: binary()}]
}.

-doc """
Where the target is: `authority` and `path` on HTTP, and headers of every message. `max_bytes` is
the most that a reply may have.
""".
-type options() :: #{
    authority => binary(), path => binary(), scheme => http | https,
    headers => [{binary(), binary()}], max_bytes => pos_integer(), _ => _
}.

-doc """
What came. `reply`: the end of a request; its body may be empty (HTTP alone has a status).
`message`: one that answers nothing, such as a notification. `stray`: a reply to nothing that was
asked. `session`: the `Mcp-Session-Id` of the reply that follows. `failed`: a request that the peer
dropped. `closing`: the peer takes no more requests on this connection; those that were sent are
still answered.
""".
-type event() ::
    {reply, tag(), event_status(), Body :: binary()}
    | {message, Body :: binary()}
    | {stray, Body :: binary()}
    | {session, tag(), Id :: binary()}
    | {failed, tag(), Reason :: atom()}
    | closing.

-doc "What HTTP says of a reply.".
-type event_status() :: 100..599 | none.

-type state() :: term().
-type template() :: term().

-doc "The state of a connection that is being opened.".
-callback new(options()) -> state().

-doc "The first bytes of a connection; none on most wires.".
-callback opened(state()) -> {iodata(), state()}.

-doc "A message, prepared.".
-callback template(message(), options()) -> template().

-doc "The bytes of a request. They are sent in this order.".
-callback request(tag(), template(), state()) -> {iodata(), state()}.

-doc """
Nobody waits for the reply to this request any longer, on a wire whose replies are not ordered: what
has to be sent for that.
""".
-callback abandoned(tag(), state()) -> {iodata(), state()}.

-doc "What is in these bytes, in its order, and what has to be sent at once for them.".
-callback received(binary(), state()) ->
    {ok, [event()], ToSend :: iodata(), state()} | {error, Reason :: atom()}.

-doc "What the end of the stream says: a reply that it ends, for instance.".
-callback ended(state()) -> [event()].

-doc """
`answers_notifications`: whether a notification is replied to as a request is (HTTP). `ordered`:
whether replies come in the order of the requests, so that nothing comes behind a request that is
not answered. `in_flight`: how many requests an open loop has on a connection if nobody says.
`sessions`: whether a connection can have more than one session.
""".
-callback traits() -> #{answers_notifications := boolean(), ordered := boolean(),
                        in_flight := pos_integer(), sessions := boolean()}.

-define(FIRST, 1_000_000_000).

-doc "The id of a request, in its ten digits.".
-spec id(tag()) -> <<_:80>>.
id(Tag) -> integer_to_binary(?FIRST + Tag).

-doc "The number of the request that had this id; `error` for an id that no request has.".
-spec tag(Id :: integer()) -> tag() | error.
tag(Id) when is_integer(Id), Id >= ?FIRST, Id < 10 * ?FIRST -> Id - ?FIRST;
tag(_) -> error.

-doc "The bytes with an id between them.".
-spec spliced(pieces(), Id :: binary()) -> iodata().
spliced([Piece], _) -> Piece;
spliced([Piece | Pieces], Id) -> [Piece, Id | spliced(Pieces, Id)].

-doc "How many bytes that is.".
-spec spliced_size(pieces()) -> non_neg_integer().
spliced_size(Pieces) ->
    iolist_size(Pieces) + 10 * (length(Pieces) - 1).
