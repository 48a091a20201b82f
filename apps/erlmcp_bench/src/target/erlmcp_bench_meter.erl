-module(erlmcp_bench_meter).
-moduledoc """
Measures functions of the server under test, in the server's node. For each call that returns it
records the nanoseconds or reductions, without those of measured functions inside the call. The
functions are wrapped for that (`m:erlmcp_bench_wrapping`). The cost of measuring is subtracted.

It also reads figures of the whole node, for which nothing is wrapped.
""".

-export([install/2, read/0, begin_whole/0, whole/0, worked/0, send/3]).
-export([measured/3]).

-export_type([unit/0, readings/0, whole/0]).

-type unit() :: nanoseconds | reductions.
-doc """
The entries of a histogram for each measured function, with the nanoseconds or reductions of its
calls in place of microseconds.
""".
-type readings() :: #{mfa() => erlmcp_bench_histogram:entries()}.
-doc """
Figures of a node that only grow. `reductions` are those of all processes since the node's start.
The others are nanoseconds in which the node's normal schedulers worked since `begin_whole/0`.
`awake_ns` has all of these nanoseconds. `running_ns` were spent on processes, `collecting_ns` on
garbage, and `ports_ns` on ports. The difference of two readings is the cost of the time between
them.

A scheduler that waits for a processor counts as working. So on a busy machine only the proportions
of these times are meaningful.
""".
-type whole() :: #{reductions := non_neg_integer(), awake_ns := non_neg_integer(),
                   running_ns := non_neg_integer(), collecting_ns := non_neg_integer(),
                   ports_ns := non_neg_integer()}.

%% Processes that work at regular times, even without requests.
-define(BY_THE_CLOCK, [erlmcp_concurrency_limiter, erlmcp_overload_guard, erlmcp_error_budget]).
%% Rounds whose median is the cost of measuring.
-define(ROUNDS, 1_001).

-doc """
Starts to measure `Functions` in `Unit`. Call it before the server starts. The error names a
function that does not exist.
""".
-spec install(Unit :: unit(), Functions :: [mfa(), ...]) -> ok | {error, {no_function, mfa()}}.
install(Unit, Functions) ->
    Numbered = lists:enumerate(Functions),
    Modules = maps:groups_from_list(fun({_, {Module, _, _}}) -> Module end,
                                    fun({Number, {_, Function, Arity}}) ->
                                        {{Function, Arity}, {?MODULE, measured, {Unit, Number}}}
                                    end, Numbered),
    ok = keep(Unit, Functions, 0),
    Costs = lists:sort([empty_cost(Unit) || _ <- lists:seq(1, ?ROUNDS)]),
    ok = keep(Unit, Functions, lists:nth((?ROUNDS + 1) div 2, Costs)),
    wrapped(maps:to_list(Modules)).

keep(Unit, Functions, Cost) ->
    Histograms = list_to_tuple([erlmcp_bench_histogram:new() || _ <- Functions]),
    persistent_term:put(?MODULE, {Unit, list_to_tuple(Functions), Histograms, Cost}).

%% The measured cost of a function that does nothing.
empty_cost(Unit) ->
    Begin = reading(Unit),
    reading(Unit) - Begin.

wrapped([]) ->
    ok;
wrapped([{Module, Wrappers} | Modules]) ->
    case erlmcp_bench_wrapping:around(Module, Wrappers) of
        ok -> wrapped(Modules);
        {error, _} = Error -> Error
    end.

-doc "Returns the readings so far of each function that `install/2` was given.".
-spec read() -> readings().
read() ->
    {_, Functions, Histograms, _} = persistent_term:get(?MODULE),
    maps:from_list(lists:zip(tuple_to_list(Functions),
                             [erlmcp_bench_histogram:to_list(Histogram)
                              || Histogram <- tuple_to_list(Histograms)])).

-doc false.
-spec measured({unit(), Number :: pos_integer()}, [term()], fun()) -> term().
measured({Unit, Number}, Arguments, Whole) ->
    Begin = reading(Unit),
    Outer = put(?MODULE, 0),
    {_, _, Histograms, Cost} = persistent_term:get(?MODULE),
    try
        Before = reading(Unit),
        Result = apply(Whole, Arguments),
        After = reading(Unit),
        ok = erlmcp_bench_histogram:record(element(Number, Histograms),
                                           After - Before - Cost - get(?MODULE)),
        Result
    after
        %% The measured function around this one must not count this one, nor the cost of measuring
        %% it, even if this one raises.
        _ = put(?MODULE, inside(Outer) + reading(Unit) - Begin + Cost)
    end.

inside(undefined) -> 0;
inside(Taken) -> Taken.

reading(nanoseconds) ->
    erlang:monotonic_time(nanosecond);
reading(reductions) ->
    {reductions, Reductions} = process_info(self(), reductions),
    Reductions.

-doc "Starts to measure the whole node, and returns the first figures.".
-spec begin_whole() -> whole().
begin_whole() ->
    _ = erlang:system_flag(microstate_accounting, true),
    whole().

-doc "Returns the figures of the whole node, after `begin_whole/0`.".
-spec whole() -> whole().
whole() ->
    {Reductions, _} = erlang:statistics(exact_reductions),
    Schedulers = [Counters || #{type := scheduler, counters := Counters}
                                  <- erlang:statistics(microstate_accounting)],
    Spent = fun(States) -> spent(States, Schedulers) end,
    #{reductions => Reductions, running_ns => Spent([emulator]), collecting_ns => Spent([gc]),
      ports_ns => Spent([port]),
      awake_ns => Spent([aux, check_io, emulator, gc, other, port])}.

spent(States, Schedulers) ->
    erlang:convert_time_unit(lists:sum([map_get(State, Counters)
                                        || Counters <- Schedulers, State <- States]),
                             perf_counter, nanosecond).

-doc """
Returns the reductions of all processes of the node since its start, including ended ones. Those of
running concurrency limiters, overload guards and error budgets, which work at regular times, are
left out.
""".
-spec worked() -> non_neg_integer().
worked() ->
    {All, _} = erlang:statistics(exact_reductions),
    All - trunc(lists:sum([Reductions
                           || Pid <- processes(),
                              {Module, init, 1} <- [proc_lib:translate_initial_call(Pid)],
                              lists:member(Module, ?BY_THE_CLOCK),
                              {reductions, Reductions} <- [process_info(Pid, reductions)]])).

-doc """
Connects to the port `Port` of this machine, and writes `Bytes` bytes at a time, as often as
possible for `Milliseconds`. Returns the number of writes.
""".
-spec send(Port :: inet:port_number(), Bytes :: pos_integer(), Milliseconds :: pos_integer()) ->
    pos_integer().
send(Port, Bytes, Milliseconds) ->
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {nodelay, true}]),
    End = erlang:monotonic_time(millisecond) + Milliseconds,
    Count = send(Socket, binary:copy(~"x", Bytes), End, 0),
    ok = gen_tcp:close(Socket),
    Count.

send(Socket, Bytes, End, Count) ->
    ok = erlmcp_tcp_send:send(Socket, Bytes),
    case erlang:monotonic_time(millisecond) < End of
        true -> send(Socket, Bytes, End, Count + 1);
        false -> Count + 1
    end.
