-module(erlmcp_bench_memory_page).
-moduledoc """
What `docs/performance.md` says of what is held open: the memory of one (`m:erlmcp_bench_memory`),
beside what it may be. Pure.
""".

-export([section/1]).

-define(STATE, ~"memory_state_bytes_per_item").
-define(RSS, ~"memory_rss_bytes_per_item").

-doc "The section for the workloads of a baseline, as Markdown; nothing where it has none of them.".
-spec section(Workloads :: [#{binary() => term()}]) -> iodata().
section(Workloads) ->
    case [Workload || #{~"benchmark" := ~"memory"} = Workload <- Workloads] of
        [] ->
            [];
        Held ->
            [~"\n### What is held open\n\n",
             ~"`erlmcp bench memory`: bytes that one of so many costs while nobody uses it; of\n",
             ~"calls, while they run. Heap and state is what the node has more of, of all kinds.\n",
             ~"What is left is so when all of them have ended. Growth is what one of the second\n",
             ~"half costs, over one of the first.\n\n",
             ~"| workload | of | heap and state | goal | RSS | goal | left | growth | opened/s |\n",
             ~"| --- | ---: | ---: | --- | ---: | --- | ---: | ---: | ---: |\n",
             [row(Workload) || Workload <- Held],
             told(Held)]
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

told(Held) ->
    [[~"\nOne change, published to ", number(Count), ~" streams: the last of them had it after ",
      number(Ms), ~" ms, and each took ", number(Us), ~" µs of the server's processor.\n"]
     || Workload <- Held,
        #{~"notified_count" := Count, ~"notified_ms" := Ms, ~"notified_cpu_us_per_item" := Us}
            <- [medians(Workload)]].

medians(#{~"figures" := Figures}) ->
    #{Name => Median || Name := #{~"median" := Median} <- Figures}.

number(Number) -> erlmcp_bench_text:number(Number).
