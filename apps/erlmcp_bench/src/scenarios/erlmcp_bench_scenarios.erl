-module(erlmcp_bench_scenarios).
-moduledoc """
The load scenarios as data: their clients and phases, their faults, and the marks of earlier
published figures. Pure.
""".

-export([all/0, find/1, on_cores/2]).

-export_type([name/0, scenario/0, phase/0, fault/0, mark/0]).

-type name() :: baseline | connection_flood | message_bombing | chaos | hundredfold.
-doc """
A phase. `level` has the parts of the clients that are there at its beginning and at its end.
`stops` are parts between these two that get a step of their own, unless the run is too short. Only
a rising phase has stops. `pace` is the factor of the clients' rate. A warm-up is in no step of the
outcome, and in no mark. A `cool_down` follows a peak that is more than can be served, and shows how
long the backlog lasts.
""".
-type phase() :: #{
    name := warm_up | ramp | peak | cool_down | down, seconds := pos_integer(),
    level := {From :: number(), To :: number()}, stops => [number()], pace := number()
}.
-doc """
A fault of the peak. `At`, `From` and `To` are shares of the peak's duration, from 0 to 1. Latency
is added between `From` and `To`. `mark_s` is the number of seconds in which the service must
recover.
""".
-type fault() ::
    {add_latency, From :: float(), To :: float(), #{milliseconds := pos_integer()}}
    | {drop_clients, At :: float(), #{mark_s := pos_integer()}}
    | {kill_node, At :: float(), #{mark_s := pos_integer()}}.
-doc """
A figure that was published for the step with `of_clients` clients, or for the whole peak if
`of_clients` is `peak`. A throughput is that of all clients of the step together. For a run with
fewer clients, the number of clients and a throughput are reduced in proportion.
""".
-type mark() :: #{
    of_clients := pos_integer() | peak,
    figure := throughput_msg_per_s | latency_p50_us | latency_p95_us | latency_p99_us
              | error_percent,
    value := number()
}.
-doc """
A scenario. `tolerates_errors` means that errors in the red zone do not fail the scenario. `crowd`
are clients in addition to `clients`, from the beginning to the end. `cores` is the number of cores
that the rate is for: on another machine the clients send proportionally more or fewer messages
(`on_cores/2`).
""".
-type scenario() :: #{
    name := name(), title := binary(), clients := erlmcp_bench_profile:profile(),
    phases := [phase()], marks := [mark()], tolerates_errors := boolean(), nodes := pos_integer(),
    crowd => erlmcp_bench_profile:profile(), faults := [fault()], cores => pos_integer()
}.

-doc "Returns the scenario `Name`, or an error if there is none.".
-spec find(name()) -> {ok, scenario()} | {error, {unknown_scenario, term()}}.
find(Name) ->
    case [Scenario || #{name := Of} = Scenario <- all(), Of =:= Name] of
        [Scenario] -> {ok, Scenario};
        [] -> {error, {unknown_scenario, Name}}
    end.

-doc """
Adapts a scenario to `Cores` cores. The rate of its clients and its marks of throughput are
multiplied by `Cores` and divided by the scenario's `cores`. A scenario without `cores` stays as it
is.
""".
-spec on_cores(Cores :: pos_integer(), scenario()) -> scenario().
on_cores(Cores, #{cores := For, clients := #{rate := Rate} = Clients, marks := Marks} = Scenario) ->
    Part = Cores / For,
    Scenario#{clients := Clients#{rate := Rate * Part},
              marks := [case Mark of
                            #{figure := throughput_msg_per_s, value := Value} ->
                                Mark#{value := Value * Part};
                            #{} ->
                                Mark
                        end || Mark <- Marks]};
on_cores(_, Scenario) ->
    Scenario.

-doc "Returns every scenario.".
-spec all() -> [scenario()].
all() ->
    {ok, Normal} = erlmcp_bench_profile:find(normal),
    {ok, Bomber} = erlmcp_bench_profile:find(message_bomber),
    {ok, Slow} = erlmcp_bench_profile:find(slow_client),
    [(plain(baseline, ~"clients that send steadily", Normal))#{
         phases := [steady(warm_up, 30), steady(peak, 300)],
         marks := [mark(peak, throughput_msg_per_s, 2_500), mark(peak, latency_p50_us, 15_000),
                   mark(peak, latency_p95_us, 85_000), mark(peak, latency_p99_us, 180_000),
                   mark(peak, error_percent, 0.01)]},
     (plain(connection_flood, ~"more and more clients, and then fewer",
            Normal#{clients := 500, rate := 50}))#{
         %% With 150, 250 and 350 clients of 500.
         phases := [(slope(ramp, 300, 0, 1))#{stops => [0.3, 0.5, 0.7]}, steady(peak, 180),
                    slope(down, 120, 1, 0)],
         marks := [mark(250, latency_p95_us, 125_000), mark(250, error_percent, 0.05),
                   mark(500, latency_p95_us, 285_000), mark(500, error_percent, 1.2)]},
     (plain(message_bombing, ~"far more messages than can be served", Bomber))#{
         phases := [(steady(warm_up, 30))#{pace := 0.05}, steady(peak, 300),
                    (steady(cool_down, 30))#{pace := 0.05}],
         %% The lower end of the published range, which was for 10,000 a second.
         marks := [mark(peak, throughput_msg_per_s, 7_500), mark(peak, latency_p95_us, 2_800_000),
                   mark(peak, error_percent, 12.2)],
         tolerates_errors := true},
     (plain(chaos, ~"latency, lost clients and a lost node under a steady load", Normal))#{
         phases := [steady(warm_up, 30), steady(peak, 300)],
         crowd => Slow#{clients := 200},
         faults := [{add_latency, 0.1, 0.3, #{milliseconds => 100}},
                    {drop_clients, 0.4, #{mark_s => 85}},
                    {kill_node, 0.6, #{mark_s => 42}}],
         nodes := 2, tolerates_errors := true},
     (plain(hundredfold, ~"a hundred times the connections and messages",
            #{clients => 15_000, rate => 500_000 / 15_000, bytes => 512}))#{
         %% New clients wait while the server is overloaded, so they send little until all are
         %% there.
         phases := [(slope(ramp, 60, 0, 1))#{pace := 0.05}, steady(peak, 120)],
         marks := [mark(peak, throughput_msg_per_s, 500_000), mark(peak, latency_p95_us, 50_000)],
         cores => 16}].

plain(Name, Title, Clients) ->
    #{name => Name, title => Title, clients => Clients, phases => [], marks => [],
      tolerates_errors => false, nodes => 1, faults => []}.

steady(Name, Seconds) -> slope(Name, Seconds, 1, 1).

slope(Name, Seconds, From, To) ->
    #{name => Name, seconds => Seconds, level => {From, To}, pace => 1}.

mark(Of, Figure, Value) ->
    #{of_clients => Of, figure => Figure, value => Value}.
