-module(erlmcp_value_text).
-moduledoc """
Describes values, names and types for the sentences of errors. Pure.

Internal.
""".

-export([field/1, name/1, value/1, literal/1, type/1, list/2, count/2]).
-export([reason/1]).

-define(SHOWN, 60).
-define(SHOWN_OF_NAME, 200).

-doc """
Returns the name that a sentence uses for the value at a JSON pointer: the pointer, as `name/1`
returns it, or `The value` for the root.
""".
-spec field(Pointer :: binary()) -> binary().
field(~"") -> ~"The value";
field(Pointer) -> iolist_to_binary(name(Pointer)).

-doc """
Returns a name that a peer sent, for use in a sentence. A name of more than 200 bytes is cut. A name
with characters that a terminal would obey or hide is put in quotes, with everything except
printable ASCII escaped. A name that is not UTF-8 is shown by `erlmcp_printable:quoted/1`.
""".
-spec name(binary()) -> iodata().
name(Name) ->
    Shown = cut(Name, ?SHOWN_OF_NAME),
    case unicode:characters_to_binary(Shown) of
        Text when is_binary(Text) ->
            case is_harmless(Text) andalso << <<C>> || <<C>> <= Text, C < $\s >> =:= ~"" of
                true -> Text;
                false -> escaped(Text)
            end;
        _ ->
            erlmcp_printable:quoted(Name)
    end.

-doc """
Describes a JSON value by its type, and by its content or size, such as `the number 5` or
`an array of 2 items`. Strings and numbers of more than 60 bytes are cut. A term that JSON does not
have is `nothing that JSON has`.
""".
-spec value(term()) -> iodata().
value(V) when is_binary(V) -> [~"the string ", quote(V, ~"of bytes that are not UTF-8")];
value(V) when is_number(V) -> [~"the number ", cut(iolist_to_binary(json:encode(V)), ?SHOWN)];
value(V) when is_boolean(V); V =:= null -> atom_to_binary(V);
value([]) -> ~"an empty array";
value(V) when is_list(V) -> [~"an array of ", count(list_size(V), ~"item")];
value(V) when is_map(V), map_size(V) =:= 0 -> ~"an empty object";
value(V) when is_map(V) -> [~"an object of ", count(map_size(V), ~"member")];
value(_) -> ~"nothing that JSON has".

%% A list from a handler may be improper.
list_size(List) ->
    try length(List) catch error:badarg -> 1 end.

quote(V) ->
    quote(V, erlmcp_printable:quoted(V)).

quote(V, NoText) ->
    case unicode:characters_to_binary(cut(V, ?SHOWN)) of
        Text when is_binary(Text) ->
            case is_harmless(Text) of
                true -> json:encode_binary(Text);
                false -> escaped(Text)
            end;
        _ ->
            NoText
    end.

%% Returns `true` for a text without characters that a terminal would obey or hide. Those that JSON
%% escapes in any case do not matter.
is_harmless(Text) ->
    << <<C/utf8>> || <<C/utf8>> <= Text, C < $\s orelse erlmcp_printable:is_visible(C) >> =:= Text.

%% In JSON, with all that is no printable ASCII as escapes. OTP leaves DEL as it is.
escaped(Text) ->
    binary:replace(iolist_to_binary(json:encode_binary_escape_all(Text)), <<16#7f>>, ~B"\u007F",
                   [global]).

cut(Text, Limit) when byte_size(Text) =< Limit ->
    Text;
cut(Text, Limit) ->
    <<(whole(binary_part(Text, 0, Limit)))/binary, "..."/utf8>>.

%% Removes a character at the end that was cut in two.
whole(Part) ->
    case unicode:characters_to_binary(Part) of
        {_, Good, _} when is_binary(Good) -> Good;
        Whole -> Whole
    end.

-doc """
Describes a value as `value/1` does, without the type if the value itself shows it, such as `5`.
""".
-spec literal(term()) -> iodata().
literal(V) when is_binary(V) -> quote(V);
literal(V) when is_number(V) -> tl(value(V));
literal(V) -> value(V).

-doc """
Returns the name of a JSON type with its article, such as `an array`. The type `null` has no
article.
""".
-spec type(binary()) -> iodata().
type(~"null") -> ~"null";
type(<<C, _/binary>> = Type) when C =:= $a; C =:= $i; C =:= $o -> [~"an ", Type];
type(Type) -> [~"a ", Type].

-doc """
Joins texts to an enumeration, with the word `Last` before the last text. Of more than 10 texts, the
enumeration has the first 9, and the number of the others. An empty list becomes `none`.
""".
-spec list([iodata()], Last :: binary()) -> iodata().
list([], _) -> ~"none";
list([One], _) -> One;
list(Many, Last) when length(Many) > 10 ->
    [lists:join(~", ", lists:sublist(Many, 9)), $\s, Last, $\s,
     integer_to_binary(length(Many) - 9), ~" others"];
list(Many, Last) -> [lists:join(~", ", lists:droplast(Many)), $\s, Last, $\s, lists:last(Many)].

-doc "Returns `Number` and `Noun`, which gets an `s` unless the number is 1.".
-spec count(Number :: integer(), Noun :: binary()) -> iodata().
count(1, Thing) -> [~"1 ", Thing];
count(N, Thing) -> [integer_to_binary(N), $\s, Thing, $s].

-doc "Returns a sentence that says why a schema cannot be compiled.".
-spec reason(erlmcp_schema:reason()) -> binary().
reason(Reason) ->
    iolist_to_binary(sentence(Reason)).

sentence({unsupported_dialect, Uri}) ->
    [~"$schema names the dialect ", quote(Uri),
     ~", but JSON Schema 2020-12, 2019-09 and draft-07 are supported."];
sentence({unsupported_vocabulary, Uri}) ->
    [~"The meta-schema requires the vocabulary ", quote(Uri), ~", which is not supported."];
sentence({invalid_schema, [#{message := Message} | _]}) ->
    [~"The schema is not valid: ", Message];
sentence({invalid_keyword, Path, Keyword}) ->
    [field(Path), ~" has an invalid ", Keyword, ~"."];
sentence({invalid_pattern, Path, Pattern}) ->
    [field(Path), ~" is not a regular expression of ECMA-262 that is supported: ",
     quote(Pattern), ~"."];
sentence({pattern_too_long, Path, Limit}) ->
    [field(Path), ~" is a regular expression of more than ", count(Limit, ~"byte"), ~"."];
sentence({unresolved_ref, Path, Ref}) ->
    [field(Path), ~" refers to ", quote(Ref), ~", which is not there and is not fetched."];
sentence({endless_ref, Path}) ->
    [field(Path), ~" refers to itself for the same value, without end."];
sentence({duplicate_id, Uri}) ->
    [~"Two different schemas have the address ", quote(Uri), ~"."];
sentence({too_deep, Limit}) ->
    [~"The schema is nested deeper than ", count(Limit, ~"level"), ~"."];
sentence({too_many_subschemas, Limit}) ->
    [~"The schema has more than ", count(Limit, ~"subschema"), ~"."];
sentence(budget) ->
    ~"The schema is too large to be checked against its meta-schema.".
