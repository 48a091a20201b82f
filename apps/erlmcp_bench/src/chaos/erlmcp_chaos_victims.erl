-module(erlmcp_chaos_victims).
-moduledoc """
Processes of a server that are killed at random, and what a server needs that begins anew for it.
""".

-export([setup/0, kill/1]).

-define(IP, {127, 0, 0, 1}).

-doc """
The setup of a scenario whose server begins anew: it is found on the same ports afterwards, and so
they are chosen before.
""".
-spec setup() -> erlmcp_chaos_scenario:setup().
setup() ->
    Sockets = [{Transport, listening()} || Transport <- [http, tcp]],
    Ports = [{Transport, port(Socket)} || {Transport, Socket} <- Sockets],
    _ = [ok = gen_tcp:close(Socket) || {_, Socket} <- Sockets],
    #{restarts => server,
      server => #{listen => [{Transport, #{port => Port, ip => ?IP}}
                             || {Transport, Port} <- Ports]}}.

listening() ->
    {ok, Socket} = gen_tcp:listen(0, [{ip, ?IP}]),
    Socket.

port(Socket) ->
    {ok, Port} = inet:port(Socket),
    Port.

-doc """
In the server's node: kills so many of its processes, at once: of its calls, its connections and its
supervisor's children. Gives how many there were to kill.
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
                %% The server ends just now.
                exit:_ -> [Server]
            end
    end.
