-module(erlmcp_request_span).
-moduledoc """
The span of a request to a server, from its arrival to its end, and the trace context of its
handler.

The trace context of `params._meta` is the parent, and that of the HTTP request a link. If `_meta`
has none, that of the HTTP request is the parent. The run of a task is a new trace, with a link to
the request that asked for it.

Source: `open-telemetry/semantic-conventions-genai`, `docs/gen-ai/mcp.md`, "Server".

Internal.
""".

-export([start/3, start_task/3, run/2, ended/4]).

-export_type([started/0]).

-doc """
The span of a call. `unsampled` stands for the span of a trace that would begin here and is not
recorded.
""".
-type started() :: erlmcp_span:span() | unsampled.

-doc """
Starts the span of a call. Returns the span, and the call's context. In the context, `trace` is the
trace context that `erlmcp_span:start/3` has returned; without one, `trace` is left out. Returns
`unsampled` if a trace would begin here and is not to be recorded.
""".
-spec start(erlmcp:context(), erlmcp_meter:arrival(), erlmcp_tracer:tracer()) ->
    {erlmcp_span:span(), erlmcp:context()} | unsampled.
start(#{meta := Meta} = Context, {Began, _, Origin}, Tracer) ->
    {{Above, _} = Parent, Links} = parents(Meta, Origin),
    case erlmcp_span:is_unsampled(Above, Tracer) of
        true -> unsampled;
        false -> started(Parent, {server, Links, about(Context, Origin), Began}, Context, Tracer)
    end.

started(Parent, Start, Context, Tracer) ->
    case erlmcp_span:start(Parent, Start, Tracer) of
        {none, Span} -> {Span, Context};
        {Trace, Span} -> {Span, Context#{trace => Trace}}
    end.

about(#{method := Method, revision := Revision} = Context, Origin) ->
    {Method, target(Context), Revision, erlmcp_span:client(Origin)}.

target(#{name := Name}) -> Name;
target(#{uri := Uri}) -> Uri;
target(_) -> undefined.

-doc """
Starts the span of the call of a task, and returns the call with the span and its trace context. The
span begins a trace. If the request that asked for the task has a trace context, the span has a link
to it. If the trace is not to be recorded, the span is `unsampled`, and the call has no trace
context. Without a tracer the call stays as it is.
""".
-spec start_task(erlmcp_engine:call(), erlmcp_meter:arrival(), erlmcp_tracer:tracer() | none) ->
    erlmcp_engine:call().
start_task(Call, _, none) ->
    Call;
start_task(#{context := Given} = Call, {Began, _, _}, Tracer) ->
    Links = [Link || #{trace := Link} <- [Given]],
    Context = maps:remove(trace, Given),
    {Span, Traced} = case erlmcp_span:is_unsampled(none, Tracer) of
        true -> {unsampled, Context};
        false -> started({none, none}, {internal, Links, about(Context, none), Began}, Context,
                         Tracer)
    end,
    Call#{span => Span, context := Traced}.

%% The parent with the baggage, and the links of a request. Most requests have none, and take no
%% memory here.
parents(Meta, {http, _, _, #{~"traceparent" := _} = Headers}) ->
    case {erlmcp_trace_context:read(Meta), erlmcp_trace_context:read(Headers)} of
        {{none, none}, Parent} -> {Parent, []};
        {{none, Baggage}, {Parent, _}} -> {{Parent, Baggage}, []};
        {Parent, {none, _}} -> {Parent, []};
        {Parent, {Link, _}} -> {Parent, [Link]}
    end;
parents(Meta, _) when is_map_key(~"traceparent", Meta); is_map_key(~"baggage", Meta) ->
    {erlmcp_trace_context:read(Meta), []};
parents(_, _) ->
    {{none, none}, []}.

-doc """
Calls `Run` while the calling process has the trace context of a call, and the ids of that trace and
span in its log metadata. If the call has no trace context, the process has none while `Run` runs.
Returns or raises what `Run` does.
""".
-spec run(erlmcp_engine:call(), fun(() -> Result)) -> Result.
run(#{context := #{trace := #{trace_id := Trace, span_id := Span} = Context}}, Run) ->
    Before = logger:get_process_metadata(),
    ok = logger:set_process_metadata(with_ids(Before, Trace, Span)),
    try
        within(Context, Run)
    after
        restored(Before)
    end;
run(_, Run) ->
    within(none, Run).

within(Context, Run) ->
    Before = erlmcp_tracer:enter(Context),
    try
        Run()
    after
        erlmcp_tracer:enter(Before)
    end.

with_ids(undefined, Trace, Span) -> #{trace_id => Trace, span_id => Span};
with_ids(Before, Trace, Span) -> Before#{trace_id => Trace, span_id => Span}.

restored(undefined) -> logger:unset_process_metadata();
restored(Before) -> logger:set_process_metadata(Before).

-doc """
Ends the span of a request at `Now`, in monotonic nanoseconds. The span of a request without a call
begins here, too. Does nothing for a request without a method, a call without a span, or a trace
that is not to be recorded.
""".
-spec ended(erlmcp_meter:about(), erlmcp_meter:outcome(), Now :: integer(),
            erlmcp_tracer:tracer()) -> ok.
ended(#{span := {_, _} = Span, id := Id}, Outcome, Now, _) ->
    erlmcp_span:finish(Span, {Id, outcome(Outcome)}, Now);
ended({{Id, Method, Params}, {Began, _, Origin}}, Outcome, Now, Tracer) when
    is_binary(Method)
->
    Meta = case Params of
        #{~"_meta" := #{} = Given} -> Given;
        #{} -> #{}
    end,
    {{Above, _} = Parent, Links} = parents(Meta, Origin),
    case erlmcp_span:is_unsampled(Above, Tracer) of
        true ->
            ok;
        false ->
            About = {method_name(Method), named_target(Params), undefined,
                     erlmcp_span:client(Origin)},
            {_, Span} = erlmcp_span:start(Parent, {server, Links, About, Began}, Tracer),
            erlmcp_span:finish(Span, {Id, outcome(Outcome)}, Now)
    end;
ended(_, _, _, _) ->
    ok.

outcome({refused, Refusal}) ->
    {refused, erlmcp_refusal:name(Refusal), erlmcp_refusal:code(Refusal)};
outcome(Outcome) ->
    Outcome.

%% A client may make up any number of methods.
method_name(Method) ->
    case erlmcp_revision:is_method(Method) orelse erlmcp_extension:is_method(Method) of
        true -> Method;
        false -> ~"_OTHER"
    end.

%% The name may be that of no tool, so it is in no name of a span.
named_target(#{~"name" := Name}) when is_binary(Name) -> {unknown, Name};
named_target(#{~"uri" := Uri}) when is_binary(Uri) -> {unknown, Uri};
named_target(#{}) -> undefined.
