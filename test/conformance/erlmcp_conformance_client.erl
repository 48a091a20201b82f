-module(erlmcp_conformance_client).
-moduledoc """
The client under test of the official conformance suite. It has a clause for each scenario, which
acts as a user of `m:erlmcp_client` would, and matches the expected answers.

The suite names the scenario, the revision and other parameters in the environment. A scenario that
succeeds prints `done` on stdout. Any other prints the reason on stderr.
""".

-export([main/1]).

%% Without it a scenario that hangs would leave no reason.
-define(LIMIT_MS, 60_000).
-define(INFO, #{name => ~"erlmcp-conformance", version => ~"1.0.0"}).

-doc "Plays the scenario against `Url` and ends the node.".
-spec main([string()]) -> no_return().
main([Url]) ->
    {ok, _} = application:ensure_all_started([erlmcp, inets]),
    Scenario = environment("MCP_CONFORMANCE_SCENARIO"),
    {ok, Revision} = erlmcp_revision:parse(environment("MCP_CONFORMANCE_PROTOCOL_VERSION")),
    Context = json:decode(environment("MCP_CONFORMANCE_CONTEXT")),
    Play = fun() -> play(Scenario, list_to_binary(Url), Revision, Context) end,
    {Player, Monitor} = spawn_monitor(Play),
    receive
        {'DOWN', Monitor, process, Player, normal} ->
            io:put_chars("done\n"),
            halt(0);
        {'DOWN', Monitor, process, Player, Reason} ->
            io:format(standard_error, "~tp~n", [Reason]),
            halt(1)
    after ?LIMIT_MS ->
        io:format(standard_error, "no end after ~b ms~n", [?LIMIT_MS]),
        halt(1)
    end.

%% Only some scenarios have a context.
environment(Name) ->
    unicode:characters_to_binary(os:getenv(Name, "{}")).

play(<<"auth/", Scenario/binary>>, Url, Revision, Context) ->
    {Auth, Expected} = erlmcp_conformance_auth:scenario(Scenario, Context),
    Client = start(Url, Revision, #{auth => Auth}),
    Made = use_tool(Client),
    case {Expected, Made} of
        {allowed, {ok, _}} -> stop(Client);
        %% The client's own program also reports access that should have been refused.
        {refused, {error, {unauthorized, _}}} -> stop(Client)
    end;
play(Scenario, Url, Revision, Context) ->
    Client = start(Url, Revision, options(Scenario)),
    ok = scenario(Scenario, Client, Context),
    stop(Client).

use_tool(Client) ->
    maybe
        {ok, [#{~"name" := Name}]} ?= erlmcp_client:list_tools(Client),
        erlmcp_client:call_tool(Client, Name, #{})
    end.

%% A scenario of both eras leaves the era to the client.
options(Scenario) when
    Scenario =:= ~"tools_call"; Scenario =:= ~"json-schema-2020-12-preservation"
->
    #{era => auto};
options(~"elicitation-sep1034-client-defaults") ->
    #{inputs => #{elicit => fun(_) -> {accept, #{}} end}};
options(~"request-metadata") ->
    Refuse = fun(_) -> decline end,
    #{inputs => #{elicit => Refuse, sample => fun(_) -> {error, ~"no model"} end, roots => []}};
options(~"sep-2322-client-request-state") ->
    %% Messages between the rounds of a call do not belong to it.
    Confirm = fun(_) ->
        {ok, _} = erlmcp_client:call_tool(client, ~"test_mrtr_unrelated", #{}),
        {accept, #{~"confirmed" => true}}
    end,
    #{inputs => #{elicit => Confirm}};
options(_) ->
    #{}.

scenario(~"initialize", Client, _) ->
    {ok, #{revision := _}} = erlmcp_client:server(Client),
    ok;
scenario(~"tools_call", Client, _) ->
    {ok, [#{~"name" := Add}]} = erlmcp_client:list_tools(Client),
    {ok, #{~"content" := [#{~"text" := ~"The sum of 2 and 3 is 5"}]}} =
        erlmcp_client:call_tool(Client, Add, #{~"a" => 2, ~"b" => 3}),
    ok;
scenario(~"elicitation-sep1034-client-defaults", Client, _) ->
    {ok, #{~"content" := [#{~"text" := <<"Elicitation completed: ", _/binary>>}]}} =
        erlmcp_client:call_tool(Client, ~"test_client_elicitation_defaults", #{}),
    ok;
scenario(~"sse-retry", Client, _) ->
    {ok, #{~"content" := [#{~"text" := ~"Reconnection test completed successfully"}]}} =
        erlmcp_client:call_tool(Client, ~"test_reconnection", #{}),
    ok;
scenario(~"request-metadata", Client, _) ->
    {ok, #{revision := _}} = erlmcp_client:server(Client),
    {ok, _} = erlmcp_client:request(Client, ~"tools/list", #{}),
    ok;
scenario(~"sep-2322-client-request-state", Client, _) ->
    [{ok, #{~"content" := [#{~"text" := Text}]}} = erlmcp_client:call_tool(Client, Tool, #{}) ||
        {Tool, Text} <- [
            {~"test_mrtr_echo_state", ~"echo-state-ok"},
            {~"test_mrtr_no_state", ~"no-state-ok"},
            {~"test_mrtr_no_result_type", ~"no-result-type-test-ok"}
        ]],
    ok;
scenario(~"http-standard-headers", Client, _) ->
    {ok, Tools} = erlmcp_client:list_tools(Client),
    [{ok, _} = erlmcp_client:call_tool(Client, Name, #{}) || #{~"name" := Name} <- Tools],
    {ok, Resources} = erlmcp_client:list_resources(Client),
    [{ok, _} = erlmcp_client:read_resource(Client, Uri) || #{~"uri" := Uri} <- Resources],
    {ok, Prompts} = erlmcp_client:list_prompts(Client),
    [{ok, _} = erlmcp_client:get_prompt(Client, Name, #{}) || #{~"name" := Name} <- Prompts],
    ok;
scenario(~"http-custom-headers", Client, #{~"toolCalls" := Calls}) ->
    {ok, _} = erlmcp_client:list_tools(Client),
    [{ok, _} = erlmcp_client:call_tool(Client, Name, Arguments) ||
        #{~"name" := Name, ~"arguments" := Arguments} <- Calls],
    ok;
scenario(~"http-invalid-tool-headers", Client, _) ->
    {ok, [#{~"name" := ~"valid_tool"}]} = erlmcp_client:list_tools(Client),
    {ok, _} = erlmcp_client:call_tool(Client, ~"valid_tool", #{~"region" => ~"us-west1"}),
    ok;
scenario(~"json-schema-ref-no-deref", Client, _) ->
    {ok, [_]} = erlmcp_client:list_tools(Client),
    ok;
scenario(~"json-schema-2020-12-preservation", Client, _) ->
    {ok, Tools} = erlmcp_client:list_tools(Client),
    [Schema] = [
        Schema || #{~"name" := ~"json_schema_2020_12_tool", ~"inputSchema" := Schema} <- Tools
    ],
    {ok, _} = erlmcp_client:call_tool(Client, ~"json_schema_echo", #{~"schema" => Schema}),
    ok;
scenario(~"sep-2640-client-no-prefetch", Client, _) ->
    {ok, [_]} = erlmcp_client:list_skills(Client),
    ok;
scenario(<<"sep-2640-client-verify-", What/binary>>, Client, _) ->
    {ok, [#{~"uri" := Uri, ~"resources" := Files} = Skill]} = erlmcp_client:list_skills(Client),
    case erlmcp_skills:load(Client, Skill) of
        {ok, _} ->
            [{ok, _} = erlmcp_skills:read(Client, Skill, File)
             || #{~"uri" := File} <- Files, File =/= Uri],
            ok;
        {error, {unverified, Fault, Uri}} ->
            What = atom_to_binary(Fault),
            ok
    end.

start(Url, Revision, Options) ->
    Defaults = maps:merge(?INFO, #{era => Revision, timeout => 30_000}),
    Target = {http, Url, maps:merge(Defaults, Options)},
    {ok, Client} = erlmcp_client:start_link({local, client}, Target),
    Client.

stop(Client) ->
    ok = erlmcp_client:stop(Client).
