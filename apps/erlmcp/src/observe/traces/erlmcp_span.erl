-module(erlmcp_span).
-moduledoc """
Spans of requests, as OpenTelemetry's conventions for MCP describe them, of servers and of clients.
A tracer (`m:erlmcp_tracer`) makes them. If a tracer fails, the failure is logged, and the request
goes on.

The subject and the end of a span are small terms, from which its name and attributes are made. No
attribute has arguments, results, tokens, states or texts of errors.

Source: `open-telemetry/semantic-conventions-genai`, `docs/gen-ai/mcp.md`.

Internal.
""".

-export([is_unsampled/2, start/3, finish/3, client/1]).
-export([common/2, name/1, attributes/1, client_attributes/1, ended/1, refusal/1, session/1]).

-export_type([span/0, start/0, about/0, client/0, origin/0, last/0]).

-doc "A span that was started, or `none` if nothing is recorded.".
-type span() ::
    {erlmcp_tracer:tracer(), {erlmcp_otlp_tracer:started(), start()} | (Span :: term())} | none.
-doc "A span that begins. `Began` is in nanoseconds of the monotonic clock.".
-type start() ::
    {server | client | internal, Links :: [erlmcp_tracer:context()], about(), Began :: integer()}.
-doc """
The request of a span: its method, and the name or the URI that it is for, or `undefined` for none.
A name or URI that may belong to no definition is marked as `unknown`. A server's span also has the
client, and the revision, which is `undefined` for a request without a call.
""".
-type about() ::
    {Method :: binary(), target()}
    | {Method :: binary(), target(), erlmcp_revision:revision() | undefined, client()}.
-type target() :: binary() | {unknown, binary()} | undefined.
-doc """
The origin of a request. `http` has the version, the address of the connection and the headers.
`lines` has the address of a connection of lines, or `local` for stdio and clients of this node.
`none` is the origin of HTTP requests to a server without a tracer, of requests that were refused
unread, and of runs of tasks.
""".
-type origin() ::
    {http, Version :: atom(), {inet:ip_address(), inet:port_number()},
     Headers :: #{binary() => binary()}}
    | {lines, inet:ip_address() | local}
    | none.
-doc """
The part of an origin that is in a span, with the id of the session in place of the headers. The
port `any` stands for all ports of an address (`common/2`).
""".
-type client() ::
    {http, Version :: atom(), {inet:ip_address(), inet:port_number() | any},
     Session :: binary() | none}
    | {lines, inet:ip_address() | local}
    | none.
-doc """
The end of a span: the id of the request, and for a server's span how the request ended. A client's
span has its status and its last attributes instead.
""".
-type last() ::
    {id(), ok | tool_error | cancelled | {refused, erlmcp:refusal_name(), Code :: integer()}}
    | {id(), ok | {error, Name :: atom()}, erlmcp_tracer:attributes()}.
-type id() :: erlmcp_message:id() | task | undefined.

-doc """
Returns `true` if a trace would begin now, and the library's own tracer is not to record it. Each
call decides anew (`erlmcp_otlp_tracer:is_recorded/1`). Returns `false` if the span has a parent.
Returns `false`, too, for a tracer of the user, which decides for itself.
""".
-spec is_unsampled(Parent :: erlmcp_tracer:context() | none, erlmcp_tracer:tracer()) -> boolean().
is_unsampled(none, {erlmcp_otlp_tracer, Config}) -> not erlmcp_otlp_tracer:is_recorded(Config);
is_unsampled(_, _) -> false.

-doc """
Starts a span with the given parent and baggage, each of which may be `none`. Returns the span's
context, which names the tracer, and the span for `finish/3`. The span is `none` if it is not
recorded. If the tracer fails, the context is that of the parent, and the span is `none`.
""".
-spec start({Parent :: erlmcp_tracer:context() | none, Baggage :: binary() | none}, start(),
            erlmcp_tracer:tracer()) ->
    {erlmcp_tracer:context() | none, span()}.
start({Parent, Baggage}, Start, {erlmcp_otlp_tracer, _} = Tracer) ->
    case erlmcp_otlp_tracer:started(Parent, Baggage, Tracer) of
        {Context, none} -> {Context, none};
        {Context, Started} -> {Context, {Tracer, {Started, Start}}}
    end;
start({Parent, Baggage}, {Kind, Links, About, Began}, {Module, Config} = Tracer) ->
    Described = with_baggage(Baggage, #{name => name(About), kind => Kind, parent => Parent,
                                        links => Links, attributes => attributes(About),
                                        began => Began}),
    try Module:start_span(Described, Config) of
        {#{trace_id := _} = Context, none} -> {Context#{tracer => Tracer}, none};
        {#{trace_id := _} = Context, Span} -> {Context#{tracer => Tracer}, {Tracer, Span}};
        Other ->
            ok = failed(Module, error, {bad_return, Other}, []),
            {map_get(parent, Described), none}
    catch
        Class:Reason:Stack ->
            ok = failed(Module, Class, Reason, Stack),
            {map_get(parent, Described), none}
    end.

with_baggage(none, Start) -> Start;
with_baggage(Baggage, #{parent := none} = Start) -> Start#{baggage => Baggage};
with_baggage(Baggage, #{parent := Parent} = Start) ->
    Start#{parent := Parent#{baggage => Baggage}}.

-doc """
Ends a span at `Ended`, in nanoseconds of the monotonic clock. Does nothing for `none`. If the
tracer fails, the failure is logged.
""".
-spec finish(span(), last(), Ended :: integer()) -> ok.
finish(none, _, _) ->
    ok;
finish({{erlmcp_otlp_tracer, Config}, {Started, Start}}, Last, Ended) ->
    erlmcp_otlp_tracer:ended(Started, Start, Last, Ended, Config);
finish({{Module, Config}, Span}, Last, Ended) ->
    {Status, Attributes} = ended(Last),
    try
        _ = Module:end_span(Span, #{status => Status, attributes => Attributes, ended => Ended},
                            Config),
        ok
    catch
        Class:Reason:Stack -> failed(Module, Class, Reason, Stack)
    end.

failed(Module, Class, Reason, Stack) ->
    erlmcp_log:report(error, (erlmcp_incident:outline(Reason, Stack))#{
                                 what => tracer_failed, tracer => Module, class => Class}).

-doc "Returns the part of an origin that is in a span.".
-spec client(origin()) -> client().
client({http, Version, Peer, #{~"mcp-session-id" := Session}}) -> {http, Version, Peer, Session};
client({http, Version, Peer, _}) -> {http, Version, Peer, none};
client(Origin) -> Origin.

-doc """
Splits the subject and the end of a span. The first three results may be the same for many spans:
the request, the client and the end. The last two are those of this span alone: the port of the
client and the id of the request. Each of these two is `none` if the span has none.

## Examples

```erlang
1> Client = {http, 'HTTP/1.1', {{127, 0, 0, 1}, 54321}, none}.
2> erlmcp_span:common({~"tools/call", ~"add", '2026-07-28', Client}, {7, ok}).
{{~"tools/call", ~"add", '2026-07-28', none}, {http, 'HTTP/1.1', {{127, 0, 0, 1}, any}, none},
 {undefined, ok}, 54321, 7}
```
""".
-spec common(about(), last()) ->
    {Request :: about(), client(), last(), inet:port_number() | none, erlmcp_message:id() | none}.
common({Method, Target, Revision, {http, Version, {Address, Port}, Session}}, {Id, Outcome}) ->
    {{Method, Target, Revision, none}, {http, Version, {Address, any}, Session},
     {undefined, Outcome}, Port, id(Id)};
common({Method, Target, Revision, Client}, {Id, Outcome}) ->
    {{Method, Target, Revision, none}, Client, {undefined, Outcome}, none, id(Id)};
common(Request, {Id, Status, Attributes}) ->
    {Request, none, {undefined, Status, Attributes}, none, id(Id)}.

-doc """
Returns the name of a span: the method, and the name of a tool or prompt that is not marked as
`unknown`. A URI is left out, since a server may have any number of URIs.

## Examples

```erlang
1> [erlmcp_span:name({~"tools/call", ~"add"}), erlmcp_span:name({~"resources/read", ~"a:b"})].
[~"tools/call add", ~"resources/read"]
```
""".
-spec name(about()) -> binary().
name({Method, Target, _, _}) ->
    name({Method, Target});
name({Method, Target}) when
    is_binary(Target), (Method =:= ~"tools/call" orelse Method =:= ~"prompts/get")
->
    <<Method/binary, $\s, Target/binary>>;
name({Method, _}) ->
    Method.

-doc "Returns the attributes that a span has from its start.".
-spec attributes(about()) -> erlmcp_tracer:attributes().
attributes({Method, Target, undefined, Client}) ->
    maps:merge(client_attributes(Client), attributes({Method, Target}));
attributes({Method, Target, Revision, Client}) ->
    (attributes({Method, Target, undefined, Client}))#{
        ~"mcp.protocol.version" => erlmcp_revision:name(Revision)};
attributes({Method, {unknown, Target}}) ->
    attributes({Method, Target});
attributes({~"tools/call" = Method, Tool}) when is_binary(Tool) ->
    #{~"mcp.method.name" => Method, ~"gen_ai.tool.name" => Tool,
      ~"gen_ai.operation.name" => ~"execute_tool"};
attributes({~"prompts/get" = Method, Prompt}) when is_binary(Prompt) ->
    #{~"mcp.method.name" => Method, ~"gen_ai.prompt.name" => Prompt};
attributes({<<"resources/", _/binary>> = Method, Uri}) when is_binary(Uri) ->
    #{~"mcp.method.name" => Method, ~"mcp.resource.uri" => Uri};
attributes({Method, _}) ->
    #{~"mcp.method.name" => Method}.

-doc "Returns the attributes of a client.".
-spec client_attributes(client()) -> erlmcp_tracer:attributes().
client_attributes({http, Version, {Address, any}, none}) ->
    #{~"network.transport" => ~"tcp", ~"network.protocol.name" => ~"http",
      ~"network.protocol.version" => version(Version), ~"client.address" => address(Address)};
client_attributes({http, Version, {Address, any}, Session}) ->
    (client_attributes({http, Version, {Address, any}, none}))#{
        ~"mcp.session.id" => session(Session)};
client_attributes({http, Version, {Address, Port}, Session}) ->
    (client_attributes({http, Version, {Address, any}, Session}))#{~"client.port" => Port};
client_attributes({lines, local}) ->
    #{~"network.transport" => ~"pipe"};
client_attributes({lines, Address}) ->
    #{~"network.transport" => ~"tcp", ~"client.address" => address(Address)};
client_attributes(none) ->
    #{}.

version('HTTP/2') -> ~"2";
version('HTTP/1.0') -> ~"1.0";
version(_) -> ~"1.1".

address(Address) ->
    list_to_binary(inet:ntoa(Address)).

-doc """
Returns the status of a span that has ended, and its last attributes. `Name` is the name of the
error, such as that of the refusal.
""".
-spec ended(last()) -> {ok | {error, Name :: atom()}, erlmcp_tracer:attributes()}.
ended({Id, Outcome}) ->
    {Status, Attributes} = status(Outcome),
    {Status, with_id(id(Id), Attributes)};
ended({Id, Status, Attributes}) ->
    {Status, with_id(id(Id), Attributes)}.

%% The run of a task has no id, nor has a message that could not be read.
id(Id) when is_integer(Id); is_binary(Id) -> Id;
id(_) -> none.

with_id(none, Attributes) -> Attributes;
with_id(Id, Attributes) when is_integer(Id) -> with_id(integer_to_binary(Id), Attributes);
with_id(Id, Attributes) -> Attributes#{~"jsonrpc.request.id" => Id}.

status(ok) ->
    {ok, #{}};
status({refused, Name, Code}) ->
    {{error, Name}, refusal(Code)};
status(Error) ->
    {{error, Error}, #{~"error.type" => atom_to_binary(Error)}}.

-doc "Returns the attributes of an error with the JSON-RPC code `Code`.".
-spec refusal(Code :: integer()) -> erlmcp_tracer:attributes().
refusal(Code) ->
    Text = integer_to_binary(Code),
    #{~"error.type" => Text, ~"rpc.response.status_code" => Text}.

-doc """
Returns the text that stands for a session in a span: the first 16 hexadecimal digits of the SHA-256
hash of its id. With the id itself, a reader of the traces could use an anonymous client's session.
""".
-spec session(Id :: binary()) -> binary().
session(Id) ->
    binary:encode_hex(binary:part(crypto:hash(sha256, Id), 0, 8), lowercase).
