-module(erlmcp_httpd_http1).
-moduledoc """
The process of an HTTP/1.1 connection, with or without TLS. It reads requests
(`m:erlmcp_httpd_http1_message`), one after the other, gives each to the stream handler, and
performs the commands that the handler returns. If the first bytes of a connection without TLS are
the preface of HTTP/2, the connection is handed to cowboy.

The process reads as much of a body as its stream takes. Behind a request that is served it reads
`message_bytes` and 65,536 bytes more, and ends the connection of a client that sends further ones.
A client that does not read its responses loses its connection after `send_timeout_ms`. An idle
process hibernates.

Source: RFC 9112; RFC 9113, section 3.4 (the preface).

Internal.
""".

%% Every request passes here.
-compile({inline, [patience/1, quiet_ms/1, patterns/1, uncounted/1, whole/2, held/1, commands/2,
                   persistence/2, send/2]}).

-export([init/5]).
-export([system_continue/3, system_terminate/4, system_code_change/4]).

%% Packets that the socket may deliver before this process handles them. They are not counted. When
%% only `?FEW` of them are left, the socket is activated again, since stopping and starting it costs
%% system calls.
-define(ACTIVE, 16).
-define(FEW, 4).
%% How many heads are kept, and the bytes of the longest one.
-define(HEADS, 8).
-define(HEAD, 4_096).
%% The octets before the id of a session in a head, and the least bytes of an id. Ids of a cluster
%% have more.
-define(SESSION_FIELD, "\r\nmcp-session-id: ").
-define(SESSION_ID, 32).
%% Activations of the socket after which the delay before hibernation begins again.
-define(OFTEN, 8).
%% Bytes that may wait behind a request that is served, in addition to the next one's message.
-define(BEHIND, 65_536).
%% Bytes of a body that a stream takes before it asks for more.
-define(ROOM, 65_535).
%% Bytes of a packet, and the same for a body that did not arrive with its head. A body of 100 KB
%% takes a quarter less time with the larger packets.
-define(PACKET, 9_216).
-define(LARGE_PACKET, 32_768).
%% Bytes that are written at once: a client has `send_timeout_ms` for them. A body whose length has
%% fewer digits than `LONG` is shorter.
-define(PIECE, 65_536).
-define(LONG, 5).
%% Milliseconds without an event of a request before the process hibernates.
-define(LASTS, 50).
%% Milliseconds in which a client must read the last response.
-define(LINGER, 1_000).
%% Packets that the socket may deliver meanwhile before it is activated again.
-define(LINGER_ACTIVE, 100).
%% The beginning of an HTTP/2 connection.
-define(PREFACE, "PRI * HTTP/2.0").

%% The process hibernates, and calls this fun when it wakes.
-type rest() :: {idle, fun(() -> rest() | no_return())}.

%% The stream of a request: its number, and the state of its handler.
-type stream() :: {cowboy_stream:streamid(), State :: term()}.

-record(connection, {
    parent :: pid(),
    ref :: ranch:ref(),
    socket :: inet:socket() | ssl:sslsocket(),
    transport :: module(),
    options :: cowboy:opts(),
    %% the stream handler of its requests
    handler :: module(),
    idle_ms :: pos_integer(),
    %% milliseconds without an event before the process hibernates
    quiet_ms = erlmcp_hibernate_delay:first_ms() :: pos_integer(),
    %% packets that the socket may still deliver
    deliveries = ?ACTIVE :: non_neg_integer(),
    %% activations of the socket since `quiet_ms` was set
    activations = 0 :: non_neg_integer(),
    %% the part of a request that is the same for all requests of the connection
    request :: map(),
    %% whether its first bytes may be the preface of HTTP/2
    is_new :: boolean(),
    %% the latest heads, since the next head is often one of them; a head with the id of a session
    %% is also kept as the octets before and behind the id
    cached = #{} ::
        #{Octets :: binary() | {Before :: binary(), Behind :: binary()} =>
              {erlmcp_httpd_http1_message:head(), Request :: map()}},
    %% the position and the length of the id of a session in the last head that had one
    session_at = none :: none | {pos_integer(), pos_integer()},
    buffer = <<>> :: binary(),
    %% bytes of the buffer that were searched for the end of a head
    seen = 0 :: non_neg_integer(),
    %% bytes of the buffer that are counted (`erlmcp_unfinished_messages`), and whether reading
    %% pauses; those of an incomplete head are counted, and those behind a request
    counted = 0 :: non_neg_integer(),
    paused = false :: boolean(),
    %% the time of the first byte of an unfinished head, in milliseconds
    since = none :: none | integer(),
    children = cowboy_children:init() :: term(),
    number = 1 :: pos_integer(),
    stream = none :: none | stream(),
    %% about the request that is served: its version, whether it is HEAD, the rest of its body, and
    %% how many bytes its stream takes now
    version = 'HTTP/1.1' :: 'HTTP/1.1' | 'HTTP/1.0',
    is_head = false :: boolean(),
    body = none :: none | erlmcp_httpd_http1_message:body(),
    room = ?ROOM :: integer(),
    %% the part of its response that was sent: nothing, the head (with the framing of the body), or
    %% all
    sent = nothing :: nothing | length | chunks | until_closed | all,
    closing = false :: boolean()
}).

-doc false.
-spec init(pid(), erlmcp_httpd_connection:from(), erlmcp_httpd_connection:socket(), module(),
           cowboy:opts()) -> rest() | no_return().
init(Parent, {Ref, Peer}, Socket, Transport, #{request_timeout := Idle} = Options) ->
    #{stream_handlers := Handlers} = Options,
    maybe
        {ok, Sock} ?= Transport:sockname(Socket),
        {ok, Scheme, Certificate} ?= security(Transport, Socket),
        ok ?= Transport:setopts(Socket, [{active, ?ACTIVE}]),
        loop(#connection{parent = Parent, ref = Ref, socket = Socket, transport = Transport,
                         options = Options, handler = lists:last(Handlers), idle_ms = Idle,
                         %% Over TLS, HTTP/2 is agreed on beforehand.
                         is_new = Transport =:= ranch_tcp,
                         request = #{peer => Peer, sock => Sock, scheme => Scheme,
                                     cert => Certificate}})
    else
        {error, _} -> exit({shutdown, closed})
    end.

%% Returns the scheme of the connection's URLs, and the client's certificate if there is one.
security(ranch_tcp, _) ->
    {ok, ~"http", undefined};
security(ranch_ssl, Socket) ->
    case ssl:peercert(Socket) of
        {ok, Certificate} -> {ok, ~"https", Certificate};
        {error, no_peercert} -> {ok, ~"https", undefined};
        {error, _} = Error -> Error
    end.

loop(Connection) ->
    loop(patience(Connection), Connection).

loop(Patience, #connection{parent = Parent, socket = Socket} = Connection) ->
    receive
        {Tag, Socket, Bytes} when Tag =:= tcp; Tag =:= ssl ->
            arrived(Bytes, delivered(Connection));
        {{Pid, Id}, Message} when Pid =:= self() -> go_on(info(Id, Message, Connection));
        %% The socket is activated again when its packets are handled.
        {Tag, Socket} when Tag =:= tcp_passive; Tag =:= ssl_passive -> loop(Connection);
        {Tag, Socket} when Tag =:= tcp_closed; Tag =:= ssl_closed ->
            ended({socket_error, closed, 'The socket has been closed.'}, Connection);
        {Tag, Socket, Why} when Tag =:= tcp_error; Tag =:= ssl_error ->
            ended(socket_error(Why), Connection);
        {'EXIT', Parent, shutdown} -> closing(Connection);
        {'EXIT', Parent, Reason} ->
            ended({stop, {exit, Reason}, 'Parent process terminated.'}, Connection);
        {'EXIT', Pid, _} = Exit -> go_on(down(Pid, Exit, Connection));
        {erlmcp_unfinished_messages, {unfinished, go_on}} -> loop(resumed(Connection));
        {erlmcp_unfinished_messages, {unfinished, refused}} -> no_room(Connection);
        {timeout, Timer, {shutdown, Pid}} ->
            ok = cowboy_children:shutdown_timeout(Connection#connection.children, Timer, Pid),
            loop(Connection);
        {'$gen_call', From, Call} ->
            ok = cowboy_children:handle_supervisor_call(Call, From,
                                                        Connection#connection.children, ?MODULE),
            loop(Connection);
        {system, From, Request} ->
            sys:handle_system_msg(Request, From, Parent, ?MODULE, [], Connection);
        _ -> loop(Connection)
    after min(Patience, quiet_ms(Connection)) ->
        quiet(Patience, Connection)
    end.

%% The next request may be there already.
go_on(#connection{stream = none, paused = true} = Connection) -> go_on(resumed(Connection));
go_on(#connection{stream = none, buffer = Buffer} = Connection) when Buffer =/= <<>> ->
    next(Connection);
go_on(Connection) -> loop(Connection).

patience(#connection{stream = {_, _}}) -> infinity;
patience(#connection{since = none, idle_ms = Idle}) -> Idle;
patience(#connection{since = Since, idle_ms = Idle}) ->
    max(0, Since + Idle - erlmcp_clock:now_ms()).

%% Returns the delay before hibernation. It is short while a request is served: a request that is
%% not answered soon may last long.
quiet_ms(#connection{stream = none, quiet_ms = Quiet}) -> Quiet;
quiet_ms(#connection{}) -> ?LASTS.

quiet(infinity, Connection) ->
    rest(infinity, Connection);
quiet(Patience, #connection{quiet_ms = Quiet} = Connection) when Patience > Quiet ->
    rest(Patience, Connection);
quiet(_, Connection) ->
    late(Connection).

rest(infinity, Connection) ->
    Resting = resting(Connection),
    {idle, fun() -> loop(Resting) end};
rest(Patience, #connection{quiet_ms = Quiet} = Connection) ->
    Resting = resting(Connection),
    Timer = erlang:start_timer(Patience - Quiet, self(), idle),
    {idle, fun() -> woken(Timer, Patience - Quiet, Resting) end}.

%% Drops state that is not needed after hibernation, such as the kept heads.
resting(Connection) ->
    ok = erlmcp_connection_cache:forget(),
    Connection#connection{cached = #{}, session_at = none}.

woken(Timer, Rest, #connection{quiet_ms = Quiet} = Connection) ->
    case erlang:cancel_timer(Timer) of
        false -> receive {timeout, Timer, idle} -> loop(0, Connection) end;
        Left ->
            ok = erlmcp_heap:slow_connection(true),
            loop(Connection#connection{quiet_ms =
                                           erlmcp_hibernate_delay:next_ms(Quiet, Rest - Left)})
    end.

%% A client that has not sent a whole request line gets no answer.
-spec late(#connection{}) -> no_return().
late(#connection{since = Since, buffer = Buffer} = Connection) ->
    case Since =/= none andalso erlmcp_httpd_http1_message:has_line(Buffer) of
        true -> refused(408, Connection);
        false -> ended({connection_error, timeout, 'No request came in time.'}, Connection)
    end.

%% Bytes from the client.

delivered(#connection{deliveries = Left} = Connection) when Left > ?FEW ->
    Connection#connection{deliveries = Left - 1};
delivered(#connection{paused = true} = Connection) ->
    Connection;
delivered(#connection{socket = Socket, transport = Transport} = Connection) ->
    case Transport:setopts(Socket, [{active, ?ACTIVE - ?FEW}]) of
        ok -> often(Connection#connection{deliveries = ?ACTIVE - 1});
        {error, Why} -> ended(socket_error(Why), Connection)
    end.

often(#connection{activations = Count} = Connection) when Count < ?OFTEN ->
    Connection#connection{activations = Count + 1};
often(Connection) ->
    ok = erlmcp_heap:slow_connection(false),
    Connection#connection{activations = 0, quiet_ms = erlmcp_hibernate_delay:first_ms()}.

arrived(Bytes, #connection{buffer = <<>>} = Connection) ->
    read(Connection#connection{buffer = Bytes});
arrived(Bytes, #connection{buffer = Buffer} = Connection) ->
    read(Connection#connection{buffer = <<Buffer/binary, Bytes/binary>>}).

read(#connection{is_new = true} = Connection) -> first(Connection);
read(#connection{stream = none} = Connection) -> next(Connection);
read(#connection{body = none} = Connection) -> behind(Connection);
read(Connection) -> go_on(body(Connection)).

first(#connection{buffer = <<?PREFACE, _/binary>>} = Connection) ->
    http2(Connection);
first(#connection{buffer = Buffer} = Connection) ->
    Size = byte_size(Buffer),
    case <<?PREFACE>> of
        <<Buffer:Size/binary, _/binary>> -> next(Connection);
        _ -> next(Connection#connection{is_new = false})
    end.

%% Passes all bytes that have arrived to cowboy, as one packet.
http2(#connection{parent = Parent, ref = Ref, socket = Socket, transport = Transport,
                  options = Options, buffer = Buffer} = Connection) ->
    _ = uncounted(Connection),
    _ = Transport:setopts(Socket, [{active, false}]),
    _ = self() ! {tcp, Socket, received(Socket, Buffer)},
    erlmcp_httpd_http2:init(Parent, Ref, Socket, Transport, undefined, Options).

received(Socket, Buffer) ->
    receive
        {tcp, Socket, Bytes} -> received(Socket, <<Buffer/binary, Bytes/binary>>)
    after 0 ->
        Buffer
    end.

next(#connection{buffer = Buffer, seen = Seen} = Connection) ->
    Patterns = patterns(Connection),
    case erlmcp_httpd_http1_message:split({Buffer, Seen}, Patterns) of
        {ok, Octets, Behind} ->
            case cached(Octets, Connection) of
                {Head, Request} -> request(Head, Request, Behind, Connection);
                %% Copied, so that the head does not keep all bytes that were read with it.
                none -> parsed(binary:copy(Octets), Behind, Connection)
            end;
        {more, Now} ->
            loop(unfinished(Connection#connection{seen = Now}));
        {error, Status} ->
            refused(Status, Connection)
    end.

parsed(Octets, Behind, Connection) ->
    case erlmcp_httpd_http1_message:parse(Octets, patterns(Connection)) of
        {ok, Head} ->
            Request = request_of(Head, Connection),
            request(Head, Request, Behind, cache(Octets, Head, Request, Connection));
        {error, Status} ->
            refused(Status, Connection)
    end.

%% Finds a kept head. A proxy sends requests of many sessions on a connection. So a head is also
%% found if it differs from a kept one only in the id of its session.
cached(Octets, #connection{cached = Cached, session_at = At}) ->
    case Cached of
        #{Octets := Known} -> Known;
        #{} when is_tuple(At) -> cached_but_for_session(Octets, Cached, At);
        #{} -> none
    end.

cached_but_for_session(Octets, Cached, {At, Length}) ->
    case Octets of
        <<Before:At/binary, Id:Length/binary, Behind/binary>>
                when is_map_key({Before, Behind}, Cached) ->
            case is_session_id(Id) of
                true ->
                    {Head, Request} = map_get({Before, Behind}, Cached),
                    {Head, in_session(binary:copy(Id), Request)};
                false ->
                    none
            end;
        _ ->
            none
    end.

cache(Octets, _, _, Connection) when byte_size(Octets) > ?HEAD ->
    Connection;
cache(Octets, Head, #{headers := Headers} = Request, #connection{cached = Cached} = Connection) ->
    Others = case map_size(Cached) < ?HEADS of
        true -> Cached;
        false -> #{}
    end,
    case session_at(Octets, Headers) of
        none ->
            Connection#connection{cached = Others#{Octets => {Head, Request}}};
        {At, Length} = Found ->
            <<Before:At/binary, _:Length/binary, Behind/binary>> = Octets,
            Known = {Head, Request},
            Connection#connection{cached = Others#{Octets => Known, {Before, Behind} => Known},
                                  session_at = Found}
    end.

%% Returns the place of the session's id in a head, if it has the form of ids of this server.
session_at(Octets, #{~"mcp-session-id" := Id}) when byte_size(Id) >= ?SESSION_ID ->
    Before = length(?SESSION_FIELD),
    case is_session_id(Id) andalso binary:match(Octets, Id) of
        {At, Length} when At > Before ->
            case cowboy_bstr:to_lower(binary:part(Octets, At - Before, Before)) of
                <<?SESSION_FIELD>> -> {At, Length};
                _ -> none
            end;
        _ ->
            none
    end;
session_at(_, _) ->
    none.

is_session_id(<<C, Id/binary>>) when C >= $a, C =< $z; C >= $A, C =< $Z; C >= $0, C =< $9;
                                     C =:= $-; C =:= $_ ->
    is_session_id(Id);
is_session_id(Id) ->
    Id =:= <<>>.

in_session(Id, #{headers := Headers} = Request) ->
    Named = Headers#{~"mcp-session-id" := Id},
    case Request of
        #{route := #{request_context := Context} = Route} ->
            Request#{headers := Named,
                     route := Route#{session := Id, request_context := Context#{headers := Named}}};
        #{} ->
            Request#{headers := Named}
    end.

patterns(#connection{options = #{erlmcp := #{http1 := Patterns}}}) -> Patterns.

unfinished(#connection{since = none} = Connection) ->
    counted(Connection#connection{since = erlmcp_clock:now_ms()});
unfinished(Connection) ->
    counted(Connection).

%% The request for the stream handler, the same for all requests with this head.
request_of(#{port := Port} = Head, #connection{request = Common, options = Options} = Connection) ->
    Request = (maps:merge(Common, maps:remove(closes, Head)))#{port := port(Port, Common)},
    case Connection of
        #connection{handler = erlmcp_httpd_stream} ->
            #{erlmcp := #{instance := #{limits := Limits}}} = Options,
            ok = erlmcp_heap:bound_connection(Limits),
            erlmcp_httpd_route:kept(Request, Options);
        #connection{} ->
            Request
    end.

port(undefined, #{scheme := ~"http"}) -> 80;
port(undefined, #{scheme := ~"https"}) -> 443;
port(Port, _) -> Port.

%% Bytes behind a request that is served.
behind(#connection{buffer = Buffer} = Connection) ->
    #connection{options = #{erlmcp := #{message_bytes := Max}}} = Connection,
    case byte_size(Buffer) > Max + ?BEHIND of
        true ->
            cut({connection_error, limit_reached, 'More than a request waits behind another.'},
                Connection);
        false ->
            loop(counted(Connection))
    end.

counted(#connection{buffer = Buffer, counted = Before, paused = Paused} = Connection) ->
    Size = byte_size(Buffer),
    Counted = Connection#connection{counted = Size},
    case erlmcp_unfinished_messages:count(owner(), Before, Size) of
        wait when not Paused -> paused(Counted);
        _ -> Counted
    end.

uncounted(#connection{counted = 0} = Connection) ->
    Connection;
uncounted(#connection{counted = Before} = Connection) ->
    ok = erlmcp_unfinished_messages:count(owner(), Before, 0),
    Connection#connection{counted = 0}.

owner() ->
    {self(), erlmcp_unfinished_messages}.

%% Stops reading. Until it reads again, the process does not notice if the client disconnects.
paused(#connection{socket = Socket, transport = Transport} = Connection) ->
    case Transport:setopts(Socket, [{active, false}]) of
        ok -> Connection#connection{paused = true};
        {error, Why} -> ended(socket_error(Why), Connection)
    end.

resumed(#connection{paused = false} = Connection) ->
    Connection;
resumed(#connection{socket = Socket, transport = Transport} = Connection) ->
    case Transport:setopts(Socket, [{active, ?ACTIVE}]) of
        ok -> Connection#connection{paused = false, deliveries = ?ACTIVE};
        {error, Why} -> ended(socket_error(Why), Connection)
    end.

%% The refused message may have ended, and another one have begun. Bytes behind a request get no
%% answer of their own.
no_room(#connection{stream = Stream} = Connection) ->
    case erlmcp_unfinished_messages:is_refused(owner()) of
        false ->
            loop(Connection);
        true when Stream =:= none ->
            Commands = erlmcp_httpd_response:refuse(erlmcp_unfinished_messages:refusal(), undefined,
                                                    erlmcp_httpd_body:closing('HTTP/1.1')),
            [{response, Status, Headers, Body}, stop] = Commands,
            Said = response(Status, Headers, Body, Connection#connection{sent = nothing}),
            ended({connection_error, limit_reached, 'There is no room for the request.'}, Said);
        true ->
            cut({connection_error, limit_reached, 'There is no room behind the request.'},
                Connection)
    end.

%% Answers a request that cannot be read or served, and ends the connection.
-spec refused(cowboy:http_status(), #connection{}) -> no_return().
refused(Status, Connection) ->
    Headers = #{~"content-length" => ~"0", ~"connection" => ~"close",
                ~"date" => cowboy_clock:rfc1123()},
    Said = response(Status, Headers, <<>>, Connection#connection{sent = nothing}),
    ended({connection_error, protocol_error, 'A request could not be read.'}, Said).

%% Requests.

request(#{version := Version, method := Method, closes := Closes} = Head, Request, Behind,
        #connection{closing = Closing} = Connection) ->
    Begun = Connection#connection{
        seen = 0, since = none, sent = nothing, version = Version, is_head = Method =:= ~"HEAD",
        closing = Closes orelse Closing},
    case whole(Behind, Head) of
        {Body, Rest} ->
            Left = compact(Rest),
            begin_stream(Request#{body => Body}, Begun#connection{buffer = Left});
        none ->
            %% The stream decides how much of the body is read.
            Framing = erlmcp_httpd_http1_message:framing(Head),
            ok = packets(?LARGE_PACKET, Begun),
            begin_stream(Request, Begun#connection{buffer = Behind, body = Framing, room = ?ROOM})
    end.

%% A copy of the bytes, if they would keep a binary alive that is more than twice as large.
compact(Bytes) ->
    case binary:referenced_byte_size(Bytes) > 2 * byte_size(Bytes) of
        true -> binary:copy(Bytes);
        false -> Bytes
    end.

%% A failure is ignored, since the end of the socket arrives as a message.
packets(Size, #connection{socket = Socket, transport = Transport}) ->
    _ = Transport:setopts(Socket, [{buffer, Size}]),
    ok.

%% Returns the body if all of it arrived with its head, and the bytes behind it. A chunked body is
%% left to the stream, since it may have more bytes than a stream takes.
whole(Behind, #{has_body := false}) ->
    {<<>>, Behind};
whole(Behind, #{body_length := Length}) when is_integer(Length) ->
    case Behind of
        <<Body:Length/binary, Rest/binary>> -> {Body, Rest};
        _ -> none
    end;
whole(_, _) ->
    none.

begin_stream(Request, #connection{number = Id, handler = Module, options = Options} = Connection) ->
    try Module:init(Id, Request, Options) of
        {Commands, State} ->
            Begun = Connection#connection{number = Id + 1, stream = {Id, State}},
            go_on(body(commands(Commands, held(Begun))))
    catch
        Class:Reason:Stacktrace ->
            ok = failed(init, [Id, Request, Options], {Class, Reason, Stacktrace}, Options),
            refused(500, Connection)
    end.

%% Bytes behind the request that were counted before stay counted. A few small requests that arrive
%% together are not worth counting.
held(#connection{body = none, buffer = Buffer} = Connection) when byte_size(Buffer) > ?BEHIND ->
    counted(Connection);
held(Connection) ->
    uncounted(Connection).

%% Gives the stream the bytes of the body that have arrived.
body(#connection{body = none} = Connection) ->
    Connection;
body(#connection{buffer = <<>>} = Connection) ->
    Connection;
body(#connection{body = Body, buffer = Buffer} = Connection) ->
    case erlmcp_httpd_http1_message:body(Buffer, Body, patterns(Connection)) of
        {done, Data, Behind} ->
            Read = resumed(Connection#connection{body = none,
                                                 buffer = compact(Behind)}),
            ok = packets(?PACKET, Read),
            data(fin, Data, held(Read));
        {more, <<>>, Again, Left} ->
            Connection#connection{body = Left, buffer = Again};
        {more, Data, Again, Left} ->
            Room = Connection#connection.room - byte_size(Data),
            taken(data(nofin, Data, Connection#connection{body = Left, buffer = Again,
                                                          room = Room}));
        broken ->
            broken(Connection)
    end.

taken(#connection{body = Body, room = Room, paused = false} = Connection) when Body =/= none,
                                                                              Room =< 0 ->
    paused(Connection);
taken(Connection) ->
    Connection.

data(IsFin, Data, #connection{stream = {Id, State}, handler = Module} = Connection) ->
    #connection{options = Options} = Connection,
    try Module:data(Id, IsFin, Data, State) of
        {Commands, Next} -> commands(Commands, Connection#connection{stream = {Id, Next}})
    catch
        Class:Reason:Stacktrace ->
            ok = failed(data, [Id, IsFin, Data, State], {Class, Reason, Stacktrace}, Options),
            commands([{internal_error, {Class, Reason}, 'A stream handler failed.'}], Connection)
    end.

%% A broken body ends the connection, since the beginning of the next request cannot be found.
-spec broken(#connection{}) -> no_return().
broken(#connection{stream = {Id, _}} = Connection) ->
    case info(Id, broken_body, Connection#connection{closing = true}) of
        #connection{sent = nothing} = Unanswered -> refused(400, Unanswered);
        Answered -> ended({connection_error, protocol_error, 'A body is not framed.'}, Answered)
    end.

%% Messages to the stream. Number 0 is the connection's own (`m:erlmcp_httpd_connection`).

info(0, last_response, Connection) ->
    Connection#connection{closing = true};
info(Id, Message, #connection{stream = {Id, State}, handler = Module} = Connection) ->
    #connection{options = Options} = Connection,
    try Module:info(Id, Message, State) of
        {Commands, Next} -> commands(Commands, Connection#connection{stream = {Id, Next}})
    catch
        Class:Reason:Stacktrace ->
            ok = failed(info, [Id, Message, State], {Class, Reason, Stacktrace}, Options),
            commands([{internal_error, {Class, Reason}, 'A stream handler failed.'}], Connection)
    end;
info(_, _, Connection) ->
    Connection.

down(Pid, Exit, #connection{children = Children} = Connection) ->
    case cowboy_children:down(Children, Pid) of
        {ok, undefined, Left} -> Connection#connection{children = Left};
        {ok, Id, Left} -> info(Id, Exit, Connection#connection{children = Left});
        error -> Connection
    end.

%% Commands of the stream handler.

commands([], Connection) ->
    Connection;
commands(Commands, #connection{is_head = true} = Connection) ->
    perform(erlmcp_httpd_response:without_body(Commands), Connection);
commands(Commands, Connection) ->
    perform(Commands, Connection).

perform([], Connection) ->
    Connection;
perform([{response, Status, Headers, Body} | Commands], #connection{sent = nothing} = Connection) ->
    perform(Commands, response(Status, Headers, Body, Connection));
perform([stop | _], Connection) ->
    stopped(normal, Connection);
perform([{spawn, Pid, Shutdown} | Commands], #connection{stream = {Id, _}} = Connection) ->
    Children = cowboy_children:up(Connection#connection.children, Pid, Id, Shutdown),
    perform(Commands, Connection#connection{children = Children});
perform([{headers, Status, Headers} | Commands], #connection{sent = nothing} = Connection) ->
    {Framed, Begun} = framed(Headers, Connection),
    {Known, Next} = persistence(Framed, Begun),
    ok = send(erlmcp_httpd_http1_message:head(Status, Known), Next),
    perform(Commands, Next);
perform([{data, IsFin, Data} | Commands], Connection) ->
    ok = content(IsFin, Data, Connection),
    perform(Commands, case IsFin of
                          fin -> Connection#connection{sent = all};
                          nofin -> Connection
                      end);
perform([{inform, _, _} | Commands], #connection{version = 'HTTP/1.0'} = Connection) ->
    perform(Commands, Connection);
perform([{inform, Status, Headers} | Commands], Connection) ->
    ok = send(erlmcp_httpd_http1_message:head(Status, Headers), Connection),
    perform(Commands, Connection);
perform([{flow, Size} | Commands], #connection{room = Room} = Connection) ->
    perform(Commands, wanted(Connection#connection{room = max(0, Room) + Size}));
perform([{internal_error, _, _} = Reason | _], Connection) ->
    stopped(Reason, Connection).

wanted(#connection{body = none} = Connection) -> Connection;
wanted(Connection) -> resumed(Connection).

response(Status, Headers, Body, Connection) ->
    {Known, Next} = persistence(Headers, Connection),
    Head = erlmcp_httpd_http1_message:head(Status, Known),
    ok = case Headers of
        #{~"content-length" := Length} when byte_size(Length) < ?LONG -> send([Head, Body], Next);
        #{} -> pieces([Head, Body], Next)
    end,
    Next#connection{sent = all}.

%% A body without a length ends with a chunk, or with its connection.
framed(#{~"content-length" := _} = Headers, Connection) ->
    {Headers, Connection#connection{sent = length}};
framed(Headers, #connection{version = 'HTTP/1.0'} = Connection) ->
    {Headers, Connection#connection{sent = until_closed, closing = true}};
framed(Headers, Connection) ->
    {Headers#{~"transfer-encoding" => ~"chunked"}, Connection#connection{sent = chunks}}.

persistence(#{~"connection" := ~"close"} = Headers, Connection) ->
    {Headers, Connection#connection{closing = true}};
persistence(Headers, #connection{closing = true} = Connection) ->
    {Headers#{~"connection" => ~"close"}, Connection};
persistence(Headers, #connection{version = 'HTTP/1.0'} = Connection) ->
    {Headers#{~"connection" => ~"keep-alive"}, Connection};
persistence(Headers, Connection) ->
    {Headers, Connection}.

content(IsFin, Data, #connection{sent = Framing} = Connection) ->
    Bytes = case Framing of
        chunks -> erlmcp_httpd_http1_message:chunk(IsFin, Data);
        _ -> Data
    end,
    case iolist_size(Bytes) of
        0 -> ok;
        _ -> pieces(Bytes, Connection)
    end.

%% The pieces are parts of the binaries, not copies.
pieces(Bytes, Connection) ->
    case iolist_size(Bytes) of
        Size when Size =< ?PIECE ->
            send(Bytes, Connection);
        _ ->
            Binaries = lists:append([cut_up(Binary) || Binary <- erlang:iolist_to_iovec(Bytes)]),
            pieces(Binaries, [], 0, Connection)
    end.

pieces([Binary | Binaries], Piece, Size, Connection)
        when Size =:= 0; Size + byte_size(Binary) =< ?PIECE ->
    pieces(Binaries, [Binary | Piece], Size + byte_size(Binary), Connection);
pieces(Binaries, Piece, _, Connection) ->
    ok = send(lists:reverse(Piece), Connection),
    case Binaries of
        [] -> ok;
        _ -> pieces(Binaries, [], 0, Connection)
    end.

cut_up(<<Piece:?PIECE/binary, Rest/binary>>) when Rest =/= <<>> -> [Piece | cut_up(Rest)];
cut_up(Piece) -> [Piece].

send(Bytes, #connection{socket = Socket, transport = Transport} = Connection) ->
    Sent = case Transport of
        ranch_tcp -> erlmcp_tcp_send:send(Socket, Bytes);
        ranch_ssl -> Transport:send(Socket, Bytes)
    end,
    case Sent of
        ok -> ok;
        {error, Why} -> ended(socket_error(Why), Connection)
    end.

socket_error(Why) ->
    {socket_error, Why, 'An error has occurred on the socket.'}.

stopped(normal, #connection{sent = nothing} = Connection) ->
    stopped(normal, response(204, #{}, <<>>, Connection));
stopped(Reason, #connection{sent = nothing} = Connection) ->
    stopped(Reason, response(500, #{~"content-length" => ~"0"}, <<>>, Connection));
stopped(normal, #connection{sent = chunks} = Connection) ->
    ok = content(fin, <<>>, Connection),
    stopped(normal, Connection#connection{sent = all});
stopped(Reason, #connection{stream = {Id, _}, children = Children, body = Body,
                            closing = Closing, sent = Sent} = Connection) ->
    ok = terminate_stream(Reason, Connection),
    Rested = Connection#connection{stream = none,
                                   children = cowboy_children:shutdown(Children, Id)},
    %% A response that has failed, or is too short, can only be cut. The unread rest of a body would
    %% be taken for a request.
    case Closing orelse Reason =/= normal orelse Sent =/= all orelse Body =/= none of
        true -> ended(Reason, Rested);
        false -> Rested
    end.

%% The end of the connection.

%% A request that is served is answered before the connection ends.
closing(#connection{stream = none} = Connection) ->
    ended({stop, {exit, shutdown}, 'Parent process requested shutdown.'}, Connection);
closing(#connection{stream = {Id, _}} = Connection) ->
    go_on(info(Id, closing, Connection#connection{closing = true})).

%% Ends without reading more.
-spec cut(term(), #connection{}) -> no_return().
cut(Reason, #connection{children = Children} = Connection) ->
    ok = terminate_stream(Reason, Connection),
    ok = cowboy_children:terminate(Children),
    _ = uncounted(Connection),
    exit({shutdown, Reason}).

-spec ended(term(), #connection{}) -> no_return().
ended(Reason, #connection{socket = Socket, transport = Transport} = Connection) ->
    #connection{children = Children} = Connection,
    ok = slow_consumer(Reason, Connection),
    ok = terminate_stream(Reason, Connection),
    ok = cowboy_children:terminate(Children),
    _ = uncounted(Connection),
    ok = finish(Transport, Socket),
    exit({shutdown, Reason}).

%% Ends the connection, over TLS with a closure alert. Until the client ends it too, and for at most
%% LINGER, or twice that over TLS, the process reads and drops what the client still sends. A socket
%% that is closed with unread bytes sends a reset, and the client might lose the response.
finish(ranch_ssl, Socket) ->
    erlmcp_tls_accept:finish(Socket, ?LINGER);
finish(ranch_tcp, Socket) ->
    case gen_tcp:shutdown(Socket, write) of
        ok -> linger(Socket, erlmcp_clock:now_ms() + ?LINGER);
        {error, _} -> ok
    end.

linger(Socket, End) ->
    _ = inet:setopts(Socket, [{active, ?LINGER_ACTIVE}]),
    lingering(Socket, End).

lingering(Socket, End) ->
    receive
        {tcp_closed, Socket} -> ok;
        {tcp_error, Socket, _} -> ok;
        {tcp_passive, Socket} -> linger(Socket, End);
        _ -> lingering(Socket, End)
    after max(0, End - erlmcp_clock:now_ms()) ->
        ok
    end.

slow_consumer({socket_error, timeout, _}, #connection{options = #{erlmcp := Config}}) ->
    #{instance := #{key := Key, limits := #{send_timeout_ms := Limit}}} = Config,
    erlmcp_slow_consumer:cut(Key, Limit);
slow_consumer(_, _) ->
    ok.

terminate_stream(_, #connection{stream = none}) ->
    ok;
terminate_stream(Reason, #connection{stream = {Id, State}, handler = Module, options = Options}) ->
    try Module:terminate(Id, Reason, State) of
        _ -> ok
    catch
        Class:Why:Stacktrace ->
            failed(terminate, [Id, Reason, State], {Class, Why, Stacktrace}, Options)
    end.

failed(Callback, Arguments, {Class, Reason, Stacktrace}, Options) ->
    Log = cowboy_stream:make_error_log(Callback, Arguments, Class, Reason, Stacktrace),
    _ = cowboy:log(Log, Options),
    ok.

-doc false.
-spec system_continue(pid(), list(), #connection{}) -> rest() | no_return().
system_continue(_, _, Connection) ->
    loop(Connection).

-doc false.
-spec system_terminate(term(), pid(), list(), #connection{}) -> no_return().
%% A client that has just connected, or has begun to send, gets an answer.
system_terminate(_, _, _, #connection{stream = none, number = Number, buffer = Buffer} = Connection)
        when Number =:= 1; Buffer =/= <<>> ->
    loop(Connection#connection{closing = true});
system_terminate(_, _, _, Connection) ->
    closing(Connection).

-doc false.
-spec system_code_change(#connection{}, module(), term(), term()) -> {ok, #connection{}}.
system_code_change(Connection, _, _, _) ->
    {ok, Connection}.
