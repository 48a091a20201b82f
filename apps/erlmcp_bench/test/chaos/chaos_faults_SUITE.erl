-module(chaos_faults_SUITE).
-moduledoc """
Tests for the faults, in their short forms: each has the right code, every request is accounted for,
and the server recovers. The time to recover is not judged here, since other tests share the
machine; `erlmcp chaos` judges it.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1]).
-export([process_crash/1, message_flood/1, invalid_payload/1, connection_leak/1, slow_consumer/1,
         supervisor_cascade/1, large_payload/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() -> [{group, faults}].

%% A server each, in a process of its own: they can have their faults at the same time.
groups() ->
    [{faults, [parallel], [process_crash, message_flood, invalid_payload, connection_leak,
                           slow_consumer, supervisor_cascade, large_payload]}].

init_per_suite(Config) -> Config.

end_per_suite(_) -> ok.

process_crash(_) ->
    #{accounting := #{fault := Fault}} = passed(~"chaos_process_crash"),
    %% Each caller of a killed call is told, each of a killed connection sees it.
    #{refused := #{1089 := 50}, failed := #{closed := 50}, wrong := Wrong} = Fault,
    0 = map_size(Wrong).

message_flood(_) ->
    #{accounting := #{fault := Fault}} = passed(~"chaos_message_flood"),
    #{answered := Answered, refused := #{1056 := Refused} = Codes} = Fault,
    [1056] = maps:keys(Codes),
    10_000 = Answered + Refused,
    %% Calls within the rate are served.
    true = Answered >= 500.

invalid_payload(_) ->
    #{accounting := #{fault := Fault}} = passed(~"chaos_invalid_payload"),
    #{refused := #{1066 := 1_000}, answered := Good, failed := Failed} = Fault,
    0 = map_size(Failed),
    %% One after each twenty on TCP, one after each ten on HTTP, and the two before.
    62 = Good.

connection_leak(_) ->
    #{accounting := #{fault := Fault}} = passed(~"chaos_connection_leak"),
    #{answered := 56, refused := #{1060 := 34}} = Fault.

slow_consumer(_) ->
    #{accounting := #{fault := Fault}, events := #{slow_consumer := 3}} =
        passed(~"chaos_slow_consumer"),
    3 = lists:sum(maps:values(maps:get(failed, Fault))).

supervisor_cascade(_) ->
    #{figures := #{rounds := 2}} = passed(~"chaos_supervisor_cascade").

large_payload(_) ->
    #{accounting := #{fault := Fault}} = passed(~"chaos_large_payload"),
    #{refused := #{1068 := 6}} = Fault.

passed(Id) ->
    {ok, #{violations := Violations} = Outcome} =
        erlmcp_bench_chaos:run_scenario(Id, #{short => true, preload => false}),
    [] = [Violation || Violation <- Violations, not erlmcp_chaos_verdict:is_of_time(Violation)],
    Outcome.
