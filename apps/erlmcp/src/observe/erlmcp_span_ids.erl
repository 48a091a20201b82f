-module(erlmcp_span_ids).
-moduledoc """
Random ids of traces and spans, as hexadecimal digits. A process generates several in advance, since
one by one they would cost more than the rest of a span. It keeps them in its process dictionary.

Internal.
""".

-export([span/0, root/0, forget/0]).

%% Random bytes of the first ids of a process, which are those of one root, and of later ones.
-define(FIRST, 24).
-define(MORE, 960).

-doc "Returns the id of a new span: 16 digits.".
-spec span() -> binary().
span() ->
    <<Span:16/binary, Rest/binary>> = digits(16),
    _ = put(?MODULE, Rest),
    Span.

-doc "Returns the ids of a new trace, 32 digits, and of its first span.".
-spec root() -> {TraceId :: binary(), SpanId :: binary()}.
root() ->
    <<Trace:32/binary, Span:16/binary, Rest/binary>> = digits(48),
    _ = put(?MODULE, Rest),
    {Trace, Span}.

%% At least so many digits.
digits(Least) ->
    case get(?MODULE) of
        Digits when byte_size(Digits) >= Least -> Digits;
        undefined -> generated(?FIRST);
        _ -> generated(?MORE)
    end.

generated(Bytes) ->
    binary:encode_hex(crypto:strong_rand_bytes(Bytes), lowercase).

-doc "Deletes the random digits that the calling process keeps.".
-spec forget() -> ok.
forget() ->
    _ = erase(?MODULE),
    ok.
