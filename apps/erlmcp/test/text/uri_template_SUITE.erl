-module(uri_template_SUITE).
-moduledoc """
RFC 6570, the examples of its sections 3.2.2 to 3.2.9 and the errors of section 2; and the matching
of `m:erlmcp_uri_template`, which a regular expression has to agree with.
""".

-compile(nowarn_missing_spec_documented).

-include_lib("proper/include/proper.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0]).
-export([examples/1, simple/1, reserved/1, fragment/1, label/1, path/1, path_style_parameters/1,
         form_style_query/1, form_style_continuation/1, literals/1, values/1, variables/1,
         invalid_templates/1, matches/1, stops/1, parameters_match/1, lists_match/1,
         prefixes_match/1, repeated_variables/1, escapes/1, no_match/1, long_uris/1,
         time_is_linear/1, expanded_matches/1, agrees_with_a_regular_expression/1,
         never_crashes/1]).

all() ->
    [examples, simple, reserved, fragment, label, path, path_style_parameters, form_style_query,
     form_style_continuation, literals, values, variables, invalid_templates, matches, stops,
     parameters_match, lists_match, prefixes_match, repeated_variables, escapes, no_match,
     long_uris, time_is_linear, expanded_matches, agrees_with_a_regular_expression, never_crashes].

%% What is not linear would run for hours.
suite() ->
    [{timetrap, {minutes, 4}}].

examples(_Config) ->
    erlmcp_test_doctests:run([erlmcp_uri_template]).

%% Section 3.2, "the following variable definitions"; undef is absent.
rfc_values() ->
    #{~"count" => [~"one", ~"two", ~"three"],
      ~"dom" => [~"example", ~"com"],
      ~"dub" => ~"me/too",
      ~"hello" => ~"Hello World!",
      ~"half" => ~"50%",
      ~"var" => ~"value",
      ~"who" => ~"fred",
      ~"base" => ~"http://example.com/home/",
      ~"path" => ~"/foo/bar",
      ~"list" => [~"red", ~"green", ~"blue"],
      ~"keys" => [{~"semi", ~";"}, {~"dot", ~"."}, {~"comma", ~","}],
      ~"v" => ~"6",
      ~"x" => ~"1024",
      ~"y" => ~"768",
      ~"empty" => ~"",
      ~"empty_keys" => #{}}.

expand_to(Table) ->
    [?assertEqual(Uri, expand(Template, rfc_values()), Template) || {Template, Uri} <- Table].

%% 3.2.2. Simple String Expansion: {var}; the first three are of 3.2.1.
simple(_Config) ->
    expand_to([
        {~"{count}", ~"one,two,three"},
        {~"{count*}", ~"one,two,three"},
        {~"{/count*}", ~"/one/two/three"},
        {~"{var}", ~"value"},
        {~"{hello}", ~"Hello%20World%21"},
        {~"{half}", ~"50%25"},
        {~"O{empty}X", ~"OX"},
        {~"O{undef}X", ~"OX"},
        {~"{x,y}", ~"1024,768"},
        {~"{x,hello,y}", ~"1024,Hello%20World%21,768"},
        {~"?{x,empty}", ~"?1024,"},
        {~"?{x,undef}", ~"?1024"},
        {~"?{undef,y}", ~"?768"},
        {~"{var:3}", ~"val"},
        {~"{var:30}", ~"value"},
        {~"{list}", ~"red,green,blue"},
        {~"{list*}", ~"red,green,blue"},
        {~"{keys}", ~"semi,%3B,dot,.,comma,%2C"},
        {~"{keys*}", ~"semi=%3B,dot=.,comma=%2C"}
    ]).

%% 3.2.3. Reserved Expansion: {+var}
reserved(_Config) ->
    expand_to([
        {~"{+var}", ~"value"},
        {~"{+hello}", ~"Hello%20World!"},
        {~"{+half}", ~"50%25"},
        {~"{base}index", ~"http%3A%2F%2Fexample.com%2Fhome%2Findex"},
        {~"{+base}index", ~"http://example.com/home/index"},
        {~"O{+empty}X", ~"OX"},
        {~"O{+undef}X", ~"OX"},
        {~"{+path}/here", ~"/foo/bar/here"},
        {~"here?ref={+path}", ~"here?ref=/foo/bar"},
        {~"up{+path}{var}/here", ~"up/foo/barvalue/here"},
        {~"{+x,hello,y}", ~"1024,Hello%20World!,768"},
        {~"{+path,x}/here", ~"/foo/bar,1024/here"},
        {~"{+path:6}/here", ~"/foo/b/here"},
        {~"{+list}", ~"red,green,blue"},
        {~"{+list*}", ~"red,green,blue"},
        {~"{+keys}", ~"semi,;,dot,.,comma,,"},
        {~"{+keys*}", ~"semi=;,dot=.,comma=,"}
    ]).

%% 3.2.4. Fragment Expansion: {#var}
fragment(_Config) ->
    expand_to([
        {~"{#var}", ~"#value"},
        {~"{#hello}", ~"#Hello%20World!"},
        {~"{#half}", ~"#50%25"},
        {~"foo{#empty}", ~"foo#"},
        {~"foo{#undef}", ~"foo"},
        {~"{#x,hello,y}", ~"#1024,Hello%20World!,768"},
        {~"{#path,x}/here", ~"#/foo/bar,1024/here"},
        {~"{#path:6}/here", ~"#/foo/b/here"},
        {~"{#list}", ~"#red,green,blue"},
        {~"{#list*}", ~"#red,green,blue"},
        {~"{#keys}", ~"#semi,;,dot,.,comma,,"},
        {~"{#keys*}", ~"#semi=;,dot=.,comma=,"}
    ]).

%% 3.2.5. Label Expansion with Dot-Prefix: {.var}
label(_Config) ->
    expand_to([
        {~"{.who}", ~".fred"},
        {~"{.who,who}", ~".fred.fred"},
        {~"{.half,who}", ~".50%25.fred"},
        {~"www{.dom*}", ~"www.example.com"},
        {~"X{.var}", ~"X.value"},
        {~"X{.empty}", ~"X."},
        {~"X{.undef}", ~"X"},
        {~"X{.var:3}", ~"X.val"},
        {~"X{.list}", ~"X.red,green,blue"},
        {~"X{.list*}", ~"X.red.green.blue"},
        {~"X{.keys}", ~"X.semi,%3B,dot,.,comma,%2C"},
        {~"X{.keys*}", ~"X.semi=%3B.dot=..comma=%2C"},
        {~"X{.empty_keys}", ~"X"},
        {~"X{.empty_keys*}", ~"X"}
    ]).

%% 3.2.6. Path Segment Expansion: {/var}
path(_Config) ->
    expand_to([
        {~"{/who}", ~"/fred"},
        {~"{/who,who}", ~"/fred/fred"},
        {~"{/half,who}", ~"/50%25/fred"},
        {~"{/who,dub}", ~"/fred/me%2Ftoo"},
        {~"{/var}", ~"/value"},
        {~"{/var,empty}", ~"/value/"},
        {~"{/var,undef}", ~"/value"},
        {~"{/var,x}/here", ~"/value/1024/here"},
        {~"{/var:1,var}", ~"/v/value"},
        {~"{/list}", ~"/red,green,blue"},
        {~"{/list*}", ~"/red/green/blue"},
        {~"{/list*,path:4}", ~"/red/green/blue/%2Ffoo"},
        {~"{/keys}", ~"/semi,%3B,dot,.,comma,%2C"},
        {~"{/keys*}", ~"/semi=%3B/dot=./comma=%2C"}
    ]).

%% 3.2.7. Path-Style Parameter Expansion: {;var}
path_style_parameters(_Config) ->
    expand_to([
        {~"{;who}", ~";who=fred"},
        {~"{;half}", ~";half=50%25"},
        {~"{;empty}", ~";empty"},
        {~"{;v,empty,who}", ~";v=6;empty;who=fred"},
        {~"{;v,bar,who}", ~";v=6;who=fred"},
        {~"{;x,y}", ~";x=1024;y=768"},
        {~"{;x,y,empty}", ~";x=1024;y=768;empty"},
        {~"{;x,y,undef}", ~";x=1024;y=768"},
        {~"{;hello:5}", ~";hello=Hello"},
        {~"{;list}", ~";list=red,green,blue"},
        {~"{;list*}", ~";list=red;list=green;list=blue"},
        {~"{;keys}", ~";keys=semi,%3B,dot,.,comma,%2C"},
        {~"{;keys*}", ~";semi=%3B;dot=.;comma=%2C"}
    ]).

%% 3.2.8. Form-Style Query Expansion: {?var}
form_style_query(_Config) ->
    expand_to([
        {~"{?who}", ~"?who=fred"},
        {~"{?half}", ~"?half=50%25"},
        {~"{?x,y}", ~"?x=1024&y=768"},
        {~"{?x,y,empty}", ~"?x=1024&y=768&empty="},
        {~"{?x,y,undef}", ~"?x=1024&y=768"},
        {~"{?var:3}", ~"?var=val"},
        {~"{?list}", ~"?list=red,green,blue"},
        {~"{?list*}", ~"?list=red&list=green&list=blue"},
        {~"{?keys}", ~"?keys=semi,%3B,dot,.,comma,%2C"},
        {~"{?keys*}", ~"?semi=%3B&dot=.&comma=%2C"}
    ]).

%% 3.2.9. Form-Style Query Continuation: {&var}
form_style_continuation(_Config) ->
    expand_to([
        {~"{&who}", ~"&who=fred"},
        {~"{&half}", ~"&half=50%25"},
        {~"?fixed=yes{&x}", ~"?fixed=yes&x=1024"},
        {~"{&x,y,empty}", ~"&x=1024&y=768&empty="},
        {~"{&x,y,undef}", ~"&x=1024&y=768"},
        {~"{&var:3}", ~"&var=val"},
        {~"{&list}", ~"&list=red,green,blue"},
        {~"{&list*}", ~"&list=red&list=green&list=blue"},
        {~"{&keys}", ~"&keys=semi,%3B,dot,.,comma,%2C"},
        {~"{&keys*}", ~"&semi=%3B&dot=.&comma=%2C"}
    ]).

literals(_Config) ->
    [?assertEqual(Uri, expand(Template, #{})) || {Template, Uri} <- [
        {~"", ~""},
        {~"a'b", ~"a'b"},
        {~"/caf%C3%A9/é", ~"/caf%C3%A9/%C3%A9"},
        {~":/?#[]@!$&()*+,;=", ~":/?#[]@!$&()*+,;="}
    ]].

values(_Config) ->
    [?assertEqual(Uri, expand(Template, #{~"a" => Value})) || {Template, Value, Uri} <- [
        {~"{a}", 6, ~"6"},
        {~"{a}", 37.76, ~"37.76"},
        {~"{a}", null, ~""},
        {~"{a}", [], ~""},
        {~"{a}", ~"é~", ~"%C3%A9~"},
        {~"{a:2}", ~"é€x", ~"%C3%A9%E2%82%AC"},
        {~"{+a}", ~"%2F%zz%", ~"%2F%25zz%25"},
        {~"{?a*}", #{~"k" => ~"v w"}, ~"?k=v%20w"},
        {~"{?a*}", [~"", ~"x"], ~"?a=&a=x"},
        {~"{;a*}", [~"", ~"x"], ~";a;a=x"}
    ]],
    %% "Prefix modifiers are not applicable to variables that have composite values."
    ?assertError(badarg, expand(~"{a:1}", #{~"a" => [~"x"]})),
    ?assertError(badarg, expand(~"{a:1}", #{~"a" => #{~"x" => ~"y"}})).

variables(_Config) ->
    {ok, Template} = erlmcp_uri_template:compile(~"{x}{?a,x*,b.c:3}{/%C3%A9,a}"),
    ?assertEqual([~"x", ~"a", ~"b.c", ~"%C3%A9"], erlmcp_uri_template:variables(Template)).

invalid_templates(_Config) ->
    [?assertEqual({error, {Reason, Part}}, erlmcp_uri_template:compile(Text), Text)
     || {Text, Reason, Part} <- [
            {~"a{b", invalid_literal, ~"a{b"},
            {~"{", invalid_literal, ~"{"},
            {~"{a}b}", invalid_literal, ~"b}"},
            {~"a b", invalid_literal, ~"a b"},
            {~"a\n", invalid_literal, ~"a\n"},
            {~"100%", invalid_literal, ~"100%"},
            {~"%4", invalid_literal, ~"%4"},
            {~"a|b", invalid_literal, ~"a|b"},
            {~"a\\b", invalid_literal, ~"a\\b"},
            {<<"a", 16#FF>>, invalid_literal, <<"a", 16#FF>>}
        ]],
    [?assertEqual({error, {invalid_expression, Text}}, erlmcp_uri_template:compile(Text))
     || Text <- [~"{}", ~"{?}", ~"{a,}", ~"{,a}", ~"{a b}", ~"{a-b}", ~"{a.}", ~"{a..b}", ~"{.}",
                 ~"{a:}", ~"{a:0}", ~"{a:01}", ~"{a:10000}", ~"{a:x}", ~"{a:1*}", ~"{a**}", ~"{*}",
                 ~"{%2x}", ~"{é}", ~"{{a}", ~"{a\n}",
                 %% "The operator characters equals, comma, exclamation, at and pipe are reserved."
                 ~"{=a}", ~"{!a}", ~"{@a}", ~"{|a}"]].

matches(_Config) ->
    gives([
        {~"note:///{id}", ~"note:///123", #{~"id" => ~"123"}},
        {~"static://x", ~"static://x", #{}},
        {~"user://{who}", ~"user://joe@example.com:80", #{~"who" => ~"joe@example.com:80"}},
        {~"weather://{city}", ~"weather://Paris, Île-de-France",
         #{~"city" => ~"Paris, Île-de-France"}},
        {~"{a}/{b}", ~"x/y", #{~"a" => ~"x", ~"b" => ~"y"}},
        {~"{name}.{type}", ~"a.b.c", #{~"name" => ~"a.b", ~"type" => ~"c"}},
        {~"{name}{.type}", ~"a.b.c", #{~"name" => ~"a.b", ~"type" => ~"c"}},
        {~"{a}{b}", ~"xyz", #{~"a" => ~"xy", ~"b" => ~"z"}},
        {~"{a,b}", ~"x,y", #{~"a" => ~"x", ~"b" => ~"y"}},
        {~"file://{+path}", ~"file:///etc/passwd?x#y", #{~"path" => ~"/etc/passwd?x#y"}},
        {~"{+path}/{name}", ~"a/b/c", #{~"path" => ~"a/b", ~"name" => ~"c"}},
        {~"{+path}/meta", ~"a/meta/b/meta", #{~"path" => ~"a/meta/b"}},
        {~"{/a,b}/c", ~"/x/y/c", #{~"a" => ~"x", ~"b" => ~"y"}},
        {~"x{#f}", ~"x#a/b?c", #{~"f" => ~"a/b?c"}},
        {~"/é/{a}", ~"/%C3%A9/x", #{~"a" => ~"x"}}
    ]).

stops(_Config) ->
    [?assertEqual(nomatch, match(Template, Uri), {Template, Uri})
     || {Template, Uri} <- [
            {~"note:///{id}", ~"note:///a/b"},
            {~"note:///{id}", ~"note:///a?b"},
            {~"note:///{id}", ~"note:///a#b"},
            {~"note:///{id}", ~"note:///"},
            {~"{a,b}", ~"x,y,z"},
            {~"{+a}", ~""},
            {~"x{#f}", ~"x"},
            {~"x{#f}", ~"x#"},
            {~"x{/a}", ~"x"},
            {~"{/a,b}", ~"/x"},
            {~"/é", ~"/é"}
        ]].

parameters_match(_Config) ->
    gives([
        {~"x{?q,r}", ~"x", #{}},
        {~"x{?q,r}", ~"x?q=1", #{~"q" => ~"1"}},
        {~"x{?q,r}", ~"x?r=2&q=1", #{~"q" => ~"1", ~"r" => ~"2"}},
        {~"x{?q}", ~"x?q=a=b/c?d%26", #{~"q" => ~"a=b/c?d&"}},
        {~"x{?q}", ~"x?q=", #{~"q" => ~""}},
        {~"x{?q}", ~"x?q", #{~"q" => ~""}},
        {~"x{?a}{&b}", ~"x?b=1&a=2", #{~"a" => ~"2", ~"b" => ~"1"}},
        {~"x?v=1{&q}", ~"x?v=1", #{}},
        {~"x?v=1{&q}", ~"x?v=1&q=2", #{~"q" => ~"2"}},
        {~"{a}{;p,q}", ~"x;q;p=1", #{~"a" => ~"x", ~"p" => ~"1", ~"q" => ~""}},
        {~"{a}{;p}/b", ~"x;p=1/b", #{~"a" => ~"x", ~"p" => ~"1"}},
        {~"{a}{;p}{?q}", ~"x?q=1", #{~"a" => ~"x", ~"q" => ~"1"}},
        {~"{+path}{?q}", ~"a/b?q=1", #{~"path" => ~"a/b", ~"q" => ~"1"}},
        {~"x{?q}{#f}", ~"x?q=1#here?q=2", #{~"q" => ~"1", ~"f" => ~"here?q=2"}}
    ]),
    [?assertEqual(nomatch, match(~"x{?q,r}", Uri), Uri)
     || Uri <- [~"x?", ~"x?s=1", ~"x?q=1&s=1", ~"x?q=1&q=2", ~"x?q=1&", ~"x?&q=1", ~"x&q=1",
                ~"x?Q=1", ~"x?q=1#f", ~"x?%71=1"]].

lists_match(_Config) ->
    gives([
        {~"{a*}", ~"x,y", #{~"a" => [~"x", ~"y"]}},
        {~"{a*,b}", ~"x,y,z", #{~"a" => [~"x", ~"y"], ~"b" => ~"z"}},
        {~"{/a*}", ~"/x/y%2Fz", #{~"a" => [~"x", ~"y/z"]}},
        {~"{/a*}/z{?q*}", ~"/x/z?q=1&q=2", #{~"a" => [~"x"], ~"q" => [~"1", ~"2"]}},
        {~"www{.a*}", ~"www.x.y", #{~"a" => [~"x", ~"y"]}},
        {~"{+a*}", ~"x/1,y", #{~"a" => [~"x/1", ~"y"]}},
        {~"{;a*}", ~";a=1;a", #{~"a" => [~"1", ~""]}},
        {~"{?a*}", ~"?a=1", #{~"a" => [~"1"]}}
    ]).

prefixes_match(_Config) ->
    ?assertEqual({ok, #{~"a" => ~"é€"}}, match(~"{a:2}", ~"%C3%A9€")),
    ?assertEqual({ok, #{~"a" => ~"x"}}, match(~"{?a:2}", ~"?a=x")),
    ?assertEqual(nomatch, match(~"{a:2}", ~"xyz")).

repeated_variables(_Config) ->
    ?assertEqual({ok, #{~"a" => ~"x"}}, match(~"{a}/{a}", ~"x/x")),
    ?assertEqual({ok, #{~"a" => ~"x"}}, match(~"{a}/{a}", ~"x/%78")),
    ?assertEqual(nomatch, match(~"{a}/{a}", ~"x/xy")),
    ?assertEqual({ok, #{~"var" => ~"value"}}, match(~"{/var:1,var}", ~"/v/value")),
    ?assertEqual(nomatch, match(~"{/var:1,var}", ~"/x/value")),
    ?assertEqual(nomatch, match(~"{a}/{a*}", ~"x/x")),
    ?assertEqual(nomatch, match(~"{a:1}/{a*}", ~"x/x")).

escapes(_Config) ->
    ?assertEqual({ok, #{~"a" => ~"/?#%\0é"}}, match(~"{a}", ~"%2f%3F%23%25%00%C3%A9")),
    [?assertEqual(nomatch, match(Template, <<Uri/binary, Value/binary>>), {Template, Value})
     || {Template, Uri} <- [{~"{a}", ~""}, {~"{+a}", ~""}, {~"{#a}", ~"#"}, {~"{?a}", ~"?a="},
                            {~"{/a*}", ~"/"}, {~"{;a*}", ~";a="}],
        Value <- [~"%", ~"%2", ~"%zz", ~"x%", ~"%FF", ~"%C3", ~"%ED%A0%80", <<16#FF>>,
                  <<"x", 16#C3>>]].

no_match(_Config) ->
    [?assertEqual(nomatch, match(~"note:///{id}", Uri))
     || Uri <- [~"", ~"note", ~"NOTE:///1", ~"xnote:///1", ~"note:///1\n/"]].

long_uris(_Config) ->
    ?assertMatch({ok, _}, match(~"{+a}", binary:copy(~"x", 8192))),
    ?assertEqual(nomatch, match(~"{+a}", binary:copy(~"x", 8193))).

%% A matcher that tries every way takes its time here: 4096 bytes may be cut in five places.
time_is_linear(_Config) ->
    [begin
         {Reductions, Result} = erlmcp_test_reductions:of_fun(fun() -> match(Template, Uri) end),
         ?assertEqual(nomatch, Result),
         ?assert(Reductions < 100 * byte_size(Uri), {Template, Reductions})
     end || Template <- [~"{+a}x{+b}x{+c}x{+d}x{+e}y", ~"{a}{b}{c}{d}{e}{+f}y",
                         ~"{+a}{b*}{+c}{d}{;e}{+f}{?g}y", ~"{+a}{+b}{+c}{+d}{+e}%62",
                         ~"{+a}%C3{+b}%C3{+c}y", ~"{#a}{?b}y"],
            Uri <- [binary:copy(~"x", 4096), binary:copy(~"x;", 2048), binary:copy(~"%61", 1365),
                    binary:copy(~"%C3", 1365), <<"#", (binary:copy(~"?", 4095))/binary>>]].

expanded_matches(_Config) ->
    Templates = [compiled(Text) || Text <- [
        ~"note:///{a}", ~"x://{a}/{b}", ~"{a}{b}", ~"{a,b}", ~"/{+a}", ~"{+a}?{b}", ~"x{#a}",
        ~"{/a,b}", ~"x{;a,b}", ~"x{?a,b}", ~"x{?a}{&b}", ~"x{.a}/{b}"
    ]],
    check(?FORALL({Template, A, B}, {elements(Templates), value(), value()},
                  begin
                      Names = erlmcp_uri_template:variables(Template),
                      Values = maps:with(Names, #{~"a" => A, ~"b" => B}),
                      Uri = erlmcp_uri_template:expand(Template, Values),
                      case erlmcp_uri_template:match(Uri, Template) of
                          {ok, Values} ->
                              true;
                          %% Where a value may be cut in more ways than one, another reading does.
                          {ok, Others} ->
                              Uri =:= erlmcp_uri_template:expand(Template, Others);
                          nomatch ->
                              false
                      end
                  end),
          3000).

%% Without "%" and "#", which stand for more than themselves after {+a}, and "," "?" "&" ";".
value() ->
    Character = oneof([elements("ab/:@!. ~"), range($a, $z), elements("é€😀")]),
    ?LET(Characters, non_empty(list(Character)), unicode:characters_to_binary(Characters)).

%% PCRE tries every way, the longest first, and so has to find the same.
agrees_with_a_regular_expression(_Config) ->
    Part = elements([{"a", "a"}, {"/", "/"}, {"b/", "b/"}, {value, "[^/?#]"}, {value, "."}]),
    check(?FORALL({Parts, Uri}, {resize(6, list(Part)), uri()},
                  begin
                      Named = lists:zip(lists:seq(1, length(Parts)), Parts),
                      Text = [text(Name, Kind) || {Name, Kind} <- Named],
                      Pattern = [$^, [pattern(Kind) || Kind <- Parts], $$],
                      Template = compiled(iolist_to_binary(Text)),
                      Names = [name(Name) || {Name, {value, _}} <- Named],
                      Expected =
                          case re:run(Uri, Pattern, [{capture, all_but_first, binary}]) of
                              {match, Values} -> {ok, maps:from_list(lists:zip(Names, Values))};
                              nomatch -> nomatch
                          end,
                      Expected =:= erlmcp_uri_template:match(Uri, Template)
                  end),
          5000).

text(Name, {value, "."}) -> ["{+", name(Name), "}"];
text(Name, {value, _}) -> ["{", name(Name), "}"];
text(_, {Literal, _}) -> Literal.

pattern({value, Class}) -> ["(", Class, "+)"];
pattern({_, Literal}) -> Literal.

name(Number) -> <<"v", (integer_to_binary(Number))/binary>>.

uri() ->
    ?LET(Pieces, resize(14, list(elements(["a", "b", "/", "b/"]))), iolist_to_binary(Pieces)).

never_crashes(_Config) ->
    Fragment = elements([~"{", ~"}", ~"+", ~"#", ~"?", ~"&", ~";", ~"/", ~".", ~",", ~"*", ~":2",
                         ~"a", ~"b", ~"{a}", ~"{+b}", ~"{?a*}", ~"{/b*}", ~"{;a}", ~"%61", ~"%",
                         ~"=", ~"é", <<16#FF>>, <<0>>]),
    Bytes = ?LET(Fragments, list(Fragment), iolist_to_binary(Fragments)),
    check(?FORALL({Text, Uri}, {Bytes, oneof([Bytes, binary()])},
                  case erlmcp_uri_template:compile(Text) of
                      {ok, Template} ->
                          case erlmcp_uri_template:match(Uri, Template) of
                              {ok, Values} -> is_map(Values);
                              nomatch -> true
                          end;
                      {error, {Reason, Part}} ->
                          is_atom(Reason) andalso is_binary(Part)
                  end),
          5000).

gives(Table) ->
    [?assertEqual({ok, Values}, match(Template, Uri), {Template, Uri})
     || {Template, Uri, Values} <- Table].

match(Template, Uri) ->
    erlmcp_uri_template:match(Uri, compiled(Template)).

expand(Template, Values) ->
    erlmcp_uri_template:expand(compiled(Template), Values).

compiled(Text) ->
    {ok, Template} = erlmcp_uri_template:compile(Text),
    Template.

check(Property, Tests) ->
    ?assert(proper:quickcheck(Property, [{to_file, user}, {numtests, Tests}])).
