-module(erlmcp_error_budget).
-moduledoc """
The error budget of a server: what it answers is counted by who answers, and a process looks at the
counts once a second, keeps what the windows are (`m:erlmcp_error_budget_window`), and tells the
changes as events. Counting and reading wait for nobody.
""".

-behaviour(gen_server).

-export([new/0, count/3, report/1, start_link/3]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([zones/0]).

-doc "What is counted, and for each window three words: its zone's place, its requests and faults.".
-opaque zones() :: {counters:counters_ref(), atomics:atomics_ref()}.

%% Of the counters.
-define(REQUESTS, 1).
-define(FAULTS, 2).
%% Milliseconds from one look to the next.
-define(SECOND, 1000).

-record(state, {
    key :: reference(),
    zones :: zones(),
    windows :: erlmcp_error_budget_window:windows(),
    due :: integer()
}).

-doc "Nothing counted yet, and all green.".
-spec new() -> zones().
new() ->
    {counters:new(2, [write_concurrency]),
     atomics:new(3 * length(erlmcp_error_budget_window:windows()), [])}.

-doc "So many requests were answered, and with so many of them the server failed.".
-spec count(Requests :: non_neg_integer(), Faults :: non_neg_integer(), zones()) -> ok.
count(Requests, 0, {Counts, _}) ->
    counters:add(Counts, ?REQUESTS, Requests);
count(Requests, Faults, {Counts, _}) ->
    ok = counters:add(Counts, ?REQUESTS, Requests),
    counters:add(Counts, ?FAULTS, Faults).

-doc """
The windows as they were at the last look, at most a second ago, and the zone of the server: the
worst of theirs; and what was counted until now.
""".
-spec report(zones()) -> erlmcp:error_budget().
report({_, Seen} = Zones) ->
    {Requests, Faults} = totals(Zones),
    Windows = [#{window => Window, zone => named(atomics:get(Seen, At)),
                 requests => atomics:get(Seen, At + 1), faults => atomics:get(Seen, At + 2)}
               || {At, Window} <- places()],
    #{zone => named(lists:max([place(Zone) || #{zone := Zone} <- Windows])),
      requests => Requests, faults => Faults, windows => Windows}.

places() ->
    lists:enumerate(1, 3, erlmcp_error_budget_window:windows()).

named(Place) ->
    {Zone, _} = lists:nth(Place + 1, erlmcp_error_budget_window:zones()),
    Zone.

place(Zone) ->
    length(lists:takewhile(fun({Other, _}) -> Other =/= Zone end,
                           erlmcp_error_budget_window:zones())).

-doc """
Starts the process of the server with this key. A window with fewer than `Least` requests stays in
its zone.
""".
-spec start_link(Key :: reference(), zones(), Least :: pos_integer()) -> gen_server:start_ret().
start_link(Key, Zones, Least) ->
    gen_server:start_link(?MODULE, {Key, Zones, Least}, []).

-doc false.
init({Key, Zones, Least}) ->
    {Requests, Faults} = totals(Zones),
    {ok, waiting(#state{key = Key, zones = Zones, due = erlang:monotonic_time(millisecond),
                        windows = erlmcp_error_budget_window:new(Least, Requests, Faults)})}.

waiting(#state{due = Due} = State) ->
    Next = Due + ?SECOND,
    _ = erlang:send_after(Next, self(), look, [{abs, true}]),
    State#state{due = Next}.

%% The faults first: one that is counted meanwhile is not seen without its request.
totals({Counts, _}) ->
    Faults = counters:get(Counts, ?FAULTS),
    {counters:get(Counts, ?REQUESTS), Faults}.

-doc false.
handle_call(_, _, State) ->
    {noreply, State}.

-doc false.
handle_cast(_, State) ->
    {noreply, State}.

-doc false.
handle_info(look, #state{key = Key, zones = Zones, windows = Windows} = State) ->
    {Requests, Faults} = totals(Zones),
    {Changes, Next} = erlmcp_error_budget_window:tick(Requests, Faults, Windows),
    ok = keep(erlmcp_error_budget_window:report(Next), Zones),
    lists:foreach(fun(Change) -> ok = erlmcp_event:emit(Key, zone_changed, Change) end, Changes),
    {noreply, waiting(State#state{windows = Next})};
handle_info(_, State) ->
    {noreply, State}.

keep(Report, {_, Seen}) ->
    lists:foreach(
        fun({{At, Window}, #{window := Window, zone := Zone} = Seconds}) ->
            #{requests := Requests, faults := Faults} = Seconds,
            ok = atomics:put(Seen, At, place(Zone)),
            ok = atomics:put(Seen, At + 1, Requests),
            ok = atomics:put(Seen, At + 2, Faults)
        end, lists:zip(places(), Report)).
