-module(console_view_SUITE).
-moduledoc """
What the console makes of readings of a server: rates and percentiles of the time between two, the
last quarter of an hour, marks of what has changed, and a snapshot that is JSON whatever a server
names its things.
""".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([rates_are_of_the_time_between/1, percentiles_are_of_the_time_between/1,
         what_lasts_is_no_latency/1, percentiles_are_those_of_the_values/1,
         a_new_tool_counts_from_zero/1, history_is_bounded/1, columns_are_in_order/1,
         the_first_reading_shows_nothing/1, readings_may_be_close_together/1,
         a_minute_is_looked_back/1, changes_leave_marks/1,
         events_leave_marks/1, an_open_breaker_is_a_cause/1, pools_are_shown_without_secrets/1,
         upstreams_are_shown/1,
         starts_and_versions_leave_marks/1, incidents_are_listed/1,
         hostile_names_are_json/1, lists_are_bounded/1, a_trend_is_forecast/1]).

-define(START, 1_000_000_000).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [rates_are_of_the_time_between, percentiles_are_of_the_time_between,
     what_lasts_is_no_latency, percentiles_are_those_of_the_values, a_new_tool_counts_from_zero,
     history_is_bounded, columns_are_in_order, the_first_reading_shows_nothing,
     readings_may_be_close_together,
     a_minute_is_looked_back, changes_leave_marks, events_leave_marks,
     an_open_breaker_is_a_cause, pools_are_shown_without_secrets, upstreams_are_shown,
     starts_and_versions_leave_marks, incidents_are_listed, hostile_names_are_json,
     lists_are_bounded,
     a_trend_is_forecast].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

rates_are_of_the_time_between(_) ->
    Before = metrics(#{requests => 100, faults => 3, refusals => #{1069 => 3, 1060 => 1}}),
    After = metrics(#{at_ms => ?START + 2_000, requests => 150, faults => 4,
                      refusals => #{1069 => 4, 1060 => 1, 1021 => 7}}),
    #{seconds := 2.0, requests := 50, faults := 1, refusals := #{1069 := 1, 1021 := 7} = Refusals} =
        erlmcp_console_window:between(Before, After),
    2 = map_size(Refusals),
    %% A meter that began anew has done nothing, rather than less than nothing.
    #{requests := 0, faults := 0, refusals := #{}} = erlmcp_console_window:between(After, Before).

percentiles_are_of_the_time_between(_) ->
    Row = fun(Histogram) -> row(#{latency => #{histogram => Histogram}}) end,
    Before = metrics(#{methods => #{~"tools/call" => Row([{1_000, 1_000_000}])}}),
    After = metrics(#{methods => #{~"tools/call" => Row([{1_000, 1_000_090}, {2_000, 6},
                                                         {9_000, 3}, {infinity, 1}]),
                                   ~"ping" => row(#{})}}),
    #{latency := #{p50_us := 1_000, p95_us := 2_000, p99_us := 9_000}} =
        erlmcp_console_window:between(Before, After),
    #{latency := #{p50_us := 0, p99_us := 0}} = erlmcp_console_window:between(After, After).

%% As in the alerts and in the dashboard of the metrics.
what_lasts_is_no_latency(_) ->
    Row = fun(Histogram) -> row(#{latency => #{histogram => Histogram}}) end,
    After = metrics(#{methods => #{~"tools/call" => Row([{1_000, 8}]),
                                   ~"_TASK" => Row([{90_000_000, 9}]),
                                   ~"subscriptions/listen" => Row([{infinity, 9}])}}),
    #{latency := #{timed := 8, p50_us := 1_000, p99_us := 1_000}, methods := Methods} =
        erlmcp_console_window:between(metrics(#{}), After),
    %% Each has its own times.
    [90_000_000] = [P50 || #{name := ~"_TASK", p50_us := P50} <- Methods].

%% Each percentile is the end of the bucket that has its value.
percentiles_are_those_of_the_values(_) ->
    Values = ?SUCHTHAT(List, list(range(1, 20)), List =/= []),
    erlmcp_test_property:holds(?FORALL(Ranks, Values,
        begin
            Counts = lists:foldl(fun(Rank, Sum) ->
                maps:update_with(Rank * 10, fun(Count) -> Count + 1 end, 1, Sum)
            end, #{}, Ranks),
            After = metrics(#{methods => #{~"a" => row(#{latency => #{
                histogram => maps:to_list(Counts)}})}}),
            #{latency := #{p50_us := P50, p95_us := P95}} =
                erlmcp_console_window:between(metrics(#{}), After),
            Nth = fun(Share) ->
                10 * lists:nth(ceil(Share * length(Ranks)), lists:sort(Ranks))
            end,
            {P50, P95} =:= {Nth(0.5), Nth(0.95)}
        end), 200).

a_new_tool_counts_from_zero(_) ->
    Failed = [#{error => timeout, latency => #{count => 2}}],
    After = metrics(#{tools => [(row(#{count => 5, errors => 1, refusals => 2,
                                       failures => Failed}))#{name => ~"new"},
                                (row(#{count => 1}))#{name => other}]}),
    #{tools := [#{name := ~"new", total := 5, calls := 5, errors := 1, refusals := 2,
                  failed := #{timeout := 2}}, #{name := ~"other", calls := 1}]} =
        erlmcp_console_window:between(metrics(#{}), After).

history_is_bounded(_) ->
    Add = fun(Step, Count) ->
        lists:foldl(fun(N, History) -> erlmcp_console_history:add([N * Step, N], History) end,
                    erlmcp_console_history:new(), lists:seq(1, Count))
    end,
    %% By their number, if they come too often, and by their time.
    [Times, _] = erlmcp_console_history:columns(Add(100, 2_000)),
    900 = length(Times),
    [Seldom, _] = erlmcp_console_history:columns(Add(5_000, 1_000)),
    180 = length(Seldom),
    true = lists:last(Seldom) - hd(Seldom) < 900_000.

columns_are_in_order(_) ->
    History = lists:foldl(fun erlmcp_console_history:add/2, erlmcp_console_history:new(),
                          [[1, 10, 0.5], [2, 20, 1.5], [3, 30, 2.5]]),
    [[1, 2, 3], [10, 20, 30], [0.5, 1.5, 2.5]] = erlmcp_console_history:columns(History),
    [] = erlmcp_console_history:columns(erlmcp_console_history:new()).

the_first_reading_shows_nothing(_) ->
    View = erlmcp_console_view:new(),
    null = erlmcp_console_view:snapshot(View),
    #{points := [], snapshot := null, latency_ms := 150} = erlmcp_console_view:hello(View),
    First = erlmcp_console_view:next(reading(0, #{}), View),
    null = erlmcp_console_view:snapshot(First),
    Second = erlmcp_console_view:next(reading(1, #{metrics => #{requests => 8}}), First),
    #{point := [_, 8.0 | _], totals := #{requests := 8}} = erlmcp_console_view:snapshot(Second),
    #{points := [[_], [8.0] | _], columns := [at, requests | _], latency_ms := 99} =
        erlmcp_console_view:hello(erlmcp_console_view:with(#{latency_ms => 99}, Second)).

%% A page that is opened makes a reading, and the next one may come milliseconds later. In these few
%% the node has worked all the time, since it made the readings.
readings_may_be_close_together(_) ->
    Schedulers = erlang:system_info(schedulers_online),
    View = fun(Given) ->
        lists:foldl(fun({Second, Requests, RuntimeMs}, Before) ->
            Reading = reading(Second, #{metrics => #{requests => Requests},
                                        runtime_ms => RuntimeMs * Schedulers}),
            erlmcp_console_view:next(Reading, Before)
        end, erlmcp_console_view:new(), Given)
    end,
    Shown = fun(Given) ->
        #{verdict := #{well := Well}, point := [_, Rate | _] = Point,
          machine := #{processors := Processors}} = erlmcp_console_view:snapshot(View(Given)),
        Processors = lists:last(Point),
        {Well, Rate, Processors}
    end,
    Begun = [{0, 0, 0}, {5, 50, 500}, {8, 80, 800}, {9, 90, 1_050}],
    {true, 10.0, 0.25} = Shown(Begun),
    %% The figures are those since the newest reading that is old enough.
    {true, Rate, Share} = Shown(Begun ++ [{9.004, 92, 1_054}]),
    true = abs(Rate - 10.5) < 0.1,
    true = abs(Share - 0.14) < 0.01,
    {false, _, 0.98} = Shown(Begun ++ [{9.5, 95, 1_540}]),
    %% The first ones say nothing of the processors.
    {true, _, null} = Shown([{0, 0, 0}, {0.004, 0, 4}]),
    {true, _, null} = Shown([{0, 0, 0}, {0.499, 0, 499}]),
    {false, _, 1.0} = Shown([{0, 0, 0}, {0.5, 0, 500}]).

%% Rows of tools are of the last minute, whether somebody looks each second or nobody does.
a_minute_is_looked_back(_) ->
    Rate = fun(Step) ->
        View = lists:foldl(fun(Second, Before) ->
            Tools = [(row(#{count => 3 * Second}))#{name => ~"echo"}],
            erlmcp_console_view:next(reading(Second, #{metrics => #{tools => Tools}}), Before)
        end, erlmcp_console_view:new(), lists:seq(0, 300, Step)),
        #{seconds := Seconds, definitions := [#{name := ~"echo", rate := PerSecond}]} =
            erlmcp_console_view:snapshot(View),
        3.0 = PerSecond,
        Seconds
    end,
    true = Rate(1) >= 60 andalso Rate(1) =< 75,
    true = Rate(5) >= 60 andalso Rate(5) =< 75.

changes_leave_marks(_) ->
    Marks = fun(Before, After) ->
        [{Kind, Words} || #{kind := Kind, words := Words} <- maps:get(marks, shown(Before, After)),
                          Kind =/= start]
    end,
    [] = Marks(#{}, #{}),
    Tools = [(row(#{}))#{name => Name} || Name <- [~"a", ~"b"]],
    [{catalog, ~"The definitions changed: 2 added, 0 removed."}] =
        Marks(#{}, #{metrics => #{tools => Tools}}),
    [{catalog, ~"The definitions changed: 0 added, 1 removed."}] =
        Marks(#{metrics => #{tools => Tools}}, #{metrics => #{tools => tl(Tools)}}),
    %% What an event has told has no second mark.
    Told = erlmcp_console_view:event(#{event => reloaded, added => 2, removed => 0, changed => 1,
                                       modules => [], at => ?START, server => x},
                                     erlmcp_console_view:next(reading(0, #{}),
                                                              erlmcp_console_view:new())),
    #{marks := [#{kind := deploy, words := Words} | Others]} =
        erlmcp_console_view:snapshot(
            erlmcp_console_view:next(reading(1, #{metrics => #{tools => Tools}}), Told)),
    ~"The definitions were replaced: 2 added, 0 removed, 1 changed." = Words,
    [#{kind := start}] = Others,
    %% A server that started a while ago has no mark of that.
    #{marks := [#{kind := start}]} = shown(#{}, #{}),
    Old = #{metrics => #{started_ms => ?START - 900_001}},
    #{marks := []} = shown(Old, Old).

events_leave_marks(_) ->
    [{Event, Kind, Words} = {Event, Seen, Said}
     || {Event, Kind, Words} <- [
            {#{event => lame, milliseconds => 5}, drain,
             ~"The server is about to be drained: it is not ready, and still serves."},
            {#{event => draining, milliseconds => 5}, drain, ~"The server is being drained."},
            {#{event => drained, calls => 0, tasks => 0}, drain, ~"The server was drained."},
            {#{event => memory_full}, state, ~"Memory is full."},
            {#{event => processors_busy}, state, ~"The processors are too busy."},
            {#{event => breaker_opened, target => ~"search", opens_in_ms => 1}, breaker,
             ~"The breaker of search opened."},
            {#{event => error_budget_changed, window => 60, from => green, to => red}, zone,
             ~"The error budget went from green to red."}],
        #{kind := Seen, words := Said} <- marks_after([Event])],
    %% An event that is new in the table has a mark, too.
    [{change, ~"Event: moon is full."}] =
        [{Kind, Words} || #{kind := Kind, words := Words}
                              <- marks_after([#{event => moon_is_full}])],
    %% Each event has words, but those that are shown elsewhere, concern one client or none.
    Given = #{from => green, to => red, window => 60, what => call_crashed, incident => ~"1"},
    [incident, not_quick, slow_consumer, spans_dropped] =
        [Name || {Name, Measurements, Metadata, _} <- erlmcp_event:table(),
                 Fields <- [maps:from_keys(Measurements ++ Metadata, ~"x")],
                 [] =:= marks_after([maps:merge(Fields#{event => Name},
                                                maps:with(maps:keys(Fields), Given))])].

marks_after(Events) ->
    #{marks := Marks} = after_events(Events),
    [Mark || #{kind := Kind} = Mark <- Marks, Kind =/= start].

after_events(Events) ->
    View = lists:foldl(fun(Event, Before) ->
        erlmcp_console_view:event(Event#{at => ?START, server => x}, Before)
    end, erlmcp_console_view:next(reading(0, #{}), erlmcp_console_view:new()), Events),
    erlmcp_console_view:snapshot(erlmcp_console_view:next(reading(1, #{}), View)).

an_open_breaker_is_a_cause(_) ->
    Breaker = #{name => ~"search", targets => [~"search"], state => closed, failed => 0},
    Shared = #{name => db, targets => [~"a", ~"b", ~"c", ~"d"], state => half_open, failed => 5},
    Seen = fun(Breakers) -> shown(#{}, #{info => #{breakers => Breakers}}) end,
    #{breakers := [#{name := ~"search", state := closed, targets := 1, first := ~"search"}],
      verdict := #{well := true}} = Seen([Breaker]),
    %% Those that are not closed come first.
    #{breakers := [#{name := ~"db", targets := 4}, #{name := ~"search", state := closed}],
      verdict := #{causes := [#{words := Words, link := ~"dependencies"}]}} =
        Seen([Breaker, Shared]),
    <<"A circuit breaker is open: too many calls of a, b, c, ... (db) failed in a row.">> = Words,
    #{verdict := #{causes := [#{words := Own}]}} = Seen([Breaker#{state := open}]),
    ~"A circuit breaker is open: too many calls of search failed in a row." = Own.

pools_are_shown_without_secrets(_) ->
    Member = fun(Target, State) ->
        #{target => Target, state => State, calls => 1, failed => 2}
    end,
    Targets = [~"https://example.com:8443/mcp/the-secret?key=the-secret",
               {stdio, ["/usr/bin/server", "the-secret"]}, {tcp, {127, 0, 0, 1}, 7000},
               {tcp, {0, 0, 0, 0, 0, 0, 0, 1}, 7000}, {tcp, "localhost", 7000},
               {server, {tenant, 1}}],
    Pools = [{upstream, [Member(Target, closed) || Target <- Targets]},
             {self(), [Member(~"http://example.com/", open), Member(hd(Targets), closed)]}],
    #{pools := [#{name := ~"upstream", size := 6, members := Members}, #{size := 2}],
      workers := [#{name := ~"db", size := 2, ready := 1, taken := 1, waiting := 7}],
      verdict := #{causes := [#{words := <<"1 of 2 members of the pool ", _/binary>>}]}} =
        Snapshot = shown(#{}, #{pools => Pools,
                                info => #{workers => [#{name => db, size => 2, ready => 1,
                                                        taken => 1, waiting => 7}]}}),
    [~"https://example.com:8443", ~"stdio server", ~"tcp://127.0.0.1:7000", ~"tcp://[::1]:7000",
     ~"tcp://localhost:7000", ~"server {tenant,1}"] = [Place || #{target := Place} <- Members],
    nomatch = binary:match(iolist_to_binary(json:encode(Snapshot)), ~"the-secret").

%% Each server that the node's clients call, and a cause if it does not answer.
upstreams_are_shown(_) ->
    Upstream = fun(Count, Errors, Refusals, Error) ->
        #{name => ~"weather.example:443", clients => 2, calls => 3, connections => 1, waiting => 0,
          row => row(#{count => Count, errors => Errors, refusals => Refusals,
                       failures => [#{error => Error, latency => #{count => Refusals}}],
                       latency => #{histogram => [{2_000, Count - Errors - Refusals}]}})}
    end,
    Shown = fun(Error) ->
        shown(#{upstreams => [Upstream(10, 0, 0, Error)]},
              #{upstreams => [Upstream(20, 1, 6, Error),
                              (Upstream(4, 0, 4, Error))#{name := other}]})
    end,
    #{upstreams := [Weather, #{name := ~"other", calls := 4}], verdict := #{causes := Causes}} =
        Shown(connect),
    #{name := ~"weather.example:443", total := 20, calls := 10, rate := 10.0, errors := 1,
      refusals := 6, p95 := 2.0, running := 3, connections := 1, waiting := 0} = Weather,
    [<<"The upstream weather.example:443 does not answer: 6 of 10 requests to it of the last 1 s "
       "got no answer, most with connect.">>] =
        [Words || #{words := Words, link := ~"dependencies"} <- Causes],
    %% One that answers with errors does answer.
    #{verdict := #{causes := []}} = Shown(rpc).

%% A new start of a server with the same id, another version, and other code.
starts_and_versions_leave_marks(_) ->
    Version = fun(Name) -> #{server => #{~"version" => Name}} end,
    View = lists:foldl(fun({Second, Given}, Before) ->
        erlmcp_console_view:next(reading(Second, Given), Before)
    end, erlmcp_console_view:new(), [{0, Version(~"1")}, {1, Version(~"1")}, {2, Version(~"2")}]),
    Ended = erlmcp_console_view:ended(View),
    null = erlmcp_console_view:snapshot(Ended),
    Again = fun(Name) ->
        Given = (Version(Name))#{metrics => #{started_ms => ?START + 3_000}},
        Started = lists:foldl(fun(Second, Before) ->
            erlmcp_console_view:next(reading(Second, Given), Before)
        end, Ended, [4, 5]),
        Code = erlmcp_console_view:code_loaded([a, b, c, d, e], ?START + 5_500, Started),
        #{points := [Times | _]} = erlmcp_console_view:hello(Code),
        %% What was before goes on.
        [2, 1, 1] = [length([At || At <- Times, At > ?START + From, At =< ?START + To])
                     || {From, To} <- [{0, 2_000}, {4_000, 5_000}, {1_000, 2_000}]],
        #{marks := Marks} = erlmcp_console_view:snapshot(
            erlmcp_console_view:next(reading(6, Given), Code)),
        [{Kind, Words} || #{kind := Kind, words := Words} <- Marks]
    end,
    [{deploy, ~"Code was loaded: a, b, c and 2 more."},
     {start, ~"The server started again."},
     {deploy, ~"The server changed: version 2 in place of 1."},
     {start, ~"The server started."}] = Again(~"2"),
    [_, {deploy, ~"The server started again: version 3 in place of 2."}, _, _] = Again(~"3").

incidents_are_listed(_) ->
    Incident = fun(N) ->
        #{event => incident, incident => integer_to_binary(N), what => call_crashed,
          method => ~"tools/call", target => ~"write"}
    end,
    #{incidents := Incidents} = after_events([Incident(N) || N <- lists:seq(1, 21)]),
    20 = length(Incidents),
    #{id := ~"21", what := ~"call_crashed", method := ~"tools/call", target := ~"write"} =
        hd(Incidents),
    #{incidents := [#{method := null, target := null}]} =
        after_events([#{event => incident, incident => ~"1", what => page_crashed}]).

hostile_names_are_json(_) ->
    Names = [~"</script><script>alert(1)</script>", <<255, 254>>, <<"a", 0, "b">>, ~"",
             binary:copy(~"x", 100_000), binary:copy(<<16#301/utf8>>, 100_000),
             {tenant, #{~"k" => <<200>>}}, [a | b], self()],
    Calls = [#{id => ~"1", pid => self(), method => ~"tools/call", target => undefined,
               principal => Name, age_ms => 5,
               stack => [{m, f, [Name], []}, {m, f, 2, [{file, "m.erl"}, {line, 3}]}, Name]}
             || Name <- Names],
    Tools = [(row(#{count => 1}))#{name => Name} || Name <- Names, is_binary(Name)],
    Requests = [#{id => 1, payload => false, at => 1, server => make_ref(), method => undefined,
                  target => Name,
                  principal => Name, took_us => 5, error => 1069, trace => none, bytes_in => 1,
                  bytes_out => 2} || Name <- Names, is_binary(Name)],
    Snapshot = shown(#{}, #{calls => Calls, requests => Requests, metrics => #{tools => Tools}}),
    Json = iolist_to_binary(json:encode(Snapshot)),
    #{~"calls" := Shown, ~"requests" := [#{~"took" := 0.005, ~"error" := 1069} | _]} =
        json:decode(Json),
    true = length(Shown) =:= length(Names),
    true = byte_size(Json) < 20_000.

lists_are_bounded(_) ->
    Calls = [#{id => integer_to_binary(N), pid => self(), method => ~"tools/call", target => ~"a",
               principal => anonymous, age_ms => 5, stack => lists:duplicate(100, {m, f, 1, []})}
             || N <- lists:seq(1, 200)],
    #{calls := [#{stack := Stack} | _] = Shown} = shown(#{}, #{calls => Calls}),
    {50, 12} = {length(Shown), length(Stack)},
    #{marks := Marks} = after_events([#{event => memory_full} || _ <- lists:seq(1, 200)]),
    100 = length(Marks).

%% The forecasts are those of the figures (`forecaster_SUITE`).
a_trend_is_forecast(_) ->
    Forecast = #{at => ?START + 601_000, earliest => ?START + 590_000, latest => ?START + 612_000,
                 per_hour => 600.0},
    Given = #{sessions => #{used => 400, limit => 500, forecast => Forecast},
              tasks => #{used => 7, limit => 500}},
    #{bounds := Bounds, verdict := #{causes := Causes}} =
        shown(#{}, #{metrics => #{bounds => Given}}),
    [Forecast] = [Of || #{name := ~"sessions", forecast := Of} <- Bounds],
    [null] = [Of || #{name := ~"tasks", forecast := Of} <- Bounds],
    [<<"80 % of the bound of sessions are used, and all of it in about 10 minutes if the trend "
       "goes on.">>] =
        [Words || #{words := Words, link := ~"bounds"} <- Causes].

%% The snapshot after two readings, a second from each other.
shown(Before, After) ->
    First = erlmcp_console_view:next(reading(0, Before), erlmcp_console_view:new()),
    erlmcp_console_view:snapshot(erlmcp_console_view:next(reading(1, After), First)).

reading(Second, Given) ->
    At = ?START + round(Second * 1_000),
    Metrics = maps:get(metrics, Given, #{}),
    Info = maps:get(info, Given, #{}),
    #{at => At, calls => maps:get(calls, Given, []), requests => maps:get(requests, Given, []),
      troubles => [], places => #{}, server => maps:get(server, Given, #{~"name" => ~"test"}),
      node => (erlmcp_console_node:read())#{at_ms := At,
                                            runtime_ms := maps:get(runtime_ms, Given, 0),
                                            pools := maps:get(pools, Given, []),
                                            upstreams := maps:get(upstreams, Given, [])},
      metrics => metrics(Metrics#{at_ms => At}),
      info => maps:merge(#{state => open, concurrency_limit => 100, mounts => [],
                           breakers => [], workers => [],
                           error_budget => #{zone => green, windows => []}}, Info)}.

metrics(Given) ->
    maps:merge(#{server => test, at_ms => ?START, started_ms => ?START - 60_000, requests => 0,
                 faults => 0,
                 refusals => #{}, methods => #{}, tools => [], resources => [], prompts => [],
                 sessions => #{open => 0, opened => 0, ended => 0}, streams => #{open => 0},
                 connections => 0, in_flight => 0, waiting => 0, tasks => #{running => 0},
                 cache => #{entries => 0, bytes => 0, hits => 0, misses => 0},
                 bounds => #{}}, Given).

row(Given) ->
    maps:merge(#{count => 0, errors => 0, refusals => 0, failures => [],
                 latency => #{histogram => []}}, Given).
