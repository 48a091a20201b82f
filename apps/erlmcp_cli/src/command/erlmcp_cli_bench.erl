-module(erlmcp_cli_bench).
-moduledoc """
`erlmcp bench`: runs the named workloads and prints their results in a table. With `--json` it also
writes each result to a file, after validating it.
""".

-export([command/0]).

-doc "Returns the command `bench` for `argparse`, with its arguments and its handler.".
-spec command() -> argparse:command().
command() ->
    #{help => "measure what this machine does: components, servers, clients, connections",
      arguments => [
          #{name => workload, nargs => list, required => false, default => [],
            type => {custom, fun erlmcp_cli_values:workload/1},
            help => {"[<workload>...]",
                     ["names of workloads; or core_ops, stress, integration, network_real, "
                      "memory, scaling, stages or growth for all of that benchmark; or all; "
                      "without one they are listed"]}},
          #{name => duration, long => "-duration",
            type => {custom, fun erlmcp_cli_values:positive/1},
            help => "seconds of each workload, or part of it, instead of its own"},
          #{name => quick, long => "-quick", type => boolean, default => false,
            help => "each workload in a short form; with all, some of them, in about a minute"},
          #{name => connections, long => "-connections",
            type => {integer, [{min, 1}, {max, 1_000_000}]},
            help => "connections over a network, instead of the workload's own"},
          #{name => json, long => "-json", type => binary,
            help => {"[--json <folder>]", ["write the results there"]}},
          #{name => against, long => "-against", type => binary,
            help => "measure the server of this URL, which has a tool echo, over a network"},
          #{name => fail, long => "-fail", type => {custom, fun erlmcp_cli_values:failure/1},
            help => {"[--fail <service>@<seconds>]",
                     ["in the workloads of stress with a rate: kill this service of the server "
                      "then, and measure the recovery; ", erlmcp_cli_values:services()]}}],
      handler => fun run/1}.

run(#{workload := []} = Parsed) when not is_map_key(against, Parsed) ->
    erlmcp_cli_output:print(erlmcp_cli_bench_table:workloads(
        [maps:merge(Workload, Own) || {Workload, Own} <- workloads(Parsed)]));
run(#{workload := Names} = Parsed) ->
    case wanted(Names, Parsed) of
        {ok, Wanted} ->
            {ok, _} = application:ensure_all_started(erlmcp_cli),
            measured(Wanted, Parsed);
        {error, Sentence} ->
            erlmcp_cli_output:complain(Sentence),
            usage
    end.

%% Returns the named workloads, in the order of `erlmcp_bench_workloads:all/0`, each with its own
%% options.
wanted([], Parsed) ->
    wanted([~"all"], Parsed);
wanted(Names, Parsed) ->
    All = lists:member(~"all", Names),
    Workloads = case Parsed of
        #{quick := true} when All -> erlmcp_bench_workloads:quick();
        #{} -> workloads(Parsed)
    end,
    fitting([One || One <- Workloads, lists:any(fun(Name) -> is_named(Name, One) end, Names)], All,
            Parsed).

workloads(#{quick := true}) ->
    [{Workload, erlmcp_bench_workloads:short(Workload)}
     || Workload <- erlmcp_bench_workloads:all()];
workloads(_) ->
    [{Workload, #{}} || Workload <- erlmcp_bench_workloads:all()].

is_named(~"all", _) -> true;
is_named(Name, {#{id := Id, benchmark := Benchmark}, _}) ->
    Name =:= Id orelse Name =:= atom_to_binary(Benchmark).

%% Of a server elsewhere only the URL is known, so only workloads over HTTP can measure it.
fitting(Wanted, All, #{against := _}) ->
    Fitting = [One || {#{transport := Transport}, _} = One <- Wanted,
                      Transport =:= http1 orelse Transport =:= http2],
    case Fitting =:= Wanted orelse All of
        true -> {ok, Fitting};
        false -> {error, "--against is for the workloads over HTTP/1.1 and HTTP/2"}
    end;
%% Where requests have no rate, none is due while no server runs.
fitting(Wanted, All, #{fail := _}) ->
    Fitting = [One || {#{target_ops_per_s := Target}, _} = One <- Wanted, is_integer(Target)],
    case Fitting =:= Wanted orelse All of
        true -> {ok, Fitting};
        false -> {error, "--fail is for the workloads of stress with a rate"}
    end;
fitting(Wanted, _, _) ->
    {ok, Wanted}.

measured(Wanted, Parsed) ->
    Given = #{Option => Value || {Name, Option} <- [{duration, duration_s}, {against, against},
                                                    {connections, connections}, {fail, fail}],
                                 #{Name := Value} <- [Parsed]},
    Outcomes = [measured_one({Number, length(Wanted)}, Workload,
                             maps:merge(Own, Given#{command_line => program}), Parsed)
                || {Number, {Workload, Own}} <- lists:enumerate(Wanted)],
    ok = erlmcp_cli_terminal:clear(),
    {Results, Failures, Invalid} = lists:foldr(fun({A, B, C}, {As, Bs, Cs}) ->
                                                   {A ++ As, B ++ Bs, C ++ Cs}
                                               end, {[], [], []}, Outcomes),
    erlmcp_cli_output:print([erlmcp_cli_bench_table:results(Results),
                             erlmcp_bench_scaling:model(Results)]),
    lists:foreach(fun erlmcp_cli_output:complain/1,
                  [erlmcp_cli_bench_table:failure(Failure) || Failure <- Failures]
                      ++ [erlmcp_bench_result:format_error(Reason) || Reason <- Invalid]),
    Unkept = [erlmcp_cli_exit:unkept(Reason) || Reason <- Invalid],
    case Failures =/= [] orelse lists:member(failed, Unkept) of
        true -> failed;
        false when Unkept =/= [] -> metrology;
        false -> ok
    end.

%% Each result is written at once, since the next one may take a day.
measured_one(Place, #{id := Id, benchmark := Benchmark} = Workload, Options, Parsed) ->
    ok = begun(Place, Id),
    Shown = Options#{on_progress => fun(Part) -> shown(Id, Part) end},
    Outcome = erlmcp_bench_run:workload(Benchmark, Workload, Shown),
    {Results, Failures} = case Outcome of
        {ok, Complete} -> {Complete, []};
        {error, #{results := Others, failures := Failed}} -> {Others, Failed}
    end,
    {Results, Failures, [Reason || Result <- Results,
                                   {error, Reason} <- [kept(Result, Parsed)]]}.

begun({Number, Count}, Id) ->
    case erlmcp_cli_terminal:is_terminal(2) of
        true -> shown(Id, 0.0);
        false -> erlmcp_cli_terminal:say(io_lib:format("~b/~b ~ts", [Number, Count, Id]))
    end.

shown(Id, Part) ->
    _ = erlmcp_cli_terminal:is_terminal(2)
        andalso erlmcp_cli_terminal:progress(#{~"progress" => Part, ~"total" => 1,
                                               ~"message" => Id}),
    ok.

kept(Result, #{json := Folder}) ->
    erlmcp_bench_result:write(Result, unicode:characters_to_list(Folder));
kept(Result, _) ->
    erlmcp_metrology_validator:validate(Result).
