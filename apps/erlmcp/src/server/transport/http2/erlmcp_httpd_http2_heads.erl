-module(erlmcp_httpd_http2_heads).
-moduledoc """
What comes on an HTTP/2 connection, as far as it repeats itself: requests whose heads are, octet
by octet, one that was read and understood before, and whose bodies are there as a whole. They are
taken out of what came, and in their place a head stands that says nothing but that there is a
request. All else is left as it is. Pure.

A field block that only refers to the table of fields, and spells out the rest, changes no table.
So it may be left out, and means the same whenever it comes again, until a block comes that does
change the table: then nothing is known any more.

Source: RFC 9113, sections 4 and 6; RFC 7541, section 6.

Internal.
""".

-export([new/0, read/2, is_candidate/2, learn/3, handled/2]).

-export_type([state/0, head/0]).

%% Octets of a frame's payload, as long as nobody has agreed to more.
-define(FRAME, 16_384).
%% Octets of a field block, and how many that are known, of one connection.
-define(BLOCK, 1_024).
-define(BLOCKS, 8).
%% Octets of bodies that are taken out and were not handled. Those beyond are left to cowboy.
-define(AHEAD, 65_535).

-define(PREFACE, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").

-define(DATA, 0).
-define(HEADERS, 1).
-define(CONTINUATION, 9).

%% POST, http, / and an authority that nobody looks at.
-define(STANDS_FOR_IT, 16#83, 16#86, 16#84, 1, 1, $x).

-doc "What a head was found to be: whatever who reads the request makes of it.".
-type head() :: term().

-record(state, {
    %% what is not a whole frame yet; of what cowboy will not take, all is left as it is
    buffer = <<>> :: binary(),
    phase = preface :: preface | frames | over,
    %% the number of the last stream that was begun
    last = 0 :: non_neg_integer(),
    known = #{} :: #{Block :: binary() => {Length :: non_neg_integer(), head()}},
    %% the last block that may become known, and of which request it is
    candidate = none :: none | {cowboy_stream:streamid(), Block :: binary()},
    ahead = 0 :: non_neg_integer()
}).

-opaque state() :: #state{}.

-type request() :: {cowboy_stream:streamid(), head(), Body :: binary()}.
-type frame() :: {Type :: byte(), Flags :: byte(), cowboy_stream:streamid(), binary()}.

-doc "A connection of which nothing was read.".
-spec new() -> state().
new() ->
    #state{}.

-doc "What is left of the octets that came, and the requests that were among them, in their order.".
-spec read(binary(), state()) -> {iodata(), [request()], state()}.
read(Bytes, #state{phase = over} = State) ->
    {Bytes, [], State};
read(Bytes, #state{buffer = Buffer, phase = preface} = State) ->
    case joined(Buffer, Bytes) of
        <<?PREFACE, Rest/binary>> ->
            {Out, Requests, Next} = read(Rest, State#state{buffer = <<>>, phase = frames}),
            {[<<?PREFACE>>, Out], Requests, Next};
        Begin when byte_size(Begin) < 24 ->
            {<<>>, [], State#state{buffer = Begin}};
        Other ->
            {Other, [], State#state{buffer = <<>>, phase = over}}
    end;
read(Bytes, #state{buffer = Buffer} = State) ->
    case frames(joined(Buffer, Bytes), [], #{}) of
        {Frames, Bodies, {more, Rest}} ->
            %% Not the whole of what was read with it.
            left(Frames, Bodies, [], [], State#state{buffer = binary:copy(Rest)});
        {Frames, Bodies, {other, Rest}} ->
            {Out, Requests, Next} = left(Frames, Bodies, [], [], State),
            {[Out, Rest], Requests, Next#state{buffer = <<>>, phase = over}}
    end.

joined(<<>>, Bytes) -> Bytes;
joined(Buffer, Bytes) -> <<Buffer/binary, Bytes/binary>>.

%% Whole frames, and the bodies that are one of them each.
-spec frames(binary(), [frame()], #{cowboy_stream:streamid() => binary() | parts}) ->
    {[frame()], #{cowboy_stream:streamid() => binary() | parts}, {more | other, binary()}}.
frames(<<Length:24, _/binary>> = Other, Frames, Bodies) when Length > ?FRAME ->
    {lists:reverse(Frames), Bodies, {other, Other}};
frames(<<Length:24, ?DATA, Flags, _:1, Id:31, Data:Length/binary, Rest/binary>> = Bytes, Frames,
       Bodies) ->
    Body = case Flags of
        1 when not is_map_key(Id, Bodies) -> Data;
        _ -> parts
    end,
    Frame = {?DATA, Flags, Id, binary:part(Bytes, 0, Length + 9)},
    frames(Rest, [Frame | Frames], Bodies#{Id => Body});
frames(<<Length:24, Type, Flags, _:1, Id:31, _:Length/binary, Rest/binary>> = Bytes, Frames,
       Bodies) ->
    frames(Rest, [{Type, Flags, Id, binary:part(Bytes, 0, Length + 9)} | Frames], Bodies);
frames(Rest, Frames, Bodies) ->
    {lists:reverse(Frames), Bodies, {more, Rest}}.

left([], _, Out, Requests, State) ->
    {lists:reverse(Out), lists:reverse(Requests), State};
left([{?HEADERS, Flags, Id, Frame} | Frames], Bodies, Out, Requests, State) ->
    case head(Flags, Id, Frame, Bodies, State) of
        {known, Head, Body, Next} ->
            left(Frames, Bodies#{Id := taken}, [stands_for_it(Id) | Out],
                 [{Id, Head, Body} | Requests], Next);
        #state{last = Last} = Next ->
            left(Frames, Bodies, [Frame | Out], Requests, Next#state{last = max(Id, Last)})
    end;
left([{?DATA, _, Id, _} | Frames], Bodies, Out, Requests, State) when
    map_get(Id, Bodies) =:= taken
->
    left(Frames, Bodies, Out, Requests, State);
left([{?CONTINUATION, _, _, Frame} | Frames], Bodies, Out, Requests, State) ->
    left(Frames, Bodies, [Frame | Out], Requests, forgotten(State));
left([{_, _, _, Frame} | Frames], Bodies, Out, Requests, State) ->
    left(Frames, Bodies, [Frame | Out], Requests, State).

stands_for_it(Id) ->
    <<6:24, ?HEADERS, 2#101, Id:32, ?STANDS_FOR_IT>>.

%% The flags of a whole block: of a request with a body, with and without a priority, or of one
%% without a body, or of trailers.
head(2#100, Id, <<_:72, Block/binary>>, Bodies, State) ->
    begun(Id, Block, Bodies, State);
head(2#100100, Id, <<_:72, _:40, Block/binary>>, Bodies, State) ->
    begun(Id, Block, Bodies, State);
head(2#101, _, <<_:72, Block/binary>>, _, #state{candidate = Candidate} = State) ->
    passed(Block, Candidate, State);
head(2#100101, _, <<_:72, _:40, Block/binary>>, _, #state{candidate = Candidate} = State) ->
    passed(Block, Candidate, State);
head(_, _, _, _, State) ->
    forgotten(State).

begun(Id, Block, Bodies, #state{known = Known, last = Last, ahead = Ahead} = State) when
    Id > Last
->
    case {Known, Bodies} of
        {#{Block := {Length, Head}}, #{Id := <<Body/binary>>}} when
            byte_size(Body) =:= Length, Ahead + Length =< ?AHEAD
        ->
            {known, Head, Body, State#state{last = Id, ahead = Ahead + Length}};
        {#{Block := _}, _} ->
            State;
        _ ->
            passed(Block, {Id, Block}, State)
    end;
begun(_, Block, _, #state{candidate = Candidate} = State) ->
    passed(Block, Candidate, State).

%% A block that is left where it is, and what may be known next.
passed(Block, Candidate, State) ->
    case changes_nothing(Block) of
        true when byte_size(Block) =< ?BLOCK -> State#state{candidate = Candidate};
        true -> State;
        false -> forgotten(State)
    end.

forgotten(#state{known = Known, candidate = none} = State) when map_size(Known) =:= 0 -> State;
forgotten(State) -> State#state{known = #{}, candidate = none}.

%% Fields of the tables; fields that are spelled out and are not for the table.
changes_nothing(<<>>) -> true;
changes_nothing(<<1:1, Index/bits>>) -> behind_number(Index, 7, fun changes_nothing/1);
changes_nothing(<<0:3, _:1, 0:4, Name/binary>>) -> behind_string(Name, fun behind_value/1);
changes_nothing(<<0:3, _:1, Index/bits>>) -> behind_number(Index, 4, fun behind_value/1);
changes_nothing(_) -> false.

behind_value(Value) ->
    behind_string(Value, fun changes_nothing/1).

%% Numbers of more than two octets are nobody's: they would be of more than a block has.
behind_number(Bits, Prefix, Next) ->
    case number(Bits, Prefix) of
        {_, Rest} -> Next(Rest);
        none -> false
    end.

behind_string(<<_:1, Length/bits>>, Next) ->
    case number(Length, 7) of
        {Size, Rest} when byte_size(Rest) >= Size ->
            Next(binary:part(Rest, Size, byte_size(Rest) - Size));
        _ ->
            false
    end;
behind_string(_, _) ->
    false.

number(Bits, Prefix) ->
    Most = (1 bsl Prefix) - 1,
    case Bits of
        <<Most:Prefix, 0:1, More:7, Rest/binary>> -> {Most + More, Rest};
        <<Most:Prefix, 1:1, Low:7, 0:1, High:7, Rest/binary>> -> {Most + Low + 128 * High, Rest};
        <<Most:Prefix, _/binary>> -> none;
        <<Number:Prefix, Rest/binary>> -> {Number, Rest};
        _ -> none
    end.

-doc """
Whether the head of this request, which was left as it was, may become known: what it refers to has
not changed since.
""".
-spec is_candidate(cowboy_stream:streamid(), state()) -> boolean().
is_candidate(Id, #state{candidate = {Id, _}}) -> true;
is_candidate(_, _) -> false.

-doc "What that one's head comes to: the same octets are known from now on, with such a body.".
-spec learn(Length :: non_neg_integer(), head(), state()) -> state().
learn(Length, Head, #state{candidate = {_, Block}, known = Known} = State) ->
    Others = case map_size(Known) of
        ?BLOCKS -> #{};
        _ -> Known
    end,
    %% Not the whole of what was read with it.
    State#state{candidate = none, known = Others#{binary:copy(Block) => {Length, Head}}}.

-doc "So many octets of bodies are with who reads them, and as many more may be taken out.".
-spec handled(non_neg_integer(), state()) -> state().
handled(Octets, #state{ahead = Ahead} = State) ->
    State#state{ahead = Ahead - Octets}.
