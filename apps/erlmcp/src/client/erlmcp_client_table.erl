-module(erlmcp_client_table).
-moduledoc """
The table of the node's clients and pools, from which every call reads its client and the outcome of
the negotiation. A second table has the eras of HTTP servers. The process of this module owns both,
and removes the rows of dead clients. Once a minute it makes room for new names in
`m:erlmcp_client_meter`.

Internal.
""".

-behaviour(gen_server).

-export([start_link/0, is_running/0, join/0, join_pool/1, server/1, leave/1]).
-export([find/1, pools/0, live/1, publish/2, publish_live/2, remembered/1, remember/2, running/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-type state() :: {Servers :: #{pid() => erlmcp_client_meter:server()}, erlmcp_client_meter:seen()}.

-define(ERAS, erlmcp_client_eras).
-define(MOST_ERAS, 1000).
%% Milliseconds between two sweeps of the meter.
-define(SWEEP, 60_000).

-doc "Starts the process that owns the tables.".
-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

-doc "Returns `true` if the process runs that owns the tables.".
-spec is_running() -> boolean().
is_running() ->
    is_pid(whereis(?MODULE)).

-doc """
Registers the calling process, which may then publish its client in the table. When the process
ends, its row is removed. The process must end when the returned monitor reports that the table has
ended. Returns `{error, {not_started, erlmcp}}` if the application does not run.
""".
-spec join() -> {ok, reference()} | {error, {not_started, erlmcp}}.
join() ->
    Monitor = monitor(process, ?MODULE),
    try
        ok = gen_server:call(?MODULE, join, infinity),
        {ok, Monitor}
    catch
        exit:_ ->
            true = demonitor(Monitor, [flush]),
            {error, {not_started, erlmcp}}
    end.

-doc """
Adds a pool to the table, unless the pool is there already. The calling process is that of the pool.
Returns `{error, {not_started, erlmcp}}` if the application does not run.
""".
-spec join_pool(erlmcp_pool_members:pool()) -> ok | {error, {not_started, erlmcp}}.
join_pool(#{pool := Pid} = Pool) ->
    maybe
        {error, stopped} ?= find(Pid),
        {ok, Monitor} ?= join(),
        true = demonitor(Monitor, [flush]),
        ok = publish(Pid, Pool),
        written(fun() -> ets:insert(?MODULE, {{pool, Pid}}) end)
    else
        {ok, _} -> ok;
        {error, _} = Error -> Error
    end.

-doc """
Returns the meter's number of the server at `Target`, of which the calling process is a client. The
server keeps its number while the client lives. Returns 0 if the server has no figures of its own,
or if the table has ended.
""".
-spec server(Target :: term()) -> erlmcp_client_meter:server().
server(Target) ->
    Address = erlmcp_client_meter:address(Target),
    try
        gen_server:call(?MODULE, {server, Address}, infinity)
    catch
        %% The table has just ended, and so does the client.
        exit:_ -> 0
    end.

-doc """
Removes the row of a client or pool that ends, and counts the end of its session. Does nothing if
there is no such row.
""".
-spec leave(pid()) -> ok.
leave(Pid) ->
    try ets:take(?MODULE, Pid) of
        [{_, _, _, Session}] ->
            true = ets:delete(?MODULE, {pool, Pid}),
            session_ended(Session);
        [] ->
            ok
    catch
        error:badarg -> ok
    end.

session_ended(none) -> ok;
session_ended({Kind, Opened}) -> erlmcp_client_meter:session_ended(Kind, Opened).

-doc """
Returns the client or the pool with a pid or a registered name. The error is `stopped` if the table
has no such client or pool, as after its end, or if the application does not run.
""".
-spec find(pid() | atom()) ->
    {ok, erlmcp_client_connection:client() | erlmcp_pool_members:pool()} | {error, stopped}.
find(Name) when is_atom(Name) ->
    case whereis(Name) of
        undefined -> {error, stopped};
        Pid -> find(Pid)
    end;
find(Peer) ->
    %% Only this element of the row is copied. If there is no table, the application does not run.
    try ets:lookup_element(?MODULE, Peer, 2) of
        Client -> {ok, Client}
    catch
        error:badarg -> {error, stopped}
    end.

-doc """
Returns the processes of the pools in the table, some of which may have ended. Raises `badarg` if
the application does not run.
""".
-spec pools() -> [pid()].
pools() ->
    ets:select(?MODULE, [{{{pool, '$1'}}, [], ['$1']}]).

-doc """
Returns the outcome of a client's last negotiation; `none` while no outcome is published, and
`stopped` if the client has ended.
""".
-spec live(pid()) -> erlmcp_client_connection:live() | none | stopped.
live(Peer) ->
    try
        ets:lookup_element(?MODULE, Peer, 3, stopped)
    catch
        %% The table ends before its clients.
        error:badarg -> stopped
    end.

-doc """
Publishes a client, before its first negotiation, or a pool, under the pid of its process. The
process has called `join/0`, so the row is removed when the process ends. Does nothing if the table
has ended.
""".
-spec publish(pid(), erlmcp_client_connection:client() | erlmcp_pool_members:pool()) -> ok.
publish(Pid, Client) ->
    written(fun() -> ets:insert(?MODULE, {Pid, Client, none, none}) end).

-doc """
Publishes the outcome of a negotiation with a client's server, or withdraws it (`none`). Counts the
end of the client's earlier session, and the beginning of a new one. Does nothing if the client has
no row, or the table has ended.
""".
-spec publish_live(pid(), erlmcp_client_connection:live() | none) -> ok.
publish_live(Peer, Live) ->
    written(fun() ->
        ok = session_ended(ets:lookup_element(?MODULE, Peer, 4)),
        ets:update_element(?MODULE, Peer, [{3, Live}, {4, session(Peer, Live)}])
    end).

written(Write) ->
    try
        true = Write(),
        ok
    catch
        %% The table ends before its clients, which end when they hear of that.
        error:badarg -> ok
    end.

%% The session that has opened with the outcome of a negotiation, if there is one.
session(_, none) ->
    none;
session(Peer, #{revision := Revision}) ->
    case erlmcp_revision:era(Revision) of
        session ->
            #{server := Server} = ets:lookup_element(?MODULE, Peer, 2),
            ok = erlmcp_client_meter:session_opened({Server, Revision}),
            {{Server, Revision}, erlang:monotonic_time(nanosecond)};
        stateless ->
            none
    end.

-doc """
Returns the clients in the table: the kind of their requests, their calls, and their channels. The
revision in a kind is `none` while no outcome is published. Raises `badarg` if the application does
not run.
""".
-spec running() ->
    [{erlmcp_client_meter:kind(), erlmcp_client_calls:calls(), erlmcp_channel:channel()}].
running() ->
    Of = fun(Key) -> {map_get, Key, '$1'} end,
    Row = fun(Revision) -> [{{{{Of(server), Revision}}, Of(calls), Of(channel)}}] end,
    IsClient = {is_map_key, server, '$1'},
    ets:select(?MODULE, [{{'_', '$1', none, '_'}, [IsClient], Row(none)},
                         {{'_', '$1', '$2', '_'}, [IsClient, {is_map, '$2'}],
                          Row({map_get, revision, '$2'})}]).

-doc """
Returns the era that `remember/2` has stored for the client's URL; `unknown` if there is none, if
the transport is not HTTP, or if the table has ended.
""".
-spec remembered(erlmcp_client_connection:client()) -> erlmcp_revision:era() | unknown.
remembered(#{settings := #{rules := http, target := Url}}) ->
    try
        ets:lookup_element(?ERAS, Url, 2, unknown)
    catch
        error:badarg -> unknown
    end;
remembered(_) ->
    unknown.

-doc """
Remembers the era of the server at the client's URL, on HTTP only. If 1000 eras are stored already,
another server's era is forgotten. Does nothing if the table has ended.
""".
-spec remember(erlmcp_client_connection:client(), erlmcp_revision:era()) -> ok.
remember(#{settings := #{rules := http, target := Url}}, Era) ->
    written(fun() ->
        _ = ets:member(?ERAS, Url) orelse make_room(),
        ets:insert(?ERAS, {Url, Era})
    end);
remember(_, _) ->
    ok.

make_room() ->
    case ets:info(?ERAS, size) of
        Size when Size >= ?MOST_ERAS ->
            true = ets:delete(?ERAS, ets:first(?ERAS)),
            make_room();
        _ ->
            ok
    end.

-doc false.
-spec init([]) -> {ok, state()}.
init([]) ->
    [Name = ets:new(Name, [named_table, public, {read_concurrency, true}])
     || Name <- [?MODULE, ?ERAS]],
    {ok, _} = timer:send_interval(?SWEEP, sweep),
    {ok, {#{}, #{}}}.

-doc false.
handle_call(join, {Pid, _}, State) ->
    _ = monitor(process, Pid),
    {reply, ok, State};
handle_call({server, Address}, {Pid, _}, {Servers, Seen}) ->
    Server = erlmcp_client_meter:take(Address, maps:values(Servers)),
    {reply, Server, {Servers#{Pid => Server}, Seen}}.

-doc false.
handle_cast(_, State) ->
    {noreply, State}.

-doc false.
handle_info({'DOWN', _, process, Pid, _}, {Servers, Seen}) ->
    ok = leave(Pid),
    {noreply, {maps:remove(Pid, Servers), Seen}};
handle_info(sweep, {Servers, Seen}) ->
    {noreply, {Servers, erlmcp_client_meter:sweep(Seen)}};
handle_info(_, State) ->
    {noreply, State}.
