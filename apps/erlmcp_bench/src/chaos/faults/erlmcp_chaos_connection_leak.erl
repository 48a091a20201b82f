-module(erlmcp_chaos_connection_leak).
-moduledoc """
A fault: connections on TCP and HTTP are opened and not closed, one and a half times as many as the
server allows. The server serves as many as its limit allows. It refuses each of the others with
1060 and closes it. After all are closed, new connections are served again.

The evidence: the open connections that the server's node counts, and the refused ones.
""".

-behaviour(erlmcp_chaos_scenario).

-export([id/0, title/0, needs/0, bounds/0, harms/0, setup/1, run/1]).

-define(LIMIT, 100).
-define(SHORT_LIMIT, 60).
%% Connections of the load.
-define(OTHERS, 4).
-define(WAIT_MS, 20_000).

-doc false.
id() -> ~"chaos_connection_leak".

-doc false.
title() -> ~"the limit and half as many connections again, opened and never closed".

-doc false.
needs() -> [].

-doc false.
bounds() -> #{code => 1060, detect_ms => 200, recover_ms => 100, load => undisturbed}.

-doc false.
harms() -> [connections].

-doc false.
setup(Options) ->
    {ok, #{server => #{limits => #{connections => limit(Options)}},
           load => #{connections => ?OTHERS}}}.

limit(#{short := true}) -> ?SHORT_LIMIT;
limit(#{}) -> ?LIMIT.

-doc false.
run(#{target := Target, options := Options} = Context) ->
    Limit = limit(Options),
    Wanted = Limit + Limit div 2,
    _ = erlmcp_chaos_context:inject(Context),
    Opened = erlmcp_chaos_context:harm(Context, connections, [], fun() ->
        [open(Number, Target) || Number <- lists:seq(1, Wanted)]
    end),
    Sent = [send_echo(Number, Connection) || {Number, Connection} <- lists:enumerate(Opened)],
    Outcomes = [outcome(Connection, SentUs, Context) || {Connection, SentUs} <- Sent],
    Held = length([answered || answered <- Outcomes]),
    Refused = length([1060 || {refused, _, #{~"refusal" := 1060}} <- Outcomes]),
    Inside = length(erlmcp_chaos_context:call(Context, erlmcp_chaos_inside, pids, [connections])),
    Seen = fun(Figure, Count, Least) ->
        erlmcp_chaos_context:seen(Context, connections, Figure, Count, {at_least, Least})
    end,
    maybe
        ok ?= Seen(open_connections, Inside, Limit),
        ok ?= Seen(refused_connections, Refused, Limit div 2),
        ok = erlmcp_chaos_context:await_detected(Context),
        _ = erlmcp_chaos_context:heal(Context),
        [ok = erlmcp_chaos_client:close(Connection) || Connection <- Opened],
        ok = probe_until_served(tcp, Context),
        ok = probe_until_served(http, Context),
        ok = erlmcp_chaos_context:await_recovered(Context),
        case {Limit - ?OTHERS, Wanted - Held} of
            {Held, Refused} -> ok;
            {Room, _} -> {error, {room, Room, held, Held, refused, Refused, of_all, Wanted}}
        end
    end.

open(Number, Target) ->
    {ok, Connection} = erlmcp_chaos_client:connect(transport(Number), Target),
    Connection.

transport(Number) when Number rem 2 =:= 0 -> tcp;
transport(_) -> http.

%% A connection that was already refused may not take the request.
send_echo(Number, Connection) ->
    SentUs = erlmcp_chaos_context:now_us(),
    Message = erlmcp_chaos_client:call(1, ~"echo", #{text => ~"here"}),
    _ = erlmcp_chaos_client:send(Connection,
                                 erlmcp_chaos_client:bytes(transport(Number), Message)),
    {Connection, SentUs}.

outcome(Connection, SentUs, Context) ->
    Outcome = case erlmcp_chaos_client:reply(Connection, ?WAIT_MS) of
        {ok, Reply} -> erlmcp_chaos_client:outcome(Reply);
        {error, Reason} -> {failed, Reason}
    end,
    ok = erlmcp_chaos_context:outcome(Context, fault, Outcome, SentUs),
    Outcome.

%% Each attempt uses a new connection, until one is served.
probe_until_served(Transport, #{target := Target} = Context) ->
    erlmcp_chaos_context:until(fun() ->
        {ok, Connection} = erlmcp_chaos_client:connect(Transport, Target),
        Message = erlmcp_chaos_client:call(1, ~"echo", #{text => ~"again"}),
        Outcome = erlmcp_chaos_client:ask(Connection, Context, probe, Message, ?WAIT_MS),
        ok = erlmcp_chaos_client:close(Connection),
        Outcome =:= answered
    end).
