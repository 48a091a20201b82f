-module(tenant_counts_SUITE).
-moduledoc "Counts of kept items under their limits, while others count, too.".

-export([suite/0, all/0]).
-export([counts_have_limits/1, what_does_not_fit_takes_no_room/1]).

-define(ROUNDS, 100_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [counts_have_limits, what_does_not_fit_takes_no_room].

counts_have_limits(_) ->
    Counts = erlmcp_tenant_counts:new(),
    ok = erlmcp_tenant_counts:take(bytes, 60, 100, Counts),
    {full, 101} = erlmcp_tenant_counts:take(bytes, 41, 100, Counts),
    ok = erlmcp_tenant_counts:take(bytes, 40, 100, Counts),
    {full, 101} = erlmcp_tenant_counts:take(bytes, 1, 100, Counts),
    %% A limit may be less than what is held already.
    ok = erlmcp_tenant_counts:take(bytes, -10, 50, Counts),
    {full, 91} = erlmcp_tenant_counts:take(bytes, 1, 50, Counts),
    ok = erlmcp_tenant_counts:give_back(bytes, 90, Counts),
    [] = ets:tab2list(Counts).

%% While one item is refused again and again, another one always fits.
what_does_not_fit_takes_no_room(_) ->
    Counts = erlmcp_tenant_counts:new(),
    {Refused, Monitor} = spawn_monitor(fun() -> refused(Counts) end),
    _ = [begin
             ok = erlmcp_tenant_counts:take(bytes, 1, 100, Counts),
             ok = erlmcp_tenant_counts:give_back(bytes, 1, Counts)
         end || _ <- lists:seq(1, ?ROUNDS)],
    true = exit(Refused, kill),
    receive {'DOWN', Monitor, _, _, Reason} -> killed = Reason end,
    [] = ets:tab2list(Counts).

refused(Counts) ->
    {full, _} = erlmcp_tenant_counts:take(bytes, 101, 100, Counts),
    refused(Counts).
