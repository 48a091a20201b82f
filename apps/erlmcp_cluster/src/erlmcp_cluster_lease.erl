-module(erlmcp_cluster_lease).
-moduledoc """
The lease of this node's incarnation. It is renewed each 250 ms, and is valid for 1,000 ms from the
time when its last successful renewal was sent. The time until which it is valid stands in one word,
which each request of a session can read.

A node declares another one dead when its lease has stood still for longer than a lease is valid.
So no lease of a dead incarnation is valid, whatever the dead node itself knows: its clock alone
ends it. If the node comes back, its renewal is refused, and it starts again as a new incarnation.

A node that is about to stop gives its sessions up before its lease ends (`hand_over/0`). It is the
home of no session any more, and finishes what it has begun.

Internal.
""".

-behaviour(gen_server).

-export([start_link/0, await/1, hand_over/0, leave/0]).
-export([is_valid/0, current/0, incarnation/0, lasting/0, next_nonce/0, remaining_ms/0]).
-export([validity_ms/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

-export_type([incarnation/0]).

-define(RENEWAL_MS, 250).
-define(VALIDITY_MS, 1_000).
%% Renewals that failed, after which this node no longer believes in the leader.
-define(FAILURES, 2).

-doc """
This node's incarnation. The first word of `until` has the monotonic millisecond at which the lease
ends. The second one is 1 after `hand_over/0`.
`count` is the number of nonces that were given out, and `boot` is a part of each.
""".
-type incarnation() :: #{
    number := erlmcp_cluster_deaths:incarnation(),
    boot := 0..16#FFFFFF,
    until := atomics:atomics_ref(),
    count := atomics:atomics_ref()
}.

-record(state, {
    %% `none` until there is a lease, `left` after it was given up
    current = none :: none | left | incarnation(),
    %% `leaving` after `hand_over/0`
    as = alive :: alive | leaving,
    renewals = 0 :: non_neg_integer(),
    failures = 0 :: non_neg_integer(),
    waiting = [] :: [gen_server:from()]
}).

-doc "Starts the process.".
-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

-doc "Waits for up to `Milliseconds` until this node has a lease, or returns `no_lease`.".
-spec await(timeout()) -> ok | {error, no_lease}.
await(Milliseconds) ->
    try
        gen_server:call(?MODULE, await, Milliseconds)
    catch
        exit:_ -> {error, no_lease}
    end.

-doc """
Gives up the sessions of this node: others are their homes from now on. The lease is renewed until
the node stops.
""".
-spec hand_over() -> ok | {error, term()}.
hand_over() ->
    gen_server:call(?MODULE, hand_over, infinity).

-doc "Ends the lease, so that other nodes take this one's sessions over at once.".
-spec leave() -> ok | {error, term()}.
leave() ->
    gen_server:call(?MODULE, leave, infinity).

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

-doc "Returns this node's incarnation, or `none` before the first one.".
-spec current() -> incarnation() | none.
current() ->
    persistent_term:get(?MODULE, none).

-doc """
Returns the number of this node's incarnation, or `none` if its lease is not valid, or it has given
up its sessions.
""".
-spec incarnation() -> erlmcp_cluster_deaths:incarnation() | none.
incarnation() ->
    case current() of
        #{number := Number, until := Until} ->
            case atomics:get(Until, 1) > erlmcp_clock:now_ms() andalso atomics:get(Until, 2) of
                0 -> Number;
                _ -> none
            end;
        none ->
            none
    end.

-doc """
Returns the number of this node's incarnation, or `none` if its lease is not valid. An incarnation
that has given up its sessions lasts, and ends its tasks, until its lease ends.
""".
-spec lasting() -> erlmcp_cluster_deaths:incarnation() | none.
lasting() ->
    case {current(), is_valid()} of
        {#{number := Number}, true} -> Number;
        _ -> none
    end.

-doc "Returns a nonce that was never used. Returns `no_lease` if the lease is not valid.".
-spec next_nonce() -> {ok, erlmcp_cluster_session_id:nonce()} | no_lease.
next_nonce() ->
    case incarnation() of
        none ->
            no_lease;
        Number ->
            #{boot := Boot, count := Count} = current(),
            {ok, erlmcp_cluster_session_id:nonce(Number, Boot, atomics:add_get(Count, 1, 1))}
    end.

-doc "Returns the milliseconds for which a lease is valid after its last renewal was sent.".
-spec validity_ms() -> pos_integer().
validity_ms() ->
    ?VALIDITY_MS.

-doc false.
init([]) ->
    _ = process_flag(trap_exit, true),
    ok = erlmcp_label:set([?MODULE]),
    self() ! renew,
    {ok, #state{}}.

-doc false.
handle_call(await, _, #state{current = #{}} = State) ->
    {reply, ok, State};
handle_call(await, From, #state{waiting = Waiting} = State) ->
    {noreply, State#state{waiting = [From | Waiting]}};
%% No request finds a session here from now on, whatever the store says.
handle_call(hand_over, _, #state{current = #{number := Number, until := Until}} = State) ->
    ok = atomics:put(Until, 2, 1),
    #state{current = Current} = Next = renew(erlmcp_clock:now_ms(), State#state{as = leaving}),
    Written = is_map(Current) andalso erlmcp_cluster_store:bury(Number),
    {reply, case Written of
                {error, _} -> Written;
                %% Another node does it, or is doing it.
                _ -> ok
            end, Next};
%% It has nothing to give, and begins nothing.
handle_call(hand_over, _, State) ->
    {reply, ok, State#state{current = left}};
handle_call(leave, _, #state{current = #{}} = State) ->
    case end_lease(State) of
        {error, _} = Error -> {reply, Error, State};
        _ -> {reply, ok, State#state{current = left}}
    end;
handle_call(leave, _, State) ->
    {reply, ok, State#state{current = left}}.

-doc false.
handle_cast(_, State) ->
    {noreply, State}.

-doc false.
handle_info(renew, #state{current = left} = State) ->
    {noreply, State};
handle_info(renew, State) ->
    Sent = erlmcp_clock:now_ms(),
    Next = renew(Sent, State),
    _ = erlang:send_after(max(0, Sent + ?RENEWAL_MS - erlmcp_clock:now_ms()), self(), renew),
    {noreply, Next};
handle_info(_, State) ->
    {noreply, State}.

renew(Sent, #state{current = none} = State) ->
    maybe
        {ok, Number} ?= erlmcp_cluster_store:next_incarnation(),
        ok ?= erlmcp_cluster_store:open_lease(Number),
        begun(Number, Sent, State)
    else
        {error, Reason} -> failed(Reason, State)
    end;
renew(Sent, #state{current = #{number := Number, until := Until}, as = As,
                   renewals = Renewals} = State) ->
    case erlmcp_cluster_store:renew_lease(Number, As, Renewals + 1) of
        ok ->
            ok = atomics:put(Until, 1, Sent + ?VALIDITY_MS),
            State#state{renewals = Renewals + 1, failures = 0};
        over ->
            ok = erlmcp_log:report(warning, #{what => cluster_node_was_declared_dead,
                                              incarnation => Number}),
            begin_again(Sent, fenced(State));
        {error, Reason} ->
            failed(Reason, State#state{renewals = Renewals + 1})
    end.

%% A node that is about to stop needs no other incarnation.
begin_again(Sent, #state{as = alive} = State) -> renew(Sent, State);
begin_again(_, State) -> State#state{current = left}.

begun(Number, Sent, #state{waiting = Waiting} = State) ->
    Until = atomics:new(2, []),
    ok = atomics:put(Until, 1, Sent + ?VALIDITY_MS),
    <<Boot:24>> = crypto:strong_rand_bytes(3),
    Current = #{number => Number, boot => Boot, until => Until, count => atomics:new(1, [])},
    ok = persistent_term:put(?MODULE, Current),
    ok = erlmcp_log:report(notice, #{what => cluster_lease_begun, incarnation => Number}),
    lists:foreach(fun(From) -> gen_server:reply(From, ok) end, Waiting),
    State#state{current = Current, renewals = 0, failures = 0, waiting = []}.

%% The word of the old incarnation stays in the past. A process may still have it. Others are the
%% homes of its sessions by now. The incarnation is over before they end, so that none is added
%% after that (`erlmcp_session:open/3`).
fenced(#state{current = #{until := Until}} = State) ->
    ok = atomics:put(Until, 1, erlmcp_clock:now_ms()),
    _ = persistent_term:erase(?MODULE),
    ok = erlmcp_cluster_sessions:end_all(),
    State#state{current = none, failures = 0}.

failed(Reason, #state{failures = Failures} = State) ->
    _ = Failures + 1 =:= ?FAILURES andalso
        erlmcp_log:report(warning, #{what => cluster_lease_not_renewed, reason => Reason}),
    _ = (Failures + 1) rem ?FAILURES =:= 0 andalso erlmcp_cluster_store:elect(),
    State#state{failures = Failures + 1}.

%% The other nodes need not wait until they have seen the lease stand still.
-doc false.
terminate(Reason, #state{current = #{number := Number, until := Until}} = State) ->
    _ = persistent_term:erase(?MODULE),
    case Reason of
        shutdown ->
            %% If there is no majority, nobody can.
            end_lease(State) =:= ok andalso erlmcp_cluster_store:bury(Number);
        _ ->
            atomics:put(Until, 1, erlmcp_clock:now_ms())
    end;
terminate(_, _) ->
    persistent_term:erase(?MODULE).

end_lease(#state{current = #{number := Number, until := Until}}) ->
    ok = atomics:put(Until, 1, erlmcp_clock:now_ms()),
    erlmcp_cluster_store:end_lease(Number, own, left).
