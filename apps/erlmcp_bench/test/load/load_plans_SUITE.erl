-module(load_plans_SUITE).
-moduledoc """
Tests for what a load makes of its plan before it begins: the way to its target, and the content
that each reply must have.
""".

-export([suite/0, all/0]).
-export([ways_to_urls/1, ways_that_there_are_not/1, sources_of_connections/1,
         replies_have_their_content/1]).

-define(LOOPBACK, {127, 0, 0, 1}).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [ways_to_urls, ways_that_there_are_not, sources_of_connections, replies_have_their_content].

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
