-module(erlmcp_tracer).
-moduledoc """
The behaviour of a tracer, and the trace context of a process.

A tracer makes the spans of servers and clients that have it as their option `trace`. With the
option `trace => #{endpoint => Url}` the library has a tracer of its own, which sends its spans to a
collector. A module of this behaviour passes them to an application's own OpenTelemetry instead:
`trace => {Module, Config}`. [Tracing](tracing.html) has examples of both.

The span of a request begins when a server has got the request, or when a client sends it. It ends
with the answer, or with the request's end without one. Both callbacks run in the processes that
serve requests or make calls, so they have to be quick. If one of them fails, the failure is logged,
and the request goes on without a span.

A handler gets the context of its span as `trace` in its own context. That trace context is also the
current one of the handler's process. Calls of clients in that process belong to the same trace. To
make calls of another process belong to it, set the context there, or pass it as the option `trace`
of a call.
""".

-export([current/0, set_current/1]).
-export([enter/1]).

-export_type([options/0, tracer/0, context/0, span_start/0, span_end/0, attributes/0]).

-doc """
The option `trace` of servers and clients. A module gets `Config` with each callback. The options of
the library's own tracer are:

- `endpoint`: the URL of a collector that takes OTLP/HTTP as JSON, such as
  `~"http://localhost:4318/v1/traces"`;
- `ratio`: the part to record of the traces that begin here, from 0 to 1 (1). A request with a
  parent is recorded if its parent is;
- `headers`: further HTTP headers for the collector, such as one with a key, except those that the
  library sends itself, such as `content-type`;
- `resource`: further attributes of the program. `service.name` and `service.version` are those of
  the server or the client, unless they are given here;
- `tls`: options of TLS for the collector.
""".
-type options() ::
    #{endpoint := binary(), ratio => float() | 0 | 1, headers => #{binary() => binary()},
      resource => attributes(), tls => [ssl:tls_client_option()]}
    | {module(), Config :: term()}.

-doc "A module of this behaviour with its configuration.".
-type tracer() :: {module(), Config :: term()}.

-doc """
The context of a span. `trace_id` has 32 hexadecimal digits in lower case, and `span_id` 16.
`sampled` says whether the trace is recorded. `state` and `baggage` are the texts that came with the
request as `tracestate` and `baggage`. `tracer` is the tracer that made the span. That tracer also
makes the spans of requests that clients without a tracer send in this context.
""".
-type context() :: #{
    trace_id := binary(), span_id := binary(), sampled := boolean(),
    state => binary(), baggage => binary(), tracer => tracer()
}.

-doc "Attributes by their names in OpenTelemetry's conventions, such as `~\"mcp.method.name\"`.".
-type attributes() :: #{binary() => binary() | integer() | float() | boolean()}.

-doc """
A span that begins at `began`, in nanoseconds of `erlang:monotonic_time/1`. The `parent` of a
`server` span came with the request, and that of a `client` span is of this node. The run of a task
is `internal`. `links` are spans of other traces that have led to this one. `baggage` came with a
request that has no parent.
""".
-type span_start() :: #{
    name := binary(), kind := server | client | internal,
    parent := context() | none, links := [context()], baggage => binary(),
    attributes := attributes(), began := integer()
}.

-doc """
The end of a span: the time `ended`, in nanoseconds of the same clock as `began` in
`t:span_start/0`, further attributes, and the status. An error has the name of a refusal
(`t:erlmcp:refusal_name/0`), `tool_error`, `cancelled`, `rpc` for an error of a server, or the name
of another reason (`t:erlmcp_client:reason/0`).
""".
-type span_end() :: #{
    status := ok | {error, Name :: atom()}, attributes := attributes(), ended := integer()
}.

-doc """
Starts a span. Returns its context, which its children get, and a value for `c:end_span/3`. If the
span is not recorded, the value is `none`, and `c:end_span/3` is not called.
""".
-callback start_span(span_start(), Config :: term()) -> {context(), Span :: term() | none}.

-doc "Ends a span. `Span` is the value that `c:start_span/2` returned for it.".
-callback end_span(Span :: term(), span_end(), Config :: term()) -> ok.

-doc """
Returns the context of the calling process: in a handler, that of the running request. Returns
`none` if there is none.

## Examples

```erlang
1> erlmcp_tracer:current().
none
```
""".
-spec current() -> context() | none.
current() ->
    case get(?MODULE) of
        undefined ->
            none;
        unsampled ->
            {Trace, Span} = erlmcp_span_ids:root(),
            Context = #{trace_id => Trace, span_id => Span, sampled => false},
            _ = put(?MODULE, Context),
            Context;
        Context ->
            Context
    end.

-doc """
Sets the context of the calling process, and returns the context that the process had before. `none`
removes the context.

## Examples

A handler does part of its work in another process:

```erlang
-module(my_fan_out).
-export([ask_both/2]).

ask_both(Clients, Arguments) ->
    Trace = erlmcp_tracer:current(),
    Self = self(),
    [spawn_link(fun() ->
         _ = erlmcp_tracer:set_current(Trace),
         Self ! {answer, erlmcp_client:call_tool(Client, ~"search", Arguments)}
     end) || Client <- Clients],
    [receive {answer, Answer} -> Answer end || _ <- Clients].
```
""".
-spec set_current(context() | none) -> context() | none.
set_current(Context) ->
    Before = current(),
    _ = enter(Context),
    Before.

-doc false.
%% As `set_current/1`, for the library: an unsampled context has no ids before they are needed.
-spec enter(context() | unsampled | none) -> context() | unsampled | none.
enter(none) ->
    before(erase(?MODULE));
enter(unsampled) ->
    before(put(?MODULE, unsampled));
enter(#{trace_id := _, span_id := _, sampled := _} = Context) ->
    before(put(?MODULE, Context)).

before(undefined) -> none;
before(Context) -> Context.
