-module(load_lines_SUITE).
-moduledoc "The wire of lines: which line is which event, and that a line too long is an error.".

-export([suite/0, all/0]).
-export([lines_are_events/1, a_line_is_bounded/1]).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [lines_are_events, a_line_is_bounded].

lines_are_events(_) ->
    Reply = ~B'{"jsonrpc":"2.0","id":1000000007,"result":{}}',
    Stray = ~B'{"jsonrpc":"2.0","id":null,"error":{}}',
    Message = ~B'{"jsonrpc":"2.0","method":"notifications/message"}',
    {ok, [{reply, 7, none, Reply}, {stray, Stray}], ~"", State} =
        erlmcp_load_lines:received(<<Reply/binary, "\n", Stray/binary, "\n{">>,
                                   erlmcp_load_lines:new(#{})),
    <<"{", Rest/binary>> = Message,
    {ok, [{message, Message}], ~"", _} = erlmcp_load_lines:received(<<Rest/binary, "\n">>, State).

%% At the bound, and one byte beyond it. The replies before it count.
a_line_is_bounded(_) ->
    Reply = ~B'{"jsonrpc":"2.0","id":1000000000,"result":{}}',
    Wire = erlmcp_load_lines:new(#{max_bytes => 50}),
    Full = binary:copy(~"x", 50),
    {ok, [{reply, 0, none, Reply}, _], ~"", _} =
        erlmcp_load_lines:received(<<Reply/binary, "\n", Full/binary, "\n">>, Wire),
    [{error, too_large, [{reply, 0, none, Reply}]} =
         erlmcp_load_lines:received(<<Reply/binary, "\n", Full/binary, More/binary>>, Wire)
     || More <- [~"x", ~"x\n", <<"x\n", Reply/binary, "\n">>]].
