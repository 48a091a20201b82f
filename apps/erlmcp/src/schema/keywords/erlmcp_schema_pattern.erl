-module(erlmcp_schema_pattern).
-moduledoc """
The patterns of schemas: regular expressions of ECMA-262 in its Unicode mode. Most patterns are
simple, and `m:erlmcp_schema_shape` matches them; `m:re` matches the others. Pure.

The steps of a match are bounded, and a value whose match takes too long is refused. This can also
happen with a harmless pattern: one with a repetition and without `^`, if it has no early match in a
text of more than 10,000 bytes.

Internal.
""".

-export([compile/3, is_pattern/1, match/3, halting/3]).

-export_type([pattern/0]).

-type pattern() :: {shape, erlmcp_schema_shape:shape()} | {re, Compiled :: term(), nature()}.

%% `Anchored`: whether a match can begin only at the start of the text. `Runs`: whether one step of
%% `m:re` can read the whole text. `Open`: how many steps may wait for the end of others.
-type nature() :: {Anchored :: boolean(), Runs :: boolean(), Open :: pos_integer()}.

%% A match is tried at most three times, with larger bounds and costs each time. These are the steps
%% that `m:re` may take, and the cost to the budget, for an empty text.
-define(TRIES, [{500, 20}, {20_000, 1_000}, {1_000_000, 50_000}]).
%% The steps of the tries if one step may read the whole text. The costs grow with the text's bytes.
%% Of a long text no try may take more steps than the first, so there are fewer tries.
-define(RUNS, [64, 20_000, 1_000_000]).
-define(MOST_BYTES, 100_000_000).
-define(BYTES_A_STEP, 500).

%% Bytes of memory that a match may take. Each waiting step keeps the positions of all groups.
-define(MEMORY, 32_000_000).

%% Bytes of a regular expression that is a value, for the format `regex`.
-define(LONGEST, 10_000).

-doc """
Compiles the pattern `Text`, which is at `Tokens` in the current subschema. Throws
`{pattern_too_long, Location, Limit}` if `Text` has more bytes than `Limit`, the context's
`max_pattern`. Throws `{invalid_pattern, Location, Text}` if `Text` is no regular expression.
""".
-spec compile(Text :: binary(), Tokens :: [binary()], erlmcp_schema_context:context()) -> pattern().
compile(Text, Tokens, #{max_pattern := Limit} = Context) ->
    byte_size(Text) =< Limit
        orelse throw({pattern_too_long, erlmcp_schema_context:location(Tokens, Context), Limit}),
    case erlmcp_schema_shape:compile(Text) of
        {ok, Shape} ->
            {shape, Shape};
        error ->
            case regex(Text) of
                {ok, Compiled} ->
                    {re, Compiled, nature(Text)};
                {error, invalid} ->
                    Location = erlmcp_schema_context:location(Tokens, Context),
                    throw({invalid_pattern, Location, Text})
            end
    end.

-doc """
Returns `true` if a text has at most 10,000 bytes, and is a regular expression of ECMA-262 that this
module can translate and compile.
""".
-spec is_pattern(binary()) -> boolean().
is_pattern(Text) ->
    byte_size(Text) =< ?LONGEST andalso element(1, regex(Text)) =:= ok.

%% The expression also matches the text before the match. Otherwise the bound on steps would hold
%% for each start alone.
regex(Text) ->
    maybe
        {ok, Translated} ?= erlmcp_schema_ecma:translate(Text),
        {ok, Compiled} ?= re:compile([~"^.*?(?:", Translated, ~")"],
                                     [unicode, dotall, dollar_endonly]),
        {ok, Compiled}
    else
        _ -> {error, invalid}
    end.

-doc """
Matches `Text`. Returns what remains of `Budget` if `Text` matches the pattern, and `bnot` of that
number if not. Bytes that are not UTF-8 do not match. Throws `pattern` if the match takes too long,
and `budget` if it costs more than `Budget`.
""".
-spec match(Text :: binary(), pattern(), Budget :: non_neg_integer()) -> integer().
match(Text, {shape, Shape}, Budget) when is_binary(Text) ->
    Balance = erlmcp_schema_run:spend(byte_size(Text) bsr 5, Budget),
    case erlmcp_schema_shape:match(Text, Shape) of
        true -> Balance;
        false -> bnot Balance
    end;
match(Text, {re, Compiled, {_, _, Open} = Nature}, Budget) when is_binary(Text) ->
    Options = [{capture, none}, report_errors, {match_limit_recursion, Open}],
    run(tries(Nature, byte_size(Text)), Text, Compiled, Options, Budget);
%% A key that is not a string: a handler of the server returned it by mistake.
match(_, _, Budget) ->
    bnot Budget.

tries({_, false, _}, Size) ->
    [{Steps + 4 * Size, Cost + Size bsr 3} || {Steps, Cost} <- ?TRIES];
tries({Anchored, true, _}, Size) ->
    %% Each position where a match may begin costs at least one step.
    Starts = case Anchored of
        true -> 0;
        false -> 4 * Size
    end,
    Most = max(hd(?RUNS), ?MOST_BYTES div (Size + 1)),
    [{Limit, 20 + Limit * Size div ?BYTES_A_STEP}
     || Limit <- lists:uniq([min(Steps + Starts, Most) || Steps <- ?RUNS])].

run([], _, _, _, _) ->
    throw(pattern);
run([{Limit, Cost} | Tries], Text, Compiled, Options, Budget) ->
    Balance = erlmcp_schema_run:spend(Cost, Budget),
    try re:run(Text, Compiled, [{match_limit, Limit} | Options]) of
        match -> Balance;
        nomatch -> bnot Balance;
        {error, _} -> run(Tries, Text, Compiled, Options, Balance)
    catch
        %% The text is not UTF-8.
        error:badarg -> bnot Balance
    end.

nature(Text) ->
    Groups = length(binary:matches(Text, ~"(")),
    {anchored(Text), runs(Text, none), ?MEMORY div (128 + 16 * Groups)}.

anchored(<<"^", Rest/binary>>) -> not alternates(Rest, 0);
anchored(_) -> false.

alternates(<<"\\", _, Rest/binary>>, Depth) -> alternates(Rest, Depth);
alternates(<<"[", Rest/binary>>, Depth) -> alternates(after_class(Rest), Depth);
alternates(<<"(", Rest/binary>>, Depth) -> alternates(Rest, Depth + 1);
alternates(<<")", Rest/binary>>, Depth) -> alternates(Rest, Depth - 1);
alternates(<<"|", _/binary>>, 0) -> true;
alternates(<<_, Rest/binary>>, Depth) -> alternates(Rest, Depth);
alternates(<<>>, _) -> false.

%% For `m:re` a repeated character or class is one step, however long the text, and so is a back
%% reference.
runs(<<"\\", C, _/binary>>, _) when C >= $1, C =< $9; C =:= $k -> true;
runs(<<"\\", _, Rest/binary>>, _) -> runs(Rest, one);
runs(<<"[", Rest/binary>>, _) -> runs(after_class(Rest), one);
runs(<<C, _/binary>>, one) when C =:= $*; C =:= $+ -> true;
runs(<<"{", Rest/binary>>, one) -> is_long(Rest) orelse runs(Rest, one);
runs(<<")", Rest/binary>>, _) -> runs(Rest, group);
runs(<<_, Rest/binary>>, _) -> runs(Rest, one);
runs(<<>>, _) -> false.

after_class(<<"\\", _, Rest/binary>>) -> after_class(Rest);
after_class(<<"]", Rest/binary>>) -> Rest;
after_class(<<_, Rest/binary>>) -> after_class(Rest);
after_class(<<>>) -> <<>>.

%% {n,}, or a number of three digits.
is_long(Counts) ->
    re:run(Counts, "^[0-9]*(?:,[}]|,?[0-9]{3})", [{capture, none}]) =:= match.

-doc """
Wraps a finder that matches the pattern `Text` for `Keyword`. If a match takes too long, the wrapped
finder throws `{halt, Error}`, and the validation ends with that error.
""".
-spec halting(Keyword :: binary(), Text :: binary(), erlmcp_schema_run:finder()) ->
    erlmcp_schema_run:finder().
halting(Keyword, Text, Finder) ->
    case erlmcp_schema_shape:compile(Text) of
        {ok, _} ->
            Finder;
        error ->
            fun(V, I, S, Run) ->
                try
                    Finder(V, I, S, Run)
                catch
                    throw:pattern -> throw({halt, {halted, Text, V, I, [Keyword | S]}})
                end
            end
    end.
