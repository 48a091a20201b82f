-module(erlmcp_subscription_sweeper).
-moduledoc """
Keeps a server's table of subscriptions: once a minute it removes the rows of subscribers that were
killed, and it is the process of a server that ends first, and tells the open subscriptions so while
their connections are still there. A stream that ends with its result was closed; one that does not
was lost.

Source: specification 2026-07-28, "Subscriptions / Graceful Closure".
""".

-behaviour(gen_server).

-export([start_link/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

%% Milliseconds between two sweeps.
-define(SWEEP, 60_000).

-doc "Starts it, after the listeners: it ends before them.".
-spec start_link(erlmcp_instance:instance()) -> gen_server:start_ret().
start_link(Instance) ->
    gen_server:start_link(?MODULE, Instance, [{hibernate_after, 0}]).

-doc false.
init(Instance) ->
    process_flag(trap_exit, true),
    {ok, _} = timer:send_interval(?SWEEP, sweep),
    {ok, Instance}.

-doc false.
handle_call(_, _, Instance) ->
    {noreply, Instance}.

-doc false.
handle_cast(_, Instance) ->
    {noreply, Instance}.

-doc false.
handle_info(sweep, Instance) ->
    ok = erlmcp_subscriptions:sweep(erlmcp_instance:subscriptions(Instance)),
    {noreply, Instance}.

-doc false.
terminate(_, Instance) ->
    erlmcp_subscriptions:close(erlmcp_instance:subscriptions(Instance)).
