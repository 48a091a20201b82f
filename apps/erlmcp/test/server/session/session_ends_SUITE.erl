-module(session_ends_SUITE).
-moduledoc """
The end of an HTTP session that meets its beginning to have a process: nobody is left, whichever of
the two is first. And its end as one that is not in use that meets its first use: it is one of both.
And its end that meets a call: the call ends with it.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([an_end_meets_a_first_process/1, an_end_meets_a_first_stream/1,
         one_in_use_is_not_given_up/1, a_call_meets_an_end/1,
         an_unused_session_ends_on_time/1, no_place_is_taken_from_another_tenant/1,
         streams_that_are_over_leave_nothing/1]).

-import(erlmcp_test_http, [initialize/2, delete/2, get_stream/2, close/1, event/1, call/4,
                           definitions/1, start_call/4, session_process/0]).

%% Sessions that are ended, one after the other. In each the end comes later than in the one before,
%% by so many nanoseconds; after so many it begins anew.
-define(TIMES, 20_000).
-define(LATER_NS, 500).
-define(STEPS, 200).
-define(OVER_HTTP, 200).
%% Reductions of a process's turn on its scheduler, and how few of them it begins with.
-define(TURN, 4_000).
-define(LAST, 100).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [an_end_meets_a_first_process, an_end_meets_a_first_stream, one_in_use_is_not_given_up,
     a_call_meets_an_end, an_unused_session_ends_on_time, no_place_is_taken_from_another_tenant,
     streams_that_are_over_leave_nothing].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

%% A session is asked for its process while another process ends it. The two wait for each other
%% before each session.
an_end_meets_a_first_process(_) ->
    {Server, Instance} = server(?TIMES),
    Ids = [opened(Instance) || _ <- lists:seq(1, ?TIMES)],
    At = atomics:new(2, []),
    Asker = together(fun() -> asked(1, Ids, At, Instance, 0) end),
    ok = ended(1, Ids, At, Instance),
    Attended = receive {Asker, Count} -> Count end,
    %% Both were first now and then.
    true = Attended > 0 andalso Attended < ?TIMES,
    nobody_is_left(Instance),
    erlmcp_test_http:stop(Server).

together(Do) ->
    Self = self(),
    spawn_link(fun() -> Self ! {self(), Do()} end).

asked(_, [], _, _, Attended) ->
    Attended;
asked(Number, [Id | Ids], At, Instance, Attended) ->
    ok = meet(Number, 1, 2, At),
    case erlmcp_session:process(Id, Instance) of
        {ok, _} -> asked(Number + 1, Ids, At, Instance, Attended + 1);
        ended -> asked(Number + 1, Ids, At, Instance, Attended)
    end.

ended(_, [], _, _) ->
    ok;
ended(Number, [Id | Ids], At, Instance) ->
    ok = meet(Number, 2, 1, At),
    ok = pass(erlang:monotonic_time(nanosecond) + Number rem ?STEPS * ?LATER_NS),
    ok = erlmcp_session:delete(Id, Instance),
    ended(Number + 1, Ids, At, Instance).

meet(Number, Own, Other, At) ->
    ok = atomics:put(At, Own, Number),
    come(Number, Other, At).

come(Number, Other, At) ->
    case atomics:get(At, Other) >= Number of
        true ->
            ok;
        false ->
            %% There may be one scheduler for both.
            true = erlang:yield(),
            come(Number, Other, At)
    end.

pass(Until) ->
    case erlang:monotonic_time(nanosecond) < Until of
        true -> pass(Until);
        false -> ok
    end.

%% The same by two connections: the stream ends with the session, or there is none.
an_end_meets_a_first_stream(_) ->
    {Server, Instance} = server(?OVER_HTTP),
    Streams = [begin
                   Session = initialize(Server, ~"2025-11-25"),
                   Asker = together(fun() -> streamed(Server, Session) end),
                   #{status := 204} = delete(Server, Session),
                   receive {Asker, Ended} -> Ended end
               end || _ <- lists:seq(1, ?OVER_HTTP)],
    [] = [Other || Other <- Streams, Other =/= streamed, Other =/= gone],
    nobody_is_left(Instance),
    erlmcp_test_http:stop(Server).

streamed(Server, Session) ->
    {Socket, Head} = get_stream(Server, Session),
    Ended = case Head of
        {200, _} -> fin = event(Socket), streamed;
        {404, _} -> gone
    end,
    ok = close(Socket),
    Ended.

%% A client uses a session first while it is given up for another one: when the index of those that
%% are not in use has it no more. Who gives it up has all but used up its turn then, and has to let
%% the client go first now and then.
one_in_use_is_not_given_up(_) ->
    {Server, Instance} = server(?TIMES),
    User = together(fun() -> used(?TIMES, Instance, 0) end),
    ok = given_up(?TIMES, User, Instance),
    Used = receive {User, Count} -> Count end,
    true = Used > 0 andalso Used < ?TIMES,
    nobody_is_left(Instance),
    erlmcp_test_http:stop(Server).

used(0, _, Used) ->
    Used;
used(Left, Instance, Used) ->
    {From, Id} = receive {_, _} = Opened -> Opened end,
    From ! {self(), ready},
    ok = until_taken(Instance),
    case erlmcp_session_table:find(Id, anonymous, Instance) of
        {ok, none, _} ->
            From ! {self(), used},
            used(Left - 1, Instance, Used + 1);
        error ->
            From ! {self(), ended},
            used(Left - 1, Instance, Used)
    end.

until_taken(Instance) ->
    case erlmcp_session_table:oldest_unused(all, Instance) of
        none ->
            ok;
        {ok, _} ->
            true = erlang:yield(),
            until_taken(Instance)
    end.

given_up(0, _, _) ->
    ok;
given_up(Left, User, Instance) ->
    Id = opened(Instance),
    {ok, Unused} = erlmcp_session_table:oldest_unused(all, Instance),
    User ! {self(), Id},
    receive {User, ready} -> ok end,
    true = erlang:yield(),
    true = erlang:bump_reductions(?TURN - Left rem ?LAST),
    GivenUp = erlmcp_session_table:end_unused(Unused, Instance),
    case {receive {User, Found} -> Found end, GivenUp} of
        {ended, {ended, none}} -> ok;
        {used, used} -> ok = erlmcp_session:delete(Id, Instance)
    end,
    given_up(Left - 1, User, Instance).

%% The session's process reads that its time is over before it reads of the call.
a_call_meets_an_end(_) ->
    Idle = 300,
    Server = erlmcp_test_http:start((definitions(self()))#{limits => #{session_idle_ms => Idle}}),
    Session = initialize(Server, ~"2025-11-25"),
    #{status := 200} = call(Server, ~"tools/call", #{name => ~"echo", arguments => #{text => ~""}},
                            #{session => Session}),
    Process = session_process(),
    ok = sys:suspend(Process),
    ok = erlmcp_test_servers:await(fun() ->
        {messages, Messages} = process_info(Process, messages),
        case lists:member(idle, Messages) of
            true -> {ok, ok};
            false -> again
        end
    end),
    {Socket, Call} = start_call(Server, Session, ~"wait", 2),
    %% The call was a use of the session, whose time is over after that.
    {Id, _} = Session,
    {ok, _, Instance} = erlmcp_registry:whereis(maps:get(pid, Server)),
    ok = erlmcp_test_servers:await(fun() ->
        case erlmcp_session_table:ms_until_idle(Id, Instance) of
            Ms when Ms > 0 -> again;
            _ -> {ok, ok}
        end
    end),
    Monitor = monitor(process, Call),
    ok = sys:resume(Process),
    ok = erlmcp_test_servers:down(Monitor),
    #{status := 404} = call(Server, ~"ping", #{}, #{session => Session}),
    ok = close(Socket),
    erlmcp_test_http:stop(Server).

%% Its first use comes after its time, and the server has not looked for sessions that are over.
an_unused_session_ends_on_time(_) ->
    Server = #{pid := Pid} = erlmcp_test_http:start(#{limits => #{unused_session_ms => 50}}),
    ok = sys:suspend(erlmcp_test_servers:child(session_sweeper, Pid)),
    #{status := 200, headers := #{~"mcp-session-id" := Id}} =
        erlmcp_test_http:initialize(Server, ~"2025-11-25", #{}),
    ok = timer:sleep(60),
    #{status := 404} = call(Server, ~"ping", #{}, #{session => {Id, ~"2025-11-25"}}),
    erlmcp_test_http:stop(Server).

%% A tenant that uses all of its sessions gets no other one, though others do not use theirs.
no_place_is_taken_from_another_tenant(_) ->
    #{pid := Pid} = Server = erlmcp_test_http:start(#{limits => #{sessions_per_principal => 1}}),
    {ok, _, Instance} = erlmcp_registry:whereis(Pid),
    [Below, Used, Above] = [opened({127, 0, 0, N}, Instance) || N <- [1, 2, 3]],
    {ok, none, _} = erlmcp_session_table:find(Used, anonymous, Instance),
    {error, _} = open({127, 0, 0, 2}, Instance),
    [{ok, none, _} = erlmcp_session_table:find(Id, anonymous, Instance)
     || Id <- [Below, Used, Above]],
    erlmcp_test_http:stop(Server).

%% Each call has a stream, of which the session keeps as much as it keeps of its events.
streams_that_are_over_leave_nothing(_) ->
    Server = erlmcp_test_http:start((definitions(self()))#{limits => #{stored_events => 5}}),
    Session = initialize(Server, ~"2025-11-25"),
    Params = #{name => ~"progress", '_meta' => #{progressToken => 1}},
    Size = fun(Calls) ->
        [#{status := 200, messages := [_, _ | _]} =
             call(Server, ~"tools/call", Params, #{session => Session})
         || _ <- lists:seq(1, Calls)],
        erts_debug:flat_size(sys:get_state(session_process()))
    end,
    First = Size(20),
    true = Size(100) < First + 200,
    erlmcp_test_http:stop(Server).

server(Sessions) ->
    Limits = #{sessions => Sessions, sessions_per_principal => Sessions},
    #{pid := Pid} = Server = erlmcp_test_http:start(#{limits => Limits}),
    {ok, _, Instance} = erlmcp_registry:whereis(Pid),
    {Server, Instance}.

opened(Instance) ->
    opened({127, 0, 0, 1}, Instance).

opened(Address, Instance) ->
    {ok, Id} = open(Address, Instance),
    Id.

open(Address, Instance) ->
    erlmcp_session:open(#{revision => '2025-11-25', principal => anonymous,
                          client_info => undefined, client_capabilities => #{}, log_level => 6,
                          initialized => true}, {anonymous, Address}, Instance).

%% Neither a row nor a process, when those that were told have ended.
nobody_is_left(Instance) ->
    0 = erlmcp_session_table:count(Instance),
    Supervisor = erlmcp_instance:supervisor(sessions, Instance),
    erlmcp_test_servers:await(fun() ->
        case proplists:get_value(active, supervisor:count_children(Supervisor)) of
            0 -> {ok, nobody};
            _ -> again
        end
    end).
