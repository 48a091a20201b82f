-module(wire_json_SUITE).
-moduledoc """
RFC 8259 and the parts of RFC 7493 (I-JSON) that `m:erlmcp_json` enforces, each limit at its value
and one beyond, and no bytes that crash it.
""".

-compile(nowarn_missing_spec_documented).

-include_lib("proper/include/proper.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([suite/0, all/0]).
-export([examples/1, values/1, syntax/1, strings/1, numbers/1, bytes/1, depth/1, members/1,
         duplicate_keys/1, limits_hold_early/1, no_atoms/1,
         never_crashes/1, round_trip/1, limits_at_and_beyond/1,
         quickly_or_not/1, known_or_not/1, params_or_not/1, each_byte_of_strings/1, plain_texts/1,
         answers/1, errors_of_a_batch/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [examples, values, syntax, strings, numbers, bytes, depth, members, duplicate_keys,
     limits_hold_early, no_atoms, never_crashes, round_trip,
     limits_at_and_beyond, quickly_or_not, known_or_not, params_or_not, each_byte_of_strings,
     plain_texts, answers, errors_of_a_batch].

examples(_Config) ->
    erlmcp_test_doctests:run([erlmcp_json]).

values(_Config) ->
    [?assertEqual({ok, Value}, decode(Text), Text)
     || {Text, Value} <- [
            {~"null", null},
            {~"true", true},
            {~"false", false},
            {~"[]", []},
            {~"{}", #{}},
            {~"[[],{},[{}]]", [[], #{}, [#{}]]},
            {~B' { "a" : [ 1 , "x" ] , "b" : null } ', #{~"a" => [1, ~"x"], ~"b" => null}},
            {~"\t\r\n 1 \t\r\n", 1},
            {~"{}\r", #{}}
        ]].

syntax(_Config) ->
    [?assertEqual({error, Reason}, decode(Text), Text)
     || {Text, Reason} <- [
            {~"", unexpected_end},
            {~" ", unexpected_end},
            {~"[", unexpected_end},
            {~"[1,", unexpected_end},
            {~B'{"a":', unexpected_end},
            {~B'"abc', unexpected_end},
            {~"tru", unexpected_end},
            {~"-", unexpected_end},
            {~"1 2", trailing_bytes},
            {~"{} {}", trailing_bytes},
            {~"01", trailing_bytes},
            {~"[]]", trailing_bytes},
            {~"truely", trailing_bytes},
            {~"[1,]", {invalid_byte, $], 3}},
            {~"[,1]", {invalid_byte, $,, 1}},
            {~"{1:2}", {invalid_byte, $1, 1}},
            {~B'{"a" 1}', {invalid_byte, $1, 5}},
            {~B'{"a":1,}', {invalid_byte, $}, 7}},
            {~"'a'", {invalid_byte, $', 0}},
            {~"[1 // one\n]", {invalid_byte, $/, 3}},
            {~"[NaN]", {invalid_byte, $N, 1}},
            {~"[+1]", {invalid_byte, $+, 1}},
            {~"[.5]", {invalid_byte, $., 1}},
            {~"[1.]", {invalid_byte, $], 3}},
            {~"[1e]", {invalid_byte, $], 3}},
            {<<16#EF, 16#BB, 16#BF, "1">>, {invalid_byte, 16#EF, 0}},
            {~"\f1", {invalid_byte, $\f, 0}}
        ]].

strings(_Config) ->
    [?assertEqual({ok, String}, decode(Text), Text)
     || {Text, String} <- [
            {~B'""', ~""},
            {~B'"\"\\\/\b\f\n\r\t"', ~"\"\\/\b\f\n\r\t"},
            {~B'"\u00e9\u20AC"', ~"é€"},
            {~B'"\ud83d\uDE00"', ~"😀"},
            {~B'"\u0000"', <<0>>},
            {~"\"é€😀\"", ~"é€😀"}
        ]],
    [?assertEqual({error, Reason}, decode(Text), Text)
     || {Text, Reason} <- [
            {~B'["\udc00"]', {invalid_escape, 2}},
            {~B'["\ud800\u0041"]', {invalid_escape, 2}},
            {~B'["\ud800\ud800"]', {invalid_escape, 2}},
            {~B'["\ud800 alone"]', {invalid_byte, $\s, 8}},
            {~B'"\ud800"', unexpected_end},
            {~B'["\u12G4"]', {invalid_escape, 2}},
            {~B'["\x41"]', {invalid_byte, $x, 3}},
            {~"\"a\nb\"", {invalid_byte, $\n, 2}},
            {<<"\"", 0, "\"">>, {invalid_byte, 0, 1}},
            {<<"\"", 16#FF, "\"">>, {invalid_byte, 16#FF, 1}},
            %% a surrogate in UTF-8, an overlong "/", and what is beyond U+10FFFF
            {<<"\"", 16#ED, 16#A0, 16#80, "\"">>, {invalid_byte, 16#A0, 2}},
            {<<"\"", 16#C0, 16#AF, "\"">>, {invalid_byte, 16#C0, 1}},
            {<<"\"", 16#F4, 16#90, 16#80, 16#80, "\"">>, {invalid_byte, 16#90, 2}},
            {<<"\"", 16#C3, "\"">>, {invalid_byte, $", 2}},
            {<<"\"", 16#C3>>, unexpected_end}
        ]].

numbers(_Config) ->
    [?assert({ok, Number} =:= decode(Text), Text)
     || {Text, Number} <- [
            {~"0", 0},
            {~"-0", 0},
            {~"-0.0", -0.0},
            {~"1.0", 1.0},
            {~"1E5", 1.0e5},
            {~"-1.5e-3", -1.5e-3},
            {~"1e-400", 0.0},
            {~"9007199254740993", 9007199254740993},
            {~"123456789012345678901234567890", 123456789012345678901234567890}
        ]],
    ?assertEqual({error, {number_out_of_range, 1}}, decode(~"[1e400]")),
    ?assertEqual({error, {number_out_of_range, 0}}, decode(~"-1.0e999")),
    [begin
         Number = fun(Bytes) -> [Form, lists:duplicate(Bytes - length(Form), Digit)] end,
         ?assertMatch({ok, _}, decode(Number(400)), Form),
         ?assertEqual({error, {number_too_long, 400}}, decode(Number(401)), Form),
         ?assertEqual({error, {number_too_long, 400}}, decode([$[, Number(401), $]]), Form)
     end || {Form, Digit} <- [{"", $1}, {"-", $1}, {"0.", $1}, {"-0.", $1}, {"0.5e", $0},
                              {"0.5e-", $0}]],
    %% Alike in a message that is too long to be read twice (`quickly_or_not/1`).
    Around = binary:copy(~" ", 65_536),
    [begin
         Number = fun(Bytes) -> [Form, lists:duplicate(Bytes - length(Form), $0)] end,
         ?assertMatch({ok, _}, decode([Before, Number(398)]), Form),
         [?assertEqual({error, {number_too_long, 400}}, decode([Before, Number(Bytes)]), Form)
          || Bytes <- [399, 400, 401]]
     end || Form <- ["1e", "-1e", "1E+", "20e-"], Before <- [~"", Around]].

bytes(_Config) ->
    Text = ~"[1,2,3]",
    ?assertEqual({ok, [1, 2, 3]}, decode(Text, #{message_bytes => 7})),
    ?assertEqual({error, {too_large, 6, 7}}, decode(Text, #{message_bytes => 6})).

depth(_Config) ->
    [begin
         ?assertMatch({ok, _}, decode(nested(Open, Close, 5), #{depth => 5})),
         ?assertEqual({error, {too_deep, 5}}, decode(nested(Open, Close, 6), #{depth => 5}))
     end || {Open, Close} <- [{"[", "]"}, {"{\"a\":", "}"}]],
    ?assertEqual({error, {too_deep, 1}}, decode(~"[[]]", #{depth => 1})),
    ?assertEqual({error, {too_deep, 1}}, decode(~"[{}]", #{depth => 1})),
    %% What was left again does not count.
    ?assertMatch({ok, [[], #{}, [], #{~"a" := 1}]},
                 decode(~B'[[],{},[],{"a":1}]', #{depth => 2})).

nested(Open, Close, Depth) ->
    [lists:duplicate(Depth, Open), $1, lists:duplicate(Depth, Close)].

members(_Config) ->
    Text = ~B'[{"a":1,"b":{"c":[{"d":1}]}},{"e":1}, 1, 2, 3, 4, 5, 6]',
    ?assertMatch({ok, _}, decode(Text, #{members => 5})),
    ?assertEqual({error, {too_many_members, 4}}, decode(Text, #{members => 4})).

duplicate_keys(_Config) ->
    [?assertEqual({error, {duplicate_key, Key}}, decode(Text), Text)
     || {Text, Key} <- [
            {~B'{"a":1,"a":1}', ~"a"},
            {~B'{"":1,"x":2,"":1}', ~""},
            {~B'[{"b":{"a":1,"a":2}}]', ~"a"},
            {~B'{"a":1,"\u0061":1}', ~"a"},
            {~B'{"a":1,"b":2,"a":3,"b":4}', ~"a"}
        ]],
    ?assertMatch({ok, _}, decode(~B'{"a":{"a":1},"A":[{"a":1},{"a":1}]}')).

%% What is broken is refused where it breaks: these do not end, and would take long if they did.
limits_hold_early(_Config) ->
    Megabyte = 1 bsl 20,
    Limits = #{message_bytes => 2 * Megabyte},
    [begin
         {Reductions, Result} = erlmcp_test_reductions:of_fun(fun() -> decode(Text, Limits) end),
         ?assertEqual({error, Reason}, Result),
         ?assert(Reductions < Most, {Reason, Reductions})
     end || {Text, Reason, Most} <- [
            {binary:copy(~"[", Megabyte), {too_deep, 64}, 1_000},
            {binary:copy(~B'{"a":', Megabyte div 5), {too_deep, 64}, 5_000},
            {binary:copy(~B'{"a":1,', Megabyte div 8), {invalid_byte, ${, 7}, 1_000},
            {[${, binary:copy(~B'"a":1,', Megabyte div 6)], {too_many_members, 10_000}, 500_000},
            {binary:copy(~"1", Megabyte), {number_too_long, 400}, 2 * Megabyte},
            {[~"0.", binary:copy(~"1", Megabyte)], {number_too_long, 400}, 2 * Megabyte},
            {[~"1e", binary:copy(~"1", Megabyte)], {number_too_long, 400}, 2 * Megabyte}
        ]].

no_atoms(_Config) ->
    %% Once for what the first call loads.
    {ok, _} = decode(~B'{"a":[true,false,null]}'),
    Before = erlang:system_info(atom_count),
    Text = json:encode(#{integer_to_binary(I) => <<"v", (integer_to_binary(I))/binary>>
                         || I <- lists:seq(1, 1000)}),
    {ok, _} = decode(Text),
    %% Others of this node may make some.
    ?assert(erlang:system_info(atom_count) - Before < 500).

never_crashes(_Config) ->
    check(?FORALL(Text, oneof([binary(), fragments(), broken_json()]),
                  case decode(Text, #{message_bytes => 200, depth => 3, members => 4}) of
                      {ok, _} -> true;
                      {error, Reason} -> is_reason(Reason, byte_size(Text))
                  end),
          3000).

is_reason({too_large, 200, Observed}, Size) -> Observed =:= Size;
is_reason({too_deep, 3}, _) -> true;
is_reason({too_many_members, 4}, _) -> true;
is_reason({duplicate_key, Key}, _) -> is_binary(Key);
is_reason({number_too_long, 400}, _) -> true;
is_reason({number_out_of_range, Offset}, Size) -> Offset < Size;
is_reason({invalid_escape, Offset}, Size) -> Offset < Size;
is_reason({invalid_byte, Byte, Offset}, Size) -> Byte =< 255 andalso Offset < Size;
is_reason(Reason, _) -> lists:member(Reason, [unexpected_end, trailing_bytes]).

fragments() ->
    Fragment = elements([~"{", ~"}", ~"[", ~"]", ~",", ~":", ~"\"a\"", ~"\"b\"", ~"\"", ~"\\u",
                         ~"\\ud800", ~"00e9", ~"1", ~"-", ~".5", ~"e400", ~"null", ~" ", ~"\r\n",
                         ~"é", <<16#C3>>, <<16#FF>>]),
    ?LET(Fragments, list(Fragment), iolist_to_binary(Fragments)).

broken_json() ->
    ?LET({Term, At, Byte}, {json_term(), non_neg_integer(), byte()},
         begin
             Text = iolist_to_binary(json:encode(Term)),
             <<Head:(At rem byte_size(Text))/binary, _, Tail/binary>> = Text,
             <<Head/binary, Byte, Tail/binary>>
         end).

round_trip(_Config) ->
    check(?FORALL({Term, Before, After}, {json_term(), whitespace(), whitespace()},
                  {ok, Term} =:= decode([Before, json:encode(Term), After])),
          1000).

%% What a message has is what the limits may not be below.
limits_at_and_beyond(_Config) ->
    check(?FORALL(Term, json_term(),
                  begin
                      Text = iolist_to_binary(json:encode(Term)),
                      Bytes = byte_size(Text),
                      {Depth, Members} = measure(Term),
                      At = #{message_bytes => Bytes, depth => max(1, Depth),
                             members => max(1, Members)},
                      {ok, Term} =:= decode(Text, At) andalso
                          {error, {too_large, Bytes - 1, Bytes}} =:=
                              decode(Text, At#{message_bytes := Bytes - 1}) andalso
                          (Depth < 2 orelse {error, {too_deep, Depth - 1}} =:=
                              decode(Text, At#{depth := Depth - 1})) andalso
                          (Members < 2 orelse {error, {too_many_members, Members - 1}} =:=
                              decode(Text, At#{members := Members - 1}))
                  end),
          1000).

%% What is written as it is, is as `m:json` writes it: each byte at each place that it can have in
%% what is looked at together. A long text is left to `m:json`.
plain_texts(_Config) ->
    [begin
         Text = <<(binary:copy(~"a", Before))/binary, Byte, (binary:copy(~"z", After))/binary>>,
         ?assertEqual(is_as_written(Text), erlmcp_json:is_plain(Text), Text)
     end || Byte <- lists:seq(0, 255), Before <- lists:seq(0, 7), After <- [0, 1, 6, 7, 8]],
    Long = [binary:copy(~"a", Size) || Size <- [0, 1_024, 1_025]],
    ?assertEqual([true, true, false], [erlmcp_json:is_plain(Text) || Text <- Long]).

is_as_written(Text) ->
    try iolist_to_binary(json:encode(Text)) of
        Encoded -> Encoded =:= <<$", Text/binary, $">>
    catch
        error:{invalid_byte, _} -> false;
        error:unexpected_end -> false
    end.

%% The answer that has one text, short or long, plain or not, says that text under its id.
answers(_Config) ->
    Texts = [~"", ~"plain", ~"\"quoted\"\n", ~"\x{20ac}", binary:copy(~"a", 1_024),
             binary:copy(~"a", 1_025)],
    [begin
         Context = #{revision => Revision, call => #{server_meta => Meta}},
         {ok, Result} = erlmcp_result:from(tool, Text, #{}, Context),
         Answer = iolist_to_binary(erlmcp_message:result(Id, Result)),
         ?assertMatch({ok, #{~"id" := Id,
                             ~"result" := #{~"content" := [#{~"type" := ~"text",
                                                             ~"text" := Text}]}}},
                      decode(Answer))
     end || Text <- Texts, Id <- [0, -7, 1 bsl 60, ~"seven", ~"\"7\""],
            Revision <- ['2026-07-28', '2025-11-25'], Meta <- [~"{}", [~"{\"a\":", ~"1}"]]].

%% The fast decoder reads a message first, except for one of more than 65,536 bytes.
quickly_or_not(_Config) ->
    Around = binary:copy(~" ", 65_536),
    Limits = #{depth => 3, members => 4},
    check(?FORALL(Text, oneof([fragments(), broken_json(), json_fragments()]),
                  case {decode(Text, Limits), decode([Around, Text], Limits)} of
                      {{ok, Term}, Long} -> Long =:= {ok, Term};
                      {{error, _}, Long} -> element(1, Long) =:= error
                  end),
          3000).

%% A `_meta` that is known changes nothing, whatever is around it, and at every limit.
known_or_not(_Config) ->
    check(?FORALL({Meta, Beside, Depth, Members},
                  {json_term(), json_term(), range(1, 6), range(1, 9)},
                  begin
                      Object = iolist_to_binary(json:encode(#{~"m" => Meta})),
                      Around = json:encode(Beside),
                      [Text | _] = Texts =
                          [iolist_to_binary(Parts)
                           || Parts <- [[~B'{"_meta":', Object, ~B',"a":', Around, $}],
                                        [~B'{"a":', Around, ~B',"_meta":', Object, ~B',"b":1}'],
                                        [~B'{"a":{"_meta":', Object, ~B' },"_meta": ', Object, $}],
                                        [~B'{"_meta":', Object, ~B'}'],
                                        [~B'{"_meta":', Object, ~B',"_meta":', Object, $}],
                                        [~B'{"_meta":', Object],
                                        [~B'{"_meta":', Object, $1, $}],
                                        [~B'{"_meta":{"m":1,"m":2}}']]],
                      Limits = #{message_bytes => 1_000_000, depth => Depth, members => Members},
                      case erlmcp_json:known_meta(Text) of
                          {ok, Known} ->
                              lists:all(fun(One) ->
                                            erlmcp_json:decode(One, Limits, Known)
                                                =:= erlmcp_json:decode(One, Limits)
                                        end, Texts);
                          none ->
                              byte_size(Object) > 1_024
                      end
                  end),
          1000).

%% The params that are read behind a method are those of the whole message, which ends with them, at
%% every limit; and what is wrong with it is nobody's params.
params_or_not(_Config) ->
    Begin = ~B'{"jsonrpc":"2.0","id":7',
    Method = ~B',"method":"a","params":',
    Term = ?LET(Value, json_term(), iolist_to_binary(json:encode(Value))),
    check(?FORALL({Params, End, Depth, Members},
                  {oneof([json_fragments(), Term]),
                   elements([~"}", ~"}", ~"}", ~"", ~" }", ~"}}", ~"} ", ~B',"b":1}',
                             ~B',"id":7}']),
                   range(1, 6), range(1, 9)},
                  begin
                      Text = <<Begin/binary, Method/binary, Params/binary, End/binary>>,
                      Limits = #{message_bytes => 1_000_000, depth => Depth, members => Members},
                      Decoded = erlmcp_json:decode(Text, Limits),
                      case erlmcp_json:params(Text, {byte_size(Begin), Method}, Limits, none) of
                          {ok, Read} ->
                              Decoded =:= {ok, #{~"jsonrpc" => ~"2.0", ~"id" => 7,
                                                 ~"method" => ~"a", ~"params" => Read}};
                          other ->
                              End =/= ~"}" orelse element(1, Decoded) =:= error
                      end
                  end),
          3000),
    Limits = #{depth => 2, members => 4},
    Text = <<Begin/binary, Method/binary, "{}}">>,
    Params = fun(Changed) ->
                 erlmcp_json:params(Text, {byte_size(Begin), Method}, maps:merge(Limits, Changed),
                                    none)
             end,
    Bytes = byte_size(Text),
    [?assertEqual(Expected, Params(Changed), Changed)
     || {Changed, Expected} <- [{#{message_bytes => Bytes}, {ok, #{}}},
                                {#{message_bytes => Bytes - 1}, other},
                                {#{message_bytes => Bytes, depth => 1}, other},
                                {#{message_bytes => Bytes, members => 3}, other}]].

%% Mostly right.
json_fragments() ->
    Key = elements([~B'"jsonrpc"', ~B'"id"', ~B'"method"', ~B'"params"', ~B'"name"', ~B'"_meta"',
                    ~B'"arguments"', ~B'"io.modelcontextprotocol/protocolVersion"', ~B'"i\u0064"',
                    ~B'"io.modelcontextprotocol/clientInfo"', ~B'"é"', ~B'"method"', ~B'""',
                    ~B'"io.modelcontextprotocol/clientCapabilities"', ~B'"method "', ~"method"]),
    Value = elements([~"{}", ~"[]", ~"0", ~"-0", ~"01", ~"1", ~"123456789012345678", ~"1e5",
                      ~"1234567890123456789", ~"-12", ~"1.5", ~"1.", ~"true", ~"null", ~"nul",
                      ~B'"a"', ~B'"a\"b\\"', ~B'"\x"', ~"\"\t\"", ~B'"éé"', ~B'[1,"a",{}]',
                      ~B'{"id":1}', ~B'{"id":1,"id":2}', binary:copy(~"1", 401)]),
    Space = frequency([{5, ~""}, {1, elements([~" ", ~"\n", ~"\r\t", ~"x"])}]),
    ?LET(Members, list({Key, Space, Value, Space}),
         iolist_to_binary([${, lists:join($,, [[K, S, $:, T, V] || {K, S, V, T} <- Members]), $}])).

%% At each place of a string, and of a key, that is as long as several are that are read at once.
each_byte_of_strings(_Config) ->
    [begin
         Before = binary:copy(~"a", At),
         Text = <<Begin/binary, Before/binary, Byte, "bcdefghijklmnop", End/binary>>,
         Expected = try json:decode(Text) of
             Term -> {ok, Term}
         catch
             error:_ -> error
         end,
         case decode(Text) of
             {ok, _} = Decoded -> ?assertEqual(Expected, Decoded);
             {error, _} -> ?assertEqual(Expected, error)
         end
     end || {Begin, End} <- [{~"[\"", ~"\"]"}, {~"{\"", ~"\":1}"}], At <- lists:seq(0, 8),
            Byte <- lists:seq(0, 255)].

measure(Term) when is_map(Term) ->
    {Depth, Members} = measure(maps:values(Term)),
    {Depth, Members + map_size(Term)};
measure(Term) when is_list(Term) ->
    {Depths, Members} = lists:unzip([measure(Item) || Item <- Term]),
    {1 + lists:max([0 | Depths]), lists:sum(Members)};
measure(_) ->
    {0, 0}.

json_term() ->
    ?SIZED(Size, json_term(Size)).

json_term(Size) when Size < 2 ->
    oneof([null, boolean(), integer(), largeint(), float(), text()]);
json_term(Size) ->
    ?LAZY(oneof([
        json_term(0),
        list(json_term(Size div 3)),
        ?LET(Members, list({text(), json_term(Size div 3)}), maps:from_list(Members))
    ])).

text() ->
    Character = oneof([range(0, 16#7F), range(16#80, 16#D7FF), range(16#E000, 16#10FFFF)]),
    ?LET(Characters, list(Character), unicode:characters_to_binary(Characters)).

whitespace() ->
    list(elements(" \t\r\n")).

check(Property, Tests) ->
    ?assert(proper:quickcheck(Property, [{to_file, user}, {numtests, Tests}, {max_size, 20}])).

decode(Text) ->
    decode(Text, #{}).

decode(Text, Limits) ->
    Usual = #{message_bytes => 1_000_000, depth => 64, members => 10_000},
    erlmcp_json:decode(iolist_to_binary(Text), maps:merge(Usual, Limits)).

%% Specification 2025-03-26, "Batching": a batch of responses is an array with at least one.
errors_of_a_batch(_) ->
    Refusal = erlmcp_refusal:new(dependency_unavailable, ~"gone", #{}),
    Answers = fun(Requests) ->
        json:decode(iolist_to_binary(erlmcp_message:errors(Requests, Refusal)))
    end,
    #{~"id" := 1, ~"error" := _} = Answers({call, [1]}),
    [#{~"id" := ~"a", ~"error" := _}, #{~"id" := 2}] = Answers({batch, [~"a", 2]}),
    #{~"error" := _} = None = Answers({batch, []}),
    false = is_map_key(~"id", None).
