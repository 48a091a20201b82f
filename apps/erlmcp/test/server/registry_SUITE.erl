-module(registry_SUITE).
-moduledoc "How servers are found, and that no process is needed for it.".

-export([suite/0, all/0, init_per_testcase/2, end_per_testcase/2]).
-export([lookups_wait_for_nobody/1, a_new_registry_knows_the_old_ones_servers/1]).

-import(erlmcp_test_line, [serve/1, echo_tool/0]).
-import(erlmcp_test_two_eras, [open/2, listed/2, await/1]).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [lookups_wait_for_nobody, a_new_registry_knows_the_old_ones_servers].

%% The application begins anew, before and after: its supervisor counts restarts.
init_per_testcase(_, Config) ->
    #{level := Level} = logger:get_primary_config(),
    ok = logger:set_primary_config(level, none),
    _ = application:stop(erlmcp),
    {ok, _} = application:ensure_all_started(erlmcp),
    [{log_level, Level} | Config].

end_per_testcase(_, Config) ->
    ok = application:stop(erlmcp),
    {ok, _} = application:ensure_all_started(erlmcp),
    ok = logger:set_primary_config(level, proplists:get_value(log_level, Config)).

lookups_wait_for_nobody(_) ->
    Server = serve(#{id => ?FUNCTION_NAME}),
    ok = sys:suspend(erlmcp_registry),
    [begin
         [#{transport := tcp}] = erlmcp:listeners(Known),
         #{mounts := []} = erlmcp:info(Known),
         ok = erlmcp:add(Known, tool, (echo_tool())#{name => ~"added"}),
         ok = erlmcp:remove(Known, tool, ~"added")
     end || Known <- [Server, ?FUNCTION_NAME]],
    %% Nor is it heard there that a server ended.
    Ended = monitor(process, Server),
    exit(Server, kill),
    receive {'DOWN', Ended, process, Server, killed} -> ok end,
    [{error, not_found} = erlmcp:listeners(Known) || Known <- [Server, ?FUNCTION_NAME, self()]],
    ok = sys:resume(erlmcp_registry).

a_new_registry_knows_the_old_ones_servers(_) ->
    Id = ?FUNCTION_NAME,
    Inner = serve(#{id => Id}),
    Outer = serve(#{tools => [], mounts => [{~"m", Id}]}),
    Client = open(~"2026-07-28", Outer),
    ok = begin_anew(),
    [[#{transport := tcp}] = erlmcp:listeners(Known) || Known <- [Inner, Id, Outer]],
    {error, {already_started, Inner}} = started_elsewhere(#{id => Id, name => ~"n",
                                                            version => ~"1"}),
    %% It hears of their ends, and those that wait for a server are told.
    ok = erlmcp:stop_server(Id),
    await(fun() -> listed(Client, tool) =:= [] end),
    await(fun() ->
        [] =:= [Key || Key <- [{pid, Inner}, {id, Id}], ets:member(erlmcp_registry, Key)]
    end),
    Again = serve(#{id => Id}),
    await(fun() -> listed(Client, tool) =:= [~"m_echo"] end),
    [#{transport := tcp}] = erlmcp:listeners(Again).

%% A server that cannot start takes with it who is linked to it.
started_elsewhere(Options) ->
    {Pid, Monitor} = spawn_monitor(fun() ->
        process_flag(trap_exit, true),
        exit({started, erlmcp:start_server(Options)})
    end),
    receive {'DOWN', Monitor, process, Pid, {started, Started}} -> Started end.

begin_anew() ->
    Before = whereis(erlmcp_registry),
    Monitor = monitor(process, Before),
    exit(Before, kill),
    receive {'DOWN', Monitor, process, Before, killed} -> ok end,
    await(fun() -> is_pid(whereis(erlmcp_registry)) end).
