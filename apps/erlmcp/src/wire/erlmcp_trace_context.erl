-module(erlmcp_trace_context).
-moduledoc """
The trace context of a request: `traceparent`, `tracestate` and `baggage`, as members of `_meta` or
as HTTP headers. Pure.

A value that breaks its format is ignored, as the W3C requires, and so is one that breaks a bound of
this module. The request is served without it. An invalid `traceparent` takes its `tracestate` with
it, and not the other way round.

Sources: specification 2026-07-28, "Base protocol / OpenTelemetry trace context"; W3C Trace Context,
"traceparent Header" and "tracestate Header"; W3C Baggage, "Baggage HTTP Header Format".

Internal.
""".

-export([read/1, write/1]).

%% The W3C requires that at least these are passed on: 32 members and 512 bytes of `tracestate`, and
%% 64 members and 8,192 bytes of `baggage`. More are ignored.
-define(STATE_MEMBERS, 32).
-define(STATE_BYTES, 512).
-define(BAGGAGE_MEMBERS, 64).
-define(BAGGAGE_BYTES, 8192).

-define(NO_TRACE, ~"00000000000000000000000000000000").
-define(NO_SPAN, ~"0000000000000000").

-define(IS_HEX(C), (C >= $0 andalso C =< $9 orelse C >= $a andalso C =< $f)).
-define(IS_LOWER(C), (C >= $a andalso C =< $z)).
-define(IS_DIGIT(C), (C >= $0 andalso C =< $9)).
-define(IS_SPACE(C), (C =:= $\s orelse C =:= $\t)).

-doc """
Reads a trace context from a `_meta` object, or from HTTP headers by lower-case names. Returns the
remote parent and the baggage, each `none` if there is no valid one.

## Examples

```erlang
1> Parent = ~"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".
2> erlmcp_trace_context:read(#{~"traceparent" => Parent, ~"tracestate" => ~"vendor=1"}).
{#{trace_id => ~"4bf92f3577b34da6a3ce929d0e0e4736", span_id => ~"00f067aa0ba902b7",
   sampled => true, state => ~"vendor=1"},
 none}
3> erlmcp_trace_context:read(#{~"traceparent" => ~"00-xyz-00f067aa0ba902b7-01"}).
{none, none}
```
""".
-spec read(#{binary() => term()}) ->
    {Parent :: erlmcp_tracer:context() | none, Baggage :: binary() | none}.
read(#{~"traceparent" := Text} = Carrier) ->
    {with_state(parent(Text), Carrier), baggage(Carrier)};
read(Carrier) ->
    {none, baggage(Carrier)}.

%% A later version may have more behind its flags, but the same members before that.
parent(<<"00-", Trace:32/binary, $-, Span:16/binary, $-, Flags:2/binary>>) ->
    parent(Trace, Span, Flags);
parent(<<Version:2/binary, $-, Trace:32/binary, $-, Span:16/binary, $-, Flags:2/binary,
         More/binary>>)
  when Version =/= ~"00", Version =/= ~"ff" ->
    case is_hex(Version) andalso is_later(More) of
        true -> parent(Trace, Span, Flags);
        false -> none
    end;
parent(_) ->
    none.

is_later(<<>>) -> true;
is_later(<<$-, _/binary>>) -> true;
is_later(_) -> false.

parent(?NO_TRACE, _, _) ->
    none;
parent(_, ?NO_SPAN, _) ->
    none;
parent(Trace, Span, <<_, Flags>> = Both) ->
    case is_hex(Trace) andalso is_hex(Span) andalso is_hex(Both) of
        true -> #{trace_id => Trace, span_id => Span, sampled => is_odd(Flags)};
        false -> none
    end.

%% The lowest bit of the flags is `sampled`. The character of `a`, which is ten, is odd.
is_odd(Digit) when ?IS_DIGIT(Digit) -> Digit band 1 =:= 1;
is_odd(Letter) -> Letter band 1 =:= 0.

is_hex(<<C, Rest/binary>>) when ?IS_HEX(C) -> is_hex(Rest);
is_hex(Rest) -> Rest =:= <<>>.

with_state(#{} = Parent, #{~"tracestate" := Text}) when
    is_binary(Text), byte_size(Text) =< ?STATE_BYTES
->
    Members = members(Text),
    Keys = [Key || {Key, _} <- Members],
    case length(Members) =< ?STATE_MEMBERS andalso Members =/= []
        andalso lists:all(fun is_state/1, Members)
        andalso length(lists:usort(Keys)) =:= length(Keys)
    of
        true -> Parent#{state => Text};
        false -> Parent
    end;
with_state(Parent, _) ->
    Parent.

%% Returns the members of a list as keys and values. Empty members are allowed, and left out.
members(Text) ->
    [case binary:split(Member, ~"=") of
         [Key, Value] -> {Key, Value};
         [_] -> {invalid, Member}
     end || Part <- binary:split(Text, ~",", [global]), Member <- [trim(Part)], Member =/= ~""].

trim(<<C, Rest/binary>>) when ?IS_SPACE(C) -> trim(Rest);
trim(Text) -> trim_end(Text, byte_size(Text) - 1).

trim_end(Text, Last) ->
    case Text of
        <<Rest:Last/binary, C>> when ?IS_SPACE(C) -> trim_end(Rest, Last - 1);
        _ -> Text
    end.

is_state({invalid, _}) ->
    false;
is_state({<<C, Rest/binary>> = Key, Value}) when ?IS_LOWER(C); ?IS_DIGIT(C) ->
    byte_size(Key) =< 256 andalso all(Rest, fun is_state_key/1)
        andalso byte_size(Value) =< 256 andalso Value =/= ~"" andalso all(Value, fun is_state/1);
is_state({_, _}) ->
    false;
is_state(C) ->
    C >= $\s andalso C =< $~ andalso C =/= $, andalso C =/= $=.

is_state_key(C) ->
    ?IS_LOWER(C) orelse ?IS_DIGIT(C) orelse C =:= $_ orelse C =:= $- orelse C =:= $*
        orelse C =:= $/ orelse C =:= $@.

baggage(#{~"baggage" := Text}) when is_binary(Text), byte_size(Text) =< ?BAGGAGE_BYTES ->
    Members = binary:split(Text, ~",", [global]),
    case length(Members) =< ?BAGGAGE_MEMBERS
        andalso lists:all(fun is_baggage/1, Members)
    of
        true -> Text;
        false -> none
    end;
baggage(_) ->
    none.

%% A member is a key with a value, and perhaps properties, which need no value.
is_baggage(Member) ->
    [First | Properties] = [trim(Part) || Part <- binary:split(Member, ~";", [global])],
    is_pair(binary:split(First, ~"="))
        andalso lists:all(fun(Property) ->
                              Pair = binary:split(Property, ~"="),
                              is_pair(Pair) orelse is_key(Pair)
                          end, Properties).

is_pair([Key, Value]) -> is_token(trim(Key)) andalso all(trim(Value), fun is_baggage_octet/1);
is_pair(_) -> false.

is_key([Key]) -> is_token(Key);
is_key(_) -> false.

is_token(~"") -> false;
is_token(Text) -> all(Text, fun is_token_char/1).

is_token_char(C) ->
    ?IS_LOWER(C) orelse ?IS_DIGIT(C) orelse C >= $A andalso C =< $Z
        orelse lists:member(C, "!#$%&'*+-.^_`|~").

is_baggage_octet(C) ->
    C > $\s andalso C =< $~ andalso not lists:member(C, "\",;\\").

all(<<C, Rest/binary>>, Is) -> Is(C) andalso all(Rest, Is);
all(<<>>, _) -> true.

-doc """
Returns the members of `_meta` that carry a context to another server.

## Examples

```erlang
1> erlmcp_trace_context:write(#{trace_id => ~"4bf92f3577b34da6a3ce929d0e0e4736",
                                span_id => ~"00f067aa0ba902b7", sampled => false}).
#{~"traceparent" => ~"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"}
```
""".
-spec write(erlmcp_tracer:context()) -> #{binary() => binary()}.
write(#{trace_id := Trace, span_id := Span, sampled := Sampled} = Context) ->
    Flags = case Sampled of
        true -> ~"01";
        false -> ~"00"
    end,
    Parent = #{~"traceparent" => <<"00-", Trace/binary, $-, Span/binary, $-, Flags/binary>>},
    maps:merge(Parent, #{name(Key) => Value
                         || Key := Value <- maps:with([state, baggage], Context)}).

name(state) -> ~"tracestate";
name(baggage) -> ~"baggage".
