-module(replaced_definitions_SUITE).
-moduledoc """
What `erlmcp:replace/2` changes in a server that runs: all definitions of a kind at once or none,
for clients of both eras.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([lists_are_replaced/1, clients_are_told_of_lists_that_differ/1,
         the_same_visible_is_no_change/1,
         running_calls_end_as_they_began/1, nothing_changes_if_one_is_wrong/1,
         mounted_definitions_and_skills_stay/1, servers_that_mount_it_follow/1,
         kept_results_go/1, figures_go_on/1, many_are_replaced/1, servers_that_ended_are_said/1,
         publishers_that_end_are_waited_for/1]).

-import(erlmcp_test_line, [send/2, recv/1, stateless/3, waiting_tool/1, await_call/0]).
-import(erlmcp_test_servers, [start/1, kinds/0, definition/2, key/1, await_messages/2]).
-import(erlmcp_test_two_eras, [eras/0, open/2, call/3, listed/2, text/1]).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [lists_are_replaced, clients_are_told_of_lists_that_differ, the_same_visible_is_no_change,
     running_calls_end_as_they_began, nothing_changes_if_one_is_wrong,
     mounted_definitions_and_skills_stay,
     servers_that_mount_it_follow, kept_results_go, figures_go_on, many_are_replaced,
     servers_that_ended_are_said, publishers_that_end_are_waited_for].

init_per_suite(Config) ->
    erlmcp_test_servers:init_suite(Config).

end_per_suite(Config) ->
    erlmcp_test_servers:end_suite(Config).

init_per_testcase(_, Config) ->
    erlmcp_test_servers:init_case(Config).

end_per_testcase(_, _) ->
    erlmcp_test_servers:stop_all().

list(tool) -> tools;
list(resource) -> resources;
list(resource_template) -> resource_templates;
list(prompt) -> prompts.

tool(Name, Text) ->
    #{name => Name, handler => fun(_, _) -> Text end}.

%% In the order of the new list, whatever was there; kinds that are not given stay.
lists_are_replaced(_) ->
    Server = start(#{tools => [definition(tool, ~"stays")]}),
    Clients = [open(Era, Server) || Era <- eras()],
    [begin
         Replace = fun(Names) ->
             Definitions = [definition(Kind, Name) || Name <- Names],
             ok = erlmcp:replace(Server, #{list(Kind) => Definitions}),
             Keys = [maps:get(key(Kind), Definition) || Definition <- Definitions],
             [Keys = listed(Client, Kind) || Client <- Clients]
         end,
         [Replace(Names) || Names <- [[~"a", ~"b", ~"c"], [~"c", ~"d", ~"a", ~"b", ~"e"], [~"b"],
                                      [~"a", ~"b"], []]],
         [[~"stays"] = listed(Client, tool) || Client <- Clients]
     end || Kind <- kinds() -- [tool]],
    ok = erlmcp:replace(Server, #{tools => [tool(~"x", ~"1"), tool(~"y", ~"2")],
                                  prompts => [definition(prompt, ~"p")]}),
    [begin
         [~"x", ~"y"] = listed(Client, tool),
         [~"p"] = listed(Client, prompt),
         ~"2" = text(call(Client, ~"y", #{})),
         #{~"error" := _} = call(Client, ~"stays", #{})
     end || Client <- Clients],
    %% Changes by add/3 and remove/3 go on from there.
    ok = erlmcp:add(Server, tool, tool(~"z", ~"3")),
    ok = erlmcp:remove(Server, tool, ~"x"),
    [[~"y", ~"z"] = listed(Client, tool) || Client <- Clients].

%% Once for each list, and not of one that looks the same with other handlers.
clients_are_told_of_lists_that_differ(_) ->
    Server = start(#{tools => [tool(~"a", ~"old"), tool(~"b", ~"old")],
                     prompts => [definition(prompt, ~"p")],
                     resources => [definition(resource, ~"r")]}),
    Clients = [subscribed(Era, Server) || Era <- eras()],
    ok = erlmcp:replace(Server, #{tools => [tool(~"a", ~"new"), tool(~"b", ~"new")]}),
    [begin
         [] = said(Client),
         ~"new" = text(call(Client, ~"a", #{}))
     end || Client <- Clients],
    ok = erlmcp:replace(Server, #{
        tools => [tool(~"b", ~"new"), tool(~"a", ~"new")], resources => [],
        prompts => [definition(prompt, ~"p")]}),
    [[~"notifications/resources/list_changed", ~"notifications/tools/list_changed"] = said(Client)
     || Client <- Clients],
    [[~"b", ~"a"] = listed(Client, tool) || Client <- Clients].

%% Another fun may hide from a client what it saw before.
the_same_visible_is_no_change(_) ->
    Test = self(),
    Visible = fun(_) -> is_pid(Test) end,
    Tool = (tool(~"a", ~"old"))#{visible => Visible},
    Server = start(#{tools => [Tool], on_event => fun(Event) -> Test ! {event, Event} end}),
    Clients = [subscribed(Era, Server) || Era <- eras()],
    Replaced = fun(Tools) ->
        ok = erlmcp:replace(Server, #{tools => Tools}),
        receive {event, #{event := reloaded, changed := Changed}} -> Changed end
    end,
    [begin
         0 = Replaced([Tool#{handler := fun(_, _) -> Text end}]),
         [begin
              [] = said(Client),
              Text = text(call(Client, ~"a", #{}))
          end || Client <- Clients]
     end || Text <- [~"one", ~"two"]],
    1 = Replaced([Tool#{visible := fun(_) -> true end}]),
    [[~"notifications/tools/list_changed"] = said(Client) || Client <- Clients],
    1 = Replaced([tool(~"a", ~"old")]),
    [[~"notifications/tools/list_changed"] = said(Client) || Client <- Clients].

subscribed(~"2026-07-28" = Era, Server) ->
    {_, Socket} = Client = open(Era, Server),
    send(Socket, stateless(~"listen", ~"subscriptions/listen", #{~"notifications" => #{
        ~"toolsListChanged" => true, ~"promptsListChanged" => true,
        ~"resourcesListChanged" => true}})),
    #{~"method" := ~"notifications/subscriptions/acknowledged"} = recv(Socket),
    Client;
subscribed(Era, Server) ->
    open(Era, Server).

%% The methods of the notifications that have come.
said({Revision, Socket}) ->
    Id = erlang:unique_integer([positive]),
    send(Socket, case Revision of
        ~"2026-07-28" -> stateless(Id, ~"tools/list", #{});
        _ -> erlmcp_test_line:request(Id, ~"tools/list", #{})
    end),
    lists:sort(said(Id, Socket)).

said(Id, Socket) ->
    case recv(Socket) of
        #{~"id" := Id} -> [];
        #{~"method" := Method} -> [Method | said(Id, Socket)]
    end.

running_calls_end_as_they_began(_) ->
    [begin
         Server = start(#{tools => [waiting_tool(~"wait")]}),
         {_, Socket} = Client = open(Era, Server),
         Call = #{~"name" => ~"wait"},
         send(Socket, case Era of
             ~"2026-07-28" -> stateless(1, ~"tools/call", Call);
             _ -> erlmcp_test_line:request(1, ~"tools/call", Call)
         end),
         Pid = await_call(),
         ok = erlmcp:replace(Server, #{tools => [tool(~"wait", ~"new")]}),
         ~"new" = text(call(Client, ~"wait", #{})),
         Pid ! {answer, ~"old"},
         ~"old" = text(answer(1, Socket))
     end || Era <- eras()].

answer(Id, Socket) ->
    case recv(Socket) of
        #{~"id" := Id} = Answer -> Answer;
        #{~"method" := _} -> answer(Id, Socket)
    end.

nothing_changes_if_one_is_wrong(_) ->
    Server = start(#{tools => [tool(~"a", ~"old")], prompts => [definition(prompt, ~"p")]}),
    Clients = [subscribed(Era, Server) || Era <- eras()],
    New = tool(~"new", ~"new"),
    [begin
         {error, Reason} = erlmcp:replace(Server, Definitions),
         [begin
              [] = said(Client),
              [~"a"] = listed(Client, tool),
              [~"p"] = listed(Client, prompt),
              ~"old" = text(call(Client, ~"a", #{}))
          end || Client <- Clients]
     end || {Reason, Definitions} <-
                [{{bad_definition, tool, ~"x", handler, ~"a fun of two arguments"},
                  #{tools => [New, #{name => ~"x"}]}},
                 {{bad_definition, tool, undefined, definition, ~"a map"}, #{tools => [New, 7]}},
                 {{bad_definition, prompt, ~"q", breaker,
                   ~"the name of one of the server's breakers"},
                  #{tools => [New],
                    prompts => [(definition(prompt, ~"q"))#{breaker => none_such}]}},
                 {{duplicate, tool, ~"new"}, #{tools => [New, New]}},
                 {{bad_option, tools, ~"a list of definitions"}, #{tools => New}},
                 {{bad_option, skills, ~"tools, resources, resource_templates or prompts"},
                  #{tools => [New], skills => []}},
                 {{bad_option, definitions, ~"a map"}, [New]}]],
    ok = erlmcp:replace(Server, #{}),
    [[] = said(Client) || Client <- Clients].

mounted_definitions_and_skills_stay(_) ->
    Skill = #{name => ~"brew", description => ~"Brews", body => ~"Brew."},
    Main = ~"skill://brew/SKILL.md",
    Server = start(#{tools => [tool(~"own", ~"1"), tool(~"m_taken", ~"1")],
                     resources => [definition(resource, ~"own")], skills => [Skill]}),
    Mounted = start(#{tools => [tool(~"in", ~"in"), tool(~"taken", ~"in")]}),
    Mounting = start(#{tools => [tool(~"own", ~"1"), tool(~"m_taken", ~"1")],
                       mounts => [{~"m", start(#{tools => [tool(~"in", ~"in")]})}]}),
    Clients = [open(Era, Mounting) || Era <- eras()],
    {error, {duplicate, tool, ~"m_in"}} =
        erlmcp:replace(Mounting, #{tools => [tool(~"m_in", ~"2")]}),
    ok = erlmcp:replace(Mounting, #{tools => [tool(~"other", ~"2")]}),
    [begin
         [~"other", ~"m_in"] = listed(Client, tool),
         ~"in" = text(call(Client, ~"m_in", #{}))
     end || Client <- Clients],
    {error, {duplicate, resource, Main}} = erlmcp:replace(Server, #{
        resources => [#{uri => Main, name => ~"x", handler => fun(_, _) -> ~"" end}]}),
    ok = erlmcp:replace(Server, #{resources => []}),
    [Main] = listed(open(~"2025-11-25", Server), resource),
    %% A name that becomes free goes to the mounted definition that waits for it.
    true = is_process_alive(Mounted),
    Waiting = start(#{tools => [tool(~"m_late", ~"own")], mounts => [{~"m", Mounted}]}),
    ok = erlmcp:add(Mounted, tool, tool(~"late", ~"late")),
    Late = open(~"2026-07-28", Waiting),
    ~"own" = text(call(Late, ~"m_late", #{})),
    ok = erlmcp:replace(Waiting, #{tools => []}),
    ~"late" = text(call(Late, ~"m_late", #{})).

servers_that_mount_it_follow(_) ->
    Inner = start(#{tools => [tool(~"a", ~"1"), tool(~"b", ~"1")]}),
    Middle = start(#{tools => [], mounts => [{~"i", Inner}]}),
    Outer = start(#{tools => [tool(~"own", ~"1")], mounts => [{~"m", Middle}]}),
    Clients = [open(Era, Outer) || Era <- eras()],
    ok = erlmcp:replace(Inner, #{tools => [tool(~"b", ~"2"), tool(~"c", ~"2")]}),
    [begin
         [~"m_i_b", ~"m_i_c", ~"own"] = lists:sort(listed(Client, tool)),
         ~"2" = text(call(Client, ~"m_i_b", #{})),
         #{~"error" := _} = call(Client, ~"m_i_a", #{})
     end || Client <- Clients].

%% Also that of a call which began before, and ends later.
kept_results_go(_) ->
    Cached = #{cache => #{ttl_ms => 60_000, scope => public}},
    Test = self(),
    Waits = fun(_, _) -> Test ! {runs, self()}, receive {answer, Text} -> Text end end,
    Server = start(#{tools => [maps:merge(tool(~"quick", ~"old"), Cached),
                               Cached#{name => ~"waits", handler => Waits}]}),
    Client = {_, Socket} = open(~"2026-07-28", Server),
    ~"old" = text(call(Client, ~"quick", #{})),
    send(Socket, stateless(1, ~"tools/call", #{~"name" => ~"waits"})),
    Pid = receive {runs, Runs} -> Runs end,
    ok = erlmcp:replace(Server, #{tools => [maps:merge(tool(Name, ~"new"), Cached)
                                            || Name <- [~"quick", ~"waits"]]}),
    ~"new" = text(call(Client, ~"quick", #{})),
    Pid ! {answer, ~"old"},
    ~"old" = text(answer(1, Socket)),
    ~"new" = text(call(Client, ~"waits", #{})).

%% A tool of the same name is counted with its former calls. A refused set takes no row.
figures_go_on(_) ->
    Server = start(#{tools => [tool(~"a", ~"1"), tool(~"b", ~"1")]}),
    Client = open(~"2026-07-28", Server),
    _ = call(Client, ~"a", #{}),
    Many = fun(Prefix) ->
        [tool(<<Prefix/binary, (integer_to_binary(N))/binary>>, ~"2") || N <- lists:seq(1, 198)]
    end,
    {error, {duplicate, tool, ~"b"}} =
        erlmcp:replace(Server, #{tools => Many(~"r") ++ [tool(~"b", ~"2"), tool(~"b", ~"2")]}),
    ok = erlmcp:replace(Server, #{tools => [tool(~"a", ~"2") | Many(~"t")]}),
    [_ = call(Client, Name, #{}) || Name <- [~"a", ~"t1", ~"t198"]],
    #{tools := Tools} = erlmcp:metrics(Server),
    #{~"a" := 2, ~"t1" := 1, ~"t198" := 1} =
        Counts = #{Name => Count || #{name := Name, count := Count} <- Tools, Count > 0},
    false = is_map_key(other, Counts).

many_are_replaced(_) ->
    Names = [integer_to_binary(N) || N <- lists:seq(1, 1_000)],
    Server = start(#{page_size => 2_000, tools => [tool(Name, ~"1") || Name <- Names]}),
    Client = open(~"2026-07-28", Server),
    Others = [<<"x", Name/binary>> || Name <- Names],
    Mixed = lists:append([[One, Other] || {One, Other} <- lists:zip(Names, Others)]),
    [begin
         ok = erlmcp:replace(Server, #{tools => [tool(Name, ~"2") || Name <- List]}),
         List = listed(Client, tool)
     end || List <- [Mixed, lists:reverse(Others), Names]].

servers_that_ended_are_said(_) ->
    Server = start(#{}),
    ok = erlmcp:stop_server(Server),
    {error, not_found} = erlmcp:replace(Server, #{tools => []}),
    {error, not_found} = erlmcp:reload(Server).

%% The supervisor is asked for the publisher before it hears of the publisher's end.
publishers_that_end_are_waited_for(_) ->
    Server = start(#{}),
    Client = open(~"2026-07-28", Server),
    [begin
         Publisher = erlmcp_server_sup:publisher(Server),
         ok = sys:suspend(Server),
         {_, Ends} = spawn_monitor(fun() -> exit(Change()) end),
         ok = await_messages(1, Server),
         Monitor = monitor(process, Publisher),
         true = exit(Publisher, kill),
         receive {'DOWN', Monitor, process, _, killed} -> ok end,
         ok = sys:resume(Server),
         receive {'DOWN', Ends, process, _, Returned} -> {Name, ok} = {Name, Returned} end,
         true = lists:member(Name, listed(Client, tool))
     end || {Name, Change} <- [
         {~"replaced", fun() -> erlmcp:replace(Server, #{tools => [tool(~"replaced", ~"1")]}) end},
         {~"added", fun() -> erlmcp:add(Server, tool, tool(~"added", ~"1")) end}]].
