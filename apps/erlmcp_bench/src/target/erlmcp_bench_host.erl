-module(erlmcp_bench_host).
-moduledoc """
The supervisor of the server under test, in the server's own node. A server that has ended is
started again.
""".

-behaviour(supervisor).

-export([start/1, server/0, start_link/1, stop/1]).
-export([init/1]).

-doc """
Starts erlmcp, and a server with the `Options` of `erlmcp:start_server/1`. The server outlives the
calling process. Returns the server's listeners, as `erlmcp:listeners/1` does. The error is that of
`application:ensure_all_started/1`, or the reason why the server did not start.
""".
-spec start(Options :: map()) -> {ok, [map()]} | {error, term()}.
start(Options) ->
    %% The server outlives the call that starts it.
    Caller = self(),
    {Pid, Monitor} = spawn_monitor(fun() ->
        Caller ! {self(), started(Options)},
        receive stop -> ok end
    end),
    receive
        {Pid, Started} ->
            true = demonitor(Monitor, [flush]),
            Started;
        {'DOWN', Monitor, process, Pid, Reason} ->
            {error, Reason}
    end.

started(Options) ->
    maybe
        {ok, _} ?= application:ensure_all_started(erlmcp),
        {ok, _} ?= supervisor:start_link({local, ?MODULE}, ?MODULE, [erlmcp:child_spec(Options)]),
        {ok, erlmcp:listeners(server())}
    end.

-doc """
Returns the process of the server that `start/1` has started. Returns `restarting` while the server
restarts, and `undefined` if it was stopped. Fails if `start/1` was not called before.
""".
-spec server() -> pid() | restarting | undefined.
server() ->
    [{_, Pid, _, _}] = supervisor:which_children(?MODULE),
    Pid.

-doc """
Starts a server with `Options` under a supervisor without a name, which is linked to the calling
process. Returns the supervisor, or the reason why the server did not start. The application erlmcp
must run.
""".
-spec start_link(Options :: map()) -> {ok, pid()} | {error, term()}.
start_link(Options) ->
    %% A supervisor that fails with its first child also sends its starter an exit signal.
    {ok, Host} = supervisor:start_link(?MODULE, []),
    case supervisor:start_child(Host, erlmcp:child_spec(Options)) of
        {ok, _} ->
            {ok, Host};
        {error, Why} ->
            ok = stop(Host),
            {error, reason(Why)}
    end.

%% Without the record of the child.
reason({Reason, Child}) when is_tuple(Child) -> Reason;
reason(Reason) -> Reason.

-doc """
Stops the supervisor `Host`, which the calling process has started, and its server. Exits if `Host`
has ended already.
""".
-spec stop(Host :: pid()) -> ok.
stop(Host) ->
    true = unlink(Host),
    proc_lib:stop(Host, shutdown, infinity).

-doc false.
init(Children) ->
    %% The intensity is high, since faults kill the server on purpose, again and again.
    {ok, {#{intensity => 1_000, period => 10}, Children}}.
