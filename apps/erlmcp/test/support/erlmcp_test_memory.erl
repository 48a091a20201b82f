-module(erlmcp_test_memory).
-moduledoc "Watches how much memory the node uses while something runs.".

-export([watch/1, freed/0]).

%% Milliseconds between two looks.
-define(LOOK, 5).

-doc """
Begins to watch the memory, and returns a fun. The fun ends the watch, and returns by how many bytes
the memory had grown at most. The watch also ends with the calling process.

Memory that one scheduler frees for another counts as used until the other has run, for hundreds of
milliseconds on a busy machine. So if the node seems to use more than `Bound` bytes, the memory that
its processes report counts in place of what is allocated for them.
""".
-spec watch(Bound :: pos_integer()) -> fun(() -> integer()).
watch(Bound) ->
    _ = [garbage_collect(Pid) || Pid <- processes()],
    ok = freed(),
    Start = {erlang:memory(total), held()},
    Caller = self(),
    {Pid, Monitor} = spawn_monitor(fun() ->
        look(Start, Bound, monitor(process, Caller), 0)
    end),
    fun() ->
        Pid ! stop,
        receive
            {'DOWN', Monitor, process, Pid, {grown, Most}} -> Most;
            {'DOWN', Monitor, process, Pid, Reason} -> error(Reason)
        end
    end.

look(Start, Bound, Caller, Most) ->
    Grown = max(Most, grown(Start, Bound)),
    receive
        stop -> exit({grown, max(Grown, grown(Start, Bound))});
        {'DOWN', Caller, process, _, _} -> ok
    after ?LOOK ->
        look(Start, Bound, Caller, Grown)
    end.

grown({Total, Held}, Bound) ->
    case erlang:memory(total) - Total of
        Grown when Grown < Bound -> Grown;
        Grown -> min(Grown, held() - Held)
    end.

held() ->
    lists:sum([Bytes || Pid <- processes(), {memory, Bytes} <- [process_info(Pid, memory)]])
        + erlang:memory(system).

-doc "Waits until each scheduler has freed the memory that others have left to it.".
-spec freed() -> ok.
freed() ->
    _ = erts_debug:set_internal_state(available_internal_state, true),
    try
        ok = erts_debug:set_internal_state(wait, deallocations)
    catch
        %% Only one process may wait at a time.
        error:badarg -> receive after ?LOOK -> freed() end
    end.
