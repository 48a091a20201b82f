-module(erlmcp_gate_queue).
-moduledoc """
The process in which requests wait that a gate has no place for. Its bounds are the gate's
(`m:erlmcp_gate`), taken before anyone comes here; so no more can wait than they allow. Flows take
turns, so that a flood of one makes only itself wait.

A request waits `queue_ms` milliseconds at most. Where it has waited for longer than does good
(`m:erlmcp_queue_delay`), it is refused when it would be its turn, the oldest first, and the place
goes to another; nobody's place is left unused. One whose turn cannot come in time is refused at
once.

Internal.
""".

-behaviour(gen_server).

-export([start_link/1, wait/4]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([waiting/0]).

-doc "Who waits: in which flow, since when, what it holds, and what of that for waiting.".
-type waiting() ::
    {Flow :: term(), Since :: pos_integer(),
     {Held :: erlmcp_gate_counters:shares(), Waits :: erlmcp_gate_counters:shares()}}.

%% Milliseconds after which it is looked for places that nobody told of, and for those who were
%% killed, and whose owner or the gate's keeper has left for them.
-define(LOOK, 100).
%% Milliseconds after which who waits looks whether the queue is still there.
-define(STILL_THERE, 1000).

-record(queue, {
    books :: erlmcp_gate_counters:books(),
    patience :: erlmcp_queue_delay:patience(),
    flows = erlmcp_fair_queue:new() :: erlmcp_fair_queue:flows(),
    %% whether no place was left, and who leaves is to say so
    called = false :: boolean(),
    %% how many wait, as all know it
    known = 0 :: non_neg_integer(),
    timer = none :: none | reference()
}).

-doc "Starts it.".
-spec start_link(erlmcp_gate:gate()) -> gen_server:start_ret().
start_link(Gate) ->
    gen_server:start_link(?MODULE, Gate, []).

-doc """
The calling process waits until its request has its place, for so many milliseconds at most. Gives
since when it had it, or after how many milliseconds another try may have more luck.
""".
-spec wait(erlmcp_gate_permits:id(), waiting(), Milliseconds :: non_neg_integer(),
           erlmcp_gate_counters:books()) ->
    {granted, Since :: pos_integer()} | {refused, RetryMs :: pos_integer()}.
wait(Id, {Flow, Since, Shares}, Milliseconds, Books) ->
    %% There may be one meanwhile that nobody in the queue needs.
    case erlmcp_gate_counters:take_place(Books) of
        {ok, Place} ->
            case erlmcp_gate_counters:grant(Id, Place, Shares, Books) of
                true ->
                    {granted, Since};
                false ->
                    ok = erlmcp_gate_counters:give_place(Place, Books),
                    {refused, 1}
            end;
        {full, _, _} ->
            case erlmcp_gate_counters:queue(Books) of
                none -> {refused, ?LOOK};
                {Queue, Longest} -> wait_in(Queue, {Flow, Id}, Shares, min(Milliseconds, Longest))
            end
    end.

%% The queue has no timer and no monitor of each, which would cost more than all the rest.
wait_in(Queue, Key, Shares, Milliseconds) ->
    Reference = make_ref(),
    Queue ! {wait, Key, {Reference, self(), Shares}, now_ms() + Milliseconds},
    answered(Reference, Queue, Key, Milliseconds).

%% The queue has the last word, as long as there is one.
answered(Reference, Queue, Key, Left) ->
    receive
        {Reference, Answer} -> Answer
    after min(Left, ?STILL_THERE) ->
        case is_process_alive(Queue) of
            true when Left =< ?STILL_THERE ->
                Queue ! {late, Key},
                answered(Reference, Queue, Key, infinity);
            true ->
                answered(Reference, Queue, Key, later(Left));
            false ->
                receive {Reference, Answer} -> Answer after 0 -> {refused, ?LOOK} end
        end
    end.

later(infinity) -> infinity;
later(Left) -> Left - ?STILL_THERE.

-doc false.
init(#{books := Books, bounds := #{queue_ms := Longest}}) ->
    %% A place that is free is given away before a flood is read and refused.
    _ = process_flag(priority, high),
    ok = erlmcp_gate_counters:put_queue(self(), Longest, Books),
    {ok, #queue{books = Books, patience = erlmcp_queue_delay:new(Longest)}}.

-doc false.
handle_call(_, _, Queue) ->
    {noreply, Queue}.

-doc false.
handle_cast(_, Queue) ->
    {noreply, Queue}.

-doc false.
handle_info({wait, Key, Waiting, Deadline}, #queue{called = Called} = Queue) ->
    Come = come(Key, Waiting, Deadline, now_ms(), Queue),
    {noreply, told(case Called of
        true -> look_later(Come);
        false -> turns(Come)
    end)};
handle_info(turn, Queue) ->
    {noreply, told(turns(Queue#queue{called = false}))};
handle_info(look, #queue{flows = Flows, books = Books} = Queue) ->
    Left =
        erlmcp_fair_queue:drop(fun({_, Id}) -> not erlmcp_gate_counters:is_written(Id, Books) end,
                               Flows),
    {noreply, told(turns(Queue#queue{flows = Left, timer = none, called = false}))};
handle_info({late, {_, _} = Key}, Queue) ->
    {noreply, told(refuse(Key, Queue))};
handle_info(_, Queue) ->
    {noreply, Queue}.

told(#queue{flows = Flows, known = Known, books = Books} = Queue) ->
    case erlmcp_fair_queue:length(Flows) of
        Known ->
            Queue;
        Count ->
            ok = erlmcp_gate_counters:queued(Count, Books),
            Queue#queue{known = Count}
    end.

come({Flow, Id}, Waiting, Deadline, Now, #queue{flows = Flows, patience = Patience} = Queue) ->
    Left = Deadline - Now,
    case erlmcp_queue_delay:needed(erlmcp_fair_queue:ahead(Flow, Flows), Patience) of
        Needed when Needed >= Left, Needed > 0; Left =< 0 ->
            ok = answer(Waiting, {refused, max(1, Needed)}),
            Queue;
        _ ->
            Began = case erlmcp_fair_queue:length(Flows) of
                0 -> erlmcp_queue_delay:began(Now, Patience);
                _ -> Patience
            end,
            Queue#queue{flows = erlmcp_fair_queue:add(Flow, Id, {Now, Waiting}, Now, Flows),
                        patience = Began}
    end.

%% As long as there are places, and some who want them.
turns(#queue{flows = Flows, books = Books, called = Called} = Queue) ->
    case erlmcp_fair_queue:length(Flows) > 0 andalso erlmcp_gate_counters:take_freed(Books) of
        {ok, Place} ->
            turn(Place, now_ms(), Queue);
        {full, _, _} when Called ->
            look_later(Queue);
        {full, _, _} ->
            ok = erlmcp_gate_counters:call_queue(Books),
            turns(Queue#queue{called = true});
        false ->
            Queue
    end.

turn(Place, Now, #queue{flows = Flows, books = Books, patience = Patience} = Queue) ->
    case erlmcp_fair_queue:next(Flows) of
        none ->
            ok = erlmcp_gate_counters:give(Place, Books),
            Queue;
        {{Flow, _} = Key, {Arrived, Waiting}} ->
            Allowed = erlmcp_queue_delay:allowed(Now, erlmcp_fair_queue:since(Flow, Flows),
                                                 erlmcp_fair_queue:round(Flows), Patience),
            case Now - Arrived > Allowed andalso erlmcp_fair_queue:length(Flows) > 1 of
                true -> turn(Place, Now, refuse(Key, Queue));
                false -> grant(Key, Waiting, Place, Now, Queue)
            end
    end.

grant({_, Id} = Key, {_, _, Shares} = Waiting, Place, Now, #queue{flows = Flows} = Queue) ->
    #queue{books = Books, patience = Patience} = Queue,
    {ok, _, Rest} = erlmcp_fair_queue:take(Key, Flows),
    case erlmcp_gate_counters:grant(Id, Place, Shares, Books) of
        true ->
            ok = answer(Waiting, {granted, erlmcp_gate_counters:now(Books)}),
            turns(Queue#queue{flows = erlmcp_fair_queue:served(Key, Rest),
                              patience = erlmcp_queue_delay:turned(Now, Patience)});
        false ->
            %% It has left, by another's hand.
            ok = answer(Waiting, {refused, 1}),
            turn(Place, Now, Queue#queue{flows = Rest})
    end.

refuse(Key, #queue{flows = Flows, patience = Patience} = Queue) ->
    case erlmcp_fair_queue:take(Key, Flows) of
        {ok, {_, Waiting}, Rest} ->
            Needed = erlmcp_queue_delay:needed(erlmcp_fair_queue:length(Rest), Patience),
            ok = answer(Waiting, {refused, max(1, Needed)}),
            Queue#queue{flows = Rest};
        error ->
            %% It got its place just before.
            Queue
    end.

answer({Reference, Pid, _}, Answer) ->
    Pid ! {Reference, Answer},
    ok.

look_later(#queue{timer = none} = Queue) ->
    Queue#queue{timer = erlang:send_after(?LOOK, self(), look)};
look_later(Queue) ->
    Queue.

now_ms() ->
    erlang:monotonic_time(millisecond).
