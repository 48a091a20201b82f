-module(gate_queue_SUITE).
-moduledoc "Requests that wait at the gate: their turns, and the end of a wait.".

-export([suite/0, all/0, init_per_testcase/2, end_per_testcase/2]).
-export([waiting_requests_take_turns/1, shares_that_no_request_waits_for_are_taken/1,
         a_dead_request_waits_no_longer/1, a_request_that_left_waits_no_longer/1,
         a_request_that_left_needs_no_turn/1, a_wait_has_an_end/1,
         a_wait_in_vain_is_refused_now/1, a_higher_limit_is_used/1,
         a_flood_leaves_room/1, without_a_queue_no_request_waits/1,
         waits_are_short_in_a_standing_queue/1, the_last_of_a_standing_queue_is_granted/1,
         a_request_past_its_deadline_does_not_join/1]).

-import(erlmcp_test_gate, [request/1, queued/1, entered/1, refused/1, processes/1, looks/2, stop/1,
                           await_end/1, wait/2, wait/3, waiting/3, until/1, answer/0, answers/0]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [waiting_requests_take_turns, shares_that_no_request_waits_for_are_taken,
     a_dead_request_waits_no_longer, a_request_that_left_waits_no_longer,
     a_request_that_left_needs_no_turn, a_wait_has_an_end,
     a_wait_in_vain_is_refused_now, a_higher_limit_is_used, a_flood_leaves_room,
     without_a_queue_no_request_waits, waits_are_short_in_a_standing_queue,
     the_last_of_a_standing_queue_is_granted, a_request_past_its_deadline_does_not_join].

init_per_testcase(_, Config) ->
    process_flag(trap_exit, true),
    Config.

end_per_testcase(_, _) ->
    ok.

waiting_requests_take_turns(_) ->
    Gate = queued(#{}),
    #{counters := Counters} = Gate,
    Before = erlmcp_gate_counters:starts(Counters),
    {Permits, Queue} = processes(Gate),
    First = entered(erlmcp_gate:enter(Gate, request(ada))),
    Flood = [wait(Gate, ada) || _ <- lists:seq(1, 5)],
    Others = [wait(Gate, bob), wait(Gate, eve)],
    ok = waiting(Gate, Queue, 7),
    %% No request overtakes them, though fewer than the limit are in flight.
    ok = sys:suspend(Queue),
    ok = erlmcp_gate:leave(First),
    Late = entered(erlmcp_gate:enter(Gate, request(ada))),
    {0, 8} = {erlmcp_gate:held(Gate, in_flight), erlmcp_gate:held(Gate, waiting)},
    ok = erlmcp_gate:leave(Late),
    ok = sys:resume(Queue),
    Order = [begin
                 {Pid, Tenant, {ok, _}} = answer(),
                 [] = answers(),
                 1 = erlmcp_gate:held(Gate, in_flight),
                 Pid ! leave,
                 Tenant
             end || _ <- lists:seq(1, 7)],
    [ada, bob, eve] = lists:sort(lists:sublist(Order, 3)),
    [ada, ada, ada, ada] = lists:nthtail(3, Order),
    [await_end(Pid) || Pid <- Flood ++ Others],
    [0 = erlmcp_gate:held(Gate, Key) || Key <- [in_flight, waiting, waiting_bytes]],
    {ok, _} = erlmcp_gate:await(First, 1),
    After = erlmcp_gate_counters:starts(Counters),
    {8, Nanoseconds} = erlmcp_gate_counters:starts_between(Before, After),
    true = Nanoseconds > 0,
    ok = stop([Permits, Queue]).

shares_that_no_request_waits_for_are_taken(_) ->
    %% A request that has to wait and has not come to the queue yet does not stop others. It needs
    %% no queue if the limit is not reached any more when it comes.
    Alone = queued(#{}),
    First = entered(erlmcp_gate:enter(Alone, request(ada))),
    Late = entered(erlmcp_gate:enter(Alone, request(ada))),
    ok = erlmcp_gate:leave(First),
    Next = entered(erlmcp_gate:enter(Alone, request(bob))),
    {1, 1} = {erlmcp_gate:held(Alone, in_flight), erlmcp_gate:held(Alone, waiting)},
    ok = erlmcp_gate:leave(Next),
    {ok, Granted} = erlmcp_gate:await(Late, 50_000),
    {1, 0} = {erlmcp_gate:held(Alone, in_flight), erlmcp_gate:held(Alone, waiting)},
    ok = erlmcp_gate:leave(Granted),
    [0 = erlmcp_gate:held(Alone, Key) || Key <- [in_flight, waiting_bytes, {waiting, ada}]],
    %% While one request is in the queue, one share of the limit is reserved for it.
    Gate = queued(#{in_flight => 3}),
    {Permits, Queue} = processes(Gate),
    Entered = [entered(erlmcp_gate:enter(Gate, request(ada))) || _ <- [1, 2, 3]],
    Waits = wait(Gate, bob),
    ok = waiting(Gate, Queue, 1),
    ok = sys:suspend(Queue),
    _ = [ok = erlmcp_gate:leave(Permit) || Permit <- Entered],
    InFlight = [begin
                  _ = entered(erlmcp_gate:enter(Gate, request(ada))),
                  erlmcp_gate:held(Gate, in_flight)
              end || _ <- [1, 2, 3]],
    [1, 2, 2] = InFlight,
    ok = sys:resume(Queue),
    {Waits, bob, {ok, _}} = answer(),
    ok = stop([Waits, Permits, Queue]).

a_dead_request_waits_no_longer(_) ->
    Gate = queued(#{queue => 2}),
    {Permits, Queue} = processes(Gate),
    First = entered(erlmcp_gate:enter(Gate, request(ada))),
    Killed = wait(Gate, ada),
    ok = waiting(Gate, Queue, 1),
    Next = wait(Gate, ada),
    ok = waiting(Gate, Queue, 2),
    queue_cap_exceeded = refused(erlmcp_gate:enter(Gate, request(bob))),
    ok = stop([Killed]),
    %% A look gives its share of the queue to another request, and the queue drops it.
    ok = looks(Permits, 1),
    1 = erlmcp_gate:held(Gate, waiting),
    ok = waiting(Gate, Queue, 1),
    Last = wait(Gate, ada),
    ok = waiting(Gate, Queue, 2),
    ok = erlmcp_gate:leave(First),
    {Next, ada, {ok, _}} = answer(),
    %% A look finds the permit of a killed holder.
    ok = stop([Next]),
    ok = looks(Permits, 1),
    {Last, ada, {ok, _}} = answer(),
    ok = stop([Last, Permits, Queue]).

a_request_that_left_waits_no_longer(_) ->
    {Gate, First, Waits} = with_one_that_left(),
    {Permits, Queue} = processes(Gate),
    ok = erlmcp_gate:leave(First),
    %% It is told so at its turn, and no share of the limit is lost.
    ok = until(fun() -> Queue ! look, answers() =/= [] orelse not is_process_alive(Waits) end),
    %% The queue gives the share of its turn back after it has told it.
    _ = sys:get_state(Queue),
    0 = erlmcp_gate:held(Gate, in_flight),
    Next = entered(erlmcp_gate:enter(Gate, request(ada))),
    %% The same where the limit is not reached any more when it comes to wait.
    Late = entered(erlmcp_gate:enter(Gate, request(ada))),
    ok = erlmcp_gate:leave(Late),
    ok = erlmcp_gate:leave(Next),
    backpressure_active = refused(erlmcp_gate:await(Late, 50_000)),
    0 = erlmcp_gate:held(Gate, in_flight),
    ok = stop([Permits, Queue]).

%% No other request leaves, so that none has a turn.
a_request_that_left_needs_no_turn(_) ->
    {Gate, _, Waits} = with_one_that_left(),
    {Permits, Queue} = processes(Gate),
    {Waits, ada, Answer} = answer(),
    backpressure_active = refused(Answer),
    ok = stop([Permits, Queue]).

%% A gate with one request inside, and a process that waits with the permit of one that has left.
with_one_that_left() ->
    Gate = queued(#{}),
    {_, Queue} = processes(Gate),
    First = entered(erlmcp_gate:enter(Gate, request(ada))),
    Permit = entered(erlmcp_gate:enter(Gate, request(ada))),
    Self = self(),
    Waits = spawn_link(fun() -> Self ! {self(), ada, erlmcp_gate:await(Permit, 50_000)} end),
    ok = erlmcp_gate:hand_over(Permit, Waits),
    ok = waiting(Gate, Queue, 1),
    ok = erlmcp_gate:leave(Permit),
    {Gate, First, Waits}.

a_wait_has_an_end(_) ->
    Gate = queued(#{queue_ms => 50}),
    {Permits, Queue} = processes(Gate),
    First = entered(erlmcp_gate:enter(Gate, request(ada))),
    Waits = wait(Gate, ada),
    {Waits, ada, {refuse, Refusal}} = answer(),
    {backpressure_active, 503} = {erlmcp_refusal:name(Refusal), erlmcp_refusal:status(Refusal)},
    true = erlmcp_refusal:retry_after(Refusal) > 0,
    %% A request without any time left is refused at once.
    Late = entered(erlmcp_gate:enter(Gate, request(ada))),
    backpressure_active = refused(erlmcp_gate:await(Late, 0)),
    0 = erlmcp_gate:held(Gate, waiting),
    %% A request that waits when the queue ends is refused, too.
    unlink(Queue),
    Long = queued(#{queue_ms => 50_000}),
    {LongPermits, LongQueue} = processes(Long),
    Held = entered(erlmcp_gate:enter(Long, request(ada))),
    Orphan = wait(Long, ada),
    ok = waiting(Long, LongQueue, 1),
    ok = stop([LongQueue]),
    {Orphan, ada, {refuse, _}} = answer(),
    0 = erlmcp_gate:held(Long, waiting),
    %% The next queue is empty.
    {ok, NextQueue} = erlmcp_gate_queue:start_link(Long),
    ok = erlmcp_gate:leave(Held),
    _ = entered(erlmcp_gate:enter(Long, request(ada))),
    {1, 0} = {erlmcp_gate:held(Long, in_flight), erlmcp_gate:held(Long, waiting)},
    ok = erlmcp_gate:leave(First),
    ok = stop([Permits, Queue, LongPermits, NextQueue]).

a_wait_in_vain_is_refused_now(_) ->
    Gate = queued(#{queue => 1000, queue_ms => 500_000}),
    {Permits, Queue} = processes(Gate),
    First = entered(erlmcp_gate:enter(Gate, request(ada))),
    Waiting = [wait(Gate, ada, 400_000) || _ <- lists:seq(1, 601)],
    ok = waiting(Gate, Queue, 601),
    %% A turn takes 100 milliseconds or more: six hundred take a minute.
    ok = timer:sleep(100),
    ok = erlmcp_gate:leave(First),
    {_, ada, {ok, _}} = answer(),
    {refuse, Refusal} = erlmcp_gate:await(entered(erlmcp_gate:enter(Gate, request(ada))), 60_000),
    backpressure_active = erlmcp_refusal:name(Refusal),
    true = erlmcp_refusal:retry_after(Refusal) >= 60,
    %% The other tenant would have the turn after the next one.
    Other = wait(Gate, bob, 60_000),
    ok = waiting(Gate, Queue, 601),
    ok = stop([Other, Permits, Queue | Waiting]).

a_higher_limit_is_used(_) ->
    Gate = queued(#{in_flight => 5}),
    {Permits, Queue} = processes(Gate),
    ok = erlmcp_gate:limit(Gate, 1),
    _ = entered(erlmcp_gate:enter(Gate, request(ada))),
    Waiting = [wait(Gate, ada), wait(Gate, bob)],
    ok = waiting(Gate, Queue, 2),
    ok = erlmcp_gate:limit(Gate, 100),
    5 = erlmcp_gate:limit(Gate),
    [{_, _, {ok, _}} = answer() || _ <- Waiting],
    3 = erlmcp_gate:held(Gate, in_flight),
    ok = stop([Permits, Queue | Waiting]).

%% Each tenant has as many as the limit of all leaves, and ten in any case.
a_flood_leaves_room(_) ->
    Gate = queued(#{}),
    _ = entered(erlmcp_gate:enter(Gate, request(ada))),
    ok = erlmcp_gate:limit_queue(Gate, 60),
    [30, 15, 10, 10, 10] = [enter_all(Gate, Tenant) || Tenant <- [ada, bob, eve, joe, sue]],
    0 = enter_all(Gate, ada),
    ok = erlmcp_gate:limit_queue(Gate, none),
    25 = enter_all(Gate, ada).

%% The number of requests that enter before one is refused.
enter_all(Gate, Tenant) ->
    case erlmcp_gate:enter(Gate, request(Tenant)) of
        {ok, _} ->
            1 + enter_all(Gate, Tenant);
        {refuse, Refusal} ->
            true = lists:member(erlmcp_refusal:name(Refusal),
                                [queue_tenant_cap_exceeded, queue_cap_exceeded]),
            0
    end.

without_a_queue_no_request_waits(_) ->
    Gate = queued(#{}),
    _ = entered(erlmcp_gate:enter(Gate, request(ada))),
    Permit = entered(erlmcp_gate:enter(Gate, request(ada))),
    %% The queue is not started yet.
    backpressure_active = refused(erlmcp_gate:await(Permit, 1000)),
    0 = erlmcp_gate:held(Gate, waiting).

waits_are_short_in_a_standing_queue(_) ->
    New = erlmcp_queue_delay:began(0, erlmcp_queue_delay:new(1000)),
    1000 = erlmcp_queue_delay:allowed(250, 0, 1, New),
    0 = erlmcp_queue_delay:needed(5, New),
    Turned = lists:foldl(fun erlmcp_queue_delay:turned/2, New, lists:seq(10, 2000, 10)),
    100 = erlmcp_queue_delay:allowed(2001, 0, 1, Turned),
    %% A tenant whose requests do not always wait has a round of turns more, if that is short.
    150 = erlmcp_queue_delay:allowed(2001, 1900, 5, Turned),
    200 = erlmcp_queue_delay:allowed(2001, 1900, 5_000, Turned),
    %% A turn may take longer than that.
    [300 = erlmcp_queue_delay:allowed(2300, Since, 1, Turned) || Since <- [0, 2200]],
    100 = erlmcp_queue_delay:needed(10, Turned),
    0 = erlmcp_queue_delay:needed(0, Turned),
    0 = erlmcp_queue_delay:needed(10, New),
    %% A queue that was empty is new again.
    1000 = erlmcp_queue_delay:allowed(2750, 2500, 1, erlmcp_queue_delay:began(2500, Turned)).

%% The last request has waited for too long as well, but its refusal would leave the permit unused.
the_last_of_a_standing_queue_is_granted(_) ->
    Gate = queued(#{queue_ms => 4_000}),
    {Permits, Queue} = processes(Gate),
    First = entered(erlmcp_gate:enter(Gate, request(ada))),
    Next = wait(Gate, ada),
    ok = waiting(Gate, Queue, 1),
    Last = wait(Gate, ada),
    ok = waiting(Gate, Queue, 2),
    %% A queue that was not empty for a quarter of the longest time is a standing one.
    ok = timer:sleep(1_100),
    ok = erlmcp_gate:leave(First),
    {Next, ada, {ok, _}} = answer(),
    Next ! leave,
    {Last, ada, {ok, _}} = answer(),
    ok = stop([Last, Permits, Queue]).

%% The queue reads the request and its deadline late, when a permit is free.
a_request_past_its_deadline_does_not_join(_) ->
    Gate = queued(#{}),
    {Permits, Queue} = processes(Gate),
    First = entered(erlmcp_gate:enter(Gate, request(ada))),
    ok = sys:suspend(Queue),
    Late = wait(Gate, ada, 20),
    %% The request itself, and the message that its time is over.
    ok = erlmcp_test_servers:await_messages(2, Queue),
    ok = erlmcp_gate:leave(First),
    ok = sys:resume(Queue),
    {Late, ada, {refuse, Refusal}} = answer(),
    backpressure_active = erlmcp_refusal:name(Refusal),
    [0 = erlmcp_gate:held(Gate, Key) || Key <- [in_flight, waiting]],
    ok = stop([Late, Permits, Queue]).
