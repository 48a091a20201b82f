-module(console_facts_SUITE).
-moduledoc """
The facts from which the verdict is made: the present and what was usual before, errors of the
machine in the log, and what of a node grows, where.
""".

-compile(nowarn_missing_spec_documented).

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([few_requests_tell_of_a_minute/1, the_usual_is_from_before/1,
         a_time_counts_from_the_start_of_its_bucket/1, only_requests_with_a_time_tell_it/1,
         a_flood_is_seen/1, most_failures_have_a_reason/1,
         faults_are_told_from_other_errors/1, a_trouble_ends_when_its_tool_is_served/1,
         a_trouble_of_no_tool_ends_after_a_minute/1, other_servers_have_their_own_troubles/1]).
-export([what_grows_steadily_is_found/1, the_tightest_room_counts/1, noise_is_no_growth/1,
         the_only_tool_is_named/1]).
-export([a_growing_table_is_found/1, growing_processes_are_found/1,
         binaries_that_are_held_are_found/1, binaries_of_a_table_are_found/1]).
-export([errors_of_the_machine_are_counted/1, other_errors_are_not/1, rows_are_bounded/1]).

-define(START, 1_000_000_000).
-define(PATIENCE, 20_000).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [few_requests_tell_of_a_minute, the_usual_is_from_before,
     a_time_counts_from_the_start_of_its_bucket, only_requests_with_a_time_tell_it,
     a_flood_is_seen, most_failures_have_a_reason, faults_are_told_from_other_errors,
     a_trouble_ends_when_its_tool_is_served, a_trouble_of_no_tool_ends_after_a_minute,
     other_servers_have_their_own_troubles, what_grows_steadily_is_found,
     the_tightest_room_counts, noise_is_no_growth, the_only_tool_is_named,
     a_growing_table_is_found, growing_processes_are_found, binaries_that_are_held_are_found,
     binaries_of_a_table_are_found, errors_of_the_machine_are_counted, other_errors_are_not,
     rows_are_bounded].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, erlmcp_console], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

%% Readings at these seconds, the newest first.

few_requests_tell_of_a_minute(_) ->
    Told = fun(Calls, Requests) ->
        #{seconds := Seconds, tools := [#{seconds := OfTool, calls := Told}]} =
            facts([{60, #{requests => 100 + Requests, tools => [row(~"a", 40 + Calls, [])]}},
                   {59, #{requests => 100, tools => [row(~"a", 40, [])]}},
                   {55, #{requests => 100, tools => [row(~"a", 40, [])]}},
                   {0, #{requests => 0, tools => [row(~"a", 0, [])]}}]),
        {Seconds, OfTool, Told}
    end,
    {5.0, 5.0, 5} = Told(5, 20),
    {60.0, 60.0, 44} = Told(4, 19).

the_usual_is_from_before(_) ->
    Usual = fun(Before, Now) ->
        #{tools := [#{usual := Usual}]} =
            facts([{10, #{tools => [row(~"a", 40, [{1_000, Before}, {900_000, Now}])]}},
                   {5, #{tools => [row(~"a", 20, [{1_000, Before}])]}},
                   {0, #{tools => [row(~"a", 0, [])]}}]),
        Usual
    end,
    #{p50_us := 850, p95_us := 850} = Usual(20, 20),
    %% Too few of the calls before had a time.
    none = Usual(19, 20),
    %% A tool that is quick is not compared.
    none = Usual(20, 0).

%% Calls of 145 ms and of 165 ms are counted as up to 170 ms, so they may not exceed 150 ms.
a_time_counts_from_the_start_of_its_bucket(_) ->
    Judged = fun(UpTo) ->
        Row = row(~"a", 20, [{UpTo, 20}]),
        #{p95_us := P95, tools := [#{p50_us := P50, p95_us := P95OfTool}]} = Facts =
            facts([{5, #{requests => 20, methods => #{~"tools/call" => Row}, tools => [Row]}},
                   {0, #{tools => [row(~"a", 0, [])]}}]),
        Causes = erlmcp_console_causes:causes(Facts#{cluster => null, pools => []}),
        {P50, P95, P95OfTool, [Words || #{words := Words} <- Causes]}
    end,
    {140_000, 140_000, 140_000, []} = Judged(170_000),
    {170_000, 170_000, 170_000, [Words]} = Judged(200_000),
    <<"One request in twenty takes longer than 170 ms; the bound is 150 ms.", _/binary>> = Words,
    %% The first bucket and the last one.
    {0, 0, 0, []} = Judged(1),
    {240_000_000, _, _, [_]} = Judged(infinity).

%% Of 400 requests, the others were refused. Those of the minute tell if too few have a time.
only_requests_with_a_time_tell_it(_) ->
    Told = fun(Timed) ->
        Row = row(~"a", 800, [{100, 40}, {200_000, Timed}]),
        Before = row(~"a", 400, [{100, 40}]),
        #{timed := Counted, requests := 400,
          tools := [#{seconds := 5.0, calls := 400, timed := OfTool, timed_seconds := Seconds}]} =
            facts([{60, #{requests => 800, methods => #{~"tools/call" => Row}, tools => [Row]}},
                   {55, #{requests => 400, methods => #{~"tools/call" => Before},
                          tools => [Before]}},
                   {0, #{tools => [row(~"a", 0, [])]}}]),
        {Counted, OfTool, Seconds}
    end,
    {20, 20, 5.0} = Told(20),
    {59, 19, 5.0} = Told(19),
    {45, 5, 5.0} = Told(5),
    {44, 44, 60.0} = Told(4).

a_flood_is_seen(_) ->
    Flood = fun(Requests) ->
        #{flood := Flood} = facts([{105, #{requests => 1_000 + Requests}},
                                   {100, #{requests => 1_000}}]),
        Flood
    end,
    %% Ten a second before, and 39.8 and 40 now. The server started at the beginning.
    none = Flood(199),
    #{per_second := 40.0, times := 4.0} = Flood(200).

most_failures_have_a_reason(_) ->
    Reason = fun(Failures) ->
        Row = row(~"a", 20, []),
        #{tools := [#{reason := Reason}]} =
            facts([{10, #{tools => [Row#{failures => [#{error => Error,
                                                        latency => #{count => Count}}
                                                      || {Error, Count} <- Failures]}]}},
                   {0, #{tools => [row(~"a", 0, [])]}}]),
        Reason
    end,
    none = Reason([]),
    none = Reason([{circuit_breaker_open, 9}, {cancelled, 9}]),
    tool_error = Reason([{tool_error, 2}, {timeout, 1}]),
    {1069, timeout} = Reason([{timeout, 2}, {tool_error, 1}, {circuit_breaker_open, 9}]).

%% Those of the last seconds, and of the minute.
faults_are_told_from_other_errors(_) ->
    Row = fun(Calls, Failures) ->
        (row(~"a", Calls, []))#{failures => [#{error => Error, latency => #{count => Count}}
                                             || {Error, Count} <- Failures]}
    end,
    #{tools := [#{faults := {2, 7}}]} =
        facts([{60, #{tools => [Row(40, [{timeout, 3}, {internal_error, 4}, {invalid_params, 9},
                                         {tool_error, 8}, {cancelled, 2},
                                         {circuit_breaker_open, 6}])]}},
               {55, #{tools => [Row(20, [{timeout, 1}, {internal_error, 4}])]}},
               {0, #{tools => [row(~"a", 0, [])]}}]).

a_trouble_ends_when_its_tool_is_served(_) ->
    Seen = fun(Count, Calls) ->
        #{troubles := Troubles} =
            facts([{10, #{tools => [row(~"keep", 10 + Calls, [])],
                          troubles => [trouble({tool, ~"keep"}, Count)]}},
                   {5, #{tools => [row(~"keep", 10, [])],
                         troubles => [trouble({tool, ~"keep"}, 7)]}},
                   {0, #{tools => [row(~"keep", 0, [])]}}]),
        Troubles
    end,
    [#{error := enospc, count := 8, place := {tool, ~"keep"}}] = Seen(8, 1),
    [#{error := enospc, count := 7}] = Seen(7, 0),
    [] = Seen(7, 1).

a_trouble_of_no_tool_ends_after_a_minute(_) ->
    Other = trouble(none, 3),
    #{troubles := [#{count := 3, place := none}]} =
        facts([{60, #{troubles => [Other]}}, {5, #{troubles => [Other]}}, {0, #{}}]),
    #{troubles := []} =
        facts([{70, #{troubles => [Other]}}, {65, #{troubles => [Other]}},
               {5, #{troubles => [Other]}}]).

other_servers_have_their_own_troubles(_) ->
    {{none, Error, Place}, Count, At} = trouble(none, 1),
    Of = fun(Server) ->
        #{troubles := Troubles} = facts([{5, #{troubles => [{{Server, Error, Place}, Count, At}]}},
                                         {0, #{}}]),
        length(Troubles)
    end,
    {1, 0} = {Of(test), Of(other)}.

what_grows_steadily_is_found(_) ->
    Growth = fun(Values) -> growth([{5 * N, #{memory => Value}}
                                    || {N, Value} <- lists:enumerate(0, Values)]) end,
    [#{name := memory, per_second := 20.0, met_ms := 50_000, place := none, tool := none}] =
        Growth([500, 600, 700, 800, 900]),
    %% Only the last steps count.
    [#{name := memory}] = Growth([900, 900, 900, 500, 600, 700, 800, 900]),
    %% One step less is a suspicion, and two of them are the least.
    [] = Growth([600, 700, 800, 900]),
    true = suspected([700, 800, 900]),
    false = suspected([800, 900]),
    [#{name := processes, per_second := 2.0, met_ms := 25_000}] =
        growth([{5 * N, #{processes => 10 * N}} || N <- lists:seq(1, 5)]).

suspected(Values) ->
    erlmcp_console_growth:is_suspected(
        readings(lists:reverse([{5 * N, #{memory => Value}}
                                || {N, Value} <- lists:enumerate(0, Values)]))).

the_tightest_room_counts(_) ->
    Met = fun(Given) ->
        [#{met_ms := Met}] = growth([{5 * N, Given#{memory => 100 * N}} || N <- lists:seq(1, 5)]),
        Met
    end,
    50_000 = Met(#{}),
    10_000 = Met(#{memory_bytes => 700}),
    1_000 = Met(#{machine => #{used => 480, limit => 500}}),
    %% Without a bound nothing is met.
    [] = growth([{5 * N, #{memory => 100 * N, machine => #{used => 480, limit => infinity}}}
                 || N <- lists:seq(1, 5)]).

noise_is_no_growth(_) ->
    [[] = growth([{5 * N, #{memory => Value}} || {N, Value} <- lists:enumerate(0, Values)])
     || Values <- [[500, 500, 500, 500, 500], [900, 800, 700, 600, 500],
                   [500, 600, 590, 700, 800], [500, 600, 600, 700, 800],
                   %% One leap.
                   [500, 501, 502, 503, 900]]].

the_only_tool_is_named(_) ->
    Tool = fun(Calls, Others) ->
        [#{tool := Tool}] = growth([{5 * N, #{memory => 100 * N,
                                              tools => [row(~"a", N * Calls, []),
                                                        row(~"b", N * Others, [])]}}
                                    || N <- lists:seq(1, 5)]),
        Tool
    end,
    {~"a", 12} = Tool(3, 0),
    none = Tool(300, 1),
    none = Tool(0, 0).

%% Two looks at this node.

a_growing_table_is_found(_) ->
    Table = ets:new(grows, [public]),
    #{memory := Place} = between(fun() ->
        true = ets:insert(Table, {key, lists:seq(1, 1_000_000)})
    end),
    {match, _} = re:run(Place, "^the table grows of .+"),
    true = ets:delete(Table).

growing_processes_are_found(_) ->
    Test = self(),
    #{processes := Place} = between(fun() ->
        _ = [spawn(fun() -> wait_for(Test) end) || _ <- lists:seq(1, 1_000)]
    end),
    {match, _} = re:run(Place, "^console_facts_SUITE:.*wait_for"),
    true.

wait_for(Test) ->
    Monitor = monitor(process, Test),
    receive {'DOWN', Monitor, process, _, _} -> ok end.

binaries_that_are_held_are_found(_) ->
    Test = self(),
    #{memory := Place} = between(fun() ->
        Growing = self(),
        _ = spawn(fun() -> hold(Test, Growing) end),
        receive holds -> ok end
    end),
    {match, _} = re:run(Place, "^binaries that the processes of console_facts_SUITE:.*hold"),
    true.

hold(Test, Growing) ->
    Bytes = [binary:copy(~"x", 1_000_000) || _ <- lists:seq(1, 50)],
    Growing ! holds,
    Monitor = monitor(process, Test),
    receive {'DOWN', Monitor, process, _, _} -> length(Bytes) end.

binaries_of_a_table_are_found(_) ->
    Table = ets:new(grows, [public]),
    #{memory := Place} = between(fun() ->
        [ets:insert(Table, {N, binary:copy(~"x", 1_000_000)}) || N <- lists:seq(1, 50)]
    end),
    {match, _} = re:run(Place, "^binaries, perhaps those of the table grows of .+"),
    true = ets:delete(Table).

%% What grows between two looks, by a process that has ended then. A look that comes too soon is
%% left out.
between(Grow) ->
    true = ets:delete_all_objects(erlmcp_console_places),
    ok = erlmcp_console_places:look(),
    ok = erlmcp_console_places:look(),
    ok = until(fun() -> ets:member(erlmcp_console_places, seen) end),
    #{} = Nothing = erlmcp_console_places:found(),
    0 = map_size(Nothing),
    {_, Growing} = spawn_monitor(Grow),
    receive {'DOWN', Growing, process, _, normal} -> ok end,
    true = ets:delete(erlmcp_console_places, looks),
    ok = erlmcp_console_places:look(),
    ok = until(fun() -> erlmcp_console_places:found() =/= #{} end),
    erlmcp_console_places:found().

%% Errors of the machine in the log.

errors_of_the_machine_are_counted(_) ->
    [{Report, Key} = {Report, counted(Report)} || {Report, Key} <- [
        {#{what => call_crashed, server => a, method => ~"tools/call", target => ~"keep",
           reason => {badmatch, {error, {file, enospc}}}, stacktrace => []},
         {a, enospc, {tool, ~"keep"}}},
        {#{what => call_crashed, server => a, method => ~"resources/read", target => ~"x://y",
           reason => {{case_clause, [a, 2, {error, erofs}]}, #{}}}, {a, erofs, none}},
        {#{what => other, term => [a, [b | emfile]]}, {none, emfile, none}},
        {#{label => write, args => ["/a/file", {error, edquot}]}, {none, edquot, none}},
        {[{first, 1}, {second, {error, eio}}], {none, eio, none}},
        %% Texts have no errors, and take no time.
        {#{text => lists:duplicate(100_000, $x), why => enomem}, {none, enomem, none}}]].

other_errors_are_not(_) ->
    Deep = lists:foldl(fun(_, Term) -> {Term, a} end, enospc, lists:seq(1, 3_000)),
    [none = counted(Report)
     || Report <- [#{what => call_crashed, reason => {badmatch, {error, enoent}}},
                   #{what => deep, reason => Deep},
                   #{what => large, reason => list_to_tuple(lists:duplicate(3_000, enospc))}]].

counted(Report) ->
    true = ets:delete_all_objects(erlmcp_console_log),
    ok = logger:error(Report),
    case erlmcp_console_log:read() of
        [{Key, 1, At}] when is_integer(At) -> Key;
        [] -> none
    end.

rows_are_bounded(_) ->
    true = ets:delete_all_objects(erlmcp_console_log),
    ok = lists:foreach(fun(N) ->
        ok = logger:error(#{what => x, server => N rem 101, reason => enospc})
    end, lists:seq(1, 202)),
    Rows = erlmcp_console_log:read(),
    100 = length(Rows),
    [{_, 2, _} = Row || Row <- Rows].

%% Readings, which have what a case gives.

facts(Given) ->
    [Reading | Earlier] = readings(Given),
    #{metrics := Before} = lists:last(Earlier),
    #{metrics := Now} = Reading,
    erlmcp_console_facts:facts(Reading, Earlier, erlmcp_console_window:between(Before, Now),
                               #{bounds => [], open_breakers => [], processors => 0.1,
                                 upstreams => [], latency_ms => 150}).

%% The oldest first.
growth(Given) ->
    erlmcp_console_growth:growth(readings(lists:reverse(Given))).

readings(Given) ->
    [reading(?START + 1_000 * Second, One) || {Second, One} <- Given].

reading(At, Given) ->
    Tables = #{Name => #{used => maps:get(Name, Given, 1), limit => 100}
               || Name <- [processes, ports, atoms]},
    #{at => At, calls => [], troubles => maps:get(troubles, Given, []), places => #{},
      node => #{upstreams => [], memory => #{total => maps:get(memory, Given, 1)},
                bounds => Tables#{memory => maps:get(machine, Given,
                                                     #{used => 0, limit => 1_000})},
                memory_bytes => maps:get(memory_bytes, Given, infinity)},
      info => #{state => open, mounts => [], error_budget => #{windows => []}},
      metrics => #{server => test, at_ms => At, started_ms => ?START,
                   requests => maps:get(requests, Given, 0), faults => 0, refusals => #{},
                   methods => maps:get(methods, Given, #{}), tools => maps:get(tools, Given, []),
                   resources => [], prompts => []}}.

row(Name, Count, Histogram) ->
    #{name => Name, count => Count, errors => 0, refusals => 0, failures => [],
      latency => #{histogram => Histogram}}.

trouble(Place, Count) ->
    {{none, enospc, Place}, Count, ?START}.

until(Holds) ->
    until(Holds, erlang:monotonic_time(millisecond) + ?PATIENCE).

until(Holds, End) ->
    case Holds() of
        true -> ok;
        false ->
            erlang:monotonic_time(millisecond) < End orelse ct:fail(not_seen),
            receive after 10 -> until(Holds, End) end
    end.
