-module(erlmcp_test_reductions).
-moduledoc "How much work a process does for something: it does not depend on the machine.".

-export([of_process/2, of_fun/1]).

-doc "The reductions of a process while a fun runs, in the caller.".
-spec of_process(pid(), fun(() -> term())) -> non_neg_integer().
of_process(Pid, Do) ->
    {Reductions, _} = meanwhile(Pid, Do),
    Reductions.

-doc "The reductions of a fun that runs in the caller, and what it returned.".
-spec of_fun(fun(() -> Result)) -> {non_neg_integer(), Result}.
of_fun(Do) ->
    meanwhile(self(), Do).

meanwhile(Pid, Do) ->
    {reductions, Before} = process_info(Pid, reductions),
    Result = Do(),
    {reductions, After} = process_info(Pid, reductions),
    {After - Before, Result}.
