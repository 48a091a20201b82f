-module(erlmcp_request_span).
-moduledoc """
The span of a request to a server, from its arrival to its end, and the trace context of its
handler.

The context of `params._meta` is the parent, and that of the HTTP request a link. Without the first,
the second is the parent. The run of a task is a new trace, with a link to the request that asked
for it.

Source: `open-telemetry/semantic-conventions-genai`, `docs/gen-ai/mcp.md`, "Server".

Internal.
""".

-export([start/3, start_task/3, run/2, ended/4, forget/0]).

-export_type([origin/0, started/0]).

-doc """
The origin of a request. `http` has the version, the address of the connection and the headers.
`lines` has the address of a connection of lines, or `local` for stdio. `none` is the origin of HTTP
requests to a server without a tracer, and of work that no message has brought, such as the run of a
task.
""".
-type origin() ::
    {http, Version :: atom(), {inet:ip_address(), inet:port_number()},
     Headers :: #{binary() => binary()}}
    | {lines, inet:ip_address() | local}
    | none.
-doc """
The span of a call, as a member `span` of the call and its subject: the context of its handler, and
the span with its further attributes, or `none` if it is not recorded.
""".
-type started() ::
    {erlmcp_tracer:context() | unsampled | none,
     {erlmcp_span:span(), erlmcp_tracer:attributes()} | none}.

-doc "Starts the span of a call that has arrived, and adds it to the call.".
-spec start(erlmcp_engine:call(), erlmcp_meter:arrival(), erlmcp_tracer:tracer()) ->
    erlmcp_engine:call().
start(#{id := Id, context := #{method := Method, meta := Meta} = Context} = Call,
      {Began, _, Origin}, Tracer) ->
    #{revision := Revision} = Context,
    Target = target(Context),
    {Trace, Span} = started(server, parents(Meta, Origin), fun() ->
        described(Method, Target, Revision, Origin)
    end, Began, Tracer),
    with_span(Trace, recorded(Span, Id), Call).

target(#{name := Name}) -> Name;
target(#{uri := Uri}) -> Uri;
target(_) -> undefined.

with_span(#{} = Trace, Span, #{context := Context} = Call) ->
    Call#{span => {Trace, Span}, context := Context#{trace => Trace}};
with_span(Trace, Span, Call) ->
    Call#{span => {Trace, Span}}.

recorded(none, _) -> none;
recorded(Span, Id) -> {Span, id(Id)}.

-doc """
Starts the span of the call of a task. The call has the span of the request that asked for the task.
Does nothing if the server has no tracer.
""".
-spec start_task(erlmcp_engine:call(), erlmcp_meter:arrival(), erlmcp_tracer:tracer() | none) ->
    erlmcp_engine:call().
start_task(Call, _, none) ->
    Call;
start_task(#{context := #{method := Method, revision := Revision} = Context} = Call,
           {Began, _, _}, Tracer) ->
    Links = [Link || #{span := {#{trace_id := _} = Link, _}} <- [Call]],
    Target = target(Context),
    {Trace, Span} = started(internal, {none, Links, none}, fun() ->
        described(Method, Target, Revision, none)
    end, Began, Tracer),
    with_span(Trace, recorded(Span, undefined), Call#{context := maps:remove(trace, Context)}).

%% The parent, the links and the baggage of a request.
parents(Meta, {http, _, _, #{~"traceparent" := _} = Headers}) ->
    case {erlmcp_trace_context:read(Meta), erlmcp_trace_context:read(Headers)} of
        {{none, none}, {Parent, Baggage}} -> {Parent, [], Baggage};
        {{none, Baggage}, {Parent, _}} -> {Parent, [], Baggage};
        {{Parent, Baggage}, {none, _}} -> {Parent, [], Baggage};
        {{Parent, Baggage}, {Link, _}} -> {Parent, [Link], Baggage}
    end;
parents(Meta, _) ->
    {Parent, Baggage} = erlmcp_trace_context:read(Meta),
    {Parent, [], Baggage}.

%% `Describe` returns the name and the attributes of a span that is recorded.
started(Kind, {Parent, Links, Baggage}, Describe, Began, Tracer) ->
    erlmcp_span:start(Tracer, Parent, fun() ->
        {Name, Attributes} = Describe(),
        with_baggage(Baggage, #{name => Name, kind => Kind, parent => Parent, links => Links,
                                attributes => Attributes, began => Began})
    end).

with_baggage(none, Start) -> Start;
with_baggage(Baggage, #{parent := none} = Start) -> Start#{baggage => Baggage};
with_baggage(Baggage, #{parent := Parent} = Start) ->
    Start#{parent := Parent#{baggage => Baggage}}.

%% The requests of a connection often have all of these in common, so the last name and attributes
%% are kept.
described(Method, Target, Revision, Origin) ->
    Key = {Method, Target, Revision, without_headers(Origin)},
    case get(?MODULE) of
        {Key, Described} ->
            Described;
        _ ->
            %% A copy, which does not keep the whole request in memory.
            {OwnMethod, OwnTarget, _, _} = Own = binary_to_term(term_to_binary(Key)),
            Known = (erlmcp_span:attributes(OwnMethod, OwnTarget))#{
                ~"mcp.protocol.version" => erlmcp_revision:name(Revision)},
            Described = {erlmcp_span:name(OwnMethod, OwnTarget),
                         maps:merge(origin(Origin), Known)},
            _ = put(?MODULE, {Own, Described}),
            Described
    end.

without_headers({http, Version, Peer, Headers}) ->
    {Version, Peer, maps:get(~"mcp-session-id", Headers, none)};
without_headers(Origin) ->
    Origin.

-doc """
Deletes what the calling process keeps from one span to the next. A process calls this before it
hibernates.
""".
-spec forget() -> ok.
forget() ->
    _ = erase(?MODULE),
    erlmcp_otlp_tracer:forget().

origin({http, Version, {Address, Port}, Headers}) ->
    Known = #{~"network.transport" => ~"tcp", ~"network.protocol.name" => ~"http",
              ~"network.protocol.version" => version(Version),
              ~"client.address" => address(Address), ~"client.port" => Port},
    case Headers of
        #{~"mcp-session-id" := Session} ->
            Known#{~"mcp.session.id" => erlmcp_span:session(Session)};
        #{} ->
            Known
    end;
origin({lines, local}) ->
    #{~"network.transport" => ~"pipe"};
origin({lines, Address}) ->
    #{~"network.transport" => ~"tcp", ~"client.address" => address(Address)};
origin(none) ->
    #{}.

version('HTTP/2') -> ~"2";
version('HTTP/1.0') -> ~"1.0";
version(_) -> ~"1.1".

address({A, B, C, D}) ->
    <<(integer_to_binary(A))/binary, $., (integer_to_binary(B))/binary, $.,
      (integer_to_binary(C))/binary, $., (integer_to_binary(D))/binary>>;
address(Address) ->
    list_to_binary(inet:ntoa(Address)).

-doc """
Runs a fun in the context of a call's span. The context is that of the calling process meanwhile.
Its ids, if it has any, are in the metadata of the process's log.
""".
-spec run(erlmcp_engine:call(), fun(() -> Result)) -> Result.
run(#{span := {#{trace_id := Trace, span_id := Span} = Context, _}}, Run) ->
    Before = logger:get_process_metadata(),
    ok = logger:set_process_metadata(with_ids(Before, Trace, Span)),
    try
        within(Context, Run)
    after
        restored(Before)
    end;
run(#{span := {Context, _}}, Run) ->
    within(Context, Run).

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
Ends the span of a request at `Now`, in monotonic nanoseconds. A request without a call begins and
ends its span here.
""".
-spec ended(erlmcp_meter:about(), erlmcp_meter:outcome(), Now :: integer(),
            erlmcp_tracer:tracer()) -> ok.
ended(#{span := {_, {Span, Attributes}}}, Outcome, Now, _) ->
    finished(Span, Attributes, Outcome, Now);
ended({{Id, Method, Params}, {Began, _, Origin}}, Outcome, Now, Tracer) when
    is_binary(Method)
->
    Meta = case Params of
        #{~"_meta" := #{} = Given} -> Given;
        #{} -> #{}
    end,
    {_, Span} = started(server, parents(Meta, Origin), fun() ->
        Name = known(Method),
        {Name, maps:merge(origin(Origin), asked(Name, Params))}
    end, Began, Tracer),
    finished(Span, id(Id), Outcome, Now);
ended(_, _, _, _) ->
    ok.

%% A client may make up any number of methods.
known(Method) ->
    case erlmcp_revision:is_method(Method) orelse erlmcp_extension:is_method(Method) of
        true -> Method;
        false -> ~"_OTHER"
    end.

%% The name may be that of no tool, so it is in no name of a span.
asked(Method, Params) ->
    erlmcp_span:attributes(Method, case Params of
        #{~"name" := Name} when is_binary(Name) -> Name;
        #{~"uri" := Uri} when is_binary(Uri) -> Uri;
        #{} -> undefined
    end).

id(undefined) -> #{};
id(Id) -> #{~"jsonrpc.request.id" => erlmcp_span:id(Id)}.

finished(none, _, _, _) ->
    ok;
finished(Span, Attributes, Outcome, Now) ->
    {Status, Error} = status(Outcome),
    erlmcp_span:finish(Span, #{status => Status, attributes => maps:merge(Attributes, Error),
                               ended => Now}).

status(ok) ->
    {ok, #{}};
status({refused, Refusal}) ->
    {{error, erlmcp_refusal:name(Refusal)}, erlmcp_span:refusal(erlmcp_refusal:code(Refusal))};
status(Error) ->
    {{error, Error}, #{~"error.type" => atom_to_binary(Error)}}.
