-module(erlmcp_cli_list).
-moduledoc "`erlmcp list`: what a server offers.".

-export([command/1]).

%% JSON-RPC's `method not found`.
-define(METHOD_NOT_FOUND, -32601).

-doc "The command for `argparse`.".
-spec command(Words :: [string()]) -> argparse:command().
command(Words) ->
    #{help => "list the tools, resources and prompts of a server",
      arguments => erlmcp_cli_target:arguments(Words),
      handler => fun run/1}.

run(Parsed) ->
    erlmcp_cli_client:run(Parsed, fun(Client) ->
        maybe
            {ok, Server} ?= erlmcp_client:server(Client),
            {ok, Offered} ?= lists_of(Client, Server),
            case Parsed of
                #{json := true} -> erlmcp_cli_client:print_json(Offered);
                #{} -> io:put_chars(erlmcp_cli_text:offered(Server, Offered))
            end
        end
    end).

lists_of(Client, #{capabilities := Capabilities}) ->
    listed([{Field, List} || {Capability, Field, List} <- lists(),
                             is_map_key(Capability, Capabilities)], Client, #{}).

lists() ->
    [{~"tools", ~"tools", fun erlmcp_client:list_tools/1},
     {~"resources", ~"resources", fun erlmcp_client:list_resources/1},
     {~"resources", ~"resourceTemplates", fun erlmcp_client:list_resource_templates/1},
     {~"prompts", ~"prompts", fun erlmcp_client:list_prompts/1}].

listed([], _, Offered) ->
    {ok, Offered};
listed([{Field, List} | Lists], Client, Offered) ->
    case List(Client) of
        {ok, Items} ->
            listed(Lists, Client, Offered#{Field => Items});
        {error, {rpc, #{code := ?METHOD_NOT_FOUND}}} when Field =:= ~"resourceTemplates" ->
            %% There are servers with resources that have no such list.
            listed(Lists, Client, Offered);
        {error, _} = Error ->
            Error
    end.
