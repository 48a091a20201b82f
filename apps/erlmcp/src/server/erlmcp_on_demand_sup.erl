-module(erlmcp_on_demand_sup).
-moduledoc """
Supervises processes of one kind that a server starts when it needs them: those of HTTP sessions, of
HTTP+SSE sessions, or of tasks. A process that dies is not started again.

Internal.
""".

-behaviour(supervisor).

-export([start_link/3, start_child/3, is_there/2, count/2]).
-export([init/1]).

-export_type([kind/0]).

-type kind() :: sessions | sse_sessions | tasks.

-doc """
Starts the supervisor of the processes of `Kind`. The supervisor stores its pid in the instance.
`Module:start_link` starts these processes, with the instance and the arguments of `start_child/3`.
""".
-spec start_link(kind(), Module :: module(), erlmcp_instance:instance()) ->
    supervisor:startlink_ret().
start_link(Kind, Module, Instance) ->
    supervisor:start_link(?MODULE, {Kind, Module, Instance}).

-doc """
Starts a process of `Kind`. The instance and `Arguments` are the arguments of its `start_link`.
Exits if the supervisor of `Kind` does not run, and raises `badarg` if the server has ended.
""".
-spec start_child(kind(), [term()], erlmcp_instance:instance()) -> supervisor:startchild_ret().
start_child(Kind, Arguments, Instance) ->
    supervisor:start_child(erlmcp_instance:supervisor(Kind, Instance), Arguments).

-doc "Returns `true` if the supervisor of a kind runs. Raises `badarg` if the server has ended.".
-spec is_there(kind(), erlmcp_instance:instance()) -> boolean().
is_there(Kind, Instance) ->
    case erlmcp_instance:supervisor(Kind, Instance) of
        undefined -> false;
        Pid -> is_process_alive(Pid)
    end.

-doc """
Returns how many processes of a kind run; 0 before their supervisor has started. Exits if the
supervisor has ended, and raises `badarg` if the server has ended.
""".
-spec count(kind(), erlmcp_instance:instance()) -> non_neg_integer().
count(Kind, Instance) ->
    case erlmcp_instance:supervisor(Kind, Instance) of
        undefined -> 0;
        Pid -> proplists:get_value(active, supervisor:count_children(Pid))
    end.

-doc false.
init({Kind, Module, #{key := Key} = Instance}) ->
    ok = erlmcp_label:set([?MODULE, Kind], Key),
    ok = erlmcp_instance:put_supervisor(Kind, self(), Instance),
    {ok, {#{strategy => simple_one_for_one},
          [#{id => Kind, start => {Module, start_link, [Instance]}, restart => temporary,
             shutdown => 1000}]}}.
