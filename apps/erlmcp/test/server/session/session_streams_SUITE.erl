-module(session_streams_SUITE).
-moduledoc """
The streams of a session: what a connection is sent, in which order, and until when; and what a
client that comes back still gets. The connections here are tags of the test's own process.

Source: specification 2025-11-25, "Transports / Resumability and Redelivery".
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([an_answer_alone_has_no_stream/1, a_report_begins_a_stream/1,
         who_reads_no_streams_gets_the_answer_only/1, sixteen_events_are_on_their_way/1,
         who_reads_too_slowly_is_cut/1, what_is_too_old_is_not_waited_for/1,
         who_comes_back_gets_the_rest/1, what_is_not_kept_is_gone/1,
         what_is_no_event_is_gone/1, an_ended_stream_is_kept_like_its_events/1,
         the_own_stream_has_one_connection/1, a_connection_that_ends_leaves_its_call/1,
         a_closed_connection_is_no_closed_stream/1, a_cancelled_call_has_no_answer/1,
         all_connections_end_with_the_session/1,
         what_is_no_event_takes_no_stream_in_a_cluster/1]).
-export([kept_stream/3, keep_event/3]).

-define(LIMITS, #{stored_events => 100, stored_bytes => 1_000_000, stored_ms => 60_000,
                  retry_ms => 10}).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [an_answer_alone_has_no_stream, a_report_begins_a_stream,
     who_reads_no_streams_gets_the_answer_only, sixteen_events_are_on_their_way,
     who_reads_too_slowly_is_cut, what_is_too_old_is_not_waited_for,
     who_comes_back_gets_the_rest, what_is_not_kept_is_gone, what_is_no_event_is_gone,
     an_ended_stream_is_kept_like_its_events, the_own_stream_has_one_connection,
     a_connection_that_ends_leaves_its_call, a_closed_connection_is_no_closed_stream,
     a_cancelled_call_has_no_answer, all_connections_end_with_the_session,
     what_is_no_event_takes_no_stream_in_a_cluster].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

streams(Revision, Limits) ->
    erlmcp_session_streams:new(Revision, none, make_ref(), maps:merge(?LIMITS, Limits)).

%% The process of a call. Nothing is sent to it.
call() ->
    spawn(fun() -> ok end).

expect(Call, Owner, Streams, State) ->
    erlmcp_session_streams:expect(Call, {call, [1], subject, none}, Owner, Streams, State).

%% Of a call whose connection is `one` and has a stream with this many events.
reported(Count, Revision, Limits) ->
    Call = call(),
    Waiting = expect(Call, {self(), one}, true, streams(Revision, Limits)),
    {Call, lists:foldl(fun(N, State) -> message(Call, N, State) end, Waiting,
                       lists:seq(1, Count))}.

message(Call, N, State) ->
    {sent, Next} = erlmcp_session_streams:message(Call, text(N), State),
    Next.

text(N) -> <<"event ", (integer_to_binary(N))/binary>>.

%% What a connection was sent until now: events as their ids and data, with what follows.
sent(Tag) ->
    receive
        {Tag, {stream, {Stream, Position}, #{id := Id, data := Data} = Event, More}} ->
            Id = iolist_to_binary([integer_to_binary(Stream), $-, integer_to_binary(Position)]),
            Retry = [retry || #{retry := Ms} <- [Event], Ms > 10, Ms =< 15],
            [{Id, Data, More} | Retry] ++ sent(Tag);
        {Tag, Other} ->
            [Other | sent(Tag)]
    after 0 ->
        []
    end.

%% The events of the first call's stream.
events(From, To) ->
    [{<<"1-", (integer_to_binary(N))/binary>>, text(N), more} || N <- lists:seq(From, To)].

an_answer_alone_has_no_stream(_) ->
    Call = call(),
    Waiting = expect(Call, {self(), one}, true, streams('2025-11-25', #{})),
    true = erlmcp_session_streams:is_attended(Call, Waiting),
    Answered = erlmcp_session_streams:answer(Call, ~"answer", Waiting),
    [{answer, 200, ~"answer"}] = sent(one),
    %% Once.
    Answered = erlmcp_session_streams:answer(Call, ~"answer", Answered),
    Answered = erlmcp_session_streams:cancel(Call, Answered),
    {refused, Answered} = erlmcp_session_streams:message(Call, ~"late", Answered),
    [] = sent(one).

%% In 2025-11-25 it begins with an event that a client can come back to.
a_report_begins_a_stream(_) ->
    [begin
         {Call, Reported} = reported(1, Revision, #{}),
         First = sent(one),
         {Revision, First} = {Revision, Begins ++ events(1, 1)},
         Answered = erlmcp_session_streams:answer(Call, ~"answer", Reported),
         [{~"1-2", ~"answer", last}] = sent(one),
         %% The next call's stream is another one.
         Next = call(),
         Other = expect(Next, {self(), two}, true, Answered),
         _ = message(Next, 1, Other),
         {~"2-1", ~"event 1", more} = lists:last(sent(two)),
         [] = sent(one)
     end || {Revision, Begins} <- [{'2025-11-25', [{~"1-0", ~"", more}, retry]},
                                   {'2025-06-18', []}]].

who_reads_no_streams_gets_the_answer_only(_) ->
    Call = call(),
    Waiting = expect(Call, {self(), one}, false, streams('2025-11-25', #{})),
    {refused, Same} = erlmcp_session_streams:message(Call, ~"report", Waiting),
    {[], Detached} = erlmcp_session_streams:detach({self(), two}, Same),
    _ = erlmcp_session_streams:answer(Call, ~"answer", Detached),
    [{answer, 200, ~"answer"}] = sent(one).

%% As many as a connection has not confirmed yet. One that confirms is sent as many more.
sixteen_events_are_on_their_way(_) ->
    {Call, Reported} = reported(20, '2025-06-18', #{}),
    Sixteen = events(1, 16),
    Sixteen = sent(one),
    Written = fun(Position, State) -> erlmcp_session_streams:written({1, Position}, State) end,
    One = Written(1, Reported),
    [{~"1-17", _, more}] = sent(one),
    %% What was confirmed already, was not sent yet, or is of no stream says nothing.
    One = Written(1, One),
    One = Written(18, One),
    One = erlmcp_session_streams:written({7, 1}, One),
    [] = sent(one),
    Answered = erlmcp_session_streams:answer(Call, ~"answer", Written(17, One)),
    [{~"1-18", _, more}, {~"1-19", _, more}, {~"1-20", _, more}, {~"1-21", ~"answer", last}] =
        sent(one),
    %% It is over.
    Answered = Written(21, Answered).

%% When the first event is dropped that it was not sent, and not before.
who_reads_too_slowly_is_cut(_) ->
    {Call, Reported} = reported(36, '2025-06-18', #{stored_events => 20}),
    Sixteen = events(1, 16),
    Sixteen = sent(one),
    true = erlmcp_session_streams:is_attended(Call, Reported),
    Cut = message(Call, 37, Reported),
    [cancelled] = sent(one),
    false = erlmcp_session_streams:is_attended(Call, Cut),
    _ = message(Call, 38, Cut),
    [] = sent(one).

what_is_too_old_is_not_waited_for(_) ->
    {never, New} = erlmcp_session_streams:expire(streams('2025-06-18', #{})),
    {never, New} = erlmcp_session_streams:expire(New),
    {Call, Reported} = reported(17, '2025-06-18', #{}),
    {Milliseconds, Reported} = erlmcp_session_streams:expire(Reported),
    true = Milliseconds > 30_000 andalso Milliseconds =< 60_000,
    {Old, Late} = reported(17, '2025-06-18', #{stored_ms => 0}),
    {never, Cut} = erlmcp_session_streams:expire(Late),
    {true, false} = {erlmcp_session_streams:is_attended(Call, Reported),
                     erlmcp_session_streams:is_attended(Old, Cut)},
    cancelled = lists:last(sent(one)),
    %% One that was sent all of them has lost nothing.
    {Quick, Sent} = reported(16, '2025-06-18', #{stored_ms => 0}),
    {never, Kept} = erlmcp_session_streams:expire(Sent),
    true = erlmcp_session_streams:is_attended(Quick, Kept).

%% In place of the connection that it had, which may not have noticed its end.
who_comes_back_gets_the_rest(_) ->
    {Call, Reported} = reported(5, '2025-11-25', #{}),
    _ = sent(one),
    Resume = fun(Id, Tag, State) ->
        {ok, Next} = erlmcp_session_streams:resume(Id, {self(), Tag}, State),
        Next
    end,
    Three = Resume(~"1-3", two, Reported),
    [cancelled] = sent(one),
    Rest = events(4, 5),
    Rest = sent(two),
    Nothing = Resume(~"1-5", three, Three),
    {[cancelled], []} = {sent(two), sent(three)},
    All = Resume(~"1-0", four, Nothing),
    Five = events(1, 5),
    Five = sent(four),
    %% What is confirmed counts from where it came back.
    Many = lists:foldl(fun(N, State) -> message(Call, N, State) end, Resume(~"1-4", five, All),
                       lists:seq(6, 25)),
    Window = events(5, 20),
    Window = sent(five),
    _ = erlmcp_session_streams:answer(Call, ~"answer", Many),
    [] = sent(five).

what_is_not_kept_is_gone(_) ->
    {_, Reported} = reported(5, '2025-06-18', #{stored_events => 2}),
    [{error, gone} = erlmcp_session_streams:resume(Id, {self(), two}, Reported)
     || Id <- [~"1-0", ~"1-1", ~"1-2"]],
    _ = sent(one),
    {ok, _} = erlmcp_session_streams:resume(~"1-3", {self(), two}, Reported),
    Rest = events(4, 5),
    Rest = sent(two).

%% Whatever a client sends.
what_is_no_event_is_gone(_) ->
    {_, Reported} = reported(2, '2025-06-18', #{}),
    [{Id, {error, gone}} = {Id, erlmcp_session_streams:resume(Id, {self(), two}, Reported)}
     || Id <- [~"", ~"-", ~"1", ~"1-", ~"-1", ~"a-b", ~"1-b", ~"1-1-1", ~"1-3", ~"2-0", ~"9-1",
               ~"1--1", <<"1-1", 0>>, binary:copy(~"1", 41), ~"1-1.0"]],
    Both = events(1, 2),
    {Both, []} = {sent(one), sent(two)}.

%% One that is gone for good needs no memory.
an_ended_stream_is_kept_like_its_events(_) ->
    {Call, Reported} = reported(1, '2025-06-18', #{stored_events => 2}),
    Answered = erlmcp_session_streams:answer(Call, ~"answer", Reported),
    _ = sent(one),
    {ok, Resumed} = erlmcp_session_streams:resume(~"1-1", {self(), two}, Answered),
    [{~"1-2", ~"answer", last}] = sent(two),
    Other = call(),
    Waiting = expect(Other, {self(), three}, true, Resumed),
    One = message(Other, 1, Waiting),
    {ok, _} = erlmcp_session_streams:resume(~"1-1", {self(), two}, One),
    Two = message(Other, 2, One),
    [{error, gone} = erlmcp_session_streams:resume(Id, {self(), two}, Two)
     || Id <- [~"1-1", ~"1-2"]].

the_own_stream_has_one_connection(_) ->
    New = streams('2025-11-25', #{}),
    false = erlmcp_session_streams:is_open(New),
    {ok, Open} = erlmcp_session_streams:open({self(), one}, New),
    true = erlmcp_session_streams:is_open(Open),
    {error, attached} = erlmcp_session_streams:open({self(), two}, Open),
    Notified = erlmcp_session_streams:notify(~"changed", Open),
    [{~"0-0", ~"", more}, retry, {~"0-1", ~"changed", more}] = sent(one),
    %% Another one's end is not its own.
    {[], Notified} = erlmcp_session_streams:detach({self(), two}, Notified),
    {[], Left} = erlmcp_session_streams:detach({self(), one}, Notified),
    false = erlmcp_session_streams:is_open(Left),
    {ok, Again} = erlmcp_session_streams:open({self(), two}, Left),
    _ = erlmcp_session_streams:notify(~"again", Again),
    [{~"0-1", ~"", more}, retry, {~"0-2", ~"again", more}] = sent(two),
    [] = sent(one).

%% A client may come back with an event of another home. This module is the cluster here.
what_is_no_event_takes_no_stream_in_a_cluster(_) ->
    New = erlmcp_session_streams:new('2025-11-25', {5, ~"session", {?MODULE, none}}, make_ref(),
                                     ?LIMITS),
    {ok, Open} = erlmcp_session_streams:open({self(), one}, New),
    receive {one, {stream, _, _, more}} -> ok end,
    [{Id, {error, gone}} = {Id, erlmcp_session_streams:resume(Id, {self(), two}, Open)}
     || Id <- [~"4.0-lost", ~"4.0--1", ~"5.0-lost", ~"5.0--1", ~"5.0-9"]],
    {[], []} = {sent(one), sent(two)},
    [{missed, _} = erlmcp_session_streams:resume(Id, {self(), two}, Open)
     || Id <- [~"4.0-0", ~"6.0-3"]].

-doc false.
kept_stream(_, _, _) -> none.

-doc false.
keep_event(_, _, _) -> ok.

%% Its answer is kept until its client comes back.
a_connection_that_ends_leaves_its_call(_) ->
    Connection = spawn(fun() -> receive stop -> ok end end),
    Call = call(),
    Waiting = expect(Call, {Connection, one}, true, streams('2025-11-25', #{})),
    {[Call], Detached} = erlmcp_session_streams:detach({Connection, one}, Waiting),
    false = erlmcp_session_streams:is_attended(Call, Detached),
    Answered = erlmcp_session_streams:answer(Call, ~"answer", Detached),
    {ok, _} = erlmcp_session_streams:resume(~"1-0", {self(), two}, Answered),
    [{~"1-1", ~"answer", last}] = sent(two),
    %% The same if it dies with its stream, and once.
    Reported = message(Call, 1, Waiting),
    exit(Connection, kill),
    Monitor = receive {'DOWN', Down, process, Connection, killed} -> Down end,
    {[Call], Lost} = erlmcp_session_streams:down(Monitor, Reported),
    false = erlmcp_session_streams:is_attended(Call, Lost),
    {[], Lost} = erlmcp_session_streams:down(Monitor, Lost),
    {ok, _} = erlmcp_session_streams:resume(~"1-0", {self(), two}, Lost),
    One = events(1, 1),
    One = sent(two).

%% "the server MAY close the connection (without terminating the SSE stream) at any time". Clients
%% of older revisions would not come back.
a_closed_connection_is_no_closed_stream(_) ->
    Call = call(),
    Expected = fun(Revision) ->
        expect(Call, {self(), one}, true, streams(Revision, #{}))
    end,
    Closed = erlmcp_session_streams:close_connection(Call, Expected('2025-11-25')),
    [{~"1-0", ~"", more}, retry, cancelled] = sent(one),
    Answered = erlmcp_session_streams:answer(Call, ~"answer", message(Call, 1, Closed)),
    {ok, _} = erlmcp_session_streams:resume(~"1-0", {self(), two}, Answered),
    [{~"1-1", ~"event 1", more}, {~"1-2", ~"answer", last}] = sent(two),
    %% Nobody's, and one that waits for no stream.
    Closed = erlmcp_session_streams:close_connection(call(), Closed),
    Old = Expected('2025-06-18'),
    Old = erlmcp_session_streams:close_connection(Call, Old),
    [] = sent(one).

a_cancelled_call_has_no_answer(_) ->
    Call = call(),
    Waiting = expect(Call, {self(), one}, true, streams('2025-06-18', #{})),
    _ = erlmcp_session_streams:cancel(Call, Waiting),
    [cancelled] = sent(one),
    %% An empty answer is none.
    _ = erlmcp_session_streams:answer(Call, ~"", Waiting),
    [cancelled] = sent(one),
    %% Of a stream the rest is sent first.
    {Other, Reported} = reported(17, '2025-06-18', #{}),
    _ = sent(one),
    Cancelled = erlmcp_session_streams:cancel(Other, Reported),
    [] = sent(one),
    _ = erlmcp_session_streams:written({1, 16}, Cancelled),
    [{~"1-17", ~"event 17", last}] = sent(one),
    {None, Begun} = reported(1, '2025-06-18', #{}),
    _ = sent(one),
    _ = erlmcp_session_streams:cancel(None, Begun),
    [cancelled] = sent(one).

all_connections_end_with_the_session(_) ->
    {_, Reported} = reported(1, '2025-06-18', #{}),
    {ok, Open} = erlmcp_session_streams:open({self(), two}, Reported),
    Waiting = expect(call(), {self(), three}, false, Open),
    _ = sent(one),
    ok = erlmcp_session_streams:close(Waiting),
    [[cancelled], [cancelled], [cancelled]] = [sent(Tag) || Tag <- [one, two, three]],
    ok.
