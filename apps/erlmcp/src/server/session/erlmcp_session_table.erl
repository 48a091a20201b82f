-module(erlmcp_session_table).
-moduledoc """
The open sessions of a server: their rows, how many each tenant has, and an index of those that were
never used.

The row of an HTTP session is `{SessionId, Pid, Session, LastUsed, RunningCalls, Missed, Tenant}`.

- `Pid` is `none` until the session needs its process.
- `LastUsed` is `{unused, Opened}`, in monotonic microseconds, until a request names the session.
  After that it is a time in monotonic milliseconds, which is updated at most once in a hundredth of
  `session_idle_ms`. A session ends after a hundredth more than `session_idle_ms`, and so never too
  early.
- `Missed` has a bit for each list that changed while the session had no process.
- `Tenant` is the tenant for which the session is counted (`m:erlmcp_tenant_counts`).

The id of an HTTP+SSE session is `{sse, Id}`, so that no session of one kind is found as one of the
other. Its process keeps its state. Its `RunningCalls` is the number of messages that the process
has not taken yet.

Internal.
""".

%% Every request of a session calls these.
-compile({inline, [count/1, is_there/4, lasting/1]}).

-export([new/0, new_id/0]).
-export([add/5, find/3, is_member/2, lookup/2, update/3, take/2, delete/2]).
-export([put_process/3, attend/2, note_change/3]).
-export([oldest_unused/2, end_unused/2, end_overdue/1, delete_idle/1, delete_unattended/1]).
-export([take_calls/4, count_calls/3, running_calls/2, count/1, has_ended/1, open_ids/1, pids/1,
         ms_until_idle/2, list/2]).

-export_type([sessions/0, session_id/0, session/0, unused/0]).

%% A use updates the row if this part of the idle time has passed since the last update.
-define(PART, 100).
%% Random bytes of an id, and how many ids are generated at once.
-define(BYTES, 24).
-define(AT_ONCE, 16).
%% A time before all others.
-define(EVER, -(1 bsl 64)).

-record(sessions, {rows :: ets:table(), counts :: ets:table(), unused :: ets:table()}).

-opaque sessions() :: #sessions{}.
-type session_id() :: binary() | {sse, binary()}.
-type session() :: erlmcp_engine:session() | #{principal := erlmcp_auth:principal()}.
-doc """
A session that was not used yet: the monotonic time at which it was opened, its id, and its tenant.
""".
-type unused() :: {Microseconds :: integer(), session_id(), erlmcp_gate:tenant()}.

-doc "Makes empty tables of sessions, which belong to the calling process.".
-spec new() -> sessions().
new() ->
    %% No `read_concurrency`: it slows writers down, and the same row is seldom read concurrently.
    #sessions{rows = ets:new(erlmcp_sessions, [public, {write_concurrency, auto},
                                               %% Opening a session reads the table's size.
                                               {decentralized_counters, false}]),
              counts = erlmcp_tenant_counts:new(),
              unused = ets:new(erlmcp_unused_sessions, [public, ordered_set])}.

-doc """
Returns an id that cannot be guessed and is never used again: 192 random bits, in 32 characters.
""".
-spec new_id() -> binary().
new_id() ->
    %% Many random bytes cost hardly more than a few. So a process that opens a second session, such
    %% as a proxy's connection, generates several ids at once and keeps them.
    case erlmcp_connection_cache:ids() of
        [Id | Ids] ->
            ok = erlmcp_connection_cache:put_ids(Ids),
            Id;
        [] ->
            [Id | Ids] = ids(crypto:strong_rand_bytes(?AT_ONCE * ?BYTES)),
            ok = erlmcp_connection_cache:put_ids(Ids),
            Id;
        none ->
            %% Most processes open a single session.
            ok = erlmcp_connection_cache:put_ids([]),
            erlmcp_base64url:encode(crypto:strong_rand_bytes(?BYTES))
    end.

ids(Bytes) ->
    [erlmcp_base64url:encode(One) || <<One:?BYTES/binary>> <= Bytes].

-doc """
Adds the row of a new session, with its process if it has one. Returns the number of open sessions.
Returns `exists` if the session has a row already. Returns `full` if the tenant would have more than
`sessions_per_principal` sessions. `Observed` is the number that it would have.

A session of Streamable HTTP is counted as opened now (`m:erlmcp_meter`), and as ended when its row
is deleted.
""".
-spec add(session_id(), pid() | none, session(), erlmcp_gate:tenant(),
          erlmcp_instance:instance()) ->
    {ok, pos_integer()} | exists | {full, Observed :: pos_integer()}.
add(Id, Pid, Session, Tenant, Instance) ->
    #{sessions := #sessions{rows = Rows, counts = Counts, unused = Unused},
      limits := #{sessions_per_principal := Max}} = Instance,
    case erlmcp_tenant_counts:take({tenant, Tenant}, 1, Max, Counts) of
        ok ->
            Opened = erlang:monotonic_time(microsecond),
            Row = {Id, Pid, opened(Session, Instance), {unused, Opened}, 0, 0, Tenant},
            case ets:insert_new(Rows, Row) of
                true ->
                    %% Added after the row: a session that is found in the index must have a row.
                    ok = add_unused({Opened, Id, Tenant}, Unused),
                    {ok, count(Instance)};
                false ->
                    ok = ended(element(3, Row), Instance),
                    ok = give_back(Tenant, Instance),
                    exists
            end;
        {full, _} = Full ->
            Full
    end.

%% The process of a session of HTTP+SSE counts the session that its client initializes.
opened(#{revision := _} = Session, Instance) ->
    Session#{opened => erlmcp_meter:session_opened(Instance)};
opened(Session, _) ->
    Session.

ended(#{opened := _} = Session, Instance) -> erlmcp_meter:session_ended(Session, tcp, Instance);
ended(_, _) -> ok.

-doc """
Finds a principal's session by its id, and counts the look-up as a use of the session. Returns its
process, if it has one, and its state. Returns `error` if the principal has no open session with the
id.
""".
-spec find(session_id(), erlmcp_auth:principal(), erlmcp_instance:instance()) ->
    {ok, pid() | none, erlmcp_engine:session()} | error.
find(Id, Principal, #{sessions := #sessions{rows = Rows}, limits := Limits} = Instance) ->
    case ets:lookup(Rows, Id) of
        [{_, Pid, #{principal := Principal} = Session, Used, _, _, _}] when is_integer(Used) ->
            #{session_idle_ms := Idle} = Limits,
            Now = erlmcp_clock:now_ms(),
            case is_there(Pid, Id, Now - Used < lasting(Idle), Instance) of
                true ->
                    _ = Now - Used > Idle div ?PART
                        andalso ets:update_element(Rows, Id, {4, Now}),
                    {ok, Pid, Session};
                false ->
                    error
            end;
        [{_, _, #{principal := Principal}, {unused, Opened}, _, _, Tenant}] ->
            case first_use({Opened, Id, Tenant}, Instance) of
                true -> find(Id, Principal, Instance);
                false -> error
            end;
        _ ->
            error
    end.

%% Takes the session out of the index, so that it does not end for a new one. Returns `false` if
%% another process is ending it, or its time is over.
first_use({Opened, Id, _} = Unused, #{sessions := #sessions{rows = Rows}} = Instance) ->
    Opened > unused_since(Instance) andalso begin
        _ = is_unused(Unused, Instance),
        ets:update_element(Rows, Id, {4, erlmcp_clock:now_ms()})
    end.

%% Takes a session out of the index. If several processes do so at once, one of them gets `true`.
is_unused(Unused, #{sessions := #sessions{unused = Table}}) ->
    take_unused(Unused, Table).

%% Returns the time until which an unused session must have been opened to end now.
unused_since(#{limits := #{unused_session_ms := Unused, session_idle_ms := Idle}}) ->
    erlang:monotonic_time(microsecond) - 1_000 * min(Unused, Idle).

%% A session without a process has ended when its time is over, even if it still has a row.
is_there(none, _, IsLasting, _) ->
    IsLasting;
is_there(Pid, Id, _, Instance) ->
    %% A process that was killed could not delete the row of its session.
    is_process_alive(Pid) orelse delete(Id, Instance) =/= ok.

-doc "Gives a session its process, and returns `true`. Returns `false` if the session has ended.".
-spec put_process(session_id(), pid(), erlmcp_instance:instance()) -> boolean().
put_process(Id, Pid, #{sessions := #sessions{rows = Rows}}) ->
    ets:update_element(Rows, Id, {2, Pid}).

-doc """
Makes the calling process the process of the session with this id, if the session has none. Returns
the lists that have changed since the session was opened, as a number
(`erlmcp_subscriptions:changed/1`). Returns `error` if the session has a process, or has ended. The
calling process subscribes to the lists (`erlmcp_subscriptions:add/5`) before it calls this
function, so that it misses no change.
""".
-spec attend(binary(), erlmcp_instance:instance()) -> {ok, Missed :: non_neg_integer()} | error.
attend(Id, #{sessions := #sessions{rows = Rows}}) ->
    %% A publisher records a change for sessions without a process before it looks for subscribers.
    %% The calling process has subscribed, so it misses no change.
    Row = {Id, none, '$1', '$2', '$3', '$4', '$5'},
    case ets:select_replace(Rows, [{Row, [], [{setelement(2, Row, self())}]}]) of
        1 -> {ok, ets:lookup_element(Rows, Id, 6, 0)};
        0 -> error
    end.

-doc """
Returns the session with the id `Id`, whatever its principal, with its process if it has one, and
the tenant for which it is counted. Returns `error` if the table has no such session.
""".
-spec lookup(binary(), erlmcp_instance:instance()) ->
    {ok, pid() | none, erlmcp_engine:session(), erlmcp_gate:tenant()} | error.
lookup(Id, #{sessions := #sessions{rows = Rows}}) ->
    case ets:lookup(Rows, Id) of
        [{_, Pid, Session, _, _, _, Tenant}] -> {ok, Pid, Session, Tenant};
        [] -> error
    end.

-doc """
Records that `List` has changed, for the sessions that have no process, and whose principals are in
`Audience`. Their clients are notified when the sessions have a process, and a connection on their
own streams.
""".
-spec note_change(erlmcp_subscriptions:listed(), erlmcp_definition:audience(),
                  erlmcp_instance:instance()) -> ok.
note_change(List, all, #{sessions := #sessions{rows = Rows}}) ->
    note('$0', List, Rows);
note_change(List, Audience, #{sessions := #sessions{rows = Rows}}) ->
    Unattended = ets:select(Rows, [{{'$1', none, #{principal => '$2'}, '_', '_', '_', '_'}, [],
                                        [{{'$1', '$2'}}]}]),
    lists:foreach(fun(Id) -> note(Id, List, Rows) end,
                  [Id || {Id, Principal} <- Unattended,
                         erlmcp_definition:sees(Principal, Audience)]).

note(Id, List, Rows) ->
    Bit = erlmcp_subscriptions:bit(List),
    _ = ets:select_replace(Rows, [{{Id, none, '$1', '$2', '$3', '$4', '$5'},
                                       [{'=:=', {'band', '$4', Bit}, 0}],
                                       [{{Id, none, '$1', '$2', '$3', {'bor', '$4', Bit},
                                          '$5'}}]}]),
    ok.

-doc """
Returns the oldest session that was never used, of all tenants or of one. Returns `none` if there is
no such session.
""".
-spec oldest_unused(all | {of_tenant, erlmcp_gate:tenant()}, erlmcp_instance:instance()) ->
    {ok, unused()} | none.
oldest_unused(Of, #{sessions := #sessions{unused = Unused}}) ->
    oldest(Of, Unused).

-doc """
Deletes a session that was never used. Returns its process, which the caller ends, or `none` if it
has none. Returns `used` instead if the session was used or has ended meanwhile.
""".
-spec end_unused(unused(), erlmcp_instance:instance()) -> {ended, pid() | none} | used.
end_unused({Opened, Id, Tenant} = Unused, #{sessions := #sessions{rows = Rows}} = Instance) ->
    {Pid, Session} = case ets:lookup(Rows, Id) of
        [{_, Of, Open, _, _, _, _}] -> {Of, Open};
        [] -> {none, none}
    end,
    %% The first use of the session may come between the two steps.
    case is_unused(Unused, Instance)
             andalso ends({Id, '_', '_', {unused, Opened}, '_', '_', '_'}, [], {Tenant, Session},
                          Instance) of
        true -> {ended, Pid};
        false -> used
    end.

-doc """
Deletes the sessions that were never used within `unused_session_ms`, or within `session_idle_ms` if
that is less. Returns their processes, which the caller ends.
""".
-spec end_overdue(erlmcp_instance:instance()) -> [pid()].
end_overdue(#{sessions := #sessions{rows = Rows, unused = Unused}} = Instance) ->
    Since = unused_since(Instance),
    %% The rows are searched, and not the index: a process may have been killed after it wrote the
    %% row of a session and before it wrote the index.
    ok = forget_unused(Since, Unused),
    IsOver = [{'=<', '$1', Since}],
    Over = ets:select(Rows, [{{'$2', '$3', '$5', {unused, '$1'}, '_', '_', '$4'}, IsOver,
                                  [{{'$2', '$3', {{'$4', '$5'}}}}]}]),
    [Pid || {Id, Pid, Of} <- Over,
            ends({Id, '_', '_', {unused, '$1'}, '_', '_', '_'}, IsOver, Of, Instance),
            is_pid(Pid)].

%% Deletes a row if it is unchanged. If several processes do so, one of them subtracts the session
%% from its tenant's count.
ends(Row, Guards, {Tenant, Session}, #{sessions := #sessions{rows = Rows}} = Instance) ->
    case ets:select_delete(Rows, [{Row, Guards, [true]}]) of
        1 ->
            ok = ended(Session, Instance),
            give_back(Tenant, Instance) =:= ok;
        0 ->
            false
    end.

give_back(Tenant, #{sessions := #sessions{counts = Counts}}) ->
    erlmcp_tenant_counts:give_back({tenant, Tenant}, 1, Counts).

-doc """
Deletes the sessions that were not used for `session_idle_ms` and have no process, and those whose
process was killed.
""".
-spec delete_idle(erlmcp_instance:instance()) -> ok.
delete_idle(#{sessions := #sessions{rows = Rows}, limits := Limits} = Instance) ->
    #{session_idle_ms := Idle} = Limits,
    Last = erlmcp_clock:now_ms() - lasting(Idle),
    %% `{unused, _}` is greater than every number.
    IsIdle = [{'=<', '$1', Last}],
    Idling = ets:select(Rows, [{{'$2', none, '$5', '$1', '_', '_', '$4'}, IsIdle,
                                    [{{'$2', {{'$4', '$5'}}}}]}]),
    lists:foreach(fun({Id, Of}) ->
        ends({Id, none, '_', '$1', '_', '_', '_'}, IsIdle, Of, Instance)
    end, Idling),
    Attended = ets:select(Rows, [{{'$1', '$2', '_', '_', '_', '_', '_'}, [{is_pid, '$2'}],
                                  [{{'$1', '$2'}}]}]),
    lists:foreach(fun({Id, Pid}) -> is_process_alive(Pid) orelse delete(Id, Instance) end,
                  Attended).

-doc "Deletes the sessions without a process.".
-spec delete_unattended(erlmcp_instance:instance()) -> ok.
delete_unattended(#{sessions := #sessions{rows = Rows}} = Instance) ->
    Unattended = ets:select(Rows, [{{'$1', none, '$3', '_', '_', '_', '$2'}, [],
                                        [{{'$1', {{'$2', '$3'}}}}]}]),
    lists:foreach(fun({Id, Of}) ->
        ends({Id, none, '_', '_', '_', '_', '_'}, [], Of, Instance)
    end, Unattended).

-doc "Returns `true` if there is a session with the id `Id`.".
-spec is_member(session_id(), erlmcp_instance:instance()) -> boolean().
is_member(Id, #{sessions := #sessions{rows = Rows}}) ->
    ets:member(Rows, Id).

-doc """
Sets the members `Changes` of the state of a session. A change that another process makes to other
members at the same time is kept. Has no effect if the session has ended.
""".
-spec update(session_id(), Changes :: map(), erlmcp_instance:instance()) -> ok.
update(Id, Changes, #{sessions := #sessions{rows = Rows}} = Instance) ->
    case ets:lookup_element(Rows, Id, 3, none) of
        none ->
            ok;
        Session ->
            Row = {Id, '$1', '$2', '$3', '$4', '$5', '$6'},
            Changed = setelement(3, Row, {const, maps:merge(Session, Changes)}),
            Unchanged = [{'=:=', '$2', {const, Session}}],
            case ets:select_replace(Rows, [{Row, Unchanged, [{Changed}]}]) of
                1 -> ok;
                0 -> update(Id, Changes, Instance)
            end
    end.

-doc """
Adds `Count` to the running calls of a session. Returns `full`, and adds nothing, if there would be
more than `Max`. Returns `ok`, and adds nothing, if the session has ended.
""".
-spec take_calls(session_id(), Count :: non_neg_integer(), Max :: pos_integer(),
                 erlmcp_instance:instance()) ->
    ok | full.
take_calls(Id, Count, Max, #{sessions := #sessions{rows = Rows}} = Instance) ->
    try ets:update_counter(Rows, Id, {5, Count}) of
        Running when Running > Max ->
            ok = count_calls(Id, -Count, Instance),
            full;
        _ ->
            ok
    catch
        %% The session has just ended, and so will the call.
        error:badarg -> ok
    end.

-doc """
Adds `Count`, which may be negative, to the running calls of a session. Has no effect if the session
has ended.
""".
-spec count_calls(session_id(), Count :: integer(), erlmcp_instance:instance()) -> ok.
count_calls(Id, Count, #{sessions := #sessions{rows = Rows}}) ->
    try
        _ = ets:update_counter(Rows, Id, {5, Count}),
        ok
    catch
        error:badarg -> ok
    end.

-doc "Returns the number of the running calls of a session, 0 if the session has ended.".
-spec running_calls(session_id(), erlmcp_instance:instance()) -> non_neg_integer().
running_calls(Id, #{sessions := #sessions{rows = Rows}}) ->
    ets:lookup_element(Rows, Id, 5, 0).

-doc "Deletes a session, but does not end its process. Has no effect if the session has ended.".
-spec delete(session_id(), erlmcp_instance:instance()) -> ok.
delete(Id, Instance) ->
    _ = take(Id, Instance),
    ok.

-doc """
Deletes a session, and returns its process, which the caller ends, or `none` if it has none. Returns
`gone` if the session has ended before: of several callers, one ends it.
""".
-spec take(session_id(), erlmcp_instance:instance()) -> {ok, pid() | none} | gone.
take(Id, #{sessions := #sessions{rows = Rows}} = Instance) ->
    case ets:take(Rows, Id) of
        [{_, Pid, Session, Used, _, _, Tenant}] ->
            ok = give_back(Tenant, Instance),
            ok = ended(Session, Instance),
            _ = [is_unused({Opened, Id, Tenant}, Instance) || {unused, Opened} <- [Used]],
            {ok, Pid};
        [] ->
            gone
    end.

-doc """
Returns the number of open sessions, including those of HTTP+SSE; 0 if the server has ended.
""".
-spec count(erlmcp_instance:instance()) -> non_neg_integer().
count(#{sessions := #sessions{rows = Rows}}) ->
    case ets:info(Rows, size) of
        undefined -> 0;
        Size -> Size
    end.

-doc """
Returns `true` if the server has ended. Its tables are deleted one after the other when their owner
ends, so some may still be there.
""".
-spec has_ended(erlmcp_instance:instance()) -> boolean().
has_ended(#{sessions := #sessions{rows = Rows}}) ->
    case ets:info(Rows, owner) of
        undefined -> true;
        Owner -> not is_process_alive(Owner)
    end.

-doc """
Returns the ids of the open sessions of Streamable HTTP. Raises `badarg` if the server has ended.
""".
-spec open_ids(erlmcp_instance:instance()) -> [binary()].
open_ids(#{sessions := #sessions{rows = Rows}}) ->
    ets:select(Rows, [{{'$1', '_', '_', '_', '_', '_', '_'}, [{is_binary, '$1'}], ['$1']}]).

-doc """
Returns the processes of the open sessions, including those of HTTP+SSE. Some may have ended. Raises
`badarg` if the server has ended.
""".
-spec pids(erlmcp_instance:instance()) -> [pid()].
pids(#{sessions := #sessions{rows = Rows}}) ->
    ets:select(Rows, [{{'_', '$1', '_', '_', '_', '_', '_'}, [{is_pid, '$1'}], ['$1']}]).

-doc """
Returns up to `Most` open sessions of Streamable HTTP, in no particular order. Each has its id, its
state, how long it was not used, and the number of its running calls. `IdleMs` may be too great by a
hundredth of `session_idle_ms`, and is `unused` if the session was never used. Raises `badarg` if
the server has ended.
""".
-spec list(Most :: pos_integer(), erlmcp_instance:instance()) ->
    [{binary(), erlmcp_engine:session(), IdleMs :: non_neg_integer() | unused,
      Calls :: non_neg_integer()}].
list(Most, #{sessions := #sessions{rows = Rows}}) ->
    Now = erlmcp_clock:now_ms(),
    Found = ets:select(Rows, [{{'$1', '_', '$2', '$3', '$4', '_', '_'}, [{is_binary, '$1'}],
                               ['$$']}], Most),
    case Found of
        '$end_of_table' -> [];
        {Open, _} -> [{Id, Session, idle_ms(Used, Now), Calls}
                      || [Id, Session, Used, Calls] <- Open]
    end.

idle_ms({unused, _}, _) -> unused;
idle_ms(Used, Now) -> max(0, Now - Used).

-doc """
Returns the milliseconds until a session ends if it stays unused, and 0 or less if this time is
over. A session that has ended, or was never used, counts as used just now.
""".
-spec ms_until_idle(session_id(), erlmcp_instance:instance()) -> integer().
ms_until_idle(Id, #{sessions := #sessions{rows = Rows}, limits := #{session_idle_ms := Idle}}) ->
    Now = erlmcp_clock:now_ms(),
    case ets:lookup_element(Rows, Id, 4, Now) of
        Used when is_integer(Used) -> Used + lasting(Idle) - Now;
        {unused, _} -> lasting(Idle)
    end.

%% The index has the unused sessions in the order in which they were opened. So the oldest one, of
%% all or of a tenant, is found without a search. Each session has two rows,
%% `{{Opened, Id}, Tenant}` and `{{Tenant, Opened, Id}}`; pairs come before triples.

add_unused({Opened, Id, Tenant}, Table) ->
    true = ets:insert(Table, [{{Tenant, Opened, Id}}, {{Opened, Id}, Tenant}]),
    ok.

%% Takes a session out of the index because it is used, or to end it. If several processes do so,
%% one of them gets `true`.
take_unused({Opened, Id, Tenant}, Table) ->
    true = ets:delete(Table, {Tenant, Opened, Id}),
    ets:take(Table, {Opened, Id}) =/= [].

oldest(all, Table) ->
    case ets:first(Table) of
        {Opened, Id} = Key ->
            case ets:lookup(Table, Key) of
                [{_, Tenant}] -> {ok, {Opened, Id, Tenant}};
                %% Another process has just taken the session out.
                [] -> oldest(all, Table)
            end;
        _ ->
            none
    end;
oldest({of_tenant, Tenant}, Table) ->
    case ets:next(Table, {Tenant, ?EVER, ~""}) of
        {Tenant, Opened, Id} -> {ok, {Opened, Id, Tenant}};
        _ -> none
    end.

%% Takes the sessions out of the index that were opened before a time.
forget_unused(Before, Table) ->
    Earlier = [{'<', '$1', Before}],
    _ = ets:select_delete(Table, [{{{'$1', '_'}, '_'}, Earlier, [true]},
                                  {{{'_', '$1', '_'}}, Earlier, [true]}]),
    ok.

%% Returns how long a session lasts after the time in its row.
lasting(Milliseconds) ->
    Milliseconds + Milliseconds div ?PART.
