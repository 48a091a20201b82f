-module(erlmcp_one_shot).
-moduledoc """
A process that works out one thing and ends with it: who started it hears once, of the outcome or of
its death, in the message of its monitor: `{'DOWN', Monitor, process, Pid, {outcome, Outcome}}`.

Internal.
""".

-export([start/2]).
-export([conclude/1]).

-doc "Starts the process with these options beside a monitor.".
-spec start(fun(() -> term()), [term()]) -> {pid(), reference()}.
start(Work, Options) ->
    {Pid, Monitor} = spawn_opt(?MODULE, conclude, [Work], [monitor | Options]),
    {Pid, Monitor}.

-doc false.
-spec conclude(fun(() -> term())) -> no_return().
conclude(Work) ->
    exit({outcome, Work()}).
