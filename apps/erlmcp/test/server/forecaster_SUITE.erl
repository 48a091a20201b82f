-module(forecaster_SUITE).
-moduledoc """
The forecasts of a server's bounds, in its figures and on its page for Prometheus: they are made
once a minute, are kept apart for each server, and go with it.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([a_trend_is_forecast/1, noise_has_no_forecast/1, an_hour_is_kept/1,
         ended_servers_are_forgotten/1, a_server_that_ends_now_has_no_sessions/1]).

-define(MINUTE_MS, 60_000).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [a_trend_is_forecast, noise_has_no_forecast, an_hour_is_kept, ended_servers_are_forgotten,
     a_server_that_ends_now_has_no_sessions].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, inets], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

%% 30 connections of 60, after half an hour with one more each minute: half an hour is left.
a_trend_is_forecast(_) ->
    #{pid := Pid} = Server = start(~"growing"),
    Open = [erlmcp_test_http:connect(Server) || _ <- lists:seq(1, 30)],
    ok = until(fun() -> maps:get(connections, erlmcp:metrics(Pid)) =:= 30 end),
    plant([{connections, Minute} || Minute <- lists:seq(1, 29)], Server),
    #{connections := #{limit := 60, forecast := Forecast}, sessions := Sessions} = bounds(Server),
    false = is_map_key(forecast, Sessions),
    #{at := At, earliest := Earliest, latest := Latest, per_hour := PerHour} = Forecast,
    Seconds = (At - erlang:system_time(millisecond)) div 1_000,
    true = abs(Seconds - 30 * 60) < 10 andalso abs(PerHour - 60.0) < 1.0,
    true = Earliest =< At andalso At =< Latest,
    [[~"connections", Text]] = scraped(~"growing", Server),
    true = abs(binary_to_float(Text) - Seconds) < 10,
    ok = lists:foreach(fun erlmcp_test_http:close/1, Open),
    erlmcp_test_http:stop(Server).

until(Holds) ->
    case Holds() of
        true -> ok;
        false -> receive after 10 -> until(Holds) end
    end.

noise_has_no_forecast(_) ->
    Server = start(~"calm"),
    plant([{connections, 40 + (Minute * 7919) rem 13} || Minute <- lists:seq(1, 59)], Server),
    false = is_map_key(forecast, maps:get(connections, bounds(Server))),
    [] = scraped(~"calm", Server),
    %% The bounds of the node are read as well.
    #{node := [{_, #{processes := _, ports := _, atoms := _}} | _]} =
        sys:get_state(erlmcp_forecaster),
    erlmcp_test_http:stop(Server).

an_hour_is_kept(_) ->
    Server = start(~"long"),
    plant([{connections, Minute} || Minute <- lists:seq(1, 60)], Server),
    Key = key(Server),
    #{Key := [{_, Newest} | _] = History} = sys:get_state(erlmcp_forecaster),
    60 = length(History),
    [] = [connections, in_flight, waiting, sessions, tasks] -- maps:keys(Newest),
    {_, #{connections := 2}} = lists:last(History),
    erlmcp_test_http:stop(Server).

ended_servers_are_forgotten(_) ->
    Server = start(~"ended"),
    plant([{connections, Minute} || Minute <- lists:seq(1, 30)], Server),
    Key = key(Server),
    [_] = ets:lookup(erlmcp_forecaster, Key),
    erlmcp_test_http:stop(Server),
    read(),
    [] = ets:lookup(erlmcp_forecaster, Key),
    false = is_map_key(Key, sys:get_state(erlmcp_forecaster)).

%% A server is found while it runs, and may lose its tables before its bounds are read.
a_server_that_ends_now_has_no_sessions(_) ->
    Server = start(~"ends"),
    plant([{tasks, Minute} || Minute <- lists:seq(1, 30)], Server),
    Key = key(Server),
    Forecaster = whereis(erlmcp_forecaster),
    {ok, _, #{sessions := Sessions}} = erlmcp_registry:whereis(maps:get(pid, Server)),
    true = ets:delete(element(2, Sessions)),
    Forecaster ! read,
    #{node := _, Key := [{_, #{sessions := 0}} | _]} = sys:get_state(Forecaster),
    erlmcp_test_http:stop(Server),
    ok = read(),
    false = is_map_key(Key, sys:get_state(Forecaster)).

%% The values of the minutes before this one, the oldest first, as if the process had read them.
%% Then it reads.
plant(Values, Server) ->
    Key = key(Server),
    Now = erlang:system_time(millisecond),
    History = [{Now - Before * ?MINUTE_MS, #{Name => Value}}
               || {Before, {Name, Value}} <- lists:enumerate(lists:reverse(Values))],
    _ = sys:replace_state(erlmcp_forecaster, fun(Histories) -> Histories#{Key => History} end),
    read().

read() ->
    erlmcp_forecaster ! read,
    _ = sys:get_state(erlmcp_forecaster),
    ok.

key(#{pid := Pid}) ->
    {ok, _, #{key := Key}} = erlmcp_registry:whereis(Pid),
    Key.

bounds(#{pid := Pid}) ->
    #{bounds := Bounds} = erlmcp:metrics(Pid),
    Bounds.

start(Id) ->
    erlmcp_test_http:start(#{id => Id, limits => #{connections => 60},
                             listen => [{http, #{port => 0, metrics => true}}]}).

%% The bounds of a server on the page, with their seconds.
scraped(Id, #{url := Url}) ->
    Pattern = ["mcp_server_bound_forecast_seconds{server=\"", Id, "\",bound=\"([a-z_]+)\"} (.+)"],
    Page = uri_string:resolve(~"/metrics", Url),
    {ok, {{_, 200, _}, _, Text}} =
        httpc:request(get, {unicode:characters_to_list(Page), []}, [], [{body_format, binary}]),
    case re:run(Text, Pattern, [global, {capture, all_but_first, binary}]) of
        {match, Found} -> Found;
        nomatch -> []
    end.
