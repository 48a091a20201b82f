-module(erlmcp_cli_words).
-moduledoc """
Splits and orders the words of command lines: the command in `--stdio`, and the arguments of the
`erlmcp` command itself. Pure.
""".

-export([split/1, arranged/2, restored/1, options/1, unknown_options/2]).

%% A character that no argument of a program can contain.
-define(MARK, 0).

-doc """
Splits a command into words as a shell does: at white space that is not in quotes or after a
backslash. Other characters that shells interpret have no special meaning. `unfinished` means that a
quote has no end, or that nothing follows a backslash.

## Examples

```erlang
1> erlmcp_cli_words:split(~S(python 'my server.py' --name="a \" b" c\ d)).
{ok, ["python", "my server.py", "--name=a \" b", "c d"]}
2> erlmcp_cli_words:split("'open").
{error, unfinished}
```
""".
-spec split(string()) -> {ok, [string()]} | {error, unfinished}.
split(Text) -> between(Text, []).

between([], Words) -> {ok, lists:reverse(Words)};
between([C | Text], Words) when C =:= $\s; C =:= $\t; C =:= $\n -> between(Text, Words);
between(Text, Words) -> within(Text, [], Words).

within([], Word, Words) -> between([], [lists:reverse(Word) | Words]);
within([C | _] = Text, Word, Words) when C =:= $\s; C =:= $\t; C =:= $\n ->
    between(Text, [lists:reverse(Word) | Words]);
within([$\\, C | Text], Word, Words) -> within(Text, [C | Word], Words);
within([$' | Text], Word, Words) -> quoted($', Text, Word, Words);
within([$" | Text], Word, Words) -> quoted($", Text, Word, Words);
within("\\", _, _) -> {error, unfinished};
within([C | Text], Word, Words) -> within(Text, [C | Word], Words).

quoted(Quote, [Quote | Text], Word, Words) -> within(Text, Word, Words);
quoted($", [$\\, C | Text], Word, Words) when C =:= $"; C =:= $\\ ->
    quoted($", Text, [C | Word], Words);
quoted(Quote, [C | Text], Word, Words) -> quoted(Quote, Text, [C | Word], Words);
quoted(_, [], _, _) -> {error, unfinished}.

-doc """
Moves the options of a command in front of its other arguments, so that a user may type them
anywhere. An option at the end whose value is missing stays there. Negative numbers, `-`, and words
after `--`, are not options. `argparse` takes some of these for options, so it gets such words with
a mark, which `restored/1` removes.
""".
-spec arranged([string()], [argparse:argument()]) -> [string()].
arranged(Words, Specs) -> arranged(Words, Specs, [], []).

arranged([], _, Options, Others) ->
    lists:reverse(Options, lists:reverse(Others));
arranged(["--" | Words], Specs, Options, Others) ->
    arranged([], Specs, Options, lists:reverse([marked(Word) || Word <- Words], Others));
arranged(["-" | Words], Specs, Options, Others) ->
    arranged(Words, Specs, Options, [marked("-") | Others]);
arranged([[$-, C | _] = Word | Words], Specs, Options, Others) when C >= $0, C =< $9 ->
    arranged(Words, Specs, Options, [marked(Word) | Others]);
arranged([[$- | Name] = Word | Words], Specs, Options, Others) ->
    case {takes_value(Name, Specs), Words} of
        {true, [Value | Rest]} -> arranged(Rest, Specs, [Value, Word | Options], Others);
        %% Without a value, the option stays at the end: in front of the other words it would take
        %% one of them as its value.
        {true, []} -> arranged([], Specs, Options, [Word | Others]);
        _ -> arranged(Words, Specs, [Word | Options], Others)
    end;
arranged([Word | Words], Specs, Options, Others) ->
    arranged(Words, Specs, Options, [Word | Others]).

takes_value(Name, Specs) ->
    lists:any(fun(#{type := boolean}) -> false;
                 (#{long := Long}) when Long =:= Name -> true;
                 (#{short := Short}) -> [Short] =:= Name;
                 (_) -> false
              end, Specs).

-doc "Returns the long options of the given arguments as they are typed, and `--help`.".
-spec options([argparse:argument()]) -> [string()].
options(Specs) -> [[$- | Long] || #{long := Long} <- Specs] ++ ["--help"].

-doc """
Returns the options among the words that are none of the given arguments, each without `=` and its
value. Values of options, numbers, and words after `--` are not options.
""".
-spec unknown_options([string()], [argparse:argument()]) -> [string()].
unknown_options(["--" | _], _) ->
    [];
unknown_options([[$-, C | _] = Word | Words], Specs) when C < $0; C > $9 ->
    [Name | _] = string:split(Word, "="),
    Unknown = [Name || not is_option(tl(Name), Specs)],
    Rest = case {takes_value(tl(Word), Specs), Words} of
        {true, [_ | Others]} -> Others;
        _ -> Words
    end,
    Unknown ++ unknown_options(Rest, Specs);
unknown_options([_ | Words], Specs) ->
    unknown_options(Words, Specs);
unknown_options([], _) ->
    [].

%% A short option may be followed by its value without a space.
is_option(Name, Specs) ->
    lists:any(fun(#{long := Long}) when Long =:= Name -> true;
                 (#{short := Short}) -> lists:prefix([Short], Name);
                 (_) -> false
              end, Specs).

marked([$- | _] = Word) -> [?MARK | Word];
marked(Word) -> Word.

-doc "Returns the parsed arguments without the marks that `arranged/2` added.".
-spec restored(argparse:arg_map()) -> argparse:arg_map().
restored(Parsed) ->
    maps:map(fun(_, Value) -> unmarked(Value) end, Parsed).

unmarked([?MARK | Word]) -> Word;
unmarked([Word | _] = Words) when is_list(Word) -> [unmarked(Each) || Each <- Words];
unmarked(Value) -> Value.
