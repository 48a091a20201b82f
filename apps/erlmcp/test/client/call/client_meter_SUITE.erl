-module(client_meter_SUITE).
-moduledoc """
The bounds of the meter of all clients, as Prometheus sees them over a long time: names and servers
come and go, and what the series rise by is what was counted, always.
""".

-include_lib("prometheus/include/prometheus_model.hrl").
-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2]).
-export([series_rise_by_what_is_counted/1, counts_that_move_are_read_again/1,
         unused_names_make_room/1, used_names_stay/1,
         names_stay_while_there_is_room/1, servers_that_leave_free_all_that_they_had/1,
         long_names_are_other/1]).

-define(SERVERS, 20).
-define(NAMES, 200).
-define(REVISION, '2026-07-28').

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [series_rise_by_what_is_counted, counts_that_move_are_read_again, unused_names_make_room,
     used_names_stay, names_stay_while_there_is_room, servers_that_leave_free_all_that_they_had,
     long_names_are_other].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

%% A case has a meter of its own.
init_per_testcase(_, Config) ->
    ok = application:stop(erlmcp),
    ok = application:start(erlmcp),
    Config.

%% Prometheus adds up how much each series rises, and takes a new one and one that has fallen for a
%% series that began at zero. The meter goes on from one example to the next.
series_rise_by_what_is_counted(_) ->
    erlmcp_test_property:holds(?FORALL(Rounds, noshrink(list(round())),
                                       lists:all(fun is_right/1, Rounds)), 20).

round() ->
    {oneof([?REVISION, '2025-11-25', none]), integer(1, ?SERVERS + 10), integer(1, 300),
     list(oneof([ok, tool_error, rpc, wrong, timeout])), oneof([sweep, stay])}.

is_right({Revision, Number, First, Outcomes, Sweep}) ->
    Before = series(),
    Server = server(Number),
    After = series(),
    [count(Server, Revision, First + Index div 2, Outcome)
     || {Index, Outcome} <- lists:enumerate(0, Outcomes)],
    Counted = series(),
    _ = Sweep =:= sweep andalso sweep(),
    Count = length(Outcomes),
    [0, 0, Count, Count, 0, 0] =:=
        [rise(Family, From, To)
         || {From, To} <- [{Before, After}, {After, Counted}, {Counted, series()}],
            Family <- [mcp_client_requests_total, mcp_client_operation_duration_seconds]].

%% The whole rise of a family, or `fell` if a series has fallen.
rise(Family, Before, After) ->
    Rises = [Value - maps:get(Series, Before, 0)
             || {Is, _} = Series := Value <- After, Is =:= Family],
    case lists:all(fun(Rise) -> Rise >= 0 end, Rises) of
        true -> lists:sum(Rises);
        false -> fell
    end.

%% What a scrape shows of the clients, by family and labels. Of a histogram it is the count.
series() ->
    Self = self(),
    ok = erlmcp_prometheus:collect_mf(default, fun(Family) -> Self ! {family, Family} end),
    maps:from_list(lists:append(families())).

families() ->
    receive
        {family, #'MetricFamily'{name = Name, metric = Metrics}} ->
            Family = binary_to_atom(iolist_to_binary(Name)),
            [[{{Family, lists:sort(Labels)}, value(Metric)}
              || #'Metric'{label = Labels} = Metric <- Metrics] | families()]
    after 0 ->
        []
    end.

value(#'Metric'{counter = #'Counter'{value = Value}}) -> Value;
value(#'Metric'{gauge = #'Gauge'{value = Value}}) -> Value;
value(#'Metric'{histogram = #'Histogram'{sample_count = Count}}) -> Count.

%% A client of a server, which ends at once.
server(Number) ->
    Case = self(),
    {_, Monitor} = spawn_monitor(fun() ->
        {ok, _} = erlmcp_client_table:join(),
        Case ! {server, erlmcp_client_table:server({tcp, ~"upstream.example", Number})}
    end),
    receive {'DOWN', Monitor, process, _, normal} -> ok end,
    %% The table knows that, too.
    _ = sys:get_state(erlmcp_client_table),
    receive {server, Server} -> Server end.

count(Server, Revision, Name, Outcome) ->
    erlmcp_client_meter:ended({~"tools/call", #{~"name" => name(Name)}}, {Server, Revision},
                              {erlang:monotonic_time(nanosecond), 100, 10}, outcome(Outcome)).

name(Number) -> <<"tool_", (integer_to_binary(Number))/binary>>.

outcome(ok) -> {ok, #{}, #{}};
outcome(tool_error) -> {ok, #{~"isError" => true}, #{}};
outcome(rpc) -> {error, {rpc, #{code => -32603}}};
outcome(wrong) -> {error, {rpc, #{code => -32602}}};
outcome(timeout) -> {error, {timeout, 1}}.

%% A minute passes.
sweep() ->
    erlmcp_client_table ! sweep,
    _ = sys:get_state(erlmcp_client_table),
    ok.

names(Tools) -> lists:sort([Name || #{name := Name} <- Tools]).

%% The only server's tools, its calls by all names, and those by the removed ones.
figures() ->
    [#{tools := Tools, methods := #{~"tools/call" := #{count := Count}},
       removed := #{tools := #{count := Removed}}}] =
        [Figures || #{revision := ?REVISION} = Figures <- erlmcp_client:metrics()],
    {names(Tools), Count, Removed}.

%% A reader that saw a part of the counts before they went elsewhere would miss them.
counts_that_move_are_read_again(_) ->
    Server = server(1),
    [count(Server, ?REVISION, Name, ok) || Name <- lists:seq(1, ?NAMES)],
    ok = sweep(),
    Read = fun(Meanwhile) ->
        Before = erlmcp_client_meter:requests(),
        ok = Meanwhile(),
        Self = self(),
        Self ! read,
        Before =:= erlmcp_client_meter:requests()
    end,
    Reads = fun Reads(Count) -> receive read -> Reads(Count + 1) after 0 -> Count end end,
    Steady = fun(Meanwhile) ->
        {erlmcp_client_meter:steady(fun() -> Read(Meanwhile) end), Reads(0)}
    end,
    {true, 1} = Steady(fun() -> ok end),
    {true, 2} = Steady(fun sweep/0),
    %% Nothing moves now.
    {true, 1} = Steady(fun sweep/0),
    Names = lists:seq(2, ?SERVERS),
    [count(server(Name), ?REVISION, Name, ok) || Name <- Names],
    {true, 2} = Steady(fun() -> 1 = server(?SERVERS + 1), ok end),
    %% A reader ends even if counts move all the time.
    {true, Most} = Steady(fun() -> _ = server(10_000 + erlang:unique_integer([positive])), ok end),
    true = Most > 2.

%% A node that meets ever new names.
unused_names_make_room(_) ->
    Server = server(1),
    lists:foreach(fun(Hour) ->
        Names = lists:seq(60 * Hour + 1, 60 * Hour + 60),
        [count(Server, ?REVISION, Name, Outcome)
         || Name <- Names, Outcome <- [ok, rpc]],
        {Tools, Count, _} = figures(),
        {Hour, []} = {Hour, [name(Name) || Name <- Names] -- Tools},
        {Hour, Count} = {Hour, 120 * (Hour + 1)},
        ok = sweep(),
        ok = sweep()
    end, lists:seq(0, 18)),
    {Tools, Count, Removed} = figures(),
    {60, 120} = {length(Tools), Count - Removed}.

used_names_stay(_) ->
    Server = server(1),
    [count(Server, ?REVISION, Name, Outcome)
     || Name <- lists:seq(1, ?NAMES), Outcome <- [ok, rpc]],
    ok = sweep(),
    count(Server, ?REVISION, 7, ok),
    count(Server, ?REVISION, 8, rpc),
    ok = sweep(),
    {[~"tool_7", ~"tool_8"], 402, 396} = figures(),
    %% A name that comes again begins at zero.
    count(Server, ?REVISION, 9, ok),
    [#{tools := Tools}] = erlmcp_client:metrics(),
    [{~"tool_7", 3}, {~"tool_8", 3}, {~"tool_9", 1}] =
        [{Name, Count} || #{name := Name, count := Count} <- Tools].

%% Three quarters of the names are no crowd.
names_stay_while_there_is_room(_) ->
    Server = server(1),
    Names = lists:seq(1, ?NAMES * 3 div 4),
    [count(Server, ?REVISION, Name, ok) || Name <- Names],
    ok = sweep(),
    ok = sweep(),
    {Tools, 150, 0} = figures(),
    Tools = lists:sort([name(Name) || Name <- Names]),
    count(Server, ?REVISION, 151, ok),
    ok = sweep(),
    {[~"tool_151"], 151, 150} = figures().

%% A place has room for the names of each server that takes it.
servers_that_leave_free_all_that_they_had(_) ->
    lists:foreach(fun(Number) ->
        Server = server(Number),
        Names = lists:seq(20 * (Number rem 2) + 1, 20 * (Number rem 2) + 15),
        [count(Server, ?REVISION, Name, Outcome) || Name <- Names, Outcome <- [ok, rpc]],
        [#{tools := Tools, methods := #{~"tools/call" := #{count := 30}}}] =
            [Figures || #{port := Port} = Figures <- erlmcp_client:metrics(), Port =:= Number],
        {Number, 15} = {Number, length([Name || #{name := Name, count := 2} <- Tools])}
    end, lists:append([lists:seq(1, 2 * ?SERVERS, 2), lists:seq(2, 2 * ?SERVERS, 2)])),
    %% Their figures have ended.
    [] = [Figures || #{server := other} = Figures <- erlmcp_client:metrics()],
    ?SERVERS = length(erlmcp_client:metrics()).

%% The longest name with figures of its own has 256 bytes.
long_names_are_other(_) ->
    Server = server(1),
    Long = binary:copy(~"x", 256),
    [erlmcp_client_meter:ended({~"tools/call", #{~"name" => Name}}, {Server, ?REVISION},
                               {erlang:monotonic_time(nanosecond), 100, 10}, outcome(Outcome))
     || Outcome <- [ok, wrong], Name <- [Long, <<Long/binary, "x">>]],
    {[other, Long], 4, 0} = figures().
