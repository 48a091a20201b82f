-module(redaction_SUITE).
-moduledoc """
What is taken out of arguments and results before an operator sees them: by names, by the operator's
names and pointers, and by the form of a text. What is no secret stays, byte for byte.
""".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0]).
-export([examples/1, names_of_secrets/1, names_of_the_operator/1, pointers_of_the_operator/1,
         tokens_in_texts/1, json_in_texts/1, what_is_no_secret_stays/1,
         a_planted_secret_is_never_left/1, hostile_texts_take_no_longer/1, rules_are_checked/1]).

-define(GONE, ~"[redacted]").

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [examples, names_of_secrets, names_of_the_operator, pointers_of_the_operator, tokens_in_texts,
     json_in_texts, what_is_no_secret_stays, a_planted_secret_is_never_left,
     hostile_texts_take_no_longer, rules_are_checked].

examples(_) ->
    erlmcp_test_doctests:run([erlmcp_redaction]).

names_of_secrets(_) ->
    [#{Name := ?GONE, ~"x" := 1} = erlmcp_redaction:redacted(#{Name => Value, ~"x" => 1}, [])
     || Name <- [~"password", ~"Password", ~"user_password", ~"dbPasswd", ~"token", ~"accessToken",
                 ~"secret", ~"client-secret", ~"api_key", ~"X-Api-Key", ~"apiKey",
                 ~"Authorization", ~"proxy-authorization", ~"Set-Cookie", ~"credentials", ~"pin",
                 ~"private.key", ~"requestState"],
        Value <- [~"hunter2", 4711, [~"hunter2"], #{~"a" => ~"hunter2"}, true]],
    %% Wherever it is.
    #{~"a" := [1, #{~"b" := #{~"pwd" := ?GONE}}]} =
        erlmcp_redaction:redacted(#{~"a" => [1, #{~"b" => #{~"pwd" => ~"hunter2"}}]}, []),
    %% An environment as a list of pairs, in the spelling of its program.
    [#{Key := ~"API_KEY", Value := ?GONE} =
         erlmcp_redaction:redacted(#{Key => ~"API_KEY", Value => ~"hunter2"}, [])
     || {Key, Value} <- [{~"name", ~"value"}, {~"Name", ~"Value"}, {~"KEY", ~"VALUE"}]],
    [#{~"name" := ~"API_KEY", ~"value" := ?GONE}, #{~"name" := ~"HOME", ~"value" := ~"/root"}] =
        erlmcp_redaction:redacted([#{~"name" => ~"API_KEY", ~"value" => ~"hunter2"},
                                   #{~"name" => ~"HOME", ~"value" => ~"/root"}], []).

names_of_the_operator(_) ->
    Given = #{~"ssn" => 1, ~"Social-Number" => 2, ~"in" => #{~"SSN" => 3}, ~"assn" => 4},
    #{~"ssn" := ?GONE, ~"Social-Number" := ?GONE, ~"in" := #{~"SSN" := ?GONE}, ~"assn" := 4} =
        erlmcp_redaction:redacted(Given, [~"ssn", ~"social_number"]),
    Given = erlmcp_redaction:redacted(Given, []).

pointers_of_the_operator(_) ->
    Given = #{~"cards" => [#{~"n" => 1}, #{~"n" => 2}], ~"n" => 3, ~"a/b" => #{~"~" => 4}},
    #{~"cards" := [#{~"n" := ?GONE}, #{~"n" := 2}], ~"n" := 3} =
        erlmcp_redaction:redacted(Given, [~"/cards/0/n"]),
    #{~"cards" := ?GONE, ~"n" := ?GONE} = erlmcp_redaction:redacted(Given, [~"/cards", ~"/n"]),
    #{~"a/b" := #{~"~" := ?GONE}} = erlmcp_redaction:redacted(Given, [~"/a~1b/~0"]),
    Given = erlmcp_redaction:redacted(Given, [~"/cards/7/n", ~"/none", ~"/n/deeper"]),
    %% A result has the same document twice: as structured content, and as text.
    Card = #{~"card" => #{~"number" => 4711, ~"of" => ~"ada"}},
    Result = #{~"structuredContent" => Card,
               ~"content" => [#{~"type" => ~"text",
                                ~"text" => iolist_to_binary(json:encode(Card))}]},
    #{~"structuredContent" := #{~"card" := #{~"number" := ?GONE, ~"of" := ~"ada"}},
      ~"content" := [#{~"text" := Text}]} =
        Clean = erlmcp_redaction:redacted(Result, [~"/card/number"]),
    #{~"card" := #{~"number" := ?GONE, ~"of" := ~"ada"}} = json:decode(Text),
    nomatch = binary:match(iolist_to_binary(json:encode(Clean)), ~"4711"),
    #{~"content" := [#{~"text" := ?GONE}]} =
        erlmcp_redaction:redacted(Result, [~"/content/0/text"]).

tokens_in_texts(_) ->
    [{Text, true} = {Text, nomatch =:= binary:match(clean(Text), ~"hunter2")}
     || Text <- [~"Authorization: Bearer hunter2", ~"authorization: Basic aHVudGVyMg== hunter2",
                 ~"use bearer  hunter2.hunter2 now", ~"a eyJhunter2hunter2.hunter2.hunter2 b",
                 ~"Cookie: a=1; b=hunter2\nnext", ~"password=hunter2&user=ada",
                 ~"the password: \"hunter2 hunter2\", and", ~"PASSWORD = 'hunter2 x'",
                 ~"{\"api_key\":\"hunter2\", broken", ~"https://ada:hunter2@example.com/x",
                 ~"?access_token=hunter2#x", ~"client_secret: hunter2",
                 ~"ghp_hunter2hunter2", ~"sk-hunter2hunter2hunter2", ~"xoxb-hunter2-hunter2",
                 ~"-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----\nrest",
                 ~"-----BEGIN PRIVATE KEY-----\nhunter2"]],
    ~"password=[redacted]&user=ada" = clean(~"password=hunter2&user=ada"),
    ~"https://[redacted]@example.com/x" = clean(~"https://ada:hunter2@example.com/x"),
    ~"[redacted]\nrest" =
        clean(~"-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----\nrest").

json_in_texts(_) ->
    Inner = iolist_to_binary(json:encode(#{~"deep" => ~"{\"token\": \"hunter2\", \"n\": 1}"})),
    #{~"deep" := Deep} = json:decode(clean(Inner)),
    #{~"token" := ?GONE, ~"n" := 1} = json:decode(Deep),
    %% Without a secret the text stays as it was written.
    ~" {\"b\" : 1,  \"a\": 2} " = clean(~" {\"b\" : 1,  \"a\": 2} ").

what_is_no_secret_stays(_) ->
    [Json = erlmcp_redaction:redacted(Json, [~"ssn", ~"/card"])
     || Json <- [#{~"text" => ~"the basic information of a task", ~"n" => 1.5, ~"null" => null},
                 ~"a password is needed", ~"tokens are counted", ~"skill-based", ~"risk-free",
                 ~"http://example.com/a:b@c", ~"", <<"kein Paßwort: "/utf8>>, [], #{}, 7, true,
                 #{~"author" => ~"ada", ~"keys" => [~"a"], ~"spin" => 3}]].

%% Whatever is around it: the result is JSON, and the secret is not in it.
a_planted_secret_is_never_left(_) ->
    Secret = ~"hunter2PLANTED",
    Names = elements([~"password", ~"TOKEN", ~"x_api_key", ~"my-own"]),
    Planted = oneof([{Name, Secret} || Name <- [~"password", ~"authToken", ~"my-own"]]),
    Noise = oneof([?LET(Text, utf8(), Text), integer(), boolean(), null]),
    erlmcp_test_property:holds(?FORALL({{Name, Value}, Other, Noises, Wraps},
                                       {Planted, Names, list({utf8(), Noise}),
                                        list(elements([object, list, text]))},
        begin
            Object = (maps:from_list(Noises))#{Name => Value, Other => [Value]},
            Json = lists:foldl(fun wrapped/2, Object, Wraps),
            Clean = iolist_to_binary(json:encode(erlmcp_redaction:redacted(Json, [~"my own"]))),
            _ = json:decode(Clean),
            nomatch =:= binary:match(Clean, Secret)
        end), 200).

wrapped(object, Json) -> #{~"content" => Json};
wrapped(list, Json) -> [1, Json];
wrapped(text, Json) -> iolist_to_binary(json:encode(Json)).

%% Sixteen kilobytes of what a pattern could go back in.
hostile_texts_take_no_longer(_) ->
    Times = [begin
                 Text = binary:copy(Part, 16_384 div byte_size(Part)),
                 {Part, lists:min([element(1, timer:tc(fun() -> clean(Text) end))
                                   || _ <- [1, 2, 3]])}
             end || Part <- [~"a", ~"-----BEGIN PRIVATE KEY-----", ~"://", ~"://a", ~"token",
                             ~"token \t", ~"token=\"\\", ~"token='", ~"eyJ", ~"bearer ", ~"basic a",
                             ~"[", ~"{\"a\":", ~"\"", ~"authorization: "]],
    ct:pal("~p", [Times]),
    [] = [Slow || {_, Microseconds} = Slow <- Times, Microseconds > 1_000_000].

rules_are_checked(_) ->
    [true = erlmcp_redaction:is_rule(Rule) || Rule <- [~"ssn", ~"/", ~"/a/0/~0~1", ~"a b"]],
    [false = erlmcp_redaction:is_rule(Rule) || Rule <- [~"", ~"_-", ~"/a~", ~"/~2", ssn, "ssn"]].

clean(Text) -> erlmcp_redaction:redacted(Text, []).
