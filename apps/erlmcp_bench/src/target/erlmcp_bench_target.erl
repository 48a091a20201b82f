-module(erlmcp_bench_target).
-moduledoc """
The server under test, in a node and an operating system process of its own. The node is controlled
over its standard input and output (`call/4`).
""".

-export([start/1, stop/1, call/4, call/5, os_pid/1, url/1, address/2]).

-export_type([target/0, options/0]).

-type target() :: #{peer := pid(), os_pid := pos_integer(), listeners := [map()],
                    host := inet:ip_address()}.

-type options() :: #{
    %% Options of `erlmcp:start_server/1`. The default is the fixture on a free HTTP and TCP port.
    %% One address may have all its sessions, unless its limits say otherwise.
    server => map(),
    %% Flags of the emulator, as `erl` takes them.
    flags => [string()],
    env => [{string(), string()}],
    %% Words before the emulator's command: `ip netns exec NAME`, `taskset -c 0`.
    prefix => [string()],
    %% The address of its listeners.
    host => inet:ip_address(),
    %% How the server is broken on purpose (`m:erlmcp_bench_mutant`).
    mutant => none | erlmcp_bench_mutant:mutant(),
    %% A function that is called in the node before the server starts, and returns `ok` or an
    %% error.
    prepare => {module(), atom(), [term()]}}.

%% The flags of bin/erlmcp for a server.
-define(FLAGS, ["+sbwt", "none", "+sbwtdcpu", "none", "+sbwtdio", "none",
                "+MHsmbcs", "256", "+MHlmbcs", "256", "+MHas", "ageffcaoff"]).
-define(BOOT_MS, 60_000).
-define(CALL_MS, 60_000).

-doc """
Starts a node and a server in it. Both end with the calling process, which goes on if the node ends.
The error is that of `peer:start_link/1`, of the option `prepare`, or of the server's start. No node
is left then.
""".
-spec start(options()) -> {ok, target()} | {error, term()}.
start(Options) ->
    Host = maps:get(host, Options, {127, 0, 0, 1}),
    Server = maps:get(server, Options, #{
        handler => erlmcp_bench_fixture,
        listen => [{http, #{port => 0, ip => Host}}, {tcp, #{port => 0, ip => Host}}]}),
    maybe
        {ok, Peer, _} ?= started(node_options(Options)),
        OsPid = list_to_integer(peer:call(Peer, os, getpid, [], ?CALL_MS)),
        ok = break(maps:get(mutant, Options, none), Peer),
        case served(Options, for_one_address(Server), Peer) of
            {ok, Listeners} ->
                {ok, #{peer => Peer, os_pid => OsPid, listeners => Listeners, host => Host}};
            {error, _} = Error ->
                ok = peer:stop(Peer),
                Error
        end
    end.

%% Starts a node that ends with the calling process. The two are not linked: the process of `peer`
%% crashes if a call finds that the node has just ended.
started(Options) ->
    Caller = self(),
    {Keeper, Monitor} = spawn_monitor(fun() ->
        _ = process_flag(trap_exit, true),
        Watch = monitor(process, Caller),
        Started = peer:start_link(Options),
        Caller ! {self(), Started},
        keep(Started, Watch)
    end),
    receive
        {Keeper, Started} ->
            true = demonitor(Monitor, [flush]),
            Started;
        {'DOWN', Monitor, process, Keeper, Reason} ->
            {error, Reason}
    end.

%% The node is linked to this process.
keep({ok, Peer, _}, Watch) ->
    receive
        {'DOWN', Watch, process, _, _} -> exit(shutdown);
        {'EXIT', Peer, _} -> ok
    end;
keep({error, _}, _) ->
    ok.

served(Options, Server, Peer) ->
    maybe
        ok ?= prepare(Options, Peer),
        peer:call(Peer, erlmcp_bench_host, start, [Server], ?CALL_MS)
    end.

%% All clients of the instruments have one address, which may therefore have all sessions.
for_one_address(Server) ->
    #{sessions := Default} = #{Name => Value || {Name, Value, _} <- erlmcp_server_options:limits()},
    Limits = maps:get(limits, Server, #{}),
    OfOne = #{sessions_per_principal => maps:get(sessions, Limits, Default)},
    Server#{limits => maps:merge(OfOne, Limits)}.

break(none, _) -> ok;
break(Mutant, Peer) -> peer:call(Peer, erlmcp_bench_mutant, install, [Mutant], ?CALL_MS).

prepare(#{prepare := {Module, Function, Arguments}}, Peer) ->
    peer:call(Peer, Module, Function, Arguments, ?CALL_MS);
prepare(_, _) ->
    ok.

node_options(Options) ->
    Words = maps:get(prefix, Options, []) ++ erlmcp_bench_node:words([]),
    Program = case os:find_executable(hd(Words)) of
                  false -> hd(Words);
                  Found -> Found
              end,
    #{connection => standard_io, exec => {Program, tl(Words)}, wait_boot => ?BOOT_MS,
      env => maps:get(env, Options, []),
      args => ?FLAGS ++ maps:get(flags, Options, [])
          ++ ["-pa" | erlmcp_bench_node:code_path()]}.

-doc """
Halts the node, without stopping the server first. Does not wait until the node's process in the
operating system has ended. Returns `ok` if the node had ended before.
""".
-spec stop(target()) -> ok.
stop(#{peer := Peer}) ->
    try
        peer:stop(Peer)
    catch
        exit:noproc -> ok
    end.

-doc """
Calls a function in the server's node, and returns its value. Fails if the function fails or the
node ends, or after a minute.
""".
-spec call(target(), module(), atom(), [term()]) -> term().
call(Target, Module, Function, Arguments) ->
    call(Target, Module, Function, Arguments, ?CALL_MS).

-doc "Calls a function as `call/4` does, but waits for at most `Milliseconds`.".
-spec call(target(), module(), atom(), [term()], Milliseconds :: timeout()) -> term().
call(#{peer := Peer}, Module, Function, Arguments, Milliseconds) ->
    peer:call(Peer, Module, Function, Arguments, Milliseconds).

-doc "Returns the process id of the node in the operating system.".
-spec os_pid(target()) -> pos_integer().
os_pid(#{os_pid := OsPid}) -> OsPid.

-doc "Returns the URL of the MCP endpoint on the server's first HTTP listener.".
-spec url(target()) -> binary().
url(Target) ->
    {Ip, Port} = address(http, Target),
    iolist_to_binary(uri_string:recompose(
        #{scheme => ~"http", host => list_to_binary(inet:ntoa(Ip)), port => Port,
          path => ~"/mcp"})).

-doc "Returns the address of the first listener of `Transport`, which the server must have.".
-spec address(Transport :: http | tcp, target()) -> {inet:ip_address(), inet:port_number()}.
address(Transport, #{listeners := Listeners, host := Host}) ->
    [Port | _] = [Port || #{transport := Of, port := Port} <- Listeners, Of =:= Transport],
    {Host, Port}.
