-module(erlmcp_published_catalog).
-moduledoc """
The catalog of a server as requests read it, without a message to a process. While the server runs,
only `m:erlmcp_catalog_publisher` writes.

Internal.
""".

%% A small catalog is one persistent term. The layers of a large one (`erlmcp_catalog_entries`) are
%% terms of their own, and stay as they are while the layers above them change.
%%
%% Overwriting a persistent term makes the runtime search every process of the node for the old
%% value. So while a catalog changes, its uppermost layers, which are small, are in a table, and
%% readers copy them. Erasing a term makes the caller wait for all schedulers. So the layers at one
%% level have two names, in turn, and a layer of the published catalog is never overwritten. An
%% unused name is erased when the catalog is settled.

-export([first/2, catalog/1, find/1, put/3, is_changing/1, erase/1]).
-export([wait/2, is_waiting/1, tell_waiting/2]).

%% More levels than there can be: each is several times as large as the one above it.
-define(LEVELS, 16).

-doc "Publishes the catalog of the server with the key `Key`, before the server starts.".
-spec first(erlmcp_catalog:catalog(), Key :: reference()) -> ok.
first(Catalog, Key) ->
    persistent_term:put({?MODULE, Key}, written(settled, Catalog, Key)).

-doc "Returns the catalog of a server. Raises `badarg` if the server has ended.".
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

-doc "Returns the catalog of the server with the key `Key`, or `error` if the server has ended.".
-spec find(Key :: reference()) -> {ok, erlmcp_catalog:catalog()} | error.
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
        %% Another catalog was published before a layer of this one was erased.
        false -> find(Key)
    end.

form(Key) ->
    case persistent_term:get({?MODULE, Key}, none) of
        {changing, Table} ->
            try ets:lookup(Table, Key) of
                [{_, Top, Names}] -> {Top, Names};
                [] -> form(Key)
            catch
                %% The server has just ended.
                error:badarg -> none
            end;
        Form ->
            Form
    end.

-doc """
Publishes a catalog. `changing` makes this write cheaper, for a catalog that will soon change again.
`settled` makes reads cheaper, for a catalog that will stay as it is for a while. Raises `badarg` if
the server has ended.
""".
-spec put(settled | changing, erlmcp_catalog:catalog(), erlmcp_instance:instance()) -> ok.
put(Pace, Catalog, #{key := Key, changing := Table}) ->
    try
        publish(Pace, written(Pace, Catalog, Key), Key, Table)
    after
        %% If the server was killed, its terms may have been erased before these were written. Its
        %% tables are deleted before that.
        ets:info(Table, id) =/= undefined orelse ?MODULE:erase(Key)
    end.

written(settled, Catalog, Key) ->
    case erlmcp_catalog:whole(Catalog) of
        {ok, Whole} -> Whole;
        large -> written(changing, Catalog, Key)
    end;
written(changing, Catalog, Key) ->
    {Top, Layers} = erlmcp_catalog:split(Catalog),
    %% The layer at the bottom has level 1.
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
    %% Costs nothing if the term has this value already.
    persistent_term:put({?MODULE, Key}, {changing, Table}).

names({_, Names}) -> [Name || {Name, _} <- Names];
names(_) -> [].

-doc "Returns `true` if the catalog was last published as `changing`.".
-spec is_changing(erlmcp_instance:instance()) -> boolean().
is_changing(#{key := Key, changing := Table}) ->
    persistent_term:get({?MODULE, Key}, none) =:= {changing, Table}.

-doc """
Stores changes of which clients are not notified yet, and keeps those that are stored already. A
change is a topic with the principals for which the topic has changed. If the publisher restarts, it
finds the stored changes. Raises `badarg` if the server has ended.
""".
-spec wait(Changed, erlmcp_instance:instance()) -> ok when
    Changed :: #{Topic :: atom() => #{erlmcp_changes:whose() => []}}.
wait(Changed, _) when map_size(Changed) =:= 0 ->
    ok;
wait(Changed, #{changing := Table}) ->
    Waiting = ets:lookup_element(Table, waiting, 2, #{}),
    Both = maps:merge_with(fun(_, One, Other) -> maps:merge(One, Other) end, Waiting, Changed),
    true = ets:insert(Table, {waiting, Both}),
    ok.

-doc """
Returns `true` if clients are still to be notified of a change. Raises `badarg` if the server has
ended.
""".
-spec is_waiting(erlmcp_instance:instance()) -> boolean().
is_waiting(#{changing := Table}) ->
    ets:member(Table, waiting).

-doc """
Calls `Tell` with the changes of which clients are not notified yet, if there are any, and deletes
these changes. Does nothing if the server has ended.
""".
-spec tell_waiting(Tell :: fun((Changed :: map()) -> ok), erlmcp_instance:instance()) -> ok.
tell_waiting(Tell, #{changing := Table}) ->
    try ets:lookup(Table, waiting) of
        [{_, Changed}] ->
            ok = Tell(Changed),
            true = ets:delete(Table, waiting),
            ok;
        [] ->
            ok
    catch
        %% The server was killed, and its subscribers with it.
        error:badarg -> ok
    end.

-doc "Erases the catalog of the server with the key `Key`, which ends or could not start.".
-spec erase(Key :: reference()) -> ok.
erase(Key) ->
    _ = persistent_term:erase({?MODULE, Key}),
    erase_but([], Key).

erase_but(Kept, Key) ->
    Names = [{Level, Turn} || Level <- lists:seq(1, ?LEVELS), Turn <- [0, 1]],
    lists:foreach(fun(Name) -> persistent_term:erase({?MODULE, Key, Name}) end, Names -- Kept).
