-module(load_counts_SUITE).
-moduledoc """
Tests for the sums of a load: each planted request is counted once, under its own name, and in no
figure of another one. What a report says of a server is made of these.
""".

-include_lib("stdlib/include/assert.hrl").

-export([suite/0, all/0]).
-export([a_request_ends_once/1, deadlines_come_in_their_order/1, late_replies_are_remembered/1,
         a_stray_reply_is_one_wrong_answer/1, a_lost_connection_has_nothing_left/1,
         only_what_was_due_in_time_is_measured/1, each_outcome_has_its_sum/1,
         lateness_is_of_open_loops/1, replies_are_learned_together/1, samples_are_differences/1,
         what_a_sample_cannot_know_is_left_out/1, reports_are_of_the_measured_time/1,
         processes_are_as_the_system_says/1]).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [a_request_ends_once, deadlines_come_in_their_order, late_replies_are_remembered,
     a_stray_reply_is_one_wrong_answer, a_lost_connection_has_nothing_left,
     only_what_was_due_in_time_is_measured, each_outcome_has_its_sum, lateness_is_of_open_loops,
     replies_are_learned_together, samples_are_differences, what_a_sample_cannot_know_is_left_out,
     reports_are_of_the_measured_time, processes_are_as_the_system_says].

%% Requests that wait.

waiting(Requests) ->
    lists:foldl(fun({Tag, Due, Deadline}, Pending) ->
                    erlmcp_load_pending:add(Tag, Tag + 10, Due, Deadline, Pending)
                end, erlmcp_load_pending:new(), Requests).

a_request_ends_once(_) ->
    Pending = waiting([{3, 30, 130}, {1, 10, 110}, {2, 20, 120}]),
    ?assertEqual({3, 1}, {erlmcp_load_pending:count(Pending), erlmcp_load_pending:oldest(Pending)}),
    {{11, 10}, Answered} = erlmcp_load_pending:take(1, Pending),
    {20, Dropped} = erlmcp_load_pending:drop(2, Answered),
    ?assertEqual({1, 3}, {erlmcp_load_pending:count(Dropped), erlmcp_load_pending:oldest(Dropped)}),
    [?assertEqual(none, erlmcp_load_pending:drop(Tag, Dropped)) || Tag <- [1, 2, 4]],
    {stray, _} = erlmcp_load_pending:take(1, Dropped),
    {{13, 30}, Empty} = erlmcp_load_pending:take(3, Dropped),
    ?assertEqual({0, none}, {erlmcp_load_pending:count(Empty), erlmcp_load_pending:oldest(Empty)}).

deadlines_come_in_their_order(_) ->
    Pending = waiting([{1, 0, 100}, {2, 0, 110}, {3, 0, 120}]),
    [?assertEqual({Now, Expected}, {Now, erlmcp_load_pending:overdue(Now, Pending)})
     || {Now, Expected} <- [{99, {[], 100}}, {100, {[1], 110}}, {119, {[1, 2], 120}},
                            {120, {[1, 2, 3], none}}]],
    ?assertEqual({[], none}, erlmcp_load_pending:overdue(0, erlmcp_load_pending:new())).

%% The last thousand of them, for one reply each.
late_replies_are_remembered(_) ->
    GiveUp = fun(Tag, Pending) ->
        {{failed, timeout}, Given} = erlmcp_load_pending:give_up(Tag, Pending),
        Given
    end,
    Thousand = lists:foldl(GiveUp, erlmcp_load_pending:new(), lists:seq(1, 1000)),
    {late, Once} = erlmcp_load_pending:take(1, Thousand),
    {stray, _} = erlmcp_load_pending:take(1, Once),
    {late, _} = erlmcp_load_pending:take(1000, Thousand),
    More = GiveUp(1001, Thousand),
    [{late, _} = erlmcp_load_pending:take(Tag, More) || Tag <- [2, 1000, 1001]],
    {stray, _} = erlmcp_load_pending:take(1, More).

%% Its request waits until its time is over, and is not lost then.
a_stray_reply_is_one_wrong_answer(_) ->
    {stray, Strayed} = erlmcp_load_pending:take(7, waiting([{1, 0, 100}, {2, 0, 100}])),
    {{wrong, id}, Judged} = erlmcp_load_pending:give_up(1, erlmcp_load_pending:stray(Strayed)),
    {{wrong, id}, Both} = erlmcp_load_pending:give_up(2, Judged),
    {{failed, timeout}, _} = erlmcp_load_pending:give_up(3, Both),
    %% Until it is dropped.
    2 = erlmcp_load_pending:count(Both).

a_lost_connection_has_nothing_left(_) ->
    {_, GivenUp} = erlmcp_load_pending:give_up(9, waiting([{1, 10, 110}, {2, 20, 120}])),
    {Dues, Cleared} = erlmcp_load_pending:clear(erlmcp_load_pending:stray(GivenUp)),
    ?assertEqual([10, 20], lists:sort(Dues)),
    ?assertEqual(erlmcp_load_pending:new(), Cleared).

%% The tally.

settings(Changes) ->
    maps:merge(#{counts => erlmcp_load_counts:new(), latency => erlmcp_bench_histogram:new(),
                 refusal_latency => erlmcp_bench_histogram:new(),
                 lateness => erlmcp_bench_histogram:new(), loop => closed, observer => none,
                 expected => [{text, ~"abc"}], patterns => ets:new(patterns, [])}, Changes).

%% All counters that are not zero.
counted(#{counts := Counts}) ->
    maps:filter(fun(_, Count) -> Count =/= 0 end, erlmcp_load_counts:all(Counts)).

times(Of, Settings) ->
    erlmcp_bench_histogram:to_list(map_get(Of, Settings)).

%% From when measuring begins, and not a microsecond before.
only_what_was_due_in_time_is_measured(_) ->
    Settings = settings(#{observer => self()}),
    Run = fun(Due, Tally) ->
        ok = erlmcp_load_tally:sent(Due, Due + 1, Tally),
        All = [answered, {refused, 1056, #{}}, {failed, timeout}, {wrong, id}],
        Ended = lists:foldl(fun(Outcome, Before) ->
                                erlmcp_load_tally:concluded(Outcome, Due, Due + 5, Before)
                            end, Tally, All),
        erlmcp_load_tally:unsent(Due, Due + 5, Ended)
    end,
    New = erlmcp_load_tally:new(Settings),
    Begun = erlmcp_load_tally:begins(100, 40, Run(1_000, New)),
    Early = Run(99, Begun),
    ?assertEqual(#{warm => 2}, counted(Settings)),
    ?assertEqual(erlmcp_load_tally:course(Begun), erlmcp_load_tally:course(Early)),
    receive {erlmcp_load, _, _, _} -> error(observed) after 0 -> ok end,
    Measured = erlmcp_load_tally:course(Run(100, Early)),
    ?assertEqual(#{warm => 2, sent => 1, answered => 1, refused => 1, failed => 1, wrong => 1,
                   unsent => 1}, counted(Settings)),
    ?assertEqual([answered, {refused, 1056, #{}}, {failed, timeout}, {wrong, id}],
                 [receive {erlmcp_load, Outcome, 100, 105} -> Outcome after 0 -> none end
                  || _ <- lists:seq(1, 4)]),
    %% The course begins where it was said.
    ?assertMatch([#{at_s := 0.00006}], erlmcp_load_course:windows(100, Measured)).

each_outcome_has_its_sum(_) ->
    Settings = settings(#{}),
    Outcomes = [{answered, 250}, {{refused, 1056, #{}}, 120}, {{refused, tool_error, #{}}, 130},
                {{failed, closed}, 3}, {{wrong, content}, 4}],
    Tally = lists:foldl(fun({Outcome, Took}, Before) ->
                            erlmcp_load_tally:concluded(Outcome, 0, Took, Before)
                        end, erlmcp_load_tally:begins(0, 0, erlmcp_load_tally:new(Settings)),
                        Outcomes),
    Course = erlmcp_load_tally:course(erlmcp_load_tally:unsent(0, 9, Tally)),
    ?assertEqual(#{answered => 1, refused => 2, failed => 1, wrong => 1, unsent => 1},
                 counted(Settings)),
    ?assertEqual([{250, 1}], times(latency, Settings)),
    ?assertEqual([{120, 1}, {130, 1}], times(refusal_latency, Settings)),
    ?assertEqual({#{1056 => 1, tool_error => 1}, #{closed => 1}, #{content => 1}, 1},
                 {erlmcp_load_course:reasons(refused, Course),
                  erlmcp_load_course:reasons(failed, Course),
                  erlmcp_load_course:reasons(wrong, Course), erlmcp_load_course:unsent(Course)}).

%% A closed loop sends when it can, so nothing of it is late.
lateness_is_of_open_loops(_) ->
    [begin
         Settings = settings(#{loop => Loop}),
         Tally = erlmcp_load_tally:begins(100, 100, erlmcp_load_tally:new(Settings)),
         ok = erlmcp_load_tally:sent(100, 170, Tally),
         ok = erlmcp_load_tally:sent(99, 180, Tally),
         ?assertEqual(Lateness, times(lateness, Settings)),
         ?assertEqual(#{sent => 1}, counted(Settings))
     end || {Loop, Lateness} <- [{closed, []}, {hold, []}, {{open, schedule}, [{70, 1}]}]].

%% By one group for all, eight of a kind, and nothing that is wrong.
replies_are_learned_together(_) ->
    #{patterns := Shared} = Settings = settings(#{}),
    [First, Second] = [erlmcp_load_tally:begins(0, 0, erlmcp_load_tally:new(Settings))
                       || _ <- [1, 2]],
    Judge = fun(Tag, Text, Tally) ->
        Body = iolist_to_binary(
            [~B'{"jsonrpc":"2.0","id":', erlmcp_load_wire:id(Tag),
             ~B',"result":{"content":[{"type":"text","text":"', Text, ~B'"}]}}']),
        erlmcp_load_tally:judged(1, Tag, 200, Body, Tally)
    end,
    {{wrong, content}, Wrong} = Judge(1, ~"ab", First),
    ?assertEqual([], ets:tab2list(Shared)),
    {{wrong, content}, _} = Judge(2, ~"ab", Wrong),
    Texts = [[~"abc", integer_to_binary(N)] || N <- lists:seq(1, 9)],
    Learned = lists:foldl(fun(Text, Tally) ->
                              {answered, Next} = Judge(3, Text, Tally),
                              {answered, Same} = Judge(4, Text, Next),
                              Same
                          end, Wrong, Texts),
    [{1, Patterns}] = ets:tab2list(Shared),
    ?assertEqual(8, length(Patterns)),
    %% Another group knows them too, from its first such reply on.
    {answered, Knows} = Judge(5, hd(Texts), Second),
    ?assertEqual([{1, Patterns}], ets:tab2list(Shared)),
    [?assertEqual({{wrong, content}, Tally}, Judge(6, ~"ab", Tally)) || Tally <- [Learned, Knows]].

%% Samples.

mark(At, Counts, Changes) ->
    None = erlmcp_load_counts:all(erlmcp_load_counts:new()),
    maps:merge(#{at => At, counts => maps:merge(None, Counts), latency => [],
                 generator_cpu_us => undefined, server_cpu_us => undefined,
                 server_rss_bytes => undefined}, Changes).

samples_are_differences(_) ->
    From = mark(2_000_000, #{sent => 10, answered => 5, refused => 1, failed => 1, wrong => 1,
                             unsent => 3, bytes_in => 100, bytes_out => 200, connections => 2},
                #{latency => [{100, 5}], generator_cpu_us => 1_000, server_cpu_us => 5_000}),
    To = mark(2_500_000, #{sent => 22, answered => 9, refused => 3, failed => 4, wrong => 5,
                           unsent => 10, bytes_in => 1_100, bytes_out => 2_200, connections => 7},
              #{latency => [{100, 7}, {200, 2}], generator_cpu_us => 1_600, server_cpu_us => 7_000,
                server_rss_bytes => 3 * 1_048_576}),
    ?assertEqual(#{at_s => 1.5, duration_s => 0.5, sent_count => 12, answered_count => 4,
                   refused_count => 2, failed_count => 3, wrong_count => 4, unsent_count => 7,
                   throughput_msg_per_s => 8.0, refused_msg_per_s => 4.0, failed_msg_per_s => 6.0,
                   received_bytes => 1_000, sent_bytes => 2_000, connections => 7,
                   in_flight_requests => 22 - 9 - 3 - 4 - 5, latency_p50_us => 100,
                   latency_p95_us => 200, latency_p99_us => 200, latency_p999_us => 200,
                   latency_max_us => 200, latency_deviation_us => 50.0,
                   cpu_us_per_msg => 500.0, generator_cpu_us_per_msg => 150.0,
                   memory_rss_mib_per_node => 3.0},
                 erlmcp_load_sample:between(From, To, 1_000_000)).

%% A second without an answer has no latency, and not one of zero.
what_a_sample_cannot_know_is_left_out(_) ->
    Time = [at_s, duration_s, sent_count, answered_count, refused_count, failed_count, wrong_count,
            unsent_count, throughput_msg_per_s, refused_msg_per_s, failed_msg_per_s, received_bytes,
            sent_bytes, connections, in_flight_requests],
    Further = fun(Answered, From, To) ->
        Sample = erlmcp_load_sample:between(mark(0, #{}, From),
                                            mark(10, #{answered => Answered}, To), 0),
        lists:sort(maps:keys(Sample) -- Time)
    end,
    ?assertEqual([], Further(0, #{}, #{})),
    ?assertEqual([], Further(0, #{server_cpu_us => 1}, #{server_cpu_us => 2})),
    ?assertEqual([], Further(1, #{server_cpu_us => 2}, #{server_cpu_us => 2})),
    ?assertEqual([], Further(1, #{}, #{server_cpu_us => 2})),
    ?assertEqual([], Further(1, #{server_cpu_us => 1}, #{})),
    ?assertEqual([cpu_us_per_msg], Further(1, #{server_cpu_us => 1}, #{server_cpu_us => 2})),
    ?assertEqual([latency_max_us, latency_p50_us, latency_p95_us, latency_p999_us, latency_p99_us],
                 Further(1, #{}, #{latency => [{100, 3}]})),
    %% Two looks in the same microsecond.
    #{duration_s := 0.000001} = erlmcp_load_sample:between(mark(5, #{}, #{}), mark(5, #{}, #{}), 0).

%% Reports.

reports_are_of_the_measured_time(_) ->
    Settings = #{latency := Latency} = (settings(#{}))#{connections => 4, percent => 10},
    Before = mark(0, #{late => 1, strays => 2, lost => 3, messages => 4, bytes_in => 50,
                       bytes_out => 60}, #{generator_cpu_us => 10, server_cpu_us => 20}),
    Until = mark(0, #{}, #{generator_cpu_us => 110, server_cpu_us => 420,
                           server_rss_bytes => 2_097_152}),
    After = mark(0, #{sent => 9, answered => 5, wrong => 1, unsent => 2, open_failed => 6,
                      late => 11, strays => 22, lost => 33, messages => 44, bytes_in => 550,
                      bytes_out => 660}, #{}),
    Start = mark(1_000_000, #{}, #{generator_cpu_us => 1, server_cpu_us => 3}),
    Ready = mark(3_000_000, #{}, #{generator_cpu_us => 6, server_cpu_us => 10}),
    Course = lists:foldl(fun(Outcome, Of) -> erlmcp_load_course:ended(Outcome, 0, 1, Of) end,
                         erlmcp_load_course:new(0),
                         [{refused, 1056}, {failed, closed}, {wrong, id}, unsent]),
    Samples = [#{memory_rss_mib_per_node => Mib} || Mib <- [1.0, 3.0, 2.0]],
    Run = #{settings => Settings, before => Before, until => Until, after_all => After,
            samples => Samples, course => Course, from_us => 0, until_us => 2_000_000,
            opened => 8, started => Start, ready => Ready, carried => 50.0},
    Report = erlmcp_load_report:new(Run),
    Expected = #{sent => 9, answered => 5, wrong => 1, unsent => 2, refused => #{1056 => 1},
                 failed => #{closed => 1}, wrong_by => #{id => 1}, from_us => 0, duration_s => 2.0,
                 answered_per_s => 2.5, latency => Latency, seconds => Samples, connections => 4,
                 opened => 8, opened_per_s => 4.0, open_failed => 6, late => 10, strays => 20,
                 lost => 30, messages => 40, bytes_in => 500, bytes_out => 600,
                 all_bytes_in => 550, all_bytes_out => 660, generator_cpu_us => 100,
                 server_cpu_us => 400, opening_generator_cpu_us => 5, opening_server_cpu_us => 7,
                 server_rss_bytes => 2_097_152, server_rss_max_bytes => 3_145_728,
                 carried_per_s => 50.0, offered_per_s => 5.0},
    ?assertEqual(Expected, maps:with(maps:keys(Expected), Report)),
    [#{at_s := 2.0, errors := #{unsent := 1}}] = maps:get(windows, Report),
    %% What nobody measured is in no report.
    Empty = mark(0, #{}, #{}),
    Unknown = erlmcp_load_report:new(Run#{carried := none, samples := [], until := Empty,
                                          started := Empty, ready := Empty}),
    ?assertEqual([], [Key || Key <- [carried_per_s, offered_per_s, server_rss_bytes,
                                     server_rss_max_bytes, generator_cpu_us, server_cpu_us,
                                     opening_generator_cpu_us, opening_server_cpu_us],
                             is_map_key(Key, Unknown)]),
    %% One request a second at least, or an open loop would never send.
    #{offered_per_s := 1} = erlmcp_load_report:new(Run#{carried := 0.5}).

%% Processes.

%% The runtime counts its own processor time, too, from its beginning on, and less of the kernel's.
processes_are_as_the_system_says(_) ->
    Self = erlmcp_bench_process:self(),
    Both = fun() ->
        {Ms, _} = erlang:statistics(runtime),
        {Ms, erlmcp_bench_process:cpu_us(Self) div 1_000}
    end,
    {Ms, Cpu} = Both(),
    {More, MoreCpu} = burn(Ms + 200, Both),
    ?assert(MoreCpu - Cpu > More - Ms - 50 andalso MoreCpu - Cpu < 2 * (More - Ms) + 100),
    Bytes = erlmcp_bench_process:rss_bytes(Self),
    {ok, Statm} = file:read_file("/proc/self/statm"),
    [_, Pages | _] = binary:split(Statm, ~" ", [global]),
    PageSize = list_to_integer(string:trim(os:cmd("getconf PAGESIZE"))),
    ?assert(abs(Bytes / (binary_to_integer(Pages) * PageSize) - 1) < 0.2),
    None = 1 bsl 30,
    ?assertEqual({undefined, undefined},
                 {erlmcp_bench_process:cpu_us(None), erlmcp_bench_process:rss_bytes(None)}).

%% Until the runtime has counted so many milliseconds.
burn(Until, Read) ->
    case Read() of
        {Ms, _} = Both when Ms >= Until -> Both;
        _ ->
            _ = lists:sum(lists:seq(1, 1_000_000)),
            burn(Until, Read)
    end.
