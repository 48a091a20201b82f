-module(erlmcp_client_span).
-moduledoc """
The span of one request of a client, and the trace context that the request carries in `_meta`. The
client's tracer makes the span, or else the tracer of its parent, which is the option `trace` of the
call. Without a tracer, the request carries the parent's context. A request with a `traceparent` in
the option `meta` has no span.

Source: `open-telemetry/semantic-conventions-genai`, `docs/gen-ai/mcp.md`, "Client".

Internal.
""".

-export([start/4, ended/5]).

-doc """
Starts the span of a request. Returns the request's `t:erlmcp_client_request:extra/0` with the trace
context in `meta`, and the span for `ended/5`. The span is `none` if nothing is recorded.
""".
-spec start({Method :: binary(), Params :: map()}, erlmcp_client_request:extra(),
            erlmcp_client_connection:client(), erlmcp_client_exchange:watch()) ->
    {erlmcp_client_request:extra(), erlmcp_span:span()}.
start(_, #{meta := #{~"traceparent" := _}} = Extra, _, _) ->
    {Extra, none};
start(Request, Extra, #{tracer := Tracer}, Watch) ->
    started(Tracer, maps:get(trace, Watch, none), Request, Extra);
start(Request, Extra, _, #{trace := #{tracer := Tracer} = Parent}) ->
    started(Tracer, Parent, Request, Extra);
start(_, Extra, _, #{trace := Parent}) ->
    {with_context(Parent, Extra), none};
start(_, Extra, _, _) ->
    {Extra, none}.

started(Tracer, Parent, {Method, Params}, Extra) ->
    case erlmcp_span:is_unsampled(Parent, Tracer) of
        true ->
            {with_context(unsampled, Extra), none};
        false ->
            Start = {client, [], {Method, target(Params)}, erlang:monotonic_time(nanosecond)},
            {Context, Span} = erlmcp_span:start({Parent, none}, Start, Tracer),
            {with_context(Context, Extra), Span}
    end.

with_context(none, Extra) ->
    Extra;
with_context(unsampled, Extra) ->
    {Trace, Span} = erlmcp_span_ids:root(),
    with_context(#{trace_id => Trace, span_id => Span, sampled => false}, Extra);
with_context(Context, Extra) ->
    Extra#{meta => maps:merge(maps:get(meta, Extra, #{}), erlmcp_trace_context:write(Context))}.

target(#{~"name" := Name}) when is_binary(Name) -> Name;
target(#{~"uri" := Uri}) when is_binary(Uri) -> Uri;
target(_) -> undefined.

-doc "Ends the span of the request with this id and outcome. Does nothing if the span is `none`.".
-spec ended(erlmcp_client_exchange:outcome() | {error, {crashed, term()}}, erlmcp_message:id(),
            erlmcp_client_connection:client(), erlmcp_client_connection:live(),
            erlmcp_span:span()) -> ok.
ended(_, _, _, _, none) ->
    ok;
ended(Outcome, Id, #{settings := #{target := Target}}, #{revision := Revision} = Live, Span) ->
    {Status, Error} = status(Outcome),
    Common = #{~"mcp.protocol.version" => erlmcp_revision:name(Revision)},
    Session = case Live of
        #{session := Known} when is_binary(Known) ->
            #{~"mcp.session.id" => erlmcp_span:session(Known)};
        #{} -> #{}
    end,
    Network = network(erlmcp_client_options:label(Target)),
    Attributes = maps:merge(maps:merge(Common, Session), maps:merge(Network, Error)),
    erlmcp_span:finish(Span, {Id, Status, Attributes}, erlang:monotonic_time(nanosecond)).

status({ok, #{~"isError" := true}, _}) ->
    {{error, tool_error}, #{~"error.type" => ~"tool_error"}};
status({ok, _, _}) ->
    {ok, #{}};
status({error, {rpc, #{code := Code}}}) ->
    {{error, rpc}, erlmcp_span:refusal(Code)};
status({error, Reason}) ->
    Name = reason(Reason),
    {{error, Name}, #{~"error.type" => atom_to_binary(Name)}}.

reason(Reason) when is_atom(Reason) -> Reason;
reason(Reason) -> element(1, Reason).

network([tcp, {Host, Port}]) -> server(Host, Port, #{~"network.transport" => ~"tcp"});
network([stdio | _]) -> #{~"network.transport" => ~"pipe"};
network([memory | _]) -> #{};
network([_, {Host, Port}]) ->
    server(Host, Port, #{~"network.transport" => ~"tcp", ~"network.protocol.name" => ~"http"});
network(_) -> #{}.

server(Host, Port, Network) ->
    Network#{~"server.address" => address(Host), ~"server.port" => Port}.

address(Host) when is_atom(Host) -> atom_to_binary(Host);
address(Address) when is_tuple(Address) -> list_to_binary(inet:ntoa(Address));
address(Host) -> iolist_to_binary(Host).
