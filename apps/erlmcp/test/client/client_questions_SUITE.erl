-module(client_questions_SUITE).
-moduledoc """
What a server of a session asks by itself, on no call's stream, and more of it at once than a
client's user is asked about: each request has its answer.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([all_are_answered_on_http/1, all_are_answered_on_lines/1]).

-import(bad_http_peer, [session/1, initialized/0, chunked/1, chunk/1, write/2]).
-import(erlmcp_test_peer, [result/2, event/1]).

%% Asked at once, waiting, and found no room.
-define(OPEN, 16).
-define(WAITING, 100).
-define(REFUSED, 80).
-define(ALL, (?OPEN + ?WAITING + ?REFUSED)).
-define(WAIT, 30_000).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [all_are_answered_on_http, all_are_answered_on_lines].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

all_are_answered_on_http(_) ->
    #{url := Url} = Peer = erlmcp_test_peer:http(fun
        (#{method := ~"GET"}) ->
            fun(Socket) ->
                ok = write(Socket, [chunked(events) | [chunk(event(Q)) || Q <- questions()]]),
                _ = gen_tcp:recv(Socket, 0),
                close
            end;
        (Request) ->
            session(Request)
    end),
    answered({http, Url, options()}),
    ok = erlmcp_test_peer:stop(Peer).

all_are_answered_on_lines(_) ->
    #{port := Port} = Peer = erlmcp_test_peer:tcp(fun
        (#{~"method" := ~"initialize"} = Message) -> [result(Message, initialized())];
        (#{~"method" := ~"notifications/initialized"}) -> questions();
        (_) -> []
    end),
    answered({tcp, {127, 0, 0, 1}, Port, options()}),
    ok = erlmcp_test_peer:stop(Peer).

%% The last one is for nobody to think about.
questions() ->
    [#{jsonrpc => ~"2.0", id => Id, method => ~"elicitation/create",
       params => #{message => ~"?", requestedSchema => #{type => object, properties => #{}}}}
     || Id <- lists:seq(1, ?ALL)]
    ++ [#{jsonrpc => ~"2.0", id => ?ALL + 1, method => ~"ping"}].

options() ->
    Test = self(),
    Elicit = fun(_) ->
        Test ! {asked, self()},
        receive decline -> decline end
    end,
    #{era => session, inputs => #{elicit => Elicit}}.

%% While as many as may be are thought about, those without room are told, and the ping is answered.
%% Then those that waited are asked about, each when another is done.
answered(Target) ->
    {ok, Client} = erlmcp_client:start_link(Target),
    {ok, _} = erlmcp_client:server(Client),
    Open = [asked() || _ <- lists:seq(1, ?OPEN)],
    AtOnce = answers(?REFUSED + 1),
    #{(?ALL + 1) := #{~"result" := #{}}} = AtOnce,
    Refused = maps:remove(?ALL + 1, AtOnce),
    Asked = ?OPEN + ?WAITING,
    true = lists:seq(Asked + 1, ?ALL) =:= lists:sort(maps:keys(Refused)),
    [#{~"error" := #{~"message" := <<"the client has as many", _/binary>>}} = Answer
     || Answer <- maps:values(Refused)],
    receive {asked, _} -> error(too_many_at_once) after 0 -> ok end,
    ok = declined(Open, ?WAITING),
    Declined = answers(Asked),
    true = lists:seq(1, Asked) =:= lists:sort(maps:keys(Declined)),
    [#{~"result" := #{~"action" := ~"decline"}} = Answer || Answer <- maps:values(Declined)],
    ok = erlmcp_client:stop(Client).

declined([], 0) ->
    ok;
declined([Pid | Open], Waiting) ->
    Pid ! decline,
    case Waiting of
        0 -> declined(Open, 0);
        _ -> declined(Open ++ [asked()], Waiting - 1)
    end.

asked() ->
    receive
        {asked, Pid} -> Pid
    after ?WAIT ->
        error(nobody_is_asked)
    end.

answers(Count) ->
    #{Id => Answer || _ <- lists:seq(1, Count), {Id, Answer} <- [answer()]}.

answer() ->
    receive
        {peer, #{~"id" := Id} = Answer} when not is_map_key(~"method", Answer) -> {Id, Answer}
    after ?WAIT ->
        error(no_answer)
    end.
