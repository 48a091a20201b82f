-module(unfinished_lines_SUITE).
-moduledoc """
The counted bytes and ages of messages that a connection of lines holds, until they are handled or
refused. The server is in this node, and the only row of the table is its own.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, end_per_testcase/2]).
-export([age_of_a_line/1, age_of_a_queue/1, queues_are_counted_after_the_input/1,
         nothing_undoes_a_refusal/1, answers_come_before_a_refusal/1, answers_come_before_the_end/1,
         those_who_do_not_read_give_back/1]).

-import(erlmcp_test_servers, [await/1, await_messages/2]).

-define(TIMEOUT, 30_000).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [age_of_a_line, age_of_a_queue, queues_are_counted_after_the_input, nothing_undoes_a_refusal,
     answers_come_before_a_refusal, answers_come_before_the_end, those_who_do_not_read_give_back].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

end_per_testcase(_, _) ->
    application:unset_env(erlmcp, unfinished_bytes).

%% Another line has as many bytes as the one before it had.
age_of_a_line(_) ->
    {Server, Socket} = lines(#{}),
    <<Begun:11/binary, Rest/binary>> = line(1, ~"tools/list", #{}),
    ok = gen_tcp:send(Socket, Begun),
    {_, 11, Since, _} = row(fun(_) -> true end),
    ok = later_than(Since),
    ok = gen_tcp:send(Socket, [Rest, Begun]),
    #{~"id" := 1, ~"result" := _} = erlmcp_test_line:recv(Socket),
    _ = row(fun({_, Bytes, Later, _}) -> Bytes =:= 11 andalso Later > Since end),
    ended(Server, Socket).

%% The age is that of the request that has waited longest.
age_of_a_queue(_) ->
    {Server, Socket} = lines(#{}),
    [First, Second, Third] = Calls = [call(Id, ~"wait", #{}) || Id <- [1, 2, 3]],
    One = byte_size(hd(Calls)) - 1,
    ok = gen_tcp:send(Socket, [First, Second]),
    {Call, _} = erlmcp_test_http:running(),
    {_, One, Since, _} = row(fun(_) -> true end),
    ok = later_than(Since),
    ok = gen_tcp:send(Socket, Third),
    {_, _, Since, _} = row(fun({_, Bytes, _, _}) -> Bytes =:= 2 * One end),
    ok = erlmcp_test_http:finish(Call, ~"done"),
    {Next, _} = erlmcp_test_http:running(),
    {_, _, Later, _} = row(fun({_, Bytes, _, _}) -> Bytes =:= One end),
    true = Later > Since,
    %% A line that begins is younger.
    ok = later_than(Later),
    ok = gen_tcp:send(Socket, ~"{"),
    {_, _, Later, _} = row(fun({_, Bytes, _, _}) -> Bytes =:= One + 1 end),
    ok = erlmcp_test_http:finish(Next, ~"done"),
    _ = erlmcp_test_http:running(),
    {_, _, Last, _} = row(fun({_, Bytes, _, _}) -> Bytes =:= 1 end),
    true = Last > Later,
    ended(Server, Socket).

%% The last line has no end, and waits as the one before it does.
queues_are_counted_after_the_input(_) ->
    {Server, Socket} = lines(#{}),
    Calls = iolist_to_binary([call(Id, ~"wait", #{}) || Id <- [1, 2, 3]]),
    One = byte_size(Calls) div 3 - 1,
    ok = gen_tcp:send(Socket, binary:part(Calls, 0, byte_size(Calls) - 1)),
    {First, _} = erlmcp_test_http:running(),
    {{Pid, _}, _, _, _} = row(fun({_, Bytes, _, _}) -> Bytes =:= 2 * One end),
    true = erlang:suspend_process(Pid),
    ok = erlmcp_test_line:end_of_input(Socket),
    ok = await_messages(1, Pid),
    true = erlang:resume_process(Pid),
    ok = rests(Pid),
    {_, Both, _, _} = row(fun(_) -> true end),
    Both = 2 * One,
    ok = erlmcp_test_http:finish(First, ~"done"),
    {Second, _} = erlmcp_test_http:running(),
    ok = rests(Pid),
    {_, One, _, _} = row(fun(_) -> true end),
    ok = erlmcp_test_http:finish(Second, ~"done"),
    {Third, _} = erlmcp_test_http:running(),
    ok = rests(Pid),
    0 = erlmcp_unfinished_messages:sum(),
    ok = erlmcp_test_http:finish(Third, ~"done"),
    [1, 2, 3] = [Id || #{~"id" := Id, ~"result" := _} <- erlmcp_test_line:recv_many(Socket, 3)],
    ended(Server, Socket).

%% The end of a line comes, and the beginning of another, before its process hears of the refusal.
nothing_undoes_a_refusal(_) ->
    refused_meanwhile(12).

%% The count is back at its value before.
answers_come_before_a_refusal(_) ->
    refused_meanwhile(11).

refused_meanwhile(Size) ->
    {Server, Socket} = lines(#{}),
    <<Begun:11/binary, Rest/binary>> = Line = line(1, ~"tools/list", #{}),
    ok = gen_tcp:send(Socket, Begun),
    {{Pid, _}, 11, _, _} = row(fun(_) -> true end),
    true = erlang:suspend_process(Pid),
    ok = gen_tcp:send(Socket, [Rest, binary:part(Line, 0, Size)]),
    ok = await_messages(1, Pid),
    ok = application:set_env(erlmcp, unfinished_bytes, 10),
    ok = await_messages(2, Pid),
    %% No other message is refused from here on.
    ok = application:unset_env(erlmcp, unfinished_bytes),
    ok = until(fun() -> erlmcp_unfinished_messages:bound() > 10 end),
    true = erlang:resume_process(Pid),
    #{~"id" := 1, ~"result" := _} = erlmcp_test_line:recv(Socket),
    #{~"error" := #{~"code" := 1089}} = erlmcp_test_line:recv(Socket),
    {error, closed} = erlmcp_test_line:recv_line(Socket, ?TIMEOUT),
    ended(Server, Socket).

%% A call ends, and then the time for a line, while the answer before is written.
answers_come_before_the_end(_) ->
    {Server, Socket} = lines(#{receive_timeout_ms => 4000, message_bytes => 10_000_000,
                               queue_bytes_per_connection => 100_000_000}),
    Text = binary:copy(~"x", 9_000_000),
    Echoes = [call(Id, ~"echo", #{~"text" => Echo})
              || {Id, Echo} <- [{1, Text}, {2, Text}, {3, ~""}]],
    ok = gen_tcp:send(Socket, [call(0, ~"wait", #{}), Echoes, ~"{"]),
    {Call, _} = erlmcp_test_http:running(),
    {{Pid, _}, _, _, _} = row(fun({_, Bytes, _, _}) -> Bytes > 2 * byte_size(Text) end),
    ok = erlmcp_test_http:finish(Call, ~"done"),
    ok = until(fun() ->
        {messages, Messages} = process_info(Pid, messages),
        lists:keymember(receive_timeout, 3, Messages)
            andalso lists:keymember('EXIT', 1, Messages)
    end),
    [0, 1, 2, 3] = [Id || #{~"id" := Id, ~"result" := _} <- erlmcp_test_line:recv_many(Socket, 4)],
    #{~"error" := #{~"data" := #{~"limit" := 4000}}} = erlmcp_test_line:recv(Socket),
    {error, closed} = erlmcp_test_line:recv_line(Socket, ?TIMEOUT),
    ended(Server, Socket).

%% A process that writes hears of no refusal, and is ended.
those_who_do_not_read_give_back(_) ->
    {Server, Socket} = lines(#{send_timeout_ms => 120_000}),
    Text = binary:copy(~"x", 70_000),
    Echoes = [call(Id, ~"echo", #{~"text" => Text}) || Id <- lists:seq(1, 200)],
    ok = gen_tcp:send(Socket, [call(0, ~"wait", #{}), Echoes]),
    {Call, _} = erlmcp_test_http:running(),
    {{Pid, _}, _, _, _} = row(fun({_, Bytes, _, _}) -> Bytes > 200 * byte_size(Text) end),
    ok = erlmcp_test_http:finish(Call, ~"done"),
    ok = until(fun() -> is_writing(Pid) andalso is_writing(Pid) end),
    Monitor = monitor(process, Pid),
    ok = application:set_env(erlmcp, unfinished_bytes, 10),
    ok = erlmcp_test_servers:down(Monitor),
    ok = until(fun() -> erlmcp_unfinished_messages:sum() =:= 0 end),
    ended(Server, Socket).

%% It waits, and not for any of the messages that it has.
is_writing(Pid) ->
    receive after 100 -> ok end,
    [{status, Status}, {message_queue_len, Count}] =
        process_info(Pid, [status, message_queue_len]),
    Status =:= waiting andalso Count > 0.

%% A server, and a connection to it of which one call runs at a time.
lines(Limits) ->
    Server = erlmcp_test_http:start((erlmcp_test_http:definitions(self()))#{
        listen => [{tcp, #{}}], limits => Limits#{calls_per_connection => 1}}),
    ok = until(fun() -> erlmcp_unfinished_messages:sum() =:= 0 end),
    Socket = erlmcp_test_line:connect(map_get(port, Server)),
    %% Unread answers soon fill this buffer.
    ok = inet:setopts(Socket, [{recbuf, 65_536}]),
    {Server, Socket}.

call(Id, Tool, Arguments) ->
    line(Id, ~"tools/call", #{~"name" => Tool, ~"arguments" => Arguments}).

line(Id, Method, Params) ->
    Message = erlmcp_test_line:stateless(Id, Method, Params),
    <<(iolist_to_binary(json:encode(Message)))/binary, $\n>>.

%% The row, when it is so.
row(Is) ->
    await(fun() ->
        case [Row || Row <- ets:tab2list(erlmcp_unfinished_messages), Is(Row)] of
            [Row] -> {ok, Row};
            [] -> again
        end
    end).

%% It has done all that there was to do.
rests(Pid) ->
    until(fun() ->
        process_info(Pid, [status, message_queue_len])
            =:= [{status, waiting}, {message_queue_len, 0}]
    end).

later_than(Ms) ->
    until(fun() -> erlang:monotonic_time(millisecond) > Ms end).

until(Is) ->
    await(fun() ->
        case Is() of
            true -> {ok, ok};
            false -> again
        end
    end).

ended(Server, Socket) ->
    ok = gen_tcp:close(Socket),
    erlmcp_test_http:stop(Server).
