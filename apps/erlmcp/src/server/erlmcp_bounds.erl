-module(erlmcp_bounds).
-moduledoc """
Reads how much of some bounds of a server and of the node is used.

Internal.
""".

-export([of_server/1, of_node/0]).

-export_type([bound/0]).

-type bound() :: #{used := non_neg_integer(), limit := non_neg_integer() | infinity}.

-doc """
Returns the bounds of a running server. The `limit` of `in_flight` is the present one
(`erlmcp_gate:limit/1`), and the others are the server's limits. `tasks` counts all tasks in the
store, and is absent if the store does not count them, or cannot do so now.
""".
-spec of_server(erlmcp_instance:instance()) ->
    #{connections | in_flight | waiting | sessions | tasks => bound()}.
of_server(#{gate := Gate, limits := Limits} = Instance) ->
    #{connections := Connections, sessions := Sessions, queue := Queue} = Limits,
    (tasks(Instance))#{
      connections => #{used => erlmcp_gate:held(Gate, connections), limit => Connections},
      in_flight => #{used => erlmcp_gate:held(Gate, in_flight), limit => erlmcp_gate:limit(Gate)},
      waiting => #{used => erlmcp_gate:held(Gate, waiting), limit => Queue},
      sessions => #{used => erlmcp_session_table:count(Instance), limit => Sessions}}.

tasks(#{limits := #{tasks := Limit}} = Instance) ->
    case erlmcp_task_records:count(erlmcp_tasks:store(Instance)) of
        {ok, Count} -> #{tasks => #{used => Count, limit => Limit}};
        error -> #{}
    end.

-doc """
Returns the bounds of the node. `memory`, in bytes, is the memory nearest to its bound: the
machine's, a control group's or the node's own. The key is absent if `m:erlmcp_memory_guard` has
measured none.
""".
-spec of_node() -> #{memory | processes | ports | atoms => bound()}.
of_node() ->
    Tables = #{processes => table(process_count, process_limit),
               ports => table(port_count, port_limit),
               atoms => table(atom_count, atom_limit)},
    case erlmcp_overload_guard:figures(erlmcp_memory_guard) of
        #{observed := Used, limit := Limit} -> Tables#{memory => #{used => Used, limit => Limit}};
        #{} -> Tables
    end.

table(Count, Limit) ->
    #{used => erlang:system_info(Count), limit => erlang:system_info(Limit)}.
