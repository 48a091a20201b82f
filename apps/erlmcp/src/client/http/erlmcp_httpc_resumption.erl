-module(erlmcp_httpc_resumption).
-moduledoc """
The resumption of a session's stream that ended too early: the event to resume after, and the pause
before. Pure, except for chance.

Source: specification 2025-11-25, "Transports / Resumability and Redelivery": "The client MUST
respect the retry field".

Internal.
""".

-export([new/0, progress/2, stream_began/1, is_placed/1, has_failed/1, may_resume/2]).
-export([headers/1, delay/1]).

-export_type([resumption/0]).

-record(resumption, {
    %% The last event's id, the milliseconds before a resumption, and its failures in a row.
    last_id = ~"" :: binary(),
    retry = 1000 :: non_neg_integer(),
    failures = 0 :: non_neg_integer(),
    %% Resumptions in a row that brought no new event.
    quiet = 0 :: non_neg_integer()
}).

-opaque resumption() :: #resumption{}.

-define(FAILURES, 10).
-define(PAUSE, 30_000).
%% Milliseconds that apply whatever the server says, since a stream that ends at once would be asked
%% for without a pause. They double while no event comes, up to QUIET_PAUSE.
-define(LEAST_PAUSE, 100).
%% A longer `retry` than a day is not meant seriously, and a timer could not take every value.
-define(LONGEST_RETRY, 86_400_000).
-define(QUIET_PAUSE, 1000).
%% Bytes of an event id that is sent as a header.
-define(LAST_ID, 4096).

-doc "Returns the state of a stream without an event.".
-spec new() -> resumption().
new() ->
    #resumption{}.

-doc "Records the progress of a stream: its last event id and its `retry` field.".
-spec progress(erlmcp_sse_reader:state(), resumption()) -> resumption().
progress(Reader, #resumption{last_id = Before, quiet = Quiet} = Resumption) ->
    Id = case erlmcp_sse_reader:last_id(Reader) of
        New when byte_size(New) =< ?LAST_ID, New =/= ~"" -> New;
        _ -> Before
    end,
    Next = Resumption#resumption{last_id = Id, quiet = case Id of
        Before -> Quiet;
        _ -> 0
    end},
    case erlmcp_sse_reader:retry(Reader) of
        {ok, Retry} -> Next#resumption{retry = min(Retry, ?LONGEST_RETRY)};
        none -> Next
    end.

-doc "Records that the server accepted the request for a stream.".
-spec stream_began(resumption()) -> resumption().
stream_began(Resumption) ->
    Resumption#resumption{failures = 0}.

-doc "Returns `true` if the stream had an event id to resume after.".
-spec is_placed(resumption()) -> boolean().
is_placed(#resumption{last_id = Id}) ->
    Id =/= ~"".

-doc "Returns `true` if the last resumption failed.".
-spec has_failed(resumption()) -> boolean().
has_failed(#resumption{failures = Failures}) ->
    Failures > 0.

-doc "Returns `true` if another attempt may be made. A GET stream without an event id starts over.".
-spec may_resume(post | get | delete, resumption()) -> boolean().
may_resume(Method, #resumption{failures = Failures} = Resumption) ->
    Failures < ?FAILURES andalso (is_placed(Resumption) orelse Method =:= get).

-doc "Returns the header that names the event to resume after.".
-spec headers(resumption()) -> [{binary(), binary()}].
headers(#resumption{last_id = ~""}) -> [];
headers(#resumption{last_id = Id}) -> [{~"last-event-id", Id}].

-doc """
Returns the milliseconds until the next attempt. They are never fewer than the server asks for, and
grow with each attempt that fails or brings no event.
""".
-spec delay(resumption()) -> {non_neg_integer(), resumption()}.
delay(#resumption{retry = Retry, failures = Failures, quiet = Quiet} = Resumption) ->
    Least = min(?QUIET_PAUSE, ?LEAST_PAUSE bsl min(Quiet, 10)),
    Delay = max(max(Retry, Least), min(?PAUSE, (Retry + 100) bsl Failures - 100)),
    {Delay + rand:uniform(Delay div 4 + 1) - 1,
     Resumption#resumption{failures = Failures + 1, quiet = Quiet + 1}}.
