-module(erlmcp_otlp_tracer).
-moduledoc """
The library's own tracer. It decides by chance whether a trace that begins here is recorded. A span
with a parent is recorded if its parent is. Recorded spans wait in a buffer until they are sent
(`m:erlmcp_span_buffer`).

Internal.
""".

-export([new/2, is_recorded/1, started/3, ended/5, counts/1]).

-export_type([config/0, ids/0, started/0, ended/0]).

-opaque config() ::
    {Threshold :: non_neg_integer() | all, {erlmcp_span_buffer:buffer(), Exporter :: atom()}}.
-doc """
The context of a span that is recorded, and the id of its parent, or `none` if the span has begun a
trace.
""".
-type started() :: {erlmcp_tracer:context(), Parent :: binary() | none}.
-type ids() :: {Trace :: binary(), Span :: binary(), State :: binary() | none}.
-doc """
A span that has ended. The ids of a span have the `tracestate` of its trace, or `none`. `Parent` is
`none` if the span has begun the trace. `Began` and `Ended` are in monotonic nanoseconds.
""".
-type ended() ::
    {ids(), Parent :: binary() | none, server | client | internal, Links :: [ids()],
     erlmcp_span:about(), Began :: integer(), erlmcp_span:last(), Ended :: integer()}.

%% Equal chances. The part `Ratio` of them records a trace.
-define(CHANCES, (1 bsl 24)).

-doc """
Returns a tracer that records the part `Ratio`, from 0 to 1, of the traces that begin here. Its
spans go to a buffer, which the process registered as `Exporter` empties.
""".
-spec new(Ratio :: number(), {erlmcp_span_buffer:buffer(), Exporter :: atom()}) ->
    erlmcp_tracer:tracer().
new(Ratio, Buffer) when Ratio >= 1 -> {?MODULE, {all, Buffer}};
new(Ratio, Buffer) -> {?MODULE, {trunc(Ratio * ?CHANCES), Buffer}}.

-doc """
Returns `true` if a trace that begins now is to be recorded. Each call decides anew, by chance, with
the ratio of `new/2`.
""".
-spec is_recorded(config()) -> boolean().
is_recorded({all, _}) ->
    true;
is_recorded({Threshold, _}) ->
    %% The hash of a number that comes once costs less than a random number, and is as even.
    erlang:phash2(erlang:unique_integer(), ?CHANCES) < Threshold.

-doc """
Starts a span below `Parent`. Returns its context and the span, or `none` for the span if the parent
is not recorded. A span without a parent begins a trace that is recorded. `Baggage` takes the place
of the parent's baggage, unless it is `none`.
""".
-spec started(Parent :: erlmcp_tracer:context() | none, Baggage :: binary() | none,
              erlmcp_tracer:tracer()) ->
    {erlmcp_tracer:context(), started() | none}.
started(none, Baggage, Tracer) ->
    {Trace, Span} = erlmcp_span_ids:root(),
    Context = #{trace_id => Trace, span_id => Span, sampled => true, tracer => Tracer},
    started(with_baggage(Baggage, Context), none);
started(#{trace_id := Trace, span_id := Above, sampled := Sampled} = Parent, Baggage, Tracer) ->
    Context = with_baggage(Baggage, Parent#{trace_id := own(Trace), tracer => Tracer,
                                            span_id := erlmcp_span_ids:span()}),
    case Sampled of
        true -> started(Context, own(Above));
        false -> {Context, none}
    end.

started(Context, Parent) -> {Context, {Context, Parent}}.

with_baggage(none, Context) -> Context;
with_baggage(Baggage, Context) -> Context#{baggage => Baggage}.

-doc """
Ends a span at `Ended`, in monotonic nanoseconds, and adds it to the tracer's buffer
(`erlmcp_span_buffer:add/2`).
""".
-spec ended(started(), erlmcp_span:start(), erlmcp_span:last(), Ended :: integer(), config()) -> ok.
ended({Context, Parent}, {Kind, Links, About, Began}, Last, Ended, {_, Buffer}) ->
    erlmcp_span_buffer:add({ids(Context), Parent, Kind, [ids(Link) || Link <- Links], about(About),
                            Began, last(Last), Ended}, Buffer).

ids(#{trace_id := Trace, span_id := Span} = Context) ->
    {own(Trace), own(Span), case Context of
                                #{state := State} -> binary:copy(State);
                                #{} -> none
                            end}.

about({Method, Target}) ->
    {own(Method), target(Target)};
about({Method, Target, Revision, {http, Version, Peer, <<Session/binary>>}}) ->
    {own(Method), target(Target), Revision, {http, Version, Peer, own(Session)}};
about({Method, Target, Revision, Client}) ->
    {own(Method), target(Target), Revision, Client}.

target({unknown, Target}) -> {unknown, own(Target)};
target(undefined) -> undefined;
target(Target) -> own(Target).

last(Last) when is_binary(element(1, Last)) -> setelement(1, Last, own(element(1, Last)));
last(Last) -> Last.

%% A text, or its beginning, that does not keep the request in memory, of which it may be a part.
own(Text) ->
    Beginning = erlmcp_otlp:beginning(Text),
    case binary:referenced_byte_size(Beginning) =:= byte_size(Beginning) of
        true -> Beginning;
        false -> binary:copy(Beginning)
    end.

-doc """
Returns how many spans wait, were sent and were dropped in the buffer of a tracer. Other tracers may
share that buffer (`m:erlmcp_span_exporter`).
""".
-spec counts(config()) -> erlmcp_span_buffer:counts().
counts({_, {Buffer, _}}) ->
    erlmcp_span_buffer:counts(Buffer).
