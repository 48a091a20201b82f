-module(erlmcp_publisher).
-moduledoc """
The process that holds a server's catalog and is alone in changing it. Readers take the published
value (`catalog/1`), which is a persistent term: no copy, no lock, no message. A change is published
whole, and the open sessions are told.

What a server mounts, its publisher keeps as it is there: the publisher of the mounted server says
when it changes, a monitor when it ends, and the registry when it runs again.
""".

-behaviour(gen_server).

-export([start_link/2, catalog/1, find/1, change/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

-doc """
Starts the publisher of an instance with the catalog that it begins with, which has keys in it and
so comes in a fun, that no log shows.
""".
-spec start_link(erlmcp_instance:instance(), fun(() -> erlmcp_catalog:catalog())) ->
    gen_server:start_ret().
start_link(Instance, First) ->
    gen_server:start_link(?MODULE, {Instance, First}, []).

-doc "The catalog as it is now.".
-spec catalog(erlmcp_instance:instance()) -> erlmcp_catalog:catalog().
catalog(#{key := Key}) ->
    persistent_term:get({?MODULE, Key}).

-doc "The same by the key of an instance, if its server runs.".
-spec find(Server :: reference()) -> {ok, erlmcp_catalog:catalog()} | error.
find(Key) ->
    case persistent_term:get({?MODULE, Key}, undefined) of
        undefined -> error;
        Catalog -> {ok, Catalog}
    end.

-doc """
Adds or removes a definition. Lists, calls and sessions see it at once, those of the servers that
mount this one too.
""".
-spec change(pid(), {add, erlmcp_definition:kind(), erlmcp_definition:source()}
                    | {remove, erlmcp_definition:kind(), binary()}) -> ok | {error, term()}.
change(Publisher, Change) ->
    maybe
        {ok, Mounting} ?= gen_server:call(Publisher, Change),
        lists:foreach(fun await/1, Mounting)
    end.

%% They have been told already; this waits until they have heard it.
await({Prefix, Publisher, _}) ->
    try
        {ok, Mounting} = gen_server:call(Publisher, {refresh, Prefix}),
        lists:foreach(fun await/1, Mounting)
    catch
        exit:{_, {gen_server, call, _}} -> ok
    end.

-doc false.
init({#{key := Key, mounts := Mounts} = Instance, First}) ->
    process_flag(trap_exit, true),
    %% After a crash the last published catalog stands, with what was added since the start.
    case persistent_term:get({?MODULE, Key}, undefined) of
        undefined -> persistent_term:put({?MODULE, Key}, First());
        _ -> ok
    end,
    State = lists:foldl(fun(#{prefix := Prefix, server := Server}, State) ->
                            attach(Prefix, Server, State)
                        end, #{instance => Instance, mounted => #{}}, Mounts),
    ok = erlmcp_registry:ready(Instance),
    {ok, State}.

-doc false.
handle_call({refresh, Prefix}, _, #{instance := Instance} = State) ->
    {reply, {ok, erlmcp_instance:mounting(Instance)}, refresh(Prefix, State)};
handle_call({add, Kind, Given}, _, #{instance := Instance} = State) ->
    Source = erlmcp_visibility:guarded(Kind, Given, maps:get(key, Instance)),
    Added = erlmcp_catalog:add(Kind, Source, erlmcp_metaschemas:compiled(), catalog(Instance)),
    {reply, changed(Added, Instance), State};
handle_call({remove, Kind, Key}, _, #{instance := Instance} = State) ->
    Reply = changed(erlmcp_catalog:remove(Kind, Key, catalog(Instance)), Instance),
    ok = erlmcp_cache:forget(Kind, Key, Instance),
    {reply, Reply, State}.

changed({ok, Catalog}, Instance) ->
    ok = publish(Catalog, Instance),
    {ok, erlmcp_instance:mounting(Instance)};
changed({error, _} = Error, _) ->
    Error.

publish(Catalog, #{key := Key} = Instance) ->
    Changed = erlmcp_catalog:changed(catalog(Instance), Catalog),
    persistent_term:put({?MODULE, Key}, Catalog),
    Subscriptions = erlmcp_instance:subscriptions(Instance),
    Topics = maps:groups_from_list(fun({Kind, _}) -> topic(Kind) end,
                                   fun({_, Definitions}) -> Definitions end, maps:to_list(Changed)),
    maps:foreach(fun(Topic, Definitions) ->
                     Audience = audience(lists:append(Definitions)),
                     ok = erlmcp_instance:missed(Topic, Audience, Instance),
                     ok = erlmcp_subscriptions:publish(Topic, Audience, Subscriptions)
                 end, Topics),
    lists:foreach(fun({Prefix, Publisher, _}) -> gen_server:cast(Publisher, {refresh, Prefix}) end,
                  erlmcp_instance:mounting(Instance)).

%% Those who may not see a definition do not hear that it comes or goes.
audience(Definitions) ->
    Audiences = [erlmcp_definition:audience(Definition) || Definition <- Definitions],
    case lists:member(all, Audiences) of
        true ->
            all;
        false ->
            fun(Principal) ->
                lists:any(fun(Visible) -> erlmcp_definition:sees(Principal, Visible) end, Audiences)
            end
    end.

topic(resource_template) -> resource;
topic(Kind) -> Kind.

%% Mounts. `seen` is the version of the mounted catalog that was compiled into ours.

attach(Prefix, Server, #{instance := Instance, mounted := Mounted} = State) ->
    Mount = case erlmcp_registry:watch(Server) of
        {ok, Pid, Nested} ->
            ok = erlmcp_instance:put_mounting(Prefix, Instance, Nested),
            #{server => Server, nested => Nested, monitor => monitor(process, Pid)};
        error ->
            #{server => Server}
    end,
    refresh(Prefix, State#{mounted := Mounted#{Prefix => Mount}}).

refresh(Prefix, #{instance := Instance, mounted := Mounted} = State) ->
    maybe
        #{Prefix := #{nested := #{key := Key}} = Mount} ?= Mounted,
        {ok, Nested} ?= find(Key),
        Version = erlmcp_catalog:version(Nested),
        true ?= maps:get(seen, Mount, none) =/= Version orelse seen,
        {Catalog, LeftOut} = erlmcp_catalog:mount(Prefix, Nested, erlmcp_mounts:offers(Key),
                                                  catalog(Instance)),
        _ = [erlmcp_log:report(warning, #{what => not_mounted, prefix => Prefix,
                                          reason => Reason}, map_get(key, Instance))
             || Reason <- LeftOut],
        ok = publish(Catalog, Instance),
        State#{mounted := Mounted#{Prefix := Mount#{seen => Version}}}
    else
        seen ->
            State;
        _ ->
            ok = publish(erlmcp_catalog:unmount(Prefix, catalog(Instance)), Instance),
            State
    end.

detach(Prefix, #{nested := Nested, monitor := Monitor} = Mount, Instance) ->
    true = demonitor(Monitor, [flush]),
    ok = erlmcp_instance:delete_mounting(Prefix, Instance, Nested),
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
        fun(Prefix, #{mounted := Known} = Next) ->
            Mount = detach(Prefix, map_get(Prefix, Known), Instance),
            refresh(Prefix, Next#{mounted := Known#{Prefix := Mount}})
        end, State, Ended)};
handle_info({erlmcp_ready, Server}, #{instance := Instance, mounted := Mounted} = State) ->
    Ready = [{Prefix, Mount} || Prefix := #{server := S} = Mount <- Mounted, S =:= Server],
    {noreply, lists:foldl(
        fun({Prefix, Mount}, Next) ->
            _ = detach(Prefix, Mount, Instance),
            attach(Prefix, Server, Next)
        end, State, Ready)};
handle_info(_, State) ->
    {noreply, State}.

-doc false.
terminate({Error, Stack}, _) when Error =/= shutdown, is_list(Stack) ->
    ok;
terminate(_, #{instance := #{key := Key} = Instance, mounted := Mounted}) ->
    _ = [detach(Prefix, Mount, Instance) || Prefix := Mount <- Mounted],
    _ = persistent_term:erase({?MODULE, Key}),
    ok.
