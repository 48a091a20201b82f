-module(erlmcp_otlp).
-moduledoc """
Spans in the JSON encoding of OTLP, and the answer of a collector. Pure.

A span is encoded by itself when it ends. Each text of it is cut after 256 bytes, except for
`tracestate`, which has its own bound.

Sources: opentelemetry-proto, `docs/specification.md`, "JSON Protobuf Encoding" and "OTLP/HTTP
Response", and `trace.proto`.

Internal.
""".

-export([attributes/1, span/3, request/2, rejected/1]).

-export_type([scope/0]).

-doc "The attributes of the program whose spans are sent, and the version of this library.".
-type scope() :: #{resource := erlmcp_tracer:attributes(), version := binary()}.

%% The most bytes of a text: names may be those of unknown tools, and ids are the peer's.
-define(TEXT_BYTES, 256).

-doc """
Encodes a span that has ended. The attributes of its start are encoded already (`attributes/1`). Its
times are monotonic, in nanoseconds. With `Offset` added, in microseconds, they are system time. A
server's span has a parent on another machine, and any other span one on this node.

## Examples

```erlang
1> Context = #{trace_id => ~"4bf92f3577b34da6a3ce929d0e0e4736",
               span_id => ~"00f067aa0ba902b7", sampled => true}.
2> Start = #{name => ~"ping", kind => server, parent => none, links => [], attributes => #{},
             began => 0}.
3> End = #{status => ok, attributes => #{}, ended => 0}.
4> json:decode(erlmcp_otlp:span({Context, Start, ~""}, End, 1_000_000)).
#{~"traceId" => ~"4bf92f3577b34da6a3ce929d0e0e4736", ~"spanId" => ~"00f067aa0ba902b7",
  ~"flags" => 257, ~"name" => ~"ping", ~"kind" => 2, ~"startTimeUnixNano" => ~"1000000000",
  ~"endTimeUnixNano" => ~"1000000000", ~"attributes" => []}
```
""".
-spec span({erlmcp_tracer:context(), erlmcp_tracer:span_start(), Attributes :: binary()},
           erlmcp_tracer:span_end(), Offset :: integer()) ->
    binary().
span({#{trace_id := Trace, span_id := Span} = Context,
      #{name := Name, kind := Kind, parent := Parent, links := Links, began := Began}, First},
     #{status := Status, attributes := Last, ended := Ended}, Offset) ->
    <<"{\"traceId\":\"", Trace/binary, "\",\"spanId\":\"", Span/binary,
      (parent(Kind, Parent))/binary, (kind(Kind))/binary, (time(Began, Offset))/binary,
      "000\",\"endTimeUnixNano\":\"", (time(Ended, Offset))/binary, "000\",\"name\":\"",
      (text(Name))/binary, $", (state(Context))/binary, ",\"attributes\":[", First/binary,
      (comma(First, Last))/binary, (attributes(Last))/binary, $], (links(Links))/binary,
      (status(Status))/binary, $}>>.

comma(First, Last) when First =:= ~""; map_size(Last) =:= 0 -> ~"";
comma(_, _) -> ~",".

%% The bits of `flags` are 1 for a sampled span, as all of these are, and 16#100 with 16#200 if the
%% parent is on another machine.
parent(_, none) -> ~B'","flags":257';
parent(server, #{span_id := Span}) -> <<"\",\"flags\":769,\"parentSpanId\":\"", Span/binary, $">>;
parent(_, #{span_id := Span}) -> <<"\",\"flags\":257,\"parentSpanId\":\"", Span/binary, $">>.

kind(internal) -> ~B',"kind":1,"startTimeUnixNano":"';
kind(server) -> ~B',"kind":2,"startTimeUnixNano":"';
kind(client) -> ~B',"kind":3,"startTimeUnixNano":"'.

%% Nanoseconds of today are not small integers any more.
time(Nanoseconds, Offset) ->
    integer_to_binary(Nanoseconds div 1000 + Offset).

state(#{state := State}) -> <<",\"traceState\":\"", (text(State, byte_size(State)))/binary, $">>;
state(_) -> ~"".

-doc "Encodes attributes as the elements of an array.".
-spec attributes(erlmcp_tracer:attributes()) -> binary().
attributes(Attributes) ->
    iolist_to_binary(lists:join($,, [attribute(Key, Value) || Key := Value <- Attributes])).

attribute(Key, Value) ->
    <<"{\"key\":\"", Key/binary, "\",\"value\":{", (value(Value))/binary, "}}">>.

value(Value) when is_binary(Value) ->
    <<"\"stringValue\":\"", (text(Value))/binary, $">>;
value(Value) when is_integer(Value) ->
    <<"\"intValue\":\"", (integer_to_binary(Value))/binary, $">>;
value(Value) when is_boolean(Value) ->
    <<"\"boolValue\":", (atom_to_binary(Value))/binary>>;
value(Value) when is_float(Value) ->
    <<"\"doubleValue\":", (float_to_binary(Value, [short]))/binary>>.

links([]) -> ~"";
links(Links) ->
    <<_, Joined/binary>> =
        << <<",{\"traceId\":\"", Trace/binary, "\",\"spanId\":\"", Span/binary, $",
             (state(Link))/binary, $}>> || #{trace_id := Trace, span_id := Span} = Link <- Links >>,
    <<",\"links\":[", Joined/binary, $]>>.

status(ok) -> ~"";
status({error, Name}) ->
    <<",\"status\":{\"code\":2,\"message\":\"", (text(atom_to_binary(Name)))/binary, "\"}">>.

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

escaped(Quoted) ->
    binary:part(Quoted, 1, byte_size(Quoted) - 2).

%% Returns the characters of a text before the first byte that is none.
valid(Text) ->
    case unicode:characters_to_binary(Text) of
        <<_/binary>> = Valid -> Valid;
        {_, Valid, _} -> Valid
    end.

-doc """
Returns the body of a request to a collector, with spans that `span/3` has encoded.
""".
-spec request(scope(), [binary(), ...]) -> iodata().
request(#{resource := Resource, version := Version}, Spans) ->
    [~B'{"resourceSpans":[{"resource":{"attributes":[', attributes(Resource),
     ~B']},"scopeSpans":[{"scope":{"name":"erlmcp","version":"', text(Version), ~B'"},"spans":[',
     lists:join($,, Spans), ~B']}]}]}'].

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
