-module(cluster_catch_up_SUITE).
-moduledoc """
Reads of one node share their catch-ups with the leader, and none gets the answer of one that began
before it asked. The catch-ups are made up here; `cluster_tasks_SUITE` counts those of real nodes.
""".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0]).
-export([no_answer_is_older_than_its_question/1, those_who_come_meanwhile_share_the_next/1,
         a_flood_is_refused_at_once/1, a_catch_up_that_ends_badly_ends_alone/1,
         nobody_waits_longer_than_it_wants/1, without_the_process_there_is_an_error/1]).

-define(MOST, 10_000).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [no_answer_is_older_than_its_question, those_who_come_meanwhile_share_the_next,
     a_flood_is_refused_at_once, a_catch_up_that_ends_badly_ends_alone,
     nobody_waits_longer_than_it_wants, without_the_process_there_is_an_error].

%% One word counts questions and beginnings of catch-ups, so that their order is known.
no_answer_is_older_than_its_question(_) ->
    Pauses = list(list(range(0, 2))),
    holds(?FORALL({Callers, Durations}, {Pauses, non_empty(list(range(0, 3)))}, begin
        Clock = atomics:new(2, []),
        Now = fun() -> atomics:add_get(Clock, 1, 1) end,
        Under = fun() -> atomics:add_get(Clock, 2, 1) end,
        Process = started(fun(_) ->
            1 = Under(),
            Began = Now(),
            pause(lists:nth(Began rem length(Durations) + 1, Durations)),
            ok = atomics:sub(Clock, 2, 1),
            {error, {began, Began}}
        end),
        Asks = fun(Pause) ->
            pause(Pause),
            Asked = Now(),
            {error, {began, Began}} = erlmcp_cluster_catch_up:catch_up(5_000),
            Began > Asked
        end,
        Answers = in_parallel([fun() -> [Asks(Pause) || Pause <- Each] end || Each <- Callers]),
        ok = stopped(Process),
        not lists:member(false, lists:append(Answers))
    end)).

pause(0) -> ok;
pause(Milliseconds) -> receive after Milliseconds -> ok end.

those_who_come_meanwhile_share_the_next(_) ->
    Process = started(told()),
    First = asking(1),
    Running = began(),
    Others = asking(1_000),
    ok = await_waiting(1_000),
    ok = ended(Running, one),
    one = answers(First),
    Next = began(),
    Late = asking(3),
    ok = await_waiting(3),
    ok = ended(Next, two),
    two = answers(Others),
    ok = ended(began(), three),
    three = answers(Late),
    ok = none_began(),
    stopped(Process).

a_flood_is_refused_at_once(_) ->
    Process = started(told()),
    First = asking(1),
    Running = began(),
    Others = asking(?MOST),
    ok = await_waiting(?MOST),
    {error, full} = erlmcp_cluster_catch_up:catch_up(60_000),
    ok = ended(Running, one),
    one = answers(First),
    %% There is room again.
    Next = began(),
    Late = asking(1),
    ok = ended(Next, two),
    two = answers(Others),
    ok = ended(began(), three),
    three = answers(Late),
    stopped(Process).

a_catch_up_that_ends_badly_ends_alone(_) ->
    Process = started(told()),
    First = asking(1),
    Running = began(),
    Others = asking(2),
    ok = await_waiting(2),
    true = exit(Running, kill),
    killed = answers(First),
    ok = ended(began(), two),
    two = answers(Others),
    stopped(Process).

nobody_waits_longer_than_it_wants(_) ->
    Process = started(told()),
    First = asking(1),
    Running = began(),
    {error, timeout} = erlmcp_cluster_catch_up:catch_up(1),
    ok = ended(Running, one),
    one = answers(First),
    ok = ended(began(), two),
    stopped(Process).

without_the_process_there_is_an_error(_) ->
    {error, noproc} = erlmcp_cluster_catch_up:catch_up(1_000).

%% The process of this node, which is in no cluster.
started(CatchUp) ->
    {ok, Process} = erlmcp_cluster_catch_up:start_link(CatchUp),
    Process.

stopped(Process) ->
    gen_server:stop(Process).

%% A catch-up that says that it begins, and ends when it is told how.
told() ->
    Test = self(),
    fun(_) ->
        Test ! {began, self()},
        receive {ended, How} -> {error, How} end
    end.

began() ->
    receive {began, CatchUp} -> CatchUp end.

none_began() ->
    receive {began, _} -> error(began) after 0 -> ok end.

ended(CatchUp, How) ->
    CatchUp ! {ended, How},
    ok.

asking(Count) ->
    [spawn_monitor(fun() -> exit(erlmcp_cluster_catch_up:catch_up(60_000)) end)
     || _ <- lists:seq(1, Count)].

%% The one answer of all who have asked.
answers(Asking) ->
    [Answer] = lists:usort([receive {'DOWN', Monitor, process, _, {error, How}} -> How end
                            || {_, Monitor} <- Asking]),
    Answer.

%% Nothing tells that a question has arrived.
await_waiting(Count) ->
    {_, _} = erlmcp_test_cluster:await(fun() ->
        State = sys:get_state(erlmcp_cluster_catch_up),
        lists:member(Count, [length(Next) || Next <- tuple_to_list(State), is_list(Next)])
    end, 30_000),
    ok.

in_parallel(Funs) ->
    Monitors = [element(2, spawn_monitor(fun() -> exit({done, Fun()}) end)) || Fun <- Funs],
    [receive {'DOWN', Monitor, process, _, {done, Result}} -> Result end || Monitor <- Monitors].

holds(Property) ->
    true = proper:quickcheck(Property, [{numtests, 100}, {to_file, user}]).
