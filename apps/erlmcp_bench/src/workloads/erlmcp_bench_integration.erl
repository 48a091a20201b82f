-module(erlmcp_bench_integration).
-moduledoc """
Measures whole clients with a whole server in an operating system process of its own, on every
transport and in both eras. The figures are how many workflows
(`erlmcp_bench_workloads:workflows/0`) the workers do in a second, and how long each takes.

On stdio each client starts the server as its own program, and the time includes that. The number of
workers is then that of the schedulers. The clock of a workflow runs from before its client starts
until after it has stopped.
""".

-behaviour(erlmcp_bench_run).

-export([benchmark/1, benchmark/2, benchmark_all/0]).
-export([measured/2]).

-type way() :: {Transport :: tcp | http1 | http2 | stdio, Era :: stateless | session}.

%% The longest time of a step, in milliseconds.
-define(TIMEOUT, 30_000).
%% How many different failures are counted apart.
-define(REASONS, 10).
-define(LOOK, 100).

-doc "Runs a workflow, given as its name. Returns a result for each transport and era.".
-spec benchmark(Workflow :: binary() | atom()) -> erlmcp_bench_run:outcome().
benchmark(Workflow) -> benchmark(Workflow, #{}).

-doc """
Runs a workflow with options. `Workflow` is its name, or a map with its `id` and the members to
change. `duration_s` is the seconds of each transport and era. `transports` and `eras` select some
of them.
""".
-spec benchmark(Workflow :: binary() | atom() | map(), erlmcp_bench_run:options()) ->
    erlmcp_bench_run:outcome().
benchmark(Workflow, Options) ->
    erlmcp_bench_run:workload(integration, Workflow, Options).

-doc "Runs all workflows, over each transport and in each era. Returns a result of each run.".
-spec benchmark_all() -> erlmcp_bench_run:outcome().
benchmark_all() -> erlmcp_bench_run:all(integration, #{}).

-doc false.
-spec measured(erlmcp_bench_workloads:workload(), erlmcp_bench_run:options()) ->
    erlmcp_bench_run:measured().
measured(#{id := Id} = Workload, Options) ->
    Listen = [{http, #{port => 0}}, {tcp, #{port => 0}}],
    Server = erlmcp_bench_run:server(#{listen => Listen}, Options),
    case erlmcp_bench_target:start(#{server => Server}) of
        {ok, Target} ->
            Ways = [{Transport, Era}
                    || Transport <- maps:get(transports, Options, [tcp, http1, http2, stdio]),
                       Era <- maps:get(eras, Options, [stateless, session])],
            Measured = erlmcp_bench_run:each(Ways, fun(Way, With) ->
                way(Way, Target, Workload, With)
            end, Options),
            ok = erlmcp_bench_target:stop(Target),
            Measured;
        {error, Reason} ->
            {[], [{Id, {no_server, Reason}}]}
    end.

-spec way(way(), erlmcp_bench_target:target(), erlmcp_bench_workloads:workload(),
          erlmcp_bench_run:options()) -> erlmcp_bench_run:measured().
way({Transport, Era} = Way, Target, #{id := Id, steps := Steps} = Workload, Options) ->
    {Seconds, Shortened} = erlmcp_bench_run:seconds(Workload, Options),
    Workers = workers(Transport, Workload),
    Address = address(Way, Target),
    Histogram = erlmcp_bench_histogram:new(),
    Begin = erlang:monotonic_time(microsecond),
    End = Begin + round(Seconds * 1_000_000),
    Work = fun() -> worked(Steps, Address, End, Histogram) end,
    Started = [erlmcp_one_shot:start(Work, []) || _ <- lists:seq(1, Workers)],
    Ended = ended(maps:from_list(Started), {Begin, End}, erlmcp_bench_run:on_part(Options), []),
    Fields = #{workload_id => Id, benchmark => ~"integration", transport => Transport, era => Era,
               scope => per_node, workers => Workers, shortened => Shortened},
    erlmcp_bench_run:measured(fields(Ended, Begin, Histogram, Fields), {Id, Options}).

workers(stdio, _) -> erlang:system_info(schedulers_online);
workers(_, #{workers := Workers}) -> Workers.

address({tcp, Era}, Target) ->
    {Ip, Port} = erlmcp_bench_target:address(tcp, Target),
    {tcp, Ip, Port, options(Era)};
address({http1, Era}, Target) ->
    {http, erlmcp_bench_target:url(Target), (options(Era))#{protocols => [http]}};
address({http2, Era}, Target) ->
    {http, erlmcp_bench_target:url(Target), (options(Era))#{protocols => [http2]}};
address({stdio, Era}, _) ->
    {stdio, [unicode:characters_to_binary(Word) || Word <- erlmcp_bench_program:words()],
     options(Era)}.

options(Era) -> #{era => Era, timeout => ?TIMEOUT, cache => false}.

%% Every worker does at least one workflow.
worked(Steps, Address, End, Histogram) ->
    worked(Steps, Address, End, Histogram, {0, #{}}).

worked(Steps, Address, End, Histogram, {Done, Failed}) ->
    Begin = erlang:monotonic_time(microsecond),
    Outcome = workflow(Steps, Address),
    Now = erlang:monotonic_time(microsecond),
    Counted = case Outcome of
        ok ->
            ok = erlmcp_bench_histogram:record(Histogram, Now - Begin),
            {Done + 1, Failed};
        {error, Reason} ->
            {Done, failed(Reason, Failed)}
    end,
    case Now < End of
        true -> worked(Steps, Address, End, Histogram, Counted);
        false -> Counted
    end.

failed(Reason, Failed) when is_map_key(Reason, Failed); map_size(Failed) < ?REASONS ->
    maps:update_with(Reason, fun(Count) -> Count + 1 end, 1, Failed);
failed(_, Failed) ->
    maps:update_with(others, fun(Count) -> Count + 1 end, 1, Failed).

ended(Workers, _, _, Counted) when map_size(Workers) =:= 0 ->
    {ok, Counted};
ended(Workers, {Begin, End} = Times, OnPart, Counted) ->
    receive
        {'DOWN', Monitor, process, Pid, Reason} when map_get(Pid, Workers) =:= Monitor ->
            Own = case Reason of
                {outcome, Worked} -> Worked;
                _ -> {0, #{{worker_failed, Reason} => 1}}
            end,
            ended(maps:remove(Pid, Workers), Times, OnPart, [Own | Counted])
    after ?LOOK ->
        Now = erlang:monotonic_time(microsecond),
        _ = OnPart(min(1.0, (Now - Begin) / max(1, End - Begin))),
        ended(Workers, Times, OnPart, Counted)
    end.

fields({ok, Counted}, Begin, Histogram, Fields) ->
    Seconds = (erlang:monotonic_time(microsecond) - Begin) / 1_000_000,
    Done = lists:sum([Own || {Own, _} <- Counted]),
    Failed = lists:append([maps:to_list(Own) || {_, Own} <- Counted]),
    Count = lists:sum([Own || {_, Own} <- Failed]),
    case Done of
        0 ->
            {error, {no_workflow_done, Failed}};
        _ ->
            {ok, maps:merge(Fields#{sample_count => Done, duration_s => Seconds,
                                    throughput_workflows_per_s => Done / Seconds,
                                    failed_count => Count},
                            erlmcp_bench_result:latency(Histogram)),
             [{workflows_failed, Failed} || Count > 0]}
    end.

%% A workflow: a client of its own, from its connection to its end. The result of each step is
%% compared with the fixture. An error names the step that failed.

workflow([connect | Steps], Target) ->
    maybe
        {ok, Client} ?= started(Target),
        case steps([connect | Steps], Client) of
            ok ->
                ok;
            {error, _} = Error ->
                ok = erlmcp_client:stop(Client),
                Error
        end
    end.

started(Target) ->
    case erlmcp_client:start_link(Target) of
        {ok, Client} -> {ok, Client};
        {error, Reason} -> {error, {connect, Reason}}
    end.

steps([], _) ->
    ok;
steps([Step | Steps], Client) ->
    case done(Step, Client) of
        ok -> steps(Steps, Client);
        {ok, Given} -> {error, {Step, {unexpected, Given}}};
        {error, Reason} -> {error, {Step, Reason}}
    end.

done(connect, Client) ->
    expected(erlmcp_client:server(Client), fun(#{server_info := #{}}) -> true end);
done(list_tools, Client) ->
    expected(erlmcp_client:list_tools(Client), has(~"name", ~"echo"));
done(list_prompts, Client) ->
    expected(erlmcp_client:list_prompts(Client), has(~"name", ~"test_prompt"));
done(list_resources, Client) ->
    expected(erlmcp_client:list_resources(Client), has(~"uri", ~"file://test.txt"));
done({call_tool, Name, Arguments}, Client) ->
    Text = expected_text(Name, Arguments),
    expected(erlmcp_client:call_tool(Client, Name, Arguments),
             fun(#{~"content" := [#{~"text" := Returned}]}) -> Returned =:= Text;
                (_) -> false
             end);
done({get_prompt, Name}, Client) ->
    expected(erlmcp_client:get_prompt(Client, Name, #{}),
             fun(#{~"messages" := [_]}) -> true;
                (_) -> false
             end);
done({read_resource, Uri}, Client) ->
    expected(erlmcp_client:read_resource(Client, Uri),
             fun(#{~"contents" := [#{~"uri" := Read, ~"text" := _}]}) -> Read =:= Uri;
                (_) -> false
             end);
done(close, Client) ->
    erlmcp_client:stop(Client).

expected({ok, Given}, Is) ->
    case Is(Given) of
        true -> ok;
        false -> {ok, Given}
    end;
expected({error, _} = Error, _) ->
    Error.

has(Field, Value) ->
    fun(Items) -> lists:any(fun(#{Field := Own}) -> Own =:= Value end, Items) end.

expected_text(~"echo", #{~"text" := Text}) -> Text;
expected_text(~"add", #{~"a" := A, ~"b" := B}) -> integer_to_binary(A + B).
