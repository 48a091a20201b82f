-module(erlmcp_gate_queue).
-moduledoc """
The process in which requests wait that a gate has no place for. Its bounds are the gate's
(`m:erlmcp_gate`), taken before anyone comes here; so no more can wait than they allow. Flows take
turns, so that a flood of one makes only itself wait.

A request waits `queue_ms` milliseconds at most. Where it has waited for longer than does good
(`m:erlmcp_patience`), it is refused when it would be its turn, the oldest first, and the place goes
to another; nobody's place is left unused. One whose turn cannot come in time is refused at once.
""".

-behaviour(gen_server).

-export([start_link/1, wait/4]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

%% Milliseconds after which it is looked for places that nobody told of.
-define(LOOK, 100).

-record(queue, {
    books :: erlmcp_gate_books:books(),
    patience :: erlmcp_patience:patience(),
    flows = erlmcp_flows:new() :: erlmcp_flows:flows(),
    timer = none :: none | reference()
}).

-doc "Starts it.".
-spec start_link(erlmcp_gate:gate()) -> gen_server:start_ret().
start_link(Gate) ->
    gen_server:start_link(?MODULE, Gate, []).

-doc """
The calling process waits until its request has its place, for so many milliseconds at most. Gives
when it got it, or after how many milliseconds another try may have more luck.
""".
-spec wait(Flow :: term(), erlmcp_ledger:id(), Milliseconds :: non_neg_integer(),
           erlmcp_gate_books:books()) ->
    {granted, Since :: pos_integer()} | {refused, RetryMs :: pos_integer()}.
wait(Flow, Id, Milliseconds, Books) ->
    case erlmcp_gate_books:queue(Books) of
        none -> {refused, ?LOOK};
        Queue -> wait_in(Queue, Flow, Id, Milliseconds)
    end.

wait_in(Queue, Flow, Id, Milliseconds) ->
    Reference = monitor(process, Queue, [{alias, reply_demonitor}]),
    Queue ! {wait, Reference, {Flow, Id}, self(), now_ms() + Milliseconds},
    receive
        {Reference, Answer} -> Answer;
        {'DOWN', Reference, _, _, _} -> {refused, ?LOOK}
    end.

-doc false.
init(#{books := Books, bounds := #{queue_ms := Longest}}) ->
    %% A place that is free is given away before a flood is read and refused.
    _ = process_flag(priority, high),
    ok = erlmcp_gate_books:put_queue(self(), Books),
    {ok, #queue{books = Books, patience = erlmcp_patience:new(Longest)}}.

-doc false.
handle_call(_, _, Queue) ->
    {noreply, Queue}.

-doc false.
handle_cast(_, Queue) ->
    {noreply, Queue}.

-doc false.
handle_info({wait, Reference, Key, Pid, Deadline}, Queue) ->
    {noreply, turns(come(Reference, Key, Pid, Deadline, now_ms(), Queue))};
handle_info(turn, Queue) ->
    {noreply, turns(Queue)};
handle_info(look, Queue) ->
    {noreply, turns(Queue#queue{timer = none})};
handle_info({late, {_, _} = Key}, Queue) ->
    {noreply, refuse(Key, Queue)};
handle_info({{gone, Key}, _, process, _, _}, Queue) ->
    {noreply, gone(Key, Queue)};
handle_info(_, Queue) ->
    {noreply, Queue}.

come(Reference, {Flow, Id} = Key, Pid, Deadline, Now, #queue{flows = Flows} = Queue) ->
    #queue{patience = Patience} = Queue,
    Left = min(Deadline - Now, erlmcp_patience:longest(Patience)),
    case erlmcp_patience:needed(erlmcp_flows:ahead(Flow, Flows), Patience) of
        Needed when Needed >= Left, Needed > 0; Left =< 0 ->
            Reference ! {Reference, {refused, max(1, Needed)}},
            Queue;
        _ ->
            Waiting = {Reference, Now, erlang:send_after(Left, self(), {late, Key}),
                       monitor(process, Pid, [{tag, {gone, Key}}])},
            Began = case erlmcp_flows:length(Flows) of
                0 -> erlmcp_patience:began(Now, Patience);
                _ -> Patience
            end,
            Queue#queue{flows = erlmcp_flows:add(Flow, Id, Waiting, Now, Flows), patience = Began}
    end.

%% As long as there are places, and some who want them.
turns(#queue{flows = Flows, books = Books} = Queue) ->
    case erlmcp_flows:next(Flows) of
        none ->
            Queue;
        _ ->
            case erlmcp_gate_books:take_place(Books) of
                {ok, Place} -> turn(Place, now_ms(), Queue);
                {full, _, _} -> look_later(Queue)
            end
    end.

turn(Place, Now, #queue{flows = Flows, books = Books, patience = Patience} = Queue) ->
    case erlmcp_flows:next(Flows) of
        none ->
            ok = erlmcp_gate_books:give(Place, Books),
            Queue;
        {{Flow, Id} = Key, {_, Arrived, _, _} = Waiting} ->
            Allowed = erlmcp_patience:allowed(Now, erlmcp_flows:since(Flow, Flows),
                                              erlmcp_flows:round(Flows), Patience),
            case Now - Arrived > Allowed andalso erlmcp_flows:length(Flows) > 1 of
                true ->
                    turn(Place, Now, refuse(Key, Queue));
                false ->
                    Rest = forget(Key, Queue),
                    case erlmcp_gate_books:grant(Id, Place, Books) of
                        true ->
                            turns(granted(Key, Waiting, Now, Rest));
                        false ->
                            %% It has left, by another's hand.
                            ok = answer(Waiting, {refused, 1}),
                            turn(Place, Now, Rest)
                    end
            end
    end.

granted(Key, Waiting, Now, #queue{flows = Flows, books = Books, patience = Patience} = Queue) ->
    ok = answer(Waiting, {granted, erlmcp_gate_books:now(Books)}),
    Queue#queue{flows = erlmcp_flows:served(Key, Flows),
                patience = erlmcp_patience:turned(Now, Patience)}.

refuse(Key, #queue{flows = Flows, patience = Patience} = Queue) ->
    case erlmcp_flows:take(Key, Flows) of
        {ok, Waiting, Rest} ->
            Needed = erlmcp_patience:needed(erlmcp_flows:length(Rest), Patience),
            ok = answer(Waiting, {refused, max(1, Needed)}),
            ok = release(Waiting),
            Queue#queue{flows = Rest};
        error ->
            %% It got its place just before.
            Queue
    end.

answer({Reference, _, _, _}, Answer) ->
    Reference ! {Reference, Answer},
    ok.

forget(Key, #queue{flows = Flows} = Queue) ->
    {ok, Waiting, Rest} = erlmcp_flows:take(Key, Flows),
    ok = release(Waiting),
    Queue#queue{flows = Rest}.

release({_, _, Timer, Monitor}) ->
    _ = erlang:cancel_timer(Timer, [{async, true}, {info, false}]),
    _ = demonitor(Monitor, [flush]),
    ok.

%% What the dead held in the queue is given back at once; the keeper would do it too.
gone({_, Id} = Key, #queue{flows = Flows, books = Books} = Queue) ->
    case erlmcp_flows:take(Key, Flows) of
        {ok, Waiting, Rest} ->
            ok = release(Waiting),
            ok = erlmcp_gate_books:leave(Id, Books),
            Queue#queue{flows = Rest};
        error ->
            Queue
    end.

look_later(#queue{timer = none} = Queue) ->
    Queue#queue{timer = erlang:send_after(?LOOK, self(), look)};
look_later(Queue) ->
    Queue.

now_ms() ->
    erlang:monotonic_time(millisecond).
