-module(erlmcp_load_http1).
-moduledoc """
The wire of HTTP/1.1. Connections are kept alive, and replies come in the order of their requests.
They are JSON or a stream of events, with a length, in chunks or up to the end of the connection.
Pure.
""".

-behaviour(erlmcp_load_wire).

-export([new/1, opened/1, template/2, request/3, abandoned/2, received/2, ended/1, traits/0]).

-record(head, {
    status :: 100..599,
    framing :: {length, non_neg_integer()} | chunked | close | none,
    events :: boolean(),
    session = none :: none | binary(),
    closing = false :: boolean()
}).

-record(state, {
    max :: pos_integer(),
    %% Requests without a reply, in order.
    waiting = queue:new() :: queue:queue(erlmcp_load_wire:tag()),
    %% The received part of a head or of a chunk's size.
    held = ~"" :: binary(),
    %% The last head: its bytes, their number, and the parsed head. An equal one is not parsed.
    last_head = none :: none | {binary(), pos_integer(), #head{}},
    %% The head of the reply whose body is being read.
    body = none :: none | #head{},
    %% The missing bytes of a body with a length, the position in a chunked body, or `eof` for a
    %% body that the end of the connection ends.
    rest = 0 :: non_neg_integer() | size | trailer | eof | {chunk, non_neg_integer()},
    parts = [] :: [binary()],
    size = 0 :: non_neg_integer(),
    %% For a stream of events: its reader, and whether the reply came.
    reader = none :: none | {erlmcp_sse_reader:state(), Replied :: boolean()}
}).

-define(MAX_BYTES, 256 * 1024 * 1024).
-define(MAX_HEAD, 65_536).
-define(MAX_CHUNK_SIZE_DIGITS, 16).

-doc false.
traits() -> #{answers_notifications => true, ordered => true, in_flight => 1, sessions => true}.

-doc false.
new(Options) ->
    #state{max = maps:get(max_bytes, Options, ?MAX_BYTES)}.

-doc false.
opened(State) -> {~"", State}.

-doc false.
template(#{method := Method, pieces := Pieces, headers := Own}, Options) ->
    #{authority := Authority, path := Path} = Options,
    Given = one_of_each([{~"host", Authority} | maps:get(headers, Options, [])] ++ Own),
    Fields = Given ++ [Field || {Name, _} = Field <- content(Method),
                                not lists:keymember(Name, 1, Given)] ++ length_of(Method, Pieces),
    Head = iolist_to_binary([line(Method), Path, ~" HTTP/1.1\r\n",
                             [[Name, ~": ", Value, ~"\r\n"] || {Name, Value} <- Fields], ~"\r\n"]),
    joined(binary:split(Head, ~"{id}", [global]), Pieces, Method).

line(post) -> ~"POST ";
line(get) -> ~"GET ";
line(delete) -> ~"DELETE ".

%% The last header of each name counts, and the length is that of the message.
one_of_each(Headers) ->
    lists:keydelete(~"content-length", 1, lists:foldl(fun({Name, Value}, Fields) ->
        Lower = cowboy_bstr:to_lower(Name),
        lists:keystore(Lower, 1, Fields, {Lower, Value})
    end, [], Headers)).

content(delete) ->
    [];
content(get) ->
    [{~"accept", ~"text/event-stream"}];
content(post) ->
    [{~"content-type", ~"application/json"}, {~"accept", ~"application/json, text/event-stream"}].

length_of(post, Pieces) ->
    [{~"content-length", integer_to_binary(erlmcp_load_wire:spliced_size(Pieces))}];
length_of(_, _) ->
    [].

joined([Last], [First | Pieces], post) -> [<<Last/binary, First/binary>> | Pieces];
joined([Piece | Head], Pieces, post) -> [Piece | joined(Head, Pieces, post)];
joined(Head, _, _) -> Head.

-doc false.
request(Tag, Template, #state{waiting = Waiting} = State) ->
    {erlmcp_load_wire:spliced(Template, erlmcp_load_wire:id(Tag)),
     State#state{waiting = queue:in(Tag, Waiting)}}.

-doc false.
abandoned(_, State) -> {~"", State}.

-doc false.
received(Bytes, State) ->
    case read(Bytes, State, []) of
        {ok, Events, Read} -> {ok, lists:reverse(Events), ~"", Read};
        {error, Reason, Events} -> {error, Reason, lists:reverse(Events)}
    end.

read(<<>>, State, Events) ->
    {ok, Events, State};
read(Bytes, #state{body = none, held = ~"", last_head = {Last, Size, Head}} = State, Events) ->
    case Bytes of
        <<Last:Size/binary, Rest/binary>> -> body(Rest, Head, State, Events);
        _ -> head(Bytes, State, Events)
    end;
read(Bytes, #state{body = none, held = Held} = State, Events) ->
    head(<<Held/binary, Bytes/binary>>, State#state{held = ~""}, Events);
read(_, #state{size = Size, max = Max}, Events) when Size > Max ->
    {error, too_large, Events};
read(Bytes, #state{rest = Missing} = State, Events) when is_integer(Missing) ->
    case Bytes of
        <<Part:Missing/binary, Rest/binary>> ->
            maybe
                {ok, More, Given} ?= part(Part, State, Events),
                complete(Rest, Given, More)
            end;
        _ ->
            part(Bytes, State#state{rest = Missing - byte_size(Bytes)}, Events)
    end;
read(Bytes, #state{rest = eof} = State, Events) ->
    part(Bytes, State, Events);
read(Bytes, #state{rest = {chunk, Missing}} = State, Events) ->
    case Bytes of
        <<Part:Missing/binary, Rest/binary>> ->
            maybe
                {ok, More, Given} ?= part(Part, State#state{rest = size}, Events),
                read(Rest, Given, More)
            end;
        _ ->
            part(Bytes, State#state{rest = {chunk, Missing - byte_size(Bytes)}}, Events)
    end;
read(Bytes, #state{held = Held} = State, Events) ->
    chunk(<<Held/binary, Bytes/binary>>, State#state{held = ~""}, Events).

%% Heads.

head(Bytes, #state{} = State, Events) ->
    case binary:match(Bytes, ~"\r\n\r\n") of
        {At, 4} ->
            Size = At + 4,
            <<Text:Size/binary, Rest/binary>> = Bytes,
            case parsed(Text) of
                {ok, #head{status = Status}} when Status < 200 ->
                    read(Rest, State, Events);
                {ok, Head} ->
                    Last = {binary:copy(Text), Size, Head},
                    body(Rest, Head, State#state{last_head = Last}, Events);
                error ->
                    {error, bad_head, Events}
            end;
        nomatch when byte_size(Bytes) > ?MAX_HEAD ->
            {error, bad_head, Events};
        nomatch ->
            {ok, Events, State#state{held = Bytes}}
    end.

parsed(Text) ->
    case erlang:decode_packet(http_bin, Text, []) of
        {ok, {http_response, {1, Minor}, Status, _}, Rest} when Status >= 100, Status =< 599 ->
            Framing = case Status of
                204 -> none;
                304 -> none;
                _ -> close
            end,
            field(Rest, #head{status = Status, framing = Framing, events = false,
                              closing = Minor =:= 0});
        _ ->
            error
    end.

field(Bytes, Head) ->
    case erlang:decode_packet(httph_bin, Bytes, []) of
        {ok, {http_header, _, Name, _, Value}, Rest} ->
            case field(Name, Value, Head) of
                error -> error;
                Next -> field(Rest, Next)
            end;
        {ok, http_eoh, <<>>} ->
            {ok, Head};
        _ ->
            error
    end.

field('Content-Length', Value, #head{framing = close} = Head) ->
    case string:to_integer(Value) of
        {Length, <<>>} when is_integer(Length), Length >= 0 ->
            Head#head{framing = {length, Length}};
        _ ->
            error
    end;
field('Transfer-Encoding', Value, #head{framing = Framing} = Head) when Framing =/= none ->
    case cowboy_bstr:to_lower(Value) of
        ~"chunked" -> Head#head{framing = chunked};
        _ -> error
    end;
field('Content-Type', Value, Head) ->
    Head#head{events = erlmcp_load_wire:is_event_stream(Value)};
field('Connection', Value, Head) ->
    Head#head{closing = cowboy_bstr:to_lower(Value) =:= ~"close"};
field(Name, Value, Head) when is_binary(Name) ->
    case cowboy_bstr:to_lower(Name) of
        ~"mcp-session-id" -> Head#head{session = Value};
        _ -> Head
    end;
field(_, _, Head) ->
    Head.

%% Bodies.

body(_, #head{framing = {length, Length}, events = false}, #state{max = Max}, Events)
  when Length > Max ->
    {error, too_large, Events};
body(Bytes, Head, #state{waiting = Waiting} = State, Events) ->
    case queue:out(Waiting) of
        {{value, Tag}, Others} -> body(Bytes, Head, Tag, Others, State, Events);
        {empty, _} -> {error, unasked_reply, Events}
    end.

%% Most replies arrive complete.
body(Bytes, #head{framing = {length, Length}, events = false, session = none, closing = false,
                  status = Status} = Head, Tag, Others, State, Events) ->
    case Bytes of
        <<Body:Length/binary, Rest/binary>> ->
            read(Rest, State#state{waiting = Others}, [{reply, Tag, Status, Body} | Events]);
        _ ->
            begun(Bytes, Length, Head, State, Events)
    end;
body(Bytes, #head{framing = Framing} = Head, _, _, State, Events) ->
    begun(Bytes, first_rest(Framing), Head, State, Events).

first_rest({length, Length}) -> Length;
first_rest(none) -> 0;
first_rest(chunked) -> size;
first_rest(close) -> eof.

begun(Bytes, Missing, #head{events = AreEvents, session = Session} = Head, State, Events) ->
    Reader = case AreEvents of
        true -> {erlmcp_sse_reader:new(State#state.max), false};
        false -> none
    end,
    WithSession = [{session, tag(State), Session} || Session =/= none] ++ Events,
    Reading = State#state{body = Head, rest = Missing, parts = [], size = 0, reader = Reader},
    case Missing of
        0 -> complete(Bytes, Reading, WithSession);
        _ -> read(Bytes, Reading, WithSession)
    end.

tag(#state{waiting = Waiting}) ->
    queue:get(Waiting).

%% Events of a stream are returned as they come. The bound is that of each event.
part(Part, #state{reader = none, parts = Parts, size = Size} = State, Events) ->
    {ok, Events, State#state{parts = [Part | Parts], size = Size + byte_size(Part)}};
part(Part, #state{reader = {Reader, Replied}} = State, Events) ->
    {Pushed, Next} = erlmcp_sse_reader:push(Part, Reader),
    given(Pushed, State#state{reader = {Next, Replied}}, Events).

given([], State, Events) ->
    {ok, Events, State};
given([#{data := Data} | Pushed], #state{reader = {Reader, Replied}} = State, Events) ->
    #state{body = #head{status = Status}} = State,
    case not Replied andalso erlmcp_load_reply:is_reply(Data) of
        true ->
            given(Pushed, State#state{reader = {Reader, true}},
                  [{reply, tag(State), Status, Data} | Events]);
        false ->
            given(Pushed, State, [{message, Data} | Events])
    end;
%% This is the last event of the reader. It fails no request that has its reply.
given([{too_large, _}], #state{reader = {_, true}} = State, Events) ->
    {ok, Events, State};
given([{too_large, _}], _, Events) ->
    {error, too_large, Events}.

complete(Rest, State, Events) ->
    {Done, More} = finished(State, Events),
    read(Rest, Done, More).

finished(#state{body = #head{status = Status, closing = Closing}, waiting = Waiting} = State,
         Events) ->
    #state{parts = Parts, reader = Reader} = State,
    {{value, Tag}, Others} = queue:out(Waiting),
    Replied = case Reader of
        {_, true} -> Events;
        {_, false} -> [{reply, Tag, Status, ~""} | Events];
        none -> [{reply, Tag, Status, iolist_to_binary(lists:reverse(Parts))} | Events]
    end,
    {State#state{waiting = Others, body = none, parts = [], size = 0, reader = none, rest = 0},
     [closing || Closing] ++ Replied}.

%% Chunks: a size in hexadecimal digits, that many bytes, and an empty line. The last chunk has no
%% bytes.
chunk(Bytes, #state{rest = Missing} = State, Events) ->
    case binary:split(Bytes, ~"\r\n") of
        [Line] when byte_size(Line) > ?MAX_HEAD -> {error, bad_chunk, Events};
        [Line] -> {ok, Events, State#state{held = Line}};
        %% The line end of the previous chunk.
        [<<>>, Rest] when Missing =:= size -> read(Rest, State, Events);
        [<<>>, Rest] when Missing =:= trailer -> complete(Rest, State, Events);
        [_, Rest] when Missing =:= trailer -> read(Rest, State, Events);
        [Line, Rest] ->
            case chunk_size(Line) of
                error -> {error, bad_chunk, Events};
                0 -> read(Rest, State#state{rest = trailer}, Events);
                Size -> read(Rest, State#state{rest = {chunk, Size}}, Events)
            end
    end.

chunk_size(Line) ->
    [Digits | _] = binary:split(Line, [~";", ~" "]),
    try binary_to_integer(Digits, 16) of
        Size when Size >= 0, byte_size(Digits) =< ?MAX_CHUNK_SIZE_DIGITS -> Size;
        _ -> error
    catch
        error:badarg -> error
    end.

-doc false.
ended(#state{body = #head{}, rest = eof} = State) ->
    {_, Events} = finished(State, []),
    lists:reverse(Events);
ended(_) ->
    [].
