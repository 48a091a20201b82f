-module(erlmcp_bench_prometheus).
-moduledoc """
Encodes metrics in the text exposition format of Prometheus, version 0.0.4. Pure.

Source: Prometheus documentation, "Exposition formats".
""".

-export([content_type/0, text/1, histogram/2, labelled/2, joined/1]).

-export_type([family/0, labels/0, value/0]).

-type labels() :: [{Name :: binary(), Value :: binary()}].
-doc """
A number or a histogram. A histogram has its bounds in ascending order, each with the count of the
values up to that bound. `Sum` is the sum of all values, and `Count` is their number.
""".
-type value() ::
    number()
    | {histogram, [{Bound :: number(), AtMost :: non_neg_integer()}], Sum :: number(),
       Count :: non_neg_integer()}.
-type family() :: #{
    name := binary(), type := counter | gauge | histogram, help := binary(),
    series := [{labels(), value()}]
}.

%% Bounds in milliseconds.
-define(BOUNDS, [0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000,
                 10_000]).

-doc "Returns the media type of the text.".
-spec content_type() -> binary().
content_type() -> ~"text/plain; version=0.0.4; charset=utf-8".

-doc """
Returns a histogram in milliseconds of the times in `Cells`, which are the entries of
`erlmcp_bench_histogram:to_list/1`. Each time counts as the upper end of its entry. `SumUs` is the
sum of all times in microseconds.
""".
-spec histogram(Cells :: [{UpToUs :: number(), Count :: non_neg_integer()}], SumUs :: number()) ->
    value().
histogram(Cells, SumUs) ->
    {Buckets, _} = lists:mapfoldl(
        fun(Bound, {Before, Rest}) ->
            {Below, Above} = lists:splitwith(fun({UpTo, _}) -> UpTo =< Bound * 1_000 end, Rest),
            AtMost = Before + count(Below),
            {{Bound, AtMost}, {AtMost, Above}}
        end, {0, lists:sort(Cells)}, ?BOUNDS),
    {histogram, Buckets, SumUs / 1_000, count(Cells)}.

count(Cells) -> lists:sum([Count || {_, Count} <- Cells]).

-doc "Adds a label to each series of families.".
-spec labelled({Name :: binary(), Value :: binary()}, [family()]) -> [family()].
labelled(Label, Families) ->
    [Family#{series := [{[Label | Labels], Value} || {Labels, Value} <- Series]}
     || #{series := Series} = Family <- Families].

-doc """
Joins families of the same name. The names stay in the order in which they first occur. Families of
the same name must have series with different labels.
""".
-spec joined([family()]) -> [family()].
joined([]) ->
    [];
joined([#{name := Name} = First | _] = Families) ->
    {Same, Others} = lists:partition(fun(#{name := Of}) -> Of =:= Name end, Families),
    [First#{series := lists:append([Series || #{series := Series} <- Same])} | joined(Others)].

-doc "Encodes families of metrics as text.".
-spec text([family()]) -> iodata().
text(Families) ->
    [[["# HELP ", Name, $\s, help(Help), $\n,
       "# TYPE ", Name, $\s, atom_to_binary(Type), $\n]
      | [series(Name, Labels, Value) || {Labels, Value} <- Series]]
     || #{name := Name, type := Type, help := Help, series := Series} <- Families].

series(Name, Labels, {histogram, Buckets, Sum, Count}) ->
    [[[line([Name, "_bucket"], Labels ++ [{~"le", number(Bound)}], AtMost)
       || {Bound, AtMost} <- Buckets],
      line([Name, "_bucket"], Labels ++ [{~"le", ~"+Inf"}], Count)],
     line([Name, "_sum"], Labels, Sum),
     line([Name, "_count"], Labels, Count)];
series(Name, Labels, Value) ->
    line(Name, Labels, Value).

line(Name, [], Value) ->
    [Name, $\s, number(Value), $\n];
line(Name, Labels, Value) ->
    [Name, ${, lists:join($,, [[Label, "=\"", escaped(Of), $"]
                               || {Label, Of} <- Labels]), "} ", number(Value), $\n].

number(Integer) when is_integer(Integer) -> integer_to_binary(Integer);
number(Float) -> float_to_binary(Float, [short]).

%% A quote must be escaped only in a label.
escaped(Text) ->
    binary:replace(help(Text), ~"\"", ~"\\\"", [global]).

help(Text) ->
    binary:replace(binary:replace(Text, ~"\\", ~"\\\\", [global]), ~"\n", ~"\\n", [global]).
