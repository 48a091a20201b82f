-module(erlmcp_sse).
-moduledoc """
Encodes server-sent events. Pure.

Source: WHATWG HTML, "Server-sent events", section "Parsing an event stream".

Internal.
""".

-export([event/1, comment/0]).

-export_type([event/0]).

-type event() :: #{
    data := iodata(),
    event => binary(),
    id => binary(),
    retry => non_neg_integer()
}.

-doc """
Encodes an event, given as a map, or as its data alone. Data alone is written unchanged, and must
not contain a newline or a carriage return, as JSON of `erlmcp_json:encode/1` never does. The `data`
of a map is split at its line ends (`\n`, `\r\n` or `\r`), and a reader joins the lines with `\n`.
`retry` is in milliseconds.

## Errors

Raises `badarg` if `event` or `id` contains a newline, a carriage return or a NUL.

## Examples

```erlang
1> iolist_to_binary(erlmcp_sse:event(~B'{"id":1}')).
~"data: {\"id\":1}\n\n"
2> iolist_to_binary(erlmcp_sse:event(#{id => ~"7", data => ~"one\ntwo"})).
~"id: 7\ndata: one\ndata: two\n\n"
```
""".
-spec event(iodata() | event()) -> iolist().
event(#{data := Data} = Event) ->
    [
        [field(Name, Value) || Name <- [event, id, retry], {ok, Value} <- [maps:find(Name, Event)]],
        [[~"data: ", Line, $\n] || Line <- lines(iolist_to_binary(Data))],
        $\n
    ];
event(Data) ->
    [~"data: ", Data, ~"\n\n"].

field(event, Name) -> [~"event: ", on_one_line(Name), $\n];
field(id, Id) -> [~"id: ", on_one_line(Id), $\n];
field(retry, Delay) -> [~"retry: ", integer_to_binary(Delay), $\n].

%% Readers ignore an id with a NUL.
on_one_line(Value) ->
    case binary:match(Value, [~"\n", ~"\r", ~"\0"]) of
        nomatch -> Value;
        _ -> error(badarg)
    end.

lines(Text) ->
    binary:split(Text, [~"\r\n", ~"\n", ~"\r"], [global]).

-doc "Returns a comment, which readers ignore, to keep a silent stream open.".
-spec comment() -> binary().
comment() ->
    ~":\n\n".
