-module(erlmcp_line).
-moduledoc """
Splits bytes, which come in any portions, into lines of bounded length, one message each. Pure.

Internal.
""".

-export([new/1, push/2, is_partial/1, held/1, give_up/1, flush/1]).

-export_type([state/0, line/0]).

-record(state, {
    max :: pos_integer(),
    newline :: binary:cp(),
    %% The beginning of an unfinished line; `swallow` while the rest of a line over the bound is
    %% dropped.
    held = ~"" :: binary() | swallow,
    %% Whether that beginning is only whitespace.
    is_blank = true :: boolean()
}).

-opaque state() :: #state{}.
-type line() :: binary() | {too_large, Observed :: pos_integer()}.

-doc """
Returns the state at the beginning of the input, for lines of at most `Max` bytes, not counting
their ends.
""".
-spec new(Max :: pos_integer()) -> state().
new(Max) ->
    #state{max = Max, newline = binary:compile_pattern(~"\n")}.

-doc """
Returns the lines that end in `Chunk`, without their end (`\n` or `\r\n`), in their order. Lines of
only whitespace are left out. A line over the bound gives one `{too_large, Observed}` as soon as it
passes the bound, and its rest is dropped. `Observed` is the number of its bytes so far. A line may
be a sub-binary of `Chunk`, and then keeps all of it in memory.

## Examples

```erlang
1> {[~"one", ~"two"], S1} = erlmcp_line:push(~"one\r\n\ntwo\nth", erlmcp_line:new(5)).
2> {[~"three"], S2} = erlmcp_line:push(~"ree\nfo", S1).
3> {[{too_large, 6}], S3} = erlmcp_line:push(~"rtyf", S2).
4> {[~"five"], _} = erlmcp_line:push(~"our\nfive\n", S3).
```
""".
-spec push(Chunk :: binary(), state()) -> {[line()], state()}.
push(Chunk, #state{newline = Newline, held = ~""} = State) ->
    case binary:match(Chunk, Newline) of
        %% Most chunks are a single whole line.
        {Size, 1} when Size =:= byte_size(Chunk) - 1 ->
            {line(binary_part(Chunk, 0, Size), State), State};
        nomatch ->
            hold(Chunk, Chunk, [], State);
        _ ->
            split(Chunk, State)
    end;
push(Chunk, State) ->
    split(Chunk, State).

split(Chunk, #state{newline = Newline, held = Held} = State) ->
    case binary:split(Chunk, Newline, [global]) of
        [Part] -> hold(join(Held, Part), Part, [], State);
        [End | Rest] -> push(Rest, line(join(Held, End), State), State)
    end.

%% The copy lets the chunk be garbage collected, of which this may be a small part.
push([~""], Lines, State) -> {lists:reverse(Lines), State#state{held = ~"", is_blank = true}};
push([Part], Lines, State) ->
    hold(binary:copy(Part), Part, Lines, State#state{is_blank = true});
push([Line | Rest], Lines, State) -> push(Rest, line(Line, State) ++ Lines, State).

%% Appending to a binary copies only the appended bytes, however many chunks there are, as long as
%% it is not matched in between. So only its size, its last byte and the newest part are read. If a
%% peer sends single bytes, a list of chunks would take many times their size.
join(swallow, _) -> swallow;
join(Held, Bytes) when byte_size(Held) =:= 0 -> Bytes;
join(Held, Bytes) -> <<Held/binary, Bytes/binary>>.

hold(swallow, _, Lines, State) ->
    {lists:reverse(Lines), State};
hold(Part, Came, Lines, #state{max = Max, is_blank = IsBlank} = State) ->
    case content_size(Part) of
        Size when Size > Max ->
            {lists:reverse(Lines, [{too_large, Size}]), State#state{held = swallow}};
        _ ->
            Blank = IsBlank andalso is_blank(Came),
            {lists:reverse(Lines), State#state{held = Part, is_blank = Blank}}
    end.

line(swallow, _) ->
    [];
line(Line, #state{max = Max}) ->
    case content_size(Line) of
        Size when Size > Max -> [{too_large, Size}];
        Size when Size =:= byte_size(Line) -> content(Line);
        Size -> content(binary_part(Line, 0, Size))
    end.

content(<<C, _/binary>> = Line) when C > $\s ->
    [Line];
content(Line) ->
    case is_blank(Line) of
        true -> [];
        false -> [Line]
    end.

%% The size without a last "\r", whose "\n" may still come.
content_size(Line) when byte_size(Line) =:= 0 ->
    0;
content_size(Line) ->
    case binary:last(Line) of
        $\r -> byte_size(Line) - 1;
        _ -> byte_size(Line)
    end.

is_blank(<<C, Rest/binary>>) when C =:= $\s; C =:= $\t; C =:= $\r -> is_blank(Rest);
is_blank(Rest) -> Rest =:= ~"".

-doc """
Returns `true` if a line with more than whitespace has begun and not ended. This includes a line
over the bound, whose rest is dropped.
""".
-spec is_partial(state()) -> boolean().
is_partial(#state{held = swallow}) -> true;
is_partial(#state{is_blank = IsBlank}) -> not IsBlank.

-doc "Returns the number of bytes that are kept of an unfinished line.".
-spec held(state()) -> non_neg_integer().
held(#state{held = swallow}) -> 0;
held(#state{held = Held}) -> byte_size(Held).

-doc """
Drops the kept bytes of an unfinished line, and the rest of that line when it comes.

## Examples

```erlang
1> {[], S1} = erlmcp_line:push(~"on", erlmcp_line:new(100)).
2> {[~"two"], _} = erlmcp_line:push(~"e\ntwo\n", erlmcp_line:give_up(S1)).
```
""".
-spec give_up(state()) -> state().
give_up(#state{held = ~""} = State) -> State;
give_up(State) -> State#state{held = swallow}.

-doc """
Returns a list with the unfinished line, for the end of the input. The list is empty if there is
none, if the line is only whitespace, or if its rest is dropped. The state does not change.

## Examples

```erlang
1> {[~"one"], State} = erlmcp_line:push(~"one\ntwo", erlmcp_line:new(100)).
2> erlmcp_line:flush(State).
[~"two"]
```
""".
-spec flush(state()) -> [binary()].
flush(#state{held = Held} = State) ->
    line(Held, State).
