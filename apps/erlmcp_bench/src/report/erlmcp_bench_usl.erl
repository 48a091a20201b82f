-module(erlmcp_bench_usl).
-moduledoc """
The universal scalability law. The throughput of N parts of a system is

```
X(N) = lambda N / (1 + sigma (N - 1) + kappa N (N - 1))
```

`lambda` is the throughput of one part alone. `sigma` is the share of the work that waits for other
parts (contention). `kappa` is the cost of agreement between parts (coherence). Pure.

Sources: N. J. Gunther, Guerrilla Capacity Planning (Springer 2007), chapters 4 to 6; and, for the
three coefficients, "A General Theory of Computational Scalability Based on Rational Functions"
(2008, arXiv:0808.1431). The fit is one of least squares, without negative coefficients.
""".

-export([fit/1, throughput/2, peak/1]).

-export_type([point/0, law/0, model/0]).

-doc "A number of parts, and the number of messages that they answered in a second.".
-type point() :: {N :: number(), MsgPerS :: number()}.

-doc "The coefficients of the law, see the module's documentation.".
-type law() :: #{lambda := float(), sigma := float(), kappa := float(), atom() => term()}.

-doc """
The coefficients that fit the points best. `errors` has the standard error of each coefficient,
except those that the fit holds at zero. `off` is the distance of the model from the points, in
percent of each point's throughput: the root mean square of all distances, and the worst one.
""".
-type model() :: #{
    lambda := float(), sigma := float(), kappa := float(),
    errors := #{lambda => float(), sigma => float(), kappa => float()},
    off := #{rms_percent := float(), worst_percent := float()},
    points := [point()]}.

%% Three coefficients fit any three points exactly: only a fourth point can disagree.
-define(FEWEST, 4).
-define(STEPS, 200).

-doc """
Fits the law to the points. The error is `too_few_points` if the points have fewer than four
different N. The law fits any three points exactly, so only a fourth point can disagree.

```erlang
> {ok, #{sigma := Sigma}} = erlmcp_bench_usl:fit([{1, 65}, {18, 996}, {36, 1652}, {72, 1853}]).
```
""".
-spec fit([point()]) -> {ok, model()} | {error, {too_few_points, Have :: non_neg_integer(),
                                                 Wanted :: pos_integer()}}.
fit(Points) ->
    case length(lists:usort([N * 1.0 || {N, _} <- Points])) of
        Have when Have < ?FEWEST -> {error, {too_few_points, Have, ?FEWEST}};
        _ -> {ok, nearest([{N * 1.0, X * 1.0} || {N, X} <- Points])}
    end.

%% A coefficient that would be negative is zero in the best model without negative ones. So each
%% coefficient is tried free and at zero.
nearest(Points) ->
    Tried = [{squares(Fit, Points), length(Free), Free, Fit}
             || Free <- [[lambda], [lambda, sigma], [lambda, kappa], [lambda, sigma, kappa]],
                Fit <- [refined(started(Free, Points), Free, Points)]],
    {_, _, Free, Fit} = lists:min(Tried),
    Fit#{errors => errors(Fit, Free, Points), off => off(Fit, Points), points => Points}.

%% Gunther's quadratic regression: N / X is linear in 1 / lambda, sigma / lambda and kappa / lambda.
%% The weights assume the same error for every X.
started(Free, Points) ->
    Rows = [{[feature(Name, N) || Name <- Free], N / X, math:pow(X * X / N, 2)}
            || {N, X} <- Points],
    [A | Others] = solved(normal(Rows)),
    Lambda = case A > 0 of
        true -> 1 / A;
        false -> lists:max([X / N || {N, X} <- Points])
    end,
    maps:merge(#{lambda => Lambda, sigma => 0.0, kappa => 0.0},
               #{Name => max(0.0, Value * Lambda) || {Name, Value} <- lists:zip(tl(Free), Others)}).

feature(lambda, _) -> 1.0;
feature(sigma, N) -> N - 1;
feature(kappa, N) -> N * (N - 1).

%% Improves the coefficients by steps of Levenberg and Marquardt.
refined(Fit, Free, Points) ->
    refined(Fit, squares(Fit, Points), 1.0e-3, Free, Points, ?STEPS).

refined(Fit, _, Damping, _, _, Steps) when Steps =:= 0; Damping > 1.0e12 ->
    Fit;
refined(Fit, Squares, Damping, Free, Points, Steps) ->
    Next = stepped(Fit, Damping, Free, Points),
    case squares(Next, Points) of
        Fewer when Fewer < Squares ->
            refined(Next, Fewer, max(1.0e-12, Damping / 10), Free, Points, Steps - 1);
        _ ->
            refined(Fit, Squares, Damping * 10, Free, Points, Steps - 1)
    end.

stepped(Fit, Damping, Free, Points) ->
    Rows = [{[slope(Name, N, Fit) || Name <- Free], X - throughput(Fit, N), 1.0}
            || {N, X} <- Points],
    {Matrix, Right} = normal(Rows),
    Damped = [[case I =:= J of true -> Value * (1 + Damping); false -> Value end
               || {J, Value} <- lists:enumerate(Row)] || {I, Row} <- lists:enumerate(Matrix)],
    maps:merge_with(fun(_, Value, Step) -> max(0.0, Value + Step) end,
                    Fit, maps:from_list(lists:zip(Free, solved({Damped, Right})))).

slope(lambda, N, Fit) -> N / divisor(Fit, N);
slope(Name, N, #{lambda := Lambda} = Fit) ->
    -Lambda * N * feature(Name, N) / math:pow(divisor(Fit, N), 2).

divisor(#{sigma := Sigma, kappa := Kappa}, N) ->
    1 + Sigma * (N - 1) + Kappa * N * (N - 1).

squares(Fit, Points) ->
    lists:sum([math:pow(X - throughput(Fit, N), 2) || {N, X} <- Points]).

-doc "Returns how many messages N parts answer in a second, by the law.".
-spec throughput(law(), N :: number()) -> float().
throughput(#{lambda := Lambda} = Model, N) -> Lambda * N / divisor(Model, N).

-doc """
Returns the number of parts with the highest throughput, at least 1, and that throughput. Without
coherence costs (`kappa`) there is no such number. Then the result is the `ceiling`, which the
throughput approaches. Without contention (`sigma`) there is no ceiling either, and the result is
`unlimited`.
""".
-spec peak(law()) -> {peak, N :: float(), MsgPerS :: float()} | {ceiling, MsgPerS :: float()}
                   | unlimited.
peak(#{kappa := Kappa, sigma := Sigma} = Model) when Kappa > 0 ->
    N = max(1.0, math:sqrt(max(0.0, 1 - Sigma) / Kappa)),
    {peak, N, throughput(Model, N)};
peak(#{lambda := Lambda, sigma := Sigma}) when Sigma > 0 -> {ceiling, Lambda / Sigma};
peak(#{}) -> unlimited.

off(Fit, Points) ->
    Percents = [100 * abs(X - throughput(Fit, N)) / X || {N, X} <- Points],
    #{rms_percent => math:sqrt(lists:sum([P * P || P <- Percents]) / length(Percents)),
      worst_percent => lists:max(Percents)}.

%% The standard errors of the linearized model, as for any regression.
errors(Fit, Free, Points) ->
    case length(Points) - length(Free) of
        Freedom when Freedom > 0 ->
            Variance = squares(Fit, Points) / Freedom,
            {Matrix, _} = normal([{[slope(Name, N, Fit) || Name <- Free], 0.0, 1.0}
                                  || {N, _} <- Points]),
            #{Name => math:sqrt(max(0.0, Variance * lists:nth(I, solved({Matrix, Unit}))))
              || {I, Name} <- lists:enumerate(Free),
                 Unit <- [[case J of I -> 1.0; _ -> 0.0 end || J <- lists:seq(1, length(Free))]]};
        _ ->
            #{}
    end.

%% Linear algebra with at most three unknowns.

normal(Rows) ->
    Size = lists:seq(1, length(element(1, hd(Rows)))),
    {[[lists:sum([W * lists:nth(I, F) * lists:nth(J, F) || {F, _, W} <- Rows]) || J <- Size]
      || I <- Size],
     [lists:sum([W * lists:nth(I, F) * Y || {F, Y, W} <- Rows]) || I <- Size]}.

%% Gaussian elimination, with the largest entry of a column as its pivot.
solved({Matrix, Right}) ->
    eliminated([{Row, Value} || {Row, Value} <- lists:zip(Matrix, Right)]).

eliminated([]) ->
    [];
eliminated(Rows) ->
    [{[Pivot | Row], Value} | Others] =
        lists:sort(fun({[A | _], _}, {[B | _], _}) -> abs(A) >= abs(B) end, Rows),
    Below = [begin
                 Factor = ratio(Head, Pivot),
                 {[B - Factor * A || {A, B} <- lists:zip(Row, Tail)], Other - Factor * Value}
             end || {[Head | Tail], Other} <- Others],
    Solved = eliminated(Below),
    [ratio(Value - lists:sum([A * S || {A, S} <- lists:zip(Row, Solved)]), Pivot) | Solved].

%% A column of zeros does not determine its unknown.
ratio(_, Pivot) when Pivot == 0 -> 0.0;
ratio(Value, Pivot) -> Value / Pivot.
