-module(erlmcp_task_sup).
-moduledoc "Supervises the keepers of one server's tasks. A task whose keeper dies has failed.".

-behaviour(supervisor).

-export([start_link/1]).
-export([init/1]).

-doc "Starts the supervisor of an instance's tasks.".
-spec start_link(erlmcp_instance:instance()) -> supervisor:startlink_ret().
start_link(Instance) ->
    supervisor:start_link(?MODULE, Instance).

-doc false.
init(Instance) ->
    ok = erlmcp_instance:put_supervisor(tasks, self(), Instance),
    {ok, {#{strategy => simple_one_for_one},
          [#{id => keeper, start => {erlmcp_task_keeper, start_link, [Instance]},
             restart => temporary, shutdown => 1000}]}}.
