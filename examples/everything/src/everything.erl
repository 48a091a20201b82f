-module(everything).
-moduledoc """
An MCP server with every feature of erlmcp. `make run` serves it, and the official conformance suite
finds its fixtures here. Each kind of feature has a module, and this module is the behaviour that
connects them.
""".

-behaviour(erlmcp_server).

-export([server/0, tools/0, resources/0, resource_templates/0, prompts/0, skills/0]).
-export([call_tool/3, read_resource/3, get_prompt/3]).

-doc false.
server() ->
    #{id => everything,
      name => ~"everything",
      version => ~"0.1.0",
      title => ~"Everything",
      description => ~"Every feature of erlmcp in one server",
      instructions => ~"Call echo for a first try. The test_ tools are conformance fixtures.",
      mounts => [{~"almanac", everything_almanac}]}.

-doc false.
tools() ->
    everything_tools:definitions() ++ everything_input:tools() ++ everything_tasks:tools()
        ++ everything_apps:tools().

-doc false.
resources() -> everything_resources:definitions() ++ everything_apps:resources().

-doc false.
resource_templates() -> everything_resources:templates().

-doc false.
prompts() -> everything_prompts:definitions().

-doc false.
skills() -> everything_skills:sources().

-doc false.
call_tool(<<"clock", _/binary>> = Name, _, Context) ->
    everything_apps:call(Name, Context);
call_tool(Name, Arguments, Context) ->
    Homes = [Module || Module <- [everything_input, everything_tasks],
                       #{name := Tool} <- Module:tools(), Tool =:= Name],
    case Homes of
        [] -> everything_tools:call(Name, Arguments, Context);
        [Module] -> Module:call(Name, Arguments, Context)
    end.

-doc false.
read_resource(<<"ui://", _/binary>> = Uri, _, _) -> everything_apps:read(Uri);
read_resource(Uri, Variables, _) -> everything_resources:read(Uri, Variables).

-doc false.
get_prompt(~"test_input_required_result_prompt", _, Context) -> everything_input:prompt(Context);
get_prompt(Name, Arguments, _) -> everything_prompts:get(Name, Arguments).
