-module(erlmcp_chaos_large_payload).
-moduledoc """
A fault: a message of 100 MiB on each transport, with and without an announced length where the
transport has lengths. Each is refused with 1068.

An announced message is refused before a byte of it is read. An unannounced one is refused at the
byte that passes the bound; the fault begins with that byte. The server keeps none of the bytes. TCP
connections and standard streams continue after the message.

The evidence: the refusal of each message with 1068.
""".

-behaviour(erlmcp_chaos_scenario).

-export([id/0, title/0, needs/0, bounds/0, harms/0, setup/1, run/1]).

-define(BYTES, 104_857_600).
-define(SHORT_BYTES, 16_777_216).
-define(LIMIT, 65_536).
-define(CHUNK, 1_048_576).
-define(WAIT_MS, 30_000).
%% Bytes by which the node's memory may grow in all.
-define(KEPT, 33_554_432).

-doc false.
id() -> ~"chaos_large_payload".

-doc false.
title() -> ~"a message of 100 MiB on each transport, announced and unannounced".

-doc false.
needs() -> [].

-doc false.
bounds() -> #{code => 1068, detect_ms => 10, recover_ms => 0, load => undisturbed}.

-doc false.
harms() ->
    [http1_announced, http1_unannounced, http2_announced, http2_unannounced, tcp_unannounced,
     stdio_unannounced].

-doc false.
setup(_) ->
    {ok, _} = application:ensure_all_started(gun),
    {ok, #{server => #{limits => #{message_bytes => ?LIMIT}}}}.

-doc false.
run(Context) ->
    #{memory_bytes := Before} = state(Context),
    Seen = [Send(Context) || Send <- [fun http1_announced/1, fun http1_unannounced/1,
                                      fun http2_announced/1, fun http2_unannounced/1, fun tcp/1,
                                      fun stdio/1]],
    ok = erlmcp_chaos_context:fact(Context, message_bytes, size_of(Context)),
    case erlmcp_chaos_context:until(fun() -> grown(Before, Context) =< ?KEPT end) of
        timeout -> {error, {bytes_kept, grown(Before, Context)}};
        ok -> all(Seen)
    end.

all(Seen) ->
    case lists:member(unseen, Seen) of
        true -> unseen;
        false -> ok
    end.

state(Context) ->
    erlmcp_chaos_context:call(Context, erlmcp_chaos_inside, state, []).

grown(Before, Context) ->
    maps:get(memory_bytes, state(Context)) - Before.

size_of(Context) ->
    case erlmcp_chaos_context:is_short(Context) of
        true -> ?SHORT_BYTES;
        false -> ?BYTES
    end.

http1_announced(#{target := Target} = Context) ->
    {ok, Connection} = erlmcp_chaos_client:connect(http, Target),
    Length = integer_to_binary(?BYTES),
    SentUs = erlmcp_chaos_context:inject(Context),
    Reply = unless_unharmed(http1_announced, Context, fun() ->
        ok = erlmcp_chaos_client:send(Connection,
                                      [head(), ~"content-length: ", Length, ~"\r\n\r\n"]),
        reply(Connection)
    end),
    Seen = refused(http1_announced, Reply, SentUs, Context),
    ok = erlmcp_chaos_client:close(Connection),
    heal(Seen, Context).

unless_unharmed(Harm, Context, Send) ->
    erlmcp_chaos_context:harm(Context, Harm, {error, unharmed}, Send).

http1_unannounced(#{target := Target} = Context) ->
    {ok, Connection} = erlmcp_chaos_client:connect(http, Target),
    ok = erlmcp_chaos_client:send(Connection,
                                  [head(), ~"transfer-encoding: chunked\r\n\r\n", chunk(?LIMIT)]),
    Chunk = chunk(?CHUNK),
    SentUs = erlmcp_chaos_context:inject(Context),
    Reply = unless_unharmed(http1_unannounced, Context, fun() ->
        Sender = sender(fun(Bytes) -> erlmcp_chaos_client:send(Connection, Bytes) end, Chunk,
                        Context),
        Refusal = reply(Connection),
        ok = stop(Sender),
        Refusal
    end),
    Seen = refused(http1_unannounced, Reply, SentUs, Context),
    ok = erlmcp_chaos_client:close(Connection),
    heal(Seen, Context).

reply(Connection) ->
    erlmcp_chaos_client:reply(Connection, ?WAIT_MS).

head() ->
    [~"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n",
     ~"accept: application/json, text/event-stream\r\nmcp-protocol-version: 2026-07-28\r\n",
     ~"mcp-method: tools/call\r\nmcp-name: echo\r\n"].

chunk(Size) ->
    iolist_to_binary([integer_to_binary(Size, 16), ~"\r\n", bytes(Size), ~"\r\n"]).

bytes(Size) ->
    binary:copy(~"x", Size).

http2_announced(Context) ->
    Connection = http2(Context),
    SentUs = erlmcp_chaos_context:inject(Context),
    Reply = unless_unharmed(http2_announced, Context, fun() ->
        Stream = gun:headers(Connection, ~"POST", ~"/mcp",
                             [{~"content-length", integer_to_binary(?BYTES)} | fields()]),
        http2_reply(Connection, Stream)
    end),
    Seen = refused(http2_announced, Reply, SentUs, Context),
    ok = gun:close(Connection),
    heal(Seen, Context).

http2_unannounced(Context) ->
    Connection = http2(Context),
    Stream = gun:headers(Connection, ~"POST", ~"/mcp", fields()),
    ok = gun:data(Connection, Stream, nofin, bytes(?LIMIT)),
    Chunk = bytes(?CHUNK),
    SentUs = erlmcp_chaos_context:inject(Context),
    Reply = unless_unharmed(http2_unannounced, Context, fun() ->
        Sender = sender(fun(Bytes) -> gun:data(Connection, Stream, nofin, Bytes) end, Chunk,
                        Context),
        Refusal = http2_reply(Connection, Stream),
        ok = stop(Sender),
        Refusal
    end),
    Seen = refused(http2_unannounced, Reply, SentUs, Context),
    ok = gun:close(Connection),
    heal(Seen, Context).

http2(#{target := Target}) ->
    {Ip, Port} = erlmcp_bench_target:address(http, Target),
    {ok, Connection} = gun:open(Ip, Port, #{protocols => [http2], transport => tcp, retry => 0,
                                  tcp_opts => [{nodelay, true}]}),
    {ok, http2} = gun:await_up(Connection, ?WAIT_MS),
    Connection.

fields() ->
    [{~"content-type", ~"application/json"},
     {~"accept", ~"application/json, text/event-stream"},
     {~"mcp-protocol-version", ~"2026-07-28"}, {~"mcp-method", ~"tools/call"},
     {~"mcp-name", ~"echo"}].

http2_reply(Connection, Stream) ->
    maybe
        {response, nofin, 413, _} ?= gun:await(Connection, Stream, ?WAIT_MS),
        {ok, Body} ?= gun:await_body(Connection, Stream, ?WAIT_MS),
        {ok, json:decode(Body)}
    else
        {response, _, Status, _} -> {error, {status, Status}};
        {error, _} = Error -> Error
    end.

tcp(#{target := Target} = Context) ->
    {ok, Connection} = erlmcp_chaos_client:connect(tcp, Target),
    Good = erlmcp_chaos_client:call(1, ~"echo", #{text => ~"good"}),
    %% A first line that is not a message would end the connection.
    answered = erlmcp_chaos_client:ask(Connection, Context, fault, Good, ?WAIT_MS),
    Seen = line(tcp_unannounced, fun(Bytes) -> erlmcp_chaos_client:send(Connection, Bytes) end,
                fun() -> reply(Connection) end, Context),
    answered = erlmcp_chaos_client:ask(Connection, Context, fault, Good, ?WAIT_MS),
    ok = erlmcp_chaos_client:close(Connection),
    heal(Seen, Context).

%% A server on stdio needs a process of its own.
stdio(Context) ->
    Server = erlmcp_chaos_stdio_server:open(?LIMIT),
    Good = erlmcp_chaos_client:bytes(tcp, erlmcp_chaos_client:call(1, ~"echo",
                                                                  #{text => ~"good"})),
    Send = fun(Bytes) -> erlmcp_chaos_stdio_server:send(Server, Bytes) end,
    Reply = fun() -> erlmcp_chaos_stdio_server:reply(Server, ?WAIT_MS) end,
    ok = Send(Good),
    {ok, #{~"id" := 1, ~"result" := _}} = Reply(),
    Seen = line(stdio_unannounced, Send, Reply, Context),
    ok = Send(Good),
    {ok, #{~"id" := 1, ~"result" := _}} = Reply(),
    ok = erlmcp_chaos_stdio_server:close(Server),
    heal(Seen, Context).

%% A line that does not end is refused while it is being sent; the rest of it is still sent.
line(Harm, Send, Reply, Context) ->
    Refused = unless_unharmed(Harm, Context, fun() ->
        ok = Send(bytes(?LIMIT)),
        Chunk = bytes(?CHUNK),
        SentUs = erlmcp_chaos_context:inject(Context),
        {Pid, Monitor} = sender(Send, Chunk, Context),
        Seen = refused(Harm, Reply(), SentUs, Context),
        receive {'DOWN', Monitor, process, Pid, Reason} -> normal = Reason end,
        ok = Send(~"\n"),
        Seen
    end),
    case Refused of
        {error, unharmed} ->
            refused(Harm, Refused, erlmcp_chaos_context:inject(Context), Context);
        _ ->
            Refused
    end.

%% Sends the rest, until it is sent or the peer closes the connection.
sender(Send, Chunk, Context) ->
    Chunks = size_of(Context) div ?CHUNK,
    spawn_monitor(fun() -> send_chunks(Chunks, Send, Chunk) end).

send_chunks(0, _, _) ->
    ok;
send_chunks(More, Send, Chunk) ->
    case Send(Chunk) of
        ok -> send_chunks(More - 1, Send, Chunk);
        {error, _} -> ok
    end.

stop({Pid, Monitor}) ->
    exit(Pid, kill),
    receive {'DOWN', Monitor, process, Pid, _} -> ok end.

refused(Harm, Came, SentUs, Context) ->
    Outcome = case Came of
        {ok, Reply} -> erlmcp_chaos_client:outcome(Reply);
        {error, Reason} -> {failed, Reason}
    end,
    DoneUs = erlmcp_chaos_context:now_us(),
    ok = erlmcp_chaos_context:outcome(Context, fault, Outcome, SentUs, DoneUs),
    ok = erlmcp_chaos_context:fact(Context, figure(Harm), max(1, DoneUs - SentUs)),
    Refused = length([1068 || {refused, _, #{~"refusal" := 1068}} <- [Outcome]]),
    erlmcp_chaos_context:seen(Context, Harm, refused_messages, Refused, {at_least, 1}).

%% The microseconds until a harm is refused.
figure(http1_announced) -> http1_announced_us;
figure(http1_unannounced) -> http1_unannounced_us;
figure(http2_announced) -> http2_announced_us;
figure(http2_unannounced) -> http2_unannounced_us;
figure(tcp_unannounced) -> tcp_unannounced_us;
figure(stdio_unannounced) -> stdio_unannounced_us.

heal(Seen, Context) ->
    _ = erlmcp_chaos_context:heal(Context),
    maybe
        ok ?= Seen,
        ok = erlmcp_chaos_context:await_detected(Context),
        ok = erlmcp_chaos_context:await_recovered(Context),
        ok
    end.
