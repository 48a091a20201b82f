-module(erlmcp_pool_members).
-moduledoc """
The members of a pool, and which one a call goes to. No process: how many calls run at a member its
client knows, and the state of its circuit breaker are numbers that every call reads and changes
itself.

The breaker of a member is closed; after `failures` in a row it opens, and no call goes there; when
its time has passed it is half-open: one call may go there, and closes it again or opens it for
twice as long.
""".

-export([new/3, joined/3, pick/3, leave/3, info/1]).
-export([settings/2, member/1, pids/1]).

-export_type([pool/0, index/0]).

-type index() :: pos_integer().
-type pool() :: #{
    pool := pid(), members := ets:tid(), numbers := atomics:atomics_ref(), size := pos_integer(),
    options := map()
}.

%% A member's numbers: failures in a row, monotonic milliseconds until which the breaker is open (0:
%% closed), how often it has opened in a row, and until when a call that tries it keeps others away.
-define(NUMBERS, 4).
-define(FAILED, 1).
-define(UNTIL, 2).
-define(OPENED, 3).
-define(TRYING, 4).

-doc "A pool whose members are to come.".
-spec new(pid(), [erlmcp_client_options:settings(), ...], map()) -> pool().
new(Pid, Members, Options) ->
    Table = ets:new(members, [public, {read_concurrency, true}]),
    true = ets:insert(Table, [{Index, none, Target}
                              || {Index, #{target := Target}} <- lists:enumerate(Members)]),
    true = ets:insert(Table, [{{settings, Index}, One}
                              || {Index, One} <- lists:enumerate(Members)]),
    Size = length(Members),
    #{pool => Pid, members => Table, numbers => atomics:new(?NUMBERS * Size, [{signed, true}]),
      size => Size, options => Options}.

-doc "What a member is started with.".
-spec settings(index(), pool()) -> erlmcp_client_options:settings().
settings(Index, #{members := Table}) ->
    ets:lookup_element(Table, {settings, Index}, 2).

-doc "A member has started, or started again.".
-spec joined(index(), pid(), pool()) -> ok.
joined(Index, Pid, #{members := Table}) ->
    true = ets:update_element(Table, Index, {2, Pid}),
    ok.

-doc """
A member for a call: the one of the key, or the one with the fewest calls, of those that work and
are not in `Except`. Without one, the milliseconds until one may be tried. What came of the call has
to be told to `leave/3`.
""".
-spec pick(Key :: {key, term()} | none, Except :: [index()], pool()) ->
    {ok, index(), erlmcp_peer:client()} | {error, {unavailable, Milliseconds :: non_neg_integer()}}.
pick(Key, Except, #{size := Size} = Pool) ->
    Now = now_ms(),
    Others = lists:seq(1, Size) -- Except,
    Working = [{rank(Key, Index, Client), Index, Client}
               || Index <- Others, works(Index, Now, Pool), {ok, Client} <- [client(Index, Pool)]],
    take(lists:sort(Working), Others, Now, Pool).

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

works(Index, Now, Pool) ->
    case get(Index, ?UNTIL, Pool) of
        0 -> true;
        Until -> Until =< Now andalso get(Index, ?TRYING, Pool) =< Now
    end.

take([], Others, Now, Pool) ->
    {error, {unavailable, shortest(Others, Now, Pool)}};
take([{_, Index, Client} | Ranked], Others, Now, Pool) ->
    case may_enter(Index, Now, Pool) of
        true -> {ok, Index, Client};
        false -> take(Ranked, Others, Now, Pool)
    end.

%% Of all that find it half-open one may try; for so long, since it may die on the way.
may_enter(Index, Now, #{numbers := Numbers, options := #{longest_open_ms := Trial}} = Pool) ->
    case {get(Index, ?UNTIL, Pool), get(Index, ?TRYING, Pool)} of
        {0, _} ->
            true;
        {_, Before} ->
            atomics:compare_exchange(Numbers, at(Index, ?TRYING), Before, Now + Trial) =:= ok
    end.

shortest(Indexes, Now, Pool) ->
    lists:min([max(1, get(Index, ?UNTIL, Pool) - Now) || Index <- Indexes] ++ [60_000]).

-doc "A call has left a member, which served it or failed.".
-spec leave(index(), served | failed, pool()) -> ok.
leave(Index, served, Pool) ->
    [ok = put(Index, Number, 0, Pool) || Number <- [?FAILED, ?OPENED, ?UNTIL, ?TRYING],
                                         get(Index, Number, Pool) =/= 0],
    ok;
leave(Index, failed, #{options := #{failures := Most}} = Pool) ->
    ok = add(Index, ?FAILED, 1, Pool),
    case get(Index, ?FAILED, Pool) >= Most of
        true -> open(Index, Pool);
        false -> ok
    end.

%% Those that fail together open it once.
open(Index, #{options := #{open_ms := First, longest_open_ms := Longest}} = Pool) ->
    Now = now_ms(),
    case get(Index, ?UNTIL, Pool) > Now of
        true ->
            ok;
        false ->
            Opened = get(Index, ?OPENED, Pool),
            Milliseconds = min(Longest, First bsl min(Opened, 20)),
            %% Never sooner, and not all members of all nodes at once.
            Until = Now + Milliseconds + rand:uniform(max(1, Milliseconds div 10)),
            ok = put(Index, ?OPENED, Opened + 1, Pool),
            ok = put(Index, ?UNTIL, Until, Pool),
            put(Index, ?TRYING, 0, Pool)
    end.

-doc "The client with the fewest calls, for what is no call.".
-spec member(pool()) -> {ok, erlmcp_peer:client()} | {error, {unavailable, non_neg_integer()}}.
member(Pool) ->
    case pick(none, [], Pool) of
        {ok, Index, Client} ->
            ok = put(Index, ?TRYING, 0, Pool),
            {ok, Client};
        {error, _} = Error ->
            Error
    end.

-doc "Every member that runs.".
-spec pids(pool()) -> [pid()].
pids(#{members := Table}) ->
    [Pid || {Index, Pid, _} <- ets:tab2list(Table), is_integer(Index), is_pid(Pid)].

-doc "See `erlmcp_pool:info/1`.".
-spec info(pool()) -> [map()].
info(#{members := Table} = Pool) ->
    Now = now_ms(),
    [#{target => Target, state => state(Index, Now, Pool), calls => calls(Index, Pool),
       failed => get(Index, ?FAILED, Pool)}
     || {Index, _, Target} <- lists:keysort(1, ets:tab2list(Table)), is_integer(Index)].

calls(Index, Pool) ->
    case client(Index, Pool) of
        {ok, #{calls := Calls}} -> ets:info(Calls, size);
        _ -> 0
    end.

state(Index, Now, Pool) ->
    case get(Index, ?UNTIL, Pool) of
        0 -> closed;
        Until when Until > Now -> open;
        _ -> half_open
    end.

at(Index, Number) ->
    (Index - 1) * ?NUMBERS + Number.

get(Index, Number, #{numbers := Numbers}) -> atomics:get(Numbers, at(Index, Number)).
put(Index, Number, Value, #{numbers := Numbers}) -> atomics:put(Numbers, at(Index, Number), Value).
add(Index, Number, Value, #{numbers := Numbers}) -> atomics:add(Numbers, at(Index, Number), Value).

%% Monotonic time may be negative, and 0 is a breaker that is closed.
now_ms() ->
    erlang:monotonic_time(millisecond) - erlang:system_info(start_time) div 1_000_000 + 1.
