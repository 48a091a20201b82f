-module(console_drills_SUITE).
-moduledoc """
Drills of an operator. A server in a node of its own is used over real sockets, and then comes to
harm: a slow tool, a leak, a flood, a dead upstream server, a full disk. The console's first line is
to name the cause soon, with a link to what shows it. After the end of the harm the server is to be
well again.
""".

-compile(nowarn_missing_spec_documented).

-import(erlmcp_test_console, [events/2, next_event/1, get/2]).

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1]).
-export([a_slow_tool/1, a_leaking_cache/1, leaking_processes/1, a_flood/1, a_dead_upstream/1,
         a_full_disk/1]).
%% In the node of a server.
-export([serve/1, echo/2, search/2, find/2, own/0, cache/2, begin_some/2, work/2, keep/2]).

-define(FEED, ~"/console/feed").
%% Milliseconds until the cause is to be on the page, and until the server is to be well again.
-define(NAMED_MS, 90_000).
-define(WELL_MS, 90_000).

suite() ->
    [{timetrap, {minutes, 5}}].

%% They wait more than they work, and each has a node of its own.
all() ->
    [{group, drills}].

groups() ->
    [{drills, [parallel], [a_slow_tool, a_leaking_cache, leaking_processes, a_flood,
                           a_dead_upstream, a_full_disk]}].

init_per_suite(Given) ->
    Config = erlmcp_test_applications:start([erlmcp], Given),
    Node = filename:join([erlmcp_test_installed:path("peers", ["node"]), "bin", "node"]),
    [{node, Node}, {playwright, erlmcp_test_installed:path("playwright")},
     {chromium, erlmcp_test_installed:path("chromium")} | Config].

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

%% The other tool is called so often that all requests together look quick.
a_slow_tool(_) ->
    Tools = [#{name => ~"echo", handler => fun ?MODULE:echo/2},
             #{name => ~"search", handler => fun ?MODULE:search/2}],
    in_trouble(#{tools => Tools}, [], fun(Server, Feed) ->
        _ = [calls(Tool, Pause, Server) || {Tool, Pause} <- [{~"echo", 10}, {~"echo", 10},
                                                             {~"search", 50}, {~"search", 50}]],
        %% The calls until now tell what is usual.
        ok = until(fun(#{~"definitions" := Definitions}) ->
            [] =/= [Total || #{~"name" := ~"search", ~"total" := Total} <- Definitions,
                             Total >= 320]
        end, Feed),
        ok = is_well(Feed),
        ok = in_node(Server, persistent_term, put, [search_ms, 400]),
        %% A busy machine adds its own time.
        ok = named(<<"^The tool search is slow: .* took longer than "
                     "([3-9][0-9][0-9] ms|[0-9.]+ s), and before that">>, ~"tools", Feed),
        ok = in_node(Server, persistent_term, put, [search_ms, 0]),
        well_again(Feed)
    end).

%% A cache without a bound.
a_leaking_cache(_) ->
    leak(~"cache", fun ?MODULE:cache/2, [],
         <<"^The node's memory grows by [0-9.]+ MiB a second, and will be full in about [0-9]+ "
           "minutes if that goes on\\. Most of it is in the table drill_cache of drill_owner\\. "
           "All [0-9]+ calls meanwhile were of the tool cache\\.$">>).

%% Processes that do not end.
leaking_processes(_) ->
    leak(~"begin", fun ?MODULE:begin_some/2, ["+P", "20000"],
         <<"^The node has [0-9]+ more processes each second, and as many as it may in about "
           "(a minute|[0-9]+ minutes) if that goes on\\. Most are console_drills_SUITE:lasting/0"
           "\\. All [0-9]+ calls meanwhile were of the tool begin\\.$">>).

leak(Tool, Handler, Arguments, Words) ->
    in_trouble(#{tools => [#{name => Tool, handler => Handler}]}, Arguments, fun(Server, Feed) ->
        ok = in_node(Server, application, set_env, [erlmcp, memory_bytes, 2_000_000_000]),
        Owner = in_node(Server, erlang, spawn, [?MODULE, own, []]),
        ok = is_well(Feed),
        Leak = calls(Tool, 50, Server),
        ok = named(Words, ~"machine", Feed),
        ok = ended(Leak),
        true = in_node(Server, erlang, exit, [Owner, kill]),
        well_again(Feed)
    end).

%% Forty clients that do not wait, and one that does.
a_flood(_) ->
    Tools = [#{name => ~"work", handler => fun ?MODULE:work/2}],
    in_trouble(#{tools => Tools, limits => #{in_flight => 4, queue => 4}}, [],
               fun(Server, Feed) ->
        _ = calls(~"work", 50, Server),
        ok = until(fun(#{~"totals" := #{~"requests" := Requests}}) -> Requests >= 50 end, Feed),
        ok = is_well(Feed),
        Flood = [spawn_link(fun() -> flood(Server) end) || _ <- lists:seq(1, 40)],
        %% A page that is opened now says so, too.
        Late = events(?FEED, Server),
        {~"hello", _} = next_event(Late),
        [ok = named(<<"^A flood: [0-9,]+ requests come in a second, [0-9]+ times as many as "
                      "before\\. [0-9,]+ requests of the last .* were refused for want of room, "
                      "most with 1001, queue cap exceeded\\.$">>, ~"refusals", Page)
         || Page <- [Feed, Late]],
        ok = lists:foreach(fun ended/1, Flood),
        ok = erlmcp_test_http:close(Late),
        well_again(Feed)
    end).

%% A tool has its answers from an MCP server on another port, which ends and starts again.
a_dead_upstream(Config) ->
    Upstream = #{pid := Pid, port := Port, url := Url} = upstream(0),
    Tools = [#{name => ~"search", handler => fun ?MODULE:find/2,
               breaker => #{failures => 3, open_ms => 500, longest_open_ms => 500}}],
    in_trouble(#{tools => Tools}, [], fun(Server, Feed) ->
        Client = erlmcp_client:child_spec({{local, drill_upstream}, {http, Url, #{}}}),
        {ok, _} = in_node(Server, supervisor, start_child, [kernel_safe_sup, Client]),
        _ = calls(~"search", 100, Server),
        ok = until(fun(#{~"totals" := #{~"requests" := Requests}}) -> Requests >= 20 end, Feed),
        ok = is_well(Feed),
        {200, _, Well} = get(~"/health", Server),
        #{~"status" := ~"pass", ~"well" := true} = json:decode(Well),
        Browser = browser(Server, Config),
        ok = erlmcp:stop_server(Pid),
        ok = named(<<"^A circuit breaker is open: too many calls of search failed in a row, most "
                     "with 1080, dependency unavailable\\.$">>, ~"dependencies", Feed),
        ~"named" = said(Browser),
        %% Whatever else tells how the server is says the same.
        {200, _, Ill} = get(~"/health", Server),
        #{~"status" := ~"pass", ~"well" := false} = json:decode(Ill),
        Asked = in_node(Server, erlmcp_operator, ask, [~'{"command": "metrics"}']),
        #{~"ok" := [#{~"verdict" := #{~"well" := false, ~"causes" := [Words | _]}}]} =
            json:decode(iolist_to_binary(Asked)),
        <<"A circuit breaker is open: ", _/binary>> = Words,
        Again = upstream(Port),
        ok = well_again(Feed),
        ~"passed" = said(Browser),
        erlmcp_test_http:stop(Again)
    end),
    erlmcp_test_http:stop(Upstream).

%% On an address where nobody else takes a port that is free.
upstream(Port) ->
    erlmcp_test_http:start(#{
        name => ~"upstream", listen => [{http, #{ip => {127, 0, 9, 7}, port => Port}}],
        tools => [#{name => ~"find", handler => fun ?MODULE:echo/2}]}).

%% A small file system under the store of a tool.
a_full_disk(Config) ->
    case erlmcp_chaos_tmpfs:start(1_048_576) of
        {ok, Tmpfs} ->
            Folder = filename:join(erlmcp_chaos_tmpfs:folder(Tmpfs), "store"),
            try
                full_disk(Folder, Tmpfs)
            after
                erlmcp_chaos_tmpfs:stop(Tmpfs)
            end;
        {error, Reason} ->
            %% The tests of the whole project print this.
            Line = ["console_drills: ", erlmcp_chaos_program:reason(Reason), $\n],
            ok = file:write_file(proplists:get_value(priv_dir, Config) ++ "not_run", Line),
            {comment, iolist_to_binary(Line)}
    end.

full_disk(Folder, Tmpfs) ->
    Tools = [#{name => ~"keep", handler => fun ?MODULE:keep/2}],
    in_trouble(#{tools => Tools}, [], fun(Server, Feed) ->
        {ok, Store} = in_node(Server, erlmcp_token_store_file, open, [#{folder => Folder}]),
        ok = in_node(Server, persistent_term, put, [drill_store, Store]),
        _ = calls(~"keep", 100, Server),
        ok = until(fun(#{~"totals" := #{~"requests" := Requests}}) -> Requests >= 20 end, Feed),
        ok = is_well(Feed),
        ok = erlmcp_chaos_tmpfs:fill(Tmpfs),
        ok = named(<<"^A disk is full \\(enospc\\): the log has .* of that in the last minute, the "
                     "last one of the tool keep\\.$">>, ~"incidents", Feed),
        ok = erlmcp_chaos_tmpfs:free(Tmpfs),
        well_again(Feed)
    end).

%% A server in a node of its own, with a page that looks at it.
in_trouble(Options, Arguments, Drill) ->
    {Node, _} = erlmcp_test_peer_node:start_link(#{
        args => ["-kernel", "logger", "[{handler,default,undefined}]" | Arguments]}),
    Of = #{node => Node},
    {ok, _} = in_node(Of, application, ensure_all_started, [erlmcp_console]),
    Server = #{} = in_node(Of, ?MODULE, serve, [Options]),
    Feed = events(?FEED, Server),
    {~"hello", _} = next_event(Feed),
    ok = Drill(Server#{node => Node}, Feed),
    ok = erlmcp_test_http:close(Feed),
    erlmcp_test_peer_node:stop(Node).

serve(Options) ->
    Http = #{port => 0, health => true, pages => #{~"/console" => erlmcp_console:page(#{})}},
    Spec = erlmcp:child_spec(Options#{id => drilled, name => ~"drilled", version => ~"1",
                                      listen => [{http, Http}]}),
    {ok, Pid} = supervisor:start_child(kernel_safe_sup, Spec),
    [Listener] = erlmcp:listeners(Pid),
    Listener.

in_node(#{node := Node}, Module, Function, Arguments) ->
    erlmcp_test_peer_node:call(Node, Module, Function, Arguments).

%% A client that calls a tool again and again, and does not mind how that ends.
calls(Tool, PauseMs, #{url := Url}) ->
    spawn_link(fun() ->
        {ok, Client} = erlmcp_client:start_link({http, Url, #{}}),
        again(Client, Tool, PauseMs)
    end).

again(Client, Tool, PauseMs) ->
    _ = erlmcp_client:call_tool(Client, Tool, #{}),
    receive after PauseMs -> again(Client, Tool, PauseMs) end.

%% One connection for all requests, until the server closes it.
flood(Server) ->
    Socket = erlmcp_test_http:connect(Server),
    {Headers, Body} = erlmcp_test_http:message(~"tools/call", #{name => ~"work"}, #{}),
    _ = try
        flood(Socket, Headers, Body)
    catch
        error:_ -> erlmcp_test_http:close(Socket)
    end,
    flood(Server).

flood(Socket, Headers, Body) ->
    ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
    #{status := _} = erlmcp_test_http:response(Socket),
    flood(Socket, Headers, Body).

ended(Pid) ->
    true = unlink(Pid),
    true = exit(Pid, kill),
    _ = erlmcp_test_http:ended(Pid),
    ok.

%% What the page shows.

until(Holds, Feed) ->
    until(Holds, Feed, erlang:monotonic_time(millisecond) + ?NAMED_MS).

until(Holds, Feed, End) ->
    {~"snapshot", #{~"verdict" := Verdict} = Snapshot} = next_event(Feed),
    case Holds(Snapshot) of
        true ->
            ok;
        false ->
            erlang:monotonic_time(millisecond) < End orelse ct:fail({not_seen, Verdict}),
            until(Holds, Feed, End)
    end.

%% A pause of the machine makes requests slow, and the server is not well for some seconds.
is_well(Feed) ->
    until(fun(#{~"verdict" := #{~"well" := Well}}) -> Well end, Feed).

%% The words of a cause, and the section that it leads to.
named(Pattern, Link, Feed) ->
    Began = erlang:monotonic_time(millisecond),
    ok = until(fun(#{~"verdict" := #{~"causes" := Causes}}) ->
        Found = [Words || #{~"words" := Words, ~"link" := To} <- Causes, To =:= Link,
                          match =:= re:run(Words, Pattern, [{capture, none}])],
        _ = [ct:pal("after ~b ms: ~ts", [erlang:monotonic_time(millisecond) - Began, Words])
             || Words <- Found],
        Found =/= []
    end, Feed).

well_again(Feed) ->
    Began = erlang:monotonic_time(millisecond),
    ok = until(fun(#{~"verdict" := #{~"well" := Well}}) -> Well end, Feed, Began + ?WELL_MS),
    ct:pal("well ~b ms after the end of the harm",
           [erlang:monotonic_time(millisecond) - Began]).

%% In a browser, which follows the link of the cause.
browser(Server, Config) ->
    [Node, Playwright, Chromium] = [proplists:get_value(Key, Config)
                                    || Key <- [node, playwright, chromium]],
    #{url := Url} = Server,
    Script = filename:join(erlmcp_test_page:root(), "test/console/page.mjs"),
    Port = open_port({spawn_executable, Node},
                     [{args, [Script, Playwright, Chromium, uri_string:resolve(~"/console/", Url),
                              "a_cause_is_named"]},
                      {env, [{"CONSOLE_CAUSE", "A circuit breaker is open"},
                             {"CONSOLE_SECTION", "dependencies"}]},
                      {line, 10_000}, binary, exit_status]),
    ~"looking" = said(Port),
    Port.

said(Port) ->
    receive
        {Port, {data, {eol, Line}}} -> Line;
        {Port, {exit_status, Status}} -> ct:fail({ended, Status})
    after ?NAMED_MS ->
        ct:fail(says_nothing)
    end.

%% The tools, in the node of the server.

echo(_, _) -> ~"done".

search(_, _) ->
    receive after persistent_term:get(search_ms, 0) -> ~"found" end.

find(_, _) ->
    case erlmcp_client:call_tool(drill_upstream, ~"find", #{}, #{timeout => 1_000}) of
        {ok, _} -> ~"found";
        {error, _} -> {refuse, erlmcp:refusal(dependency_unavailable, ~"nobody answers")}
    end.

%% The owner of the table of the tool `cache`, with which all that has leaked ends.
own() ->
    true = register(drill_owner, self()),
    drill_cache = ets:new(drill_cache, [named_table, public]),
    receive never -> ok end.

cache(_, _) ->
    true = ets:insert(drill_cache, {make_ref(), lists:seq(1, 12_500)}),
    ~"cached".

begin_some(_, _) ->
    _ = [spawn(fun lasting/0) || _ <- lists:seq(1, 10)],
    ~"began".

lasting() ->
    Monitor = monitor(process, drill_owner),
    receive {'DOWN', Monitor, process, _, _} -> ok end.

work(_, _) ->
    receive after 20 -> ~"done" end.

keep(_, _) ->
    Store = persistent_term:get(drill_store),
    ok = erlmcp_token_store_file:put(key, #{~"filler" => binary:copy(~"x", 10_000)}, Store),
    ~"kept".
