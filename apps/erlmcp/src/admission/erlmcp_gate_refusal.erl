-module(erlmcp_gate_refusal).
-moduledoc """
What a gate says to those that it does not let in: which refusal stands for which bound. Pure.
""".

-export([new/1]).

-export_type([reason/0]).

-type reason() ::
    draining
    | accounts
    | {Bound :: atom() | erlmcp_accounts:key(), Limit :: pos_integer(), Observed :: pos_integer()}
    | {rate, Of :: server | one, erlmcp_rate:rate(), Milliseconds :: pos_integer()}
    | {waited, Milliseconds :: pos_integer()}.

%% When who was refused for what others hold may come again.
-define(RETRY_MS, 1000).

-doc "The refusal for a reason.".
-spec new(reason()) -> erlmcp_refusal:refusal().
new(draining) ->
    erlmcp_refusal:new(server_shutting_down, ~"the server is about to stop",
                       #{retry_after_ms => ?RETRY_MS});
new(accounts) ->
    erlmcp_refusal:new(resource_exhausted, ~"too many clients are counted already",
                       #{retry_after_ms => ?RETRY_MS});
new({rate, Of, {Period, Most}, Milliseconds}) ->
    erlmcp_refusal:new(of_rate(Of, Period), [~"too many messages in a ", atom_to_binary(Period)],
                       #{limit => Most, observed => Most + 1, retry_after_ms => Milliseconds});
new({waited, Milliseconds}) ->
    erlmcp_refusal:new(backpressure_active, ~"there is no place for the request in time",
                       #{retry_after_ms => Milliseconds});
new({Bound, Limit, Observed}) ->
    {Name, Message} = of_bound(Bound),
    erlmcp_refusal:new(Name, Message, #{limit => Limit, observed => Observed,
                                        retry_after_ms => ?RETRY_MS}).

of_rate(server, _) -> rate_limit_exceeded;
of_rate(one, second) -> rate_limit_per_second;
of_rate(one, minute) -> rate_limit_per_minute;
of_rate(one, day) -> quota_exceeded.

of_bound(queue) ->
    {queue_cap_exceeded, ~"too many requests wait"};
of_bound(queue_bytes) ->
    {queue_byte_cap_exceeded, ~"the requests that wait have too many bytes"};
of_bound(queue_per_principal) ->
    {queue_tenant_cap_exceeded, ~"too many of your requests wait"};
of_bound(in_flight) ->
    {concurrent_limit_exceeded, ~"too many requests in flight on this server"};
of_bound(in_flight_per_principal) ->
    {concurrent_limit_exceeded, ~"too many of your requests in flight"};
of_bound(connections) ->
    {concurrent_limit_exceeded, ~"too many connections to this server"};
of_bound(connections_per_address) ->
    {concurrent_limit_exceeded, ~"too many connections from this address"};
of_bound(connections_per_principal) ->
    {concurrent_limit_exceeded, ~"too many of your connections"};
of_bound({tool, _}) ->
    {concurrent_limit_exceeded, ~"too many calls of this tool in flight"}.
