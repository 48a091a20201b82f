-module(erlmcp_bench_scenario_series).
-moduledoc """
The raw series of a scenario: a line for each second of each node, of the generator and of each
load. Pure.
""".

-export([lines/3]).

-export_type([line/0]).

-doc """
A line covers `duration_s` seconds in `phase`. They ended `at_s` seconds after the beginning of the
scenario. A line of a process has its name as `node`, and the figures of
`t:erlmcp_bench_scenario_resources:second/0`. A line of a load has the members of
`t:erlmcp_bench_scenario_run:load/0`. It also has the figures of `t:erlmcp_load:sample/0`, except
the generator's processor time.
""".
-type line() :: #{phase := atom(), at_s := float(), duration_s := float(), node := binary(),
                  load => binary(), atom() => term()}.

-doc """
Returns all lines in the order of their times. The scenario began at `BeganUs`, in monotonic
microseconds.
""".
-spec lines(BeganUs :: integer(), [erlmcp_bench_scenario_resources:reading()],
            [{erlmcp_bench_scenario_run:load(), erlmcp_load:report()}]) -> [line()].
lines(BeganUs, Readings, Loads) ->
    Ends = [{(At - BeganUs) / 1_000_000, Phase} || #{at_us := At, phase := Phase} <- Readings],
    OfLoads = [begin
                   AtS = At + (FromUs - BeganUs) / 1_000_000,
                   %% The processor time is that of all loads together.
                   maps:merge(maps:remove(generator_cpu_us_per_msg, Sample),
                              Load#{phase => phase(AtS, Ends), at_s => AtS})
               end || {Load, #{from_us := FromUs, seconds := Samples}} <- Loads,
                      #{at_s := At} = Sample <- Samples],
    lists:sort(fun(#{at_s := One}, #{at_s := Other}) -> One =< Other end,
               erlmcp_bench_scenario_resources:seconds(BeganUs, Readings) ++ OfLoads).

%% The last samples come when the last phase has just ended.
phase(AtS, [{EndS, Phase} | Rest]) when AtS =< EndS; Rest =:= [] -> Phase;
phase(AtS, [_ | Rest]) -> phase(AtS, Rest).
