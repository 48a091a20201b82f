-module(erlmcp_cli).
-moduledoc """
The `erlmcp` command: runs the named subcommand, and exits with its exit code. Results go to stdout,
and errors to stderr.
""".

-export([start/0, main/1]).

-export_type([outcome/0]).

-type outcome() :: erlmcp_cli_exit:outcome() | serving.

-define(PROGRAM, "erlmcp").

-doc """
Starts a process that runs the subcommand of the program's arguments, and returns at once. When the
subcommand ends or crashes, the process halts the node with the exit code. While the subcommand
serves, the node stays.
""".
-spec start() -> ok.
start() ->
    [ok = io:setopts(Device, [{encoding, unicode}]) || Device <- [standard_io, standard_error]],
    ok = erlmcp_cli_log:never_wait(),
    %% Not in the process of `init`, which must stay free to act on SIGTERM.
    _ = spawn(fun run/0),
    ok.

run() ->
    try checked(init:get_plain_arguments()) of
        serving -> ok;
        Outcome -> halt(erlmcp_cli_exit:code(Outcome))
    catch
        %% OTP raises this when the reader of stdout is gone.
        error:terminated -> halt(erlmcp_cli_reader:status());
        Class:Reason:Stacktrace ->
            erlmcp_cli_output:complain(erl_error:format_exception(Class, Reason, Stacktrace)),
            halt(erlmcp_cli_exit:code(failed))
    end.

checked(Arguments) ->
    case [Place || {Place, Argument} <- lists:enumerate(Arguments), not is_text(Argument)] of
        [] ->
            main([decoded(Argument) || Argument <- Arguments]);
        [Place | _] ->
            erlmcp_cli_output:complain(io_lib:format("argument ~b is not UTF-8", [Place])),
            usage
    end.

%% OTP has no list for an argument with bytes that are not UTF-8.
is_text(Argument) ->
    try
        is_binary(unicode:characters_to_binary(Argument))
    catch
        error:badarg -> false
    end.

%% In a locale without UTF-8 an argument is a list of bytes.
decoded(Argument) ->
    case file:native_name_encoding() of
        utf8 -> Argument;
        latin1 ->
            case unicode:characters_to_list(list_to_binary(Argument)) of
                Characters when is_list(Characters) -> Characters;
                _ -> Argument
            end
    end.

-doc """
Runs the command that `Arguments` name, and prints its results and errors. Wrong arguments have the
outcome `usage`. `serving` means that the node has to stay; the other outcomes have an exit code in
`m:erlmcp_cli_exit`. A long command halts the node when the reader of stdout is gone.
""".
-spec main(Arguments :: [string()]) -> outcome().
main([]) ->
    erlmcp_cli_output:note([argparse:help(commands([]), #{progname => ?PROGRAM}), $\n]),
    usage;
main(["--version" | _]) ->
    version(#{});
main([First | _] = Arguments) ->
    %% Words after `--` are not options.
    Options = lists:takewhile(fun(Argument) -> Argument =/= "--" end, Arguments),
    case [Argument || Argument <- Options, Argument =:= "--help" orelse Argument =:= "-h"] of
        [] -> dispatch(Arguments);
        [First | _] -> help(#{});
        _ -> help(#{command => First})
    end.

dispatch([Command | Words]) ->
    case table() of
        #{Command := Entry} ->
            %% Calling only this entry loads only the modules of this subcommand.
            Specified = Entry(Words),
            Specs = maps:get(arguments, Specified, []),
            maybe
                [] ?= erlmcp_cli_words:unknown_options(Words, Specs),
                Arranged = erlmcp_cli_words:arranged(Words, Specs),
                {ok, Parsed, _, #{handler := Handler}} ?=
                    argparse:parse([Command | Arranged], #{commands => #{Command => Specified}},
                                   #{progname => ?PROGRAM}),
                ok = watch(Command),
                Handler(erlmcp_cli_words:restored(Parsed))
            else
                [Option | _] ->
                    Question = erlmcp_cli_suggestion:question(Option,
                                                              erlmcp_cli_words:options(Specs)),
                    wrong_use(Command, [?PROGRAM, $\s, Command, ": ", Option, ": no such option",
                                        Question]);
                {error, Reason} ->
                    wrong_use(Command, ended(unicode:characters_to_list(wrong(Reason))))
            end;
        Existing ->
            no_command(Command, Existing)
    end.

ended(Sentence) ->
    case lists:last(Sentence) of
        $? -> Sentence;
        _ -> [Sentence, $.]
    end.

wrong_use(Command, Sentence) ->
    erlmcp_cli_output:complain([Sentence, " See `erlmcp help ", Command, "`."]),
    usage.

no_command(Command, Existing) ->
    Question = erlmcp_cli_suggestion:question(Command, maps:keys(Existing)),
    erlmcp_cli_output:complain([Command, ": no such command", Question, " See `erlmcp help`."]),
    usage.

%% Commands that take minutes or hours end when the reader of stdout is gone.
watch(Command) ->
    case lists:member(Command, ["bench", "load", "chaos", "scenario", "top"]) of
        true -> erlmcp_cli_reader:watch();
        false -> ok
    end.

%% argparse reports a wrong value, but not what is expected.
wrong({Path, #{} = Argument, Given, _} = Reason) when Given =/= undefined ->
    case erlmcp_cli_values:refused(Argument, Given) of
        {ok, Why} -> [lists:join($\s, Path), ": ", Why];
        none -> argparse:format_error(Reason)
    end;
wrong({Path, #{long := Long}, undefined, _}) ->
    [lists:join($\s, Path), ": -", Long, ": a value was expected"];
wrong({_, #{type := {atom, Choices}}, undefined, _} = Reason) ->
    [argparse:format_error(Reason), ": ",
     lists:join(", ", [atom_to_list(Choice) || Choice <- Choices])];
wrong(Reason) ->
    argparse:format_error(Reason).

commands(Words) ->
    #{commands => #{Command => Entry(Words) || Command := Entry <- table()}}.

table() ->
    #{"bench" => fun(_) -> erlmcp_cli_bench:command() end,
      "load" => fun(_) -> erlmcp_cli_load:command() end,
      "serve" => fun(_) -> erlmcp_cli_serve:command() end,
      "list" => fun erlmcp_cli_list:command/1,
      "call" => fun erlmcp_cli_call:command/1,
      "read" => fun erlmcp_cli_read:command/1,
      "prompt" => fun erlmcp_cli_prompt:command/1,
      "complete" => fun erlmcp_cli_prompt:complete_command/1,
      "listen" => fun erlmcp_cli_listen:command/1,
      "ping" => fun erlmcp_cli_ping:command/1,
      "chaos" => fun(_) -> erlmcp_cli_chaos:command() end,
      "sessions" => fun(_) -> erlmcp_cli_operate:sessions_command() end,
      "calls" => fun(_) -> erlmcp_cli_operate:calls_command() end,
      "top" => fun(_) -> erlmcp_cli_top:command() end,
      "cancel" => fun(_) -> erlmcp_cli_operate:cancel_command() end,
      "cluster" => fun(_) -> erlmcp_cli_cluster:command() end,
      "drain" => fun(_) -> erlmcp_cli_operate:drain_command() end,
      "reload" => fun(_) -> erlmcp_cli_operate:reload_command() end,
      "doctor" => fun(_) -> erlmcp_cli_doctor:command() end,
      "metrology" => fun(_) -> erlmcp_cli_metrology:command() end,
      "compare" => fun(_) -> erlmcp_cli_compare:command() end,
      "scenario" => fun(_) -> erlmcp_cli_scenario:command() end,
      "baseline" => fun(_) -> erlmcp_cli_baseline:command() end,
      "report" => fun(_) -> erlmcp_cli_report:command() end,
      "completion" => fun(_) ->
          #{help => "print a script that completes the words of this command",
            arguments => [#{name => shell, type => {atom, [bash, zsh, fish]},
                            help => {"<shell>", ["bash, zsh or fish"]}}],
            handler => fun completion/1}
      end,
      "man" => fun(_) ->
          #{help => "print the page of the manual, for `man -l -`", handler => fun manual/1}
      end,
      "version" => fun(_) -> #{help => "print the version", handler => fun version/1} end,
      "help" => fun(_) ->
          #{help => "print this, or the help of one command",
            arguments => [#{name => command, required => false, help => "its name"}],
            handler => fun help/1}
      end}.

version(_) ->
    erlmcp_cli_output:print(["erlmcp ", release(), " (OTP ", erlang:system_info(otp_release),
                             ")\n"]).

release() ->
    _ = application:load(erlmcp),
    {ok, Version} = application:get_key(erlmcp, vsn),
    Version.

completion(#{shell := Shell}) ->
    erlmcp_cli_output:print(erlmcp_cli_completion:script(Shell, commands([]))).

manual(_) ->
    erlmcp_cli_output:print(erlmcp_cli_man:page(commands([]), release())).

help(#{command := Command}) ->
    case commands([]) of
        #{commands := #{Command := _}} = Commands ->
            print_help(Commands, #{progname => ?PROGRAM, command => [Command]}),
            print_codes("Exit codes:", erlmcp_cli_exit:codes(Command));
        #{commands := Existing} ->
            no_command(Command, Existing)
    end;
help(#{}) ->
    help_of_all(commands([])).

help_of_all(Commands) ->
    print_help(Commands, #{progname => ?PROGRAM}),
    print_codes("Exit codes:", erlmcp_cli_exit:codes()),
    Instruments = lists:join(", ", erlmcp_cli_exit:instruments()),
    print_codes(["Exit codes of ", Instruments, $:], erlmcp_cli_exit:instrument_codes()).

print_help(Commands, Options) ->
    erlmcp_cli_output:print([argparse:help(Commands, Options), $\n]).

print_codes(Title, Codes) ->
    erlmcp_cli_output:print([Title, $\n, [io_lib:format("  ~b  ~ts~n", [Code, Meaning])
                                         || {Code, _, Meaning} <- Codes]]).
