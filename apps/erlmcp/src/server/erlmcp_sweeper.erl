-module(erlmcp_sweeper).
-moduledoc """
A process of a server that removes what has expired, such as sessions or tasks, at an interval. It
may also have work to do when the server ends.

Internal.
""".

-behaviour(gen_server).

-export([start_link/4]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

-type work() :: fun((erlmcp_instance:instance()) -> ok).

-doc """
Starts a sweeper, with `Name` in its label. The sweeper calls `Sweep` with the instance every
`Milliseconds`, and `Last` with the instance when the server ends.
""".
-spec start_link(Name :: atom(), Milliseconds :: pos_integer(), {Sweep :: work(), Last :: work()},
                 erlmcp_instance:instance()) -> gen_server:start_ret().
start_link(Name, Milliseconds, Work, Instance) ->
    gen_server:start_link(?MODULE, {Name, Milliseconds, Work, Instance}, [{hibernate_after, 0}]).

-doc false.
init({Name, Milliseconds, Work, #{key := Key} = Instance}) ->
    process_flag(trap_exit, true),
    ok = erlmcp_label:set([?MODULE, Name], Key),
    {ok, _} = timer:send_interval(Milliseconds, sweep),
    {ok, {Work, Instance}}.

-doc false.
handle_call(_, _, State) ->
    {noreply, State}.

-doc false.
handle_cast(_, State) ->
    {noreply, State}.

-doc false.
handle_info(sweep, {{Sweep, _}, Instance} = State) ->
    ok = Sweep(Instance),
    {noreply, State};
handle_info(_, State) ->
    {noreply, State}.

-doc false.
terminate(shutdown, {{_, Last}, Instance}) ->
    Last(Instance);
%% It has crashed, and is started again.
terminate(_, _) ->
    ok.
