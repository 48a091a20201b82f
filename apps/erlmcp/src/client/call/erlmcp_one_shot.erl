-module(erlmcp_one_shot).
-moduledoc """
A process that computes one outcome and ends with it. The starter gets one message, from its
monitor: `{'DOWN', Monitor, process, Pid, {outcome, Outcome}}`, or the reason of a crash.

Internal.
""".

-export([start/2]).
-export([conclude/1]).

-doc "Starts the process with the spawn options `Options`, monitored.".
-spec start(fun(() -> term()), [term()]) -> {pid(), reference()}.
start(Work, Options) ->
    {Pid, Monitor} = spawn_opt(?MODULE, conclude, [Work], [monitor | Options]),
    {Pid, Monitor}.

-doc false.
-spec conclude(fun(() -> term())) -> no_return().
conclude(Work) ->
    exit({outcome, Work()}).
