-module(erlmcp_one_shot).
-moduledoc """
A process that computes one outcome and exits with it. Its starter gets one message, from the
monitor: `{'DOWN', Monitor, process, Pid, {outcome, Outcome}}`, or one with the reason of a crash.

Internal.
""".

-export([start/2]).
-export([conclude/1]).

-doc """
Starts a process that runs `Work`, and monitors the process. `Options` are further options for
`spawn_opt`. Returns the process and the monitor.
""".
-spec start(fun(() -> term()), [term()]) -> {pid(), reference()}.
start(Work, Options) ->
    {Pid, Monitor} = spawn_opt(?MODULE, conclude, [Work], [monitor | Options]),
    {Pid, Monitor}.

-doc false.
-spec conclude(fun(() -> term())) -> no_return().
conclude(Work) ->
    exit({outcome, Work()}).
