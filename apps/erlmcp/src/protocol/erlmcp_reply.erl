-module(erlmcp_reply).
-moduledoc "Answers to requests, as effects. Pure. Internal.".

-export([result/2, too_large/3, refuse/2, refuse/3]).

-export_type([reply/0, status/0]).

-doc """
The HTTP status of an answer, with the seconds of `Retry-After` if a retry may help, or with the
scopes that the request must have.
""".
-type status() ::
    200..599 | {200..599, RetryAfter :: pos_integer()} | {403, [erlmcp:scope(), ...]}.
-type reply() :: {reply, status(), iodata()}.

-doc "Returns the effect that answers a request with an encoded result, with the HTTP status 200.".
-spec result(erlmcp_message:id(), iodata()) -> reply().
result(Id, Result) ->
    {reply, 200, erlmcp_message:result(Id, Result)}.

-doc """
Returns the refusal that is sent in place of an answer of `Observed` bytes, where `Max` are allowed.
`Details` are further details of the refusal.
""".
-spec too_large(Observed :: pos_integer(), Max :: pos_integer(),
                Details :: erlmcp:refusal_details()) ->
    erlmcp_refusal:refusal().
too_large(Observed, Max, Details) ->
    erlmcp_refusal:new(buffer_overflow, ~"the result is too large",
                       Details#{limit => Max, observed => Observed}).

-doc """
Returns the effect that answers a request of a revision with an error. In a session the HTTP status
is 200, and 403 for a lack of scopes. A stateless request gets the status that `refuse/2` chooses.
""".
-spec refuse(erlmcp_message:id() | undefined, erlmcp_refusal:refusal(),
             erlmcp_revision:revision()) -> reply().
%% Some clients of sessions take any other status than 200 for the end of the session or of the
%% transport. Only a 403 makes a client ask for scopes.
refuse(Id, Refusal, Revision) ->
    case erlmcp_revision:era(Revision) =:= session
        andalso erlmcp_refusal:scopes(Refusal) =:= undefined of
        true -> {reply, 200, erlmcp_message:error(Id, Refusal)};
        false -> refuse(Id, Refusal)
    end.

-doc """
Returns the effect that answers a request with an error. The HTTP status is the refusal's own, with
the seconds of `Retry-After` if the refusal has a retry time. For a lack of scopes the status is
403, with the scopes.
""".
-spec refuse(erlmcp_message:id() | undefined, erlmcp_refusal:refusal()) -> reply().
refuse(Id, Refusal) ->
    Status = case {erlmcp_refusal:scopes(Refusal), erlmcp_refusal:retry_after(Refusal)} of
        {undefined, undefined} -> erlmcp_refusal:status(Refusal);
        {undefined, Seconds} -> {erlmcp_refusal:status(Refusal), Seconds};
        {Scopes, _} -> {403, Scopes}
    end,
    {reply, Status, erlmcp_message:error(Id, Refusal)}.
