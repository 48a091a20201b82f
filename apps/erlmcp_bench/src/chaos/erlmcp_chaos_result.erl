-module(erlmcp_chaos_result).
-moduledoc "Turns outcomes of faults into results of `m:erlmcp_bench_result`, and writes them.".

-export([write/2]).

%% Returns the result of a fault. A fault that did not run, or was broken off, has none. Recovery
%% and detection are those of the worst round. `resolution_ms` is the shortest recovery that the
%% load can measure, `longest_pause_ms` the machine's longest pause, and `settled_below_us` the
%% highest 99th percentile of a load that is settled. `detection_bound_moved_ms` and
%% `recovery_bound_moved_ms` say by how much pauses have moved the bounds. `seen` has the figures
%% that show each harm.
-spec new(erlmcp_chaos_run:outcome()) -> erlmcp_bench_result:result() | none.
new(#{status := not_run}) ->
    none;
new(#{accounting := Accounting} = Outcome) ->
    #{scenario := Scenario, title := Title, status := Status, bounds := Bounds,
      figures := Figures, facts := Facts, seen := Seen, duration_ms := DurationMs, short := Short,
      violations := Violations, earlier := Earlier} = Outcome,
    Sent = [erlmcp_chaos_accounting:sent(Counts) || _ := Counts <- Accounting],
    erlmcp_bench_result:new(maps:merge(
        #{workload_id => Scenario, benchmark => ~"chaos", title => Title, transport => http1,
          scope => per_node, duration_s => DurationMs / 1000, sample_count => lists:sum(Sent),
          status => Status, shortened => Short, bounds => bounds(Bounds),
          violations => [text(Violation) || Violation <- Violations],
          accounting => #{Source => counts(Counts) || Source := Counts <- Accounting},
          facts => Facts,
          seen => #{Harm => #{Figure => Value || Figure := {Value, _} <- OfHarm}
                    || Harm := OfHarm <- Seen},
          command_line => unicode:characters_to_binary(["erlmcp chaos ", Scenario,
                                                        [" --short" || Short]])},
        maps:merge(times(Figures), earlier(Earlier))));
%% The scenario was broken off.
new(#{status := failed}) ->
    none.

bounds(#{code := Code, detect_ms := DetectMs, recover_ms := RecoverMs, load := Load}) ->
    maps:from_list([{code, Code} || Code =/= none] ++ [{load, Load}]
                   ++ [{detection_bound_ms, DetectMs} || DetectMs =/= none]
                   ++ [{recovery_bound_ms, RecoverMs} || RecoverMs > 0]).

times(Figures) ->
    maps:from_list([{Name, max(1, Us) / 1000}
                    || {Key, Name} <- [{detection_us, detection_ms}, {recovery_us, recovery_ms},
                                       {resolution_us, resolution_ms},
                                       {pause_us, longest_pause_ms},
                                       {detection_moved_us, detection_bound_moved_ms},
                                       {recovery_moved_us, recovery_bound_moved_ms}],
                       #{Key := Us} <- [Figures]]
                   ++ [{rounds_count, Rounds} || #{rounds := Rounds} <- [Figures]]).

earlier(#{p50 := P50, p99 := P99, max := Max, quick := Quick}) ->
    #{earlier => #{earlier_p50_us => P50, earlier_p99_us => P99, earlier_max_us => Max},
      settled_below_us => Quick};
earlier(#{}) ->
    #{}.

counts(#{answered := Answered, refused := Refused, failed := Failed, wrong := Wrong} = Counts) ->
    #{answered_count => Answered, lost_count => erlmcp_chaos_accounting:lost(Counts),
      refused_count => named(Refused), failed_count => named(Failed),
      wrong_count => named(Wrong)}.

named(Kinds) -> #{text(Kind) => Count || Kind := Count <- Kinds}.

text(Word) when is_atom(Word) -> atom_to_binary(Word);
text(Number) when is_integer(Number) -> integer_to_binary(Number);
text(Term) -> unicode:characters_to_binary(io_lib:format("~0tp", [Term])).

-doc """
Writes a result into `Folder` for each of `Outcomes`, and returns the files. Scenarios that did not
run, or that were broken off, have no result. The error is that of the first result that could not
be written. The files of the results before that one stay.
""".
-spec write([erlmcp_chaos_run:outcome()], Folder :: file:filename()) ->
    {ok, [file:filename()]} | {error, erlmcp_bench_result:reason()}.
write(Outcomes, Folder) ->
    write([Result || Outcome <- Outcomes, Result <- [new(Outcome)], Result =/= none], Folder, []).

write([], _, Files) ->
    {ok, lists:reverse(Files)};
write([Result | Results], Folder, Files) ->
    case erlmcp_bench_result:write(Result, Folder) of
        {ok, File} -> write(Results, Folder, [File | Files]);
        {error, _} = Error -> Error
    end.
