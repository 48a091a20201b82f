-module(erlmcp_cluster_rates).
-moduledoc """
Makes the rates of a client those of all nodes. A process of each node tells the others what was
counted there (`m:erlmcp_cluster_rate_reports`). A message counts once for each node until all have
heard of it. If not all have heard of it within a second, it goes on to count so, as do the messages
of a node without a valid lease. When the first message of a server is counted on a node, the
process asks the other nodes for their counts.

Messages are `{erlmcp_cluster_rates, 1, _}`. A message of another version is ignored.

Internal.
""".

-behaviour(gen_server).

-export([start_link/0, nodes/0, counted/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

-define(SCOPE, erlmcp_cluster_scope).
-define(VERSION, 1).
%% From one report to the next: milliseconds, and at least this many times as long as it took.
-define(REPORT_MS, 5).
-define(PAUSE, 4).
%% Until the store is asked again which cluster this is.
-define(AGAIN_MS, 100).
%% Between two looks at the nodes.
-define(LOOK_MS, 100).
-define(GIVE_UP_MS, 1_000).
%% Accounts in one message to a server that has started.
-define(MOST, 1_000).

-record(state, {
    %% one word: the number of nodes
    nodes :: atomics:atomics_ref(),
    group = none :: none | term(),
    monitor = none :: none | reference(),
    reports = erlmcp_cluster_rate_reports:new() :: erlmcp_cluster_rate_reports:reports(),
    %% each server, as it was when it asked what other nodes count
    servers = #{} :: #{Server :: term() => Start :: reference()},
    timer = none :: none | reference(),
    %% the time before which there is no report
    next = 0 :: integer()
}).

-doc "Starts the process that reports counted messages to other nodes.".
-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

-doc "Returns how many nodes share the rates of a client: 1 while this one is in no cluster.".
-spec nodes() -> pos_integer().
nodes() ->
    case persistent_term:get(?MODULE, none) of
        none -> 1;
        Word -> atomics:get(Word, 1)
    end.

-doc """
Records that other nodes have not heard of all messages of an account, as
`c:erlmcp_server_cluster:counted/2` describes it.
""".
-spec counted(erlmcp_server_cluster:account(), erlmcp_cluster:server()) -> ok.
counted(Account, #{server := Server, start := Start}) ->
    gen_server:cast(?MODULE, {counted, {Server, Start}, Account}).

-doc false.
init([]) ->
    _ = process_flag(trap_exit, true),
    ok = erlmcp_label:set([?MODULE]),
    %% What others hear late, they may let in twice.
    _ = process_flag(priority, high),
    Word = atomics:new(1, []),
    ok = atomics:put(Word, 1, 1),
    self() ! join,
    {ok, #state{nodes = Word}}.

-doc false.
handle_call(_, _, State) ->
    {noreply, State}.

-doc false.
handle_cast({counted, {Server, _} = From, Account}, State) ->
    {noreply, due(add(Server, Account, ask_others_once(From, State)))}.

-doc false.
handle_info(join, State) ->
    case erlmcp_cluster_store:view() of
        #{cluster := none} ->
            _ = erlang:send_after(?AGAIN_MS, self(), join),
            {noreply, State};
        #{cluster := Cluster} ->
            Group = {?MODULE, Cluster},
            ok = pg:join(?SCOPE, Group, self()),
            {Monitor, _} = pg:monitor(?SCOPE, Group),
            {noreply, begin_counting(look(State#state{group = Group, monitor = Monitor}))}
    end;
handle_info({timeout, Timer, report}, #state{timer = Timer} = State) ->
    {noreply, due(reported(State#state{timer = none}))};
handle_info({?MODULE, ?VERSION, {report, Peer, {Number, Heard, Counts}}}, State) ->
    ok = count(Counts),
    #state{reports = Reports} = Next =
        settled(erlmcp_cluster_rate_reports:heard_by(Peer, Heard, State#state.reports), State),
    case Number of
        none ->
            {noreply, Next};
        _ ->
            Owing = erlmcp_cluster_rate_reports:heard(Peer, Number, Reports),
            {noreply, due(Next#state{reports = Owing})}
    end;
handle_info({?MODULE, ?VERSION, {ask, Peer, Server}}, State) ->
    ok = answer(Peer, Server),
    {noreply, State};
handle_info({?MODULE, ?VERSION, {paid, Server, Accounts}}, State) ->
    ok = erlmcp_server_cluster:pay(Server, Accounts),
    {noreply, State};
handle_info(look, State) ->
    {noreply, look(State)};
handle_info({Monitor, leave, _, Pids}, #state{monitor = Monitor} = State) ->
    {noreply, lists:foldl(fun(Pid, #state{reports = Reports} = Next) ->
                              settled(erlmcp_cluster_rate_reports:leave(Pid, Reports), Next)
                          end, State, Pids)};
handle_info(_, State) ->
    {noreply, State}.

%% What was counted before this process started is not told again.
begin_counting(#state{nodes = Word} = State) ->
    ok = persistent_term:put(?MODULE, Word),
    Unheard = [{Server, Account} || Server <- servers(),
                                    Account <- erlmcp_server_cluster:accounts(Server),
                                    erlmcp_server_cluster:unheard(Account) =/= 0],
    due(lists:foldl(fun({Server, Account}, Next) -> add(Server, Account, Next) end, State,
                    Unheard)).

servers() ->
    [Id || {Id, _, #{cluster := {erlmcp_cluster, _}}} <- erlmcp_registry:servers()].

add(Server, Account, #state{reports = Reports} = State) ->
    Name = {Server, erlmcp_server_cluster:client(Account)},
    State#state{reports = erlmcp_cluster_rate_reports:add(Name, Account, Reports)}.

%% Reports now or later, if there is anything to report.
due(#state{timer = none, reports = Reports, next = Next} = State) ->
    Now = erlmcp_clock:now_ms(),
    case erlmcp_cluster_rate_reports:is_empty(Reports) of
        true -> State;
        false when Next =< Now -> due(reported(State));
        false -> State#state{timer = erlang:start_timer(Next - Now, self(), report)}
    end;
due(State) ->
    State.

reported(#state{nodes = Word, reports = Before} = State) ->
    Began = erlmcp_clock:now_ms(),
    Unheard = fun erlmcp_server_cluster:unheard/1,
    {Messages, Done, Reports} =
        erlmcp_cluster_rate_reports:report(Unheard, living(State), {atomics:get(Word, 1), Began},
                                           Before),
    Lost = [{Peer, Number} || {Peer, {Number, _, _} = Report} <- Messages,
                              send(Peer, {report, self(), Report}) =/= ok],
    Owing = lists:foldl(fun erlmcp_cluster_rate_reports:owe/2, Reports,
                        lists:usort([Peer || {Peer, _} <- Lost])),
    Sent = lists:foldl(fun(Number, #state{reports = Open} = Next) ->
                           settled(erlmcp_cluster_rate_reports:give_up(Number, Open), Next)
                       end, settled({Done, Owing}, State),
                       lists:usort([Number || {_, Number} <- Lost, Number =/= none])),
    Ended = erlmcp_clock:now_ms(),
    Sent#state{next = Ended + max(?REPORT_MS, ?PAUSE * (Ended - Began))}.

%% The processes of the nodes that are in the cluster and connected.
living(#state{group = Group}) ->
    Living = maps:values(erlmcp_cluster_members:incarnations()),
    [Pid || Pid <- pg:get_members(?SCOPE, Group), Pid =/= self(), lists:member(node(Pid), Living)].

send(Peer, Message) ->
    erlang:send(Peer, {?MODULE, ?VERSION, Message}, [nosuspend, noconnect]).

settled({Done, Reports}, State) ->
    ok = note(Done),
    State#state{reports = Reports}.

note([]) ->
    ok;
note(Done) ->
    Valid = erlmcp_cluster_lease:is_valid(),
    lists:foreach(fun({Account, Count, Nodes}) ->
                      Of = case Valid of
                          true -> Nodes;
                          false -> 1
                      end,
                      erlmcp_server_cluster:heard_by_all(Account, Count, Of)
                  end, Done).

count(Counts) ->
    Servers = maps:groups_from_list(fun({{Server, _}, _}) -> Server end,
                                    fun({{_, Client}, Count}) -> {Client, Count} end, Counts),
    maps:foreach(fun erlmcp_server_cluster:count_messages/2, Servers).

%% A server that has started knows nothing of the messages before.
ask_others_once({Server, Start}, #state{servers = Servers} = State) ->
    case Servers of
        #{Server := Start} ->
            State;
        #{} ->
            _ = [send(Peer, {ask, self(), Server}) || Peer <- living(State)],
            State#state{servers = Servers#{Server => Start}}
    end.

answer(Peer, Server) ->
    Accounts = [{erlmcp_server_cluster:client(Account), Paid}
                || Account <- erlmcp_server_cluster:accounts(Server),
                   [_ | _] = Paid <- [erlmcp_server_cluster:paid(Account)]],
    send_parts(Peer, Server, Accounts).

send_parts(_, _, []) ->
    ok;
send_parts(Peer, Server, Accounts) ->
    {Part, Rest} = lists:split(min(?MOST, length(Accounts)), Accounts),
    _ = send(Peer, {paid, Server, Part}),
    send_parts(Peer, Server, Rest).

%% A node that has no view of the cluster at the moment keeps the number that it knows.
look(#state{nodes = Word, reports = Reports} = Before) ->
    _ = erlang:send_after(?LOOK_MS, self(), look),
    Expired = erlmcp_clock:now_ms() - ?GIVE_UP_MS,
    State = settled(erlmcp_cluster_rate_reports:expire(Expired, Reports), Before),
    Known = length(lists:usort(maps:values(erlmcp_cluster_members:incarnations()))),
    case Known =:= 0 orelse atomics:get(Word, 1) =:= Known of
        true ->
            State;
        false ->
            %% What was counted so far was counted for the number before.
            Next = reported(State),
            ok = atomics:put(Word, 1, Known),
            Next
    end.

-doc false.
terminate(_, _) ->
    persistent_term:erase(?MODULE).
