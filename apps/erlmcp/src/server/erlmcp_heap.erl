-module(erlmcp_heap).
-moduledoc "The memory that the processes of a server start with, and may have. Internal.".

-export([first_words/0, max_of_call/1, bound_connection/1, busy_connection/1,
         slow_connection/1]).

%% Words. One small request fits without a collection; see what bench/peers.sh says without it.
-define(FIRST, 987).
%% Words of a connection that has many calls at once: what one message leaves is a part of it, and
%% what the calls need is not copied for every few of them.
-define(BUSY, 16_000).
%% Bytes of a connection's memory beside several messages.
-define(SPARE, 16_000_000).

-doc "Returns with how many words of heap a process that serves a request starts.".
-spec first_words() -> pos_integer().
first_words() ->
    ?FIRST.

-doc """
Returns the memory bound of a process that runs user code, or holds what it gives. The process dies
quietly.
""".
-spec max_of_call(erlmcp_server_options:limits()) -> map().
max_of_call(#{call_heap_bytes := Bytes}) ->
    #{size => Bytes div erlang:system_info(wordsize), kill => true, error_logger => false}.

-doc """
Bounds the calling process, a connection's: what a client sends ahead is kept for it without a bound
of its own. There is room for the largest answer beside what may be unread, and for the requests
that may wait until fewer calls run. Counts the messages' binaries too from OTP 28 on. Done once,
however often it is called.
""".
-spec bound_connection(erlmcp_server_options:limits()) -> ok.
bound_connection(#{message_bytes := Max, reply_bytes := Reply, unread_bytes := Unread,
                   queue_bytes_per_connection := Queued}) ->
    case erlmcp_connection_cache:bound_once() of
        false ->
            ok;
        true ->
            _ = process_flag(min_heap_size, ?FIRST),
            Bytes = max(8 * Max, Reply + Unread) + Queued + ?SPARE,
            _ = process_flag(max_heap_size, max_heap(Bytes div erlang:system_info(wordsize))),
            ok
    end.

-doc "Sets whether the calling process, a connection's, has so much to do that a larger heap pays.".
-spec busy_connection(boolean()) -> ok.
busy_connection(Busy) ->
    _ = process_flag(min_heap_size, case Busy of
        true -> ?BUSY;
        false -> ?FIRST
    end),
    ok.

-doc """
Sets whether the calling process, a connection's, is asked so seldom that it may collect all of its
garbage each time: its heap is less than half as large then.
""".
-spec slow_connection(boolean()) -> ok.
slow_connection(Slow) ->
    _ = process_flag(fullsweep_after, case Slow of
        true -> 0;
        false -> element(2, erlang:system_info(fullsweep_after))
    end),
    ok.

-if(?OTP_RELEASE >= 28).
max_heap(Words) ->
    #{size => Words, kill => true, error_logger => true, include_shared_binaries => true}.
-else.
max_heap(Words) ->
    #{size => Words, kill => true, error_logger => true}.
-endif.
