-module(client_questions_SUITE).
-moduledoc """
What a server of a session asks by itself, on no call's stream, and more of it at once than a
client's user is asked about: each request has its answer, but for those that the server takes
back.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([all_are_answered_on_http/1, all_are_answered_on_lines/1,
         all_are_answered_before_the_session_is_open/1,
         few_bytes_wait_for_the_session/1]).
-export([some_are_taken_back_on_http/1, some_are_taken_back_on_lines/1]).
-export([questions_of_a_call_are_bounded/1, waiting_questions_have_few_bytes/1,
         a_call_waits_for_its_user/1, a_call_goes_on_in_its_own_time/1,
         a_call_waits_for_all_its_questions/1, a_call_is_resumed_after_its_user/1]).
-export([calls_wait_for_the_user_on_lines/1, calls_wait_for_the_user_on_another_stream/1,
         questions_at_once_take_their_time_once/1, pages_wait_for_the_user/1,
         each_page_has_its_own_questions/1,
         questions_end_with_their_connection/1]).
-export([one_of_a_call_is_taken_back/1, one_is_taken_back_on_another_stream/1,
         one_is_taken_back_before_the_session_is_open/1, others_are_not_taken_back/1]).
-export([long_ids_are_answered_on_http/1, long_ids_are_answered_on_lines/1]).
-export([an_answer_that_is_not_json_is_an_error/1, an_answer_waits_for_no_call/1]).

-import(erlmcp_test_bad_http_peer, [session/1, initialized/0, chunked/1, chunk/1, write/2]).
-import(erlmcp_test_peer, [result/2, event/1]).

%% Asked at once, waiting, and found no room.
-define(OPEN, 16).
-define(WAITING, 100).
-define(REFUSED, 80).
-define(ALL, (?OPEN + ?WAITING + ?REFUSED)).
-define(WAIT, 30_000).
%% Bytes of an id, more than a server takes.
-define(LONG, 2_000).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [all_are_answered_on_http, all_are_answered_on_lines,
     all_are_answered_before_the_session_is_open, few_bytes_wait_for_the_session,
     some_are_taken_back_on_http, some_are_taken_back_on_lines,
     questions_of_a_call_are_bounded, waiting_questions_have_few_bytes,
     a_call_waits_for_its_user, a_call_goes_on_in_its_own_time,
     a_call_waits_for_all_its_questions, a_call_is_resumed_after_its_user,
     calls_wait_for_the_user_on_lines, calls_wait_for_the_user_on_another_stream,
     questions_at_once_take_their_time_once, pages_wait_for_the_user,
     each_page_has_its_own_questions,
     questions_end_with_their_connection,
     one_of_a_call_is_taken_back, one_is_taken_back_on_another_stream,
     one_is_taken_back_before_the_session_is_open, others_are_not_taken_back,
     long_ids_are_answered_on_http, long_ids_are_answered_on_lines,
     an_answer_that_is_not_json_is_an_error, an_answer_waits_for_no_call].

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

%% The client's process has all of them before it knows that the session is open.
all_are_answered_before_the_session_is_open(_) ->
    #{port := Port} = Peer = before_the_session(questions()),
    answered({tcp, {127, 0, 0, 1}, Port, (options())#{log_level => error}}),
    ok = erlmcp_test_peer:stop(Peer).

%% Bounded refusal: those that are asked at once have their room, and a megabyte of others waits.
few_bytes_wait_for_the_session(_) ->
    Large = [large(Id) || Id <- lists:seq(?OPEN + 1, ?OPEN + 4)],
    #{port := Port} = Peer = before_the_session(
        [question(Id) || Id <- lists:seq(1, ?OPEN)] ++ Large ++ [ping(100)]),
    {ok, Client} = erlmcp_client:start_link({tcp, {127, 0, 0, 1}, Port,
                                             (options())#{log_level => error}}),
    Open = [Pid || _ <- lists:seq(1, ?OPEN), {Pid, _} <- [asked()]],
    Refused = ?OPEN + 4,
    #{Refused := #{~"error" := #{~"message" := <<"the client has as many", _/binary>>}},
      100 := #{~"result" := #{}}} = answers(2),
    ok = declined(Open, 3),
    true = lists:seq(1, ?OPEN + 3) =:= lists:sort(maps:keys(answers(?OPEN + 3))),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer).

%% A server that asks before it answers the last request that opens a session.
before_the_session(Questions) ->
    erlmcp_test_peer:tcp(fun
        (#{~"method" := ~"initialize"} = Message) ->
            [result(Message, maps:put(capabilities, #{logging => #{}}, initialized()))];
        (#{~"method" := ~"logging/setLevel"} = Message) ->
            Questions ++ [result(Message, #{})];
        (_) ->
            []
    end).

%% The last one is for nobody to think about.
questions() ->
    [question(Id) || Id <- lists:seq(1, ?ALL)] ++ [ping(?ALL + 1)].

question(Id) ->
    #{jsonrpc => ~"2.0", id => Id, method => ~"elicitation/create",
      params => #{message => integer_to_binary(Id),
                  requestedSchema => #{type => object, properties => #{}}}}.

ping(Id) ->
    #{jsonrpc => ~"2.0", id => Id, method => ~"ping"}.

cancelled(Id) ->
    #{jsonrpc => ~"2.0", method => ~"notifications/cancelled", params => #{requestId => Id}}.

options() ->
    Test = self(),
    Elicit = fun(#{~"message" := Id}) ->
        Test ! {asked, self(), binary_to_integer(Id)},
        receive decline -> decline end
    end,
    #{era => session, inputs => #{elicit => Elicit}}.

%% While as many as may be are thought about, those without room are told, and the ping is answered.
%% Then those that waited are asked about, each when another is done.
answered(Target) ->
    {ok, Client} = erlmcp_client:start_link(Target),
    {ok, _} = erlmcp_client:server(Client),
    Open = [Pid || _ <- lists:seq(1, ?OPEN), {Pid, _} <- [asked()]],
    AtOnce = answers(?REFUSED + 1),
    #{(?ALL + 1) := #{~"result" := #{}}} = AtOnce,
    Refused = maps:remove(?ALL + 1, AtOnce),
    Asked = ?OPEN + ?WAITING,
    true = lists:seq(Asked + 1, ?ALL) =:= lists:sort(maps:keys(Refused)),
    [#{~"error" := #{~"message" := <<"the client has as many", _/binary>>}} = Answer
     || Answer <- maps:values(Refused)],
    receive {asked, _, _} -> error(too_many_at_once) after 0 -> ok end,
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
        _ -> declined(Open ++ [element(1, asked())], Waiting - 1)
    end.

%% "Receivers of cancellation notifications SHOULD: Stop processing the cancelled request; Free
%% associated resources; Not send a response for the cancelled request". So the user is not asked
%% (any more), and his time goes to one that waited.
some_are_taken_back_on_http(_) ->
    #{url := Url} = Peer = streaming(),
    taken_back({http, Url, options()}, fun http/2),
    ok = erlmcp_test_peer:stop(Peer).

some_are_taken_back_on_lines(_) ->
    #{port := Port} = Peer = lines([]),
    taken_back({tcp, {127, 0, 0, 1}, Port, options()}, fun line/2),
    ok = erlmcp_test_peer:stop(Peer).

taken_back(Target, Say) ->
    {ok, Client} = erlmcp_client:start_link(Target),
    {ok, _} = erlmcp_client:server(Client),
    Socket = connected(),
    [ok = Say(question(Id), Socket) || Id <- lists:seq(1, ?OPEN + 2)],
    Open = maps:from_list([{Id, Pid} || _ <- lists:seq(1, ?OPEN), {Pid, Id} <- [asked()]]),
    [ok = Say(cancelled(Id), Socket) || Id <- [?OPEN + 1, 1, 2000]],
    ok = ended(maps:get(1, Open)),
    Last = ?OPEN + 2,
    {Next, Last} = asked(),
    Left = maps:remove(1, Open#{Last => Next}),
    [Pid ! decline || Pid <- maps:values(Left)],
    true = maps:keys(Left) =:= maps:keys(answers(map_size(Left))),
    %% What is taken back when it has its answer already is nothing.
    [ok = Say(Message, Socket) || Message <- [cancelled(Last), ping(100)]],
    {100, #{~"result" := #{}}} = answer(),
    ok = erlmcp_client:stop(Client).

%% The call goes on, and its time with it.
one_of_a_call_is_taken_back(_) ->
    in_a_call(fun(_, Called) -> Called end).

one_is_taken_back_on_another_stream(_) ->
    in_a_call(fun(Listened, _) -> Listened end).

in_a_call(Choose) ->
    {Peer, Client, Listened} = listening(),
    {Reference, Called} = called(Client),
    #{~"id" := Id} = erlmcp_test_peer:received(~"tools/call"),
    ok = http(question(1), Called),
    {Pid, 1} = asked(),
    ok = http(cancelled(1), Choose(Listened, Called)),
    ok = ended(Pid),
    ok = http(ping(2), Called),
    {2, #{~"result" := #{}}} = answer(),
    ok = http(result(#{~"id" => Id}, #{content => []}), Called),
    receive {erlmcp, Reference, {ok, #{}}} -> ok after ?WAIT -> error(no_result) end,
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer).

%% A client at a peer, with its connection of lines.
on_lines() ->
    #{port := Port} = Peer = lines([]),
    {ok, Client} = erlmcp_client:start_link({tcp, {127, 0, 0, 1}, Port, options()}),
    {ok, _} = erlmcp_client:server(Client),
    Socket = connected(),
    {Peer, Client, Socket}.

%% A client at a peer, with the connection of its stream.
listening() ->
    #{url := Url} = Peer = streaming(),
    {ok, Client} = erlmcp_client:start_link({http, Url, options()}),
    {ok, _} = erlmcp_client:server(Client),
    {Peer, Client, connected()}.

%% A call that has begun, with its connection.
called(Client) ->
    {ok, Reference} = erlmcp_client:async(Client, {call_tool, ~"t", #{}}),
    {Reference, connected()}.

%% The server may ask as soon as it has answered `initialize`: nobody is asked then what it has
%% taken back before that was read.
one_is_taken_back_before_the_session_is_open(_) ->
    Peer = lines([question(1), question(2), cancelled(1)]),
    #{port := Port} = Peer,
    {ok, Client} = erlmcp_client:start_link({tcp, {127, 0, 0, 1}, Port, options()}),
    {ok, _} = erlmcp_client:server(Client),
    {Second, 2} = case asked() of
        {First, 1} -> ok = ended(First), asked();
        Only -> Only
    end,
    Second ! decline,
    {2, #{~"result" := #{~"action" := ~"decline"}}} = answer(),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer).

%% An id's type counts, and what is no id is nothing.
others_are_not_taken_back(_) ->
    {Peer, Client, Socket} = on_lines(),
    ok = line(question(1), Socket),
    {Pid, 1} = asked(),
    [ok = line(cancelled(Id), Socket) || Id <- [~"1", 2, null, 1.0, #{}]],
    ok = line(maps:put(params, #{}, cancelled(1)), Socket),
    ok = line(ping(2), Socket),
    {2, #{~"result" := #{}}} = answer(),
    Pid ! decline,
    {1, #{~"result" := #{~"action" := ~"decline"}}} = answer(),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer).

%% "Requests MUST include a string or integer ID", of any length. The call goes on.
long_ids_are_answered_on_http(_) ->
    {Peer, Client, Listened} = listening(),
    {Reference, Called} = called(Client),
    #{~"id" := Id} = erlmcp_test_peer:received(~"tools/call"),
    [ok = long_id(fun(Message) -> http(Message, Socket) end)
     || Socket <- [Listened, Called]],
    ok = http(result(#{~"id" => Id}, #{content => []}), Called),
    receive {erlmcp, Reference, {ok, #{}}} -> ok after ?WAIT -> error(no_result) end,
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer).

long_ids_are_answered_on_lines(_) ->
    {Peer, Client, Socket} = on_lines(),
    ok = long_id(fun(Message) -> line(Message, Socket) end),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer).

%% Alone, and in a batch.
long_id(Say) ->
    Id = binary:copy(~"i", ?LONG),
    Question = maps:put(id, Id, question(1)),
    lists:foreach(fun(Message) ->
        ok = Say(Message),
        {Pid, 1} = asked(),
        Pid ! decline,
        {Id, #{~"result" := #{~"action" := ~"decline"}}} = answer()
    end, [Question, [Question]]).

%% The server does not wait for what can never come.
an_answer_that_is_not_json_is_an_error(_) ->
    Answers = {{ok, #{pid => self()}}, {error, {no, model}}, {error, "no model"}, {error, <<255>>}},
    Inputs = #{sample => fun(#{~"maxTokens" := N}) -> element(N, Answers) end,
               roots => fun() -> [#{uri => <<255>>}] end},
    #{port := Port} = Peer = lines([]),
    {ok, Client} = erlmcp_client:start_link({tcp, {127, 0, 0, 1}, Port,
                                             (options())#{inputs := Inputs}}),
    {ok, _} = erlmcp_client:server(Client),
    Socket = connected(),
    Samples = [{~"sampling/createMessage", #{messages => [], maxTokens => N}}
               || N <- lists:seq(1, tuple_size(Answers))],
    [begin
         ok = line((ping(Id))#{method := Method, params => Params}, Socket),
         {Id, #{~"error" := #{~"code" := -32603, ~"message" := ~"the client failed to answer"}}} =
             answer()
     end || {Id, {Method, Params}} <- lists:enumerate([{~"roots/list", #{}} | Samples])],
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer).

%% The call and the stream of the session have all the connections that are for calls and streams.
%% The call could not end if the answer waited for it, or for another call.
an_answer_waits_for_no_call(_) ->
    #{url := Url} = Peer = streaming(),
    {ok, Client} = erlmcp_client:start_link({http, Url, (options())#{connections => 1,
                                                                     streams => 1}}),
    {ok, _} = erlmcp_client:server(Client),
    _ = connected(),
    {First, Called} = called(Client),
    #{~"id" := Id} = erlmcp_test_peer:received(~"tools/call"),
    {ok, Second} = erlmcp_client:async(Client, {call_tool, ~"t", #{}}),
    ok = http(question(1), Called),
    {Pid, 1} = asked(),
    Pid ! decline,
    {1, #{~"result" := #{~"action" := ~"decline"}}} = answer(),
    ok = http(result(#{~"id" => Id}, #{content => []}), Called),
    receive {erlmcp, First, {ok, #{}}} -> ok after ?WAIT -> error(no_result) end,
    %% And the other call has its turn.
    Next = connected(),
    #{~"id" := Other} = erlmcp_test_peer:received(~"tools/call"),
    ok = http(result(#{~"id" => Other}, #{content => []}), Next),
    receive {erlmcp, Second, {ok, #{}}} -> ok after ?WAIT -> error(no_result) end,
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer).

%% Bounded refusal: the hundredth request in a call is answered, and one more ends the call.
questions_of_a_call_are_bounded(_) ->
    {Peer, Client, _} = listening(),
    {Reference, Called} = called(Client),
    [ok = http(ping(Id), Called) || Id <- lists:seq(1, 100)],
    true = lists:seq(1, 100) =:= lists:sort(maps:keys(answers(100))),
    ok = http(ping(101), Called),
    receive
        {erlmcp, Reference, Outcome} ->
            {error, {protocol, ~"the server asks more in one call than 100 requests"}} = Outcome
    after ?WAIT ->
        error(no_result)
    end,
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer).

%% Bounded refusal: questions of a megabyte together may wait. Those that were asked do not wait,
%% and others have their room.
waiting_questions_have_few_bytes(_) ->
    {Peer, Client, Socket} = on_lines(),
    {ok, #{questions := Table}} = erlmcp_client_table:find(Client),
    [begin
         [ok = line(question(Id), Socket) || Id <- lists:seq(1, ?OPEN)],
         Open = [Pid || _ <- lists:seq(1, ?OPEN), {Pid, _} <- [asked()]],
         [ok = line(large(Id), Socket) || Id <- [101, 102, 103, 104]],
         {104, #{~"error" := #{~"message" := <<"the client has as many", _/binary>>}}} = answer(),
         %% One that is taken back leaves its room to another one.
         [[Pid]] = ets:match(Table, {{'_', 101}, '$1'}),
         ok = line(cancelled(101), Socket),
         ok = ended(Pid),
         %% The client has read of the end, too.
         _ = sys:get_state(Client),
         [ok = line(Message, Socket) || Message <- [ping(100), large(105)]],
         {100, #{~"result" := #{}}} = answer(),
         ok = declined(Open, 3),
         true = lists:seq(1, ?OPEN) ++ [102, 103, 105] =:= maps:keys(answers(?OPEN + 3))
     end || _ <- [1, 2]],
    %% Nothing is kept of what was answered.
    ok = left(0, Table),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer).

large(Id) ->
    #{params := Params} = Question = question(Id),
    Question#{params := Params#{about => binary:copy(~"x", 300_000)}}.

%% Until the client has as many questions. The case's time is the bound.
left(Count, Table) ->
    case ets:info(Table, size) of
        Count -> ok;
        _ -> receive after 5 -> left(Count, Table) end
    end.

%% The time of the user's answer is not the server's.
a_call_waits_for_its_user(_) ->
    #{url := Url} = Peer = streaming(),
    {ok, Client} = erlmcp_client:start_link({http, Url, options()}),
    {ok, _} = erlmcp_client:server(Client),
    _ = connected(),
    {ok, Reference} = erlmcp_client:async(Client, {call_tool, ~"t", #{}}, #{timeout => 3_000}),
    Called = connected(),
    #{~"id" := Id} = erlmcp_test_peer:received(~"tools/call"),
    ok = http(question(1), Called),
    {Pid, 1} = asked(),
    receive {erlmcp, Reference, _} -> error(late) after 3_300 -> ok end,
    Pid ! decline,
    {1, #{~"result" := _}} = answer(),
    %% The call's own process has read that the question is answered, and goes on in its own time.
    {ok, #{questions := Table}} = erlmcp_client_table:find(Client),
    ok = left(0, Table),
    ok = http(ping(2), Called),
    {2, #{~"result" := #{}}} = answer(),
    ok = http(result(#{~"id" => Id}, #{content => []}), Called),
    receive {erlmcp, Reference, {ok, #{}}} -> ok after ?WAIT -> error(no_result) end,
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer).

%% When the user has answered, the server has what was left of its time, and no more.
a_call_goes_on_in_its_own_time(_) ->
    {Peer, Client, _} = listening(),
    {ok, Reference} = erlmcp_client:async(Client, {call_tool, ~"t", #{}}, #{timeout => 3_000}),
    Called = connected(),
    ok = http(question(1), Called),
    {Pid, 1} = asked(),
    Pid ! decline,
    {1, #{~"result" := _}} = answer(),
    receive
        {erlmcp, Reference, Outcome} -> {error, {timeout, 3_000}} = Outcome
    after ?WAIT ->
        error(waits_on)
    end,
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer).

%% One answer is none to the other question.
a_call_waits_for_all_its_questions(_) ->
    {Peer, Client, _} = listening(),
    {ok, Reference} = erlmcp_client:async(Client, {call_tool, ~"t", #{}}, #{timeout => 3_000}),
    Called = connected(),
    #{~"id" := Id} = erlmcp_test_peer:received(~"tools/call"),
    [ok = http(question(Question), Called) || Question <- [1, 2]],
    Asked = #{Question => Pid || _ <- [1, 2], {Pid, Question} <- [asked()]},
    maps:get(1, Asked) ! decline,
    {1, #{~"result" := _}} = answer(),
    receive {erlmcp, Reference, _} -> error(late) after 3_300 -> ok end,
    maps:get(2, Asked) ! decline,
    {2, #{~"result" := _}} = answer(),
    ok = http(result(#{~"id" => Id}, #{content => []}), Called),
    receive {erlmcp, Reference, {ok, #{}}} -> ok after ?WAIT -> error(no_result) end,
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer).

%% The stream of a call breaks after an answer that has taken longer than a whole call may.
a_call_is_resumed_after_its_user(_) ->
    Test = self(),
    #{url := Url} = Peer = erlmcp_test_peer:http(fun
        (#{message := #{~"method" := ~"tools/call", ~"id" := Id}}) ->
            Test ! {called, self(), Id},
            {events, [~"id: 1\nretry: 0\ndata: \n\n", event(question(1)), follow]};
        (#{headers := #{~"last-event-id" := ~"1"}}) ->
            Test ! {resumed, self()},
            receive {answer, Answer} -> {events, [event(Answer)]} end;
        (Request) ->
            session(Request)
    end),
    {ok, Client} = erlmcp_client:start_link({http, Url, options()}),
    {ok, Reference} = erlmcp_client:async(Client, {call_tool, ~"t", #{}},
                                          #{timeout => 3_000, max_timeout => 3_000}),
    {Stream, Id} = receive {called, Pid, Call} -> {Pid, Call} after ?WAIT -> error(no_call) end,
    {User, 1} = asked(),
    receive {erlmcp, Reference, _} -> error(late) after 3_300 -> ok end,
    User ! decline,
    {1, #{~"result" := _}} = answer(),
    Stream ! {say, close},
    receive
        {resumed, Again} -> Again ! {answer, result(#{~"id" => Id}, #{content => []})};
        {erlmcp, Reference, Early} -> error(Early)
    after ?WAIT ->
        error(not_resumed)
    end,
    receive {erlmcp, Reference, {ok, #{}}} -> ok after ?WAIT -> error(no_result) end,
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer).

%% "The call's own time stands still meanwhile": on lines too, where no question says which call it
%% is of.
calls_wait_for_the_user_on_lines(_) ->
    {Peer, Client, Socket} = on_lines(),
    ok = outside_of_calls(Client, fun(Message) -> line(Message, Socket) end,
                          fun() -> fun(Message) -> line(Message, Socket) end end),
    ok = erlmcp_test_peer:stop(Peer).

calls_wait_for_the_user_on_another_stream(_) ->
    {Peer, Client, Listened} = listening(),
    ok = outside_of_calls(Client, fun(Message) -> http(Message, Listened) end,
                          fun() ->
                              Called = connected(),
                              fun(Message) -> http(Message, Called) end
                          end),
    ok = erlmcp_test_peer:stop(Peer).

%% The user takes a while for three questions together. The call waits that while longer, not three.
questions_at_once_take_their_time_once(_) ->
    {Peer, Client, Socket} = on_lines(),
    Began = erlang:monotonic_time(millisecond),
    {ok, Reference} = erlmcp_client:async(Client, {call_tool, ~"t", #{}}, #{timeout => 3_000}),
    _ = erlmcp_test_peer:received(~"tools/call"),
    Asked = erlang:monotonic_time(millisecond),
    [ok = line(question(Number), Socket) || Number <- [1, 2, 3]],
    Pids = [element(1, asked()) || _ <- [1, 2, 3]],
    receive {erlmcp, Reference, Early} -> error(Early) after 1_500 -> ok end,
    _ = [Pid ! decline || Pid <- Pids],
    _ = [answer() || _ <- Pids],
    Thought = erlang:monotonic_time(millisecond) - Asked,
    receive
        {erlmcp, Reference, Outcome} -> {error, {timeout, 3_000}} = Outcome
    after ?WAIT ->
        error(waits_on)
    end,
    true = erlang:monotonic_time(millisecond) - Began < 3_000 + Thought + 1_500,
    erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer).

%% The user takes longer than the whole call may, while the server has the request for the first
%% page. The server has what was left of its time for the second one.
pages_wait_for_the_user(_) ->
    pages(fun(Reference, Socket) -> thinks(1, Reference, Socket) end, fun(_, _) -> ok end).

%% The server has asked too much for the first page, and nothing for the second one.
each_page_has_its_own_questions(_) ->
    pages(fun(_, Socket) ->
        [begin
             ok = line(question(Number), Socket),
             {Pid, Number} = asked(),
             declines(Number, Pid)
         end || Number <- lists:seq(1, 101)]
    end, fun(Reference, Socket) -> thinks(102, Reference, Socket) end).

%% A list of two pages, with what happens while the server has the request for each.
pages(OnFirst, OnSecond) ->
    {Peer, Client, Socket} = on_lines(),
    {ok, Reference} = erlmcp_client:async(Client, {list, tools},
                                          #{timeout => 3_000, max_timeout => 3_000}),
    #{~"id" := First} = erlmcp_test_peer:received(~"tools/list"),
    _ = OnFirst(Reference, Socket),
    ok = line(result(#{~"id" => First}, #{tools => [], nextCursor => ~"2"}), Socket),
    #{~"id" := Second} = erlmcp_test_peer:received(~"tools/list"),
    _ = OnSecond(Reference, Socket),
    ok = line(result(#{~"id" => Second}, #{tools => []}), Socket),
    receive
        {erlmcp, Reference, Outcome} -> {ok, []} = Outcome
    after ?WAIT ->
        error(no_result)
    end,
    erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer).

%% The user takes longer than the whole call may.
thinks(Number, Reference, Socket) ->
    ok = line(question(Number), Socket),
    {Pid, Number} = asked(),
    receive {erlmcp, Reference, Early} -> error(Early) after 3_300 -> ok end,
    declines(Number, Pid).

declines(Number, Pid) ->
    Pid ! decline,
    {Number, #{~"result" := _}} = answer(),
    ok.

%% Nobody waits for the answer, and calls on the next connection do not wait for the user.
questions_end_with_their_connection(_) ->
    {Peer, Client, Socket} = on_lines(),
    ok = line(question(1), Socket),
    {Pid, 1} = asked(),
    Monitor = monitor(process, Pid),
    ok = gen_tcp:shutdown(Socket, read_write),
    receive {'DOWN', Monitor, process, Pid, _} -> ok after ?WAIT -> error(still_asked) end,
    erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer).

%% The user of the first call takes longer than a whole call may. The server of the second has what
%% was left of its time, and no more.
outside_of_calls(Client, Ask, Called) ->
    Call = fun() ->
        {ok, Reference} = erlmcp_client:async(Client, {call_tool, ~"t", #{}},
                                              #{timeout => 3_000, max_timeout => 3_000}),
        Say = Called(),
        #{~"id" := Id} = erlmcp_test_peer:received(~"tools/call"),
        {Reference, fun() -> Say(result(#{~"id" => Id}, #{content => []})) end}
    end,
    Thinks = fun(Number, Reference, Milliseconds) ->
        ok = Ask(question(Number)),
        {Pid, Number} = asked(),
        receive {erlmcp, Reference, _} -> error(late) after Milliseconds -> ok end,
        Pid ! decline,
        {Number, #{~"result" := _}} = answer(),
        ok
    end,
    {First, Answer} = Call(),
    ok = Thinks(1, First, 3_300),
    ok = Answer(),
    receive {erlmcp, First, {ok, #{}}} -> ok after ?WAIT -> error(no_result) end,
    {Second, _} = Call(),
    ok = Thinks(2, Second, 2_500),
    receive {erlmcp, Second, Early} -> error(Early) after 1_500 -> ok end,
    receive
        {erlmcp, Second, Outcome} -> {error, {timeout, 3_000}} = Outcome
    after ?WAIT ->
        error(waits_on)
    end,
    erlmcp_client:stop(Client).

%% Servers whose sockets the test writes to: the GET stream and those of calls; lines, after
%% these.
streaming() ->
    Test = self(),
    erlmcp_test_peer:http(fun
        (#{method := Method, message := Message}) when
            Method =:= ~"GET"; map_get(~"method", Message) =:= ~"tools/call"
        ->
            fun(Socket) ->
                ok = write(Socket, chunked(events)),
                Test ! {connected, Socket},
                _ = gen_tcp:recv(Socket, 0),
                close
            end;
        (Request) ->
            session(Request)
    end).

lines(First) ->
    Test = self(),
    erlmcp_test_peer:tcp(fun
        (#{~"method" := ~"initialize"} = Message) ->
            [result(Message, initialized()) | First];
        (#{~"method" := ~"notifications/initialized"}) ->
            [fun(Socket) -> Test ! {connected, Socket}, ok end];
        (_) ->
            []
    end).

connected() ->
    receive {connected, Socket} -> Socket after ?WAIT -> error(nobody_connects) end.

http(Message, Socket) -> gen_tcp:send(Socket, chunk(event(Message))).

line(Message, Socket) -> gen_tcp:send(Socket, [json:encode(Message), $\n]).

ended(Pid) ->
    Monitor = monitor(process, Pid),
    receive {'DOWN', Monitor, process, Pid, _} -> ok after ?WAIT -> error(is_still_asked) end.

asked() ->
    receive
        {asked, Pid, Id} -> {Pid, Id}
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
