-module(mounts_SUITE).
-moduledoc """
`docs/composition.md`, "Mounts": servers in servers, in both eras, and what changes in them while
they are used.
""".

-behaviour(erlmcp_server).

-export([suite/0, all/0, init_per_testcase/2, end_per_testcase/2]).
-export([server/0, tools/0, resources/0, call_tool/3, read_resource/3]).
-export([definitions_stand_under_their_prefix/1, handlers_see_their_own_names/1,
         uris_of_all_forms_come_back/1, results_name_what_clients_find/1,
         modules_and_options_are_mounted/1, mounted_modules_can_change_themselves/1,
         mounted_definitions_are_seen_by_whom_they_are_for/1,
         mounts_are_mounted/1, middleware_is_inside/1, rounds_work_through_mounts/1,
         changes_show_at_once/1, lists_are_told_of_changes/1, updates_are_passed_on/1,
         places_stay/1, servers_that_end_are_gone/1, servers_that_come_back_are_back/1,
         crashed_publishers_find_their_mounts/1, started_servers_are_restarted/1,
         mounting_servers_leave_nothing/1, mounted_names_are_the_mounted_servers/1,
         duplicates_are_refused/1, loops_are_refused/1, long_names_are_refused/1,
         unknown_servers_are_refused/1, reasons_are_passed_on/1, later_clashes_are_left_out/1,
         names_become_no_atoms/1]).

-import(erlmcp_test_line, [serve/1, code/1, recv/1, is_quiet/1]).
-import(erlmcp_test_two_eras, [eras/0, open/2, ask/3, call/3, read/2, listed/2, text/1, await/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [definitions_stand_under_their_prefix, handlers_see_their_own_names,
     uris_of_all_forms_come_back, results_name_what_clients_find, modules_and_options_are_mounted,
     mounted_modules_can_change_themselves, mounted_definitions_are_seen_by_whom_they_are_for,
     mounts_are_mounted, middleware_is_inside,
     rounds_work_through_mounts, changes_show_at_once, lists_are_told_of_changes,
     updates_are_passed_on, places_stay, servers_that_end_are_gone,
     servers_that_come_back_are_back, crashed_publishers_find_their_mounts,
     started_servers_are_restarted, mounting_servers_leave_nothing,
     mounted_names_are_the_mounted_servers, duplicates_are_refused, loops_are_refused,
     long_names_are_refused, unknown_servers_are_refused, reasons_are_passed_on,
     later_clashes_are_left_out, names_become_no_atoms].

init_per_testcase(_, Config) ->
    %% Servers that cannot start, and those that are killed, say so to the log at length.
    #{level := Level} = logger:get_primary_config(),
    ok = logger:set_primary_config(level, none),
    [{log_level, Level} | Config].

end_per_testcase(_, Config) ->
    ok = logger:set_primary_config(level, proplists:get_value(log_level, Config)).

%% Definitions that say which names and URIs they are called by.

tool(Name) ->
    #{name => Name, handler => fun(Arguments, #{name := Called}) ->
        <<Called/binary, (maps:get(~"text", Arguments, ~""))/binary>>
    end}.

prompt(Name) ->
    #{name => Name, handler => fun(_, #{name := Called}) -> Called end,
      arguments => [#{name => ~"who"}],
      complete => #{~"who" => fun(_, #{name := Called}) -> [Called] end}}.

resource(Uri) ->
    #{uri => Uri, name => ~"r", handler => fun(_, #{uri := Called}) -> Called end}.

template(Text) ->
    {ok, Template} = erlmcp_uri_template:compile(Text),
    #{uri_template => Text, name => ~"t",
      handler => fun(Variables, #{uri := Called}) ->
          Sorted = [[Name, $=, Value] || Name := Value <- maps:iterator(Variables, ordered)],
          iolist_to_binary([Called, $;, Sorted])
      end,
      complete => #{Name => fun(_, #{uri := Called}) -> [Called] end
                    || Name <- erlmcp_uri_template:variables(Template)}}.

weather() ->
    #{name => ~"weather", version => ~"1", tools => [tool(~"today"), tool(~"week")],
      prompts => [prompt(~"dress")], resources => [resource(~"data://cities")],
      resource_templates => [template(~"data://city/{id}")]}.

%% "Tools and prompts `Prefix_name`, resources and templates `scheme://Prefix/rest`."
definitions_stand_under_their_prefix(_) ->
    Server = serve(#{tools => [tool(~"own")], mounts => [{~"weather", weather()}]}),
    [begin
         Client = open(Era, Server),
         [~"own", ~"weather_today", ~"weather_week"] = listed(Client, tool),
         [~"weather_dress"] = listed(Client, prompt),
         [~"data://weather/cities"] = listed(Client, resource),
         [~"data://weather/city/{id}"] = listed(Client, resource_template),
         -32602 = code(call(Client, ~"today", #{})),
         #{~"error" := _} = read(Client, ~"data://cities")
     end || Era <- eras()].

%% "Its handlers are given their own names and URIs, as if it were not mounted."
handlers_see_their_own_names(_) ->
    Server = serve(#{mounts => [{~"weather", weather()}]}),
    [begin
         Client = open(Era, Server),
         ~"today!" = text(call(Client, ~"weather_today", #{~"text" => ~"!"})),
         ~"dress" = text(ask(Client, ~"prompts/get", #{~"name" => ~"weather_dress"})),
         #{~"result" := #{~"contents" := [#{~"uri" := ~"data://weather/cities"}]}} = Plain =
             read(Client, ~"data://weather/cities"),
         ~"data://cities" = text(Plain),
         ~"data://city/ulm;id=ulm" = text(read(Client, ~"data://weather/city/ulm")),
         [~"dress"] = text(complete(Client, #{~"type" => ~"ref/prompt",
                                              ~"name" => ~"weather_dress"}, ~"who")),
         [~"data://city/{id}"] =
             text(complete(Client, #{~"type" => ~"ref/resource",
                                     ~"uri" => ~"data://weather/city/{id}"}, ~"id"))
     end || Era <- eras()].

complete(Client, Reference, Argument) ->
    ask(Client, ~"completion/complete",
        #{~"ref" => Reference, ~"argument" => #{~"name" => Argument, ~"value" => ~""}}).

uris_of_all_forms_come_back(_) ->
    Plain = [{~"data://info", ~"data://m/info"}, {~"file:///etc/x", ~"file://m//etc/x"},
             {~"urn:isbn:1", ~"urn:m/isbn:1"}, {~"readme", ~"m/readme"}, {~"a/b:c", ~"m/a/b:c"},
             {~"a:/b", ~"a:m//b"}],
    Templates = [{~"x://{id}", ~"x://m/{id}", ~"x://m/1", ~"x://1;id=1"},
                 {~"y:{id}", ~"y:m/{id}", ~"y:m/1", ~"y:1;id=1"},
                 {~"z{id:3}/{name}", ~"m/z{id:3}/{name}", ~"m/zabc/d", ~"zabc/d;id=abcname=d"},
                 {~"{+path}", ~"m/{+path}", ~"m/file:///q", ~"file:///q;path=file:///q"}],
    Server = serve(#{mounts => [{~"m", #{name => ~"m", version => ~"1",
                                         resources => [resource(Own) || {Own, _} <- Plain],
                                         resource_templates =>
                                             [template(Own) || {Own, _, _, _} <- Templates]}}]}),
    [begin
         {_, Socket} = Client = open(Era, Server),
         %% Two of these are no URIs, and are offered all the same.
         ok = erlmcp_test_wire:unchecked(Socket),
         true = [Mounted || {_, Mounted} <- Plain] =:= listed(Client, resource),
         true = [Mounted || {_, Mounted, _, _} <- Templates] =:= listed(Client, resource_template),
         [{Mounted, Own} = {Mounted, text(read(Client, Mounted))} || {Own, Mounted} <- Plain],
         [{Uri, Text} = {Uri, text(read(Client, Uri))} || {_, _, Uri, Text} <- Templates]
     end || Era <- eras()].

%% "What its results name of its own resources is named as the client finds it", and nothing else.
results_name_what_clients_find(_) ->
    Links = fun(_, _) ->
        [erlmcp_content:resource_link(~"data://own", ~"own"),
         erlmcp_content:resource_link(~"data://item/1", ~"matched"),
         erlmcp_content:resource_link(~"https://example.com/", ~"foreign"),
         erlmcp_content:embedded(~"data://own", ~"text/plain", ~"embedded")]
    end,
    Inner = #{name => ~"inner", version => ~"1",
              tools => [#{name => ~"links", handler => Links,
                          meta => #{ui => #{resourceUri => ~"data://own"}}},
                        #{name => ~"errs", handler => fun(A, C) -> {error, Links(A, C)} end}],
              prompts => [#{name => ~"linked", handler => fun(_, _) ->
                                #{messages => [#{role => user,
                                                 content => erlmcp_content:embedded(
                                                     ~"data://own", ~"text/plain", ~"x")}]}
                            end}],
              resources => [#{uri => ~"data://own", name => ~"own", handler => fun(_, _) ->
                                [erlmcp_content:text_contents(~"data://own", undefined, ~"1"),
                                 erlmcp_content:text_contents(~"data://other", undefined, ~"2"),
                                 %% As a client returns it.
                                 #{~"uri" => ~"data://own", ~"text" => ~"3"}]
                            end}],
              resource_templates => [template(~"data://item/{id}")]},
    Middle = #{name => ~"middle", version => ~"1", mounts => [{~"b", Inner}]},
    Server = serve(#{tools => [], mounts => [{~"a", Middle}]}),
    Uris = [~"data://a/b/own", ~"data://a/b/item/1", ~"https://example.com/"],
    [begin
         Client = open(Era, Server),
         [begin
              #{~"result" := #{~"content" := Content}} = call(Client, Tool, #{}),
              [#{~"type" := ~"resource", ~"resource" := #{~"uri" := ~"data://a/b/own"}}
               | Links3] = lists:reverse(Content),
              Uris = [Uri || #{~"type" := ~"resource_link", ~"uri" := Uri} <- lists:reverse(Links3)]
          end || Tool <- [~"a_b_links", ~"a_b_errs"]],
         #{~"result" := #{~"messages" := [#{~"content" := #{~"resource" :=
             #{~"uri" := ~"data://a/b/own"}}}]}} =
             ask(Client, ~"prompts/get", #{~"name" => ~"a_b_linked"}),
         #{~"result" := #{~"contents" := [#{~"uri" := ~"data://a/b/own"},
                                          #{~"uri" := ~"data://other"},
                                          #{~"uri" := ~"data://a/b/own"}]}} =
             read(Client, ~"data://a/b/own"),
         #{~"result" := #{~"tools" := [#{~"_meta" := #{~"ui" := #{~"resourceUri" :=
             ~"data://a/b/own"}}} | _]}} = ask(Client, ~"tools/list", #{})
     end || Era <- eras()].

%% "`Server` is a running server, or the options of one, or a module."
modules_and_options_are_mounted(_) ->
    Running = serve((weather())#{id => weather}),
    Servers = [Running, weather, ?MODULE, weather(), #{handler => ?MODULE, id => other}],
    Server = serve(#{tools => [],
                     mounts => [{<<"m", (integer_to_binary(N))/binary>>, Mounted}
                                || {N, Mounted} <- lists:enumerate(Servers)]}),
    [begin
         Client = open(Era, Server),
         [~"m1_today", ~"m1_week", ~"m2_today", ~"m2_week", ~"m3_grow", ~"m4_today", ~"m4_week",
          ~"m5_grow"] = listed(Client, tool),
         [~"today" = text(call(Client, Name, #{}))
          || Name <- [~"m1_today", ~"m2_today", ~"m4_today"]],
         ~"m://plain" = text(read(Client, ~"m://m3/plain"))
     end || Era <- eras()],
    #{mounts := [#{prefix := ~"m1", server := Running, running := true},
                 #{prefix := ~"m2", server := weather, running := true},
                 #{prefix := ~"m3", server := ?MODULE, running := true} | _]} = erlmcp:info(Server).

server() -> #{id => ?MODULE, name => ~"module", version => ~"1"}.

tools() -> [#{name => ~"grow"}].

resources() -> [#{uri => ~"m://plain", name => ~"plain"}].

call_tool(~"grow", #{~"name" := Name}, _) ->
    ok = erlmcp:add(?MODULE, tool, tool(Name)),
    ok = erlmcp:resource_updated(?MODULE, ~"m://plain"),
    ~"grown".

read_resource(Uri, #{}, _) -> Uri.

%% A mounted module runs: what it says to the server of its own id it says to its clients.
mounted_modules_can_change_themselves(_) ->
    Server = serve(#{tools => [], mounts => [{~"m", ?MODULE}]}),
    Client = open(~"2026-07-28", Server),
    ~"grown" = text(call(Client, ~"m_grow", #{~"name" => ~"new"})),
    [~"m_grow", ~"m_new"] = listed(Client, tool),
    ~"new" = text(call(Client, ~"m_new", #{})).

%% "Who may not see a definition of a mounted server does not see it where that is mounted."
mounted_definitions_are_seen_by_whom_they_are_for(_) ->
    IsAda = fun(Principal) -> Principal =:= ~"Ada" end,
    Running = serve((weather())#{tools => [(tool(~"hers"))#{visible => IsAda}],
                                 resources => [(resource(~"data://hers"))#{visible => IsAda}]}),
    Server = serve(#{tools => [], mounts => [{~"m", Running}],
                     listen => [{tcp, #{principal => Who}} || Who <- [~"Ada", ~"Bob"]]}),
    Ports = [Port || #{port := Port} <- erlmcp:listeners(Server)],
    [begin
         [Ada, Bob] = [open(Era, Port) || Port <- Ports],
         [[~"m_hers"], []] = [listed(Client, tool) || Client <- [Ada, Bob]],
         ~"hers" = text(call(Ada, ~"m_hers", #{})),
         -32602 = code(call(Bob, ~"m_hers", #{})),
         ~"data://hers" = text(read(Ada, ~"data://m/hers")),
         #{~"error" := _} = read(Bob, ~"data://m/hers")
     end || Era <- eras()],
    {_, Hears} = open(~"2025-11-25", hd(Ports)),
    {_, DoesNot} = open(~"2025-11-25", lists:last(Ports)),
    true = is_quiet(DoesNot),
    true = is_quiet(Hears),
    ok = erlmcp:add(Running, tool, (tool(~"too"))#{visible => IsAda}),
    #{~"method" := ~"notifications/tools/list_changed"} = recv(Hears),
    true = is_quiet(DoesNot).

mounts_are_mounted(_) ->
    Server = serve(three_levels()),
    [begin
         Client = open(Era, Server),
         [~"a_b_c_today", ~"a_b_c_week"] = listed(Client, tool),
         ~"today" = text(call(Client, ~"a_b_c_today", #{})),
         ~"data://city/ulm;id=ulm" = text(read(Client, ~"data://a/b/c/city/ulm"))
     end || Era <- eras()].

three_levels() ->
    lists:foldl(fun(Prefix, Inner) ->
                    #{name => Prefix, version => ~"1", tools => [], mounts => [{Prefix, Inner}]}
                end, (weather())#{id => inmost}, [~"c", ~"b", ~"a"]).

%% "Middleware of the mounted server is inside of that of the mounting one", and sees its own names.
middleware_is_inside(_) ->
    Around = fun(Mark) ->
        fun(Arguments, #{name := Name} = Context, Next) ->
            Text = Next(Arguments, Context),
            <<Mark/binary, Name/binary, "(", Text/binary, ")">>
        end
    end,
    Inner = (weather())#{middleware => [Around(~"inner:")]},
    Server = serve(#{middleware => [Around(~"outer:")], mounts => [{~"m", Inner}]}),
    [~"outer:m_today(inner:today(today))" = text(call(open(Era, Server), ~"m_today", #{}))
     || Era <- eras()].

%% A handler that asks is asked again, with its state, wherever it is mounted.
rounds_work_through_mounts(_) ->
    Handler = fun(_, #{state := #{asked := Asked}, input := #{~"q" := #{~"content" := Content}}}) ->
                      <<Asked/binary, (maps:get(~"who", Content))/binary>>;
                 (_, #{name := Name}) ->
                      Question = erlmcp_input:elicit(~"Who?", #{type => object, properties => #{}}),
                      {input_required, #{~"q" => Question}, #{asked => <<Name/binary, ": ">>}}
              end,
    Inner = #{name => ~"i", version => ~"1", tools => [#{name => ~"asks", handler => Handler}]},
    Server = serve(#{mounts => [{~"m", Inner}]}),
    Client = open(~"2026-07-28", Server),
    Params = #{~"name" => ~"m_asks", ~"arguments" => #{},
               ~"_meta" => #{~"io.modelcontextprotocol/clientCapabilities" =>
                                 #{~"elicitation" => #{~"form" => #{}}}}},
    #{~"result" := #{~"resultType" := ~"input_required", ~"requestState" := State}} =
        ask(Client, ~"tools/call", Params),
    Answers = #{~"q" => #{~"action" => ~"accept", ~"content" => #{~"who" => ~"Ada"}}},
    ~"asks: Ada" = text(ask(Client, ~"tools/call",
                            Params#{~"requestState" => State, ~"inputResponses" => Answers})).

%% "What is added to or removed from a mounted server shows when that has returned", however deep.
changes_show_at_once(_) ->
    Running = serve((weather())#{id => ?FUNCTION_NAME, tools => []}),
    Middle = #{name => ~"middle", version => ~"1", mounts => [{~"b", ?FUNCTION_NAME}]},
    Server = serve(#{tools => [], mounts => [{~"a", Middle}, {~"c", Running}]}),
    [begin
         Client = open(Era, Server),
         [] = listed(Client, tool),
         ok = erlmcp:add(?FUNCTION_NAME, tool, tool(~"new")),
         [~"a_b_new", ~"c_new"] = lists:sort(listed(Client, tool)),
         ~"new" = text(call(Client, ~"a_b_new", #{})),
         ok = erlmcp:remove(?FUNCTION_NAME, tool, ~"new"),
         [] = listed(Client, tool),
         -32602 = code(call(Client, ~"a_b_new", #{}))
     end || Era <- eras()].

%% The clients of the mounting server hear of it, of the kind that changed and no other.
lists_are_told_of_changes(_) ->
    Running = serve((weather())#{id => ?FUNCTION_NAME}),
    Server = serve(#{mounts => [{~"a", Running}]}),
    {_, Socket} = open(~"2025-11-25", Server),
    true = is_quiet(Socket),
    [begin
         ok = Change(),
         #{~"method" := Method} = recv(Socket),
         true = is_quiet(Socket)
     end || {Change, Method} <- [
         {fun() -> erlmcp:add(Running, tool, tool(~"x")) end,
          ~"notifications/tools/list_changed"},
         {fun() -> erlmcp:remove(Running, prompt, ~"dress") end,
          ~"notifications/prompts/list_changed"},
         {fun() -> erlmcp:add(Running, resource_template, template(~"q://{id}")) end,
          ~"notifications/resources/list_changed"}]].

%% Clients that watch a resource of a mounted server are told when that one says it changed.
updates_are_passed_on(_) ->
    Running = serve(#{id => ?FUNCTION_NAME, tools => [],
                      resources => [resource(~"data://x"), resource(~"data://y")]}),
    Server = serve(#{mounts => [{~"a", #{name => ~"m", version => ~"1",
                                         mounts => [{~"b", Running}]}}]}),
    {_, Session} = Client = open(~"2025-11-25", Server),
    #{~"result" := #{}} = ask(Client, ~"resources/subscribe", #{~"uri" => ~"data://a/b/x"}),
    {_, Line} = open(~"2026-07-28", Server),
    Filter = #{~"resourceSubscriptions" => [~"data://a/b/x"]},
    erlmcp_test_line:send(Line, erlmcp_test_line:stateless(7, ~"subscriptions/listen",
                                                           #{~"notifications" => Filter})),
    #{~"method" := ~"notifications/subscriptions/acknowledged"} = recv(Line),
    ok = erlmcp:resource_updated(Running, ~"data://y"),
    ok = erlmcp:resource_updated(?FUNCTION_NAME, ~"data://x"),
    [#{~"method" := ~"notifications/resources/updated",
       ~"params" := #{~"uri" := ~"data://a/b/x"}} = recv(Socket) || Socket <- [Session, Line]],
    true = is_quiet(Session).

%% Cursors stay good: a definition that stays keeps its place while others of its mount come and go.
places_stay(_) ->
    Names = [<<"t", (integer_to_binary(N))/binary>> || N <- lists:seq(1, 6)],
    Running = serve(#{tools => [tool(Name) || Name <- Names]}),
    Server = serve(#{page_size => 2, tools => [tool(~"own")], mounts => [{~"m", Running}]}),
    Client = open(~"2026-07-28", Server),
    #{~"result" := #{~"tools" := First, ~"nextCursor" := Cursor}} =
        ask(Client, ~"tools/list", #{}),
    [~"own", ~"m_t1"] = [Name || #{~"name" := Name} <- First],
    ok = erlmcp:remove(Running, tool, ~"t1"),
    ok = erlmcp:remove(Running, tool, ~"t3"),
    ok = erlmcp:add(Running, tool, tool(~"t7")),
    #{~"result" := #{~"tools" := Second}} =
        ask(Client, ~"tools/list", #{~"cursor" => Cursor}),
    [~"m_t2", ~"m_t4"] = [Name || #{~"name" := Name} <- Second].

servers_that_end_are_gone(_) ->
    Test = self(),
    [begin
         Running = serve(weather()),
         Server = serve(#{tools => [tool(~"own")], mounts => [{~"m", Running}]}),
         {_, Socket} = Client = open(~"2025-11-25", Server),
         [~"own", ~"m_today", ~"m_week"] = listed(Client, tool),
         End(Running),
         Methods = [~"notifications/prompts/list_changed", ~"notifications/resources/list_changed",
                    ~"notifications/tools/list_changed"],
         Methods = lists:sort([begin #{~"method" := M} = recv(Socket), M end
                               || _ <- lists:seq(1, 3)]),
         [~"own"] = listed(Client, tool),
         [[] = listed(Client, Kind) || Kind <- [prompt, resource, resource_template]],
         #{mounts := [#{running := false}]} = erlmcp:info(Server),
         -32602 = code(call(Client, ~"m_today", #{}))
     end || End <- [fun erlmcp:stop_server/1, fun(Pid) -> exit(Pid, kill) end]],
    true = Test =:= self().

%% "One that is mounted by its `id` is back when a server with that id runs again."
servers_that_come_back_are_back(_) ->
    Id = {?FUNCTION_NAME, 1},
    Running = serve((weather())#{id => Id}),
    Server = serve(#{tools => [], mounts => [{~"m", Id}, {~"p", Running}]}),
    Client = open(~"2026-07-28", Server),
    [~"m_today", ~"m_week", ~"p_today", ~"p_week"] = listed(Client, tool),
    [begin
         ok = erlmcp:stop_server(Id),
         await(fun() -> listed(Client, tool) =:= [] end),
         _ = serve(#{id => Id, tools => [tool(Name)]}),
         Mounted = <<"m_", Name/binary>>,
         %% Not under `p`: a pid does not come back.
         await(fun() -> listed(Client, tool) =:= [Mounted] end),
         Name = text(call(Client, Mounted, #{})),
         ok = erlmcp:add(Id, tool, tool(~"more")),
         [Mounted, ~"m_more"] = listed(Client, tool)
     end || Name <- [~"first", ~"second"]].

crashed_publishers_find_their_mounts(_) ->
    Running = serve((weather())#{id => ?FUNCTION_NAME}),
    Server = serve(#{tools => [], mounts => [{~"m", Running}]}),
    Client = open(~"2026-07-28", Server),
    [begin
         Publisher = erlmcp_server_sup:publisher(Crashing),
         Monitor = monitor(process, Publisher),
         exit(Publisher, kill),
         receive {'DOWN', Monitor, process, _, _} -> ok end,
         %% The supervisor heard of it before it answers.
         _ = erlmcp_server_sup:publisher(Crashing),
         ok = erlmcp:add(Running, tool, tool(Name)),
         await(fun() -> lists:member(<<"m_", Name/binary>>, listed(Client, tool)) end)
     end || {Crashing, Name} <- [{Server, ~"one"}, {Running, ~"two"}]],
    [~"m_today", ~"m_week", ~"m_one", ~"m_two"] = listed(Client, tool).

%% A server that was started to be mounted stands under the supervisor of the one that mounts it.
started_servers_are_restarted(_) ->
    Server = serve(#{tools => [], mounts => [{~"m", (weather())#{id => ?FUNCTION_NAME}}]}),
    Client = open(~"2026-07-28", Server),
    {ok, Child, _} = erlmcp_registry:whereis(?FUNCTION_NAME),
    ok = erlmcp:add(?FUNCTION_NAME, tool, tool(~"added")),
    [~"m_today", ~"m_week", ~"m_added"] = listed(Client, tool),
    exit(Child, kill),
    await(fun() -> listed(Client, tool) =:= [~"m_today", ~"m_week"] end),
    ~"today" = text(call(Client, ~"m_today", #{})),
    {ok, Again, _} = erlmcp_registry:whereis(?FUNCTION_NAME),
    Monitor = monitor(process, Again),
    ok = erlmcp:stop_server(Server),
    receive {'DOWN', Monitor, process, _, shutdown} -> ok end.

%% A mounting server that ends, in whatever way, is not told any more.
mounting_servers_leave_nothing(_) ->
    Running = serve(weather()),
    {ok, _, #{mounting := Table}} = erlmcp_registry:whereis(Running),
    [begin
         Server = serve(#{mounts => [{~"m", Running}]}),
         1 = ets:info(Table, size),
         Monitor = monitor(process, Server),
         End(Server),
         receive {'DOWN', Monitor, process, _, _} -> ok end,
         Check()
     end || {End, Check} <- [
         {fun erlmcp:stop_server/1, fun() -> 0 = ets:info(Table, size) end},
         {fun(Pid) ->
              Publisher = erlmcp_server_sup:publisher(Pid),
              true = erlang:suspend_process(Publisher),
              exit(Pid, kill),
              exit(Publisher, kill)
          end,
          fun() ->
              %% It could not take its row with it; that goes with the next change.
              ok = erlmcp:add(Running, tool, tool(~"x")),
              ok = erlmcp:resource_updated(Running, ~"data://cities"),
              await(fun() ->
                        ok = erlmcp:resource_updated(Running, ~"data://cities"),
                        ets:info(Table, size) =:= 0
                    end)
          end}]].

%% The mounting server cannot remove what it does not define, nor define it again.
mounted_names_are_the_mounted_servers(_) ->
    Server = serve(#{tools => [], mounts => [{~"m", weather()}]}),
    {error, {mounted, ~"m"}} = erlmcp:remove(Server, tool, ~"m_today"),
    {error, {duplicate, tool, ~"m_today"}} = erlmcp:add(Server, tool, tool(~"m_today")),
    [~"m_today", ~"m_week"] = listed(open(~"2026-07-28", Server), tool).

refused(Options) ->
    process_flag(trap_exit, true),
    {error, Reason} = erlmcp:start_server(maps:merge(#{name => ~"n", version => ~"1"}, Options)),
    Reason.

duplicates_are_refused(_) ->
    {duplicate, mount, ~"a"} = refused(#{mounts => [{~"a", weather()}, {~"a", weather()}]}),
    {mount, ~"a", {duplicate, tool, ~"a_today"}} =
        refused(#{tools => [tool(~"a_today")], mounts => [{~"a", weather()}]}),
    %% Two ways to one name.
    Named = fun(Name) -> #{name => ~"x", version => ~"1", prompts => [prompt(Name)]} end,
    {mount, ~"a_b", {duplicate, prompt, ~"a_b_c"}} =
        refused(#{mounts => [{~"a", Named(~"b_c")}, {~"a_b", Named(~"c")}]}),
    Once = (weather())#{id => ?FUNCTION_NAME},
    {mount, ~"b", {duplicate, mount, ?FUNCTION_NAME}} =
        refused(#{mounts => [{~"a", Once}, {~"b", Once}]}),
    {mount, ~"a", {duplicate, mount, ?FUNCTION_NAME}} =
        refused(#{id => ?FUNCTION_NAME, mounts => [{~"a", Once}]}),
    Running = serve(Once),
    {mount, ~"a", {already_started, Running}} = refused(#{mounts => [{~"a", Once}]}).

loops_are_refused(_) ->
    %% A module in itself; this one has a server/0 without mounts, so they are given here.
    {mount, ~"a", {mount, ~"b", {mount_loop, [?MODULE, ?MODULE]}}} =
        refused(#{handler => ?MODULE, id => x,
                  mounts => [{~"a", #{name => ~"n", version => ~"1",
                                      mounts => [{~"b", #{handler => ?MODULE}}]}}]}),
    %% A running server that waits for this one's id, directly and through another one.
    Waited = serve((weather())#{id => waited}),
    _ = serve(#{id => waits, mounts => [{~"w", waited}]}),
    _ = serve(#{id => further, mounts => [{~"f", waits}]}),
    ok = erlmcp:stop_server(Waited),
    {mount, ~"x", {mount_loop, [waits, waited]}} =
        refused(#{id => waited, mounts => [{~"x", waits}]}),
    {mount, ~"x", {mount_loop, [further, waits, waited]}} =
        refused(#{id => waited, mounts => [{~"x", further}]}).

%% "Tool names SHOULD be between 1 and 128 characters in length (inclusive)": 128 are, 129 are not.
long_names_are_refused(_) ->
    Mounted = fun(Size) ->
        Inner = #{name => ~"l", version => ~"1", tools => [tool(binary:copy(~"x", Size))]},
        #{tools => [], mounts => [{~"m", Inner}]}
    end,
    [<<"m_", _:126/binary>>] = listed(open(~"2026-07-28", serve(Mounted(126))), tool),
    {mount, ~"m", {bad_definition, tool, <<"m_", _:127/binary>>, name, <<_/binary>>}} =
        refused(Mounted(127)),
    Uri = fun(Size) ->
        Inner = #{name => ~"l", version => ~"1",
                  resources => [resource(<<"x://", (binary:copy(~"y", Size))/binary>>)]},
        #{mounts => [{~"m", Inner}]}
    end,
    [_] = listed(open(~"2026-07-28", serve(Uri(8192 - 6))), resource),
    {mount, ~"m", {bad_definition, resource, _, uri, <<_/binary>>}} = refused(Uri(8192 - 5)).

unknown_servers_are_refused(_) ->
    [{mount, ~"a", not_found} = refused(#{mounts => [{~"a", Unknown}]})
     || Unknown <- [nobody, self(), ~"nobody", {a, b}, 1]],
    {mount, ~"a", {bad_option, handler, <<_/binary>>}} = refused(#{mounts => [{~"a", lists}]}).

%% What keeps a mounted server from starting keeps the mounting one, and is said.
reasons_are_passed_on(_) ->
    {mount, ~"a", {bad_option, name, _}} = refused(#{mounts => [{~"a", #{version => ~"1"}}]}),
    {mount, ~"a", {bad_definition, tool, ~"t", handler, _}} =
        refused(#{mounts => [{~"a", (weather())#{tools => [#{name => ~"t"}]}}]}),
    Used = erlmcp_test_line:port(serve(#{})),
    Inner = (weather())#{listen => [{tcp, #{port => Used}}]},
    {mount, ~"a", {mount, ~"b", {listen, tcp, eaddrinuse}}} =
        refused(#{mounts => [{~"a", #{name => ~"n", version => ~"1", mounts => [{~"b", Inner}]}}]}).

%% A mounted server changes as it likes: what has no room in the mounting one is left out there.
later_clashes_are_left_out(_) ->
    Running = serve((weather())#{tools => []}),
    Server = serve(#{tools => [tool(~"m_own")], mounts => [{~"m", Running}]}),
    [ok = erlmcp:add(Running, tool, tool(Name))
     || Name <- [~"own", binary:copy(~"x", 127), ~"fits"]],
    Client = open(~"2026-07-28", Server),
    [~"m_own", ~"m_fits"] = listed(Client, tool),
    ~"m_own" = text(call(Client, ~"m_own", #{})).

names_become_no_atoms(_) ->
    Running = serve(#{tools => []}),
    Server = serve(#{tools => [], mounts => [{~"m", Running}]}),
    Client = open(~"2026-07-28", Server),
    Use = fun(N) ->
        Name = <<"no_atom_", (integer_to_binary(N))/binary>>,
        ok = erlmcp:add(Running, tool, tool(Name)),
        Name = text(call(Client, <<"m_", Name/binary>>, #{})),
        ok = erlmcp:remove(Running, tool, Name)
    end,
    Use(0),
    Before = erlang:system_info(atom_count),
    lists:foreach(Use, lists:seq(1, 100)),
    %% Others of this node may make some.
    true = erlang:system_info(atom_count) - Before < 50.
