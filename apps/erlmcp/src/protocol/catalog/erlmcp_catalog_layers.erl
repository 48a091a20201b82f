-module(erlmcp_catalog_layers).
-moduledoc """
Compiled definitions in layers, so that a change is cheap however many there are. A change becomes a
layer of its own, on top of the others. When a layer has grown to an eighth of the one below, the
two are merged. So there are few layers, each several times as large as the one above. A definition
is moved only a few times for each such growth. Pure.

A layer has its definitions by kind and key, and the order of those that are listed. Definitions
that it removes from the layers below are marked as `gone`. Definitions of an upper layer stand
behind those of lower layers. A few definitions are one layer.

Internal.
""".

-export([new/0, put/6, find/3, take/5, entries/2]).
-export([size/1, whole/2, filter/3, differing/2, since/2]).
-export([split/1, join/2]).

-export_type([layers/0, layer/0, id/0, entry/0, place/0]).

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
-doc "The layers, from the top.".
-type layers() :: [layer()].

%% Definitions up to which there is one layer.
-define(FEW, 16).
%% A layer is at most this part of the layer below.
-define(PART, 8).

-doc "Returns layers without definitions.".
-spec new() -> layers().
new() ->
    [].

-doc "Adds a change of the definition with this key.".
-spec put(id(), erlmcp_definition:kind(), Key :: binary(), entry() | gone, IsListed :: boolean(),
          layers()) -> layers().
put(Id, Kind, Key, Entry, IsListed, Layers) ->
    Order = case Entry of
        {Place, _, _} when IsListed -> #{Kind => {{Place, Key}}};
        _ -> #{}
    end,
    Layer = #{id => Id, size => 1, known => #{Kind => #{Key => Entry}}, order => Order},
    settle([Layer | Layers]).

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

-doc "Returns the definition with this key, with its place and its encoded objects.".
-spec find(erlmcp_definition:kind(), Key :: binary(), layers()) -> entry() | error.
find(Kind, Key, [#{known := Known} | Layers]) ->
    case Known of
        #{Kind := #{Key := gone}} -> error;
        #{Kind := #{Key := Entry}} -> Entry;
        #{} -> find(Kind, Key, Layers)
    end;
find(_, _, []) ->
    error.

-doc """
Calls `Make` for the listed definitions behind a place, in their order, and returns the first
`Count` terms that it makes.
""".
-spec take(Count :: non_neg_integer(), erlmcp_definition:kind(), After :: place() | -1,
           fun((entry()) -> {true, Made} | false), layers()) -> [Made].
take(Count, Kind, After, Make, Layers) ->
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
        {Place, _, _} = Entry ?= find(Kind, Key, Layers),
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

-doc "Returns all definitions of a kind, listed or not, in the order of their places.".
-spec entries(erlmcp_definition:kind(), layers()) -> [entry()].
entries(Kind, Layers) ->
    Known = lists:foldr(fun(#{known := Above}, Below) ->
                            maps:merge(Below, maps:get(Kind, Above, #{}))
                        end, #{}, Layers),
    lists:keysort(1, [Entry || _ := {_, _, _} = Entry <- Known]).

-doc "Returns the number of definitions, with those that are still marked as gone.".
-spec size(layers()) -> non_neg_integer().
size(Layers) ->
    size(Layers, 0).

size([], Sum) -> Sum;
size([#{size := Size} | Layers], Sum) when is_integer(Size) -> size(Layers, Sum + Size).

-doc "Merges all layers into one.".
-spec whole(id(), layers()) -> layers().
whole(_, Layers) when length(Layers) < 2 ->
    Layers;
whole(Id, [Upper, Lower | Layers]) ->
    whole(Id, [(merge(Upper, Lower, Layers =:= []))#{id := Id} | Layers]).

-doc "Keeps the definitions for which `Wanted` returns `true`, in one layer.".
-spec filter(fun((erlmcp_definition:definition()) -> boolean()), id(), layers()) -> layers().
filter(Wanted, Id, Layers) ->
    [begin
         Kept = #{Kind => maps:filter(fun(_, {_, Definition, _}) -> Wanted(Definition) end, Keys)
                  || Kind := Keys <- Known},
         layer(Id, Kept, #{Kind => in_order(places(Kind, Order), map_get(Kind, Kept))
                           || Kind := _ <- Order})
     end || #{known := Known, order := Order} <- whole(Id, Layers)].

-doc "Returns the keys whose definitions may differ between two versions of the same layers.".
-spec differing(layers(), layers()) -> [{erlmcp_definition:kind(), Key :: binary()}].
differing(One, Other) ->
    Ids = ids(One),
    Common = [Id || Id <- ids(Other), lists:member(Id, Ids)],
    keys([Layer || #{id := Id} = Layer <- One ++ Other, not lists:member(Id, Common)]).

ids(Layers) ->
    [Id || #{id := Id} <- Layers].

keys(Layers) ->
    lists:usort([{Kind, Key} || #{known := Known} <- Layers,
                                Kind := Keys <- Known, Key := _ <- Keys]).

-doc """
Returns the keys whose definitions may have changed since the change with this id, and in it.
Returns `all` if removals since then are not marked any more.
""".
-spec since(id(), layers()) -> {ok, [{erlmcp_definition:kind(), Key :: binary()}]} | all.
since(Id, Layers) ->
    %% A layer of an earlier change is unchanged since then, and so are those below it.
    case lists:splitwith(fun(#{id := Of}) -> Of >= Id end, Layers) of
        {_, []} -> all;
        {Since, _} -> {ok, keys(Since)}
    end.

-doc """
Splits layers into the upper ones of few definitions, and the lower ones, which change seldom.
""".
-spec split(layers()) -> {layers(), [{id(), layer()}]}.
split(Layers) ->
    {Few, Many} = lists:splitwith(fun(#{size := Size}) -> Size =< ?FEW end, Layers),
    {Few, [{Id, Layer} || #{id := Id} = Layer <- Many]}.

-doc "Joins layers that were split.".
-spec join(layers(), [layer()]) -> layers().
join(Few, Many) ->
    Few ++ Many.
