-module(erlmcp_task_sup).
-moduledoc "Supervises the keepers of one server's tasks. A task whose keeper dies has failed.".

-behaviour(supervisor).

-export([start_link/1, is_there/1, count/1]).
-export([init/1]).

-doc "Starts the supervisor of an instance's tasks.".
-spec start_link(erlmcp_instance:instance()) -> supervisor:startlink_ret().
start_link(Instance) ->
    supervisor:start_link(?MODULE, Instance).

-doc "Whether the supervisor of an instance's tasks, once it was started, is there.".
-spec is_there(erlmcp_instance:of_calls()) -> boolean().
is_there(Instance) ->
    case erlmcp_instance:supervisor(tasks, Instance) of
        undefined -> false;
        Pid -> is_process_alive(Pid)
    end.

-doc "How many tasks of an instance run.".
-spec count(erlmcp_instance:of_calls()) -> non_neg_integer().
count(Instance) ->
    case erlmcp_instance:supervisor(tasks, Instance) of
        undefined -> 0;
        Pid -> proplists:get_value(active, supervisor:count_children(Pid))
    end.

-doc false.
init(Instance) ->
    ok = erlmcp_instance:put_supervisor(tasks, self(), Instance),
    {ok, {#{strategy => simple_one_for_one},
          [#{id => keeper, start => {erlmcp_task_process, start_link, [Instance]},
             restart => temporary, shutdown => 1000}]}}.
