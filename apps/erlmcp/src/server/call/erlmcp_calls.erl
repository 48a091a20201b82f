-module(erlmcp_calls).
-moduledoc """
The running calls of one connection, HTTP session or batch, as a value that its process keeps. The
calls are linked to that process, which traps exits.

When a call ends, its open requests to the client are withdrawn. The caller notifies the client of
each (`withdrawal/1`) before it sends the answer of the call.

Source: specification 2025-11-25, "Lifecycle / Timeouts" and "Cancellation".

Internal.
""".

-export([new/1, count/1, running/1, has_room/1, ids/2, find/2, check_id/2, id_in_use/0]).
-export([start/2, room_for/2, instance/1, adopt/3]).
-export([message/3, response/3, exited/3, answered/2, abandon/2, cancel/2, end_of_input/1,
         end_session/1, stop/1, leave/1]).
-export([withdrawal/1]).

-export_type([calls/0, entry/0, permit/0, withdrawn/0]).

-doc "A call or a batch: the ids of the requests that it answers, its subject, and its permit.".
-type entry() :: {call | batch, [erlmcp_message:id()], erlmcp_call:subject(), permit()}.
%% The permit of a call at the server's gate. Its owner gives it back if the call is killed.
-type permit() :: {permit, erlmcp_gate:permit()} | none.
-doc "Unanswered requests to the client, whose answers are not needed any more.".
-type withdrawn() :: [erlmcp_call_messages:client_request()].
-opaque calls() :: #{
    instance := erlmcp_instance:instance(),
    running := #{pid() => entry()},
    %% requests to the client, and the calls that wait for their answers
    asked := #{erlmcp_message:id() =>
                   {Asking :: pid(), Running :: pid(), erlmcp_task_store:id() | none}}
        | unanswerable,
    ids := #{erlmcp_message:id() => pid()}
}.

-doc "Returns the calls of a new connection, session or batch: none.".
-spec new(erlmcp_instance:instance()) -> calls().
new(Instance) ->
    #{instance => Instance, running => #{}, asked => #{}, ids => #{}}.

-doc "Returns how many calls and batches are running. A batch counts as one.".
-spec count(calls()) -> non_neg_integer().
count(#{running := Running}) ->
    map_size(Running).

-doc "Returns the running calls and batches, by their processes.".
-spec running(calls()) -> #{pid() => entry()}.
running(#{running := Running}) ->
    Running.

-doc """
Returns `true` if one more call may run under the limit `calls_per_connection`. Each request of a
batch counts as a call.
""".
-spec has_room(calls()) -> boolean().
has_room(#{ids := Ids, instance := #{limits := #{calls_per_connection := Max}}}) ->
    map_size(Ids) < Max.

-doc """
Returns the ids of the requests that the running call or batch `Call` answers, or `[]` if `Call` is
none of these calls.
""".
-spec ids(Call :: pid(), calls()) -> [erlmcp_message:id()].
ids(Call, #{running := Running}) ->
    case Running of
        #{Call := {_, Ids, _, _}} -> Ids;
        #{} -> []
    end.

-doc """
Returns the running call or batch that answers the request with the id `Id`, or `error` if there is
none.
""".
-spec find(Id :: erlmcp_message:id(), calls()) -> {ok, Call :: pid()} | error.
find(Id, #{ids := Ids}) ->
    maps:find(Id, Ids).

-doc "Returns `ok`, or a refusal if a call of a request with the id `Id` runs.".
-spec check_id(Id :: erlmcp_message:id(), calls()) -> ok | {refuse, erlmcp_refusal:refusal()}.
check_id(Id, #{ids := Ids}) when is_map_key(Id, Ids) -> {refuse, id_in_use()};
check_id(_, _) -> ok.

-doc """
Starts a call that is linked to the calling process, and returns `Calls` with the call added. If the
id of its request is in use, or `calls_per_connection` calls run, returns the answer that refuses
the call. The permit of a refused call is given back, and its request counts as ended.
""".
-spec start(erlmcp_engine:call(), calls()) ->
    {ok, calls()} | {reply, erlmcp_reply:status(), iodata()}.
start(#{id := Id} = Call, #{ids := Ids, instance := Instance} = Calls) ->
    #{limits := #{calls_per_connection := Max}} = Instance,
    if
        is_map_key(Id, Ids) ->
            erlmcp_call:refuse(Call, id_in_use(), Instance);
        map_size(Ids) >= Max ->
            erlmcp_call:refuse(Call, over_limit(Max), Instance);
        true ->
            Pid = erlmcp_call:start(Call, Instance),
            Entry = {call, [Id], erlmcp_call:subject(Call), erlmcp_call:permit(Call)},
            {ok, adopt(Pid, Entry, Calls)}
    end.

-doc "Returns the refusal of an id whose request is not answered yet.".
-spec id_in_use() -> erlmcp_refusal:refusal().
id_in_use() ->
    erlmcp_refusal:new(protocol_error, ~"id: a request with this id is still being answered",
                       #{code => -32600}).

over_limit(Max) ->
    erlmcp_refusal:new(concurrent_limit_exceeded, ~"too many requests in flight on this connection",
                       #{limit => Max, observed => Max + 1, retry_after_ms => 1000}).

-doc """
Returns `ok` if one more call with the id `Id` may run, in addition to `Count` others of its batch.
Returns a refusal if the id is in use, or if more than `calls_per_connection` calls would run.
""".
-spec room_for({Id :: erlmcp_message:id(), Count :: non_neg_integer()}, calls()) ->
    ok | {error, erlmcp_refusal:refusal()}.
room_for({Id, _}, #{ids := Ids}) when is_map_key(Id, Ids) ->
    {error, id_in_use()};
room_for({_, Count}, #{ids := Ids, instance := #{limits := #{calls_per_connection := Max}}}) ->
    case map_size(Ids) + Count < Max of
        true -> ok;
        false -> {error, over_limit(Max)}
    end.

-doc "Returns the instance of the server that these calls belong to.".
-spec instance(calls()) -> erlmcp_instance:instance().
instance(#{instance := Instance}) ->
    Instance.

-doc """
Adds a call or a batch, which runs already. `Pid` is its process, which must be linked to the
calling one.
""".
-spec adopt(pid(), entry(), calls()) -> calls().
adopt(Pid, {_, Inside, _, _} = Entry, #{running := Running, ids := Ids} = Calls) ->
    Calls#{running := Running#{Pid => Entry},
           ids := maps:merge(Ids, #{Id => Pid || Id <- Inside})}.

-doc """
Handles a message of a call. Returns the withdrawn requests, bytes for the client, and the new value
of the calls. A notification counts as written (`m:erlmcp_notification_window`). Kills a call that
has passed its deadline, or that an operator or a drain ends, and gives its permit back; then the
bytes are its answer. Ignores a message of a call that has ended.
""".
-spec message(Call :: pid(), erlmcp_call_messages:message(), calls()) ->
    {withdrawn(), iodata(), calls()}.
message(Call, Message, #{running := Running, asked := Asked, instance := Instance} = Calls) ->
    case {Running, Message} of
        {#{Call := _}, {notification, Bytes, Window}} ->
            ok = erlmcp_notification_window:written(byte_size(Bytes), Window),
            {[], Bytes, Calls};
        {#{Call := _}, {request, {Id, _}, Asking, _}} when Asked =:= unanswerable ->
            ok = erlmcp_call_messages:response(Asking, Id, {error, end_of_input}),
            {[], [], Calls};
        {#{Call := _}, {request, {Id, Task}, Asking, Bytes}} ->
            {[], Bytes, Calls#{asked := Asked#{Id => {Asking, Call, Task}}}};
        {#{Call := _}, {withdraw, Id}} when is_map_key(Id, Asked) ->
            {{_, _, Task}, Rest} = maps:take(Id, Asked),
            {[{Id, Task}], [], Calls#{asked := Rest}};
        {#{Call := _}, {answer, _, Bytes}} ->
            forget(Call, Bytes, Calls);
        {#{Call := {call, _, Subject, Permit}}, {deadline, Call, Milliseconds}} ->
            end_call(Call, Permit),
            {reply, _, Bytes} = erlmcp_call:timed_out(Call, Milliseconds, Subject, Instance),
            forget(Call, Bytes, Calls);
        {#{Call := {call, _, Subject, Permit}}, {end_call, Ender, Call}} ->
            end_call(Call, Permit),
            {reply, _, Bytes} = erlmcp_call:ended_by(Ender, Call, Subject, Instance),
            forget(Call, Bytes, Calls);
        {_, _} ->
            {[], [], Calls}
    end.

-doc """
Gives the client's answer to the request `Id`, or the reason why there is none, to the call that
waits for it. Does nothing if no call waits.
""".
-spec response(Id :: erlmcp_message:id(), {ok, term()} | {error, term()}, calls()) -> calls().
response(Id, Outcome, #{asked := #{} = Asked} = Calls) ->
    case maps:take(Id, Asked) of
        {{Asking, _, _}, Rest} ->
            ok = erlmcp_call_messages:response(Asking, Id, Outcome),
            Calls#{asked := Rest};
        error ->
            Calls
    end.

-doc """
Withdraws the requests of the call `Call` to its client, which is gone and cannot answer them. For
each request, the call gets the error `gone`.
""".
-spec abandon(Call :: pid(), calls()) -> {withdrawn(), calls()}.
abandon(Call, Calls) ->
    unanswered(gone, fun(Running) -> Running =:= Call end, Calls).

-doc """
Withdraws all requests to the client, which can answer nothing any more. Calls that wait for an
answer, or send a request later, get the error `end_of_input`.
""".
-spec end_of_input(calls()) -> {withdrawn(), calls()}.
end_of_input(Calls) ->
    {Withdrawn, Left} = unanswered(end_of_input, fun(_) -> true end, Calls),
    {Withdrawn, Left#{asked := unanswerable}}.

unanswered(Why, Is, #{asked := Asked} = Calls) ->
    {Withdrawn, Left} = withdrawn(Is, Asked),
    lists:foreach(fun({Id, _}) ->
        #{Id := {Asking, _, _}} = Asked,
        ok = erlmcp_call_messages:response(Asking, Id, {error, Why})
    end, Withdrawn),
    {Withdrawn, Calls#{asked := Left}}.

-doc """
Handles the exit signal of a linked process. Returns the withdrawn requests, the answer for the
client, and the new value of the calls. If the call died without an answer, the answer is an error,
and the call's permit is given back. The answer is empty if the process has no call here.
""".
-spec exited(pid(), Reason :: term(), calls()) -> {withdrawn(), iodata(), calls()}.
exited(Pid, Reason, #{running := Running, instance := Instance} = Calls) ->
    case {Running, erlmcp_call_messages:ended(Reason)} of
        {#{Pid := _}, {answer, _, Bytes}} ->
            forget(Pid, Bytes, Calls);
        {#{Pid := {_, _, Subject, Permit}}, died} ->
            ok = leave(Permit),
            {reply, _, Bytes} = erlmcp_call:died(Reason, Subject, Instance),
            forget(Pid, Bytes, Calls);
        {_, _} ->
            {[], [], Calls}
    end.

-doc "Forgets a call that has sent its answer to another process. Ignores any other process.".
-spec answered(Call :: pid(), calls()) -> calls().
answered(Call, #{running := Running} = Calls) when is_map_key(Call, Running) ->
    {_, _, Left} = forget(Call, [], Calls),
    Left;
answered(_, Calls) ->
    Calls.

-doc """
Ends the call of the request with the id `Id`, if it runs, without an answer. Gives the call's
permit back, and counts the request as cancelled. Returns the withdrawn requests of the call. If the
request is part of a batch, returns no requests: the batch ends the call and withdraws its requests.
""".
-spec cancel(Id :: erlmcp_message:id(), calls()) -> {withdrawn(), calls()}.
cancel(Id, #{running := Running, instance := Instance} = Calls) ->
    case find(Id, Calls) of
        {ok, Pid} ->
            case Running of
                #{Pid := {call, _, _, _} = Entry} ->
                    ok = cancel_call(Pid, Entry, Instance),
                    {Withdrawn, _, Left} = forget(Pid, [], Calls),
                    {Withdrawn, Left};
                #{Pid := {batch, _, _, _}} ->
                    ok = erlmcp_call_messages:cancel(Pid, Id),
                    {[], Calls}
            end;
        error ->
            {[], Calls}
    end.

-doc "Encodes the notification that the answer to a request is not needed any more.".
-spec withdrawal(erlmcp_call_messages:client_request()) -> binary().
withdrawal({Id, Task}) ->
    Params = of_task(Task, #{~"requestId" => Id,
                             ~"reason" => ~"nobody waits for the answer any more"}),
    iolist_to_binary(erlmcp_message:notification(~"notifications/cancelled", Params)).

of_task(none, Params) -> Params;
of_task(Task, Params) -> erlmcp_task_view:related(Task, Params).

-doc """
Ends the calls of a session whose client has started over, and returns the other calls. The calls
end as with `stop/1`, and their requests to the client are forgotten. The calls of stateless
requests go on.
""".
-spec end_session(calls()) -> calls().
end_session(#{running := Running, instance := Instance} = Calls) ->
    Ended = #{Pid => Entry || Pid := {_, _, #{revision := Revision}, _} = Entry <- Running,
                              erlmcp_revision:era(Revision) =:= session},
    maps:fold(fun(Pid, Entry, Left) ->
                  ok = cancel_call(Pid, Entry, Instance),
                  {_, _, Next} = forget(Pid, [], Left),
                  Next
              end, Calls, Ended).

-doc """
Ends all calls, without answers to their clients. Gives their permits back, and counts their
requests as cancelled.
""".
-spec stop(calls()) -> ok.
stop(#{running := Running, instance := Instance}) ->
    maps:foreach(fun(Pid, Entry) -> ok = cancel_call(Pid, Entry, Instance) end, Running).

cancel_call(Pid, {call, _, Subject, Permit}, Instance) ->
    end_call(Pid, Permit),
    erlmcp_call:cancelled(Pid, Subject, Instance);
cancel_call(Pid, {batch, _, _, none}, _) ->
    unlink(Pid),
    %% The batch ends its calls, and counts their requests.
    exit(Pid, shutdown),
    ok.

end_call(Pid, Permit) ->
    unlink(Pid),
    exit(Pid, kill),
    leave(Permit).

-doc "Gives back the permit of a call that was killed or has died, if the call had one.".
-spec leave(permit()) -> ok.
leave({permit, Permit}) -> erlmcp_gate:leave(Permit);
leave(none) -> ok.

forget(Pid, Bytes, #{running := Running, asked := Asked, ids := Ids} = Calls) ->
    {{_, Inside, _, _}, Rest} = maps:take(Pid, Running),
    %% In a session a client may have used an id twice. Then the id belongs to the later call.
    Own = [Id || Id <- Inside, maps:get(Id, Ids, undefined) =:= Pid],
    {Withdrawn, Left} = withdrawn(fun(Call) -> Call =:= Pid end, Asked),
    {Withdrawn, Bytes,
     Calls#{running := Rest, ids := maps:without(Own, Ids), asked := Left}}.

withdrawn(_, Asked) when Asked =:= unanswerable; map_size(Asked) =:= 0 ->
    {[], Asked};
withdrawn(Is, Asked) ->
    Withdrawn = [{Id, Task} || Id := {_, Running, Task} <- Asked, Is(Running)],
    {Withdrawn, maps:without([Id || {Id, _} <- Withdrawn], Asked)}.
