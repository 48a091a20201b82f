-module(erlmcp_drain).
-moduledoc """
Takes a server out of service. At first the server may be lame for a time: it still serves, and is
not ready, so that load balancers send clients elsewhere. Then its listeners accept no more
connections, and new requests are refused with error 1077. Running calls and tasks have some time to
end, and calls that still run then are ended. At last the sessions end, unless they go on at other
nodes of a cluster.

Internal.
""".

-export([drain/3]).

-export_type([options/0, drained/0]).

%% Milliseconds between two looks at the running calls and tasks.
-define(LOOK, 10).
%% Milliseconds until a call that was sent an exit signal is killed, and milliseconds to wait for
%% the last answers of killed calls, and for the ends of sessions.
-define(GRACE, 500).
-define(LAST_ANSWERS, 500).
-define(SESSIONS, 1000).
%% Milliseconds between two looks for new connections.
-define(CONNECTIONS, 100).

-doc "The options of a drain, with their defaults filled in (`t:erlmcp:drain_options/0`).".
-type options() :: #{timeout_ms := non_neg_integer(), lame_ms := non_neg_integer()}.
-doc "The number of calls that were ended before they had answered, and of tasks that still run.".
-type drained() :: #{calls := non_neg_integer(), tasks := non_neg_integer()}.

-doc """
Makes a server lame for `lame_ms`, and then drains it, in the calling process. `Listeners` are the
listeners that accept no more connections. After `timeout_ms`, calls that still run are ended, and
tasks go on. After that, the last answers and the ends of the sessions take up to two seconds.
Crashes if the server is stopped meanwhile.
""".
-spec drain(erlmcp_instance:instance(), Listeners, options()) -> drained() when
    Listeners :: [{http | tcp, ranch:ref()}].
drain(#{gate := Gate, key := Key} = Instance, Listeners,
      #{timeout_ms := Milliseconds, lame_ms := Lame}) ->
    ok = be_lame(Lame, Listeners, Instance),
    ok = leave_cluster(Instance),
    ok = erlmcp_event_handler:emit(Key, draining, #{milliseconds => Milliseconds}),
    ok = erlmcp_log:report(notice, #{what => server_drains, milliseconds => Milliseconds}, Key),
    ok = erlmcp_gate:drain(Gate),
    ok = suspend(Listeners),
    ok = erlmcp_subscriptions:close(erlmcp_instance:subscriptions(Instance)),
    Answerable = Lame =:= 0 andalso map_get(cluster, Instance) =:= none,
    _ = await(fun() -> is_idle(Answerable, Instance) end, Milliseconds),
    Ended = end_calls(Gate),
    ok = erlmcp_session_table:delete_unattended(Instance),
    ok = lists:foreach(fun erlmcp_session:close/1, erlmcp_session_table:pids(Instance)),
    _ = await(fun() -> erlmcp_session_table:pids(Instance) =:= [] end, ?SESSIONS),
    Left = #{calls => map_size(Ended), tasks => erlmcp_on_demand_sup:count(tasks, Instance)},
    ok = erlmcp_event_handler:emit(Key, drained, Left),
    ok = erlmcp_log:report(notice, Left#{what => server_drained}, Key),
    Left.

be_lame(0, _, #{gate := Gate}) ->
    erlmcp_gate:lame(Gate);
be_lame(Milliseconds, Listeners, #{gate := Gate, key := Key}) ->
    ok = erlmcp_event_handler:emit(Key, lame, #{milliseconds => Milliseconds}),
    ok = erlmcp_log:report(notice, #{what => server_is_lame, milliseconds => Milliseconds}, Key),
    ok = erlmcp_gate:lame(Gate),
    Http = [Listener || {http, Listener} <- Listeners],
    ok = last_responses(Http, #{}, erlmcp_clock:now_ms() + Milliseconds),
    ok = suspend(Listeners),
    ok = erlmcp_httpd_connection:end_all(connections(Http)),
    %% Requests that are on their way are served.
    receive
    after 2 * erlmcp_httpd:last_requests_ms() -> ok
    end.

leave_cluster(#{cluster := none}) ->
    ok;
leave_cluster(#{cluster := {Module, State}}) ->
    ok = Module:leaving(State),
    %% Requests that have found their session here enter.
    receive
    after ?LOOK -> ok
    end.

%% Each connection is told once.
last_responses(Listeners, Known, End) ->
    Connections = connections(Listeners),
    ok = lists:foreach(fun(Pid) ->
        is_map_key(Pid, Known) orelse erlmcp_httpd_connection:last_response(Pid)
    end, Connections),
    case End - erlmcp_clock:now_ms() of
        Rest when Rest > 0 ->
            receive
            after min(Rest, ?CONNECTIONS) ->
                last_responses(Listeners, #{Pid => known || Pid <- Connections}, End)
            end;
        _ ->
            ok
    end.

connections(Listeners) ->
    lists:append([ranch:procs(Listener, connections) || Listener <- Listeners]).

suspend(Listeners) ->
    lists:foreach(fun({_, Listener}) -> ok = ranch:suspend_listener(Listener) end, Listeners).

%% The counts are read in the order in which a request moves: it waits, runs, and may become a task.
%% A request that was passed on runs at another node, and its client waits here.
%% The count of tasks fails if the server has ended, since their supervisor has ended then. Calls
%% that wait for their clients count if these can still answer: after a time of lameness the
%% listeners take no more requests, and in a cluster the answer goes to the session's next home.
is_idle(Answerable, #{gate := Gate} = Instance) ->
    Waiting = erlmcp_gate:held(Gate, waiting),
    NoneRuns = case Answerable of
        true -> no_call_runs(Gate);
        false -> erlmcp_gate:held(Gate, in_flight) =:= 0
    end,
    PassedOn = erlmcp_gate:held(Gate, {forwarded, requests})
        + erlmcp_gate:held(Gate, {forwarded, answers}),
    true = erlmcp_on_demand_sup:is_there(tasks, Instance),
    {Waiting, NoneRuns, PassedOn} =:= {0, true, 0}
        andalso erlmcp_on_demand_sup:count(tasks, Instance) =:= 0
        %% A call that begins or ends to wait for its client between two counts is in none of them.
        andalso calls(Answerable, Gate) =:= []
        andalso erlmcp_on_demand_sup:count(tasks, Instance) =:= 0.

calls(true, Gate) -> erlmcp_gate:calls(Gate);
calls(false, Gate) -> erlmcp_gate:oldest_calls(Gate, infinity).

%% Returns `true` if no call runs, and none waits for its client.
no_call_runs(Gate) ->
    erlmcp_gate:held(Gate, in_flight) + erlmcp_gate:held(Gate, asking) =:= 0.

%% Ends the calls that still run, and returns their processes. The owner of a call gets its exit
%% signal, and answers its client. A handler that traps exits goes on after the signal, so its owner
%% is asked to kill it, and to answer. An owner that waits for its client to read answers later, but
%% the call ends here.
end_calls(Gate) ->
    Signalled = marked(Gate),
    ok = maps:foreach(fun(Call, _) -> exit(Call, {shutdown, draining}) end, Signalled),
    _ = await(fun() -> no_call_runs(Gate) end, ?GRACE),
    Asked = marked(Gate),
    ok = maps:foreach(fun(Call, Owner) ->
        erlmcp_call_messages:end_call(drain, Call, Owner)
    end, Asked),
    _ = await(fun() -> no_call_runs(Gate) end, ?LAST_ANSWERS),
    ok = maps:foreach(fun(Call, _) -> exit(Call, kill) end, maps:intersect(marked(Gate), Asked)),
    maps:merge(Signalled, Asked).

%% Returns the calls that hold a permit, with their owners. A process without a mark is a connection
%% that runs a quick call itself, or is about to start a call, or a call that has just started.
marked(Gate) ->
    #{Call => Owner || Call <- erlmcp_gate:calls(Gate),
                       {_, _, _, _, Owner} <- [erlmcp_call:mark(Call)]}.

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
