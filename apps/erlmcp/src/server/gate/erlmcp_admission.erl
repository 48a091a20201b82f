-module(erlmcp_admission).
-moduledoc """
Brings the connections and messages of the transports to their server's gate (`m:erlmcp_gate`). Each
connection of a socket needs a permit, and so does each message before the engine gets it. Each
message of a batch needs a permit of its own. A message that becomes a call passes its permit on to
the call (`m:erlmcp_call`). Any other message gives its permit back at once.

On HTTP a request may be refused by its head, before its body is read. The requests of a connection
may have different principals. A stateless request whose head announces its method can enter before
it is decoded.

Internal.
""".

-export([connect/3, leave/1, tenant/2, is_open/1]).
-export([enter/4, forward/4, is_request/1, effects/4, watched/4, summary/1, abandon/1,
         not_before/2]).
-export([announced/2, check_head/4, enter_announced/5, refused_by_head/2, refused/5, hold_back/3]).

-export_type([tenant/0, admitted/0, announced/0, effect/0]).

-doc """
The client whose limits are counted: a principal or, for an anonymous client, its network
(`erlmcp_gate:network/1`). The network is `local` if the client has no IP address.
""".
-type tenant() :: erlmcp_auth:principal() | {anonymous, Network :: tuple() | local}.
-type permit() :: erlmcp_gate:permit().
-opaque admitted() ::
    {erlmcp_meter:arrival(),
     permit() | {batch, [{erlmcp_message:id() | undefined, permit()}], Refused :: [iodata()]}}.
-doc """
An effect for the transport. The request of a reply has been counted in the meter already. A call is
counted when it is answered, and so is a request that begins or ends a subscription.
""".
-type effect() ::
    erlmcp_reply:reply()
    | {call, erlmcp_engine:call()}
    | {batch, [effect(), ...]}
    | {subscribe | unsubscribe, Uri :: binary(), erlmcp_meter:about()}
    | {listen, erlmcp_engine:listen(), erlmcp_meter:about()}
    | {cancel, erlmcp_message:id()}
    | {response, erlmcp_message:id(), {ok, term()} | {error, term()}}
    | accepted.
-doc """
A stateless request of `Method`. `Text` is what most clients write in the body of such a request
between the id and the params. For example, it is `,"method":"tools/call","params":` for the method
`tools/call`.
""".
-type announced() :: {announced, Method :: binary(), Text :: binary()}.

%% The most principals that are counted on one connection. Only a proxy's connection has more.
-define(PRINCIPALS, 100).
%% The longest time for which a refusal waits after the one before it, in milliseconds.
-define(HELD_BACK, 1000).

%% About a connection of HTTP, in the process dictionary of its process until the connection ends:
%% the principals that have sent requests on it, and the time before which a client that was refused
%% should not try again.
-record(connection, {
    permits = #{} :: #{erlmcp_auth:principal() => permit()},
    try_again_ms = none :: none | integer()
}).

-doc """
Gives the calling process permits for a connection from the address `Ip` whose `Principal` is known
from the start. There is one permit for the connection. There is another one for the principal,
unless this is `anonymous`. Refuses the connection if `erlmcp_gate:connect/2` or
`erlmcp_gate:connect_tenant/2` does so. The process holds the permits until it gives them back
(`leave/1`) or ends.
""".
-spec connect(inet:ip_address() | local, erlmcp_auth:principal(), erlmcp_instance:instance()) ->
    {ok, [permit()]} | {refuse, erlmcp_refusal:refusal()}.
connect(Ip, Principal, #{gate := Gate}) ->
    maybe
        {ok, Connection} ?= erlmcp_gate:connect(Gate, #{address => Ip}),
        case connect_principal(Principal, Gate) of
            {ok, OfPrincipal} ->
                {ok, [Connection | OfPrincipal]};
            {refuse, _} = Refused ->
                ok = erlmcp_gate:leave(Connection),
                Refused
        end
    end.

%% Anonymous clients share one principal, and are counted by their addresses instead.
connect_principal(anonymous, _) ->
    {ok, []};
connect_principal(Principal, Gate) ->
    maybe
        {ok, Permit} ?= erlmcp_gate:connect_tenant(Gate, Principal),
        {ok, [Permit]}
    end.

-doc "Gives permits back.".
-spec leave([permit()]) -> ok.
leave(Permits) ->
    lists:foreach(fun erlmcp_gate:leave/1, Permits).

-doc """
Returns the tenant of messages that a principal sends from an address. The tenant is the principal
or, for `anonymous`, the network of the address.
""".
-spec tenant(erlmcp_auth:principal(), inet:ip_address() | local) -> tenant().
tenant(anonymous, Address) -> {anonymous, erlmcp_gate:network(Address)};
tenant(Principal, _) -> Principal.

-doc "Returns `true` if the server takes requests now: it does not drain and is not overloaded.".
-spec is_open(erlmcp_instance:instance()) -> boolean().
is_open(#{gate := Gate}) -> erlmcp_gate:state(Gate) =:= open.

-doc """
Lets a decoded message enter, and returns it for the engine. Returns a batch without those of its
messages that may not enter. Counts in the meter each message that may not enter. The caller gives
`admitted()` to `effects/4`, or to `abandon/1` if the message is not handled.

- `refuse`: the message is a request that may not enter. Its id is `undefined` if it has no valid
  one.
- `unanswered`: the message is a notification or a response that may not enter. For a batch of such
  messages, none of which may enter, the refusal is that of the first one.
- `answer`: no message of a batch may enter, and there are requests among them. The answer has an
  error for each request.

A batch with more messages than `erlmcp_engine:max_batch/0` enters, or is refused, as one message.
""".
-spec enter(Json :: term(), erlmcp_meter:arrival(), tenant(), erlmcp_instance:instance()) ->
    {ok, Json :: term(), admitted()}
    | {refuse, erlmcp_message:id() | undefined, erlmcp_refusal:refusal()}
    | {unanswered, erlmcp_refusal:refusal()}
    | {answer, iodata()}.
enter([_ | _] = Batch, {_, Bytes, _} = Arrival, Tenant, Instance) ->
    case length(Batch) =< erlmcp_engine:max_batch() of
        true ->
            %% Each has its share of the bytes.
            Each = setelement(2, Arrival, Bytes div length(Batch)),
            Entered = [{Json, enter_whole(Json, Each, Tenant, Instance)} || Json <- Batch],
            entered(Entered, Each);
        false ->
            enter_whole(Batch, Arrival, Tenant, Instance)
    end;
enter(Json, Arrival, Tenant, Instance) ->
    enter_whole(Json, Arrival, Tenant, Instance).

enter_whole(Json, Arrival, Tenant, Instance) ->
    case {enter_one(kind(Json), summary(Json), Arrival, Tenant, Instance), kind(Json)} of
        {{ok, Permit}, _} -> {ok, Json, {Arrival, Permit}};
        {{refuse, Refusal}, request} -> {refuse, id(Json), Refusal};
        {{refuse, Refusal}, _} -> {unanswered, Refusal}
    end.

enter_one(Kind, Asked, {_, Bytes, _} = Arrival, Tenant, #{gate := Gate} = Instance) ->
    case erlmcp_gate:enter(Gate, #{tenant => Tenant, kind => Kind, bytes => Bytes}) of
        {ok, _} = Entered ->
            Entered;
        {refuse, Refusal} ->
            ok = erlmcp_meter:ended({Asked, Arrival}, {refused, Refusal}, 0, Instance),
            {refuse, not_before(Refusal, Instance)}
    end.

-doc """
Gives the calling process a permit to pass a message on to the home of the message's session. The
message has `Bytes` bytes, and will enter there. A request (`is_request/1`) is refused if this node
takes no requests now. It is refused, too, if the requests of its tenant that are on their way are
too many, or have too many bytes. Requests are refused if all of them that are on their way are too
many, or have too many bytes, and so are other messages (`erlmcp_gate:forward/3`). Does not count a
refused message in the meter.
""".
-spec forward(Json :: term(), Bytes :: non_neg_integer(), tenant(), erlmcp_instance:instance()) ->
    {ok, permit()} | {refuse, erlmcp_refusal:refusal()}.
forward(Json, Bytes, Tenant, #{gate := Gate} = Instance) ->
    %% A request on its way may need an answer of its client, or its notification, in order to end.
    Passed = case is_request(Json) of
        true ->
            maybe
                open ?= erlmcp_gate:state(Gate),
                erlmcp_gate:forward(Tenant, Bytes, Gate)
            end;
        false ->
            erlmcp_gate:forward(none, Bytes, Gate)
    end,
    case Passed of
        {ok, _} -> Passed;
        {refuse, Refusal} -> {refuse, not_before(Refusal, Instance)}
    end.

-doc """
Returns `true` if a decoded message counts as a request of its tenant. A batch does so if one of its
messages does, and so does a term that is not a message, since it is answered with an error. Returns
`false` for a notification or a response.
""".
-spec is_request(Json :: term()) -> boolean().
is_request([_ | _] = Batch) ->
    lists:any(fun(Json) -> kind(Json) =:= request end, Batch);
is_request(Json) ->
    kind(Json) =:= request.

-doc """
Returns the id and the method of a decoded message, with an empty map in place of its parameters.
The id or the method is `undefined` if the message has no valid one. Both are `undefined` for a
response, since its id is that of a request of the server.
""".
-spec summary(Json :: term()) -> erlmcp_engine:summary().
summary(#{~"method" := Method} = Json) when is_binary(Method) -> {id(Json), Method, #{}};
summary(Json) -> {id(Json), undefined, #{}}.

-doc """
Returns a refusal of the gate with a `retry_after_ms` that is at least a limit of the server. The
limit is `rate_retry_ms` if a rate or a quota was exceeded, and `queue_retry_ms` for any other
refusal. Returns a refusal without `retry_after_ms` unchanged.
""".
-spec not_before(erlmcp_refusal:refusal(), erlmcp_instance:instance()) -> erlmcp_refusal:refusal().
not_before(Refusal, #{limits := #{rate_retry_ms := RateMs, queue_retry_ms := QueueMs}}) ->
    case erlmcp_refusal:name(Refusal) of
        Rate when
            Rate =:= rate_limit_exceeded; Rate =:= rate_limit_per_second;
            Rate =:= rate_limit_per_minute; Rate =:= quota_exceeded
        ->
            erlmcp_refusal:not_before(RateMs, Refusal);
        _ ->
            erlmcp_refusal:not_before(QueueMs, Refusal)
    end.

kind(#{~"method" := _, ~"id" := _}) -> request;
kind(#{~"method" := ~"notifications/cancelled"}) -> cancellation;
kind(#{~"method" := _}) -> notification;
kind(Json) ->
    case erlmcp_message:parse(Json) of
        {response, _, _} -> response;
        %% A term that is not a message is answered with an error, so it counts as a request.
        _ -> request
    end.

entered(Messages, Arrival) ->
    Permits = [{id(Json), Permit} || {Json, {ok, _, {_, Permit}}} <- Messages],
    Refused = [erlmcp_message:error(Id, Refusal) || {_, {refuse, Id, Refusal}} <- Messages],
    case {Permits, Refused} of
        {[], []} ->
            [{_, Unanswered} | _] = Messages,
            Unanswered;
        {[], _} ->
            {answer, erlmcp_message:batch(Refused)};
        _ ->
            {ok, [Json || {Json, {ok, _, _}} <- Messages], {Arrival, {batch, Permits, Refused}}}
    end.

%% A response has the id of a request of the server.
id(#{~"id" := Id} = Json) when is_binary(Id); is_integer(Id) ->
    case kind(Json) of
        request -> Id;
        response -> undefined
    end;
id(_) ->
    undefined.

-doc """
Turns the engine's effects for an admitted message into effects for the transport. Counts the
requests that the engine has answered, and adds the refusals of a batch to its answer. Gives back
the permits of messages that do not become calls. Adds to each call its permit, its tenant, its
arrival and, with a tracer, its span.

The transport begins and ends subscriptions, and answers their requests by `watched/4`.
""".
-spec effects([erlmcp_engine:effect(), ...], admitted(), tenant(), erlmcp_instance:instance()) ->
    [effect(), ...].
effects(Effects, {Arrival, {batch, Permits, Refused}}, Tenant, Instance) ->
    {Silent, [Last]} = lists:split(length(Effects) - 1, Effects),
    Silent ++ [last(Last, Permits, [{reply, 200, Error} || Error <- Refused],
                    {Arrival, Tenant, Instance})];
effects([{call, Call}], {Arrival, Permit}, Tenant, Instance) ->
    [{call, arrived(Call, Permit, Arrival, Tenant, Instance)}];
effects(Effects, {Arrival, Permit}, _, Instance) ->
    ok = erlmcp_gate:leave(Permit),
    [counted(Effect, Arrival, Instance) || Effect <- Effects].

last({batch, Items}, Permits, Refused, Admitted) ->
    {Given, Unused} = lists:mapfoldl(fun(Item, Rest) -> item(Item, Rest, Admitted) end, Permits,
                                     Items),
    ok = leave([Permit || {_, Permit} <- Unused]),
    {batch, Given ++ Refused};
last(Last, Permits, Refused, {Arrival, _, Instance}) ->
    ok = leave([Permit || {_, Permit} <- Permits]),
    case {counted(Last, Arrival, Instance), Refused} of
        {accepted, [_ | _]} -> {batch, Refused};
        {Answer, _} -> Answer
    end.

item({call, #{id := Id} = Call}, Permits, {Arrival, Tenant, Instance}) ->
    {value, {_, Permit}, Rest} = lists:keytake(Id, 1, Permits),
    {{call, arrived(Call, Permit, Arrival, Tenant, Instance)}, Rest};
item(Item, Permits, {Arrival, _, Instance}) ->
    {counted(Item, Arrival, Instance), Permits}.

%% The span of a call begins with the arrival of its request.
arrived(Call, Permit, Arrival, Tenant, #{tracer := none}) ->
    Call#{permit => Permit, tenant => Tenant, arrival => Arrival};
arrived(#{context := Context} = Call, Permit, {Began, Bytes, _} = Arrival, Tenant,
        #{tracer := Tracer}) ->
    %% Only the span needs the origin. The process of the call does not get a copy.
    Alone = {Began, Bytes, none},
    case erlmcp_request_span:start(Context, Arrival, Tracer) of
        unsampled ->
            Call#{permit => Permit, tenant => Tenant, arrival => Alone, span => unsampled};
        {Span, Traced} ->
            Call#{permit => Permit, tenant => Tenant, arrival => Alone, span => Span,
                  context := Traced}
    end.

counted({answer, Asked, Outcome, Reply}, Arrival, Instance) ->
    erlmcp_meter:answered({Asked, Arrival}, Outcome, Reply, Instance);
counted({subscribe, Id, Uri}, Arrival, _) ->
    {subscribe, Uri, {{Id, ~"resources/subscribe", #{}}, Arrival}};
counted({unsubscribe, Id, Uri}, Arrival, _) ->
    {unsubscribe, Uri, {{Id, ~"resources/unsubscribe", #{}}, Arrival}};
counted({listen, #{id := Id} = Listen}, Arrival, _) ->
    {listen, Listen, {{Id, ~"subscriptions/listen", #{}}, Arrival}};
counted(Effect, _, _) ->
    Effect.

-doc """
Counts a request that begins or ends a subscription, with its outcome, and returns the answer to it.
The answer to `ok` is an empty result. The answer to `{ok, Acknowledged}` is the encoded message
`Acknowledged`. The answer to a refusal is an error of the given revision.
""".
-spec watched(Outcome, erlmcp_meter:about(), erlmcp_revision:revision(),
              erlmcp_meter:server()) -> erlmcp_reply:reply() when
    Outcome :: ok | {ok, Acknowledged :: iodata()} | {refuse, erlmcp_refusal:refusal()}.
watched(ok, {{Id, _, _}, _} = About, _, Server) ->
    erlmcp_meter:answered(About, ok, erlmcp_reply:result(Id, ~"{}"), Server);
watched({ok, Acknowledged}, About, _, Server) ->
    erlmcp_meter:answered(About, ok, {reply, 200, Acknowledged}, Server);
watched({refuse, Refusal}, {{Id, _, _}, _} = About, Revision, Server) ->
    erlmcp_meter:answered(About, {refused, Refusal}, erlmcp_reply:refuse(Id, Refusal, Revision),
                          Server).

-doc """
Gives back the permits of a message that was admitted and will not be handled. Does not count the
message.
""".
-spec abandon(admitted()) -> ok.
abandon({_, {batch, Permits, _}}) -> leave([Permit || {_, Permit} <- Permits]);
abandon({_, Permit}) -> erlmcp_gate:leave(Permit).

-doc """
Returns `{announced, Method, Text}` if the head of a stateless request names its method. Such a
request can enter before it is decoded (`enter_announced/5`). Returns `{post, Accept}` for any other
message, for `server/discover`, and for a method that needs escapes in JSON. The names of `Headers`
are in lower case.
""".
-spec announced(Headers :: #{binary() => binary()}, Accept :: erlmcp_httpd_route:accept()) ->
    announced() | {post, erlmcp_httpd_route:accept()}.
announced(#{~"mcp-protocol-version" := ~"2026-07-28", ~"mcp-method" := Method} = Headers, Accept)
        when Method =/= ~"server/discover", not is_map_key(~"mcp-session-id", Headers) ->
    case erlmcp_json:is_plain(Method) of
        true -> {announced, Method, <<",\"method\":\"", Method/binary, "\",\"params\":">>};
        false -> {post, Accept}
    end;
announced(_, Accept) ->
    {post, Accept}.

-doc """
Decides whether a request may go on, by its head. `Asked` is the action that the head asks for.
Returns `ok` if it may. Otherwise returns the refusal, with further headers of its answer:

- A message outside a session, or a new stream of HTTP+SSE, is refused if the server takes no
  requests now. For an announced request, `enter_announced/5` decides this later.
- Any request is refused if its principal may have no further connection
  (`erlmcp_gate:connect_tenant/2`).

Does not count a refused request in the meter. Only the process of the connection may call this
function. The connection counts as a connection of each of its first 100 principals, from the
principal's first request until the process ends.
""".
-spec check_head(erlmcp_httpd_route:action() | announced() | {sse, erlmcp_httpd_sse:asks()},
                 cowboy_req:req(), erlmcp_auth:principal(), erlmcp_instance:instance()) ->
    ok | {refuse, erlmcp_refusal:refusal(), Headers :: #{binary() => binary()}}.
check_head(Asked, #{headers := Headers, version := Version}, Principal,
           #{gate := Gate} = Instance) ->
    maybe
        ok ?= check_state(Asked, Headers, Gate),
        ok ?= check_principal(Principal, Version, Gate)
    else
        {refuse, Refusal, Extra} -> {refuse, not_before(Refusal, Instance), Extra}
    end.

check_state({announced, _, _}, _, _) ->
    ok;
check_state({post, _}, Headers, _) when is_map_key(~"mcp-session-id", Headers) ->
    ok;
check_state({post, _}, Headers, Gate) ->
    check_open(Headers, Gate);
check_state({sse, {open, _}}, Headers, Gate) ->
    check_open(Headers, Gate);
check_state(_, _, _) ->
    ok.

check_open(Headers, Gate) ->
    case erlmcp_gate:state(Gate) of
        open -> ok;
        {refuse, Refusal} -> {refuse, refused_by_head(Refusal, Headers), #{}}
    end.

%% A connection counts as a principal's from the principal's first request on it until its end.
check_principal(anonymous, _, _) ->
    ok;
check_principal(Principal, Version, Gate) ->
    #connection{permits = Permits} = Connection = connection(),
    case Permits of
        #{Principal := _} ->
            ok;
        #{} when map_size(Permits) >= ?PRINCIPALS ->
            ok;
        #{} ->
            case erlmcp_gate:connect_tenant(Gate, Principal) of
                {ok, Permit} ->
                    keep(Connection#connection{permits = Permits#{Principal => Permit}});
                {refuse, Refusal} ->
                    {refuse, Refusal, erlmcp_httpd_body:closing(Version)}
            end
    end.

connection() ->
    case get(?MODULE) of
        undefined -> #connection{};
        Connection -> Connection
    end.

keep(Connection) ->
    _ = put(?MODULE, Connection),
    ok.

-doc """
Lets an announced request enter before it is decoded, if `erlmcp_message:first_id/1` finds its id in
the body. Returns the id. If the request enters, also returns `admitted()` (`enter/4`), and the
number of bytes of the body up to the end of the id. If the request is refused, returns the refusal,
and counts the request in the meter. Returns `undecoded` for any other message: it enters after it
is decoded (`enter/4`).
""".
-spec enter_announced(announced() | {post, erlmcp_httpd_route:accept()}, binary(),
                      erlmcp_meter:arrival(), tenant(), erlmcp_instance:instance()) ->
    undecoded
    | {ok, admitted(), Begun :: {erlmcp_message:id(), Bytes :: pos_integer()}}
    | {refuse, erlmcp_message:id(), erlmcp_refusal:refusal()}.
enter_announced({announced, Method, _}, Bytes, Arrival, Tenant, Instance) ->
    maybe
        {ok, Id, At} ?= erlmcp_message:first_id(Bytes),
        case enter_one(request, {Id, Method, #{}}, Arrival, Tenant, Instance) of
            {ok, Permit} -> {ok, {Arrival, Permit}, {Id, At}};
            {refuse, Refusal} -> {refuse, Id, Refusal}
        end
    else
        unseen -> undecoded
    end;
enter_announced(_, _, _, _, _) ->
    undecoded.

-doc """
Returns a refusal with the status for the method that the head of the request names. For
`server/discover` the status is 503 in place of 429. A client that explores a server's era would
take 429 for the answer of an older server. For any other method the refusal is unchanged.
""".
-spec refused_by_head(erlmcp_refusal:refusal(), Headers :: #{binary() => binary()}) ->
    erlmcp_refusal:refusal().
refused_by_head(Refusal, #{~"mcp-method" := ~"server/discover"}) -> unavailable(Refusal);
refused_by_head(Refusal, _) -> Refusal.

unavailable(Refusal) ->
    case erlmcp_refusal:status(Refusal) of
        429 -> erlmcp_refusal:with_status(503, Refusal);
        _ -> Refusal
    end.

-doc """
Returns the answer of HTTP to the message `Json` with this id, which may not enter. `InSession` is
`true` if the HTTP request names a session. Then the answer to a request with an id has the status
200, unless the request is stateless. Some clients take another status for the end of the session.
`server/discover` is refused with 503 in place of 429, as by `refused_by_head/2`.
""".
-spec refused(erlmcp_message:id() | undefined, erlmcp_refusal:refusal(), Json :: term(),
              erlmcp_engine:request_context(), InSession :: boolean()) -> erlmcp_reply:reply().
refused(Id, Refusal, #{~"method" := ~"server/discover"}, _, _) ->
    erlmcp_reply:refuse(Id, unavailable(Refusal));
refused(Id, Refusal, Json, RequestContext, true) when Id =/= undefined ->
    case erlmcp_engine:era(Json, RequestContext) of
        session -> {reply, 200, erlmcp_message:error(Id, Refusal)};
        stateless -> erlmcp_reply:refuse(Id, Refusal)
    end;
refused(Id, Refusal, _, _, _) ->
    erlmcp_reply:refuse(Id, Refusal).

-doc """
Returns how many milliseconds to wait before a refusal is sent. A refusal with a retry time waits
until a second after the previous such refusal of the same connection was to be sent. Each
connection leaves out a different part of its waits, up to a half. Any other refusal does not wait.
The process of the connection calls this function once for each refusal.

No refusal waits on the connection of a proxy, which many clients share. If the listener trusts
proxies, only these count as proxies. Otherwise the headers of a request show that it came through a
proxy.
""".
-spec hold_back(erlmcp_refusal:refusal(), Headers :: #{binary() => binary()},
                erlmcp_httpd:config()) -> non_neg_integer().
hold_back(Refusal, Headers, Config) ->
    case {erlmcp_refusal:retry_after(Refusal), is_proxied(Headers, Config)} of
        {Seconds, false} when is_integer(Seconds) ->
            Now = erlmcp_clock:now_ms(),
            #connection{try_again_ms = TryAgain} = Connection = connection(),
            Milliseconds = until(TryAgain, Now),
            Next = Now + Milliseconds + min(?HELD_BACK, 1000 * Seconds),
            ok = keep(Connection#connection{try_again_ms = Next}),
            Milliseconds;
        _ ->
            0
    end.

until(TryAgain, Now) when is_integer(TryAgain), TryAgain > Now ->
    TryAgain - Now - erlang:phash2(self(), (TryAgain - Now) div 2 + 1);
until(_, _) ->
    0.

is_proxied(_, #{proxied := Proxied}) -> Proxied;
is_proxied(#{~"via" := _}, _) -> true;
is_proxied(Headers, _) -> erlmcp_forwarded:is_there(Headers).
