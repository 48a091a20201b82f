-module(bad_http2_peers_SUITE).
-moduledoc """
Servers that misbehave in HTTP/2, frame by frame; what `m:bad_http_peers_SUITE` is for HTTP/1.1. The
server of a case writes what it likes once it has a whole request for a tool.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([never_in_time/1, stream_ends/1, connection_ends/1, requests_are_turned_away/1,
         fewer_streams_than_before/1, resumptions_are_turned_away/1, windows_are_ignored/1,
         window_is_never_opened/1, heads_without_end/1, small_heads_that_grow/1,
         floods_of_frames/1, wrong_answers/1]).

-import(erlmcp_test_suite, [watch/1]).
-import(erlmcp_test_peer, [drip/2]).

-define(WAIT, 30_000).
-define(SLACK, 10_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [never_in_time, stream_ends, connection_ends, requests_are_turned_away,
     fewer_streams_than_before, resumptions_are_turned_away, windows_are_ignored,
     window_is_never_opened, heads_without_end, small_heads_that_grow, floods_of_frames,
     wrong_answers].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, gun], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    [{watch, erlmcp_test_watch:start()} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_watch:stop(watch(Config)).

never_in_time(Config) ->
    each(Config, 300, [{timeout, 300}],
         [{silence, fun(_, _) -> ok end},
          {head_alone, fun(Socket, Id) -> send(Socket, head(Id, ~"application/json")) end},
          {byte_by_byte, fun(Socket, Id) ->
              ok = send(Socket, head(Id, ~"application/json")),
              drip(Socket, cow_http2:data(Id, nofin, ~" "))
           end},
          {empty_frames, fun(Socket, Id) ->
              ok = send(Socket, head(Id, ~"application/json")),
              drip(Socket, cow_http2:data(Id, nofin, ~""))
           end}]).

stream_ends(Config) ->
    each(Config, ?WAIT, [closed],
         [{at_once, fun(Socket, Id) -> send(Socket, cow_http2:rst_stream(Id, internal_error)) end},
          {in_the_body, fun(Socket, Id) ->
              send(Socket, [head(Id, ~"application/json"), cow_http2:data(Id, nofin, ~"{"),
                            cow_http2:rst_stream(Id, cancel)])
           end},
          {in_the_events, fun(Socket, Id) ->
              send(Socket, [head(Id, ~"text/event-stream"),
                            cow_http2:data(Id, fin, ~"data: {\"json")])
           end}]).

connection_ends(Config) ->
    each(Config, ?WAIT, [closed],
         [{at_once, fun(_, _) -> close end},
          {in_a_frame, fun(Socket, Id) ->
              <<Part:12/binary, _/binary>> = iolist_to_binary(head(Id, ~"application/json")),
              ok = send(Socket, Part),
              close
           end},
          {bytes, fun(Socket, _) ->
              ok = send(Socket, binary:copy(<<255, 0, 255>>, 10_000)),
              close
           end},
          {http_1, fun(Socket, _) ->
              ok = send(Socket, ~"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n"),
              close
           end},
          {goaway_for_the_request, fun(Socket, Id) ->
              ok = send(Socket, cow_http2:goaway(Id, protocol_error, ~"no")),
              close
           end}]).

%% What a server says it has not looked at is sent again, and not for ever.
requests_are_turned_away(Config) ->
    Count = counters:new(1, []),
    Counted = fun(Frames, Next) ->
        fun(Socket, Id) ->
            ok = counters:add(Count, 1, 1),
            ok = send(Socket, Frames(Id)),
            Next
        end
    end,
    each(Config, ?WAIT, [{closed, unprocessed}],
         [{going_away, Counted(fun(_) -> cow_http2:goaway(0, no_error, ~"") end, close)},
          {going_away_and_staying, Counted(fun(_) -> cow_http2:goaway(0, no_error, ~"") end, ok)},
          {refused, Counted(fun(Id) -> cow_http2:rst_stream(Id, refused_stream) end, ok)}]),
    true = counters:get(Count, 1) =< 3 * 8 orelse error({requests, counters:get(Count, 1)}).

%% The pool has not heard yet that the server allows no streams any more. Gun has, and sends
%% nothing.
fewer_streams_than_before(Config) ->
    {_, _} = erlmcp_test_watch:run(fun() ->
        {Peer, Client} = started(fun(Socket, Id) ->
            send(Socket, [cow_http2:settings(#{max_concurrent_streams => 0}),
                          head(Id, ~"text/html"), cow_http2:data(Id, fin, ~"")])
        end, #{}, #{}),
        {ok, _} = erlmcp_client:server(Client),
        Pool = pool(Client),
        ok = sys:suspend(Pool),
        {error, {protocol, _}} = erlmcp_client:call_tool(Client, ~"t", #{}),
        {error, {closed, unprocessed}} = erlmcp_client:call_tool(Client, ~"t", #{}),
        ok = sys:resume(Pool),
        stopped(Peer, Client)
    end, watch(Config)).

pool(Client) ->
    {links, Links} = process_info(Client, links),
    [Pool] = [Pid || Channel <- Links, is_pid(Channel),
                     {supervisor, _, _} <- [proc_lib:initial_call(Channel)],
                     {pool, Pid, _, _} <- supervisor:which_children(Channel)],
    Pool.

%% The server has accepted the request of the stream, which is resumed later: no reason says that
%% nothing was done.
resumptions_are_turned_away(Config) ->
    Requests = counters:new(1, []),
    Events = fun(Id, Bytes) ->
        [head(Id, ~"text/event-stream"), cow_http2:data(Id, fin, Bytes)]
    end,
    Answer = fun(Socket, Id) ->
        ok = counters:add(Requests, 1, 1),
        send(Socket, case counters:get(Requests, 1) of
            1 -> Events(Id, ~"id: 1\nretry: 0\ndata:\n\n");
            7 -> Events(Id, [~B'data: {"jsonrpc":"2.0","id":1,"result":{}}', ~"\n\n"]);
            _ -> cow_http2:rst_stream(Id, refused_stream)
        end)
    end,
    {_, _} = erlmcp_test_watch:run(fun() ->
        {Peer, Url} = listening(Answer, #{}),
        Sent = erlmcp_test_httpc_channel:outgoing(
            #{session => ~"s", resumes => true,
              message => ~B'{"jsonrpc":"2.0","id":1,"method":"tools/call"}'}),
        erlmcp_test_httpc_channel:with_channel(Url, #{protocols => [http2]}, fun(Channel) ->
            {ok, X} = erlmcp_httpc_channel:send(Sent, Channel),
            [{headers, _}, {headers, _}, {message, {response, 1, {ok, #{}}}}] =
                erlmcp_test_httpc_channel:events(X)
        end),
        exit(Peer, kill)
    end, watch(Config)).

windows_are_ignored(Config) ->
    Frame = fun(Id) -> iolist_to_binary(cow_http2:data(Id, nofin, binary:copy(~" ", 16_384))) end,
    each(Config, ?WAIT, [closed, too_large],
         [{body, fun(Socket, Id) ->
              ok = send(Socket, head(Id, ~"application/json")),
              flood(Socket, Frame(Id), 209_715_200)
           end},
          {of_no_stream, fun(Socket, Id) -> flood(Socket, Frame(Id + 2), 209_715_200) end}]).

window_is_never_opened(Config) ->
    {_, _} = erlmcp_test_watch:run(fun() ->
        {Peer, Client} = started(fun(_, _) -> ok end, #{initial_window_size => 0}, #{}),
        {error, _} = erlmcp_client:call_tool(Client, ~"t", #{text => binary:copy(~"x", 100_000)},
                                             #{timeout => 500}),
        stopped(Peer, Client)
    end, watch(Config)).

heads_without_end(Config) ->
    More = binary:copy(<<0>>, 16_384),
    each(Config, ?WAIT, [closed],
         [{continuations, fun(Socket, Id) ->
              ok = send(Socket, <<16_384:24, 1:8, 0:8, Id:32, More/binary>>),
              flood(Socket, <<16_384:24, 9:8, 0:8, Id:32, More/binary>>, 209_715_200)
           end},
          {empty_continuations, fun(Socket, Id) ->
              ok = send(Socket, <<0:24, 1:8, 0:8, Id:32>>),
              flood(Socket, binary:copy(<<0:24, 9:8, 0:8, Id:32>>, 1000), 20_000_000),
              close
           end}]).

%% A field that was sent once is a byte afterwards.
small_heads_that_grow(Config) ->
    Long = binary:copy(~"y", 4000),
    {Status, _} = cow_hpack:encode([{~":status", ~"200"},
                                    {~"content-type", ~"application/json"}]),
    First = <<16#40, 1, $x, 127, (length_of(4000))/binary, Long/binary>>,
    Block = iolist_to_binary([Status, First, binary:copy(<<16#be>>, 12_000)]),
    {Took, Cost} = erlmcp_test_watch:run(fun() ->
        one(fun(Socket, Id) ->
                Size = byte_size(Block),
                send(Socket, [<<Size:24, 1:8, 4:8, Id:32>>, Block,
                              cow_http2:data(Id, fin, ~"{}")])
            end, ?WAIT, [protocol, closed])
    end, watch(Config)),
    ct:pal("~p ~p", [Took, Cost]),
    true = is_integer(Took).

%% After a prefix of 7 bits that are all set.
length_of(Length) ->
    Rest = Length - 127,
    <<1:1, (Rest rem 128):7, 0:1, (Rest div 128):7>>.

%% A deadline holds where there is always something to read.
floods_of_frames(Config) ->
    Flood = fun(Frame) ->
        Frames = binary:copy(iolist_to_binary(Frame), 100),
        fun(Socket, _) -> flood(Socket, Frames, infinity) end
    end,
    each(Config, 500, [{timeout, 500}, closed],
         [{pings, Flood(cow_http2:ping(1))},
          {settings, Flood(cow_http2:settings(#{max_concurrent_streams => 100}))},
          {windows, Flood(cow_http2:window_update(0))},
          {unknown_frames, Flood(<<10:24, 77:8, 0:8, 0:32, 0:80>>)},
          {pushes, fun(Socket, Id) ->
              {Block, _} = cow_hpack:encode([{~":method", ~"GET"}, {~":scheme", ~"http"},
                                             {~":authority", ~"a"}, {~":path", ~"/"}]),
              send(Socket, cow_http2:push_promise(Id, 2, iolist_to_binary(Block)))
           end},
          {events, fun(Socket, Id) ->
              ok = send(Socket, head(Id, ~"text/event-stream")),
              drip(Socket, cow_http2:data(Id, nofin, ~": nothing\n\n"))
           end}]).

wrong_answers(Config) ->
    Says = fun(Type, Body) ->
        fun(Socket, Id) -> send(Socket, [head(Id, Type), cow_http2:data(Id, fin, Body)]) end
    end,
    each(Config, ?WAIT, [protocol],
         [{html, Says(~"text/html", ~"<html>")},
          {type_that_is_no_text, Says(<<255>>, ~"{}")},
          {no_json, Says(~"application/json", ~"hello")},
          {wrong_id, Says(~"application/json",
                          ~B'{"jsonrpc":"2.0","id":999,"result":{"content":[]}}')}]).

%% How a case goes.

each(Config, Timeout, Expected, Kinds) ->
    {Took, Cost} = erlmcp_test_watch:run(fun() ->
        [{Name, one(Answer, Timeout, Expected)} || {Name, Answer} <- Kinds]
    end, watch(Config)),
    ct:pal("milliseconds: ~p~n~p", [Took, Cost]),
    [] = [Wrong || {_, Milliseconds} = Wrong <- Took, not is_integer(Milliseconds)].

one(Answer, Timeout, Expected) ->
    {Peer, Client} = started(Answer, #{}, #{}),
    {ok, _} = erlmcp_client:server(Client),
    Began = now_ms(),
    Outcome = erlmcp_client:call_tool(Client, ~"t", #{}, #{timeout => Timeout}),
    Took = now_ms() - Began,
    ok = stopped(Peer, Client),
    case Outcome of
        {error, Reason} when Took < Timeout + ?SLACK ->
            _ = <<(erlmcp_client:format_error(Reason))/binary>>,
            case lists:member(Reason, Expected) orelse lists:member(element(1, Reason), Expected) of
                true -> Took;
                false -> {unexpected, Reason}
            end;
        _ ->
            {unexpected, Outcome, Took}
    end.

started(Answer, Settings, Options) ->
    {Peer, Url} = listening(Answer, Settings),
    {ok, Client} = erlmcp_client:start_link({http, Url, Options#{
        era => stateless, protocols => [http2]}}),
    {Peer, Client}.

listening(Answer, Settings) ->
    Test = self(),
    Peer = spawn(fun() ->
        {ok, Listen} = gen_tcp:listen(0, [binary, {active, false}, {nodelay, true},
                                          {ip, {127, 0, 0, 1}}]),
        {ok, Port} = inet:port(Listen),
        Test ! {self(), Port},
        accept(Listen, Answer, Settings)
    end),
    receive
        {Peer, Port} -> {Peer, <<"http://127.0.0.1:", (integer_to_binary(Port))/binary, "/mcp">>}
    after ?WAIT ->
        error(no_peer)
    end.

stopped(Peer, Client) ->
    ok = erlmcp_client:stop(Client),
    exit(Peer, kill),
    ok.

accept(Listen, Answer, Settings) ->
    {ok, Socket} = gen_tcp:accept(Listen),
    Pid = spawn_link(fun() ->
        receive yours -> ok end,
        {ok, ~"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"} = gen_tcp:recv(Socket, 24),
        ok = send(Socket, cow_http2:settings(Settings)),
        serve(Socket, ~"", Answer, #{})
    end),
    ok = gen_tcp:controlling_process(Socket, Pid),
    Pid ! yours,
    accept(Listen, Answer, Settings).

serve(Socket, Bytes, Answer, Bodies) ->
    case cow_http2:parse(Bytes) of
        {ok, Frame, Rest} ->
            frame(Frame, Socket, Rest, Answer, Bodies);
        {ignore, Rest} ->
            serve(Socket, Rest, Answer, Bodies);
        more ->
            case gen_tcp:recv(Socket, 0) of
                {ok, More} -> serve(Socket, <<Bytes/binary, More/binary>>, Answer, Bodies);
                {error, _} -> ok
            end
    end.

frame({data, Id, Fin, Data}, Socket, Rest, Answer, Bodies) ->
    Body = [maps:get(Id, Bodies, []), Data],
    case Fin of
        nofin ->
            serve(Socket, Rest, Answer, Bodies#{Id => Body});
        fin ->
            case answered(json:decode(iolist_to_binary(Body)), Id, Socket, Answer) of
                ok -> serve(Socket, Rest, Answer, maps:remove(Id, Bodies));
                close -> gen_tcp:close(Socket)
            end
    end;
%% A request without a body.
frame({headers, Id, fin, head_fin, _}, Socket, Rest, Answer, Bodies) ->
    case Answer(Socket, Id) of
        ok -> serve(Socket, Rest, Answer, Bodies);
        close -> gen_tcp:close(Socket)
    end;
frame({settings, _}, Socket, Rest, Answer, Bodies) ->
    _ = send(Socket, cow_http2:settings_ack()),
    serve(Socket, Rest, Answer, Bodies);
frame(_, Socket, Rest, Answer, Bodies) ->
    serve(Socket, Rest, Answer, Bodies).

answered(#{~"method" := ~"server/discover"} = Message, Id, Socket, _) ->
    Result = #{resultType => complete, ttlMs => 0, cacheScope => public, capabilities => #{},
               supportedVersions => [~"2026-07-28"]},
    Body = json:encode(erlmcp_test_peer:result(Message, Result)),
    send(Socket, [head(Id, ~"application/json"), cow_http2:data(Id, fin, Body)]);
answered(_, Id, Socket, Answer) ->
    Answer(Socket, Id).

head(Id, Type) ->
    {Block, _} = cow_hpack:encode([{~":status", ~"200"}, {~"content-type", Type}]),
    cow_http2:headers(Id, nofin, iolist_to_binary(Block)).

send(Socket, Bytes) ->
    case gen_tcp:send(Socket, Bytes) of
        ok -> ok;
        {error, _} -> close
    end.

flood(_, _, Left) when is_integer(Left), Left =< 0 ->
    ok;
flood(Socket, Bytes, Left) ->
    case gen_tcp:send(Socket, Bytes) of
        ok when Left =:= infinity -> flood(Socket, Bytes, infinity);
        ok -> flood(Socket, Bytes, Left - byte_size(Bytes));
        {error, _} -> close
    end.

now_ms() ->
    erlang:monotonic_time(millisecond).
