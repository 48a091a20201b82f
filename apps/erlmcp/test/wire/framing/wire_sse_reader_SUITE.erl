-module(wire_sse_reader_SUITE).
-moduledoc """
WHATWG HTML, "Server-sent events", read from bytes that come in portions: `m:erlmcp_sse_reader`.
What the paragraphs say of whole streams is in `m:wire_sse_SUITE`.
""".

-compile(nowarn_missing_spec_documented).

-include_lib("proper/include/proper.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0]).
-export([examples/1, events_come_when_they_end/1, bound/1, over_is_over/1, last_id/1, retry/1,
         data_in_one_piece_is_not_copied/1, lets_go_of_the_chunk/1, memory_for_single_bytes/1,
         time_is_linear/1, any_cut_gives_the_same/1, like_the_paragraphs/1]).

-import(erlmcp_test_chunks, [cut/2]).

all() ->
    [examples, events_come_when_they_end, bound, over_is_over, last_id, retry,
     data_in_one_piece_is_not_copied, lets_go_of_the_chunk, memory_for_single_bytes,
     time_is_linear, any_cut_gives_the_same, like_the_paragraphs].

%% What is not linear would run for hours.
suite() ->
    [{timetrap, {minutes, 4}}].

examples(_) ->
    erlmcp_test_doctests:run([erlmcp_sse_reader]).

%% At the line end of the blank line, not at what follows it.
events_come_when_they_end(_) ->
    [?assertEqual(Expected, [length(Events) || Events <- feed(100, Chunks)], Chunks)
     || {Expected, Chunks} <- [
            {[0, 1], [~"data: a\n", ~"\n"]},
            {[0, 1, 0, 0, 1], [~"data: a\r", ~"\r", ~"\n", ~"data: b\r\n", ~"\r"]},
            {[0, 1, 1], [~"data: a\r\n", ~"\r\ndata: b\r\n", ~"\r\n"]},
            {[2], [~"data: a\n\ndata: b\n\ndata: c\n"]}]].

bound(_) ->
    [?assertEqual(Expected, flat(5, Chunks), Chunks)
     || {Expected, Chunks} <- [
            {[~"12345"], [~"data: 12345\n\n"]},
            {[~"12345"], [~"data:12345\n\n"]},
            {[~"12\n45"], [~"data: 12\ndata: 45\n\n"]},
            {[{too_large, 5}], [~"data: 123456\n\n"]},
            {[{too_large, 5}], [~"data: 123", ~"456789"]},
            {[{too_large, 5}], [~"data: 12\ndata: 456\n\n"]},
            {[~"1", {too_large, 5}], [~"data: 1\n\ndata: 234567\n\ndata: 8\n\n"]},
            %% Of other lines too, or a server could send a comment without end.
            {[{too_large, 5}], [~": 234567890", ~"12345"]},
            {[~"1"], [~": 234567890\n\ndata: 1\n\n"]},
            %% Wherever they stand.
            {[~"12345"], [~"id: 4567890\ndata: 12345\n\n"]},
            {[~"12345"], [~"data: 12345\nid: 4567890\n\n"]},
            {[~"12345"], [~"data: 12345\n: 34", ~"567890", ~"1\n\n"]},
            {[{too_large, 5}], [~"data: 12345\nid: 45678901\n\n"]},
            {[{too_large, 5}], [~"data: 12345\n: 34", ~"5678901", ~"2"]}]].

over_is_over(_) ->
    {_, Over} = erlmcp_sse_reader:push(~"id: 1\n\ndata: 123456\n\n", erlmcp_sse_reader:new(5)),
    {[], Still} = erlmcp_sse_reader:push(~"\n\nid: 2\ndata: 1\n\n", Over),
    ?assertEqual(~"1", erlmcp_sse_reader:last_id(Still)).

%% "If the user agent has to reconnect", it is to where the last whole event was.
last_id(_) ->
    Longest = binary:copy(~"i", 4096),
    [?assertEqual(Expected, erlmcp_sse_reader:last_id(push(5000, Chunks)), Chunks)
     || {Expected, Chunks} <- [{~"", [~"data: a\n\n"]}, {~"", [~"id: 1\n"]},
                               {~"1", [~"id: 1\n\n"]}, {~"1", [~"id: 1\n\nid: 2\ndata: x\n"]},
                               {~"", [~"id: 1\n\nid\n\n"]},
                               {~"1", [~"id: 1\n\nid: 2", <<0>>, ~"\n\n"]},
                               {Longest, [~"id: 1\n\nid: ", Longest, ~"\n\n"]},
                               {~"1", [~"id: 1\n\nid: i", Longest, ~"\n\n"]}]].

retry(_) ->
    [?assertEqual(Expected, erlmcp_sse_reader:retry(push(100, [Bytes])), Bytes)
     || {Expected, Bytes} <- [{none, ~"data: a\n\n"}, {{ok, 0}, ~"retry: 0\n"},
                              {{ok, 7}, ~"retry: 7\nretry: 7s\nretry: -1\nretry\n"},
                              {none, <<"retry: ", (binary:copy(~"9", 40))/binary, "\n">>}]].

data_in_one_piece_is_not_copied(_) ->
    Body = binary:copy(~"x", 10_000),
    Bytes = <<"data: ", Body/binary, "\n\n">>,
    {[#{data := Body = Data}], _} = erlmcp_sse_reader:push(Bytes, erlmcp_sse_reader:new(20_000)),
    ?assertEqual(byte_size(Bytes), binary:referenced_byte_size(Data)).

lets_go_of_the_chunk(_) ->
    Big = binary:copy(~"data: 0123456\n\n", 1 bsl 16),
    Tail = binary:copy(~"r", 100),
    Begun = <<"id: ", Tail/binary, "\ndata: ", Tail/binary>>,
    {_, State} = erlmcp_sse_reader:push(<<Big/binary, Begun/binary>>,
                                        erlmcp_sse_reader:new(1000)),
    {[#{data := Data, id := Id}], _} = erlmcp_sse_reader:push(~"\n\n", State),
    [?assert(binary:referenced_byte_size(Kept) < 1000) || Kept <- [Data, Id]].

memory_for_single_bytes(_) ->
    erlmcp_test_chunks:is_compact(erlmcp_sse_reader, [~"data: "], fun(Size, State) ->
        {[#{data := Data}], _} = erlmcp_sse_reader:push(~"\n\n", State),
        ?assertEqual(Size, byte_size(Data))
    end).

time_is_linear(_) ->
    erlmcp_test_chunks:is_linear(erlmcp_sse_reader,
                                 [{~"x", 20_000}, {binary:copy(~"x", 1460), 250},
                                  {~"data: x\n", 20_000}, {~"data: x\r\r", 10_000}]).

any_cut_gives_the_same(_) ->
    check(?FORALL({Pieces, Cuts, Max}, {list(piece()), list(range(1, 9)), range(1, 12)},
                  begin
                      Bytes = iolist_to_binary(Pieces),
                      Whole = outcome(Max, [Bytes]),
                      Whole =:= outcome(Max, cut(Bytes, Cuts)) andalso
                          Whole =:= outcome(Max, [<<Byte>> || <<Byte>> <= Bytes])
                  end)).

%% With a bound that nothing reaches: line by line what the paragraphs say.
like_the_paragraphs(_) ->
    check(?FORALL({Pieces, Cuts}, {list(piece()), list(range(1, 9))},
                  begin
                      Bytes = iolist_to_binary(Pieces),
                      Read = lists:append(feed(1_000_000, cut(Bytes, Cuts))),
                      Read =:= interpreted(Bytes)
                  end)).

interpreted(<<16#EF, 16#BB, 16#BF, Bytes/binary>>) ->
    interpreted(lines(Bytes), #{id => ~""}, none, ~"message");
interpreted(Bytes) ->
    interpreted(lines(Bytes), #{id => ~""}, none, ~"message").

%% What follows the last line end is no line.
lines(Bytes) ->
    lists:droplast(re:split(<<Bytes/binary, "rest">>, "\r\n|\n|\r")).

interpreted([], _, _, _) ->
    [];
interpreted([~"" | Lines], Stream, none, _) ->
    interpreted(Lines, Stream, none, ~"message");
interpreted([~"" | Lines], Stream, Data, Name) ->
    [Stream#{data => iolist_to_binary(lists:join(~"\n", lists:reverse(Data))), event => Name}
     | interpreted(Lines, Stream, none, ~"message")];
interpreted([Line | Lines], Stream, Data, Name) ->
    {Field, Value} = case binary:split(Line, ~":") of
        [Whole] -> {Whole, ~""};
        [Before, <<" ", After/binary>>] -> {Before, After};
        [Before, After] -> {Before, After}
    end,
    case Field of
        ~"data" when Data =:= none -> interpreted(Lines, Stream, [Value], Name);
        ~"data" -> interpreted(Lines, Stream, [Value | Data], Name);
        ~"event" when Value =:= ~"" -> interpreted(Lines, Stream, Data, ~"message");
        ~"event" -> interpreted(Lines, Stream, Data, Value);
        ~"id" -> interpreted(Lines, Stream#{id := Value}, Data, Name);
        ~"retry" ->
            case re:run(Value, "^[0-9]+$", [dollar_endonly, {capture, none}]) of
                match ->
                    interpreted(Lines, Stream#{retry => binary_to_integer(Value)}, Data, Name);
                nomatch ->
                    interpreted(Lines, Stream, Data, Name)
            end;
        _ -> interpreted(Lines, Stream, Data, Name)
    end.

piece() ->
    frequency([{4, ~"\n"}, {2, ~"\r\n"}, {2, ~"\r"}, {4, ~"data:"}, {2, ~"data: "}, {2, ~"id: "},
               {1, ~"event:"}, {1, ~"retry: "}, {1, ~"1"}, {1, ~":"}, {2, ~" "}, {2, ~"x"},
               {1, ~"yz"}, {1, <<16#EF, 16#BB, 16#BF>>}]).

outcome(Max, Chunks) ->
    State = push(Max, Chunks),
    {lists:append(feed(Max, Chunks)), erlmcp_sse_reader:last_id(State),
     erlmcp_sse_reader:retry(State)}.

flat(Max, Chunks) ->
    [case Event of
         #{data := Data} -> Data;
         {too_large, _} = Over -> Over
     end || Event <- lists:append(feed(Max, Chunks))].

feed(Max, Chunks) ->
    erlmcp_test_chunks:feed(erlmcp_sse_reader, Max, Chunks).

push(Max, Chunks) ->
    erlmcp_test_chunks:push(erlmcp_sse_reader, Max, Chunks).

check(Property) ->
    erlmcp_test_property:holds(Property, 3000).
