-module(erlmcp_chaos_slow_consumer).
-moduledoc """
A fault: clients stop reading: one a large reply on TCP, one a large reply on HTTP, and one a stream
whose call continues to send. The server closes their connections (1055) and drops their unsent
bytes. No other client notices.

The evidence: the bytes of each answer that never arrive.
""".

-behaviour(erlmcp_chaos_scenario).

-export([id/0, title/0, needs/0, bounds/0, harms/0, setup/1, run/1]).
-export([talk/2]).

-define(REPLY_BYTES, 16_777_216).
%% Milliseconds that a client may take to read a message.
-define(SEND_MS, 500).
%% The stream: bytes of a message, and messages.
-define(MESSAGE_BYTES, 16_384).
-define(MESSAGES, 4_000).
%% MiB of each answer that a client misses at least: it has no room for more than a part.
-define(MISSED_MIB, 2).
-define(MIB, 1_048_576).
-define(WAIT_MS, 20_000).
%% A small receive buffer, so that little waits on the client's side.
-define(RECEIVED, [{recbuf, 65_536}]).

-doc false.
id() -> ~"chaos_slow_consumer".

-doc false.
title() -> ~"a reader that stops reading a stream and a big reply".

-doc false.
needs() -> [].

-doc false.
bounds() -> #{code => 1055, detect_ms => 1_000, recover_ms => 100, load => undisturbed}.

-doc false.
harms() -> [tcp_reply, http_reply, stream].

-doc false.
setup(_) ->
    {ok, #{server => #{limits => #{send_timeout_ms => ?SEND_MS},
                       tools => [#{name => ~"talk", description => ~"Says much",
                                   handler => fun ?MODULE:talk/2}]}}}.

-doc false.
talk(_, Context) ->
    Text = binary:copy(~"x", ?MESSAGE_BYTES),
    [ok = erlmcp:log(Context, error, Text) || _ <- lists:seq(1, ?MESSAGES)],
    ~"talked".

-doc false.
run(Context) ->
    Large = erlmcp_chaos_client:call(1, ~"large", #{bytes => ?REPLY_BYTES}),
    Meta = #{~"io.modelcontextprotocol/logLevel" => ~"debug"},
    Talk = erlmcp_chaos_client:request(1, ~"tools/call", #{name => ~"talk", '_meta' => Meta}),
    Seen = [deaf(tcp_reply, tcp, Large, 0, ?REPLY_BYTES, Context),
            deaf(http_reply, http, Large, 0, ?REPLY_BYTES, Context),
            deaf(stream, http, Talk, 2 * ?MESSAGE_BYTES, ?MESSAGES * ?MESSAGE_BYTES, Context)],
    case lists:member(unseen, Seen) of
        true -> unseen;
        false -> ok
    end.

%% Reads `Bytes` bytes of an answer that has at least `All`, and then nothing until the server has
%% noticed.
deaf(Harm, Transport, Message, Bytes, All, #{target := Target} = Context) ->
    {ok, Connection} = erlmcp_chaos_client:connect(Transport, Target, [{packet, raw} | ?RECEIVED]),
    SentUs = erlmcp_chaos_context:now_us(),
    ok = erlmcp_chaos_client:send(Connection, erlmcp_chaos_client:bytes(Transport, Message)),
    ok = erlmcp_chaos_client:discard(Connection, Bytes, ?WAIT_MS),
    _ = erlmcp_chaos_context:inject(Context),
    %% If the harm is taken out, the client reads the rest below at once.
    _ = erlmcp_chaos_context:harm(Context, Harm, ok, fun() ->
        erlmcp_chaos_context:await_detected(Context)
    end),
    _ = erlmcp_chaos_context:heal(Context),
    %% The client gets the bytes that its system already received, and no more.
    {Outcome, Missed} = rest(Connection, All - Bytes),
    ok = erlmcp_chaos_context:outcome(Context, fault, Outcome, SentUs),
    ok = erlmcp_chaos_client:close(Connection),
    maybe
        ok ?= erlmcp_chaos_context:seen(Context, Harm, missed_mib, Missed / ?MIB,
                                        {at_least, ?MISSED_MIB}),
        {failed, _} = Outcome,
        ok = erlmcp_chaos_context:await_recovered(Context),
        ok
    end.

rest(Connection, All) ->
    case erlmcp_chaos_client:discard(Connection, All, ?WAIT_MS) of
        ok -> {answered, 0};
        {error, Reason, Missed} -> {{failed, Reason}, Missed}
    end.
