-module(erlmcp_connection_cache).
-moduledoc """
The cache of a connection's process: one record in its process dictionary, which lasts from one
request to the next. A process of HTTP/1.1 or of lines drops the record before it hibernates, and
makes another one when a request needs it.

- `meta`: the `_meta` that the client sends in each of its requests. It is decoded and checked once,
  and recognised by its text from then on.
- `watched`: the atomic by which the watchdog sees inline calls (`m:erlmcp_inline_call_watchdog`).
- `reports`: the reports of the running inline call, the latest first (`m:erlmcp_call_messages`).
- `ids`: session ids that were generated in advance (`m:erlmcp_session_table`).
- `bounded`: `true` if the memory of the process is bounded already (`m:erlmcp_heap`).

Internal.
""".

-export([decode/2, known_meta/1, request/4]).
-export([watched/0, put_watched/1]).
-export([reports/0, add_report/1, take_reports/0]).
-export([ids/0, put_ids/1, bound_once/0]).
-export([forget/0]).

%% How many more `_meta` objects may be learnt, the latest one, and its validated form.
-type meta() ::
    {Times :: non_neg_integer(), erlmcp_json:known_object() | none,
     erlmcp_meta:validated() | none}.
-type watched() :: erlmcp_inline_call_watchdog:watch().
-type report() :: erlmcp_call_messages:message().

%% How many `_meta` objects are learnt of a client whose `_meta` differs from request to request.
%% Once the client has repeated one, no other is learnt.
-define(TIMES, 3).

%% The benchmarks `memory_connection_http` and `memory_connection_tcp` measure the effect of
%% dropping it.
-record(cache, {
    meta = {?TIMES, none, none} :: meta(),
    watched = none :: watched() | none,
    reports = [] :: [report()],
    ids = none :: [binary()] | none,
    bounded = false :: boolean()
}).

%% Every request reads it.
-compile({inline, [cache/0, meta/0]}).

-doc """
Decodes a message as `erlmcp_json:decode/2` does. Also learns the `_meta` of the message, to
recognise it in later messages. Learns no further `_meta` once the client has repeated a learnt one,
or three were tried.
""".
-spec decode(binary(), erlmcp_json:limits()) ->
    {ok, erlmcp_json:json_term()} | {error, erlmcp_json:decode_error()}.
decode(Bytes, Limits) ->
    case meta() of
        {0, Known, _} ->
            erlmcp_json:decode(Bytes, Limits, Known);
        {_, Known, _} = Meta ->
            Decoded = erlmcp_json:decode(Bytes, Limits, Known),
            ok = learn(Decoded, Bytes, Meta),
            Decoded
    end.

learn({ok, #{~"params" := #{~"_meta" := #{} = Object}}}, Bytes, {Times, Known, Valid}) ->
    keep_meta(case erlmcp_json:is_known(Object, Known) orelse erlmcp_json:known_meta(Bytes) of
        true -> {0, Known, Valid};
        {ok, Next} -> {Times - 1, Next, erlmcp_meta:reusable(erlmcp_json:known_object(Next))};
        none -> {Times - 1, Known, Valid}
    end);
learn(_, _, _) ->
    ok.

-doc """
Returns the validated `_meta` of a decoded message, or `none` if the calling process has learnt no
valid one that equals it.
""".
-spec known_meta(erlmcp_json:json_term()) -> erlmcp_meta:validated() | none.
known_meta(#{~"params" := #{~"_meta" := Object}}) ->
    validated(Object, meta());
known_meta(_) ->
    none.

validated(Object, {_, Known, Valid}) ->
    case erlmcp_json:is_known(Object, Known) of
        true -> Valid;
        false -> none
    end.

-doc """
Reads a stateless request whose head has announced its method, without decoding all of it. `Begun`
comes from `erlmcp_admission:enter_announced/5`. The announced text
(`t:erlmcp_admission:announced/0`) must stand right behind the id, and `_meta` must be one that the
client repeats. Otherwise returns `other`, and the message has to be decoded.
""".
-spec request(binary(), Begun :: {erlmcp_message:id(), Bytes :: pos_integer()},
              erlmcp_admission:announced(), erlmcp_json:limits()) ->
    {ok, erlmcp_engine:request()} | other.
request(Bytes, {Id, At}, {announced, Method, Text}, Limits) ->
    maybe
        {0, Known, _} = Meta ?= meta(),
        {ok, #{~"_meta" := Object} = Params} ?=
            erlmcp_json:params(Bytes, {At, Text}, Limits, Known),
        {ok, {Id, Method, Params, validated(Object, Meta)}}
    else
        _ -> other
    end.

meta() ->
    (cache())#cache.meta.

keep_meta(Meta) ->
    keep((cache())#cache{meta = Meta}).

-doc """
Returns the value by which inline calls of the process are watched, or `none` if `put_watched/1` was
not called since the last `forget/0`.
""".
-spec watched() -> watched() | none.
watched() ->
    case get(?MODULE) of
        #cache{watched = Watched} -> Watched;
        undefined -> none
    end.

-doc "Stores the value by which inline calls of the process are watched.".
-spec put_watched(watched()) -> ok.
put_watched(Watched) ->
    keep((cache())#cache{watched = Watched}).

-doc "Returns the reports of the running inline call, the latest first.".
-spec reports() -> [report()].
reports() ->
    (cache())#cache.reports.

-doc "Stores a report of the running inline call.".
-spec add_report(report()) -> ok.
add_report(Message) ->
    #cache{reports = Reports} = Cache = cache(),
    keep(Cache#cache{reports = [Message | Reports]}).

-doc "Returns the reports of an inline call that has ended, in their order, and forgets them.".
-spec take_reports() -> [report()].
take_reports() ->
    case cache() of
        #cache{reports = []} ->
            [];
        #cache{reports = Reports} = Cache ->
            ok = keep(Cache#cache{reports = []}),
            lists:reverse(Reports)
    end.

-doc """
Returns the session ids that were generated in advance, or `none` if `put_ids/1` was not called
since the last `forget/0`.
""".
-spec ids() -> [binary()] | none.
ids() ->
    (cache())#cache.ids.

-doc "Stores ids for the next sessions, in place of the earlier ones.".
-spec put_ids([binary()]) -> ok.
put_ids(Ids) ->
    keep((cache())#cache{ids = Ids}).

-doc """
Records that the memory of the calling process is bounded. Returns `true` if the caller has to bound
the memory, since nothing was recorded after the last `forget/0`.
""".
-spec bound_once() -> boolean().
bound_once() ->
    case cache() of
        #cache{bounded = true} -> false;
        Cache -> keep(Cache#cache{bounded = true}) =:= ok
    end.

-doc """
Forgets everything in the cache, and the generator of span ids. The calling process hibernates next,
and runs no inline call.
""".
-spec forget() -> ok.
forget() ->
    _ = erase(?MODULE),
    erlmcp_span_ids:forget().

cache() ->
    case get(?MODULE) of
        undefined -> #cache{};
        Cache -> Cache
    end.

keep(Cache) ->
    _ = put(?MODULE, Cache),
    ok.
