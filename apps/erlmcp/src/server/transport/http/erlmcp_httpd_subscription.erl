-module(erlmcp_httpd_subscription).
-moduledoc """
A `subscriptions/listen` on HTTP: a request whose answer is a stream, from the acknowledgement of
what is listened to until its client or the server ends it.

Source: specification 2026-07-28, "Subscriptions".

Internal.
""".

-export([open/4, closed/1]).

-doc "Subscribes the owner, and gives the first event of the stream; or refuses it.".
-spec open(#{id := erlmcp_message:id(), topics := [erlmcp_engine:topic()],
             acknowledged := iodata(), _ => _},
           erlmcp_call:owner(), {erlmcp_auth:principal(), erlmcp_admission:flow()},
           erlmcp_instance:instance()) ->
    {ok, First :: iodata()} | {refuse, erlmcp_refusal:refusal()}.
open(#{topics := Topics}, _, _, #{limits := #{subscriptions := Max}}) when
    length(Topics) > Max
->
    {refuse, erlmcp_refusal:new(concurrent_limit_exceeded,
                                ~"too many resources in one subscription",
                                #{limit => Max, observed => length(Topics)})};
open(#{id := Id, topics := Topics, acknowledged := Acknowledged}, Owner, Whose,
     #{limits := #{subscriptions_per_principal := Max} = Limits} = Instance) ->
    case erlmcp_subscriptions:add_counted(Topics, Owner, Id, Whose, Max,
                                          erlmcp_instance:subscriptions(Instance)) of
        ok ->
            %% With when to come back, since those that lose their streams at once do it at once.
            Retry = erlmcp_session_streams:retry_ms(Limits),
            {ok, erlmcp_sse:event(#{retry => Retry, data => Acknowledged})};
        {full, Observed} ->
            {refuse, erlmcp_subscriptions:refusal(Max, Observed)}
    end.

-doc "The end of the stream, which tells its client of it.".
-spec closed(Closed :: term()) -> cowboy_stream:commands().
closed(Closed) ->
    Messages = erlmcp_subscription:closed(Closed),
    [{data, fin, [erlmcp_sse:event(Message) || Message <- Messages]}, stop].
