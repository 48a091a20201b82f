-module(erlmcp_cluster_shares).
-moduledoc """
Counts the facts of sessions that the cluster keeps, in all and for each client. A fact counts 1,
and 1 more for each whole KiB of its value. All facts may count 200,000. Those of one client may not
count more than the room that is left, and so 100,000 at most. A node counts the facts that other
nodes store at its next sweep, which is within a minute (`recount/2`).

Internal.
""".

-export([new/0, owner/2, units/1, take/3, give_back/3, recount/2]).

-export_type([shares/0, owner/0]).

-opaque shares() :: ets:table().
-doc "The owner of facts: a client of a server, as a digest of the server's `id` and the tenant.".
-type owner() :: <<_:64>>.

%% What all facts may count.
-define(MOST, 200_000).
%% Most declarations that do not fit into an id have fewer bytes.
-define(UNIT_BYTES, 1_024).

-doc "Makes an empty table of counts, which belongs to the calling process.".
-spec new() -> shares().
new() ->
    erlmcp_tenant_counts:new().

-doc "Returns the owner of the facts of a tenant's sessions at the server `Server`.".
-spec owner(Server :: term(), erlmcp_gate:tenant()) -> owner().
owner(Server, Tenant) ->
    binary:part(crypto:hash(sha256, term_to_binary({Server, Tenant}, [deterministic])), 0, 8).

-doc """
Returns how much a fact with the value `Value` counts: 1, and 1 more for each whole KiB of `Value`.
""".
-spec units(Value :: term()) -> pos_integer().
units(Value) ->
    1 + erlang:external_size(Value) div ?UNIT_BYTES.

-doc """
Counts a fact that is about to be stored. Returns `full` instead if all facts would then count more
than 200,000, or those of its owner more than the room that is left. Returns `ok`, and counts
nothing, if the process that made the table has ended.
""".
-spec take(owner(), Value :: term(), shares()) -> ok | full.
take(Owner, Value, Shares) ->
    Units = units(Value),
    try
        Free = ?MOST - ets:lookup_element(Shares, facts, 2, 0) - Units,
        case erlmcp_tenant_counts:take({facts, Owner}, Units, Free, Shares) of
            ok -> take_of_all(Owner, Units, Shares);
            {full, _} -> full
        end
    catch
        %% The process of the table has ended. The next one counts anew.
        error:badarg -> ok
    end.

%% Another client may have taken the room meanwhile.
take_of_all(Owner, Units, Shares) ->
    case erlmcp_tenant_counts:take(facts, Units, ?MOST, Shares) of
        ok ->
            ok;
        {full, _} ->
            ok = erlmcp_tenant_counts:give_back({facts, Owner}, Units, Shares),
            full
    end.

-doc """
Takes a fact out of the counts: it was not stored, or was deleted. Does nothing if the process that
made the table has ended.
""".
-spec give_back(owner(), Value :: term(), shares()) -> ok.
give_back(Owner, Value, Shares) ->
    Units = units(Value),
    try
        ok = erlmcp_tenant_counts:give_back({facts, Owner}, Units, Shares),
        erlmcp_tenant_counts:give_back(facts, Units, Shares)
    catch
        error:badarg -> ok
    end.

-doc """
Replaces all counts by `Counts`, the units of all facts in the store for each owner. Raises `badarg`
if the process that made the table has ended.
""".
-spec recount(#{owner() => pos_integer()}, shares()) -> ok.
recount(Counts, Shares) ->
    OfOwners = #{{facts, Owner} => Count || Owner := Count <- Counts},
    Rows = OfOwners#{facts => lists:sum(maps:values(Counts))},
    lists:foreach(fun({Key, _}) ->
        is_map_key(Key, Rows) orelse ets:delete(Shares, Key)
    end, ets:tab2list(Shares)),
    true = ets:insert(Shares, maps:to_list(Rows)),
    ok.
