-module(erlmcp_bench_run).
-moduledoc """
The common part of the benchmarks. A workload is found by its name and measured part by part, which
gives a list of results and a list of failures. A benchmark is a module with this behaviour.
""".

-export([workload/3, all/2, each/3, measured/2]).
-export([on_part/1, seconds/2, server/2, latency_of_ns/1]).

-export_type([options/0, outcome/0, measured/0, failure/0]).

-doc """
Options of the benchmarks. Each benchmark takes those that apply to it.

- `duration_s`: seconds of a workload, or of each part of it, instead of its own;
- `connections`: the number of connections, or of other items, instead of the workload's own;
- `against`: the URL of a server to measure instead of starting one;
- `server`: options of `erlmcp:start_server/1` for the server that is started, such as another
  `handler` with the tools of the fixture;
- `fail`: the server's service that is killed in a run of `stress`, and the seconds of the run
  before that (`t:erlmcp_bench_failure:service/0`);
- `kill`: a fun that kills the process of that service, instead of `exit/2`;
- `components`, `transports`, `eras`: only these parts of a workload;
- `command_line`: the command to record in the results. `program` means the command line of this
  node. The default is a call of `workload/3` with the id of the workload, and no options;
- `on_progress`: a fun that is called from time to time with the completed share, from 0 to 1.
""".
-type options() :: #{
    duration_s => number(), connections => pos_integer(), against => binary(),
    server => map(),
    fail => {erlmcp_bench_failure:service(), Seconds :: number()},
    kill => fun((pid()) -> term()),
    components => [erlmcp_bench_workloads:component()],
    transports => [atom()], eras => [stateless | session],
    command_line => binary() | program, on_progress => fun((float()) -> term())
}.
-doc """
The results of a benchmark. If a measurement failed, the error has its failures and all results.
""".
-type outcome() ::
    {ok, [erlmcp_bench_result:result()]}
    | {error, #{failures := [failure(), ...], results := [erlmcp_bench_result:result()]}}
    | {error, {unknown_workload, term()}}.
-type failure() :: {Workload :: binary(), Reason :: term()}.
-type measured() :: {[erlmcp_bench_result:result()], [failure()]}.

-doc """
Measures a workload of the benchmark in the calling process, and returns its results and failures.
The application `erlmcp` runs. The options always have an `on_progress` to call and a `command_line`
to record. A crash ends the whole run, without results.
""".
-callback measured(erlmcp_bench_workloads:workload(), options()) -> measured().

-doc """
Runs a workload of a benchmark. The workload is given by its name, or by a map with its `id` and
the members to change. A map with any other `id` is a new workload, and must have every member that
the benchmark reads. `Options` override `duration_s` and `connections`.

## Errors

- `{unknown_workload, Name}`: the benchmark has no workload of this name.
- `#{failures := _, results := _}`: a measurement failed.
""".
-spec workload(erlmcp_bench_workloads:benchmark(), binary() | atom() | map(),
               Options :: options()) -> outcome().
workload(Benchmark, #{id := Id} = Given, Options) when is_atom(Id) ->
    workload(Benchmark, Given#{id := atom_to_binary(Id)}, Options);
workload(Benchmark, #{id := Id} = Given, Options) ->
    case erlmcp_bench_workloads:find(Id) of
        {ok, #{benchmark := Benchmark} = Found} ->
            %% A shorter run is marked as shortened.
            Shorter = maps:with([duration_s, connections], Given),
            Workload = maps:merge(Found, maps:without(maps:keys(Shorter), Given)),
            run([Workload], module(Benchmark), maps:merge(Shorter, Options));
        _ ->
            run([Given#{benchmark => Benchmark, marks => []}], module(Benchmark), Options)
    end;
workload(Benchmark, Id, Options) when is_binary(Id); is_atom(Id) ->
    case erlmcp_bench_workloads:find(Id) of
        {ok, #{benchmark := Benchmark} = Workload} ->
            run([Workload], module(Benchmark), Options);
        _ ->
            {error, {unknown_workload, Id}}
    end.

-doc "Runs every workload of a benchmark.".
-spec all(erlmcp_bench_workloads:benchmark(), options()) -> outcome().
all(Benchmark, Options) ->
    run(erlmcp_bench_workloads:of_benchmark(Benchmark), module(Benchmark), Options).

module(core_ops) -> erlmcp_bench_core_ops;
module(stress) -> erlmcp_bench_stress;
module(integration) -> erlmcp_bench_integration;
module(network_real) -> erlmcp_bench_network_real;
module(memory) -> erlmcp_bench_memory;
module(scaling) -> erlmcp_bench_scaling;
module(stages) -> erlmcp_bench_stages;
module(growth) -> erlmcp_bench_growth.

run(Workloads, Module, Options) ->
    {ok, _} = application:ensure_all_started(erlmcp),
    ok = erlmcp_bench_environment:begins(),
    case each(Workloads, fun(#{id := Id} = Workload, With) ->
                             Module:measured(Workload, with_command(Workload, Id, With))
                         end, Options) of
        {Results, []} -> {ok, Results};
        {Results, Failures} -> {error, #{failures => Failures, results => Results}}
    end.

with_command(_, _, #{command_line := _} = Options) ->
    Options;
with_command(#{benchmark := Benchmark}, Id, Options) ->
    Options#{command_line => iolist_to_binary(["erlmcp_bench_run:workload(",
                                               atom_to_binary(Benchmark), ", <<\"", Id,
                                               "\">>, #{})"])}.

-doc """
Measures parts one after the other with `Measure`, and returns their results and failures together.
`Measure` gets a part, and the options with an `on_progress` for this part.
""".
-spec each([Part], Measure :: fun((Part, options()) -> measured()), options()) -> measured().
each(Parts, Measure, Options) ->
    Progress = on_part(Options),
    Count = length(Parts),
    {Results, Failures} = lists:unzip([begin
        With = Options#{on_progress => fun(Done) -> Progress((Number - 1 + Done) / Count) end},
        Measured = Measure(Part, With),
        _ = Progress(Number / Count),
        Measured
    end || {Number, Part} <- lists:enumerate(Parts)]),
    {lists:append(Results), lists:append(Failures)}.

-doc """
Turns `{ok, Fields, Reasons}` into a result with these `Fields`, and into a failure of `Workload`
for each of the `Reasons`. Turns an error into a failure without a result. A result also has the
`command_line` of the options, unless `Fields` has another one.
""".
-spec measured({ok, Fields :: map(), [Reason :: term()]} | {error, Reason :: term()},
               {Workload :: binary(), options()}) -> measured().
measured({ok, Fields, Reasons}, {Id, Options}) ->
    Command = #{command_line => Line || #{command_line := <<Line/binary>>} <- [Options]},
    {[erlmcp_bench_result:new(maps:merge(Command, Fields))],
     [{Id, Reason} || Reason <- Reasons]};
measured({error, Reason}, {Id, _}) ->
    {[], [{Id, Reason}]}.

-doc "Returns the fun `on_progress` of the options, or one that does nothing.".
-spec on_part(options()) -> fun((float()) -> term()).
on_part(Options) ->
    maps:get(on_progress, Options, fun(_) -> ok end).

-doc """
Returns the seconds for which a workload is measured: those of the options, or the workload's own.
`Shortened` is `true` if the options have fewer seconds than the workload.
""".
-spec seconds(erlmcp_bench_workloads:workload(), options()) -> {number(), Shortened :: boolean()}.
seconds(#{duration_s := Own}, Options) ->
    Seconds = maps:get(duration_s, Options, Own),
    {Seconds, Seconds < Own}.

-doc """
Returns the options of the measured server: `Own` with the handler `m:erlmcp_bench_quick_fixture`.
The option `server` overrides both.
""".
-spec server(Own :: map(), options()) -> map().
server(Own, Options) ->
    maps:merge(Own#{handler => erlmcp_bench_quick_fixture}, maps:get(server, Options, #{})).

-doc "Returns the latency fields of a result, in microseconds, from a histogram of nanoseconds.".
-spec latency_of_ns(erlmcp_bench_histogram:histogram()) -> #{atom() => term()}.
latency_of_ns(Histogram) ->
    At = fun(Percent) -> erlmcp_bench_histogram:percentile(Histogram, Percent) / 1_000 end,
    Times = #{latency_p50_us => At(50.0), latency_p95_us => At(95.0), latency_p99_us => At(99.0),
              latency_p999_us => At(99.9),
              latency_max_us => erlmcp_bench_histogram:max(Histogram) / 1_000,
              latency_histogram_us => [[UpTo / 1_000, Count]
                                       || {UpTo, Count}
                                              <- erlmcp_bench_histogram:to_list(Histogram)]},
    maps:merge(Times, #{latency_deviation_us => Ns / 1_000
                        || Ns <- [erlmcp_bench_histogram:deviation(Histogram)], Ns > 0}).
