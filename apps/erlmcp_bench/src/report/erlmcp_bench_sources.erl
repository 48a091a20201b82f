-module(erlmcp_bench_sources).
-moduledoc """
The sources of the figures of a baseline: the machine, the commit and the day of each measurement,
and its age. Pure.
""".

-export([new/2, table/1, cells/2, words/2, is_shortened/1, has_failed/1]).

-export_type([sources/0, as_of/0]).

-doc """
The ages of commits, as `bench/as_of.sh` writes them. `commit` is the current commit when the script
runs, and `day` its day as `YYYY-MM-DD`. `commits_since` says by how many commits `commit` is ahead
of each measured commit. The map is empty if the script has not written the ages.
""".
-type as_of() :: #{binary() => binary() | #{binary() => non_neg_integer()}}.

-type source() ::
    {Day :: binary(), Commit :: binary(), Machine :: binary()}.
-opaque sources() :: {as_of(), [source()]}.

-doc "Returns the sources of `Workloads`, the newest first. `AsOf` has the ages of commits.".
-spec new(Workloads :: [#{binary() => term()}], AsOf :: as_of()) -> sources().
new(Workloads, AsOf) ->
    %% The newest first.
    {AsOf, lists:reverse(lists:usort([source(Workload) || Workload <- Workloads]))}.

source(#{~"environment" := Environment} = Workload) ->
    Machine = unicode:characters_to_binary(
        erlmcp_bench_machine:describe(maps:remove(~"erlmcp_commit", Environment))),
    {maps:get(~"measured_on", Workload, ~"unknown"),
     maps:get(~"erlmcp_commit", Environment, ~"unknown"), Machine}.

-doc "Returns a table with the number, commit, day, age and machine of each source, as Markdown.".
-spec table(sources()) -> iodata().
table({AsOf, Sources}) ->
    [as_of(AsOf),
     ~"| source | commit | day | commits ago | days ago | machine |\n",
     ~"| ---: | --- | --- | ---: | ---: | --- |\n",
     [[~"| ", lists:join(~" | ", [integer_to_binary(Number), [$`, short(Commit), $`], cell(Day),
                                  commits_ago(Commit, AsOf), days_ago(Day, AsOf),
                                  cell(Machine)]), ~" |\n"]
      || {Number, {Day, Commit, Machine}} <- lists:enumerate(Sources)]].

as_of(#{~"commit" := Commit, ~"day" := Day}) ->
    [~"Ages are those on ", cell(Day), ~", at commit `", short(Commit), ~"`.\n\n"];
as_of(#{}) ->
    [].

commits_ago(Commit, AsOf) ->
    case AsOf of
        #{~"commits_since" := #{Commit := Count}} -> integer_to_binary(Count);
        #{} -> ~"unknown"
    end.

days_ago(Day, AsOf) ->
    case {days(Day), days(maps:get(~"day", AsOf, ~""))} of
        {{ok, Then}, {ok, Now}} -> integer_to_binary(Now - Then);
        _ -> ~"unknown"
    end.

days(<<Year:4/binary, "-", Month:2/binary, "-", Day:2/binary>>) ->
    {ok, calendar:date_to_gregorian_days(binary_to_integer(Year), binary_to_integer(Month),
                                         binary_to_integer(Day))};
days(_) ->
    unknown.

-doc """
Returns the cells `length` and `source` of a workload's row, as Markdown. The sources must be those
of `new/2` for workloads that include the given one.
""".
-spec cells(#{binary() => term()}, sources()) -> iodata().
cells(Workload, Sources) -> [length_of(Workload), ~" | ", number(Workload, Sources)].

-doc """
Returns the length and the source of a workload as words in a sentence. The sources are those that
`cells/2` takes.
""".
-spec words(#{binary() => term()}, sources()) -> iodata().
words(Workload, Sources) -> [length_of(Workload), ~", source ", number(Workload, Sources)].

number(Workload, {_, Sources}) ->
    Source = source(Workload),
    [Number] = [Number || {Number, One} <- lists:enumerate(Sources), One =:= Source],
    integer_to_binary(Number).

-doc "Returns `true` if the runs of a workload were shorter or smaller than its description.".
-spec is_shortened(#{binary() => term()}) -> boolean().
is_shortened(Workload) -> maps:get(~"shortened", Workload, false).

-doc "Returns `true` if a run of a workload has failed, such as one with too many errors.".
-spec has_failed(#{binary() => term()}) -> boolean().
has_failed(Workload) -> maps:get(~"status", Workload, none) =:= ~"failed".

length_of(#{~"runs_count" := Runs} = Workload) ->
    [[~"**failed**, " || has_failed(Workload)],
     [~"**shortened**, " || is_shortened(Workload)],
     [[erlmcp_bench_text:number(Seconds), ~" s × "]
      || #{~"figures" := #{~"duration_s" := #{~"median" := Seconds}}} <- [Workload]],
     integer_to_binary(Runs)].

%% Twelve digits identify a commit, and `-changed` behind them sources that were not committed.
short(<<Commit:12/binary, Rest/binary>>) ->
    case binary:split(Rest, ~"-") of
        [_, Changed] -> cell(<<Commit/binary, $-, Changed/binary>>);
        [_] -> cell(Commit)
    end;
short(Commit) ->
    cell(Commit).

cell(Text) -> erlmcp_bench_text:cell(Text).
