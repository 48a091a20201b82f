-module(erlmcp_test_cluster_server).
-moduledoc """
The servers of each node. The tools of the first one show what a cluster must not lose or do twice.
The second one is that of the conformance suite.
""".

-behaviour(erlmcp_server).

-compile(nowarn_missing_spec_documented).

-export([start/3, drain/1]).
-export([server/0, tools/0, resources/0, call_tool/3, read_resource/3]).

-define(PORT, 8080).
-define(CONFORMANCE_PORT, 8081).
-define(TICKS, ~"cluster://ticks").
-define(LAME_MS, 2_000).
-define(MANY, 100_000).
-define(LEVELS, [debug, info, notice, warning, error, critical, alert, emergency]).

%% On the node: `File` gets a line for each call of `count`. `More` are options of both servers.
%% They outlive the calling process.
start(Address, File, More) ->
    {ok, Ip} = inet:parse_address(Address),
    ok = persistent_term:put(?MODULE, File),
    {ok, _} = application:ensure_all_started(erlmcp),
    Caller = self(),
    _ = spawn(fun() ->
        Caller ! {?MODULE, [erlmcp:start_server(maps:merge(Options, More))
                            || Options <- servers(Ip)]},
        receive stop -> ok end
    end),
    receive {?MODULE, Started} -> [{ok, _}, {ok, _}] = Started end,
    ok.

servers(Ip) ->
    Listen = fun(Port) -> [{http, #{ip => Ip, port => Port, health => true}}] end,
    [#{handler => ?MODULE, listen => Listen(?PORT),
       limits => #{sessions => ?MANY, sessions_per_principal => ?MANY, tasks => ?MANY,
                   tasks_per_principal => ?MANY}},
     #{handler => everything, listen => Listen(?CONFORMANCE_PORT)}].

%% As an operator does before a node is stopped. The proxy has noticed long before the lame phase is
%% over.
drain(Milliseconds) ->
    Drains = [spawn_monitor(fun() ->
                  {ok, _} = erlmcp:drain(Id, #{lame_ms => ?LAME_MS, timeout_ms => Milliseconds})
              end) || Id <- [?MODULE, everything]],
    [receive {'DOWN', Monitor, process, Pid, normal} -> ok end || {Pid, Monitor} <- Drains],
    ok.

server() ->
    #{id => ?MODULE, name => ~"cluster", version => ~"1"}.

tools() ->
    [#{name => ~"echo", description => ~"Says it again", input_schema => #{text => string}},
     #{name => ~"count", description => ~"Writes a line", input_schema => #{line => string}},
     #{name => ~"tick", description => ~"Changes the resource"},
     #{name => ~"levels", description => ~"Logs once in each level"},
     #{name => ~"work", description => ~"Takes so many milliseconds", task => optional,
       input_schema => #{ms => integer}},
     #{name => ~"work_again", description => ~"The same, again on another node if this one dies",
       task => optional, repeatable => true, input_schema => #{ms => integer}}].

resources() ->
    [#{uri => ?TICKS, name => ~"ticks"}].

read_resource(?TICKS, _, _) -> ~"tick".

%% All but `echo` return the name of their node.
call_tool(~"echo", #{~"text" := Text}, _) ->
    Text;
call_tool(~"count", #{~"line" := Line}, _) ->
    ok = file:write_file(persistent_term:get(?MODULE), [Line, $\n], [append, raw]),
    atom_to_binary(node());
call_tool(~"tick", _, _) ->
    ok = erlmcp:resource_updated(?MODULE, ?TICKS),
    atom_to_binary(node());
call_tool(~"levels", _, Context) ->
    _ = [erlmcp:log(Context, Level, atom_to_binary(Level)) || Level <- ?LEVELS],
    atom_to_binary(node());
call_tool(<<"work", _/binary>>, #{~"ms" := Milliseconds}, _) ->
    receive after Milliseconds -> atom_to_binary(node()) end.
