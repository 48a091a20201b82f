-module(session_deadlines_SUITE).
-moduledoc """
A call of an HTTP session that answers as its deadline passes: the process of the session, which
hears of both, tells of no deadline where the client has the answer. And a session whose process is
late itself: it is no ended one.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([what_has_answered_is_not_late/1, a_late_session_has_not_ended/1]).

-import(erlmcp_test_http, [start/1, stop/1, call/4, initialize/2, start_call/4, finish/2,
                           response/1, close/1, session_process/0, definitions/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [what_has_answered_is_not_late, a_late_session_has_not_ended].

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

%% Its client is told to try again, and can: the connection that was refused is no stream's.
a_late_session_has_not_ended(_) ->
    Server = start(definitions(self())),
    {Id, _} = Session = initialize(Server, ~"2025-11-25"),
    Watch = fun(Method) ->
        call(Server, Method, #{uri => ~"test://text"}, #{session => Session})
    end,
    #{messages := [#{~"result" := _}]} = Watch(~"resources/subscribe"),
    %% Nobody has told the client yet.
    ok = erlmcp:add(maps:get(pid, Server), prompt,
                    #{name => ~"new", handler => fun(_, _) -> ~"" end}),
    Process = session_process(),
    ok = sys:suspend(Process),
    Streams = [erlmcp_test_http:connect(Server) || _ <- [new, resumed]],
    Get = fun(Socket, Headers) ->
        erlmcp_test_http:send(Socket, ~"GET", [{~"mcp-session-id", Id},
                                               {~"accept", ~"text/event-stream"} | Headers], ~"")
    end,
    [ok = Get(Socket, Headers)
     || {Socket, Headers} <- lists:zip(Streams, [[], [{~"last-event-id", ~"0-0"}]])],
    Test = self(),
    Methods = [~"resources/subscribe", ~"resources/unsubscribe"],
    [spawn_link(fun() -> Test ! {Method, Watch(Method)} end) || Method <- Methods],
    [#{status := 503, headers := #{~"retry-after" := ~"1"},
       messages := [#{~"error" := #{~"code" := 1069}}]} = response(Socket) || Socket <- Streams],
    [receive
         {Method, Late} -> #{status := 200, messages := [#{~"error" := #{~"code" := 1069}}]} = Late
     end || Method <- Methods],
    ok = sys:resume(Process),
    [#{messages := [#{~"result" := _}]} = Watch(Method) || Method <- Methods],
    ok = Get(hd(Streams), []),
    {200, _} = erlmcp_test_http:head(hd(Streams)),
    ok = told_of(~"notifications/prompts/list_changed", hd(Streams)),
    [ok = close(Socket) || Socket <- Streams],
    stop(Server).

told_of(Method, Socket) ->
    case erlmcp_test_http:event(Socket) of
        {event, #{~"method" := Method}} -> ok;
        {event, _} -> told_of(Method, Socket)
    end.

told() ->
    Test = self(),
    #{tools := Tools} = Definitions = definitions(Test),
    start(Definitions#{tools := [in_three_seconds(Tool) || Tool <- Tools],
                       on_event => fun(Event) -> Test ! Event end}).

%% The session's process must be suspended by then.
in_three_seconds(#{name := ~"slow"} = Tool) -> Tool#{timeout_ms := 3000};
in_three_seconds(Tool) -> Tool.

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
