-module(erlmcp_descriptors).
-moduledoc """
The descriptors that the node may have open, and what of them is not for connections. A socket is a
port of the node, and ports are counted by the runtime: so all listeners of all servers are seen
here, and what else the node has open. Files are no ports; some descriptors are always spared.

Few left, a connection is refused and told so; fewer left, it is closed untold. What is left then is
for whatever must be opened, and for connections that the acceptors have at that moment.

Internal.
""".

-export([spare/1, acceptors/1, measure/1, state/0, refusal/1, closed/0, report/0]).

%% Of so many, a fourth is spared, within these bounds; of few, half.
-define(LEAST, 256).
-define(MOST, 1_024).
%% Listeners whose acceptors may all have a connection at once.
-define(LISTENERS, 5).
-define(ACCEPTORS, 100).
%% Seconds from one line in the log to the next.
-define(QUIET, 60).
%% Words: from when on a line may be logged, in seconds, and how many were closed untold since.
-define(LOGGED, 1).
-define(CLOSED, 2).

-doc """
Returns how many of so many descriptors, or ports, no connection has that is let in.

## Examples

```erlang
1> [erlmcp_descriptors:spare(Number) || Number <- [300, 1024, 65_536]].
[150, 256, 1024]
```
""".
-spec spare(pos_integer()) -> non_neg_integer().
spare(Number) ->
    min(?MOST, max(Number div 4, min(?LEAST, Number div 2))).

-doc """
Returns how many processes of a listener accept connections where the node may have so many
descriptors: each may have one that nobody has counted yet.
""".
-spec acceptors(Number :: pos_integer()) -> pos_integer().
acceptors(Number) ->
    max(1, min(?ACCEPTORS, closing_begins_at(Number) div ?LISTENERS)).

%% What is left when connections are closed untold, and when they are told.
closing_begins_at(Number) -> spare(Number) div 2.

refusing_begins_at(Number) -> spare(Number) * 3 div 4.

-doc "Keeps how many descriptors and ports the node may have, and returns the less of both.".
-spec measure(erlmcp_machine:facts()) -> pos_integer().
measure(#{ports := Ports} = Facts) ->
    Number = min(Ports, maps:get(descriptors, Facts, Ports)),
    Words = case persistent_term:get(?MODULE, none) of
        #{words := Known} -> Known;
        none -> words()
    end,
    persistent_term:put(?MODULE, #{number => Number, words => Words,
                                   scarce => Number - refusing_begins_at(Number),
                                   spent => Number - closing_begins_at(Number)}),
    Number.

words() ->
    Words = atomics:new(2, []),
    ok = atomics:put(Words, ?LOGGED, erlang:monotonic_time(second)),
    Words.

-doc "Returns `scarce` where connections are to be refused, `spent` where they are to be closed.".
-spec state() -> ok | scarce | spent.
state() ->
    case persistent_term:get(?MODULE, none) of
        none ->
            ok;
        #{scarce := Scarce, spent := Spent} ->
            case erlang:system_info(port_count) of
                Ports when Ports =< Scarce -> ok;
                Ports when Ports =< Spent -> scarce;
                _ -> spent
            end
    end.

-doc "Returns the refusal of a connection where descriptors are scarce, and logs it.".
-spec refusal(RetryAfterMs :: non_neg_integer()) -> erlmcp_refusal:refusal().
refusal(RetryAfterMs) ->
    ok = report(),
    #{scarce := Scarce} = persistent_term:get(?MODULE),
    erlmcp_refusal:new(resource_exhausted, ~"the server is short of descriptors",
                       #{limit => Scarce, observed => erlang:system_info(port_count),
                         retry_after_ms => RetryAfterMs}).

-doc "A connection was closed untold.".
-spec closed() -> ok.
closed() ->
    #{words := Words} = persistent_term:get(?MODULE),
    ok = atomics:add(Words, ?CLOSED, 1),
    report().

-doc "Logs that connections find no descriptor: a line a minute.".
-spec report() -> ok.
report() ->
    #{words := Words, number := Number} = persistent_term:get(?MODULE),
    Now = erlang:monotonic_time(second),
    Due = atomics:get(Words, ?LOGGED),
    case Now >= Due andalso atomics:compare_exchange(Words, ?LOGGED, Due, Now + ?QUIET) of
        ok ->
            erlmcp_log:report(warning,
                #{what => descriptors_exhausted, limit => Number,
                  open => erlang:system_info(port_count),
                  closed => atomics:exchange(Words, ?CLOSED, 0),
                  advice => <<"connections are refused or closed for want of descriptors: let the "
                              "node have more (ulimit -n), or serve fewer (connections)">>});
        _ ->
            ok
    end.
