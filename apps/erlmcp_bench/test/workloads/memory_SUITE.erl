-module(memory_SUITE).
-moduledoc "Tests for the memory of idle items: its measurement, and its section of the page.".

-export([suite/0, all/0]).
-export([streams_are_held_told_and_gone/1, sessions_are_held_with_their_streams/1,
         what_cannot_be_held_is_let_go/1, a_server_that_dies_is_a_failure/1,
         what_is_held_is_a_page/1]).

suite() ->
    [{timetrap, {minutes, 3}}].

all() ->
    [streams_are_held_told_and_gone, sessions_are_held_with_their_streams,
     what_cannot_be_held_is_let_go, a_server_that_dies_is_a_failure, what_is_held_is_a_page].

streams_are_held_told_and_gone(_) ->
    {ok, [Result]} = erlmcp_bench_run:workload(memory, memory_stream, #{connections => 6}),
    ok = erlmcp_metrology_validator:validate(Result),
    #{~"connections" := 6, ~"sample_count" := 6, ~"shortened" := true} = Result,
    %% Each has a process, which hibernated before it was looked at, and none that is left.
    #{~"hibernating_processes" := Hibernating, ~"left_processes" := Left,
      ~"notified_count" := 6, ~"era" := ~"stateless"} = Result,
    true = Hibernating >= 6 andalso Left =< 0.

%% The change comes on each GET stream. The sessions are ended over another connection.
sessions_are_held_with_their_streams(_) ->
    {ok, [Result]} = erlmcp_bench_run:workload(memory, memory_session_stream, #{connections => 6}),
    ok = erlmcp_metrology_validator:validate(Result),
    #{~"sample_count" := 6, ~"notified_count" := 6, ~"era" := ~"session",
      ~"hibernating_processes" := Hibernating, ~"left_processes" := Left} = Result,
    true = Hibernating >= 6 andalso Left =< 0.

%% The server has room for four of six. Nothing of these four is left.
what_cannot_be_held_is_let_go(_) ->
    {links, Before} = process_info(self(), links),
    {error, #{failures := [{~"memory_connection_http", _}], results := []}} =
        erlmcp_bench_run:workload(memory, memory_connection_http, #{
            connections => 6, server => #{limits => #{connections => 4}}}),
    {links, After} = process_info(self(), links),
    [] = After -- Before.

%% It dies when all items are open. Its node is the program that runs now and did not run before.
a_server_that_dies_is_a_failure(_) ->
    Before = programs(),
    Test = self(),
    Kill = fun(Part) when Part > 0.5, Part < 1 ->
                   [OsPid] = programs() -- Before,
                   "" = os:cmd("kill -9 " ++ integer_to_list(OsPid)),
                   Test ! killed;
              (_) ->
                   ok
           end,
    {error, #{failures := [{~"memory_connection_http", {crashed, _}}], results := []}} =
        erlmcp_bench_run:workload(memory, memory_connection_http, #{
            connections => 6, on_progress => Kill}),
    receive killed -> ok after 0 -> error(not_killed) end.

programs() ->
    [OsPid || Port <- erlang:ports(), {os_pid, OsPid} <- [erlang:port_info(Port, os_pid)],
              is_integer(OsPid)].

what_is_held_is_a_page(_) ->
    Figures = #{~"memory_state_bytes_per_item" => 4_010, ~"memory_rss_bytes_per_item" => 13_000,
                ~"memory_left_bytes_per_item" => 3, ~"growth_ratio" => 1.01,
                ~"opened_items_per_s" => 15_200},
    Page = page(Figures),
    [_] = found(Page, "^\\| `memory_connection_http` \\| 19,000 \\| 4,010 "
                      "\\| at most 6,144: reached \\| 13,000 "
                      "\\| at most 12,288: \\*\\*not reached\\*\\* \\| 3 \\| 1.01 \\| 15,200 "
                      "\\| 3 \\| 1 \\|$"),
    [] = found(Page, "One change"),
    %% A baseline has no figure that was not above 0 in every run.
    [_] = found(page(maps:without([~"memory_rss_bytes_per_item", ~"memory_left_bytes_per_item"],
                                  Figures)),
                "^\\| `memory_connection_http` \\| 19,000 \\| 4,010 "
                "\\| at most 6,144: reached \\|  \\|  \\|  \\| 1.01 \\| 15,200 "
                "\\| 3 \\| 1 \\|$"),
    [] = found(performance([]), "Memory of idle items").

page(Figures) ->
    Workload = #{~"workload_id" => ~"memory_connection_http", ~"benchmark" => ~"memory",
                 ~"connections" => 19_000, ~"runs_count" => 3, ~"environment" => #{},
                 ~"figures" => #{Name => #{~"median" => Value, ~"min" => Value, ~"max" => Value}
                      || Name := Value <- Figures}},
    performance([Workload]).

performance(Workloads) ->
    Baseline = #{~"kind" => ~"kind", ~"workloads" => Workloads},
    iolist_to_binary(erlmcp_bench_performance:page([{~"kind.json", Baseline}], #{})).

found(Page, Regex) ->
    case re:run(Page, Regex, [multiline, global, {capture, first, binary}]) of
        {match, Found} -> Found;
        nomatch -> []
    end.
