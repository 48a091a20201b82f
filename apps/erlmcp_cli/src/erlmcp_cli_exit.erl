-module(erlmcp_cli_exit).
-moduledoc """
The exit codes of the `erlmcp` command, as data, and which of them a failure is. The instruments
have codes of their own, for whoever calls them asks other things: 3 and 4 are not what they are
elsewhere. Pure.
""".

-export([codes/0, codes/1, instrument_codes/0, instruments/0, code/1, outcome/1]).

-export_type([outcome/0]).

-type outcome() :: ok | failed | usage | unreachable | timeout | unauthorized
                 | metrology | regression.

-doc "Every outcome of a command that is no instrument, its exit code and what that says.".
-spec codes() -> [{0..255, outcome(), Meaning :: binary()}].
codes() ->
    [{0, ok, ~"it worked"},
     {1, failed, ~"the server answered with an error, or the tool or the command failed"},
     {2, usage, ~"the command was called wrongly"},
     {3, unreachable, ~"the server was not reached"},
     {4, timeout, ~"the server did not answer in time"},
     {5, unauthorized, ~"the server wants another authorization"}].

-doc "The same of an instrument. A server that it does not reach is a measurement that failed.".
-spec instrument_codes() -> [{0..255, outcome(), Meaning :: binary()}].
instrument_codes() ->
    [{0, ok, ~"it was measured, and holds"},
     {1, failed, ~"it could not be measured, or does not hold"},
     {2, usage, ~"the command was called wrongly"},
     {3, metrology, ~"a result breaks a rule of metrology"},
     {4, regression, ~"a figure is worse than the baseline's"}].

-doc "The commands that are instruments.".
-spec instruments() -> [string()].
instruments() ->
    ["bench", "load", "chaos", "scenario", "metrology", "compare", "baseline", "report"].

-doc "The codes of a command.".
-spec codes(Command :: string()) -> [{0..255, outcome(), Meaning :: binary()}].
codes(Command) ->
    case lists:member(Command, instruments()) of
        true -> instrument_codes();
        false -> codes()
    end.

-doc "The exit code of an outcome.".
-spec code(outcome()) -> 0..255.
code(Outcome) ->
    {Code, _, _} = lists:keyfind(Outcome, 2, codes() ++ instrument_codes()),
    Code.

-doc "What it comes to when a call or a client fails for a reason.".
-spec outcome(erlmcp_client:reason() | tuple()) -> outcome().
outcome({connect, _}) -> unreachable;
outcome({timeout, _}) -> timeout;
outcome(timeout) -> timeout;
outcome({unauthorized, _}) -> unauthorized;
outcome({http, Status, _, _}) when Status =:= 401; Status =:= 403 -> unauthorized;
outcome({bad_option, _}) -> usage;
outcome({bad_option, _, _}) -> usage;
outcome(_) -> failed.
