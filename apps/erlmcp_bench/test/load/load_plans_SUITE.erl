-module(load_plans_SUITE).
-moduledoc """
Tests for what a load makes of its plan before it begins: the way to its target, and the content
that each reply must have.
""".

-export([suite/0, all/0]).
-export([ways_to_urls/1, ways_that_there_are_not/1, sources_of_connections/1,
         replies_have_their_content/1, plans_have_their_defaults/1, bounds_of_a_plan/1,
         kinds_are_drawn_by_weight/1, mixes_have_their_parameters/1,
         windows_of_errors_begin_when_told/1]).

-define(LOOPBACK, {127, 0, 0, 1}).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [ways_to_urls, ways_that_there_are_not, sources_of_connections, replies_have_their_content,
     plans_have_their_defaults, bounds_of_a_plan, kinds_are_drawn_by_weight,
     mixes_have_their_parameters, windows_of_errors_begin_when_told].

plan(Changes) ->
    maps:merge(#{protocol => http1, tls => [], headers => [], sources => default,
                 connections => 1, environment => []}, Changes).

ways_to_urls(_) ->
    [begin
         {ok, Way} = erlmcp_load_target:new({http, Url}, plan(#{})),
         #{connect := {tcp, Ip, Port}, sources := [any], wire := erlmcp_load_http1,
           wire_options := #{scheme := http, authority := Authority, path := Path}} = Way
     end || {Url, {Ip, Port}, Authority, Path} <- [
                {~"http://127.0.0.1", {?LOOPBACK, 80}, ~"127.0.0.1", ~"/"},
                {"HTTP://127.0.0.1:8080/mcp?a=b", {?LOOPBACK, 8080}, ~"127.0.0.1:8080",
                 ~"/mcp?a=b"},
                {~"http://[::1]:8080/x", {{0, 0, 0, 0, 0, 0, 0, 1}, 8080}, ~"[::1]:8080", ~"/x"}]],
    %% The last port, and a colon without one.
    [{ok, #{connect := {tcp, ?LOOPBACK, Port}}} = erlmcp_load_target:new({http, Url}, plan(#{}))
     || {Url, Port} <- [{~"http://127.0.0.1:65535/", 65_535}, {~"http://127.0.0.1:/", 80}]],
    {ok, #{wire := erlmcp_load_http2}} =
        erlmcp_load_target:new({http, ~"http://127.0.0.1"}, plan(#{protocol => http2})),
    {ok, #{wire := erlmcp_load_lines, connect := {tcp, ?LOOPBACK, 7}}} =
        erlmcp_load_target:new({tcp, "127.0.0.1", 7}, plan(#{})),
    {ok, #{wire := erlmcp_load_lines, connect := {stdio, [~"cat"], []}, sources := [any]}} =
        erlmcp_load_target:new({stdio, [~"cat"]}, plan(#{})).

ways_that_there_are_not(_) ->
    [{Target, {error, {bad_option, Wrong}}} =
         {Target, erlmcp_load_target:new(Target, plan(Changes))}
     || {Target, Changes, Wrong} <- [
            {{http, ~"ftp://127.0.0.1"}, #{}, target}, {{http, ~"http://"}, #{}, target},
            {{http, ~"/mcp"}, #{}, target}, {{http, ~"http://a:b@127.0.0.1"}, #{}, target},
            {{http, ~"http://127.0.0.1:0/mcp"}, #{}, target},
            {{http, ~"http://127.0.0.1:65536/mcp"}, #{}, target},
            {{http, ~"http://127.0.0.1"}, #{tls => [{verify, verify_none}]}, tls},
            {{tcp, ?LOOPBACK, 7}, #{tls => [{verify, verify_none}]}, tls},
            {{stdio, [~"cat"]}, #{tls => [{verify, verify_none}]}, tls},
            {{tcp, ?LOOPBACK, 7}, #{protocol => http2}, protocol}]].

%% Connections of one machine to itself need several addresses, since one has too few ports.
sources_of_connections(_) ->
    Sources = fun(Connections, Changes) ->
        {ok, #{sources := Found}} = erlmcp_load_target:new(
            {tcp, ?LOOPBACK, 7}, plan(Changes#{connections => Connections})),
        Found
    end,
    [any] = Sources(1, #{}),
    Many = Sources(10_000_000, #{}),
    true = length(Many) =:= length(lists:usort(Many)),
    [] = [Source || {A, B, C, D} = Source <- Many,
                    A =/= 127 orelse B =/= 0 orelse C > 255 orelse D < 1 orelse D > 250],
    [{127, 0, 3, 4}] = Sources(10_000_000, #{sources => [{127, 0, 3, 4}]}).

replies_have_their_content(_) ->
    Call = fun(Name, Arguments) -> #{~"name" => Name, ~"arguments" => Arguments} end,
    [begin
         {_, Expected} = erlmcp_load_request:new({Method, Params}, {session, ~"2025-11-25"}),
         {_, Expected} = erlmcp_load_request:new({Method, Params}, stateless)
     end || {Method, Params, Expected} <- [
                {~"tools/call", Call(~"echo", #{~"text" => ~"xxx"}), {text, ~"xxx"}},
                {~"tools/call", Call(~"echo", #{~"text" => 1}), {member, ~"content", list}},
                {~"tools/call", Call(~"add", #{~"a" => 1, ~"b" => 2.5}), {number, 3.5}},
                {~"tools/call", Call(~"large", #{~"bytes" => 7}), {bytes, 7}},
                {~"tools/call", Call(~"large", #{~"bytes" => ~"7"}), {member, ~"content", list}},
                {~"tools/list", #{}, {member, ~"tools", list}},
                {~"prompts/list", #{}, {member, ~"prompts", list}},
                {~"prompts/get", #{~"name" => ~"p"}, {member, ~"messages", list}},
                {~"resources/list", #{}, {member, ~"resources", list}},
                {~"resources/templates/list", #{}, {member, ~"resourceTemplates", list}},
                {~"resources/read", #{~"uri" => ~"u"}, {member, ~"contents", list}},
                {~"completion/complete", #{}, {member, ~"completion", object}},
                {~"server/discover", #{}, {member, ~"supportedVersions", list}},
                {~"initialize", #{}, {member, ~"capabilities", object}}, {~"ping", #{}, any}]].

%% What is measured where nothing is said is what the manual says.
plans_have_their_defaults(_) ->
    {ok, Settings} = erlmcp_load_plan:settings(#{target => {tcp, ?LOOPBACK, 7}}),
    #{loop := closed, window := 1, connections := 1, sessions := 1, duration_us := 10_000_000,
      warmup_us := 0, timeout_us := 10_000_000, era := stateless, percent := none, callers := all,
      server_os_pid := none, observer := none, ordered := false, on_second := OnSecond,
      expected := [{text, Text}]} = Settings,
    {ok, 64} = {OnSecond(#{}), byte_size(Text)},
    Of = fun(Target, Plan) ->
        {ok, #{window := Window, percent := Percent, callers := Callers, loop := Loop}} =
            erlmcp_load_plan:settings(Plan#{target => Target}),
        {Window, Percent, Callers, case Loop of {open, _} -> open; _ -> Loop end}
    end,
    Open = #{loop => {open, 10, even}},
    Http = {http, ~"http://127.0.0.1:1/mcp"},
    Tcp = {tcp, ?LOOPBACK, 7},
    [{Plan, Expected} = {Plan, Of(Target, Plan)}
     || {Target, Plan, Expected} <- [
            {Http, Open, {1, none, all, open}},
            {Http, Open#{protocol => http2}, {100, none, all, open}},
            {Tcp, Open, {32, none, all, open}}, {Tcp, Open#{in_flight => 7}, {7, none, all, open}},
            {Tcp, #{loop => {closed, 5}, in_flight => 7}, {5, none, all, closed}},
            {Tcp, #{loop => hold}, {32, none, all, hold}},
            {Tcp, #{loop => {open, {percent, 70}, poisson}, warmup_ms => 100},
             {32, 70, 256, open}}]].

%% At each bound, and beyond it.
bounds_of_a_plan(_) ->
    Good = #{target => {tcp, ?LOOPBACK, 65_535}},
    Percent = {open, {percent, 1}, even},
    [{ok, _} = erlmcp_load_plan:settings(maps:merge(Good, Changes))
     || Changes <- [#{payload_bytes => 0}, #{warmup_ms => 0}, #{loop => {open, 0.1, poisson}},
                    #{loop => Percent, warmup_ms => 100}, #{since => -5}, #{headers => []},
                    #{sources => [?LOOPBACK]}, #{server_os_pid => 1}, #{environment => []},
                    #{target => {http, ~"http://127.0.0.1"}, sessions_per_connection => 2},
                    #{target => {stdio, [~"cat", "-u", <<255>>]}}, #{target => {tcp, "::1", 1}},
                    #{requests => [{1, {~"ping", #{~"_meta" => #{}, a => [b]}}}]}]],
    [{Option, {error, {bad_option, Option}}} =
         {Option, erlmcp_load_plan:settings(maps:merge(Good, Changes))}
     || {Option, Changes} <- [
            {payload_bytes, #{payload_bytes => -1}}, {warmup_ms, #{warmup_ms => -1}},
            {warmup_ms, #{loop => Percent, warmup_ms => 99}}, {since, #{since => now}},
            {headers, #{headers => [{~"a", ~"b\nc"}]}}, {headers, #{headers => [{~"a\r", ~"b"}]}},
            {headers, #{headers => [{~"a", ~"b\0"}]}}, {headers, #{headers => [a]}},
            {headers, #{headers => none}}, {environment, #{environment => [path]}},
            {sources, #{sources => [any]}},
            {server_os_pid, #{server_os_pid => 0}}, {environment, #{environment => path}},
            {protocol, #{protocol => http3}}, {tls, #{tls => none}}, {tls, #{tls => [verify]}},
            {in_flight, #{in_flight => 0}}, {timeout_ms, #{timeout_ms => 0}},
            {connections, #{connections => 1.5}}, {on_second, #{on_second => log}},
            {requests, #{requests => [{1, {ping, #{}}}]}},
            {requests, #{requests => [{1, {~"ping", []}}]}}, {requests, #{requests => [ping]}},
            {requests, #{requests => [{1, {~"ping", #{~"_meta" => 5}}}]}},
            {requests, #{requests => [{1, {~"ping", #{~"a" => self()}}}]}},
            {requests, #{requests => [{1, {~"ping", #{~"a" => <<255>>}}}]}},
            {requests, #{requests => [{1, {<<255>>, #{}}}]}},
            {target, #{target => {tcp, ?LOOPBACK, 65_536}}}, {target, #{target => {stdio, []}}},
            {target, #{target => {stdio, [cat]}}}, {target, #{target => {http, url}}},
            {target, #{target => {http, <<255>>}}}, {target, #{target => {http, [cat]}}},
            {target, #{target => {http, [16#d800]}}}, {target, #{target => {tcp, {1, 2, 3}, 7}}},
            {target, #{target => {tcp, {1, 2, 3, 256}, 7}}}, {target, #{target => {tcp, 1, 7}}},
            {target, #{target => {tcp, <<255>>, 7}}}, {target, #{target => {tcp, [cat], 7}}},
            {target, #{target => {stdio, [<<255>>]}}}, {target, #{target => {stdio, [[cat]]}}},
            {rate, #{rate => 1}}]],
    {error, {bad_option, target}} = erlmcp_load_plan:settings(#{}).

%% A mix of requests is a mix of work.
kinds_are_drawn_by_weight(_) ->
    Requests = [{Weight, {~"ping", #{}}} || Weight <- [1, 3, 6]],
    {ok, Settings} =
        erlmcp_load_plan:settings(#{target => {tcp, ?LOOPBACK, 7}, requests => Requests}),
    Drawn = [erlmcp_load_plan:kind(Settings) || _ <- lists:seq(1, 10_000)],
    %% Six standard deviations.
    [{Kind, true} = {Kind, abs(length([K || K <- Drawn, K =:= Kind]) - Expected) < 300}
     || {Kind, Expected} <- [{1, 1_000}, {2, 3_000}, {3, 6_000}]],
    [1, 2, 3] = lists:usort(Drawn).

%% The text of a mix is a part of a result's identity.
mixes_have_their_parameters(_) ->
    [{Text, Text} = {Text, erlmcp_load_request:mix(Requests)}
     || {Text, Requests} <- [
            {~"tools/list", [{1, {~"tools/list", #{}}}]},
            {~B'tools/call add {"a": 1, "b": [2]}=9,ping',
             [{9, {~"tools/call", #{~"name" => ~"add",
                                    ~"arguments" => #{~"b" => [2], ~"a" => 1}}}},
              {1, {~"ping", #{}}}]},
            {~B'tools/call add {"arguments": {}, "task": {}}',
             [{1, {~"tools/call", #{~"name" => ~"add", ~"arguments" => #{}, ~"task" => #{}}}}]},
            {~B'tools/list {"cursor": "x"}', [{1, {~"tools/list", #{~"cursor" => ~"x"}}}]},
            {~B'tools/call {"name": 5}', [{1, {~"tools/call", #{~"name" => 5}}}]}]],
    %% The JSON is `{"text": "..."}`.
    Echo = fun(Bytes) -> erlmcp_load_request:mix([{2, erlmcp_load_request:echo(Bytes)}]) end,
    102 = byte_size(<<"tools/call echo ", _:84/binary, "=2">> = Echo(72)),
    <<"tools/call echo {\"text\": \"x", _/binary>> = Echo(88),
    <<"tools/call echo sha256:", Hash:16/binary, "=2">> = Echo(89),
    <<"tools/call echo sha256:", Other:16/binary, "=2">> = Echo(90),
    true = Hash =/= Other.

windows_of_errors_begin_when_told(_) ->
    Since = fun(Plan) ->
        {ok, Settings} = erlmcp_load_plan:settings(Plan#{target => {tcp, ?LOOPBACK, 7}}),
        erlmcp_load_plan:since(-70, Settings)
    end,
    {-70, -90} = {Since(#{}), Since(#{since => -90})}.
