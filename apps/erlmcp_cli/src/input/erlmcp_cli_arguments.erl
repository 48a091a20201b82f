-module(erlmcp_cli_arguments).
-moduledoc "Parses the arguments of tools and prompts as the user types them.".

-export([read/1, typed/2, strings/1]).

-export_type([pairs/0]).

-type pairs() :: [{Name :: binary(), Value :: binary()}].

-define(STDIN_BYTES, 16_777_216).

-doc """
Parses the words of a command: one JSON object, or pairs of names and values. `-` stands for a JSON
object on stdin, of at most 16 MiB. A command without words has an empty object. `usage` has a
sentence for the user.
""".
-spec read([string()]) -> {ok, {object, map()} | {pairs, pairs()}} | {usage, unicode:chardata()}.
read([]) ->
    {ok, {object, #{}}};
read(["-"]) ->
    case erlmcp_cli_terminal:read_all(?STDIN_BYTES) of
        {ok, Text} -> object(Text, ~"stdin");
        {error, too_large} ->
            {usage, io_lib:format("stdin: at most ~b bytes were expected", [?STDIN_BYTES])};
        {error, folder} ->
            {usage, "stdin: a JSON object was expected, and not a folder"}
    end;
read([Text]) ->
    Bytes = unicode:characters_to_binary(Text),
    case string:trim(Bytes, leading) of
        <<C, _/binary>> when C =/= ${, C =/= $[ -> read_pairs([Text]);
        _ -> object(Bytes, Bytes)
    end;
read(Words) ->
    read_pairs(Words).

read_pairs(Words) ->
    maybe
        {ok, Pairs} ?= pairs(Words),
        {ok, {pairs, Pairs}}
    end.

object(Text, Source) ->
    case string:is_empty(string:trim(Text)) of
        true -> not_arguments(Source);
        false ->
            case erlmcp_cli_json:decode(Text) of
                {ok, #{} = Object} -> {ok, {object, Object}};
                {ok, _} -> not_arguments(Source);
                {error, Where} -> {usage, ["the arguments are not JSON: ", Where]}
            end
    end.

not_arguments(Word) ->
    {usage, [erlmcp_cli_text:one_line(Word), ": a JSON object was expected, or NAME=VALUE"]}.

pairs(Words) -> pairs(Words, []).

pairs([], Pairs) ->
    {ok, lists:reverse(Pairs)};
pairs([Word | Words], Pairs) ->
    case string:split(unicode:characters_to_binary(Word), "=") of
        [Name, Value] when Name =/= ~"" -> pairs(Words, [{Name, Value} | Pairs]);
        _ -> not_arguments(unicode:characters_to_binary(Word))
    end.

-doc """
Converts words of the form NAME=VALUE to arguments of a prompt, which are strings. `usage` has a
sentence about a word of another form.
""".
-spec strings([string()]) -> {ok, #{binary() => binary()}} | {usage, unicode:chardata()}.
strings(Words) ->
    maybe
        {ok, Pairs} ?= pairs(Words),
        {ok, maps:from_list(Pairs)}
    end.

-doc """
Converts pairs to arguments of a tool. Each value gets the type that the tool's input schema has for
its name. If the schema has no type for a name, the value is JSON if it can be decoded, and
otherwise a string. `usage` has a sentence about a value that is not of its type.
""".
-spec typed(pairs(), Schema :: map()) -> {ok, map()} | {usage, unicode:chardata()}.
typed(Pairs, Schema) ->
    Properties = case Schema of
        #{~"properties" := #{} = Found} -> Found;
        #{} -> #{}
    end,
    typed(Pairs, Properties, #{}).

typed([], _, Arguments) ->
    {ok, Arguments};
typed([{Name, Text} | Pairs], Properties, Arguments) ->
    case value(Text, types(maps:get(Name, Properties, #{}))) of
        {ok, Value} ->
            typed(Pairs, Properties, Arguments#{Name => Value});
        {error, Types} ->
            {usage, [erlmcp_cli_text:one_line(Name), "=", erlmcp_cli_text:one_line(Text), ": ",
                     lists:join(" or ", [erlmcp_cli_text:one_line(Type) || Type <- Types]),
                     " was expected", where(Text)]}
    end.

%% Returns where a text ceases to be JSON, if it looks like an array or an object.
where(<<C, _/binary>> = Text) when C =:= $[; C =:= ${ ->
    case erlmcp_cli_json:decode(Text) of
        {ok, _} -> "";
        {error, Where} -> ["; it is not JSON: ", Where]
    end;
where(_) ->
    "".

types(#{~"type" := Type}) when is_binary(Type) -> [Type];
types(#{~"type" := [_ | _] = Types}) -> [Type || Type <- Types, is_binary(Type)];
types(_) -> [].

value(Text, [~"string"]) ->
    {ok, Text};
%% Without a type in the schema, a value that is JSON is taken as JSON, and any other as a string.
value(Text, []) ->
    try
        {ok, json:decode(Text)}
    catch
        error:_ -> {ok, Text}
    end;
value(Text, Types) ->
    try json:decode(Text) of
        Value ->
            case lists:any(fun(Type) -> is(Type, Value) end, Types) of
                true -> {ok, Value};
                false -> as_string(Text, Types)
            end
    catch
        error:_ -> as_string(Text, Types)
    end.

as_string(Text, Types) ->
    case lists:member(~"string", Types) of
        true -> {ok, Text};
        false -> {error, Types}
    end.

is(~"integer", Value) -> is_integer(Value) orelse is_float(Value) andalso trunc(Value) == Value;
is(~"number", Value) -> is_number(Value);
is(~"boolean", Value) -> is_boolean(Value);
is(~"null", Value) -> Value =:= null;
is(~"array", Value) -> is_list(Value);
is(~"object", Value) -> is_map(Value);
is(_, _) -> false.
