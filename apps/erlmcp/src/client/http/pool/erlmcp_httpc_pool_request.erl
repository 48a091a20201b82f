-module(erlmcp_httpc_pool_request).
-moduledoc """
One request on a connection that the pool lent, until the connection is given back. A value of the
process that sent it, which is told what comes, and shows this module what it is told.

What is common to both kinds of connections: gun's (`m:erlmcp_httpc_gun_request`) and the sockets of
HTTP/1.1 in the clear (`m:erlmcp_httpc_socket_request`).

Internal.
""".

-export([request/3, received/2, drained/1, next/2, give_back/2]).

-export_type([loan/0, asked/0, news/1, left/0]).

-opaque loan() :: {module(), term()}.
-type asked() :: {post | get | delete, Path :: binary()}.
-doc """
In what state the connection is left: the response has ended (`reusable`) or goes on (`cut`), the
server broke it off (`reset`), or the connection is of no use (`broken`).
""".
-type left() :: reusable | cut | reset | broken.
-doc """
What a message means: the beginning of the response, with as much of the body as came with it; a
part of the body; that the response was broken off, after which the loan is to be given back in the
state that is named. `unprocessed` is the reason if the server never took the request. `more` is for
what is of no interest, `other` for a message that is none of this request's.
""".
-type news(Loan) ::
    {head, fin | nofin, 100..999, erlmcp_httpc_answer:fields(), Data :: binary(), Loan}
    | {data, fin | nofin, binary(), Loan}
    | {broken, unprocessed | term(), left()}
    | {more, Loan}
    | other.

%% Milliseconds for the end of a stream whose answer has come.
-define(DRAIN, 20).

-doc "Sends a request on the connection; `ended` if that ended before, and is given back.".
-spec request(erlmcp_httpc_pool:lease(), asked(), {[{binary(), iodata()}], Body :: binary()}) ->
    {ok, loan()} | ended.
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

-doc "What a message means.".
-spec received(Message :: term(), loan()) -> news(loan()).
received(Message, {Module, Loan}) ->
    case Module:received(Message, Loan) of
        {head, IsFin, Status, Fields, Data, Next} ->
            {head, IsFin, Status, Fields, Data, {Module, Next}};
        {data, IsFin, Data, Next} -> {data, IsFin, Data, {Module, Next}};
        {more, Next} -> {more, {Module, Next}};
        Other -> Other
    end.

-doc "The next message of this request's, of all in the mailbox.".
-spec next(loan(), Deadline :: integer()) -> {ok, Message :: tuple()} | timeout.
next({Module, Loan}, Deadline) ->
    Module:next(Loan, Deadline).

-doc """
In what state a stream is whose answer has come. A connection of HTTP/1.1 is free only when it has
ended, which a server lets happen right after the response.
""".
-spec drained(loan()) -> left().
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

-doc "Gives the connection back, once; nothing more comes of the request.".
-spec give_back(left(), loan()) -> ok.
give_back(Left, {Module, Loan}) ->
    Module:give_back(Left, Loan).
