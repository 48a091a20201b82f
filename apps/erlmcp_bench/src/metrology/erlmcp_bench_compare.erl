-module(erlmcp_bench_compare).
-moduledoc """
Compares results with a baseline: which figures are worse, and whether by more than chance. A figure
has not changed if it is no farther from the baseline's median than the baseline's runs are from
each other.
""".

-export([judged/0, is_stable/1, compare/2, worst/1, figures/1, median/1, format_error/1]).

-export_type([finding/0, verdict/0, reason/0]).

-type verdict() :: regression | warning | worse | no_change | better | not_measured.
-type finding() :: #{
    workload := #{binary() => term()}, figure := binary(), verdict := verdict(),
    baseline := number(), spread := number(), came => number(), change_percent => float()
}.

-type reason() ::
    erlmcp_bench_result:reason()
    %% The baseline has no figure of these results.
    | nothing_to_compare
    | {other_machine, OfBaseline :: binary(), OfResults :: [binary()]}.

-doc """
Returns the rules of the comparison. `Of` is the name of a rule. `Regex` matches the part of a
figure's name after the last `/`. `Worse` is the direction in which the figure gets worse. A change
by `Percent` or more in that direction is a regression, and a change by half of that or more is a
warning. Changes within the spread of the baseline's runs do not count. For example, twice the
recovery time is 100 % worse.
""".
-spec judged() -> [{Of :: binary(), Regex :: binary(), Worse :: lower | higher,
                    Percent :: pos_integer()}].
judged() ->
    [{~"throughput", ~"^throughput_.+_per_s$", lower, 10},
     {~"p99", ~"^latency_p99_us$", higher, 20},
     {~"memory", ~"^memory_.+_mib_per_(conn|node|cluster)$", higher, 50},
     {~"memory of one", ~"^memory_(state|allocated)_bytes_per_(item|operation)$", higher, 50},
     {~"reductions", ~"^(reductions_per_msg|growth_reductions_ratio)$", higher, 50},
     {~"detection", ~"^detection_(ms|us|s)$", higher, 100},
     {~"recovery", ~"^recovery_(ms|us|s)$", higher, 100}].

-doc """
Returns `true` if a figure hardly depends on how fast or how busy the machine is. Such figures can
be compared on a machine that others share.

## Examples

```erlang
1> [erlmcp_bench_compare:is_stable(Figure)
1>  || Figure <- [~"memory_state_bytes_per_item", ~"memory_rss_mib_per_node"]].
[true, false]
```
""".
-spec is_stable(Figure :: binary()) -> boolean().
is_stable(Figure) ->
    [] =/= [Of || {Of, Regex, _, _} <- judged(),
                  Of =:= ~"memory of one" orelse Of =:= ~"reductions",
                  re:run(Figure, Regex, [{capture, none}]) =:= match].

-doc """
Compares the results of files and folders, or the given results, with a baseline. The results and
the baseline must be of one kind of machine. Only figures with a rule in `judged/0` are compared. If
a measurement lacks such a figure of the baseline, the verdict is `not_measured`. If nothing can be
compared, the error is `nothing_to_compare`.

If there are several results of one measurement, only those with the commit of the newest result
count. Their median is compared, and a figure that one of them lacks is `not_measured`. If the
sources of the newest result were not all committed, or their commit is not known, that result
counts alone. `unknown` lists measurements that are not in the baseline.
""".
-spec compare(file:filename() | [file:filename()] | [erlmcp_bench_result:result()],
              erlmcp_bench_baseline:baseline()) ->
    {ok, #{findings := [finding(), ...], unknown := [#{binary() => term()}]}} | {error, reason()}.
compare([#{} | _] = Results, #{~"kind" := Kind, ~"workloads" := Workloads}) ->
    Measured = maps:groups_from_list(fun erlmcp_bench_result:identity/1, Results),
    case lists:usort([erlmcp_bench_environment:kind(Environment)
                      || #{~"environment" := Environment} <- Results]) of
        [Kind] ->
            Figures = #{erlmcp_bench_result:identity(Workload) => Of
                        || #{~"figures" := Of} = Workload <- Workloads},
            Identities = erlmcp_bench_result:in_order(maps:keys(Measured)),
            found([finding(Identity, Figure, Value, newest(map_get(Identity, Measured)))
                   || Identity <- Identities,
                      {Figure, Value} <- lists:sort(maps:to_list(maps:get(Identity, Figures, #{}))),
                      judgement(Figure) =/= none],
                  [Identity || Identity <- Identities, not is_map_key(Identity, Figures)]);
        Kinds ->
            {error, {other_machine, Kind, Kinds}}
    end;
compare([First | _] = Paths, Baseline) when is_list(First) ->
    maybe
        {ok, Results} ?= erlmcp_bench_result:read_all(Paths),
        compare(Results, Baseline)
    end;
compare(Path, Baseline) ->
    compare([Path], Baseline).

newest(Runs) ->
    [#{~"environment" := Environment} = Newest | _] = Ordered =
        lists:sort(fun(One, Other) ->
                       erlmcp_bench_result:measured_at(One)
                           >= erlmcp_bench_result:measured_at(Other)
                   end, Runs),
    case erlmcp_bench_environment:is_committed(Environment) of
        true -> [figures(Run) || Run <- Ordered, commit(Run) =:= commit(Newest)];
        false -> [figures(Newest)]
    end.

commit(#{~"environment" := #{~"erlmcp_commit" := Commit}}) -> Commit.

found([], _) -> {error, nothing_to_compare};
found(Findings, Unknown) -> {ok, #{findings => Findings, unknown => Unknown}}.

finding(Identity, Figure, #{~"median" := Median, ~"min" := Min, ~"max" := Max}, Runs) ->
    Finding = #{workload => Identity, figure => Figure, baseline => Median, spread => Max - Min},
    Values = [maps:get(Figure, Run, none) || Run <- Runs],
    case lists:member(none, Values) of
        true ->
            Finding#{verdict => not_measured};
        false ->
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

-doc """
Returns the worst verdict among findings. From the worst to the best, the verdicts are `regression`,
`warning`, `worse`, `not_measured`, `no_change` and `better`.
""".
-spec worst([finding(), ...]) -> verdict().
worst(Findings) ->
    Verdicts = [Verdict || #{verdict := Verdict} <- Findings],
    hd([Verdict || Verdict <- [regression, warning, worse, not_measured, no_change, better],
                   lists:member(Verdict, Verdicts)]).

-doc """
Returns the numbers of a result by their names, except those of its identity, its environment and
its timestamp. If a number is in an object, its name begins with that of the object, as in
`phases/peak/latency_p99_us`. Arrays are series, and their numbers are left out.
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

-doc "Returns the median of numbers. For an even count it is the mean of the two in the middle.".
-spec median([number(), ...]) -> number().
median(Values) ->
    Sorted = lists:sort(Values),
    Length = length(Sorted),
    case lists:nthtail((Length - 1) div 2, Sorted) of
        [Middle | _] when Length rem 2 =:= 1 -> Middle;
        [Lower, Higher | _] -> (Lower + Higher) / 2
    end.

-doc "Says why nothing was compared, in lines of text.".
-spec format_error(reason()) -> unicode:chardata().
format_error(nothing_to_compare) ->
    "the baseline has nothing of what was measured";
format_error({other_machine, Kind, Kinds}) ->
    ["the baseline is of ", Kind, ", the results are of ", lists:join(", ", Kinds)];
format_error(Reason) ->
    erlmcp_bench_result:format_error(Reason).
