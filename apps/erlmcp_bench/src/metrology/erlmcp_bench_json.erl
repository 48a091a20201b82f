-module(erlmcp_bench_json).
-moduledoc """
Encodes JSON for files that people read and compare line by line. The members of objects are sorted.
An object or array that does not fit into one line has a line for each member. Pure.
""".

-export([lines/1]).

%% The most characters of a value in one line.
-define(CHARACTERS, 160).

-doc """
Encodes `Value` as JSON that ends in a line break. An object or array of at most 160 characters is
in one line. A longer one has a line for each member.

## Examples

```
1> Long = binary:copy(~"long", 40).
2> Lines = erlmcp_bench_json:lines(#{~"b" => [1, #{~"d" => 2, ~"c" => 3}], ~"a" => Long}).
3> Lines =:= <<"{\n  \"a\": \"", Long/binary, "\",\n  \"b\": [1, {\"c\": 3, \"d\": 2}]\n}\n">>.
true
```
""".
-spec lines(json:decode_value()) -> binary().
lines(Value) ->
    iolist_to_binary([lines(Value, ~"\n"), $\n]).

lines(Value, Indent) when is_map(Value); is_list(Value) ->
    Line = line(Value),
    case string:length(Line) =< ?CHARACTERS of
        true ->
            Line;
        false ->
            {Open, Close, Members} = parts(Value),
            Deeper = <<Indent/binary, "  ">>,
            [Open, lists:join($,, [[Deeper, Name, lines(Member, Deeper)]
                                   || {Name, Member} <- Members]), Indent, Close]
    end;
lines(Value, _) ->
    json:encode(Value).

line(Value) when is_map(Value); is_list(Value) ->
    {Open, Close, Members} = parts(Value),
    [Open, lists:join(~", ", [[Name, line(Member)] || {Name, Member} <- Members]), Close];
line(Value) ->
    json:encode(Value).

parts(#{} = Object) ->
    {${, $}, [{[json:encode(Name), ~": "], Member}
              || {Name, Member} <- lists:sort(maps:to_list(Object))]};
parts(Items) ->
    {$[, $], [{[], Item} || Item <- Items]}.
