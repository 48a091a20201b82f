-module(erlmcp_inline_call).
-moduledoc """
Runs calls of definitions with `quick => true` in the process of their connection. In these cases
`run/2` returns `start`, and the connection starts an ordinary call:

- The call has to wait for its permit, brings input, or is to become a task.
- Its client wants its progress or, in 2026-07-28, its log.
- Its time limit is shorter than the second that a quick call may last.
- Its definition was not quick recently.
- The application, and the watchdog with it, has stopped.

`m:erlmcp_inline_call_watchdog` observes which definitions are quick, and ends a call that takes too
long, together with its connection.

Internal.
""".

-export([is_in_turn/1, run/2, tell/5]).

%% Reductions that inline calls may use while they answer messages that arrived together. These are
%% about ten milliseconds, for which the first answer waits to be written.
-define(TURN, 400_000).

-doc """
Returns `true` if the calling process, which is that of a connection, may run one more inline call.
`Since` is its number of reductions when its messages arrived. The process may have used at most
400,000 reductions since then.
""".
-spec is_in_turn(Since :: non_neg_integer()) -> boolean().
is_in_turn(Since) ->
    {reductions, Now} = process_info(self(), reductions),
    Now - Since =< ?TURN.

-doc """
Runs a call in the calling process, which is that of its connection. Returns the answer of the call,
and its reports in their order. Gives the call's permit back, and counts the request as ended. If
the call needs a process of its own, does none of this, and returns `start`.
""".
-spec run(erlmcp_engine:call(), erlmcp_instance:instance()) ->
    {{reply, erlmcp_reply:status(), iodata()}, Reports :: [erlmcp_call_messages:message()]} | start.
run(#{definition := #{quick := Mark}, input := Input, permit := Permit} = Call, Instance) when
    Input =:= #{responses => #{}}, not is_map_key(task, Call)
->
    #{context := Context} = Call,
    Now = erlmcp_clock:now_ms(),
    Longest = erlmcp_inline_call_watchdog:longest_ms(),
    case erlmcp_inline_call_watchdog:is_quick(Mark, Now) andalso not erlmcp_gate:waits(Permit)
        andalso is_told_nothing(Context) andalso erlmcp_call:timeout(Call, Instance) >= Longest of
        true -> permitted(Call, Now + Longest, Instance);
        false -> start
    end;
run(_, _) ->
    start.

%% A session always has a log level. It gets its log messages after the call.
is_told_nothing(#{progress_token := Token}) when Token =/= undefined -> false;
is_told_nothing(#{revision := '2026-07-28', log_level := Level}) -> Level =:= undefined;
is_told_nothing(_) -> true.

permitted(#{definition := #{quick := Mark, key := Target}, context := Context} = Call, Deadline,
       #{key := Key} = Instance) ->
    #{method := Method} = Context,
    Watched = {Mark, {Key, Method, Target}},
    case erlmcp_inline_call_watchdog:watch(Deadline, Watched) of
        none ->
            start;
        InCall ->
            Answer =
                try
                    answered(Call, Context, Deadline, Watched, Instance)
                after
                    ok = erlmcp_inline_call_watchdog:end_of_call(InCall),
                    erlmcp_call:leave(Call)
                end,
            {Answer, erlmcp_connection_cache:take_reports()}
    end.

answered(Call, Given, Deadline, Watched, Instance) ->
    Context = context(Given, Deadline, Instance),
    try
        erlmcp_call:answered(Call, Instance, fun() -> outcome(Call, Context, Watched) end)
    catch
        %% The call must not end the connection's process.
        exit:shutdown -> erlmcp_call:died(shutdown, erlmcp_call:subject(Call), Instance)
    end.

context(#{revision := '2026-07-28'} = Given, Deadline, _) ->
    erlmcp_call_report:owned(erlmcp_call_messages:inline_owner(), Given#{deadline => Deadline});
context(Given, Deadline, #{limits := Limits}) ->
    %% Most calls report nothing, so the window begins with the first notification.
    erlmcp_call_report:owned(erlmcp_call_messages:inline_owner(), Limits,
                             Given#{deadline => Deadline}).

%% An inline call can neither ask its client for input nor become a task: such returns are errors.
outcome(#{kind := Kind, definition := #{handler := Handler} = Definition,
          arguments := Arguments} = Call, Context, Watched) ->
    {reductions, Before} = process_info(self(), reductions),
    try
        maybe
            ok ?= erlmcp_input_rounds:arguments(Call, Context),
            erlmcp_result:from(Kind, Handler(Arguments, Context), Definition, Context)
        end
    after
        {reductions, After} = process_info(self(), reductions),
        ok = erlmcp_inline_call_watchdog:used(After - Before, Watched)
    end.

-doc """
Sends a session's client first the reports and then the answer of an inline call, which has ended. A
new process sends them, and this function returns at once. `Waiting` is the connection that waits
for the answer. Until the answer is sent, the call counts among the running calls of the session,
even above the limit.
""".
-spec tell(Reports :: [erlmcp_call_messages:message()], {reply, erlmcp_reply:status(), iodata()},
           erlmcp_engine:call(),
           Waiting :: erlmcp_call:owner(), erlmcp_session_call:session()) -> ok.
tell(Said, {reply, Status, Bytes}, #{id := Id} = Call, Waiting, Known) ->
    #{id := Session, instance := Instance} = Known,
    Entry = {call, [Id], erlmcp_call:subject(Call), none},
    Answer = iolist_to_binary(Bytes),
    %% This may be one more than the limit, since the call is over already.
    ok = erlmcp_session_table:count_calls(Session, 1, Instance),
    _ = spawn(fun() ->
        erlmcp_session_call:run(Known, Entry, Waiting, fun(Owner) ->
            ok = lists:foreach(fun(Message) ->
                erlmcp_call_messages:pass_on(Owner, Message)
            end, Said),
            {Status, Answer}
        end)
    end),
    ok.
