-module(load_http2_SUITE).
-moduledoc """
The load generator's HTTP/2, against cowlib's own server side: what one sends the other must read,
however it is cut into pieces.
""".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0]).
-export([requests_arrive_whole/1, replies_arrive_whole_however_cut/1, blocks_are_made_once/1,
         a_changing_header_changes/1, a_delete_has_no_body/1, streams_wait_for_room/1,
         another_window_is_for_what_was_begun_too/1,
         settings_come_first/1, pings_and_settings_are_answered/1, a_reset_fails_its_request/1,
         a_goaway_fails_what_was_not_read/1, an_answer_ends_the_sending/1, abandoned_is_reset/1,
         events_are_given_as_they_come/1, sessions_are_named/1, interim_answers_are_none/1,
         what_is_no_status_fails_its_request/1, too_much_is_refused/1,
         a_large_event_fails_its_request/1, the_window_is_opened_again/1, nonsense_is_an_error/1,
         large_heads_are_continued/1, tables_are_as_small_as_the_server_says/1,
         a_goaway_fails_what_was_not_sent/1, long_streams_of_events_have_room/1]).
-export([prop_requests/0, prop_replies/0]).

-define(OPTIONS, #{authority => ~"localhost:1", path => ~"/mcp", scheme => http}).
-define(SERVER, #{preface_timeout => infinity, settings_timeout => infinity}).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [requests_arrive_whole, replies_arrive_whole_however_cut, blocks_are_made_once,
     a_changing_header_changes, a_delete_has_no_body, streams_wait_for_room,
     another_window_is_for_what_was_begun_too, settings_come_first,
     pings_and_settings_are_answered, a_reset_fails_its_request, a_goaway_fails_what_was_not_read,
     an_answer_ends_the_sending, abandoned_is_reset, events_are_given_as_they_come,
     sessions_are_named, interim_answers_are_none, what_is_no_status_fails_its_request,
     too_much_is_refused, a_large_event_fails_its_request, the_window_is_opened_again,
     nonsense_is_an_error,
     large_heads_are_continued, tables_are_as_small_as_the_server_says,
     a_goaway_fails_what_was_not_sent, long_streams_of_events_have_room].

requests_arrive_whole(_) ->
    erlmcp_test_property:holds(prop_requests(), 100).

%% Whatever the server's windows and frames, every request comes to it as it is.
prop_requests() ->
    ?FORALL({Sizes, Window, Frame, Streams},
            {non_empty(list(size())), oneof([0, 1, 1000, 65_535, 1_000_000]),
             oneof([16_384, 20_000, 1_000_000]), range(1, 5)},
            begin
                Settings = #{initial_stream_window_size => Window, max_frame_size_received => Frame,
                             max_concurrent_streams => Streams},
                Bodies = [binary:copy(<<($a + N rem 26)>>, Size)
                          || {N, Size} <- lists:enumerate(Sizes)],
                Requests = lists:enumerate(0, Bodies),
                {Wire, Server} = greeted(Settings),
                {Sent, All} = lists:foldl(
                    fun({Tag, Body}, {Wire0, Server0}) ->
                        {Bytes, Wire1} = erlmcp_load_http2:request(Tag, template(Body, []), Wire0),
                        {Wire1, server_reads(iolist_to_binary(Bytes), Server0)}
                    end, {Wire, Server}, Requests),
                {Replies, Read} = exchange(Sent, All, [], #{}),
                Expected = #{Tag => iolist_to_binary(body(Tag, Body)) || {Tag, Body} <- Requests},
                Read =:= Expected andalso lists:sort(Replies)
                    =:= [{reply, Tag, 200, ~"ok"} || {Tag, _} <- Requests]
            end).

size() ->
    oneof([range(0, 100), range(16_300, 16_400), range(60_000, 70_000), range(0, 200_000)]).

%% The server reads what came, answers what it has read, and gives all the room it has.
exchange(Wire, #{machine := Machine0, out := Out0, bodies := Bodies} = Server, Replies, Read) ->
    {Machine, Out, Whole} = maps:fold(fun answered/3, {Machine0, Out0, []}, Bodies),
    Now = maps:merge(Read, #{Tag => Body || {_, Tag, Body} <- Whole}),
    Left = maps:without([Id || {Id, _, _} <- Whole], Bodies),
    case iolist_to_binary(Out) of
        ~"" ->
            {Replies, Now};
        Bytes ->
            {ok, Events, ToSend, Next} = erlmcp_load_http2:received(Bytes, Wire),
            exchange(Next, server_reads(iolist_to_binary(ToSend),
                                        Server#{machine := Machine, out := [], bodies := Left}),
                     Replies ++ Events, Now)
    end.

answered(Id, {Body, fin}, {Machine0, Out, Whole}) ->
    #{~"id" := Number} = json:decode(Body),
    {ok, nofin, Block, Machine1} = cow_http2_machine:prepare_headers(
        Id, Machine0, nofin, #{status => 200}, []),
    {send, [{Id, fin, [{data, ~"ok"}]}], Machine} =
        cow_http2_machine:send_or_queue_data(Id, Machine1, fin, {data, ~"ok"}),
    {Machine, [Out, cow_http2:headers(Id, nofin, Block), cow_http2:data(Id, fin, ~"ok")],
     [{Id, erlmcp_load_wire:tag(Number), Body} | Whole]};
answered(Id, {_, nofin}, {Machine0, Out, Whole}) ->
    {Machine1, More} = widened(cow_http2_machine:ensure_window(50_000, Machine0), Machine0,
                               fun cow_http2:window_update/1),
    {Machine, Most} = widened(cow_http2_machine:ensure_window(Id, 50_000, Machine1), Machine1,
                              fun(Size) -> cow_http2:window_update(Id, Size) end),
    {Machine, [Out, More, Most], Whole}.

widened(ok, Machine, _) -> {Machine, []};
widened({ok, Size, Machine}, _, Frame) -> {Machine, Frame(Size)}.

replies_arrive_whole_however_cut(_) ->
    erlmcp_test_property:holds(prop_replies(), 100).

%% Padding, priorities, continued blocks, unknown frames and pings between: the same events, whether
%% the bytes come at once or byte by byte.
prop_replies() ->
    ?FORALL({Replies, Cuts}, {non_empty(list(reply())), list(range(1, 5000))},
            begin
                {Wire, _} = awaiting(length(Replies)),
                Bytes = iolist_to_binary([cow_http2:settings(#{}) | replies(Replies)]),
                {ok, Expected, _, _} = erlmcp_load_http2:received(Bytes, Wire),
                Expected =:= [{reply, Tag, Status, iolist_to_binary(Parts)}
                              || {Tag, {Status, Parts, _}} <- lists:enumerate(0, Replies)]
                    andalso received_in(cut(Bytes, Cuts), Wire) =:= Expected
            end).

reply() ->
    {oneof([200, 202, 400, 503]), list(oneof([binary(), ?LET(N, range(0, 16_000),
                                                             binary:copy(~"x", N))])),
     {range(0, 255), boolean(), oneof([none, 1, 20])}}.

replies(Replies) ->
    {Frames, _} = lists:mapfoldl(
        fun({Number, {Status, Parts, Manner}}, Hpack) ->
            {Block, Next} = cow_hpack:encode([{~":status", integer_to_binary(Status)},
                                              {~"content-type", ~"application/json"},
                                              {~"x-number", integer_to_binary(Number div 3)}],
                                             Hpack),
            {reply(2 * Number + 1, iolist_to_binary(Block), Parts, Manner), Next}
        end, cow_hpack:init(), lists:enumerate(0, Replies)),
    Frames.

reply(Id, Block, Parts, {Pad, Priority, Split}) ->
    [head(Id, Block, Priority, Split), <<3:24, 77, 0, 0:32, "odd">>, cow_http2:ping(1),
     [padded(Id, Part, Pad) || Part <- Parts], cow_http2:data(Id, fin, ~"")].

head(Id, Block, true, _) ->
    <<(byte_size(Block) + 5):24, 1, 16#24, Id:32, 0:32, 15, Block/binary>>;
head(Id, Block, false, Split) when is_integer(Split), Split < byte_size(Block) ->
    <<Part:Split/binary, Rest/binary>> = Block,
    <<Split:24, 1, 0, Id:32, Part/binary, (byte_size(Rest)):24, 9, 4, Id:32, Rest/binary>>;
head(Id, Block, false, _) ->
    cow_http2:headers(Id, nofin, Block).

padded(Id, Part, Pad) ->
    <<(byte_size(Part) + Pad + 1):24, 0, 8, Id:32, Pad, Part/binary, 0:Pad/unit:8>>.

cut(Bytes, []) -> [<<Byte>> || <<Byte>> <= Bytes];
cut(Bytes, Cuts) -> cut(Bytes, Cuts, Cuts).

cut(Bytes, [Size | _], _) when byte_size(Bytes) =< Size -> [Bytes];
cut(Bytes, [], Cuts) -> cut(Bytes, Cuts, Cuts);
cut(Bytes, [Size | Sizes], Cuts) ->
    <<Part:Size/binary, Rest/binary>> = Bytes,
    [Part | cut(Rest, Sizes, Cuts)].

received_in(Parts, Wire) ->
    {Events, _} = lists:foldl(
        fun(Part, {Before, State}) ->
            {ok, Events, _, Next} = erlmcp_load_http2:received(Part, State),
            {Before ++ Events, Next}
        end, {[], Wire}, Parts),
    Events.

%% HPACK.

blocks_are_made_once(_) ->
    [One, Other] = [template(~"x", [{~"mcp-name", Name}]) || Name <- [~"one", ~"other"]],
    {Wire, Server} = greeted(#{}),
    Requests = [One, One, One, Other, Other, One, Other],
    {_, Sizes, #{heads := Heads}} = lists:foldl(
        fun({Tag, Template}, {Wire0, Sizes, Server0}) ->
            {Bytes, Wire1} = erlmcp_load_http2:request(Tag, Template, Wire0),
            {Wire1, [iolist_size(Bytes) | Sizes], server_reads(iolist_to_binary(Bytes), Server0)}
        end, {Wire, [], Server}, lists:enumerate(0, Requests)),
    %% The second and every later one of a kind is all in the table.
    [First, Second, Second, Third, Second, Second, Second] = lists:reverse(Sizes),
    true = First > Third andalso Third > Second,
    %% Both heads of frames, the body, and a byte for each of the eight headers.
    Second = 9 + 9 + iolist_size(body(0, ~"x")) + 8,
    [~"one", ~"one", ~"one", ~"other", ~"other", ~"one", ~"other"] =
        [maps:get(~"mcp-name", Head) || {_, Head} <- lists:sort(maps:to_list(Heads))],
    #{1 := #{~":method" := ~"POST", ~":scheme" := ~"http", ~":path" := ~"/mcp",
             ~":authority" := ~"localhost:1", ~"content-type" := ~"application/json",
             ~"accept" := ~"application/json, text/event-stream"}} = Heads.

a_changing_header_changes(_) ->
    Long = binary:copy(~"y", 300),
    Template = template(~"x", [{~"X-Id", ~"<{id}>"}, {~"x-long", <<Long/binary, "{id}">>}]),
    {Wire, Server} = greeted(#{}),
    {_, #{heads := Heads}} = lists:foldl(
        fun(Tag, {Wire0, Server0}) ->
            {Bytes, Wire1} = erlmcp_load_http2:request(Tag, Template, Wire0),
            {Wire1, server_reads(iolist_to_binary(Bytes), Server0)}
        end, {Wire, Server}, [0, 1, 2]),
    [begin
         Id = erlmcp_load_wire:id(Tag),
         #{~"x-id" := <<"<", Id:10/binary, ">">>, ~"x-long" := <<Long:300/binary, Id:10/binary>>} =
             maps:get(2 * Tag + 1, Heads)
     end || Tag <- [0, 1, 2]].

a_delete_has_no_body(_) ->
    Template = erlmcp_load_http2:template(
        #{method => delete, pieces => [~""], headers => [{~"mcp-session-id", ~"s"}]}, ?OPTIONS),
    {Wire, Server} = greeted(#{}),
    {Bytes, _} = erlmcp_load_http2:request(0, Template, Wire),
    #{heads := #{1 := #{~":method" := ~"DELETE", ~"mcp-session-id" := ~"s"} = Head},
      bodies := #{1 := {~"", fin}}} = server_reads(iolist_to_binary(Bytes), Server),
    false = is_map_key(~"content-length", Head).

%% Streams.

streams_wait_for_room(_) ->
    {Wire, _} = greeted(#{max_concurrent_streams => 1}),
    Template = template(~"x", []),
    {First, Wire1} = erlmcp_load_http2:request(0, Template, Wire),
    true = iolist_size(First) > 0,
    {~"", Wire2} = erlmcp_load_http2:request(1, Template, Wire1),
    {~"", Wire3} = erlmcp_load_http2:request(2, Template, Wire2),
    %% Two answers, one after the other.
    {ok, [{reply, 0, 200, ~"a"}], Second, Wire4} =
        erlmcp_load_http2:received(answer(1, ~"a"), Wire3),
    {ok, {headers, 3, nofin, head_fin, _}, _} = cow_http2:parse(iolist_to_binary(Second)),
    {Third, Wire5} = erlmcp_load_http2:abandoned(1, Wire4),
    {ok, {rst_stream, 3, cancel}, Next} = cow_http2:parse(iolist_to_binary(Third)),
    {ok, {headers, 5, nofin, head_fin, _}, _} = cow_http2:parse(Next),
    {ok, [{reply, 2, 200, ~"c"}], ~"", _} = erlmcp_load_http2:received(answer(5, ~"c"), Wire5).

%% RFC 9113, 6.9.2: a new initial size adjusts the windows of the streams that are open.
another_window_is_for_what_was_begun_too(_) ->
    {Wire, _} = greeted(#{initial_stream_window_size => 10}),
    {First, Wire1} = erlmcp_load_http2:request(0, template(~"", []), Wire),
    {ok, {headers, 1, nofin, head_fin, _}, Rest} = cow_http2:parse(iolist_to_binary(First)),
    {ok, {data, 1, nofin, <<Begun:10/binary>>}, ~""} = cow_http2:parse(Rest),
    {ok, [], Out, Wire2} = erlmcp_load_http2:received(
        iolist_to_binary(cow_http2:settings(#{initial_window_size => 12})), Wire1),
    {ok, settings_ack, More} = cow_http2:parse(iolist_to_binary(Out)),
    {ok, {data, 1, nofin, <<Two:2/binary>>}, ~""} = cow_http2:parse(More),
    %% Less than was sent: nothing goes out before that is made good.
    {ok, [], OnlyAck, Wire3} = erlmcp_load_http2:received(
        iolist_to_binary(cow_http2:settings(#{initial_window_size => 2})), Wire2),
    {ok, settings_ack, ~""} = cow_http2:parse(iolist_to_binary(OnlyAck)),
    {ok, [], Nothing, Wire4} =
        erlmcp_load_http2:received(iolist_to_binary(cow_http2:window_update(1, 10)), Wire3),
    ~"" = iolist_to_binary(Nothing),
    {ok, [], Last, _} =
        erlmcp_load_http2:received(iolist_to_binary(cow_http2:window_update(1, 1000)), Wire4),
    {ok, {data, 1, fin, End}, ~""} = cow_http2:parse(iolist_to_binary(Last)),
    true = <<Begun/binary, Two/binary, End/binary>> =:= iolist_to_binary(body(0, ~"")).

%% And nothing is asked before: how many streams there may be they say.
settings_come_first(_) ->
    {_, New} = erlmcp_load_http2:opened(erlmcp_load_http2:new(?OPTIONS)),
    {~"", Wire} = erlmcp_load_http2:request(0, template(~"x", []), New),
    {ok, [], Out, _} =
        erlmcp_load_http2:received(iolist_to_binary(cow_http2:settings(#{})), Wire),
    {ok, settings_ack, Request} = cow_http2:parse(iolist_to_binary(Out)),
    {ok, {headers, 1, nofin, head_fin, _}, _} = cow_http2:parse(Request),
    {error, protocol_error, []} =
        erlmcp_load_http2:received(iolist_to_binary(cow_http2:ping(1)), Wire).

pings_and_settings_are_answered(_) ->
    {Wire, _} = begin_with(#{}),
    Bytes = iolist_to_binary([cow_http2:settings(#{}), cow_http2:ping(7), cow_http2:settings_ack(),
                              cow_http2:ping_ack(8), cow_http2:priority(1, shared, 3, 5)]),
    {ok, [], Out, _} = erlmcp_load_http2:received(Bytes, Wire),
    {ok, settings_ack, Rest} = cow_http2:parse(iolist_to_binary(Out)),
    {ok, {ping_ack, 7}, ~""} = cow_http2:parse(Rest).

a_reset_fails_its_request(_) ->
    {Wire, _} = awaiting(2),
    {ok, [{failed, 0, refused_stream}, {reply, 1, 200, ~"b"}], _, _} =
        erlmcp_load_http2:received(iolist_to_binary(
            [cow_http2:settings(#{}), cow_http2:rst_stream(1, refused_stream), answer(3, ~"b")]),
            Wire).

a_goaway_fails_what_was_not_read(_) ->
    {Wire, _} = awaiting(3),
    {ok, [{failed, 1, goaway}, {failed, 2, goaway}, closing], _, Wire1} =
        erlmcp_load_http2:received(iolist_to_binary(
            [cow_http2:settings(#{}), cow_http2:goaway(1, no_error, ~"enough")]), Wire),
    {ok, [{reply, 0, 200, ~"a"}], ~"", _} = erlmcp_load_http2:received(answer(1, ~"a"), Wire1).

%% It has not read all of the request, and does not get the rest.
an_answer_ends_the_sending(_) ->
    {Wire, _} = greeted(#{}),
    {_, Wire1} = erlmcp_load_http2:request(0, template(binary:copy(~"x", 200_000), []), Wire),
    {ok, [{reply, 0, 200, ~"no"}], Out, Wire2} = erlmcp_load_http2:received(
        iolist_to_binary([cow_http2:settings(#{}), answer(1, ~"no")]), Wire1),
    {ok, settings_ack, Rest} = cow_http2:parse(iolist_to_binary(Out)),
    {ok, {rst_stream, 1, cancel}, ~""} = cow_http2:parse(Rest),
    {ok, [], ~"", _} = erlmcp_load_http2:received(
        iolist_to_binary([cow_http2:window_update(1, 100_000), cow_http2:window_update(100_000)]),
        Wire2).

abandoned_is_reset(_) ->
    {Wire, _} = awaiting(2),
    {Bytes, Wire1} = erlmcp_load_http2:abandoned(0, Wire),
    {ok, {rst_stream, 1, cancel}, ~""} = cow_http2:parse(iolist_to_binary(Bytes)),
    %% It may have been on its way, and the table of the headers must have seen it.
    {ok, [{reply, 1, 200, ~"b"}], _, _} = erlmcp_load_http2:received(
        iolist_to_binary([cow_http2:settings(#{}), answer(1, ~"late"), answer(3, ~"b")]), Wire1).

events_are_given_as_they_come(_) ->
    {Wire, _} = awaiting(1),
    {Block, _} = cow_hpack:encode([{~":status", ~"200"},
                                   {~"content-type", ~"Text/Event-Stream; charset=utf-8"}]),
    Progress = ~B'{"jsonrpc":"2.0","method":"notifications/progress","params":{}}',
    Reply = ~B'{"jsonrpc":"2.0","id":1000000000,"result":{}}',
    {ok, [{message, ~""}, {message, Progress}], _, Wire1} = erlmcp_load_http2:received(
        iolist_to_binary([cow_http2:settings(#{}), cow_http2:headers(1, nofin, Block),
                          cow_http2:data(1, nofin, [~"id: 0-0\ndata: \n\ndata: ", Progress,
                                                    ~"\n\nda"])]), Wire),
    {ok, [{reply, 0, 200, Reply}], _, Wire2} = erlmcp_load_http2:received(
        iolist_to_binary(cow_http2:data(1, nofin, [~"ta: ", Reply, ~"\n\n"])), Wire1),
    %% The reply was there: that its stream fails later, or ends, says nothing more of it.
    {ok, [], _, _} = erlmcp_load_http2:received(cow_http2:rst_stream(1, cancel), Wire2),
    {ok, [], _, _} = erlmcp_load_http2:received(<<0:24, 0, 1, 1:32>>, Wire2).

sessions_are_named(_) ->
    {Wire, _} = awaiting(1),
    {Block, _} = cow_hpack:encode([{~":status", ~"200"}, {~"mcp-session-id", ~"one"}]),
    {ok, [{session, 0, ~"one"}, {reply, 0, 200, ~"{}"}], _, _} = erlmcp_load_http2:received(
        iolist_to_binary([cow_http2:settings(#{}), cow_http2:headers(1, nofin, Block),
                          cow_http2:data(1, fin, ~"{}")]), Wire).

interim_answers_are_none(_) ->
    {Wire, _} = awaiting(1),
    {Early, Hpack} = cow_hpack:encode([{~":status", ~"103"}, {~"link", ~"<x>"}]),
    {Late, _} = cow_hpack:encode([{~":status", ~"202"}], Hpack),
    {ok, [{reply, 0, 202, ~""}], _, _} = erlmcp_load_http2:received(
        iolist_to_binary([cow_http2:settings(#{}), cow_http2:headers(1, nofin, Early),
                          cow_http2:headers(1, fin, Late)]), Wire).

%% Statuses are 100 to 599 (RFC 9110, 15).
what_is_no_status_fails_its_request(_) ->
    {Wire, _} = awaiting(1),
    [{Status, {ok, [Event], _, _}} = {Status, with_status(Status, Wire)}
     || {Status, Event} <- [{~"599", {reply, 0, 599, ~""}}, {~"600", {failed, 0, protocol_error}},
                            {~"999", {failed, 0, protocol_error}},
                            {~"099", {failed, 0, protocol_error}},
                            {~"20", {failed, 0, protocol_error}},
                            {~"2000", {failed, 0, protocol_error}}]].

with_status(Status, Wire) ->
    {Block, _} = cow_hpack:encode([{~":status", Status}]),
    erlmcp_load_http2:received(
        iolist_to_binary([cow_http2:settings(#{}), cow_http2:headers(1, fin, Block)]), Wire).

too_much_is_refused(_) ->
    {_, New} = erlmcp_load_http2:opened(erlmcp_load_http2:new(options(10))),
    {ok, [], _, Opened} =
        erlmcp_load_http2:received(iolist_to_binary(cow_http2:settings(#{})), New),
    {_, Wire} = erlmcp_load_http2:request(0, template(~"x", []), Opened),
    {_, Both} = erlmcp_load_http2:request(1, template(~"x", []), Wire),
    {ok, [{reply, 0, 200, ~"0123456789"}, {failed, 1, too_large}], Out, _} =
        erlmcp_load_http2:received(iolist_to_binary(
            [cow_http2:settings(#{}), answer(1, ~"0123456789"), answer(3, ~"0123456789a")]), Both),
    {ok, settings_ack, Rest} = cow_http2:parse(iolist_to_binary(Out)),
    {ok, {rst_stream, 3, cancel}, ~""} = cow_http2:parse(Rest).

%% Unless the request has its reply.
a_large_event_fails_its_request(_) ->
    {_, New} = erlmcp_load_http2:opened(erlmcp_load_http2:new(options(100))),
    {ok, [], _, Opened} =
        erlmcp_load_http2:received(iolist_to_binary(cow_http2:settings(#{})), New),
    {_, Wire} = erlmcp_load_http2:request(0, template(~"x", []), Opened),
    {Block, _} = cow_hpack:encode([{~":status", ~"200"}, {~"content-type", ~"text/event-stream"}]),
    Received = fun(Data) ->
        erlmcp_load_http2:received(iolist_to_binary([cow_http2:headers(1, nofin, Block),
                                                     cow_http2:data(1, nofin, Data)]), Wire)
    end,
    Over = [~"data: ", binary:copy(~"x", 101), ~"\n\n"],
    {ok, [{failed, 0, too_large}], Out, Failed} = Received(Over),
    {ok, {rst_stream, 1, cancel}, ~""} = cow_http2:parse(iolist_to_binary(Out)),
    %% The server had sent more before it read the reset.
    {ok, [], _, _} =
        erlmcp_load_http2:received(iolist_to_binary(cow_http2:data(1, fin, ~"x")), Failed),
    Reply = ~B'{"jsonrpc":"2.0","id":1000000000,"result":{}}',
    {ok, [{reply, 0, 200, Reply}], _, Replied} = Received([~"data: ", Reply, ~"\n\n", Over]),
    {ok, [], _, _} =
        erlmcp_load_http2:received(iolist_to_binary(cow_http2:data(1, fin, ~"x")), Replied).

%% The server has as much room for all that it sends as we have promised, padding counted.
the_window_is_opened_again(_) ->
    {Wire, _} = awaiting(1),
    {ok, [], _, Wire1} = erlmcp_load_http2:received(
        iolist_to_binary([cow_http2:settings(#{}), headers(1)]), Wire),
    Frame = padded(1, binary:copy(~"x", 16_000), 255),
    Half = 16#3fffffff div 2,
    Frames = Half div 16_256,
    %% Nothing is kept of an abandoned stream.
    {_, Wire2} = erlmcp_load_http2:abandoned(0, Wire1),
    Wire3 = lists:foldl(fun(_, State) ->
                            {ok, [], ~"", Next} = erlmcp_load_http2:received(Frame, State),
                            Next
                        end, Wire2, lists:seq(1, Frames)),
    {ok, [], Out, _} = erlmcp_load_http2:received(Frame, Wire3),
    {ok, {window_update, Increment}, ~""} = cow_http2:parse(iolist_to_binary(Out)),
    Increment = (Frames + 1) * 16_256.

nonsense_is_an_error(_) ->
    {Awaiting, _} = awaiting(1),
    {ok, [], _, Wire} =
        erlmcp_load_http2:received(iolist_to_binary(cow_http2:settings(#{})), Awaiting),
    %% The reply before it counts.
    [{error, Error, [{reply, 0, 200, ~"a"}]} =
         erlmcp_load_http2:received(iolist_to_binary([answer(1, ~"a"), Bytes]), Wire)
     || {Error, Bytes} <- [
            {frame_size_error, <<16_385:24, 0, 0, 1:32>>},
            {protocol_error, cow_http2:headers(3, fin, <<16#88>>)},
            {protocol_error, cow_http2:data(2, fin, ~"")},
            {protocol_error, cow_http2:push_promise(1, 2, <<16#88>>)},
            {protocol_error, <<0:24, 9, 4, 1:32>>},
            {protocol_error, [<<1:24, 1, 0, 1:32, 16#88>>, cow_http2:ping(1)]},
            {compression_error, cow_http2:headers(1, fin, <<16#ff, 16#ff, 16#ff>>)},
            {flow_control_error, cow_http2:window_update(16#7fffffff)},
            {frame_size_error, <<1:24, 6, 0, 0:32, 1>>},
            {frame_size_error, ~"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n"}]].

%% A block that is just as large as a frame may be has one, and a larger one has more.
large_heads_are_continued(_) ->
    {Wire, _} = greeted(#{}),
    Sizes = [begin
                 Template = template(~"", [{~"x-long", <<(binary:copy(~"x", Bytes))/binary,
                                                         "{id}">>}]),
                 {Sent, _} = erlmcp_load_http2:request(0, Template, Wire),
                 {Parts, Rest} = heads(iolist_to_binary(Sent)),
                 {ok, {data, 1, fin, Data}, ~""} = cow_http2:parse(Rest),
                 true = Data =:= iolist_to_binary(body(0, ~"")),
                 Block = iolist_to_binary(Parts),
                 {[_ | _] = Headers, _} = cow_hpack:decode(Block, cow_hpack:init()),
                 {_, Value} = lists:keyfind(~"x-long", 1, Headers),
                 Bytes = byte_size(Value) - 10,
                 Expected = (byte_size(Block) + 16_383) div 16_384,
                 Expected = length(Parts),
                 true = lists:all(fun(Part) -> byte_size(Part) =:= 16_384 end,
                                  lists:droplast(Parts)),
                 byte_size(Block)
             end || Bytes <- lists:seq(16_150, 16_350) ++ [32_000, 50_000]],
    true = lists:member(16_384, Sizes).

%% The parts of a header block, of which only the last one says that it is the last.
heads(Bytes) ->
    case cow_http2:parse(Bytes) of
        {ok, {headers, 1, nofin, head_fin, Part}, Rest} -> {[Part], Rest};
        {ok, {headers, 1, nofin, head_nofin, Part}, Rest} -> continued([Part], Rest)
    end.

continued(Parts, Bytes) ->
    case cow_http2:parse(Bytes) of
        {ok, {continuation, 1, head_fin, Part}, Rest} -> {lists:reverse(Parts, [Part]), Rest};
        {ok, {continuation, 1, head_nofin, Part}, Rest} -> continued([Part | Parts], Rest)
    end.

%% Whatever has room there: its decoder finds the same headers.
tables_are_as_small_as_the_server_says(_) ->
    Names = [~"one", ~"other", ~"one", binary:copy(~"n", 60), ~"other", ~"one"],
    [begin
         {Wire, Server} = greeted(#{max_decode_table_size => Size}),
         {_, #{heads := Heads}} = lists:foldl(
             fun({Tag, Name}, {Wire0, Server0}) ->
                 {Bytes, Wire1} = erlmcp_load_http2:request(
                     Tag, template(~"x", [{~"mcp-name", Name}]), Wire0),
                 {Wire1, server_reads(iolist_to_binary(Bytes), Server0)}
             end, {Wire, Server}, lists:enumerate(0, Names)),
         {Size, Names} = {Size, [maps:get(~"mcp-name", Head)
                                 || {_, Head} <- lists:sort(maps:to_list(Heads))]}
     end || Size <- [0, 31, 60, 100, 150, 300, 4_095, 4_096, 100_000]].

a_goaway_fails_what_was_not_sent(_) ->
    {Wire, _} = greeted(#{max_concurrent_streams => 1}),
    Waiting = lists:foldl(fun(Tag, State) ->
                              {_, Next} = erlmcp_load_http2:request(Tag, template(~"x", []), State),
                              Next
                          end, Wire, [0, 1, 2]),
    {ok, [{failed, 1, goaway}, {failed, 2, goaway}, closing], _, Left} =
        erlmcp_load_http2:received(
            iolist_to_binary(cow_http2:goaway(1, no_error, ~"enough")), Waiting),
    {ok, [{reply, 0, 200, ~"a"}], ~"", _} = erlmcp_load_http2:received(answer(1, ~"a"), Left).

%% Longer than the window of a stream. Padding counts as what it pads (RFC 9113, 6.1).
long_streams_of_events_have_room(_) ->
    {Wire, _} = awaiting(1),
    {Block, _} = cow_hpack:encode([{~":status", ~"200"}, {~"content-type", ~"text/event-stream"}]),
    {ok, [], _, Begun} = erlmcp_load_http2:received(
        iolist_to_binary([cow_http2:settings(#{}), cow_http2:headers(1, nofin, Block)]), Wire),
    Frame = padded(1, <<$:, (binary:copy(~"x", 15_997))/binary, "\n\n">>, 255),
    Frames = 16#3fffffff div 2 div 16_256,
    Read = lists:foldl(fun(_, State) ->
                           {ok, [], ~"", Next} = erlmcp_load_http2:received(Frame, State),
                           Next
                       end, Begun, lists:seq(1, Frames)),
    {ok, [], Out, _} = erlmcp_load_http2:received(Frame, Read),
    Increment = (Frames + 1) * 16_256,
    {ok, {window_update, Increment}, Rest} = cow_http2:parse(iolist_to_binary(Out)),
    {ok, {window_update, 1, Increment}, ~""} = cow_http2:parse(Rest).

%% A server of cowlib: its machine, its output, and the requests and their bodies.

begin_with(Settings) ->
    {Preface, Wire} = erlmcp_load_http2:opened(erlmcp_load_http2:new(?OPTIONS)),
    {ok, Greeting, Machine} = cow_http2_machine:init(server, maps:merge(?SERVER, Settings)),
    <<"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Frames/binary>> = iolist_to_binary(Preface),
    {Wire, server_reads(Frames, #{machine => Machine, out => Greeting, heads => #{},
                                  bodies => #{}})}.

%% The same. Both sides have the settings of the other one.
greeted(Settings) ->
    {Wire, #{out := Out} = Server} = begin_with(Settings),
    {ok, [], ToSend, Ready} = erlmcp_load_http2:received(iolist_to_binary(Out), Wire),
    {Ready, server_reads(iolist_to_binary(ToSend), Server#{out := []})}.

options(MaxBytes) ->
    maps:put(max_bytes, MaxBytes, ?OPTIONS).

awaiting(Count) ->
    {Wire, Server} = greeted(#{}),
    Template = template(~"x", []),
    {lists:foldl(fun(Tag, State) ->
                     {_, Next} = erlmcp_load_http2:request(Tag, Template, State),
                     Next
                 end, Wire, lists:seq(0, Count - 1)), Server}.

template(Body, Headers) ->
    erlmcp_load_http2:template(#{method => post, headers => Headers,
                                 pieces => [~B'{"id":', <<",\"x\":\"", Body/binary, "\"}">>]},
                               ?OPTIONS).

body(Tag, Body) ->
    [~B'{"id":', erlmcp_load_wire:id(Tag), ~B',"x":"', Body, ~B'"}'].

headers(Id) ->
    cow_http2:headers(Id, nofin, element(1, cow_hpack:encode([{~":status", ~"200"}]))).

answer(Id, Body) ->
    iolist_to_binary([headers(Id), cow_http2:data(Id, fin, Body)]).

server_reads(~"", Server) ->
    Server;
server_reads(Bytes, #{machine := Machine, out := Out} = Server) ->
    {ok, Frame, Rest} = cow_http2:parse(Bytes),
    Acknowledged = case Frame of
        {settings, _} -> [Out, cow_http2:settings_ack()];
        _ -> Out
    end,
    server_reads(Rest, read(cow_http2_machine:frame(Frame, Machine), Server#{out := Acknowledged})).

read({ok, Machine}, Server) ->
    Server#{machine := Machine};
read({ok, {headers, Id, Fin, Headers, Pseudo, _}, Machine}, Server) ->
    #{heads := Heads, bodies := Bodies} = Server,
    Head = maps:merge(maps:from_list(Headers),
                      #{<<$:, (atom_to_binary(Name))/binary>> => Value || Name := Value <- Pseudo}),
    Server#{machine := Machine, heads := Heads#{Id => Head}, bodies := Bodies#{Id => {~"", Fin}}};
read({ok, {data, Id, Fin, Data}, Machine}, #{bodies := Bodies} = Server) ->
    #{Id := {Before, nofin}} = Bodies,
    Server#{machine := Machine, bodies := Bodies#{Id := {<<Before/binary, Data/binary>>, Fin}}}.
