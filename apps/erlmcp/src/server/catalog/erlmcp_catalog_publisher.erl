-module(erlmcp_catalog_publisher).
-moduledoc """
The only process that changes a server's catalog (`m:erlmcp_published_catalog`), and notifies
clients of the changes. It also follows mounted servers: a mounted definition is left out while
another one has its name. If the keys of cursors are those of a cluster, it reads them every ten
seconds.

Internal.
""".

%% A change, of which clients are notified at once, begins a series of pauses of 100 milliseconds.
%% In each pause clients are notified of the first 32 changes at once, and of later ones together at
%% the end of the pause. The catalog is settled after a pause without changes, or after 100 pauses
%% at the latest. Until then, replaced layers of a large catalog stay in memory.
%%
%% The publisher of a mounted server tells the publishers of those that mount it of each change, and
%% a monitor shows the end of that server. A message shows that the server or its publisher runs
%% again (`erlmcp_registry:watch/1`).

-behaviour(gen_server).

-export([start_link/1, change/2, replace/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

%% Milliseconds.
-define(PACE, 100).
-define(AT_ONCE, 32).
-define(PACES, 100).
%% Between two looks at the keys of the cluster, which change each day.
-define(KEYS, 10_000).

-doc """
Starts the publisher of an instance, whose first catalog is published already
(`erlmcp_published_catalog:first/2`).
""".
-spec start_link(erlmcp_instance:instance()) -> gen_server:start_ret().
start_link(Instance) ->
    gen_server:start_link(?MODULE, Instance, []).

-doc """
Adds or removes a definition, with the errors of `erlmcp:add/3` and `erlmcp:remove/3`. When this
function returns, lists and calls of the server see the change. So do those of servers that mount
this one. Only a mounting server whose publisher takes more than five seconds may follow later.
Exits if `Publisher` does not run.
""".
-spec change(pid(), {add, erlmcp_definition:kind(), erlmcp_definition:source()}
                    | {remove, erlmcp_definition:kind(), binary()}) -> ok | {error, term()}.
change(Publisher, Change) ->
    maybe
        %% A replacement of thousands of definitions may come before.
        {ok, Mounting} ?= gen_server:call(Publisher, Change, infinity),
        lists:foreach(fun await/1, Mounting)
    end.

-doc """
Replaces the server's own definitions of the kinds in `Sources`, with the errors of
`erlmcp:replace/2`. Returns how many definitions were added, were removed, and have changed for
clients. Lists and calls see the replacement when this function returns, as with `change/2`. Exits
if `Publisher` does not run.
""".
-spec replace(pid(), Sources :: #{erlmcp_definition:kind() => [erlmcp_definition:source()]}) ->
    {ok, #{added | removed | changed := non_neg_integer()}} | {error, term()}.
replace(Publisher, Sources) ->
    maybe
        %% Each definition is compiled, and there may be thousands.
        {ok, Mounting, Counts} ?= gen_server:call(Publisher, {replace, Sources}, infinity),
        ok = lists:foreach(fun await/1, Mounting),
        {ok, Counts}
    end.

%% The publishers of the mounting servers have the change already. Waits until each has published
%% it.
await({Prefix, Publisher, _}) ->
    try
        {ok, Mounting} = gen_server:call(Publisher, {refresh, Prefix}),
        lists:foreach(fun await/1, Mounting)
    catch
        exit:{_, {gen_server, call, _}} -> ok
    end.

-doc false.
init(#{mounts := Mounts, key := Key} = Instance) ->
    ok = erlmcp_label:set([?MODULE], Key),
    process_flag(trap_exit, true),
    %% After a crash the last published catalog stands, with the definitions added since the start.
    Pace = case erlmcp_published_catalog:is_changing(Instance)
                orelse erlmcp_published_catalog:is_waiting(Instance) of
        %% Clients may not have been notified of some changes.
        true -> (paced(?PACES))#{at_once := 0};
        false -> quiet
    end,
    State = lists:foldl(fun(#{prefix := Prefix, server := Server}, State) ->
                            attach(Prefix, Server, State)
                        end, #{instance => Instance, mounted => #{}, pace => Pace}, Mounts),
    ok = follow_keys(Instance),
    ok = erlmcp_registry:ready(Instance),
    {ok, State}.

-doc false.
handle_call({refresh, Prefix}, _, #{instance := Instance} = State) ->
    {reply, {ok, erlmcp_mounts:mounting(Instance)}, refresh(Prefix, State)};
handle_call({add, Kind, Given}, _, #{instance := Instance} = State) ->
    Source = erlmcp_visibility:guarded(Kind, Given, maps:get(key, Instance)),
    changed(erlmcp_catalog:add(Kind, Source, erlmcp_metaschemas:compiled(),
                               erlmcp_published_catalog:catalog(Instance)), State);
handle_call({remove, Kind, Key}, _, #{instance := Instance} = State) ->
    Changed = changed(erlmcp_catalog:remove(Kind, Key, erlmcp_published_catalog:catalog(Instance)),
                      State),
    ok = erlmcp_result_cache:forget(Kind, Key, Instance),
    Changed;
handle_call({replace, Given}, _, #{instance := #{key := Key} = Instance} = State) ->
    Sources = #{Kind => [erlmcp_visibility:guarded(Kind, Source, Key) || Source <- List]
                || Kind := List <- Given},
    Before = erlmcp_published_catalog:catalog(Instance),
    case erlmcp_catalog:replace(Sources, erlmcp_metaschemas:compiled(), Before) of
        {ok, Compiled} ->
            Catalog = with_freed_rows(Before, Compiled, Instance),
            Next = publish(Catalog, State),
            Own = fun(Of) -> erlmcp_catalog:own(maps:keys(Sources), Of) end,
            Replaced = Own(Before),
            _ = [ok = erlmcp_result_cache:forget(Kind, Name, Instance)
                 || {Kind, Name} := #{cache := _} <- Replaced],
            {reply, {ok, erlmcp_mounts:mounting(Instance), counts(Replaced, Own(Catalog))}, Next};
        {error, _} = Error ->
            ok = free_unpublished(Before, Instance),
            {reply, Error, State}
    end.

counts(Before, After) ->
    Changed = [Name || Name := Definition <- After, #{Name := Other} <- [Before],
                       shown(Definition) =/= shown(Other)],
    #{added => map_size(maps:without(maps:keys(Before), After)),
      removed => map_size(maps:without(maps:keys(After), Before)), changed => length(Changed)}.

shown(#{wire := Wire} = Definition) ->
    {Wire, erlmcp_definition:audience(Definition)}.

%% Refused definitions may have taken rows of the meter.
free_unpublished(Catalog, #{meter := Meter}) ->
    Taken = maps:from_list([{Row, Key} || {Key, Row} <- erlmcp_catalog:values(row, Catalog)]),
    lists:foreach(fun({_, _, Row}) ->
        is_map_key(Row, Taken) orelse erlmcp_meter:free(Row, Meter)
    end, erlmcp_meter:used_rows(Meter)).

changed({ok, Catalog}, #{instance := Instance} = State) ->
    Next = publish(Catalog, State),
    {reply, {ok, erlmcp_mounts:mounting(Instance)}, Next};
changed({error, _} = Error, #{instance := Instance} = State) ->
    ok = free_unpublished(erlmcp_published_catalog:catalog(Instance), Instance),
    {reply, Error, State}.

publish(Given, #{instance := Instance, pace := Pace} = Before) ->
    {Differing, Catalog, State} =
        with_free(erlmcp_published_catalog:catalog(Instance), Given, Before),
    %% Before the catalog is published, so that the change is notified in any case.
    ok = erlmcp_published_catalog:wait(topics(Differing), Instance),
    Next = case Pace of
        quiet ->
            ok = erlmcp_published_catalog:put(settled, Catalog, Instance),
            ok = tell(Instance),
            paced(?PACES);
        #{at_once := 0} ->
            ok = erlmcp_published_catalog:put(changing, Catalog, Instance),
            Pace;
        #{at_once := Changes} ->
            ok = erlmcp_published_catalog:put(changing, Catalog, Instance),
            ok = tell(Instance),
            Pace#{at_once := Changes - 1}
    end,
    ok = free_rows(Differing, Catalog, Instance),
    lists:foreach(fun({Prefix, Publisher, _}) -> gen_server:cast(Publisher, {refresh, Prefix}) end,
                  erlmcp_mounts:mounting(Instance)),
    State#{pace := Next}.

%% New definitions that have found no row of their own may take those of the replaced ones.
with_freed_rows(Before, Catalog, #{meter := Meter} = Instance) ->
    ok = free_rows(erlmcp_catalog:changed(Before, Catalog), Catalog, Instance),
    erlmcp_catalog:with_rows(fun(Kind, Key, Row) ->
        case erlmcp_meter:has_own_row(Row) of
            true -> Row;
            false -> erlmcp_meter:definition_row(Kind, Key, Meter)
        end
    end, Catalog).

%% Other definitions may take the rows of the removed ones in the meter.
free_rows(Differing, Catalog, #{meter := Meter}) ->
    _ = [ok = erlmcp_meter:free(Kind, Key, Row, Meter)
         || Kind := Definitions <- Differing, #{key := Key, row := Row} <- Definitions,
            not has_row(Row, erlmcp_catalog:definition(Kind, Key, Catalog))],
    ok.

has_row(Row, {ok, #{row := Row}}) -> true;
has_row(_, _) -> false.

%% A pause begins. `Pauses` is their number, with this one, until the catalog is settled.
paced(Pauses) ->
    _ = erlang:send_after(?PACE, self(), pace),
    #{at_once => ?AT_ONCE, pauses => Pauses}.

%% The topics of changed definitions, each with the principals of these.
topics(Changed) ->
    Whose = [{topic(Kind), whose(Kind, Definition)}
             || Kind := Definitions <- Changed, Definition <- Definitions],
    #{Topic => maps:from_keys(Of, [])
      || Topic := Of <- maps:groups_from_list(fun({Topic, _}) -> Topic end,
                                              fun({_, Of}) -> Of end, Whose)}.

whose(Kind, #{key := Key} = Definition) ->
    case erlmcp_definition:audience(Definition) of
        all -> all;
        Visible -> {Visible, Kind, Key}
    end.

tell(Instance) ->
    erlmcp_published_catalog:tell_waiting(fun(Changed) -> tell(Changed, Instance) end, Instance).

tell(Changed, Instance) ->
    maps:foreach(fun(Topic, Whose) ->
                     ok = erlmcp_changes:list_changed(Topic, maps:keys(Whose), Instance)
                 end, Changed).

topic(resource_template) -> resource;
topic(Kind) -> Kind.

%% Mounts. `since` has the version of the mounted catalog that is compiled into this server's, and
%% the definitions that are left out; `waits` has the taken names of those.

%% Adds the mounted definitions that waited for a name which the change made free. Returns the
%% definitions in which both catalogs differ, and the new catalog.
with_free(Before, Catalog, #{mounted := Mounted} = State) ->
    Differing = erlmcp_catalog:changed(Before, Catalog),
    case [Prefix || Prefix := #{waits := Waits} <- Mounted, is_freed(Waits, Differing, Catalog)] of
        [] ->
            {Differing, Catalog, State};
        [Prefix | _] ->
            {NextCatalog, Next} = case mounted_catalog(Prefix, State) of
                {ok, Nested} -> compiled(Prefix, Nested, Catalog, State);
                error -> {Catalog, forgotten(Prefix, State)}
            end,
            with_free(Before, NextCatalog, Next)
    end.

is_freed(Waits, _, _) when map_size(Waits) =:= 0 ->
    false;
is_freed(Waits, Differing, Catalog) ->
    lists:any(fun({Kind, Key}) ->
                  is_map_key({Kind, Key}, Waits)
                      andalso erlmcp_catalog:definition(Kind, Key, Catalog) =:= error
              end, [{Kind, Key} || Kind := Definitions <- Differing, #{key := Key} <- Definitions]).

attach(Prefix, Server, #{instance := Instance, mounted := Mounted} = State) ->
    Mount = case erlmcp_registry:watch(Server) of
        {ok, Pid, Nested} ->
            ok = erlmcp_mounts:put_mounting(Prefix, Instance, Nested),
            #{server => Server, nested => Nested, monitor => monitor(process, Pid)};
        error ->
            #{server => Server}
    end,
    refresh(Prefix, State#{mounted := Mounted#{Prefix => Mount}}).

refresh(Prefix, #{instance := Instance} = State) ->
    maybe
        {ok, Nested} ?= mounted_catalog(Prefix, State),
        {Seen, _} = since(Prefix, State),
        true ?= erlmcp_catalog:version(Nested) =/= Seen orelse seen,
        {Catalog, Next} =
            compiled(Prefix, Nested, erlmcp_published_catalog:catalog(Instance), State),
        publish(Catalog, Next)
    else
        seen ->
            State;
        error ->
            publish(erlmcp_catalog:unmount(Prefix, erlmcp_published_catalog:catalog(Instance)),
                    forgotten(Prefix, State))
    end.

mounted_catalog(Prefix, #{mounted := Mounted}) ->
    case Mounted of
        #{Prefix := #{nested := #{key := Key}}} -> erlmcp_published_catalog:find(Key);
        #{} -> error
    end.

since(Prefix, #{mounted := Mounted}) ->
    maps:get(since, map_get(Prefix, Mounted), {0, []}).

forgotten(Prefix, #{mounted := Mounted} = State) ->
    Forget = fun(Mount) -> maps:without([since, waits], Mount) end,
    State#{mounted := maps:update_with(Prefix, Forget, Mounted)}.

compiled(Prefix, Nested, Catalog, #{instance := Instance, mounted := Mounted} = State) ->
    #{Prefix := #{nested := #{key := Key}} = Mount} = Mounted,
    {_, LeftOutBefore} = Since = since(Prefix, State),
    {Next, LeftOut} = erlmcp_catalog:mount(Prefix, Since, Nested, erlmcp_mounts:offers(Key),
                                           Catalog),
    _ = [erlmcp_log:report(warning, #{what => not_mounted, prefix => Prefix, reason => Reason},
                           map_get(key, Instance))
         || Reason <- LeftOut -- LeftOutBefore],
    {Next, State#{mounted := Mounted#{Prefix := Mount#{
        since => {erlmcp_catalog:version(Nested), LeftOut},
        waits => #{{Kind, Name} => [] || {duplicate, Kind, Name} <- LeftOut}}}}}.

detach(Prefix, #{nested := Nested, monitor := Monitor} = Mount, Instance) ->
    true = demonitor(Monitor, [flush]),
    ok = erlmcp_mounts:delete_mounting(Prefix, Instance, Nested),
    maps:with([server], Mount);
detach(_, Mount, _) ->
    Mount.

-doc false.
handle_cast({refresh, Prefix}, State) ->
    {noreply, refresh(Prefix, State)}.

-doc false.
handle_info({'DOWN', Monitor, process, _, _},
            #{instance := Instance, mounted := Mounted} = State) ->
    Ended = [Prefix || Prefix := #{monitor := M} <- Mounted, M =:= Monitor],
    {noreply, lists:foldl(
        fun(Prefix, #{mounted := Mounts} = Next) ->
            Mount = detach(Prefix, map_get(Prefix, Mounts), Instance),
            refresh(Prefix, Next#{mounted := Mounts#{Prefix := Mount}})
        end, State, Ended)};
handle_info(pace, #{instance := Instance, pace := #{at_once := ?AT_ONCE}} = State) ->
    ok = settle(Instance),
    {noreply, State#{pace := quiet}, hibernate};
handle_info(pace, #{instance := Instance, pace := #{pauses := Pauses}} = State) ->
    ok = tell(Instance),
    case Pauses of
        1 ->
            ok = settle(Instance),
            {noreply, State#{pace := paced(?PACES)}, hibernate};
        _ ->
            {noreply, State#{pace := paced(Pauses - 1)}}
    end;
handle_info(keys, #{instance := Instance, pace := Pace} = State) ->
    ok = follow_keys(Instance),
    case Pace of
        quiet -> {noreply, State, hibernate};
        #{} -> {noreply, State}
    end;
handle_info({erlmcp_ready, Server}, #{instance := Instance, mounted := Mounted} = State) ->
    Ready = [{Prefix, Mount} || Prefix := #{server := S} = Mount <- Mounted, S =:= Server],
    {noreply, lists:foldl(
        fun({Prefix, Mount}, Next) ->
            _ = detach(Prefix, Mount, Instance),
            attach(Prefix, Server, Next)
        end, State, Ready)};
handle_info(_, State) ->
    {noreply, State}.

follow_keys(#{shares_keys := false}) ->
    ok;
follow_keys(#{cluster := {Module, State}} = Instance) ->
    _ = erlang:send_after(?KEYS, self(), keys),
    Catalog = erlmcp_published_catalog:catalog(Instance),
    Before = erlmcp_catalog:keys(Catalog),
    case Module:keys(state, State) of
        {ok, Keys} when Keys =/= Before ->
            Pace = case erlmcp_published_catalog:is_changing(Instance) of
                true -> changing;
                false -> settled
            end,
            erlmcp_published_catalog:put(Pace, erlmcp_catalog:with_keys(Keys, Catalog), Instance);
        _ ->
            ok
    end.

settle(Instance) ->
    case erlmcp_published_catalog:is_changing(Instance) of
        true -> erlmcp_published_catalog:put(settled, erlmcp_published_catalog:catalog(Instance),
                                             Instance);
        false -> ok
    end.

-doc false.
terminate(Reason, #{instance := Instance, mounted := Mounted}) ->
    ok = tell(Instance),
    case Reason of
        {Error, Stack} when Error =/= shutdown, is_list(Stack) -> ok;
        _ -> lists:foreach(fun({Prefix, Mount}) -> detach(Prefix, Mount, Instance) end,
                           maps:to_list(Mounted))
    end.
