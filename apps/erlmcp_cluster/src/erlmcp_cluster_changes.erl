-module(erlmcp_cluster_changes).
-moduledoc """
Passes the changes of this node's servers on to the other nodes, and publishes theirs here. Each
node has one such process, which waits for no other node. The changes of 20 ms leave as one message
to each other node. A node that may have missed changes of a server hears `missed` instead: anything
of the server may have changed.

A message is `{erlmcp_cluster_changes, 1, [{Server, Changes}]}`. After a message of another version,
all servers of the node that got it hear `missed`.

Internal.
""".

-behaviour(gen_server).

-export([start_link/0, publish/2, ask/3, counts/0]).
-export([answer/3]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2, format_status/1]).

-define(SCOPE, erlmcp_cluster_scope).
-define(VERSION, 1).
-define(COLLECT_MS, 20).
%% Until a node is tried again whose connection had no room, and until the store is asked again.
-define(AGAIN_MS, 100).
-define(ANSWER_MS, 1_000).
%% Changes of one server that wait for the others, or are waited for here.
-define(MOST, 10_000).
%% Changes that wait for this process.
-define(MOST_GIVEN, 20_000).
%% Seconds between two log entries about changes that were dropped.
-define(QUIET, 60).

%% The words: changes that wait for this process, changes that it did not get, messages to other
%% nodes, messages from them, changes that were dropped.
-define(GIVEN, 1).
-define(REFUSED, 2).
-define(SENT, 3).
-define(RECEIVED, 4).
-define(MISSED, 5).

%% The changes of each server in their order, each once.
-type changes() :: #{Server :: term() => {#{Change :: term() => []}, queue:queue()}}.

-record(state, {
    counts :: atomics:atomics_ref(),
    %% the id of the cluster, and the monitor of its group
    group = none :: none | binary(),
    monitor = none :: none | reference(),
    out = #{} :: changes(),
    %% the servers of which a node has not heard everything
    late = #{} :: #{pid() => #{Server :: term() => []}},
    timer = none :: none | reference(),
    in = #{} :: changes(),
    logged = none :: none | integer()
}).

-doc "Starts the process that passes changes on to other nodes, and publishes theirs.".
-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

-doc """
Passes a change of a server on to the other nodes. Returns at once. If 20,000 changes already wait
for the process of this module, the change is dropped, and the other nodes hear `missed`. Does
nothing while this node is in no cluster.
""".
-spec publish(Server :: term(), Change :: term()) -> ok.
publish(Server, Change) ->
    case persistent_term:get(?MODULE, none) of
        none ->
            ok;
        Counts ->
            case atomics:add_get(Counts, ?GIVEN, 1) =< ?MOST_GIVEN of
                true ->
                    gen_server:cast(?MODULE, {publish, Server, Change});
                false ->
                    ok = atomics:sub(Counts, ?GIVEN, 1),
                    atomics:add(Counts, ?REFUSED, 1)
            end
    end.

-doc """
Asks a server on another node, as `c:erlmcp_server_cluster:ask/3` says. Returns `unreachable` if no
answer comes within a second, or the release of that node does not know the question.
""".
-spec ask(node(), Server :: term(), Question :: term()) -> {ok, term()} | unreachable.
ask(Node, Server, Question) ->
    try erpc:call(Node, ?MODULE, answer, [?VERSION, Server, Question], ?ANSWER_MS) of
        unsupported -> unreachable;
        Answer -> {ok, Answer}
    catch
        error:{erpc, _} -> unreachable
    end.

-doc false.
-spec answer(Version :: term(), Server :: term(), Question :: term()) -> Answer :: term().
answer(?VERSION, Server, Question) -> erlmcp_server_cluster:answer(Server, Question);
answer(_, _, _) -> unsupported.

-doc """
Returns how many messages this node has sent to other nodes and received from them. `missed` is how
many changes were dropped on their way from this node or to it. The numbers are those of the present
process, and 0 if there is none.
""".
-spec counts() -> #{sent | received | missed := non_neg_integer()}.
counts() ->
    Get = case persistent_term:get(?MODULE, none) of
        none -> fun(_) -> 0 end;
        Counts -> fun(Word) -> atomics:get(Counts, Word) end
    end,
    #{sent => Get(?SENT), received => Get(?RECEIVED), missed => Get(?MISSED)}.

-doc false.
init([]) ->
    _ = process_flag(trap_exit, true),
    ok = erlmcp_label:set([?MODULE]),
    Counts = atomics:new(?MISSED, []),
    ok = persistent_term:put(?MODULE, Counts),
    self() ! join,
    {ok, #state{counts = Counts}}.

-doc false.
handle_call(_, _, State) ->
    {noreply, State}.

-doc false.
handle_cast({publish, Server, Change}, #state{counts = Counts, out = Out} = State) ->
    ok = atomics:sub(Counts, ?GIVEN, 1),
    {Dropped, Next} = add(Server, Change, Out),
    {noreply, timed(?COLLECT_MS, dropped(Dropped, State#state{out = Next}))}.

-doc false.
handle_info(join, State) ->
    case erlmcp_cluster_store:view() of
        #{cluster := none} ->
            %% The node has just joined, and has not learned it yet.
            _ = erlang:send_after(?AGAIN_MS, self(), join),
            {noreply, State};
        #{cluster := Group} ->
            ok = pg:join(?SCOPE, Group, self()),
            {Monitor, Pids} = pg:monitor(?SCOPE, Group),
            {noreply, found(Pids -- [self()], State#state{group = Group, monitor = Monitor})}
    end;
handle_info({?MODULE, ?VERSION, Changes}, #state{counts = Counts} = State) ->
    ok = atomics:add(Counts, ?RECEIVED, 1),
    {noreply, received(Changes, State)};
handle_info({?MODULE, _, _}, State) ->
    {noreply, dropped(1, received([{Server, [missed]} || Server <- servers()], State))};
handle_info(publish, #state{in = In} = State) ->
    Left = maps:filtermap(fun publish_one/2, In),
    _ = map_size(Left) > 0 andalso publish_next(),
    {noreply, State#state{in = Left}};
handle_info({timeout, Timer, send}, #state{timer = Timer} = State) ->
    {noreply, sent(State#state{timer = none})};
handle_info({Monitor, leave, _, Pids}, #state{monitor = Monitor, late = Late} = State) ->
    {noreply, State#state{late = maps:without(Pids, Late)}};
handle_info({Monitor, join, _, Pids}, #state{monitor = Monitor} = State) ->
    {noreply, found(Pids, State)};
handle_info(_, State) ->
    {noreply, State}.

%% The processes of other nodes that were found have not heard what was published here before. The
%% clients here may have missed changes of those nodes, too. A node that has no servers yet cannot
%% say so, so this process does.
found([], State) ->
    State;
found(Pids, #state{late = Late} = State) ->
    Servers = servers(),
    ToTell = #{Server => [] || Server <- Servers},
    Next = State#state{late = maps:merge(Late, #{Pid => ToTell || Pid <- Pids})},
    timed(?COLLECT_MS, received([{Server, [missed]} || Server <- Servers], Next)).

received(Changes, #state{in = Before} = State) ->
    _ = map_size(Before) =:= 0 andalso Changes =/= [] andalso publish_next(),
    {Dropped, In} = lists:foldl(
        fun({Server, Change}, {Dropped, Waiting}) ->
            {More, Next} = add(Server, Change, Waiting),
            {Dropped + More, Next}
        end, {0, Before}, [{Server, Change} || {Server, Of} <- Changes, Change <- Of]),
    dropped(Dropped, State#state{in = In}).

%% Adds a change that does not wait already. In place of one too many there is `missed`.
add(Server, Change, Changes) ->
    case maps:get(Server, Changes, {#{}, queue:new()}) of
        {Seen, _} when is_map_key(Change, Seen) -> {0, Changes};
        {Seen, _} = Full when map_size(Seen) >= ?MOST ->
            {1, Changes#{Server => added(missed, Full)}};
        Some -> {0, Changes#{Server => added(Change, Some)}}
    end.

added(Change, {Seen, _} = Same) when is_map_key(Change, Seen) -> Same;
added(Change, {Seen, Queue}) -> {Seen#{Change => []}, queue:in(Change, Queue)}.

%% What has arrived meanwhile is received before the next change is published.
publish_next() ->
    self() ! publish.

publish_one(Server, {Seen, Queue}) ->
    {{value, Change}, Rest} = queue:out(Queue),
    ok = erlmcp_server_cluster:heard(Server, [Change]),
    case queue:is_empty(Rest) of
        true -> false;
        false -> {true, {maps:remove(Change, Seen), Rest}}
    end.

servers() ->
    [Id || {Id, _, #{cluster := {erlmcp_cluster, _}}} <- erlmcp_registry:servers()].

timed(Milliseconds, #state{timer = none} = State) ->
    State#state{timer = erlang:start_timer(Milliseconds, self(), send)};
timed(_, State) ->
    State.

sent(#state{counts = Counts, group = Group} = Before) ->
    #state{out = Out, late = Late} = State = with_refused(atomics:exchange(Counts, ?REFUSED, 0),
                                                          Before),
    Changes = [{Server, queue:to_list(Queue)} || Server := {_, Queue} <- Out],
    Others = pg:get_members(?SCOPE, Group) -- [self()],
    Results = [{Pid, send(Pid, catching_up(Pid, Late) ++ Changes, Counts)} || Pid <- Others],
    Servers = #{Server => [] || {Server, _} <- Changes},
    Behind = #{Pid => maps:merge(maps:get(Pid, Late, #{}), Servers)
               || {Pid, nosuspend} <- Results},
    Count = lists:sum([length(Of) || {_, Of} <- Changes]),
    Next = dropped(Count * map_size(Behind), State#state{out = #{}, late = Behind}),
    case map_size(Behind) of
        0 -> Next;
        _ -> timed(?AGAIN_MS, Next)
    end.

catching_up(Pid, Late) ->
    [{Server, [missed]} || Server := _ <- maps:get(Pid, Late, #{})].

send(_, [], _) ->
    ok;
send(Pid, Changes, Counts) ->
    case erlang:send(Pid, {?MODULE, ?VERSION, Changes}, [nosuspend, noconnect]) of
        ok -> atomics:add(Counts, ?SENT, 1);
        Not -> Not
    end.

with_refused(0, State) ->
    State;
with_refused(Count, #state{out = Out} = State) ->
    Next = lists:foldl(fun(Server, Changes) -> element(2, add(Server, missed, Changes)) end, Out,
                       servers()),
    dropped(Count, State#state{out = Next}).

dropped(0, State) ->
    State;
dropped(Count, #state{counts = Counts, logged = Last} = State) ->
    ok = atomics:add(Counts, ?MISSED, Count),
    Now = erlang:monotonic_time(second),
    case is_integer(Last) andalso Now - Last < ?QUIET of
        true ->
            State;
        false ->
            ok = erlmcp_log:report(warning, #{what => cluster_changes_dropped, changes => Count}),
            State#state{logged = Now}
    end.

-doc false.
format_status(Status) ->
    erlmcp_log:without_state(Status).

-doc false.
terminate(_, _) ->
    persistent_term:erase(?MODULE).
