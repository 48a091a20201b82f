-module(http2_repeated_heads_SUITE).
-moduledoc """
Requests of HTTP/2 whose heads are the same, octet by octet, and their bodies as they come: each is
answered as the first was. Frames are written by cowlib.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([what_is_said_again_is_answered_again/1, bodies_come_as_they_like/1,
         what_the_table_says_now_holds/1, other_lengths_are_errors_of_the_stream/1,
         trailers_are_no_requests/1, who_comes_is_asked_each_time/1,
         pages_may_read_it_each_time/1, refused_streams_leave_nothing/1,
         windows_are_as_the_client_sees_them/1, no_garbage_is_kept/1]).

-import(erlmcp_test_http, [message/3]).

-define(PATIENCE, 30_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [what_is_said_again_is_answered_again, bodies_come_as_they_like, what_the_table_says_now_holds,
     other_lengths_are_errors_of_the_stream, trailers_are_no_requests,
     who_comes_is_asked_each_time, pages_may_read_it_each_time, refused_streams_leave_nothing,
     windows_are_as_the_client_sees_them, no_garbage_is_kept].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

%% A server with two tools, of which one is quick, and one that waits.

serve(Options) ->
    Say = fun(Name) -> fun(#{~"text" := Text}, _) -> <<Name/binary, $:, Text/binary>> end end,
    erlmcp_test_http:start(maps:merge(
        #{tools => [#{name => ~"quick", quick => true, handler => Say(~"quick")},
                    #{name => ~"other", handler => Say(~"other")},
                    erlmcp_test_line:waiting_tool(~"wait")],
          listen => [{http, #{}}]}, Options)).

connect(Server) ->
    Socket = erlmcp_test_http:connect(Server),
    ok = gen_tcp:send(Socket, [~"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", cow_http2:settings(#{})]),
    {settings, _} = frame(Socket, [settings]),
    %% What it is sent has room.
    ok = gen_tcp:send(Socket, [cow_http2:settings_ack(), cow_http2:window_update(1_000_000_000)]),
    Socket.

%% A client, with its table.
call(Tool, Text) ->
    {Headers, Body} = message(~"tools/call", #{name => Tool, arguments => #{text => Text}}, #{}),
    {Headers, iolist_to_binary(Body)}.

block(Headers, Length, Table) ->
    {Block, Next} = cow_hpack:encode(
        [{~":method", ~"POST"}, {~":scheme", ~"http"}, {~":authority", ~"localhost"},
         {~":path", ~"/mcp"}, {~"content-length", integer_to_binary(Length)} | Headers], Table),
    {iolist_to_binary(Block), Next}.

%% The same request three times: from the second on its head refers to the table alone.
repeated(Socket, {Headers, Body} = Call) ->
    {First, Table} = block(Headers, byte_size(Body), cow_hpack:init()),
    {Again, Table} = block(Headers, byte_size(Body), Table),
    true = byte_size(Again) < byte_size(First),
    ok = ask(Socket, 1, First, Body),
    Answer = answer(Socket, 1),
    Answer = asked(Socket, 3, Again, Call),
    Answer = asked(Socket, 5, Again, Call),
    {Again, Table}.

asked(Socket, Id, Block, {_, Body}) ->
    ok = ask(Socket, Id, Block, Body),
    answer(Socket, Id).

ask(Socket, Id, Block, Body) ->
    gen_tcp:send(Socket, [cow_http2:headers(Id, nofin, Block), cow_http2:data(Id, fin, Body)]).

%% The text of an answer, or the status and what is wrong, or the error of the stream.
answer(Socket, Id) ->
    case frame(Socket, [data, rst_stream]) of
        {data, Id, fin, Bytes} ->
            case json:decode(Bytes) of
                #{~"result" := #{~"content" := [#{~"text" := Text}]}} -> Text;
                #{~"error" := #{~"code" := Code}} -> Code
            end;
        {rst_stream, Id, Reason} ->
            Reason;
        {Type, Other, _, _} when Type =:= data, Other < Id ->
            answer(Socket, Id);
        {rst_stream, Other, _} when Other < Id ->
            answer(Socket, Id)
    end.

%% The next frame of one of these types.
frame(Socket, Types) ->
    {ok, <<Length:24>> = Head} = gen_tcp:recv(Socket, 3, ?PATIENCE),
    {ok, Rest} = gen_tcp:recv(Socket, 6 + Length, ?PATIENCE),
    {ok, Frame, <<>>} = cow_http2:parse(<<Head/binary, Rest/binary>>),
    case is_tuple(Frame) andalso lists:member(element(1, Frame), Types) of
        true -> Frame;
        false -> frame(Socket, Types)
    end.

what_is_said_again_is_answered_again(_) ->
    Server = serve(#{}),
    [begin
         Socket = connect(Server),
         {Headers, _} = Call = call(Tool, ~"one"),
         {Block, _} = repeated(Socket, Call),
         %% The head is the same, and the body is not.
         [begin
              {Headers, Body} = call(Tool, Text),
              ok = ask(Socket, Id, Block, Body),
              Expected = <<Tool/binary, $:, Text/binary>>,
              Expected = answer(Socket, Id)
          end || {Id, Text} <- [{7, ~"two"}, {9, ~"six"}, {11, ~"ten"}]],
         %% Many that come together are answered each on its stream, heads first or one by one.
         Ids = lists:seq(101, 199, 2),
         {_, Body} = Call,
         ok = gen_tcp:send(Socket, [cow_http2:headers(Id, nofin, Block) || Id <- Ids]
                                   ++ [cow_http2:data(Id, fin, Body) || Id <- Ids]),
         Ids = lists:sort([element(2, frame(Socket, [data])) || _ <- Ids]),
         Others = lists:seq(201, 299, 2),
         ok = gen_tcp:send(Socket, [[cow_http2:headers(Id, nofin, Block),
                                     cow_http2:data(Id, fin, Body)] || Id <- Others]),
         Others = lists:sort([element(2, frame(Socket, [data])) || _ <- Others]),
         ok = gen_tcp:close(Socket)
     end || Tool <- [~"quick", ~"other"]],
    erlmcp_test_http:stop(Server).

bodies_come_as_they_like(_) ->
    Server = serve(#{}),
    Socket = connect(Server),
    {_, Body} = Call = call(~"quick", ~"one"),
    {Block, _} = repeated(Socket, Call),
    <<Begin:10/binary, End/binary>> = Body,
    Head = fun(Id) -> cow_http2:headers(Id, nofin, Block) end,
    %% In two frames; with nothing in the last; padded; and with a priority.
    Padded = fun(Id) ->
        <<(byte_size(Body) + 4):24, 0, 2#1001, Id:32, 3, Body/binary, 0:24>>
    end,
    Prior = fun(Id) ->
        <<(byte_size(Block) + 5):24, 1, 2#100100, Id:32, 0:32, 15, Block/binary>>
    end,
    [begin
         ok = gen_tcp:send(Socket, Frames),
         ~"quick:one" = answer(Socket, Id)
     end || {Id, Frames} <-
                [{7, [Head(7), cow_http2:data(7, nofin, Begin), cow_http2:data(7, fin, End)]},
                 {9, [Head(9), cow_http2:data(9, nofin, Body), cow_http2:data(9, fin, ~"")]},
                 {11, [Head(11), Padded(11)]},
                 {13, [Prior(13), cow_http2:data(13, fin, Body)]}]],
    %% Octet by octet.
    Octets = iolist_to_binary([Head(15), cow_http2:data(15, fin, Body)]),
    ok = inet:setopts(Socket, [{nodelay, true}]),
    [ok = gen_tcp:send(Socket, <<Octet>>) || <<Octet>> <= Octets],
    ~"quick:one" = answer(Socket, 15),
    ~"quick:one" = asked(Socket, 17, Block, Call),
    ok = gen_tcp:close(Socket),
    erlmcp_test_http:stop(Server).

%% RFC 7541, 2.3.2: "The dynamic table consists of a list of header fields maintained in first-in,
%% first-out order. The first and newest entry in a dynamic table is at the lowest index".
what_the_table_says_now_holds(_) ->
    Server = serve(#{}),
    Socket = connect(Server),
    {_, Body} = Call = call(~"quick", ~"one"),
    {Block, _} = repeated(Socket, Call),
    %% With one more field in front of them all others are one further: the block's fields are not
    %% those of a request any more.
    {More, _} = cow_hpack:encode([{~"accept-language", ~"en"}]),
    Longer = iolist_to_binary([Block, More]),
    ok = ask(Socket, 7, Longer, Body),
    ~"quick:one" = answer(Socket, 7),
    ok = ask(Socket, 9, Block, Body),
    {rst_stream, 9, protocol_error} = frame(Socket, [rst_stream]),
    ok = gen_tcp:close(Socket),
    erlmcp_test_http:stop(Server).

%% RFC 9113, 8.1.1: "A request or response is also malformed if the value of a content-length header
%% field does not equal the sum of the DATA frame payload lengths that form the content [...]
%% Malformed requests or responses that are detected MUST be treated as a stream error
%% (Section 5.4.2) of type PROTOCOL_ERROR."
other_lengths_are_errors_of_the_stream(_) ->
    Server = serve(#{}),
    Socket = connect(Server),
    {_, Body} = Call = call(~"quick", ~"one"),
    {Block, _} = repeated(Socket, Call),
    [begin
         ok = gen_tcp:send(Socket, [cow_http2:headers(Id, nofin, Block) | Data]),
         {Id, protocol_error} = {Id, answer(Socket, Id)}
     end || {Id, Data} <- [{7, [cow_http2:data(7, fin, [Body, $\s])]},
                           {9, [cow_http2:data(9, fin, binary:part(Body, 0, 20))]},
                           {11, [cow_http2:data(11, fin, ~"")]},
                           {13, [cow_http2:data(13, nofin, ~" "), cow_http2:data(13, fin, Body)]}]],
    ok = gen_tcp:send(Socket, cow_http2:headers(15, fin, Block)),
    {15, protocol_error} = {15, answer(Socket, 15)},
    ~"quick:one" = asked(Socket, 17, Block, Call),
    ok = gen_tcp:close(Socket),
    erlmcp_test_http:stop(Server).

%% The same block on a stream that has begun is no request.
trailers_are_no_requests(_) ->
    Server = serve(#{}),
    Socket = connect(Server),
    {_, Body} = Call = call(~"quick", ~"one"),
    {Block, _} = repeated(Socket, Call),
    ok = gen_tcp:send(Socket, [cow_http2:headers(7, nofin, Block), cow_http2:ping(7)]),
    {ping_ack, 7} = frame(Socket, [ping_ack]),
    ok = ask(Socket, 7, Block, Body),
    {goaway, _, protocol_error, _} = frame(Socket, [goaway]),
    ok = gen_tcp:close(Socket),
    erlmcp_test_http:stop(Server).

%% A listener's fun is asked for each request, whose head it has had before.
who_comes_is_asked_each_time(_) ->
    Asked = counters:new(1, []),
    Who = fun(#{headers := #{~"mcp-method" := ~"tools/call"}}) ->
        ok = counters:add(Asked, 1, 1),
        case counters:get(Asked, 1) of
            Count when Count < 5 -> {ok, {client, 1}};
            _ -> {error, ~"nobody"}
        end
    end,
    Server = serve(#{listen => [{http, #{authenticate => Who}}]}),
    Socket = connect(Server),
    Call = call(~"other", ~"one"),
    {Block, _} = repeated(Socket, Call),
    ~"other:one" = asked(Socket, 7, Block, Call),
    true = is_integer(asked(Socket, 9, Block, Call)),
    5 = counters:get(Asked, 1),
    ok = gen_tcp:close(Socket),
    erlmcp_test_http:stop(Server).

%% A page's browser looks at every answer, of whichever head (`m:erlmcp_httpd_cors`).
pages_may_read_it_each_time(_) ->
    Page = ~"https://app.example.com",
    Server = serve(#{listen => [{http, #{allowed_origins => [Page]}}]}),
    Socket = connect(Server),
    {Headers, Body} = call(~"other", ~"one"),
    Sent = [{~"origin", Page} | Headers],
    {First, Table} = block(Sent, byte_size(Body), cow_hpack:init()),
    {Again, Table} = block(Sent, byte_size(Body), Table),
    _ = lists:foldl(fun({Id, Block}, Known) ->
        ok = ask(Socket, Id, Block, Body),
        {headers, Id, nofin, head_fin, Answered} = frame(Socket, [headers]),
        {Told, Next} = cow_hpack:decode(Answered, Known),
        {_, Page} = lists:keyfind(~"access-control-allow-origin", 1, Told),
        ~"other:one" = answer(Socket, Id),
        Next
    end, cow_hpack:init(), [{1, First}, {3, Again}, {5, Again}, {7, Again}]),
    ok = gen_tcp:close(Socket),
    erlmcp_test_http:stop(Server).

%% More than a connection may have at once: the others are as if these had not been. Their bodies
%% are not sent: cowlib takes them for errors of the connection
%% (docs/upstream/cowlib-refused-streams.md).
refused_streams_leave_nothing(_) ->
    Server = serve(#{limits => #{calls_per_connection => 2}}),
    Socket = connect(Server),
    {Headers, _} = Call = call(~"wait", ~"one"),
    {_, Body} = Call,
    {First, Table} = block(Headers, byte_size(Body), cow_hpack:init()),
    {Block, _} = block(Headers, byte_size(Body), Table),
    Waiting = [begin
                   ok = ask(Socket, Id, How, Body),
                   erlmcp_test_line:await_call()
               end || {Id, How} <- [{1, First}, {3, Block}]],
    ok = gen_tcp:send(Socket, [cow_http2:headers(Id, nofin, Block) || Id <- [5, 7]]),
    [refused_stream = answer(Socket, Id) || Id <- [5, 7]],
    [begin
         Pid ! {answer, ~"done"},
         ~"done" = answer(Socket, Id)
     end || {Id, Pid} <- lists:zip([1, 3], Waiting)],
    ok = ask(Socket, 9, Block, Body),
    erlmcp_test_line:await_call() ! {answer, ~"done"},
    ~"done" = answer(Socket, 9),
    ok = gen_tcp:close(Socket),
    erlmcp_test_http:stop(Server).

%% RFC 9113, 6.9.1: who keeps to the window of the connection can always go on.
windows_are_as_the_client_sees_them(_) ->
    Server = serve(#{}),
    Socket = connect(Server),
    {_, Body} = Call = call(~"quick", binary:copy(~"x", 2_000)),
    {Block, _} = repeated(Socket, Call),
    Left = keeping_to_it(Socket, Block, Body, 7, 207, 65_535 - 3 * byte_size(Body)),
    true = Left > 0,
    ok = gen_tcp:close(Socket),
    erlmcp_test_http:stop(Server).

%% Each answer tells what came before it, and so what may be sent.
keeping_to_it(_, _, _, Last, Last, Window) ->
    Window;
keeping_to_it(Socket, Block, Body, Id, Last, Window) when Window >= byte_size(Body) ->
    ok = ask(Socket, Id, Block, Body),
    More = opened(Socket, Id, 0),
    keeping_to_it(Socket, Block, Body, Id + 2, Last, Window - byte_size(Body) + More);
keeping_to_it(Socket, Block, Body, Id, Last, Window) ->
    %% Of those before; the request is begun, and the window is opened for it.
    ok = gen_tcp:send(Socket, cow_http2:headers(Id, nofin, Block)),
    More = awaited(Socket, byte_size(Body) - Window),
    ok = gen_tcp:send(Socket, cow_http2:data(Id, fin, Body)),
    Next = Window + More - byte_size(Body) + opened(Socket, Id, 0),
    keeping_to_it(Socket, Block, Body, Id + 2, Last, Next).

opened(Socket, Id, More) ->
    case frame(Socket, [data, window_update]) of
        {window_update, Increment} -> opened(Socket, Id, More + Increment);
        {window_update, _, _} -> opened(Socket, Id, More);
        {data, Id, fin, _} -> More
    end.

awaited(Socket, Wanted) ->
    case frame(Socket, [window_update]) of
        {window_update, Increment} when Increment >= Wanted -> Increment;
        {window_update, Increment} -> Increment + awaited(Socket, Wanted - Increment);
        {window_update, _, _} -> awaited(Socket, Wanted)
    end.

%% A connection has collected its garbage some twenty times then, and keeps none of it as old.
no_garbage_is_kept(_) ->
    #{pid := Supervisor} = Server = serve(#{}),
    Socket = connect(Server),
    Call = call(~"quick", binary:copy(~"a", 1_024)),
    {Block, _} = repeated(Socket, Call),
    [asked(Socket, Id, Block, Call) || Id <- lists:seq(7, 207, 2)],
    [Ref] = [Id || {{listener, Id}, _, _, _} <- supervisor:which_children(Supervisor)],
    [Pid] = ranch:procs(Ref, connections),
    {garbage_collection_info, Heap} = process_info(Pid, garbage_collection_info),
    0 = proplists:get_value(old_heap_block_size, Heap),
    ok = gen_tcp:close(Socket),
    erlmcp_test_http:stop(Server).
