-module(erlmcp_processor_guard).
-moduledoc """
Keeps a node whose schedulers have no time from taking on more: again and again it is seen how long
a new process waits for a scheduler, and above a bound new work is refused until it is well under
the bound again. One process for the node; who asks (`state/0`) reads a word.

Requests alone do not bring it there. Those that compute wait for a place, of which there are as
many as keep that wait short (`m:erlmcp_governor`). But against programs beside the node, and
processes of it that are no calls, fewer places are of no use.

The bound is the node's, and so in the environment of the application (`bounds/0`); without one
nothing is looked at. It is read at each look, and may be changed while the node runs.
""".

-behaviour(gen_server).

-export([state/0, refusal/1, bounds/0, start_link/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

%% Milliseconds from one look to the next, and while there is no bound.
-define(PAUSE, 20).
-define(IDLE_PAUSE, 200).
%% New work is let in again under so many percent of the bound.
-define(LOWER, 50).

%% Words of the atomics.
-define(BUSY, 1).
-define(WAITED, 2).
-define(LIMIT, 3).

-record(state, {
    words :: atomics:atomics_ref(),
    bound :: bound(),
    %% the process that was started to see how long it waits, and when
    probe = none :: none | {pid(), Since :: integer()}
}).

-type bound() :: pos_integer() | infinity.

-doc "Whether there is time for new work. One read.".
-spec state() -> ok | busy.
state() ->
    case persistent_term:get(?MODULE, none) of
        none ->
            ok;
        Words ->
            case atomics:get(Words, ?BUSY) of
                0 -> ok;
                1 -> busy
            end
    end.

-doc "What new work is refused with, and when to come back.".
-spec refusal(RetryAfterMs :: non_neg_integer()) -> erlmcp_refusal:refusal().
refusal(RetryAfterMs) ->
    Details = case persistent_term:get(?MODULE, none) of
        none -> #{};
        Words -> #{limit => atomics:get(Words, ?LIMIT), observed => atomics:get(Words, ?WAITED)}
    end,
    erlmcp_refusal:new(service_unavailable, ~"the server is short of processor time",
                       Details#{retry_after_ms => RetryAfterMs}).

-doc "The bound, its default, and what it bounds.".
-spec bounds() -> [{atom(), Default :: pos_integer() | infinity, What :: binary()}].
bounds() ->
    [{scheduler_wait_ms, infinity, ~"milliseconds that a new process waits for a scheduler"}].

-doc "Starts the guard.".
-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

-doc false.
init([]) ->
    process_flag(trap_exit, true),
    %% It must not wait for what it looks at.
    _ = process_flag(priority, high),
    case given() of
        {ok, Bound} ->
            _ = erlang:send_after(0, self(), look),
            {ok, #state{words = words(), bound = Bound}};
        error ->
            {stop, {bad_option, scheduler_wait_ms, ~"a positive integer, or infinity"}}
    end.

words() ->
    case persistent_term:get(?MODULE, none) of
        none ->
            Words = atomics:new(3, []),
            ok = persistent_term:put(?MODULE, Words),
            Words;
        Words ->
            Words
    end.

given() ->
    [{Name, Default, _}] = bounds(),
    case application:get_env(erlmcp, Name, Default) of
        infinity -> {ok, infinity};
        Bound when is_integer(Bound), Bound > 0 -> {ok, Bound};
        _ -> error
    end.

-doc false.
handle_call(_, _, State) ->
    {noreply, State}.

-doc false.
handle_cast(_, State) ->
    {noreply, State}.

-doc false.
handle_info(look, State) ->
    {noreply, looked(rebounded(State))};
handle_info({probed, Probe, Waited}, #state{probe = {Probe, _}} = State) ->
    {noreply, waited(Waited, State#state{probe = none})};
handle_info(_, State) ->
    {noreply, State}.

%% One that is changed to something wrong stays as it was.
rebounded(State) ->
    case given() of
        {ok, Bound} -> State#state{bound = Bound};
        error -> State
    end.

looked(#state{bound = infinity, words = Words} = State) ->
    _ = erlang:send_after(?IDLE_PAUSE, self(), look),
    ok = let_in(infinity, atomics:get(Words, ?WAITED), Words),
    State#state{probe = none};
looked(#state{probe = none} = State) ->
    _ = erlang:send_after(?PAUSE, self(), look),
    State#state{probe = probe()};
looked(#state{probe = {_, Since}, bound = Bound} = State) ->
    _ = erlang:send_after(?PAUSE, self(), look),
    %% The longer it waits the less it needs to come to its end first.
    case now_ms() - Since of
        Waits when Waits >= Bound -> waited(Waits, State);
        _ -> State
    end.

%% Of normal priority, as those that serve requests are.
probe() ->
    Guard = self(),
    Since = now_ms(),
    {spawn_link(fun() -> Guard ! {probed, self(), now_ms() - Since} end), Since}.

waited(Waited, #state{words = Words, bound = Bound} = State) ->
    ok = case Waited of
        _ when Waited >= Bound -> shut_out(Bound, Waited, Words);
        _ when Waited * 100 < Bound * ?LOWER -> let_in(Bound, Waited, Words);
        _ -> ok
    end,
    State.

shut_out(Bound, Waited, Words) ->
    ok = atomics:put(Words, ?WAITED, Waited),
    ok = atomics:put(Words, ?LIMIT, Bound),
    case atomics:exchange(Words, ?BUSY, 1) of
        0 ->
            Seen = #{waited => Waited, limit => Bound},
            ok = logger:warning(Seen#{what => processors_busy}),
            erlmcp_event:broadcast(processors_busy, Seen);
        1 ->
            ok
    end.

let_in(Bound, Waited, Words) ->
    case atomics:exchange(Words, ?BUSY, 0) of
        0 ->
            ok;
        1 ->
            Seen = #{waited => Waited, limit => Bound},
            ok = logger:notice(Seen#{what => processors_ok}),
            erlmcp_event:broadcast(processors_ok, Seen)
    end.

now_ms() ->
    erlang:monotonic_time(millisecond).

%% Without somebody who looks nothing is refused.
-doc false.
terminate(_, #state{words = Words}) ->
    atomics:put(Words, ?BUSY, 0).
