-module(erlmcp_bench_stages).
-moduledoc """
Measures each stage of a request in microseconds and reductions. The server is an operating system
process of its own with one scheduler, under load over real sockets (`m:erlmcp_load`).

Three servers are measured, one after the other:

1. an unchanged one, for the whole cost of a request, and of a write;
2. one whose stage functions are timed (`m:erlmcp_bench_meter`);
3. one whose stage functions have their reductions counted.

Two rows are remainders: `read` of the time in which no process ran, and `frame` of the time in
which a process ran.
""".

-behaviour(erlmcp_bench_run).

-export([measured/2]).
-export([stages/0, checks/0, rows/1, plan/2]).

%% The measurements of a workload.
-define(PARTS, 3).

-doc """
Returns the stages in the order of a request, with a description and their functions. The cost of a
stage without functions is computed from the cost of the whole request.
""".
-spec stages() -> [{Stage :: atom(), What :: binary(), [mfa()]}, ...].
stages() ->
    [{read, ~"the socket, the system's poll, the scheduler: no process runs", []},
     {frame, ~"framing of requests, heads, processes: everything in no other row", []},
     {decode, ~"JSON to terms",
      [{erlmcp_connection_cache, decode, 2}, {erlmcp_connection_cache, request, 4}]},
     {admit, ~"the gate: a permit, the wait for it, and its return",
      [{erlmcp_admission, enter, 4}, {erlmcp_admission, enter_announced, 5},
       {erlmcp_admission, effects, 4}, {erlmcp_gate, state, 1},
       {erlmcp_gate, await, 2}, {erlmcp_gate, leave, 1}]},
     {dispatch, ~"the engine: era, `_meta`, headers, method, definition",
      [{erlmcp_engine, handle, 4}, {erlmcp_engine, request, 3}]},
     {call, ~"the call: its process, unless it is quick, its deadline and its answer",
      [{erlmcp_call, start, 2}, {erlmcp_call, start, 3}, {erlmcp_call, run_linked, 3},
       {erlmcp_inline_call, run, 2}]},
     {validate, ~"arguments and structured content, by the tool's schemas",
      [{erlmcp_tool_schema, check_arguments, 3}, {erlmcp_tool_schema, check_result, 3}]},
     {handle, ~"the tool itself", [{erlmcp_bench_fixture, call_tool, 3}]},
     {encode, ~"the result, the message and the response",
      [{erlmcp_result, from, 4}, {erlmcp_message, result, 2}, {erlmcp_httpd_response, answer, 5}]},
     {count, ~"the meter: requests that end",
      [{erlmcp_meter, arrived, 1}, {erlmcp_meter, ended, 5}, {erlmcp_meter, refused, 3}]},
     {write, ~"the write to the socket, with the system call",
      [{erlmcp_tcp_send, send, 2}]},
     {collect, ~"garbage", []}].

-doc "Returns the stages that are checks: schema validation, admission, metrics.".
-spec checks() -> [Stage :: atom()].
checks() -> [validate, admit, count].

-doc """
Returns the stages of a request, with their microseconds and reductions from the figures of a
result, such as `stage_decode_us_per_msg`. A stage without a figure has 0.
""".
-spec rows(Figures :: #{binary() => term()}) ->
    [{Stage :: atom(), What :: binary(), Us :: number(), Reductions :: number()}].
rows(Figures) ->
    [{Stage, What, maps:get(field(Stage, us), Figures, 0),
      maps:get(field(Stage, reductions), Figures, 0)} || {Stage, What, _} <- stages()].

field(Stage, Unit) ->
    <<"stage_", (atom_to_binary(Stage))/binary, "_", (atom_to_binary(Unit))/binary, "_per_msg">>.

-doc """
Measures a workload. `duration_s` is the time of each of the three measurements, and `connections`
the number of connections in each.
""".
-spec measured(erlmcp_bench_workloads:workload(), erlmcp_bench_run:options()) ->
    erlmcp_bench_run:measured().
measured(#{id := Id, connections := Own} = Workload, Options) ->
    {_, Shortened} = erlmcp_bench_run:seconds(Workload, Options),
    #{transport := Transport, connections := Connections, payload_bytes := Bytes} = Plan =
        plan(Workload, Options),
    OnPart = erlmcp_bench_run:on_part(Options),
    Outcome = maybe
        {ok, Whole} ?= erlmcp_bench_stage_load:whole(Plan),
        _ = OnPart(1 / ?PARTS),
        {ok, Times} ?= erlmcp_bench_stage_load:metered(nanoseconds, timed(), Plan),
        _ = OnPart(2 / ?PARTS),
        {ok, Reductions} ?= erlmcp_bench_stage_load:metered(reductions, functions(stages()), Plan),
        Base = #{workload_id => Id, benchmark => ~"stages", transport => Transport,
                 era => ~"stateless", scope => ~"per_request", payload_bytes => Bytes,
                 connections => Connections, schedulers => 1,
                 shortened => Shortened orelse Connections < Own},
        {ok, maps:merge(Base, fields(Whole, Times, Reductions)), []}
    end,
    erlmcp_bench_run:measured(Outcome, {Id, Options}).

-doc "Returns the plan of a workload: its server, and its requests.".
-spec plan(erlmcp_bench_workloads:workload(), erlmcp_bench_run:options()) ->
    erlmcp_bench_stage_load:plan().
plan(#{transport := Transport, connections := Own, payload_bytes := Bytes} = Workload, Options) ->
    {Seconds, _} = erlmcp_bench_run:seconds(Workload, Options),
    #{transport => Transport, connections => maps:get(connections, Options, Own),
      payload_bytes => Bytes, handler => handler(Workload),
      measure_ms => max(1, ceil(Seconds * 1_000))}.

handler(#{quick := true}) -> erlmcp_bench_quick_fixture;
handler(_) -> erlmcp_bench_fixture.

functions(Stages) ->
    lists:append([Functions || {_, _, Functions} <- Stages]).

%% A writer waits for the socket while other processes run, so writes are measured separately.
timed() ->
    functions(lists:keydelete(write, 1, stages())).

fields(#{answered := Answered, at_us := Us, cpu_us := Cpu, reductions := Reductions,
         running_us := Running, collecting_us := Collecting, write := Write},
       TimeOf, ReductionsOf) ->
    #{running_us := WriteRunning, ports_us := WritePorts} = Write,
    Inside = [{Stage, sum(Functions, TimeOf), sum(Functions, ReductionsOf)}
              || {Stage, _, [_ | _] = Functions} <- lists:keydelete(write, 1, stages())],
    {_, _, OfWrite} = lists:keyfind(write, 1, stages()),
    Written = {write, WriteRunning + WritePorts, sum(OfWrite, ReductionsOf)},
    [TimeInside, ReductionsInside] = [lists:sum([element(At, Row) || Row <- [Written | Inside]])
                                      || At <- [2, 3]],
    Rows = [{read, Cpu - Running - Collecting - WritePorts, 0},
            {frame, Running + WritePorts - TimeInside, Reductions - ReductionsInside},
            {collect, Collecting, 0}, Written | Inside],
    Checks = lists:sum([Time || {Stage, Time, _} <- Rows, lists:member(Stage, checks())]),
    maps:from_list(
        %% A time that the clock cannot distinguish from zero has no figure.
        [{field(Stage, Unit), Value} || {Stage, Time, Own} <- Rows,
                                        {Unit, Value} <- [{us, Time}, {reductions, Own}], Value > 0]
        ++ [{sample_count, Answered}, {duration_s, Us / 1_000_000},
            {throughput_msg_per_s, Answered * 1_000_000 / Us}, {cpu_us_per_msg, Cpu},
            {reductions_per_msg, Reductions}, {checks_percent, 100 * Checks / Cpu}]).

sum(Functions, Measured) ->
    lists:sum([map_get(Function, Measured) || Function <- Functions]).
