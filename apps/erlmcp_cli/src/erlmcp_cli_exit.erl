-module(erlmcp_cli_exit).
-moduledoc """
The exit codes of the `erlmcp` command as data, and the mapping of failures to them. Commands that
measure, or read measurements, are called instruments; for them the codes 3 and 4 have other
meanings. Pure.
""".

-export([codes/0, codes/1, instrument_codes/0, instruments/0, code/1, outcome/1, unkept/1]).

-export_type([outcome/0]).

-type outcome() :: ok | failed | usage | unreachable | timeout | unauthorized
                 | metrology | regression.

-doc """
Returns every outcome of a command that is not an instrument (`instruments/0`), with its exit code
and its meaning.
""".
-spec codes() -> [{0..255, outcome(), Meaning :: binary()}].
codes() ->
    [{0, ok, ~"it worked"},
     {1, failed, ~"the server answered with an error, or the tool or the command failed"},
     {2, usage, ~"the command was called wrongly"},
     {3, unreachable, ~"the server was not reached"},
     {4, timeout, ~"the server did not answer in time"},
     {5, unauthorized, ~"the server requires another authorization"}].

-doc """
Returns every outcome of an instrument, with its exit code and its meaning. If an instrument does
not reach a server, its measurement has failed.
""".
-spec instrument_codes() -> [{0..255, outcome(), Meaning :: binary()}].
instrument_codes() ->
    [{0, ok, ~"the measurement succeeded, and holds"},
     {1, failed, ~"the measurement failed, or does not hold"},
     {2, usage, ~"the command was called wrongly"},
     {3, metrology, ~"a result breaks a rule of metrology"},
     {4, regression, ~"a figure is worse than the baseline's"}].

-doc "Returns the commands that are instruments: those that measure or read measurements.".
-spec instruments() -> [string()].
instruments() ->
    ["bench", "load", "chaos", "scenario", "metrology", "compare", "baseline", "report"].

-doc "Returns the outcomes of a command with their exit codes and meanings.".
-spec codes(Command :: string()) -> [{0..255, outcome(), Meaning :: binary()}].
codes(Command) ->
    case lists:member(Command, instruments()) of
        true -> instrument_codes();
        false -> codes()
    end.

-doc "Returns the exit code of an outcome.".
-spec code(outcome()) -> 0..255.
code(Outcome) ->
    {Code, _, _} = lists:keyfind(Outcome, 2, codes() ++ instrument_codes()),
    Code.

-doc "Returns the outcome that stands for the reason of a failed call or client.".
-spec outcome(erlmcp_client:reason() | tuple()) -> outcome().
outcome({connect, _}) -> unreachable;
outcome({timeout, _}) -> timeout;
outcome(timeout) -> timeout;
outcome({unauthorized, _}) -> unauthorized;
outcome({http, Status, _, _}) when Status =:= 401; Status =:= 403 -> unauthorized;
outcome({bad_option, _}) -> usage;
outcome({bad_option, _, _}) -> usage;
outcome(_) -> failed.

-doc """
Returns the outcome of an instrument whose result is not kept: the result breaks a rule, or its file
cannot be written.
""".
-spec unkept(erlmcp_bench_result:reason()) -> outcome().
unkept([_ | _]) -> metrology;
unkept(_) -> failed.
