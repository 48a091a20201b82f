-module(spec_2025_11_25_resumability_SUITE).
-moduledoc """
Specification 2025-11-25, "Transports / Resumability and Redelivery", and the polling of "Sending
Messages to the Server": a stream of a session outlives its connections, within bounds.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([stream_begins_with_a_place_to_resume_from/1, older_clients_get_events_with_data_only/1,
         event_ids_are_unique_in_a_session/1]).
-export([lost_events_are_replayed/1, answer_is_replayed/1, what_is_still_to_come_follows/1,
         nothing_of_another_stream_is_replayed/1, own_stream_is_resumed/1,
         batch_is_resumed/1, http2_stream_is_resumed/1]).
-export([resumption_takes_the_place_of_a_connection/1, a_lost_connection_holds_up_no_other/1,
         a_reset_request_is_not_waited_for/1, cancelled_stream_ends/1,
         changes_that_are_not_kept_are_told_anew/1, unknown_events_are_refused/1,
         other_sessions_events_are_refused/1]).
-export([server_may_close_the_connection/1, older_clients_keep_their_connection/1,
         stateless_clients_keep_their_connection/1]).
-export([question_is_asked_again/1, question_waits_anew_after_each_loss/1,
         json_client_gets_its_answer/1]).
-export([kept_events_are_bounded_in_number/1, kept_events_are_bounded_in_bytes/1,
         kept_events_are_bounded_in_age/1, slow_reader_is_cut_and_comes_back/1,
         slow_reader_of_http2_is_cut/1]).

-import(erlmcp_test_suite, [server/1]).
-import(erlmcp_test_http, [call/4, start_call/4, connect/1, close/1, head/1, response/1, chunk/1,
                           initialize/2, get_stream/2, get_stream/3, finish/2, running/0, ended/1]).

-define(REVISION, ~"2025-11-25").
%% The place of `lost` in the state of a session's process.
-define(LOST, 8).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    erlmcp_test_suite:cases(?MODULE).

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, gun], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    [{server, start(#{retry_ms => 100})} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_http:stop(server(Config)).

start(Limits) ->
    #{tools := Tools} = Definitions = erlmcp_test_http:definitions(self()),
    erlmcp_test_http:start(Definitions#{limits => Limits, tools => Tools ++ tools(self())}).

tools(Test) ->
    [#{name => ~"reports", handler => fun(#{~"texts" := Texts}, Context) ->
           Test ! {running, self(), Context},
           reports(Texts, Context, Test)
       end},
     #{name => ~"closes", handler => fun(_, Context) ->
           ok = erlmcp:close_connection(Context),
           Test ! {running, self(), Context},
           receive {finish, Return} -> Return end
       end},
     #{name => ~"asks", handler => fun
           (_, #{input := #{~"it" := #{~"content" := Content}}}) -> {structured, Content};
           (_, _) -> {input_required, #{~"it" => erlmcp_input:elicit(~"What?", #{})}}
       end}].

%% Says each text, and waits to be told to go on. A number is as many bytes.
reports([Size | Texts], Context, Test) when is_integer(Size) ->
    reports([binary:copy(~"x", Size) | Texts], Context, Test);
reports([Text | Texts], Context, Test) ->
    ok = erlmcp:log(Context, error, Text),
    Test ! {said, self()},
    receive
        {finish, more} -> reports(Texts, Context, Test);
        {finish, Return} -> Return
    end.

session(Config) ->
    initialize(server(Config), ?REVISION).

%% A call on a connection of its own, and the head of its stream.
stream(Server, Session, Id, Tool, Arguments) ->
    Socket = connect(Server),
    {Headers, Body} = erlmcp_test_http:message(~"tools/call",
                                               #{name => Tool, arguments => Arguments},
                                               #{session => Session, id => Id}),
    ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
    {Call, _} = running(),
    {200, #{~"content-type" := ~"text/event-stream"}} = head(Socket),
    {Socket, Call}.

reporting(Server, Session, Texts) ->
    stream(Server, Session, 1, ~"reports", #{texts => Texts}).

%% Goes on from an event.
resume(Server, Session, EventId) ->
    {Socket, {200, #{~"content-type" := ~"text/event-stream"}}} =
        get_stream(Server, Session, [{~"accept", ~"text/event-stream"},
                                     {~"last-event-id", EventId}]),
    Socket.

refused(Server, Session, EventId) ->
    {Socket, {400, _}} = get_stream(Server, Session, [{~"accept", ~"text/event-stream"},
                                                      {~"last-event-id", EventId}]),
    close(Socket).

%% The next event as it is, and what is in it: nothing, or messages of the revision.
event(Socket) ->
    case chunk(Socket) of
        ~"" ->
            fin;
        <<":", _/binary>> ->
            event(Socket);
        Chunk ->
            [#{data := Data} = Event | _] = erlmcp_test_http:read_events(Chunk),
            [ok = valid(Message) || Data =/= ~"", Message <- lists:flatten([json:decode(Data)])],
            maps:with([id, retry, data], Event)
    end.

valid(#{~"method" := _, ~"id" := _} = Message) ->
    erlmcp_test_schema:request(Message, ?REVISION);
valid(#{~"method" := _} = Message) ->
    erlmcp_test_schema:notification(Message, ?REVISION);
valid(#{~"id" := Id} = Message) when Id =/= 8 ->
    erlmcp_test_schema:result(Message, ~"tools/call", ?REVISION);
valid(Message) ->
    erlmcp_test_schema:result(Message, ~"ping", ?REVISION).

primed(Socket) ->
    #{id := Id, data := ~"", retry := _} = event(Socket),
    Id.

said(Socket) ->
    #{id := Id, data := Data} = event(Socket),
    #{~"params" := #{~"data" := Text}} = json:decode(Data),
    {Id, Text}.

answered(Socket) ->
    #{data := Data} = event(Socket),
    #{~"id" := Id, ~"result" := #{~"content" := [#{~"text" := Text}]}} = json:decode(Data),
    fin = event(Socket),
    {Id, Text}.

%% "The server SHOULD immediately send an SSE event consisting of an event ID and an empty data
%% field in order to prime the client to reconnect". With a `retry` that is not the same for all.
stream_begins_with_a_place_to_resume_from(Config) ->
    Session = session(Config),
    Delays = [begin
                  {Socket, Call} = reporting(server(Config), Session, [~"one"]),
                  #{id := Id, retry := Delay, data := ~""} = event(Socket),
                  {Other, ~"one"} = said(Socket),
                  true = Id =/= Other,
                  finish(Call, ~"done"),
                  {1, ~"done"} = answered(Socket),
                  close(Socket),
                  Delay
              end || _ <- lists:seq(1, 20)],
    [] = [Delay || Delay <- Delays, Delay < 100 orelse Delay > 150],
    true = length(lists:usort(Delays)) > 1,
    {Own, _} = get_stream(server(Config), Session),
    #{data := ~"", retry := _} = event(Own),
    close(Own).

%% Their parsers take the data of every event for a message.
older_clients_get_events_with_data_only(Config) ->
    [begin
         Session = initialize(server(Config), Revision),
         {Socket, Call} = reporting(server(Config), Session, [~"one"]),
         {Id, ~"one"} = said(Socket),
         finish(Call, ~"done"),
         {1, ~"done"} = answered(Socket),
         Again = resume(server(Config), Session, Id),
         {1, ~"done"} = answered(Again),
         [close(S) || S <- [Socket, Again]]
     end || Revision <- [~"2025-03-26", ~"2025-06-18"]].

%% "If present, the ID MUST be globally unique across all streams within that session".
event_ids_are_unique_in_a_session(Config) ->
    Session = session(Config),
    Streams = [reporting(server(Config), Session, [~"one", ~"two"]) || _ <- lists:seq(1, 3)],
    {Own, _} = get_stream(server(Config), Session),
    [finish(Call, more) || {_, Call} <- Streams],
    Ids = [primed(Own) | lists:append([[primed(Socket), element(1, said(Socket)),
                                        element(1, said(Socket))] || {Socket, _} <- Streams])],
    10 = length(lists:usort(Ids)),
    [finish(Call, ~"done") || {_, Call} <- Streams],
    [close(Socket) || Socket <- [Own | [Socket || {Socket, _} <- Streams]]].

%% "The server MAY use this header to replay messages that would have been sent after the last event
%% ID, on the stream that was disconnected, and to resume the stream from that point."
lost_events_are_replayed(Config) ->
    Session = session(Config),
    {Socket, Call} = reporting(server(Config), Session, [~"one", ~"two", ~"three"]),
    Primed = primed(Socket),
    {One, ~"one"} = said(Socket),
    close(Socket),
    [finish(Call, more) || _ <- [two, three]],
    finish(Call, ~"done"),
    _ = ended(Call),
    Again = resume(server(Config), Session, One),
    [~"two", ~"three"] = [Text || _ <- [two, three], {_, Text} <- [said(Again)]],
    {1, ~"done"} = answered(Again),
    %% From anywhere in the stream, as often as the client likes.
    Whole = resume(server(Config), Session, Primed),
    [~"one", ~"two", ~"three"] = [Text || _ <- [1, 2, 3], {_, Text} <- [said(Whole)]],
    {1, ~"done"} = answered(Whole),
    [close(S) || S <- [Again, Whole]].

%% The answer was written to nobody.
answer_is_replayed(Config) ->
    Session = session(Config),
    {Socket, Call} = reporting(server(Config), Session, [~"one"]),
    _ = primed(Socket),
    {One, _} = said(Socket),
    close(Socket),
    finish(Call, ~"done"),
    _ = ended(Call),
    Again = resume(server(Config), Session, One),
    #{id := Last, data := _} = event(Again),
    fin = event(Again),
    %% There is nothing after it: the stream is over.
    Over = resume(server(Config), Session, Last),
    fin = event(Over),
    [close(S) || S <- [Again, Over]].

what_is_still_to_come_follows(Config) ->
    Session = session(Config),
    {Socket, Call} = reporting(server(Config), Session, [~"one", ~"two", ~"three"]),
    Primed = primed(Socket),
    close(Socket),
    finish(Call, more),
    Again = resume(server(Config), Session, Primed),
    [~"one", ~"two"] = [Text || _ <- [1, 2], {_, Text} <- [said(Again)]],
    finish(Call, more),
    {_, ~"three"} = said(Again),
    finish(Call, ~"done"),
    {1, ~"done"} = answered(Again),
    close(Again).

%% "The server MUST NOT replay messages that would have been delivered on a different stream."
nothing_of_another_stream_is_replayed(Config) ->
    Session = session(Config),
    {One, CallOne} = stream(server(Config), Session, 1, ~"reports", #{texts => [~"a", ~"b"]}),
    {Two, CallTwo} = stream(server(Config), Session, 2, ~"reports", #{texts => [~"x", ~"y"]}),
    {Own, _} = get_stream(server(Config), Session),
    Primed = [primed(Socket) || Socket <- [One, Two, Own]],
    [close(Socket) || Socket <- [One, Two]],
    [begin
         finish(Call, more), finish(Call, ~"done"), ended(Call)
     end || Call <- [CallOne, CallTwo]],
    ok = erlmcp:add(maps:get(pid, server(Config)), prompt,
                    #{name => ~"new", handler => fun(_, _) -> ~"" end}),
    #{id := _, data := Changed} = event(Own),
    #{~"method" := ~"notifications/prompts/list_changed"} = json:decode(Changed),
    close(Own),
    [AgainOne, AgainTwo, AgainOwn] = [resume(server(Config), Session, Id) || Id <- Primed],
    [~"a", ~"b"] = [Text || _ <- [1, 2], {_, Text} <- [said(AgainOne)]],
    {1, ~"done"} = answered(AgainOne),
    [~"x", ~"y"] = [Text || _ <- [1, 2], {_, Text} <- [said(AgainTwo)]],
    {2, ~"done"} = answered(AgainTwo),
    #{data := Changed} = event(AgainOwn),
    [close(S) || S <- [AgainOne, AgainTwo, AgainOwn]].

%% "This mechanism applies regardless of how the original stream was initiated (via POST or GET)."
own_stream_is_resumed(Config) ->
    #{pid := Server} = server(Config),
    Session = session(Config),
    Add = fun(Name) ->
        ok = erlmcp:add(Server, prompt, #{name => Name, handler => fun(_, _) -> ~"" end})
    end,
    {Socket, _} = get_stream(server(Config), Session),
    _ = primed(Socket),
    Add(~"one"),
    #{id := One} = event(Socket),
    Add(~"two"),
    #{id := Two} = event(Socket),
    close(Socket),
    Add(~"three"),
    %% What came while there was no connection is said once, whatever its number.
    Add(~"four"),
    Again = resume(server(Config), Session, One),
    #{id := Two} = event(Again),
    #{id := Three} = event(Again),
    true = Three =/= Two,
    Add(~"five"),
    #{id := Four} = event(Again),
    true = Four =/= Three,
    close(Again).

batch_is_resumed(Config) ->
    Session = initialize(server(Config), ~"2025-03-26"),
    Socket = connect(server(Config)),
    {Headers, _} = erlmcp_test_http:message(~"tools/call", #{}, #{session => Session}),
    Call = #{jsonrpc => ~"2.0", id => 7, method => ~"tools/call",
             params => #{name => ~"reports", arguments => #{texts => [~"one", ~"two"]}}},
    Ping = #{jsonrpc => ~"2.0", id => 8, method => ~"ping"},
    ok = erlmcp_test_http:send(Socket, ~"POST", Headers, json:encode([Call, Ping])),
    {Pid, _} = running(),
    {200, _} = head(Socket),
    {One, ~"one"} = said(Socket),
    close(Socket),
    finish(Pid, more),
    finish(Pid, ~"done"),
    Again = resume(server(Config), Session, One),
    {_, ~"two"} = said(Again),
    #{data := Data} = event(Again),
    [7, 8] = lists:sort([Id || #{~"id" := Id, ~"result" := _} <- json:decode(Data)]),
    fin = event(Again),
    close(Again).

%% There the stream of the call goes, and its connection stays.
http2_stream_is_resumed(Config) ->
    #{port := Port} = server(Config),
    Session = session(Config),
    {ok, Connection} = gun:open("127.0.0.1", Port, #{protocols => [http2]}),
    {ok, http2} = gun:await_up(Connection, 60_000),
    {Headers, Body} = erlmcp_test_http:message(~"tools/call",
                                               #{name => ~"reports",
                                                 arguments => #{texts => [~"one", ~"two"]}},
                                               #{session => Session, id => 1}),
    Stream = gun:post(Connection, ~"/mcp", Headers, Body),
    {Call, _} = running(),
    {response, nofin, 200, _} = gun:await(Connection, Stream, 60_000),
    {data, nofin, Primed} = gun:await(Connection, Stream, 60_000),
    [#{id := Id, data := ~""}] = erlmcp_test_http:read_events(Primed),
    ok = gun:cancel(Connection, Stream),
    finish(Call, more),
    finish(Call, ~"done"),
    {SessionId, _} = Session,
    Again = gun:get(Connection, ~"/mcp", [{~"accept", ~"text/event-stream"},
                                          {~"mcp-session-id", SessionId},
                                          {~"last-event-id", Id}]),
    {response, nofin, 200, _} = gun:await(Connection, Again, 60_000),
    {ok, Rest} = gun:await_body(Connection, Again, 60_000),
    [#{~"params" := #{~"data" := ~"one"}}, #{~"params" := #{~"data" := ~"two"}},
     #{~"id" := 1, ~"result" := _}] = Messages =
        [json:decode(Data) || #{data := Data} <- erlmcp_test_http:read_events(Rest), Data =/= ~""],
    [ok = valid(Message) || Message <- Messages],
    gun:close(Connection).

%% The old one may be dead without the server knowing it.
resumption_takes_the_place_of_a_connection(Config) ->
    Session = session(Config),
    {Socket, Call} = reporting(server(Config), Session, [~"one", ~"two"]),
    _ = primed(Socket),
    {One, ~"one"} = said(Socket),
    Again = resume(server(Config), Session, One),
    fin = event(Socket),
    finish(Call, more),
    {_, ~"two"} = said(Again),
    finish(Call, ~"done"),
    {1, ~"done"} = answered(Again),
    [close(S) || S <- [Socket, Again]].

%% One that was stuck when its stream went on elsewhere says late what it has written.
a_lost_connection_holds_up_no_other(Config) ->
    #{pid := Server} = server(Config),
    Session = session(Config),
    {Socket, _} = get_stream(server(Config), Session),
    _ = primed(Socket),
    Change = fun(Number) ->
        ok = erlmcp:add(Server, prompt, #{name => integer_to_binary(Number),
                                          handler => fun(_, _) -> ~"" end}),
        #{id := Id} = event(Socket),
        Id
    end,
    [~"0-1" | _] = [Change(Number) || Number <- lists:seq(1, 40)],
    ok = erlmcp_session:written(erlmcp_test_http:session_process(), {0, 1}),
    ~"0-41" = Change(41),
    close(Socket).

%% On HTTP/2 the request goes, and its connection stays: what the call asks then reaches nobody.
a_reset_request_is_not_waited_for(_) ->
    Server = #{port := Port} = start(#{reconnect_ms => 100}),
    #{session := Session} =
        erlmcp_test_client:open(Server, http, ?REVISION, #{elicitation => #{}}),
    {ok, Connection} = gun:open("127.0.0.1", Port, #{protocols => [http2]}),
    {ok, http2} = gun:await_up(Connection, 60_000),
    Post = fun(Method, Params, Id) ->
        {Headers, Body} = erlmcp_test_http:message(Method, Params, #{session => Session, id => Id}),
        gun:post(Connection, ~"/mcp", Headers, Body)
    end,
    Stream = Post(~"tools/call", #{name => ~"wait"}, 1),
    {Call, _} = running(),
    ok = gun:cancel(Connection, Stream),
    {response, nofin, 200, _} = gun:await(Connection, Post(~"ping", #{}, 2), 60_000),
    finish(Call, {input_required, #{~"it" => erlmcp_input:elicit(~"What?", #{})}}),
    _ = ended(Call),
    gun:close(Connection),
    erlmcp_test_http:stop(Server).

cancelled_stream_ends(Config) ->
    Session = session(Config),
    {Socket, Call} = reporting(server(Config), Session, [~"one"]),
    Primed = primed(Socket),
    {One, ~"one"} = said(Socket),
    #{status := 202} = call(server(Config), ~"notifications/cancelled", #{requestId => 1},
                            #{session => Session, id => none}),
    _ = ended(Call),
    fin = event(Socket),
    Again = resume(server(Config), Session, Primed),
    {One, ~"one"} = said(Again),
    fin = event(Again),
    [close(S) || S <- [Socket, Again]].

%% The client has lost its connection, and the server has not noticed it. The client is told of each
%% subject once, though these are more than what is kept for it.
changes_that_are_not_kept_are_told_anew(_) ->
    #{pid := Pid} = Server = start(#{stored_events => 10}),
    Session = initialize(Server, ?REVISION),
    Uris = [<<"test://item/", (integer_to_binary(Number))/binary>> || Number <- lists:seq(1, 40)],
    [#{messages := [#{~"result" := _}]} =
         call(Server, ~"resources/subscribe", #{uri => Uri}, #{session => Session})
     || Uri <- Uris],
    {Lost, {200, _}} = get_stream(Server, Session),
    Primed = primed(Lost),
    Add = fun(Number) ->
        ok = erlmcp:add(Pid, prompt, #{name => integer_to_binary(Number),
                                       handler => fun(_, _) -> ~"" end})
    end,
    [begin
         ok = Add(Number),
         ~"notifications/prompts/list_changed" = changed(Lost)
     end || Number <- lists:seq(1, 11)],
    Again = resume(Server, Session, Primed),
    fin = event(Lost),
    _ = primed(Again),
    Lists = [~"notifications/prompts/list_changed", ~"notifications/resources/list_changed",
             ~"notifications/tools/list_changed"],
    Changes = lists:sort(Lists ++ Uris),
    Changes = lists:sort([changed(Again) || _ <- Changes]),
    %% An event that there never was takes the stream from nobody.
    refused(Server, Session, ~"0-99"),
    ok = Add(12),
    ~"notifications/prompts/list_changed" = changed(Again),
    [close(Socket) || Socket <- [Lost, Again]],
    erlmcp_test_http:stop(Server).

changed(Socket) ->
    #{data := Data} = event(Socket),
    case json:decode(Data) of
        #{~"method" := ~"notifications/resources/updated", ~"params" := #{~"uri" := Uri}} -> Uri;
        #{~"method" := Method} -> Method
    end.

unknown_events_are_refused(Config) ->
    Session = session(Config),
    [refused(server(Config), Session, Id)
     || Id <- [~"0-1", ~"1-0", ~"1-1", ~"nonsense", ~"-", ~"0-", ~"0--1", ~"-1-0", ~"0-x",
               binary:copy(~"9", 4000), ~"99999999999999999999-1"]],
    #{messages := [#{~"result" := _}]} =
        call(server(Config), ~"ping", #{}, #{session => Session}).

other_sessions_events_are_refused(Config) ->
    [Own, Other] = [session(Config) || _ <- [1, 2]],
    {Socket, Call} = reporting(server(Config), Own, [~"secret"]),
    Primed = primed(Socket),
    refused(server(Config), Other, Primed),
    {_, ~"secret"} = said(Socket),
    finish(Call, ~"done"),
    {1, ~"done"} = answered(Socket),
    close(Socket).

%% "After the server has sent an SSE event with an event ID to the client, the server MAY close the
%% connection (without terminating the SSE stream) at any time"
server_may_close_the_connection(Config) ->
    Session = session(Config),
    {Socket, Call} = stream(server(Config), Session, 1, ~"closes", #{}),
    Primed = primed(Socket),
    fin = event(Socket),
    finish(Call, ~"done"),
    Again = resume(server(Config), Session, Primed),
    {1, ~"done"} = answered(Again),
    [close(S) || S <- [Socket, Again]].

older_clients_keep_their_connection(Config) ->
    Session = initialize(server(Config), ~"2025-06-18"),
    {Socket, Call} = start_call(server(Config), Session, ~"closes", 1),
    finish(Call, ~"done"),
    #{messages := [#{~"id" := 1, ~"result" := _}]} = response(Socket),
    close(Socket).

stateless_clients_keep_their_connection(Config) ->
    Test = self(),
    spawn_link(fun() ->
        Test ! {reply, call(server(Config), ~"tools/call", #{name => ~"closes"}, #{})}
    end),
    {Call, _} = running(),
    finish(Call, ~"done"),
    receive {reply, #{messages := [#{~"result" := _}]}} -> ok end.

%% What a call asks while its client is away is asked when it comes back.
question_is_asked_again(Config) ->
    Capabilities = #{elicitation => #{}},
    Client = erlmcp_test_client:open(server(Config), http, ?REVISION, Capabilities),
    #{session := Session} = Client,
    Socket = connect(server(Config)),
    {Headers, Body} = erlmcp_test_http:message(~"tools/call", #{name => ~"asks"},
                                               #{session => Session, id => 1}),
    ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
    {200, _} = head(Socket),
    Primed = primed(Socket),
    close(Socket),
    Again = resume(server(Config), Session, Primed),
    #{data := Data} = event(Again),
    #{~"id" := Id, ~"method" := ~"elicitation/create"} = json:decode(Data),
    ok = erlmcp_test_client:answer(Client, Id, #{action => accept, content => #{n => 1}}),
    #{data := Answer} = event(Again),
    #{~"id" := 1, ~"result" := #{~"structuredContent" := #{~"n" := 1}}} = json:decode(Answer),
    close(Again).

%% The second loss comes before the time after the first one is over.
question_waits_anew_after_each_loss(_) ->
    Server = start(#{reconnect_ms => 60_000}),
    Client = erlmcp_test_client:open(Server, http, ?REVISION, #{elicitation => #{}}),
    #{session := Session} = Client,
    Socket = connect(Server),
    {Headers, Body} = erlmcp_test_http:message(~"tools/call", #{name => ~"asks"},
                                               #{session => Session, id => 1}),
    ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
    {200, _} = head(Socket),
    Primed = primed(Socket),
    #{data := Data} = event(Socket),
    #{~"id" := Id, ~"method" := ~"elicitation/create"} = json:decode(Data),
    close(Socket),
    Process = erlmcp_test_http:session_process(),
    {Call, Timer} = other_timer(none, Process),
    Again = resume(Server, Session, Primed),
    #{data := Data} = event(Again),
    close(Again),
    {Call, _} = other_timer(Timer, Process),
    %% The time of the first loss is over.
    Process ! {timeout, Timer, {unattended, Call}},
    Last = resume(Server, Session, Primed),
    #{data := Data} = event(Last),
    ok = erlmcp_test_client:answer(Client, Id, #{action => accept, content => #{n => 1}}),
    #{data := Answer} = event(Last),
    #{~"id" := 1, ~"result" := #{~"structuredContent" := #{~"n" := 1}}} = json:decode(Answer),
    close(Last),
    erlmcp_test_http:stop(Server).

%% The session's call that has lost its connection, and the timer of the loss.
other_timer(Before, Process) ->
    erlmcp_test_servers:await(fun() ->
        case maps:to_list(element(?LOST, sys:get_state(Process))) of
            [{Call, Timer}] when Timer =/= Before -> {ok, {Call, Timer}};
            _ -> again
        end
    end).

%% It does not read streams: it is sent no notifications, and no question.
json_client_gets_its_answer(Config) ->
    Session = session(Config),
    Json = #{session => Session, headers => #{~"accept" => ~"application/json"}},
    #{headers := #{~"content-type" := ~"application/json"}, messages := [#{~"result" := _}]} =
        call(server(Config), ~"tools/call", #{name => ~"log"}, Json),
    #{messages := [#{~"error" := _}]} =
        call(server(Config), ~"tools/call", #{name => ~"asks"}, Json).

%% At the bound all is there; with one more the oldest goes.
kept_events_are_bounded_in_number(_) ->
    bounded(#{stored_events => 3}, [~"one", ~"two", ~"three"]).

kept_events_are_bounded_in_bytes(_) ->
    %% A log message of this kind is 90 bytes and its text.
    Text = binary:copy(~"x", 10_000),
    bounded(#{stored_bytes => 31_000}, [Text, Text, Text]).

bounded(Limits, Texts) ->
    Server = start(Limits),
    Session = initialize(Server, ?REVISION),
    {Socket, Call} = reporting(Server, Session, Texts ++ [hd(Texts)]),
    Primed = primed(Socket),
    {One, _} = said(Socket),
    [begin finish(Call, more), said(Socket) end || _ <- tl(Texts)],
    Whole = resume(Server, Session, Primed),
    Texts = [Text || _ <- Texts, {_, Text} <- [said(Whole)]],
    finish(Call, more),
    {_, _} = said(Whole),
    close(Whole),
    refused(Server, Session, Primed),
    Rest = resume(Server, Session, One),
    [_ | Left] = Texts,
    Left = [Text || _ <- Left, {_, Text} <- [said(Rest)]],
    [close(S) || S <- [Socket, Rest]],
    erlmcp_test_http:stop(Server).

kept_events_are_bounded_in_age(_) ->
    Server = start(#{stored_ms => 100}),
    Session = initialize(Server, ?REVISION),
    {Socket, Call} = reporting(Server, Session, [~"one"]),
    Primed = primed(Socket),
    {One, ~"one"} = said(Socket),
    await(fun() ->
        case get_stream(Server, Session, [{~"accept", ~"text/event-stream"},
                                          {~"last-event-id", Primed}]) of
            {Old, {200, _}} -> close(Old), false;
            {Old, {400, _}} -> close(Old), true
        end
    end, 3000),
    %% The stream itself goes on.
    Again = resume(Server, Session, One),
    finish(Call, ~"done"),
    {1, ~"done"} = answered(Again),
    [close(S) || S <- [Socket, Again]],
    erlmcp_test_http:stop(Server).

await(Is, Left) when Left > 0 ->
    case Is() of
        true -> ok;
        false -> receive after 10 -> await(Is, Left - 1) end
    end.

%% Never more is kept for it than the bounds say, and what it can still have it gets.
slow_reader_is_cut_and_comes_back(_) ->
    Server = start(#{stored_events => 20}),
    Session = initialize(Server, ?REVISION),
    {Socket, Call} = reporting(Server, Session, [1_000_000 || _ <- lists:seq(1, 100)]),
    _ = primed(Socket),
    {First, _} = said(Socket),
    [finish(Call, more) || _ <- lists:seq(1, 99)],
    finish(Call, ~"done"),
    _ = ended(Call),
    Last = last_event(Socket, First),
    refused(Server, Session, Last),
    #{messages := [#{~"result" := _}]} = call(Server, ~"ping", #{}, #{session => Session}),
    erlmcp_test_http:stop(Server).

%% There the connection itself is not held up: what the client's window has no room for is kept in
%% it, and it is the same few events.
slow_reader_of_http2_is_cut(_) ->
    #{port := Port} = Server = start(#{stored_events => 20}),
    Session = initialize(Server, ?REVISION),
    Windows = #{initial_connection_window_size => 65_535, initial_stream_window_size => 65_535},
    {ok, Connection} = gun:open("127.0.0.1", Port, #{protocols => [http2], http2_opts => Windows}),
    {ok, http2} = gun:await_up(Connection, 60_000),
    {Headers, Body} = erlmcp_test_http:message(
        ~"tools/call", #{name => ~"reports",
                         arguments => #{texts => [100_000 || _ <- lists:seq(1, 100)]}},
        #{session => Session, id => 1}),
    Stream = gun:post(Connection, ~"/mcp", Headers, Body, #{flow => 1}),
    {Call, _} = running(),
    %% Each one has gone through the session and the connection before the next is said.
    {Same, Ping} = erlmcp_test_http:message(~"ping", #{}, #{session => Session}),
    [begin
         receive {said, Call} -> ok end,
         #{status := 200} = call(Server, ~"resources/subscribe", #{uri => ~"test://text"},
                                 #{session => Session}),
         Pinged = gun:post(Connection, ~"/mcp", Same, Ping),
         {response, nofin, 200, _} = gun:await(Connection, Pinged, 60_000),
         gun:cancel(Connection, Pinged),
         finish(Call, more)
     end || _ <- lists:seq(1, 99)],
    finish(Call, ~"done"),
    _ = ended(Call),
    gun:update_flow(Connection, Stream, 1_000_000),
    {response, nofin, 200, _} = gun:await(Connection, Stream, 60_000),
    {ok, Read} = gun:await_body(Connection, Stream, 60_000),
    Events = [Data || #{data := Data} <- erlmcp_test_http:read_events(Read), Data =/= ~""],
    {true, _} = {length(Events) < 40, length(Events)},
    gun:close(Connection),
    erlmcp_test_http:stop(Server).

last_event(Socket, Last) ->
    case event(Socket) of
        #{id := Id} -> last_event(Socket, Id);
        fin -> Last
    end.
