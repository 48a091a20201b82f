-module(erlmcp_test_reductions).
-moduledoc "How much work a process does for something: it does not depend on the machine.".

-export([of_process/2]).

-doc "The reductions of a process while a fun runs, in the caller.".
-spec of_process(pid(), fun(() -> term())) -> non_neg_integer().
of_process(Pid, Do) ->
    {reductions, Before} = process_info(Pid, reductions),
    _ = Do(),
    {reductions, After} = process_info(Pid, reductions),
    After - Before.
