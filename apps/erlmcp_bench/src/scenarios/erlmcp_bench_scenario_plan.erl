-module(erlmcp_bench_scenario_plan).
-moduledoc """
Plans a load scenario. Its phases become steps in time, each with its clients and their rate. Groups
of clients start and stop from one step to the next. Pure.
""".

-export([steps/2, seconds/1, clients/2, part/2, change/3, split/2]).

-export_type([step/0, group/0]).

-type step() :: #{
    phase := warm_up | ramp | peak | cool_down | down, from_ms := non_neg_integer(),
    until_ms := pos_integer(),
    clients := pos_integer(), rate := float(), bytes := non_neg_integer()
}.
-doc """
Clients that were started together, and stop together. `Rate` is the number of requests that each of
these clients sends in a second.
""".
-type group() :: {Id :: term(), Clients :: pos_integer(), Rate :: float()}.

%% The most steps of a slope, and the shortest step in milliseconds: a shorter one would hold no
%% whole second.
-define(STEPS, 20).
-define(STEP_MS, 1_000).

-doc "Returns the defined duration of a scenario in seconds: the sum of its phases.".
-spec seconds(erlmcp_bench_scenarios:scenario()) -> pos_integer().
seconds(#{phases := Phases}) ->
    lists:foldl(fun(#{seconds := Seconds}, Sum) when is_integer(Seconds), is_integer(Sum) ->
                    Seconds + Sum
                end, 0, Phases).

-doc """
Returns the number of clients of a scenario, multiplied by `Scale`, and at least 1. The clients of
the crowd are not counted.
""".
-spec clients(erlmcp_bench_scenarios:scenario(), Scale :: number()) -> pos_integer().
clients(#{clients := #{clients := Clients}}, Scale) ->
    part(Clients, Scale).

-doc "Returns `Part` times `All`, rounded to a whole number of clients, and at least 1.".
-spec part(All :: pos_integer(), Part :: number()) -> pos_integer().
part(All, Part) ->
    max(1, round(All * Part)).

-doc """
Returns the steps of a scenario. `scale` is the factor of its number of clients. `duration_s` is the
number of seconds of all phases together, of which each phase keeps its share.
""".
-spec steps(erlmcp_bench_scenarios:scenario(),
            #{scale := number(), duration_s := number(), _ => _}) ->
    [step(), ...].
steps(#{phases := Phases, clients := #{rate := Rate, bytes := Bytes}} = Scenario,
      #{scale := Scale, duration_s := DurationS}) ->
    Shortened = DurationS / seconds(Scenario),
    All = clients(Scenario, Scale),
    {Steps, _} = lists:mapfoldl(
        fun(#{name := Name, seconds := Seconds, level := Level, pace := Pace} = Phase, From) ->
            Ms = max(1, round(Seconds * 1_000 * Shortened)),
            Levels = with_stops(maps:get(stops, Phase, []), levels(Level, Ms, All)),
            {[#{phase => Name, from_ms => From + Ms * (At - 1) div length(Levels),
                until_ms => From + Ms * At div length(Levels),
                clients => part(All, Part), rate => float(Rate * Pace), bytes => Bytes}
              || {At, Part} <- lists:enumerate(Levels)], From + Ms}
        end, 0, Phases),
    lists:append(Steps).

levels({Same, Same}, _, _) ->
    [Same];
levels({From, To}, Ms, All) ->
    Steps = max(1, min(?STEPS, min(Ms div ?STEP_MS, ceil(abs(To - From) * All)))),
    %% A rising slope ends with all clients. A falling one still has some in its last step.
    Parts = case To > From of
        true -> Steps;
        false -> Steps + 1
    end,
    [From + (To - From) * At / Parts || At <- lists:seq(1, Steps)].

%% Each stop takes the place of the nearest level, except of the last one. A slope with fewer levels
%% has no stops.
with_stops([_ | _] = Stops, Levels) when length(Stops) < length(Levels) ->
    Free = lists:foldl(
        fun(Stop, Left) ->
            [{_, Nearest} | _] = lists:sort([{abs(Level - Stop), Level} || Level <- Left]),
            lists:delete(Nearest, Left)
        end, lists:droplast(Levels), Stops),
    lists:sort(Free ++ Stops) ++ [lists:last(Levels)];
with_stops(_, Levels) ->
    Levels.

-doc """
Returns how `Groups` change to `Clients` clients, each of which sends `Rate` requests in a second.
`Groups` are listed newest first. Groups stop as a whole, the newest first, until at most `Clients`
clients are left. The groups in `Kept` stay, and have the new rate. `Started` clients start in new
groups.
""".
-spec change([group()], Clients :: pos_integer(), Rate :: float()) ->
    {Stopped :: [group()], Kept :: [group()], Started :: non_neg_integer()}.
change(Groups, Clients, Rate) ->
    {Surplus, Kept, There} = fewer(Groups, Clients, lists:sum([Size || {_, Size, _} <- Groups]),
                                   []),
    {Surplus, [{Id, Size, Rate} || {Id, Size, _} <- Kept], Clients - There}.

fewer([{_, Size, _} = Newest | Older], Clients, There, Stopped) when There > Clients ->
    fewer(Older, Clients, There - Size, [Newest | Stopped]);
fewer(Kept, _, There, Stopped) ->
    {Stopped, Kept, There}.

-doc """
Spreads `Clients` clients over endpoints, or other terms, as evenly as possible. Returns each
endpoint with its number of clients. Endpoints without clients are left out.
""".
-spec split(Clients :: non_neg_integer(), Endpoints :: [Endpoint]) -> [{Endpoint, pos_integer()}].
split(Clients, Endpoints) ->
    Number = length(Endpoints),
    [{Endpoint, Part} || {At, Endpoint} <- lists:enumerate(0, Endpoints),
                      Part <- [(Clients + Number - 1 - At) div Number], Part > 0].
