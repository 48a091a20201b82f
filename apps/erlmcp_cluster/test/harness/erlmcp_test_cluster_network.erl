-module(erlmcp_test_cluster_network).
-moduledoc """
Machines on one network: network namespaces on a bridge, each with an address. What one machine
sends to another can be lost, in one direction or in both.

The calling program must have a network namespace and mounts of its own (`unshare --net --mount`).
Names and addresses are then its own too, and all of this ends with its processes.
""".

-compile(nowarn_missing_spec_documented).

-export([start/1, address/1, command/2, cut/2, heal/2]).

-export_type([machine/0]).

-type machine() :: pos_integer().

%% The network is 10.77.0.0/24, and the caller is 10.77.0.1 in it.
-define(NETWORK, "10.77.0.").
%% No machine has this address, so frames to it are lost.
-define(NOBODY, "02:00:00:00:00:01").

%% Makes the machines 1 to `Count`.
start(Count) ->
    ok = ip("link set lo up"),
    ok = ip("link add bridge type bridge"),
    ok = ip("address add " ?NETWORK "1/24 dev bridge"),
    ok = ip("link set bridge up"),
    lists:foreach(fun machine/1, lists:seq(1, Count)).

machine(Machine) ->
    Name = name(Machine),
    ok = ip(["netns add ", Name]),
    ok = ip(["link add ", Name, " type veth peer name eth0 netns ", Name]),
    ok = ip(["link set ", Name, " master bridge up"]),
    ok = ip(["-n ", Name, " address add ", address(Machine), "/24 dev eth0"]),
    ok = ip(["-n ", Name, " link set eth0 up"]),
    ok = ip(["-n ", Name, " link set lo up"]).

name(Machine) ->
    "machine" ++ integer_to_list(Machine).

address(Machine) ->
    ?NETWORK ++ integer_to_list(10 + Machine).

%% The program and its arguments that run a command on a machine.
command(Machine, Words) ->
    {os:find_executable("ip"), ["netns", "exec", name(Machine) | Words]}.

%% From now on, what one machine sends to the other is silently lost.
cut(From, To) ->
    ip(["-n ", name(From), " neighbour replace ", address(To), " lladdr ", ?NOBODY,
        " dev eth0 nud permanent"]).

heal(From, To) ->
    ip(["-n ", name(From), " neighbour del ", address(To), " dev eth0"]).

ip(Words) ->
    case erlmcp_chaos_program:run("ip", string:lexemes(lists:flatten(Words), " ")) of
        {ok, _} -> ok;
        {error, _} = Error -> Error
    end.
