-module(erlmcp_chaos_message_flood).
-moduledoc """
A fault: the server takes 500 messages a second, and a client sends ten times as many for ten
seconds, those of each second at once. Messages over the rate are refused with 1056. Messages within
the rate are answered, and after the flood all messages are.

The evidence: the replies to the flood, and how many of them there were in a second. No more of them
may be answers than the rate allows.
""".

-behaviour(erlmcp_chaos_scenario).

-export([id/0, title/0, needs/0, bounds/0, harms/0, setup/1, run/1]).

-define(RATE, 500).
-define(TIMES, 10).
-define(CONNECTIONS, 10).
-define(SECONDS, 10).
-define(SHORT_SECONDS, 2).
%% The messages of so many seconds may be answered besides: a server lets those of one second in at
%% once, and a second is to spare.
-define(MORE_SECONDS, 2).
%% Milliseconds to wait for each reply.
-define(WAIT_MS, 20_000).

-doc false.
id() -> ~"chaos_message_flood".

-doc false.
title() -> ~"ten times capacity for ten seconds".

-doc false.
needs() -> [].

-doc false.
bounds() -> #{code => 1056, detect_ms => 100, recover_ms => 0, load => refused}.

-doc false.
harms() -> [flood].

-doc false.
setup(_) ->
    {ok, #{server => #{limits => #{messages_per_second => ?RATE}}}}.

-doc false.
run(#{target := Target} = Context) ->
    Seconds = case erlmcp_chaos_context:is_short(Context) of
        true -> ?SHORT_SECONDS;
        false -> ?SECONDS
    end,
    Connections = [connected(Target) || _ <- lists:seq(1, ?CONNECTIONS)],
    Each = ?RATE * ?TIMES div ?CONNECTIONS,
    Messages = [erlmcp_chaos_client:bytes(tcp, erlmcp_chaos_client:request(
                    Id, ~"prompts/list", #{})) || Id <- lists:seq(1, Each)],
    Bytes = iolist_to_binary(Messages),
    Began = erlmcp_chaos_context:inject(Context),
    ok = erlmcp_chaos_context:harm(Context, flood, ok, fun() ->
        flooded(1, Seconds, Began, Connections, {Bytes, Each}, Context)
    end),
    Healed = erlmcp_chaos_context:heal(Context),
    ok = erlmcp_chaos_context:fact(Context, flood_duration_s, (Healed - Began) / 1_000_000),
    [ok = erlmcp_chaos_client:close(Connection) || Connection <- Connections],
    #{answered := Answered, refused := Refused} = erlmcp_chaos_context:counts(Context, fault),
    Replies = Answered + lists:sum(maps:values(Refused)),
    Seen = fun(Figure, Value, Least) ->
        erlmcp_chaos_context:seen(Context, flood, Figure, Value, {at_least, Least})
    end,
    maybe
        ok ?= Seen(replies_count, Replies, Seconds * ?RATE * ?TIMES),
        ok ?= refused(Answered, Healed - Began),
        %% A busy machine may need longer than a second for the messages of a second.
        ok ?= Seen(replies_per_s, Replies * 1_000_000 / (Healed - Began), ?RATE * ?TIMES div 2),
        ok = erlmcp_chaos_context:await_recovered(Context),
        ok
    end.

refused(Answered, Us) ->
    case ceil(?RATE * (Us / 1_000_000 + ?MORE_SECONDS)) of
        Most when Answered > Most -> {error, {answered_over_the_rate, Answered, Most}};
        _ -> ok
    end.

connected(Target) ->
    {ok, Connection} = erlmcp_chaos_client:connect(tcp, Target),
    Connection.

flooded(Second, Seconds, _, _, _, _) when Second > Seconds ->
    ok;
flooded(Second, Seconds, Began, Connections, Flood, Context) ->
    Floods = [spawn_monitor(fun() -> flood(Connection, Flood, Context) end)
              || Connection <- Connections],
    [receive {'DOWN', Monitor, process, Pid, Reason} -> normal = Reason end
     || {Pid, Monitor} <- Floods],
    Next = Began + Second * 1_000_000,
    receive after max(0, (Next - erlmcp_chaos_context:now_us()) div 1000) -> ok end,
    flooded(Second + 1, Seconds, Began, Connections, Flood, Context).

%% Sends all messages at once, and then reads as many replies, until one fails.
flood(Connection, {Bytes, Count}, Context) ->
    SentUs = erlmcp_chaos_context:now_us(),
    ok = erlmcp_chaos_client:send(Connection, Bytes),
    replies(Count, Connection, SentUs, Context).

replies(0, _, _, _) ->
    ok;
replies(More, Connection, SentUs, Context) ->
    case erlmcp_chaos_client:reply(Connection, ?WAIT_MS) of
        {ok, Reply} ->
            Outcome = erlmcp_chaos_client:outcome(Reply),
            ok = erlmcp_chaos_context:outcome(Context, fault, Outcome, SentUs),
            replies(More - 1, Connection, SentUs, Context);
        {error, Reason} ->
            [ok = erlmcp_chaos_context:outcome(Context, fault, {failed, Reason}, SentUs)
             || _ <- lists:seq(1, More)],
            ok
    end.
