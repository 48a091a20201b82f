-module(erlmcp_session_keeper).
-moduledoc """
Ends the HTTP sessions of a server that have no process and were not used for `session_idle_ms`.
None is found once its time is over; this takes their rows away, and others have their places.
""".

-behaviour(gen_server).

-export([start_link/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

%% Milliseconds between two sweeps, at least and at most; otherwise a part of the idle time.
-define(LEAST, 10).
-define(MOST, 30_000).
-define(PART, 4).

-doc "Starts it.".
-spec start_link(erlmcp_instance:instance()) -> gen_server:start_ret().
start_link(Instance) ->
    gen_server:start_link(?MODULE, Instance, [{hibernate_after, 0}]).

-doc false.
init(#{limits := #{session_idle_ms := Idle}} = Instance) ->
    {ok, _} = timer:send_interval(min(?MOST, max(?LEAST, Idle div ?PART)), sweep),
    {ok, Instance}.

-doc false.
handle_call(_, _, Instance) ->
    {noreply, Instance}.

-doc false.
handle_cast(_, Instance) ->
    {noreply, Instance}.

-doc false.
handle_info(sweep, #{limits := #{session_idle_ms := Idle}} = Instance) ->
    ok = erlmcp_instance:delete_unattended(Idle, Instance),
    {noreply, Instance}.
