-module(erlmcp_bench_memory).
-moduledoc """
Measures the memory of a server's idle connections, sessions and streams, and of its running calls.
Many items of one kind are opened (`m:erlmcp_bench_holder`). When their processes hibernate, or
after 30 seconds, the growth of the node's memory and of its resident memory is read. The items are
ended, and both are read again. Streams get one published change before they end.

The node's memory is that of its processes, tables and binaries, and the emulator's for sockets and
timers. The resident memory is from Linux's `/proc`. Without `/proc` a workload fails with
`no_resident_memory`.
""".

-behaviour(erlmcp_bench_run).

-export([measured/2]).
-export([look/0, publish/0]).

%% Processes that hold the items.
-define(HOLDERS, 16).
%% The most milliseconds until all open items are quiet, and until all ended items are gone.
-define(QUIET, 30_000).
-define(POLL, 200).
%% Equal readings in a row. One reading may miss items that still grow.
-define(SAME, 3).
-define(FLAGS, ["+Q", "262144", "+P", "1048576"]).

-doc """
Measures a workload. `connections` is the number of items. If the machine carries fewer items, as
many as possible are measured. A server that cannot start, or that ends meanwhile, is a failure.
""".
-spec measured(erlmcp_bench_workloads:workload(), erlmcp_bench_run:options()) ->
    erlmcp_bench_run:measured().
measured(#{id := Id, connections := Own, transport := Transport} = Workload, Options) ->
    Wanted = maps:get(connections, Options, Own),
    case erlmcp_bench_target:start(#{server => server(Transport, Wanted, Options),
                                     flags => ?FLAGS}) of
        {ok, Target} ->
            Facts = erlmcp_bench_target:call(Target, erlmcp_machine, facts, ["/"]),
            Room = erlmcp_bench_room:for(Wanted, erlmcp_machine:facts("/"), Facts),
            Begin = erlang:monotonic_time(microsecond),
            Outcome = outcome(fun() ->
                held(Workload, maps:get(connections, Room), Target,
                     erlmcp_bench_run:on_part(Options))
            end),
            Seconds = (erlang:monotonic_time(microsecond) - Begin) / 1_000_000,
            ok = erlmcp_bench_target:stop(Target),
            Base = Room#{workload_id => Id, benchmark => ~"memory", transport => Transport,
                         scope => per_node, duration_s => Seconds,
                         sample_count => maps:get(connections, Room), era => era(Workload),
                         shortened => Wanted < Own, wanted_connections => Wanted},
            erlmcp_bench_run:measured(fields(Outcome, Base), {Id, Options});
        {error, Reason} ->
            {[], [{Id, {no_server, Reason}}]}
    end.

server(Transport, Wanted, Options) ->
    Listener = case Transport of
        tcp -> tcp;
        http1 -> http
    end,
    Most = Wanted + 1_000,
    %% An idle connection must stay open until it is measured.
    Limits = #{connections => Most, sessions => Most, in_flight => Most, queue => Most,
               queue_per_principal => Most, receive_timeout_ms => 600_000,
               call_timeout_ms => 600_000},
    erlmcp_bench_run:server(#{limits => Limits, listen => [{Listener, #{port => 0}}]}, Options).

era(#{holds := Kind}) when Kind =:= session; Kind =:= session_stream -> session;
era(_) -> stateless.

fields({ok, Fields}, Base) -> {ok, maps:merge(Base, Fields), []};
fields({error, _} = Error, _) -> Error.

%% The holders are linked to a process of this run, which ends all of them with its own end, however
%% that comes.
outcome(Held) ->
    {Pid, Monitor} = erlmcp_one_shot:start(Held, []),
    receive
        {'DOWN', Monitor, process, Pid, {outcome, Outcome}} -> Outcome;
        {'DOWN', Monitor, process, Pid, Reason} -> {error, {crashed, Reason}}
    end.

held(#{holds := Kind, transport := Transport}, Count, Target, OnPart) ->
    Address = address(Transport, Target),
    maybe
        ok ?= resident(Target),
        %% Memory that is allocated once, with the first item, does not count.
        {ok, First, _} ?= open(Kind, Address, 0, min(Count, 2 * ?HOLDERS)),
        ok = released(First),
        Before = settled(Target),
        Half = (Count + 1) div 2,
        {ok, Some, Took} ?= open(Kind, Address, 0, Half),
        AtHalf = quiet(Half, Before, Target),
        _ = OnPart(0.4),
        {ok, Others, TookMore} ?= open(Kind, Address, Half, Count - Half),
        Full = quiet(Count, Before, Target),
        _ = OnPart(0.8),
        {ok, Notified} ?= notify_all(Kind, Count, Some ++ Others, Target),
        ok = released(Some ++ Others),
        Ended = gone(Before, Target),
        {ok, maps:merge(Notified, #{
            opened_items_per_s => Count / (Took + TookMore),
            growth_ratio => per(total, Full, AtHalf, max(1, Count - Half))
                / max(1, per(total, AtHalf, Before, Half)),
            memory_state_bytes_per_item => per(total, Full, Before, Count),
            memory_process_bytes_per_item => per(processes_used, Full, Before, Count),
            memory_table_bytes_per_item => per(ets, Full, Before, Count),
            memory_binary_bytes_per_item => per(binary, Full, Before, Count),
            memory_emulator_bytes_per_item => per(emulator, Full, Before, Count),
            memory_rss_bytes_per_item => per(rss, Full, Before, Count),
            hibernating_processes => maps:get(hibernating, Full) - maps:get(hibernating, Before),
            memory_left_bytes_per_item => per(total, Ended, Before, Count),
            memory_left_rss_bytes_per_item => per(rss, Ended, Before, Count),
            left_processes => maps:get(count, Ended) - maps:get(count, Before)})}
    end.

resident(#{os_pid := OsPid}) ->
    case erlmcp_bench_process:rss_bytes(OsPid) of
        undefined -> {error, no_resident_memory};
        _ -> ok
    end.

address(tcp, Target) ->
    {Ip, Port} = erlmcp_bench_target:address(tcp, Target),
    {tcp, Ip, Port};
address(http1, Target) ->
    {http, erlmcp_bench_target:url(Target)}.

per(What, After, Before, Count) ->
    (map_get(What, After) - map_get(What, Before)) / Count.

%% Opens the items, and also returns how many seconds that took.
open(_, _, _, 0) ->
    {ok, [], 0.0};
open(Kind, Address, Number, Count) ->
    Begin = erlang:monotonic_time(microsecond),
    Holders = [erlmcp_bench_holder:start(Kind, Address, Number + First, Part)
               || {First, Part} <- parts(Count, min(?HOLDERS, Count))],
    case [Error || {error, _} = Error <- [erlmcp_bench_holder:opened(Holder)
                                          || Holder <- Holders]] of
        [] ->
            {ok, Holders, (erlang:monotonic_time(microsecond) - Begin) / 1_000_000};
        [Error | _] ->
            Error
    end.

parts(Count, Number) ->
    [{Count * Index div Number, Count * (Index + 1) div Number - Count * Index div Number}
     || Index <- lists:seq(0, Number - 1)].

released(Holders) ->
    lists:foreach(fun erlmcp_bench_holder:stop/1, Holders).

%% Waits until a process of each item hibernates, and reads the node's memory.
quiet(Count, #{hibernating := Before}, Target) ->
    Enough = fun(#{hibernating := Now}) -> Now - Before >= Count end,
    awaited(Enough, Target).

%% Waits until there are no more processes than before, and reads the node's memory.
gone(#{count := Before}, Target) ->
    awaited(fun(#{count := Now}) -> Now =< Before end, Target).

%% Waits until the number of the node's processes has stopped changing, and reads the node's memory.
settled(Target) ->
    awaited(fun(_) -> true end, Target).

awaited(Enough, Target) ->
    awaited(Enough, Target, erlang:monotonic_time(millisecond) + ?QUIET, []).

awaited(Enough, #{os_pid := OsPid} = Target, Until, Before) ->
    Look = erlmcp_bench_target:call(Target, ?MODULE, look, []),
    Counted = maps:with([count, hibernating], Look),
    Same = [Counted | [Other || Other <- Before, Other =:= Counted]],
    case (Enough(Look) andalso length(Same) >= ?SAME)
        orelse erlang:monotonic_time(millisecond) > Until of
        true ->
            Look#{rss => erlmcp_bench_process:rss_bytes(OsPid)};
        false ->
            receive after ?POLL -> ok end,
            awaited(Enough, Target, Until, Same)
    end.

%% Publishes one change to all streams. Returns the time until the last stream has it, and its cost.
notify_all(Kind, Count, Holders, #{os_pid := OsPid} = Target)
  when Kind =:= stream; Kind =:= session_stream ->
    lists:foreach(fun erlmcp_bench_holder:watch/1, Holders),
    Cpu = erlmcp_bench_process:cpu_us(OsPid),
    Begin = erlang:monotonic_time(microsecond),
    ok = erlmcp_bench_target:call(Target, ?MODULE, publish, []),
    Notified = [erlmcp_bench_holder:notified(Holder) || Holder <- Holders],
    case [Error || {error, _} = Error <- Notified] of
        [] ->
            {ok, #{notified_count => Count,
                   notified_ms => (lists:max([At || {ok, At} <- Notified]) - Begin) / 1_000,
                   notified_cpu_us_per_item => (erlmcp_bench_process:cpu_us(OsPid) - Cpu) / Count}};
        [Error | _] ->
            Error
    end;
notify_all(_, _, _, _) ->
    {ok, #{}}.

%% Functions that run in the node of the server.

-doc false.
-spec look() -> #{atom() => non_neg_integer()}.
look() ->
    Sleeping = [Pid || Pid <- processes(), is_asleep(Pid)],
    %% Garbage in other processes does not belong to the items.
    Awake = processes() -- Sleeping,
    lists:foreach(fun erlang:garbage_collect/1, Awake),
    %% What a scheduler frees for another counts as used until the other has run.
    receive after 20 -> ok end,
    %% Memory that the emulator reserves for future processes belongs to no process.
    #{processes_used := Used, system := System, ets := Tables, binary := Binaries} = Memory =
        #{What => erlang:memory(What) || What <- [processes_used, system, ets, binary]},
    {memory, Own} = process_info(self(), memory),
    Memory#{count => length(Sleeping) + length(Awake), hibernating => length(Sleeping),
            processes_used := Used - Own, total => Used - Own + System,
            emulator => System - Tables - Binaries}.

is_asleep(Pid) ->
    case process_info(Pid, current_function) of
        {current_function, {erlang, hibernate, 3}} -> true;
        {current_function, {gen_server, loop_hibernate, _}} -> true;
        _ -> false
    end.

-doc false.
-spec publish() -> ok | {error, term()}.
publish() ->
    erlmcp:add(erlmcp_bench_host:server(), tool,
               #{name => ~"published", handler => fun(_, _) -> ~"done" end}).
