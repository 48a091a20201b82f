-module(erlmcp_concurrency_limiter).
-moduledoc """
The process of a server that sets how many of its requests may be in flight
(`m:erlmcp_concurrency_gradient`): every 100 ms it reads how long the calls that began waited for a
scheduler, and sets the gate's limit, up to the limit `in_flight`.

If all calls wait for something else, none begins and nothing is seen of the machine. So this
process starts one of its own each time, and sees how long that waits.

It also sets how many requests may wait. If the queue was not empty for a quarter of the longest
wait (`m:erlmcp_queue_delay`), they are no more than will run in two fifths of that wait, and after
the whole wait no more than in a tenth. The queue would refuse those behind them when their time is
over, which costs more than to refuse them when they come. A tenant may have as many of them as are
left (`erlmcp_gate:limit_queue/2`): a flood takes half, and the other half is for the others. These
are the dynamic thresholds of Choudhury and Hahne ("Dynamic Queue Length Thresholds for
Shared-Memory Packet Switches", IEEE/ACM Transactions on Networking 6.2, 1998).

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

%% The part of the longest wait in which those that wait have to run, in an overload that may be a
%% burst, and in one that lasts: 1 / 2.5 and 1 / 10.
-define(FIRST_PART, 2.5).
-define(PART, 10).
%% Requests that may wait in any case: what comes in one burst of a few callers; and, in an overload
%% that lasts, in which nothing is a burst, what each tenant may have.
-define(LEAST_WAITING, 60).
-define(LEAST_WAITING_LONG, 20).
%% How much is left after a window of what was seen of the calls' work before.
-define(KEPT, 0.9).

-record(limiter, {
    gate :: erlmcp_gate:gate(),
    concurrency :: erlmcp_concurrency_gradient:concurrency(),
    %% what the gate has added up at the end of the last window
    sums :: sums(),
    %% what was in flight and ready at the looks since then
    looks = [] :: [{Ready :: non_neg_integer(), InFlight :: non_neg_integer()}],
    %% recent sums: what a window adds is less with each that follows
    late = #{started => 0.0, done => 0.0, worked => 0.0, reductions => 0.0} :: late(),
    %% milliseconds: when the last window ended, when the queue was empty the last time, and when a
    %% request came in vain
    at :: integer(),
    emptied :: integer(),
    refused :: integer(),
    %% since when there is an overload
    overload = none :: none | integer()
}).
-type sums() :: #{
    starts := erlmcp_gate_counters:starts(), refused := non_neg_integer(),
    done := non_neg_integer(), worked := non_neg_integer(), reductions := non_neg_integer()
}.
-type late() :: #{started := float(), done := float(), worked := float(), reductions := float()}.

-doc "Starts it.".
-spec start_link(erlmcp_gate:gate()) -> gen_server:start_ret().
start_link(Gate) ->
    gen_server:start_link(?MODULE, Gate, []).

-doc false.
init(#{limits := #{in_flight := Limit}} = Gate) ->
    ok = erlmcp_label:set([?MODULE]),
    %% When the machine has too much to do, this is what relieves it.
    _ = process_flag(priority, high),
    Schedulers = erlang:system_info(schedulers_online),
    Max = most(Limit),
    Concurrency = erlmcp_concurrency_gradient:new(
        #{min => min(Max, ?LEAST * Schedulers), max => Max,
          first => max(?FIRST, ?FIRST_OF_SCHEDULER * Schedulers)}),
    ok = erlmcp_gate:limit(Gate, erlmcp_concurrency_gradient:limit(Concurrency)),
    look_after(?LOOK),
    Now = erlmcp_clock:now_ms(),
    {ok, #limiter{gate = Gate, concurrency = Concurrency, sums = sums(Gate),
                  at = Now, emptied = Now, refused = Now}}.

%% More than a node has processes.
most(infinity) -> 1 bsl 27;
most(Limit) -> Limit.

-doc false.
handle_call(_, _, Limiter) ->
    {noreply, Limiter}.

-doc false.
handle_cast(_, Limiter) ->
    {noreply, Limiter}.

-doc false.
handle_info(look, #limiter{gate = Gate, sums = Sums, looks = Looks} = Limiter) ->
    InFlight = erlmcp_gate:held(Gate, in_flight),
    Seen = emptied(erlmcp_gate:held(Gate, waiting), Limiter),
    case sums(Gate) of
        %% No request began or came in vain either; the rest is not the gate's.
        #{reductions := Reductions} = New
                when InFlight =:= 0, New =:= Sums#{reductions := Reductions} ->
            look_after(?QUIET),
            {noreply, Seen#limiter{looks = [], sums = New}};
        _ ->
            looked([{erlang:statistics(total_run_queue_lengths), InFlight} | Looks], Seen)
    end;
handle_info({probed, Waited, Seen}, Limiter) ->
    look_after(?LOOK),
    {noreply, update(Waited, Seen, Limiter)};
handle_info(_, Limiter) ->
    {noreply, Limiter}.

emptied(0, Limiter) -> Limiter#limiter{emptied = erlmcp_clock:now_ms()};
emptied(_, Limiter) -> Limiter.

%% The look in the middle: one of them may be just after the machine had no time for the node, when
%% all that came meanwhile is ready at once.
looked(Looks, Limiter) when length(Looks) =:= ?LOOKS ->
    {Ready, InFlight} = lists:nth(?LOOKS div 2 + 1, lists:sort(Looks)),
    probe(#{in_flight => InFlight, ready => Ready}),
    {noreply, Limiter#limiter{looks = []}};
looked(Looks, Limiter) ->
    look_after(?LOOK),
    {noreply, Limiter#limiter{looks = Looks}}.

sums(#{counters := Counters}) ->
    {Done, Worked} = erlmcp_gate_counters:work(Counters),
    {Reductions, _} = erlang:statistics(reductions),
    #{starts => erlmcp_gate_counters:starts(Counters),
      refused => erlmcp_gate_counters:refused(Counters),
      done => Done, worked => Worked, reductions => Reductions}.

added(#{starts := Earlier} = Before, #{starts := Later} = Sums) ->
    {Started, Waited} = erlmcp_gate_counters:starts_between(Earlier, Later),
    Added = #{Key => Now - map_get(Key, Before) || Key := Now <- Sums, Key =/= starts},
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

update(Own, Seen, #limiter{gate = Gate, concurrency = Concurrency, sums = Before} = Limiter) ->
    Sums = sums(Gate),
    Added = added(Before, Sums),
    #{started := Started, waited := Waited, refused := Refused} = Added,
    Late = maps:map(fun(Key, Sum) -> ?KEPT * Sum + map_get(Key, Added) end,
                    Limiter#limiter.late),
    Window = Seen#{started => 1 + Started, waited => Own + Waited, pressed => Refused > 0,
                   part => part(Late)},
    Next = erlmcp_concurrency_gradient:update(Window, Concurrency),
    Limit = erlmcp_concurrency_gradient:limit(Next),
    _ = Limit =:= erlmcp_concurrency_gradient:limit(Concurrency)
        orelse erlmcp_gate:limit(Gate, Limit),
    limit_queue(Window, erlmcp_clock:now_ms(),
                Limiter#limiter{concurrency = Next, sums = Sums, late = Late}).

%% What part of the node's work is that of the calls, if those that began are as those were that are
%% over. While that is not known of any, they are what computes.
part(#{done := Done}) when Done < 1.0e-3 -> 1.0;
part(#{started := Started, done := Done, worked := Worked, reductions := All}) ->
    min(1.0, Started * (Worked / Done) / max(1.0, All)).

%% Also where permits are enough a request often finds none. That the queue never was empty says
%% that they are not enough. Then the overload is over when no request came in vain for as long:
%% after a moment of quiet as many come as before.
limit_queue(#{pressed := true} = Window, Now, Limiter) ->
    Took = Now - Limiter#limiter.at,
    overload(Window, max(1, Took), Limiter#limiter{refused = Now, at = Now});
limit_queue(_, Now, #limiter{overload = none} = Limiter) ->
    Limiter#limiter{at = Now};
limit_queue(_, Now, #limiter{refused = Refused, gate = Gate} = Limiter) ->
    case Now - Refused > lasting(Gate) of
        true ->
            ok = erlmcp_gate:limit_queue(Gate, none),
            Limiter#limiter{at = Now, overload = none};
        false ->
            Limiter#limiter{at = Now}
    end.

overload(Window, Took, #limiter{overload = none, gate = Gate, at = Now} = Limiter) ->
    case Now - Limiter#limiter.emptied > lasting(Gate) of
        true -> overload(Window, Took, Limiter#limiter{overload = Now});
        false -> Limiter
    end;
overload(#{started := Started}, Took, #limiter{overload = Since, at = Now} = Limiter) ->
    #limiter{gate = #{limits := #{queue_ms := Longest}} = Gate} = Limiter,
    {Least, Part} = case Now - Since > Longest of
        true -> {?LEAST_WAITING_LONG, ?PART};
        false -> {?LEAST_WAITING, ?FIRST_PART}
    end,
    ok = erlmcp_gate:limit_queue(Gate, max(Least, trunc(Started * Longest / (Part * Took)))),
    Limiter.

lasting(#{limits := #{queue_ms := Longest}}) ->
    erlmcp_queue_delay:lasting(Longest).
