-module(erlmcp_test_peer_node).
-moduledoc """
Nodes of their own for suites, on this machine. They have a minute to start, and a minute for each
call: the 15 and 5 seconds of `m:peer` are too few on a machine that is busy with other suites.
""".

-compile(nowarn_missing_spec_documented).

-export([start/1, start_link/1, call/4, stop/1]).

-define(PATIENCE, 60_000).

%% Starts a node that outlives the calling process. `Options` are those of `peer`. The node has the
%% code of this one, and is controlled by its standard input and output.
-spec start(peer:start_options()) -> {peer:server_ref(), node()}.
start(Options) ->
    {ok, Peer, Node} = peer:start(options(Options)),
    {Peer, Node}.

%% Starts a node that ends with the calling process.
-spec start_link(peer:start_options()) -> {peer:server_ref(), node()}.
start_link(Options) ->
    {ok, Peer, Node} = peer:start_link(options(Options)),
    {Peer, Node}.

options(Options) ->
    Paths = [Path || Path <- code:get_path(), Path =/= "."],
    maps:merge(#{connection => standard_io, wait_boot => ?PATIENCE},
               Options#{args => maps:get(args, Options, []) ++ ["-pa" | Paths]}).

-spec call(peer:server_ref(), module(), Function :: atom(), Arguments :: [term()]) -> term().
call(Peer, Module, Function, Arguments) ->
    peer:call(Peer, Module, Function, Arguments, ?PATIENCE).

-spec stop(peer:server_ref()) -> ok.
stop(Peer) ->
    peer:stop(Peer).
