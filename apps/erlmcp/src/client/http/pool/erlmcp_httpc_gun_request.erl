-module(erlmcp_httpc_gun_request).
-moduledoc """
A request on a connection of gun: HTTP/2, or HTTP/1.1 over TLS. See `m:erlmcp_httpc_pool_request`.

Internal.
""".

-export([request/3, received/2, next/2, give_back/2]).

-export_type([loan/0]).

-record(loan, {
    lease :: erlmcp_httpc_pool:lease(),
    connection :: pid(),
    monitor :: reference(),
    stream :: gun:stream_ref(),
    %% The messages of gun that were read since gun was last allowed to send more.
    unread = 0 :: non_neg_integer(),
    %% Whether the server closes the connection after the response.
    closes = false :: boolean()
}).

-opaque loan() :: #loan{}.

%% The messages that gun may send ahead of those that were read.
-define(FLOW, 16).
%% The exchange has checked the headers already. Gun's check would compile a pattern for each
%% header.
-define(OPTIONS, #{flow => ?FLOW, invalid_request_headers => ignore}).

-doc "Sends a request on a leased connection of gun, and returns its state.".
-spec request(erlmcp_httpc_pool:lease(), erlmcp_httpc_pool_request:request_line(),
              {[{binary(), iodata()}], Body :: binary()}) -> loan().
request(Lease, {Method, Path}, {Headers, Body}) ->
    Connection = erlmcp_httpc_pool:connection(Lease),
    Monitor = monitor(process, Connection),
    Stream = gun:request(Connection, name(Method), Path, Headers, Body, ?OPTIONS),
    #loan{lease = Lease, connection = Connection, monitor = Monitor, stream = Stream}.

name(post) -> ~"POST";
name(get) -> ~"GET";
name(delete) -> ~"DELETE".

-doc "Interprets a message of the mailbox, as described at `t:erlmcp_httpc_pool_request:news/1`.".
-spec received(Message :: term(), loan()) -> erlmcp_httpc_pool_request:news(loan()).
received({gun_data, Connection, Stream, IsFin, Data},
         #loan{connection = Connection, stream = Stream} = Loan) ->
    {data, IsFin, Data, allowed(IsFin, Loan)};
received({gun_response, Connection, Stream, IsFin, Status, Headers},
         #loan{connection = Connection, stream = Stream} = Loan) ->
    Fields = erlmcp_httpc_answer:fields(Headers),
    {head, IsFin, Status, Fields, ~"", Loan#loan{closes = erlmcp_httpc_answer:closes(Fields)}};
received({gun_trailers, Connection, Stream, _},
         #loan{connection = Connection, stream = Stream} = Loan) ->
    {data, fin, ~"", Loan};
received({gun_inform, Connection, Stream, _, _},
         #loan{connection = Connection, stream = Stream} = Loan) ->
    {more, Loan};
received({gun_push, Connection, Stream, Pushed, _, _, _},
         #loan{connection = Connection, stream = Stream} = Loan) ->
    ok = gun:cancel(Connection, Pushed),
    {more, Loan};
received({gun_error, Connection, Stream, Reason},
         #loan{connection = Connection, stream = Stream}) ->
    broken(Reason);
%% An error of the whole connection, which gun reports in addition to those of its streams.
received({gun_error, Connection, _}, #loan{connection = Connection} = Loan) ->
    {more, Loan};
received({'DOWN', Monitor, process, _, Reason}, #loan{monitor = Monitor}) ->
    broken(down(Reason));
received(_, _) ->
    other.

allowed(nofin, #loan{unread = Unread, connection = Connection, stream = Stream} = Loan)
  when Unread + 1 >= ?FLOW div 2 ->
    ok = gun:update_flow(Connection, Stream, Unread + 1),
    Loan#loan{unread = 0};
allowed(_, #loan{unread = Unread} = Loan) ->
    Loan#loan{unread = Unread + 1}.

%% Gun ends its streams before the connection ends, so a stream without such a message was never
%% opened.
down(noproc) -> unprocessed;
down({shutdown, _}) -> unprocessed;
down(Reason) -> Reason.

%% On HTTP/2 a single stream may fail, while the connection stays usable.
broken({stream_error, refused_stream, _}) -> {broken, unprocessed, reset};
broken({stream_error, _, _} = Reason) -> {broken, Reason, reset};
broken({goaway, _, _}) -> {broken, unprocessed, broken};
broken(closing) -> {broken, unprocessed, broken};
broken(Reason) -> {broken, Reason, broken}.

-doc """
Waits for the next message of the request in the mailbox, or for `Deadline`, in monotonic
milliseconds (`timeout`).
""".
-spec next(loan(), Deadline :: integer()) -> {ok, Message :: tuple()} | timeout.
next(#loan{connection = Connection, stream = Stream, monitor = Monitor}, Deadline) ->
    receive
        Message when element(2, Message) =:= Connection, element(3, Message) =:= Stream;
                     element(2, Message) =:= Monitor ->
            {ok, Message}
    after max(0, Deadline - erlang:monotonic_time(millisecond)) ->
        timeout
    end.

-doc "Gives the connection back, once. No more messages of the request come.".
-spec give_back(erlmcp_httpc_pool_request:connection_state(), loan()) -> ok.
give_back(cut, #loan{connection = Connection, stream = Stream} = Loan) ->
    ok = gun:cancel(Connection, Stream),
    ok = give_back(reset, Loan),
    gun:flush(Stream);
give_back(Left, #loan{lease = Lease, monitor = Monitor} = Loan) ->
    true = demonitor(Monitor, [flush]),
    erlmcp_httpc_pool:give_back(Lease, usable(Left, Loan)).

usable(_, #loan{closes = true}) ->
    broken;
usable(reset, #loan{lease = Lease}) ->
    %% On HTTP/2 the connection may have other streams.
    case erlmcp_httpc_pool:protocol(Lease) of
        http -> broken;
        http2 -> reusable
    end;
usable(Left, _) ->
    Left.
