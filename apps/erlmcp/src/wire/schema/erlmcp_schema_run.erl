-module(erlmcp_schema_run).
-moduledoc """
What compiled schemas are made of, and how two of them are put together. Pure.

A schema is compiled twice. A check says only whether the value is valid, as fast as it can: it
takes what is left of the budget and returns what is left then, or `bnot` of that where the value is
not valid. A finder is called when the check said no: it collects errors, and which properties or
items were evaluated.
""".

-include("erlmcp_schema.hrl").

-export([pass/0, refuse/0, all/1, either/2]).
-export([leaf/3, fail/3, error/2, errors/1, find/4, both/2]).
-export([spend/2, spent/2, passes/3, holds/3]).
-export([down/3, under/2, merge/2]).
-export([branch/1, join/2]).

-compile({no_auto_import, [error/2]}).

-export_type([check/0, finder/0, node_pair/0, keyword_finder/0, part/0]).
-export_type([at/0, text/0, evaluated/0, run/0]).

-type check() ::
    fun((Value :: term(), Table :: tuple(), Budget :: non_neg_integer()) -> integer()).
-type finder() :: fun((Value :: term(), at(), run()) -> {evaluated(), run()}).
-type node_pair() :: {check(), finder()}.
-type keyword_finder() :: fun((term(), at(), {evaluated(), run()}) -> {evaluated(), run()}).

%% A check that cannot say yes or no throws: `budget` when nothing is left of it, `pattern` when a
%% pattern takes too long. A finder then throws `{halt, Error}`.

%% What one or a few keywords of a schema that belong together come to.
-type part() :: {[check()], [keyword_finder()]}.
-type token() :: binary() | non_neg_integer().
-type at() :: {Instance :: [token()], Schema :: [token()]}.
-type text() :: fun(() -> iodata()).
-type evaluated() :: all | #{token() => true}.
-type run() :: #run{}.

-doc "The schema `true`.".
-spec pass() -> node_pair().
pass() ->
    {fun(_, _, Budget) -> Budget end, fun(_, _, Run) -> {#{}, Run} end}.

-doc "The schema `false`.".
-spec refuse() -> node_pair().
refuse() ->
    {fun(_, _, Budget) -> bnot Budget end,
     fun(_, At, Run) -> {#{}, fail(At, fun() -> ~"must not be there" end, Run)} end}.

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

-doc "A keyword that looks at nothing but the value. The message goes on after the value's name.".
-spec leaf(binary(), check(), fun((term()) -> iodata())) -> part().
leaf(Keyword, Check, Message) ->
    Finder = fun(V, At, {Evaluated, Run}) ->
        case passes(Check, V, Run) of
            {true, Left} -> {Evaluated, Left};
            {false, Left} ->
                {Evaluated, fail(under([Keyword], At), fun() -> Message(V) end, Left)}
        end
    end,
    {[Check], [Finder]}.

-doc "Whether a check passes, within the budget of a run.".
-spec passes(check(), term(), run()) -> {boolean(), run()}.
passes(Check, V, #run{table = Table, budget = Budget} = Run) ->
    case Check(V, Table, Budget) of
        Left when Left >= 0 -> {true, Run#run{budget = Left}};
        Failed -> {false, Run#run{budget = bnot Failed}}
    end.

-doc "A check, of a schema that has to know what was evaluated: its finder, up to the first error.".
-spec holds(fun((run()) -> {evaluated(), run()}), tuple(), non_neg_integer()) -> integer().
holds(Find, Table, Budget) ->
    try Find(#run{table = Table, budget = Budget, room = 1}) of
        {_, #run{budget = Left}} -> Left
    catch
        throw:{full, #run{budget = Left}} -> bnot Left
    end.

-doc """
One error more; its text, which goes on after the value's name, is made if it is to be reported.
Throws `{full, Run}` when no other has room.
""".
-spec fail(at(), text(), run()) -> run().
fail(_, _, #run{room = 0} = Run) ->
    Run;
fail(At, Text, #run{errors = Errors, room = Room, branch = Branch} = Run) ->
    case Run#run{errors = [{At, Text} | Errors], room = Room - 1} of
        #run{room = 0} = Full when not Branch -> throw({full, Full});
        More -> More
    end.

-doc "The errors of a run, in their order.".
-spec errors(run()) -> [erlmcp_schema:error()].
errors(#run{errors = Errors}) ->
    [error(At, Text) || {At, Text} <- lists:reverse(Errors)].

-doc "The error that something is wrong there.".
-spec error(at(), text()) -> erlmcp_schema:error().
error({Instance, Schema}, Text) ->
    Pointer = erlmcp_schema_place:pointer(Instance),
    #{
        instance_path => Pointer,
        schema_path => erlmcp_schema_place:pointer(Schema),
        message => iolist_to_binary([erlmcp_schema_text:field(Pointer), " ", Text(), "."])
    }.

-doc "The errors of a schema's keywords, one after the other.".
-spec find([keyword_finder()], term(), at(), run()) -> {evaluated(), run()}.
find(Finders, V, At, Run) ->
    lists:foldl(fun(Finder, Sum) -> Finder(V, At, Sum) end, {#{}, Run}, Finders).

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

-doc "A part of the instance, under these tokens of the schema.".
-spec down(token(), [token()], at()) -> at().
down(Token, Tokens, {Instance, Schema}) ->
    {[Token | Instance], lists:reverse(Tokens, Schema)}.

-doc "The same instance, under these tokens of the schema.".
-spec under([token()], at()) -> at().
under(Tokens, {Instance, Schema}) ->
    {Instance, lists:reverse(Tokens, Schema)}.

-doc "What is evaluated when both are.".
-spec merge(evaluated(), evaluated()) -> evaluated().
merge(all, _) -> all;
merge(_, all) -> all;
merge(A, B) -> maps:merge(A, B).

-doc "A run whose errors do not count for the value, yet.".
-spec branch(run()) -> run().
branch(Run) ->
    Run#run{errors = [], room = 4, branch = true}.

-doc "The run goes on after a branch: with its own errors, with the branch's budget.".
-spec join(run(), Branch :: run()) -> run().
join(Run, #run{budget = Left}) ->
    Run#run{budget = Left}.
