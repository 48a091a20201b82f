-module(erlmcp_cli_man).
-moduledoc """
Makes the manual page for `man`: every command and option, from the tables that `argparse` reads,
and the exit codes. Pure.
""".

-export([page/2]).

-doc "Returns the manual page of the program in `Version`, in the markup of `man(7)`.".
-spec page(argparse:command(), Version :: string()) -> unicode:chardata().
page(#{commands := All}, Version) ->
    Commands = maps:to_list(maps:iterator(All, ordered)),
    Common = erlmcp_cli_target:arguments([]),
    [".TH ERLMCP 1 \"\" \"erlmcp ", Version, "\" \"User Commands\"\n",
     section("NAME"), "erlmcp \\- call, serve and measure servers of the Model Context Protocol\n",
     section("SYNOPSIS"), ".B erlmcp\n.I command\n.RI [ argument ...]\n",
     section("COMMANDS"), [command(Command, Common) || Command <- Commands],
     section("SERVERS"),
     text("The server of a command is a URL, or the program of --stdio, or the address of --tcp. "
          "The words of --stdio are split as by a shell, and no shell runs. "
          "Options may stand anywhere before --. Commands with a server have these:"),
     [argument(Argument) || #{long := _} = Argument <- Common],
     section("EXIT STATUS"), codes(erlmcp_cli_exit:codes()),
     ".PP\n", text(["Exit codes of ", lists:join(", ", erlmcp_cli_exit:instruments()), ":"]),
     codes(erlmcp_cli_exit:instrument_codes()),
     ".PP\n", text(["A command whose reader is gone, as in a pipe to head, ends in silence with ",
                    integer_to_list(erlmcp_cli_reader:status()), "."]),
     section("ENVIRONMENT"), [item(Name, Meaning) || {Name, Meaning} <- environment()],
     section("FILES"),
     item("~/.local/state/erlmcp/tokens",
          "what --login keeps; with XDG_STATE_HOME in that folder")].

environment() ->
    [{"ERLMCP_TOKEN", "a bearer token for URLs, which others do not see, unlike --token"},
     {"ERL_LIBS", "folders in which serve looks for applications"},
     {"ERL_FLAGS", "flags of the Erlang node that the command is"},
     {"NO_COLOR", "if it is set and not empty, no colours; TERM=dumb has none either"}].

command({Name, #{help := Help} = Command}, Common) ->
    Arguments = maps:get(arguments, Command, []),
    Own = Arguments -- Common,
    Server = ["server" || Own =/= Arguments],
    Placed = [erlmcp_cli_help:usage(Argument) || Argument <- Own, not is_map_key(long, Argument)],
    Words = lists:join($\s, ["erlmcp", Name] ++ Server ++ Placed),
    [".SS \"", escaped(Words), "\"\n",
     text([Help, $.]), [argument(Argument) || Argument <- Own]].

argument(Argument) ->
    Shown = case erlmcp_cli_help:names(Argument) of
        [_, _] = Names -> lists:join(", ", Names);
        _ -> string:trim(erlmcp_cli_help:usage(Argument), both, "[]")
    end,
    Choices = case erlmcp_cli_help:values(Argument) of
        {words, Words} when length(Words) =< 12 -> ["; one of ", lists:join(", ", Words)];
        _ -> ""
    end,
    item(Shown, [erlmcp_cli_help:described(Argument), Choices]).

codes(Codes) -> [item(integer_to_list(Code), Meaning) || {Code, _, Meaning} <- Codes].

section(Title) -> [".SH ", Title, $\n].

item(Term, Text) -> [".TP\n.B \"", escaped(Term), "\"\n", text(Text)].

text(Text) -> [escaped(Text), $\n].

escaped(Text) ->
    [case C of
         $\\ -> "\\e";
         $- -> "\\-";
         $" -> "\\(dq";
         $' -> "\\(aq";
         $` -> "\\(ga";
         $^ -> "\\(ha";
         $~ -> "\\(ti";
         $. -> "\\&.";
         _ -> C
     end || C <- unicode:characters_to_list(Text)].
