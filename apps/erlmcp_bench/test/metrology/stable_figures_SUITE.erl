-module(stable_figures_SUITE).
-moduledoc """
Figures that hardly depend on the speed of the machine, compared with those that `bench/stable.sh`
has recorded. A figure that has doubled is a regression.
""".

-export([suite/0, all/0]).
-export([figures_are_those_recorded/1]).

suite() ->
    [{timetrap, {minutes, 3}}].

all() ->
    [figures_are_those_recorded].

figures_are_those_recorded(_) ->
    case erlmcp_bench_baseline:read(filename:join(root(), "bench/stable")) of
        {ok, #{~"workloads" := Workloads} = Baseline} ->
            Results = lists:append(at_once(fun measured/1, runs())),
            Findings = compared(Results, Baseline),
            [] = [Finding || #{verdict := regression} = Finding <- Findings],
            %% Each recorded figure is measured, and each that doubles is found.
            true = length(Findings) =:= lists:sum([map_size(Of)
                                                   || #{~"figures" := Of} <- Workloads]),
            [] = [Finding || #{verdict := not_measured} = Finding <- Findings],
            Doubled = compared([doubled(Result) || Result <- Results], Baseline),
            [] = [Finding || #{verdict := Verdict} = Finding <- Doubled, Verdict =/= regression];
        {error, {enoent, _}} ->
            {comment, "recorded on another kind of machine"}
    end.

%% As bench/stable.sh does.
runs() ->
    Options = #{duration_s => 0.5, connections => 500},
    [{core_ops, core_ops_1k, Options}, {memory, memory_session, Options},
     {memory, memory_connection_http, Options}, {growth, growth_tools, Options}].

%% The figures hardly depend on how busy the machine is.
at_once(Do, Values) ->
    Test = self(),
    Pids = [spawn_link(fun() -> Test ! {self(), Do(Value)} end) || Value <- Values],
    [receive {Pid, Done} -> Done end || Pid <- Pids].

measured({Benchmark, Workload, Options}) ->
    {ok, Results} = erlmcp_bench_run:workload(Benchmark, Workload, Options),
    Results.

compared(Results, Baseline) ->
    {ok, #{findings := Findings}} = erlmcp_bench_compare:compare(Results, Baseline),
    Findings.

doubled(Result) ->
    #{Name => case erlmcp_bench_compare:is_stable(Name) of
                  true -> 2 * Value;
                  false -> Value
              end || Name := Value <- Result}.

root() ->
    root(filename:dirname(proplists:get_value(source, module_info(compile)))).

root(Folder) ->
    case filelib:is_regular(filename:join([Folder, "bin", "erlmcp"])) of
        true -> Folder;
        false -> root(filename:dirname(Folder))
    end.
