-module(erlmcp_registry).
-moduledoc """
The node's running servers, by pid and by the `id` of their options. One process that remembers
them and forgets those that end. Asked when a server starts or is changed, never by a request.
""".

-behaviour(gen_server).

-export([start_link/0, register/2, whereis/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-doc "Starts the registry.".
-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

-doc "Makes the calling process, a server's supervisor, known by this id.".
-spec register(Id :: term(), erlmcp_instance:instance()) -> ok | {error, {already_started, pid()}}.
register(Id, Instance) ->
    gen_server:call(?MODULE, {register, Id, self(), Instance}).

-doc "The supervisor and the instance of a server, by its id or pid.".
-spec whereis(Server :: term()) -> {ok, pid(), erlmcp_instance:instance()} | error.
whereis(Server) ->
    gen_server:call(?MODULE, {whereis, Server}).

-doc false.
init([]) ->
    {ok, #{}}.

-doc false.
handle_call({register, Id, Pid, Instance}, _, Servers) ->
    case [P || {I, P} := _ <- Servers, I =:= Id] of
        [Running] ->
            {reply, {error, {already_started, Running}}, Servers};
        [] ->
            _ = monitor(process, Pid),
            {reply, ok, Servers#{{Id, Pid} => Instance}}
    end;
handle_call({whereis, Server}, _, Servers) ->
    %% A pid before an id: the id may be any term.
    Found = [{P, Instance} || {_, P} := Instance <- Servers, P =:= Server]
        ++ [{P, Instance} || {I, P} := Instance <- Servers, I =:= Server],
    case Found of
        [{Pid, Instance} | _] -> {reply, {ok, Pid, Instance}, Servers};
        [] -> {reply, error, Servers}
    end.

-doc false.
handle_cast(_, Servers) ->
    {noreply, Servers}.

-doc false.
handle_info({'DOWN', _, process, Pid, _}, Servers) ->
    {noreply, #{Key => Instance || {_, P} = Key := Instance <- Servers, P =/= Pid}};
handle_info(_, Servers) ->
    {noreply, Servers}.
