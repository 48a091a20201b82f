-module(erlmcp_console_growth).
-moduledoc """
Finds the values of a node that grow so steadily that they look like a leak: memory, processes,
ports or atoms. Such a value grows in each of the last four steps of five seconds. In no step does
it grow by less than a quarter of the mean. Pure.
""".

-export([growth/1, is_suspected/1]).

%% Milliseconds of a step, and the steps of a growth. With fewer steps a growth is only suspected.
-define(STEP_MS, 4_500).
-define(STEPS, 4).
-define(SUSPECTED, 2).
%% The share of the mean that the growth of each step has at least.
-define(STEADY, 0.25).

-doc """
Returns the values that grow steadily, and have a bound that they have not met. `Readings` are those
of the last minute, the newest first.
""".
-spec growth(Readings :: [erlmcp_console_view:reading(), ...]) ->
    [erlmcp_console_causes:growth()].
growth([#{places := Places} | _] = Readings) ->
    Samples = samples(?STEPS, Readings),
    [#{name => Name, per_second => PerSecond, met_ms => round(1000 * Room / PerSecond),
       place => maps:get(Name, Places, none), tool => called(hd(Samples), lists:last(Samples))}
     || {Name, PerSecond, Room} <- growing(?STEPS, Samples)].

-doc """
Returns `true` if a value has begun to grow. Then it is worthwhile to find out where it grows
(`erlmcp_console_places:look/0`). The readings are those of the last minute, the newest first.
""".
-spec is_suspected([erlmcp_console_view:reading()]) -> boolean().
is_suspected(Readings) ->
    growing(?SUSPECTED, samples(?SUSPECTED, Readings)) =/= [].

%% Readings that are a step from each other.
samples(_, []) -> [];
samples(0, [Reading | _]) -> [Reading];
samples(Steps, [#{at := At} = Reading | Earlier]) ->
    [Reading | samples(Steps - 1, lists:dropwhile(fun(#{at := Then}) ->
                                                      At - Then < ?STEP_MS
                                                  end, Earlier))].

growing(Steps, Samples) when length(Samples) =:= Steps + 1 ->
    [#{node := #{bounds := Bounds} = Node} | _] = Samples,
    [{Name, PerSecond, Room}
     || Name := Bound <- Bounds, Room <- [room(Name, Bound, Node)], is_number(Room), Room > 0,
        PerSecond <- steady([{At, used(Name, Of)} || #{at := At, node := Of} <- Samples])];
growing(_, _) ->
    [].

%% The room that is left. The memory is that of the machine, or the node's own.
room(_, #{limit := infinity}, _) ->
    infinity;
room(memory, #{used := Used, limit := Limit},
     #{memory := #{total := Total}, memory_bytes := Bytes}) when is_integer(Bytes)
->
    min(Limit - Used, Bytes - Total);
room(_, #{used := Used, limit := Limit}, _) ->
    Limit - Used.

used(memory, #{memory := #{total := Total}}) -> Total;
used(Name, #{bounds := Bounds}) -> map_get(used, map_get(Name, Bounds)).

steady([{At, Last} | Earlier] = Values) ->
    {First, Start} = lists:last(Earlier),
    Mean = (Last - Start) / (At - First),
    Rates = [(Value - Before) / (Now - Then)
             || {{Now, Value}, {Then, Before}} <- lists:zip(lists:droplast(Values), Earlier)],
    [1000 * Mean || Mean > 0, lists:min(Rates) >= ?STEADY * Mean].

%% The tool that has all calls of the time. Of several, the busiest one need not leak.
called(#{metrics := Now}, #{metrics := Then}) ->
    #{tools := Tools} = erlmcp_console_window:between(without_times(Then), without_times(Now)),
    case [{Name, Calls} || #{name := Name, calls := Calls} <- Tools, Calls > 0] of
        [Only] -> Only;
        _ -> none
    end.

without_times(#{tools := Tools} = Metrics) ->
    Metrics#{methods := #{}, resources := [], prompts := [],
             tools := [Row#{latency := Latency#{histogram := []}}
                       || #{latency := Latency} = Row <- Tools]}.
