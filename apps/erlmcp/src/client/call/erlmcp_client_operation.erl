-module(erlmcp_client_operation).
-moduledoc """
The operations of a client as data: the request of each, whether the request may be repeated, and
the members that its result must have. Pure.

Source: `schema.json` of each revision.

Internal.
""".

-export([request/1, members/1, pages/1, is_safe/1, is_cacheable/1, check/2]).

-doc "Returns the method and the parameters of an operation; for a list, those of its first page.".
-spec request(erlmcp_client:operation()) -> {Method :: binary(), Params :: map()}.
request(ping) ->
    {~"ping", #{}};
request({list, List}) ->
    {Method, _} = pages(List),
    {Method, #{}};
request({call_tool, Name, Arguments}) ->
    {~"tools/call", #{~"name" => Name, ~"arguments" => Arguments}};
request({read_resource, Uri}) ->
    {~"resources/read", #{~"uri" => Uri}};
request({get_prompt, Name, Arguments}) when map_size(Arguments) =:= 0 ->
    {~"prompts/get", #{~"name" => Name}};
request({get_prompt, Name, Arguments}) ->
    {~"prompts/get", #{~"name" => Name, ~"arguments" => Arguments}};
request({complete, Of, {Argument, Value}, Arguments}) ->
    Reference = case Of of
        {prompt, Name} -> #{~"type" => ~"ref/prompt", ~"name" => Name};
        {resource, Uri} -> #{~"type" => ~"ref/resource", ~"uri" => Uri}
    end,
    Params = #{~"ref" => Reference, ~"argument" => #{~"name" => Argument, ~"value" => Value}},
    {~"completion/complete",
     case map_size(Arguments) of
         0 -> Params;
         _ -> Params#{~"context" => #{~"arguments" => Arguments}}
     end};
request({request, Method, Params}) ->
    {Method, members(Params)};
request({task, cancel, Task}) ->
    {~"tasks/cancel", maps:with([~"taskId"], Task)};
request({task, _, Task}) ->
    {~"tasks/get", maps:with([~"taskId"], Task)}.

-doc """
Returns the members of an object with strings for atom keys, as on the wire, so that they can be
looked up.
""".
-spec members(map()) -> map().
members(Map) ->
    #{name(Key) => Value || Key := Value <- Map}.

name(Key) when is_atom(Key) -> atom_to_binary(Key);
name(Key) -> Key.

-doc "Returns the method of a list operation, and the member of its result that has the items.".
-spec pages(erlmcp_client:list_kind()) -> {Method :: binary(), Items :: binary()}.
pages(tools) -> {~"tools/list", ~"tools"};
pages(resources) -> {~"resources/list", ~"resources"};
pages(resource_templates) -> {~"resources/templates/list", ~"resourceTemplates"};
pages(prompts) -> {~"prompts/list", ~"prompts"};
pages(skills) -> {~"skills/list", ~"skills"}.

-doc """
Returns `true` if requests of the method are known to only read. Such a request may be repeated even
if the server may have served it already.
""".
-spec is_safe(Method :: binary()) -> boolean().
is_safe(~"prompts/get") -> true;
is_safe(~"completion/complete") -> true;
is_safe(~"ping") -> true;
is_safe(~"tasks/get") -> true;
is_safe(Method) -> is_cacheable(Method).

-doc "Returns `true` if results of the method say for how long they may be cached.".
-spec is_cacheable(Method :: binary()) -> boolean().
is_cacheable(~"server/discover") -> true;
is_cacheable(~"tools/list") -> true;
is_cacheable(~"prompts/list") -> true;
is_cacheable(~"resources/list") -> true;
is_cacheable(~"resources/templates/list") -> true;
is_cacheable(~"resources/read") -> true;
is_cacheable(~"skills/list") -> true;
is_cacheable(_) -> false.

-doc """
Checks those members of a result that callers rely on. They are the array of its method, such as
`tools` or `content`, the `name` or similar of each item, and `nextCursor`. Any object fits a method
without such members. The error says which member is wrong, and what was expected.
""".
-spec check(Method :: binary(), Result :: term()) -> ok | {error, What :: binary()}.
check(Method, Result) when not is_map(Result) ->
    wrong(Method, ~"result", ~"an object");
check(~"tools/list" = Method, Result) -> items(Method, ~"tools", [~"name"], Result);
check(~"prompts/list" = Method, Result) -> items(Method, ~"prompts", [~"name"], Result);
check(~"resources/list" = Method, Result) -> items(Method, ~"resources", [~"uri"], Result);
check(~"resources/templates/list" = Method, Result) ->
    items(Method, ~"resourceTemplates", [~"uriTemplate"], Result);
check(~"skills/list" = Method, Result) -> items(Method, ~"skills", [~"uri"], Result);
check(~"tools/call" = Method, Result) -> items(Method, ~"content", [~"type"], Result);
check(~"resources/read" = Method, Result) -> items(Method, ~"contents", [~"uri"], Result);
check(~"prompts/get" = Method, Result) -> items(Method, ~"messages", [~"role"], Result);
check(~"completion/complete", #{~"completion" := #{~"values" := Values}}) when is_list(Values) ->
    ok;
check(~"completion/complete" = Method, _) -> wrong(Method, ~"completion.values", ~"an array");
check(_, _) -> ok.

items(Method, Member, Keys, Result) ->
    case Result of
        #{~"nextCursor" := Cursor} when not is_binary(Cursor), Cursor =/= null ->
            wrong(Method, ~"nextCursor", ~"a string");
        #{Member := Items} when is_list(Items) ->
            case lists:all(fun(Item) -> has_strings(Keys, Item) end, Items) of
                true -> ok;
                false ->
                    wrong(Method, Member, [~"objects with ", lists:join(~", ", Keys)])
            end;
        #{} ->
            wrong(Method, Member, ~"an array")
    end.

has_strings(Keys, Item) ->
    is_map(Item) andalso
        lists:all(fun(Key) -> is_binary(maps:get(Key, Item, undefined)) end, Keys).

wrong(Method, Member, Expected) ->
    {error, iolist_to_binary([~"result of ", Method, ~": ", Member, ~": expected ", Expected])}.
