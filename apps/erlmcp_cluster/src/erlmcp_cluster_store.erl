-module(erlmcp_cluster_store).
-moduledoc """
The facts that all nodes of a cluster agree on, in Khepri, which is a tree over Raft. Each fact is
one node of the tree and is changed by compare-and-swap alone:

- `cluster`: the id of the cluster, which its first node writes.
- `last`: the number of the last incarnation that was given out.
- `incarnation/N`: the lease of an incarnation, `{alive, Node, Renewals}`, or how it ended. That of
  a node which has given its sessions up, and is about to stop, is `{leaving, Node, Renewals}`.
- `deaths`: `t:erlmcp_cluster_deaths:deaths/0`.
- `session/NAME/FACT`: what the next home of a session must know (`m:erlmcp_cluster_sessions`). Only
  the home of a session writes it. Each node also has these facts in a table.
- `tasks/Server/Id`: a task, `{Version, Incarnation, Record}`. A projection of the store has the
  tasks in tables on each node (`m:erlmcp_cluster_task_tables`).

An incarnation ends in two steps, so that no transaction is needed. First its lease is swapped for
`{dead, Node, Second}` or `{left, Node, Second}`: from then on it renews nothing. Then its death is
added to `deaths`, and the lease is deleted. Any node completes the second step. An incarnation that
is leaving is among the deaths before its lease ends. If none is left to survive a death, it waits
until another one begins.

The process starts the node's part of the store, joins the others, and stops that part at its end.

Internal.
""".

-behaviour(gen_server).

-include_lib("khepri/include/khepri.hrl").

-export([start_link/1, view/0, leave/0, forget/1, members/0, leader/0, elect/0]).
-export([next_incarnation/0, open_lease/1, renew_lease/3, leases/1, end_lease/3, bury/1]).
-export([deaths/1]).
-export([put_session/4, session/1, sessions/0, forget_session/1, forget_session/2]).
-export([create_task/4, swap_task/5, delete_task/2, catch_up/1, applied/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

-export_type([lease/0, view/0, fact/0]).

-compile({no_auto_import, [get/1]}).

%% The name of the store, of its Ra system, and of its member on each node.
-define(STORE, erlmcp_cluster).
-define(ROOT, [erlmcp]).
%% The table with the facts of sessions.
-define(SESSIONS, erlmcp_cluster_session_facts).
%% A command that has no answer by then may have failed or not.
-define(COMMAND_MS, 1_000).
%% A follower that renews its lease must not wait longer than until the next renewal.
-define(RENEWAL_MS, 250).
-define(JOIN_MS, 10_000).
-define(PAUSE_MS, 500).
%% A store writes a few small entries a second.
-define(WAL_BYTES, 16_000_000).

-doc "A lease: of an incarnation that lives, or that has just died, or left.".
-type lease() ::
    {alive | leaving, node(), Renewals :: non_neg_integer()}
    | {dead | left, node(), Second :: integer()}.
-doc "The answer of a node to another one that looks for a cluster.".
-type view() :: #{cluster := binary() | none, members := [node()]}.

-doc """
A fact of a session: its client's declaration, its log level, its end, or the digest of the URI of a
resource that its client watches.
""".
-type fact() :: declaration | log_level | ended | <<_:256>>.

-doc "Starts the process, which joins the cluster before this function returns.".
-spec start_link(erlmcp_cluster:options()) -> gen_server:start_ret().
start_link(Options) ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, Options, [{timeout, infinity}]).

%% Membership.

-doc "Returns the cluster that this node belongs to. Other nodes call it while they look for one.".
-spec view() -> view().
view() ->
    Cluster = case get(path([cluster]), low_latency) of
        {ok, Id} -> Id;
        {error, _} -> none
    end,
    #{cluster => Cluster, members => members()}.

-doc "Returns the nodes of the cluster, as this node knows them.".
-spec members() -> [node()].
members() ->
    case khepri_cluster:nodes(?STORE, #{favor => low_latency, timeout => ?COMMAND_MS}) of
        {ok, Nodes} -> Nodes;
        {error, _} -> []
    end.

-doc "Returns the node that leads the cluster, as this node knows it.".
-spec leader() -> node() | none.
leader() ->
    case ra_leaderboard:lookup_leader(?STORE) of
        {_, Node} -> Node;
        undefined -> none
    end.

-doc """
Lets this node ask the others to become their leader. The leader may have stopped without closing
its connections, which Ra notices only after some seconds.
""".
-spec elect() -> ok.
elect() ->
    try
        ra:trigger_election({?STORE, node()}, ?RENEWAL_MS)
    catch
        %% The member starts, stops, or is busy.
        exit:_ -> ok
    end.

-doc "Takes this node out of the cluster, and deletes its part of the store.".
-spec leave() -> ok | {error, last_member | term()}.
leave() ->
    gen_server:call(?MODULE, leave, infinity).

-doc "Takes another node, which has to be dead, out of the cluster.".
-spec forget(node()) -> ok | {error, not_member | alive | term()}.
forget(Node) ->
    maybe
        {ok, Leases} ?= leases(consistency),
        [] ?= [Alive || {How, Alive, _} <- maps:values(Leases), Alive =:= Node,
                        How =:= alive orelse How =:= leaving],
        {ok, _, _} ?= ra:remove_member({?STORE, node()}, {?STORE, Node}, ?JOIN_MS),
        ok
    else
        [_ | _] -> {error, alive};
        {timeout, _} -> {error, timeout};
        {error, _} = Error -> Error
    end.

%% Incarnations and leases.

-doc "Returns a number that no incarnation had before.".
-spec next_incarnation() -> {ok, erlmcp_cluster_deaths:incarnation()} | {error, term()}.
next_incarnation() ->
    next_incarnation(make_ref()).

%% A command may be applied although this node has heard of a failure. So the number has its taker.
next_incarnation(Taker) ->
    Path = path([last]),
    case get(Path) of
        {ok, {Number, Taker}} ->
            {ok, Number};
        {ok, {Number, _}} ->
            case swap(Path, {Number, '_'}, {Number + 1, Taker}, ?COMMAND_MS) of
                {error, _} = Error -> Error;
                _ -> next_incarnation(Taker)
            end;
        {error, _} = Error ->
            Error
    end.

-doc "Adds the lease of a new incarnation of this node.".
-spec open_lease(erlmcp_cluster_deaths:incarnation()) -> ok | {error, term()}.
open_lease(Incarnation) ->
    Lease = {alive, node(), 0},
    Path = lease_path(Incarnation),
    case swapped(khepri:create(?STORE, Path, Lease, #{timeout => ?COMMAND_MS})) of
        %% The number is this node's alone, so the command was applied twice.
        changed -> ok;
        Other -> Other
    end.

-doc """
Renews the lease of this node's incarnation. `Renewals` is how often it was renewed, so each renewal
changes the lease. Returns `over` if the lease has ended: the incarnation was declared dead.
""".
-spec renew_lease(erlmcp_cluster_deaths:incarnation(), alive | leaving,
                  Renewals :: pos_integer()) -> ok | over | {error, term()}.
renew_lease(Incarnation, As, Renewals) ->
    %% A renewal may be applied late, and twice. After a later one it has no effect.
    Earlier = #if_data_matches{pattern = {'$1', node(), '$2'},
                               conditions = [{'orelse', {'=:=', '$1', alive},
                                                        {'=:=', '$1', leaving}},
                                             {'=<', '$2', Renewals}]},
    Path = path([incarnation, #if_all{conditions = [integer_to_binary(Incarnation), Earlier]}]),
    Renewed = {As, node(), Renewals},
    case swapped(khepri:put(?STORE, Path, Renewed, #{timeout => ?RENEWAL_MS})) of
        changed -> over;
        Other -> Other
    end.

-doc """
Returns the leases of all incarnations whose death is not written down yet. With `low_latency` they
are those that this node knows. With `consistency` they are those that the cluster has agreed on.
""".
-spec leases(low_latency | consistency) ->
    {ok, #{erlmcp_cluster_deaths:incarnation() => lease()}} | {error, term()}.
leases(Favor) ->
    Pattern = path([incarnation, ?KHEPRI_WILDCARD_STAR]),
    case get_many(Pattern, Favor) of
        {ok, Found} -> {ok, #{binary_to_integer(lists:last(Path)) => Lease
                              || Path := Lease <- Found}};
        {error, _} = Error -> Error
    end.

-doc """
Ends an incarnation whose lease is still `Seen`, or whose lease this node has itself if `Seen` is
`own`. The incarnation is `dead`, or has `left` the cluster. Returns `changed` if the lease was
renewed or ended meanwhile.
""".
-spec end_lease(erlmcp_cluster_deaths:incarnation(), Seen :: lease() | own, dead | left) ->
    ok | changed | {error, term()}.
end_lease(Incarnation, own, How) ->
    end_lease(Incarnation, node(), {'_', node(), '_'}, How);
end_lease(Incarnation, {_, Node, _} = Seen, How) ->
    end_lease(Incarnation, Node, Seen, How).

end_lease(Incarnation, Node, Pattern, How) ->
    Ended = {How, Node, erlang:system_time(second)},
    swap(lease_path(Incarnation), Pattern, Ended, ?COMMAND_MS).

-doc """
Writes down the death of an incarnation whose lease has ended, or which is leaving. Then deletes a
lease that has ended. Returns `changed` if another node wrote a death meanwhile, or no incarnation
is left to survive this one.
""".
-spec bury(erlmcp_cluster_deaths:incarnation()) -> ok | changed | {error, term()}.
bury(Incarnation) ->
    maybe
        {ok, Deaths} ?= deaths(consistency),
        {ok, Leases} ?= leases(consistency),
        {How, At} ?= ended(maps:get(Incarnation, Leases, none)),
        ok ?= written(Incarnation, [Other || Other := {alive, _, _} <- Leases], At, Deaths),
        true ?= How =:= leaving,
        ok
    else
        false -> khepri:delete(?STORE, lease_path(Incarnation), #{timeout => ?COMMAND_MS});
        Other -> Other
    end.

%% How an incarnation ends or has ended, and at which second.
ended({leaving, _, _}) -> {leaving, erlang:system_time(second)};
ended({How, _, Second}) when How =/= alive -> {How, Second};
%% It lives, or another node has done both steps.
ended(_) -> changed.

written(Incarnation, Alive, At, Deaths) ->
    case erlmcp_cluster_deaths:declare(Incarnation, Alive, At, Deaths) of
        Deaths -> ok;
        _ when Alive =:= [] -> changed;
        More -> swap(path([deaths]), {erlmcp_cluster_deaths:epoch(Deaths), '_'},
                     with_epoch(More), ?COMMAND_MS)
    end.

-doc "Returns the deaths that are written down; see `leases/1`.".
-spec deaths(low_latency | consistency) ->
    {ok, erlmcp_cluster_deaths:deaths()} | {error, term()}.
deaths(Favor) ->
    case get(path([deaths]), Favor) of
        {ok, {_, Deaths}} -> {ok, Deaths};
        {error, _} = Error -> Error
    end.

-doc """
Stores a fact of a session. It is of use for `Idle` seconds after the session was used last.
""".
-spec put_session(Name :: erlmcp_cluster_session_id:nonce(), fact(), Value :: term(),
                  Idle :: non_neg_integer()) -> ok | {error, term()}.
put_session(Name, Fact, Value, Idle) ->
    Row = {{Name, Fact}, Value, erlang:system_time(second), Idle},
    khepri:put(?STORE, path([session, Name, Fact]), Row, #{timeout => ?COMMAND_MS}).

-doc "Returns the facts of a session, as the cluster has agreed on them.".
-spec session(Name :: erlmcp_cluster_session_id:nonce()) ->
    {ok, #{fact() => term()}} | {error, term()}.
session(Name) ->
    Pattern = path([session, Name, ?KHEPRI_WILDCARD_STAR]),
    case get_many(Pattern, consistency) of
        {ok, Found} -> {ok, #{Fact => Value || {{_, Fact}, Value, _, _} <- maps:values(Found)}};
        {error, _} = Error -> Error
    end.

-doc """
Returns the sessions that have facts, as this node knows them: whether the session has ended, the
second of its last change, and for how many seconds its facts are of use after its last use.
""".
-spec sessions() ->
    #{Name :: erlmcp_cluster_session_id:nonce() =>
          {HasEnded :: boolean(), Second :: integer(), Idle :: non_neg_integer()}}.
sessions() ->
    try
        ets:foldl(fun({{Name, Fact}, _, Second, Idle}, Sessions) ->
            {HasEnded, Last, _} = maps:get(Name, Sessions, {false, Second, Idle}),
            Sessions#{Name => {HasEnded orelse Fact =:= ended, max(Second, Last), Idle}}
        end, #{}, ?SESSIONS)
    catch
        %% The table is the store's own, which starts or stops.
        error:badarg -> #{}
    end.

-doc "Deletes all facts of a session.".
-spec forget_session(Name :: erlmcp_cluster_session_id:nonce()) -> ok | {error, term()}.
forget_session(Name) ->
    khepri:delete(?STORE, path([session, Name]), #{timeout => ?COMMAND_MS}).

-doc "Deletes a fact of a session.".
-spec forget_session(Name :: erlmcp_cluster_session_id:nonce(), fact()) -> ok | {error, term()}.
forget_session(Name, Fact) ->
    khepri:delete(?STORE, path([session, Name, Fact]), #{timeout => ?COMMAND_MS}).

%% With their epoch, so that they can be compared and swapped.
with_epoch(Deaths) ->
    {erlmcp_cluster_deaths:epoch(Deaths), Deaths}.

%% Tasks.

-doc "Adds a task of a server. Its id is new.".
-spec create_task(Server :: binary(), erlmcp_task_store:id(), erlmcp_cluster_task_tables:entry(),
                  Milliseconds :: pos_integer()) ->
    ok | {error, term()}.
create_task(Server, Id, Entry, Milliseconds) ->
    Created = khepri:create(?STORE, task_path(Server, Id), Entry, #{timeout => Milliseconds}),
    case swapped(Created) of
        %% The command was applied twice.
        changed -> ok;
        Other -> Other
    end.

-doc "Replaces a task by its next version, if it has this version and incarnation.".
-spec swap_task(Server :: binary(), erlmcp_task_store:id(),
                {pos_integer(), erlmcp_cluster_deaths:incarnation()},
                erlmcp_cluster_task_tables:entry(), Milliseconds :: pos_integer()) ->
    ok | changed | {error, term()}.
swap_task(Server, Id, {Version, Incarnation}, Entry, Milliseconds) ->
    swap(task_path(Server, Id), {Version, Incarnation, '_'}, Entry, Milliseconds).

-doc "Deletes a task, if it is there.".
-spec delete_task(Server :: binary(), erlmcp_task_store:id()) -> ok | {error, term()}.
delete_task(Server, Id) ->
    khepri:delete(?STORE, task_path(Server, Id), #{timeout => ?COMMAND_MS}).

-doc """
Returns when this node, and its tables, have all changes that were answered before the call. The
leader asks a majority whether it still leads, so this does not succeed without one.
""".
-spec catch_up(Milliseconds :: pos_integer()) -> ok | {error, term()}.
catch_up(Milliseconds) ->
    Own = {?STORE, node()},
    Leader = case ra_leaderboard:lookup_leader(?STORE) of
        undefined -> Own;
        Known -> Known
    end,
    Query = {?MODULE, applied, [], [with_context]},
    maybe
        {ok, Applied, _} ?= ra:consistent_query(Leader, Query, Milliseconds),
        {ok, _, _} ?= ra:local_query(Own, Query, #{condition => {applied, Applied},
                                                   timeout => Milliseconds}),
        ok
    else
        {timeout, _} -> {error, timeout};
        {error, _} = Error -> Error
    end.

-doc "Returns the place in the log that a member of the store has come to. Other nodes call it.".
-spec applied(#{index := non_neg_integer(), term := non_neg_integer(), _ => _}, term()) ->
    {Index :: non_neg_integer(), Term :: non_neg_integer()}.
applied(#{index := Index, term := Term}, _) ->
    {Index, Term}.

%% The process.

-doc false.
init(#{data_dir := Folder} = Options) ->
    _ = process_flag(trap_exit, true),
    ok = erlmcp_label:set([?MODULE]),
    maybe
        ok ?= start_store(Folder),
        ok ?= find_cluster(Options, erlmcp_clock:now_ms() + map_get(join_ms, Options)),
        {ok, joined}
    else
        {error, _} = Error ->
            ok = stop_store(),
            Error
    end.

start_store(Folder) ->
    maybe
        {ok, _} ?= application:ensure_all_started(khepri),
        ok ?= filelib:ensure_path(Folder),
        Name = unicode:characters_to_list(Folder),
        Config = (ra_system:default_config())#{
            name => ?STORE, data_dir => Name, wal_data_dir => Name,
            wal_max_size_bytes => ?WAL_BYTES, names => ra_system:derive_names(?STORE)},
        {ok, _} ?= ra_system:start(Config),
        {ok, ?STORE} ?= khepri:start(?STORE, ?STORE, ?JOIN_MS),
        ok
    end.

%% The nodes of a new cluster look for each other until all of them are there. A node that was in
%% the cluster before stays in it.
find_cluster(#{discovery := Discovery, size := Size} = Options, Until) ->
    Others = erlmcp_cluster_discovery:nodes(Discovery) -- [node()],
    Answers = erpc:multicall(Others, ?MODULE, view, [], 2 * ?COMMAND_MS),
    %% A node without members has not started its part of the store.
    Views = [{Node, View} || {Node, {ok, #{members := [_ | _]} = View}}
                                 <- lists:zip(Others, Answers)],
    Missing = Others -- [Node || {Node, _} <- Views],
    case erlmcp_cluster_discovery:step({node(), view()}, Views, Missing, Size) of
        stay ->
            ok;
        {error, _} = Error ->
            Error;
        Step ->
            case take(Step) of
                joined -> ok;
                Reason -> pause(Reason, Options, Until)
            end
    end.

%% The first node of a cluster writes its id last: with it, the cluster is there.
take(form) ->
    maybe
        ok ?= khepri:put(?STORE, path([last]), {0, none}, #{timeout => ?COMMAND_MS}),
        ok ?= khepri:put(?STORE, path([deaths]), with_epoch(erlmcp_cluster_deaths:new()),
                         #{timeout => ?COMMAND_MS}),
        ok ?= project(tasks, erlmcp_cluster_task_tables:projection()),
        %% The rows of the table are the data of the facts.
        ok ?= project(session, khepri_projection:new(?SESSIONS, copy, #{})),
        ok ?= khepri:put(?STORE, path([cluster]), crypto:strong_rand_bytes(16),
                         #{timeout => ?COMMAND_MS}),
        joined
    else
        {error, Reason} -> Reason
    end;
take({join, Node}) ->
    case khepri_cluster:join({?STORE, Node}, ?JOIN_MS) of
        ok -> joined;
        {error, Reason} -> Reason
    end;
take(wait) ->
    no_cluster.

%% Shows each node the data under a name in a table. The cluster may be formed in several attempts.
project(Name, Projection) ->
    Pattern = path([Name, ?KHEPRI_WILDCARD_STAR, ?KHEPRI_WILDCARD_STAR]),
    case khepri:register_projection(?STORE, Pattern, Projection, #{timeout => ?COMMAND_MS}) of
        {error, ?khepri_error(projection_already_exists, _)} -> ok;
        Registered -> Registered
    end.

%% The only process that is linked to this one is its supervisor.
pause(Reason, Options, Until) ->
    receive
        {'EXIT', _, Ended} ->
            ok = stop_store(),
            exit(Ended)
    after ?PAUSE_MS ->
        case erlmcp_clock:now_ms() > Until of
            true -> {error, Reason};
            false -> find_cluster(Options, Until)
        end
    end.

-doc false.
handle_call(leave, _, State) ->
    Left = case members() of
        [_] -> {error, last_member};
        _ -> khepri_cluster:reset(?STORE, ?JOIN_MS)
    end,
    {reply, Left, State}.

-doc false.
handle_cast(_, State) ->
    {noreply, State}.

-doc false.
handle_info(_, State) ->
    {noreply, State}.

-doc false.
terminate(_, _) ->
    ok = yield([Node || Node <- members(), lists:member(Node, nodes())]),
    stop_store().

%% A leader that stops hands its part over, so that the others need no time to notice.
yield([Node | _]) ->
    _ = leader() =:= node() andalso ra:transfer_leadership({?STORE, node()}, {?STORE, Node}),
    ok;
yield([]) ->
    ok.

stop_store() ->
    _ = khepri:stop(?STORE),
    _ = ra_system:stop(?STORE),
    ok.

%% Khepri.

path(Names) ->
    ?ROOT ++ Names.

task_path(Server, Id) ->
    path([tasks, Server, Id]).

lease_path(Incarnation) ->
    path([incarnation, integer_to_binary(Incarnation)]).

get(Path) ->
    get(Path, consistency).

get(Path, Favor) ->
    read(fun khepri:get/3, Path, Favor).

get_many(Pattern, Favor) ->
    read(fun khepri:get_many/3, Pattern, Favor).

read(Read, Path, Favor) ->
    try
        Read(?STORE, Path, #{favor => Favor, timeout => ?COMMAND_MS})
    catch
        %% Khepri asks the leader by `erpc`. The leader's member may have just stopped.
        error:{exception, _, _} -> {error, no_leader};
        error:{erpc, _} -> {error, no_leader}
    end.

%% The pattern is one of ETS: '_' is any term.
swap(Path, Pattern, Data, Milliseconds) ->
    swapped(khepri:compare_and_swap(?STORE, Path, Pattern, Data, #{timeout => Milliseconds})).

swapped(ok) -> ok;
swapped({error, ?khepri_error(mismatching_node, _)}) -> changed;
swapped({error, ?khepri_error(node_not_found, _)}) -> changed;
swapped({error, _} = Error) -> Error.
