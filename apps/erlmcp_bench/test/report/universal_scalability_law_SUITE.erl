-module(universal_scalability_law_SUITE).
-moduledoc "The universal scalability law, fitted to curves whose coefficients are known.".

-export([suite/0, all/0]).
-export([a_known_curve_is_found/1, nothing_is_nearer_than_the_fit/1,
         published_points_give_published_fit/1, no_coefficient_is_negative/1,
         few_points_make_no_model/1, the_peak_is_where_it_is/1,
         the_error_is_that_of_the_points/1]).

-include_lib("proper/include/proper.hrl").

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [a_known_curve_is_found, nothing_is_nearer_than_the_fit, published_points_give_published_fit,
     no_coefficient_is_negative, few_points_make_no_model, the_peak_is_where_it_is,
     the_error_is_that_of_the_points].

a_known_curve_is_found(_) ->
    true = proper:quickcheck(
        ?FORALL({Curve, Ns}, {curve(), parts()},
                begin
                    {ok, Model} = erlmcp_bench_usl:fit(points(Curve, Ns)),
                    %% Twice as far as was measured, too.
                    lists:all(fun(N) ->
                                  near(erlmcp_bench_usl:throughput(Curve, N),
                                       erlmcp_bench_usl:throughput(Model, N), 1.0e-3)
                              end, [1, 2 * lists:max(Ns) | Ns])
                end),
        [{numtests, 300}, {to_file, user}]).

%% The fitted curve is no farther from the points than the curve that they were made from.
nothing_is_nearer_than_the_fit(_) ->
    true = proper:quickcheck(
        ?FORALL({Curve, Noise}, {curve(), vector(8, float(-0.1, 0.1))},
                begin
                    Points = [{N, X * (1 + Off)}
                              || {{N, X}, Off} <- lists:zip(points(Curve, lists:seq(1, 8)), Noise)],
                    {ok, Model} = erlmcp_bench_usl:fit(Points),
                    squares(Model, Points) =< 1.001 * squares(Curve, Points)
                end),
        [{numtests, 300}, {to_file, user}]).

squares(Curve, Points) ->
    lists:sum([math:pow(X - erlmcp_bench_usl:throughput(Curve, N), 2) || {N, X} <- Points]).

curve() ->
    ?LET({Lambda, Sigma, Kappa}, {float(1.0, 1.0e6), float(0.0, 0.5), float(0.0, 0.02)},
         #{lambda => Lambda, sigma => Sigma, kappa => Kappa}).

parts() ->
    ?LET(Gaps, ?LET(Size, range(4, 12), vector(Size, range(1, 6))),
         tl(lists:reverse(lists:foldl(fun(Gap, [Last | _] = Ns) -> [Last + Gap | Ns] end, [0],
                                      Gaps)))).

points(Curve, Ns) -> [{N, erlmcp_bench_usl:throughput(Curve, N)} || N <- Ns].

near(Wanted, Found, Share) -> abs(Wanted - Found) =< Share * abs(Wanted).

%% The SPEC SDM91 points of CRAN's package `usl`, and the coefficients that it finds.
published_points_give_published_fit(_) ->
    {ok, #{lambda := Lambda, sigma := Sigma, kappa := Kappa, errors := Errors} = Model} =
        erlmcp_bench_usl:fit([{1, 64.9}, {18, 995.9}, {36, 1652.4}, {72, 1853.2}, {108, 1828.9},
                              {144, 1775.0}, {216, 1702.2}]),
    true = near(89.995, Lambda, 1.0e-3),
    true = near(0.02773, Sigma, 1.0e-3),
    true = near(1.0437e-4, Kappa, 1.0e-3),
    [kappa, lambda, sigma] = lists:sort(maps:keys(Errors)),
    {peak, N, _} = erlmcp_bench_usl:peak(Model),
    true = near(96.5, N, 1.0e-2).

%% Two parts that answer more than twice of one: what is nearest has nothing that waits.
no_coefficient_is_negative(_) ->
    {ok, #{sigma := Sigma, kappa := Kappa, errors := Errors}} =
        erlmcp_bench_usl:fit([{1, 100}, {2, 230}, {4, 500}, {8, 1100}]),
    true = Sigma == 0 andalso Kappa == 0,
    %% A coefficient that is held at zero is not estimated.
    [lambda] = maps:keys(Errors).

few_points_make_no_model(_) ->
    {error, {too_few_points, 0, 4}} = erlmcp_bench_usl:fit([]),
    {error, {too_few_points, 3, 4}} =
        erlmcp_bench_usl:fit([{1, 10}, {2, 20}, {3, 30}, {3, 31}, {3.0, 29}]),
    {ok, _} = erlmcp_bench_usl:fit([{1, 10}, {2, 20}, {3, 30}, {4, 40}]).

the_peak_is_where_it_is(_) ->
    Model = fun(Sigma, Kappa) -> #{lambda => 100.0, sigma => Sigma, kappa => Kappa} end,
    {peak, 3.0, Most} = erlmcp_bench_usl:peak(Model(0.1, 0.1)),
    true = Most > erlmcp_bench_usl:throughput(Model(0.1, 0.1), 2),
    true = Most > erlmcp_bench_usl:throughput(Model(0.1, 0.1), 4),
    {ceiling, 1000.0} = erlmcp_bench_usl:peak(Model(0.1, 0.0)),
    unlimited = erlmcp_bench_usl:peak(Model(0.0, 0.0)).

the_error_is_that_of_the_points(_) ->
    Curve = #{lambda => 1000.0, sigma => 0.1, kappa => 0.001},
    Exact = points(Curve, [1, 2, 4, 8, 16]),
    {ok, #{off := #{worst_percent := None}}} = erlmcp_bench_usl:fit(Exact),
    true = None < 0.1,
    [{1, X} | Rest] = Exact,
    {ok, #{off := #{rms_percent := Rms, worst_percent := Worst}}} =
        erlmcp_bench_usl:fit([{1, X / 2} | Rest]),
    true = Worst > Rms andalso Rms > 5.
