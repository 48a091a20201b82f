-module(erlmcp_http_exchange).
-moduledoc """
One message sent by HTTP, and what comes back: a state machine that lives in the process that sent it.
No process stands between that one and gun's connection.

A request is answered with JSON or with a stream of events. In a session, a stream that ends before
the response is taken up again where it ended.
""".

-export([start/2, received/2, abort/1, delete/4]).

-export_type([route/0, exchange/0]).

-doc "Where a channel's messages go, and with what.".
-type route() :: #{
    pool := erlmcp_http_pool:handle(),
    url := uri_string:uri_map(),
    path := binary(),
    headers := [{binary(), iodata()}],
    limits := erlmcp_json:limits(),
    authorizer := erlmcp_http_authorization:authorizer()
}.

-record(exchange, {
    route :: route(),
    outgoing :: erlmcp_channel:outgoing(),
    body :: binary(),
    path :: binary(),
    method :: post | get | delete,
    %% Of the request that runs.
    lease = none :: none | erlmcp_http_pool:lease(),
    connection = none :: none | pid(),
    monitor = none :: none | reference(),
    stream = none :: none | gun:stream_ref(),
    %% Whether the server ends the connection with the response.
    closes = false :: boolean(),
    %% Messages of gun's that were read and not yet allowed again.
    unread = 0 :: non_neg_integer(),
    at = head :: head
        | {body, json | taken | {refused, 100..999, erlmcp_http_answer:fields()}, binary()}
        | {events, erlmcp_sse_reader:state()}
        | {waiting, reference()}
        | over,
    %% How often it was sent anew: after a connection that did nothing, and elsewhere.
    repeats = 0 :: non_neg_integer(),
    redirects = 0 :: non_neg_integer(),
    %% The headers that the authorizer gave, and how often they were refused.
    authorization = [] :: [{binary(), iodata()}],
    challenges = 0 :: non_neg_integer(),
    %% Where to come back to, after how many milliseconds, and how often in a row that failed.
    last_id = ~"" :: binary(),
    retry = 1000 :: non_neg_integer(),
    failures = 0 :: non_neg_integer()
}).

-opaque exchange() :: #exchange{}.

%% gun sends so many messages ahead of those that were read.
-define(FLOW, 16).
%% What gun would look at in each header, byte by byte, has been looked at.
-define(GUN, #{flow => ?FLOW, invalid_request_headers => ignore}).
-define(REPEATS, 3).
-define(REDIRECTS, 3).
-define(FAILURES, 10).
-define(PAUSE, 30_000).
%% What is kept of a body that is no message.
-define(KEPT, 4096).
%% An event id that is longer is nothing to send as a header.
-define(LAST_ID, 4096).
%% Milliseconds for the end of a stream whose answer has come.
-define(DRAIN, 20).

-doc "Sends. What comes of it is told to this process.".
-spec start(erlmcp_channel:outgoing(), route()) ->
    {ok, exchange()} | {error, erlmcp_channel:reason()}.
start(#{kind := Kind, id := Id, message := Message} = Outgoing, #{path := Path} = Route) ->
    Method = case {Kind, Id} of
        {stream, none} -> get;
        _ -> post
    end,
    request(#exchange{route = Route, outgoing = Outgoing, path = Path, method = Method,
                      body = iolist_to_binary(Message)}).

request(#exchange{route = Route, outgoing = #{kind := Kind, deadline := Deadline}} = X) ->
    #exchange{method = Method, path = Path} = X,
    #{pool := Pool, url := Url, authorizer := Authorizer} = Route,
    maybe
        {ok, Authorization} ?=
            erlmcp_http_authorization:headers(Authorizer, Method, {Path, Url}, Deadline),
        {ok, Lease} ?= erlmcp_http_pool:checkout(Pool, lane(Kind), Deadline),
        {ok, request(Lease, X#exchange{authorization = Authorization})}
    end.

request(Lease, #exchange{method = Method, path = Path} = X) ->
    Connection = erlmcp_http_pool:connection(Lease),
    Monitor = monitor(process, Connection),
    {Name, Body} = case Method of
        post -> {~"POST", X#exchange.body};
        get -> {~"GET", ~""};
        delete -> {~"DELETE", ~""}
    end,
    Headers = X#exchange.authorization ++ headers(X),
    Stream = gun:request(Connection, Name, Path, Headers, Body, ?GUN),
    X#exchange{lease = Lease, connection = Connection, monitor = Monitor, stream = Stream,
               unread = 0, closes = false, at = head}.

lane(stream) -> stream;
lane(_) -> call.

headers(#exchange{method = post, route = #{headers := Constant}, outgoing = Outgoing}) ->
    [{~"accept", ~"application/json, text/event-stream"}, {~"content-type", ~"application/json"}
     | own(Outgoing, Constant)];
headers(#exchange{method = get, last_id = ~"", route = #{headers := Constant}} = X) ->
    [{~"accept", ~"text/event-stream"} | own(X#exchange.outgoing, Constant)];
headers(#exchange{method = get, last_id = Id} = X) ->
    [{~"last-event-id", Id} | headers(X#exchange{last_id = ~""})];
headers(#exchange{method = delete, route = #{headers := Constant}, outgoing = Outgoing}) ->
    own(Outgoing, Constant).

own(#{session := none, headers := Headers}, Constant) -> Headers ++ Constant;
own(#{session := Session, headers := Headers}, Constant) ->
    [{~"mcp-session-id", Session} | Headers ++ Constant].

-doc "What a message in the mailbox means.".
-spec received(Message :: term(), exchange()) -> {[erlmcp_channel:event()], exchange()} | other.
received({gun_data, Connection, Stream, IsFin, Data},
         #exchange{connection = Connection, stream = Stream} = X) ->
    data(IsFin, Data, allowed(IsFin, X));
received({gun_response, Connection, Stream, IsFin, Status, Headers},
         #exchange{connection = Connection, stream = Stream} = X) ->
    response(IsFin, Status, erlmcp_http_answer:fields(Headers), X);
received({gun_trailers, Connection, Stream, _},
         #exchange{connection = Connection, stream = Stream} = X) ->
    data(fin, ~"", X);
received({gun_inform, Connection, Stream, _, _},
         #exchange{connection = Connection, stream = Stream} = X) ->
    {[], X};
received({gun_push, Connection, Stream, Pushed, _, _, _},
         #exchange{connection = Connection, stream = Stream} = X) ->
    ok = gun:cancel(Connection, Pushed),
    {[], X};
received({gun_error, Connection, Stream, Reason},
         #exchange{connection = Connection, stream = Stream} = X) ->
    broken(Reason, X);
%% The connection reports its streams' ends itself; what it says of itself comes before.
received({gun_error, Connection, _}, #exchange{connection = Connection} = X) ->
    {[], X};
received({'DOWN', Monitor, process, _, Reason}, #exchange{monitor = Monitor} = X) ->
    broken(down(Reason), X);
received({timeout, Timer, resume}, #exchange{at = {waiting, Timer}} = X) ->
    resume(X);
received(_, _) ->
    other.

allowed(nofin, #exchange{unread = Unread, connection = Connection, stream = Stream} = X)
  when Unread + 1 >= ?FLOW div 2 ->
    ok = gun:update_flow(Connection, Stream, Unread + 1),
    X#exchange{unread = 0};
allowed(_, #exchange{unread = Unread} = X) ->
    X#exchange{unread = Unread + 1}.

response(IsFin, Status, Fields, #exchange{route = #{authorizer := Authorizer}} = Before) ->
    ok = erlmcp_http_authorization:noticed(Authorizer, Fields),
    X = Before#exchange{closes = erlmcp_http_answer:closes(Fields)},
    case erlmcp_http_answer:kind(Status, Fields, awaited(X)) of
        json -> accepted(IsFin, Fields, X, {body, json, ~""});
        events -> accepted(IsFin, Fields, X, {events, reader(X)});
        taken -> body(IsFin, ~"", X, {body, taken, ~""});
        refused -> body(IsFin, ~"", X, {body, {refused, Status, Fields}, ~""});
        {error, Reason} when IsFin =:= fin -> failed(Reason, reusable, X);
        {error, Reason} -> failed(Reason, cut, X)
    end.

awaited(#exchange{method = get}) -> stream;
awaited(#exchange{outgoing = #{id := none}}) -> nothing;
awaited(_) -> response.

reader(#exchange{route = #{limits := #{message_bytes := Max}}}) ->
    erlmcp_sse_reader:new(Max).

accepted(nofin, Fields, X, At) ->
    {[{headers, Fields}], X#exchange{at = At, failures = 0}};
accepted(fin, Fields, X, At) ->
    {Events, Next} = data(fin, ~"", X#exchange{at = At, failures = 0}),
    {[{headers, Fields} | Events], Next}.

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
most(_, _) -> ?KEPT.

over_bound(json, _, IsFin, X) ->
    failed({too_large, most(json, X)}, left(IsFin), X);
over_bound(What, Body, IsFin, X) ->
    whole(What, Body, left(IsFin), X).

left(fin) -> reusable;
left(nofin) -> cut.

whole(json, Body, Left, #exchange{outgoing = #{id := Id}, route = #{limits := Limits}} = X) ->
    case erlmcp_http_answer:whole(Body, Id, Limits) of
        {ok, Events} -> over(Events, Left, X);
        {error, Reason} -> failed(Reason, Left, X)
    end;
whole(taken, _, Left, X) ->
    over([sent], Left, X);
whole({refused, Status, Fields}, Body, Left, X) ->
    refused(Status, Fields, Body, release(Left, X)).

%% What HTTP refused. A redirection that keeps the method is followed, but to no other origin.
refused(Status, #{~"location" := Location}, _, X) when Status >= 300, Status < 400 ->
    #exchange{route = #{url := Url}, redirects = Redirects, path = Path} = X,
    case erlmcp_http_target:redirected(Location, Path, Url) of
        {ok, Next} when Status =:= 307 orelse Status =:= 308, Redirects < ?REDIRECTS ->
            again(X#exchange{path = Next, redirects = Redirects + 1});
        _ ->
            gone({redirect, Location}, X)
    end;
refused(Status, Fields, Body, #exchange{route = #{limits := Limits}} = X) ->
    #exchange{outgoing = #{session := Session, id := Id}} = X,
    Error = erlmcp_http_answer:refusal(Body, Limits),
    Reason = plain(Status, Fields, Body),
    case {Status, Error} of
        {404, _} when Session =/= none ->
            lost_session(Error, Id, X);
        {401, _} ->
            unauthorized(Status, Fields, Reason, X);
        {403, _} when Error =:= none; is_map_key(~"www-authenticate", Fields) ->
            unauthorized(Status, Fields, Reason, X);
        {_, _} when X#exchange.last_id =/= ~"" ->
            not_resumed(Status, Reason, X);
        {_, {ok, _, Told}} when Id =/= none ->
            {[{message, {response, Id, {error, Told}}}], X#exchange{at = over}};
        _ ->
            gone(Reason, X)
    end.

%% A session that is left is not worth a login.
unauthorized(_, _, Reason, #exchange{method = delete} = X) ->
    gone({unauthorized, Reason}, X);
unauthorized(Status, Fields, Reason, #exchange{route = #{authorizer := Authorizer}} = X) ->
    #exchange{authorization = Used, challenges = Before, outgoing = #{deadline := Deadline}} = X,
    Response = {Status, Fields, Deadline},
    case erlmcp_http_authorization:refused(Authorizer, Used, Before, Response) of
        retry -> again(X#exchange{challenges = Before + 1});
        refused -> gone({unauthorized, Reason}, X);
        {error, Why} -> gone(Why, X)
    end.

%% A server in trouble may know the stream later.
not_resumed(Status, Reason, #exchange{outgoing = #{id := Id}} = X) ->
    case is_resumable(X) of
        true when Status >= 500 -> wait([], X);
        _ when Id =:= none -> gone(Reason, X);
        _ -> gone({closed, Reason}, X)
    end.

%% A server that knows the session says whose the error is.
lost_session({ok, Id, #{~"code" := Code} = Error}, Id, X)
  when Code =/= -32001, Code =/= -32600, Code =/= 1016 ->
    {[{message, {response, Id, {error, Error}}}], X#exchange{at = over}};
lost_session(_, _, X) ->
    gone(session_lost, X).

plain(Status, Fields, Body) ->
    {http, Status, Fields, binary:copy(binary_part(Body, 0, min(?KEPT, byte_size(Body))))}.

events([#{event := ~"message", data := Data} | Read], Events, IsFin, X) when Data =/= ~"" ->
    #exchange{outgoing = #{id := Id}, route = #{limits := Limits}} = X,
    case erlmcp_http_answer:event(Data, Id, Limits) of
        {open, More} -> events(Read, [Events | More], IsFin, X);
        {answered, More} -> over(lists:flatten([Events | More]), drained(IsFin, X), X);
        {error, Reason} -> over(lists:flatten([Events, {failed, Reason}]), left(IsFin), X)
    end;
events([#{} | Read], Events, IsFin, X) ->
    events(Read, Events, IsFin, X);
events([{too_large, Limit}], Events, IsFin, X) ->
    over(lists:flatten([Events, {failed, {too_large, Limit}}]), left(IsFin), X);
events([], Events, nofin, X) ->
    {lists:flatten(Events), X};
events([], Events, fin, X) ->
    ended(lists:flatten(Events), ended, release(reusable, X)).

%% A connection of HTTP/1.1 is free only when the stream has ended, which a server lets happen right
%% after the response.
drained(fin, _) ->
    reusable;
drained(nofin, X) ->
    drain(X, erlang:monotonic_time(millisecond) + ?DRAIN).

drain(#exchange{connection = Connection, stream = Stream, monitor = Monitor} = X, Until) ->
    receive
        {gun_data, Connection, Stream, fin, _} -> reusable;
        {gun_data, Connection, Stream, nofin, _} -> drain(X, Until);
        {gun_trailers, Connection, Stream, _} -> reusable;
        {gun_error, Connection, Stream, _} -> broken;
        {'DOWN', Monitor, process, _, _} -> broken
    after max(0, Until - erlang:monotonic_time(millisecond)) ->
        cut
    end.

%% The connection did not bring the response. What it never took is sent on another one.
broken(Reason, #exchange{at = head, repeats = Repeats} = X) ->
    Released = release(after_error(Reason), X),
    case is_unprocessed(Reason) of
        true when Repeats < ?REPEATS -> again(Released#exchange{repeats = Repeats + 1});
        true -> gone({closed, unprocessed}, Released);
        false -> ended([], Reason, Released)
    end;
broken(Reason, X) ->
    ended([], Reason, release(after_error(Reason), X)).

%% With HTTP/2 a stream may fail alone.
after_error({stream_error, _, _}) -> reset;
after_error(_) -> broken.

%% gun tells a stream of its end before it ends itself: one that was told nothing was never begun.
down(noproc) -> unprocessed;
down({shutdown, _}) -> unprocessed;
down(Reason) -> Reason.

is_unprocessed(unprocessed) -> true;
is_unprocessed(closing) -> true;
is_unprocessed({goaway, _, _}) -> true;
is_unprocessed({stream_error, refused_stream, _}) -> true;
is_unprocessed(_) -> false.

ended(Events, Why, #exchange{at = At} = X) ->
    Next = came_to(At, X),
    case is_resumable(Next) of
        true -> wait(Events, Next);
        false -> {Events ++ [{failed, {closed, Why}}], Next#exchange{at = over}}
    end.

%% How far the stream came.
came_to({events, Reader}, X) ->
    Id = case erlmcp_sse_reader:last_id(Reader) of
        New when byte_size(New) =< ?LAST_ID, New =/= ~"" -> New;
        _ -> X#exchange.last_id
    end,
    case erlmcp_sse_reader:retry(Reader) of
        {ok, Retry} -> X#exchange{last_id = Id, retry = Retry};
        none -> X#exchange{last_id = Id}
    end;
came_to(_, X) ->
    X.

%% A GET stream that has no place to come back to begins anew.
is_resumable(#exchange{outgoing = #{resumes := true}, failures = Failures} = X) ->
    Failures < ?FAILURES andalso (X#exchange.last_id =/= ~"" orelse X#exchange.method =:= get);
is_resumable(_) ->
    false.

%% Only upward from what the server asks, and longer each time that it fails.
wait(Events, #exchange{retry = Retry, failures = Failures, outgoing = #{deadline := Deadline}} = X) ->
    Delay = max(Retry, min(?PAUSE, (Retry + 100) bsl Failures - 100)),
    Left = max(0, Deadline - erlang:monotonic_time(millisecond)),
    Jittered = min(Left, Delay + rand:uniform(Delay div 4 + 1) - 1),
    Timer = erlang:start_timer(Jittered, self(), resume),
    {Events, X#exchange{at = {waiting, Timer}, method = get, failures = Failures + 1}}.

resume(#exchange{outgoing = #{deadline := Deadline}} = X) ->
    case erlang:monotonic_time(millisecond) >= Deadline of
        true -> gone(timeout, X);
        false -> again(X)
    end.

again(X) ->
    case request(X) of
        {ok, Next} -> {[], Next};
        {error, {connect, _} = Reason} when X#exchange.failures > 0 ->
            ended([], Reason, X#exchange{at = head});
        {error, Reason} -> gone(Reason, X)
    end.

gone(Reason, X) ->
    {[{failed, Reason}], X#exchange{at = over}}.

failed(Reason, Left, X) ->
    over([{failed, Reason}], Left, X).

over(Events, Left, X) ->
    {Events, (release(Left, X))#exchange{at = over}}.

%% `cut` is a stream that goes on, `reset` one that the server broke off. HTTP/2 has others beside it.
release(_, #exchange{lease = none} = X) ->
    X;
release(cut, #exchange{connection = Connection, stream = Stream} = X) ->
    ok = gun:cancel(Connection, Stream),
    Released = release(reset, X),
    ok = gun:flush(Stream),
    Released;
release(Left, #exchange{lease = Lease, monitor = Monitor} = X) ->
    true = demonitor(Monitor, [flush]),
    ok = erlmcp_http_pool:give_back(Lease, state_of(Left, X)),
    X#exchange{lease = none, connection = none, monitor = none, stream = none}.

state_of(_, #exchange{closes = true}) ->
    broken;
state_of(reset, #exchange{lease = Lease}) ->
    case erlmcp_http_pool:protocol(Lease) of
        http -> broken;
        http2 -> reusable
    end;
state_of(Left, _) ->
    Left.

-doc "Ends it. `true` if that tells the server that the request is cancelled: it has no session.".
-spec abort(exchange()) -> boolean().
abort(#exchange{at = over}) ->
    false;
abort(#exchange{at = {waiting, Timer}}) ->
    _ = erlang:cancel_timer(Timer),
    false;
abort(#exchange{outgoing = #{session := Session} = Outgoing} = X) ->
    _ = release(cut, X),
    Session =:= none andalso not maps:get(resumes, Outgoing, false).

-doc "Ends a session on the server, and waits until that says something or the deadline passes.".
-spec delete(Session :: binary(), [{binary(), iodata()}], Deadline :: integer(), route()) -> ok.
delete(Session, Headers, Deadline, #{path := Path} = Route) ->
    Outgoing = #{kind => notification, id => none, message => ~"", headers => Headers,
                 session => Session, deadline => Deadline},
    case request(#exchange{route = Route, outgoing = Outgoing, path = Path, method = delete,
                           body = ~""}) of
        {ok, X} -> deleted(X);
        {error, _} -> ok
    end.

deleted(#exchange{at = over}) ->
    ok;
deleted(#exchange{connection = Connection, stream = Stream, monitor = Monitor,
                  outgoing = #{deadline := Deadline}} = X) ->
    receive
        Message when element(2, Message) =:= Connection, element(3, Message) =:= Stream;
                     element(2, Message) =:= Monitor ->
            {_, Next} = received(Message, X),
            deleted(Next)
    after max(0, Deadline - erlang:monotonic_time(millisecond)) ->
        _ = abort(X),
        ok
    end.
