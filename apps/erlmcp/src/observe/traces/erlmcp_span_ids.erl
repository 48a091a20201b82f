-module(erlmcp_span_ids).
-moduledoc """
Random ids of traces and spans, as hexadecimal digits. The ids are no secrets. The state of their
generator is in the process dictionary, apart from that of `m:rand`, which a handler may seed.

Internal.
""".

-export([span/0, root/0, forget/0]).

-doc "Returns the id of a new span: 16 hexadecimal digits.".
-spec span() -> binary().
span() ->
    digits(8).

-doc "Returns the ids of a new trace, 32 hexadecimal digits, and of its first span, 16 digits.".
-spec root() -> {TraceId :: binary(), SpanId :: binary()}.
root() ->
    <<Trace:32/binary, Span:16/binary>> = digits(24),
    {Trace, Span}.

digits(Bytes) ->
    State = case get(?MODULE) of
        undefined -> rand:seed_s(default);
        Known -> Known
    end,
    {Random, Next} = rand:bytes_s(Bytes, State),
    _ = put(?MODULE, Next),
    binary:encode_hex(Random, lowercase).

-doc "Deletes the state of the generator from the dictionary of the calling process.".
-spec forget() -> ok.
forget() ->
    _ = erase(?MODULE),
    ok.
