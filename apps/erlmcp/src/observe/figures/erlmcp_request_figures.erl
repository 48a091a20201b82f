-module(erlmcp_request_figures).
-moduledoc """
The figures of requests that belong together, computed from what a meter has counted: a row, and its
failures by their errors and codes. Pure.

Internal.
""".

-export([failures/1, sum/1, row/1]).

-export_type([counted/0, error/0]).

-type error() :: {Name :: atom(), Code :: integer() | other | none}.
-type counted() :: {erlmcp_meter_counts:figures(), #{error() => erlmcp_meter_counts:times()}}.

-doc """
Adds up the times of failures that have the same `Requests`, error and code. `Requests` is any term
that stands for requests that are counted together. Returns the sums for each `Requests`, by error
and code.
""".
-spec failures([{Requests, Error :: atom(), Code :: integer() | other | none,
                 erlmcp_meter_counts:times()}]) ->
    #{Requests => #{error() => erlmcp_meter_counts:times()}}.
failures(Failures) ->
    lists:foldl(fun({Requests, Error, Code, Times}, Known) ->
        Add = fun(Others) -> add(Times, Others) end,
        Known#{Requests => maps:update_with({Error, Code}, Add, Times,
                                            maps:get(Requests, Known, #{}))}
    end, #{}, Failures).

add({Sum, Counts}, {Other, OtherCounts}) ->
    {Sum + Other, erlmcp_histogram:sum(Counts, OtherCounts)}.

-doc "Adds up the counts of requests that were counted separately.".
-spec sum([counted(), ...]) -> counted().
sum([First | Others]) ->
    lists:foldl(fun sum/2, First, Others).

sum({One, Failed}, {Other, OtherFailed}) ->
    #{bytes_in := In, bytes_out := Out, sum := Sum, counts := Counts} = One,
    #{bytes_in := MoreIn, bytes_out := MoreOut, sum := MoreSum, counts := MoreCounts} = Other,
    {#{bytes_in => In + MoreIn, bytes_out => Out + MoreOut, sum => Sum + MoreSum,
       counts => erlmcp_histogram:sum(Counts, MoreCounts)},
     maps:merge_with(fun(_, Times, More) -> add(Times, More) end, Failed, OtherFailed)}.

-doc "Returns the figures of requests from their counts.".
-spec row(counted()) -> erlmcp:metrics_row().
row({#{bytes_in := In, bytes_out := Out, sum := Sum, counts := Counts}, Failed}) ->
    #{count := Answered} = Latency = erlmcp_histogram:fine(Sum, Counts),
    Failures = [#{error => Error, code => Code, latency => erlmcp_histogram:coarse(Time, Buckets)}
                || {Error, Code} := {Time, Buckets} <- maps:iterator(Failed, ordered)],
    Of = fun(Wanted) ->
        lists:sum([Count || #{error := Error, latency := #{count := Count}} <- Failures,
                            Wanted(Error)])
    end,
    Errors = Of(fun(Error) -> Error =:= tool_error end),
    Cancelled = Of(fun(Error) -> Error =:= cancelled end),
    Refusals = Of(fun(Error) -> Error =/= tool_error andalso Error =/= cancelled end),
    #{count => Answered + Errors + Cancelled + Refusals, errors => Errors, refusals => Refusals,
      cancelled => Cancelled, bytes_in => In, bytes_out => Out, latency => Latency,
      failures => Failures}.
