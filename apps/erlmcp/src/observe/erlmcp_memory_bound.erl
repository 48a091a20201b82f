-module(erlmcp_memory_bound).
-moduledoc "Bounds the memory of the process of a connection, a server's or a client's. Internal.".

-export([set/2]).

-doc """
Bounds the memory of the calling process to `Bytes`. If the process takes more, it is killed, and
its end is logged if `Report` is `true`. From OTP 28 on, binaries outside of its heap count, too.
""".
-spec set(Bytes :: pos_integer(), Report :: boolean()) -> ok.
set(Bytes, Report) ->
    _ = process_flag(max_heap_size,
                     with_binaries(#{size => Bytes div erlang:system_info(wordsize), kill => true,
                                     error_logger => Report})),
    ok.

-if(?OTP_RELEASE >= 28).
with_binaries(Max) -> Max#{include_shared_binaries => true}.
-else.
with_binaries(Max) -> Max.
-endif.
