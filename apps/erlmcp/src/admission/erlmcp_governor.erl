-module(erlmcp_governor).
-moduledoc """
The process of a server that says how many of its requests may be in flight
(`m:erlmcp_concurrency`): every 100 ms it sees how long the calls that began waited for a
scheduler, and sets the gate's limit, up to the bound `in_flight`.

Where all calls wait for something else, none begins and nothing is seen of the machine. So it
starts a process of its own each time, and sees how long that waits.

It also says how many requests of one tenant may wait for a place. Where for a second no moment was
without requests that found none, no more wait than will have one in the twentieth part of the
longest wait: those behind them would be refused when their time is over, by the queue, which costs
more than to refuse them when they come. A queue for each tenant, and not one for all, since a flood
must not take the others' turns.
""".

-behaviour(gen_server).

-export([start_link/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

%% Looks in a window, the milliseconds between two, and those while nothing happens.
-define(LOOKS, 5).
-define(LOOK, 20).
-define(QUIET, 500).

%% Requests in flight for each scheduler: fewer would let it run idle between two calls.
-define(LEAST, 4).
%% Before anything was seen: what one connection may have in flight, and twenty for each scheduler.
-define(FIRST, 100).
-define(FIRST_OF_SCHEDULER, 20).

%% Milliseconds after which an overload is a lasting one; what part of the longest wait is for it.
-define(LASTING, 1000).
-define(PART, 20).
%% So many of a tenant may wait in any case: what comes in one burst of a few callers.
-define(ROOM, 10).

-record(governor, {
    gate :: erlmcp_gate:gate(),
    concurrency :: erlmcp_concurrency:concurrency(),
    %% the gate's sums at the end of the last window
    sums :: sums(),
    %% what was in flight and ready at the looks since then
    looks = [] :: [{Ready :: non_neg_integer(), InFlight :: non_neg_integer()}],
    %% milliseconds: when that was, and since when every window has had requests without a place
    at :: integer(),
    pressed_since = none :: none | integer()
}).
-type sums() :: {Started :: non_neg_integer(), Waited :: non_neg_integer(),
                 Pressed :: non_neg_integer()}.

-doc "Starts it.".
-spec start_link(erlmcp_gate:gate()) -> gen_server:start_ret().
start_link(Gate) ->
    gen_server:start_link(?MODULE, Gate, []).

-doc false.
init(#{bounds := #{in_flight := Bound}} = Gate) ->
    %% When the machine has too much to do, this is what relieves it.
    _ = process_flag(priority, high),
    Schedulers = erlang:system_info(schedulers_online),
    Max = most(Bound),
    Concurrency = erlmcp_concurrency:new(
        #{min => min(Max, ?LEAST * Schedulers), max => Max,
          first => max(?FIRST, ?FIRST_OF_SCHEDULER * Schedulers)}),
    ok = erlmcp_gate:limit(Gate, erlmcp_concurrency:limit(Concurrency)),
    look_after(?LOOK),
    {ok, #governor{gate = Gate, concurrency = Concurrency, sums = sums(Gate),
                   at = now_ms()}}.

%% More than a node has processes.
most(infinity) -> 1 bsl 27;
most(Bound) -> Bound.

-doc false.
handle_call(_, _, Governor) ->
    {noreply, Governor}.

-doc false.
handle_cast(_, Governor) ->
    {noreply, Governor}.

-doc false.
handle_info(look, #governor{gate = Gate, sums = Sums, looks = Looks} = Governor) ->
    InFlight = erlmcp_gate:held(Gate, in_flight),
    case sums(Gate) of
        Sums when InFlight =:= 0 ->
            look_after(?QUIET),
            {noreply, Governor#governor{looks = []}};
        _ ->
            looked([{erlang:statistics(total_run_queue_lengths), InFlight} | Looks], Governor)
    end;
handle_info({probed, Waited, Seen}, Governor) ->
    look_after(?LOOK),
    {noreply, govern(Waited, Seen, Governor)};
handle_info(_, Governor) ->
    {noreply, Governor}.

%% The look in the middle: one of them may be just after the machine had no time for the node, when
%% all that came meanwhile is ready at once.
looked(Looks, Governor) when length(Looks) =:= ?LOOKS ->
    {Ready, InFlight} = lists:nth(?LOOKS div 2 + 1, lists:sort(Looks)),
    probe(#{in_flight => InFlight, ready => Ready}),
    {noreply, Governor#governor{looks = []}};
looked(Looks, Governor) ->
    look_after(?LOOK),
    {noreply, Governor#governor{looks = Looks}}.

sums(Gate) ->
    {Started, Waited} = erlmcp_gate:waits(Gate),
    {Started, Waited, erlmcp_gate:pressed(Gate)}.

look_after(Milliseconds) ->
    _ = erlang:send_after(Milliseconds, self(), look),
    ok.

probe(Seen) ->
    Self = self(),
    Now = erlang:monotonic_time(nanosecond),
    _ = spawn_link(fun() ->
        Self ! {probed, erlang:monotonic_time(nanosecond) - Now, Seen}
    end),
    ok.

govern(Own, Seen, #governor{gate = Gate, concurrency = Concurrency, sums = Before} = Governor) ->
    {StartedBefore, WaitedBefore, PressedBefore} = Before,
    {Started, Waited, Pressed} = Sums = sums(Gate),
    Window = Seen#{started => 1 + Started - StartedBefore, waited => Own + Waited - WaitedBefore,
                   pressed => Pressed > PressedBefore},
    Next = erlmcp_concurrency:update(Window, Concurrency),
    Limit = erlmcp_concurrency:limit(Next),
    _ = Limit =:= erlmcp_concurrency:limit(Concurrency) orelse erlmcp_gate:limit(Gate, Limit),
    room(Window, now_ms(), Governor#governor{concurrency = Next, sums = Sums}).

room(#{pressed := false}, Now, #governor{pressed_since = none} = Governor) ->
    Governor#governor{at = Now};
room(#{pressed := false}, Now, #governor{gate = Gate} = Governor) ->
    ok = erlmcp_gate:room(Gate, none),
    Governor#governor{at = Now, pressed_since = none};
room(_, Now, #governor{at = At, pressed_since = none} = Governor) ->
    Governor#governor{at = Now, pressed_since = At};
room(_, Now, #governor{pressed_since = Since} = Governor) when Now - Since < ?LASTING ->
    Governor#governor{at = Now};
room(#{started := Started}, Now, #governor{gate = Gate, at = At} = Governor) ->
    #{bounds := #{queue_ms := Longest}} = Gate,
    Served = Started * Longest div (?PART * max(1, Now - At)),
    ok = erlmcp_gate:room(Gate, max(?ROOM, Served)),
    Governor#governor{at = Now}.

now_ms() ->
    erlang:monotonic_time(millisecond).
