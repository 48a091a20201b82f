-module(erlmcp_span_ids).
-moduledoc """
Random ids of traces and spans, as hexadecimal digits. A process generates several in advance, since
one by one they would cost more than the rest of a span. It keeps them in its process dictionary.

Internal.
""".

-export([trace/0, span/0, root/0, forget/0]).

%% Random bytes of the first ids of a process, which are those of one root, and of later ones.
-define(FIRST, 24).
-define(MORE, 960).

-doc "Returns the id of a new trace: 32 digits.".
-spec trace() -> binary().
trace() -> take(32).

-doc "Returns the id of a new span: 16 digits.".
-spec span() -> binary().
span() -> take(16).

-doc "Returns the ids of a new trace and of its first span.".
-spec root() -> {TraceId :: binary(), SpanId :: binary()}.
root() -> {trace(), span()}.

take(Digits) ->
    case get(?MODULE) of
        <<Id:Digits/binary, Rest/binary>> -> taken(Id, Rest);
        undefined -> generated(Digits, ?FIRST);
        _ -> generated(Digits, ?MORE)
    end.

generated(Digits, Bytes) ->
    <<Id:Digits/binary, Rest/binary>> =
        binary:encode_hex(crypto:strong_rand_bytes(Bytes), lowercase),
    taken(Id, Rest).

taken(Id, Rest) ->
    _ = put(?MODULE, Rest),
    Id.

-doc "Forgets the ids of the calling process, which hibernates next.".
-spec forget() -> ok.
forget() ->
    _ = erase(?MODULE),
    ok.
