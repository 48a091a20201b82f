-module(client_lifetimes_SUITE).
-moduledoc """
What is left when one of those dies that have to do with a client, at any moment: its owner, the
client, a call, a subscriber, the application. Nothing is, everybody who waits is told, and told
once, and the server is told where it still does something.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([subscription_ends_on_the_server/1, subscription_ends_with_its_owner/1,
         ended_subscription_is_over/1, crashed_subscription_says_so/1, the_end_is_the_last_event/1,
         subscription_ends_once/1, late_subscription_is_not_added/1,
         cut_off_subscriber_watches_nothing/1,
         refused_filter_ends_the_subscription/1,
         refused_subscription_watches_nothing/1, resource_of_another_stays_watched/1,
         resource_stays_watched_after_a_late_end/1, failed_repetition_watches_nothing/1,
         subscription_comes_when_the_server_does/1,
         subscription_looks_for_a_server_given_up/1, server_that_goes_while_it_is_asked/1,
         killed_client_is_forgotten/1, killed_client_leaves_no_call_waiting/1,
         killed_pool_is_forgotten/1, crashed_call_says_so/1, stopped_application_ends_clients/1,
         stopped_application_ends_a_negotiation/1, question_before_the_session_is_known/1,
         busy_stream_is_asked_for_again/1,
         missing_stream_is_no_lost_session/1, session_lost_before_its_stream/1,
         another_session_ends_the_search_for_the_last_one/1,
         killed_search_for_a_session_begins_again/1, search_for_a_session_ends_without_an_answer/1,
         subscription_while_the_stream_opens/1,
         subscription_without_a_stream/1, crashed_stream_of_a_session_is_opened_again/1,
         stream_that_is_not_resumed_is_opened_again/1,
         server_that_reads_nothing_holds_up_no_stop/1, no_folder_is_left/1,
         no_key_in_reports/1, answer_from_before_a_change_is_not_kept/1, longest_retry/1,
         every_reason_is_a_sentence/1, a_late_call_leaves_no_process/1,
         a_call_given_up_before_the_session_is_not_sent/1,
         calls_given_up_before_the_session_leave_nothing/1,
         a_caller_that_dies_while_it_starts_a_call/1]).
-export([log/2]).

-import(erlmcp_test_http, [running/0]).
-import(erlmcp_test_peer, [result/2]).

-define(WAIT, 30_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [subscription_ends_on_the_server, subscription_ends_with_its_owner,
     ended_subscription_is_over, crashed_subscription_says_so, the_end_is_the_last_event,
     subscription_ends_once, late_subscription_is_not_added,
     cut_off_subscriber_watches_nothing, refused_filter_ends_the_subscription,
     refused_subscription_watches_nothing, resource_of_another_stays_watched,
     resource_stays_watched_after_a_late_end, failed_repetition_watches_nothing,
     subscription_comes_when_the_server_does, subscription_looks_for_a_server_given_up,
     server_that_goes_while_it_is_asked,
     killed_client_is_forgotten, killed_client_leaves_no_call_waiting, killed_pool_is_forgotten,
     crashed_call_says_so, stopped_application_ends_clients,
     stopped_application_ends_a_negotiation, question_before_the_session_is_known,
     busy_stream_is_asked_for_again,
     missing_stream_is_no_lost_session, session_lost_before_its_stream,
     another_session_ends_the_search_for_the_last_one,
     killed_search_for_a_session_begins_again, search_for_a_session_ends_without_an_answer,
     subscription_while_the_stream_opens,
     subscription_without_a_stream, crashed_stream_of_a_session_is_opened_again,
     stream_that_is_not_resumed_is_opened_again,
     server_that_reads_nothing_holds_up_no_stop, no_folder_is_left, no_key_in_reports,
     answer_from_before_a_change_is_not_kept, longest_retry, every_reason_is_a_sentence,
     a_late_call_leaves_no_process, a_call_given_up_before_the_session_is_not_sent,
     calls_given_up_before_the_session_leave_nothing,
     a_caller_that_dies_while_it_starts_a_call].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

server() ->
    {ok, Server} = erlmcp:start_server((erlmcp_test_http:definitions(self()))#{
        name => ~"test", version => ~"1.0.0", listen => [{http, #{}}, {tcp, #{}}]}),
    Server.

url(Server) ->
    [Url] = [Url || #{transport := http, url := Url} <- erlmcp:listeners(Server)],
    Url.

tcp(Server, Options) ->
    {tcp, ~"127.0.0.1", erlmcp_test_line:port(Server), Options}.

started(Target) ->
    {ok, Client} = erlmcp_client:start_link(Target),
    Client.

event(Reference) ->
    receive {erlmcp, Reference, Event} -> Event after ?WAIT -> error(no_event) end.

gone(Pid) ->
    Monitor = monitor(process, Pid),
    receive {'DOWN', Monitor, process, Pid, _} -> ok after ?WAIT -> error({lives, Pid}) end.

%% The server hears that nobody listens any more, on HTTP/2 and TCP too, where streams and calls
%% share a connection.
subscription_ends_on_the_server(_) ->
    Server = server(),
    [begin
         Client = started(Target),
         {ok, First} = erlmcp_client:subscribe(Client, #{tools_changed => true}),
         {ok, Second} = erlmcp_client:subscribe(Client, #{tools_changed => true}),
         subscribed = event(First),
         subscribed = event(Second),
         ok = eventually(fun() -> length(listeners(Server)) =:= 2 end),
         ok = erlmcp_client:unsubscribe(Client, First),
         ok = eventually(fun() -> length(listeners(Server)) =:= 1 end),
         ok = erlmcp:add(Server, tool, #{name => ~"new", handler => fun(_, _) -> ~"new" end}),
         tools_changed = event(Second),
         {ok, pong} = erlmcp_client:ping(Client),
         receive {erlmcp, Reference, _} = More when Reference =:= First; Reference =:= Second ->
             error(More)
         after 0 ->
             ok
         end,
         ok = erlmcp:remove(Server, tool, ~"new"),
         ok = erlmcp_client:stop(Client),
         ok = eventually(fun() -> listeners(Server) =:= [] end)
     end || Target <- [tcp(Server, #{era => stateless}), {server, Server, #{era => stateless}},
                       {http, url(Server), #{era => stateless}},
                       {http, url(Server), #{era => stateless, protocols => [http2]}}]],
    ok = erlmcp:stop_server(Server).

%% Who is to be told of a change of tools.
listeners(Server) ->
    {ok, _, #{subscriptions := Table}} = erlmcp_registry:whereis(Server),
    [Key || {{tool, _, _} = Key, _, _, _} <- ets:tab2list(Table)].

eventually(Is) -> eventually(Is, erlang:monotonic_time(millisecond) + ?WAIT).

eventually(Is, Deadline) ->
    case {Is(), erlang:monotonic_time(millisecond) < Deadline} of
        {true, _} -> ok;
        {false, true} -> receive after 20 -> eventually(Is, Deadline) end;
        {false, false} -> error(never)
    end.

%% An owner that ends in order leaves nobody who tries to reach the server for ever.
subscription_ends_with_its_owner(_) ->
    Server = server(),
    [begin
         Test = self(),
         {Owner, Monitor} = spawn_monitor(fun() ->
             Client = started(Target),
             {ok, Reference} = erlmcp_client:subscribe(Client, #{tools_changed => true}),
             subscribed = event(Reference),
             {links, Links} = process_info(Client, links),
             Test ! {linked, [Client | [Pid || Pid <- Links, is_pid(Pid), Pid =/= self()]]}
         end),
         receive {'DOWN', Monitor, process, Owner, normal} -> ok after ?WAIT -> error(late) end,
         receive {linked, Pids} -> [ok = gone(Pid) || Pid <- Pids] after 0 -> error(none) end
     end || Target <- [tcp(Server, #{era => stateless}), {http, url(Server), #{era => stateless}},
                       {http, url(Server), #{era => session}}]],
    ok = erlmcp:stop_server(Server).

%% "After `{ended, Reason}` nothing comes", and there is room for others.
ended_subscription_is_over(_) ->
    Peer = erlmcp_test_peer:tcp(fun
        (#{~"method" := ~"server/discover"} = Message) ->
            [result(Message, #{resultType => ~"complete", supportedVersions => [~"2026-07-28"],
                               capabilities => #{}})];
        (#{~"method" := ~"subscriptions/listen"} = Message) ->
            [(erlmcp_test_peer:error(Message, -32601, #{}))];
        (_) ->
            []
    end),
    #{port := Port} = Peer,
    Client = started({tcp, ~"127.0.0.1", Port, #{subscriptions => 1}}),
    {ok, _} = erlmcp_client:server(Client),
    [begin
         {ok, Reference} = erlmcp_client:subscribe(Client, #{tools_changed => true}),
         {ended, {rpc, #{code := -32601, message := ~"no"}} = Reason} = event(Reference),
         ~"the server answered with error -32601: no" = erlmcp_client_error:text(Reason)
     end || _ <- lists:seq(1, 100)],
    Test = self(),
    ok = eventually(fun() ->
        {monitors, Monitors} = process_info(Client, monitors),
        not lists:member({process, Test}, Monitors)
    end),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer).

%% Nobody waits for changes that nothing brings.
crashed_subscription_says_so(_) ->
    Server = server(),
    Client = started({http, url(Server), #{era => stateless, subscriptions => 1}}),
    {ok, Reference} = erlmcp_client:subscribe(Client, #{tools_changed => true}),
    subscribed = event(Reference),
    exit(stream(Client), kill),
    {ended, {crashed, killed}} = event(Reference),
    %% There is room for the next one.
    {ok, Next} = erlmcp_client:subscribe(Client, #{tools_changed => true}),
    subscribed = event(Next),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp:stop_server(Server).

%% The stream has not read a change yet when its client ends.
the_end_is_the_last_event(_) ->
    Server = server(),
    Client = started({http, url(Server), #{era => stateless}}),
    {ok, Reference} = erlmcp_client:subscribe(Client, #{tools_changed => true}),
    subscribed = event(Reference),
    Stream = stream(Client),
    true = erlang:suspend_process(Stream),
    ok = erlmcp:add(Server, tool, #{name => ~"new", handler => fun(_, _) -> ~"new" end}),
    ok = erlmcp_test_servers:await_messages(1, Stream),
    true = unlink(Client),
    Stopping = spawn_link(fun() -> erlmcp_client:stop(Client) end),
    {ended, stopped} = event(Reference),
    _ = is_process_alive(Stream) andalso erlang:resume_process(Stream),
    ok = gone(Stream),
    ok = gone(Stopping),
    receive {erlmcp, Reference, More} -> error(More) after 0 -> ok end,
    ok = erlmcp:stop_server(Server).

%% The server has refused the subscription, and the client stops before it has heard of that.
subscription_ends_once(_) ->
    Test = self(),
    #{port := Port} = Peer = erlmcp_test_peer:tcp(fun
        (#{~"method" := ~"server/discover"} = Message) ->
            [result(Message, #{resultType => ~"complete", supportedVersions => [~"2026-07-28"],
                               capabilities => #{}})];
        (#{~"method" := ~"subscriptions/listen"} = Message) ->
            Test ! {listens, self()},
            receive refuse -> [erlmcp_test_peer:error(Message, -32601, #{})] end;
        (_) ->
            []
    end),
    Client = started({tcp, ~"127.0.0.1", Port, #{era => stateless}}),
    {ok, Reference} = erlmcp_client:subscribe(Client, #{tools_changed => true}),
    Listens = receive {listens, Pid} -> Pid after ?WAIT -> error(late) end,
    ok = sys:suspend(Client),
    Listens ! refuse,
    {ended, {rpc, #{code := -32601}}} = event(Reference),
    ok = erlmcp_client:stop(Client),
    receive {erlmcp, Reference, More} -> error(More) after 0 -> ok end,
    ok = erlmcp_test_peer:stop(Peer).

%% Its caller has no reference, and could not end it.
late_subscription_is_not_added(_) ->
    Server = server(),
    Client = started({http, url(Server), #{era => stateless, subscriptions => 1}}),
    {ok, _} = erlmcp_client:server(Client),
    ok = sys:suspend(Client),
    {error, timeout} = erlmcp_client:subscribe(Client, #{tools_changed => true}),
    ok = sys:resume(Client),
    %% There is room for the next one.
    {ok, Reference} = erlmcp_client:subscribe(Client, #{tools_changed => true}),
    subscribed = event(Reference),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp:stop_server(Server).

%% The process of a client's only subscription.
stream(Client) ->
    stream(Client, erlmcp_client_subscription).

stream(Client, Kind) ->
    [Stream] = streams(Client, Kind),
    Stream.

%% The client's processes of a kind.
streams(Client, Kind) ->
    {links, Links} = process_info(Client, links),
    [Pid || Pid <- Links, is_pid(Pid), Label <- [proc_lib:get_label(Pid)],
            is_tuple(Label), element(1, Label) =:= Kind].

%% A server of a session stops sending what its client would drop.
cut_off_subscriber_watches_nothing(_) ->
    {Peer, Client} = watched(fun
        (#{~"method" := ~"ping"} = Message) ->
            [result(Message, #{}),
             #{jsonrpc => ~"2.0", method => ~"notifications/resources/updated",
               params => #{uri => ~"test://a"}}];
        (Message) ->
            [result(Message, #{})]
    end),
    Filter = #{resources => [~"test://a"]},
    {ok, Reads} = erlmcp_client:subscribe(Client, Filter),
    subscribed = event(Reads),
    %% From now on this process does not read its messages.
    _ = [self() ! unread || _ <- lists:seq(1, 1001)],
    {ok, pong} = erlmcp_client:ping(Client),
    {ended, slow_consumer} = event(Reads),
    ~"test://a" = unsubscribed(),
    %% Nor does it when it subscribes.
    {ok, Never} = erlmcp_client:subscribe(Client, Filter),
    {ended, slow_consumer} = event(Never),
    ~"test://a" = unsubscribed(),
    %% The first update has come when the second answer comes, and is handled before another
    %% subscription.
    [{ok, pong} = erlmcp_client:ping(Client) || _ <- [1, 2]],
    {ok, _} = erlmcp_client:subscribe(Client, #{}),
    receive {erlmcp, Reference, _} = More when Reference =:= Reads; Reference =:= Never ->
        error(More)
    after 0 ->
        ok
    end,
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer).

%% The same filter would be refused again.
refused_filter_ends_the_subscription(_) ->
    Server = server(),
    TooMany = [<<"test://", (integer_to_binary(N))/binary>> || N <- lists:seq(1, 1_001)],
    [begin
         Client = started(Target),
         {ok, Reference} = erlmcp_client:subscribe(Client, #{resources => TooMany}),
         {ended, {rpc, #{code := -32602}}} = event(Reference),
         ok = erlmcp_client:stop(Client)
     end || Target <- [tcp(Server, #{era => stateless}), {http, url(Server), #{era => stateless}}]],
    ok = erlmcp:stop_server(Server).

%% The first resource is another subscription's, the second is watched, and the third is refused.
refused_subscription_watches_nothing(_) ->
    {Peer, Client} = watched(fun
        (#{~"method" := ~"resources/subscribe",
           ~"params" := #{~"uri" := ~"test://refused"}} = Message) ->
            [erlmcp_test_peer:error(Message, -32002, #{})];
        (Message) ->
            [result(Message, #{})]
    end),
    {ok, Stays} = erlmcp_client:subscribe(Client, #{resources => [~"test://a"]}),
    subscribed = event(Stays),
    {ok, Ends} = erlmcp_client:subscribe(Client, #{resources => [
        ~"test://a", ~"test://b", ~"test://refused", ~"test://c"]}),
    {ended, {rpc, #{code := -32002}}} = event(Ends),
    ~"test://b" = unsubscribed(),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer).

%% A subscription that names a resource twice watches it once.
resource_of_another_stays_watched(_) ->
    {Peer, Client} = watched(fun(Message) -> [result(Message, #{})] end),
    {ok, Stays} = erlmcp_client:subscribe(Client, #{resources => [~"test://a"]}),
    subscribed = event(Stays),
    {ok, Ends} = erlmcp_client:subscribe(Client, #{resources => [
        ~"test://a", ~"test://a", ~"test://b"]}),
    subscribed = event(Ends),
    ok = erlmcp_client:unsubscribe(Client, Ends),
    ~"test://b" = unsubscribed(),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer).

%% This server handles the end of a subscription after the beginning of the next one.
resource_stays_watched_after_a_late_end(_) ->
    {Peer, Client} = watched(fun
        (#{~"method" := ~"resources/unsubscribe"} = Message) ->
            undefined = put(late, Message),
            [];
        (Message) ->
            [result(Message, #{}) | [result(Late, #{}) || #{} = Late <- [erase(late)]]]
    end),
    Filter = #{resources => [~"test://a"]},
    {ok, First} = erlmcp_client:subscribe(Client, Filter),
    subscribed = event(First),
    ok = erlmcp_client:unsubscribe(Client, First),
    ~"test://a" = unsubscribed(),
    {ok, Second} = erlmcp_client:subscribe(Client, Filter),
    [erlmcp_test_peer:received(~"resources/subscribe") || _ <- [first, second, again]],
    %% It comes once more if the client had heard of the second request before the end.
    subscribed = event(Second),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer).

%% The server answers the end of the first subscription late, and then watches nothing again.
failed_repetition_watches_nothing(_) ->
    {Peer, Client} = watched(fun
        (#{~"method" := ~"ping"} = Message) ->
            [result(Message, #{}), result(get(late), #{})];
        (#{~"method" := Method} = Message) ->
            case {Method, get(late)} of
                {~"resources/unsubscribe", undefined} ->
                    undefined = put(late, Message),
                    [];
                {~"resources/subscribe", #{}} ->
                    answer_until(~"test://b", Message);
                _ ->
                    [result(Message, #{})]
            end
    end),
    {ok, First} = erlmcp_client:subscribe(Client, #{resources => [~"test://a"]}),
    subscribed = event(First),
    ok = erlmcp_client:unsubscribe(Client, First),
    ~"test://a" = unsubscribed(),
    {ok, Second} = erlmcp_client:subscribe(Client, #{resources => [~"test://a", ~"test://b"]}),
    subscribed = event(Second),
    {ok, pong} = erlmcp_client:ping(Client),
    {ended, {rpc, #{code := -32002}}} = event(Second),
    [~"test://a", ~"test://b"] = [unsubscribed(), unsubscribed()],
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer).

%% A server that watches resources up to the one at `Last`, and refuses to watch more.
answer_until(Last, #{~"params" := #{~"uri" := Uri}} = Message) ->
    case get(full) of
        true ->
            [erlmcp_test_peer:error(Message, -32002, #{})];
        undefined ->
            _ = Uri =:= Last andalso put(full, true),
            [result(Message, #{})]
    end.

%% A client in a session, and its server.
watched(Answer) ->
    #{port := Port} = Peer = erlmcp_test_peer:tcp(fun
        (#{~"method" := ~"initialize"} = Message) ->
            [result(Message, #{protocolVersion => ~"2025-11-25",
                               capabilities => #{resources => #{subscribe => true}},
                               serverInfo => #{name => ~"watched", version => ~"1"}})];
        (#{~"id" := _} = Message) ->
            Answer(Message);
        (_) ->
            []
    end),
    {Peer, started({tcp, ~"127.0.0.1", Port, #{era => session}})}.

unsubscribed() ->
    #{~"params" := #{~"uri" := Uri}} = erlmcp_test_peer:received(~"resources/unsubscribe"),
    Uri.

%% A client that only listens finds the server, too.
subscription_comes_when_the_server_does(_) ->
    {Port, Taken} = erlmcp_test_port:taken(),
    Url = <<"http://127.0.0.1:", (integer_to_binary(Port))/binary, "/mcp">>,
    Client = started({http, Url, #{}}),
    {error, {connect, _}} = erlmcp_client:server(Client),
    {ok, Reference} = erlmcp_client:subscribe(Client, #{tools_changed => true}),
    ok = erlmcp_test_port:give_back(Taken),
    {ok, Server} = erlmcp:start_server(#{name => ~"test", version => ~"1.0.0",
                                        listen => [{http, #{port => Port}}]}),
    subscribed = event(Reference),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp:stop_server(Server).

%% The client has found no server, and looks for it no more, since nobody waits.
subscription_looks_for_a_server_given_up(_) ->
    {Port, Taken} = erlmcp_test_port:taken(),
    Url = <<"http://127.0.0.1:", (integer_to_binary(Port))/binary, "/mcp">>,
    Client = started({http, Url, #{}}),
    {error, {connect, _}} = erlmcp_client:server(Client),
    %% The pause after two failures, of which the first is that of the start.
    receive after 1_100 -> ok end,
    ok = erlmcp_test_port:give_back(Taken),
    {ok, Server} = erlmcp:start_server(#{name => ~"test", version => ~"1.0.0",
                                        listen => [{http, #{port => Port}}]}),
    {ok, Reference} = erlmcp_client:subscribe(Client, #{tools_changed => true}),
    subscribed = event(Reference),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp:stop_server(Server).

%% "While the server is away the client tries to open it again": in a session too, where the server
%% is asked to watch the resources.
server_that_goes_while_it_is_asked(_) ->
    Filter = #{resources => [~"test://a"]},
    Goes = first_and_then([close]),
    {Line, OnLine} = watched(fun(Message) -> Goes([result(Message, #{})]) end),
    {ok, Closed} = erlmcp_client:subscribe(OnLine, Filter),
    subscribed = event(Closed),
    ok = erlmcp_client:stop(OnLine),
    ok = erlmcp_test_peer:stop(Line),
    [begin
         Refuses = first_and_then({Status, [], none}),
         Peer = erlmcp_test_peer:http(fun
             (#{message := #{~"method" := ~"resources/subscribe"}} = Request) ->
                 Refuses(erlmcp_test_bad_http_peer:session(Request));
             (Request) ->
                 erlmcp_test_bad_http_peer:session(Request)
         end),
         Client = started({http, maps:get(url, Peer), #{era => session}}),
         {ok, _} = erlmcp_client:server(Client),
         {ok, Reference} = erlmcp_client:subscribe(Client, Filter),
         {Status, subscribed} = {Status, event(Reference)},
         ok = erlmcp_client:stop(Client),
         ok = erlmcp_test_peer:stop(Peer)
     end || Status <- [429, 503, 404]].

%% A fun that returns `First` at its first call, and then its argument.
first_and_then(First) ->
    Calls = counters:new(1, []),
    fun(Next) ->
        ok = counters:add(Calls, 1, 1),
        case counters:get(Calls, 1) of
            1 -> First;
            _ -> Next
        end
    end.

killed_client_is_forgotten(_) ->
    Server = server(),
    Client = started({server, Server, #{}}),
    {ok, pong} = erlmcp_client:ping(Client),
    killed(Client),
    ok = eventually(fun() ->
        case erlmcp_client:async(Client, ping) of
            {error, stopped} ->
                true;
            %% It is known a little longer than it lives.
            {ok, Reference} ->
                receive {erlmcp, Reference, {error, stopped}} -> false
                after ?WAIT -> error(no_outcome)
                end
        end
    end),
    [{error, stopped} = Answer
     || Answer <- [erlmcp_client:ping(Client), erlmcp_client:info(Client),
                   erlmcp_client:server(Client),
                   erlmcp_client:subscribe(Client, #{tools_changed => true})]],
    ok = erlmcp_client:cancel(Client, make_ref()),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp:stop_server(Server).

killed(Pid) ->
    true = unlink(Pid),
    Monitor = monitor(process, Pid),
    exit(Pid, kill),
    receive {'DOWN', Monitor, process, Pid, killed} -> ok after ?WAIT -> error(lives) end.

%% One that begins when its client has just ended.
a_late_call_leaves_no_process(_) ->
    Server = server(),
    Client = started({server, Server, #{}}),
    {ok, Known} = erlmcp_client_table:find(Client),
    killed(Client),
    Test = self(),
    Caller = spawn_link(fun() ->
        receive go -> ok end,
        Reference = erlmcp_client_call:start(ping, Known, #{}, self()),
        Test ! {self(), event(Reference), erlmcp_client_call:run(ping, Known, #{})},
        receive stop -> ok end
    end),
    1 = erlang:trace(Caller, true, [procs]),
    Caller ! go,
    receive {Caller, {error, stopped}, {error, stopped}} -> ok after ?WAIT -> error(no_outcome) end,
    Delivered = erlang:trace_delivered(Caller),
    receive {trace_delivered, Caller, Delivered} -> ok end,
    Started = spawned(),
    true = length(Started) >= 2,
    [ok = gone(Pid) || Pid <- Started],
    Caller ! stop,
    ok = erlmcp:stop_server(Server).

spawned() ->
    receive
        {trace, _, spawn, Pid, _} -> [Pid | spawned()];
        {trace, _, _, _} -> spawned();
        {trace, _, _, _, _} -> spawned()
    after 0 ->
        []
    end.

%% The server takes its time to open the session. Whoever gives up meanwhile is told at once, and
%% the server hears nothing of the call.
a_call_given_up_before_the_session_is_not_sent(_) ->
    {Peer, Client, Opening} = opening(#{}),
    Call = fun() -> {ok, _} = erlmcp_client:async(Client, {call_tool, ~"t", #{}}) end,
    {ok, Reference} = Call(),
    ok = erlmcp_client:cancel(Client, Reference),
    {error, cancelled} = event(Reference),
    Caller = spawn(fun() -> {ok, _} = Call(), receive never -> ok end end),
    ok = eventually(fun() -> running_calls(Client) =:= 1 end),
    exit(Caller, kill),
    ok = eventually(fun() -> running_calls(Client) =:= 0 end),
    Opening ! open,
    {ok, pong} = erlmcp_client:ping(Client),
    receive {peer, #{~"method" := ~"tools/call"}} -> error(sent) after 0 -> ok end,
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer).

%% No call waits for its caller to let it go on. The callers do nothing but start calls, so some of
%% them die when the process of a call has begun to wait.
a_caller_that_dies_while_it_starts_a_call(_) ->
    Server = server(),
    Client = started({server, Server, #{}}),
    {ok, Pool} = erlmcp_pool:start_link(#{targets => [{server, Server, #{}}]}),
    [begin
         ok = killed_while_it_calls(To),
         ok = eventually(fun() -> waiting_processes() =:= [] end)
     end || To <- [Client, Pool], _ <- lists:seq(1, 200)],
    ok = eventually(fun() -> running_calls(Client) =:= 0 end),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_pool:stop(Pool),
    ok = erlmcp:stop_server(Server).

killed_while_it_calls(To) ->
    Test = self(),
    {Caller, Monitor} = spawn_monitor(fun() ->
        Test ! {calling, self()},
        calling(To)
    end),
    receive {calling, Caller} -> exit(Caller, kill) after ?WAIT -> error(no_caller) end,
    receive {'DOWN', Monitor, process, Caller, killed} -> ok after ?WAIT -> error(lives) end.

calling(To) ->
    {ok, _} = erlmcp_client:async(To, ping),
    calling(To).

waiting_processes() ->
    [Pid || Pid <- processes(),
            {_, {Module, _, _}} <- [process_info(Pid, current_function)],
            lists:member(Module, [erlmcp_client_call, erlmcp_pool_members])].

%% A client whose server takes its time to open the session.
opening(Options) ->
    Test = self(),
    #{port := Port} = Peer = erlmcp_test_peer:tcp(fun
        (#{~"method" := ~"initialize"} = Message) ->
            Test ! {opening, self()},
            receive open -> [result(Message, erlmcp_test_bad_http_peer:initialized())] end;
        (#{~"method" := ~"ping"} = Message) ->
            [result(Message, #{})];
        (_) ->
            []
    end),
    Client = started({tcp, {127, 0, 0, 1}, Port, Options#{era => session, timeout => 2 * ?WAIT}}),
    Opening = receive {opening, Pid} -> Pid after ?WAIT -> error(not_opened) end,
    {Peer, Client, Opening}.

%% The client's process does not keep them until the session is open.
calls_given_up_before_the_session_leave_nothing(_) ->
    {Peer, Client, _} = opening(#{calls => 10}),
    GiveUp = fun() ->
        Begun = [begin
                     {ok, Reference} = erlmcp_client:async(Client, {call_tool, ~"t", #{}}),
                     Reference
                 end || _ <- lists:seq(1, 10)],
        %% Meanwhile most of them ask the client's process.
        _ = [sys:get_state(Client) || _ <- [1, 2, 3]],
        [begin
             ok = erlmcp_client:cancel(Client, Reference),
             {error, cancelled} = event(Reference)
         end || Reference <- Begun]
    end,
    _ = [GiveUp() || _ <- lists:seq(1, 10)],
    Before = memory(Client),
    _ = [GiveUp() || _ <- lists:seq(1, 500)],
    true = memory(Client) < Before + 100_000,
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer).

memory(Client) ->
    true = erlang:garbage_collect(Client),
    {memory, Bytes} = process_info(Client, memory),
    Bytes.

running_calls(Client) ->
    #{calls := Count} = erlmcp_client:info(Client),
    Count.

%% Those who wait for an answer get one.
killed_client_leaves_no_call_waiting(_) ->
    Server = server(),
    [begin
         Client = started(Target),
         %% In a session its stream would be taken up again, for as long as the call may take.
         {ok, Reference} = erlmcp_client:async(Client, {call_tool, ~"stream", #{}}),
         {_, _} = running(),
         _ = receive {erlmcp, Reference, {progress, _}} -> ok after ?WAIT -> error(late) end,
         Test = self(),
         _ = spawn_link(fun() ->
             Test ! {waited, erlmcp_client:call_tool(Client, ~"wait", #{})}
         end),
         {_, _} = running(),
         killed(Client),
         {error, _} = outcome(Reference),
         receive {waited, {error, Reason}} when element(1, Reason) =/= crashed -> ok
         after ?WAIT -> error(late)
         end,
         receive {erlmcp, _, _} = Twice -> error(Twice) after 100 -> ok end
     end || Target <- [{server, Server, #{}}, tcp(Server, #{}), {http, url(Server), #{}},
                       {http, url(Server), #{era => session}}]],
    ok = erlmcp:stop_server(Server).

outcome(Reference) ->
    case event(Reference) of
        {log, _} -> outcome(Reference);
        Outcome -> Outcome
    end.

killed_pool_is_forgotten(_) ->
    Server = server(),
    {ok, Pool} = erlmcp_pool:start_link(#{targets => [{server, Server, #{}}]}),
    {ok, Reference} = erlmcp_client:async(Pool, {call_tool, ~"wait", #{}}),
    {_, _} = running(),
    killed(Pool),
    {error, _} = event(Reference),
    ok = eventually(fun() -> erlmcp_client:ping(Pool) =:= {error, stopped} end),
    {error, stopped} = erlmcp_client:async(Pool, ping),
    ok = erlmcp_pool:stop(Pool),
    ok = erlmcp:stop_server(Server).

%% A fun of the call's that fails is no lack of memory.
crashed_call_says_so(_) ->
    Server = server(),
    Client = started({server, Server, #{}}),
    Options = #{progress => fun(_) -> error(on_purpose) end},
    Operation = {call_tool, ~"progress", #{}},
    {ok, Reference} = erlmcp_client:async(Client, Operation, Options),
    {error, {crashed, {on_purpose, _}}} = event(Reference),
    {error, {crashed, {on_purpose, _}}} =
        erlmcp_client:call_tool(Client, ~"progress", #{}, Options),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp:stop_server(Server).

%% Without the application there is no client that runs on unseen.
stopped_application_ends_clients(_) ->
    Peer = erlmcp_test_peer:tcp(fun
        (#{~"method" := ~"server/discover"} = Message) ->
            [result(Message, #{resultType => ~"complete", supportedVersions => [~"2026-07-28"],
                               capabilities => #{}})];
        (_) ->
            []
    end),
    #{port := Port} = Peer,
    Client = started({tcp, ~"127.0.0.1", Port, #{}}),
    {ok, _} = erlmcp_client:server(Client),
    {ok, Known} = erlmcp_client_table:find(Client),
    {ok, Reference} = erlmcp_client:async(Client, {call_tool, ~"t", #{}}),
    _ = erlmcp_test_peer:received(~"tools/call"),
    true = unlink(Client),
    ok = application:stop(erlmcp),
    ok = gone(Client),
    {error, stopped} = event(Reference),
    {error, stopped} = erlmcp_client:ping(Client),
    %% A call that has just found its client may look for the outcome of the negotiation only now.
    {error, stopped} = erlmcp_client_connection:live(Known, erlang:monotonic_time(millisecond)),
    ok = application:start(erlmcp),
    ok = erlmcp_test_peer:stop(Peer).

%% Its outcome reaches the client when there is no table any more. That is no crash of the client.
stopped_application_ends_a_negotiation(_) ->
    Test = self(),
    #{port := Port} = Peer = erlmcp_test_peer:tcp(fun
        (#{~"method" := ~"server/discover"} = Message) ->
            Test ! {asked, self()},
            receive answer -> ok end,
            [result(Message, #{resultType => ~"complete", supportedVersions => [~"2026-07-28"],
                               capabilities => #{}})];
        (_) ->
            []
    end),
    Client = started({tcp, ~"127.0.0.1", Port, #{}}),
    Asked = receive {asked, Pid} -> Pid after ?WAIT -> error(not_asked) end,
    true = unlink(Client),
    Monitor = monitor(process, Client),
    ok = sys:suspend(Client),
    Asked ! answer,
    ok = erlmcp_test_servers:await(fun() ->
        {messages, Messages} = process_info(Client, messages),
        case lists:keymember(negotiated, 1, Messages) of
            true -> {ok, ok};
            false -> again
        end
    end),
    ok = application:stop(erlmcp),
    ok = sys:resume(Client),
    Reason = receive {'DOWN', Monitor, process, Client, Why} -> Why after ?WAIT -> error(runs) end,
    ok = application:start(erlmcp),
    ok = erlmcp_test_peer:stop(Peer),
    {shutdown, {not_started, erlmcp}} = Reason.

%% A server may ask as soon as it is told that the session is open, before the client's other
%% process has said so.
question_before_the_session_is_known(_) ->
    Peer = erlmcp_test_peer:tcp(fun
        (#{~"method" := ~"initialize"} = Message) ->
            [result(Message, #{protocolVersion => ~"2025-11-25",
                               serverInfo => #{name => ~"early", version => ~"1"},
                               capabilities => #{logging => #{}}})];
        (#{~"method" := ~"notifications/initialized"}) ->
            [#{jsonrpc => ~"2.0", id => ~"early", method => ~"roots/list"}];
        (#{~"method" := ~"logging/setLevel"} = Message) ->
            [result(Message, #{})];
        (_) ->
            []
    end),
    #{port := Port} = Peer,
    Roots = [#{uri => ~"file:///work"}],
    Client = started({tcp, ~"127.0.0.1", Port, #{era => session, log_level => error,
                                                 inputs => #{roots => Roots}}}),
    {ok, _} = erlmcp_client:server(Client),
    ok = answered(~"early"),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer).

answered(Id) ->
    case erlmcp_test_peer:received() of
        #{~"id" := Id, ~"result" := #{~"roots" := [_]}} -> ok;
        _ -> answered(Id)
    end.

%% Some servers answer 409 while they still take the stream of before for open.
busy_stream_is_asked_for_again(_) ->
    Tries = counters:new(1, []),
    Peer = erlmcp_test_peer:http(fun
        (#{method := ~"GET"}) ->
            ok = counters:add(Tries, 1, 1),
            case counters:get(Tries, 1) of
                1 ->
                    {409, [], ~"Only one stream"};
                _ ->
                    {events, [erlmcp_test_peer:event(
                        #{jsonrpc => ~"2.0", method => ~"notifications/tools/list_changed"}),
                        {wait, 10_000}]}
            end;
        (#{message := #{~"method" := ~"initialize"} = Message}) ->
            {200, [{~"mcp-session-id", ~"s"}],
             result(Message, #{protocolVersion => ~"2025-11-25", capabilities => #{},
                               serverInfo => #{name => ~"busy", version => ~"1"}})};
        (_) ->
            {202, [], none}
    end),
    #{url := Url} = Peer,
    Client = started({http, Url, #{era => session}}),
    {ok, Reference} = erlmcp_client:subscribe(Client, #{tools_changed => true}),
    subscribed = event(Reference),
    tools_changed = event(Reference),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer).

%% A 404 may mean that there is no stream, or that the session is lost. A server that has accepted
%% no request for the stream is asked for no other session.
missing_stream_is_no_lost_session(_) ->
    [missing_stream(First) || First <- [404, 503]].

missing_stream(First) ->
    Answer = first_and_then({First, [], none}),
    Sessions = counters:new(1, []),
    Peer = erlmcp_test_peer:http(fun
        (#{method := ~"GET"}) ->
            Answer({404, [], ~"Cannot GET /mcp"});
        (#{message := #{~"method" := Method}} = Request) ->
            ok = counters:add(Sessions, 1, case Method of ~"initialize" -> 1; _ -> 0 end),
            erlmcp_test_bad_http_peer:session(Request)
    end),
    Client = started({http, maps:get(url, Peer), #{era => session}}),
    {ok, Reference} = erlmcp_client:subscribe(Client, #{tools_changed => true}),
    subscribed = event(Reference),
    {ok, #{}} = erlmcp_client:server(Client),
    %% The process of the stream ends when it knows that the session is not lost.
    _ = erlmcp_test_peer:received(~"ping"),
    [ok = gone(Pid) || Pid <- streams(Client, erlmcp_client_stream)],
    1 = counters:get(Sessions, 1),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer).

%% A server that has started again answers the same, and subscribers hear of its changes without a
%% call, also if the server is not there at first.
session_lost_before_its_stream(_) ->
    [lost_before_its_stream(First) || First <- [404, 503]].

lost_before_its_stream(First) ->
    Test = self(),
    Answer = first_and_then({First, [], none}),
    {Peer, Client} = forgetful(fun
        (none) ->
            Test ! {stream, self()},
            receive forget -> {404, [], none} end;
        (_) ->
            Answer({404, [], none})
    end),
    Stream = receive {stream, Pid} -> Pid after ?WAIT -> error(no_stream) end,
    {ok, Reference} = erlmcp_client:subscribe(Client, #{tools_changed => true}),
    Stream ! forget,
    [subscribed, subscribed, tools_changed] = [event(Reference) || _ <- [1, 2, 3]],
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer).

%% A server that answers the requests of its first session as it is told, by their methods. Each
%% other session has a stream, with a change.
forgetful(Answer) ->
    Sessions = counters:new(1, []),
    Changed = erlmcp_test_peer:event(
        #{jsonrpc => ~"2.0", method => ~"notifications/tools/list_changed"}),
    Peer = erlmcp_test_peer:http(fun
        (#{message := #{~"method" := ~"initialize"} = Message}) ->
            ok = counters:add(Sessions, 1, 1),
            {200, [{~"mcp-session-id", integer_to_binary(counters:get(Sessions, 1))}],
             result(Message, erlmcp_test_bad_http_peer:initialized())};
        (#{message := #{~"method" := ~"notifications/initialized"}}) ->
            {202, [], none};
        (#{message := none, headers := #{~"mcp-session-id" := ~"1"}}) ->
            Answer(none);
        (#{message := #{~"method" := Method}, headers := #{~"mcp-session-id" := ~"1"}}) ->
            Answer(Method);
        (#{method := ~"GET", headers := #{~"mcp-session-id" := ~"2"}}) ->
            {events, [Changed, follow]};
        (#{message := #{~"method" := ~"tools/list"} = Message}) ->
            {200, [], result(Message, #{tools => []})};
        (Request) ->
            erlmcp_test_bad_http_peer:session(Request)
    end),
    {Peer, started({http, maps:get(url, Peer), #{era => session, timeout => 2000}})}.

%% A call has found out meanwhile that the session is lost.
another_session_ends_the_search_for_the_last_one(_) ->
    {Peer, Client} = forgetful(fun
        (~"ping") -> {503, [], none};
        (_) -> {404, [], none}
    end),
    _ = erlmcp_test_peer:received(~"ping"),
    Search = stream(Client, erlmcp_client_stream),
    {ok, []} = erlmcp_client:list_tools(Client),
    ok = gone(Search),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer).

killed_search_for_a_session_begins_again(_) ->
    Away = atomics:new(1, []),
    {Peer, Client} = forgetful(fun
        (none) ->
            {404, [], none};
        (_) ->
            case atomics:get(Away, 1) of
                0 -> {503, [], none};
                1 -> {404, [], none}
            end
    end),
    {ok, Reference} = erlmcp_client:subscribe(Client, #{tools_changed => true}),
    subscribed = event(Reference),
    _ = erlmcp_test_peer:received(~"ping"),
    exit(stream(Client, erlmcp_client_stream), kill),
    ok = atomics:put(Away, 1, 1),
    [subscribed, tools_changed] = [event(Reference) || _ <- [1, 2]],
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer).

%% Some servers never answer a ping.
search_for_a_session_ends_without_an_answer(_) ->
    {Peer, Client} = forgetful(fun
        (~"ping") -> silence;
        (_) -> {404, [], none}
    end),
    _ = erlmcp_test_peer:received(~"ping"),
    Search = stream(Client, erlmcp_client_stream),
    [_, _] = [erlmcp_test_peer:received(~"ping") || _ <- [2, 3]],
    ok = gone(Search),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer).

%% The session is open then, and its stream is not yet.
subscription_while_the_stream_opens(_) ->
    Test = self(),
    Peer = erlmcp_test_peer:http(fun
        (#{method := ~"GET"}) ->
            Test ! {stream, self()},
            receive open -> {events, [{wait, 10_000}]} end;
        (#{message := #{~"method" := ~"initialize"} = Message}) ->
            {200, [{~"mcp-session-id", ~"s"}],
             result(Message, #{protocolVersion => ~"2025-11-25", serverInfo =>
                                   #{name => ~"slow", version => ~"1"},
                               capabilities => #{resources => #{subscribe => true}}})};
        (#{message := #{~"method" := ~"resources/subscribe"} = Message}) ->
            Test ! {asked_for, Message},
            {200, [], result(Message, #{})};
        (_) ->
            {202, [], none}
    end),
    #{url := Url} = Peer,
    Client = started({http, Url, #{era => session}}),
    Stream = receive {stream, Pid} -> Pid after ?WAIT -> error(no_stream) end,
    {ok, Reference} = erlmcp_client:subscribe(Client, #{resources => [~"test://a"]}),
    Stream ! open,
    receive {asked_for, #{~"params" := #{~"uri" := ~"test://a"}}} -> ok
    after ?WAIT -> error(not_asked_for)
    end,
    subscribed = event(Reference),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer).

%% A server that never opens the stream may send changes with the answers of calls. A stream that
%% opens late tells so, since changes may have been missed.
subscription_without_a_stream(_) ->
    [begin
         Peer = erlmcp_test_peer:http(fun
             (#{method := ~"GET"}) -> Answer;
             (Request) -> erlmcp_test_bad_http_peer:session(Request)
         end),
         Client = started({http, maps:get(url, Peer), #{era => session}}),
         {ok, Reference} = erlmcp_client:subscribe(Client, #{tools_changed => true,
                                                             resources => [~"test://a"]}),
         {Answer, subscribed} = {Answer, event(Reference)},
         ok = erlmcp_client:stop(Client),
         ok = erlmcp_test_peer:stop(Peer)
     end || Answer <- [silence, {501, [], none}, {200, [{~"content-type", ~"text/html"}], ~"hi"}]],
    Test = self(),
    Late = erlmcp_test_peer:http(fun
        (#{method := ~"GET"}) ->
            Test ! {stream, self()},
            receive open -> {events, [follow]} end;
        (#{message := #{~"method" := ~"resources/subscribe"}} = Request) ->
            Test ! {watch, self()},
            receive watch -> erlmcp_test_bad_http_peer:session(Request) end;
        (Request) ->
            erlmcp_test_bad_http_peer:session(Request)
    end),
    Listens = started({http, maps:get(url, Late), #{era => session}}),
    {ok, Twice} = erlmcp_client:subscribe(Listens, #{tools_changed => true}),
    {ok, Once} = erlmcp_client:subscribe(Listens, #{resources => [~"test://a"]}),
    subscribed = event(Twice),
    Watch = receive {watch, Pid} -> Pid after ?WAIT -> error(not_asked) end,
    receive {stream, Stream} -> Stream ! open after ?WAIT -> error(no_stream) end,
    subscribed = event(Twice),
    %% The server does not watch its resource yet.
    {ok, _} = erlmcp_client:subscribe(Listens, #{}),
    receive {erlmcp, Once, Early} -> error(Early) after 0 -> ok end,
    Watch ! watch,
    subscribed = event(Once),
    ok = erlmcp_client:stop(Listens),
    ok = erlmcp_test_peer:stop(Late).

%% As after any other gap, changes may have been missed.
crashed_stream_of_a_session_is_opened_again(_) ->
    Server = server(),
    Client = started({http, url(Server), #{era => session}}),
    {ok, _} = erlmcp_client:server(Client),
    {ok, Reference} = erlmcp_client:subscribe(Client, #{tools_changed => true}),
    subscribed = event(Reference),
    [begin
         exit(stream(Client, erlmcp_client_stream), kill),
         subscribed = event(Reference)
     end || _ <- [once, again]],
    ok = erlmcp:add(Server, tool, #{name => ~"new", handler => fun(_, _) -> ~"new" end}),
    tools_changed = event(Reference),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp:stop_server(Server).

%% The server has forgotten the last event, and not the session.
stream_that_is_not_resumed_is_opened_again(_) ->
    Test = self(),
    Changed = erlmcp_test_peer:event(
        #{jsonrpc => ~"2.0", method => ~"notifications/tools/list_changed"}),
    Peer = erlmcp_test_peer:http(fun
        (#{method := ~"GET", headers := #{~"last-event-id" := _}}) ->
            {400, [], none};
        (#{method := ~"GET"}) ->
            Test ! {stream, self()},
            {events, [~"id: 1\nretry: 0\ndata: \n\n", follow]};
        (Request) ->
            erlmcp_test_bad_http_peer:session(Request)
    end),
    Client = started({http, maps:get(url, Peer), #{era => session}}),
    {ok, Reference} = erlmcp_client:subscribe(Client, #{tools_changed => true}),
    subscribed = event(Reference),
    Say = fun(Piece) ->
        receive {stream, Stream} -> Stream ! {say, Piece} after ?WAIT -> error(no_stream) end
    end,
    _ = Say(close),
    subscribed = event(Reference),
    _ = Say(Changed),
    tools_changed = event(Reference),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer).

%% What cannot be written any more is not waited for.
server_that_reads_nothing_holds_up_no_stop(_) ->
    {ok, Listen} = gen_tcp:listen(0, [binary, {active, false}, {recbuf, 4096},
                                      {ip, {127, 0, 0, 1}}]),
    {ok, Port} = inet:port(Listen),
    Client = started({tcp, ~"127.0.0.1", Port, #{era => stateless}}),
    {ok, Socket} = gen_tcp:accept(Listen, ?WAIT),
    {ok, Line} = gen_tcp:recv(Socket, 0, ?WAIT),
    #{~"id" := Id} = json:decode(Line),
    ok = gen_tcp:send(Socket, [json:encode(#{
        jsonrpc => ~"2.0", id => Id,
        result => #{resultType => ~"complete", supportedVersions => [~"2026-07-28"],
                    capabilities => #{}}}), $\n]),
    {ok, _} = erlmcp_client:server(Client),
    {ok, _} = erlmcp_client:async(Client, {call_tool, ~"t", #{a => binary:copy(~"x", 12_000_000)}}),
    {error, {timeout, _}} = erlmcp_client:call_tool(Client, ~"t", #{}, #{timeout => 500}),
    Began = erlang:monotonic_time(millisecond),
    ok = erlmcp_client:stop(Client),
    true = erlang:monotonic_time(millisecond) - Began < 20_000,
    ok = gen_tcp:close(Socket),
    ok = gen_tcp:close(Listen).

%% The folder of a child's pipes goes, however early the client is stopped.
no_folder_is_left(Config) ->
    Folder = filename:join(proplists:get_value(priv_dir, Config), "pipes"),
    ok = file:make_dir(Folder),
    true = os:putenv("TMPDIR", Folder),
    [begin
         Client = started({stdio, [~"cat"], #{}}),
         receive after Pause -> ok end,
         ok = erlmcp_client:stop(Client)
     end || Pause <- [0, 0, 1, 2, 5, 10]],
    ok = eventually(fun() -> file:list_dir(Folder) =:= {ok, []} end),
    true = os:unsetenv("TMPDIR").

%% A key of TLS is in no report, whatever of a client ends.
no_key_in_reports(_) ->
    Secret = "the password of the key",
    Client = started({http, ~"https://127.0.0.1:1/mcp", #{tls => [{password, Secret}]}}),
    true = unlink(Client),
    #{level := Level} = logger:get_primary_config(),
    ok = logger:set_primary_config(level, all),
    ok = logger:add_handler(?MODULE, ?MODULE, #{config => self(), level => all}),
    {links, Links} = process_info(Client, links),
    [Channel] = [Pid || Pid <- Links, is_pid(Pid),
                        {supervisor, _, _} <- [proc_lib:initial_call(Pid)]],
    [Pool] = [Pid || {pool, Pid, _, _} <- supervisor:which_children(Channel)],
    nomatch = string:find(io_lib:format("~0p", [sys:get_status(Pool)]), Secret),
    exit(Pool, kill),
    ok = gone(Client),
    ok = logger:remove_handler(?MODULE),
    ok = logger:set_primary_config(level, Level),
    Logged = logged(),
    true = Logged =/= [],
    [] = [Text || Text <- Logged, string:find(Text, Secret) =/= nomatch].

%% The notification overtakes the answer that it is about.
answer_from_before_a_change_is_not_kept(_) ->
    Test = self(),
    Asked = counters:new(1, []),
    Changed = #{jsonrpc => ~"2.0", method => ~"notifications/resources/list_changed"},
    Peer = erlmcp_test_peer:tcp(fun
        (#{~"method" := ~"server/discover"} = Message) ->
            [result(Message, #{resultType => ~"complete", supportedVersions => [~"2026-07-28"],
                               capabilities => #{}})];
        (#{~"method" := ~"resources/list"} = Message) ->
            ok = counters:add(Asked, 1, 1),
            Name = integer_to_binary(counters:get(Asked, 1)),
            Answer = result(Message, #{
                resultType => ~"complete", ttlMs => 60_000, cacheScope => ~"private",
                resources => [#{uri => ~"test://text", name => Name}]}),
            Wait = fun(_) -> Test ! {changed, self()}, receive go -> ok end end,
            [Before || Name =:= ~"1", Before <- [Changed, Wait]] ++ [Answer]
    end),
    #{port := Port} = Peer,
    Client = started({tcp, ~"127.0.0.1", Port, #{}}),
    {ok, Reference} = erlmcp_client:async(Client, {list, resources}),
    Connection = receive {changed, Pid} -> Pid after ?WAIT -> error(not_asked) end,
    {ok, #{cache := Cache}} = erlmcp_client_table:find(Client),
    ok = eventually(fun() -> erlmcp_client_cache:changes(Cache) =:= 1 end),
    Connection ! go,
    ~"1" = name(event(Reference)),
    [~"2" = name(erlmcp_client:list_resources(Client)) || _ <- [1, 2]],
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer).

name({ok, [#{~"name" := Name}]}) -> Name.

%% A pause that no timer takes ends no stream.
longest_retry(_) ->
    {_, Reader} = erlmcp_sse_reader:push(~"id: 1\nretry: 999999999999999\ndata: x\n\n",
                                         erlmcp_sse_reader:new(100)),
    {Delay, _} = erlmcp_httpc_resumption:delay(
        erlmcp_httpc_resumption:progress(Reader, erlmcp_httpc_resumption:new())),
    true = Delay >= 86_400_000,
    Timer = erlang:start_timer(Delay, self(), retry),
    true = is_integer(erlang:cancel_timer(Timer)).

%% Whatever ended, somebody reads why.
every_reason_is_a_sentence(_) ->
    [{Reason, Text} = {Reason, erlmcp_client:format_error(Reason)}
     || {Reason, Text} <- [
            {timeout, ~"the server was not reached in time"},
            {{connect, econnrefused}, ~"the server cannot be reached: connection refused"},
            {{connect, no_server}, ~"the server cannot be reached: no_server"},
            {{closed, {exit_status, 3}},
             ~"the connection ended before the answer: {exit_status,3}"},
            {session_lost, ~"the server has forgotten the session"},
            {{redirect, ~"http://other.example/mcp"},
             ~"the server redirects to a URL that is not followed: http://other.example/mcp"},
            {{too_large, heap}, ~"the server's messages take more memory than a call may use"},
            {{too_large, 10}, ~"the server's message is larger than 10 bytes"},
            {{overload, 8}, ~"the client's own limit of 8 is reached"},
            {{cursor_loop, ~"two"}, ~"the server's list returns to an earlier page: two"},
            {{too_many_pages, 100}, ~"the server's list has more than 100 pages"},
            {{too_many_rounds, 10}, ~"the server asked for input more than 10 times"},
            {{unavailable, 500},
             ~"no server of the pool works; one is tried again in 500 ms"},
            {{crashed, badarg}, ~"the call crashed; the log says more"},
            {cancelled, ~"the call was cancelled"},
            {stopped, ~"the client is not running"},
            %% Bytes that are no text end it.
            {{protocol, <<"a", 255, "b">>}, ~"the server's message is not MCP: a"}]].

log(Event, #{config := Test}) ->
    Test ! {logged, io_lib:format("~0p", [Event])}.

logged() ->
    receive {logged, Text} -> [Text | logged()] after 0 -> [] end.
