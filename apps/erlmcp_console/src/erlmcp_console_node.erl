-module(erlmcp_console_node).
-moduledoc """
Reads what the node uses of its machine: memory, processors, and the runtime's own tables. A reading
takes microseconds, most of them for the files that tell the machine's memory.
""".

-export([read/0, processors/2]).

-export_type([reading/0]).

-doc """
A reading: memory in bytes by kind, the bound of the machine's memory, entries of the runtime's
tables and their limits. `run_queue` is the number of processes that wait for a scheduler.
`runtime_ms` is the processor time that the node has used.
""".
-type reading() :: #{
    memory := #{atom() => non_neg_integer()},
    machine_memory := {Used :: non_neg_integer(), Limit :: pos_integer()} | none,
    tables := #{processes | ports | atoms => {non_neg_integer(), pos_integer()}},
    schedulers := pos_integer(), run_queue := non_neg_integer(),
    collections := non_neg_integer(), reductions := non_neg_integer(),
    runtime_ms := non_neg_integer(), at_ms := integer()
}.

-doc "Reads the node.".
-spec read() -> reading().
read() ->
    {Collections, _, _} = statistics(garbage_collection),
    {Reductions, _} = statistics(reductions),
    {Runtime, _} = statistics(runtime),
    #{memory => maps:from_list(erlang:memory()),
      machine_memory => machine_memory(),
      tables => #{processes => table(process_count, process_limit),
                  ports => table(port_count, port_limit),
                  atoms => table(atom_count, atom_limit)},
      schedulers => erlang:system_info(schedulers_online),
      run_queue => statistics(run_queue),
      collections => Collections, reductions => Reductions, runtime_ms => Runtime,
      at_ms => erlang:monotonic_time(millisecond)}.

table(Count, Limit) ->
    {erlang:system_info(Count), erlang:system_info(Limit)}.

%% The figures by which the server refuses work.
machine_memory() ->
    Bounds = #{Name => application:get_env(erlmcp, Name, Default)
               || {Name, Default, _} <- erlmcp_memory_guard:bounds()},
    case erlmcp_memory_guard:look(Bounds, erlmcp_memory_guard:open()) of
        {{Used, Limit, _}, _, _} -> {Used, Limit};
        {none, _, _} -> none
    end.

-doc "Returns the share of the processors' time that the node used between two readings.".
-spec processors(reading(), reading()) -> float().
processors(#{runtime_ms := Before, at_ms := Then},
           #{runtime_ms := Runtime, at_ms := Now, schedulers := Schedulers}) ->
    min(1.0, max(0.0, (Runtime - Before) / (max(1, Now - Then) * Schedulers))).
