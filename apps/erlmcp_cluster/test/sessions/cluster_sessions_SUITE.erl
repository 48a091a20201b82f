-module(cluster_sessions_SUITE).
-moduledoc """
Three nodes with one server, each a process of the operating system with a listener of its own: any
of them serves any request of a session, and a session survives the death of its node. The cases
follow each other in one cluster, which the module of `docs/cluster.md` has made.
""".

-behaviour(erlmcp_server).

-include_lib("stdlib/include/assert.hrl").

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([the_page_is_true/1, every_node_serves_a_session/1, a_call_reports_through_another_node/1,
         a_question_is_answered_through_another_node/1, a_stream_is_open_at_another_node/1,
         a_home_is_looked_up_once/1, inheritances_share_their_catch_ups/1,
         a_killed_watch_ends_no_request/1,
         requests_of_http2_are_passed_on/1, no_secret_is_shown/1,
         a_cancelled_call_ends_at_its_home/1, a_batch_is_answered_by_its_home/1,
         an_ended_session_is_unknown_everywhere/1,
         forged_ids_are_unknown/1, what_is_passed_on_is_bounded/1,
         requests_of_later_releases_are_unsupported/1,
         facts_of_sessions_are_bounded/1, facts_of_one_client_are_bounded/1,
         large_facts_count_more/1, a_refused_session_stores_nothing/1,
         a_session_that_made_room_says_so/1,
         changes_of_sessions_take_turns/1, a_refused_subscription_ends_no_other/1,
         few_wait_for_their_turn/1, one_client_leaves_turns_to_others/1,
         turns_of_killed_requests_come_back/1, old_facts_are_deleted/1,
         a_server_may_end_meanwhile/1,
         a_sweep_without_a_majority_ends/1, a_sweep_delays_no_stop/1,
         a_sweep_ends_with_its_incarnation/1,
         a_call_may_find_its_session_gone_elsewhere/1,
         a_request_waits_for_a_lease_that_lapsed/1,
         a_lease_that_begins_again_has_no_sessions/1,
         a_session_that_has_ended_is_not_inherited/1, a_session_is_inherited_once/1,
         one_that_ends_a_session_is_told_so/1, an_answer_of_an_earlier_home_is_dropped/1,
         a_node_that_stands_still_holds_no_request_up/1,
         a_session_survives_its_home/1, a_minority_refuses/1,
         a_home_that_stood_still_has_lost_its_sessions/1]).
%% On the nodes.
-export([run_page/2, server/0, tools/0, resources/0, call_tool/3, read_resource/3, leave_room/1,
         leave_turns/1, leave_share/2, share/0, who_shows/1, passed_on/0, of_incarnation/1,
         begin_to_inherit/1, begin_to_end/1, begin_to_open/0, go_on/1, end_sessions/2,
         begin_to_sweep/1, sweep_on/1]).
-export([end_all_while_it_ends/1]).
-export([count_searches/0, search/3, searches/0, inherit_at_once/2, inherited/0]).
%% A cluster whose sessions are opened, inherited, and ended, in two steps.
-export([incarnation/2, open_session/2, find_session/3, inherit_session/3, change_session/4]).

-import(erlmcp_test_cluster, [incarnation/1]).
-import(erlmcp_test_cluster_node, [serve/2, answered/1, get_stream/3, await_waiting/2, is_waiting/2,
                                   finish/3, hold_sessions/2, await_held/2, release/2]).
-import(erlmcp_test_http, [call/4, connect/1, head/1, event/1, close/1, response/1]).

-define(SERVER, ~"cluster_sessions_SUITE").
-define(REVISION, ~"2025-11-25").
-define(TEXT, ~"test://text").

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [the_page_is_true, every_node_serves_a_session, a_call_reports_through_another_node,
     a_question_is_answered_through_another_node, a_stream_is_open_at_another_node,
     a_home_is_looked_up_once, inheritances_share_their_catch_ups,
     a_killed_watch_ends_no_request,
     requests_of_http2_are_passed_on, no_secret_is_shown, a_cancelled_call_ends_at_its_home,
     a_batch_is_answered_by_its_home, an_ended_session_is_unknown_everywhere,
     forged_ids_are_unknown, what_is_passed_on_is_bounded,
     requests_of_later_releases_are_unsupported,
     facts_of_sessions_are_bounded, facts_of_one_client_are_bounded,
     large_facts_count_more, a_refused_session_stores_nothing, a_session_that_made_room_says_so,
     changes_of_sessions_take_turns, a_refused_subscription_ends_no_other, few_wait_for_their_turn,
     one_client_leaves_turns_to_others, turns_of_killed_requests_come_back, old_facts_are_deleted,
     a_server_may_end_meanwhile,
     a_sweep_without_a_majority_ends, a_sweep_delays_no_stop, a_sweep_ends_with_its_incarnation,
     a_call_may_find_its_session_gone_elsewhere, a_request_waits_for_a_lease_that_lapsed,
     a_lease_that_begins_again_has_no_sessions,
     a_session_that_has_ended_is_not_inherited, a_session_is_inherited_once,
     one_that_ends_a_session_is_told_so, an_answer_of_an_earlier_home_is_dropped,
     a_node_that_stands_still_holds_no_request_up,
     a_session_survives_its_home, a_minority_refuses,
     a_home_that_stood_still_has_lost_its_sessions].

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
    {_, _} = erlmcp_test_cluster:await(fun() -> see_each_other(Members) end, 30_000),
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

%% To open an id and to walk along the deaths costs more than the rest of what is passed on.
a_home_is_looked_up_once(Config) ->
    [A, B, _] = members(Config),
    Session = initialize(A),
    ok = erlmcp_test_cluster:call(B, ?MODULE, count_searches, []),
    Searches = fun() -> erlmcp_test_cluster:call(B, ?MODULE, searches, []) end,
    %% A busy machine may let a lease end for a moment, and then a request looks again.
    true = lists:any(fun(_) ->
        Before = Searches(),
        #{~"result" := _} = result(B, Session, ~"ping", #{}),
        Searches() - Before =:= 1
    end, [1, 2, 3]).

%% When a home dies, the first request of each of its sessions asks what the cluster keeps of it.
%% That is before any limit, and a client may send as many as it likes.
inheritances_share_their_catch_ups(Config) ->
    [A | _] = Members = members(Config),
    {Id, _} = initialize(A),
    {Node, _} = erlmcp_test_cluster:await(fun() ->
        Leads = erlmcp_test_cluster:call(A, erlmcp_cluster_store, leader, []),
        Leads =/= none andalso Leads
    end, 30_000),
    {[Leader], [Follower | _]} = lists:partition(fun(#{node := Of}) -> Of =:= Node end, Members),
    Queries = fun() ->
        erlmcp_test_cluster:call(Leader, cluster_tasks_SUITE, consistent_queries, [])
    end,
    %% A catch-up that a pause delays by a second is given up.
    [erlmcp_test_pauses:undisturbed(250, fun() ->
         Before = Queries(),
         1_000 = erlmcp_test_cluster:call(Member, ?MODULE, inherit_at_once, [Id, 1_000]),
         Made = Queries() - Before,
         ct:pal("1000 at once at ~p: ~b consistent queries", [node_of(Member), Made]),
         true = Made < 100
     end) || Member <- [Leader, Follower]].

%% How many of so many processes have read what the cluster keeps of a session.
-doc false.
inherit_at_once(Id, Count) ->
    {ok, _, #{cluster := {Module, State}}} = erlmcp_registry:whereis(?SERVER),
    Inherit = fun() -> exit(Module:inherit_session(Id, anonymous, State)) end,
    Monitors = [Monitor || {_, Monitor} <- [spawn_monitor(Inherit) || _ <- lists:seq(1, Count)]],
    length([read || Monitor <- Monitors,
                    {ok, _, []} <- [receive {'DOWN', Monitor, process, _, Read} -> Read end]]).

%% The process that watches the leases, and those of all incarnations with it.
a_killed_watch_ends_no_request(Config) ->
    [A, B, _] = members(Config),
    Session = initialize(A),
    Watch = fun() -> erlmcp_test_cluster:call(B, erlang, whereis, [erlmcp_cluster_members]) end,
    Killed = Watch(),
    true = erlmcp_test_cluster:call(B, erlang, exit, [Killed, kill]),
    {_, _} = erlmcp_test_cluster:await(fun() ->
        is_pid(Watch()) andalso Watch() =/= Killed
            andalso map_size(maps:get(alive, erlmcp_test_cluster:status(B))) =:= 3
    end, 30_000),
    Home = atom_to_binary(node_of(A)),
    %% This one must not run twice.
    Home = text(tool_once(B, Session, ~"where")).

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
    [_ = await_waiting(A, Name) || Name <- [~"given up", ~"waits"]],
    ~"hello" = Text(Post(~"echo", #{text => ~"hello"})),
    ok = gun:cancel(Connection, GivenUp),
    ok = finish(A, ~"waits", ~"done"),
    ~"done" = Text(Waits),
    ok = finish(A, ~"given up", ~"done"),
    Deleted = gun:delete(Connection, ~"/mcp", [{~"mcp-session-id", Id}]),
    {response, fin, 204, _} = gun:await(Connection, Deleted, 60_000),
    ok = gun:close(Connection).

%% What processes of either node show of themselves, as the report of a crash does.
no_secret_is_shown(Config) ->
    [A, B, _] = members(Config),
    {Id, _} = Session = initialize(A),
    Waiting = start_tool(B, Session, 1, ~"wait", #{as => ~"planted"}),
    _ = await_waiting(A, ~"planted"),
    {Asked, []} = erlmcp_test_cluster:call(B, ?MODULE, who_shows, [[~"planted", Id]]),
    true = lists:member(erlmcp_session_forward, Asked),
    {AtHome, []} = erlmcp_test_cluster:call(A, ?MODULE, who_shows, [[~"planted", Id]]),
    true = lists:member(erlmcp_session, AtHome),
    ok = finish(A, ~"planted", ~"done"),
    #{status := 200} = response(Waiting),
    ok = close(Waiting).

a_cancelled_call_ends_at_its_home(Config) ->
    [A, B, C] = members(Config),
    Session = initialize(A),
    Socket = start_tool(B, Session, 7, ~"wait", #{as => ~"cancelled"}),
    _ = await_waiting(A, ~"cancelled"),
    {202, _} = notify(C, Session, ~"notifications/cancelled", #{requestId => 7}),
    #{status := 200, messages := []} = response(Socket),
    ok = close(Socket),
    {true, _} = erlmcp_test_cluster:await(fun() -> not is_waiting(A, ~"cancelled") end, 30_000).

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
    Running = [start_tool(Member, Session, 1, ~"wait", #{as => Name})
               || {Member, Name} <- [{A, ~"ends here"}, {B, ~"ends there"}]],
    [_ = await_waiting(A, Name) || Name <- [~"ends here", ~"ends there"]],
    #{status := 204} = delete(B, Session),
    %% A call that ends with it is told so: to try again would be of no use.
    [#{messages := [#{~"id" := 1, ~"error" := #{~"code" := 1016}}]} = response(Socket)
     || Socket <- Running],
    [ok = close(Socket) || Socket <- Running],
    [#{status := 404} = posted(Member, Session, #{jsonrpc => ~"2.0", id => 1, method => ~"ping"})
     || Member <- Members],
    [#{status := 404} = delete(Member, Session) || Member <- Members],
    %% Of clients that end a session at the same time, one has ended it.
    Test = self(),
    [begin
         Same = initialize(A),
         _ = [spawn_link(fun() ->
                  #{status := Status} = delete(Member, Same),
                  Test ! {deleted, Status}
              end) || Member <- Members],
         [204, 404, 404] = lists:sort([receive {deleted, Status} -> Status end || _ <- Members])
     end || _ <- lists:seq(1, 10)].

%% A forged, altered or foreign id is answered as one of a session that never was: 10,000 of them on
%% connections to all nodes.
forged_ids_are_unknown(Config) ->
    [A, B, C] = Members = members(Config),
    {Id, _} = initialize(A),
    {Other, _} = initialize(B),
    _ = rand:seed(exsss, {1, 2, 3}),
    Sockets = [connect(http(Member)) || Member <- Members],
    [Unknown] = lists:usort([pinged(Socket, ~"no-such-session") || Socket <- Sockets]),
    {<<"HTTP/1.1 404 ", _/binary>>, _} = Unknown,
    Forged = [flipped(Id) || _ <- lists:seq(1, 4_000)]
        ++ [altered(Id) || _ <- lists:seq(1, 2_000)]
        ++ [cut(Id) || _ <- lists:seq(1, 1_000)]
        ++ [spliced(Id, Other) || _ <- lists:seq(1, 1_000)]
        ++ [of_another_secret() || _ <- lists:seq(1, 1_900)]
        %% Of the same cluster, but of another server, and of another principal.
        ++ [certified(C, anonymous, ~"another server") || _ <- lists:seq(1, 50)]
        ++ [certified(C, ~"somebody", ?SERVER) || _ <- lists:seq(1, 50)],
    10_000 = length(Forged),
    ok = forged(Forged, Sockets, Unknown),
    lists:foreach(fun(Socket) -> ok = close(Socket) end, Sockets),
    %% The sessions themselves are there.
    [#{~"result" := _} = result(Member, {Known, ?REVISION}, ~"ping", #{})
     || Member <- Members, Known <- [Id, Other]],
    %% Of a life of a node that nobody has heard of after two seconds.
    Ping = #{jsonrpc => ~"2.0", id => 1, method => ~"ping"},
    #{status := 404, body := Body} = posted(A, {~"no-such-session", ?REVISION}, Ping),
    {ok, Unseen} = erlmcp_test_cluster:call(A, ?MODULE, of_incarnation, [1_000]),
    #{status := 404, body := Body} = posted(B, {Unseen, ?REVISION}, Ping).

forged([], _, _) ->
    ok;
forged([Id | Ids], [Socket | Sockets], Unknown) ->
    Unknown = pinged(Socket, Id),
    forged(Ids, Sockets ++ [Socket], Unknown).

%% Returns the whole response, but for its date. A busy machine may let a lease end for a moment.
pinged(Socket, Id) ->
    {Response, _} = erlmcp_test_cluster:await(fun() ->
        Any = pinged_once(Socket, Id),
        case binary:match(Any, ~'"refusal":1080') of
            nomatch -> Any;
            _ -> false
        end
    end, 30_000),
    [Before, Dated] = binary:split(Response, ~"\r\ndate: "),
    [_, Behind] = binary:split(Dated, ~"\r\n"),
    {Before, Behind}.

pinged_once(Socket, Id) ->
    Body = ~'{"jsonrpc":"2.0","id":1,"method":"ping"}',
    ok = gen_tcp:send(Socket, [~"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\n",
                               ~"accept: application/json, text/event-stream\r\n",
                               ~"content-type: application/json\r\n",
                               ~"mcp-protocol-version: ", ?REVISION, ~"\r\n",
                               ~"mcp-session-id: ", Id, ~"\r\n",
                               ~"content-length: ", integer_to_list(byte_size(Body)),
                               ~"\r\n\r\n", Body]),
    {ok, Response} = gen_tcp:recv(Socket, 0, 30_000),
    Response.

%% One bit of what the id encodes.
flipped(Id) ->
    Bytes = base64:decode(Id, #{mode => urlsafe, padding => false}),
    At = rand:uniform(bit_size(Bytes)) - 1,
    <<Before:At/bits, Bit:1, Behind/bits>> = Bytes,
    base64:encode(<<Before/bits, (1 - Bit):1, Behind/bits>>, #{mode => urlsafe, padding => false}).

altered(Id) ->
    At = rand:uniform(byte_size(Id)) - 1,
    <<Before:At/binary, Character, Behind/binary>> = Id,
    Others = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_" -- [Character],
    <<Before/binary, (lists:nth(rand:uniform(63), Others)), Behind/binary>>.

%% Without its end or its beginning, or with more behind it.
cut(Id) ->
    At = rand:uniform(byte_size(Id) - 1),
    <<Before:At/binary, Behind/binary>> = Id,
    lists:nth(rand:uniform(3), [Before, Behind, <<Id/binary, Before/binary>>]).

spliced(Id, Other) ->
    %% Behind the nonce, whose first bytes both may have.
    At = 19 + rand:uniform(byte_size(Id) - 28),
    <<Before:At/binary, _/binary>> = Id,
    <<_:At/binary, Behind/binary>> = Other,
    <<Before/binary, Behind/binary>>.

of_another_secret() ->
    Today = erlang:system_time(second) div 86_400,
    {ok, Id} = erlmcp_cluster_session_id:new(session(anonymous), server_of_ids(),
                                             erlmcp_cluster_session_id:nonce(1, 1, 1),
                                             {Today, rand:bytes(32)}),
    Id.

certified(Member, Principal, Server) ->
    Arguments = [session(Principal), erlmcp_cluster_session_id:server(Server)],
    {Id, _} = erlmcp_test_cluster:await(fun() ->
        case erlmcp_test_cluster:call(Member, erlmcp_cluster_sessions, certify, Arguments) of
            {ok, New, _} -> New;
            no_lease -> false
        end
    end, 30_000),
    Id.

session(Principal) ->
    #{principal => Principal, revision => '2025-11-25', client_info => #{},
      client_capabilities => #{}, log_level => 6}.

%% As many requests of a node are on their way to other nodes as may be in flight there, with as
%% many bytes as may wait. One client has half of them, and leaves the others for others. One of
%% these asks its client, whose answer still has room.
what_is_passed_on_is_bounded(Config) ->
    [A, #{http := Http} = B, _] = members(Config),
    Session = initialize(A, #{elicitation => #{}}),
    Asking = start_tool(B, Session, 0, ~"asks", #{}),
    {200, _} = head(Asking),
    {event, #{~"method" := ~"elicitation/create", ~"id" := Asked}} = event(Asking),
    Names = [integer_to_binary(N) || N <- lists:seq(1, 19)],
    Clients = [B, B#{http := Http#{from => {127, 0, 0, 9}}}],
    Sockets = lists:append([begin
        Started = [start_tool(Client, Session, Name, ~"wait", #{as => Name}) || Name <- Own],
        [_ = await_waiting(A, Name) || Name <- Own],
        #{~"error" := #{~"data" := #{~"refusal" := 1005}}} = tool(Client, Session, ~"where", #{}),
        Started
    end || {Client, Own} <- lists:zip(Clients, tuple_to_list(lists:split(9, Names)))]),
    Answer = #{action => accept, content => #{name => ~"Ada"}},
    #{status := 202} = posted(B, Session, #{jsonrpc => ~"2.0", id => Asked, result => Answer}),
    {event, #{~"id" := 0, ~"result" := Result}} = event(Asking),
    ~"Ada" = text(#{~"result" => Result}),
    fin = event(Asking),
    ok = close(Asking),
    [ok = finish(A, Name, ~"done") || Name <- Names],
    [~"done" = text(hd(maps:get(messages, response(Socket)))) || Socket <- Sockets],
    lists:foreach(fun(Socket) -> ok = close(Socket) end, Sockets),
    _ = text(tool(B, Session, ~"where", #{})),
    Half = binary:copy(~"x", 300_000),
    Large = start_tool(B, Session, 1, ~"wait", #{as => ~"large", text => Half}),
    _ = await_waiting(A, ~"large"),
    #{~"error" := #{~"data" := #{~"refusal" := 1005}}} =
        tool(B, Session, ~"echo", #{text => Half}),
    ok = finish(A, ~"large", ~"done"),
    ~"done" = text(hd(maps:get(messages, response(Large)))),
    ok = close(Large),
    Half = text(tool(B, Session, ~"echo", #{text => Half})).

requests_of_later_releases_are_unsupported(_) ->
    {Pid, Monitor} = spawn_monitor(erlmcp_session_request, visit, [{visit, 2, of_later_releases}]),
    receive {'DOWN', Monitor, process, Pid, {erlmcp_visited, unsupported}} -> ok end.

%% The store has room for so many facts of sessions, and none is ended that might come back. A
%% subscription is one, and room for it is there again when it ends.
facts_of_sessions_are_bounded(Config) ->
    [A, B, _] = members(Config),
    Session = initialize(A),
    Watch = fun(Method) ->
        #{~"result" := #{}} =
            result(A, Session, <<"resources/", Method/binary>>, #{uri => ?TEXT})
    end,
    Room = fun(Room) -> erlmcp_test_cluster:call(A, ?MODULE, leave_room, [Room]) end,
    Refused = fun() ->
        #{status := 503, messages := [#{~"error" := #{~"data" := #{~"refusal" := 1089}}}]} =
            delete(B, Session)
    end,
    Room(0),
    Refused(),
    ~"hello" = text(tool(B, Session, ~"echo", #{text => ~"hello"})),
    Room(2),
    #{~"result" := #{}} = result(A, Session, ~"logging/setLevel", #{level => ~"error"}),
    [begin Watch(~"subscribe"), Watch(~"unsubscribe") end || _ <- lists:seq(1, 3)],
    Watch(~"subscribe"),
    ok = erlmcp_test_cluster:call(A, erlmcp_cluster_sessions, sweep, [0]),
    Refused(),
    Watch(~"unsubscribe"),
    #{status := 204} = delete(B, Session),
    erlmcp_test_cluster:call(A, ?MODULE, leave_room, [all]).

%% A client has at most half of the room, whatever it does, and leaves as much for the others.
facts_of_one_client_are_bounded(Config) ->
    [#{http := Http} = A, B, _] = members(Config),
    Session = initialize(A),
    Level = fun(Level) -> result(B, Session, ~"logging/setLevel", #{level => Level}) end,
    Subscribe = fun() -> result(A, Session, ~"resources/subscribe", #{uri => ?TEXT}) end,
    %% It sweeps each minute, too.
    ok = erlmcp_test_cluster:call(A, sys, suspend, [erlmcp_cluster_sessions]),
    ok = erlmcp_test_cluster:call(A, ?MODULE, leave_share, [1, 0]),
    #{~"result" := #{}} = Level(~"error"),
    #{~"error" := #{~"message" := Message, ~"data" := #{~"refusal" := 1089}}} = Subscribe(),
    {_, _} = binary:match(Message, ~"of this client or of all"),
    %% What replaces something needs no room.
    #{~"result" := #{}} = Level(~"info"),
    #{status := 503} = delete(A, Session),
    Other = A#{http := Http#{from => {127, 0, 0, 9}}},
    #{status := 204} = delete(Other, initialize(Other)),
    %% The next sweep counts what there is.
    ok = erlmcp_test_cluster:call(A, erlmcp_cluster_sessions, sweep, [0]),
    Share = fun() -> erlmcp_test_cluster:call(A, ?MODULE, share, []) end,
    Counted = Share(),
    #{~"result" := #{}} = Subscribe(),
    Counted = Share() - 1,
    #{~"result" := #{}} = result(A, Session, ~"resources/unsubscribe", #{uri => ?TEXT}),
    Counted = Share(),
    #{status := 204} = delete(A, Session),
    Counted = Share() - 1,
    ok = erlmcp_test_cluster:call(A, erlmcp_cluster_sessions, sweep, [0]),
    Counted = Share() - 1,
    ok = erlmcp_test_cluster:call(A, sys, resume, [erlmcp_cluster_sessions]).

%% A declaration counts one for each kibibyte, for its client and for all.
large_facts_count_more(Config) ->
    [A | _] = members(Config),
    ok = erlmcp_test_cluster:call(A, sys, suspend, [erlmcp_cluster_sessions]),
    Leave = fun(Room, Others) ->
        ok = erlmcp_test_cluster:call(A, ?MODULE, leave_share, [Room, Others])
    end,
    Share = fun() -> erlmcp_test_cluster:call(A, ?MODULE, share, []) end,
    [begin
         Leave(9, Others),
         #{status := 503} = Refused = declared(A, 10_000),
         1089 = refusal(Refused),
         Kept = Share() + 9,
         %% What fits into the id is not stored.
         #{status := 200} = declared(A, 10),
         #{status := 200} = declared(A, 1_000),
         Kept = Share() + 7,
         Leave(10, Others),
         #{status := 200} = declared(A, 10_000),
         Kept = Share()
     end || {Others, Kept} <- [{0, 100_000}, {180_000, 10_000}]],
    %% The next sweep counts the same.
    ok = erlmcp_test_cluster:call(A, erlmcp_cluster_sessions, sweep, [0]),
    Before = Share(),
    #{status := 200} = declared(A, 4_000),
    5 = Share() - Before,
    ok = erlmcp_test_cluster:call(A, erlmcp_cluster_sessions, sweep, [0]),
    5 = Share() - Before,
    ok = erlmcp_test_cluster:call(A, sys, resume, [erlmcp_cluster_sessions]).

%% Otherwise a client could fill the store with what it declares, without one session.
a_refused_session_stores_nothing(Config) ->
    [A | _] = members(Config),
    {_, [#{port := Port}]} = serve(A, #{id => few, name => ~"few", version => ~"1",
                                        cluster => erlmcp_cluster, listen => [{http, #{}}],
                                        limits => #{sessions => 1}}),
    Few = A#{http => #{port => Port, url => ~"http://127.0.0.1"}},
    #{~"result" := #{}} = result(Few, initialize(Few), ~"ping", #{}),
    Facts = fun() -> erlmcp_test_cluster:call(A, erlmcp_cluster_store, session_facts, []) end,
    Before = Facts(),
    1060 = refusal(declared(Few, 10_000)),
    Before = Facts(),
    ok = erlmcp_test_cluster:call(A, erlmcp, stop_server, [few]).

%% Another session of the same client ends it before it is open.
a_session_that_made_room_says_so(Config) ->
    [A | _] = members(Config),
    {Message, _} = erlmcp_test_cluster:await(fun() ->
        Opening = erlmcp_test_cluster:call(A, ?MODULE, begin_to_open, []),
        {error, Refusal} = erlmcp_test_cluster:call(A, ?MODULE, go_on, [Opening]),
        case erlmcp_refusal:number(Refusal) of
            %% The lease of a busy machine has ended meanwhile.
            1080 -> false;
            1060 -> erlmcp_refusal:message(Refusal)
        end
    end, 30_000),
    ~"too many open sessions: this one has made room for another one; try again" = Message.

%% The response to a client that opens a session, and declares about so many bytes.
declared(Member, Bytes) ->
    Large = #{~"com.example/large" => #{text => binary:copy(~"x", Bytes)}},
    erlmcp_test_http:call(http(Member), ~"initialize",
                          #{protocolVersion => ?REVISION, capabilities => #{experimental => Large},
                            clientInfo => #{name => ~"suite", version => ~"1"}},
                          #{session => {~"", ?REVISION},
                            headers => #{~"mcp-session-id" => none,
                                         ~"mcp-protocol-version" => none}}).

%% Leases are renewed in the log that has the changes. A flood of changes must not delay them.
changes_of_sessions_take_turns(Config) ->
    [A, B, _] = members(Config),
    Session = initialize(A),
    Level = fun() -> posted(B, Session, #{jsonrpc => ~"2.0", id => 1, method => ~"logging/setLevel",
                                          params => #{level => ~"error"}})
            end,
    Leave = fun(Count) -> ok = erlmcp_test_cluster:call(A, ?MODULE, leave_turns, [Count]) end,
    Leave(0),
    #{status := 200} = Refused = Level(),
    1080 = refusal(Refused),
    ~"hello" = text(tool(B, Session, ~"echo", #{text => ~"hello"})),
    Leave(1),
    none = refusal(Level()),
    Leave(64).

%% A client may subscribe to what it has subscribed to before. If that cannot be stored now, the
%% earlier subscription stays. A new one that is refused does not begin.
a_refused_subscription_ends_no_other(Config) ->
    [A, B, _] = members(Config),
    [Subscribed, Refused] = [initialize(A) || _ <- [1, 2]],
    Subscribe = fun(Session) ->
        posted(B, Session, #{jsonrpc => ~"2.0", id => 1, method => ~"resources/subscribe",
                             params => #{uri => ?TEXT}})
    end,
    none = refusal(Subscribe(Subscribed)),
    ok = erlmcp_test_cluster:call(A, ?MODULE, leave_turns, [0]),
    [1080, 1080] = [refusal(Subscribe(Session)) || Session <- [Subscribed, Refused]],
    ok = erlmcp_test_cluster:call(A, ?MODULE, leave_turns, [64]),
    [{Socket, _}, {Other, _}] = [stream(B, Session, none) || Session <- [Subscribed, Refused]],
    ok = updated(A),
    {event, _, #{~"method" := ~"notifications/resources/updated"}} = next(Socket),
    [#{status := 204} = delete(B, Session) || Session <- [Subscribed, Refused]],
    [fin, fin] = [next(Stream) || Stream <- [Socket, Other]],
    [ok = close(Stream) || Stream <- [Socket, Other]].

%% The last of 501 that wait has no turn, even when there is room for it a moment later. Nor has a
%% client of which as many wait as could still wait.
few_wait_for_their_turn(_) ->
    Turns = erlmcp_cluster_turns:new(),
    Waiting = fun(Client, Count) ->
        ok = counters:put(Turns, 1, 64),
        ok = counters:put(Turns, 1_026, Count),
        {Pid, Monitor} = spawn_monitor(fun() ->
            exit(erlmcp_cluster_turns:run(Client, Turns, fun() -> done end))
        end),
        {_, _} = erlmcp_test_cluster:await(fun() ->
            counters:get(Turns, 1_026) > Count orelse process_info(Pid, status) =:= undefined
        end, 30_000),
        ok = counters:put(Turns, 1, 0),
        receive {'DOWN', Monitor, process, Pid, Result} -> Result end
    end,
    %% It waits for a second.
    _ = erlmcp_test_pauses:undisturbed(250, fun() -> done = Waiting(ada, 499) end),
    no_turn = Waiting(ada, 500),
    ok = counters:put(Turns, 1_027 + erlang:phash2(ada, 1024), 250),
    no_turn = Waiting(ada, 250),
    _ = erlmcp_test_pauses:undisturbed(250, fun() -> done = Waiting(ada, 249) end),
    _ = erlmcp_test_pauses:undisturbed(250, fun() -> done = Waiting(bob, 250) end).

%% However slow the store is. A client has as many turns as are free: half of them, if it is alone.
one_client_leaves_turns_to_others(_) ->
    Turns = erlmcp_cluster_turns:new(),
    Test = self(),
    Begin = fun(Client) ->
        {Pid, Monitor} = spawn_monitor(fun() ->
            exit(erlmcp_cluster_turns:run(Client, Turns, fun() ->
                Test ! {under_way, self()},
                receive go_on -> done end
            end))
        end),
        receive
            {under_way, Change} -> {Monitor, Change};
            {'DOWN', Monitor, process, Pid, no_turn} -> no_turn
        end
    end,
    Changes = [Begin(ada) || _ <- lists:seq(1, 32)],
    no_turn = Begin(ada),
    Others = [Begin(bob) || _ <- lists:seq(1, 16)],
    [Change ! go_on || {_, Change} <- Changes ++ Others],
    [receive {'DOWN', Monitor, process, _, done} -> ok end || {Monitor, _} <- Changes ++ Others],
    0 = counters:get(Turns, 1).

%% A client may go away while its change is under way, and its process with it.
turns_of_killed_requests_come_back(_) ->
    Turns = erlmcp_cluster_turns:new(),
    Test = self(),
    Killed = spawn(fun() ->
        erlmcp_cluster_turns:run(ada, Turns, fun() ->
            Test ! {under_way, self()},
            receive go_on -> ok end
        end)
    end),
    Change = receive {under_way, Process} -> Process end,
    1 = counters:get(Turns, 1),
    true = exit(Killed, kill),
    Change ! go_on,
    {_, _} = erlmcp_test_cluster:await(fun() -> counters:get(Turns, 1) =:= 0 end, 30_000).

%% What the store has of sessions that their home has ended otherwise.
old_facts_are_deleted(Config) ->
    [A, _, C] = members(Config),
    Facts = fun() -> erlmcp_test_cluster:call(C, erlmcp_cluster_store, sessions, []) end,
    {Id, _} = Session = initialize(A),
    #{~"result" := #{}} = result(C, Session, ~"logging/setLevel", #{level => ~"error"}),
    Name = erlmcp_cluster_session_id:name(Id),
    {_, _} = erlmcp_test_cluster:await(fun() -> is_map_key(Name, Facts()) end, 30_000),
    %% They stay as long as the session, and for as long as an ended one may have been used.
    ok = erlmcp_test_cluster:call(A, erlmcp_cluster_sessions, sweep, [3_600]),
    #{status := 204} = delete(A, Session),
    ok = erlmcp_test_cluster:call(A, erlmcp_cluster_sessions, sweep, [1_700]),
    ok = erlmcp_test_cluster:call(C, erlmcp_cluster_sessions, sweep, [3_600]),
    true = is_map_key(Name, Facts()),
    %% A sweep ends if the store does not answer.
    {_, _} = erlmcp_test_cluster:await(fun() ->
        ok = erlmcp_test_cluster:call(A, erlmcp_cluster_sessions, sweep, [3_600]),
        not is_map_key(Name, Facts())
    end, 30_000).

%% A node that ends its sessions has found the server when that ends with its tables. An error for
%% another reason is not taken for that.
a_server_may_end_meanwhile(Config) ->
    [A, _, _] = members(Config),
    Lease = fun() -> erlmcp_test_cluster:call(A, erlang, whereis, [erlmcp_cluster_lease]) end,
    Before = Lease(),
    _ = serve(A, #{id => ending, handler => ?MODULE, cluster => erlmcp_cluster,
                   listen => [{http, #{}}]}),
    ok = erlmcp_test_cluster:call(A, ?MODULE, end_all_while_it_ends, [ending]),
    ok = erlmcp_test_cluster:call(A, erlmcp, stop_server, [ending]),
    Before = Lease().

-doc false.
end_all_while_it_ends(Id) ->
    {ok, _, #{sessions := Sessions, subscriptions := Subscriptions}} = erlmcp_registry:whereis(Id),
    true = ets:delete(Subscriptions),
    ?assertError(badarg, erlmcp_cluster_sessions:leave()),
    _ = [true = ets:delete(Table) || Table <- tl(tuple_to_list(Sessions))],
    ok = erlmcp_cluster_sessions:leave().

%% Each deletion would wait for a second. The lease is still valid when the sweep begins.
a_sweep_without_a_majority_ends(Config) ->
    [A, B, C] = members(Config),
    Sessions = [initialize(A) || _ <- lists:seq(1, 5)],
    [#{status := 204} = delete(A, Session) || Session <- Sessions],
    Store = fun(Do) ->
        [ok = erlmcp_test_cluster:call(Member, sys, Do, [erlmcp_cluster]) || Member <- [B, C]]
    end,
    Store(suspend),
    Pauses = erlmcp_test_pauses:start(),
    {Took, ok} = timer:tc(fun() ->
        erlmcp_test_cluster:call(A, erlmcp_cluster_sessions, sweep, [3_600])
    end, millisecond),
    Paused = erlmcp_test_pauses:total_ms(Pauses),
    ok = erlmcp_test_pauses:stop(Pauses),
    Store(resume),
    ct:pal("~b ms, with pauses of ~b ms", [Took, Paused]),
    true = Took - Paused < 3_000,
    {_, _} = erlmcp_test_cluster:await(fun() ->
        lists:all(fun(Member) ->
            is_integer(erlmcp_test_cluster:call(Member, erlmcp_cluster_lease, incarnation, []))
        end, [A, B, C])
    end, 30_000).

%% A node that stops has seconds. What is left is deleted by others.
a_sweep_delays_no_stop(Config) ->
    [A | _] = members(Config),
    Facts = fun() -> erlmcp_test_cluster:call(A, erlmcp_cluster_store, session_facts, []) end,
    %% They are older than any session.
    ok = erlmcp_test_cluster:call(A, ?MODULE, end_sessions, [2_000, -3_600]),
    Before = Facts(),
    %% A sweep ends if the store does not answer.
    {_, _} = erlmcp_test_cluster:await(fun() ->
        _ = erlmcp_test_cluster:call(A, erlang, send, [erlmcp_cluster_sessions, sweep]),
        Facts() < Before
    end, 30_000),
    ok = erlmcp_test_cluster:call(A, supervisor, terminate_child,
                                  [erlmcp_cluster_member_sup, erlmcp_cluster_sessions]),
    Left = Facts(),
    {ok, _} = erlmcp_test_cluster:call(A, supervisor, restart_child,
                                       [erlmcp_cluster_member_sup, erlmcp_cluster_sessions]),
    ct:pal("~b of ~b facts are left", [Left, Before]),
    true = Left > Before - 2_000,
    {_, _} = erlmcp_test_cluster:await(fun() ->
        ok = erlmcp_test_cluster:call(A, erlmcp_cluster_sessions, sweep, [0]),
        Facts() =< Before - 2_000
    end, 60_000).

%% It stood still after it had chosen what to delete. Others may have inherited such sessions, and
%% have ended them.
a_sweep_ends_with_its_incarnation(Config) ->
    [A, B, C] = members(Config),
    Facts = fun() -> erlmcp_test_cluster:call(A, erlmcp_cluster_store, session_facts, []) end,
    ok = erlmcp_test_cluster:call(A, ?MODULE, end_sessions, [1_000, 0]),
    Before = Facts(),
    Sweep = erlmcp_test_cluster:call(A, ?MODULE, begin_to_sweep, [3_600]),
    ok = lose_lease(A, [A, B, C]),
    {_, _} = erlmcp_test_cluster:await(fun() ->
        is_integer(erlmcp_test_cluster:call(A, erlmcp_cluster_lease, incarnation, []))
    end, 30_000),
    Left = Facts(),
    ct:pal("~b of ~b facts are left", [Left, Before]),
    true = Left > Before - 1_000,
    ok = erlmcp_test_cluster:call(A, ?MODULE, sweep_on, [Sweep]),
    %% One deletion was under way.
    true = Facts() >= Left - 1.

%% A node may die.

%% The home loses its sessions between two steps of a request. A client that is told of the end of
%% its session would open another one.
a_call_may_find_its_session_gone_elsewhere(Config) ->
    [_, B, C] = members(Config),
    Session = initialize(C),
    Held = hold_sessions(C, ?SERVER),
    Began = start_tool(C, Session, 1, ~"where", #{}),
    ok = await_held(C, Held),
    Incarnation = incarnation(C),
    %% Its next incarnation begins after the death, so it inherits nothing.
    ok = erlmcp_test_cluster:call(C, sys, suspend, [erlmcp_cluster_lease]),
    {_, _} = erlmcp_test_cluster:await(fun() ->
        case erlmcp_test_cluster:call(B, erlmcp_cluster_store, leases, [consistency]) of
            {ok, #{Incarnation := {alive, _, _} = Lease}} ->
                erlmcp_test_cluster:call(B, erlmcp_cluster_store, end_lease,
                                         [Incarnation, Lease, dead]) =:= ok;
            %% On a busy machine the nodes have declared it dead before.
            {ok, _} ->
                true;
            {error, _} ->
                false
        end
    end, 30_000),
    {_, _} = erlmcp_test_cluster:await(fun() ->
        lists:member(Incarnation, maps:get(deaths, erlmcp_test_cluster:status(B)))
    end, 30_000),
    ok = erlmcp_test_cluster:call(C, sys, resume, [erlmcp_cluster_lease]),
    {_, _} = erlmcp_test_cluster:await(fun() ->
        not lists:member(erlmcp_test_cluster:call(C, erlmcp_cluster_lease, incarnation, []),
                         [Incarnation, none])
    end, 30_000),
    ok = release(C, Held),
    #{status := 200} = Answer = response(Began),
    1080 = refusal(Answer),
    ok = close(Began),
    Home = text(tool(B, Session, ~"where_safely", #{})),
    false = Home =:= atom_to_binary(node_of(C)).

%% A node that is late to renew its lease soon has it again, and answers then. If it has none after
%% 300 milliseconds, it refuses.
a_request_waits_for_a_lease_that_lapsed(Config) ->
    [_, _, C] = members(Config),
    %% A busy machine may take longer than that.
    true = lists:any(fun(_) ->
        Session = initialize(C),
        ok = lapse(C),
        Began = erlang:monotonic_time(millisecond),
        Asked = start_tool(C, Session, 1, ~"where_safely", #{}),
        {_, _} = erlmcp_test_cluster:await(fun() ->
            erlmcp_test_cluster:call(C, ?MODULE, passed_on, []) > 0
                orelse erlang:monotonic_time(millisecond) - Began > 1_000
        end, 30_000),
        ok = erlmcp_test_cluster:call(C, sys, resume, [erlmcp_cluster_lease]),
        Answer = response(Asked),
        ok = close(Asked),
        refusal(Answer) =:= none
    end, lists:seq(1, 5)),
    Session = initialize(C),
    ok = lapse(C),
    {Microseconds, Refused} = timer:tc(fun() ->
        posted(C, Session, #{jsonrpc => ~"2.0", id => 1, method => ~"ping"})
    end),
    ok = erlmcp_test_cluster:call(C, sys, resume, [erlmcp_cluster_lease]),
    {1080, true} = {refusal(Refused), Microseconds >= 300_000}.

%% Its lease ends, since it is not renewed.
lapse(Member) ->
    ok = erlmcp_test_cluster:call(Member, sys, suspend, [erlmcp_cluster_lease]),
    {_, _} = erlmcp_test_cluster:await(fun() ->
        not erlmcp_test_cluster:call(Member, erlmcp_cluster_lease, is_valid, [])
    end, 30_000),
    ok.

%% The process of the lease was killed, or the store with it. The next one has another lease, and
%% the one before ends: its sessions have other homes.
a_lease_that_begins_again_has_no_sessions(Config) ->
    [_, B, C] = members(Config),
    Sessions = [initialize(C) || _ <- lists:seq(1, 30)],
    ok = lose_lease(C, [B, C]),
    Homes = [home_safely(B, Session) || Session <- Sessions],
    Homes = [home_safely(C, Session) || Session <- Sessions],
    %% The survivors share them.
    true = length(lists:usort(Homes)) > 1.

%% A request has read what the cluster keeps of the session, and another one ends the session.
a_session_that_has_ended_is_not_inherited(Config) ->
    [A, B, C] = Members = members(Config),
    {Id, _} = Session = initialize(B),
    ok = lose_lease(B, Members),
    Home = home_of(Id, C, Members),
    Inheriting = erlmcp_test_cluster:call(Home, ?MODULE, begin_to_inherit, [Id]),
    #{status := 204} = delete(A, Session),
    unknown = erlmcp_test_cluster:call(Home, ?MODULE, go_on, [Inheriting]),
    [#{status := 404} = posted(Member, Session, #{jsonrpc => ~"2.0", id => 1, method => ~"ping"})
     || Member <- Members].

%% Two requests have read what the cluster keeps of the session. It counts once.
a_session_is_inherited_once(Config) ->
    [A, B, _] = Members = members(Config),
    {Id, _} = Session = initialize(A),
    ok = lose_lease(A, Members),
    Home = home_of(Id, B, Members),
    Before = erlmcp_test_cluster:call(Home, ?MODULE, inherited, []),
    Inheriting = [erlmcp_test_cluster:call(Home, ?MODULE, begin_to_inherit, [Id]) || _ <- [1, 2]],
    [ok, ok] = [erlmcp_test_cluster:call(Home, ?MODULE, go_on, [Pid]) || Pid <- Inheriting],
    1 = erlmcp_test_cluster:call(Home, ?MODULE, inherited, []) - Before,
    #{status := 200} = posted(B, Session, #{jsonrpc => ~"2.0", id => 1, method => ~"ping"}),
    #{status := 204} = delete(B, Session).

%% How many sessions this node has inherited.
-doc false.
inherited() ->
    {ok, _, #{meter := Meter}} = erlmcp_registry:whereis(?SERVER),
    #{inherited := Count} = erlmcp_meter:in_cluster(Meter),
    Count.

%% The home only stood still. It ends its sessions, and their calls with an error, when the request
%% runs at the next home.
an_answer_of_an_earlier_home_is_dropped(Config) ->
    [A | _] = Members = members(Config),
    {Node, _} = erlmcp_test_cluster:await(fun() ->
        Leads = erlmcp_test_cluster:call(A, erlmcp_cluster_store, leader, []),
        Leads =/= none andalso Leads
    end, 30_000),
    %% Without the leader, a request might give up before there is a next home.
    {[Leader], [Still, Other]} = lists:partition(fun(#{node := Of}) -> Of =:= Node end, Members),
    Incarnation = incarnation(Still),
    Session = initialize(Still),
    Asked = start_tool(Other, Session, 1, ~"wait_safely", #{as => ~"still"}),
    _ = await_waiting(Still, ~"still"),
    ok = erlmcp_test_cluster:pause(Still),
    {Next, Runs} = try
        {Home, _} = erlmcp_test_cluster:await(fun() -> where_safely(Leader, Session) end, 30_000),
        [At] = [Member || #{node := Of} = Member <- Members, atom_to_binary(Of) =:= Home],
        Began = erlang:monotonic_time(millisecond),
        {Is, _} = erlmcp_test_cluster:await(fun() ->
            case is_waiting(At, ~"still") of
                true -> runs;
                %% On a busy machine the request has waited for too long.
                false -> erlang:monotonic_time(millisecond) - Began > 4_000 andalso gave_up
            end
        end, 30_000),
        {At, Is}
    after
        erlmcp_test_cluster:resume(Still)
    end,
    {_, _} = erlmcp_test_cluster:await(fun() ->
        not is_waiting(Still, ~"still") andalso see_each_other(Members)
    end, 30_000),
    true = incarnation(Still) > Incarnation,
    %% What it has sent has arrived, too.
    pong = erlmcp_test_cluster:call(Still, net_adm, ping, [node_of(Other)]),
    case Runs of
        runs ->
            ok = finish(Next, ~"still", ~"done"),
            #{status := 200, messages := [Answer]} = response(Asked),
            ~"done" = text(Answer);
        gave_up ->
            1080 = refusal(response(Asked))
    end,
    ok = close(Asked).

%% A request has inherited the session, and another one has stored its end. The first one sees that,
%% and removes what the second one is about to remove.
one_that_ends_a_session_is_told_so(Config) ->
    [A, B, _] = Members = members(Config),
    {Id, _} = Session = initialize(A),
    ok = lose_lease(A, Members),
    Home = home_of(Id, B, Members),
    Inheriting = erlmcp_test_cluster:call(Home, ?MODULE, begin_to_inherit, [Id]),
    #{status := 200} = posted(B, Session, #{jsonrpc => ~"2.0", id => 1, method => ~"ping"}),
    Ending = erlmcp_test_cluster:call(Home, ?MODULE, begin_to_end, [Id]),
    unknown = erlmcp_test_cluster:call(Home, ?MODULE, go_on, [Inheriting]),
    ok = erlmcp_test_cluster:call(Home, ?MODULE, go_on, [Ending]),
    [#{status := 404} = delete(Member, Session) || Member <- Members].

%% The home of a session, as a node knows it.
home_of(Id, Member, Members) ->
    {ok, _, {Node, _}, _} = erlmcp_test_cluster:call(Member, erlmcp_cluster_sessions, home,
                                                     [Id, server_of_ids(), anonymous]),
    [Home] = [Of || #{node := Other} = Of <- Members, Other =:= Node],
    Home.

%% Kills the process of a node's lease. Awaits that nodes know that its incarnation has ended.
lose_lease(Member, Nodes) ->
    Incarnation = incarnation(Member),
    Lease = erlmcp_test_cluster:call(Member, erlang, whereis, [erlmcp_cluster_lease]),
    true = erlmcp_test_cluster:call(Member, erlang, exit, [Lease, kill]),
    lists:foreach(fun(Node) ->
        erlmcp_test_cluster:await(fun() ->
            %% Its processes start again.
            Deaths = erlmcp_test_cluster:call(Node, erlmcp_cluster_members, deaths, []),
            erlmcp_cluster_deaths:is_dead(Incarnation, Deaths)
        end, 30_000)
    end, Nodes).

home_safely(Member, Session) ->
    {Home, _} = erlmcp_test_cluster:await(fun() -> where_safely(Member, Session) end, 30_000),
    Home.

%% Connections to it have no more room. It has connections of clients, whose session is elsewhere.
a_node_that_stands_still_holds_no_request_up(Config) ->
    [A, B, C] = Members = members(Config),
    Session = initialize(C),
    Other = initialize(A),
    #{~"result" := #{}} = result(B, Other, ~"resources/subscribe", #{uri => ?TEXT}),
    {Stream, _} = stream(C, Other, none),
    Waiting = start_tool(C, Other, 1, ~"wait", #{as => ~"nobody reads"}),
    _ = await_waiting(A, ~"nobody reads"),
    ok = erlmcp_test_cluster:pause(C),
    [ok = erlmcp_test_cluster_node:fill(Member, C) || Member <- [A, B]],
    %% A request of its session goes to the next home.
    {Home, _} = erlmcp_test_cluster:await(fun() -> where_safely(B, Session) end, 30_000),
    false = Home =:= atom_to_binary(node_of(C)),
    %% A session that sends it an event goes on, and a call that sends it an answer ends.
    ok = updated(A),
    #{~"result" := #{}} = result(B, Other, ~"resources/unsubscribe", #{uri => ?TEXT}),
    ok = finish(A, ~"nobody reads", ~"done"),
    {_, _} = erlmcp_test_cluster:await(fun() -> not is_waiting(A, ~"nobody reads") end, 30_000),
    ok = erlmcp_test_cluster:resume(C),
    {_, _} = erlmcp_test_cluster:await(fun() -> see_each_other(Members) end, 30_000),
    lists:foreach(fun erlmcp_test_http:close/1, [Stream, Waiting]).

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
    [_ = await_waiting(A, Name) || Name <- [~"once", ~"twice"]],
    Killed = erlang:monotonic_time(millisecond),
    ok = erlmcp_test_cluster:kill(A),
    %% What may run twice waits for the next home, and what comes now does, too: for two seconds. It
    %% may take longer if others of this machine have the processors.
    {Safely, _} = erlmcp_test_cluster:await(fun() -> where_safely(C, Session) end, 30_000),
    Took = erlang:monotonic_time(millisecond) - Killed,
    ct:pal("served again after ~b ms", [Took]),
    true = atom_to_binary(node_of(A))
        =/= text(tool(B#{http := map_get(page, B)}, Page, ~"where", #{})),
    Home = hd([Member || #{node := Node} = Member <- [B, C], atom_to_binary(Node) =:= Safely]),
    _ = (Took =< 1_500 orelse is_waiting(Home, ~"twice")) andalso begin
        _ = await_waiting(Home, ~"twice"),
        ok = finish(Home, ~"twice", ~"done"),
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
    case tool_once(Member, Session, ~"where_safely") of
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
         {_, _} = erlmcp_test_cluster:in_time(
             fun() -> refusal(posted(Member, Session, Ping)) =:= 1080 end, 3_000),
         #{status := 503} = erlmcp_test_http:delete(http(Member), Session),
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
        Waiting = start_tool(C, Session, 7, ~"wait", #{as => ~"lost"}),
        _ = await_waiting(C, ~"lost"),
        ok = erlmcp_test_cluster:pause(C),
        %% The home does not answer, and is declared dead.
        {Home, _} = erlmcp_test_cluster:await(fun() -> where_safely(B, Session) end, 30_000),
        false = Home =:= atom_to_binary(node_of(C)),
        #{~"result" := #{}} = result(B, Session, ~"logging/setLevel", #{level => ~"error"}),
        ok = erlmcp_test_cluster:resume(C),
        %% It does not serve the session any more, not even once, and its stream ends.
        {_, _} = erlmcp_test_cluster:await(fun() ->
            case where_safely(C, Session) of
                false -> false;
                Home -> true
            end
        end, 30_000),
        fin = next(Old),
        ok = close(Old),
        %% Its client is not left without an answer.
        #{status := 200, messages := [#{~"id" := 7}]} = Lost = response(Waiting),
        1080 = refusal(Lost),
        ok = close(Waiting)
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
    {_, [#{port := Port}]} = serve(Member, #{
        id => ?SERVER, handler => ?MODULE, cluster => erlmcp_cluster, listen => [{http, #{}}],
        limits => #{in_flight => 20, queue => 0, queue_bytes => 500_000, retry_ms => 100}}),
    Member#{http => #{port => Port, url => ~"http://127.0.0.1"}}.

http(#{http := Http}) -> Http.

%% How often a node looks for the home of a session.
-doc false.
count_searches() ->
    ok = persistent_term:put({?MODULE, searches}, counters:new(1, [])),
    erlmcp_bench_wrapping:around(erlmcp_cluster, [{{find_session, 3}, {?MODULE, search, counted}}]).

-doc false.
search(counted, Arguments, Whole) ->
    ok = counters:add(persistent_term:get({?MODULE, searches}), 1, 1),
    apply(Whole, Arguments).

-doc false.
searches() ->
    counters:get(persistent_term:get({?MODULE, searches}), 1).

%% Returns when the process has read what the cluster keeps of the session.
-doc false.
begin_to_inherit(Id) ->
    begin_to(fun(Instance) ->
                 erlmcp_session:inherit(Id, anonymous, {anonymous, ~"test"}, Instance)
             end).

%% Returns when the process has stored the end of the session.
-doc false.
begin_to_end(Id) ->
    begin_to(fun(Instance) -> erlmcp_session_request:delete(Id, anonymous, Instance) end).

%% Returns when the process has made the first change of a new session, which has made room for
%% another session since.
-doc false.
begin_to_open() ->
    Tenant = {anonymous, ~"opens"},
    Session = #{principal => anonymous, revision => '2025-11-25', client_info => #{},
                client_capabilities => #{}, log_level => 6},
    Large = #{~"experimental" => #{~"com.example/large" =>
                                       #{~"text" => binary:copy(~"x", 10_000)}}},
    Opening = begin_to(fun(Instance) ->
        erlmcp_session:open(Session#{client_capabilities := Large}, Tenant, Instance)
    end),
    {ok, _, #{limits := Limits} = Instance} = erlmcp_registry:whereis(?SERVER),
    {Other, _} = erlmcp_test_cluster:await(fun() ->
        case erlmcp_session:open(Session, Tenant,
                                 Instance#{limits := Limits#{sessions_per_principal := 1}}) of
            {ok, Id} -> Id;
            {error, _} -> false
        end
    end, 30_000),
    ok = erlmcp_session:delete(Other, Instance),
    Opening.

begin_to(Do) ->
    {ok, _, #{cluster := {_, State}} = Instance} = erlmcp_registry:whereis(?SERVER),
    Test = self(),
    Pid = spawn(fun() ->
        Done = Do(Instance#{cluster := {?MODULE, {Test, State}}}),
        receive {tell, Asking} -> Asking ! {self(), Done} end
    end),
    receive {Pid, half_done} -> Pid end.

-doc false.
go_on(Pid) ->
    Pid ! go_on,
    Pid ! {tell, self()},
    receive {Pid, Done} -> Done end.

%% Stores the ends of sessions of this node.
-doc false.
end_sessions(Count, Idle) ->
    {Incarnation, _} = erlmcp_test_cluster:await(fun() ->
        case erlmcp_cluster_lease:incarnation() of
            none -> false;
            Number -> Number
        end
    end, 30_000),
    Names = [erlmcp_cluster_session_id:nonce(Incarnation, 0, 1_000_000 + N)
             || N <- lists:seq(1, Count)],
    _ = erlmcp_test_cluster:at_once(fun(Some) ->
        lists:foreach(fun(Name) -> ok = end_session(Name, Idle) end, Some)
    end, parts(50, Names)),
    ok.

%% A pause of the machine may delay a command by a second. Then it may be stored or not.
end_session(Name, Idle) ->
    {_, _} = erlmcp_test_cluster:await(fun() ->
        case erlmcp_cluster_store:end_session(Name, Idle, owner()) of
            {error, _} -> false;
            _ -> true
        end
    end, 30_000),
    ok.

parts(_, []) ->
    [];
parts(Most, Names) ->
    {Part, Rest} = lists:split(min(Most, length(Names)), Names),
    [Part | parts(Most, Rest)].

%% Returns when some facts are deleted, and the process stands still.
-doc false.
begin_to_sweep(Seconds) ->
    Before = erlmcp_cluster_store:session_facts(),
    Test = self(),
    Keeper = spawn(fun() ->
        {Sweeping, Monitor} = spawn_monitor(fun() -> sweep_some(Seconds, Before) end),
        {_, _} = erlmcp_test_cluster:await(fun() ->
            erlmcp_cluster_store:session_facts() < Before
        end, 30_000),
        true = erlang:suspend_process(Sweeping),
        Test ! {self(), stands_still},
        Asking = receive {go_on, From} -> From end,
        true = erlang:resume_process(Sweeping),
        receive {'DOWN', Monitor, process, Sweeping, normal} -> Asking ! {self(), ok} end
    end),
    receive {Keeper, stands_still} -> Keeper end.

%% A sweep ends if the store does not answer.
sweep_some(Seconds, Before) ->
    ok = erlmcp_cluster_sessions:sweep(Seconds),
    erlmcp_cluster_store:session_facts() < Before orelse sweep_some(Seconds, Before).

-doc false.
sweep_on(Keeper) ->
    Keeper ! {go_on, self()},
    receive {Keeper, Done} -> Done end.

-doc false.
incarnation(Of, {_, State}) ->
    erlmcp_cluster:incarnation(Of, State).

%% A session that has changes has them twice.
-doc false.
open_session(Session, {_, State}) ->
    {{ok, Id, Incarnation, Changes}, _} = erlmcp_test_cluster:await(fun() ->
        case erlmcp_cluster:open_session(Session, State) of
            unavailable -> false;
            Opened -> Opened
        end
    end, 30_000),
    {ok, Id, Incarnation, Changes ++ Changes}.

-doc false.
find_session(Id, Principal, {_, State}) ->
    erlmcp_cluster:find_session(Id, Principal, State).

-doc false.
inherit_session(Id, Principal, {Test, State}) ->
    half_done(Test, erlmcp_cluster:inherit_session(Id, Principal, State)).

-doc false.
change_session(_, _, {declaration, _}, {Test, _}) ->
    half_done(Test, ok);
change_session(Id, Tenant, Change, {Test, State}) ->
    half_done(Test, erlmcp_cluster:change_session(Id, Tenant, Change, State)).

half_done(Test, Result) ->
    Test ! {self(), half_done},
    receive go_on -> Result end.

%% The names of this node's processes of sessions, and of those that tell a secret in their status.
-doc false.
%% How many requests this node passes on, or has waiting for the cluster.
passed_on() ->
    length([Pid || Pid <- processes(),
                   {erlmcp_session_forward, _} <- [proc_lib:get_label(Pid)]]).

-doc false.
who_shows(Secrets) ->
    Statuses = [{element(1, Label), sys:get_status(Pid)}
                || Pid <- processes(), Label <- [proc_lib:get_label(Pid)], is_tuple(Label),
                   lists:member(element(1, Label), [erlmcp_session, erlmcp_session_forward,
                                                    erlmcp_cluster_events])],
    {[Name || {Name, _} <- Statuses],
     [Name || {Name, Status} <- Statuses,
              binary:match(term_to_binary(Status), Secrets) =/= nomatch]}.

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
    erlmcp_test_cluster_node:wait(Name);
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

-doc false.
of_incarnation(Number) ->
    erlmcp_cluster_session_id:new(#{principal => anonymous, revision => '2025-11-25',
                                    client_info => #{}, client_capabilities => #{},
                                    log_level => 6}, server_of_ids(),
                                  erlmcp_cluster_session_id:nonce(Number, 0, 1),
                                  erlmcp_cluster_secret:sealing_key(session)).

%% Counts facts that are about to be stored, so that there is room for so many.
-doc false.
leave_room(all) ->
    atomics:put(element(1, erlmcp_cluster_sessions:counts()), 1, 0);
leave_room(Room) ->
    atomics:put(element(1, erlmcp_cluster_sessions:counts()), 1,
                200_000 - Room - erlmcp_cluster_store:session_facts()).

%% As if the client of this node's sessions had so few left of its share, and others had facts, too.
%% Its share is full when it has as many facts as could still be added.
-doc false.
leave_share(Room, Others) ->
    {_, _, Shares} = erlmcp_cluster_sessions:counts(),
    erlmcp_cluster_shares:recount(#{owner() => (200_000 - Others) div 2 - Room,
                                    <<0:64>> => Others}, Shares).

-doc false.
share() ->
    {_, _, Shares} = erlmcp_cluster_sessions:counts(),
    ets:lookup_element(Shares, {facts, owner()}, 2, 0).

owner() ->
    erlmcp_cluster_shares:owner(?SERVER, {anonymous, {127, 0, 0, 1}}).

%% As if all other turns were taken.
-doc false.
leave_turns(Count) ->
    counters:put(element(2, erlmcp_cluster_sessions:counts()), 1, 64 - Count).

counted_at(Member) ->
    #{requests := Count} = erlmcp_test_cluster:call(Member, erlmcp, metrics, [?SERVER]),
    Count.

updated(Member) ->
    erlmcp_test_cluster:call(Member, erlmcp, resource_updated, [?SERVER, ?TEXT]).

%% Clients.

initialize(Member) ->
    initialize(Member, #{}).

initialize(Member, Capabilities) ->
    initialize(Member, Capabilities, ?REVISION).

initialize(Member, Capabilities, Revision) ->
    #{status := 200, headers := #{~"mcp-session-id" := Id}} = answered(fun() ->
        call(http(Member), ~"initialize",
             #{protocolVersion => Revision, capabilities => Capabilities,
               clientInfo => #{name => ~"suite", version => ~"1"}},
             #{session => {~"", Revision},
               headers => #{~"mcp-session-id" => none, ~"mcp-protocol-version" => none}})
    end),
    {Id, Revision}.

result(Member, Session, Method, Params) ->
    #{status := 200, messages := [Message]} = answered(fun() ->
        call(http(Member), Method, Params, #{session => Session})
    end),
    Message.

%% As the first answer is, which may be a refusal.
tool_once(Member, Session, Name) ->
    #{status := 200, messages := [Message]} =
        call(http(Member), ~"tools/call", #{name => Name, arguments => #{}}, #{session => Session}),
    Message.

tool(Member, Session, Name, Arguments) ->
    result(Member, Session, ~"tools/call", #{name => Name, arguments => Arguments}).

text(#{~"result" := #{~"content" := [#{~"text" := Text}]}}) -> Text.

notify(Member, Session, Method, Params) ->
    #{status := Status, body := Body} = answered(fun() ->
        call(http(Member), Method, Params, #{session => Session, id => none})
    end),
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
    answered(fun() -> erlmcp_test_http:delete(http(Member), Session) end).

%% The session's stream, and the id of its first event.
stream(Member, Session, LastEventId) ->
    {Socket, {200, _}} =
        get_stream(http(Member), Session, [{~"accept", ~"text/event-stream"}
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

server_of_ids() ->
    erlmcp_cluster_session_id:server(?SERVER).
