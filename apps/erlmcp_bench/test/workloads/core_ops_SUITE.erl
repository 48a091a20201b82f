-module(core_ops_SUITE).
-moduledoc "The core operations: what they count, and what they do not hide.".

-export([suite/0, all/0]).
-export([every_component_gives_a_valid_result/1, workloads_have_their_names/1,
         every_operation_is_counted/1, a_wrong_result_fails/1, a_duration_ends_it/1,
         progress_is_told/1, contention_is_measured/1, a_lock_is_contention/1,
         allocated_bytes_are_those_of_the_operation/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [every_component_gives_a_valid_result, workloads_have_their_names, every_operation_is_counted,
     a_wrong_result_fails, a_duration_ends_it, progress_is_told,
     allocated_bytes_are_those_of_the_operation, contention_is_measured, a_lock_is_contention].

every_component_gives_a_valid_result(_) ->
    {ok, Results} = erlmcp_bench_core_ops:run(
        #{id => ~"core_ops_100k", operations => 203, workers => 10}),
    [ok = erlmcp_metrology_validator:validate(Result) || Result <- Results],
    Ids = [Id || #{~"workload_id" := Id} <- Results],
    [~"core_ops_100k_decode_1_core", ~"core_ops_100k_decode_all_cores",
     ~"core_ops_100k_encode_1_core", ~"core_ops_100k_encode_all_cores",
     ~"core_ops_100k_encode_reply_1_core", ~"core_ops_100k_encode_reply_all_cores",
     ~"core_ops_100k_nothing_1_core", ~"core_ops_100k_nothing_all_cores",
     ~"core_ops_100k_pool", ~"core_ops_100k_pool_waiting",
     ~"core_ops_100k_queue", ~"core_ops_100k_queue_waiting",
     ~"core_ops_100k_registry", ~"core_ops_100k_session"] = lists:sort(Ids),
    [203 = Count || #{~"sample_count" := Count} <- Results],
    [203 = lists:sum([Count || [_, Count] <- Histogram])
     || #{~"latency_histogram_us" := Histogram} <- Results],
    %% Both are in microseconds.
    [true = Deviation =< Max || #{~"latency_deviation_us" := Deviation,
                                  ~"latency_max_us" := Max} <- Results],
    [false = Shortened || #{~"shortened" := Shortened} <- Results],
    %% An operation allocates as much with many others as alone; nothing allocates nothing.
    Allocated = #{Id => Bytes || #{~"workload_id" := Id,
                                   ~"memory_allocated_bytes_per_operation" := Bytes} <- Results},
    #{~"core_ops_100k_nothing_1_core" := Nothing, ~"core_ops_100k_nothing_all_cores" := Nothing,
      ~"core_ops_100k_session" := Session, ~"core_ops_100k_queue" := Queue} = Allocated,
    true = Nothing == 0 andalso Queue > 100 andalso Session > Queue,
    ~"erlmcp_bench_run:workload(core_ops, <<\"core_ops_100k\">>, #{})" = command(hd(Results)).

command(#{~"environment" := #{~"command_line" := Line, ~"load_generator" := ~"in_node"}}) -> Line.

workloads_have_their_names(_) ->
    Options = #{components => [decode]},
    {ok, [_, _]} = erlmcp_bench_core_ops:run(~"core_ops_1k", Options),
    {ok, [#{~"sample_count" := 1_000, ~"workers" := 1}, _]} =
        erlmcp_bench_core_ops:run(core_ops_1k, Options),
    {ok, [#{~"workload_id" := ~"core_ops_1k_decode_1_core", ~"sample_count" := 100}, _]} =
        erlmcp_bench_core_ops:run(#{id => core_ops_1k, operations => 100}, Options),
    %% A single process waits for no other one.
    Waiting = #{components => [pool, pool_waiting]},
    {ok, [#{~"component" := ~"pool"}]} = erlmcp_bench_core_ops:run(~"core_ops_1k", Waiting),
    {ok, [_, _]} = erlmcp_bench_core_ops:run(~"core_ops_10k", Waiting),
    {error, {unknown_workload, ~"core_ops_2k"}} = erlmcp_bench_core_ops:run(~"core_ops_2k"),
    %% It is another module's.
    {error, {unknown_workload, ~"stress_30s_100k_ops"}} =
        erlmcp_bench_core_ops:run(~"stress_30s_100k_ops").

every_operation_is_counted(_) ->
    Ran = counters:new(7, []),
    {ok, #{operations := 1_003, histogram := Histogram}} = erlmcp_bench_operations:run(#{
        workers => 7, operations => 1_003,
        prepare => fun(Number) -> {Number, 0} end,
        operation => fun({Number, Count}) -> {Number, Count + 1} end,
        finish => fun({Number, Count}) -> counters:put(Ran, Number, Count) end}),
    1_003 = erlmcp_bench_histogram:count(Histogram),
    %% Each did its part of them, and some before, which are not counted.
    [true = counters:get(Ran, Number) >= 1_003 div 7 + 16 || Number <- lists:seq(1, 7)].

a_wrong_result_fails(_) ->
    {error, {operation_failed, {wrong, _}}} = erlmcp_bench_operations:run(#{
        workers => 3, operations => 300,
        prepare => fun(Number) -> {Number, 1} end,
        operation => fun({2, 50}) -> error(wrong);
                        ({Number, Count}) -> {Number, Count + 1}
                     end}),
    receive Message -> error({left, Message}) after 0 -> ok end.

a_duration_ends_it(_) ->
    {ok, [#{~"sample_count" := Count, ~"shortened" := true}]} = erlmcp_bench_core_ops:run(
        #{id => ~"core_ops_1m", operations => 1_000_000_000},
        #{components => [pool], duration_s => 0.1}),
    true = Count > 0.

progress_is_told(_) ->
    Self = self(),
    {ok, _} = erlmcp_bench_core_ops:run(
        #{id => ~"core_ops_1k", operations => 100},
        #{components => [encode, decode], on_progress => fun(Part) -> Self ! {part, Part} end}),
    Parts = parts([]),
    true = Parts =:= lists:sort(Parts),
    1.0 = lists:last(Parts).

parts(Parts) ->
    receive {part, Part} -> parts([Part | Parts]) after 0 -> lists:reverse(Parts) end.

%% A list of 50 integers has 800 bytes, and its place in the list around it 16. A binary is outside
%% of the heap, and a message comes from another process.
allocated_bytes_are_those_of_the_operation(_) ->
    Allocated = fun(Prepare, Operation) ->
        round(erlmcp_bench_allocated:bytes_per_operation(#{prepare => Prepare,
                                                           operation => Operation}))
    end,
    Fresh = fun(_) -> [] end,
    0 = Allocated(Fresh, fun(Kept) -> Kept end),
    16 = Allocated(Fresh, fun(Kept) -> [kept | Kept] end),
    816 = Allocated(Fresh, fun(Kept) -> [lists:seq(1, 50) | Kept] end),
    %% Garbage counts, too, even if it is collected meanwhile.
    Twice = Allocated(Fresh, fun(Kept) ->
        _ = garbage_collect(),
        _ = [lists:seq(1, 50) | Kept],
        []
    end),
    true = abs(Twice - 816) < 16,
    Binary = Allocated(Fresh, fun(Kept) -> [binary:copy(~"x", 10_000) | Kept] end),
    true = Binary >= 10_016 andalso Binary < 10_200,
    Sender = fun Sends() -> receive From -> From ! lists:seq(1, 50), Sends() end end,
    Message = Allocated(fun(_) -> spawn_link(Sender) end, fun(Other) ->
        Other ! self(),
        receive [_ | _] -> Other end
    end),
    true = Message >= 800 andalso Message < 900.

contention_is_measured(_) ->
    [begin
        {ok, [#{~"workload_id" := Id, ~"workers" := Workers, ~"alone_msg_per_s" := Alone,
                ~"component" := ~"registry_contended", ~"contention_percent" := Lost} = Result]} =
            erlmcp_bench_core_ops:run(#{id => Id, operations => 10_000}),
        ok = erlmcp_metrology_validator:validate(Result),
        true = Alone > 0 andalso Lost >= 0 andalso Lost < 100
    end || {Id, Workers} <- [{~"registry_250_connections", 250},
                             {~"registry_500_connections", 500}]].

%% One process serves all others, a millisecond each; then each of them takes that time by itself.
a_lock_is_contention(_) ->
    Pause = fun() -> receive after 1 -> ok end end,
    Server = spawn_link(fun Serves() -> receive From -> Pause(), From ! done, Serves() end end),
    Lost = fun(Operation) ->
        {ok, #{lost_percent := Percent, alone_per_s := Alone, operations := 800}} =
            erlmcp_bench_contention:run(#{workers => 100, operations => 800,
                                          prepare => fun(_) -> none end, operation => Operation}),
        true = Alone > 0 andalso Alone =< 1_000,
        Percent
    end,
    Cores = erlang:system_info(schedulers_online),
    %% One alone may wait for a processor, and is then up to a quarter slower. A pause makes it
    %% slower still, but not each time.
    true = lists:any(fun(_) ->
        Served = Lost(fun(none) -> Server ! self(), receive done -> none end end),
        Served >= 100 * (1 - 1.25 / Cores)
    end, lists:seq(1, 5)),
    erlmcp_test_pauses:undisturbed(100, fun() ->
        true = Lost(fun(none) -> Pause(), none end) == 0
    end).
