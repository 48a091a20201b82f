-module(erlmcp_cli_chaos).
-moduledoc """
`erlmcp chaos`: injects faults into a server under test, shows the events, and prints whether the
server handled each as promised.
""".

-export([command/0]).
-export([verdict/1, table/1]).

-doc "Returns the command `chaos` for `argparse`, with its arguments and its handler.".
-spec command() -> argparse:command().
command() ->
    #{help => "inject faults into a server, and show how it handled them",
      arguments => [
          #{name => fault, nargs => list, required => false, default => [],
            type => {custom, fun erlmcp_cli_values:fault/1},
            help => {"[<fault>...]", ["names of faults, or all; without one they are listed"]}},
          #{name => short, long => "-short", type => boolean, default => false,
            help => "less of each fault: seconds, for a first look"},
          #{name => json, long => "-json",
            help => {"[--json <folder>]", ["write the results there"]}}],
      handler => fun run/1}.

run(#{fault := []}) ->
    erlmcp_cli_output:print([line(Scenario) || Scenario <- erlmcp_bench_chaos:scenarios()]);
run(#{fault := Names, short := Short} = Arguments) ->
    Options = #{short => Short, on_progress => fun progress/1},
    Outcomes = [outcome(Id, Options) || Id <- wanted(Names)],
    erlmcp_cli_output:print([$\n, table(Outcomes)]),
    written(Outcomes, Arguments).

wanted(Names) ->
    case lists:member(~"all", Names) of
        true -> [Id || #{id := Id} <- erlmcp_bench_chaos:scenarios()];
        false -> Names
    end.

line(#{id := Id, title := Title, bounds := #{code := Code}}) ->
    io_lib:format("~-34ts ~-5ts ~ts~n", [Id, code(Code), Title]).

outcome(Id, Options) ->
    {ok, Outcome} = erlmcp_bench_chaos:run_scenario(Id, Options),
    erlmcp_cli_output:print(verdict(Outcome)),
    Outcome.

progress({Id, What, ElapsedMs}) ->
    erlmcp_cli_output:print(io_lib:format("~8.2fs  ~-30ts ~ts~n",
                                          [ElapsedMs / 1000, Id, text(What)])).

text(started) -> "the server and the load start";
text(steady) -> "the load is steady";
text(inject) -> "fault";
text(heal) -> "the fault has ended";
text(ended) -> "the server has ended".

-doc """
Returns the verdict on a scenario as lines of text. The figures by which each harm was seen come
first, each with its bound. Then there is one line for a scenario that passed, or a line for each
violation. A scenario that was not run has one line, with the reason.
""".
-spec verdict(erlmcp_chaos_run:outcome()) -> unicode:chardata().
verdict(#{scenario := Id, status := not_run, reason := Reason}) ->
    io_lib:format("           ~-30ts not run: ~ts~n", [Id, Reason]);
verdict(#{scenario := Id, status := passed} = Outcome) ->
    [seen(Outcome), io_lib:format("           ~-30ts passed~n", [Id])];
verdict(#{scenario := Id, status := failed, violations := Violations} = Outcome) ->
    [seen(Outcome) | [io_lib:format("           ~-30ts failed: ~0tp~n", [Id, Violation])
                      || Violation <- Violations]].

seen(#{scenario := Id, seen := Seen}) ->
    [io_lib:format("           ~-30ts saw ~ts: ~ts ~ts, ~ts ~ts~n",
                   [Id, Harm, Figure, number(Value), bound(Kind), number(Bound)])
     || Harm := Figures <- maps:iterator(Seen, ordered),
        Figure := {Value, {Kind, Bound}} <- maps:iterator(Figures, ordered)];
seen(_) ->
    "".

bound(at_least) -> "at least";
bound(at_most) -> "at most".

number(Number) when is_integer(Number) -> integer_to_list(Number);
number(Number) -> io_lib:format("~.1f", [Number]).

written(Outcomes, #{json := Folder}) ->
    case erlmcp_chaos_result:write(Outcomes, Folder) of
        {ok, Files} ->
            erlmcp_cli_output:print([[File, $\n] || File <- Files]),
            exit_of(Outcomes);
        {error, Reason} ->
            erlmcp_cli_output:complain(erlmcp_bench_result:format_error(Reason)),
            erlmcp_cli_exit:unkept(Reason)
    end;
written(Outcomes, #{}) ->
    exit_of(Outcomes).

%% A run in which no fault could be injected proves nothing, and has failed.
exit_of(Outcomes) ->
    Statuses = [Status || #{status := Status} <- Outcomes],
    case {lists:member(failed, Statuses), lists:member(passed, Statuses)} of
        {false, true} -> ok;
        {_, _} -> failed
    end.

-doc "Returns a table of the outcomes.".
-spec table([erlmcp_chaos_run:outcome()]) -> unicode:chardata().
table(Outcomes) ->
    Head = ["scenario", "code", "detected", "recovered", "sent, answered, refused, failed",
            "lost", "verdict"],
    [[Line, $\n]
     || Line <- erlmcp_cli_table:lines([Head | [row(Outcome) || Outcome <- Outcomes]])].

row(#{scenario := Id, status := not_run}) ->
    [Id, "", "", "", "", "", "not run"];
row(#{scenario := Id, status := Status, figures := Figures, accounting := Accounting,
      bounds := Bounds}) ->
    #{code := Code, detect_ms := DetectMs, recover_ms := RecoverMs} = Bounds,
    #{answered := Answered, refused := Refused, failed := Failed} = Load =
        maps:get(load, Accounting, #{answered => 0, refused => #{}, failed => #{}, wrong => #{}}),
    Lost = lists:sum([erlmcp_chaos_accounting:lost(Counts) || _ := Counts <- Accounting]),
    #{resolution_us := Resolution} = Figures,
    [Id, seen(Code, Figures), detected(DetectMs, Figures),
     time(recovery_us, bound(RecoverMs, Resolution + maps:get(recovery_moved_us, Figures, 0)),
          Figures),
     io_lib:format("~b, ~b, ~b, ~b", [erlmcp_chaos_accounting:sent(Load), Answered,
                                      total(Refused), total(Failed)]),
     integer_to_list(Lost), atom_to_list(Status)];
row(#{scenario := Id, status := failed}) ->
    [Id, "", "", "", "", "", "failed"].

total(Kinds) -> lists:sum(maps:values(Kinds)).

seen(none, _) -> "-";
seen(Code, #{detection_us := _}) -> code(Code);
seen(Code, _) -> ["no ", code(Code)].

code(none) -> "-";
code(Code) -> integer_to_list(Code).

detected(none, _) -> "-";
detected(DetectMs, Figures) ->
    time(detection_us, bound(DetectMs, maps:get(detection_moved_us, Figures, 0)), Figures).

%% Two times are added to the bound: the one below which the judge cannot tell times apart, and the
%% one by which pauses have moved the bound.
bound(Milliseconds, MoreUs) ->
    io_lib:format("~b+~b ms", [Milliseconds, MoreUs div 1000]).

time(Key, Bound, Figures) ->
    case Figures of
        #{Key := Us} -> io_lib:format("~.1f of ~ts", [Us / 1000, Bound]);
        #{} -> "never"
    end.
