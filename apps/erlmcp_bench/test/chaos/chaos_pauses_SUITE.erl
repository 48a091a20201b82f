-module(chaos_pauses_SUITE).
-moduledoc "Tests for the measure of a machine's pauses, by real ones: this node is stopped.".

-export([suite/0, all/0]).
-export([pauses_have_their_time/1, nobody_needs_to_ask/1, measuring_ends_with_the_caller/1]).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [pauses_have_their_time, nobody_needs_to_ask, measuring_ends_with_the_caller].

%% Two pauses of a tenth of a second. A question makes the process look, so no later pause begins
%% before `Began`, and each of them has its end.
pauses_have_their_time(_) ->
    Pauses = erlmcp_chaos_pauses:start_link(),
    Began = now_us(),
    Earlier = erlmcp_chaos_pauses:pauses(Pauses),
    ok = stop(),
    _ = erlmcp_chaos_pauses:longest_us(Pauses),
    Between = now_us(),
    ok = stop(),
    _ = erlmcp_chaos_pauses:longest_us(Pauses),
    Ended = now_us(),
    Long = [Pause || {From, To} = Pause <- erlmcp_chaos_pauses:pauses(Pauses) -- Earlier,
                     To - From >= 90_000],
    {[_ | _], [_ | _]} = lists:partition(fun({_, To}) -> To =< Between end, Long),
    [true = From >= Began andalso To =< Ended || {From, To} <- Long],
    true = lists:sort(Long) =:= Long,
    true = erlmcp_chaos_pauses:longest_us(Pauses) >= lists:max([To - From || {From, To} <- Long]),
    true = erlmcp_chaos_pauses:stood_still(Between, 90_000, Pauses),
    %% No pause is as long, and none is later.
    false = erlmcp_chaos_pauses:stood_still(Began, 60_000_000, Pauses),
    false = erlmcp_chaos_pauses:stood_still(now_us() + 60_000_000, 1, Pauses).

%% Otherwise the time between two questions would be a pause. The machine may have a real one, but
%% not each time.
nobody_needs_to_ask(_) ->
    Pauses = erlmcp_chaos_pauses:start_link(),
    true = lists:any(fun(_) ->
        _ = erlmcp_chaos_pauses:longest_us(Pauses),
        Asked = now_us(),
        receive after 100 -> ok end,
        not erlmcp_chaos_pauses:stood_still(Asked, 50_000, Pauses)
    end, lists:seq(1, 10)).

%% The shell is no process of this node, and goes on.
stop() ->
    "" = os:cmd("kill -STOP " ++ os:getpid() ++ "; sleep 0.1; kill -CONT " ++ os:getpid()),
    ok.

measuring_ends_with_the_caller(_) ->
    Test = self(),
    _ = spawn(fun() -> Test ! {pauses, erlmcp_chaos_pauses:start_link()} end),
    Monitor = receive {pauses, Pauses} -> monitor(process, Pauses) end,
    receive {'DOWN', Monitor, process, _, _} -> ok end.

now_us() -> erlang:monotonic_time(microsecond).
