-module(erlmcp_chaos_inside).
-moduledoc """
Functions that run inside the node of the server under test. Faults use them to inspect and kill
processes.
""".

-export([load_all/0, state/0, kill/1, pids/1, watch/1, killed/2]).

-export_type([state/0, kind/0]).

-type state() :: #{supervisor := string(), processes := pos_integer(), ports := non_neg_integer(),
                   atoms := pos_integer(), memory_bytes := pos_integer()}.
-doc """
A group of the processes of a server.

- `calls`: the processes of running calls.
- `connections`: the processes of all connections, except on stdio.
- `catalog`: the process that publishes the catalog.
- `supervisor`: the server's supervisor.
- `{child, Id}`: the child of the server's supervisor with the id `Id`.
""".
-type kind() :: calls | connections | catalog | supervisor | {child, Id :: atom()}.

-doc """
Loads all modules of erlmcp, its HTTP libraries and the instruments in this node, so that no
measured time includes the loading of code. An application that is not loaded is left out.
""".
-spec load_all() -> ok.
load_all() ->
    All = [Module || Application <- [erlmcp, cowboy, cowlib, ranch, gun, erlmcp_bench],
                         {ok, Modules} <- [application:get_key(Application, modules)],
                         Module <- Modules],
    _ = code:ensure_modules_loaded(All),
    ok.

-doc """
Returns the pid of the server's supervisor as text, and how many processes, ports, atoms and bytes
of memory the node has. While the server restarts, the text is `restarting`.
""".
-spec state() -> state().
state() ->
    #{supervisor => lists:flatten(io_lib:format("~p", [erlmcp_bench_host:server()])),
      processes => erlang:system_info(process_count), ports => erlang:system_info(port_count),
      atoms => erlang:system_info(atom_count), memory_bytes => erlang:memory(total)}.

-doc """
Sends all processes of a kind the exit signal `kill`, without waiting for their ends. Returns the
number of these processes. Fails whenever `pids/1` fails.
""".
-spec kill(kind()) -> non_neg_integer().
kill(Kind) ->
    Pids = pids(Kind),
    ok = lists:foreach(fun(Pid) -> exit(Pid, kill) end, Pids),
    length(Pids).

-doc """
Returns the processes of a kind. While the server restarts, the list for `supervisor` is empty, and
the function fails for any other kind.
""".
-spec pids(kind()) -> [pid()].
pids(supervisor) ->
    [Pid || Pid <- [erlmcp_bench_host:server()], is_pid(Pid)];
pids(calls) ->
    {ok, _, #{gate := Gate}} = erlmcp_registry:whereis(erlmcp_bench_host:server()),
    erlmcp_gate:calls(Gate);
pids(connections) ->
    lists:append([ranch:procs(Ref, connections)
                  || {{listener, {_, Transport, _} = Ref}, _, _, _} <- children(),
                     Transport =/= stdio]);
pids(catalog) ->
    pids({child, publisher});
pids({child, Id}) ->
    [Pid || {Of, Pid, _, _} <- children(), Of =:= Id, is_pid(Pid)].

-doc """
Starts a process that watches the given processes, and returns it. `killed/2` may be called once
with this process, and returns how many of the given processes were killed.
""".
-spec watch([pid()]) -> Watcher :: pid().
watch(Pids) ->
    Caller = self(),
    Watcher = spawn(fun() ->
        _ = [monitor(process, Pid) || Pid <- Pids],
        Caller ! {self(), watching},
        receive
            {killed, From, Milliseconds} ->
                Deadline = erlang:monotonic_time(millisecond) + Milliseconds,
                From ! {self(), count_killed(length(Pids), 0, Deadline)}
        end
    end),
    receive {Watcher, watching} -> Watcher end.

%% A process that ended in another way is not one of them.
count_killed(0, Killed, _) ->
    Killed;
count_killed(More, Killed, Deadline) ->
    receive
        {'DOWN', _, process, _, killed} -> count_killed(More - 1, Killed + 1, Deadline);
        {'DOWN', _, process, _, _} -> count_killed(More - 1, Killed, Deadline)
    after max(0, Deadline - erlang:monotonic_time(millisecond)) ->
        Killed
    end.

-doc """
Returns how many of the processes that `Watcher` watches were killed since `watch/1`. Waits until
all of them have ended, but at most `Milliseconds`. `Watcher` ends with this call.
""".
-spec killed(Watcher :: pid(), Milliseconds :: non_neg_integer()) -> non_neg_integer().
killed(Watcher, Milliseconds) ->
    Watcher ! {killed, self(), Milliseconds},
    receive {Watcher, Killed} -> Killed end.

children() ->
    supervisor:which_children(erlmcp_bench_host:server()).
