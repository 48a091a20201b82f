-module(erlmcp_test_mutation).
-moduledoc """
PURE. The mutants of a module: its abstract code with one small fault each. An operator makes one
kind of fault (`operators/0`). Patterns, specs, names of called functions and keys of maps stay as
they are.
""".

-export([operators/0, of_forms/1, hash/1, compile/2]).
-export_type([mutant/0, operator/0]).

-doc "The kind of a mutant's fault (`operators/0`).".
-type operator() :: argument | arithmetic | atom | boolean | clause | comparison | drop | empty
                  | filter | guard | integer | negation | update.

-doc """
A fault. `nth` counts the faults of one operator in a function. `at` has the lines where the
compiler may have put a counter for the changed code: `{innermost, Lines}` from the inside to the
outside, or `{any, Lines}` of clauses beside each other. `form` is the changed function.
""".
-type mutant() :: #{function := {atom(), arity()}, operator := operator(), nth := pos_integer(),
                    line := pos_integer(), at := {innermost | any, [pos_integer()]},
                    before := string(), 'after' := string(), form := erl_parse:abstract_form()}.

%% An integer from here on is a time or a large bound: one more of them shows nothing. Whether a
%% bound holds exactly is for the operator `comparison`.
-define(LARGE, 100).
%% Characters of a change that are shown.
-define(SHOWN, 100).

-doc "Returns the operators, each with what it changes.".
-spec operators() -> [{operator(), string()}].
operators() ->
    [{argument, "the result of a call is its last argument"},
     {arithmetic, "+ and -, * and div, band and bor change places; A ++ B and A -- B are A"},
     {atom, "true and false, ok and error change places"},
     {boolean, "andalso and orelse change places"},
     {clause, "a clause of a function, fun, case, if, receive or try is removed"},
     {comparison, "< and =<, > and >= change places"},
     {drop, "a call whose result nobody uses is removed"},
     {empty, "a list or a comprehension is empty, or begins with its second element"},
     {filter, "a filter of a comprehension is removed"},
     {guard, "a test of a guard is removed"},
     {integer, "an integer is one more, and 0 from 100 on"},
     {negation, "a comparison, a test of a type or a condition is negated"},
     {update, "an update of a map or a record is removed"}].

-doc "Returns the mutants of a module, in the order of its code.".
-spec of_forms([erl_parse:abstract_form()]) -> [mutant()].
of_forms(Forms) ->
    lists:append([of_function(Form) || {function, _, _, _, _} = Form <- Forms]).

of_function({function, Anno, Name, Arity, Clauses}) ->
    Changes = clauses(Clauses, [line(Anno)], "function"),
    {Mutants, _} = lists:mapfoldl(
        fun({Operator, Line, At, Before, After, New}, Counts) ->
            Nth = maps:get(Operator, Counts, 0) + 1,
            {#{function => {Name, Arity}, operator => Operator, nth => Nth, line => Line, at => At,
               before => Before, 'after' => After, form => {function, Anno, Name, Arity, New}},
             Counts#{Operator => Nth}}
        end, #{}, Changes),
    Mutants.

-doc "Returns a hash of a module's code, the same wherever its lines stand.".
-spec hash([erl_parse:abstract_form()]) -> binary().
hash(Forms) ->
    Functions = [erl_parse:map_anno(fun(_) -> 0 end, Form)
                 || {function, _, _, _, _} = Form <- Forms],
    binary:encode_hex(erlang:md5(term_to_binary(Functions, [{minor_version, 2}])), lowercase).

-doc """
Compiles a module with the function of a mutant instead of its own. Returns `same` if the compiler
makes the same code of both, and `invalid` if it refuses the mutant.
""".
-spec compile([erl_parse:abstract_form()], mutant()) -> {ok, module(), binary()} | same | invalid.
compile(Forms, #{function := {Name, Arity}, form := New}) ->
    Changed = lists:map(fun({function, _, N, A, _}) when N =:= Name, A =:= Arity -> New;
                           (Form) -> Form
                        end, Forms),
    case compiled(Changed) of
        {ok, Module, Beam} ->
            {ok, Module, Original} = compiled(Forms),
            case code:module_md5(Beam) =:= code:module_md5(Original) of
                true -> same;
                false -> {ok, Module, Beam}
            end;
        error ->
            invalid
    end.

%% With its abstract code, which suites of rules read. Warnings of a mutant say nothing.
compiled(Forms) ->
    try compile:noenv_forms(Forms, [debug_info, nowarn_opportunistic, return]) of
        {ok, Module, Beam, _} -> {ok, Module, Beam};
        {error, _, _} -> error
    catch
        %% The compiler has not foreseen each change of a tree that it has already checked.
        error:_ -> error
    end.

%% A change is {Operator, Line, At, Before, After, New}: New stands where the changed tree was.

%% Clauses beside each other. A removed one is noticed by those who ran it, a changed guard also by
%% those who ran another one.
clauses(Clauses, Outer, Kind) ->
    Bodies = [line(First) || {clause, _, _, _, [First | _]} <- Clauses],
    removed_clauses(Clauses, Kind)
        ++ each(Clauses, fun(Clause) -> clause(Clause, Outer, Bodies) end).

removed_clauses([_], _) ->
    [];
removed_clauses(Clauses, Kind) ->
    [{clause, line(Anno), {any, [line(First)]}, Kind ++ " clause " ++ head(Clause), "no clause",
      lists:delete(Clause, Clauses)}
     || {clause, Anno, _, _, [First | _]} = Clause <- Clauses].

head({clause, _, Patterns, Guards, _}) ->
    Shown = lists:join(", ", [text(Pattern) || Pattern <- Patterns]),
    short(["(", Shown, ")", [[" when ", guards(Guards)] || Guards =/= []]]).

guards(Guards) ->
    lists:join("; ", [lists:join(", ", [text(Test) || Test <- Tests]) || Tests <- Guards]).

clause({clause, Anno, Patterns, Guards, Body}, Outer, Bodies) ->
    changed(guard(Guards, {any, Bodies}),
            fun(New) -> {clause, Anno, Patterns, New, Body} end)
        ++ changed(body(Body, Outer), fun(New) -> {clause, Anno, Patterns, Guards, New} end).

guard(Guards, At) ->
    [{guard, line(Test), At, "when " ++ short(guards(Guards)),
      case Fewer of [] -> "no guard"; _ -> "when " ++ short(guards(Fewer)) end, Fewer}
     || Tests <- Guards, Test <- Tests,
        Fewer <- [[Others || All <- Guards, Others <- [case All =:= Tests of
                                                           true -> lists:delete(Test, All);
                                                           false -> All
                                                       end], Others =/= []]]]
        ++ each(Guards, fun(Tests) -> each(Tests, fun(Test) -> test(Test, At) end) end).

%% Guards have no counters of their own, only the bodies behind them.
test(Test, At) ->
    [setelement(3, Change, At) || Change <- in_guard(Test)].

in_guard(Test) ->
    [Change || Change <- expression(Test, []), element(1, Change) =/= argument].

%% The expressions of a body. The last one is its value.
body(Body, Outer) ->
    dropped(Body, Outer) ++ each(Body, fun(Expression) -> statement(Expression, Body, Outer) end).

dropped(Body, Outer) ->
    [{drop, line(Expression), {innermost, [line(Expression) | Outer]}, text(Expression), "nothing",
      lists:delete(Expression, Body)}
     || Expression <- lists:droplast(Body), is_for_its_effect(Expression)].

is_for_its_effect({call, _, _, _}) -> true;
is_for_its_effect({op, _, '!', _, _}) -> true;
is_for_its_effect({match, _, {var, _, '_'}, Value}) -> is_for_its_effect(Value);
is_for_its_effect({match, _, {atom, _, _}, Value}) -> is_for_its_effect(Value);
is_for_its_effect(_) -> false.

%% Nobody uses the value of a call before the last: only its effect counts.
statement(Expression, Body, Outer) ->
    Changes = expression(Expression, Outer),
    case Expression =/= lists:last(Body) andalso Expression of
        {call, _, _, _} ->
            [Change || {Operator, _, _, _, _, New} = Change <- Changes,
                       Operator =/= argument orelse is_tuple(New) andalso
                           element(1, New) =:= call andalso is_same_call(New, Expression)];
        _ ->
            Changes
    end.

is_same_call({call, _, Function, _}, {call, _, Function, _}) -> true;
is_same_call(_, _) -> false.

%% An expression: its own changes, and those of what is in it.
expression({clauses, Clauses}, Outer) ->
    changed(clauses(Clauses, Outer, "fun"), fun(New) -> {clauses, New} end);
expression(Expression, Outer) ->
    Lines = [line(Expression) | Outer],
    [{Operator, line(Expression), {innermost, Lines}, text(Expression), text(New), New}
     || {Operator, New} <- own(Expression)]
        ++ inside(Expression, Lines).

own({op, Anno, Sign, Left, Right} = Expression) ->
    [{Operator, {op, Anno, Other, Left, Right}} || {Operator, Of, Other} <- signs(), Of =:= Sign]
        ++ [{arithmetic, Left} || lists:member(Sign, ['++', '--'])]
        ++ case Expression of
               {op, _, _, {call, _, _, _}, _}
                 when Sign =:= 'andalso'; Sign =:= 'orelse' ->
                   [{negation, {op, Anno, Sign, negated(Left), Right}}];
               _ ->
                   []
           end
        ++ case Expression of
               {op, _, _, _, {call, _, _, _}}
                 when Sign =:= 'andalso'; Sign =:= 'orelse' ->
                   [{negation, {op, Anno, Sign, Left, negated(Right)}}];
               _ ->
                   []
           end;
own({op, _, 'not', Operand}) ->
    [{negation, Operand}];
own({op, _, '-', {Kind, _, _} = Operand}) when Kind =/= integer ->
    [{arithmetic, Operand}];
own({integer, Anno, Integer}) when Integer >= ?LARGE ->
    [{integer, {integer, Anno, 0}}];
own({integer, Anno, Integer}) ->
    [{integer, {integer, Anno, Integer + 1}}];
own({atom, Anno, Atom}) ->
    [{atom, {atom, Anno, Other}} || {Of, Other} <- [{true, false}, {false, true}, {ok, error},
                                                    {error, ok}], Of =:= Atom];
own({call, _, {atom, _, Name}, [_]} = Call) ->
    case erl_internal:type_test(Name, 1) of
        true -> [{negation, negated(Call)}];
        false -> result(Call)
    end;
own({call, _, _, _} = Call) ->
    result(Call);
own({'case', Anno, {call, _, _, _} = Value, Clauses}) ->
    case lists:sort([Atom || {clause, _, [{atom, _, Atom}], [], _} <- Clauses]) of
        [false, true] -> [{negation, {'case', Anno, negated(Value), Clauses}}];
        _ -> []
    end;
own({cons, Anno, _, Tail} = List) ->
    case is_proper(List) of
        true -> [{empty, {nil, Anno}}];
        false -> [{empty, Tail}]
    end;
own({lc, Anno, _, Qualifiers}) ->
    [{empty, {nil, Anno}} || Qualifiers =/= []];
own({bc, Anno, _, _}) ->
    [{empty, {bin, Anno, []}}];
own({mc, Anno, _, _}) ->
    [{empty, {map, Anno, []}}];
own({map, _, Map, _}) ->
    [{update, Map}];
own({record, _, Record, _, _}) ->
    [{update, Record}];
own(_) ->
    [].

signs() ->
    [{comparison, '<', '=<'}, {comparison, '=<', '<'}, {comparison, '>', '>='},
     {comparison, '>=', '>'},
     {negation, '=:=', '=/='}, {negation, '=/=', '=:='}, {negation, '==', '/='},
     {negation, '/=', '=='}, {negation, '<', '>='}, {negation, '=<', '>'}, {negation, '>', '=<'},
     {negation, '>=', '<'},
     {boolean, 'andalso', 'orelse'}, {boolean, 'orelse', 'andalso'}, {boolean, 'and', 'or'},
     {boolean, 'or', 'and'},
     {arithmetic, '+', '-'}, {arithmetic, '-', '+'}, {arithmetic, '*', 'div'},
     {arithmetic, 'div', '*'}, {arithmetic, '/', '*'}, {arithmetic, 'rem', 'div'},
     {arithmetic, 'band', 'bor'}, {arithmetic, 'bor', 'band'}, {arithmetic, 'bsl', 'bsr'},
     {arithmetic, 'bsr', 'bsl'}].

negated(Expression) ->
    {op, element(2, Expression), 'not', Expression}.

%% A literal instead of a result is a fault that nobody makes.
result({call, _, _, []}) ->
    [];
result({call, _, _, Arguments}) ->
    Last = lists:last(Arguments),
    [{argument, Last} || not lists:member(element(1, Last), [atom, integer, float, string, nil,
                                                             'fun', named_fun, bin])].

is_proper({cons, _, _, Tail}) -> is_proper(Tail);
is_proper({nil, _}) -> true;
is_proper(_) -> false.

%% What is in an expression.
inside({match, Anno, Pattern, Value}, Lines) ->
    at(4, {match, Anno, Pattern, Value}, Lines);
inside({maybe_match, Anno, Pattern, Value}, Lines) ->
    at(4, {maybe_match, Anno, Pattern, Value}, Lines);
inside({call, Anno, {remote, _, _, _} = Function, Arguments}, Lines) ->
    changed(expressions(Arguments, Lines), fun(New) -> {call, Anno, Function, New} end);
inside({call, Anno, {atom, _, _} = Function, Arguments}, Lines) ->
    changed(expressions(Arguments, Lines), fun(New) -> {call, Anno, Function, New} end);
inside({call, Anno, Function, Arguments}, Lines) ->
    changed(expressions(Arguments, Lines), fun(New) -> {call, Anno, Function, New} end)
        ++ changed(expression(Function, Lines), fun(New) -> {call, Anno, New, Arguments} end);
inside({op, _, _, _} = Op, Lines) ->
    at(4, Op, Lines);
inside({op, _, _, _, _} = Op, Lines) ->
    at(4, Op, Lines) ++ at(5, Op, Lines);
inside({tuple, Anno, Elements}, Lines) ->
    changed(expressions(Elements, Lines), fun(New) -> {tuple, Anno, New} end);
%% The elements of a list, and no list again in its rest.
inside({cons, Anno, Head, Tail}, Lines) ->
    changed(expression(Head, Lines), fun(New) -> {cons, Anno, New, Tail} end)
        ++ changed(tail(Tail, Lines), fun(New) -> {cons, Anno, Head, New} end);
inside({map, Anno, Fields}, Lines) ->
    changed(fields(Fields, Lines), fun(New) -> {map, Anno, New} end);
inside({map, Anno, Map, Fields}, Lines) ->
    changed(expression(Map, Lines), fun(New) -> {map, Anno, New, Fields} end)
        ++ changed(fields(Fields, Lines), fun(New) -> {map, Anno, Map, New} end);
inside({record, Anno, Name, Fields}, Lines) ->
    changed(fields(Fields, Lines), fun(New) -> {record, Anno, Name, New} end);
inside({record, Anno, Record, Name, Fields}, Lines) ->
    changed(expression(Record, Lines), fun(New) -> {record, Anno, New, Name, Fields} end)
        ++ changed(fields(Fields, Lines), fun(New) -> {record, Anno, Record, Name, New} end);
inside({record_field, Anno, Record, Name, Field}, Lines) ->
    changed(expression(Record, Lines), fun(New) -> {record_field, Anno, New, Name, Field} end);
inside({bin, Anno, Elements}, Lines) ->
    changed(each(Elements, fun({bin_element, _, _, _, _} = Element) -> at(3, Element, Lines) end),
            fun(New) -> {bin, Anno, New} end);
inside({block, Anno, Body}, Lines) ->
    changed(body(Body, Lines), fun(New) -> {block, Anno, New} end);
inside({'case', Anno, Value, Clauses}, Lines) ->
    changed(expression(Value, Lines), fun(New) -> {'case', Anno, New, Clauses} end)
        ++ changed(clauses(Clauses, Lines, "case"), fun(New) -> {'case', Anno, Value, New} end);
inside({'if', Anno, Clauses}, Lines) ->
    changed(clauses(Clauses, Lines, "if"), fun(New) -> {'if', Anno, New} end);
inside({'receive', Anno, Clauses}, Lines) ->
    changed(clauses(Clauses, Lines, "receive"), fun(New) -> {'receive', Anno, New} end);
inside({'receive', Anno, Clauses, Time, Body}, Lines) ->
    changed(clauses(Clauses, Lines, "receive"), fun(New) -> {'receive', Anno, New, Time, Body} end)
        ++ changed(expression(Time, Lines), fun(New) -> {'receive', Anno, Clauses, New, Body} end)
        ++ changed(body(Body, Lines), fun(New) -> {'receive', Anno, Clauses, Time, New} end);
inside({'try', Anno, Body, Of, Catch, After}, Lines) ->
    changed(body(Body, Lines), fun(New) -> {'try', Anno, New, Of, Catch, After} end)
        ++ [Change || Of =/= [],
                      Change <- changed(clauses(Of, Lines, "of"),
                                        fun(New) -> {'try', Anno, Body, New, Catch, After} end)]
        ++ [Change || Catch =/= [],
                      Change <- changed(clauses(Catch, Lines, "catch"),
                                        fun(New) -> {'try', Anno, Body, Of, New, After} end)]
        ++ [Change || After =/= [],
                      Change <- changed(body(After, Lines),
                                        fun(New) -> {'try', Anno, Body, Of, Catch, New} end)];
inside({'catch', _, _} = Catch, Lines) ->
    at(3, Catch, Lines);
inside({'maybe', Anno, Body}, Lines) ->
    changed(body(Body, Lines), fun(New) -> {'maybe', Anno, New} end);
inside({'maybe', Anno, Body, {'else', Else, Clauses}}, Lines) ->
    changed(body(Body, Lines), fun(New) -> {'maybe', Anno, New, {'else', Else, Clauses}} end)
        ++ changed(clauses(Clauses, Lines, "else"),
                   fun(New) -> {'maybe', Anno, Body, {'else', Else, New}} end);
inside({'fun', Anno, {clauses, _} = Clauses}, Lines) ->
    changed(expression(Clauses, Lines), fun(New) -> {'fun', Anno, New} end);
inside({named_fun, Anno, Name, Clauses}, Lines) ->
    changed(clauses(Clauses, Lines, "fun"), fun(New) -> {named_fun, Anno, Name, New} end);
inside({Comprehension, Anno, Template, Qualifiers}, Lines)
  when Comprehension =:= lc; Comprehension =:= bc; Comprehension =:= mc ->
    changed(template(Template, Lines), fun(New) -> {Comprehension, Anno, New, Qualifiers} end)
        ++ changed(qualifiers(Qualifiers, Lines),
                   fun(New) -> {Comprehension, Anno, Template, New} end);
inside(_, _) ->
    [].

at(Place, Tree, Lines) ->
    changed(expression(element(Place, Tree), Lines), fun(New) -> setelement(Place, Tree, New) end).

expressions(Expressions, Lines) ->
    each(Expressions, fun(Expression) -> expression(Expression, Lines) end).

tail({cons, _, _, _} = Tail, Lines) -> inside(Tail, Lines);
tail(Tail, Lines) -> expression(Tail, Lines).

%% The line of a log's entry is no behaviour.
fields(Fields, Lines) ->
    each(Fields, fun({_, _, {atom, _, line}, {integer, _, _}}) -> [];
                    (Field) -> at(4, Field, Lines)
                 end).

template({map_field_assoc, _, _, _} = Field, Lines) -> at(4, Field, Lines);
template(Template, Lines) -> expression(Template, Lines).

qualifiers(Qualifiers, Lines) ->
    [{filter, line(Filter), {innermost, Lines}, "filter " ++ text(Filter), "no filter",
      lists:delete(Filter, Qualifiers)}
     || Filter <- Qualifiers, not is_generator(Filter)]
        ++ each(Qualifiers, fun(Qualifier) -> qualifier(Qualifier, Lines) end).

qualifier({zip, Anno, Generators}, Lines) ->
    changed(each(Generators, fun(Generator) -> at(4, Generator, Lines) end),
            fun(New) -> {zip, Anno, New} end);
qualifier(Qualifier, Lines) ->
    case is_generator(Qualifier) of
        true -> at(4, Qualifier, Lines);
        false -> expression(Qualifier, Lines)
    end.

is_generator(Qualifier) ->
    lists:member(element(1, Qualifier),
                 [generate, generate_strict, b_generate, b_generate_strict, m_generate,
                  m_generate_strict, zip]).

%% The changes of each element, in the list of all.
each(List, Changes) ->
    each([], List, Changes).

each(_, [], _) ->
    [];
each(Before, [Element | Rest], Changes) ->
    changed(Changes(Element), fun(New) -> lists:reverse(Before, [New | Rest]) end)
        ++ each([Element | Before], Rest, Changes).

changed(Changes, Around) ->
    [setelement(6, Change, Around(element(6, Change))) || Change <- Changes].

line(Anno) when not is_tuple(Anno); tuple_size(Anno) =:= 2, is_integer(element(1, Anno)) ->
    erl_anno:line(Anno);
line(Tree) ->
    erl_anno:line(element(2, Tree)).

text(Tree) ->
    short(erl_pp:expr(Tree, [{linewidth, 10_000}])).

short(Text) ->
    Words = string:lexemes(unicode:characters_to_list(Text), " \n"),
    Line = lists:append(lists:join(" ", Words)),
    case length(Line) > ?SHOWN of
        true -> lists:sublist(Line, ?SHOWN) ++ "...";
        false -> Line
    end.
