-module(erlmcp_pool_members).
-moduledoc """
The members of a pool, and which one a call goes to. No process: how many calls a member has and the
state of its circuit breaker are numbers that every call reads and changes itself.

The breaker of a member is closed; after `failures` in a row it opens, and no call goes there; when
its time has passed it is half-open: one call may go there, and closes it again or opens it for twice
as long.
""".

-export([new/3, joined/3, pick/3, leave/4, info/1]).
-export([member/1, pids/1]).

-export_type([pool/0, index/0]).

-type index() :: pos_integer().
-type pool() :: #{
    pool := pid(), members := ets:tid(), numbers := atomics:atomics_ref(), size := pos_integer(),
    options := map()
}.

%% A member's numbers: running calls, failures in a row, monotonic milliseconds until which the
%% breaker is open (0: closed), how often it has opened in a row, whether a call tries it.
-define(NUMBERS, 5).
-define(RUNNING, 1).
-define(FAILED, 2).
-define(UNTIL, 3).
-define(OPENED, 4).
-define(TRYING, 5).

-doc "A pool whose members are to come.".
-spec new(pid(), Targets :: [term(), ...], map()) -> pool().
new(Pid, Targets, Options) ->
    Table = ets:new(members, [public, {read_concurrency, true}]),
    true = ets:insert(Table, [{Index, none, Target} || {Index, Target} <- lists:enumerate(Targets)]),
    Size = length(Targets),
    #{pool => Pid, members => Table, numbers => atomics:new(?NUMBERS * Size, [{signed, true}]),
      size => Size, options => Options}.

-doc "A member has started, or started again: its calls have ended.".
-spec joined(index(), pid(), pool()) -> ok.
joined(Index, Pid, #{members := Table} = Pool) ->
    ok = put(Index, ?RUNNING, 0, Pool),
    true = ets:update_element(Table, Index, {2, Pid}),
    ok.

-doc """
A member for a call, which counts as running there until `leave/4`: the one of the key, or the one
with the fewest calls, of those that work and are not in `Except`. Without one, the milliseconds until
one may be tried.
""".
-spec pick(Key :: {key, term()} | none, Except :: [index()], pool()) ->
    {ok, index(), pid()} | {error, {unavailable, Milliseconds :: non_neg_integer()}}.
pick(Key, Except, #{size := Size} = Pool) ->
    Now = now_ms(),
    Others = lists:seq(1, Size) -- Except,
    Working = [Index || Index <- Others, works(Index, Now, Pool)],
    case lists:sort([{rank(Key, Index, Pool), Index} || Index <- Working]) of
        [] -> {error, {unavailable, shortest(Others, Now, Pool)}};
        Ranked -> take([Index || {_, Index} <- Ranked], Pool)
    end.

rank({key, Key}, Index, _) -> -erlang:phash2({Key, Index}, 1 bsl 32);
rank(none, Index, Pool) -> {get(Index, ?RUNNING, Pool), rand:uniform()}.

works(Index, Now, Pool) ->
    case get(Index, ?UNTIL, Pool) of
        0 -> true;
        Until -> Until =< Now andalso get(Index, ?TRYING, Pool) =:= 0
    end.

take([], Pool) ->
    {error, {unavailable, shortest(lists:seq(1, map_get(size, Pool)), now_ms(), Pool)}};
take([Index | Indexes], #{members := Table} = Pool) ->
    case ets:lookup_element(Table, Index, 2) of
        none ->
            take(Indexes, Pool);
        Pid ->
            case may_enter(Index, Pool) of
                true ->
                    ok = add(Index, ?RUNNING, 1, Pool),
                    {ok, Index, Pid};
                false ->
                    take(Indexes, Pool)
            end
    end.

%% Of all that find it half-open one may try.
may_enter(Index, #{numbers := Numbers} = Pool) ->
    get(Index, ?UNTIL, Pool) =:= 0
        orelse atomics:compare_exchange(Numbers, at(Index, ?TRYING), 0, 1) =:= ok.

shortest(Indexes, Now, Pool) ->
    lists:min([max(1, get(Index, ?UNTIL, Pool) - Now) || Index <- Indexes] ++ [60_000]).

-doc "A call has left a member, which served it or failed; `Pid` is the member it was picked as.".
-spec leave(index(), pid(), served | failed, pool()) -> ok.
leave(Index, Pid, Outcome, #{members := Table} = Pool) ->
    case ets:lookup_element(Table, Index, 2) of
        Pid -> add(Index, ?RUNNING, -1, Pool);
        %% It has been started again since, and counts anew.
        _ -> ok
    end,
    left(Outcome, Index, Pool).

left(served, Index, Pool) ->
    [ok = put(Index, Number, 0, Pool) || Number <- [?FAILED, ?OPENED, ?UNTIL, ?TRYING],
                                         get(Index, Number, Pool) =/= 0],
    ok;
left(failed, Index, #{options := #{failures := Most}} = Pool) ->
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

-doc "The member with the fewest calls, for what is no call.".
-spec member(pool()) -> {ok, pid()} | {error, {unavailable, non_neg_integer()}}.
member(Pool) ->
    case pick(none, [], Pool) of
        {ok, Index, Pid} ->
            ok = add(Index, ?RUNNING, -1, Pool),
            ok = put(Index, ?TRYING, 0, Pool),
            {ok, Pid};
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
    [#{target => Target, state => state(Index, Now, Pool), calls => get(Index, ?RUNNING, Pool),
       failed => get(Index, ?FAILED, Pool)}
     || {Index, _, Target} <- lists:keysort(1, ets:tab2list(Table))].

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
