-module(erlmcp_httpc_resumption).
-moduledoc """
Where a stream of a session that ended too early is taken up again, and when. Pure, but for chance.

Source: specification 2025-11-25, "Transports / Resumability and Redelivery": "The client MUST
respect the retry field".

Internal.
""".

-export([new/0, came_to/2, begun/1, is_placed/1, has_failed/1, may_resume/2, headers/1, delay/1]).

-export_type([resumption/0]).

-record(resumption, {
    %% Where to come back to, after how many milliseconds, and how often in a row that failed.
    last_id = ~"" :: binary(),
    retry = 1000 :: non_neg_integer(),
    failures = 0 :: non_neg_integer(),
    %% How often in a row it was taken up without coming further.
    quiet = 0 :: non_neg_integer()
}).

-opaque resumption() :: #resumption{}.

-define(FAILURES, 10).
-define(PAUSE, 30_000).
%% Milliseconds that a server may not talk us out of: a stream that ends at once would be asked for
%% without a pause. They grow while nothing comes.
-define(LEAST_PAUSE, 100).
%% More than a day, and more than a timer takes, nobody means.
-define(LONGEST_RETRY, 86_400_000).
-define(QUIET_PAUSE, 1000).
%% An event id that is longer is nothing to send as a header.
-define(LAST_ID, 4096).

-doc "Nothing came yet.".
-spec new() -> resumption().
new() ->
    #resumption{}.

-doc "How far a stream came.".
-spec came_to(erlmcp_sse_reader:state(), resumption()) -> resumption().
came_to(Reader, #resumption{last_id = Before, quiet = Quiet} = Resumption) ->
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

-doc "The server accepted the request for a stream.".
-spec begun(resumption()) -> resumption().
begun(Resumption) ->
    Resumption#resumption{failures = 0}.

-doc "Whether there is a place to come back to.".
-spec is_placed(resumption()) -> boolean().
is_placed(#resumption{last_id = Id}) ->
    Id =/= ~"".

-doc "Whether the last attempt to come back failed.".
-spec has_failed(resumption()) -> boolean().
has_failed(#resumption{failures = Failures}) ->
    Failures > 0.

-doc "Whether to try again. A GET stream that has no place to come back to begins anew.".
-spec may_resume(post | get | delete, resumption()) -> boolean().
may_resume(Method, #resumption{failures = Failures} = Resumption) ->
    Failures < ?FAILURES andalso (is_placed(Resumption) orelse Method =:= get).

-doc "The header that says where.".
-spec headers(resumption()) -> [{binary(), binary()}].
headers(#resumption{last_id = ~""}) -> [];
headers(#resumption{last_id = Id}) -> [{~"last-event-id", Id}].

-doc """
Milliseconds until the next attempt: only upward from what the server asks, and longer each time
that it fails or brings nothing.
""".
-spec delay(resumption()) -> {non_neg_integer(), resumption()}.
delay(#resumption{retry = Retry, failures = Failures, quiet = Quiet} = Resumption) ->
    Least = min(?QUIET_PAUSE, ?LEAST_PAUSE bsl min(Quiet, 10)),
    Delay = max(max(Retry, Least), min(?PAUSE, (Retry + 100) bsl Failures - 100)),
    {Delay + rand:uniform(Delay div 4 + 1) - 1,
     Resumption#resumption{failures = Failures + 1, quiet = Quiet + 1}}.
