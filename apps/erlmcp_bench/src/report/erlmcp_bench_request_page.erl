-module(erlmcp_bench_request_page).
-moduledoc """
What `docs/performance.md` says of one request: what its stages take (`m:erlmcp_bench_stages`), and
whether it costs more where there is more beside it (`m:erlmcp_bench_growth`). Pure.
""".

-export([sections/1]).

%% Goals, in percent: what the checks may take of a request, and what ten times as much may add.
-define(CHECKS, 25).
-define(GROWTH, 10).

-doc "The sections for the workloads of a baseline, as Markdown; nothing of what it does not have.".
-spec sections(Workloads :: [#{binary() => term()}]) -> iodata().
sections(Workloads) ->
    [[[~"\n### Stages of a request\n\n", stages_said(), [stages(Workload) || Workload <- Stages]]
      || [_ | _] = Stages <- [of_benchmark(~"stages", Workloads)]],
     [[~"\n### Ten times as much\n\n", growth_said(), growth(Grown)]
      || [_ | _] = Grown <- [of_benchmark(~"growth", Workloads)]]].

of_benchmark(Benchmark, Workloads) ->
    [Workload || #{~"benchmark" := Of} = Workload <- Workloads, Of =:= Benchmark].

stages_said() ->
    [~"`erlmcp bench stages`: microseconds of the processor and reductions that a request\n",
     ~"takes in each stage, on one scheduler, under load. The times inside of processes are\n",
     ~"medians, the whole is the operating system's, and `read` and `frame` are what is left\n",
     ~"of it.\n"].

stages(#{~"workload_id" := Id, ~"transport" := Transport,
         ~"connections" := Connections} = Workload) ->
    Quick = [~"quick " || {ok, #{quick := true}} <- [erlmcp_bench_workloads:find(Id)]],
    #{~"cpu_us_per_msg" := Cpu, ~"reductions_per_msg" := Reductions,
      ~"checks_percent" := Checks} = Medians = medians(Workload),
    [~"\nA call of the ", Quick, ~"tool `echo` on `", Transport, ~"`, stateless, ",
     number(Connections), ~" connections:\n\n",
     ~"| stage | | µs | % | reductions |\n| --- | --- | ---: | ---: | ---: |\n",
     [row(atom_to_binary(Stage), What, Us, 100 * Us / Cpu, Own)
      || {Stage, What, Us, Own} <- erlmcp_bench_stages:rows(Medians)],
     row(~"all", ~"", Cpu, 100, Reductions),
     ~"\nThe checks (", lists:join(~", ", [atom_to_binary(Stage)
                                           || Stage <- erlmcp_bench_stages:checks()]),
     ~") are ", number(Checks), ~" % of it; the goal is less than ", number(?CHECKS), ~" %: ",
     reached(Checks < ?CHECKS), ~".\n"].

row(Stage, What, Us, Percent, Reductions) ->
    [~"| ", lists:join(~" | ", [[$`, Stage, $`], What, number(Us), number(Percent),
                                number(Reductions)]), ~" |\n"].

growth_said() ->
    [~"`erlmcp bench growth`: what a request takes where there is ten times as much beside it.\n",
     ~"The goal is at most ", number(?GROWTH), ~" % more processor time.\n\n"].

growth(Workloads) ->
    [~"| workload | of | and of | CPU µs | and then | times | reductions | and then | times | |\n",
     ~"| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n",
     [grown(Id, medians(Workload)) || #{~"workload_id" := Id} = Workload <- Workloads]].

grown(Id, #{~"growth_cpu_ratio" := Ratio} = Medians) ->
    Numbers = [~"base_count", ~"grown_count", ~"base_cpu_us_per_msg", ~"cpu_us_per_msg",
               ~"growth_cpu_ratio", ~"base_reductions_per_msg", ~"reductions_per_msg",
               ~"growth_reductions_ratio"],
    [~"| `", Id, ~"` | ", [[number(map_get(Name, Medians)), ~" | "] || Name <- Numbers],
     reached(Ratio =< 1 + ?GROWTH / 100), ~" |\n"].

reached(true) -> ~"reached";
reached(false) -> ~"**not reached**".

medians(#{~"figures" := Figures}) ->
    #{Name => Median || Name := #{~"median" := Median} <- Figures}.

number(Number) -> erlmcp_bench_text:number(Number).
