-module(erlmcp_chaos_network_partition).
-moduledoc """
A fault: the server and its callers are in two network namespaces. The link between them goes down
and comes back. Packets sent meanwhile are silently lost.

A caller notices the loss when its request times out, so the load uses a short timeout.

The evidence: a process in the server's namespace counts datagrams. All of them arrive before the
fault, and none while the link is down.
""".

-behaviour(erlmcp_chaos_scenario).

-export([id/0, title/0, needs/0, bounds/0, harms/0, setup/1, run/1, teardown/1]).

%% Milliseconds that a request may take, and that the link is down.
-define(TIMEOUT_MS, 120).
-define(DOWN_MS, 4_000).
-define(SHORT_DOWN_MS, 700).
%% Datagrams that are sent before the fault, and that are sent while the link is down.
-define(DATAGRAMS, 20).

-doc false.
id() -> ~"chaos_network_partition".

-doc false.
title() -> ~"the link between two network namespaces goes down and comes back".

-doc false.
needs() -> [root, {program, "ip"}].

-doc false.
bounds() -> #{code => none, detect_ms => 200, recover_ms => 1_000, load => unreachable}.

-doc false.
harms() -> [link].

-doc false.
setup(_) ->
    case erlmcp_chaos_namespaces:start() of
        {ok, Link} ->
            {ok, #{private => Link, load => #{timeout_ms => ?TIMEOUT_MS},
                   target => #{prefix => erlmcp_chaos_namespaces:prefix(Link),
                               host => erlmcp_chaos_namespaces:host(Link)}}};
        {error, Reason} ->
            {not_run, erlmcp_chaos_program:reason(Reason)}
    end.

-doc false.
run(Context) ->
    Link = erlmcp_chaos_context:private(Context),
    Host = erlmcp_chaos_namespaces:host(Link),
    {ok, Port} = erlmcp_chaos_context:call(Context, erlmcp_chaos_datagrams, open, [Host]),
    {ok, Socket} = gen_udp:open(0, [binary]),
    ok = send(?DATAGRAMS, 0, Socket, {Host, Port}),
    _ = erlmcp_chaos_context:until(fun() -> arrived(Context) =:= ?DATAGRAMS end),
    Before = arrived(Context),
    Seen = fun(Figure, Count) ->
        erlmcp_chaos_context:seen(Context, link, Figure, Count, {at_least, ?DATAGRAMS})
    end,
    maybe
        ok ?= Seen(earlier_arrived_datagrams_count, Before),
        _ = erlmcp_chaos_context:inject(Context),
        ok ?= erlmcp_chaos_context:harm(Context, link, ok, fun() ->
            erlmcp_chaos_namespaces:down(Link)
        end),
        %% The sending takes the time for which the link is down.
        ok = send(?DATAGRAMS, down_ms(Context) div ?DATAGRAMS, Socket, {Host, Port}),
        ok ?= Seen(lost_datagrams_count, ?DATAGRAMS + Before - arrived(Context)),
        _ = erlmcp_chaos_context:await_detected(Context),
        ok ?= erlmcp_chaos_namespaces:up(Link),
        _ = erlmcp_chaos_context:heal(Context),
        _ = erlmcp_chaos_context:await_recovered(Context),
        ok
    end.

arrived(Context) ->
    erlmcp_chaos_context:call(Context, erlmcp_chaos_datagrams, arrived, []).

%% A network that is down may also refuse to send.
send(0, _, _, _) ->
    ok;
send(More, PauseMs, Socket, To) ->
    _ = gen_udp:send(Socket, To, ~"a datagram"),
    receive after PauseMs -> send(More - 1, PauseMs, Socket, To) end.

down_ms(Context) ->
    case erlmcp_chaos_context:is_short(Context) of
        true -> ?SHORT_DOWN_MS;
        false -> ?DOWN_MS
    end.

-doc false.
teardown(Link) ->
    ok = erlmcp_chaos_namespaces:stop(Link).
