-module(integration_SUITE).
-moduledoc "Workflows of whole clients against a whole server.".

-export([suite/0, all/0]).
-export([every_workflow_works_everywhere/1, a_program_is_a_server_too/1,
         a_wrong_answer_fails_it/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [every_workflow_works_everywhere, a_program_is_a_server_too, a_wrong_answer_fails_it].

every_workflow_works_everywhere(_) ->
    {ok, Results} = erlmcp_bench_integration:benchmark(
        ~"mcp_complete_workflow", #{duration_s => 0.1, transports => [tcp, http1, http2]}),
    [ok = erlmcp_metrology_validator:validate(Result) || Result <- Results],
    [{~"http1", ~"session"}, {~"http1", ~"stateless"}, {~"http2", ~"session"},
     {~"http2", ~"stateless"}, {~"tcp", ~"session"}, {~"tcp", ~"stateless"}] =
        lists:sort([{Transport, Era}
                    || #{~"transport" := Transport, ~"era" := Era} <- Results]),
    %% Each worker does one at least.
    [true = Count >= 10 || #{~"sample_count" := Count, ~"failed_count" := 0} <- Results],
    6 = length(Results).

a_program_is_a_server_too(_) ->
    {ok, [#{~"transport" := ~"stdio", ~"sample_count" := Count} = Result]} =
        erlmcp_bench_integration:benchmark(
            ~"mcp_basic_initialize",
            #{duration_s => 0.1, transports => [stdio], eras => [stateless]}),
    ok = erlmcp_metrology_validator:validate(Result),
    true = Count >= 1.

a_wrong_answer_fails_it(_) ->
    {error, #{failures := [{~"mcp_tool_sequence", {workflows_failed, Failed}}],
              results := [#{~"failed_count" := Count}]}} =
        erlmcp_bench_integration:benchmark(
            ~"mcp_tool_sequence",
            #{duration_s => 0.1, transports => [tcp], eras => [stateless],
              server => #{handler => erlmcp_test_broken_fixture}}),
    Count = lists:sum([Own || {_, Own} <- Failed]),
    true = lists:any(fun({{{call_tool, ~"echo", _}, {unexpected, _}}, _}) -> true;
                        (_) -> false
                     end, Failed).
