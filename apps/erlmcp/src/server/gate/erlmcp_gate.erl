-module(erlmcp_gate).
-moduledoc """
Who may enter a server, and how many: every connection and every message of every transport passes
here. What enters gets a ticket, what leaves gives it back; what is over a bound is refused at once.

No process is between them. What is held is counted in words that all change themselves
(`m:erlmcp_gate_account`), and who holds it is a row (`m:erlmcp_gate_permits`), or a word of its own
(`m:erlmcp_gate_seat`): `m:erlmcp_gate_keeper` gives back what the dead held. Only who has to wait
for a place meets a process, `m:erlmcp_gate_queue`.

A tenant (`flow`) is whom the bounds of one principal are for: a principal, or the address of an
anonymous client. A bound that is `infinity` costs nothing.

Internal.
""".

-include("../overload/erlmcp_overload_guard.hrl").

-export([new/1, connect/2, joined/2, enter/2, has_place/1, await/2, hold/2, take/2, ran/1,
         unseat/1, rest/1, hand_over/2, leave/1]).
-export([state/1, drain/1, limit/1, limit/2, room/2, held/2, calls/1, sums/1, network/1]).

%% Every request passes here.
-compile({inline, [now/1, entered/4]}).

-export_type([gate/0, bounds/0, bound/0, message/0, ticket/0, flow/0]).

-doc """
The bounds of a gate; each is `infinity` unless given, but for those of the queue.

- `in_flight`: requests of the server that run at once, `in_flight_per_principal` those of one
  tenant, waiting ones among them.
- `queue`: requests that wait for a place (none unless given), `queue_bytes` their bytes together
  (67,108,864 unless given), `queue_per_principal` those of one tenant, `queue_ms` the milliseconds
  that one waits at most (1,000).
- `connections`: open connections, `connections_per_address` those from one address (of IPv6: from
  one network of 64 bits), `connections_per_principal` those of one tenant.
- `messages_per_second`, `messages_per_minute`, `messages_per_day`: of the server;
  `principal_messages_per_second` and so on of one tenant.
- `principals`: tenants, addresses and tools that are counted at once (10,000).

No bound of what is held is more than 268,435,455.
""".
-type bounds() :: #{
    in_flight => bound(), in_flight_per_principal => bound(),
    queue => non_neg_integer(), queue_bytes => pos_integer(), queue_per_principal => bound(),
    queue_ms => pos_integer(),
    connections => bound(), connections_per_address => bound(),
    connections_per_principal => bound(),
    messages_per_second => bound(), messages_per_minute => bound(), messages_per_day => bound(),
    principal_messages_per_second => bound(), principal_messages_per_minute => bound(),
    principal_messages_per_day => bound(),
    principals => pos_integer()
}.
-type bound() :: pos_integer() | infinity.
-type flow() :: term().
-type message() :: #{
    flow := flow(), kind := request | notification | response, bytes := non_neg_integer(),
    atom() => term()
}.

-doc "A value that is handed to all who need it; its tables belong to who made it.".
-type gate() :: #{
    books := erlmcp_gate_counters:books(), bounds := bounds(),
    rates := [erlmcp_rate:rate()], principal_rates := [erlmcp_rate:rate()]
}.
-opaque ticket() ::
    {erlmcp_gate_counters:books(), erlmcp_gate_permits:id(),
     Since :: pos_integer() | {waits, erlmcp_gate_queue:waiting()} | untimed | connection}
    | free.

%% When who was refused for want of memory, processor time or descriptors may come again.
-define(RETRY_MS, 1000).
%% Of one request in so many it is counted what work it was: to ask costs more than to leave.
-define(SAMPLED, 16).

-doc "A gate with these bounds. Its tables belong to the calling process.".
-spec new(bounds()) -> gate().
new(Given) ->
    Bounds = maps:merge(#{in_flight => infinity, in_flight_per_principal => infinity,
                          queue => 0, queue_bytes => 67_108_864, queue_per_principal => infinity,
                          queue_ms => 1_000,
                          connections => infinity, connections_per_address => infinity,
                          connections_per_principal => infinity, principals => 10_000}, Given),
    #{principals := Principals, in_flight := InFlight} = Bounds,
    Books = erlmcp_gate_counters:new(Principals),
    ok = erlmcp_gate_counters:limit(bounded(InFlight), Books),
    #{books => Books, bounds => Bounds,
      rates => rates(messages_per_second, messages_per_minute, messages_per_day, Bounds),
      principal_rates => rates(principal_messages_per_second, principal_messages_per_minute,
                               principal_messages_per_day, Bounds)}.

rates(Second, Minute, Day, Bounds) ->
    [{Period, Most} || {Period, Key} <- [{second, Second}, {minute, Minute}, {day, Day}],
                       Most <- [maps:get(Key, Bounds, infinity)], Most =/= infinity].

bounded(infinity) -> erlmcp_gate_account:most();
bounded(Limit) -> Limit.

-doc "The calling process holds a connection from this address.".
-spec connect(gate(), #{address := inet:ip_address() | local, atom() => term()}) ->
    {ok, ticket()} | {refuse, erlmcp_refusal:refusal()}.
connect(#{books := Books, bounds := Bounds} = Gate, #{address := Address}) ->
    #{connections := Most, connections_per_address := MostOfOne} = Bounds,
    case connectable(Gate) of
        open ->
            connection([{connections, 1, bounded(Most)}
                        | [{{address, network(Address)}, 1, MostOfOne}
                           || Address =/= local, MostOfOne =/= infinity]], Books);
        Refused ->
            Refused
    end.

connectable(Gate) ->
    case state(Gate) of
        open ->
            case erlmcp_descriptors:state() of
                ok -> open;
                _ -> {refuse, erlmcp_descriptors:refusal(?RETRY_MS)}
            end;
        Refused ->
            Refused
    end.

-doc """
The network that counts as one address: an address of IPv4, however it is written, and the 64 bits
of IPv6 that one customer has.
""".
-spec network(inet:ip_address() | local) -> tuple() | local.
network({0, 0, 0, 0, 0, 16#ffff, High, Low}) ->
    {High bsr 8, High band 255, Low bsr 8, Low band 255};
network({A, B, C, D, _, _, _, _}) ->
    {A, B, C, D, network};
network(Address) ->
    Address.

-doc "The calling process holds a connection of this tenant, who sent its first message on it.".
-spec joined(gate(), flow()) -> {ok, ticket()} | {refuse, erlmcp_refusal:refusal()}.
joined(#{bounds := #{connections_per_principal := infinity}}, _) ->
    {ok, free};
joined(#{books := Books, bounds := #{connections_per_principal := Most}}, Flow) ->
    connection([{{connections, Flow}, 1, Most}], Books).

connection(Wants, Books) ->
    case erlmcp_gate_counters:take_all(Wants, Books) of
        {ok, Held} -> {ok, {Books, erlmcp_gate_counters:write(Held, Books), connection}};
        Full -> {refuse, erlmcp_gate_refusal:new(Full)}
    end.

-doc """
A message of a tenant, which has been read and not yet been answered. A request has a place then, or
waits for one, see `await/2`; other messages are counted in the rates, and hold nothing.
""".
-spec enter(gate(), message()) -> {ok, ticket()} | {refuse, erlmcp_refusal:refusal()}.
enter(#{books := Books, rates := [], principal_rates := [],
        bounds := #{in_flight_per_principal := infinity}} = Gate, #{kind := request} = Message) ->
    %% What it has no bounds for costs nothing. Whether it is closed is seen where a place is taken.
    case ?NODE_IS_CLEAR orelse state(Gate) of
        {refuse, _} = Refused -> Refused;
        _ -> entered(Message, [], now(Books), Gate)
    end;
enter(Gate, #{kind := request} = Message) ->
    case state(Gate) of
        open -> come_in(Gate, Message);
        Refused -> Refused
    end;
enter(Gate, Message) ->
    %% What is in may need it to come to its end.
    come_in(Gate, Message).

come_in(#{books := Books, rates := Rates} = Gate, #{flow := Flow, kind := Kind} = Message) ->
    Now = now(Books),
    maybe
        {ok, Held} ?= of_principal(Flow, Kind, Now, Gate),
        ok ?= of_server(Rates, Held, Now, Books),
        entered(Message, Held, Now, Gate)
    end.

now(#{epoch := Epoch}) when is_integer(Epoch) ->
    erlang:monotonic_time(nanosecond) - Epoch.

of_principal(Flow, request, Now, #{books := Books, principal_rates := Rates, bounds := Bounds}) ->
    case Bounds of
        #{in_flight_per_principal := infinity} when Rates =:= [] ->
            {ok, []};
        #{in_flight_per_principal := infinity} ->
            counted(erlmcp_gate_counters:take_rates({principal, Flow}, Rates, Now, Books));
        #{in_flight_per_principal := Most} ->
            case erlmcp_gate_counters:take_one({principal, Flow}, Rates, Most, Now, Books) of
                {ok, _} = Taken -> Taken;
                {full, Observed} -> full({in_flight_per_principal, 1, Most}, Observed);
                Refused -> {refuse, erlmcp_gate_refusal:new(Refused)}
            end
    end;
of_principal(_, _, _, #{principal_rates := []}) ->
    {ok, []};
of_principal(Flow, _, Now, #{books := Books, principal_rates := Rates}) ->
    counted(erlmcp_gate_counters:take_rates({principal, Flow}, Rates, Now, Books)).

counted(ok) -> {ok, []};
counted(Refused) -> {refuse, erlmcp_gate_refusal:new(Refused)}.

full(Want, Observed) ->
    {refuse, erlmcp_gate_refusal:new({full, Want, Observed})}.

of_server([], _, _, _) ->
    ok;
of_server(Rates, Held, Now, Books) ->
    case erlmcp_gate_counters:take_rates(server, Rates, Now, Books) of
        ok ->
            ok;
        {wait, Rate, Milliseconds} ->
            ok = erlmcp_gate_counters:give(Held, Books),
            {refuse, erlmcp_gate_refusal:new({server_wait, Rate, Milliseconds})}
    end.

entered(#{kind := request} = Message, Held, Now, #{books := Books, bounds := Bounds} = Gate) ->
    #{sums := Sums} = Books,
    case erlmcp_gate_counters:enter(Held, Books) of
        draining ->
            ok = erlmcp_gate_counters:give(Held, Books),
            {refuse, erlmcp_gate_refusal:new(draining)};
        {full, Limit, Observed} when map_get(queue, Bounds) =:= 0 ->
            ok = erlmcp_gate_sums:found_none(Sums),
            ok = erlmcp_gate_counters:give(Held, Books),
            full({in_flight, 1, Limit}, Observed);
        {full, _, _} ->
            ok = erlmcp_gate_sums:found_none(Sums),
            queued(Message, Held, Now, Gate);
        Id ->
            {ok, {Books, Id, Now}}
    end;
entered(_, [], _, _) ->
    {ok, free}.

queued(#{flow := Flow, bytes := Bytes}, Held, Now, #{books := Books, bounds := Bounds}) ->
    #{queue := Most, queue_bytes := MostBytes, queue_per_principal := MostOfOne} = Bounds,
    Room = min(bounded(MostOfOne), erlmcp_gate_counters:room(Books)),
    Wants = [{{waiting, Flow}, 1, Room}, {waiting, 1, Most},
             {waiting_bytes, max(1, Bytes), MostBytes}],
    case erlmcp_gate_counters:take_all(Wants, Books) of
        {ok, Waits} ->
            Id = erlmcp_gate_counters:queue(Held, Waits, Books),
            {ok, {Books, Id, {waits, {Flow, Now, {Held, Waits}}}}};
        Full ->
            ok = erlmcp_gate_counters:give(Held, Books),
            {refuse, erlmcp_gate_refusal:new(Full)}
    end.

-doc "Whether a request had its place when it entered, and so need not wait for one.".
-spec has_place(ticket()) -> boolean().
has_place({_, _, {waits, _}}) -> false;
has_place(_) -> true.

-doc """
Waits until a request has its place, at most so many milliseconds; in the process of its call,
before it runs any code of the user's. What is refused has left.
""".
-spec await(ticket(), Milliseconds :: non_neg_integer()) ->
    {ok, ticket()} | {refuse, erlmcp_refusal:refusal()}.
await({Books, Id, {waits, Waiting}}, Milliseconds) ->
    case erlmcp_gate_queue:wait(Id, Waiting, Milliseconds, Books) of
        {granted, Since} ->
            await({Books, Id, Since}, Milliseconds);
        {refused, RetryMs} ->
            ok = erlmcp_gate_counters:leave(Id, Books),
            {refuse, erlmcp_gate_refusal:new({waited, RetryMs})}
    end;
await({#{sums := Sums} = Books, _, Since} = Ticket, _) ->
    ok = erlmcp_gate_sums:started(now(Books) - Since, Sums),
    {ok, Ticket}.

-doc """
A ticket for these alone, for the calling process: for one of a tool's calls at once, and for a call
in a rate.
""".
-spec hold(gate(), [erlmcp_gate_wants:want()]) ->
    {ok, ticket()} | {refuse, erlmcp_refusal:refusal()}.
hold(_, []) ->
    {ok, free};
hold(#{books := Books}, Wants) ->
    Ticket = {Books, erlmcp_gate_counters:write([], Books), untimed},
    case take(Ticket, Wants) of
        ok ->
            {ok, Ticket};
        Refused ->
            ok = leave(Ticket),
            Refused
    end.

-doc """
A ticket is for more: for one of a tool's calls at once, or for a call in a rate. What is refused
leaves the ticket as it was.
""".
-spec take(ticket(), [erlmcp_gate_wants:want()]) ->
    ok | {refuse, erlmcp_refusal:refusal()}.
take(_, []) ->
    ok;
take({Books, Id, _}, Wants) ->
    erlmcp_gate_wants:take(Id, Wants, Books).

-doc """
The ticket is in no seat (`m:erlmcp_gate_seat`) any more, so that another process can hold it. Who
lets another one know it says this before, since that one may leave at once.
""".
-spec unseat(ticket()) -> ok.
unseat(free) ->
    ok;
unseat({Books, Id, _}) ->
    erlmcp_gate_counters:unseat(Id, Books).

-doc "The calling process will not enter for a while, and keeps no seat until it does.".
-spec rest(gate()) -> ok.
rest(#{books := Books}) ->
    erlmcp_gate_counters:give_up_seat(Books).

-doc "Another process holds the ticket from now on, after `unseat/1`.".
-spec hand_over(ticket(), pid()) -> ok.
hand_over(free, _) ->
    ok;
hand_over({Books, Id, _}, Pid) ->
    erlmcp_gate_counters:hand_over(Id, Pid, Books).

-doc """
Gives back all that the ticket is for, if that was not done before. Any process may; a connection's
is left by its own, whose requests are over.
""".
-spec leave(ticket()) -> ok.
leave(free) ->
    ok;
leave({Books, Id, connection}) ->
    ok = erlmcp_gate_counters:give_up_seat(Books),
    erlmcp_gate_counters:leave(Id, Books);
leave({Books, Id, _}) ->
    erlmcp_gate_counters:leave(Id, Books).

-doc """
The calling process had a place for a request, and ran that and nothing else. Of one in sixteen it
is counted what work it was.
""".
-spec ran(ticket()) -> ok.
ran({#{sums := Sums}, _, _}) ->
    case erlang:phash2(self(), ?SAMPLED) of
        0 ->
            {reductions, Reductions} = process_info(self(), reductions),
            erlmcp_gate_sums:worked(Reductions, Sums);
        _ ->
            ok
    end;
ran(free) ->
    ok.

-doc """
Whether a request could enter now, as far as the state of the server goes and not its bounds: for
who wants to refuse before it has read it. Other messages enter in any state.
""".
-spec state(gate()) -> open | {refuse, erlmcp_refusal:refusal()}.
state(#{books := Books}) ->
    case erlmcp_gate_counters:is_draining(Books) of
        true ->
            {refuse, erlmcp_gate_refusal:new(draining)};
        false ->
            machine()
    end.

machine() ->
    case {erlmcp_memory_guard:state(), erlmcp_processor_guard:state()} of
        {ok, ok} -> open;
        {full, _} -> {refuse, erlmcp_memory_guard:refusal(?RETRY_MS)};
        {ok, busy} -> {refuse, erlmcp_processor_guard:refusal(?RETRY_MS)}
    end.

-doc "From now on no request and no connection enters; who is in leaves as always.".
-spec drain(gate()) -> ok.
drain(#{books := Books}) ->
    erlmcp_gate_counters:drain(Books).

-doc "How many requests of the server may run at once, as it is now.".
-spec limit(gate()) -> pos_integer().
limit(#{books := Books}) ->
    erlmcp_gate_counters:limit(Books).

-doc "Changes that, to no more than the bound `in_flight`.".
-spec limit(gate(), pos_integer()) -> ok.
limit(#{books := Books, bounds := #{in_flight := Most}}, Limit) ->
    erlmcp_gate_counters:limit(min(Limit, bounded(Most)), Books).

-doc """
Changes for how many waiting requests there is room, beside the bounds of the queue; `none` leaves
it at those. One tenant may have as many as there is room left for, and ten in any case.
""".
-spec room(gate(), pos_integer() | none) -> ok.
room(#{books := Books}, none) ->
    erlmcp_gate_counters:room(erlmcp_gate_account:most(), Books);
room(#{books := Books}, Room) ->
    erlmcp_gate_counters:room(Room, Books).

-doc "How many requests are in flight or wait, connections are open, or an account holds.".
-spec held(gate(), erlmcp_gate_counters:key()) -> non_neg_integer().
held(#{books := Books}, Key) ->
    erlmcp_gate_counters:held(Key, Books).

-doc "The processes whose requests are in flight, or wait.".
-spec calls(gate()) -> [pid()].
calls(#{books := Books}) ->
    erlmcp_gate_counters:calls(Books).

-doc "The sums of what happened at it.".
-spec sums(gate()) -> erlmcp_gate_sums:sums().
sums(#{books := #{sums := Sums}}) ->
    Sums.
