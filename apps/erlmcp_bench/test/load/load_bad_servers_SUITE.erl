-module(load_bad_servers_SUITE).
-moduledoc """
Tests for faulty servers: each fault is counted under its own name, and each request is in one of
the sums.
""".

-import(erlmcp_test_load_server, [good/1, good/2, http/1, http/2, line/1]).

-export([suite/0, all/0, groups/0]).
-export([dropped_replies_are_failures/1, dropped_replies_close_an_http_connection/1,
         wrong_ids_are_wrong/1, wrong_ids_in_lines_are_wrong/1, swapped_replies_are_wrong/1,
         wrong_content_is_wrong/1, bytes_that_are_no_reply_are_wrong/1,
         replies_before_bad_bytes_are_answers/1,
         late_replies_are_failures_and_late/1, refusals_have_their_codes/1,
         lost_connections_are_failures_and_opened_again/1, a_server_that_goes_is_not_reached/1,
         a_stall_is_in_the_percentiles/1, what_is_never_sent_is_counted/1,
         each_connection_has_its_turn/1,
         many_connections_are_opened_again/1, connections_are_left/1,
         connections_are_left_before_the_load_begins/1,
         a_connection_that_closes_while_it_opens_is_not_open/1,
         what_lost_connections_had_to_send_is_sent/1, many_connections_are_not_waited_for/1,
         slow_openings_do_not_wait_for_each_other/1, loads_open_at_the_same_time/1,
         a_server_that_does_not_read_is_waited_for/1]).

%% More than one process handles.
-define(MANY, 300).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, waiting}, wrong_ids_are_wrong, swapped_replies_are_wrong, wrong_content_is_wrong,
     bytes_that_are_no_reply_are_wrong, replies_before_bad_bytes_are_answers,
     refusals_have_their_codes,
     lost_connections_are_failures_and_opened_again, a_server_that_goes_is_not_reached,
     a_stall_is_in_the_percentiles, what_is_never_sent_is_counted, each_connection_has_its_turn,
     many_connections_are_opened_again, connections_are_left,
     connections_are_left_before_the_load_begins,
     a_connection_that_closes_while_it_opens_is_not_open,
     what_lost_connections_had_to_send_is_sent, slow_openings_do_not_wait_for_each_other,
     loads_open_at_the_same_time, a_server_that_does_not_read_is_waited_for].

%% They wait for the ends of requests that are not answered.
groups() ->
    [{waiting, [parallel],
      [dropped_replies_are_failures, dropped_replies_close_an_http_connection,
       wrong_ids_in_lines_are_wrong, late_replies_are_failures_and_late,
       many_connections_are_not_waited_for]}].

dropped_replies_are_failures(_) ->
    Server =
        erlmcp_test_load_server:start(lines, fun(5, _) -> nothing; (_, Id) -> line(good(Id)) end),
    {Outcomes, #{failed := #{timeout := Timeouts}, wrong := 0}} =
        until(10, lines(Server), #{timeout_ms => 300, loop => {closed, 1}}),
    true = Timeouts >= 1,
    {failed, timeout} = lists:nth(5, Outcomes),
    ok.

%% No later answer can be sent on that connection.
dropped_replies_close_an_http_connection(_) ->
    Server =
        erlmcp_test_load_server:start(http, fun(Number, _) when Number >= 5, Number =< 7 -> nothing;
                                                (_, Id) -> http(good(Id))
                                            end),
    {Outcomes, #{failed := Failed}} =
        until(12, web(Server), #{timeout_ms => 2_000, loop => {closed, 3}}),
    #{timeout := 1, behind_timeout := 2} = Failed,
    true = lists:member(answered, lists:nthtail(7, Outcomes)).

wrong_ids_are_wrong(_) ->
    Count = counters:new(1, []),
    Server = erlmcp_test_load_server:start(http, fun(Number, Id) when Number rem 5 =:= 0 ->
                                                         ok = counters:add(Count, 1, 1),
                                                         http(good(Id + 1));
                                                     (_, Id) ->
                                                         http(good(Id))
                                                 end),
    {_, #{wrong_by := #{id := Wrong}, wrong := Wrong, failed := Failed}} =
        until(30, web(Server), #{loop => {closed, 3}}),
    {Wrong, 0} = {counters:get(Count, 1), map_size(Failed)}.

wrong_ids_in_lines_are_wrong(_) ->
    Server = erlmcp_test_load_server:start(lines, fun(2, Id) -> line(good(Id + 1_000_000));
                                                      (4, _) -> line(good(7));
                                                      (_, Id) -> line(good(Id))
                                                  end),
    {_, #{wrong := 2, wrong_by := #{id := 2}, strays := 2}} =
        until(20, lines(Server), #{timeout_ms => 2_000, loop => {closed, 1}}).

%% Two replies under each other's ids have the right ids, and are each other's.
swapped_replies_are_wrong(_) ->
    Server = erlmcp_test_load_server:start(lines, fun(_, Id) -> line(text_of(Id)) end),
    Requests = [{1, echo(~"first words")}, {1, echo(~"second words")}],
    {_, #{wrong := Wrong, wrong_by := #{content := Wrong}, answered := Answered}} =
        until(100, lines(Server), #{requests => Requests, loop => {closed, 2}}),
    true = Wrong > 0 andalso Answered > 0.

text_of(Id) when Id rem 2 =:= 0 -> good(Id, ~"first words");
text_of(Id) -> good(Id, ~"second words").

wrong_content_is_wrong(_) ->
    Count = counters:new(1, []),
    Server = erlmcp_test_load_server:start(http, fun(Number, Id) when Number rem 7 =:= 0 ->
                                                         ok = counters:add(Count, 1, 1),
                                                         http(good(Id, binary:copy(~"x", 63)));
                                                     (_, Id) ->
                                                         http(good(Id))
                                                 end),
    {_, #{wrong := Wrong, wrong_by := #{content := Wrong}}} = until(30, web(Server), #{}),
    Wrong = counters:get(Count, 1).

bytes_that_are_no_reply_are_wrong(_) ->
    Bad = #{2 => http(~"{\"jsonrpc\":\"2.0\",\"id\":1"), 3 => http(~"[]"), 4 => http(~""),
            5 => http(json:encode(#{jsonrpc => ~"2.0", id => 1, method => ~"ping"})),
            6 => {reply, ~"HTTP/1.1 what\r\n\r\n"}},
    Server = erlmcp_test_load_server:start(http, fun(Number, Id) ->
                                                     maps:get(Number, Bad, http(good(Id)))
                                                 end),
    {Outcomes, #{wrong := 5}} = until(8, web(Server), #{}),
    [answered, {wrong, json}, {wrong, message}, {wrong, empty}, {wrong, message},
     {wrong, bad_head}, answered, answered] = Outcomes.

%% In the same packet.
replies_before_bad_bytes_are_answers(_) ->
    [begin
         Server = erlmcp_test_load_server:start(http, fun(2, Id) ->
                                                              {reply, Reply} = http(good(Id)),
                                                              {reply, [Reply, Bad]};
                                                          (_, Id) ->
                                                              http(good(Id))
                                                      end),
         {Outcomes, #{wrong := 0, failed := Failed, strays := Strays}} =
             until(4, web(Server), #{}),
         {[answered, answered, answered, answered], #{}} = {Outcomes, Failed}
     end || {Strays, Bad} <- [{0, ~"HTTP/1.1 what\r\n\r\n"},
                              {1, ~"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"}]].

%% The third reply comes when the client has given it up, which is seen from its asking on.
late_replies_are_failures_and_late(_) ->
    Held = atomics:new(1, []),
    Server =
        erlmcp_test_load_server:start(lines, fun(3, Id) -> ok = atomics:put(Held, 1, Id), nothing;
                                                 (4, Id) -> [line(good(atomics:get(Held, 1))),
                                                             line(good(Id))];
                                                 (_, Id) -> line(good(Id))
                                             end),
    {Outcomes, #{failed := #{timeout := _}, late := Late, strays := 0, wrong := 0}} =
        until(10, lines(Server), #{timeout_ms => 300}),
    {failed, timeout} = lists:nth(3, Outcomes),
    true = Late >= 1.

refusals_have_their_codes(_) ->
    Server = erlmcp_test_load_server:start(http, fun(1, Id) -> http(503, refusal(1056, 1056, Id));
                                                     (2, Id) ->
                                                         http(400, refusal(-32600, 1066, Id));
                                                     (3, _) ->
                                                         http(502, ~"<html>Bad Gateway</html>");
                                                     (4, Id) -> http(refusal(-32602, none, Id));
                                                     (5, Id) -> http(tool_error(Id));
                                                     (6, _) -> http(429, refusal(1059, none, null));
                                                     (_, Id) -> http(good(Id))
                                                 end),
    {Outcomes, #{refused := Refused}} = until(8, web(Server), #{}),
    #{1056 := 1, 1066 := 1, 502 := 1, -32602 := 1, tool_error := 1, 1059 := 1} = Refused,
    [{refused, 1056, #{~"retryAfterMs" := 5}}, {refused, 1066, _}, {refused, 502, _},
     {refused, -32602, _}, {refused, tool_error, _}, {refused, 1059, _}, answered, answered] =
        Outcomes.

refusal(Code, Number, Id) ->
    json:encode(#{jsonrpc => ~"2.0", id => Id,
                  error => #{code => Code, message => ~"no",
                             data => #{refusal => Number, retryAfterMs => 5}}}).

tool_error(Id) ->
    json:encode(#{jsonrpc => ~"2.0", id => Id, result => #{content => [], isError => true}}).

lost_connections_are_failures_and_opened_again(_) ->
    Server =
        erlmcp_test_load_server:start(lines, fun(3, _) -> close; (_, Id) -> line(good(Id)) end),
    {[answered, answered, {failed, _}, answered, answered], #{lost := 1, opened := 1}} =
        until(5, lines(Server), #{}).

a_server_that_goes_is_not_reached(_) ->
    Target = {tcp, {127, 0, 0, 1}, erlmcp_test_port:unused()},
    {error, {open, econnrefused}} = erlmcp_load:run(#{target => Target}).

%% 200 requests a second, of which one is answered after 300 ms: those that were due meanwhile
%% waited too, and their latencies say so.
a_stall_is_in_the_percentiles(_) ->
    Server = erlmcp_test_load_server:start(http, fun(100, Id) -> {pause, 300, http(good(Id))};
                                                     (_, Id) -> http(good(Id))
                                                 end),
    #{latency := Latency, lateness := Lateness, sent := Sent, answered := Sent} =
        run(web(Server), #{loop => {open, 200, even}, duration_ms => 1500}),
    %% Half of the 60, if the machine itself stalls for the other ones.
    true = slower_than(100_000, Latency) >= 30,
    true = slower_than(100_000, Lateness) >= 30,
    true = erlmcp_bench_histogram:max(Latency) >= 300_000.

slower_than(Us, Histogram) ->
    lists:sum([Count || {UpTo, Count} <- erlmcp_bench_histogram:to_list(Histogram), UpTo > Us]).

%% 50 are due, and the only connection waits for the first.
what_is_never_sent_is_counted(_) ->
    Server = erlmcp_test_load_server:start(http, fun(_, _) -> nothing end),
    #{sent := Sent, unsent := Unsent, answered := 0, failed := #{timeout := Sent}} =
        run(web(Server), #{loop => {open, 100, even}, duration_ms => 500, timeout_ms => 400}),
    true = Sent >= 1 andalso Unsent >= 1,
    true = lists:member(Sent + Unsent, [49, 50]).

%% The load has as many callers as connections. Requests that are due together go to several
%% connections.
each_connection_has_its_turn(Config) ->
    Counts = ets:new(counts, [public]),
    Server = erlmcp_test_load_server:start(lines, fun(_, _) ->
        _ = ets:update_counter(Counts, self(), 1, {self(), 0}),
        nothing
    end),
    case run(lines(Server), #{connections => 100, loop => {open, 10_000, even}, duration_ms => 9,
                              timeout_ms => 2_000}) of
        #{sent := Sent, open_failed := 0} when Sent > 50 ->
            %% One of the load's processes, which has half of the connections, may send all of them.
            Most = lists:max([Count || {_, Count} <- ets:tab2list(Counts)]),
            true = Most =< 2;
        #{open_failed := 0} ->
            %% On a busy machine the load may end before its processes have run. Then it tells
            %% nothing, and there is another one.
            each_connection_has_its_turn(Config)
    end.

%% The connections are opened again: otherwise the load could not send that many requests.
many_connections_are_opened_again(_) ->
    Server = erlmcp_test_load_server:start(lines, fun(Number, _) when Number rem 2 =:= 0 -> close;
                                                      (_, Id) -> line(good(Id))
                                                  end),
    [begin
         {Outcomes, #{opened := ?MANY, wrong := 0, strays := 0}} =
             until(5 * ?MANY, lines(Server), #{connections => ?MANY, loop => Loop}),
         [_ | _] = [failed || {failed, _} <- Outcomes]
     end || Loop <- [{closed, 1}, {open, 4_000, poisson}]].

%% Each connection closes with its first answer. No request waits for its timeout.
connections_are_left(_) ->
    Server = erlmcp_test_load_server:start(http, fun(_, Id) -> last(good(Id)) end),
    [begin
         {Outcomes, #{opened := Connections, lost := 0}} =
             until(3 * Connections, web(Server), #{connections => Connections, loop => Loop,
                                                   timeout_ms => 3_600_000}),
         [] = [Outcome || Outcome <- Outcomes, Outcome =/= answered]
     end || Connections <- [1, ?MANY], Loop <- [{closed, 1}, {open, 2_000, even}]].

%% All those of a group, whose server is gone then.
connections_are_left_before_the_load_begins(_) ->
    {ok, Listener} = gen_tcp:listen(0, [binary, {active, false}, {ip, {127, 0, 0, 1}}]),
    {ok, Port} = inet:port(Listener),
    {ok, #{way := Way, counts := Counts} = Settings} = erlmcp_load_plan:settings(
        #{target => {http, erlmcp_test_load_server:url({http, Port})}, protocol => http2}),
    Group = erlmcp_load_group:start_link(Settings#{patterns => ets:new(patterns, [public])},
                                         [erlmcp_load_target:endpoint(Of, Way) || Of <- [0, 1]]),
    _ = [leaves(Listener) || _ <- [0, 1]],
    ok = gen_tcp:close(Listener),
    Now = erlang:monotonic_time(microsecond),
    ok = erlmcp_load_group:go(Group, Now, Now, Now + 3_600_000_000),
    receive {Group, {closed, _}} -> ok end,
    %% The group goes on trying to open the other one.
    ok = failed_to_open(3, Counts),
    ok = erlmcp_load_group:finish(Group),
    receive {Group, {finished, _}} -> ok end.

%% The client has read the goodbye when it answers the ping.
leaves(Listener) ->
    {ok, Socket} = gen_tcp:accept(Listener),
    ok = gen_tcp:send(Socket, [cow_http2:settings(#{}), cow_http2:goaway(0, no_error, ~""),
                               cow_http2:ping(7)]),
    received(iolist_to_binary(cow_http2:ping_ack(7)), Socket, ~"").

received(Last, Socket, Bytes) ->
    case binary:match(Bytes, Last) of
        nomatch ->
            {ok, More} = gen_tcp:recv(Socket, 0),
            received(Last, Socket, <<Bytes/binary, More/binary>>);
        _ ->
            Socket
    end.

failed_to_open(Times, Counts) ->
    case erlmcp_load_counts:all(Counts) of
        #{open_failed := Failed} when Failed >= Times -> ok;
        #{} -> receive after 20 -> failed_to_open(Times, Counts) end
    end.

%% The server says so with its last answer before the load, and reads no request after it.
a_connection_that_closes_while_it_opens_is_not_open(_) ->
    Closed = atomics:new(1, []),
    Server = erlmcp_test_load_server:start(http, fun
        (_, none) ->
            case atomics:exchange(Closed, 1, 1) of
                0 -> [last(~""), close];
                1 -> http(202, ~"")
            end;
        (_, Id) ->
            case put(initialized, true) of
                undefined -> http(initialized(Id));
                true -> http(good(Id))
            end
    end),
    Session = #{era => {session, ~"2025-11-25"}},
    {error, {open, closed}} = erlmcp_load:start(Session#{target => web(Server)}),
    {[answered, answered], #{open_failed := 0}} = until(2, web(Server), Session),
    %% A refusal is told as one.
    Refusing = erlmcp_test_load_server:start(http, fun(_, _) -> last(401, ~"") end),
    {error, {open, {refused, 401}}} = erlmcp_load:start(Session#{target => web(Refusing)}).

%% Each connection is lost with its first request, and its later requests are sent on others. (A run
%% in which the machine pauses still has some late requests.)
what_lost_connections_had_to_send_is_sent(_) ->
    true = lists:any(fun(_) ->
        Server = erlmcp_test_load_server:start(lines, fun(Number, _) when Number < ?MANY -> close;
                                                          (_, Id) -> line(good(Id))
                                                      end),
        #{unsent := Unsent} = run(lines(Server), #{connections => ?MANY, duration_ms => 1_000,
                                                   loop => {open, 1_000, even}}),
        Unsent =:= 0
    end, lists:seq(1, 5)).

last(Answer) -> last(200, Answer).

last(Status, Answer) ->
    Body = iolist_to_binary(Answer),
    {reply, ["HTTP/1.1 ", integer_to_list(Status), " said\r\nconnection: close\r\n"
             "content-type: application/json\r\n"
             "content-length: ", integer_to_list(byte_size(Body)), "\r\n\r\n", Body]}.

%% Of those that are not answered, each has another request when the time of the first is over.
many_connections_are_not_waited_for(_) ->
    Server = erlmcp_test_load_server:start(lines, fun(Number, _) when Number rem 2 =:= 0 -> nothing;
                                                      (_, Id) -> line(good(Id))
                                                  end),
    {Outcomes, #{lost := 0, wrong := 0}} =
        until(4 * ?MANY, lines(Server), #{connections => ?MANY, timeout_ms => 1_500}),
    true = lists:member({failed, timeout}, Outcomes).

%% The server delays the first opening until the given number of connections has sent one.
slow_openings_do_not_wait_for_each_other(_) ->
    AtOnce = 32,
    Gate = spawn_link(fun() -> gate(AtOnce, []) end),
    Server = erlmcp_test_load_server:start(lines, fun(_, none) -> nothing;
                                                      (_, Id) -> line(begun(get(begun), Gate, Id))
                                                  end),
    {_, #{opened := AtOnce, open_failed := 0, wrong := 0}} =
        until(2 * AtOnce, lines(Server), #{era => {session, ~"2025-11-25"},
                                           connections => AtOnce}).

%% Nor do loads that are started together, in the order of their plans.
loads_open_at_the_same_time(_) ->
    Gate = spawn_link(fun() -> gate(3, []) end),
    Server = erlmcp_test_load_server:start(lines, fun(_, none) -> nothing;
                                                      (_, Id) -> line(begun(get(begun), Gate, Id))
                                                  end),
    Plan = #{target => lines(Server), era => {session, ~"2025-11-25"}, connections => 1,
             duration_ms => 3_600_000},
    [{ok, One}, {error, {bad_option, connections}}, {ok, Other}, {ok, Third}] =
        erlmcp_load:start_all([Plan, Plan#{connections => 0}, Plan, Plan]),
    [#{opened := 1} = erlmcp_load:stop(Load) || Load <- [One, Other, Third]],
    ok.

%% The cancellation of each request waits as long as the request itself, on one connection after the
%% other. In all this is longer than any other end of a load takes.
a_server_that_does_not_read_is_waited_for(_) ->
    {ok, Listener} = gen_tcp:listen(0, [{active, false}, {ip, {127, 0, 0, 1}}, {recbuf, 4096}]),
    {ok, Port} = inet:port(Listener),
    Server = spawn_link(fun() -> hangs(Listener) end),
    %% There is a group for each scheduler.
    Schedulers = erlang:system_flag(schedulers_online, 1),
    try
        #{answered := 0} = run({http, erlmcp_test_load_server:url({http, Port})},
                               #{protocol => http2, connections => 10, duration_ms => 1_000,
                                 payload_bytes => 16_000_000, timeout_ms => 2_000})
    after
        1 = erlang:system_flag(schedulers_online, Schedulers)
    end,
    true = unlink(Server),
    true = exit(Server, kill).

%% With windows for all that a client has to send.
hangs(Listener) ->
    {ok, Socket} = gen_tcp:accept(Listener),
    ok = gen_tcp:send(Socket, [cow_http2:settings(#{initial_window_size => 16#7fffffff}),
                               cow_http2:window_update(16#7fff0000)]),
    hangs(Listener).

gate(0, Waiting) -> [Pid ! begins || Pid <- Waiting];
gate(Left, Waiting) -> receive {asks, Pid} -> gate(Left - 1, [Pid | Waiting]) end.

begun(true, _, Id) ->
    good(Id);
begun(undefined, Gate, Id) ->
    undefined = put(begun, true),
    Gate ! {asks, self()},
    receive begins -> ok end,
    initialized(Id).

initialized(Id) ->
    json:encode(#{jsonrpc => ~"2.0", id => Id,
                  result => #{protocolVersion => ~"2025-11-25", capabilities => #{},
                              serverInfo => #{name => ~"slow", version => ~"1"}}}).

echo(Text) -> {~"tools/call", #{~"name" => ~"echo", ~"arguments" => #{~"text" => Text}}}.

web(Server) -> {http, erlmcp_test_load_server:url(Server)}.

lines(Server) -> {tcp, {127, 0, 0, 1}, erlmcp_test_load_server:port(Server)}.

%% A load until the given number of requests has ended.
until(Requests, Target, Plan) ->
    {ok, Load} = erlmcp_load:start(Plan#{target => Target, duration_ms => 3_600_000,
                                         observer => self()}),
    Outcomes = [receive {erlmcp_load, Outcome, _, _} -> Outcome end
                || _ <- lists:seq(1, Requests)],
    Report = accounted(erlmcp_load:stop(Load)),
    ok = forget(),
    {Outcomes, Report}.

forget() ->
    receive {erlmcp_load, _, _, _} -> forget() after 0 -> ok end.

run(Target, Plan) ->
    {ok, Report} = erlmcp_load:run(Plan#{target => Target}),
    accounted(Report).

accounted(Report) ->
    #{sent := Sent, answered := Answered, refused := Refused, failed := Failed, wrong := Wrong,
      wrong_by := WrongBy} = Report,
    Sent = Answered + Wrong + lists:sum(maps:values(Refused) ++ maps:values(Failed)),
    Wrong = lists:sum(maps:values(WrongBy)),
    Report.
