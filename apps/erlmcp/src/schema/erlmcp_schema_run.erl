-module(erlmcp_schema_run).
-moduledoc """
What compiled schemas are made of, and how two of them are put together. Pure.

A schema is compiled twice. A check says only whether the value is valid, as fast as it can: it
takes what is left of the budget and returns what is left then, or `bnot` of that where the value is
not valid. A finder is called when the check said no: it collects errors, and which properties or
items were evaluated.

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

%% A check that cannot say yes or no throws: `budget` when nothing is left of it, `pattern` when a
%% pattern takes too long. A finder then throws `{halt, Error}`.

%% What one or a few keywords of a schema that belong together come to.
-type part() :: {[check()], [finder()]}.
-type token() :: binary() | non_neg_integer().
%% The last token first.
-type path() :: [token()].
-type evaluated() :: all | #{token() => true}.
-type run() :: #run{}.

-doc "The schema `true`.".
-spec pass() -> node_pair().
pass() ->
    {fun(_, _, Budget) -> Budget end, in_turn([])}.

-doc "The schema `false`.".
-spec refuse() -> node_pair().
refuse() ->
    {fun(_, _, Budget) -> bnot Budget end,
     fun(V, I, S, Run) -> fail(false, none, V, I, S, Run) end}.

-doc "The check that all of these pass.".
-spec all([check()]) -> check().
all([]) ->
    element(1, pass());
all([A]) ->
    A;
all([A, B]) ->
    fun(V, T, Budget) ->
        case A(V, T, Budget) of
            Left when Left >= 0 -> B(V, T, Left);
            Failed -> Failed
        end
    end;
all([A, B, C]) ->
    fun(V, T, Budget) ->
        case A(V, T, Budget) of
            Left when Left >= 0 ->
                case B(V, T, Left) of
                    Left2 when Left2 >= 0 -> C(V, T, Left2);
                    Failed -> Failed
                end;
            Failed ->
                Failed
        end
    end;
all([A, B, C | Rest]) ->
    all([all([A, B, C]), all(Rest)]).

-doc "The check that one of two passes.".
-spec either(check(), check()) -> check().
either(A, B) ->
    fun(V, T, Budget) ->
        case A(V, T, Budget) of
            Left when Left >= 0 -> Left;
            Failed -> B(V, T, bnot Failed)
        end
    end.

-doc "The finder that is these, one after the other.".
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

-doc "A keyword that looks at nothing but the value, and what it expects of that.".
-spec leaf(binary(), check(), Expected :: term()) -> part().
leaf(Keyword, Check, Expected) ->
    Finder = fun(V, I, S, #run{table = Table, budget = Budget} = Run) ->
        case Check(V, Table, Budget) of
            Budget -> Run;
            Left when Left >= 0 -> Run#run{budget = Left};
            Failed -> fail(Keyword, Expected, V, I, [Keyword | S], Run#run{budget = bnot Failed})
        end
    end,
    {[Check], [Finder]}.

-doc "Whether a check passes, within the budget of a run.".
-spec passes(check(), term(), run()) -> {boolean(), run()}.
passes(Check, V, #run{table = Table, budget = Budget} = Run) ->
    case Check(V, Table, Budget) of
        Budget -> {true, Run};
        Left when Left >= 0 -> {true, Run#run{budget = Left}};
        Failed -> {false, Run#run{budget = bnot Failed}}
    end.

-doc "A check, of a schema that has to know what was evaluated: its finder, up to the first error.".
-spec holds(fun((run()) -> run()), tuple(), non_neg_integer()) -> integer().
holds(Find, Table, Budget) ->
    try Find(#run{table = Table, budget = Budget, room = 1}) of
        #run{budget = Left} -> Left
    catch
        throw:{full, #run{budget = Left}} -> bnot Left
    end.

-doc "One error more. Throws `{full, Run}` when no other has room.".
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

-doc "The errors of a run, in their order.".
-spec errors(run()) -> [erlmcp_schema_error:error()].
errors(#run{errors = [_] = Errors}) -> Errors;
errors(#run{errors = Errors}) -> lists:reverse(Errors).

-doc "Two parts as one.".
-spec both(part(), part()) -> part().
both({ChecksA, FindersA}, {ChecksB, FindersB}) ->
    {ChecksA ++ ChecksB, FindersA ++ FindersB}.

-doc "What is left of a budget; throws `budget` if that is less than nothing.".
-spec spend(non_neg_integer(), non_neg_integer()) -> non_neg_integer().
spend(Cost, Budget) when is_integer(Cost), is_integer(Budget), Cost =< Budget -> Budget - Cost;
spend(_, _) -> throw(budget).

-doc "The run with that much less of its budget; throws `budget` if that is less than nothing.".
-spec spent(non_neg_integer(), run()) -> run().
spent(Cost, #run{budget = Budget} = Run) ->
    Run#run{budget = spend(Cost, Budget)}.

-doc "What is found in parts of the value, whose own evaluation is another.".
-spec inside(fun((run()) -> run()), Parts :: evaluated(), run()) -> run().
inside(Find, _, #run{evaluated = unasked} = Run) ->
    Find(Run);
inside(Find, Parts, #run{evaluated = Evaluated} = Run) ->
    Found = Find(Run#run{evaluated = unasked}),
    Found#run{evaluated = merge(Evaluated, Parts)}.

-doc "That these were evaluated too.".
-spec evaluated(evaluated(), run()) -> run().
evaluated(_, #run{evaluated = unasked} = Run) -> Run;
evaluated(More, #run{evaluated = Evaluated} = Run) -> Run#run{evaluated = merge(Evaluated, More)}.

merge(all, _) -> all;
merge(_, all) -> all;
merge(A, B) -> maps:merge(A, B).

-doc "A run whose errors do not count for the value, yet; the first is enough.".
-spec branch(run()) -> run().
branch(Run) ->
    Run#run{errors = [], room = 1, branch = true}.

-doc """
The run goes on after a branch, with its own errors and the branch's budget; and, if the value
passed that, with what it evaluated.
""".
-spec join(run(), Branch :: run()) -> run().
join(Run, #run{budget = Left, errors = [], evaluated = Evaluated}) ->
    Run#run{budget = Left, evaluated = Evaluated};
join(Run, #run{budget = Left}) ->
    Run#run{budget = Left}.
