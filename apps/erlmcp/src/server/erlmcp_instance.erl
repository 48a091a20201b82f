-module(erlmcp_instance).
-moduledoc """
What the processes of one server share: a key of its own, its limits, its gate, what it mounts, and
the tables of its open sessions, of who watches what, of who mounts it, of the results that it
keeps, and of its tasks; and what is counted for its error budget. A value that is handed to each of
them; nothing here has a name that a second server on the node could collide with.

The row of an HTTP session is `{SessionId, Pid, Session, LastUsed, RunningCalls, Missed, Flow}`;
its process is started when it is needed first, and until then there is `none`, and `Missed` has a
bit for each list that changed meanwhile. `LastUsed` is `{unused, Opened}` until a request names the
session (`m:erlmcp_unused_sessions`), and then brought up to date once in a hundredth of
`session_idle_ms`; a session ends so much later. `Flow` is the tenant that the session is counted
for (`m:erlmcp_tenant_counts`). A session of HTTP+SSE has `{sse, Id}` for its id, so that neither
kind is found as the other; it keeps its state itself, and its row counts the messages that it has
not taken yet.
""".

%% Every request of a session looks it up.
-compile({inline, [count_sessions/1, is_there/4, lasting/1, now_ms/0]}).

-export([new/4, of_calls/1]).
-export([add_session/5, find_session/3, has_session/2, update_session/3, put_process/3]).
-export([delete_session/2, take_session/2, attend_session/2, session/2, missed/3]).
-export([oldest_unused/2, end_unused/2, end_overdue/1, delete_idle/1, delete_unattended/1]).
-export([take_calls/4, count_calls/3, count_sessions/1, session_pids/1, idle_in/2]).
-export([subscriptions/1]).
-export([task_store/1]).
-export([put_supervisor/3, supervisor/2, pools/2, put_pool/3, pool/2]).
-export([put_mounting/3, delete_mounting/3, mounting/1]).

-export_type([instance/0, of_calls/0, session_id/0, session/0]).

%% What part of the idle time may pass until a use is noted.
-define(PART, 100).

-type session_id() :: binary() | {sse, binary()}.
-type session() :: erlmcp_engine:session() | #{principal := erlmcp_auth:principal()}.
-type instance() :: #{
    key := reference(), limits := erlmcp_server_options:limits(), gate := erlmcp_gate:gate(),
    mounts := [erlmcp_mounts:mount()],
    sessions := ets:table(), session_counts := ets:table(), unused_sessions := ets:table(),
    subscriptions := ets:table(), supervisors := ets:table(),
    mounting := ets:table(), changing := ets:table(), cache := ets:table(),
    tasks := erlmcp_tasks:tables(), used_states := erlmcp_used_states:used(),
    zones := erlmcp_error_budget:zones(),
    of_calls := of_calls()
}.

-doc "What calls know of it. Each has a copy, and so it is little.".
-type of_calls() :: #{
    key := reference(), limits := #{atom() => pos_integer() | infinity},
    subscriptions := ets:table(), supervisors := ets:table(), tasks := erlmcp_tasks:tables(),
    used_states := erlmcp_used_states:used(), zones := erlmcp_error_budget:zones(), atom() => term()
}.

-doc "What calls know of an instance.".
-spec of_calls(instance() | of_calls()) -> of_calls().
of_calls(#{of_calls := Known}) ->
    Known;
of_calls(Instance) ->
    #{limits := Limits} = Known =
        maps:with([key, limits, subscriptions, supervisors, tasks, used_states, zones], Instance),
    Known#{limits := maps:with([calls_per_connection, call_timeout_ms, call_heap_bytes,
                                input_timeout_ms, task_ttl_ms, task_timeout_ms,
                                used_states, used_states_per_principal,
                                rate_retry_ms, queue_retry_ms,
                                reply_bytes, unread_bytes, unread_messages], Limits)}.

-doc """
A new instance, whose tasks are kept in this store; its tables belong to the calling process, the
server's supervisor.
""".
-spec new(reference(), erlmcp_server_options:limits(), [erlmcp_mounts:mount()],
          TaskStore :: {module(), map()}) -> instance().
new(Key, Limits, Mounts, TaskStore) ->
    Instance = #{
      key => Key, limits => Limits, gate => gate(Limits), mounts => Mounts,
      %% Two processes seldom read one row at a time, and locks for that make writing dear.
      sessions => ets:new(erlmcp_sessions, [public, {write_concurrency, auto},
                                            %% Its size is asked for whenever a session is opened.
                                            {decentralized_counters, false}]),
      session_counts => erlmcp_tenant_counts:new(), unused_sessions => erlmcp_unused_sessions:new(),
      subscriptions => erlmcp_subscriptions:new(),
      supervisors => ets:new(erlmcp_supervisors, [public]),
      mounting => ets:new(erlmcp_mounting, [public]),
      changing => ets:new(erlmcp_changing, [public, {read_concurrency, true}]),
      cache => ets:new(erlmcp_result_cache, [ordered_set, public, {read_concurrency, true}]),
      tasks => erlmcp_tasks:open(TaskStore, Limits),
      used_states => erlmcp_used_states:new(), zones => erlmcp_error_budget:new()},
    Instance#{of_calls => of_calls(Instance)}.

gate(Limits) ->
    erlmcp_gate:new(maps:with([Name || {Name, _, _} <- erlmcp_server_options:gate_limits()],
                              Limits)).

-doc """
Adds the row of a new session, with its process if it has one. Gives the number of open sessions;
`full` if its tenant has as many as it may have.
""".
-spec add_session(session_id(), pid() | none, session(), erlmcp_gate:flow(), instance()) ->
    {ok, pos_integer()} | {full, Observed :: pos_integer()}.
add_session(Id, Pid, Session, Flow, #{sessions := Sessions, limits := Limits} = Instance) ->
    #{session_counts := Counts, unused_sessions := Unused} = Instance,
    #{sessions_per_principal := Max} = Limits,
    case erlmcp_tenant_counts:take({flow, Flow}, 1, Max, Counts) of
        ok ->
            Opened = erlang:monotonic_time(microsecond),
            Kept = kept(Flow, Session),
            true = ets:insert(Sessions, {Id, Pid, Session, {unused, Opened}, 0, 0, Kept}),
            %% After its row, so that who finds it there finds the row, too.
            ok = erlmcp_unused_sessions:add({Opened, Id, Kept}, Unused),
            {ok, count_sessions(Instance)};
        {full, _} = Full ->
            Full
    end.

%% A principal is its own tenant. The session has a copy of it that keeps no request.
kept({anonymous, _} = Flow, _) -> Flow;
kept(_, #{principal := Principal}) -> Principal.

-doc "A principal's session of this id; finding it counts as using it.".
-spec find_session(session_id(), erlmcp_auth:principal(), instance()) ->
    {ok, pid() | none, erlmcp_engine:session()} | error.
find_session(Id, Principal, #{sessions := Sessions, limits := Limits} = Instance) ->
    case ets:lookup(Sessions, Id) of
        [{_, Pid, #{principal := Principal} = Session, Used, _, _, _}] when is_integer(Used) ->
            #{session_idle_ms := Idle} = Limits,
            Now = now_ms(),
            case is_there(Pid, Id, Now - Used < lasting(Idle), Instance) of
                true ->
                    _ = Now - Used > Idle div ?PART
                        andalso ets:update_element(Sessions, Id, {4, Now}),
                    {ok, Pid, Session};
                false ->
                    error
            end;
        [{_, _, #{principal := Principal}, {unused, Opened}, _, _, Flow}] ->
            case first_use({Opened, Id, Flow}, Instance) of
                true -> find_session(Id, Principal, Instance);
                false -> error
            end;
        _ ->
            error
    end.

%% From then on it is not given up for another. One that is being given up has ended.
first_use({Opened, Id, _} = Unused, #{sessions := Sessions} = Instance) ->
    Opened > unused_since(Instance) andalso begin
        _ = is_unused(Unused, Instance),
        ets:update_element(Sessions, Id, {4, now_ms()})
    end.

%% Takes it out of the index. Of those that do it at once it is true for one.
is_unused(Unused, #{unused_sessions := Table}) ->
    erlmcp_unused_sessions:take(Unused, Table).

%% What was opened by then, and is unused still, is over.
unused_since(#{limits := #{unused_session_ms := Unused, session_idle_ms := Idle}}) ->
    erlang:monotonic_time(microsecond) - 1_000 * min(Unused, Idle).

%% One without a process is over when its time is, whether its row is gone or not.
is_there(none, _, IsLasting, _) ->
    IsLasting;
is_there(Pid, Id, _, Instance) ->
    %% A session that was killed could not take its row with it.
    is_process_alive(Pid) orelse delete_session(Id, Instance) =/= ok.

-doc "Gives a session its process; `false` if it has ended.".
-spec put_process(session_id(), pid(), instance()) -> boolean().
put_process(Id, Pid, #{sessions := Sessions}) ->
    ets:update_element(Sessions, Id, {2, Pid}).

-doc """
Makes the calling process that of a session which has none; what changed before is in the number
(`erlmcp_subscriptions:changed/1`). Who publishes a change notes it for those without a process
before it looks for subscribers; who calls this is a subscriber already, and so misses none.
""".
-spec attend_session(binary(), instance()) -> {ok, Missed :: non_neg_integer()} | error.
attend_session(Id, #{sessions := Sessions}) ->
    Row = {Id, none, '$1', '$2', '$3', '$4', '$5'},
    case ets:select_replace(Sessions, [{Row, [], [{setelement(2, Row, self())}]}]) of
        1 -> {ok, ets:lookup_element(Sessions, Id, 6, 0)};
        0 -> error
    end.

-doc "A session, whoever's it is, its process if it has one, and whom it is counted for.".
-spec session(binary(), instance()) ->
    {ok, pid() | none, erlmcp_engine:session(), erlmcp_gate:flow()} | error.
session(Id, #{sessions := Sessions}) ->
    case ets:lookup(Sessions, Id) of
        [{_, Pid, Session, _, _, _, Flow}] -> {ok, Pid, Session, Flow};
        [] -> error
    end.

-doc "A list changed; the sessions of its audience without a process are told when they have one.".
-spec missed(erlmcp_subscriptions:listed(), erlmcp_definition:audience(), instance()) -> ok.
missed(List, all, #{sessions := Sessions}) ->
    note('$0', List, Sessions);
missed(List, Audience, #{sessions := Sessions}) ->
    Unattended = ets:select(Sessions, [{{'$1', none, #{principal => '$2'}, '_', '_', '_', '_'}, [],
                                        [{{'$1', '$2'}}]}]),
    lists:foreach(fun(Id) -> note(Id, List, Sessions) end,
                  [Id || {Id, Principal} <- Unattended,
                         erlmcp_definition:sees(Principal, Audience)]).

note(Id, List, Sessions) ->
    Bit = erlmcp_subscriptions:bit(List),
    _ = ets:select_replace(Sessions, [{{Id, none, '$1', '$2', '$3', '$4', '$5'},
                                       [{'=:=', {'band', '$4', Bit}, 0}],
                                       [{{Id, none, '$1', '$2', '$3', {'bor', '$4', Bit},
                                          '$5'}}]}]),
    ok.

-doc "The oldest session, of all or of a tenant, that was not used since it was opened.".
-spec oldest_unused(all | {of_flow, erlmcp_gate:flow()}, instance()) ->
    {ok, erlmcp_unused_sessions:unused()} | none.
oldest_unused(Of, #{unused_sessions := Unused}) ->
    erlmcp_unused_sessions:oldest(Of, Unused).

-doc "Ends a session, unless it was used meanwhile: the process that it had.".
-spec end_unused(erlmcp_unused_sessions:unused(), instance()) -> {ended, pid() | none} | used.
end_unused({Opened, Id, Flow} = Unused, #{sessions := Sessions} = Instance) ->
    Pid = ets:lookup_element(Sessions, Id, 2, none),
    %% Its first use may come between the two.
    case is_unused(Unused, Instance)
             andalso ends({Id, '_', '_', {unused, Opened}, '_', '_', '_'}, [], Flow, Instance) of
        true -> {ended, Pid};
        false -> used
    end.

-doc "Ends the sessions that were not used for `unused_session_ms`: the processes that they had.".
-spec end_overdue(instance()) -> [pid()].
end_overdue(#{sessions := Sessions, unused_sessions := Unused} = Instance) ->
    Since = unused_since(Instance),
    %% By their rows: the process that opened one may have been killed before the index had it.
    ok = erlmcp_unused_sessions:forget(Since, Unused),
    IsOver = [{'=<', '$1', Since}],
    Over = ets:select(Sessions, [{{'$2', '$3', '_', {unused, '$1'}, '_', '_', '$4'}, IsOver,
                                  [{{'$2', '$3', '$4'}}]}]),
    [Pid || {Id, Pid, Flow} <- Over,
            ends({Id, '_', '_', {unused, '$1'}, '_', '_', '_'}, IsOver, Flow, Instance),
            is_pid(Pid)].

%% Deletes a row if it is still so. One of those that try it gives its place back.
ends(Row, Guards, Flow, #{sessions := Sessions} = Instance) ->
    case ets:select_delete(Sessions, [{Row, Guards, [true]}]) of
        1 -> give_back(Flow, Instance) =:= ok;
        0 -> false
    end.

give_back(Flow, #{session_counts := Counts}) ->
    erlmcp_tenant_counts:give_back({flow, Flow}, 1, Counts).

-doc """
Deletes the sessions that were not used for `session_idle_ms` and have no process, or one that was
killed.
""".
-spec delete_idle(instance()) -> ok.
delete_idle(#{sessions := Sessions, limits := #{session_idle_ms := Idle}} = Instance) ->
    Last = now_ms() - lasting(Idle),
    %% What is still `{unused, _}` is greater than every number.
    IsIdle = [{'=<', '$1', Last}],
    Idling = ets:select(Sessions, [{{'$2', '$3', '_', '$1', '_', '_', '$4'}, IsIdle,
                                    [{{'$2', '$3', '$4'}}]}]),
    lists:foreach(
        fun({Id, none, Flow}) ->
                ends({Id, none, '_', '$1', '_', '_', '_'}, IsIdle, Flow, Instance);
           ({Id, Pid, _}) ->
                is_process_alive(Pid) orelse delete_session(Id, Instance)
        end, Idling).

-doc "Deletes the sessions without a process.".
-spec delete_unattended(instance()) -> ok.
delete_unattended(#{sessions := Sessions} = Instance) ->
    Unattended = ets:select(Sessions, [{{'$1', none, '_', '_', '_', '_', '$2'}, [],
                                        [{{'$1', '$2'}}]}]),
    lists:foreach(fun({Id, Flow}) ->
        ends({Id, none, '_', '_', '_', '_', '_'}, [], Flow, Instance)
    end, Unattended).

-doc "Whether there is a session of this id.".
-spec has_session(session_id(), instance()) -> boolean().
has_session(Id, #{sessions := Sessions}) ->
    ets:member(Sessions, Id).

-doc "Keeps what a message changed in a session; without effect once it has ended.".
-spec update_session(session_id(), erlmcp_engine:session(), instance()) -> ok.
update_session(Id, Session, #{sessions := Sessions}) ->
    _ = ets:update_element(Sessions, Id, {3, Session}),
    ok.

-doc "Takes places for running calls of a session; `full` if there would be more than `Max`.".
-spec take_calls(session_id(), Count :: non_neg_integer(), Max :: pos_integer(), instance()) ->
    ok | full.
take_calls(Id, Count, Max, #{sessions := Sessions} = Instance) ->
    try ets:update_counter(Sessions, Id, {5, Count}) of
        Running when Running > Max ->
            ok = count_calls(Id, -Count, Instance),
            full;
        _ ->
            ok
    catch
        %% The session has just ended; the call will be told.
        error:badarg -> ok
    end.

-doc "Counts calls that began or ended.".
-spec count_calls(session_id(), integer(), instance()) -> ok.
count_calls(Id, Count, #{sessions := Sessions}) ->
    try
        _ = ets:update_counter(Sessions, Id, {5, Count}),
        ok
    catch
        error:badarg -> ok
    end.

-doc "Forgets a session.".
-spec delete_session(session_id(), instance()) -> ok.
delete_session(Id, Instance) ->
    _ = taken(Id, Instance),
    ok.

-doc "Forgets a session, and says which process it has.".
-spec take_session(session_id(), instance()) -> pid() | none.
take_session(Id, Instance) ->
    case taken(Id, Instance) of
        {ok, Pid} -> Pid;
        gone -> none
    end.

taken(Id, #{sessions := Sessions} = Instance) ->
    case ets:take(Sessions, Id) of
        [{_, Pid, _, Used, _, _, Flow}] ->
            ok = give_back(Flow, Instance),
            _ = [is_unused({Opened, Id, Flow}, Instance) || {unused, Opened} <- [Used]],
            {ok, Pid};
        [] ->
            gone
    end.

-doc "The number of open sessions.".
-spec count_sessions(instance()) -> non_neg_integer().
count_sessions(#{sessions := Sessions}) ->
    ets:info(Sessions, size).

-doc "The processes of the open sessions of Streamable HTTP.".
-spec session_pids(instance()) -> [pid()].
session_pids(#{sessions := Sessions}) ->
    ets:select(Sessions, [{{'$1', '$2', '_', '_', '_', '_', '_'},
                           [{is_binary, '$1'}, {is_pid, '$2'}], ['$2']}]).

-doc "Milliseconds until a session was unused for the idle time; all of it for one that is gone.".
-spec idle_in(session_id(), instance()) -> integer().
idle_in(Id, #{sessions := Sessions, limits := #{session_idle_ms := Idle}}) ->
    Now = now_ms(),
    case ets:lookup_element(Sessions, Id, 4, Now) of
        Used when is_integer(Used) -> Used + lasting(Idle) - Now
    end.

-doc "The table of who wants to hear of changes.".
-spec subscriptions(of_calls()) -> ets:table().
subscriptions(#{subscriptions := Subscriptions}) ->
    Subscriptions.

-doc "The store of the server's tasks.".
-spec task_store(of_calls()) -> erlmcp_task_store:handle().
task_store(#{tasks := Tasks}) ->
    erlmcp_tasks:store(Tasks).

-doc "Makes the supervisor of the HTTP sessions of a kind, or of the tasks, known.".
-spec put_supervisor(sessions | sse_sessions | tasks, pid(), instance()) -> ok.
put_supervisor(Kind, Pid, #{supervisors := Supervisors}) ->
    true = ets:insert(Supervisors, {Kind, Pid}),
    ok.

-doc "The supervisor of those; `undefined` while there is none yet.".
-spec supervisor(sessions | sse_sessions | tasks, of_calls()) ->
    pid() | undefined.
supervisor(Kind, #{supervisors := Supervisors}) ->
    ets:lookup_element(Supervisors, Kind, 2, undefined).

-doc "The names under which the pools of workers of a server are shared (`m:erlmcp_shared`).".
-spec pools(Key :: reference(), [atom()]) -> [term()].
pools(Key, Names) ->
    [{Key, workers, Name} || Name <- Names].

-doc "Makes the pool of workers of a name known.".
-spec put_pool(atom(), erlmcp_workers:pool(), instance()) -> ok.
put_pool(Name, Pool, #{key := Key}) ->
    _ = erlmcp_shared:put({Key, workers, Name}, Pool),
    ok.

-doc "The pool of workers of this name.".
-spec pool(atom(), of_calls()) -> {ok, erlmcp_workers:pool()} | gone.
pool(Name, #{key := Key}) ->
    erlmcp_shared:find({Key, workers, Name}).

-doc "Makes known that the calling process, the publisher of a server, mounts this one.".
-spec put_mounting(erlmcp_mount:prefix(), Mounting :: instance(), instance()) -> ok.
put_mounting(Prefix, #{key := Key} = Mounting, #{mounting := Table}) ->
    true = ets:insert(Table, {{Key, Prefix}, self(), Mounting}),
    ok.

-doc "Forgets that; without effect once the mounted server has ended.".
-spec delete_mounting(erlmcp_mount:prefix(), Mounting :: instance(), instance()) -> ok.
delete_mounting(Prefix, #{key := Key}, #{mounting := Table}) ->
    try
        true = ets:delete(Table, {Key, Prefix}),
        ok
    catch
        error:badarg -> ok
    end.

-doc "The servers that mount this one: their prefix, their publisher and their instance.".
-spec mounting(instance()) -> [{erlmcp_mount:prefix(), pid(), instance()}].
mounting(#{mounting := Table}) ->
    {Alive, Killed} = lists:partition(fun({_, Publisher, _}) -> is_process_alive(Publisher) end,
                                      ets:tab2list(Table)),
    %% One that was killed could not take its row with it.
    lists:foreach(fun(Row) -> ets:delete_object(Table, Row) end, Killed),
    [{Prefix, Publisher, Mounting} || {{_, Prefix}, Publisher, Mounting} <- Alive].

%% For how long a session is there after the last use that was noted.
lasting(Milliseconds) ->
    Milliseconds + Milliseconds div ?PART.

now_ms() ->
    erlang:monotonic_time(millisecond).
