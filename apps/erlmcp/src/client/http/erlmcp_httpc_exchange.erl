-module(erlmcp_httpc_exchange).
-moduledoc """
The exchange of one message and its response by HTTP: a state machine in the process that sent the
message. That process gets the connection's messages.

A request is answered with JSON or with a stream of events. In a session, a stream that ends before
the response is resumed after its last event, if the events have ids.

Internal.
""".

-export([start/2, received/2, received_bytes/1, abort/1, delete/4]).

-export_type([route/0, exchange/0, event/0]).

-doc """
Everything that the messages of a channel have in common: the destination, headers, limits, the pool
and the authorizer. `sse` is the process of HTTP+SSE.
""".
-type route() :: #{
    pool := erlmcp_httpc_pool:handle(),
    url := uri_string:uri_map(),
    path := binary(),
    headers := [{binary(), iodata()}],
    limits := erlmcp_json:limits(),
    authorizer := none | erlmcp_authorizer:handle(),
    sse => pid()
}.

-doc """
An event of an exchange. If the outgoing message has `named => true`, each event of its SSE stream
comes as `{named, Name, Data}`. `Name` is the name of the SSE event, and `Data` is not decoded.
""".
-type event() :: erlmcp_channel:event() | {named, Name :: binary(), Data :: binary()}.

-record(exchange, {
    route :: route(),
    outgoing :: erlmcp_channel:outgoing(),
    body :: binary(),
    path :: binary(),
    method :: post | get | delete,
    %% Milliseconds within which the server must begin its answer.
    patience :: integer(),
    %% The running request, with its connection.
    request = none :: none | erlmcp_httpc_pool_request:request(),
    at = head :: head
        | {body, json | taken | {refused, 100..999, erlmcp_httpc_answer:fields()}, binary()}
        | {events, erlmcp_sse_reader:state()}
        | {waiting, reference()}
        | over,
    %% The bytes of the messages that have come.
    received = 0 :: non_neg_integer(),
    %% The number of repetitions because a connection had ended unused, and of redirections.
    repeats = 0 :: non_neg_integer(),
    redirects = 0 :: non_neg_integer(),
    %% The headers of the authorizer, and how often the server refused them.
    authorization = [] :: [{binary(), iodata()}],
    challenges = 0 :: non_neg_integer(),
    resumption = erlmcp_httpc_resumption:new() :: erlmcp_httpc_resumption:resumption()
}).

-opaque exchange() :: #exchange{}.

-define(REPEATS, 3).
-define(REDIRECTS, 3).
%% The most refusals after which a request is sent again with a new token.
-define(CHALLENGES, 3).
%% The most milliseconds that an attempt to resume a stream waits for a token or a connection. Its
%% process hears nothing else meanwhile, also not that its call is over.
-define(ATTEMPT, 30_000).

-doc """
Sends a message, or requests a stream if the message has the kind `stream` and no id. Waits for a
token and for a connection, at most until the message's deadline. The wait for a connection ends
with `caller` and `cancel`. If these come during the wait for a token, nothing is sent after it. The
events of the exchange come to the calling process, in messages for `received/2`. The error says why
the message was not sent.
""".
-spec start(erlmcp_channel:outgoing(), route()) ->
    {ok, exchange()} | {error, erlmcp_channel:reason()}.
start(#{kind := Kind, id := Id} = Outgoing, Route) ->
    Method = case {Kind, Id} of
        {stream, none} -> get;
        _ -> post
    end,
    request(exchange(Method, Outgoing, Route)).

exchange(Method, #{message := Message, deadline := Deadline} = Outgoing, #{path := Path} = Route) ->
    #exchange{route = Route, outgoing = Outgoing, path = Path, method = Method,
              patience = Deadline - erlmcp_clock:now_ms(),
              body = iolist_to_binary(Message)}.

request(#exchange{route = Route, outgoing = #{kind := Kind, deadline := Deadline}} = X) ->
    #exchange{method = Method, path = Path, body = Body} = X,
    #{pool := Pool, headers := Constant} = Route,
    maybe
        {ok, Authorization} ?= authorization(X),
        Own = Authorization ++ session(X) ++ headers(X),
        ok ?= sendable(Own),
        Sent = case Method of
            post -> Body;
            _ -> ~""
        end,
        {ok, Request} ?= requested({Pool, lane(Kind), Deadline, ends(X)}, {Method, Path},
                           {accepting(Method, Own ++ Constant), Sent}, ?REPEATS),
        {ok, X#exchange{request = Request, authorization = Authorization, at = head}}
    end.

%% The server has the message of a stream that is being resumed, and must be told that the caller
%% has given up. So this is heard where the events are read, and not here.
ends(#exchange{outgoing = Outgoing, resumption = Resumption}) ->
    case erlmcp_httpc_resumption:has_failed(Resumption) of
        true -> #{};
        false -> maps:with([caller, cancel], Outgoing)
    end.

authorization(#exchange{route = #{authorizer := none}}) ->
    {ok, []};
authorization(#exchange{route = Route, method = Method, path = Path, outgoing = Outgoing}) ->
    #{authorizer := Authorizer, url := Url} = Route,
    #{deadline := Deadline} = Outgoing,
    Target = erlmcp_httpc_target:at(Path, Url),
    case erlmcp_authorizer:headers(Authorizer, Method, Target, Deadline) of
        {ok, Headers} -> {ok, Headers};
        {error, Why} -> {error, not_authorized(Why)}
    end.

not_authorized(timeout) -> timeout;
not_authorized(Why) -> {unauthorized, Why}.

%% Sends the request on a connection of the pool, and on another one if the server had closed the
%% first already.
requested({Pool, Lane, Deadline, Ends} = From, RequestLine, Content, Repeats) ->
    maybe
        {ok, Loan} ?= erlmcp_httpc_pool:checkout(Pool, Lane, Deadline, Ends),
        ended ?= erlmcp_httpc_pool_request:request(Loan, RequestLine, Content),
        case Repeats of
            0 -> {error, {closed, unprocessed}};
            _ -> requested(From, RequestLine, Content, Repeats - 1)
        end
    end.

%% A call may wait for the answer to a question of its server. So neither answers nor cancellations
%% wait for calls.
lane(request) -> call;
lane(stream) -> stream;
lane(_) -> message.

accepting(post, Headers) ->
    [{~"accept", ~"application/json, text/event-stream"}, {~"content-type", ~"application/json"}
     | Headers];
accepting(get, Headers) -> [{~"accept", ~"text/event-stream"} | Headers];
accepting(delete, Headers) -> Headers.

session(#exchange{outgoing = #{session := none}}) -> [];
session(#exchange{outgoing = #{session := Session}}) -> [{~"mcp-session-id", Session}].

headers(#exchange{method = get, outgoing = #{headers := Headers}, resumption = Resumption}) ->
    erlmcp_httpc_resumption:headers(Resumption) ++ Headers;
headers(#exchange{outgoing = #{headers := Headers}}) ->
    Headers.

%% Methods, sessions and tokens come from users and servers, so none may contain a line end and with
%% it another header.
sendable([{Name, Value} | Headers]) ->
    case erlmcp_httpc_options:is_value(Value) of
        true -> sendable(Headers);
        false -> {error, {protocol, <<"header ", Name/binary, ": expected no line end in it">>}}
    end;
sendable([]) ->
    ok.

-doc """
Returns what a message of the mailbox means for the exchange: its new events, in order, and its next
state. Returns `other` if the message does not belong to the exchange. The function may send the
exchange's message again, or resume its stream, and waits then as `start/2` does.

After the pause before a resumption, the message `{timeout, Timer, resume}` comes. A caller with a
deadline passes `{timeout, Timer, {resume, Deadline}}` in its place. Then the function waits at most
until `Deadline`.
""".
-spec received(Message :: term(), exchange()) -> {[event()], exchange()} | other.
received({timeout, Timer, resume}, #exchange{at = {waiting, Timer}} = X) ->
    again(X);
received({timeout, Timer, {resume, Until}},
         #exchange{at = {waiting, Timer}, outgoing = #{deadline := Deadline} = Outgoing} = X) ->
    again(X#exchange{outgoing = Outgoing#{deadline := min(Deadline, Until)}});
received(_, #exchange{request = none}) ->
    other;
received(Message, #exchange{request = Request} = X) ->
    case erlmcp_httpc_pool_request:received(Message, Request) of
        {data, IsFin, Data, Next} -> data(IsFin, Data, X#exchange{request = Next});
        {head, IsFin, Status, Fields, Data, Next} ->
            response({IsFin, Data}, Status, Fields, X#exchange{request = Next});
        {broken, Reason, State} -> broken(Reason, X, release(State, X));
        {more, Next} -> {[], X#exchange{request = Next}};
        other -> other
    end.

response({IsFin, Data} = Begun, Status, Fields, #exchange{route = Route} = X) ->
    ok = case Route of
        #{authorizer := none} -> ok;
        #{authorizer := Authorizer} -> erlmcp_authorizer:notice(Authorizer, Fields)
    end,
    case erlmcp_httpc_answer:kind(Status, Fields, awaited(X)) of
        json -> accepted(Begun, Fields, X, {body, json, ~""});
        events -> accepted(Begun, Fields, X, {events, reader(X)});
        taken -> body(IsFin, Data, X, {body, taken, ~""});
        refused -> body(IsFin, Data, X, {body, {refused, Status, Fields}, ~""});
        {error, Reason} when IsFin =:= fin -> failed(Reason, reusable, X);
        {error, Reason} -> failed(Reason, cut, X)
    end.

awaited(#exchange{method = get}) -> stream;
awaited(#exchange{outgoing = #{id := none}}) -> nothing;
awaited(_) -> response.

reader(#exchange{route = #{limits := #{message_bytes := Max}}}) ->
    erlmcp_sse_reader:new(Max).

accepted({IsFin, Data}, Fields, #exchange{resumption = Resumption} = X, At) ->
    Begun = X#exchange{at = At, resumption = erlmcp_httpc_resumption:stream_began(Resumption)},
    case {IsFin, Data} of
        {nofin, ~""} ->
            {[{headers, Fields}], Begun};
        _ ->
            {Events, Next} = data(IsFin, Data, Begun),
            {[{headers, Fields} | Events], Next}
    end.

data(IsFin, Data, #exchange{at = {events, Reader}} = X) ->
    {Read, Next} = erlmcp_sse_reader:push(Data, Reader),
    events(Read, [], IsFin, X#exchange{at = {events, Next}});
data(IsFin, Data, #exchange{at = {body, _, _} = At} = X) ->
    body(IsFin, Data, X, At);
data(_, _, X) ->
    {[], X}.

%% A body in one piece is not copied.
body(IsFin, Data, X, {body, What, Held}) ->
    Body = case Held of
        ~"" -> Data;
        _ -> <<Held/binary, Data/binary>>
    end,
    case {byte_size(Body) =< most(What, X), IsFin} of
        {true, nofin} -> {[], X#exchange{at = {body, What, Body}}};
        {true, fin} -> whole(What, Body, reusable, X);
        {false, _} -> over_bound(What, Body, IsFin, X)
    end.

most(json, #exchange{route = #{limits := #{message_bytes := Max}}}) -> Max;
most({refused, _, #{~"content-type" := <<"application/json", _/binary>>}}, X) -> most(json, X);
most(_, _) -> erlmcp_httpc_answer:kept_bytes().

over_bound(json, _, IsFin, X) ->
    failed({too_large, most(json, X)}, connection_state(IsFin), X);
over_bound(What, Body, IsFin, X) ->
    whole(What, Body, connection_state(IsFin), X).

connection_state(fin) -> reusable;
connection_state(nofin) -> cut.

whole(json, Body, State, #exchange{outgoing = #{id := Id}, route = #{limits := Limits}} = X) ->
    Counted = count_received(Body, X),
    case erlmcp_httpc_answer:whole(Body, Id, Limits) of
        {ok, Events} -> over(Events, State, Counted);
        {error, Reason} -> failed(Reason, State, Counted)
    end;
whole(taken, _, State, X) ->
    over([sent], State, X);
whole({refused, Status, Fields}, Body, State, X) ->
    refused(Status, Fields, Body, release(State, X)).

count_received(Message, #exchange{received = Received} = X) ->
    X#exchange{received = Received + byte_size(Message)}.

-doc "Returns how many bytes of messages the exchange has received until now.".
-spec received_bytes(exchange()) -> non_neg_integer().
received_bytes(#exchange{received = Received}) ->
    Received.

%% A redirection that keeps the method is followed within the origin. Any other refusal ends the
%% exchange, except where authorization or resumption may help.
refused(Status, #{~"location" := Location}, _, X) when Status >= 300, Status < 400 ->
    #exchange{route = #{url := Url}, redirects = Redirects, path = Path} = X,
    case erlmcp_httpc_target:resolve_redirect(Location, Path, Url) of
        {ok, Next} when Status =:= 307 orelse Status =:= 308, Redirects < ?REDIRECTS ->
            again(X#exchange{path = Next, redirects = Redirects + 1});
        _ ->
            fail_released({redirect, Location}, X)
    end;
refused(Status, Fields, Body, #exchange{route = #{limits := Limits}} = X) ->
    #exchange{outgoing = #{session := Session, id := Id}, resumption = Resumption} = X,
    Reason = erlmcp_httpc_answer:reason(Status, Fields, Body),
    case erlmcp_httpc_answer:refusal({Status, Fields, Body}, {Session, Id}, Limits) of
        unauthorized -> unauthorized(Status, Fields, Reason, X);
        session_lost -> fail_released(session_lost(X), X);
        {error, Error} when Status =:= 404, Session =/= none ->
            answered(Error, count_received(Body, X));
        Refusal ->
            case {erlmcp_httpc_resumption:has_event_id(Resumption), Refusal} of
                {true, _} -> not_resumed(Status, Reason, X);
                {false, {error, Error}} -> answered(Error, count_received(Body, X));
                {false, none} -> fail_released(Reason, X)
            end
    end.

%% The server has accepted a request whose stream is being resumed, so it may have done the work.
session_lost(#exchange{outgoing = #{id := Id}, resumption = Resumption}) ->
    case Id =/= none andalso erlmcp_httpc_resumption:has_event_id(Resumption) of
        true -> {closed, session_lost};
        false -> session_lost
    end.

answered(Error, #exchange{outgoing = #{id := Id}} = X) ->
    {[{message, {response, Id, {error, Error}}}], X#exchange{at = over}}.

%% A DELETE, which ends a session, does not start a login.
unauthorized(_, _, Reason, #exchange{method = delete} = X) ->
    fail_released({unauthorized, Reason}, X);
unauthorized(_, _, Reason, #exchange{route = #{authorizer := Authorizer}, challenges = Before} = X)
  when Authorizer =:= none; Before >= ?CHALLENGES ->
    fail_released({unauthorized, Reason}, X);
unauthorized(Status, Fields, Reason, #exchange{route = Route, challenges = Before} = X) ->
    #{authorizer := Authorizer, pool := Pool} = Route,
    #exchange{authorization = Used, outgoing = #{deadline := Deadline}} = X,
    Reached = erlmcp_httpc_pool:outermost(Pool),
    case erlmcp_authorizer:challenged(Authorizer, Used, {Status, Fields}, Reached, Deadline) of
        retry -> again(X#exchange{challenges = Before + 1});
        %% No token was requested, so the server's own error says more.
        {error, {forbidden, _}} -> fail_released({unauthorized, Reason}, X);
        {error, {browser, none}} -> fail_released({unauthorized, Reason}, X);
        {error, timeout} ->
            %% Before the deadline it is the login itself that nobody has completed.
            case erlmcp_clock:now_ms() < Deadline of
                true -> fail_released(timeout, X);
                false -> not_sent(timeout, X)
            end;
        {error, Why} -> not_sent(not_authorized(Why), X)
    end.

%% After a 5xx the server may still know the stream later.
not_resumed(Status, Reason, #exchange{outgoing = #{id := Id}} = X) ->
    case is_resumable(X) of
        true when Status >= 500 -> wait([], X);
        _ when Id =:= none -> fail_released(Reason, X);
        _ -> fail_released({closed, Reason}, X)
    end.

events([#{event := Name, data := Data} | Read], Events, IsFin,
       #exchange{outgoing = #{named := true}} = X) ->
    events(Read, [Events, {named, Name, Data}], IsFin, X);
events([#{event := ~"message", data := Data} | Read], Events, IsFin, X) when Data =/= ~"" ->
    #exchange{outgoing = #{id := Id}, route = #{limits := Limits}} = X,
    Counted = count_received(Data, X),
    case erlmcp_httpc_answer:event(Data, Id, Limits) of
        {open, More} ->
            events(Read, [Events | More], IsFin, Counted);
        {answered, More} ->
            over(lists:flatten([Events | More]), drained(IsFin, X), Counted);
        {error, Reason} ->
            over(lists:flatten([Events, {failed, Reason}]), connection_state(IsFin), Counted)
    end;
events([#{} | Read], Events, IsFin, X) ->
    events(Read, Events, IsFin, X);
events([{too_large, Limit}], Events, IsFin, X) ->
    over(lists:flatten([Events, {failed, {too_large, Limit}}]), connection_state(IsFin), X);
events([], Events, nofin, X) ->
    {lists:flatten(Events), X};
events([], Events, fin, X) ->
    ended(lists:flatten(Events), ended, release(reusable, X)).

drained(fin, _) -> reusable;
drained(nofin, #exchange{request = Request}) -> erlmcp_httpc_pool_request:drained(Request).

%% The connection ended before the response. If the server never took the request, it is sent on
%% another connection.
broken(unprocessed, #exchange{at = head, repeats = Repeats}, Released) when Repeats < ?REPEATS ->
    again(Released#exchange{repeats = Repeats + 1});
broken(unprocessed, #exchange{at = head}, Released) ->
    not_sent({closed, unprocessed}, Released);
broken(unprocessed, _, Released) ->
    ended([], ended, Released);
broken(Reason, _, Released) ->
    ended([], Reason, Released).

ended(Events, Why, X) ->
    Next = came_to(X),
    case is_resumable(Next) of
        true -> wait(Events, Next);
        false -> {Events ++ [{failed, {closed, Why}}], Next#exchange{at = over}}
    end.

came_to(#exchange{at = {events, Reader}, resumption = Resumption} = X) ->
    X#exchange{resumption = erlmcp_httpc_resumption:progress(Reader, Resumption)};
came_to(X) ->
    X.

is_resumable(#exchange{outgoing = #{resumes := true}, method = Method, resumption = Resumption}) ->
    erlmcp_httpc_resumption:may_resume(Method, Resumption);
is_resumable(_) ->
    false.

wait(Events, #exchange{resumption = Resumption} = X) ->
    {Delay, Next} = erlmcp_httpc_resumption:delay(Resumption),
    Timer = erlang:start_timer(Delay, self(), resume),
    {Events, (renewed(Delay, X))#exchange{at = {waiting, Timer}, method = get, resumption = Next}}.

%% The deadline applies to each attempt to open a stream, and not to the stream's lifetime. A call
%% has more time after progress, and after answers of its user, and says how long it waits still.
renewed(Delay, #exchange{outgoing = Outgoing, patience = Patience} = X) ->
    Deadline = erlmcp_clock:now_ms() + Delay + min(Patience, ?ATTEMPT),
    X#exchange{outgoing = Outgoing#{deadline := Deadline}}.

again(X) ->
    case request(X) of
        {ok, Next} -> {[], Next};
        {error, Reason} -> not_sent(Reason, X)
    end.

%% The message of a stream that is being resumed was accepted before, so no reason may say that
%% nothing was sent.
not_sent(Reason, #exchange{resumption = Resumption} = X) ->
    case {erlmcp_httpc_resumption:has_failed(Resumption), Reason} of
        {false, _} -> fail_released(Reason, X);
        %% The pool has ended with its channel.
        {true, {connect, stopped}} -> fail_released({closed, Reason}, X);
        {true, {Kind, _}} when Kind =:= connect; Kind =:= overload -> ended([], Reason, X);
        {true, {closed, unprocessed}} -> ended([], ended, X);
        {true, timeout} -> ended([], timeout, X);
        {true, _} -> fail_released(Reason, X)
    end.

fail_released(Reason, X) ->
    {[{failed, Reason}], X#exchange{at = over}}.

failed(Reason, State, X) ->
    over([{failed, Reason}], State, X).

over(Events, State, X) ->
    {Events, (release(State, X))#exchange{at = over}}.

release(_, #exchange{request = none} = X) ->
    X;
release(State, #exchange{request = Request} = X) ->
    ok = erlmcp_httpc_pool_request:give_back(State, Request),
    X#exchange{request = none}.

-doc """
Ends the exchange, and closes its stream if one is open. Always returns `true`: the end of a stream
tells a server of 2026-07-28 of the cancellation. In a session it tells the server nothing.
""".
-spec abort(exchange()) -> true.
abort(#exchange{at = {waiting, Timer}}) ->
    _ = erlang:cancel_timer(Timer),
    true;
abort(X) ->
    _ = release(cut, X),
    true.

-doc """
Ends the session with the id `Session` by a DELETE request with the given headers. Waits for the
answer at most until `Deadline`, in monotonic milliseconds. Ignores the answer, and any failure.
""".
-spec delete(Session :: binary(), [{binary(), iodata()}], Deadline :: integer(), route()) -> ok.
delete(Session, Headers, Deadline, Route) ->
    Outgoing = #{kind => notification, id => none, message => ~"", headers => Headers,
                 session => Session, deadline => Deadline},
    case request(exchange(delete, Outgoing, Route)) of
        {ok, X} -> deleted(X);
        {error, _} -> ok
    end.

deleted(#exchange{request = none}) ->
    ok;
deleted(#exchange{request = Request, outgoing = #{deadline := Deadline}} = X) ->
    case erlmcp_httpc_pool_request:next(Request, Deadline) of
        {ok, Message} ->
            case received(Message, X) of
                {_, Next} -> deleted(Next);
                other -> deleted(X)
            end;
        timeout ->
            _ = abort(X),
            ok
    end.
