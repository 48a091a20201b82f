-module(erlmcp_mounts).
-moduledoc """
Finds and checks the servers that a server mounts, and compiles their definitions into the server's
catalog before it starts. `m:erlmcp_catalog_publisher` follows later changes of mounted servers.

Internal.
""".

-export([compose/1, offers/1, resource_updated/2]).
-export([put_mounting/3, delete_mounting/3, mounting/1]).

-export_type([mount/0, server/0]).

-doc """
A server to mount: the pid or `id` of a server that runs on this node, or the options of a new
server. A module with `-behaviour(erlmcp_server)` stands for such options.
""".
-type server() :: pid() | module() | erlmcp:options() | term().
-doc """
A mounted server: its pid or `id`. If the server does not run already, `start` has the options to
start it with.
""".
-type mount() :: #{
    prefix := erlmcp_mount:prefix(), server := pid() | term(),
    start => erlmcp:options()
}.

-doc """
Returns the settings and the catalog of a server with `Options`. The catalog includes the
definitions of all servers that this server mounts. An error of a mounted server is
`{mount, Prefix, Reason}`. `{not_started, erlmcp}` means that the server mounts others, and the
application does not run. If `erlmcp_server_options:check/1` raises an error, so does this function.
""".
-spec compose(erlmcp:options()) ->
    {ok, erlmcp_server_options:settings(), erlmcp_catalog:catalog()} | {error, term()}.
compose(Options) ->
    compose(Options, [], []).

%% `Modules` and `Ids` are those of the servers that will mount this one.
compose(Options, Modules, Ids) ->
    maybe
        {ok, #{id := Id, identity := Identity, sources := Sources, lists := Lists,
               mounts := Given} = Settings} ?= erlmcp_server_options:check(Options),
        true ?= Given =:= [] orelse erlmcp_registry:is_running()
            orelse {error, {not_started, erlmcp}},
        {ok, Inside} ?= inside(Options, Modules),
        {ok, Catalog} ?= erlmcp_catalog:new(Identity, Sources, Lists,
                                           erlmcp_metaschemas:compiled()),
        {ok, Mounts, Whole} ?= mount(Given, Inside, [Id | Ids], [], Catalog),
        {ok, Settings#{mounts := Mounts}, Whole}
    end.

inside(#{handler := Module}, Modules) ->
    case lists:member(Module, Modules) of
        true -> {error, {mount_loop, lists:reverse(Modules, [Module])}};
        false -> {ok, [Module | Modules]}
    end;
inside(_, Modules) ->
    {ok, Modules}.

mount([], _, _, Mounts, Catalog) ->
    {ok, lists:reverse(Mounts), Catalog};
mount([{Prefix, Server} | Given], Modules, Ids, Mounts, Catalog) ->
    maybe
        {ok, Mount, Key, Mounted} ?= found(Server, Modules, Ids),
        {Next, []} ?= erlmcp_catalog:mount(Prefix, {0, []}, Mounted, offers(Key), Catalog),
        mount(Given, Modules, started(Mount, Ids), [Mount#{prefix => Prefix} | Mounts], Next)
    else
        {error, Reason} -> {error, {mount, Prefix, Reason}};
        {_, [Reason | _]} -> {error, {mount, Prefix, Reason}}
    end.

started(#{start := _, server := Id}, Ids) -> [Id | Ids];
started(_, Ids) -> Ids.

found(Server, Modules, Ids) ->
    case erlmcp_registry:whereis(Server) of
        {ok, _, #{key := Key} = Instance} ->
            maybe
                ok ?= no_loop(Server, Instance, Ids),
                {ok, Mounted} ?= erlmcp_published_catalog:find(Key),
                {ok, #{server => Server}, Key, Mounted}
            else
                error -> {error, not_found};
                {error, _} = Error -> Error
            end;
        error when is_map(Server) ->
            inner(Server, Modules, Ids);
        error when is_atom(Server) ->
            case code:ensure_loaded(Server) of
                {module, _} -> inner(#{handler => Server}, Modules, Ids);
                {error, _} -> {error, not_found}
            end;
        error ->
            {error, not_found}
    end.

inner(Options, Modules, Ids) ->
    maybe
        {ok, #{id := Id, key := Key}, Catalog} ?= compose(Options, Modules, Ids),
        false ?= lists:member(Id, Ids) andalso {error, {duplicate, mount, Id}},
        error ?= erlmcp_registry:whereis(Id),
        {ok, #{server => Id, start => Options#{id => Id}}, Key, Catalog}
    else
        {ok, Running, _} -> {error, {already_started, Running}};
        {error, _} = Error -> Error
    end.

%% A running server may have mounted the server that starts now, and wait for its return.
no_loop(Server, #{mounts := Mounts}, Ids) ->
    case lists:member(Server, Ids) of
        true -> {error, {mount_loop, [Server]}};
        false -> no_loops(Server, Mounts, Ids)
    end.

no_loops(_, [], _) ->
    ok;
no_loops(Server, [#{server := Inner} | Mounts], Ids) ->
    maybe
        ok ?= case {lists:member(Inner, Ids), erlmcp_registry:whereis(Inner)} of
            {true, _} -> {error, {mount_loop, [Inner]}};
            {false, {ok, _, Instance}} -> no_loop(Inner, Instance, Ids);
            {false, error} -> ok
        end,
        no_loops(Server, Mounts, Ids)
    else
        {error, {mount_loop, Path}} -> {error, {mount_loop, [Server | Path]}}
    end.

-doc """
Returns a fun that takes a URI, and returns `true` if the server with the key `Server` runs and has
a resource at that URI.
""".
-spec offers(Server :: reference()) -> erlmcp_mount:offers().
offers(Server) ->
    fun(Uri) ->
        maybe
            {ok, Catalog} ?= erlmcp_published_catalog:find(Server),
            erlmcp_catalog:is_resource(Uri, Catalog)
        else
            error -> false
        end
    end.

-doc """
Notifies the clients that subscribe to the resource at `Uri` of its change, including the clients of
servers that mount this one, and of other nodes of the cluster. Deletes the cached results of the
resource. The error means that the server has ended meanwhile.
""".
-spec resource_updated(Uri :: binary(), erlmcp_instance:instance()) -> ok | {error, not_found}.
resource_updated(Uri, Instance) ->
    try
        ok = erlmcp_changes:resource_updated(Uri, Instance),
        lists:foreach(fun({Prefix, _, Mounting}) ->
                          resource_updated(erlmcp_mount:uri(Prefix, Uri), Mounting)
                      end, mounting(Instance))
    catch
        %% The server has just ended, and its tables with it.
        error:badarg -> {error, not_found}
    end.

-doc """
Records that the server `Mounting` mounts the server `Mounted` under the given prefix. The caller
must be the publisher of `Mounting`. Raises `badarg` if the server `Mounted` has ended.
""".
-spec put_mounting(erlmcp_mount:prefix(), Mounting :: erlmcp_instance:instance(),
                   Mounted :: erlmcp_instance:instance()) -> ok.
put_mounting(Prefix, #{key := Key} = Mounting, #{mounting := Table}) ->
    true = ets:insert(Table, {{Key, Prefix}, self(), Mounting}),
    ok.

-doc "Deletes the record of `put_mounting/3`. Has no effect if the server `Mounted` has ended.".
-spec delete_mounting(erlmcp_mount:prefix(), Mounting :: erlmcp_instance:instance(),
                      Mounted :: erlmcp_instance:instance()) -> ok.
delete_mounting(Prefix, #{key := Key}, #{mounting := Table}) ->
    try
        true = ets:delete(Table, {Key, Prefix}),
        ok
    catch
        error:badarg -> ok
    end.

-doc """
Returns the servers that mount the given server. Each has the prefix under which it mounts the given
server, its publisher and its instance. Servers whose publisher has ended are left out. Raises
`badarg` if the given server has ended.
""".
-spec mounting(erlmcp_instance:instance()) ->
    [{erlmcp_mount:prefix(), pid(), erlmcp_instance:instance()}].
mounting(#{mounting := Table}) ->
    {Alive, Killed} = lists:partition(fun({_, Publisher, _}) -> is_process_alive(Publisher) end,
                                      ets:tab2list(Table)),
    %% A publisher that was killed could not delete its row.
    lists:foreach(fun(Row) -> ets:delete_object(Table, Row) end, Killed),
    [{Prefix, Publisher, Mounting} || {{_, Prefix}, Publisher, Mounting} <- Alive].
