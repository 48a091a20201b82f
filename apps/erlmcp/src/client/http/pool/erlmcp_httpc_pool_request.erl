-module(erlmcp_httpc_pool_request).
-moduledoc """
A request on a lent connection, until the connection is given back. A value of the process that
sent it, which gets the connection's messages and passes them to this module.

The connection is gun's for HTTP/2, and for HTTP/1.1 over TLS. For HTTP/1.1 in the clear it is a
socket, whose bytes this module reads (`m:erlmcp_httpc_socket_response`).

Internal.
""".

-export([request/3, received/2, next/2, drained/1, give_back/2]).

-export_type([request/0, request_line/0, meaning/0, connection_state/0]).

-record(gun, {
    loan :: erlmcp_httpc_pool:loan(),
    connection :: pid(),
    monitor :: reference(),
    stream :: gun:stream_ref(),
    %% The messages of gun that were read since gun was last allowed to send more.
    unread = 0 :: non_neg_integer(),
    %% Whether the server closes the connection after the response.
    closes = false :: boolean()
}).
-record(socket, {
    loan :: erlmcp_httpc_pool:loan(),
    socket :: inet:socket(),
    monitor :: reference(),
    at = {head, ~"", 0} :: {head, Held :: binary(), From :: non_neg_integer()}
        | erlmcp_httpc_socket_response:body(),
    %% Whether the server closes the connection after the response.
    closes = false :: boolean(),
    %% Whether the body is so large that a part may still be unsent when the response comes.
    large :: boolean()
}).

-opaque request() :: #gun{} | #socket{}.
-type request_line() :: {post | get | delete, Path :: binary()}.
-doc """
The state of a connection after a request. The response is complete (`reusable`) or not (`cut`), the
server has reset the stream (`reset`), or the connection is useless (`broken`).
""".
-type connection_state() :: reusable | cut | reset | broken.
-doc """
The meaning of a message of the connection. In `head` and `data`, `fin` means that the response is
complete.

- `head`: the status and the headers of the response; `Data` is the part of the body that came with
  them.
- `data`: a part of the body.
- `broken`: no more of the response comes, and the connection must be given back in the given state.
  The reason is `unprocessed` if the server never took the request.
- `more`: nothing to act on.
- `other`: the message does not belong to this request.
""".
-type meaning() ::
    {head, fin | nofin, 100..999, erlmcp_httpc_answer:fields(), Data :: binary(), request()}
    | {data, fin | nofin, binary(), request()}
    | {broken, unprocessed | term(), connection_state()}
    | {more, request()}
    | other.

%% Milliseconds to wait for the end of a stream after the awaited JSON-RPC response.
-define(DRAIN, 20).
%% The messages that gun may send ahead of those that were read.
-define(FLOW, 16).
%% The exchange has checked the headers already. Gun's check would compile a pattern for each
%% header.
-define(GUN_OPTIONS, #{flow => ?FLOW, invalid_request_headers => ignore}).
%% A socket whose request had a body of more bytes is kept only if all of them were sent.
-define(LARGE, 8192).

-doc """
Sends a request with the given headers and body on a lent connection. Returns `ended` if the
connection has ended already. In this case the function has given the loan back.
""".
-spec request(erlmcp_httpc_pool:loan(), request_line(),
              {[{binary(), iodata()}], Body :: binary()}) -> {ok, request()} | ended.
request(Loan, RequestLine, Content) ->
    case erlmcp_httpc_pool:protocol(Loan) of
        plain -> request_on_socket(Loan, RequestLine, Content);
        _ -> {ok, request_on_gun(Loan, RequestLine, Content)}
    end.

request_on_gun(Loan, {Method, Path}, {Headers, Body}) ->
    Connection = erlmcp_httpc_pool:connection(Loan),
    Monitor = monitor(process, Connection),
    Stream = gun:request(Connection, name(Method), Path, Headers, Body, ?GUN_OPTIONS),
    #gun{loan = Loan, connection = Connection, monitor = Monitor, stream = Stream}.

name(post) -> ~"POST";
name(get) -> ~"GET";
name(delete) -> ~"DELETE".

request_on_socket(Loan, {Method, Path}, {Headers, Body}) ->
    Socket = erlmcp_httpc_pool:connection(Loan),
    case erlmcp_httpc_socket:take(Socket) of
        {ok, Monitor} ->
            Request = #socket{loan = Loan, socket = Socket, monitor = Monitor,
                           large = byte_size(Body) > ?LARGE},
            %% The first write to a socket never blocks, however large it is.
            case gen_tcp:send(Socket, bytes(Method, Path, Headers, Body)) of
                ok ->
                    {ok, Request};
                {error, _} ->
                    ok = give_back(broken, Request),
                    ended
            end;
        ended ->
            ok = erlmcp_httpc_pool:give_back(Loan, broken),
            ended
    end.

bytes(post, Path, Headers, Body) ->
    [~"POST ", Path, ~" HTTP/1.1\r\ncontent-length: ", integer_to_binary(byte_size(Body)), ~"\r\n",
     lines(Headers), ~"\r\n", Body];
bytes(Method, Path, Headers, _) ->
    [name(Method), ~" ", Path, ~" HTTP/1.1\r\n", lines(Headers), ~"\r\n"].

lines(Headers) ->
    [[Name, ~": ", Value, ~"\r\n"] || {Name, Value} <- Headers].

-doc "Interprets a message of the mailbox for a request, see `t:meaning/0`.".
-spec received(Message :: term(), request()) -> meaning().
received({tcp, Socket, Bytes}, #socket{socket = Socket} = Request) ->
    arrived(Bytes, Request);
received({tcp_passive, Socket}, #socket{socket = Socket} = Request) ->
    %% If this fails, the message of the socket's end follows.
    _ = erlmcp_httpc_socket:read_on(Socket),
    {more, Request};
received({tcp_closed, Socket}, #socket{socket = Socket, at = until_closed} = Request) ->
    {data, fin, ~"", Request};
received({tcp_closed, Socket}, #socket{socket = Socket}) ->
    {broken, closed, broken};
received({tcp_error, Socket, Why}, #socket{socket = Socket}) ->
    {broken, Why, broken};
received({'DOWN', Monitor, port, _, _}, #socket{monitor = Monitor}) ->
    {broken, stopped, broken};
received({gun_data, Connection, Stream, IsFin, Data},
         #gun{connection = Connection, stream = Stream} = Request) ->
    {data, IsFin, Data, allowed(IsFin, Request)};
received({gun_response, Connection, Stream, IsFin, Status, Headers},
         #gun{connection = Connection, stream = Stream} = Request) ->
    Fields = erlmcp_httpc_answer:fields(Headers),
    {head, IsFin, Status, Fields, ~"", Request#gun{closes = erlmcp_httpc_answer:closes(Fields)}};
received({gun_trailers, Connection, Stream, _},
         #gun{connection = Connection, stream = Stream} = Request) ->
    {data, fin, ~"", Request};
received({gun_inform, Connection, Stream, _, _},
         #gun{connection = Connection, stream = Stream} = Request) ->
    {more, Request};
received({gun_push, Connection, Stream, Pushed, _, _, _},
         #gun{connection = Connection, stream = Stream} = Request) ->
    ok = gun:cancel(Connection, Pushed),
    {more, Request};
received({gun_error, Connection, Stream, Reason},
         #gun{connection = Connection, stream = Stream}) ->
    broken(Reason);
%% An error of the whole connection, which gun reports in addition to those of its streams.
received({gun_error, Connection, _}, #gun{connection = Connection} = Request) ->
    {more, Request};
received({'DOWN', Monitor, process, _, Reason}, #gun{monitor = Monitor}) ->
    broken(down(Reason));
received(_, _) ->
    other.

arrived(Bytes, #socket{at = {head, Held, From}} = Request) ->
    All = case Held of
        ~"" -> Bytes;
        _ -> <<Held/binary, Bytes/binary>>
    end,
    case erlmcp_httpc_socket_response:head(All, From) of
        {ok, Status, Fields, {Body, Closes}, Behind} ->
            response_head({Status, Fields}, Behind, Request#socket{at = Body, closes = Closes});
        {informed, ~""} -> {more, Request#socket{at = {head, ~"", 0}}};
        {informed, Behind} -> arrived(Behind, Request#socket{at = {head, ~"", 0}});
        {more, Next} -> {more, Request#socket{at = {head, All, Next}}};
        {error, Reason} -> {broken, Reason, broken}
    end;
arrived(Bytes, #socket{at = Body} = Request) ->
    case erlmcp_httpc_socket_response:body(Bytes, Body) of
        {nofin, ~"", Next} -> {more, Request#socket{at = Next}};
        {IsFin, Part, Next} -> {data, IsFin, Part, with_body(Next, Request)};
        {error, Reason} -> {broken, Reason, broken}
    end.

%% Often the whole body comes in one packet with the head.
response_head({Status, Fields}, ~"", #socket{at = Body} = Request) when Body =/= whole ->
    {head, nofin, Status, Fields, ~"", Request};
response_head({Status, Fields}, Behind, #socket{at = Body} = Request) ->
    case erlmcp_httpc_socket_response:body(Behind, Body) of
        {IsFin, Part, Next} -> {head, IsFin, Status, Fields, Part, with_body(Next, Request)};
        {error, Reason} -> {broken, Reason, broken}
    end.

with_body(surplus, Request) -> Request#socket{at = whole, closes = true};
with_body(Body, Request) -> Request#socket{at = Body}.

allowed(nofin, #gun{unread = Unread, connection = Connection, stream = Stream} = Request)
  when Unread + 1 >= ?FLOW div 2 ->
    ok = gun:update_flow(Connection, Stream, Unread + 1),
    Request#gun{unread = 0};
allowed(_, #gun{unread = Unread} = Request) ->
    Request#gun{unread = Unread + 1}.

%% Gun ends its streams before the connection ends, so a stream without such a message was never
%% opened.
down(noproc) -> unprocessed;
down({shutdown, _}) -> unprocessed;
down(Reason) -> Reason.

%% On HTTP/2 a single stream may fail, while the connection stays usable.
broken({stream_error, refused_stream, _}) -> {broken, unprocessed, reset};
%% Gun itself has not sent the request: the server has just lowered the number of its streams.
broken({stream_error, too_many_streams, _}) -> {broken, unprocessed, reset};
broken({stream_error, _, _} = Reason) -> {broken, Reason, reset};
broken({goaway, _, _}) -> {broken, unprocessed, broken};
broken(closing) -> {broken, unprocessed, broken};
broken(Reason) -> {broken, Reason, broken}.

-doc """
Waits for the next message of the request in the mailbox. Returns `timeout` after `Deadline`, in
monotonic milliseconds.
""".
-spec next(request(), Deadline :: integer()) -> {ok, Message :: tuple()} | timeout.
next(#gun{connection = Connection, stream = Stream, monitor = Monitor}, Deadline) ->
    receive
        Message when element(2, Message) =:= Connection, element(3, Message) =:= Stream;
                     element(2, Message) =:= Monitor ->
            {ok, Message}
    after max(0, Deadline - erlmcp_clock:now_ms()) ->
        timeout
    end;
next(#socket{socket = Socket, monitor = Monitor}, Deadline) ->
    receive
        Message when element(2, Message) =:= Socket; element(2, Message) =:= Monitor ->
            {ok, Message}
    after max(0, Deadline - erlmcp_clock:now_ms()) ->
        timeout
    end.

-doc """
Returns the state of a connection on which the awaited response has come in a stream of events.
Waits at most 20 milliseconds for the end of the stream, which servers send right after the
response, and drops the data before it. Without the end, the connection is `cut`.
""".
-spec drained(request()) -> connection_state().
drained(Request) ->
    drained(Request, erlmcp_clock:now_ms() + ?DRAIN).

drained(Request, Until) ->
    case next(Request, Until) of
        {ok, Message} ->
            case received(Message, Request) of
                {data, fin, _, _} -> reusable;
                {data, nofin, _, Next} -> drained(Next, Until);
                {more, Next} -> drained(Next, Until);
                {broken, _, State} -> State;
                _ -> drained(Request, Until)
            end;
        timeout ->
            cut
    end.

-doc """
Gives the connection back; the caller does this once. No more messages of the request come. A socket
that cannot serve another request, as in the middle of a response, is closed.
""".
-spec give_back(connection_state(), request()) -> ok.
give_back(cut, #gun{connection = Connection, stream = Stream} = Request) ->
    ok = gun:cancel(Connection, Stream),
    ok = give_back(reset, Request),
    gun:flush(Stream);
give_back(State, #gun{loan = Loan, monitor = Monitor} = Request) ->
    true = demonitor(Monitor, [flush]),
    erlmcp_httpc_pool:give_back(Loan, usable(State, Request));
give_back(reusable, #socket{closes = false, large = false} = Request) ->
    give_back_socket(Request);
give_back(reusable, #socket{closes = false, socket = Socket} = Request) ->
    case inet:getstat(Socket, [send_pend]) of
        {ok, [{send_pend, 0}]} -> give_back_socket(Request);
        _ -> give_back(broken, Request)
    end;
give_back(_, #socket{loan = Loan, socket = Socket, monitor = Monitor}) ->
    ok = erlmcp_httpc_pool:give_back(Loan, broken),
    erlmcp_httpc_socket:close(Socket, Monitor).

usable(_, #gun{closes = true}) ->
    broken;
usable(reset, #gun{loan = Loan}) ->
    %% On HTTP/2 the connection may have other streams.
    case erlmcp_httpc_pool:protocol(Loan) of
        http -> broken;
        http2 -> reusable
    end;
usable(State, _) ->
    State.

give_back_socket(#socket{loan = Loan, socket = Socket, monitor = Monitor}) ->
    State = case erlmcp_httpc_socket:give(Socket, Monitor, erlmcp_httpc_pool:owner(Loan)) of
        ok -> reusable;
        ended -> broken
    end,
    erlmcp_httpc_pool:give_back(Loan, State).
