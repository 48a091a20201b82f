-module(erlmcp_bench_baseline).
-moduledoc """
Makes, writes and reads baselines: the figures that later results are compared with. A baseline is
of one kind of machine, and is made of at least three runs of each workload. For runs of half an
hour or more one is enough. Each kind of machine has a file, such as
`bench/baselines/2-core-x86_64.json`.
""".

-export([make/1, stable/1, write/2, read/1, format_error/1]).

-export_type([baseline/0, reason/0]).

-doc """
A baseline as decoded JSON. It has the `kind` of machine and `workloads`. Each workload has the
members of `erlmcp_bench_result:identity/1`, `runs_count`, the day of the last run (`measured_on`),
the `environment` of the first run, and `figures`. Each figure has `median`, `min`, `max`, and its
`values` in the order of the runs. If a run of a scenario has failed, `status` is `failed`.
""".
-type baseline() :: #{binary() => term()}.
-type reason() ::
    erlmcp_bench_result:reason()
    | {too_few_runs, [{Workload :: binary(), pos_integer()}, ...]}
    | {several_kinds, [binary()]}
    | {several_commits, [{Workload :: binary(), [binary()]}, ...]}
    | {failed_faults, [{Workload :: binary(), Failed :: pos_integer(), Of :: pos_integer()}, ...]}
    | {not_committed, [{Workload :: binary(), Commit :: binary()}, ...]}
    | {no_baseline, file:filename()}.

%% The fewest runs of a workload, and the seconds from which a run stands for itself.
-define(FEWEST_RUNS, 3).
-define(LONG_S, 1_800).

-doc """
Makes a baseline from the results of files and folders, all of one kind of machine. Each workload
needs at least three runs, or only runs of half an hour or more. All runs of a workload must be of
one known commit without changed files, and no run of a fault may have failed. A figure is left out
if one of the runs lacks the figure, or if its median is not above 0.
""".
-spec make([file:filename()]) -> {ok, baseline()} | {error, reason()}.
make(Paths) ->
    maybe
        {ok, #{~"workloads" := Workloads} = Baseline} ?= made(Paths),
        ok ?= complaints(not_committed,
                         [{label(Workload), Commit}
                          || #{~"environment" := #{~"erlmcp_commit" := Commit} = Environment}
                                 = Workload <- Workloads,
                             not erlmcp_bench_environment:is_committed(Environment)]),
        {ok, Baseline}
    end.

made(Paths) ->
    maybe
        {ok, Results} ?= erlmcp_bench_result:read_all(Paths),
        Groups = maps:groups_from_list(fun erlmcp_bench_result:identity/1, Results),
        Ordered = [{Identity, map_get(Identity, Groups)}
                   || Identity <- erlmcp_bench_result:in_order(maps:keys(Groups))],
        {ok, Kind} ?= kind(Results),
        ok ?= complaints(too_few_runs, [{label(Identity), length(Runs)}
                                        || {Identity, Runs} <- Ordered,
                                           length(Runs) < ?FEWEST_RUNS,
                                           not lists:all(fun is_long/1, Runs)]),
        ok ?= complaints(several_commits, [{label(Identity), Commits}
                                           || {Identity, Runs} <- Ordered,
                                              Commits <- [commits(Runs)], length(Commits) > 1]),
        ok ?= complaints(failed_faults,
                         [{label(Identity), Failed, length(Runs)}
                          || {#{~"benchmark" := ~"chaos"} = Identity, Runs} <- Ordered,
                             Failed <- [length(failed(Runs))], Failed > 0]),
        {ok, #{~"kind" => Kind,
               ~"workloads" => [workload(Identity, Runs) || {Identity, Runs} <- Ordered]}}
    end.

is_long(#{~"duration_s" := Seconds}) -> Seconds >= ?LONG_S;
is_long(_) -> false.

complaints(_, []) -> ok;
complaints(Why, Found) -> {error, {Why, Found}}.

%% A failed fault has no time of its recovery. A scenario may be more than the machine carries, and
%% its figures say what it does carry.
failed(Runs) -> [Run || #{~"status" := ~"failed"} = Run <- Runs].

kind(Results) ->
    case lists:usort([erlmcp_bench_environment:kind(Environment)
                      || #{~"environment" := Environment} <- Results]) of
        [Kind] -> {ok, Kind};
        Kinds -> {error, {several_kinds, Kinds}}
    end.

commits(Runs) ->
    lists:usort([Commit || #{~"environment" := #{~"erlmcp_commit" := Commit}} <- Runs]).

label(Identity) -> unicode:characters_to_binary(erlmcp_bench_result:label(Identity)).

workload(Identity, [#{~"environment" := Environment} | _] = Runs) ->
    Figures = [erlmcp_bench_compare:figures(Run) || Run <- Runs],
    maps:merge(
        Identity#{~"runs_count" => length(Runs),
                  ~"measured_on" => day(lists:max([erlmcp_bench_result:measured_at(Run)
                                                   || Run <- Runs])),
                  ~"environment" => Environment,
                  ~"figures" => #{Name => figure([Value || #{Name := Value} <- Figures])
                                  || Name <- common(Figures)}},
        #{~"status" => ~"failed" || failed(Runs) =/= []}).

day(Seconds) ->
    {{Year, Month, Day}, _} = calendar:system_time_to_universal_time(Seconds, second),
    iolist_to_binary(io_lib:format("~4..0b-~2..0b-~2..0b", [Year, Month, Day])).

%% Changes are computed as shares of the median, so it is more than 0. A run may still have none of
%% what the others have, as of refusals.
common(Figures) ->
    [Name || Name := _ <- hd(Figures),
             lists:all(fun(Run) -> is_map_key(Name, Run) end, Figures),
             erlmcp_bench_compare:median([Value || #{Name := Value} <- Figures]) > 0].

figure(Values) ->
    #{~"median" => erlmcp_bench_compare:median(Values), ~"min" => lists:min(Values),
      ~"max" => lists:max(Values), ~"values" => Values}.

-doc """
Makes a baseline as `make/1` does, but only of the figures for which
`erlmcp_bench_compare:is_stable/1` returns `true`. They can be compared on any machine of the same
kind, however busy the machine is. Workloads without such figures are left out. In contrast to
`make/1`, the commit may be unknown or have changed files.
""".
-spec stable([file:filename()]) -> {ok, baseline()} | {error, reason()}.
stable(Paths) ->
    maybe
        {ok, #{~"workloads" := Workloads} = Baseline} ?= made(Paths),
        {ok, Baseline#{~"workloads" :=
                           [Workload#{~"figures" := Stable}
                            || #{~"figures" := Figures} = Workload <- Workloads,
                               Stable <- [maps:filter(fun(Name, _) ->
                                                          erlmcp_bench_compare:is_stable(Name)
                                                      end, Figures)],
                               map_size(Stable) > 0]}}
    end.

-doc """
Writes a baseline into the file of its kind in `Folder`, and returns the file. A missing folder is
made. If the file already exists, the workloads that only this file has stay in it. An existing file
that is no baseline is not changed, and the error is that of `read/1`.
""".
-spec write(baseline(), Folder :: file:filename()) ->
    {ok, file:filename()} | {error, reason()}.
write(#{~"kind" := Kind} = Baseline, Folder) ->
    File = filename:join(Folder, name(Kind)),
    maybe
        {ok, Whole} ?= case filelib:is_regular(File) of
                           true -> with_older(read(File), Baseline);
                           false -> {ok, Baseline}
                       end,
        ok ?= written(filelib:ensure_path(Folder), Folder),
        Unfinished = File ++ "." ++ os:getpid(),
        ok ?= written(file:write_file(Unfinished, erlmcp_bench_json:lines(Whole)), Unfinished),
        ok ?= written(file:rename(Unfinished, File), File),
        {ok, File}
    end.

with_older({ok, Older}, Baseline) -> {ok, merged(Older, Baseline)};
with_older({error, _} = Error, _) -> Error.

%% Adds the workloads that only the older baseline has.
merged(#{~"workloads" := Older}, #{~"workloads" := Newer} = Baseline) ->
    Replaced = [erlmcp_bench_result:identity(Workload) || Workload <- Newer],
    Kept = [Workload || Workload <- Older,
                        not lists:member(erlmcp_bench_result:identity(Workload), Replaced)],
    Baseline#{~"workloads" := erlmcp_bench_result:in_order(Kept ++ Newer)}.

written(ok, _) -> ok;
written({error, Posix}, File) -> {error, {Posix, File}}.

-doc """
Reads the baseline in a file. For a folder, reads the file of this machine's kind. The error is
`{Posix, File}` for a file that cannot be read. The error is `{no_baseline, File}` for a file that
can be read, but is not a baseline or has more than 64 MiB.
""".
-spec read(file:filename()) -> {ok, baseline()} | {error, reason()}.
read(Path) ->
    case filelib:is_dir(Path) of
        true -> read_file(filename:join(Path, name(erlmcp_bench_environment:kind())));
        false -> read_file(Path)
    end.

name(Kind) -> binary_to_list(Kind) ++ ".json".

read_file(File) ->
    maybe
        {ok, Bytes} ?= erlmcp_metrology_validator:read_bytes(File),
        #{~"kind" := Kind, ~"workloads" := Workloads} = Baseline ?= decoded(Bytes),
        true ?= is_binary(Kind) andalso is_list(Workloads)
            andalso lists:all(fun is_workload/1, Workloads),
        {ok, Baseline}
    else
        {error, Posix} -> {error, {Posix, File}};
        _ -> {error, {no_baseline, File}}
    end.

decoded(Bytes) ->
    try
        json:decode(Bytes)
    catch
        error:_ -> none
    end.

is_workload(#{~"workload_id" := _, ~"runs_count" := Runs, ~"environment" := #{},
              ~"figures" := #{} = Figures}) ->
    is_integer(Runs) andalso lists:all(fun is_figure/1, maps:values(Figures));
is_workload(_) ->
    false.

is_figure(#{~"median" := Median, ~"min" := Min, ~"max" := Max, ~"values" := [_ | _] = Values}) ->
    lists:all(fun is_number/1, [Median, Min, Max | Values]) andalso Median > 0;
is_figure(_) ->
    false.

-doc "Says why a baseline could not be made, written or read, in lines of text.".
-spec format_error(reason()) -> unicode:chardata().
format_error({too_few_runs, Workloads}) ->
    lists:join($\n, [[Workload, ": ", integer_to_list(Runs), " of at least ",
                      integer_to_list(?FEWEST_RUNS), " runs"]
                     || {Workload, Runs} <- Workloads]);
format_error({several_commits, Workloads}) ->
    lists:join($\n, [[Workload, ": runs of several commits: ", lists:join(", ", Commits)]
                     || {Workload, Commits} <- Workloads]);
format_error({failed_faults, Workloads}) ->
    lists:join($\n, [[Workload, ": ", integer_to_list(Failed), " of ", integer_to_list(Runs),
                      " runs have failed"] || {Workload, Failed, Runs} <- Workloads]);
format_error({not_committed, Workloads}) ->
    lists:join($\n, [[Workload, ": its sources had changes that were not committed, or their "
                                "commit is not known: ", Commit]
                     || {Workload, Commit} <- Workloads]);
format_error({several_kinds, Kinds}) ->
    ["results of several kinds of machines: ", lists:join(", ", Kinds)];
format_error({no_baseline, File}) ->
    [File, ": it is no baseline"];
format_error(Reason) ->
    erlmcp_bench_result:format_error(Reason).
