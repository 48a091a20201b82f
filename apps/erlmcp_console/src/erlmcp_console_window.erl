-module(erlmcp_console_window).
-moduledoc """
Subtracts two readings of a server's meter (`erlmcp:metrics/1`). The difference has the requests,
refusals and percentiles of the time between the readings alone. Does the same for readings of the
servers that the clients of the node call. Pure.
""".

-export([between/2, upstreams/2]).

-export_type([window/0, row/0]).

-doc """
The requests that ended within `seconds`. `faults` were the server's own. `refusals` are counted by
their number, and `tool_errors` are results with `isError`. `latency` is that of requests with a
result without `isError`, except runs of tasks and `subscriptions/listen`, which last as long as
their work or their client. `methods` counts the requests by method. `tools`, `resources` and
`prompts` count those for a definition that the server has.
""".
-type window() :: #{
    seconds := float(), requests := non_neg_integer(), faults := non_neg_integer(),
    refusals := #{Code :: pos_integer() => pos_integer()}, tool_errors := non_neg_integer(),
    latency := latency(), methods := [row()], tools := [row()], resources := [row()],
    prompts := [row()]
}.
-doc """
Percentiles of the times of `timed` requests. Each is the upper end of a bucket, at most 300
seconds, or 0 without such a request.
""".
-type latency() :: #{timed := non_neg_integer(), p50_us := non_neg_integer(),
                     p95_us := non_neg_integer(), p99_us := non_neg_integer()}.
-doc """
The requests of a method, or for a definition, that ended within the window.

- `calls`: all of them, those too that ended without an answer.
- `errors`: those with a result with `isError`.
- `refusals`: those that ended with an error.
- `failed`: all that did not end well, counted by error. Those without an answer are `cancelled`.
- `p50_us`, `p95_us`, `p99_us`: the times of the `timed` ones, which had a result without `isError`.
- `total`: all requests that ended before the end of the window.
""".
-type row() :: #{
    name := binary(), total := non_neg_integer(), calls := non_neg_integer(),
    errors := non_neg_integer(), refusals := non_neg_integer(),
    failed := #{atom() => pos_integer()}, timed := non_neg_integer(),
    p50_us := non_neg_integer(), p95_us := non_neg_integer(), p99_us := non_neg_integer()
}.

%% Methods whose time is not that of an answer. `ops/alerts.yml` and the dashboard of the metrics
%% leave them out, too.
-define(LASTING, [~"_TASK", ~"subscriptions/listen"]).
%% The last bucket has no end.
-define(LONGEST_US, 300_000_000).

-doc """
Returns the requests that ended between two readings. The first argument is the earlier reading.
""".
-spec between(erlmcp:metrics(), erlmcp:metrics()) -> window().
between(#{at_ms := Before} = Earlier, #{at_ms := At} = Later) ->
    Methods = methods(Earlier, Later),
    #{seconds => max(0.001, (At - Before) / 1000),
      requests => difference(requests, Earlier, Later),
      faults => difference(faults, Earlier, Later),
      refusals => counts(maps:get(refusals, Earlier), maps:get(refusals, Later)),
      tool_errors => lists:sum([Errors || #{errors := Errors} <- Methods]),
      latency => latency(histogram(answering(Earlier), answering(Later))),
      methods => Methods,
      tools => definitions(tools, Earlier, Later),
      resources => definitions(resources, Earlier, Later),
      prompts => definitions(prompts, Earlier, Later)}.

-doc """
Returns the requests of clients that ended between two readings, by the servers that they call. The
first list is from the earlier reading.
""".
-spec upstreams([erlmcp_client_metrics:upstream()], [erlmcp_client_metrics:upstream()]) -> [row()].
upstreams(Earlier, Later) ->
    Before = #{Name => Row || #{name := Name, row := Row} <- Earlier},
    [row(text(Name), maps:get(Name, Before, none), Row) || #{name := Name, row := Row} <- Later].

answering(#{methods := Methods}) -> maps:values(maps:without(?LASTING, Methods)).

difference(Key, Earlier, Later) ->
    max(0, maps:get(Key, Later) - maps:get(Key, Earlier, 0)).

counts(Earlier, Later) ->
    #{Key => Count - maps:get(Key, Earlier, 0)
      || Key := Count <- Later, Count > maps:get(Key, Earlier, 0)}.

methods(#{methods := Earlier}, #{methods := Later}) ->
    [row(Name, maps:get(Name, Earlier, none), Row) || Name := Row <- Later].

definitions(Kind, Earlier, Later) ->
    Before = #{Name => Row || #{name := Name} = Row <- maps:get(Kind, Earlier)},
    [row(text(Name), maps:get(Name, Before, none), Row)
     || #{name := Name} = Row <- maps:get(Kind, Later)].

text(Name) when is_atom(Name) -> atom_to_binary(Name);
text(Name) -> Name.

row(Name, none, Row) ->
    row(Name, #{count => 0, errors => 0, refusals => 0, failures => [],
                latency => #{histogram => []}}, Row);
row(Name, Before, #{count := Total} = Row) ->
    maps:merge(latency(histogram([Before], [Row])),
               #{name => Name, total => Total, calls => difference(count, Before, Row),
                 errors => difference(errors, Before, Row),
                 refusals => difference(refusals, Before, Row),
                 failed => counts(failures(Before), failures(Row))}).

failures(#{failures := Failures}) ->
    %% An error is there once for each code of its answers.
    lists:foldl(fun(#{error := Error, latency := #{count := Count}}, Sums) ->
        maps:update_with(Error, fun(Other) -> Other + Count end, Count, Sums)
    end, #{}, Failures).

%% The requests of the time, by the ends of their buckets.
histogram(Earlier, Later) ->
    lists:sort(maps:to_list(counts(buckets(Earlier), buckets(Later)))).

buckets(Rows) ->
    lists:foldl(fun(#{latency := #{histogram := Histogram}}, Sums) ->
        lists:foldl(fun({UpTo, Count}, Sum) ->
            maps:update_with(UpTo, fun(Other) -> Other + Count end, Count, Sum)
        end, Sums, Histogram)
    end, #{}, Rows).

latency(Histogram) ->
    Count = lists:sum([Of || {_, Of} <- Histogram]),
    #{timed => Count,
      p50_us => percentile(0.5, Count, Histogram), p95_us => percentile(0.95, Count, Histogram),
      p99_us => percentile(0.99, Count, Histogram)}.

percentile(_, 0, _) ->
    0;
percentile(Share, Count, Histogram) ->
    at_rank(ceil(Share * Count), Histogram).

%% Atoms are greater than numbers, so that the bucket without an end is the last.
at_rank(Rank, [{UpTo, Count} | _]) when Rank =< Count -> min(UpTo, ?LONGEST_US);
at_rank(Rank, [{_, Count} | Rest]) -> at_rank(Rank - Count, Rest).
