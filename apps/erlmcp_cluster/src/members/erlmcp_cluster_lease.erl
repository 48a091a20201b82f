-module(erlmcp_cluster_lease).
-moduledoc """
The lease of this node's incarnation. The process renews it every 250 ms, and it is valid for 1,000
ms from the time when its last successful renewal was sent. If the other nodes declare this one
dead, the next renewal is refused, and the node goes on as a new incarnation. No lease begins while
the node's clock is apart from those of the others (`m:erlmcp_cluster_clock`).

A node that is about to stop gives its sessions up before its lease ends (`hand_over/0`). If its
servers start again after that, the node begins another incarnation.

Internal.
""".

-behaviour(gen_server).

%% Each request of a session calls these.
-compile({inline, [current/0, holds/2]}).

-export([start_link/0, await/1, hand_over/0, leave/0, stay/0]).
-export([is_valid/0, current/0, incarnation/0, lasting/0, next_nonce/0, remaining_ms/0]).
-export([change/1]).
-export([validity_ms/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

-export_type([incarnation/0]).

-define(RENEWAL_MS, 250).
-define(VALIDITY_MS, 1_000).
%% How many renewals in a row this node's own part of the store need not have seen.
-define(UNSEEN, 2).
%% Renewals that failed, after which this is logged.
-define(FAILURES, 2).
%% Milliseconds for which a node that hands its sessions over waits for changes that it has begun,
%% and between two looks at them. A change waits for the store, for up to a second.
-define(CHANGES_MS, 1_500).
-define(LOOK_MS, 5).

-doc """
This node's incarnation, with its number. The first word of `until` has the monotonic millisecond at
which the lease ends. The second word is 1 while the node gives its sessions up, 2 when others may
have them, and 0 otherwise. `count` is the number of nonces that were given out, and `boot` is a
part of each.
""".
-type incarnation() :: #{
    number := erlmcp_cluster_deaths:incarnation(),
    boot := 0..16#FFFFFF,
    until := atomics:atomics_ref(),
    count := atomics:atomics_ref()
}.

-record(state, {
    %% `none` while there is no lease
    current = none :: none | incarnation(),
    %% an incarnation that perhaps has a lease, which this node will not renew
    unsure = none :: none | erlmcp_cluster_deaths:incarnation(),
    %% `leaving` after `hand_over/0`, and `left` after `leave/0`: no other lease begins then
    as = alive :: alive | leaving | left,
    renewals = 0 :: non_neg_integer(),
    %% how many renewals were the last ones that the node's own part of the store did not answer
    unseen = 0 :: non_neg_integer(),
    failures = 0 :: non_neg_integer(),
    waiting = [] :: [gen_server:from()],
    %% those that wait until the other nodes can see that this one is leaving
    handing_over = [] :: [gen_server:from()]
}).

-doc "Starts the process that renews this node's lease.".
-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

-doc """
Waits until this node has an incarnation. Returns `{error, no_lease}` after `Milliseconds`, or if
the process does not run.
""".
-spec await(Milliseconds :: timeout()) -> ok | {error, no_lease}.
await(Milliseconds) ->
    try
        gen_server:call(?MODULE, await, Milliseconds)
    catch
        exit:_ -> {error, no_lease}
    end.

-doc """
Gives up the sessions of this node. Changes that have begun have up to 1,500 ms to end. After `ok`,
other nodes are the homes of the sessions, if any are alive. After an error they become the homes a
little later, and this node serves the sessions no more. The lease is renewed until the node stops,
or until its servers start again.
""".
-spec hand_over() -> ok | {error, term()}.
hand_over() ->
    asked(hand_over).

asked(What) ->
    try
        gen_server:call(?MODULE, What, infinity)
    catch
        exit:{Reason, _} -> {error, Reason}
    end.

-doc """
Ends the lease, so that other nodes take this one's sessions over at once. After `ok`, no other
lease begins until `stay/0`. The errors are those of the store
(`erlmcp_cluster_store:end_lease/3`), or say why the process does not run.
""".
-spec leave() -> ok | {error, term()}.
leave() ->
    asked(leave).

-doc """
Tells the process that the node is still a member after `leave/0`. As after `hand_over/0`, another
incarnation begins once the node has servers and none of them is drained.
""".
-spec stay() -> ok.
stay() ->
    gen_server:cast(?MODULE, stay).

-doc "Returns `true` if this node's lease is valid.".
-spec is_valid() -> boolean().
is_valid() ->
    remaining_ms() > 0.

-doc "Returns the milliseconds for which the lease is valid; 0 if it is not.".
-spec remaining_ms() -> 0..?VALIDITY_MS.
remaining_ms() ->
    case current() of
        none -> 0;
        #{until := Until} -> max(0, atomics:get(Until, 1) - erlmcp_clock:now_ms())
    end.

-doc """
Returns this node's incarnation, whether its lease is valid now or not. Returns `none` before the
first incarnation, and between the end of one and the beginning of the next.
""".
-spec current() -> incarnation() | none.
current() ->
    persistent_term:get(?MODULE, none).

-doc """
Returns the number of this node's incarnation. Returns `none` if the lease is not valid, or
`hand_over/0` has begun.
""".
-spec incarnation() -> erlmcp_cluster_deaths:incarnation() | none.
incarnation() ->
    case current() of
        #{number := Number, until := Until} ->
            case holds(Until, 0) of
                true -> Number;
                false -> none
            end;
        none ->
            none
    end.

-doc """
Calls a fun that stores a change of a session of this node, and returns the fun's result. Returns
`no_lease` without the call if the lease is not valid, or `hand_over/0` has begun. Also returns
`no_lease` if the lease has ended, or others have the sessions, by the end of the call. The change
may then be stored, and another home may not have seen it.
""".
-spec change(fun(() -> Result)) -> Result | no_lease.
change(Store) ->
    case current() of
        none -> no_lease;
        #{until := Until} -> change(Store, Until)
    end.

change(Store, Until) ->
    %% Noted first, so that `hand_over/0` sees each change that did not see it.
    case begins() of
        true ->
            try
                maybe
                    true ?= holds(Until, 0),
                    Result = Store(),
                    true ?= holds(Until, 1),
                    Result
                else
                    false -> no_lease
                end
            after
                ends()
            end;
        false ->
            no_lease
    end.

%% The table ends with the process of this module.
begins() ->
    try
        ets:insert(?MODULE, {self()})
    catch
        error:badarg -> false
    end.

ends() ->
    try
        ets:delete(?MODULE, self())
    catch
        error:badarg -> true
    end.

%% Whether the lease is valid, and the handing over has come no further than `Stage`.
holds(Until, Stage) ->
    atomics:get(Until, 1) > erlmcp_clock:now_ms() andalso atomics:get(Until, 2) =< Stage.

-doc """
Returns the number of this node's incarnation, or `none` if its lease is not valid. An incarnation
that has given up its sessions lasts, and finishes its tasks, until its lease ends.
""".
-spec lasting() -> erlmcp_cluster_deaths:incarnation() | none.
lasting() ->
    case {current(), is_valid()} of
        {#{number := Number}, true} -> Number;
        _ -> none
    end.

-doc """
Returns a nonce that was never used. Returns `no_lease` if the lease is not valid, or `hand_over/0`
has begun.
""".
-spec next_nonce() -> {ok, erlmcp_cluster_session_id:nonce()} | no_lease.
next_nonce() ->
    maybe
        #{number := Number, boot := Boot, until := Until, count := Count} ?= current(),
        true ?= holds(Until, 0),
        {ok, erlmcp_cluster_session_id:nonce(Number, Boot, atomics:add_get(Count, 1, 1))}
    else
        _ -> no_lease
    end.

-doc "Returns the milliseconds for which a lease is valid after its last renewal was sent.".
-spec validity_ms() -> pos_integer().
validity_ms() ->
    ?VALIDITY_MS.

-doc false.
init([]) ->
    _ = process_flag(trap_exit, true),
    ok = erlmcp_label:set([?MODULE]),
    %% The processes that make a change.
    ?MODULE = ets:new(?MODULE, [named_table, public, {write_concurrency, true}]),
    %% The process before this one may have been killed, or has stopped while the servers went on.
    ok = end_current(),
    self() ! renew,
    {ok, #state{}}.

-doc false.
handle_call(await, _, #state{current = #{}} = State) ->
    {reply, ok, State};
handle_call(await, From, #state{waiting = Waiting} = State) ->
    {noreply, State#state{waiting = [From | Waiting]}};
handle_call(hand_over, From, #state{current = #{}} = State) ->
    handing_over(From, erlmcp_clock:now_ms() + ?CHANGES_MS, State);
%% A node without a lease has no sessions to give up.
handle_call(hand_over, _, State) ->
    {reply, ok, leaving(without_unsure(State))};
handle_call(leave, _, #state{current = #{}} = State) ->
    case end_lease(State) of
        {error, _} = Error -> {reply, Error, State};
        _ -> {reply, ok, State#state{current = none, as = left}}
    end;
handle_call(leave, _, State) ->
    {reply, ok, (without_unsure(State))#state{as = left}}.

-doc false.
handle_cast(stay, #state{as = left} = State) ->
    %% The incarnation is over, and no other one may ever begin.
    _ = persistent_term:erase(?MODULE),
    {noreply, State#state{as = leaving}};
handle_cast(_, State) ->
    {noreply, State}.

-doc false.
handle_info(renew, State) ->
    Began = erlmcp_clock:now_ms(),
    Next = given_up(renew(serving_again(State))),
    _ = erlang:send_after(max(0, Began + ?RENEWAL_MS - erlmcp_clock:now_ms()), self(), renew),
    {noreply, Next};
handle_info({hand_over, From, Late}, State) ->
    handing_over(From, Late, State);
handle_info(_, State) ->
    {noreply, State}.

without_unsure(State) ->
    ok = end_unsure(State),
    State#state{unsure = none}.

leaving(#state{as = left} = State) -> State;
leaving(State) -> State#state{as = leaving}.

%% If a server has started again, the incarnation that has handed its sessions over is over, too.
serving_again(#state{as = leaving, handing_over = []} = State) ->
    case erlmcp_cluster_sessions:serves() of
        true -> over(State#state{as = alive});
        false -> State
    end;
serving_again(State) ->
    State.

over(#state{current = #{number := Number}} = State) -> (fenced(State))#state{unsure = Number};
over(State) -> State.

%% No request finds a session here from now on, and no change begins, whatever the store says.
handing_over(From, Late, #state{current = #{until := Until}} = State) ->
    %% Not again, if each of two servers that are drained asks for it.
    _ = atomics:compare_exchange(Until, 2, 0, 1),
    case changes() =:= [] orelse erlmcp_clock:now_ms() >= Late of
        true ->
            {noreply, hand_over(From, State)};
        false ->
            _ = erlang:send_after(?LOOK_MS, self(), {hand_over, From, Late}),
            {noreply, State}
    end;
%% The lease was lost, or given up, meanwhile.
handing_over(From, _, State) ->
    ok = gen_server:reply(From, ok),
    {noreply, leaving(State)}.

%% The processes that make a change. One that was killed has ended none, and is forgotten.
changes() ->
    {Changing, Killed} = lists:partition(fun is_process_alive/1,
                                         [Process || {Process} <- ets:tab2list(?MODULE)]),
    _ = [ets:delete(?MODULE, Process) || Process <- Killed],
    Changing.

%% A renewal says that this node is leaving. If it fails, a later one says so.
hand_over(From, #state{current = #{until := Until}, handing_over = Others} = State) ->
    ok = atomics:put(Until, 2, 2),
    Leaving = State#state{as = leaving, handing_over = [From | Others]},
    given_up(case is_valid() of
                 true -> renew(Leaving);
                 false -> Leaving
             end).

handed_over(#state{handing_over = []} = State) ->
    State;
handed_over(#state{current = #{number := Number}} = State) ->
    case erlmcp_cluster_store:bury(Number) of
        {error, _} = Error -> answered(Error, State);
        %% Another node does it, or is doing it.
        _ -> answered(ok, State)
    end.

%% Nobody waits longer than until the lease ends, and an attempt to renew it that is under way.
given_up(#state{handing_over = []} = State) ->
    State;
given_up(#state{current = #{}} = State) ->
    case is_valid() of
        true -> State;
        false -> answered({error, no_lease}, State)
    end;
%% The incarnation is over, so others have its sessions.
given_up(State) ->
    answered(ok, State).

answered(Answer, #state{handing_over = Waiting} = State) ->
    ok = lists:foreach(fun(From) -> gen_server:reply(From, Answer) end, Waiting),
    State#state{handing_over = []}.

%% A node that is about to stop needs no other incarnation.
renew(#state{current = none, as = As} = State) when As =/= alive ->
    State;
renew(#state{current = none, unsure = none} = State) ->
    maybe
        %% A node that reaches no other one has nothing to compare its clock with.
        ok ?= erlmcp_cluster_store:catch_up(?VALIDITY_MS),
        true ?= erlmcp_cluster_clock:begins(),
        {ok, Number} ?= erlmcp_cluster_store:next_incarnation(),
        open(Number, State)
    else
        false -> State;
        {error, Reason} -> failed(Reason, State)
    end;
%% Nobody would renew that lease, and the others would wait until it has stood still.
renew(#state{current = none, unsure = Number} = State) ->
    case erlmcp_cluster_store:end_lease(Number, own, left) of
        {error, Reason} -> failed(Reason, State);
        _ -> renew(State#state{unsure = none})
    end;
renew(#state{current = #{number := Number, until := Until}, as = As,
             renewals = Before} = State) ->
    Renewals = Before + 1,
    maybe
        {ok, By, Milliseconds, Unseen} ?= answers(State),
        Sent = erlmcp_clock:now_ms(),
        ok ?= erlmcp_cluster_store:renew_lease(Number, As, Renewals, By, Milliseconds),
        ok = atomics:put(Until, 1, Sent + ?VALIDITY_MS),
        handed_over(State#state{renewals = Renewals, unseen = Unseen, failures = 0})
    else
        over ->
            ok = erlmcp_log:report(warning, #{what => cluster_node_was_declared_dead,
                                              incarnation => Number}),
            renew(fenced(State));
        {error, Reason} ->
            failed(Reason, State#state{renewals = Renewals})
    end.

%% Returns which part of the store answers the next renewal, how long that may take, and how many
%% renewals in a row this node's own part has not answered then. That part answers when it has the
%% renewal itself. It stands still for a moment when it takes a snapshot, so the leader is asked
%% after a failure. But a part that stands still for longer must end the lease, so that its sessions
%% find another home. A lease that is valid must not wait for an answer that was lost. One that is
%% not has nothing to lose, and a cluster that is slow needs the time.
answers(#state{failures = Failures, unseen = Unseen}) ->
    case is_valid() of
        true when Failures > 0, Unseen < ?UNSEEN ->
            {ok, leader, ?RENEWAL_MS, Unseen + 1};
        true ->
            {ok, local, ?RENEWAL_MS, 0};
        false ->
            maybe
                ok ?= erlmcp_cluster_store:catch_up(?VALIDITY_MS),
                {ok, local, ?VALIDITY_MS, 0}
            end
    end.

open(Number, State) ->
    Sent = erlmcp_clock:now_ms(),
    case erlmcp_cluster_store:open_lease(Number) of
        ok -> begun(Number, Sent, State);
        {error, Reason} -> failed(Reason, State#state{unsure = Number})
    end.

begun(Number, Sent, #state{waiting = Waiting} = State) ->
    Until = atomics:new(2, []),
    ok = atomics:put(Until, 1, Sent + ?VALIDITY_MS),
    <<Boot:24>> = crypto:strong_rand_bytes(3),
    Current = #{number => Number, boot => Boot, until => Until, count => atomics:new(1, [])},
    ok = persistent_term:put(?MODULE, Current),
    ok = erlmcp_log:report(notice, #{what => cluster_lease_begun, incarnation => Number}),
    lists:foreach(fun(From) -> gen_server:reply(From, ok) end, Waiting),
    State#state{current = Current, renewals = 0, unseen = 0, failures = 0, waiting = []}.

fenced(State) ->
    ok = end_current(),
    State#state{current = none, failures = 0}.

%% The word of the old incarnation stays in the past. A process may still have it. Others are the
%% homes of its sessions by now, or will be. The incarnation is over before they end, so that none
%% is added after that (`erlmcp_session:open/3`).
end_current() ->
    _ = case current() of
        #{until := Until} -> atomics:put(Until, 1, erlmcp_clock:now_ms());
        none -> ok
    end,
    _ = persistent_term:erase(?MODULE),
    erlmcp_cluster_sessions:end_all().

failed(Reason, #state{failures = Failures} = State) ->
    _ = Failures + 1 =:= ?FAILURES andalso
        erlmcp_log:report(warning, #{what => cluster_lease_not_renewed, reason => Reason}),
    %% An answer takes longer than the next renewal, but not than an attempt without a lease.
    _ = (Failures rem 2 =:= 0 orelse not is_valid()) andalso erlmcp_cluster_store:doubt(),
    State#state{failures = Failures + 1}.

%% The other nodes need not wait until they have seen the lease stand still. They write the death
%% down at once, and this node need not wait for that.
-doc false.
terminate(Reason, #state{current = #{until := Until}} = State) ->
    _ = persistent_term:erase(?MODULE),
    case Reason of
        shutdown ->
            %% If there is no majority, nobody can.
            end_lease(State);
        _ ->
            atomics:put(Until, 1, erlmcp_clock:now_ms())
    end;
terminate(Reason, State) ->
    _ = persistent_term:erase(?MODULE),
    Reason =:= shutdown andalso end_unsure(State).

%% A lease that this node has perhaps, but will not renew. If it cannot be ended, the others wait
%% until it has stood still.
end_unsure(#state{unsure = none}) ->
    ok;
end_unsure(#state{unsure = Number}) ->
    _ = erlmcp_cluster_store:end_lease(Number, own, left),
    ok.

end_lease(#state{current = #{number := Number, until := Until}}) ->
    ok = atomics:put(Until, 1, erlmcp_clock:now_ms()),
    erlmcp_cluster_store:end_lease(Number, own, left).
