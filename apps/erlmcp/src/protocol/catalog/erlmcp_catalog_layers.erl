-module(erlmcp_catalog_layers).
-moduledoc """
Compiled definitions in layers, so that a change costs little however many there are: it is a layer
of its own, on top of what was there. Two layers become one where the upper has grown to a part of
the lower, so there are few, each several times as large as the one above it, and a definition is
moved a few times for each time that all of them grow by that. Pure.

A layer has its definitions by kind and key, those that it takes away from the layers below as
`gone`, and the order of those that are listed. What is in an upper layer stands behind what is in
those below it. Few definitions are one layer.

Internal.
""".

-export([new/0, put/6, find/3, take/5, entries/2]).
-export([size/1, whole/2, filter/3, differing/2, since/2]).
-export([split/1, join/2]).

-export_type([layers/0, layer/0, id/0, entry/0, place/0]).

-type place() :: non_neg_integer().
-doc "What a list has of a definition is there encoded; nothing of one that is not listed.".
-type entry() :: {
    place(), erlmcp_definition:definition(),
    Encoded :: #{erlmcp_revision:revision() => binary()}
}.
-doc "That of the change which made a layer.".
-type id() :: non_neg_integer().
-opaque layer() :: #{
    id := id(),
    size := pos_integer(),
    known := #{erlmcp_definition:kind() => #{Key :: binary() => entry() | gone}},
    %% tuples of {place(), Key}
    order := #{erlmcp_definition:kind() => tuple()}
}.
-doc "From the top.".
-type layers() :: [layer()].

%% The definitions up to which there is one layer.
-define(FEW, 16).
%% What part of the layer below it one may be.
-define(PART, 8).

-doc "No definitions.".
-spec new() -> layers().
new() ->
    [].

-doc "The layers with a change of the definition with this key.".
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

%% With nothing below it there is nothing that a layer takes away.
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

-doc "The definition with this key, its place and what is encoded of it.".
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
What a fun makes of the definitions that are listed behind a place, in their order: the first so
many for which it makes something.
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
        %% Else it went, in an upper layer, or stands there at another place.
        {Place, _, _} = Entry ?= find(Kind, Key, Layers),
        {true, Made} ?= Make(Entry),
        [Made | taken(Count - 1, At + 1, Order, Asked, Upper)]
    else
        _ -> taken(Count, At + 1, Order, Asked, Upper)
    end;
taken(Count, _, _, Asked, Upper) ->
    take(Count, Asked, Upper).

%% The number of the first that is behind a place: one of `From` to `To`.
first(_, To, To, _) ->
    To;
first(After, From, To, Order) ->
    Middle = (From + To) div 2,
    case element(1, element(Middle, Order)) > After of
        true -> first(After, From, Middle, Order);
        false -> first(After, Middle + 1, To, Order)
    end.

-doc "All definitions of a kind, listed or not, in the order of their places.".
-spec entries(erlmcp_definition:kind(), layers()) -> [entry()].
entries(Kind, Layers) ->
    Known = lists:foldr(fun(#{known := Above}, Below) ->
                            maps:merge(Below, maps:get(Kind, Above, #{}))
                        end, #{}, Layers),
    lists:keysort(1, [Entry || _ := {_, _, _} = Entry <- Known]).

-doc "How many definitions there are, or were and are still noted as gone.".
-spec size(layers()) -> non_neg_integer().
size(Layers) ->
    size(Layers, 0).

size([], Sum) -> Sum;
size([#{size := Size} | Layers], Sum) when is_integer(Size) -> size(Layers, Sum + Size).

-doc "The same definitions in one layer.".
-spec whole(id(), layers()) -> layers().
whole(_, Layers) when length(Layers) < 2 ->
    Layers;
whole(Id, [Upper, Lower | Layers]) ->
    whole(Id, [(merge(Upper, Lower, Layers =:= []))#{id := Id} | Layers]).

-doc "The definitions that are as wanted, in one layer.".
-spec filter(fun((erlmcp_definition:definition()) -> boolean()), id(), layers()) -> layers().
filter(Wanted, Id, Layers) ->
    [begin
         Kept = #{Kind => maps:filter(fun(_, {_, Definition, _}) -> Wanted(Definition) end, Keys)
                  || Kind := Keys <- Known},
         layer(Id, Kept, #{Kind => in_order(places(Kind, Order), map_get(Kind, Kept))
                           || Kind := _ <- Order})
     end || #{known := Known, order := Order} <- whole(Id, Layers)].

-doc "What may be another definition in one of two than in the other, if both came of the same.".
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
What may be another definition since the change with this id, that one too; `all` where what went
since then is noted no more.
""".
-spec since(id(), layers()) -> {ok, [{erlmcp_definition:kind(), Key :: binary()}]} | all.
since(Id, Layers) ->
    %% One that an earlier change made is as it was then, and so are those below it.
    case lists:splitwith(fun(#{id := Of}) -> Of >= Id end, Layers) of
        {_, []} -> all;
        {Since, _} -> {ok, keys(Since)}
    end.

-doc "The upper layers, of few definitions; and those below, which stay as they are for longer.".
-spec split(layers()) -> {layers(), [{id(), layer()}]}.
split(Layers) ->
    {Few, Many} = lists:splitwith(fun(#{size := Size}) -> Size =< ?FEW end, Layers),
    {Few, [{Id, Layer} || #{id := Id} = Layer <- Many]}.

-doc "The layers that were split into these.".
-spec join(layers(), [layer()]) -> layers().
join(Few, Many) ->
    Few ++ Many.
