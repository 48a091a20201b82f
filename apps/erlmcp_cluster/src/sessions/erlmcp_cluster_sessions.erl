-module(erlmcp_cluster_sessions).
-moduledoc """
The sessions of a cluster, as any of its nodes finds them. Their ids are their birth certificates
(`m:erlmcp_cluster_session_id`), and their homes follow from the deaths of nodes.

The store has what the next home of a session must know in addition: a declaration that is too large
for an id, the log level, watched resources, and the end of a session by DELETE. A change is stored
before its client is answered. A session is inherited only for as long as it may be idle, counted
from the death of its home.

The process deletes what the store has of sessions that have ended (`sweep/1`).

Internal.
""".

-behaviour(gen_server).

-export([start_link/0]).
-export([open/2, find/3, inherit/3, change/4, hand_over/0, serves/0, leave/0, end_all/0]).
-export([certify/2, opened/3]).
-export([counts/0, sweep/1]).
-export([home/3]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

%% The most facts of sessions that the store has.
-define(MOST, 200_000).
-define(SWEEP_MS, 60_000).
%% Milliseconds for each of the two steps of a catch-up.
-define(CATCH_UP_MS, 1_000).
%% Seconds for clocks that differ, and until a session is there whose declaration is in the store.
-define(SLACK, 120).

-doc "Starts the process that deletes the facts of ended sessions from the store.".
-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

-doc """
Returns the id of a new session of this node, as `c:erlmcp_server_cluster:open_session/2` says.
""".
-spec open(erlmcp_server_cluster:session(), erlmcp_cluster:server()) ->
    {ok, binary(), erlmcp_cluster_deaths:incarnation(), [erlmcp_server_cluster:change()]}
    | unavailable.
open(Session, #{bound := Server}) ->
    case certify(Session, Server) of
        {ok, Id, Incarnation} -> {ok, Id, Incarnation, []};
        {keep, Id, Incarnation, Declaration} -> {ok, Id, Incarnation, [{declaration, Declaration}]};
        no_lease -> unavailable
    end.

-doc """
Returns the id of a session that this node opens for the server `Server`, and the incarnation that
has opened it. Returns `{keep, Id, Incarnation, Declaration}` if the client's declaration must be in
the store before the client has the id. Returns `no_lease` if this node may open no session now.
""".
-spec certify(erlmcp_engine:session(), erlmcp_cluster_session_id:server()) ->
    {ok, Id :: binary(), erlmcp_cluster_deaths:incarnation()}
    | {keep, Id :: binary(), erlmcp_cluster_deaths:incarnation(), Declaration :: binary()}
    | no_lease.
certify(Session, Server) ->
    maybe
        {ok, <<Incarnation:32, _:64>> = Nonce} ?= erlmcp_cluster_lease:next_nonce(),
        case erlmcp_cluster_session_id:new(Session, Server, Nonce,
                                           erlmcp_cluster_secret:sealing_key(session)) of
            {ok, Id} -> {ok, Id, Incarnation};
            {keep, Id, Declaration} -> {keep, Id, Incarnation, Declaration}
        end
    end.

-doc "Finds the home of a session, as `c:erlmcp_server_cluster:find_session/3` says.".
-spec find(Id :: binary(), Principal :: term(), erlmcp_cluster:server()) ->
    {away, node(), Watch :: pid()} | inherited | unseen | unknown | unavailable.
find(Id, Principal, #{bound := Server, idle_s := Idle}) ->
    maybe
        Own = erlmcp_cluster_lease:incarnation(),
        true ?= is_integer(Own),
        {ok, Birth, {Node, Home}, Watch} ?= home(Id, Server, Principal),
        case Home of
            %% This node is the home, but the session is not among its sessions.
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
            case erlmcp_cluster_time:now(second) =< At + Idle
                     andalso not erlmcp_cluster_store:has_fact(Name, ended) of
                true -> inherited;
                false -> unknown
            end;
        %% This node opened the session, so the session has ended.
        never ->
            unknown
    end.

-doc """
Returns the content of an id that a client sent, with the node and the incarnation of the session's
home. `Watch` is the process of this node that ends with the home. The other results are those of
`opened/3` and of `erlmcp_cluster_members:home/2`.
""".
-spec home(Id :: binary(), erlmcp_cluster_session_id:server(), Principal :: term()) ->
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
Returns the content of an id that a client sent. Returns `unknown` if the text is no id, or the id
of another principal or of another server. Also returns `unknown` if this node does not have the key
that sealed the id, as after 30 days. Raises `badarg` while this node is in no cluster.
""".
-spec opened(Id :: binary(), erlmcp_cluster_session_id:server(), Principal :: term()) ->
    {ok, erlmcp_cluster_session_id:birth()} | unknown.
opened(Id, Server, Principal) ->
    Keys = fun(Slot) -> erlmcp_cluster_secret:opening_keys(session, Slot) end,
    erlmcp_cluster_session_id:open(Id, Server, Principal, Keys).

-doc """
Returns a session that this node has inherited, as `c:erlmcp_server_cluster:inherit_session/3` says.
""".
-spec inherit(Id :: binary(), Principal :: term(), erlmcp_cluster:server()) ->
    {ok, erlmcp_server_cluster:session(), [binary()]} | unknown | unavailable.
inherit(Id, Principal, #{bound := Server}) ->
    maybe
        {ok, #{nonce := Name, session := Birth}} ?= opened(Id, Server, Principal),
        ok ?= erlmcp_cluster_catch_up:catch_up(?CATCH_UP_MS),
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

-doc "Stores a change of a session, as `c:erlmcp_server_cluster:change_session/4` says.".
-spec change(Id :: binary(), erlmcp_gate:tenant(), erlmcp_server_cluster:change(),
             erlmcp_cluster:server()) ->
    ok | ended | full | unavailable.
change(Id, Tenant, Change, #{server := Server} = Of) ->
    Name = erlmcp_cluster_session_id:name(Id),
    Stored = maybe
        {Storing, Turns, Shares} ?= counts(),
        %% What waits for its turn has not begun.
        erlmcp_cluster_turns:run({Server, Tenant}, Turns, fun() ->
            erlmcp_cluster_lease:change(fun() ->
                store(Name, Tenant, Change, {Storing, Shares}, Of)
            end)
        end)
    end,
    case Stored of
        ok -> ok;
        changed -> ended;
        full -> full;
        _ -> unavailable
    end.

store(Name, Tenant, {unwatched, Uri}, {_, Shares}, #{server := Server}) ->
    Digest = crypto:hash(sha256, Uri),
    Counted = erlmcp_cluster_store:has_fact(Name, Digest),
    maybe
        ok ?= erlmcp_cluster_store:forget_session(Name, Digest),
        true ?= Counted,
        erlmcp_cluster_shares:give_back(erlmcp_cluster_shares:owner(Server, Tenant), Uri, Shares)
    else
        false -> ok;
        {error, _} = Error -> Error
    end;
store(Name, Tenant, Change, {Storing, Shares}, #{server := Server, idle_s := Idle}) ->
    {Fact, Value} = fact(Change),
    Owner = erlmcp_cluster_shares:owner(Server, Tenant),
    Put = fun() -> put(Name, Fact, Value, Idle, Owner) end,
    %% A fact that replaces another one needs no room.
    case erlmcp_cluster_store:has_fact(Name, Fact) of
        true -> Put();
        false -> in_share(Owner, Value, Shares, fun() -> in_all(Storing, Put) end)
    end.

put(Name, ended, _, Idle, Owner) -> erlmcp_cluster_store:end_session(Name, Idle, Owner);
put(Name, Fact, Value, Idle, Owner) ->
    erlmcp_cluster_store:put_session(Name, Fact, Value, Idle, Owner).

in_share(Owner, Value, Shares, Put) ->
    case erlmcp_cluster_shares:take(Owner, Value, Shares) of
        ok ->
            case Put() of
                ok ->
                    ok;
                %% Perhaps it is stored. Then the next sweep counts it.
                Failed ->
                    ok = erlmcp_cluster_shares:give_back(Owner, Value, Shares),
                    Failed
            end;
        full ->
            full
    end.

in_all(Storing, Put) ->
    try atomics:add_get(Storing, 1, 1) + erlmcp_cluster_store:session_facts() > ?MOST of
        true -> full;
        false -> Put()
    after
        atomics:sub(Storing, 1, 1)
    end.

fact({watched, Uri}) -> {crypto:hash(sha256, Uri), Uri};
fact({Fact, Value}) -> {Fact, Value};
fact(ended) -> {ended, none}.

-doc """
Gives up the sessions of this node if all its servers in the cluster are drained, or about to be.
Then lets another node lead the cluster, and sends the last events of the sessions to their next
homes. A failure is only logged.
""".
-spec hand_over() -> ok.
hand_over() ->
    %% A node has one lease, so the sessions of the first server that is drained stay here.
    case lists:all(fun is_lame/1, servers()) of
        true ->
            case erlmcp_cluster_lease:hand_over() of
                ok ->
                    ok = erlmcp_cluster_store:resign(),
                    erlmcp_cluster_events:flush();
                %% The others will notice when the node stops.
                {error, Reason} ->
                    erlmcp_log:report(warning, #{what => cluster_sessions_not_handed_over,
                                                 reason => Reason})
            end;
        false ->
            ok
    end.

is_lame(#{gate := Gate}) ->
    erlmcp_gate:is_lame(Gate).

-doc """
Returns `true` if this node has servers in the cluster, and none of them is drained, or about to be.
""".
-spec serves() -> boolean().
serves() ->
    case servers() of
        [] -> false;
        Servers -> not lists:any(fun is_lame/1, Servers)
    end.

-doc """
Ends all sessions of this node, which has left the cluster. Also ends all streams of
`subscriptions/listen`, since the changes of other nodes do not come here any more.
""".
-spec leave() -> ok.
leave() ->
    ok = end_all(),
    _ = of_servers(fun(Instance) ->
        erlmcp_subscriptions:close(erlmcp_instance:subscriptions(Instance))
    end),
    ok.

-doc "Ends all sessions of this node, since other nodes are their homes now, or will be.".
-spec end_all() -> ok.
end_all() ->
    _ = of_servers(fun erlmcp_session:end_all/1),
    ok.

%% Returns what `Do` returns for each server.
of_servers(Do) ->
    lists:append([of_server(Do, Instance) || Instance <- servers()]).

of_server(Do, Instance) ->
    try
        [Do(Instance)]
    catch
        error:badarg:Stacktrace ->
            %% The server has just ended, and its tables with it.
            case erlmcp_session_table:has_ended(Instance) of
                true -> [];
                false -> erlang:raise(error, badarg, Stacktrace)
            end
    end.

servers() ->
    [Instance || {_, _, #{cluster := {erlmcp_cluster, _}} = Instance} <- erlmcp_registry:servers()].

-doc """
Returns the counts of this node. `Storing` is an atomics array with the number of new facts that the
node is about to store. The turns are those of the changes that the node makes. The shares count the
facts of each client (`m:erlmcp_cluster_shares`). Returns `none` before the process of this module
has run.
""".
-spec counts() ->
    {Storing :: atomics:atomics_ref(), erlmcp_cluster_turns:turns(),
     erlmcp_cluster_shares:shares()} | none.
counts() ->
    persistent_term:get(?MODULE, none).

-doc false.
init([]) ->
    ok = erlmcp_label:set([?MODULE]),
    ok = persistent_term:put(?MODULE, {atomics:new(1, []), erlmcp_cluster_turns:new(),
                                       erlmcp_cluster_shares:new()}),
    ok = recount(),
    {ok, sweep_later()}.

sweep_later() ->
    erlang:send_after(?SWEEP_MS, self(), sweep).

-doc false.
handle_call(_, _, State) ->
    {noreply, State}.

-doc false.
handle_cast(_, State) ->
    {noreply, State}.

-doc false.
handle_info(sweep, Timer) ->
    %% The message may have come from outside.
    _ = erlang:cancel_timer(Timer),
    ok = sweep(0),
    {noreply, sweep_later()};
handle_info(_, State) ->
    {noreply, State}.

-doc """
Counts the facts of each client anew (`m:erlmcp_cluster_shares`). Then deletes the facts of sessions
that have ended, if they will not be needed `Seconds` seconds from now. Ends early if the store does
not answer, or if the node's incarnation ends meanwhile. Deletes nothing while this node is in doubt
about the time.
""".
-spec sweep(Seconds :: non_neg_integer()) -> ok.
sweep(Seconds) ->
    ok = recount(),
    case erlmcp_cluster_time:may_delete() of
        true -> sweep(erlmcp_cluster_store:sessions(), Seconds);
        false -> ok
    end.

recount() ->
    {_, _, Shares} = counts(),
    erlmcp_cluster_shares:recount(erlmcp_cluster_store:owners(), Shares).

%% Most stores have nothing of any session.
sweep(Facts, _) when map_size(Facts) =:= 0 ->
    ok;
sweep(Facts, Seconds) ->
    Open = #{erlmcp_cluster_session_id:name(Id) => open
             || Ids <- of_servers(fun erlmcp_session_table:open_ids/1), Id <- Ids},
    Own = erlmcp_cluster_lease:incarnation(),
    Now = erlmcp_cluster_time:now(second) + Seconds,
    forget([Name || Name := Fact <- Facts, not is_map_key(Name, Open),
                    Now > least(Fact), Now > over(Name, Fact, Own)], Own).

forget([], _) ->
    ok;
forget([Name | Names], Own) ->
    %% Another home may have inherited a session since these were chosen, and have ended it.
    IsHome = is_integer(Own) andalso erlmcp_cluster_lease:incarnation() =:= Own,
    case IsHome andalso erlmcp_cluster_store:forget_session(Name) of
        ok -> forget(Names, Own);
        %% The next sweep goes on. Without a majority each of them would wait for a second.
        _ -> ok
    end.

%% The least second for `over/3`. Most facts are younger, and a search for the homes of all of them
%% would cost most of a sweep.
least({true, Second, Idle}) -> Second + Idle + ?SLACK;
least({false, Second, _}) -> Second + ?SLACK.

%% The second at which a session, which this node does not have, needs nothing in the store any
%% more. Another home decides about its own sessions.
over(<<First:32, _/binary>> = Name, {HasEnded, Second, Idle}, Own) ->
    case erlmcp_cluster_members:home(Name, First) of
        {ok, {_, Own}, _} ->
            Deaths = erlmcp_cluster_members:deaths(),
            case erlmcp_cluster_deaths:inherited(Name, First, Deaths) of
                never when HasEnded -> Second + Idle + ?SLACK;
                never -> Second + ?SLACK;
                At -> max(Second, At) + Idle + ?SLACK
            end;
        {ok, _, _} ->
            infinity;
        %% No home is left, or the deaths that lead to it are forgotten, or it was not heard of yet.
        _ ->
            Second + Idle + ?SLACK
    end.
