-module(erlmcp_sweeper).
-moduledoc """
A process of a server that takes away, every so many milliseconds, what is over and could not, or
did not, go by itself: sessions, tasks. It sleeps meanwhile.
""".

-behaviour(gen_server).

-export([start_link/3]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-doc "Starts it: so many milliseconds between two sweeps, and what sweeps an instance.".
-spec start_link(Milliseconds :: pos_integer(), Sweep, erlmcp_instance:instance()) ->
    gen_server:start_ret()
    when Sweep :: fun((erlmcp_instance:instance()) -> ok).
start_link(Milliseconds, Sweep, Instance) ->
    gen_server:start_link(?MODULE, {Milliseconds, Sweep, Instance}, [{hibernate_after, 0}]).

-doc false.
init({Milliseconds, Sweep, Instance}) ->
    {ok, _} = timer:send_interval(Milliseconds, sweep),
    {ok, {Sweep, Instance}}.

-doc false.
handle_call(_, _, State) ->
    {noreply, State}.

-doc false.
handle_cast(_, State) ->
    {noreply, State}.

-doc false.
handle_info(sweep, {Sweep, Instance} = State) ->
    ok = Sweep(Instance),
    {noreply, State}.
