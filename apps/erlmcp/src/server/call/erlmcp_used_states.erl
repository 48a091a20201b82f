-module(erlmcp_used_states).
-moduledoc """
Remembers which of the states that can be used once were used, until they expire. The number of
states is bounded, in all and for each tenant. If the table is full, another such state is refused,
since it could be used again.

Internal.
""".

-export([new/0, use/3]).

-export_type([used/0]).

-opaque used() :: {States :: ets:table(), Counts :: ets:table()}.

-doc "Makes empty tables of used states and their counts, which belong to the calling process.".
-spec new() -> used().
new() ->
    %% {{Expires, Id}, Tenant}
    {ets:new(erlmcp_used_states, [public, ordered_set, {write_concurrency, true}]),
     erlmcp_tenant_counts:new()}.

-doc """
Records that the state `Id` was used, and remembers this until `Expires`, in milliseconds of system
time. Returns `ok` if the state was not used before, and `again` if it was. Returns `expired` if
`Expires` has passed, since an earlier use may be forgotten. Returns `full`, and records nothing, if
the bound of all states or that of the tenant is reached. `Limit` is that bound, and `Observed` the
number of states that would be remembered. Raises `badarg` if the server has ended.
""".
-spec use({Expires :: integer(), Id :: binary()}, erlmcp_gate:tenant(),
          erlmcp_instance:instance()) ->
    ok | again | expired | {full, Limit :: pos_integer(), Observed :: pos_integer()}.
use(State, Tenant, #{limits := Limits, used_states := {States, Counts} = Used}) ->
    #{used_states := Max, used_states_per_principal := MaxOfOne} = Limits,
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

%% Of several processes that use the same state at the same time, one succeeds. A state may have
%% expired since its request came, or has by this node's clock alone. Then it may have been used and
%% forgotten before.
noted({Expires, _} = State, Tenant, {States, _} = Used) ->
    case ets:insert_new(States, {State, Tenant}) of
        true ->
            case erlang:system_time(millisecond) < Expires of
                true -> ok;
                false -> expired
            end;
        false ->
            ok = give_back(Tenant, Used),
            again
    end.

give_back(Tenant, {_, Counts}) ->
    ok = erlmcp_tenant_counts:give_back({tenant, Tenant}, 1, Counts),
    erlmcp_tenant_counts:give_back(all, 1, Counts).

%% Each state is removed once, so on average one is removed for each that is added.
forget_expired(Now, {States, _} = Used) ->
    case ets:first(States) of
        {Expires, _} = State when Expires =< Now ->
            _ = [ok = give_back(Tenant, Used) || {_, Tenant} <- ets:take(States, State)],
            forget_expired(Now, Used);
        _ ->
            ok
    end.
