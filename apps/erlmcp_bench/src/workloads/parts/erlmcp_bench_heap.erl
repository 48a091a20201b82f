-module(erlmcp_bench_heap).
-moduledoc """
Samples the memory of the processes of a server under load once a second, in a process of its own.
""".

-export([watch/1, most/1]).

-export_type([watch/0]).

-opaque watch() :: {pid(), Before :: non_neg_integer(), atomics:atomics_ref()} | none.

-define(PAUSE, 1_000).

-doc "Starts to sample the node of a target, if we started it.".
-spec watch(#{node => erlmcp_bench_target:target(), atom() => term()}) -> watch().
watch(#{node := Target}) ->
    Before = held(Target),
    Most = atomics:new(1, []),
    ok = atomics:put(Most, 1, Before),
    {spawn_link(fun() -> looks(Target, Most) end), Before, Most};
watch(_) ->
    none.

held(Target) ->
    erlmcp_bench_target:call(Target, erlang, memory, [processes]).

looks(Target, Most) ->
    receive stop -> ok
    after ?PAUSE ->
        ok = atomics:put(Most, 1, max(atomics:get(Most, 1), held(Target))),
        looks(Target, Most)
    end.

-doc "Stops sampling. Returns the bytes at the beginning, and the most that were seen.".
-spec most(watch()) -> {Before :: non_neg_integer(), Most :: non_neg_integer()} | none.
most({Pid, Before, Most}) ->
    Monitor = monitor(process, Pid),
    Pid ! stop,
    %% The process may be waiting for the node, which runs until then.
    receive {'DOWN', Monitor, process, Pid, _} -> ok end,
    {Before, atomics:get(Most, 1)};
most(none) ->
    none.
