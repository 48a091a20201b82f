-module(erlmcp_cluster_catch_up).
-moduledoc """
Shares catch-ups with the leader (`erlmcp_cluster_store:catch_up/1`) among the reads of this node.
One catch-up runs at a time. Reads that come meanwhile share the next one: the running one may have
begun before a change of which the client has heard. So however many reads there are, this node has
one catch-up under way.

Internal.
""".

-behaviour(gen_server).

-export([start_link/1, catch_up/1]).
-export([make/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([catch_up/0]).

%% Reads that wait for the next catch-up.
-define(MOST, 10_000).

-doc "A catch-up, which may take `Milliseconds` in each of its two steps.".
-type catch_up() :: fun((Milliseconds :: pos_integer()) -> ok | {error, term()}).

-record(state, {
    catch_up :: catch_up(),
    %% the monitor of the catch-up that runs, and those who share it
    monitor = none :: none | reference(),
    running = [] :: [gen_server:from()],
    %% those who share the next one, their number, and the longest time that one of them has
    next = [] :: [gen_server:from()],
    count = 0 :: non_neg_integer(),
    milliseconds = 1 :: pos_integer()
}).

-doc "Starts the process that runs the catch-ups of this node's reads, each by calling `CatchUp`.".
-spec start_link(catch_up()) -> gen_server:start_ret().
start_link(CatchUp) ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, CatchUp, []).

-doc """
Returns `ok` when this node, and its tables, have all changes that were answered before the call.
Returns `{error, timeout}` after twice `Milliseconds`, and `{error, full}` at once if 10,000 reads
wait for the next catch-up. Other errors are those of `erlmcp_cluster_store:catch_up/1`, or say why
this process does not run.
""".
-spec catch_up(Milliseconds :: pos_integer()) -> ok | {error, full | term()}.
catch_up(Milliseconds) ->
    try
        gen_server:call(?MODULE, {catch_up, Milliseconds}, 2 * Milliseconds)
    catch
        exit:{Reason, _} -> {error, Reason}
    end.

-doc false.
init(CatchUp) ->
    ok = erlmcp_label:set([?MODULE]),
    {ok, #state{catch_up = CatchUp}}.

-doc false.
handle_call({catch_up, _}, _, #state{count = ?MOST} = State) ->
    {reply, {error, full}, State};
handle_call({catch_up, Milliseconds}, From, State) ->
    #state{next = Next, count = Count, milliseconds = Longest} = State,
    {noreply, begin_next(State#state{next = [From | Next], count = Count + 1,
                                     milliseconds = max(Milliseconds, Longest)})}.

-doc false.
handle_cast(_, State) ->
    {noreply, State}.

-doc false.
handle_info({'DOWN', Monitor, process, _, Reason}, #state{monitor = Monitor} = State) ->
    Result = case Reason of
        {caught_up, Returned} -> Returned;
        _ -> {error, Reason}
    end,
    ok = lists:foreach(fun(From) -> gen_server:reply(From, Result) end, State#state.running),
    {noreply, begin_next(State#state{monitor = none, running = []})};
handle_info(_, State) ->
    {noreply, State}.

%% Each catch-up is a heartbeat of the log in which leases are renewed, and any client can cause
%% one. The catch-up runs in a process of its own, so that its callers are heard meanwhile.
begin_next(#state{monitor = none, next = [_ | _] = Next, catch_up = CatchUp,
                  milliseconds = Milliseconds} = State) ->
    {_, Monitor} = spawn_monitor(?MODULE, make, [CatchUp, Milliseconds]),
    State#state{monitor = Monitor, running = Next, next = [], count = 0, milliseconds = 1};
begin_next(State) ->
    State.

-doc false.
-spec make(catch_up(), Milliseconds :: pos_integer()) -> no_return().
make(CatchUp, Milliseconds) ->
    exit({caught_up, CatchUp(Milliseconds)}).
