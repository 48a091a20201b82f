-module(erlmcp_bench_peers).
-moduledoc """
The section of `docs/performance.md` that compares erlmcp with the servers of other SDKs: the goals
(`m:erlmcp_bench_goals`), and figures of `bench/peers.sh`. Pure.
""".

-export([section/2, servers/0, is_of_peers/1]).

%% The figures of a server in a workload.
-define(SHOWN, [{~"throughput_msg_per_s", ~"requests/s"}, {~"cpu_us_per_msg", ~"CPU µs/request"},
                {~"latency_p50_us", ~"p50 µs"}, {~"latency_p99_us", ~"p99 µs"},
                {~"refused_percent", ~"refused %"}]).

%% In the order of the page.
-define(WORKLOADS,
        [{~"peers_echo_64", ~"echo of 5 bytes, HTTP/1.1, 64 connections"},
         {~"peers_echo_1000", ~"the same, 1,000 connections"},
         {~"peers_echo_1000_warm", ~"the same, warmed up, from h2load"},
         {~"peers_session_64", ~"echo in 2025-11-25, 64 connections and sessions"},
         {~"peers_list_64", ~"`tools/list` of 20 tools, 64 connections"},
         {~"peers_echo_1kib_64", ~"echo of 1 KiB, 64 connections"},
         {~"peers_sleep_1000", ~"a tool that sleeps 5 ms, 1,000 connections"},
         {~"peers_quick_alone", ~"echo, 1,000 a second on 16 connections"},
         {~"peers_quick_beside_slow",
          ~"the same, while 64 connections call a tool that sleeps 5 ms"},
         {~"peers_tls_64", ~"echo, TLS 1.3, 64 connections"},
         {~"peers_http2_100", ~"echo, HTTP/2 in the clear, 100 connections of 10 streams"},
         {~"peers_stdio_1", ~"echo on stdio, one in flight"},
         {~"peers_stdio_64", ~"echo on stdio, 64 in flight"},
         {~"peers_tcp_1", ~"echo on one TCP connection, one in flight"},
         {~"peers_tcp_64", ~"echo on one TCP connection, 64 in flight"}]).

-doc """
Returns the servers with which erlmcp is compared. Each has its name, as in the field `against` of a
result, and a description with its settings.
""".
-spec servers() -> [{Name :: binary(), Is :: binary()}].
servers() ->
    [{~"rmcp", <<"the Rust SDK 3.9.0: `lto = \"fat\"`, one codegen unit, tokio with a thread a "
                 "core, hyper, JSON answers; on stdio tokio's pipes, since the SDK's own stdio "
                 "has a thread that blocks">>},
     {~"rmcp_mimalloc", ~"the same with mimalloc as its allocator"},
     {~"rmcp_sessionless", ~"rmcp without sessions in the older revisions"},
     {~"go", ~"the Go SDK 1.8.0, JSON answers"},
     {~"go_gogc_off", ~"the same with `GOGC=off` and `GOMEMLIMIT=4GiB`"},
     {~"typescript", <<"the TypeScript SDK 2.4.0 on Node 22: its low-level server, JSON answers, "
                       "`node:cluster` with a process a core (one for sessions and stdio)">>},
     {~"python", <<"the Python SDK 2.3.0: its low-level server, JSON answers, uvicorn with uvloop "
                   "and httptools, a worker a core (one for sessions and stdio)">>},
     {~"nginx", <<"nginx, with `return 200` and the bytes of erlmcp's answer: the limit of the "
                  "machine and the generator">>},
     {~"bare", <<"a process of the runtime for each socket, which sends the same bytes and does "
                 "nothing else: the limit of the runtime">>}].

-doc "Returns `true` if a workload belongs to the section that compares servers.".
-spec is_of_peers(#{binary() => term()}) -> boolean().
is_of_peers(Workload) -> maps:get(~"benchmark", Workload, none) =:= ~"peers".

-doc """
Returns the section for the workloads of a baseline, as Markdown. The sources are those of
`erlmcp_bench_sources:new/2` for these workloads.
""".
-spec section(Workloads :: [#{binary() => term()}], erlmcp_bench_sources:sources()) -> iodata().
section(Workloads, Sources) ->
    Judged = [{Goal, erlmcp_bench_goals:judged(Goal, Workloads)}
              || Goal <- erlmcp_bench_goals:all()],
    [~"### Compared with the SDKs\n\n", summary([Verdict || {_, Verdict} <- Judged]),
     goals(Judged, Sources),
     case lists:filter(fun is_of_peers/1, Workloads) of
         [] -> ~"\nNo server of another SDK was measured in these runs.\n";
         Measured -> [~"\n", method(), ~"\n", measured(Measured, Sources)]
     end].

summary(Verdicts) ->
    [Reached, Missed, Unknown] = [length([found || #{reached := Of} <- Verdicts, Of =:= Is])
                                  || Is <- [true, false, none]],
    io_lib:format("The goals apply with all checks on. Of ~b goals ~b are reached, ~b are not, and "
                  "~b have\nno figure here. `make bench-peers` measures the goals that involve "
                  "other servers.\n\n", [length(Verdicts), Reached, Missed, Unknown]).

goals(Judged, Sources) ->
    [~"| workload | figure | goal | erlmcp | other | ratio | length | source | |\n",
     ~"| --- | --- | --- | ---: | ---: | ---: | --- | ---: | --- |\n",
     [[~"| ", lists:join(~" | ", [What, [$`, Field, $`], goal(Goal), ours(Field, Verdict),
                                  number(Theirs), ratio(Goal, Verdict), source(Of, Sources),
                                  word(Reached)]), ~" |\n"]
      || {#{what := What, field := Field} = Goal,
          #{theirs := Theirs, reached := Reached, 'of' := Of} = Verdict} <- Judged]].

ours(_, #{'of' := none}) -> [];
ours(Field, #{'of' := #{~"figures" := Figures}}) -> with_range(map_get(Field, Figures)).

source(none, _) -> ~" | ";
source(Of, Sources) -> erlmcp_bench_sources:cells(Of, Sources).

goal(#{is := {How, Factor}, beside := Beside}) ->
    Words = case How of
        at_least -> ~"at least ";
        at_most -> ~"at most "
    end,
    [Words, number(Factor),
     case Beside of
         {server, Name} -> [~" × ", Name];
         {ours, #{~"workload_id" := Id}} -> [~" × `", Id, $`];
         none -> []
     end].

ratio(#{beside := none}, _) -> [];
ratio(_, #{ratio := Ratio}) -> number(Ratio).

number(none) -> [];
number(Number) -> erlmcp_bench_text:number(Number).

word(true) -> ~"reached";
word(false) -> ~"**not reached**";
word(none) -> ~"not measured".

%% The figures.

method() ->
    [~"All servers have the same 20 tools and get the same requests from the same generators,\n",
     ~"in turn, in several rounds. The generators are wrk on HTTP/1.1 and TLS, h2load on HTTP/2,\n",
     ~"and a program of ours on stdio and TCP. They share the server's cores. By default\n",
     ~"requests are of 2026-07-28, and each waits for the answer to the one before it.\n\n",
     ~"One answer is checked before its server is measured, and then the status and the size of\n",
     ~"every answer. Counting begins when the connections have been in use for a second. The\n",
     ~"percentiles of wrk cover its whole run, including the start of all connections. Those of\n",
     ~"h2load do not. So h2load also sends on HTTP/1.1 where the goal is a percentile of many\n",
     ~"connections. Requests that a server refused are not counted. A figure whose rounds differ\n",
     ~"by more than two times has no median, but its range.\n\n",
     ~"- erlmcp: `erlmcp serve` unchanged, and over TLS `erlmcp:start_server/1` with a\n",
     ~"  certificate. Its `echo` is marked [quick](tools.md#quick-handlers).\n",
     [[~"- `", Name, ~"`: ", Is, ~"\n"] || {Name, Is} <- servers()]].

measured(Measured, Sources) ->
    Order = [undefined | [Name || {Name, _} <- servers()]],
    [~"| request | server", [[~" | ", Title] || {_, Title} <- ?SHOWN],
     ~" | length | source |\n| --- | ---", [~" | ---:" || _ <- ?SHOWN], ~" | --- | ---: |\n",
     [[~"| ", Label, ~" | ", server(Name),
       [[~" | ", figure(Field, Figures)] || {Field, _} <- ?SHOWN], ~" | ",
       erlmcp_bench_sources:cells(Workload, Sources), ~" |\n"]
      || {Id, Label} <- ?WORKLOADS, Name <- Order,
         #{~"workload_id" := Of, ~"figures" := Figures} = Workload <- Measured, Of =:= Id,
         maps:get(~"against", Workload, undefined) =:= Name]].

server(undefined) -> ~"**erlmcp**";
server(Name) -> Name.

figure(Field, Figures) ->
    case Figures of
        #{Field := Figure} ->
            case erlmcp_bench_goals:has_median(Figure) of
                true -> with_range(Figure);
                false -> range(Figure)
            end;
        #{} ->
            []
    end.

with_range(#{~"median" := Same, ~"min" := Same, ~"max" := Same}) -> number(Same);
with_range(#{~"median" := Median} = Figure) -> [number(Median), $\s, range(Figure)].

range(#{~"min" := Least, ~"max" := Most}) ->
    [$(, number(Least), ~" - ", number(Most), $)].
