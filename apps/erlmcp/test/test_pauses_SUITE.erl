-module(test_pauses_SUITE).
-moduledoc """
A case that is judged again after a pause of the machine (`erlmcp_test_pauses`) must still be able
to fail. The pauses here are of this node, which is stopped by a signal, or of one of its
schedulers.
""".

-export([suite/0, all/0]).
-export([a_crash_counts_where_nothing_stood_still/1, a_crash_in_a_pause_is_judged_again/1,
         a_crash_in_a_pause_of_one_scheduler_is_judged_again/1, five_crashes_count/1,
         pauses_have_their_length/1]).

-define(PAUSE_MS, 100).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [a_crash_counts_where_nothing_stood_still, a_crash_in_a_pause_is_judged_again,
     a_crash_in_a_pause_of_one_scheduler_is_judged_again, five_crashes_count,
     pauses_have_their_length].

a_crash_counts_where_nothing_stood_still(_) ->
    {1, {error, wrong}} = judged(60_000, fun(_) -> error(wrong) end).

a_crash_in_a_pause_is_judged_again(_) ->
    {2, right} = judged(?PAUSE_MS div 2, fun
        (1) -> stand_still(), error(wrong);
        (2) -> right
    end).

%% A machine may take one of its processors away, and go on with the others.
a_crash_in_a_pause_of_one_scheduler_is_judged_again(_) ->
    [{2, right} = judged(?PAUSE_MS div 2, fun
         (1) -> stand_still(Scheduler), error(wrong);
         (2) -> right
     end) || Scheduler <- lists:seq(1, erlang:system_info(schedulers_online))].

five_crashes_count(_) ->
    {5, {error, wrong}} = judged(?PAUSE_MS div 2, fun(_) -> stand_still(), error(wrong) end).

%% Of how many tries, and with what end.
judged(Ms, Judge) ->
    Tries = counters:new(1, []),
    End = try
        erlmcp_test_pauses:undisturbed(Ms, fun() ->
            ok = counters:add(Tries, 1, 1),
            Judge(counters:get(Tries, 1))
        end)
    catch
        error:Reason -> {error, Reason}
    end,
    {counters:get(Tries, 1), End}.

pauses_have_their_length(_) ->
    Began = erlang:monotonic_time(microsecond),
    Pauses = erlmcp_test_pauses:start(),
    stand_still(),
    %% If nothing of the node ran between the two, they would be one.
    ok = until_seen(1, Pauses),
    stand_still(),
    ok = until_seen(2, Pauses),
    Total = erlmcp_test_pauses:total_ms(Pauses),
    Took = (erlang:monotonic_time(microsecond) - Began) div 1_000,
    true = Total >= ?PAUSE_MS andalso Total =< Took + 2 orelse error({Total, Took}),
    true = erlmcp_test_pauses:longest_ms(Pauses) =< Total,
    ok = erlmcp_test_pauses:stop(Pauses).

until_seen(Count, Pauses) ->
    Seen = erlmcp_test_pauses:joined(erlmcp_test_pauses:pauses(Pauses)),
    case length([long || {From, To} <- Seen, To - From > ?PAUSE_MS * 500]) of
        Long when Long >= Count -> ok;
        _ -> receive after 5 -> until_seen(Count, Pauses) end
    end.

%% The shell lets the node go on, which hears of nothing meanwhile.
stand_still() ->
    Node = os:getpid(),
    "" = os:cmd(["kill -STOP ", Node, "; sleep 0.", integer_to_list(?PAUSE_MS), "; kill -CONT ",
                 Node]),
    ok.

stand_still(Scheduler) ->
    {Pid, Monitor} = spawn_opt(fun() ->
        _ = erts_debug:set_internal_state(available_internal_state, true),
        true = erts_debug:set_internal_state(sleep, ?PAUSE_MS)
    end, [monitor, {scheduler, Scheduler}]),
    receive {'DOWN', Monitor, process, Pid, normal} -> ok end.
