-module(erlmcp_client_table).
-moduledoc """
The process that has the table of the node's clients and pools (`m:erlmcp_peer` says what is in it),
and forgets those that ended without a word.
""".

-behaviour(gen_server).

-export([start_link/0, join/0, leave/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-doc "Starts it, with its table.".
-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

-doc """
Says that the calling process writes itself into the table: what it has there goes when it ends. It
is to end when the monitor that is returned says that the table has.
""".
-spec join() -> {ok, reference()} | {error, {not_started, erlmcp}}.
join() ->
    Monitor = monitor(process, ?MODULE),
    try
        ok = gen_server:call(?MODULE, join, infinity),
        {ok, Monitor}
    catch
        exit:_ ->
            true = demonitor(Monitor, [flush]),
            {error, {not_started, erlmcp}}
    end.

-doc "A client or pool has ended; of no matter if the table has.".
-spec leave(pid()) -> ok.
leave(Pid) ->
    try
        true = ets:delete(erlmcp_peer, Pid),
        ok
    catch
        error:badarg -> ok
    end.

-doc false.
init([]) ->
    ok = erlmcp_peer:create_table(),
    {ok, none}.

-doc false.
handle_call(join, {Pid, _}, State) ->
    _ = monitor(process, Pid),
    {reply, ok, State}.

-doc false.
handle_cast(_, State) ->
    {noreply, State}.

-doc false.
handle_info({'DOWN', _, process, Pid, _}, State) ->
    ok = leave(Pid),
    {noreply, State};
handle_info(_, State) ->
    {noreply, State}.
