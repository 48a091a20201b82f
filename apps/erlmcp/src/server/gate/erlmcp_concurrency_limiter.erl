-module(erlmcp_concurrency_limiter).
-moduledoc """
The process of a server that says how many of its requests may be in flight
(`m:erlmcp_concurrency_gradient`): every 100 ms it sees how long the calls that began waited for a
scheduler, and sets the gate's limit, up to the bound `in_flight`.

Where all calls wait for something else, none begins and nothing is seen of the machine. So it
starts a process of its own each time, and sees how long that waits.

It also says for how many requests there is room to wait. Where somebody always waited, for the
quarter of the longest wait (`m:erlmcp_queue_delay`), no more than will have a place in two fifths
of it, and when that has lasted for the longest wait, in a tenth: those behind them would be refused
when their time is over, by the queue, which costs more than to refuse them when they come. A tenant
may have as many of them as there is room left for (`erlmcp_gate:room/2`): a flood takes half, and
the other half is for the others. These are the dynamic thresholds of Choudhury and Hahne ("Dynamic
Queue Length Thresholds for Shared-Memory Packet Switches", IEEE/ACM Transactions on Networking 6.2,
1998).

Internal.
""".

-behaviour(gen_server).

-export([start_link/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

%% Looks in a window, the milliseconds between two, and those while nothing happens.
-define(LOOKS, 5).
-define(LOOK, 20).
-define(QUIET, 100).

%% Requests in flight for each scheduler: fewer would let it run idle between two calls.
-define(LEAST, 4).
%% Before anything was seen: what one connection may have in flight, and twenty for each scheduler.
-define(FIRST, 100).
-define(FIRST_OF_SCHEDULER, 20).

%% Of how many parts of the longest wait there is room for one, in an overload that may be a burst,
%% and in one that lasts.
-define(FIRST_PART, 2.5).
-define(PART, 10).
%% So many may wait in any case: what comes in one burst of a few callers; and in an overload that
%% lasts, in which nothing is a burst, what each tenant may.
-define(ROOM, 60).
-define(LASTING_ROOM, 20).
%% How much is left after a window of what was seen of the calls' work before.
-define(KEPT, 0.9).

-record(governor, {
    gate :: erlmcp_gate:gate(),
    concurrency :: erlmcp_concurrency_gradient:concurrency(),
    %% the gate's sums at the end of the last window
    sums :: sums(),
    %% what was in flight and ready at the looks since then
    looks = [] :: [{Ready :: non_neg_integer(), InFlight :: non_neg_integer()}],
    %% sums of late: what a window adds is less with each that follows
    late = #{started => 0.0, done => 0.0, worked => 0.0, reductions => 0.0} :: late(),
    %% milliseconds: when the last window ended, when nobody waited the last time, and when somebody
    %% found no place
    at :: integer(),
    emptied :: integer(),
    pressed :: integer(),
    %% since when there is an overload
    overload = none :: none | integer()
}).
-type sums() :: #{
    waits := erlmcp_gate_sums:waits(), pressed := non_neg_integer(),
    done := non_neg_integer(), worked := non_neg_integer(), reductions := non_neg_integer()
}.
-type late() :: #{started := float(), done := float(), worked := float(), reductions := float()}.

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
    Concurrency = erlmcp_concurrency_gradient:new(
        #{min => min(Max, ?LEAST * Schedulers), max => Max,
          first => max(?FIRST, ?FIRST_OF_SCHEDULER * Schedulers)}),
    ok = erlmcp_gate:limit(Gate, erlmcp_concurrency_gradient:limit(Concurrency)),
    look_after(?LOOK),
    Now = now_ms(),
    {ok, #governor{gate = Gate, concurrency = Concurrency, sums = sums(Gate),
                   at = Now, emptied = Now, pressed = Now}}.

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
    Seen = emptied(erlmcp_gate:held(Gate, waiting), Governor),
    case sums(Gate) of
        %% Nothing began or came in vain either; the rest is not the gate's.
        #{reductions := Reductions} = New
                when InFlight =:= 0, New =:= Sums#{reductions := Reductions} ->
            look_after(?QUIET),
            {noreply, Seen#governor{looks = [], sums = New}};
        _ ->
            looked([{erlang:statistics(total_run_queue_lengths), InFlight} | Looks], Seen)
    end;
handle_info({probed, Waited, Seen}, Governor) ->
    look_after(?LOOK),
    {noreply, govern(Waited, Seen, Governor)};
handle_info(_, Governor) ->
    {noreply, Governor}.

emptied(0, Governor) -> Governor#governor{emptied = now_ms()};
emptied(_, Governor) -> Governor.

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
    Sums = erlmcp_gate:sums(Gate),
    {Done, Worked} = erlmcp_gate_sums:work(Sums),
    {Reductions, _} = erlang:statistics(reductions),
    #{waits => erlmcp_gate_sums:waits(Sums), pressed => erlmcp_gate_sums:pressed(Sums),
      done => Done, worked => Worked, reductions => Reductions}.

added(#{waits := Earlier} = Before, #{waits := Later} = Sums) ->
    {Started, Waited} = erlmcp_gate_sums:between(Earlier, Later),
    Added = #{Key => Now - map_get(Key, Before) || Key := Now <- Sums, Key =/= waits},
    Added#{started => Started, waited => Waited}.

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
    Sums = sums(Gate),
    Added = added(Before, Sums),
    #{started := Started, waited := Waited, pressed := Pressed} = Added,
    Late = maps:map(fun(Key, Sum) -> ?KEPT * Sum + map_get(Key, Added) end,
                    Governor#governor.late),
    Window = Seen#{started => 1 + Started, waited => Own + Waited, pressed => Pressed > 0,
                   part => part(Late)},
    Next = erlmcp_concurrency_gradient:update(Window, Concurrency),
    Limit = erlmcp_concurrency_gradient:limit(Next),
    _ = Limit =:= erlmcp_concurrency_gradient:limit(Concurrency)
        orelse erlmcp_gate:limit(Gate, Limit),
    room(Window, now_ms(), Governor#governor{concurrency = Next, sums = Sums, late = Late}).

%% What part of the node's work is that of the calls, if those that began are as those were that are
%% over. While that is not known of any, they are what computes.
part(#{done := Done}) when Done < 1.0e-3 -> 1.0;
part(#{started := Started, done := Done, worked := Worked, reductions := All}) ->
    min(1.0, Started * (Worked / Done) / max(1.0, All)).

%% Where places are enough there is still often somebody who finds none. That the queue never was
%% empty says that they are not enough. Then it is over when nobody has looked for a place in vain
%% for as long: those who come after a moment of quiet are no fewer.
room(#{pressed := true} = Window, Now, Governor) ->
    Took = Now - Governor#governor.at,
    overload(Window, max(1, Took), Governor#governor{pressed = Now, at = Now});
room(_, Now, #governor{overload = none} = Governor) ->
    Governor#governor{at = Now};
room(_, Now, #governor{pressed = Pressed, gate = Gate} = Governor) ->
    case Now - Pressed > lasting(Gate) of
        true ->
            ok = erlmcp_gate:room(Gate, none),
            Governor#governor{at = Now, overload = none};
        false ->
            Governor#governor{at = Now}
    end.

overload(Window, Took, #governor{overload = none, gate = Gate, at = Now} = Governor) ->
    case Now - Governor#governor.emptied > lasting(Gate) of
        true -> overload(Window, Took, Governor#governor{overload = Now});
        false -> Governor
    end;
overload(#{started := Started}, Took, #governor{overload = Since, at = Now} = Governor) ->
    #governor{gate = #{bounds := #{queue_ms := Longest}} = Gate} = Governor,
    {Least, Part} = case Now - Since > Longest of
        true -> {?LASTING_ROOM, ?PART};
        false -> {?ROOM, ?FIRST_PART}
    end,
    ok = erlmcp_gate:room(Gate, max(Least, trunc(Started * Longest / (Part * Took)))),
    Governor.

lasting(#{bounds := #{queue_ms := Longest}}) ->
    erlmcp_queue_delay:lasting(Longest).

now_ms() ->
    erlang:monotonic_time(millisecond).
