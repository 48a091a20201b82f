-module(erlmcp_bench_fleet).
-moduledoc """
Runs several servers on this machine, each in a node of its own. All of them are loaded at the same
time, as if they were one server.
""".

-export([with/3, loaded/3, address/2]).

-export_type([fleet/0]).

-type fleet() :: [erlmcp_bench_target:target(), ...].

-doc """
Starts `Count` servers in nodes with the emulator flags `Flags`, calls `Function` with them, and
stops them afterwards, even if `Function` fails. The error is that of a server that could not start.
""".
-spec with(Count :: pos_integer(), Flags :: [string()], Function :: fun((fleet()) -> Value)) ->
    {ok, Value} | {error, term()}.
with(Count, Flags, Function) ->
    case started(Count, Flags, []) of
        {ok, Fleet} ->
            try
                {ok, Function(Fleet)}
            after
                lists:foreach(fun erlmcp_bench_target:stop/1, Fleet)
            end;
        {error, Reason} ->
            {error, Reason}
    end.

started(0, _, Fleet) ->
    {ok, Fleet};
started(Count, Flags, Fleet) ->
    case erlmcp_bench_target:start(#{flags => Flags}) of
        {ok, Target} ->
            started(Count - 1, Flags, [Target | Fleet]);
        {error, Reason} ->
            lists:foreach(fun erlmcp_bench_target:stop/1, Fleet),
            {error, Reason}
    end.

-doc """
Runs the load `Plan` (`t:erlmcp_load:plan/0` without its target) on each server, all at the same
time, and returns one report for all. Counts, bytes and the CPU time of servers are sums, and the
histograms of latencies are merged. The resident memory is the mean of the servers. The duration and
the generator's CPU time are the longest of all reports. For several servers, the other members of a
report are left out. The error is that of a load that could not start.
""".
-spec loaded(fleet(), http1 | tcp, Plan :: map()) -> {ok, Report :: map()} | {error, term()}.
loaded(Fleet, Transport, Plan) ->
    Loads = [erlmcp_load:start(Plan#{target => address(Target, Transport),
                                     server_os_pid => erlmcp_bench_target:os_pid(Target)})
             || Target <- Fleet],
    Reports = [erlmcp_load:await(Load) || {ok, Load} <- Loads],
    case [Reason || {error, Reason} <- Loads] of
        [] -> {ok, together(Reports)};
        [Reason | _] -> {error, Reason}
    end.

-doc "Returns the target with which a load reaches a server over a transport.".
-spec address(erlmcp_bench_target:target(), http1 | tcp) -> erlmcp_load_target:target().
address(Target, http1) ->
    {http, erlmcp_bench_target:url(Target)};
address(Target, tcp) ->
    {Ip, Port} = erlmcp_bench_target:address(tcp, Target),
    {tcp, Ip, Port}.

together([Report]) ->
    Report;
together(Reports) ->
    Of = fun(Key) -> [Value || #{Key := Value} <- Reports, is_number(Value)] end,
    Sums = #{Key => lists:sum(Of(Key))
             || Key <- [sent, answered, wrong, unsent, opened, open_failed, bytes_in, bytes_out,
                        server_cpu_us]},
    Counted = #{Key => added([Counts || #{Key := Counts} <- Reports]) || Key <- [refused, failed]},
    %% The loads ran at the same time, in the same generator.
    maps:merge(maps:merge(Sums, Counted),
               #{duration_s => lists:max(Of(duration_s)),
                 generator_cpu_us => lists:max([0 | Of(generator_cpu_us)]),
                 server_rss_bytes => lists:sum(Of(server_rss_bytes)) / length(Reports),
                 latency => erlmcp_bench_histogram:merge([Latency
                                                          || #{latency := Latency} <- Reports])}).

added(Maps) ->
    lists:foldl(fun(Counts, Others) ->
                    maps:merge_with(fun(_, One, Other) -> One + Other end, Counts, Others)
                end, #{}, Maps).
