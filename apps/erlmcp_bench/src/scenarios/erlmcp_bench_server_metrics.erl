-module(erlmcp_bench_server_metrics).
-moduledoc """
The metrics of a server under test, in its own node: what it counts itself (its error budget), what
its gate holds, and how long its handlers take, which a middleware measures.
""".

-export([options/1, start/1]).
-export([timed/3]).

-doc "The options of a server, with the middleware that measures.".
-spec options(erlmcp:options()) -> erlmcp:options().
options(Options) ->
    Options#{middleware => [fun ?MODULE:timed/3 | maps:get(middleware, Options, [])]}.

-doc "Publishes the metrics of the node's server on this port, or on a free one for 0.".
-spec start(inet:port_number()) -> {ok, inet:port_number()} | {error, term()}.
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
        %% What came before the metrics were published stands in none.
        none -> ok;
        Histogram -> erlmcp_bench_histogram:record(Histogram, Microseconds)
    end.

families() ->
    {Requests, Connections, Waiting} = counted(erlmcp_bench_host:server()),
    Histogram = persistent_term:get(?MODULE),
    Cells = erlmcp_bench_histogram:to_list(Histogram),
    Sum = lists:sum([UpToUs * Count || {UpToUs, Count} <- Cells]),
    [#{name => ~"mcp_server_requests_total", type => counter,
       help => ~"Requests that were answered, refusals among them.", series => Requests},
     #{name => ~"mcp_server_processing_duration_ms", type => histogram,
       help => ~"Milliseconds that a handler took.",
       series => [{[], erlmcp_bench_prometheus:histogram(Cells, Sum)}]},
     #{name => ~"mcp_server_connection_active", type => gauge,
       help => ~"Connections that are open.", series => Connections},
     #{name => ~"mcp_server_message_queue_length", type => gauge,
       help => ~"Requests that wait for a place.", series => Waiting}].

%% A server that is just started anew has nothing to say.
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
