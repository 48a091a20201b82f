-module(erlmcp_overload_guard).
-moduledoc """
Keeps a node that is short of a resource from taking on more work. A process, the guard of the
resource, measures repeatedly how much of the resource is used. When the use reaches a bound, new
work is refused until the use is well below the bound again.

A module with this behaviour measures one resource. The bounds are in the environment of the
application. They may be changed while the node runs; a wrong value changes nothing then.

Internal.
""".

-behaviour(gen_server).

-include("erlmcp_overload_guard.hrl").

-export([start_link/1, is_over/1, figures/1, refusal/4]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

-export_type([bounds/0, seen/0]).

-type bounds() :: #{atom() => pos_integer() | infinity}.
-doc """
The amount that is used, its bound, and the fields of the events. With the bound `infinity`, no
amount is too much. `none` means that there is no new measurement.
""".
-type seen() :: {Used :: non_neg_integer(), Limit :: pos_integer() | infinity, Fields :: map()}
              | none.

-doc "Returns every bound: its key in the application's environment, its default and its meaning.".
-callback bounds() -> [{atom(), Default :: pos_integer() | infinity, What :: binary()}].
-doc "Checks the value of a bound. An error describes the values that the bound may have.".
-callback expected(Bound :: atom(), Value :: term()) -> ok | {error, Expected :: binary()}.
-doc """
Returns the names of two events: `Over` when the use reaches the bound, and `Under` when new work is
let in again. `Under` comes when the use is less than `Lower` percent of the bound, or the bound is
removed.
""".
-callback events() ->
    {Over :: erlmcp_event_table:name(), Under :: erlmcp_event_table:name(), Lower :: 1..99}.
-doc "Returns the guard's state before the first call of `c:look/2`. Runs in the guard's process.".
-callback open() -> State :: term().
-doc """
Measures how much of the resource is used. Returns the measurement, the milliseconds until the next
call of this callback, and the new state. With the measurement `none`, a message may bring the
measurement later (`c:received/3`).
""".
-callback look(bounds(), State) -> {seen(), PauseMs :: pos_integer(), State}.
-doc """
Handles any message to the guard, such as the result of a measurement that `c:look/2` has started.
Since the guard traps exits, exit signals are among these messages. Returns the measurement, or
`none`, and the new state.
""".
-callback received(Message :: term(), bounds(), State) -> {seen(), State}.

%% All guards.
-define(GUARDS, [erlmcp_memory_guard, erlmcp_processor_guard]).
%% Words of the atomics. The limit is 0 while there is none.
-define(OVER, 1).
-define(USED, 2).
-define(LIMIT, 3).

-record(state, {
    module :: module(),
    words :: atomics:atomics_ref(),
    bounds :: bounds(),
    reading :: term()
}).

-doc """
Starts the guard that measures with `Module`. The error is `{bad_option, Bound, Expected}` if a
bound has a wrong value.
""".
-spec start_link(Module :: module()) -> gen_server:start_ret().
start_link(Module) ->
    gen_server:start_link({local, Module}, ?MODULE, Module, []).

-doc """
Returns `true` if the node's use has reached a bound of the guard `Module`, and has not fallen well
below that bound since. Returns `false` in any other case, also if the guard has not started, or was
stopped.
""".
-spec is_over(Module :: module()) -> boolean().
is_over(Module) ->
    %% The shared term decides first, so that all processes see a change at the same time.
    not ?NODE_IS_CLEAR andalso has_found(Module).

has_found(Module) ->
    case persistent_term:get(Module, none) of
        none -> false;
        Words -> atomics:get(Words, ?OVER) =:= 1
    end.

-doc """
Returns the last figures of the guard `Module`: how much of the resource is used, and its bound. The
map is empty if nothing was measured yet, or if there is no bound.
""".
-spec figures(Module :: module()) ->
    #{limit => non_neg_integer(), observed => non_neg_integer()}.
figures(Module) ->
    case persistent_term:get(Module, none) of
        none ->
            #{};
        Words ->
            case atomics:get(Words, ?LIMIT) of
                0 -> #{};
                Limit -> #{limit => Limit, observed => atomics:get(Words, ?USED)}
            end
    end.

-doc """
Returns the refusal `Name` of new work with the text `Message`, and with the last figures of the
guard `Module` (`figures/1`). A client may try again after `RetryAfterMs`.
""".
-spec refusal(Module :: module(), Name :: erlmcp:refusal_name(), Message :: binary(),
              RetryAfterMs :: non_neg_integer()) -> erlmcp_refusal:refusal().
refusal(Module, Name, Message, RetryAfterMs) ->
    erlmcp_refusal:new(Name, Message, (figures(Module))#{retry_after_ms => RetryAfterMs}).

-doc false.
init(Module) ->
    process_flag(trap_exit, true),
    Given = configured_bounds(Module),
    case wrong(Given, Module) of
        [] ->
            {ok, looked(#state{module = Module, words = words(Module), bounds = Given,
                               reading = Module:open()})};
        [{Name, Expected} | _] ->
            {stop, {bad_option, Name, Expected}}
    end.

words(Module) ->
    case persistent_term:get(Module, none) of
        none ->
            Words = atomics:new(3, []),
            ok = persistent_term:put(Module, Words),
            Words;
        Words ->
            Words
    end.

configured_bounds(Module) ->
    #{Name => application:get_env(erlmcp, Name, Default) || {Name, Default, _} <- Module:bounds()}.

wrong(Given, Module) ->
    [{Name, Expected} || Name := Value <- Given,
                         {error, Expected} <- [Module:expected(Name, Value)]].

-doc false.
handle_call(_, _, State) ->
    {noreply, State}.

-doc false.
handle_cast(_, State) ->
    {noreply, State}.

-doc false.
handle_info(look, State) ->
    {noreply, looked(rebounded(State))};
handle_info(Message, #state{module = Module, bounds = Bounds, reading = Reading} = State) ->
    {Seen, Next} = Module:received(Message, Bounds, Reading),
    ok = keep(Seen, State),
    {noreply, State#state{reading = Next}}.

looked(#state{module = Module, bounds = Bounds, reading = Reading} = State) ->
    {Seen, Pause, Next} = Module:look(Bounds, Reading),
    _ = erlang:send_after(Pause, self(), look),
    ok = keep(Seen, State),
    %% A guard that was killed may not have set the shared term.
    ok = tell(),
    State#state{reading = Next}.

rebounded(#state{module = Module, bounds = Bounds} = State) ->
    Given = configured_bounds(Module),
    Wrong = [Name || {Name, _} <- wrong(Given, Module)],
    State#state{bounds = maps:merge(Bounds, maps:without(Wrong, Given))}.

keep(none, _) ->
    ok;
keep({_, infinity, Fields}, #state{words = Words} = State) ->
    ok = atomics:put(Words, ?LIMIT, 0),
    under(atomics:exchange(Words, ?OVER, 0), Fields, State);
keep({Used, Limit, Fields}, #state{module = Module, words = Words} = State) ->
    {_, _, Lower} = Module:events(),
    ok = atomics:put(Words, ?USED, Used),
    ok = atomics:put(Words, ?LIMIT, Limit),
    if
        Used >= Limit -> over(atomics:exchange(Words, ?OVER, 1), Fields, State);
        Used * 100 < Limit * Lower -> under(atomics:exchange(Words, ?OVER, 0), Fields, State);
        true -> ok
    end.

over(1, _, _) ->
    ok;
over(0, Fields, #state{module = Module}) ->
    ok = tell(),
    {Event, _, _} = Module:events(),
    ok = erlmcp_log:report(warning, Fields#{what => Event}),
    erlmcp_event_handler:broadcast(Event, Fields).

under(0, _, _) ->
    ok;
under(1, Fields, #state{module = Module}) ->
    ok = tell(),
    {_, Event, _} = Module:events(),
    ok = erlmcp_log:report(notice, Fields#{what => Event}),
    erlmcp_event_handler:broadcast(Event, Fields).

%% Sets the term that all requests read, and checks it again. Another guard may have found something
%% else meanwhile, and may have set the term before.
tell() ->
    Clear = not lists:any(fun has_found/1, ?GUARDS),
    case ?NODE_IS_CLEAR of
        Clear ->
            ok;
        _ ->
            ok = persistent_term:put(?MODULE, Clear),
            tell()
    end.

%% Nothing is refused for a guard that has ended.
-doc false.
terminate(_, #state{words = Words}) ->
    ok = atomics:put(Words, ?OVER, 0),
    tell().
