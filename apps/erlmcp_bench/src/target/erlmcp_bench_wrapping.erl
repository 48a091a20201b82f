-module(erlmcp_bench_wrapping).
-moduledoc """
Wraps functions of the server under test in functions of the instruments. The module of the wrapped
functions is compiled again from its debug information and loaded in this node. Released code has no
trace of it.
""".

-export([around/2]).

-export_type([wrapper/0]).

-doc """
A function that is called as `Module:Name(State, Arguments, Whole)`, where `Whole` is the original
function.
""".
-type wrapper() :: {Module :: module(), Name :: atom(), State :: term()}.

-doc """
Wraps functions of a module, including those that it does not export. Call it before the server
starts: funs of the module must not exist yet. The error names a function that the module lacks.
Fails if the module has no debug information.
""".
-spec around(module(), [{{Function :: atom(), arity()}, wrapper()}]) ->
    ok | {error, {no_function, mfa()}}.
around(Module, Wrappers) ->
    Beam = code:which(Module),
    {ok, {_, [{abstract_code, {_, Forms}}]}} = beam_lib:chunks(Beam, [abstract_code]),
    Defined = [{Function, Arity} || {function, _, Function, Arity, _} <- Forms],
    case [Name || {Name, _} <- Wrappers, not lists:member(Name, Defined)] of
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
        {_, {Module, Name, State}} ->
            Whole = list_to_atom(atom_to_list(Function) ++ " as it was"),
            Variables = [{var, Line, list_to_atom("A" ++ integer_to_list(N))}
                         || N <- lists:seq(1, Arity)],
            Arguments = lists:foldr(fun(Variable, Rest) -> {cons, Line, Variable, Rest} end,
                                    {nil, Line}, Variables),
            Call = {call, Line, {remote, Line, {atom, Line, Module}, {atom, Line, Name}},
                    [erl_parse:abstract(State, [{location, Line}]), Arguments,
                     {'fun', Line, {function, Whole, Arity}}]},
            [{function, Line, Whole, Arity, Clauses},
             {function, Line, Function, Arity, [{clause, Line, Variables, [], [Call]}]}];
        false ->
            [Form]
    end;
wrapped(Form, _) ->
    [Form].
