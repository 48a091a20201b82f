-module(erlmcp_bench_quick_fixture).
-moduledoc """
The fixture (`m:erlmcp_bench_fixture`) with its cheapest tools marked quick: their calls run in the
process of their connection.
""".

-behaviour(erlmcp_server).

-export([server/0, tools/0, prompts/0, resources/0]).
-export([call_tool/3, get_prompt/3, read_resource/3]).

-define(QUICK, [~"echo", ~"add"]).

-doc false.
server() -> erlmcp_bench_fixture:server().

-doc false.
tools() ->
    [Tool#{quick => lists:member(Name, ?QUICK)}
     || #{name := Name} = Tool <- erlmcp_bench_fixture:tools()].

-doc false.
prompts() -> erlmcp_bench_fixture:prompts().

-doc false.
resources() -> erlmcp_bench_fixture:resources().

-doc false.
call_tool(Name, Arguments, Context) -> erlmcp_bench_fixture:call_tool(Name, Arguments, Context).

-doc false.
get_prompt(Name, Arguments, Context) -> erlmcp_bench_fixture:get_prompt(Name, Arguments, Context).

-doc false.
read_resource(Uri, Parameters, Context) ->
    erlmcp_bench_fixture:read_resource(Uri, Parameters, Context).
