-module(readme_SUITE).
-moduledoc """
README.md is short, and the server in it is what it says: a module of 15 lines that answers over
HTTP.
""".

-export([all/0, init_per_suite/1, end_per_suite/1]).
-export([readme_is_short/1, snippet_serves_its_tool/1, snippet_refuses_unknown_tool/1]).

all() ->
    [readme_is_short, snippet_serves_its_tool, snippet_refuses_unknown_tool].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

readme_is_short(_) ->
    {ok, Readme} = file:read_file(readme()),
    true = lines(Readme) =< 80,
    {_, Snippet} = snippet(),
    true = lines(Snippet) =< 15.

lines(Text) ->
    length(string:split(string:trim(Text), "\n", all)).

snippet_serves_its_tool(Config) ->
    Server = start(Config),
    #{status := 200, messages := [#{~"result" := Result}]} =
        erlmcp_test_http:call(Server, ~"tools/call",
                              #{name => ~"greet", arguments => #{who => ~"Joe"}}),
    #{~"content" := [#{~"type" := ~"text", ~"text" := ~"Hello, Joe!"}],
      ~"resultType" := ~"complete"} = Result,
    ok = erlmcp_test_http:stop(Server).

snippet_refuses_unknown_tool(Config) ->
    Server = start(Config),
    #{messages := [#{~"error" := #{~"code" := -32602}}]} =
        erlmcp_test_http:call(Server, ~"tools/call", #{name => ~"no_such"}),
    ok = erlmcp_test_http:stop(Server).

readme() ->
    filename:join(erlmcp_test_page:root(), "README.md").

snippet() ->
    #{module := {_, _} = Snippet} = erlmcp_test_page:read(readme()),
    Snippet.

start(Config) ->
    Module = erlmcp_test_page:load("README.md", snippet(), proplists:get_value(priv_dir, Config)),
    {ok, Pid} = Module:start(0),
    [#{transport := http} = Listener] = erlmcp:listeners(Pid),
    Listener#{pid => Pid}.
