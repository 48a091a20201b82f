-module(erlmcp_bench_capacity).
-moduledoc """
What measured points say of more parts than were measured: `m:erlmcp_bench_usl` fitted to the
results of the sweeps `scaling_schedulers` and `scaling_nodes`, and what that comes to in words.
Pure.

Nodes on one machine share its cores, so what they answer together shows how that machine is
divided and not what more machines carry. For those stands what a request costs: with N nodes that
do not share their cores, N times the cores could be busy with requests, each of which takes the
CPU time that was measured with N nodes beside each other. What is between machines (a network, a
store that they share) is not in it.
""".

-export([models/1, origin/1, said/1, predicted/2]).

-export_type([model/0]).

-doc "`parts` says what N counts; `cores` what one of them has, where the points are of CPU time.".
-type model() :: #{
    id := binary(), title := binary(), parts := binary(), points := [erlmcp_bench_usl:point()],
    cores => pos_integer(),
    fit := {ok, erlmcp_bench_usl:model()} | {error, term()},
    sources := [erlmcp_bench_figures:result()]}.

-doc "The models that the results have points for.".
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

swept(Sweep, N, Measure, Results) ->
    [Result || {_, #{~"sweep" := Of, N := Parts, Measure := Value}} = Result <- Results,
               Of =:= Sweep, is_integer(Parts), Parts > 0, is_number(Value), Value > 0].

cores(#{~"environment" := #{~"cores" := Cores}}) when is_integer(Cores) -> Cores;
cores(#{}) -> 0.

-doc "Where the points come from.".
-spec origin(model()) -> binary().
origin(#{cores := _}) -> ~"from CPU time";
origin(#{}) -> ~"measured".

-doc "What the points and the fit say, in sentences.".
-spec said(model()) -> iodata().
said(#{points := Points, parts := Parts, fit := {error, {too_few_points, Have, Wanted}}}) ->
    {Least, One} = lists:min(Points),
    {Most, Many} = lists:max(Points),
    text("~b ~ts answer ~ts times what ~b ~ts. No model: it wants ~b different numbers of ~ts, and "
         "there are ~b.",
         [Most, Parts, number(Many / One), Least, answers(Least), Wanted, Parts, Have]);
said(#{points := Points, parts := Parts, fit := {ok, Fit}} = Model) ->
    #{lambda := Lambda, sigma := Sigma, kappa := Kappa, errors := Errors,
      off := #{rms_percent := Rms, worst_percent := Worst}} = Fit,
    {Most, _} = lists:max(Points),
    [of_what(Model),
     text("The universal scalability law (Gunther) fitted to ~b points of 1 to ~b ~ts: lambda ~ts, "
          "sigma ~ts, kappa ~ts. It is off by ~ts % in the mean (root mean square) and by ~ts % at "
          "worst. ~ts Beyond ~b there are no points.",
          [length(Points), Most, Parts, coefficient(lambda, Lambda, Errors),
           coefficient(sigma, Sigma, Errors), coefficient(kappa, Kappa, Errors),
           number(Rms), number(Worst), peak(erlmcp_bench_usl:peak(Fit), Parts), Most])].

of_what(#{cores := Cores}) ->
    text("Not measured on machines, but from what a request costs: ~b cores of each machine, over "
         "the CPU time of a request while so many nodes ran beside each other on one machine. What "
         "is between machines is not in it. ", [Cores]);
of_what(#{}) ->
    [].

answers(1) -> ~"answers";
answers(_) -> ~"answer".

coefficient(Name, Value, Errors) ->
    case Errors of
        #{Name := Error} -> [number(Value), " ± ", number(Error)];
        #{} -> number(Value)
    end.

peak({peak, N, X}, Parts) when round(N) =:= 1 ->
    text("By it nothing is won by more than one of the ~ts; one answers ~ts a second.",
         [Parts, number(X)]);
peak({peak, N, X}, Parts) ->
    text("By it nothing is won beyond about ~b ~ts, which answer ~ts a second.",
         [round(N), Parts, number(X)]);
peak({ceiling, X}, Parts) ->
    text("By it no number of ~ts answers more than ~ts a second.", [Parts, number(X)]);
peak(unlimited, Parts) ->
    text("It found nothing that ~ts wait for or agree on.", [Parts]).

-doc "What the model says that so many parts answer in a second.".
-spec predicted(model(), [pos_integer()]) -> [{N :: pos_integer(), MsgPerS :: float()}].
predicted(#{fit := {ok, Fit}}, Parts) ->
    [{N, erlmcp_bench_usl:throughput(Fit, N)} || N <- Parts];
predicted(#{fit := {error, _}}, _) ->
    [].

text(Format, Values) ->
    <<_/binary>> = unicode:characters_to_binary(io_lib:format(Format, Values)).

number(Value) -> erlmcp_bench_text:number(Value).
