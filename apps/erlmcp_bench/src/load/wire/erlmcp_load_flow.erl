-module(erlmcp_load_flow).
-moduledoc """
Flow control of one HTTP/2 connection. Requests become frames of the server's largest size at most,
and bodies are sent within its windows. Their unsent bytes wait here. Pure.

Source: RFC 9113, sections 4.2, 5.2 and 6.9.
""".

-export([new/0, request/4, settings/2, window/2, window/3, is_unsent/2, dropped/2]).

-export_type([flow/0]).

-record(flow, {
    %% Bytes that may be sent: on the connection, on a new stream, and in one frame.
    window = 65_535 :: integer(),
    stream = 65_535 :: non_neg_integer(),
    frame = 16_384 :: pos_integer(),
    unsent = [] :: [unsent()]
}).

%% A stream, the rest of its window, and the rest of its body.
-type unsent() :: {cow_http2:streamid(), Window :: integer(), Rest :: binary()}.

-opaque flow() :: #flow{}.

-define(MAX_WINDOW, 16#7fffffff).
-define(DATA, 0).
-define(HEADERS, 1).
-define(CONTINUATION, 9).
-define(NO_FLAG, 0).
-define(END_STREAM, 1).
-define(END_HEADERS, 4).

-doc "Returns the state of a new connection, with the initial limits of RFC 9113.".
-spec new() -> flow().
new() ->
    #flow{}.

-doc """
Opens the stream `Id` for a request with a header block and a body, or without a body (`none`).
Returns the bytes that may be sent now. Bytes of the body that may not be sent yet are kept.
""".
-spec request(Id :: cow_http2:streamid(), {Size :: non_neg_integer(), Block :: iodata()},
              {Size :: non_neg_integer(), Body :: iodata()} | none, flow()) -> {iodata(), flow()}.
request(Id, Block, none, Flow) ->
    {headers(Id, ?END_STREAM, Block, Flow), Flow};
request(Id, Block, {Size, Body}, Flow) ->
    {Frames, Sent} = body(Id, Size, Body, Flow),
    {[headers(Id, ?NO_FLAG, Block, Flow) | Frames], Sent}.

headers(Id, Flag, {Size, Block}, #flow{frame = Max}) when Size =< Max ->
    [frame(Size, ?HEADERS, ?END_HEADERS bor Flag, Id) | Block];
headers(Id, Flag, {_, Block}, #flow{frame = Max}) ->
    <<Part:Max/binary, Rest/binary>> = iolist_to_binary(Block),
    [frame(Max, ?HEADERS, Flag, Id), Part | continuation(Id, Rest, Max)].

continuation(Id, Rest, Max) when byte_size(Rest) =< Max ->
    [frame(byte_size(Rest), ?CONTINUATION, ?END_HEADERS, Id), Rest];
continuation(Id, Bytes, Max) ->
    <<Part:Max/binary, Rest/binary>> = Bytes,
    [frame(Max, ?CONTINUATION, ?NO_FLAG, Id), Part | continuation(Id, Rest, Max)].

frame(Size, Type, Flags, Id) ->
    <<Size:24, Type, Flags, Id:32>>.

body(Id, Size, Body, #flow{window = Window, stream = Stream, frame = Max} = Flow)
  when Size =< Max, Size =< Window, Size =< Stream ->
    {[frame(Size, ?DATA, ?END_STREAM, Id) | Body], Flow#flow{window = Window - Size}};
body(Id, _, Body, #flow{stream = Stream, unsent = Unsent} = Flow) ->
    {Frames, Remaining, Sent} = sent({Id, Stream, iolist_to_binary(Body)}, Flow),
    {Frames, Sent#flow{unsent = Unsent ++ Remaining}}.

sent({Id, Stream, Bytes}, #flow{window = Window, frame = Max} = Flow) ->
    Size = byte_size(Bytes),
    case lists:min([Size, Max, Stream, Window]) of
        Size ->
            {[frame(Size, ?DATA, ?END_STREAM, Id), Bytes], [], Flow#flow{window = Window - Size}};
        Room when Room =< 0 ->
            {[], [{Id, Stream, Bytes}], Flow};
        Room ->
            <<Part:Room/binary, Rest/binary>> = Bytes,
            {Frames, Remaining, Sent} = sent({Id, Stream - Room, Rest},
                                             Flow#flow{window = Window - Room}),
            {[frame(Room, ?DATA, ?NO_FLAG, Id), Part | Frames], Remaining, Sent}
    end.

-doc """
Applies changed settings of the server. Returns the bytes that may be sent now, or
`flow_control_error` if a window became too large.
""".
-spec settings(cow_http2:settings(), flow()) -> {ok, iodata(), flow()} | {error, cow_http2:error()}.
settings(Settings, #flow{stream = Before, frame = Max, unsent = Unsent} = Flow) ->
    Stream = maps:get(initial_window_size, Settings, Before),
    widened(Flow#flow{stream = Stream, frame = maps:get(max_frame_size, Settings, Max),
                      unsent = [{Id, Window + Stream - Before, Rest}
                                || {Id, Window, Rest} <- Unsent]}).

-doc "Widens the connection's window by `Increment` bytes. The result is as in `settings/2`.".
-spec window(Increment :: pos_integer(), flow()) ->
    {ok, iodata(), flow()} | {error, cow_http2:error()}.
window(Increment, #flow{window = Window} = Flow) ->
    widened(Flow#flow{window = Window + Increment}).

-doc """
Widens the window of the stream `Id` by `Increment` bytes. The result is as in `settings/2`. A
stream that has sent everything is left as it is.
""".
-spec window(Id :: cow_http2:streamid(), Increment :: pos_integer(), flow()) ->
    {ok, iodata(), flow()} | {error, cow_http2:error()}.
window(Id, Increment, #flow{unsent = Unsent} = Flow) ->
    case lists:keyfind(Id, 1, Unsent) of
        {Id, Window, Rest} ->
            Wider = {Id, Window + Increment, Rest},
            widened(Flow#flow{unsent = lists:keyreplace(Id, 1, Unsent, Wider)});
        false ->
            {ok, [], Flow}
    end.

widened(#flow{window = Window, unsent = Unsent} = Flow) ->
    case Window =< ?MAX_WINDOW
        andalso lists:all(fun({_, Of, _}) -> Of =< ?MAX_WINDOW end, Unsent) of
        true ->
            {Frames, Remaining, Sent} = all_sent(Unsent, Flow),
            {ok, Frames, Sent#flow{unsent = Remaining}};
        false ->
            {error, flow_control_error}
    end.

all_sent([First | Others], #flow{window = Window} = Flow) when Window > 0 ->
    {Frames, Remaining, Sent} = sent(First, Flow),
    {MoreFrames, MoreUnsent, AllSent} = all_sent(Others, Sent),
    {[Frames | MoreFrames], Remaining ++ MoreUnsent, AllSent};
all_sent(Unsent, Flow) ->
    {[], Unsent, Flow}.

-doc "Returns `true` if a stream still has bytes to send.".
-spec is_unsent(cow_http2:streamid(), flow()) -> boolean().
is_unsent(Id, #flow{unsent = Unsent}) ->
    lists:keymember(Id, 1, Unsent).

-doc "Drops the unsent bytes of a stream.".
-spec dropped(cow_http2:streamid(), flow()) -> flow().
dropped(_, #flow{unsent = []} = Flow) ->
    Flow;
dropped(Id, #flow{unsent = Unsent} = Flow) ->
    Flow#flow{unsent = lists:keydelete(Id, 1, Unsent)}.
