-module(erlmcp_chaos_inside).
-moduledoc """
Functions that run inside the node of the server under test, through `erlmcp_chaos_context:call/4`.
Faults use them to inspect and kill processes.
""".

-export([load_all/0, state/0, kill/1, pids/1]).

-export_type([state/0, kind/0]).

-type state() :: #{supervisor := string(), processes := pos_integer(), ports := non_neg_integer(),
                   atoms := pos_integer(), memory_bytes := pos_integer()}.
-doc "The processes of a server, by their purpose.".
-type kind() :: calls | connections | catalog | supervisor | {child, Id :: atom()}.

-doc """
Loads all code that may be needed, as a release does when it starts. Otherwise the first use of a
module waits for files, and the measured time of a fault includes that.
""".
-spec load_all() -> ok.
load_all() ->
    All = [Module || Application <- [erlmcp, cowboy, cowlib, ranch, gun, erlmcp_bench],
                         {ok, Modules} <- [application:get_key(Application, modules)],
                         Module <- Modules],
    _ = code:ensure_modules_loaded(All),
    ok.

-doc """
Returns the pid of the server's supervisor as text, and the node's processes, ports, atoms and bytes
of memory.
""".
-spec state() -> state().
state() ->
    #{supervisor => lists:flatten(io_lib:format("~p", [erlmcp_bench_host:server()])),
      processes => erlang:system_info(process_count), ports => erlang:system_info(port_count),
      atoms => erlang:system_info(atom_count), memory_bytes => erlang:memory(total)}.

-doc "Kills all processes of a kind at once, and returns their number.".
-spec kill(kind()) -> non_neg_integer().
kill(Kind) ->
    Pids = pids(Kind),
    ok = lists:foreach(fun(Pid) -> exit(Pid, kill) end, Pids),
    length(Pids).

-doc "Returns the processes of a kind.".
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

children() ->
    supervisor:which_children(erlmcp_bench_host:server()).
