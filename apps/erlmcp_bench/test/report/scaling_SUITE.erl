-module(scaling_SUITE).
-moduledoc "Sweeps over servers that run: each point is a valid result that says how far it is.".

-export([suite/0, all/0, nodes_beside_each_other_are_one/1, fewer_connections_are_shortened/1,
         what_is_offered_is_a_part_of_what_is_carried/1, what_there_is_not_is_told/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [nodes_beside_each_other_are_one, fewer_connections_are_shortened,
     what_is_offered_is_a_part_of_what_is_carried, what_there_is_not_is_told].

nodes_beside_each_other_are_one(_) ->
    {ok, [One, Two]} = erlmcp_bench_run:workload(
        scaling, #{id => ~"scaling_nodes", points => [1, 2]}, #{duration_s => 1, connections => 2}),
    [ok = erlmcp_metrology_validator:validate(Result) || Result <- [One, Two]],
    #{~"workload_id" := ~"scaling_nodes_1", ~"nodes" := 1, ~"scope" := ~"per_node",
      ~"connections" := 2, ~"sweep" := ~"scaling_nodes", ~"shortened" := true} = One,
    #{~"workload_id" := ~"scaling_nodes_2", ~"nodes" := 2, ~"scope" := ~"per_cluster",
      ~"connections" := 4, ~"cpu_us_per_msg" := Us, ~"latency_p99_us" := _,
      ~"environment" := #{~"command_line" := Command}} = Two,
    true = Us > 0,
    %% It is the call that gives it again.
    ~"erlmcp_bench_run:workload(scaling, <<\"scaling_nodes\">>, #{})" = Command,
    [#{title := _}, #{title := _}] = erlmcp_bench_capacity:models([{~"a", One}, {~"b", Two}]),
    {match, _} = re:run(erlmcp_bench_scaling:model([One, Two]), "No model").

%% The sweep of connections has its own numbers: the option changes nothing there.
fewer_connections_are_shortened(_) ->
    [begin
         {ok, [#{~"connections" := Connections, ~"shortened" := Shortened}]} =
             erlmcp_bench_run:workload(
                 scaling, #{id => ~"sweep", varies => Varies, points => [Point], duration_s => 1},
                 Options)
     end || {Varies, Point, Options, Connections, Shortened} <- [
         {nodes, 1, #{connections => 2}, 2, true}, {nodes, 1, #{}, 32, false},
         {connections, 4, #{connections => 2}, 4, false}]].

what_is_offered_is_a_part_of_what_is_carried(_) ->
    Sweep = #{id => ~"overload", points => [20, 80]},
    %% A machine that is busy with other things may answer nothing in the time.
    Results = case erlmcp_bench_run:workload(scaling, Sweep, #{duration_s => 0.5}) of
        {ok, [_, _] = Both} -> Both;
        {error, #{results := Some, failures := Failures}} ->
            [{_, nothing_answered} = Failure || Failure <- Failures],
            Some
    end,
    [ok = erlmcp_metrology_validator:validate(Result) || Result <- Results],
    [begin
         true = Of =:= <<"overload_", (integer_to_binary(Percent))/binary, "_percent">>,
         true = Offered > 0 andalso Refused >= 0 andalso Failed >= 0
     end || #{~"workload_id" := Of, ~"offered_percent" := Percent,
              ~"offered_msg_per_s" := Offered, ~"refused_msg_per_s" := Refused,
              ~"failed_msg_per_s" := Failed} <- Results],
    case Results of
        [#{~"offered_msg_per_s" := Fifth}, #{~"offered_msg_per_s" := Fourfold}] ->
            true = abs(Fourfold - 4 * Fifth) =< 4;
        _ ->
            true = length(Results) < 2
    end.

what_there_is_not_is_told(_) ->
    {error, {unknown_workload, ~"scaling_nothing"}} =
        erlmcp_bench_run:workload(scaling, ~"scaling_nothing", #{}),
    {error, {unknown_workload, ~"core_ops_1k"}} =
        erlmcp_bench_run:workload(scaling, ~"core_ops_1k", #{}).
