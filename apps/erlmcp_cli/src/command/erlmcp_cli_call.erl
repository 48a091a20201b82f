-module(erlmcp_cli_call).
-moduledoc "`erlmcp call`: calls a tool, and prints its result.".

-export([command/1]).

%% JSON-RPC's codes with which servers refuse an unknown tool.
-define(INVALID_PARAMS, -32602).
-define(METHOD_NOT_FOUND, -32601).

-doc "Returns the `argparse` command `call`, with its arguments for the command line `Words`.".
-spec command(Words :: [string()]) -> argparse:command().
command(Words) ->
    #{help => "call a tool",
      arguments => erlmcp_cli_target:arguments(Words)
          ++ [#{name => tool, help => "its name"},
              #{name => arguments, nargs => list, required => false, default => [],
                help => {"[<arguments>...]",
                         ["a JSON object; or NAME=VALUE, by the tool's schema; "
                          "or - for a JSON object on stdin"]}},
              #{name => tasks, long => "-tasks", type => boolean,
                help => "let the call become a task, and wait for it; some tools require this"}],
      handler => fun run/1}.

run(#{tool := Tool, arguments := Words} = Parsed) ->
    Name = unicode:characters_to_binary(Tool),
    erlmcp_cli_client:run(Parsed, fun(Client) ->
        Options = erlmcp_cli_client:call_options(Parsed),
        maybe
            {ok, Read} ?= erlmcp_cli_arguments:read(Words),
            {ok, Tools} ?= tools(Read, Parsed, {Client, Options}),
            {ok, Arguments} ?= arguments(Read, Name, Tools),
            answered(erlmcp_client:call_tool(Client, Name, Arguments, Options), Parsed,
                     fun() -> question(Name, {Client, Options}) end)
        end
    end).

%% Fetches the list of tools if it is needed: for the types of NAME=VALUE arguments, or for the
%% tools that must be called as tasks.
tools({object, _}, Parsed, _) when not is_map_key(tasks, Parsed) ->
    {ok, []};
tools(_, _, {Client, Options}) ->
    erlmcp_client:list_tools(Client, maps:with([timeout], Options)).

%% A tool that the list does not have is called without a schema: its server refuses the call.
arguments({object, Object}, _, _) ->
    {ok, Object};
arguments({pairs, Pairs}, Name, Tools) ->
    Schemas = [Schema || #{~"name" := Tool, ~"inputSchema" := #{} = Schema} <- Tools,
                         Tool =:= Name],
    erlmcp_cli_arguments:typed(Pairs, hd(Schemas ++ [#{}])).

%% Servers refuse unknown tools with different codes, so the list decides whether the tool is
%% unknown.
answered({error, {rpc, #{code := Code} = Error}}, _, Question)
  when Code =:= ?INVALID_PARAMS; Code =:= ?METHOD_NOT_FOUND ->
    {error, {rpc, Error#{question => Question()}}};
answered({ok, #{~"isError" := true} = Result}, Parsed, Question) ->
    Outcome = called(Result, Parsed),
    case Question() of
        none -> ok;
        {ok, Meant} ->
            erlmcp_cli_output:complain(["did you mean `", erlmcp_cli_text:one_line(Meant), "`?"])
    end,
    Outcome;
answered({ok, Result}, Parsed, _) ->
    called(Result, Parsed);
answered({error, _} = Error, _, _) ->
    Error.

question(Name, {Client, Options}) ->
    case erlmcp_client:list_tools(Client, maps:with([timeout], Options)) of
        {ok, Tools} ->
            Names = [Of || #{~"name" := Of} <- Tools, is_binary(Of)],
            case lists:member(Name, Names) of
                true -> none;
                false -> erlmcp_cli_suggestion:closest(Name, Names)
            end;
        {error, _} ->
            none
    end.

called(Result, #{json := true}) ->
    ok = erlmcp_cli_client:print_json(Result),
    case Result of
        #{~"isError" := true} -> failed;
        #{} -> ok
    end;
called(#{~"isError" := true} = Result, _) ->
    ok = erlmcp_cli_terminal:clear(),
    erlmcp_cli_output:complain(erlmcp_cli_text:result(Result)),
    failed;
called(Result, _) ->
    ok = erlmcp_cli_terminal:clear(),
    erlmcp_cli_output:print(erlmcp_cli_text:result(Result)).
