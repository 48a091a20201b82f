-module(erlmcp_sse_reader).
-moduledoc """
Parses server-sent events of bounded size from bytes in any portions. Pure.

Source: WHATWG HTML, "Server-sent events", sections "Parsing an event stream" and "Interpreting an
event stream".

Internal.
""".

-export([new/1, push/2, last_id/1, retry/1]).

-export_type([state/0, event/0]).

-type event() :: #{
    data := binary(),
    event := binary(),
    id := binary(),
    retry => non_neg_integer()
}.

-record(state, {
    max :: pos_integer(),
    newline :: binary:cp(),
    return :: binary:cp(),
    %% The beginning of an unfinished line; `over` after an event over the bound.
    held = ~"" :: binary() | over,
    %% Whether the last byte was a CR, which ended its line, and whose LF may follow.
    returned = false :: boolean(),
    first = true :: boolean(),
    %% The unfinished event. Its data is a sub-binary of the chunk until a second line of data or
    %% the chunk's end comes.
    name = ~"" :: binary(),
    data = none :: none | {part | own, binary()},
    %% The fields that keep their value for the next events.
    stream = #{id => ~""} :: #{id := binary(), retry => non_neg_integer()},
    last_id = ~"" :: binary()
}).

-opaque state() :: #state{}.

%% Bytes before the data in its line: "data: ".
-define(FIELD, 6).
%% Digits of a `retry`; a longer number is ignored.
-define(RETRY_DIGITS, 15).
%% Bytes of an id, which a client sends back as a header; a longer one is ignored.
-define(ID_BYTES, 4096).

-doc """
Returns a reader at the beginning of a stream, for events with up to `Max` bytes of data. A comment
or a line of another field may have about `Max` bytes, too. The reader holds about three times `Max`
bytes at most.
""".
-spec new(Max :: pos_integer()) -> state().
new(Max) ->
    #state{max = Max, newline = binary:compile_pattern(~"\n"),
           return = binary:compile_pattern(~"\r")}.

-doc """
Returns the events that end in the received bytes, in their order. If an event or a line is over the
bound, `{too_large, Max}` comes in its place, and nothing is returned after that.

`event` is `message` if the event has no name. `id` and `retry`, in milliseconds, are the stream's
latest; before the first, `id` is empty and `retry` absent. An id of more than 4,096 bytes, or with
a NUL, is ignored. Events without data are left out. Data may be a sub-binary of the received bytes,
and then keeps them in memory.

## Examples

```erlang
1> {[], S1} = erlmcp_sse_reader:push(~"id: 7\ndata: o", erlmcp_sse_reader:new(10)).
2> {[#{data := ~"one\ntwo", id := ~"7"}], S2} = erlmcp_sse_reader:push(~"ne\ndata: two\n\n:", S1).
3> {[{too_large, 10}], S3} = erlmcp_sse_reader:push(~"\ndata: 1\ndata: 234567890\n\n", S2).
4> {[], _} = erlmcp_sse_reader:push(~"data: 1\n\n", S3).
```
""".
-spec push(binary(), state()) -> {[event() | {too_large, pos_integer()}], state()}.
push(_, #state{held = over} = State) ->
    {[], State};
push(<<>>, State) ->
    {[], State};
push(<<"\n", Bytes/binary>>, #state{returned = true} = State) ->
    push(Bytes, State#state{returned = false});
push(Bytes, #state{returned = true} = State) ->
    push(Bytes, State#state{returned = false});
push(Bytes, #state{held = Held, newline = Newline} = State) ->
    case binary:split(Bytes, Newline, [global]) of
        [Part] -> last(Part, Held, [], State);
        [Part | Parts] -> parts(Parts, ended(Part, Held, [], State))
    end.

%% The text between two LFs is one line, unless it contains CRs.
parts(_, {_, #state{held = over}} = Over) -> finish(Over);
parts([Part], {Events, State}) -> last(Part, ~"", Events, State);
parts([Part | Parts], {Events, State}) -> parts(Parts, ended(Part, ~"", Events, State)).

ended(Part, Held, Events, #state{return = Return} = State) ->
    case binary:match(Part, Return) of
        nomatch ->
            line(join(Held, Part), Events, State);
        {At, 1} when At =:= byte_size(Part) - 1 ->
            line(join(Held, binary_part(Part, 0, At)), Events, State);
        _ ->
            Size = byte_size(Part) - 1,
            Line = case Part of
                <<Before:Size/binary, "\r">> -> Before;
                _ -> Part
            end,
            [First | Lines] = binary:split(Line, Return, [global]),
            lines([join(Held, First) | Lines], Events, State)
    end.

lines([Line | Lines], Events, State) ->
    case line(Line, Events, State) of
        {_, #state{held = over}} = Over -> Over;
        {More, Next} -> lines(Lines, More, Next)
    end;
lines([], Events, State) ->
    {Events, State}.

%% The text after the last LF has not ended, except at CRs.
last(Part, Held, Events, #state{return = Return} = State) ->
    Pieces = binary:split(Part, Return, [global]),
    [End | Ended] = lists:reverse(Pieces),
    case Ended of
        [] ->
            finish(hold(End, Held, Events, State));
        _ ->
            [First | Lines] = lists:reverse(Ended),
            case lines([join(Held, First) | Lines], Events, State) of
                {_, #state{held = over}} = Over ->
                    finish(Over);
                {More, Next} ->
                    finish(hold(End, ~"", More, Next#state{returned = End =:= ~""}))
            end
    end.

finish({Events, State}) ->
    {lists:reverse(Events), own(State)}.

%% The copy lets the chunk be garbage collected, of which this may be a small part.
hold(~"", ~"", Events, State) ->
    {Events, State#state{held = ~""}};
hold(End, Held, Events, #state{max = Max} = State) ->
    Line = case Held of
        ~"" -> binary:copy(End);
        _ -> join(Held, End)
    end,
    case byte_size(Line) > Max + ?FIELD + bom_size(State) of
        true -> over(Events, State);
        false -> {Events, State#state{held = Line}}
    end.

own(#state{data = {part, Data}} = State) -> State#state{data = {own, binary:copy(Data)}};
own(State) -> State.

%% Appending to a binary copies only the appended bytes, as long as it is not matched in between.
join(Held, Part) when byte_size(Held) =:= 0 -> Part;
join(Held, Part) -> <<Held/binary, Part/binary>>.

over(Events, #state{max = Max} = State) ->
    {[{too_large, Max} | Events], State#state{held = over, name = ~"", data = none}}.

data_size(#state{data = none}) -> 0;
data_size(#state{data = {_, Data}}) -> byte_size(Data) + 1.

line(Line, Events, #state{first = true} = State) ->
    line(without_bom(Line), Events, State#state{first = false});
line(<<>>, Events, #state{data = none, stream = #{id := Id}} = State) ->
    {Events, State#state{name = ~"", last_id = Id}};
line(<<>>, Events, #state{data = {_, Data}, name = Name, stream = #{id := Id} = Stream} = State) ->
    {[Stream#{data => Data, event => name(Name)} | Events],
     State#state{data = none, name = ~"", last_id = Id}};
line(Line, Events, #state{max = Max} = State) ->
    case byte_size(Line) > Max + ?FIELD of
        true -> over(Events, State);
        false -> field(Line, Events, State)
    end.

%% A byte order mark may stand before the first line; looking for it would cost a copy.
bom_size(#state{first = true}) -> 3;
bom_size(_) -> 0.

without_bom(<<16#EF, 16#BB, 16#BF, Line/binary>>) -> Line;
without_bom(Line) -> Line.

name(~"") -> ~"message";
name(Name) -> Name.

field(<<"data: ", Value/binary>>, Events, State) ->
    data(Value, Events, State);
field(<<":", _/binary>>, Events, State) ->
    {Events, State};
field(Line, Events, #state{stream = Stream} = State) ->
    case split_field(Line) of
        {~"data", Value} -> data(Value, Events, State);
        {~"event", Value} -> {Events, State#state{name = binary:copy(Value)}};
        {Field, Value} -> {Events, State#state{stream = stream(Field, Value, Stream)}}
    end.

data(Value, Events, #state{max = Max} = State) ->
    case data_size(State) + byte_size(Value) > Max of
        true -> over(Events, State);
        false -> {Events, State#state{data = append(State#state.data, Value)}}
    end.

append(none, Value) -> {part, Value};
append({_, Data}, Value) -> {own, <<Data/binary, $\n, Value/binary>>}.

stream(~"id", Id, Stream) when byte_size(Id) =< ?ID_BYTES ->
    case binary:match(Id, ~"\0") of
        nomatch -> Stream#{id := binary:copy(Id)};
        _ -> Stream
    end;
stream(~"retry", Digits, Stream) when Digits =/= ~"", byte_size(Digits) =< ?RETRY_DIGITS ->
    case << <<D>> || <<D>> <= Digits, D >= $0, D =< $9 >> of
        Digits -> Stream#{retry => binary_to_integer(Digits)};
        _ -> Stream
    end;
stream(_, _, Stream) ->
    Stream.

split_field(Line) ->
    case binary:split(Line, ~":") of
        [Name, <<" ", Value/binary>>] -> {Name, Value};
        [Name, Value] -> {Name, Value};
        [Name] -> {Name, ~""}
    end.

-doc """
Returns the id after which a client resumes the stream: that of the last whole event, even of one
without data. It is empty if no event had an id.
""".
-spec last_id(state()) -> binary().
last_id(#state{last_id = Id}) ->
    Id.

-doc """
Returns the milliseconds that the server asks a client to wait before it reconnects (`retry`), or
`none` if the server has sent no valid `retry`.
""".
-spec retry(state()) -> {ok, non_neg_integer()} | none.
retry(#state{stream = #{retry := Delay}}) -> {ok, Delay};
retry(_) -> none.
