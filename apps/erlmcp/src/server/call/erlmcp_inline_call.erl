-module(erlmcp_inline_call).
-moduledoc """
Calls of definitions that say `quick => true`: they run in the process of their connection, where
nothing keeps them waiting, and cost no process of their own. A connection asks here first, and
starts the call as any other where it hears `start`. That is so where the call has to wait for its
place, goes on with an earlier round, or is to be a task; where its client wants to be told of its
progress or its log; where its time is shorter than what is looked at here; and where the definition
was not as quick as it said.

Whether a definition is quick is observed. A definition whose calls use too much, or last too long,
is not quick any more, and a call that does not come to its end is ended with its connection
(`m:erlmcp_inline_call_watchdog`).

The work of such a call is a part of its connection's work. The call has a permit of the gate, which
counts neither a wait, for the call had none, nor the work (`erlmcp_gate:add_work/1`): to hold back
calls would not make a connection's work less.

Internal.
""".

-export([is_in_turn/1, run/2, tell/5]).

%% Reductions for which what arrived together is answered here, be it quick: some ten milliseconds,
%% in which the first answer waits to be written.
-define(TURN, 400_000).

-doc """
Returns `true` if the calling process, a connection's, may run one more inline call: it has not used
many reductions since it had the messages that it works on. `Since` are its reductions then.
""".
-spec is_in_turn(Since :: non_neg_integer()) -> boolean().
is_in_turn(Since) ->
    {reductions, Now} = process_info(self(), reductions),
    Now - Since =< ?TURN.

-doc """
Runs a call in the calling process, which is its connection's and has nobody else's call. Returns
its answer, and what it reported before, in its order; or `start` where it is to have a process of
its own.
""".
-spec run(erlmcp_engine:call(), erlmcp_instance:of_calls()) ->
    {{reply, erlmcp_reply:status(), iodata()}, Said :: [erlmcp_call_messages:message()]} | start.
run(#{definition := #{quick := Mark}, input := Input, permit := Permit} = Call, Instance) when
    Input =:= #{responses => #{}}, not is_map_key(task, Call)
->
    #{context := Context} = Call,
    Now = erlmcp_clock:now_ms(),
    Longest = erlmcp_inline_call_watchdog:longest_ms(),
    case erlmcp_inline_call_watchdog:is_quick(Mark, Now) andalso not erlmcp_gate:waits(Permit)
        andalso is_told_nothing(Context) andalso erlmcp_call:timeout(Call, Instance) >= Longest of
        true -> placed(Call, Now + Longest, Instance);
        false -> start
    end;
run(_, _) ->
    start.

%% A session has always a level of what it is sent of the log. It is sent that after the call.
is_told_nothing(#{progress_token := Token}) when Token =/= undefined -> false;
is_told_nothing(#{revision := '2026-07-28', log_level := Level}) -> Level =:= undefined;
is_told_nothing(_) -> true.

placed(#{definition := #{quick := Mark, key := Target}, context := Context} = Call, Deadline,
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

answered(#{id := Id} = Call, Given, Deadline, Watched, Instance) ->
    Context = context(Given, Deadline, Instance),
    try
        erlmcp_call:answered(Call, Instance, fun() -> outcome(Call, Context, Watched) end)
    catch
        %% This is not its process to end.
        exit:shutdown -> erlmcp_call:died(shutdown, Id, erlmcp_call:subject(Call), Instance)
    end.

context(#{revision := '2026-07-28'} = Given, Deadline, _) ->
    erlmcp_call_report:owned(erlmcp_call_messages:inline_owner(), Given#{deadline => Deadline});
context(Given, Deadline, #{limits := Limits}) ->
    %% Most report nothing: the window begins with the first notification.
    erlmcp_call_report:owned(erlmcp_call_messages:inline_owner(), Limits,
                             Given#{deadline => Deadline}).

%% It has no client to ask, and nobody would go on with it as a task: what says so is a return that
%% is none.
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
Sends a session's client what a call said, and then its answer, the way of other calls that say
something: `Waiting` is the connection that waits for it.
""".
-spec tell([erlmcp_call_messages:message()], {reply, erlmcp_reply:status(), iodata()},
           erlmcp_engine:call(),
           Waiting :: erlmcp_call:owner(), erlmcp_session_call:session()) -> ok.
tell(Said, {reply, Status, Bytes}, #{id := Id} = Call, Waiting, Known) ->
    #{id := Session, instance := Instance} = Known,
    Entry = {call, [Id], erlmcp_call:subject(Call), none},
    Answer = iolist_to_binary(Bytes),
    %% One more than there may be, where they are all taken: it is over already.
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
