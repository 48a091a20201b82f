-module(erlmcp_bench_heap).
-moduledoc """
What the processes of a server under test hold while it is loaded: looked at once a second, by a
process that waits for nobody but the server.
""".

-export([watch/1, most/1]).

-export_type([watch/0]).

-opaque watch() :: {pid(), Before :: non_neg_integer(), atomics:atomics_ref()} | none.

-define(PAUSE, 1_000).

-doc "Looks at the node of a target from now on, if it is one of ours.".
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

-doc "Ends it: the bytes that they held in the beginning, and the most that was seen.".
-spec most(watch()) -> {Before :: non_neg_integer(), Most :: non_neg_integer()} | none.
most({Pid, Before, Most}) ->
    Monitor = monitor(process, Pid),
    Pid ! stop,
    %% It may be waiting for the node, which is there until then.
    receive {'DOWN', Monitor, process, Pid, _} -> ok end,
    {Before, atomics:get(Most, 1)};
most(none) ->
    none.
