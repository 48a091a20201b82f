-module(erlmcp_httpc_socket_request).
-moduledoc """
A request on a socket, for HTTP/1.1 in the clear. The process that sent it gets the socket's
messages, and parses the response (`m:erlmcp_httpc_socket_response`). See
`m:erlmcp_httpc_pool_request`.

Internal.
""".

-export([request/3, received/2, next/2, give_back/2]).

-export_type([loan/0]).

-record(plain, {
    lease :: erlmcp_httpc_pool:lease(),
    socket :: inet:socket(),
    monitor :: reference(),
    at = {head, ~"", 0} :: {head, Held :: binary(), From :: non_neg_integer()}
        | erlmcp_httpc_socket_response:body(),
    %% Whether the server closes the connection after the response.
    closes = false :: boolean(),
    %% Whether the body is so large that a part may still be unsent when the response comes.
    large :: boolean()
}).

-opaque loan() :: #plain{}.

%% The most bytes of a request body after which the next request is sent without waiting.
-define(LARGE, 8192).

-doc """
Sends a request. Returns `ended` if the connection was closed already; the lease was given back
then.
""".
-spec request(erlmcp_httpc_pool:lease(), erlmcp_httpc_pool_request:request_line(),
              {[{binary(), iodata()}], Body :: binary()}) -> {ok, loan()} | ended.
request(Lease, Asked, {_, Body} = Content) ->
    Socket = erlmcp_httpc_pool:connection(Lease),
    case erlmcp_httpc_socket:take(Socket) of
        {ok, Monitor} ->
            Loan = #plain{lease = Lease, socket = Socket, monitor = Monitor,
                          large = byte_size(Body) > ?LARGE},
            %% The first write to a socket never blocks, however large it is.
            case gen_tcp:send(Socket, bytes(Asked, Content)) of
                ok -> {ok, Loan};
                {error, _} -> ended(Loan)
            end;
        ended ->
            ok = erlmcp_httpc_pool:give_back(Lease, broken),
            ended
    end.

ended(Loan) ->
    ok = give_back(broken, Loan),
    ended.

bytes({post, Path}, {Headers, Body}) ->
    [~"POST ", Path, ~" HTTP/1.1\r\ncontent-length: ", integer_to_binary(byte_size(Body)), ~"\r\n",
     lines(Headers), ~"\r\n", Body];
bytes({get, Path}, {Headers, _}) ->
    [~"GET ", Path, ~" HTTP/1.1\r\n", lines(Headers), ~"\r\n"];
bytes({delete, Path}, {Headers, _}) ->
    [~"DELETE ", Path, ~" HTTP/1.1\r\n", lines(Headers), ~"\r\n"].

lines(Headers) ->
    [[Name, ~": ", Value, ~"\r\n"] || {Name, Value} <- Headers].

-doc "Interprets a message of the mailbox, as described at `t:erlmcp_httpc_pool_request:news/1`.".
-spec received(Message :: term(), loan()) -> erlmcp_httpc_pool_request:news(loan()).
received({tcp, Socket, Bytes}, #plain{socket = Socket} = Loan) ->
    arrived(Bytes, Loan);
received({tcp_passive, Socket}, #plain{socket = Socket} = Loan) ->
    %% If this fails, the message of the socket's end follows.
    _ = erlmcp_httpc_socket:read_on(Socket),
    {more, Loan};
received({tcp_closed, Socket}, #plain{socket = Socket, at = until_closed} = Loan) ->
    {data, fin, ~"", Loan};
received({tcp_closed, Socket}, #plain{socket = Socket}) ->
    {broken, closed, broken};
received({tcp_error, Socket, Why}, #plain{socket = Socket}) ->
    {broken, Why, broken};
received({'DOWN', Monitor, port, _, _}, #plain{monitor = Monitor}) ->
    {broken, stopped, broken};
received(_, _) ->
    other.

arrived(Bytes, #plain{at = {head, Held, From}} = Loan) ->
    All = case Held of
        ~"" -> Bytes;
        _ -> <<Held/binary, Bytes/binary>>
    end,
    case erlmcp_httpc_socket_response:head(All, From) of
        {ok, Status, Fields, {Body, Closes}, Behind} ->
            response_head({Status, Fields}, Behind, Loan#plain{at = Body, closes = Closes});
        {informed, ~""} -> {more, Loan#plain{at = {head, ~"", 0}}};
        {informed, Behind} -> arrived(Behind, Loan#plain{at = {head, ~"", 0}});
        {more, Next} -> {more, Loan#plain{at = {head, All, Next}}};
        {error, Reason} -> {broken, Reason, broken}
    end;
arrived(Bytes, #plain{at = Body} = Loan) ->
    case erlmcp_httpc_socket_response:body(Bytes, Body) of
        {nofin, ~"", Next} -> {more, Loan#plain{at = Next}};
        {IsFin, Part, Next} -> {data, IsFin, Part, with_body(Next, Loan)};
        {error, Reason} -> {broken, Reason, broken}
    end.

%% Often the whole body comes in one packet with the head.
response_head({Status, Fields}, ~"", #plain{at = Body} = Loan) when Body =/= whole ->
    {head, nofin, Status, Fields, ~"", Loan};
response_head({Status, Fields}, Behind, #plain{at = Body} = Loan) ->
    case erlmcp_httpc_socket_response:body(Behind, Body) of
        {IsFin, Part, Next} -> {head, IsFin, Status, Fields, Part, with_body(Next, Loan)};
        {error, Reason} -> {broken, Reason, broken}
    end.

with_body(surplus, Loan) -> Loan#plain{at = whole, closes = true};
with_body(Body, Loan) -> Loan#plain{at = Body}.

-doc """
Waits for the next message of the request in the mailbox, or for `Deadline`, in monotonic
milliseconds (`timeout`).
""".
-spec next(loan(), Deadline :: integer()) -> {ok, Message :: tuple()} | timeout.
next(#plain{socket = Socket, monitor = Monitor}, Deadline) ->
    receive
        Message when element(2, Message) =:= Socket; element(2, Message) =:= Monitor ->
            {ok, Message}
    after max(0, Deadline - erlang:monotonic_time(millisecond)) ->
        timeout
    end.

-doc "Gives the connection back, once. If the response is not complete, the connection is closed.".
-spec give_back(erlmcp_httpc_pool_request:connection_state(), loan()) -> ok.
give_back(reusable, #plain{closes = false, large = false} = Loan) ->
    given(Loan);
give_back(reusable, #plain{closes = false, socket = Socket} = Loan) ->
    case inet:getstat(Socket, [send_pend]) of
        {ok, [{send_pend, 0}]} -> given(Loan);
        _ -> give_back(broken, Loan)
    end;
give_back(_, #plain{lease = Lease, socket = Socket, monitor = Monitor}) ->
    ok = erlmcp_httpc_pool:give_back(Lease, broken),
    erlmcp_httpc_socket:close(Socket, Monitor).

given(#plain{lease = Lease, socket = Socket, monitor = Monitor}) ->
    How = case erlmcp_httpc_socket:give(Socket, Monitor, erlmcp_httpc_pool:owner(Lease)) of
        ok -> reusable;
        ended -> broken
    end,
    erlmcp_httpc_pool:give_back(Lease, How).
