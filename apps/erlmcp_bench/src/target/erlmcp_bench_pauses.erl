-module(erlmcp_bench_pauses).
-moduledoc """
Samples the pauses of garbage collections in this node, under load. A process stands still while its
garbage is collected.

A tracer follows the collections of at most 32 processes, and of those that they spawn. It chooses
the processes anew each second, and follows at most about 1,000 pauses of each choice.
""".

-export([start/1, take/1, stop/1, merge/1, fields/3]).

-export_type([pauses/0]).

-doc """
The sampled pauses in nanoseconds, as entries of a histogram (`m:erlmcp_bench_histogram`). `all` is
the number of all collections of the node in `duration_ns`.
""".
-type pauses() :: #{
    minor := erlmcp_bench_histogram:entries(), major := erlmcp_bench_histogram:entries(),
    all := non_neg_integer(), duration_ns := pos_integer()
}.

%% Processes that are traced at the same time, pauses of a draw, and milliseconds until the next. On
%% a quiet node with a million places for processes, a draw takes 6 ms.
-define(PROCESSES, 32).
-define(PAUSES, 1000).
-define(DRAW_MS, 1000).
%% The longest pause that is awaited, in seconds.
-define(LONGEST_S, 10).

-doc """
Starts to sample the processes in a list, or `all` processes of the node. Returns the sampling
process. It ends with `stop/1`, and not with the calling process.
""".
-spec start(all | [pid()]) -> pid().
start(Candidates) ->
    Caller = self(),
    {Pid, Monitor} = spawn_opt(fun() ->
        ok = tick(),
        Drawn = drawn(empty(#{candidates => Candidates, session => none, begun => #{}})),
        Caller ! {self(), sampling},
        sample(Drawn)
    end, [monitor, {priority, high}]),
    answered(Pid, Monitor, fun(sampling) -> Pid end).

%% The counts begin now.
empty(State) ->
    State#{before => collections(), from => now_ns(), minor => erlmcp_bench_histogram:new(),
           major => erlmcp_bench_histogram:new()}.

-doc """
Returns the pauses since `start/1`, or since the last call of this function. Waits until the pauses
that have begun are over, about ten seconds at most.
""".
-spec take(pid()) -> pauses().
take(Pid) -> asked(take, Pid).

-doc "Ends the sampling, and returns the pauses as `take/1` does.".
-spec stop(pid()) -> pauses().
stop(Pid) -> asked(stop, Pid).

asked(What, Pid) ->
    Monitor = monitor(process, Pid),
    Pid ! {What, self()},
    answered(Pid, Monitor, fun(Pauses) -> Pauses end).

answered(Pid, Monitor, Value) ->
    receive
        {Pid, Answer} ->
            true = demonitor(Monitor, [flush]),
            Value(Answer);
        {'DOWN', Monitor, process, Pid, Reason} ->
            exit(Reason)
    end.

collections() ->
    {Count, _, _} = statistics(garbage_collection),
    Count.

now_ns() -> erlang:monotonic_time(nanosecond).

tick() ->
    _ = erlang:send_after(?DRAW_MS, self(), draw),
    ok.

%% The end of a session ends the tracing of its processes, and of those that they have spawned.
drawn(#{candidates := Candidates} = State) ->
    Session = trace:session_create(?MODULE, self(), []),
    ok = lists:foreach(fun(Pid) -> trace(Pid, Session) end,
                       chosen(list_to_tuple(processes_of(Candidates)))),
    State#{session := Session, begun := #{}, more => ?PAUSES, next => wait}.

trace(Pid, Session) ->
    Flags = [garbage_collection, monotonic_timestamp, set_on_spawn],
    try
        trace:process(Session, Pid, true, Flags)
    catch
        %% The process has ended, or is the tracer.
        error:badarg -> 0
    end.

processes_of(all) -> processes();
processes_of(Pids) -> Pids.

%% A shuffle of ten thousand processes would take milliseconds.
chosen(Pids) when tuple_size(Pids) =< ?PROCESSES ->
    tuple_to_list(Pids);
chosen(Pids) ->
    lists:usort([element(rand:uniform(tuple_size(Pids)), Pids) || _ <- lists:seq(1, ?PROCESSES)]).

%% A session ends when its last pause has ended: otherwise long pauses would be missed more often.
sample(#{more := 0, begun := Begun, session := Session} = State) when map_size(Begun) =:= 0 ->
    true = trace:session_destroy(Session),
    closed(State);
sample(#{next := Next, session := Session} = State) ->
    receive
        {trace_ts, Pid, Event, _, At} ->
            sample(traced(Event, Pid, At, State));
        draw ->
            sample(next(draw, State));
        %% One request is answered after the other.
        {What, From} when is_pid(From), not is_tuple(Next) ->
            sample(next({What, From}, arrived(trace:delivered(Session, all), State)))
    end.

%% What was traced so far may still be on its way.
arrived(Delivered, State) ->
    receive
        {trace_ts, Pid, Event, _, At} -> arrived(Delivered, traced(Event, Pid, At, State));
        {trace_delivered, all, Delivered} -> State
    end.

closed(#{next := wait} = State) ->
    receive
        draw -> closed(next(draw, State));
        {What, From} when is_pid(From) -> closed(next({What, From}, State));
        {trace_ts, _, _, _, _} -> closed(State)
    end;
closed(#{next := draw} = State) ->
    sample(drawn(State));
closed(#{next := {What, From}, minor := Minor, major := Major, before := Before,
         from := Begin} = State) ->
    Answer = {self(), #{minor => erlmcp_bench_histogram:to_list(Minor),
                        major => erlmcp_bench_histogram:to_list(Major),
                        all => collections() - Before, duration_ns => max(1, now_ns() - Begin)}},
    case What of
        stop ->
            From ! Answer;
        take ->
            %% The pauses after the answer are seen.
            Drawn = drawn(empty(State)),
            From ! Answer,
            sample(Drawn)
    end.

next(draw, #{next := {_, _}} = State) ->
    ok = tick(),
    State#{begun := recent(State)};
next(draw, State) ->
    ok = tick(),
    State#{more := 0, next := draw, begun := recent(State)};
next(Asked, State) ->
    State#{more := 0, next := Asked}.

%% A beginning may come from an earlier session, without its end.
recent(#{begun := Begun}) ->
    Oldest = erlang:monotonic_time() - erlang:convert_time_unit(?LONGEST_S, second, native),
    #{Pid => At || Pid := At <- Begun, At > Oldest}.

%% A process that has passed its memory bound is killed, and its pause has no end.
traced(gc_max_heap_size, Pid, _, #{begun := Begun} = State) ->
    State#{begun := maps:remove(Pid, Begun)};
traced(gc_minor_start, Pid, At, State) -> begun(Pid, At, State);
traced(gc_major_start, Pid, At, State) -> begun(Pid, At, State);
traced(gc_minor_end, Pid, At, #{minor := Minor} = State) -> paused(Minor, Pid, At, State);
traced(gc_major_end, Pid, At, #{major := Major} = State) -> paused(Major, Pid, At, State).

begun(_, _, #{more := 0} = State) -> State;
begun(Pid, At, #{begun := Begun} = State) -> State#{begun := Begun#{Pid => At}}.

paused(Histogram, Pid, At, #{begun := Begun, more := More} = State) ->
    case maps:take(Pid, Begun) of
        {From, Others} ->
            Nanoseconds = erlang:convert_time_unit(At - From, native, nanosecond),
            ok = erlmcp_bench_histogram:record(Histogram, Nanoseconds),
            State#{begun := Others, more := max(0, More - 1)};
        error ->
            State
    end.

-doc """
Adds up the pauses that several nodes had at the same time. `duration_ns` of the sum is the longest
of all nodes.

## Examples

```erlang
1> One = #{minor => [{10, 2}], major => [], all => 2, duration_ns => 900},
1> erlmcp_bench_pauses:merge([One, One#{duration_ns := 1_000}]).
#{minor => [{10, 4}], major => [], all => 4, duration_ns => 1_000}
```
""".
-spec merge([pauses(), ...]) -> pauses().
merge(Pauses) ->
    Entries = fun(Kind) ->
        erlmcp_bench_histogram:to_list(erlmcp_bench_histogram:merge(
            [erlmcp_bench_histogram:from_list(maps:get(Kind, Of)) || Of <- Pauses]))
    end,
    #{minor => Entries(minor), major => Entries(major),
      all => lists:sum([All || #{all := All} <- Pauses]),
      duration_ns => lists:max([Nanoseconds || #{duration_ns := Nanoseconds} <- Pauses])}.

-doc """
Returns the fields of a result. `PerSecond` is the number of requests that were answered in each
second, and `LatencyUs` the 95th percentile of their latencies. Neither may be 0. Times of which
there is no sample are left out.

`gc_latency_p95_percent` is the largest part of `LatencyUs` that collections can cause, if they are
spread evenly over the requests. It is 0 for at most one collection in twenty requests.

## Examples

```erlang
1> Pauses = #{minor => [{10_000, 9}], major => [{500_000, 1}],
1>            all => 100, duration_ns => 10_000_000},
1> #{gc_count_per_msg := 0.5, gc_sampled_percent := 10.0, gc_longest_us := 500.0,
1>   gc_latency_p95_percent := 10.0} = erlmcp_bench_pauses:fields(Pauses, 20_000, 100), ok.
ok
```
""".
-spec fields(pauses(), PerSecond :: number(), LatencyUs :: number()) -> #{atom() => number()}.
fields(#{minor := Minor, major := Major, all := All, duration_ns := Nanoseconds}, PerSecond,
       LatencyUs) ->
    Pauses = erlmcp_bench_histogram:merge([erlmcp_bench_histogram:from_list(Entries)
                                           || Entries <- [Minor, Major]]),
    [MinorCount, MajorCount, Count] = [erlmcp_bench_histogram:count(Times)
                                       || Times <- [Minor, Major, Pauses]],
    Each = All * 1_000_000_000 / Nanoseconds / PerSecond,
    Fields = #{gc_count => All, gc_count_per_msg => Each,
               gc_sampled_percent => min(100.0, 100 * Count / max(1, All)),
               gc_minor_count => MinorCount, gc_major_count => MajorCount,
               gc_latency_p95_percent => min(100.0, met_ns(Each, Pauses) / 10 / LatencyUs)},
    Found = [{gc_minor_p95_us, at(95, Minor)}, {gc_minor_max_us, at(100, Minor)},
             {gc_major_p95_us, at(95, Major)}, {gc_major_max_us, at(100, Major)},
             {gc_longest_us, at(100, Pauses)}],
    maps:merge(Fields, #{Name => Ns / 1_000 || {Name, Ns} <- Found, Ns > 0}).

at(Percent, Times) -> erlmcp_bench_histogram:percentile(Times, Percent).

%% The time of collections that 95 of 100 requests do not exceed. Several collections delay the same
%% request only if there are more of them than requests.
met_ns(Each, Pauses) when Each > 0.05 ->
    max(1, Each) * at(100 * (1 - 0.05 / min(1, Each)), Pauses);
met_ns(_, _) ->
    0.
