-module(erlmcp_catalog_entries).
-moduledoc """
Compiled definitions by kind and by key (a name, a URI or a URI template). Each has a place in the
order of its list, used once, and its encoded objects for each revision. Pure.

The definitions are in layers, so that a change is cheap however many there are. A change becomes a
layer of its own, on top of the others. When a layer has grown to an eighth of the one below, the
two are merged. So there are few layers, each several times as large as the one above. A definition
is moved only a few times for each such growth.

A layer has its definitions by kind and key, and the order of those that are listed. Definitions
that it removes from the layers below are marked as `gone`. Definitions of an upper layer stand
behind those of lower layers. A few definitions are one layer.

Internal.
""".

-export([new/0, kinds/0]).
-export([add/3, add/5, remove/3, filter/2, whole/1]).
-export([find/3, find/4, take/5, definitions/2, size/1, next/1]).
-export([is_shared/2, changed/2, since/2]).
-export([split/1, join/2]).

-export_type([entries/0, place/0, entry/0, layer/0, id/0]).

-type place() :: non_neg_integer().
-doc "A definition, with its encoded objects for lists; a definition that is not listed has none.".
-type entry() :: {
    place(), erlmcp_definition:definition(),
    Encoded :: #{erlmcp_revision:revision() => binary()}
}.
-doc "The id of the change that made a layer.".
-type id() :: non_neg_integer().
-opaque layer() :: #{
    id := id(),
    size := pos_integer(),
    known := #{erlmcp_definition:kind() => #{Key :: binary() => entry() | gone}},
    %% Tuples of {place(), Key}.
    order := #{erlmcp_definition:kind() => tuple()}
}.
-opaque entries() :: #{
    next := place(),
    %% From the top.
    layers := [layer()],
    %% The number of definitions that are listed for some principals only.
    restricted := #{erlmcp_definition:kind() => non_neg_integer()}
}.

%% Definitions up to which there is one layer.
-define(FEW, 16).
%% A layer is at most this part of the layer below.
-define(PART, 8).

-doc "Returns entries without definitions.".
-spec new() -> entries().
new() ->
    #{next => 0, layers => [], restricted => #{Kind => 0 || Kind <- kinds()}}.

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
    case entry(Kind, Key, Layers) of
        error ->
            Entry = case entry(Kind, Key, Before) of
                {Place, Definition, _} = Same -> Same;
                _ -> {Place, Definition, encoded(Kind, Definition)}
            end,
            Order = #{Kind => {{Place, Key}} || is_listed(Definition)},
            Added = put(Next, Kind, Key, Entry, Order, Layers),
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
    {_, Definition, _} = entry(Kind, Key, Layers),
    Left = put(Next, Kind, Key, gone, #{}, Layers),
    count(Kind, Definition, -1, Entries#{next := Next + 1, layers := Left}).

%% A change as a layer on top of the others.
put(Id, Kind, Key, Entry, Order, Layers) ->
    settle([#{id => Id, size => 1, known => #{Kind => #{Key => Entry}}, order => Order} | Layers]).

settle([#{size := Above} = Upper, #{size := Below} = Lower | Layers])
  when Above * ?PART >= Below; Above + Below =< ?FEW ->
    settle([merge(Upper, Lower, Layers =:= []) | Layers]);
settle(Layers) ->
    Layers.

%% The lowest layer needs no marks for removed definitions.
merge(#{id := Id, known := Upper, order := New}, #{known := Lower, order := Old}, IsLast) ->
    {Known, Order} = maps:fold(
        fun(Kind, Above, {Known, Order}) ->
            Both = maps:merge(maps:get(Kind, Lower, #{}), Above),
            Left = case IsLast of
                true -> maps:without([Key || Key := gone <- Above], Both);
                false -> Both
            end,
            Listed = lists:keymerge(1, places(Kind, Old), places(Kind, New)),
            {Known#{Kind => Left}, Order#{Kind => in_order(Listed, Left)}}
        end, {Lower, Old}, Upper),
    layer(Id, Known, Order).

places(Kind, Order) ->
    tuple_to_list(maps:get(Kind, Order, {})).

in_order(Places, Known) ->
    list_to_tuple([Listed || {Place, Key} = Listed <- Places,
                             #{Key := {At, _, _}} <- [Known], At =:= Place]).

layer(Id, Known, Order) ->
    Size = lists:sum([map_size(Keys) || _ := Keys <- Known]),
    #{id => Id, size => max(1, Size), known => Known, order => Order}.

-doc "Keeps the definitions for which `Wanted` returns `true`.".
-spec filter(fun((erlmcp_definition:definition()) -> boolean()), entries()) -> entries().
filter(Wanted, #{next := Next, layers := Layers} = Entries) ->
    Kept = Entries#{next := Next + 1,
                    layers := [filtered(Wanted, Next, Layer) || Layer <- one_layer(Next, Layers)]},
    Kept#{restricted := #{Kind => length([Definition || #{visible := _} = Definition
                                                            <- definitions(Kind, Kept),
                                                        is_listed(Definition)])
                          || Kind <- kinds()}}.

%% The id is a new one: a filtered layer differs from the one before.
filtered(Wanted, Id, #{known := Known, order := Order}) ->
    Kept = #{Kind => maps:filter(fun(_, {_, Definition, _}) -> Wanted(Definition) end, Keys)
             || Kind := Keys <- Known},
    layer(Id, Kept, #{Kind => in_order(places(Kind, Order), map_get(Kind, Kept))
                      || Kind := _ <- Order}).

-doc "Merges the layers of entries into one, which is cheapest to read, and dearer to change.".
-spec whole(entries()) -> entries().
whole(#{next := Next, layers := Layers} = Entries) ->
    %% The next change gets another id.
    Entries#{next := Next + 1, layers := one_layer(Next, Layers)}.

one_layer(_, Layers) when length(Layers) < 2 ->
    Layers;
one_layer(Id, [Upper, Lower | Layers]) ->
    one_layer(Id, [(merge(Upper, Lower, Layers =:= []))#{id := Id} | Layers]).

-doc "Returns the definition with the key `Key`, and its place.".
-spec find(erlmcp_definition:kind(), Key :: binary(), entries()) ->
    {place(), erlmcp_definition:definition()} | error.
find(Kind, Key, #{layers := Layers}) ->
    case entry(Kind, Key, Layers) of
        {Place, Definition, _} -> {Place, Definition};
        error -> error
    end.

-doc "Returns the definition with the key `Key`, if `Principal` sees it.".
-spec find(erlmcp_definition:kind(), Key :: binary(), erlmcp_auth:principal(), entries()) ->
    {ok, erlmcp_definition:definition()} | error.
find(Kind, Key, Principal, #{layers := Layers}) ->
    case entry(Kind, Key, Layers) of
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

entry(Kind, Key, [#{known := Known} | Layers]) ->
    case Known of
        #{Kind := #{Key := gone}} -> error;
        #{Kind := #{Key := Entry}} -> Entry;
        #{} -> entry(Kind, Key, Layers)
    end;
entry(_, _, []) ->
    error.

-doc """
Calls `Make` for the listed definitions behind a place, in their order, and returns the first
`Count` terms that it makes.
""".
-spec take(Count :: non_neg_integer(), erlmcp_definition:kind(), After :: place() | -1,
           fun((entry()) -> {true, Made} | false), entries()) -> [Made].
take(Count, Kind, After, Make, #{layers := Layers}) ->
    take(Count, {Kind, After, Make, Layers}, lists:reverse(Layers)).

take(Count, {Kind, After, _, _} = Asked, [#{order := Orders} | Upper]) ->
    case Orders of
        #{Kind := Order} ->
            taken(Count, first(After, 1, tuple_size(Order) + 1, Order), Order, Asked, Upper);
        #{} ->
            take(Count, Asked, Upper)
    end;
take(_, _, []) ->
    [].

taken(0, _, _, _, _) ->
    [];
taken(Count, At, Order, {Kind, _, Make, Layers} = Asked, Upper) when At =< tuple_size(Order) ->
    {Place, Key} = element(At, Order),
    maybe
        %% Otherwise an upper layer has removed it, or has it at another place.
        {Place, _, _} = Entry ?= entry(Kind, Key, Layers),
        {true, Made} ?= Make(Entry),
        [Made | taken(Count - 1, At + 1, Order, Asked, Upper)]
    else
        _ -> taken(Count, At + 1, Order, Asked, Upper)
    end;
taken(Count, _, _, Asked, Upper) ->
    take(Count, Asked, Upper).

%% The index of the first definition behind a place: one of `From` to `To`.
first(_, To, To, _) ->
    To;
first(After, From, To, Order) ->
    Middle = (From + To) div 2,
    case element(1, element(Middle, Order)) > After of
        true -> first(After, From, Middle, Order);
        false -> first(After, Middle + 1, To, Order)
    end.

-doc "Returns all definitions of a kind in their order, with those that are not listed.".
-spec definitions(erlmcp_definition:kind(), entries()) -> [erlmcp_definition:definition()].
definitions(Kind, #{layers := Layers}) ->
    Known = lists:foldr(fun(#{known := Above}, Below) ->
                            maps:merge(Below, maps:get(Kind, Above, #{}))
                        end, #{}, Layers),
    Entries = lists:keysort(1, [Entry || _ := {_, _, _} = Entry <- Known]),
    [Definition || {_, Definition, _} <- Entries].

-doc "Returns the number of definitions, with those that are still marked as gone.".
-spec size(entries()) -> non_neg_integer().
size(#{layers := Layers}) ->
    size(Layers, 0).

size([], Sum) -> Sum;
size([#{size := Size} | Layers], Sum) when is_integer(Size) -> size(Layers, Sum + Size).

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
               || {Kind, Key} <- changed_keys(Before, After),
                  Definition <- differing(entry(Kind, Key, Before), entry(Kind, Key, After))],
    maps:groups_from_list(fun({Kind, _}) -> Kind end, fun({_, Definition}) -> Definition end,
                          Changed).

%% The keys whose definitions may differ: those in layers that only one of the two has.
changed_keys(One, Other) ->
    Ids = ids(One),
    Common = [Id || Id <- ids(Other), lists:member(Id, Ids)],
    keys([Layer || #{id := Id} = Layer <- One ++ Other, not lists:member(Id, Common)]).

ids(Layers) ->
    [Id || #{id := Id} <- Layers].

keys(Layers) ->
    lists:usort([{Kind, Key} || #{known := Known} <- Layers,
                                Kind := Keys <- Known, Key := _ <- Keys]).

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
    %% A layer of an earlier change is unchanged since then, and so are those below it.
    case lists:splitwith(fun(#{id := Id}) -> Id >= Next end, Layers) of
        {_, []} ->
            all;
        {Since, _} ->
            Found = [{Kind, Key, entry(Kind, Key, Layers)} || {Kind, Key} <- keys(Since)],
            Came = lists:keysort(1, [{Place, Kind, Key, Definition}
                                     || {Kind, Key, {Place, Definition, _}} <- Found,
                                        Place >= Next]),
            {ok, [{Kind, Key, gone} || {Kind, Key, error} <- Found]
                     ++ [{Kind, Key, Definition} || {_, Kind, Key, Definition} <- Came]}
    end.

%% The object of a definition in its list, and its audience.
shown(#{wire := Wire} = Definition) ->
    {Wire, erlmcp_definition:audience(Definition)}.

-doc "Splits off the lower layers, which change seldom, from the upper ones of few definitions.".
-spec split(entries()) -> {entries(), [{id(), layer()}]}.
split(#{layers := Layers} = Entries) ->
    {Few, Many} = lists:splitwith(fun(#{size := Size}) -> Size =< ?FEW end, Layers),
    {Entries#{layers := Few}, [{Id, Layer} || #{id := Id} = Layer <- Many]}.

-doc "Joins entries with the layers that were split off.".
-spec join(entries(), [layer()]) -> entries().
join(#{layers := Few} = Entries, Many) ->
    Entries#{layers := Few ++ Many}.
