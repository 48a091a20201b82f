-module(erlmcp_registry).
-moduledoc """
The node's running servers, by pid and by the `id` of their options. One process that remembers
them and forgets those that end, and tells those that wait for an `id` when its server is ready.
Asked when a server starts or is changed, never by a request.
""".

-behaviour(gen_server).

-export([start_link/0, register/2, whereis/1, watch/1, ready/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-doc "Starts the registry.".
-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

-doc "Makes the calling process, a server's supervisor, known by this id.".
-spec register(Id :: term(), erlmcp_instance:instance()) ->
    ok | {error, {already_started, pid()} | {not_started, erlmcp}}.
register(Id, Instance) ->
    case erlang:whereis(?MODULE) of
        undefined -> {error, {not_started, erlmcp}};
        Pid -> gen_server:call(Pid, {register, Id, self(), Instance})
    end.

-doc "The supervisor and the instance of a server, by its id or pid.".
-spec whereis(Server :: term()) -> {ok, pid(), erlmcp_instance:instance()} | error.
whereis(Server) ->
    gen_server:call(?MODULE, {whereis, Server}).

-doc """
The same, and from now on the calling process is sent `{erlmcp_ready, Server}` whenever a server
with this id is ready.
""".
-spec watch(Server :: term()) -> {ok, pid(), erlmcp_instance:instance()} | error.
watch(Server) ->
    gen_server:call(?MODULE, {watch, Server}).

-doc "The server of this instance has published its catalog.".
-spec ready(erlmcp_instance:instance()) -> ok.
ready(#{key := Key}) ->
    gen_server:cast(?MODULE, {ready, Key}).

-doc false.
init([]) ->
    {ok, #{servers => #{}, watchers => #{}}}.

-doc false.
handle_call({register, Id, Pid, Instance}, _, #{servers := Servers} = State) ->
    %% A supervisor starts a server anew before it is heard here that it ended.
    case [P || {I, P} := _ <- Servers, I =:= Id, is_process_alive(P)] of
        [Running] ->
            {reply, {error, {already_started, Running}}, State};
        [] ->
            _ = monitor(process, Pid),
            {reply, ok, State#{servers := Servers#{{Id, Pid} => Instance}}}
    end;
handle_call({whereis, Server}, _, #{servers := Servers} = State) ->
    {reply, found(Server, Servers), State};
handle_call({watch, Server}, {Watcher, _}, #{servers := Servers, watchers := Watchers} = State) ->
    Known = is_map_key({Watcher, Server}, Watchers),
    _ = [monitor(process, Watcher) || not Known],
    {reply, found(Server, Servers), State#{watchers := Watchers#{{Watcher, Server} => []}}}.

found(Server, Servers) ->
    %% A pid before an id: the id may be any term.
    Found = [{P, Instance} || {_, P} := Instance <- Servers, P =:= Server]
        ++ [{P, Instance} || {I, P} := Instance <- Servers, I =:= Server, is_process_alive(P)],
    case Found of
        [{Pid, Instance} | _] -> {ok, Pid, Instance};
        [] -> error
    end.

-doc false.
handle_cast({ready, Key}, #{servers := Servers, watchers := Watchers} = State) ->
    Ready = [Id || {Id, _} := #{key := K} <- Servers, K =:= Key],
    _ = [Watcher ! {erlmcp_ready, Server}
         || {Watcher, Server} := _ <- Watchers, lists:member(Server, Ready)],
    {noreply, State}.

-doc false.
handle_info({'DOWN', _, process, Pid, _}, #{servers := Servers, watchers := Watchers} = State) ->
    {noreply, State#{servers := #{Key => Instance
                                  || {_, P} = Key := Instance <- Servers, P =/= Pid},
                     watchers := #{Key => [] || {P, _} = Key := _ <- Watchers, P =/= Pid}}};
handle_info(_, State) ->
    {noreply, State}.
