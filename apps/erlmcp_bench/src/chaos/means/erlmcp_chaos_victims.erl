-module(erlmcp_chaos_victims).
-moduledoc """
Kills random processes of a server, runs the drills that do so, and sets up their server, which
comes back on the same ports.
""".

-export([setup/0, drill/5, strike/2]).
%% Functions that run in the server's node.
-export([choose/1, kill/1]).

-define(IP, {127, 0, 0, 1}).
-define(CALL_MS, 100).
-define(LONGEST_MS, 60_000).
%% Milliseconds until killed processes have ended.
-define(ENDED_MS, 200).

-doc """
Returns the setup of a scenario whose server restarts. This function chooses the ports of the
server, so that they are the same after the restart.
""".
-spec setup() -> erlmcp_chaos_scenario:setup().
setup() ->
    Sockets = [{Transport, listen()} || Transport <- [http, tcp]],
    Ports = [{Transport, port(Socket)} || {Transport, Socket} <- Sockets],
    _ = [ok = gen_tcp:close(Socket) || {_, Socket} <- Sockets],
    #{restarts => server,
      server => #{listen => [{Transport, #{port => Port, ip => ?IP}}
                             || {Transport, Port} <- Ports]}}.

listen() ->
    {ok, Socket} = gen_tcp:listen(0, [{ip, ?IP}]),
    Socket.

port(Socket) ->
    {ok, Port} = inet:port(Socket),
    Port.

-doc """
Runs a fault that kills processes, while `Callers` callers make calls of 100 ms. The fault begins
when `Ready` returns `ok`, and ends when `Kill` has killed processes and returned their number. The
result is `unseen` if this number is below `Least`, and `ok` otherwise. The errors are those of
`Ready` and of `erlmcp_load:start/1`.
""".
-spec drill(Callers :: pos_integer(), Ready :: fun(() -> ok | {error, term()}),
            Kill :: fun(() -> Killed :: non_neg_integer()), Least :: pos_integer(),
            erlmcp_chaos_scenario:context()) -> ok | unseen | {error, term()}.
drill(Callers, Ready, Kill, Least, Context) ->
    maybe
        {ok, Calling} ?= sleeping(Callers, Context),
        ok ?= Ready(),
        _ = erlmcp_chaos_context:inject(Context),
        Killed = Kill(),
        _ = erlmcp_chaos_context:heal(Context),
        Seen = erlmcp_chaos_context:seen(Context, processes, killed_processes, Killed,
                                         {at_least, Least}),
        _ = erlmcp_chaos_context:await_recovered(Context),
        _ = erlmcp_load:stop(Calling),
        Seen
    end.

-doc """
Kills `Count` random processes of the server at once, as the harm `processes`. Returns how many were
killed. The number is below `Count` if the server has fewer processes, or if some of them end first.
""".
-spec strike(Count :: pos_integer(), erlmcp_chaos_scenario:context()) -> non_neg_integer().
strike(Count, Context) ->
    Call = fun(Module, Function, Arguments) ->
        erlmcp_chaos_context:call(Context, Module, Function, Arguments)
    end,
    Victims = Call(?MODULE, choose, [Count]),
    Watcher = Call(erlmcp_chaos_inside, watch, [Victims]),
    ok = erlmcp_chaos_context:harm(Context, processes, ok, fun() ->
        Call(?MODULE, kill, [Victims])
    end),
    Call(erlmcp_chaos_inside, killed, [Watcher, ?ENDED_MS]).

sleeping(Callers, #{target := Target} = Context) ->
    erlmcp_load:start(#{
        target => {http, erlmcp_bench_target:url(Target)}, connections => Callers,
        requests => [{1, {~"tools/call", #{~"name" => ~"sleep",
                                            ~"arguments" => #{ms => ?CALL_MS}}}}],
        loop => {open, Callers * 1000 div ?CALL_MS, even}, warmup_ms => 0,
        duration_ms => ?LONGEST_MS, timeout_ms => 10_000,
        observer => erlmcp_chaos_context:observer(Context, fault)}).

-doc """
Returns at most `Count` random processes: calls, connections and children of the server's
supervisor. While the server restarts, the list may have only the supervisor, or be empty.
""".
-spec choose(Count :: pos_integer()) -> [pid()].
choose(Count) ->
    lists:sublist(shuffled(pids()), Count).

-doc "Sends processes the exit signal `kill`, and does not wait for their ends.".
-spec kill([pid()]) -> ok.
kill(Pids) ->
    lists:foreach(fun(Pid) -> exit(Pid, kill) end, Pids).

shuffled(Pids) ->
    [Pid || {_, Pid} <- lists:sort([{rand:uniform(), Pid} || Pid <- Pids])].

pids() ->
    case erlmcp_bench_host:server() of
        restarting ->
            [];
        Server ->
            try
                erlmcp_chaos_inside:pids(calls) ++ erlmcp_chaos_inside:pids(connections)
                    ++ [Pid || {_, Pid, _, _} <- supervisor:which_children(Server), is_pid(Pid)]
            catch
                %% The server is ending: a supervisor, the gate's tables or the instance are gone.
                exit:_ -> [Server];
                error:badarg -> [Server];
                error:{badmatch, error} -> [Server]
            end
    end.
