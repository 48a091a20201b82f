-module(erlmcp_cli_table).
-moduledoc "Formats rows of cells as lines whose columns stand below each other. Pure.".

-export([lines/1, lines/2]).

-type row() :: [erlmcp_cli_output:styled(), ...].

-doc "Returns the lines of `lines/2` with `left`.".
-spec lines([row()]) -> [erlmcp_cli_output:styled()].
lines(Rows) -> lines(Rows, left).

-doc """
Returns a line for each row, without a newline, with two spaces between columns. All rows must have
the same number of cells. With `left`, cells are aligned at their left end. With `right`, cells are
aligned at their right end, except in the first column. A newline or tab in a cell becomes a space,
so that a text that somebody else wrote cannot begin a line.

## Examples

```erlang
1> Text = fun(Lines) -> [unicode:characters_to_binary(Line) || Line <- Lines] end.
2> Text(erlmcp_cli_table:lines([["a", "bc"], ["de", ""]])).
[~"a   bc", ~"de"]
3> Text(erlmcp_cli_table:lines([["a", "1"], ["b", "23"]], right)).
[~"a   1", ~"b  23"]
4> Text(erlmcp_cli_table:lines([["a\nb", ~"c\td"]])).
[~"a b  c d"]
```
""".
-spec lines([row()], left | right) -> [erlmcp_cli_output:styled()].
lines([], _) ->
    [];
lines(Texts, Cells) ->
    Rows = [[erlmcp_cli_output:one_line(Text) || Text <- Row] || Row <- Texts],
    Widths = [lists:max([width(Cell) || Cell <- Column]) || Column <- columns(Rows)],
    [lists:join("  ", padded(Row, Widths, Cells)) || Row <- Rows].

width(Cell) -> string:length(erlmcp_cli_output:plain(Cell)).

columns([[] | _]) -> [];
columns(Rows) -> [[hd(Row) || Row <- Rows] | columns([tl(Row) || Row <- Rows])].

padded([First | Cells], [Width | Widths], Side) ->
    trimmed([{First, Width, left}
             | [{Cell, Most, Side} || {Cell, Most} <- lists:zip(Cells, Widths)]]).

%% Removes spaces at the end of a line.
trimmed(Cells) ->
    case lists:dropwhile(fun({Cell, _, _}) -> width(Cell) =:= 0 end, lists:reverse(Cells)) of
        [] -> [];
        [{Last, Width, Side} | Before] ->
            lists:reverse([case Side of
                               left -> Last;
                               right -> [spaces(Last, Width), Last]
                           end | [cell(Cell) || Cell <- Before]])
    end.

cell({Cell, Width, left}) -> [Cell, spaces(Cell, Width)];
cell({Cell, Width, right}) -> [spaces(Cell, Width), Cell].

spaces(Cell, Width) -> lists:duplicate(Width - width(Cell), $\s).
