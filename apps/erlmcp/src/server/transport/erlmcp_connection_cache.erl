-module(erlmcp_connection_cache).
-moduledoc """
What the process of a connection keeps from one request to the next, in one record in its process
dictionary. (The gate and the shells of HTTP have keys of their own.) The record is made again with
the requests that need it, and so a process that hibernates keeps nothing of it (`erlmcp bench
memory_connection_http memory_connection_tcp`).

- `meta`: what the client says in each of its requests (`m:erlmcp_meta_cache`).
- `watched`: the word by which inline calls are watched (`m:erlmcp_inline_call_watchdog`).
- `reports`: what the running inline call has reported, the latest first
  (`m:erlmcp_call_messages`).
- `ids`: ids of sessions that were drawn ahead (`m:erlmcp_session_table`).
- `bounded`: whether the memory of the process is bounded (`m:erlmcp_heap`).

Internal.
""".

-export([meta/0, put_meta/1, watched/0, put_watched/1]).
-export([reports/0, add_report/1, take_reports/0]).
-export([ids/0, put_ids/1, bound_once/0]).
-export([forget/1]).

-type meta() :: erlmcp_meta_cache:learnt().
-type watched() :: erlmcp_inline_call_watchdog:watch().
-type report() :: erlmcp_call_messages:message().

-record(cache, {
    meta = none :: meta() | none,
    watched = none :: watched() | none,
    reports = [] :: [report()],
    ids = none :: [binary()] | none,
    bounded = false :: boolean()
}).

%% Every request reads it.
-compile({inline, [cache/0]}).

-doc "Returns what the connection's client is known to say in its requests.".
-spec meta() -> meta() | none.
meta() ->
    case get(?MODULE) of
        #cache{meta = Meta} -> Meta;
        undefined -> none
    end.

-doc "Keeps what the client says.".
-spec put_meta(meta()) -> ok.
put_meta(Meta) ->
    keep((cache())#cache{meta = Meta}).

-doc "Returns the word by which inline calls of the process are watched.".
-spec watched() -> watched() | none.
watched() ->
    case get(?MODULE) of
        #cache{watched = Watched} -> Watched;
        undefined -> none
    end.

-doc "Keeps the word by which inline calls are watched.".
-spec put_watched(watched()) -> ok.
put_watched(Watched) ->
    keep((cache())#cache{watched = Watched}).

-doc "Returns what the running inline call has reported, the latest first.".
-spec reports() -> [report()].
reports() ->
    (cache())#cache.reports.

-doc "Keeps a report of the running inline call.".
-spec add_report(report()) -> ok.
add_report(Message) ->
    #cache{reports = Reports} = Cache = cache(),
    keep(Cache#cache{reports = [Message | Reports]}).

-doc "Returns the reports of an inline call that is over, in their order, and forgets them.".
-spec take_reports() -> [report()].
take_reports() ->
    case cache() of
        #cache{reports = []} ->
            [];
        #cache{reports = Reports} = Cache ->
            ok = keep(Cache#cache{reports = []}),
            lists:reverse(Reports)
    end.

-doc "Returns the ids of sessions that were drawn ahead; `none` before the first is asked for.".
-spec ids() -> [binary()] | none.
ids() ->
    (cache())#cache.ids.

-doc "Keeps ids for the next sessions.".
-spec put_ids([binary()]) -> ok.
put_ids(Ids) ->
    keep((cache())#cache{ids = Ids}).

-doc "Returns `true` once: for the caller that is to bound the memory of the process.".
-spec bound_once() -> boolean().
bound_once() ->
    case cache() of
        #cache{bounded = true} -> false;
        Cache -> keep(Cache#cache{bounded = true}) =:= ok
    end.

-doc """
Forgets all of it, and the seat of the process at the server's gate: the process hibernates, and has
no inline call.
""".
-spec forget(erlmcp_instance:instance()) -> ok.
forget(#{gate := Gate}) ->
    _ = erase(?MODULE),
    erlmcp_gate:rest(Gate).

cache() ->
    case get(?MODULE) of
        undefined -> #cache{};
        Cache -> Cache
    end.

keep(Cache) ->
    _ = put(?MODULE, Cache),
    ok.
