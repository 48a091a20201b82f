-module(pauses_SUITE).
-moduledoc """
Pauses of garbage collections, of processes whose collections are planted. The sampler draws anew
each second, and sees nothing meanwhile. So a case that counts what takes milliseconds is
judged again if the machine stood still for that long.
""".

-export([suite/0, all/0]).
-export([planted_collections_are_counted/1, the_longest_pause_is_as_long_as_it_was/1,
         the_sample_is_bounded/1, spawned_processes_are_sampled/1, any_process_may_be_sampled/1,
         pauses_are_taken_in_turn/1, a_process_may_end_in_a_collection/1, the_part_of_p95/1]).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [planted_collections_are_counted, the_longest_pause_is_as_long_as_it_was,
     the_sample_is_bounded, spawned_processes_are_sampled, any_process_may_be_sampled,
     pauses_are_taken_in_turn, a_process_may_end_in_a_collection, the_part_of_p95].

planted_collections_are_counted(_) ->
    erlmcp_test_pauses:undisturbed(150, fun() ->
        #{minor := [], major := Major, all := All, duration_ns := Nanoseconds} =
            sampled(fun() -> collects(7, 0) end),
        7 = count(Major),
        true = All >= 7 andalso Nanoseconds > 0,
        %% The first minor collection after a major one is followed by another major one.
        #{minor := Minor, major := One} = sampled(fun() -> collects(0, 40) end),
        {40, 1} = {count(Minor), count(One)}
    end).

%% A process with a large heap stands still for milliseconds, and looks at the clock itself.
the_longest_pause_is_as_long_as_it_was(_) ->
    erlmcp_test_pauses:undisturbed(50, fun() ->
        Self = self(),
        #{major := Major} = Pauses = sampled(fun() ->
            Kept = lists:seq(1, 1_000_000),
            Times = [begin
                         Begin = erlang:monotonic_time(nanosecond),
                         true = garbage_collect(),
                         erlang:monotonic_time(nanosecond) - Begin
                     end || _ <- lists:seq(1, 5)],
            Self ! {took, lists:sort(Times), length(Kept)}
        end),
        [Shortest | _] = Took = receive {took, Times, 1_000_000} -> Times end,
        %% Between two draws a collection may begin unseen.
        true = count(Major) >= 2,
        #{gc_longest_us := Us, gc_major_max_us := Us} = erlmcp_bench_pauses:fields(Pauses, 1, 1),
        true = Us * 1_000 =< lists:last(Took) orelse error({Us, Took}),
        %% After a pause a process may wait for a scheduler, but hardly each time.
        true = Us * 1_000 >= Shortest / 2 andalso Us > 1_000 orelse error({Us, Took})
    end).

%% After 1,000 pauses the sampling waits for the next second. All collections are counted.
the_sample_is_bounded(_) ->
    #{all := All} = Pauses = sampled(fun() -> collects(20_000, 0) end),
    true = All >= 20_000,
    #{duration_ns := Nanoseconds, major := Major} = Pauses,
    true = count(Major) =< 1_010 * (1 + Nanoseconds div 1_000_000_000),
    #{gc_sampled_percent := Percent} = erlmcp_bench_pauses:fields(Pauses, 1, 1),
    true = Percent < 50.

%% The process of a call is one that its connection has spawned.
spawned_processes_are_sampled(_) ->
    erlmcp_test_pauses:undisturbed(150, fun() ->
        #{major := Major} = sampled(fun() ->
            {Pid, Monitor} = spawn_monitor(fun() -> collects(9, 0) end),
            receive {'DOWN', Monitor, process, Pid, normal} -> ok end
        end),
        9 = count(Major)
    end).

%% Of all processes of the node a random one is among the 32 sooner or later.
any_process_may_be_sampled(_) ->
    Busy = spawn_link(fun Collects() ->
        ok = collects(100, 0),
        receive stop -> ok after 1 -> Collects() end
    end),
    Sampler = erlmcp_bench_pauses:start(all),
    Until = erlang:monotonic_time(millisecond) + 60_000,
    ok = found(Sampler, Until),
    Busy ! stop.

found(Sampler, Until) ->
    receive after 200 -> ok end,
    #{major := Major} = erlmcp_bench_pauses:stop(Sampler),
    true = erlang:monotonic_time(millisecond) < Until,
    case count(Major) > 100 of
        true -> ok;
        false -> found(erlmcp_bench_pauses:start(all), Until)
    end.

%% Each taking has the pauses since the one before it.
pauses_are_taken_in_turn(_) ->
    erlmcp_test_pauses:undisturbed(150, fun() ->
        Self = self(),
        Pid = spawn_link(fun Collects() ->
            receive
                {collect, Major} ->
                    ok = collects(Major, 0),
                    Self ! collected,
                    Collects()
            end
        end),
        Sampler = erlmcp_bench_pauses:start([Pid]),
        Taken = fun(Major) ->
            Begin = erlang:monotonic_time(nanosecond),
            Pid ! {collect, Major},
            receive collected -> ok end,
            #{major := Entries, all := All, duration_ns := Nanoseconds} =
                erlmcp_bench_pauses:take(Sampler),
            true = All >= Major andalso Nanoseconds > 0,
            {count(Entries), Nanoseconds, erlang:monotonic_time(nanosecond) - Begin}
        end,
        {5, _, _} = Taken(5),
        {7, Nanoseconds, Took} = Taken(7),
        true = Nanoseconds =< 2 * Took orelse error({Nanoseconds, Took}),
        #{major := []} = erlmcp_bench_pauses:stop(Sampler),
        true = unlink(Pid),
        true = exit(Pid, kill)
    end).

%% A process that passes its memory bound is killed in the middle of a collection.
a_process_may_end_in_a_collection(_) ->
    erlmcp_test_pauses:undisturbed(150, fun() ->
        #{major := Major} = sampled(fun() ->
            {Pid, Monitor} = spawn_opt(fun() -> grow([]) end,
                                       [monitor, {max_heap_size, #{size => 100_000, kill => true,
                                                                   error_logger => false}}]),
            receive {'DOWN', Monitor, process, Pid, killed} -> ok end,
            collects(3, 0)
        end),
        true = count(Major) >= 3
    end).

grow(List) -> grow([make_ref() | List]).

%% 95 of 100 requests meet no more than the shortest pauses, if half of them meet one.
the_part_of_p95(_) ->
    Part = fun(All) ->
        Pauses = #{minor => [{1_000, 90}, {80_000, 9}], major => [{900_000, 1}], all => All,
                   duration_ns => 1_000_000_000},
        #{gc_latency_p95_percent := Percent} = erlmcp_bench_pauses:fields(Pauses, 1_000, 100),
        Percent
    end,
    %% One request of twenty, of ten, and each; and two for each.
    [0, 1, 1, 80, 100] = [round(Part(All)) || All <- [50, 51, 100, 1_000, 2_000]].

collects(Major, Minor) ->
    _ = [true = garbage_collect(self(), [{type, minor}]) || _ <- lists:seq(1, Minor)],
    _ = [true = garbage_collect() || _ <- lists:seq(1, Major)],
    ok.

%% The pauses of a process that runs a fun once it is sampled.
sampled(Work) ->
    Self = self(),
    {Pid, Monitor} = spawn_opt(fun() ->
        Self ! ready,
        receive go -> ok end,
        Work()
    end, [monitor, {min_heap_size, 4_000_000}]),
    receive ready -> ok end,
    Sampler = erlmcp_bench_pauses:start([Pid]),
    Pid ! go,
    receive {'DOWN', Monitor, process, Pid, Why} -> normal = Why end,
    erlmcp_bench_pauses:stop(Sampler).

count(Entries) -> lists:sum([Count || {_, Count} <- Entries]).
