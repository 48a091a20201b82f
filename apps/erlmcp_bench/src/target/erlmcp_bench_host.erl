-module(erlmcp_bench_host).
-moduledoc "The supervisor of the server under test, in the server's own node.".

-behaviour(supervisor).

-export([start/1, server/0]).
-export([init/1]).

-doc """
Starts the needed applications, and a server with `Options`, which are those of
`erlmcp:start_server/1`. The server outlives the calling process. Returns its listeners, as
`erlmcp:listeners/1` does.
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
        {ok, _} ?= supervisor:start_link({local, ?MODULE}, ?MODULE, Options),
        {ok, erlmcp:listeners(server())}
    end.

-doc """
Returns the supervisor of the server, `restarting` while it restarts, or `undefined` if it was
stopped. `start/1` must have started it.
""".
-spec server() -> pid() | restarting | undefined.
server() ->
    [{_, Pid, _, _}] = supervisor:which_children(?MODULE),
    Pid.

-doc false.
init(Options) ->
    %% The intensity is high, since faults kill the server on purpose, again and again.
    {ok, {#{intensity => 1_000, period => 10}, [erlmcp:child_spec(Options)]}}.
