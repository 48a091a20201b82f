-module(erlmcp_sse).
-moduledoc """
Server-sent events: written for a stream, read from a complete body. Pure.

Source: WHATWG HTML, "Server-sent events", sections "Parsing an event stream" and "Interpreting an
event stream".
""".

-export([event/1, comment/0]).
-export([parse/1]).

-export_type([event/0, received/0]).

-type event() :: #{
    data := iodata(),
    event => binary(),
    id => binary(),
    retry => non_neg_integer()
}.
-type received() :: erlmcp_sse_reader:event().

-doc """
One event. Data that is not in a map goes out as it is and must have no newline in it, as is so for
the output of `erlmcp_json:encode/1`. Data in a map is split at its newlines, and a reader joins
them with `\n`. `retry` is in milliseconds.

## Errors

* `badarg` if `event` or `id` has a character in it that would end its line, or `id` a NUL, which
  makes a reader ignore it

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

on_one_line(Value) ->
    case binary:match(Value, [~"\n", ~"\r", ~"\0"]) of
        nomatch -> Value;
        _ -> error(badarg)
    end.

lines(Text) ->
    binary:split(Text, [~"\r\n", ~"\n", ~"\r"], [global]).

-doc "A comment, which every reader ignores: it keeps a silent stream from being taken for dead.".
-spec comment() -> binary().
comment() ->
    ~":\n\n".

-doc """
The events of a body that is there as a whole.

`event` is `message` where the stream gives no name. `id` and `retry` are the stream's at that
point: they stay until another one comes, `id` is empty and `retry` absent before the first. An
event that the body's end cuts short, one without data, and fields that nobody knows are left out.
Bytes that are not UTF-8 are not replaced.

## Examples

```erlang
1> erlmcp_sse:parse(~"id: 7\nevent: tick\ndata: one\ndata: two\n\n:\n\ndata: {}\n\ndata: cut").
[#{data => ~"one\ntwo", event => ~"tick", id => ~"7"},
 #{data => ~"{}", event => ~"message", id => ~"7"}]
```
""".
-spec parse(binary()) -> [received()].
parse(Body) ->
    %% No event is larger than the body.
    {Events, _} = erlmcp_sse_reader:push(Body, erlmcp_sse_reader:new(byte_size(Body) + 1)),
    Events.
