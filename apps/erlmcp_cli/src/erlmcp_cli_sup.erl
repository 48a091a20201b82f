-module(erlmcp_cli_sup).
-moduledoc "The supervisor of the servers that `erlmcp serve` starts.".

-behaviour(supervisor).

-export([start_link/0, start_server/1]).
-export([init/1]).

-doc "Starts the supervisor, without servers.".
-spec start_link() -> supervisor:startlink_ret().
start_link() -> supervisor:start_link({local, ?MODULE}, ?MODULE, []).

-doc """
Starts a server with the options of `erlmcp:start_server/1`. The errors are those of that function;
nothing of them is logged.
""".
-spec start_server(erlmcp_options:options()) -> {ok, pid()} | {error, term()}.
start_server(Options) ->
    %% Whoever started the command is told why it failed, once; the reports of the supervisors
    %% would say the same in pages.
    #{level := Level} = logger:get_primary_config(),
    ok = logger:set_primary_config(level, none),
    try supervisor:start_child(?MODULE, erlmcp:child_spec(Options)) of
        {ok, Pid} when is_pid(Pid) -> {ok, Pid};
        {error, {Reason, Child}} when element(1, Child) =:= child -> {error, Reason};
        {error, Reason} -> {error, Reason}
    after
        logger:set_primary_config(level, Level)
    end.

-doc false.
init([]) -> {ok, {#{strategy => one_for_one}, []}}.
