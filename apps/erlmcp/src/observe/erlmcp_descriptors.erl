-module(erlmcp_descriptors).
-moduledoc """
The descriptors that the node may have open, and how many of them are spared from connections. A
socket is a port of the node, and the runtime counts ports. So the count has the connections of all
servers, and everything else that the node has open except files. Some descriptors are always spared
for files.

With few descriptors free, a connection is refused with an answer; with fewer, it is closed without
one. The last ones are for files that must be opened, and for the connections that acceptors have at
that moment.

Internal.
""".

-export([spare/1, acceptors/1, measure/1, state/0, refusal/1, closed/0, report/0]).

%% A fourth of the descriptors is spared, within these bounds, and at most half.
-define(LEAST, 256).
-define(MOST, 1_024).
%% Listeners whose acceptors may all have a connection at once.
-define(LISTENERS, 5).
-define(ACCEPTORS, 100).
%% Seconds from one line in the log to the next.
-define(QUIET, 60).
%% Words: the second from which a line may be logged, and the connections that were closed without
%% an answer since the last one.
-define(LOGGED, 1).
-define(CLOSED, 2).

-doc """
Returns how many of `Number` descriptors, or ports, are spared from connections.

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
Returns how many processes of a listener accept connections if the node may have `Number`
descriptors. Each process may have a connection that is not counted yet.
""".
-spec acceptors(Number :: pos_integer()) -> pos_integer().
acceptors(Number) ->
    max(1, min(?ACCEPTORS, closing_begins_at(Number) div ?LISTENERS)).

%% The free descriptors from which on connections are closed without an answer, and refused with
%% one.
closing_begins_at(Number) -> spare(Number) div 2.

refusing_begins_at(Number) -> spare(Number) * 3 div 4.

-doc "Stores how many descriptors and ports the node may have, and returns the smaller number.".
-spec measure(erlmcp_machine:facts()) -> pos_integer().
measure(#{ports := Ports} = Facts) ->
    Number = min(Ports, maps:get(descriptors, Facts, Ports)),
    Words = case persistent_term:get(?MODULE, none) of
        #{words := Kept} -> Kept;
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

-doc "Returns `scarce` if connections must be refused, and `spent` if they must be closed.".
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

-doc "Returns the refusal of a connection for want of descriptors, and logs it.".
-spec refusal(RetryAfterMs :: non_neg_integer()) -> erlmcp_refusal:refusal().
refusal(RetryAfterMs) ->
    ok = report(),
    #{scarce := Scarce} = persistent_term:get(?MODULE),
    erlmcp_refusal:new(resource_exhausted, ~"the server is short of descriptors",
                       #{limit => Scarce, observed => erlang:system_info(port_count),
                         retry_after_ms => RetryAfterMs}).

-doc "Counts a connection that was closed without an answer, and logs it.".
-spec closed() -> ok.
closed() ->
    #{words := Words} = persistent_term:get(?MODULE),
    ok = atomics:add(Words, ?CLOSED, 1),
    report().

-doc "Logs that connections find no descriptor, at most once a minute.".
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
