-module(erlmcp_span_buffer).
-moduledoc """
Spans that wait until they are sent to a collector, at most 10,000 for each collector. A process
that adds a span never waits. Further spans are dropped and counted.

All buffers of the node are in one table, which the application's supervisor owns. So spans outlive
the process that sends them (`m:erlmcp_span_exporter`). Spans that are being sent count as waiting.

Internal.
""".

-export([open/0, new/0, delete/1]).
-export([id/1, add/2, take/3, done/3, counts/1, limit/0, batch/0]).

-export_type([buffer/0, counts/0]).

-opaque buffer() :: {Id :: integer(), atomics:atomics_ref()}.
-type counts() :: #{
    waiting := non_neg_integer(), sent := non_neg_integer(), dropped := non_neg_integer()
}.

-define(LIMIT, 10_000).
%% The exporter is told when so many spans wait. They are sent in one request.
-define(BATCH, 2_000).
%% A buffer has so many keys in the table, and its spans take them in turn. So processes that add
%% spans seldom meet at one key, and many spans are taken at once.
-define(KEYS, 64).

-define(WAITING, 1).
-define(SENT, 2).
-define(DROPPED, 3).
%% How many waiting spans an empty table lacked at the last look.
-define(MISSING, 4).

-doc "Returns how many spans may wait in a buffer.".
-spec limit() -> pos_integer().
limit() -> ?LIMIT.

-doc "Returns how many spans are sent in one request. Some more may be.".
-spec batch() -> pos_integer().
batch() -> ?BATCH.

-doc "Creates the table of all buffers, owned by the calling process.".
-spec open() -> ok.
open() ->
    ?MODULE = ets:new(?MODULE, [named_table, public, duplicate_bag, {write_concurrency, true}]),
    ok.

-doc "Creates an empty buffer.".
-spec new() -> buffer().
new() ->
    {?KEYS * erlang:unique_integer([positive]), atomics:new(4, [])}.

-doc "Returns the id of a buffer, which is in the message `{erlmcp_span_buffer, full, Id}`.".
-spec id(buffer()) -> integer().
id({Id, _}) -> Id.

-doc "Deletes the spans of a buffer, which nobody fills any more.".
-spec delete(buffer()) -> ok.
delete({Id, _}) ->
    lists:foreach(fun(Key) -> ets:delete(?MODULE, Key) end, keys(Id)).

keys(Id) -> lists:seq(Id, Id + ?KEYS - 1).

-doc """
Adds a span, or counts it as dropped if the buffer is full. The process registered as
`Exporter` is told when enough spans wait for a request.
""".
-spec add(erlmcp_otlp_tracer:ended(), {buffer(), Exporter :: atom()}) -> ok.
add(Span, {{Id, Counts}, Exporter}) ->
    case atomics:add_get(Counts, ?WAITING, 1) of
        Waiting when Waiting > ?LIMIT ->
            ok = atomics:sub(Counts, ?WAITING, 1),
            atomics:add(Counts, ?DROPPED, 1);
        Waiting ->
            ok = insert({Id + Waiting rem ?KEYS, Span}, Counts),
            _ = Waiting =:= ?BATCH andalso tell(Exporter, Id),
            ok
    end.

insert(Row, Counts) ->
    try
        true = ets:insert(?MODULE, Row),
        ok
    catch
        %% The application has stopped before the server.
        error:badarg -> atomics:add(Counts, ?DROPPED, 1)
    end.

tell(Exporter, Id) ->
    try
        Exporter ! {?MODULE, full, Id}
    catch
        error:badarg -> ok
    end.

-doc """
Takes spans for one request out of a buffer, some at a time. They count as waiting until `done/3`.
Returns how many they are, and the value that `Add` has returned for the last of them.
""".
-spec take(fun(([erlmcp_otlp_tracer:ended(), ...], Acc) -> Acc), Acc, buffer()) ->
    {Spans :: non_neg_integer(), Acc}.
take(Add, Acc, {Id, Counts}) ->
    %% Another key is the first each time: so none waits for long while the buffer is full.
    {Later, First} = lists:split(rand:uniform(?KEYS) - 1, keys(Id)),
    case taken(First ++ Later, Add, 0, Acc) of
        {0, _} = Nothing ->
            ok = forget_lost(atomics:get(Counts, ?WAITING), Counts),
            Nothing;
        Taken ->
            Taken
    end.

taken([Key | Keys], Add, Spans, Acc) when Spans < ?BATCH ->
    case ets:take(?MODULE, Key) of
        [] -> taken(Keys, Add, Spans, Acc);
        Rows -> taken(Keys, Add, Spans + length(Rows), Add([Span || {_, Span} <- Rows], Acc))
    end;
taken(_, _, Spans, Acc) ->
    {Spans, Acc}.

%% A process that is killed while it adds a span has counted it, and not inserted it. Such a span is
%% missing at two looks at an empty buffer, a second apart.
forget_lost(Waiting, Counts) ->
    case atomics:exchange(Counts, ?MISSING, Waiting) of
        Waiting ->
            ok = atomics:sub(Counts, ?WAITING, Waiting),
            atomics:put(Counts, ?MISSING, 0);
        _ ->
            ok
    end.

-doc """
Counts spans that were taken out of a buffer: `Sent` of them were sent, and `Dropped` were dropped.
""".
-spec done(Sent :: non_neg_integer(), Dropped :: non_neg_integer(), buffer()) -> ok.
done(Sent, Dropped, {_, Counts}) ->
    ok = atomics:add(Counts, ?SENT, Sent),
    ok = atomics:add(Counts, ?DROPPED, Dropped),
    atomics:sub(Counts, ?WAITING, Sent + Dropped).

-doc """
Returns how many spans wait, and how many were sent and dropped since the buffer was created.
""".
-spec counts(buffer()) -> counts().
counts({_, Counts}) ->
    #{waiting => max(0, atomics:get(Counts, ?WAITING)), sent => atomics:get(Counts, ?SENT),
      dropped => atomics:get(Counts, ?DROPPED)}.
