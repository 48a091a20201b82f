-module(erlmcp_load_heap).
-moduledoc """
How much memory the process of a group of connections begins with. What it knows of thousands of
connections outlives most collections, and a large heap is collected by a thread of its own, which
has to get a processor first; meanwhile the group stands still. With room for all that it knows and
what it makes of some thousand answers, there are a few collections in a second and not hundreds.
""".

-export([start_link/4]).

%% Words for each connection, of the heap and of the binaries that came; and at most, of either.
-define(WORDS, 600).
-define(MOST, 8_000_000).

-doc "Starts the process of a group of so many connections, linked to the calling one.".
-spec start_link(module(), Function :: atom(), [term()], Connections :: pos_integer()) -> pid().
start_link(Module, Function, Arguments, Connections) ->
    Words = min(?MOST, Connections * ?WORDS),
    case spawn_opt(Module, Function, Arguments,
                   [link, {min_heap_size, Words}, {min_bin_vheap_size, Words}]) of
        %% With a monitor there would be more.
        Pid when is_pid(Pid) -> Pid
    end.
