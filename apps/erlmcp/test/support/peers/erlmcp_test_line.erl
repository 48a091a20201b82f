-module(erlmcp_test_line).
-moduledoc "A client of newline-framed JSON-RPC on `m:gen_tcp`, and the messages that it sends.".

-export([serve/1, port/1]).
-export([connect/1, close/1, reset/1, end_of_input/1]).
-export([send/2, recv/1, recv_line/1, recv_line/2, recv_many/2, rest/1, is_quiet/1]).
-export([ask/4, ask_stateless/4, initialize/2]).
-export([request/3, stateless/3, notification/2, initialize_request/2, meta/0]).
-export([result/1, code/1]).
-export([echo_tool/0, waiting_tool/1, await_call/0]).

-define(PATIENCE, 30_000).

-doc """
Starts a server on a free TCP port, with these options in place of the usual ones. The server ends
with the calling process.
""".
serve(Options) ->
    {ok, _} = application:ensure_all_started(erlmcp),
    Usual = #{name => ~"test", version => ~"1.0.0", tools => [echo_tool()],
              listen => [{tcp, #{port => 0}}]},
    Test = self(),
    %% A server ends with the process that it is linked to. That is not the test's, whose exit
    %% reason would look like a crash.
    Owner = spawn(fun() ->
        Monitor = monitor(process, Test),
        {ok, Server} = erlmcp:start_server(maps:merge(Usual, Options)),
        Test ! {self(), Server},
        receive {'DOWN', Monitor, process, _, _} -> exit(shutdown) end
    end),
    receive
        {Owner, Server} -> Server
    after ?PATIENCE ->
        error(no_server)
    end.

-doc "Returns the port of a server's first TCP listener.".
port(Server) ->
    [Port | _] = [Port || #{transport := tcp, port := Port} <- erlmcp:listeners(Server)],
    Port.

-doc "Connects to a server, or to a port of this machine.".
connect(Port) when is_integer(Port) ->
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port,
                                   [binary, {active, false}, {packet, line}, {nodelay, true},
                                    {buffer, 65536}], ?PATIENCE),
    Socket;
connect(Server) ->
    connect(port(Server)).

close(Socket) ->
    ok = gen_tcp:close(Socket).

-doc "Ends the connection with a reset: the socket is lost at the other side.".
reset(Socket) ->
    ok = inet:setopts(Socket, [{linger, {true, 0}}]),
    ok = gen_tcp:close(Socket).

-doc "Closes the client's half of the connection: nothing more is sent.".
end_of_input(Socket) ->
    ok = gen_tcp:shutdown(Socket, write).

-doc "Sends a message as a line. A map or a list is encoded, and a binary is sent as it is.".
send(Socket, Line) when is_binary(Line) ->
    ok = erlmcp_test_wire:sent(Socket, #{}, Line),
    ok = gen_tcp:send(Socket, [Line, $\n]);
send(Socket, Message) ->
    send(Socket, iolist_to_binary(json:encode(Message))).

-doc "Reads the next message.".
recv(Socket) ->
    erlmcp_test_wire:received(Socket, json:decode(recv_line(Socket))).

-doc "Reads the next line, with its newline.".
recv_line(Socket) ->
    {ok, Line} = recv_line(Socket, ?PATIENCE),
    Line.

-doc "Reads the next line within these milliseconds. Returns an error where `recv_line/1` fails.".
recv_line(Socket, Timeout) ->
    recv_line(Socket, Timeout, []).

recv_line(Socket, Timeout, Parts) ->
    maybe
        {ok, Part} ?= gen_tcp:recv(Socket, 0, Timeout),
        %% A line longer than the socket's buffer comes in parts.
        case binary:last(Part) of
            $\n -> {ok, iolist_to_binary(lists:reverse(Parts, [Part]))};
            _ -> recv_line(Socket, Timeout, [Part | Parts])
        end
    end.

-doc "Reads the next `Count` messages.".
recv_many(Socket, Count) ->
    [recv(Socket) || _ <- lists:seq(1, Count)].

-doc "Ends the input, and returns every message that comes before the other side closes.".
rest(Socket) ->
    end_of_input(Socket),
    until_closed(Socket).

until_closed(Socket) ->
    case recv_line(Socket, ?PATIENCE) of
        {ok, Line} ->
            [erlmcp_test_wire:received(Socket, json:decode(Line)) | until_closed(Socket)];
        {error, closed} -> []
    end.

-doc "Returns `true` if nothing was sent before the answer to a ping that is sent now.".
is_quiet(Socket) ->
    Id = <<"quiet-", (integer_to_binary(erlang:unique_integer([positive])))/binary>>,
    send(Socket, request(Id, ~"ping", #{})),
    recv(Socket) =:= #{~"jsonrpc" => ~"2.0", ~"id" => Id, ~"result" => #{}}.

-doc "Sends a request, and returns its answer, which must be the next message.".
ask(Socket, Id, Method, Params) ->
    send(Socket, request(Id, Method, Params)),
    #{~"id" := Id} = recv(Socket).

-doc "Sends a request of 2026-07-28, and returns its answer, which must be the next message.".
ask_stateless(Socket, Id, Method, Params) ->
    send(Socket, stateless(Id, Method, Params)),
    #{~"id" := Id} = recv(Socket).

-doc "Opens a session of a revision, and returns the result of `initialize`.".
initialize(Socket, Version) ->
    send(Socket, initialize_request(~"initialize", Version)),
    #{~"id" := ~"initialize", ~"result" := Result} = recv(Socket),
    send(Socket, notification(~"notifications/initialized", #{})),
    Result.

request(Id, Method, Params) ->
    #{~"jsonrpc" => ~"2.0", ~"id" => Id, ~"method" => Method, ~"params" => Params}.

stateless(Id, Method, Params) ->
    request(Id, Method, Params#{~"_meta" => maps:merge(meta(), maps:get(~"_meta", Params, #{}))}).

notification(Method, Params) ->
    #{~"jsonrpc" => ~"2.0", ~"method" => Method, ~"params" => Params}.

initialize_request(Id, Version) ->
    request(Id, ~"initialize",
            #{~"protocolVersion" => Version, ~"capabilities" => #{},
              ~"clientInfo" => #{~"name" => ~"line", ~"version" => ~"1"}}).

-doc "Returns the `_meta` of a stateless request.".
meta() ->
    #{~"io.modelcontextprotocol/protocolVersion" => ~"2026-07-28",
      ~"io.modelcontextprotocol/clientCapabilities" => #{}}.

result(#{~"result" := Result}) -> Result.

code(#{~"error" := #{~"code" := Code}}) -> Code.

-doc "Returns a tool that returns its `text`.".
echo_tool() ->
    #{name => ~"echo", handler => fun(Arguments, _) -> maps:get(~"text", Arguments, ~"") end}.

-doc """
Returns a tool that sends the arguments and the context of each call to the process which has made
the tool. A call returns the `Return` of the message `{answer, Return}`.
""".
waiting_tool(Name) ->
    Test = self(),
    #{name => Name,
      handler => fun(Arguments, Context) ->
          Test ! {called, self(), Arguments, Context},
          receive {answer, Return} -> Return end
      end}.

-doc "Waits until a call of a waiting tool runs, and returns its process.".
await_call() ->
    receive
        {called, Pid, _, _} -> Pid
    after ?PATIENCE ->
        error(no_call)
    end.
