-module(erlmcp_query).
-moduledoc """
Reads the parameters of queries that others have written. Pure.

Source: HTML, "URL-encoded form data", as `uri_string:dissect_query/1` reads it.

Internal.
""".

-export([parameters/1]).

-doc """
Returns the parameters of a query, decoded and in their order. A parameter without `=` has the value
`true`. Returns `error` if the query cannot be decoded.

## Examples

```erlang
1> erlmcp_query:parameters(~"a=1+2&b").
{ok, [{~"a", ~"1 2"}, {~"b", true}]}
2> [erlmcp_query:parameters(Query) || Query <- [~"", ~"%zz", ~"a=%26%23"]].
[{ok, []}, error, error]
```
""".
-spec parameters(Query :: binary()) -> {ok, [{binary(), binary() | true}]} | error.
parameters(~"") ->
    {ok, []};
parameters(Query) ->
    try uri_string:dissect_query(Query) of
        {error, _, _} -> error;
        Parameters -> {ok, Parameters}
    catch
        %% `uri_string` takes `%26%23` for the beginning of a reference to a character. It fails if
        %% the rest is missing, or if there is no such character.
        error:_ -> error
    end.
