-module(erlmcp_cluster_store).
-moduledoc """
The facts that all nodes of a cluster agree on, in Khepri, which is a tree over Raft. Each fact is
one node of the tree:

- `cluster`: the id of the cluster, which its first node writes.
- `last`: the number of the last incarnation that was given out.
- `incarnation/N`: the lease of an incarnation, `{alive, Node, Renewals}`, or how it ended. The
  lease of a node that has given its sessions up, and is about to stop, is
  `{leaving, Node, Renewals}`.
- `deaths`: `t:erlmcp_cluster_deaths:deaths/0`.
- `session/Name/Fact`: what the next home of a session must know (`m:erlmcp_cluster_sessions`). Each
  node also has these facts in a table.
- `tasks/Server/Id`: a task, `{Version, Incarnation, Record}`. A projection of the store has the
  tasks in tables on each node (`m:erlmcp_cluster_task_tables`).
- `token/Digest`: the sealed tokens of a client (`m:erlmcp_cluster_token_store`).

Facts that several nodes may change are changed by compare-and-swap alone, except tokens: there the
last write stays.

An incarnation ends in two steps. First its lease is swapped for `{dead, Node, Second}` or
`{left, Node, Second}`: from then on it renews nothing. Then any node adds its death to `deaths`,
and deletes the lease. An incarnation that is leaving is among the deaths before its lease ends.

An error that a function does not name is one of Khepri or Ra. It is `timeout` without a majority,
and `noproc` without a part of the store on this node. A change may then be stored or not.

The process starts the node's part of the store, joins the others, and stops that part at its own
end. If that part ends by itself, as when its disk is full, the process starts it again as soon as
the disk can be written.

Internal.
""".

-behaviour(gen_server).

-include_lib("khepri/include/khepri.hrl").

-export([start_link/1, view/0, may_leave/0, leave/0, forget/1, without_lease/0]).
-export([members/0, leader/0, doubt/0, close_full/2, resign/0, disk/0]).
-export([next_incarnation/0, open_lease/1, renew_lease/5, leases/1, end_lease/3, bury/1]).
-export([deaths/1]).
-export([put_session/5, end_session/3, session/1, sessions/0, session_facts/0, owners/0]).
-export([has_fact/2]).
-export([forget_session/1, forget_session/2]).
-export([create_task/4, swap_task/5, delete_task/2, catch_up/1, applied/2]).
-export([token/1, tokens/0, put_token/2, delete_token/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

-export_type([lease/0, view/0, fact/0]).

-compile({no_auto_import, [get/1]}).

%% The name of the store, of its Ra system, and of its member on each node.
-define(STORE, erlmcp_cluster).
-define(ROOT, [erlmcp]).
%% The table with the facts of sessions.
-define(SESSIONS, erlmcp_cluster_session_facts).
%% Asks a member for what it has applied (`applied/2`).
-define(APPLIED, {?MODULE, applied, [], [with_context]}).
%% A command that has no answer by then may have failed or not.
-define(COMMAND_MS, 1_000).
%% A member that does not take part in an election at once is too busy for one.
-define(ELECTION_MS, 250).
%% How long a leader that is doubted has to answer: at first, and after elections that have not
%% helped. The nodes differ in this, by up to the last one.
-define(PATIENCE_MS, 200).
-define(MOST_PATIENCE_MS, 2_000).
-define(PATIENCE_SPREAD_MS, 150).
-define(CALM_MS, 10_000).
-define(JOIN_MS, 10_000).
-define(PAUSE_MS, 500).
%% Khepri has its lock within this time, unless a node stands still.
-define(LOCK_MS, 5_000).
%% Its part of the store stops within this time, or with its Ra system.
-define(STOP_MS, 5_000).
%% A store writes a few small entries a second.
-define(WAL_BYTES, 16_000_000).
%% The least and the most entries after which a new node writes all facts to its disk, as a
%% snapshot. A node that starts applies those after its last snapshot again, so with more of them it
%% starts later.
-define(LEAST_SNAPSHOT, 16_384).
-define(MOST_SNAPSHOT, 32_768).
%% Milliseconds between two looks whether the node's part of the store runs.
-define(LOOK_MS, 500).
%% How often a leader that is about to stop asks the others to lead. How often it looks whether one
%% does, before it asks the next one, and in all. Milliseconds in between.
-define(TRIES, 20).
-define(LOOKS, 10).
-define(ALL_LOOKS, 100).
-define(RESIGN_MS, 10).
%% A node that is about to lead says so within this time, unless it stands still.
-define(IS_ELECTED_MS, 50).
%% A node that resigns does not ask to be elected for so long.
-define(RESIGNED_MS, 5_000).
%% A part that has ended is started again when its disk has room for so much.
-define(ROOM_BYTES, 1_048_576).
%% How long it takes the process to give up. Its supervisor starts it again, but not too often.
-define(FAILED_MS, 3_500).

-doc """
The lease of an incarnation that lives or is leaving, or has died or left. A lease that has ended
stays until the death is written down. `Renewals` counts the renewals. `Second` is when the lease
ended, in seconds since 1970 by the agreed time (`m:erlmcp_cluster_time`).
""".
-type lease() ::
    {alive | leaving, node(), Renewals :: non_neg_integer()}
    | {dead | left, node(), Second :: integer()}.
-doc """
The answer of a node to another one that looks for a cluster: the id and the members of its own
cluster. The id is `none` if the node is in no cluster, or does not know the id yet. If the node's
part of the store does not answer, the id may be `none`, and `members` is `[]`.
""".
-type view() :: #{cluster := binary() | none, members := [node()]}.

-doc """
The name of a fact of a session. The fact that the client watches a resource has the SHA-256 digest
of the resource's URI as its name.
""".
-type fact() :: declaration | log_level | ended | <<_:256>>.

-record(state, {
    options :: erlmcp_cluster:options(),
    %% whether the node's part of the store was there at the last look
    runs = true :: boolean(),
    %% what the last attempt to start that part again has returned
    started = ok :: ok | {error, term()},
    %% how long a leader that is doubted has to answer, and the time before which no doubt counts:
    %% when the last one was over, or some time after this node has resigned
    patience = ?PATIENCE_MS :: pos_integer(),
    doubted :: integer(),
    %% the last leader that this node knew of, and the same one if it did not answer the last doubt
    %% and the connection had no room
    led = none :: none | node(),
    full = [] :: [node()],
    %% whether this node is a member; `doubtful` after `without_lease/0`
    member = true :: true | doubtful | left
}).

-doc """
Starts the process, which joins the cluster before this function returns. The errors are among those
of `erlmcp_cluster:join/1`.
""".
-spec start_link(erlmcp_cluster:options()) -> gen_server:start_ret().
start_link(Options) ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, Options, [{timeout, infinity}]).

%% Membership.

-doc """
Returns the id and the members of this node's cluster, as this node knows them. Other nodes call
this function when they look for a cluster.
""".
-spec view() -> view().
view() ->
    case get(path([cluster]), low_latency) of
        {ok, Id} -> #{cluster => Id, members => members()};
        {error, ?khepri_error(node_not_found, _)} -> #{cluster => none, members => members()};
        %% The store starts or stops, or is too busy to say.
        {error, _} -> #{cluster => none, members => []}
    end.

-doc """
Returns the nodes of the cluster, as this node knows them. Returns `[]` while this node has no part
of the store, or if its part does not answer within a second.
""".
-spec members() -> [node()].
members() ->
    Options = #{favor => low_latency, timeout => ?COMMAND_MS},
    case asked(fun() -> khepri_cluster:nodes(?STORE, Options) end) of
        {ok, Nodes} -> Nodes;
        {error, _} -> []
    end.

-doc "Returns the node that leads the cluster, as this node knows it, or `none`.".
-spec leader() -> node() | none.
leader() ->
    case ra_leaderboard:lookup_leader(?STORE) of
        {_, Node} -> Node;
        undefined -> none
    end.

-doc """
Reports a doubt whether the leader lives, and returns at once. If the leader does not answer within
200 to 350 ms, this node asks the others to elect it as the leader. It also does so if no leader is
known by then. Each such election doubles the 200 ms for the next doubt, up to 2 seconds. The time
is 200 ms again once a leader answers, or no doubt comes for ten seconds. The connection to a leader
that does not answer is closed if it has no room at two doubts in a row.
""".
-spec doubt() -> ok.
doubt() ->
    gen_server:cast(?MODULE, {doubt, erlmcp_clock:now_ms()}).

-doc """
Returns those of `Nodes` to which the connection has no room. If such a node is also one of
`Before`, closes its connection. A process that sends to a node that stands still would otherwise
wait until OTP closes the connection after a minute. So would Ra's processes. The calling process
must not have the flag `async_dist`.
""".
-spec close_full([node()], Before :: [node()]) -> Full :: [node()].
close_full(Nodes, Before) ->
    %% The message says nothing.
    Full = [Node || Node <- Nodes,
                    erlang:send({?MODULE, Node}, room, [nosuspend, noconnect]) =:= nosuspend],
    lists:foreach(fun(Node) ->
        _ = lists:member(Node, Before) andalso erlang:disconnect_node(Node) =:= true
            andalso erlmcp_log:report(warning, #{what => cluster_full_connection_closed,
                                                 node => Node})
    end, Full),
    Full.

-doc """
Lets another living node lead the cluster, before this node stops. Waits until another one leads, or
until a bounded number of attempts has failed. For five seconds no doubt of this node asks for an
election (`doubt/0`). Does nothing if this node does not lead.
""".
-spec resign() -> ok.
resign() ->
    %% If a leader just stops, the others can change nothing until they have noticed it, and have
    %% elected another one.
    maybe
        true ?= leader() =:= node(),
        {ok, Leases} ?= leases(low_latency),
        ok = resigning(),
        resign([Node || {alive, Node, _} <- maps:values(Leases), Node =/= node()], ?TRIES)
    else
        _ -> ok
    end.

%% A call, since a doubt may be under way.
resigning() ->
    try
        gen_server:call(?MODULE, resigning, ?COMMAND_MS)
    catch
        exit:_ -> ok
    end.

resign(_, 0) ->
    ok;
resign(Nodes, Tries) ->
    case lists:search(fun takes_the_lead/1, Nodes) of
        {value, Node} -> followed([Node | lists:delete(Node, Nodes)], ?ALL_LOOKS);
        %% Each lacks an entry, which it will have in a moment.
        false -> receive after ?RESIGN_MS -> resign(Nodes, Tries - 1) end
    end.

takes_the_lead(Node) ->
    try
        ra:transfer_leadership({?STORE, node()}, {?STORE, Node}, ?COMMAND_MS) =:= ok
    catch
        exit:_ -> false
    end.

%% This node leads no more, but knows no other leader until one has been elected. The first of
%% `Nodes` was asked. If it is not about to lead by now, the next one is asked.
followed(_, 0) ->
    ok;
followed([Asked | Others] = Nodes, Looks) ->
    receive after ?RESIGN_MS -> ok end,
    case leader() of
        Leader when Leader =/= none, Leader =/= node() ->
            ok;
        _ when Looks rem ?LOOKS =/= 1; Others =:= [] ->
            followed(Nodes, Looks - 1);
        _ ->
            case is_elected(Asked) of
                true ->
                    followed(Nodes, Looks - 1);
                false ->
                    _ = elect(hd(Others)),
                    followed(Others ++ [Asked], Looks - 1)
            end
    end.

is_elected(Node) ->
    case asked(fun() -> ra:ping({?STORE, Node}, ?IS_ELECTED_MS) end) of
        {pong, State} -> lists:member(State, [pre_vote, candidate, leader]);
        _ -> false
    end.

-doc """
Returns `ok`, or why the folder of this node's part of the store cannot be written. The process
finds this out after that part has ended.
""".
-spec disk() -> ok | file:posix().
disk() ->
    persistent_term:get({?MODULE, disk}, ok).

-doc """
Returns `ok` if this node may leave. Returns `{error, last_member}` if the cluster has no other
node, and `{error, no_majority}` if the parts of the store of too few others run: without this node
they could change nothing, not even forget those that are dead. Returns `{error, timeout}` if the
store does not say which nodes it has.
""".
-spec may_leave() -> ok | {error, last_member | no_majority | timeout}.
may_leave() ->
    maybe
        {ok, Others} ?= others(),
        true ?= 2 * length(running(Others)) > length(Others),
        ok
    else
        false -> {error, no_majority};
        {error, _} = Error -> Error
    end.

others() ->
    case members() of
        [_, _ | _] = Members -> {ok, lists:delete(node(), Members)};
        [_] -> {error, last_member};
        [] -> {error, timeout}
    end.

%% Those of the nodes whose parts of the store run. A lease says less: a node that is killed has one
%% for a while, and a node that is drained may have none.
running(Nodes) ->
    Parts = erpc:multicall(Nodes, erlang, whereis, [?STORE], ?COMMAND_MS),
    [Node || {Node, {ok, Part}} <- lists:zip(Nodes, Parts), is_pid(Part)].

-doc """
Takes this node out of the cluster, and deletes its part of the store. The process runs on, and the
caller stops it. Returns `{error, last_member}` if the cluster has no other node. Exits if the
process does not run.
""".
-spec leave() -> ok | {error, last_member | term()}.
leave() ->
    gen_server:call(?MODULE, leave, infinity).

-doc """
Takes another node out of the cluster. Returns `{error, alive}` if the node's lease has not ended,
and `{error, not_member}` if the cluster has no such node.
""".
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

-doc """
Lets the process find out whether the others have taken this node, which has no lease now, out of
the cluster. If they have, it joins them again. Returns at once.
""".
-spec without_lease() -> ok.
without_lease() ->
    gen_server:cast(?MODULE, without_lease).

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

-doc """
Adds the lease of a new incarnation of this node, whose number `next_incarnation/0` has returned.
""".
-spec open_lease(erlmcp_cluster_deaths:incarnation()) -> ok | {error, term()}.
open_lease(Incarnation) ->
    Lease = {alive, node(), 0},
    Path = lease_path(Incarnation),
    case swapped(create(Path, Lease, ?COMMAND_MS)) of
        %% The number is this node's alone, so the command was applied twice.
        changed -> ok;
        Other -> Other
    end.

-doc """
Renews the lease of this node's incarnation. The lease is then `alive`, or `leaving` if the node is
about to stop. `Renewals` is the number of renewals, including this one. `By` says who answers. With
`local` this node's part of the store answers, and then has the renewal. With `leader` the leader
answers, and this node's part may have the renewal later. Returns `over` if the lease has ended: the
incarnation was declared dead. After an error, such as no answer within `Milliseconds`, the lease
may be renewed or not.
""".
-spec renew_lease(erlmcp_cluster_deaths:incarnation(), alive | leaving,
                  Renewals :: pos_integer(), By :: local | leader,
                  Milliseconds :: pos_integer()) ->
    ok | over | {error, term()}.
renew_lease(Incarnation, As, Renewals, By, Milliseconds) ->
    %% A renewal may be applied late, and twice. After a later one it has no effect.
    Earlier = #if_data_matches{pattern = {'$1', node(), '$2'},
                               conditions = [{'orelse', {'=:=', '$1', alive},
                                                        {'=:=', '$1', leaving}},
                                             {'=<', '$2', Renewals}]},
    Path = path([incarnation, #if_all{conditions = [integer_to_binary(Incarnation), Earlier]}]),
    Renewed = {As, node(), Renewals},
    Options = #{reply_from => By, timeout => Milliseconds},
    case swapped(asked(fun() -> khepri:put(?STORE, Path, Renewed, Options) end)) of
        changed -> over;
        Other -> Other
    end.

-doc """
Returns all leases in the store. With `low_latency` they are those that this node knows. With
`consistency` they are those that the cluster has agreed on.
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
Ends an incarnation whose lease is still `Seen` or, with `own`, an incarnation of this node whatever
its lease is. The incarnation is `dead`, or has `left` the cluster. Returns `changed` if the store
has another lease than `Seen`, or none any more.
""".
-spec end_lease(erlmcp_cluster_deaths:incarnation(), Seen :: lease() | own, dead | left) ->
    ok | changed | {error, term()}.
end_lease(Incarnation, own, How) ->
    end_lease(Incarnation, node(), {'_', node(), '_'}, How);
end_lease(Incarnation, {_, Node, _} = Seen, How) ->
    end_lease(Incarnation, Node, Seen, How).

end_lease(Incarnation, Node, Pattern, How) ->
    Ended = {How, Node, erlmcp_cluster_time:now(second)},
    swap(lease_path(Incarnation), Pattern, Ended, ?COMMAND_MS).

-doc """
Writes down the death of an incarnation whose lease has ended, or which is leaving. Then deletes the
lease if it has ended. Returns `changed` if another node wrote a death meanwhile, or if no
incarnation is left to survive this one. The result is also `changed` if the incarnation lives, or
has no lease in the store any more.
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
        false -> delete(lease_path(Incarnation));
        Other -> Other
    end.

%% How an incarnation ends or has ended, and at which second.
ended({leaving, _, _}) -> {leaving, erlmcp_cluster_time:now(second)};
ended({How, _, Second}) when How =/= alive -> {How, Second};
%% The incarnation lives, or another node has done both steps.
ended(_) -> changed.

written(Incarnation, Alive, At, Deaths) ->
    case erlmcp_cluster_deaths:declare(Incarnation, Alive, At, Deaths) of
        Deaths -> ok;
        _ when Alive =:= [] -> changed;
        More -> swap(path([deaths]), {erlmcp_cluster_deaths:epoch(Deaths), '_'},
                     with_epoch(More), ?COMMAND_MS)
    end.

-doc "Returns the deaths that are written down. The argument is that of `leases/1`.".
-spec deaths(low_latency | consistency) ->
    {ok, erlmcp_cluster_deaths:deaths()} | {error, term()}.
deaths(Favor) ->
    case get(path([deaths]), Favor) of
        {ok, {_, Deaths}} -> {ok, Deaths};
        {error, _} = Error -> Error
    end.

-doc """
Stores a fact of a session, in place of the fact's earlier value. The fact is needed for `Idle`
seconds after the last use of the session. It counts for the given owner
(`m:erlmcp_cluster_shares`).
""".
-spec put_session(Name :: erlmcp_cluster_session_id:nonce(), fact(), Value :: term(),
                  Idle :: non_neg_integer(), erlmcp_cluster_shares:owner()) ->
    ok | {error, term()}.
put_session(Name, Fact, Value, Idle, Owner) ->
    Row = session_row(Name, Fact, Value, Idle, Owner),
    put(path([session, Name, Fact]), Row, ?COMMAND_MS).

session_row(Name, Fact, Value, Idle, Owner) ->
    {{Name, Fact}, Value, erlmcp_cluster_time:now(second), Idle, Owner}.

-doc """
Stores the fact `ended` of a session, as `put_session/5` does. Returns `changed` if the fact was
there before: another request has ended the session.
""".
-spec end_session(Name :: erlmcp_cluster_session_id:nonce(), Idle :: non_neg_integer(),
                  erlmcp_cluster_shares:owner()) ->
    ok | changed | {error, term()}.
end_session(Name, Idle, Owner) ->
    Path = path([session, Name, ended]),
    By = make_ref(),
    Row = session_row(Name, ended, By, Idle, Owner),
    maybe
        changed ?= swapped(create(Path, Row, ?COMMAND_MS)),
        %% The command was possibly applied twice. So the fact has who has stored it.
        {ok, {_, Stored, _, _, _}} ?= get(Path),
        true ?= Stored =:= By,
        ok
    else
        false -> changed;
        Other -> Other
    end.

-doc """
Returns the facts of a session by their names, as this node knows them. The map is empty if the
session has none. The value of a digest is the URI.
""".
-spec session(Name :: erlmcp_cluster_session_id:nonce()) ->
    {ok, #{fact() => term()}} | {error, term()}.
session(Name) ->
    Pattern = path([session, Name, ?KHEPRI_WILDCARD_STAR]),
    case get_many(Pattern, low_latency) of
        {ok, Found} -> {ok, #{Fact => Value || {{_, Fact}, Value, _, _, _} <- maps:values(Found)}};
        {error, _} = Error -> Error
    end.

-doc """
Returns the sessions that have facts, as this node knows them. `HasEnded` is `true` if the fact
`ended` is among them. `Second` is when the last fact was stored, in seconds since 1970 by the
agreed time (`m:erlmcp_cluster_time`). The facts are needed for `Idle` seconds after the session's
last use. The map is empty while this node has no part of the store.
""".
-spec sessions() ->
    #{Name :: erlmcp_cluster_session_id:nonce() =>
          {HasEnded :: boolean(), Second :: integer(), Idle :: non_neg_integer()}}.
sessions() ->
    try
        ets:foldl(fun({{Name, Fact}, _, Second, Idle, _}, Sessions) ->
            {HasEnded, Last, _} = maps:get(Name, Sessions, {false, Second, Idle}),
            Sessions#{Name => {HasEnded orelse Fact =:= ended, max(Second, Last), Idle}}
        end, #{}, ?SESSIONS)
    catch
        %% The table is the store's own, which starts or stops.
        error:badarg -> #{}
    end.

-doc """
Returns how many facts of sessions there are, as this node knows them: 0 while it has no part of the
store.
""".
-spec session_facts() -> non_neg_integer().
session_facts() ->
    case ets:info(?SESSIONS, size) of
        undefined -> 0;
        Count -> Count
    end.

-doc """
Returns the units of all facts of each owner (`erlmcp_cluster_shares:units/1`), as this node knows
them. The map is empty while this node has no part of the store.
""".
-spec owners() -> #{erlmcp_cluster_shares:owner() => pos_integer()}.
owners() ->
    try
        ets:foldl(fun({_, Value, _, _, Owner}, Counts) ->
            Counts#{Owner => maps:get(Owner, Counts, 0) + erlmcp_cluster_shares:units(Value)}
        end, #{}, ?SESSIONS)
    catch
        error:badarg -> #{}
    end.

-doc """
Returns `true` if a session has a fact, as this node knows it. A node knows at least the facts that
it has stored itself. Returns `false` while this node has no part of the store.
""".
-spec has_fact(Name :: erlmcp_cluster_session_id:nonce(), fact()) -> boolean().
has_fact(Name, Fact) ->
    try
        ets:member(?SESSIONS, {Name, Fact})
    catch
        %% The table is the store's own, which starts or stops.
        error:badarg -> false
    end.

-doc "Deletes all facts of a session.".
-spec forget_session(Name :: erlmcp_cluster_session_id:nonce()) -> ok | {error, term()}.
forget_session(Name) ->
    delete(path([session, Name])).

-doc "Deletes one fact of a session, if it is there.".
-spec forget_session(Name :: erlmcp_cluster_session_id:nonce(), fact()) -> ok | {error, term()}.
forget_session(Name, Fact) ->
    delete(path([session, Name, Fact])).

%% With their epoch, so that they can be compared and swapped.
with_epoch(Deaths) ->
    {erlmcp_cluster_deaths:epoch(Deaths), Deaths}.

%% Tasks.

-doc """
Adds a task of a server under a new id. After an error, such as no answer within `Milliseconds`, the
task may be there or not.
""".
-spec create_task(Server :: binary(), erlmcp_task_store:id(), erlmcp_cluster_task_tables:entry(),
                  Milliseconds :: pos_integer()) ->
    ok | {error, term()}.
create_task(Server, Id, Entry, Milliseconds) ->
    case swapped(create(task_path(Server, Id), Entry, Milliseconds)) of
        %% The command was applied twice.
        changed -> ok;
        Other -> Other
    end.

-doc """
Replaces a task by `Entry`, if the store has it with this version and incarnation, and otherwise
returns `changed`. After an error, such as no answer within `Milliseconds`, the task may be replaced
or not.
""".
-spec swap_task(Server :: binary(), erlmcp_task_store:id(),
                {pos_integer(), erlmcp_cluster_deaths:incarnation()},
                erlmcp_cluster_task_tables:entry(), Milliseconds :: pos_integer()) ->
    ok | changed | {error, term()}.
swap_task(Server, Id, {Version, Incarnation}, Entry, Milliseconds) ->
    swap(task_path(Server, Id), {Version, Incarnation, '_'}, Entry, Milliseconds).

-doc "Deletes a task, if it is there.".
-spec delete_task(Server :: binary(), erlmcp_task_store:id()) -> ok | {error, term()}.
delete_task(Server, Id) ->
    delete(task_path(Server, Id)).

-doc """
Returns `ok` when this node, and its tables, have all changes that were answered before the call.
Without a majority the result is an error, since the leader asks a majority whether it still leads.
Each of the two steps, the leader's and this node's, may take `Milliseconds`.
""".
-spec catch_up(Milliseconds :: pos_integer()) -> ok | {error, term()}.
catch_up(Milliseconds) ->
    Own = {?STORE, node()},
    Leader = case ra_leaderboard:lookup_leader(?STORE) of
        undefined -> Own;
        Known -> Known
    end,
    maybe
        {ok, Applied} ?= agreed(Leader, Milliseconds),
        Here = #{condition => {applied, Applied}, timeout => Milliseconds},
        {ok, _, _} ?= asked(fun() -> ra:local_query(Own, ?APPLIED, Here) end),
        ok
    else
        {timeout, _} -> {error, timeout};
        {error, _} = Error -> Error
    end.

%% Asks the leader, of whom any member knows. It answers if a majority says that it still leads.
agreed(Member, Milliseconds) ->
    case asked(fun() -> ra:consistent_query(Member, ?APPLIED, Milliseconds) end) of
        {ok, Applied, _} -> {ok, Applied};
        {timeout, _} -> {error, timeout};
        {error, _} = Error -> Error
    end.

-doc """
Returns the index and the term of the last entry of the log that a member of the store has applied.
`catch_up/1` calls it on the leader and on this node.
""".
-spec applied(#{index := non_neg_integer(), term := non_neg_integer(), _ => _}, term()) ->
    {Index :: non_neg_integer(), Term :: non_neg_integer()}.
applied(#{index := Index, term := Term}, _) ->
    {Index, Term}.

%% Tokens.

-doc """
Returns the sealed tokens under a digest, as the cluster has agreed on them, or `none`. Returns
`{error, unavailable}` if the store has no answer, as without a majority.
""".
-spec token(Digest :: <<_:256>>) -> {ok, Sealed :: binary()} | none | {error, unavailable}.
token(Digest) ->
    case get(token_path(Digest)) of
        {ok, Sealed} -> {ok, Sealed};
        {error, ?khepri_error(node_not_found, _)} -> none;
        {error, _} -> {error, unavailable}
    end.

-doc "Returns how many digests have tokens. The error is that of `token/1`.".
-spec tokens() -> {ok, non_neg_integer()} | {error, unavailable}.
tokens() ->
    available(read(fun khepri:count/3, path([token, ?KHEPRI_WILDCARD_STAR]), consistency)).

-doc """
Stores sealed tokens under a digest, in place of those before. After `{error, unavailable}` they may
be stored or not.
""".
-spec put_token(Digest :: <<_:256>>, Sealed :: binary()) -> ok | {error, unavailable}.
put_token(Digest, Sealed) ->
    available(put(token_path(Digest), Sealed, ?COMMAND_MS)).

-doc """
Deletes the tokens under a digest, if there are some. After `{error, unavailable}` they may be
deleted or not.
""".
-spec delete_token(Digest :: <<_:256>>) -> ok | {error, unavailable}.
delete_token(Digest) ->
    available(delete(token_path(Digest))).

available({error, _}) -> {error, unavailable};
available(Done) -> Done.

%% The process.

-doc false.
init(Options) ->
    _ = process_flag(trap_exit, true),
    ok = erlmcp_label:set([?MODULE]),
    Until = erlmcp_clock:now_ms() + map_get(join_ms, Options),
    maybe
        ok ?= start_store(Options),
        ok ?= find_cluster(Options, Until),
        _ = erlang:send_after(?LOOK_MS, self(), look),
        {ok, #state{options = Options, doubted = erlmcp_clock:now_ms()}}
    else
        {error, _} = Error ->
            ok = stop_store(),
            receive after ?FAILED_MS -> Error end
    end.

start_store(#{data_dir := Folder, join_ms := Milliseconds}) ->
    maybe
        %% Ra may have ended alone, with its disk.
        {ok, _} ?= application:ensure_all_started([ra, khepri]),
        ok ?= filelib:ensure_path(Folder),
        Name = unicode:characters_to_list(Folder),
        Config = (ra_system:default_config())#{
            name => ?STORE, data_dir => Name, wal_data_dir => Name,
            wal_max_size_bytes => ?WAL_BYTES, names => ra_system:derive_names(?STORE)},
        {ok, _} ?= ra_system:start(Config),
        start_khepri(Milliseconds)
    end.

start_khepri(Milliseconds) ->
    maybe
        {ok, ?STORE} ?= within(Milliseconds,
                               fun() -> khepri:start(?STORE, store_options(), ?JOIN_MS) end),
        name_kept()
    end.

%% A member answers nothing while it takes a snapshot, for longer the more facts there are. A new
%% node does so at a number of its own, or all would stand still at the same entry, and there would
%% be no majority. A node that gets the snapshot of another member has the number of that one from
%% then on, since Khepri keeps the number in the snapshot.
store_options() ->
    Spread = erlang:phash2(atom_to_binary(node()), ?MOST_SNAPSHOT - ?LEAST_SNAPSHOT + 1),
    #{cluster_name => ?STORE,
      machine_config => #{snapshot_interval => ?LEAST_SNAPSHOT + Spread}}.

%% Ra writes the name of a new member to the disk up to some seconds late. A node that was killed
%% before that would come back as another member, without what it has agreed to.
name_kept() ->
    #{directory_rev := Names} = ra_system:derive_names(?STORE),
    try
        dets:sync(Names)
    catch
        %% Ra has ended meanwhile, and the table with it.
        error:badarg -> {error, ra_stopped}
    end.

stop_khepri() ->
    within(?STOP_MS, fun() -> khepri:stop(?STORE) end).

%% Khepri takes a lock on all connected nodes to start, stop, join or leave. It waits for a node
%% that stands still until OTP closes the connection, which takes a minute.
within(Milliseconds, Do) ->
    Caller = self(),
    {Pid, Monitor} = spawn_monitor(fun() -> Caller ! {self(), Do()} end),
    receive
        {Pid, Done} ->
            true = demonitor(Monitor, [flush]),
            Done;
        {'DOWN', Monitor, process, Pid, Reason} ->
            {error, Reason}
    after Milliseconds ->
        true = demonitor(Monitor, [flush]),
        true = exit(Pid, kill),
        {error, timeout}
    end.

%% The nodes of a new cluster look for each other until all of them are there. A node that was in
%% the cluster before stays in it.
find_cluster(Options, Until) ->
    %% An attempt to join may have stopped Khepri, and not started it again in time.
    _ = is_pid(whereis(?STORE)) orelse start_khepri(?JOIN_MS),
    case step(Options) of
        stay ->
            %% The node may have joined in an attempt that had no answer.
            name_kept();
        {error, _} = Error ->
            Error;
        Step ->
            case take(Step) of
                joined -> ok;
                Reason -> pause(Reason, Options, Until)
            end
    end.

step(#{discovery := Discovery, size := Size}) ->
    %% The first one that is in a cluster may be cut off from the others of it.
    Others = shuffled(erlmcp_cluster_discovery:nodes(Discovery) -- [node()]),
    Answers = erpc:multicall(Others, ?MODULE, view, [], 2 * ?COMMAND_MS),
    %% A node without members has not started its part of the store.
    Views = [{Node, View} || {Node, {ok, #{members := [_ | _]} = View}}
                                 <- lists:zip(Others, Answers)],
    Missing = Others -- [Node || {Node, _} <- Views],
    case view() of
        %% This node may be a member, and must not join as a new one.
        #{members := []} -> wait;
        Own -> erlmcp_cluster_discovery:step({node(), Own}, Views, Missing, Size)
    end.

shuffled(Nodes) ->
    [Node || {_, Node} <- lists:sort([{rand:uniform(), Node} || Node <- Nodes])].

%% The first node of a cluster writes its id last: with it, the cluster is there.
take(form) ->
    maybe
        ok ?= put(path([last]), {0, none}, ?COMMAND_MS),
        ok ?= put(path([deaths]), with_epoch(erlmcp_cluster_deaths:new()), ?COMMAND_MS),
        ok ?= project(tasks, erlmcp_cluster_task_tables:projection()),
        %% The rows of the table are the data of the facts.
        ok ?= project(session, khepri_projection:new(?SESSIONS, copy, #{})),
        ok ?= put(path([cluster]), crypto:strong_rand_bytes(16), ?COMMAND_MS),
        joined
    else
        {error, Reason} -> Reason
    end;
take({join, Node}) ->
    maybe
        %% Khepri joins under the lock with which each node starts its part. Without a majority the
        %% attempt would fail, and hold that lock while the node starts that the others wait for.
        {ok, _} ?= agreed({?STORE, Node}, ?COMMAND_MS),
        ok ?= has_room({?STORE, Node}),
        ok ?= part_with(members(), Node),
        ok ?= within(?LOCK_MS + ?JOIN_MS, fun() ->
            khepri_cluster:join({?STORE, Node}, ?JOIN_MS)
        end),
        %% Khepri has begun this node's part anew.
        ok ?= name_kept(),
        joined
    else
        {error, Reason} -> Reason
    end;
take(wait) ->
    no_cluster.

%% With another member a majority may need it, at once: nothing is agreed on until it has all facts.
%% So those that run must be a majority without it, unless all members run.
has_room(Member) ->
    maybe
        {ok, Members, _} ?= ra:members(Member, ?COMMAND_MS),
        Others = [Node || {_, Node} <- Members, Node =/= node()],
        Running = running(Others),
        case Others -- Running of
            [] -> ok;
            _ when 2 * length(Running) > length(Others) + 1 -> ok;
            Dead -> {error, {dead_members, lists:sort(Dead)}}
        end
    else
        {timeout, _} -> {error, timeout};
        {error, _} = Error -> Error
    end.

%% A node that was taken out of its cluster has the members on its disk, but hears of no leader, and
%% Khepri would wait for one. So it begins anew, once the leader of the others has said that it is
%% no member: their own views may be old.
part_with([_, _ | _], Node) ->
    Own = {?STORE, node()},
    maybe
        {ok, Members, _} ?= ra:members({?STORE, Node}, ?JOIN_MS),
        false ?= lists:member(Own, Members),
        ok ?= stop_khepri(),
        ok ?= ra:force_delete_server(?STORE, Own),
        start_khepri(?JOIN_MS)
    else
        true -> {error, still_member};
        {timeout, _} -> {error, timeout};
        {error, _} = Error -> Error
    end;
part_with(_, _) ->
    ok.

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
%% Nobody leads for a moment.
handle_call(resigning, _, State) ->
    {reply, ok, State#state{doubted = erlmcp_clock:now_ms() + ?RESIGNED_MS}};
handle_call(leave, _, State) ->
    maybe
        {ok, _} ?= others(),
        ok ?= within(?LOCK_MS + ?JOIN_MS, fun() -> khepri_cluster:reset(?STORE, ?JOIN_MS) end),
        {reply, ok, State#state{member = left}}
    else
        {error, _} = Error -> {reply, Error, State}
    end.

-doc false.
%% This doubt is older than the answer to the last one, for which it had to wait.
handle_cast({doubt, At}, #state{doubted = Doubted} = State) when At < Doubted ->
    {noreply, State};
handle_cast({doubt, At}, #state{doubted = Doubted} = State) ->
    Next = case At - Doubted > ?CALM_MS of
        %% The elections before have helped.
        true -> doubt(leader(), State#state{patience = ?PATIENCE_MS, full = []});
        false -> doubt(leader(), State)
    end,
    {noreply, Next#state{doubted = erlmcp_clock:now_ms()}};
handle_cast(without_lease, #state{member = true} = State) ->
    {noreply, State#state{member = doubtful}};
handle_cast(without_lease, State) ->
    {noreply, State}.

-doc false.
handle_info(look, State) ->
    Next = look(is_pid(whereis(?STORE)), led(leader(), State)),
    _ = erlang:send_after(?LOOK_MS, self(), look),
    {noreply, Next};
handle_info(_, State) ->
    {noreply, State}.

%% Ra notices a leader that has stopped without closing its connections only after some seconds. A
%% leader that answers is only slow, and an election would make it slower.
doubt(Leader, #state{patience = Patience, full = FullBefore} = Before) ->
    #state{led = Led} = State = led(Leader, Before),
    case answers(Leader, Patience + rand:uniform(?PATIENCE_SPREAD_MS)) of
        true ->
            State#state{patience = ?PATIENCE_MS, full = []};
        false ->
            Full = close_full([Node || Node <- [Led], Node =/= none], FullBefore),
            State#state{patience = elect_instead(Leader, Patience), full = Full}
    end.

%% Ra forgets the leader when it begins an election, and then waits for room in the connection to
%% it.
led(none, State) -> State;
led(Leader, State) -> State#state{led = Leader}.

%% Returns how long the leader has to answer next time.
elect_instead(Leader, Patience) ->
    case leader() of
        Leader ->
            ok = elect(),
            min(2 * Patience, ?MOST_PATIENCE_MS);
        %% Another node was first.
        _ ->
            Patience
    end.

answers(none, Milliseconds) ->
    receive after Milliseconds -> false end;
answers(Node, Milliseconds) ->
    asked(fun() -> ra:ping({?STORE, Node}, Milliseconds) end) =:= {pong, leader}.

elect() ->
    elect(node()).

elect(Node) ->
    %% An error says that the member starts, stops, or is busy.
    _ = asked(fun() -> ra:trigger_election({?STORE, Node}, ?ELECTION_MS) end),
    ok.

%% Ra starts its processes again that end, a few times. If they are not there for two looks, it has
%% given up.
look(true, #state{runs = true, member = doubtful, options = Options} = State) ->
    ok = join_again(Options),
    State#state{member = true};
look(true, #state{runs = true} = State) ->
    State;
look(true, State) ->
    State#state{runs = true};
look(false, #state{runs = true} = State) ->
    State#state{runs = false};
look(false, #state{options = #{data_dir := Folder} = Options, started = Last} = State) ->
    Before = disk(),
    case room(Folder) of
        ok ->
            ok = stop_store(),
            Started = start_store(Options),
            %% The same error comes again at each look.
            _ = (Started =:= ok orelse Started =/= Last)
                andalso erlmcp_log:report(warning, #{what => cluster_store_started_again,
                                                     result => Started}),
            State#state{runs = Started =:= ok, started = Started};
        Before ->
            State;
        Reason ->
            ok = erlmcp_log:report(error, #{what => cluster_store_cannot_write, folder => Folder,
                                            reason => Reason}),
            State
    end.

%% The lease of a node that was taken out has ended, so it goes on as another incarnation. If this
%% fails, it is done again, since the node still has no lease.
join_again(Options) ->
    maybe
        {join, _} = Join ?= step(Options),
        Result = take(Join),
        %% What another node sees of the members may be old.
        true ?= Result =/= still_member,
        erlmcp_log:report(warning, #{what => cluster_node_was_forgotten, result => Result})
    else
        _ -> ok
    end.

%% Notes whether the disk can be written.
room(Folder) ->
    File = filename:join(Folder, "room"),
    Written = file:write_file(File, binary:copy(<<0>>, ?ROOM_BYTES), [raw]),
    _ = file:delete(File),
    case Written of
        ok ->
            _ = persistent_term:erase({?MODULE, disk}),
            ok;
        {error, Reason} ->
            ok = persistent_term:put({?MODULE, disk}, Reason),
            Reason
    end.

-doc false.
terminate(_, _) ->
    _ = persistent_term:erase({?MODULE, disk}),
    ok = yield([Node || Node <- members(), lists:member(Node, nodes())]),
    stop_store().

%% A leader that stops hands its part over, so that the others need no time to notice.
yield([Node | _]) ->
    _ = leader() =:= node() andalso ra:transfer_leadership({?STORE, node()}, {?STORE, Node}),
    ok;
yield([]) ->
    ok.

%% Khepri cannot stop a member whose Ra system has ended.
stop_store() ->
    _ = is_pid(whereis(?STORE)) andalso stop_khepri(),
    _ = ra_system:stop(?STORE),
    ok.

%% Khepri.

path(Names) ->
    ?ROOT ++ Names.

task_path(Server, Id) ->
    path([tasks, Server, Id]).

token_path(Digest) ->
    path([token, Digest]).

lease_path(Incarnation) ->
    path([incarnation, integer_to_binary(Incarnation)]).

get(Path) ->
    get(Path, consistency).

get(Path, Favor) ->
    read(fun khepri:get/3, Path, Favor).

get_many(Pattern, Favor) ->
    read(fun khepri:get_many/3, Pattern, Favor).

%% Khepri's own way to favour consistency asks again and again, without an end, while no leader is
%% known.
read(Read, Path, consistency) ->
    maybe
        ok ?= catch_up(?COMMAND_MS),
        read(Read, Path, low_latency)
    end;
read(Read, Path, low_latency) ->
    asked(fun() -> Read(?STORE, Path, #{favor => low_latency, timeout => ?COMMAND_MS}) end).

%% The node's part of the store may stop while it is asked. Ra says so by an exit. If the leader
%% stands still, the caller must not wait for room in the connection to it, which has no timeout.
asked(Ask) ->
    Before = process_flag(async_dist, true),
    try
        Ask()
    catch
        exit:{Reason, {gen_statem, call, _}} -> {error, Reason}
    after
        _ = process_flag(async_dist, Before)
    end.

create(Path, Data, Milliseconds) ->
    asked(fun() -> khepri:create(?STORE, Path, Data, #{timeout => Milliseconds}) end).

put(Path, Data, Milliseconds) ->
    asked(fun() -> khepri:put(?STORE, Path, Data, #{timeout => Milliseconds}) end).

delete(Path) ->
    asked(fun() -> khepri:delete(?STORE, Path, #{timeout => ?COMMAND_MS}) end).

%% The pattern is one of ETS: '_' is any term.
swap(Path, Pattern, Data, Milliseconds) ->
    swapped(asked(fun() ->
        khepri:compare_and_swap(?STORE, Path, Pattern, Data, #{timeout => Milliseconds})
    end)).

swapped(ok) -> ok;
swapped({error, ?khepri_error(mismatching_node, _)}) -> changed;
swapped({error, ?khepri_error(node_not_found, _)}) -> changed;
swapped({error, _} = Error) -> Error.
