-module(erlmcp_pool_sup).
-moduledoc "The supervisor of a pool's clients, which restarts each one alone. Internal.".

-behaviour(supervisor).

-export([start_link/3, stop/1]).
-export([init/1, start_member/2]).

-doc """
Starts a pool, linked to the calling process. `Settings` has an element for each server. The pool
has as many clients of each server as the option `size` says.
""".
-spec start_link(none | {local, Name :: atom()},
                 Settings :: [erlmcp_client_options:settings(), ...], Options :: map()) ->
    supervisor:startlink_ret().
start_link(none, Settings, Options) ->
    supervisor:start_link(?MODULE, {Settings, Options});
start_link(Name, Settings, Options) ->
    supervisor:start_link(Name, ?MODULE, {Settings, Options}).

-doc """
Unlinks a pool from the calling process, stops the pool, and waits for its end. Does nothing if the
pool has ended already.
""".
-spec stop(pid() | atom()) -> ok.
stop(Pool) ->
    case erlmcp_client_table:find(Pool) of
        {ok, #{pool := Pid}} ->
            unlink(Pid),
            try
                proc_lib:stop(Pid, shutdown, infinity)
            catch
                %% The pool has ended by itself meanwhile.
                exit:_ -> ok
            end,
            erlmcp_client_table:leave(Pid);
        {error, stopped} ->
            ok
    end.

-doc false.
init({Settings, #{size := Size} = Options}) ->
    ok = erlmcp_label:set([erlmcp_pool, Size]),
    Members = [One || One <- Settings, _ <- lists:seq(1, Size)],
    Pool = erlmcp_pool_members:new(self(), Members, Options),
    %% The settings of members have secrets, so they are not in the child specification, which
    %% reports show.
    {ok, {#{strategy => one_for_one, intensity => 10, period => 10},
          [#{id => Index, start => {?MODULE, start_member, [Pool, Index]}, shutdown => 10_000}
           || Index <- lists:seq(1, length(Members))]}}.

-doc false.
-spec start_member(erlmcp_pool_members:pool(), pos_integer()) ->
    gen_statem:start_ret() | {error, term()}.
start_member(Pool, Index) ->
    maybe
        %% Each start of a member joins the pool again, since the table may have been restarted
        %% meanwhile.
        ok ?= erlmcp_client_table:join_pool(Pool),
        Settings = erlmcp_pool_members:settings(Index, Pool),
        {ok, Pid} ?= erlmcp_client_connection:start_link({none, Settings}),
        ok = erlmcp_pool_members:member_started(Index, Pid, Pool),
        {ok, Pid}
    end.
