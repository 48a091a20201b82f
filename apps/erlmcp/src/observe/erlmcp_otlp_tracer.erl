-module(erlmcp_otlp_tracer).
-moduledoc """
The library's own tracer. It decides by chance whether a trace that begins here is recorded, and
encodes the recorded spans when they end (`m:erlmcp_otlp`). They wait in a buffer until they are
sent (`m:erlmcp_span_buffer`).

A span with a parent has a context even if it is not recorded, so that the servers of the whole
trace agree on that.

Internal.
""".

-behaviour(erlmcp_tracer).

-export([new/2, is_recorded/1, counts/1, forget/0]).
-export([start_span/2, end_span/3]).

-export_type([config/0]).

-opaque config() ::
    {Threshold :: binary() | all, {erlmcp_span_buffer:buffer(), Exporter :: atom()}}.

%% The random hexadecimal digits that decide whether a trace is recorded.
-define(DIGITS, 6).

-doc """
Returns a tracer that records the part `Ratio` of the traces that begin here. Its spans go to a
buffer, which the process registered as `Exporter` empties.
""".
-spec new(Ratio :: number(), {erlmcp_span_buffer:buffer(), Exporter :: atom()}) ->
    erlmcp_tracer:tracer().
new(Ratio, Buffer) ->
    {?MODULE, {threshold(Ratio), Buffer}}.

%% Random digits are less than the threshold, as text, for that part of the traces.
threshold(Ratio) when Ratio >= 1 ->
    all;
threshold(Ratio) ->
    iolist_to_binary(io_lib:format("~*.16.0b", [?DIGITS, trunc(Ratio * (1 bsl (4 * ?DIGITS)))])).

-doc "Returns `true` if a trace that begins now is to be recorded.".
-spec is_recorded(config()) -> boolean().
is_recorded({all, _}) ->
    true;
is_recorded({Threshold, _}) ->
    erlmcp_span_ids:digits(?DIGITS) < Threshold.

-doc "Returns how many spans of a tracer wait, were sent and were dropped.".
-spec counts(config()) -> erlmcp_span_buffer:counts().
counts({_, {Buffer, _}}) ->
    erlmcp_span_buffer:counts(Buffer).

-doc false.
start_span(#{parent := #{sampled := Sampled} = Parent} = Start, _) ->
    started(Sampled, Parent#{span_id := erlmcp_span_ids:span()}, Start);
start_span(#{parent := none} = Start, _) ->
    {Trace, Span} = erlmcp_span_ids:root(),
    Context = #{trace_id => Trace, span_id => Span, sampled => true},
    started(true, with_baggage(Start, Context), Start).

with_baggage(#{baggage := Baggage}, Context) -> Context#{baggage => Baggage};
with_baggage(_, Context) -> Context.

started(true, Context, #{attributes := Attributes} = Start) ->
    {Context, {Context, Start, encoded(Attributes, get(?MODULE))}};
started(false, Context, _) ->
    {Context, none}.

%% The requests of a connection often have the same attributes, so the last ones are kept encoded.
encoded(Attributes, {Attributes, Encoded}) ->
    Encoded;
encoded(Attributes, _) ->
    Encoded = erlmcp_otlp:attributes(Attributes),
    _ = put(?MODULE, {Attributes, Encoded}),
    Encoded.

-doc "Deletes what the calling process keeps from one span to the next.".
-spec forget() -> ok.
forget() ->
    _ = erase(?MODULE),
    erlmcp_span_ids:forget().

-doc false.
end_span(Span, End, {_, Buffer}) ->
    Encoded = erlmcp_otlp:span(Span, End, erlang:time_offset(microsecond)),
    erlmcp_span_buffer:add(Encoded, Buffer).
