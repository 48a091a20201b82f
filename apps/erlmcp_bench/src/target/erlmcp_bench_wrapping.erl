-module(erlmcp_bench_wrapping).
-moduledoc """
Functions of the server under test with a function of the instruments around them. Their module is
built anew from what it was compiled from, and loaded in this node; what users get has nothing of
it.
""".

-export([around/2]).

-export_type([wrapper/0]).

-doc """
What is called instead of a function, `Module:Name(Known, Arguments, Whole)`: the function as it was
is `Whole`.
""".
-type wrapper() :: {Module :: module(), Name :: atom(), Known :: term()}.

-doc """
Wraps functions of a module, also those that it does not export. To be done before the module's funs
are kept anywhere, and so before the server starts.
""".
-spec around(module(), [{{Function :: atom(), arity()}, wrapper()}]) ->
    ok | {error, {no_function, mfa()}}.
around(Module, Wrappers) ->
    Beam = code:which(Module),
    {ok, {_, [{abstract_code, {_, Forms}}]}} = beam_lib:chunks(Beam, [abstract_code]),
    Known = [{Function, Arity} || {function, _, Function, Arity, _} <- Forms],
    case [Name || {Name, _} <- Wrappers, not lists:member(Name, Known)] of
        [] ->
            Wrapped = lists:flatmap(fun(Form) -> wrapped(Form, Wrappers) end, Forms),
            {ok, Module, Code} = compile:forms(Wrapped, []),
            {module, Module} = code:load_binary(Module, Beam, Code),
            ok;
        [{Function, Arity} | _] ->
            {error, {no_function, {Module, Function, Arity}}}
    end.

wrapped({function, Line, Function, Arity, Clauses} = Form, Wrappers) ->
    case lists:keyfind({Function, Arity}, 1, Wrappers) of
        {_, {Module, Name, Known}} ->
            Whole = list_to_atom(atom_to_list(Function) ++ " as it was"),
            Variables = [{var, Line, list_to_atom("A" ++ integer_to_list(N))}
                         || N <- lists:seq(1, Arity)],
            Arguments = lists:foldr(fun(Variable, Rest) -> {cons, Line, Variable, Rest} end,
                                    {nil, Line}, Variables),
            Call = {call, Line, {remote, Line, {atom, Line, Module}, {atom, Line, Name}},
                    [erl_parse:abstract(Known, [{location, Line}]), Arguments,
                     {'fun', Line, {function, Whole, Arity}}]},
            [{function, Line, Whole, Arity, Clauses},
             {function, Line, Function, Arity, [{clause, Line, Variables, [], [Call]}]}];
        false ->
            [Form]
    end;
wrapped(Form, _) ->
    [Form].
