-module(rfc9113_floods_SUITE).
-moduledoc """
RFC 9113, section 10.5: "An endpoint that doesn't monitor use of these features exposes itself to a
risk of denial of service." The rate of PING and SETTINGS, which have to be answered, is bounded.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([pings_have_a_rate/1, settings_have_a_rate/1, those_of_a_quiet_client_are_answered/1]).

-define(PATIENCE, 30_000).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [pings_have_a_rate, settings_have_a_rate, those_of_a_quiet_client_are_answered].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    [{server, erlmcp_test_http:start(#{listen => [{http, #{}}]})} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_http:stop(proplists:get_value(server, Config)).

pings_have_a_rate(Config) ->
    floods(cow_http2:ping(1), ping_ack, Config).

settings_have_a_rate(Config) ->
    floods(cow_http2:settings(#{}), settings_ack, Config).

%% All but one more than there may be: each is answered. One more: GOAWAY, and the end.
floods(Frame, Kind, Config) ->
    {Max, _} = erlmcp_http2_writes:max_answers(),
    {Socket, Answered} = connect(Config),
    ok = gen_tcp:send(Socket, lists:duplicate(Max - Answered, Frame)),
    Rest = answers(Max - Answered, Kind, Socket, <<>>),
    ok = gen_tcp:send(Socket, Frame),
    {goaway, _, enhance_your_calm, _} = next(Socket, Rest),
    ok = closed(Socket).

answers(0, _, _, Bytes) ->
    Bytes;
answers(Left, Kind, Socket, Bytes) ->
    case cow_http2:parse(Bytes) of
        {ok, Frame, Rest} ->
            Kind = kind(Frame),
            answers(Left - 1, Kind, Socket, Rest);
        more ->
            {ok, More} = gen_tcp:recv(Socket, 0, ?PATIENCE),
            answers(Left, Kind, Socket, <<Bytes/binary, More/binary>>)
    end.

kind(Frame) when is_tuple(Frame) -> element(1, Frame);
kind(Frame) -> Frame.

next(Socket, Bytes) ->
    case cow_http2:parse(Bytes) of
        {ok, Frame, _} ->
            Frame;
        more ->
            {ok, More} = gen_tcp:recv(Socket, 0, ?PATIENCE),
            next(Socket, <<Bytes/binary, More/binary>>)
    end.

closed(Socket) ->
    case gen_tcp:recv(Socket, 0, ?PATIENCE) of
        {ok, _} -> closed(Socket);
        {error, closed} -> ok
    end.

%% The answer to the SETTINGS that begin a connection is one of them.
connect(Config) ->
    Socket = erlmcp_test_http:connect(proplists:get_value(server, Config)),
    ok = gen_tcp:send(Socket, [~"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", cow_http2:settings(#{})]),
    ok = begun(Socket, <<>>),
    {Socket, 1}.

begun(Socket, Bytes) ->
    case cow_http2:parse(Bytes) of
        {ok, settings_ack, <<>>} ->
            ok;
        {ok, _, Rest} ->
            begun(Socket, Rest);
        more ->
            {ok, More} = gen_tcp:recv(Socket, 0, ?PATIENCE),
            begun(Socket, <<Bytes/binary, More/binary>>)
    end.

those_of_a_quiet_client_are_answered(Config) ->
    {Socket, _} = connect(Config),
    [begin
         ok = gen_tcp:send(Socket, cow_http2:ping(Number)),
         {ping_ack, Number} = next(Socket, <<>>)
     end || Number <- lists:seq(1, 200)],
    ok = gen_tcp:close(Socket).
