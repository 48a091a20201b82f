-module(erlmcp_cluster_clock).
-moduledoc """
Compares the clock of this node with those of the other nodes, every ten seconds and before a lease
begins. Sets the time that the nodes agree on (`m:erlmcp_cluster_time`). A node is apart if its
clock is more than 60 seconds away from the median. No lease of such a node begins (`begins/0`); a
lease that it has goes on.

The clocks are those of the machines. Erlang's time follows such a clock slowly, so it stays wrong
for days in a node that has begun with a wrong clock.

Internal.
""".

-behaviour(gen_server).

-export([start_link/0, begins/0, standing/0, forget/0]).
-export([difference/3, counted/2, median/2, state/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([standing/0]).

-define(COMPARE_MS, 10_000).
%% A node that is apart asks for a lease again and again. The others are not asked so often.
-define(SOON_MS, 1_000).
%% The others have this long to answer.
-define(ANSWER_MS, 1_000).
%% A smaller change of the time is not worth one.
-define(SAME_MS, 1_000).
%% The largest difference of a clock that is right.
-define(APART_MS, 60_000).

-doc """
The standing of a node, which decides whether its clock counts (`counted/2`). A node is `new` until
it has had a lease since it joined. After that it is `steady` if its clock is within 60 seconds of
the agreed time, as the node has it (`m:erlmcp_cluster_time`). Otherwise its clock has `jumped`.
""".
-type standing() :: new | steady | jumped.

-record(state, {
    %% whether the last comparison had other clocks, or this node is alone in its cluster
    has_compared = false :: boolean(),
    %% when the clocks were compared last, by the monotonic clock
    compared = none :: none | integer()
}).

-doc "Starts the process that compares the clocks.".
-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

-doc """
Compares the clocks. Returns `true` if this node may begin a lease, and records that it does: the
node is not `new` any more (`t:standing/0`). Returns `false` if the node is apart. Returns
`{error, not_compared}` if the node is `new` and not alone, and no other member has answered. Other
errors say that the process has ended, or has not answered within seven seconds.
""".
-spec begins() -> boolean() | {error, term()}.
begins() ->
    try
        gen_server:call(?MODULE, begins, 7 * ?ANSWER_MS)
    catch
        exit:{Reason, _} -> {error, Reason}
    end.

-doc "Returns the standing of this node.".
-spec standing() -> standing().
standing() ->
    {Clock, Began} = clocks(),
    Jump = abs(Clock - Began - erlmcp_cluster_time:offset()),
    case {has_begun(), Jump =< erlang:convert_time_unit(?APART_MS, millisecond, native)} of
        {false, _} -> new;
        {true, true} -> steady;
        {true, false} -> jumped
    end.

-doc "Forgets all comparisons, and that this node has begun a lease: it is in no cluster any more.".
-spec forget() -> ok.
forget() ->
    _ = persistent_term:erase(?MODULE),
    erlmcp_cluster_time:forget().

%% Pure.

-doc """
Returns by how many milliseconds, at least, the clock of this node is ahead of another one. The
number is negative if this clock is behind, and 0 if the two may be equal. This clock showed `Asked`
at the question and `Heard` at the answer. The other one showed `Other` in between.
""".
-spec difference(Asked :: integer(), Heard :: integer(), Other :: integer()) -> integer().
difference(Asked, Heard, Other) when is_integer(Asked), is_integer(Heard), is_integer(Other) ->
    max(0, Asked - Other) + min(0, Heard - Other).

-doc """
Returns the differences to those other nodes whose clocks count. Each difference comes with the
standing of its node, and `Own` is the standing of this node. If any of these nodes is `steady`,
nodes that are `new` do not count. Otherwise all count.
""".
-spec counted(Own :: standing(), [{Difference, standing()}]) -> [Difference].
counted(Own, Others) ->
    case lists:member(steady, [Own | [Standing || {_, Standing} <- Others]]) of
        true -> [Difference || {Difference, Standing} <- Others, Standing =/= new];
        false -> [Difference || {Difference, _} <- Others]
    end.

-doc """
Returns the median of the differences to all nodes that count. These are `Differences`, and 0 for
this node. If there are two medians, returns the one `nearer` to this node's clock, or the `farther`
one.
""".
-spec median(nearer | farther, Differences :: [integer()]) -> integer().
median(Which, Differences) ->
    Sorted = lists:sort([0 | Differences]),
    Count = length(Sorted),
    Medians = [lists:nth(Place, Sorted) || Place <- [(Count + 1) div 2, Count div 2 + 1]],
    [Nearer, Farther] = lists:sort(fun(One, Other) -> abs(One) =< abs(Other) end, Medians),
    case Which of
        nearer -> Nearer;
        farther -> Farther
    end.

-doc """
Returns the state of a node whose clock is ahead of the two medians by `Nearer` and `Farther`
milliseconds. The node is `apart` if its clock is more than a minute away from both medians. It is
`doubtful` if its clock is so far away from the farther median only. `Milliseconds` says how far the
clock counts as ahead of the others.
""".
-spec state(Nearer :: integer(), Farther :: integer()) ->
    {right | doubtful | apart, Milliseconds :: integer()}.
state(Nearer, _) when abs(Nearer) > ?APART_MS -> {apart, Nearer};
state(_, Farther) when abs(Farther) > ?APART_MS -> {doubtful, Farther};
state(_, _) -> {right, 0}.

%% The process.

-doc false.
init([]) ->
    ok = erlmcp_label:set([?MODULE]),
    self() ! compare,
    {ok, #state{}}.

-doc false.
handle_call(begins, _, State) ->
    #state{has_compared = HasCompared} = Compared = compared_recently(State),
    MayBegin = case {is_apart(), has_begun() orelse HasCompared} of
        {true, _} ->
            false;
        {false, false} ->
            {error, not_compared};
        {false, true} ->
            %% The same value again costs nothing.
            ok = persistent_term:put(?MODULE, begun),
            true
    end,
    {reply, MayBegin, Compared};
handle_call(_, _, State) ->
    {noreply, State}.

-doc false.
handle_cast(_, State) ->
    {noreply, State}.

-doc false.
handle_info(compare, State) ->
    Compared = compared(State),
    _ = erlang:send_after(?COMPARE_MS, self(), compare),
    {noreply, Compared};
handle_info(_, State) ->
    {noreply, State}.

%% A node that is well compares its clock just before its lease begins.
compared_recently(#state{compared = At} = State) ->
    case is_apart() andalso is_integer(At) andalso erlmcp_clock:now_ms() - At < ?SOON_MS of
        true -> State;
        false -> compared(State)
    end.

is_apart() ->
    map_get(state, erlmcp_cluster_time:report()) =:= apart.

%% Whether this node has had a lease, and may have another one.
has_begun() ->
    persistent_term:get(?MODULE, none) =:= begun.

compared(State) ->
    HasCompared = compare(),
    State#state{has_compared = HasCompared, compared = erlmcp_clock:now_ms()}.

%% Returns whether there was something to compare with.
compare() ->
    Members = erlmcp_cluster_store:members(),
    %% Only nodes that are connected: nobody must wait for another one here.
    Others = [Node || Node <- Members, lists:member(Node, nodes())],
    {Own, Began} = clocks(),
    Answers = erpc:multicall(Others, os, system_time, [millisecond], ?ANSWER_MS),
    Asked = erlang:convert_time_unit(Own, native, millisecond),
    %% The clock may jump meanwhile.
    Took = erlang:convert_time_unit(erlang:monotonic_time() - Began, native, millisecond),
    Answered = [{Node, Clock} || {Node, {ok, Clock}} <- lists:zip(Others, Answers)],
    Standings = standings([Node || {Node, _} <- Answered]),
    case [{difference(Asked, Asked + Took + 1, Clock), Standing}
          || {{_, Clock}, Standing} <- lists:zip(Answered, Standings)] of
        [] when Members =/= [node()] ->
            false;
        Differences ->
            ok = agree(Own - Began, counted(standing(), Differences)),
            true
    end.

%% As these nodes say themselves. A lease that the store has may be over: the last node of a cluster
%% that stops cannot end its own, and nobody has a lease that could declare it dead. Nodes of older
%% releases do not say it, and count as new ones.
standings(Nodes) ->
    [case Answer of {ok, Standing} -> Standing; _ -> new end
     || Answer <- erpc:multicall(Nodes, ?MODULE, standing, [], ?ANSWER_MS)].

%% The clock, and the monotonic one at that time, between which the node did not stand still.
clocks() ->
    Began = erlang:monotonic_time(),
    Clock = os:system_time(),
    case near(Began, erlang:monotonic_time()) of
        Began -> {Clock, Began};
        _ -> clocks()
    end.

agree(OwnOffset, Differences) ->
    %% If there are two medians, no node knows which clock is right. Then no lease begins, and nodes
    %% that have had one go on.
    Farther = median(farther, Differences),
    Nearer = case has_begun() of
        true -> median(nearer, Differences);
        false -> Farther
    end,
    {State, Ahead} = state(Nearer, Farther),
    Before = erlmcp_cluster_time:offset(),
    Reported = erlmcp_cluster_time:report(),
    Offset = case State of
        doubtful -> Before;
        %% While this node alone counts, the time does not jump either.
        right when Differences =:= [] -> Before;
        _ -> near(Before, OwnOffset - erlang:convert_time_unit(Ahead, millisecond, native))
    end,
    Report = #{state => State, ahead_s => round(Ahead / 1_000)},
    ok = erlmcp_cluster_time:agree(Offset, Report),
    %% Before a lease begins: the keys are those of a day.
    _ = Offset =:= Before orelse erlmcp_cluster_secret:refresh(),
    say(Reported, Report).

%% What was measured differs a little each time.
near(Before, Offset) ->
    case abs(Before - Offset) =< erlang:convert_time_unit(?SAME_MS, millisecond, native) of
        true -> Before;
        false -> Offset
    end.

%% Logs each change of the state once.
say(#{state := State}, #{state := State}) ->
    ok;
say(_, #{state := right}) ->
    %% Tokens of clients are judged by Erlang's time.
    case erlang:system_time(millisecond) - erlmcp_cluster_time:now(millisecond) of
        Ahead when abs(Ahead) > ?APART_MS ->
            erlmcp_log:report(warning, #{what => cluster_clock_right,
                                         erlang_ahead_s => round(Ahead / 1_000),
                                         advice => ~"start this node again"});
        _ ->
            erlmcp_log:report(notice, #{what => cluster_clock_right})
    end;
say(_, #{state := doubtful, ahead_s := Seconds}) ->
    erlmcp_log:report(warning, #{what => cluster_clocks_differ, ahead_s => Seconds});
say(_, #{state := apart, ahead_s := Seconds}) ->
    erlmcp_log:report(warning, #{what => cluster_clock_apart, ahead_s => Seconds,
                                 advice => ~"set the clock of this machine"}).
