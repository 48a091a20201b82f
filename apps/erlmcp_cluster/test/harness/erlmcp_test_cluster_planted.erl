-module(erlmcp_test_cluster_planted).
-moduledoc """
Faults in the cluster's own code, to prove that a run finds them. Functions are replaced in each
node, before it joins (`m:erlmcp_bench_wrapping`).
""".

-compile(nowarn_missing_spec_documented).

-export([install/1]).
-export([broken/3]).

-export_type([planted/0]).

-doc """
A planted fault:

- `ignores_lease`: a node serves its sessions after its lease has ended, and for a second after it
  was told that others have them.
- `forgets_delete`: a session's DELETE is not stored, so the next home does not know of it.
- `no_compare_and_swap`: a node that stood still writes the end of a task when it goes on, although
  another node has ended the task.
""".
-type planted() :: ignores_lease | forgets_delete | no_compare_and_swap.

-define(LATE_MS, 1_000).

functions(ignores_lease) ->
    [{erlmcp_cluster_lease, incarnation, 0}, {erlmcp_cluster_store, renew_lease, 5}];
functions(forgets_delete) ->
    [{erlmcp_cluster_store, end_session, 3}];
functions(no_compare_and_swap) ->
    [{erlmcp_cluster_lease, lasting, 0}, {erlmcp_cluster_store, renew_lease, 5},
     {erlmcp_cluster_store, swap_task, 5}].

%% A module is compiled once, with all that is replaced in it.
install(Planted) ->
    Modules = maps:groups_from_list(fun({Module, _, _}) -> Module end, functions(Planted)),
    maps:foreach(fun(Module, Functions) ->
        ok = erlmcp_bench_wrapping:around(
            Module, [{{Function, Arity}, {?MODULE, broken, Function}}
                     || {_, Function, Arity} <- Functions])
    end, Modules).

broken(renew_lease, Arguments, Whole) ->
    case apply(Whole, Arguments) of
        over -> receive after ?LATE_MS -> over end;
        Other -> Other
    end;
broken(end_session, _, _) ->
    ok;
broken(swap_task, [Server, Id, _ | Others], Whole) ->
    apply(Whole, [Server, Id, {'_', '_'} | Others]);
%% The number of the incarnation is what it was while there was a lease.
broken(_, [], Whole) ->
    case Whole() of
        none ->
            persistent_term:get(?MODULE, none);
        Number ->
            ok = persistent_term:put(?MODULE, Number),
            Number
    end.
