-module(erlmcp_published_catalog).
-moduledoc """
The catalog of a server where it is read: a persistent term, so that nobody copies it and nobody
waits. A small catalog is one term. The layers of a large one (`m:erlmcp_catalog_entries`) are terms
of their own, and stay as they are while the layers above them change.

The runtime looks in every process of the node for a persistent term that is written anew, before
the old one is gone. So a catalog that changes again and again has its uppermost layers, which are
small, in a table meanwhile: readers copy them. To take a term away makes the process that does so
wait for all schedulers. So the layers at one level have two names, in turn, and what is published
is never overwritten. A name that is not used goes when the catalog is settled.
`m:erlmcp_catalog_publisher` alone writes.

Internal.
""".

-export([first/2, catalog/1, find/1, put/3, is_changing/1, erase/1]).
-export([wait/2, is_waiting/1, tell_waiting/2]).

%% More levels than there can be: each is several times as large as the one above it.
-define(LEVELS, 16).

-doc "Publishes what a server begins with, before it starts.".
-spec first(erlmcp_catalog:catalog(), Server :: reference()) -> ok.
first(Catalog, Key) ->
    persistent_term:put({?MODULE, Key}, written(settled, Catalog, Key)).

-doc "The catalog as it is now; `badarg` once its server has ended, as its tables are.".
-spec catalog(erlmcp_instance:instance()) -> erlmcp_catalog:catalog().
catalog(#{key := Key}) ->
    case persistent_term:get({?MODULE, Key}) of
        {_, _} ->
            case find(Key) of
                {ok, Catalog} -> Catalog;
                error -> error(badarg)
            end;
        Small ->
            Small
    end.

-doc "Returns the catalog of the server with this key, if it runs.".
-spec find(Server :: reference()) -> {ok, erlmcp_catalog:catalog()} | error.
find(Key) ->
    case form(Key) of
        none -> error;
        {Top, Names} -> joined(Top, Names, Key);
        Catalog -> {ok, Catalog}
    end.

joined(Top, Names, Key) ->
    Layers = [Layer || {Name, Id} <- Names,
                       {Is, Layer} <- [persistent_term:get({?MODULE, Key, Name}, {none, none})],
                       Is =:= Id],
    case length(Layers) =:= length(Names) of
        true -> {ok, erlmcp_catalog:join(Top, Layers)};
        %% There was another catalog before they went.
        false -> find(Key)
    end.

form(Key) ->
    case persistent_term:get({?MODULE, Key}, none) of
        {changing, Table} ->
            try ets:lookup(Table, Key) of
                [{_, Top, Names}] -> {Top, Names};
                [] -> form(Key)
            catch
                %% It has just ended.
                error:badarg -> none
            end;
        Form ->
            Form
    end.

-doc """
Publishes a catalog: to stay (`settled`), or as one that will soon be followed by another
(`changing`).
""".
-spec put(settled | changing, erlmcp_catalog:catalog(), erlmcp_instance:instance()) -> ok.
put(Pace, Catalog, #{key := Key, changing := Table}) ->
    try
        publish(Pace, written(Pace, Catalog, Key), Key, Table)
    after
        %% Whoever takes away the terms of a server that was killed may have done so before these
        %% were written. Its tables go first.
        ets:info(Table, id) =/= undefined orelse ?MODULE:erase(Key)
    end.

written(settled, Catalog, Key) ->
    case erlmcp_catalog:whole(Catalog) of
        {ok, Whole} -> Whole;
        large -> written(changing, Catalog, Key)
    end;
written(changing, Catalog, Key) ->
    {Top, Layers} = erlmcp_catalog:split(Catalog),
    %% That at the bottom is the first.
    Leveled = lists:reverse(lists:enumerate(lists:reverse(Layers))),
    Before = case form(Key) of
        {_, Names} -> Names;
        _ -> []
    end,
    {Top, [{written(Level, Id, Layer, Before, Key), Id} || {Level, {Id, Layer}} <- Leveled]}.

written(Level, Id, Layer, Names, Key) ->
    case [Entry || {{At, _}, _} = Entry <- Names, At =:= Level] of
        [{Name, Id}] ->
            Name;
        Other ->
            Name = {Level, other([Turn || {{_, Turn}, _} <- Other])},
            ok = persistent_term:put({?MODULE, Key, Name}, {Id, Layer}),
            Name
    end.

other([0]) -> 1;
other(_) -> 0.

publish(settled, Form, Key, Table) ->
    ok = persistent_term:put({?MODULE, Key}, Form),
    true = ets:delete(Table, Key),
    erase_but(names(Form), Key);
publish(changing, {Top, Names}, Key, Table) ->
    true = ets:insert(Table, {Key, Top, Names}),
    %% Of no cost where it is that already.
    persistent_term:put({?MODULE, Key}, {changing, Table}).

names({_, Names}) -> [Name || {Name, _} <- Names];
names(_) -> [].

-doc "Returns `true` if what was published last is to be settled.".
-spec is_changing(erlmcp_instance:instance()) -> boolean().
is_changing(#{key := Key, changing := Table}) ->
    persistent_term:get({?MODULE, Key}, none) =:= {changing, Table}.

-doc """
Keeps what is to be told, each topic with its audiences, beside what waits already: also for the
publisher that follows one which was killed.
""".
-spec wait(Changed, erlmcp_instance:instance()) -> ok when
    Changed :: #{Topic :: atom() => #{erlmcp_definition:audience() => []}}.
wait(Changed, _) when map_size(Changed) =:= 0 ->
    ok;
wait(Changed, #{changing := Table}) ->
    Waiting = ets:lookup_element(Table, waiting, 2, #{}),
    Both = maps:merge_with(fun(_, One, Other) -> maps:merge(One, Other) end, Waiting, Changed),
    true = ets:insert(Table, {waiting, Both}),
    ok.

-doc "Returns `true` if a change waits to be told.".
-spec is_waiting(erlmcp_instance:instance()) -> boolean().
is_waiting(#{changing := Table}) ->
    ets:member(Table, waiting).

-doc "Tells the changes that wait, by a fun. They wait no more then.".
-spec tell_waiting(fun((Changed :: map()) -> ok), erlmcp_instance:instance()) -> ok.
tell_waiting(Tell, #{changing := Table}) ->
    try ets:lookup(Table, waiting) of
        [{_, Changed}] ->
            ok = Tell(Changed),
            true = ets:delete(Table, waiting),
            ok;
        [] ->
            ok
    catch
        %% The server was killed, and nobody is there to be told.
        error:badarg -> ok
    end.

-doc "Takes away the catalog of a server that ends.".
-spec erase(Server :: reference()) -> ok.
erase(Key) ->
    _ = persistent_term:erase({?MODULE, Key}),
    erase_but([], Key).

erase_but(Kept, Key) ->
    Names = [{Level, Turn} || Level <- lists:seq(1, ?LEVELS), Turn <- [0, 1]],
    lists:foreach(fun(Name) -> persistent_term:erase({?MODULE, Key, Name}) end, Names -- Kept).
