-module(erlmcp_test_broken_fixture).
-moduledoc "The fixture of the benchmarks, whose `echo` says something else each fifth time.".

-behaviour(erlmcp_server).

-export([server/0, tools/0, prompts/0, resources/0]).
-export([call_tool/3, get_prompt/3, read_resource/3]).

server() -> erlmcp_bench_fixture:server().

tools() -> erlmcp_bench_fixture:tools().

prompts() -> erlmcp_bench_fixture:prompts().

resources() -> erlmcp_bench_fixture:resources().

call_tool(~"echo", #{~"text" := Text}, _) ->
    Calls = case persistent_term:get(?MODULE, none) of
        none ->
            New = counters:new(1, []),
            ok = persistent_term:put(?MODULE, New),
            New;
        Other ->
            Other
    end,
    ok = counters:add(Calls, 1, 1),
    case counters:get(Calls, 1) rem 5 of
        4 -> ~"something else";
        _ -> Text
    end;
call_tool(Name, Arguments, Context) ->
    erlmcp_bench_fixture:call_tool(Name, Arguments, Context).

get_prompt(Name, Arguments, Context) ->
    erlmcp_bench_fixture:get_prompt(Name, Arguments, Context).

read_resource(Uri, Variables, Context) ->
    erlmcp_bench_fixture:read_resource(Uri, Variables, Context).
