-module(erlmcp_bench_performance).
-moduledoc """
`docs/performance.md`, and the model of `docs/capacity.md`: what the baselines of `bench/baselines`
say, beside the marks. Pure; the same baselines make the same bytes.
""".

-export([page/1, model/1]).

-export_type([baseline/0]).

-doc "A baseline's file name, and what `erlmcp_bench_baseline:read/1` gives.".
-type baseline() :: {File :: binary(), #{binary() => term()}}.

-define(COMMAND, ~"erlmcp report bench/baselines --page performance --output docs/performance.md").
-define(CAPACITY, ~"erlmcp report bench/baselines --page capacity --output docs/capacity.md").

%% Of a workload, in the table of all that was measured; the first two that it has.
-define(SHOWN, [{~"throughput_msg_per_s", ~"answered/s"},
                {~"throughput_workflows_per_s", ~"workflows/s"},
                {~"latency_p50_us", ~"p50 µs"}, {~"latency_p99_us", ~"p99 µs"},
                {~"latency_p999_us", ~"p99.9 µs"}, {~"cpu_us_per_msg", ~"CPU µs/request"},
                {~"memory_rss_mib_per_node", ~"RSS MiB"}]).

-doc "The page, as Markdown.".
-spec page([baseline()]) -> iodata().
page(Baselines) ->
    [~"# Performance\n\n",
     ~"What erlmcp was measured to do, machine by machine, beside the marks that an earlier\n",
     ~"erlmcp published. Made of the files in `bench/baselines` by\n\n",
     ~"```sh\n", ?COMMAND, ~"\n```\n\n",
     ~"and a test holds it to them. A figure is the median of several runs; in brackets stand\n",
     ~"the least and the most. `erlmcp bench WORKLOAD` measures one again, and `erlmcp compare`\n",
     ~"says what has changed. But for what runs in one process, the load comes from another one\n",
     ~"of the same machine, which has no other cores for it. Every answer is read and checked,\n",
     ~"and latencies of open loops begin when a request was due.\n",
     case Baselines of
         [] -> ~"\nNo baseline was taken yet.\n";
         _ -> [machine(Baseline) || Baseline <- lists:sort(Baselines)]
     end].

machine({File, #{~"kind" := Kind, ~"workloads" := Workloads}}) ->
    Marked = [Mark#{here => here(Mark, Workloads)} || Mark <- erlmcp_bench_marks:all()],
    [~"\n## ", cell(Kind), ~"\n\n", environment(File, Workloads),
     $\n, erlmcp_bench_peers:section(Workloads),
     erlmcp_bench_request_page:sections(Workloads),
     erlmcp_bench_memory_page:section(Workloads),
     ~"\n### Beside the marks\n\n", summary(Marked), marks(Marked),
     ~"\n### All of it\n\n",
     everything([Of || Of <- Workloads, not erlmcp_bench_peers:is_of_peers(Of)]),
     ~"\n### Scaling\n\n", scaling(models({File, Workloads}))].

%% A machine is said once, with the commits that were measured on it.
environment(File, Workloads) ->
    Commits = maps:groups_from_list(fun machine_of/1, fun commit_of/1,
                                    [Environment || #{~"environment" := Environment} <- Workloads]),
    [~"From `bench/baselines/", File, ~"`, which has the commit of each figure:\n\n",
     [[~"- ", cell(Machine), ~"; ", commits(lists:usort(Of)), ~"\n"]
      || {Machine, Of} <- lists:sort(maps:to_list(Commits))]].

machine_of(Environment) ->
    unicode:characters_to_binary(
        erlmcp_bench_machine:said(maps:remove(~"erlmcp_commit", Environment))).

commit_of(Environment) ->
    maps:get(~"erlmcp_commit", Environment, ~"unknown").

commits([Commit]) -> [~"commit ", cell(short(Commit))];
commits(Commits) -> [~"commits ", lists:join(~", ", [cell(short(Commit)) || Commit <- Commits])].

%% So many digits tell it from all others.
short(<<Commit:12/binary, _/binary>>) -> Commit;
short(Commit) -> Commit.

%% The marks.

summary(Marked) ->
    Real = [Mark || #{origin := Origin} = Mark <- Marked, not is_never(Origin)],
    io_lib:format(
        "Theirs was a machine of 16 cores. Of ~b marks ~b are beaten, ~b are not, ~b are level or "
        "beaten by\nsome of the runs alone, and ~b have no figure here. ~b of them no measurement "
        "gave, as the source of\nthe programs that they are said to come from shows; of the other "
        "~b are ~b beaten.\n\n",
        [length(Marked), count(beaten, Marked), count(not_beaten, Marked), count(mixed, Marked),
         count(none, Marked), length(Marked) - length(Real), length(Real), count(beaten, Real)]).

count(Value, Marked) -> length([Mark || Mark <- Marked, verdict(Mark) =:= Value]).

is_never({never, _}) -> true;
is_never(_) -> false.

%% The workloads that a mark is for, the best one first.
here(#{field := Field} = Mark, Workloads) ->
    Figures = [{Workload, figure(Field, Workload)}
               || Workload <- Workloads, erlmcp_bench_marks:is_for(Mark, Workload)],
    Sorted = lists:sort(fun({_, {_, A, _}}, {_, {_, B, _}}) -> A =< B end,
                        [Known || {_, Figure} = Known <- Figures, Figure =/= none]),
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

marks(Marked) ->
    [~"| mark | of | is | here, at best | | where the mark comes from |\n",
     ~"| --- | --- | ---: | ---: | --- | --- |\n",
     [[~"| ", lists:join(~" | ", [cell(Name), [$`, Field, $`], erlmcp_bench_text:number(Value),
                                  best(Here), words(Mark), origin(Origin)]), ~" |\n"]
      || #{name := Name, field := Field, mark := Value, origin := Origin, here := Here} = Mark
             <- Marked]].

best([]) -> [];
best([{Workload, Figure} | _]) -> [shown(Figure), ~", `", name(Workload), $`].

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
origin(unknown) -> ~"not known".

%% Everything.

everything(Workloads) ->
    Columns = [Column || {Field, _} = Column <- ?SHOWN,
                         lists:any(fun(Workload) -> figure(Field, Workload) =/= none end,
                                   Workloads)],
    [~"| workload | runs ", [[~"| ", Title, $\s] || {_, Title} <- Columns], ~"|\n",
     ~"| --- | ---: ", [~"| ---: " || _ <- Columns], ~"|\n",
     [[~"| `", name(Workload), ~"` | ", erlmcp_bench_text:number(maps:get(~"runs_count", Workload)),
       [[~" | ", shown(figure(Field, Workload))] || {Field, _} <- Columns], ~" |\n"]
      || Workload <- Workloads]].

%% What tells a workload from others of its name.
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
shown({Same, Same, Same}) -> erlmcp_bench_text:number(Same);
shown({Least, Median, Most}) ->
    [erlmcp_bench_text:number(Median), " (", erlmcp_bench_text:number(Least), " - ",
     erlmcp_bench_text:number(Most), ")"].

%% Models.

-doc "What `docs/capacity.md` has of the models, for each baseline.".
-spec model([baseline()]) -> iodata().
model(Baselines) ->
    [~"Made of `bench/baselines` by `", ?CAPACITY, ~"`.\n",
     case Baselines of
         [] -> ~"\nNo baseline was taken yet.\n";
         _ ->
             [[~"\n### ", cell(Kind), ~"\n\n", scaling(models({File, Workloads}))]
              || {File, #{~"kind" := Kind, ~"workloads" := Workloads}} <- lists:sort(Baselines)]
     end].

models({File, Workloads}) ->
    erlmcp_bench_capacity:models(lists:append([points(File, Workload) || Workload <- Workloads])).

%% A baseline says how many there were in the name of the workload.
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
    [[~"**A model.** " || {ok, _} <- [Fit]], erlmcp_bench_capacity:said(Model), ~"\n\n",
     ~"| ", Parts, ~" | answered/s, ", erlmcp_bench_capacity:origin(Model),
     ~" | answered/s, by the model |\n| ---: | ---: | ---: |\n",
     [[~"| ", erlmcp_bench_text:number(N), ~" | ",
       lists:join(~", ", [erlmcp_bench_text:number(X) || {Of, X} <- lists:sort(Points), Of =:= N]),
       ~" | ", [erlmcp_bench_text:number(X) || #{N := X} <- [Predicted]], ~" |\n"]
      || N <- lists:usort([N || {N, _} <- Points ++ Beyond])]].

%% Text from a file in a table of Markdown: nothing in it is markup.
cell(Text) ->
    << <<(case Character of
              $| -> ~"\\|";
              $` -> ~"'";
              $< -> ~"&lt;";
              $& -> ~"&amp;";
              $\n -> ~" ";
              _ -> <<Character/utf8>>
          end)/binary>> || <<Character/utf8>> <= Text >>.
