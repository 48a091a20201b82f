-module(erlmcp_client_cache).
-moduledoc """
The cache of one client: results by method and parameters, each kept no longer than the server
allows (`ttlMs`). Calls read and write the table themselves; the client's process owns it. A change
notification removes the results that it concerns.

A client acts for one principal, so results of either `cacheScope` may be kept here.

Source: specification 2026-07-28, "Caching".

Internal.
""".

-export([new/1, find/2, changes/1, keep/4, changed/2, changed/3, info/1]).

-export_type([cache/0, options/0, key/0]).

-doc """
Bounds of the cache: the number of results (`entries`), and their `bytes` in total. A single result
may have at most a quarter of `bytes`.
""".
-type options() :: #{entries := pos_integer(), bytes := pos_integer()}.
%% The atomics: the bytes of all kept results, and the number of change notifications.
-opaque cache() :: none | {ets:tid(), options(), Numbers :: atomics:atomics_ref()}.
-type key() :: {Method :: binary(), Params :: map()}.

%% The longest time that a result is kept, in milliseconds: a day.
-define(LONGEST, 86_400_000).

-doc "Creates an empty cache, owned by the calling process; `none` is a cache that keeps nothing.".
-spec new(options() | none) -> cache().
new(none) -> none;
new(Options) -> {ets:new(cache, [public, {read_concurrency, true}]), Options, atomics:new(2, [])}.

-doc """
Returns the result that is kept for a request. Returns `none` if no result is kept, or if its time
(`ttlMs`) has passed. Raises `badarg` once the client has ended.
""".
-spec find(key(), cache()) -> {ok, map()} | none.
find(_, none) ->
    none;
find(Key, {Table, _, _}) ->
    case ets:lookup(Table, Key) of
        [{_, Until, _, Result}] ->
            case erlmcp_clock:now_ms() < Until of
                true -> {ok, Result};
                false -> none
            end;
        [] ->
            none
    end.

-doc """
Returns the number of change notifications so far. A call reads this number before it sends a
request, and passes it to `keep/4` with the result.
""".
-spec changes(cache()) -> non_neg_integer().
changes(none) -> 0;
changes({_, _, Numbers}) -> atomics:get(Numbers, 2).

-doc """
Keeps a result for its `ttlMs`, at most a day, in place of the request's former result. Removes
results of other requests to make room. Does nothing if the method is not cacheable. Only removes
the former result if the new one has no positive `ttlMs`, or is larger than a quarter of `bytes`.
The same holds if `changes/1` no longer returns `Changes`: the server may have sent the result
before a change. Raises `badarg` once the client has ended.
""".
-spec keep(key(), Result :: map(), Changes :: non_neg_integer(), cache()) -> ok.
keep(_, _, _, none) ->
    ok;
keep({Method, _} = Key, Result, Changes, Cache) ->
    case erlmcp_client_operation:is_cacheable(Method) of
        true ->
            ok = forget([Key], Cache),
            add(Key, Result, Changes, Cache);
        false ->
            ok
    end.

add(Key, #{~"ttlMs" := Ttl} = Result, Changes, {Table, #{bytes := Most}, Size} = Cache) when
    is_integer(Ttl), Ttl > 0
->
    Bytes = erlang:external_size(Result),
    case Bytes =< Most div 4 of
        true ->
            ok = make_room(Bytes, Cache),
            Until = erlmcp_clock:now_ms() + min(Ttl, ?LONGEST),
            Kept = erlmcp_client_mailbox:own({Key, Until, Bytes, Result}),
            ok = case ets:insert_new(Table, Kept) of
                true -> atomics:add(Size, 1, Bytes);
                false -> ok
            end,
            %% `changed/2` first counts the change, and then removes results. So either the new
            %% count is seen here, or the removal sees this result.
            case changes(Cache) of
                Changes -> ok;
                _ -> forget([Key], Cache)
            end;
        false ->
            ok
    end;
add(_, _, _, _) ->
    ok.

make_room(Bytes, {Table, #{entries := Entries, bytes := Most}, Size} = Cache) ->
    case ets:info(Table, size) >= Entries orelse atomics:get(Size, 1) + Bytes > Most of
        false ->
            ok;
        true ->
            case ets:first(Table) of
                '$end_of_table' ->
                    ok;
                Key ->
                    ok = forget([Key], Cache),
                    make_room(Bytes, Cache)
            end
    end.

%% Taking locks the table for all calls, even if there is nothing to take. Mostly there is nothing,
%% since few servers name a `ttlMs`.
forget(Keys, {Table, _, Size}) ->
    lists:foreach(fun(Key) ->
                      [atomics:sub(Size, 1, Bytes) || ets:member(Table, Key),
                                                      {_, _, Bytes, _} <- ets:take(Table, Key)]
                  end, Keys).

-doc """
Removes the results that a change notification of the server makes stale, and counts the
notification. Any other notification has no effect.
""".
-spec changed(Method :: binary(), Params :: map(), cache()) -> ok.
changed(Method, Params, Cache) ->
    changed([{Method, Params}], Cache).

-doc """
Removes the results that any of these change notifications makes stale, as `changed/3` does. Reads
the keys of the cache once, and counts one notification.
""".
-spec changed([{Method :: binary(), Params :: map()}], cache()) -> ok.
changed(_, none) ->
    ok;
changed(Notifications, {Table, _, Numbers} = Cache) ->
    case #{Subject => [] || {Method, Params} <- Notifications, Subject <- stale(Method, Params)} of
        Subjects when map_size(Subjects) =:= 0 ->
            ok;
        Subjects ->
            ok = atomics:add(Numbers, 2, 1),
            forget([Key || {Key} <- keys(Table), is_map_key(subject(Key), Subjects)], Cache)
    end.

%% What a notification makes stale: the results of methods, or those of reading a resource.
stale(~"notifications/tools/list_changed", _) -> [~"tools/list"];
stale(~"notifications/prompts/list_changed", _) -> [~"prompts/list"];
stale(~"notifications/resources/list_changed", _) ->
    [~"resources/list", ~"resources/templates/list"];
stale(~"notifications/resources/updated", #{~"uri" := Uri}) -> [{read, Uri}];
stale(_, _) -> [].

subject({~"resources/read", #{~"uri" := Uri}}) -> {read, Uri};
subject({Method, _}) -> Method.

keys(Table) ->
    ets:select(Table, [{{'$1', '_', '_', '_'}, [], [{{'$1'}}]}]).

-doc """
Returns the number of kept results, and their bytes in total. Results whose time has passed count
until they are removed. Both numbers are 0 once the client has ended.
""".
-spec info(cache()) -> #{entries := non_neg_integer(), bytes := integer()}.
info(none) -> #{entries => 0, bytes => 0};
info({Table, _, Size}) ->
    case ets:info(Table, size) of
        %% The client has ended.
        undefined -> info(none);
        Entries -> #{entries => Entries, bytes => atomics:get(Size, 1)}
    end.
