-module(erlmcp_pool_members).
-moduledoc """
The members of a pool, and the calls that they run. A call is tried at one member and, where
repeating is safe, at others, within one timeout. The process that makes the call chooses the
member, and asks no other process. Each member has a breaker (`m:erlmcp_breaker`).

Internal.
""".

-export([new/3, settings/2, member_started/3]).
-export([run/3, start/4, cancel/2, member/1, pids/1, info/1]).

-export_type([pool/0, index/0]).

%% The shortest pause before members are tried again, in milliseconds; jitter at most doubles it.
-define(PAUSE, 50).

-type index() :: pos_integer().
-type pool() :: #{
    pool := pid(), members := ets:tid(), breakers := tuple(), size := pos_integer(),
    options := map()
}.

-doc """
Creates a pool whose supervisor is `Pid`. The members are not started yet. `Members` has the
settings of each member. `Options` are those of `t:erlmcp_pool:options/0`, with their defaults and
without `targets`. The calling process owns the pool's table.
""".
-spec new(Pid :: pid(), Members :: [erlmcp_client_options:settings(), ...], Options :: map()) ->
    pool().
new(Pid, Members, Options) ->
    %% The rows are the members, their settings, and the processes of calls that `start/4` started.
    Table = ets:new(members, [public, {read_concurrency, true}]),
    true = ets:insert(Table, [{Index, none, Target}
                              || {Index, #{target := Target}} <- lists:enumerate(Members)]),
    true = ets:insert(Table, [{{settings, Index}, One}
                              || {Index, One} <- lists:enumerate(Members)]),
    Size = length(Members),
    Breaker = maps:with([failures, open_ms, longest_open_ms], Options),
    Breakers = list_to_tuple([erlmcp_breaker:new(Breaker) || _ <- Members]),
    #{pool => Pid, members => Table, breakers => Breakers, size => Size, options => Options}.

-doc "Returns the settings that a member is started with.".
-spec settings(index(), pool()) -> erlmcp_client_options:settings().
settings(Index, #{members := Table}) ->
    ets:lookup_element(Table, {settings, Index}, 2).

-doc "Records that a member has started, or started again.".
-spec member_started(index(), pid(), pool()) -> ok.
member_started(Index, Pid, #{members := Table}) ->
    true = ets:update_element(Table, Index, {2, Pid}),
    ok.

-doc """
Runs an operation at a member, and returns its outcome. If the operation fails and may be repeated,
tries again up to `retries` times, at other members first. If no member works at the first try,
returns `{error, {unavailable, Milliseconds}}`. After `Milliseconds`, a member may be tried again.
The call options `key` and `repeatable` are those of `m:erlmcp_pool`.
""".
-spec run(erlmcp_client:operation(), pool(), map()) ->
    {ok, term()} | {error, erlmcp_client:reason()}.
run(Operation, #{options := #{retries := Retries}} = Pool, Options) ->
    Key = case Options of
        #{key := Value} -> {key, Value};
        #{} -> none
    end,
    {Method, _} = erlmcp_client_operation:request(Operation),
    Repeatable = maps:get(repeatable, Options, erlmcp_client_operation:is_safe(Method)),
    Call = maps:without([key, repeatable], Options),
    Begun = erlmcp_clock:now_ms(),
    try_at(Operation, {Call, Begun}, {Key, [], Pool}, Repeatable, {Retries, none}).

%% `Retries` is the number of further tries, and `Last` the outcome of the previous one.
try_at(Operation, Options, {Key, Tried, Pool}, Repeatable, {Retries, Last}) ->
    case {pick(Key, Tried, Pool), Last} of
        {{ok, Index, Client, Entry}, _} ->
            case {Last, left_ms(timeout, Options, Client)} of
                {{some, Before}, Left} when Left =< 0 ->
                    ok = erlmcp_breaker:spare(breaker(Index, Pool), Entry),
                    Before;
                _ ->
                    Watcher = watch_trial(breaker(Index, Pool), Entry),
                    Outcome = erlmcp_client_call:run(Operation, Client, in_time(Options, Client)),
                    _ = report(Outcome, breaker(Index, Pool), Entry),
                    ok = reported(Watcher),
                    case Retries > 0 andalso is_repeated(Outcome, Repeatable) of
                        true ->
                            try_at(Operation, Options, {Key, [Index | Tried], Pool}, Repeatable,
                                   {Retries - 1, {some, Outcome}});
                        false ->
                            Outcome
                    end
            end;
        {{error, Reason} = Unavailable, none} ->
            ok = refused(Operation, Reason, Pool),
            Unavailable;
        {{error, _}, {some, Outcome}} when Tried =:= [] ->
            Outcome;
        {{error, _}, _} ->
            %% All members were tried, so they are tried again after a pause.
            receive
            after ?PAUSE + rand:uniform(?PAUSE) ->
                try_at(Operation, Options, {Key, [], Pool}, Repeatable, {Retries, Last})
            end
    end.

%% The servers of a pool are equal, so its refusals count as requests to the first one.
refused(Operation, Reason, #{members := Table}) ->
    Server = fun() -> [erlmcp_client_meter:server(ets:lookup_element(Table, 1, 3))] end,
    case in_table(Server) of
        [Number] ->
            erlmcp_client_meter:unsent(erlmcp_client_operation:request(Operation), {Number, none},
                                       erlang:monotonic_time(nanosecond), Reason);
        [] ->
            ok
    end.

%% Sets the times of a try to what is left of the call's, which began with the first try.
in_time({Options, _} = Call, Client) ->
    Options#{timeout => max(1, left_ms(timeout, Call, Client)),
             max_timeout => max(1, left_ms(max_timeout, Call, Client))}.

left_ms(Name, {Options, Begun}, #{settings := Settings}) ->
    Begun + maps:get(Name, Options, map_get(Name, Settings)) - erlmcp_clock:now_ms().

%% The process of a trial may be killed before it reports. Another call can then be the trial at
%% once.
watch_trial(Breaker, Entry) ->
    Caller = self(),
    case erlmcp_breaker:is_trial(Entry) of
        true ->
            spawn(fun() ->
                Monitor = monitor(process, Caller),
                receive
                    reported -> ok;
                    {'DOWN', Monitor, process, _, _} -> erlmcp_breaker:spare(Breaker, Entry)
                end
            end);
        false ->
            none
    end.

reported(none) -> ok;
reported(Watcher) -> Watcher ! reported, ok.

%% A limit of the client says nothing about the member.
report({error, {overload, _}}, Breaker, Entry) -> erlmcp_breaker:spare(Breaker, Entry);
report({error, {closed, {overload, _}}}, Breaker, Entry) -> erlmcp_breaker:spare(Breaker, Entry);
report(Outcome, Breaker, Entry) -> erlmcp_breaker:leave(Breaker, Entry, verdict(Outcome)).

%% Returns `failed` for a failure that counts against the member, and not only for this call.
verdict({error, {connect, _}}) -> failed;
verdict({error, {closed, {http, Status, _, _}}}) when Status < 500 -> served;
verdict({error, {closed, _}}) -> failed;
verdict({error, {timeout, _}}) -> failed;
verdict({error, timeout}) -> failed;
verdict({error, {http, Status, _, _}}) when Status >= 500 -> failed;
verdict({error, {protocol, _}}) -> failed;
verdict({error, stopped}) -> failed;
verdict(_) -> served.

is_repeated({error, {connect, _}}, _) -> true;
is_repeated({error, {closed, unprocessed}}, _) -> true;
is_repeated({error, {overload, _}}, _) -> true;
is_repeated({error, stopped}, Repeatable) -> Repeatable;
is_repeated({error, {http, 503, _, _}}, _) -> true;
is_repeated({error, {http, 429, _, _}}, _) -> true;
is_repeated({error, {closed, _}}, Repeatable) -> Repeatable;
is_repeated({error, {http, Status, _, _}}, Repeatable) -> Status >= 500 andalso Repeatable;
is_repeated(_, _) -> false.

%% Chooses a member that is not in `Except`, and whose breaker allows a call. With a key it is the
%% member of that key, otherwise the one with the fewest calls. If there is none, the error has the
%% milliseconds until one may be tried. The caller must report the outcome to the breaker of the
%% member.
pick(Key, Except, #{size := Size} = Pool) ->
    Others = lists:seq(1, Size) -- Except,
    Working = [{rank(Key, Index, Client), Index, Client}
               || Index <- Others, erlmcp_breaker:works(breaker(Index, Pool)),
                  {ok, Client} <- [client(Index, Pool)]],
    take(lists:sort(Working), Others, Pool).

client(Index, #{members := Table}) ->
    try ets:lookup_element(Table, Index, 2) of
        none -> none;
        Pid -> erlmcp_client_table:find(Pid)
    catch
        %% The table ends with the pool.
        error:badarg -> none
    end.

rank({key, Key}, Index, _) -> -erlang:phash2({Key, Index}, 1 bsl 32);
rank(none, _, #{calls := Calls}) -> {erlmcp_client_calls:count(Calls), rand:uniform()}.

take([], Others, Pool) ->
    Waits = [erlmcp_breaker:opens_in(breaker(Index, Pool)) || Index <- Others],
    {error, {unavailable, lists:min(Waits ++ [60_000])}};
take([{_, Index, Client} | Ranked], Others, Pool) ->
    case erlmcp_breaker:enter(breaker(Index, Pool)) of
        {ok, Entry} -> {ok, Index, Client, Entry};
        {open, _} -> take(Ranked, Others, Pool)
    end.

-doc """
Starts an operation without waiting for it, as described at `erlmcp_client:async/3`. `Receiver` is
the process that gets the messages. Notifications are dropped while `Receiver` does not read its
messages.
""".
-spec start(erlmcp_client:operation(), pool(), map(), Receiver :: pid()) ->
    reference().
start(Operation, #{members := Table} = Pool, Options, Receiver) ->
    Reference = make_ref(),
    Tell = fun(Kind) ->
        fun(Params) ->
            erlmcp_client_mailbox:offer(Receiver, {erlmcp, Reference, {Kind, Params}})
        end
    end,
    Reporting = maps:merge(#{progress => Tell(progress), log => Tell(log)}, Options),
    Pid = spawn(fun() ->
        Outcome = waited(fun() -> run(Operation, Pool, Reporting) end, Receiver, Reference),
        _ = in_table(fun() -> ets:delete(Table, Reference) end),
        Receiver ! {erlmcp, Reference, Outcome}
    end),
    _ = in_table(fun() -> ets:insert(Table, {Reference, Pid}) end),
    Pid ! {go, Reference},
    Reference.

%% If the table is gone, the pool has ended, and its members tell their callers. The meter's table
%% ends with the application.
in_table(Access) ->
    try
        Access()
    catch
        error:badarg -> []
    end.

%% The call ends with the process that runs it.
waited(Run, Receiver, Reference) ->
    Gone = monitor(process, Receiver),
    receive
        {go, Reference} -> waited(Run, Receiver, Gone, Reference);
        %% The receiver was killed when it had just started this process.
        {'DOWN', Gone, process, Receiver, _} -> {error, cancelled}
    end.

waited(Run, Receiver, Gone, Reference) ->
    {Pid, Monitor} = erlmcp_one_shot:start(Run, []),
    receive
        {'DOWN', Monitor, process, Pid, {outcome, Outcome}} ->
            Outcome;
        {'DOWN', Monitor, process, Pid, Reason} ->
            {error, {crashed, Reason}};
        {'DOWN', Gone, process, Receiver, _} ->
            exit(Pid, kill),
            {error, cancelled};
        {erlmcp_cancel, Reference} ->
            exit(Pid, kill),
            {error, cancelled}
    end.

-doc """
Asks the call of a reference from `start/4` to end with `{error, cancelled}`. Does nothing if the
call or the pool has ended.
""".
-spec cancel(reference(), pool()) -> ok.
cancel(Reference, #{members := Table}) ->
    lists:foreach(fun({_, Pid}) -> Pid ! {erlmcp_cancel, Reference} end,
                  in_table(fun() -> ets:lookup(Table, Reference) end)).

-doc """
Returns the client with the fewest calls, for functions that make no call, such as subscribing.
Returns `{error, {unavailable, Milliseconds}}` if no member works. After `Milliseconds`, a member
may be tried again.
""".
-spec member(pool()) ->
    {ok, erlmcp_client_connection:client()} | {error, {unavailable, non_neg_integer()}}.
member(Pool) ->
    case pick(none, [], Pool) of
        {ok, Index, Client, Entry} ->
            ok = erlmcp_breaker:spare(breaker(Index, Pool), Entry),
            {ok, Client};
        {error, _} = Error ->
            Error
    end.

-doc "Returns the processes of all members, some of which may have ended.".
-spec pids(pool()) -> [pid()].
pids(Pool) ->
    [Pid || {_, Pid, _} <- rows(Pool), is_pid(Pid)].

-doc "Returns the state of each member, as `erlmcp_pool:info/1` does; `[]` if the pool has ended.".
-spec info(pool()) -> [map()].
info(Pool) ->
    [#{target => Target, state => erlmcp_breaker:state(breaker(Index, Pool)),
       calls => calls(Index, Pool), failed => erlmcp_breaker:failed(breaker(Index, Pool))}
     || {Index, _, Target} <- lists:keysort(1, rows(Pool))].

rows(#{members := Table}) ->
    [Row || {Index, _, _} = Row <- in_table(fun() -> ets:tab2list(Table) end), is_integer(Index)].

calls(Index, Pool) ->
    case client(Index, Pool) of
        {ok, #{calls := Calls}} -> erlmcp_client_calls:running(Calls);
        _ -> 0
    end.

breaker(Index, #{breakers := Breakers}) ->
    element(Index, Breakers).
