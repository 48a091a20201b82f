-module(erlmcp_bench_capacity).
-moduledoc """
Predicts the capacity of more schedulers, nodes and machines than were measured. It fits
`m:erlmcp_bench_usl` to the results of the sweeps `scaling_schedulers` and `scaling_nodes`. Pure.

The throughput of N machines is computed. It is N times the cores of one machine, divided by the CPU
time of a request while N nodes ran on one machine. Anything between machines, such as a network or
a shared store, is not included.
""".

-export([models/1, origin/1, describe/1, predicted/2]).

-export_type([model/0]).

-doc """
A model of the throughput of N parts. `parts` says what the parts are. `fit` is the result of
`erlmcp_bench_usl:fit/1` for the points. `cores` is the number of cores of one part, if the points
come from CPU time.
""".
-type model() :: #{
    id := binary(), title := binary(), parts := binary(), points := [erlmcp_bench_usl:point()],
    cores => pos_integer(),
    fit := {ok, erlmcp_bench_usl:model()} | {error, term()},
    sources := [erlmcp_bench_figures:result()]}.

%% No machine, and no sweep, has more schedulers or nodes.
-define(MOST_PARTS, 1_000_000).

-doc """
Returns the models of schedulers, nodes and machines. A model is left out if the results have points
for fewer than two different numbers of its parts.
""".
-spec models([erlmcp_bench_figures:result()]) -> [model()].
models(Results) ->
    [Model#{fit => erlmcp_bench_usl:fit(Points)}
     || #{points := Points} = Model <- [of_throughput(~"scaling_schedulers", ~"schedulers",
                                                      ~"schedulers", Results),
                                        of_throughput(~"scaling_nodes", ~"nodes",
                                                      ~"nodes on this machine", Results),
                                        of_cpu(Results)],
        length(lists:usort([N || {N, _} <- Points])) > 1].

of_throughput(Sweep, Field, Parts, Results) ->
    Sources = swept(Sweep, Field, ~"throughput_msg_per_s", Results),
    #{id => Sweep, title => <<"Scaling with ", Parts/binary>>, parts => Parts,
      points => [{N, X} || {_, #{Field := N, ~"throughput_msg_per_s" := X}} <- Sources],
      sources => Sources}.

of_cpu(Results) ->
    Sources = swept(~"scaling_nodes", ~"nodes", ~"cpu_us_per_msg", Results),
    Cores = lists:max([0 | [cores(Fields) || {_, Fields} <- Sources]]),
    #{id => ~"scaling_machines", title => ~"More machines like this one", parts => ~"machines",
      cores => Cores,
      points => [{N, N * Cores * 1_000_000 / Us}
                 || {_, #{~"nodes" := N, ~"cpu_us_per_msg" := Us}} <- Sources, Cores > 0],
      sources => Sources}.

%% Results come from files, which may be hostile.
swept(Sweep, N, Measure, Results) ->
    [Result || {_, #{~"sweep" := Of, N := Parts, Measure := Value}} = Result <- Results,
               Of =:= Sweep, is_integer(Parts), Parts > 0, Parts =< ?MOST_PARTS,
               is_number(Value), Value > 0].

cores(#{~"environment" := #{~"cores" := Cores}}) when is_integer(Cores) -> Cores;
cores(#{}) -> 0.

-doc "Returns how the points of a model were found, as text: from CPU time, or measured.".
-spec origin(model()) -> binary().
origin(#{cores := _}) -> ~"from CPU time";
origin(#{}) -> ~"measured".

-doc "Describes the points and the fit in sentences.".
-spec describe(model()) -> iodata().
describe(#{points := Points, parts := Parts,
           fit := {error, {too_few_points, Have, Wanted}}}) ->
    {Least, One} = lists:min(Points),
    {Most, Many} = lists:max(Points),
    text("~b ~ts answer ~ts times as much as ~b. No model: it needs ~b different numbers of ~ts, "
         "and there are ~b.",
         [Most, Parts, number(Many / One), Least, Wanted, Parts, Have]);
describe(#{points := Points, parts := Parts, fit := {ok, Fit}} = Model) ->
    #{lambda := Lambda, sigma := Sigma, kappa := Kappa, errors := Errors,
      off := #{rms_percent := Rms, worst_percent := Worst}} = Fit,
    {Most, _} = lists:max(Points),
    [basis(Model),
     text("The universal scalability law (Gunther) fitted to ~b points of 1 to ~b ~ts: lambda ~ts, "
          "sigma ~ts, kappa ~ts. It is off by ~ts % in the mean (root mean square) and by ~ts % at "
          "worst. ~ts Beyond ~b there are no points.",
          [length(Points), Most, Parts, coefficient(lambda, Lambda, Errors),
           coefficient(sigma, Sigma, Errors), coefficient(kappa, Kappa, Errors),
           number(Rms), number(Worst), peak(erlmcp_bench_usl:peak(Fit), Parts), Most])].

basis(#{cores := Cores}) ->
    text("This model is computed, not measured on several machines: ~b cores of each machine, "
         "divided by the CPU time of a request while as many nodes ran on one machine. Anything "
         "between machines is not included. ", [Cores]);
basis(#{}) ->
    [].

coefficient(Name, Value, Errors) ->
    case Errors of
        #{Name := Error} -> [number(Value), " ± ", number(Error)];
        #{} -> number(Value)
    end.

peak({peak, N, X}, Parts) when round(N) =:= 1 ->
    text("By this law more than one of the ~ts gains nothing; one answers ~ts a second.",
         [Parts, number(X)]);
peak({peak, N, X}, Parts) ->
    text("By this law nothing is gained beyond about ~b ~ts, which answer ~ts a second.",
         [round(N), Parts, number(X)]);
peak({ceiling, X}, Parts) ->
    text("By this law no number of ~ts answers more than ~ts a second.", [Parts, number(X)]);
peak(unlimited, Parts) ->
    text("The fit found no contention and no coherence cost between ~ts.", [Parts]).

-doc """
Returns each number in `Parts` with the throughput that the model predicts for it, in messages a
second. The list is empty for a model without a fit.
""".
-spec predicted(model(), Parts :: [pos_integer()]) -> [{N :: pos_integer(), MsgPerS :: float()}].
predicted(#{fit := {ok, Fit}}, Parts) ->
    [{N, erlmcp_bench_usl:throughput(Fit, N)} || N <- Parts];
predicted(#{fit := {error, _}}, _) ->
    [].

text(Format, Values) ->
    <<_/binary>> = unicode:characters_to_binary(io_lib:format(Format, Values)).

number(Value) -> erlmcp_bench_text:number(Value).
