-module(erlmcp_catalog_entries).
-moduledoc """
Compiled definitions by kind and by key (a name, a URI or a URI template). Each has a place in the
order of its list, used once, and its encoded objects for each revision. Pure;
`erlmcp_catalog_layers` stores them.

Internal.
""".

-export([new/0, kinds/0]).
-export([add/3, add/5, remove/3, filter/2, whole/1]).
-export([find/3, find/4, take/5, definitions/2, size/1, next/1]).
-export([is_shared/2, changed/2, since/2]).
-export([split/1, join/2]).

-export_type([entries/0, place/0, entry/0]).

-type place() :: erlmcp_catalog_layers:place().
-type entry() :: erlmcp_catalog_layers:entry().
-opaque entries() :: #{
    next := place(),
    layers := erlmcp_catalog_layers:layers(),
    %% The number of definitions that are listed for some principals only.
    restricted := #{erlmcp_definition:kind() => non_neg_integer()}
}.

-doc "Returns entries without definitions.".
-spec new() -> entries().
new() ->
    #{next => 0, layers => erlmcp_catalog_layers:new(),
      restricted => #{Kind => 0 || Kind <- kinds()}}.

-doc "Returns all kinds of definitions.".
-spec kinds() -> [erlmcp_definition:kind(), ...].
kinds() ->
    [tool, resource, resource_template, prompt, skill].

-doc "Adds a definition behind the others of its kind.".
-spec add(erlmcp_definition:kind(), erlmcp_definition:definition(), entries()) ->
    {ok, entries()} | {error, {duplicate, erlmcp_definition:kind(), Key :: binary()}}.
add(Kind, Definition, #{next := Next} = Entries) ->
    add(Next, Kind, Definition, Entries, Entries).

-doc """
Adds a definition at a place that it had in the entries `Before`. If it was there unchanged, it is
not encoded again.
""".
-spec add(place(), erlmcp_definition:kind(), erlmcp_definition:definition(), Before :: entries(),
          entries()) ->
    {ok, entries()} | {error, {duplicate, erlmcp_definition:kind(), Key :: binary()}}.
add(Place, Kind, #{key := Key} = Definition, #{layers := Before}, Entries) ->
    #{next := Next, layers := Layers} = Entries,
    case erlmcp_catalog_layers:find(Kind, Key, Layers) of
        error ->
            Entry = case erlmcp_catalog_layers:find(Kind, Key, Before) of
                {Place, Definition, _} = Same -> Same;
                _ -> {Place, Definition, encoded(Kind, Definition)}
            end,
            IsListed = is_listed(Definition),
            Added = erlmcp_catalog_layers:put(Next, Kind, Key, Entry, IsListed, Layers),
            {ok, count(Kind, Definition, 1, Entries#{next := Next + 1, layers := Added})};
        _ ->
            {error, {duplicate, Kind, Key}}
    end.

%% Most revisions show the same object, which is kept once.
encoded(Kind, Definition) ->
    {Encoded, _} = lists:foldl(
        fun(Revision, {Encoded, Once}) ->
            Given = iolist_to_binary(erlmcp_definition:encode(Kind, Definition, Revision)),
            Kept = maps:get(Given, Once, Given),
            {Encoded#{Revision => Kept}, Once#{Kept => Kept}}
        end, {#{}, #{}}, [Revision || is_listed(Definition), Revision <- erlmcp_revision:all()]),
    Encoded.

is_listed(Definition) ->
    maps:get(listed, Definition, true).

count(Kind, #{visible := _} = Definition, Change, #{restricted := Restricted} = Entries) ->
    case is_listed(Definition) of
        true -> Entries#{restricted := Restricted#{Kind := map_get(Kind, Restricted) + Change}};
        false -> Entries
    end;
count(_, _, _, Entries) ->
    Entries.

-doc "Removes the definition of a key, which must exist.".
-spec remove(erlmcp_definition:kind(), Key :: binary(), entries()) -> entries().
remove(Kind, Key, #{next := Next, layers := Layers} = Entries) ->
    {_, Definition, _} = erlmcp_catalog_layers:find(Kind, Key, Layers),
    Left = erlmcp_catalog_layers:put(Next, Kind, Key, gone, false, Layers),
    count(Kind, Definition, -1, Entries#{next := Next + 1, layers := Left}).

-doc "Keeps the definitions for which `Wanted` returns `true`.".
-spec filter(fun((erlmcp_definition:definition()) -> boolean()), entries()) -> entries().
filter(Wanted, #{next := Next, layers := Layers} = Entries) ->
    Kept = Entries#{next := Next + 1, layers := erlmcp_catalog_layers:filter(Wanted, Next, Layers)},
    Kept#{restricted := #{Kind => length([Definition || #{visible := _} = Definition
                                                            <- definitions(Kind, Kept),
                                                        is_listed(Definition)])
                          || Kind <- kinds()}}.

-doc "Merges the layers of entries into one, which is cheapest to read, and dearer to change.".
-spec whole(entries()) -> entries().
whole(#{next := Next, layers := Layers} = Entries) ->
    %% The next change gets another id.
    Entries#{next := Next + 1, layers := erlmcp_catalog_layers:whole(Next, Layers)}.

-doc "Returns the definition with this key, and its place.".
-spec find(erlmcp_definition:kind(), Key :: binary(), entries()) ->
    {place(), erlmcp_definition:definition()} | error.
find(Kind, Key, #{layers := Layers}) ->
    case erlmcp_catalog_layers:find(Kind, Key, Layers) of
        {Place, Definition, _} -> {Place, Definition};
        error -> error
    end.

-doc "Returns the definition with this key, if a principal sees it.".
-spec find(erlmcp_definition:kind(), Key :: binary(), erlmcp_auth:principal(), entries()) ->
    {ok, erlmcp_definition:definition()} | error.
find(Kind, Key, Principal, #{layers := Layers}) ->
    case erlmcp_catalog_layers:find(Kind, Key, Layers) of
        {_, #{visible := Visible} = Definition, _} ->
            case erlmcp_definition:sees(Principal, Visible) of
                true -> {ok, Definition};
                false -> error
            end;
        {_, Definition, _} ->
            {ok, Definition};
        error ->
            error
    end.

-doc """
Calls `Make` for the listed definitions behind a place, in their order, and returns the first
`Count` terms that it makes.
""".
-spec take(Count :: non_neg_integer(), erlmcp_definition:kind(), After :: place() | -1,
           fun((entry()) -> {true, Made} | false), entries()) -> [Made].
take(Count, Kind, After, Make, #{layers := Layers}) ->
    erlmcp_catalog_layers:take(Count, Kind, After, Make, Layers).

-doc "Returns all definitions of a kind in their order, with those that are not listed.".
-spec definitions(erlmcp_definition:kind(), entries()) -> [erlmcp_definition:definition()].
definitions(Kind, #{layers := Layers}) ->
    [Definition || {_, Definition, _} <- erlmcp_catalog_layers:entries(Kind, Layers)].

-doc "Returns the approximate number of definitions.".
-spec size(entries()) -> non_neg_integer().
size(#{layers := Layers}) ->
    erlmcp_catalog_layers:size(Layers).

-doc "Returns the place of the next definition, which each change makes a different one.".
-spec next(entries()) -> place().
next(#{next := Next}) ->
    Next.

-doc "Returns `true` if all principals see the same list of a kind.".
-spec is_shared(erlmcp_definition:kind(), entries()) -> boolean().
is_shared(Kind, #{restricted := Restricted}) ->
    map_get(Kind, Restricted) =:= 0.

-doc "Returns the definitions by which the lists of two entries differ, by their kinds.".
-spec changed(entries(), entries()) ->
    #{erlmcp_definition:kind() => [erlmcp_definition:definition(), ...]}.
changed(#{layers := Before}, #{layers := After}) ->
    Changed = [{Kind, Definition}
               || {Kind, Key} <- erlmcp_catalog_layers:differing(Before, After),
                  Definition <- differing(erlmcp_catalog_layers:find(Kind, Key, Before),
                                          erlmcp_catalog_layers:find(Kind, Key, After))],
    maps:groups_from_list(fun({Kind, _}) -> Kind end, fun({_, Definition}) -> Definition end,
                          Changed).

differing(Same, Same) ->
    [];
differing({Place, Was, _}, {Place, Is, _}) ->
    case shown(Was) =:= shown(Is) of
        true -> [];
        false -> [Was, Is]
    end;
differing(Before, After) ->
    [Definition || {_, Definition, _} <- [Before, After]].

-doc """
Returns the definitions added since `next/1` was `Next`, in the order of their places, and those
that are `gone` (some perhaps before). Returns `all` if the changes are not known any more.
""".
-spec since(place(), entries()) ->
    {ok, [{erlmcp_definition:kind(), Key :: binary(), erlmcp_definition:definition() | gone}]}
    | all.
since(Next, #{layers := Layers}) ->
    maybe
        {ok, Keys} ?= erlmcp_catalog_layers:since(Next, Layers),
        Found = [{Kind, Key, erlmcp_catalog_layers:find(Kind, Key, Layers)} || {Kind, Key} <- Keys],
        Came = lists:keysort(1, [{Place, Kind, Key, Definition}
                                 || {Kind, Key, {Place, Definition, _}} <- Found, Place >= Next]),
        {ok, [{Kind, Key, gone} || {Kind, Key, error} <- Found]
                 ++ [{Kind, Key, Definition} || {_, Kind, Key, Definition} <- Came]}
    end.

%% The object of a definition in its list, and its audience.
shown(#{wire := Wire} = Definition) ->
    {Wire, erlmcp_definition:audience(Definition)}.

-doc "Splits off the layers that change seldom.".
-spec split(entries()) ->
    {entries(), [{erlmcp_catalog_layers:id(), erlmcp_catalog_layers:layer()}]}.
split(#{layers := Layers} = Entries) ->
    {Few, Many} = erlmcp_catalog_layers:split(Layers),
    {Entries#{layers := Few}, Many}.

-doc "Joins entries with the layers that were split off.".
-spec join(entries(), [erlmcp_catalog_layers:layer()]) -> entries().
join(#{layers := Few} = Entries, Many) ->
    Entries#{layers := erlmcp_catalog_layers:join(Few, Many)}.
