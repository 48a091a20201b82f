-module(erlmcp_cli_suggestion).
-moduledoc "Suggests names that a user may have meant. Pure.".

-export([closest/2, question/2]).

%% The least similarity by Jaro's measure, from 0 to 1; with one wrong letter in four it is 0.83.
-define(ALIKE, 0.8).

-doc """
Returns the name that is most similar to a word, or `none` if no name is similar enough. Case, and
the difference between `-` and `_`, do not count.

## Examples

```erlang
1> erlmcp_cli_suggestion:closest("lsit", ["list", "listen", "call"]).
{ok, "list"}
2> erlmcp_cli_suggestion:closest("getUsers", [~"get_user", ~"put"]).
{ok, ~"get_user"}
3> erlmcp_cli_suggestion:closest("anything", ["list", "call"]).
none
```
""".
-spec closest(Word :: unicode:chardata(), [Name]) -> {ok, Name} | none
      when Name :: unicode:chardata().
closest(Word, Names) ->
    Same = same(Word),
    Alike = [{string:jaro_similarity(Same, same(Name)), Name} || Name <- Names],
    case lists:sort(fun({One, _}, {Other, _}) -> One >= Other end, Alike) of
        [{Similarity, Name} | _] when Similarity >= ?ALIKE -> {ok, Name};
        _ -> none
    end.

same(Word) -> [C || C <- string:casefold(unicode:characters_to_list(Word)), C =/= $-, C =/= $_].

-doc """
Returns the end of a sentence: the question `did you mean` with the most similar name, or a full
stop if no name is similar enough.
""".
-spec question(Word :: unicode:chardata(), [Name :: unicode:chardata()]) -> unicode:chardata().
question(Word, Names) ->
    case closest(Word, Names) of
        {ok, Name} -> ["; did you mean `", Name, "`?"];
        none -> "."
    end.
