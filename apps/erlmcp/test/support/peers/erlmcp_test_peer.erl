-module(erlmcp_test_peer).
-moduledoc """
Servers that say what a case wants them to say, over real sockets: one answers HTTP requests, and
the other speaks lines on TCP. A fun of the case gives the answers, in a process for each
connection. Each message that comes is sent to the test's process as `{peer, Message}`. The message
must be one of the revision that it claims (`m:erlmcp_test_sent`), or the test's process ends.
""".

-export([http/1, tcp/1, stop/1, received/0, received/1]).
-export([result/2, error/3, event/1]).
-export([spaces/0, drip/2, drip/3, flood/3]).

-type peer() :: #{pid := pid(), port := inet:port_number(), url := binary()}.
-doc "An HTTP request. `message` is its body, decoded, or `none`.".
-type request() :: #{method := binary(), path := binary(), headers := #{binary() => binary()},
                     message := term()}.
-doc """
A whole answer; the pieces of a stream of events; or a fun that writes to the socket itself. The
piece `close` ends the connection, and `{wait, Milliseconds}` waits. With `follow`, what comes to
the connection's process as `{say, Piece}` is sent until the client closes the connection. `silence`
waits until the client goes.
""".
-type answer() ::
    fun((gen_tcp:socket()) -> ok | close)
    | {Status :: pos_integer(), [{binary(), binary()}], Body :: term()}
    | {events, [iodata() | {wait, pos_integer()} | follow | close]}
    | close | silence.

-define(WAIT, 30_000).

-doc "Starts a server of HTTP/1.1 on a free port.".
-spec http(fun((request()) -> answer())) -> peer().
http(Answer) ->
    start([binary, {packet, http_bin}], fun(Socket, Test) -> serve_http(Socket, Answer, Test) end).

-doc """
Starts a server of lines on a free port. The fun returns what is sent for each message that comes.
""".
-spec tcp(fun((map()) -> [iodata() | map() | close | fun((gen_tcp:socket()) -> ok | close)])) ->
    peer().
tcp(Answer) ->
    start([binary, {packet, line}, {buffer, 1_000_000}],
          fun(Socket, Test) -> serve_lines(Socket, Answer, unknown, Test) end).

start(Options, Serve) ->
    Test = self(),
    {Pid, Monitor} = spawn_monitor(fun() ->
        {ok, Listen} = gen_tcp:listen(0, [{active, false}, {reuseaddr, true}, {nodelay, true},
                                          {ip, {127, 0, 0, 1}} | Options]),
        {ok, Port} = inet:port(Listen),
        Test ! {listening, self(), Port},
        accept(Listen, Serve, Test)
    end),
    receive
        {listening, Pid, Port} ->
            demonitor(Monitor, [flush]),
            #{pid => Pid, port => Port,
              url => <<"http://127.0.0.1:", (integer_to_binary(Port))/binary, "/mcp">>};
        {'DOWN', Monitor, process, Pid, Reason} ->
            error(Reason)
    end.

accept(Listen, Serve, Test) ->
    {ok, Socket} = gen_tcp:accept(Listen),
    Pid = spawn_link(fun() ->
        receive yours -> Serve(Socket, Test) end
    end),
    ok = gen_tcp:controlling_process(Socket, Pid),
    Pid ! yours,
    accept(Listen, Serve, Test).

-doc "Ends a server and its connections.".
-spec stop(peer()) -> ok.
stop(#{pid := Pid}) ->
    Monitor = monitor(process, Pid),
    exit(Pid, kill),
    receive {'DOWN', Monitor, process, Pid, _} -> ok end.

-doc "Waits for the next message that a server gets, and returns it.".
-spec received() -> term().
received() ->
    receive
        {peer, Message} -> Message
    after ?WAIT ->
        error(nothing_came)
    end.

-doc "Waits for the next message of this method that a server gets, and returns it.".
-spec received(Method :: binary()) -> map().
received(Method) ->
    receive
        {peer, #{~"method" := Method} = Message} -> Message
    after ?WAIT ->
        error({did_not_come, Method})
    end.

-doc "Returns a response with a result.".
-spec result(Request :: map(), Result :: map()) -> map().
result(#{~"id" := Id}, Result) ->
    #{jsonrpc => ~"2.0", id => Id, result => Result}.

-doc "Returns a response with an error.".
-spec error(Request :: map(), Code :: integer(), map()) -> map().
error(#{~"id" := Id}, Code, Data) ->
    #{jsonrpc => ~"2.0", id => Id, error => #{code => Code, message => ~"no", data => Data}}.

-doc "Returns a message as an event of a stream.".
-spec event(map()) -> iodata().
event(Message) ->
    [~"data: ", json:encode(Message), ~"\n\n"].

serve_lines(Socket, Answer, Before, Test) ->
    case gen_tcp:recv(Socket, 0) of
        {ok, Line} ->
            Message = json:decode(string:trim(Line)),
            Revision = checked(Message, #{}, Before, Test),
            Test ! {peer, Message},
            case said(Answer(Message), Socket) of
                ok -> serve_lines(Socket, Answer, Revision, Test);
                close -> gen_tcp:close(Socket)
            end;
        {error, _} ->
            ok
    end.

checked(none, _, Before, _) ->
    Before;
checked(Message, Headers, Before, Test) ->
    try
        erlmcp_test_sent:check(Message, Headers, Before)
    catch
        error:Reason ->
            exit(Test, {sent, Reason, Message}),
            Before
    end.

said([], _) -> ok;
said([close | _], _) -> close;
said([Write | Messages], Socket) when is_function(Write) ->
    case Write(Socket) of
        ok -> said(Messages, Socket);
        close -> close
    end;
said([Message | Messages], Socket) ->
    Line = case Message of
        #{} -> [json:encode(Message), $\n];
        _ -> Message
    end,
    case gen_tcp:send(Socket, Line) of
        ok -> said(Messages, Socket);
        {error, _} -> close
    end.

serve_http(Socket, Answer, Test) ->
    case request(Socket) of
        {ok, #{message := Message, headers := Headers} = Request} ->
            _ = checked(Message, Headers, unknown, Test),
            Test ! {peer, Message},
            case answered(Answer(Request), Socket) of
                ok ->
                    %% This fails if the client has gone, and then nothing can be received.
                    _ = inet:setopts(Socket, [{packet, http_bin}]),
                    serve_http(Socket, Answer, Test);
                close ->
                    gen_tcp:close(Socket)
            end;
        closed ->
            ok
    end.

request(Socket) ->
    maybe
        {ok, {http_request, Method, {abs_path, Path}, _}} ?= gen_tcp:recv(Socket, 0),
        {ok, Headers} ?= headers(Socket, #{}),
        ok ?= inet:setopts(Socket, [{packet, raw}]),
        {ok, Message} ?= message(Socket, maps:get(~"content-length", Headers, ~"0")),
        {ok, #{method => method(Method), path => Path, headers => Headers, message => Message}}
    else
        _ -> closed
    end.

method(Method) when is_atom(Method) -> atom_to_binary(Method);
method(Method) -> Method.

headers(Socket, Headers) ->
    case gen_tcp:recv(Socket, 0) of
        {ok, {http_header, _, _, Name, Value}} ->
            headers(Socket, Headers#{string:lowercase(Name) => Value});
        {ok, http_eoh} ->
            {ok, Headers};
        _ ->
            closed
    end.

message(_, ~"0") ->
    {ok, none};
message(Socket, Length) ->
    maybe
        {ok, Body} ?= gen_tcp:recv(Socket, binary_to_integer(Length)),
        {ok, json:decode(Body)}
    end.

answered(Write, Socket) when is_function(Write) ->
    Write(Socket);
answered(silence, Socket) ->
    %% Until the client goes.
    _ = gen_tcp:recv(Socket, 1),
    close;
answered(close, _) ->
    close;
answered({events, Pieces}, Socket) ->
    %% If the client has gone, the pieces cannot be sent either.
    _ = gen_tcp:send(Socket, [~"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n",
                              ~"transfer-encoding: chunked\r\n\r\n"]),
    pieces(Pieces, Socket);
answered({Status, Headers, Body}, Socket) ->
    Bytes = case Body of
        #{} -> json:encode(Body);
        none -> ~"";
        _ -> Body
    end,
    Type = case Body of
        #{} -> [{~"content-type", ~"application/json"}];
        _ -> []
    end,
    Sent = gen_tcp:send(Socket, [~"HTTP/1.1 ", integer_to_binary(Status), ~" X\r\n",
                                 [[Name, ~": ", Value, ~"\r\n"]
                                  || {Name, Value} <- Type ++ Headers],
                                 ~"content-length: ", integer_to_binary(iolist_size(Bytes)),
                                 ~"\r\n\r\n", Bytes]),
    case Sent of
        ok -> ok;
        {error, _} -> close
    end.

pieces([], Socket) ->
    _ = gen_tcp:send(Socket, ~"0\r\n\r\n"),
    ok;
pieces([close | _], _) ->
    close;
pieces([{wait, Milliseconds} | Pieces], Socket) ->
    receive
    after Milliseconds -> pieces(Pieces, Socket)
    end;
pieces([follow | _] = Pieces, Socket) ->
    _ = inet:setopts(Socket, [{active, once}]),
    receive
        {say, Piece} -> pieces([Piece | Pieces], Socket);
        {tcp_closed, Socket} -> close
    end;
pieces([Piece | Pieces], Socket) ->
    Size = integer_to_binary(iolist_size(Piece), 16),
    case gen_tcp:send(Socket, [Size, ~"\r\n", Piece, ~"\r\n"]) of
        ok -> pieces(Pieces, Socket);
        {error, _} -> close
    end.

-doc "Returns 64 KiB of white space, which says nothing in JSON.".
-spec spaces() -> binary().
spaces() ->
    binary:copy(~" ", 65_536).

-doc "Writes a piece every 20 milliseconds until the client goes.".
-spec drip(gen_tcp:socket(), iodata()) -> close.
drip(Socket, Piece) ->
    drip(Socket, Piece, Piece).

-doc "Writes the piece `First`, and then another one as `drip/2` does.".
-spec drip(gen_tcp:socket(), First :: iodata(), iodata()) -> close.
drip(Socket, First, Piece) ->
    case gen_tcp:send(Socket, First) of
        ok -> receive after 20 -> drip(Socket, Piece, Piece) end;
        {error, _} -> close
    end.

-doc "Writes these bytes again and again, until `Left` bytes are written or the client has gone.".
-spec flood(gen_tcp:socket(), binary(), Left :: integer() | infinity) -> close.
flood(_, _, Left) when is_integer(Left), Left =< 0 ->
    close;
flood(Socket, Bytes, Left) ->
    case gen_tcp:send(Socket, Bytes) of
        ok when Left =:= infinity -> flood(Socket, Bytes, infinity);
        ok -> flood(Socket, Bytes, Left - byte_size(Bytes));
        {error, _} -> close
    end.
