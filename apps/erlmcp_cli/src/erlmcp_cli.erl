-module(erlmcp_cli).
-moduledoc """
The `erlmcp` command: finds the command that was asked for and exits with what it returns. Answers
go to stdout; what went wrong goes to stderr.
""".

-export([start/0, main/1, complain/1]).

-export_type([outcome/0]).

-type outcome() :: erlmcp_cli_exit:outcome() | serving.

-define(PROGRAM, "erlmcp").

-doc "Runs the command of the program's own arguments. The node ends with it, unless it serves.".
-spec start() -> ok.
start() ->
    [ok = io:setopts(Device, [{encoding, unicode}]) || Device <- [standard_io, standard_error]],
    ok = erlmcp_cli_log:never_wait(),
    %% Not in init's process: it must stay free to act on SIGTERM.
    _ = spawn(fun run/0),
    ok.

run() ->
    try main([decoded(Argument) || Argument <- init:get_plain_arguments()]) of
        serving -> ok;
        Outcome -> halt(erlmcp_cli_exit:code(Outcome))
    catch
        %% Stdout is gone: whoever read it has left.
        error:terminated -> halt(erlmcp_cli_exit:code(failed));
        Class:Reason:Stacktrace ->
            complain(erl_error:format_exception(Class, Reason, Stacktrace)),
            halt(erlmcp_cli_exit:code(failed))
    end.

%% In a locale without UTF-8 an argument arrives as a list of its bytes.
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
Runs the command that `Arguments` name. `serving` means that the node has to live on; the others
have an exit code in `m:erlmcp_cli_exit`.
""".
-spec main(Arguments :: [string()]) -> outcome().
main([]) ->
    complain(argparse:help(commands([]), #{progname => ?PROGRAM})),
    usage;
main([First | _] = Arguments) ->
    %% After `--` there are no options.
    Options = lists:takewhile(fun(Argument) -> Argument =/= "--" end, Arguments),
    case [Argument || Argument <- Options, Argument =:= "--help" orelse Argument =:= "-h"] of
        [] -> dispatch(Arguments);
        [First | _] -> help(#{});
        _ -> help(#{command => First})
    end.

dispatch([Command | Words]) ->
    #{commands := Known} = Commands = commands(Command, Words),
    Arranged = case Known of
        #{Command := #{arguments := Specs}} -> erlmcp_cli_words:arranged(Words, Specs);
        #{} -> Words
    end,
    case argparse:parse([Command | Arranged], Commands, #{progname => ?PROGRAM}) of
        {ok, Parsed, _, #{handler := Handler}} ->
            Handler(erlmcp_cli_words:restored(Parsed));
        {error, Reason} ->
            About = [[$\s, Command] || is_map_key(Command, Known)],
            complain([wrong(Reason), ". See `erlmcp help", About, "`."]),
            usage
    end.

%% Of a value argparse says that it is wrong, and not what is right.
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

%% The one that was asked for: the modules of the others need not be loaded.
commands(Command, Words) ->
    case table() of
        #{Command := Entry} -> #{commands => #{Command => Entry(Words)}};
        #{} -> commands(Words)
    end.

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
      "doctor" => fun(_) -> erlmcp_cli_doctor:command() end,
      "metrology" => fun(_) -> erlmcp_cli_metrology:command() end,
      "compare" => fun(_) -> erlmcp_cli_compare:command() end,
      "scenario" => fun(_) -> erlmcp_cli_scenario:command() end,
      "baseline" => fun(_) -> erlmcp_cli_baseline:command() end,
      "report" => fun(_) -> erlmcp_cli_report:command() end,
      "version" => fun(_) -> #{help => "print the version", handler => fun version/1} end,
      "help" => fun(_) ->
          #{help => "print this, or the help of one command",
            arguments => [#{name => command, required => false}],
            handler => fun help/1}
      end}.

version(_) ->
    _ = application:load(erlmcp),
    {ok, Version} = application:get_key(erlmcp, vsn),
    io:format("erlmcp ~ts (OTP ~ts)~n", [Version, erlang:system_info(otp_release)]).

help(#{command := Command}) ->
    case commands([]) of
        #{commands := #{Command := _}} = Commands ->
            print_help(Commands, #{progname => ?PROGRAM, command => [Command]}),
            print_codes("Exit codes:", erlmcp_cli_exit:codes(Command));
        _ ->
            complain([Command, ": no such command. See `erlmcp help`."]),
            usage
    end;
help(#{}) ->
    help_of_all(commands([])).

help_of_all(Commands) ->
    print_help(Commands, #{progname => ?PROGRAM}),
    print_codes("Exit codes:", erlmcp_cli_exit:codes()),
    Instruments = lists:join(", ", erlmcp_cli_exit:instruments()),
    print_codes(["Exit codes of ", Instruments, $:], erlmcp_cli_exit:instrument_codes()).

print_help(Commands, Options) ->
    io:put_chars([argparse:help(Commands, Options), $\n]).

print_codes(Title, Codes) ->
    io:put_chars([Title, $\n, [io_lib:format("  ~b  ~ts~n", [Code, Meaning])
                              || {Code, _, Meaning} <- Codes]]).

-doc "One line on stderr.".
-spec complain(unicode:chardata()) -> ok.
complain(Text) ->
    io:format(standard_error, "~ts~n", [string:trim(Text, trailing)]).
