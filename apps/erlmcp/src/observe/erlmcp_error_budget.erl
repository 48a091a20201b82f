-module(erlmcp_error_budget).
-moduledoc """
The error budget of a server. Each request is counted once, when its outcome is known. A process
reads the counts once a second, updates the windows (`m:erlmcp_error_budget_window`), and emits an
event when a window changes its zone. Counting and reading never wait.

A fault is a refusal that is the server's own doing (`erlmcp_refusal:is_fault/1`). A wrong request
is no fault, nor is an error that a tool returns.

Internal.
""".

-behaviour(gen_server).

-export([new/0, count_effects/2, count_answer/2, count_refusal/2, report/1, start_link/3]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([budget/0, counting/0]).

-doc """
The counts of requests and faults, and for each window the index of its zone, its requests and its
faults.
""".
-opaque budget() :: {counters:counters_ref(), atomics:atomics_ref()}.
-doc """
A map with the error budget of a server, such as the server's context. `count_refusal/2` also needs
its `limits`.
""".
-type counting() :: #{error_budget := budget(), atom() => term()}.

%% Indexes of the counters.
-define(REQUESTS, 1).
-define(FAULTS, 2).
%% Milliseconds between two readings of the counts.
-define(SECOND, 1000).

-record(state, {
    key :: reference(),
    budget :: budget(),
    windows :: erlmcp_error_budget_window:windows(),
    due :: integer()
}).

-doc "Creates a budget with all counts at zero.".
-spec new() -> budget().
new() ->
    {counters:new(2, [write_concurrency]),
     atomics:new(3 * length(erlmcp_error_budget_window:windows()), [])}.

-doc """
Counts the requests that the engine answered itself, as its effects say, none of them as a fault.
Calls are counted when they end, with `count_answer/2`.
""".
-spec count_effects([Effect :: term()], counting()) -> ok.
count_effects([{call, _}], _) ->
    ok;
count_effects(Effects, #{error_budget := Budget}) ->
    case answers(Effects, 0) of
        0 -> ok;
        Answers -> count(Answers, 0, Budget)
    end.

answers([], Answers) -> Answers;
answers([{reply, _, _} | Effects], Answers) -> answers(Effects, Answers + 1);
answers([{Subscribing, _, _} | Effects], Answers) when
    Subscribing =:= subscribe; Subscribing =:= unsubscribe
->
    answers(Effects, Answers + 1);
answers([{listen, _} | Effects], Answers) -> answers(Effects, Answers + 1);
answers([{batch, Items} | Effects], Answers) -> answers(Effects, answers(Items, Answers));
answers([_ | Effects], Answers) -> answers(Effects, Answers).

-doc """
Counts a call by its outcome, as a fault if the outcome is a refusal that is one
(`erlmcp_refusal:is_fault/1`). Returns the outcome unchanged.
""".
-spec count_answer(Outcome, counting()) -> Outcome when
    Outcome :: {ok, term()} | {error, erlmcp_refusal:refusal()}.
count_answer({ok, _} = Outcome, #{error_budget := Budget}) ->
    ok = count(1, 0, Budget),
    Outcome;
count_answer({error, Refusal} = Outcome, #{error_budget := Budget}) ->
    Faults = case erlmcp_refusal:is_fault(Refusal) of
        true -> 1;
        false -> 0
    end,
    ok = count(1, Faults, Budget),
    Outcome.

-doc """
Counts a request that the gate has refused, and returns the refusal. If the refusal has
`retry_after_ms`, that is raised to at least the limit `rate_retry_ms` for a rate or a quota, and to
at least `queue_retry_ms` for any other refusal.
""".
-spec count_refusal(erlmcp_refusal:refusal(), counting()) -> erlmcp_refusal:refusal().
count_refusal(Refusal, #{limits := Limits} = Server) ->
    {error, _} = count_answer({error, Refusal}, Server),
    #{rate_retry_ms := RateMs, queue_retry_ms := QueueMs} = Limits,
    case erlmcp_refusal:name(Refusal) of
        Rate when
            Rate =:= rate_limit_exceeded; Rate =:= rate_limit_per_second;
            Rate =:= rate_limit_per_minute; Rate =:= quota_exceeded
        ->
            erlmcp_refusal:not_before(RateMs, Refusal);
        _ ->
            erlmcp_refusal:not_before(QueueMs, Refusal)
    end.

count(Requests, 0, {Counts, _}) ->
    counters:add(Counts, ?REQUESTS, Requests);
count(Requests, Faults, {Counts, _}) ->
    ok = counters:add(Counts, ?REQUESTS, Requests),
    counters:add(Counts, ?FAULTS, Faults).

-doc """
Returns the windows as of the last reading, about a second ago at most, the worst of their zones,
and the counts of all requests and faults until now.
""".
-spec report(budget()) -> erlmcp:error_budget().
report({_, Seen} = Budget) ->
    {Requests, Faults} = totals(Budget),
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
Starts the process that updates the windows of the server with the key `Key`. A window with fewer
than `Least` requests stays in its zone, unless it has no fault.
""".
-spec start_link(Key :: reference(), budget(), Least :: pos_integer()) -> gen_server:start_ret().
start_link(Key, Budget, Least) ->
    gen_server:start_link(?MODULE, {Key, Budget, Least}, []).

-doc false.
init({Key, Budget, Least}) ->
    ok = erlmcp_label:set([?MODULE], Key),
    {Requests, Faults} = totals(Budget),
    {ok, waiting(#state{key = Key, budget = Budget, due = erlmcp_clock:now_ms(),
                        windows = erlmcp_error_budget_window:new(Least, Requests, Faults)})}.

waiting(#state{due = Due} = State) ->
    Next = Due + ?SECOND,
    _ = erlang:send_after(Next, self(), look, [{abs, true}]),
    State#state{due = Next}.

%% Faults are read first, so that a fault counted at this moment is not read without its request.
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
handle_info(look, #state{key = Key, budget = Budget, windows = Windows} = State) ->
    {Requests, Faults} = totals(Budget),
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
