-module(erlmcp_cli_baseline).
-moduledoc "`erlmcp baseline`: makes a baseline from results, for `erlmcp compare`.".

-export([command/0]).

-doc "Returns the command `baseline` for `argparse`, with its arguments and its handler.".
-spec command() -> argparse:command().
command() ->
    #{help => "make a baseline of the results of at least three runs",
      arguments => [
          #{name => results, nargs => nonempty_list,
            help => {"<results>...", ["folders of results, and files"]}},
          #{name => stable, long => "-stable", type => boolean, default => false,
            help => "keep only the figures that a busy machine does not change"},
          #{name => output, long => "-output", default => "bench/baselines",
            help => {"[--output <folder>]", ["where the baseline of each kind of machine is kept, "
                                             "default: ", default]}}],
      handler => fun run/1}.

run(#{results := Paths, output := Folder, stable := Stable}) ->
    maybe
        {ok, Baseline} ?= case Stable of
            true -> erlmcp_bench_baseline:stable(Paths);
            false -> erlmcp_bench_baseline:make(Paths)
        end,
        {ok, File} ?= erlmcp_bench_baseline:write(Baseline, Folder),
        #{~"workloads" := Workloads} = Baseline,
        erlmcp_cli_output:print([[erlmcp_bench_result:label(Workload), ": ", integer_to_list(Runs),
                                  " runs\n"]
                                 || #{~"runs_count" := Runs} = Workload <- Workloads]),
        erlmcp_cli_output:print([File, $\n])
    else
        {error, {invalid, _} = Reason} ->
            erlmcp_cli_output:complain(erlmcp_bench_baseline:format_error(Reason)),
            metrology;
        {error, Reason} ->
            erlmcp_cli_output:complain(erlmcp_bench_baseline:format_error(Reason)),
            failed
    end.
