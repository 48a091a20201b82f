-module(erlmcp_span_buffer).
-moduledoc """
Spans that wait until they are sent to a collector, at most 10,000 in each buffer. Spans that are
being sent count as waiting. Further spans are dropped and counted. A process that adds a span never
waits.

Spans are in tables that the application's supervisor owns, so they outlive the process that sends
them (`m:erlmcp_span_exporter`).

Internal.
""".

-export([open/0, new/0, delete/1]).
-export([id/1, add/2, take/3, done/3, drop_lost/1, counts/1, batch/0]).

-export_type([buffer/0, counts/0]).

-opaque buffer() :: {Id :: integer(), atomics:atomics_ref(), tables()}.
%% The tables of all buffers. Each scheduler has a table, into which only the processes that it runs
%% add spans. So they do not wait for each other, and the table needs no finer locks.
-type tables() :: tuple().
-type counts() :: #{
    waiting := non_neg_integer(), sent := non_neg_integer(), dropped := non_neg_integer()
}.

-define(LIMIT, 10_000).
%% The exporter is told when this number of spans waits. They are sent in one request.
-define(BATCH, 2_000).
%% The keys of a buffer in each table, which its spans take in turn. All spans of a key are taken at
%% once.
-define(KEYS, 16).

-define(WAITING, 1).
-define(SENT, 2).
-define(DROPPED, 3).
%% How many spans counted as waiting at the last look at an empty buffer.
-define(MISSING, 4).
%% How many spans were taken out, and neither sent nor dropped yet.
-define(TAKEN, 5).

-doc """
Returns 2,000, the number of spans that fill a request to a collector. A request may have more,
since spans are taken in groups, and the last group is taken whole.
""".
-spec batch() -> pos_integer().
batch() -> ?BATCH.

-doc "Creates the tables of all buffers, owned by the calling process.".
-spec open() -> ok.
open() ->
    Schedulers = erlang:system_info(schedulers),
    persistent_term:put(?MODULE, list_to_tuple([ets:new(?MODULE, [public, duplicate_bag])
                                                || _ <- lists:seq(1, Schedulers)])).

-doc "Creates an empty buffer in the tables of `open/0`, which must exist.".
-spec new() -> buffer().
new() ->
    {?KEYS * erlang:unique_integer([positive]), atomics:new(5, []), persistent_term:get(?MODULE)}.

-doc "Returns the id of a buffer. The message that `add/2` sends to the exporter has this id.".
-spec id(buffer()) -> integer().
id({Id, _, _}) -> Id.

-doc "Deletes the spans of a buffer to which no process adds spans any more.".
-spec delete(buffer()) -> ok.
delete({Id, _, Tables}) ->
    lists:foreach(fun({Table, Key}) -> ets:delete(Table, Key) end, places(Id, Tables)).

places(Id, Tables) ->
    [{Table, Key} || Table <- tuple_to_list(Tables), Key <- lists:seq(Id, Id + ?KEYS - 1)].

-doc """
Adds a span. Counts the span as dropped if 10,000 spans wait in the buffer, or the application has
stopped. At the 2,000th waiting span, which fills a request, the process registered as `Exporter` is
sent `{erlmcp_span_buffer, full, Id}` with the id of the buffer.
""".
-spec add(erlmcp_otlp_tracer:ended(), {buffer(), Exporter :: atom()}) -> ok.
add(Span, {{Id, Counts, Tables}, Exporter}) ->
    case atomics:add_get(Counts, ?WAITING, 1) of
        Waiting when Waiting > ?LIMIT ->
            ok = atomics:sub(Counts, ?WAITING, 1),
            atomics:add(Counts, ?DROPPED, 1);
        Waiting ->
            Table = element(erlang:system_info(scheduler_id) rem tuple_size(Tables) + 1, Tables),
            ok = insert(Table, {Id + Waiting rem ?KEYS, Span}, Counts),
            _ = Waiting =:= ?BATCH andalso tell(Exporter, Id),
            ok
    end.

insert(Table, Row, Counts) ->
    try
        true = ets:insert(Table, Row),
        ok
    catch
        %% The application has stopped before the server.
        error:badarg ->
            ok = atomics:sub(Counts, ?WAITING, 1),
            atomics:add(Counts, ?DROPPED, 1)
    end.

tell(Exporter, Id) ->
    try
        Exporter ! {?MODULE, full, Id}
    catch
        error:badarg -> ok
    end.

-doc """
Takes spans for one request out of a buffer, in groups. Calls `Add` with each group and the value so
far, which is `Acc` at first. Returns how many spans were taken, and the final value. Spans that
were taken count as waiting until `done/3`.
""".
-spec take(fun(([erlmcp_otlp_tracer:ended(), ...], Acc) -> Acc), Acc, buffer()) ->
    {Spans :: non_neg_integer(), Acc}.
take(Add, Acc, {Id, Counts, Tables}) ->
    %% Another place is the first each time: so none waits for long while the buffer is full.
    Places = places(Id, Tables),
    {Later, First} = lists:split(rand:uniform(length(Places)) - 1, Places),
    case taken(First ++ Later, Add, 0, Acc, Counts) of
        {0, _} = Nothing ->
            ok = forget_lost(atomics:get(Counts, ?WAITING), Counts),
            Nothing;
        Taken ->
            Taken
    end.

taken([{Table, Key} | Places], Add, Spans, Acc, Counts) when Spans < ?BATCH ->
    case ets:take(Table, Key) of
        [] ->
            taken(Places, Add, Spans, Acc, Counts);
        Rows ->
            ok = atomics:add(Counts, ?TAKEN, length(Rows)),
            taken(Places, Add, Spans + length(Rows), Add([Span || {_, Span} <- Rows], Acc), Counts)
    end;
taken(_, _, Spans, Acc, _) ->
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
Counts spans that were taken out of a buffer (`take/3`): `Sent` of them were sent, and `Dropped`
were dropped. None of them counts as waiting any more.
""".
-spec done(Sent :: non_neg_integer(), Dropped :: non_neg_integer(), buffer()) -> ok.
done(Sent, Dropped, {_, Counts, _}) ->
    ok = atomics:sub(Counts, ?TAKEN, Sent + Dropped),
    ok = atomics:add(Counts, ?SENT, Sent),
    ok = atomics:add(Counts, ?DROPPED, Dropped),
    atomics:sub(Counts, ?WAITING, Sent + Dropped).

-doc """
Counts the spans as dropped that were taken out of a buffer (`take/3`) by a process that has ended
before `done/3`. Returns the number of these spans. The next process that takes spans must call this
function before it takes any.
""".
-spec drop_lost(buffer()) -> non_neg_integer().
drop_lost({_, Counts, _} = Buffer) ->
    Lost = atomics:get(Counts, ?TAKEN),
    ok = done(0, Lost, Buffer),
    Lost.

-doc """
Returns how many spans wait, and how many were sent and dropped since the buffer was created.
""".
-spec counts(buffer()) -> counts().
counts({_, Counts, _}) ->
    #{waiting => max(0, atomics:get(Counts, ?WAITING)), sent => atomics:get(Counts, ?SENT),
      dropped => atomics:get(Counts, ?DROPPED)}.
