-module(load_scenarios_SUITE).
-moduledoc """
Tests for the load scenarios, each in a very short form. Every request is answered or refused with a
reason, and the published metrics add up to that. A result with a broken promise fails.
""".

-include_lib("stdlib/include/assert.hrl").

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1]).
-export([clients_are_as_published/1, slopes_have_steps/1, a_short_run_keeps_the_shares/1,
         what_stops_came_last/1, clients_are_spread/1, what_is_wrong_fails/1,
         errors_have_their_zones/1, faults_are_whole_in_time/1, faults_have_to_be_seen/1,
         an_outage_ends_with_a_calm/1, the_page_has_the_data/1,
         a_late_crowd_shortens_no_phase/1, a_late_phase_has_no_higher_rate/1,
         seconds_come_on_time_beside_many_loads/1]).
-export([baseline_is_counted/1, connection_flood_rises_and_falls/1,
         message_bombing_is_accounted_for/1, chaos_does_harm/1, hundredfold_has_scale/1,
         other_servers_are_loaded/1, clients_that_did_not_connect_are_told/1,
         nodes_share_the_clients/1, wrong_options_are_told/1,
         a_taken_port_is_told/1, metrics_end_with_a_killed_caller/1]).

%% Milliseconds of a pause of the machine after which a run is judged again.
-define(PAUSE_MS, 150).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [clients_are_as_published, slopes_have_steps, a_short_run_keeps_the_shares,
     what_stops_came_last, clients_are_spread, what_is_wrong_fails, errors_have_their_zones,
     faults_are_whole_in_time, faults_have_to_be_seen, an_outage_ends_with_a_calm,
     wrong_options_are_told, a_taken_port_is_told, metrics_end_with_a_killed_caller,
     the_page_has_the_data,
     a_late_crowd_shortens_no_phase, a_late_phase_has_no_higher_rate,
     seconds_come_on_time_beside_many_loads, {group, runs}].

%% They take their time, and little else.
groups() ->
    [{runs, [parallel],
      [baseline_is_counted, connection_flood_rises_and_falls, message_bombing_is_accounted_for,
       chaos_does_harm, hundredfold_has_scale, other_servers_are_loaded,
       clients_that_did_not_connect_are_told, nodes_share_the_clients]}].

init_per_suite(Config) ->
    {ok, _} = application:ensure_all_started(inets),
    {ok, _} = application:ensure_all_started(erlmcp),
    Config.

end_per_suite(_) -> ok.

%% The data.

clients_are_as_published(_) ->
    [{normal, 25, 100, 512}, {high_load, 50, 1_000, 2_048}, {low_load, 10, 10, 256},
     {slow_client, 5, 1, 1_024}, {message_bomber, 20, 10_000, 128}] =
        [{Name, Clients, Rate, Bytes}
         || {Name, #{clients := Clients, rate := Rate, bytes := Bytes}}
                <- erlmcp_bench_profile:all()],
    [{baseline, 2_500, 330}, {connection_flood, 25_000, 600}, {message_bombing, 200_000, 360},
     {chaos, 2_500, 330}, {hundredfold, 500_000, 180}] =
        [{Name, round(Clients * Rate), erlmcp_bench_scenario_plan:seconds(Scenario)}
         || #{name := Name, clients := #{clients := Clients, rate := Rate}} = Scenario
                <- erlmcp_bench_scenarios:all()],
    %% As many clients on another machine, with fewer messages.
    {ok, Hundredfold} = erlmcp_bench_scenarios:find(hundredfold),
    #{clients := #{clients := 15_000, rate := Fewer},
      marks := [#{figure := throughput_msg_per_s, value := 62_500.0},
                #{figure := latency_p95_us, value := 50_000}]} =
        erlmcp_bench_scenarios:on_cores(2, Hundredfold),
    62_500 = round(15_000 * Fewer),
    {ok, Baseline} = erlmcp_bench_scenarios:find(baseline),
    Baseline = erlmcp_bench_scenarios:on_cores(2, Baseline).

slopes_have_steps(_) ->
    Steps = steps(connection_flood, #{}),
    Clients = fun(Name) -> [There || #{phase := Phase, clients := There} <- Steps,
                                     Phase =:= Name] end,
    ?assertEqual(lists:seq(25, 500, 25), Clients(ramp)),
    %% A short ramp has steps at 150, 250, 350 and 500 clients, too, if it has four at all.
    Short = fun(DurationS) ->
        [There || #{phase := ramp, clients := There}
                      <- steps(connection_flood, #{duration_s => DurationS})]
    end,
    ?assertEqual([150, 250, 350, 500], Short(8)),
    ?assertEqual([150, 250, 350, 400, 500], Short(10)),
    ?assertEqual([83, 150, 250, 350, 417, 500], Short(12)),
    ?assertEqual([], [150, 250, 350, 500] -- Short(300)),
    ?assertEqual([167, 333, 500], Short(7)),
    ?assertEqual([500], Clients(peak)),
    Down = Clients(down),
    ?assertEqual(lists:reverse(lists:usort(Down)), Down),
    ?assert(hd(Down) < 500 andalso lists:last(Down) >= 1),
    %% Without a gap, and with all the time.
    ?assertEqual(600_000, lists:foldl(
        fun(#{from_ms := From, until_ms := Until}, Before) when From =:= Before, Until > From ->
            Until
        end, 0, Steps)).

a_short_run_keeps_the_shares(_) ->
    [#{phase := warm_up, from_ms := 0, until_ms := 1_000, rate := 500.0},
     #{phase := peak, from_ms := 1_000, until_ms := 11_000, rate := 10_000.0, clients := 2},
     #{phase := cool_down, from_ms := 11_000, until_ms := 12_000, rate := 500.0, clients := 2}] =
        steps(message_bombing, #{duration_s => 12, scale => 0.1}),
    %% No step is shorter than what is counted.
    [_, _, _, _, _] = [Step || #{phase := ramp} = Step
                                   <- steps(connection_flood, #{duration_s => 10})].

what_stops_came_last(_) ->
    Groups = [{c, 5, 1.0}, {b, 5, 1.0}, {a, 10, 1.0}],
    ?assertEqual({[], Groups, 4}, erlmcp_bench_scenario_plan:change(Groups, 24, 1.0)),
    {[{c, _, _}], [{b, _, _}, {a, _, _}], 2} =
        erlmcp_bench_scenario_plan:change(Groups, 17, 1.0),
    {[], [{c, 5, 2.0}, {b, 5, 2.0}, {a, 10, 2.0}], 0} =
        erlmcp_bench_scenario_plan:change(Groups, 20, 2.0),
    {[{b, 5, 1.0}, {c, 5, 1.0}], [{a, 10, 0.5}], 0} =
        erlmcp_bench_scenario_plan:change(Groups, 10, 0.5).

clients_are_spread(_) ->
    [{a, 3}, {b, 2}, {c, 2}] = erlmcp_bench_scenario_plan:split(7, [a, b, c]),
    [{a, 1}] = erlmcp_bench_scenario_plan:split(1, [a, b]),
    [] = erlmcp_bench_scenario_plan:split(0, [a]).

%% Each row of the page's tables of scenarios and profiles.
the_page_has_the_data(_) ->
    {ok, Page} = file:read_file(page(filename:dirname(code:which(?MODULE)))),
    Rows = [io_lib:format("| `~ts` | ~ts | ~ts |", [Name, clients(Clients), phases(Phases)])
            || #{name := Name, clients := Clients, phases := Phases}
                   <- erlmcp_bench_scenarios:all()]
        ++ [io_lib:format("| `~ts` | ~ts |", [Name, clients(Clients)])
            || {Name, Clients} <- erlmcp_bench_profile:all()],
    [] = [Row || Row <- [iolist_to_binary(Row) || Row <- Rows],
                 binary:match(Page, <<"\n", Row/binary, "\n">>) =:= nomatch].

page(Folder) ->
    case filename:join([Folder, "docs", "scenarios.md"]) of
        Page when Folder =/= "/" ->
            case filelib:is_regular(Page) of
                true -> Page;
                false -> page(filename:dirname(Folder))
            end
    end.

clients(#{clients := Clients, rate := Rate, bytes := Bytes}) ->
    lists:join(" | ", [thousands(Number) || Number <- [Clients, Rate, Bytes]]).

thousands(Number) when is_float(Number) -> float_to_list(Number, [{decimals, 1}]);
thousands(Number) when Number < 1_000 -> integer_to_list(Number);
thousands(Number) -> io_lib:format("~b,~3..0b", [Number div 1_000, Number rem 1_000]).

phases(Phases) ->
    lists:join(", ", [io_lib:format("~ts ~b s", [string:replace(atom_to_list(Name), "_", " "),
                                                 Seconds])
                      || #{name := Name, seconds := Seconds} <- Phases]).

%% Failures.

what_is_wrong_fails(_) ->
    Good = sums(#{sent => 10_000, answered => 10_000}),
    #{status := passed, complaints := [], zone := green} = judged(baseline, Good, Good),
    Complaints = fun(Name, Steps, Report) ->
        #{status := failed, complaints := Found} = judged(Name, Steps, Report),
        Found
    end,
    Red = sums(#{sent => 10_000, answered => 9_900, refused => 100}),
    [{zone, red}] = Complaints(baseline, Red, Red),
    %% A bombed server may refuse. It must not answer wrongly, or not at all.
    #{status := passed, zone := red} = judged(message_bombing, Red, Red),
    Wrong = sums(#{sent => 10_000, answered => 9_999, wrong => 1}),
    [{wrong_replies, 1}] = Complaints(message_bombing, Wrong, Wrong),
    Lost = sums(#{sent => 10_000, answered => 9_999}),
    [{unaccounted, 1}] = Complaints(message_bombing, Lost, Lost),
    [uncounted] = Complaints(message_bombing, Good,
                             sums(#{sent => 10_001, answered => 10_001})),
    None = sums(#{sent => 10, failed => 10}),
    [nothing_answered] = Complaints(message_bombing, None, None).

errors_have_their_zones(_) ->
    %% A request that was due and never sent is an error too.
    [green, yellow, orange, red] =
        [erlmcp_bench_scenario_sums:zone(sums(#{answered => 20_000 - Errors, unsent => Errors}))
         || Errors <- [9, 10, 20, 200]],
    ?assertEqual(0.0, erlmcp_bench_scenario_sums:error_percent(erlmcp_bench_scenario_sums:none())),
    ?assertEqual(25.0, erlmcp_bench_scenario_sums:error_percent(
        sums(#{answered => 6, wrong => 1, failed => 1}))).

faults_are_whole_in_time(_) ->
    Outcome = fun(Outage) ->
        of_fault(kill_node, #{nodes => 1}, #{nodes => 1}, Outage, [])
    end,
    #{status := passed, faults := [#{recovered := true, detection_ms := 5.0, recovery_ms := 9.0}]} =
        Outcome(#{errors => 2, first_us => 1_005_000, last_us => 1_009_000}),
    #{status := passed, faults := [#{recovered := true} = Unnoticed]} = Outcome(#{errors => 0}),
    false = is_map_key(recovery_ms, Unnoticed),
    %% Later than the mark; and not at all.
    #{status := failed, complaints := [{not_recovered, kill_node}]} =
        Outcome(#{errors => 2, first_us => 1_005_000, last_us => 44_000_000}),
    #{status := failed, faults := [#{recovered := false}]} =
        Outcome(#{errors => 2, first_us => 1_005_000, last_us => 98_000_000}).

of_fault(Fault, Extent, Least, Outage, LatenciesUs) ->
    Good = sums(#{sent => 10_000, answered => 10_000}),
    Latency = erlmcp_bench_histogram:new(),
    _ = [ok = erlmcp_bench_histogram:record(Latency, Us) || Us <- LatenciesUs],
    judged(chaos, Good, Good,
           #{faults => [#{event => fault, fault => Fault, state => begins, extent => Extent,
                          least => Least}],
             outages => [Outage#{fault => Fault, at_us => 1_000_000, slow => 0,
                                 latency => Latency}],
             ended_us => 100_000_000}).

%% A fault that was not there is no fault that was survived.
faults_have_to_be_seen(_) ->
    Calm = #{errors => 0},
    Of = fun(Fault, Extent, Least, LatenciesUs) ->
        #{complaints := Complaints, faults := [#{seen := Seen}]} =
            of_fault(Fault, Extent, Least, Calm, LatenciesUs),
        {Seen, Complaints}
    end,
    {true, []} = Of(kill_node, #{nodes => 1}, #{nodes => 1}, []),
    {false, [{unseen, kill_node}]} = Of(kill_node, #{nodes => 0}, #{nodes => 1}, []),
    {true, []} = Of(drop_clients, #{clients => 180}, #{clients => 180}, []),
    {false, [{unseen, drop_clients}]} = Of(drop_clients, #{clients => 179}, #{clients => 180}, []),
    %% Of the slower half.
    Half = fun(Us) -> lists:duplicate(50, 1_000) ++ lists:duplicate(50, Us) end,
    {true, []} = Of(add_latency, #{added_ms => 100}, #{}, Half(101_000)),
    {false, [{unseen, add_latency}]} = Of(add_latency, #{added_ms => 100}, #{}, Half(90_000)),
    {false, [{unseen, add_latency}]} = Of(add_latency, #{added_ms => 100}, #{}, []).

an_outage_ends_with_a_calm(_) ->
    {ok, Outages} = erlmcp_bench_scenario_outages:start_link(),
    Reply = fun(Outcome, DueMs, DoneMs) ->
        Outages ! {erlmcp_load, Outcome, DueMs * 1_000, DoneMs * 1_000},
        ok
    end,
    %% Replies before the fault are not its effect, but they show the usual latency.
    ok = Reply({failed, closed}, 10, 11),
    ok = Reply(answered, 0, 200),
    ok = erlmcp_bench_scenario_outages:begins(Outages, kill_node, 1_000_000),
    ok = Reply({failed, closed}, 900, 1_001),
    ok = erlmcp_bench_scenario_outages:missing(Outages, 2_000_000),
    ok = Reply(answered, 2_099, 2_499),
    ok = Reply(answered, 2_099, 2_500),
    ok = Reply({refused, 1056, #{}}, 5_000, 5_001),
    [#{fault := kill_node, at_us := 1_000_000, first_us := 1_001_000, last_us := 2_500_000,
       errors := 2, slow := 1}] = erlmcp_bench_scenario_outages:report(Outages),
    ok = erlmcp_bench_scenario_outages:begins(Outages, drop_clients, 6_000_000),
    [_, #{errors := 0} = Second] = erlmcp_bench_scenario_outages:report(Outages),
    false = is_map_key(last_us, Second),
    ok = gen_server:stop(Outages).

%% The runs.

baseline_is_counted(_) ->
    Test = self(),
    {ok, Outcome} = erlmcp_bench_scenario:run(baseline, #{
        duration_s => 3, scale => 0.2, metrics => 0,
        on_event => fun(Event) -> Test ! {scraped(Event), Event} end}),
    #{scenario := baseline, shortened := true, full_s := 330, run_s := 3, clients := 5, nodes := 1,
      total := #{sent := Sent} = Total, marks := Marks} = Outcome,
    ok = fine(Outcome),
    ok = accounted(Total),
    %% Published counts grow up to their final values at all times.
    Events = events(),
    #{metrics := [_, _]} = hd([Event || {_, #{event := started} = Event} <- Events]),
    [_ | _] = Scrapes = [Scraped || {[_, _] = Scraped, #{event := second}} <- Events],
    lists:foreach(fun([Client, Server]) ->
        ok = client_adds_up(Client, Sent),
        ok = server_adds_up(Server, Sent)
    end, Scrapes),
    [Client, Server] = lists:last(Scrapes),
    ?assertEqual(5, erlmcp_test_exposition:value(~"mcp_client_connections_active", [], Client)),
    ?assertEqual(5, erlmcp_test_exposition:value(~"mcp_server_connection_active", [], Server)),
    ?assert(erlmcp_test_exposition:value(~"mcp_client_messages_sent_total", [], Client) > 0),
    [warm_up, peak] = [Phase || {_, #{event := phase, phase := Phase}} <- Events],
    %% The mark of a throughput is for as many clients as there are.
    [500.0] = [Value || #{figure := throughput_msg_per_s, value := Value} <- Marks].

client_adds_up(Metrics, Sent) ->
    Value = fun(Name, Labels) -> erlmcp_test_exposition:value(Name, Labels, Metrics) end,
    Ended = [Value(~"mcp_client_requests_total", [{~"outcome", Outcome}])
             || Outcome <- [~"answered", ~"refused", ~"failed", ~"wrong"]],
    SentYet = Value(~"mcp_client_messages_sent_total", []),
    ?assert(lists:sum(Ended) =< SentYet andalso SentYet =< Sent),
    ?assertEqual(hd(Ended), Value(~"mcp_client_request_duration_ms_count", [])),
    ?assertEqual(hd(Ended), Value(~"mcp_client_request_duration_ms_bucket", [{~"le", ~"+Inf"}])),
    ?assertEqual(lists:sum(tl(Ended)),
                 lists:sum([Value(~"mcp_client_messages_errors_total", [{~"error", Error}])
                            || Error <- [~"refused", ~"failed", ~"wrong"]])),
    ok.

server_adds_up(Metrics, Sent) ->
    Value = fun(Name) -> erlmcp_test_exposition:value(Name, [], Metrics) end,
    ?assert(Value(~"mcp_server_requests_total") =< Sent),
    %% The time of a handler is counted before its answer is, and the two are read in this order.
    ?assert(Value(~"mcp_server_processing_duration_ms_count") =< Sent),
    ?assert(Value(~"mcp_server_message_queue_length") >= 0),
    ok.

connection_flood_rises_and_falls(_) ->
    Test = self(),
    {ok, #{steps := Steps, total := Total} = Outcome} =
        erlmcp_bench_scenario:run(connection_flood, #{
            duration_s => 4, scale => 0.02,
            on_event => fun(Event) -> Test ! {none, Event} end}),
    false = is_map_key(bombing, Outcome),
    ok = fine(Outcome),
    ok = accounted(Total),
    [ramp, peak, down] = [Phase || {_, #{event := phase, phase := Phase}} <- events()],
    [5, 10, 10, 5] = [Clients || #{clients := Clients} <- Steps].

message_bombing_is_accounted_for(_) ->
    {ok, #{total := Total, complaints := [], peak := #{rate := 2_000.0}, marks := [],
           bombing := #{end_backlog_requests := _, most_backlog_requests := _}}} =
        erlmcp_bench_scenario:run(message_bombing, #{
            duration_s => 2.4, profile => high_load, scale => 0.04, transport => http1}),
    ok = accounted(Total).

chaos_does_harm(_) ->
    erlmcp_test_pauses:undisturbed(?PAUSE_MS, fun harm_is_done/0).

harm_is_done() ->
    %% Those of the try before.
    _ = events(),
    Test = self(),
    {ok, #{faults := Faults, total := Total, complaints := Complaints, nodes := 2}} =
        erlmcp_bench_scenario:run(chaos, #{
            duration_s => 4, scale => 0.2, timeout_ms => 2_000,
            on_event => fun(Event) -> Test ! {none, Event} end}),
    %% On a machine that does much else it may be whole again after the end.
    [] = Complaints -- [{not_recovered, Fault} || #{fault := Fault} <- Faults],
    ok = accounted(Total),
    #{kill_node := #{extent := #{nodes := 1}}, drop_clients := #{extent := #{clients := 40}},
      add_latency := Latency} = #{Fault => Figures || #{fault := Fault} = Figures <- Faults},
    case Latency of
        #{not_run := _} -> ok;
        #{latency_p95_us := P95} -> ?assert(P95 >= 100_000)
    end,
    [_, _, _ | _] = [Fault || {_, #{event := fault} = Fault} <- events()].

%% The nodes stand still while the crowd opens its sessions, for longer than the warm-up.
a_late_crowd_shortens_no_phase(_) ->
    Test = self(),
    {error, {crashed, seen}} = erlmcp_bench_scenario:run(chaos, #{
        duration_s => 11, scale => 0.1, era => {session, ~"2025-06-18"},
        on_event => fun(#{event := started}) -> stand_still(1_500);
                       (#{event := phase, phase := Phase}) ->
                           Test ! {Phase, erlang:monotonic_time(millisecond)},
                           Phase =:= warm_up orelse exit(seen);
                       (_) -> ok
                    end}),
    [WarmUp, Peak] = [receive {Phase, At} -> At end || Phase <- [warm_up, peak]],
    %% About 0 if the crowd took its time from the warm-up. The machine may pause before WarmUp.
    ?assert(Peak - WarmUp >= 300).

%% The clients of the phase before send on while the next one begins.
a_late_phase_has_no_higher_rate(_) ->
    Test = self(),
    {ok, #{peak := Peak}} = erlmcp_bench_scenario:run(baseline, #{
        duration_s => 4, scale => 0.2,
        on_event => fun(#{event := phase, phase := peak}) -> receive after 3_000 -> ok end;
                       (#{event := second, phase := peak} = Second) -> Test ! Second;
                       (_) -> ok
                    end}),
    #{rate := Due, throughput_msg_per_s := Answered, duration_s := Seconds} = Peak,
    ct:pal("~.1f of ~.1f a second in ~.1f s", [Answered, Due, Seconds]),
    ?assert(Seconds > 6.0),
    ?assert(Answered < 1.5 * Due),
    receive
        #{event := second, span_ms := Milliseconds, sums := #{answered := First}} ->
            ?assert(Milliseconds > 3_000),
            ?assert(First * 1_000 / Milliseconds < 1.5 * Due)
    after 0 -> ct:fail(no_second)
    end.

%% The figures of a second come when it ends, though many processes wait for a scheduler. Each URL
%% has a load of its own.
seconds_come_on_time_beside_many_loads(_) ->
    erlmcp_test_pauses:undisturbed(?PAUSE_MS, fun seconds_come_on_time/0).

seconds_come_on_time() ->
    {ok, Server} = erlmcp:start_server(#{name => ~"other", version => ~"1",
                                         listen => [{http, #{}}]}),
    [#{url := Url}] = erlmcp:listeners(Server),
    Test = self(),
    Numbers = lists:seq(1, 10_000),
    {error, {crashed, seen}} = erlmcp_bench_scenario:run(baseline, #{
        urls => lists:duplicate(100, Url), profile => low_load, scale => 10, duration_s => 30,
        on_event => fun(#{event := second, elapsed_s := 1}) ->
                            [spawn_link(fun Works() -> _ = lists:sort(Numbers), Works() end)
                             || _ <- lists:seq(1, 200)];
                       (#{event := second, elapsed_s := Second, span_ms := Milliseconds}) ->
                            Test ! {span, Milliseconds},
                            Second < 5 orelse exit(seen);
                       (_) -> ok
                    end}),
    Spans = [receive {span, Milliseconds} -> Milliseconds end || _ <- lists:seq(2, 5)],
    ct:pal("~p", [Spans]),
    ok = erlmcp:stop_server(Server),
    ?assert(lists:max(Spans) < 2_000).

%% In the process that runs the scenario, to which its nodes are linked.
stand_still(Milliseconds) ->
    {links, Links} = process_info(self(), links),
    OsPids = [integer_to_list(map_get(os_pid, erlmcp_bench_scenario_node:facts(Node)))
              || Node <- Links, is_pid(Node),
                 {Module, init, _} <- [proc_lib:initial_call(Node)],
                 Module =:= erlmcp_bench_scenario_node],
    [_, _] = OsPids,
    "" = os:cmd(["kill -STOP ", lists:join($\s, OsPids)]),
    spawn(fun() ->
        receive after Milliseconds -> os:cmd(["kill -CONT ", lists:join($\s, OsPids)]) end
    end).

hundredfold_has_scale(Config) ->
    {ok, #{clients := 15, shortened := true, scale := 0.001, total := Total} = Outcome} =
        erlmcp_bench_scenario:run(hundredfold, #{duration_s => 3, scale => 0.001}),
    ok = accounted(Total),
    {ok, [File | _]} =
        erlmcp_bench_scenario_result:write(Outcome, proplists:get_value(priv_dir, Config)),
    ok = erlmcp_metrology_validator:validate_file(File),
    {ok, #{~"workload_id" := ~"hundredfold", ~"benchmark" := ~"scenario", ~"transport" := ~"tcp",
           ~"shortened" := true, ~"scale_ratio" := 0.001, ~"sample_count" := Count,
           ~"payload_bytes" := 512, ~"marks" := [_, _],
           ~"throughput_msg_per_s" := _, ~"latency_p99_us" := _, ~"steps" := [_, _ | _]}} =
        erlmcp_bench_result:read(File),
    #{peak := #{sums := #{answered := Count}}} = Outcome.

other_servers_are_loaded(Config) ->
    {ok, Server} = erlmcp:start_server(#{name => ~"other", version => ~"1",
                                         listen => [{http, #{}}]}),
    [#{url := Url}] = erlmcp:listeners(Server),
    {ok, #{total := Total, urls := [Url], nodes := 0, marks := []} = Outcome} =
        erlmcp_bench_scenario:run(baseline, #{
            urls => [Url], duration_s => 2, scale => 0.1,
            requests => [{1, {~"tools/list", #{}}}]}),
    ok = fine(Outcome),
    ok = accounted(Total),
    %% Its requests have another payload, and it is not known.
    {ok, [File | _]} =
        erlmcp_bench_scenario_result:write(Outcome, proplists:get_value(priv_dir, Config)),
    {ok, #{~"workload_id" := ~"baseline", ~"marks" := [], ~"mix" := ~"tools/list"} = Result} =
        erlmcp_bench_result:read(File),
    false = is_map_key(~"payload_bytes", Result),
    %% It has no tool of that name, and says so to each.
    {ok, #{status := failed, complaints := [nothing_answered, {zone, red}], zone := red}} =
        erlmcp_bench_scenario:run(baseline, #{urls => [Url], duration_s => 2, scale => 0.1}),
    ok = erlmcp:stop_server(Server).

%% The server has no place for three of five clients.
clients_that_did_not_connect_are_told(_) ->
    {ok, Server} = erlmcp:start_server(#{name => ~"small", version => ~"1",
                                         limits => #{connections => 2}, listen => [{http, #{}}]}),
    [#{url := Url}] = erlmcp:listeners(Server),
    {ok, #{status := failed, complaints := Complaints, era := ~"2025-06-18"}} =
        erlmcp_bench_scenario:run(baseline, #{
            urls => [Url], duration_s => 2, scale => 0.2, era => {session, ~"2025-06-18"},
            requests => [{1, {~"tools/list", #{}}}]}),
    ?assertEqual([{unopened, 3}], Complaints -- [{zone, red}]),
    ok = erlmcp:stop_server(Server).

%% A machine that stands still at the end leaves requests unsent, or sends them after the last line.
nodes_share_the_clients(Config) ->
    erlmcp_test_pauses:undisturbed(?PAUSE_MS, fun() -> clients_are_shared(Config) end).

clients_are_shared(Config) ->
    _ = events(),
    Test = self(),
    {ok, #{nodes := 2, total := Total} = Outcome} = erlmcp_bench_scenario:run(baseline, #{
        nodes => 2, duration_s => 2, scale => 0.16, metrics => 0, profile => low_load,
        on_event => fun(Event) -> Test ! {scraped(Event), Event} end}),
    ok = accounted(Total),
    Scrapes = [Nodes || {[_ | Nodes], #{event := second}} <- events()],
    [_, _] = Counts = [erlmcp_test_exposition:value(~"mcp_server_connection_active", [], Node)
                       || Node <- lists:last(Scrapes)],
    [1, 1] = Counts,
    ok = files_have_it(Outcome, filename:join(proplists:get_value(priv_dir, Config), "nodes")).

%% The result, a line for each second of each process and load, and the metrics of each phase.
files_have_it(#{total := #{sent := Sent}} = Outcome, Folder) ->
    {ok, [File, Lines, WarmUp, Peak]} = erlmcp_bench_scenario_result:write(Outcome, Folder),
    Name = filename:rootname(File),
    ?assertEqual([Name ++ ".jsonl", Name ++ "_warm_up.prom", Name ++ "_peak.prom"],
                 [Lines, WarmUp, Peak]),
    {ok, #{~"phases" := Phases, ~"windows" := [#{~"errors_count" := Errors}],
           ~"seconds" := [#{~"at_s" := 1, ~"backlog_requests" := _} | _],
           ~"received_mib_per_s" := In, ~"overhead_percent" := Overhead,
           ~"steps" := [#{~"latency_p999_us" := _, ~"latency_max_us" := _,
                          ~"sent_mib_per_s" := _, ~"overhead_percent" := _}]}} =
        erlmcp_bench_result:read(File),
    %% Those that are due at the very end may not be sent: 20 a second are due.
    ?assertEqual(#{}, maps:remove(~"unsent", Errors)),
    ?assert(maps:get(~"unsent", Errors, 0) =< 10),
    ?assert(In > 0 andalso Overhead > 0 andalso Overhead < 100),
    [[~"warm_up", ~"generator", ~"node_1", ~"node_2"], [~"peak", ~"generator", ~"node_1",
                                                        ~"node_2"]] =
        [[Phase | [Node || #{~"node" := Node} <- Nodes]]
         || #{~"phase" := Phase, ~"nodes" := Nodes} <- Phases],
    %% Each request has a process of its call at least, and the peak lasts nearly two seconds.
    [#{~"phase" := ~"peak", ~"gc_count" := Collections, ~"gc_count_per_msg" := Each,
       ~"gc_sampled_percent" := Sampled, ~"gc_latency_p95_percent" := Part}] =
        [Phase || #{~"phase" := ~"peak"} = Phase <- Phases],
    ?assert(Collections > 0 andalso Each > 0 andalso Sampled >= 0 andalso Part >= 0),
    [begin
         #{~"memory_rss_mib_per_node" := Mib, ~"memory_rss_max_mib_per_node" := Most,
           ~"cpu_percent" := Cpu, ~"received_bytes" := Received, ~"sent_bytes" := Bytes} = Node,
         ?assert(Mib > 10 andalso Mib =< Most andalso Cpu >= 0),
         ?assert(Received > 0 andalso Bytes > 0)
     end || #{~"phase" := ~"peak", ~"nodes" := [_ | Nodes]} <- Phases, Node <- Nodes],
    {ok, Text} = file:read_file(Lines),
    Read = [json:decode(Line) || Line <- binary:split(Text, ~"\n", [global, trim])],
    %% The whole seconds, and the ends of both phases.
    [?assert(length([At || #{~"node" := Of, ~"at_s" := At} = Line <- Read, Of =:= Node,
                           not is_map_key(~"load", Line)]) >= 2)
     || Node <- [~"generator", ~"node_1", ~"node_2"]],
    ?assertEqual([{~"load_1", ~"node_1"}, {~"load_2", ~"node_2"}],
                 lists:usort([{Load, Node} || #{~"load" := Load, ~"node" := Node} <- Read])),
    %% The last requests are sent after the last line.
    InLines = lists:sum([Count || #{~"load" := _, ~"sent_count" := Count} <- Read]),
    ?assert(InLines =< Sent andalso InLines >= Sent - 5),
    {ok, AtPeak} = file:read_file(Peak),
    Metrics = erlmcp_test_exposition:parse(AtPeak),
    Value = fun(Metric, Labels) -> erlmcp_test_exposition:value(Metric, Labels, Metrics) end,
    ?assert(Value(~"mcp_client_messages_sent_total", [{~"instance", ~"generator"}]) =< Sent),
    [?assert(Value(~"mcp_server_requests_total", [{~"instance", Node}]) > 0)
     || Node <- [~"node_1", ~"node_2"]],
    %% A line that breaks a rule leaves no file.
    Broken = filename:join(Folder, "broken"),
    #{series := [First | _]} = Outcome,
    {error, [#{place := ~"/1/latency_ms", rule := rejected_name}]} =
        erlmcp_bench_scenario_result:write(Outcome#{series := [First#{latency_ms => 1}]}, Broken),
    ?assertEqual([], filelib:wildcard(filename:join(Broken, "*"))),
    ok.

wrong_options_are_told(_) ->
    [{error, Expected} = erlmcp_bench_scenario:run(Name, Options)
     || {Expected, Name, Options} <-
            [{{unknown_scenario, other}, other, #{}},
             {{unknown_profile, other}, baseline, #{profile => other}},
             {{bad_option, scale, ~"a number above 0"}, baseline, #{scale => 0}},
             {{bad_option, nodes, ~"a positive integer"}, baseline, #{nodes => 0}},
             {{bad_option, more, ~"no such option"}, baseline, #{more => 1}},
             {{bad_option, metrics, ~"a port"}, baseline, #{metrics => 65_536}},
             {{bad_option, metrics, ~"a port with a next one for each node"}, baseline,
              #{metrics => 65_535}},
             {{bad_option, metrics, ~"a port with a next one for each node"}, baseline,
              #{metrics => 65_530, nodes => 6}},
             {{needs_own_nodes, chaos}, chaos, #{urls => [~"http://127.0.0.1:1/mcp"]}}]].

%% The port of the node's metrics, which is the next one after the generator's.
a_taken_port_is_told(_) ->
    {Taken, Port} = taken_after_free(),
    ?assertEqual({error, {node, eaddrinuse}},
                 erlmcp_bench_scenario:run(baseline, #{duration_s => 1, metrics => Port - 1})),
    ok = gen_tcp:close(Taken).

taken_after_free() ->
    {ok, Taken} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}]),
    {ok, Port} = inet:port(Taken),
    case gen_tcp:listen(Port - 1, [{ip, {127, 0, 0, 1}}]) of
        {ok, Free} ->
            ok = gen_tcp:close(Free),
            {Taken, Port};
        {error, _} ->
            ok = gen_tcp:close(Taken),
            taken_after_free()
    end.

metrics_end_with_a_killed_caller(_) ->
    Test = self(),
    Caller = spawn(fun() ->
        erlmcp_bench_scenario:run(baseline, #{
            duration_s => 60, scale => 0.04, metrics => 0,
            on_event => fun(Event) -> Test ! Event end})
    end),
    Url = receive #{event := started, metrics := [Generator, _]} -> Generator
          after 30_000 -> error(not_started)
          end,
    #{port := Port} = uri_string:parse(Url),
    [Listener] = [Pid || _ := #{pid := Pid, port := Listens} <- ranch:info(), Listens =:= Port],
    Monitor = monitor(process, Listener),
    true = exit(Caller, kill),
    receive {'DOWN', Monitor, process, Listener, _} -> ok after 30_000 -> error(still_listens) end.

%% Helpers of the cases.

%% A machine that does much else may be late with some of the last requests.
fine(#{complaints := Complaints}) ->
    [] = Complaints -- [{zone, red}],
    ok.

steps(Name, Options) ->
    {ok, Scenario} = erlmcp_bench_scenarios:find(Name),
    erlmcp_bench_scenario_plan:steps(Scenario, options(Scenario, Options)).

options(Scenario, Given) ->
    maps:merge(#{scale => 1, duration_s => erlmcp_bench_scenario_plan:seconds(Scenario),
                 transport => tcp}, Given).

sums(Given) ->
    #{answered := Answered} = Sums = maps:merge(erlmcp_bench_scenario_sums:none(), Given),
    Sums#{latency := [{1_000, Answered} || Answered > 0]}.

judged(Name, Steps, Report) ->
    judged(Name, Steps, Report, #{faults => [], outages => [], ended_us => 0}).

%% Of a run in which all came in the peak.
judged(Name, Peak, #{refused := Refused, failed := Failed} = Total, Harm) ->
    {ok, Scenario} = erlmcp_bench_scenarios:find(Name),
    Histogram = erlmcp_bench_scenario_sums:histogram(Total),
    Steps = [{Step, case Step of
                        #{phase := peak} -> Peak;
                        #{} -> erlmcp_bench_scenario_sums:none()
                    end, Until - From}
             || #{from_ms := From, until_ms := Until} = Step <- steps(Name, #{})],
    erlmcp_bench_scenario_outcome:new(
        Scenario, options(Scenario, #{}),
        Harm#{steps => Steps, nodes => 1, unopened => 0, readings => [], scrapes => [],
              pauses => #{},
              began_us => 0,
              loads => [{#{load => ~"load_1", node => ~"node_1", clients => 1},
                         Total#{latency := Histogram, refused := #{1056 => Refused},
                                failed := #{timeout => Failed}, all_bytes_in => 0,
                                all_bytes_out => 0, course => erlmcp_load_course:new(0),
                                from_us => 0, seconds => [],
                                lateness => erlmcp_bench_histogram:new()}}]}).

accounted(#{sent := Sent, wrong := 0, answered := Answered} = Sums) ->
    ?assertEqual(Sent, erlmcp_bench_scenario_sums:ended(Sums)),
    ?assert(Answered > 0),
    ok.

%% In the process that runs the scenario, so that nothing ends meanwhile.
scraped(#{event := started, metrics := Urls}) ->
    undefined = put(metrics, Urls),
    none;
scraped(#{event := second}) ->
    [erlmcp_test_exposition:parse(body(Url)) || Url <- get(metrics)];
scraped(_) ->
    none.

body(Url) ->
    {ok, {{_, 200, _}, Headers, Body}} =
        httpc:request(get, {binary_to_list(Url), []}, [], [{body_format, binary}]),
    "text/plain; version=0.0.4; charset=utf-8" = proplists:get_value("content-type", Headers),
    Body.

events() ->
    receive
        {_, #{event := _}} = Event -> [Event | events()]
    after 0 -> []
    end.
