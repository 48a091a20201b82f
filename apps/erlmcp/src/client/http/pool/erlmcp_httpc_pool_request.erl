-module(erlmcp_httpc_pool_request).
-moduledoc """
A request on a leased connection, until the connection is given back. A value of the process that
sent it, which gets the connection's messages and passes them to this module.

The connection is gun's (`m:erlmcp_httpc_gun_request`), or a socket of HTTP/1.1 in the clear
(`m:erlmcp_httpc_socket_request`).

Internal.
""".

-export([request/3, received/2, drained/1, next/2, give_back/2]).

-export_type([loan/0, request_line/0, news/1, connection_state/0]).

-opaque loan() :: {module(), term()}.
-type request_line() :: {post | get | delete, Path :: binary()}.
-doc """
The state of a connection after a request. The response is complete (`reusable`) or not (`cut`), the
server has reset the stream (`reset`), or the connection is useless (`broken`).
""".
-type connection_state() :: reusable | cut | reset | broken.
-doc """
The meaning of a message of the connection.

- `head`: the status and the headers of the response; `Data` is the part of the body that came with
  them.
- `data`: a part of the body.
- `broken`: no more of the response comes, and the connection must be given back in the given state.
  The reason is `unprocessed` if the server never took the request.
- `more`: nothing to act on.
- `other`: the message does not belong to this request.
""".
-type news(Loan) ::
    {head, fin | nofin, 100..999, erlmcp_httpc_answer:fields(), Data :: binary(), Loan}
    | {data, fin | nofin, binary(), Loan}
    | {broken, unprocessed | term(), connection_state()}
    | {more, Loan}
    | other.

%% Milliseconds to wait for the end of a stream after the awaited JSON-RPC response.
-define(DRAIN, 20).

-doc """
Sends a request on a leased connection. Returns `ended` if the connection had ended already; the
lease was given back then.
""".
-spec request(erlmcp_httpc_pool:lease(), request_line(),
              {[{binary(), iodata()}], Body :: binary()}) -> {ok, loan()} | ended.
request(Lease, Asked, Content) ->
    case erlmcp_httpc_pool:protocol(Lease) of
        plain ->
            case erlmcp_httpc_socket_request:request(Lease, Asked, Content) of
                {ok, Loan} -> {ok, {erlmcp_httpc_socket_request, Loan}};
                ended -> ended
            end;
        _ ->
            {ok,
             {erlmcp_httpc_gun_request, erlmcp_httpc_gun_request:request(Lease, Asked, Content)}}
    end.

-doc "Interprets a message of the mailbox for a request, see `t:news/1`.".
-spec received(Message :: term(), loan()) -> news(loan()).
received(Message, {Module, Loan}) ->
    case Module:received(Message, Loan) of
        {head, IsFin, Status, Fields, Data, Next} ->
            {head, IsFin, Status, Fields, Data, {Module, Next}};
        {data, IsFin, Data, Next} -> {data, IsFin, Data, {Module, Next}};
        {more, Next} -> {more, {Module, Next}};
        Other -> Other
    end.

-doc """
Waits for the next message of the request in the mailbox, or for `Deadline`, in monotonic
milliseconds (`timeout`).
""".
-spec next(loan(), Deadline :: integer()) -> {ok, Message :: tuple()} | timeout.
next({Module, Loan}, Deadline) ->
    Module:next(Loan, Deadline).

-doc """
Returns the state of a connection on which the awaited response has come in a stream of events. A
connection of HTTP/1.1 is `reusable` only at the end of the stream, which servers send right after
the response.
""".
-spec drained(loan()) -> connection_state().
drained(Loan) ->
    drained(Loan, erlang:monotonic_time(millisecond) + ?DRAIN).

drained(Loan, Until) ->
    case next(Loan, Until) of
        {ok, Message} ->
            case received(Message, Loan) of
                {data, fin, _, _} -> reusable;
                {data, nofin, _, Next} -> drained(Next, Until);
                {more, Next} -> drained(Next, Until);
                {broken, _, Left} -> Left;
                _ -> drained(Loan, Until)
            end;
        timeout ->
            cut
    end.

-doc "Gives the connection back, once. No more messages of the request come.".
-spec give_back(connection_state(), loan()) -> ok.
give_back(Left, {Module, Loan}) ->
    Module:give_back(Left, Loan).
