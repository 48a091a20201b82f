-module(erlmcp_chaos_victims).
-moduledoc """
Kills random processes of a server, runs the drills that do so, and sets up a server that survives
them.
""".

-export([setup/0, drill/4, kill/1]).

-define(IP, {127, 0, 0, 1}).
-define(CALL_MS, 100).
-define(LONGEST_MS, 60_000).

-doc """
Returns the setup of a scenario whose server restarts. Its ports are chosen first, so that they are
the same after the restart.
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
Runs a drill while `Callers` callers make calls that take some time, so that there are processes to
kill. The fault begins when the first fun returns `ok`. `Kill` kills processes, and returns their
number.
""".
-spec drill(Callers :: pos_integer(), fun(() -> ok | {error, term()}),
            Kill :: fun(() -> Killed :: non_neg_integer()),
            erlmcp_chaos_scenario:context()) -> ok | {error, term()}.
drill(Callers, Ready, Kill, Context) ->
    maybe
        {ok, Calling} ?= sleeping(Callers, Context),
        ok ?= Ready(),
        _ = erlmcp_chaos_context:inject(Context),
        Killed = Kill(),
        _ = erlmcp_chaos_context:heal(Context),
        _ = erlmcp_chaos_context:await_recovered(Context),
        _ = erlmcp_load:stop(Calling),
        ok = erlmcp_chaos_context:fact(Context, killed_count, Killed)
    end.

sleeping(Callers, #{target := Target} = Context) ->
    erlmcp_load:start(#{
        target => {http, erlmcp_bench_target:url(Target)}, connections => Callers,
        requests => [{1, {~"tools/call", #{~"name" => ~"sleep",
                                            ~"arguments" => #{ms => ?CALL_MS}}}}],
        loop => {open, Callers * 1000 div ?CALL_MS, even}, warmup_ms => 0,
        duration_ms => ?LONGEST_MS, timeout_ms => 10_000,
        observer => erlmcp_chaos_context:observer(Context, fault)}).

-doc """
Runs in the server's node: kills `Count` of its calls, connections and supervisor's children at
once. Returns how many it killed.
""".
-spec kill(Count :: pos_integer()) -> non_neg_integer().
kill(Count) ->
    Pids = lists:sublist(shuffled(pids()), Count),
    ok = lists:foreach(fun(Pid) -> exit(Pid, kill) end, Pids),
    length(Pids).

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
                %% The server is ending.
                exit:_ -> [Server]
            end
    end.
