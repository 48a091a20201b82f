-module(erlmcp_load_http2).
-moduledoc """
The load generator's HTTP/2: the frames of one connection, on cowlib's frames and HPACK. Pure.

Each request is a stream. One that the server's limit of streams has no room for waits here until
another ends. The windows of the server are as wide as h2load makes them: a generator reads all that
comes, at once.

Source: RFC 9113.
""".

-behaviour(erlmcp_load_wire).

-export([new/1, opened/1, template/2, request/3, abandoned/2, received/2, ended/1, traits/0]).

-export_type([state/0]).

-type tag() :: erlmcp_load_wire:tag().

-record(stream, {
    tag :: tag(),
    %% None until the last headers are there: those with 1xx have others after them.
    status = none :: none | 200..999,
    size = 0 :: non_neg_integer(),
    %% Its parts, the newest first; or the reader of a stream of events, and whether the reply came.
    body = [] :: [binary()] | {erlmcp_sse_reader:state(), Replied :: boolean()}
}).

-record(http2, {
    max :: pos_integer(),
    %% What came of a frame.
    buffer = ~"" :: binary(),
    %% The server's first frame is its settings, and nothing comes between the parts of a block.
    expected = settings :: settings | any
        | {continuation, cow_http2:streamid(), cow_http:fin(), binary()},
    hpack = erlmcp_load_hpack:new() :: erlmcp_load_hpack:state(),
    flow = erlmcp_load_flow:new() :: erlmcp_load_flow:flow(),
    next = 1 :: pos_integer(),
    streams = #{} :: #{cow_http2:streamid() => #stream{}},
    %% Streams at once: none before the server has said how many, for it would refuse the others.
    limit = 0 :: non_neg_integer() | infinity,
    waiting = queue:new() :: queue:queue({tag(), erlmcp_load_http2_message:template()}),
    %% What was read since the server was told last that it may go on.
    unsaid = 0 :: non_neg_integer(),
    %% Whether it takes no more requests.
    leaving = false :: boolean(),
    %% Of what is being received: the events, the newest first, and what is to be sent for it.
    events = [] :: [erlmcp_load_wire:event()],
    out = [] :: iodata()
}).

-opaque state() :: #http2{}.

%% Bytes that the server may send on a stream, and on the connection before it is told to go on; at
%% first it takes less for granted.
-define(WINDOW, 16#3fffffff).
-define(FIRST_WINDOW, 65_535).
%% Of a body, where nobody says.
-define(BODY, 134_217_728).
%% The number of a stream after which the connection is left.
-define(LAST, 16#7fff0000).
%% Of a frame that is received, and of a block of headers.
-define(FRAME, 16_384).
-define(BLOCK, 65_536).

-doc "A connection on which nothing was said.".
-spec new(erlmcp_load_wire:options()) -> state().
new(Options) ->
    %% No stream is told to go on: its window has room for the longest body.
    #http2{max = min(maps:get(max_bytes, Options, ?BODY), ?WINDOW)}.

-doc "What the connection begins with.".
-spec opened(state()) -> {iodata(), state()}.
opened(State) ->
    {[~"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
      cow_http2:settings(#{enable_push => false, initial_window_size => ?WINDOW}),
      cow_http2:window_update(?WINDOW - ?FIRST_WINDOW)], State}.

-doc "A message, prepared.".
-spec template(erlmcp_load_wire:message(), erlmcp_load_wire:options()) ->
    erlmcp_load_http2_message:template().
template(Message, Options) ->
    erlmcp_load_http2_message:template(Message, Options).

-doc "A request: the bytes that are to be sent now.".
-spec request(tag(), erlmcp_load_http2_message:template(), state()) -> {iodata(), state()}.
request(Tag, Template, #http2{streams = Streams, limit = Limit, leaving = false} = State)
  when map_size(Streams) < Limit ->
    started(Tag, Template, State);
request(Tag, Template, #http2{waiting = Waiting} = State) ->
    {~"", State#http2{waiting = queue:in({Tag, Template}, Waiting)}}.

started(Tag, Template, #http2{next = Id, streams = Streams, hpack = Hpack, flow = Flow} = State) ->
    {Size, Block, Body, Encoded} = erlmcp_load_http2_message:encoded(Tag, Template, Hpack),
    {Bytes, Sent} = erlmcp_load_flow:request(Id, {Size, Block}, Body, Flow),
    {Bytes, State#http2{next = Id + 2, hpack = Encoded, flow = Sent,
                        streams = Streams#{Id => #stream{tag = Tag}}}}.

-doc "Nobody waits for the answer of this request any longer.".
-spec abandoned(tag(), state()) -> {iodata(), state()}.
abandoned(Tag, #http2{streams = Streams, waiting = Waiting} = State) ->
    case [Id || Id := #stream{tag = Of} <- Streams, Of =:= Tag] of
        [Id] ->
            said(next(ended(Id, reset(Id, cancel, State))));
        [] ->
            {~"", State#http2{waiting = queue:filter(fun({Of, _}) -> Of =/= Tag end, Waiting)}}
    end.

said(#http2{out = []} = State) -> {~"", State};
said(#http2{out = Out} = State) -> {Out, State#http2{out = []}}.

-doc """
What these bytes say, in order, and what is to be sent for it.

## Errors

* `protocol_error`, `compression_error`, ...: what the server sent is not HTTP/2
""".
-spec received(binary(), state()) ->
    {ok, [erlmcp_load_wire:event()], iodata(), state()} | {error, cow_http2:error()}.
received(Bytes, #http2{buffer = ~""} = State) ->
    frames(Bytes, State);
received(Bytes, #http2{buffer = Buffer} = State) ->
    frames(<<Buffer/binary, Bytes/binary>>, State).

frames(Bytes, State) ->
    case cow_http2:parse(Bytes, ?FRAME) of
        {ok, Frame, Rest} ->
            Size = byte_size(Bytes) - byte_size(Rest) - 9,
            framed(expected(Frame, Size, State), Rest);
        {ignore, Rest} ->
            framed(expected(ignored, 0, State), Rest);
        {stream_error, Id, Error, _, Rest} ->
            framed({ok, failed(Id, Error, reset(Id, Error, State))}, Rest);
        {connection_error, Error, _} ->
            {error, Error};
        more ->
            {Out, Next} = said(next(counted(State#http2{buffer = Bytes}))),
            {ok, lists:reverse(Next#http2.events), Out, Next#http2{events = []}}
    end.

framed({ok, State}, Rest) -> frames(Rest, State);
framed({error, _} = Error, _) -> Error.

expected(Frame, Size, #http2{expected = any} = State) ->
    frame(Frame, Size, State);
expected({settings, _} = Frame, Size, #http2{expected = settings} = State) ->
    %% One that names no limit has none.
    frame(Frame, Size, State#http2{expected = any, limit = infinity});
expected({continuation, Id, HeadFin, Part}, _,
         #http2{expected = {continuation, Id, Fin, Before}} = State)
  when byte_size(Before) + byte_size(Part) =< ?BLOCK ->
    block(Id, Fin, HeadFin, <<Before/binary, Part/binary>>, State);
expected(_, _, _) ->
    {error, protocol_error}.

frame({data, Id, Fin, Data}, Size, State) ->
    data(Id, Fin, Data, taken(Size, State));
frame({headers, Id, Fin, HeadFin, Part}, _, State) ->
    block(Id, Fin, HeadFin, Part, State);
frame({headers, Id, Fin, HeadFin, _, _, _, Part}, _, State) ->
    block(Id, Fin, HeadFin, Part, State);
frame({rst_stream, Id, Error}, _, State) ->
    {ok, failed(Id, Error, State)};
frame({settings, Settings}, _, #http2{flow = Flow} = State) ->
    maybe
        {ok, Out, Set} ?= erlmcp_load_flow:settings(Settings, Flow),
        {ok, settings(Settings, out([cow_http2:settings_ack(), Out], State#http2{flow = Set}))}
    end;
frame({ping, Opaque}, _, State) ->
    {ok, out(cow_http2:ping_ack(Opaque), State)};
frame({goaway, Last, _, _}, _, State) ->
    {ok, leaving(Last, State)};
frame({window_update, Increment}, _, #http2{flow = Flow} = State) ->
    widened(erlmcp_load_flow:window(Increment, Flow), State);
frame({window_update, Id, Increment}, _, #http2{flow = Flow} = State) ->
    widened(erlmcp_load_flow:window(Id, Increment, Flow), State);
%% We have said that we take none, and the rest of a block comes only after its beginning.
frame({push_promise, _, _, _, _}, _, _) -> {error, protocol_error};
frame({continuation, _, _, _}, _, _) -> {error, protocol_error};
%% Priorities, answers to what we said, and what RFC 9113 does not know.
frame(_, _, State) -> {ok, State}.

widened({ok, Out, Flow}, State) -> {ok, out(Out, State#http2{flow = Flow})};
widened({error, _} = Error, _) -> Error.

settings(Settings, #http2{limit = Limit, hpack = Hpack} = State) ->
    Set = State#http2{limit = maps:get(max_concurrent_streams, Settings, Limit)},
    case Settings of
        #{header_table_size := Size} ->
            Set#http2{hpack = erlmcp_load_hpack:table_size(Size, Hpack)};
        #{} ->
            Set
    end.

%% What was read, of whatever stream, the connection's window is opened by again, now and then.
taken(Size, #http2{unsaid = Unsaid} = State) when Unsaid + Size < ?WINDOW div 2 ->
    State#http2{unsaid = Unsaid + Size};
taken(Size, #http2{unsaid = Unsaid} = State) ->
    out(cow_http2:window_update(Unsaid + Size), State#http2{unsaid = 0}).

block(Id, Fin, head_nofin, Part, State) when byte_size(Part) =< ?BLOCK ->
    {ok, State#http2{expected = {continuation, Id, Fin, Part}}};
block(Id, Fin, head_fin, Block, #http2{hpack = Hpack} = State) ->
    case erlmcp_load_hpack:decode(Block, Hpack) of
        {ok, Headers, Decoded} ->
            headers(Id, Fin, Headers, State#http2{hpack = Decoded, expected = any});
        error ->
            {error, compression_error}
    end.

headers(Id, Fin, Headers, #http2{streams = Streams} = State) ->
    case Streams of
        #{Id := #stream{status = none} = Stream} ->
            case status(Headers) of
                {ok, Status} when Status >= 200 ->
                    begun(Id, Fin, Headers, Stream#stream{status = Status}, State);
                {ok, _} when Fin =:= nofin ->
                    {ok, State};
                _ ->
                    {ok, failed(Id, protocol_error, reset(Id, protocol_error, State))}
            end;
        #{Id := Stream} ->
            %% Trailers.
            read(Id, Fin, Stream, State);
        #{} ->
            known(Id, State)
    end.

status(Headers) ->
    case lists:keyfind(~":status", 1, Headers) of
        {_, <<A, B, C>>} when A >= $1, A =< $9, B >= $0, B =< $9, C >= $0, C =< $9 ->
            {ok, (A - $0) * 100 + (B - $0) * 10 + C - $0};
        _ ->
            error
    end.

begun(Id, Fin, Headers, #stream{tag = Tag} = Stream, #http2{events = Events, max = Max} = State) ->
    Sessions = [{session, Tag, Session} || {~"mcp-session-id", Session} <- Headers],
    Body = case lists:keyfind(~"content-type", 1, Headers) of
        {_, <<"text/event-stream", _/binary>>} -> {erlmcp_sse_reader:new(Max), false};
        _ -> []
    end,
    read(Id, Fin, Stream#stream{body = Body}, State#http2{events = Sessions ++ Events}).

data(Id, Fin, Data, #http2{streams = Streams, max = Max} = State) ->
    case Streams of
        #{Id := #stream{status = none}} ->
            {ok, failed(Id, protocol_error, reset(Id, protocol_error, State))};
        #{Id := #stream{body = Parts, size = Size}}
          when is_list(Parts), Size + byte_size(Data) > Max ->
            {ok, failed(Id, too_large, reset(Id, cancel, State))};
        #{Id := #stream{body = Parts, size = Size} = Stream} when is_list(Parts) ->
            read(Id, Fin, Stream#stream{size = Size + byte_size(Data), body = [Data | Parts]},
                 State);
        #{Id := #stream{body = {Reader, Replied}} = Stream} ->
            {Events, Next} = erlmcp_sse_reader:push(Data, Reader),
            {Now, Given} = given(Events, Replied, Stream, State),
            {Size, Widened} = endless(Id, byte_size(Data), Stream, Given),
            read(Id, Fin, Stream#stream{body = {Next, Now}, size = Size}, Widened);
        #{} ->
            known(Id, State)
    end.

%% Events of a stream are given as they come.
given([], Replied, _, State) ->
    {Replied, State};
given([#{data := Data} | Events], Replied, Stream, #http2{events = Before} = State) ->
    #stream{tag = Tag, status = Status} = Stream,
    case not Replied andalso erlmcp_load_reply:is_reply(Data) of
        true ->
            given(Events, true, Stream,
                  State#http2{events = [{reply, Tag, Status, Data} | Before]});
        false ->
            given(Events, Replied, Stream, State#http2{events = [{message, Data} | Before]})
    end;
%% The last there is: the reader gives no more.
given([{too_large, _}], Replied, _, State) ->
    {Replied, State}.

%% A stream of events may be longer than any body.
endless(_, More, #stream{size = Size}, State) when Size + More < ?WINDOW div 2 ->
    {Size + More, State};
endless(Id, More, #stream{size = Size}, State) ->
    {0, out(cow_http2:window_update(Id, Size + More), State)}.

%% Of streams that were abandoned more may come, of others that are not there none.
known(Id, #http2{next = Next} = State) when Id rem 2 =:= 1, Id < Next -> {ok, State};
known(_, _) -> {error, protocol_error}.

read(Id, nofin, Stream, #http2{streams = Streams} = State) ->
    {ok, State#http2{streams = Streams#{Id := Stream}}};
read(Id, fin, Stream, #http2{flow = Flow, events = Events} = State) ->
    Read = ended(Id, State#http2{events = last(Stream) ++ Events}),
    case erlmcp_load_flow:is_unsent(Id, Flow) of
        false -> {ok, Read};
        %% It answers without having read the request: it does not get the rest.
        true -> {ok, reset(Id, cancel, Read)}
    end.

last(#stream{body = {_, true}}) -> [];
last(#stream{tag = Tag, status = Status, body = {_, false}}) -> [{reply, Tag, Status, ~""}];
last(#stream{tag = Tag, status = Status, body = Parts}) -> [{reply, Tag, Status, whole(Parts)}].

whole([Body]) -> Body;
whole(Parts) -> iolist_to_binary(lists:reverse(Parts)).

failed(Id, Reason, #http2{streams = Streams, events = Events} = State) ->
    case Streams of
        #{Id := #stream{body = {_, true}}} ->
            ended(Id, State);
        #{Id := #stream{tag = Tag}} ->
            ended(Id, State#http2{events = [{failed, Tag, Reason} | Events]});
        #{} ->
            State
    end.

ended(Id, #http2{streams = Streams, flow = Flow} = State) ->
    State#http2{streams = maps:remove(Id, Streams), flow = erlmcp_load_flow:dropped(Id, Flow)}.

leaving(Last, #http2{streams = Streams, waiting = Waiting} = State) ->
    Unread = lists:sort([Id || Id := _ <- Streams, Id > Last]),
    #http2{events = Events} = Left =
        lists:foldl(fun(Id, To) -> failed(Id, goaway, To) end, State, Unread),
    Unsent = [{failed, Tag, goaway} || {Tag, _} <- queue:to_list(Waiting)],
    Left#http2{events = [closing | lists:reverse(Unsent, Events)], waiting = queue:new(),
               leaving = true}.

reset(Id, Error, State) ->
    out(cow_http2:rst_stream(Id, Error), State).

out([], State) -> State;
out(More, #http2{out = Out} = State) ->
    State#http2{out = [Out | More]}.

%% The numbers of streams have an end.
counted(#http2{next = Next, leaving = false} = State) when Next > ?LAST -> leaving(Next, State);
counted(State) -> State.

%% Those that wait, as far as there is room for them now.
next(#http2{streams = Streams, limit = Limit, waiting = Waiting, leaving = false} = State)
  when map_size(Streams) < Limit ->
    case queue:out(Waiting) of
        {empty, _} ->
            State;
        {{value, {Tag, Template}}, Others} ->
            {Bytes, Started} = started(Tag, Template, State#http2{waiting = Others}),
            next(out(Bytes, Started))
    end;
next(State) ->
    State.

-doc "Nothing ends with the connection but what is lost.".
-spec ended(state()) -> [].
ended(_) ->
    [].

-doc "Replies come as they are ready, each with its own status.".
-spec traits() -> map().
traits() ->
    #{answers_notifications => true, ordered => false, in_flight => 100, sessions => true}.
