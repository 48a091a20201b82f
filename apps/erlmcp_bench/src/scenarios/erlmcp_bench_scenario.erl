-module(erlmcp_bench_scenario).
-moduledoc """
Runs a load scenario: clients that come and go in phases, in an open loop, from this node. The
servers run in nodes of their own, or are any MCP servers.

```erlang
erlmcp_bench_scenario:run(baseline, #{duration_s => 30}).
```
""".

-export([run/2]).

-export_type([options/0]).

-doc """
Options of a scenario.

- `nodes`: the number of servers to start (1; in `chaos` 2). Or `urls`: the URLs of other
  servers, at least one.
- `transport`: `tcp` (the default), `http1` or `http2`. For URLs, `http1` (the default) or `http2`.
- `duration_s`: the seconds of the whole scenario. Each phase keeps its share.
- `scale`: the factor of the numbers of clients (1).
- `profile`: clients of this profile instead of the scenario's own.
- `metrics`: the port of the generator's metrics. The nodes use the next ports. 0 selects free
  ports. Without this option no metrics are served.
- `requests`, `era`, `headers`: members of the plan of each load (`t:erlmcp_load:plan/0`). Without
  `requests` the tool `echo` is called.
- `timeout_ms`: the milliseconds after which a request without an answer has failed (10,000).
- `on_event`: a fun that gets each event, in the process that runs the scenario.
""".
-type options() :: #{
    nodes => pos_integer(), urls => [binary(), ...], transport => tcp | http1 | http2,
    duration_s => number(), scale => number(), profile => erlmcp_bench_profile:name(),
    metrics => inet:port_number(), requests => [term()], era => term(),
    headers => [{binary(), binary()}], timeout_ms => pos_integer(),
    on_event => fun((erlmcp_bench_scenario_run:event()) -> term())
}.

-define(TIMEOUT_MS, 10_000).
-define(LAST_PORT, 65_535).

-doc """
Runs a scenario to its end in another process, which exits if the calling process ends. Returns the
scenario's outcome.

## Errors

- `{unknown_scenario, Name}`, `{unknown_profile, Name}`: there is no scenario or profile `Name`.
- `{bad_option, Key, Expected}`: there is no such option, or its value is invalid. `scale` and
  `duration_s` are above 0.
- `{needs_own_nodes, Name}`: `urls` is given, and the scenario `Name` has faults. Faults are only
  injected into nodes that the scenario started.
- `{node, Reason}`, `{load, Reason}`, `{metrics, Reason}`: a node, a load, or the listener of the
  generator's metrics could not be started.
- `{Application, Reason}`: erlmcp, or an application that it needs, could not be started.
- `{crashed, Reason}`: the run did not reach its end.
""".
-spec run(erlmcp_bench_scenarios:name(), options()) ->
    {ok, erlmcp_bench_scenario_outcome:outcome()} | {error, term()}.
run(Name, Given) ->
    maybe
        {ok, Found} ?= erlmcp_bench_scenarios:find(Name),
        {ok, Profiled} ?= profiled(Found, Given),
        Scenario = published(Profiled, Given),
        ok ?= own_nodes(Scenario, Given),
        {ok, Options} ?= checked(maps:to_list(maps:merge(defaults(Scenario, Given), Given)), #{}),
        ok ?= ports(Options),
        {ok, _} ?= application:ensure_all_started(erlmcp),
        ok = erlmcp_bench_environment:begins(),
        awaited(Scenario, Options)
    end.

profiled(Scenario, #{profile := Name}) ->
    maybe
        {ok, Profile} ?= erlmcp_bench_profile:find(Name),
        {ok, Scenario#{clients := Profile}}
    end;
profiled(Scenario, _) ->
    {ok, erlmcp_bench_scenarios:on_cores(erlang:system_info(schedulers_online), Scenario)}.

%% Published figures are those of the scenario's own clients and requests.
published(Scenario, #{profile := _}) -> Scenario#{marks := []};
published(Scenario, #{requests := _}) -> Scenario#{marks := []};
published(Scenario, #{era := {session, _}}) -> Scenario#{marks := []};
published(Scenario, _) -> Scenario.

own_nodes(#{name := Name, faults := [_ | _]}, #{urls := _}) -> {error, {needs_own_nodes, Name}};
own_nodes(_, _) -> ok.

defaults(#{nodes := Nodes} = Scenario, Given) ->
    Where = case Given of
        #{urls := _} -> #{transport => http1};
        #{} -> #{transport => tcp, nodes => Nodes}
    end,
    Where#{duration_s => erlmcp_bench_scenario_plan:seconds(Scenario),
           scale => 1, timeout_ms => ?TIMEOUT_MS, on_event => fun(_) -> ok end}.

checked([], Options) ->
    {ok, Options};
checked([{Key, Value} | Rest], Options) ->
    case is_good(Key, Value) of
        true -> checked(Rest, Options#{Key => Value});
        Expected -> {error, {bad_option, Key, Expected}}
    end.

%% The metrics of the nodes are on the ports after that of the generator.
ports(#{metrics := Port, nodes := Nodes}) when Port > 0, Port + Nodes > ?LAST_PORT ->
    {error, {bad_option, metrics, ~"a port with a next one for each node"}};
ports(_) ->
    ok.

is_good(Key, Value) when Key =:= duration_s; Key =:= scale ->
    is_number(Value) andalso Value > 0 orelse ~"a number above 0";
is_good(Key, Value) when Key =:= nodes; Key =:= timeout_ms ->
    is_integer(Value) andalso Value > 0 orelse ~"a positive integer";
is_good(urls, Value) ->
    is_list(Value) andalso Value =/= [] orelse ~"one URL at least";
is_good(transport, Value) ->
    lists:member(Value, [tcp, http1, http2]) orelse ~"tcp, http1 or http2";
is_good(metrics, Value) ->
    is_integer(Value) andalso Value >= 0 andalso Value =< ?LAST_PORT orelse ~"a port";
is_good(on_event, Value) ->
    is_function(Value, 1) orelse ~"a fun of one argument";
is_good(Key, _) ->
    lists:member(Key, [profile, requests, era, headers]) orelse ~"no such option".

%% The loads, the nodes and the proxy are linked to the process that runs the scenario, and always
%% end with it. The listener of the metrics is not. If that process is killed, the caller stops it.
awaited(Scenario, Options) ->
    Caller = self(),
    Metrics = make_ref(),
    {Pid, Monitor} = spawn_monitor(fun() ->
        Run = try
            erlmcp_bench_scenario_run:run(Scenario, Options#{name => Metrics}, Caller)
        after
            _ = erlmcp_bench_scrape:stop(Metrics)
        end,
        Caller ! {self(), Run},
        Gone = monitor(process, Caller),
        receive {'DOWN', Gone, process, Caller, _} -> ok end
    end),
    Outcome = receive
        {Pid, Came} ->
            true = exit(Pid, shutdown),
            receive {'DOWN', Monitor, process, Pid, _} -> Came end;
        {'DOWN', Monitor, process, Pid, Reason} -> {error, {crashed, Reason}}
    end,
    _ = erlmcp_bench_scrape:stop(Metrics),
    Outcome.
