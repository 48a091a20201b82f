-module(large_catalogs_SUITE).
-moduledoc """
Servers with many definitions that change while they run: what a change costs, and that all lists
and calls are right after each, over HTTP and TCP, in both eras.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2]).
-export([a_change_costs_no_more_among_many/1, templates_are_found_among_many/1,
         a_changing_catalog_ends_as_another/1, a_trickle_of_changes_keeps_nothing_twice/1,
         readers_copy_no_folders_of_skills/1,
         lists_are_right_after_changes/1, every_change_is_told/1,
         a_burst_is_told_in_few_words/1, a_burst_is_told_after_a_crash/1,
         a_change_is_told_after_a_crash/1]).

-import(erlmcp_test_suite, [transport/1]).
-import(erlmcp_test_servers, [terms/1]).
-import(erlmcp_test_client, [open/3, told/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [a_change_costs_no_more_among_many, templates_are_found_among_many,
     a_changing_catalog_ends_as_another, a_trickle_of_changes_keeps_nothing_twice,
     readers_copy_no_folders_of_skills
     | [{group, Transport} || Transport <- [http, tcp]]].

groups() ->
    [{Transport, [], [{group, session}, {group, stateless}]} || Transport <- [http, tcp]]
        ++ [{Era, [], [lists_are_right_after_changes, every_change_is_told,
                       a_burst_is_told_in_few_words, a_burst_is_told_after_a_crash,
                       a_change_is_told_after_a_crash]}
            || Era <- [session, stateless]].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(session, Config) -> [{revision, ~"2025-11-25"} | Config];
init_per_group(stateless, Config) -> [{revision, ~"2026-07-28"} | Config];
init_per_group(Transport, Config) -> [{transport, Transport} | Config].

end_per_group(_, _) ->
    ok.

%% A thousand changes are as much work for the publisher among 10,000 tools as among 1,000, but for
%% what is done once in a thousand: less than three times as much.
a_change_costs_no_more_among_many(_) ->
    [{FewAdds, FewRemovals}, {Adds, Removals}] = [work(Count) || Count <- [1_000, 10_000]],
    true = Adds < 3 * FewAdds orelse error({adds, FewAdds, Adds}),
    true = Removals < 3 * FewRemovals orelse error({removals, FewRemovals, Removals}).

work(Count) ->
    {ok, Server} = erlmcp:start_server(#{name => ~"large", version => ~"1",
                                         tools => [tool(N) || N <- lists:seq(1, Count)]}),
    Publisher = erlmcp_server_sup:publisher(Server),
    Adds = erlmcp_test_reductions:of_process(Publisher, fun() ->
        [ok = erlmcp:add(Server, tool, tool(Count + N)) || N <- lists:seq(1, 1_000)]
    end),
    Removals = erlmcp_test_reductions:of_process(Publisher, fun() ->
        [ok = erlmcp:remove(Server, tool, name(N * (Count div 1_000))) || N <- lists:seq(1, 1_000)]
    end),
    ok = erlmcp:stop_server(Server),
    {Adds, Removals}.

tool(N) ->
    #{name => name(N), handler => fun(_, #{name := Name}) -> Name end}.

name(N) ->
    <<"tool_", (integer_to_binary(N))/binary>>.

%% The first that matches, in the order of the list, whatever came and went.
templates_are_found_among_many(_) ->
    Template = fun(N, Says) ->
        Text = <<"t://", (integer_to_binary(N))/binary, "/{id}">>,
        #{uri_template => Text, name => Says, handler => fun(#{~"id" := Id}, _) ->
            <<Says/binary, Id/binary>>
        end}
    end,
    Server = #{pid := Pid} = erlmcp_test_client:start(#{
        resource_templates => [Template(N, ~"first") || N <- lists:seq(1, 300)]}),
    Client = open(Server, tcp, ~"2026-07-28"),
    Read = fun(Uri) -> ask(Client, ~"resources/read", #{uri => Uri}) end,
    Says = fun(Uri) ->
        #{~"result" := #{~"contents" := [#{~"text" := Text}]}} = Read(Uri),
        Text
    end,
    ~"first7" = Says(~"t://250/7"),
    ok = erlmcp:remove(Pid, resource_template, ~"t://250/{id}"),
    #{~"error" := #{~"code" := -32602}} = Read(~"t://250/7"),
    ok = erlmcp:add(Pid, resource_template, Template(250, ~"again")),
    ~"again7" = Says(~"t://250/7"),
    erlmcp_test_client:stop(Server).

%% Who reads it when its server is killed fails as with the server's tables, which is expected; and
%% none of its layers stays.
a_changing_catalog_ends_as_another(_) ->
    {ok, Server} = erlmcp:start_server(#{name => ~"large", version => ~"1"}),
    true = unlink(Server),
    [ok = erlmcp:add(Server, tool, tool(N)) || N <- lists:seq(1, 500)],
    {ok, _, #{key := Key} = Instance} = erlmcp_registry:whereis(Server),
    true = length(terms(Key)) > 3,
    {_, Reader} = spawn_monitor(fun() -> read_on(Instance) end),
    true = exit(Server, kill),
    receive {'DOWN', Reader, _, _, Reason} -> {badarg, _} = Reason end,
    erlmcp_test_servers:await(fun() ->
        case terms(Key) of
            [] -> {ok, gone};
            _ -> again
        end
    end).

read_on(Instance) ->
    _ = erlmcp_published_catalog:catalog(Instance),
    read_on(Instance).

%% A catalog that has changed much has its layers twice until it is settled. It is so in ten
%% seconds, though it goes on changing and there is no tenth of a second without a change.
a_trickle_of_changes_keeps_nothing_twice(_) ->
    None = term_bytes(),
    {ok, Server} = erlmcp:start_server(#{name => ~"large", version => ~"1",
                                         tools => [tool(N) || N <- lists:seq(1, 1_000)]}),
    Once = term_bytes() - None,
    %% More than an eighth: all are merged into one layer.
    [ok = erlmcp:add(Server, tool, tool(N)) || N <- lists:seq(1_001, 1_200)],
    Twice = term_bytes(),
    true = Twice - None > 2 * Once,
    ok = trickle(1, Twice - Once div 2, Server),
    ok = erlmcp:stop_server(Server).

%% A change in every 20 ms, until there is no more in the terms than this.
trickle(N, Bytes, _) when N > 1_000 ->
    error({kept, term_bytes(), Bytes});
trickle(N, Bytes, Server) ->
    Change = case N rem 2 of
        1 -> erlmcp:add(Server, tool, tool(0));
        0 -> erlmcp:remove(Server, tool, name(0))
    end,
    ok = Change,
    case term_bytes() > Bytes of
        true -> receive after 20 -> trickle(N + 1, Bytes, Server) end;
        false -> ok
    end.

term_bytes() ->
    maps:get(memory, persistent_term:info()).

%% While a catalog is changing each request copies what is above its layers. The folders of its
%% skills, which do not change, are none of that, and are there before, meanwhile and after.
readers_copy_no_folders_of_skills(_) ->
    Files = #{<<"data/", (integer_to_binary(N))/binary>> => ~"text" || N <- lists:seq(1, 400)},
    Main = ~"---\nname: many\ndescription: Many files.\n---\nBody",
    {ok, Server} = erlmcp:start_server(#{name => ~"large", version => ~"1",
                                         skills => [#{files => Files#{~"SKILL.md" => Main}}]}),
    {ok, _, Instance} = erlmcp_registry:whereis(Server),
    Read = fun() ->
        {ok, Page} = erlmcp_catalog:directory(~"skill://many/data", none, '2026-07-28',
                                              erlmcp_published_catalog:catalog(Instance)),
        maps:get(~"resources", json:decode(Page))
    end,
    Before = Read(),
    [ok = erlmcp:add(Server, tool, tool(N)) || N <- lists:seq(1, 3)],
    Before = Read(),
    {Copied, _} = erlmcp_catalog:split(erlmcp_published_catalog:catalog(Instance)),
    true = erts_debug:flat_size(Copied) < 3_000 orelse error({words, erts_debug:flat_size(Copied)}),
    settled(Server),
    Before = Read(),
    ok = erlmcp:stop_server(Server).

%% A client that pages through all finds exactly what is there, in its order; so after each change
%% of few and of many, while the catalog is changing and when it has settled, and after the death of
%% the process that changes it.
lists_are_right_after_changes(Config) ->
    Server = #{pid := Pid} =
        erlmcp_test_client:start(#{tools => [tool(N) || N <- lists:seq(1, 1_000)]}),
    Client = client(Server, Config),
    _ = rand:seed(exsss, 42),
    lists:foldl(
        fun(Changes, {There, Next}) ->
            {Names, Last} = changed(Changes, Pid, There, Next),
            Names = all_tools(Client),
            [begin
                 #{~"result" := #{~"content" := [#{~"text" := Name}]}} =
                     ask(Client, ~"tools/call", #{name => Name})
             end || Name <- [hd(Names), lists:last(Names)]],
            [#{~"error" := #{~"code" := -32602}} = ask(Client, ~"tools/call", #{name => Gone})
             || Gone <- lists:sublist(There -- Names, 3)],
            Changes =:= 100 andalso begin
                Publisher = erlmcp_server_sup:publisher(Pid),
                Monitor = monitor(process, Publisher),
                exit(Publisher, kill),
                receive {'DOWN', Monitor, _, _, _} -> ok end,
                Names = all_tools(Client),
                _ = erlmcp_test_servers:await_child(publisher, Pid, Publisher)
            end,
            Names = all_tools(Client),
            {Names, Last}
        end, {[name(N) || N <- lists:seq(1, 1_000)], 1_001}, [1, 1, 1, 2, 20, 100, 1, 300, 700]),
    erlmcp_test_client:stop(Server).

changed(0, _, There, Next) ->
    {There, Next};
changed(Left, Pid, There, Next) ->
    case rand:uniform(2) of
        1 ->
            ok = erlmcp:add(Pid, tool, tool(Next)),
            changed(Left - 1, Pid, There ++ [name(Next)], Next + 1);
        2 ->
            Gone = lists:nth(rand:uniform(length(There)), There),
            ok = erlmcp:remove(Pid, tool, Gone),
            changed(Left - 1, Pid, lists:delete(Gone, There), Next)
    end.

all_tools(Client) ->
    all_tools(Client, #{}).

all_tools(Client, Params) ->
    #{~"result" := #{~"tools" := Tools} = Page} = ask(Client, ~"tools/list", Params),
    [Name || #{~"name" := Name} <- Tools] ++ case Page of
        #{~"nextCursor" := Cursor} -> all_tools(Client, #{cursor => Cursor});
        #{} -> []
    end.

%% Past what a session is told meanwhile on its connection.
ask(Client, Method, Params) ->
    Id = erlang:unique_integer([positive]),
    Exchange = erlmcp_test_client:request(Client, Id, Method, Params),
    Answer = answer(Id, Exchange),
    ok = erlmcp_test_client:over(Exchange),
    Answer.

answer(Id, Exchange) ->
    case erlmcp_test_client:next(Exchange) of
        #{~"id" := Id} = Answer -> Answer;
        #{~"method" := ~"notifications/tools/list_changed"} -> answer(Id, Exchange)
    end.

client(Server, Config) ->
    open(Server, transport(Config), proplists:get_value(revision, Config)).

%% Each change that a client waits for reaches it: the first of all, those that follow it at once,
%% and the first after the catalog has settled; among few definitions and among many.
every_change_is_told(Config) ->
    [begin
         Server = #{pid := Pid} =
             erlmcp_test_client:start(#{tools => [tool(N) || N <- lists:seq(1, Count)]}),
         Stream = stream(client(Server, Config), #{toolsListChanged => true}),
         Changes = [fun() -> erlmcp:add(Pid, tool, tool(0)) end,
                    fun() -> erlmcp:remove(Pid, tool, name(Count)) end,
                    fun() -> erlmcp:remove(Pid, tool, name(0)) end,
                    fun() -> settled(Pid), erlmcp:add(Pid, tool, tool(Count)) end],
         [begin
              ok = Change(),
              {_, ~"notifications/tools/list_changed", _} = told(Stream)
          end || Change <- Changes ++ Changes],
         erlmcp_test_client:stop(Server)
     end || Count <- [1, 20, 200, 300]].

settled(Pid) ->
    {ok, _, Instance} = erlmcp_registry:whereis(Pid),
    erlmcp_test_servers:await(fun() ->
        case erlmcp_published_catalog:is_changing(Instance) of
            true -> again;
            false -> {ok, settled}
        end
    end).

%% Of a thousand changes one after the other a client is told some thirty times in a tenth of a
%% second, and at the end once more.
a_burst_is_told_in_few_words(Config) ->
    Server = #{pid := Pid} = erlmcp_test_client:start(#{}),
    Client = client(Server, Config),
    Stream = stream(Client, #{toolsListChanged => true, promptsListChanged => true}),
    Before = erlang:monotonic_time(millisecond),
    [ok = erlmcp:add(Pid, tool, tool(N)) || N <- lists:seq(1, 1_000)],
    ok = erlmcp:add(Pid, prompt, #{name => ~"last", handler => fun(_, _) -> ~"" end}),
    Windows = (erlang:monotonic_time(millisecond) - Before) div 100 + 2,
    Told = told_until(~"notifications/prompts/list_changed", Stream),
    true = length(Told) >= 1,
    true = length(Told) =< 33 * Windows orelse error({told, length(Told), Windows}),
    erlmcp_test_client:stop(Server).

%% What is still to be told when the process that tells it is killed is told by the next one.
a_burst_is_told_after_a_crash(Config) ->
    Server = #{pid := Pid} = erlmcp_test_client:start(#{}),
    Stream = stream(client(Server, Config), #{toolsListChanged => true,
                                              promptsListChanged => true}),
    [ok = erlmcp:add(Pid, tool, tool(N)) || N <- lists:seq(1, 50)],
    ok = erlmcp:add(Pid, prompt, #{name => ~"last", handler => fun(_, _) -> ~"" end}),
    true = exit(erlmcp_server_sup:publisher(Pid), kill),
    _ = told_until(~"notifications/prompts/list_changed", Stream),
    erlmcp_test_client:stop(Server).

%% So is one change, of which that process has told nobody yet.
a_change_is_told_after_a_crash(Config) ->
    Server = #{pid := Pid} = erlmcp_test_client:start(#{}),
    Stream = stream(client(Server, Config), #{toolsListChanged => true}),
    Publisher = erlmcp_server_sup:publisher(Pid),
    Adds = erlmcp_test_servers:add_untold((tool(1))#{name := ~"added"}, Publisher, Pid),
    true = exit(Publisher, kill),
    {_, ~"notifications/tools/list_changed", _} = told(Stream),
    erlmcp_test_servers:down(Adds),
    erlmcp_test_client:stop(Server).

stream(#{session := _} = Client, _) -> erlmcp_test_client:stream(Client);
stream(Client, Watched) -> erlmcp_test_client:listen(Client, 1, Watched).

told_until(Last, Stream) ->
    case told(Stream) of
        {_, Last, _} -> [];
        {_, Method, _} -> [Method | told_until(Last, Stream)]
    end.
