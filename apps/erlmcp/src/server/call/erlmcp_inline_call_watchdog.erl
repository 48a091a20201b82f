-module(erlmcp_inline_call_watchdog).
-moduledoc """
The process of the node that ends quick calls which are not (`m:erlmcp_inline_call`): such a call
has no process of its own, and who is in it looks at no clock. It ends the process of one whose time
is over a moment later, unless that says first that the call is over after all. Once it has seen a
call late the process goes on only with this one's word, and so is never ended for a call that it is
done with. Nor is one that has had no processor meanwhile (`m:erlmcp_inline_call_lateness`).

A timer of each call would cost more than most of them, and a message to here too. So a process says
in a word of its own until when its call may last, and again that it is over; a table has the words
of all. A look goes through them. It comes at the first deadline that the one before it found, and
at most `?APART` milliseconds later; one that finds no call asks for none, and who begins one then
says so. Words of which nothing is heard any more leave the table, and the last of them is the
last look: a process that is idle costs nothing here, nor does one that has ended.

The table is the application's supervisor's: when the process begins anew it finds the words again,
and those of late calls among them.
""".

-behaviour(gen_server).

-export([open/0, start_link/0, watch/2, over/1, forget/0, has_ended/1]).
-export([init/1, handle_continue/2, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([call/0]).

%% Milliseconds between looks, at least.
-define(APART, 100).
%% Milliseconds after the deadline of a process's latest call, after which its word is forgotten.
-define(KEPT, 2_000).
%% Words that a look takes from the table at a time.
-define(AT_A_TIME, 500).
%% Processes that it is known of that they were ended here.
-define(ENDED, 100).

%% The rows are `{Word, Pid, Watched}`, and `{due, Due}`.
-define(WATCHED, 3).

%% What stands in a word: the deadline of a call, that is below zero, since monotonic times are, and
%% far; from half of `?OVER` on that of the latest, which is over, and `?OVER` more; that it is
%% forgotten; and anything between, that the call was seen late, by one process here or by another
%% after it.
-define(OVER, (1 bsl 50)).
-define(FORGOTTEN, 0).
-define(LATE, 1).

%% When the next look was asked for, which all read and few write: it is alone in its cache line.
-define(DUE, 8).
-define(NEVER, (-(1 bsl 58))).
%% Milliseconds after which it does not come any more: who asked was ended before it was heard.
-define(COMES, 5_000).

-type watched() :: {erlmcp_inline_call:mark(), erlmcp_inline_call:whose()}.
-type word() :: atomics:atomics_ref().
-opaque call() :: {word(), Deadline :: integer()}.

-record(state, {
    looked :: integer(),
    look = none :: none | {Timer :: reference(), At :: integer()},
    late = #{} :: #{word() => {pid(), watched(), Since :: reference()}},
    ended = [] :: [pid()]
}).

-doc "Makes the table; it belongs to the calling process.".
-spec open() -> ok.
open() ->
    ?MODULE = ets:new(?MODULE, [named_table, public, {write_concurrency, true}]),
    Due = atomics:new(2 * ?DUE, []),
    ok = atomics:put(Due, ?DUE, ?NEVER),
    true = ets:insert(?MODULE, {due, Due}),
    ok.

-doc "Starts it.".
-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], [{hibernate_after, 1000}]).

-doc """
The calling process is in a quick call from now on, which may last until then; or it is in `none`,
since nobody is there who would watch it.
""".
-spec watch(DeadlineMs :: integer(), watched()) -> call() | none.
watch(Deadline, Watched) ->
    try
        watched(Deadline, Watched, get(?MODULE))
    catch
        %% The application has ended, and the table with it.
        error:badarg -> none
    end.

watched(Deadline, Watched, Known) ->
    {_, Word, Due} = in_call(Deadline, Watched, Known),
    %% After the deadline was written: a look that was due until just now sees it.
    case atomics:get(Due, ?DUE) of
        Look when Look + ?COMES > Deadline ->
            {Word, Deadline};
        Look ->
            case due() of
                Due ->
                    ok = ask_for_look(Due, Look, Deadline),
                    {Word, Deadline};
                _ ->
                    %% The application was started anew, and has another table.
                    watched(Deadline, Watched, undefined)
            end
    end.

in_call(Deadline, Watched, {Watched, Word, _} = Known) ->
    case atomics:exchange(Word, 1, Deadline) of
        ?FORGOTTEN -> in_call(Deadline, Watched, undefined);
        _ -> Known
    end;
in_call(Deadline, Watched, {_, Word, Due}) ->
    %% What is late is named. Where it was forgotten there is no row.
    _ = ets:update_element(?MODULE, Word, {?WATCHED, Watched}),
    in_call(Deadline, Watched, known(Watched, Word, Due));
in_call(Deadline, Watched, undefined) ->
    %% Another one: the row of one that was forgotten may still be there, or not any more.
    Word = atomics:new(1, []),
    ok = atomics:put(Word, 1, Deadline),
    true = ets:insert(?MODULE, {Word, self(), Watched}),
    known(Watched, Word, due()).

known(Watched, Word, Due) ->
    Known = {Watched, Word, Due},
    _ = put(?MODULE, Known),
    Known.

due() ->
    ets:lookup_element(?MODULE, due, 2).

ask_for_look(Due, Look, Deadline) ->
    case atomics:compare_exchange(Due, ?DUE, Look, Deadline) of
        ok -> gen_server:cast(?MODULE, {look, Deadline});
        _ -> ok
    end.

-doc "It is not any more.".
-spec over(call()) -> ok.
over({Word, Deadline}) ->
    case atomics:compare_exchange(Word, 1, Deadline, ?OVER + Deadline) of
        ok -> ok;
        Late -> settle(Word, Late, ?OVER + Deadline)
    end.

settle(Word, Late, Over) ->
    ok = try
        gen_server:call(?MODULE, {over, Word}, infinity)
    catch
        %% Nobody is there who could end it.
        exit:_ -> ok
    end,
    case atomics:compare_exchange(Word, 1, Late, Over) of
        ok -> ok;
        %% Somebody is again, and does not know.
        Again -> settle(Word, Again, Over)
    end.

-doc """
The calling process is in no quick call, nor will it be for a while: it has another word then, and
the one that it had leaves the table as others do.
""".
-spec forget() -> ok.
forget() ->
    _ = erase(?MODULE),
    ok.

-doc "Whether a process was ended here, of late.".
-spec has_ended(pid()) -> boolean().
has_ended(Pid) ->
    try
        gen_server:call(?MODULE, {has_ended, Pid}, infinity)
    catch
        exit:_ -> false
    end.

-doc false.
init([]) ->
    {ok, #state{looked = erlang:monotonic_time(millisecond)}, {continue, look}}.

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
    %% One that is over waits for the answer to that: it was known here before it waited.
    case Late of
        #{Word := {_, {Mark, Whose}, Since}} ->
            ok = erlmcp_inline_call:unmark(Mark, pause, {Whose, Why});
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

%% Not before one that is due.
look_at(At, #state{look = none, looked = Looked} = State) ->
    Apart = max(At, Looked + ?APART),
    State#state{look = {erlang:start_timer(Apart, self(), look, [{abs, true}]), Apart}};
look_at(At, #state{look = {_, Due}} = State) when Due =< At ->
    State;
look_at(At, #state{look = {Timer, _}} = State) ->
    _ = erlang:cancel_timer(Timer),
    look_at(At, State#state{look = none}).

%% A call that began before this is found, whatever look it saw due; one that begins later says so.
look(State) ->
    Due = due(),
    ok = atomics:put(Due, ?DUE, ?NEVER),
    Now = erlang:monotonic_time(millisecond),
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

%% One that was late for another process here is so again: who is done with it meanwhile sees that.
late(Word, Seen, Late, Now, #state{late = Known} = State) ->
    case atomics:compare_exchange(Word, 1, Seen, Late) of
        ok ->
            [{_, Pid, Watched}] = ets:lookup(?MODULE, Word),
            {late, State#state{late = Known#{Word => {Pid, Watched, ask(Word, Pid)}}}};
        Next ->
            word(Word, Next, Now, State)
    end.

ask(Word, Pid) ->
    Self = self(),
    Since = make_ref(),
    ok = erlmcp_inline_call_lateness:ask(Pid, fun({What, Why}) ->
        Self ! {What, Word, Since, Why},
        ok
    end),
    Since.

%% One that is there no more passed its memory bound, or had another end in the middle of a call.
ended(Pid, {Mark, {Key, Method, Target} = Whose}, Why) ->
    {What, Refusal} = case is_process_alive(Pid) of
        true -> {quick_call_late, erlmcp_refusal:new(timeout, ~"the call passed its deadline")};
        false -> {quick_call_died, erlmcp_refusal:new(internal_error, ~"the call was ended")}
    end,
    ok = erlmcp_inline_call:unmark(Mark, for_good, {Whose, Why}),
    Incident = erlmcp_incident:log_apart(#{what => What, method => Method, target => Target}, Key),
    ok = erlmcp_event:emit(Key, incident, #{what => What, incident => Incident, method => Method,
                                            target => Target}),
    true = exit(Pid, kill),
    count(Refusal, erlmcp_shared:find(Key)).

count(Refusal, {ok, #{of_calls := Instance}}) ->
    {error, _} = erlmcp_error_budget_answers:answered({error, Refusal}, Instance),
    ok;
count(_, gone) ->
    ok.
