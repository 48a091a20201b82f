-module(erlmcp_cli_bench_table).
-moduledoc """
Shows results of workloads as a table. The figures of an earlier erlmcp are in parentheses. Pure.
""".

-export([workloads/1, results/1, failure/1]).

%% The figures that have columns; other figures with a mark are shown below their result.
-define(COLUMNS, [{"per second", [~"throughput_msg_per_s", ~"throughput_workflows_per_s"]},
                  {"p50 us", [~"latency_p50_us"]}, {"p99 us", [~"latency_p99_us"]},
                  {"p99.9 us", [~"latency_p999_us"]}, {"max us", [~"latency_max_us"]},
                  {"deviation us", [~"latency_deviation_us"]}]).
%% Further figures of a result, which are shown if they are present.
-define(FACTS, [~"carried_msg_per_s", ~"offered_msg_per_s", ~"target_msg_per_s",
                ~"service_p99_us", ~"unsent_count", ~"growth_mib_per_min", ~"leak",
                ~"degradation_percent_per_min", ~"degradation", ~"cpu_us_per_msg",
                ~"generator_cpu_us_per_msg", ~"overhead_percent", ~"received_mib_per_s",
                ~"sent_mib_per_s", ~"opening_cpu_us_per_conn",
                ~"opening_generator_cpu_us_per_conn",
                ~"checks_percent", ~"growth_cpu_ratio", ~"growth_reductions_ratio",
                ~"memory_state_bytes_per_item", ~"memory_rss_bytes_per_item",
                ~"memory_left_bytes_per_item", ~"left_processes", ~"growth_ratio",
                ~"opened_items_per_s", ~"notified_ms", ~"notified_cpu_us_per_item",
                ~"connections", ~"bounded_by"]).
%% The figures of a failure.
-define(FAILURE, [~"killed_processes", ~"restarted_ms", ~"errors_count", ~"first_good_ms",
                  ~"recovery_ms", ~"earlier_p99_us"]).
-define(NOTHING, [0, ~"none", ~"not_judged"]).

-doc "Returns the list of workloads as text: their names, and what each measures.".
-spec workloads([erlmcp_bench_workloads:workload()]) -> unicode:chardata().
workloads(Workloads) ->
    [[Line, $\n] || Line <- erlmcp_cli_table:lines([[Id, text(Workload)]
                                                    || #{id := Id} = Workload <- Workloads])].

text(#{benchmark := core_ops, operations := Operations, workers := Workers} = Workload) ->
    ["core_ops: ", number(Operations), " operations of each component, ", number(Workers),
     " at once", [[", for ", seconds(Seconds), " s at most"]
                  || #{duration_s := Seconds} <- [Workload]]];
text(#{benchmark := stress, duration_s := Seconds, target_ops_per_s := uncapped}) ->
    ["stress: as many requests as possible for ", seconds(Seconds), " s"];
text(#{benchmark := stress, duration_s := Seconds, target_ops_per_s := Target}) ->
    ["stress: ", number(Target), " requests a second for ", seconds(Seconds), " s"];
text(#{benchmark := integration, steps := Steps, duration_s := Seconds}) ->
    ["integration: ", number(length(Steps)), " steps, each transport and era for ",
     seconds(Seconds), " s"];
text(#{benchmark := network_real, transport := Transport, connections := Connections,
       duration_s := Seconds}) ->
    ["network_real: ", number(Connections), " connections on ", atom_to_binary(Transport), " for ",
     seconds(Seconds), " s"];
text(#{benchmark := memory, holds := Kind, transport := Transport, connections := Count}) ->
    ["memory: ", number(Count), " items, each a ", atom_to_binary(Kind), " on ",
     atom_to_binary(Transport)];
text(#{benchmark := scaling, varies := Varies, points := Points, duration_s := Seconds}) ->
    ["scaling: ", string:replace(atom_to_binary(Varies), "_", " ", all), " from ",
     number(hd(Points)), " to ", number(lists:last(Points)), ", each for ", seconds(Seconds), " s"];
text(#{benchmark := stages, transport := Transport, connections := Connections} = Workload) ->
    ["stages: of a ", ["quick " || is_map_key(quick, Workload)], "request on ",
     atom_to_binary(Transport), ", ", number(Connections), " connections"];
text(#{benchmark := growth, grows := What, base := Base}) ->
    ["growth: a request with ", number(Base), " ", atom_to_binary(What), ", and with ten times as "
     "many"].

seconds(Seconds) when is_integer(Seconds) -> number(Seconds);
seconds(Seconds) -> float_to_list(Seconds, [short]).

-doc """
Returns the figures of results as a table, or an empty text without results. The figures that an
earlier erlmcp published are in parentheses. Further figures, and the stages of a request, are below
their result.
""".
-spec results([erlmcp_bench_result:result()]) -> unicode:chardata().
results([]) ->
    [];
results(Results) ->
    [aligned([{"workload", [Title || {Title, _} <- ?COLUMNS], []}
              | [row(Result) || Result <- Results]]),
     "(...)  published by an earlier erlmcp, some without being measured\n"].

row(Result) ->
    Marks = erlmcp_bench_workloads:marks(Result),
    {label(Result),
     [column(Names, Result, Marks) || {_, Names} <- ?COLUMNS],
     below(Result, Marks)}.

%% Returns the name of a result: the workload's, with the transport and the era if the workload has
%% several.
label(#{~"workload_id" := Id, ~"transport" := ~"in_process"}) -> Id;
label(#{~"workload_id" := Id, ~"transport" := Transport, ~"era" := Era}) ->
    [Id, $\s, Transport, $\s, Era].

column(Names, Result, Marks) ->
    case [Name || Name <- Names, is_map_key(Name, Result)] of
        [Name | _] -> marked(Name, map_get(Name, Result), Marks);
        [] -> "-"
    end.

marked(Name, Value, Marks) ->
    [shown(Value) | [[" (", number(Mark), ")"] || {Of, Mark} <- Marks, Of =:= Name]].

below(Result, Marks) ->
    InColumns = lists:append([Names || {_, Names} <- ?COLUMNS]),
    Names = [Name || {Name, _} <- Marks, not lists:member(Name, InColumns)]
        ++ [Fact || Fact <- ?FACTS, not lists:keymember(Fact, 1, Marks)],
    [[words(Name), ": ", marked(Name, Value, Marks)]
     || Name <- Names, #{Name := Value} <- [Result], not lists:member(Value, ?NOTHING)]
        ++ [["failure of ", Service, " at ", seconds(AtS), " s: ",
             lists:join(", ", [[words(Name), $\s, number(Value)]
                               || Name <- ?FAILURE, #{Name := Value} <- [Failure]])]
            || #{~"failure" := #{~"service" := Service, ~"at_s" := AtS} = Failure} <- [Result]]
        ++ [io_lib:format("~-8s ~7s us ~7s reductions  ~ts",
                          [Stage, number(Us), number(Reductions), What])
            || #{~"benchmark" := ~"stages"} <- [Result],
               {Stage, What, Us, Reductions} <- erlmcp_bench_stages:rows(Result)].

words(Name) -> string:replace(Name, "_", " ", all).

shown(Number) when is_number(Number) -> number(Number);
shown(Text) when is_binary(Text) -> Text.

%% Three significant digits, and all digits before the point.
number(Number) when is_integer(Number) -> grouped(integer_to_list(Number));
number(Number) when abs(Number) >= 100 -> grouped(integer_to_list(round(Number)));
number(Number) when abs(Number) >= 10 -> float_to_list(float(Number), [{decimals, 1}]);
number(Number) when abs(Number) >= 1 -> float_to_list(float(Number), [{decimals, 2}]);
number(Number) -> float_to_list(float(Number), [{decimals, 4}]).

grouped([$- | Digits]) -> [$- | grouped(Digits)];
grouped(Digits) when length(Digits) =< 3 -> Digits;
grouped(Digits) ->
    {Front, Last} = lists:split(length(Digits) - 3, Digits),
    grouped(Front) ++ [$, | Last].

%% Formats rows, each of a name, its cells, and the lines to show below it.
aligned(Rows) ->
    Lines = erlmcp_cli_table:lines([[Name | Cells] || {Name, Cells, _} <- Rows], right),
    [[Line, $\n, [["    ", Fact, $\n] || Fact <- Below]]
     || {Line, {_, _, Below}} <- lists:zip(Lines, Rows)].

-doc "Returns a failure as one line.".
-spec failure(erlmcp_bench_run:failure()) -> unicode:chardata().
failure({Workload, {leak, MibPerMin}}) ->
    [Workload, ": a leak: the node's memory grows by ", number(MibPerMin), " MiB a minute"];
failure({Workload, {degradation, PercentPerMin}}) ->
    [Workload, ": it slows down: ", number(PercentPerMin), " % a minute"];
failure({Workload, {wrong_answers, Count}}) when is_integer(Count) ->
    [Workload, ": ", number(Count), " answers were wrong"];
failure({Workload, fail_needs_a_target}) ->
    [Workload, ": without a rate no request is due while no server runs"];
failure({Workload, {unseen, Service}}) ->
    [Workload, ": the failure was not seen: ", atom_to_list(Service), " was not killed"];
failure({Workload, {not_restarted, Service}}) ->
    [Workload, ": ", atom_to_list(Service), " did not run again"];
failure({Workload, {not_recovered, Service}}) ->
    [Workload, ": the load did not recover from the failure of ", atom_to_list(Service)];
failure({Workload, Reason}) ->
    [Workload, ": ", io_lib:format("~0tp", [Reason])].
