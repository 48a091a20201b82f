-module(httpc_pool_SUITE).
-moduledoc """
The client's connections of HTTP, over real sockets: a server of ours where one has to behave, and
plain listeners where one does not.
""".

-include_lib("public_key/include/public_key.hrl").

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2]).
-export([an_exchange_is_carried/1, idle_connections_are_closed/1, stopped_pool_leaves_nothing/1,
         broken_connection_is_not_taken_again/1, what_was_reached_is_known/1]).
-export([connections_are_bounded/1, no_connection_is_shared_while_busy/1, waiting_is_bounded/1,
         waiting_ends_at_the_deadline/1, first_to_wait_is_first_served/1,
         who_left_is_not_served/1, streams_are_bounded_and_leave_calls_alone/1,
         messages_wait_for_no_call_or_stream/1, calls_are_served_before_messages/1,
         calls_wait_for_no_message/1, messages_open_few_connections/1,
         killed_holder_ends_its_connection/1, connection_closed_by_the_server_is_not_taken/1,
         answer_that_closes_is_not_a_failure/1]).
-export([streams_share_a_connection/1, servers_limit_is_kept/1, long_streams_are_bounded/1,
         a_message_has_a_stream_of_its_own/1,
         killed_holder_leaves_the_others/1, holders_that_die_do_not_use_it_up/1]).
-export([dead_server_is_told_at_once/1, dead_server_is_tried_again/1, silent_server_costs_a_time/1,
         waiting_streams_are_not_calls/1,
         others_do_not_wait_for_a_silent_server/1, unknown_host_is_told/1, pauses_grow/1,
         endless_headers_are_bounded/1, memory_is_bounded/1, other_family_is_tried/1]).
-export([log/2]).
-export([unknown_root_is_refused/1, own_roots_are_trusted/1, wrong_host_is_refused/1,
         wrong_address_is_refused/1, alpn_chooses/1, own_options_come_first/1,
         answer_that_closes_has_its_time/1]).

-import(erlmcp_test_httpc_channel, [await/2]).

-define(TIMEOUT, 30_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, http}, {group, http2}, {group, http_alone}, {group, http2_alone}, {group, failures},
     {group, tls}].

groups() ->
    Both = [an_exchange_is_carried, idle_connections_are_closed, stopped_pool_leaves_nothing,
            broken_connection_is_not_taken_again, what_was_reached_is_known],
    [{http, Both}, {http2, Both},
     {http_alone, [connections_are_bounded, no_connection_is_shared_while_busy,
                   waiting_is_bounded, waiting_ends_at_the_deadline,
                   first_to_wait_is_first_served, who_left_is_not_served,
                   streams_are_bounded_and_leave_calls_alone,
                   messages_wait_for_no_call_or_stream, calls_are_served_before_messages,
                   calls_wait_for_no_message, messages_open_few_connections,
                   killed_holder_ends_its_connection,
                   connection_closed_by_the_server_is_not_taken,
                   answer_that_closes_is_not_a_failure]},
     {http2_alone, [streams_share_a_connection, servers_limit_is_kept, long_streams_are_bounded,
                    a_message_has_a_stream_of_its_own,
                    killed_holder_leaves_the_others, holders_that_die_do_not_use_it_up]},
     {failures, [dead_server_is_told_at_once, dead_server_is_tried_again,
                 silent_server_costs_a_time, waiting_streams_are_not_calls,
                 others_do_not_wait_for_a_silent_server,
                 unknown_host_is_told, pauses_grow, endless_headers_are_bounded,
                 memory_is_bounded, other_family_is_tried]},
     {tls, [unknown_root_is_refused, own_roots_are_trusted, wrong_host_is_refused,
            wrong_address_is_refused, alpn_chooses, own_options_come_first,
            answer_that_closes_has_its_time]}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, ssl, gun], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(http, Config) -> [{protocols, [http]} | Config];
init_per_group(http_alone, Config) -> [{protocols, [http]} | Config];
init_per_group(http2, Config) -> [{protocols, [http2]} | Config];
init_per_group(http2_alone, Config) -> [{protocols, [http2]} | Config];
init_per_group(tls, Config) ->
    Names = [{dNSName, "localhost"}, {iPAddress, <<127, 0, 0, 1>>}],
    [{named, certificates(Names)}, {unnamed, certificates([{dNSName, "localhost"}])} | Config];
init_per_group(failures, Config) -> Config.

end_per_group(_, _) ->
    ok.

certificates(Names) ->
    Made = [{digest, sha256}, {key, {namedCurve, secp256r1}}],
    Extension = #'Extension'{extnID = ?'id-ce-subjectAltName', extnValue = Names,
                             critical = false},
    Chain = #{root => Made, intermediates => [], peer => Made},
    #{server_config := Server, client_config := Client} = public_key:pkix_test_data(
        #{server_chain => Chain#{peer => [{extensions, [Extension]} | Made]},
          client_chain => Chain}),
    {Server, proplists:get_value(cacerts, Client)}.

%% A server of ours, and a pool for it.
start(Config) ->
    start(#{}, #{}, Config).

start(Limits, Options, Config) ->
    Server = #{port := Port} = server(Limits),
    Protocols = proplists:get_value(protocols, Config),
    {Server, pool({http, ~"127.0.0.1", Port}, Options#{protocols => Protocols})}.

server(Limits) ->
    Definitions = erlmcp_test_http:definitions(self()),
    erlmcp_test_http:start(Definitions#{limits => Limits}).

pool(Origin, Options) ->
    {ok, Pid} = erlmcp_httpc_pool:start_link(Options#{origin => Origin}),
    erlmcp_httpc_pool:handle(Pid).

in(Ms) ->
    erlang:monotonic_time(millisecond) + Ms.

take(Handle) ->
    take(Handle, call).

take(Handle, Kind) ->
    {ok, Loan} = erlmcp_httpc_pool:checkout(Handle, Kind, in(?TIMEOUT), #{}),
    Loan.

refusal(Handle, Kind, Ms) ->
    {error, Reason} = erlmcp_httpc_pool:checkout(Handle, Kind, in(Ms), #{}),
    Reason.

connection(Loan) ->
    erlmcp_httpc_pool:connection(Loan).

reusable(Loan) ->
    ok = erlmcp_httpc_pool:give_back(Loan, reusable).

%% A process that takes a loan, and tells what came of it.
taker(Handle, Kind) ->
    Test = self(),
    spawn(fun() ->
        Test ! {self(), erlmcp_httpc_pool:checkout(Handle, Kind, in(?TIMEOUT), #{})},
        receive stop -> ok end
    end).

%% So many who wait for one, in the order in which they came.
waiting(Count, Handle) ->
    [begin
         Taker = taker(Handle, call),
         await(Handle, #{waiting => Number}),
         Taker
     end || Number <- lists:seq(1, Count)].

told(Taker) ->
    receive {Taker, Result} -> Result after ?TIMEOUT -> error(nothing_told) end.

killed(Pid) ->
    exit(Pid, kill),
    _ = erlmcp_test_http:ended(Pid),
    ok.

%% A request and its response, by which the loan is given back.
exchange(Loan) ->
    {Headers, Body} = erlmcp_test_http:message(~"ping", #{}, #{}),
    {ok, Request} = asked(Loan, {post, ~"/mcp"}, {Headers, iolist_to_binary(Body)}),
    {Status, _} = response(Request, none, ~""),
    Status.

asked(Loan, Asked, {Headers, Body}) ->
    erlmcp_httpc_pool_request:request(Loan, Asked, {[{~"host", ~"127.0.0.1"} | Headers], Body}).

response(Request, Status, Held) ->
    {ok, Message} = erlmcp_httpc_pool_request:next(Request, in(?TIMEOUT)),
    case erlmcp_httpc_pool_request:received(Message, Request) of
        {head, IsFin, Said, _, Data, Next} -> response(IsFin, Next, Said, Data);
        {data, IsFin, Data, Next} -> response(IsFin, Next, Status, <<Held/binary, Data/binary>>);
        {more, Next} -> response(Next, Status, Held);
        {broken, Reason, Left} ->
            ok = erlmcp_httpc_pool_request:give_back(Left, Request),
            {broken, Reason}
    end.

response(nofin, Request, Status, Body) ->
    response(Request, Status, Body);
response(fin, Request, Status, Body) ->
    ok = erlmcp_httpc_pool_request:give_back(reusable, Request),
    {Status, Body}.

an_exchange_is_carried(Config) ->
    {_, Handle} = start(Config),
    #{open := 0, busy := 0, waiting := 0, ejected := 0} = erlmcp_httpc_pool:info(Handle),
    Loan = take(Handle),
    #{open := 1, busy := 1} = erlmcp_httpc_pool:info(Handle),
    true = is_integer(exchange(Loan)),
    #{open := 1, busy := 0} = erlmcp_httpc_pool:info(Handle),
    Again = take(Handle),
    {Connection, Connection} = {connection(Loan), connection(Again)},
    true = is_integer(exchange(Again)).

idle_connections_are_closed(Config) ->
    {_, Handle} = start(#{}, #{idle_ms => 100}, Config),
    Loans = [take(Handle) || _ <- lists:seq(1, 3)],
    [reusable(Loan) || Loan <- Loans],
    [_ = erlmcp_test_http:ended(connection(Loan)) || Loan <- Loans],
    await(Handle, #{open => 0, busy => 0}),
    %% And there is another when one is needed.
    true = is_integer(exchange(take(Handle))).

%% This machine's own address is as far inside as any.
what_was_reached_is_known(Config) ->
    {_, Handle} = start(Config),
    none = erlmcp_httpc_pool:outermost(Handle),
    true = is_integer(exchange(take(Handle))),
    2 = erlmcp_httpc_pool:outermost(Handle).

stopped_pool_leaves_nothing(Config) ->
    {_, Handle} = start(#{}, #{connections => 1}, Config),
    Loan = take(Handle),
    {links, Links} = process_info(self(), links),
    [Pool] = [Pid || Pid <- Links, is_pid(Pid),
                     proc_lib:translate_initial_call(Pid) =:= {erlmcp_httpc_pool, init, 1}],
    unlink(Pool),
    exit(Pool, shutdown),
    _ = erlmcp_test_http:ended(Pool),
    _ = erlmcp_test_http:ended(connection(Loan)),
    {connect, stopped} = refusal(Handle, call, ?TIMEOUT),
    {connect, stopped} = refusal(Handle, stream, ?TIMEOUT),
    #{open := 0, busy := 0, waiting := 0, ejected := 0} = erlmcp_httpc_pool:info(Handle),
    reusable(Loan).

broken_connection_is_not_taken_again(Config) ->
    {_, Handle} = start(Config),
    Loan = take(Handle),
    ok = erlmcp_httpc_pool:give_back(Loan, broken),
    Next = take(Handle),
    true = connection(Loan) =/= connection(Next),
    _ = erlmcp_test_http:ended(connection(Loan)),
    reusable(Next).

%% At the limit, and one more.
connections_are_bounded(Config) ->
    {_, Handle} = start(#{}, #{connections => 3}, Config),
    [First | _] = [take(Handle) || _ <- lists:seq(1, 3)],
    timeout = refusal(Handle, call, 100),
    #{open := 3, busy := 3, waiting := 0} = erlmcp_httpc_pool:info(Handle),
    reusable(First),
    true = connection(First) =:= connection(take(Handle)).

no_connection_is_shared_while_busy(Config) ->
    {_, Handle} = start(#{}, #{connections => 4}, Config),
    Test = self(),
    Held = ets:new(held, [public]),
    Workers = [spawn_monitor(fun() ->
        [begin
             Loan = take(Handle),
             true = ets:insert_new(Held, {connection(Loan), self()}),
             erlang:yield(),
             true = ets:delete(Held, connection(Loan)),
             reusable(Loan)
         end || _ <- lists:seq(1, 500)],
        Test ! over
    end) || _ <- lists:seq(1, 16)],
    [receive {'DOWN', Monitor, process, Pid, Reason} -> normal = Reason
     after ?TIMEOUT -> error(still_alive) end || {Pid, Monitor} <- Workers],
    #{open := Open, busy := 0, waiting := 0} = erlmcp_httpc_pool:info(Handle),
    true = Open =< 4.

waiting_is_bounded(Config) ->
    {_, Handle} = start(#{}, #{connections => 1, waiting => 2}, Config),
    Loan = take(Handle),
    Takers = waiting(2, Handle),
    {overload, 2} = refusal(Handle, call, ?TIMEOUT),
    reusable(Loan),
    [begin {ok, Taken} = told(Taker), reusable(Taken) end || Taker <- Takers],
    await(Handle, #{waiting => 0, busy => 0}).

waiting_ends_at_the_deadline(Config) ->
    {_, Handle} = start(#{}, #{connections => 1}, Config),
    _ = take(Handle),
    {Micros, timeout} = timer:tc(fun() -> refusal(Handle, call, 150) end),
    true = Micros >= 140_000 andalso Micros < 20_000_000,
    timeout = refusal(Handle, call, -100),
    #{waiting := 0} = erlmcp_httpc_pool:info(Handle).

first_to_wait_is_first_served(Config) ->
    {_, Handle} = start(#{}, #{connections => 1}, Config),
    Loan = take(Handle),
    Takers = waiting(5, Handle),
    _ = lists:foldl(fun(Taker, Held) ->
                        reusable(Held),
                        {ok, Next} = told(Taker),
                        Next
                    end, Loan, Takers).

who_left_is_not_served(Config) ->
    {_, Handle} = start(#{}, #{connections => 1}, Config),
    Loan = take(Handle),
    Gone = taker(Handle, call),
    await(Handle, #{waiting => 1}),
    Stays = taker(Handle, call),
    await(Handle, #{waiting => 2}),
    ok = killed(Gone),
    await(Handle, #{waiting => 1}),
    reusable(Loan),
    {ok, _} = told(Stays).

streams_are_bounded_and_leave_calls_alone(Config) ->
    {_, Handle} = start(#{}, #{connections => 1, streams => 2}, Config),
    Call = take(Handle),
    Streams = [One, _] = [take(Handle, stream) || _ <- [1, 2]],
    3 = length(lists:usort([connection(Loan) || Loan <- [Call | Streams]])),
    {overload, 2} = refusal(Handle, stream, ?TIMEOUT),
    reusable(Call),
    Call2 = take(Handle),
    true = connection(Call) =:= connection(Call2),
    reusable(One),
    true = connection(One) =:= connection(take(Handle, stream)).

%% What has no response has two connections more than those for calls and streams, and leaves these
%% alone.
messages_wait_for_no_call_or_stream(Config) ->
    {_, Handle} = start(#{}, #{connections => 1, streams => 1, waiting => 1}, Config),
    Call = take(Handle),
    Stream = take(Handle, stream),
    Messages = [First, _] = [take(Handle, message) || _ <- [1, 2]],
    4 = length(lists:usort([connection(Loan) || Loan <- [Call, Stream | Messages]])),
    timeout = refusal(Handle, message, 100),
    {overload, 1} = refusal(Handle, stream, ?TIMEOUT),
    timeout = refusal(Handle, call, 100),
    %% At the limit of those that wait, and one more.
    Waits = taker(Handle, message),
    await(Handle, #{waiting => 1}),
    {overload, 1} = refusal(Handle, message, ?TIMEOUT),
    reusable(First),
    {ok, Taken} = told(Waits),
    true = connection(First) =:= connection(Taken),
    %% A free connection for calls is as good.
    reusable(Call),
    true = connection(Call) =:= connection(take(Handle, message)),
    reusable(Stream),
    true = connection(Stream) =:= connection(take(Handle, stream)),
    #{open := 4, busy := 4} = erlmcp_httpc_pool:info(Handle).

%% On the connections for calls.
calls_are_served_before_messages(Config) ->
    {_, Handle} = start(#{}, #{connections => 1}, Config),
    Call = take(Handle),
    [First, _] = [take(Handle, message) || _ <- [1, 2]],
    Message = taker(Handle, message),
    await(Handle, #{waiting => 1}),
    Waits = taker(Handle, call),
    await(Handle, #{waiting => 2}),
    reusable(Call),
    {ok, Taken} = told(Waits),
    true = connection(Call) =:= connection(Taken),
    reusable(First),
    {ok, Last} = told(Message),
    true = connection(First) =:= connection(Last).

%% Both have a connection of their own at once.
calls_wait_for_no_message(Config) ->
    {_, Handle} = start(#{}, #{connections => 1}, Config),
    Call = take(Handle),
    [Waits] = waiting(1, Handle),
    ok = erlmcp_httpc_pool:give_back(Call, broken),
    _ = take(Handle, message),
    {ok, _} = told(Waits).

%% Many at once have a connection for calls and the two more.
messages_open_few_connections(Config) ->
    {_, Handle} = start(#{}, #{connections => 1, streams => 100}, Config),
    Takers = [taker(Handle, message) || _ <- lists:seq(1, 20)],
    await(Handle, #{busy => 3, waiting => 17}),
    timeout = refusal(Handle, message, 300),
    #{open := 3, busy := 3, waiting := 17} = erlmcp_httpc_pool:info(Handle),
    [ok = killed(Taker) || Taker <- Takers],
    await(Handle, #{busy => 0, waiting => 0}).

killed_holder_ends_its_connection(Config) ->
    {_, Handle} = start(#{}, #{connections => 1}, Config),
    Taker = taker(Handle, call),
    {ok, Loan} = told(Taker),
    ok = killed(Taker),
    %% Its exchange may be in the middle.
    Next = take(Handle),
    true = connection(Loan) =/= connection(Next),
    _ = erlmcp_test_http:ended(connection(Loan)),
    reusable(Next),
    #{open := 1, busy := 0} = erlmcp_httpc_pool:info(Handle).

connection_closed_by_the_server_is_not_taken(_) ->
    {Listener, Port} = listener(),
    Handle = pool({http, ~"127.0.0.1", Port}, #{}),
    Loan = take(Handle),
    {ok, Socket} = gen_tcp:accept(Listener, ?TIMEOUT),
    reusable(Loan),
    ok = gen_tcp:close(Socket),
    _ = erlmcp_test_http:ended(connection(Loan)),
    await(Handle, #{open => 0}),
    Next = take(Handle),
    true = connection(Loan) =/= connection(Next),
    {ok, _} = gen_tcp:accept(Listener, ?TIMEOUT).

%% A server that keeps no connection is one that works.
answer_that_closes_is_not_a_failure(_) ->
    {Listener, Port} = listener(),
    Handle = pool({http, ~"127.0.0.1", Port}, #{}),
    [begin
         Loan = take(Handle),
         {ok, Socket} = gen_tcp:accept(Listener, ?TIMEOUT),
         {ok, Request} = asked(Loan, {get, ~"/"}, {[], ~""}),
         {ok, _} = gen_tcp:recv(Socket, 0, ?TIMEOUT),
         ok = gen_tcp:send(Socket, ~"HTTP/1.0 200 OK\r\n\r\nhello"),
         ok = gen_tcp:close(Socket),
         {200, ~"hello"} = response(Request, none, ~"")
     end || _ <- lists:seq(1, 5)],
    #{ejected := 0} = erlmcp_httpc_pool:info(Handle).

streams_share_a_connection(Config) ->
    {_, Handle} = start(Config),
    Loans = [take(Handle, Kind) || _ <- lists:seq(1, 40), Kind <- [call, stream]],
    [_] = lists:usort([connection(Loan) || Loan <- Loans]),
    #{open := 1, busy := 80} = erlmcp_httpc_pool:info(Handle),
    [reusable(Loan) || Loan <- Loans],
    #{busy := 0} = erlmcp_httpc_pool:info(Handle).

%% SETTINGS_MAX_CONCURRENT_STREAMS: a further connection where the first is full, and the bound of
%% both.
servers_limit_is_kept(Config) ->
    {_, Handle} = start(#{calls_per_connection => 3}, #{connections => 2}, Config),
    Loans = [take(Handle) || _ <- lists:seq(1, 6)],
    PerConnection = maps:groups_from_list(fun connection/1, Loans),
    [3, 3] = [length(Group) || _ := Group <- PerConnection],
    timeout = refusal(Handle, call, 100),
    reusable(hd(Loans)),
    _ = take(Handle).

%% Calls have all the streams that the server allows on the connections for calls.
a_message_has_a_stream_of_its_own(Config) ->
    {_, Handle} = start(#{calls_per_connection => 1}, #{connections => 1, streams => 1}, Config),
    Call = take(Handle),
    Message = take(Handle, message),
    true = connection(Call) =/= connection(Message),
    timeout = refusal(Handle, call, 100),
    [reusable(Loan) || Loan <- [Call, Message]],
    true = connection(Call) =:= connection(take(Handle)),
    true = is_integer(exchange(take(Handle, message))).

long_streams_are_bounded(Config) ->
    {_, Handle} = start(#{}, #{streams => 2}, Config),
    [Loan, _] = [take(Handle, stream) || _ <- [1, 2]],
    {overload, 2} = refusal(Handle, stream, ?TIMEOUT),
    _ = take(Handle),
    reusable(Loan),
    _ = take(Handle, stream).

killed_holder_leaves_the_others(Config) ->
    {_, Handle} = start(Config),
    Loan = take(Handle),
    Taker = taker(Handle, call),
    {ok, _} = told(Taker),
    ok = killed(Taker),
    %% It keeps its seat, for its stream still runs.
    #{open := 1, busy := 2} = erlmcp_httpc_pool:info(Handle),
    Alone = monitor(process, connection(Loan)),
    true = is_integer(exchange(Loan)),
    %% With the last of the others the connection ends, and with it the stream.
    receive {'DOWN', Alone, process, _, _} -> ok after ?TIMEOUT -> error(still_open) end,
    await(Handle, #{open => 0, busy => 0}).

holders_that_die_do_not_use_it_up(Config) ->
    {_, Handle} = start(#{calls_per_connection => 4}, #{connections => 1}, Config),
    Stays = take(Handle),
    Takers = [taker(Handle, call) || _ <- [1, 2, 3]],
    Loans = [begin {ok, Loan} = told(Taker), Loan end || Taker <- Takers],
    [Gun] = lists:usort([connection(Loan) || Loan <- [Stays | Loans]]),
    [ok = killed(Taker) || Taker <- Takers],
    await(Handle, #{open => 0}),
    reusable(Stays),
    _ = erlmcp_test_http:ended(Gun),
    true = is_integer(exchange(take(Handle))).

listener() ->
    {ok, Listener} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}, binary, {active, false},
                                        {reuseaddr, true}]),
    {ok, Port} = inet:port(Listener),
    {Listener, Port}.

dead_server_is_told_at_once(_) ->
    Handle = pool({http, ~"127.0.0.1", erlmcp_test_port:unused()}, #{}),
    [begin
         {Micros, {connect, econnrefused}} =
             timer:tc(fun() -> refusal(Handle, Kind, ?TIMEOUT) end),
         true = Micros < 20_000_000,
         #{open := 0, busy := 0, waiting := 0} = erlmcp_httpc_pool:info(Handle)
     end || _ <- lists:seq(1, 50), Kind <- [call, stream]].

dead_server_is_tried_again(Config) ->
    {Port, Taken} = erlmcp_test_port:taken(),
    Handle = pool({http, ~"127.0.0.1", Port}, #{}),
    {connect, econnrefused} = refusal(Handle, call, ?TIMEOUT),
    ok = erlmcp_test_port:give_back(Taken),
    Server = erlmcp_test_http:start(#{listen => [{http, #{port => Port}}]}),
    await(Handle, #{ejected => 0}),
    true = is_integer(exchange(take(Handle))),
    #{open := 1, ejected := 0} = erlmcp_httpc_pool:info(Handle),
    erlmcp_test_http:stop(Server),
    Config.

%% It accepts, and says nothing.
silent_server_costs_a_time(_) ->
    {_, Port} = listener(),
    Handle = pool({https, ~"127.0.0.1", Port}, #{connect_timeout => 200, tls => roots()}),
    Times = [begin
                 {Micros, {connect, timeout}} =
                     timer:tc(fun() -> refusal(Handle, call, ?TIMEOUT) end),
                 Micros
             end || _ <- lists:seq(1, 1000)],
    %% The time that is allowed, once; then none, but where a pause was over.
    true = hd(Times) >= 190_000 andalso hd(Times) < 20_000_000,
    true = length([Micros || Micros <- Times, Micros < 100_000]) > 900.

%% The bound of waiting calls is none for streams, which have their own.
waiting_streams_are_not_calls(_) ->
    {_, Port} = listener(),
    Handle = pool({https, ~"127.0.0.1", Port}, #{waiting => 1, streams => 2, tls => roots()}),
    [begin
         _ = taker(Handle, stream),
         await(Handle, #{waiting => Number})
     end || Number <- [1, 2]],
    {overload, 2} = refusal(Handle, stream, ?TIMEOUT),
    _ = taker(Handle, call),
    await(Handle, #{waiting => 3}),
    {overload, 1} = refusal(Handle, call, ?TIMEOUT).

others_do_not_wait_for_a_silent_server(_) ->
    {_, Port} = listener(),
    Handle = pool({https, ~"127.0.0.1", Port}, #{connect_timeout => 2500, tls => roots()}),
    {connect, timeout} = refusal(Handle, call, ?TIMEOUT),
    await(Handle, #{ejected => 0}),
    First = taker(Handle, call),
    await(Handle, #{waiting => 1}),
    {connect, timeout} = refusal(Handle, call, ?TIMEOUT),
    #{waiting := 1} = erlmcp_httpc_pool:info(Handle),
    {error, {connect, timeout}} = told(First).

unknown_host_is_told(_) ->
    Handle = pool({http, ~"no-such-host.invalid", 80}, #{}),
    {connect, nxdomain} = refusal(Handle, call, ?TIMEOUT).

pauses_grow(_) ->
    [begin
         Pause = erlmcp_client_backoff:after_failures(Failures, 100, 10_000),
         true = Pause > Least andalso Pause =< 2 * Least
     end || {Failures, Least} <- [{1, 50}, {2, 100}, {5, 800}, {7, 3200}, {8, 5000}, {9, 5000},
                                  {100_000, 5000}],
            _ <- lists:seq(1, 20)].

%% Headers without an end cost the connection, not the memory.
endless_headers_are_bounded(_) ->
    {Server, Roots} = certificates([{iPAddress, <<127, 0, 0, 1>>}]),
    [begin
         {Flood, Port} = flooding(Scheme, Server),
         Handle = pool({Scheme, ~"127.0.0.1", Port}, Options),
         Loan = take(Handle),
         {ok, Request} = asked(Loan, {get, ~"/"}, {[], ~""}),
         {broken, _} = response(Request, none, ~""),
         _ = erlmcp_test_http:ended(connection(Loan)),
         receive
             {'DOWN', Flood, process, _, Reason} ->
                 {sent, Sent} = Reason,
                 true = Sent < 512 * 1024 * 1024
         after ?TIMEOUT ->
             error(still_sending)
         end
     end || {Scheme, Options} <- [{http, #{}}, {https, #{protocols => [http],
                                                         tls => [{cacerts, Roots}]}}]].

%% A process that serves one connection: a response whose head does not end.
flooding(Scheme, Server) ->
    {Module, Own} = case Scheme of
        http -> {gen_tcp, []};
        https -> {ssl, Server}
    end,
    Test = self(),
    {Pid, Monitor} = spawn_monitor(fun() ->
        {ok, Listener} = Module:listen(0, [{ip, {127, 0, 0, 1}}, binary, {active, false} | Own]),
        {ok, {_, Port}} = case Module of
            gen_tcp -> inet:sockname(Listener);
            ssl -> ssl:sockname(Listener)
        end,
        Test ! {self(), Port},
        {ok, Accepted} = case Module of
            gen_tcp -> gen_tcp:accept(Listener, ?TIMEOUT);
            ssl -> {ok, Begun} = ssl:transport_accept(Listener, ?TIMEOUT),
                   ssl:handshake(Begun, ?TIMEOUT)
        end,
        {ok, _} = Module:recv(Accepted, 0, ?TIMEOUT),
        ok = Module:send(Accepted, ~"HTTP/1.1 200 OK\r\n"),
        Line = [~"x: ", binary:copy(~"y", 10_000), ~"\r\n"],
        exit({sent, flood(Module, Accepted, Line, 0)})
    end),
    receive {Pid, Port} -> {Monitor, Port} after ?TIMEOUT -> error(not_listening) end.

flood(Module, Socket, Line, Sent) ->
    case Module:send(Socket, Line) of
        ok -> flood(Module, Socket, Line, Sent + iolist_size(Line));
        {error, _} -> Sent
    end.

%% Bounded refusal: the process of a connection that takes more than its part is killed, and the
%% log has no report of it. The runtime's report of another process shows that there is none.
memory_is_bounded(_) ->
    ok = logger:add_handler(?MODULE, ?MODULE, #{config => #{test => self()}}),
    Reached = fun(_) -> ok end,
    Bound = fun(Words) -> {Words * erlang:system_info(wordsize), Reached} end,
    Takes = fun(Size) ->
        {Pid, Monitor} = spawn_monitor(fun() ->
            Reached = erlmcp_httpc_gun_bound:init(#{}, Bound(100_000)),
            exit({took, length(lists:seq(1, Size))})
        end),
        receive {'DOWN', Monitor, process, Pid, Reason} -> {Pid, Reason} end
    end,
    {_, {took, 1_000}} = Takes(1_000),
    {Killed, killed} = Takes(100_000),
    {Other, Ended} = spawn_opt(fun() -> lists:seq(1, 100_000) end,
                               [monitor, {max_heap_size, #{size => 100_000, kill => true,
                                                           error_logger => true}}]),
    receive {'DOWN', Ended, process, Other, killed} -> ok end,
    receive {logged, Other} -> ok after ?TIMEOUT -> error(not_logged) end,
    receive {logged, Killed} -> error(logged) after 0 -> ok end,
    ok = logger:remove_handler(?MODULE).

-doc false.
log(#{meta := #{pid := Pid}}, #{config := #{test := Test}}) -> Test ! {logged, Pid};
log(_, _) -> ok.

%% A name may have an address of each family, and a server at one of them.
other_family_is_tried(Config) ->
    %% Of the other family nobody else is to listen there.
    Port = erlmcp_test_port:unused(),
    case gen_tcp:listen(Port, [inet6, {ip, {0, 0, 0, 0, 0, 0, 0, 1}}, {ipv6_v6only, true}]) of
        {error, eaddrinuse} ->
            other_family_is_tried(Config);
        {ok, Listener} ->
            Lookup = inet_db:res_option(lookup),
            ok = inet_db:set_lookup([file]),
            ok = inet_db:add_host({0, 0, 0, 0, 0, 0, 0, 1}, ["six.test"]),
            try
                [begin
                     Loan = take(pool({http, Host, Port}, #{})),
                     {ok, _} = gen_tcp:accept(Listener, ?TIMEOUT),
                     reusable(Loan)
                 end || Host <- [~"::1", ~"[::1]", {0, 0, 0, 0, 0, 0, 0, 1}, ~"localhost",
                                ~"six.test"]]
            after
                ok = inet_db:del_host({0, 0, 0, 0, 0, 0, 0, 1}),
                ok = inet_db:set_lookup(Lookup)
            end;
        {error, _} ->
            {skip, "needs IPv6"}
    end.

roots() ->
    [{cacerts, [~"none"]}].

secure(Kind, Config) ->
    {Server, Roots} = proplists:get_value(Kind, Config),
    #{port := Port} = erlmcp_test_http:start(#{listen => [{http, #{tls => Server}}]}),
    {Port, Roots}.

unknown_root_is_refused(Config) ->
    {Port, _} = secure(named, Config),
    {_, OtherRoots} = certificates([{dNSName, "localhost"}]),
    [begin
         Handle = pool({https, ~"127.0.0.1", Port}, #{tls => Tls}),
         {connect, {tls_alert, {unknown_ca, _}}} = refusal(Handle, call, ?TIMEOUT)
     end || Tls <- [[{cacerts, OtherRoots}]
                    | [[] || {ok, _} <- [erlmcp_tls:client_options("localhost", [])]]]].

own_roots_are_trusted(Config) ->
    {Port, Roots} = secure(named, Config),
    [begin
         Handle = pool({https, Host, Port}, #{tls => [{cacerts, Roots}]}),
         Loan = take(Handle),
         2 = erlmcp_httpc_pool:outermost(Handle),
         true = is_integer(exchange(Loan))
     end || Host <- [~"localhost", ~"127.0.0.1", {127, 0, 0, 1}]].

wrong_host_is_refused(Config) ->
    {Port, Roots} = secure(unnamed, Config),
    Tls = [{cacerts, Roots}, {server_name_indication, "other.example"}],
    Handle = pool({https, ~"127.0.0.1", Port}, #{tls => Tls}),
    {connect, {tls_alert, {_, Text}}} = refusal(Handle, call, ?TIMEOUT),
    {match, _} = re:run(Text, "hostname_check_failed").

wrong_address_is_refused(Config) ->
    {Port, Roots} = secure(unnamed, Config),
    Handle = pool({https, ~"127.0.0.1", Port}, #{tls => [{cacerts, Roots}]}),
    {connect, {tls_alert, {_, Text}}} = refusal(Handle, call, ?TIMEOUT),
    {match, _} = re:run(Text, "hostname_check_failed").

alpn_chooses(Config) ->
    {Port, Roots} = secure(named, Config),
    [begin
         Handle = pool({https, ~"localhost", Port}, Options#{tls => [{cacerts, Roots}]}),
         {Protocol, #{protocol := Protocol}} = {Protocol, gun:info(connection(take(Handle)))}
     end || {Options, Protocol} <- [{#{}, http2}, {#{protocols => [http]}, http},
                                    {#{protocols => [http2]}, http2}]].

own_options_come_first(_) ->
    {ok, Options} = erlmcp_tls:client_options("example.com", [{verify, verify_none}, {depth, 1}]),
    [verify_none] = proplists:get_all_values(verify, Options),
    [1] = proplists:get_all_values(depth, Options),
    false = lists:keymember(cacerts, 1, Options),
    ["example.com"] = proplists:get_all_values(server_name_indication, Options),
    {ok, Own} = erlmcp_tls:client_options({127, 0, 0, 1}, [{cacertfile, "x.pem"}]),
    [verify_peer] = proplists:get_all_values(verify, Own),
    false = lists:keymember(server_name_indication, 1, Own).

%% Left to itself, gun ends such a connection 15 seconds after the head of the answer.
answer_that_closes_has_its_time(Config) ->
    {Server, Roots} = proplists:get_value(named, Config),
    {ok, Listener} = ssl:listen(0, [{ip, {127, 0, 0, 1}}, binary, {active, false} | Server]),
    {ok, {_, Port}} = ssl:sockname(Listener),
    _ = spawn_link(fun() ->
        {ok, Begun} = ssl:transport_accept(Listener, ?TIMEOUT),
        {ok, Socket} = ssl:handshake(Begun, ?TIMEOUT),
        {ok, _} = ssl:recv(Socket, 0, ?TIMEOUT),
        ok = ssl:send(Socket, [~"HTTP/1.1 200 OK\r\nconnection: close\r\n",
                               ~"transfer-encoding: chunked\r\n\r\n1\r\na\r\n"]),
        receive after 16_000 -> ok end,
        _ = ssl:send(Socket, ~"1\r\nb\r\n0\r\n\r\n"),
        ssl:close(Socket)
    end),
    Handle = pool({https, ~"127.0.0.1", Port}, #{protocols => [http], tls => [{cacerts, Roots}]}),
    {ok, Request} = asked(take(Handle), {get, ~"/"}, {[], ~""}),
    {200, ~"ab"} = response(Request, none, ~""),
    ok = ssl:close(Listener).
