-module(erlmcp_task_sup).
-moduledoc """
Supervises the processes of a server's tasks. A task whose process dies has failed.

Internal.
""".

-behaviour(supervisor).

-export([start_link/1, is_there/1, count/1]).
-export([init/1]).

-doc "Starts the supervisor of an instance's tasks.".
-spec start_link(erlmcp_instance:instance()) -> supervisor:startlink_ret().
start_link(Instance) ->
    supervisor:start_link(?MODULE, Instance).

-doc "Returns `true` if the supervisor of an instance's tasks is there, once it was started.".
-spec is_there(erlmcp_instance:of_calls()) -> boolean().
is_there(Instance) ->
    case erlmcp_instance:supervisor(tasks, Instance) of
        undefined -> false;
        Pid -> is_process_alive(Pid)
    end.

-doc "Returns how many tasks of an instance run.".
-spec count(erlmcp_instance:of_calls()) -> non_neg_integer().
count(Instance) ->
    case erlmcp_instance:supervisor(tasks, Instance) of
        undefined -> 0;
        Pid -> proplists:get_value(active, supervisor:count_children(Pid))
    end.

-doc false.
init(#{key := Key} = Instance) ->
    ok = erlmcp_label:set([?MODULE], Key),
    ok = erlmcp_instance:put_supervisor(tasks, self(), Instance),
    {ok, {#{strategy => simple_one_for_one},
          [#{id => task,
             start => {erlmcp_task_process, start_link, [erlmcp_instance:of_calls(Instance)]},
             restart => temporary, shutdown => 1000}]}}.
