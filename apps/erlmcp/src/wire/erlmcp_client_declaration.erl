-module(erlmcp_client_declaration).
-moduledoc """
Checks what a client declares, its identity and its capabilities, against the schema of a revision.
Pure.

The shapes differ between revisions. A member that the schema does not name passes with any value.

Sources: `Implementation` and `ClientCapabilities` in `schema.json` of each revision.

Internal.
""".

-export([identity/3, capabilities/3]).

-type shape() ::
    string | boolean | object
    | {one_of, [binary(), ...]}
    | {items, shape()}
    %% an object with members of any name
    | {each, shape()}
    | {members, [{Name :: binary(), required | optional, shape()}]}.

-doc """
Returns `ok` if `Identity` is valid as an `Implementation` of the schema of `Revision`. Otherwise
returns a refusal, whose message names the identity by `Field`. `undefined` stands for an absent
identity, which is refused.

## Examples

```erlang
1> Identity = #{~"name" => 5, ~"version" => ~"1.0"}.
2> {error, Refusal} = erlmcp_client_declaration:identity(~"clientInfo", Identity, '2025-11-25').
3> erlmcp_refusal:message(Refusal).
~"clientInfo.name: expected a string, got the number 5"
```
""".
-spec identity(Field :: iodata(), Identity :: term(), Revision :: erlmcp_revision:revision()) ->
    ok | {error, erlmcp_refusal:refusal()}.
identity(Field, Identity, Revision) ->
    checked(Field, Identity, identity(Revision)).

-doc """
Returns `ok` if `Capabilities` are valid as `ClientCapabilities` of the schema of `Revision`.
Otherwise returns a refusal, whose message names the capabilities by `Field`. `undefined` stands for
absent capabilities, which are refused.
""".
-spec capabilities(Field :: iodata(), Capabilities :: term(),
                   Revision :: erlmcp_revision:revision()) ->
    ok | {error, erlmcp_refusal:refusal()}.
capabilities(_, Capabilities, _) when Capabilities =:= #{} ->
    ok;
capabilities(Field, Capabilities, Revision) ->
    checked(Field, Capabilities, capabilities(Revision)).

%% The shapes are literals: nothing is built when a request is checked.

-spec identity(erlmcp_revision:revision()) -> shape().
identity(Revision) when Revision < '2025-06-18' ->
    {members, [{~"name", required, string}, {~"version", required, string}]};
identity('2025-06-18') ->
    {members, [{~"name", required, string}, {~"version", required, string},
               {~"title", optional, string}]};
identity(_) ->
    {members, [{~"name", required, string}, {~"version", required, string},
               {~"title", optional, string}, {~"description", optional, string},
               {~"websiteUrl", optional, string},
               {~"icons", optional, {items, {members, [
                   {~"src", required, string}, {~"mimeType", optional, string},
                   {~"sizes", optional, {items, string}},
                   {~"theme", optional, {one_of, [~"dark", ~"light"]}}]}}}]}.

-spec capabilities(erlmcp_revision:revision()) -> shape().
capabilities('2026-07-28') ->
    {members, [{~"elicitation", optional, {members, [{~"form", optional, object},
                                                     {~"url", optional, object}]}},
               {~"sampling", optional, {members, [{~"context", optional, object},
                                                  {~"tools", optional, object}]}},
               {~"roots", optional, object},
               {~"extensions", optional, {each, object}},
               {~"experimental", optional, {each, object}}]};
capabilities('2025-11-25') ->
    {members, [{~"elicitation", optional, {members, [{~"form", optional, object},
                                                     {~"url", optional, object}]}},
               {~"sampling", optional, {members, [{~"context", optional, object},
                                                  {~"tools", optional, object}]}},
               {~"roots", optional, {members, [{~"listChanged", optional, boolean}]}},
               {~"tasks", optional, {members, [
                   {~"list", optional, object}, {~"cancel", optional, object},
                   {~"requests", optional, {members, [
                       {~"elicitation", optional, {members, [{~"create", optional, object}]}},
                       {~"sampling", optional,
                        {members, [{~"createMessage", optional, object}]}}]}}]}},
               {~"experimental", optional, {each, object}}]};
capabilities('2025-06-18') ->
    {members, [{~"elicitation", optional, object}, {~"sampling", optional, object},
               {~"roots", optional, {members, [{~"listChanged", optional, boolean}]}},
               {~"experimental", optional, {each, object}}]};
capabilities(_) ->
    {members, [{~"sampling", optional, object},
               {~"roots", optional, {members, [{~"listChanged", optional, boolean}]}},
               {~"experimental", optional, {each, object}}]}.

checked(Field, undefined, _) ->
    {error, erlmcp_params:missing(Field)};
checked(Field, Value, Shape) ->
    case check(Shape, Value, []) of
        ok ->
            ok;
        {missing, Path} ->
            {error, erlmcp_params:missing([Field | named(Path)])};
        {wrong, Path, Expected, Came} ->
            {error, erlmcp_params:mistyped([Field | named(Path)], expected(Expected), Came)}
    end.

%% Finds the first member that is wrong. `Path` has the names that lead to it, in reverse order.
check({members, Members}, #{} = Object, Path) -> members(Members, Object, Path);
check(string, Value, _) when is_binary(Value) -> ok;
check(object, #{}, _) -> ok;
check(boolean, Value, _) when is_boolean(Value) -> ok;
check({each, Shape}, #{} = Object, Path) -> each(maps:to_list(Object), Shape, Path);
check({items, Shape}, Items, Path) when is_list(Items) ->
    each(lists:enumerate(0, Items), Shape, Path);
check({one_of, Texts} = Shape, Value, Path) ->
    case lists:member(Value, Texts) of
        true -> ok;
        false -> {wrong, Path, Shape, Value}
    end;
check(Shape, Value, Path) ->
    {wrong, Path, Shape, Value}.

members([{Name, Presence, Shape} | Members], Object, Path) ->
    case Object of
        #{Name := Value} ->
            case check(Shape, Value, [Name | Path]) of
                ok -> members(Members, Object, Path);
                Wrong -> Wrong
            end;
        #{} when Presence =:= required ->
            {missing, [Name | Path]};
        #{} ->
            members(Members, Object, Path)
    end;
members([], _, _) ->
    ok.

each([{Key, Value} | Rest], Shape, Path) ->
    case check(Shape, Value, [Key | Path]) of
        ok -> each(Rest, Shape, Path);
        Wrong -> Wrong
    end;
each([], _, _) ->
    ok.

named(Path) ->
    [case Step of
         Index when is_integer(Index) -> [$[, integer_to_binary(Index), $]];
         Name -> [$., erlmcp_value_text:name(Name)]
     end || Step <- lists:reverse(Path)].

expected(string) -> ~"a string";
expected(boolean) -> ~"a boolean";
expected({items, _}) -> ~"an array";
expected({one_of, Texts}) -> lists:join(~" or ", Texts);
expected(_) -> ~"an object".
