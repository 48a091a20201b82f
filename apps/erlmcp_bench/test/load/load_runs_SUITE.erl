-module(load_runs_SUITE).
-moduledoc "Tests for load on erlmcp: each transport, era and loop, and the report of each.".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([closed_loops_are_answered/1, open_loops_keep_their_rate/1,
         late_groups_read_on/1,
         a_part_of_what_is_carried_is_offered/1, no_more_is_carried_than_can_be/1,
         methods_are_mixed/1,
         large_payloads_come_whole/1, sessions_are_opened_and_closed/1,
         replies_in_streams_are_read/1, observers_hear_of_each_request/1,
         warm_up_is_not_measured/1, seconds_add_up/1, loads_are_stopped/1, rates_are_changed/1,
         loads_are_stopped_as_they_begin/1, loads_end_with_their_owner/1,
         loads_that_have_ended_have_no_connections/1, crash_reports_have_no_payloads/1,
         connections_come_from_their_sources/1,
         groups_are_seldom_collected/1, headers_are_sent/1, what_cannot_be_is_refused/1]).

-define(SESSIONS, 6).
-define(TOKEN, ~"Bearer open").

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [closed_loops_are_answered, open_loops_keep_their_rate, late_groups_read_on,
     a_part_of_what_is_carried_is_offered, no_more_is_carried_than_can_be, methods_are_mixed,
     large_payloads_come_whole, sessions_are_opened_and_closed, replies_in_streams_are_read,
     observers_hear_of_each_request, warm_up_is_not_measured, seconds_add_up, loads_are_stopped,
     rates_are_changed, loads_are_stopped_as_they_begin, loads_end_with_their_owner,
     loads_that_have_ended_have_no_connections, crash_reports_have_no_payloads,
     connections_come_from_their_sources, groups_are_seldom_collected,
     headers_are_sent, what_cannot_be_is_refused].

init_per_suite(Config) ->
    Suite = self(),
    {ok, Started} = application:ensure_all_started(erlmcp),
    %% A server ends with the process that started it, and that of this callback with it.
    Keeper = spawn(fun() ->
        {ok, Server} = erlmcp:start_server(#{
            name => ~"load", version => ~"1.0.0", limits => #{sessions => ?SESSIONS},
            tools => [#{name => ~"echo", handler => fun(#{~"text" := Text}, _) -> Text end},
                      #{name => ~"slow", handler => fun slow/2},
                      #{name => ~"reports", handler => fun reports/2}],
            listen => [{http, #{port => 0}}, {tcp, #{port => 0}},
                       {http, #{port => 0, path => ~"/closed", authenticate => fun asks/1}}]}),
        Suite ! {self(), erlmcp:listeners(Server)},
        receive stop -> erlmcp:stop_server(Server) end
    end),
    [#{port := Http}, #{port := Tcp}, #{port := Closed}] = receive {Keeper, Found} -> Found end,
    [{keeper, Keeper}, {started, Started}, {tcp, {tcp, {127, 0, 0, 1}, Tcp}},
     {http, {http, url(Http, ~"/mcp")}}, {closed, {http, url(Closed, ~"/closed")}} | Config].

end_per_suite(Config) ->
    Keeper = proplists:get_value(keeper, Config),
    Monitor = monitor(process, Keeper),
    Keeper ! stop,
    receive {'DOWN', Monitor, process, Keeper, _} -> ok end,
    lists:foreach(fun(Application) -> ok = application:stop(Application) end,
                  lists:reverse(proplists:get_value(started, Config))).

slow(_, _) ->
    receive after 20 -> ~"slow" end.

reports(_, Context) ->
    ok = erlmcp:progress(Context, 1, #{}),
    ~"reported".

asks(#{headers := #{~"authorization" := ?TOKEN, ~"x-request" := <<_:10/binary>>}}) ->
    {ok, ~"somebody"};
asks(_) ->
    {error, ~"who are you"}.

closed_loops_are_answered(Config) ->
    [until_good(100, #{target => Target, era => Era, connections => 3, loop => {closed, 4}}, Config)
     || Target <- [http, tcp], Era <- [stateless, {session, ~"2025-11-25"}]].

open_loops_keep_their_rate(Config) ->
    [true = lists:any(fun(_) -> keeps_its_rate(Target, Arrivals, Config) end, lists:seq(1, 5))
     || {Target, Arrivals} <- [{http, even}, {http, poisson}, {tcp, even}]].

%% A busy machine may be late with each request of a run, but not of all runs.
keeps_its_rate(Target, Arrivals, Config) ->
    #{sent := Sent, unsent := Unsent, lateness := Lateness} =
        good(#{target => Target, connections => 4, loop => {open, 500, Arrivals},
               duration_ms => 400}, Config),
    Sent = erlmcp_bench_histogram:count(Lateness),
    Due = Sent + Unsent,
    case Arrivals of
        even -> true = Due =:= 199 orelse Due =:= 200;
        %% Six standard deviations.
        poisson -> true = abs(Due - 200) < 85
    end,
    %% Not in the millisecond after it.
    erlmcp_bench_histogram:percentile(Lateness, 10) < 1_000.

%% More is due than can be sent. The group still reads replies as they come, and the first requests
%% have been answered long before it has sent all that its connections may have in flight.
late_groups_read_on(Config) ->
    {ok, Load} = start(#{target => tcp, connections => 600, in_flight => 50,
                         loop => {open, 1_000_000, even}, duration_ms => 1_000}, Config),
    #{latency := Latency, unsent := Unsent} = erlmcp_load:await(Load),
    true = Unsent > 0,
    true = erlmcp_bench_histogram:percentile(Latency, 1) < 250_000.

%% On its connections, which may be more than the callers that find it out. Of 301 a group opens the
%% last one alone.
a_part_of_what_is_carried_is_offered(Config) ->
    [a_part_is_offered(Target, Connections, Config)
     || {Target, Connections} <- [{http, 3}, {tcp, 301}]].

a_part_is_offered(Target, Connections, Config) ->
    #{carried_per_s := Carried, offered_per_s := Offered, sent := Sent, unsent := Unsent,
      opened := Connections} =
        good(#{target => Target, connections => Connections,
               loop => {open, {percent, 10}, even}, warmup_ms => 400, duration_ms => 400}, Config),
    true = abs(Offered - max(1, Carried / 10)) < 0.01,
    true = Sent + Unsent =< Offered * 0.4 + 1,
    %% On a busy machine a short time may pass before anything is carried.
    Sent > 0 orelse a_part_is_offered(Target, Connections, Config).

%% A connection carries at most one request in 20 ms. A pause of a busy machine may stretch the time
%% in which they are counted, but not each time.
no_more_is_carried_than_can_be(Config) ->
    Slow = {~"tools/call", #{~"name" => ~"slow"}},
    Plan = #{target => tcp, connections => 4, requests => [{1, Slow}],
             loop => {open, {percent, 10}, even}, warmup_ms => 400, duration_ms => 100},
    true = lists:any(fun(_) ->
        #{carried_per_s := Carried} = good(Plan, Config),
        Carried =< 1.5 * 4 * 50
    end, lists:seq(1, 5)).

methods_are_mixed(Config) ->
    Requests = [{3, erlmcp_load_request:echo(10)}, {1, {~"tools/list", #{}}},
                {1, {~"resources/list", #{}}}, {1, {~"prompts/list", #{}}}],
    until_good(100, #{target => http,
                      requests => [{1, {~"server/discover", #{}}} | Requests]}, Config),
    until_good(100, #{target => tcp, era => {session, ~"2024-11-05"},
                      requests => [{1, {~"ping", #{}}} | Requests]}, Config),
    %% Of no tool there is no answer, but a refusal.
    Unknown = {~"tools/call", #{~"name" => ~"unknown"}},
    #{sent := Sent, refused := Refused, answered := 0} =
        until(2, #{target => http, requests => [{1, Unknown}]}, Config),
    [Sent] = maps:values(Refused).

large_payloads_come_whole(Config) ->
    [until_good(4, #{target => Target, payload_bytes => 300_000, loop => {closed, 2}}, Config)
     || Target <- [http, tcp]].

%% The server allows as many sessions as one load opens. The next load finds all of them closed.
sessions_are_opened_and_closed(Config) ->
    Plan = #{target => http, era => {session, ~"2025-06-18"}, connections => 2,
             sessions_per_connection => ?SESSIONS div 2},
    until_good(20, Plan, Config),
    until_good(20, Plan, Config),
    {error, {open, {refused, _}}} =
        start(Plan#{connections => 1, sessions_per_connection => ?SESSIONS + 1}, Config).

replies_in_streams_are_read(Config) ->
    Reports = {~"tools/call", #{~"name" => ~"reports", ~"_meta" => #{~"progressToken" => 1}}},
    #{messages := Messages, answered := Answered} =
        until_good(10, #{target => http, requests => [{1, Reports}], loop => {closed, 2}}, Config),
    true = Messages >= Answered.

observers_hear_of_each_request(Config) ->
    {ok, Load} = start(#{target => http, duration_ms => 3_600_000, observer => self(),
                         connections => 2}, Config),
    Ten = [receive {erlmcp_load, Outcome, Due, Done} -> {Outcome, Due, Done} end
           || _ <- lists:seq(1, 10)],
    #{sent := Sent, answered := Sent} = erlmcp_load:stop(Load),
    Heard = heard(Ten),
    Sent = length(Heard),
    [] = [Other || {Outcome, Due, Done} = Other <- Heard, Outcome =/= answered orelse Done < Due].

heard(Heard) ->
    receive
        {erlmcp_load, Outcome, Due, Done} -> heard([{Outcome, Due, Done} | Heard])
    after 0 ->
        Heard
    end.

%% Requests of the warm-up are sent, and are in no sum.
warm_up_is_not_measured(Config) ->
    #{sent := Sent, unsent := Unsent, duration_s := 0.2} =
        good(#{target => http, connections => 4, loop => {open, 200, even}, warmup_ms => 300,
               duration_ms => 200}, Config),
    true = lists:member(Sent + Unsent, [39, 40, 41]).

seconds_add_up(Config) ->
    Self = self(),
    #{seconds := [#{at_s := At} = First, Second], bytes_in := In, latency := Latency} =
        good(#{target => http, duration_ms => 1300, server_os_pid => erlmcp_bench_process:self(),
               loop => {open, 100, even}, on_second => fun(Sample) -> Self ! {second, Sample} end},
             Config),
    [First, Second] = [receive {second, Sample} -> Sample end || _ <- [1, 2]],
    true = At >= 1.0 andalso At < maps:get(at_s, Second),
    true = lists:sum([Bytes || #{received_bytes := Bytes} <- [First, Second]]) =< In,
    #{answered_count := Answered, latency_p50_us := P50, latency_p99_us := P99,
      memory_rss_mib_per_node := Mib, connections := 1} = First,
    true = Answered > 0 andalso P50 =< P99 andalso Mib > 1,
    true = P99 =< erlmcp_bench_histogram:max(Latency).

loads_are_stopped(Config) ->
    {ok, Load} = start(#{target => tcp, duration_ms => 3_600_000, observer => self()}, Config),
    %% It has begun.
    receive {erlmcp_load, answered, _, _} -> ok end,
    #{sent := Sent, answered := Sent, duration_s := Seconds} = erlmcp_load:stop(Load),
    true = Sent > 0 andalso Seconds < 3600,
    %% Before it is known what is carried.
    {ok, Early} = start(#{target => tcp, loop => {open, {percent, 70}, even},
                          warmup_ms => 3_600_000}, Config),
    #{sent := 0, unsent := 0, failed := None} = Stopped = erlmcp_load:stop(Early),
    {0, false} = {map_size(None), is_map_key(carried_per_s, Stopped)}.

%% Its groups measure already when the stop comes, and its own process does not know it yet: it
%% stands still meanwhile.
loads_are_stopped_as_they_begin(Config) ->
    Self = self(),
    Observer = spawn_link(fun() ->
        Load = receive {suspended, Suspended} -> Suspended end,
        receive {erlmcp_load, {refused, _, _}, DueUs, DoneUs} -> Self ! {one, DueUs, DoneUs} end,
        ok = sys:resume(Load, infinity)
    end),
    {ok, Load} = start(#{target => http, duration_ms => 3_600_000, observer => Observer,
                         warmup_ms => 500,
                         requests => [{1, {~"tools/call", #{~"name" => ~"unknown"}}}]}, Config),
    ok = sys:suspend(Load, infinity),
    Observer ! {suspended, Load},
    #{sent := Sent, refused := Refused, from_us := FromUs, duration_s := Seconds} =
        erlmcp_load:stop(Load),
    [Sent] = maps:values(Refused),
    receive
        {one, DueUs, DoneUs} ->
            true = FromUs =< DueUs andalso DoneUs =< FromUs + round(Seconds * 1_000_000)
    end.

rates_are_changed(Config) ->
    {ok, Load} = start(#{target => tcp, duration_ms => 3_600_000, observer => self(),
                         loop => {open, 0.001, even}}, Config),
    [{error, {bad_option, loop}} = erlmcp_load:set_rate(Load, Wrong) || Wrong <- [fast, 0, ~"9"]],
    ok = erlmcp_load:set_rate(Load, 1000),
    receive {erlmcp_load, answered, _, _} -> ok end,
    #{answered := Answered} = erlmcp_load:stop(Load),
    true = Answered > 0,
    {ok, Closed} = start(#{target => tcp}, Config),
    {error, {bad_option, loop}} = erlmcp_load:set_rate(Closed, 1000),
    _ = erlmcp_load:stop(Closed),
    ok.

loads_end_with_their_owner(Config) ->
    Self = self(),
    {Owner, Ended} = spawn_monitor(fun() ->
        {ok, Load} = start(#{target => tcp, duration_ms => 3_600_000, loop => hold}, Config),
        Self ! {load, Load}
    end),
    Monitor = receive {load, Load} -> monitor(process, Load) end,
    receive {'DOWN', Ended, process, Owner, normal} -> ok end,
    receive {'DOWN', Monitor, process, _, _} -> ok end.

%% Also before their reports are awaited.
loads_that_have_ended_have_no_connections(Config) ->
    {ok, Load} = start(#{target => tcp, connections => 3}, Config),
    ok = closed(Load),
    #{opened := 3} = erlmcp_load:await(Load),
    ok.

closed(Load) ->
    case erlmcp_load:peek(Load) of
        #{counts := #{connections := 0}} -> ok;
        #{} -> receive after 20 -> closed(Load) end
    end.

crash_reports_have_no_payloads(Config) ->
    {ok, Load} = start(#{target => tcp, payload_bytes => 1_000_000, loop => hold}, Config),
    true = erlang:external_size(sys:get_status(Load)) < 1_000_000,
    _ = erlmcp_load:stop(Load),
    ok.

connections_come_from_their_sources(_) ->
    {ok, Listener} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}, {active, false}]),
    {ok, Port} = inet:port(Listener),
    Sources = [{127, 0, 0, 2}, {127, 0, 3, 4}],
    {ok, Load} = erlmcp_load:start(#{target => {tcp, {127, 0, 0, 1}, Port}, connections => 4,
                                     sources => Sources, loop => hold, duration_ms => 3_600_000}),
    Peers = [begin
                 {ok, Socket} = gen_tcp:accept(Listener),
                 {ok, {Peer, _}} = inet:peername(Socket),
                 {Socket, Peer}
             end || _ <- lists:seq(1, 4)],
    Expected = lists:sort(Sources ++ Sources),
    Expected = lists:sort([Peer || {_, Peer} <- Peers]),
    #{sent := 0, opened := 4} = erlmcp_load:stop(Load),
    [{error, closed} = gen_tcp:recv(Socket, 0) || {Socket, _} <- Peers],
    ok.

%% Their processes have room for what many answers leave: without it they are collected several
%% times as often.
groups_are_seldom_collected(Config) ->
    [begin
         {ok, Load} = start(#{target => Target, connections => 64, duration_ms => 3_600_000,
                              observer => self()}, Config),
         {links, Links} = process_info(Load, links),
         [_ | _] = Groups = [Pid || Pid <- Links, is_pid(Pid)],
         [1 = erlang:trace(Group, true, [garbage_collection]) || Group <- Groups],
         _ = [receive {erlmcp_load, answered, _, _} -> ok end || _ <- lists:seq(1, 10_000)],
         #{answered := Answered} = erlmcp_load:stop(Load),
         true = collections() * 40 < Answered,
         heard([])
     end || Target <- [http, tcp]].

collections() ->
    receive
        {trace, _, Begin, _} when Begin =:= gc_minor_start; Begin =:= gc_major_start ->
            1 + collections();
        {trace, _, _, _} ->
            collections()
    after 0 ->
        0
    end.

headers_are_sent(Config) ->
    Headers = [{~"authorization", ?TOKEN}, {~"x-request", ~"{id}"}],
    until_good(2, #{target => closed, headers => Headers}, Config),
    #{refused := Refused, answered := 0} = until(2, #{target => closed}, Config),
    [_] = maps:keys(Refused).

what_cannot_be_is_refused(Config) ->
    Good = #{target => http},
    [{error, {bad_option, Option}} = start(Good#{Option => Value}, Config)
     || {Option, Value} <- [{connections, 0}, {loop, {closed, 0}}, {loop, {open, 0, even}},
                            {loop, {open, {percent, 0}, even}},
                            {loop, {open, 10, often}}, {era, {session, ~"2026-07-28"}},
                            {era, session}, {requests, []}, {requests, [{0, {~"ping", #{}}}]},
                            {headers, [{~"a", ~"b\r\nc: d"}]}, {duration_ms, 0}, {sources, []},
                            {observer, self}, {on_second, fun() -> ok end}, {windows, 3}]],
    {error, {bad_option, warmup_ms}} =
        start(Good#{loop => {open, {percent, 70}, even}, warmup_ms => 10}, Config),
    {error, {bad_option, sessions_per_connection}} =
        start(#{target => tcp, era => {session, ~"2025-11-25"}, sessions_per_connection => 2},
              Config),
    [{error, {bad_option, target}} = erlmcp_load:run(Plan)
     || Plan <- [#{}, #{target => {http, ~"ftp://127.0.0.1/"}}, #{target => {http, ~"/mcp"}},
                 #{target => {tcp, {127, 0, 0, 1}, 0}}]],
    {error, {host, _}} = erlmcp_load:run(#{target => {tcp, ~"no.such.host.invalid", 1}}).

url(Port, Path) -> iolist_to_binary(["http://127.0.0.1:", integer_to_list(Port), Path]).

good(Plan, Config) ->
    {ok, Load} = start(Plan, Config),
    is_good(erlmcp_load:await(Load)).

until_good(Requests, Plan, Config) ->
    is_good(until(Requests, Plan, Config)).

is_good(Report) ->
    #{sent := Sent, answered := Sent, refused := Refused, failed := Failed, wrong := 0,
      strays := 0, late := 0, latency := Latency} = Report,
    {#{}, #{}, 0, 0} = {Refused, Failed, map_size(Refused), map_size(Failed)},
    Sent = erlmcp_bench_histogram:count(Latency),
    Report.

%% A load until the given number of requests has ended. Its time differs between machines.
until(Requests, Plan, Config) ->
    {ok, Load} = start(Plan#{duration_ms => 3_600_000, observer => self()}, Config),
    _ = [receive {erlmcp_load, _, _, _} -> ok end || _ <- lists:seq(1, Requests)],
    Report = erlmcp_load:stop(Load),
    _ = heard([]),
    Report.

start(#{target := Name} = Plan, Config) ->
    Target = proplists:get_value(Name, Config),
    erlmcp_load:start(maps:merge(#{duration_ms => 200}, Plan#{target := Target})).
