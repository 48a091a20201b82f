-module(erlmcp_server_cluster).
-moduledoc """
The behaviour of a cluster, for the option `cluster`: the servers with one `id` on several nodes are
one server for their clients. `m:erlmcp_cluster` is such a module, in an application of its own. A
server without the option asks nobody.

The callbacks are called by the processes that need their answers: connections, calls and the
server's own. The `State` is what `c:init/2` returned, and every process of the server has it. It
must be small, and hold no secret.

## Sessions

The node that opened a session is its home. If it dies or leaves, another node is its home. Any node
finds the home from the session's id, and passes requests on to it. A home that has lost its contact
with the cluster serves no session, since another node may be the home already.

## Changes

A cluster calls `heard/2` and `answer/2` on the node that a change or a question has reached.
Changes and questions are terms that only the library reads.
""".

-export([heard/2, answer/2]).

-export_type([session/0, change/0, overview/0, node_overview/0]).

-doc """
A session, as its home knows it: the principal, the revision, the client's declaration and the log
level. Its other members are of no concern to a cluster.
""".
-type session() :: #{
    principal := term(), revision := erlmcp:revision(), client_info := map() | undefined,
    client_capabilities := map(), log_level := 0..7, atom() => term()
}.
-doc """
A change of a session that its next home needs: the log level, or a resource that its client
watches, or no longer watches. `ended` is the end of a session by its client.
""".
-type change() ::
    {log_level, 0..7} | {watched, Uri :: binary()} | {unwatched, Uri :: binary()} | ended.

-doc """
What an operator sees of a cluster.

- `lease_ms`: milliseconds for which this node's place in the cluster is certain; 0 if it is not.
- `majority`: how many nodes make a majority.
- `nodes`: the nodes of the cluster, the dead ones too.
""".
-type overview() :: #{
    lease_ms := non_neg_integer(), majority := pos_integer(), nodes := [node_overview()]
}.
-doc """
A node of a cluster. It is `leaving` when others are the homes of its sessions, and it finishes what
it has begun. `leads`: whether the others agree by it. The further figures are there if the node has
told them recently: its own `lease_ms`, its open sessions, the requests that it has passed on, and
the sessions that it has inherited.
""".
-type node_overview() :: #{
    node := node(), state := alive | leaving | dead, leads := boolean(),
    lease_ms => non_neg_integer(), sessions => non_neg_integer(),
    forwarded => non_neg_integer(), inherited => non_neg_integer()
}.

-doc """
Returns the state of the server that starts with this `id` and these limits. The server's supervisor
calls it.
""".
-callback init(Id :: term(), erlmcp:limits()) -> State :: term().

-doc """
Returns the number of this node's present life in the cluster. Returns `none` while the other nodes
may have declared this one dead, so that it may serve no session and change no task. Each request of
a session calls it, so it must be quick.
""".
-callback incarnation(State :: term()) -> pos_integer() | none.

-doc "Returns the id of a new session, whose home this node is.".
-callback open_session(session(), State :: term()) -> {ok, Id :: binary()} | unavailable.

-doc """
Finds the home of a session that this node does not have. Must not wait.

- `{away, Node, Watch}`: the home is another node, or an earlier life of this one. `Watch` is a
  process of this node that ends when that home is known to have died.
- `inherited`: the home has died or left, and this node is the home now, see `c:inherit_session/3`.
- `unseen`: this node has not heard of the home yet. It will in a moment.
- `unknown`: the principal has no such session, or it has ended.
- `unavailable`: this node may not serve sessions now.
""".
-callback find_session(Id :: binary(), Principal :: term(), State :: term()) ->
    {away, node(), Watch :: pid()} | inherited | unseen | unknown | unavailable.

-doc """
Returns a session that this node has inherited, with the URIs of the resources that its client
watches. Returns `unknown` if its client has ended it. May wait for other nodes.
""".
-callback inherit_session(Id :: binary(), Principal :: term(), State :: term()) ->
    {ok, session(), Watched :: [binary()]} | unknown | unavailable.

-doc """
Stores a change of a session of this node, so that its next home knows it. The client is answered
after that. Returns `full` if the cluster has no room for it. Returns `unavailable` if the change
may not have been stored. May wait for other nodes.
""".
-callback change_session(Id :: binary(), change(), State :: term()) -> ok | full | unavailable.

-doc """
Returns the store of the server's tasks, as the option `task_store` names one. A server with that
option uses its own.
""".
-callback task_store(State :: term()) -> {module(), Options :: map()}.

-doc """
Passes a change on to the server's other nodes, where it reaches `heard/2`. Returns at once,
whatever the state of the other nodes. Changes of one process arrive in their order. Equal changes
that have not left yet may be passed on once. A node that may have missed changes hears of `missed`
instead.
""".
-callback publish(Change :: term(), State :: term()) -> ok.

-doc """
Asks the server on another node, where the question reaches `answer/2`. The answer has to come
within a second. `unreachable` does not mean that the question did not arrive.
""".
-callback ask(node(), Question :: term(), State :: term()) -> {ok, Answer :: term()} | unreachable.

-doc """
Returns the keys of this server that all nodes have, the one that seals first: those of its cursors
and states (`state`), or those of its nonces for DPoP (`dpop`). Returns `none` while the node is in
no cluster. The keys of `state` are read every ten seconds, and those of `dpop` for each nonce.
""".
-callback keys(state | dpop, State :: term()) -> {ok, erlmcp:key_ring()} | none.

-doc """
Lets other nodes be the homes of this node's sessions from now on. The server is about to be
drained: it finishes the calls that run. Returns when this node is the home of no session any more.
""".
-callback leaving(State :: term()) -> ok.

-doc "Returns what an operator sees of the cluster. Must not wait.".
-callback overview(State :: term()) -> overview().

-doc """
Answers what an operator asks of the cluster by `erlmcp cluster`: a JSON object. The error is a
sentence. May wait for other nodes.
""".
-callback operate(Question :: #{binary() => json:decode_value()}, State :: term()) ->
    {ok, json:encode_value()} | {error, binary()}.

-doc "Notifies the clients of this node of the changes of the server `Id` on another node.".
-spec heard(Id :: term(), Changes :: [term()]) -> ok.
heard(Id, Changes) ->
    case erlmcp_registry:whereis(Id) of
        {ok, _, Instance} -> lists:foreach(fun(Change) -> heard_one(Change, Instance) end, Changes);
        error -> ok
    end.

heard_one(Change, Instance) ->
    try
        case Change of
            {proof, Proof, Until} -> erlmcp_httpd:proof_used(Proof, Until, Instance);
            _ -> erlmcp_changes:heard(Change, Instance)
        end
    catch
        %% The server has just ended, and its tables with it.
        error:badarg -> ok
    end.

-doc """
Answers a question of the server `Id` on another node. Returns `gone` if the server does not run
here, or has started again since the question's subject came from it. Returns `unsupported` for a
question of a later release.
""".
-spec answer(Id :: term(), Question :: term()) -> Answer :: term().
answer(Id, {use_state, Server, State, Tenant}) ->
    case erlmcp_registry:whereis(Id) of
        {ok, _, #{key := Server} = Instance} -> erlmcp_used_states:use(State, Tenant, Instance);
        _ -> gone
    end;
answer(_, _) ->
    unsupported.
