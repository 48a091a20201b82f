-module(erlmcp_uri_template).
-moduledoc """
URI templates of all four levels (RFC 6570): expands them, and matches them against a URI. Pure.

A client makes the URI of a resource from a resource template:

```erlang
{ok, Template} = erlmcp_uri_template:compile(~"repo://{owner}/{+path}"),
Uri = erlmcp_uri_template:expand(Template, #{~"owner" => ~"erlang", ~"path" => ~"lib"})
```

The RFC does not define matching, so these are erlmcp's own rules. A URI matches if it can be read
from the left to its end. Each variable takes as many characters as it can, except those that its
operator excludes:

| operator | a value contains no |
| --- | --- |
| none, `.`, `/`, `;` | `/`, `?`, `#` |
| `?`, `&` | `#` |
| `+`, `#` | (may contain any character) |

- In an expression with several variables and no operator, a value contains no `,`, unless its
  variable has `*`.
- An expression with the operator `?`, `;` or `&` excludes this character from the values of other
  expressions, except those of `#`, `?`, `;` and `&`.
- Only variables of `?`, `;` and `&` may be absent or empty. They may stand in any order. A URI with
  a parameter that the template does not have does not match.
- A URI does not match if a value is longer than its prefix allows (`{id:3}`).

Values are percent-decoded and valid UTF-8, and otherwise unrestricted: `..`, a `/` that was `%2F`,
a control character. Matching takes time linear in the URI, for any URI.
""".

-export([compile/1, variables/1]).
-export([match/2, expand/2]).

-export_type([template/0, reason/0, bindings/0, value/0]).

-record(template, {parts :: [part()], steps :: [step()]}).

-doc "A template that is ready to be expanded and matched.".
-opaque template() :: #template{}.
-type part() :: Literal :: binary() | {operator(), [variable(), ...]}.
-type operator() :: none | $+ | $# | $. | $/ | $; | $? | $&.
-type variable() :: {Name :: binary(), none | explode | {prefix, pos_integer()}}.
-doc "The reason why a text is not a template, with the part that is wrong.".
-type reason() :: {invalid_literal | invalid_expression, Text :: binary()}.
-doc "Values of variables by their names.".
-type bindings() :: #{Name :: binary() => binary() | [binary()]}.
-doc "A value: text or a number, a list, an associative value, or `null` for none.".
-type value() ::
    scalar() | [scalar()] | [{Key :: scalar(), scalar()}] | #{binary() => scalar()} | null.
-doc "Text or a number.".
-type scalar() :: binary() | number().

%% The steps of reading a URI: a literal; a value, which ends before a stop at the latest;
%% parameters, which end at the first stop and may be absent.
-type step() ::
    Literal :: binary()
    | {value, Stops :: [char()], Separator :: binary(), variable()}
    | {parameters, First :: binary(), Stops :: [binary()], Separator :: binary(), [variable()]}.

-define(CHARACTER, "(?:[0-9A-Za-z_]|%[[:xdigit:]]{2})").
-define(VARIABLE, "^(" ?CHARACTER "+(?:\\." ?CHARACTER "+)*)(\\*|:[1-9][0-9]{0,3})?$").
-define(LITERAL, "^(?:[^\\x00-\\x20\\x7f\"%<>\\\\^`{|}]|%[[:xdigit:]]{2})*$").

%% RFC 9110 recommends to support request targets of 8000 bytes.
-define(MAX_URI, 8192).

-define(IS_HEX(C),
    (C >= $0 andalso C =< $9 orelse C >= $A andalso C =< $F orelse C >= $a andalso C =< $f)
).
-define(IS_UNRESERVED(C),
    (C >= $a andalso C =< $z orelse C >= $A andalso C =< $Z orelse C >= $0 andalso C =< $9 orelse
        C =:= $- orelse C =:= $. orelse C =:= $_ orelse C =:= $~)
).

-doc """
Compiles a text to a template. The reason of an error has the part of the text that is wrong.

## Examples

```erlang
1> {ok, Template} = erlmcp_uri_template:compile(~"file:///{+path}{?line}").
2> erlmcp_uri_template:variables(Template).
[~"path", ~"line"]
3> erlmcp_uri_template:compile(~"note:///{the id}").
{error, {invalid_expression, ~"{the id}"}}
```
""".
-spec compile(binary()) -> {ok, template()} | {error, reason()}.
compile(Text) ->
    try
        is_utf8(Text) orelse throw({invalid_literal, Text}),
        Pieces = re:split(Text, "(\\{[^}]*\\})", [{return, binary}]),
        Parts = [part(Piece) || Piece <- Pieces, Piece =/= ~""],
        {ok, #template{parts = Parts, steps = steps(Parts)}}
    catch
        throw:Reason -> {error, Reason}
    end.

part(<<"{", Rest/binary>> = Text) when binary_part(Rest, byte_size(Rest), -1) =:= ~"}" ->
    case binary_part(Rest, 0, byte_size(Rest) - 1) of
        <<C, Names/binary>> when
            C =:= $+; C =:= $#; C =:= $.; C =:= $/; C =:= $;; C =:= $?; C =:= $&
        ->
            {C, variable_list(Names, Text)};
        Names ->
            {none, variable_list(Names, Text)}
    end;
part(Text) ->
    case re:run(Text, ?LITERAL, [dollar_endonly, {capture, none}]) of
        match -> iolist_to_binary(encode(Text, reserved));
        nomatch -> throw({invalid_literal, Text})
    end.

variable_list(Names, Expression) ->
    [case re:run(Name, ?VARIABLE, [dollar_endonly, {capture, [1, 2], binary}]) of
         {match, [Variable, ~""]} -> {Variable, none};
         {match, [Variable, ~"*"]} -> {Variable, explode};
         {match, [Variable, <<":", N/binary>>]} -> {Variable, {prefix, binary_to_integer(N)}};
         nomatch -> throw({invalid_expression, Expression})
     end || Name <- binary:split(Names, ~",", [global])].

%% RFC 6570, appendix A: the text before the first value, between two, and after an empty one's
%% name, and the characters that are not encoded.
operator(none) -> {~"", ~",", unnamed, unreserved};
operator($+) -> {~"", ~",", unnamed, reserved};
operator($#) -> {~"#", ~",", unnamed, reserved};
operator($.) -> {~".", ~".", unnamed, unreserved};
operator($/) -> {~"/", ~"/", unnamed, unreserved};
operator($;) -> {~";", ~";", {named, ~""}, unreserved};
operator($?) -> {~"?", ~"&", {named, ~"="}, unreserved};
operator($&) -> {~"&", ~"&", {named, ~"="}, unreserved}.

steps(Parts) ->
    Parameters = [C || {C, _} <- Parts, C =:= $; orelse C =:= $? orelse C =:= $&],
    join_parameters(lists:flatmap(fun(Part) -> steps(Part, Parameters) end, Parts)).

steps({Operator, Variables}, Parameters) ->
    case operator(Operator) of
        {~";", Separator, {named, _}, _} ->
            [{parameters, ~";", [~"/", ~"?", ~"#"], Separator, Variables}];
        {First, Separator, {named, _}, _} ->
            [{parameters, First, [~"#"], Separator, Variables}];
        {First, Separator, unnamed, _} ->
            Stops = stops(Operator, Variables) ++ [C || C <- Parameters, Operator =/= $#],
            [First | lists:join(Separator, [value_step(V, Stops, Separator) || V <- Variables])]
    end;
steps(Literal, _) ->
    [Literal].

stops($+, _) -> "";
stops($#, _) -> "";
stops(none, [_, _ | _]) -> ",/?#";
stops(_, _) -> "/?#".

value_step({_, explode} = Variable, Stops, Separator) ->
    {value, Stops -- binary_to_list(Separator), Separator, Variable};
value_step(Variable, Stops, Separator) ->
    {value, Stops, Separator, Variable}.

%% {?a}{&b} is {?a,b}: without this, b could not stand before a.
join_parameters([{parameters, First, Stops, Separator, Variables},
                 {parameters, Separator, Stops, Separator, More} | Steps]) ->
    join_parameters([{parameters, First, Stops, Separator, Variables ++ More} | Steps]);
join_parameters([Step | Steps]) ->
    [Step | join_parameters(Steps)];
join_parameters([]) ->
    [].

-doc "Returns the names of the variables, each once, in the template's order.".
-spec variables(template()) -> [binary()].
variables(#template{parts = Parts}) ->
    lists:uniq([Name || {_, Variables} <- Parts, {Name, _} <- Variables]).

-doc """
Returns the values of the variables in a URI: a binary each, and a list of binaries for a variable
with `*`. A variable that the URI does not have is missing in the map. Returns `nomatch` for a URI
that does not match, or has more than 8192 bytes.

## Examples

```erlang
1> {ok, Template} = erlmcp_uri_template:compile(~"repo://{owner}/{+path}{?ref,line}").
2> erlmcp_uri_template:match(~"repo://erlang/lib/a%20b.erl?line=7", Template).
{ok, #{~"owner" => ~"erlang", ~"path" => ~"lib/a b.erl", ~"line" => ~"7"}}
3> erlmcp_uri_template:match(~"repo://erlang/lib/a%2", Template).
nomatch
```
""".
-spec match(Uri :: binary(), template()) -> {ok, bindings()} | nomatch.
match(Uri, #template{steps = Steps}) when byte_size(Uri) =< ?MAX_URI ->
    try
        case read(Steps, Uri, #{}) of
            {ok, Found} -> {ok, bindings(Found)};
            {dead, _} -> nomatch
        end
    catch
        throw:nomatch -> nomatch
    end;
match(_, _) ->
    nomatch.

%% `Dead` has a number of bytes for each step, counted from the last step. Every end of the step's
%% value with at most that many bytes behind it was tried in vain. A value that begins earlier is
%% not extended to these ends again. So matching takes linear time.
read([], ~"", _) ->
    {ok, []};
read([], _, Dead) ->
    {dead, Dead};
read([{value, Stops, Separator, Variable} | Steps], Uri, Dead) ->
    Ends = ends(Uri, 0, Stops, maps:get(length(Steps), Dead, none), []),
    read_value(Ends, {Separator, Variable}, Steps, Uri, Dead);
read([{parameters, First, Stops, Separator, Variables} | Steps], Uri, Dead) ->
    case Uri of
        <<First:1/binary, Rest/binary>> ->
            [Text | _] = binary:split(Rest, Stops),
            <<_:(byte_size(Text))/binary, More/binary>> = Rest,
            case read(Steps, More, Dead) of
                {ok, Found} -> {ok, [{Text, {Separator, Variables}} | Found]};
                {dead, StillDead} -> {dead, StillDead}
            end;
        _ ->
            read(Steps, Uri, Dead)
    end;
read([Literal | Steps], Uri, Dead) ->
    case Uri of
        <<Literal:(byte_size(Literal))/binary, Rest/binary>> -> read(Steps, Rest, Dead);
        _ -> {dead, Dead}
    end.

read_value([], _, _, _, Dead) ->
    {dead, Dead};
read_value([Size | Ends], How, Steps, Uri, Dead) ->
    <<Text:Size/binary, Rest/binary>> = Uri,
    case read(Steps, Rest, Dead) of
        {ok, Found} ->
            {ok, [{Text, How} | Found]};
        {dead, StillDead} ->
            read_value(Ends, How, Steps, Uri, StillDead#{length(Steps) => byte_size(Rest)})
    end.

%% Returns the sizes that a value may have, the longest first.
ends(Uri, Size, Stops, Dead, Ends) ->
    <<_:Size/binary, Rest/binary>> = Uri,
    case character_size(Rest, Stops) of
        More when More > 0, byte_size(Rest) - More =/= Dead ->
            ends(Uri, Size + More, Stops, Dead, [Size + More | Ends]);
        _ ->
            Ends
    end.

%% The escapes of one character stay together. A value contains no broken escapes and no invalid
%% UTF-8.
character_size(<<$%, H, L, _/binary>> = Text, _) when ?IS_HEX(H), ?IS_HEX(L) ->
    case 3 * utf8_size(H) of
        Size when Size =< byte_size(Text) -> Size;
        _ -> 0
    end;
character_size(<<C/utf8, Rest/binary>> = Text, Stops) when C =/= $% ->
    case lists:member(C, Stops) of
        true -> 0;
        false -> byte_size(Text) - byte_size(Rest)
    end;
character_size(_, _) ->
    0.

%% Returns the bytes of a character, from the first hexadecimal digit of its first byte.
utf8_size(H) when H =:= $C; H =:= $c; H =:= $D; H =:= $d -> 2;
utf8_size(H) when H =:= $E; H =:= $e -> 3;
utf8_size(H) when H =:= $F; H =:= $f -> 4;
utf8_size(_) -> 1.

bindings(Found) ->
    Values = lists:flatmap(fun values/1, Found),
    %% If a variable occurs twice, the greater value stays: the whole value and not its prefix.
    Bindings = maps:from_list(lists:sort([{Name, Value} || {{Name, _}, Value} <- Values])),
    Agrees = fun({{Name, Modifier}, Value}) ->
        cut(Modifier, maps:get(Name, Bindings)) =:= Value
    end,
    lists:all(Agrees, Values) orelse throw(nomatch),
    Bindings.

values({Text, {Separator, Variables}}) when is_list(Variables) ->
    Parameters = [parameter(binary:split(Parameter, ~"="))
                  || Parameter <- binary:split(Text, Separator, [global])],
    Given = maps:groups_from_list(
        fun({Name, _}) -> Name end, fun({_, Value}) -> Value end, Parameters
    ),
    Names = [Name || {Name, _} <- Variables],
    map_size(maps:without(Names, Given)) =:= 0 orelse throw(nomatch),
    [case {Modifier, Values} of
         {explode, _} -> {Variable, Values};
         {_, [Value]} -> {Variable, Value};
         _ -> throw(nomatch)
     end || {Name, Modifier} = Variable <- Variables, {ok, Values} <- [maps:find(Name, Given)]];
values({Text, {Separator, {_, explode} = Variable}}) ->
    [{Variable, [decode(Value) || Value <- binary:split(Text, Separator, [global])]}];
values({Text, {_, Variable}}) ->
    [{Variable, decode(Text)}].

parameter([Name, Value]) -> {Name, decode(Value)};
parameter([Name]) -> {Name, ~""}.

decode(Text) ->
    Value = decode(Text, ~""),
    is_utf8(Value) orelse throw(nomatch),
    Value.

decode(~"", Value) -> Value;
decode(<<$%, H, L, Rest/binary>>, Value) when ?IS_HEX(H), ?IS_HEX(L) ->
    decode(Rest, <<Value/binary, (binary_to_integer(<<H, L>>, 16))>>);
decode(<<C, Rest/binary>>, Value) when C =/= $% ->
    decode(Rest, <<Value/binary, C>>);
decode(_, _) ->
    throw(nomatch).

is_utf8(Text) ->
    unicode:characters_to_binary(Text) =:= Text.

-doc """
Returns the URI of a template with values for its variables. A variable that is absent, `null`, an
empty list or an empty map is left out. A list of pairs keeps its order.

## Errors

Raises `badarg` for a variable with a prefix (`{id:3}`) whose value is a list or a map.

## Examples

```erlang
1> {ok, Template} = erlmcp_uri_template:compile(~"{/var:1,var}{?list*,none}").
2> erlmcp_uri_template:expand(Template, #{~"var" => ~"value", ~"list" => [~"red", ~"green"]}).
~"/v/value?list=red&list=green"
```
""".
-spec expand(template(), #{Name :: binary() => value()}) -> binary().
expand(#template{parts = Parts}, Values) ->
    iolist_to_binary([expand_part(Part, Values) || Part <- Parts]).

expand_part({Operator, Variables}, Values) ->
    {First, Separator, _, _} = Style = operator(Operator),
    Expanded = [Text || {Name, _} = Variable <- Variables,
                        {ok, Value} <- [maps:find(Name, Values)],
                        Text <- expand_variable(Variable, composite(Value), Style)],
    case Expanded of
        [] -> ~"";
        _ -> [First, lists:join(Separator, Expanded)]
    end;
expand_part(Literal, _) ->
    Literal.

composite(null) -> [];
composite(Value) when is_map(Value) -> maps:to_list(Value);
composite(Value) -> Value.

%% Returns a text, or one for each item of an exploded value.
expand_variable(_, [], _) ->
    [];
expand_variable({_, {prefix, _}}, [_ | _], _) ->
    error(badarg);
expand_variable({Name, explode}, [_ | _] = Items, {_, _, Names, Allowed}) ->
    [case Item of
         {Key, Value} -> pair(encode(Key, Allowed), encode(Value, Allowed), Names);
         Value -> named(Name, encode(Value, Allowed), Names)
     end || Item <- Items];
expand_variable({Name, none}, [_ | _] = Items, {_, _, Names, Allowed}) ->
    Values = [case Item of
                  {Key, Value} -> [encode(Key, Allowed), $,, encode(Value, Allowed)];
                  Value -> encode(Value, Allowed)
              end || Item <- Items],
    [named(Name, lists:join($,, Values), Names)];
expand_variable({Name, Modifier}, Value, {_, _, Names, Allowed}) ->
    [named(Name, encode(cut(Modifier, scalar(Value)), Allowed), Names)].

named(_, Value, unnamed) -> Value;
named(Name, Value, Names) -> pair(Name, Value, Names).

pair(Name, Value, Names) ->
    case {Names, iolist_size(Value)} of
        {{named, IfEmpty}, 0} -> [Name, IfEmpty];
        _ -> [Name, $=, Value]
    end.

cut({prefix, Length}, Value) ->
    unicode:characters_to_binary(lists:sublist(unicode:characters_to_list(Value), Length));
cut(_, Value) ->
    Value.

scalar(Value) when is_binary(Value) -> Value;
scalar(Value) when is_integer(Value) -> integer_to_binary(Value);
scalar(Value) when is_float(Value) -> float_to_binary(Value, [short]).

encode(Value, Allowed) ->
    encode_bytes(scalar(Value), Allowed).

encode_bytes(~"", _) ->
    [];
encode_bytes(<<$%, H, L, Rest/binary>>, reserved) when ?IS_HEX(H), ?IS_HEX(L) ->
    [$%, H, L | encode_bytes(Rest, reserved)];
encode_bytes(<<C, Rest/binary>>, Allowed) when ?IS_UNRESERVED(C) ->
    [C | encode_bytes(Rest, Allowed)];
encode_bytes(<<C, Rest/binary>>, Allowed) ->
    case Allowed =:= reserved andalso lists:member(C, ":/?#[]@!$&'()*+,;=") of
        true -> [C | encode_bytes(Rest, Allowed)];
        false -> [$%, binary:encode_hex(<<C>>) | encode_bytes(Rest, Allowed)]
    end.
