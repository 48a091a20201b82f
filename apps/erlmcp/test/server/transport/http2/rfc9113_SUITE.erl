-module(rfc9113_SUITE).
-moduledoc """
RFC 9113, HTTP/2, as far as cowboy leaves it to its users: windows (6.9), the scheme of a request
(8.3.1), and the rate of frames that have to be answered (10.5). RFC 8446, TLS: how a connection
ends (6.1).
""".

-behaviour(erlmcp_page).

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([small_windows_are_filled/1, refused_bodies_use_up_no_window/1,
         empty_frames_are_no_bodies/1, scheme_is_that_of_the_connection/1, pings_have_a_rate/1,
         settings_have_a_rate/1, empty_frames_take_no_memory/1,
         those_of_a_quiet_client_are_answered/1, tls_ends_with_an_alert/1,
         the_last_response_can_be_read/1]).
-export([handle/2]).

-import(erlmcp_test_suite, [server/1]).

-define(PATIENCE, 30_000).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [small_windows_are_filled, refused_bodies_use_up_no_window, empty_frames_are_no_bodies,
     scheme_is_that_of_the_connection, pings_have_a_rate, settings_have_a_rate,
     empty_frames_take_no_memory, those_of_a_quiet_client_are_answered, tls_ends_with_an_alert,
     the_last_response_can_be_read].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, ssl], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    [{server, erlmcp_test_http:start(#{
        tools => [#{name => <<"tool_", Name>>, description => binary:copy(~"a ", 100),
                    handler => fun(_, _) -> ~"" end} || Name <- "abc"],
        listen => [{http, #{}}]})} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_http:stop(server(Config)).

%% 6.9.1: "The sender MUST NOT send a flow-controlled frame with a length that exceeds the space
%% available in either of the flow-control windows": less is sent, and the rest when there is space.
small_windows_are_filled(Config) ->
    Window = 100,
    {Socket, _} = connect(#{initial_window_size => Window}, Config),
    {Headers, Body} = erlmcp_test_http:message(~"tools/list", #{}, #{}),
    Length = integer_to_binary(iolist_size(Body)),
    {Block, _} = cow_hpack:encode([{~":method", ~"POST"}, {~":scheme", ~"http"},
                                   {~":authority", ~"localhost"}, {~":path", ~"/mcp"},
                                   {~"content-length", Length}
                                   | [{string:lowercase(iolist_to_binary(Name)),
                                       iolist_to_binary(Value)} || {Name, Value} <- Headers]]),
    ok = gen_tcp:send(Socket, [cow_http2:headers(1, nofin, Block), cow_http2:data(1, fin, Body)]),
    Answer = pieces(Window, Socket, <<>>, <<>>),
    #{~"result" := #{~"tools" := [_ | _]}} = json:decode(Answer),
    true = byte_size(Answer) > 3 * Window,
    ok = gen_tcp:close(Socket).

pieces(Window, Socket, Bytes, Known) ->
    case cow_http2:parse(Bytes) of
        {ok, {data, 1, fin, Data}, _} ->
            <<Known/binary, Data/binary>>;
        {ok, {data, 1, nofin, Data}, Rest} when byte_size(Data) =< Window ->
            ok = gen_tcp:send(Socket, cow_http2:window_update(1, max(1, byte_size(Data)))),
            pieces(Window, Socket, Rest, <<Known/binary, Data/binary>>);
        {ok, _, Rest} ->
            pieces(Window, Socket, Rest, Known);
        more ->
            {ok, More} = gen_tcp:recv(Socket, 0, ?PATIENCE),
            pieces(Window, Socket, <<Bytes/binary, More/binary>>, Known)
    end.

%% 6.9: "Flow control operates at two levels: on each individual stream and on the entire
%% connection." A body behind a head that is answered at once counts for the connection, too. The
%% bodies of others still arrive.
refused_bodies_use_up_no_window(_) ->
    [ok = unread_bodies(Path)
     || Path <- [~"/elsewhere", ~"/.well-known/oauth-protected-resource"]].

unread_bodies(Path) ->
    Listener = #{authenticate => fun(_) -> {ok, anybody} end,
                 protected_resource => #{authorization_servers => [~"https://as.example"]}},
    Server = erlmcp_test_http:start(#{limits => #{receive_timeout_ms => 5_000},
                                      listen => [{http, Listener}]}),
    {Socket, _} = connect([{server, Server}]),
    {Headers, Message} = erlmcp_test_http:message(~"tools/list", #{}, #{}),
    Refused = 57_343,
    Padding = 200_000 - iolist_size(Message),
    Body = iolist_to_binary([Message, binary:copy(~" ", Padding)]),
    <<First:16_384/binary, Second:16_384/binary, Rest/binary>> = Body,
    ok = gen_tcp:send(Socket, [cow_http2:settings_ack(),
                               head(1, ~"/mcp", byte_size(Body), Headers),
                               cow_http2:data(1, nofin, First)]),
    %% The server has read the first part, and lets more come.
    Opened = windows(Socket, <<>>, #{0 => 65_535 - 16_384, 1 => 65_535 - 16_384}, fun opened/1),
    ok = gen_tcp:send(Socket, [cow_http2:data(1, nofin, Second)
                               | [[head(Id, Path, Refused, Headers),
                                   [cow_http2:data(Id, IsFin, binary:copy(~" ", Size))
                                    || {IsFin, Size} <- parts(Refused)]]
                                  || Id <- [3, 5]]]),
    #{0 := Connection} = Opened,
    Left = Opened#{0 := Connection - 16_384 - 2 * Refused, 1 := map_get(1, Opened) - 16_384},
    #{~"result" := #{~"tools" := []}} = json:decode(uploaded(Rest, Socket, <<>>, Left)),
    ok = gen_tcp:close(Socket),
    erlmcp_test_http:stop(Server).

head(Id, Path, Length, Headers) ->
    {Block, _} = cow_hpack:encode([{~":method", ~"POST"}, {~":scheme", ~"http"},
                                   {~":authority", ~"localhost"}, {~":path", Path},
                                   {~"content-length", integer_to_binary(Length)}
                                   | [{string:lowercase(iolist_to_binary(Name)),
                                       iolist_to_binary(Value)} || {Name, Value} <- Headers]]),
    cow_http2:headers(Id, nofin, Block).

parts(Size) when Size =< 16_384 -> [{fin, Size}];
parts(Size) -> [{nofin, 16_384} | parts(Size - 16_384)].

opened(#{0 := Connection, 1 := Stream}) -> min(Connection, Stream) >= 65_535.

%% Reads window updates until the windows are as they should be.
windows(Socket, Bytes, Windows, Are) ->
    case Are(Windows) of
        true ->
            Windows;
        false ->
            {Frame, Rest} = whole(Socket, Bytes),
            windows(Socket, Rest, updated(Frame, Windows), Are)
    end.

updated({window_update, More}, #{0 := Window} = Windows) -> Windows#{0 := Window + More};
updated({window_update, 1, More}, #{1 := Window} = Windows) -> Windows#{1 := Window + More};
updated(_, Windows) -> Windows.

%% Sends the rest of a body on stream 1 as its windows let it, and returns the body of the answer.
uploaded(~"", Socket, Bytes, _) ->
    answered(1, Socket, Bytes, <<>>);
uploaded(Body, Socket, Bytes, #{0 := Connection, 1 := Stream} = Windows) ->
    case min(min(Connection, Stream), min(16_384, byte_size(Body))) of
        0 ->
            {Frame, Rest} = whole(Socket, Bytes),
            uploaded(Body, Socket, Rest, updated(Frame, Windows));
        Size ->
            <<Part:Size/binary, Rest/binary>> = Body,
            IsFin = case Rest of
                ~"" -> fin;
                _ -> nofin
            end,
            ok = gen_tcp:send(Socket, cow_http2:data(1, IsFin, Part)),
            uploaded(Rest, Socket, Bytes, #{0 => Connection - Size, 1 => Stream - Size})
    end.

answered(Id, Socket, Bytes, Known) ->
    case whole(Socket, Bytes) of
        {{data, Id, fin, Data}, _} -> <<Known/binary, Data/binary>>;
        {{data, Id, nofin, Data}, Rest} ->
            answered(Id, Socket, Rest, <<Known/binary, Data/binary>>);
        {_, Rest} -> answered(Id, Socket, Rest, Known)
    end.

%% The next frame, and the bytes behind it.
whole(Socket, Bytes) ->
    case cow_http2:parse(Bytes) of
        {ok, Frame, Rest} ->
            {Frame, Rest};
        more ->
            {ok, More} = gen_tcp:recv(Socket, 0, ?PATIENCE),
            whole(Socket, <<Bytes/binary, More/binary>>)
    end.

%% 8.1: "zero or more DATA frames containing the message content". A head need not say that there is
%% none, or announce its length.
empty_frames_are_no_bodies(_) ->
    Server = erlmcp_test_http:start(#{listen => [{http, #{sse => #{}}}]}),
    [begin
         {Id, Revision} = erlmcp_test_http:initialize(Server, ~"2025-11-25"),
         Fields = [{~"mcp-session-id", Id}, {~"mcp-protocol-version", Revision} | Length],
         Got = status(Method, Path, Fields, Server),
         {Method, Path, Status} = {Method, Path, Got}
     end || {Method, Path, Status} <- [{~"GET", ~"/sse", ~"200"}, {~"GET", ~"/mcp", ~"200"},
                                       {~"DELETE", ~"/mcp", ~"204"}],
            Length <- [[], [{~"content-length", ~"0"}]]],
    erlmcp_test_http:stop(Server).

%% The status of a request whose body is an empty frame.
status(Method, Path, Fields, Server) ->
    {Socket, _} = connect([{server, Server}]),
    {Block, _} = cow_hpack:encode([{~":method", Method}, {~":scheme", ~"http"},
                                   {~":authority", ~"localhost"}, {~":path", Path} | Fields]),
    ok = gen_tcp:send(Socket, [cow_http2:headers(1, nofin, Block), cow_http2:data(1, fin, ~"")]),
    Status = status(Socket, <<>>),
    ok = gen_tcp:close(Socket),
    Status.

status(Socket, Bytes) ->
    case whole(Socket, Bytes) of
        {{headers, 1, _, head_fin, Head}, _} ->
            {[{~":status", Status} | _], _} = cow_hpack:decode(Head),
            Status;
        {_, Rest} ->
            status(Socket, Rest)
    end.

%% 8.3.1: "":scheme" is not restricted to URIs with scheme "http" and "https"." A client can write
%% any, and it says nothing about the connection.
scheme_is_that_of_the_connection(_) ->
    Test = self(),
    Tells = fun(#{tls := Tls, url := Url}) ->
        Test ! {came, Tls, Url},
        {error, ~"nobody enters"}
    end,
    Bearer = {bearer, #{tokens => [{static, [#{token => ~"a", principal => a}]}],
                        authorization_servers => [~"https://as.example"]}},
    [begin
         Server = erlmcp_test_http:start(#{listen => [{http, #{authenticate => Authenticate,
                                                               pages => #{~"/page" =>
                                                                              {?MODULE, []}}}}]}),
         [begin
              {~"401", _} = asked(~"/mcp", Scheme, ~"localhost", Server),
              {~"200", ~"http 80"} = asked(~"/page", Scheme, ~"localhost", Server),
              {~"200", ~"http 8080"} = asked(~"/page", Scheme, ~"localhost:8080", Server)
          end || Scheme <- [~"http", ~"https", ~"other"]],
         erlmcp_test_http:stop(Server)
     end || Authenticate <- [Tells, Bearer]],
    [receive {came, false, <<"http://127.0.0.1:", _/binary>>} -> ok after 0 -> error(Scheme) end
     || Scheme <- [~"http", ~"https", ~"other"]].

handle(#{scheme := Scheme, port := Port}, _) ->
    {200, #{}, [Scheme, $\s, integer_to_binary(Port)]}.

asked(Path, Scheme, Authority, Server) ->
    {Socket, _} = connect([{server, Server}]),
    {Block, _} = cow_hpack:encode([{~":method", ~"GET"}, {~":scheme", Scheme},
                                   {~":authority", Authority}, {~":path", Path}]),
    ok = gen_tcp:send(Socket, cow_http2:headers(1, fin, Block)),
    {{headers, 1, nofin, head_fin, Head}, Rest} = whole(Socket, <<>>),
    {[{~":status", Status} | _], _} = cow_hpack:decode(Head),
    Body = answered(1, Socket, Rest, <<>>),
    ok = gen_tcp:close(Socket),
    {Status, Body}.

pings_have_a_rate(Config) ->
    floods(cow_http2:ping(1), ping_ack, Config).

settings_have_a_rate(Config) ->
    floods(cow_http2:settings(#{}), settings_ack, Config).

%% All but one more than there may be: each is answered. One more: GOAWAY, and the end.
floods(Frame, Kind, Config) ->
    {Max, _} = erlmcp_httpd_http2:max_answers(),
    {Socket, Answered} = connect(Config),
    ok = gen_tcp:send(Socket, lists:duplicate(Max - Answered, Frame)),
    Rest = answers(Max - Answered, Kind, Socket, <<>>),
    ok = gen_tcp:send(Socket, Frame),
    {goaway, _, enhance_your_calm, _} = next(Socket, Rest),
    ok = closed(Socket).

answers(0, _, _, Bytes) ->
    Bytes;
answers(Left, Kind, Socket, Bytes) ->
    case cow_http2:parse(Bytes) of
        {ok, Frame, Rest} ->
            Kind = kind(Frame),
            answers(Left - 1, Kind, Socket, Rest);
        more ->
            {ok, More} = gen_tcp:recv(Socket, 0, ?PATIENCE),
            answers(Left, Kind, Socket, <<Bytes/binary, More/binary>>)
    end.

kind(Frame) when is_tuple(Frame) -> element(1, Frame);
kind(Frame) -> Frame.

next(Socket, Bytes) ->
    case cow_http2:parse(Bytes) of
        {ok, Frame, _} ->
            Frame;
        more ->
            {ok, More} = gen_tcp:recv(Socket, 0, ?PATIENCE),
            next(Socket, <<Bytes/binary, More/binary>>)
    end.

closed(Socket) ->
    case gen_tcp:recv(Socket, 0, ?PATIENCE) of
        {ok, _} -> closed(Socket);
        {error, closed} -> ok
    end.

%% 10.5: "Large numbers of small or empty frames can be abused to cause a peer to expend time
%% processing frame headers", and memory, if they are kept until it is known who has sent them.
empty_frames_take_no_memory(_) ->
    Test = self(),
    Ask = fun(_) ->
        Test ! {asked, self()},
        receive go_on -> {ok, anybody} end
    end,
    #{pid := Supervisor} = Server =
        erlmcp_test_http:start(#{limits => #{authenticate_timeout_ms => ?PATIENCE},
                                 listen => [{http, #{authenticate => {process, Ask}}}]}),
    {Socket, _} = connect([{server, Server}]),
    {Headers, Body} = erlmcp_test_http:message(~"tools/list", #{}, #{}),
    ok = gen_tcp:send(Socket, head(1, ~"/mcp", iolist_size(Body), Headers)),
    Asked = receive {asked, Pid} -> Pid after ?PATIENCE -> error(not_asked) end,
    ok = gen_tcp:send(Socket, [lists:duplicate(50_000, cow_http2:data(1, nofin, ~"")),
                               cow_http2:ping(7)]),
    Rest = answered_ping(7, Socket, <<>>),
    [Listener] = [Id || {{listener, Id}, _, _, _} <- supervisor:which_children(Supervisor)],
    [Connection] = ranch:procs(Listener, connections),
    true = erlang:garbage_collect(Connection),
    {memory, Bytes} = process_info(Connection, memory),
    {true, _} = {Bytes < 1_000_000, Bytes},
    Asked ! go_on,
    ok = gen_tcp:send(Socket, cow_http2:data(1, fin, Body)),
    #{~"result" := #{}} = json:decode(answered(1, Socket, Rest, <<>>)),
    ok = gen_tcp:close(Socket),
    erlmcp_test_http:stop(Server).

answered_ping(Opaque, Socket, Bytes) ->
    case whole(Socket, Bytes) of
        {{ping_ack, Opaque}, Rest} -> Rest;
        {_, Rest} -> answered_ping(Opaque, Socket, Rest)
    end.

%% The answer to the SETTINGS that begin a connection is one of them.
connect(Config) ->
    connect(#{}, Config).

connect(Settings, Config) ->
    Socket = erlmcp_test_http:connect(server(Config)),
    ok = gen_tcp:send(Socket, preface(Settings)),
    ok = begun(Socket, <<>>),
    {Socket, 1}.

begun(Socket, Bytes) ->
    case cow_http2:parse(Bytes) of
        {ok, settings_ack, <<>>} ->
            ok;
        {ok, _, Rest} ->
            begun(Socket, Rest);
        more ->
            {ok, More} = gen_tcp:recv(Socket, 0, ?PATIENCE),
            begun(Socket, <<Bytes/binary, More/binary>>)
    end.

those_of_a_quiet_client_are_answered(Config) ->
    {Socket, _} = connect(Config),
    [begin
         ok = gen_tcp:send(Socket, cow_http2:ping(Number)),
         {ping_ack, Number} = next(Socket, <<>>)
     end || Number <- lists:seq(1, 200)],
    ok = gen_tcp:close(Socket).

%% RFC 8446, 6.1: "Each party MUST send a "close_notify" alert before closing its write side of the
%% connection, unless it has already sent some error alert." RFC 5246, 7.2.1: "The client and the
%% server must share knowledge that the connection is ending in order to avoid a truncation attack."
tls_ends_with_an_alert(_) ->
    [begin
         Server = erlmcp_test_http:start(#{listen => [{http, #{tls => erlmcp_test_http:shown()}}]}),
         Types = erlmcp_test_tls_relay:record_types(
             Server, [{alpn_advertised_protocols, [~"h2"]}], fun(Socket) ->
                 ok = Ends(Server, Socket),
                 ended(Socket)
             end),
         {Name, 21} = {Name, lists:last(Types)},
         erlmcp_test_http:stop(Server)
     end || Name := Ends <- #{
         %% 3.4: "Clients and servers MUST treat an invalid connection preface as a connection error
         %% (Section 5.4.1) of type PROTOCOL_ERROR."
         client_speaks_another => fun(_, Socket) ->
             ssl:send(Socket, ~"GET /mcp HTTP/1.1\r\nhost: localhost\r\n\r\n")
         end,
         %% 6.7: "If a PING frame is received with a stream identifier field value other than 0x00,
         %% the recipient MUST respond with a connection error (Section 5.4.1) of type
         %% PROTOCOL_ERROR."
         client_is_wrong => fun(_, Socket) ->
             ssl:send(Socket, [preface(), <<8:24, 6, 0, 1:32, 0:64>>])
         end,
         client_leaves => fun(_, Socket) ->
             ssl:send(Socket, [preface(), cow_http2:goaway(0, no_error, <<>>)])
         end,
         server_stops => fun(Server, Socket) ->
             ok = ssl:send(Socket, preface()),
             erlmcp_test_http:stop(Server)
         end}].

preface() ->
    preface(#{}).

preface(Settings) ->
    [~"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", cow_http2:settings(Settings)].

ended(Socket) ->
    case ssl:recv(Socket, 0, ?PATIENCE) of
        {ok, _} -> ended(Socket);
        {error, closed} -> ok
    end.

%% A client that still sends when its connection ends reads why. The server reads for a second what
%% the client still sends.
the_last_response_can_be_read(_) ->
    [erlmcp_test_pauses:undisturbed(50, fun() ->
         Server = erlmcp_test_http:start(#{listen => [{http, #{tls => erlmcp_test_http:shown()}}]}),
         {ok, Socket} = ssl:connect({127, 0, 0, 1}, maps:get(port, Server),
                                    [{versions, [Version]}, {verify, verify_none}, binary,
                                     {active, false}, {alpn_advertised_protocols, [~"h2"]}]),
         ok = ssl:send(Socket, [preface(), <<8:24, 6, 0, 1:32, 0:64>>]),
         ok = ssl:send(Socket, binary:copy(<<0:8>>, 5_000_000)),
         protocol_error = reason(Socket, <<>>),
         erlmcp_test_http:stop(Server)
     end) || Version <- ['tlsv1.2', 'tlsv1.3']].

reason(Socket, Bytes) ->
    case cow_http2:parse(Bytes) of
        {ok, {goaway, _, Reason, _}, _} ->
            Reason;
        {ok, _, Rest} ->
            reason(Socket, Rest);
        more ->
            {ok, More} = ssl:recv(Socket, 0, ?PATIENCE),
            reason(Socket, <<Bytes/binary, More/binary>>)
    end.
