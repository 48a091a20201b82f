-module(erlmcp_test_coverage).
-moduledoc """
The lines and clauses of `apps/erlmcp` that the suites run. Each test node counts from its start
(`start/0`) to its end (`write/1`), with the coverage of the runtime system, which costs little.
`make check` adds up what the nodes of the last `make test` have written (`report/1`).

Lines are those that the compiler marks (`line_coverage`, in the profile `test`). A clause of a
function, a fun, `case`, `if`, `receive`, `try` or `maybe` counts by the line on which its body
begins; those that begin on one line count as one. Nodes of a cluster count what they run until a
suite stops them (`write/2`). Code that runs in other nodes is not counted, such as that of
`bin/erlmcp`.
""".

-export([start/0, write/1, is_counting/0, loaded/0, write/2]).
-export([report/1]).

%% Percents by which the coverage may be above its floor before that has to rise.
-define(CLOSE, 0.5).
-define(LEAST, 10).

-doc "Begins to count the lines of modules that are loaded from now on.".
-spec start() -> ok.
start() ->
    _ = code:coverage_support() andalso code:set_coverage_mode(line),
    ok.

-doc "Writes what was counted into a folder.".
-spec write(file:filename()) -> ok.
write(Folder) ->
    %% Also those are loaded that no suite has called. A behaviour without code has no lines.
    written(lines([{Module, Module:module_info(md5)} || Module <- modules()]), Folder, "coverage").

written(Lines, Folder, Name) ->
    file:write_file(filename:join(Folder, Name), term_to_binary(Lines)).

lines(Loaded) ->
    [{Module, Md5, code:get_coverage(line, Module)}
     || {Module, Md5} <- Loaded, code:coverage_support(),
        code:get_coverage_mode(Module) =:= line].

-doc "Returns `true` if this node counts for `scripts/suites.sh`.".
-spec is_counting() -> boolean().
is_counting() ->
    code:coverage_support() andalso code:get_coverage_mode() =:= line.

-doc "Returns what another node has counted, for `write/2`.".
-spec loaded() -> Lines :: term().
loaded() ->
    lines([{Module, Module:module_info(md5)} || Module <- modules(), erlang:module_loaded(Module)]).

-doc "Writes what the other node `Name` has counted, beside what this node will write.".
-spec write(Name :: string(), Lines :: term()) -> ok.
write(Name, Lines) ->
    [Folder | _] = init:get_plain_arguments(),
    written(Lines, Folder, "coverage." ++ Name).

modules() ->
    case application:load(erlmcp) of
        ok -> ok;
        {error, {already_loaded, erlmcp}} -> ok
    end,
    {ok, Modules} = application:get_key(erlmcp, modules),
    Modules.

-doc """
Prints the coverage that the nodes with a folder below `Logs` have written, and ends this node. Its
status is 1 if that is below the percents in the file `Floor`. Modules that have changed since are
left out, and then nothing is compared.
""".
-spec report([Argument :: string()]) -> no_return().
report([Logs, Floor]) ->
    case [read(File) || File <- filelib:wildcard(filename:join(Logs, "*/coverage*"))] of
        [] ->
            io:put_chars("coverage: none is known yet; `make test` finds it out\n"),
            halt(0);
        Nodes ->
            Counted = lists:foldl(fun added/2, #{}, lists:append(Nodes)),
            Modules = [{Module, run(Lines), clauses(Module, Lines)}
                       || Module := {Md5, Lines} <- Counted, is_current(Module, Md5)],
            ok = print(Modules),
            halt(compare(total(Modules), map_size(Counted) - length(Modules), Floor))
    end.

read(File) ->
    {ok, Bytes} = file:read_file(File),
    binary_to_term(Bytes).

%% A line may be there several times: of code that the compiler has copied, each copy has its own.
added({Module, Md5, Lines}, Counted) ->
    Known = case Counted of
        #{Module := {Md5, Before}} -> Before;
        #{} -> #{}
    end,
    Counted#{Module => {Md5, lists:foldl(fun({Line, IsRun}, Acc) ->
                                             Acc#{Line => IsRun or maps:get(Line, Acc, false)}
                                         end, Known, Lines)}}.

is_current(Module, Md5) ->
    case code:get_object_code(Module) of
        {Module, Beam, _} -> code:module_md5(Beam) =:= Md5;
        error -> false
    end.

run(Lines) ->
    {length([Line || Line := true <- Lines]), map_size(Lines)}.

clauses(Module, Lines) ->
    {ok, {Module, [{abstract_code, {_, Forms}}]}} =
        beam_lib:chunks(code:which(Module), [abstract_code]),
    run(maps:with(bodies(Forms), Lines)).

%% The lines on which the bodies of clauses begin.
bodies({clause, _, Patterns, Guards, [First | _] = Body}) ->
    [erl_anno:line(element(2, First)) | bodies([Patterns, Guards | Body])];
bodies(Form) when is_tuple(Form) ->
    bodies(tuple_to_list(Form));
bodies(Forms) when is_list(Forms) ->
    lists:flatmap(fun bodies/1, Forms);
bodies(_) ->
    [].

total(Modules) ->
    lists:foldl(fun({_, Lines, Clauses}, {AllLines, AllClauses}) ->
                    {sum(Lines, AllLines), sum(Clauses, AllClauses)}
                end, {{0, 0}, {0, 0}}, Modules).

sum({Run, All}, {Before, AllBefore}) -> {Run + Before, All + AllBefore}.

print(Modules) ->
    {Lines, Clauses} = total(Modules),
    io:format("coverage of apps/erlmcp: ~.1f % of ~b lines, ~.1f % of ~b clauses~n",
              [percent(Lines), element(2, Lines), percent(Clauses), element(2, Clauses)]),
    Least = lists:sort([{percent(Of), Module, Of} || {Module, Of, _} <- Modules]),
    [io:format("~6.1f % of ~4b lines  ~ts~n", [Percent, All, Module])
     || {Percent, Module, {_, All}} <- lists:sublist(Least, ?LEAST)],
    ok.

percent({_, 0}) -> 100.0;
percent({Run, All}) -> 100 * Run / All.

compare(_, Changed, _) when Changed > 0 ->
    io:format("coverage: ~b modules have changed since the last `make test`~n", [Changed]),
    0;
compare({Lines, Clauses}, 0, File) ->
    {ok, Floors} = file:consult(File),
    lists:max([compared(Name, percent(Of), proplists:get_value(Name, Floors), File)
               || {Name, Of} <- [{lines, Lines}, {clauses, Clauses}]]).

compared(Name, Percent, Floor, File) when Percent < Floor ->
    io:format("coverage: ~.2f % of ~ts, less than the ~.1f % of ~ts~n",
              [Percent, Name, Floor, File]),
    1;
compared(Name, Percent, Floor, File) when Percent > Floor + ?CLOSE ->
    io:format("coverage: the ~.1f % of ~ts in ~ts may rise~n", [Floor, Name, File]),
    0;
compared(_, _, _, _) ->
    0.
