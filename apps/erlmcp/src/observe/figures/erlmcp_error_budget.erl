-module(erlmcp_error_budget).
-moduledoc """
The error budget of a server: the share of faults among its requests, over sliding windows
(`m:erlmcp_error_budget_window`). A process updates the windows once a second, and emits the event
`error_budget_changed` when a window changes its zone.

A fault is a refusal that is the server's own doing (`erlmcp_refusal:is_fault/1`). A wrong request
is no fault, nor is an error that a tool returns.

Internal.
""".

-behaviour(gen_server).

-export([new/1, report/1, start_link/3]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([budget/0]).

-doc """
The server's meter, and for each window the index of its zone, its requests and its faults.
""".
-opaque budget() :: {erlmcp_meter:meter(), atomics:atomics_ref()}.

%% Milliseconds between two readings of the counts.
-define(SECOND, 1000).

-record(state, {
    key :: reference(),
    budget :: budget(),
    windows :: erlmcp_error_budget_window:windows(),
    due :: integer()
}).

-doc "Creates the budget of the server with this meter.".
-spec new(erlmcp_meter:meter()) -> budget().
new(Meter) ->
    {Meter, atomics:new(3 * length(erlmcp_error_budget_window:windows()), [])}.

-doc """
Returns the windows at the last reading, which is about a second old at most. Also returns the worst
of their zones, and the counts of all requests and faults until now.
""".
-spec report(budget()) -> erlmcp:error_budget().
report({Meter, Seen}) ->
    {Requests, Faults} = erlmcp_meter:totals(Meter),
    Windows = [#{window => Window, zone => named(atomics:get(Seen, At)),
                 requests => atomics:get(Seen, At + 1), faults => atomics:get(Seen, At + 2)}
               || {At, Window} <- windows()],
    #{zone => named(lists:max([index(Zone) || #{zone := Zone} <- Windows])),
      requests => Requests, faults => Faults, windows => Windows}.

windows() ->
    lists:enumerate(1, 3, erlmcp_error_budget_window:windows()).

named(Index) ->
    {Zone, _} = lists:nth(Index + 1, erlmcp_error_budget_window:zones()),
    Zone.

index(Zone) ->
    length(lists:takewhile(fun({Other, _}) -> Other =/= Zone end,
                           erlmcp_error_budget_window:zones())).

-doc """
Starts the process that updates the windows of the server with the key `Key`. `Least` is that of
`erlmcp_error_budget_window:new/3`.
""".
-spec start_link(Key :: reference(), budget(), Least :: pos_integer()) -> gen_server:start_ret().
start_link(Key, Budget, Least) ->
    gen_server:start_link(?MODULE, {Key, Budget, Least}, []).

-doc false.
init({Key, {Meter, _} = Budget, Least}) ->
    ok = erlmcp_label:set([?MODULE], Key),
    {Requests, Faults} = erlmcp_meter:totals(Meter),
    {ok, waiting(#state{key = Key, budget = Budget, due = erlmcp_clock:now_ms(),
                        windows = erlmcp_error_budget_window:new(Least, Requests, Faults)})}.

waiting(#state{due = Due} = State) ->
    Next = Due + ?SECOND,
    _ = erlang:send_after(Next, self(), look, [{abs, true}]),
    State#state{due = Next}.

-doc false.
handle_call(_, _, State) ->
    {noreply, State}.

-doc false.
handle_cast(_, State) ->
    {noreply, State}.

-doc false.
handle_info(look, #state{key = Key, budget = {Meter, _} = Budget, windows = Windows} = State) ->
    {Requests, Faults} = erlmcp_meter:totals(Meter),
    {Changes, Next} = erlmcp_error_budget_window:tick(Requests, Faults, Windows),
    ok = keep(erlmcp_error_budget_window:report(Next), Budget),
    lists:foreach(fun(Change) ->
        ok = erlmcp_event_handler:emit(Key, error_budget_changed, Change)
    end, Changes),
    {noreply, waiting(State#state{windows = Next})};
handle_info(_, State) ->
    {noreply, State}.

keep(Report, {_, Seen}) ->
    lists:foreach(
        fun({{At, Window}, #{window := Window, zone := Zone} = Seconds}) ->
            #{requests := Requests, faults := Faults} = Seconds,
            ok = atomics:put(Seen, At, index(Zone)),
            ok = atomics:put(Seen, At + 1, Requests),
            ok = atomics:put(Seen, At + 2, Faults)
        end, lists:zip(windows(), Report)).
