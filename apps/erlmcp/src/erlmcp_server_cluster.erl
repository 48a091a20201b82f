-module(erlmcp_server_cluster).
-moduledoc """
The behaviour of a cluster, for the option `cluster`: the servers with one `id` on several nodes are
one server for their clients. `m:erlmcp_cluster` is such a module, in an application of its own. A
server without the option asks no other node.

The callbacks are called by the processes that need their answers: connections, calls and the
server's own. The `State` is what `c:init/2` returned, and every process of the server has it. The
state must be small, and hold no secret.

## Sessions

The node that opened a session is its home. If the home dies or leaves, another node becomes the
home. Any node finds the home from the session's id, and passes requests on to it. A home that has
lost its contact with the cluster serves no session, since another node may be the home already.

## Changes

A cluster calls `heard/2` and `answer/2` on the node that a change or a question has reached.
Changes and questions are terms that only the library reads.

## Rates

The rates of a client are those of all nodes together. Each node counts the messages that it lets
in, and those of other nodes when it hears of them. Until all others have heard of a message, each
of them may let one in at the same moment. So the message counts `c:rate_nodes/1` times until then,
and once after that (`heard_by_all/3`).

After `c:counted/2` a cluster asks how many messages the others have not heard of (`unheard/1`), and
tells them (`count_messages/2`), until that number is 0.
""".

-export([heard/2, answer/2]).
-export([accounts/1, client/1, unheard/1, heard_by_all/3, count_messages/2, paid/1, pay/2]).

-export_type([session/0, change/0, requests/0, kept_event/0, kept_stream/0, overview/0,
              node_overview/0, clock/0, account/0]).

-doc "An opaque term that names the rate counts of one client on this node.".
-type account() :: term().

-doc """
A session, as its home knows it: the principal, the revision, the log level, and the client's
declaration (`client_info` and `client_capabilities`). A cluster need not keep its other members.
""".
-type session() :: #{
    principal := term(), revision := erlmcp:revision(), client_info := map() | undefined,
    client_capabilities := map(), log_level := 0..7, atom() => term()
}.
-doc """
A change of a session that its next home needs: the log level, or a resource that its client
watches, or no longer watches. `ended` is the end of a session by its client. A `declaration` is
what `c:open_session/2` could not put into the session's id.
""".
-type change() ::
    {log_level, 0..7} | {watched, Uri :: binary()} | {unwatched, Uri :: binary()} | ended
    | {declaration, binary()}.

-doc "The ids of the requests that a stream answers: one, or those of a batch.".
-type requests() :: {call | batch, [binary() | integer()]}.
-doc """
A part of a call's stream, for its copy on another node: an event, the beginning of the stream, or
its end without an answer.

- `stream`: names the stream, by the number of the home's incarnation and a number of the stream.
- `requests`: the requests that the stream answers.
- `position`: the place of the event in the stream, from 1. The beginning of the stream has 0, and
  an end without an answer has the position of the last event.
- `bytes`: the event. The value is `none` for the beginning of a stream, for an end without an
  answer, and for a last event that is not copied.
- `ended`: `true` if the stream ends with this part.
""".
-type kept_event() :: #{
    stream := {Incarnation :: non_neg_integer(), pos_integer()}, requests := requests(),
    position := non_neg_integer(), bytes := binary() | none, ended := boolean()
}.
-doc """
The copies that this node has of the stream of a call at an earlier home. `events` are the last
events of the stream, without a gap up to the position `last`. The `state` is `lost` if the stream
did not end before that home died, or if its last event was not copied. The `state` is `running` if
that home is leaving, and finishes its calls.
""".
-type kept_stream() :: #{
    requests := requests(), events := [{Position :: pos_integer(), binary()}],
    last := non_neg_integer(), state := ended | running | lost
}.

-doc """
The state of a cluster, for operators.

- `lease_ms`: milliseconds for which this node's place in the cluster is certain; 0 if it is not.
- `disk`: `ok`, or why this node's part of what the cluster agrees on cannot be written.
- `clock`: this node's clock, compared with those of the others.
- `majority`: how many nodes make a majority.
- `nodes`: the nodes of the cluster, the dead ones too.
""".
-type overview() :: #{
    lease_ms := non_neg_integer(), disk := ok | file:posix(), clock := clock(),
    majority := pos_integer(), nodes := [node_overview()]
}.
-doc """
The clock of a node, compared with those of the other nodes. Its `state` is `right`, or `apart` from
them by more than a minute. The state is `doubtful` if some clocks differ by more than a minute, and
no node knows which one is right. `ahead_s` is by how many seconds the clock is ahead of the others:
negative if it is behind, and 0 if it is `right`.
""".
-type clock() :: #{state := right | doubtful | apart, ahead_s := integer()}.
-doc """
A node of a cluster. Its `state` is `leaving` when others are the homes of its sessions, and it
finishes what it has begun. `leads` is `true` for the leader, through which the nodes agree. The
other figures are there if the node has sent them recently. These figures are its own `lease_ms`,
its open `sessions`, the requests that it has passed on (`forwarded`), and the sessions that it has
`inherited`. `clock_ahead_s` is by how many seconds its clock is ahead of the others (`t:clock/0`).
""".
-type node_overview() :: #{
    node := node(), state := alive | leaving | dead, leads := boolean(),
    lease_ms => non_neg_integer(), sessions => non_neg_integer(),
    forwarded => non_neg_integer(), inherited => non_neg_integer(), clock_ahead_s => integer()
}.

-doc """
Returns the cluster's state for a server that starts with this `id` and these limits. The server's
supervisor calls this callback when the server starts.
""".
-callback init(Id :: term(), erlmcp:limits()) -> State :: term().

-doc """
Returns the number of this node's present incarnation: its last start in the cluster. Returns `none`
while the other nodes may have declared this one dead. This node must then neither serve a session
nor change a task. For `sessions`, also returns `none` when the node gives its sessions up
(`c:leaving/1`). Each request of a session calls this function, so it must be quick.
""".
-callback incarnation(sessions | tasks, State :: term()) -> pos_integer() | none.

-doc """
Returns the id of a new session. Its home is this node, in the incarnation `Incarnation`
(`c:incarnation/2`). The server then stores the `Changes` by `c:change_session/4`, and the client
gets the id after that. If the session would exceed a limit, the server refuses it and stores no
change. Returns `unavailable` if this node may serve no session now. Must not wait for other nodes.
""".
-callback open_session(session(), State :: term()) ->
    {ok, Id :: binary(), Incarnation :: pos_integer(), Changes :: [change()]} | unavailable.

-doc """
Finds the home of a session that this node does not have. Must not wait.

- `{away, Node, Watch}`: the home is another node, or an earlier incarnation of this one. `Watch` is
  a process of this node that ends when that home is known to have died.
- `inherited`: the home has died or left, and this node is the home now, see `c:inherit_session/3`.
- `unseen`: this node has not heard of the home, and may hear of it in a moment.
- `unknown`: the principal has no such session, or the session has ended.
- `unavailable`: this node may not serve sessions now.
""".
-callback find_session(Id :: binary(), Principal :: term(), State :: term()) ->
    {away, node(), Watch :: pid()} | inherited | unseen | unknown | unavailable.

-doc """
Returns the session `Id` of `Principal`, which this node has inherited, with the URIs of the
resources that its client watches. Returns `unknown` if its client has ended the session, and
`unavailable` if this node cannot find out now. May wait for other nodes.
""".
-callback inherit_session(Id :: binary(), Principal :: term(), State :: term()) ->
    {ok, session(), Watched :: [binary()]} | unknown | unavailable.

-doc """
Stores a change of a session of this node, so that its next home knows it. The client is answered
after that. `Client` is a principal, or the address of an anonymous client. The sessions of one
`Client` are counted together. Returns `full` if the cluster has no room for the change, or none for
changes of this client. Returns `unavailable` if the change may not have been stored. If several
requests end a session, one of them gets `ok`, and the others `ended`. May wait for other nodes.
""".
-callback change_session(Id :: binary(), Client :: term(), change(), State :: term()) ->
    ok | ended | full | unavailable.

-doc """
Copies an event of a session's call to the node that is the session's next home. Returns at once,
whatever the state of that node. Events of one stream come in their order.
""".
-callback keep_event(Session :: binary(), kept_event(), State :: term()) -> ok.

-doc """
Returns the copies that this node, the home of a session, has of the events of a call's stream at an
earlier home. `Stream` is that home's incarnation, and the number of the stream. Returns `none` if
this node has no copies of the stream. Must not wait for other nodes.
""".
-callback kept_stream(Session :: binary(),
                      Stream :: {Incarnation :: non_neg_integer(), Number :: integer()},
                      State :: term()) -> {ok, kept_stream()} | none.

-doc """
Returns the store of the server's tasks: a module of the behaviour `m:erlmcp_task_store`, and its
options. Not called for a server that has the option `task_store`.
""".
-callback task_store(State :: term()) -> {module(), Options :: map()}.

-doc """
Passes a change on to the server's other nodes, where it reaches `heard/2`. Returns at once,
whatever the state of the other nodes. Changes of one process arrive in their order. Equal changes
that have not left yet may be passed on as one. On a node that may have missed changes, `heard/2`
gets the change `missed` instead.
""".
-callback publish(Change :: term(), State :: term()) -> ok.

-doc """
Asks the server on another node, where the question reaches `answer/2`, and returns its answer.
Returns `unreachable` if no answer comes within a second, or if the answer is `unsupported`. The
question may have arrived even then.
""".
-callback ask(node(), Question :: term(), State :: term()) -> {ok, Answer :: term()} | unreachable.

-doc """
Returns the keys that this server has on all nodes. The first key seals, and every key opens. With
`state`, the keys are those of its cursors and states; with `dpop`, those of its nonces for DPoP.
Returns `none` while the node is in no cluster. The keys of `state` are read every ten seconds, and
those of `dpop` for each nonce.
""".
-callback keys(state | dpop, State :: term()) -> {ok, erlmcp:key_ring()} | none.

-doc """
Lets other nodes be the homes of this node's sessions from now on. The server is about to be
drained: it finishes the calls that run. Returns when this node is the home of no session any more.
A cluster may keep the sessions, and return at once, while other servers of this node still serve.
""".
-callback leaving(State :: term()) -> ok.

-doc "Returns the state of the cluster, for operators. Must not wait.".
-callback overview(State :: term()) -> overview().

-doc """
Does what an operator asks of the cluster by the command `erlmcp cluster`. Returns an answer that
`json:encode/1` takes. `Question` is the decoded JSON of the command. Its member `do` is `status`,
`join`, `leave` or `forget`. The error is a sentence for the operator. May wait for other nodes.
""".
-callback operate(Question :: #{binary() => json:decode_value()}, State :: term()) ->
    {ok, json:encode_value()} | {error, binary()}.

-doc """
Returns how many nodes share the rates of a client now, at least 1. Each message of a client that
has rates calls this function, so it must be quick.
""".
-callback rate_nodes(State :: term()) -> pos_integer().

-doc """
Records that other nodes have not heard of all messages of the client with this account. The server
does not call this function again for the same account before the nodes have heard of all. Returns
at once.
""".
-callback counted(account(), State :: term()) -> ok.

-doc """
Tells this node of changes of the server `Id` on another node, and notifies the clients here that
the changes concern. Does nothing if the server does not run here.
""".
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
Returns the answer to a question that the server `Id` on another node has asked. Returns `gone` if
the server does not run here, or if the question is for an earlier start of it. Returns
`unsupported` for a question of a later release.
""".
-spec answer(Id :: term(), Question :: term()) -> Answer :: term().
answer(Id, {use_state, Server, State, Tenant}) ->
    try
        case erlmcp_registry:whereis(Id) of
            {ok, _, #{key := Server} = Instance} -> erlmcp_used_states:use(State, Tenant, Instance);
            _ -> gone
        end
    catch
        %% The server has just ended, or its application, as on a node that stops, and the tables
        %% with it.
        error:badarg -> gone
    end;
answer(_, _) ->
    unsupported.

-doc """
Returns the accounts of the server `Id` on this node. The list is empty if the server does not run
here, or has no rates of single clients.
""".
-spec accounts(Id :: term()) -> [account()].
accounts(Id) ->
    with_gate(Id, fun erlmcp_gate:accounts/1).

-doc "Returns the client of an account, as a term that is the same on all nodes.".
-spec client(account()) -> term().
client(Account) ->
    erlmcp_gate_counters:client(Account).

-doc """
Returns how many messages of an account the other nodes have not heard of (`heard_by_all/3`). The
number is negative if a message was taken back after they had heard of it.
""".
-spec unheard(account()) -> integer().
unheard(Account) ->
    erlmcp_gate_counters:unheard(Account).

-doc """
Records that all other nodes have heard of `Count` messages of an account, each of which counted
`Nodes` times. Each of these messages counts once from now on. If `Nodes` is 1, the rate counts of
the account do not change.
""".
-spec heard_by_all(account(), Count :: integer(), Nodes :: pos_integer()) -> ok.
heard_by_all(Account, Count, Nodes) ->
    erlmcp_gate_counters:heard_by_all(Account, Count, Nodes).

-doc """
Counts messages that another node has let in: `Count` of each `Client` of the server `Id`. Does
nothing if the server does not run here.
""".
-spec count_messages(Id :: term(), [{Client :: term(), Count :: integer()}]) -> ok.
count_messages(Id, Counts) ->
    _ = with_gate(Id, fun(Gate) ->
        [erlmcp_gate:count_heard(Client, Count, Gate) || {Client, Count} <- Counts]
    end),
    ok.

-doc """
Returns how much of its rates the client of an account has used, as this node has counted it. The
terms are opaque, and the list is empty if nothing is used. A node whose server has just started
passes them to `pay/2`, since it has counted nothing yet.
""".
-spec paid(account()) -> Paid :: [term()].
paid(Account) ->
    erlmcp_gate_counters:paid(Account).

-doc """
Raises the counts of rates of the server `Id` to those of another node, which `paid/1` returned
there. The messages of this node of which the others have not heard count in addition. A count that
is already higher here stays. Does nothing if the server does not run here.
""".
-spec pay(Id :: term(), [{Client :: term(), Paid :: [term()]}]) -> ok.
pay(Id, Accounts) ->
    _ = with_gate(Id, fun(Gate) ->
        [erlmcp_gate:pay(Client, Paid, Gate) || {Client, Paid} <- Accounts]
    end),
    ok.

%% A list, which is empty if the server does not run here.
with_gate(Id, Do) ->
    case erlmcp_registry:whereis(Id) of
        {ok, _, #{gate := Gate}} ->
            try
                Do(Gate)
            catch
                %% The server has just ended, and its tables with it.
                error:badarg -> []
            end;
        error ->
            []
    end.
