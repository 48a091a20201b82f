-module(load_truth_SUITE).
-moduledoc """
Tests for the figures of a load against the truth: a server that does a planted thing to each
request. It runs in another runtime, shares no code with erlmcp, and says what it did by its own
clock (`planted_server.mjs`).

The bounds hold on any machine, however busy. No answer is earlier than its delay. Each outcome has
its exact number. All latencies together fit into the slots that they were in, which on a quiet
machine is 5 % more than the truth. A figure without such a bound must come near the truth in one of
several runs.
""".

-include_lib("stdlib/include/assert.hrl").

-import(erlmcp_test_planted, [near/1]).

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1]).
-export([delays_have_their_length/1, outcomes_have_their_number/1, stalls_count_from_when_due/1,
         what_is_not_sent_is_not_seen/1, the_warm_up_is_in_no_figure/1,
         what_is_carried_is_found/1, errors_have_their_window/1, what_was_due_stays_due/1]).
-export([seconds_have_their_figures/1, bytes_and_processor_time_are_the_servers/1,
         another_generator_sees_the_same/1]).

-define(WIRES, [http1, http1_events, http1_session, http1_tls, http2, http2_events, http2_session,
                http2_tls, tcp, tcp_session, stdio, stdio_session]).
-define(DELAY_MS, 20).
-define(DELAY_US, 20_000).
-define(STALL_MS, 500).
%% A longer pause of the machine is an outcome of its own.
-define(TIMEOUT_MS, 3_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [delays_have_their_length, outcomes_have_their_number, stalls_count_from_when_due,
     what_is_not_sent_is_not_seen, the_warm_up_is_in_no_figure, what_is_carried_is_found,
     {group, waiting}, bytes_and_processor_time_are_the_servers, another_generator_sees_the_same].

%% They wait more than they work.
groups() ->
    [{waiting, [parallel],
      [errors_have_their_window, what_was_due_stays_due, seconds_have_their_figures]}].

init_per_suite(Config) ->
    erlmcp_test_planted:init(erlmcp_test_applications:start([erlmcp, erlmcp_bench], Config)).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

%% Each of four slots holds one request after the other, and each of these takes 20 ms.
delays_have_their_length(Config) ->
    on_each_wire(fun(Wire) ->
        {Report, Journal} = loaded(Wire, #{delay_ms => ?DELAY_MS},
                                   (slots(4, Wire))#{warmup_ms => 200, duration_ms => 2_000},
                                   Config),
        #{sent := Sent, answered := Sent, duration_s := 2.0, answered_per_s := Rate,
          latency := Latency} = Report,
        ok = no_earlier(?DELAY_US, Latency),
        [?assert(Sum =< 4 * (2_000_000 + erlmcp_bench_histogram:max(Latency)))
         || Sum <- [erlmcp_bench_histogram:mean(Latency) * Sent, sum(Latency)]],
        %% A slot begins every 20 ms at most: as often as this, and once more.
        AtMost = fun(Ms) -> 4 * (Ms div ?DELAY_MS + 1) end,
        ?assert(Sent =< AtMost(2_000)),
        ?assert(Sent >= length(maps:get(requests, Journal)) - AtMost(200)),
        ?assert(abs(Rate - Sent / 2.0) < 0.001),
        ?assertEqual(4, lists:max([Most || #{~"most" := Most} <- maps:get(ends, Journal)]))
    end).

%% Each kind of outcome. With lines, a late answer takes the time of a dropped one.
outcomes_have_their_number(Config) ->
    on_each_wire(fun(Wire) -> outcomes(Wire, Config) end).

outcomes(Wire, Config) ->
    %% The answer behind a late one is that of the next request of its connection.
    Connections = case is_http(Wire) of true -> 4; false -> 1 end,
    Once = fun(Number, Does) -> #{first => Number, last => Number, does => Does} end,
    Rules = [Once(50, drop), Once(17, id), Once(110, close),
             #{every => 7, does => refuse}, #{every => 11, does => tool_error},
             #{every => 13, does => content}]
            ++ case is_http(Wire) of
                   true -> [Once(100, drop), #{every => 19, does => status}];
                   false -> [Once(103, late)]
               end,
    {Report, Journal} = loaded_until(130, Wire, #{rules => Rules},
                                     #{connections => Connections, loop => {closed, 1}}, Config),
    ct:log("~tp", [maps:without([seconds], Report)]),
    Did = fun(Does) -> erlmcp_test_planted:count(Does, Journal) end,
    #{failed := Failed, refused := Refused, wrong_by := Wrong, lost := Lost} = Report,
    Timeouts = maps:get(timeout, Failed, 0),
    ?assertEqual(#{sent => length(maps:get(requests, Journal)), answered => Did(~"answer"),
                   timeout => Did(~"drop") + Did(~"late"), closed => Did(~"close"),
                   late => Did(~"late"), unsent => 0},
                 (maps:with([sent, answered, late, unsent], Report))#{
                     timeout => Timeouts,
                     closed => lists:sum(maps:values(Failed)) - Timeouts}),
    ?assertEqual(#{1056 => Did(~"refuse"), tool_error => Did(~"tool_error"),
                   502 => Did(~"status")}, maps:merge(#{502 => 0}, Refused)),
    ?assertEqual(#{id => Did(~"id"), content => Did(~"content")}, Wrong),
    ?assertEqual(Did(~"close"), Lost),
    ?assert(Did(~"drop") + Did(~"late") >= 2),
    ?assert(is_http(Wire) orelse Did(~"late") =:= 1),
    #{latency := Latency, refusal_latency := RefusalLatency} = Report,
    ?assertEqual(Did(~"answer"), erlmcp_bench_histogram:count(Latency)),
    ?assertEqual(lists:sum(maps:values(Refused)), erlmcp_bench_histogram:count(RefusalLatency)).

%% 200 requests a second. At the 40th the whole server stands still for half a second: 100 requests
%% are due meanwhile, and wait for 500 ms, 495 ms and so on.
stalls_count_from_when_due(Config) ->
    on_each_wire(fun(Wire) -> near(fun() -> stalled(Wire, Config) end) end).

stalled(Wire, Config) ->
    Rule = #{first => 40, last => 40, does => stall, ms => ?STALL_MS},
    {Report, Journal} = loaded(Wire, #{rules => [Rule]},
                               #{loop => {open, 200, even}, in_flight => 8,
                                 duration_ms => 1_200}, Config),
    #{sent := Sent, answered := Sent, unsent := Unsent, latency := Latency, lateness := Lateness,
      answered_per_s := Rate} = Report,
    ?assertEqual(length(maps:get(requests, Journal)), Sent),
    ?assert(lists:member(Sent + Unsent, [239, 240])),
    ?assert(abs(Rate - Sent / 1.2) < 0.001),
    ?assertEqual([Sent, Sent], [erlmcp_bench_histogram:count(Histogram)
                                || Histogram <- [Latency, Lateness]]),
    Stall = lists:last(erlmcp_test_planted:services(Journal)),
    ?assert(Stall >= ?STALL_MS * 1_000),
    ?assert(erlmcp_bench_histogram:max(Latency) >= Stall),
    ?assert(erlmcp_bench_histogram:max(Lateness) =< erlmcp_bench_histogram:max(Latency)),
    %% A busy machine may not send in its time what was due after the stall.
    _ = [begin
             ?assert(slower_than(100_000, Latency) >= 72),
             ?assert(slower_than(250_000, Latency) >= 45),
             ?assert(erlmcp_bench_histogram:percentile(Latency, 80) >= 225_000),
             ?assert(erlmcp_bench_histogram:mean(Latency) * Sent >= 100 * 225_000),
             %% The first ones were sent at once.
             ?assert(slower_than(100_000, Lateness) >= 72 - 8),
             ?assert(slower_than(250_000, Lateness) >= 45 - 8)
         end || Sent >= 150],
    [{sent, Sent, 225}].

%% The server answers nothing, so of 100 requests that are due a connection sends one in 200 ms. If
%% the machine pauses for that time, the server may not read a request.
what_is_not_sent_is_not_seen(Config) ->
    erlmcp_test_pauses:undisturbed(100, fun() -> not_sent(Config) end).

not_sent(Config) ->
    %% A program does not start in that time.
    on_wires(?WIRES -- [stdio, stdio_session], fun(Wire) ->
        {Report, Journal} = loaded(Wire, #{rules => [#{does => drop}]},
                                   #{loop => {open, 100, even}, in_flight => 1, timeout_ms => 200,
                                     duration_ms => 1_000}, Config),
        #{sent := Sent, unsent := Unsent, answered := 0, answered_per_s := Rate,
          failed := #{timeout := Sent}} = Report,
        ?assertEqual(0.0, Rate),
        ?assertEqual(length(maps:get(requests, Journal)), Sent),
        ?assert(Sent =< 6),
        ?assert(lists:member(Sent + Unsent, [99, 100]))
    end).

%% The 30 requests of the warm-up include 20 that are refused. A pause from there to the end leaves
%% some of them unsent.
the_warm_up_is_in_no_figure(Config) ->
    erlmcp_test_pauses:undisturbed(100, fun() -> warmed_up(Config) end).

warmed_up(Config) ->
    on_each_wire(fun(Wire) ->
        {Report, Journal} = loaded(Wire, #{rules => [#{last => 20, does => refuse}]},
                                   #{loop => {open, 100, even}, warmup_ms => 300,
                                     duration_ms => 500}, Config),
        #{sent := Sent, answered := Sent, unsent := Unsent, answered_per_s := Rate,
          latency := Latency, refusal_latency := RefusalLatency, lateness := Lateness,
          refused := Refused} = Report,
        ?assertEqual(20, erlmcp_test_planted:count(~"refuse", Journal)),
        ?assert(lists:member(Sent + Unsent, [49, 50, 51])),
        ?assert(lists:member(length(maps:get(requests, Journal)) - Sent, [29, 30, 31])),
        ?assert(abs(Rate - 2 * Sent) < 0.001),
        ?assertEqual(#{}, Refused),
        ?assertEqual([0, Sent, Sent], [erlmcp_bench_histogram:count(Histogram)
                                       || Histogram <- [RefusalLatency, Latency, Lateness]])
    end).

%% A connection carries one request in 20 ms.
what_is_carried_is_found(Config) ->
    on_each_wire(fun(Wire) -> near(fun() -> carried(Wire, Config) end) end).

carried(Wire, Config) ->
    {Report, Journal} = loaded(Wire, #{delay_ms => ?DELAY_MS},
                               (connections(4, Wire))#{
                                     loop => {open, {percent, 50}, even}, warmup_ms => 400,
                                     duration_ms => 500}, Config),
    #{carried_per_s := Carried, offered_per_s := Offered, sent := Sent, answered := Sent,
      unsent := Unsent, latency := Latency} = Report,
    ok = no_earlier(?DELAY_US, Latency),
    ?assert(abs(Offered - max(1, Carried / 2)) < 0.001),
    ?assert(abs(Sent + Unsent - Offered * 0.5) =< 2),
    %% What the server carried in the warm-up, by its own clock.
    #{requests := Requests} = Journal,
    {[#{~"until" := From} | Carries], Measured} = lists:split(length(Requests) - Sent, Requests),
    ?assertEqual(Sent, length(Measured)),
    #{~"until" := Until} = lists:last(Carries),
    [{carried, Carried, length(Carries) * 1_000_000 / (Until - From)}].

%% One request in fifty is dropped, from the 200th on: in the second window only, which begins half
%% a second after the load. The server's journal says which ones.
errors_have_their_window(Config) ->
    near(fun() ->
        Planted = planted(tcp, #{rules => [#{first => 200, every => 50, does => drop}]}, Config),
        Began = erlang:monotonic_time(microsecond),
        Bound = Began + 500_000,
        {ok, Report} = erlmcp_load:run((target(tcp, Planted))#{
            loop => {open, 200, even}, in_flight => 32, duration_ms => 2_000, timeout_ms => 2_000,
            since => Bound - 10_000_000, observer => self()}),
        %% One connection sends the requests in the order in which they are due.
        Dues = lists:sort(observed()),
        #{requests := Requests} = erlmcp_test_planted:journal(Planted),
        ?assertEqual(length(Requests), length(Dues)),
        Dropped = [Due || {Due, #{~"does" := ~"drop"}} <- lists:zip(Dues, Requests)],
        ?assert(length(Dropped) >= 2),
        {First, Second} = lists:partition(fun(Due) -> Due < Bound end, Dropped),
        #{windows := [#{at_s := 10.0, errors := InFirst}, #{errors := InSecond}],
          failed := #{timeout := All}, unsent := Unsent} = Report,
        ?assertEqual({#{{failed, timeout} => length(First) || First =/= []},
                      #{{failed, timeout} => length(Second) || Second =/= []}},
                     {InFirst, InSecond}),
        ?assertEqual(length(Dropped), All),
        %% On a machine that is not too busy none is in the first window, and all are sent.
        [{errors_before, 1 + length(First), 1}, {unsent, 1 + Unsent, 1}]
    end).

observed() ->
    receive {erlmcp_load, _, Due, _} -> [Due | observed()] after 0 -> [] end.

%% 200 requests a second are due, and from half a second on one in 50 ms. At the 20th request the
%% server stands still for a second, so the rate changes while 80 requests wait.
what_was_due_stays_due(Config) ->
    near(fun() ->
        Rule = #{first => 20, last => 20, does => stall, ms => 1_000},
        Planted = planted(tcp, #{rules => [Rule]}, Config),
        {ok, Load} = erlmcp_load:start((target(tcp, Planted))#{
            loop => {open, 200, even}, in_flight => 1, duration_ms => 2_000, observer => self()}),
        First = receive {erlmcp_load, answered, FirstDue, _} -> FirstDue end,
        Changed = First + 500_000,
        Left = Changed - erlang:monotonic_time(microsecond),
        receive after max(0, Left div 1_000) -> ok end,
        ok = erlmcp_load:set_rate(Load, 20),
        At = erlang:monotonic_time(microsecond),
        #{sent := Sent, unsent := Unsent, windows := [#{backlog_requests := Rest}]} =
            erlmcp_load:await(Load),
        _ = erlmcp_test_planted:journal(Planted),
        Dues = [First | observed()],
        ?assertEqual(Sent, length(Dues)),
        Before = length([Due || Due <- Dues, Due < At]),
        [{before, Before, (At - First) / 5_000}, {later, Sent - Before, 30},
         {rest, max(1, Rest), 1}, {unsent, 1 + Unsent, 1}]
    end).

%% One request in five is refused, and one in fifty dropped. The first answers take longer.
seconds_have_their_figures(Config) ->
    near(fun() ->
        {Report, Journal} = loaded(tcp, #{delay_ms => ?DELAY_MS,
                                          rules => [#{every => 50, does => drop},
                                                    #{every => 5, does => refuse},
                                                    #{last => 110, does => answer,
                                                      delay_ms => 150}]},
                                   #{loop => {open, 100, even}, duration_ms => 2_500,
                                     timeout_ms => 300}, Config),
        #{seconds := [First, Second | _] = Samples, sent := Sent, unsent := Unsent} = Report,
        Last = lists:last(Samples),
        Sum = fun(Name) -> lists:sum([Value || #{Name := Value} <- Samples]) end,
        ?assert(lists:member(Sent + Unsent, [249, 250])),
        ?assertEqual(length(maps:get(requests, Journal)), Sent),
        ?assertEqual(Sum(sent_count) - lists:sum([Sum(Name) || Name <- [
                         answered_count, refused_count, failed_count, wrong_count]]),
                     maps:get(in_flight_requests, Last)),
        ?assert(Sum(sent_count) =< Sent),
        ?assert(maps:get(at_s, Last) >= 2.5),
        [?assert(P50 >= ?DELAY_US andalso P99 >= P50 andalso P999 >= P99 andalso Max >= P999)
         || #{latency_p50_us := P50, latency_p99_us := P99, latency_p999_us := P999,
              latency_max_us := Max} <- Samples],
        ?assertEqual(Sum(answered_count) + Sum(refused_count) + Sum(failed_count),
                     round(lists:sum([maps:get(duration_s, Sample) * maps:get(Of, Sample)
                                      || Sample <- Samples,
                                         Of <- [throughput_msg_per_s, refused_msg_per_s,
                                                failed_msg_per_s]]))),
        ?assert(maps:get(latency_p50_us, First, infinity) >= 150_000),
        %% It has ten that are slow, and 70 that are not.
        Slow = slower(75_000, maps:get(latency_p50_us, Second, infinity)),
        %% An eighth of its times are 130 ms longer than the others.
        Deviation = maps:get(latency_deviation_us, Second, 0),
        [{slow, Slow, 0}, {deviation, Deviation, 130_000 * math:sqrt(1 / 8 * 7 / 8)}
         | lists:append(
             [[{duration_s, maps:get(duration_s, Sample), 1},
               {sent, maps:get(sent_count, Sample), 100},
               {answered, maps:get(throughput_msg_per_s, Sample), 78},
               {refused, maps:get(refused_msg_per_s, Sample), 20}]
              || Sample <- [First, Second]])]
    end).

slower(Than, Us) when Us > Than -> 1;
slower(_, _) -> 0.

%% Each request takes 5 ms of the server's processor time.
bytes_and_processor_time_are_the_servers(Config) ->
    [near(fun() ->
        {Report, #{requests := Requests, ends := [End]}} =
            loaded_until(100, Wire, #{rules => [#{does => work, ms => 5}]},
                         #{loop => {closed, 1}, payload_bytes => 2_000}, Config),
        #{bytes_in := In, bytes_out := Out, server_cpu_us := Cpu, server_rss_bytes := Rss,
          answered := Answered} = Report,
        #{~"received" := Received, ~"sent" := Sent, ~"rss" := OwnRss} = End,
        ?assert(In =< Sent andalso Out =< Received),
        ?assert(In > Answered * 2_000 andalso Out > (Answered - 2) * 2_000),
        #{~"cpu_us" := CpuFirst} = hd(Requests),
        #{~"cpu_us" := CpuLast} = lists:last(Requests),
        ?assert(Cpu >= (CpuLast - CpuFirst) * 0.95 - 20_000),
        [{in, In, Sent}, {out, Out, Received}, {rss, Rss, OwnRss},
         {cpu, Cpu, CpuLast - CpuFirst}]
    end) || Wire <- [tcp, http1]].

%% Both load one server at the same time, with as many requests in flight.
another_generator_sees_the_same(Config) ->
    [near(fun() ->
        Planted = planted(Wire, #{delay_ms => ?DELAY_MS}, Config),
        Test = self(),
        Other = spawn_link(fun() -> Test ! {self(), other(Wire, Planted, Config)} end),
        {ok, Report} = erlmcp_load:run((target(Wire, Planted))#{
            connections => 4, duration_ms => 1_000}),
        Times = receive {Other, Found} -> Found end,
        _ = erlmcp_test_planted:journal(Planted),
        #{answered_per_s := Rate, latency := Latency} = Report,
        ?assert(hd(Times) >= ?DELAY_US),
        [{rate, Rate, length(Times)},
         {median, erlmcp_bench_histogram:percentile(Latency, 50), median(Times)},
         {mean, erlmcp_bench_histogram:mean(Latency), lists:sum(Times) / length(Times)}]
    end) || Wire <- [http1, http2, tcp, stdio]].

%% The microseconds of each request of another generator in a second, from the shortest.
other(Wire, Planted, Config) when Wire =:= http1; Wire =:= http2 ->
    erlmcp_test_planted:h2load(4, 1, message(), Planted, Config);
other(_, Planted, _) ->
    erlmcp_test_planted:client(4, 1, message(), Planted).

message() ->
    iolist_to_binary(json:encode(#{jsonrpc => ~"2.0", id => 1, method => ~"tools/call",
                                   params => #{name => ~"echo",
                                               arguments => #{text => binary:copy(~"x", 64)}}})).

%% Loads.

%% Does the same on all wires at the same time, since they wait more than they work.
on_each_wire(Do) -> on_wires(?WIRES, Do).

on_wires(Wires, Do) ->
    Running = [{Wire, spawn_monitor(fun() -> Do(Wire), exit(done) end)} || Wire <- Wires],
    [] = [{Wire, Reason}
          || {Wire, {Pid, Monitor}} <- Running,
             Reason <- [receive {'DOWN', Monitor, process, Pid, Why} -> Why end], Reason =/= done],
    ok.

is_http(Wire) -> not lists:member(Wire, [tcp, tcp_session, stdio, stdio_session]).

%% A program has a single connection.
connections(_, Stdio) when Stdio =:= stdio; Stdio =:= stdio_session -> #{connections => 1};
connections(Number, _) -> #{connections => Number}.

slots(Number, Wire) ->
    #{connections := Connections} = Plan = connections(2, Wire),
    Plan#{loop => {closed, Number div Connections}}.

planted(Wire, Plan, Config) ->
    {Of, Own} = case Wire of
        http1_events -> {http1, #{events => true}};
        http1_session -> {http1, #{}};
        http2_events -> {http2, #{events => true}};
        http2_session -> {http2, #{}};
        tcp_session -> {tcp, #{}};
        stdio_session -> {stdio, #{}};
        _ -> {Wire, #{}}
    end,
    erlmcp_test_planted:start(Of, maps:merge(Plan, Own), Config).

target(Wire, Planted) ->
    Sessions = [http1_session, http2_session, tcp_session, stdio_session],
    maps:merge(erlmcp_test_planted:target(Planted),
               #{era => {session, ~"2025-11-25"} || lists:member(Wire, Sessions)}).

%% A busy machine may not open a connection in the time of a request.
loaded(Wire, Plan, Load, Config) ->
    Planted = planted(Wire, Plan, Config),
    Run = erlmcp_load:run(maps:merge(target(Wire, Planted), Load)),
    Journal = erlmcp_test_planted:journal(Planted),
    case Run of
        {ok, Report} -> {Report, Journal};
        {error, {open, timeout}} -> loaded(Wire, Plan, Load, Config)
    end.

%% A load until the given number of requests has ended.
loaded_until(Requests, Wire, Plan, Load, Config) ->
    Planted = planted(Wire, Plan, Config),
    Own = maps:merge(#{duration_ms => 3_600_000, timeout_ms => ?TIMEOUT_MS, observer => self()},
                     #{server_os_pid => OsPid || #{os_pid := OsPid} <- [Planted]}),
    {ok, Running} = erlmcp_load:start(maps:merge(maps:merge(target(Wire, Planted), Own), Load)),
    _ = [receive {erlmcp_load, _, _, _} -> ok end || _ <- lists:seq(1, Requests)],
    Report = erlmcp_load:stop(Running),
    ok = forgotten(),
    {Report, erlmcp_test_planted:journal(Planted)}.

forgotten() ->
    receive {erlmcp_load, _, _, _} -> forgotten() after 0 -> ok end.

%% Figures.

no_earlier(Us, Histogram) ->
    %% The clock of a load has whole microseconds.
    [{Least, _} | _] = erlmcp_bench_histogram:to_list(Histogram),
    ?assert(Least >= Us - 1),
    Percentiles = [erlmcp_bench_histogram:percentile(Histogram, Percent)
                   || Percent <- [0, 50, 95, 99, 99.9, 100]],
    ?assertEqual(lists:sort(Percentiles), Percentiles),
    ?assertEqual(erlmcp_bench_histogram:max(Histogram), lists:last(Percentiles)),
    ?assert(erlmcp_bench_histogram:mean(Histogram) >= Us - 1),
    ok.

slower_than(Us, Histogram) ->
    lists:sum([Count || {UpTo, Count} <- erlmcp_bench_histogram:to_list(Histogram), UpTo > Us]).

%% A bucket's times are at most a hundredth below its end.
sum(Histogram) ->
    lists:sum([Us / 1.01 * Count || {Us, Count} <- erlmcp_bench_histogram:to_list(Histogram)]).

median(Times) ->
    lists:nth((length(Times) + 1) div 2, Times).
