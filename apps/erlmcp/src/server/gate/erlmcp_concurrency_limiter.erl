-module(erlmcp_concurrency_limiter).
-moduledoc """
The process of a server that limits how many of its requests are in flight. The machine should be
busy, and yet no request should wait long for a scheduler. While requests come, a window of
measurements ends about every 100 ms. Then this process sets the gate's limit by the time for which
the requests of the window waited for a scheduler. The limit never exceeds the server's own,
`in_flight`. Under overload this process also limits how many requests may wait.

The rule is the one of Netflix's concurrency-limits (`Gradient2Limit` and `GradientLimit`), with the
wait for a scheduler in place of the latency.

Internal.
""".

-behaviour(gen_server).

-export([start_link/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).
%% Pure.
-export([new/1, update/2, limit/1]).

-export_type([concurrency/0, bounds/0, window/0]).

%% The limit
%%
%% In each window the limit follows the gradient, the quotient of the wanted and the measured wait:
%%
%%    gradient = max(0.25, min(2.0, wanted / waited))
%%    limit = gradient * limit + sqrt(limit)
%%
%% The limit rises by half of the difference at a time. It falls at once, since all requests have to
%% wait for the excess ones. The square root lets some requests queue, so that the machine never
%% runs out of requests. The limit does not rise while it was not reached and less than half of it
%% is used. It does not fall because of a few requests that had to wait.
%%
%% The rule is the one of Netflix's concurrency-limits (`Gradient2Limit`,
%% github.com/Netflix/concurrency-limits). The square root is from its `GradientLimit`. As in
%% Envoy's adaptive concurrency filter the gradient may be above one, so a limit that is far too low
%% doubles within two windows.
%%
%% This limiter measures another latency than these. Netflix and Envoy compare the time that a
%% request takes with a long-term average. Here it is the time that a started request waits for a
%% scheduler:
%%
%% - A request's own time says little about the machine. The request may wait for a person, or for
%%   its client's model. The mean over a tool of 20 microseconds and one of 20 milliseconds jumps
%%   with the share of each.
%% - The wait for a scheduler needs no average to compare with. It is close to zero on an idle
%%   machine, for all tools and all numbers of cores. A learned average drifts: under lasting
%%   overload it grows until overload is the expected state, and the limit grows with it.
%% - That wait is known when a request starts, not when it ends.
%%
%% If all requests wait for something else, none starts, and nothing is measured. So this process
%% starts a process of its own in each window, and measures how long that one waits.
%%
%% A long wait means too many requests only if requests are the load. So the processes that are
%% ready to run are counted too, at one moment of each window:
%%
%% - If they are few, the machine had no time for the node. Fewer requests would not change that.
%% - If requests did less than half of the work, in reductions, the load is something else, such as
%%   the connections, which read, answer and refuse. Fewer requests would wait as long. Then the
%%   limit rises, so that the server does not end up refusing all requests. It rises at once to the
%%   number of requests that start in half of a window, since a burst of such requests is no
%%   overload. The number of ready processes does not show this case: a refusal keeps a scheduler
%%   for a much shorter time than a request that computes.
%% - Requests in flight that are not ready wait for something else, and take no processor time. They
%%   do not count in the limit.
%%
%% Tools that wait for a scarce resource other than the machine are not limited here. Definitions
%% have limits of their own for that.
%%
%% The limit of the queue
%%
%% The limiter also limits how many requests may wait. An overload begins when the queue was not
%% empty for a quarter of the longest wait (`erlmcp_queue_delay`). Then only as many requests may
%% wait as will run in two fifths of that wait, and 60 in any case. When the overload has lasted for
%% the whole longest wait, a tenth replaces the two fifths, and 20 replaces the 60. The queue would
%% refuse further requests later, when they have waited too long, and that costs more than to refuse
%% them at once.
%%
%% A tenant may have as many waiting requests as are still free in the limit of all tenants
%% (`erlmcp_gate:limit_queue/2`). So a flood of one tenant fills half of the queue, and the other
%% half is left for the other tenants. These are the dynamic thresholds of Choudhury and Hahne
%% ("Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", IEEE/ACM Transactions on
%% Networking 6.2, 1998).

-type bounds() :: #{min := pos_integer(), max := pos_integer(), first := pos_integer()}.

-doc """
A window of measurements.

- `started`: how many processes began to run. These are the requests, and one process of the
  limiter.
- `waited`: the nanoseconds for which all of these processes together waited for a scheduler.
- `pressed`: `true` if a request found the limit of requests in flight reached.
- `part`: the part of the node's recent work that requests have done, from 0.0 to 1.0.
- `in_flight`, `ready`: the number of requests in flight, and of processes that were ready to run,
  at one moment of the window.
""".
-type window() :: #{
    started := non_neg_integer(), waited := non_neg_integer(), pressed := boolean(),
    part := float(), in_flight := non_neg_integer(), ready := non_neg_integer()
}.
-record(concurrency, {
    %% the limit of requests that run or are ready to run
    limit :: float(),
    %% the number of requests in flight that wait for something else
    idle = 0 :: non_neg_integer(),
    bounds :: bounds()
}).
-opaque concurrency() :: #concurrency{}.

%% The longest mean wait that is wanted, in nanoseconds. A process runs for about 50 us before the
%% next one, so five requests are ready for each scheduler then. With twice as many, each request
%% would take twice as long, and the machine would not do more.
-define(WANTED, 250_000).
-define(SMOOTHING, 0.5).
%% The gradient if requests are not the load.
-define(OTHER_LOAD, 1.25).

%% Fewer than two ready processes for each scheduler. The least limit is four for each scheduler.
-define(IS_FEW(Ready, Min), 2 * Ready < Min).

%% Samples in a window, the milliseconds between two samples, and the same while no request runs.
-define(SAMPLES, 5).
-define(SAMPLE_MS, 20).
-define(QUIET_MS, 100).

%% The least limit for each scheduler: with fewer requests it would be idle between two of them.
-define(LEAST, 4).
%% The first limit is the larger one of these: as many requests as one connection may have in flight
%% by default, and twenty for each scheduler.
-define(FIRST, 100).
-define(FIRST_OF_SCHEDULER, 20).

%% The divisors of the longest wait in which the waiting requests have to run: of an overload that
%% may be a burst, and of one that lasts.
-define(FIRST_PART, 2.5).
-define(PART, 10).
%% Requests that may wait in any case: one burst of a few clients. An overload that lasts is not a
%% burst. Then fewer may wait, and each tenant may still have its ten (`m:erlmcp_gate`).
-define(LEAST_WAITING, 60).
-define(LEAST_WAITING_LONG, 20).
%% The factor by which the weight of a window falls with each later window.
-define(KEPT, 0.9).

-record(limiter, {
    gate :: erlmcp_gate:gate(),
    concurrency :: concurrency(),
    %% the gate's sums at the end of the last window
    sums :: sums(),
    samples = [] :: [{Ready :: non_neg_integer(), InFlight :: non_neg_integer()}],
    %% weighted sums over the recent windows
    recent = #{started => 0.0, done => 0.0, worked => 0.0, reductions => 0.0} :: recent(),
    window_end_ms :: integer(),
    %% the last times at which the queue was empty, and a request found the limit reached
    empty_ms :: integer(),
    pressed_ms :: integer(),
    %% the beginning of the overload
    overload_ms = none :: none | integer()
}).
-type sums() :: #{
    starts := erlmcp_gate_counters:starts(), refused := non_neg_integer(),
    done := non_neg_integer(), worked := non_neg_integer(), reductions := non_neg_integer()
}.
-type recent() :: #{started := float(), done := float(), worked := float(), reductions := float()}.

-doc "Starts the limiter of a gate.".
-spec start_link(erlmcp_gate:gate()) -> gen_server:start_ret().
start_link(Gate) ->
    gen_server:start_link(?MODULE, Gate, []).

-doc false.
init(#{limits := #{in_flight := Limit}} = Gate) ->
    ok = erlmcp_label:set([?MODULE]),
    %% A busy machine needs this process most.
    _ = process_flag(priority, high),
    Schedulers = erlang:system_info(schedulers_online),
    Max = most(Limit),
    Concurrency = new(#{min => min(Max, ?LEAST * Schedulers), max => Max,
                        first => max(?FIRST, ?FIRST_OF_SCHEDULER * Schedulers)}),
    ok = erlmcp_gate:limit(Gate, limit(Concurrency)),
    sample_after(?SAMPLE_MS),
    Now = erlmcp_clock:now_ms(),
    {ok, #limiter{gate = Gate, concurrency = Concurrency, sums = sums(Gate),
                  window_end_ms = Now, empty_ms = Now, pressed_ms = Now}}.

%% A number greater than that of all processes of a node.
most(infinity) -> 1 bsl 27;
most(Limit) -> Limit.

-doc false.
handle_call(_, _, Limiter) ->
    {noreply, Limiter}.

-doc false.
handle_cast(_, Limiter) ->
    {noreply, Limiter}.

-doc false.
handle_info(sample, #limiter{gate = Gate, sums = Sums, samples = Samples} = Limiter) ->
    InFlight = erlmcp_gate:held(Gate, in_flight),
    Seen = queue_seen(erlmcp_gate:held(Gate, waiting), Limiter),
    case sums(Gate) of
        %% No request began, ended or found the limit reached since the last window.
        #{reductions := Reductions} = New
                when InFlight =:= 0, New =:= Sums#{reductions := Reductions} ->
            sample_after(?QUIET_MS),
            {noreply, Seen#limiter{samples = [], sums = New}};
        _ ->
            Sample = {erlang:statistics(total_run_queue_lengths), InFlight},
            sampled([Sample | Samples], Seen)
    end;
handle_info({probed, Waited, Median}, Limiter) ->
    sample_after(?SAMPLE_MS),
    {noreply, end_window(Waited, Median, Limiter)};
handle_info(_, Limiter) ->
    {noreply, Limiter}.

queue_seen(0, Limiter) -> Limiter#limiter{empty_ms = erlmcp_clock:now_ms()};
queue_seen(_, Limiter) -> Limiter.

%% Takes the median. One sample may follow a time in which the machine had no time for the node.
%% Then all processes that have messages are ready at once.
sampled(Samples, Limiter) when length(Samples) =:= ?SAMPLES ->
    {Ready, InFlight} = lists:nth(?SAMPLES div 2 + 1, lists:sort(Samples)),
    probe(#{in_flight => InFlight, ready => Ready}),
    {noreply, Limiter#limiter{samples = []}};
sampled(Samples, Limiter) ->
    sample_after(?SAMPLE_MS),
    {noreply, Limiter#limiter{samples = Samples}}.

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

sample_after(Milliseconds) ->
    _ = erlang:send_after(Milliseconds, self(), sample),
    ok.

probe(Median) ->
    Self = self(),
    Now = erlang:monotonic_time(nanosecond),
    _ = spawn_link(fun() ->
        Self ! {probed, erlang:monotonic_time(nanosecond) - Now, Median}
    end),
    ok.

end_window(Own, Median, #limiter{gate = Gate, sums = Before, concurrency = Limit} = Limiter) ->
    Sums = sums(Gate),
    Added = added(Before, Sums),
    #{started := Started, waited := Waited, refused := Refused} = Added,
    Recent = maps:map(fun(Key, Sum) -> ?KEPT * Sum + map_get(Key, Added) end,
                      Limiter#limiter.recent),
    Window = Median#{started => 1 + Started, waited => Own + Waited, pressed => Refused > 0,
                     part => part(Recent)},
    Next = update(Window, Limit),
    _ = limit(Next) =:= limit(Limit) orelse erlmcp_gate:limit(Gate, limit(Next)),
    limit_queue(Window, erlmcp_clock:now_ms(),
                Limiter#limiter{concurrency = Next, sums = Sums, recent = Recent}).

%% Returns the part of the node's work that requests have done. The requests that began are assumed
%% to need as much work as those that have ended. If none has ended, requests are taken for the
%% whole load.
part(#{done := Done}) when Done < 1.0e-3 -> 1.0;
part(#{started := Started, done := Done, worked := Worked, reductions := All}) ->
    min(1.0, Started * (Worked / Done) / max(1.0, All)).

%% A request often finds the limit reached even if there is no overload. There is one if the queue
%% is never empty. The overload is over when no request found the limit reached for as long: after a
%% quiet moment the same load may return.
limit_queue(#{pressed := true} = Window, Now, #limiter{window_end_ms = End} = Limiter) ->
    overload(Window, max(1, Now - End), Limiter#limiter{pressed_ms = Now, window_end_ms = Now});
limit_queue(_, Now, #limiter{overload_ms = none} = Limiter) ->
    Limiter#limiter{window_end_ms = Now};
limit_queue(_, Now, #limiter{pressed_ms = Pressed, gate = Gate} = Limiter) ->
    case Now - Pressed > lasting(Gate) of
        true ->
            ok = erlmcp_gate:limit_queue(Gate, none),
            Limiter#limiter{window_end_ms = Now, overload_ms = none};
        false ->
            Limiter#limiter{window_end_ms = Now}
    end.

overload(Window, Took, #limiter{overload_ms = none, gate = Gate, window_end_ms = Now} = Limiter) ->
    case Now - Limiter#limiter.empty_ms > lasting(Gate) of
        true -> overload(Window, Took, Limiter#limiter{overload_ms = Now});
        false -> Limiter
    end;
overload(#{started := Started}, Took, #limiter{overload_ms = Since, gate = Gate} = Limiter) ->
    #limiter{window_end_ms = Now} = Limiter,
    #{limits := #{queue_ms := Longest}} = Gate,
    {Least, Part} = case Now - Since > Longest of
        true -> {?LEAST_WAITING_LONG, ?PART};
        false -> {?LEAST_WAITING, ?FIRST_PART}
    end,
    ok = erlmcp_gate:limit_queue(Gate, max(Least, trunc(Started * Longest / (Part * Took)))),
    Limiter.

lasting(#{limits := #{queue_ms := Longest}}) ->
    erlmcp_queue_delay:lasting(Longest).

-doc """
Returns the state before the first window. Its limit is `first` or, if that is less than `min` or
greater than `max`, the nearer of these two.
""".
-spec new(bounds()) -> concurrency().
new(#{min := Min, max := Max, first := First} = Bounds) when Min =< Max ->
    #concurrency{limit = between(Min, Max, First), bounds = Bounds}.

-doc "Returns the state after a window. Returns the state unchanged if `started` is 0.".
-spec update(window(), concurrency()) -> concurrency().
update(#{started := 0}, Concurrency) ->
    Concurrency;
update(#{in_flight := InFlight, ready := Ready, pressed := Pressed} = Window,
       #concurrency{limit = Limit, idle = Idle, bounds = #{min := Min, max := Max}} = Before) ->
    Follows = gradient(Window, Min) * Limit + math:sqrt(Limit),
    Least = max(Min, min(Max, soon(Window))),
    Next = case between(Least, Max, min(Follows, smooth(?SMOOTHING, Limit, Follows))) of
        More when More > Limit, not Pressed, 2 * InFlight < Limit + Idle -> Limit;
        Less when Less < Limit, InFlight < Min -> Limit;
        Other -> Other
    end,
    Before#concurrency{limit = Next, idle = idle(max(0, InFlight - Ready), Idle)}.

%% Requests that become ready for a moment soon wait again, so the number falls slowly.
idle(Now, Before) ->
    max(Now, (Now + Before) div 2).

gradient(#{started := Started, waited := Waited, ready := Ready, part := Part}, Min) ->
    case max(0.25, min(2.0, ?WANTED * Started / max(Waited, 1))) of
        Cut when Cut < 1.0, ?IS_FEW(Ready, Min) -> 1.0;
        Cut when Cut < ?OTHER_LOAD, Part < 0.5 -> ?OTHER_LOAD;
        Gradient -> Gradient
    end.

%% The number of requests that begin in half of a window, if requests are not the load.
soon(#{started := Started, part := Part}) when Part < 0.5 -> Started div 2;
soon(_) -> 0.

smooth(Factor, Before, Now) ->
    (1 - Factor) * Before + Factor * Now.

-doc """
Returns how many requests may be in flight at once. Those that wait for something other than a
scheduler are included.
""".
-spec limit(concurrency()) -> pos_integer().
limit(#concurrency{limit = Limit, idle = Idle, bounds = #{max := Max}}) ->
    min(Max, trunc(Limit) + Idle).

between(Min, Max, Value) ->
    float(max(Min, min(Max, Value))).
