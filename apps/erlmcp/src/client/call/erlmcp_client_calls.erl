-module(erlmcp_client_calls).
-moduledoc """
The table of a client's running calls. A call that was started without waiting for it has a
receiver, which gets its outcome exactly once. Calls that were killed, or ended with their client,
are counted in `m:erlmcp_client_meter`.

Internal.
""".

-export([new/0, count/1, running/1, add/4, remove_own/1, report/2]).
-export([cancel/2, sweep/2, stop_all/2]).

-export_type([calls/0, receiver/0, about/0]).

-opaque calls() :: ets:table().
-type receiver() :: {pid(), reference()} | none.
-doc "The method of a call's first request, and the `name` in its parameters, if there is one.".
-type about() :: {Method :: binary(), #{binary() => term()}}.

-doc "Creates an empty table, owned by the calling process.".
-spec new() -> calls().
new() ->
    ets:new(calls, [public, {write_concurrency, true}]).

-doc """
Returns the number of running calls, and of killed ones that `sweep/2` has not removed yet. Returns
`undefined` if the client has ended.
""".
-spec count(calls()) -> non_neg_integer() | undefined.
count(Calls) ->
    ets:info(Calls, size).

-doc "Returns the number of running calls as `count/1` does, but 0 if the client has ended.".
-spec running(calls()) -> non_neg_integer().
running(Calls) ->
    case count(Calls) of
        undefined -> 0;
        Count -> Count
    end.

-doc "Adds the call of a process, or replaces its row. Returns `stopped` if the client has ended.".
-spec add(pid(), receiver(), about(), calls()) -> ok | stopped.
add(Pid, Receiver, About, Calls) ->
    try
        true = ets:insert(Calls, {Pid, Receiver, About}),
        ok
    catch
        error:badarg -> stopped
    end.

-doc """
Removes the call of the calling process. Returns `true` if the process has to report the outcome
itself, and `false` if another process does that.
""".
-spec remove_own(calls()) -> boolean().
remove_own(Calls) ->
    try
        ets:take(Calls, self()) =/= []
    catch
        %% The table has ended with its client. A client that was stopped in order has sent this
        %% process an exit signal before; this `receive` lets the signal arrive.
        error:badarg -> receive after 0 -> true end
    end.

-doc "Sends the outcome of a call to its receiver, if it has one.".
-spec report(receiver(), {ok, term()} | {error, erlmcp_client:reason()}) -> ok.
report(none, _) ->
    ok;
report({Pid, Reference}, Outcome) ->
    Pid ! {erlmcp, Reference, Outcome},
    ok.

-doc """
Asks the process of the call whose receiver has `Reference` to cancel its request and to end. Does
nothing if no such call runs.
""".
-spec cancel(reference(), calls()) -> ok.
cancel(Reference, Calls) ->
    try ets:match(Calls, {'$1', {'_', Reference}, '_'}) of
        Found -> lists:foreach(fun([Pid]) -> Pid ! {erlmcp_cancel, Reference} end, Found)
    catch
        error:badarg -> ok
    end.

-doc """
Removes and counts the calls whose processes were killed, and reports `{error, {too_large, heap}}`
to their receivers.
""".
-spec sweep(calls(), erlmcp_client_meter:kind()) -> ok.
sweep(Calls, Kind) ->
    lists:foreach(fun(Pid) -> end_call(Pid, {too_large, heap}, Calls, Kind) end,
                  [Pid || {Pid, _, _} <- ets:tab2list(Calls), not is_process_alive(Pid)]).

%% The process that removes the row counts the call.
end_call(Pid, Reason, Calls, Kind) ->
    case ets:take(Calls, Pid) of
        [{Pid, Receiver, About}] ->
            ok = erlmcp_client_meter:unsent(About, Kind, erlang:monotonic_time(nanosecond),
                                            Reason),
            report(Receiver, {error, Reason});
        [] ->
            ok
    end.

-doc """
Ends and counts all calls of a client that is being stopped, and reports `{error, stopped}` to their
receivers.
""".
-spec stop_all(calls(), erlmcp_client_meter:kind()) -> ok.
stop_all(Calls, Kind) ->
    lists:foreach(fun({Pid, _, _}) ->
                      exit(Pid, shutdown),
                      end_call(Pid, stopped, Calls, Kind)
                  end, ets:tab2list(Calls)).
