-module(gathered_answers_SUITE).
-moduledoc """
Answers that are ready go out in one piece on TCP, up to a bound. They are answers of quick handlers
to requests that came together, and of calls that ended meanwhile. The server's socket counts its
writes and their bytes.
""".

-export([suite/0, all/0]).
-export([answers_to_what_came_together_are_one_write/1, answers_that_wait_are_one_write/1,
         much_is_written_as_it_is_ready/1]).

-import(erlmcp_test_line, [serve/1, connect/1, recv_many/2, stateless/3]).

%% Requests at once, and tries until they came together and nothing made one of them wait.
-define(REQUESTS, 20).
-define(TRIES, 20).
%% Calls at once, each of which has a place.
-define(CALLS, 5).
%% Bytes of a large answer, and of the answers that a server has ready before it writes.
-define(LARGE, 100_000).
-define(READY, 131_072).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [answers_to_what_came_together_are_one_write, answers_that_wait_are_one_write,
     much_is_written_as_it_is_ready].

answers_to_what_came_together_are_one_write(_) ->
    1 = least_writes(?TRIES, infinity).

%% A machine that stands still for a second makes a call not quick, and a read may be cut anywhere.
least_writes(0, Least) ->
    Least;
least_writes(Left, Least) ->
    {Answers, #{send_cnt := Writes}} = asked(~"echo", #{~"text" => ~"hello"}, ?REQUESTS),
    [~"hello"] = lists:usort([text(Answer) || Answer <- Answers]),
    case Writes of
        1 -> 1;
        _ -> least_writes(Left - 1, min(Writes, Least))
    end.

%% Calls of their own processes, all of which have ended when the connection's next looks.
answers_that_wait_are_one_write(_) ->
    Self = self(),
    Server = serve(#{tools => [
        #{name => ~"wait", handler => fun(_, _) -> Self ! {waits, self()}, receive go -> [] end end}
    ]}),
    Socket = connect(Server),
    Ids = sent(~"wait", #{}, ?CALLS, Socket),
    Calls = [receive {waits, Call} -> {Call, monitor(process, Call)} end || _ <- Ids],
    {connected, Connection} = erlang:port_info(erlmcp_test_http:other_side(Socket), connected),
    true = erlang:suspend_process(Connection),
    [Call ! go || {Call, _} <- Calls],
    [receive {'DOWN', Monitor, _, _, _} -> ok end || {_, Monitor} <- Calls],
    true = erlang:resume_process(Connection),
    _ = answers(Ids, Socket),
    #{send_cnt := 1} = written(Socket),
    ok = gen_tcp:close(Socket).

%% Forty answers of 100,000 bytes are not kept until all are there.
much_is_written_as_it_is_ready(_) ->
    {Answers, #{send_max := Largest}} = asked(~"large", #{}, 2 * ?REQUESTS),
    [?LARGE] = lists:usort([byte_size(text(Answer)) || Answer <- Answers]),
    true = Largest < 2 * (?READY + ?LARGE).

%% Sends requests at once on a new connection. Returns the answers, and the counts of the server's
%% socket.
asked(Name, Arguments, Count) ->
    Server = serve(#{tools => [
        #{name => ~"echo", quick => true, input_schema => #{text => string},
          handler => fun(#{~"text" := Text}, _) -> Text end},
        #{name => ~"large", quick => true,
          handler => fun(_, _) -> binary:copy(~"x", ?LARGE) end}]}),
    Socket = connect(Server),
    Answers = answers(sent(Name, Arguments, Count, Socket), Socket),
    Written = written(Socket),
    ok = gen_tcp:close(Socket),
    {Answers, Written}.

sent(Name, Arguments, Count, Socket) ->
    Ids = lists:seq(1, Count),
    Call = #{~"name" => Name, ~"arguments" => Arguments},
    ok = gen_tcp:send(Socket, [[json:encode(stateless(Id, ~"tools/call", Call)), $\n]
                               || Id <- Ids]),
    Ids.

answers(Ids, Socket) ->
    Answers = recv_many(Socket, length(Ids)),
    Ids = lists:sort([Id || #{~"id" := Id} <- Answers]),
    Answers.

written(Socket) ->
    {ok, Written} = inet:getstat(erlmcp_test_http:other_side(Socket), [send_cnt, send_max]),
    maps:from_list(Written).

text(#{~"result" := #{~"content" := [#{~"text" := Text}]}}) -> Text.
