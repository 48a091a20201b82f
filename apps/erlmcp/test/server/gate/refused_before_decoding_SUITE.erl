-module(refused_before_decoding_SUITE).
-moduledoc """
Requests on HTTP that get no permit. Those whose ids come first are refused before they are decoded,
and no client can tell by the answer.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([a_refusal_has_the_id_of_its_request/1, other_messages_are_read_first/1,
         what_found_a_place_is_read_then/1]).

-import(erlmcp_test_http, [post/3, message/3, finish/2, running/0, connect/1, close/1, response/1]).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [a_refusal_has_the_id_of_its_request, other_messages_are_read_first,
     what_found_a_place_is_read_then].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

a_refusal_has_the_id_of_its_request(_) ->
    with_one_permit(#{queue => 0}, fun(Server) ->
        [#{status := 429, headers := #{~"retry-after" := _},
           messages := [#{~"id" := Id, ~"error" := #{~"data" := #{~"refusal" := 1060}}}]}
             = post(Server, headers(), request(Written))
         || {Id, Written} <- [{7, ~"7"}, {0, ~"0"}, {999_999_999_999_999, ~"999999999999999"},
                              {1_000_000_000_000_000, ~"1000000000000000"}, {-7, ~"-7"},
                              {~"seven", ~"\"seven\""}]]
    end).

%% Only requests need a permit, and a wrong id is wrong here, too.
other_messages_are_read_first(_) ->
    with_one_permit(#{queue => 0}, fun(Server) ->
        #{status := 400, messages := [#{~"error" := #{~"code" := -32700}}]} =
            post(Server, headers(), request(~"07")),
        {Headers, Body} = message(~"notifications/other", #{}, #{id => none}),
        #{status := 202} = post(Server, Headers, Body)
    end).

what_found_a_place_is_read_then(_) ->
    with_one_permit(#{queue => 1}, fun(Server) ->
        #{status := 400, messages := [#{~"error" := #{~"code" := -32700}}]} =
            post(Server, headers(), ~"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":"),
        %% It has left: there is room for one to wait, and here it is.
        Waiting = sent(Server, headers(), request(~"2")),
        ok = until_one_waits(Server),
        Waiting
    end).

headers() ->
    {Headers, _} = message(~"tools/call", #{name => ~"echo"}, #{}),
    Headers.

request(Id) ->
    iolist_to_binary([~"{\"jsonrpc\":\"2.0\",\"id\":", Id,
                      ~",\"method\":\"tools/call\",\"params\":",
                      json:encode(#{name => ~"echo", arguments => #{text => ~"x"},
                                    '_meta' => erlmcp_test_http:meta()}), $}]).

until_one_waits(#{pid := Pid} = Server) ->
    {ok, _, #{gate := Gate}} = erlmcp_registry:whereis(Pid),
    case erlmcp_gate:held(Gate, waiting) of
        1 -> ok;
        0 -> receive after 10 -> until_one_waits(Server) end
    end.

%% While the only permit of a server is held. The request that holds it is answered afterwards.
with_one_permit(Limits, Test) ->
    Server = erlmcp_test_http:start((erlmcp_test_http:definitions(self()))#{
        limits => Limits#{in_flight => 1, queue_ms => 60_000}, listen => [{http, #{}}]}),
    {Headers, Body} = message(~"tools/call", #{name => ~"wait"}, #{}),
    Connection = sent(Server, Headers, Body),
    {Handler, _} = running(),
    Sent = [Socket || Socket <- [Test(Server)], is_port(Socket)],
    ok = finish(Handler, ~"done"),
    [begin
         #{status := 200, messages := [#{~"result" := _}]} = response(Socket),
         ok = close(Socket)
     end || Socket <- [Connection | Sent]],
    erlmcp_test_http:stop(Server).

sent(Server, Headers, Body) ->
    Connection = connect(Server),
    ok = erlmcp_test_http:send(Connection, ~"POST", Headers, Body),
    Connection.
