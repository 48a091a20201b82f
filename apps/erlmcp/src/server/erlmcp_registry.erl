-module(erlmcp_registry).
-moduledoc """
The registry of the node's running servers, by pid and by the `id` of their options. It is a table,
which every process reads itself, and the process that writes the table. The table belongs to the
application's supervisor, so it keeps its rows when the process is started again. While the
application does not run, no server is found.

Internal.
""".

-behaviour(gen_server).

%% A look-up is two reads.
-compile({inline, [found/1, row/1]}).

-export([open/0, start_link/0, is_running/0, register/2, whereis/1, servers/0, watch/1, ready/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

%% The rows are `{{pid, Pid}, {Pid, Key}, Id}` and `{{id, Id}, {Pid, Key}}` of a server, and
%% `{{watcher, Pid, Id}}`.
-define(SERVER, 2).

-doc "Makes the table of the servers, which belongs to the calling process.".
-spec open() -> ok.
open() ->
    ?MODULE = ets:new(?MODULE, [named_table, public, {read_concurrency, true}]),
    ok.

-doc "Starts the process that writes the table.".
-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

-doc """
Returns `true` if the registry's process runs: the application has started, and the process is not
about to start again.
""".
-spec is_running() -> boolean().
is_running() ->
    is_pid(erlang:whereis(?MODULE)).

-doc """
Registers the calling process, a server's supervisor, under `Id` until this process ends.
`whereis/1` finds the server as soon as its instance is shared under `Key`. The error
`already_started` has the supervisor of the running server with this id. `not_started` means that
the registry's process does not run.
""".
-spec register(Id :: term(), Key :: reference()) ->
    ok | {error, {already_started, pid()} | {not_started, erlmcp}}.
register(Id, Key) ->
    case erlang:whereis(?MODULE) of
        undefined -> {error, {not_started, erlmcp}};
        Pid -> gen_server:call(Pid, {register, Id, Key})
    end.

-doc """
Returns the supervisor and the instance of a server, by its id or pid, or `error` if no such server
runs.
""".
-spec whereis(Server :: term()) -> {ok, pid(), erlmcp_instance:instance()} | error.
whereis(Server) ->
    maybe
        {Pid, Key} ?= found(Server),
        %% A server that was killed stays in the table until the registry gets its 'DOWN' message.
        true ?= is_process_alive(Pid),
        {ok, Instance} ?= erlmcp_instance:find(Key),
        {ok, Pid, Instance}
    else
        _ -> error
    end.

%% A pid is looked up as a server's pid first, and then as an id, which may be any term.
found(Pid) when is_pid(Pid) ->
    case row({pid, Pid}) of
        none -> row({id, Pid});
        Found -> Found
    end;
found(Id) ->
    row({id, Id}).

row(Key) ->
    try
        ets:lookup_element(?MODULE, Key, ?SERVER, none)
    catch
        %% There is no table: the application does not run.
        error:badarg -> none
    end.

-doc "Returns the servers that run: the id of each, its supervisor and its instance.".
-spec servers() -> [{Id :: term(), pid(), erlmcp_instance:instance()}].
servers() ->
    [{Id, Pid, Instance} || {Id, Pid} <- ids(), {ok, _, Instance} <- [?MODULE:whereis(Pid)]].

ids() ->
    try
        ets:select(?MODULE, [{{{id, '$1'}, {'$2', '_'}}, [], [{{'$1', '$2'}}]}])
    catch
        %% There is no table.
        error:badarg -> []
    end.

-doc """
Returns the supervisor and the instance of a server, or `error` if the server does not run. In both
cases, the calling process is sent `{erlmcp_ready, Server}` whenever the publisher of that server
starts after this call. Exits if the registry's process does not run.
""".
-spec watch(Server :: term()) -> {ok, pid(), erlmcp_instance:instance()} | error.
watch(Server) ->
    %% In this order, a server that starts between the two steps is not missed.
    ok = gen_server:call(?MODULE, {watch, Server}),
    ?MODULE:whereis(Server).

-doc """
Sends `{erlmcp_ready, Server}` to the processes that watch the server of an instance. `Server` is
the argument of their `watch/1`. Raises `badarg` if the application does not run.
""".
-spec ready(erlmcp_instance:instance()) -> ok.
ready(#{key := Key}) ->
    Ready = lists:append(ets:select(?MODULE, [{{{pid, '$1'}, {'_', Key}, '$2'}, [],
                                               [['$1', '$2']]}])),
    Watchers = ets:select(?MODULE, [{{{watcher, '$1', '$2'}}, [], [{{'$1', '$2'}}]}]),
    _ = [Watcher ! {erlmcp_ready, Server} || {Watcher, Server} <- Watchers,
                                             lists:member(Server, Ready)],
    ok.

-doc false.
init([]) ->
    %% The table may have servers and watchers from before a restart of this process.
    Known = ets:select(?MODULE, [{{{pid, '$1'}, '_', '_'}, [], ['$1']},
                                 {{{watcher, '$1', '_'}}, [], ['$1']}]),
    lists:foreach(fun(Pid) -> monitor(process, Pid) end, Known),
    {ok, none}.

-doc false.
handle_call({register, Id, Key}, {Pid, _}, State) ->
    maybe
        %% A supervisor may start a server again before this process gets the 'DOWN' message of the
        %% one before.
        {Running, _} ?= row({id, Id}),
        true ?= is_process_alive(Running),
        {reply, {error, {already_started, Running}}, State}
    else
        _ ->
            _ = monitor(process, Pid),
            true = ets:insert(?MODULE, [{{pid, Pid}, {Pid, Key}, Id}, {{id, Id}, {Pid, Key}}]),
            {reply, ok, State}
    end;
handle_call({watch, Server}, {Watcher, _}, State) ->
    _ = ets:insert_new(?MODULE, {{watcher, Watcher, Server}})
        andalso monitor(process, Watcher),
    {reply, ok, State}.

-doc false.
handle_cast(_, State) ->
    {noreply, State}.

-doc false.
handle_info({'DOWN', _, process, Pid, _}, State) ->
    %% The id may belong to another server already.
    _ = [true = ets:delete_object(?MODULE, {{id, Id}, Server})
         || {_, Server, Id} <- ets:take(?MODULE, {pid, Pid})],
    true = ets:match_delete(?MODULE, {{watcher, Pid, '_'}}),
    {noreply, State};
handle_info(_, State) ->
    {noreply, State}.
