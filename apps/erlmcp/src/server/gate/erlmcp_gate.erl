-module(erlmcp_gate).
-moduledoc """
The gate of a server: every message of every transport enters here, or is refused with a code. So
does every connection of a socket. Its words:

- A connection or a request gets a **permit** when it enters, and gives it back when it leaves. The
  permit's holder is a process. The permits of a dead process are given back for it.
- A **tenant** is a client for whom limits are counted: a principal, or the network of an anonymous
  client (`network/1`).
- A **counter** counts what is held of one kind, and has a **limit**. A permit holds shares of
  counters.
- A request that runs is **in flight**. A request that finds the limit of these reached **waits** in
  the **queue**, in which tenants take turns. If the queue has no room, the request is refused.
- A request in flight may **ask** its client, and is not in flight until its client has answered.

The limit of requests in flight follows the load of the machine (`m:erlmcp_concurrency_limiter`).

Internal.
""".

-include("../overload/erlmcp_overload_guard.hrl").

-export([new/1, new/2, connect/2, connect_tenant/2, stream/1, enter/2, waits/1, await/2,
         enter_definition/2, pause/1, resume/2, hand_over/2, leave/1, add_work/1, forward/3,
         wait_for_cluster/2]).
-export([state/1, lame/1, is_lame/1, drain/1, is_draining/1, limit/1, limit/2, limit_queue/2,
         held/2, calls/1, oldest_calls/2, network/1]).
-export([accounts/1, count_heard/3, pay/3]).

%% Every request passes here.
-compile({inline, [take_permit/3, permit/4]}).

-export_type([gate/0, limits/0, limit/0, message/0, permit/0, tenant/0, definition_limit/0]).

-doc """
The limits of a gate. The default is `infinity`, unless another one is given in parentheses.

- `in_flight`: the server's requests that run at once; `in_flight_per_principal`: one tenant's
  requests that run or wait.
- `queue`: requests that wait (0); `queue_bytes`: their bytes together (67,108,864);
  `queue_per_principal`: waiting requests of one tenant; `queue_ms`: the longest wait in
  milliseconds (1,000).
- `connections`: open connections; `connections_per_address`: those from one address, or from one
  network of 64 bits of IPv6; `connections_per_principal`: those of one tenant.
- `messages_per_second`, `messages_per_minute`, `messages_per_day`: messages of the server;
  `principal_messages_per_second`, `principal_messages_per_minute`, `principal_messages_per_day`:
  messages of one tenant.
- `principals`: counts of tenants and addresses that are kept at once (10,000). A tenant may have
  three: of its requests, of those that wait, and of its connections. Clients that arrive at the
  same moment may together exceed this limit.

A limit of requests, bytes or connections is 268,435,455 at most; a greater number counts as that
one.
""".
-type limits() :: #{
    in_flight => limit(), in_flight_per_principal => limit(),
    queue => non_neg_integer(), queue_bytes => pos_integer(), queue_per_principal => limit(),
    queue_ms => pos_integer(),
    connections => limit(), connections_per_address => limit(),
    connections_per_principal => limit(),
    messages_per_second => limit(), messages_per_minute => limit(), messages_per_day => limit(),
    principal_messages_per_second => limit(), principal_messages_per_minute => limit(),
    principal_messages_per_day => limit(),
    principals => pos_integer()
}.
-type limit() :: pos_integer() | infinity.
-type tenant() :: term().
-doc "A message. A cancellation is a notification that ends a request.".
-type message() :: #{
    tenant := tenant(), kind := request | notification | cancellation | response,
    bytes := non_neg_integer(), atom() => term()
}.
-doc """
A limit of one definition of a server, with the key of its counter. The limit is the most calls of
the definition that run at once, or a rate of its calls.
""".
-type definition_limit() ::
    {erlmcp_gate_counters:key(), {at_once, pos_integer()} | erlmcp_gate_counters:rate()}.

-doc "A gate: a value that all of its users share. Its tables belong to the process that made it.".
-type gate() :: #{
    counters := erlmcp_gate_counters:counters(), permits := erlmcp_gate_permits:permits(),
    limits := limits(), rates := [erlmcp_gate_counters:rate()],
    principal_rates := [erlmcp_gate_counters:rate()]
}.
-opaque permit() ::
    {gate(), erlmcp_gate_permits:id(),
     %% the time at which the request came in flight
     Since :: pos_integer() | {waits, erlmcp_gate_queue:waiting()} | not_a_request}
    | for_nothing.

%% Milliseconds after which a client may try again that was refused because the server drains, or
%% because memory, processor time, descriptors or permits are short.
-define(RETRY_MS, 1000).
%% The work of one request in 16 is counted, since reading the reductions is expensive.
-define(SAMPLED, 16).
%% Requests that wait until their session has another home, or their task can be reached again.
-define(WAITING_FOR_CLUSTER, 1_000).
%% Requests of a tenant that may wait, or be passed on, in any case: one burst of a few callers.
-define(LEAST_OF_TENANT, 10).

-doc """
Makes a gate with these limits. Its tables belong to the calling process. The caller starts the
gate's own processes (`erlmcp_gate_permits:start_link/1`, `erlmcp_gate_queue:start_link/1`).
""".
-spec new(limits()) -> gate().
new(Limits) ->
    new(Limits, none).

-doc """
Makes a gate as `new/1` does. `Cluster` has the module of the server's cluster, with the behaviour
`m:erlmcp_server_cluster`, and the cluster's state. With a cluster, the rates of a tenant count its
messages on all nodes together.
""".
-spec new(limits(), Cluster :: none | {module(), State :: term()}) -> gate().
new(Given, Cluster) ->
    Limits = maps:merge(#{in_flight => infinity, in_flight_per_principal => infinity,
                          queue => 0, queue_bytes => 67_108_864, queue_per_principal => infinity,
                          queue_ms => 1_000,
                          connections => infinity, connections_per_address => infinity,
                          connections_per_principal => infinity, principals => 10_000}, Given),
    #{principals := Principals, in_flight := InFlight} = Limits,
    Counters = erlmcp_gate_counters:new(Principals, Cluster),
    ok = erlmcp_gate_counters:limit(bounded(InFlight), Counters),
    #{counters => Counters, permits => erlmcp_gate_permits:new(Counters), limits => Limits,
      rates => rates(messages_per_second, messages_per_minute, messages_per_day, Limits),
      principal_rates => rates(principal_messages_per_second, principal_messages_per_minute,
                               principal_messages_per_day, Limits)}.

rates(Second, Minute, Day, Limits) ->
    [{Period, Most} || {Period, Key} <- [{second, Second}, {minute, Minute}, {day, Day}],
                       Most <- [maps:get(Key, Limits, infinity)], Most =/= infinity].

bounded(infinity) -> erlmcp_gate_counters:most();
bounded(Limit) -> Limit.

-doc """
Gives the calling process a permit for a connection from `Address`. Refuses the connection if the
server drains, or if its node is overloaded or short of descriptors. Refuses it, too, if the limit
`connections`, `connections_per_address` or `principals` is reached.
""".
-spec connect(gate(), #{address := inet:ip_address() | local, atom() => term()}) ->
    {ok, permit()} | {refuse, erlmcp_refusal:refusal()}.
connect(#{limits := Limits} = Gate, #{address := Address}) ->
    #{connections := Most, connections_per_address := MostOfOne} = Limits,
    maybe
        open ?= state(Gate),
        ok ?= descriptors(),
        connection([{connections, 1, bounded(Most)}
                    | [{{address, network(Address)}, 1, MostOfOne}
                       || Address =/= local, MostOfOne =/= infinity]], Gate)
    end.

descriptors() ->
    case erlmcp_descriptors:state() of
        ok -> ok;
        _ -> {refuse, erlmcp_descriptors:refusal(?RETRY_MS)}
    end.

-doc """
Returns the network of an address: connections from one network count as those of one address. An
IPv4 address, also one written as IPv6, is a network by itself, and so is `local`. Any other IPv6
address belongs to the network of its first 64 bits.
""".
-spec network(inet:ip_address() | local) -> tuple() | local.
network({0, 0, 0, 0, 0, 16#ffff, High, Low}) ->
    {High bsr 8, High band 255, Low bsr 8, Low band 255};
network({A, B, C, D, _, _, _, _}) ->
    {A, B, C, D, network};
network(Address) ->
    Address.

-doc """
Gives the calling process a permit for a connection of `Tenant`. Refuses the connection if the limit
`connections_per_principal` is reached for this tenant, or the limit `principals`. Refuses none if
`connections_per_principal` is `infinity`.
""".
-spec connect_tenant(gate(), Tenant :: tenant()) ->
    {ok, permit()} | {refuse, erlmcp_refusal:refusal()}.
connect_tenant(#{limits := #{connections_per_principal := infinity}}, _) ->
    {ok, for_nothing};
connect_tenant(#{limits := #{connections_per_principal := Most}} = Gate, Tenant) ->
    connection([{{connections, Tenant}, 1, Most}], Gate).

-doc """
Gives the calling process a permit for a stream of events. Streams have no limit. A stream is
counted until the process gives the permit back or dies.
""".
-spec stream(gate()) -> permit().
stream(Gate) ->
    {ok, Permit} = connection([{streams, 1, bounded(infinity)}], Gate),
    Permit.

connection(Limited, #{counters := Counters} = Gate) ->
    case erlmcp_gate_counters:take(Limited, Counters) of
        {ok, Taken} -> {ok, permit(0, Taken, not_a_request, Gate)};
        Full -> {refuse, refusal(Full)}
    end.

-doc """
Gives the calling process a permit for an HTTP request that it passes on to the home of its session.
`Bytes` is the length of the body. Refuses the request if more requests would be on their way than
the limit `in_flight` allows, or more bytes than `queue_bytes` allows. One tenant may have as many
of these requests as are still free in the limit, and ten in any case. Its requests may have as many
bytes as are still free. `none` is for messages that do not count as those of a tenant. These count
apart, in limits that are as high.
""".
-spec forward(tenant() | none, Bytes :: non_neg_integer(), gate()) ->
    {ok, permit()} | {refuse, erlmcp_refusal:refusal()}.
forward(none, Bytes, #{limits := #{in_flight := Most, queue_bytes := MostBytes}} = Gate) ->
    %% A request on its way may wait for this message, and must not keep it out.
    connection([{{forwarded, answers}, 1, bounded(Most)},
                {{forwarded, answer_bytes}, max(1, Bytes), MostBytes}], Gate);
forward(Tenant, Bytes, #{limits := #{in_flight := Most, queue_bytes := MostBytes}} = Gate) ->
    %% A request may be on its way for as long as its call runs, or asks its client.
    Left = bounded(Most) - held(Gate, {forwarded, requests}),
    LeftBytes = MostBytes - held(Gate, {forwarded, bytes}),
    connection([{{forwarded, requests}, 1, bounded(Most)},
                {{forwarded, bytes}, max(1, Bytes), MostBytes},
                {{forwarded, {requests, Tenant}}, 1, max(?LEAST_OF_TENANT, Left)},
                {{forwarded, {bytes, Tenant}}, max(1, Bytes), max(1, LeftBytes)}], Gate).

-doc """
Gives the calling process a permit for a request that waits for the cluster. The request waits until
its session has another home, or until the task that it names can be reached again. At most 1,000
requests of the server wait so, and others are refused. A tenant may have as many of these as are
still free, and ten in any case. `none` is for messages that do not count as those of a tenant.
These count apart, in a limit that is as high.
""".
-spec wait_for_cluster(tenant() | none, gate()) ->
    {ok, permit()} | {refuse, erlmcp_refusal:refusal()}.
wait_for_cluster(none, Gate) ->
    connection([{{forwarded, waiting_answers}, 1, ?WAITING_FOR_CLUSTER}], Gate);
wait_for_cluster(Tenant, Gate) ->
    Left = ?WAITING_FOR_CLUSTER - held(Gate, {forwarded, waiting}),
    connection([{{forwarded, waiting}, 1, ?WAITING_FOR_CLUSTER},
                {{forwarded, {waiting, Tenant}}, 1, max(?LEAST_OF_TENANT, Left)}], Gate).

permit(InFlight, Taken, Since, #{permits := Permits} = Gate) ->
    {Gate, erlmcp_gate_permits:add(InFlight, Taken, Permits), Since}.

-doc """
Lets a message of a tenant enter, and gives the calling process its permit. If the message is a
request, it is then in flight, or has to wait (`await/2`).

- A request is refused if the server drains, if its node is overloaded, or if it may neither run nor
  wait. Other messages enter in any state of the server, and take no share of a limit.
- A message of any kind is refused if it exceeds a rate. Only messages that enter count in the
  rates. Responses and cancellations count apart from others, in rates that are as high.
- A message is refused, too, if its tenant needs a new counter and the limit `principals` is
  reached.
""".
-spec enter(gate(), message()) -> {ok, permit()} | {refuse, erlmcp_refusal:refusal()}.
enter(#{rates := [], principal_rates := [],
        limits := #{in_flight_per_principal := infinity}} = Gate, #{kind := request} = Message) ->
    %% Taking the permit also shows whether the gate drains.
    case ?NODE_IS_CLEAR orelse state(Gate) of
        {refuse, _} = Refused -> Refused;
        _ -> take_permit(Message, [], Gate)
    end;
enter(Gate, #{kind := request} = Message) ->
    case state(Gate) of
        open -> count(Message, Gate);
        Refused -> Refused
    end;
enter(Gate, #{kind := notification} = Message) ->
    count(Message, Gate);
enter(Gate, #{tenant := Tenant}) ->
    %% A request in flight needs it in order to end, in any state of the server. So messages of
    %% other kinds do not keep it out.
    count_answer(Tenant, Gate).

count_answer(Tenant, Gate) ->
    #{counters := Counters, rates := Rates, principal_rates := OfTenant} = Gate,
    Each = [{{answers, {principal, Tenant}}, Rate} || Rate <- OfTenant]
        ++ [{{answers, server}, Rate} || Rate <- Rates],
    case count_each(Each, now(Gate), Counters) of
        ok ->
            {ok, for_nothing};
        {wait, {answers, server}, Rate, Milliseconds} ->
            {refuse, refusal({server_wait, Rate, Milliseconds})};
        {wait, _, Rate, Milliseconds} ->
            {refuse, refusal({wait, Rate, Milliseconds})};
        keys_full ->
            {refuse, refusal(keys_full)}
    end.

now(#{counters := Counters}) -> erlmcp_gate_counters:now(Counters).

%% A message that is refused here, for whichever reason, is counted in no rate.
count(#{tenant := Tenant, kind := Kind} = Message, Gate) ->
    #{counters := Counters, principal_rates := Rates, limits := Limits} = Gate,
    Limit = in_flight_of_tenant(Kind, Limits),
    Now = now(Gate),
    Key = {principal, Tenant},
    case erlmcp_gate_counters:take_tenant(Key, Rates, Limit, Now, Counters) of
        {ok, Taken} ->
            case count_on_server(Message, Now, Taken, Gate) of
                {ok, _} = Entered ->
                    Entered;
                Refused ->
                    ok = erlmcp_gate_counters:uncount_tenant(Key, Rates, Counters),
                    Refused
            end;
        {full, Observed} ->
            {refuse, refusal({full, {in_flight_per_principal, 1, Limit}, Observed})};
        Refused ->
            {refuse, refusal(Refused)}
    end.

in_flight_of_tenant(request, #{in_flight_per_principal := Limit}) -> Limit;
in_flight_of_tenant(_, _) -> infinity.

count_on_server(Message, Now, Taken, #{counters := Counters, rates := Rates} = Gate) ->
    case erlmcp_gate_counters:count_rates(server, Rates, Now, Counters) of
        ok ->
            case take_permit(Message, Taken, Gate) of
                {ok, _} = Entered ->
                    Entered;
                Refused ->
                    ok = erlmcp_gate_counters:uncount_rates(server, Rates, Counters),
                    Refused
            end;
        {wait, Rate, Milliseconds} ->
            ok = erlmcp_gate_counters:give(Taken, Counters),
            {refuse, refusal({server_wait, Rate, Milliseconds})}
    end.

take_permit(#{kind := request} = Message, Taken, #{counters := Counters} = Gate) ->
    case erlmcp_gate_counters:enter(Counters) of
        {ok, InFlight, Now} ->
            {ok, permit(InFlight, Taken, Now, Gate)};
        draining ->
            ok = erlmcp_gate_counters:give(Taken, Counters),
            {refuse, refusal(draining)};
        {full, Limit, Observed} ->
            ok = erlmcp_gate_counters:add_refused(Counters),
            wait(Message, Taken, {full, {in_flight, 1, Limit}, Observed}, Gate)
    end;
take_permit(_, [], _) ->
    {ok, for_nothing}.

wait(_, Taken, Full, #{counters := Counters, limits := #{queue := 0}}) ->
    ok = erlmcp_gate_counters:give(Taken, Counters),
    {refuse, refusal(Full)};
wait(#{tenant := Tenant, bytes := Bytes}, Taken, _, Gate) ->
    #{counters := Counters, limits := #{queue := Most, queue_bytes := MostBytes}} = Gate,
    Limited = [{{waiting, Tenant}, 1, waiting_of_tenant(Gate)}, {waiting, 1, Most},
               {waiting_bytes, max(1, Bytes), MostBytes}],
    case erlmcp_gate_counters:take(Limited, Counters) of
        {ok, Waiting} ->
            Waits = {waits, {Tenant, now(Gate), {Taken, Waiting}}},
            {ok, permit(0, Waiting ++ Taken, Waits, Gate)};
        Full ->
            ok = erlmcp_gate_counters:give(Taken, Counters),
            {refuse, refusal(Full)}
    end.

%% A tenant may have as many waiting requests as are still free in the limit of all. So one tenant
%% gets at most half of that limit, two tenants get a third each, and the rest is left for others.
waiting_of_tenant(#{counters := Counters, limits := #{queue_per_principal := Most}}) ->
    Left = erlmcp_gate_counters:queue_limit(Counters)
        - erlmcp_gate_counters:held(waiting, Counters),
    min(bounded(Most), max(?LEAST_OF_TENANT, Left)).

-doc "Returns `true` if a request has to wait (`await/2`) before it is in flight.".
-spec waits(permit()) -> boolean().
waits({_, _, {waits, _}}) -> true;
waits(_) -> false.

-doc """
Waits until a request is in flight, for up to `Milliseconds` or the limit `queue_ms`, whichever is
less. Returns at once if the request need not wait. If the request cannot run in time, gives its
permit back and returns the refusal. Each process that runs a request calls this function once, when
it begins, even if the request need not wait. So the gate learns how long the request was in flight
before a process ran it.
""".
-spec await(permit(), Milliseconds :: non_neg_integer()) ->
    {ok, permit()} | {refuse, erlmcp_refusal:refusal()}.
await({#{permits := Permits} = Gate, Id, {waits, Waiting}}, Milliseconds) ->
    case erlmcp_gate_queue:wait(Id, Waiting, Milliseconds, Gate) of
        {granted, Since} ->
            await({Gate, Id, Since}, Milliseconds);
        {refused, RetryMs} ->
            ok = erlmcp_gate_permits:leave(Id, Permits),
            {refuse, refusal({waited, RetryMs})}
    end;
await({#{counters := Counters}, _, Since} = Permit, _) ->
    ok = erlmcp_gate_counters:add_start(Since, Counters),
    {ok, Permit}.

-doc """
Gives the calling process a permit for a call of one definition. The limits are those of this
definition. Refuses the call if it would exceed one of them.
""".
-spec enter_definition(gate(), [definition_limit()]) ->
    {ok, permit()} | {refuse, erlmcp_refusal:refusal()}.
enter_definition(_, []) ->
    {ok, for_nothing};
enter_definition(#{counters := Counters} = Gate, Limits) ->
    AtOnce = [{Key, 1, Most} || {Key, {at_once, Most}} <- Limits],
    case erlmcp_gate_counters:take(AtOnce, Counters) of
        {ok, Taken} ->
            Rates = [{Key, Rate} || {Key, {Period, _} = Rate} <- Limits, Period =/= at_once],
            case count_each(Rates, now(Gate), Counters) of
                ok ->
                    {ok, permit(0, Taken, not_a_request, Gate)};
                Refused ->
                    ok = erlmcp_gate_counters:give(Taken, Counters),
                    {refuse, refusal(Refused)}
            end;
        Full ->
            {refuse, refusal(Full)}
    end.

count_each([], _, _) ->
    ok;
count_each([{Key, Rate} | Rates], Now, Counters) ->
    case erlmcp_gate_counters:count_rates(Key, [Rate], Now, Counters) of
        ok ->
            case count_each(Rates, Now, Counters) of
                ok ->
                    ok;
                Refused ->
                    ok = erlmcp_gate_counters:uncount_rates(Key, [Rate], Counters),
                    Refused
            end;
        {wait, Rate, Milliseconds} ->
            {wait, Key, Rate, Milliseconds};
        keys_full ->
            keys_full
    end.

-doc """
Takes a request, which is about to ask its client, out of flight until `resume/2`. The request keeps
its permit, but the permit has no share of a limit in this time. Has no effect if the permit was
given back before. Only the process that runs the request may call this function and `resume/2`.
""".
-spec pause(permit()) -> ok.
pause({#{counters := Counters, permits := Permits}, Id, _}) ->
    {ok, Asking} = erlmcp_gate_counters:take([{asking, 1, bounded(infinity)}], Counters),
    erlmcp_gate_permits:exchange(Id, 0, Asking, Permits).

-doc """
Brings a request of `Tenant` in flight again after `pause/1`, since its client has answered. The
request does not wait: it may exceed the limits `in_flight` and `in_flight_per_principal`, and
counts in both.
""".
-spec resume(permit(), Tenant :: tenant()) -> ok.
resume({#{counters := Counters, permits := Permits, limits := Limits}, Id, _}, Tenant) ->
    {ok, [{in_flight, InFlight}]} =
        erlmcp_gate_counters:take([{in_flight, 1, bounded(infinity)}], Counters),
    #{in_flight_per_principal := Most} = Limits,
    OfTenant = [{{principal, Tenant}, 1, bounded(infinity)} || Most =/= infinity],
    Held = case erlmcp_gate_counters:take(OfTenant, Counters) of
        {ok, Taken} -> Taken;
        %% The count of this tenant was removed meanwhile, and there is no room for another one.
        keys_full -> []
    end,
    erlmcp_gate_permits:exchange(Id, InFlight, Held, Permits).

-doc "Makes another process the holder of a permit, unless the permit was given back before.".
-spec hand_over(permit(), pid()) -> ok.
hand_over(for_nothing, _) ->
    ok;
hand_over({_, Id, _}, Pid) ->
    erlmcp_gate_permits:hand_over(Id, Pid).

-doc "Gives a permit back, unless it was given back before. Any process may call this function.".
-spec leave(permit()) -> ok.
leave(for_nothing) ->
    ok;
leave({#{permits := Permits}, Id, _}) ->
    erlmcp_gate_permits:leave(Id, Permits).

-doc """
Adds the reductions of the calling process, which has run one request and nothing else, to the work
of requests. Only one process in sixteen is counted.
""".
-spec add_work(permit()) -> ok.
add_work({#{counters := Counters}, _, _}) ->
    case erlang:phash2(self(), ?SAMPLED) of
        0 ->
            {reductions, Reductions} = process_info(self(), reductions),
            erlmcp_gate_counters:add_work(Reductions, Counters);
        _ ->
            ok
    end;
add_work(for_nothing) ->
    ok.

-doc """
Returns `open` if the server takes requests now. If it drains or its node is overloaded, returns the
refusal of any request. Other messages enter in any state.
""".
-spec state(gate()) -> open | {refuse, erlmcp_refusal:refusal()}.
state(Gate) ->
    case is_draining(Gate) of
        true -> {refuse, refusal(draining)};
        false -> machine()
    end.

machine() ->
    case {erlmcp_memory_guard:state(), erlmcp_processor_guard:state()} of
        {ok, ok} -> open;
        {full, _} -> {refuse, erlmcp_memory_guard:refusal(?RETRY_MS)};
        {ok, busy} -> {refuse, erlmcp_processor_guard:refusal(?RETRY_MS)}
    end.

-doc "Records that the server is about to drain, and so is not ready. Everything enters as before.".
-spec lame(gate()) -> ok.
lame(#{counters := Counters}) ->
    erlmcp_gate_counters:lame(Counters).

-doc "Returns `true` if `lame/1` was called.".
-spec is_lame(gate()) -> boolean().
is_lame(#{counters := Counters}) ->
    erlmcp_gate_counters:is_lame(Counters).

-doc """
Refuses all further requests and connections. Permits that were given stay valid, and requests that
wait may still run.
""".
-spec drain(gate()) -> ok.
drain(#{counters := Counters}) ->
    erlmcp_gate_counters:drain(Counters).

-doc "Returns `true` if the gate drains (`drain/1`).".
-spec is_draining(gate()) -> boolean().
is_draining(#{counters := Counters}) ->
    erlmcp_gate_counters:is_draining(Counters).

-doc "Returns how many requests may be in flight now.".
-spec limit(gate()) -> pos_integer().
limit(#{counters := Counters}) ->
    erlmcp_gate_counters:limit(Counters).

-doc "Sets how many requests may be in flight: `Limit`, but at most the limit `in_flight`.".
-spec limit(gate(), pos_integer()) -> ok.
limit(#{counters := Counters, permits := Permits, limits := #{in_flight := Most}}, Limit) ->
    ok = erlmcp_gate_counters:limit(min(Limit, bounded(Most)), Counters),
    erlmcp_gate_permits:tell_queue(Permits).

-doc """
Sets `Limit`, a limit on waiting requests, in addition to `queue`, `queue_bytes` and
`queue_per_principal`. `none` removes it. A further request of a tenant may wait if fewer requests
of this tenant wait than there are free places in `Limit`. So one tenant alone gets about half of
`Limit`. Ten requests of each tenant may wait even if `Limit` is exceeded, but the other limits
still apply.
""".
-spec limit_queue(gate(), Limit :: pos_integer() | none) -> ok.
limit_queue(#{counters := Counters}, none) ->
    erlmcp_gate_counters:queue_limit(erlmcp_gate_counters:most(), Counters);
limit_queue(#{counters := Counters}, Limit) ->
    erlmcp_gate_counters:queue_limit(Limit, Counters).

-doc """
Returns the value of a counter: the sum of the shares that were taken and not given back. The value
is 0 if the counter of a key does not exist.
""".
-spec held(gate(), erlmcp_gate_counters:name()) -> non_neg_integer().
held(#{counters := Counters}, Name) ->
    erlmcp_gate_counters:held(Name, Counters).

-doc """
Returns the processes whose requests are in flight, wait or ask their clients. A process is in the
list once for each of its requests. Raises `badarg` if the process that made the gate has ended.
""".
-spec calls(gate()) -> [pid()].
calls(#{permits := Permits}) ->
    erlmcp_gate_permits:calls(Permits).

-doc """
Returns the ids and the processes of requests that are in flight or wait. For each scheduler,
returns only the `Most` oldest of the requests that entered on it. Raises `badarg` if the process
that made the gate has ended.
""".
-spec oldest_calls(gate(), Most :: pos_integer() | infinity) -> [{Id :: binary(), pid()}].
oldest_calls(#{permits := Permits}, Most) ->
    erlmcp_gate_permits:oldest_calls(Permits, Most).

-doc """
Returns the accounts of the tenants whose messages are counted in rates. Returns `[]` if the gate
has no rates of a tenant.
""".
-spec accounts(gate()) -> [erlmcp_gate_counters:account()].
accounts(#{principal_rates := []}) ->
    [];
accounts(#{principal_rates := Rates, counters := Counters}) ->
    erlmcp_gate_counters:accounts(Rates, Counters).

-doc """
Counts `Count` messages of the tenant `Key` in all rates of this tenant. Another node has let these
messages in (`erlmcp_gate_counters:count_heard/5`).
""".
-spec count_heard(erlmcp_gate_counters:key(), Count :: integer(), gate()) -> ok.
count_heard(Key, Count, #{principal_rates := Rates, counters := Counters} = Gate) ->
    erlmcp_gate_counters:count_heard(Key, Count, Rates, now(Gate), Counters).

-doc """
Moves the time until which the messages of the tenant `Key` are paid for
(`t:erlmcp_gate_counters:paid/0`), in each rate. The new time is at least the one that another node
has reported as `Paid` (`erlmcp_gate_counters:pay/5`).
""".
-spec pay(erlmcp_gate_counters:key(), [erlmcp_gate_counters:paid()], gate()) -> ok.
pay(Key, Paid, #{principal_rates := Rates, counters := Counters} = Gate) ->
    erlmcp_gate_counters:pay(Key, Paid, Rates, now(Gate), Counters).

%% Refusals.

refusal(draining) ->
    erlmcp_refusal:new(server_shutting_down, ~"the server is about to stop",
                       #{retry_after_ms => ?RETRY_MS});
refusal(keys_full) ->
    erlmcp_refusal:new(resource_exhausted, ~"too many clients are counted already",
                       #{retry_after_ms => ?RETRY_MS});
refusal({waited, RetryMs}) ->
    erlmcp_refusal:new(backpressure_active, ~"the request cannot run in time",
                       #{retry_after_ms => RetryMs});
refusal({server_wait, Rate, Milliseconds}) ->
    of_rate(rate_limit_exceeded, Rate, ~"too many messages to this server", Milliseconds);
refusal({wait, Rate, Milliseconds}) ->
    of_rate(Rate, ~"too many messages of one client", Milliseconds);
refusal({wait, Key, Rate, Milliseconds}) ->
    of_rate(Rate, too_many_calls(Key), Milliseconds);
refusal({full, {Counter, _, Limit}, Observed}) ->
    {Name, Message} = full(Counter),
    erlmcp_refusal:new(Name, Message, #{limit => Limit, observed => Observed,
                                        retry_after_ms => ?RETRY_MS}).

of_rate({Period, _} = Rate, TooMany, Milliseconds) ->
    of_rate(name_of_rate(Period), Rate, TooMany, Milliseconds).

of_rate(Name, {Period, Most}, TooMany, Milliseconds) ->
    erlmcp_refusal:new(Name, [TooMany, ~" in a ", atom_to_binary(Period)],
                       #{limit => Most, observed => Most + 1, retry_after_ms => Milliseconds}).

name_of_rate(second) -> rate_limit_per_second;
name_of_rate(minute) -> rate_limit_per_minute;
name_of_rate(day) -> quota_exceeded.

full(waiting) ->
    {queue_cap_exceeded, ~"too many requests wait"};
full(waiting_bytes) ->
    {queue_byte_cap_exceeded, ~"the requests that wait have too many bytes"};
full({waiting, _}) ->
    {queue_tenant_cap_exceeded, ~"too many requests of one client wait"};
full(in_flight) ->
    {concurrent_limit_exceeded, ~"too many requests in flight on this server"};
full(in_flight_per_principal) ->
    {concurrent_limit_exceeded, ~"too many requests of one client in flight"};
full(connections) ->
    {concurrent_limit_exceeded, ~"too many connections to this server"};
full({address, _}) ->
    {concurrent_limit_exceeded, ~"too many connections from this address"};
full({connections, _}) ->
    {concurrent_limit_exceeded, ~"too many connections of one client"};
full({forwarded, requests}) ->
    {backpressure_active, ~"too many requests are on their way to the homes of their sessions"};
full({forwarded, bytes}) ->
    {backpressure_active,
     ~"the requests on their way to the homes of their sessions have too many bytes"};
full({forwarded, {requests, _}}) ->
    {backpressure_active,
     ~"too many requests of one client are on their way to the homes of their sessions"};
full({forwarded, {bytes, _}}) ->
    {backpressure_active,
     ~"requests of one client on their way to the homes of their sessions have too many bytes"};
full({forwarded, answers}) ->
    {backpressure_active,
     ~"too many answers and notifications are on their way to the homes of their sessions"};
full({forwarded, answer_bytes}) ->
    {backpressure_active,
     [~"the answers and notifications on their way to the homes of their sessions have too ",
      ~"many bytes"]};
full({forwarded, waiting_answers}) ->
    {backpressure_active,
     ~"too many answers and notifications wait for another home of their session"};
full({forwarded, waiting}) ->
    {backpressure_active, ~"too many requests wait for another home of their session or task"};
full({forwarded, {waiting, _}}) ->
    {backpressure_active,
     ~"too many requests of one client wait for another home of their session or task"};
full({definition, _} = Key) ->
    {concurrent_limit_exceeded, [too_many_calls(Key), ~" in flight"]}.

too_many_calls({definition, {resource_template, _}}) -> ~"too many calls of this resource";
too_many_calls({definition, {Kind, _}}) -> [~"too many calls of this ", atom_to_binary(Kind)].
