-module(session_table_SUITE).
-moduledoc """
The rows of the open sessions: whose they are, how many calls they run, what has changed for them,
and which of them end first. A row too few is a client that is lost, and one too many is memory that
nobody gives back.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([a_session_is_its_principals/1, messages_change_it_together/1,
         calls_are_counted_to_their_bound/1,
         changes_are_noted_until_somebody_attends/1, the_oldest_unused_ends_first/1,
         who_is_used_is_not_unused/1, each_end_gives_a_place_back/1,
         killed_processes_leave_no_session/1, sessions_without_a_process_are_deleted/1,
         idle_sessions_end_on_time/1, an_unused_session_with_a_process_waits/1,
         as_many_are_listed_as_asked_for/1, an_ended_server_has_no_sessions/1]).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [a_session_is_its_principals, messages_change_it_together, calls_are_counted_to_their_bound,
     changes_are_noted_until_somebody_attends, the_oldest_unused_ends_first,
     who_is_used_is_not_unused, each_end_gives_a_place_back, killed_processes_leave_no_session,
     sessions_without_a_process_are_deleted, idle_sessions_end_on_time,
     an_unused_session_with_a_process_waits, as_many_are_listed_as_asked_for,
     an_ended_server_has_no_sessions].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

with(Limits, Do) ->
    #{pid := Pid} = Server = erlmcp_test_http:start(#{limits => Limits}),
    %% Only the case ends sessions.
    ok = sys:suspend(erlmcp_test_servers:child(session_sweeper, Pid)),
    {ok, _, Instance} = erlmcp_registry:whereis(Pid),
    Do(Instance),
    erlmcp_test_http:stop(Server).

open(Principal, Instance) ->
    erlmcp_session:open(#{revision => '2025-11-25', principal => Principal,
                          client_info => undefined, client_capabilities => #{}, log_level => 6,
                          initialized => true}, Principal, Instance).

opened(Principal, Instance) ->
    {ok, Id} = open(Principal, Instance),
    Id.

found(Id, Principal, Instance) ->
    case erlmcp_session_table:find(Id, Principal, Instance) of
        {ok, Pid, _} -> Pid;
        error -> error
    end.

%% Whoever else guesses its id.
a_session_is_its_principals(_) ->
    with(#{}, fun(Instance) ->
        Id = opened(~"ada", Instance),
        [error = found(Id, Other, Instance) || Other <- [~"bob", anonymous, Id]],
        none = found(Id, ~"ada", Instance),
        error = found(Id, ~"bob", Instance),
        error = found(<<Id/binary, "x">>, ~"ada", Instance),
        {ok, none, #{principal := ~"ada"}, ~"ada"} = erlmcp_session_table:lookup(Id, Instance),
        error = erlmcp_session_table:lookup(~"other", Instance)
    end).

%% Each has found the session before the other one has changed it.
messages_change_it_together(_) ->
    with(#{}, fun(Instance) ->
        Level = #{~"jsonrpc" => ~"2.0", ~"id" => 1, ~"method" => ~"logging/setLevel",
                  ~"params" => #{~"level" => ~"error"}},
        Initialized = #{~"jsonrpc" => ~"2.0", ~"method" => ~"notifications/initialized"},
        [begin
             Id = opened(~"ada", Instance),
             ok = erlmcp_session_table:update(Id, #{initialized => false}, Instance),
             Found = erlmcp_session_request:find(Id, ~"ada", Instance),
             [_ = handled(Json, Found, Instance) || Json <- Messages],
             {_, none, #{log_level := 3, initialized := true, principal := ~"ada"}} =
                 erlmcp_session_request:find(Id, ~"ada", Instance)
         end || Messages <- [[Level, Initialized], [Initialized, Level]]],
        ok = erlmcp_session_table:update(~"other", #{initialized => true}, Instance),
        false = erlmcp_session_table:is_member(~"other", Instance)
    end).

handled(Json, Found, Instance) ->
    {ok, Json, Admitted} =
        erlmcp_admission:enter(Json, erlmcp_meter:arrived(1), ~"ada", Instance),
    erlmcp_session_request:message(Json, Admitted, Found, #{
        context => erlmcp_engine:request_context(#{principal => ~"ada"}, #{}),
        tenant => ~"ada", waiting => {self(), call}, streams => true, quick => false,
        instance => Instance}).

%% At the bound, and one more.
calls_are_counted_to_their_bound(_) ->
    with(#{}, fun(Instance) ->
        Id = opened(~"ada", Instance),
        Take = fun(Count) -> erlmcp_session_table:take_calls(Id, Count, 3, Instance) end,
        Calls = fun() ->
            [{Id, _, _, Running}] = erlmcp_session_table:list(9, Instance),
            Running
        end,
        [ok, ok] = [Take(1), Take(2)],
        {full, 3} = {Take(1), Calls()},
        ok = erlmcp_session_table:count_calls(Id, -2, Instance),
        {full, 1} = {Take(3), Calls()},
        {ok, 3} = {Take(2), Calls()},
        ok = erlmcp_session_table:delete(Id, Instance),
        [ok, ok] = [Take(9), erlmcp_session_table:count_calls(Id, 1, Instance)]
    end).

%% Each list once. From then on the process is told of them.
changes_are_noted_until_somebody_attends(_) ->
    with(#{}, fun(Instance) ->
        [Ada, Bob] = [opened(Principal, Instance) || Principal <- [~"ada", ~"bob"]],
        [ok = erlmcp_session_table:note_change(List, all, Instance)
         || List <- [tool, resource, tool]],
        {ok, Missed} = erlmcp_session_table:attend(Ada, Instance),
        Changed = erlmcp_subscriptions:changed(Missed),
        [resource, tool] = lists:sort(maps:keys(Changed)),
        #{~"method" := ~"notifications/tools/list_changed"} =
            json:decode(map_get(tool, Changed)),
        error = erlmcp_session_table:attend(Ada, Instance),
        Self = self(),
        {Self, [Self]} = {found(Ada, ~"ada", Instance), erlmcp_session_table:pids(Instance)},
        ok = erlmcp_session_table:note_change(prompt, all, Instance),
        {ok, All} = erlmcp_session_table:attend(Bob, Instance),
        [prompt, resource, tool] = lists:sort(maps:keys(erlmcp_subscriptions:changed(All))),
        error = erlmcp_session_table:attend(~"other", Instance)
    end).

%% Of all, or of a tenant. The one that makes room is the new one only where it is alone.
the_oldest_unused_ends_first(_) ->
    with(#{sessions => 3, sessions_per_principal => 2}, fun(Instance) ->
        [Ada, Bob, Eve] = [opened(Principal, Instance)
                           || Principal <- [~"ada", ~"bob", ~"eve"]],
        Oldest = fun(Of) ->
            case erlmcp_session_table:oldest_unused(Of, Instance) of
                {ok, {_, Id, _}} -> Id;
                none -> none
            end
        end,
        [Ada, Bob, none] = [Oldest(Of) || Of <- [all, {of_tenant, ~"bob"}, {of_tenant, ~"joe"}]],
        Second = opened(~"bob", Instance),
        [error, none, none] = [found(Id, Principal, Instance)
                               || {Id, Principal} <- [{Ada, ~"ada"}, {Bob, ~"bob"},
                                                      {Eve, ~"eve"}]],
        %% A third one of a tenant is in place of the tenant's own.
        Third = opened(~"bob", Instance),
        {error, none, none} = {found(Second, ~"bob", Instance), found(Third, ~"bob", Instance),
                               found(Bob, ~"bob", Instance)},
        none = Oldest(all),
        %% All are in use.
        {error, Refusal} = open(~"joe", Instance),
        {concurrent_limit_exceeded, ~"too many open sessions"} =
            {erlmcp_refusal:name(Refusal), iolist_to_binary(erlmcp_refusal:message(Refusal))},
        {error, OfBob} = open(~"bob", Instance),
        ~"too many open sessions of this principal" =
            iolist_to_binary(erlmcp_refusal:message(OfBob)),
        3 = erlmcp_session_table:count(Instance)
    end).

who_is_used_is_not_unused(_) ->
    with(#{}, fun(Instance) ->
        Id = opened(~"ada", Instance),
        {ok, Unused} = erlmcp_session_table:oldest_unused(all, Instance),
        [{Id, _, unused, 0}] = erlmcp_session_table:list(9, Instance),
        none = found(Id, ~"ada", Instance),
        used = erlmcp_session_table:end_unused(Unused, Instance),
        [{Id, _, Idle, 0}] = erlmcp_session_table:list(9, Instance),
        true = is_integer(Idle) andalso Idle >= 0,
        Other = opened(~"ada", Instance),
        {ok, {_, Other, ~"ada"} = Again} = erlmcp_session_table:oldest_unused(all, Instance),
        {ended, none} = erlmcp_session_table:end_unused(Again, Instance),
        used = erlmcp_session_table:end_unused(Again, Instance),
        [true, false] = [erlmcp_session_table:is_member(One, Instance) || One <- [Id, Other]]
    end).

%% Whatever ends it, and once: the tenant has room for just one more.
each_end_gives_a_place_back(_) ->
    with(#{sessions_per_principal => 2}, fun(Instance) ->
        Used = fun() ->
            Id = opened(~"ada", Instance),
            none = found(Id, ~"ada", Instance),
            Id
        end,
        _ = Used(),
        [begin
             Id = Used(),
             {error, _} = open(~"ada", Instance),
             _ = End(Id),
             _ = End(Id)
         end || End <- [fun(Id) -> erlmcp_session_table:delete(Id, Instance) end,
                        fun(Id) -> erlmcp_session_table:take(Id, Instance) end,
                        fun(Id) -> erlmcp_session:delete(Id, Instance) end]],
        _ = Used(),
        {error, _} = open(~"ada", Instance)
    end).

%% They could not delete their rows.
killed_processes_leave_no_session(_) ->
    with(#{}, fun(Instance) ->
        Id = opened(~"ada", Instance),
        Test = self(),
        {Pid, Monitor} = spawn_monitor(fun() ->
            Test ! erlmcp_session_table:attend(Id, Instance),
            receive stop -> ok end
        end),
        receive {ok, 0} -> ok end,
        Pid = found(Id, ~"ada", Instance),
        exit(Pid, kill),
        receive {'DOWN', Monitor, process, Pid, killed} -> ok end,
        error = found(Id, ~"ada", Instance),
        0 = erlmcp_session_table:count(Instance),
        gone = erlmcp_session_table:take(Id, Instance)
    end).

sessions_without_a_process_are_deleted(_) ->
    with(#{}, fun(Instance) ->
        [Ada, Bob] = [opened(Principal, Instance) || Principal <- [~"ada", ~"bob"]],
        {ok, 0} = erlmcp_session_table:attend(Ada, Instance),
        ok = erlmcp_session_table:delete_unattended(Instance),
        [true, false] = [erlmcp_session_table:is_member(Id, Instance) || Id <- [Ada, Bob]],
        Self = self(),
        {ok, Self} = erlmcp_session_table:take(Ada, Instance)
    end).

%% A use moves the end, but for the sessions that have a process, which ends itself.
idle_sessions_end_on_time(_) ->
    erlmcp_test_pauses:undisturbed(100, fun idle_sessions_end_on_time/0).

idle_sessions_end_on_time() ->
    with(#{session_idle_ms => 600, unused_session_ms => 60_000}, fun(Instance) ->
        [Ada, Bob, Eve] = [opened(Principal, Instance)
                           || Principal <- [~"ada", ~"bob", ~"eve"]],
        [none, none] = [found(Ada, ~"ada", Instance), found(Bob, ~"bob", Instance)],
        {ok, 0} = erlmcp_session_table:attend(Bob, Instance),
        Left = erlmcp_session_table:ms_until_idle(Ada, Instance),
        true = Left > 300 andalso Left =< 606,
        ok = erlmcp_session_table:delete_idle(Instance),
        3 = erlmcp_session_table:count(Instance),
        ok = timer:sleep(300),
        none = found(Ada, ~"ada", Instance),
        ok = timer:sleep(310),
        Self = self(),
        {none, Self} = {found(Ada, ~"ada", Instance), found(Bob, ~"bob", Instance)},
        ok = timer:sleep(650),
        [error, error] = [found(Id, Principal, Instance)
                          || {Id, Principal} <- [{Ada, ~"ada"}, {Eve, ~"eve"}]],
        ok = erlmcp_session_table:delete_idle(Instance),
        [] = erlmcp_session_table:end_overdue(Instance),
        [Bob] = [Id || {Id, _, _, _} <- erlmcp_session_table:list(9, Instance)]
    end).

%% A request that inherits a session may be killed after it has started the process of the session,
%% and before it uses the session.
an_unused_session_with_a_process_waits(_) ->
    with(#{session_idle_ms => 60_000}, fun(Instance) ->
        Id = opened(~"ada", Instance),
        {ok, Pid} = erlmcp_session:process(Id, Instance),
        Pid ! idle,
        _ = sys:get_state(Pid),
        {ok, Pid} = erlmcp_session:process(Id, Instance),
        Pid = found(Id, ~"ada", Instance),
        Pid ! idle,
        _ = sys:get_state(Pid)
    end).

as_many_are_listed_as_asked_for(_) ->
    with(#{}, fun(Instance) ->
        [] = erlmcp_session_table:list(9, Instance),
        Ids = [opened(Principal, Instance) || Principal <- [~"ada", ~"bob", ~"eve"]],
        [1, 3] = [length(erlmcp_session_table:list(Most, Instance)) || Most <- [1, 3]],
        true = lists:sort(Ids)
            =:= lists:sort([Id || {Id, _, _, _} <- erlmcp_session_table:list(9, Instance)])
    end).

%% Whoever found it while it ran may read its figures later.
an_ended_server_has_no_sessions(_) ->
    #{pid := Pid} = Server = erlmcp_test_http:start(#{}),
    {ok, _, Instance} = erlmcp_registry:whereis(Pid),
    _ = opened(~"ada", Instance),
    1 = erlmcp_session_table:count(Instance),
    erlmcp_test_http:stop(Server),
    0 = erlmcp_session_table:count(Instance),
    #{sessions := 0} = erlmcp_metrics:in_cluster(Instance),
    #{sessions := #{used := 0}} = erlmcp_bounds:of_server(Instance).
