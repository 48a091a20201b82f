-module(erlmcp_httpd_http2_inline_calls).
-moduledoc """
Whether a quick call (`m:erlmcp_inline_call`) may run in the process of its connection where that
has other requests, too: on HTTP/2. It may as long as no other call would end with the connection,
since one that does not come to its end takes that with it, and while what was answered before it
and is not written yet has not waited for long.

A stream's frames are looked at one after the other, so a call that runs here is over before the
next one begins. What it says belongs to the process.

Internal.
""".

-export([is_free/0, begun/1, over/1]).

%% Reductions for which an answer may wait for those behind it: some ten milliseconds.
-define(TURN, 400_000).

-doc "Whether a quick call may run in the calling process, a connection's.".
-spec is_free() -> boolean().
is_free() ->
    get(?MODULE) =:= undefined andalso in_turn(erlmcp_httpd_http2_writes:waits_since()).

in_turn(none) ->
    true;
in_turn(unknown) ->
    false;
in_turn(Since) ->
    {reductions, Now} = process_info(self(), reductions),
    Now - Since =< ?TURN.

-doc "A call of a stream runs in a process of its own, which ends with the connection.".
-spec begun({pid(), cowboy_stream:streamid()}) -> ok.
begun({_, StreamId}) ->
    Calls = case get(?MODULE) of
        undefined -> #{};
        #{} = Running -> Running
    end,
    _ = put(?MODULE, Calls#{StreamId => true}),
    ok.

-doc "A stream is over, whether a call of it runs or not.".
-spec over(cowboy_stream:streamid()) -> ok.
over(StreamId) ->
    _ = case get(?MODULE) of
        #{StreamId := _} = Calls when map_size(Calls) > 1 ->
            put(?MODULE, maps:remove(StreamId, Calls));
        #{StreamId := _} ->
            erase(?MODULE);
        _ ->
            none
    end,
    ok.
