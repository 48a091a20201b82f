-module(everything_tools).
-moduledoc "The tools of the everything server: their definitions, and one clause each.".

-export([definitions/0, call/3]).

-doc "Returns the tools in the order in which clients see them.".
-spec definitions() -> [map()].
definitions() ->
    [#{name => ~"echo",
       title => ~"Echo",
       description => ~"Returns its text",
       input_schema => #{text => {optional, {string, #{default => ~""}}}},
       annotations => #{readOnlyHint => true, idempotentHint => true}},
     #{name => ~"add",
       description => ~"Adds two numbers",
       input_schema => #{a => number, b => number}},
     #{name => ~"system_info",
       description => ~"What this Erlang node is, as structured content",
       input_schema => object(#{}, []),
       output_schema => #{otp_release => string, erts_version => string, schedulers => integer,
                          processes => integer, memory_bytes => integer}},
     #{name => ~"slow_tool",
       description => ~"Answers after so many milliseconds: for deadlines and cancellation",
       input_schema => #{ms => {integer, #{minimum => 0, maximum => 600000}}}},
     #{name => ~"crash",
       description => ~"Crashes: its caller gets one error, nobody else notices",
       input_schema => object(#{}, [])},
     #{name => ~"touch_watched",
       description => ~"Says that test://watched-resource changed, to those who watch it",
       input_schema => object(#{}, [])},
     #{name => ~"resource_link",
       description => ~"Returns a link to a resource that can be read",
       input_schema => object(#{}, [])},
     #{name => ~"test_custom_header",
       description => ~"Its region is mirrored into an HTTP header",
       input_schema => object(#{region => #{type => string, 'x-mcp-header' => ~"Region"}}, [])},
     #{name => ~"json_schema_2020_12_tool",
       description => ~"Has an input schema of many keywords",
       input_schema => everything_schema:input()}
     | [#{name => Name, description => Description, input_schema => object(#{}, [])}
        || {Name, Description} <- fixtures()]].

fixtures() ->
    [{~"test_simple_text", ~"Returns one text"},
     {~"test_image_content", ~"Returns a PNG image"},
     {~"test_audio_content", ~"Returns a WAV sound"},
     {~"test_embedded_resource", ~"Returns an embedded resource"},
     {~"test_multiple_content_types", ~"Returns text, an image and an embedded resource"},
     {~"test_error_handling", ~"Returns an error as its result"},
     {~"test_tool_with_progress", ~"Reports progress three times, 50 ms apart"},
     {~"test_tool_with_logging", ~"Sends three log messages, 50 ms apart"},
     {~"test_logging_tool", ~"Sends a log message, to those who want it"},
     {~"test_reconnection", ~"Closes its connection before it answers"},
     {~"test_trigger_tool_change", ~"Adds a tool and removes it again"},
     {~"test_trigger_prompt_change", ~"Adds a prompt and removes it again"}].

object(Properties, Required) ->
    #{type => object, properties => Properties, required => Required}.

-doc "Returns the result of a tool.".
-spec call(Name :: binary(), Arguments :: map(), Context :: map()) -> term().
call(~"echo", Arguments, _) ->
    maps:get(~"text", Arguments, ~"");
call(~"add", #{~"a" := A, ~"b" := B}, _) ->
    iolist_to_binary(json:encode(A + B));
call(~"system_info", _, _) ->
    #{otp_release => list_to_binary(erlang:system_info(otp_release)),
      erts_version => list_to_binary(erlang:system_info(version)),
      schedulers => erlang:system_info(schedulers_online),
      processes => erlang:system_info(process_count),
      memory_bytes => erlang:memory(total)};
call(~"slow_tool", #{~"ms" := Ms}, _) ->
    %% 100.0 is also an integer in JSON.
    timer:sleep(trunc(Ms)),
    <<"slept ", (integer_to_binary(trunc(Ms)))/binary, " ms">>;
call(~"crash", _, _) ->
    error(asked_to_crash);
call(~"resource_link", _, _) ->
    [erlmcp_content:resource_link(~"test://static-text", ~"static-text",
                                  #{mimeType => ~"text/plain"})];
call(~"test_simple_text", _, _) ->
    ~"This is a simple text response for testing.";
call(~"test_image_content", _, _) ->
    [erlmcp_content:image(everything_media:png(), ~"image/png")];
call(~"test_audio_content", _, _) ->
    [erlmcp_content:audio(everything_media:wav(), ~"audio/wav")];
call(~"test_embedded_resource", _, _) ->
    [erlmcp_content:embedded(~"test://embedded-resource", ~"text/plain",
                             ~"This is an embedded resource content.")];
call(~"test_multiple_content_types", _, _) ->
    [~"Multiple content types test:",
     erlmcp_content:image(everything_media:png(), ~"image/png"),
     erlmcp_content:embedded(~"test://mixed-content-resource", ~"application/json",
                             ~'{"test":"data","value":123}')];
call(~"test_error_handling", _, _) ->
    {error, ~"This tool intentionally returns an error for testing"};
call(~"test_tool_with_progress", _, Context) ->
    in_steps([0, 50, 100], fun(Done) -> erlmcp:progress(Context, Done, #{total => 100}) end),
    ~"Progress was reported three times.";
call(~"test_tool_with_logging", _, Context) ->
    in_steps([~"Tool execution started", ~"Tool processing data", ~"Tool execution completed"],
             fun(Text) -> erlmcp:log(Context, info, Text) end),
    ~"Three messages were logged.";
call(~"test_custom_header", Arguments, _) ->
    maps:get(~"region", Arguments, ~"no region");
call(~"json_schema_2020_12_tool", Arguments, _) ->
    {structured, Arguments};
call(~"test_logging_tool", _, Context) ->
    ok = erlmcp:log(Context, info, ~"This is a log message."),
    ~"One message was logged.";
call(~"test_reconnection", _, Context) ->
    ok = erlmcp:close_connection(Context),
    timer:sleep(100),
    ~"The client came back for this.";
call(~"test_trigger_tool_change", _, _) ->
    changed(tool),
    ~"The list of tools changed.";
call(~"test_trigger_prompt_change", _, _) ->
    changed(prompt),
    ~"The list of prompts changed.";
call(~"touch_watched", _, _) ->
    ok = erlmcp:resource_updated(everything, ~"test://watched-resource"),
    ~"Those who watch it were told.".

%% The interval shows whether a client gets the notifications one by one. The result follows after
%% the same interval: some clients drop a notification that they read together with the result.
in_steps(Steps, Act) ->
    lists:foreach(fun(Step) -> ok = Act(Step), timer:sleep(50) end, Steps).

changed(Kind) ->
    Name = <<"passing-", (integer_to_binary(erlang:unique_integer([positive])))/binary>>,
    Definition = #{name => Name, description => ~"Here for a moment",
                   handler => fun(_, _) -> ~"Still here." end},
    ok = erlmcp:add(everything, Kind, Definition),
    ok = erlmcp:remove(everything, Kind, Name).
