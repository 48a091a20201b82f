-module(erlmcp_otlp).
-moduledoc """
Spans in the JSON encoding of OTLP, and the answer of a collector. Pure.

Each text is cut after 256 bytes, and before a byte that is not UTF-8. The keys of attributes and
`tracestate` are sent whole.

Sources: opentelemetry-proto, `docs/specification.md`, "JSON Protobuf Encoding" and "OTLP/HTTP
Response", and `trace.proto`.

Internal.
""".

-export([described/3, attributes/1, beginning/1, add/3, request/2, rejected/1]).

-export_type([scope/0, span/0]).

-doc "The attributes of the program whose spans are sent, and the version of this library.".
-type scope() :: #{resource := erlmcp_tracer:attributes(), version := binary()}.

-doc """
A span that has ended. `ids` has the ids of its trace and of the span itself, and its `tracestate`.
`parent` is the id of its parent span. `links` are further spans that have led to it. `began` and
`ended` are in monotonic nanoseconds.

Two encoded texts may be shared by many spans. `described` has the name, the status and the first
attributes (`described/3`), and `more` has further attributes (`attributes/1`). `port` and `request`
are two more attributes, or `none`: the client's port, and the id of the request.
""".
-type span() :: #{
    ids := {Trace :: binary(), Span :: binary(), State :: binary() | none},
    parent := binary() | none, kind := server | client | internal,
    links := [{Trace :: binary(), Span :: binary(), State :: binary() | none}],
    described := binary(), more := binary(), port := inet:port_number() | none,
    request := binary() | integer() | none, began := integer(), ended := integer()
}.

%% The most bytes of a text: names may be those of unknown tools, and ids are the peer's.
-define(TEXT_BYTES, 256).

-doc """
Encodes a span that has ended, and returns `Part` with this span at its end. `Part` has the encoded
spans of one part of a request to a collector (`request/2`), and is empty at first. `Offset` is
system time minus monotonic time, in microseconds.

## Examples

```erlang
1> Span = #{ids => {~"4bf92f3577b34da6a3ce929d0e0e4736", ~"00f067aa0ba902b7", none},
            parent => none, kind => server, links => [], began => 0, ended => 0,
            described => erlmcp_otlp:described(~"ping", ok, #{~"mcp.method.name" => ~"ping"}),
            more => ~"", port => 80, request => none}.
2> Part = erlmcp_otlp:add(Span, 1_000_000, ~"").
3> Request = erlmcp_otlp:request(#{resource => #{}, version => ~"1"}, [Part]).
4> #{~"resourceSpans" := [#{~"scopeSpans" := [#{~"spans" := Spans}]}]} =
       json:decode(iolist_to_binary(Request)).
5> Spans.
[#{~"traceId" => ~"4bf92f3577b34da6a3ce929d0e0e4736", ~"spanId" => ~"00f067aa0ba902b7",
   ~"flags" => 257, ~"name" => ~"ping", ~"kind" => 2, ~"startTimeUnixNano" => ~"1000000000",
   ~"endTimeUnixNano" => ~"1000000000",
   ~"attributes" => [#{~"key" => ~"mcp.method.name", ~"value" => #{~"stringValue" => ~"ping"}},
                     #{~"key" => ~"client.port", ~"value" => #{~"intValue" => ~"80"}}]}]
```
""".
-spec add(span(), Offset :: integer(), Part) -> Part when Part :: binary().
add(#{ids := {Trace, Id, State}, parent := Parent, kind := Kind, links := Links,
      described := Described, more := More, port := Port, request := Request, began := Began,
      ended := Ended},
    Offset, Part) ->
    <<Part/binary, ",{\"traceId\":\"", Trace/binary, "\",\"spanId\":\"", Id/binary,
      (parent(Kind, Parent))/binary, (kind(Kind))/binary, (time(Began, Offset))/binary,
      "000\",\"endTimeUnixNano\":\"", (time(Ended, Offset))/binary, "000\",",
      (state(State))/binary, (links(Links))/binary, Described/binary, More/binary,
      (port(Port))/binary, (id(Request))/binary, "]}">>.

%% The bits of `flags` are 1 for a sampled span, as all of these are, and 16#100, with 16#200 if the
%% parent is remote.
parent(_, none) -> ~B'","flags":257';
parent(server, Span) -> <<"\",\"flags\":769,\"parentSpanId\":\"", Span/binary, $">>;
parent(_, Span) -> <<"\",\"flags\":257,\"parentSpanId\":\"", Span/binary, $">>.

kind(internal) -> ~B',"kind":1,"startTimeUnixNano":"';
kind(server) -> ~B',"kind":2,"startTimeUnixNano":"';
kind(client) -> ~B',"kind":3,"startTimeUnixNano":"'.

%% Nanoseconds of today are not small integers any more.
time(Nanoseconds, Offset) ->
    integer_to_binary(Nanoseconds div 1000 + Offset).

state(none) -> ~"";
state(State) -> <<"\"traceState\":\"", (text(State, byte_size(State)))/binary, "\",">>.

links([]) -> ~"";
links(Links) ->
    <<_, Joined/binary>> =
        << <<",{", (state(State))/binary, "\"traceId\":\"", Trace/binary, "\",\"spanId\":\"",
             Span/binary, "\"}">> || {Trace, Span, State} <- Links >>,
    <<"\"links\":[", Joined/binary, "],">>.

port(none) -> ~"";
port(Port) -> attribute(~"client.port", Port).

id(none) -> ~"";
id(Id) when is_integer(Id) -> attribute(~"jsonrpc.request.id", integer_to_binary(Id));
id(Id) -> attribute(~"jsonrpc.request.id", Id).

attribute(Key, <<Value/binary>>) ->
    <<",{\"key\":\"", Key/binary, "\",\"value\":{\"stringValue\":\"",
      (text(Value))/binary, "\"}}">>;
attribute(Key, Value) when is_integer(Value) ->
    <<",{\"key\":\"", Key/binary, "\",\"value\":{\"intValue\":\"",
      (integer_to_binary(Value))/binary, "\"}}">>;
attribute(Key, Value) when is_boolean(Value) ->
    <<",{\"key\":\"", Key/binary, "\",\"value\":{\"boolValue\":",
      (atom_to_binary(Value))/binary, "}}">>;
attribute(Key, Value) when is_float(Value) ->
    <<",{\"key\":\"", Key/binary, "\",\"value\":{\"doubleValue\":",
      (float_to_binary(Value, [short]))/binary, "}}">>.

-doc "Returns the body of a request to a collector, with the spans of `Parts` (`add/3`).".
-spec request(scope(), Parts :: [binary(), ...]) -> iodata().
request(#{resource := Resource, version := Version}, [<<$,, First/binary>> | Parts]) ->
    [~B'{"resourceSpans":[{"resource":{"attributes":[', first(Resource),
     ~B']},"scopeSpans":[{"scope":{"name":"erlmcp","version":"', text(Version), ~B'"},"spans":[',
     First, Parts, ~B']}]}]}'].

-doc """
Encodes the name, the status and the first attributes of a span, for its member `described`. There
must be at least one attribute.
""".
-spec described(Name :: binary(), ok | {error, atom()}, erlmcp_tracer:attributes()) -> binary().
described(Name, Status, Attributes) ->
    <<"\"name\":\"", (text(Name))/binary, $", (status(Status))/binary, ",\"attributes\":[",
      (first(Attributes))/binary>>.

status(ok) -> ~"";
status({error, Name}) ->
    <<",\"status\":{\"code\":2,\"message\":\"", (text(atom_to_binary(Name)))/binary, "\"}">>.

first(Attributes) ->
    case attributes(Attributes) of
        <<_, Elements/binary>> -> Elements;
        <<>> -> <<>>
    end.

-doc """
Encodes further attributes of a span, which come after its first ones, for its member `more`.
""".
-spec attributes(erlmcp_tracer:attributes()) -> binary().
attributes(Attributes) ->
    << <<(attribute(Key, Value))/binary>> || Key := Value <- Attributes >>.

%% Returns a text as a JSON string has it, without the quotes.
text(Text) ->
    text(Text, ?TEXT_BYTES).

text(Text, Most) when byte_size(Text) =< Most ->
    case erlmcp_json:is_plain(Text) of
        true -> Text;
        false -> escaped(iolist_to_binary(json:encode_binary(valid(Text))))
    end;
text(Text, Most) ->
    text(valid(binary:part(Text, 0, Most)), Most).

-doc "Returns the first 256 bytes of a text, which are all that is sent of it.".
-spec beginning(binary()) -> binary().
beginning(Text) when byte_size(Text) =< ?TEXT_BYTES -> Text;
beginning(Text) -> binary:part(Text, 0, ?TEXT_BYTES).

escaped(Quoted) ->
    binary:part(Quoted, 1, byte_size(Quoted) - 2).

%% Returns the characters of a text before the first byte that is none.
valid(Text) ->
    case unicode:characters_to_binary(Text) of
        <<_/binary>> = Valid -> Valid;
        {_, Valid, _} -> Valid
    end.

-doc """
Returns how many spans of a request the collector has rejected, according to the body of its answer
with status 200.

## Examples

```erlang
1> erlmcp_otlp:rejected(#{~"partialSuccess" => #{~"rejectedSpans" => ~"3"}}).
3
2> erlmcp_otlp:rejected(#{}).
0
```
""".
-spec rejected(erlmcp_json:json_term()) -> non_neg_integer().
rejected(#{~"partialSuccess" := #{~"rejectedSpans" := Count}}) when is_integer(Count), Count > 0 ->
    Count;
rejected(#{~"partialSuccess" := #{~"rejectedSpans" := Text}}) when
    is_binary(Text), byte_size(Text) =< 19
->
    case string:to_integer(Text) of
        {Count, ~""} when is_integer(Count), Count > 0 -> Count;
        _ -> 0
    end;
rejected(_) ->
    0.
