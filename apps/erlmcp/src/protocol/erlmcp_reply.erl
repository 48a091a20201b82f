-module(erlmcp_reply).
-moduledoc "Answers to requests, as the effects that they are. Pure. Internal.".

-export([result/2, bounded/2, too_large/3, refuse/2, refuse/3]).

-export_type([reply/0, status/0]).

-doc """
An HTTP status, with the seconds of `Retry-After` where waiting helps, or the scopes that the
request must have.
""".
-type status() ::
    200..599 | {200..599, RetryAfter :: pos_integer()} | {403, [erlmcp:scope(), ...]}.
-type reply() :: {reply, status(), iodata()}.

-doc "The answer with this result, given encoded.".
-spec result(erlmcp_message:id(), iodata()) -> reply().
result(Id, Result) ->
    {reply, 200, erlmcp_message:result(Id, Result)}.

-doc "Whether an answer has no more bytes than it may.".
-spec bounded(iodata(), Max :: pos_integer()) -> ok | {too_large, Observed :: pos_integer()}.
bounded(Bytes, Max) ->
    case iolist_size(Bytes) of
        Size when Size > Max -> {too_large, Size};
        _ -> ok
    end.

-doc "The refusal of one that has more.".
-spec too_large(Observed :: pos_integer(), Max :: pos_integer(), erlmcp:refusal_details()) ->
    erlmcp_refusal:refusal().
too_large(Observed, Max, Details) ->
    erlmcp_refusal:new(buffer_overflow, ~"the result is too large",
                       Details#{limit => Max, observed => Observed}).

-doc """
The error that answers a request of a revision. A session's client is told under 200: to some of
them any other status means that the session or the transport is gone, not that a request failed.
For want of scopes it is 403 nevertheless: that is what makes a client ask for them.
""".
-spec refuse(erlmcp_message:id() | undefined, erlmcp_refusal:refusal(),
             erlmcp_revision:revision()) -> reply().
refuse(Id, Refusal, Revision) ->
    case erlmcp_revision:era(Revision) =:= session
        andalso erlmcp_refusal:scopes(Refusal) =:= undefined of
        true -> {reply, 200, erlmcp_message:error(Id, Refusal)};
        false -> refuse(Id, Refusal)
    end.

-doc "The same where no revision is agreed on yet: under the refusal's own HTTP status.".
-spec refuse(erlmcp_message:id() | undefined, erlmcp_refusal:refusal()) -> reply().
refuse(Id, Refusal) ->
    Status = case {erlmcp_refusal:scopes(Refusal), erlmcp_refusal:retry_after(Refusal)} of
        {undefined, undefined} -> erlmcp_refusal:status(Refusal);
        {undefined, Seconds} -> {erlmcp_refusal:status(Refusal), Seconds};
        {Scopes, _} -> {403, Scopes}
    end,
    {reply, Status, erlmcp_message:error(Id, Refusal)}.
