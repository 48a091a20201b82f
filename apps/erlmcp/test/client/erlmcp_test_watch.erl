-module(erlmcp_test_watch).
-moduledoc """
Watches what a bad peer costs while a case runs: memory, processes, ports and tables. A good server
must be reached all the time.
""".

-export([start/0, stop/1, run/2, run/3]).

-type watch() :: #{server := pid(), client := pid()}.

-define(PATIENCE, 30_000).
%% A connection that nobody uses any more ends after thirty seconds.
-define(ENDS, 60_000).
%% Milliseconds between two calls of the good server.
-define(CALL, 50).
%% "Memory stays under 64 MiB above the start".
-define(MOST, 67_108_864).

-doc "Starts a good server with its client.".
-spec start() -> watch().
start() ->
    Test = self(),
    Pid = spawn(fun() ->
        {ok, Server} = erlmcp:start_server(#{name => ~"good", version => ~"1",
                                             tools => [erlmcp_test_line:echo_tool()],
                                             listen => [{http, #{}}]}),
        [#{url := Url}] = erlmcp:listeners(Server),
        {ok, Client} = erlmcp_client:start_link({http, Url, #{idle_ms => 600_000}}),
        Test ! {self(), Client},
        receive stop -> ok end,
        ok = erlmcp_client:stop(Client),
        ok = erlmcp:stop_server(Server)
    end),
    receive
        {Pid, Client} ->
            ok = good(Client),
            #{server => Pid, client => Client}
    after ?PATIENCE ->
        error(no_good_server)
    end.

-doc "Stops the good server and its client.".
-spec stop(watch()) -> ok.
stop(#{server := Pid}) ->
    Monitor = monitor(process, Pid),
    Pid ! stop,
    receive {'DOWN', Monitor, process, Pid, _} -> ok after ?PATIENCE -> error(stuck) end.

-doc """
Calls a fun that starts clients and bad servers, and stops them again. Returns the fun's result, and
what it cost. Fails if that was 64 MiB of memory or more, if something is left after a minute, or if
the good server was not reached meanwhile.
""".
-spec run(fun(() -> Given), watch()) ->
    {Given, #{milliseconds := integer(), bytes := integer(), calls := integer(),
              slowest := integer()}}.
run(Do, Watch) ->
    run(Do, ?MOST, Watch).

-doc "Runs a fun as `run/2` does, with another bound for the memory, in bytes.".
run(Do, Bound, #{client := Client}) ->
    Before = {processes(), erlang:ports(), ets:all()},
    Grown = erlmcp_test_memory:watch(Bound),
    {Caller, _} = spawn_monitor(fun() -> call(Client, 0, 0) end),
    Began = now_ms(),
    Given = Do(),
    Took = now_ms() - Began,
    Most = Grown(),
    {Calls, Slowest} = told(Caller),
    ok = good(Client),
    true = Most < Bound orelse error({memory, Most, Took}),
    ok = nothing_left(Before, now_ms() + ?ENDS),
    {Given, #{milliseconds => Took, bytes => Most, calls => Calls, slowest => Slowest}}.

told(Pid) ->
    Pid ! stop,
    receive {'DOWN', _, process, Pid, {told, What}} -> What;
            {'DOWN', _, process, Pid, Reason} -> error(Reason)
    end.

call(Client, Calls, Slowest) ->
    Began = now_ms(),
    ok = good(Client),
    Most = max(Slowest, now_ms() - Began),
    receive stop -> exit({told, {Calls + 1, Most}})
    after ?CALL -> call(Client, Calls + 1, Most)
    end.

good(Client) ->
    {ok, #{~"content" := [#{~"text" := ~"hello"}]}} =
        erlmcp_client:call_tool(Client, ~"echo", #{text => ~"hello"}, #{timeout => ?PATIENCE}),
    ok.

%% What ends by itself has its time for that.
nothing_left({Processes, Ports, Tables} = Before, Deadline) ->
    %% `processes/0` also has those that are about to have ended.
    More = [Pid || Pid <- processes() -- Processes, is_process_alive(Pid)],
    case {More, erlang:ports() -- Ports, ets:all() -- Tables} of
        {[], [], []} ->
            ok;
        {MoreProcesses, MorePorts, MoreTables} ->
            case now_ms() > Deadline of
                true ->
                    error({left, [{Pid, process_info(Pid, [initial_call, current_stacktrace])}
                                  || Pid <- MoreProcesses],
                           [erlang:port_info(Port) || Port <- MorePorts],
                           [ets:info(Table) || Table <- MoreTables]});
                false ->
                    receive after 10 -> nothing_left(Before, Deadline) end
            end
    end.

now_ms() ->
    erlang:monotonic_time(millisecond).
