-module(erlmcp_cluster).
-moduledoc """
Several nodes as one cluster. Start this application, and let each node join:

```erlang
ok = erlmcp_cluster:join(#{
    data_dir => "/var/lib/erlmcp",
    discovery => {dns, "erlmcp.default.svc.cluster.local"},
    secret => {file, "/run/secrets/erlmcp"}}).
```

The nodes agree on who is alive. Each has a lease, which is valid for a second and is renewed four
times a second. A node without a valid lease, such as one that is cut off, knows that others may
have taken its sessions over. A majority of the nodes must be there, so use three nodes or more.

The nodes connect to each other as Erlang nodes do. They need the same cookie, and names with the
host's address or full name. Protect these connections with TLS or a network of their own: the
cookie is enough to control every node. Start each node with
`-kernel prevent_overlapping_partitions false`: otherwise OTP's `global` closes further connections
when one is lost.
""".

-behaviour(erlmcp_server_cluster).

-export([join/1, leave/0, forget/1, status/0, add/3, remove/3]).
-export([init/2, incarnation/2, open_session/2, find_session/3, inherit_session/3,
         change_session/4, keep_event/3, kept_stream/3, task_store/1, publish/2, ask/3, keys/2,
         leaving/1, overview/1, operate/2, rate_nodes/1, counted/2]).
-export([sentence/1]).

-export_type([options/0, discovery/0, secret/0, status/0, server/0]).

%% The milliseconds in which a node must have joined.
-define(JOIN_MS, 60_000).
%% A node that has joined at the last moment still needs a lease.
-define(LEASE_MS, 5_000).
%% Nodes of a new cluster that DNS finds.
-define(SIZE, 3).
%% A cluster agrees on each renewal of each node.
-define(MOST_NODES, 64).
%% Time for a change of a server's definitions on each node.
-define(CHANGE_MS, 10_000).

-doc """
The options of `join/1`. A value in parentheses is the default.

- `data_dir`: the folder of this node's part of the store. No other node may have it. If it is lost,
  the node gets everything from the others.
- `discovery`: how the nodes find each other.
- `secret`: where the cluster's secret is, or the places of the new secret and of the old one. To
  change the secret, restart each node with both; when all have both, restart each with the new one.
- `size`: how many nodes, 1 to 64, form the cluster when it is new (the number of seeds, or 3 with
  DNS). More nodes may join later.
- `join_ms`: milliseconds in which the node attempts to join (60,000). The last attempt, and the
  wait for the first lease after it, may end some seconds later.
""".
-type options() :: #{
    data_dir := file:name_all(),
    discovery := discovery(),
    secret := secret() | [secret(), ...],
    size => pos_integer(),
    join_ms => pos_integer()
}.
-doc """
The names of 1 to 64 nodes, or a DNS name whose addresses (A and AAAA) are those of the nodes. With
DNS, the node `mcp@10.0.0.1` looks for `mcp@10.0.0.2`.
""".
-type discovery() :: {seeds, [node(), ...]} | {dns, string()}.
-doc """
The place of a secret: a file, or a variable of the environment. The secret there has 32 to 4,096
bytes, without the white space around it.
""".
-type secret() :: {file, file:name_all()} | {env, string()}.
-doc """
The state of the cluster, as this node knows it (`status/0`).

- `node`: this node.
- `incarnation`: the number of this node's present incarnation (its last start in the cluster), or
  `none` before the first incarnation and between two of them.
- `lease_ms`: milliseconds for which this node's lease is valid; 0 if this node has no valid lease.
- `leader`: the node that leads the store, as this node knows it, or `none`.
- `members`: the nodes of the store; `[]` if this node's part of it does not answer. A dead node
  stays a member until `forget/1`.
- `alive`: the incarnations that live or are leaving, with their nodes. An incarnation that has
  ended stays here until its death is written down.
- `deaths`: the incarnations that have died or left, or are leaving, the latest first; 1,000 at
  most.
- `changes`: how many messages about changes of servers this node has `sent` to other nodes and
  `received` from them. `missed` is how many changes were dropped.
""".
-type status() :: #{
    node := node(),
    incarnation := pos_integer() | none,
    lease_ms := non_neg_integer(),
    leader := node() | none,
    members := [node()],
    alive := #{pos_integer() => node()},
    deaths := [pos_integer()],
    changes := #{sent | received | missed := non_neg_integer()}
}.

-doc """
A server of a cluster, on this node. This module returns this map as the state of the callback
`c:erlmcp_server_cluster:init/2`, and the server passes it to the other callbacks.

- `server`: its `id`.
- `bound`: bytes made of its `id`. The ids of its sessions are bound to these bytes, so a server
  with another `id` does not accept them.
- `idle_s`: the seconds after which an idle session has certainly ended.
- `stored`: the limits of the events that are kept for each session.
- `start`: a reference that names this start of the server.
""".
-type server() :: #{
    server := term(), bound := erlmcp_cluster_session_id:server(), idle_s := pos_integer(),
    stored := #{stored_events | stored_bytes | stored_ms := pos_integer()},
    start := reference()
}.

-doc """
Lets this node join its cluster, and returns when it has a lease. The first nodes wait for each
other and form the cluster. A node that was a member before takes its place again. After `no_lease`
or `clock_apart` the node is a member that takes no part, and still counts when a majority is
needed. So call this function again. Exits if the application `erlmcp_cluster` does not run.

## Errors

- `{bad_option, Name, Expected}`: an option is unknown, missing or of the wrong type.
- `not_distributed`: this node has no name for distribution.
- `already_joined`: this node is in a cluster already.
- `{bad_secret, Place, missing | too_short | too_long}`: there is no secret at this place, or it
  does not have 32 to 4,096 bytes.
- `no_cluster`: within `join_ms`, this node has reached no node of a cluster, and no new cluster was
  formed.
- `{other_cluster, Nodes}`: these nodes are in another cluster than this node or than each other.
- `{dead_members, Nodes}`: these members are dead, and so many of them that this node cannot take
  part safely: until it has all facts, the others would have no majority. Start them, or call
  `forget/1` for those that will not come back.
- `no_lease`: this node got no lease in time, as without a majority.
- `{clock_apart, Seconds}`: this node's clock is more than a minute apart from those of the others.
  It is `Seconds` ahead of them, or behind if the number is less than 0.
- `timeout`: this node's part of the store has not started, or has not joined the others, in time.
  This happens when the others have no majority, or when a node that this one is connected to stands
  still.
- Other errors are those of the store, such as `eacces` (`data_dir` cannot be created) or
  `ra_stopped` (the store has ended while the node joined).
""".
-spec join(options()) -> ok | {error, term()}.
join(Options) ->
    maybe
        {ok, #{join_ms := Milliseconds} = Checked} ?= checked(Options),
        Until = erlmcp_clock:now_ms() + Milliseconds,
        true ?= is_alive(),
        ok = warn(application:get_env(kernel, prevent_overlapping_partitions, true)),
        ok ?= erlmcp_cluster_sup:start_member(Checked),
        with_lease(erlmcp_cluster_lease:await(max(?LEASE_MS, Until - erlmcp_clock:now_ms())))
    else
        false -> {error, not_distributed};
        {error, _} = Error -> Error
    end.

warn(false) ->
    ok;
warn(_) ->
    erlmcp_log:report(warning, #{what => cluster_may_lose_connections,
                                 advice => <<"start the node with -kernel "
                                             "prevent_overlapping_partitions false">>}).

with_lease(ok) ->
    ok;
with_lease({error, _} = Error) ->
    Clock = erlmcp_cluster_time:report(),
    _ = erlmcp_cluster_sup:stop_member(),
    case Clock of
        #{state := apart, ahead_s := Seconds} -> {error, {clock_apart, Seconds}};
        _ -> Error
    end.

-doc """
Takes this node out of the cluster for good, and deletes its part of the store. The other nodes take
its sessions over at once. Sessions and their calls end here, as do streams of
`subscriptions/listen`. Drain the servers first (`erlmcp:drain/2`), so that their calls are
answered. After an error of the store the node is still in its cluster, and may have ended its
sessions. Call this function again.

## Errors

- `not_joined`: this node is in no cluster.
- `last_member`: this node is the only one of its cluster.
- `no_majority`: no majority of the other members runs, so the cluster would end with this node.
  Start the dead ones, or call `forget/1` for those that will not come back.
- `timeout`: there was no majority, the store did not answer, or a node that this one is connected
  to stands still. Other errors are those of the store.
""".
-spec leave() -> ok | {error, not_joined | last_member | no_majority | term()}.
leave() ->
    maybe
        true ?= erlmcp_cluster_sup:is_joined(),
        ok ?= erlmcp_cluster_store:may_leave(),
        ok ?= erlmcp_cluster_lease:leave(),
        ok = erlmcp_cluster_sessions:leave(),
        ok ?= left(erlmcp_cluster_store:leave()),
        erlmcp_cluster_sup:stop_member()
    else
        false -> {error, not_joined};
        {error, _} = Error -> Error
    end.

left(ok) ->
    ok;
left({error, _} = Error) ->
    ok = erlmcp_cluster_lease:stay(),
    Error.

-doc """
Removes a dead node from the cluster. Call this function for a node that will not come back. Until
the call the dead node counts when a majority is needed. If the node does come back, it joins as a
new node.

## Errors

- `not_joined`: this node is in no cluster.
- `not_member`: the cluster has no such node.
- `alive`: the node's lease has not ended.
- Other errors are those of the store, such as `timeout`.
""".
-spec forget(node()) -> ok | {error, not_joined | not_member | alive | term()}.
forget(Node) ->
    case erlmcp_cluster_sup:is_joined() of
        true -> erlmcp_cluster_store:forget(Node);
        false -> {error, not_joined}
    end.

-doc """
Returns what this node knows of its cluster. Returns `{error, not_joined}` if the node is in none.
""".
-spec status() -> {ok, status()} | {error, not_joined}.
status() ->
    case erlmcp_cluster_sup:is_joined() of
        true ->
            Incarnation = case erlmcp_cluster_lease:current() of
                #{number := Number} -> Number;
                none -> none
            end,
            Deaths = erlmcp_cluster_deaths:list(erlmcp_cluster_members:deaths()),
            {ok, #{node => node(), incarnation => Incarnation,
                   lease_ms => erlmcp_cluster_lease:remaining_ms(),
                   leader => erlmcp_cluster_store:leader(),
                   members => erlmcp_cluster_store:members(),
                   alive => erlmcp_cluster_members:incarnations(),
                   deaths => [Dead || {Dead, _} <- Deaths],
                   changes => erlmcp_cluster_changes:counts()}};
        false ->
            {error, not_joined}
    end.

-doc """
Adds a definition to the servers with the id `Id` on this node and on all other living nodes, as
`erlmcp:add/3` does on one node. Its funs run on each node, so write them as
`fun Module:Function/Arity`. A node that starts after this call has only the definitions of its own
options.

## Errors

The error has the nodes that have not added the definition, each with its reason. The other nodes
have added it. A reason is an error of `erlmcp:add/3`, or the exception with which that function
failed on the node. The reason is `unreachable` if no answer came within ten seconds: that node may
have added the definition. If this node is in no cluster, the error has this node alone, with the
reason `not_joined`. If this node knows of no other one, since its part of the store does not
answer, the reason is the error of the store.
""".
-spec add(Id :: term(), erlmcp:kind(), erlmcp:definition()) -> ok | {error, #{node() => term()}}.
add(Id, Kind, Definition) ->
    on_all(add, [Id, Kind, Definition]).

-doc """
Removes a definition from the servers with the id `Id` on all living nodes, as `erlmcp:remove/3`
does on one node. The error is that of `add/3`, with reasons of `erlmcp:remove/3`.
""".
-spec remove(Id :: term(), erlmcp:kind(), Key :: binary()) -> ok | {error, #{node() => term()}}.
remove(Id, Kind, Key) ->
    on_all(remove, [Id, Kind, Key]).

on_all(Function, Arguments) ->
    maybe
        true ?= erlmcp_cluster_sup:is_joined(),
        {ok, Living} ?= living(),
        %% This node may have joined so recently that it does not know of its own lease.
        on(lists:usort([node() | Living]), Function, Arguments)
    else
        false -> {error, #{node() => not_joined}};
        {error, Reason} -> {error, #{node() => Reason}}
    end.

%% If this node's part of the store has no answer, the nodes that were seen last.
living() ->
    case {erlmcp_cluster_store:leases(low_latency),
          maps:values(erlmcp_cluster_members:incarnations())} of
        {{ok, Leases}, _} -> {ok, [Node || {_, Node, _} <- maps:values(Leases)]};
        {{error, _} = Error, []} -> Error;
        {{error, _}, Seen} -> {ok, Seen}
    end.

on(Nodes, Function, Arguments) ->
    Results = erpc:multicall(Nodes, erlmcp, Function, Arguments, ?CHANGE_MS),
    case [{Node, reason(Result)} || {Node, Result} <- lists:zip(Nodes, Results),
                                    Result =/= {ok, ok}] of
        [] -> ok;
        Failed -> {error, maps:from_list(Failed)}
    end.

reason({ok, {error, Reason}}) -> Reason;
reason({error, {erpc, _}}) -> unreachable;
reason({_, Reason}) -> Reason.

%% The cluster of a server.

-doc false.
init(Id, #{session_idle_ms := Idle} = Limits) ->
    %% A session ends a little later than the limit says.
    #{server => Id, bound => erlmcp_cluster_session_id:server(Id),
      idle_s => Idle div 1_000 + Idle div 50_000 + 2,
      stored => maps:with([stored_events, stored_bytes, stored_ms], Limits),
      start => make_ref()}.

-doc false.
incarnation(sessions, _) -> erlmcp_cluster_lease:incarnation();
incarnation(tasks, _) -> erlmcp_cluster_lease:lasting().

-doc false.
open_session(Session, Server) ->
    erlmcp_cluster_sessions:open(Session, Server).

-doc false.
find_session(Id, Principal, Server) ->
    erlmcp_cluster_sessions:find(Id, Principal, Server).

-doc false.
inherit_session(Id, Principal, Server) ->
    erlmcp_cluster_sessions:inherit(Id, Principal, Server).

-doc false.
change_session(Id, Tenant, Change, Server) ->
    erlmcp_cluster_sessions:change(Id, Tenant, Change, Server).

-doc false.
keep_event(Session, Event, Server) ->
    erlmcp_cluster_events:keep(Session, Event, Server).

-doc false.
kept_stream(Session, Stream, Server) ->
    erlmcp_cluster_events:stream(Session, Stream, Server).

-doc false.
task_store(#{server := Id}) ->
    {erlmcp_cluster_task_store, #{server => Id}}.

-doc false.
publish(Change, #{server := Id}) ->
    erlmcp_cluster_changes:publish(Id, Change).

-doc false.
ask(Node, Question, #{server := Id}) ->
    erlmcp_cluster_changes:ask(Node, Id, Question).

-doc false.
keys(Use, #{server := Id}) ->
    erlmcp_cluster_secret:ring(Use, Id).

-doc false.
leaving(_) ->
    case erlmcp_cluster_sup:is_joined() of
        true -> erlmcp_cluster_sessions:hand_over();
        false -> ok
    end.

-doc false.
overview(_) ->
    erlmcp_cluster_figures:overview().

-doc false.
operate(Question, _) ->
    erlmcp_cluster_operator:ask(Question).

-doc false.
rate_nodes(_) ->
    erlmcp_cluster_rates:nodes().

-doc false.
counted(Account, Server) ->
    erlmcp_cluster_rates:counted(Account, Server).

%% Errors, in words.

-doc "Returns an error of `join/1`, `leave/0` or `forget/1` in words, for people.".
-spec sentence(Reason :: term()) -> binary().
sentence(not_joined) -> ~"this node is in no cluster";
sentence(already_joined) -> ~"this node is in its cluster";
sentence(not_distributed) -> ~"this node has no name, so no other node can connect to it";
sentence(not_member) -> ~"the cluster has no such node";
sentence(alive) -> ~"this node is alive: stop it, or let it leave";
sentence(last_member) -> ~"this node is the last one of its cluster, and cannot leave";
sentence(no_cluster) -> ~"the nodes of the new cluster were not all there in time";
sentence(no_majority) ->
    ~"without this node the others are no majority: start the dead nodes, or forget them";
sentence(timeout) -> ~"this node or another one did not answer in time";
sentence(no_lease) -> ~"there was no majority of the nodes in time";
sentence({clock_apart, Seconds}) when Seconds > 0 ->
    printed("the clock of this node is ~b seconds ahead of the other nodes: set it", [Seconds]);
sentence({clock_apart, Seconds}) ->
    printed("the clock of this node is ~b seconds behind the other nodes: set it", [-Seconds]);
sentence({other_cluster, Nodes}) ->
    printed("these nodes are in another cluster: ~ts", [names(Nodes)]);
sentence({dead_members, Nodes}) ->
    printed("these members are dead: start them, or forget them, before another node joins: ~ts",
            [names(Nodes)]);
sentence({bad_option, Name, Expected}) -> printed("~ts: expected ~ts", [Name, Expected]);
sentence({bad_secret, {Kind, Place}, Reason}) ->
    printed("the secret of the ~ts ~ts ~ts",
            [case Kind of file -> "file"; env -> "variable" end, Place,
             case Reason of
                 missing -> "is missing";
                 too_short -> "is too short: 32 bytes at least";
                 too_long -> "is too long: 4,096 bytes at most"
             end]);
sentence(Reason) -> printed("~0tp", [Reason]).

names(Nodes) -> lists:join(", ", [atom_to_list(Node) || Node <- Nodes]).

printed(Format, Arguments) ->
    <<(unicode:characters_to_binary(io_lib:format(Format, Arguments)))/binary>>.

%% Options.

checked(Options) ->
    Missing = [Name || Name <- [data_dir, discovery, secret], not is_map_key(Name, Options)],
    Bad = [{Name, Expected} || Name := Value <- Options,
                               {bad, Expected} <- [check(Name, Value)]],
    case {Missing, lists:sort(Bad)} of
        {[], []} -> {ok, with_defaults(Options)};
        {[Name | _], _} -> {error, {bad_option, Name, ~"a value: it has no default"}};
        {[], [{Name, Expected} | _]} -> {error, {bad_option, Name, Expected}}
    end.

check(data_dir, Folder) when is_list(Folder), Folder =/= []; is_binary(Folder), Folder =/= ~"" ->
    ok;
check(data_dir, _) ->
    {bad, ~"the name of a folder"};
check(discovery, {seeds, [_ | _] = Nodes}) when length(Nodes) =< ?MOST_NODES ->
    case lists:all(fun is_node/1, Nodes) of
        true -> ok;
        false -> check(discovery, Nodes)
    end;
check(discovery, {dns, [Character | _]}) when is_integer(Character) ->
    ok;
check(discovery, _) ->
    {bad, ~"{seeds, Nodes} with 1 to 64 names of nodes, or {dns, Name}"};
check(secret, {file, Path}) when is_list(Path), Path =/= []; is_binary(Path), Path =/= ~"" ->
    ok;
check(secret, {env, [Character | _]}) when is_integer(Character) ->
    ok;
check(secret, [{_, _} = One | Others]) when length(Others) < 2 ->
    case [Bad || Source <- [One | Others], {bad, _} = Bad <- [check(secret, Source)]] of
        [] -> ok;
        [Bad | _] -> Bad
    end;
check(secret, _) ->
    {bad, ~"{file, Path} or {env, Name}, or a list of the new one and the old one"};
check(size, Size) when is_integer(Size), Size >= 1, Size =< ?MOST_NODES ->
    ok;
check(size, _) ->
    {bad, ~"an integer from 1 to 64"};
check(join_ms, Milliseconds) ->
    case erlmcp_user_term:check_wait(Milliseconds) of
        true -> ok;
        Expected -> {bad, Expected}
    end;
check(_, _) ->
    {bad, ~"no such option"}.

is_node(Node) ->
    is_atom(Node) andalso length(string:split(atom_to_list(Node), "@")) =:= 2.

with_defaults(#{discovery := Discovery, secret := Secret} = Options) ->
    Size = case Discovery of
        {seeds, Nodes} -> length(lists:usort(Nodes));
        {dns, _} -> ?SIZE
    end,
    Sources = case Secret of
        {_, _} -> [Secret];
        _ -> Secret
    end,
    maps:merge(#{size => Size, join_ms => ?JOIN_MS}, Options#{secret => Sources}).
