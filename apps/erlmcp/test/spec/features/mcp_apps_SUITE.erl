-module(mcp_apps_SUITE).
-moduledoc """
MCP Apps (`io.modelcontextprotocol/ui`): what tools and views say of themselves in each revision,
over HTTP and TCP, and what of it is refused.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([tools_name_their_views/1, views_are_described/1, contents_carry_the_sandbox/1,
         handlers_see_the_client/1, results_are_text_too/1]).
-export([declared_when_used/1, declared_when_added/1, views_exist/1, views_stay/1,
         templates_are_views_too/1, tools_are_checked/1, views_are_checked/1,
         meta_written_by_hand/1, mounted_apps_are_apps/1]).

-import(erlmcp_test_suite, [server/1, transport/1]).
-import(erlmcp_test_client, [open/4, ask/3]).

-define(ID, ~"io.modelcontextprotocol/ui").
-define(TYPE, ~"text/html;profile=mcp-app").
-define(URI, ~"ui://weather/dashboard").
-define(WIRE, [tools_name_their_views, views_are_described, contents_carry_the_sandbox,
               handlers_see_the_client, results_are_text_too]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, http}, {group, tcp} | erlmcp_test_suite:cases(?MODULE) -- ?WIRE].

groups() ->
    [{http, ?WIRE}, {tcp, ?WIRE}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(Transport, Config) -> [{transport, Transport} | Config].

end_per_group(_, _) -> ok.

init_per_testcase(Case, Config) ->
    case lists:member(Case, ?WIRE) of
        true -> [{server, erlmcp_test_client:start(weather())} | Config];
        false -> Config
    end.

end_per_testcase(_, Config) ->
    case server(Config) of
        undefined -> ok;
        Server -> erlmcp_test_client:stop(Server)
    end.

weather() ->
    #{tools => [tool(~"get_weather", #{resource_uri => ?URI}),
                tool(~"refresh", #{resource_uri => ?URI, visibility => [app]}),
                tool(~"seen", #{visibility => [model, app]}),
                (tool(~"with_meta", #{resource_uri => ?URI}))#{meta => #{~"com.example/a" => 1}}],
      resources => [view(?URI, sandbox()), view(~"ui://plain", #{}),
                    (view(~"ui://blob", sandbox()))#{handler => fun(_, _) -> {blob, ~"<p>"} end},
                    (view(~"ui://own", sandbox()))#{handler => fun(_, #{uri := Uri}) ->
                        [#{uri => Uri, mimeType => ?TYPE, text => ~"<p>",
                           '_meta' => #{ui => #{prefersBorder => false}}}]
                    end}]}.

tool(Name, Ui) ->
    #{name => Name, ui => Ui, handler => fun(_, Context) ->
        #{ui => erlmcp:client_has(Context, ?ID),
          other => erlmcp:client_has(Context, ~"com.example/other")}
    end}.

view(Uri, Ui) ->
    #{uri => Uri, name => ~"view", ui => Ui, handler => fun(_, _) -> ~"<!DOCTYPE html>" end}.

sandbox() ->
    #{csp => #{connect_domains => [~"https://api.example.com", ~"wss://[::1]:8080"],
               resource_domains => [~"https://*.example.com"], frame_domains => [],
               base_uri_domains => [~"http://localhost:3000"]},
      permissions => [camera, clipboard_write], domain => ~"a904.example.com",
      prefers_border => true}.

sent() ->
    #{~"csp" => #{~"connectDomains" => [~"https://api.example.com", ~"wss://[::1]:8080"],
                  ~"resourceDomains" => [~"https://*.example.com"], ~"frameDomains" => [],
                  ~"baseUriDomains" => [~"http://localhost:3000"]},
      ~"permissions" => #{~"camera" => #{}, ~"clipboardWrite" => #{}},
      ~"domain" => ~"a904.example.com", ~"prefersBorder" => true}.

client(Revision, Config) ->
    client(Revision, #{}, Config).

client(Revision, Capabilities, Config) ->
    Transport = transport(Config),
    open(server(Config), Transport, Revision, Capabilities).

result(Client, Method, Params) ->
    #{~"result" := Result} = ask(Client, Method, Params),
    Result.

start(Options) ->
    erlmcp:start_server(maps:merge(#{name => ~"test", version => ~"1", listen => []}, Options)).

%% "Tools are associated with UI resources through the _meta.ui field"; "_meta[ui/resourceUri] is
%% deprecated", and what older hosts read. Tools have _meta since 2025-06-18.
tools_name_their_views(Config) ->
    [begin
         #{~"tools" := [Weather, Refresh, Seen, Meta]} =
             result(client(Revision, Config), ~"tools/list", #{}),
         #{~"_meta" := #{~"ui" := #{~"resourceUri" := ?URI} = Ui, ~"ui/resourceUri" := ?URI}} =
             Weather,
         1 = map_size(Ui),
         #{~"_meta" := #{~"ui" := #{~"resourceUri" := ?URI, ~"visibility" := [~"app"]}}} = Refresh,
         #{~"_meta" := #{~"ui" := #{~"visibility" := [~"model", ~"app"]}} = SeenMeta} = Seen,
         1 = map_size(SeenMeta),
         #{~"_meta" := #{~"com.example/a" := 1, ~"ui" := #{~"resourceUri" := ?URI}}} = Meta
     end || Revision <- [~"2026-07-28", ~"2025-11-25", ~"2025-06-18"]],
    [begin
         #{~"tools" := Tools} = result(client(Revision, Config), ~"tools/list", #{}),
         [] = [Tool || #{~"_meta" := _} = Tool <- Tools]
     end || Revision <- [~"2025-03-26", ~"2024-11-05"]].

%% "mimeType MUST be text/html;profile=mcp-app"; "resources/list: on the resource entry's _meta.ui".
views_are_described(Config) ->
    [begin
         #{~"resources" := [Weather, Plain | _]} =
             result(client(Revision, Config), ~"resources/list", #{}),
         #{~"uri" := ?URI, ~"mimeType" := ?TYPE, ~"_meta" := #{~"ui" := Sandbox}} = Weather,
         Sandbox = sent(),
         #{~"mimeType" := ?TYPE} = Plain,
         false = is_map_key(~"_meta", Plain)
     end || Revision <- [~"2026-07-28", ~"2025-11-25", ~"2025-06-18"]].

%% "resources/read: on each content item's _meta.ui field"; "the content-item value takes
%% precedence".
contents_carry_the_sandbox(Config) ->
    Sandbox = sent(),
    [begin
         Client = client(Revision, Config),
         Read = fun(Uri) ->
             #{~"contents" := [#{~"uri" := Uri, ~"mimeType" := ?TYPE} = Item]} =
                 result(Client, ~"resources/read", #{uri => Uri}),
             Item
         end,
         #{~"text" := ~"<!DOCTYPE html>", ~"_meta" := #{~"ui" := Sandbox}} = Read(?URI),
         #{~"blob" := _, ~"_meta" := #{~"ui" := Sandbox}} = Read(~"ui://blob"),
         #{~"_meta" := #{~"ui" := #{~"prefersBorder" := false} = Own}} = Read(~"ui://own"),
         1 = map_size(Own),
         false = is_map_key(~"_meta", Read(~"ui://plain"))
     end || Revision <- [~"2026-07-28", ~"2025-11-25", ~"2025-06-18"]],
    #{~"contents" := [#{~"text" := _} = Older]} =
        result(client(~"2025-03-26", Config), ~"resources/read", #{uri => ?URI}),
    false = is_map_key(~"_meta", Older).

%% "mimeTypes: Array of supported content types (REQUIRED)"; "Servers SHOULD check client
%% capabilities".
handlers_see_the_client(Config) ->
    With = fun(Settings) -> #{extensions => #{?ID => Settings}} end,
    [begin
         Client = client(Revision, Capabilities, Config),
         #{~"structuredContent" := #{~"ui" := Has, ~"other" := Other}} =
             result(Client, ~"tools/call", #{name => ~"get_weather"}),
         erlmcp_test_client:close(Client)
     end || Revision <- [~"2026-07-28", ~"2025-11-25"],
            {Has, Other, Capabilities} <- mistyped(Revision) ++ [
                {true, false, With(#{mimeTypes => [?TYPE]})},
                {true, false, With(#{mimeTypes => [~"text/uri-list", ?TYPE]})},
                {false, false, With(#{mimeTypes => [~"text/html"]})},
                {false, false, With(#{mimeTypes => []})}, {false, false, With(#{})},
                {false, false, With(#{mimeTypes => ?TYPE})}, {false, false, #{}},
                {false, true, #{extensions => #{~"com.example/other" => #{}}}}]].

%% Sessions have no word for extensions in their schema, and are let say what they like.
mistyped(~"2026-07-28") ->
    [];
mistyped(_) ->
    [{false, false, #{extensions => #{?ID => true}}}, {false, false, #{extensions => []}}].

%% "Tools MUST return meaningful content array even when UI is available".
results_are_text_too(Config) ->
    [begin
         #{~"content" := [#{~"type" := ~"text", ~"text" := Text}]} =
             result(client(Revision, Config), ~"tools/call", #{name => ~"refresh"}),
         #{~"ui" := false} = json:decode(Text)
     end || Revision <- [~"2026-07-28", ~"2025-11-25", ~"2024-11-05"]].

%% "The supporting party MUST ... revert to core protocol behavior": nobody is told of what nothing
%% uses.
declared_when_used(_) ->
    [begin
         Server = erlmcp_test_client:start(Options),
         Declared = extensions(Server, ~"2026-07-28"),
         Declared = extensions(Server, ~"2025-11-25"),
         Declared = extensions(Server, ~"2025-06-18"),
         #{} = extensions(Server, ~"2025-03-26"),
         erlmcp_test_client:stop(Server)
     end || {Declared, Options} <- [
                {#{}, #{tools => [maps:remove(ui, tool(~"a", #{}))]}},
                {#{?ID => #{}}, #{resources => [view(?URI, #{})]}},
                {#{?ID => #{}}, #{tools => [tool(~"a", #{visibility => [app]})]}}]].

extensions(Server, ~"2026-07-28") ->
    extensions(result(open(Server, http, ~"2026-07-28", #{}), ~"server/discover", #{}));
extensions(Server, Revision) ->
    #{messages := [#{~"result" := Result}]} = erlmcp_test_http:initialize(Server, Revision, #{}),
    extensions(Result).

extensions(#{~"capabilities" := Capabilities}) ->
    maps:get(~"extensions", Capabilities, #{}).

declared_when_added(_) ->
    #{pid := Pid} = Server = erlmcp_test_client:start(#{}),
    #{} = None = extensions(Server, ~"2026-07-28"),
    0 = map_size(None),
    ok = erlmcp:add(Pid, resource, view(?URI, #{})),
    #{?ID := #{}} = extensions(Server, ~"2026-07-28"),
    ok = erlmcp:remove(Pid, resource, ?URI),
    %% A client that was told may still ask.
    #{?ID := #{}} = extensions(Server, ~"2026-07-28"),
    erlmcp_test_client:stop(Server).

%% "Resource MUST exist on the server".
views_exist(_) ->
    Tool = tool(~"a", #{resource_uri => ?URI}),
    {error, {bad_definition, tool, ~"a", ui, Expected}} = start(#{tools => [Tool]}),
    {_, _} = binary:match(Expected, ?URI),
    {error, {bad_definition, tool, ~"a", ui, _}} =
        start(#{tools => [Tool], resources => [view(~"ui://other", #{})]}),
    {ok, Server} = start(#{}),
    {error, {bad_definition, tool, ~"a", ui, _}} = erlmcp:add(Server, tool, Tool),
    ok = erlmcp:add(Server, resource, view(?URI, #{})),
    ok = erlmcp:add(Server, tool, Tool),
    ok = erlmcp:stop_server(Server).

%% For as long as a tool names it.
views_stay(_) ->
    {ok, Server} = start(weather()),
    {error, {in_use, tool, ~"get_weather"}} = erlmcp:remove(Server, resource, ?URI),
    ok = erlmcp:remove(Server, resource, ~"ui://plain"),
    [ok = erlmcp:remove(Server, tool, Name) || Name <- [~"get_weather", ~"refresh"]],
    {error, {in_use, tool, ~"with_meta"}} = erlmcp:remove(Server, resource, ?URI),
    ok = erlmcp:remove(Server, tool, ~"with_meta"),
    ok = erlmcp:remove(Server, resource, ?URI),
    {error, not_found} = erlmcp:remove(Server, resource, ?URI),
    ok = erlmcp:stop_server(Server).

templates_are_views_too(_) ->
    Template = ~"ui://weather/{city}",
    #{pid := Pid} = Server = erlmcp_test_client:start(#{
        tools => [tool(~"a", #{resource_uri => ~"ui://weather/oslo"})],
        resource_templates => [#{uri_template => Template, name => ~"city", ui => sandbox(),
                                 handler => fun(#{~"city" := City}, _) -> City end}]}),
    Client = open(Server, http, ~"2026-07-28", #{}),
    Sandbox = sent(),
    #{~"resourceTemplates" := [#{~"mimeType" := ?TYPE, ~"_meta" := #{~"ui" := Sandbox}}]} =
        result(Client, ~"resources/templates/list", #{}),
    #{~"contents" := [#{~"text" := ~"oslo", ~"mimeType" := ?TYPE,
                        ~"_meta" := #{~"ui" := Sandbox}}]} =
        result(Client, ~"resources/read", #{uri => ~"ui://weather/oslo"}),
    {error, {in_use, tool, ~"a"}} = erlmcp:remove(Pid, resource_template, Template),
    erlmcp_test_client:stop(Server).

tools_are_checked(_) ->
    [{Ui, {error, {bad_definition, tool, ~"a", ui, _}}} = {Ui, start(#{tools => [tool(~"a", Ui)]})}
     || Ui <- [x, [], #{resource_uri => ~"https://example.com"}, #{resource_uri => ~"ui://"},
               #{resource_uri => "ui://a"},
               #{resource_uri => <<"ui://", 255>>}, #{visibility => []}, #{visibility => model},
               #{visibility => [model, model]}, #{visibility => [user]}, #{csp => #{}},
               #{~"resourceUri" => ?URI}]],
    [{error, {bad_definition, tool, ~"a", ui, _}} =
         start(#{tools => [(tool(~"a", #{visibility => [app]}))#{meta => Meta}]})
     || Meta <- [#{ui => #{}}, #{~"ui" => #{}}]],
    {ok, Server} = start(#{tools => [tool(~"a", #{}), tool(~"b", #{visibility => [app, model]})]}),
    ok = erlmcp:stop_server(Server).

views_are_checked(_) ->
    Origins = [~"example.com", ~"https://", ~"https://a b", ~"https://a;script-src *",
               ~"https://a, b", ~"https://a/path", ~"https://*", ~"'self'", ~"data:",
               ~"https://a\n",
               ~"ftp://a", ~"*", ~"https://é", ~"https://a:123456", x],
    [{Ui, {error, {bad_definition, resource, ?URI, ui, _}}} =
         {Ui, start(#{resources => [view(?URI, Ui)]})}
     || Ui <- [x, #{csp => []}, #{csp => #{script_domains => []}}, #{permissions => camera},
               #{permissions => [usb]}, #{domain => ~""}, #{domain => a}, #{domain => <<255>>},
               #{prefers_border => 1}, #{colour => red}, #{csp => #{frame_domains => ~"https://a"}},
               #{csp => #{frame_domains => [~"https://a" | x]}}]
           ++ [#{csp => #{connect_domains => [Origin]}} || Origin <- Origins]],
    {error, {bad_definition, resource, ~"test://a", ui, _}} =
        start(#{resources => [view(~"test://a", #{})]}),
    {error, {bad_definition, resource, ?URI, mime_type, _}} =
        start(#{resources => [(view(?URI, #{}))#{mime_type => ~"text/html"}]}),
    {error, {bad_definition, resource_template, ~"ui://{a}", mime_type, _}} =
        start(#{resource_templates => [#{uri_template => ~"ui://{a}", name => ~"a",
                                         mime_type => ~"text/plain",
                                         handler => fun(_, _) -> ~"" end}]}),
    {error, {bad_definition, prompt, ~"a", ui, ~"no such field"}} =
        start(#{prompts => [#{name => ~"a", ui => #{}, handler => fun(_, _) -> ~"" end}]}),
    {ok, Server} = start(#{resources => [(view(?URI, sandbox()))#{mime_type => ?TYPE}]}),
    ok = erlmcp:stop_server(Server).

%% Who writes _meta himself is taken at his word, but for what must be there.
meta_written_by_hand(_) ->
    Tool = (maps:remove(ui, tool(~"a", #{})))#{meta => #{ui => #{resourceUri => ?URI}}},
    {error, {bad_definition, tool, ~"a", ui, _}} = start(#{tools => [Tool]}),
    #{pid := Pid} = Server = erlmcp_test_client:start(#{tools => [Tool],
                                                        resources => [view(?URI, #{})]}),
    #{?ID := #{}} = extensions(Server, ~"2026-07-28"),
    [begin
         Wrong = Tool#{name := ~"b", meta := #{ui => #{~"resourceUri" => Uri}}},
         {error, {bad_definition, tool, ~"b", meta, ~"resourceUri of ui: a URI"}} =
             erlmcp:add(Pid, tool, Wrong)
     end || Uri <- [5, null, true, [?URI], #{}]],
    erlmcp_test_client:stop(Server).

%% Where a server is mounted, its tools name its views as the client finds them.
mounted_apps_are_apps(_) ->
    Server = erlmcp_test_client:start(#{mounts => [{~"sky", (weather())#{name => ~"sky",
                                                                         version => ~"1"}}]}),
    Client = open(Server, http, ~"2026-07-28", #{}),
    Greeting = result(Client, ~"server/discover", #{}),
    #{~"capabilities" := #{~"extensions" := #{?ID := #{}}}} = Greeting,
    #{~"tools" := [#{~"name" := ~"sky_get_weather", ~"_meta" := Meta} | _]} =
        result(Client, ~"tools/list", #{}),
    #{~"ui" := #{~"resourceUri" := Uri}, ~"ui/resourceUri" := Uri} = Meta,
    #{~"contents" := [#{~"mimeType" := ?TYPE, ~"_meta" := #{~"ui" := _}}]} =
        result(Client, ~"resources/read", #{uri => Uri}),
    %% What else comes and goes has nothing to do with them.
    #{pid := Pid} = Server,
    ok = erlmcp:add(Pid, tool, (tool(~"own", #{}))#{ui => #{visibility => [model]}}),
    ok = erlmcp:remove(Pid, tool, ~"own"),
    erlmcp_test_client:stop(Server).
