-module(erlmcp_cli_completion).
-moduledoc """
Makes the scripts with which shells complete the words of the command: its subcommands, their
options, and the values of options. The scripts are made from the tables that `argparse` reads, and
start no program when they run. Pure.
""".

-export([script/2]).

-doc "Returns the script with which `Shell` completes the commands.".
-spec script(bash | zsh | fish, argparse:command()) -> unicode:chardata().
script(Shell, #{commands := All}) ->
    Commands = [{Name, maps:get(help, Command), maps:get(arguments, Command, [])}
                || Name := Command <- maps:iterator(All, ordered)],
    case Shell of
        bash -> bash(Commands);
        zsh -> zsh(Commands);
        fish -> fish(Commands)
    end.

words(Words) -> lists:join($\s, Words).

all(Commands) -> words([Name || {Name, _, _} <- Commands]).

options(Arguments) -> [Argument || #{long := _} = Argument <- Arguments].

placed(Arguments) -> [Argument || Argument <- Arguments, not is_map_key(long, Argument)].

%% Choices consist only of names and versions, which no shell interprets.
choices(Argument, Commands) ->
    case erlmcp_cli_help:values(Argument) of
        {words, Words} -> {words, words(Words)};
        command -> {words, all(Commands)};
        Other -> Other
    end.

%% Names stand without quotes, since none is a reserved word of a shell.
bash(Commands) ->
    ["# Completion of erlmcp for bash, made by `erlmcp completion bash`.\n"
     "_erlmcp() {\n"
     "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}\n"
     "    local words='' files='' IFS=$' \\t\\n'\n"
     "    COMPREPLY=()\n"
     "    # To bash `=` is a word.\n"
     "    if [ \"$current\" = '=' ]; then\n"
     "        current=''\n"
     "    elif [ \"$previous\" = '=' ]; then\n"
     "        previous=${COMP_WORDS[COMP_CWORD-2]}\n"
     "    fi\n"
     "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
     "        words='", all(Commands), " --help --version'\n"
     "    else\n"
     "        case ${COMP_WORDS[1]} in\n",
     [["        ", Name, ")\n"
       "            case $previous in\n",
       [["            ", lists:join($|, erlmcp_cli_help:names(Option)), ") ", bash_value(Value),
         " ;;\n"]
        || Option <- options(Arguments), Value <- [choices(Option, Commands)], Value =/= none],
       "            *)\n"
       "                words='", words([Word || Argument <- placed(Arguments),
                                                 {words, Word} <- [choices(Argument, Commands)]]
                                        ++ [Long || Option <- options(Arguments),
                                                    "--" ++ _ = Long <-
                                                        erlmcp_cli_help:names(Option)]
                                        ++ ["--help"]), "'\n",
       [["                files=yes\n"]
        || lists:member(file, [choices(Argument, Commands) || Argument <- placed(Arguments)])],
       "                ;;\n"
       "            esac\n"
       "            ;;\n"] || {Name, _, Arguments} <- Commands],
     "        esac\n"
     "    fi\n"
     "    COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
     "    if [ -n \"$files\" ]; then\n"
     "        IFS=$'\\n'\n"
     "        COMPREPLY+=($(compgen -f -- \"$current\"))\n"
     "        compopt -o filenames 2>/dev/null\n"
     "    fi\n"
     "}\n"
     "complete -F _erlmcp erlmcp\n"].

bash_value({words, Words}) -> ["words='", Words, "'"];
bash_value(file) -> "files=yes";
bash_value(any) -> "return".

zsh(Commands) ->
    ["#compdef erlmcp\n"
     "# Completion of erlmcp for zsh, made by `erlmcp completion zsh`.\n"
     "_erlmcp() {\n"
     "    local -a commands\n"
     "    commands=(\n",
     [["        ", zsh_quoted([Name, $:, Help]), $\n] || {Name, Help, _} <- Commands],
     "    )\n"
     "    if (( CURRENT == 2 )); then\n"
     "        _describe command commands\n"
     "        return\n"
     "    fi\n"
     "    shift words\n"
     "    (( CURRENT-- ))\n"
     "    case $words[1] in\n",
     [["    ", Name, ")\n"
       "        _arguments",
       [[" \\\n            ", zsh_quoted(zsh_option(Names, Option, choices(Option, Commands)))]
        || Option <- options(Arguments), Names <- erlmcp_cli_help:names(Option)],
       [[" \\\n            ", zsh_quoted(zsh_placed(Argument, choices(Argument, Commands)))]
        || Argument <- placed(Arguments)],
       " \\\n            '--help[print the help of the command]'\n"
       "        ;;\n"] || {Name, _, Arguments} <- Commands],
     "    esac\n"
     "}\n"
     "if [ \"$funcstack[1]\" = _erlmcp ]; then _erlmcp \"$@\"; else compdef _erlmcp erlmcp; fi\n"].

zsh_option(Name, Option, Value) ->
    [[$* || #{action := append} <- [Option]], Name,
     [$[, zsh_text(erlmcp_cli_help:described(Option)), $]], zsh_value(Option, Value)].

zsh_placed(#{nargs := _} = Argument, Value) -> [$* | zsh_value(Argument, Value)];
zsh_placed(#{required := false} = Argument, Value) -> [$: | zsh_value(Argument, Value)];
zsh_placed(Argument, Value) -> zsh_value(Argument, Value).

zsh_value(_, none) -> "";
zsh_value(#{name := Name}, Value) ->
    [$:, string:replace(atom_to_list(Name), "_", " ", all), $:,
     case Value of
         {words, Words} -> [$(, Words, $)];
         file -> "_files";
         any -> " "
     end].

%% Escapes colons and brackets, which would end an explanation.
zsh_text(Text) ->
    [case C of
         $: -> "\\:";
         $[ -> $(;
         $] -> $);
         _ -> C
     end || C <- Text].

zsh_quoted(Text) -> [$', string:replace(lists:flatten(Text), "'", "'\\''", all), $'].

fish(Commands) ->
    ["# Completion of erlmcp for fish, made by `erlmcp completion fish`.\n"
     "function __erlmcp_command\n"
     "    set -l words (commandline -opc)\n"
     "    test (count $words) -ge 2; and test $words[2] = $argv[1]\n"
     "end\n"
     "function __erlmcp_begins\n"
     "    test (count (commandline -opc)) -eq 1\n"
     "end\n"
     "complete -c erlmcp -f\n"
     "complete -c erlmcp -n __erlmcp_begins -l help -d 'print the help'\n"
     "complete -c erlmcp -n __erlmcp_begins -l version -d 'print the version'\n",
     [["complete -c erlmcp -n __erlmcp_begins -a ", Name, " -d ", fish_quoted(Help), $\n]
      || {Name, Help, _} <- Commands],
     [[fish_command(Name), fish_names(Argument), fish_value(choices(Argument, Commands)),
       [[" -d ", fish_quoted(erlmcp_cli_help:described(Argument))]
        || is_map_key(long, Argument)], $\n]
      || {Name, _, Arguments} <- Commands, Argument <- Arguments,
         is_map_key(long, Argument) orelse choices(Argument, Commands) =/= any]].

fish_command(Name) -> ["complete -c erlmcp -n '__erlmcp_command ", Name, $'].

fish_names(Argument) ->
    [[[" -s ", Short] || #{short := Short} <- [Argument]],
     [[" -l ", Long] || #{long := [$- | Long]} <- [Argument]]].

fish_value({words, Words}) -> [" -x -a '", Words, $'];
fish_value(file) -> " -r -F";
fish_value(any) -> " -x";
fish_value(none) -> "".

fish_quoted(Text) ->
    [$', [case C of
              _ when C =:= $'; C =:= $\\ -> [$\\, C];
              _ -> C
          end || C <- lists:flatten(Text)], $'].
