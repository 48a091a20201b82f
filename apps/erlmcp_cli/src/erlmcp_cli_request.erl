-module(erlmcp_cli_request).
-moduledoc "`erlmcp list` and `erlmcp call`: what a server offers, and a call of one of its tools.".

-export([list_command/0, call_command/0]).

%% A server that always names a next page ends here.
-define(MAX_PAGES, 1000).

-doc "The `list` command for `argparse`.".
-spec list_command() -> argparse:command().
list_command() ->
    #{help => "list the tools, resources and prompts of a server",
      arguments => [url() | options()],
      handler => fun list/1}.

-doc "The `call` command for `argparse`.".
-spec call_command() -> argparse:command().
call_command() ->
    #{help => "call a tool",
      arguments => [url(),
                    #{name => tool, help => "its name"},
                    #{name => arguments, required => false, default => "{}",
                      help => {"[<arguments>]", ["a JSON object, default: ", default]}}
                    | options()],
      handler => fun call/1}.

url() ->
    #{name => url, help => "an MCP endpoint on HTTP, such as http://127.0.0.1:8080/mcp"}.

options() ->
    [#{name => json, long => "-json", type => boolean, help => "print the result as JSON"},
     #{name => timeout, long => "-timeout", type => {integer, [{min, 1}, {max, 86400}]},
       default => 60, help => "seconds to wait for an answer"}].

list(#{url := Url} = Arguments) ->
    maybe
        ok ?= erlmcp_cli_http:check_url(Url),
        {ok, Discovered} ?= request(~"server/discover", #{}, Arguments),
        {ok, Offered} ?= lists_of(Discovered, Arguments),
        case Arguments of
            #{json := true} -> print_json(Offered);
            #{} -> io:put_chars(erlmcp_cli_text:offered(Discovered, Offered))
        end
    else
        error -> bad_url(Url);
        {error, Reason} -> failed(Url, Reason)
    end.

lists_of(Discovered, Arguments) ->
    Capabilities = maps:get(~"capabilities", Discovered, #{}),
    pages([List || {Capability, _, _} = List <- [{~"tools", ~"tools/list", ~"tools"},
                                        {~"resources", ~"resources/list", ~"resources"},
                                        {~"resources", ~"resources/templates/list",
                                         ~"resourceTemplates"},
                                        {~"prompts", ~"prompts/list", ~"prompts"}],
                   is_map_key(Capability, Capabilities)],
          Arguments, #{}).

pages([], _, Offered) ->
    {ok, Offered};
pages([{_, Method, Field} | Lists], Arguments, Offered) ->
    maybe
        {ok, Items} ?= page(Method, Field, #{}, Arguments, ?MAX_PAGES),
        pages(Lists, Arguments, Offered#{Field => Items})
    end.

page(_, _, _, _, 0) ->
    {error, {answer, ~"the list has no end"}};
page(Method, Field, Params, Arguments, Left) ->
    maybe
        {ok, #{Field := Items} = Result} ?= request(Method, Params, Arguments),
        #{~"nextCursor" := Cursor} ?= Result,
        {ok, More} ?= page(Method, Field, #{cursor => Cursor}, Arguments, Left - 1),
        {ok, Items ++ More}
    else
        {ok, _} -> {error, {answer, [Method, ~" lacks ", Field]}};
        #{Field := Last} -> {ok, Last};
        {error, _} = Error -> Error
    end.

call(#{url := Url, tool := Tool, arguments := Text} = Arguments) ->
    maybe
        ok ?= erlmcp_cli_http:check_url(Url),
        {ok, ToolArguments} ?= object(Text),
        {ok, Result} ?= request(~"tools/call",
                                #{name => unicode:characters_to_binary(Tool),
                                  arguments => ToolArguments},
                                Arguments),
        called(Result, Arguments)
    else
        error -> bad_url(Url);
        not_an_object ->
            erlmcp_cli:complain([Text, ": the arguments of a tool are a JSON object"]),
            usage;
        {error, Reason} -> failed(Url, Reason)
    end.

object(Text) ->
    try json:decode(unicode:characters_to_binary(Text)) of
        #{} = Object -> {ok, Object};
        _ -> not_an_object
    catch
        error:_ -> not_an_object
    end.

called(Result, #{json := true}) ->
    ok = print_json(Result),
    case Result of
        #{~"isError" := true} -> failed;
        #{} -> ok
    end;
called(#{~"isError" := true} = Result, _) ->
    erlmcp_cli:complain(erlmcp_cli_text:result(Result)),
    failed;
called(#{~"resultType" := ~"input_required"}, _) ->
    erlmcp_cli:complain("the tool asks for input, which this command cannot give"),
    failed;
called(Result, _) ->
    io:put_chars(erlmcp_cli_text:result(Result)).

request(Method, Params, #{url := Url, timeout := Seconds}) ->
    erlmcp_cli_http:request(Url, Method, Params, Seconds * 1000).

print_json(Json) ->
    io:put_chars([json:encode(Json), $\n]).

bad_url(Url) ->
    erlmcp_cli:complain([Url, ": a URL that starts with http:// or https:// was expected"]),
    usage.

failed(Url, Reason) ->
    erlmcp_cli:complain(erlmcp_cli_text:failure(Url, Reason)),
    failed.
