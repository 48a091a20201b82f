-module(console_feed_SUITE).
-moduledoc """
The feed of the console, over real sockets: a first message with what was before, a snapshot a
second for all who look, figures that are those of the server, and nothing secret.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([a_snapshot_comes_each_second/1, figures_are_those_of_the_meter/1,
         there_is_history_before_anybody_looks/1, running_calls_are_shown/1,
         calls_are_forgotten_with_the_last_page/1,
         a_slow_viewer_holds_nobody_up/1, a_server_that_starts_holds_nobody_up/1,
         strange_messages_are_ignored/1, servers_that_are_read_are_bounded/1,
         viewers_are_forgotten/1, it_works_while_the_server_refuses/1,
         a_server_that_ends_ends_its_feed/1,
         secrets_are_not_shown/1, tools_are_tried/1, tries_are_bounded/1,
         recent_requests_are_shown/1, payloads_are_shown_where_they_are_on/1,
         payloads_are_kept_while_somebody_looks/1, nothing_is_kept_after_the_console/1,
         dependencies_are_shown/1,
         loaded_code_leaves_a_mark/1, a_new_start_goes_on/1]).

%% A store of tasks.
-export([open/2]).

-import(erlmcp_test_console, [start/1, start/2, events/2, next_event/1, get/2, post/3]).

-define(FEED, ~"/console/feed").
-define(PATIENCE, 20_000).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [a_snapshot_comes_each_second, figures_are_those_of_the_meter,
     there_is_history_before_anybody_looks, running_calls_are_shown,
     calls_are_forgotten_with_the_last_page, a_slow_viewer_holds_nobody_up,
     a_server_that_starts_holds_nobody_up, strange_messages_are_ignored,
     servers_that_are_read_are_bounded,
     viewers_are_forgotten, it_works_while_the_server_refuses, a_server_that_ends_ends_its_feed,
     secrets_are_not_shown, tools_are_tried, tries_are_bounded, recent_requests_are_shown,
     payloads_are_shown_where_they_are_on, payloads_are_kept_while_somebody_looks,
     nothing_is_kept_after_the_console,
     dependencies_are_shown, loaded_code_leaves_a_mark, a_new_start_goes_on].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, erlmcp_console], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

a_snapshot_comes_each_second(_) ->
    Server = start(#{}),
    Pauses = erlmcp_test_pauses:start(),
    Viewers = [events(?FEED, Server) || _ <- [1, 2]],
    [{~"hello", #{~"columns" := _}} = next_event(Viewer) || Viewer <- Viewers],
    {First, Second} = two_for_both(Viewers, [[], []]),
    %% A pause comes before a reading or after it.
    Paused = erlmcp_test_pauses:total_ms(Pauses),
    ok = erlmcp_test_pauses:stop(Pauses),
    true = Second - First > 800 - Paused andalso Second - First < 3_000 + Paused,
    stop(Viewers, Server).

%% One viewer may have had some before the other viewer was there.
two_for_both(Viewers, Before) ->
    Times = [begin
                 {~"snapshot", #{~"at" := At}} = next_event(Viewer),
                 Earlier ++ [At]
             end || {Viewer, Earlier} <- lists:zip(Viewers, Before)],
    [Ones, Others] = Times,
    case [At || At <- Ones, lists:member(At, Others)] of
        [First, Second | _] -> {First, Second};
        _ -> two_for_both(Viewers, Times)
    end.

figures_are_those_of_the_meter(_) ->
    #{pid := Pid} = Server = start(#{tools => [echo()]}),
    {ok, Client} = erlmcp_client:start_link({server, Pid, #{}}),
    [{ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{}) || _ <- lists:seq(1, 7)],
    {error, _} = erlmcp_client:call_tool(Client, ~"none", #{}),
    Feed = events(?FEED, Server),
    {~"hello", _} = next_event(Feed),
    {~"snapshot", Snapshot} = next_event(Feed),
    #{requests := Requests, refusals := #{1048 := 1}} = erlmcp:metrics(Pid),
    #{~"totals" := #{~"requests" := Requests, ~"faults" := 0},
      ~"refusals" := [#{~"code" := 1048, ~"name" := ~"tool_not_found", ~"count" := 1}],
      ~"definitions" := [#{~"name" := ~"echo", ~"kind" := ~"tool", ~"total" := 7} | _],
      ~"verdict" := #{~"well" := true}, ~"server" := #{~"name" := ~"test", ~"state" := ~"open"},
      ~"bounds" := Bounds} = Snapshot,
    [] = [~"connections", ~"sessions", ~"in_flight", ~"waiting", ~"tasks", ~"processes"]
        -- [Name || #{~"name" := Name} <- Bounds],
    stop([Feed], Server).

%% Its five seconds are made to pass at once.
there_is_history_before_anybody_looks(_) ->
    Server = start(#{}),
    ok = lists:foreach(fun(_) ->
        _ = sys:replace_state(erlmcp_console_collector, fun(State) ->
            Servers = #{Pid => setelement(4, Seen, erlang:monotonic_time(millisecond))
                        || Pid := Seen <- element(2, State)},
            setelement(2, State, Servers)
        end),
        erlmcp_console_collector ! tick
    end, lists:seq(1, 4)),
    Feed = events(?FEED, Server),
    {~"hello", #{~"points" := [Times | _], ~"snapshot" := #{}}} = next_event(Feed),
    true = length(Times) >= 3,
    stop([Feed], Server),
    without_more_ticks().

%% Each tick is followed by another one a second later. Those that a case has begun end with the
%% process.
without_more_ticks() ->
    ok = application:stop(erlmcp_console),
    ok = application:start(erlmcp_console).

running_calls_are_shown(_) ->
    #{pid := Pid} = Server = start(#{tools => [wait()]}),
    {ok, Client} = erlmcp_client:start_link({server, Pid, #{}}),
    {ok, Call} = erlmcp_client:async(Client, {call_tool, ~"wait", #{}}),
    Feed = events(?FEED, Server),
    #{~"id" := Id, ~"target" := ~"wait", ~"principal" := ~"anonymous", ~"stack" := [Frame | _]} =
        shown_call(Feed),
    {_, _} = binary:match(Frame, atom_to_binary(?MODULE)),
    {200, _, _} = post(~"/console/cancel", #{id => Id}, Server),
    receive {erlmcp, Call, {error, {rpc, #{code := -32603}}}} -> ok
    after ?PATIENCE -> ct:fail(no_answer)
    end,
    {404, _, _} = post(~"/console/cancel", #{id => Id}, Server),
    stop([Feed], Server).

%% Without a page nobody asks which calls run, so those of before must not count any more.
calls_are_forgotten_with_the_last_page(_) ->
    #{pid := Pid} = Server = start(#{tools => [wait()]}),
    {ok, Client} = erlmcp_client:start_link({server, Pid, #{}}),
    {ok, Call} = erlmcp_client:async(Client, {call_tool, ~"wait", #{}}),
    Feed = events(?FEED, Server),
    #{~"id" := Id} = shown_call(Feed),
    ok = erlmcp_test_http:close(Feed),
    ok = until(fun() -> viewers() =:= 0 end),
    ok = erlmcp:cancel(Pid, Id),
    receive {erlmcp, Call, {error, {rpc, #{code := -32603}}}} -> ok
    after ?PATIENCE -> ct:fail(no_answer)
    end,
    Again = events(?FEED, Server),
    {~"hello", #{~"snapshot" := #{~"calls" := []}}} = next_event(Again),
    stop([Again], Server).

shown_call(Feed) ->
    case next_event(Feed) of
        {~"snapshot", #{~"calls" := [Call | _]}} -> Call;
        _ -> shown_call(Feed)
    end.

a_slow_viewer_holds_nobody_up(_) ->
    Server = start(#{}),
    Slow = events(?FEED, Server),
    Quick = events(?FEED, Server),
    {~"hello", _} = next_event(Quick),
    [{~"snapshot", _} = next_event(Quick) || _ <- lists:seq(1, 3)],
    {~"hello", _} = next_event(Slow),
    {~"snapshot", _} = next_event(Slow),
    stop([Slow, Quick], Server).

%% It answers nobody before the server that it mounts has its store of tasks.
a_server_that_starts_holds_nobody_up(_) ->
    Slow = #{name => ~"slow", version => ~"1.0.0", task_store => {?MODULE, #{test => self()}}},
    _ = spawn(fun() ->
        erlmcp:start_server(#{name => ~"test", version => ~"1.0.0", mounts => [{~"slow", Slow}]})
    end),
    Opening = receive {opens, Pid} -> Pid end,
    Monitor = monitor(process, Opening),
    #{url := Url} = Server = start(#{}),
    Feed = events(?FEED, Server),
    {~"hello", _} = next_event(Feed),
    [{~"snapshot", _} = next_event(Feed) || _ <- [1, 2]],
    ok = until(fun() -> listeners(Server) =:= [Url] end),
    true = exit(Opening, kill),
    receive {'DOWN', Monitor, process, Opening, _} -> ok end,
    stop([Feed], Server).

open(#{test := Test}, _) ->
    Test ! {opens, self()},
    receive never -> none end.

listeners(#{pid := Pid}) ->
    #{Pid := Seen} = element(2, sys:get_state(erlmcp_console_collector)),
    [Url || #{listeners := Listeners} <- tuple_to_list(Seen), #{url := Url} <- Listeners].

strange_messages_are_ignored(_) ->
    Collector = whereis(erlmcp_console_collector),
    Collector ! strange,
    ok = gen_server:cast(Collector, strange),
    timeout = try gen_server:call(Collector, strange, 10) catch exit:{Why, _} -> Why end,
    #{} = element(2, sys:get_state(Collector)),
    Collector = whereis(erlmcp_console_collector),
    ok.

%% Whichever servers the registry has first.
servers_that_are_read_are_bounded(_) ->
    Start = fun() -> [start(#{}) || _ <- lists:seq(1, 25)] end,
    First = Start(),
    ok = until(fun() -> servers() =:= 20 end),
    Second = Start(),
    ok = lists:foreach(fun(_) -> erlmcp_console_collector ! tick, 20 = servers() end,
                       lists:seq(1, 5)),
    lists:foreach(fun erlmcp_test_http:stop/1, First ++ Second),
    without_more_ticks().

servers() ->
    map_size(element(2, sys:get_state(erlmcp_console_collector))).

viewers_are_forgotten(_) ->
    Server = start(#{}),
    Feed = events(?FEED, Server),
    {~"hello", _} = next_event(Feed),
    1 = viewers(),
    ok = erlmcp_test_http:close(Feed),
    ok = until(fun() -> viewers() =:= 0 end),
    erlmcp_test_http:stop(Server).

viewers() ->
    Servers = element(2, sys:get_state(erlmcp_console_collector)),
    lists:sum([map_size(element(3, Seen)) || _ := Seen <- Servers]).

%% The page says why, and since when.
it_works_while_the_server_refuses(_) ->
    Test = self(),
    #{pid := Pid} = Server = start(#{tools => [wait()]}),
    {ok, Client} = erlmcp_client:start_link({server, Pid, #{}}),
    {ok, _} = erlmcp_client:async(Client, {call_tool, ~"wait", #{}}),
    Feed = events(?FEED, Server),
    #{} = shown_call(Feed),
    _ = spawn_link(fun() -> Test ! {drained, erlmcp:drain(Pid, 60_000)} end),
    ok = until(fun() -> maps:get(state, erlmcp:info(Pid)) =:= server_shutting_down end),
    {error, {rpc, #{code := 1077}}} = erlmcp_client:call_tool(Client, ~"wait", #{}),
    #{~"verdict" := #{~"causes" := [#{~"words" := Words} | _]}, ~"marks" := Marks,
      ~"calls" := [#{~"id" := Id}]} = not_well(Feed),
    <<"The server is being drained", _/binary>> = Words,
    [_] = [Mark || #{~"kind" := ~"drain"} = Mark <- Marks],
    %% What holds the drain up is ended.
    ok = erlmcp:cancel(Pid, Id),
    receive {drained, {ok, #{calls := 0}}} -> ok after ?PATIENCE -> ct:fail(not_drained) end,
    stop([Feed], Server).

not_well(Feed) ->
    case next_event(Feed) of
        {~"snapshot", #{~"verdict" := #{~"well" := false}} = Snapshot} -> Snapshot;
        _ -> not_well(Feed)
    end.

a_server_that_ends_ends_its_feed(_) ->
    Server = start(#{}),
    Feed = events(?FEED, Server),
    {~"hello", _} = next_event(Feed),
    erlmcp_test_http:stop(Server),
    ok = erlmcp_test_http:closed(Feed),
    ok = until(fun() -> viewers() =:= 0 end).

secrets_are_not_shown(_) ->
    Secret = ~"hunter2-planted",
    #{pid := Pid} = Server = start(#{tools => [wait()]}),
    {ok, Client} = erlmcp_client:start_link({server, Pid, #{}}),
    {ok, _} = erlmcp_client:async(Client, {call_tool, ~"wait", #{password => Secret}},
                                  #{meta => #{~"token" => Secret}}),
    Feed = events(?FEED, Server),
    #{} = shown_call(Feed),
    {_, Snapshot} = next_event(Feed),
    nomatch = binary:match(iolist_to_binary(json:encode(Snapshot)), Secret),
    stop([Feed], Server).

tools_are_tried(_) ->
    Server = start(#{tools => [echo()]}),
    {200, _, Tools} = get(~"/console/tools", Server),
    #{~"tools" := [#{~"name" := ~"echo", ~"inputSchema" := #{}}]} = json:decode(Tools),
    [#{~"kind" := ~"started"},
     #{~"kind" := ~"result", ~"result" := #{~"content" := [#{~"text" := ~"done"}]}}] =
        tried(~"echo", Server),
    [#{~"kind" := ~"started"}, #{~"kind" := ~"failed", ~"words" := Words}] =
        tried(~"none", Server),
    {_, _} = binary:match(Words, ~"none"),
    erlmcp_test_http:stop(Server).

tried(Tool, Server) ->
    {200, #{~"content-type" := ~"application/x-ndjson"}, Lines} =
        post(~"/console/call", #{tool => Tool, arguments => #{}}, Server),
    [json:decode(Line) || Line <- binary:split(Lines, ~"\n", [global, trim])].

%% Twenty run, and the end of a connection ends its call.
tries_are_bounded(_) ->
    Server = start(#{tools => [wait()], limits => #{calls_per_connection => 100}}),
    Tries = [begin
                 Socket = erlmcp_test_console:open_post(~"/console/call",
                                                        #{tool => ~"wait", arguments => #{}},
                                                        Server),
                 {200, _} = erlmcp_test_http:head(Socket),
                 Socket
             end || _ <- lists:seq(1, 20)],
    {503, _, _} = post(~"/console/call", #{tool => ~"wait", arguments => #{}}, Server),
    ok = lists:foreach(fun erlmcp_test_http:close/1, Tries),
    #{pid := Pid} = Server,
    ok = until(fun() -> maps:get(in_flight, erlmcp:info(Pid)) =:= 0 end),
    Socket = erlmcp_test_console:open_post(~"/console/call",
                                           #{tool => ~"wait", arguments => #{}}, Server),
    {200, _} = erlmcp_test_http:head(Socket),
    stop([Socket], Server).

recent_requests_are_shown(_) ->
    #{pid := Pid} = Server = start(#{tools => [echo()]}),
    Feed = events(?FEED, Server),
    {~"hello", _} = next_event(Feed),
    {~"snapshot", _} = next_event(Feed),
    {ok, Client} = erlmcp_client:start_link({server, Pid, #{}}),
    {ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{}),
    #{~"target" := ~"echo", ~"method" := ~"tools/call", ~"error" := null,
      ~"principal" := ~"anonymous", ~"took" := Took} = shown_request(Feed),
    true = Took >= 0,
    stop([Feed], Server).

%% Two pages of one server: what one of them shows is not shown by the other.
payloads_are_shown_where_they_are_on(_) ->
    Secret = ~"hunter2-planted",
    Pages = #{~"/console" => erlmcp_console:page(#{}),
              ~"/ours" => erlmcp_console:page(#{payloads => true, redact => [~"ssn"]}),
              ~"/theirs" => erlmcp_console:page(#{payloads => true, redact => [~"/city"]})},
    Server = erlmcp_test_http:start(#{tools => [echo()],
                                      listen => [{http, #{port => 0, pages => Pages}}]}),
    #{pid := Pid} = Server,
    [Plain, Ours] = Feeds = [events(Path, Server) || Path <- [?FEED, ~"/ours/feed"]],
    {~"hello", #{~"payloads" := false}} = next_event(Plain),
    {~"hello", #{~"payloads" := true}} = next_event(Ours),
    {~"snapshot", _} = next_event(Ours),
    {ok, Client} = erlmcp_client:start_link({server, Pid, #{}}),
    {ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{password => Secret, ssn => Secret,
                                                         note => <<"Bearer ", Secret/binary>>,
                                                         city => ~"Oslo",
                                                         order => 9_007_199_254_740_993}),
    #{~"id" := Id, ~"payload" := true} = shown_request(Ours),
    Get = fun(Page) -> get([Page, ~"/payload?id=", integer_to_binary(Id)], Server) end,
    {200, _, Json} = Get(~"/ours"),
    #{~"arguments" := #{~"text" := Arguments}, ~"result" := #{~"text" := Result}} =
        json:decode(Json),
    #{~"password" := ~"[redacted]", ~"ssn" := ~"[redacted]", ~"note" := ~"Bearer [redacted]",
      ~"city" := ~"Oslo", ~"order" := 9_007_199_254_740_993} = json:decode(Arguments),
    #{~"content" := [#{~"text" := ~"done"}]} = json:decode(Result),
    nomatch = binary:match(Json, Secret),
    %% The page without payloads has no such part, and the one with another rule may not see it.
    {404, #{~"content-type" := <<"text/plain", _/binary>>}, _} = Get(~"/console"),
    {404, _, _} = Get(~"/theirs"),
    [{404, _, _} = get(Path, Server)
     || Path <- [~"/ours/payload", ~"/ours/payload?id=", ~"/ours/payload?id=-1",
                 ~"/ours/payload?id=a", ~"/ours/payload?id=99999999999999999999999999",
                 <<"/ours/payload?id=", (integer_to_binary(Id))/binary, "x">>]],
    %% The stream that all pages share has no payload.
    #{} = Shared = shown_request(Plain),
    nomatch = binary:match(iolist_to_binary(json:encode(Shared)), ~"Oslo"),
    stop(Feeds, Server).

payloads_are_kept_while_somebody_looks(_) ->
    #{pid := Pid} = Server = start(#{tools => [echo()]}, #{payloads => true}),
    {ok, Client} = erlmcp_client:start_link({server, Pid, #{}}),
    {ok, _, #{key := Key}} = erlmcp_registry:whereis(Pid),
    Kept = fun() -> length(ets:match(erlmcp_recent_payloads, {'$1', '_', Key, '_', '_'})) end,
    {ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{}),
    0 = Kept(),
    Feed = events(?FEED, Server),
    {~"hello", _} = next_event(Feed),
    {~"snapshot", _} = next_event(Feed),
    {ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{}),
    true = Kept() > 0,
    ok = erlmcp_test_http:close(Feed),
    ok = until(fun() -> Kept() =:= 0 end),
    erlmcp_test_http:stop(Server).

nothing_is_kept_after_the_console(_) ->
    #{pid := Pid} = Server = start(#{tools => [echo()]}, #{payloads => true}),
    {ok, Client} = erlmcp_client:start_link({server, Pid, #{}}),
    Feed = events(?FEED, Server),
    {~"hello", _} = next_event(Feed),
    {~"snapshot", _} = next_event(Feed),
    {ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{}),
    true = ets:info(erlmcp_recent_payloads, size) > 1,
    ok = application:stop(erlmcp_console),
    1 = ets:info(erlmcp_recent_payloads, size),
    {ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{}),
    1 = ets:info(erlmcp_recent_payloads, size),
    ok = application:start(erlmcp_console),
    stop([Feed], Server).

dependencies_are_shown(_) ->
    Upstream = erlmcp_test_http:start(#{}),
    #{url := Url} = Upstream,
    {ok, Pool} = erlmcp_pool:start_link({local, upstream_of_the_console},
                                        #{targets => [{http, Url, #{}}], failures => 1,
                                          retries => 0, open_ms => 60_000}),
    {ok, pong} = erlmcp_client:ping(Pool),
    Server = start(#{tools => [#{name => ~"search", breaker => #{failures => 1, open_ms => 60_000},
                                 handler => fun(_, _) -> error(failed) end}],
                     workers => #{db => #{size => 2, start => fun() -> {ok, ticket} end}}}),
    #{pid := Pid} = Server,
    Feed = events(?FEED, Server),
    Closed = shown(fun(#{~"breakers" := [#{~"state" := State}]}) -> State =:= ~"closed" end, Feed),
    #{~"workers" := [#{~"name" := ~"db", ~"size" := 2, ~"waiting" := 0}],
      ~"pools" := [#{~"name" := ~"upstream_of_the_console",
                     ~"members" := [#{~"state" := ~"closed", ~"target" := Target}]}]} = Closed,
    <<"http://", Place/binary>> = Target = hd(binary:split(Url, ~"/mcp")),
    #{~"upstreams" := Upstreams} = Closed,
    [Pings] = [Total || #{~"name" := Name, ~"total" := Total} <- Upstreams, Name =:= Place],
    true = Pings >= 1,
    {ok, Client} = erlmcp_client:start_link({server, Pid, #{}}),
    {error, _} = erlmcp_client:call_tool(Client, ~"search", #{}),
    erlmcp_test_http:stop(Upstream),
    {error, _} = erlmcp_client:ping(Pool),
    #{~"verdict" := #{~"causes" := Causes}} =
        shown(fun(#{~"breakers" := [#{~"state" := One}],
                    ~"pools" := [#{~"members" := [#{~"state" := Other}]}]}) ->
                  {One, Other} =:= {~"open", ~"open"}
              end, Feed),
    [<<"A circuit breaker is open: too many calls of search failed in a row, most with 1079, "
       "internal error.">>,
     <<"1 of 1 members of the pool of clients upstream_of_the_console get no calls: too many of "
       "their calls failed in a row.">>] =
        [Words || #{~"words" := Words, ~"link" := ~"dependencies"} <- Causes],
    ok = erlmcp_pool:stop(Pool),
    #{} = shown(fun(#{~"pools" := Pools}) -> Pools =:= [] end, Feed),
    stop([Feed], Server).

loaded_code_leaves_a_mark(_) ->
    Server = start(#{}),
    load(1),
    Feed = events(?FEED, Server),
    {~"hello", _} = next_event(Feed),
    {~"snapshot", _} = next_event(Feed),
    load(2),
    #{} = shown(fun(#{~"marks" := Marks}) ->
        [~"Code was loaded: erlmcp_test_deployed."]
            =:= [Words || #{~"kind" := ~"deploy", ~"words" := Words} <- Marks]
    end, Feed),
    _ = code:purge(erlmcp_test_deployed),
    _ = code:delete(erlmcp_test_deployed),
    stop([Feed], Server).

load(Value) ->
    Forms = [{attribute, 1, module, erlmcp_test_deployed}, {attribute, 1, export, [{f, 0}]},
             {function, 1, f, 0, [{clause, 1, [], [], [{integer, 1, Value}]}]}],
    {ok, Module, Beam} = compile:forms(Forms, []),
    {module, Module} = code:load_binary(Module, "deployed", Beam).

%% With its id, and another version.
a_new_start_goes_on(_) ->
    Options = #{id => console_again, version => ~"1.0.0"},
    First = start(Options),
    Before = events(?FEED, First),
    {~"hello", _} = next_event(Before),
    [{~"snapshot", _} = next_event(Before) || _ <- [1, 2]],
    stop([Before], First),
    Second = start(Options#{version := ~"1.1.0"}),
    Feed = events(?FEED, Second),
    {~"hello", #{~"points" := [Times | _]}} = next_event(Feed),
    true = length(Times) >= 2,
    #{} = shown(fun(#{~"marks" := Marks}) ->
        [~"The server started again: version 1.1.0 in place of 1.0.0."]
            =:= [Words || #{~"kind" := ~"deploy", ~"words" := Words} <- Marks]
    end, Feed),
    stop([Feed], Second).

%% The first snapshot for which a fun is true.
shown(Is, Feed) ->
    case next_event(Feed) of
        {~"snapshot", Snapshot} ->
            case Is(Snapshot) of
                true -> Snapshot;
                false -> shown(Is, Feed)
            end;
        _ ->
            shown(Is, Feed)
    end.

shown_request(Feed) ->
    case next_event(Feed) of
        {~"snapshot", #{~"requests" := Requests}} ->
            case [Request || #{~"target" := ~"echo"} = Request <- Requests] of
                [Request | _] -> Request;
                [] -> shown_request(Feed)
            end;
        _ ->
            shown_request(Feed)
    end.

echo() -> #{name => ~"echo", handler => fun(_, _) -> ~"done" end}.

wait() -> #{name => ~"wait", handler => fun(_, _) -> waiting() end}.

%% In the stack of its call.
waiting() ->
    receive never -> ~"done" end.

%% A server waits for the streams of its connections before it kills them.
stop(Open, Server) ->
    ok = lists:foreach(fun erlmcp_test_http:close/1, Open),
    erlmcp_test_http:stop(Server).

until(Holds) ->
    case Holds() of
        true -> ok;
        false -> receive after 20 -> until(Holds) end
    end.
