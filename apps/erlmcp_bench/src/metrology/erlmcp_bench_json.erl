-module(erlmcp_bench_json).
-moduledoc """
JSON for files that people look at and that are compared line by line: names in order, a line for
each member, and one for what has nothing but plain values in it. Pure.
""".

-export([lines/1]).

-doc """
## Examples

```
1> erlmcp_bench_json:lines(#{~"b" => [1, [2, 3]], ~"a" => #{~"c" => 1}}).
~'{\n  "a": {"c": 1},\n  "b": [\n    1,\n    [2, 3]\n  ]\n}\n'
```
""".
-spec lines(json:decode_value()) -> binary().
lines(Value) ->
    iolist_to_binary([value(Value, ~"\n"), $\n]).

value(Value, Indent) when is_map(Value); is_list(Value) ->
    {Open, Close, Members} = parts(Value),
    Deeper = <<Indent/binary, "  ">>,
    case lists:any(fun({_, Member}) -> is_map(Member) orelse is_list(Member) end, Members) of
        true ->
            Lines = [[Deeper, Name, value(Member, Deeper)] || {Name, Member} <- Members],
            [Open, lists:join($,, Lines), Indent, Close];
        false ->
            [Open, lists:join(~", ", [[Name, json:encode(Member)] || {Name, Member} <- Members]),
             Close]
    end;
value(Value, _) ->
    json:encode(Value).

parts(#{} = Object) ->
    {${, $}, [{[json:encode(Name), ~": "], Member}
              || {Name, Member} <- lists:sort(maps:to_list(Object))]};
parts(Items) ->
    {$[, $], [{[], Item} || Item <- Items]}.
