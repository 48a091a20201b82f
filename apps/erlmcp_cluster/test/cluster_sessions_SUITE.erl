-module(cluster_sessions_SUITE).
-moduledoc """
Three nodes with one server, each a process of the operating system with a listener of its own: any
of them serves any request of a session, and a session survives the death of its node. The cases
follow each other in one cluster, which the module of `docs/cluster.md` has made.
""".

-behaviour(erlmcp_server).

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([the_page_is_true/1, every_node_serves_a_session/1, a_call_reports_through_another_node/1,
         a_question_is_answered_through_another_node/1, a_stream_is_open_at_another_node/1,
         requests_of_http2_are_passed_on/1, a_cancelled_call_ends_at_its_home/1,
         a_batch_is_answered_by_its_home/1, an_ended_session_is_unknown_everywhere/1,
         forged_ids_are_unknown/1, what_is_passed_on_is_bounded/1,
         requests_of_later_releases_are_unsupported/1,
         ended_sessions_are_bounded/1, old_facts_are_deleted/1, a_session_survives_its_home/1,
         a_minority_refuses/1, a_home_that_stood_still_has_lost_its_sessions/1]).
%% On the nodes.
-export([run_page/2, serve/0, server/0, tools/0, resources/0, call_tool/3, read_resource/3,
         finish/2, is_waiting/1, counted/1, of_incarnation/1]).

-import(erlmcp_test_http, [call/4, connect/1, head/1, event/1, close/1, response/1]).

-define(SERVER, ~"cluster_sessions_SUITE").
-define(REVISION, ~"2025-11-25").
-define(TEXT, ~"test://text").

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [the_page_is_true, every_node_serves_a_session, a_call_reports_through_another_node,
     a_question_is_answered_through_another_node, a_stream_is_open_at_another_node,
     requests_of_http2_are_passed_on, a_cancelled_call_ends_at_its_home,
     a_batch_is_answered_by_its_home, an_ended_session_is_unknown_everywhere,
     forged_ids_are_unknown, what_is_passed_on_is_bounded,
     requests_of_later_releases_are_unsupported,
     ended_sessions_are_bounded, old_facts_are_deleted, a_session_survives_its_home,
     a_minority_refuses, a_home_that_stood_still_has_lost_its_sessions].

init_per_suite(Config) ->
    {ok, _} = application:ensure_all_started(gun),
    Members = erlmcp_test_cluster:start(Config, #{}),
    Code = page_module(),
    Test = self(),
    %% All at the same time, since they wait for each other.
    _ = [spawn_link(fun() ->
             {ok, Port} = erlmcp_test_cluster:call(Member, ?MODULE, run_page, [Code, Member],
                                                   90_000),
             Test ! {page, Member, #{port => Port, url => ~"http:"}}
         end) || Member <- Members],
    Joined = [receive {page, Member, Page} -> Member#{page => Page} end || Member <- Members],
    {_, _} = erlmcp_test_cluster:await(fun() -> see_each_other(Members) end, 10_000),
    [{members, [served(Member) || Member <- Joined]} | Config].

%% The first module of the page.
page_module() ->
    {ok, Page} = file:read_file(filename:join([erlmcp_test_page:root(), "docs", "cluster.md"])),
    [_, Behind] = binary:split(Page, ~"```erl\n"),
    [Source, _] = binary:split(Behind, ~"```\n"),
    {ok, Tokens, _} = erl_scan:string(unicode:characters_to_list(Source)),
    {ok, clustered, Code} = compile:forms(forms(Tokens, []), []),
    Code.

forms([], []) ->
    [];
forms([{dot, _} = Dot | Tokens], Form) ->
    {ok, Parsed} = erl_parse:parse_form(lists:reverse([Dot | Form])),
    [Parsed | forms(Tokens, [])];
forms([Token | Tokens], Form) ->
    forms(Tokens, [Token | Form]).

end_per_suite(Config) ->
    lists:foreach(fun erlmcp_test_cluster:stop/1, members(Config)).

%% Any node serves any request.

the_page_is_true(Config) ->
    [#{node := A} | _] = Pages = [Member#{http := Page}
                                  || #{page := Page} = Member <- members(Config)],
    Session = initialize(hd(Pages)),
    Home = atom_to_binary(A),
    [Home = text(tool(Page, Session, ~"where", #{})) || Page <- Pages].

every_node_serves_a_session(Config) ->
    [A, B, C] = Members = members(Config),
    Session = initialize(A),
    %% The session is where it was opened, and its calls run there.
    Home = atom_to_binary(node_of(A)),
    [Home = text(tool(Member, Session, ~"where", #{})) || Member <- Members],
    [#{~"result" := #{~"tools" := [_ | _]}} = result(Member, Session, ~"tools/list", #{})
     || Member <- Members],
    [#{~"result" := #{~"contents" := [#{~"text" := ~"some text"}]}} =
         result(Member, Session, ~"resources/read", #{uri => ?TEXT}) || Member <- Members],
    %% A request that is refused at the home has the same answer everywhere.
    [Same] = lists:usort([result(Member, Session, ~"tools/call", #{name => ~"none"})
                          || Member <- Members]),
    #{~"error" := #{~"code" := -32602}} = Same,
    [{202, ~""} = notify(Member, Session, ~"notifications/roots/list_changed", #{})
     || Member <- Members],
    %% Each request is counted once, where it was handled.
    [Before, _, _] = [counted_at(Member) || Member <- Members],
    [#{~"result" := _} = result(Member, Session, ~"ping", #{}) || Member <- [B, C]],
    [After, _, _] = [counted_at(Member) || Member <- Members],
    2 = After - Before.

a_call_reports_through_another_node(Config) ->
    [A, B, C] = members(Config),
    Session = initialize(A),
    #{~"result" := #{}} = result(C, Session, ~"logging/setLevel", #{level => ~"error"}),
    Socket = start_tool(B, Session, 1, ~"reports", #{}),
    {200, #{~"content-type" := ~"text/event-stream"}} = head(Socket),
    {event, #{~"method" := ~"notifications/progress"}} = event(Socket),
    %% `info` is below the level.
    {event, #{~"method" := ~"notifications/message", ~"params" := #{~"level" := ~"error"}}} =
        event(Socket),
    {event, #{~"id" := 1, ~"result" := _}} = event(Socket),
    fin = event(Socket),
    ok = close(Socket).

a_question_is_answered_through_another_node(Config) ->
    [A, B, C] = members(Config),
    Session = initialize(A, #{elicitation => #{}}),
    Socket = start_tool(B, Session, 1, ~"asks", #{}),
    {200, _} = head(Socket),
    {event, #{~"method" := ~"elicitation/create", ~"id" := Asked}} = event(Socket),
    Answer = #{jsonrpc => ~"2.0", id => Asked,
               result => #{action => accept, content => #{name => ~"Ada"}}},
    #{status := 202} = posted(C, Session, Answer),
    {event, #{~"id" := 1, ~"result" := Result}} = event(Socket),
    ~"Ada" = text(#{~"result" => Result}),
    fin = event(Socket),
    ok = close(Socket).

a_stream_is_open_at_another_node(Config) ->
    [A, B, C] = members(Config),
    Session = initialize(A),
    #{~"result" := #{}} = result(C, Session, ~"resources/subscribe", #{uri => ?TEXT}),
    {Socket, First} = stream(B, Session, none),
    %% A session has one.
    {Second, {409, _}} = erlmcp_test_http:get_stream(http(C), Session),
    ok = close(Second),
    ok = updated(A),
    {event, Id, #{~"method" := ~"notifications/resources/updated"}} = next(Socket),
    %% It goes on at another node, after the event that the client names.
    ok = close(Socket),
    {Resumed, none} = stream(C, Session, First),
    {event, Id, #{~"method" := ~"notifications/resources/updated"}} = next(Resumed),
    #{~"result" := #{}} = result(B, Session, ~"resources/unsubscribe", #{uri => ?TEXT}),
    ok = updated(A),
    #{status := 204} = delete(B, Session),
    fin = next(Resumed),
    ok = close(Resumed).

%% Some at once on one connection, of which one is given up.
requests_of_http2_are_passed_on(Config) ->
    [A, B, _] = members(Config),
    {Id, _} = Session = initialize(A),
    #{port := Port} = http(B),
    {ok, Connection} = gun:open("127.0.0.1", Port, #{protocols => [http2]}),
    {ok, http2} = gun:await_up(Connection, 60_000),
    Post = fun(Tool, Arguments) ->
        {Headers, Body} = erlmcp_test_http:message(~"tools/call",
                                                   #{name => Tool, arguments => Arguments},
                                                   #{session => Session, id => 1}),
        gun:post(Connection, ~"/mcp", Headers, Body)
    end,
    Text = fun(Stream) ->
        {response, nofin, 200, _} = gun:await(Connection, Stream, 60_000),
        {ok, Body} = gun:await_body(Connection, Stream, 60_000),
        text(json:decode(Body))
    end,
    GivenUp = Post(~"wait", #{as => ~"given up"}),
    Waits = Post(~"wait", #{as => ~"waits"}),
    [ok = waiting(A, Name) || Name <- [~"given up", ~"waits"]],
    ~"hello" = Text(Post(~"echo", #{text => ~"hello"})),
    ok = gun:cancel(Connection, GivenUp),
    ok = finish_at(A, ~"waits", ~"done"),
    ~"done" = Text(Waits),
    ok = finish_at(A, ~"given up", ~"done"),
    Deleted = gun:delete(Connection, ~"/mcp", [{~"mcp-session-id", Id}]),
    {response, fin, 204, _} = gun:await(Connection, Deleted, 60_000),
    ok = gun:close(Connection).

a_cancelled_call_ends_at_its_home(Config) ->
    [A, B, C] = members(Config),
    Session = initialize(A),
    Socket = start_tool(B, Session, 7, ~"wait", #{as => ~"cancelled"}),
    ok = waiting(A, ~"cancelled"),
    {202, _} = notify(C, Session, ~"notifications/cancelled", #{requestId => 7}),
    #{status := 200, messages := []} = response(Socket),
    ok = close(Socket),
    {true, _} = erlmcp_test_cluster:await(fun() -> not is_waiting_at(A, ~"cancelled") end, 5_000).

a_batch_is_answered_by_its_home(Config) ->
    [A, B, _] = members(Config),
    Session = initialize(A, #{}, ~"2025-03-26"),
    Batch = [#{jsonrpc => ~"2.0", id => 1, method => ~"ping"},
             #{jsonrpc => ~"2.0", id => 2, method => ~"tools/call",
               params => #{name => ~"where", arguments => #{}}},
             #{jsonrpc => ~"2.0", id => 3, method => ~"resources/subscribe",
               params => #{uri => ?TEXT}}],
    #{status := 200, messages := [Answers]} = posted(B, Session, Batch),
    [1, 2, 3] = lists:sort([Id || #{~"id" := Id, ~"result" := _} <- Answers]).

an_ended_session_is_unknown_everywhere(Config) ->
    [A, B, _] = Members = members(Config),
    Session = initialize(A),
    ~"hello" = text(tool(B, Session, ~"echo", #{text => ~"hello"})),
    #{status := 204} = delete(B, Session),
    [#{status := 404} = posted(Member, Session, #{jsonrpc => ~"2.0", id => 1, method => ~"ping"})
     || Member <- Members],
    [#{status := 404} = delete(Member, Session) || Member <- Members].

%% A forged, altered or foreign id is answered as one of a session that never was.
forged_ids_are_unknown(Config) ->
    [A, B, C] = members(Config),
    {Id, _} = initialize(A),
    Ping = #{jsonrpc => ~"2.0", id => 1, method => ~"ping"},
    #{status := 404, body := Unknown} = posted(A, {~"no-such-session", ?REVISION}, Ping),
    _ = rand:seed(exsss, {1, 2, 3}),
    [#{status := 404, body := Unknown} = posted(Member, {altered(Id), ?REVISION}, Ping)
     || _ <- lists:seq(1, 50), Member <- [A, B, C]],
    %% Of the same cluster, but of another server.
    {ok, Foreign} = erlmcp_test_cluster:call(A, erlmcp_cluster_sessions, certify,
                                             [#{principal => anonymous, revision => '2025-11-25',
                                                client_info => #{}, client_capabilities => #{},
                                                log_level => 6}, ~"another server"]),
    #{status := 404, body := Unknown} = posted(B, {Foreign, ?REVISION}, Ping),
    %% Of a life of a node that nobody has heard of after two seconds.
    {ok, Unseen} = erlmcp_test_cluster:call(A, ?MODULE, of_incarnation, [1_000]),
    #{status := 404, body := Unknown} = posted(B, {Unseen, ?REVISION}, Ping).

altered(Id) ->
    At = rand:uniform(byte_size(Id)) - 1,
    <<Before:At/binary, Character, Behind/binary>> = Id,
    Others = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_" -- [Character],
    <<Before/binary, (lists:nth(rand:uniform(63), Others)), Behind/binary>>.

%% As many requests of a node are on their way to other nodes as may be in flight there, with as
%% many bytes as may wait.
what_is_passed_on_is_bounded(Config) ->
    [A, B, _] = members(Config),
    Session = initialize(A),
    Names = [integer_to_binary(N) || N <- lists:seq(1, 20)],
    Sockets = [start_tool(B, Session, Name, ~"wait", #{as => Name}) || Name <- Names],
    [ok = waiting(A, Name) || Name <- Names],
    #{~"error" := #{~"data" := #{~"refusal" := 1005}}} = tool(B, Session, ~"where", #{}),
    [ok = finish_at(A, Name, ~"done") || Name <- Names],
    [~"done" = text(hd(maps:get(messages, response(Socket)))) || Socket <- Sockets],
    lists:foreach(fun(Socket) -> ok = close(Socket) end, Sockets),
    _ = text(tool(B, Session, ~"where", #{})),
    Half = binary:copy(~"x", 300_000),
    Large = start_tool(B, Session, 1, ~"wait", #{as => ~"large", text => Half}),
    ok = waiting(A, ~"large"),
    #{~"error" := #{~"data" := #{~"refusal" := 1005}}} =
        tool(B, Session, ~"echo", #{text => Half}),
    ok = finish_at(A, ~"large", ~"done"),
    ~"done" = text(hd(maps:get(messages, response(Large)))),
    ok = close(Large),
    Half = text(tool(B, Session, ~"echo", #{text => Half})).

requests_of_later_releases_are_unsupported(_) ->
    {Pid, Monitor} = spawn_monitor(erlmcp_session_request, visit, [{visit, 2, of_later_releases}]),
    receive {'DOWN', Monitor, process, Pid, {erlmcp_visited, unsupported}} -> ok end.

%% The store has room for so many sessions that were ended, and none is ended that might come back.
ended_sessions_are_bounded(Config) ->
    [A, B, _] = members(Config),
    Session = initialize(A),
    Kept = fun(Count) ->
        {ok, _} = erlmcp_test_cluster:call(A, ?MODULE, counted, [Count])
    end,
    Kept(200_000),
    #{status := 503, messages := [#{~"error" := #{~"data" := #{~"refusal" := 1089}}}]} =
        delete(B, Session),
    ~"hello" = text(tool(B, Session, ~"echo", #{text => ~"hello"})),
    Kept(199_999),
    #{status := 204} = delete(B, Session),
    Kept(0).

%% What the store has of sessions that their home has ended otherwise.
old_facts_are_deleted(Config) ->
    [A, _, C] = members(Config),
    Facts = fun() -> erlmcp_test_cluster:call(C, erlmcp_cluster_store, sessions, []) end,
    {Id, _} = Session = initialize(A),
    #{~"result" := #{}} = result(C, Session, ~"logging/setLevel", #{level => ~"error"}),
    Name = erlmcp_cluster_session_id:name(Id),
    {_, _} = erlmcp_test_cluster:await(fun() -> is_map_key(Name, Facts()) end, 5_000),
    %% They stay as long as the session, and for as long as an ended one may have been used.
    ok = erlmcp_test_cluster:call(A, erlmcp_cluster_sessions, sweep, [3_600]),
    #{status := 204} = delete(A, Session),
    ok = erlmcp_test_cluster:call(A, erlmcp_cluster_sessions, sweep, [1_700]),
    ok = erlmcp_test_cluster:call(C, erlmcp_cluster_sessions, sweep, [3_600]),
    true = is_map_key(Name, Facts()),
    ok = erlmcp_test_cluster:call(A, erlmcp_cluster_sessions, sweep, [3_600]),
    {_, _} = erlmcp_test_cluster:await(fun() -> not is_map_key(Name, Facts()) end, 5_000).

%% A node may die.

a_session_survives_its_home(Config) ->
    [A, B, C] = members(Config),
    Session = initialize(A),
    Page = initialize(A#{http := map_get(page, A)}),
    Ended = initialize(A),
    Unfinished = initialize(A),
    %% Its declaration is in the store before the client has the id.
    Large = initialize(A, #{experimental => #{~"com.example/large" =>
                                                  #{text => binary:copy(~"x", 2_000)}}}),
    #{status := 204} = delete(C, Ended),
    #{~"result" := #{}} = result(B, Session, ~"logging/setLevel", #{level => ~"error"}),
    #{~"result" := #{}} = result(B, Session, ~"resources/subscribe", #{uri => ?TEXT}),
    {Stream, Last} = stream(B, Session, none),
    Once = start_tool(B, Unfinished, 1, ~"wait", #{as => ~"once"}),
    Twice = start_tool(C, Session, 2, ~"wait_safely", #{as => ~"twice"}),
    [ok = waiting(A, Name) || Name <- [~"once", ~"twice"]],
    ok = erlmcp_test_cluster:kill(A),
    %% What may run twice waits for the next home, and what comes now does, too: for two seconds. It
    %% may take longer if others of this machine have the processors.
    {Safely, Took} = erlmcp_test_cluster:await(fun() -> where_safely(C, Session) end, 10_000),
    ct:pal("served again after ~b ms", [Took]),
    true = atom_to_binary(node_of(A))
        =/= text(tool(B#{http := map_get(page, B)}, Page, ~"where", #{})),
    Home = hd([Member || #{node := Node} = Member <- [B, C], atom_to_binary(Node) =:= Safely]),
    _ = Took > 1_900 orelse begin
        ok = waiting(Home, ~"twice"),
        ok = finish_at(Home, ~"twice", ~"done"),
        #{status := 200, messages := [#{~"id" := 2, ~"result" := _}]} = response(Twice)
    end,
    %% What may have run, and must not run again, has one error.
    #{status := 200, messages := [#{~"id" := 1, ~"error" := #{~"data" := Data}}]} = response(Once),
    #{~"refusal" := 1080, ~"retryAfterMs" := 1000} = Data,
    [ok = close(Socket) || Socket <- [Once, Twice]],
    %% The stream ends. It goes on from now, and first tells of all that may have changed.
    fin = next(Stream),
    ok = close(Stream),
    {Again, none} = stream(C, Session, Last),
    {place, _} = next(Again),
    Told = [begin
                {event, _, #{~"method" := Method} = Message} = next(Again),
                {Method, maps:get(~"params", Message, #{})}
            end || _ <- lists:seq(1, 4)],
    Lists = [{<<"notifications/", List/binary, "/list_changed">>, #{}}
             || List <- [~"prompts", ~"resources", ~"tools"]],
    [] = [{~"notifications/resources/updated", #{~"uri" => ?TEXT}} | Lists] -- Told,
    ok = updated(Home),
    {event, _, #{~"method" := ~"notifications/resources/updated"}} = next(Again),
    ok = close(Again),
    Socket = start_tool(B, Session, 3, ~"reports", #{}),
    {200, _} = head(Socket),
    [~"notifications/progress", ~"notifications/message", result] = reported(Socket),
    ok = close(Socket),
    %% What was ended stays so, for both that may be its home now.
    [#{status := 404} = posted(Member, Ended, #{jsonrpc => ~"2.0", id => 1, method => ~"ping"})
     || Member <- [B, C]],
    #{~"result" := _} = result(B, Unfinished, ~"ping", #{}),
    [~"1" = text(tool(Member, Large, ~"experiments", #{})) || Member <- [B, C]].

where_safely(Member, Session) ->
    case tool(Member, Session, ~"where_safely", #{}) of
        #{~"result" := _} = Result -> text(Result);
        #{~"error" := #{~"data" := #{~"refusal" := 1080}}} -> false
    end.

reported(Socket) ->
    case event(Socket) of
        {event, #{~"method" := Method}} -> [Method | reported(Socket)];
        {event, #{~"result" := _}} -> [result | reported(Socket)];
        fin -> []
    end.

%% Two of three are left, so that each of them alone is a minority.
a_minority_refuses(Config) ->
    [_, B, C] = members(Config),
    Session = initialize(B),
    Ping = #{jsonrpc => ~"2.0", id => 1, method => ~"ping"},
    ok = erlmcp_test_cluster:cut([B], [C]),
    Cut = erlang:monotonic_time(millisecond),
    [begin
         {_, _} = erlmcp_test_cluster:await(fun() -> refusal(posted(Member, Session, Ping)) =:= 1080
                                            end, 1_500),
         #{status := 503} = delete(Member, Session),
         #{status := 503, messages := [#{~"error" := #{~"data" := #{~"refusal" := 1080}}}]} =
             erlmcp_test_http:initialize(http(Member), ?REVISION, #{}),
         %% What needs no session goes on.
         #{status := 200} = erlmcp_test_http:call(http(Member), ~"tools/list", #{})
     end || Member <- [B, C]],
    ct:pal("both refuse ~b ms after the cut", [erlang:monotonic_time(millisecond) - Cut]),
    ok = erlmcp_test_cluster:heal([B], [C]),
    [{_, _} = erlmcp_test_cluster:await(fun() -> refusal(posted(Member, Session, Ping)) =:= none
                                        end, 30_000) || Member <- [B, C]].

a_home_that_stood_still_has_lost_its_sessions(Config) ->
    [A, B, C] = members(Config),
    %% One has not heard yet of the node that comes back, when a client of it asks there.
    Heard = fun(Suspend) ->
        ok = erlmcp_test_cluster:call(B, sys, Suspend, [erlmcp_cluster_members])
    end,
    Heard(suspend),
    Back = revived(A),
    try
        Early = start_tool(B, initialize(Back), 1, ~"echo", #{text => ~"hello"}),
        Heard(resume),
        #{status := 200, messages := [Answer]} = response(Early),
        ~"hello" = text(Answer),
        ok = close(Early),
        Session = initialize(C),
        {Old, _} = stream(C, Session, none),
        ok = erlmcp_test_cluster:pause(C),
        %% The home does not answer, and is declared dead.
        {Home, _} = erlmcp_test_cluster:await(fun() -> where_safely(B, Session) end, 10_000),
        false = Home =:= atom_to_binary(node_of(C)),
        #{~"result" := #{}} = result(B, Session, ~"logging/setLevel", #{level => ~"error"}),
        ok = erlmcp_test_cluster:resume(C),
        %% It does not serve the session any more, not even once, and its stream ends.
        {_, _} = erlmcp_test_cluster:await(fun() ->
            case where_safely(C, Session) of
                false -> false;
                Home -> true
            end
        end, 10_000),
        fin = next(Old),
        ok = close(Old)
    after
        erlmcp_test_cluster:stop(Back)
    end.

revived(Member) ->
    Back = erlmcp_test_cluster:revive(Member),
    [ok] = erlmcp_test_cluster:join([Back]),
    served(Back).

refusal(#{messages := [#{~"error" := #{~"data" := #{~"refusal" := Number}}}]}) -> Number;
refusal(#{status := 200}) -> none.

%% The nodes.

members(Config) -> proplists:get_value(members, Config).

node_of(#{node := Node}) -> Node.

see_each_other(Members) ->
    [3, 3, 3] =:= [map_size(maps:get(alive, erlmcp_test_cluster:status(Member)))
                   || Member <- Members].

served(Member) ->
    {ok, Port} = erlmcp_test_cluster:call(Member, ?MODULE, serve, []),
    Member#{http => #{port => Port, url => ~"http://127.0.0.1"}}.

http(#{http := Http}) -> Http.

%% A server ends with the process that has started it.
-doc false.
run_page(Code, #{options := #{data_dir := Folder, discovery := {seeds, Nodes}}}) ->
    true = os:putenv("ERLMCP_SECRET", os:getenv("ERLMCP_TEST_SECRET")),
    {module, clustered} = code:load_binary(clustered, "clustered.erl", Code),
    Test = self(),
    _ = spawn(fun() ->
        {ok, Server} = clustered:start(Nodes, Folder, 0),
        [#{port := Port}] = erlmcp:listeners(Server),
        Test ! {serves, Port},
        receive after infinity -> ok end
    end),
    receive {serves, Port} -> {ok, Port} after 80_000 -> error(no_server) end.

-doc false.
serve() ->
    Test = self(),
    _ = spawn(fun() ->
        {ok, Server} = erlmcp:start_server(#{
            id => ?SERVER, handler => ?MODULE, cluster => erlmcp_cluster,
            listen => [{http, #{}}],
            limits => #{in_flight => 20, queue => 0, queue_bytes => 500_000, retry_ms => 100}}),
        [#{port := Port}] = erlmcp:listeners(Server),
        Test ! {serves, Port},
        receive after infinity -> ok end
    end),
    receive {serves, Port} -> {ok, Port} after 10_000 -> error(no_server) end.

-doc false.
server() ->
    #{name => ~"test", version => ~"1"}.

-doc false.
tools() ->
    [#{name => Name} || Name <- [~"echo", ~"where", ~"wait", ~"reports", ~"asks", ~"experiments"]]
        ++ [#{name => Name, annotations => #{readOnlyHint => true}}
            || Name <- [~"where_safely", ~"wait_safely"]].

-doc false.
resources() ->
    [#{uri => ?TEXT, name => ~"text"}].

-doc false.
call_tool(~"echo", #{~"text" := Text}, _) ->
    Text;
call_tool(Where, _, _) when Where =:= ~"where"; Where =:= ~"where_safely" ->
    atom_to_binary(node());
call_tool(Wait, #{~"as" := Name}, _) when Wait =:= ~"wait"; Wait =:= ~"wait_safely" ->
    true = register(waiting_as(Name), self()),
    receive {finish, Return} -> Return end;
call_tool(~"reports", _, Context) ->
    ok = erlmcp:progress(Context, 1, #{}),
    ok = erlmcp:log(Context, info, ~"below"),
    ok = erlmcp:log(Context, error, ~"above"),
    ~"done";
call_tool(~"asks", _, #{input := #{~"it" := #{~"content" := #{~"name" := Name}}}}) ->
    Name;
call_tool(~"asks", _, _) ->
    {input_required, #{~"it" => erlmcp_input:elicit(~"Who?", #{name => string})}};
call_tool(~"experiments", _, #{client_capabilities := #{~"experimental" := Experimental}}) ->
    integer_to_binary(map_size(Experimental)).

-doc false.
read_resource(_, _, _) ->
    ~"some text".

waiting_as(Name) ->
    binary_to_atom(<<"waiting as ", Name/binary>>).

-doc false.
is_waiting(Name) ->
    is_pid(whereis(waiting_as(Name))).

-doc false.
finish(Name, Return) ->
    waiting_as(Name) ! {finish, Return},
    ok.

-doc false.
of_incarnation(Number) ->
    erlmcp_cluster_session_id:new(#{principal => anonymous, revision => '2025-11-25',
                                    client_info => #{}, client_capabilities => #{},
                                    log_level => 6}, ?SERVER,
                                  erlmcp_cluster_session_id:nonce(Number, 0, 1), 0,
                                  erlmcp_cluster_secret:sealing_key(session)).

%% Sets how many sessions the store has something of, as the node counts them.
-doc false.
counted(Count) ->
    {atomics:put(erlmcp_cluster_sessions:kept(), 1, Count), Count}.

counted_at(Member) ->
    #{requests := Count} = erlmcp_test_cluster:call(Member, erlmcp, metrics, [?SERVER]),
    Count.

updated(Member) ->
    erlmcp_test_cluster:call(Member, erlmcp, resource_updated, [?SERVER, ?TEXT]).

is_waiting_at(Member, Name) ->
    erlmcp_test_cluster:call(Member, ?MODULE, is_waiting, [Name]).

waiting(Member, Name) ->
    {true, _} = erlmcp_test_cluster:await(fun() -> is_waiting_at(Member, Name) end, 10_000),
    ok.

finish_at(Member, Name, Return) ->
    erlmcp_test_cluster:call(Member, ?MODULE, finish, [Name, Return]).

%% Clients.

initialize(Member) ->
    initialize(Member, #{}).

initialize(Member, Capabilities) ->
    initialize(Member, Capabilities, ?REVISION).

initialize(Member, Capabilities, Revision) ->
    #{status := 200, headers := #{~"mcp-session-id" := Id}} =
        call(http(Member), ~"initialize",
             #{protocolVersion => Revision, capabilities => Capabilities,
               clientInfo => #{name => ~"suite", version => ~"1"}},
             #{session => {~"", Revision},
               headers => #{~"mcp-session-id" => none, ~"mcp-protocol-version" => none}}),
    {Id, Revision}.

result(Member, Session, Method, Params) ->
    #{status := 200, messages := [Message]} =
        call(http(Member), Method, Params, #{session => Session}),
    Message.

tool(Member, Session, Name, Arguments) ->
    result(Member, Session, ~"tools/call", #{name => Name, arguments => Arguments}).

text(#{~"result" := #{~"content" := [#{~"text" := Text}]}}) -> Text.

notify(Member, Session, Method, Params) ->
    #{status := Status, body := Body} = call(http(Member), Method, Params,
                                             #{session => Session, id => none}),
    {Status, Body}.

posted(Member, {Id, Revision}, Message) ->
    Version = [{~"mcp-protocol-version", Revision} || Revision >= ~"2025-06-18"],
    erlmcp_test_http:post(http(Member), [{~"content-type", ~"application/json"},
                                         {~"accept", ~"application/json, text/event-stream"},
                                         {~"mcp-session-id", Id} | Version],
                          iolist_to_binary(json:encode(Message))).

start_tool(Member, Session, Id, Name, Arguments) ->
    Socket = connect(http(Member)),
    {Headers, Body} = erlmcp_test_http:message(~"tools/call",
                                               #{name => Name, arguments => Arguments,
                                                 '_meta' => #{progressToken => 1}},
                                               #{session => Session, id => Id}),
    ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
    Socket.

delete(Member, Session) ->
    erlmcp_test_http:delete(http(Member), Session).

%% The session's stream, and the id of its first event.
stream(Member, Session, LastEventId) ->
    {Socket, {200, _}} =
        erlmcp_test_http:get_stream(http(Member), Session,
                                    [{~"accept", ~"text/event-stream"}
                                     | [{~"last-event-id", LastEventId}
                                        || LastEventId =/= none]]),
    case LastEventId of
        none ->
            {place, Id} = next(Socket),
            {Socket, Id};
        _ ->
            {Socket, none}
    end.

%% The next event, or the next place to resume from.
next(Socket) ->
    case erlmcp_test_http:chunk(Socket) of
        ~"" -> fin;
        <<":", _/binary>> -> next(Socket);
        Chunk ->
            case erlmcp_test_http:read_events(Chunk) of
                [#{id := Id, data := ~""}] -> {place, Id};
                [#{id := Id, data := Data}] -> {event, Id, json:decode(Data)}
            end
    end.
