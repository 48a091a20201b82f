-module(erlmcp_client_table).
-moduledoc """
The table of the node's clients and pools: every call reads there what its client is, and what is
known of its server. And the process that has it, and forgets those that ended without a word.

Internal.
""".

-behaviour(gen_server).

-export([start_link/0, join/0, join_pool/1, leave/1]).
-export([find/1, live/1, publish/2, publish_live/2, remembered/1, remember/3]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-doc "Starts it, with its table.".
-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

-doc """
Says that the calling process writes itself into the table: what it has there goes when it ends. It
is to end when the monitor that is returned says that the table has.
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

-doc "From now on `find/1` knows this pool, which the calling process is.".
-spec join_pool(erlmcp_pool_members:pool()) -> ok | {error, {not_started, erlmcp}}.
join_pool(#{pool := Pid} = Pool) ->
    maybe
        {ok, Monitor} ?= join(),
        true = demonitor(Monitor, [flush]),
        publish(Pid, Pool)
    end.

-doc "A client or pool has ended; of no matter if the table has.".
-spec leave(pid()) -> ok.
leave(Pid) ->
    try
        true = ets:delete(?MODULE, Pid),
        ok
    catch
        error:badarg -> ok
    end.

-doc "A client, or a pool of them, by its pid or name, as every call reads it.".
-spec find(pid() | atom()) ->
    {ok, erlmcp_client_connection:client() | erlmcp_pool_members:pool()} | {error, stopped}.
find(Name) when is_atom(Name) ->
    case whereis(Name) of
        undefined -> {error, stopped};
        Pid -> find(Pid)
    end;
find(Peer) ->
    %% Of what is published only this is copied. The table is there while the application runs.
    try ets:lookup_element(?MODULE, Peer, 2) of
        Client -> {ok, Client}
    catch
        error:badarg -> {error, stopped}
    end.

-doc "What is known of a client's server; `none` if it is not known yet, or no longer.".
-spec live(pid()) -> erlmcp_client_connection:live() | none | stopped.
live(Peer) ->
    ets:lookup_element(?MODULE, Peer, 3, stopped).

-doc "Puts a client or a pool there, for all that call it. Nothing is known of its server then.".
-spec publish(pid(), erlmcp_client_connection:client() | erlmcp_pool_members:pool()) -> ok.
publish(Pid, Client) ->
    true = ets:insert(?MODULE, {Pid, Client, none}),
    ok.

-doc "Puts there what is known of a client's server.".
-spec publish_live(pid(), erlmcp_client_connection:live() | none) -> ok.
publish_live(Peer, Live) ->
    true = ets:update_element(?MODULE, Peer, {3, Live}),
    ok.

-doc "The era that a server at the client's URL last had; `unknown` for other transports.".
-spec remembered(erlmcp_client_connection:client()) -> erlmcp_revision:era() | unknown.
remembered(#{settings := #{rules := http, target := Url}}) ->
    ets:lookup_element(?MODULE, {era, Url}, 2, unknown);
remembered(_) ->
    unknown.

-doc "Remembers the era of a client's URL, for so many of them; then it begins anew.".
-spec remember(erlmcp_client_connection:client(), erlmcp_revision:era(), Most :: pos_integer()) ->
    ok.
remember(#{settings := #{rules := http, target := Url}}, Era, Most) ->
    case ets:info(?MODULE, size) of
        Size when Size >= Most ->
            true = ets:match_delete(?MODULE, {{era, '_'}, '_'}),
            ok;
        _ ->
            ok
    end,
    true = ets:insert(?MODULE, {{era, Url}, Era}),
    ok;
remember(_, _, _) ->
    ok.

-doc false.
init([]) ->
    ?MODULE = ets:new(?MODULE, [named_table, public, {read_concurrency, true}]),
    {ok, none}.

-doc false.
handle_call(join, {Pid, _}, State) ->
    _ = monitor(process, Pid),
    {reply, ok, State}.

-doc false.
handle_cast(_, State) ->
    {noreply, State}.

-doc false.
handle_info({'DOWN', _, process, Pid, _}, State) ->
    ok = leave(Pid),
    {noreply, State};
handle_info(_, State) ->
    {noreply, State}.
