-module(erlmcp_catalog_entries).
-moduledoc """
Compiled definitions by kind and by key (a name, a URI or a URI template). Each has a position, a
number that no other definition of its kind has. Listed definitions are encoded for each revision.
Pure.

The definitions are in layers, so that a change is cheap however many there are. A change becomes a
layer of its own, on top of the others. A layer that is not much smaller than the one below is
merged with it, so there are few layers.

Internal.
""".

-export([new/0, kinds/0]).
-export([add/3, add/5, remove/3, filter/2, with_rows/2, whole/1]).
-export([find/3, find/4, take/5, definitions/2, size/1, next/1]).
-export([is_shared/2, changed/2, since/2]).
-export([split/1, join/2]).

-export_type([entries/0, position/0, entry/0, layer/0, id/0]).

-type position() :: non_neg_integer().
-doc """
A definition with its position, and with its JSON for the lists of each revision; a definition that
is not listed has no JSON.
""".
-type entry() :: {
    position(), erlmcp_definition:definition(),
    Encoded :: #{erlmcp_revision:revision() => binary()}
}.
-doc "The id of a layer: the position that was next when it was made.".
-type id() :: non_neg_integer().
-opaque layer() :: #{
    id := id(),
    size := pos_integer(),
    %% `gone` marks a definition that this layer removes from the layers below.
    known := #{erlmcp_definition:kind() => #{Key :: binary() => entry() | gone}},
    %% Tuples of {position(), Key}, in the order of positions.
    order := #{erlmcp_definition:kind() => tuple()}
}.
-opaque entries() :: #{
    next := position(),
    %% The layers from top to bottom. In lists, definitions of an upper layer come after those of
    %% lower layers.
    layers := [layer()],
    %% The number of definitions that are listed for some principals only.
    restricted := #{erlmcp_definition:kind() => non_neg_integer()}
}.

%% The most definitions that are kept in a single layer.
-define(FEW, 16).
%% A layer has at most an eighth of the definitions of the layer below.
-define(PART, 8).

-doc "Returns entries without definitions.".
-spec new() -> entries().
new() ->
    #{next => 0, layers => [], restricted => #{Kind => 0 || Kind <- kinds()}}.

-doc "Returns all kinds of definitions.".
-spec kinds() -> [erlmcp_definition:kind(), ...].
kinds() ->
    [tool, resource, resource_template, prompt, skill].

-doc """
Adds a definition after all others of its kind. `duplicate` means that another definition of its
kind has its key.
""".
-spec add(erlmcp_definition:kind(), erlmcp_definition:definition(), entries()) ->
    {ok, entries()} | {error, {duplicate, erlmcp_definition:kind(), Key :: binary()}}.
add(Kind, Definition, #{next := Next} = Entries) ->
    add(Next, Kind, Definition, Entries, Entries).

-doc """
Adds a definition at `Position`, which no other definition of its kind has. `Position` is that of
the same key in the entries `Before`, that of a removed definition, or `next/1`. Unless it is
`next/1`, the caller has to merge the layers afterwards (`whole/1`), so that lists are in order. If
`Before` has the same definition at `Position`, its JSON is reused. The error is that of `add/3`.
""".
-spec add(Position :: position(), erlmcp_definition:kind(), erlmcp_definition:definition(),
          Before :: entries(), entries()) ->
    {ok, entries()} | {error, {duplicate, erlmcp_definition:kind(), Key :: binary()}}.
add(Position, Kind, #{key := Key} = Definition, #{layers := Before}, Entries) ->
    #{next := Next, layers := Layers} = Entries,
    case entry(Kind, Key, Layers) of
        error ->
            Entry = case entry(Kind, Key, Before) of
                {Position, Definition, _} = Same -> Same;
                _ -> {Position, Definition, encoded(Kind, Definition)}
            end,
            Order = #{Kind => {{Position, Key}} || is_listed(Definition)},
            Added = put(Next, Kind, Key, Entry, Order, Layers),
            {ok, count(Kind, Definition, 1, Entries#{next := Next + 1, layers := Added})};
        _ ->
            {error, {duplicate, Kind, Key}}
    end.

%% Most revisions have the same JSON for a definition, which is kept once.
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

-doc "Removes the definition with a key, which must exist.".
-spec remove(erlmcp_definition:kind(), Key :: binary(), entries()) -> entries().
remove(Kind, Key, #{next := Next, layers := Layers} = Entries) ->
    {_, Definition, _} = entry(Kind, Key, Layers),
    Left = put(Next, Kind, Key, gone, #{}, Layers),
    count(Kind, Definition, -1, Entries#{next := Next + 1, layers := Left}).

%% Adds a change as a layer on top of the others, and merges layers.
put(Id, Kind, Key, Entry, Order, Layers) ->
    settle([#{id => Id, size => 1, known => #{Kind => #{Key => Entry}}, order => Order} | Layers]).

settle([#{size := Above} = Upper, #{size := Below} = Lower | Layers])
  when Above * ?PART >= Below; Above + Below =< ?FEW ->
    settle([merge(Upper, Lower, Layers =:= []) | Layers]);
settle(Layers) ->
    Layers.

%% Merges two layers. The lowest layer needs no marks for removed definitions.
merge(#{id := Id, known := Upper, order := New}, #{known := Lower, order := Old}, IsLast) ->
    {Known, Order} = maps:fold(
        fun(Kind, Above, {Known, Order}) ->
            Both = maps:merge(maps:get(Kind, Lower, #{}), Above),
            Left = case IsLast of
                true -> maps:without([Key || Key := gone <- Above], Both);
                false -> Both
            end,
            Listed = lists:keymerge(1, positions(Kind, Old), positions(Kind, New)),
            {Known#{Kind => Left}, Order#{Kind => in_order(Listed, Left)}}
        end, {Lower, Old}, Upper),
    layer(Id, Known, Order).

positions(Kind, Order) ->
    tuple_to_list(maps:get(Kind, Order, {})).

in_order(Places, Known) ->
    list_to_tuple([Listed || {Position, Key} = Listed <- Places,
                             #{Key := {At, _, _}} <- [Known], At =:= Position]).

layer(Id, Known, Order) ->
    Size = lists:sum([map_size(Keys) || _ := Keys <- Known]),
    #{id => Id, size => max(1, Size), known => Known, order => Order}.

-doc "Returns the entries with only the definitions for which the fun returns `true`.".
-spec filter(fun((erlmcp_definition:kind(), erlmcp_definition:definition()) -> boolean()),
             entries()) -> entries().
filter(Wanted, #{next := Next, layers := Layers} = Entries) ->
    Kept = Entries#{next := Next + 1,
                    layers := [filtered(Wanted, Next, Layer) || Layer <- one_layer(Next, Layers)]},
    Kept#{restricted := #{Kind => length([Definition || #{visible := _} = Definition
                                                            <- definitions(Kind, Kept),
                                                        is_listed(Definition)])
                          || Kind <- kinds()}}.

%% A filtered layer gets a new id, since it differs from the one before.
filtered(Wanted, Id, #{known := Known, order := Order}) ->
    Kept = #{Kind => maps:filter(fun(_, {_, Definition, _}) -> Wanted(Kind, Definition) end, Keys)
             || Kind := Keys <- Known},
    layer(Id, Kept, #{Kind => in_order(positions(Kind, Order), map_get(Kind, Kept))
                      || Kind := _ <- Order}).

-doc """
Replaces the rows that definitions have in the server's meter by those that a fun returns. A
definition without a row gets none. The entries must not have been published.
""".
-spec with_rows(fun((erlmcp_definition:kind(), Key :: binary(), Row :: dynamic()) -> Row :: term()),
                entries()) -> entries().
with_rows(Row, #{layers := Layers} = Entries) ->
    Entries#{layers := [Layer#{known := #{Kind => #{Key => with_row(Row, Kind, Key, Entry)
                                                    || Key := Entry <- Keys}
                                          || Kind := Keys <- Known}}
                        || #{known := Known} = Layer <- Layers]}.

with_row(Row, Kind, Key, {Position, #{row := Before} = Definition, Encoded}) ->
    {Position, Definition#{row := Row(Kind, Key, Before)}, Encoded};
with_row(_, _, _, Entry) ->
    Entry.

-doc "Merges all layers into one, which is cheaper to read, but more costly to change.".
-spec whole(entries()) -> entries().
whole(#{next := Next, layers := Layers} = Entries) ->
    %% The layer takes `Next` as its id, so the next change must get another one.
    Entries#{next := Next + 1, layers := one_layer(Next, Layers)}.

one_layer(_, Layers) when length(Layers) < 2 ->
    Layers;
one_layer(Id, [Upper, Lower | Layers]) ->
    one_layer(Id, [(merge(Upper, Lower, Layers =:= []))#{id := Id} | Layers]).

-doc "Returns the definition with the key `Key`, and its position; `error` if there is none.".
-spec find(erlmcp_definition:kind(), Key :: binary(), entries()) ->
    {position(), erlmcp_definition:definition()} | error.
find(Kind, Key, #{layers := Layers}) ->
    case entry(Kind, Key, Layers) of
        {Position, Definition, _} -> {Position, Definition};
        error -> error
    end.

-doc """
Returns the definition with the key `Key`, or `error` if there is none that the principal may see.
""".
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
Calls a fun for the listed definitions after the position `After` (-1 for all), in their order,
until the fun has returned `{true, Made}` `Count` times. Returns the terms `Made`, in the same
order.
""".
-spec take(Count :: non_neg_integer(), erlmcp_definition:kind(), After :: position() | -1,
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
    {Position, Key} = element(At, Order),
    maybe
        %% Without a match, an upper layer has removed the definition, or has it at another
        %% position.
        {Position, _, _} = Entry ?= entry(Kind, Key, Layers),
        {true, Made} ?= Make(Entry),
        [Made | taken(Count - 1, At + 1, Order, Asked, Upper)]
    else
        _ -> taken(Count, At + 1, Order, Asked, Upper)
    end;
taken(Count, _, _, Asked, Upper) ->
    take(Count, Asked, Upper).

%% Returns the index in `Order`, from `From` to `To`, of the first definition after a position.
first(_, To, To, _) ->
    To;
first(After, From, To, Order) ->
    Middle = (From + To) div 2,
    case element(1, element(Middle, Order)) > After of
        true -> first(After, From, Middle, Order);
        false -> first(After, Middle + 1, To, Order)
    end.

-doc "Returns all definitions of a kind in their order, listed or not.".
-spec definitions(erlmcp_definition:kind(), entries()) -> [erlmcp_definition:definition()].
definitions(Kind, #{layers := Layers}) ->
    Known = lists:foldr(fun(#{known := Above}, Below) ->
                            maps:merge(Below, maps:get(Kind, Above, #{}))
                        end, #{}, Layers),
    Entries = lists:keysort(1, [Entry || _ := {_, _, _} = Entry <- Known]),
    [Definition || {_, Definition, _} <- Entries].

-doc """
Returns an upper bound of the number of definitions: marks for removed ones count, too, and so do
definitions that an upper layer hides.
""".
-spec size(entries()) -> non_neg_integer().
size(#{layers := Layers}) ->
    size(Layers, 0).

size([], Sum) -> Sum;
size([#{size := Size} | Layers], Sum) when is_integer(Size) -> size(Layers, Sum + Size).

-doc "Returns the position of the next definition, which grows with each change.".
-spec next(entries()) -> position().
next(#{next := Next}) ->
    Next.

-doc """
Returns `true` if no listed definition of a kind has a `visible` fun, so that all principals see the
same list.
""".
-spec is_shared(erlmcp_definition:kind(), entries()) -> boolean().
is_shared(Kind, #{restricted := Restricted}) ->
    map_get(Kind, Restricted) =:= 0.

-doc """
Returns the definitions by which the lists of two entries differ, grouped by kind. Of a changed
definition both versions are returned.
""".
-spec changed(entries(), entries()) ->
    #{erlmcp_definition:kind() => [erlmcp_definition:definition(), ...]}.
changed(#{layers := Before}, #{layers := After}) ->
    Changed = [{Kind, Definition}
               || {Kind, Key} <- changed_keys(Before, After),
                  Definition <- differing(entry(Kind, Key, Before), entry(Kind, Key, After))],
    maps:groups_from_list(fun({Kind, _}) -> Kind end, fun({_, Definition}) -> Definition end,
                          Changed).

%% Returns the keys whose definitions may differ: those in layers that only one of the entries has.
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
differing({Position, Was, _}, {Position, Is, _}) ->
    case shown(Was) =:= shown(Is) of
        true -> [];
        false -> [Was, Is]
    end;
differing(Before, After) ->
    [Definition || {_, Definition, _} <- [Before, After]].

-doc """
Returns the changes since `next/1` was `Position`. First come the removed definitions, as `gone`;
some of them may have been removed before. Then come the added ones, in the order of their
positions. A replaced definition is only among the added ones, so the caller has to remove the one
that had its key. Returns `all` if the changes are not known, such as after layers were merged.
""".
-spec since(Position :: position(), entries()) ->
    {ok, [{erlmcp_definition:kind(), Key :: binary(), erlmcp_definition:definition() | gone}]}
    | all.
since(Next, #{layers := Layers}) ->
    %% A layer with an earlier id has not changed since then, and neither have those below it.
    case lists:splitwith(fun(#{id := Id}) -> Id >= Next end, Layers) of
        {_, []} ->
            all;
        {Since, _} ->
            Found = [{Kind, Key, entry(Kind, Key, Layers)} || {Kind, Key} <- keys(Since)],
            Came = lists:keysort(1, [{Position, Kind, Key, Definition}
                                     || {Kind, Key, {Position, Definition, _}} <- Found,
                                        Position >= Next]),
            {ok, [{Kind, Key, gone} || {Kind, Key, error} <- Found]
                     ++ [{Kind, Key, Definition} || {_, Kind, Key, Definition} <- Came]}
    end.

%% Returns everything about a definition that a change of its list shows: its JSON, and its
%% audience.
shown(#{wire := Wire} = Definition) ->
    {Wire, erlmcp_definition:audience(Definition)}.

-doc """
Splits off the lower layers, which change seldom, each with its id. The entries keep the upper
layers, and cannot be read until `join/2` has put them together with the lower ones again.
""".
-spec split(entries()) -> {entries(), [{id(), layer()}]}.
split(#{layers := Layers} = Entries) ->
    {Few, Many} = lists:splitwith(fun(#{size := Size}) -> Size =< ?FEW end, Layers),
    {Entries#{layers := Few}, [{Id, Layer} || #{id := Id} = Layer <- Many]}.

-doc "Puts entries together with the layers that `split/1` split off, in the order of `split/1`.".
-spec join(entries(), [layer()]) -> entries().
join(#{layers := Few} = Entries, Many) ->
    Entries#{layers := Few ++ Many}.
