-module(erlmcp_cli_compare).
-moduledoc "`erlmcp compare`: compares results with a baseline, and shows which figures are worse.".

-export([command/0]).

-doc "Returns the command `compare` for `argparse`, with its arguments and its handler.".
-spec command() -> argparse:command().
command() ->
    #{help => "compare results with a baseline",
      arguments => [
          #{name => results, help => "a folder of results, or one"},
          #{name => baseline,
            help => "a baseline; of a folder, that of this machine's kind"},
          #{name => json, long => "-json", type => boolean, default => false,
            help => "the findings as JSON"}],
      handler => fun run/1}.

run(#{results := Results, baseline := Path, json := Json}) ->
    maybe
        {ok, Baseline} ?= read(Path),
        {ok, #{findings := Findings, unknown := Unknown}} ?=
            erlmcp_bench_compare:compare(Results, Baseline),
        case Json of
            true ->
                Found = #{findings => Findings, unknown => Unknown},
                erlmcp_cli_output:print([erlmcp_cli_text:json(Found), $\n]);
            false ->
                erlmcp_cli_output:print([table(Findings), [unknown(Each) || Each <- Unknown]])
        end,
        outcome(Findings)
    else
        {error, {invalid, _} = Reason} ->
            erlmcp_cli_output:complain(erlmcp_bench_compare:format_error(Reason)),
            metrology;
        {error, Reason} ->
            erlmcp_cli_output:complain(erlmcp_bench_compare:format_error(Reason)),
            failed;
        {unread, Why} ->
            erlmcp_cli_output:complain(Why),
            failed
    end.

read(Path) ->
    case erlmcp_bench_baseline:read(Path) of
        {ok, Baseline} -> {ok, Baseline};
        {error, Reason} -> {unread, erlmcp_bench_baseline:format_error(Reason)}
    end.

outcome(Findings) ->
    lists:foreach(fun erlmcp_cli_output:complain/1, [complaint(Finding) || Finding <- Findings,
                                                                          is_failed(Finding)]),
    case {[Finding || #{verdict := regression} = Finding <- Findings],
          lists:any(fun is_failed/1, Findings)} of
        {[_ | _], _} -> regression;
        {[], true} -> failed;
        {[], false} -> ok
    end.

is_failed(#{verdict := Verdict}) -> Verdict =:= regression orelse Verdict =:= not_measured.

complaint(#{verdict := regression} = Finding) ->
    [where(Finding), ": ", change(Finding), ", a regression"];
complaint(Finding) ->
    [where(Finding), ": it was not measured in each run"].

%% A line for each figure, under its workload.
table(Findings) ->
    Rows = [{Workload, [Figure, baseline(Finding), current(Finding), change(Finding),
                        title(Verdict)]}
            || #{workload := Workload, figure := Figure, verdict := Verdict} = Finding <- Findings],
    {Workloads, Cells} = lists:unzip(Rows),
    Titles = ["", "baseline, spread", "now", "change", ""],
    [Head | Lines] = [["  ", Line, $\n] || Line <- erlmcp_cli_table:lines([Titles | Cells])],
    [Head | below(lists:zip(Workloads, Lines), none)].

below([{Workload, Line} | Lines], Above) ->
    [[[visible(erlmcp_bench_result:label(Workload)), $\n] || Workload =/= Above], Line
     | below(Lines, Workload)];
below([], _) ->
    [].

baseline(#{baseline := Median, spread := Spread}) -> [number(Median), " +- ", number(Spread)].

current(#{came := Came}) -> number(Came);
current(_) -> "-".

change(#{change_percent := Percent}) -> io_lib:format("~s~.1f %", [sign(Percent), Percent]);
change(_) -> "-".

sign(Percent) when Percent > 0 -> "+";
sign(_) -> "".

title(Verdict) -> string:replace(atom_to_list(Verdict), "_", " ", all).

where(#{workload := Workload, figure := Figure}) ->
    [visible(erlmcp_bench_result:label(Workload)), ", ", visible(Figure)].

unknown(Workload) -> [visible(erlmcp_bench_result:label(Workload)), ": not in the baseline\n"].

visible(Text) -> erlmcp_cli_text:one_line(unicode:characters_to_binary(Text)).

number(Number) when is_integer(Number); abs(Number) >= 1000 ->
    integer_to_list(round(Number));
number(Number) ->
    float_to_list(float(Number), [{decimals, 3}, compact]).
