-module(wire_sse_SUITE).
-moduledoc """
WHATWG HTML, "Server-sent events": what `m:erlmcp_sse` writes, and the paragraphs of "Parsing an
event stream" and "Interpreting an event stream" that `m:erlmcp_sse_reader` reads by.
""".

-compile(nowarn_missing_spec_documented).

-include_lib("proper/include/proper.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([suite/0, all/0]).
-export([examples/1, writes/1, splits_data/1, refuses_injection/1, keeps_alive/1, line_ends/1,
         byte_order_mark/1, data_lines/1, spaces/1, comments/1, fields/1, retry/1, last_event_id/1,
         incomplete/1, specification_examples/1, round_trip/1, never_crashes/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [examples, writes, splits_data, refuses_injection, keeps_alive, line_ends, byte_order_mark,
     data_lines, spaces, comments, fields, retry, last_event_id, incomplete,
     specification_examples, round_trip, never_crashes].

examples(_Config) ->
    erlmcp_test_doctests:run([erlmcp_sse]).

writes(_Config) ->
    [?assertEqual(Bytes, iolist_to_binary(erlmcp_sse:event(Event)))
     || {Bytes, Event} <- [
            {~"data: {}\n\n", ~"{}"},
            {~"data: {}\n\n", ["{", [~"}"]]},
            {~"data: {}\n\n", #{data => ["{", [~"}"]]}},
            {~"data: \n\n", #{data => ~""}},
            {~"event: tick\nid: 7\nretry: 0\ndata: x\n\n",
             #{data => ~"x", event => ~"tick", id => ~"7", retry => 0}}
        ]].

splits_data(_Config) ->
    ?assertEqual(~"data: a\ndata: b\ndata: c\ndata: \ndata: d\ndata: \n\n",
                 iolist_to_binary(erlmcp_sse:event(#{data => ~"a\nb\r\nc\r\rd\n"}))).

refuses_injection(_Config) ->
    [?assertError(badarg, erlmcp_sse:event(#{data => ~"x", Field => <<"a", End, "data: y">>}))
     || Field <- [event, id], End <- "\n\r\0"].

keeps_alive(_Config) ->
    Comment = iolist_to_binary(erlmcp_sse:comment()),
    ?assertMatch(<<":", _/binary>>, Comment),
    ?assertEqual([message(~"x")], events(<<Comment/binary, "data:x\n\n">>)).

%% "Lines must be separated by either a CRLF pair, a single LF, or a single CR."
line_ends(_Config) ->
    [?assertEqual([message(~"a\nb"), message(~"c")],
                  events(iolist_to_binary(
                      ["data:a", End, "data:b", End, End, "data:c", End, End])))
     || End <- ["\n", "\r", "\r\n"]],
    ?assertEqual([message(~"a\nb")], events(~"data:a\r\ndata:b\r\n\r")),
    ?assertEqual([message(~"a")], events(~"data:a\n\r\n")).

%% "one leading U+FEFF BYTE ORDER MARK character must be ignored if any are present"
byte_order_mark(_Config) ->
    Bom = <<16#FEFF/utf8>>,
    ?assertEqual([message(~"x")], events(<<Bom/binary, "data:x\n\n">>)),
    ?assertEqual([], events(<<Bom/binary, Bom/binary, "data:x\n\n">>)),
    ?assertEqual([message(Bom)], events(<<"data:", Bom/binary, "\n\n">>)).

%% "Append the field value to the data buffer, then append a single LF character"
data_lines(_Config) ->
    ?assertEqual([message(~"a\n\nb")], events(~"data:a\ndata\ndata: b\n\n")),
    ?assertEqual([message(~"")], events(~"data\n\n")),
    ?assertEqual([message(~"\n")], events(~"data\ndata\n\n")),
    %% "If the data buffer is an empty string, set the data buffer and the event type buffer to the
    %% empty string and return."
    ?assertEqual([message(~"x")], events(~"event:lost\n\ndata:x\n\n")),
    ?assertEqual([], events(~"\n\n\n")).

%% "If value starts with a U+0020 SPACE character, remove it from value."
spaces(_Config) ->
    ?assertEqual([message(~" x ")], events(~"data:  x \n\n")),
    ?assertEqual([message(~"\tx")], events(~"data:\tx\n\n")),
    ?assertEqual([], events(~" data:x\n\n")),
    ?assertEqual([], events(~"data :x\n\n")).

%% "If the line starts with a U+003A COLON character (:): Ignore the line."
comments(_Config) ->
    ?assertEqual([message(~"a\nb")], events(~"data:a\n: no\n:\n:data:no\ndata:b\n\n")).

%% "The field is ignored."
fields(_Config) ->
    ?assertEqual([message(~"a:b")], events(~"data:a:b\nDATA:no\nfoo:no\nbar\n\n")),
    ?assertEqual([#{data => ~"x", event => ~"b", id => ~""}, message(~"y")],
                 events(~"event:a\nevent: b\ndata:x\n\nevent\ndata:y\n\n")).

%% "If the field value consists of only ASCII digits, then interpret the field value as an integer"
retry(_Config) ->
    [?assertEqual([Expected], events(<<"retry:", Value/binary, "\ndata:x\n\n">>), Value)
     || {Value, Expected} <- [
            {~"0", (message(~"x"))#{retry => 0}},
            {~" 2500", (message(~"x"))#{retry => 2500}},
            {~"", message(~"x")},
            {~"-1", message(~"x")},
            {~"1.5", message(~"x")},
            {~"1 ", message(~"x")},
            {binary:copy(~"9", 100_000), message(~"x")}
        ]],
    ?assertEqual([(message(~"x"))#{retry => 5}, (message(~"y"))#{retry => 5}],
                 events(~"retry:5\n\ndata:x\n\ndata:y\n\n")).

%% "If the field value does not contain U+0000 NULL, then set the last event ID buffer to the field
%% value. Otherwise, ignore the field." The buffer is not reset between events.
last_event_id(_Config) ->
    ?assertEqual([~"1", ~"1", ~"3", ~""],
                 ids(~"id:1\ndata\n\nid:2\0\ndata\n\nid:3\n\ndata\n\nid\ndata\n\n")).

ids(Body) ->
    [Id || #{id := Id} <- events(Body)].

%% "Once the end of the file is reached, any pending data must be discarded."
incomplete(_Config) ->
    [?assertEqual([message(~"a")], events(<<"data:a\n\n", Rest/binary>>), Rest)
     || Rest <- [~"", ~"data:b", ~"data:b\n", ~"data:b\r\n", ~"data:b\n:", ~"data:b\nid:1"]],
    ?assertEqual([], events(~"")).

%% The examples that follow "Interpreting an event stream".
specification_examples(_Config) ->
    ?assertEqual([message(~"YHOO\n+2\n10")],
                 events(~"data: YHOO\ndata: +2\ndata: 10\n\n")),
    ?assertEqual(
        [(message(~"first event"))#{id => ~"1"}, message(~"second event"),
         message(~" third event")],
        events(~"""
        : test stream

        data: first event
        id: 1

        data:second event
        id

        data:  third event


        """)),
    ?assertEqual([message(~""), message(~"\n")], events(~"data\n\ndata\ndata\n\ndata:")),
    ?assertEqual([message(~"test"), message(~"test")],
                 events(~"data:test\n\ndata: test\n\n")).

events(Body) -> erlmcp_test_http:read_events(Body).

message(Data) ->
    #{data => Data, event => ~"message", id => ~""}.

%% What is written is read again, however many keep-alives stand in between.
round_trip(_Config) ->
    check(?FORALL(Events, list({event(), range(0, 2)}),
                  begin
                      Body = [[erlmcp_sse:event(Event), lists:duplicate(N, erlmcp_sse:comment())]
                              || {Event, N} <- Events],
                      {Expected, _} = lists:mapfoldl(fun received/2, #{}, [E || {E, _} <- Events]),
                      Expected =:= events(iolist_to_binary(Body))
                  end),
          1000).

%% The event as it arrives, and what of it stays with the stream.
received(#{data := Data} = Event, Stream) ->
    Kept = maps:merge(Stream, maps:with([id, retry], Event)),
    Read = #{data => iolist_to_binary(string:replace(Data, ~"\r\n", ~"\n", all)),
             event => maps:get(event, Event, ~"message")},
    {maps:merge(#{id => ~""}, maps:merge(Kept, Read)), Kept}.

event() ->
    ?LET({Data, Optional}, {text(["a", "b", ":", " ", "\n", "\r\n"]), list(field())},
         maps:merge(maps:from_list(Optional), #{data => Data})).

field() ->
    oneof([{id, text("12: ")}, {event, ?SUCHTHAT(Name, text("xy: "), Name =/= ~"")},
           {retry, range(0, 999_999)}]).

text(Characters) ->
    ?LET(Text, list(elements(Characters)), iolist_to_binary(Text)).

never_crashes(_Config) ->
    Fragment = elements([~"data", ~"id", ~"event", ~"retry", ~":", ~" ", ~"\n", ~"\r", ~"1", <<0>>,
                         ~"x", <<16#FF>>, <<16#EF, 16#BB, 16#BF>>]),
    check(?FORALL(Fragments, list(Fragment),
                  lists:all(fun(Event) -> is_binary(maps:get(data, Event)) end,
                            events(iolist_to_binary(Fragments)))),
          2000).

check(Property, Tests) ->
    ?assert(proper:quickcheck(Property, [{to_file, user}, {numtests, Tests}])).
