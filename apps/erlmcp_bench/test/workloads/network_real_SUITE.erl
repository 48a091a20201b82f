-module(network_real_SUITE).
-moduledoc "Load over real sockets on a server in a process of its own, in short forms.".

-include_lib("stdlib/include/assert.hrl").

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([each_shape_gives_a_valid_result/1, a_planted_server_is_measured_as_it_is/1,
         collections_of_the_server_are_seen/1,
         a_server_of_a_url_is_measured/1, a_wrong_answer_fails_it/1, nobody_there_is_a_failure/1,
         room_is_what_the_least_carries/1, the_catalogue_is_whole/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [each_shape_gives_a_valid_result, a_planted_server_is_measured_as_it_is,
     collections_of_the_server_are_seen, a_server_of_a_url_is_measured, a_wrong_answer_fails_it,
     nobody_there_is_a_failure, room_is_what_the_least_carries, the_catalogue_is_whole].

init_per_suite(Config) ->
    erlmcp_test_planted:init(Config).

end_per_suite(_) -> ok.

each_shape_gives_a_valid_result(_) ->
    #{~"transport" := ~"tcp", ~"payload_bytes" := 1_024} = short(tcp_burst_100_1kib),
    #{~"transport" := ~"http1", ~"carried_msg_per_s" := Carried, ~"offered_msg_per_s" := Offered} =
        short(http1_sustained_2k_512b),
    true = Offered < Carried,
    #{~"held_connections" := 20, ~"held_connections_percent" := 100.0,
      ~"memory_rss_mib_per_conn" := _} = short(connections_tcp).

short(Workload) ->
    {ok, [Result]} = erlmcp_bench_network_real:run_workload(
        Workload, #{duration_s => 0.5, connections => 20}),
    ok = erlmcp_metrology_validator:validate(Result),
    #{~"shortened" := true, ~"connections" := 20, ~"wanted_connections" := 20,
      ~"sample_count" := Answered, ~"sent_count" := Sent, ~"refused_count" := Refused,
      ~"failed_count" := Failed, ~"wrong_count" := 0} = Result,
    Sent = Answered + lists:sum(maps:values(Refused)) + lists:sum(maps:values(Failed)),
    Result.

%% Each answer takes 20 ms, and the server counts the bytes.
a_planted_server_is_measured_as_it_is(Config) ->
    [begin
         Planted = #{target := {http, Url}} =
             erlmcp_test_planted:start(Wire, #{delay_ms => 20}, Config),
         {ok, [Result]} = erlmcp_bench_network_real:run_workload(
             Workload, #{duration_s => 0.8, connections => 4, against => Url}),
         #{requests := Requests, ends := [#{~"received" := Received, ~"sent" := Sent}]} =
             erlmcp_test_planted:journal(Planted),
         #{~"latency_p50_us" := P50, ~"latency_p999_us" := P999, ~"sample_count" := Count,
           ~"throughput_msg_per_s" := Rate, ~"duration_s" := Seconds,
           ~"latency_deviation_us" := Deviation, ~"overhead_percent" := Percent,
           ~"overhead_bytes_per_request" := Overhead, ~"received_mib_per_s" := In,
           ~"sent_mib_per_s" := Out} = Result,
         ?assert(P50 >= 20_000 andalso P999 >= P50 andalso Deviation < P999),
         ?assert(Count =< 4 * (800 div 20 + 1) andalso Count =< length(Requests)),
         ?assert(abs(Rate * Seconds - Count) < 0.001),
         Payload = 2 * Bytes,
         Each = (Received + Sent) / length(Requests),
         near(Each - Payload, Overhead, Each / 4),
         ?assert(abs(Percent - 100 * Overhead / (Overhead + Payload)) < 0.001),
         near(Sent / length(Requests) * Rate / 1_048_576, In, In / 4),
         near(Received / length(Requests) * Rate / 1_048_576, Out, Out / 4)
     end || {Wire, Workload, Bytes} <- [{http1, http1_sustained_2k_512b, 512},
                                        {http2, http_burst_100_1kib, 1_024}]],
    ok.

%% Requests that are in flight at the beginning and at the end make the difference.
near(Truth, Found, Off) -> ?assert(abs(Found - Truth) =< Off, {Truth, Found}).

%% Each request has three major collections in the process of its connection, and 0.1 without the
%% handler that makes them. There are so many connections that some are among the sampled processes.
collections_of_the_server_are_seen(_) ->
    {ok, [#{~"gc_count_per_msg" := Each, ~"gc_major_count" := Major, ~"gc_major_p95_us" := _,
            ~"gc_longest_us" := _, ~"gc_sampled_percent" := _} = Result]} =
        erlmcp_bench_network_real:run_workload(
            tcp_burst_100_1kib, #{duration_s => 0.8, connections => 64,
                                  server => #{handler => erlmcp_test_collecting_fixture}}),
    ok = erlmcp_metrology_validator:validate(Result),
    true = Each > 1 andalso Major > 100 orelse error({Each, Major}).

a_server_of_a_url_is_measured(_) ->
    served(erlmcp_bench_fixture, fun(Url) ->
        {ok, [#{~"against" := Url, ~"transport" := ~"http2"} = Result]} =
            against(http_burst_100_1kib, Url),
        ok = erlmcp_metrology_validator:validate(Result),
        {error, #{failures := [{~"tcp_burst_100_1kib", {no_server, {not_over_http, _}}}]}} =
            against(tcp_burst_100_1kib, Url)
    end).

a_wrong_answer_fails_it(_) ->
    served(erlmcp_test_broken_fixture, fun(Url) ->
        {error, #{failures := [{~"http_burst_100_1kib", {wrong_answers, Wrong}}],
                  results := [#{~"wrong_count" := Count}]}} = against(http_burst_100_1kib, Url),
        Count = lists:sum(maps:values(Wrong)),
        true = Count > 0
    end).

served(Handler, Do) ->
    {ok, _} = application:ensure_all_started(erlmcp),
    {ok, Server} = erlmcp:start_server(#{handler => Handler, listen => [{http, #{port => 0}}]}),
    [#{url := Url}] = erlmcp:listeners(Server),
    _ = Do(Url),
    ok = erlmcp:stop_server(Server).

against(Workload, Url) ->
    erlmcp_bench_network_real:run_workload(
        Workload, #{duration_s => 0.5, connections => 5, against => Url}).

nobody_there_is_a_failure(_) ->
    Port = integer_to_binary(erlmcp_test_port:unused()),
    Url = <<"http://127.0.0.1:", Port/binary, "/mcp">>,
    {error, #{failures := [{~"http1_sustained_2k_512b", {open, _}}], results := []}} =
        against(http1_sustained_2k_512b, Url).

room_is_what_the_least_carries(_) ->
    Facts = #{descriptors => 20_000, ports => 65_536, processes => 1_048_576, schedulers => 2},
    #{connections := 18_976} = Room =
        erlmcp_bench_room:for(100_000, Facts, Facts#{descriptors := 100_000}),
    #{bounded_by := ~"descriptors of the generator"} = Room,
    #{connections := 64_512, bounded_by := ~"ports of the server"} =
        erlmcp_bench_room:for(100_000, Facts#{descriptors := 200_000, ports := 262_144},
                              Facts#{descriptors := 100_000}),
    Enough = erlmcp_bench_room:for(18_976, Facts, none),
    #{connections => 18_976} =:= Enough orelse error(Enough).

%% The workloads that the documentation names.
the_catalogue_is_whole(_) ->
    All = erlmcp_bench_workloads:all(),
    Ids = [Id || #{id := Id} <- All],
    Ids = lists:uniq(Ids),
    [match = re:run(Id, "^[a-z0-9_]{3,64}$", [{capture, none}]) || Id <- Ids],
    [] = [~"core_ops_1k", ~"core_ops_10k", ~"core_ops_100k", ~"core_ops_1m",
          ~"tcp_burst_100_1kib", ~"tcp_sustained_10k_1kib", ~"tcp_sustained_10k_100kib",
          ~"tcp_max_100k_1kib", ~"http_burst_100_1kib", ~"http_sustained_5k_1kib",
          ~"http1_sustained_2k_512b", ~"stdio_sequential_1k", ~"stress_30s_100k_ops",
          ~"stress_5min_100k_ops", ~"stress_1hr_50k_ops", ~"stress_24hr_10k_ops",
          ~"mcp_basic_initialize", ~"mcp_tool_sequence", ~"mcp_prompts_workflow",
          ~"mcp_resources_workflow", ~"mcp_complete_workflow"] -- Ids,
    [{ok, Workload} = erlmcp_bench_workloads:find(Id) || #{id := Id} = Workload <- All],
    [{~"throughput_msg_per_s", 50_000}] =
        erlmcp_bench_workloads:marks(#{~"benchmark" => ~"network_real",
                                       ~"workload_id" => ~"tcp_burst_100_1kib"}).
