-module(erlmcp_cli_report).
-moduledoc """
`erlmcp report`: makes one HTML page from a folder of results, or pages of the documentation from a
folder of baselines.
""".

-export([command/0]).

-doc "Returns the command `report` for `argparse`, with its arguments and its handler.".
-spec command() -> argparse:command().
command() ->
    #{help => "make one HTML page of the results in a folder",
      arguments => [
          #{name => folder, help => "folder with results, or with baselines"},
          #{name => output, long => "-output",
            help => {"[--output <file>]",
                     ["file to write (default: report.html in the folder)"]}},
          #{name => page, long => "-page", type => {atom, [report, performance, capacity]},
            default => report,
            help => "performance, capacity: of a folder of baselines, the page of the "
                    "documentation (into --output)"}],
      handler => fun run/1}.

run(#{page := report, folder := Folder} = Arguments) ->
    Out = maps:get(output, Arguments, filename:join(Folder, "report.html")),
    case erlmcp_bench_report:write(Folder, Out) of
        {ok, #{results := Results, figures := Figures, refused := Refused}} ->
            erlmcp_cli_output:print(io_lib:format("~ts: ~b figures of ~b results~n",
                                                  [Out, Figures, Results])),
            lists:foreach(fun({File, [Why | _]}) ->
                              erlmcp_cli_output:complain([erlmcp_cli_text:one_line(File), ": ",
                                                          erlmcp_cli_text:one_line(Why)])
                          end, Refused),
            case Refused of
                [] -> ok;
                [_ | _] -> metrology
            end;
        {error, Reason} ->
            failed(Reason)
    end;
run(#{folder := Folder, page := Page, output := Out}) ->
    Write = case Page of
        performance -> fun erlmcp_bench_report:performance/2;
        capacity -> fun erlmcp_bench_report:capacity/2
    end,
    case Write(Folder, Out) of
        ok -> erlmcp_cli_output:print([Out, $\n]);
        {error, Reason} -> failed(Reason)
    end;
run(#{page := Page}) ->
    erlmcp_cli_output:complain(["--page ", atom_to_list(Page), ": --output FILE is wanted"]),
    usage.

failed(Reason) ->
    erlmcp_cli_output:complain(erlmcp_cli_text:one_line(
        unicode:characters_to_binary(erlmcp_bench_report:format_error(Reason)))),
    failed.
