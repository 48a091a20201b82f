-module(erlmcp_used_states).
-moduledoc """
The states that are good for once and were used: a table of a server, in which each stays until it
expires. The table has a bound, and one for each tenant. A state that a full table cannot take could
be used again, and so it is refused.

Internal.
""".

-export([new/0, use/4]).

-export_type([used/0]).

-opaque used() :: {States :: ets:table(), Counts :: ets:table()}.

-doc "Makes an empty table. It belongs to the calling process.".
-spec new() -> used().
new() ->
    %% {{Expires, Id}, Tenant}
    {ets:new(erlmcp_used_states, [public, ordered_set, {write_concurrency, true}]),
     erlmcp_tenant_counts:new()}.

-doc """
Records that a state was used. It expires at `Expires`, a system time in milliseconds. Returns
`again` if the state was used before. `Max` has the bounds of all states and of one tenant's.
""".
-spec use({Expires :: integer(), Id :: binary()}, erlmcp_gate:tenant(),
          Max :: {InAll :: pos_integer(), OfOne :: pos_integer()}, used()) ->
    ok | again | {full, Limit :: pos_integer(), Observed :: pos_integer()}.
use(State, Tenant, {Max, MaxOfOne}, {States, Counts} = Used) ->
    ok = forget_expired(erlang:system_time(millisecond), Used),
    %% The bound of the tenant first, which is the smaller one.
    case ets:member(States, State)
        orelse erlmcp_tenant_counts:take({tenant, Tenant}, 1, MaxOfOne, Counts) of
        true ->
            again;
        {full, Observed} ->
            {full, MaxOfOne, Observed};
        ok ->
            case erlmcp_tenant_counts:take(all, 1, Max, Counts) of
                ok ->
                    noted(State, Tenant, Used);
                {full, Observed} ->
                    ok = erlmcp_tenant_counts:give_back({tenant, Tenant}, 1, Counts),
                    {full, Max, Observed}
            end
    end.

%% Of those that bring a state at once, one does it first.
noted(State, Tenant, {States, _} = Used) ->
    case ets:insert_new(States, {State, Tenant}) of
        true ->
            ok;
        false ->
            ok = give_back(Tenant, Used),
            again
    end.

give_back(Tenant, {_, Counts}) ->
    ok = erlmcp_tenant_counts:give_back({tenant, Tenant}, 1, Counts),
    erlmcp_tenant_counts:give_back(all, 1, Counts).

%% Each goes once, and so this costs each that comes as much as one that goes.
forget_expired(Now, {States, _} = Used) ->
    case ets:first(States) of
        {Expires, _} = State when Expires =< Now ->
            _ = [ok = give_back(Tenant, Used) || {_, Tenant} <- ets:take(States, State)],
            forget_expired(Now, Used);
        _ ->
            ok
    end.
