-module(erlmcp_chaos_network_partition).
-moduledoc """
A fault: the server and its callers are in two network namespaces. The link between them goes down
and comes back. Messages sent meanwhile are silently lost.

The network does not report the loss. A caller notices it when its request times out, so the load
uses a short timeout.
""".

-behaviour(erlmcp_chaos_scenario).

-export([id/0, title/0, needs/0, bounds/0, setup/1, run/1, teardown/1]).

%% Milliseconds that a request may take, and that the link is down.
-define(TIMEOUT_MS, 120).
-define(DOWN_MS, 4_000).
-define(SHORT_DOWN_MS, 700).

-doc false.
id() -> ~"chaos_network_partition".

-doc false.
title() -> ~"the link between two network namespaces goes down and comes back".

-doc false.
needs() -> [root, {program, "ip"}].

-doc false.
bounds() -> #{code => none, detect_ms => 200, recover_ms => 1_000, load => unreachable}.

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
    maybe
        _ = erlmcp_chaos_context:inject(Context),
        ok ?= erlmcp_chaos_namespaces:down(Link),
        ok = down_for(down_ms(Context)),
        _ = erlmcp_chaos_context:await_detected(Context),
        ok ?= erlmcp_chaos_namespaces:up(Link),
        _ = erlmcp_chaos_context:heal(Context),
        _ = erlmcp_chaos_context:await_recovered(Context),
        ok
    end.

down_ms(Context) ->
    case erlmcp_chaos_context:is_short(Context) of
        true -> ?SHORT_DOWN_MS;
        false -> ?DOWN_MS
    end.

%% Waits while the link is down.
down_for(Milliseconds) ->
    receive after Milliseconds -> ok end.

-doc false.
teardown(Link) ->
    ok = erlmcp_chaos_namespaces:stop(Link).
