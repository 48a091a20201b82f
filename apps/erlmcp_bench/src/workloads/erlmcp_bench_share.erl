-module(erlmcp_bench_share).
-moduledoc """
What a load generator leaves of a machine to the server that it measures there. Each scheduler of
either node that finds nothing to do looks for work in the queues of its node's others; where the
nodes have more schedulers together than there are cores, it takes time for that from those who
have something to do. A generator takes less of a request than a server: half of its schedulers,
and at least one, do its work.
""".

-export([half/1]).

-doc """
Calls a function while this node has half of its schedulers online, and at least one. Gives how many
these are, and what the function gave. One at a time in a node: the flag is the node's.
""".
-spec half(fun(() -> Value)) -> {Schedulers :: pos_integer(), Value}.
half(Do) ->
    Online = erlang:system_info(schedulers_online),
    Half = max(1, Online div 2),
    _ = erlang:system_flag(schedulers_online, Half),
    try
        {Half, Do()}
    after
        erlang:system_flag(schedulers_online, Online)
    end.
