-module(erlmcp_templates).
-moduledoc """
The resource templates that a URI is matched against, in the order of their list. Up to sixteen are
kept as a list of their own. More would be costly to copy with each change, and are looked up in the
entries. Pure.
""".

-export([new/1, match/4, matches/2]).

-export_type([templates/0]).

-opaque templates() :: [erlmcp_definition:definition()] | many.

-define(FEW, 16).

-doc "Returns the templates of these entries.".
-spec new(erlmcp_catalog_entries:entries()) -> templates().
new(Entries) ->
    Found = erlmcp_catalog_entries:take(?FEW + 1, resource_template, -1, fun({_, Definition, _}) ->
        {true, Definition}
    end, Entries),
    case length(Found) > ?FEW of
        true -> many;
        false -> Found
    end.

-doc "Returns the first template that matches a URI and that a principal sees, with its variables.".
-spec match(Uri :: binary(), erlmcp_auth:principal(), templates(),
            erlmcp_catalog_entries:entries()) ->
    {ok, resource_template, erlmcp_definition:definition(), Variables :: map()} | error.
match(Uri, Principal, many, Entries) ->
    Match = fun({_, Definition, _}) ->
        case first(Uri, Principal, [Definition]) of
            error -> false;
            Found -> {true, Found}
        end
    end,
    case erlmcp_catalog_entries:take(1, resource_template, -1, Match, Entries) of
        [Found] -> Found;
        [] -> error
    end;
match(Uri, Principal, Templates, _) ->
    first(Uri, Principal, Templates).

first(_, _, []) ->
    error;
first(Uri, Principal, [#{template := Template} = Definition | Definitions]) ->
    maybe
        {ok, Variables} ?= erlmcp_uri_template:match(Uri, Template),
        true ?= erlmcp_definition:sees(Principal, erlmcp_definition:audience(Definition)),
        {ok, resource_template, Definition, Variables}
    else
        _ -> first(Uri, Principal, Definitions)
    end.

-doc "Returns `true` if a template matches a URI, whether or not a principal sees it.".
-spec matches(Uri :: binary(), erlmcp_catalog_entries:entries()) -> boolean().
matches(Uri, Entries) ->
    Match = fun({_, #{template := Template}, _}) ->
        case erlmcp_uri_template:match(Uri, Template) of
            {ok, _} -> {true, matches};
            nomatch -> false
        end
    end,
    erlmcp_catalog_entries:take(1, resource_template, -1, Match, Entries) =/= [].
