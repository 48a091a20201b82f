-module(erlmcp_bench_server_metrics).
-moduledoc """
The metrics of a server under test, in its own node: its ended requests, its open connections and
its waiting requests. A middleware measures the times of its handlers.
""".

-export([options/1, start/1, families/0]).
-export([timed/3]).

-doc "Adds the measuring middleware to the options of a server.".
-spec options(erlmcp:options()) -> erlmcp:options().
options(Options) ->
    Options#{middleware => [fun ?MODULE:timed/3 | maps:get(middleware, Options, [])]}.

-doc """
Serves the metrics of this node's server on `Port` of the loopback interface, or on a free port if
`Port` is 0. The server must have the options of `options/1`. Returns the port, or the reason why
the listener cannot start.
""".
-spec start(Port :: inet:port_number()) -> {ok, inet:port_number()} | {error, term()}.
start(Port) ->
    ok = persistent_term:put(?MODULE, erlmcp_bench_histogram:new()),
    erlmcp_bench_scrape:start(?MODULE, Port, fun families/0).

-doc false.
timed(Arguments, Context, Next) ->
    Start = erlang:monotonic_time(microsecond),
    try
        Next(Arguments, Context)
    after
        record(max(1, erlang:monotonic_time(microsecond) - Start))
    end.

record(Microseconds) ->
    case persistent_term:get(?MODULE, none) of
        %% Requests before the start of the metrics are not counted.
        none -> ok;
        Histogram -> erlmcp_bench_histogram:record(Histogram, Microseconds)
    end.

-doc """
Returns the metrics of this node's server. The times of its handlers are there if `start/1` was
called. The other metrics have no values while the server restarts.
""".
-spec families() -> [erlmcp_bench_prometheus:family()].
families() ->
    {Requests, Connections, Waiting} = counted(erlmcp_bench_host:server()),
    [#{name => ~"mcp_server_requests_total", type => counter,
       help => ~"Answered requests, including refusals.", series => Requests}]
    ++ [#{name => ~"mcp_server_processing_duration_ms", type => histogram,
          help => ~"Milliseconds that a handler took.",
          series => [{[], times(Histogram)}]}
        || Histogram <- [persistent_term:get(?MODULE, none)], Histogram =/= none]
    ++ [#{name => ~"mcp_server_connection_active", type => gauge,
       help => ~"Open connections.", series => Connections},
     #{name => ~"mcp_server_message_queue_length", type => gauge,
       help => ~"Requests that wait to run.", series => Waiting}].

times(Histogram) ->
    Cells = erlmcp_bench_histogram:to_list(Histogram),
    erlmcp_bench_prometheus:histogram(Cells,
                                      lists:sum([UpToUs * Count || {UpToUs, Count} <- Cells])).

%% A restarting server has no metrics.
counted(Server) when is_pid(Server) ->
    maybe
        #{error_budget := #{requests := Requests}} ?= erlmcp:info(Server),
        {ok, _, #{gate := Gate}} ?= erlmcp_registry:whereis(Server),
        {[{[], Requests}], [{[], erlmcp_gate:held(Gate, connections)}],
         [{[], erlmcp_gate:held(Gate, waiting)}]}
    else
        _ -> {[], [], []}
    end;
counted(_) ->
    {[], [], []}.
