-module(erlmcp_middleware).
-moduledoc """
Composes middleware, the funs around handlers, when a definition is added to a catalog. Pure.

```erlang
fun(Arguments, Context, Next) -> Next(Arguments, Context) end
```

`Next` calls the next middleware or the handler, and returns its return value. A middleware may call
`Next` with other arguments or another context, several times or not at all, and may return another
value.

Internal.
""".

-export([of_server/4, of_mounted/3, wrap/3, is_list_of/1]).

-doc """
Wraps the handler of a definition. The server's middleware is outermost, then the definition's own,
then the cache, and last the definition's guards. A definition without a handler stays as it is.

The setting `quick` makes the mark that replaces `quick => true` in a definition; without that
setting, `quick` is removed. The setting `row` makes the definition's row in the server's meter. The
error is that of the setting `guarded`: the wrong field, and what was expected there.
""".
-spec of_server(erlmcp_definition:kind(), Position :: non_neg_integer(),
                erlmcp_definition:definition(), erlmcp_catalog:settings()) ->
    {ok, erlmcp_definition:definition()} | {error, Field :: atom(), Expected :: binary()}.
of_server(Kind, Position, #{handler := _} = Given, Settings) ->
    Definition = with_row(Kind, marked(Given, Settings), Settings),
    All = maps:get(middleware, Settings, []) ++ maps:get(middleware, Definition, []),
    Cached = case {Definition, Settings} of
        {#{cache := _}, #{cached := Keep}} -> [Keep(Kind, Position, Definition)];
        _ -> []
    end,
    Guarded = maps:get(guarded, Settings, fun(_, Unguarded) -> {ok, [], Unguarded} end),
    maybe
        {ok, Guards, Known} ?= Guarded(Kind, Definition),
        {ok, wrap(All, Cached ++ Guards, Known)}
    end;
of_server(_, _, Definition, _) ->
    {ok, Definition}.

marked(#{quick := true} = Definition, #{quick := Mark}) ->
    Definition#{quick := Mark()};
marked(Definition, _) ->
    maps:remove(quick, Definition).

with_row(Kind, #{key := Key} = Definition, #{row := Row}) ->
    Definition#{row => Row(Kind, Key)};
with_row(_, Definition, _) ->
    maps:remove(row, Definition).

-doc """
Wraps the handler of a definition of a mounted server, which has its own middleware already, in the
middleware of the settings. The setting `row` makes the definition's row in the server's meter;
without that setting, the row is removed.
""".
-spec of_mounted(erlmcp_definition:kind(), erlmcp_definition:definition(),
                 erlmcp_catalog:settings()) -> erlmcp_definition:definition().
of_mounted(Kind, Definition, Settings) ->
    wrap(maps:get(middleware, Settings, []), [], with_row(Kind, Definition, Settings)).

-doc """
Wraps the handler of a definition, and each fun of its completions, in the middleware `All`. The
middleware in `Inner` wraps only the handler, inside `All`. The first of a list is the outermost.
""".
-spec wrap(All :: [erlmcp:middleware()], Inner :: [erlmcp:middleware()],
           erlmcp_definition:definition()) ->
    erlmcp_definition:definition().
wrap([], [], Definition) ->
    Definition;
wrap(All, Inner, #{handler := Handler, complete := Complete} = Definition) ->
    Definition#{handler := around(All ++ Inner, Handler),
                complete := #{Name => completion(All, Values) || Name := Values <- Complete}};
wrap(All, Inner, #{handler := Handler} = Definition) ->
    Definition#{handler := around(All ++ Inner, Handler)}.

completion(All, Complete) when is_function(Complete, 2) -> around(All, Complete);
completion(_, Values) -> Values.

%% The first middleware of the list becomes the outermost.
around(Middleware, Fun) ->
    lists:foldr(fun(Outer, Next) ->
                    fun(Arguments, Context) -> Outer(Arguments, Context, Next) end
                end, Fun, Middleware).

-doc "Returns `true` if a term is a list of middleware, which are funs of three arguments.".
-spec is_list_of(term()) -> boolean().
is_list_of([Middleware | Rest]) -> is_function(Middleware, 3) andalso is_list_of(Rest);
is_list_of(Value) -> Value =:= [].
