-module(erlmcp_httpc_resumption).
-moduledoc """
Decides how to resume a session's stream that ended too early: after which event, and after which
pause. Pure, except for random numbers.

Source: specification 2025-11-25, "Transports / Resumability and Redelivery": "The client MUST
respect the retry field".

Internal.
""".

-export([new/0, progress/2, stream_began/1, has_event_id/1, has_failed/1, may_resume/2]).
-export([headers/1, delay/1]).

-export_type([resumption/0]).

-record(resumption, {
    %% The id of the last event, the milliseconds before a resumption (`retry`), and the failed
    %% resumptions in a row.
    last_id = ~"" :: binary(),
    retry = 1000 :: non_neg_integer(),
    failures = 0 :: non_neg_integer(),
    %% The resumptions in a row that brought no new event.
    quiet = 0 :: non_neg_integer()
}).

-opaque resumption() :: #resumption{}.

-define(FAILURES, 10).
-define(PAUSE, 30_000).
%% The shortest pause in milliseconds, even if the server asks for less: otherwise a stream that
%% ends at once would be requested without a pause. It doubles while no event comes, up to
%% QUIET_PAUSE.
-define(LEAST_PAUSE, 100).
%% The longest `retry` that is honoured, in milliseconds: a day. A timer does not accept every
%% value.
-define(LONGEST_RETRY, 86_400_000).
-define(QUIET_PAUSE, 1000).

-doc "Creates the state of a new stream, which has had no event.".
-spec new() -> resumption().
new() ->
    #resumption{}.

-doc """
Records the last event id and the last `retry` that the stream's reader has seen. An empty id does
not count, and a `retry` of more than a day counts as a day.
""".
-spec progress(erlmcp_sse_reader:state(), resumption()) -> resumption().
progress(Reader, #resumption{last_id = Before, quiet = Quiet} = Resumption) ->
    Id = case erlmcp_sse_reader:last_id(Reader) of
        ~"" -> Before;
        New -> New
    end,
    Next = Resumption#resumption{last_id = Id, quiet = case Id of
        Before -> Quiet;
        _ -> 0
    end},
    case erlmcp_sse_reader:retry(Reader) of
        {ok, Retry} -> Next#resumption{retry = min(Retry, ?LONGEST_RETRY)};
        none -> Next
    end.

-doc """
Records that the server accepted the request for a stream. The attempts before it no longer count as
failed.
""".
-spec stream_began(resumption()) -> resumption().
stream_began(Resumption) ->
    Resumption#resumption{failures = 0}.

-doc "Returns `true` if the stream had an event id, so it can be resumed after that event.".
-spec has_event_id(resumption()) -> boolean().
has_event_id(#resumption{last_id = Id}) ->
    Id =/= ~"".

-doc """
Returns `true` if a resumption of the stream has begun (`delay/1`), and the server has accepted no
request for the stream since then.
""".
-spec has_failed(resumption()) -> boolean().
has_failed(#resumption{failures = Failures}) ->
    Failures > 0.

-doc """
Returns `true` if the stream may be requested again. The method is that of its last request. After a
POST request, the stream needs an event id. After a GET request, a stream without an event id starts
over. Returns `false` after ten failed attempts in a row.
""".
-spec may_resume(post | get | delete, resumption()) -> boolean().
may_resume(Method, #resumption{failures = Failures} = Resumption) ->
    Failures < ?FAILURES andalso (has_event_id(Resumption) orelse Method =:= get).

-doc "Returns the header `last-event-id`, or no header if the stream had no event id.".
-spec headers(resumption()) -> [{binary(), binary()}].
headers(#resumption{last_id = ~""}) -> [];
headers(#resumption{last_id = Id}) -> [{~"last-event-id", Id}].

-doc """
Returns the milliseconds until the next attempt, and the next state, which counts the attempt.

The milliseconds are at least the `retry` of the server, or 1,000 if it sent none. With each failed
attempt in a row they about double, up to 30,000. They are also never fewer than 100. This bound
doubles with each attempt in a row that brought no event, up to 1,000. Up to a quarter of the
milliseconds is added at random.
""".
-spec delay(resumption()) -> {non_neg_integer(), resumption()}.
delay(#resumption{retry = Retry, failures = Failures, quiet = Quiet} = Resumption) ->
    Least = min(?QUIET_PAUSE, ?LEAST_PAUSE bsl min(Quiet, 10)),
    Delay = max(max(Retry, Least), min(?PAUSE, (Retry + 100) bsl Failures - 100)),
    {Delay + rand:uniform(Delay div 4 + 1) - 1,
     Resumption#resumption{failures = Failures + 1, quiet = Quiet + 1}}.
