-module(erlmcp_bench_network_real).
-moduledoc """
Measures a server in an operating system process of its own, under a load over TCP, HTTP or standard
streams (`m:erlmcp_load`). It measures requests and connections a second, latencies, and the cost of
a connection. The workloads are those of `m:erlmcp_bench_workloads`. The option `against` measures
the server of a URL instead, which must have the tool `echo`. With that option, a workload that is
not over HTTP fails with `{no_server, {not_over_http, Id}}`.

If the machine carries fewer connections than a workload wants (`wanted_connections` of the result),
the workload gets the most that is possible. `bounded_by` of the result then names the limit.
""".

-behaviour(erlmcp_bench_run).

-export([run_workload/1, run_workload/2, run_all/0]).
-export([measured/2]).

%% The warm-up that measures the server's capacity: the most milliseconds, its part of the duration,
%% and the fewest milliseconds.
-define(FINDING_OUT, #{most_ms => 20_000, part => 3, least_ms => 1_000}).
%% Seconds of warm-up, at most and as a part of the measured time.
-define(WARM, 5).
-define(WARM_PART, 10).
%% Seconds in which each held connection sends once, and the fewest requests a second.
-define(ASKS, 60).
-define(LEAST, 10).
-define(TIMEOUT_MS, 30_000).
%% Milliseconds within which at least one request is sent, even on a busy machine.
-define(SHORT, 10_000).
%% The limits of ports and processes of the server's node, higher than the number of connections on
%% any machine.
-define(FLAGS, ["+Q", "262144", "+P", "1048576"]).
-define(MIB, 1_048_576).
%% Milliseconds between two samples of the node's memory.
-define(SAMPLE_MS, 1_000).

-doc "Runs a workload, given as its name or as a map with its `id` and changed members.".
-spec run_workload(binary() | atom() | map()) -> erlmcp_bench_run:outcome().
run_workload(Workload) -> run_workload(Workload, #{}).

-doc "Runs a workload with options. The workload is given as `run_workload/1` takes it.".
-spec run_workload(binary() | atom() | map(), erlmcp_bench_run:options()) ->
    erlmcp_bench_run:outcome().
run_workload(Workload, Options) ->
    erlmcp_bench_run:workload(network_real, Workload, Options).

-doc "Runs every workload, which takes about an hour.".
-spec run_all() -> erlmcp_bench_run:outcome().
run_all() -> erlmcp_bench_run:all(network_real, #{}).

-doc false.
-spec measured(erlmcp_bench_workloads:workload(), erlmcp_bench_run:options()) ->
    erlmcp_bench_run:measured().
measured(#{id := Id, connections := Own} = Workload, Options) ->
    Wanted = maps:get(connections, Options, Own),
    case target(Workload, Wanted, Options) of
        {ok, Target, Facts} ->
            Room = erlmcp_bench_room:for(Wanted, erlmcp_machine:facts("/"), Facts),
            {Seconds, Shortened} = erlmcp_bench_run:seconds(Workload, Options),
            Plan = plan(Workload, Target, Room#{duration_s => Seconds}),
            Outcome = shaped(Workload, Plan, Target, erlmcp_bench_run:on_part(Options)),
            ok = stop(Target),
            Base = (base(Workload, Target, Room, Options))#{
                shortened => Shortened orelse Wanted < Own, wanted_connections => Wanted},
            fields(Outcome, Base, {Id, Options});
        {error, Reason} ->
            {[], [{Id, {no_server, Reason}}]}
    end.

%% The target: the server of a URL, a program for stdio, or a server of our own.

target(#{transport := stdio, id := Id}, _, #{against := _}) ->
    {error, {not_over_http, Id}};
target(#{transport := Transport, id := Id}, _, #{against := Url}) ->
    case lists:member(Transport, [http1, http2]) of
        true -> {ok, #{address => {http, Url}}, none};
        false -> {error, {not_over_http, Id}}
    end;
target(#{transport := stdio}, _, _) ->
    {ok, #{address => {stdio, erlmcp_bench_program:words()}}, none};
target(#{transport := Transport}, Wanted, Options) ->
    Listener = case Transport of
        tcp -> tcp;
        _ -> http
    end,
    Limits = #{connections => Wanted + 1_000, in_flight => 2 * Wanted + 10_000,
               queue => Wanted + 1_000, queue_per_principal => Wanted + 1_000},
    Server = erlmcp_bench_run:server(#{limits => Limits, listen => [{Listener, #{port => 0}}]},
                                     Options),
    maybe
        {ok, Target} ?= erlmcp_bench_target:start(#{server => Server, flags => ?FLAGS}),
        Address = case Transport of
            tcp ->
                {Ip, Port} = erlmcp_bench_target:address(tcp, Target),
                {tcp, Ip, Port};
            _ ->
                {http, erlmcp_bench_target:url(Target)}
        end,
        {ok, #{address => Address, node => Target, os_pid => erlmcp_bench_target:os_pid(Target)},
         erlmcp_bench_target:call(Target, erlmcp_machine, facts, ["/"])}
    end.

stop(#{node := Target}) -> erlmcp_bench_target:stop(Target);
stop(_) -> ok.

plan(#{transport := Transport, payload_bytes := Bytes}, #{address := Address} = Target,
     #{connections := Connections, duration_s := Seconds}) ->
    Plan = #{target => Address, era => stateless, payload_bytes => Bytes,
             connections => Connections, loop => {closed, 1},
             duration_ms => max(1, round(Seconds * 1_000)),
             warmup_ms => round(min(?WARM, Seconds / ?WARM_PART) * 1_000),
             timeout_ms => ?TIMEOUT_MS},
    maps:merge(maps:merge(Plan, protocol(Transport)),
               #{server_os_pid => OsPid || #{os_pid := OsPid} <- [Target]}).

protocol(http1) -> #{protocol => http1};
protocol(http2) -> #{protocol => http2};
protocol(_) -> #{}.

%% The loads of each shape.

shaped(#{shape := burst}, Plan, Target, OnPart) ->
    loaded(Plan, Target, OnPart);
shaped(#{shape := sustained, load_percent := Percent}, Plan, Target, OnPart) ->
    #{most_ms := Longest, part := Part, least_ms := Least} = ?FINDING_OUT,
    #{duration_ms := Duration} = Plan,
    Sustained = Plan#{loop := {open, {percent, Percent}, poisson},
                      warmup_ms := min(Longest, max(Least, Duration div Part))},
    maybe
        {ok, Fields, #{carried_per_s := Carried, offered_per_s := Offered} = Report} ?=
            loaded(Sustained, Target, OnPart),
        {ok, Fields#{carried_msg_per_s => Carried, offered_msg_per_s => Offered}, Report}
    end;
shaped(#{shape := held}, #{connections := Connections} = Plan, Target, OnPart) ->
    Rate = max(?LEAST, Connections / ?ASKS),
    held(Connections, loaded(Plan#{loop := {open, Rate, even}}, Target, OnPart));
shaped(#{shape := opened}, #{connections := Connections} = Plan, Target, OnPart) ->
    #{duration_ms := Duration} = Plan,
    Rate = max(?LEAST, Connections * 1_000 / Duration),
    opened(held(Connections,
                loaded(Plan#{loop := {open, Rate, even}, warmup_ms := 0}, Target, OnPart))).

%% The percentage is of the connections that there is room for.
held(Room, {ok, Fields, #{opened := Opened, open_failed := Failed, lost := Lost} = Report}) ->
    Held = max(0, Opened - Lost),
    {ok, Fields#{held_connections => Held, held_connections_percent => 100 * Held / Room,
                 open_failed_count => Failed}, Report};
held(_, {error, _} = Error) ->
    Error.

%% The cost of opening.
opened({ok, Fields, #{opened := Opened} = Report}) ->
    Each = #{Name => Us / max(1, Opened)
             || {Key, Name} <- [{opening_server_cpu_us, opening_cpu_us_per_conn},
                                {opening_generator_cpu_us, opening_generator_cpu_us_per_conn}],
                #{Key := Us} <- [Report], Us > 0},
    {ok, maps:merge(Fields, Each), Report};
opened({error, _} = Error) ->
    Error.

loaded(#{duration_ms := Duration} = Plan, Target, OnPart) ->
    Before = resident(Target),
    Begin = erlang:monotonic_time(millisecond),
    Tell = fun(_) ->
        OnPart(min(1.0, (erlang:monotonic_time(millisecond) - Begin) / Duration))
    end,
    Sampler = start_sampler(Target),
    Outcome = sampled(Plan#{on_second => Tell}, Target),
    Most = stop_sampler(Sampler),
    case Outcome of
        %% On a busy machine nothing may be sent in a short time.
        {ok, #{sent := 0}, _} when Duration < ?SHORT ->
            loaded(Plan#{duration_ms := Duration * 4}, Target, OnPart);
        {ok, #{answered := 0} = Report, _} ->
            {error, {nothing_answered, maps:with([refused, failed, wrong_by, unsent], Report)}};
        {ok, Report, Collections} ->
            {ok, lists:foldl(fun maps:merge/2, memory(Before, Most, Report),
                             [per_request(Plan, Report), collections(Collections, Report)]),
             Report};
        {error, _} = Error ->
            Error
    end.

%% Runs a load, and samples the garbage collections while it sends. Those of the opening belong to
%% no request.
sampled(Plan, Target) ->
    maybe
        {ok, Load} ?= erlmcp_load:start(Plan),
        Pauses = start_pauses(Target),
        Report = erlmcp_load:await(Load),
        {ok, Report, stop_pauses(Pauses, Target)}
    end.

%% Samples the memory of the processes of a node that we started, in a process of its own. Stopping
%% returns the bytes at the beginning, and the most that were seen.
start_sampler(#{node := Target}) ->
    Before = process_bytes(Target),
    Most = atomics:new(1, []),
    ok = atomics:put(Most, 1, Before),
    {spawn_link(fun() -> sample(Target, Most) end), Before, Most};
start_sampler(_) ->
    none.

process_bytes(Target) ->
    erlmcp_bench_target:call(Target, erlang, memory, [processes]).

sample(Target, Most) ->
    receive stop -> ok
    after ?SAMPLE_MS ->
        ok = atomics:put(Most, 1, max(atomics:get(Most, 1), process_bytes(Target))),
        sample(Target, Most)
    end.

stop_sampler({Pid, Before, Most}) ->
    Monitor = monitor(process, Pid),
    Pid ! stop,
    %% The sampler may be waiting for the node, which runs until then.
    receive {'DOWN', Monitor, process, Pid, _} -> ok end,
    {Before, atomics:get(Most, 1)};
stop_sampler(none) ->
    none.

%% Samples the garbage collections of a node that we started.
start_pauses(#{node := Target}) ->
    erlmcp_bench_target:call(Target, erlmcp_bench_pauses, start, [all]);
start_pauses(_) ->
    none.

stop_pauses(none, _) ->
    none;
stop_pauses(Sampling, #{node := Target}) ->
    erlmcp_bench_target:call(Target, erlmcp_bench_pauses, stop, [Sampling]).

collections(none, _) ->
    #{};
collections(Pauses, #{answered := Answered, duration_s := Seconds, latency := Latency}) ->
    erlmcp_bench_pauses:fields(Pauses, Answered / Seconds,
                               erlmcp_bench_histogram:percentile(Latency, 95)).

resident(#{os_pid := OsPid}) -> erlmcp_bench_process:rss_bytes(OsPid);
resident(_) -> undefined.

%% The cost of the connections: the growth of the server's memory.
memory(Before, {HeapBefore, HeapMost}, #{opened := Opened, server_rss_bytes := After})
  when is_integer(Before), is_integer(After), Opened > 0 ->
    #{memory_base_mib_per_node => Before / ?MIB,
      memory_rss_mib_per_conn => max(0, After - Before) / Opened / ?MIB,
      memory_heap_mib_per_conn => max(0, HeapMost - HeapBefore) / Opened / ?MIB};
memory(_, _, _) ->
    #{}.

per_request(#{payload_bytes := Payload},
            #{answered := Answered, sent := Sent, opened := Opened, opened_per_s := PerSecond,
              lost := Lost, bytes_in := In, bytes_out := Out, duration_s := Seconds}) ->
    %% The payload goes both ways. Lost connections were opened again.
    Overhead = (In + Out) / Answered - 2 * Payload,
    #{overhead_bytes_per_request => Overhead,
      overhead_percent => 100 * Overhead * Answered / (In + Out),
      received_mib_per_s => In / ?MIB / Seconds, sent_mib_per_s => Out / ?MIB / Seconds,
      connection_reuse_percent => 100 * max(0, Sent - Opened - Lost) / max(1, Sent),
      opened_connections_per_s => PerSecond,
      setup_ms => max(1, Opened) * 1_000 / max(1, PerSecond)}.

%% Results.

base(#{id := Id, transport := Transport, payload_bytes := Bytes}, #{address := Address}, Room,
     Options) ->
    Base = #{workload_id => Id, benchmark => ~"network_real", era => stateless,
             transport => transport(Transport, Address), scope => per_node,
             payload_bytes => Bytes},
    maps:merge(maps:merge(Base, Room), maps:with([against], Options)).

transport(Transport, {http, <<"https:", _/binary>>}) ->
    <<(atom_to_binary(Transport))/binary, "_tls">>;
transport(Transport, _) -> Transport.

fields({ok, Fields, #{wrong_by := Wrong, failed := Failed} = Report}, Base, {Id, Options}) ->
    Command = #{command_line => Line || #{command_line := <<Line/binary>>} <- [Options]},
    All = maps:merge(maps:merge(Base, Fields), Command),
    {[erlmcp_bench_result:from_load(All, Report)],
     [{Id, {wrong_answers, Wrong}} || map_size(Wrong) > 0]
         ++ [{Id, {requests_failed, Failed}} || map_size(Failed) > 0]};
fields({error, _} = Error, _, Of) ->
    erlmcp_bench_run:measured(Error, Of).
