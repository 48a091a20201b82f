-module(erlmcp_schema_tag).
-moduledoc """
Schemas of which a value can pass at most one, since each requires another constant in the same
property: the branches of a `oneOf` or `anyOf` are most often such. One look-up tells which. Pure.

Internal.
""".

-include("../erlmcp_schema.hrl").

-export([find/2]).

-doc """
The property, and which schema, counted from 0, goes with each of its values.
""".
-spec find([erlmcp_schema_place:place()], erlmcp_schema_index:index()) ->
    {Property :: binary(), #{binary() => non_neg_integer()}} | none.
find([_, _ | _] = Places, Index) ->
    Tags = [tags(followed(Place, Index)) || Place <- Places],
    first(lists:sort(maps:keys(hd(Tags))), Tags);
find(_, _) ->
    none.

first([Name | Names], Tags) ->
    Values = [{Value, N} || {N, #{Name := Value}} <- lists:enumerate(0, Tags)],
    case maps:from_list(Values) of
        Table when map_size(Table) =:= length(Tags) -> {Name, Table};
        _ -> first(Names, Tags)
    end;
first([], _) ->
    none.

%% What passes the referring schema passes the one referred to.
followed(#place{schema = #{~"$ref" := _}, dialect = Dialect} = Place, Index) ->
    case erlmcp_schema_dialect:has(~"$ref", Dialect) of
        true -> erlmcp_schema_place:reference(~"$ref", Place, Index);
        false -> Place
    end;
followed(Place, _) ->
    Place.

%% The constants of the required properties, where nothing but an object passes.
tags(#place{schema = #{} = Whole, dialect = Dialect}) ->
    Known = maps:filter(fun(Keyword, _) -> erlmcp_schema_dialect:has(Keyword, Dialect) end,
                        erlmcp_schema_dialect:effective(Whole, Dialect)),
    HasConst = erlmcp_schema_dialect:has(~"const", Dialect),
    case Known of
        #{~"type" := ~"object", ~"properties" := #{} = Properties, ~"required" := Required}
                when is_list(Required), HasConst ->
            #{Name => Value || Name <- Required,
                               #{Name := #{~"const" := Value} = Sub} <- [Properties],
                               is_binary(Value), not is_map_key(~"$ref", Sub),
                               not is_map_key(~"$id", Sub)};
        #{} ->
            #{}
    end;
tags(_) ->
    #{}.
