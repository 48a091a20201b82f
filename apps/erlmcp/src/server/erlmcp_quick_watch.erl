-module(erlmcp_quick_watch).
-moduledoc """
The process of the node that ends quick calls which are not (`m:erlmcp_quick`): such a call has no
process of its own, and who is in it looks at no clock. It ends the process of one whose time is
over a moment later, unless that says first that the call is over after all. Once it has seen a call
late the process goes on only with this one's word, and so is never ended for a call that it is done
with. Nor is one that has had no processor meanwhile: on a connection with much to do a call may be
interrupted, and have to wait for its turn to go on.

That a call is late says nothing of its definition: on a node with too much to do all are. It is not
quick where the process waits, works on, or is in native code all the time; one that only had no
turn is looked at again.

A timer of each call would cost more than most of them. So a process says in a word until when its
call may last, and again that it is over; only where no look at that word is due it starts a timer
for one. A look that finds a call which may last longer comes again at its deadline; one that finds
none is the last.
""".

-behaviour(gen_server).

-export([start_link/0, watch/2, over/1, has_ended/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([call/0]).

%% Milliseconds in which a process whose time is over, and that has the processor, may still say
%% that it is done.
-define(GRACE, 1_000).
%% How often it gets them again that neither waits nor has done this many reductions since: it was
%% the processor that was late.
-define(GRACES, 30).
%% Milliseconds after which it is looked at again whether its definition is to be quick.
-define(AGAIN, 100).
-define(WORK, 40_000).
%% Milliseconds after which a look does not come any more: this process was ended meanwhile.
-define(COMES, 10_000).
%% Processes that it is known of that they were ended here.
-define(ENDED, 100).

%% The words of a process: until when its call may last, and when that is looked at. Monotonic times
%% are far below zero.
-define(DEADLINE, 1).
-define(LOOK, 2).
%% There is no call; it was seen late; and there is no look.
-define(IDLE, 0).
-define(LATE, 1).
-define(NEVER, (-(1 bsl 60))).

-type watched() :: {erlmcp_quick:mark(), erlmcp_quick:whose()}.
-opaque call() :: {atomics:atomics_ref(), Deadline :: integer()}.

-record(state, {
    late = #{} :: #{atomics:atomics_ref() => {pid(), watched(), Since :: reference()}},
    ended = [] :: [pid()]
}).

-doc "Starts it.".
-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], [{hibernate_after, 1000}]).

-doc "The calling process is in a quick call from now on, which may last until then.".
-spec watch(DeadlineMs :: integer(), watched()) -> call().
watch(Deadline, Watched) ->
    Words = words(Watched, get(?MODULE)),
    ok = atomics:put(Words, ?DEADLINE, Deadline),
    case atomics:get(Words, ?LOOK) of
        Look when Look + ?COMES > Deadline -> ok;
        Look -> look_first(Look, Deadline, Words, Watched)
    end,
    {Words, Deadline}.

%% Those of the process's latest call, if that was of the same definition: what is late is named.
words(Watched, {Watched, Words, _}) ->
    Words;
words(_, Before) ->
    _ = [erlang:cancel_timer(Timer) || {_, _, Timer} <- [Before], Timer =/= none],
    Words = atomics:new(2, []),
    ok = atomics:put(Words, ?LOOK, ?NEVER),
    Words.

%% After the deadline was written: a look that found no call just now has seen it, or comes no more.
look_first(Look, Deadline, Words, Watched) ->
    Timer = case atomics:compare_exchange(Words, ?LOOK, Look, Deadline) of
        ok -> look_at(Deadline, {self(), Words, Watched});
        _ -> none
    end,
    put(?MODULE, {Watched, Words, Timer}).

look_at(Deadline, What) ->
    erlang:start_timer(Deadline, ?MODULE, What, [{abs, true}]).

-doc "It is not any more.".
-spec over(call()) -> ok.
over({Words, Deadline}) ->
    case atomics:compare_exchange(Words, ?DEADLINE, Deadline, ?IDLE) of
        ok ->
            ok;
        ?LATE ->
            ok = settle(Words),
            ok = atomics:put(Words, ?LOOK, ?NEVER),
            atomics:put(Words, ?DEADLINE, ?IDLE)
    end.

settle(Words) ->
    try
        gen_server:call(?MODULE, {over, Words}, infinity)
    catch
        %% Nobody is there who could end it.
        exit:_ -> ok
    end.

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
    {ok, #state{}}.

-doc false.
handle_call({over, Words}, _, #state{late = Late} = State) ->
    {reply, ok, State#state{late = maps:remove(Words, Late)}};
handle_call({has_ended, Pid}, _, #state{ended = Ended} = State) ->
    {reply, lists:member(Pid, Ended), State}.

-doc false.
handle_cast(_, State) ->
    {noreply, State}.

-doc false.
handle_info({timeout, _, {Pid, Words, Watched} = What}, #state{late = Late} = State) ->
    case look(atomics:get(Words, ?DEADLINE), What) of
        late ->
            Since = say_what_it_does(Words, Pid),
            {noreply, State#state{late = Late#{Words => {Pid, Watched, Since}}}};
        _ ->
            {noreply, State}
    end;
handle_info({not_quick, Words, Since, Why}, #state{late = Late} = State) ->
    %% One that is over waits for the answer to that: it was known here before it waited.
    case Late of
        #{Words := {_, {Mark, Whose}, Since}} ->
            ok = erlmcp_quick:unmark(Mark, pause, {Whose, Why});
        #{} ->
            ok
    end,
    {noreply, State};
handle_info({overdue, Words, Since, Why}, #state{late = Late, ended = Ended} = State) ->
    case Late of
        #{Words := {Pid, Watched, Since}} ->
            ok = ended(Pid, Watched, Why),
            {noreply, State#state{late = maps:remove(Words, Late),
                                  ended = lists:sublist([Pid | Ended], ?ENDED)}};
        #{} ->
            {noreply, State}
    end;
handle_info(_, State) ->
    {noreply, State}.

look(?IDLE, {_, Words, _} = What) ->
    ok = atomics:put(Words, ?LOOK, ?NEVER),
    %% A call that began before this had a look, and one that began later sees that it has none.
    case atomics:get(Words, ?DEADLINE) of
        ?IDLE ->
            none;
        Deadline ->
            atomics:compare_exchange(Words, ?LOOK, ?NEVER, Deadline) =:= ok
                andalso look_at(Deadline, What)
    end;
look(?LATE, _) ->
    none;
look(Deadline, {_, Words, _} = What) ->
    case erlang:monotonic_time(millisecond) < Deadline of
        true ->
            ok = atomics:put(Words, ?LOOK, Deadline),
            look_at(Deadline, What);
        false ->
            case atomics:compare_exchange(Words, ?DEADLINE, Deadline, ?LATE) of
                ok -> late;
                Next -> look(Next, What)
            end
    end.

%% Who asks a process may wait for it: not here.
say_what_it_does(Words, Pid) ->
    Self = self(),
    Since = make_ref(),
    _ = spawn(fun() ->
        Begin = used(Pid),
        Say = fun(turn) -> ok; (Why) -> Self ! {not_quick, Words, Since, Why}, ok end,
        ok = Say(why(Begin, none)),
        receive after ?AGAIN -> ok end,
        ok = Say(why(used(Pid), Begin)),
        Self ! {overdue, Words, Since, given_time(Pid, Begin, Say, ?GRACES)}
    end),
    Since.

%% One in native code is not quick, and is not ended yet: that could not be before it comes back.
given_time(_, _, _, 0) ->
    deadline;
given_time(Pid, Begin, Say, Graces) ->
    receive after ?GRACE -> ok end,
    case {used(Pid), Begin} of
        {{Status, Now} = Used, {_, Before}} when Status =/= waiting, Now - Before < ?WORK ->
            ok = Say(native(Used, Begin)),
            given_time(Pid, Begin, Say, Graces - 1);
        {Used, _} ->
            why(Used, Begin)
    end.

%% Why a process that is late is not quick, by what it does now and did at first; or it waits for
%% its turn.
why(gone, _) -> deadline;
why({waiting, _}, _) -> deadline;
why({_, Now}, {_, Before}) when Now - Before >= ?WORK -> reductions;
why(_, _) -> turn.

native({running, _}, {running, _}) -> deadline;
native(_, _) -> turn.

used(Pid) ->
    case process_info(Pid, [status, reductions]) of
        [{status, Status}, {reductions, Reductions}] -> {Status, Reductions};
        undefined -> gone
    end.

%% One that is there no more passed its memory bound, or had another end in the middle of a call.
ended(Pid, {Mark, {Key, Method, Target} = Whose}, Why) ->
    {What, Refusal} = case is_process_alive(Pid) of
        true -> {quick_call_late, erlmcp_refusal:new(timeout, ~"the call passed its deadline")};
        false -> {quick_call_died, erlmcp_refusal:new(internal_error, ~"the call was ended")}
    end,
    ok = erlmcp_quick:unmark(Mark, for_good, {Whose, Why}),
    Incident = erlmcp_incident:log(#{what => What, method => Method, target => Target}, Key),
    ok = erlmcp_event:emit(Key, incident, #{what => What, incident => Incident, method => Method,
                                            target => Target}),
    true = exit(Pid, kill),
    count(Refusal, erlmcp_shared:find(Key)).

count(Refusal, {ok, #{of_calls := Instance}}) ->
    {error, _} = erlmcp_answers:answered({error, Refusal}, Instance),
    ok;
count(_, gone) ->
    ok.
