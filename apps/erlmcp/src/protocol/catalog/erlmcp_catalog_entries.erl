-module(erlmcp_catalog_entries).
-moduledoc """
Compiled definitions by kind and by key (a name, a URI or a URI template), each at its place in the
order of its list, and as its list shows it in each revision. A place is used once. Pure;
`erlmcp_catalog_layers` is how they are kept.

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
    %% how many are listed for some principals only
    restricted := #{erlmcp_definition:kind() => non_neg_integer()}
}.

-doc "No definitions.".
-spec new() -> entries().
new() ->
    #{next => 0, layers => erlmcp_catalog_layers:new(),
      restricted => #{Kind => 0 || Kind <- kinds()}}.

-doc "Every kind of definitions.".
-spec kinds() -> [erlmcp_definition:kind(), ...].
kinds() ->
    [tool, resource, resource_template, prompt, skill].

-doc "The entries with one more, behind the others of its kind.".
-spec add(erlmcp_definition:kind(), erlmcp_definition:definition(), entries()) ->
    {ok, entries()} | {error, {duplicate, erlmcp_definition:kind(), Key :: binary()}}.
add(Kind, Definition, #{next := Next} = Entries) ->
    add(Next, Kind, Definition, Entries, Entries).

-doc """
The same, at a place that it had before, among these entries. What is at its place as it was is not
encoded again.
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

%% Most revisions show the same of it, which is kept once.
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

-doc "The entries without this one, which is there.".
-spec remove(erlmcp_definition:kind(), Key :: binary(), entries()) -> entries().
remove(Kind, Key, #{next := Next, layers := Layers} = Entries) ->
    {_, Definition, _} = erlmcp_catalog_layers:find(Kind, Key, Layers),
    Left = erlmcp_catalog_layers:put(Next, Kind, Key, gone, false, Layers),
    count(Kind, Definition, -1, Entries#{next := Next + 1, layers := Left}).

-doc "The entries whose definitions are as wanted.".
-spec filter(fun((erlmcp_definition:definition()) -> boolean()), entries()) -> entries().
filter(Wanted, #{next := Next, layers := Layers} = Entries) ->
    Kept = Entries#{next := Next + 1, layers := erlmcp_catalog_layers:filter(Wanted, Next, Layers)},
    Kept#{restricted := #{Kind => length([Definition || #{visible := _} = Definition
                                                            <- definitions(Kind, Kept),
                                                        is_listed(Definition)])
                          || Kind <- kinds()}}.

-doc "The same entries, put together: to be read most cheaply, and changed at more cost.".
-spec whole(entries()) -> entries().
whole(#{next := Next, layers := Layers} = Entries) ->
    %% What is changed next has another id.
    Entries#{next := Next + 1, layers := erlmcp_catalog_layers:whole(Next, Layers)}.

-doc "The definition with this key, and its place.".
-spec find(erlmcp_definition:kind(), Key :: binary(), entries()) ->
    {place(), erlmcp_definition:definition()} | error.
find(Kind, Key, #{layers := Layers}) ->
    case erlmcp_catalog_layers:find(Kind, Key, Layers) of
        {Place, Definition, _} -> {Place, Definition};
        error -> error
    end.

-doc "The definition with this key, if a principal sees it.".
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
What a fun makes of the definitions that are listed behind a place, in their order: the first so
many for which it makes something.
""".
-spec take(Count :: non_neg_integer(), erlmcp_definition:kind(), After :: place() | -1,
           fun((entry()) -> {true, Made} | false), entries()) -> [Made].
take(Count, Kind, After, Make, #{layers := Layers}) ->
    erlmcp_catalog_layers:take(Count, Kind, After, Make, Layers).

-doc "The definitions of a kind, in their order, and those that are not listed.".
-spec definitions(erlmcp_definition:kind(), entries()) -> [erlmcp_definition:definition()].
definitions(Kind, #{layers := Layers}) ->
    [Definition || {_, Definition, _} <- erlmcp_catalog_layers:entries(Kind, Layers)].

-doc "How many definitions there are, about.".
-spec size(entries()) -> non_neg_integer().
size(#{layers := Layers}) ->
    erlmcp_catalog_layers:size(Layers).

-doc "The place of what is added next, which is another one after each change.".
-spec next(entries()) -> place().
next(#{next := Next}) ->
    Next.

-doc "Whether all see the same of a kind's list.".
-spec is_shared(erlmcp_definition:kind(), entries()) -> boolean().
is_shared(Kind, #{restricted := Restricted}) ->
    map_get(Kind, Restricted) =:= 0.

-doc "The definitions by which the lists of two differ, of the kinds that do.".
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
What came since `next/1` was this, in the order of its places, and what is `gone`, or was so before
already; `all` where that is not known.
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

%% What a list shows of it, and to whom.
shown(#{wire := Wire} = Definition) ->
    {Wire, erlmcp_definition:audience(Definition)}.

-doc "The entries without those layers that stay as they are for longer; and these.".
-spec split(entries()) ->
    {entries(), [{erlmcp_catalog_layers:id(), erlmcp_catalog_layers:layer()}]}.
split(#{layers := Layers} = Entries) ->
    {Few, Many} = erlmcp_catalog_layers:split(Layers),
    {Entries#{layers := Few}, Many}.

-doc "The entries that were split into these.".
-spec join(entries(), [erlmcp_catalog_layers:layer()]) -> entries().
join(#{layers := Few} = Entries, Many) ->
    Entries#{layers := erlmcp_catalog_layers:join(Few, Many)}.
