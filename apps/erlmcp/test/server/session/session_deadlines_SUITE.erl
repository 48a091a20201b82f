-module(session_deadlines_SUITE).
-moduledoc """
A call of an HTTP session that answers as its deadline passes: the process of the session, which
hears of both, tells of no deadline where the client has the answer.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([what_has_answered_is_not_late/1]).

-import(erlmcp_test_http, [start/1, stop/1, call/4, initialize/2, start_call/4, finish/2,
                           response/1, close/1, session_process/0, definitions/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [what_has_answered_is_not_late].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

%% The session's process hears of the deadline when the call has answered.
what_has_answered_is_not_late(_) ->
    Server = #{pid := Pid} = told(),
    Session = initialize(Server, ~"2025-11-25"),
    {Socket, Call} = start_call(Server, Session, ~"slow", 1),
    Process = session_process(),
    ok = sys:suspend(Process),
    ok = await(fun() -> has_deadline(Process) end),
    {Requests, Faults} = counted(Pid),
    ok = finish(Call, ~"just so"),
    #{status := 200, messages := [#{~"result" := _}]} = response(Socket),
    ok = sys:resume(Process),
    ok = next_incident_is_a_crash(Server, Session),
    %% This one, the subscription and the crash, which is the one fault.
    Expected = {Requests + 3, Faults + 1},
    Expected = counted(Pid),
    ok = close(Socket),
    stop(Server).

told() ->
    Test = self(),
    start((definitions(Test))#{on_event => fun(Event) -> Test ! Event end}).

%% It is told in the order of what happens; the session's process has done what it had to before it
%% takes in a subscription.
next_incident_is_a_crash(Server, Session) ->
    Options = #{session => Session},
    #{messages := [#{~"result" := _}]} =
        call(Server, ~"resources/subscribe", #{uri => ~"test://text"}, Options),
    #{messages := [#{~"error" := #{~"data" := #{~"incident" := Incident}}}]} =
        call(Server, ~"tools/call", #{name => ~"crash"}, Options),
    #{what := call_crashed, incident := Incident} =
        receive #{event := incident} = Told -> Told end,
    ok.

has_deadline(Process) ->
    {messages, Messages} = process_info(Process, messages),
    [] =/= [Deadline || {_, {deadline, _, _} = Deadline} <- Messages].

%% Since the server's start.
counted(Pid) ->
    #{error_budget := #{requests := Requests, faults := Faults}} = erlmcp:info(Pid),
    {Requests, Faults}.

await(Holds) ->
    case Holds() of
        true -> ok;
        false -> receive after 20 -> await(Holds) end
    end.
