-module(everything_SUITE).
-moduledoc """
The everything server over HTTP: every tool, resource and prompt gives what the conformance suite's
table of fixtures says.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([everything_is_described/1, tools_give_their_content/1, tools_check_their_arguments/1,
         system_info_fits_its_schema/1, resources_give_their_contents/1,
         prompts_give_their_messages/1, skills_are_whole/1, the_clock_has_a_view/1]).

-define(PNG, <<"iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAA"
               "BJRU5ErkJggg==">>).
-define(WAV, ~"UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA=").

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [everything_is_described, tools_give_their_content, tools_check_their_arguments,
     system_info_fits_its_schema, resources_give_their_contents, prompts_give_their_messages,
     skills_are_whole, the_clock_has_a_view].

init_per_suite(Config) ->
    {ok, _} = application:ensure_all_started([erlmcp, inets]),
    Suite = self(),
    %% The server is linked to who starts it, and this process does not outlive the callback.
    Owner = spawn(fun() ->
        {ok, Server} = erlmcp:start_server(#{handler => everything,
                                             listen => [{http, #{port => 0}}]}),
        Suite ! {listeners, erlmcp:listeners(Server)},
        receive stop -> ok = erlmcp:stop_server(Server) end
    end),
    receive
        {listeners, [#{transport := http, url := Url}]} -> [{url, Url}, {owner, Owner} | Config]
    after 60_000 ->
        ct:fail(no_server)
    end.

end_per_suite(Config) ->
    proplists:get_value(owner, Config) ! stop,
    ok.

everything_is_described(Config) ->
    [begin
         #{List := [_ | _] = Items} = ask(Method, #{}, Config),
         [] = [Item || Item <- Items, not is_map_key(~"description", Item)]
     end || {Method, List} <- [{~"tools/list", ~"tools"}, {~"resources/list", ~"resources"},
                               {~"resources/templates/list", ~"resourceTemplates"},
                               {~"prompts/list", ~"prompts"}]],
    #{~"tools" := [#{~"name" := ~"echo"} | _]} = ask(~"tools/list", #{}, Config).

tools_give_their_content(Config) ->
    [{Name, Content} = {Name, content(Name, Arguments, Config)}
     || {Name, Arguments, Content} <- [
            {~"echo", #{text => ~"hé"}, [text(~"hé")]},
            {~"echo", #{}, [text(~"")]},
            {~"add", #{a => 1, b => 2}, [text(~"3")]},
            {~"add", #{a => 0.5, b => 123456789012345678901234567890},
             [text(~"1.2345678901234568e29")]},
            {~"slow_tool", #{ms => 1}, [text(~"slept 1 ms")]},
            {~"almanac_weekday", #{date => ~"2026-07-28"}, [text(~"Tuesday")]},
            {~"resource_link", #{},
             [#{~"type" => ~"resource_link", ~"uri" => ~"test://static-text",
                ~"name" => ~"static-text", ~"mimeType" => ~"text/plain"}]},
            {~"test_simple_text", #{}, [text(~"This is a simple text response for testing.")]},
            {~"test_image_content", #{}, [image()]},
            {~"test_audio_content", #{},
             [#{~"type" => ~"audio", ~"data" => ?WAV, ~"mimeType" => ~"audio/wav"}]},
            {~"test_embedded_resource", #{},
             [embedded(~"test://embedded-resource", ~"text/plain",
                       ~"This is an embedded resource content.")]},
            {~"test_multiple_content_types", #{},
             [text(~"Multiple content types test:"), image(),
              embedded(~"test://mixed-content-resource", ~"application/json",
                       ~'{"test":"data","value":123}')]},
            {~"test_tool_with_progress", #{}, [text(~"Progress was reported three times.")]},
            {~"test_tool_with_logging", #{}, [text(~"Three messages were logged.")]}]],
    #{~"isError" := true,
      ~"content" := [#{~"text" := ~"This tool intentionally returns an error for testing"}]} =
        call(~"test_error_handling", #{}, Config).

tools_check_their_arguments(Config) ->
    [#{~"isError" := true, ~"content" := [#{~"type" := ~"text"}]} = call(Name, Arguments, Config)
     || {Name, Arguments} <- [{~"echo", #{text => 1}}, {~"add", #{a => 1}},
                              {~"add", #{a => 1, b => ~"2"}}, {~"slow_tool", #{ms => -1}},
                              {~"slow_tool", #{ms => 600001}},
                              {~"almanac_weekday", #{date => ~"2026-02-30"}}]].

system_info_fits_its_schema(Config) ->
    #{~"tools" := Tools} = ask(~"tools/list", #{}, Config),
    [#{~"required" := Required}] =
        [Schema || #{~"name" := ~"system_info", ~"outputSchema" := Schema} <- Tools],
    #{~"structuredContent" := Info, ~"content" := [#{~"text" := Text}]} =
        call(~"system_info", #{}, Config),
    Info = json:decode(Text),
    [] = maps:keys(Info) -- Required,
    [] = Required -- maps:keys(Info).

resources_give_their_contents(Config) ->
    [#{~"contents" := [Contents]} = ask(~"resources/read", #{uri => Uri}, Config)
     || #{~"uri" := Uri} = Contents <- [
            #{~"uri" => ~"test://static-text", ~"mimeType" => ~"text/plain",
              ~"text" => ~"This is the content of the static text resource."},
            #{~"uri" => ~"almanac://almanac/weekdays", ~"mimeType" => ~"text/plain",
              ~"text" => ~"Monday\nTuesday\nWednesday\nThursday\nFriday\nSaturday\nSunday"},
            #{~"uri" => ~"test://static-binary", ~"mimeType" => ~"image/png", ~"blob" => ?PNG}]],
    #{~"contents" := [#{~"uri" := ~"test://template/123/data", ~"text" := Text,
                        ~"mimeType" := ~"application/json"}]} =
        ask(~"resources/read", #{uri => ~"test://template/123/data"}, Config),
    #{~"id" := ~"123", ~"templateTest" := true, ~"data" := ~"Data for ID: 123"} =
        json:decode(Text).

prompts_give_their_messages(Config) ->
    [{Name, Expected} = {Name, messages(Name, Arguments, Config)}
     || {Name, Arguments, Expected} <- [
            {~"test_simple_prompt", #{}, [text(~"This is a simple prompt for testing.")]},
            {~"test_prompt_with_arguments", #{arg1 => ~"x", arg2 => ~"y"},
             [text(~"Prompt with arguments: arg1='x', arg2='y'")]},
            {~"test_prompt_with_embedded_resource", #{resourceUri => ~"test://some"},
             [embedded(~"test://some", ~"text/plain",
                       ~"Embedded resource content for testing."),
              text(~"Please process the embedded resource above.")]},
            {~"test_prompt_with_image", #{},
             [image(), text(~"Please analyze the image above.")]}]].

skills_are_whole(Config) ->
    #{~"skills" := [#{~"uri" := ~"skill://pdf-processing/SKILL.md"},
                    #{~"uri" := ~"skill://tours/try-everything/SKILL.md"}] = Skills} =
        ask(~"skills/list", #{}, Config),
    [begin
         #{~"contents" := [#{~"text" := Text}]} = ask(~"resources/read", #{uri => Uri}, Config),
         Size = byte_size(Text),
         Hex = binary:encode_hex(crypto:hash(sha256, Text), lowercase),
         Digest = <<"sha256:", Hex/binary>>
     end || #{~"resources" := Files} <- Skills,
            #{~"uri" := Uri, ~"digest" := Digest, ~"size" := Size} <- Files].

the_clock_has_a_view(Config) ->
    #{~"tools" := Tools} = ask(~"tools/list", #{}, Config),
    [View, View] = [Uri || #{~"_meta" := #{~"ui" := #{~"resourceUri" := Uri}}} <- Tools],
    #{~"contents" := [#{~"mimeType" := ~"text/html;profile=mcp-app",
                        ~"text" := <<"<!DOCTYPE html>", _/binary>>,
                        ~"_meta" := #{~"ui" := #{~"prefersBorder" := true}}}]} =
        ask(~"resources/read", #{uri => View}, Config),
    [#{~"structuredContent" := #{~"time" := <<_:19/binary, "Z">>, ~"shown" := false}} =
         call(Name, #{}, Config)
     || Name <- [~"clock", ~"clock_refresh"]].

text(Text) -> #{~"type" => ~"text", ~"text" => Text}.

image() -> #{~"type" => ~"image", ~"data" => ?PNG, ~"mimeType" => ~"image/png"}.

embedded(Uri, MimeType, Text) ->
    #{~"type" => ~"resource",
      ~"resource" => #{~"uri" => Uri, ~"mimeType" => MimeType, ~"text" => Text}}.

content(Name, Arguments, Config) ->
    #{~"content" := Content} = Result = call(Name, Arguments, Config),
    false = maps:get(~"isError", Result, false),
    Content.

messages(Name, Arguments, Config) ->
    #{~"messages" := Messages} = ask(~"prompts/get", #{name => Name, arguments => Arguments},
                                     Config),
    [Content || #{~"role" := ~"user", ~"content" := Content} <- Messages].

call(Name, Arguments, Config) ->
    ask(~"tools/call", #{name => Name, arguments => Arguments}, Config).

ask(Method, Params, Config) ->
    Meta = #{~"io.modelcontextprotocol/protocolVersion" => ~"2026-07-28",
             ~"io.modelcontextprotocol/clientCapabilities" => #{}},
    Body = iolist_to_binary(json:encode(#{jsonrpc => ~"2.0", id => 1, method => Method,
                                          params => Params#{~"_meta" => Meta}})),
    Exchange = make_ref(),
    ok = erlmcp_test_wire:sent(Exchange, #{}, Body),
    Headers = [{"accept", "application/json, text/event-stream"},
               {"mcp-protocol-version", "2026-07-28"},
               {"mcp-method", binary_to_list(Method)}
               | [{"mcp-name", binary_to_list(Name)}
                  || Key <- [name, uri], {ok, Name} <- [maps:find(Key, Params)]]],
    {ok, {{_, 200, _}, _, Answer}} =
        httpc:request(post, {proplists:get_value(url, Config), Headers, "application/json",
                             Body},
                      [{timeout, 10000}], [{body_format, binary}]),
    #{~"id" := 1, ~"result" := Result} =
        erlmcp_test_wire:received(Exchange, json:decode(Answer)),
    Result.
