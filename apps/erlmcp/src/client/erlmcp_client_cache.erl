-module(erlmcp_client_cache).
-moduledoc """
Results that a client keeps for as long as their server says that they stay fresh, by method and
parameters. Read and written by the calls themselves; the table is the client's. What a notification
tells of is forgotten.

A client acts for one principal, so that results of either `cacheScope` may be kept here.

Source: specification 2026-07-28, "Caching".

Internal.
""".

-export([new/1, find/2, changes/1, keep/4, changed/3, info/1]).

-export_type([cache/0, options/0, key/0]).

-doc "How many results, and how many bytes of them, are kept; a single one has at most a quarter.".
-type options() :: #{entries := pos_integer(), bytes := pos_integer()}.
%% The numbers: bytes that are kept, and how often something was said to have changed.
-opaque cache() :: none | {ets:tid(), options(), Numbers :: atomics:atomics_ref()}.
-type key() :: {Method :: binary(), Params :: map()}.

%% No hint is taken for longer: milliseconds of a day.
-define(LONGEST, 86_400_000).

-doc "An empty cache of the calling process.".
-spec new(options() | none) -> cache().
new(none) -> none;
new(Options) -> {ets:new(cache, [public, {read_concurrency, true}]), Options, atomics:new(2, [])}.

-doc "The result that is kept for a request, if it is fresh.".
-spec find(key(), cache()) -> {ok, map()} | none.
find(_, none) ->
    none;
find(Key, {Table, _, _}) ->
    case ets:lookup(Table, Key) of
        [{_, Until, _, Result}] ->
            case erlang:monotonic_time(millisecond) < Until of
                true -> {ok, Result};
                false -> none
            end;
        [] ->
            none
    end.

-doc "How often something has changed: what is asked for now is kept if nothing has until then.".
-spec changes(cache()) -> non_neg_integer().
changes(none) -> 0;
changes({_, _, Numbers}) -> atomics:get(Numbers, 2).

-doc """
Keeps a result, if its server says for how long, and nothing has changed since `Changes` were
counted, before it was asked for: an answer may be older than the notification that came before it
was read.
""".
-spec keep(key(), Result :: map(), Changes :: non_neg_integer(), cache()) -> ok.
keep({Method, _} = Key, #{~"ttlMs" := Ttl} = Result, Changes, {Table, Options, Size} = Cache) when
    is_integer(Ttl), Ttl > 0
->
    #{bytes := Most} = Options,
    Bytes = erlang:external_size(Result),
    case erlmcp_client_operation:is_cacheable(Method) andalso Bytes =< Most div 4 of
        true ->
            ok = forget([Key], Cache),
            ok = make_room(Bytes, Cache),
            Until = erlang:monotonic_time(millisecond) + min(Ttl, ?LONGEST),
            Kept = erlmcp_client_mailbox:own({Key, Until, Bytes, Result}),
            ok = case ets:insert_new(Table, Kept) of
                true -> atomics:add(Size, 1, Bytes);
                false -> ok
            end,
            %% Who tells of a change counts it, and then forgets: one of the two sees the other.
            case changes(Cache) of
                Changes -> ok;
                _ -> forget([Key], Cache)
            end;
        false ->
            ok
    end;
keep(_, _, _, _) ->
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

forget(Keys, {Table, _, Size}) ->
    lists:foreach(fun(Key) ->
                      [atomics:sub(Size, 1, Bytes) || {_, _, Bytes, _} <- ets:take(Table, Key)]
                  end, Keys).

-doc "Forgets what a notification of the server's says has changed.".
-spec changed(Method :: binary(), Params :: map(), cache()) -> ok.
changed(_, _, none) ->
    ok;
changed(~"notifications/tools/list_changed", _, Cache) ->
    forget_all([~"tools/list"], Cache);
changed(~"notifications/prompts/list_changed", _, Cache) ->
    forget_all([~"prompts/list"], Cache);
changed(~"notifications/resources/list_changed", _, Cache) ->
    forget_all([~"resources/list", ~"resources/templates/list"], Cache);
changed(~"notifications/resources/updated", #{~"uri" := Uri}, {Table, _, Numbers} = Cache) ->
    ok = atomics:add(Numbers, 2, 1),
    forget([Key || {{~"resources/read", #{~"uri" := Read}} = Key} <- keys(Table), Read =:= Uri],
           Cache);
changed(_, _, _) ->
    ok.

forget_all(Methods, {Table, _, Numbers} = Cache) ->
    ok = atomics:add(Numbers, 2, 1),
    forget([Key || {{Kept, _} = Key} <- keys(Table), lists:member(Kept, Methods)], Cache).

keys(Table) ->
    ets:select(Table, [{{'$1', '_', '_', '_'}, [], [{{'$1'}}]}]).

-doc "How many results are kept, and how many bytes they have.".
-spec info(cache()) -> #{entries := non_neg_integer(), bytes := integer()}.
info(none) -> #{entries => 0, bytes => 0};
info({Table, _, Size}) -> #{entries => ets:info(Table, size), bytes => atomics:get(Size, 1)}.
