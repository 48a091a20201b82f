-module(erlmcp_gate_refusal).
-moduledoc """
What a gate says to those that it does not let in: which refusal stands for which bound. Pure.

Internal.
""".

-export([new/1]).

-export_type([reason/0]).

-doc "Why: too much would be held, a rate is over, there is no account left, and others.".
-type reason() ::
    draining
    | full
    | {full, {Bound :: atom() | erlmcp_gate_accounts:key(), Amount :: pos_integer(),
              Limit :: pos_integer()}, Observed :: pos_integer()}
    | {wait | server_wait, erlmcp_rate:rate(), Milliseconds :: pos_integer()}
    | {waited, RetryMs :: pos_integer()}.

%% When who was refused for what others hold may come again.
-define(RETRY_MS, 1000).

-doc "The refusal for a reason.".
-spec new(reason()) -> erlmcp_refusal:refusal().
new(draining) ->
    erlmcp_refusal:new(server_shutting_down, ~"the server is about to stop",
                       #{retry_after_ms => ?RETRY_MS});
new(full) ->
    erlmcp_refusal:new(resource_exhausted, ~"too many clients are counted already",
                       #{retry_after_ms => ?RETRY_MS});
new({waited, RetryMs}) ->
    erlmcp_refusal:new(backpressure_active, ~"there is no place for the request in time",
                       #{retry_after_ms => RetryMs});
new({server_wait, {_, Most} = Rate, Milliseconds}) ->
    erlmcp_refusal:new(rate_limit_exceeded, too_many(Rate, ~"to this server"),
                       #{limit => Most, observed => Most + 1, retry_after_ms => Milliseconds});
new({wait, {Period, Most} = Rate, Milliseconds}) ->
    erlmcp_refusal:new(of_rate(Period), too_many(Rate, ~"of one client"),
                       #{limit => Most, observed => Most + 1, retry_after_ms => Milliseconds});
new({full, {Bound, _, Limit}, Observed}) ->
    {Name, Message} = of_bound(Bound),
    erlmcp_refusal:new(Name, Message, #{limit => Limit, observed => Observed,
                                        retry_after_ms => ?RETRY_MS}).

too_many({Period, _}, Of) ->
    [~"too many messages ", Of, ~" in a ", atom_to_binary(Period)].

of_rate(second) -> rate_limit_per_second;
of_rate(minute) -> rate_limit_per_minute;
of_rate(day) -> quota_exceeded.

of_bound(waiting) ->
    {queue_cap_exceeded, ~"too many requests wait"};
of_bound(waiting_bytes) ->
    {queue_byte_cap_exceeded, ~"the requests that wait have too many bytes"};
of_bound({waiting, _}) ->
    {queue_tenant_cap_exceeded, ~"too many requests of one client wait"};
of_bound(in_flight) ->
    {concurrent_limit_exceeded, ~"too many requests in flight on this server"};
of_bound(in_flight_per_principal) ->
    {concurrent_limit_exceeded, ~"too many requests of one client in flight"};
of_bound(connections) ->
    {concurrent_limit_exceeded, ~"too many connections to this server"};
of_bound({address, _}) ->
    {concurrent_limit_exceeded, ~"too many connections from this address"};
of_bound({connections, _}) ->
    {concurrent_limit_exceeded, ~"too many connections of one client"};
of_bound({tool, _}) ->
    {concurrent_limit_exceeded, ~"too many calls of this tool in flight"}.
