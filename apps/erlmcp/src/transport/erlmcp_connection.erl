-module(erlmcp_connection).
-moduledoc """
A connection that carries messages both ways, as a value: bytes in, bytes out, one message a line;
or, for HTTP+SSE, decoded messages in, events out. The shells around it (`erlmcp_shell` for TCP and
stdio, `erlmcp_sse_session`) write what it gives, and their process owns the calls.

Source: specification 2026-07-28, "Transports / stdio".
""".

-export([new/3, new/4, admitted/2, data/2, message/4, receive_timeout/1, end_of_input/1, info/2,
         held/1, give_up/1, busy/1, rest/1, close/1]).

-export_type([connection/0]).

-opaque connection() :: #{
    instance := erlmcp_instance:instance(),
    envelope := erlmcp_engine:envelope(),
    flow := erlmcp_entrance:flow(),
    framing := erlmcp_line:state() | events,
    %% reductions of the process when it had the lines that it works on now; one alone is no work
    %% that others wait for
    since := non_neg_integer() | none,
    session := erlmcp_engine:session() | none,
    %% of the connection itself, at the server's gate
    places := [erlmcp_gate:ticket()],
    %% what the client watches: by its session, or by a request that stays open
    watched := #{erlmcp_subscriptions:subscription() =>
                     {[erlmcp_engine:topic()], none | erlmcp_subscription:closing()}},
    calls := erlmcp_calls:calls(),
    %% whether more answers may be made ready here before some are written
    room := boolean()
}.

%% Microseconds that a quick call takes.
-define(QUICK, 50).
%% Reductions after which what arrived together is no more answered here, be it quick: some ten
%% milliseconds, in which the first answer waits to be written.
-define(TURN, 400_000).
%% Bytes of answers after which it is not, since they are kept until then.
-define(READY, 131_072).

-doc """
A new connection to a server, of a principal, from an address: one message a line, both ways.
""".
-spec new(erlmcp_instance:instance(), erlmcp_auth:principal(), inet:ip_address() | local) ->
    connection().
new(#{limits := #{message_bytes := Max}} = Instance, Principal, Address) ->
    new(erlmcp_line:new(Max), Instance, Principal, Address).

-doc "The same with `events` for its framing: messages that are answered by events.".
-spec new(erlmcp_line:state() | events, erlmcp_instance:instance(), erlmcp_auth:principal(),
          inet:ip_address() | local) -> connection().
new(Framing, Instance, Principal, Address) ->
    #{instance => Instance, envelope => #{headers => none, principal => Principal},
      flow => erlmcp_entrance:flow(Principal, Address),
      framing => Framing, since => none, session => none, places => [],
      watched => #{}, calls => erlmcp_calls:new(Instance), room => true}.

-doc "The connection with its places at the server's gate, which it leaves when it is closed.".
-spec admitted([erlmcp_gate:ticket()], connection()) -> connection().
admitted(Places, Connection) ->
    Connection#{places := Places}.

-doc """
What arrived. Gives all that is ready to be written, as one piece, and whether a message has begun
(`started`), goes on (`unfinished`), or none is awaited (`complete`).
""".
-spec data(binary(), connection()) ->
    {started | unfinished | complete, iodata(), connection()}.
data(Bytes, #{framing := Framing} = Connection) ->
    {Lines, Rest} = erlmcp_line:push(Bytes, Framing),
    {Out, Next} = lines(Lines, Connection#{framing := Rest}),
    Input = case erlmcp_line:is_partial(Rest) of
        false -> complete;
        true when Lines =:= [] -> unfinished;
        true -> started
    end,
    {Input, Out, Next}.

-doc "The refusal of a message that did not arrive in time; nothing is read after it.".
-spec receive_timeout(connection()) -> iodata().
receive_timeout(#{instance := #{limits := #{receive_timeout_ms := Limit}}} = Connection) ->
    Refusal = erlmcp_refusal:new(timeout, ~"the message did not arrive in time",
                                 #{limit => Limit}),
    framed(erlmcp_message:error(undefined, Refusal), Connection).

-doc "Nothing more will arrive: an unterminated last line counts as one.".
-spec end_of_input(connection()) -> {iodata(), connection()}.
end_of_input(#{framing := Framing} = Connection) ->
    {Out, #{calls := Calls, watched := Watched} = Next} =
        lines(erlmcp_line:flush(Framing), Connection),
    %% The subscriptions of a client that has no more to say end, and it may still read so.
    Ends = [framed(Bytes, Next)
            || Id := {_, Closed} <- Watched, Id =/= session,
               Bytes <- erlmcp_subscription:closed(Closed)],
    ok = unwatch(Next),
    {Withdrawn, Left} = erlmcp_calls:end_of_input(Calls),
    {[Out, Ends, withdrawn(Withdrawn, Next)], Next#{calls := Left, watched := #{}}}.

lines([Line], Connection) ->
    line(Line, Connection);
lines([], Connection) ->
    {[], Connection};
lines(Lines, Connection) ->
    {reductions, Since} = process_info(self(), reductions),
    {Out, Next} = lines(Lines, give_way, {[], 0}, Connection#{since := Since}),
    {Out, Next#{since := none, room := true}}.

lines([], _, {Out, _}, Connection) ->
    {lists:reverse(Out), Connection};
lines([Line | Lines], Way, Ready, #{calls := Before} = Connection) ->
    {Bytes, #{calls := Calls} = Next} = line(Line, Connection),
    Started = erlmcp_calls:count(Calls) > erlmcp_calls:count(Before),
    {More, Last} = ready(Bytes, Ready, Next),
    lines(Lines, way(Way, Started andalso Lines =/= []), More, Last).

%% What answers with much runs in its own process from then on, and is written as it ends.
ready(Bytes, {Out, Before}, Connection) ->
    case Before + iolist_size(Bytes) of
        Size when Size >= ?READY, Before < ?READY ->
            {{[Bytes | Out], Size}, Connection#{room := false}};
        Size ->
            {{[Bytes | Out], Size}, Connection}
    end.

way(give_way, true) -> give_way();
way(Way, _) -> Way.

%% A call that was just started and is quick is over before the next line is looked at: its memory
%% is that call's again, and no other scheduler wakes up to find that there is nothing left for it.
%% One that is not would keep those behind it waiting, which other schedulers could run: for the
%% rest of these lines nobody is waited for.
give_way() ->
    Begin = erlang:monotonic_time(microsecond),
    true = erlang:yield(),
    case erlang:monotonic_time(microsecond) - Begin of
        Taken when Taken =< ?QUICK -> give_way;
        _ -> go_on
    end.

line({too_large, Observed}, #{instance := #{limits := #{message_bytes := Max}}} = Connection) ->
    Refusal = erlmcp_refusal:new(message_too_large, ~"the message is too large",
                                 #{limit => Max, observed => Observed}),
    {framed(erlmcp_message:error(undefined, Refusal), Connection), Connection};
line(Line, #{instance := #{limits := Limits}} = Connection) ->
    case erlmcp_connection_reader:decode(Line, Limits) of
        {ok, Json} ->
            message(Json, byte_size(Line), Connection);
        {error, Reason} ->
            Error = erlmcp_message:error(undefined, erlmcp_params:unreadable(Reason)),
            {framed(Error, Connection), Connection}
    end.

-doc """
A message that arrived decoded, of so many bytes, and who sent it: with which scopes. Gives what is
ready to be written.
""".
-spec message(Json :: term(), Bytes :: non_neg_integer(), erlmcp_auth:identity(), connection()) ->
    {iodata(), connection()}.
message(Json, Bytes, Identity, #{envelope := Envelope} = Connection) ->
    {Out, Next} = message(Json, Bytes, Connection#{envelope := maps:merge(Envelope, Identity)}),
    {Out, Next#{envelope := Envelope}}.

message(Json, Bytes, #{instance := Instance, flow := Flow} = Connection) ->
    case erlmcp_entrance:enter(Json, Bytes, Flow, Instance) of
        {ok, Message, Admitted} ->
            handle(Message, Admitted, Connection);
        {refuse, Id, Refusal} ->
            {framed(erlmcp_message:error(Id, Refusal), Connection), Connection};
        {answer, Answer} ->
            {framed(Answer, Connection), Connection}
    end.

handle(Json, Admitted, Connection) ->
    #{instance := Instance, envelope := Envelope, session := Session} = Connection,
    Catalog = erlmcp_published:catalog(Instance),
    {Effects, Next} = erlmcp_engine:handle(Json, Envelope, Catalog, Session),
    ok = erlmcp_answers:known(Effects, Instance),
    effects(erlmcp_entrance:effects(Effects, Admitted), [],
            opened(Session, Connection#{session := Next})).

%% A session hears of changes of the lists from its beginning.
opened(none, #{session := #{}} = Connection) ->
    watch(session, [tool, prompt, resource], none, Connection);
opened(_, Connection) ->
    Connection.

watch(Subscription, Topics, Closed, #{instance := Instance, watched := Watched} = Connection) ->
    #{envelope := #{principal := Principal}} = Connection,
    ok = erlmcp_subscriptions:add(Topics, owner(), Subscription, Principal,
                                  erlmcp_instance:subscriptions(Instance)),
    Connection#{watched := Watched#{Subscription => {Topics, Closed}}}.

unwatch(Subscription, Topics, #{instance := Instance}) ->
    erlmcp_subscriptions:remove(Topics, owner(), Subscription,
                                erlmcp_instance:subscriptions(Instance)).

owner() ->
    {self(), erlmcp_connection}.

effects([], Out, Connection) ->
    {lists:reverse(Out), Connection};
effects([{reply, _, Bytes} | Effects], Out, Connection) ->
    effects(Effects, [framed(Bytes, Connection) | Out], Connection);
effects([{call, Call} | Effects], Out, #{calls := Calls} = Connection) ->
    maybe
        start ?= quick(Call, Connection),
        {ok, Started} ?= erlmcp_calls:start(Call, Calls),
        effects(Effects, Out, Connection#{calls := Started})
    else
        {{reply, _, Bytes}, Said} ->
            %% What it says beside notifications is for HTTP.
            Notified = [framed(Notification, Connection)
                        || {notification, Notification, _} <- Said],
            effects(Effects, [framed(Bytes, Connection), Notified | Out], Connection);
        {reply, _, Bytes} ->
            effects(Effects, [framed(Bytes, Connection) | Out], Connection)
    end;
effects([{batch, Items} | Effects], Out, #{session := #{revision := Revision}} = Connection) ->
    {Batch, #{calls := Calls} = Next} = lists:mapfoldl(fun batched/2, Connection, Items),
    effects(Effects, Out, Next#{calls := erlmcp_calls:batch(Batch, Revision, Calls)});
effects([{subscribe, Id, Uri} | Effects], Out, Connection) ->
    {Reply, Next} = subscribe(Id, {uri, Uri}, Connection),
    effects([Reply | Effects], Out, Next);
effects([{unsubscribe, Id, Uri} | Effects], Out, Connection) ->
    {Reply, Next} = unsubscribe(Id, {uri, Uri}, Connection),
    effects([Reply | Effects], Out, Next);
effects([{listen, Listen} | Effects], Out, Connection) ->
    {Reply, Next} = listen(Listen, Connection),
    effects([Reply | Effects], Out, Next);
effects([{response, Id, Outcome} | Effects], Out, #{calls := Calls} = Connection) ->
    effects(Effects, Out, Connection#{calls := erlmcp_calls:response(Id, Outcome, Calls)});
effects([{cancel, Id} | Effects], Out, #{calls := Calls, watched := Watched} = Connection) ->
    Rest = case Watched of
        #{Id := {Topics, _}} ->
            ok = unwatch(Id, Topics, Connection),
            maps:remove(Id, Watched);
        #{} ->
            Watched
    end,
    {Withdrawn, Left} = erlmcp_calls:cancel(Id, Calls),
    effects(Effects, [withdrawn(Withdrawn, Connection) | Out],
            Connection#{calls := Left, watched := Rest});
effects([accepted | Effects], Out, Connection) ->
    effects(Effects, Out, Connection).

%% Where no other call runs: if it does not come to its end, its connection ends with it. A session
%% of HTTP+SSE has its stream to serve, too.
quick(_, #{framing := Framing, room := Room}) when Framing =:= events; not Room ->
    start;
quick(Call, #{instance := Instance, since := Since} = Connection) ->
    case busy(Connection) orelse has_had_turn(Since) of
        false -> erlmcp_quick:run(Call, erlmcp_instance:of_calls(Instance));
        true -> start
    end.

has_had_turn(none) ->
    false;
has_had_turn(Since) ->
    {reductions, Now} = process_info(self(), reductions),
    Now - Since > ?TURN.

subscribe(Id, Topic, #{watched := Watched, session := #{revision := Revision}} = Connection) ->
    #{session := {Topics, Closed}} = Watched,
    case {lists:member(Topic, Topics), over_limit(1, Connection)} of
        {true, _} ->
            {erlmcp_reply:result(Id, ~"{}"), Connection};
        {false, false} ->
            {erlmcp_reply:result(Id, ~"{}"),
             watch(session, [Topic | Topics], Closed, Connection)};
        {false, Refusal} ->
            {erlmcp_reply:refuse(Id, Refusal, Revision), Connection}
    end.

unsubscribe(Id, Topic, #{watched := Watched} = Connection) ->
    #{session := {Topics, Closed}} = Watched,
    ok = unwatch(session, [Topic], Connection),
    {erlmcp_reply:result(Id, ~"{}"),
     Connection#{watched := Watched#{session := {Topics -- [Topic], Closed}}}}.

%% What a batch can hold that is neither an answer nor a call.
batched({subscribe, Id, Uri}, Connection) ->
    subscribe(Id, {uri, Uri}, Connection);
batched({unsubscribe, Id, Uri}, Connection) ->
    unsubscribe(Id, {uri, Uri}, Connection);
batched({listen, #{id := Id}}, Connection) ->
    {erlmcp_batch:refuse_listen(Id), Connection};
batched(Item, Connection) ->
    {Item, Connection}.

listen(#{id := Id, topics := Topics, acknowledged := Acknowledged, closed := Closed},
       #{watched := Watched} = Connection) ->
    case over_limit(max(1, length(Topics)), Connection) of
        _ when is_map_key(Id, Watched) ->
            Message = ~"id: a subscription with this id is open",
            Refusal = erlmcp_refusal:new(protocol_error, Message, #{code => -32600}),
            {erlmcp_reply:refuse(Id, Refusal), Connection};
        false ->
            {{reply, 200, Acknowledged}, watch(Id, Topics, Closed, Connection)};
        Refusal ->
            {erlmcp_reply:refuse(Id, Refusal), Connection}
    end.

%% The three lists of a session do not count; a subscription to nothing counts as one.
over_limit(More, #{watched := Watched, instance := #{limits := #{subscriptions := Max}}}) ->
    Lists = case Watched of
        #{session := _} -> 3;
        #{} -> 0
    end,
    case lists:sum([max(1, length(Topics)) || _ := {Topics, _} <- Watched]) + More - Lists of
        Count when Count =< Max ->
            false;
        Count ->
            erlmcp_refusal:new(concurrent_limit_exceeded,
                               ~"too many subscriptions on this connection",
                               #{limit => Max, observed => Count})
    end.

-doc "A message to the process: what a call sent, a call that ended, a list that changed.".
-spec info(term(), connection()) -> {iodata(), connection()}.
info({{erlmcp_call, Call}, Message}, #{calls := Calls} = Connection) ->
    called(erlmcp_calls:message(Call, Message, Calls), Connection);
info({'EXIT', Pid, Reason}, #{calls := Calls} = Connection) ->
    called(erlmcp_calls:exited(Pid, Reason, Calls), Connection);
info({erlmcp_connection, {event, Subscription, _, Encoded, Pending}},
     #{watched := Watched} = Connection) ->
    ok = erlmcp_subscriptions:received(Pending),
    case Watched of
        #{Subscription := _} ->
            {framed(erlmcp_subscriptions:encoded(Subscription, Encoded), Connection), Connection};
        #{} ->
            {[], Connection}
    end;
info({erlmcp_connection, {closing, Id}}, #{watched := Watched} = Connection) when Id =/= session ->
    case Watched of
        #{Id := {Topics, Closed}} ->
            ok = unwatch(Id, Topics, Connection),
            {[framed(Message, Connection) || Message <- erlmcp_subscription:closed(Closed)],
             Connection#{watched := maps:remove(Id, Watched)}};
        #{} ->
            {[], Connection}
    end;
info(_, Connection) ->
    {[], Connection}.

called({Withdrawn, Bytes, Calls}, Connection) when Bytes =:= []; Bytes =:= ~"" ->
    {withdrawn(Withdrawn, Connection), Connection#{calls := Calls}};
called({Withdrawn, Bytes, Calls}, Connection) ->
    {[withdrawn(Withdrawn, Connection), framed(Bytes, Connection)], Connection#{calls := Calls}}.

withdrawn(Withdrawn, Connection) ->
    [framed(erlmcp_calls:withdrawal(Asked), Connection) || Asked <- Withdrawn].

-doc "Bytes of what has arrived and was not handled: the beginning of a line.".
-spec held(connection()) -> non_neg_integer().
held(#{framing := Framing}) ->
    erlmcp_line:held(Framing).

-doc "What is held is given up; gives the refusal.".
-spec give_up(connection()) -> {iodata(), connection()}.
give_up(#{framing := Framing} = Connection) ->
    {framed(erlmcp_message:error(undefined, erlmcp_unfinished:refusal()), Connection),
     Connection#{framing := erlmcp_line:give_up(Framing)}}.

-doc "Whether calls run.".
-spec busy(connection()) -> boolean().
busy(#{calls := Calls}) ->
    erlmcp_calls:count(Calls) > 0.

-doc "The calling process hibernates: what it has for the connection's next message is not kept.".
-spec rest(connection()) -> ok.
rest(#{instance := Instance}) ->
    erlmcp_resting:forget(Instance).

-doc "The connection is over: its calls end with it.".
-spec close(connection()) -> ok.
close(#{calls := Calls, places := Places} = Connection) ->
    ok = erlmcp_calls:stop(Calls),
    ok = erlmcp_entrance:leave(Places),
    unwatch(Connection).

unwatch(#{watched := Watched} = Connection) ->
    _ = [unwatch(Subscription, Topics, Connection) || Subscription := {Topics, _} <- Watched],
    ok.

framed(Bytes, #{framing := events}) -> [~"event: message\n", erlmcp_sse:event(Bytes)];
framed(Bytes, _) -> [Bytes, $\n].
