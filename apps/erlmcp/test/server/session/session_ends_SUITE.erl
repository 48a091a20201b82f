-module(session_ends_SUITE).
-moduledoc """
The end of an HTTP session that meets its beginning to have a process: nobody is left, whichever of
the two is first. And its end as one that is not in use that meets its first use: it is one of both.
And its end that meets a call: the call ends with it. And a call that dies as it begins.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([an_end_meets_a_first_process/1, an_end_meets_a_first_stream/1,
         one_in_use_is_not_given_up/1, a_call_meets_an_end/1, an_answer_meets_an_end/1,
         an_answer_on_a_stream_meets_an_end/1, an_answer_on_a_stream_meets_its_cancellation/1,
         a_call_begins_after_an_end/1, a_batch_ends_with_its_session/1,
         a_batch_ends_while_it_begins/1, a_batch_begins_after_a_kill/1,
         an_unused_session_ends_on_time/1, no_place_is_taken_from_another_tenant/1,
         streams_that_are_over_leave_nothing/1, streams_that_are_over_keep_no_request/1,
         early_cancellations_keep_no_message/1, sessions_keep_no_head/1,
         a_call_that_begins_too_large_is_answered/1]).
%% A cluster.
-export([incarnation/2, inherit_session/3, find_session/3]).

-import(erlmcp_test_http, [initialize/2, delete/2, get_stream/2, close/1, event/1, call/4,
                           definitions/1, start_call/4, session_process/0, finish/2, response/1,
                           head/1]).

%% Sessions that are ended, one after the other. In each the end comes later than in the one before,
%% by so many nanoseconds; after so many it begins anew.
-define(TIMES, 20_000).
-define(LATER_NS, 500).
-define(STEPS, 200).
-define(OVER_HTTP, 200).
-define(BATCHES, 500).
%% Lengths of arguments, of two words each, beyond two sizes of heaps.
-define(LENGTHS, 1_300).
%% Reductions of a process's turn on its scheduler, and how few of them it begins with.
-define(TURN, 4_000).
-define(LAST, 100).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [an_end_meets_a_first_process, an_end_meets_a_first_stream, one_in_use_is_not_given_up,
     a_call_meets_an_end, an_answer_meets_an_end, an_answer_on_a_stream_meets_an_end,
     an_answer_on_a_stream_meets_its_cancellation, a_call_begins_after_an_end,
     a_batch_ends_with_its_session, a_batch_ends_while_it_begins, a_batch_begins_after_a_kill,
     an_unused_session_ends_on_time, no_place_is_taken_from_another_tenant,
     streams_that_are_over_leave_nothing, streams_that_are_over_keep_no_request,
     early_cancellations_keep_no_message, sessions_keep_no_head,
     a_call_that_begins_too_large_is_answered].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

%% A session is asked for its process while another process ends it. The two wait for each other
%% before each session.
an_end_meets_a_first_process(_) ->
    {Server, Instance} = server(?TIMES),
    Ids = [opened(Instance) || _ <- lists:seq(1, ?TIMES)],
    At = atomics:new(2, []),
    Asker = together(fun() -> asked(1, Ids, At, Instance, 0) end),
    ok = ended(1, Ids, At, Instance),
    Attended = receive {Asker, Count} -> Count end,
    %% Both were first now and then.
    true = Attended > 0 andalso Attended < ?TIMES,
    nobody_is_left(Instance),
    erlmcp_test_http:stop(Server).

together(Do) ->
    Self = self(),
    spawn_link(fun() -> Self ! {self(), Do()} end).

asked(_, [], _, _, Attended) ->
    Attended;
asked(Number, [Id | Ids], At, Instance, Attended) ->
    ok = meet(Number, 1, 2, At),
    case erlmcp_session:process(Id, Instance) of
        {ok, _} -> asked(Number + 1, Ids, At, Instance, Attended + 1);
        ended -> asked(Number + 1, Ids, At, Instance, Attended)
    end.

ended(_, [], _, _) ->
    ok;
ended(Number, [Id | Ids], At, Instance) ->
    ok = meet(Number, 2, 1, At),
    ok = pass(erlang:monotonic_time(nanosecond) + Number rem ?STEPS * ?LATER_NS),
    ok = erlmcp_session:delete(Id, Instance),
    ended(Number + 1, Ids, At, Instance).

meet(Number, Own, Other, At) ->
    ok = atomics:put(At, Own, Number),
    come(Number, Other, At).

come(Number, Other, At) ->
    case atomics:get(At, Other) >= Number of
        true ->
            ok;
        false ->
            %% There may be one scheduler for both.
            true = erlang:yield(),
            come(Number, Other, At)
    end.

pass(Until) ->
    case erlang:monotonic_time(nanosecond) < Until of
        true -> pass(Until);
        false -> ok
    end.

%% The same by two connections: the stream ends with the session, or there is none.
an_end_meets_a_first_stream(_) ->
    {Server, Instance} = server(?OVER_HTTP),
    Streams = [begin
                   Session = initialize(Server, ~"2025-11-25"),
                   Asker = together(fun() -> streamed(Server, Session) end),
                   #{status := 204} = delete(Server, Session),
                   receive {Asker, Ended} -> Ended end
               end || _ <- lists:seq(1, ?OVER_HTTP)],
    [] = [Other || Other <- Streams, Other =/= streamed, Other =/= gone],
    nobody_is_left(Instance),
    erlmcp_test_http:stop(Server).

streamed(Server, Session) ->
    {Socket, Head} = get_stream(Server, Session),
    Ended = case Head of
        {200, _} -> fin = event(Socket), streamed;
        {404, _} -> gone
    end,
    ok = close(Socket),
    Ended.

%% A client uses a session first while it is given up for another one: when the index of those that
%% are not in use has it no more. Who gives it up has all but used up its turn then, and has to let
%% the client go first now and then.
one_in_use_is_not_given_up(_) ->
    {Server, Instance} = server(?TIMES),
    User = together(fun() -> used(?TIMES, Instance, 0) end),
    ok = given_up(?TIMES, User, Instance),
    Used = receive {User, Count} -> Count end,
    true = Used > 0 andalso Used < ?TIMES,
    nobody_is_left(Instance),
    erlmcp_test_http:stop(Server).

used(0, _, Used) ->
    Used;
used(Left, Instance, Used) ->
    {From, Id} = receive {_, _} = Opened -> Opened end,
    From ! {self(), ready},
    ok = until_taken(Instance),
    case erlmcp_session_table:find(Id, anonymous, Instance) of
        {ok, none, _} ->
            From ! {self(), used},
            used(Left - 1, Instance, Used + 1);
        error ->
            From ! {self(), ended},
            used(Left - 1, Instance, Used)
    end.

until_taken(Instance) ->
    case erlmcp_session_table:oldest_unused(all, Instance) of
        none ->
            ok;
        {ok, _} ->
            true = erlang:yield(),
            until_taken(Instance)
    end.

given_up(0, _, _) ->
    ok;
given_up(Left, User, Instance) ->
    Id = opened(Instance),
    {ok, Unused} = erlmcp_session_table:oldest_unused(all, Instance),
    User ! {self(), Id},
    receive {User, ready} -> ok end,
    true = erlang:yield(),
    true = erlang:bump_reductions(?TURN - Left rem ?LAST),
    GivenUp = erlmcp_session_table:end_unused(Unused, Instance),
    case {receive {User, Found} -> Found end, GivenUp} of
        {ended, {ended, none}} -> ok;
        {used, used} -> ok = erlmcp_session:delete(Id, Instance)
    end,
    given_up(Left - 1, User, Instance).

%% The session's process reads that its time is over before it reads of the call.
a_call_meets_an_end(_) ->
    Idle = 3_000,
    Server = erlmcp_test_http:start((definitions(self()))#{limits => #{session_idle_ms => Idle}}),
    Session = initialize(Server, ~"2025-11-25"),
    #{status := 200} = call(Server, ~"tools/call", #{name => ~"echo", arguments => #{text => ~""}},
                            #{session => Session}),
    Process = session_process(),
    ok = sys:suspend(Process),
    ok = erlmcp_test_servers:await(fun() ->
        {messages, Messages} = process_info(Process, messages),
        case lists:member(idle, Messages) of
            true -> {ok, ok};
            false -> again
        end
    end),
    {Socket, Call} = start_call(Server, Session, ~"wait", 2),
    %% The call was a use of the session, whose time is over after that.
    {Id, _} = Session,
    {ok, _, Instance} = erlmcp_registry:whereis(maps:get(pid, Server)),
    ok = erlmcp_test_servers:await(fun() ->
        case erlmcp_session_table:ms_until_idle(Id, Instance) of
            Ms when Ms > 0 -> again;
            _ -> {ok, ok}
        end
    end),
    Monitor = monitor(process, Call),
    ok = sys:resume(Process),
    ok = erlmcp_test_servers:down(Monitor),
    #{status := 404} = call(Server, ~"ping", #{}, #{session => Session}),
    ok = close(Socket),
    erlmcp_test_http:stop(Server).

%% The call answers while its session is about to end. It is not cancelled any more.
an_answer_meets_an_end(_) ->
    #{pid := Pid} = Server = erlmcp_test_http:start(definitions(self())),
    Session = initialize(Server, ~"2025-11-25"),
    {Socket, Call} = start_call(Server, Session, ~"wait", 2),
    Process = session_process(),
    ok = sys:suspend(Process),
    #{status := 204} = delete(Server, Session),
    finish(Call, ~"done"),
    #{messages := [#{~"id" := 2, ~"result" := _}]} = response(Socket),
    ok = ended(Process),
    ok = close(Socket),
    #{~"tools/call" := #{count := 1, cancelled := 0}} = maps:get(methods, erlmcp:metrics(Pid)),
    erlmcp_test_http:stop(Server).

%% The same of a call that has reported something: its answer goes through the session.
an_answer_on_a_stream_meets_an_end(_) ->
    answer_on_a_stream(fun(Server, Session) ->
        #{status := 204} = delete(Server, Session)
    end, fun(Socket, Process) ->
        ok = ended(Process),
        {event, #{~"id" := 2, ~"result" := _}} = event(Socket)
    end).

an_answer_on_a_stream_meets_its_cancellation(_) ->
    answer_on_a_stream(fun(Server, Session) ->
        #{status := 202} = call(Server, ~"notifications/cancelled", #{requestId => 2},
                                #{session => Session, id => none})
    end, fun(Socket, Process) ->
        ok = sys:resume(Process),
        fin = event(Socket)
    end).

answer_on_a_stream(Before, Then) ->
    #{pid := Pid} = Server = erlmcp_test_http:start(definitions(self())),
    Session = initialize(Server, ~"2025-11-25"),
    {Socket, Call} = start_call(Server, Session, ~"stream", 2),
    {200, _} = head(Socket),
    [{event, #{~"method" := _}} = event(Socket) || _ <- [progress, message]],
    Process = session_process(),
    ok = sys:suspend(Process),
    _ = Before(Server, Session),
    finish(Call, ~"done"),
    _ = erlmcp_test_http:ended(Call),
    _ = Then(Socket, Process),
    ok = close(Socket),
    #{~"tools/call" := #{count := 1, cancelled := 0}} = maps:get(methods, erlmcp:metrics(Pid)),
    erlmcp_test_http:stop(Server).

%% The call belongs to a session that was found just before it ended. Either of the two answers, and
%% counts the request.
a_call_begins_after_an_end(_) ->
    #{pid := Pid} = Server = erlmcp_test_http:start(definitions(self())),
    {ok, _, Instance} = erlmcp_registry:whereis(Pid),
    {Id, _} = Session = initialize(Server, ~"2025-11-25"),
    Socket = element(1, get_stream(Server, Session)),
    {_, Process, _} = Found = erlmcp_session_request:find(Id, anonymous, Instance),
    ok = sys:suspend(Process),
    #{status := 204} = delete(Server, Session),
    Json = #{~"jsonrpc" => ~"2.0", ~"id" => 2, ~"method" => ~"tools/call",
             ~"params" => #{~"name" => ~"wait"}},
    Tenant = {anonymous, {127, 0, 0, 1}},
    {ok, Json, Admitted} =
        erlmcp_admission:enter(Json, erlmcp_meter:arrived(1), Tenant, Instance),
    {session, Process} = erlmcp_session_request:message(Json, Admitted, Found, #{
        context => erlmcp_engine:request_context(#{principal => anonymous}, #{}),
        tenant => Tenant, waiting => {self(), call}, streams => true, quick => false,
        instance => Instance}),
    receive {call, {answer, 200, Bytes}} -> #{~"error" := _} = json:decode(Bytes) end,
    ok = ended(Process),
    receive {call, Again} -> error({answered, Again}) after 0 -> ok end,
    %% The process of the call counts it after it has answered.
    ok = all_cancelled(1, Pid),
    ok = close(Socket),
    erlmcp_test_http:stop(Server).

%% Its calls are cancelled, and give their permits back while its connection stays.
a_batch_ends_with_its_session(_) ->
    #{pid := Pid} = Server = erlmcp_test_http:start(definitions(self())),
    Session = initialize(Server, ~"2025-03-26"),
    Socket = erlmcp_test_http:connect(Server),
    {Headers, _} = erlmcp_test_http:message(~"", #{}, #{session => Session}),
    ok = erlmcp_test_http:send(Socket, ~"POST", Headers, json:encode([waiting(1), waiting(2)])),
    Calls = [Call || _ <- [1, 2], {Call, _} <- [erlmcp_test_http:running()]],
    #{status := 204} = delete(Server, Session),
    #{messages := [[#{~"error" := _}, #{~"error" := _}]]} = response(Socket),
    [_ = erlmcp_test_http:ended(Call) || Call <- Calls],
    ok = all_cancelled(2, Pid),
    ok = close(Socket),
    erlmcp_test_http:stop(Server).

%% The process of the test is that of each session here, and the connection. It ends the batch when
%% it adopts the batch. Every other batch does not begin, since its session has ended.
a_batch_ends_while_it_begins(_) ->
    #{pid := Pid} = Server = erlmcp_test_http:start(definitions(self())),
    {ok, _, Instance} = erlmcp_registry:whereis(Pid),
    [begin
         {Id, none, Session} = opened_for_batches(Instance),
         _ = Number rem 2 =:= 0 orelse erlmcp_session:delete(Id, Instance),
         {session, _} = begun({Id, self(), Session}, Instance),
         #{call := Batch, entry := Entry, marks := Marks} =
             receive {erlmcp_adopt, Adoption} -> Adoption end,
         Calls = erlmcp_calls:adopt(Batch, Entry, erlmcp_calls:new(Instance)),
         _ = erlmcp_call_messages:give_back(Marks),
         ok = erlmcp_calls:stop(Calls),
         _ = erlmcp_session:delete(Id, Instance)
     end || Number <- lists:seq(1, ?BATCHES)],
    ok = all_cancelled(2 * ?BATCHES, Pid),
    erlmcp_test_http:stop(Server).

%% The process of the session is killed while the batch waits for it, and so its row is left.
a_batch_begins_after_a_kill(_) ->
    #{pid := Pid} = Server = erlmcp_test_http:start(definitions(self())),
    Session = initialize(Server, ~"2025-03-26"),
    {Stream, {200, _}} = get_stream(Server, Session),
    Process = session_process(),
    ok = sys:suspend(Process),
    Socket = erlmcp_test_http:connect(Server),
    {Headers, _} = erlmcp_test_http:message(~"", #{}, #{session => Session}),
    Subscribe = #{~"jsonrpc" => ~"2.0", ~"id" => 1, ~"method" => ~"resources/subscribe",
                  ~"params" => #{~"uri" => ~"test://text"}},
    ok = erlmcp_test_http:send(Socket, ~"POST", Headers, json:encode([Subscribe, waiting(2)])),
    ok = erlmcp_test_servers:await_messages(1, Process),
    true = exit(Process, kill),
    #{messages := [[#{~"id" := 2, ~"error" := _}]]} = response(Socket),
    ok = all_cancelled(1, Pid),
    [ok = close(Each) || Each <- [Socket, Stream]],
    erlmcp_test_http:stop(Server).

opened_for_batches(Instance) ->
    {ok, Id} = open('2025-03-26', {127, 0, 0, 1}, Instance),
    erlmcp_session_request:find(Id, anonymous, Instance).

begun(Found, Instance) ->
    Tenant = {anonymous, {127, 0, 0, 1}},
    Json = [waiting(1), waiting(2)],
    {ok, Json, Admitted} =
        erlmcp_admission:enter(Json, erlmcp_meter:arrived(1), Tenant, Instance),
    erlmcp_session_request:message(Json, Admitted, Found, #{
        context => erlmcp_engine:request_context(#{principal => anonymous}, #{}),
        tenant => Tenant, waiting => {self(), call}, streams => true, quick => false,
        instance => Instance}).

waiting(Id) ->
    #{~"jsonrpc" => ~"2.0", ~"id" => Id, ~"method" => ~"tools/call",
      ~"params" => #{~"name" => ~"wait"}}.

all_cancelled(Count, Pid) ->
    erlmcp_test_servers:await(fun() ->
        case {maps:get(methods, erlmcp:metrics(Pid)), erlmcp:info(Pid)} of
            {#{~"tools/call" := #{count := Count, cancelled := Count}}, #{in_flight := 0}} ->
                {ok, ok};
            _ ->
                again
        end
    end).

%% Lets a suspended process handle its last messages.
ended(Process) ->
    Monitor = monitor(process, Process),
    ok = sys:resume(Process),
    erlmcp_test_servers:down(Monitor).

%% Its first use comes after its time, and the server has not looked for sessions that are over.
an_unused_session_ends_on_time(_) ->
    Server = #{pid := Pid} = erlmcp_test_http:start(#{limits => #{unused_session_ms => 50}}),
    ok = sys:suspend(erlmcp_test_servers:child(session_sweeper, Pid)),
    #{status := 200, headers := #{~"mcp-session-id" := Id}} =
        erlmcp_test_http:initialize(Server, ~"2025-11-25", #{}),
    ok = timer:sleep(60),
    #{status := 404} = call(Server, ~"ping", #{}, #{session => {Id, ~"2025-11-25"}}),
    erlmcp_test_http:stop(Server).

%% A tenant that uses all of its sessions gets no other one, though others do not use theirs.
no_place_is_taken_from_another_tenant(_) ->
    #{pid := Pid} = Server = erlmcp_test_http:start(#{limits => #{sessions_per_principal => 1}}),
    {ok, _, Instance} = erlmcp_registry:whereis(Pid),
    [Below, Used, Above] = [opened({127, 0, 0, N}, Instance) || N <- [1, 2, 3]],
    {ok, none, _} = erlmcp_session_table:find(Used, anonymous, Instance),
    {error, _} = open({127, 0, 0, 2}, Instance),
    [{ok, none, _} = erlmcp_session_table:find(Id, anonymous, Instance)
     || Id <- [Below, Used, Above]],
    erlmcp_test_http:stop(Server).

%% Each call has a stream, of which the session keeps as much as it keeps of its events.
streams_that_are_over_leave_nothing(_) ->
    Server = erlmcp_test_http:start((definitions(self()))#{limits => #{stored_events => 5}}),
    Session = initialize(Server, ~"2025-11-25"),
    Params = #{name => ~"progress", '_meta' => #{progressToken => 1}},
    Size = fun(Calls) ->
        [#{status := 200, messages := [_, _ | _]} =
             call(Server, ~"tools/call", Params, #{session => Session})
         || _ <- lists:seq(1, Calls)],
        erts_debug:flat_size(sys:get_state(session_process()))
    end,
    First = Size(20),
    true = Size(100) < First + 200,
    erlmcp_test_http:stop(Server).

%% A stream names its requests. A long id is a part of its message, and would keep all of it.
streams_that_are_over_keep_no_request(_) ->
    Server = erlmcp_test_http:start(definitions(self())),
    Session = initialize(Server, ~"2025-11-25"),
    Padding = binary:copy(~"p", 500_000),
    Message = fun(Number) ->
        Id = <<(integer_to_binary(Number))/binary, (binary:copy(~"i", 70))/binary>>,
        {Id, #{name => ~"stream", arguments => #{padding => Padding},
               '_meta' => #{progressToken => 1}}}
    end,
    Calls = [begin
                 {Id, Params} = Message(Number),
                 Socket = erlmcp_test_http:connect(Server),
                 {Headers, Body} = erlmcp_test_http:message(~"tools/call", Params,
                                                            #{session => Session, id => Id}),
                 ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
                 {Call, _} = erlmcp_test_http:running(),
                 {Id, Socket, Call}
             end || Number <- lists:seq(1, 10)],
    {Answered, Cancelled} = lists:split(5, Calls),
    [ok = erlmcp_test_http:finish(Call, ~"done") || {_, _, Call} <- Answered],
    [#{status := 202} = call(Server, ~"notifications/cancelled", #{requestId => Id},
                             #{session => Session, id => none})
     || {Id, _, _} <- Cancelled],
    [begin
         _ = erlmcp_test_http:ended(Call),
         #{status := 200, messages := [_, _ | _]} = erlmcp_test_http:response(Socket),
         ok = close(Socket)
     end || {_, Socket, Call} <- Calls],
    ok = keeps_less_than(byte_size(Padding), session_process()),
    erlmcp_test_http:stop(Server).

%% The process keeps cancellations while a call begins. No request has an id of more than 1,024
%% bytes. One that has as many is cancelled.
early_cancellations_keep_no_message(_) ->
    #{pid := Pid} = Server = erlmcp_test_http:start(definitions(self())),
    {ok, _, Instance} = erlmcp_registry:whereis(Pid),
    {Id, _} = Session = initialize(Server, ~"2025-11-25"),
    Longest = binary:copy(~"i", 1_024),
    {Socket, Call} = start_call(Server, Session, ~"wait", Longest),
    %% A call that begins is counted first.
    ok = erlmcp_session_table:count_calls(Id, 1, Instance),
    Cancel = fun(Params) ->
        #{status := 202} = call(Server, ~"notifications/cancelled", Params,
                                #{session => Session, id => none})
    end,
    Padding = binary:copy(~"p", 500_000),
    [_ = Cancel(Params) || _ <- lists:seq(1, 5),
                           Params <- [#{requestId => Padding},
                                      #{requestId => binary:copy(~"i", 70), reason => Padding}]],
    Process = session_process(),
    %% It has handled the cancellations before this.
    _ = sys:get_state(Process),
    ok = keeps_less_than(byte_size(Padding), Process),
    _ = Cancel(#{requestId => Longest}),
    _ = erlmcp_test_http:ended(Call),
    #{status := 200, messages := []} = response(Socket),
    ok = close(Socket),
    erlmcp_test_http:stop(Server).

%% The ids of a cluster are long. A client sends them in its heads.
sessions_keep_no_head(_) ->
    {Server, Instance} = server(1),
    Head = binary:copy(~"i", 100_000),
    Id = binary:part(Head, 0, 100),
    ok = erlmcp_session:inherit(Id, anonymous, {anonymous, local},
                                Instance#{cluster := {?MODULE, none}}),
    [Kept] = erlmcp_session_table:open_ids(Instance),
    100 = binary:referenced_byte_size(Kept),
    {ok, Process} = erlmcp_session:process(Id, Instance),
    ok = keeps_less_than(byte_size(Head), Process),
    erlmcp_test_http:stop(Server).

%% The memory bound ends a call at a garbage collection. The heap of its process begins with little
%% room for some lengths of its arguments, and then the first collection comes at once.
a_call_that_begins_too_large_is_answered(_) ->
    Take = #{name => ~"take", handler => fun(_, _) -> ~"taken" end},
    #{pid := Pid} = Server = erlmcp_test_http:start(#{
        tools => [Take], limits => #{call_heap_bytes => erlmcp_heap:least_of_call()}}),
    {Id, _} = Session = initialize(Server, ~"2025-11-25"),
    [#{status := 200, messages := [#{~"id" := Length}]} =
         call(Server, ~"tools/call", #{name => ~"take",
                                       arguments => #{list => lists:duplicate(Length, 0)}},
              #{session => Session, id => Length})
     || Length <- lists:seq(1, ?LENGTHS)],
    {ok, _, Instance} = erlmcp_registry:whereis(Pid),
    0 = erlmcp_session_table:running_calls(Id, Instance),
    erlmcp_test_http:stop(Server).

incarnation(sessions, none) -> 1.

inherit_session(_, anonymous, none) -> {ok, session('2025-11-25'), []}.

find_session(_, anonymous, none) -> inherited.

%% A process refers to the whole of a binary of which it has a part.
keeps_less_than(Bytes, Process) ->
    true = erlang:garbage_collect(Process),
    {binary, Binaries} = process_info(Process, binary),
    Kept = lists:sum([Size || {_, Size, _} <- Binaries]),
    {true, _} = {Kept < Bytes, Kept},
    ok.

server(Sessions) ->
    Limits = #{sessions => Sessions, sessions_per_principal => Sessions},
    #{pid := Pid} = Server = erlmcp_test_http:start(#{limits => Limits}),
    {ok, _, Instance} = erlmcp_registry:whereis(Pid),
    {Server, Instance}.

opened(Instance) ->
    opened({127, 0, 0, 1}, Instance).

opened(Address, Instance) ->
    {ok, Id} = open(Address, Instance),
    Id.

open(Address, Instance) ->
    open('2025-11-25', Address, Instance).

open(Revision, Address, Instance) ->
    erlmcp_session:open(session(Revision), {anonymous, Address}, Instance).

session(Revision) ->
    #{revision => Revision, principal => anonymous, client_info => undefined,
      client_capabilities => #{}, log_level => 6, initialized => true}.

%% Neither a row nor a process, when those that were told have ended.
nobody_is_left(Instance) ->
    0 = erlmcp_session_table:count(Instance),
    Supervisor = erlmcp_instance:supervisor(sessions, Instance),
    erlmcp_test_servers:await(fun() ->
        case proplists:get_value(active, supervisor:count_children(Supervisor)) of
            0 -> {ok, nobody};
            _ -> again
        end
    end).
