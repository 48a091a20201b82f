-module(erlmcp_descriptors).
-moduledoc """
Keeps some of the node's file descriptors free for files. The descriptors in use are counted by the
node's ports: each socket is a port, and a file is none.

When few descriptors are free (`scarce`), connections are refused with an answer. When even fewer
are free (`spent`), they are closed without one.

Internal.
""".

-export([spare/1, acceptors/1, measure/1, state/0, figures/0, refusal/1, closed/0, report/0]).

%% The reserve is a fourth of the descriptors, within these bounds, and at most half of them.
-define(LEAST, 256).
-define(MOST, 1_024).
%% The number of listeners for which descriptors are kept, in case that all acceptors have just
%% accepted a connection.
-define(LISTENERS, 5).
-define(ACCEPTORS, 100).
%% Seconds between two log entries.
-define(QUIET, 60).
%% The atomics: the second from which on the next entry may be logged, and the connections closed
%% without an answer since the last one.
-define(LOGGED, 1).
-define(CLOSED, 2).

-doc """
Returns how many of `Number` file descriptors or ports are reserved for other things than
connections. The reserve is a fourth, at least 256 and at most 1,024, but never more than half.

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
descriptors: 1 to 100.
""".
-spec acceptors(Number :: pos_integer()) -> pos_integer().
acceptors(Number) ->
    max(1, min(?ACCEPTORS, closing_begins_at(Number) div ?LISTENERS)).

%% The numbers of free descriptors below which connections are closed without an answer, and are
%% refused with one.
closing_begins_at(Number) -> spare(Number) div 2.

refusing_begins_at(Number) -> spare(Number) * 3 div 4.

-doc """
Stores and returns how many descriptors the node may have: the smaller one of its limits on
descriptors and on ports, as far as they are known.
""".
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

-doc """
Returns `scarce` if new connections must be refused with an answer, `spent` if they must be closed
without one, and otherwise `ok`. Returns `ok`, too, before `measure/1` was called.
""".
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

-doc """
Returns how many descriptors are used for sockets and other ports (`observed`), and the number above
which new connections are refused (`limit`). The map is empty before `measure/1` was called.
""".
-spec figures() -> #{limit => pos_integer(), observed => non_neg_integer()}.
figures() ->
    case persistent_term:get(?MODULE, none) of
        none -> #{};
        #{scarce := Scarce} -> #{limit => Scarce, observed => erlang:system_info(port_count)}
    end.

-doc """
Logs the shortage of descriptors (`report/0`), and returns the refusal for a connection, with the
retry time `RetryAfterMs` in milliseconds. `measure/1` must have been called.
""".
-spec refusal(RetryAfterMs :: non_neg_integer()) -> erlmcp_refusal:refusal().
refusal(RetryAfterMs) ->
    ok = report(),
    erlmcp_refusal:new(resource_exhausted, ~"the server is short of descriptors",
                       (figures())#{retry_after_ms => RetryAfterMs}).

-doc """
Counts a connection that was closed without an answer, and logs the shortage (`report/0`).
`measure/1` must have been called.
""".
-spec closed() -> ok.
closed() ->
    #{words := Words} = persistent_term:get(?MODULE),
    ok = atomics:add(Words, ?CLOSED, 1),
    report().

-doc """
Logs the shortage of descriptors, at most once a minute, with the number of connections that were
closed since the last entry (`closed/0`). `measure/1` must have been called.
""".
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
                  advice => <<"connections are refused or closed since descriptors are scarce: let "
                              "the node have more (ulimit -n), or serve fewer (connections)">>});
        _ ->
            ok
    end.
