-module(erlmcp_cli_prompt).
-moduledoc """
`erlmcp prompt` and `erlmcp complete`: print the messages of a prompt, and values for an argument of
a prompt or a resource template.
""".

-export([command/1, complete_command/1]).

-doc "Returns the `argparse` command `prompt`, with its arguments for the command line `Words`.".
-spec command(Words :: [string()]) -> argparse:command().
command(Words) ->
    #{help => "get the messages of a prompt",
      arguments => erlmcp_cli_target:arguments(Words)
          ++ [#{name => prompt, help => "its name"},
              #{name => arguments, nargs => list, required => false, default => [],
                help => {"[<name>=<value>...]", ["its arguments"]}}],
      handler => fun messages/1}.

-doc "Returns the `argparse` command `complete`, with its arguments for the command line `Words`.".
-spec complete_command(Words :: [string()]) -> argparse:command().
complete_command(Words) ->
    #{help => "values for an argument of a prompt or of a resource template",
      arguments => erlmcp_cli_target:arguments(Words)
          ++ [#{name => reference, help => "prompt:NAME or resource:URI_TEMPLATE"},
              #{name => argument, help => "its name"},
              #{name => value, required => false, default => "",
                help => {"[<value>]", ["what of it is typed already"]}},
              #{name => known, long => "-known", action => append, required => false,
                help => {"[--known <name>=<value>]",
                         ["another argument that has a value already; may stand again"]}}],
      handler => fun complete/1}.

messages(#{prompt := Prompt, arguments := Words} = Parsed) ->
    erlmcp_cli_client:run(Parsed, fun(Client) ->
        maybe
            {ok, Arguments} ?= erlmcp_cli_arguments:strings(Words),
            {ok, Result} ?= erlmcp_client:get_prompt(
                Client, unicode:characters_to_binary(Prompt), Arguments,
                erlmcp_cli_client:call_options(Parsed)),
            printed(Result, fun erlmcp_cli_text:messages/1, Parsed)
        end
    end).

complete(#{argument := Argument, value := Value} = Parsed) ->
    erlmcp_cli_client:run(Parsed, fun(Client) ->
        maybe
            {ok, Reference} ?= reference(Parsed),
            {ok, Arguments} ?= erlmcp_cli_arguments:strings(maps:get(known, Parsed, [])),
            {ok, Result} ?= erlmcp_client:complete(
                Client, Reference,
                {unicode:characters_to_binary(Argument), unicode:characters_to_binary(Value)},
                (erlmcp_cli_client:call_options(Parsed))#{arguments => Arguments}),
            printed(Result, fun erlmcp_cli_text:completion/1, Parsed)
        end
    end).

reference(#{reference := "prompt:" ++ [_ | _] = Reference}) ->
    {ok, {prompt, unicode:characters_to_binary(string:prefix(Reference, "prompt:"))}};
reference(#{reference := "resource:" ++ [_ | _] = Reference}) ->
    {ok, {resource, unicode:characters_to_binary(string:prefix(Reference, "resource:"))}};
reference(#{reference := Reference}) ->
    {usage, [Reference, ": prompt:NAME or resource:URI_TEMPLATE was expected"]}.

printed(Result, _, #{json := true}) ->
    erlmcp_cli_client:print_json(Result);
printed(Result, Text, _) ->
    ok = erlmcp_cli_terminal:clear(),
    erlmcp_cli_output:print(Text(Result)).
