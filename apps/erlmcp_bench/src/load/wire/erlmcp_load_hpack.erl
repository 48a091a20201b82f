-module(erlmcp_load_hpack).
-moduledoc """
The header blocks of one HTTP/2 connection. Pure.

A generator sends the same few lists of headers again and again, and gets the same few answers. What
it sends goes into the server's table while there is room in it, as browsers and h2load do, and is
never put out of it again; so a list of headers is soon a few bytes, always the same, which are made
once. An answer whose block is that of the answer before it is not read a second time; cowlib reads
the others.

Source: RFC 7541.
""".

-export([new/0, encode/3, literal/2, decode/2, table_size/2]).

-export_type([state/0]).

%% Bytes of a table, where nobody says.
-define(ROOM, 4096).

-record(hpack, {
    %% The headers in the server's table by their numbers, the bytes they count for there, and those
    %% that it has room for.
    table = #{} :: #{{binary(), binary()} => non_neg_integer()},
    used = 0 :: non_neg_integer(),
    room = ?ROOM :: non_neg_integer(),
    %% What the next block has to say of the table.
    update = [] :: iodata(),
    %% The blocks that were made since something was put into the table, by the caller's keys.
    made = #{} :: #{term() => {non_neg_integer(), binary()}},
    decoder = cow_hpack:init() :: cow_hpack:state(),
    %% The block that was read last, if it left the decoder's table as it was.
    block = none :: none | binary(),
    headers = [] :: cow_http:headers()
}).

-opaque state() :: #hpack{}.

%% Blocks that are kept: of the kinds of requests of a run and its sessions.
-define(KEPT, 256).
%% Headers of one response.
-define(HEADERS, #{max_headers => 256}).
%% The index of the newest header in the table, and what each counts for beside its bytes.
-define(NEWEST, 62).
-define(EACH, 32).

-doc "The tables at the beginning of a connection.".
-spec new() -> state().
new() ->
    #hpack{}.

-doc "The size of a block, and the block. The key stands for the headers: others have another one.".
-spec encode(Key :: term(), cow_http:headers(), state()) ->
    {Size :: non_neg_integer(), Block :: iodata(), state()}.
encode(Key, Headers, #hpack{made = Made, table = Before, update = Update} = State) ->
    case Made of
        #{Key := {Size, Block}} ->
            {Size, Block, State};
        #{} ->
            {Fields, #hpack{table = Table} = Next} = lists:mapfoldl(fun field/2, State, Headers),
            Block = iolist_to_binary([Update | Fields]),
            Size = byte_size(Block),
            Encoded = case {Update, Table} of
                {[], Before} when map_size(Made) < ?KEPT ->
                    Next#hpack{made = Made#{Key => {Size, Block}}};
                {_, _} ->
                    Next#hpack{update = [], made = #{}}
            end,
            {Size, Block, Encoded}
    end.

field({~":method", ~"POST"}, State) -> {[16#83], State};
field({~":scheme", ~"http"}, State) -> {[16#86], State};
field({~":scheme", ~"https"}, State) -> {[16#87], State};
field({Name, Value} = Header, #hpack{table = Table, used = Used, room = Room} = State) ->
    Number = map_size(Table),
    Needed = byte_size(Name) + byte_size(Value) + ?EACH,
    case Table of
        #{Header := At} ->
            {number(2#1, 7, ?NEWEST + Number - 1 - At), State};
        #{} when Used + Needed =< Room ->
            {[2#01000000, text(Name), text(Value)],
             State#hpack{table = Table#{Header => Number}, used = Used + Needed}};
        #{} ->
            {literal(Name, Value), State}
    end.

-doc """
A header for the end of a block, that is new each time and so is not put into the table (RFC 7541,
6.2.2).
""".
-spec literal(Name :: binary(), Value :: iodata()) -> iodata().
literal(Name, Value) ->
    [0, text(Name), text(Value)].

text(Bytes) ->
    [number(0, 7, iolist_size(Bytes)), Bytes].

%% A number behind bits that say what it is, in so many bits of a byte or more (RFC 7541, 5.1).
number(Kind, Bits, Number) ->
    case 1 bsl Bits - 1 of
        Max when Number < Max -> [Kind bsl Bits bor Number];
        Max -> [Kind bsl Bits bor Max | more(Number - Max)]
    end.

more(Rest) when Rest < 128 -> [Rest];
more(Rest) -> [128 + Rest rem 128 | more(Rest div 128)].

-doc "The headers of a block.".
-spec decode(binary(), state()) -> {ok, cow_http:headers(), state()} | error.
decode(Block, #hpack{block = Block, headers = Headers} = State) ->
    {ok, Headers, State};
decode(Part, #hpack{decoder = Decoder} = State) ->
    %% The table outlives what was received with it.
    Block = binary:copy(Part),
    %% What is wrong with a block cowlib says by failing, each time in another way.
    try cow_hpack:decode(Block, Decoder, ?HEADERS) of
        {Headers, Decoder} ->
            {ok, Headers, State#hpack{block = Block, headers = Headers}};
        {Headers, Changed} ->
            {ok, Headers, State#hpack{decoder = Changed, block = none}}
    catch
        error:_ -> error
    end.

-doc "The server keeps a table of no more than so many bytes.".
-spec table_size(non_neg_integer(), state()) -> state().
table_size(Size, #hpack{room = Room} = State) ->
    case min(Size, ?ROOM) of
        Room ->
            State;
        Now ->
            %% It is emptied, and begun anew.
            State#hpack{table = #{}, used = 0, room = Now, made = #{},
                        update = [number(2#001, 5, 0), number(2#001, 5, Now)]}
    end.
