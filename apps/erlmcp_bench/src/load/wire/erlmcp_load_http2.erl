-module(erlmcp_load_http2).
-moduledoc """
The wire of HTTP/2 (RFC 9113). Each request is a stream. A request over the server's limit of
streams waits until another stream ends. Pure.
""".

-behaviour(erlmcp_load_wire).

-export([new/1, opened/1, template/2, request/3, abandoned/2, received/2, ended/1, traits/0]).

-export_type([state/0, template/0]).

-type tag() :: erlmcp_load_wire:tag().

%% A prepared message: its headers for HPACK, the headers that contain the id, and its body except
%% for the ids.
-record(template, {
    %% Identifies the headers.
    key :: binary(),
    headers :: cow_http:headers(),
    varying :: [{Name :: binary(), erlmcp_load_wire:pieces()}],
    body :: {Size :: non_neg_integer(), erlmcp_load_wire:pieces()} | none
}).

-opaque template() :: #template{}.

-record(stream, {
    tag :: tag(),
    %% `none` until the final headers come; headers with a status of 1xx come before them.
    status = none :: none | 200..599,
    size = 0 :: non_neg_integer(),
    %% The parts of the body, newest first; or the reader of a stream of events, and whether the
    %% reply came.
    body = [] :: [binary()] | {erlmcp_sse_reader:state(), Replied :: boolean()}
}).

-record(http2, {
    max :: pos_integer(),
    %% The received part of a frame.
    buffer = ~"" :: binary(),
    %% The server's first frame is its settings. Nothing comes between the parts of a header block.
    expected = settings :: settings | any
        | {continuation, cow_http2:streamid(), cow_http:fin(), binary()},
    hpack = erlmcp_load_hpack:new() :: erlmcp_load_hpack:state(),
    flow = erlmcp_load_flow:new() :: erlmcp_load_flow:flow(),
    next = 1 :: pos_integer(),
    streams = #{} :: #{cow_http2:streamid() => #stream{}},
    %% The server's limit of streams. It is 0 until the server has sent it, since the server would
    %% refuse others.
    limit = 0 :: non_neg_integer() | infinity,
    waiting = queue:new() :: queue:queue({tag(), template()}),
    %% Bytes that were read since the last window update.
    unacknowledged = 0 :: non_neg_integer(),
    %% Whether the connection takes no more requests.
    leaving = false :: boolean(),
    %% Collected while bytes are read: the events, newest first, and the bytes to send in reply.
    events = [] :: [erlmcp_load_wire:event()],
    out = [] :: iodata()
}).

-opaque state() :: #http2{}.

%% Bytes that the server may send on a stream, and on the connection between window updates; and the
%% first window of every connection.
-define(WINDOW, 16#3fffffff).
-define(FIRST_WINDOW, 65_535).
%% The default limit of a body, in bytes.
-define(BODY, 134_217_728).
%% The last stream number of a connection.
-define(LAST, 16#7fff0000).
%% The most bytes of a received frame, and of a header block.
-define(FRAME, 16_384).
-define(BLOCK, 65_536).

-doc "Returns the state of a new connection.".
-spec new(erlmcp_load_wire:options()) -> state().
new(Options) ->
    %% A stream never gets a window update: its window has room for the longest body.
    #http2{max = min(maps:get(max_bytes, Options, ?BODY), ?WINDOW)}.

-doc "Returns the first bytes to send on a connection.".
-spec opened(state()) -> {iodata(), state()}.
opened(State) ->
    {[~"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
      cow_http2:settings(#{enable_push => false, initial_window_size => ?WINDOW}),
      cow_http2:window_update(?WINDOW - ?FIRST_WINDOW)], State}.

-doc "Prepares a message for the target in the options, so that requests only need their ids.".
-spec template(erlmcp_load_wire:message(), erlmcp_load_wire:options()) -> template().
template(#{method := Method, headers := Own} = Message, Options) ->
    #{authority := Authority, path := Path} = Options,
    Given = one_of_each(content(Method) ++ maps:get(headers, Options, []) ++ Own),
    Allowed = lists:sort(maps:to_list(maps:without(forbidden(), Given))),
    {Varying, Fixed} = lists:partition(fun is_varying/1, Allowed),
    Body = body(Message),
    Headers = [{~":method", name(Method)},
               {~":scheme", atom_to_binary(maps:get(scheme, Options, http))},
               {~":authority", maps:get(~"host", Given, Authority)},
               {~":path", Path} | Fixed]
        ++ [{~"content-length", integer_to_binary(Size)} || {Size, _} <- [Body]],
    #template{key = erlang:md5(term_to_binary(Headers)), headers = Headers, body = Body,
              varying = [{Name, binary:split(Value, ~"{id}", [global])}
                         || {Name, Value} <- Varying]}.

name(post) -> ~"POST";
name(get) -> ~"GET";
name(delete) -> ~"DELETE".

content(post) ->
    [{~"content-type", ~"application/json"}, {~"accept", ~"application/json, text/event-stream"}];
content(get) ->
    [{~"accept", ~"text/event-stream"}];
content(delete) ->
    [].

body(#{method := post, pieces := Pieces}) -> {erlmcp_load_wire:spliced_size(Pieces), Pieces};
body(#{}) -> none.

%% The last header of each name counts.
one_of_each(Headers) ->
    #{string:lowercase(Name) => Value || {Name, Value} <- Headers}.

%% HTTP/2 has no such headers (RFC 9113, 8.2.2), or expresses them in its own way.
forbidden() ->
    [~"host", ~"connection", ~"keep-alive", ~"proxy-connection", ~"transfer-encoding", ~"upgrade",
     ~"content-length"].

is_varying({_, Value}) ->
    binary:match(Value, ~"{id}") =/= nomatch.

-doc """
Returns the bytes of a request that may be sent now. There are none yet if the request is over the
server's limit of streams, or if the server's settings have not come. Then the request waits.
""".
-spec request(tag(), template(), state()) -> {iodata(), state()}.
request(Tag, Template, #http2{streams = Streams, limit = Limit, leaving = false} = State)
  when map_size(Streams) < Limit ->
    started(Tag, Template, State);
request(Tag, Template, #http2{waiting = Waiting} = State) ->
    {~"", State#http2{waiting = queue:in({Tag, Template}, Waiting)}}.

started(Tag, Template, #http2{next = Id, streams = Streams, hpack = Hpack, flow = Flow} = State) ->
    {Size, Block, Body, Encoded} = encoded(Tag, Template, Hpack),
    {Bytes, Sent} = erlmcp_load_flow:request(Id, {Size, Block}, Body, Flow),
    {Bytes, State#http2{next = Id + 2, hpack = Encoded, flow = Sent,
                        streams = Streams#{Id => #stream{tag = Tag}}}}.

%% The header block and the body, each with its size. The body may be `none`.
encoded(Tag, #template{key = Key, headers = Headers, varying = Varying, body = Body}, Hpack) ->
    Id = erlmcp_load_wire:id(Tag),
    {Size, Block, Encoded} = erlmcp_load_hpack:encode(Key, Headers, Hpack),
    Sent = case Body of
        {BodySize, Pieces} -> {BodySize, erlmcp_load_wire:spliced(Pieces, Id)};
        none -> none
    end,
    case Varying of
        [] ->
            {Size, Block, Sent, Encoded};
        _ ->
            More = [erlmcp_load_hpack:literal(Name, erlmcp_load_wire:spliced(Pieces, Id))
                    || {Name, Pieces} <- Varying],
            {Size + iolist_size(More), [Block | More], Sent, Encoded}
    end.

-doc """
Cancels a request. Returns the bytes to send: a reset, if the request has a stream, and other
requests that have waited for a stream.
""".
-spec abandoned(tag(), state()) -> {iodata(), state()}.
abandoned(Tag, #http2{streams = Streams, waiting = Waiting} = State) ->
    case [Id || Id := #stream{tag = Of} <- Streams, Of =:= Tag] of
        [Id] ->
            take_out(next(ended(Id, reset(Id, cancel, State))));
        [] ->
            {~"", State#http2{waiting = queue:filter(fun({Of, _}) -> Of =/= Tag end, Waiting)}}
    end.

take_out(#http2{out = []} = State) -> {~"", State};
take_out(#http2{out = Out} = State) -> {Out, State#http2{out = []}}.

-doc """
Reads `Bytes`. Returns their events in order, and bytes to send: answers to frames, and requests
that have waited.

## Errors

* `protocol_error`, `compression_error`, ...: the server's bytes are not valid HTTP/2, or a header
  block has more than 65,536 bytes (`protocol_error`); the error comes with the events before it
""".
-spec received(binary(), state()) ->
    {ok, [erlmcp_load_wire:event()], iodata(), state()}
    | {error, cow_http2:error(), [erlmcp_load_wire:event()]}.
received(Bytes, #http2{buffer = ~""} = State) ->
    frames(Bytes, State);
received(Bytes, #http2{buffer = Buffer} = State) ->
    frames(<<Buffer/binary, Bytes/binary>>, State).

frames(Bytes, State) ->
    case cow_http2:parse(Bytes, ?FRAME) of
        {ok, Frame, Rest} ->
            Size = byte_size(Bytes) - byte_size(Rest) - 9,
            framed(expected(Frame, Size, State), Rest, State);
        {ignore, Rest} ->
            framed(expected(ignored, 0, State), Rest, State);
        {stream_error, Id, Error, _, Rest} ->
            frames(Rest, failed(Id, Error, reset(Id, Error, State)));
        {connection_error, Error, _} ->
            framed({error, Error}, ~"", State);
        more ->
            {Out, Next} = take_out(next(counted(State#http2{buffer = Bytes}))),
            {ok, lists:reverse(Next#http2.events), Out, Next#http2{events = []}}
    end.

framed({ok, Next}, Rest, _) -> frames(Rest, Next);
framed({error, Error}, _, #http2{events = Events}) -> {error, Error, lists:reverse(Events)}.

expected(Frame, Size, #http2{expected = any} = State) ->
    frame(Frame, Size, State);
expected({settings, _} = Frame, Size, #http2{expected = settings} = State) ->
    %% Settings without a limit of streams mean no limit.
    frame(Frame, Size, State#http2{expected = any, limit = infinity});
expected({continuation, Id, HeadFin, Part}, _,
         #http2{expected = {continuation, Id, Fin, Before}} = State)
  when byte_size(Before) + byte_size(Part) =< ?BLOCK ->
    block(Id, Fin, HeadFin, <<Before/binary, Part/binary>>, State);
expected(_, _, _) ->
    {error, protocol_error}.

frame({data, Id, Fin, Data}, Size, State) ->
    data(Id, Fin, Data, Size, taken(Size, State));
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
%% Our settings forbid pushes, and a continuation comes only after the beginning of its block.
frame({push_promise, _, _, _, _}, _, _) -> {error, protocol_error};
frame({continuation, _, _, _}, _, _) -> {error, protocol_error};
%% Priorities, acknowledgements, and frames that RFC 9113 does not define.
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

%% Bytes of all streams count for the connection's window, which is updated from time to time.
taken(Size, #http2{unacknowledged = Unacknowledged} = State)
  when Unacknowledged + Size < ?WINDOW div 2 ->
    State#http2{unacknowledged = Unacknowledged + Size};
taken(Size, #http2{unacknowledged = Unacknowledged} = State) ->
    out(cow_http2:window_update(Unacknowledged + Size), State#http2{unacknowledged = 0}).

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
            ignore_closed(Id, State)
    end.

status(Headers) ->
    case lists:keyfind(~":status", 1, Headers) of
        {_, <<A, B, C>>} when A >= $1, A =< $5, B >= $0, B =< $9, C >= $0, C =< $9 ->
            {ok, (A - $0) * 100 + (B - $0) * 10 + C - $0};
        _ ->
            error
    end.

begun(Id, Fin, Headers, #stream{tag = Tag} = Stream, #http2{events = Events, max = Max} = State) ->
    Sessions = [{session, Tag, Session} || {~"mcp-session-id", Session} <- Headers],
    Body = case [Type || {~"content-type", Type} <- Headers,
                         erlmcp_load_wire:is_event_stream(Type)] of
        [_ | _] -> {erlmcp_sse_reader:new(Max), false};
        [] -> []
    end,
    read(Id, Fin, Stream#stream{body = Body}, State#http2{events = Sessions ++ Events}).

data(Id, Fin, Data, Framed, #http2{streams = Streams, max = Max} = State) ->
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
            case given(Events, Replied, Stream, State) of
                {too_large, Given} ->
                    {ok, failed(Id, too_large, reset(Id, cancel, Given))};
                {Now, Given} ->
                    {Size, Widened} = endless(Id, Framed, Stream, Given),
                    read(Id, Fin, Stream#stream{body = {Next, Now}, size = Size}, Widened)
            end;
        #{} ->
            ignore_closed(Id, State)
    end.

%% Events of a stream are returned as they come.
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
%% This is the last event of the reader. It fails no request that has its reply.
given([{too_large, _}], true, _, State) ->
    {true, State};
given([{too_large, _}], false, _, State) ->
    {too_large, State}.

%% A stream of events may be longer than any body. Padding counts for its window, too.
endless(_, More, #stream{size = Size}, State) when Size + More < ?WINDOW div 2 ->
    {Size + More, State};
endless(Id, More, #stream{size = Size}, State) ->
    {0, out(cow_http2:window_update(Id, Size + More), State)}.

%% Frames of abandoned streams may still come. Frames of streams that never existed must not.
ignore_closed(Id, #http2{next = Next} = State) when Id rem 2 =:= 1, Id < Next -> {ok, State};
ignore_closed(_, _) -> {error, protocol_error}.

read(Id, nofin, Stream, #http2{streams = Streams} = State) ->
    {ok, State#http2{streams = Streams#{Id := Stream}}};
read(Id, fin, Stream, #http2{flow = Flow, events = Events} = State) ->
    Read = ended(Id, State#http2{events = last(Stream) ++ Events}),
    case erlmcp_load_flow:is_unsent(Id, Flow) of
        false -> {ok, Read};
        %% The server answered without reading the whole request, and does not get the rest.
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
    #http2{events = Events} = Failed =
        lists:foldl(fun(Id, To) -> failed(Id, goaway, To) end, State, Unread),
    Unsent = [{failed, Tag, goaway} || {Tag, _} <- queue:to_list(Waiting)],
    Failed#http2{events = [closing | lists:reverse(Unsent, Events)], waiting = queue:new(),
               leaving = true}.

reset(Id, Error, State) ->
    out(cow_http2:rst_stream(Id, Error), State).

out([], State) -> State;
out(More, #http2{out = Out} = State) ->
    State#http2{out = [Out | More]}.

%% Stream numbers are limited.
counted(#http2{next = Next, leaving = false} = State) when Next > ?LAST -> leaving(Next, State);
counted(State) -> State.

%% Starts waiting requests while there is room for them.
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

-doc "Returns no events: the end of the connection completes no reply.".
-spec ended(state()) -> [].
ended(_) ->
    [].

-doc "Returns the traits of HTTP/2.".
-spec traits() -> map().
traits() ->
    #{answers_notifications => true, ordered => false, in_flight => 100, sessions => true}.
