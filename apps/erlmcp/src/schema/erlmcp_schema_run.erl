-module(erlmcp_schema_run).
-moduledoc """
The funs that compiled schemas consist of, their combinations, and the state of a validation. Pure.

Each schema has two funs. A check finds out whether a value is valid, as fast as it can. It takes a
budget of steps and returns the remaining budget, or `bnot` of it if the value is invalid. A finder
collects errors, and the properties or items that were evaluated. It runs after a check that failed
or threw `pattern`, or inside a check whose result depends on evaluations (`holds/3`).

Internal.
""".

-include("erlmcp_schema.hrl").

-export([pass/0, refuse/0, all/1, either/2, in_turn/1]).
-export([leaf/3, fail/6, errors/1, both/2]).
-export([spend/2, spent/2, passes/3, holds/3]).
-export([inside/3, evaluated/2]).
-export([branch/1, join/2]).

-export_type([check/0, finder/0, node_pair/0, part/0]).
-export_type([token/0, path/0, evaluated/0, run/0]).

-type check() ::
    fun((Value :: term(), Table :: tuple(), Budget :: non_neg_integer()) -> integer()).
-type finder() :: fun((Value :: term(), Instance :: path(), Schema :: path(), run()) -> run()).
-type node_pair() :: {check(), finder()}.

%% A check without an answer throws: `budget` when its budget is spent, `pattern` when a pattern
%% takes too long. A finder then throws `{halt, Error}`.

%% The checks and finders of a keyword, or of a few that belong together.
-type part() :: {[check()], [finder()]}.
-type token() :: binary() | non_neg_integer().
%% Tokens of a JSON pointer, the last one first.
-type path() :: [token()].
-type evaluated() :: all | #{token() => true}.
-type run() :: #run{}.

-doc "Returns the check and the finder of the schema `true`, which every value passes.".
-spec pass() -> node_pair().
pass() ->
    {fun(_, _, Budget) -> Budget end, in_turn([])}.

-doc "Returns the check and the finder of the schema `false`, which no value passes.".
-spec refuse() -> node_pair().
refuse() ->
    {fun(_, _, Budget) -> bnot Budget end,
     fun(V, I, S, Run) -> fail(false, none, V, I, S, Run) end}.

-doc "Combines checks into one that passes if all of them pass.".
-spec all([check()]) -> check().
all([]) ->
    element(1, pass());
all([A]) ->
    A;
all([A, B]) ->
    fun(V, T, Budget) ->
        case A(V, T, Budget) of
            Balance when Balance >= 0 -> B(V, T, Balance);
            Failed -> Failed
        end
    end;
all([A, B, C]) ->
    fun(V, T, Budget) ->
        case A(V, T, Budget) of
            Balance when Balance >= 0 ->
                case B(V, T, Balance) of
                    Balance2 when Balance2 >= 0 -> C(V, T, Balance2);
                    Failed -> Failed
                end;
            Failed ->
                Failed
        end
    end;
all([A, B, C | Rest]) ->
    all([all([A, B, C]), all(Rest)]).

-doc "Combines two checks into one that passes if one of them passes.".
-spec either(check(), check()) -> check().
either(A, B) ->
    fun(V, T, Budget) ->
        case A(V, T, Budget) of
            Balance when Balance >= 0 -> Balance;
            Failed -> B(V, T, bnot Failed)
        end
    end.

-doc "Combines finders into one that runs them one after the other.".
-spec in_turn([finder()]) -> finder().
in_turn([]) ->
    fun(_, _, _, Run) -> Run end;
in_turn([A]) ->
    A;
in_turn([A, B]) ->
    fun(V, I, S, Run) -> B(V, I, S, A(V, I, S, Run)) end;
in_turn([A, B, C]) ->
    fun(V, I, S, Run) -> C(V, I, S, B(V, I, S, A(V, I, S, Run))) end;
in_turn([A, B, C | Rest]) ->
    in_turn([in_turn([A, B, C]), in_turn(Rest)]).

-doc """
Returns the part of `Keyword` that consists of one check, and of a finder that runs the same check.
If the check fails, the finder adds an error with `Expected` to the run.
""".
-spec leaf(Keyword :: binary(), check(), Expected :: term()) -> part().
leaf(Keyword, Check, Expected) ->
    Finder = fun(V, I, S, #run{table = Table, budget = Budget} = Run) ->
        case Check(V, Table, Budget) of
            Budget -> Run;
            Balance when Balance >= 0 -> Run#run{budget = Balance};
            Failed -> fail(Keyword, Expected, V, I, [Keyword | S], Run#run{budget = bnot Failed})
        end
    end,
    {[Check], [Finder]}.

-doc """
Runs a check on a value, within the budget of a run. Returns `true` if the value passes, otherwise
`false`, and the run with the remaining budget. Throws `budget` or `pattern` if the check does.
""".
-spec passes(check(), term(), run()) -> {boolean(), run()}.
passes(Check, V, #run{table = Table, budget = Budget} = Run) ->
    case Check(V, Table, Budget) of
        Budget -> {true, Run};
        Balance when Balance >= 0 -> {true, Run#run{budget = Balance}};
        Failed -> {false, Run#run{budget = bnot Failed}}
    end.

-doc """
Runs `Find` in place of a check, for a schema whose result depends on evaluations. `Find` starts
with a run of its own, with `Table` and `Budget`, and ends with its first error. Returns the
remaining budget, or `bnot` of it after an error, as a check does. Throws `pattern` if a pattern
takes too long, and `budget` if the budget is spent.
""".
-spec holds(fun((run()) -> run()), tuple(), non_neg_integer()) -> integer().
holds(Find, Table, Budget) ->
    try Find(#run{table = Table, budget = Budget, room = 1}) of
        #run{budget = Balance} -> Balance
    catch
        throw:{full, #run{budget = Balance}} -> bnot Balance;
        %% A pattern takes too long. A check has no place for the error.
        throw:{halt, _} -> throw(pattern)
    end.

-doc """
Adds an error to a run. Throws `{full, NewRun}` if the run with the error has no room for another
one. In a branch (`branch/1`), nothing is thrown, and errors without room are left out.
""".
-spec fail(erlmcp_schema_error:kind(), Expected :: term(), Value :: term(), Instance :: path(),
           Schema :: path(), run()) -> run().
fail(_, _, _, _, _, #run{room = 0} = Run) ->
    Run;
fail(Kind, Expected, V, I, S, #run{errors = Errors, room = Room, branch = Branch} = Run) ->
    More = Run#run{errors = [{Kind, Expected, V, I, S} | Errors], room = Room - 1},
    case Room of
        1 when not Branch -> throw({full, More});
        _ -> More
    end.

-doc "Returns the errors of a run, in the order in which they were found.".
-spec errors(run()) -> [erlmcp_schema_error:error()].
errors(#run{errors = [_] = Errors}) -> Errors;
errors(#run{errors = Errors}) -> lists:reverse(Errors).

-doc "Combines the parts of two keywords into one part.".
-spec both(part(), part()) -> part().
both({ChecksA, FindersA}, {ChecksB, FindersB}) ->
    {ChecksA ++ ChecksB, FindersA ++ FindersB}.

-doc "Returns `Budget` less `Cost`. Throws `budget` if `Cost` is higher than `Budget`.".
-spec spend(non_neg_integer(), non_neg_integer()) -> non_neg_integer().
spend(Cost, Budget) when is_integer(Cost), is_integer(Budget), Cost =< Budget -> Budget - Cost;
spend(_, _) -> throw(budget).

-doc """
Returns the run with its budget reduced by `Cost`. Throws `budget` if `Cost` is higher than the
run's budget.
""".
-spec spent(non_neg_integer(), run()) -> run().
spent(Cost, #run{budget = Budget} = Run) ->
    Run#run{budget = spend(Cost, Budget)}.

-doc """
Runs `Find` for parts of a value. Then records the value's properties or items `Parts` as evaluated,
as `evaluated/2` does. Evaluations inside these parts are not recorded, since they are not of the
value itself.
""".
-spec inside(fun((run()) -> run()), Parts :: evaluated(), run()) -> run().
inside(Find, _, #run{evaluated = off} = Run) ->
    Find(Run);
inside(Find, Parts, #run{evaluated = Evaluated} = Run) ->
    Found = Find(Run#run{evaluated = off}),
    Found#run{evaluated = merge(Evaluated, Parts)}.

-doc """
Records the given properties or items as evaluated, or all of them for `all`. Returns the run
unchanged if no schema around needs to know them.
""".
-spec evaluated(evaluated(), run()) -> run().
evaluated(_, #run{evaluated = off} = Run) -> Run;
evaluated(More, #run{evaluated = Evaluated} = Run) -> Run#run{evaluated = merge(Evaluated, More)}.

merge(all, _) -> all;
merge(_, all) -> all;
merge(A, B) -> maps:merge(A, B).

-doc """
Returns a run for one branch of a keyword such as `anyOf`. The new run starts without errors and
keeps only its first one. An error in a branch does not make the value invalid yet.
""".
-spec branch(run()) -> run().
branch(Run) ->
    Run#run{errors = [], room = 1, branch = true}.

-doc """
Returns `Run`, as it was before a branch, with the budget that remains after `Branch`. The errors of
the branch are dropped. If the branch has none, its evaluations count for the result too.
""".
-spec join(run(), Branch :: run()) -> run().
join(Run, #run{budget = Balance, errors = [], evaluated = Evaluated}) ->
    Run#run{budget = Balance, evaluated = Evaluated};
join(Run, #run{budget = Balance}) ->
    Run#run{budget = Balance}.
