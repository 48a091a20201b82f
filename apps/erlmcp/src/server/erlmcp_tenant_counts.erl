-module(erlmcp_tenant_counts).
-moduledoc """
Counts items that a server keeps, such as sessions, in all and for each tenant
(`t:erlmcp_gate:tenant/0`), in a table that all processes change themselves. Tenants without items
have no rows.

Internal.
""".

-export([new/0, take/4, give_back/3]).

-type key() :: atom() | {Kind :: atom(), erlmcp_gate:tenant()}.

-doc "Makes an empty table of counts, which belongs to the calling process.".
-spec new() -> ets:table().
new() ->
    ets:new(erlmcp_tenant_counts, [public, {write_concurrency, auto}]).

-doc """
Adds `Amount` to the count of a key, and returns `ok`. If the sum would exceed `Max`, returns `full`
with that sum and adds nothing. An `Amount` that is not positive is always added. Raises `badarg` if
the owner of the table has ended.
""".
-spec take(key(), Amount :: integer(), Max :: integer(), ets:table()) ->
    ok | {full, Observed :: pos_integer()}.
take(Key, Amount, _, Counts) when Amount =< 0 ->
    _ = ets:update_counter(Counts, Key, {2, Amount}, {Key, 0}),
    ok;
take(Key, Amount, Max, Counts) ->
    %% An amount that does not fit is not added even for a moment: others that fit would be refused.
    case ets:lookup_element(Counts, Key, 2, 0) + Amount of
        Observed when Observed > Max -> {full, Observed};
        _ -> add(Key, Amount, Max, Counts)
    end.

%% Others may have added to the count meanwhile.
add(Key, Amount, Max, Counts) ->
    case ets:update_counter(Counts, Key, {2, Amount}, {Key, 0}) of
        Taken when Taken > Max ->
            ok = give_back(Key, Amount, Counts),
            {full, Taken};
        _ ->
            ok
    end.

-doc """
Subtracts from the count of a key an `Amount` that `take/4` has added. Raises `badarg` if the owner
of the table has ended.
""".
-spec give_back(key(), Amount :: integer(), ets:table()) -> ok.
give_back(Key, Amount, Counts) ->
    case ets:update_counter(Counts, Key, {2, -Amount}, {Key, 0}) of
        0 ->
            true = ets:delete_object(Counts, {Key, 0}),
            ok;
        _ ->
            ok
    end.
