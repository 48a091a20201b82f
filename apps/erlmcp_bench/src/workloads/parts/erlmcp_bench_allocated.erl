-module(erlmcp_bench_allocated).
-moduledoc """
Counts the bytes that an operation allocates in its own process, whether it keeps them or not. The
bytes are those of the words on its heap, of received messages, and of the binaries outside of the
heap that it refers to. Memory of other processes and of tables is not counted.
""".

-export([bytes_per_operation/1]).

%% Operations that are counted, and unmeasured ones before them.
-define(OPERATIONS, 1_000).
-define(WARM, 32).
%% Words of the first heap. A heap that hardly ever has to grow makes the count exact.
-define(WORDS, 1_048_576).
%% The parts of a process's memory that are in use, in words.
-define(IN_USE, [heap_size, old_heap_size, mbuf_size, bin_vheap_size, bin_old_vheap_size]).

-doc """
Returns the bytes that one operation allocates, the mean of many. `Work` has the funs of a plan of
`m:erlmcp_bench_operations`. If the operation crashes, the calling process exits with the reason.

## Examples

```erlang
1> erlmcp_bench_allocated:bytes_per_operation(
1>     #{prepare => fun(_) -> [] end, operation => fun(Kept) -> [kept | Kept] end}).
16.0
```
""".
-spec bytes_per_operation(Work :: erlmcp_bench_components:work()) -> float().
bytes_per_operation(Work) ->
    Session = trace:session_create(?MODULE, self(), []),
    Caller = self(),
    {Pid, Monitor} = erlmcp_one_shot:start(fun() ->
        ok = worked(Work),
        true = unlink(Caller),
        ok
    end, [link, {min_heap_size, ?WORDS}]),
    1 = trace:process(Session, Pid, true, [garbage_collection]),
    Pid ! {?MODULE, traced},
    Reason = receive {'DOWN', Monitor, process, Pid, Why} -> Why end,
    Delivered = trace:delivered(Session, Pid),
    receive {trace_delivered, Pid, Delivered} -> ok end,
    true = trace:session_destroy(Session),
    case Reason of
        {outcome, ok} -> grown(in_use(Pid)) * erlang:system_info(wordsize) / ?OPERATIONS;
        _ -> exit(Reason)
    end.

worked(#{prepare := Prepare, operation := Operation} = Work) ->
    First = done(?WARM, Operation, Prepare(1)),
    receive {?MODULE, traced} -> ok end,
    true = garbage_collect(),
    Last = done(?OPERATIONS, Operation, First),
    true = garbage_collect(),
    Finish = maps:get(finish, Work, fun(_) -> ok end),
    _ = Finish(Last),
    ok.

done(0, _, State) -> State;
done(More, Operation, State) -> done(More - 1, Operation, Operation(State)).

%% The words in use before and after each collection, without those before the first.
in_use(Pid) ->
    receive
        {trace, Pid, Event, Figures} ->
            [{Event, lists:sum([proplists:get_value(Part, Figures) || Part <- ?IN_USE])}
             | in_use(Pid)]
    after 0 ->
        []
    end.

%% Between the end of a collection and the beginning of the next one, the words in use grow by all
%% that was allocated.
grown([{Event, After}, {_, Before} | More])
  when Event =:= gc_major_end; Event =:= gc_minor_end ->
    Before - After + grown(More);
grown([_ | Events]) ->
    grown(Events);
grown([]) ->
    0.
