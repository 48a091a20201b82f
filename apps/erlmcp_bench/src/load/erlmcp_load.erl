-module(erlmcp_load).
-moduledoc """
Load for any MCP server. In a closed loop, connections send as fast as they are answered. In an open
loop, requests are due at a rate, regardless of earlier requests.

Each reply that comes in time is checked to its last byte, and each measured request has an outcome
in the report. In an open loop a latency begins when its request was due, so the stalls of a server
are measured in full (no coordinated omission).

`t:plan/0` describes a load, and `t:report/0` its outcome. To measure a server, run the generator in
a node of its own, as `erlmcp load` does.
""".

-export([run/1, start/1, start_all/1, await/1, stop/1, set_rate/2, meters/1, peek/1]).

-export_type([plan/0, load/0, report/0, sample/0]).

-type plan() :: erlmcp_load_plan:plan().
-type report() :: erlmcp_load_report:report().
-type sample() :: erlmcp_load_sample:sample().

-doc "A running load. It ends with the process that started it.".
-opaque load() :: pid().

-type reason() :: {bad_option, atom()} | {host, term()} | {open, term()}.

-doc """
Runs a load from its beginning to its end, and returns its report. If the calling process ends, so
does the load.

## Errors

* `{bad_option, Name}` if an option of the plan is missing, unknown, invalid, or invalid for the
  target
* `{host, Reason}` if the target's host name cannot be resolved to an IPv4 address
* `{open, Reason}` if no connection could be opened, with the reason of the last attempt
""".
-spec run(plan()) -> {ok, report()} | {error, reason()}.
run(Plan) ->
    maybe
        {ok, Load} ?= start(Plan),
        {ok, await(Load)}
    end.

-doc """
Starts a load. Returns the load as soon as each of its connections was opened or has failed to open.
The requests begin at that time. The errors are those of `run/1`.
""".
-spec start(plan()) -> {ok, load()} | {error, reason()}.
start(Plan) ->
    [Started] = start_all([Plan]),
    Started.

-doc """
Starts several loads, which open their connections at the same time. Returns the loads and errors of
`start/1` in the order of the plans, when all connections were opened or have failed to open.
""".
-spec start_all([plan()]) -> [{ok, load()} | {error, reason()}].
start_all(Plans) ->
    Begun = [case erlmcp_load_plan:settings(Plan) of
                 {ok, Settings} -> {ok, erlmcp_load_run:start(Settings)};
                 {error, _} = Error -> Error
             end || Plan <- Plans],
    [maybe
         {ok, Load} ?= Each,
         ok ?= erlmcp_load_run:await_open(Load),
         {ok, Load}
     end || Each <- Begun].

-doc """
Waits for the end of a load, and returns its report to each process that waits. Then the load is
gone, and every later call with it fails.
""".
-spec await(load()) -> report().
await(Load) ->
    erlmcp_load_run:await(Load).

-doc """
Ends a load early: stops sending, waits for outstanding replies, and returns the report. The load is
gone then, as after `await/1`.
""".
-spec stop(load()) -> report().
stop(Load) ->
    erlmcp_load_run:stop(Load).

-doc """
Changes the rate of an open loop to `RequestsPerSecond`, from now on. It is an error if the loop is
not open, or if the rate is not above 0. A load with a rate in per cent sets its own rate when its
warm-up ends. From then on, the rate of an earlier call no longer holds.
""".
-spec set_rate(load(), RequestsPerSecond :: number()) -> ok | {error, {bad_option, loop}}.
set_rate(Load, Rate) ->
    erlmcp_load_run:set_rate(Load, Rate).

-doc """
Returns the meters of a load, which any process may read at any time (`erlmcp_load_sample:read/1`)
without waiting for the load. Fails after the report was returned.
""".
-spec meters(load()) -> erlmcp_load_sample:meters().
meters(Load) ->
    erlmcp_load_run:meters(Load).

-doc """
Returns the counters of a load while it runs, and what generator and server have used. Fails after
the report was returned.
""".
-spec peek(load()) -> erlmcp_load_sample:mark().
peek(Load) ->
    erlmcp_load_run:peek(Load).
