-module(erlmcp_cli_load_mix).
-moduledoc """
Parses the value of `erlmcp load --mix`: requests, each with a weight, separated by commas. Pure.

A request is a method, followed by a name or a URI if the method has one. Arguments may follow as
JSON. Instead, one JSON object with all parameters may follow the method. A weight follows `=`, and
is 1 to 999,999; without one it is 1. Digits behind the last `=` are always a weight, so a URI that
ends in `=` and digits needs a weight.
""".

-export([read/1, requests/2]).

-export_type([mix/0]).

-type mix() :: [{Weight :: pos_integer(), {Method :: binary(), Params :: map()}}, ...].

-doc """
Returns the requests of a mix.

## Examples

```erlang
1> erlmcp_cli_load_mix:read(~"tools/call echo=9,tools/list").
{ok, [{9, {~"tools/call", #{~"name" => ~"echo"}}}, {1, {~"tools/list", #{}}}]}
2> erlmcp_cli_load_mix:read(~B'tools/call add {"a": 1, "b": 2}=3').
{ok, [{3, {~"tools/call", #{~"name" => ~"add", ~"arguments" => #{~"a" => 1, ~"b" => 2}}}}]}
3> erlmcp_cli_load_mix:read(~"resources/read file://a=b.txt=2").
{ok, [{2, {~"resources/read", #{~"uri" => ~"file://a=b.txt"}}}]}
4> erlmcp_cli_load_mix:read(~"tools/list,tools/call").
{error, ~"tools/call"}
5> erlmcp_cli_load_mix:read(~"tools/call echo=0").
{error, ~"tools/call echo=0"}
```

## Errors

The part that is not a request.
""".
-spec read(binary()) -> {ok, mix()} | {error, Part :: binary()}.
read(Text) ->
    read(parts(Text, 0, ~"", []), []).

read([], Mix) ->
    {ok, lists:reverse(Mix)};
read([Part | Parts], Mix) ->
    case part(Part) of
        {ok, Request} -> read(Parts, [Request | Mix]);
        error -> {error, Part}
    end.

%% A comma within JSON does not separate requests.
parts(<<>>, _, Part, Parts) ->
    lists:reverse([string:trim(Part) | Parts]);
parts(<<$", Text/binary>>, Depth, Part, Parts) when Depth > 0 ->
    {Quoted, Rest} = quoted(Text, ~"\""),
    parts(Rest, Depth, <<Part/binary, Quoted/binary>>, Parts);
parts(<<$,, Text/binary>>, 0, Part, Parts) ->
    parts(Text, 0, ~"", [string:trim(Part) | Parts]);
parts(<<C, Text/binary>>, Depth, Part, Parts) when C =:= ${; C =:= $[ ->
    parts(Text, Depth + 1, <<Part/binary, C>>, Parts);
parts(<<C, Text/binary>>, Depth, Part, Parts) when C =:= $}; C =:= $] ->
    parts(Text, max(0, Depth - 1), <<Part/binary, C>>, Parts);
parts(<<C, Text/binary>>, Depth, Part, Parts) ->
    parts(Text, Depth, <<Part/binary, C>>, Parts).

quoted(<<$\\, C, Text/binary>>, Quoted) -> quoted(Text, <<Quoted/binary, $\\, C>>);
quoted(<<$", Text/binary>>, Quoted) -> {<<Quoted/binary, $">>, Text};
quoted(<<C, Text/binary>>, Quoted) -> quoted(Text, <<Quoted/binary, C>>);
quoted(<<>>, Quoted) -> {Quoted, <<>>}.

part(Part) ->
    case re:run(Part, "^(.*)=([0-9]+)$", [{capture, all_but_first, binary}, dotall]) of
        {match, [Words, Weight]} -> weighted(binary_to_integer(Weight), string:trim(Words));
        nomatch -> weighted(1, Part)
    end.

weighted(Weight, Text) when Weight >= 1, Weight =< 999_999 ->
    {Method, Rest} = word(Text),
    maybe
        match ?= re:run(Method, "^[A-Za-z0-9_./-]+$", [{capture, none}, dollar_endonly]),
        {ok, Params} ?= params(erlmcp_header:source(Method), Rest),
        {ok, {Weight, {Method, Params}}}
    else
        _ -> error
    end;
weighted(_, _) ->
    error.

params(_, <<"{", _/binary>> = Json) -> object(Json);
params(none, ~"") -> {ok, #{}};
params(none, _) -> error;
params(_, ~"") -> error;
params(Field, Rest) ->
    case word(Rest) of
        {Name, ~""} ->
            {ok, #{Field => Name}};
        {Name, Json} ->
            maybe
                {ok, Arguments} ?= object(Json),
                {ok, #{Field => Name, ~"arguments" => Arguments}}
            end
    end.

object(Json) ->
    try json:decode(Json) of
        #{} = Object -> {ok, Object};
        _ -> error
    catch
        error:_ -> error
    end.

word(Text) ->
    case binary:split(Text, ~" ") of
        [Word, Rest] -> {Word, string:trim(Rest)};
        [Word] -> {Word, ~""}
    end.

-doc """
Returns the requests of a mix. Calls of the tool `echo` without arguments get a text of
`PayloadBytes` bytes.
""".
-spec requests(mix(), PayloadBytes :: non_neg_integer()) -> mix().
requests(Mix, PayloadBytes) ->
    Echo = erlmcp_load_request:echo(PayloadBytes),
    [case Request of
         {~"tools/call", #{~"name" := ~"echo"} = Params} when map_size(Params) =:= 1 ->
             {Weight, Echo};
         _ ->
             {Weight, Request}
     end || {Weight, Request} <- Mix].
