-module(erlmcp_cluster_sessions).
-moduledoc """
The sessions of a cluster, as any of its nodes finds them. Their ids are their birth certificates
(`m:erlmcp_cluster_session_id`), and their homes follow from the deaths of nodes.

Internal.
""".

-export([certify/2, find/3]).

-doc """
Returns the id of a session that this node opens for the server with the name `Server`. Returns
`{keep, Id, Declaration}` if the client's declaration must be in the store before the client has the
id. Returns `no_lease` if this node may open no session now.
""".
-spec certify(erlmcp_engine:session(), Server :: binary()) ->
    {ok, Id :: binary()} | {keep, Id :: binary(), binary()} | no_lease.
certify(Session, Server) ->
    maybe
        {ok, Nonce} ?= erlmcp_cluster_lease:next_nonce(),
        erlmcp_cluster_session_id:new(Session, Server, Nonce, erlang:system_time(second),
                                      erlmcp_cluster_secret:sealing_key(session))
    end.

-doc """
Opens an id that a client sent. Returns its content, and the node and incarnation that are the
session's home now. Returns `unknown` if the id was altered, is another principal's or another
server's, or was never one. Returns `no_lease` if this node cannot know which nodes are alive.
""".
-spec find(Id :: binary(), Server :: binary(), Principal :: term()) ->
    {ok, erlmcp_cluster_session_id:birth(), {node(), erlmcp_cluster_deaths:incarnation()}}
    | unknown | no_lease.
find(Id, Server, Principal) ->
    Keys = fun(Slot) -> erlmcp_cluster_secret:opening_keys(session, Slot) end,
    maybe
        true ?= erlmcp_cluster_lease:is_valid(),
        {ok, #{nonce := Name, incarnation := First} = Birth} ?=
            erlmcp_cluster_session_id:open(Id, Server, Principal, Keys),
        {ok, Node, Incarnation} ?= erlmcp_cluster_members:home(Name, First),
        {ok, Birth, {Node, Incarnation}}
    else
        false -> no_lease;
        unknown -> unknown
    end.
