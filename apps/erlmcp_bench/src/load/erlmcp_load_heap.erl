-module(erlmcp_load_heap).
-moduledoc """
Sets the initial heap of a group's process. Its data about thousands of connections survives most
collections. A large heap is collected by a separate thread, which must first get a processor;
meanwhile the group stands still. A large initial heap reduces hundreds of collections a second to a
few.
""".

-export([start_link/4]).

%% Words for each connection, for the heap and for received binaries, and the maximum of either.
-define(WORDS, 600).
-define(MOST, 8_000_000).

-doc "Starts the process of a group of `Connections` connections, linked to the calling process.".
-spec start_link(module(), Function :: atom(), [term()], Connections :: pos_integer()) -> pid().
start_link(Module, Function, Arguments, Connections) ->
    Words = min(?MOST, Connections * ?WORDS),
    case spawn_opt(Module, Function, Arguments,
                   [link, {min_heap_size, Words}, {min_bin_vheap_size, Words}]) of
        %% Only a spawn with a monitor returns a tuple.
        Pid when is_pid(Pid) -> Pid
    end.
