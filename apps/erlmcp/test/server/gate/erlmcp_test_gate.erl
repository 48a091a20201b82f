-module(erlmcp_test_gate).
-moduledoc "Requests that enter a gate in its suites, and the processes of a gate.".

-export([request/1, queued/1, entered/1, refused/1, visit/3]).
-export([processes/1, looks/2, looks_for_all/2, queued_in/2, stop/1, await_end/1]).
-export([wait/2, wait/3, waiting/3, until/1, answer/0, answers/0, together/1]).

-doc "Returns a request of a tenant.".
-spec request(Tenant :: term()) -> map().
request(Tenant) ->
    #{tenant => Tenant, kind => request, bytes => 100}.

-doc "Makes a gate with one request in flight, and a queue before it.".
-spec queued(erlmcp_gate:limits()) -> erlmcp_gate:gate().
queued(Limits) ->
    erlmcp_gate:new(maps:merge(#{in_flight => 1, queue => 100, queue_ms => 50_000}, Limits)).

-doc "Returns the permit of a message that has entered.".
-spec entered({ok, Permit} | {refuse, term()}) -> Permit.
entered({ok, Permit}) -> Permit.

-doc "Returns the name of a refusal.".
-spec refused({refuse, erlmcp_refusal:refusal()} | {ok, term()}) -> atom().
refused({refuse, Refusal}) -> erlmcp_refusal:name(Refusal).

-doc """
Enters the gate, and leaves it. Returns how many requests were inside meanwhile, and how many of
them were of the tenant. Both are zero if the request was refused.
""".
-spec visit(erlmcp_gate:gate(), Tenant :: pos_integer(), atomics:atomics_ref()) ->
    {non_neg_integer(), non_neg_integer()}.
visit(Gate, Tenant, Inside) ->
    case erlmcp_gate:enter(Gate, request(Tenant)) of
        {ok, Permit} ->
            All = atomics:add_get(Inside, 3, 1),
            One = atomics:add_get(Inside, Tenant, 1),
            _ = erlang:yield(),
            ok = atomics:sub(Inside, Tenant, 1),
            ok = atomics:sub(Inside, 3, 1),
            ok = erlmcp_gate:leave(Permit),
            {All, One};
        {refuse, Refusal} ->
            concurrent_limit_exceeded = erlmcp_refusal:name(Refusal),
            {0, 0}
    end.

-doc "Starts the process of the gate's permits and its queue.".
-spec processes(erlmcp_gate:gate()) -> {Permits :: pid(), Queue :: pid()}.
processes(Gate) ->
    {ok, Permits} = erlmcp_gate_permits:start_link(Gate),
    {ok, Queue} = erlmcp_gate_queue:start_link(Gate),
    {Permits, Queue}.

-doc "Lets the process of the permits look this many times, and waits for it.".
-spec looks(pid(), pos_integer()) -> ok.
looks(Permits, Count) ->
    _ = [Permits ! look || _ <- lists:seq(1, Count)],
    _ = sys:get_state(Permits),
    ok.

-doc """
Lets the processes of a gate find all that dead processes held. Nothing enters or leaves meanwhile:
the shares of a process that is about to leave could be taken for lost.
""".
-spec looks_for_all(Permits :: pid(), Queue :: pid()) -> ok.
looks_for_all(Permits, Queue) ->
    %% While the first look gives permits back, the queue may give their shares to dead processes.
    ok = looks(Permits, 2),
    _ = sys:get_state(Queue),
    %% What is lost after the first look at a generation is given back by the last of eight.
    looks(Permits, 8).

-doc "Returns how many requests the queue's process has when it has read its messages.".
-spec queued_in(pid(), erlmcp_gate:gate()) -> non_neg_integer().
queued_in(Queue, #{counters := Counters}) ->
    _ = sys:get_state(Queue),
    erlmcp_gate_counters:queued(Counters).

-doc "Ends these processes, and waits for that.".
-spec stop([pid()]) -> ok.
stop(Pids) ->
    lists:foreach(fun(Pid) -> unlink(Pid), exit(Pid, kill), await_end(Pid) end, Pids).

-doc "Waits for the end of a process.".
-spec await_end(pid()) -> ok.
await_end(Pid) ->
    Reference = monitor(process, Pid),
    receive {'DOWN', Reference, _, _, _} -> ok end.

-doc """
Starts a process that waits for its turn, sends the outcome to the calling process, and leaves on
the message `leave`.
""".
-spec wait(erlmcp_gate:gate(), Tenant :: term()) -> pid().
wait(Gate, Tenant) ->
    wait(Gate, Tenant, 50_000).

-doc "Starts a process as `wait/2` does, which waits for its turn for up to `Milliseconds`.".
-spec wait(erlmcp_gate:gate(), Tenant :: term(), Milliseconds :: non_neg_integer()) -> pid().
wait(Gate, Tenant, Milliseconds) ->
    Self = self(),
    spawn_link(fun() ->
        Permit = entered(erlmcp_gate:enter(Gate, request(Tenant))),
        Self ! {self(), Tenant, erlmcp_gate:await(Permit, Milliseconds)},
        receive leave -> erlmcp_gate:leave(Permit) end
    end).

-doc "Waits until the queue's process has `Count` requests.".
-spec waiting(erlmcp_gate:gate(), Queue :: pid(), non_neg_integer()) -> ok.
waiting(Gate, Queue, Count) ->
    until(fun() ->
        erlmcp_gate:held(Gate, waiting) =:= Count andalso queued_in(Queue, Gate) =:= Count
    end).

-doc "Waits until a condition holds.".
-spec until(fun(() -> boolean())) -> ok.
until(Condition) ->
    case Condition() of
        true ->
            ok;
        false ->
            receive after 5 -> until(Condition) end
    end.

-doc "Awaits the outcome of a process that waits (`wait/2`).".
-spec answer() -> {pid(), Tenant :: term(), term()}.
answer() ->
    receive {Pid, _, _} = Answer when is_pid(Pid) -> Answer end.

-doc "Returns the outcomes that have come until now.".
-spec answers() -> [{pid(), Tenant :: term(), term()}].
answers() ->
    receive {Pid, _, _} = Answer when is_pid(Pid) -> [Answer | answers()] after 0 -> [] end.

-doc "Runs all of these at the same time, and returns their results.".
-spec together([fun(() -> Result)]) -> [Result].
together(Funs) ->
    Self = self(),
    Pids = [spawn_link(fun() -> receive go -> Self ! {self(), Fun()} end end) || Fun <- Funs],
    _ = [Pid ! go || Pid <- Pids],
    [receive {Pid, Result} -> Result end || Pid <- Pids].
