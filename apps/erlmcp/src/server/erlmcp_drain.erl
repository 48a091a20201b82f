-module(erlmcp_drain).
-moduledoc """
Takes a server out of service without losing requests that it has accepted. Its listeners accept no
more connections, and new requests are refused with 1077. Open subscriptions end with their result.
Running calls and tasks have some time to end. Calls that still run after that are ended, and their
clients get error 1077. At last the sessions end, with their streams.

Internal.
""".

-export([drain/3]).

%% Milliseconds between two looks at the running calls and tasks, and milliseconds to wait for the
%% last answers of ended calls.
-define(LOOK, 10).
-define(LAST_WORDS, 1000).

-export_type([drained/0]).

-doc "The number of calls that were ended before they had answered, and of tasks that still run.".
-type drained() :: #{calls := non_neg_integer(), tasks := non_neg_integer()}.

-doc """
Drains an instance with the listeners `Listeners`. Running calls and tasks have `Milliseconds` to
end. Calls that still run then are ended. Their last answers, and the ends of the sessions, take up
to two seconds more. Crashes if the server is stopped meanwhile.
""".
-spec drain(erlmcp_instance:instance(), [Listener :: ranch:ref()],
            Milliseconds :: non_neg_integer()) -> drained().
drain(#{gate := Gate, key := Key} = Instance, Listeners, Milliseconds) ->
    ok = erlmcp_event_handler:emit(Key, draining, #{milliseconds => Milliseconds}),
    ok = erlmcp_log:report(notice, #{what => server_drains, milliseconds => Milliseconds}, Key),
    ok = erlmcp_gate:drain(Gate),
    ok = lists:foreach(fun ranch:suspend_listener/1, Listeners),
    ok = erlmcp_subscriptions:close(erlmcp_instance:subscriptions(Instance)),
    Ended = case await(fun() -> is_idle(Instance) end, Milliseconds) of
        ok -> 0;
        timeout -> end_calls(erlmcp_gate:calls(Gate))
    end,
    _ = await(fun() -> erlmcp_gate:held(Gate, in_flight) =:= 0 end, ?LAST_WORDS),
    ok = erlmcp_session_table:delete_unattended(Instance),
    ok = lists:foreach(fun erlmcp_session:close/1, erlmcp_session_table:pids(Instance)),
    _ = await(fun() -> erlmcp_session_table:pids(Instance) =:= [] end, ?LAST_WORDS),
    Left = #{calls => Ended, tasks => erlmcp_on_demand_sup:count(tasks, Instance)},
    ok = erlmcp_event_handler:emit(Key, drained, Left),
    ok = erlmcp_log:report(notice, Left#{what => server_drained}, Key),
    Left.

%% The counts are read in the order in which a request moves: it waits, runs, and may become a task.
%% The count of tasks fails if the server has ended, since their supervisor has ended then.
is_idle(#{gate := Gate} = Instance) ->
    Waiting = erlmcp_gate:held(Gate, waiting),
    Running = erlmcp_gate:held(Gate, in_flight),
    true = erlmcp_on_demand_sup:is_there(tasks, Instance),
    {Waiting, Running} =:= {0, 0} andalso erlmcp_on_demand_sup:count(tasks, Instance) =:= 0.

%% The owner of a call gets its exit signal, and answers its client.
end_calls(Calls) ->
    ok = lists:foreach(fun(Call) -> exit(Call, {shutdown, draining}) end, Calls),
    length(Calls).

await(Holds, Milliseconds) ->
    until(Holds, erlmcp_clock:now_ms() + Milliseconds).

until(Holds, End) ->
    case Holds() of
        true ->
            ok;
        false ->
            case erlmcp_clock:now_ms() < End of
                true ->
                    receive
                    after ?LOOK -> until(Holds, End)
                    end;
                false ->
                    timeout
            end
    end.
