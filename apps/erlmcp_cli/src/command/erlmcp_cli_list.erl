-module(erlmcp_cli_list).
-moduledoc "`erlmcp list`: lists the tools, resources, resource templates and prompts of a server.".

-export([command/1]).

%% JSON-RPC's `method not found`.
-define(METHOD_NOT_FOUND, -32601).

-doc "Returns the `argparse` command `list`, with its arguments for the command line `Words`.".
-spec command(Words :: [string()]) -> argparse:command().
command(Words) ->
    #{help => "list the tools, resources and prompts of a server",
      arguments => erlmcp_cli_target:arguments(Words)
          ++ [#{name => schema, long => "-schema", type => boolean, default => false,
                help => "show the whole schemas of tools"}],
      handler => fun run/1}.

run(#{schema := Schemas} = Parsed) ->
    erlmcp_cli_client:run(Parsed, fun(Client) ->
        maybe
            {ok, Server} ?= erlmcp_client:server(Client),
            {ok, Offered} ?= lists_of(Client, Server, Parsed),
            case Parsed of
                #{json := true} -> erlmcp_cli_client:print_json(Offered);
                #{} -> erlmcp_cli_output:print(erlmcp_cli_text:offered(Server, Offered, Schemas))
            end
        end
    end).

lists_of(Client, #{capabilities := Capabilities}, Parsed) ->
    listed([{Field, List} || {Capability, Field, List} <- lists(),
                             is_map_key(Capability, Capabilities)],
           {Client, erlmcp_cli_client:call_options(Parsed)}, #{}).

lists() ->
    [{~"tools", ~"tools", fun erlmcp_client:list_tools/2},
     {~"resources", ~"resources", fun erlmcp_client:list_resources/2},
     {~"resources", ~"resourceTemplates", fun erlmcp_client:list_resource_templates/2},
     {~"prompts", ~"prompts", fun erlmcp_client:list_prompts/2}].

listed([], _, Offered) ->
    {ok, Offered};
listed([{Field, List} | Lists], {Client, Options} = Server, Offered) ->
    case List(Client, Options) of
        {ok, Items} ->
            listed(Lists, Server, Offered#{Field => Items});
        {error, {rpc, #{code := ?METHOD_NOT_FOUND}}} when Field =:= ~"resourceTemplates" ->
            %% Some servers with resources do not have the method that lists templates.
            listed(Lists, Server, Offered);
        {error, _} = Error ->
            Error
    end.
