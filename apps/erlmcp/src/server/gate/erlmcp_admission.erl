-module(erlmcp_admission).
-moduledoc """
What the transports ask of their server's gate (`erlmcp_gate`): a place for each connection, and one
for each message after it was decoded and before the engine sees it.

The place of a message that becomes a call goes with the call, which leaves it when it ends
(`erlmcp_call`); whatever is answered at once leaves at once. The messages of a batch are messages
like others: those that may not enter are refused in its answer.

Internal.
""".

-export([connect/3, leave/1]).
-export([flow/2, is_open/1, enter/4, enter_unread/3, effects/3, forgo/1]).

-export_type([flow/0, admitted/0]).

-doc "For whom the bounds of one are: a principal, or where the anonymous come from.".
-type flow() :: erlmcp_auth:principal() | {anonymous, Network :: tuple() | local}.
-type ticket() :: erlmcp_gate:ticket().
-opaque admitted() ::
    ticket() | {batch, [{erlmcp_message:id() | undefined, ticket()}], Refused :: [iodata()]}.

-doc """
Places for a connection whose principal is known from the start. The calling process holds them,
until it leaves them or ends.
""".
-spec connect(inet:ip_address() | local, erlmcp_auth:principal(), erlmcp_instance:instance()) ->
    {ok, [ticket()]} | {refuse, erlmcp_refusal:refusal()}.
connect(Ip, Principal, #{gate := Gate}) ->
    maybe
        {ok, Place} ?= erlmcp_gate:connect(Gate, #{address => Ip}),
        case joined(Principal, Gate) of
            {ok, Joined} ->
                {ok, [Place | Joined]};
            {refuse, _} = Refused ->
                ok = erlmcp_gate:leave(Place),
                Refused
        end
    end.

%% The anonymous are many, and told apart by their addresses.
joined(anonymous, _) ->
    {ok, []};
joined(Principal, Gate) ->
    case erlmcp_gate:joined(Gate, Principal) of
        {ok, Ticket} -> {ok, [Ticket]};
        {refuse, _} = Refused -> Refused
    end.

-doc "Gives places back.".
-spec leave([ticket()]) -> ok.
leave(Tickets) ->
    lists:foreach(fun erlmcp_gate:leave/1, Tickets).

-doc "The flow of a principal's messages that come from an address.".
-spec flow(erlmcp_auth:principal(), inet:ip_address() | local) -> flow().
flow(anonymous, Address) -> {anonymous, erlmcp_gate:network(Address)};
flow(Principal, _) -> Principal.

-doc "Returns `true` if the server takes requests, as long as there is room for them.".
-spec is_open(erlmcp_instance:instance()) -> boolean().
is_open(#{gate := Gate}) -> erlmcp_gate:state(Gate) =:= open.

-doc """
Asks for a place for a decoded message of so many bytes. Gives the message as the engine is to have
it, without what may not enter of a batch; or the refusal, or the answer to a batch of which nothing
may.
""".
-spec enter(Json :: term(), Bytes :: non_neg_integer(), flow(), erlmcp_instance:instance()) ->
    {ok, Json :: term(), admitted()}
    | {refuse, erlmcp_message:id() | undefined, erlmcp_refusal:refusal()}
    | {answer, iodata()}.
enter([_ | _] = Batch, Bytes, Flow, Instance) ->
    case length(Batch) =< erlmcp_engine:max_batch() of
        true -> each(Batch, Bytes div length(Batch), Flow, Instance, {[], [], []});
        false -> whole(Batch, Bytes, Flow, Instance)
    end;
enter(Json, Bytes, Flow, Instance) ->
    whole(Json, Bytes, Flow, Instance).

whole(Json, Bytes, Flow, Instance) ->
    case one(Json, Bytes, Flow, Instance) of
        {ok, Ticket} -> {ok, Json, Ticket};
        {refuse, Refusal} -> {refuse, id(Json), Refusal}
    end.

-doc "The same for a request of so many bytes, before it is decoded.".
-spec enter_unread(Bytes :: non_neg_integer(), flow(), erlmcp_instance:instance()) ->
    {ok, admitted()} | {refuse, erlmcp_refusal:refusal()}.
enter_unread(Bytes, Flow, Instance) ->
    place(request, Bytes, Flow, Instance).

one(Json, Bytes, Flow, Instance) ->
    place(kind(Json), Bytes, Flow, Instance).

place(Kind, Bytes, Flow, #{gate := Gate} = Instance) ->
    case erlmcp_gate:enter(Gate, #{flow => Flow, kind => Kind, bytes => Bytes}) of
        {ok, _} = Entered ->
            Entered;
        {refuse, Refusal} ->
            {refuse, erlmcp_error_budget:count_refusal(Refusal, Instance)}
    end.

kind(#{~"method" := _, ~"id" := _}) -> request;
kind(#{~"method" := _}) -> notification;
kind(#{~"id" := _}) -> response;
%% What is no message is answered with an error, as a request is.
kind(_) -> request.

each([], _, _, _, {[], [], Refused}) ->
    {answer, erlmcp_message:batch(lists:reverse(Refused))};
each([], _, _, _, {Batch, Tickets, Refused}) ->
    {ok, lists:reverse(Batch), {batch, Tickets, Refused}};
each([Json | Rest], Bytes, Flow, Instance, {Batch, Tickets, Refused}) ->
    case one(Json, Bytes, Flow, Instance) of
        {ok, Ticket} ->
            each(Rest, Bytes, Flow, Instance,
                 {[Json | Batch], [{id(Json), Ticket} | Tickets], Refused});
        {refuse, Refusal} ->
            Error = erlmcp_message:error(id(Json), Refusal),
            each(Rest, Bytes, Flow, Instance, {Batch, Tickets, [Error | Refused]})
    end.

id(#{~"id" := Id}) when is_binary(Id); is_integer(Id) -> Id;
id(_) -> undefined.

-doc """
The engine's effects of what was admitted. A call has its place with it, and whose it is; what is
answered already leaves. A batch is answered with what of it was refused, too.
""".
-spec effects([erlmcp_engine:effect(), ...], admitted(), flow()) -> [erlmcp_engine:effect(), ...].
effects(Effects, {batch, Tickets, Refused}, Flow) ->
    {Silent, [Answer]} = lists:split(length(Effects) - 1, Effects),
    Silent ++ [answer(Answer, Tickets, [{reply, 200, Error} || Error <- Refused], Flow)];
effects([{call, Call}], Ticket, Flow) ->
    [{call, Call#{ticket => Ticket, flow => Flow}}];
effects(Effects, Ticket, _) ->
    ok = erlmcp_gate:leave(Ticket),
    Effects.

answer({batch, Items}, Tickets, Refused, Flow) ->
    {Given, Left} = lists:mapfoldl(fun(Item, Unused) -> item(Item, Flow, Unused) end, Tickets,
                                   Items),
    ok = leave([Ticket || {_, Ticket} <- Left]),
    {batch, Given ++ Refused};
answer(Answer, Tickets, Refused, _) ->
    ok = leave([Ticket || {_, Ticket} <- Tickets]),
    case {Answer, Refused} of
        {accepted, [_ | _]} -> {batch, Refused};
        _ -> Answer
    end.

item({call, #{id := Id} = Call}, Flow, Tickets) ->
    {value, {_, Ticket}, Left} = lists:keytake(Id, 1, Tickets),
    {{call, Call#{ticket => Ticket, flow => Flow}}, Left};
item(Item, _, Tickets) ->
    {Item, Tickets}.

-doc "Leaves what was admitted and comes to nothing.".
-spec forgo(admitted()) -> ok.
forgo({batch, Tickets, _}) -> leave([Ticket || {_, Ticket} <- Tickets]);
forgo(Ticket) -> erlmcp_gate:leave(Ticket).
