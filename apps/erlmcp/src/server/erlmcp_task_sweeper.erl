-module(erlmcp_task_sweeper).
-moduledoc """
Has a server's store of tasks forget, every few seconds, what has expired, and ends the tasks whose
keepers were killed.
""".

-behaviour(gen_server).

-export([start_link/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

%% Milliseconds between two sweeps. An expired task is not found before it is swept either.
-define(SWEEP, 10_000).

-doc "Starts it.".
-spec start_link(erlmcp_instance:instance()) -> gen_server:start_ret().
start_link(Instance) ->
    gen_server:start_link(?MODULE, Instance, [{hibernate_after, 0}]).

-doc false.
init(Instance) ->
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
    ok = erlmcp_tasks:sweep(Instance),
    ok = erlmcp_task_store:sweep(erlang:system_time(millisecond),
                                 erlmcp_instance:task_store(Instance)),
    {noreply, Instance}.
