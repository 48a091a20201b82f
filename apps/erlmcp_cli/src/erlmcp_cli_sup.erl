-module(erlmcp_cli_sup).
-moduledoc """
The supervisor of the processes that commands start: servers, clients, a control socket, and the
owner of the terminal.
""".

-behaviour(supervisor).

-export([start_link/0, start_server/1, start_client/1, start_control/1]).
-export([init/1]).

-doc "Starts the supervisor with the owner of the terminal, and without servers and clients.".
-spec start_link() -> supervisor:startlink_ret().
start_link() -> supervisor:start_link({local, ?MODULE}, ?MODULE, []).

-doc """
Starts a server with the options of `erlmcp:start_server/1`. The supervisor starts the server again
when it ends. The errors are those of that function, and are not logged.
""".
-spec start_server(erlmcp:options()) -> {ok, pid()} | {error, term()}.
start_server(Options) ->
    start(erlmcp:child_spec(Options)).

-doc """
Starts a client, which is not started again when it ends. The errors are those of
`erlmcp_client:start_link/1`, and are not logged.
""".
-spec start_client(erlmcp_client:target()) -> {ok, pid()} | {error, term()}.
start_client(Target) ->
    Spec = erlmcp_client:child_spec(Target),
    start(Spec#{id := make_ref(), restart => temporary}).

-doc """
Starts the process of the control socket `File`. The supervisor starts the process again when it
ends. The errors are those of `erlmcp_cli_control:start_link/1`, and are not logged.
""".
-spec start_control(file:filename_all()) -> {ok, pid()} | {error, term()}.
start_control(File) ->
    start(#{id => control, start => {erlmcp_cli_control, start_link, [File]}}).

start(Spec) ->
    erlmcp_cli_log:without_reports(own, fun() ->
        case supervisor:start_child(?MODULE, Spec) of
            {ok, Pid} when is_pid(Pid) -> {ok, Pid};
            {error, {Reason, Child}} when element(1, Child) =:= child -> {error, Reason};
            {error, Reason} -> {error, Reason}
        end
    end).

-doc false.
init([]) ->
    {ok, {#{strategy => one_for_one},
          [#{id => terminal, start => {erlmcp_cli_terminal, start_link, []}}]}}.
