-module(erlmcp_bench_memory).
-moduledoc """
What a server's idle connections, sessions, streams and running calls cost in memory, each: so many
are opened (`m:erlmcp_bench_holder`), first half of them and then the rest, and left alone until
their processes hibernate. Then the server's node is asked what it has more than before, and the
operating system what its process has. They are ended, and both are asked again.

What lies in other processes until they collect it is not theirs: those are made to before the node
is asked. What it has is heap and state of processes, tables, binaries, and what the emulator has
for sockets and timers.

When streams are held, one change is published to all of them at last.
""".

-behaviour(erlmcp_bench_run).

-export([measured/2]).
-export([look/0, publish/0]).

%% Processes that hold what is measured.
-define(HOLDERS, 16).
%% Milliseconds until all that was opened is quiet, and until all that was ended is gone.
-define(QUIET, 30_000).
-define(POLL, 200).
%% Looks that say the same: what has an end is seen in one, what may grow still in several.
-define(SAME, 3).
-define(FLAGS, ["+Q", "262144", "+P", "1048576"]).

-doc "`connections` is how many of what is held.".
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
            Outcome = held(Workload, maps:get(connections, Room), Target,
                           erlmcp_bench_run:on_part(Options)),
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
    %% An idle connection is to be there until it was looked at.
    Limits = #{connections => Most, sessions => Most, in_flight => Most, queue => Most,
               queue_per_principal => Most, receive_timeout_ms => 600_000,
               call_timeout_ms => 600_000},
    erlmcp_bench_run:server(#{limits => Limits, listen => [{Listener, #{port => 0}}]}, Options).

era(#{holds := session}) -> session;
era(_) -> stateless.

fields({ok, Fields}, Base) -> {ok, maps:merge(Base, Fields), []};
fields({error, _} = Error, _) -> Error.

held(#{holds := Kind, transport := Transport}, Count, Target, OnPart) ->
    Address = address(Transport, Target),
    maybe
        %% What is made once, with the first of them, is none of theirs.
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
        {ok, Told} ?= told(Kind, Count, Some ++ Others, Target),
        ok = released(Some ++ Others),
        Left = gone(Before, Target),
        {ok, maps:merge(Told, #{
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
            memory_left_bytes_per_item => per(total, Left, Before, Count),
            memory_left_rss_bytes_per_item => per(rss, Left, Before, Count),
            left_processes => maps:get(count, Left) - maps:get(count, Before)})}
    end.

address(tcp, Target) ->
    {Ip, Port} = erlmcp_bench_target:address(tcp, Target),
    {tcp, Ip, Port};
address(http1, Target) ->
    {http, erlmcp_bench_target:url(Target)}.

per(What, After, Before, Count) ->
    (map_get(What, After) - map_get(What, Before)) / Count.

%% Gives the seconds that it took, too.
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

%% What the node has when each of these has a process that hibernates.
quiet(Count, #{hibernating := Before}, Target) ->
    Enough = fun(#{hibernating := Now}) -> Now - Before >= Count end,
    awaited(Enough, Target).

%% When there are no more processes than before.
gone(#{count := Before}, Target) ->
    awaited(fun(#{count := Now}) -> Now =< Before end, Target).

%% When it does not change any more.
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

%% One change for all the streams: the time until the last of them has it, and what it cost.
told(stream, Count, Holders, #{os_pid := OsPid} = Target) ->
    lists:foreach(fun erlmcp_bench_holder:tell/1, Holders),
    Cpu = erlmcp_bench_process:cpu_us(OsPid),
    Begin = erlang:monotonic_time(microsecond),
    ok = erlmcp_bench_target:call(Target, ?MODULE, publish, []),
    Told = [erlmcp_bench_holder:told(Holder) || Holder <- Holders],
    case [Error || {error, _} = Error <- Told] of
        [] ->
            {ok, #{notified_count => Count,
                   notified_ms => (lists:max([At || {ok, At} <- Told]) - Begin) / 1_000,
                   notified_cpu_us_per_item => (erlmcp_bench_process:cpu_us(OsPid) - Cpu) / Count}};
        [Error | _] ->
            Error
    end;
told(_, _, _, _) ->
    {ok, #{}}.

%% In the node of the server.

-doc false.
-spec look() -> #{atom() => non_neg_integer()}.
look() ->
    Sleeping = [Pid || Pid <- processes(), is_asleep(Pid)],
    Awake = processes() -- Sleeping,
    lists:foreach(fun erlang:garbage_collect/1, Awake),
    %% What the emulator keeps for processes that come is no process' own.
    Memory = #{processes_used := Processes, system := System, ets := Tables, binary := Binaries} =
        #{What => erlang:memory(What) || What <- [processes_used, system, ets, binary]},
    Memory#{count => length(Sleeping) + length(Awake), hibernating => length(Sleeping),
            total => Processes + System, emulator => System - Tables - Binaries}.

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
