-module(erlmcp_inline_call_watchdog).
-moduledoc """
The watchdog, a process of the node, ends inline calls that do not end in time
(`m:erlmcp_inline_call`). A second or more after the deadline of a call, it ends the connection's
process, in which the call runs.

The watchdog also records which definitions are quick. A definition is not quick for a minute after
a call that used too many reductions, or that was late and did not only wait for a scheduler. If the
watchdog has ended a call, its definition is not quick again until it is replaced. A definition that
is not quick any more is logged, and is an event.

Internal.
""".

%% A process is never ended for a call that is over: once the watchdog has seen a late call, the
%% process waits for the watchdog's answer before it goes on. Nor is it ended within half a minute
%% if it has had no processor time. On a busy node any call can be late, since it may be interrupted
%% and wait for a scheduler. Such a process is looked at again.
%%
%% A timer or a message for each call would cost more than most calls. So a process writes the
%% deadline of its call into an atomic of its own, its word, and later that the call is over. A
%% table has all words, and the watchdog looks through them. Each look finds the first deadline, and
%% the next look is at that time, or at most 100 milliseconds later. If a look finds no running
%% call, the next ones, two seconds apart, remove the words that are not used any more. When no word
%% is left, no look follows until a process that begins a call asks for one.
%%
%% The table belongs to the application's supervisor. So a watchdog that is started again finds all
%% words in it, including those of late calls.

-behaviour(gen_server).

-export([open/0, start_link/0, mark/0, is_quick/2, longest_ms/0, used/2]).
-export([watch/2, end_of_call/1, has_ended/1]).
-export([init/1, handle_continue/2, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([call/0, watch/0, mark/0, whose/0]).

%% The most reductions of a quick call: about a millisecond.
-define(MOST, 40_000).
%% The most milliseconds of a quick call.
-define(LONGEST, 1_000).
%% Milliseconds for which a definition is not quick after a slow call, and a value that means for
%% good.
-define(PAUSE, 60_000).
-define(FOR_GOOD, (1 bsl 60)).

%% Milliseconds between looks, at least.
-define(APART, 100).
%% Milliseconds after the deadline of a process's latest call, after which its word is forgotten.
-define(KEPT, 2_000).
%% Words that a look takes from the table at a time.
-define(AT_A_TIME, 500).
%% The latest processes that were ended here and are remembered.
-define(ENDED, 100).

%% Milliseconds in which a late process may still report that its call is over.
-define(GRACE, 1_000).
%% How often a process gets these milliseconds again if it neither waits nor has used many
%% reductions. Such a process had no processor time.
-define(GRACES, 30).
%% Milliseconds between two looks at a late process, which decide whether its definition is quick.
-define(AGAIN, 100).

%% The rows are `{Word, Pid, Watched}`, and `{due, Due}`.
-define(WATCHED, 3).

%% The values of a word:
%% - far below zero, as monotonic times are: the deadline of a running call;
%% - from half of `?OVER` on: the deadline of the latest call, which is over, plus `?OVER`;
%% - `?FORGOTTEN`: the word was removed from the table;
%% - any value between: a watchdog has found the call late.
-define(OVER, (1 bsl 50)).
-define(FORGOTTEN, 0).
-define(LATE, 1).

%% The time of the next look that was asked for. All processes read it and few write it, so it has a
%% cache line of its own.
-define(DUE, 8).
-define(NEVER, (-(1 bsl 58))).
%% Milliseconds after its time at which a look is taken for lost: the watchdog that was asked for it
%% ended before it read the message.
-define(COMES, 5_000).

-doc "The mark of a definition: the monotonic time in milliseconds from which it is quick again.".
-type mark() :: atomics:atomics_ref().
-doc "The call that is watched: the server's key, the method, and the definition's name or URI.".
-type whose() :: {reference(), Method :: binary(), Target :: binary()}.
-type watched() :: {mark(), whose()}.
-type word() :: atomics:atomics_ref().
-doc "The word of a process, and the call that was watched last with this word.".
-opaque watch() :: {watched(), word(), Due :: atomics:atomics_ref()}.
-opaque call() :: {word(), Deadline :: integer()}.

-record(state, {
    looked :: integer(),
    look = none :: none | {Timer :: reference(), At :: integer()},
    late = #{} :: #{word() => {pid(), watched(), Since :: reference()}},
    ended = [] :: [pid()]
}).

-doc "Makes the table of the watched processes. The table belongs to the calling process.".
-spec open() -> ok.
open() ->
    ?MODULE = ets:new(?MODULE, [named_table, public, {write_concurrency, true}]),
    Due = atomics:new(2 * ?DUE, []),
    ok = atomics:put(Due, ?DUE, ?NEVER),
    true = ets:insert(?MODULE, {due, Due}),
    ok.

-doc "Starts the process that ends inline calls which pass their deadlines.".
-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], [{hibernate_after, 1000}]).

-doc "Returns a mark for a definition with `quick => true`.".
-spec mark() -> mark().
mark() ->
    Mark = atomics:new(1, []),
    ok = atomics:put(Mark, 1, erlmcp_clock:now_ms()),
    Mark.

-doc """
Returns `true` if calls of the definition with the mark `Mark` are quick at `NowMs`, in monotonic
milliseconds.
""".
-spec is_quick(mark(), NowMs :: integer()) -> boolean().
is_quick(Mark, Now) ->
    atomics:get(Mark, 1) =< Now.

-doc "Returns 1,000, the most milliseconds that a quick call may last.".
-spec longest_ms() -> pos_integer().
longest_ms() ->
    ?LONGEST.

-doc """
Records that an inline call used `Reductions`. If these are more than 40,000, the call's definition
is not quick for the next minute.
""".
-spec used(Reductions :: non_neg_integer(), watched()) -> ok.
used(Reductions, {Mark, Whose}) when Reductions > ?MOST ->
    unmark(Mark, pause, {Whose, reductions});
used(_, _) ->
    ok.

-doc """
Watches the calling process, which runs an inline call that has to end by `DeadlineMs`, in monotonic
milliseconds. Returns the watched call, which `end_of_call/1` needs, or `none` if the application
has stopped.
""".
-spec watch(DeadlineMs :: integer(), watched()) -> call() | none.
watch(Deadline, Watched) ->
    try
        watched(Deadline, Watched, erlmcp_connection_cache:watched())
    catch
        %% The application has ended, and the table with it.
        error:badarg -> none
    end.

watched(Deadline, Watched, Known) ->
    {_, Word, Due} = in_call(Deadline, Watched, Known),
    %% Read after the deadline was written, so that a look which begins now sees the deadline.
    case atomics:get(Due, ?DUE) of
        Look when Look + ?COMES > Deadline ->
            {Word, Deadline};
        Look ->
            case due() of
                Due ->
                    ok = ask_for_look(Due, Look, Deadline),
                    {Word, Deadline};
                _ ->
                    %% The application was started again, and has another table.
                    watched(Deadline, Watched, none)
            end
    end.

in_call(Deadline, Watched, {Watched, Word, _} = Known) ->
    case atomics:exchange(Word, 1, Deadline) of
        ?FORGOTTEN -> in_call(Deadline, Watched, none);
        _ -> Known
    end;
in_call(Deadline, Watched, {_, Word, Due}) ->
    %% A late call is reported with its definition. There is no row if the word was forgotten.
    _ = ets:update_element(?MODULE, Word, {?WATCHED, Watched}),
    in_call(Deadline, Watched, keep_word(Watched, Word, Due));
in_call(Deadline, Watched, none) ->
    %% A new word: the row of a forgotten one may still be in the table, or not any more.
    Word = atomics:new(1, []),
    ok = atomics:put(Word, 1, Deadline),
    true = ets:insert(?MODULE, {Word, self(), Watched}),
    keep_word(Watched, Word, due()).

keep_word(Watched, Word, Due) ->
    Known = {Watched, Word, Due},
    ok = erlmcp_connection_cache:put_watched(Known),
    Known.

due() ->
    ets:lookup_element(?MODULE, due, 2).

ask_for_look(Due, Look, Deadline) ->
    case atomics:compare_exchange(Due, ?DUE, Look, Deadline) of
        ok -> gen_server:cast(?MODULE, {look, Deadline});
        _ -> ok
    end.

-doc """
Ends the watch over a call that has ended. If the watchdog has found the call late, waits until the
watchdog confirms that the call is over.
""".
-spec end_of_call(call()) -> ok.
end_of_call({Word, Deadline}) ->
    case atomics:compare_exchange(Word, 1, Deadline, ?OVER + Deadline) of
        ok -> ok;
        Late -> settle(Word, Late, ?OVER + Deadline)
    end.

settle(Word, Late, Over) ->
    ok = try
        gen_server:call(?MODULE, {over, Word}, infinity)
    catch
        %% There is no watchdog that could end the process.
        exit:_ -> ok
    end,
    case atomics:compare_exchange(Word, 1, Late, Over) of
        ok -> ok;
        %% There is a new watchdog, which has seen the call late too.
        Again -> settle(Word, Again, Over)
    end.

-doc """
Returns `true` if the watchdog has ended the process `Pid`, or has found it dead in a late call. The
watchdog remembers the last 100 such processes. Returns `false` if the watchdog does not run.
""".
-spec has_ended(Pid :: pid()) -> boolean().
has_ended(Pid) ->
    try
        gen_server:call(?MODULE, {has_ended, Pid}, infinity)
    catch
        exit:_ -> false
    end.

-doc false.
init([]) ->
    {ok, #state{looked = erlmcp_clock:now_ms()}, {continue, look}}.

-doc false.
handle_continue(look, State) ->
    {noreply, look(State)}.

-doc false.
handle_call({over, Word}, _, #state{late = Late} = State) ->
    {reply, ok, State#state{late = maps:remove(Word, Late)}};
handle_call({has_ended, Pid}, _, #state{ended = Ended} = State) ->
    {reply, lists:member(Pid, Ended), State}.

-doc false.
handle_cast({look, Deadline}, State) ->
    {noreply, look_at(Deadline, State)};
handle_cast(_, State) ->
    {noreply, State}.

-doc false.
handle_info({timeout, Timer, look}, #state{look = {Timer, _}} = State) ->
    {noreply, look(State#state{look = none})};
handle_info({not_quick, Word, Since, Why}, #state{late = Late} = State) ->
    %% The call still runs: if it were over, its process would have removed it from `late`.
    case Late of
        #{Word := {_, {Mark, Whose}, Since}} ->
            ok = unmark(Mark, pause, {Whose, Why});
        #{} ->
            ok
    end,
    {noreply, State};
handle_info({overdue, Word, Since, Why}, #state{late = Late, ended = Ended} = State) ->
    case Late of
        #{Word := {Pid, Watched, Since}} ->
            ok = ended(Pid, Watched, Why),
            true = ets:delete(?MODULE, Word),
            {noreply, State#state{late = maps:remove(Word, Late),
                                  ended = lists:sublist([Pid | Ended], ?ENDED)}};
        #{} ->
            {noreply, State}
    end;
handle_info(_, State) ->
    {noreply, State}.

%% Keeps an earlier look that is due.
look_at(At, #state{look = none, looked = Looked} = State) ->
    Apart = max(At, Looked + ?APART),
    State#state{look = {erlang:start_timer(Apart, self(), look, [{abs, true}]), Apart}};
look_at(At, #state{look = {_, Due}} = State) when Due =< At ->
    State;
look_at(At, #state{look = {Timer, _}} = State) ->
    _ = erlang:cancel_timer(Timer),
    look_at(At, State#state{look = none}).

%% A call that began before this look is found by it. A call that begins later asks for a look.
look(State) ->
    Due = due(),
    ok = atomics:put(Due, ?DUE, ?NEVER),
    Now = erlmcp_clock:now_ms(),
    true = ets:safe_fixtable(?MODULE, true),
    Words = ets:select(?MODULE, [{{'$1', '_', '_'}, [], ['$1']}], ?AT_A_TIME),
    {Next, Looked} = looked(Words, none, State#state{looked = Now}),
    true = ets:safe_fixtable(?MODULE, false),
    case Next of
        none ->
            Looked;
        later ->
            look_at(Now + ?KEPT, Looked);
        Deadline ->
            ok = atomics:put(Due, ?DUE, Deadline),
            look_at(Deadline, Looked)
    end.

looked('$end_of_table', Next, State) ->
    {Next, State};
looked({Words, More}, Next, State) ->
    {Then, Looked} = each(Words, Next, State),
    looked(ets:select(More), Then, Looked).

each([], Next, State) ->
    {Next, State};
each([Word | Words], Next, #state{looked = Now} = State) ->
    case word(Word, atomics:get(Word, 1), Now, State) of
        forgotten ->
            true = ets:delete(?MODULE, Word),
            each(Words, Next, State);
        {late, Late} ->
            each(Words, sooner(later, Next), Late);
        Then ->
            each(Words, sooner(Then, Next), State)
    end.

%% The first deadline, if there is one.
sooner(Then, none) -> Then;
sooner(Then, Next) -> min(Then, Next).

word(_, ?FORGOTTEN, _, _) ->
    forgotten;
word(_, Deadline, Now, _) when Deadline < 0, Deadline > Now ->
    Deadline;
word(Word, Deadline, Now, State) when Deadline < 0 ->
    late(Word, Deadline, ?LATE, Now, State);
word(Word, Late, Now, #state{late = Known} = State) when Late < ?OVER div 2 ->
    case Known of
        #{Word := _} -> later;
        #{} -> late(Word, Late, Late + 1, Now, State)
    end;
word(Word, Over, Now, State) when Over - ?OVER + ?KEPT =< Now ->
    case atomics:compare_exchange(Word, 1, Over, ?FORGOTTEN) of
        ok -> forgotten;
        Next -> word(Word, Next, Now, State)
    end;
word(_, _, _, _) ->
    later.

%% A call that an earlier watchdog has found late is late for this one too. Its process sees the new
%% value of the word.
late(Word, Seen, Late, Now, #state{late = Known} = State) ->
    case atomics:compare_exchange(Word, 1, Seen, Late) of
        ok ->
            [{_, Pid, Watched}] = ets:lookup(?MODULE, Word),
            {late, State#state{late = Known#{Word => {Pid, Watched, ask(Word, Pid)}}}};
        Next ->
            word(Word, Next, Now, State)
    end.

%% A process of its own, since reading the state of another process may have to wait for it.
ask(Word, Pid) ->
    Self = self(),
    Since = make_ref(),
    _ = spawn(fun() ->
        Say = fun({What, Why}) ->
            Self ! {What, Word, Since, Why},
            ok
        end,
        observe(Pid, Say)
    end),
    Since.

%% Reports the state of a late process, with `overdue` as the last report.
observe(Pid, Say) ->
    Begin = work_of(Pid),
    NotQuick = fun(turn) -> ok; (Why) -> Say({not_quick, Why}) end,
    ok = NotQuick(why(Begin, none)),
    receive after ?AGAIN -> ok end,
    Next = work_of(Pid),
    ok = NotQuick(why(Next, Begin)),
    Say({overdue, given_time(Pid, Begin, Next, NotQuick, ?GRACES)}).

%% A call in native code is not quick. Its process cannot be ended before that code returns. It may
%% have waited for the processor when it was first looked at.
given_time(_, _, _, _, 0) ->
    deadline;
given_time(Pid, Begin, Last, Say, Graces) ->
    receive after ?GRACE -> ok end,
    case {work_of(Pid), Begin} of
        {{Status, Now} = Used, {_, Before}} when Status =/= waiting, Now - Before < ?MOST ->
            ok = Say(native(Used, Last)),
            given_time(Pid, Begin, Used, Say, Graces - 1);
        {Used, _} ->
            why(Used, Begin)
    end.

%% The reason why the definition of a late call is not quick, from its process's state now and at
%% first; `turn` if the process only waits for the scheduler.
why(gone, _) -> deadline;
why({waiting, _}, _) -> deadline;
why({_, Now}, {_, Before}) when Now - Before >= ?MOST -> reductions;
why(_, _) -> turn.

%% Native code counts no reductions.
native({running, Same}, {running, Same}) -> deadline;
native(_, _) -> turn.

work_of(Pid) ->
    case process_info(Pid, [status, reductions]) of
        [{status, Status}, {reductions, Reductions}] -> {Status, Reductions};
        undefined -> gone
    end.

%% If the process is dead already, it passed its memory bound, or another process has ended it.
ended(Pid, {Mark, {Key, Method, Target} = Whose}, Why) ->
    {What, Refusal} = case is_process_alive(Pid) of
        true -> {quick_call_late, erlmcp_refusal:new(timeout, ~"the call passed its deadline")};
        false -> {quick_call_died, erlmcp_refusal:new(internal_error, ~"the call was ended")}
    end,
    ok = unmark(Mark, for_good, {Whose, Why}),
    Incident = erlmcp_incident:log_apart(#{what => What, method => Method, target => Target}, Key),
    ok = erlmcp_event_handler:emit(Key, incident, #{what => What, incident => Incident,
                                                    method => Method, target => Target}),
    true = exit(Pid, kill),
    case erlmcp_instance:find(Key) of
        {ok, Instance} -> erlmcp_meter:ended(request(Whose), {refused, Refusal}, 0, Instance);
        gone -> ok
    end.

%% The request of an ended call, for the meter. When it began is not known here, so its time is the
%% longest of a quick call.
request({_, Method, Target}) ->
    Began = erlang:monotonic_time(nanosecond) - ?LONGEST * 1_000_000,
    #{id => undefined, revision => undefined, method => Method, target => Target,
      row => erlmcp_meter:method_row(Method), arrival => {Began, 0, none}}.

%% Marks a definition as not quick, and reports that if it was quick until now.
unmark(Mark, HowLong, Seen) ->
    Now = erlmcp_clock:now_ms(),
    Until = case HowLong of
        pause -> Now + ?PAUSE;
        for_good -> ?FOR_GOOD
    end,
    unmark(Mark, Until, atomics:get(Mark, 1), Now, Seen).

unmark(_, Until, Before, _, _) when Before >= Until ->
    ok;
unmark(Mark, Until, Before, Now, Seen) ->
    case atomics:compare_exchange(Mark, 1, Before, Until) of
        ok when Before =< Now -> not_quick(Seen);
        ok -> ok;
        Other -> unmark(Mark, Until, Other, Now, Seen)
    end.

not_quick({{Key, Method, Target}, Why}) ->
    Limit = case Why of
        reductions -> ?MOST;
        deadline -> ?LONGEST
    end,
    Told = #{method => Method, target => Target, why => Why, limit => Limit},
    ok = erlmcp_log:report(warning, Told#{what => not_quick}, Key),
    erlmcp_event_handler:emit(Key, not_quick, Told).
