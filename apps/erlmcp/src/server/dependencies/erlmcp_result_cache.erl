-module(erlmcp_result_cache).
-moduledoc """
The cached results of a server, for definitions with the field `cache`. A result is found by its
definition, its URI if it has one, its arguments and, unless the scope is `public`, its principal.
Only complete results without an error are kept. Over the limits `cache_entries` and `cache_bytes`
the oldest results are dropped.

One of several equal calls runs, and the others get its result or error. If that call crashes, is
killed, asks for input or returns no valid result, the next one runs.

Internal.
""".

-behaviour(gen_server).

-export([start_link/1, around/1, forget/1, forget/2, forget/3, info/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

-define(HITS, 1).
-define(MISSES, 2).
-define(BYTES, 3).
%% Milliseconds between two sweeps of expired results.
-define(SWEEP, 60_000).

-doc "Starts the cache of an instance.".
-spec start_link(erlmcp_instance:instance()) -> gen_server:start_ret().
start_link(Instance) ->
    gen_server:start_link(?MODULE, Instance, [{hibernate_after, 1000}]).

-doc """
Returns a fun that the catalog of the server with the key `Server` calls for a definition with the
field `cache`. This fun returns the middleware that caches the definition's results. `Place` is a
number that no other definition has had. So a later definition with the same name does not get the
results of this one.
""".
-spec around(Server :: reference()) ->
    fun((erlmcp_definition:kind(), Place :: non_neg_integer(), erlmcp_definition:definition()) ->
            erlmcp:middleware()).
around(Server) ->
    fun(Kind, Place, #{key := Key, cache := Wanted} = Given) ->
        Definition = definition(Kind, Key),
        Keepable = fun(Return, Context) -> is_result(Kind, Return, Given, Context) end,
        fun(Arguments, Context, Next) ->
            case persistent_term:get({?MODULE, Server}, none) of
                %% The client's answers to questions are not in the arguments.
                #{} = Cache when not is_map_key(input, Context) ->
                    Target = maps:get(uri, Context, Key),
                    Scope = scope(Wanted, Context),
                    Row = {target(Target), Definition, hash({Place, Scope, Target, Arguments})},
                    through(Row, Wanted#{keepable => Keepable}, Arguments, Context, Next, Cache);
                _ ->
                    Next(Arguments, Context)
            end
        end
    end.

%% The key of a row is `{target(..), definition(..), hash(..)}`. Rows are deleted by the first two
%% elements, and found by all three.
definition(Kind, Key) -> erlang:phash2({Kind, Key}).

target(Target) -> erlang:phash2(Target).

hash(Call) -> crypto:hash(sha256, term_to_binary(Call, [deterministic])).

scope(#{scope := public}, _) -> public;
scope(_, #{principal := Principal}) -> {private, Principal}.

through(Row, Wanted, Arguments, Context, Next, #{counters := Counters} = Cache) ->
    case kept_result(Row, Cache) of
        {value, Kept} ->
            ok = counters:add(Counters, ?HITS, 1),
            binary_to_term(Kept);
        {run, Run} ->
            #{process := Process} = Cache,
            run(Run, Wanted, Arguments, Context, Next, Process);
        none ->
            Next(Arguments, Context)
    end.

kept_result(Row, #{table := Table, process := Process}) ->
    try
        case find(Row, Table) of
            {ok, Kept} -> {value, Kept};
            %% The call waits while an equal one runs, up to its own deadline.
            error -> gen_server:call(Process, {want, Row}, infinity)
        end
    catch
        %% The cache has ended, or restarts.
        error:badarg -> none;
        exit:{_, {gen_server, call, _}} -> none
    end.

find(Row, Table) ->
    case ets:lookup(Table, Row) of
        [{_, Kept, Expires, _}] ->
            case erlmcp_clock:now_ms() < Expires of
                true -> {ok, Kept};
                false -> error
            end;
        [] ->
            error
    end.

%% The value is encoded, so that parts of it do not keep whole binaries in memory that they point
%% into.
run(Run, Wanted, Arguments, Context, Next, Process) ->
    try Next(Arguments, Context) of
        Return ->
            #{keepable := Keepable, ttl_ms := Ttl} = Wanted,
            ok = gen_server:cast(Process, case outcome(Return, Keepable, Context) of
                keep -> {keep, Run, term_to_binary(Return), Ttl};
                share -> {share, Run, term_to_binary(Return)};
                abandon -> {abandon, Run}
            end),
            Return
    catch
        Class:Reason:Stack ->
            ok = gen_server:cast(Process, {abandon, Run}),
            erlang:raise(Class, Reason, Stack)
    end.

%% An error is shared with the calls that wait, and not kept. A return that is not a valid result is
%% the failure of one call alone.
outcome({error, _}, _, _) ->
    share;
outcome({ok, {error, _}}, _, _) ->
    share;
outcome({input_required, _}, _, _) ->
    abandon;
outcome({input_required, _, _}, _, _) ->
    abandon;
outcome({input_required, _, _, _}, _, _) ->
    abandon;
outcome(Return, Keepable, Context) ->
    case Keepable(Return, Context) of
        true -> keep;
        false -> abandon
    end.

%% Checked for the newest revision, whose results have the most fields.
is_result(Kind, Return, Definition, Context) ->
    try erlmcp_result:from(Kind, Return, Definition, Context#{revision := '2026-07-28'}) of
        {error, _} -> false;
        {_, _} -> true
    catch
        error:_ -> false
    end.

-doc """
Deletes all cached results of a server. A call that begins after this function has returned gets no
deleted result, and no result of a call that runs now.
""".
-spec forget(erlmcp_instance:instance()) -> ok.
forget(Instance) ->
    forget_rows('_', '_', Instance).

-doc """
Deletes the cached contents of the resource at `Uri`. A call that begins after this function has
returned gets no deleted result, and no result of a call that runs now.
""".
-spec forget(Uri :: binary(), erlmcp_instance:instance()) -> ok.
forget(Uri, Instance) ->
    forget_rows(target(Uri), '_', Instance).

-doc """
Deletes the cached results of the definition with the key `Key`. A call that begins after this
function has returned gets no deleted result, and no result of a call that runs now.
""".
-spec forget(erlmcp_definition:kind(), Key :: binary(), erlmcp_instance:instance()) -> ok.
forget(Kind, Key, Instance) ->
    forget_rows('_', definition(Kind, Key), Instance).

forget_rows(Target, Definition, #{key := Server}) ->
    maybe
        #{process := Process, counters := Counters} ?= persistent_term:get({?MODULE, Server}, none),
        %% If no call ran, no result is kept.
        true ?= counters:get(Counters, ?MISSES) > 0,
        tell(Process, {forget, Target, Definition})
    else
        _ -> ok
    end.

tell(Process, Message) ->
    try
        gen_server:call(Process, Message, infinity)
    catch
        %% The process has ended, and restarts without results.
        exit:{_, {gen_server, call, _}} -> ok
    end.

-doc """
Returns the number of results that a running server has cached (`entries`), and their bytes. `hits`
is how many calls have got a result of another call since the cache started, and `misses` how many
had to run.
""".
-spec info(erlmcp_instance:instance()) -> erlmcp:cache_info().
info(#{key := Server, cache := Table}) ->
    Counted = case persistent_term:get({?MODULE, Server}, none) of
        #{counters := Counters} -> [counters:get(Counters, At) || At <- [?BYTES, ?HITS, ?MISSES]];
        %% The process of the cache ends before its server.
        none -> [0, 0, 0]
    end,
    [Bytes, Hits, Misses] = Counted,
    #{entries => ets:info(Table, size), bytes => Bytes, hits => Hits, misses => Misses}.

-doc false.
init(#{key := Server, cache := Table, limits := Limits}) ->
    ok = erlmcp_label:set([?MODULE], Server),
    process_flag(trap_exit, true),
    %% The table is the supervisor's, so that readers find one while this process restarts.
    true = ets:delete_all_objects(Table),
    Counters = counters:new(3, [write_concurrency]),
    persistent_term:put({?MODULE, Server},
                        #{table => Table, process => self(), counters => Counters}),
    {ok, #{server => Server, counters => Counters, table => Table,
           ages => ets:new(erlmcp_cache_ages, [ordered_set, private]),
           limits => maps:with([cache_entries, cache_bytes], Limits),
           %% the runs that equal calls join, by row, and the calls that wait for each run
           joined => #{}, runs => #{}, sweeper => none}}.

-doc false.
handle_call({want, Row}, From, #{table := Table, joined := Joined, runs := Runs} = State) ->
    case {find(Row, Table), Joined} of
        {{ok, Kept}, _} ->
            {reply, {value, Kept}, State};
        {error, #{Row := Run}} ->
            #{Run := {Row, Waiting}} = Runs,
            {noreply, State#{runs := Runs#{Run := {Row, queue:in(From, Waiting)}}}};
        {error, #{}} ->
            {Run, Started} = started(Row, From, queue:new(), State),
            {reply, {run, Run}, Started#{joined := Joined#{Row => Run}}}
    end;
handle_call({forget, Target, Definition}, _, #{table := Table, joined := Joined} = State) ->
    Rows = ets:select(Table, [{{{Target, Definition, '_'}, '_', '_', '_'}, [],
                               [{element, 1, '$_'}]}]),
    Others = maps:filter(fun({T, D, _}, _) -> not (is(T, Target) andalso is(D, Definition)) end,
                         Joined),
    {reply, ok, lists:foldl(fun drop/2, State#{joined := Others}, Rows)}.

is(_, '_') -> true;
is(Hash, Wanted) -> Hash =:= Wanted.

%% A run is the monitor of the call that runs.
started(Row, {Call, _}, Waiting, #{counters := Counters, runs := Runs} = State) ->
    ok = counters:add(Counters, ?MISSES, 1),
    Run = monitor(process, Call),
    {Run, State#{runs := Runs#{Run => {Row, Waiting}}}}.

-doc false.
handle_cast({keep, Run, Return, Ttl}, #{joined := Joined} = State) ->
    case ended(Run, Return, State) of
        %% Unless the row was deleted meanwhile.
        {Row, Ended} when map_get(Row, Joined) =:= Run ->
            {noreply, keep(Row, Return, erlmcp_clock:now_ms() + Ttl, Ended)};
        {_, Ended} ->
            {noreply, Ended}
    end;
handle_cast({share, Run, Return}, State) ->
    {_, Ended} = ended(Run, Return, State),
    {noreply, Ended};
handle_cast({abandon, Run}, State) ->
    {noreply, abandoned(Run, State)}.

ended(Run, Return, #{runs := Runs} = State) ->
    {{Row, Waiting}, Others} = maps:take(Run, Runs),
    true = demonitor(Run, [flush]),
    ok = lists:foreach(fun(From) -> gen_server:reply(From, {value, Return}) end,
                       queue:to_list(Waiting)),
    {Row, without_run(Row, Run, State#{runs := Others})}.

without_run(Row, Run, #{joined := Joined} = State) ->
    case Joined of
        #{Row := Run} -> State#{joined := maps:remove(Row, Joined)};
        #{} -> State
    end.

%% The call that ran has ended without a result. One of the waiting calls runs now, and the others
%% wait for that one.
abandoned(Run, #{runs := Runs, joined := Joined} = State) ->
    {{Row, Waiting}, Others} = maps:take(Run, Runs),
    true = demonitor(Run, [flush]),
    case queue:out(Waiting) of
        {empty, _} ->
            without_run(Row, Run, State#{runs := Others});
        {{value, From}, Rest} ->
            {Next, Started} = started(Row, From, Rest, State#{runs := Others}),
            gen_server:reply(From, {run, Next}),
            case Joined of
                #{Row := Run} -> Started#{joined := Joined#{Row := Next}};
                #{} -> Started
            end
    end.

keep(_, Return, _, #{limits := #{cache_bytes := Max}} = State) when byte_size(Return) > Max ->
    State;
keep(Row, Return, Expires, State) ->
    Size = byte_size(Return),
    Room = make_room(Size, drop(Row, State)),
    #{table := Table, ages := Ages, counters := Counters} = Room,
    Age = erlang:unique_integer([monotonic]),
    true = ets:insert(Table, {Row, Return, Expires, Age}),
    true = ets:insert(Ages, {Age, Row}),
    ok = counters:add(Counters, ?BYTES, Size),
    swept(Room).

make_room(Size, #{ages := Ages, counters := Counters,
                  limits := #{cache_entries := Max, cache_bytes := MaxBytes}} = State) ->
    case ets:info(Ages, size) >= Max orelse counters:get(Counters, ?BYTES) + Size > MaxBytes of
        true ->
            [{_, Oldest}] = ets:lookup(Ages, ets:first(Ages)),
            make_room(Size, drop(Oldest, State));
        false ->
            State
    end.

drop(Row, #{table := Table, ages := Ages, counters := Counters} = State) ->
    _ = [begin
             true = ets:delete(Ages, Age),
             counters:sub(Counters, ?BYTES, byte_size(Return))
         end || {_, Return, _, Age} <- ets:take(Table, Row)],
    State.

swept(#{sweeper := none} = State) ->
    State#{sweeper := erlang:send_after(?SWEEP, self(), sweep)};
swept(State) ->
    State.

-doc false.
handle_info({'DOWN', Run, process, _, _}, State) ->
    {noreply, abandoned(Run, State)};
handle_info(sweep, #{table := Table} = State) ->
    Now = erlmcp_clock:now_ms(),
    Rows = ets:select(Table, [{{'$1', '_', '$2', '_'}, [{'=<', '$2', Now}], ['$1']}]),
    Fresh = lists:foldl(fun drop/2, State#{sweeper := none}, Rows),
    case ets:info(Table, size) of
        0 -> {noreply, Fresh};
        _ -> {noreply, swept(Fresh)}
    end;
handle_info(_, State) ->
    {noreply, State}.

-doc false.
terminate(_, #{server := Server}) ->
    _ = persistent_term:erase({?MODULE, Server}),
    ok.
