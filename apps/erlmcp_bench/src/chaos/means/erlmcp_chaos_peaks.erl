-module(erlmcp_chaos_peaks).
-moduledoc """
A process in the server's node that reads figures every ten milliseconds, and keeps the highest
value of each. It has a high priority, so that it also runs while every scheduler is busy.
""".

-export([follow/1, highest/0]).

-export_type([figures/0]).

-doc """
The figures by their names. Each name has the module, the name and the arguments of a function that
returns the current value of the figure, a number.
""".
-type figures() :: #{Name :: atom() => {module(), atom(), [term()]}}.

%% Milliseconds between two looks.
-define(LOOK_MS, 10).

-doc """
Starts the process that reads the figures `Figures` again and again. The process outlives the
caller. Fails if the node has such a process already.
""".
-spec follow(Figures :: figures()) -> ok.
follow(Figures) ->
    Caller = self(),
    {Pid, Monitor} = spawn_monitor(fun() ->
        _ = process_flag(priority, high),
        true = register(?MODULE, self()),
        Caller ! {self(), following},
        follow(Figures, look(Figures))
    end),
    receive
        {Pid, following} ->
            true = demonitor(Monitor, [flush]),
            ok;
        {'DOWN', Monitor, process, Pid, Reason} ->
            error(Reason)
    end.

follow(Figures, Highest) ->
    Higher = maps:merge_with(fun(_, One, Other) -> max(One, Other) end, Highest, look(Figures)),
    receive
        {highest, From} ->
            From ! {?MODULE, Higher},
            follow(Figures, Higher)
    after ?LOOK_MS ->
        follow(Figures, Higher)
    end.

look(Figures) ->
    #{Name => apply(Module, Function, Arguments)
      || Name := {Module, Function, Arguments} <- Figures}.

-doc """
Returns the highest value of each figure since `follow/1`. Fails if the process of `follow/1` does
not run.
""".
-spec highest() -> #{Name :: atom() => number()}.
highest() ->
    ?MODULE ! {highest, self()},
    receive {?MODULE, Highest} -> Highest end.
