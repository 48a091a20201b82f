-module(wire_request_header_SUITE).
-moduledoc """
Specification 2026-07-28, "Streamable HTTP / Request Metadata", from the client's side:
`m:erlmcp_request_header`, whose headers the server's `m:erlmcp_header` takes.
""".

-compile(nowarn_missing_spec_documented).

-include_lib("proper/include/proper.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([suite/0, all/0]).
-export([examples/1, versions/1, names/1, odd_names/1, plain/1, encoded/1, arguments/1,
         reads_back/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [examples, versions, names, odd_names, plain, encoded, arguments, reads_back].

examples(_) ->
    erlmcp_test_doctests:run([erlmcp_request_header]).

%% For everything that follows `initialize`, since 2025-06-18.
versions(_) ->
    [?assertEqual([{~"mcp-protocol-version", erlmcp_revision:name(Revision)}],
                  erlmcp_request_header:version(Revision))
     || Revision <- erlmcp_revision:all(), Revision >= '2025-06-18'],
    [?assertEqual([], erlmcp_request_header:version(Revision))
     || Revision <- ['2025-03-26', '2024-11-05']].

names(_) ->
    [begin
         Headers = erlmcp_request_header:request(Method, Params),
         ?assertEqual(Expected, Headers),
         ?assertEqual(ok, erlmcp_header:check(Method, Params,
                                               erlmcp_header:read(maps:from_list(Headers))))
     end || {Method, Params, Expected} <- [
                {~"tools/call", #{~"name" => ~"a b", ~"uri" => ~"x"},
                 [{~"mcp-method", ~"tools/call"}, {~"mcp-name", ~"a b"}]},
                {~"prompts/get", #{~"name" => ~"p"},
                 [{~"mcp-method", ~"prompts/get"}, {~"mcp-name", ~"p"}]},
                {~"resources/read", #{~"uri" => ~"file:///a"},
                 [{~"mcp-method", ~"resources/read"}, {~"mcp-name", ~"file:///a"}]},
                {~"tasks/get", #{~"taskId" => ~"7"},
                 [{~"mcp-method", ~"tasks/get"}, {~"mcp-name", ~"7"}]},
                {~"tools/list", #{~"name" => ~"x"}, [{~"mcp-method", ~"tools/list"}]}]].

%% What is no name is left to the server to refuse.
odd_names(_) ->
    [?assertEqual([{~"mcp-method", ~"tools/call"}],
                  erlmcp_request_header:request(~"tools/call", Params))
     || Params <- [#{}, #{~"name" => 5}, #{~"name" => null}]].

%% Printable ASCII, as it is.
plain(_) ->
    [?assertEqual(Text, erlmcp_request_header:encode(Text))
     || Text <- [~"", ~"a", ~"us west 1", ~"~!@#", ~"=?base64?", ~"a=?base64?eA==?=", ~"?="]].

%% What is not ASCII, spaces at the ends, control characters, and what looks encoded.
encoded(_) ->
    [?assertEqual(<<"=?base64?", (base64:encode(Text))/binary, "?=">>,
                  erlmcp_request_header:encode(Text))
     || Text <- [~" ", ~" a", ~"a ", ~"a\nb", ~"a\r\nb: c", ~"a\tb", <<0>>, <<127>>,
                 ~"größe", ~"=?base64?eA==?=", ~"=?base64??="]].

arguments(_) ->
    Schema = #{~"properties" => #{
        ~"text" => #{~"type" => ~"string", ~"x-mcp-header" => ~"Text"},
        ~"count" => #{~"type" => ~"integer", ~"x-mcp-header" => ~"Count"},
        ~"in" => #{~"properties" => #{
            ~"flag" => #{~"type" => ~"boolean", ~"x-mcp-header" => ~"Flag"}}}}},
    {ok, Declared} = erlmcp_header:declared(Schema),
    [begin
         Headers = erlmcp_request_header:arguments(Arguments, Declared),
         ?assertEqual(Expected, lists:sort(Headers)),
         ?assertEqual(ok, erlmcp_header:check_arguments(Arguments, Declared,
                                                        maps:from_list(Headers)))
     end || {Arguments, Expected} <- [
                {#{}, []},
                {#{~"text" => null, ~"in" => #{}}, []},
                {#{~"text" => ~"a\nb", ~"count" => -3, ~"in" => #{~"flag" => false}},
                 [{~"mcp-param-count", ~"-3"}, {~"mcp-param-flag", ~"false"},
                  {~"mcp-param-text", ~"=?base64?YQpi?="}]},
                {#{~"count" => 42.0, ~"text" => ~""},
                 [{~"mcp-param-count", ~"42"}, {~"mcp-param-text", ~""}]}]],
    %% What does not fit its type has no form as a header.
    ?assertEqual([], erlmcp_request_header:arguments(#{~"count" => 1.5, ~"text" => [~"a"]},
                                                     Declared)).

%% Whatever the text, the header holds it, and the server reads it as it was.
reads_back(_) ->
    Character = frequency([{6, range(16#20, 16#7e)}, {1, $\s}, {1, range(0, 16#1f)},
                           {1, range(16#80, 16#d7ff)}]),
    Text = ?LET({Before, Characters}, {oneof(["", "=?base64?"]), list(Character)},
                unicode:characters_to_binary(Before ++ Characters)),
    erlmcp_test_property:holds(
        ?FORALL(Original, Text,
                begin
                    Value = erlmcp_request_header:encode(Original),
                    {ok, Original} =:= erlmcp_header:decode(Value)
                        andalso Value =:= string:trim(Value)
                        andalso [] =:= [C || <<C>> <= Value, C < 16#20 orelse C > 16#7e]
                end), 3000).
