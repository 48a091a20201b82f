-module(erlmcp_entries).
-moduledoc """
Compiled definitions by kind and by key (a name, a URI or a URI template), each at its place in the
order of its list. A place is used once. Pure.
""".

-export([new/0, kinds/0]).
-export([add/3, add/4, remove/3, filter/2]).
-export([find/3, find/4, in_order/2, definitions/2, next/1]).
-export([is_same/3, changed/2]).

-export_type([entries/0, place/0]).

-type place() :: non_neg_integer().
-opaque entries() :: #{
    next := place(),
    kinds := #{erlmcp_definition:kind() =>
                   #{Key :: binary() => {place(), erlmcp_definition:definition()}}}
}.

-doc "No definitions.".
-spec new() -> entries().
new() ->
    #{next => 0, kinds => #{Kind => #{} || Kind <- kinds()}}.

-doc "Every kind of definitions.".
-spec kinds() -> [erlmcp_definition:kind(), ...].
kinds() ->
    [tool, resource, resource_template, prompt, skill].

-doc "The entries with one more, behind the others of its kind.".
-spec add(erlmcp_definition:kind(), erlmcp_definition:definition(), entries()) ->
    {ok, entries()} | {error, {duplicate, erlmcp_definition:kind(), Key :: binary()}}.
add(Kind, Definition, #{next := Next} = Entries) ->
    add(Next, Kind, Definition, Entries).

-doc "The same, at a place that it had before.".
-spec add(place(), erlmcp_definition:kind(), erlmcp_definition:definition(), entries()) ->
    {ok, entries()} | {error, {duplicate, erlmcp_definition:kind(), Key :: binary()}}.
add(Place, Kind, #{key := Key} = Definition, #{next := Next, kinds := Kinds} = Entries) ->
    case Kinds of
        #{Kind := #{Key := _}} ->
            {error, {duplicate, Kind, Key}};
        #{Kind := Known} ->
            {ok, Entries#{next := Next + 1,
                          kinds := Kinds#{Kind := Known#{Key => {Place, Definition}}}}}
    end.

-doc "The entries without this one.".
-spec remove(erlmcp_definition:kind(), Key :: binary(), entries()) -> entries().
remove(Kind, Key, #{next := Next, kinds := Kinds} = Entries) ->
    #{Kind := Known} = Kinds,
    Entries#{next := Next + 1, kinds := Kinds#{Kind := maps:remove(Key, Known)}}.

-doc "The entries whose definitions are as wanted.".
-spec filter(fun((erlmcp_definition:definition()) -> boolean()), entries()) -> entries().
filter(Wanted, #{next := Next, kinds := Kinds} = Entries) ->
    Kept = #{Kind => maps:filter(fun(_, {_, Definition}) -> Wanted(Definition) end, Known)
             || Kind := Known <- Kinds},
    Entries#{next := Next + 1, kinds := Kept}.

-doc "The definition with this key, and its place.".
-spec find(erlmcp_definition:kind(), Key :: binary(), entries()) ->
    {place(), erlmcp_definition:definition()} | error.
find(Kind, Key, #{kinds := Kinds}) ->
    case Kinds of
        #{Kind := #{Key := Entry}} -> Entry;
        #{} -> error
    end.

-doc "The definition with this key, if a principal sees it.".
-spec find(erlmcp_definition:kind(), Key :: binary(), erlmcp_auth:principal(), entries()) ->
    {ok, erlmcp_definition:definition()} | error.
find(Kind, Key, Principal, Entries) ->
    case find(Kind, Key, Entries) of
        {_, #{visible := Visible} = Definition} ->
            case erlmcp_definition:sees(Principal, Visible) of
                true -> {ok, Definition};
                false -> error
            end;
        {_, Definition} ->
            {ok, Definition};
        error ->
            error
    end.

-doc "The definitions of a kind with their places, in the order of these.".
-spec in_order(erlmcp_definition:kind(), entries()) ->
    [{place(), erlmcp_definition:definition()}].
in_order(Kind, #{kinds := Kinds}) ->
    lists:keysort(1, maps:values(maps:get(Kind, Kinds))).

-doc "The definitions of a kind, in their order.".
-spec definitions(erlmcp_definition:kind(), entries()) -> [erlmcp_definition:definition()].
definitions(Kind, Entries) ->
    [Definition || {_, Definition} <- in_order(Kind, Entries)].

-doc "The place of what is added next, which is another one after each change.".
-spec next(entries()) -> place().
next(#{next := Next}) ->
    Next.

-doc "Whether two have the same definitions of a kind, to their handlers.".
-spec is_same(erlmcp_definition:kind(), entries(), entries()) -> boolean().
is_same(Kind, #{kinds := One}, #{kinds := Other}) ->
    maps:get(Kind, One) =:= maps:get(Kind, Other).

-doc "The definitions by which the lists of two differ, of the kinds that do.".
-spec changed(entries(), entries()) ->
    #{erlmcp_definition:kind() => [erlmcp_definition:definition(), ...]}.
changed(One, Other) ->
    maps:from_list([{Kind, Differing} || Kind <- kinds(), not is_same(Kind, One, Other),
                                         [_ | _] = Differing <- [differing(Kind, One, Other)]]).

differing(Kind, One, Other) ->
    differing(in_order(Kind, One), in_order(Kind, Other)).

differing([Same | Before], [Same | After]) ->
    differing(Before, After);
differing([{Place, Was} | Before], [{Place, Is} | After]) ->
    case shown(Was) =:= shown(Is) of
        true -> differing(Before, After);
        false -> [Was, Is | differing(Before, After)]
    end;
differing([{Place, Gone} | Before], [{Next, _} | _] = After) when Place < Next ->
    [Gone | differing(Before, After)];
differing(Before, [{_, New} | After]) ->
    [New | differing(Before, After)];
differing(Before, []) ->
    [Gone || {_, Gone} <- Before].

%% What a list shows of it, and to whom.
shown(#{wire := Wire} = Definition) ->
    {Wire, erlmcp_definition:audience(Definition)}.
