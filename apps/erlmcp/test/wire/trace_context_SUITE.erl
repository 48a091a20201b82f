-module(trace_context_SUITE).
-moduledoc """
`traceparent`, `tracestate` and `baggage`, as the W3C describes them, and spans in the JSON of OTLP.
""".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0]).
-export([valid_parents/1, invalid_parents_are_ignored/1, later_versions_are_read/1,
         valid_states/1, invalid_states_leave_the_parent/1, states_have_bounds/1,
         baggage_is_kept_as_it_came/1, invalid_baggage_is_ignored/1, baggage_has_bounds/1]).
-export([hostile_contexts_are_read/1, contexts_survive_the_wire/1]).
-export([texts_are_cut/1, spans_are_json/1]).

-import(erlmcp_test_property, [holds/2]).

-define(TRACE, "4bf92f3577b34da6a3ce929d0e0e4736").
-define(SPAN, "00f067aa0ba902b7").
-define(PARENT, ~"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    erlmcp_test_suite:cases(?MODULE).

parent(Text) ->
    element(1, erlmcp_trace_context:read(#{~"traceparent" => Text})).

state(Text) ->
    {Parent, none} =
        erlmcp_trace_context:read(#{~"traceparent" => ?PARENT, ~"tracestate" => Text}),
    maps:get(state, Parent, none).

baggage(Text) ->
    {none, Baggage} = erlmcp_trace_context:read(#{~"baggage" => Text}),
    Baggage.

%% "The lowest bit of the flags is the sampled flag"; all other bits are ignored.
valid_parents(_) ->
    #{trace_id := ~"4bf92f3577b34da6a3ce929d0e0e4736", span_id := ~"00f067aa0ba902b7",
      sampled := true} = Parent = parent(?PARENT),
    false = is_map_key(state, Parent),
    [true = Sampled =:= maps:get(sampled, parent(<<"00-", ?TRACE, "-", ?SPAN, "-", Flags/binary>>))
     || {Flags, Sampled} <- [{~"00", false}, {~"01", true}, {~"02", false}, {~"03", true},
                             {~"0a", false}, {~"0b", true}, {~"fe", false}, {~"ff", true}]].

invalid_parents_are_ignored(_) ->
    [none = parent(Text) || Text <- [
        ~"", ~"00", 17, null, #{}, [?PARENT],
        %% all zeros are no ids
        ~"00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        ~"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        %% digits are lower case
        ~"00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        ~"00-4bf92f3577b34da6a3ce929d0e0e4736-00F067aa0ba902b7-01",
        ~"00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01",
        ~"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0x",
        %% version 00 has nothing behind its flags, and ff is none
        ~"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-",
        ~"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what",
        ~"ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        %% two headers, as HTTP joins them
        <<?PARENT/binary, ", ", ?PARENT/binary>>,
        ~" 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"]],
    %% "If parsing fails, the tracestate is discarded, too."
    {none, none} = erlmcp_trace_context:read(#{~"traceparent" => ~"00", ~"tracestate" => ~"a=1"}),
    {none, none} = erlmcp_trace_context:read(#{~"tracestate" => ~"a=1"}).

later_versions_are_read(_) ->
    Later = <<"cc", (binary:part(?PARENT, 2, 53))/binary>>,
    #{sampled := true} = parent(Later),
    #{sampled := true} = parent(<<Later/binary, "-what-the-future-brings">>),
    none = parent(<<Later/binary, ".what-the-future-brings">>),
    none = parent(<<"c.", (binary:part(?PARENT, 2, 53))/binary>>).

valid_states(_) ->
    [Text = state(Text) || Text <- [
        ~"rojo=00f067aa0ba902b7,congo=t61rcWkgMzE", ~"a=1", ~"0tenant@vendor=x", ~"a/*-_=!~ x",
        ~"a=1 , b=2", ~"a=1,,b=2\t", ~"a= 1"]].

invalid_states_leave_the_parent(_) ->
    [none = state(Text) || Text <- [
        ~"", ~",", ~"a", ~"=1", ~"a=", ~"A=1", ~"@a=1", ~"a b=1", ~"a=1=2", ~"a=1,a=2", 17,
        <<"a=", 16#E4/utf8>>, <<"a=", 0>>, ~"a=1,b"]].

states_have_bounds(_) ->
    Members = fun(Count) ->
        iolist_to_binary(lists:join($,, [["k", integer_to_list(N), "=1"]
                                         || N <- lists:seq(1, Count)]))
    end,
    true = is_binary(state(Members(32))),
    none = state(Members(33)),
    Long = fun(Bytes) -> <<"a=", (binary:copy(~"x", 256))/binary, ",b=",
                           (binary:copy(~"x", Bytes - 261))/binary>> end,
    512 = byte_size(state(Long(512))),
    none = state(Long(513)),
    none = state(<<"a=", (binary:copy(~"x", 257))/binary>>),
    none = state(<<(binary:copy(~"a", 257))/binary, "=x">>),
    true = is_binary(state(<<(binary:copy(~"a", 255))/binary, "=",
                             (binary:copy(~"x", 256))/binary>>)).

baggage_is_kept_as_it_came(_) ->
    [Text = baggage(Text) || Text <- [
        ~"userId=alice,serverNode=DF%2028,isProduction=false", ~"a=", ~"a = b ; p ; q = r , c=d"]].

invalid_baggage_is_ignored(_) ->
    [none = baggage(Text) || Text <- [
        ~"", ~"a", ~"=b", ~"a=b,", ~"a=b c", ~"a=\"b\"", ~"a=b;=c", ~"a(=b", <<"a=", 16#E4/utf8>>,
        <<"a=", 7>>, 17, ~"a=b;"]].

baggage_has_bounds(_) ->
    Members = fun(Count) -> iolist_to_binary(lists:join($,, lists:duplicate(Count, "a=b"))) end,
    true = is_binary(baggage(Members(64))),
    none = baggage(Members(65)),
    8192 = byte_size(baggage(<<"a=", (binary:copy(~"x", 8190))/binary>>)),
    none = baggage(<<"a=", (binary:copy(~"x", 8191))/binary>>).

%% Whatever comes, the reading ends with what could be sent on. (`layers_SUITE` finds atoms that are
%% made in a pure room.)
hostile_contexts_are_read(_) ->
    holds(?FORALL(Carrier, carrier(), is_read(erlmcp_trace_context:read(Carrier))), 3000).

carrier() ->
    ?LET({Parent, State, Baggage}, {near(?PARENT), near(~"rojo=00f067aa0ba902b7,congo=t61"),
                                    near(~"userId=alice,serverNode=DF%2028;p=1")},
         #{~"traceparent" => Parent, ~"tracestate" => State, ~"baggage" => Baggage}).

%% A valid value, one that was changed in one place, or any other.
near(Valid) ->
    frequency([{3, Valid}, {5, changed(Valid)}, {2, binary()}, {1, oneof([1, null, #{}, []])}]).

changed(Valid) ->
    ?LET({At, Part}, {integer(0, byte_size(Valid) - 1), oneof([binary(1), ~"", ~"-", ~",", ~"="])},
         begin
             <<Before:At/binary, _, After/binary>> = Valid,
             <<Before/binary, Part/binary, After/binary>>
         end).

is_read({Parent, Baggage}) ->
    is_parent(Parent) andalso (Baggage =:= none orelse byte_size(Baggage) =< 8192).

is_parent(none) ->
    true;
is_parent(#{trace_id := Trace, span_id := Span, sampled := Sampled} = Parent) ->
    is_boolean(Sampled) andalso is_id(Trace, 32) andalso is_id(Span, 16)
        andalso byte_size(maps:get(state, Parent, ~"")) =< 512.

is_id(Id, Digits) ->
    re:run(Id, <<"^(?=.*[1-9a-f])[0-9a-f]{", (integer_to_binary(Digits))/binary, "}\\z">>,
           [{capture, none}]) =:= match.

contexts_survive_the_wire(_) ->
    holds(?FORALL(Context, context(),
                  begin
                      {Parent, Baggage} =
                          erlmcp_trace_context:read(erlmcp_trace_context:write(Context)),
                      Parent =:= maps:remove(baggage, Context)
                          andalso Baggage =:= maps:get(baggage, Context, none)
                  end), 500).

context() ->
    ?LET({Trace, Span, Sampled, State, Baggage},
         {binary(16), binary(8), boolean(), boolean(), boolean()},
         maps:merge(
             #{trace_id => binary:encode_hex(<<1, (binary:part(Trace, 0, 15))/binary>>, lowercase),
               span_id => binary:encode_hex(<<1, (binary:part(Span, 0, 7))/binary>>, lowercase),
               sampled => Sampled},
             maps:from_list([{state, ~"a=1"} || State] ++ [{baggage, ~"b=2"} || Baggage]))).

%% Spans.

texts_are_cut(_) ->
    Cut = fun(Text) ->
        #{~"name" := Name} = encoded(Text, #{}, ok),
        Name
    end,
    256 = byte_size(Cut(binary:copy(~"n", 256))),
    256 = byte_size(Cut(binary:copy(~"n", 257))),
    %% a character is left out whole
    Umlauts = binary:copy(<<228/utf8>>, 127),
    <<"nn", Umlauts:254/binary>> = Cut(<<"nn", Umlauts/binary>>),
    <<"nnn", _:252/binary>> = Cut(<<"nnn", Umlauts/binary>>),
    ~"a\"b\\c\n" = Cut(~"a\"b\\c\n"),
    ~"a" = Cut(<<"a", 255, "b">>).

spans_are_json(_) ->
    holds(?FORALL({Name, Attributes, Status},
                  {binary(), attributes(), oneof([ok, {error, timeout}])},
                  begin
                      Span = encoded(Name, Attributes, Status),
                      %% Those of the beginning, further ones, the port and the request, and the
                      %% links.
                      3 + 2 * map_size(Attributes) =:= length(maps:get(~"attributes", Span))
                          andalso length(maps:get(~"links", Span)) =:= 2
                          andalso is_map_key(~"status", Span) =:= (Status =/= ok)
                  end), 500).

attributes() ->
    ?LET(Values, list(oneof([binary(), integer(), boolean(), float()])),
         #{<<"key.", (integer_to_binary(N))/binary>> => Value
           || {N, Value} <- lists:enumerate(Values)}).

encoded(Name, Attributes, Status) ->
    #{trace_id := Trace, span_id := Span} = parent(?PARENT),
    Ids = {Trace, Span, ~"a=\"1\""},
    Part = erlmcp_otlp:add(
        #{ids => Ids, parent => Span, kind => server, links => [Ids, Ids],
          described => erlmcp_otlp:described(Name, Status, Attributes#{~"mcp.method.name" => Name}),
          more => erlmcp_otlp:attributes(Attributes), port => 1, request => Name, began => 1,
          ended => 2}, 1_000_000, ~""),
    Body = erlmcp_otlp:request(#{resource => Attributes, version => Name}, [Part, Part]),
    #{~"resourceSpans" := [#{~"scopeSpans" := [#{~"spans" := [Encoded, Encoded]}]}]} =
        json:decode(iolist_to_binary(Body)),
    Encoded.
