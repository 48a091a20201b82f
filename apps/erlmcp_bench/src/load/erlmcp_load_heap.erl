-module(erlmcp_load_heap).
-moduledoc """
How much memory the process of a group of connections begins with. What it knows of thousands of
connections outlives most collections, and a large heap is collected by a thread of its own, which
has to get a processor first; meanwhile the group stands still. With room for all that it knows and
what it makes of some thousand answers, there are a few collections in a second and not hundreds.
Pure.
""".

-export([options/1]).

%% Words for each connection, of the heap and of the binaries that came; and at most, of either.
-define(WORDS, 600).
-define(MOST, 8_000_000).

-doc "The options of a process that has so many connections. It is linked to the calling one.".
-spec options(Connections :: pos_integer()) ->
    [link | {min_heap_size | min_bin_vheap_size, Words :: pos_integer()}].
options(Connections) ->
    Words = min(?MOST, Connections * ?WORDS),
    [link, {min_heap_size, Words}, {min_bin_vheap_size, Words}].
