-module(erlmcp_cli_metrology).
-moduledoc """
`erlmcp metrology`: checks result files against the rules for results (`m:erlmcp_metrology_rules`).
""".

-export([command/0]).

-doc "Returns the command `metrology` for `argparse`, with its arguments and its handler.".
-spec command() -> argparse:command().
command() ->
    #{help => "check files of results",
      arguments => [
          #{name => files, nargs => nonempty_list,
            help => {"<files>...", ["results, and folders of them"]}},
          #{name => json, long => "-json", type => boolean, default => false,
            help => "the violations as JSON"}],
      handler => fun run/1}.

run(#{files := Paths, json := Json}) ->
    Checked = [{File, violations(File)} || Path <- Paths, File <- erlmcp_bench_result:files(Path)],
    Invalid = [File || {File, [_ | _]} <- Checked],
    case Json of
        true ->
            Files = #{files => [as_json(Each) || Each <- Checked]},
            erlmcp_cli_output:print([erlmcp_cli_text:json(Files), $\n]);
        false ->
            erlmcp_cli_output:print([text(Each) || Each <- Checked])
    end,
    case {Checked, Invalid} of
        {[], _} ->
            erlmcp_cli_output:complain(erlmcp_bench_result:format_error({no_results, Paths})),
            metrology;
        {_, []} ->
            ok;
        _ ->
            erlmcp_cli_output:complain(io_lib:format("~b of ~b results are not valid",
                                                     [length(Invalid), length(Checked)])),
            metrology
    end.

violations(File) ->
    case erlmcp_metrology_validator:validate_file(File) of
        ok -> [];
        {error, Violations} -> Violations
    end.

as_json({File, Violations}) ->
    #{file => unicode:characters_to_binary(File), violations => Violations}.

text({File, []}) ->
    [File, ": valid\n"];
text({File, Violations}) ->
    [[File, ": ", visible(erlmcp_metrology_validator:format(Violation)), $\n]
     || Violation <- Violations].

visible(Text) -> erlmcp_cli_text:one_line(unicode:characters_to_binary(Text)).
