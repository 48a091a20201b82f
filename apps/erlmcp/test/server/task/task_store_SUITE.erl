-module(task_store_SUITE).
-moduledoc """
What every store of tasks must hold, whatever it keeps them in: a group for each of them.
`cluster_tasks_SUITE` runs these cases for the store of a cluster, on one of its nodes.
""".

-export([suite/0, all/0, groups/0, init_per_group/2, end_per_group/2]).
-export([what_is_put_is_got/1, put_is_bounded/1, principals_are_bounded/1,
         the_anonymous_are_bounded_apart/1, a_change_follows_its_version/1,
         of_racing_changes_one_is_made/1, results_are_bounded/1, lists_are_their_owners/1,
         lists_have_pages/1, deleted_is_gone/1, expired_is_gone/1,
         sweep_forgets_the_expired/1, the_kept_are_counted/1]).

-define(LIMITS, #{tasks => 10, tasks_per_principal => 6, task_bytes => 1000,
                  task_bytes_per_principal => 700}).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, erlmcp_task_store_ets}].

groups() ->
    Cases = erlmcp_test_suite:cases(?MODULE),
    [{erlmcp_task_store_ets, Cases}].

init_per_group(Module, Config) ->
    [{module, Module} | Config].

end_per_group(_, _) ->
    ok.

open(Config) ->
    erlmcp_task_records:open({proplists:get_value(module, Config),
                              proplists:get_value(options, Config, #{})}, ?LIMITS).

task(Id) ->
    task(Id, anonymous).

task(Id, Principal) ->
    #{id => Id, version => 1, principal => Principal, tenant => Principal,
      owner => {principal, Principal},
      node => node(), status => working, created => erlang:system_time(millisecond),
      updated => erlang:system_time(millisecond), ttl => 60_000, requests => #{}, bytes => 0}.

fill(Store, Principal, Count) ->
    [begin
         Task = task(<<(term_to_binary(Principal))/binary, N>>, Principal),
         ok = erlmcp_task_records:put(Task, Store),
         Task
     end || N <- lists:seq(1, Count)].

what_is_put_is_got(Config) ->
    Store = open(Config),
    error = erlmcp_task_records:get(~"a", Store),
    Task = (task(~"a"))#{message => ~"as it was"},
    ok = erlmcp_task_records:put(Task, Store),
    {ok, Task} = erlmcp_task_records:get(~"a", Store).

put_is_bounded(Config) ->
    Store = open(Config),
    _ = fill(Store, ~"one", 6),
    [#{id := Id} | _] = fill(Store, ~"two", 4),
    %% The refused ones take nothing of their principal's share.
    [{error, {full, 10}} = erlmcp_task_records:put(task(~"more", ~"three"), Store)
     || _ <- lists:seq(1, 7)],
    error = erlmcp_task_records:get(~"more", Store),
    ok = erlmcp_task_records:delete(Id, Store),
    ok = erlmcp_task_records:put(task(~"more", ~"three"), Store),
    {error, {full, 10}} = erlmcp_task_records:put(task(~"again", ~"three"), Store).

principals_are_bounded(Config) ->
    Store = open(Config),
    [#{id := Id} | _] = fill(Store, ~"one", 6),
    {error, {full, 6}} = erlmcp_task_records:put(task(~"more", ~"one"), Store),
    %% The refused one took no place.
    _ = fill(Store, ~"two", 4),
    ok = erlmcp_task_records:delete(Id, Store),
    ok = erlmcp_task_records:put(task(~"more", ~"one"), Store).

%% The anonymous are told apart by where they come from. Who may see a task does not change by it.
the_anonymous_are_bounded_apart(Config) ->
    Store = open(Config),
    From = fun(Network, N) ->
        Id = <<Network, N>>,
        erlmcp_task_records:put((task(Id))#{tenant := {anonymous, {127, 0, 0, Network}}}, Store)
    end,
    [ok = From(1, N) || N <- lists:seq(1, 6)],
    {error, {full, 6}} = From(1, 7),
    [ok = From(2, N) || N <- lists:seq(1, 4)],
    {error, {full, 10}} = From(2, 5),
    {Listed, false} = erlmcp_task_records:list({principal, anonymous}, first, 100, Store),
    10 = length(Listed).

a_change_follows_its_version(Config) ->
    Store = open(Config),
    Task = task(~"a"),
    {error, changed} = erlmcp_task_records:update(Task#{version := 2}, Store),
    ok = erlmcp_task_records:put(Task, Store),
    Second = Task#{version := 2, status := input_required},
    ok = erlmcp_task_records:update(Second, Store),
    {error, changed} = erlmcp_task_records:update(Task#{version := 2, status := failed}, Store),
    {error, changed} = erlmcp_task_records:update(Task#{version := 4}, Store),
    {ok, Second} = erlmcp_task_records:get(~"a", Store).

of_racing_changes_one_is_made(Config) ->
    Store = open(Config),
    Task = task(~"a"),
    ok = erlmcp_task_records:put(Task, Store),
    Test = self(),
    Racers = [spawn_link(fun() ->
        receive go -> ok end,
        Test ! {self(), N, erlmcp_task_records:update(Task#{version := 2, updated := N}, Store)}
    end) || N <- lists:seq(1, 50)],
    _ = [Racer ! go || Racer <- Racers],
    Made = [receive {Racer, N, Result} -> {N, Result} end || Racer <- Racers],
    [Winner] = [N || {N, ok} <- Made],
    [] = [Result || {_, Result} <- Made, Result =/= ok, Result =/= {error, changed}],
    {ok, #{updated := Winner}} = erlmcp_task_records:get(~"a", Store).

results_are_bounded(Config) ->
    Store = open(Config),
    [A, B | _] = fill(Store, ~"one", 3),
    [C | _] = fill(Store, ~"two", 1),
    ok = erlmcp_task_records:update(A#{version := 2, bytes := 700}, Store),
    {error, {full, 700}} = erlmcp_task_records:update(B#{version := 2, bytes := 1}, Store),
    {error, {full, 1000}} = erlmcp_task_records:update(C#{version := 2, bytes := 301}, Store),
    ok = erlmcp_task_records:update(C#{version := 2, bytes := 300}, Store),
    %% It is as it was, and can still end without.
    #{id := Id} = B,
    {ok, B} = erlmcp_task_records:get(Id, Store),
    ok = erlmcp_task_records:update(B#{version := 2, status := failed}, Store),
    ok = erlmcp_task_records:delete(maps:get(id, A), Store),
    ok = erlmcp_task_records:update(B#{version := 3, bytes := 700}, Store).

lists_are_their_owners(Config) ->
    Store = open(Config),
    Ones = fill(Store, 1, 3),
    Twos = fill(Store, 1.0, 2),
    {Ones, false} = erlmcp_task_records:list({principal, 1}, first, 100, Store),
    {Twos, false} = erlmcp_task_records:list({principal, 1.0}, first, 100, Store),
    {[], false} = erlmcp_task_records:list({session, {self(), 1}}, first, 100, Store).

lists_have_pages(Config) ->
    Store = open(Config),
    %% Made in one millisecond or in several, each is listed once.
    [A, B, C, D, E] = [begin
        Task = (task(Id, ~"one"))#{created := Created},
        ok = erlmcp_task_records:put(Task, Store),
        Task
    end || {Id, Later} <- [{~"z", 0}, {~"b", 1}, {~"c", 1}, {~"d", 1}, {~"a", 2}],
           Created <- [erlang:system_time(millisecond) + Later * 1000]],
    List = fun(#{created := Created, id := Id}, Count) ->
        erlmcp_task_records:list({principal, ~"one"}, {Created, Id}, Count, Store)
    end,
    {[A, B], true} = erlmcp_task_records:list({principal, ~"one"}, first, 2, Store),
    {[C, D], true} = List(B, 2),
    {[E], false} = List(D, 2),
    {[E], false} = List(D, 1),
    %% After one that is gone meanwhile.
    ok = erlmcp_task_records:delete(~"b", Store),
    {[C], true} = List(B, 1).

deleted_is_gone(Config) ->
    Store = open(Config),
    [#{id := Id} = Task | Tasks] = fill(Store, ~"one", 3),
    ok = erlmcp_task_records:delete(Id, Store),
    ok = erlmcp_task_records:delete(Id, Store),
    error = erlmcp_task_records:get(Id, Store),
    {error, changed} = erlmcp_task_records:update(Task#{version := 2}, Store),
    {Tasks, false} = erlmcp_task_records:list({principal, ~"one"}, first, 100, Store).

expired_is_gone(Config) ->
    Store = open(Config),
    Now = erlang:system_time(millisecond),
    Task = (task(~"a"))#{created := Now - 1000, ttl := 1000},
    ok = erlmcp_task_records:put(Task, Store),
    error = erlmcp_task_records:get(~"a", Store),
    {[], false} = erlmcp_task_records:list({principal, anonymous}, first, 100, Store).

sweep_forgets_the_expired(Config) ->
    Store = open(Config),
    Now = erlang:system_time(millisecond),
    Ttls = [50_000, 10_000, 40_000, 20_000, 30_000, 60_000],
    ok = lists:foreach(fun(Ttl) ->
        Task = (task(integer_to_binary(Ttl)))#{created := Now, ttl := Ttl, bytes := 0},
        ok = erlmcp_task_records:put(Task, Store),
        ok = erlmcp_task_records:update(Task#{version := 2, bytes := 100}, Store)
    end, Ttls),
    {error, {full, 6}} = erlmcp_task_records:put(task(~"more"), Store),
    ok = erlmcp_task_records:sweep(Now + 30_000, Store),
    error = erlmcp_task_records:get(~"30000", Store),
    {Left, false} = erlmcp_task_records:list({principal, anonymous}, first, 100, Store),
    [~"40000", ~"50000", ~"60000"] = lists:sort([Id || #{id := Id} <- Left]),
    %% Their places and bytes are free.
    Tasks = fill(Store, anonymous, 3),
    [Last | _] = Tasks,
    {error, {full, 700}} = erlmcp_task_records:update(Last#{version := 2, bytes := 401}, Store),
    ok = erlmcp_task_records:update(Last#{version := 2, bytes := 400}, Store).

%% Those that have ended, too.
the_kept_are_counted(Config) ->
    Store = open(Config),
    {ok, 0} = erlmcp_task_records:count(Store),
    [#{id := Id} = Task | _] = fill(Store, ~"one", 3),
    ok = erlmcp_task_records:update(Task#{version := 2, status := completed}, Store),
    {ok, 3} = erlmcp_task_records:count(Store),
    ok = erlmcp_task_records:delete(Id, Store),
    {ok, 2} = erlmcp_task_records:count(Store).
