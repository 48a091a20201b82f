-module(visit_shelf).
-moduledoc """
The visible contents of each server, by its name: data for `m:visit_features`. A feature without an
entry here is not checked.
""".

-export([of_server/1]).

-doc "Returns the contents of a server.".
-spec of_server(atom()) -> map().
of_server(erlmcp) -> everything();
of_server('server-everything') -> reference();
of_server(_) -> catalogue().

%% test/interop/catalogue.json, which all servers of SDKs share.
catalogue() ->
    #{name => ~"catalogue",
      instructions => ~"The same few things",
      tools => [~"add", ~"ask", ~"ask_url", ~"change", ~"echo", ~"fail", ~"logs", ~"region",
                ~"roots", ~"sample", ~"slow", ~"touch"],
      paged => true,
      echo => {~"echo", ~"text", fun(Text) -> Text end},
      structured => {~"add", #{~"a" => 20, ~"b" => 22.5}, #{~"sum" => 42.5}},
      failing => {~"fail", #{}, ~"It failed."},
      header => {~"region", #{~"region" => ~"eu, Δ"}, ~"eu, Δ"},
      progress => {~"slow", #{~"steps" => 3}, [{1, 3}, {2, 3}, {3, 3}]},
      long => {~"slow", #{~"steps" => 400}},
      logs => {~"logs", [{~"info", ~"at info"}, {~"error", ~"at error"}]},
      form => {~"ask", #{}, ~"Hello, Ada", ~"decline"},
      url => {~"ask_url", #{}, ~"accept"},
      sample => {~"sample", #{}, ~"something"},
      roots => {~"roots", #{}, ~"file:///work"},
      resources => [~"note://blob", ~"note://counter", ~"note://text"],
      text => {~"note://text", ~"Plain, and Δ, and 𝄞."},
      blob => {~"note://blob", list_to_binary(lists:seq(0, 255))},
      template => {~"note://item/{id}", ~"note://item/7", ~"item 7"},
      updates => {~"note://counter", {~"touch", #{}}},
      changes => {~"change", #{}},
      prompt => {~"greet", #{~"name" => ~"Ada"}, ~"Greet Ada."},
      completion => {{prompt, ~"greet"}, {~"name", ~"A"}, [~"Ada", ~"Alan"]}}.

%% examples/everything.
everything() ->
    #{name => ~"everything",
      instructions => ~"Call echo for a first try.",
      tools => [~"echo", ~"add", ~"slow_tool", ~"test_simple_text"],
      paged => true,
      echo => {~"echo", ~"text", fun(Text) -> Text end},
      structured => {~"json_schema_2020_12_tool",
                     #{~"name" => ~"Ada", ~"email" => ~"ada@example.com"},
                     #{~"name" => ~"Ada", ~"email" => ~"ada@example.com"}},
      failing => {~"test_error_handling", #{}, ~"intentionally returns an error"},
      header => {~"test_custom_header", #{~"region" => ~"eu, Δ"}, ~"eu, Δ"},
      progress => {~"test_tool_with_progress", #{}, [{0, 100}, {50, 100}, {100, 100}]},
      long => {~"slow_tool", #{~"ms" => 20_000}},
      logs => {~"test_tool_with_logging",
               [{~"info", ~"Tool execution started"}, {~"info", ~"Tool processing data"},
                {~"info", ~"Tool execution completed"}]},
      form => {~"test_input_required_result_request_state", #{}, ~"state-ok: accept",
               ~"state-ok: decline"},
      sample => {~"test_input_required_result_sampling", #{}, ~"something"},
      roots => {~"test_input_required_result_list_roots", #{}, ~"file:///work"},
      rounds => {~"test_input_required_result_multi_round", #{}, ~"Ada likes"},
      resources => [~"test://static-text", ~"test://static-binary", ~"test://watched-resource"],
      text => {~"test://static-text", ~"This is the content of the static text resource."},
      blob => {~"test://static-binary", everything_media:png()},
      template => {~"test://template/{id}/data", ~"test://template/7/data", ~"Data for ID: 7"},
      updates => {~"test://watched-resource", {~"touch_watched", #{}}},
      changes => {~"test_trigger_tool_change", #{}},
      prompt => {~"test_prompt_with_arguments", #{~"arg1" => ~"a", ~"arg2" => ~"b"},
                 ~"arg1='a', arg2='b'"},
      completion => {{prompt, ~"test_prompt_with_arguments"}, {~"arg1", ~"te"},
                     [~"test", ~"testing"]}}.

%% @modelcontextprotocol/server-everything of npm.
reference() ->
    #{name => ~"mcp-servers/everything",
      instructions => ~"Everything",
      tools => [~"echo", ~"get-sum", ~"get-tiny-image", ~"trigger-sampling-request",
                ~"trigger-elicitation-request", ~"get-roots-list"],
      paged => false,
      echo => {~"echo", ~"message", fun(Text) -> <<"Echo: ", Text/binary>> end},
      structured => {~"get-structured-content", #{~"location" => ~"Chicago"},
                     #{~"temperature" => 36, ~"conditions" => ~"Light rain / drizzle",
                       ~"humidity" => 82}},
      failing => {~"get-sum", #{~"a" => ~"one"}, ~""},
      progress => {~"trigger-long-running-operation", #{~"duration" => 0.3, ~"steps" => 3},
                   [{1, 3}, {2, 3}, {3, 3}]},
      long => {~"trigger-long-running-operation", #{~"duration" => 20, ~"steps" => 200}},
      form => {~"trigger-elicitation-request", #{}, ~"Name: Ada", ~"declined"},
      url => {~"trigger-url-elicitation", #{~"url" => ~"https://example.com/page",
                                            ~"message" => ~"Look there"}, ~"accept"},
      sample => {~"trigger-sampling-request", #{~"prompt" => ~"Say something"}, ~"something"},
      roots => {~"get-roots-list", #{}, ~"file:///work"},
      resources => [~"demo://resource/static/document/features.md"],
      text => {~"demo://resource/dynamic/text/7", ~"Resource 7: This is a plaintext resource"},
      template => {~"demo://resource/dynamic/text/{resourceId}",
                   ~"demo://resource/dynamic/text/8", ~"Resource 8"},
      updates => {~"demo://resource/dynamic/text/1", {~"toggle-subscriber-updates", #{}}},
      prompt => {~"args-prompt", #{~"city" => ~"Wien"}, ~"weather in Wien?"},
      completion => {{prompt, ~"completable-prompt"}, {~"department", ~"S"},
                     [~"Sales", ~"Support"]}}.
