-module(erlmcp_bench_compare).
-moduledoc """
Results beside a baseline: which figures are worse, and whether by more than chance. What is nearer
to the baseline's median than its runs are to each other is no change.
""".

-export([judged/0, compare/2, worst/1, figures/1, median/1, format_error/1]).

-export_type([finding/0, verdict/0, reason/0]).

-type verdict() :: regression | warning | worse | no_change | better | not_measured.
-type finding() :: #{
    workload := #{binary() => term()}, figure := binary(), verdict := verdict(),
    baseline := number(), spread := number(), came => number(), change_percent => float()
}.

-type reason() ::
    erlmcp_bench_result:reason()
    %% Nothing that was measured has a figure in the baseline.
    | nothing_to_compare
    | {other_machine, OfBaseline :: binary(), OfResults :: [binary()]}.

-doc """
What is judged: the figures by their names, which way is worse, and from how many percent on that
is a regression. From half of it on it is a warning. Recovery in twice the time is worse by 100 %.
""".
-spec judged() -> [{Of :: binary(), Regex :: binary(), Worse :: lower | higher,
                    Percent :: pos_integer()}].
judged() ->
    [{~"throughput", ~"^throughput_.+_per_s$", lower, 10},
     {~"p99", ~"^latency_p99_us$", higher, 20},
     {~"memory", ~"^memory_.+_mib_per_(conn|node|cluster)$", higher, 50},
     {~"recovery", ~"^recovery_(ms|us|s)$", higher, 100}].

-doc """
Compares the results of files and folders with a baseline. Of a measurement those count that are of
the commit of the newest; several are one, their median. `unknown` are those that the baseline has
not.
""".
-spec compare(file:filename() | [file:filename()] | [erlmcp_bench_result:result()],
              erlmcp_bench_baseline:baseline()) ->
    {ok, #{findings := [finding(), ...], unknown := [#{binary() => term()}]}} | {error, reason()}.
compare([#{} | _] = Results, #{~"kind" := Kind, ~"workloads" := Workloads}) ->
    Measured = maps:groups_from_list(fun erlmcp_bench_result:identity/1, Results),
    case lists:usort([erlmcp_bench_environment:kind(Environment)
                      || #{~"environment" := Environment} <- Results]) of
        [Kind] ->
            Known = #{erlmcp_bench_result:identity(Workload) => Figures
                      || #{~"figures" := Figures} = Workload <- Workloads},
            Identities = erlmcp_bench_result:in_order(maps:keys(Measured)),
            found([finding(Identity, Figure, Value, newest(map_get(Identity, Measured)))
                   || Identity <- Identities,
                      {Figure, Value} <- lists:sort(maps:to_list(maps:get(Identity, Known, #{}))),
                      judgement(Figure) =/= none],
                  [Identity || Identity <- Identities, not is_map_key(Identity, Known)]);
        Kinds ->
            {error, {other_machine, Kind, Kinds}}
    end;
compare([[_ | _] | _] = Paths, Baseline) ->
    maybe
        {ok, Results} ?= erlmcp_bench_result:read_all(Paths),
        compare(Results, Baseline)
    end;
compare([Character | _] = Path, Baseline) when is_integer(Character) ->
    compare([Path], Baseline).

%% What has changes besides its commit is the newest alone.
newest(Runs) ->
    Ordered = lists:sort(fun(One, Other) ->
                             erlmcp_bench_result:measured_at(One)
                                 >= erlmcp_bench_result:measured_at(Other)
                         end, Runs),
    Commit = commit(hd(Ordered)),
    case re:run(Commit, ~"^[0-9a-f]+$", [{capture, none}]) of
        match -> [figures(Run) || Run <- Ordered, commit(Run) =:= Commit];
        nomatch -> [figures(hd(Ordered))]
    end.

commit(#{~"environment" := #{~"erlmcp_commit" := Commit}}) -> Commit.

found([], _) -> {error, nothing_to_compare};
found(Findings, Unknown) -> {ok, #{findings => Findings, unknown => Unknown}}.

finding(Identity, Figure, #{~"median" := Median, ~"min" := Min, ~"max" := Max}, Runs) ->
    Finding = #{workload => Identity, figure => Figure, baseline => Median, spread => Max - Min},
    case [Value || #{Figure := Value} <- Runs] of
        [] ->
            Finding#{verdict => not_measured};
        Values ->
            Came = median(Values),
            Finding#{came => Came, change_percent => 100 * (Came - Median) / Median,
                     verdict => verdict(Came - Median, Median, Max - Min, judgement(Figure))}
    end.

verdict(Difference, _, Spread, _) when abs(Difference) =< Spread -> no_change;
verdict(Difference, Median, _, {Worse, Percent}) ->
    Lost = case Worse of
        lower -> -100 * Difference / Median;
        higher -> 100 * Difference / Median
    end,
    if
        Lost >= Percent -> regression;
        Lost >= Percent / 2 -> warning;
        Lost > 0 -> worse;
        true -> better
    end.

judgement(Figure) ->
    Name = lists:last(binary:split(Figure, ~"/", [global])),
    case [{Worse, Percent} || {_, Regex, Worse, Percent} <- judged(),
                              re:run(Name, Regex, [{capture, none}]) =:= match] of
        [Judgement | _] -> Judgement;
        [] -> none
    end.

-doc "The worst of what was found.".
-spec worst([finding(), ...]) -> verdict().
worst(Findings) ->
    Verdicts = [Verdict || #{verdict := Verdict} <- Findings],
    hd([Verdict || Verdict <- [regression, warning, worse, not_measured, no_change, better],
                   lists:member(Verdict, Verdicts)]).

-doc """
The numbers of a result, of objects in it as `phases/peak/latency_p99_us`. What stands in arrays is
a series, and no figure.
""".
-spec figures(#{binary() => term()}) -> #{binary() => number()}.
figures(Result) ->
    Identity = maps:keys(erlmcp_bench_result:identity(Result)),
    maps:from_list(numbers(~"", maps:without([~"environment", ~"timestamp" | Identity], Result))).

numbers(Before, Object) ->
    lists:append([case Value of
                      _ when is_number(Value) -> [{<<Before/binary, Name/binary>>, Value}];
                      #{} -> numbers(<<Before/binary, Name/binary, $/>>, Value);
                      _ -> []
                  end || Name := Value <- Object]).

-doc "The one in the middle; of an even number the mean of both.".
-spec median([number(), ...]) -> number().
median(Values) ->
    Sorted = lists:sort(Values),
    Length = length(Sorted),
    case lists:nthtail((Length - 1) div 2, Sorted) of
        [Middle | _] when Length rem 2 =:= 1 -> Middle;
        [Lower, Higher | _] -> (Lower + Higher) / 2
    end.

-doc "Why nothing was compared.".
-spec format_error(reason()) -> unicode:chardata().
format_error(nothing_to_compare) ->
    "the baseline has nothing of what was measured";
format_error({other_machine, Kind, Kinds}) ->
    ["the baseline is of ", Kind, ", the results are of ", lists:join(", ", Kinds)];
format_error(Reason) ->
    erlmcp_bench_result:format_error(Reason).
