-module(scenario_truth_SUITE).
-moduledoc """
Tests for the figures of a scenario against the truth: servers that do a planted thing, run in
another runtime, and say what they did by their own clock (`planted_server.mjs`).
""".

-include_lib("stdlib/include/assert.hrl").

-import(erlmcp_test_planted, [near/1]).

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([a_burst_has_its_backlog/1, bytes_are_those_of_each_node/1,
         processor_time_and_memory_are_the_process/1]).

%% Two requests of a busy server follow each other within this time.
-define(GAP_US, 25_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [a_burst_has_its_backlog, bytes_are_those_of_each_node,
     processor_time_and_memory_are_the_process].

init_per_suite(Config) ->
    erlmcp_test_planted:init(erlmcp_test_applications:start([erlmcp, erlmcp_bench], Config)).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

%% For a second 400 requests a second are due, of which the server answers one in 5 ms at most. Ten
%% are refused. The others wait, and 20 a second come after them.
a_burst_has_its_backlog(Config) ->
    near(fun() ->
        Planted = planted(#{delay_ms => 5,
                            rules => [#{first => 101, last => 110, does => refuse,
                                        delay_ms => 5}]}, Config),
        #{bombing := Bombing, windows := [#{errors := Errors}], seconds := Seconds,
          steps := Steps} = outcome([{warm_up, 1, 0.05}, {peak, 1, 1}, {cool_down, 5, 0.05}],
                                    #{clients => 1, rate => 400, bytes => 64}, [Planted]),
        [peak, cool_down] = [Phase || #{phase := Phase} <- Steps],
        #{requests := Requests} = Journal = erlmcp_test_planted:journal(Planted),
        %% One that is due at the very end may not be sent.
        ?assertEqual(#{{refused, 1056} => erlmcp_test_planted:count(~"refuse", Journal)},
                     maps:remove(unsent, Errors)),
        ?assert(maps:get(unsent, Errors, 0) =< 2),
        ct:log("~tp", [Bombing]),
        #{most_backlog_requests := Most, end_backlog_requests := AtEnd, drain_ms := DrainMs} =
            Bombing,
        ?assert(Most >= AtEnd),
        %% The server is busy from the beginning of the peak until the backlog is gone.
        [#{~"from" := From} | _] = Busy = longest(Requests),
        #{~"until" := Until} = lists:last(Busy),
        End = From + 1_000_000,
        Drained = (Until - End) / 1_000,
        Waiting = [Request || #{~"until" := Done} = Request <- Busy, Done > End],
        ?assert(map_get(backlog_requests, lists:last(Seconds)) =< 2),
        %% 20 come in the warm-up, and 100 in the cool-down.
        [{sent, length(Requests) - 120, 400}, {at_end, AtEnd, length(Waiting)},
         {drained, DrainMs, Drained},
         %% Those that wait for more than 250 ms are slow. On a busy machine it does not cool down.
         {cooled_down, maps:get(cool_down_ms, Bombing, 1), Drained}]
    end).

%% The longest run of requests without a gap between them.
longest([First | Requests]) ->
    {Last, Runs} = lists:foldl(
        fun(#{~"from" := From} = Request, {[#{~"until" := Until} | _] = Run, Runs}) ->
            case From - Until > ?GAP_US of
                true -> {[Request], [Run | Runs]};
                false -> {[Request | Run], Runs}
            end
        end, {[First], []}, Requests),
    [{_, Longest} | _] = lists:reverse(lists:sort([{length(Run), Run} || Run <- [Last | Runs]])),
    lists:reverse(Longest).

%% Three clients on two servers: the first one has two of them.
bytes_are_those_of_each_node(Config) ->
    erlmcp_test_pauses:undisturbed(100, fun() ->
        Servers = [planted(#{}, Config) || _ <- [1, 2]],
        #{phases := Phases, series := Series, total := #{sent := Sent}} =
            outcome([{warm_up, 1, 1}, {peak, 1, 1}], #{clients => 3, rate => 50, bytes => 2_000},
                    Servers),
        Truth = [begin
                     #{requests := Requests, ends := [End]} = erlmcp_test_planted:journal(Server),
                     #{~"received" := Received, ~"sent" := SentBytes} = End,
                     {length(Requests), Received, SentBytes}
                 end || Server <- Servers],
        [{First, _, _}, {Second, _, _}] = Truth,
        ?assertEqual(Sent, First + Second),
        ?assert(First > Second),
        lists:foreach(fun({Name, {_, Received, SentBytes}}) ->
            Sum = fun(Figure, Of) -> lists:sum([maps:get(Figure, Figures)
                                                || #{node := Node} = Figures <- Of, Node =:= Name,
                                                   not is_map_key(load, Figures)]) end,
            Nodes = lists:append([OfPhase || #{nodes := OfPhase} <- Phases]),
            %% The last replies come when the last phase has ended.
            [begin
                 ?assert(Found =< Whole),
                 ?assert(Found >= 0.8 * Whole)
             end || {Figure, Whole} <- [{received_bytes, Received}, {sent_bytes, SentBytes}],
                    Found <- [Sum(Figure, Nodes)]],
            ?assertEqual(Sum(received_bytes, Nodes), Sum(received_bytes, Series))
        end, lists:zip([~"url_1", ~"url_2"], Truth))
    end).

%% Each request takes 5 ms of the server, and one in 10 ms is due.
processor_time_and_memory_are_the_process(Config) ->
    near(fun() ->
        #{os_pid := OsPid} = Planted =
            planted(#{rules => [#{does => work, ms => 5}]}, Config),
        Read = fun(Phase) ->
            erlmcp_bench_scenario_resources:read(Phase, [{~"node_1", OsPid}, {~"node_2", none}],
                                                 #{})
        end,
        First = Read(start),
        {ok, _} = erlmcp_load:run((erlmcp_test_planted:target(Planted))#{
            loop => {open, 100, even}, duration_ms => 1_000}),
        Last = Read(peak),
        #{ends := [#{~"rss" := Rss}], requests := [#{~"cpu_us" := Before} | Requests]} =
            erlmcp_test_planted:journal(Planted),
        #{~"cpu_us" := After} = lists:last(Requests),
        [#{phase := peak, duration_s := Seconds, nodes := [Node, Other]}] =
            erlmcp_bench_scenario_resources:phases(map_get(at_us, First), [First, Last]),
        ?assertEqual(#{node => ~"node_2"}, Other),
        #{cpu_percent := Percent, memory_rss_mib_per_node := Mib} = Node,
        [{cpu, Percent, (After - Before) / 10_000 / Seconds}, {memory, Mib, Rss / 1_048_576}]
    end).

%% Scenarios.

planted(Plan, Config) -> erlmcp_test_planted:start(http1, Plan, Config).

%% The outcome of a scenario with these phases and clients, on servers.
outcome(Phases, Clients, Servers) ->
    Scenario = #{
        name => message_bombing, title => ~"planted", clients => Clients, marks => [],
        phases => [#{name => Name, seconds => Seconds, level => {1, 1}, pace => Pace}
                   || {Name, Seconds, Pace} <- Phases],
        tolerates_errors => true, nodes => 1, faults => []},
    {ok, #{complaints := []} = Outcome} = erlmcp_bench_scenario_run:run(Scenario, #{
        urls => [Url || #{target := {http, Url}} <- Servers], transport => http1, scale => 1,
        duration_s => erlmcp_bench_scenario_plan:seconds(Scenario), timeout_ms => 10_000,
        on_event => fun(_) -> ok end}, self()),
    Outcome.
