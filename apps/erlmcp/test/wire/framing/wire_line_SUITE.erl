-module(wire_line_SUITE).
-moduledoc """
Newline framing: the same lines however the bytes are cut, a bound that holds from its first byte
too many, and time and memory in proportion to what comes in.
""".

-compile(nowarn_missing_spec_documented).

-include_lib("proper/include/proper.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0]).
-export([examples/1, lines/1, carriage_returns/1, blank_lines/1, partial/1, end_of_input/1,
         bound/1, bound_and_carriage_return/1, reported_once/1, goes_on_after/1,
         memory_for_single_bytes/1, lets_go_of_the_chunk/1, time_is_linear/1,
         any_cut_gives_the_same/1, like_a_split/1]).

-import(erlmcp_test_chunks, [cut/2]).

all() ->
    [examples, lines, carriage_returns, blank_lines, partial, end_of_input, bound,
     bound_and_carriage_return, reported_once, goes_on_after, memory_for_single_bytes,
     lets_go_of_the_chunk, time_is_linear, any_cut_gives_the_same, like_a_split].

%% What is not linear would run for hours.
suite() ->
    [{timetrap, {minutes, 4}}].

examples(_Config) ->
    erlmcp_test_doctests:run([erlmcp_line]).

lines(_Config) ->
    ?assertEqual([[], [~"a"], [~"bc", ~"d"], [], [], [~"ef"]],
                 feed(10, [~"", ~"a\n", ~"bc\nd\ne", ~"", ~"f", ~"\n"])).

carriage_returns(_Config) ->
    ?assertEqual([[~"a", ~"b\r", ~"c\rd"]], feed(10, [~"a\r\nb\r\r\nc\rd\n"])),
    ?assertEqual([[], [~"a"]], feed(10, [~"a\r", ~"\n"])).

blank_lines(_Config) ->
    ?assertEqual([[~" a"]], feed(10, [~"\n\r\n \t\r\n\n a\n  \n"])),
    ?assertEqual([[], [], []], feed(10, [~" ", ~" ", ~"\n"])).

partial(_Config) ->
    [?assertEqual(Partial, erlmcp_line:is_partial(push(5, Chunks)), Chunks)
     || {Chunks, Partial} <- [{[], false}, {[~"a\n"], false}, {[~"a\nb"], true},
                              {[~"1234567"], true}, {[~"1234567", ~"8\n"], false}]].

end_of_input(_Config) ->
    [?assertEqual(Last, erlmcp_line:flush(push(10, Chunks)), Chunks)
     || {Chunks, Last} <- [
            {[], []},
            {[~"a\n"], []},
            {[~"a\nb"], [~"b"]},
            {[~"a\nb", ~"c\r"], [~"bc"]},
            {[~"a\n \r"], []},
            {[~"0123456789\r"], [~"0123456789"]},
            {[~"0123456789a"], []}
        ]].

bound(_Config) ->
    ?assertEqual([[~"12345"]], feed(5, [~"12345\n"])),
    ?assertEqual([[{too_large, 6}]], feed(5, [~"123456\n"])),
    ?assertEqual([[], [~"12345"]], feed(5, [~"12345", ~"\n"])),
    ?assertEqual([[], [{too_large, 6}], []], feed(5, [~"12345", ~"6", ~"\n"])),
    ?assertEqual([[~"1", {too_large, 9}, ~"2"]], feed(5, [~"1\n123456789\n2\n"])),
    %% It counts for blank lines too, or a peer could send spaces for ever.
    ?assertEqual([[], [{too_large, 6}]], feed(5, [~"     ", ~" "])).

bound_and_carriage_return(_Config) ->
    ?assertEqual([[~"12345"]], feed(5, [~"12345\r\n"])),
    ?assertEqual([[], [], [~"12345"]], feed(5, [~"12345", ~"\r", ~"\n"])),
    ?assertEqual([[], [], [{too_large, 7}]], feed(5, [~"12345", ~"\r", ~"6"])),
    ?assertEqual([[], [], [{too_large, 6}]], feed(5, [~"12345", ~"\r", ~"\r"])).

reported_once(_Config) ->
    ?assertEqual([[], [{too_large, 8}], [], [], [], []],
                 feed(5, [~"1234", ~"5678", ~"9", ~"\r", ~"12345678901234567890", ~"1\n"])).

goes_on_after(_Config) ->
    ?assertEqual([[{too_large, 8}], [~"ok", {too_large, 7}], [~"too"]],
                 feed(5, [~"12345678", ~"9\nok\n1234567", ~"8\r\n\ntoo\n"])),
    ?assertEqual([], erlmcp_line:flush(push(5, [~"12345678", ~"9"]))).

memory_for_single_bytes(_Config) ->
    erlmcp_test_chunks:is_compact(erlmcp_line, [], fun(Size, State) ->
        ?assertEqual([binary:copy(~"x", Size)], erlmcp_line:flush(State))
    end).

lets_go_of_the_chunk(_Config) ->
    Chunk = binary:copy(~"0123456789abcde\n", 1 bsl 16),
    {_, State} = erlmcp_line:push(<<Chunk/binary, (binary:copy(~"r", 100))/binary>>,
                                  erlmcp_line:new(1000)),
    [Rest] = erlmcp_line:flush(State),
    ?assertEqual(100, byte_size(Rest)),
    ?assert(binary:referenced_byte_size(Rest) < 1000).

time_is_linear(_Config) ->
    erlmcp_test_chunks:is_linear(erlmcp_line, [{~"x", 50_000}, {binary:copy(~"x", 1460), 1000},
                                               {~"line\n", 50_000}]).

any_cut_gives_the_same(_Config) ->
    check(?FORALL({Pieces, Cuts, Max}, {list(piece()), list(range(1, 9)), range(1, 8)},
                  begin
                      Bytes = iolist_to_binary(Pieces),
                      Whole = outcome(Max, [Bytes]),
                      Whole =:= outcome(Max, cut(Bytes, Cuts)) andalso
                          Whole =:= outcome(Max, [<<Byte>> || <<Byte>> <= Bytes])
                  end)).

%% With a bound that nothing reaches it is what binary:split/3 makes of it.
like_a_split(_Config) ->
    check(?FORALL({Pieces, Cuts}, {list(piece()), list(range(1, 9))},
                  begin
                      Bytes = iolist_to_binary(Pieces),
                      Expected = [Line || Part <- binary:split(Bytes, ~"\n", [global]),
                                          Line <- [without_return(Part)],
                                          string:trim(Line) =/= ~""],
                      Expected =:= outcome(1_000_000, cut(Bytes, Cuts))
                  end)).

without_return(Line) ->
    case binary:longest_common_suffix([Line, ~"\r"]) of
        0 -> Line;
        1 -> binary:part(Line, 0, byte_size(Line) - 1)
    end.

piece() ->
    frequency([{3, ~"\n"}, {1, ~"\r\n"}, {1, ~"\r"}, {1, ~" "}, {4, ~"x"}, {2, ~"yz"},
               {1, ~"12345678"}]).

%% How much of a line over the bound had come by its report is a matter of the cut.
outcome(Max, Chunks) ->
    [case Line of
         {too_large, Observed} when Observed > Max -> too_large;
         _ -> Line
     end || Line <- lists:append(feed(Max, Chunks)) ++ erlmcp_line:flush(push(Max, Chunks))].

feed(Max, Chunks) ->
    erlmcp_test_chunks:feed(erlmcp_line, Max, Chunks).

push(Max, Chunks) ->
    erlmcp_test_chunks:push(erlmcp_line, Max, Chunks).

check(Property) ->
    ?assert(proper:quickcheck(Property, [{to_file, user}, {numtests, 2000}])).
