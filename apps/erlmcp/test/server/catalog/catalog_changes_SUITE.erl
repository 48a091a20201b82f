-module(catalog_changes_SUITE).
-moduledoc """
What `erlmcp:add/3` and `erlmcp:remove/3` change in a server that runs: at once, and without
disturbing anybody.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([changes_are_seen_at_once/1, others_are_not_encoded_again/1,
         removed_tools_end_in_their_own_time/1, changes_disturb_nobody/1,
         refused_changes_change_nothing/1,
         published_catalogs_survive_their_publisher/1,
         what_is_published_after_the_end_goes_too/1]).

-import(erlmcp_test_line, [connect/1, send/2, recv/1, ask_stateless/4, stateless/3, result/1,
                           code/1, echo_tool/0, waiting_tool/1, await_call/0]).
-import(erlmcp_test_servers, [start/1, child/2, await_child/3, await/1, down/1, terms/1, kinds/0,
                              definition/2, key/1, listed/2, used/3]).

-define(PATIENCE, 30_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [changes_are_seen_at_once, others_are_not_encoded_again, removed_tools_end_in_their_own_time,
     changes_disturb_nobody, refused_changes_change_nothing,
     published_catalogs_survive_their_publisher, what_is_published_after_the_end_goes_too].

init_per_suite(Config) ->
    erlmcp_test_servers:init_suite(Config).

end_per_suite(Config) ->
    erlmcp_test_servers:end_suite(Config).

init_per_testcase(_, Config) ->
    erlmcp_test_servers:init_case(Config).

end_per_testcase(_, _) ->
    erlmcp_test_servers:stop_all().

%% "Its list has it at once, at the end": the next request finds it, and after its removal does not.
changes_are_seen_at_once(_) ->
    Server = start(#{tools => []}),
    Socket = connect(Server),
    [begin
         Definitions = [definition(Kind, Name) || Name <- [~"one", ~"two", ~"three"]],
         Keys = [One, Two, Three] = [maps:get(key(Kind), Definition) || Definition <- Definitions],
         [ok = erlmcp:add(Server, Kind, Definition) || Definition <- Definitions],
         Keys = listed(Kind, Socket),
         #{~"result" := _} = used(Kind, ~"two", Socket),
         ok = erlmcp:remove(Server, Kind, Two),
         [One, Three] = listed(Kind, Socket),
         -32602 = code(used(Kind, ~"two", Socket)),
         {error, not_found} = erlmcp:remove(Server, Kind, Two),
         ok = erlmcp:add(Server, Kind, lists:nth(2, Definitions)),
         [One, Three, Two] = listed(Kind, Socket),
         #{~"result" := _} = used(Kind, ~"two", Socket)
     end || Kind <- kinds()].

%% Among many a change is little work for each of the others: fewer reductions than to encode it for
%% each revision.
others_are_not_encoded_again(_) ->
    Names = [integer_to_binary(N) || N <- lists:seq(1, 300)],
    Server = start(#{tools => [definition(tool, Name) || Name <- Names]}),
    Publisher = child(publisher, Server),
    Changes = erlmcp_test_reductions:of_process(Publisher, fun() ->
        ok = erlmcp:add(Server, tool, definition(tool, ~"one")),
        ok = erlmcp:remove(Server, tool, ~"one")
    end),
    Each = Changes / (2 * length(Names)),
    true = Each < 300 orelse error({reductions, Each}).

%% "Calls of it that run already end in their own time."
removed_tools_end_in_their_own_time(_) ->
    Server = start(#{tools => [waiting_tool(~"wait")]}),
    Socket = connect(Server),
    send(Socket, stateless(1, ~"tools/call", #{~"name" => ~"wait"})),
    Call = await_call(),
    ok = erlmcp:remove(Server, tool, ~"wait"),
    -32602 = code(ask_stateless(Socket, 2, ~"tools/call", #{~"name" => ~"wait"})),
    Call ! {answer, ~"late"},
    #{~"id" := 1, ~"result" := #{~"content" := [#{~"text" := ~"late"}]}} = recv(Socket).

%% No request fails, and none waits, because the catalog changes under it.
changes_disturb_nobody(_) ->
    Stable = #{tools => [definition(tool, ~"s")], resources => [definition(resource, ~"s")],
               resource_templates => [definition(resource_template, ~"s")],
               prompts => [definition(prompt, ~"s")]},
    Server = start(Stable),
    Test = self(),
    Clients = [spawn_link(fun() ->
        Socket = connect(Server),
        Requests = ask_until_told(Socket, 0),
        Test ! {done, self(), Requests}
    end) || _ <- lists:seq(1, 6)],
    [begin
         Definition = definition(Kind, Name),
         ok = erlmcp:add(Server, Kind, Definition),
         ok = erlmcp:remove(Server, Kind, maps:get(key(Kind), Definition))
     end || N <- lists:seq(1, 50), Name <- [<<"n", (integer_to_binary(N))/binary>>],
            Kind <- kinds()],
    [Client ! stop || Client <- Clients],
    Counts = [receive {done, Client, Count} -> Count after ?PATIENCE -> ct:fail(stuck) end
              || Client <- Clients],
    [true = Count >= length(kinds()) || Count <- Counts].

ask_until_told(Socket, Count) ->
    [begin
         #{~"result" := _} = used(Kind, ~"s", Socket),
         [_ | _] = listed(Kind, Socket)
     end || Kind <- kinds()],
    receive
        stop -> Count + length(kinds())
    after 0 ->
        ask_until_told(Socket, Count + length(kinds()))
    end.

%% What is refused leaves the catalog as it was.
refused_changes_change_nothing(_) ->
    Server = start(#{}),
    Socket = connect(Server),
    Before = result(ask_stateless(Socket, 1, ~"tools/list", #{})),
    {error, {duplicate, tool, ~"echo"}} = erlmcp:add(Server, tool, echo_tool()),
    {error, {bad_definition, tool, ~"x", handler, _}} = erlmcp:add(Server, tool, #{name => ~"x"}),
    {error, not_found} = erlmcp:remove(Server, tool, ~"x"),
    {error, not_found} = erlmcp:remove(Server, prompt, ~"echo"),
    Before = result(ask_stateless(Socket, 2, ~"tools/list", #{})).

%% "After a crash the last published catalog stands, with what was added since the start", and
%% requests go on meanwhile.
published_catalogs_survive_their_publisher(_) ->
    Server = start(#{}),
    Socket = connect(Server),
    ok = erlmcp:add(Server, tool, definition(tool, ~"added")),
    Publisher = child(publisher, Server),
    Monitor = monitor(process, Publisher),
    exit(Publisher, kill),
    down(Monitor),
    [~"echo", ~"added"] = listed(tool, Socket),
    #{~"result" := _} = used(tool, ~"added", Socket),
    _ = await_child(publisher, Server, Publisher),
    [~"echo", ~"added"] = listed(tool, Socket),
    ok = erlmcp:remove(Server, tool, ~"echo"),
    ok = erlmcp:add(Server, tool, definition(tool, ~"later")),
    [~"added", ~"later"] = listed(tool, Socket),
    #{~"result" := _} = used(tool, ~"later", Socket).

%% A server is killed while its publisher is about to write a term: whoever takes the server's terms
%% away has done so when that is written.
what_is_published_after_the_end_goes_too(_) ->
    Server = start(#{}),
    {ok, _, #{key := Key}} = erlmcp_registry:whereis(Server),
    [Publisher, Shared] = [child(Id, Server) || Id <- [publisher, shared]],
    Hogs = [spawn_link(fun() -> hog({?MODULE, N}) end) || N <- lists:seq(1, 2)],
    ok = suspend_in_put(Publisher, Server, 1),
    [Hog ! {stop, self()} || Hog <- Hogs],
    [receive {stopped, Hog} -> ok after ?PATIENCE -> ct:fail(stuck) end || Hog <- Hogs],
    Ended = monitor(process, Shared),
    true = exit(Server, kill),
    down(Ended),
    Ends = monitor(process, Publisher),
    true = erlang:resume_process(Publisher),
    down(Ends),
    await(fun() ->
        case terms(Key) of
            [] -> {ok, gone};
            _ -> again
        end
    end).

%% One process of a node writes persistent terms at a time; the others wait for it.
hog(Name) ->
    ok = persistent_term:put(Name, 1),
    true = persistent_term:erase(Name),
    receive
        {stop, Test} -> Test ! {stopped, self()}
    after 0 ->
        hog(Name)
    end.

%% Changes the server until its publisher is seen where it waits to write a term.
suspend_in_put(Publisher, Server, N) ->
    Tool = definition(tool, integer_to_binary(N)),
    {_, Adds} = spawn_monitor(fun() -> ok = erlmcp:add(Server, tool, Tool) end),
    case is_seen_in_put(Publisher, Adds) of
        true -> ok;
        false -> suspend_in_put(Publisher, Server, N + 1)
    end.

is_seen_in_put(Publisher, Adds) ->
    true = erlang:suspend_process(Publisher),
    case process_info(Publisher, current_function) of
        {current_function, {persistent_term, Waits, _}} when Waits =/= erase ->
            true;
        _ ->
            true = erlang:resume_process(Publisher),
            receive
                {'DOWN', Adds, process, _, normal} -> false
            after 1 ->
                is_seen_in_put(Publisher, Adds)
            end
    end.
