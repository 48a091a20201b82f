-module(erlmcp_bench_request_page).
-moduledoc """
The sections of `docs/performance.md` about one request: the cost of its stages
(`m:erlmcp_bench_stages`), and its growth with the size of the server (`m:erlmcp_bench_growth`).
Pure.
""".

-export([sections/1]).

%% Goals in percent: the share of the checks in a request, and its growth at ten times the size.
-define(CHECKS, 25).
-define(GROWTH, 10).

-doc """
Returns the sections for the workloads of a baseline, as Markdown, without those that have no
workloads.
""".
-spec sections(Workloads :: [#{binary() => term()}]) -> iodata().
sections(Workloads) ->
    [[[~"\n### Stages of a request\n\n", stages_method(), [stages(Workload) || Workload <- Stages]]
      || [_ | _] = Stages <- [of_benchmark(~"stages", Workloads)]],
     [[~"\n### Ten times the items\n\n", growth_method(), growth(Grown)]
      || [_ | _] = Grown <- [of_benchmark(~"growth", Workloads)]]].

of_benchmark(Benchmark, Workloads) ->
    [Workload || #{~"benchmark" := Of} = Workload <- Workloads, Of =:= Benchmark].

stages_method() ->
    [~"`erlmcp bench stages` measures the processor time and the reductions of each stage of a\n",
     ~"request, on one scheduler, under load. Times inside processes are medians. The whole is\n",
     ~"the operating system's figure, and `read` and `frame` are its remainder.\n"].

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
     ~") take ", number(Checks), ~" % of it. The goal is less than ", number(?CHECKS), ~" %: ",
     reached(Checks < ?CHECKS), ~".\n"].

row(Stage, What, Us, Percent, Reductions) ->
    [~"| ", lists:join(~" | ", [[$`, Stage, $`], What, number(Us), number(Percent),
                                number(Reductions)]), ~" |\n"].

growth_method() ->
    [~"`erlmcp bench growth` compares the cost of a request on two servers, of which one has ten\n",
     ~"times the items. The goal is at most ", number(?GROWTH), ~" % more processor time.\n\n"].

growth(Workloads) ->
    [~"| workload | items | ten times | CPU µs | at ten times | ratio | reductions | at ten times ",
     ~"| ratio | |\n",
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
