-module(mounted_changes_SUITE).
-moduledoc """
Servers that change while other ones mount them: what a change costs there among many definitions,
and that the lists of those that mount them are right after each.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([a_change_costs_no_more_among_many/1, lists_follow_at_every_depth/1,
         a_burst_is_in_the_list_at_its_end/1, what_comes_again_is_there_once/1,
         what_was_left_out_comes_when_there_is_room/1, names_of_every_kind_become_free/1,
         names_of_other_mounts_become_free/1, one_end_frees_names_for_several/1,
         what_waits_for_a_name_may_change/1, what_changes_need_is_declared/1,
         changes_show_though_their_publisher_died/1,
         a_view_may_come_after_its_tool/1, a_view_that_went_is_needed_no_more/1]).

-import(erlmcp_test_line, [serve/1, recv/1, is_quiet/1, code/1]).
-import(erlmcp_test_two_eras, [eras/0, open/2, ask/3, call/3, read/2, listed/2, text/1, await/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [a_change_costs_no_more_among_many, lists_follow_at_every_depth,
     a_burst_is_in_the_list_at_its_end, what_comes_again_is_there_once,
     what_was_left_out_comes_when_there_is_room, names_of_every_kind_become_free,
     names_of_other_mounts_become_free, one_end_frees_names_for_several,
     what_waits_for_a_name_may_change, what_changes_need_is_declared,
     changes_show_though_their_publisher_died,
     a_view_may_come_after_its_tool, a_view_that_went_is_needed_no_more].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    %% What is left out, and publishers that are killed, stand in the log at length.
    #{level := Level} = logger:get_primary_config(),
    ok = logger:set_primary_config(level, none),
    [{log_level, Level} | Config].

end_per_testcase(_, Config) ->
    ok = logger:set_primary_config(level, proplists:get_value(log_level, Config)).

tool(N) when is_integer(N) ->
    tool(name(N));
tool(Name) ->
    #{name => Name, handler => fun(_, #{name := Called}) -> Called end}.

name(N) ->
    <<"tool_", (integer_to_binary(N))/binary>>.

tools(Count) ->
    [tool(N) || N <- lists:seq(1, Count)].

%% Two hundred changes of a mounted server are as much work for the one that mounts it among 8,000
%% tools as among 1,000, but for what is done once in so many: less than three times as much. Nor
%% does it matter that one of the others is left out.
a_change_costs_no_more_among_many(_) ->
    [begin
         [{FewAdds, FewRemovals}, {Adds, Removals}] =
             [work(Count, LeftOut) || Count <- [1_000, 8_000]],
         true = Adds < 3 * FewAdds orelse error({adds, LeftOut, FewAdds, Adds}),
         true = Removals < 3 * FewRemovals orelse error({removals, LeftOut, FewRemovals, Removals})
     end || LeftOut <- [[], [~"left_out"]]].

work(Count, LeftOut) ->
    Mounted = serve(#{tools => tools(Count)}),
    Own = [<<"m_", Name/binary>> || Name <- LeftOut],
    Server = serve(#{tools => [tool(Name) || Name <- Own], mounts => [{~"m", Mounted}]}),
    [ok = erlmcp:add(Mounted, tool, tool(Name)) || Name <- LeftOut],
    Publisher = erlmcp_server_sup:publisher(Server),
    Adds = erlmcp_test_reductions:of_process(Publisher, fun() ->
        [ok = erlmcp:add(Mounted, tool, tool(Count + N)) || N <- lists:seq(1, 200)]
    end),
    Removals = erlmcp_test_reductions:of_process(Publisher, fun() ->
        [ok = erlmcp:remove(Mounted, tool, name(N * (Count div 200))) || N <- lists:seq(1, 200)]
    end),
    There = all_tools(open(~"2026-07-28", Server)) -- Own,
    There = [<<"m_", Name/binary>> || Name <- all_tools(open(~"2026-07-28", Mounted)) -- LeftOut],
    Count = length(There),
    [ok = erlmcp:stop_server(Pid) || Pid <- [Server, Mounted]],
    {Adds, Removals}.

all_tools(Client) ->
    all_tools(Client, #{}).

all_tools(Client, Params) ->
    #{~"result" := #{~"tools" := Tools} = Page} = ask(Client, ~"tools/list", Params),
    [Name || #{~"name" := Name} <- Tools] ++ case Page of
        #{~"nextCursor" := Cursor} -> all_tools(Client, #{~"cursor" => Cursor});
        #{} -> []
    end.

%% After changes of one server, few and many, another that mounts it twice, once through a third,
%% lists all of it in its order under both prefixes, and its own; also when a publisher died.
lists_follow_at_every_depth(_) ->
    _ = serve(#{id => ?FUNCTION_NAME, tools => tools(300)}),
    Middle = serve(#{tools => [], mounts => [{~"b", ?FUNCTION_NAME}]}),
    Server = serve(#{tools => [tool(~"own")],
                     mounts => [{~"a", Middle}, {~"c", ?FUNCTION_NAME}]}),
    {ok, Inner, _} = erlmcp_registry:whereis(?FUNCTION_NAME),
    Clients = [open(Era, Server) || Era <- eras()],
    _ = rand:seed(exsss, 42),
    lists:foldl(
        fun({Changes, Dies}, {There, Next, Own}) ->
            {Names, Last} = changed(Changes, There, Next),
            One = <<"own_", (name(length(Own)))/binary>>,
            ok = erlmcp:add(Server, tool, tool(One)),
            Mine = Own ++ [One],
            [follows(Client, Names, Mine) || Client <- Clients],
            _ = [dies(Pid) || {Is, Pid} <- [{inner, Inner}, {middle, Middle}, {outer, Server}],
                              Is =:= Dies],
            [follows(Client, Names, Mine) || Client <- Clients],
            {Names, Last, Mine}
        end, {[name(N) || N <- lists:seq(1, 300)], 301, [~"own"]},
        [{1, none}, {1, none}, {2, outer}, {20, none}, {60, inner}, {1, none}, {30, middle},
         {5, none}, {300, none}, {1, none}]).

changed(0, There, Next) ->
    {There, Next};
changed(Left, There, Next) ->
    case rand:uniform(2) of
        1 ->
            ok = erlmcp:add(lists_follow_at_every_depth, tool, tool(Next)),
            changed(Left - 1, There ++ [name(Next)], Next + 1);
        2 ->
            Gone = lists:nth(rand:uniform(length(There)), There),
            ok = erlmcp:remove(lists_follow_at_every_depth, tool, Gone),
            changed(Left - 1, lists:delete(Gone, There), Next)
    end.

follows(Client, Names, Own) ->
    All = all_tools(Client),
    Names = [Name || <<"a_b_", Name/binary>> <- All],
    Names = [Name || <<"c_", Name/binary>> <- All],
    Own = [Name || <<"own", _/binary>> = Name <- All],
    true = length(All) =:= 2 * length(Names) + length(Own),
    Last = lists:last(Names),
    [Last = text(call(Client, <<Prefix/binary, Last/binary>>, #{})) || Prefix <- [~"a_b_", ~"c_"]].

%% There is another before this returns.
dies(Server) ->
    Publisher = erlmcp_server_sup:publisher(Server),
    Monitor = monitor(process, Publisher),
    exit(Publisher, kill),
    receive {'DOWN', Monitor, process, _, _} -> ok end,
    erlmcp_test_servers:await_child(publisher, Server, Publisher).

%% Changes that many make at once: when each has returned it shows, and a client that is told of the
%% last is told after it does.
a_burst_is_in_the_list_at_its_end(_) ->
    Mounted = serve(#{tools => tools(300)}),
    Server = serve(#{tools => [], prompts => [], mounts => [{~"m", Mounted}]}),
    [Session, Client] = [open(Era, Server) || Era <- eras()],
    _ = all_tools(Session),
    Names = [name(N) || N <- lists:seq(301, 500)],
    at_once([fun() -> erlmcp:add(Mounted, tool, tool(Name)) end || Name <- Names]),
    [] = [<<"m_", Name/binary>> || Name <- Names] -- all_tools(Client),
    at_once([fun() -> erlmcp:remove(Mounted, tool, name(N)) end || N <- lists:seq(2, 500)]),
    [~"m_tool_1"] = all_tools(Client),
    ok = erlmcp:add(Mounted, prompt, #{name => ~"last", handler => fun(_, _) -> ~"" end}),
    told_of(~"notifications/prompts/list_changed", Session),
    [~"m_last"] = listed(Session, prompt).

at_once(Changes) ->
    Started = [spawn_monitor(fun() -> exit({changed, Change()}) end) || Change <- Changes],
    [receive {'DOWN', Monitor, process, _, {changed, ok}} -> ok end || {_, Monitor} <- Started].

told_of(Method, {_, Socket} = Session) ->
    case recv(Socket) of
        #{~"method" := Method} -> ok;
        #{~"method" := ~"notifications/tools/list_changed"} -> told_of(Method, Session)
    end.

%% What went and came again while nobody looked is another one, and stands there once.
what_comes_again_is_there_once(_) ->
    Mounted = serve(#{tools => tools(300)}),
    Server = serve(#{tools => [], mounts => [{~"m", Mounted}]}),
    Inside = open(~"2026-07-28", Mounted),
    Publisher = erlmcp_server_sup:publisher(Server),
    true = erlang:suspend_process(Publisher),
    Again = (tool(7))#{handler := fun(_, _) -> ~"again" end},
    Waiting = [begin
                   Waits = spawn_monitor(fun() -> exit({changed, Change()}) end),
                   await(fun() -> Shows(all_tools(Inside)) end),
                   Waits
               end || {Change, Shows} <- [
                   {fun() -> erlmcp:remove(Mounted, tool, name(7)) end,
                    fun(Names) -> not lists:member(name(7), Names) end},
                   {fun() -> erlmcp:add(Mounted, tool, Again) end,
                    fun(Names) -> lists:member(name(7), Names) end},
                   {fun() -> erlmcp:add(Mounted, tool, tool(301)) end,
                    fun(Names) -> lists:member(name(301), Names) end},
                   {fun() -> erlmcp:remove(Mounted, tool, name(301)) end,
                    fun(Names) -> not lists:member(name(301), Names) end}]],
    true = erlang:resume_process(Publisher),
    [receive {'DOWN', Monitor, process, _, {changed, ok}} -> ok end || {_, Monitor} <- Waiting],
    Client = open(~"2026-07-28", Server),
    Names = all_tools(Client),
    300 = length(Names),
    [] = Names -- [<<"m_", (name(N))/binary>> || N <- lists:seq(1, 300)],
    ~"again" = text(call(Client, ~"m_tool_7", #{})).

%% What had no room is there as soon as its name is free, and stays.
what_was_left_out_comes_when_there_is_room(_) ->
    Mounted = serve(#{tools => tools(300)}),
    Server = serve(#{tools => [tool(~"m_late")], mounts => [{~"m", Mounted}]}),
    Client = open(~"2026-07-28", Server),
    ok = erlmcp:add(Mounted, tool, says(tool, ~"late", ~"mounted")),
    ok = erlmcp:add(Mounted, tool, tool(301)),
    ~"m_late" = text(call(Client, ~"m_late", #{})),
    ok = erlmcp:remove(Server, tool, ~"m_late"),
    ~"mounted" = text(call(Client, ~"m_late", #{})),
    {error, {mounted, ~"m"}} = erlmcp:remove(Server, tool, ~"m_late"),
    ok = erlmcp:add(Mounted, tool, tool(302)),
    ~"mounted" = text(call(Client, ~"m_late", #{})),
    302 + 1 = length(lists:usort(all_tools(Client))),
    ok = erlmcp:remove(Mounted, tool, ~"late"),
    [] = all_tools(Client) -- [<<"m_", (name(N))/binary>> || N <- lists:seq(1, 302)].

says(Kind, Key, Text) ->
    Field = case Kind of
        resource -> uri;
        resource_template -> uri_template;
        _ -> name
    end,
    #{name => ~"n", description => Text, Field => Key, handler => fun(_, _) -> Text end}.

names_of_every_kind_become_free(_) ->
    Mounted = serve(#{tools => []}),
    Server = serve(#{tools => [], mounts => [{~"m", Mounted}]}),
    Clients = [open(Era, Server) || Era <- eras()],
    Data = fun(Client) -> read(Client, ~"data://m/1") end,
    [begin
         ok = erlmcp:add(Server, Kind, says(Kind, Taken, ~"own")),
         ok = erlmcp:add(Mounted, Kind, says(Kind, Key, ~"mounted")),
         [~"own" = text(Uses(Client)) || Client <- Clients],
         ok = erlmcp:remove(Server, Kind, Taken),
         [begin
              ~"mounted" = text(Uses(Client)),
              [Taken] = listed(Client, Kind)
          end || Client <- Clients],
         ok = erlmcp:remove(Mounted, Kind, Key)
     end || {Kind, Key, Taken, Uses} <- [
         {tool, ~"x", ~"m_x", fun(Client) -> call(Client, ~"m_x", #{}) end},
         {prompt, ~"x", ~"m_x", fun(Client) -> ask(Client, ~"prompts/get", #{name => ~"m_x"}) end},
         {resource, ~"data://1", ~"data://m/1", Data},
         {resource_template, ~"data://{id}", ~"data://m/{id}", Data}]].

%% Two ways to one name: the second is open when the first goes, or its server, in whatever way.
%% The clients of the server that mounts both are told, and those of one that mounts that.
names_of_other_mounts_become_free(_) ->
    [begin
         [First, Second] = [serve(#{tools => [], prompts => []}) || _ <- [1, 2]],
         Server = serve(#{tools => [], prompts => [],
                          mounts => [{~"a", First}, {~"a_b", Second}]}),
         Outer = serve(#{tools => [], prompts => [], mounts => [{~"o", Server}]}),
         [{_, Socket} = Session, Outside] = Clients =
             [open(~"2025-11-25", Mounting) || Mounting <- [Server, Outer]],
         ok = erlmcp:add(First, tool, says(tool, ~"b_c", ~"first")),
         [told_of(~"notifications/tools/list_changed", Client) || Client <- Clients],
         ok = erlmcp:add(Second, tool, says(tool, ~"c", ~"second")),
         true = is_quiet(Socket),
         ~"first" = text(call(Session, ~"a_b_c", #{})),
         Frees(First),
         [told_of(~"notifications/tools/list_changed", Client) || Client <- Clients],
         ~"second" = text(call(Session, ~"a_b_c", #{})),
         [~"a_b_c"] = listed(Session, tool),
         await(fun() -> listed(Outside, tool) =:= [~"o_a_b_c"] end),
         ok = erlmcp:remove(Second, tool, ~"c"),
         [] = listed(Session, tool)
     end || Frees <- [fun(First) -> ok = erlmcp:remove(First, tool, ~"b_c") end,
                      fun(First) -> ok = erlmcp:stop_server(First) end,
                      fun(First) -> true = exit(First, kill) end]].

one_end_frees_names_for_several(_) ->
    [First, Second, Third] = [serve(#{tools => []}) || _ <- [1, 2, 3]],
    Server = serve(#{tools => [], mounts => [{~"a", First}, {~"a_b", Second}, {~"a_c", Third}]}),
    Client = open(~"2026-07-28", Server),
    [ok = erlmcp:add(Mounted, tool, says(tool, Name, Text))
     || {Mounted, Name, Text} <- [{First, ~"b_x", ~"first"}, {First, ~"c_x", ~"first"},
                                  {Second, ~"x", ~"second"}, {Third, ~"x", ~"third"}]],
    [~"first" = text(call(Client, Name, #{})) || Name <- [~"a_b_x", ~"a_c_x"]],
    ok = erlmcp:stop_server(First),
    %% The server hears of the end a moment later.
    await(fun() ->
        [~"second", ~"third"]
            =:= [text(call(Client, Name, #{})) || Name <- [~"a_b_x", ~"a_c_x"]]
    end),
    2 = length(listed(Client, tool)).

%% It comes as it is then; and not if it is gone then.
what_waits_for_a_name_may_change(_) ->
    Mounted = serve(#{tools => tools(300)}),
    Server = serve(#{tools => [], mounts => [{~"m", Mounted}]}),
    Client = open(~"2026-07-28", Server),
    [begin
         Own = says(tool, ~"m_late", ~"own"),
         ok = erlmcp:add(Server, tool, Own),
         ok = erlmcp:add(Mounted, tool, says(tool, ~"late", ~"mounted")),
         ok = erlmcp:remove(Mounted, tool, ~"late"),
         [ok = erlmcp:add(Mounted, tool, says(tool, ~"late", Again)) || Again <- Comes],
         ok = erlmcp:remove(Server, tool, ~"m_late"),
         case Comes of
             [] ->
                 -32602 = code(call(Client, ~"m_late", #{})),
                 ok = erlmcp:add(Server, tool, Own),
                 ok = erlmcp:remove(Server, tool, ~"m_late");
             [Again] ->
                 Again = text(call(Client, ~"m_late", #{})),
                 {error, {duplicate, tool, ~"m_late"}} = erlmcp:add(Server, tool, Own),
                 ok = erlmcp:remove(Mounted, tool, ~"late")
         end,
         300 = length(all_tools(Client))
     end || Comes <- [[~"again"], []]].

%% A tool names the view of its server as it is mounted, if there is one.
a_view_may_come_after_its_tool(_) ->
    View = #{uri => ~"ui://view", name => ~"view", handler => fun(_, _) -> ~"<html>" end},
    Inner = serve(#{resources => [View]}),
    Middle = serve(#{tools => tools(300), mounts => [{~"i", Inner}]}),
    ok = erlmcp:add(Middle, tool, (tool(~"shows"))#{ui => #{resource_uri => ~"ui://i/view"}}),
    ok = erlmcp:remove(Inner, resource, ~"ui://view"),
    Outer = serve(#{tools => [], mounts => [{~"m", Middle}], page_size => 1000}),
    ok = erlmcp:add(Inner, resource, View),
    #{~"result" := #{~"tools" := Tools}} =
        ask(open(~"2026-07-28", Outer), ~"tools/list", #{}),
    [~"ui://m/i/view"] = [Uri || #{~"name" := ~"m_shows", ~"_meta" := #{~"ui" := Ui}} <- Tools,
                                 #{~"resourceUri" := Uri} <- [Ui]].

%% That nobody stops, since it is another server's; and it keeps nothing else from going.
a_view_that_went_is_needed_no_more(_) ->
    View = #{uri => ~"ui://view", name => ~"view", handler => fun(_, _) -> ~"<html>" end},
    Inner = serve(#{resources => [View]}),
    Data = #{uri => ~"data://x", name => ~"x", handler => fun(_, _) -> ~"" end},
    Outer = serve(#{tools => [], resources => [Data, View#{uri := ~"ui://own"}],
                    mounts => [{~"i", Inner}]}),
    ok = erlmcp:add(Outer, tool, (tool(~"shows"))#{ui => #{resource_uri => ~"ui://i/view"}}),
    ok = erlmcp:add(Outer, tool, (tool(~"own"))#{ui => #{resource_uri => ~"ui://own"}}),
    ok = erlmcp:remove(Inner, resource, ~"ui://view"),
    ok = erlmcp:remove(Outer, resource, ~"data://x"),
    {error, {in_use, tool, ~"own"}} = erlmcp:remove(Outer, resource, ~"ui://own").

%% A publisher that is killed when a change is published, and nobody has heard of it who mounts its
%% server: by its pid or its id.
changes_show_though_their_publisher_died(_) ->
    [begin
         Mounted = serve(#{id => ?FUNCTION_NAME, tools => tools(Count)}),
         %% One page: what some may not see comes in between, and no cursor is good after that.
         Server = serve(#{tools => [], page_size => 1000,
                          mounts => [{~"pid", Mounted}, {~"id", ?FUNCTION_NAME}]}),
         _ = open(~"2025-11-25", Mounted),
         {_, Socket} = Client = open(~"2025-11-25", Server),
         true = is_quiet(Socket),
         Publisher = erlmcp_server_sup:publisher(Mounted),
         Adds = erlmcp_test_servers:add_untold(tool(~"late"), Publisher, Mounted),
         true = exit(Publisher, kill),
         erlmcp_test_servers:down(Adds),
         await(fun() -> [~"pid_late", ~"id_late"] -- all_tools(Client) =:= [] end),
         %% And what it changes from then on.
         ok = erlmcp:add(Mounted, tool, tool(~"later")),
         [] = [~"pid_later", ~"id_later"] -- all_tools(Client),
         [ok = erlmcp:stop_server(Pid) || Pid <- [Server, Mounted]]
     end || Count <- [0, 300]].

%% An extension that only a definition which came later needs; and templates are matched.
what_changes_need_is_declared(_) ->
    Mounted = serve(#{tools => tools(300)}),
    Server = serve(#{tools => [], mounts => [{~"m", Mounted}]}),
    Client = open(~"2026-07-28", Server),
    Ui = ~"io.modelcontextprotocol/ui",
    Declared = fun() ->
        #{~"result" := #{~"capabilities" := Capabilities}} =
            ask(Client, ~"server/discover", #{}),
        is_map_key(Ui, maps:get(~"extensions", Capabilities, #{}))
    end,
    false = Declared(),
    ok = erlmcp:add(Mounted, resource, #{uri => ~"ui://view", name => ~"view",
                                         handler => fun(_, _) -> ~"<html>" end}),
    true = Declared(),
    Template = #{uri_template => ~"data://{id}", name => ~"t",
                 handler => fun(#{~"id" := Id}, _) -> Id end},
    ok = erlmcp:add(Mounted, resource_template, Template),
    ~"7" = text(read(Client, ~"data://m/7")),
    ok = erlmcp:remove(Mounted, resource_template, ~"data://{id}"),
    #{~"error" := _} = read(Client, ~"data://m/7").
