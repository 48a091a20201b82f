-module(erlmcp_httpd_backpressure).
-moduledoc """
Bounds the bytes of HTTP/2 responses that their clients have not read yet. This is the stream
handler between cowboy and the handler that answers. It gives responses to cowboy in pieces, and
those to HEAD without their bodies.

Cowboy keeps bytes without a bound if a client's window has no room for them. So cowboy is given one
piece, and the next one when the client has taken it; the rest waits here. If the client takes
nothing of a stream for `send_timeout_ms`, the stream is reset. If more than `unread_bytes` wait on
a connection, not counting the stream with most of them, the streams that have waited longest are
reset. A stream on which bytes already wait is also reset if they become more than `unread_bytes`.
The other streams go on.

The next handler gets `{alarm, _, on}` when bytes begin to wait, here or in cowboy, and
`{alarm, _, off}` when none wait any more.

Internal.
""".

-behaviour(cowboy_stream).

-export([init/3, data/4, info/3, terminate/3, early_error/5]).

%% Bytes that cowboy is given at once.
-define(PIECE, 65_536).

-record(unread, {
    next :: term(),
    %% whether the request is HEAD
    is_head :: boolean(),
    key :: reference(),
    limits :: erlmcp_server_options:limits(),
    %% whether cowboy keeps bytes that the client's window has no room for
    full = false :: boolean(),
    waiting = queue:new() :: queue:queue({data, cowboy_stream:fin(), iodata()} | stop),
    size = 0 :: non_neg_integer(),
    %% the last alarm to the next handler
    held = false :: boolean(),
    %% runs from the last piece that the client took
    timer = none :: none | {reference(), Mark :: reference()}
}).

-doc false.
init(StreamId, #{method := Method} = Request, #{erlmcp := #{instance := Instance}} = Options) ->
    #{key := Key, limits := Limits} = Instance,
    {Commands, Next} = cowboy_stream:init(StreamId, erlmcp_httpd_http2:with_scheme(Request),
                                          Options),
    said(Commands, StreamId, #unread{next = Next, is_head = Method =:= ~"HEAD", key = Key,
                                     limits = Limits}).

-doc false.
data(StreamId, IsFin, Data, #unread{next = Next} = Unread) ->
    {Commands, Later} = cowboy_stream:data(StreamId, IsFin, Data, Next),
    said(Commands, StreamId, Unread#unread{next = Later}).

-doc false.
info(StreamId, {alarm, stream_buffer_full, on}, Unread) ->
    settled([], StreamId, Unread#unread{full = true});
info(StreamId, {alarm, stream_buffer_full, off}, Unread) ->
    next_piece(StreamId, Unread#unread{full = false});
info(_, {alarm, _, _}, Unread) ->
    {[], Unread};
info(StreamId, {?MODULE, next}, #unread{full = false} = Unread) ->
    next_piece(StreamId, Unread);
info(_, {?MODULE, over}, #unread{limits = #{unread_bytes := Limit}} = Unread) ->
    cut(Limit, Unread);
info(_, {?MODULE, Mark}, #unread{timer = {_, Mark}, limits = Limits} = Unread) ->
    #{send_timeout_ms := Limit} = Limits,
    cut(Limit, Unread);
info(_, {?MODULE, _}, Unread) ->
    {[], Unread};
info(StreamId, Message, #unread{next = Next} = Unread) ->
    {Commands, Later} = cowboy_stream:info(StreamId, Message, Next),
    said(Commands, StreamId, Unread#unread{next = Later}).

cut(Limit, #unread{key = Key} = Unread) ->
    ok = erlmcp_slow_consumer:cut(Key, Limit),
    {[{internal_error, slow_consumer, 'The client does not read its stream.'}],
     Unread#unread{waiting = queue:new()}}.

-doc false.
terminate(StreamId, Reason, #unread{next = Next, key = Key, limits = Limits} = Unread) ->
    ok = counted(StreamId, 0),
    _ = untimed(Unread),
    ok = ended(Reason, Key, Limits),
    cowboy_stream:terminate(StreamId, Reason, Next).

%% The client has not taken any part of a piece for too long.
ended({socket_error, timeout, _}, Key, #{send_timeout_ms := Limit}) ->
    erlmcp_slow_consumer:cut(Key, Limit);
ended(_, _, _) ->
    ok.

-doc false.
early_error(StreamId, Reason, Request, Response, Options) ->
    cowboy_stream:early_error(StreamId, Reason, Request, Response, Options).

%% Handles the commands of the next handler. Most are short, and then nothing waits.
said(Commands, _, #unread{is_head = true} = Unread) ->
    {erlmcp_httpd_response:without_body(Commands), Unread};
said(Commands, StreamId, #unread{size = Before} = Unread) ->
    case sorted(lists:append([pieces(Command) || Command <- Commands]), Unread, []) of
        {Now, #unread{size = Size} = Kept} when Size > Before ->
            ok = counted(StreamId, Size),
            ok = bounded(StreamId, Before > 0, Kept),
            ok = ask(StreamId),
            settled(Now, StreamId, Kept);
        {Now, Kept} ->
            {Now, Kept}
    end.

pieces({response, Status, Headers, Body} = Response) ->
    case iolist_size(Body) of
        Size when Size > ?PIECE -> [{headers, Status, Headers} | pieces(fin, Body)];
        _ -> [Response]
    end;
pieces({data, IsFin, Data} = Command) ->
    case iolist_size(Data) of
        Size when Size > ?PIECE -> pieces(IsFin, Data);
        _ -> [Command]
    end;
pieces(Command) ->
    [Command].

%% The pieces are parts of the binaries, not copies.
pieces(IsFin, Data) ->
    Pieces = lists:append([cut_up(Binary) || Binary <- erlang:iolist_to_iovec(Data)]),
    [{data, nofin, Piece} || Piece <- lists:droplast(Pieces)]
        ++ [{data, IsFin, lists:last(Pieces)}].

cut_up(<<Piece:?PIECE/binary, Rest/binary>>) when Rest =/= <<>> -> [Piece | cut_up(Rest)];
cut_up(Piece) -> [Piece].

%% Sorts commands into those to perform now, and those that wait. A piece is sent now if none waits,
%% and so is every command without bytes.
sorted([], Unread, Now) ->
    {lists:reverse(Now), Unread};
sorted([{data, _, Data} = Piece | Commands], #unread{full = Full, size = Size} = Unread, Now) ->
    case Full orelse Size > 0 orelse lists:keymember(data, 1, Now) of
        false ->
            sorted(Commands, Unread, [Piece | Now]);
        true ->
            sorted(Commands, wait(Piece, Unread#unread{size = Size + weight(Data)}), Now)
    end;
sorted([stop | Commands], #unread{size = Size} = Unread, Now) when Size > 0 ->
    sorted(Commands, wait(stop, Unread), Now);
sorted([Command | Commands], Unread, Now) ->
    sorted(Commands, Unread, [Command | Now]).

%% An empty piece counts as one byte, since it waits too at the end of a stream.
weight(Data) ->
    iolist_size(Data) + 1.

wait(Command, #unread{waiting = Waiting} = Unread) ->
    Unread#unread{waiting = queue:in(Command, Waiting)}.

%% Takes the next piece that waits, and the end of the stream with the last one.
next_piece(StreamId, #unread{waiting = Waiting, size = Size} = Unread) ->
    case queue:out(Waiting) of
        {empty, _} ->
            settled([], StreamId, Unread);
        {{value, {data, _, Data} = Piece}, Rest} ->
            Left = Size - weight(Data),
            ok = counted(StreamId, Left),
            Taken = untimed(Unread#unread{waiting = Rest, size = Left}),
            case queue:peek(Rest) of
                {value, stop} ->
                    settled([Piece, stop], StreamId, Taken#unread{waiting = queue:new()});
                _ ->
                    ok = ask(StreamId),
                    settled([Piece], StreamId, Taken)
            end
    end.

%% When this message arrives, cowboy has handled the piece before it. If the client has not taken
%% that piece, cowboy has already sent an alarm.
ask(StreamId) ->
    self() ! {{self(), StreamId}, {?MODULE, next}},
    ok.

%% Sends the next handler an alarm if bytes begin or end to wait, and starts or stops the timer.
settled(Commands, StreamId, #unread{full = Full, size = Size, held = Held} = Unread) ->
    case Full orelse Size > 0 of
        Held ->
            {Commands, timed(StreamId, Unread)};
        Holds ->
            Alarm = case Holds of
                true -> on;
                false -> off
            end,
            #unread{next = Next} = Unread,
            {More, Later} = cowboy_stream:info(StreamId, {alarm, stream_buffer_full, Alarm}, Next),
            Kept = timed(StreamId, Unread#unread{held = Holds, next = Later}),
            case More of
                [] -> {Commands, Kept};
                _ -> after_these(Commands, said(More, StreamId, Kept))
            end
    end.

after_these(Commands, {More, Unread}) -> {Commands ++ More, Unread}.

timed(StreamId, #unread{held = true, timer = none, limits = Limits} = Unread) ->
    #{send_timeout_ms := Timeout} = Limits,
    Mark = make_ref(),
    Timer = erlang:send_after(Timeout, self(), {{self(), StreamId}, {?MODULE, Mark}}),
    Unread#unread{timer = {Timer, Mark}};
timed(_, #unread{held = false} = Unread) ->
    untimed(Unread);
timed(_, Unread) ->
    Unread.

untimed(#unread{timer = none} = Unread) ->
    Unread;
untimed(#unread{timer = {Timer, _}} = Unread) ->
    _ = erlang:cancel_timer(Timer),
    Unread#unread{timer = none}.

%% Stores in the process dictionary how many bytes wait on each stream of the connection, and since
%% when its client has taken none. All streams of a connection are in one process.
counted(StreamId, Size) ->
    Now = erlang:monotonic_time(),
    _ = case {get(?MODULE), Size} of
        {undefined, 0} -> ok;
        {undefined, _} -> put(?MODULE, #{StreamId => {Now, Size}});
        {#{} = Streams, 0} -> put(?MODULE, maps:remove(StreamId, Streams));
        {#{StreamId := {Since, More}} = Streams, _} when Size > More ->
            put(?MODULE, Streams#{StreamId := {Since, Size}});
        {#{} = Streams, _} -> put(?MODULE, Streams#{StreamId => {Now, Size}})
    end,
    ok.

bounded(StreamId, IsMore, #unread{limits = #{unread_bytes := Max}, size = Size}) ->
    if
        IsMore, Size > Max -> give_up(StreamId);
        true -> bounded(Max)
    end.

bounded(Max) ->
    Streams = get(?MODULE),
    Sizes = [Size || _ := {_, Size} <- Streams],
    case lists:sum(Sizes) - lists:max([0 | Sizes]) of
        Beside when Beside > Max ->
            [{_, Longest} | _] = lists:sort([{Since, Id} || Id := {Since, _} <- Streams]),
            ok = give_up(Longest),
            bounded(Max);
        _ ->
            ok
    end.

give_up(StreamId) ->
    ok = counted(StreamId, 0),
    self() ! {{self(), StreamId}, {?MODULE, over}},
    ok.
