-module(json_schema_test_suite_SUITE).
-moduledoc """
JSON Schema's official test suite, for the three dialects: all of its required part, each with the
number of its tests; the formats that MCP asks for; and its optional part, with what does not hold
of it. Every schema is checked against its meta-schema, too.
""".

-compile(nowarn_missing_spec_documented).

-include_lib("proper/include/proper.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([draft_2020_12/1, draft_2019_09/1, draft_07/1, formats/1, optional/1,
         other_formats/1, other_instances/1, any_instance/1]).

-import(erlmcp_test_schema_suite, [files/2, read/1, compile/4]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [draft_2020_12, draft_2019_09, draft_07, formats, optional, other_formats, other_instances,
     any_instance].

init_per_suite(Config) ->
    Folder = erlmcp_test_schema_suite:folder(),
    [{folder, Folder}, {remotes, erlmcp_test_schema_suite:remotes(Folder)} | Config].

end_per_suite(_Config) ->
    ok.

draft_2020_12(Config) -> ?assertEqual({1257, []}, run("draft2020-12", all, #{}, Config)).

draft_2019_09(Config) -> ?assertEqual({1227, []}, run("draft2019-09", all, #{}, Config)).

draft_07(Config) -> ?assertEqual({913, []}, run("draft7", all, #{}, Config)).

%% What is a MUST somewhere in MCP.
formats(Config) ->
    Files = ["uri", "uri-template", "email", "date-time", "date"],
    [?assertEqual({Count, []},
                  run(Draft ++ "/optional/format", Files, #{formats => assert}, Config), Draft)
     || {Draft, Count} <- [{"draft2020-12", 130}, {"draft2019-09", 123}, {"draft7", 123}]].

%% `content*` says something of the value inside a string; we say nothing of that.
optional(Config) ->
    ?assertEqual({158, []}, run("draft2020-12/optional", all, #{formats => assert}, Config)),
    ?assertEqual({154, []}, run("draft2019-09/optional", all, #{formats => assert}, Config)),
    {114, Failed} = run("draft7/optional", all, #{formats => assert}, Config),
    ?assertEqual([{~"content.json", 4}], counted(Failed)).

other_formats(Config) ->
    Files = ["time", "ipv4", "ipv6", "uuid", "uri-reference", "json-pointer", "regex",
             "ecmascript-regex", "unknown"],
    ?assertEqual({189, []},
                 run("draft2020-12/optional/format", Files, #{formats => assert}, Config)).

counted(Failed) ->
    maps:to_list(maps:map(fun(_, Tests) -> length(Tests) end,
                          maps:groups_from_list(fun({File, _, _, _}) -> File end, Failed))).

run(Draft, Names, Options, Config) ->
    Results = [{Name, map_get(~"description", Group), map_get(~"description", Test),
                outcome(Test, Compiled)}
               || {Name, Group} <- groups(Draft, Names, Config),
                  Compiled <- [compiled(Group, Draft, Options, Config)],
                  Test <- map_get(~"tests", Group)],
    {Passed, Failed} = lists:partition(fun({_, _, _, Outcome}) -> Outcome =:= ok end, Results),
    {length(Passed), Failed}.

groups(Draft, Names, Config) ->
    [{list_to_binary(filename:basename(File)), Group}
     || File <- files(proplists:get_value(folder, Config), Draft),
        Names =:= all orelse lists:member(filename:basename(File, ".json"), Names),
        Group <- read(File)].

compiled(#{~"schema" := Schema}, Draft, Options, Config) ->
    compile(Schema, Draft, proplists:get_value(remotes, Config), Options).

outcome(#{~"data" := Value, ~"valid" := Valid}, {ok, Compiled}) ->
    Answer = erlmcp_schema:is_valid(Value, Compiled),
    case {Valid, erlmcp_schema:validate(Value, Compiled)} of
        {true, ok} when Answer -> ok;
        {false, {error, [_ | _] = Errors}} when not Answer ->
            [#{message := _} | _] = erlmcp_schema:details(Errors),
            ok;
        {_, Other} -> {unexpected, Other}
    end;
outcome(_, Error) ->
    {unexpected, Error}.

%% Each schema with the values of all the others: an answer, and if it is no, a reason for it.
other_instances(Config) ->
    [begin
         Groups = [Group || {_, Group} <- groups(Draft, all, Config)],
         Values = lists:usort([Value || #{~"tests" := Tests} <- Groups,
                                        #{~"data" := Value} <- Tests]),
         [answers(Value, Compiled)
          || Group <- Groups,
             {ok, Compiled} <- [compiled(Group, Draft, #{formats => assert}, Config)],
             Value <- Values]
     end || Draft <- ["draft2020-12", "draft2019-09", "draft7"]].

any_instance(Config) ->
    Schemas = list_to_tuple(
        [Compiled || Draft <- ["draft2020-12", "draft2019-09", "draft7"],
                     {_, Group} <- groups(Draft, all, Config),
                     {ok, Compiled} <- [compiled(Group, Draft, #{formats => assert}, Config)]]),
    Property = ?FORALL({N, Value}, {integer(1, tuple_size(Schemas)), json()},
                       answers(Value, element(N, Schemas))),
    ?assert(proper:quickcheck(Property, [{to_file, user}, {numtests, 3000}, {max_size, 30}])).

answers(Value, Compiled) ->
    Valid = erlmcp_schema:is_valid(Value, Compiled),
    case erlmcp_schema:validate(Value, Compiled) of
        ok -> Valid;
        {error, [_ | _] = Errors} when not Valid ->
            lists:all(fun(#{instance_path := Instance, schema_path := Schema,
                            message := Message}) ->
                is_binary(unicode:characters_to_binary(Message))
                    andalso is_pointer(Instance) andalso is_pointer(Schema)
            end, erlmcp_schema:details(Errors)) orelse error({bad_errors, Errors})
    end.

is_pointer(~"") -> true;
is_pointer(<<"/", _/binary>>) -> true;
is_pointer(_) -> false.

json() ->
    ?SIZED(Size, json(Size)).

json(0) ->
    oneof([null, boolean(), integer(), float(), text(), [], #{},
           elements([1.0, -0.0, 1.0e308, 1 bsl 70, ~"2024-02-29", ~"http://a/b?c#d", ~"é"])]);
json(Size) ->
    frequency([
        {2, json(0)},
        {2, ?LET(Items, list(json(Size div 4)), Items)},
        {3, ?LET(Members, list({name(), json(Size div 4)}), maps:from_list(Members))}
    ]).

text() ->
    ?LET(Text, list(oneof([range($a, $f), range(0, 16#D7FF), elements("~/#%\"\\")])),
         unicode:characters_to_binary(Text)).

name() ->
    oneof([text(), elements([~"foo", ~"bar", ~"baz", ~"a", ~"b", ~"data", ~"children", ~"node",
                             ~"$ref", ~"type", ~"prop1", ~"name", ~"kind", ~"next"])]).
