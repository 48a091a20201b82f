-module(erlmcp_bench_figures).
-moduledoc """
Makes the figures of a report from the contents of result files. Every figure has at least one file
behind it. Pure.
""".

-export([figures/1]).

-export_type([result/0, figure/0, axis/0, series/0]).

-doc "The name of a result file, and its contents.".
-type result() :: {File :: binary(), Fields :: #{binary() => term()}}.

-doc """
An axis. `format` says how its numbers are written. With `one_of`, a number N stands for one of N
requests, and is written as the percentage of the others: 100 as `99 %`.
""".
-type axis() :: #{label := binary(), scale := linear | log | time, format := number | us | one_of}.

-type series() :: #{label := binary(), dashed := boolean(), points := boolean()}.

-doc """
A figure of a report: a diagram, and the table of its values. `columns` has one list for each
series. The list has a value for each of `xs`, which is `null` if the series has no value there.
`model` is `true` if one of the series is a prediction.
""".
-type figure() :: #{
    id := binary(), title := binary(), caption := iodata(), model := boolean(),
    x := axis(), y := axis(), xs := [number()], series := [series()],
    columns := [[number() | null]],
    table := {Head :: [binary()], Rows :: [[binary() | number() | null]]},
    sources := [result()]}.

%% The most lines in one figure, the most points of a line, and the most rows of a table.
-define(LINES, 6).
-define(POINTS, 600).
-define(TABLE_ROWS, 40).
%% Points in each decade of a distribution.
-define(STEPS, 20).

-define(PERCENTILES, [{~"p50", 2}, {~"p90", 10}, {~"p95", 20}, {~"p99", 100}, {~"p99.9", 1000},
                      {~"p99.99", 10_000}]).

-doc "Returns all figures that the results have data for.".
-spec figures([result()]) -> [figure()].
figures(Results) ->
    %% Results of a sweep have figures of their own.
    Groups = lists:sort(maps:to_list(
        maps:groups_from_list(fun({_, #{~"benchmark" := Benchmark}}) -> Benchmark end,
                              [Result || {_, Fields} = Result <- Results,
                                         not is_map_key(~"sweep", Fields)]))),
    lists:append([lists:append([latency(Group) || Group <- Groups]),
                  lists:append([over_time(~"throughput", ~"Throughput over time",
                                          ~"throughput_msg_per_s", ~"answered a second", Group)
                                || Group <- Groups]),
                  lists:append([over_time(~"memory", ~"Memory over time",
                                          ~"memory_rss_mib_per_node",
                                          ~"resident memory of the server, MiB", Group)
                                || Group <- Groups]),
                  lists:append([over_time(~"backlog", ~"Backlog over time", ~"backlog_requests",
                                          ~"requests that were due and had not ended", Group)
                                || Group <- Groups]),
                  lists:append([errors(Group) || Group <- Groups]),
                  sweep(~"scaling_connections", ~"connections", ~"connections", log, Results),
                  sweep(~"scaling_payload", ~"payload_bytes", ~"bytes of a request's payload", log,
                        Results),
                  overload(Results),
                  capacity(Results)]).

%% Distributions.

latency({Benchmark, Results}) ->
    With = [{Result, Buckets} || {_, Fields} = Result <- Results,
                                 [_ | _] = Buckets <- [buckets(Fields)]],
    Labels = labels([Result || {Result, _} <- With]),
    parts({~"latency", Benchmark}, ~"Latency", fun distribution/1,
          [{maps:get(File, Labels), Result, Buckets} || {{File, _} = Result, Buckets} <- With]).

buckets(#{~"latency_histogram_us" := Buckets}) when is_list(Buckets) ->
    lists:sort([{UpTo, Count} || [UpTo, Count] <- Buckets, is_number(UpTo), UpTo > 0,
                                 is_integer(Count), Count > 0]);
buckets(#{}) ->
    [].

distribution(Lines) ->
    Counts = [lists:sum([Count || {_, Count} <- Buckets]) || {_, _, Buckets} <- Lines],
    Decades = max(1, ceil(math:log10(lists:max(Counts)))),
    Xs = [math:pow(10, Step / ?STEPS) || Step <- lists:seq(0, Decades * ?STEPS)],
    #{caption => [~"How long requests took: the value at 99 % is the time that one of a hundred ",
                  ~"requests exceeded. A line ends where there are too few requests."],
      x => #{label => ~"requests that were as fast", scale => log, format => one_of},
      y => #{label => ~"latency", scale => log, format => us},
      xs => Xs,
      series => [#{label => Label, dashed => false, points => false} || {Label, _, _} <- Lines],
      columns => [slower(Xs, Buckets) || {_, _, Buckets} <- Lines],
      table => {[~"", ~"requests" | [<<Name/binary, " µs"/utf8>> || {Name, _} <- ?PERCENTILES]]
                ++ [~"max µs"],
                [[Label, Count | slower([OneOf || {_, OneOf} <- ?PERCENTILES], Buckets)]
                 ++ [maps:get(~"latency_max_us", Fields, element(1, lists:last(Buckets)))]
                 || {{Label, {_, Fields}, Buckets}, Count} <- lists:zip(Lines, Counts)]},
      sources => [Result || {_, Result, _} <- Lines]}.

%% The time that one of X requests exceeds, for each X, and null where there are fewer than X.
slower(Xs, Buckets) ->
    Total = lists:sum([Count || {_, Count} <- Buckets]),
    slower(Xs, Buckets, 0, Total).

slower([X | Xs], _, _, Total) when X > Total ->
    [null | [null || _ <- Xs]];
slower([X | Xs] = All, [{UpTo, Count} | Rest] = Buckets, Below, Total) ->
    case Below + Count >= max(1, ceil(Total * (1 - 1 / X))) of
        true -> [UpTo | slower(Xs, Buckets, Below, Total)];
        false -> slower(All, Rest, Below + Count, Total)
    end;
slower([], _, _, _) ->
    [].

%% Time.

over_time(Id, Title, Field, Label, {Benchmark, Results}) ->
    With = [{Result, Points} || {_, #{~"seconds" := Samples}} = Result <- Results,
                                [_, _ | _] = Points <- [points(~"at_s", Field, Samples)]],
    Labels = labels([Result || {Result, _} <- With]),
    parts({Id, Benchmark}, Title, fun(Lines) -> course(Label, Lines) end,
          [{maps:get(File, Labels), Result, thinned(Points)}
           || {{File, _} = Result, Points} <- With]).

%% The kinds of errors of each result, the most frequent ones first.
errors({Benchmark, Results}) ->
    With = [Result || {_, #{~"windows" := [_ | _]}} = Result <- Results],
    Labels = labels(With),
    lists:append(
        [parts({<<"errors-", (integer_to_binary(Nth))/binary>>, Benchmark},
               <<"Errors over time, ", (maps:get(File, Labels))/binary>>, fun of_kinds/1,
               [{Kind, Result, [{At, number_of(Kind, Counts)}
                                || #{~"at_s" := At, ~"errors_count" := #{} = Counts} <- Windows,
                                   is_number(At)]}
                || {_, Kind} <- lists:reverse(lists:sort(kinds(Windows)))])
         || {Nth, {File, #{~"windows" := Windows}} = Result} <- lists:enumerate(With)]).

%% A short run is a single point.
of_kinds(Lines) ->
    #{series := Series, sources := [Source | _]} = Figure = course(~"errors", Lines),
    Figure#{series := [Line#{points := true} || Line <- Series], sources := [Source]}.

kinds(Windows) ->
    All = [Kind || #{~"errors_count" := #{} = Counts} <- Windows, Kind <- maps:keys(Counts)],
    [{lists:sum([number_of(Kind, Counts) || #{~"errors_count" := #{} = Counts} <- Windows]), Kind}
     || Kind <- lists:usort(All)].

number_of(Kind, Counts) ->
    case Counts of
        #{Kind := Count} when is_number(Count) -> Count;
        #{} -> 0
    end.

points(X, Y, Samples) when is_list(Samples) ->
    [{At, Value} || #{X := At, Y := Value} <- Samples, is_number(At), is_number(Value)];
points(_, _, _) ->
    [].

course(Label, Lines) ->
    {Xs, Columns} = aligned([Points || {_, _, Points} <- Lines]),
    Names = [Name || {Name, _, _} <- Lines],
    #{caption => [~"Each point covers the time since the one before. Drag to zoom in, ",
                  ~"double-click to zoom out."],
      x => #{label => ~"seconds", scale => time, format => number},
      y => #{label => Label, scale => linear, format => number},
      xs => Xs,
      series => [#{label => Name, dashed => false, points => false} || Name <- Names],
      columns => Columns,
      table => {[~"s" | Names], every(?TABLE_ROWS, rows(Xs, Columns))},
      sources => [Result || {_, Result, _} <- Lines]}.

%% The means of neighbours, if there are too many points.
thinned(Points) ->
    case ceil(length(Points) / ?POINTS) of
        1 -> Points;
        Together -> means(Points, Together)
    end.

means([], _) ->
    [];
means(Points, Together) ->
    {First, Rest} = lists:split(min(Together, length(Points)), Points),
    {At, _} = lists:last(First),
    [{At, mean([Value || {_, Value} <- First])} | means(Rest, Together)].

%% Sweeps: one thing changes from result to result.

sweep(Sweep, Field, Label, Scale, Results) ->
    Of = [Result || {_, #{~"sweep" := Name, Field := _}} = Result <- Results, Name =:= Sweep],
    lists:append([swept(Sweep, Field, Label, Scale, Y, Format, Title, What, Of)
                  || {Y, Format, Title, What} <- [
                        {~"throughput_msg_per_s", number, ~"Throughput", ~"answered a second"},
                        {~"latency_p99_us", us, ~"Slowest hundredth", ~"p99 latency"}]]).

swept(Sweep, Field, Label, Scale, Y, Format, Title, What, Of) ->
    Lines = by_transport(Field, Y, Of),
    [begin
         {Xs, Columns} = aligned([Points || {_, Points} <- Lines]),
         #{id => <<Sweep/binary, "_", Y/binary>>, title => <<Title/binary, " by ", Label/binary>>,
           caption => ~"Each point is a separate run. Several runs are shown as their mean.",
           model => false,
           x => #{label => Label, scale => Scale, format => number},
           y => #{label => What, scale => linear, format => Format},
           xs => Xs,
           series => [#{label => Name, dashed => false, points => true} || {Name, _} <- Lines],
           columns => Columns,
           table => {[Label | [Name || {Name, _} <- Lines]], rows(Xs, Columns)},
           sources => Of}
     end || lists:any(fun({_, Points}) -> several(Points) end, Lines)].

by_transport(Field, Y, Results) ->
    Grouped = maps:groups_from_list(fun({Transport, _}) -> Transport end,
                                    fun({_, Point}) -> Point end,
                                    [{maps:get(~"transport", Fields), Point}
                                     || {_, Fields} <- Results,
                                        Point <- points(Field, Y, [Fields])]),
    lists:sort(maps:to_list(Grouped)).

several(Points) -> length(lists:usort([X || {X, _} <- Points])) > 1.

overload(Results) ->
    Offered = ~"offered_msg_per_s",
    Of = [Result || {_, #{~"sweep" := ~"overload", Offered := _}} = Result <- Results],
    Lines = [{Name, points(Offered, Field, [Fields || {_, Fields} <- Of])}
             || {Name, Field} <- [{~"answered", ~"throughput_msg_per_s"},
                                  {~"refused", ~"refused_msg_per_s"},
                                  {~"failed", ~"failed_msg_per_s"}]],
    [begin
         {Xs, Columns} = aligned([Points || {_, Points} <- Lines]),
         #{id => ~"overload", title => ~"Overload: offered against answered",
           caption => [~"The offered requests, and their outcomes. On the dashed line all ",
                       ~"requests are answered. A request that found no free connection in its ",
                       ~"time counts as failed."],
           model => false,
           x => #{label => ~"offered a second", scale => linear, format => number},
           y => #{label => ~"a second", scale => linear, format => number},
           xs => Xs,
           series => [#{label => Name, dashed => false, points => true} || {Name, _} <- Lines]
                     ++ [#{label => ~"offered", dashed => true, points => false}],
           columns => Columns ++ [Xs],
           table => {[~"offered" | [Name || {Name, _} <- Lines]], rows(Xs, Columns)},
           sources => Of}
     end || several(element(2, hd(Lines)))].

%% Models.

capacity(Results) ->
    [begin
         #{id := Id, parts := Axis, points := Points, title := Title, sources := Sources} = Model,
         Curve = curve(Model),
         {Xs, Columns} = aligned([Points | [Line || {_, Line} <- Curve]]),
         Names = [erlmcp_bench_capacity:origin(Model) | [Name || {Name, _} <- Curve]],
         #{id => Id, title => Title, caption => erlmcp_bench_capacity:describe(Model),
           model => Curve =/= [],
           x => #{label => Axis, scale => linear, format => number},
           y => #{label => ~"answered a second", scale => linear, format => number},
           xs => Xs,
           series => [#{label => hd(Names), dashed => false, points => true}
                      | [#{label => Name, dashed => true, points => false} || Name <- tl(Names)]],
           columns => Columns,
           table => {[Axis | Names], rows(Xs, Columns)},
           sources => Sources}
     end || Model <- erlmcp_bench_capacity:models(Results)].

%% The curve ends at twice the measured range. It has at most ?POINTS points, since the range comes
%% from files, which may be hostile.
curve(#{fit := {ok, Fit}, points := Points}) ->
    Most = 2 * lists:max([N || {N, _} <- Points]),
    Step = ceil(Most / ?POINTS),
    [{~"model", [{N, erlmcp_bench_usl:throughput(Fit, N)} || N <- lists:seq(1, Most, Step)]}];
curve(#{fit := {error, _}}) ->
    [].

%% Common parts of all figures.

%% Lines are split over several figures, so that they can be distinguished.
parts({Id, Benchmark}, Title, Figure, Lines) ->
    Parts = ceil(length(Lines) / ?LINES),
    [(Figure(Part))#{
         id => <<Id/binary, "-", Benchmark/binary, "-", (integer_to_binary(Nth))/binary>>,
         title => numbered(<<Title/binary, ": ", Benchmark/binary>>, Nth, Parts), model => false}
     || {Nth, Part} <- lists:enumerate(split(Lines))].

split([]) -> [];
split(Lines) ->
    {Part, Rest} = lists:split(min(?LINES, length(Lines)), Lines),
    [Part | split(Rest)].

numbered(Title, _, 1) -> Title;
numbered(Title, Nth, Parts) ->
    <<Title/binary, " (", (integer_to_binary(Nth))/binary, " of ",
                                (integer_to_binary(Parts))/binary, ")">>.

%% The label of each file: the workload, then with its transport, then the file's name, until it is
%% unique.
labels(Results) ->
    Forms = [fun(_, #{~"workload_id" := Id}) -> Id end,
             fun(_, #{~"workload_id" := Id} = Fields) ->
                 <<Id/binary, ", ", (maps:get(~"transport", Fields, ~""))/binary>>
             end,
             fun(File, _) -> File end],
    maps:from_list([{File, label(File, Fields, Forms, Results)} || {File, Fields} <- Results]).

label(File, Fields, [Form | Forms], Results) ->
    Label = Form(File, Fields),
    case [Other || {Other, Of} <- Results, Form(Other, Of) =:= Label] of
        [_, _ | _] when Forms =/= [] -> label(File, Fields, Forms, Results);
        _ -> Label
    end.

%% The values of all lines at the X of any, null where a line has none.
aligned(Lines) ->
    Maps = [maps:map(fun(_, Values) -> mean(Values) end,
                     maps:groups_from_list(fun({X, _}) -> X end, fun({_, Y}) -> Y end, Points))
            || Points <- Lines],
    Xs = lists:usort(lists:append([maps:keys(Map) || Map <- Maps])),
    {Xs, [[maps:get(X, Map, null) || X <- Xs] || Map <- Maps]}.

mean([Value]) -> Value;
mean(Values) -> lists:sum(Values) / length(Values).

rows(Xs, Columns) ->
    [[X | Values] || {X, Values} <- lists:zip(Xs, transposed(Columns, Xs))].

transposed([], Xs) -> [[] || _ <- Xs];
transposed([Column | Columns], Xs) ->
    [[Value | Values] || {Value, Values} <- lists:zip(Column, transposed(Columns, Xs))].

%% At most `Most` rows, evenly spaced, and the last one.
every(Most, Rows) ->
    Step = max(1, ceil(length(Rows) / Most)),
    [Row || {Nth, Row} <- lists:enumerate(0, Rows),
            Nth rem Step =:= 0 orelse Nth =:= length(Rows) - 1].
