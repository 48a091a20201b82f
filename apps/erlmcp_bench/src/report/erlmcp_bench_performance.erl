-module(erlmcp_bench_performance).
-moduledoc """
Returns the text of `docs/performance.md`, and the models of `docs/capacity.md`, for the baselines
in `bench/baselines`. Pure: the same baselines and ages of their commits make the same bytes.
""".

-export([page/2, model/1]).

-export_type([baseline/0]).

-doc "The file name of a baseline, and the baseline of `erlmcp_bench_baseline:read/1`.".
-type baseline() :: {File :: binary(), #{binary() => term()}}.

-define(COMMAND, ~"erlmcp report bench/baselines --page performance --output docs/performance.md").
-define(CAPACITY, ~"erlmcp report bench/baselines --page capacity --output docs/capacity.md").

%% Goals in percent: the share of the checks in a request, and its growth at ten times the size.
-define(CHECKS, 25).
-define(GROWTH, 10).
-define(STATE, ~"memory_state_bytes_per_item").
-define(RSS, ~"memory_rss_bytes_per_item").

%% The columns of the table of all workloads.
-define(SHOWN, [{~"throughput_msg_per_s", ~"answered/s"},
                {~"throughput_workflows_per_s", ~"workflows/s"},
                {~"latency_p50_us", ~"p50 µs"}, {~"latency_p99_us", ~"p99 µs"},
                {~"latency_p999_us", ~"p99.9 µs"}, {~"latency_deviation_us", ~"deviation µs"},
                {~"cpu_us_per_msg", ~"CPU µs/request"},
                {~"memory_rss_mib_per_node", ~"RSS MiB"}]).

-doc """
Returns `docs/performance.md` for the baselines, as Markdown. `AsOf` has the ages of commits.
""".
-spec page([baseline()], AsOf :: erlmcp_bench_sources:as_of()) -> iodata().
page(Baselines, AsOf) ->
    [~"# Performance\n\n",
     ~"Compare the figures of erlmcp on each measured machine with its goals, and with the marks\n",
     ~"of an earlier erlmcp. The page is made from the files in `bench/baselines` by\n\n",
     ~"```sh\nbench/as_of.sh\n", ?COMMAND, ~"\n```\n\n",
     ~"and a test checks that it is. A figure is the median of several runs, with the least and\n",
     ~"the most in parentheses. Its length is the time of a run, and the number of runs. Its\n",
     ~"source is a row of the first table, with the commit, the day and the machine. A\n",
     ~"shortened run reaches no goal and no mark, and is not shown beside one in full length.\n",
     ~"A failed one, such as a scenario with too many errors, reaches no goal.\n\n",
     ~"`erlmcp bench WORKLOAD` measures a workload again, and `erlmcp compare` shows what has\n",
     ~"changed. Except for workloads in one process, the load comes from another process of the\n",
     ~"same machine, which shares the cores. Every answer is read and checked. Latencies of open\n",
     ~"loops begin when a request was due.\n",
     case Baselines of
         [] -> ~"\nNo baseline was taken yet.\n";
         _ -> [machine(Baseline, AsOf) || Baseline <- lists:sort(Baselines)]
     end].

machine({File, #{~"kind" := Kind, ~"workloads" := All}}, AsOf) ->
    Workloads = shown_workloads(All),
    Sources = erlmcp_bench_sources:new(Workloads, AsOf),
    Marked = [Mark#{here => here(Mark, Workloads)} || Mark <- erlmcp_bench_marks:all()],
    [~"\n## ", cell(Kind), ~"\n\nThe figures are those of `bench/baselines/", File, ~"`.\n\n",
     erlmcp_bench_sources:table(Sources),
     $\n, erlmcp_bench_peers:section(Workloads, Sources),
     request(Workloads, Sources), memory(Workloads, Sources), faults(Workloads, Sources),
     ~"\n### Compared with the marks\n\n", summary(Marked), marks(Marked, Sources),
     ~"\n### All workloads\n\n",
     everything([Of || #{~"benchmark" := Benchmark} = Of <- Workloads, Benchmark =/= ~"chaos",
                       not erlmcp_bench_peers:is_of_peers(Of)], Sources),
     ~"\n### Scaling\n\n", scaling(models({File, Workloads}))].

%% A shortened run, which may have fewer connections, says nothing beside one in full length.
shown_workloads(Workloads) ->
    Whole = [subject(Workload) || Workload <- Workloads,
                                  not erlmcp_bench_sources:is_shortened(Workload)],
    [Workload || Workload <- Workloads,
                 not erlmcp_bench_sources:is_shortened(Workload)
                     orelse not lists:member(subject(Workload), Whole)].

subject(Workload) ->
    maps:with([~"benchmark", ~"workload_id", ~"transport", ~"component", ~"era", ~"profile",
               ~"nodes", ~"against"], Workload).

%% The stages of a request, and its growth with the size of the server.

request(Workloads, Sources) ->
    [[[~"\n### Stages of a request\n\n", stages_method(),
       [stages(Workload, Sources) || Workload <- Stages]]
      || [_ | _] = Stages <- [of_benchmark(~"stages", Workloads)]],
     [[~"\n### Ten times the items\n\n", growth_method(), growth(Grown, Sources)]
      || [_ | _] = Grown <- [of_benchmark(~"growth", Workloads)]]].

of_benchmark(Benchmark, Workloads) ->
    [Workload || #{~"benchmark" := Of} = Workload <- Workloads, Of =:= Benchmark].

stages_method() ->
    [~"`erlmcp bench stages` measures the processor time and the reductions of each stage of a\n",
     ~"request, on one scheduler, under load. Times inside processes are medians. The whole is\n",
     ~"the operating system's figure, and `read` and `frame` are its remainder.\n"].

stages(#{~"workload_id" := Id, ~"transport" := Transport,
         ~"connections" := Connections} = Workload, Sources) ->
    Quick = [~"quick " || {ok, #{quick := true}} <- [erlmcp_bench_workloads:find(Id)]],
    #{~"cpu_us_per_msg" := Cpu, ~"reductions_per_msg" := Reductions,
      ~"checks_percent" := Checks} = Medians = medians(Workload),
    [~"\nA call of the ", Quick, ~"tool `echo` on `", Transport, ~"`, stateless, ",
     number(Connections), ~" connections (", erlmcp_bench_sources:words(Workload, Sources),
     ~"):\n\n",
     ~"| stage | | µs | % | reductions |\n| --- | --- | ---: | ---: | ---: |\n",
     [stage_row(atom_to_binary(Stage), What, Us, 100 * Us / Cpu, Own)
      || {Stage, What, Us, Own} <- erlmcp_bench_stages:rows(Medians)],
     stage_row(~"all", ~"", Cpu, 100, Reductions),
     ~"\nThe checks (", lists:join(~", ", [atom_to_binary(Stage)
                                           || Stage <- erlmcp_bench_stages:checks()]),
     ~") take ", number(Checks), ~" % of it. The goal is at most ", number(?CHECKS), ~" %: ",
     reached(not erlmcp_bench_sources:is_shortened(Workload) andalso Checks =< ?CHECKS), ~".\n"].

stage_row(Stage, What, Us, Percent, Reductions) ->
    [~"| ", lists:join(~" | ", [[$`, Stage, $`], What, number(Us), number(Percent),
                                number(Reductions)]), ~" |\n"].

growth_method() ->
    [~"`erlmcp bench growth` compares the cost of a request on two servers, of which one has ten\n",
     ~"times the items. The goal is at most ", number(?GROWTH), ~" % more processor time.\n\n"].

growth(Workloads, Sources) ->
    [~"| workload | items | ten times | CPU µs | at ten times | ratio | reductions | at ten times ",
     ~"| ratio | length | source | |\n",
     ~"| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- | ---: | --- |\n",
     [grown(Workload, Sources) || Workload <- Workloads]].

grown(#{~"workload_id" := Id} = Workload, Sources) ->
    #{~"growth_cpu_ratio" := Ratio} = Medians = medians(Workload),
    IsWhole = not erlmcp_bench_sources:is_shortened(Workload),
    Numbers = [~"base_count", ~"grown_count", ~"base_cpu_us_per_msg", ~"cpu_us_per_msg",
               ~"growth_cpu_ratio", ~"base_reductions_per_msg", ~"reductions_per_msg",
               ~"growth_reductions_ratio"],
    [~"| `", Id, ~"` | ", [[number(map_get(Name, Medians)), ~" | "] || Name <- Numbers],
     erlmcp_bench_sources:cells(Workload, Sources), ~" | ",
     reached(IsWhole andalso Ratio =< 1 + ?GROWTH / 100), ~" |\n"].

reached(true) -> ~"reached";
reached(false) -> ~"**not reached**".

%% The memory of idle items, and its goals.

memory(Workloads, Sources) ->
    case of_benchmark(~"memory", Workloads) of
        [] ->
            [];
        Held ->
            [~"\n### Memory of idle items\n\n",
             ~"`erlmcp bench memory` measures the bytes of one idle item, or of one running\n",
             ~"call. Heap and state is all memory that the item adds to the node. The column\n",
             ~"`left` is the rest after all items have ended. Growth is the cost of an item\n",
             ~"of the second half, divided by the cost of one of the first half.\n\n",
             ~"| workload | items | heap and state | goal | RSS | goal | left | growth ",
             ~"| opened/s | length | source |\n",
             ~"| --- | ---: | ---: | --- | ---: | --- | ---: | ---: | ---: | --- | ---: |\n",
             [memory_row(Workload, Sources) || Workload <- Held],
             notified(Held)]
    end.

memory_row(#{~"workload_id" := Id} = Workload, Sources) ->
    Medians = medians(Workload),
    Goals = case erlmcp_bench_sources:is_shortened(Workload) of
        true -> [];
        false -> goals(Id)
    end,
    %% A baseline lacks a figure whose median is not above 0. Its cells are empty.
    Number = fun(Name) -> [number(Median) || #{Name := Median} <- [Medians]] end,
    Goal = fun(Name) -> [goal(Name, Median, Goals) || #{Name := Median} <- [Medians]] end,
    [~"| ", lists:join(~" | ", [[$`, Id, $`], item_count(Workload, Medians),
                                Number(?STATE), Goal(?STATE), Number(?RSS), Goal(?RSS),
                                Number(~"memory_left_bytes_per_item"), Number(~"growth_ratio"),
                                Number(~"opened_items_per_s"),
                                erlmcp_bench_sources:cells(Workload, Sources)]), ~" |\n"].

item_count(#{~"connections" := Count}, _) -> number(Count);
item_count(_, #{~"sample_count" := Count}) -> number(Count).

goals(Id) ->
    case erlmcp_bench_workloads:find(Id) of
        {ok, #{goals := Goals}} -> Goals;
        _ -> []
    end.

goal(Field, Value, Goals) ->
    case lists:keyfind(Field, 1, Goals) of
        {Field, Most} -> [~"at most ", number(Most), ~": ", reached(Value =< Most)];
        false -> []
    end.

notified(Held) ->
    [[~"\nOne change was published to ", number(Count), ~" streams. The last stream had it after ",
      number(Ms), ~" ms. Each stream took ", number(Us), ~" µs of the server's processor.\n"]
     || Workload <- Held,
        #{~"notified_count" := Count, ~"notified_ms" := Ms, ~"notified_cpu_us_per_item" := Us}
            <- [medians(Workload)]].

%% The faults, and their bounds.

faults(Workloads, Sources) ->
    Bounds = #{Id => Of || #{id := Id, bounds := Of} <- erlmcp_bench_chaos:scenarios()},
    [[~"\n### Faults\n\n",
      ~"`erlmcp chaos all` injects each fault into a server under load. Detection is the time\n",
      ~"from the injection until the server notices the fault. Recovery is the time from the\n",
      ~"end of the fault until the load is served as before it. In a run with several rounds\n",
      ~"both are those of the worst one. Pauses of the machine may move the bounds.\n\n",
      ~"| fault | detection ms | bound | recovery ms | bound | length | source |\n",
      ~"| --- | ---: | ---: | ---: | ---: | --- | ---: |\n",
      [fault(Workload, maps:get(Id, Bounds, #{}), Sources)
       || #{~"workload_id" := Id} = Workload <- Faults]]
     || [_ | _] = Faults <- [of_benchmark(~"chaos", Workloads)]].

fault(#{~"workload_id" := Id} = Workload, Bounds, Sources) ->
    [~"| ", lists:join(~" | ", [[$`, Id, $`],
                                shown(figure(~"detection_ms", Workload)),
                                bound(detect_ms, Bounds),
                                shown(figure(~"recovery_ms", Workload)),
                                bound(recover_ms, Bounds),
                                erlmcp_bench_sources:cells(Workload, Sources)]), ~" |\n"].

bound(Name, Bounds) ->
    case Bounds of
        #{Name := Ms} when is_integer(Ms), Ms > 0 -> number(Ms);
        #{} -> []
    end.

medians(#{~"figures" := Figures}) ->
    #{Name => Median || Name := #{~"median" := Median} <- Figures}.

number(Number) -> erlmcp_bench_text:number(Number).

%% The marks.

summary(Marked) ->
    Real = [Mark || #{origin := Origin} = Mark <- Marked, not is_never(Origin)],
    io_lib:format(
        "The marks are for a machine of 16 cores. Of ~b marks ~b are beaten, ~b are not, ~b are "
        "level or\nbeaten only by some runs, and ~b have no figure here. ~b of them were never "
        "measured, as the\nsource of their programs shows. Of the other ~b, ~b are beaten.\n\n",
        [length(Marked), count(beaten, Marked), count(not_beaten, Marked), count(mixed, Marked),
         count(none, Marked), length(Marked) - length(Real), length(Real), count(beaten, Real)]).

count(Value, Marked) -> length([Mark || Mark <- Marked, verdict(Mark) =:= Value]).

is_never({never, _}) -> true;
is_never(_) -> false.

%% The workloads of a mark in their full length, the best one first.
here(#{field := Field} = Mark, Workloads) ->
    Figures = [{Workload, figure(Field, Workload)}
               || Workload <- Workloads, not erlmcp_bench_sources:is_shortened(Workload),
                  erlmcp_bench_marks:is_for(Mark, Workload)],
    Sorted = lists:sort(fun({_, {_, A, _}}, {_, {_, B, _}}) -> A =< B end,
                        [Measured || {_, Figure} = Measured <- Figures, Figure =/= none]),
    case erlmcp_bench_marks:better(Field) of
        less -> Sorted;
        more -> lists:reverse(Sorted)
    end.

verdict(#{here := []}) -> none;
verdict(Mark) ->
    case lists:usort(verdicts(Mark)) of
        [beaten] -> beaten;
        [not_beaten] -> not_beaten;
        _ -> mixed
    end.

verdicts(#{field := Field, mark := Value, here := Here}) ->
    [erlmcp_bench_marks:compared(Field, Value, Figure) || {_, Figure} <- Here].

marks(Marked, Sources) ->
    [~"| workload | figure | mark | best figure here | length | source | | origin of the mark |\n",
     ~"| --- | --- | ---: | ---: | --- | ---: | --- | --- |\n",
     [[~"| ", lists:join(~" | ", [cell(Name), [$`, Field, $`], number(Value),
                                  best(Here, Sources), words(Mark), origin(Origin)]), ~" |\n"]
      || #{name := Name, field := Field, mark := Value, origin := Origin, here := Here} = Mark
             <- Marked]].

best([], _) ->
    ~" |  | ";
best([{Workload, Figure} | _], Sources) ->
    [shown(Figure), ~", `", name(Workload), ~"` | ", erlmcp_bench_sources:cells(Workload, Sources)].

words(Mark) ->
    case {verdict(Mark), verdicts(Mark)} of
        {beaten, _} -> ~"beaten";
        {not_beaten, _} -> ~"**not beaten**";
        {none, _} -> ~"not measured";
        {mixed, [level]} -> ~"level";
        {mixed, Verdicts} ->
            io_lib:format("beaten by ~b of ~b", [length([beaten || beaten <- Verdicts]),
                                                 length(Verdicts)])
    end.

origin({never, Why}) -> [~"never real: ", Why];
origin({other, Why}) -> [~"something else: ", Why];
origin(unknown) -> ~"unknown".

%% All workloads.

everything(Workloads, Sources) ->
    Columns = [Column || {Field, _} = Column <- ?SHOWN,
                         lists:any(fun(Workload) -> figure(Field, Workload) =/= none end,
                                   Workloads)],
    [~"| workload ", [[~"| ", Title, $\s] || {_, Title} <- Columns], ~"| length | source |\n",
     ~"| --- ", [~"| ---: " || _ <- Columns], ~"| --- | ---: |\n",
     [[~"| `", name(Workload), ~"` | ",
       [[shown(figure(Field, Workload)), ~" | "] || {Field, _} <- Columns],
       erlmcp_bench_sources:cells(Workload, Sources), ~" |\n"]
      || Workload <- Workloads]].

%% A name that distinguishes a workload from others with its id.
name(#{~"workload_id" := Id} = Workload) ->
    Also = [Value || Field <- [~"transport", ~"era", ~"against"], #{Field := Value} <- [Workload],
                     Value =/= ~"in_process", binary:match(Id, Value) =:= nomatch],
    cell(iolist_to_binary(lists:join(~" ", [Id | Also]))).

figure(Field, #{~"figures" := Figures}) ->
    case Figures of
        #{Field := #{~"median" := Median, ~"min" := Least, ~"max" := Most}} ->
            {Least, Median, Most};
        #{} ->
            none
    end.

shown(none) -> [];
shown({Same, Same, Same}) -> number(Same);
shown({Least, Median, Most}) ->
    [number(Median), " (", number(Least), " - ",
     number(Most), ")"].

%% Models.

-doc """
Returns the generated part of `docs/capacity.md`, as Markdown. The part has the models of each
baseline.
""".
-spec model([baseline()]) -> iodata().
model(Baselines) ->
    [~"Made from `bench/baselines` by `", ?CAPACITY, ~"`.\n",
     case Baselines of
         [] -> ~"\nNo baseline was taken yet.\n";
         _ ->
             [[~"\n### ", cell(Kind), ~"\n\n", scaling(models({File, Workloads}))]
              || {File, #{~"kind" := Kind, ~"workloads" := Workloads}} <- lists:sort(Baselines)]
     end].

models({File, Workloads}) ->
    erlmcp_bench_capacity:models(lists:append([points(File, Workload)
                                               || Workload <- shown_workloads(Workloads)])).

%% A baseline has the number of parts in the name of the workload.
points(File, #{~"workload_id" := Id, ~"figures" := Figures} = Workload) ->
    [{File, maps:merge(#{~"sweep" => Sweep, Field => N,
                         ~"environment" => maps:get(~"environment", Workload, #{})},
                       #{Name => Median || Name := #{~"median" := Median} <- Figures})}
     || {Sweep, Field} <- [{~"scaling_schedulers", ~"schedulers"}, {~"scaling_nodes", ~"nodes"}],
        {match, [Digits]} <- [re:run(Id, <<"^", Sweep/binary, "_([0-9]{1,6})$">>,
                                     [{capture, all_but_first, binary}])],
        N <- [binary_to_integer(Digits)]].

scaling([]) ->
    ~"No points of the sweeps `scaling_schedulers` and `scaling_nodes` are in this baseline.\n";
scaling(Models) ->
    lists:join($\n, [[model_table(Model)] || Model <- Models]).

model_table(#{parts := Parts, points := Points, fit := Fit} = Model) ->
    Most = lists:max([N || {N, _} <- Points]),
    Beyond = [{N, Most} || {ok, _} <- [Fit], N <- [Most + Most div 2, 2 * Most]],
    Predicted = maps:from_list(erlmcp_bench_capacity:predicted(
        Model, lists:usort([N || {N, _} <- Points ++ Beyond]))),
    [[~"**A model.** " || {ok, _} <- [Fit]], erlmcp_bench_capacity:describe(Model), ~"\n\n",
     ~"| ", Parts, ~" | answered/s, ", erlmcp_bench_capacity:origin(Model),
     ~" | answered/s, by the model |\n| ---: | ---: | ---: |\n",
     [[~"| ", number(N), ~" | ",
       lists:join(~", ", [number(X) || {Of, X} <- lists:sort(Points), Of =:= N]),
       ~" | ", [number(X) || #{N := X} <- [Predicted]], ~" |\n"]
      || N <- lists:usort([N || {N, _} <- Points ++ Beyond])]].

cell(Text) -> erlmcp_bench_text:cell(Text).
