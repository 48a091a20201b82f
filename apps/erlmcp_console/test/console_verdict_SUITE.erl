-module(console_verdict_SUITE).
-moduledoc """
The verdict on a server: each fact that is not well is one cause with words and a link, at its bound
and not before. A verdict begins and ends when its causes do.
""".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0]).
-export([nothing_is_well/1, each_cause_has_its_words/1, causes_begin_at_their_bounds/1,
         a_cause_keeps_its_beginning/1, a_cause_stays_ten_seconds/1, what_is_usual_stays/1,
         well_and_since_agree/1]).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [nothing_is_well, each_cause_has_its_words, causes_begin_at_their_bounds,
     a_cause_keeps_its_beginning, a_cause_stays_ten_seconds, what_is_usual_stays,
     well_and_since_agree].

nothing_is_well(_) ->
    #{well := true, since := 1_000, causes := []} = erlmcp_console_verdict:new(1_000),
    #{well := true, since := 1_000, causes := []} =
        at(9_000, #{}, erlmcp_console_verdict:new(1_000)).

each_cause_has_its_words(_) ->
    [{Fact, Link, Words} = {Fact, link_of(Fact), words(Fact)} || {Fact, Link, Words} <- [
        {#{state => server_shutting_down}, ~"refusals",
         ~"The server is being drained: it refuses new requests (1077)."},
        {#{state => resource_exhausted}, ~"machine",
         ~"Memory is full: the server refuses new requests (1089)."},
        {#{state => service_unavailable}, ~"machine",
         ~"The processors are too busy: the server refuses new requests (1078)."},
        {#{cluster => #{lease => 0, nodes => [#{node => ~"mcp@a", state => dead}]}}, ~"cluster",
         <<"This node has lost its contact with the cluster, so the server refuses sessions "
           "(1080).">>},
        {#{cluster => #{lease => 900, nodes => [#{node => ~"mcp@a", state => alive},
                                                #{node => ~"mcp@b", state => dead}]}}, ~"cluster",
         ~"The node mcp@b of the cluster does not run."},
        {#{mounts_gone => [~"almanac"]}, ~"server", ~"The mounted server almanac does not run."},
        {#{open_breakers => [{~"search", [~"search"]}]}, ~"dependencies",
         ~"A circuit breaker is open: too many calls of search failed in a row."},
        {#{pools => [{~"upstream", 1, 2}]}, ~"dependencies",
         <<"1 of 2 members of the pool of clients upstream get no calls: too many of their calls "
           "failed in a row.">>},
        {#{open_breakers => [{~"search", [~"search"]}],
           tools => [(tool(~"search", 9, 0, 9, 0))#{reason := {1080, dependency_unavailable}}]},
         ~"dependencies",
         <<"A circuit breaker is open: too many calls of search failed in a row, most with 1080, "
           "dependency unavailable.">>},
        {#{troubles => [#{error => enospc, count => 1, place => none}]}, ~"incidents",
         ~"A disk is full (enospc): the log has one report of that in the last minute."},
        {#{troubles => [#{error => erofs, count => 2_000, place => {tool, ~"keep"}}]},
         ~"incidents",
         <<"A file system takes no writes (erofs): the log has 2,000 reports of that in the last "
           "minute, the last one of the tool keep.">>},
        {#{windows => [window(10, green, 5, 0), window(60, red, 1_204, 31)]}, ~"refusals",
         ~"31 of 1,204 requests of the last minute failed by the server's own fault."},
        {#{windows => [window(300, yellow, 12_000_004, 6_001)], faults => {9, 5_000},
           tools => [faulty(~"write", {0, 3_001}), faulty(~"read", {9, 39}),
                     %% Refused for its clients' mistakes.
                     tool(~"find", 500, 0, 200, 0)]}, ~"refusals",
         <<"6,001 of 12,000,004 requests of the last 5 min failed by the server's own fault, most "
           "of them of write.">>},
        %% The other 30 are older than a minute.
        {#{windows => [window(300, red, 60, 31)], faults => {0, 1},
           tools => [faulty(~"write", {0, 1})]}, ~"refusals",
         ~"31 of 60 requests of the last 5 min failed by the server's own fault."},
        {#{windows => [window(10, red, 20, 17)], faults => {17, 79},
           tools => [faulty(~"write", {0, 40}), faulty(~"read", {9, 39})]}, ~"refusals",
         <<"17 of 20 requests of the last 10 s failed by the server's own fault, most of them of "
           "read.">>},
        %% Each of two, with errors that are no faults.
        {#{windows => [window(60, red, 20, 17)], faults => {17, 17},
           tools => [faulty(~"write", {0, 10}), faulty(~"read", {0, 11})]}, ~"refusals",
         ~"17 of 20 requests of the last minute failed by the server's own fault."},
        %% Half of them; and more than all, with such errors.
        {#{windows => [window(60, red, 20, 17)], faults => {17, 17},
           tools => [faulty(~"write", {17, 8}), faulty(~"read", {17, 18})]}, ~"refusals",
         ~"17 of 20 requests of the last minute failed by the server's own fault."},
        {#{requests => 1_000, refused => [{1060, concurrent_limit_exceeded, 400},
                                          {1001, queue_cap_exceeded, 20}, {1021, a, 500}]},
         ~"refusals",
         <<"420 requests of the last minute were refused for want of room, most with 1060, "
           "concurrent limit exceeded.">>},
        {#{requests => 1_000, refused => [{1001, queue_cap_exceeded, 900}], seconds => 5.2,
           flood => #{per_second => 192.3, times => 38.4}},
         ~"refusals",
         <<"A flood: 192 requests come in a second, 38 times as many as before. 900 requests of "
           "the last 5 s were refused for want of room, most with 1001, queue cap exceeded.">>},
        {#{tools => [tool(~"search", 40, 30, 4, 0)]}, ~"tools",
         ~"The tool search fails: 34 of its 40 calls of the last minute."},
        {#{tools => [(tool(~"search", 40, 34, 0, 0))#{seconds := 6.04, reason := tool_error}]},
         ~"tools",
         <<"The tool search fails: 34 of its 40 calls of the last 6 s, most with an error in the "
           "result.">>},
        {#{tools => [slow(~"search", 40, 3_000, 900_000)]}, ~"tools",
         <<"The tool search is slow: one in twenty of its calls of the last minute took longer "
           "than 900 ms, and before that 5.0 ms.">>},
        {#{tools => [slow(~"search", 6, 800_000, 900_000)]}, ~"tools",
         <<"The tool search is slow: half of its calls of the last minute took longer than 800 ms, "
           "and before that 2.0 ms.">>},
        {#{tools => [slow(~"search", 0, 0, 0)],
           running => [#{target => ~"search", age_ms => Age} || Age <- [7_000, 5_100, 6_000]]},
         ~"calls",
         <<"The tool search is held up: 3 of its calls have run for more than 5.1 s. One in twenty "
           "took longer than 5.0 ms before.">>},
        {#{growth => [growth(memory, 3_145_728, 480_000)]}, ~"machine",
         <<"The node's memory grows by 3.0 MiB a second, and will be full in about 8 minutes if "
           "that goes on.">>},
        {#{growth => [(growth(memory, 300_000, 480_000))#{place := ~"the table a of b",
                                                          tool := {~"find", 1_200}}]},
         ~"machine",
         <<"The node's memory grows by 293 KiB a second, and will be full in about 8 minutes if "
           "that goes on. Most of it is in the table a of b. All 1,200 calls meanwhile were of the "
           "tool find.">>},
        {#{growth => [(growth(processes, 99.7, 60_000))#{place := ~"m:f/0"}]}, ~"machine",
         <<"The node has 100 more processes each second, and as many as it may in about a minute "
           "if that goes on. Most are m:f/0.">>},
        {#{requests => 100, p95_us => 2_340_000, tools => [tool(~"slow", 20, 0, 0, 5_100_000)]},
         ~"tools",
         <<"One request in twenty takes longer than 2.3 s; the bound is 150 ms. The slowest tool "
           "is slow (5.1 s).">>},
        {#{bounds => [bound(~"connections", 80, 100, none)]}, ~"bounds",
         ~"80 % of the bound of connections are used."},
        {#{bounds => [bound(~"memory", 90, 100, 720_000)]}, ~"bounds",
         <<"90 % of the bound of memory are used, and all of it in about 12 minutes if the trend "
           "goes on.">>},
        {#{bounds => [bound(~"memory", 30, 100, 60_000)]}, ~"bounds",
         ~"The bound of memory will be met in about a minute if the trend goes on."},
        {#{processors => 0.974}, ~"machine", ~"The node uses 97 % of the processors' time."}]].

causes_begin_at_their_bounds(_) ->
    [{Fact, Count} = {Fact, length(causes(Fact))} || {Fact, Count} <- [
        {#{bounds => [bound(~"a", 79, 100, none)]}, 0},
        {#{bounds => [bound(~"a", 80, infinity, none)]}, 0},
        %% A server without a queue has a bound of zero.
        {#{bounds => [bound(~"waiting", 0, 0, none)]}, 0},
        {#{bounds => [bound(~"a", 1, 100, 1_800_000)]}, 1},
        {#{bounds => [bound(~"a", 1, 100, 1_800_001)]}, 0},
        {#{processors => 0.9}, 0}, {#{processors => 0.901}, 1}, {#{processors => undefined}, 0},
        {#{requests => 20, p95_us => 150_000}, 1}, {#{requests => 20, p95_us => 149_999}, 0},
        {#{requests => 19, p95_us => 150_000}, 0},
        %% Requests that were refused have no time.
        {#{requests => 400, timed => 19, p95_us => 150_000}, 0},
        {#{requests => 20, p95_us => 150_000, latency_ms => 151}, 0},
        {#{requests => 500, refused => [{1056, a, 6}]}, 1},
        {#{requests => 500, refused => [{1056, a, 5}]}, 0},
        {#{requests => 5, refused => [{1056, a, 5}]}, 1},
        {#{requests => 4, refused => [{1056, a, 4}]}, 0},
        {#{requests => 6, refused => [{1021, a, 6}]}, 0},
        {#{tools => [tool(~"a", 5, 2, 1, 0)]}, 1}, {#{tools => [tool(~"a", 6, 2, 1, 0)]}, 0},
        {#{tools => [tool(~"a", 4, 4, 0, 0)]}, 0},
        {#{windows => [window(10, red, 20, 1)]}, 1},
        {#{windows => [window(10, red, 20, 0)]}, 0},
        {#{windows => [window(10, green, 20, 1)]}, 0},
        %% What happens now is in the shortest window with enough requests.
        {#{windows => [window(10, green, 20, 0), window(300, red, 900, 90)]}, 0},
        {#{windows => [window(10, green, 19, 0), window(300, red, 900, 90)]}, 1},
        {#{windows => [window(10, green, 20, 1), window(300, red, 900, 90)]}, 1},
        {#{tools => [slow(~"a", 20, 0, 150_000)]}, 1},
        {#{tools => [slow(~"a", 20, 0, 149_999)]}, 0},
        {#{tools => [slow(~"a", 19, 0, 150_000)]}, 0},
        {#{tools => [slow(~"a", 5, 150_000, 0)]}, 1},
        {#{tools => [slow(~"a", 4, 150_000, 0)]}, 0},
        {#{tools => [(slow(~"a", 400, 0, 150_000))#{timed := 19}]}, 0},
        {#{tools => [(slow(~"a", 400, 150_000, 0))#{timed := 4}]}, 0},
        {#{latency_ms => 1, tools => [slow(~"a", 20, 0, 20_000)]}, 1},
        {#{latency_ms => 1, tools => [slow(~"a", 20, 0, 19_999)]}, 0},
        {#{tools => [(slow(~"a", 20, 0, 900_000))#{usual := none}]}, 0},
        {#{tools => [slow(~"a", 0, 0, 0)], running => running(3, 5_000)}, 1},
        {#{tools => [slow(~"a", 0, 0, 0)], running => running(2, 5_000)}, 0},
        {#{tools => [slow(~"a", 0, 0, 0)], running => running(3, 4_999)}, 0},
        {#{tools => [slow(~"b", 0, 0, 0)], running => running(3, 5_000)}, 0},
        %% A slow tool makes all requests together slow, which is not another cause.
        {#{requests => 20, p95_us => 150_000, tools => [slow(~"a", 20, 0, 150_000)]}, 1},
        %% The breaker says why the tool fails.
        {#{tools => [tool(~"a", 9, 0, 9, 0)], open_breakers => [{~"a, b (x)", [~"a", ~"b"]}]}, 1},
        {#{growth => [growth(memory, 1, 1_800_000)]}, 1},
        {#{growth => [growth(memory, 1, 1_800_001)]}, 0},
        {#{growth => [growth(atoms, 1, 600_000)]}, 1},
        {#{growth => [growth(atoms, 1, 600_001)]}, 0}]].

a_cause_keeps_its_beginning(_) ->
    First = at(5_000, #{processors => 0.95}, erlmcp_console_verdict:new(0)),
    #{well := false, since := 5_000, causes := [#{since := 5_000}]} = First,
    #{well := false, since := 5_000,
      causes := [#{key := {bound, ~"a"}, since := 7_000},
                 #{key := processors, since := 5_000,
                   words := ~"The node uses 99 % of the processors' time."}]} =
        at(7_000, #{processors => 0.99, bounds => [bound(~"a", 9, 10, none)]}, First).

a_cause_stays_ten_seconds(_) ->
    Ill = at(5_000, #{processors => 0.95}, erlmcp_console_verdict:new(0)),
    Still = at(14_999, #{}, Ill),
    #{well := false, since := 5_000, causes := [#{key := processors}]} = Still,
    #{well := true, since := 15_000, causes := []} = at(15_000, #{}, Still),
    %% It was seen again meanwhile.
    #{well := false} = at(15_000, #{}, at(14_999, #{processors => 0.95}, Ill)).

%% A tool that stays slow does not become a tool that is usually slow.
what_is_usual_stays(_) ->
    Slow = at(5_000, #{tools => [slow(~"a", 20, 0, 900_000)]}, erlmcp_console_verdict:new(0)),
    #{causes := [#{key := {slow, ~"a"}, words := Words}]} = Slow,
    Later = #{p50_us => 800_000, p95_us => 900_000},
    #{causes := [#{since := 5_000, words := Words}]} =
        at(60_000, #{tools => [(slow(~"a", 20, 0, 900_000))#{usual := Later}]}, Slow).

%% Whatever comes, a verdict is well if it has no cause, and its time only changes with that.
well_and_since_agree(_) ->
    erlmcp_test_property:holds(?FORALL(Steps, list({range(1, 12_000), oneof([0.5, 0.95])}),
        begin
            {_, Verdicts} = lists:foldl(fun({After, Share}, {At, [Before | _] = All}) ->
                {At + After, [at(At + After, #{processors => Share}, Before) | All]}
            end, {0, [erlmcp_console_verdict:new(0)]}, Steps),
            lists:all(fun(#{well := Well, causes := Causes}) -> Well =:= (Causes =:= []) end,
                      Verdicts)
                andalso lists:all(fun({#{well := Now, since := Since},
                                       #{well := Before, since := SinceBefore}}) ->
                    (Now =:= Before) =:= (Since =:= SinceBefore)
                end, lists:zip(lists:droplast(Verdicts), tl(Verdicts)))
        end), 200).

at(At, Facts, Verdict) ->
    erlmcp_console_verdict:next(facts(Facts), At, Verdict).

causes(Facts) ->
    #{causes := Causes} = at(1_000, Facts, erlmcp_console_verdict:new(0)),
    Causes.

words(Facts) -> [#{words := Words} | _] = causes(Facts), Words.
link_of(Facts) -> [#{link := Link} | _] = causes(Facts), Link.

facts(Given) ->
    maps:merge(#{state => open, windows => [], seconds => 61.0, requests => 0, refused => [],
                 faults => {0, 0}, flood => none, timed => maps:get(requests, Given, 0),
                 tools => [],
                 running => [], p95_us => 0, bounds => [], growth => [],
                 troubles => [], open_breakers => [], pools => [], upstreams => [],
                 mounts_gone => [],
                 cluster => null,
                 processors => 0.1, latency_ms => 150}, Given).

window(Window, Zone, Requests, Faults) ->
    #{window => Window, zone => Zone, requests => Requests, faults => Faults}.

tool(Name, Calls, Errors, Refusals, P95) ->
    #{name => Name, seconds => 61.0, calls => Calls, errors => Errors, refusals => Refusals,
      faults => {0, 0}, timed => Calls - Errors - Refusals, timed_seconds => 61.0, reason => none,
      p50_us => 0, p95_us => P95,
      usual => none}.

faulty(Name, Faults) ->
    (tool(Name, 100, 0, 0, 0))#{faults := Faults}.

slow(Name, Calls, P50, P95) ->
    (tool(Name, Calls, 0, 0, P95))#{p50_us := P50, usual := #{p50_us => 2_000, p95_us => 5_000}}.

running(Count, Age) ->
    [#{target => ~"a", age_ms => Age} || _ <- lists:seq(1, Count)].

growth(Name, PerSecond, Met) ->
    #{name => Name, per_second => PerSecond, met_ms => Met, place => none, tool => none}.

bound(Name, Used, Limit, Forecast) ->
    #{name => Name, used => Used, limit => Limit, forecast_ms => Forecast}.
