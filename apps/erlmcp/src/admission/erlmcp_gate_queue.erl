-module(erlmcp_gate_queue).
-moduledoc """
The process in which requests wait that a gate has no place for. Its bounds are the gate's
(`m:erlmcp_gate`), taken before anyone comes here; so no more can wait than they allow. Flows take
turns, so that a flood of one makes only itself wait.

A request waits `queue_ms` milliseconds at most. When the queue has not been empty for that long, to
wait does no good to anybody: then those that have waited for more than a twentieth of it are
refused when a turn comes, the oldest first, and the place goes to a young one. That is "controlled
delay" as in Ben Maurer, "Fail at Scale" (ACM Queue 13.8, 2015). Nobody's place is left unused.
""".

-behaviour(gen_server).

-export([start_link/1, wait/4]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

%% What part of the longest wait is allowed in a queue that stays.
-define(STANDING, 20).
%% Milliseconds after which it is looked for places that nobody told of.
-define(LOOK, 100).
%% Turns over which their usual distance is taken.
-define(TURNS, 8).

-record(queue, {
    books :: erlmcp_gate_books:books(),
    longest :: pos_integer(),
    flows = erlmcp_flows:new() :: erlmcp_flows:flows(),
    %% milliseconds: since when it has not been empty, when the last turn was
    since = 0 :: integer(),
    turn = 0 :: integer(),
    %% microseconds from one turn to the next, as it is usual; 0 where that is not known
    distance = 0 :: non_neg_integer(),
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
    ok = erlmcp_gate_books:put_queue(self(), Books),
    {ok, #queue{books = Books, longest = Longest}}.

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
    Left = min(Deadline - Now, Queue#queue.longest),
    case erlmcp_flows:ahead(Flow, Flows) * Queue#queue.distance div 1000 of
        Needed when Needed >= Left, Needed > 0; Left =< 0 ->
            Reference ! {Reference, {refused, max(1, Needed)}},
            Queue;
        _ ->
            Waiting = {Reference, Now, erlang:send_after(Left, self(), {late, Key}),
                       monitor(process, Pid, [{tag, {gone, Key}}])},
            Began = case erlmcp_flows:length(Flows) of
                0 -> Queue#queue{since = Now, turn = Now};
                _ -> Queue
            end,
            Began#queue{flows = erlmcp_flows:add(Flow, Id, Waiting, Flows)}
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

turn(Place, Now, #queue{flows = Flows, books = Books} = Queue) ->
    case erlmcp_flows:next(Flows) of
        none ->
            ok = erlmcp_gate_books:give(Place, Books),
            Queue;
        {{_, Id} = Key, {_, Arrived, _, _} = Waiting} ->
            case Now - Arrived > allowed(Now, Queue) andalso erlmcp_flows:length(Flows) > 1 of
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

allowed(Now, #queue{since = Since, longest = Longest}) when Now - Since =< Longest -> Longest;
allowed(Now, #queue{turn = Turn, longest = Longest}) -> max(Longest div ?STANDING, Now - Turn).

granted(Key, Waiting, Now, #queue{turn = Turn, flows = Flows, books = Books} = Queue) ->
    ok = answer(Waiting, {granted, erlmcp_gate_books:now(Books)}),
    Queue#queue{flows = erlmcp_flows:served(Key, Flows), turn = Now,
                distance = usual((Now - Turn) * 1000, Queue#queue.distance)}.

usual(Distance, 0) -> Distance;
usual(Distance, Usual) -> Usual + (Distance - Usual) div ?TURNS.

refuse(Key, #queue{flows = Flows, distance = Distance} = Queue) ->
    case erlmcp_flows:take(Key, Flows) of
        {ok, Waiting, Rest} ->
            Milliseconds = max(1, erlmcp_flows:length(Rest) * Distance div 1000),
            ok = answer(Waiting, {refused, Milliseconds}),
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
