-module(erlmcp_catalog_publisher).
-moduledoc """
The process that is alone in changing a server's catalog. Readers take what is published
(`m:erlmcp_published_catalog`) without a lock or a message. A change is published whole, and the
open sessions are told.

A change is told at once, unless there were `?AT_ONCE` shortly before it: those that follow them
within `?PACE` are told together, and so on as long as there are some. When there were none for as
long the catalog is settled; and if there are always some, after `?PACES` of these: until then what
was merged is there twice, and a catalog is not to stay so because something trickles in.

What a server mounts, its publisher keeps as it is there: the publisher of the mounted server says
when it changes, a monitor when it ends, and the registry when it or that publisher runs again. What
is left out since its name is taken is mounted with the change that makes the name free.
""".

-behaviour(gen_server).

-export([start_link/1, change/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

%% Milliseconds.
-define(PACE, 100).
-define(AT_ONCE, 32).
-define(PACES, 100).

-doc "Starts the publisher of an instance, whose catalog is published already.".
-spec start_link(erlmcp_instance:instance()) -> gen_server:start_ret().
start_link(Instance) ->
    gen_server:start_link(?MODULE, Instance, []).

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
init(#{mounts := Mounts} = Instance) ->
    process_flag(trap_exit, true),
    %% After a crash the last published catalog stands, with what was added since the start.
    Pace = case erlmcp_published_catalog:is_changing(Instance)
                orelse erlmcp_published_catalog:is_waiting(Instance) of
        %% There may be something that is still to be told.
        true -> (paced(?PACES))#{at_once := 0};
        false -> quiet
    end,
    State = lists:foldl(fun(#{prefix := Prefix, server := Server}, State) ->
                            attach(Prefix, Server, State)
                        end, #{instance => Instance, mounted => #{}, pace => Pace}, Mounts),
    ok = erlmcp_registry:ready(Instance),
    {ok, State}.

-doc false.
handle_call({refresh, Prefix}, _, #{instance := Instance} = State) ->
    {reply, {ok, erlmcp_instance:mounting(Instance)}, refresh(Prefix, State)};
handle_call({add, Kind, Given}, _, #{instance := Instance} = State) ->
    Source = erlmcp_visibility:guarded(Kind, Given, maps:get(key, Instance)),
    changed(erlmcp_catalog:add(Kind, Source, erlmcp_metaschemas:compiled(),
                               erlmcp_published_catalog:catalog(Instance)), State);
handle_call({remove, Kind, Key}, _, #{instance := Instance} = State) ->
    Changed = changed(erlmcp_catalog:remove(Kind, Key, erlmcp_published_catalog:catalog(Instance)),
                      State),
    ok = erlmcp_result_cache:forget(Kind, Key, Instance),
    Changed.

changed({ok, Catalog}, #{instance := Instance} = State) ->
    Next = publish(Catalog, State),
    {reply, {ok, erlmcp_instance:mounting(Instance)}, Next};
changed({error, _} = Error, State) ->
    {reply, Error, State}.

publish(Given, #{instance := Instance, pace := Pace} = Before) ->
    {Differing, Catalog, State} =
        with_free(erlmcp_published_catalog:catalog(Instance), Given, Before),
    %% Before it is published: so it is told in any case.
    ok = erlmcp_published_catalog:wait(topics(Differing), Instance),
    Next = case Pace of
        quiet ->
            ok = erlmcp_published_catalog:put(settled, Catalog, Instance),
            ok = tell(Instance),
            paced(?PACES);
        #{at_once := 0} ->
            ok = erlmcp_published_catalog:put(changing, Catalog, Instance),
            Pace;
        #{at_once := Left} ->
            ok = erlmcp_published_catalog:put(changing, Catalog, Instance),
            ok = tell(Instance),
            Pace#{at_once := Left - 1}
    end,
    lists:foreach(fun({Prefix, Publisher, _}) -> gen_server:cast(Publisher, {refresh, Prefix}) end,
                  erlmcp_instance:mounting(Instance)),
    State#{pace := Next}.

%% With how many of them are left until what changes is settled.
paced(Left) ->
    _ = erlang:send_after(?PACE, self(), pace),
    #{at_once => ?AT_ONCE, left => Left}.

%% The topics that there is something to tell of, each with its audiences.
topics(Changed) ->
    Audiences = [{topic(Kind), erlmcp_definition:audience(Definition)}
                 || Kind := Definitions <- Changed, Definition <- Definitions],
    #{Topic => maps:from_keys(Of, [])
      || Topic := Of <- maps:groups_from_list(fun({Topic, _}) -> Topic end,
                                              fun({_, Audience}) -> Audience end, Audiences)}.

tell(Instance) ->
    erlmcp_published_catalog:tell_waiting(fun(Changed) -> tell(Changed, Instance) end, Instance).

tell(Changed, Instance) ->
    Subscriptions = erlmcp_instance:subscriptions(Instance),
    maps:foreach(fun(Topic, Audiences) ->
                     Audience = audience(maps:keys(Audiences)),
                     ok = erlmcp_instance:missed(Topic, Audience, Instance),
                     ok = erlmcp_subscriptions:publish(Topic, Audience, Subscriptions)
                 end, Changed).

%% Those who may not see a definition do not hear that it comes or goes.
audience(Audiences) ->
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

%% Mounts. `known` is what is compiled into ours of the mounted catalog, by its version, and what of
%% it is left out; `waits` has the names of that which are taken.

%% The catalog that is to follow another one, with what waits for a name that became free; and by
%% what they differ.
with_free(Before, Catalog, #{mounted := Mounted} = State) ->
    Differing = erlmcp_catalog:changed(Before, Catalog),
    case [Prefix || Prefix := #{waits := Waits} <- Mounted, is_freed(Waits, Differing, Catalog)] of
        [] ->
            {Differing, Catalog, State};
        [Prefix | _] ->
            {Next, Known} = case mounted_catalog(Prefix, State) of
                {ok, Nested} -> compiled(Prefix, Nested, Catalog, State);
                error -> {Catalog, forgotten(Prefix, State)}
            end,
            with_free(Before, Next, Known)
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
            ok = erlmcp_instance:put_mounting(Prefix, Instance, Nested),
            #{server => Server, nested => Nested, monitor => monitor(process, Pid)};
        error ->
            #{server => Server}
    end,
    refresh(Prefix, State#{mounted := Mounted#{Prefix => Mount}}).

refresh(Prefix, #{instance := Instance} = State) ->
    maybe
        {ok, Nested} ?= mounted_catalog(Prefix, State),
        {Seen, _} = known(Prefix, State),
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

known(Prefix, #{mounted := Mounted}) ->
    maps:get(known, map_get(Prefix, Mounted), {0, []}).

forgotten(Prefix, #{mounted := Mounted} = State) ->
    Forget = fun(Mount) -> maps:without([known, waits], Mount) end,
    State#{mounted := maps:update_with(Prefix, Forget, Mounted)}.

compiled(Prefix, Nested, Catalog, #{instance := Instance, mounted := Mounted} = State) ->
    #{Prefix := #{nested := #{key := Key}} = Mount} = Mounted,
    {_, LeftOutBefore} = Known = known(Prefix, State),
    {Next, LeftOut} = erlmcp_catalog:mount(Prefix, Known, Nested, erlmcp_mounts:offers(Key),
                                           Catalog),
    _ = [erlmcp_log:report(warning, #{what => not_mounted, prefix => Prefix, reason => Reason},
                           map_get(key, Instance))
         || Reason <- LeftOut -- LeftOutBefore],
    {Next, State#{mounted := Mounted#{Prefix := Mount#{
        known => {erlmcp_catalog:version(Nested), LeftOut},
        waits => #{{Kind, Name} => [] || {duplicate, Kind, Name} <- LeftOut}}}}}.

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
handle_info(pace, #{instance := Instance, pace := #{at_once := ?AT_ONCE}} = State) ->
    ok = settle(Instance),
    {noreply, State#{pace := quiet}, hibernate};
handle_info(pace, #{instance := Instance, pace := #{left := Left}} = State) ->
    ok = tell(Instance),
    case Left of
        1 ->
            ok = settle(Instance),
            {noreply, State#{pace := paced(?PACES)}, hibernate};
        _ ->
            {noreply, State#{pace := paced(Left - 1)}}
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
