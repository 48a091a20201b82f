-module(erlmcp_console_node).
-moduledoc """
Reads what the node uses of its machine and of the runtime: memory, processors, processes, ports and
atoms. Also reads which servers the clients of the node call.
""".

-export([read/0, processors/2]).

-export_type([reading/0, bound/0]).

-doc """
A reading: memory in bytes by kind, the node's bounds with their forecasts, its pools of clients,
and the servers that its clients call. `memory_bytes` is the bound of the node's own memory, which
is not that of the machine. `run_queue` is the number of processes that wait for a scheduler.
`collections` and `reductions` are those since the node's start, and `runtime_ms` is the processor
time that the node has used. `at_ms` is a monotonic time.
""".
-type reading() :: #{
    memory := #{atom() => non_neg_integer()},
    memory_bytes := pos_integer() | infinity,
    bounds := #{memory | processes | ports | atoms => bound()},
    pools := [erlmcp_client_metrics:pool()],
    upstreams := [erlmcp_client_metrics:upstream()],
    schedulers := pos_integer(), run_queue := non_neg_integer(),
    collections := non_neg_integer(), reductions := non_neg_integer(),
    runtime_ms := non_neg_integer(), at_ms := integer()
}.
-type bound() :: #{used := non_neg_integer(), limit := non_neg_integer() | infinity,
                   forecast => erlmcp:forecast()}.

-doc "Returns a reading of the node.".
-spec read() -> reading().
read() ->
    {Collections, _, _} = statistics(garbage_collection),
    {Reductions, _} = statistics(reductions),
    {Runtime, _} = statistics(runtime),
    #{memory => maps:from_list(erlang:memory()),
      memory_bytes => application:get_env(erlmcp, memory_bytes, infinity),
      bounds => erlmcp_forecaster:add_forecasts(node, erlmcp_bounds:of_node()),
      pools => erlmcp_client_metrics:pools(),
      upstreams => erlmcp_client_metrics:upstreams(),
      schedulers => erlang:system_info(schedulers_online),
      run_queue => statistics(run_queue),
      collections => Collections, reductions => Reductions, runtime_ms => Runtime,
      at_ms => erlmcp_clock:now_ms()}.

-doc """
Returns the share of the processors' time that the node used between two readings: 0.0 to 1.0. The
first argument is the earlier reading.
""".
-spec processors(reading(), reading()) -> float().
processors(#{runtime_ms := Before, at_ms := Then},
           #{runtime_ms := Runtime, at_ms := Now, schedulers := Schedulers}) ->
    min(1.0, max(0.0, (Runtime - Before) / (max(1, Now - Then) * Schedulers))).
