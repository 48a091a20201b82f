-module(erlmcp_span).
-moduledoc """
Spans of requests, as OpenTelemetry's conventions for MCP describe them, of servers and of clients.
A tracer (`m:erlmcp_tracer`) makes them. If it fails, that is logged, and the request goes on.

No attribute has arguments, results, tokens, states or texts of errors.

Source: `open-telemetry/semantic-conventions-genai`, `docs/gen-ai/mcp.md`.

Internal.
""".

-export([start/3, finish/2]).
-export([name/2, attributes/2, id/1, refusal/1, session/1]).

-export_type([span/0, finish/0]).

-doc "A span that was started, or `none` if nothing is recorded.".
-type span() :: {erlmcp_tracer:tracer(), Span :: term()} | none.
-doc "The end of a span; `ended` is its time, in nanoseconds of the monotonic clock.".
-type finish() :: #{
    status := ok | {error, Name :: atom()}, attributes := erlmcp_tracer:attributes(),
    ended := integer()
}.

-doc """
Starts the span that `Describe` returns, which has the parent `Parent`. Returns its context, which
names the tracer, and the span for `finish/2`. If the tracer fails, the context is that of the
parent. The context is `unsampled` if a trace that begins here is not recorded, and gets its ids
only when it is asked for.
""".
-spec start(erlmcp_tracer:tracer(), Parent :: erlmcp_tracer:context() | none,
            Describe :: fun(() -> erlmcp_tracer:span_start())) ->
    {erlmcp_tracer:context() | unsampled | none, span()}.
start({erlmcp_otlp_tracer, Config} = Tracer, none, Describe) ->
    %% Most traces are not recorded, so nothing is made before that is decided.
    case erlmcp_otlp_tracer:is_recorded(Config) of
        true -> started(Tracer, Describe());
        false -> {unsampled, none}
    end;
start(Tracer, _, Describe) ->
    started(Tracer, Describe()).

started({Module, Config} = Tracer, #{parent := Parent} = Start) ->
    try Module:start_span(Start, Config) of
        {#{trace_id := _} = Context, none} -> {Context#{tracer => Tracer}, none};
        {#{trace_id := _} = Context, Span} -> {Context#{tracer => Tracer}, {Tracer, Span}}
    catch
        Class:Reason:Stack ->
            ok = failed(Module, Class, Reason, Stack),
            {Parent, none}
    end.

-doc "Ends a span.".
-spec finish(span(), finish()) -> ok.
finish(none, _) ->
    ok;
finish({{Module, Config}, Span}, End) ->
    try
        _ = Module:end_span(Span, End, Config),
        ok
    catch
        Class:Reason:Stack -> failed(Module, Class, Reason, Stack)
    end.

failed(Module, Class, Reason, Stack) ->
    erlmcp_log:report(error, (erlmcp_incident:outline(Reason, Stack))#{
                                 what => tracer_failed, tracer => Module, class => Class}).

-doc """
Returns the name of a span: the method, and the name of the tool or prompt if there is one. A URI is
left out, since a server may have any number of URIs.

## Examples

```erlang
1> [erlmcp_span:name(~"tools/call", ~"add"), erlmcp_span:name(~"resources/read", ~"a:b")].
[~"tools/call add", ~"resources/read"]
```
""".
-spec name(Method :: binary(), Target :: binary() | undefined) -> binary().
name(Method, Target) when
    is_binary(Target), (Method =:= ~"tools/call" orelse Method =:= ~"prompts/get")
->
    <<Method/binary, $\s, Target/binary>>;
name(Method, _) ->
    Method.

-doc "Returns the attributes that say what a request is for.".
-spec attributes(Method :: binary(), Target :: binary() | undefined) -> erlmcp_tracer:attributes().
attributes(~"tools/call" = Method, Tool) when is_binary(Tool) ->
    #{~"mcp.method.name" => Method, ~"gen_ai.tool.name" => Tool,
      ~"gen_ai.operation.name" => ~"execute_tool"};
attributes(~"prompts/get" = Method, Prompt) when is_binary(Prompt) ->
    #{~"mcp.method.name" => Method, ~"gen_ai.prompt.name" => Prompt};
attributes(<<"resources/", _/binary>> = Method, Uri) when is_binary(Uri) ->
    #{~"mcp.method.name" => Method, ~"mcp.resource.uri" => Uri};
attributes(Method, _) ->
    #{~"mcp.method.name" => Method}.

-doc "Returns the id of a request as a text.".
-spec id(erlmcp_message:id()) -> binary().
id(Id) when is_integer(Id) -> integer_to_binary(Id);
id(Id) -> Id.

-doc """
Returns the attributes of an error with a JSON-RPC code.
""".
-spec refusal(Code :: integer()) -> erlmcp_tracer:attributes().
refusal(Code) ->
    Text = integer_to_binary(Code),
    #{~"error.type" => Text, ~"rpc.response.status_code" => Text}.

-doc """
Returns the text for a session. The id itself would give whoever reads the traces an anonymous
client's session, so this is the beginning of its hash.
""".
-spec session(Id :: binary()) -> binary().
session(Id) ->
    binary:encode_hex(binary:part(crypto:hash(sha256, Id), 0, 8), lowercase).
