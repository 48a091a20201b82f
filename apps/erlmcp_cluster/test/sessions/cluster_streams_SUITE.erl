-module(cluster_streams_SUITE).
-moduledoc """
The streams of calls survive the home of their session: a client that resumes at another node gets
what was kept, and the answer or an error, once. The cases follow each other in one cluster of three
nodes.
""".

-behaviour(erlmcp_server).

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([a_node_that_gets_no_copies_forgets_streams/1, an_end_that_is_not_copied_is_known/1,
         what_a_lost_connection_had_is_sent_again/1, an_ended_session_answers_its_calls/1,
         a_crashed_session_answers_its_calls/1,
         a_dead_home_leaves_its_events/1, events_survive_a_second_death/1,
         a_running_call_is_followed_while_its_node_leaves/1]).
%% On the nodes.
-export([server/0, tools/0, call_tool/3, let_wait/1, lose_copies/0, remembered/1,
         crash_session/1]).

-import(erlmcp_test_cluster, [call/4, call/5, await/2]).
-import(erlmcp_test_cluster_node, [serve/2, answered/1, get_stream/3, await_waiting/2, finish/3]).

-define(SERVER, ~"cluster_streams_SUITE").
-define(REVISION, ~"2025-11-25").
%% Events that are kept for a session.
-define(STORED, 20).
%% Of so many sessions, one has another next home when a node begins: the chance of none is 1 in two
%% million.
-define(SESSIONS, 80).
%% Bytes of events that wait to be copied.
-define(MOST_GIVEN, 16_777_216).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [a_node_that_gets_no_copies_forgets_streams, an_end_that_is_not_copied_is_known,
     what_a_lost_connection_had_is_sent_again, an_ended_session_answers_its_calls,
     a_crashed_session_answers_its_calls,
     a_dead_home_leaves_its_events, events_survive_a_second_death,
     a_running_call_is_followed_while_its_node_leaves].

init_per_suite(Config) ->
    Members = erlmcp_test_cluster:start(Config, #{}),
    [ok, ok, ok] = erlmcp_test_cluster:join(Members),
    ok = keep([served(Member) || Member <- Members]),
    ok = all_alive(),
    Config.

end_per_suite(_) ->
    lists:foreach(fun erlmcp_test_cluster:stop/1, members()),
    persistent_term:erase(?MODULE).

%% When a node begins, it is the next home of some sessions. The one before it does not hear of the
%% ends of their streams. (Events that are kept for longer would keep these, too.)
a_node_that_gets_no_copies_forgets_streams(_) ->
    [A, B, C] = members(),
    {_, [#{port := Port}]} = serve(A, #{
        id => forgets, handler => ?MODULE, cluster => erlmcp_cluster, listen => [{http, #{}}],
        limits => #{stored_ms => 1_000, call_timeout_ms => 600_000}}),
    Forgets = A#{http => #{port => Port, url => ~"http://127.0.0.1"}},
    Sessions = [initialize(Forgets, ?REVISION) || _ <- lists:seq(1, ?SESSIONS)],
    Streams = [start_tool(Forgets, Session, 1, #{says => 1}) || Session <- Sessions],
    [begin _ = primed(Stream), _ = said(Stream) end || Stream <- Streams],
    Remembered = fun(Member) -> call(Member, ?MODULE, remembered, [forgets]) end,
    {_, _} = await(fun() -> Remembered(B) + Remembered(C) =:= ?SESSIONS end, 30_000),
    Had = Remembered(B),
    ok = begins_again(C),
    ok = all_alive(),
    {_, _} = await(fun() -> Remembered(B) + Remembered(C) > ?SESSIONS end, 30_000),
    ct:pal("sessions at the two nodes: before ~b and ~b, then ~b and ~b",
           [Had, ?SESSIONS - Had, Remembered(B), Remembered(C)]),
    [#{status := 202} = notify(Forgets, Session, ~"notifications/cancelled", #{requestId => 1})
     || Session <- Sessions],
    {_, _} = await(fun() ->
        [sweep = call(Member, erlang, send, [erlmcp_cluster_events, sweep]) || Member <- [B, C]],
        receive after 500 -> Remembered(B) + Remembered(C) =:= 0 end
    end, 30_000),
    lists:foreach(fun erlmcp_test_http:close/1, Streams),
    call(A, erlmcp, stop_server, [forgets]).

%% Another incarnation of a node begins.
begins_again(Member) ->
    Number = call(Member, erlmcp_cluster_lease, incarnation, []),
    Lease = call(Member, erlang, whereis, [erlmcp_cluster_lease]),
    true = call(Member, erlang, exit, [Lease, kill]),
    {_, _} = await(fun() ->
        not lists:member(call(Member, erlmcp_cluster_lease, incarnation, []), [Number, none])
    end, 30_000),
    ok.

%% How many sessions of a server this node has something of.
-doc false.
remembered(Server) ->
    {Copies, _} = persistent_term:get(erlmcp_cluster_events),
    _ = sys:get_state(erlmcp_cluster_events),
    length([Of || {{Of, _}, _, _} <- erlmcp_cluster_event_copies:sessions(Copies), Of =:= Server]).

%% As many bytes wait to be copied as may.
an_end_that_is_not_copied_is_known(_) ->
    [A, B, C] = members(),
    Session = initialize(A, ?REVISION),
    Socket = start_tool(A, Session, 1, #{says => 2, as => ~"crowded"}),
    First = primed(Socket),
    [_, _] = [said(Socket) || _ <- [1, 2]],
    _ = await_waiting(A, ~"crowded"),
    ok = has_copy([B, C], Session, First, 2, running),
    ok = call(A, ?MODULE, let_wait, [?MOST_GIVEN]),
    Late = start_tool(A, Session, 2, #{says => 1, as => ~"late"}),
    Begun = primed(Late),
    {_, ~"1"} = said(Late),
    ok = finish(A, ~"crowded", ~"done"),
    {_, Answer} = next(Socket),
    {result, 1, ~"done"} = content(Answer),
    ok = has_copy([B, C], Session, First, 2, lost),
    ok = has_copy([B, C], Session, Begun, 0, running),
    ok = finish(A, ~"late", ~"done"),
    ok = has_copy([B, C], Session, Begun, 0, lost),
    ok = call(A, ?MODULE, let_wait, [-?MOST_GIVEN]),
    [ok = erlmcp_test_http:close(Each) || Each <- [Socket, Late]].

%% Nothing else happens: there is no other event, and all nodes live.
what_a_lost_connection_had_is_sent_again(_) ->
    [A, B, C] = members(),
    Session = initialize(A, ?REVISION),
    Socket = start_tool(A, Session, 1, #{says => 2, as => ~"lost"}),
    First = primed(Socket),
    _ = await_waiting(A, ~"lost"),
    ok = finish(A, ~"lost", ~"done"),
    ok = has_copy([B, C], Session, First, 3, ended),
    [Next] = [Member || Member <- [B, C], copy(Member, Session, First) =/= none],
    ok = call(Next, ?MODULE, lose_copies, []),
    none = copy(Next, Session, First),
    true = call(A, erlang, disconnect_node, [maps:get(node, Next)]),
    ok = has_copy([Next], Session, First, 3, ended),
    ok = erlmcp_test_http:close(Socket).

%% It goes on nowhere, so its clients do not come back for an answer.
an_ended_session_answers_its_calls(_) ->
    [_, B, _] = members(),
    answered_at_the_end(fun(Session) ->
        #{status := 204} = answered(fun() -> erlmcp_test_http:delete(http(B), Session) end)
    end).

%% The same of a session that crashes: this node is still its home.
a_crashed_session_answers_its_calls(_) ->
    [A, _, _] = members(),
    answered_at_the_end(fun({Id, _}) -> ok = call(A, ?MODULE, crash_session, [Id]) end).

answered_at_the_end(End) ->
    [A, B, _] = members(),
    Session = initialize(A, ?REVISION),
    Sockets = [begin
                   Socket = start_tool(Member, Session, Id, #{says => 1, as => Name}),
                   _ = primed(Socket),
                   {_, ~"1"} = said(Socket),
                   _ = await_waiting(A, Name),
                   {Id, Socket}
               end || {Member, Id, Name} <- [{A, 1, ~"ends here"}, {B, 2, ~"ends there"}]],
    _ = End(Session),
    [begin
         {_, Answer} = next(Socket),
         {error, Id, 1016} = content(Answer),
         fin = next(Socket),
         ok = erlmcp_test_http:close(Socket)
     end || {Id, Socket} <- Sockets].

%% Its clients were connected to it, or to another node, or had lost their connections.
a_dead_home_leaves_its_events(_) ->
    [A, B, C] = members(),
    [Answered, Running, Silent, Batch, Full, Cancelled] =
        [initialize(A, Revision)
         || Revision <- [?REVISION, ?REVISION, ?REVISION, ~"2025-03-26", ?REVISION, ?REVISION]],
    %% An answer that was made without its client.
    Away = start_tool(B, Answered, 1, #{says => 5, as => ~"answered"}),
    First = primed(Away),
    {One, ~"1"} = said(Away),
    ok = erlmcp_test_http:close(Away),
    _ = await_waiting(A, ~"answered"),
    ok = finish(A, ~"answered", ~"done"),
    ok = has_copy([B, C], Answered, First, 6, ended),
    %% A call that still runs, and one that has only closed its connection.
    Own = start_tool(A, Running, ~"two", #{says => 3, as => ~"running"}),
    Begun = primed(Own),
    [{_, ~"1"}, {_, ~"2"}, {Third, ~"3"}] = [said(Own) || _ <- lists:seq(1, 3)],
    Closed = start_tool(A, Silent, 3, #{closes => true, says => 0, as => ~"silent"}),
    Place = primed(Closed),
    fin = next(Closed),
    Calls = start_batch(A, Batch, [4, 5], #{says => 1}),
    {InBatch, ~"1"} = said(Calls),
    {_, ~"1"} = said(Calls),
    %% More than is kept. The answer is one of them.
    Much = start_tool(A, Full, 6, #{says => ?STORED + 1, as => ~"full"}),
    Least = primed(Much),
    Ids = [element(1, said(Much)) || _ <- lists:seq(1, ?STORED + 1)],
    ok = finish(A, ~"full", ~"done"),
    ok = has_copy([B, C], Full, Least, ?STORED + 2, ended),
    Given = start_tool(A, Cancelled, 7, #{says => 1, as => ~"cancelled"}),
    Before = primed(Given),
    {_, ~"1"} = said(Given),
    #{status := 202} = notify(A, Cancelled, ~"notifications/cancelled", #{requestId => 7}),
    [ok = has_copy([B, C], Session, Id, Last, State)
     || {Session, Id, Last, State} <- [{Running, Begun, 3, running}, {Silent, Place, 0, running},
                                       {Batch, InBatch, 2, running},
                                       {Cancelled, Before, 1, ended}]],
    ok = killed(A, Answered),
    lists:foreach(fun erlmcp_test_http:close/1, [Own, Closed, Calls, Much, Given]),
    %% In order, from wherever the client asks, and the answer once.
    Rest = [{text, N} || N <- [~"2", ~"3", ~"4", ~"5"]] ++ [{result, 1, ~"done"}],
    Events = resumed(C, Answered, One),
    Rest = contents(Events),
    Rest = tl(contents(resumed(B, Answered, First))),
    {Last, _} = lists:last(Events),
    [] = resumed(B, Answered, Last),
    %% What was copied, and then an error.
    [{End, {error, ~"two", 1080}}] = resumed(B, Running, Third),
    [] = resumed(C, Running, End),
    [{text, ~"1"}, {text, ~"2"}, {text, ~"3"}, {error, ~"two", 1080}] =
        contents(resumed(C, Running, Begun)),
    [{error, 3, 1080}] = contents(resumed(B, Silent, Place)),
    [{text, ~"1"}, [{error, 4, 1080}, {error, 5, 1080}]] = contents(resumed(B, Batch, InBatch)),
    %% It had events that were not copied any more.
    [{error, ~"two", 1080}] = contents(resumed(C, Running, one_later(Third))),
    %% The oldest events are not kept, at one more than the limit.
    [ok = refused(B, Full, Id) || Id <- [Least, hd(Ids)]],
    ?STORED = length(resumed(B, Full, lists:nth(2, Ids))),
    [{text, ~"1"}] = contents(resumed(C, Cancelled, Before)),
    %% Streams of other sessions, and those that never were, are refused as ever.
    [ok = refused(C, Session, Id) || {Session, Id} <- [{Answered, other(First)},
                                                      {Answered, one_later(Last)}]],
    %% The session goes on, with streams of its new home.
    New = start_tool(B, Answered, 8, #{says => 1, as => ~"new"}),
    true = primed(New) =/= First,
    {_, ~"1"} = said(New),
    ok = erlmcp_test_http:close(New),
    persistent_term:put({?MODULE, answered}, {Answered, One, Rest}).

%% The next home has sent what it got to the one after it, also to one that has just begun.
events_survive_a_second_death(_) ->
    {Answered, One, Rest} = persistent_term:get({?MODULE, answered}),
    ok = started_again(hd(members())),
    {ok, Home} = home(Answered),
    Others = lists:delete(Home, members()),
    ok = has_copy(Others, Answered, One, 6, ended),
    %% Their processes crash alone, so no other node sees that a node ends or begins.
    ok = lists:foreach(fun crash/1, Others),
    ok = has_copy(Others, Answered, One, 6, ended),
    ok = killed(Home, Answered),
    Rest = contents(resumed(hd(Others), Answered, One)),
    ok = started_again(Home).

%% Its client gets what there is, and comes back for the rest.
a_running_call_is_followed_while_its_node_leaves(_) ->
    [A, B, _] = members(),
    Session = initialize(A, ?REVISION),
    Socket = start_tool(A, Session, 1, #{says => 2, as => ~"leaving"}),
    First = primed(Socket),
    [_, _] = [said(Socket) || _ <- [1, 2]],
    ok = erlmcp_test_http:close(Socket),
    Test = self(),
    Drain = spawn_link(fun() ->
        Test ! {drained, self(), call(A, erlmcp, drain,
                                      [?SERVER, #{lame_ms => 0, timeout_ms => 30_000}], 60_000)}
    end),
    ok = has_another_home(A, Session),
    Events = [_, {Last, _}] = resumed(B, Session, First),
    [{text, ~"1"}, {text, ~"2"}] = contents(Events),
    [] = resumed(B, Session, Last),
    ok = finish(A, ~"leaving", ~"done"),
    receive {drained, Drain, {ok, #{calls := 0}}} -> ok end,
    {_, _} = await(fun() -> contents(resumed(B, Session, Last)) =:= [{result, 1, ~"done"}] end,
                   30_000).

%% The nodes.

members() -> persistent_term:get(?MODULE).

keep(Members) -> persistent_term:put(?MODULE, Members).

served(Member) ->
    {_, [#{port := Port}]} = serve(Member, #{
        id => ?SERVER, handler => ?MODULE, cluster => erlmcp_cluster, listen => [{http, #{}}],
        limits => #{stored_events => ?STORED, retry_ms => 100}}),
    Member#{http => #{port => Port, url => ~"http://127.0.0.1"}}.

started_again(#{node := Node} = Member) ->
    Back = erlmcp_test_cluster:revive(maps:remove(http, Member)),
    [ok] = erlmcp_test_cluster:join([Back]),
    Served = served(Back),
    ok = keep([case Of of
                   Node -> Served;
                   _ -> Other
               end || #{node := Of} = Other <- members()]),
    all_alive().

all_alive() ->
    {_, _} = await(fun() ->
        [3, 3, 3] =:= [length([Is || #{state := alive} = Is <- Nodes])
                       || Member <- members(),
                          #{nodes := Nodes} <- [call(Member, erlmcp_cluster_figures, overview, [])]]
    end, 30_000),
    ok.

killed(Member, Session) ->
    ok = erlmcp_test_cluster:kill(Member),
    has_another_home(Member, Session).

has_another_home(Member, Session) ->
    {_, _} = await(fun() ->
        case home(Session) of
            {ok, Member} -> false;
            Other -> Other
        end
    end, 30_000),
    ok.

%% The home of a session, as any node that lives knows it.
home({Id, _}) ->
    Of = [call(Member, erlmcp_cluster_sessions, home, [Id, server_of_ids(), anonymous])
          || #{peer := Peer} = Member <- members(), is_process_alive(Peer)],
    case lists:usort([Node || {ok, _, {Node, _}, _} <- Of]) of
        [Node] -> {ok, hd([Member || #{node := Is} = Member <- members(), Is =:= Node])};
        _ -> false
    end.

crash(Member) ->
    Pid = call(Member, erlang, whereis, [erlmcp_cluster_events]),
    true = call(Member, erlang, exit, [Pid, kill]),
    {_, _} = await(fun() ->
        Next = call(Member, erlang, whereis, [erlmcp_cluster_events]),
        is_pid(Next) andalso Next =/= Pid
    end, 30_000),
    %% It answers when it has its tables.
    call(Member, erlmcp_cluster_events, flush, []).

%% Nothing else tells that a copy has arrived.
has_copy(Members, Session, EventId, Last, State) ->
    {_, _} = await(fun() ->
        lists:any(fun(Member) ->
            case copy(Member, Session, EventId) of
                {ok, #{last := Last, state := State}} -> true;
                _ -> false
            end
        end, Members)
    end, 30_000),
    ok.

copy(Member, {Id, _}, EventId) ->
    [Incarnation, Number, _] = [binary_to_integer(Part)
                                || Part <- binary:split(EventId, [~".", ~"-"], [global])],
    call(Member, erlmcp_cluster_events, stream,
         [Id, {Incarnation, Number}, #{server => ?SERVER}]).

%% As if the events that this node has got were on their way when a connection was lost.
-doc false.
lose_copies() ->
    _ = sys:replace_state(erlmcp_cluster_events, fun(State) ->
        {Copies, _} = persistent_term:get(erlmcp_cluster_events),
        ok = erlmcp_cluster_event_copies:expire(1 bsl 59, fun(_) -> true end, Copies),
        State
    end),
    ok.

%% Crashes the process of a session of this node.
-doc false.
crash_session(Id) ->
    {ok, _, Instance} = erlmcp_registry:whereis(?SERVER),
    {ok, Pid, _, _} = erlmcp_session_table:lookup(Id, Instance),
    gen_server:cast(Pid, crash).

%% Counts bytes of events that wait to be copied.
-doc false.
let_wait(Bytes) ->
    {_, Given} = persistent_term:get(erlmcp_cluster_events),
    atomics:add(Given, 1, Bytes).

-doc false.
server() ->
    #{name => ~"test", version => ~"1"}.

-doc false.
tools() ->
    [#{name => ~"says"}].

-doc false.
call_tool(~"says", #{~"says" := Count} = Arguments, Context) ->
    _ = is_map_key(~"closes", Arguments) andalso erlmcp:close_connection(Context),
    _ = [ok = erlmcp:log(Context, error, integer_to_binary(N)) || N <- lists:seq(1, Count)],
    case Arguments of
        #{~"as" := Name} -> erlmcp_test_cluster_node:wait(Name);
        #{} -> receive never -> ok end
    end.

%% Clients.

http(#{http := Http}) -> Http.

initialize(Member, Revision) ->
    erlmcp_test_cluster_node:initialize(http(Member), Revision).

notify(Member, Session, Method, Params) ->
    answered(fun() ->
        erlmcp_test_http:call(http(Member), Method, Params, #{session => Session, id => none})
    end).

start_tool(Member, Session, Id, Arguments) ->
    {Headers, Body} = erlmcp_test_http:message(~"tools/call",
                                               #{name => ~"says", arguments => Arguments},
                                               #{session => Session, id => Id}),
    posted(Member, Headers, Body).

start_batch(Member, Session, Ids, Arguments) ->
    Bodies = [element(2, erlmcp_test_http:message(~"tools/call",
                                                  #{name => ~"says", arguments => Arguments},
                                                  #{session => Session, id => Id})) || Id <- Ids],
    {Headers, _} = erlmcp_test_http:message(~"ping", #{}, #{session => Session, id => 0}),
    posted(Member, Headers, iolist_to_binary([$[, lists:join($,, Bodies), $]])).

%% A busy machine may let a lease end for a moment. A refusal has no stream.
posted(Member, Headers, Body) ->
    {Opened, _} = await(fun() ->
        Socket = erlmcp_test_http:connect(http(Member)),
        ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
        case erlmcp_test_http:head(Socket) of
            {200, #{~"content-type" := ~"text/event-stream"}} ->
                Socket;
            {_, #{~"content-type" := ~"application/json"}} ->
                ok = erlmcp_test_http:close(Socket),
                false
        end
    end, 30_000),
    Opened.

get(Member, Session, EventId) ->
    get_stream(http(Member), Session, [{~"accept", ~"text/event-stream"},
                                       {~"last-event-id", EventId}]).

%% The events after this one, until the stream ends.
resumed(Member, Session, EventId) ->
    {Socket, {200, #{~"content-type" := ~"text/event-stream"} = Head}} =
        get(Member, Session, EventId),
    Events = case Head of
        #{~"content-length" := ~"0"} -> [];
        #{~"transfer-encoding" := ~"chunked"} -> all(Socket)
    end,
    ok = erlmcp_test_http:close(Socket),
    Events.

all(Socket) ->
    case next(Socket) of
        fin -> [];
        {Id, Message} -> [{Id, content(Message)} | all(Socket)]
    end.

contents(Events) ->
    [Content || {_, Content} <- Events].

content(Messages) when is_list(Messages) ->
    [content(Message) || Message <- Messages];
content(#{~"method" := ~"notifications/message", ~"params" := #{~"data" := Text}}) ->
    {text, Text};
content(#{~"id" := Id, ~"result" := #{~"content" := [#{~"text" := Text}]}}) ->
    {result, Id, Text};
content(#{~"id" := Id, ~"error" := #{~"data" := #{~"refusal" := Number}}}) ->
    {error, Id, Number}.

refused(Member, Session, EventId) ->
    {Socket, {400, _}} = get(Member, Session, EventId),
    erlmcp_test_http:close(Socket).

primed(Socket) ->
    {Id, none} = next(Socket),
    Id.

said(Socket) ->
    {Id, Message} = next(Socket),
    {text, Text} = content(Message),
    {Id, Text}.

next(Socket) ->
    case erlmcp_test_http:chunk(Socket) of
        ~"" -> fin;
        <<":", _/binary>> -> next(Socket);
        Chunk ->
            case erlmcp_test_http:read_events(Chunk) of
                [#{id := Id, data := ~""}] -> {Id, none};
                [#{id := Id, data := Data}] -> {Id, json:decode(Data)}
            end
    end.

%% Of a stream that the session does not have.
other(EventId) ->
    [Home, _] = binary:split(EventId, ~"."),
    <<Home/binary, ".77-1">>.

one_later(EventId) ->
    [Stream, Position] = binary:split(EventId, ~"-"),
    <<Stream/binary, $-, (integer_to_binary(binary_to_integer(Position) + 1))/binary>>.

server_of_ids() ->
    erlmcp_cluster_session_id:server(?SERVER).
