-module(erlmcp_gate_queue).
-moduledoc """
The process in which requests wait for a permit. Its bounds are the gate's (`m:erlmcp_gate`), taken
before a request comes here; so no more can wait than they allow. Tenants take turns
(`m:erlmcp_fair_queue`), so that a flood of one makes only itself wait.

A request waits `queue_ms` milliseconds at most. If it has waited for longer than does good
(`m:erlmcp_queue_delay`), it is refused when it would be its turn, the oldest first, and the next
one is in flight instead. A request whose turn cannot come in time is refused immediately.

Internal.
""".

-behaviour(gen_server).

-export([start_link/1, wait/4]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([waiting/0]).

-doc "A request that waits: of whom, since when, what it holds, and what of that while it waits.".
-type waiting() ::
    {Tenant :: term(), Since :: pos_integer(),
     {Held :: [erlmcp_gate_counters:taken()], Waiting :: [erlmcp_gate_counters:taken()]}}.

%% Milliseconds after which the queue looks for requests that were killed, and have left by another
%% process, and for permits that a process gave back and was killed before it said so.
-define(LOOK, 100).
%% Milliseconds after which a request looks whether the queue is still there.
-define(STILL_THERE, 1000).

-record(queue, {
    permits :: erlmcp_gate_permits:permits(),
    counters :: erlmcp_gate_counters:counters(),
    delay :: erlmcp_queue_delay:delay(),
    flows = erlmcp_fair_queue:new() :: erlmcp_fair_queue:flows(),
    %% how many wait, as the counters have it
    counted = 0 :: non_neg_integer(),
    timer = none :: none | reference()
}).

-doc "Starts it.".
-spec start_link(erlmcp_gate:gate()) -> gen_server:start_ret().
start_link(Gate) ->
    gen_server:start_link(?MODULE, Gate, []).

-doc """
Waits until a request may run, in the calling process, for up to this many milliseconds. Returns
since when it may, or after how many milliseconds another try is worth while.
""".
-spec wait(erlmcp_gate_permits:id(), waiting(), Milliseconds :: non_neg_integer(),
           erlmcp_gate_permits:permits()) ->
    {granted, Since :: pos_integer()} | {refused, RetryMs :: pos_integer()}.
wait(Id, {Tenant, Since, Taken}, Milliseconds, Permits) ->
    Counters = erlmcp_gate_permits:counters(Permits),
    %% There may be one meanwhile that no request in the queue needs.
    case erlmcp_gate_counters:enter_waiting(Counters) of
        {ok, InFlight} ->
            case erlmcp_gate_permits:grant(Id, InFlight, Taken, Permits) of
                true ->
                    {granted, Since};
                false ->
                    ok = erlmcp_gate_counters:give([InFlight], Counters),
                    ok = erlmcp_gate_permits:tell_queue(Permits),
                    {refused, 1}
            end;
        {full, _, _} ->
            case erlmcp_gate_permits:queue(Permits) of
                none -> {refused, ?LOOK};
                {Queue, Longest} -> wait_in(Queue, {Tenant, Id}, Taken, min(Milliseconds, Longest))
            end
    end.

%% The queue has no timer and no monitor of each, which would cost more than all the rest.
wait_in(Queue, Key, Taken, Milliseconds) ->
    Reference = make_ref(),
    Queue ! {wait, Key, {Reference, self(), Taken}, erlmcp_clock:now_ms() + Milliseconds},
    answered(Reference, Queue, Key, Milliseconds).

%% The queue has the last word, as long as there is one.
answered(Reference, Queue, Key, Remaining) ->
    receive
        {Reference, Answer} -> Answer
    after min(Remaining, ?STILL_THERE) ->
        case is_process_alive(Queue) of
            true when Remaining =< ?STILL_THERE ->
                Queue ! {late, Key},
                answered(Reference, Queue, Key, infinity);
            true when Remaining =:= infinity ->
                answered(Reference, Queue, Key, infinity);
            true ->
                answered(Reference, Queue, Key, Remaining - ?STILL_THERE);
            false ->
                receive {Reference, Answer} -> Answer after 0 -> {refused, ?LOOK} end
        end
    end.

-doc false.
init(#{permits := Permits, counters := Counters, limits := #{queue_ms := Longest}}) ->
    ok = erlmcp_label:set([?MODULE]),
    %% A permit that is free is given away before a flood is read and refused.
    _ = process_flag(priority, high),
    ok = erlmcp_gate_permits:put_queue(self(), Longest, Permits),
    {ok, #queue{permits = Permits, counters = Counters, delay = erlmcp_queue_delay:new(Longest)}}.

-doc false.
handle_call(_, _, Queue) ->
    {noreply, Queue}.

-doc false.
handle_cast(_, Queue) ->
    {noreply, Queue}.

-doc false.
handle_info({wait, Key, Waiting, Deadline}, Queue) ->
    {noreply, next(add(Key, Waiting, Deadline, erlmcp_clock:now_ms(), Queue))};
handle_info(look, Queue) ->
    {noreply, next(Queue)};
handle_info(timer, #queue{flows = Flows, permits = Permits} = Queue) ->
    Waiting =
        erlmcp_fair_queue:drop(fun({_, Id}) -> not erlmcp_gate_permits:is_held(Id, Permits) end,
                               Flows),
    {noreply, next(Queue#queue{flows = Waiting, timer = none})};
handle_info({late, {_, _} = Key}, Queue) ->
    {noreply, counted(refuse(Key, Queue))};
handle_info(_, Queue) ->
    {noreply, Queue}.

add({Tenant, Id}, Waiting, Deadline, Now, #queue{flows = Flows, delay = Delay} = Queue) ->
    Remaining = Deadline - Now,
    case erlmcp_queue_delay:needed(erlmcp_fair_queue:ahead(Tenant, Flows), Delay) of
        Needed when Needed >= Remaining, Needed > 0; Remaining =< 0 ->
            ok = answer(Waiting, {refused, max(1, Needed)}),
            Queue;
        _ ->
            Began = case erlmcp_fair_queue:length(Flows) of
                0 -> erlmcp_queue_delay:began(Now, Delay);
                _ -> Delay
            end,
            Queue#queue{flows = erlmcp_fair_queue:add(Tenant, Id, {Now, Waiting}, Now, Flows),
                        delay = Began}
    end.

%% What waits is counted before a permit is looked for: what leaves after that says so.
next(Queue) ->
    counted(later(turns(counted(Queue)))).

counted(#queue{flows = Flows, counted = Counted, counters = Counters} = Queue) ->
    case erlmcp_fair_queue:length(Flows) of
        Counted ->
            Queue;
        Count ->
            ok = erlmcp_gate_counters:queued(Count, Counters),
            Queue#queue{counted = Count}
    end.

later(#queue{flows = Flows, timer = none} = Queue) ->
    case erlmcp_fair_queue:length(Flows) of
        0 -> Queue;
        _ -> Queue#queue{timer = erlang:send_after(?LOOK, self(), timer)}
    end;
later(Queue) ->
    Queue.

%% As long as more may be in flight, and some wait.
turns(#queue{flows = Flows, counters = Counters} = Queue) ->
    case erlmcp_fair_queue:length(Flows) > 0 andalso erlmcp_gate_counters:enter_next(Counters) of
        {ok, InFlight} -> turn(InFlight, erlmcp_clock:now_ms(), Queue);
        _ -> Queue
    end.

turn(InFlight, Now, #queue{flows = Flows, counters = Counters, delay = Delay} = Queue) ->
    case erlmcp_fair_queue:next(Flows) of
        none ->
            ok = erlmcp_gate_counters:give([InFlight], Counters),
            Queue;
        {{Tenant, _} = Key, {Arrived, Waiting}} ->
            Allowed = erlmcp_queue_delay:allowed(Now, erlmcp_fair_queue:since(Tenant, Flows),
                                                 erlmcp_fair_queue:round(Flows), Delay),
            case Now - Arrived > Allowed andalso erlmcp_fair_queue:length(Flows) > 1 of
                true -> turn(InFlight, Now, refuse(Key, Queue));
                false -> grant(Key, Waiting, InFlight, Now, Queue)
            end
    end.

grant({_, Id} = Key, {_, _, Taken} = Waiting, InFlight, Now, #queue{flows = Flows} = Queue) ->
    #queue{permits = Permits, counters = Counters, delay = Delay} = Queue,
    {ok, _, Rest} = erlmcp_fair_queue:take(Key, Flows),
    case erlmcp_gate_permits:grant(Id, InFlight, Taken, Permits) of
        true ->
            ok = answer(Waiting, {granted, erlmcp_gate_counters:now(Counters)}),
            turns(Queue#queue{flows = erlmcp_fair_queue:served(Key, Rest),
                              delay = erlmcp_queue_delay:turned(Now, Delay)});
        false ->
            %% It has left, by another process.
            ok = answer(Waiting, {refused, 1}),
            turn(InFlight, Now, Queue#queue{flows = Rest})
    end.

refuse(Key, #queue{flows = Flows, delay = Delay} = Queue) ->
    case erlmcp_fair_queue:take(Key, Flows) of
        {ok, {_, Waiting}, Rest} ->
            Needed = erlmcp_queue_delay:needed(erlmcp_fair_queue:length(Rest), Delay),
            ok = answer(Waiting, {refused, max(1, Needed)}),
            Queue#queue{flows = Rest};
        error ->
            %% Its turn came just before.
            Queue
    end.

answer({Reference, Pid, _}, Answer) ->
    Pid ! {Reference, Answer},
    ok.
