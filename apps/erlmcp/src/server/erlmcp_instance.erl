-module(erlmcp_instance).
-moduledoc """
What the processes of one server share: a key of its own, its limits, its gate, what it mounts, and
the tables of its open sessions, of who watches what, of who mounts it, of the results that it
keeps, and of its tasks; and what is counted for its error budget. A value that is handed to each of
them; nothing here has a name that a second server on the node could collide with.

The row of an HTTP session is `{SessionId, Pid, Session, LastUsed, RunningCalls, Missed}`; its
process is started when it is needed first, and until then there is `none`, and `Missed` has a bit
for each list that changed meanwhile. `LastUsed` is brought up to date once in a hundredth of
`session_idle_ms`, and a session ends so much later. A session of HTTP+SSE has `{sse, Id}` for its
id, so that neither kind is found as the other; it keeps its state itself, and its row counts the
messages that it has not taken yet.
""".

%% Every request of a session looks it up.
-compile({inline, [put_session/4, count_sessions/1, is_there/4, lasting/1, now_ms/0]}).

-export([new/4, of_calls/1]).
-export([put_session/4, add_session/4, find_session/3, has_session/2, update_session/3]).
-export([delete_session/2, take_session/2, attend_session/2, session/2, missed/3]).
-export([delete_idle/1, delete_unattended/2]).
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
    key := reference(), limits := erlmcp_options:limits(), gate := erlmcp_gate:gate(),
    mounts := [erlmcp_mounts:mount()],
    sessions := ets:table(), subscriptions := ets:table(), supervisors := ets:table(),
    mounting := ets:table(), changing := ets:table(), cache := ets:table(),
    tasks := erlmcp_tasks:tables(),
    zones := erlmcp_zones:zones(),
    of_calls := of_calls()
}.

-doc "What calls know of it. Each has a copy, and so it is little.".
-type of_calls() :: #{
    key := reference(), limits := #{atom() => pos_integer() | infinity},
    subscriptions := ets:table(), supervisors := ets:table(), tasks := erlmcp_tasks:tables(),
    zones := erlmcp_zones:zones(), atom() => term()
}.

-doc "What calls know of an instance.".
-spec of_calls(instance() | of_calls()) -> of_calls().
of_calls(#{of_calls := Known}) ->
    Known;
of_calls(Instance) ->
    #{limits := Limits} = Known =
        maps:with([key, limits, subscriptions, supervisors, tasks, zones], Instance),
    Known#{limits := maps:with([calls_per_connection, call_timeout_ms, call_heap_bytes,
                                input_timeout_ms, task_ttl_ms, task_timeout_ms,
                                rate_retry_ms, queue_retry_ms,
                                reply_bytes, unread_bytes, unread_messages], Limits)}.

-doc """
A new instance, whose tasks are kept in this store; its tables belong to the calling process, the
server's supervisor.
""".
-spec new(reference(), erlmcp_options:limits(), [erlmcp_mounts:mount()],
          TaskStore :: {module(), map()}) -> instance().
new(Key, Limits, Mounts, TaskStore) ->
    Instance = #{
      key => Key, limits => Limits, gate => gate(Limits), mounts => Mounts,
      %% Two processes seldom read one row at a time, and locks for that make writing dear.
      sessions => ets:new(erlmcp_sessions, [public, {write_concurrency, auto},
                                            %% Its size is asked for whenever a session is opened.
                                            {decentralized_counters, false}]),
      subscriptions => erlmcp_subscriptions:new(),
      supervisors => ets:new(erlmcp_supervisors, [public]),
      mounting => ets:new(erlmcp_mounting, [public]),
      changing => ets:new(erlmcp_changing, [public, {read_concurrency, true}]),
      cache => ets:new(erlmcp_cache, [ordered_set, public, {read_concurrency, true}]),
      tasks => erlmcp_tasks:open(TaskStore, Limits), zones => erlmcp_zones:new()},
    Instance#{of_calls => of_calls(Instance)}.

gate(Limits) ->
    erlmcp_gate:new(maps:with([Name || {Name, _, _} <- erlmcp_options:gate_limits()], Limits)).

-doc "Makes a session known, with its process if it has one.".
-spec put_session(session_id(), pid() | none, session(), instance()) -> ok.
put_session(Id, Pid, Session, #{sessions := Sessions}) ->
    true = ets:insert(Sessions, {Id, Pid, Session, now_ms(), 0, 0}),
    ok.

-doc "The same of a new one. Gives the number of open sessions.".
-spec add_session(session_id(), pid() | none, session(), instance()) -> pos_integer().
add_session(Id, Pid, Session, Instance) ->
    ok = put_session(Id, Pid, Session, Instance),
    count_sessions(Instance).

-doc "A principal's session of this id; finding it counts as using it.".
-spec find_session(session_id(), erlmcp_auth:principal(), instance()) ->
    {ok, pid() | none, erlmcp_engine:session()} | error.
find_session(Id, Principal, #{sessions := Sessions, limits := Limits} = Instance) ->
    maybe
        [{_, Pid, #{principal := Principal} = Session, Used, _, _}] ?= ets:lookup(Sessions, Id),
        #{session_idle_ms := Idle} = Limits,
        Now = now_ms(),
        true ?= is_there(Pid, Id, Now - Used < lasting(Idle), Instance),
        _ = Now - Used > Idle div ?PART andalso ets:update_element(Sessions, Id, {4, Now}),
        {ok, Pid, Session}
    else
        _ -> error
    end.

%% One without a process is over when its time is, whether its row is gone or not.
is_there(none, _, IsLasting, _) ->
    IsLasting;
is_there(Pid, Id, _, #{sessions := Sessions}) ->
    %% A session that was killed could not take its row with it.
    is_process_alive(Pid) orelse not ets:delete(Sessions, Id).

-doc """
Makes the calling process that of a session which has none; what changed before is in the number
(`erlmcp_subscriptions:changed/1`). Who publishes a change notes it for those without a process
before it looks for subscribers; who calls this is a subscriber already, and so misses none.
""".
-spec attend_session(binary(), instance()) -> {ok, Missed :: non_neg_integer()} | error.
attend_session(Id, #{sessions := Sessions}) ->
    Row = {Id, none, '$1', '$2', '$3', '$4'},
    case ets:select_replace(Sessions, [{Row, [], [{setelement(2, Row, self())}]}]) of
        1 -> {ok, ets:lookup_element(Sessions, Id, 6, 0)};
        0 -> error
    end.

-doc "A session, whoever's it is, and its process if it has one.".
-spec session(binary(), instance()) -> {ok, pid() | none, erlmcp_engine:session()} | error.
session(Id, #{sessions := Sessions}) ->
    case ets:lookup(Sessions, Id) of
        [{_, Pid, Session, _, _, _}] -> {ok, Pid, Session};
        [] -> error
    end.

-doc "A list changed; the sessions of its audience without a process are told when they have one.".
-spec missed(erlmcp_subscriptions:listed(), erlmcp_definition:audience(), instance()) -> ok.
missed(List, all, #{sessions := Sessions}) ->
    note('$0', List, Sessions);
missed(List, Audience, #{sessions := Sessions}) ->
    Unattended = ets:select(Sessions, [{{'$1', none, #{principal => '$2'}, '_', '_', '_'}, [],
                                        [{{'$1', '$2'}}]}]),
    lists:foreach(fun(Id) -> note(Id, List, Sessions) end,
                  [Id || {Id, Principal} <- Unattended,
                         erlmcp_definition:sees(Principal, Audience)]).

note(Id, List, Sessions) ->
    Bit = erlmcp_subscriptions:bit(List),
    _ = ets:select_replace(Sessions, [{{Id, none, '$1', '$2', '$3', '$4'},
                                       [{'=:=', {'band', '$4', Bit}, 0}],
                                       [{{Id, none, '$1', '$2', '$3', {'bor', '$4', Bit}}}]}]),
    ok.

-doc "Deletes the sessions without a process that were not used for `session_idle_ms`.".
-spec delete_idle(instance()) -> ok.
delete_idle(#{limits := #{session_idle_ms := Idle}} = Instance) ->
    delete_unattended(Idle, Instance).

-doc """
Deletes the sessions without a process that were not used for so many milliseconds; `0` is all of
them.
""".
-spec delete_unattended(Milliseconds :: non_neg_integer(), instance()) -> ok.
delete_unattended(Milliseconds, #{sessions := Sessions}) ->
    Last = now_ms() - lasting(Milliseconds),
    _ = ets:select_delete(Sessions, [{{'_', none, '_', '$1', '_', '_'}, [{'=<', '$1', Last}],
                                      [true]}]),
    ok.

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
delete_session(Id, #{sessions := Sessions}) ->
    true = ets:delete(Sessions, Id),
    ok.

-doc "Forgets a session, and says which process it has.".
-spec take_session(session_id(), instance()) -> pid() | none.
take_session(Id, #{sessions := Sessions}) ->
    case ets:take(Sessions, Id) of
        [Row] -> element(2, Row);
        [] -> none
    end.

-doc "The number of open sessions.".
-spec count_sessions(instance()) -> non_neg_integer().
count_sessions(#{sessions := Sessions}) ->
    ets:info(Sessions, size).

-doc "The processes of the open sessions of Streamable HTTP.".
-spec session_pids(instance()) -> [pid()].
session_pids(#{sessions := Sessions}) ->
    ets:select(Sessions, [{{'$1', '$2', '_', '_', '_', '_'},
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
