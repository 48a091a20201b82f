-module(load_http1_SUITE).
-moduledoc """
The wire of HTTP/1.1: what it reads does not depend on how the bytes are cut, and what it must not
read is an error.
""".

-compile(nowarn_missing_spec_documented).

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0]).
-export([any_cut_gives_the_same/1, requests_are_spliced/1, a_header_is_sent_once/1,
         the_end_may_end_a_reply/1, bad_bytes_are_errors/1, an_error_comes_after_its_replies/1,
         replies_are_bounded/1, streams_of_events_are_not/1, events_are_bounded/1,
         heads_are_bounded/1, a_connection_that_ends_says_so/1, a_head_says_what_follows/1,
         a_delete_has_no_body/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [any_cut_gives_the_same, requests_are_spliced, a_header_is_sent_once, the_end_may_end_a_reply,
     bad_bytes_are_errors, an_error_comes_after_its_replies,
     replies_are_bounded, streams_of_events_are_not, events_are_bounded, heads_are_bounded,
     a_connection_that_ends_says_so,
     a_head_says_what_follows, a_delete_has_no_body].

any_cut_gives_the_same(_) ->
    {Bytes, Events} = conversation(),
    Tags = length([Tag || {reply, Tag, _, _} <- Events]),
    erlmcp_test_property:holds(
        ?FORALL(Cuts, list(range(0, byte_size(Bytes))),
                Events =:= read(pieces(Bytes, lists:usort(Cuts)), awaiting(Tags), [])), 300),
    %% And byte for byte.
    Events = read([<<Byte>> || <<Byte>> <= Bytes], awaiting(Tags), []).

conversation() ->
    Replies = [
        {whole(json(0)), [{reply, 0, 200, json(0)}]},
        {whole(json(1)), [{reply, 1, 200, json(1)}]},
        {["HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"],
         [{reply, 2, 202, ~""}]},
        {["HTTP/1.1 204 No Content\r\n\r\n"], [{reply, 3, 204, ~""}]},
        {["HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nMcp-Session-Id: abc\r\n\r\n",
          chunks(json(4))], [{session, 4, ~"abc"}, {reply, 4, 200, json(4)}]},
        {["HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n"
          "Content-Type: text/event-stream\r\n\r\n",
          chunks(["id: 0-0\ndata: \n\n"
                  "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}\n\n",
                  "data: ", json(5), "\n\n"])],
         [{message, ~""},
          {message, ~B'{"jsonrpc":"2.0","method":"notifications/progress"}'},
          {reply, 5, 200, json(5)}]},
        {["HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
          "Content-Length: ", integer_to_list(byte_size(json(6)) + 8), "\r\n\r\ndata: ", json(6),
          "\n\n"], [{reply, 6, 200, json(6)}]},
        {["HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
          "Content-Length: 2\r\n\r\nno"], [{reply, 7, 503, ~"no"}, closing]}
    ],
    {iolist_to_binary([Bytes || {Bytes, _} <- Replies]),
     lists:append([Events || {_, Events} <- Replies])}.

json(Tag) ->
    <<"{\"jsonrpc\":\"2.0\",\"id\":", (erlmcp_load_wire:id(Tag))/binary, ",\"result\":{}}">>.

whole(Body) ->
    ["HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nContent-Length: ",
     integer_to_list(byte_size(Body)), "\r\n\r\n", Body].

chunks(Body) ->
    <<First:10/binary, Second/binary>> = iolist_to_binary(Body),
    ["A\r\n", First, "\r\n", string:lowercase(integer_to_list(byte_size(Second), 16)),
     ";extension=1\r\n", Second, "\r\n0\r\nTrailer: 1\r\n\r\n"].

pieces(Bytes, Cuts) ->
    {Pieces, _} = lists:mapfoldl(fun(Cut, At) -> {binary:part(Bytes, At, Cut - At), Cut} end,
                                 0, Cuts ++ [byte_size(Bytes)]),
    Pieces.

awaiting(Number) ->
    lists:foldl(fun(Tag, State) ->
                    {_, Next} = erlmcp_load_http1:request(Tag, [~"", ~""], State),
                    Next
                end, erlmcp_load_http1:new(options()), lists:seq(0, Number - 1)).

read([], _, Events) ->
    Events;
read([Piece | Pieces], State, Events) ->
    {ok, More, ~"", Next} = erlmcp_load_http1:received(Piece, State),
    read(Pieces, Next, Events ++ More).

requests_are_spliced(_) ->
    Message = #{method => post, pieces => [~"{\"id\":", ~"}"],
                headers => [{~"x-request", ~"<{id}>"}]},
    Template = erlmcp_load_http1:template(Message, (options())#{headers => [{~"a", ~"b"}]}),
    {Bytes, _} = erlmcp_load_http1:request(7, Template, erlmcp_load_http1:new(options())),
    ~"""
    POST /mcp HTTP/1.1
    host: host:1
    a: b
    x-request: <1000000007>
    content-type: application/json
    accept: application/json, text/event-stream
    content-length: 17

    {"id":1000000007}
    """ = binary:replace(iolist_to_binary(Bytes), ~"\r", ~"", [global]).

%% "A server MUST respond with a 400 (Bad Request) status code to [...] any request message that
%% contains more than one Host header field line" (RFC 9112, 3.2).
a_header_is_sent_once(_) ->
    Options = (options())#{headers => [{~"A", ~"b"}, {~"Host", ~"other"}, {~"Content-Length", ~"1"},
                                       {~"content-type", ~"text/plain"}, {~"a", ~"c"},
                                       {~"x-own", ~"theirs"}, {~"Accept", ~"*/*"}]},
    Of = fun(Method, Pieces) ->
        Template = erlmcp_load_http1:template(
            #{method => Method, pieces => Pieces, headers => [{~"x-own", ~"ours"}]}, Options),
        {Bytes, _} = erlmcp_load_http1:request(0, Template, erlmcp_load_http1:new(Options)),
        binary:replace(iolist_to_binary(Bytes), ~"\r", ~"", [global])
    end,
    ~"""
    POST /mcp HTTP/1.1
    host: other
    a: c
    content-type: text/plain
    x-own: ours
    accept: */*
    content-length: 17

    {"id":1000000000}
    """ = Of(post, [~"{\"id\":", ~"}"]),
    <<"GET /mcp HTTP/1.1\nhost: other\na: c\ncontent-type: text/plain\nx-own: ours\n"
      "accept: */*\n\n">> = Of(get, [~""]).

the_end_may_end_a_reply(_) ->
    {ok, [], _, State} = erlmcp_load_http1:received(~"HTTP/1.1 200 OK\r\n\r\nwor", awaiting(1)),
    {ok, [], _, Next} = erlmcp_load_http1:received(~"ds", State),
    [{reply, 0, 200, ~"words"}] = erlmcp_load_http1:ended(Next),
    {ok, [], _, Cut} = erlmcp_load_http1:received(~"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\na",
                                                  awaiting(1)),
    [] = erlmcp_load_http1:ended(Cut).

bad_bytes_are_errors(_) ->
    [{error, Reason, []} = erlmcp_load_http1:received(Bytes, awaiting(1))
     || {Reason, Bytes} <- [
            {bad_head, ~"HTTP/1.1 twohundred\r\n\r\n"},
            {bad_head, ~"SSH-2.0-what\r\n\r\n"},
            {bad_head, ~"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n"},
            {bad_head, ~"HTTP/1.1 99 What\r\nContent-Length: 0\r\n\r\n"},
            {bad_head, ~"HTTP/1.1 600 What\r\nContent-Length: 0\r\n\r\n"},
            {bad_head, ~"HTTP/1.1 200 OK\r\nno field\r\n\r\n"},
            {bad_head, ~"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"},
            {bad_head, ~"HTTP/1.1 200 OK\r\nContent-Length: 1 2\r\n\r\n"},
            {bad_head, ~"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n"},
            {bad_head, <<"HTTP/1.1 200 OK\r\nTransfer-Encoding: ", 255, "\r\n\r\n">>},
            {bad_head, binary:copy(~"x", 70_000)},
            {bad_chunk, ~"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"},
            {bad_chunk, ~"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n"},
            %% Its digits are more than any size has.
            {bad_chunk, <<"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
                          "00000000000000001\r\n">>}]],
    {error, unasked_reply, []} =
        erlmcp_load_http1:received(iolist_to_binary(whole(~"{}")), awaiting(0)).

%% The replies before an error count.
an_error_comes_after_its_replies(_) ->
    Good = iolist_to_binary(whole(~"{}")),
    Events = [{reply, 0, 200, ~"{}"}, {reply, 1, 200, ~"{}"}],
    [{error, Reason, Events} = erlmcp_load_http1:received(
         iolist_to_binary([Good, Good, Bytes]), awaiting(Requests))
     || {Reason, Requests, Bytes} <- [
            {unasked_reply, 2, Good}, {bad_head, 2, ~"HTTP/1.1 what\r\n\r\n"},
            {bad_head, 2, binary:copy(~"x", 70_000)},
            {too_large, 3, ~"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n"},
            {bad_chunk, 3, ~"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"}]].

replies_are_bounded(_) ->
    Full = binary:copy(~"x", 1000),
    {ok, [{reply, 0, 200, Full}], _, _} =
        erlmcp_load_http1:received(iolist_to_binary(whole(Full)), awaiting(1)),
    {error, too_large, []} =
        erlmcp_load_http1:received(~"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n", awaiting(1)),
    {error, too_large, []} = endless(~"HTTP/1.1 200 OK\r\n\r\n", Full),
    {error, too_large, []} =
        endless(~"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffff\r\n", Full).

endless(Head, Bytes) ->
    {ok, [], _, Begun} = erlmcp_load_http1:received(Head, awaiting(1)),
    {ok, [], _, State} = erlmcp_load_http1:received(<<Bytes/binary, "x">>, Begun),
    erlmcp_load_http1:received(~"x", State).

%% Each of their events is.
streams_of_events_are_not(_) ->
    Event = iolist_to_binary(["data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",",
                              "\"params\":{\"data\":\"", binary:copy(~"x", 400), "\"}}\n\n"]),
    Size = byte_size(Event),
    Field = fun(Name, Value) -> [Name, ~": ", Value, ~"\r\n"] end,
    [begin
         Head = iolist_to_binary(["HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n", Fields,
                                  "\r\n"]),
         {ok, [], _, Begun} = erlmcp_load_http1:received(Head, awaiting(1)),
         lists:foldl(fun(_, State) ->
                         {ok, [{message, _}], _, Next} = erlmcp_load_http1:received(
                             iolist_to_binary([Before, Event, After]), State),
                         Next
                     end, Begun, lists:seq(1, 4))
     end || {Fields, Before, After} <- [
                {[], ~"", ~""}, {Field(~"Content-Length", integer_to_list(5 * Size)), ~"", ~""},
                {Field(~"Transfer-Encoding", ~"chunked"), [integer_to_list(Size, 16), ~"\r\n"],
                 ~"\r\n"}]].

%% The bound of these tests is 1,000 bytes. A request that has its reply does not fail.
events_are_bounded(_) ->
    Reply = ~"{\"jsonrpc\":\"2.0\",\"id\":1000000000,\"result\":{}}",
    Over = <<"data: ", (binary:copy(~"x", 1001))/binary, "\n\n">>,
    Field = fun(Name, Value) -> [Name, ~": ", Value, ~"\r\n"] end,
    Received = fun(Event, {Fields, Before, After}) ->
        erlmcp_load_http1:received(
            iolist_to_binary([~"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n", Fields,
                              ~"\r\n", Before(byte_size(Event)), Event, After]), awaiting(1))
    end,
    None = fun(_) -> ~"" end,
    [begin
         {error, too_large, []} = Received(Over, Framing),
         {ok, [{reply, 0, 200, Reply}], _, _} =
             Received(<<"data: ", Reply/binary, "\n\n", Over/binary>>, Framing)
     end || Framing <- [
                {[], None, ~""},
                {Field(~"Content-Length", integer_to_list(5_000)), None, ~""},
                {Field(~"Transfer-Encoding", ~"chunked"),
                 fun(Size) -> [integer_to_list(Size, 16), ~"\r\n"] end, ~"\r\n"}]],
    %% The last bytes of a body.
    {error, too_large, []} =
        Received(Over, {Field(~"Content-Length", integer_to_list(byte_size(Over))), None, ~""}).

%% Those of a server that never ends them. At the bound one more byte may end them.
heads_are_bounded(_) ->
    Head = <<"HTTP/1.1 200 OK\r\nx: ">>,
    Full = <<Head/binary, (binary:copy(~"x", 65_536 - byte_size(Head)))/binary>>,
    {ok, [], _, Held} = erlmcp_load_http1:received(Full, awaiting(1)),
    {error, bad_head, []} = erlmcp_load_http1:received(~"x", Held),
    {ok, [{reply, 0, 200, ~""}], _, _} =
        erlmcp_load_http1:received(~"\r\nContent-Length: 0\r\n\r\n", Held),
    {ok, [], _, Chunked} = erlmcp_load_http1:received(
        ~"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", awaiting(1)),
    {ok, [], _, Line} = erlmcp_load_http1:received(<<"0;", (binary:copy(~"x", 65_534))/binary>>,
                                                   Chunked),
    {error, bad_chunk, []} = erlmcp_load_http1:received(~"x", Line),
    {ok, [{reply, 0, 200, ~""}], _, _} = erlmcp_load_http1:received(~"\r\n\r\n", Line).

%% No request may follow, and one that is sent in time on another connection is not lost.
a_connection_that_ends_says_so(_) ->
    [begin
         Reply = iolist_to_binary([Head, ~"Content-Length: 0\r\n\r\n"]),
         {ok, Events, _, _} = erlmcp_load_http1:received(Reply, awaiting(1)),
         {Head, Expected} = {Head, tl(Events)}
     end || {Head, Expected} <- [{~"HTTP/1.1 200 OK\r\n", []},
                                 {~"HTTP/1.0 200 OK\r\n", [closing]},
                                 {~"HTTP/1.1 200 OK\r\nConnection: Close\r\n", [closing]},
                                 {~"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\n", []},
                                 {<<"HTTP/1.1 200 OK\r\nConnection: ", 255, "\r\n",
                                    "Content-Type: ", 255, "\r\n">>, []}]].

%% Chunks go before a length, and some answers have no body whatever they say.
a_head_says_what_follows(_) ->
    Next = iolist_to_binary(whole(~"{}")),
    [begin
         {ok, Events, _, _} = erlmcp_load_http1:received(
             iolist_to_binary([Head, ~"\r\n", Body, Next]), awaiting(2)),
         {Head, [{reply, 0, Status, Expected}, {reply, 1, 200, ~"{}"}]} = {Head, Events}
     end || {Head, Body, {Status, Expected}} <- [
                {~"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 9\r\n",
                 chunks(~"0123456789ab"), {200, ~"0123456789ab"}},
                {~"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n",
                 chunks(~"0123456789ab"), {200, ~"0123456789ab"}},
                {~"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n", ~"", {304, ~""}},
                {~"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n", ~"",
                 {204, ~""}},
                {~"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n", ~"x",
                 {200, ~"x"}}]].

%% That ends a session.
a_delete_has_no_body(_) ->
    Template = erlmcp_load_http1:template(
        #{method => delete, pieces => [~""], headers => [{~"mcp-session-id", ~"s"}]}, options()),
    {Bytes, _} = erlmcp_load_http1:request(0, Template, erlmcp_load_http1:new(options())),
    ~"DELETE /mcp HTTP/1.1\r\nhost: host:1\r\nmcp-session-id: s\r\n\r\n" =
        iolist_to_binary(Bytes).

options() -> #{authority => ~"host:1", path => ~"/mcp", max_bytes => 1000}.
