-module(concurrency_limiter_SUITE).
-moduledoc """
The limit of requests in flight that a server's limiter sets. The cases make up thousands of waits,
next to which the real ones of this machine do not count.
""".

-export([suite/0, all/0]).
-export([a_limit_begins_within_its_bound/1, short_waits_let_more_in/1, long_waits_let_fewer_in/1,
         calls_of_little_work_are_not_cut/1, calls_that_sleep_make_room/1,
         few_of_a_flood_wait_in_a_lasting_overload/1, a_burst_after_a_quiet_time_may_wait/1,
         fewer_wait_the_longer_an_overload_lasts/1, a_quiet_server_is_seldom_looked_at/1,
         strange_messages_change_nothing/1, starts_are_counted_between_two_moments/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [a_limit_begins_within_its_bound, short_waits_let_more_in, long_waits_let_fewer_in,
     calls_of_little_work_are_not_cut, calls_that_sleep_make_room,
     few_of_a_flood_wait_in_a_lasting_overload, a_burst_after_a_quiet_time_may_wait,
     fewer_wait_the_longer_an_overload_lasts, a_quiet_server_is_seldom_looked_at,
     strange_messages_change_nothing, starts_are_counted_between_two_moments].

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

%% An overload is one after two seconds in which the queue was never empty. It was empty for longer,
%% and then requests come for a shorter time, which has some windows.
a_burst_after_a_quiet_time_may_wait(Config) ->
    Gate = limited(#{in_flight => 1, queue => 100_000, queue_per_principal => 50_000,
                     queue_ms => 8_000}),
    receive after 2_100 -> ok end,
    case timer:tc(fun() -> flood(Gate, 250) end, millisecond) of
        {_, {ok, all}} -> ok;
        %% It took so long here that it may be called an overload.
        {Took, {error, _}} when Took > 1_500 -> a_burst_after_a_quiet_time_may_wait(Config)
    end.

fewer_wait_the_longer_an_overload_lasts(_) ->
    #{counters := Counters} = Gate = limited(#{in_flight => 1, queue => 100_000,
                                               queue_per_principal => 50_000, queue_ms => 100}),
    until(fun() -> _ = enter(Gate), erlmcp_gate_counters:queue_limit(Counters) =:= 20 end).

%% Each tenth of a second. A busy server is looked at each fiftieth, where the machine has the time.
a_quiet_server_is_seldom_looked_at(_) ->
    {links, Before} = process_info(self(), links),
    Gate = limited(#{in_flight => 1}),
    Limiter = limiter(Before),
    %% The first window may have begun before.
    _ = least_ms(6, Limiter),
    true = least_ms(6, Limiter) >= 90,
    {ok, _} = enter(Gate),
    until(fun() -> least_ms(10, Limiter) < 50 end).

%% The least time between two of so many looks.
least_ms(Count, Limiter) ->
    1 = erlang:trace(Limiter, true, ['receive', monotonic_timestamp]),
    Times = [receive {trace_ts, Limiter, 'receive', sample, At} -> At end
             || _ <- lists:seq(1, Count)],
    1 = erlang:trace(Limiter, false, ['receive', monotonic_timestamp]),
    ok = forget_looks(Limiter),
    Least = lists:min([Later - At || {At, Later} <- lists:zip(lists:droplast(Times), tl(Times))]),
    erlang:convert_time_unit(Least, native, millisecond).

forget_looks(Limiter) ->
    receive
        {trace_ts, Limiter, 'receive', _, _} -> forget_looks(Limiter)
    after 0 ->
        ok
    end.

strange_messages_change_nothing(_) ->
    {links, Before} = process_info(self(), links),
    Gate = limited(#{in_flight => 1}),
    Limiter = limiter(Before),
    Limiter ! strange,
    ok = gen_server:cast(Limiter, strange),
    Limiter ! {'$gen_call', {self(), make_ref()}, strange},
    {ok, _} = enter(Gate),
    %% It goes on.
    1 = erlang:trace(Limiter, true, ['receive']),
    receive {trace, Limiter, 'receive', sample} -> ok end,
    1 = erlang:trace(Limiter, false, ['receive']).

%% The process that `limited/1` has started last.
limiter(Before) ->
    {links, Now} = process_info(self(), links),
    lists:last(lists:sort([Pid || Pid <- Now -- Before, is_pid(Pid)])).

starts_are_counted_between_two_moments(_) ->
    #{counters := Counters} = Gate = erlmcp_gate:new(#{}),
    waited(5_000_000, Gate),
    First = erlmcp_gate_counters:starts(Counters),
    waited(3_000_000, Gate),
    waited(1_000_000, Gate),
    {2_000, Waited} = erlmcp_gate_counters:starts_between(First,
                                                          erlmcp_gate_counters:starts(Counters)),
    %% Each has lost less than the unit in which waits are counted.
    true = Waited > 1_000 * (4_000_000 - 2 * 1_024),
    {0, 0} = erlmcp_gate_counters:starts_between(First, First).

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
