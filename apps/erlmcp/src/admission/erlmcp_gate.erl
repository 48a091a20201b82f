-module(erlmcp_gate).
-moduledoc """
Who may enter a server, and how many: every connection and every message of every transport passes
here. What enters gets a ticket, what leaves gives it back; what is over a bound is refused at once.

No process is between them. What is held is counted in words that all change themselves
(`m:erlmcp_account`), and who holds it is a row (`m:erlmcp_ledger`): `m:erlmcp_gate_keeper` gives
back what the dead held. Only who has to wait for a place meets a process, `m:erlmcp_gate_queue`.

A tenant (`flow`) is whom the bounds of one principal are for: a principal, or the address of an
anonymous client. A bound that is `infinity` costs nothing.
""".

-export([new/1]).
-export([connect/2, joined/2, enter/2, await/2, take/2, hand_over/2, leave/1]).
-export([state/1, drain/1, limit/1, limit/2, held/2]).
-export([sweep/1, turn/1, astray/3, correct/3, now/1]).

-export_type([gate/0, bounds/0, bound/0, message/0, ticket/0, flow/0]).

-doc """
The bounds of a gate; each is `infinity` unless given.

- `in_flight`: requests of the server that run at once, `in_flight_per_principal` those of one
  tenant, waiting ones among them.
- `connections`: open connections, `connections_per_address` those from one address (of IPv6: from
  one network of 64 bits), `connections_per_principal` those of one tenant.
- `messages_per_second`, `messages_per_minute`, `messages_per_day`: of the server;
  `principal_messages_per_second` and so on of one tenant.
- `principals`: tenants, addresses and tools that are counted at once (10,000).
""".
-type bounds() :: #{
    in_flight => bound(), in_flight_per_principal => bound(),
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
    words := erlmcp_account:words(), accounts := erlmcp_accounts:accounts(),
    ledger := erlmcp_ledger:ledger(), bounds := bounds(), epoch := integer(),
    rates := [erlmcp_rate:rate()], principal_rates := [erlmcp_rate:rate()],
    counts_principals := boolean()
}.
-opaque ticket() :: {gate(), erlmcp_ledger:id()} | free.

%% The words of the server itself, before those of the accounts. Those that are written often are
%% so far apart that they share no line of a processor's cache.
-define(STATE, 1).
-define(LIMIT, 2).
-define(GENERATION, 3).
-define(IN_FLIGHT, 9).
-define(CONNECTIONS, 17).
-define(RATES, 25).
-define(WORDS, 32).

-define(OPEN, 0).
-define(DRAINING, 1).

%% More than any account can hold.
-define(UNBOUNDED, (1 bsl 28)).

-doc "A gate with these bounds. Its tables belong to the calling process.".
-spec new(bounds()) -> gate().
new(Given) ->
    Bounds = maps:merge(#{in_flight => infinity, in_flight_per_principal => infinity,
                          connections => infinity, connections_per_address => infinity,
                          connections_per_principal => infinity, principals => 10_000}, Given),
    #{principals := Principals, in_flight := InFlight} = Bounds,
    #{words := Words} = Accounts = erlmcp_accounts:new(Principals, ?WORDS),
    ok = atomics:put(Words, ?LIMIT, bounded(InFlight)),
    PrincipalRates = rates(principal_messages_per_second, principal_messages_per_minute,
                           principal_messages_per_day, Bounds),
    #{words => Words, accounts => Accounts, ledger => erlmcp_ledger:new(), bounds => Bounds,
      %% Zero is before all that a rate counts.
      epoch => erlang:monotonic_time(nanosecond) - 1,
      rates => rates(messages_per_second, messages_per_minute, messages_per_day, Bounds),
      principal_rates => PrincipalRates,
      counts_principals => PrincipalRates =/= []
          orelse maps:get(in_flight_per_principal, Bounds) =/= infinity}.

rates(Second, Minute, Day, Bounds) ->
    [{Period, Most} || {Period, Key} <- [{second, Second}, {minute, Minute}, {day, Day}],
                       Most <- [maps:get(Key, Bounds, infinity)], Most =/= infinity].

bounded(infinity) -> ?UNBOUNDED;
bounded(Limit) -> Limit.

-doc "The calling process holds a connection from this address.".
-spec connect(gate(), #{address := inet:ip_address() | local, atom() => term()}) ->
    {ok, ticket()} | {refuse, erlmcp_refusal:refusal()}.
connect(#{words := Words, bounds := Bounds} = Gate, #{address := Address}) ->
    #{connections := Most, connections_per_address := MostOfOne} = Bounds,
    Generation = generation(Words),
    case atomics:get(Words, ?STATE) of
        ?DRAINING ->
            {refuse, erlmcp_gate_refusal:new(draining)};
        ?OPEN ->
            case erlmcp_account:take(Words, ?CONNECTIONS, {1, Generation}, bounded(Most)) of
                {ok, Share} ->
                    Held = [{?CONNECTIONS, Share}],
                    of_one({address, network(Address)}, MostOfOne, connections_per_address,
                           Generation, Held, Gate);
                {full, Observed} ->
                    {refuse, erlmcp_gate_refusal:new({connections, Most, Observed})}
            end
    end.

network({A, B, C, D, _, _, _, _}) -> {A, B, C, D};
network(Address) -> Address.

-doc "The calling process holds a connection of this tenant, who sent its first message on it.".
-spec joined(gate(), flow()) -> {ok, ticket()} | {refuse, erlmcp_refusal:refusal()}.
joined(#{words := Words, bounds := #{connections_per_principal := Most}} = Gate, Flow) ->
    of_one({connections, Flow}, Most, connections_per_principal, generation(Words), [], Gate).

of_one({_, local}, _, _, _, Held, Gate) ->
    {ok, ticket(Held, untimed, Gate)};
of_one(_, infinity, _, _, [], _) ->
    {ok, free};
of_one(_, infinity, _, _, Held, Gate) ->
    {ok, ticket(Held, untimed, Gate)};
of_one(Key, Most, Bound, Generation, Held, #{accounts := Accounts} = Gate) ->
    case erlmcp_accounts:take(Key, Generation, Most, Accounts) of
        {ok, Share} ->
            {ok, ticket([Share | Held], untimed, Gate)};
        {full, Observed} ->
            ok = give(Held, Gate),
            {refuse, erlmcp_gate_refusal:new({Bound, Most, Observed})};
        full ->
            ok = give(Held, Gate),
            {refuse, erlmcp_gate_refusal:new(accounts)}
    end.

-doc """
A message of a tenant, which has been read and not yet been answered. A request has a place then, or
waits for one, see `await/2`; other messages are counted in the rates, and hold nothing.
""".
-spec enter(gate(), message()) -> {ok, ticket()} | {refuse, erlmcp_refusal:refusal()}.
enter(#{words := Words} = Gate, #{flow := Flow, kind := Kind}) ->
    case atomics:get(Words, ?STATE) of
        ?OPEN ->
            Now = now(Gate),
            maybe
                {ok, Held} ?= of_principal(Gate, Flow, Kind, Now),
                ok ?= of_server(Gate, Held, Now),
                entered(Kind, Held, Now, Gate)
            end;
        ?DRAINING ->
            {refuse, erlmcp_gate_refusal:new(draining)}
    end.

of_principal(#{counts_principals := false}, _, _, _) ->
    {ok, []};
of_principal(#{accounts := Accounts} = Gate, Flow, Kind, Now) ->
    case erlmcp_accounts:find({principal, Flow}, Accounts) of
        {ok, Index} -> of_principal(Index, Gate, Flow, Kind, Now);
        full -> {refuse, erlmcp_gate_refusal:new(accounts)}
    end.

of_principal(Index, #{words := Words, principal_rates := Rates} = Gate, Flow, Kind, Now) ->
    case take_rates(Rates, Index, Words, Now) of
        ok when Kind =:= request ->
            #{bounds := #{in_flight_per_principal := Most}, accounts := Accounts} = Gate,
            case erlmcp_account:take(Words, Index, {1, generation(Words)}, bounded(Most)) of
                {ok, Share} ->
                    {ok, [{Index, Share}]};
                {full, Observed} ->
                    {refuse, erlmcp_gate_refusal:new({in_flight_per_principal, Most, Observed})};
                closed ->
                    ok = erlmcp_accounts:forget({principal, Flow}, Index, Accounts),
                    of_principal(Gate, Flow, Kind, Now)
            end;
        ok ->
            {ok, []};
        {wait, Rate, Milliseconds} ->
            {refuse, erlmcp_gate_refusal:new({rate, one, Rate, Milliseconds})}
    end.

%% The rates of an account stand after its first word.
take_rates([], _, _, _) ->
    ok;
take_rates([{Period, _} = Rate | Rates], Index, Words, Now) ->
    At = erlmcp_accounts:rate_index(Period, Index),
    case erlmcp_rate:take(Words, At, Rate, Now) of
        ok ->
            case take_rates(Rates, Index, Words, Now) of
                ok ->
                    ok;
                Wait ->
                    ok = erlmcp_rate:give(Words, At, Rate),
                    Wait
            end;
        {wait, Milliseconds} ->
            {wait, Rate, Milliseconds}
    end.

of_server(#{rates := []}, _, _) ->
    ok;
of_server(#{rates := Rates, words := Words} = Gate, Held, Now) ->
    case take_rates(Rates, ?RATES, Words, Now) of
        ok ->
            ok;
        {wait, Rate, Milliseconds} ->
            ok = give(Held, Gate),
            {refuse, erlmcp_gate_refusal:new({rate, server, Rate, Milliseconds})}
    end.

entered(request, Held, Now, #{words := Words} = Gate) ->
    Limit = atomics:get(Words, ?LIMIT),
    case erlmcp_account:take(Words, ?IN_FLIGHT, {1, generation(Words)}, Limit) of
        {ok, Share} ->
            {ok, ticket([{?IN_FLIGHT, Share} | Held], Now, Gate)};
        {full, Observed} ->
            ok = give(Held, Gate),
            {refuse, erlmcp_gate_refusal:new({in_flight, Limit, Observed})}
    end;
entered(_, [], _, _) ->
    {ok, free}.

-doc """
Waits until a request has its place, at most so many milliseconds; in the process of its call,
before it runs any code of the user's. What is refused has left.
""".
-spec await(ticket(), Milliseconds :: non_neg_integer()) ->
    {ok, ticket()} | {refuse, erlmcp_refusal:refusal()}.
await(Ticket, _) ->
    {ok, Ticket}.

-doc """
A ticket is for more: for one of a tool's calls at once, or for a call in a rate. What is refused
leaves the ticket as it was.
""".
-spec take(ticket(), [{erlmcp_accounts:key(), {at_once, pos_integer()} | erlmcp_rate:rate()}]) ->
    ok | {refuse, erlmcp_refusal:refusal()}.
take(_, []) ->
    ok;
take({#{words := Words, accounts := Accounts}, _} = Ticket, [{Key, {at_once, Most}} | More]) ->
    case erlmcp_accounts:take(Key, generation(Words), Most, Accounts) of
        {ok, Share} -> taken([Share], More, Ticket);
        {full, Observed} -> {refuse, erlmcp_gate_refusal:new({Key, Most, Observed})};
        full -> {refuse, erlmcp_gate_refusal:new(accounts)}
    end;
take({#{words := Words, accounts := Accounts} = Gate, _} = Ticket,
     [{Key, {Period, _} = Rate} | More]) ->
    case erlmcp_accounts:find(Key, Accounts) of
        {ok, Index} ->
            case take_rates([Rate], Index, Words, now(Gate)) of
                ok ->
                    case take(Ticket, More) of
                        ok ->
                            ok;
                        Refused ->
                            At = erlmcp_accounts:rate_index(Period, Index),
                            ok = erlmcp_rate:give(Words, At, Rate),
                            Refused
                    end;
                {wait, Rate, Milliseconds} ->
                    {refuse, erlmcp_gate_refusal:new({rate, one, Rate, Milliseconds})}
            end;
        full ->
            {refuse, erlmcp_gate_refusal:new(accounts)}
    end.

taken(Shares, More, {#{ledger := Ledger} = Gate, Id} = Ticket) ->
    case take(Ticket, More) of
        ok ->
            %% Who left meanwhile has given back all that the row had.
            _ = erlmcp_ledger:add(Id, Shares, Ledger) orelse give(Shares, Gate),
            ok;
        Refused ->
            ok = give(Shares, Gate),
            Refused
    end.

-doc "Another process holds the ticket from now on.".
-spec hand_over(ticket(), pid()) -> ok.
hand_over(free, _) ->
    ok;
hand_over({#{ledger := Ledger}, Id}, Pid) ->
    _ = erlmcp_ledger:hand_over(Id, Pid, Ledger),
    ok.

-doc "Gives back all that the ticket is for, if that was not done before. Any process may.".
-spec leave(ticket()) -> ok.
leave(free) ->
    ok;
leave({#{ledger := Ledger} = Gate, Id}) ->
    case erlmcp_ledger:take(Id, Ledger) of
        [Row] -> left(Row, Gate);
        [] -> ok
    end.

left({_, _, Held, Waits, _}, Gate) ->
    ok = give(Held, Gate),
    give(Waits, Gate).

give([], _) ->
    ok;
give([{Index, Share} | Shares], #{words := Words} = Gate) ->
    ok = erlmcp_account:give(Words, Index, Share),
    give(Shares, Gate).

-doc """
Whether a message could enter now, as far as the server alone goes: for who wants to refuse before
it has read the message. One that may is counted only when it does enter.
""".
-spec state(gate()) -> open | {refuse, erlmcp_refusal:refusal()}.
state(#{words := Words}) ->
    case atomics:get(Words, ?STATE) of
        ?OPEN -> open;
        ?DRAINING -> {refuse, erlmcp_gate_refusal:new(draining)}
    end.

-doc "From now on nobody enters; who is in leaves as always.".
-spec drain(gate()) -> ok.
drain(#{words := Words}) ->
    atomics:put(Words, ?STATE, ?DRAINING).

-doc "How many requests of the server may run at once, as it is now.".
-spec limit(gate()) -> pos_integer().
limit(#{words := Words}) ->
    atomics:get(Words, ?LIMIT).

-doc "Changes that, to no more than the bound `in_flight`.".
-spec limit(gate(), pos_integer()) -> ok.
limit(#{words := Words, bounds := #{in_flight := Most}}, Limit) ->
    atomics:put(Words, ?LIMIT, min(Limit, bounded(Most))).

-doc "How many requests are in flight, how many connections are open, or what an account holds.".
-spec held(gate(), in_flight | connections | erlmcp_accounts:key()) -> non_neg_integer().
held(#{words := Words}, in_flight) ->
    erlmcp_account:held(Words, ?IN_FLIGHT);
held(#{words := Words}, connections) ->
    erlmcp_account:held(Words, ?CONNECTIONS);
held(#{words := Words, accounts := Accounts}, Key) ->
    case erlmcp_accounts:known(Key, Accounts) of
        {ok, Index} -> erlmcp_account:held(Words, Index);
        none -> 0
    end.

ticket(Held, Since, #{ledger := Ledger} = Gate) ->
    Id = erlang:unique_integer(),
    ok = erlmcp_ledger:write(Id, Held, [], Since, Ledger),
    {Gate, Id}.

generation(Words) ->
    atomics:get(Words, ?GENERATION).

-doc "The time of the gate's rates, in nanoseconds.".
-spec now(gate()) -> pos_integer().
now(#{epoch := Epoch}) ->
    erlang:monotonic_time(nanosecond) - Epoch.

-doc "Gives back what the dead held; the rows of the others.".
-spec sweep(gate()) -> [erlmcp_ledger:row()].
sweep(#{ledger := Ledger} = Gate) ->
    erlmcp_ledger:fold(fun({Id, Holder, _, _, _} = Row, Alive) ->
        case is_process_alive(Holder) of
            true ->
                [Row | Alive];
            false ->
                ok = leave({Gate, Id}),
                Alive
        end
    end, [], Ledger).

-doc "The other generation begins; gives the one that is over.".
-spec turn(gate()) -> erlmcp_account:generation().
turn(#{words := Words}) ->
    Over = generation(Words),
    ok = atomics:put(Words, ?GENERATION, 1 - Over),
    Over.

-doc "What is counted of a generation, and is in none of these rows.".
-spec astray(erlmcp_account:generation(), [erlmcp_ledger:row()], gate()) ->
    #{erlmcp_account:index() => integer()}.
astray(Generation, Rows, #{words := Words, accounts := Accounts}) ->
    Written = lists:foldl(fun({_, _, Held, Waits, _}, Sums) ->
                              add(Held, Generation, add(Waits, Generation, Sums))
                          end, #{}, Rows),
    #{Index => More || Index <- [?IN_FLIGHT, ?CONNECTIONS | erlmcp_accounts:indexes(Accounts)],
                       More <- [erlmcp_account:held(Words, Index, Generation)
                                - maps:get(Index, Written, 0)],
                       More =/= 0}.

add(Shares, Generation, Sums) ->
    lists:foldl(fun({Index, Share}, Sum) ->
        case erlmcp_account:amount(Share, Generation) of
            0 -> Sum;
            Amount -> Sum#{Index => maps:get(Index, Sum, 0) + Amount}
        end
    end, Sums, Shares).

-doc "Sets right what was astray of a generation that is over.".
-spec correct(erlmcp_account:generation(), #{erlmcp_account:index() => integer()}, gate()) -> ok.
correct(Generation, Astray, #{words := Words}) ->
    maps:foreach(fun(Index, More) ->
                     erlmcp_account:correct(Words, Index, Generation, -More)
                 end, Astray).
