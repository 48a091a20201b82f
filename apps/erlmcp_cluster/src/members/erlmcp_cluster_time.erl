-module(erlmcp_cluster_time).
-moduledoc """
The time of day, as the nodes of a cluster agree on it. The store has times that one node has
written, and others compare with theirs. The time is Erlang's monotonic time plus an offset, which
`m:erlmcp_cluster_clock` finds. So a clock that jumps changes nothing until the next comparison.
Before the first comparison the time is Erlang's.

Internal.
""".

-export([now/1, may_delete/0, report/0]).
-export([offset/0, agree/2, forget/0]).

-export_type([report/0]).

-doc """
The clock of this node, compared with those of the others. Its `state` is `right`, or `apart` from
them by more than a minute. The state is `doubtful` if some clocks differ by more than a minute, and
no node knows which one is right. `ahead_s` is by how many seconds the clock is ahead of the others:
negative if it is behind, and 0 if it is `right`.
""".
-type report() :: #{state := right | doubtful | apart, ahead_s := integer()}.

-doc "Returns the time since 1970, as the nodes agree on it.".
-spec now(second | millisecond) -> integer().
now(Unit) ->
    erlang:convert_time_unit(erlang:monotonic_time() + offset(), native, Unit).

-doc "Returns `true` if this node may delete data that is too old: its clock is not `doubtful`.".
-spec may_delete() -> boolean().
may_delete() ->
    #{state := State} = report(),
    State =/= doubtful.

-doc """
Returns the result of the last comparison of clocks. Before the first one the clock counts as
`right`.
""".
-spec report() -> report().
report() ->
    {_, Report} = agreed(),
    Report.

-doc """
Returns the difference between the agreed time and Erlang's monotonic time, in native units. Before
the first comparison it is `erlang:time_offset/0`.
""".
-spec offset() -> integer().
offset() ->
    {Offset, _} = agreed(),
    Offset.

-doc """
Stores the result of a comparison: `offset/0` and `report/0` return its two parts from now on.
""".
-spec agree(Offset :: integer(), report()) -> ok.
agree(Offset, Report) ->
    persistent_term:put(?MODULE, {Offset, Report}).

-doc "Forgets all comparisons, as if there had been none: the time is Erlang's again.".
-spec forget() -> ok.
forget() ->
    _ = persistent_term:erase(?MODULE),
    ok.

agreed() ->
    case persistent_term:get(?MODULE, none) of
        none -> {erlang:time_offset(), #{state => right, ahead_s => 0}};
        Agreed -> Agreed
    end.
