-module(hasty_clients_SUITE).
-moduledoc """
Clients on HTTP that were refused with a time to come back, and ask again on the same connection
before. Their next refusal comes when that time is over. All other answers come at once.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([who_comes_back_too_soon_is_refused_later/1, also_on_http2/1,
         what_finds_a_place_is_let_in/1, who_leaves_meanwhile_leaves_nothing/1,
         a_drained_server_answers_them/1, connections_of_many_are_not_held_back/1]).

-import(erlmcp_test_http, [message/3, running/0, finish/2, connect/1, close/1]).

%% Half of the second that a refusal tells; a part less, by the clocks.
-define(LATER, 490).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [who_comes_back_too_soon_is_refused_later, also_on_http2, what_finds_a_place_is_let_in,
     who_leaves_meanwhile_leaves_nothing, a_drained_server_answers_them,
     connections_of_many_are_not_held_back].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, gun], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

%% Whether it is refused before it is decoded, or after; and where cowboy reads it.
who_comes_back_too_soon_is_refused_later(_) ->
    with_one_permit(fun(Server, _) ->
        Unread = [~"{\"jsonrpc\":\"2.0\",\"id\":1,", call(), $}],
        Read = [${, call(), ~",\"jsonrpc\":\"2.0\",\"id\":1}"],
        Chunked = [{~"transfer-encoding", ~"chunked"} | headers()],
        Refused = [begin
                       Connection = connect(Server),
                       1060 = refused(asked(Connection, Sent)),
                       {Connection, Sent}
                   end || Sent <- [{headers(), Unread}, {headers(), Read},
                                   {[{~"content-length", none} | Chunked], chunk(Unread)}]],
        lists:foreach(fun({Connection, Sent}) ->
            ok = later(fun() -> 1060 = refused(asked(Connection, Sent)) end, 30),
            ok = close(Connection)
        end, Refused)
    end).

%% A client for which the machine had no time did not come too soon, and tries again.
later(Ask, Tries) when Tries > 0 ->
    Before = erlang:monotonic_time(millisecond),
    _ = Ask(),
    case erlang:monotonic_time(millisecond) - Before of
        Took when Took >= ?LATER -> ok;
        _ -> later(Ask, Tries - 1)
    end.

what_finds_a_place_is_let_in(_) ->
    with_one_permit(fun(Server, Handler) ->
        Connection = connect(Server),
        1060 = refused(asked(Connection, echo())),
        ok = finish(Handler, ~"done"),
        ok = until_free(Server),
        #{status := 200, messages := [#{~"result" := _}]} = asked(Connection, echo()),
        close(Connection)
    end).

%% All streams of a connection count as one client.
also_on_http2(_) ->
    with_one_permit(fun(#{pid := Pid}, Handler) ->
        Client = erlmcp_test_bounds_client:keep(Pid, http2),
        Call = fun() -> erlmcp_test_bounds_client:call(Client, ~"tools/call", echo_params()) end,
        #{status := 429} = Call(),
        ok = later(fun() -> #{status := 429} = Call() end, 30),
        %% A request that is cancelled meanwhile is no other's trouble.
        {http2, Connection, Stream} =
            erlmcp_test_bounds_client:send(Client, ~"tools/call", echo_params()),
        ok = gun:cancel(Connection, Stream),
        ok = finish(Handler, ~"done"),
        ok = until_free(#{pid => Pid}),
        #{status := 200} = Call(),
        erlmcp_test_bounds_client:close(Client)
    end).

who_leaves_meanwhile_leaves_nothing(_) ->
    with_one_permit(fun(Server, _) ->
        Connection = connect(Server),
        1060 = refused(asked(Connection, echo())),
        ok = sent(Connection, echo()),
        ok = close(Connection),
        until(fun() -> erlmcp_gate:held(gate(Server), connections) =:= 1 end)
    end).

a_drained_server_answers_them(_) ->
    with_one_permit(fun(Server, Handler) ->
        Connection = connect(Server),
        1060 = refused(asked(Connection, echo())),
        ok = sent(Connection, echo()),
        %% It has been read, and refused.
        #{counters := Counters} = gate(Server),
        until(fun() -> erlmcp_gate_counters:refused(Counters) =:= 2 end),
        ok = finish(Handler, ~"done"),
        #{pid := Pid} = Server,
        {ok, _} = erlmcp:drain(Pid, 30_000),
        1060 = refused(erlmcp_test_http:response(Connection)),
        close(Connection)
    end).

%% Requests through a proxy that names itself.
connections_of_many_are_not_held_back(_) ->
    Refusal = erlmcp_refusal:new(concurrent_limit_exceeded, ~"too many",
                                 #{retry_after_ms => 3_600_000}),
    [[0, 0] = [erlmcp_admission:hold_back(Refusal, #{Name => ~"proxy"}, #{})
               || _ <- [first, second]]
     || Name <- [~"via", ~"forwarded", ~"x-forwarded-for"]],
    0 = erlmcp_admission:hold_back(Refusal, #{}, #{}),
    %% An hour is told, and a second is held back, after another one.
    true = lists:all(fun(Kept) -> Kept =< 2000 end,
                     [erlmcp_admission:hold_back(Refusal, #{}, #{}) || _ <- [first, second]]),
    Never = erlmcp_refusal:new(invalid_params, ~"no such tool", #{}),
    0 = erlmcp_admission:hold_back(Never, #{}, #{}).

echo() ->
    message(~"tools/call", echo_params(), #{}).

echo_params() ->
    #{name => ~"echo", arguments => #{text => ~"x"}}.

chunk(Body) ->
    [integer_to_list(iolist_size(Body), 16), ~"\r\n", Body, ~"\r\n0\r\n\r\n"].

headers() ->
    {Headers, _} = echo(),
    Headers.

call() ->
    [~"\"method\":\"tools/call\",\"params\":",
     json:encode((echo_params())#{'_meta' => erlmcp_test_http:meta()})].

asked(Connection, Sent) ->
    ok = sent(Connection, Sent),
    erlmcp_test_http:response(Connection).

sent(Connection, {Headers, Body}) ->
    erlmcp_test_http:send(Connection, ~"POST", Headers, Body).

refused(#{status := 429, messages := [#{~"error" := #{~"data" := #{~"refusal" := Code}}}]}) ->
    Code.

gate(#{pid := Pid}) ->
    {ok, _, #{gate := Gate}} = erlmcp_registry:whereis(Pid),
    Gate.

until_free(Server) ->
    until(fun() -> erlmcp_gate:held(gate(Server), in_flight) =:= 0 end).

until(Holds) ->
    Holds() orelse receive after 1 -> until(Holds) end,
    ok.

%% While a call has the only permit of a server.
with_one_permit(Test) ->
    Server = erlmcp_test_http:start((erlmcp_test_http:definitions(self()))#{
        limits => #{in_flight => 1, queue => 0}, listen => [{http, #{}}]}),
    Connection = connect(Server),
    ok = sent(Connection, message(~"tools/call", #{name => ~"wait"}, #{})),
    {Handler, _} = running(),
    ok = Test(Server, Handler),
    Handler ! over,
    ok = close(Connection),
    erlmcp_test_http:stop(Server).
