-module(erlmcp_connection).
-moduledoc """
A connection that carries messages in both directions, as a value. It takes bytes and returns bytes,
with one message on each line. For HTTP+SSE it takes decoded messages and returns events. The
process that keeps the value writes the bytes, and owns the calls. That process is an
`m:erlmcp_connection_process`, for messages on lines, or an `m:erlmcp_httpd_sse_session`.

Source: specification 2026-07-28, "Transports / stdio".

Internal.
""".

-export([new/3, new/4, of_strangers/1, admitted/2, data/2, message/4, receive_timeout/1,
         end_of_input/1, info/2, held/1, give_up/1, busy/1, rest/1, close/1, ready_bytes/0]).

-export_type([connection/0]).

-opaque connection() :: #{
    instance := erlmcp_instance:instance(),
    origin := erlmcp_span:origin(),
    request_context := erlmcp_engine:request_context(),
    tenant := erlmcp_admission:tenant(),
    network := tcp | pipe,
    framing := erlmcp_line:state() | events,
    %% `own` is a peer that can only be a client. Any other one is `unknown` until its first line.
    peer := own | unknown | client | stranger,
    %% the reductions of the process when it began with the current lines, and `none` for a single
    %% line
    since := non_neg_integer() | none,
    session := erlmcp_engine:session() | none,
    %% the number of sessions that were opened here; events of the newest session have this number
    sessions := non_neg_integer(),
    %% the permits of the connection itself, not those of its calls
    permits := [erlmcp_gate:permit()],
    %% the topics of the client's subscriptions, of its session or of requests that stay open
    watched := #{erlmcp_subscriptions:subscription() =>
                     {[erlmcp_engine:topic()], none | erlmcp_subscription:closing()}},
    calls := erlmcp_calls:calls(),
    %% requests that wait until fewer calls run
    queue := erlmcp_connection_queue:queue(),
    %% whether more answers may be collected before some are written
    room := boolean()
}.

%% Every message passes here.
-compile({inline, [input/2, read/4, has_room/2, session/2, handled/3, resumed/1]}).

%% Microseconds after which a yield shows that a call is not short.
-define(QUICK, 50).
%% Bytes of answers that are collected before calls run in processes of their own.
-define(READY, 131_072).

-doc """
Returns the number of bytes of answers at which the process writes them, before it takes another
message from its mailbox.
""".
-spec ready_bytes() -> pos_integer().
ready_bytes() ->
    ?READY.

-doc """
Returns a new connection of a principal to a server, from an address. Messages are lines in both
directions.
""".
-spec new(erlmcp_instance:instance(), erlmcp_auth:principal(), inet:ip_address() | local) ->
    connection().
new(#{limits := #{message_bytes := Max}} = Instance, Principal, Address) ->
    new(erlmcp_line:new(Max), Instance, Principal, Address).

-doc """
Returns a new connection with `Framing`. With a state of `m:erlmcp_line`, messages are lines, as
with `new/3`. With `events`, messages arrive decoded (`message/4`), and answers are returned as
events. `data/2`, `end_of_input/1`, `held/1` and `give_up/1` are only for a connection of lines.
""".
-spec new(erlmcp_line:state() | events, erlmcp_instance:instance(), erlmcp_auth:principal(),
          inet:ip_address() | local) -> connection().
new(Framing, Instance, Principal, Address) ->
    #{instance => Instance, origin => {lines, Address},
      request_context => #{headers => none, principal => Principal},
      tenant => erlmcp_admission:tenant(Principal, Address),
      network => case Address of local -> pipe; _ -> tcp end,
      framing => Framing, peer => own, since => none, session => none, sessions => 0,
      permits => [], watched => #{}, calls => erlmcp_calls:new(Instance),
      queue => none, room => true}.

-doc """
Returns the connection as one that programs other than MCP clients can reach, such as a web browser.
It ends if its first line is not a message, or if any line begins an HTTP request. Otherwise a web
page could send messages in the body of an HTTP request.
""".
-spec of_strangers(connection()) -> connection().
of_strangers(Connection) ->
    Connection#{peer := unknown}.

-doc """
Returns the connection with its permits from the server's gate, which `close/1` gives back.
""".
-spec admitted([erlmcp_gate:permit()], connection()) -> connection().
admitted(Permits, Connection) ->
    Connection#{permits := Permits}.

-doc """
Handles bytes that have arrived. Returns all answers that are ready, as one piece, and the state of
the input. `info/2` returns the answers of calls that still run.

- `complete`: no message is unfinished.
- `started`: a message is unfinished, and another one has ended in these bytes.
- `unfinished`: a message is unfinished, and none has ended in these bytes.
- `stranger`: the peer is not an MCP client. The connection has to end after the answer.
""".
-spec data(binary(), connection()) ->
    {started | unfinished | complete | stranger, iodata(), connection()}.
data(Bytes, #{framing := Framing} = Connection) ->
    {Lines, Rest} = erlmcp_line:push(Bytes, Framing),
    {Out, Next} = lines(Lines, Connection#{framing := Rest}),
    {input(Lines, Next), Out, Next}.

input(_, #{peer := stranger}) ->
    stranger;
input(Lines, #{framing := Framing}) ->
    case erlmcp_line:is_partial(Framing) of
        false -> complete;
        true when Lines =:= [] -> unfinished;
        true -> started
    end.

-doc """
Counts and returns the refusal of a message that did not arrive in time. The caller writes the
refusal, and ends the connection after that.
""".
-spec receive_timeout(connection()) -> iodata().
receive_timeout(#{instance := #{limits := #{receive_timeout_ms := Limit}}} = Connection) ->
    Refusal = erlmcp_refusal:new(timeout, ~"the message did not arrive in time",
                                 #{limit => Limit}),
    unread(Refusal, Connection).

-doc """
Handles the end of the input, and returns the answers that are ready. An unterminated last line
counts as a line. Subscriptions end, and requests to the client are withdrawn. Calls and waiting
requests go on.
""".
-spec end_of_input(connection()) -> {iodata(), connection()}.
end_of_input(#{framing := Framing} = Connection) ->
    {Out, #{calls := Calls, watched := Watched} = Next} =
        lines(erlmcp_line:flush(Framing), Connection#{framing := erlmcp_line:give_up(Framing)}),
    %% The client may still read, so it gets the ends of its subscriptions.
    Ends = [framed(Bytes, Next)
            || Id := {_, Closed} <- Watched, Id =/= session,
               Bytes <- erlmcp_subscription:closed(Closed)],
    ok = unwatch(Next),
    {Withdrawn, Left} = erlmcp_calls:end_of_input(Calls),
    {[Out, Ends, withdrawn(Withdrawn, Next)], Next#{calls := Left, watched := #{}}}.

lines([Line], Connection) ->
    resumed(line(Line, Connection));
lines([], Connection) ->
    {[], Connection};
lines(Lines, Connection) ->
    {reductions, Since} = process_info(self(), reductions),
    {Out, Next} = lines(Lines, give_way, {[], 0}, Connection#{since := Since}),
    resumed({Out, Next#{since := none, room := true}}).

lines([_ | _], _, {Out, _}, #{peer := stranger} = Connection) ->
    {lists:reverse(Out), Connection};
lines([], _, {Out, _}, Connection) ->
    {lists:reverse(Out), Connection};
lines([Line | Lines], Mode, Ready, #{calls := Before} = Connection) ->
    {Bytes, #{calls := Calls} = Next} = line(Line, Connection),
    Started = erlmcp_calls:count(Calls) > erlmcp_calls:count(Before),
    {More, Last} = ready(Bytes, Ready, Next),
    lines(Lines, mode(Mode, Started andalso Lines =/= []), More, Last).

%% When many bytes are ready, further calls run in processes of their own, and each answer is
%% written when it is there.
ready(Bytes, {Out, Before}, Connection) ->
    case Before + iolist_size(Bytes) of
        Size when Size >= ?READY, Before < ?READY ->
            {{[Bytes | Out], Size}, Connection#{room := false}};
        Size ->
            {{[Bytes | Out], Size}, Connection}
    end.

mode(give_way, true) -> give_way();
mode(Mode, _) -> Mode.

%% Yields, so that a short call that was just started ends before the next line is handled. Then the
%% next call reuses its memory, and no other scheduler wakes up in vain. After a long call the
%% process does not yield again for the rest of these lines, since other schedulers can run their
%% calls.
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
    unreadable(Refusal, Connection);
line(Line, #{instance := #{limits := Limits}, origin := Origin} = Connection) ->
    Arrival = erlmcp_meter:arrived(byte_size(Line), Origin),
    case erlmcp_connection_cache:decode(Line, Limits) of
        {ok, Json} -> read(Json, Line, Arrival, Connection);
        {error, Reason} -> undecoded(Reason, Line, Connection)
    end.

undecoded(Reason, Line, #{peer := Peer} = Connection) ->
    case Peer =/= own andalso is_http_request(Line) of
        true ->
            Message = ~"expected a JSON-RPC message, got an HTTP request",
            Refusal = erlmcp_refusal:new(protocol_error, Message, #{code => -32700}),
            {Out, Next} = unreadable(Refusal, Connection),
            {Out, Next#{peer := stranger}};
        false ->
            unreadable(erlmcp_params:unreadable(Reason), Connection)
    end.

%% Matches the first line of an HTTP request, with any method and any version.
is_http_request(Line) ->
    re:run(Line, ~"^[!#$%&'*+.^_`|~0-9A-Za-z-]+[ \t].*[ \t]HTTP/[0-9]([.][0-9])?[ \t\r]*$",
           [{capture, none}]) =:= match.

unreadable(Refusal, Connection) ->
    {unread(Refusal, Connection), no_message(Connection)}.

%% Refuses a message of which nothing was read.
unread(Refusal, #{instance := Instance} = Connection) ->
    ok = erlmcp_meter:refused(undefined, Refusal, Instance),
    framed(erlmcp_message:error(undefined, Refusal), Connection).

no_message(#{peer := unknown} = Connection) -> Connection#{peer := stranger};
no_message(Connection) -> Connection.

read(Json, Line, Arrival, #{peer := unknown} = Connection) ->
    case erlmcp_message:is_message(Json) of
        true ->
            read(Json, Line, Arrival, Connection#{peer := client});
        false ->
            {Out, Next} = message(Json, Arrival, Connection),
            {Out, no_message(Next)}
    end;
read(Json, Line, Arrival, Connection) ->
    case has_room(Json, Connection) of
        true -> message(Json, Arrival, Connection);
        false -> without_room(Json, Line, Arrival, Connection)
    end.

%% Returns `true` if a call of the message may run now. Requests that wait go first.
has_room(#{~"method" := _, ~"id" := _}, #{calls := Calls, queue := Queue}) ->
    Queue =:= none andalso erlmcp_calls:has_room(Calls);
has_room(_, _) ->
    true.

%% Handles a message while the limit of calls is reached. Only calls wait. Other requests are
%% answered at once, and so are calls that the server refuses anyway. The answer of a batch refuses
%% its excess calls.
without_room(#{~"id" := Id, ~"method" := Method} = Json, Line, Arrival,
             #{queue := Queue} = Connection) ->
    #{instance := #{limits := Limits} = Instance, request_context := RequestContext,
      session := Session, calls := Calls} = Connection,
    maybe
        true ?= erlmcp_admission:is_open(Instance),
        {[{call, _}], _} ?= handled(Json, Session, Connection),
        ok ?= erlmcp_calls:check_id(Id, Calls),
        ok ?= erlmcp_connection_queue:check_id(Id, Queue),
        Request = #{id => Id, method => Method, era => erlmcp_engine:era(Json, RequestContext),
                    line => Line, arrival => Arrival},
        {ok, Longer} ?= erlmcp_connection_queue:add(Request, Limits, Queue),
        {[], Connection#{queue := Longer}}
    else
        {refuse, Refusal} ->
            ok = erlmcp_meter:ended({{Id, Method, #{}}, Arrival}, {refused, Refusal}, 0, Instance),
            refused(Id, erlmcp_admission:not_before(Refusal, Instance), Connection);
        _ ->
            message(Json, Arrival, Connection)
    end.

-doc """
Handles a decoded message from a sender with this identity, and returns the answers that are ready.
Refuses a call over the limit of calls. After `data/2` such a call would wait.
""".
-spec message(Json :: term(), erlmcp_meter:arrival(), erlmcp_auth:identity(), connection()) ->
    {iodata(), connection()}.
message(Json, Arrival, Identity, #{request_context := Own} = Connection) ->
    {Out, Next} = message(Json, Arrival, Connection#{request_context := maps:merge(Own, Identity)}),
    {Out, Next#{request_context := Own}}.

message(Json, Arrival, #{instance := Instance, tenant := Tenant} = Connection) ->
    case erlmcp_admission:enter(Json, Arrival, Tenant, Instance) of
        {ok, Message, Admitted} ->
            handle(Message, Admitted, Connection);
        {refuse, Id, Refusal} ->
            refused(Id, Refusal, Connection);
        {unanswered, _} ->
            {[], Connection};
        {answer, Answer} ->
            {framed(Answer, Connection), Connection}
    end.

refused(Id, Refusal, Connection) ->
    {framed(erlmcp_message:error(Id, Refusal), Connection), Connection}.

handle(Json, Admitted, #{instance := Instance, tenant := Tenant} = Connection) ->
    Before = session(Json, Connection),
    {Effects, Session} = handled(Json, Before, Connection),
    effects(erlmcp_admission:effects(Effects, Admitted, Tenant, Instance), [],
            opened(Before, Session, Connection)).

handled(Json, Session, #{instance := Instance, request_context := RequestContext}) ->
    Known = erlmcp_connection_cache:known_meta(Json),
    Catalog = erlmcp_published_catalog:catalog(Instance),
    erlmcp_engine:handle(Json, RequestContext#{meta => Known}, Catalog, Session).

%% Another `initialize` opens a new session, as if there were none. Clients that share a connection
%% behind a bridge each send their own.
session(#{~"method" := ~"initialize", ~"id" := _}, _) -> none;
session(_, #{session := Session}) -> Session.

%% An invalid `initialize` changes nothing.
opened(none, none, Connection) ->
    Connection;
%% A session subscribes to the lists when it is opened.
opened(none, Session, #{sessions := Sessions, instance := Instance} = Connection) ->
    Ended = ended(Connection),
    New = Session#{opened => erlmcp_meter:session_opened(Instance)},
    {ok, Opened} = watch(session, [tool, prompt, resource], none,
                         Ended#{session := New, sessions := Sessions + 1}),
    Opened;
opened(_, Session, Connection) ->
    Connection#{session := Session}.

%% The calls and subscriptions of a session end with it, and nothing more is sent for them. Requests
%% of 2026-07-28 belong to no session.
ended(#{session := none} = Connection) ->
    Connection;
ended(#{calls := Calls, queue := Queue, watched := Watched} = Connection) ->
    {{Topics, _}, Others} = maps:take(session, Watched),
    ok = unwatch(session, Topics, Connection),
    ok = session_ended(Connection),
    ok = drop([Request || #{era := session} = Request <- erlmcp_connection_queue:requests(Queue)],
              cancelled, Connection),
    Connection#{calls := erlmcp_calls:end_session(Calls), watched := Others,
                queue := erlmcp_connection_queue:keep(stateless, Queue)}.

session_ended(#{session := none}) ->
    ok;
session_ended(#{session := Session, network := Network, instance := Instance}) ->
    erlmcp_meter:session_ended(Session, Network, Instance).

%% Ends requests that wait.
drop(Requests, Outcome, #{instance := Instance}) ->
    lists:foreach(fun(#{id := Id, method := Method, arrival := Arrival}) ->
        ok = erlmcp_meter:ended({{Id, Method, #{}}, Arrival}, Outcome, 0, Instance)
    end, Requests).

watch(Subscription, Topics, Closed, #{instance := Instance, watched := Watched} = Connection) ->
    #{request_context := #{principal := Principal}, tenant := Tenant} = Connection,
    #{limits := #{subscriptions_per_principal := Max}} = Instance,
    {Before, _} = maps:get(Subscription, Watched, {[], none}),
    Owner = owner(Subscription, Connection),
    case erlmcp_subscriptions:add_counted(Topics, Owner, Subscription, {Principal, Tenant}, Max,
                                          erlmcp_instance:subscriptions(Instance)) of
        ok -> {ok, Connection#{watched := Watched#{Subscription => {Topics ++ Before, Closed}}}};
        {full, Observed} -> erlmcp_subscriptions:refusal(Max, Observed)
    end.

unwatch(Subscription, Topics, #{instance := Instance} = Connection) ->
    erlmcp_subscriptions:remove(Topics, owner(Subscription, Connection), Subscription,
                                erlmcp_instance:subscriptions(Instance)).

owner(session, #{sessions := Sessions}) -> {self(), {erlmcp_connection, Sessions}};
owner(_, _) -> {self(), erlmcp_connection}.

effects([], Out, Connection) ->
    {lists:reverse(Out), Connection};
effects([{reply, _, Bytes} | Effects], Out, Connection) ->
    effects(Effects, [framed(Bytes, Connection) | Out], Connection);
effects([{call, Call} | Effects], Out, #{calls := Calls, sessions := Sessions} = Connection) ->
    maybe
        start ?= quick(Call, Connection),
        {ok, Started} ?= erlmcp_calls:start(Call#{session => Sessions}, Calls),
        effects(Effects, Out, Connection#{calls := Started})
    else
        {{reply, _, Bytes}, Reports} ->
            %% All other reports of the call are for HTTP.
            Notified = [framed(Notification, Connection)
                        || {notification, Notification, _} <- Reports],
            effects(Effects, [framed(Bytes, Connection), Notified | Out], Connection);
        {reply, _, Bytes} ->
            effects(Effects, [framed(Bytes, Connection) | Out], Connection)
    end;
effects([{batch, Items} | Effects], Out, #{session := #{revision := Revision}} = Connection) ->
    {Batch, #{calls := Calls} = Next} = lists:mapfoldl(fun batched/2, Connection, Items),
    effects(Effects, Out, Next#{calls := erlmcp_batch:start(Batch, Revision, Calls)});
effects([{subscribe, Uri, About} | Effects], Out, Connection) ->
    {Reply, Next} = subscribe(About, {uri, Uri}, Connection),
    effects([Reply | Effects], Out, Next);
effects([{unsubscribe, Uri, About} | Effects], Out, Connection) ->
    {Reply, Next} = unsubscribe(About, {uri, Uri}, Connection),
    effects([Reply | Effects], Out, Next);
effects([{listen, Listen, About} | Effects], Out, Connection) ->
    {Reply, Next} = listen(Listen, About, Connection),
    effects([Reply | Effects], Out, Next);
effects([{response, Id, Outcome} | Effects], Out, #{calls := Calls} = Connection) ->
    effects(Effects, Out, Connection#{calls := erlmcp_calls:response(Id, Outcome, Calls)});
effects([{cancel, Id} | Effects], Out, Connection) ->
    #{calls := Calls, queue := Queue, watched := Watched} = Connection,
    Rest = case Watched of
        #{Id := {Topics, _}} ->
            ok = unwatch(Id, Topics, Connection),
            maps:remove(Id, Watched);
        #{} ->
            Watched
    end,
    {Withdrawn, Left} = erlmcp_calls:cancel(Id, Calls),
    ok = drop(erlmcp_connection_queue:request(Id, Queue), cancelled, Connection),
    effects(Effects, [withdrawn(Withdrawn, Connection) | Out],
            Connection#{calls := Left, watched := Rest,
                        queue := erlmcp_connection_queue:cancel(Id, Queue)});
effects([accepted | Effects], Out, Connection) ->
    effects(Effects, Out, Connection).

%% A call runs in this process only if no other call runs: a call that does not end in time is ended
%% with its connection. The process of an HTTP+SSE session has to serve its stream, too.
quick(_, #{framing := Framing, room := Room}) when Framing =:= events; not Room ->
    start;
quick(Call, #{instance := Instance, since := Since} = Connection) ->
    case not busy(Connection)
        andalso (Since =:= none orelse erlmcp_inline_call:is_in_turn(Since))
    of
        true -> erlmcp_inline_call:run(Call, Instance);
        false -> start
    end.

subscribe(About, Topic, #{watched := Watched} = Connection) ->
    #{session := {Topics, Closed}} = Watched,
    maybe
        false ?= lists:member(Topic, Topics),
        ok ?= within_limit(1, Connection),
        {ok, Watching} ?= watch(session, [Topic], Closed, Connection),
        {watched(ok, About, Connection), Watching}
    else
        true -> {watched(ok, About, Connection), Connection};
        Refusal -> {watched({refuse, Refusal}, About, Connection), Connection}
    end.

watched(Outcome, About, #{instance := Instance, session := #{revision := Revision}}) ->
    erlmcp_admission:watched(Outcome, About, Revision, Instance).

unsubscribe(About, Topic, #{watched := Watched} = Connection) ->
    #{session := {Topics, Closed}} = Watched,
    ok = unwatch(session, [Topic], Connection),
    {watched(ok, About, Connection),
     Connection#{watched := Watched#{session := {Topics -- [Topic], Closed}}}}.

%% Performs the items of a batch that are neither answers nor calls.
batched({subscribe, Uri, About}, Connection) ->
    subscribe(About, {uri, Uri}, Connection);
batched({unsubscribe, Uri, About}, Connection) ->
    unsubscribe(About, {uri, Uri}, Connection);
batched({listen, _, About}, Connection) ->
    {watched({refuse, erlmcp_batch:no_listen()}, About, Connection), Connection};
batched(Item, Connection) ->
    {Item, Connection}.

listen(#{id := Id, topics := Topics, acknowledged := Acknowledged, closed := Closed}, About,
       #{watched := Watched, instance := Instance} = Connection) ->
    {Outcome, Next} =
        maybe
            false ?= is_map_key(Id, Watched),
            ok ?= within_limit(max(1, length(Topics)), Connection),
            {ok, Watching} ?= watch(Id, Topics, Closed, Connection),
            {{ok, Acknowledged}, Watching}
        else
            true ->
                Message = ~"id: a subscription with this id is open",
                Open = erlmcp_refusal:new(protocol_error, Message, #{code => -32600}),
                {{refuse, Open}, Connection};
            Refusal ->
                {{refuse, Refusal}, Connection}
        end,
    {erlmcp_admission:watched(Outcome, About, '2026-07-28', Instance), Next}.

%% The three lists of a session do not count. A subscription without topics counts as one.
within_limit(More, #{watched := Watched, instance := #{limits := #{subscriptions := Max}}}) ->
    Lists = case Watched of
        #{session := _} -> 3;
        #{} -> 0
    end,
    case lists:sum([max(1, length(Topics)) || _ := {Topics, _} <- Watched]) + More - Lists of
        Count when Count =< Max ->
            ok;
        Count ->
            erlmcp_refusal:new(concurrent_limit_exceeded,
                               ~"too many subscriptions on this connection",
                               #{limit => Max, observed => Count})
    end.

-doc """
Handles a message to the process: one of a call, the exit of a call, or one of a subscription.
Returns the bytes to be written. Other messages are ignored.
""".
-spec info(term(), connection()) -> {iodata(), connection()}.
info({{erlmcp_call, Call}, Message}, #{calls := Calls} = Connection) ->
    resumed(called(erlmcp_calls:message(Call, Message, Calls), Connection));
info({'EXIT', Pid, Reason}, #{calls := Calls} = Connection) ->
    resumed(called(erlmcp_calls:exited(Pid, Reason, Calls), Connection));
info({erlmcp_connection, {event, _, _, _, _} = Event}, Connection) ->
    event(Event, Connection);
info({{erlmcp_connection, Sessions}, {event, _, _, _, _} = Event},
     #{sessions := Sessions} = Connection) ->
    event(Event, Connection);
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

event({event, Subscription, _, Encoded, Pending}, #{watched := Watched} = Connection) ->
    ok = erlmcp_subscriptions:received(Pending),
    case Watched of
        #{Subscription := _} ->
            {framed(erlmcp_subscriptions:encoded(Subscription, Encoded), Connection), Connection};
        #{} ->
            {[], Connection}
    end.

called({Withdrawn, Bytes, Calls}, Connection) when Bytes =:= []; Bytes =:= ~"" ->
    {withdrawn(Withdrawn, Connection), Connection#{calls := Calls}};
called({Withdrawn, Bytes, Calls}, Connection) ->
    {[withdrawn(Withdrawn, Connection), framed(Bytes, Connection)], Connection#{calls := Calls}}.

withdrawn(Withdrawn, Connection) ->
    [framed(erlmcp_calls:withdrawal(Asked), Connection) || Asked <- Withdrawn].

%% Runs waiting requests, in their order, when calls have ended.
resumed({_, #{queue := none}} = Done) -> Done;
resumed({Out, Connection}) -> resumed(Out, Connection).

resumed(Out, #{peer := stranger} = Connection) ->
    {Out, Connection};
resumed(Out, Connection) ->
    {reductions, Since} = process_info(self(), reductions),
    {All, Next} = take_waiting({[Out], 0}, Connection#{since := Since}),
    {All, Next#{since := none, room := true}}.

take_waiting({Out, _} = Ready, #{calls := Calls, queue := Queue} = Connection) ->
    #{instance := #{limits := Limits}} = Connection,
    maybe
        true ?= erlmcp_calls:has_room(Calls),
        {ok, #{line := Line, arrival := Arrival}, Shorter} ?= erlmcp_connection_queue:take(Queue),
        {ok, Json} = erlmcp_connection_cache:decode(Line, Limits),
        {Bytes, Next} = message(Json, Arrival, Connection#{queue := Shorter}),
        {More, Last} = ready(Bytes, Ready, Next),
        take_waiting(More, Last)
    else
        _ -> {lists:reverse(Out), Connection}
    end.

-doc """
Returns how many bytes have arrived and are not handled: of an unfinished line, and of the requests
that wait. `WaitingSince` is when the first of these requests arrived, in monotonic milliseconds, or
`infinity` if none waits.
""".
-spec held(connection()) -> {Begun :: non_neg_integer(), Waiting :: non_neg_integer(),
                             WaitingSince :: integer() | infinity}.
held(#{framing := Framing, queue := Queue}) ->
    {erlmcp_line:held(Framing), erlmcp_connection_queue:bytes(Queue),
     erlmcp_connection_queue:since(Queue)}.

-doc """
Drops the unfinished line and the waiting requests, counts them as refused, and returns their
refusals.
""".
-spec give_up(connection()) -> {iodata(), connection()}.
give_up(#{framing := Framing, queue := Queue} = Connection) ->
    Refusal = erlmcp_unfinished_messages:refusal(),
    Waiting = erlmcp_connection_queue:requests(Queue),
    ok = drop(Waiting, {refused, Refusal}, Connection),
    {[[framed(erlmcp_message:error(Id, Refusal), Connection) || #{id := Id} <- Waiting],
      [unread(Refusal, Connection) || erlmcp_line:held(Framing) > 0]],
     Connection#{framing := erlmcp_line:give_up(Framing), queue := none}}.

-doc "Returns `true` if calls of the connection run.".
-spec busy(connection()) -> boolean().
busy(#{calls := Calls}) ->
    erlmcp_calls:count(Calls) > 0.

-doc "Drops the caches of the connection in the calling process, which hibernates next.".
-spec rest(connection()) -> ok.
rest(_) ->
    erlmcp_connection_cache:forget().

-doc """
Ends the connection's calls, waiting requests, subscriptions and session, and gives its permits
back. Counts the requests as cancelled, and the end of the session. The client is sent nothing.
""".
-spec close(connection()) -> ok.
close(#{calls := Calls, permits := Permits, queue := Queue} = Connection) ->
    ok = erlmcp_calls:stop(Calls),
    ok = drop(erlmcp_connection_queue:requests(Queue), cancelled, Connection),
    ok = erlmcp_admission:leave(Permits),
    ok = session_ended(Connection),
    unwatch(Connection).

unwatch(#{watched := Watched} = Connection) ->
    _ = [unwatch(Subscription, Topics, Connection) || Subscription := {Topics, _} <- Watched],
    ok.

framed(Bytes, #{framing := events}) -> [~"event: message\n", erlmcp_sse:event(Bytes)];
framed(Bytes, _) -> [Bytes, $\n].
