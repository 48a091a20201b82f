-module(erlmcp_cli_errors).
-moduledoc "Shows the errors of a load or a scenario as text for a person. Pure.".

-export([reason/1, reasons/1, windows/1]).

%% The most windows that are shown.
-define(WINDOWS, 40).

-doc """
Returns the reason of an error as text: an atom in words, the number of a refusal with its name, and
any other term as Erlang writes it.
""".
-spec reason(integer() | atom() | term()) -> unicode:chardata().
reason(Code) when is_integer(Code) ->
    case [Name || #{number := Number, name := Name} <- erlmcp_refusal:table(), Number =:= Code] of
        [Name] -> [integer_to_list(Code), " (", words(Name), ")"];
        [] -> integer_to_list(Code)
    end;
reason(Reason) when is_atom(Reason) -> words(Reason);
reason(Reason) -> io_lib:format("~0tp", [Reason]).

words(Atom) -> string:replace(atom_to_list(Atom), "_", " ", all).

-doc "Returns the counts of all reasons in one line, the most frequent reason first.".
-spec reasons(#{integer() | atom() => pos_integer()}) -> unicode:chardata().
reasons(Reasons) ->
    listed([{reason(Reason), Count} || Reason := Count <- Reasons]).

listed(Counts) ->
    lists:join(", ", [[Name, ": ", erlmcp_bench_text:number(Count)]
                      || {Name, Count} <- lists:reverse(lists:keysort(2, Counts))]).

-doc """
Returns a table of the windows that have an error. Each row has the number of errors of each kind,
and the backlog at the end of the window. Only the first 40 windows are shown, and a line has the
number of the others. If no window has an error, the text is empty.
""".
-spec windows([erlmcp_load_course:window()]) -> unicode:chardata().
windows(Windows) ->
    case [Window || #{errors := Errors} = Window <- Windows, map_size(Errors) > 0] of
        [] ->
            [];
        Bad ->
            Shown = lists:sublist(Bad, ?WINDOWS),
            Lines = erlmcp_cli_table:lines([["until", "backlog", "errors"]
                                            | [row(Window) || Window <- Shown]]),
            [[[Line, $\n] || Line <- Lines],
             [io_lib:format("and ~b more windows with errors~n", [length(Bad) - ?WINDOWS])
              || length(Bad) > ?WINDOWS]]
    end.

row(#{at_s := At, backlog_requests := Backlog, errors := Errors}) ->
    [[erlmcp_bench_text:number(At), " s"], erlmcp_bench_text:number(Backlog),
     listed([{kind(Kind), Count} || Kind := Count <- Errors])].

kind(unsent) -> "unsent";
kind({Kind, Reason}) -> [atom_to_list(Kind), $\s, reason(Reason)].
