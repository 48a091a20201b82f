-module(erlmcp_httpd_http1).
-moduledoc """
The process of an HTTP/1.1 connection, in the clear or over TLS: it reads requests
(`m:erlmcp_httpd_http1_message`), one after the other, gives each to its stream handlers, and writes
what these say. The handlers, and the commands that they return, are those of HTTP/2, where cowboy
performs them.

A connection in the clear that begins with the preface of HTTP/2 becomes cowboy's with its first
byte. No other connection does.

The process reads no more than it has room for: of a body what its stream takes, and behind a
request that is served one message. The bytes of a head that is not whole, and those behind a
request, are counted (`m:erlmcp_unfinished_messages`). A client that does not read what it is sent
loses its connection after `send_timeout_ms`. While nothing happens the process hibernates.

Source: RFC 9112; RFC 9113, section 3.3 (the preface).

Internal.
""".

%% Every request passes here.
-compile({inline, [patience/1, quiet_ms/1, patterns/1, uncounted/1, whole/2, held/1, commands/2,
                   persistence/2, send/2]}).

-export([init/5]).
-export([system_continue/3, system_terminate/4, system_code_change/4]).

%% Packets until the socket is activated again: those that it has delivered and nobody has looked at
%% are counted nowhere.
-define(ACTIVE, 16).
%% Heads that are kept: of a client that has several sessions on a connection, each has its own.
-define(HEADS, 8).
%% Activations of the socket until it is found out anew how often its client asks.
-define(OFTEN, 6).
%% Bytes that may wait behind a request that is served, in addition to the next one's message.
-define(BEHIND, 65_536).
%% Bytes of a body that a stream takes before it asks for more.
-define(ROOM, 65_535).
%% Bytes of a packet, and of one while a body is read that did not come with its head: of a body of
%% 100 KB that spares a quarter of the time.
-define(PACKET, 9_216).
-define(LARGE_PACKET, 32_768).
%% Bytes that are written at once: a client has `send_timeout_ms` for these. A body whose length has
%% this many digits may be longer.
-define(PIECE, 65_536).
-define(LONG, 5).
%% Milliseconds in which nothing happens to a request before the process hibernates.
-define(LASTS, 50).
%% Milliseconds in which a client is to have read what it was sent last.
-define(LINGER, 1_000).
%% What a connection of HTTP/2 begins with.
-define(PREFACE, "PRI * HTTP/2.0").

%% The process has nothing to do and hibernates, and this is what it does when it wakes.
-type rest() :: {idle, fun(() -> rest() | no_return())}.

%% The stream of a request: its number, and the state of its handler.
-type stream() :: {cowboy_stream:streamid(), State :: term()}.

-record(connection, {
    parent :: pid(),
    ref :: ranch:ref(),
    socket :: erlmcp_httpd_socket:socket(),
    transport :: module(),
    options :: cowboy:opts(),
    %% the stream handler of its requests
    handler :: module(),
    idle_ms :: pos_integer(),
    %% milliseconds in which nothing happens before the process hibernates
    quiet_ms = erlmcp_hibernate_delay:first_ms() :: pos_integer(),
    %% how often its socket was activated since that was found out
    activations = 0 :: non_neg_integer(),
    %% what all requests of the connection have in common
    request :: map(),
    %% whether its first bytes may be the preface of HTTP/2
    is_new :: boolean(),
    %% the heads that came last, of which the next one often is one
    cached = #{} ::
        #{Octets :: binary() => {erlmcp_httpd_http1_message:head(), Request :: map()}},
    buffer = <<>> :: binary(),
    %% how many bytes of it were searched for the end of a head
    seen = 0 :: non_neg_integer(),
    %% bytes of it, as they are counted, and whether more of them are read
    counted = 0 :: non_neg_integer(),
    paused = false :: boolean(),
    %% milliseconds: when the first byte of an unfinished head came
    since = none :: none | integer(),
    children = cowboy_children:init() :: term(),
    number = 1 :: pos_integer(),
    stream = none :: none | stream(),
    %% of the request that is served: its version, whether it is one for a head alone, what is still
    %% to be read of its body, and how many bytes of that its stream takes
    version = 'HTTP/1.1' :: 'HTTP/1.1' | 'HTTP/1.0',
    is_head = false :: boolean(),
    body = none :: none | erlmcp_httpd_http1_message:body(),
    room = ?ROOM :: integer(),
    %% of its response: nothing, its head, and how its body is framed then, or all
    sent = nothing :: nothing | length | chunks | until_closed | all,
    closing = false :: boolean()
}).

-doc false.
-spec init(pid(), erlmcp_httpd_connection:from(), erlmcp_httpd_socket:socket(), module(),
           cowboy:opts()) -> rest() | no_return().
init(Parent, {Ref, Peer}, Socket, Transport, #{request_timeout := Idle} = Options) ->
    #{stream_handlers := Handlers} = Options,
    maybe
        {ok, Sock} ?= Transport:sockname(Socket),
        {ok, Scheme, Certificate} ?= erlmcp_httpd_socket:shown(Transport, Socket),
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

loop(Connection) ->
    loop(patience(Connection), Connection).

loop(Patience, #connection{parent = Parent, socket = Socket} = Connection) ->
    receive
        {Tag, Socket, Bytes} when Tag =:= tcp; Tag =:= ssl -> arrived(Bytes, Connection);
        {{Pid, Id}, Message} when Pid =:= self() -> go_on(info(Id, Message, Connection));
        {Tag, Socket} when Tag =:= tcp_passive; Tag =:= ssl_passive ->
            loop(case Connection#connection.paused of
                     true -> Connection;
                     false -> read_on(Connection)
                 end);
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

%% A request that is not answered soon may be one that lasts.
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

%% What it does not need to go on is not kept: the next head is read anew.
resting(Connection) ->
    ok = erlmcp_connection_cache:forget(),
    Connection#connection{cached = #{}}.

woken(Timer, Rest, #connection{quiet_ms = Quiet} = Connection) ->
    case erlang:cancel_timer(Timer) of
        false -> receive {timeout, Timer, idle} -> loop(0, Connection) end;
        Left ->
            ok = erlmcp_heap:slow_connection(true),
            loop(Connection#connection{quiet_ms =
                                           erlmcp_hibernate_delay:next_ms(Quiet, Rest - Left)})
    end.

%% Without a whole request line there is nobody to answer.
-spec late(#connection{}) -> no_return().
late(#connection{since = Since, buffer = Buffer} = Connection) ->
    case Since =/= none andalso erlmcp_httpd_http1_message:has_line(Buffer) of
        true -> refused(408, Connection);
        false -> ended({connection_error, timeout, 'No request came in time.'}, Connection)
    end.

%% What it reads.

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

%% Cowboy reads all that came as if it came now.
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

next(#connection{buffer = Buffer, seen = Seen, cached = Cached} = Connection) ->
    Patterns = patterns(Connection),
    case erlmcp_httpd_http1_message:split({Buffer, Seen}, Patterns) of
        {ok, Octets, Behind} when is_map_key(Octets, Cached) ->
            #{Octets := {Head, Request}} = Cached,
            request(Head, Request, Behind, Connection);
        {ok, Octets, Behind} ->
            %% Not the whole of what was read with it.
            Own = binary:copy(Octets),
            case erlmcp_httpd_http1_message:parse(Own, Patterns) of
                {ok, Head} ->
                    Request = request_of(Head, Connection),
                    request(Head, Request, Behind,
                            Connection#connection{cached = cache(Own, {Head, Request}, Cached)});
                {error, Status} ->
                    refused(Status, Connection)
            end;
        {more, Now} ->
            loop(unfinished(Connection#connection{seen = Now}));
        {error, Status} ->
            refused(Status, Connection)
    end.

cache(Octets, Known, Cached) when map_size(Cached) < ?HEADS -> Cached#{Octets => Known};
cache(Octets, Known, _) -> #{Octets => Known}.

patterns(#connection{options = #{erlmcp := #{http1 := Patterns}}}) -> Patterns.

unfinished(#connection{since = none} = Connection) ->
    counted(Connection#connection{since = erlmcp_clock:now_ms()});
unfinished(Connection) ->
    counted(Connection).

%% The request for its stream handler, as it is for all that have this head.
request_of(#{port := Port} = Head, #connection{request = Common, options = Options} = Connection) ->
    Request = (maps:merge(Common, maps:remove(closes, Head)))#{port := port(Port, Common)},
    case Connection of
        #connection{handler = erlmcp_httpd_stream} -> erlmcp_httpd_route:kept(Request, Options);
        #connection{} -> Request
    end.

port(undefined, #{scheme := ~"http"}) -> 80;
port(undefined, #{scheme := ~"https"}) -> 443;
port(Port, _) -> Port.

%% What lies behind a request that is served.
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

%% Its client waits with what it has to say. That it has gone is not heard meanwhile.
paused(#connection{socket = Socket, transport = Transport} = Connection) ->
    case Transport:setopts(Socket, [{active, false}]) of
        ok -> Connection#connection{paused = true};
        {error, Why} -> ended(socket_error(Why), Connection)
    end.

resumed(#connection{paused = false} = Connection) ->
    Connection;
resumed(#connection{socket = Socket, transport = Transport} = Connection) ->
    case Transport:setopts(Socket, [{active, ?ACTIVE}]) of
        ok -> Connection#connection{paused = false};
        {error, Why} -> ended(socket_error(Why), Connection)
    end.

%% Another message may have begun since. Behind a request there is nobody to be answered yet.
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

%% A head that is none.
-spec refused(cowboy:http_status(), #connection{}) -> no_return().
refused(Status, Connection) ->
    Headers = #{~"content-length" => ~"0", ~"connection" => ~"close",
                ~"date" => cowboy_clock:rfc1123()},
    Said = response(Status, Headers, <<>>, Connection#connection{sent = nothing}),
    ended({connection_error, protocol_error, 'A request could not be read.'}, Said).

%% Its requests.

request(#{version := Version, method := Method, closes := Closes} = Head, Request, Behind,
        #connection{closing = Closing} = Connection) ->
    Begun = Connection#connection{
        seen = 0, since = none, sent = nothing, version = Version, is_head = Method =:= ~"HEAD",
        closing = Closes orelse Closing},
    case whole(Behind, Head) of
        {Body, Rest} ->
            Left = erlmcp_httpd_socket:own(Rest),
            begin_stream(Request#{body => Body}, Begun#connection{buffer = Left});
        none ->
            %% Its stream says what becomes of the body.
            Framing = erlmcp_httpd_http1_message:framing(Head),
            ok = packets(?LARGE_PACKET, Begun),
            begin_stream(Request, Begun#connection{buffer = Behind, body = Framing, room = ?ROOM})
    end.

%% That it fails is heard of as of any other end of the socket.
packets(Size, #connection{socket = Socket, transport = Transport}) ->
    _ = Transport:setopts(Socket, [{buffer, Size}]),
    ok.

%% A body that is there with its head. One in chunks may be larger than what a stream takes.
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

%% What lies behind the request was counted with the one before it, is still held, and as old. A few
%% small requests that come together are not worth it.
held(#connection{body = none, buffer = Buffer} = Connection) when byte_size(Buffer) > ?BEHIND ->
    counted(Connection);
held(Connection) ->
    uncounted(Connection).

%% Gives its stream what there is of the body.
body(#connection{body = none} = Connection) ->
    Connection;
body(#connection{buffer = <<>>} = Connection) ->
    Connection;
body(#connection{body = Body, buffer = Buffer} = Connection) ->
    case erlmcp_httpd_http1_message:body(Buffer, Body) of
        {done, Data, Behind} ->
            Read = resumed(Connection#connection{body = none,
                                                 buffer = erlmcp_httpd_socket:own(Behind)}),
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

%% Where the next request would begin is not known.
-spec broken(#connection{}) -> no_return().
broken(#connection{stream = {Id, _}} = Connection) ->
    case info(Id, broken_body, Connection#connection{closing = true}) of
        #connection{sent = nothing} = Unanswered -> refused(400, Unanswered);
        Answered -> ended({connection_error, protocol_error, 'A body is not framed.'}, Answered)
    end.

%% What its stream is told.

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

%% What its stream handlers want.

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

%% The end of a body whose length is not said is a chunk, or that of its connection.
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

%% Parts of what there is, not copies.
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
    case erlmcp_httpd_socket:send(Transport, Socket, Bytes) of
        ok -> ok;
        {error, Why} -> ended(socket_error(Why), Connection)
    end.

socket_error(Why) ->
    {socket_error, Why, 'An error has occurred on the socket.'}.

stopped(normal, #connection{sent = nothing} = Connection) ->
    stopped(normal, response(204, #{}, <<>>, Connection));
stopped(Reason, #connection{sent = nothing} = Connection) ->
    stopped(Reason, response(500, #{~"content-length" => ~"0"}, <<>>, Connection));
stopped(Reason, #connection{sent = chunks} = Connection) ->
    ok = content(fin, <<>>, Connection),
    stopped(Reason, Connection#connection{sent = all});
stopped(Reason, #connection{stream = {Id, _}, children = Children, body = Body,
                            closing = Closing, sent = Sent} = Connection) ->
    ok = terminate_stream(Reason, Connection),
    Rested = Connection#connection{stream = none,
                                   children = cowboy_children:shutdown(Children, Id)},
    %% A response with a length and less than that can only be cut; and of a body that nobody reads
    %% the rest would be taken for a request.
    case Closing orelse Reason =/= normal orelse Sent =/= all orelse Body =/= none of
        true -> ended(Reason, Rested);
        false -> Rested
    end.

read_on(#connection{socket = Socket, transport = Transport, activations = Count} = Connection) ->
    case Transport:setopts(Socket, [{active, ?ACTIVE}]) of
        ok when Count < ?OFTEN ->
            Connection#connection{activations = Count + 1};
        ok ->
            ok = erlmcp_heap:slow_connection(false),
            Connection#connection{activations = 0, quiet_ms = erlmcp_hibernate_delay:first_ms()};
        {error, Why} ->
            ended(socket_error(Why), Connection)
    end.

%% Its end.

%% A client that is being answered is answered; then it is over.
closing(#connection{stream = none} = Connection) ->
    ended({stop, {exit, shutdown}, 'Parent process requested shutdown.'}, Connection);
closing(Connection) ->
    loop(Connection#connection{closing = true}).

%% Nothing more is read.
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
    ok = erlmcp_httpd_socket:finish(Transport, Socket, ?LINGER),
    exit({shutdown, Reason}).

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
system_terminate(_, _, _, Connection) ->
    closing(Connection).

-doc false.
-spec system_code_change(#connection{}, module(), term(), term()) -> {ok, #connection{}}.
system_code_change(Connection, _, _, _) ->
    {ok, Connection}.
