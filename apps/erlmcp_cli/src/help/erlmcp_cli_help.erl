-module(erlmcp_cli_help).
-moduledoc """
Reads the tables of arguments that `argparse` uses, for the completion scripts and the manual. Pure.
""".

-export([names/1, usage/1, described/1, values/1]).

-doc """
Returns the forms of an option as they are typed, the short form first. Returns an empty list for a
positional argument.
""".
-spec names(argparse:argument()) -> [string()].
names(Argument) ->
    [[$-, Short] || #{short := Short} <- [Argument]]
        ++ [[$- | Long] || #{long := Long} <- [Argument]].

-doc "Returns an argument as the usage line shows it, such as `[--json <folder>]`.".
-spec usage(argparse:argument()) -> string().
usage(#{help := {Usage, _}}) -> lists:flatten(Usage);
usage(#{name := Name} = Argument) ->
    Value = "<" ++ atom_to_list(Name) ++ ">",
    Word = case {names(Argument), Argument} of
        {[], #{nargs := _}} -> Value ++ "...";
        {[], _} -> Value;
        {Names, #{type := boolean}} -> lists:last(Names);
        {Names, _} -> lists:last(Names) ++ " " ++ Value
    end,
    case Argument of
        #{required := false} -> "[" ++ Word ++ "]";
        #{long := _} -> "[" ++ Word ++ "]";
        #{} -> Word
    end.

-doc "Returns the help text of an argument with its default, or its name if it has no help text.".
-spec described(argparse:argument()) -> string().
described(#{help := {_, Template}} = Argument) ->
    lists:flatten([case Part of
                       default -> io_lib:format("~ts", [maps:get(default, Argument)]);
                       Text -> Text
                   end || Part <- Template]);
described(#{help := Text}) -> lists:flatten(Text);
described(#{name := Name}) -> atom_to_list(Name).

-doc """
Returns the kind of an argument's value: words to choose from, a file or folder, the name of a
command, or any other value. An option without a value has `none`.
""".
-spec values(argparse:argument()) -> {words, [string()]} | file | command | any | none.
values(#{type := boolean}) ->
    none;
values(Argument) ->
    case [unicode:characters_to_list(Choice) || Choice <- erlmcp_cli_values:choices(Argument)] of
        [] -> placed(re:run(usage(Argument), "<([a-z]+)>", [{capture, all_but_first, list}]));
        Choices -> {words, Choices}
    end.

placed({match, [Word]}) ->
    case lists:member(Word, ["file", "files", "folder", "results", "baseline"]) of
        true -> file;
        false when Word =:= "command" -> command;
        false -> any
    end;
placed(nomatch) ->
    any.
