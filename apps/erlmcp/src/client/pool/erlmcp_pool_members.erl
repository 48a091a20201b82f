-module(erlmcp_pool_members).
-moduledoc """
The members of a pool, and the choice of one for a call. No process is asked: the clients' own
tables count running calls, and a breaker (`erlmcp_breaker`) is atomics that calls change.

Internal.
""".

-export([new/3, member_started/3, pick/3, leave/3, info/1]).
-export([settings/2, member/1, pids/1]).

-export_type([pool/0, index/0]).

-type index() :: pos_integer().
-type pool() :: #{
    pool := pid(), members := ets:tid(), breakers := tuple(), size := pos_integer(),
    options := map()
}.

-doc "Creates a pool whose members are not started yet.".
-spec new(pid(), [erlmcp_client_options:settings(), ...], map()) -> pool().
new(Pid, Members, Options) ->
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
Picks a member for a call among those that work and are not in `Except`. With a key it is the member
of the key, otherwise the one with the fewest calls. Without such a member it returns the
milliseconds until one may be tried. The caller must report the outcome with `leave/3`.
""".
-spec pick(Key :: {key, term()} | none, Except :: [index()], pool()) ->
    {ok, index(), erlmcp_client_connection:client()}
        | {error, {unavailable, Milliseconds :: non_neg_integer()}}.
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
rank(none, _, #{calls := Calls}) -> {ets:info(Calls, size), rand:uniform()}.

take([], Others, Pool) ->
    Waits = [erlmcp_breaker:opens_in(breaker(Index, Pool)) || Index <- Others],
    {error, {unavailable, lists:min(Waits ++ [60_000])}};
take([{_, Index, Client} | Ranked], Others, Pool) ->
    case erlmcp_breaker:enter(breaker(Index, Pool)) of
        ok -> {ok, Index, Client};
        {open, _} -> take(Ranked, Others, Pool)
    end.

-doc "Reports the end of a call at a member, which served it or failed.".
-spec leave(index(), served | failed, pool()) -> ok.
leave(Index, Outcome, Pool) ->
    _ = erlmcp_breaker:leave(breaker(Index, Pool), Outcome),
    ok.

-doc "Returns the client with the fewest calls, for operations that are not calls.".
-spec member(pool()) ->
    {ok, erlmcp_client_connection:client()} | {error, {unavailable, non_neg_integer()}}.
member(Pool) ->
    case pick(none, [], Pool) of
        {ok, Index, Client} ->
            ok = erlmcp_breaker:spare(breaker(Index, Pool)),
            {ok, Client};
        {error, _} = Error ->
            Error
    end.

-doc "Returns the processes of all members that run.".
-spec pids(pool()) -> [pid()].
pids(#{members := Table}) ->
    [Pid || {Index, Pid, _} <- ets:tab2list(Table), is_integer(Index), is_pid(Pid)].

-doc "Returns what `erlmcp_pool:info/1` returns.".
-spec info(pool()) -> [map()].
info(#{members := Table} = Pool) ->
    [#{target => Target, state => erlmcp_breaker:state(breaker(Index, Pool)),
       calls => calls(Index, Pool), failed => erlmcp_breaker:failed(breaker(Index, Pool))}
     || {Index, _, Target} <- lists:keysort(1, ets:tab2list(Table)), is_integer(Index)].

calls(Index, Pool) ->
    case client(Index, Pool) of
        {ok, #{calls := Calls}} -> ets:info(Calls, size);
        _ -> 0
    end.

breaker(Index, #{breakers := Breakers}) ->
    element(Index, Breakers).
