-module(erlmcp_test_reductions).
-moduledoc "Measures the work of a process in reductions, which do not depend on the machine.".

-export([of_process/2, of_fun/1]).

-doc "Calls a fun in the calling process. Returns the reductions of another process meanwhile.".
-spec of_process(pid(), fun(() -> term())) -> non_neg_integer().
of_process(Pid, Do) ->
    {Reductions, _} = meanwhile(Pid, Do),
    Reductions.

-doc "Calls a fun in the calling process. Returns its reductions and its result.".
-spec of_fun(fun(() -> Result)) -> {non_neg_integer(), Result}.
of_fun(Do) ->
    meanwhile(self(), Do).

meanwhile(Pid, Do) ->
    {reductions, Before} = process_info(Pid, reductions),
    Result = Do(),
    {reductions, After} = process_info(Pid, reductions),
    {After - Before, Result}.
