-module(erlmcp_error_budget_window).
-moduledoc """
The sliding windows of an error budget, and their zones. A zone is a range of the share of faults
among a server's requests. The windows are a value that gets the totals once a second. Pure.

Internal.
""".

-export([zones/0, zone/2, windows/0, new/3, tick/3, report/1]).

-export_type([zone/0, window/0, windows/0, change/0]).

-type zone() :: erlmcp:zone().
-doc "The length of a window in seconds.".
-type window() :: pos_integer().
-type totals() :: {Requests :: non_neg_integer(), Faults :: non_neg_integer()}.
-type change() :: #{
    window := window(), from := zone(), to := zone(),
    requests := non_neg_integer(), faults := non_neg_integer()
}.
-opaque windows() :: #{
    least := pos_integer(),
    %% The totals at the ends of the last seconds, the newest first.
    totals := [totals(), ...],
    zones := #{window() => zone()}
}.

-doc "Returns the zones, the best first, each with the lowest percentage of faults in it.".
-spec zones() -> [{zone(), Percent :: number()}].
zones() ->
    [{green, 0}, {yellow, 0.05}, {orange, 0.1}, {red, 1}].

-doc "Returns the zone of `Faults` faults among `Requests` requests.".
-spec zone(Requests :: non_neg_integer(), Faults :: non_neg_integer()) -> zone().
zone(_, 0) ->
    green;
zone(Requests, Faults) ->
    Percent = 100 * Faults / Requests,
    {Zone, _} = lists:last([Row || {_, From} = Row <- zones(), Percent >= From]),
    Zone.

-doc "Returns the lengths of the windows in seconds.".
-spec windows() -> [window()].
windows() ->
    [10, 60, 300].

-doc """
Creates windows that are all green, from the present totals. Later a window without a fault is
green, and one with faults among fewer than `Least` requests stays in its zone.
""".
-spec new(Least :: pos_integer(), Requests :: non_neg_integer(), Faults :: non_neg_integer()) ->
    windows().
new(Least, Requests, Faults) ->
    #{least => Least, totals => [{Requests, Faults}],
      zones => #{Window => green || Window <- windows()}}.

-doc """
Moves the windows on by one second, and returns the changes of zones. `Requests` and `Faults` are
the totals at the end of the second.
""".
-spec tick(Requests :: non_neg_integer(), Faults :: non_neg_integer(), windows()) ->
    {[change()], windows()}.
tick(Requests, Faults, #{totals := Former, zones := Zones} = Windows) ->
    Totals = lists:sublist([{Requests, Faults} | Former], lists:max(windows()) + 1),
    Next = Windows#{totals := Totals},
    Changes = [#{window => Window, from => From, to => To, requests => InRequests,
                 faults => InFaults}
               || Window := From <- maps:iterator(Zones, ordered),
                  {InRequests, InFaults} <- [within(Window, Totals)],
                  To <- [zone(InRequests, InFaults, From, Next)], To =/= From],
    {Changes, Next#{zones := maps:merge(Zones, #{Window => To
                                                 || #{window := Window, to := To} <- Changes})}}.

within(Window, [{Requests, Faults} | _] = Totals) ->
    {FormerRequests, FormerFaults} = lists:nth(min(Window + 1, length(Totals)), Totals),
    {Requests - FormerRequests, Faults - FormerFaults}.

zone(Requests, Faults, Zone, #{least := Least}) when Requests < Least, Faults > 0 ->
    Zone;
zone(Requests, Faults, _, _) ->
    zone(Requests, Faults).

-doc "Returns each window with its zone, requests and faults, the shortest window first.".
-spec report(windows()) ->
    [#{window := window(), zone := zone(), requests := non_neg_integer(),
       faults := non_neg_integer()}].
report(#{totals := Totals, zones := Zones}) ->
    [#{window => Window, zone => Zone, requests => Requests, faults => Faults}
     || Window := Zone <- maps:iterator(Zones, ordered),
        {Requests, Faults} <- [within(Window, Totals)]].
