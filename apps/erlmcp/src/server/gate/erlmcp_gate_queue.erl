-module(erlmcp_gate_queue).
-moduledoc """
The process of a gate in which requests wait until they may be in flight. A request has taken its
share of the limits of waiting requests before (`m:erlmcp_gate`). Tenants take turns
(`m:erlmcp_fair_queue`), so a flood of one tenant hardly makes others wait.

A request waits `queue_ms` milliseconds at most. If it has waited for too long at its turn
(`m:erlmcp_queue_delay`) and others wait, it is refused, and the next request has the turn. A
request that cannot have its turn in time is refused immediately.

Internal.
""".

-behaviour(gen_server).

-export([start_link/1, wait/4]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([waiting/0]).

-doc """
A request that waits: its tenant, the time at which it began to wait (`erlmcp_gate_counters:now/1`),
and the shares of its permit. When the request runs, it keeps `Held` and gives `Waiting` back.
""".
-type waiting() ::
    {Tenant :: term(), Since :: pos_integer(),
     {Held :: [erlmcp_gate_counters:taken()], Waiting :: [erlmcp_gate_counters:taken()]}}.

%% Milliseconds between two looks at the waiting requests. Their processes may have been killed, and
%% a process that gave a permit back may have been killed before it sent `look`.
-define(LOOK, 100).
%% Milliseconds after which a waiting process checks whether the queue still lives.
-define(STILL_THERE, 1000).

-record(queue, {
    permits :: erlmcp_gate_permits:permits(),
    counters :: erlmcp_gate_counters:counters(),
    delay :: erlmcp_queue_delay:delay(),
    requests = erlmcp_fair_queue:new() :: erlmcp_fair_queue:queue(),
    %% the number of requests that is in the counters
    counted = 0 :: non_neg_integer(),
    timer = none :: none | reference()
}).

-doc "Starts the queue of a gate.".
-spec start_link(erlmcp_gate:gate()) -> gen_server:start_ret().
start_link(Gate) ->
    gen_server:start_link(?MODULE, Gate, []).

-doc """
Waits in the calling process until a request may run, for up to `Milliseconds` or the limit
`queue_ms`, whichever is less. The first argument is the id of the request's permit. Returns
`granted` with the time at which the request came in flight. If there was room at once, this is the
time at which it began to wait. Returns `refused` if the request cannot run in time, if its permit
was given back, or if the queue does not run. Then it is worthwhile to try again after `RetryMs`
milliseconds.
""".
-spec wait(erlmcp_gate_permits:id(), waiting(), Milliseconds :: non_neg_integer(),
           erlmcp_gate:gate()) ->
    {granted, Since :: pos_integer()} | {refused, RetryMs :: pos_integer()}.
wait(Id, {Tenant, Since, Taken}, Milliseconds, #{permits := Permits, counters := Counters}) ->
    %% By now there may be room for one more request in flight, and no request in the queue.
    case erlmcp_gate_counters:enter_waiting(Counters) of
        {ok, InFlight} ->
            case erlmcp_gate_permits:grant(Id, InFlight, Taken, Permits) of
                true ->
                    {granted, Since};
                false ->
                    _ = erlmcp_gate_counters:leave(InFlight, Counters),
                    ok = erlmcp_gate_permits:tell_queue(Permits),
                    {refused, 1}
            end;
        {full, _, _} ->
            case erlmcp_gate_permits:queue(Permits) of
                none -> {refused, ?LOOK};
                {Queue, Longest} -> wait_in(Queue, {Tenant, Id}, Taken, min(Milliseconds, Longest))
            end
    end.

%% The queue has no timer and no monitor for each request, which would cost more than all the rest.
wait_in(Queue, Key, Taken, Milliseconds) ->
    Reference = make_ref(),
    Queue ! {wait, Key, {Reference, self(), Taken}, erlmcp_clock:now_ms() + Milliseconds},
    answered(Reference, Queue, Key, Milliseconds).

%% While the queue lives, only its answer counts.
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
    %% So that it runs before the connections, which may read and refuse a flood.
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
handle_info(timer, #queue{requests = Requests} = Queue) ->
    HasLeft = fun({_, Id}) -> not erlmcp_gate_permits:is_held(Id) end,
    {Left, Waiting} = erlmcp_fair_queue:drop(HasLeft, Requests),
    %% Most of their processes are dead.
    lists:foreach(fun({_, Request}) -> answer(Request, {refused, 1}) end, Left),
    {noreply, next(Queue#queue{requests = Waiting, timer = none})};
handle_info({late, {_, _} = Key}, Queue) ->
    {noreply, counted(refuse(Key, Queue))};
handle_info(_, Queue) ->
    {noreply, Queue}.

add({Tenant, Id}, Waiting, Deadline, Now, #queue{requests = Requests, delay = Delay} = Queue) ->
    Remaining = Deadline - Now,
    case erlmcp_queue_delay:needed(erlmcp_fair_queue:ahead(Tenant, Requests), Delay) of
        Needed when Needed >= Remaining, Needed > 0; Remaining =< 0 ->
            ok = answer(Waiting, {refused, max(1, Needed)}),
            Queue;
        _ ->
            Began = case erlmcp_fair_queue:length(Requests) of
                0 -> erlmcp_queue_delay:began(Now, Delay);
                _ -> Delay
            end,
            Queue#queue{requests = erlmcp_fair_queue:add(Tenant, Id, {Now, Waiting}, Now, Requests),
                        delay = Began}
    end.

%% The requests are counted before the queue looks whether more may be in flight: a process that
%% leaves after that sends a look.
next(Queue) ->
    counted(later(turns(counted(Queue)))).

counted(#queue{requests = Requests, counted = Counted, counters = Counters} = Queue) ->
    case erlmcp_fair_queue:length(Requests) of
        Counted ->
            Queue;
        Count ->
            ok = erlmcp_gate_counters:queued(Count, Counters),
            Queue#queue{counted = Count}
    end.

later(#queue{requests = Requests, timer = none} = Queue) ->
    case erlmcp_fair_queue:length(Requests) of
        0 -> Queue;
        _ -> Queue#queue{timer = erlang:send_after(?LOOK, self(), timer)}
    end;
later(Queue) ->
    Queue.

%% Repeats turns while requests wait and another one may be in flight.
turns(#queue{requests = Requests, counters = Counters} = Queue) ->
    case erlmcp_fair_queue:length(Requests) > 0 andalso erlmcp_gate_counters:enter_next(Counters) of
        {ok, InFlight} -> turn(InFlight, erlmcp_clock:now_ms(), Queue);
        _ -> Queue
    end.

turn(InFlight, Now, #queue{requests = Requests, counters = Counters, delay = Delay} = Queue) ->
    case erlmcp_fair_queue:next(Requests) of
        none ->
            _ = erlmcp_gate_counters:leave(InFlight, Counters),
            Queue;
        {{Tenant, _} = Key, {Arrived, Waiting}} ->
            Allowed = erlmcp_queue_delay:allowed(Now, erlmcp_fair_queue:since(Tenant, Requests),
                                                 erlmcp_fair_queue:round(Requests), Delay),
            case Now - Arrived > Allowed andalso erlmcp_fair_queue:length(Requests) > 1 of
                true -> turn(InFlight, Now, refuse(Key, Queue));
                false -> grant(Key, Waiting, InFlight, Now, Queue)
            end
    end.

grant({_, Id} = Key, {_, _, Taken} = Waiting, InFlight, Now, #queue{requests = Requests} = Queue) ->
    #queue{permits = Permits, counters = Counters, delay = Delay} = Queue,
    {ok, _, Rest} = erlmcp_fair_queue:take(Key, Requests),
    case erlmcp_gate_permits:grant(Id, InFlight, Taken, Permits) of
        true ->
            ok = answer(Waiting, {granted, erlmcp_gate_counters:now(Counters)}),
            turns(Queue#queue{requests = erlmcp_fair_queue:served(Key, Rest),
                              delay = erlmcp_queue_delay:turned(Now, Delay)});
        false ->
            %% Another process has given the permit of this request back.
            ok = answer(Waiting, {refused, 1}),
            turn(InFlight, Now, Queue#queue{requests = Rest})
    end.

refuse(Key, #queue{requests = Requests, delay = Delay} = Queue) ->
    case erlmcp_fair_queue:take(Key, Requests) of
        {ok, {_, Waiting}, Rest} ->
            Needed = erlmcp_queue_delay:needed(erlmcp_fair_queue:length(Rest), Delay),
            ok = answer(Waiting, {refused, max(1, Needed)}),
            Queue#queue{requests = Rest};
        error ->
            %% The request has just had its turn.
            Queue
    end.

answer({Reference, Pid, _}, Answer) ->
    Pid ! {Reference, Answer},
    ok.
