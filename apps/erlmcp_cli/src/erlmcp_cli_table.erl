-module(erlmcp_cli_table).
-moduledoc "Rows of cells as lines whose columns stand below each other. Pure.".

-export([lines/1, lines/2]).

-type row() :: [unicode:chardata(), ...].

-doc "The same as `lines/2` with `left`.".
-spec lines([row()]) -> [unicode:chardata()].
lines(Rows) -> lines(Rows, left).

-doc """
A line for each row, without its end, two spaces between its columns. The cells begin below each
other, or, but for the first of each row, end there.

## Examples

```erlang
1> Text = fun(Lines) -> [unicode:characters_to_binary(Line) || Line <- Lines] end.
2> Text(erlmcp_cli_table:lines([["a", "bc"], ["de", ""]])).
[~"a   bc", ~"de"]
3> Text(erlmcp_cli_table:lines([["a", "1"], ["b", "23"]], right)).
[~"a   1", ~"b  23"]
```
""".
-spec lines([row()], left | right) -> [unicode:chardata()].
lines([], _) ->
    [];
lines(Rows, Cells) ->
    Widths = [lists:max([string:length(Cell) || Cell <- Column]) || Column <- columns(Rows)],
    [string:trim(lists:join("  ", padded(Row, Widths, Cells)), trailing) || Row <- Rows].

columns([[] | _]) -> [];
columns(Rows) -> [[hd(Row) || Row <- Rows] | columns([tl(Row) || Row <- Rows])].

padded([First | Cells], [Width | Widths], Side) ->
    Direction = case Side of
        left -> trailing;
        right -> leading
    end,
    [string:pad(First, Width)
     | [string:pad(Cell, Most, Direction) || {Cell, Most} <- lists:zip(Cells, Widths)]].
