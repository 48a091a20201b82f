-module(erlmcp_cluster_sessions).
-moduledoc """
The sessions of a cluster, as any of its nodes finds them. Their ids are their birth certificates
(`m:erlmcp_cluster_session_id`), and their homes follow from the deaths of nodes.

The store has what the next home of a session must know in addition: a declaration that is too large
for an id, the log level, the resources that the client watches, and the end of a session by DELETE.
A change is stored before its client is answered. The home then looks at its lease again. If that is
still valid, no other home has read the store before.

A session is inherited only while it would not have been idle for too long, if it was used last when
its home died. Until then its end, which was stored before, is known.

The process deletes what the store has of sessions that have ended. For sessions that were ended by
DELETE, or had a home that died, it does so when they would have been idle for too long. Each node
does so for the sessions whose home it is.

Internal.
""".

-behaviour(gen_server).

-export([start_link/0]).
-export([open/2, find/3, inherit/3, change/3, hand_over/0, end_all/0]).
-export([certify/2, opened/3]).
-export([kept/0, sweep/1]).
-export([home/3]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

%% The most sessions of which the store has something. Changes between two sweeps each count.
-define(MOST, 200_000).
-define(SWEEP_MS, 60_000).
%% Seconds for clocks that differ, and until a session is there whose declaration is in the store.
-define(SLACK, 120).

-doc "Starts the process.".
-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

-doc "See `c:erlmcp_server_cluster:open_session/2`.".
-spec open(erlmcp_server_cluster:session(), erlmcp_cluster:server()) ->
    {ok, binary()} | unavailable.
open(Session, #{server := Server} = Of) ->
    case certify(Session, Server) of
        {ok, Id} ->
            {ok, Id};
        {keep, Id, Declaration} ->
            case change(Id, {declaration, Declaration}, Of) of
                ok -> {ok, Id};
                _ -> unavailable
            end;
        no_lease ->
            unavailable
    end.

-doc """
Returns the id of a session that this node opens for the server with the id `Server`. Returns
`{keep, Id, Declaration}` if the client's declaration must be in the store before the client has the
id. Returns `no_lease` if this node may open no session now.
""".
-spec certify(erlmcp_engine:session(), Server :: term()) ->
    {ok, Id :: binary()} | {keep, Id :: binary(), binary()} | no_lease.
certify(Session, Server) ->
    maybe
        {ok, Nonce} ?= erlmcp_cluster_lease:next_nonce(),
        erlmcp_cluster_session_id:new(Session, Server, Nonce, erlang:system_time(second),
                                      erlmcp_cluster_secret:sealing_key(session))
    end.

-doc "See `c:erlmcp_server_cluster:find_session/3`.".
-spec find(Id :: binary(), Principal :: term(), erlmcp_cluster:server()) ->
    {away, node(), Watch :: pid()} | inherited | unseen | unknown | unavailable.
find(Id, Principal, #{server := Server, idle_s := Idle}) ->
    maybe
        Own = erlmcp_cluster_lease:incarnation(),
        true ?= is_integer(Own),
        {ok, Birth, {Node, Home}, Watch} ?= home(Id, Server, Principal),
        case Home of
            %% It is not among this node's sessions.
            Own -> inherited(Birth, Idle);
            _ -> {away, Node, Watch}
        end
    else
        false -> unavailable;
        UnseenOrUnknown -> UnseenOrUnknown
    end.

inherited(#{nonce := Name, incarnation := First}, Idle) ->
    case erlmcp_cluster_deaths:inherited(Name, First, erlmcp_cluster_members:deaths()) of
        At when is_integer(At) ->
            case erlang:system_time(second) =< At + Idle of
                true -> inherited;
                false -> unknown
            end;
        %% This node opened it, so it has ended.
        never ->
            unknown
    end.

-doc """
Returns what an id says that a client sent, with the node and incarnation that are the session's
home, and the process of this node that ends with the home. Returns `unknown` as `opened/3` does,
and `unseen` or `unknown` as `erlmcp_cluster_members:home/2` does.
""".
-spec home(Id :: binary(), Server :: term(), Principal :: term()) ->
    {ok, erlmcp_cluster_session_id:birth(), {node(), erlmcp_cluster_deaths:incarnation()},
     Watch :: pid()}
    | unseen | unknown.
home(Id, Server, Principal) ->
    maybe
        {ok, #{nonce := Name, incarnation := First} = Birth} ?= opened(Id, Server, Principal),
        {ok, Home, Watch} ?= erlmcp_cluster_members:home(Name, First),
        {ok, Birth, Home, Watch}
    end.

-doc """
Returns what an id says that a client sent. Returns `unknown` if the id was altered, is another
principal's or another server's, or was never one.
""".
-spec opened(Id :: binary(), Server :: term(), Principal :: term()) ->
    {ok, erlmcp_cluster_session_id:birth()} | unknown.
opened(Id, Server, Principal) ->
    Keys = fun(Slot) -> erlmcp_cluster_secret:opening_keys(session, Slot) end,
    erlmcp_cluster_session_id:open(Id, Server, Principal, Keys).

-doc "See `c:erlmcp_server_cluster:inherit_session/3`.".
-spec inherit(Id :: binary(), Principal :: term(), erlmcp_cluster:server()) ->
    {ok, erlmcp_server_cluster:session(), [binary()]} | unknown | unavailable.
inherit(Id, Principal, #{server := Server}) ->
    maybe
        {ok, #{nonce := Name, session := Birth}} ?= opened(Id, Server, Principal),
        {ok, Facts} ?= erlmcp_cluster_store:session(Name),
        false ?= is_map_key(ended, Facts),
        {ok, #{log_level := Level} = Session} ?= declared(Birth, Facts, Principal),
        {ok, Session#{log_level := maps:get(log_level, Facts, Level)},
         [Uri || Digest := Uri <- Facts, is_binary(Digest)]}
    else
        {error, _} -> unavailable;
        _ -> unknown
    end.

declared(kept, #{declaration := Declaration}, Principal) ->
    erlmcp_cluster_session_id:declaration(Declaration, Principal);
declared(kept, _, _) ->
    unknown;
declared(Session, _, _) ->
    {ok, Session}.

-doc "See `c:erlmcp_server_cluster:change_session/3`.".
-spec change(Id :: binary(), erlmcp_server_cluster:change() | {declaration, binary()},
             erlmcp_cluster:server()) -> ok | full | unavailable.
change(Id, Change, Of) ->
    Before = erlmcp_cluster_lease:incarnation(),
    case is_integer(Before) andalso store(erlmcp_cluster_session_id:name(Id), Change, Of) of
        ok ->
            case erlmcp_cluster_lease:incarnation() of
                Before -> ok;
                _ -> unavailable
            end;
        full ->
            full;
        _ ->
            unavailable
    end.

store(Name, {unwatched, Uri}, _) ->
    erlmcp_cluster_store:forget_session(Name, crypto:hash(sha256, Uri));
store(Name, Change, #{idle_s := Idle}) ->
    Kept = kept(),
    case atomics:add_get(Kept, 1, 1) > ?MOST of
        true ->
            ok = atomics:sub(Kept, 1, 1),
            full;
        false ->
            {Fact, Value} = fact(Change),
            erlmcp_cluster_store:put_session(Name, Fact, Value, Idle)
    end.

fact({watched, Uri}) -> {crypto:hash(sha256, Uri), Uri};
fact({Fact, Value}) -> {Fact, Value};
fact(ended) -> {ended, true}.

-doc """
Gives the sessions of this node up if all servers that have some are about to be drained: a node has
one lease. Until then, a drained server's sessions wait for the node's other servers.
""".
-spec hand_over() -> ok.
hand_over() ->
    case lists:all(fun(#{gate := Gate}) -> erlmcp_gate:is_lame(Gate) end, servers()) of
        true ->
            case erlmcp_cluster_lease:hand_over() of
                ok -> ok;
                %% The others will notice when the node stops.
                {error, Reason} ->
                    erlmcp_log:report(warning, #{what => cluster_sessions_not_handed_over,
                                                 reason => Reason})
            end;
        false ->
            ok
    end.

-doc "Ends all sessions of this node, since others are their homes now.".
-spec end_all() -> ok.
end_all() ->
    lists:foreach(fun erlmcp_session:end_all/1, servers()).

servers() ->
    [Instance || {_, _, #{cluster := {erlmcp_cluster, _}} = Instance} <- erlmcp_registry:servers()].

-doc "Returns the word with the number of sessions of which the store has something.".
-spec kept() -> atomics:atomics_ref().
kept() ->
    persistent_term:get(?MODULE).

-doc false.
init([]) ->
    _ = process_flag(trap_exit, true),
    ok = erlmcp_label:set([?MODULE]),
    ok = persistent_term:put(?MODULE, atomics:new(1, [])),
    self() ! sweep,
    {ok, none}.

-doc false.
handle_call(_, _, State) ->
    {noreply, State}.

-doc false.
handle_cast(_, State) ->
    {noreply, State}.

-doc false.
handle_info(sweep, State) ->
    ok = sweep(0),
    _ = erlang:send_after(?SWEEP_MS, self(), sweep),
    {noreply, State};
handle_info(_, State) ->
    {noreply, State}.

-doc false.
terminate(_, _) ->
    _ = persistent_term:erase(?MODULE),
    ok.

-doc """
Deletes what the store has of sessions that have ended, and is of no use any more in `Seconds` from
now.
""".
-spec sweep(Seconds :: non_neg_integer()) -> ok.
sweep(Seconds) ->
    Facts = erlmcp_cluster_store:sessions(),
    ok = atomics:put(kept(), 1, map_size(Facts)),
    Open = #{erlmcp_cluster_session_id:name(Id) => open
             || Instance <- servers(), Id <- erlmcp_session_table:open_ids(Instance)},
    Own = erlmcp_cluster_lease:incarnation(),
    Now = erlang:system_time(second) + Seconds,
    maps:foreach(fun(Name, Fact) ->
        case not is_map_key(Name, Open) andalso Now > over(Name, Fact, Own) of
            true -> erlmcp_cluster_store:forget_session(Name);
            false -> ok
        end
    end, Facts).

%% The second at which a session, which this node does not have, needs nothing in the store any
%% more. Another home decides about its own sessions.
over(<<First:32, _/binary>> = Name, {HasEnded, Second, Idle}, Own) ->
    Deaths = erlmcp_cluster_members:deaths(),
    case {erlmcp_cluster_members:home(Name, First),
          erlmcp_cluster_deaths:inherited(Name, First, Deaths)} of
        {{ok, {_, Home}, _}, _} when Home =/= Own -> infinity;
        {{ok, _, _}, never} when HasEnded -> Second + Idle + ?SLACK;
        {{ok, _, _}, never} -> Second + ?SLACK;
        {{ok, _, _}, At} -> max(Second, At) + Idle + ?SLACK;
        %% No home is left, or the deaths that lead to it are forgotten, or it was not heard of yet.
        {_, _} -> Second + Idle + ?SLACK
    end.
