-module(erlmcp_load).
-moduledoc """
Load for any MCP server: so many connections that ask as fast as they are answered (a closed loop),
or so many requests a second, whatever becomes of those before (an open loop). Each reply is read
and checked, and each request is accounted for. Nothing is left out at the tail, and in an open loop
a latency begins when its request was due, so that a server that stalls cannot hide it (no
coordinated omission).

What there is to say of a load is `t:plan/0`, what comes of it is `t:report/0`. For figures of a
server let the generator run in a node of its own, as `erlmcp load` does.
""".

-export([run/1, start/1, await/1, stop/1, set_rate/2, peek/1]).

-export_type([plan/0, load/0, report/0, sample/0]).

-type plan() :: erlmcp_load_plan:plan().
-type report() :: erlmcp_load_report:report().
-type sample() :: erlmcp_load_sample:sample().

-doc "A load that runs. It ends with the process that started it.".
-opaque load() :: pid().

-type reason() :: {bad_option, atom()} | {host, term()} | {open, term()}.

-doc """
Runs a load from its beginning to its end. The calling process is the load's owner.

## Errors

* `{bad_option, Name}` if the plan says something that cannot be
* `{host, Reason}` if the target's name leads nowhere
* `{open, Reason}` if no connection could be opened, with why the last one could not
""".
-spec run(plan()) -> {ok, report()} | {error, reason()}.
run(Plan) ->
    maybe
        {ok, Load} ?= start(Plan),
        {ok, await(Load)}
    end.

-doc "Starts a load: its connections are open when this returns. Errors are those of `run/1`.".
-spec start(plan()) -> {ok, load()} | {error, reason()}.
start(Plan) ->
    maybe
        {ok, Settings} ?= erlmcp_load_plan:settings(Plan),
        erlmcp_load_run:start(Settings)
    end.

-doc "Waits for its end. A load is asked for its report once.".
-spec await(load()) -> report().
await(Load) ->
    erlmcp_load_run:await(Load).

-doc "Ends it: nothing more is sent, and what was sent is waited for.".
-spec stop(load()) -> report().
stop(Load) ->
    erlmcp_load_run:stop(Load).

-doc "Changes how many requests a second an open loop sends, from now on.".
-spec set_rate(load(), RequestsPerSecond :: number()) -> ok | {error, {bad_option, loop}}.
set_rate(Load, Rate) ->
    erlmcp_load_run:set_rate(Load, Rate).

-doc "What it has counted until now.".
-spec peek(load()) -> erlmcp_load_sample:mark().
peek(Load) ->
    erlmcp_load_run:peek(Load).
