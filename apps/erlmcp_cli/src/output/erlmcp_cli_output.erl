-module(erlmcp_cli_output).
-moduledoc """
Writes the output of a command on stdout and on stderr. Characters that a terminal would obey, or
not show, are spelled out (`erlmcp_printable:text/1`). So no text of a server can control the
terminal or be hidden from the user. The only control sequences are the command's own: for styles,
to clear the screen, and for the progress bar.

A text may be styled: `{bold, Text}` and `{red, Text}` within it. Styles are for terminals, unless
`NO_COLOR` has a value (no-color.org), or `TERM` is not set or says `dumb`.
""".

-export([print/1, clear/0, note/1, complain/1, rendered/2, plain/1, one_line/1]).

-export_type([styled/0]).

-type styled() :: char() | binary() | maybe_improper_list(styled(), binary() | [])
                | {bold | red, styled()}.

-doc "Writes a styled text on stdout. Raises `terminated` once the reader of stdout is gone.".
-spec print(styled()) -> ok.
print(Text) ->
    io:put_chars(rendered(Text, 1)).

-doc "Clears the terminal if stdout is one. The next text stands at its top.".
-spec clear() -> ok.
clear() ->
    case erlmcp_cli_terminal:is_terminal(1) of
        true -> io:put_chars(~"\e[H\e[2J");
        false -> ok
    end.

-doc "Writes a styled text on stderr.".
-spec note(styled()) -> ok.
note(Text) ->
    io:put_chars(standard_error, rendered(Text, 2)).

-doc """
Writes an error on stderr with a newline, without its own styles, and in red if stderr has colours.
""".
-spec complain(styled()) -> ok.
complain(Text) ->
    Trimmed = string:trim(rendered(plain(Text), none), trailing),
    io:put_chars(standard_error, [rendered({red, Trimmed}, 2), $\n]).

-doc """
Returns the bytes of a styled text for a descriptor of the command. The text has its styles if the
descriptor is a terminal that shows styles. If `Descriptor` is `none`, the text has no styles.
""".
-spec rendered(styled(), Descriptor :: 1 | 2 | none) -> binary().
rendered(Text, Descriptor) ->
    iolist_to_binary(walk(Text, has_colours(Descriptor))).

walk(C, _) when is_integer(C) -> erlmcp_printable:text(<<C/utf8>>);
walk(Text, _) when is_binary(Text) -> erlmcp_printable:text(Text);
walk([], _) -> [];
walk([First | Others], Colours) -> [walk(First, Colours) | walk(Others, Colours)];
walk({Style, Text}, true) -> [sequence(Style), walk(Text, true), ~"\e[0m"];
walk({_, Text}, false) -> walk(Text, false).

sequence(bold) -> ~"\e[1m";
sequence(red) -> ~"\e[31m".

-doc "Returns a text without its styles.".
-spec plain(styled()) -> unicode:chardata().
plain([]) -> [];
plain([First | Others]) -> [plain(First) | plain(Others)];
plain({_, Text}) -> plain(Text);
plain(C) when is_integer(C) -> [C];
plain(Text) when is_binary(Text) -> Text.

-doc """
Returns a text in one line: each newline or tab becomes a space. So a text that somebody else wrote
can neither begin a line nor move the text behind it.

## Examples

```erlang
1> erlmcp_cli_output:one_line({bold, ["a\n", ~"b\tc"]}).
{bold, ["a ", ~"b c"]}
```
""".
-spec one_line(styled()) -> styled().
one_line(Text) when is_binary(Text) -> binary:replace(Text, [~"\n", ~"\t"], ~" ", [global]);
one_line([]) -> [];
one_line([First | Others]) -> [one_line(First) | one_line(Others)];
one_line({Style, Text}) -> {Style, one_line(Text)};
one_line(C) when C =:= $\n; C =:= $\t -> $\s;
one_line(C) when is_integer(C) -> C.

has_colours(none) ->
    false;
has_colours(Descriptor) ->
    %% The launcher sets the application's environment, which exists once the application is loaded.
    _ = application:load(erlmcp_cli),
    erlmcp_cli_terminal:is_terminal(Descriptor)
        andalso os:getenv("NO_COLOR", "") =:= ""
        andalso not lists:member(os:getenv("TERM", "dumb"), ["", "dumb"]).
