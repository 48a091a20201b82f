-module(erlmcp_bench_memory_page).
-moduledoc """
The section of `docs/performance.md` about idle items: the memory of one (`m:erlmcp_bench_memory`),
compared with its goal. Pure.
""".

-export([section/1]).

-define(STATE, ~"memory_state_bytes_per_item").
-define(RSS, ~"memory_rss_bytes_per_item").

-doc """
Returns the section for the workloads of a baseline, as Markdown, or nothing without such workloads.
""".
-spec section(Workloads :: [#{binary() => term()}]) -> iodata().
section(Workloads) ->
    case [Workload || #{~"benchmark" := ~"memory"} = Workload <- Workloads] of
        [] ->
            [];
        Held ->
            [~"\n### Memory of idle items\n\n",
             ~"`erlmcp bench memory` measures the bytes of one idle item, or of one running\n",
             ~"call. Heap and state is all memory that the item adds to the node. The column\n",
             ~"`left` is the rest after all items have ended. Growth is the cost of an item\n",
             ~"of the second half, divided by the cost of one of the first half.\n\n",
             ~"| workload | items | heap and state | goal | RSS | goal | left | growth | opened/s |\n",
             ~"| --- | ---: | ---: | --- | ---: | --- | ---: | ---: | ---: |\n",
             [row(Workload) || Workload <- Held],
             notified(Held)]
    end.

row(#{~"workload_id" := Id} = Workload) ->
    #{?STATE := State, ?RSS := Rss, ~"memory_left_bytes_per_item" := Left,
      ~"growth_ratio" := Growth, ~"opened_items_per_s" := PerSecond} = Medians = medians(Workload),
    Goals = goals(Id),
    [~"| ", lists:join(~" | ", [[$`, Id, $`], count(Workload, Medians), number(State),
                                goal(?STATE, State, Goals), number(Rss), goal(?RSS, Rss, Goals),
                                number(Left), number(Growth), number(PerSecond)]), ~" |\n"].

count(#{~"connections" := Count}, _) -> number(Count);
count(_, #{~"sample_count" := Count}) -> number(Count).

goals(Id) ->
    case erlmcp_bench_workloads:find(Id) of
        {ok, #{goals := Goals}} -> Goals;
        _ -> []
    end.

goal(Field, Value, Goals) ->
    case lists:keyfind(Field, 1, Goals) of
        {Field, Most} when Value =< Most -> [~"at most ", number(Most), ~": reached"];
        {Field, Most} -> [~"at most ", number(Most), ~": **not reached**"];
        false -> []
    end.

notified(Held) ->
    [[~"\nOne change was published to ", number(Count), ~" streams. The last stream had it after ",
      number(Ms), ~" ms. Each stream took ", number(Us), ~" µs of the server's processor.\n"]
     || Workload <- Held,
        #{~"notified_count" := Count, ~"notified_ms" := Ms, ~"notified_cpu_us_per_item" := Us}
            <- [medians(Workload)]].

medians(#{~"figures" := Figures}) ->
    #{Name => Median || Name := #{~"median" := Median} <- Figures}.

number(Number) -> erlmcp_bench_text:number(Number).
