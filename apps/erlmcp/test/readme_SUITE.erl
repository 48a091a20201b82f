-module(readme_SUITE).
-moduledoc """
README.md is short, the server in it is what it says: a module of 15 lines that answers over HTTP;
the client in it calls that, and the dependency is all that a project needs.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([readme_is_short/1, snippet_serves_its_tool/1, snippet_refuses_unknown_tool/1,
         client_calls_the_server/1, dependency_brings_what_it_needs/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [readme_is_short, snippet_serves_its_tool, snippet_refuses_unknown_tool,
     client_calls_the_server, dependency_brings_what_it_needs].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

readme_is_short(_) ->
    {ok, Readme} = file:read_file(readme()),
    true = lines(Readme) =< 80,
    {_, Snippet} = snippet(),
    true = lines(Snippet) =< 15,
    true = lines(client()) =< 10.

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

client_calls_the_server(Config) ->
    #{url := Url} = Server = start(Config),
    {ok, Tokens, _} = erl_scan:string(client()),
    {ok, Expressions} = erl_parse:parse_exprs(Tokens),
    {value, ok, #{'Client' := Client}} = erl_eval:exprs(Expressions, #{'Url' => Url}),
    false = is_process_alive(Client),
    ok = erlmcp_test_http:stop(Server).

%% The README's dependency is a folder of the repository, whose rebar.config is all that its user's
%% rebar3 sees: what erlmcp needs beside OTP is named there, or comes with what is.
dependency_brings_what_it_needs(_) ->
    {ok, Readme} = file:read_file(readme()),
    {match, [Text]} = re:run(Readme, ~"```erl\n(\\{deps, .*?\\.)\n\n",
                             [dotall, {capture, [1], list}]),
    {ok, Tokens, _} = erl_scan:string(Text),
    {ok, {deps, [{erlmcp, {git_subdir, _, _, Folder}}]}} = erl_parse:parse_term(Tokens),
    {ok, Config} = file:consult(filename:join([erlmcp_test_page:root(), Folder, "rebar.config"])),
    {deps, Deps} = lists:keyfind(deps, 1, Config),
    Named = [Name || {Name, _Version} <- Deps],
    Otp = [kernel, stdlib, crypto, ssl, public_key],
    {ok, Optional} = application:get_key(erlmcp, optional_applications),
    [] = needs(erlmcp) -- (Otp ++ Optional ++ Named ++ lists:flatmap(fun needs/1, Named)).

needs(Application) ->
    _ = application:load(Application),
    {ok, Needs} = application:get_key(Application, applications),
    Needs.

%% The expressions that begin with a client's start.
client() ->
    {ok, Readme} = file:read_file(readme()),
    {match, [Text]} = re:run(Readme, ~"```erl\n(\\{ok, Client\\} = .*?)```",
                             [dotall, {capture, [1], list}]),
    Text.

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
