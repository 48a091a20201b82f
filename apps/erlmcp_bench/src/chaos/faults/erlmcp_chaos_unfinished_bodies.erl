-module(erlmcp_chaos_unfinished_bodies).
-moduledoc """
A fault: clients begin messages and never end them: bodies of HTTP/1.1 and lines of TCP, together
about twice the node's bound for memory.

The node stays within its bound for memory, and holds at most twice its bound for unfinished
messages. It refuses messages for which it has no room. No other client notices, even with messages
of a MiB.

The evidence: the bytes of unfinished messages that the node holds at once.
""".

-behaviour(erlmcp_chaos_scenario).

-export([id/0, title/0, needs/0, bounds/0, harms/0, setup/1, run/1]).

-define(MIB, 1_048_576).
%% The bound on the node's memory, in bytes. The bound on unfinished messages is a part of it.
-define(BOUND, 192 * ?MIB).
%% The clients, and the pieces of a message that each sends. Together that is more than the node may
%% hold.
-define(CLIENTS, 100).
-define(PIECE, 65_536).
-define(PIECES, 63).
-define(SENT, (?PIECES * ?PIECE)).
%% Bytes of a good client's message.
-define(GOOD, ?MIB).
-define(FULL_MS, 5_000).
-define(SHORT_FULL_MS, 1_000).
-define(WAIT_MS, 30_000).

-doc false.
id() -> ~"chaos_unfinished_bodies".

-doc false.
title() -> ~"messages that begin and never end, twice the node's bound for memory".

-doc false.
needs() -> [].

-doc false.
bounds() -> #{code => 1089, detect_ms => 2_000, recover_ms => 1_000, load => undisturbed}.

-doc false.
harms() -> [messages].

-doc false.
setup(_) ->
    {ok, #{server => #{limits => #{message_bytes => 4 * ?MIB}},
           target => #{flags => ["-erlmcp", "memory_bytes", integer_to_list(?BOUND)]}}}.

-doc false.
run(Context) ->
    FullMs = case erlmcp_chaos_context:is_short(Context) of
        true -> ?SHORT_FULL_MS;
        false -> ?FULL_MS
    end,
    Call = fun(Module, Function, Arguments) ->
        erlmcp_chaos_context:call(Context, Module, Function, Arguments)
    end,
    ok = Call(erlmcp_chaos_peaks, follow, [#{memory => {erlang, memory, [total]},
                                             held => {erlmcp_unfinished_messages, sum, []}}]),
    Bound = Call(erlmcp_unfinished_messages, bound, []),
    _ = erlmcp_chaos_context:inject(Context),
    Piece = binary:copy(~" ", ?PIECE),
    Clients = erlmcp_chaos_context:harm(Context, messages, [], fun() ->
        [spawn_link(fun() -> begin_message(Transport, Piece, Context) end)
         || _ <- lists:seq(1, ?CLIENTS div 2), Transport <- [http, tcp]]
    end),
    _ = erlmcp_chaos_context:await_detected(Context),
    ok = good(erlmcp_chaos_context:now_us() + FullMs * 1000, 1, Context),
    #{memory := Memory, held := Held} = Call(erlmcp_chaos_peaks, highest, []),
    _ = [begin unlink(Client), exit(Client, kill) end || Client <- Clients],
    _ = erlmcp_chaos_context:heal(Context),
    ok = erlmcp_chaos_context:fact(Context, memory_allocated_mib_per_node, Memory / ?MIB),
    Seen = erlmcp_chaos_context:seen(Context, messages, unfinished_peak_mib_per_node, Held / ?MIB,
                                     {at_least, Bound / 2 / ?MIB}),
    ok = probe(0, Context),
    _ = erlmcp_chaos_context:await_recovered(Context),
    ok = await_released(Context),
    %% Bytes that were already read of a refused message exceed the bound.
    if
        Memory > ?BOUND -> {error, {memory_bytes, Memory, ?BOUND}};
        Held > 2 * Bound -> {error, {unfinished_bytes, Held, Bound}};
        true -> Seen
    end.

await_released(Context) ->
    erlmcp_chaos_context:until(fun() ->
        0 =:= erlmcp_chaos_context:call(Context, erlmcp_unfinished_messages, sum, [])
    end).

%% The announced length is one byte more than the client sends; a line has no end.
begin_message(Transport, Piece, #{target := Target} = Context) ->
    {ok, Connection} = erlmcp_chaos_client:connect(Transport, Target),
    SentUs = erlmcp_chaos_context:now_us(),
    Begin = case Transport of
        http -> erlmcp_chaos_client:announced(?SENT + 1);
        tcp -> ~"{"
    end,
    _ = spawn_link(fun() -> send_pieces(Connection, [Begin | lists:duplicate(?PIECES, Piece)]) end),
    Outcome = case erlmcp_chaos_client:reply(Connection, infinity) of
        {ok, Reply} -> erlmcp_chaos_client:outcome(Reply);
        {error, Reason} -> {failed, Reason}
    end,
    ok = erlmcp_chaos_context:outcome(Context, fault, Outcome, SentUs),
    receive never -> ok end.

send_pieces(_, []) ->
    ok;
send_pieces(Connection, [Piece | Pieces]) ->
    case erlmcp_chaos_client:send(Connection, Piece) of
        ok -> send_pieces(Connection, Pieces);
        {error, _} -> ok
    end.

%% Sends good requests until `UntilUs`, each on a new connection.
good(UntilUs, Id, Context) ->
    ok = probe(Id, Context),
    case erlmcp_chaos_context:now_us() < UntilUs of
        true -> good(UntilUs, Id + 1, Context);
        false -> ok
    end.

probe(Id, #{target := Target} = Context) ->
    Call = erlmcp_chaos_client:call(Id, ~"echo", #{text => binary:copy(~"x", ?GOOD)}),
    {ok, Connection} = erlmcp_chaos_client:connect(http, Target),
    answered = erlmcp_chaos_client:ask(Connection, Context, probe, Call, ?WAIT_MS),
    erlmcp_chaos_client:close(Connection).
