-module(erlmcp_bench_scenario_sums).
-moduledoc """
Sums of request outcomes: how many were sent, how each of them ended, and how long the answered ones
took. Pure.
""".

-export([none/0, of_counters/1, of_report/1, since/2, add/2, sum/1]).
-export([ended/1, error_percent/1, zone/1, histogram/1, total_us/1]).

-export_type([sums/0]).

-doc """
The sums. `sent` counts the requests that were sent. Each of them ends as `answered`, as `refused`
with an error, as `failed` without a reply, or as `wrong`. The reply to a `wrong` request does not
match it. `unsent` requests were due and found no connection. `bytes_in` and `bytes_out` are those
that the clients received and sent. `latency` counts the answers in each bucket of a histogram, by
the bucket's upper end in microseconds.
""".
-type sums() :: #{
    sent := non_neg_integer(), answered := non_neg_integer(), refused := non_neg_integer(),
    failed := non_neg_integer(), wrong := non_neg_integer(), unsent := non_neg_integer(),
    bytes_in := non_neg_integer(), bytes_out := non_neg_integer(),
    latency := erlmcp_bench_histogram:entries()
}.

-define(COUNTS, [sent, answered, refused, failed, wrong, unsent, bytes_in, bytes_out]).

-doc "Returns sums that are all zero.".
-spec none() -> sums().
none() ->
    (#{Name => 0 || Name <- ?COUNTS})#{latency => []}.

-doc "Returns the sums of a load from its counters while it runs.".
-spec of_counters(erlmcp_load_sample:counters()) -> sums().
of_counters(#{counts := Counts, latency := Latency}) ->
    %% The counters are read one after the other while the load continues. So an answer is one with
    %% a latency, and every ended request was sent.
    Sums = (maps:with(?COUNTS, Counts))#{answered := lists:sum([N || {_, N} <- Latency]),
                                         latency => Latency},
    Sums#{sent := max(map_get(sent, Sums), ended(Sums))}.

-doc "Returns the sums of a load that has ended.".
-spec of_report(erlmcp_load:report()) -> sums().
of_report(#{refused := Refused, failed := Failed, latency := Latency, all_bytes_in := In,
            all_bytes_out := Out} = Report) ->
    (maps:with(?COUNTS, Report))#{refused := lists:sum(maps:values(Refused)),
                                  failed := lists:sum(maps:values(Failed)),
                                  bytes_in => In, bytes_out => Out,
                                  latency => erlmcp_bench_histogram:to_list(Latency)}.

-doc "Returns how much the sums of one load have grown from `Earlier` to `Later`.".
-spec since(Later :: sums(), Earlier :: sums()) -> sums().
since(Later, Earlier) ->
    maps:intersect_with(fun(latency, Now, Then) -> erlmcp_bench_histogram:since(Now, Then);
                           (_, Now, Then) -> Now - Then
                        end, Later, Earlier).

-doc "Adds two sums.".
-spec add(sums(), sums()) -> sums().
add(More, Sums) ->
    maps:intersect_with(fun(latency, One, Other) -> joined(One, Other);
                           (_, One, Other) -> One + Other
                        end, More, Sums).

joined([{UpTo, One} | Ones], [{UpTo, Other} | Others]) ->
    [{UpTo, One + Other} | joined(Ones, Others)];
joined([{One, _} = First | Ones], [{Other, _} | _] = Others) when One < Other ->
    [First | joined(Ones, Others)];
joined([_ | _] = Ones, [First | Others]) -> [First | joined(Ones, Others)];
joined([], Others) -> Others;
joined(Ones, []) -> Ones.

-doc "Adds up any number of sums.".
-spec sum([sums()]) -> sums().
sum([]) -> none();
sum([Sums]) -> Sums;
%% In pairs: the sum of many is long, and is thus copied a few times only.
sum(All) -> sum(pairs(All)).

pairs([One, Other | Rest]) -> [add(One, Other) | pairs(Rest)];
pairs(Rest) -> Rest.

-doc "Returns how many requests have ended: answered, refused, failed or wrong.".
-spec ended(sums()) -> non_neg_integer().
ended(#{answered := Answered} = Sums) when is_integer(Answered) ->
    Answered + bad(Sums).

bad(#{refused := Refused, failed := Failed, wrong := Wrong}) when
    is_integer(Refused), is_integer(Failed), is_integer(Wrong)
->
    Refused + Failed + Wrong.

%% Returns the number of due requests without a good answer.
errors(#{unsent := Unsent} = Sums) when is_integer(Unsent) ->
    bad(Sums) + Unsent.

-doc """
Returns the percentage of errors among all requests that ended or were never sent, or 0.0 if there
are no such requests.
""".
-spec error_percent(sums()) -> float().
error_percent(#{unsent := Unsent} = Sums) ->
    case ended(Sums) + Unsent of
        0 -> 0.0;
        Due -> 100 * errors(Sums) / Due
    end.

-doc """
Returns the zone of the error budget for the share of errors among all requests that ended or were
never sent.
""".
-spec zone(sums()) -> erlmcp_error_budget_window:zone().
zone(#{unsent := Unsent} = Sums) ->
    erlmcp_error_budget_window:zone(ended(Sums) + Unsent, errors(Sums)).

-doc "Returns the histogram of the latencies of all answers.".
-spec histogram(sums()) -> erlmcp_bench_histogram:histogram().
histogram(#{latency := Entries}) ->
    erlmcp_bench_histogram:from_list(Entries).

-doc """
Returns the sum of the latencies of all answers, in microseconds. Each latency counts as the upper
end of its bucket.
""".
-spec total_us(sums()) -> number().
total_us(#{latency := Entries}) ->
    lists:sum([UpToUs * Count || {UpToUs, Count} <- Entries]).
