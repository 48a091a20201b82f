-module(erlmcp_recent_requests).
-moduledoc """
Keeps the last requests of the node's servers while an operator looks at them, and nothing at other
times. The operator's page allows some requests a second. Failed requests have a share of their own,
so that they are seen among many others. Payloads are not kept.

Internal.
""".

-export([open/0, allow/1, is_wanted/1, add/1, list/1]).

-export_type([row/0]).

-doc """
A request that ended at the time `at`, in milliseconds. `took_us` has the microseconds from its
arrival to its end. `error` is the code of a refusal, `tool_error` or `cancelled`.
""".
-type row() :: #{
    at := integer(), server := reference(), method := binary() | undefined,
    target := binary() | undefined, principal := erlmcp:principal(),
    took_us := non_neg_integer(), error := none | pos_integer() | tool_error | cancelled,
    trace := binary() | none, bytes_in := non_neg_integer(), bytes_out := non_neg_integer()
}.

%% Rows of the ring.
-define(ROWS, 1000).
-define(LISTED, 100).
%% Words of the atomics: how many more requests may be added, of those that went well and of others.
%% Every request reads the term (`?NOBODY_LOOKS`). Changing it costs little, since it is an atom.
-define(WELL, 1).
-define(FAILED, 2).
-define(NOBODY, erlmcp_nobody_looks).

-doc "Creates the ring, owned by the calling process.".
-spec open() -> ok.
open() ->
    ?MODULE = ets:new(?MODULE, [named_table, public, {write_concurrency, true}]),
    persistent_term:put(?NOBODY, true),
    persistent_term:put(?MODULE, atomics:new(2, [{signed, true}])).

-doc """
Sets how many more requests of each kind may be added. With 0, none is added any more.
""".
-spec allow(Count :: non_neg_integer()) -> ok.
allow(Count) ->
    Words = persistent_term:get(?MODULE),
    ok = atomics:put(Words, ?WELL, Count),
    ok = atomics:put(Words, ?FAILED, Count),
    persistent_term:put(?NOBODY, Count =:= 0).

-doc "Returns `true` if a request with this outcome may be added, and counts the request if so.".
-spec is_wanted(erlmcp_meter:outcome()) -> boolean().
is_wanted(Outcome) ->
    Words = persistent_term:get(?MODULE),
    Kind = kind(Outcome),
    %% Several processes may see the last one, so one or another more may be added.
    atomics:get(Words, Kind) > 0 andalso atomics:sub_get(Words, Kind, 1) >= 0.

kind(ok) -> ?WELL;
kind(_) -> ?FAILED.

-doc "Adds a request that has ended.".
-spec add(erlmcp_meter:ended()) -> ok.
add(#{server := Key, method := Method, target := Target, outcome := Outcome, began := Began,
      ended := Ended, bytes_in := In, bytes_out := Out, context := Context}) ->
    Row = #{at => erlang:system_time(millisecond), server => Key, method => Method,
            target => Target, principal => principal(Context),
            took_us => erlang:convert_time_unit(max(0, Ended - Began), native, microsecond),
            error => error_of(Outcome), trace => trace(Context), bytes_in => In,
            bytes_out => Out},
    try
        Next = ets:update_counter(?MODULE, next, 1, {next, 0}),
        true = ets:insert(?MODULE, {Next rem ?ROWS, Next, Row}),
        ok
    catch
        %% The application has stopped before the server.
        error:badarg -> ok
    end.

principal(#{principal := Principal}) -> Principal;
principal(_) -> anonymous.

trace(#{trace := #{trace_id := Id}}) when is_binary(Id) -> Id;
trace(_) -> none.

error_of(ok) -> none;
error_of({refused, Refusal}) -> erlmcp_refusal:number(Refusal);
error_of(Other) -> Other.

-doc "Returns the last requests of the server with the key `Key`, the newest first, 100 at most.".
-spec list(Key :: reference()) -> [row()].
list(Key) ->
    Rows = [{Number, Row} || {_, Number, #{server := Of} = Row} <- ets:tab2list(?MODULE),
                             Of =:= Key],
    [Row || {_, Row} <- lists:sublist(lists:reverse(lists:keysort(1, Rows)), ?LISTED)].
