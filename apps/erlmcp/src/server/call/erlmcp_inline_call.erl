-module(erlmcp_inline_call).
-moduledoc """
Calls of definitions that say `quick => true`: they run in the process of their connection, where
nothing keeps them waiting, and cost no process of their own. A connection asks here first, and
starts the call as any other where it hears `start`: the call has to wait for its place, its client
wants to be told of its progress or its log, it goes on with an earlier round, it is to be a task,
its time is shorter than what is looked at here, or the definition was not as quick as it said.

That it is quick is looked at. A call that used more than `?MOST` reductions takes the others of its
definition with it: for a minute they run in their own processes. One that lasts longer than
`?LONGEST` milliseconds ends with its connection (`m:erlmcp_inline_call_watchdog`), and its
definition is not quick any more. Both are said in the log and as events.

What such a call uses is a part of its connection's work. It has a permit of the gate, which counts
neither a wait, for the call had none, nor the work (`erlmcp_gate:add_work/1`), since to hold back
calls would not make a connection's work less.
""".

-export([run/2, tell/5]).
-export([mark/0, unmark/3]).

-export_type([mark/0, whose/0]).

-doc "When calls of a definition are quick again, in monotonic milliseconds.".
-type mark() :: atomics:atomics_ref().
-doc "Whose call it is: the server's key, the method, and the definition's name or URI.".
-type whose() :: {reference(), Method :: binary(), Target :: binary()}.

%% Reductions of a call: about a millisecond.
-define(MOST, 40_000).
%% Milliseconds of a call.
-define(LONGEST, 1_000).
%% Milliseconds for which a definition is not quick that was not once.
-define(PAUSE, 60_000).
%% Later than any time.
-define(NEVER, (1 bsl 60)).

-doc "The mark of a definition that says it is quick.".
-spec mark() -> mark().
mark() ->
    Mark = atomics:new(1, []),
    ok = atomics:put(Mark, 1, erlang:monotonic_time(millisecond)),
    Mark.

-doc """
The answer of a call that ran here, in the calling process, which is its connection's and has nobody
else's call; and what it said before, in its order. `start` where it is to have its own process.
""".
-spec run(erlmcp_engine:call(), erlmcp_instance:of_calls()) ->
    {{reply, erlmcp_reply:status(), iodata()}, Said :: [erlmcp_call:message()]} | start.
run(#{definition := #{quick := Mark}, input := Input, permit := Permit} = Call, Instance) when
    Input =:= #{responses => #{}}, not is_map_key(task, Call)
->
    #{context := Context} = Call,
    Now = erlang:monotonic_time(millisecond),
    case atomics:get(Mark, 1) =< Now andalso not erlmcp_gate:waits(Permit)
        andalso is_told_nothing(Context) andalso erlmcp_call:timeout(Call, Instance) >= ?LONGEST of
        true -> placed(Call, Now + ?LONGEST, Instance);
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
                    ok = erlmcp_inline_call_watchdog:over(InCall),
                    erlmcp_call:leave(Call)
                end,
            {Answer, erlmcp_call_report:said()}
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
    Given#{owner => {self(), quick}, deadline => Deadline};
context(Given, Deadline, #{limits := Limits}) ->
    %% Most say nothing: what is unread of it is counted from the first message on.
    Given#{owner => {self(), quick}, deadline => Deadline, unread => Limits}.

%% It has no client to ask, and nobody would go on with it as a task: what says so is a return that
%% is none.
outcome(#{kind := Kind, definition := #{handler := Handler} = Definition,
          arguments := Arguments} = Call, Context, {Mark, Whose}) ->
    {reductions, Before} = process_info(self(), reductions),
    try
        maybe
            ok ?= erlmcp_input_rounds:arguments(Call, Context),
            erlmcp_result:from(Kind, Handler(Arguments, Context), Definition, Context)
        end
    after
        {reductions, After} = process_info(self(), reductions),
        _ = After - Before > ?MOST andalso unmark(Mark, pause, {Whose, reductions})
    end.

-doc """
Sends a session's client what a call said, and then its answer, the way of other calls that say
something: `Waiting` is the connection that waits for it.
""".
-spec tell([erlmcp_call:message()], {reply, erlmcp_reply:status(), iodata()}, erlmcp_engine:call(),
           Waiting :: erlmcp_call:owner(), erlmcp_session_call:session()) -> ok.
tell(Said, {reply, Status, Bytes}, #{id := Id} = Call, Waiting, Known) ->
    #{id := Session, instance := Instance} = Known,
    Entry = {call, [Id], erlmcp_call:subject(Call), none},
    Answer = iolist_to_binary(Bytes),
    %% One more than there may be, where they are all taken: it is over already.
    ok = erlmcp_instance:count_calls(Session, 1, Instance),
    _ = spawn(fun() ->
        erlmcp_session_call:run(Known, Entry, Waiting, fun(Owner) ->
            ok = lists:foreach(fun(Message) ->
                erlmcp_call_report:to_owner(Owner, Message)
            end, Said),
            {Status, Answer}
        end)
    end),
    ok.

-doc "A definition is not quick, for a while or for good. Says so, if it was until now.".
-spec unmark(mark(), pause | for_good, {whose(), Why :: reductions | deadline}) -> ok.
unmark(Mark, HowLong, Seen) ->
    Now = erlang:monotonic_time(millisecond),
    Until = case HowLong of
        pause -> Now + ?PAUSE;
        for_good -> ?NEVER
    end,
    unmark(Mark, Until, atomics:get(Mark, 1), Now, Seen).

unmark(_, Until, Before, _, _) when Before >= Until ->
    ok;
unmark(Mark, Until, Before, Now, Seen) ->
    case atomics:compare_exchange(Mark, 1, Before, Until) of
        ok when Before =< Now -> tell(Seen);
        ok -> ok;
        Other -> unmark(Mark, Until, Other, Now, Seen)
    end.

tell({{Key, Method, Target}, Why}) ->
    Limit = case Why of
        reductions -> ?MOST;
        deadline -> ?LONGEST
    end,
    Told = #{method => Method, target => Target, why => Why, limit => Limit},
    ok = erlmcp_log:report(warning, Told#{what => not_quick}, Key),
    erlmcp_event:emit(Key, not_quick, Told).
