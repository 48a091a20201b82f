-module(erlmcp_server_cluster).
-moduledoc """
The behaviour of a cluster, for the option `cluster`: the servers with one `id` on several nodes are
one server for their clients. `m:erlmcp_cluster` is such a module, in an application of its own. A
server without the option asks nobody.

The callbacks are called by the processes that need their answers: connections, calls and the
server's own. The `State` is what `c:init/2` returned, and every process of the server has it. It
must be small, and hold no secret.

A cluster calls `heard/2` and `answer/2` on the node that a change or a question has reached.
Changes and questions are terms that only the library reads.
""".

-export([heard/2, answer/2]).

-doc """
Returns the state of the server that starts with this `id` and these limits. The server's supervisor
calls it.
""".
-callback init(Id :: term(), erlmcp:limits()) -> State :: term().

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
