-module(erlmcp_load_hpack).
-moduledoc """
The header blocks of one HTTP/2 connection (RFC 7541). Pure.

Sent headers go into the server's table while it has room, and later ones do not evict them. So a
header list that is sent again and again soon becomes a few constant bytes, which are encoded once.
""".

-export([new/0, encode/3, literal/2, decode/2, table_size/2]).

-export_type([state/0]).

%% The default size of a table, in bytes.
-define(ROOM, 4096).

-record(hpack, {
    %% The headers in the server's table with their numbers, the bytes that they use there, and the
    %% bytes that it has room for.
    table = #{} :: #{{binary(), binary()} => non_neg_integer()},
    used = 0 :: non_neg_integer(),
    room = ?ROOM :: non_neg_integer(),
    %% The table update that begins the next block.
    update = [] :: iodata(),
    %% Encoded blocks since the last change of the table, by the caller's keys.
    made = #{} :: #{term() => {non_neg_integer(), binary()}},
    decoder = cow_hpack:init() :: cow_hpack:state(),
    %% The last decoded block, if it did not change the decoder's table.
    block = none :: none | binary(),
    headers = [] :: cow_http:headers()
}).

-opaque state() :: #hpack{}.

%% The most cached blocks: one for each kind of request and each session.
-define(KEPT, 256).
%% The most headers of one response.
-define(HEADERS, #{max_headers => 256}).
%% The index of the newest header in the table, and the bytes that each entry costs in addition to
%% its own.
-define(NEWEST, 62).
-define(EACH, 32).

-doc "Returns the state of a new connection, with empty header tables.".
-spec new() -> state().
new() ->
    #hpack{}.

-doc """
Encodes a header list. Returns the block and its size. `Key` stands for the list: calls with the
same key must have equal lists.
""".
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
Encodes a header without putting it into the table (RFC 7541, 6.2.2). This function suits a header
whose value is new each time.
""".
-spec literal(Name :: binary(), Value :: iodata()) -> iodata().
literal(Name, Value) ->
    [0, text(Name), text(Value)].

text(Bytes) ->
    [number(0, 7, iolist_size(Bytes)), Bytes].

%% A number after bits for its kind, in the last `Bits` bits of a byte and more bytes (RFC 7541,
%% 5.1).
number(Kind, Bits, Number) ->
    case 1 bsl Bits - 1 of
        Max when Number < Max -> [Kind bsl Bits bor Number];
        Max -> [Kind bsl Bits bor Max | more(Number - Max)]
    end.

more(Rest) when Rest < 128 -> [Rest];
more(Rest) -> [128 + Rest rem 128 | more(Rest div 128)].

-doc "Decodes a header block. Returns `error` if it is not valid, or has more than 256 headers.".
-spec decode(binary(), state()) -> {ok, cow_http:headers(), state()} | error.
decode(Block, #hpack{block = Block, headers = Headers} = State) ->
    {ok, Headers, State};
decode(Part, #hpack{decoder = Decoder} = State) ->
    %% The table outlives the received packet.
    Block = binary:copy(Part),
    %% cowlib crashes on an invalid block, for various reasons.
    try cow_hpack:decode(Block, Decoder, ?HEADERS) of
        {Headers, Decoder} ->
            {ok, Headers, State#hpack{block = Block, headers = Headers}};
        {Headers, Changed} ->
            {ok, Headers, State#hpack{decoder = Changed, block = none}}
    catch
        error:_ -> error
    end.

-doc """
Limits the server's table to `Size` bytes, at most 4096. A new limit empties the table, and the next
block of `encode/3` announces the limit.
""".
-spec table_size(Size :: non_neg_integer(), state()) -> state().
table_size(Size, #hpack{room = Room} = State) ->
    case min(Size, ?ROOM) of
        Room ->
            State;
        Now ->
            %% The table is emptied and filled again.
            State#hpack{table = #{}, used = 0, room = Now, made = #{},
                        update = [number(2#001, 5, 0), number(2#001, 5, Now)]}
    end.
