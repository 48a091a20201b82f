-module(erlmcp_concurrency_gradient).
-moduledoc """
How many calls may run at once, so that the machine is busy and nobody waits long for it: a gradient
limit. Samples in, limit out. Pure.

Each window the limit follows the gradient, what a wait should be by what it was:

    gradient = max(0.25, min(2.0, wanted / waited))
    limit = gradient * limit + sqrt(limit)

A higher limit is gone half of the way to, each time. A lower one is taken at once: until it is, all
calls wait for those that are too many, and those that come find their places in the queue. The
square root lets some calls queue, so that the machine never runs out of them. A limit that was not
reached, and of which less than half is used, does not grow; none is cut for a few calls that had to
wait. This is the rule of Netflix's concurrency-limits (`Gradient2Limit`,
github.com/Netflix/concurrency-limits; the square root is its `GradientLimit`'s), with a gradient
that may also be above one, as in Envoy's adaptive concurrency filter: a limit that is far too low
doubles within two windows.

What differs is the latency. Theirs is a request's, beside its own average over a long time. Ours is
the time that a started call waits for a scheduler:

- A call's own time says little of the machine. It may wait for a person, or for its client's model;
  and the mean over a tool of 20 microseconds and one of 20 milliseconds jumps with what is called.
- The wait needs no average beside it: it is nothing on an idle machine, whatever the tools and the
  cores. An average that is learned drifts: under lasting overload it grows until overload is what
  it expects, and the limit with it.
- It is known when a call starts, not when it ends.

A wait says that there are too many calls only where they are what waits. So beside it is counted,
at one moment of each window, how many processes are ready to run:

- Where they are few, the machine had no time for the node, and fewer calls would not give it any.
- Where calls did less than half of the work, in reductions, the connections are the load, which
  read, answer and refuse, as they are with tools that cost no more than a refusal does; or what
  else there is in the node. Fewer calls would wait as long: the limit is not cut then but grows,
  so that the machine does not come to do nothing but refuse, and is at once as many as begin in
  half of a window: a burst of such calls is no overload. How many are ready says nothing of
  that: a refusal is a short turn, and of a call that computes each turn is a long one.
- Calls in flight that are not ready wait for something else, and burden nobody. They are let in
  beside those that the limit is for.

A tool that waits for something scarce, and not for the machine, is not held back here: that is what
the bounds of a tool are for.

Internal.
""".

-export([new/1, update/2, limit/1]).

-export_type([concurrency/0, bounds/0, window/0]).

-type bounds() :: #{min := pos_integer(), max := pos_integer(), first := pos_integer()}.

-doc """
What was seen since the last update: how many calls started, the nanoseconds that they waited for a
scheduler together, and whether the limit was reached; what part of the node's work is theirs of
late; and, at one moment, how many were in flight and how many processes were ready to run.
""".
-type window() :: #{
    started := non_neg_integer(), waited := non_neg_integer(), pressed := boolean(),
    part := float(), in_flight := non_neg_integer(), ready := non_neg_integer()
}.
-record(concurrency, {
    %% of calls that run or are ready to
    limit :: float(),
    %% calls in flight beside them
    idle = 0 :: non_neg_integer(),
    bounds :: bounds()
}).
-opaque concurrency() :: #concurrency{}.

%% Nanoseconds that a call should wait at most, in the mean. A process runs for some 50 us before it
%% is another one's turn: there are five for each scheduler then. Of twice as many each takes twice
%% as long, and the machine does no more.
-define(WANTED, 250_000).
-define(SMOOTHING, 0.5).
%% How fast the limit grows where others are the load.
-define(OTHERS, 1.25).

%% Fewer than two for each scheduler, of which the least limit has four.
-define(IS_FEW(Ready, Min), 2 * Ready < Min).

-doc "A limit, before anything was seen.".
-spec new(bounds()) -> concurrency().
new(#{min := Min, max := Max, first := First} = Bounds) when Min =< Max ->
    #concurrency{limit = between(Min, Max, First), bounds = Bounds}.

-doc "The limit after a window.".
-spec update(window(), concurrency()) -> concurrency().
update(#{started := 0}, Concurrency) ->
    Concurrency;
update(#{in_flight := InFlight, ready := Ready, pressed := Pressed} = Window,
       #concurrency{limit = Limit, idle = Idle, bounds = #{min := Min, max := Max}} = Known) ->
    Follows = gradient(Window, Min) * Limit + math:sqrt(Limit),
    Least = max(Min, min(Max, soon(Window))),
    Next = case between(Least, Max, min(Follows, smooth(?SMOOTHING, Limit, Follows))) of
        More when More > Limit, not Pressed, 2 * InFlight < Limit + Idle -> Limit;
        Less when Less < Limit, InFlight < Min -> Limit;
        Other -> Other
    end,
    Known#concurrency{limit = Next, idle = idle(max(0, InFlight - Ready), Idle)}.

%% What wakes for a moment sleeps again.
idle(Now, Before) ->
    max(Now, (Now + Before) div 2).

gradient(#{started := Started, waited := Waited, ready := Ready, part := Part}, Min) ->
    case max(0.25, min(2.0, ?WANTED * Started / max(Waited, 1))) of
        Cut when Cut < 1.0, ?IS_FEW(Ready, Min) -> 1.0;
        Cut when Cut < ?OTHERS, Part < 0.5 -> ?OTHERS;
        Gradient -> Gradient
    end.

%% As many as it had begun in half of the window: they would all begin soon.
soon(#{started := Started, part := Part}) when Part < 0.5 -> Started div 2;
soon(_) -> 0.

smooth(Factor, Before, Now) ->
    (1 - Factor) * Before + Factor * Now.

-doc "How many calls may be in flight at once.".
-spec limit(concurrency()) -> pos_integer().
limit(#concurrency{limit = Limit, idle = Idle, bounds = #{max := Max}}) ->
    min(Max, trunc(Limit) + Idle).

between(Min, Max, Value) ->
    float(max(Min, min(Max, Value))).
