-module(erlmcp_bench_goals).
-moduledoc """
The performance goals as data, and whether the workloads of a baseline reach them. A goal is
relative to another server in the same run, relative to another figure of erlmcp, or a number. Pure.
""".

-export([all/0, judged/2, has_median/1]).

-export_type([goal/0, verdict/0]).

-doc """
A goal, named `what`, for the figure `field`. `match` selects workloads of erlmcp, of which the best
counts. `is` has the bound: a number, or a factor by which the figure of `beside` is multiplied.
`beside` is another server in the same workload, another workload of erlmcp, or `none` if the bound
is a number.
""".
-type goal() :: #{
    what := binary(), match := match(), field := binary(),
    is := {at_least | at_most, number()},
    beside := {server, binary()} | {ours, match()} | none}.
-type match() :: #{binary() => binary() | boolean()}.

-doc """
The verdict on a goal. `ratio` is `ours` over `theirs`. If the goal is a plain number, `theirs` is
`none`, and `ratio` is `ours`. If a figure that the goal needs was not measured, this figure,
`ratio` and `reached` are `none`. `of` is the workload of our figure.
""".
-type verdict() :: #{ours := number() | none, theirs := number() | none,
                     ratio := float() | none, reached := boolean() | none,
                     'of' := #{binary() => term()} | none}.

-define(RATE, ~"throughput_msg_per_s").
-define(CPU, ~"cpu_us_per_msg").
-define(P50, ~"latency_p50_us").
-define(P95, ~"latency_p95_us").
-define(P99, ~"latency_p99_us").
-define(KIB, 1_024).
-define(REFUSED_PERCENT, 1).

-doc "Returns every performance goal.".
-spec all() -> [goal(), ...].
all() -> beside_servers() ++ of_lines() ++ of_numbers() ++ of_state() ++ of_growth().

beside_servers() ->
    Echo = ~"echo, 64 connections",
    Many = ~"echo, 1,000 connections",
    Sessions = ~"echo in a session, 64 connections",
    List = ~"`tools/list` of 20 tools",
    [server(Echo, ~"peers_echo_64", ?RATE, {at_least, 1.3}, ~"rmcp"),
     server(Echo, ~"peers_echo_64", ?CPU, {at_most, 0.75}, ~"rmcp"),
     server(Echo, ~"peers_echo_64", ?RATE, {at_least, 1}, ~"rmcp_mimalloc"),
     server(Echo, ~"peers_echo_64", ?RATE, {at_least, 0.4}, ~"nginx"),
     server(Many, ~"peers_echo_1000", ?RATE, {at_least, 1.8}, ~"rmcp"),
     server(Many, ~"peers_echo_1000_warm", ?P99, {at_most, 0.2}, ~"rmcp"),
     server(Sessions, ~"peers_session_64", ?RATE, {at_least, 1.5}, ~"rmcp"),
     server(Sessions, ~"peers_session_64", ?RATE, {at_least, 1}, ~"rmcp_sessionless"),
     server(List, ~"peers_list_64", ?RATE, {at_least, 2}, ~"rmcp"),
     server(List, ~"peers_list_64", ?RATE, {at_least, 0.6}, ~"nginx"),
     server(~"echo of 1 KiB", ~"peers_echo_1kib_64", ?RATE, {at_least, 1.2}, ~"rmcp"),
     server(~"a tool that sleeps 5 ms, 1,000 connections", ~"peers_sleep_1000", ?RATE,
            {at_least, 1.2}, ~"rmcp"),
     ours(~"quick calls next to slow ones", ~"peers_quick_beside_slow", ?P99, {at_most, 2},
          ~"peers_quick_alone"),
     server(~"HTTP/2, 100 connections of 10 streams", ~"peers_http2_100", ?RATE, {at_least, 0.4},
            ~"nginx"),
     ours(~"TLS 1.3, 64 connections", ~"peers_tls_64", ?RATE, {at_least, 0.6},
          ~"peers_echo_64")].

of_lines() ->
    [server(~"stdio, 64 in flight", ~"peers_stdio_64", ?RATE, {at_least, 1}, ~"rmcp"),
     server(~"stdio, one in flight", ~"peers_stdio_1", ?P50, {at_most, 1}, ~"rmcp")].

of_numbers() ->
    [number(Id, #{~"workload_id" => Id}, Field, Is)
     || {Id, Field, Is} <- [{~"tcp_sustained_10k_1kib", ?RATE, {at_least, 100_000}},
                            {~"tcp_sustained_10k_1kib", ?P99, {at_most, 15_800}},
                            {~"http_sustained_5k_1kib", ?RATE, {at_least, 25_000}},
                            {~"http_sustained_5k_1kib", ?P99, {at_most, 32_000}}]]
    ++ [number(~"stress, uncapped", #{~"benchmark" => ~"stress"}, ?RATE, {at_least, 372_000}),
        number(~"stress, 100,000 requests a second", #{~"workload_id" => ~"stress_30s_100k_ops"},
               ?P99, {at_most, 150})]
    %% The goals are twice as good as the marks.
    ++ [number(<<"core operations: ", Of/binary>>, #{~"component" => Of}, Field,
               case erlmcp_bench_marks:better(Field) of
                   more -> {at_least, 2 * Mark};
                   less -> {at_most, Mark / 2}
               end)
        || {Component, Marks} <- erlmcp_bench_workloads:components(),
           Of <- [atom_to_binary(Component)], Of =/= ~"encode", {Field, Mark} <- Marks]
    ++ [number(~"core operations: small replies, encoded", #{~"component" => ~"encode_reply"},
               ?RATE, {at_least, 3_700_000}),
        number(~"`hundredfold`, scaled", #{~"workload_id" => ~"hundredfold"}, ?RATE,
               {at_least, 62_500}),
        number(~"`hundredfold`, scaled", #{~"workload_id" => ~"hundredfold"}, ?P95,
               {at_most, 50_000})].

of_state() ->
    %% A shortened run opens fewer connections, and proves nothing.
    [number(~"held connections, of those that descriptors allow",
            #{~"workload_id" => ~"connections_http", ~"shortened" => false},
            ~"held_connections_percent", {at_least, 100})]
    ++ [number(What, #{~"workload_id" => Id}, Field, Is)
     || {What, Id, Field, Is} <-
            [{~"opened connections", ~"connections_http", ~"opened_connections_per_s",
              {at_least, 15_000}},
             {~"an idle connection", ~"memory_connection_http", ~"memory_state_bytes_per_item",
              {at_most, 6 * ?KIB}},
             {~"an idle connection", ~"memory_connection_http", ~"memory_rss_bytes_per_item",
              {at_most, 12 * ?KIB}},
             {~"an idle session", ~"memory_session", ~"memory_state_bytes_per_item",
              {at_most, 3 * ?KIB}},
             {~"an idle `subscriptions/listen`", ~"memory_stream",
              ~"memory_state_bytes_per_item", {at_most, 10 * ?KIB}},
             {~"an idle session with its GET stream", ~"memory_session_stream",
              ~"memory_rss_bytes_per_item", {at_most, 12 * ?KIB}}]].

of_growth() ->
    [number(<<"ten times the ", What/binary>>, #{~"workload_id" => <<"growth_", What/binary>>},
            ~"growth_cpu_ratio", {at_most, 1.1})
     || What <- [~"tools", ~"sessions", ~"connections"]]
    ++ [number(~"the checks, of a request's CPU time", #{~"workload_id" => ~"stages_http1_echo"},
               ~"checks_percent", {at_most, 25})].

server(What, Id, Field, Is, Name) ->
    #{what => What, match => #{~"workload_id" => Id}, field => Field, is => Is,
      beside => {server, Name}}.

ours(What, Id, Field, Is, Other) ->
    #{what => What, match => #{~"workload_id" => Id}, field => Field, is => Is,
      beside => {ours, #{~"workload_id" => Other}}}.

number(What, Match, Field, Is) ->
    #{what => What, match => Match, field => Field, is => Is, beside => none}.

-doc """
Judges a goal by those of `Workloads` that were not shortened. The goal is not reached if more than
one percent of erlmcp's answers were refusals, or a run of erlmcp's workload has failed.

The figure of a workload is the median of its runs. If the runs of another server differ too much
for a median (`has_median/1`), the run that is hardest to beat counts instead.
""".
-spec judged(goal(), Workloads :: [#{binary() => term()}]) -> verdict().
judged(#{match := Match, field := Field, is := {How, Factor}, beside := Beside}, Given) ->
    Workloads = [Workload || Workload <- Given, not erlmcp_bench_sources:is_shortened(Workload)],
    {Ours, Of} = best(How, [{median(Field, Workload), Workload}
                            || Workload <- measured(Match, none, Field, Workloads)]),
    {Theirs, _} = case Beside of
        {server, Name} ->
            best(How, [{hardest(How, Field, Workload), Workload}
                       || Workload <- measured(Match, Name, Field, Workloads)]);
        {ours, Other} ->
            best(How, [{median(Field, Workload), Workload}
                       || Workload <- measured(Other, none, Field, Workloads)]);
        none ->
            {none, none}
    end,
    Refused = lists:max([0 | [median(~"refused_percent", Workload)
                              || Workload <- measured(Match, none, ~"refused_percent",
                                                      Workloads)]]),
    Kept = Refused =< ?REFUSED_PERCENT
        andalso not (is_map(Of) andalso erlmcp_bench_sources:has_failed(Of)),
    Ratio = case Beside of
        none -> ratio(Ours, 1);
        _ -> ratio(Ours, Theirs)
    end,
    #{ours => Ours, theirs => Theirs, ratio => Ratio, 'of' => Of,
      reached => reached(How, Factor, Ratio, Kept)}.

measured(Match, Server, Field, Workloads) ->
    [Workload || #{~"figures" := #{Field := #{~"median" := _}}} = Workload <- Workloads,
                 maps:with(maps:keys(Match), Workload) =:= Match,
                 maps:get(~"against", Workload, none) =:= Server].

best(_, []) -> {none, none};
best(at_least, Measured) -> lists:last(lists:sort(fun lower/2, Measured));
best(at_most, Measured) -> hd(lists:sort(fun lower/2, Measured)).

lower({A, _}, {B, _}) -> A =< B.

median(Field, #{~"figures" := Figures}) ->
    #{Field := #{~"median" := Median}} = Figures,
    Median.

hardest(How, Field, #{~"figures" := Figures} = Workload) ->
    #{Field := Figure} = Figures,
    case {has_median(Figure), How, Figure} of
        {true, _, _} -> median(Field, Workload);
        {false, at_least, #{~"max" := Most}} -> Most;
        {false, at_most, #{~"min" := Least}} -> Least
    end.

-doc "Returns `true` if the highest run of a figure is at most twice the lowest.".
-spec has_median(#{binary() => term()}) -> boolean().
has_median(#{~"min" := Least, ~"max" := Most}) -> Most =< 2 * Least.

ratio(Ours, Theirs) when Ours =:= none; Theirs =:= none; Theirs =< 0 -> none;
ratio(Ours, Theirs) -> Ours / Theirs.

reached(_, _, none, _) -> none;
reached(_, _, _, false) -> false;
reached(at_least, Factor, Ratio, _) -> Ratio >= Factor;
reached(at_most, Factor, Ratio, _) -> Ratio =< Factor.
