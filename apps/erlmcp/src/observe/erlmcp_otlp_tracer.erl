-module(erlmcp_otlp_tracer).
-moduledoc """
The library's own tracer. It decides by chance whether a trace that begins here is recorded. The
spans that are recorded wait in a buffer until they are sent (`m:erlmcp_span_buffer`). They are
encoded only then, many at a time (`m:erlmcp_span_batch`).

A span with a parent has a context even if it is not recorded, so that the servers of the whole
trace agree on that.

Internal.
""".

-export([new/2, context/2, started/3, ended/4, counts/1]).

-export_type([config/0, ids/0, started/0, ended/0]).

-opaque config() ::
    {Threshold :: non_neg_integer() | all, {erlmcp_span_buffer:buffer(), Exporter :: atom()}}.
-opaque started() :: {ids(), Parent :: binary() | none, erlmcp_span:start()}.
-type ids() :: {Trace :: binary(), Span :: binary(), State :: binary() | none}.
-doc """
A span that has ended: its ids with the state of its trace, the id of its parent, its beginning, its
end, and the time of that. Its texts keep no request in memory. They have at most 256 bytes, except
for states and the attributes of clients.
""".
-type ended() ::
    {ids(), Parent :: binary() | none,
     {server | client | internal, Links :: [ids()], erlmcp_span:about(), Began :: integer()},
     erlmcp_span:last(), Ended :: integer()}.

%% The chances of which some record a trace.
-define(CHANCES, (1 bsl 24)).

-doc """
Returns a tracer that records the part `Ratio` of the traces that begin here. Its spans go to a
buffer, which the process registered as `Exporter` empties.
""".
-spec new(Ratio :: number(), {erlmcp_span_buffer:buffer(), Exporter :: atom()}) ->
    erlmcp_tracer:tracer().
new(Ratio, Buffer) when Ratio >= 1 -> {?MODULE, {all, Buffer}};
new(Ratio, Buffer) -> {?MODULE, {trunc(Ratio * ?CHANCES), Buffer}}.

-doc """
Returns the context of a span that begins now below `Parent`. Returns `unsampled` if the span would
begin a trace, and is not to be recorded.
""".
-spec context(Parent :: erlmcp_tracer:context() | none, config()) ->
    erlmcp_tracer:context() | unsampled.
context(none, {Threshold, _}) ->
    case is_recorded(Threshold) of
        true ->
            {Trace, Span} = erlmcp_span_ids:root(),
            #{trace_id => Trace, span_id => Span, sampled => true};
        false ->
            unsampled
    end;
context(Parent, _) ->
    Parent#{span_id := erlmcp_span_ids:span()}.

%% The hash of a number that is used once costs less than a random number, and is spread as evenly.
is_recorded(all) -> true;
is_recorded(Threshold) -> erlang:phash2(erlang:unique_integer(), ?CHANCES) < Threshold.

-doc "Returns a span that begins, and is recorded, with its context.".
-spec started(erlmcp_tracer:context(), Parent :: erlmcp_tracer:context() | none,
              erlmcp_span:start()) -> started().
started(#{trace_id := Trace, span_id := Span}, none, Start) ->
    {{Trace, Span, none}, none, Start};
started(#{span_id := Span} = Context, #{span_id := Parent}, Start) ->
    {Trace, _, State} = ids(Context),
    {{Trace, Span, State}, own(Parent), Start}.

ids(#{trace_id := Trace, span_id := Span, state := State}) ->
    {own(Trace), own(Span), binary:copy(State)};
ids(#{trace_id := Trace, span_id := Span}) ->
    {own(Trace), own(Span), none}.

-doc "Ends a span at `Ended`. It waits until it is sent, or is dropped if too many wait.".
-spec ended(started(), erlmcp_span:last(), Ended :: integer(), config()) -> ok.
ended({Ids, Parent, {Kind, Links, About, Began}}, Last, Ended, {_, Buffer}) ->
    Start = {Kind, [ids(Link) || Link <- Links], about(About), Began},
    erlmcp_span_buffer:add({Ids, Parent, Start, last(Last), Ended}, Buffer).

about({Method, Target}) ->
    {own(Method), target(Target)};
about({Method, Target, Revision, {http, Version, Peer, <<Session/binary>>}}) ->
    {own(Method), target(Target), Revision, {http, Version, Peer, own(Session)}};
about({Method, Target, Revision, Client}) ->
    {own(Method), target(Target), Revision, Client}.

target({unknown, Target}) -> {unknown, own(Target)};
target(undefined) -> undefined;
target(Target) -> own(Target).

last({<<Id/binary>>, Outcome}) -> {own(Id), Outcome};
last(Last) -> Last.

%% A copy of a text, or of its beginning. It does not keep the request in memory, of which the text
%% is a part.
own(Text) -> binary:copy(erlmcp_otlp:beginning(Text)).

-doc "Returns how many spans of a tracer wait, were sent and were dropped.".
-spec counts(config()) -> erlmcp_span_buffer:counts().
counts({_, {Buffer, _}}) ->
    erlmcp_span_buffer:counts(Buffer).
