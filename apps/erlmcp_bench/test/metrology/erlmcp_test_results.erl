-module(erlmcp_test_results).
-moduledoc "Results for suites: a valid one, and those that PropEr generates.".

-compile(nowarn_missing_spec_documented).

-include_lib("proper/include/proper.hrl").

-export([valid/0, valid/1, environment/0, folder/1, any_valid/0, places/1, changed/3]).

valid() ->
    #{~"workload_id" => ~"tcp_burst_100_1kib", ~"benchmark" => ~"network_real",
      ~"transport" => ~"tcp", ~"duration_s" => 60.0, ~"scope" => ~"per_node",
      ~"precision" => ~"microsecond", ~"sample_count" => 120_000,
      ~"timestamp" => ~"2026-11-21T22:13:00Z", ~"environment" => environment(),
      ~"throughput_msg_per_s" => 2000.0, ~"latency_p50_us" => 900, ~"latency_p95_us" => 2000,
      ~"latency_p99_us" => 3000, ~"latency_p999_us" => 9000, ~"latency_max_us" => 9000,
      ~"memory_rss_mib_per_node" => 80.5, ~"recovery_ms" => 40}.

valid(Others) -> maps:merge(valid(), Others).

environment() ->
    #{~"cores" => 2, ~"memory_total_mib" => 8000, ~"kernel" => ~"linux 6.1", ~"otp" => ~"29",
      ~"jit" => true, ~"erlmcp_version" => ~"0.1.0", ~"erlmcp_commit" => ~"0123abc",
      ~"command_line" => ~"erlmcp bench tcp_burst_100_1kib", ~"architecture" => ~"x86_64",
      ~"load_generator" => ~"out_of_node"}.

%% A new folder for each case.
folder(Config) ->
    Folder = filename:join(proplists:get_value(priv_dir, Config),
                           integer_to_list(erlang:unique_integer([positive]))),
    ok = filelib:ensure_path(Folder),
    Folder.

any_valid() ->
    ?LET({Workload, Transport, Scope, Precision, Timestamp, Samples, Seconds, Others},
         {?LET(Letters, vector(3, elements("ab_9")), list_to_binary(Letters)),
          elements([~"in_process", ~"stdio", ~"tcp", ~"http1", ~"http2", ~"http1_tls",
                    ~"http2_tls"]),
          elements([~"per_node", ~"per_cluster", ~"per_connection", ~"per_request"]),
          elements([~"microsecond", ~"nanosecond"]),
          elements([~"2026-11-21T22:13:00Z", ~"2026-11-21T22:13:00.5+01:00", 1_795_299_180]),
          pos_integer(), positive(), members(2)},
         maps:merge(Others,
                    #{~"workload_id" => Workload, ~"benchmark" => ~"core_ops",
                      ~"transport" => Transport, ~"scope" => Scope, ~"precision" => Precision,
                      ~"timestamp" => Timestamp, ~"environment" => environment(),
                      ~"sample_count" => Samples, ~"duration_s" => Seconds,
                      ~"throughput_msg_per_s" => Samples / Seconds})).

%% Optional members of a result, with the given depth of objects.
members(0) ->
    ?LET(Members, few(plain()), maps:from_list(Members));
members(Depth) ->
    ?LET({Plain, Percentiles, Objects, Series},
         {few(plain()), vector(5, positive()),
          few({elements([~"phases", ~"peak", ~"a/b~c", ~"%", ~"é"]), members(Depth - 1)}),
          few({elements([~"series", ~"points"]), few(members(Depth - 1))})},
         maps:merge(maps:from_list(Plain ++ Objects ++ Series),
                    maps:from_list(lists:zip([~"latency_p50_us", ~"latency_p95_us",
                                              ~"latency_p99_us", ~"latency_p999_us",
                                              ~"latency_max_us"], lists:sort(Percentiles))))).

few(Type) -> ?LET(Number, range(0, 2), vector(Number, Type)).

plain() ->
    oneof([{elements([~"setup_ms", ~"memory_rss_mib_per_node", ~"cpu_us_per_msg"]), positive()},
           {elements([~"lost_count", ~"connections", ~"slope_percent_per_min", ~"code"]),
            integer()},
           {elements([~"title", ~"note"]), elements([~"512 MiB", ~"", ~"é", ~"12 connections"])},
           {~"refused_count", ?LET(Codes, list({elements([~"1056", ~"1060"]), non_neg_integer()}),
                                   maps:from_list(Codes))},
           {~"latency_histogram_us", list([pos_integer(), pos_integer()])},
           {~"shortened", boolean()}, {~"era", null}]).

positive() -> ?LET({Whole, Part}, {pos_integer(), range(0, 3)}, Whole + Part / 4).

%% Every object in which a name needs a unit, by the names and indices that lead to it.
places(Value) -> places(Value, []).

places(#{} = Object, Way) ->
    [lists:reverse(Way) | lists:append([places(Member, [Name | Way])
                                        || Name := Member <- Object,
                                           erlmcp_metrology_rules:unit(Name) =:= none])];
places(Items, Way) when is_list(Items) ->
    lists:append([places(Item, [Index | Way]) || {Index, Item} <- lists:enumerate(0, Items)]);
places(_, _) ->
    [].

changed([], Change, Object) ->
    Change(Object);
changed([Index | Way], Change, Items) when is_integer(Index) ->
    {Before, [Item | Behind]} = lists:split(Index, Items),
    Before ++ [changed(Way, Change, Item) | Behind];
changed([Name | Way], Change, Object) ->
    Object#{Name := changed(Way, Change, map_get(Name, Object))}.
