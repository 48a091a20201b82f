-module(concurrency_limiter_SUITE).
-moduledoc """
The limit of requests in flight that a server's limiter sets. The cases make up thousands of waits,
next to which the real ones of this machine do not count.
""".

-export([suite/0, all/0]).
-export([a_limit_begins_within_its_bound/1, short_waits_let_more_in/1, long_waits_let_fewer_in/1,
         calls_of_little_work_are_not_cut/1, calls_that_sleep_make_room/1,
         few_of_a_flood_wait_in_a_lasting_overload/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [a_limit_begins_within_its_bound, short_waits_let_more_in, long_waits_let_fewer_in,
     calls_of_little_work_are_not_cut, calls_that_sleep_make_room,
     few_of_a_flood_wait_in_a_lasting_overload].

a_limit_begins_within_its_bound(_) ->
    Gate = limited(#{in_flight => 3}),
    3 = erlmcp_gate:limit(Gate),
    First = erlmcp_gate:limit(limited(#{})),
    true = First >= 100.

short_waits_let_more_in(_) ->
    Gate = limited(#{in_flight => 10_000}),
    First = erlmcp_gate:limit(Gate),
    _ = fill(Gate),
    until(fun() -> waited(0, Gate), fill(Gate), erlmcp_gate:limit(Gate) > First end).

%% As many are ready to run as are in flight.
long_waits_let_fewer_in(_) ->
    Gate = limited(#{in_flight => 10_000}),
    Burning = [spawn_link(fun burn/0) || _ <- lists:seq(1, 100)],
    _ = [enter(Gate) || _ <- Burning],
    First = erlmcp_gate:limit(Gate),
    until(fun() -> waited(1_000_000_000, Gate), erlmcp_gate:limit(Gate) < First end),
    lists:foreach(fun(Pid) -> unlink(Pid), exit(Pid, kill) end, Burning).

%% They wait as long, but for the work of others: each finished request took ten reductions.
calls_of_little_work_are_not_cut(_) ->
    #{counters := Counters} = Gate = limited(#{in_flight => 10_000}),
    First = erlmcp_gate:limit(Gate),
    Burning = [spawn_link(fun burn/0) || _ <- lists:seq(1, First)],
    _ = [enter(Gate) || _ <- Burning],
    until(fun() ->
        waited(1_000_000_000, Gate),
        _ = [erlmcp_gate_counters:add_work(10, Counters) || _ <- lists:seq(1, 1000)],
        ok = erlmcp_gate_counters:add_refused(Counters),
        erlmcp_gate:limit(Gate) > 3 * First
    end),
    lists:foreach(fun(Pid) -> unlink(Pid), exit(Pid, kill) end, Burning).

calls_that_sleep_make_room(_) ->
    Gate = limited(#{in_flight => 10_000}),
    First = erlmcp_gate:limit(Gate),
    InFlight = fill(Gate),
    until(fun() -> waited(1_000_000_000, Gate), erlmcp_gate:limit(Gate) > InFlight end),
    true = First =< InFlight.

few_of_a_flood_wait_in_a_lasting_overload(_) ->
    Gate = limited(#{in_flight => 1, queue => 100_000, queue_per_principal => 50_000}),
    {ok, _} = enter(Gate),
    {error, Observed} = flood(Gate, 10_000),
    true = Observed < 10_000,
    %% There is room for others.
    [{ok, _} = erlmcp_gate:enter(Gate, request(another)) || _ <- lists:seq(1, 10)],
    %% When no request finds the limit reached any more, as many may wait again as before.
    #{counters := Counters} = Gate,
    until(fun() -> erlmcp_gate_counters:queue_limit(Counters) >= 50_000 end),
    {ok, _} = enter(Gate).

flood(_, 0) ->
    {ok, all};
flood(Gate, Left) ->
    case enter(Gate) of
        {ok, _} ->
            receive after 1 -> flood(Gate, Left - 1) end;
        {refuse, Refusal} ->
            queue_tenant_cap_exceeded = erlmcp_refusal:name(Refusal),
            {error, 10_000 - Left}
    end.

limited(Bounds) ->
    Gate = erlmcp_gate:new(Bounds),
    {ok, _} = erlmcp_gate_queue:start_link(Gate),
    {ok, _} = erlmcp_concurrency_limiter:start_link(Gate),
    Gate.

enter(Gate) ->
    erlmcp_gate:enter(Gate, request(one)).

request(Tenant) ->
    #{tenant => Tenant, kind => request, bytes => 100}.

%% The number of requests in flight at the limit.
fill(Gate) ->
    case enter(Gate) of
        {ok, _} -> fill(Gate);
        {refuse, _} -> erlmcp_gate:held(Gate, in_flight)
    end.

%% A thousand requests have waited this long when they start.
waited(Nanoseconds, #{counters := Counters}) ->
    Since = erlmcp_gate_counters:now(Counters) - Nanoseconds,
    _ = [erlmcp_gate_counters:add_start(Since, Counters) || _ <- lists:seq(1, 1000)],
    ok.

burn() ->
    burn().

%% Waits for a condition that other processes bring about.
until(Holds) ->
    Holds() orelse receive after 1 -> until(Holds) end.
