-module(erlmcp_heap).
-moduledoc """
The settings of the heaps of a server's processes: their initial and largest sizes, and full sweeps.

Internal.
""".

-export([of_call/1, of_unbounded_call/0, bound_call/1, least_of_call/0, max_of_call/1]).
-export([bound_connection/1, bodies_of_connection/1, busy_connection/1, slow_connection/1]).

%% Words of the first heap of a call, in which a small request needs no garbage collection.
%% bench/peers.sh shows the difference.
-define(FIRST, 987).
%% Words of the first heap of a connection with many calls at once. With a smaller one, a garbage
%% collection copies the state of the calls after every few messages.
-define(BUSY, 16_000).
%% Bytes of a connection's memory in addition to several messages.
-define(SPARE, 16_000_000).

-doc "Returns the heap options with which the process of a call is spawned.".
-spec of_call(erlmcp_server_options:limits()) -> [{min_heap_size | max_heap_size, term()}].
of_call(Limits) ->
    [{max_heap_size, max_of_call(Limits)} | of_unbounded_call()].

-doc """
Returns the heap options for the process of a call that bounds its memory itself (`bound_call/1`).
""".
-spec of_unbounded_call() -> [{min_heap_size, pos_integer()}].
of_unbounded_call() ->
    [{min_heap_size, ?FIRST}].

-doc "Bounds the memory of the calling process as that of a call.".
-spec bound_call(erlmcp_server_options:limits()) -> ok.
bound_call(Limits) ->
    _ = process_flag(max_heap_size, max_of_call(Limits)),
    ok.

-doc """
Returns the least value that the limit `call_heap_bytes` may have: the bytes of the first heap of a
call.
""".
-spec least_of_call() -> pos_integer().
least_of_call() ->
    ?FIRST * erlang:system_info(wordsize).

-doc """
Returns the limit `call_heap_bytes` as a value of `max_heap_size`, for a process that runs user code
or keeps its results. A process over the bound is killed, without a report in the log.
""".
-spec max_of_call(erlmcp_server_options:limits()) -> map().
max_of_call(#{call_heap_bytes := Bytes}) ->
    #{size => Bytes div erlang:system_info(wordsize), kill => true, error_logger => false}.

-doc """
Bounds the memory of the calling process, which is that of a connection or of a session of HTTP+SSE.
If the process exceeds the bound, it is killed, with a report in the log. From OTP 28 on, binaries
outside of the heap count, too. In the same process, further calls have no effect until
`erlmcp_connection_cache:forget/0` runs.
""".
-spec bound_connection(erlmcp_server_options:limits()) -> ok.
%% The bound leaves room for the largest answer, for unread bytes, and for the requests that may
%% wait on the connection. On standard input, bytes that wait in the mailbox have no other bound.
bound_connection(#{message_bytes := Max, reply_bytes := Reply, unread_bytes := Unread,
                   queue_bytes_per_connection := Queued}) ->
    case erlmcp_connection_cache:bound_once() of
        false ->
            ok;
        true ->
            _ = process_flag(min_heap_size, ?FIRST),
            Bytes = max(8 * Max, Reply + Unread) + Queued + ?SPARE,
            erlmcp_memory_bound:set(Bytes, true)
    end.

-doc """
Returns how many bytes the unfinished bodies of a connection of HTTP/2 may have together. With more,
its process could exceed the bound of `bound_connection/1`, and all its requests would end.
""".
-spec bodies_of_connection(erlmcp_server_options:limits()) -> pos_integer().
bodies_of_connection(#{message_bytes := Max}) when is_integer(Max) ->
    max(8 * Max, ?SPARE div 2).

-doc """
Sets the smallest heap of the calling process, which is that of a connection. `true` is for a
connection with many calls at once, and sets a larger heap than `false`.
""".
-spec busy_connection(boolean()) -> ok.
busy_connection(Busy) ->
    _ = process_flag(min_heap_size, case Busy of
        true -> ?BUSY;
        false -> ?FIRST
    end),
    ok.

-doc """
Makes every garbage collection of the calling process, which is that of a connection, a full sweep
if `Slow` is `true`. With `false`, full sweeps are as rare as the node's default says. If there are
few requests, full sweeps make the heap less than half as large as without them.
""".
-spec slow_connection(boolean()) -> ok.
slow_connection(Slow) ->
    _ = process_flag(fullsweep_after, case Slow of
        true -> 0;
        false -> element(2, erlang:system_info(fullsweep_after))
    end),
    ok.
