-module(erlmcp_console_node).
-moduledoc """
Reads what the node uses of its machine: memory, processors, and the runtime's own tables. A reading
takes microseconds.
""".

-export([read/0, processors/2]).

-export_type([reading/0, bound/0]).

-doc """
A reading: memory in bytes by kind, the node's bounds with their forecasts, and its pools of
clients. `memory_bytes` is the bound of the node's own memory, which is not that of the machine.
`run_queue` is the number of processes that wait for a scheduler. `runtime_ms` is the processor time
that the node has used.
""".
-type reading() :: #{
    memory := #{atom() => non_neg_integer()},
    memory_bytes := pos_integer() | infinity,
    bounds := #{memory | processes | ports | atoms => bound()},
    pools := [{Name :: atom() | pid(), Members :: [map()]}],
    schedulers := pos_integer(), run_queue := non_neg_integer(),
    collections := non_neg_integer(), reductions := non_neg_integer(),
    runtime_ms := non_neg_integer(), at_ms := integer()
}.
-type bound() :: #{used := non_neg_integer(), limit := non_neg_integer() | infinity,
                   forecast => erlmcp:forecast()}.

-define(POOLS, 20).

-doc "Reads the node.".
-spec read() -> reading().
read() ->
    {Collections, _, _} = statistics(garbage_collection),
    {Reductions, _} = statistics(reductions),
    {Runtime, _} = statistics(runtime),
    #{memory => maps:from_list(erlang:memory()),
      memory_bytes => application:get_env(erlmcp, memory_bytes, infinity),
      bounds => erlmcp_forecaster:add_forecasts(node, erlmcp_bounds:of_node()),
      pools => pools(),
      schedulers => erlang:system_info(schedulers_online),
      run_queue => statistics(run_queue),
      collections => Collections, reductions => Reductions, runtime_ms => Runtime,
      at_ms => erlang:monotonic_time(millisecond)}.

pools() ->
    [{name(Pool), Members}
     || Pool <- lists:sublist(lists:sort(erlmcp_client_table:pools()), ?POOLS),
        [_ | _] = Members <- [members(Pool)]].

members(Pool) ->
    try
        erlmcp_pool:info(Pool)
    catch
        %% The table of a pool ends with it.
        error:badarg -> []
    end.

name(Pool) ->
    case process_info(Pool, registered_name) of
        {registered_name, Name} -> Name;
        _ -> Pool
    end.

-doc "Returns the share of the processors' time that the node used between two readings.".
-spec processors(reading(), reading()) -> float().
processors(#{runtime_ms := Before, at_ms := Then},
           #{runtime_ms := Runtime, at_ms := Now, schedulers := Schedulers}) ->
    min(1.0, max(0.0, (Runtime - Before) / (max(1, Now - Then) * Schedulers))).
