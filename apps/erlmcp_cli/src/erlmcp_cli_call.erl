-module(erlmcp_cli_call).
-moduledoc "`erlmcp call`: a call of a tool.".

-export([command/1]).

-doc "The command for `argparse`.".
-spec command(Words :: [string()]) -> argparse:command().
command(Words) ->
    #{help => "call a tool",
      arguments => erlmcp_cli_target:arguments(Words)
          ++ [#{name => tool, help => "its name"},
              #{name => arguments, nargs => list, required => false, default => [],
                help => {"[<arguments>...]",
                         ["a JSON object; or NAME=VALUE, as the tool's schema has it; "
                          "or - for a JSON object on stdin"]}}],
      handler => fun run/1}.

run(#{tool := Tool, arguments := Words} = Parsed) ->
    Name = unicode:characters_to_binary(Tool),
    erlmcp_cli_client:run(Parsed, fun(Client) ->
        Options = erlmcp_cli_client:call_options(Parsed),
        maybe
            {ok, Read} ?= erlmcp_cli_arguments:read(Words),
            {ok, Arguments} ?= arguments(Read, Name, {Client, Options}),
            {ok, Result} ?= erlmcp_client:call_tool(Client, Name, Arguments, Options),
            called(Result, Parsed)
        end
    end).

%% What a value is, the schema says; a tool that is in no list has none: its server refuses it.
arguments({object, Object}, _, _) ->
    {ok, Object};
arguments({pairs, Pairs}, Name, {Client, Options}) ->
    maybe
        {ok, Tools} ?= erlmcp_client:list_tools(Client, maps:with([timeout], Options)),
        Schemas = [Schema || #{~"name" := Tool, ~"inputSchema" := Schema} <- Tools, Tool =:= Name],
        erlmcp_cli_arguments:typed(Pairs, hd(Schemas ++ [#{}]))
    end.

called(Result, #{json := true}) ->
    ok = erlmcp_cli_client:print_json(Result),
    case Result of
        #{~"isError" := true} -> failed;
        #{} -> ok
    end;
called(#{~"isError" := true} = Result, _) ->
    ok = erlmcp_cli_terminal:clear(),
    erlmcp_cli:complain(erlmcp_cli_text:result(Result)),
    failed;
called(Result, _) ->
    ok = erlmcp_cli_terminal:clear(),
    io:put_chars(erlmcp_cli_text:result(Result)).
