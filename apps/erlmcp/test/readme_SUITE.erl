-module(readme_SUITE).
-moduledoc "The server in README.md is what it says: a module of 15 lines that answers over HTTP.".

-export([all/0, init_per_suite/1, end_per_suite/1]).
-export([snippet_is_short/1, snippet_serves_its_tool/1, snippet_refuses_unknown_tool/1]).

all() ->
    [snippet_is_short, snippet_serves_its_tool, snippet_refuses_unknown_tool].

init_per_suite(Config) ->
    {ok, Started} = application:ensure_all_started([erlmcp, inets]),
    [{started, Started} | Config].

end_per_suite(Config) ->
    [ok = application:stop(Application)
     || Application <- lists:reverse(proplists:get_value(started, Config))],
    ok.

snippet_is_short(_) ->
    true = length(string:split(string:trim(snippet()), "\n", all)) =< 15.

snippet_serves_its_tool(_) ->
    Server = start(),
    {200, #{~"result" := Result}} =
        call(Server, #{name => ~"greet", arguments => #{who => ~"Joe"}}),
    #{~"content" := [#{~"type" := ~"text", ~"text" := ~"Hello, Joe!"}],
      ~"resultType" := ~"complete"} = Result,
    ok = erlmcp:stop_server(Server).

snippet_refuses_unknown_tool(_) ->
    Server = start(),
    {_, #{~"error" := #{~"code" := -32602}}} =
        call(Server, #{name => ~"no_such", arguments => #{}}),
    ok = erlmcp:stop_server(Server).

snippet() ->
    Source = proplists:get_value(source, module_info(compile)),
    {ok, Readme} = file:read_file(find(~"README.md", filename:dirname(Source))),
    {match, [Snippet]} = re:run(Readme, "^```erlang\n(.*?)^```$",
                                [multiline, dotall, {capture, all_but_first, binary}]),
    Snippet.

%% This file stands somewhere below the repository's root.
find(Name, Folder) ->
    Path = filename:join(Folder, Name),
    case filelib:is_regular(Path) of
        true -> Path;
        false -> find(Name, parent(Folder))
    end.

parent(Folder) ->
    Parent = filename:dirname(Folder),
    true = Parent =/= Folder,
    Parent.

start() ->
    {ok, Tokens, _} = erl_scan:string(unicode:characters_to_list(snippet())),
    {ok, Module, Code} = compile:forms(forms(Tokens), [warnings_as_errors, return_errors]),
    {module, Module} = code:load_binary(Module, "README.md", Code),
    {ok, Server} = Module:start(0),
    Server.

forms([]) ->
    [];
forms(Tokens) ->
    {Form, [Dot | Rest]} = lists:splitwith(fun(Token) -> element(1, Token) =/= dot end, Tokens),
    {ok, Parsed} = erl_parse:parse_form(Form ++ [Dot]),
    [Parsed | forms(Rest)].

call(Server, #{name := Name} = Params) ->
    [#{transport := http, url := Url}] = erlmcp:listeners(Server),
    Meta = #{~"io.modelcontextprotocol/protocolVersion" => ~"2026-07-28",
             ~"io.modelcontextprotocol/clientCapabilities" => #{}},
    Body = json:encode(#{jsonrpc => ~"2.0", id => 1, method => ~"tools/call",
                         params => Params#{~"_meta" => Meta}}),
    Headers = [{"accept", "application/json, text/event-stream"},
               {"mcp-protocol-version", "2026-07-28"},
               {"mcp-method", "tools/call"},
               {"mcp-name", binary_to_list(Name)}],
    {ok, {{_, Status, _}, _, Answer}} =
        httpc:request(post, {Url, Headers, "application/json", iolist_to_binary(Body)},
                      [{timeout, 10000}], [{body_format, binary}]),
    {Status, json:decode(Answer)}.
