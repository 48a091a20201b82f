-module(erlmcp_meter).
-moduledoc """
The one place that sees the end of every request of a server, whichever transport brought it and
whichever process answers it. Counting takes no process, no lock and no table. Observers of
requests, if there are any, are called.

A transport notes the arrival of a message when the whole message is there (`arrived/2`). A request
ends once: with its answer, with a refusal before or after its call began, or because its client has
cancelled it. A refusal of a message that could not be read counts as a request, too. Notifications
and responses do not count, unless they are refused.

Internal.
""".

-include("erlmcp_meter.hrl").
-include("erlmcp_recent_requests.hrl").

%% Every request passes here.
-compile({inline, [arrival/1, has_no_span/2, ended/6]}).

-export([new/0, arrived/1, arrived/2, row/1]).
-export([ended/4, ended/5, answered/4, refused/3, add_result/5, totals/1]).
-export([definition_row/3, has_own_row/1, free/2, free/4, sweep/1]).
-export([session_opened/1, session_ended/3, stream_opened/1, lasting/1]).
-export([connection_refused/3, refused_connections/1]).
-export([forwarded/1, inherited/1, in_cluster/1]).
-export([methods/0, method_row/1, used_rows/1, read/2, failures/1, rows/0, steady/2]).

-export_type([meter/0, server/0, arrival/0, about/0, subject/0, outcome/0, ended/0, observer/0,
              row/0, family/0, whose/0, error/0, failure/0]).

-doc "The counts of a server, and which rows its definitions have.".
-opaque meter() :: {counters:counters_ref(), failures(), Rows :: atomics:atomics_ref()}.
%% Clients can provoke most failures of methods, and these keep their slots. So they must not take
%% those of definitions.
-doc "The slots of the failures of methods, and those of definitions.".
-type failures() :: {OfMethods :: erlmcp_meter_counts:slots(),
                     OfDefinitions :: erlmcp_meter_counts:slots()}.
-doc "A map with the meter of a server: the server's instance, or the part of it that calls use.".
-type server() :: #{key := reference(), meter := meter(), observers := [observer()],
                    tracer := erlmcp_tracer:tracer() | none, atom() => term()}.
-doc """
An observer of requests: a module and its state. The process that counts the end of a request calls
`Module:request_ended(Ended, State)`. The function must return `ok`, and must not wait.
""".
-type observer() :: {module(), State :: term()}.
-doc """
The arrival of a message: its time, in nanoseconds of the monotonic clock, its bytes, and its
origin. The origin may be `none` if no tracer needs it.
""".
-type arrival() ::
    {Began :: integer(), Bytes :: non_neg_integer(), erlmcp_span:origin()}.
-doc """
A request, in the form that the caller has: a call with its arrival, the subject of a call, or a
request without a call.
""".
-type about() ::
    #{arrival := arrival(), context := erlmcp:context(), id := term(), atom() => term()}
    | subject()
    | {erlmcp_engine:summary(), arrival()}.
-doc "The subject of a call, for a process that ends the request in place of the call's process.".
-type subject() :: #{
    id := erlmcp_message:id() | task | undefined,
    revision := erlmcp_revision:revision() | undefined,
    method := binary(), target := binary() | undefined, row := row(), arrival := arrival(),
    principal => erlmcp:principal()
}.
-doc "The end of a request. `tool_error` is a result of a tool with `isError`.".
-type outcome() :: ok | tool_error | cancelled | {refused, erlmcp_refusal:refusal()}.
-doc "The end of a request that had no result, or one with `isError`.".
-type error() :: tool_error | cancelled | erlmcp:refusal_name().
-doc """
An ended request, for observers. `target` is the name or the URI that its call is for. `context` is
that of its call, or `none` if there was no call, or another process than the call's ended the
request. `principal` is absent if there was no call. `params` are those of a request without a call;
for others they have `_meta` at most. Times are in nanoseconds of the monotonic clock.
""".
-type ended() :: #{
    server := reference(), id := erlmcp_message:id() | task | undefined,
    method := binary() | undefined, target := binary() | undefined,
    revision := erlmcp_revision:revision() | undefined, params := map(),
    context := erlmcp:context() | none, principal => erlmcp:principal(),
    outcome := outcome(), began := integer(), ended := integer(),
    bytes_in := non_neg_integer(), bytes_out := non_neg_integer()
}.
-doc "The requests that are counted together: those of a method, of a definition, or of several.".
-opaque row() :: pos_integer().
-doc "A kind of definitions that have rows of their own. Resource templates belong to `resource`.".
-type family() :: tool | prompt | resource.
-doc """
The definitions whose requests a row counts. `own` is a single one. `other` are those definitions of
a family that found no free row. `removed` are removed ones whose rows other definitions have taken.
That row also has the failures that `sweep/1` takes from other rows.
""".
-type whose() :: own | other | removed.
-doc """
The requests of a row that ended with the same error, and with the same JSON-RPC code in their
answers. The code is `none` if their answers had none, or if it is not known. The code is `other`
for all codes that share an index (`erlmcp_meter_counts:code_index/1`).
""".
-type failure() ::
    {row(), error(), Code :: integer() | other | none, erlmcp_meter_counts:times()}.

%% The most definitions with a row of their own.
-define(ROWS, 200).
%% The counters: those of all requests, the rows of methods, those of definitions, and the failures.
-define(REQUESTS, 1).
-define(FAULTS, 2).
-define(SESSIONS_OPENED, 3).
-define(SESSIONS_ENDED, 4).
-define(STREAMS_OPENED, 5).
%% Of a server in a cluster: requests that were passed on, and sessions that were inherited.
-define(FORWARDED, 6).
-define(INHERITED, 7).
-define(METHOD(Index), (8 + (Index) * ?ROW_WORDS)).
%% The first rows of definitions are those that the definitions of a family share: one for those
%% that have found no row, and one for those that were removed.
-define(DEFINITION(Index), ?METHOD(?METHOD_COUNT + (Index))).
-define(FAMILIES, 3).
-define(KINDS, [tool, prompt, resource]).
-define(OTHERS(Family), ?DEFINITION(Family)).
-define(REMOVED(Family), ?DEFINITION(?FAMILIES + (Family))).
-define(OWN(Index), ?DEFINITION(2 * ?FAMILIES + (Index) - 1)).
%% The slots of the failures of methods, and of those of definitions. Each error has a failure for
%% all rows that find no slot of their own.
-define(SLOTS, 256).
-define(ERRORS, 92).
-define(TOOL_ERROR, 0).
-define(CANCELLED, 1).
-define(REFUSED(Number), ((Number) - 999)).
-define(SHARED_FAILURE(Error), (?OWN(?ROWS + 1) + (Error) * ?FAILURE_WORDS)).
-define(OF_METHOD(Slot), (?SHARED_FAILURE(?ERRORS) + (Slot) * ?FAILURE_WORDS)).
-define(OF_DEFINITION(Slot), (?OF_METHOD(?SLOTS) + (Slot) * ?FAILURE_WORDS)).
%% The durations of sessions, by network and revision.
-define(DURATION(Index), (?OF_DEFINITION(?SLOTS) + (Index) * ?FAILURE_WORDS)).
-define(DURATIONS, 10).
%% The connections that were refused, by listener and error.
-define(CONNECTION(Listener, Error), (?DURATION(?DURATIONS) + (Listener) * ?ERRORS + (Error))).
-define(LISTENERS, [http, tcp]).
%% The sums of the failures of definitions, as the last sweep has seen them.
-define(SEEN(Slot), (?CONNECTION(2, 0) + (Slot))).
-define(WORDS, (?SEEN(?SLOTS) - 1)).

-doc "Creates a meter with all counts at zero.".
-spec new() -> meter().
new() ->
    {counters:new(?WORDS, [write_concurrency]),
     {erlmcp_meter_counts:slots(?SLOTS), erlmcp_meter_counts:slots(?SLOTS)},
     atomics:new(?ROWS, [])}.

-doc "Returns the arrival, now, of a message of `Bytes` bytes, with the origin `none`.".
-spec arrived(Bytes :: non_neg_integer()) -> arrival().
arrived(Bytes) ->
    arrived(Bytes, none).

-doc "Returns the arrival, now, of a message of `Bytes` bytes from `Origin`.".
-spec arrived(Bytes :: non_neg_integer(), erlmcp_span:origin()) -> arrival().
arrived(Bytes, Origin) ->
    {erlang:monotonic_time(nanosecond), Bytes, Origin}.

-doc "Counts the end of a request as `ended/5` does, without an answer for operators.".
-spec ended(about(), outcome(), BytesOut :: non_neg_integer(), server()) -> ok.
ended(About, Outcome, BytesOut, Server) ->
    ended(About, Outcome, BytesOut, none, Server).

-doc """
Counts the end of a request, whose answer has `BytesOut` bytes. Ends the request's span, and calls
the server's observers. Records the request while an operator looks at the requests of the node
(`m:erlmcp_recent_requests`). `Answer` is for that record: a reply, the result of a task, or `none`.
""".
-spec ended(about(), outcome(), BytesOut :: non_neg_integer(), Answer :: term(), server()) -> ok.
ended(About, Outcome, BytesOut, Answer, Server) ->
    ended(row(About), About, Outcome, BytesOut, Answer, Server).

ended(Row, About, Outcome, BytesOut, Answer,
      #{meter := Meter, observers := Observers, tracer := Tracer} = Server) ->
    Now = erlang:monotonic_time(nanosecond),
    {Began, BytesIn, _} = arrival(About),
    ok = count(Outcome, Row, BytesIn, BytesOut, Now - Began, Meter),
    %% Most servers have neither a tracer nor observers.
    case has_no_span(Tracer, About) andalso Observers =:= [] andalso ?NOBODY_LOOKS of
        true ->
            ok;
        false ->
            ok = end_span(Tracer, About, Outcome, Now),
            observed(Observers, About, Outcome, BytesOut, Answer, Now, Server)
    end.

has_no_span(none, _) -> true;
has_no_span(_, #{span := unsampled}) -> true;
has_no_span(_, _) -> false.

end_span(none, _, _, _) -> ok;
end_span(Tracer, About, Outcome, Now) ->
    erlmcp_request_span:ended(About, Outcome, Now, Tracer).

arrival(#{arrival := Arrival}) -> Arrival;
arrival({_, Arrival}) -> Arrival.

-doc """
Returns the row in which a request is counted: that of its definition, or of its method. The runs of
all tasks have one row.
""".
-spec row(about()) -> row().
row(#{id := task}) -> ?METHOD(?TASK_METHOD);
row(#{definition := #{row := Row}}) -> Row;
row(#{row := Row}) -> Row;
row(#{context := #{method := Method}}) -> method_row(Method);
row({{_, Method, _}, _}) -> method_row(Method).

-doc """
Returns the row of a method. All methods that are not MCP's share a row. Requests whose method is
not known (`undefined`) have another one.
""".
-spec method_row(Method :: binary() | undefined) -> row().
method_row(Method) ->
    ?METHOD(erlmcp_meter_counts:method(Method)).

count(ok, Row, BytesIn, BytesOut, Nanoseconds, {Counters, _, _}) ->
    ok = counters:add(Counters, ?REQUESTS, 1),
    add_result(Row, BytesIn, BytesOut, Nanoseconds, Counters);
count(Outcome, Row, BytesIn, BytesOut, Nanoseconds, {Counters, Failures, _}) ->
    ok = counters:add(Counters, ?REQUESTS, 1),
    At = failure(failed(Outcome, Row), Row, Failures),
    ok = erlmcp_meter_counts:add_failure(At, Row, {BytesIn, BytesOut}, Nanoseconds, Counters),
    case is_fault(Outcome) of
        true -> counters:add(Counters, ?FAULTS, 1);
        false -> ok
    end.

is_fault({refused, Refusal}) -> erlmcp_refusal:is_fault(Refusal);
is_fault(_) -> false.

%% The error of a request, and its code. The run of a task has no answer.
failed(tool_error, _) ->
    {?TOOL_ERROR, 0};
failed(cancelled, _) ->
    {?CANCELLED, 0};
failed({refused, Refusal}, ?METHOD(?TASK_METHOD)) ->
    {?REFUSED(erlmcp_refusal:number(Refusal)), 0};
failed({refused, Refusal}, _) ->
    {?REFUSED(erlmcp_refusal:number(Refusal)),
     erlmcp_meter_counts:code_index(erlmcp_refusal:code(Refusal))}.

%% A failure of a row has a slot, which the first one takes.
failure({Error, Code}, Row, {OfMethods, _}) when Row < ?OTHERS(0) ->
    case erlmcp_meter_counts:slot(key(Row, Error, Code), ?SLOTS, OfMethods) of
        full -> ?SHARED_FAILURE(Error);
        Slot -> ?OF_METHOD(Slot)
    end;
failure({Error, Code}, Row, {_, OfDefinitions}) ->
    case erlmcp_meter_counts:slot(key(Row, Error, Code), ?SLOTS, OfDefinitions) of
        full -> ?SHARED_FAILURE(Error);
        Slot -> ?OF_DEFINITION(Slot)
    end.

key(Row, Error, Code) ->
    (Row bsl 14) bor (Code bsl 7) bor Error.

failure_of(Key) ->
    {Key bsr 14, Key band 127, (Key bsr 7) band 127}.

-doc """
Counts a request that ended well after `Nanoseconds`, in its row of the counters of a server's or a
client's meter. If the meter has a count of all requests, the caller adds the request there.
""".
-spec add_result(erlmcp_meter_counts:row(), BytesIn :: non_neg_integer(),
                 BytesOut :: non_neg_integer(), Nanoseconds :: integer(),
                 counters:counters_ref()) -> ok.
add_result(Row, BytesIn, BytesOut, Nanoseconds, Counters) ->
    ok = counters:add(Counters, Row, BytesIn),
    ok = counters:add(Counters, Row + 1, BytesOut),
    ok = counters:add(Counters, Row + 2, Nanoseconds),
    counters:add(Counters, Row + 2 + bucket(Nanoseconds), 1).

%% The fine buckets: the first ends with a microsecond, and each decade after it has 13. `Unit` is a
%% tenth of the decade's beginning.
bucket(Time) when Time =< 1_000 -> 1;
bucket(Time) when Time =< 10_000 -> 2 + step(Time, 100);
bucket(Time) when Time =< 100_000 -> 15 + step(Time, 1_000);
bucket(Time) when Time =< 1_000_000 -> 28 + step(Time, 10_000);
bucket(Time) when Time =< 10_000_000 -> 41 + step(Time, 100_000);
bucket(Time) when Time =< 100_000_000 -> 54 + step(Time, 1_000_000);
bucket(Time) when Time =< 1_000_000_000 -> 67 + step(Time, 10_000_000);
bucket(Time) when Time =< 10_000_000_000 -> 80 + step(Time, 100_000_000);
bucket(Time) when Time =< 100_000_000_000 -> 93 + step(Time, 1_000_000_000);
bucket(Time) when Time =< 300_000_000_000 -> 106 + step(Time, 10_000_000_000);
bucket(_) -> ?ROW_WORDS - 3.

step(Time, Unit) when Time =< 30 * Unit ->
    if
        Time =< 12 * Unit -> 0;
        Time =< 14 * Unit -> 1;
        Time =< 17 * Unit -> 2;
        Time =< 20 * Unit -> 3;
        Time =< 24 * Unit -> 4;
        true -> 5
    end;
step(Time, Unit) ->
    if
        Time =< 35 * Unit -> 6;
        Time =< 42 * Unit -> 7;
        Time =< 50 * Unit -> 8;
        Time =< 60 * Unit -> 9;
        Time =< 70 * Unit -> 10;
        Time =< 85 * Unit -> 11;
        true -> 12
    end.

-doc """
Counts a request that is answered with `Reply` now, as `ended/5` does, and returns `Reply`.
""".
-spec answered(about(), outcome(), Reply, server()) -> Reply when Reply :: erlmcp_reply:reply().
answered(About, Outcome, {reply, _, Bytes} = Reply, Server) ->
    ok = ended(About, Outcome, iolist_size(Bytes), Reply, Server),
    Reply.

-doc """
Counts a request that was refused before its message was read, as `ended/5` does. `Method` is the
one that the head of an HTTP request names, or else `undefined`. All such requests have one row,
whatever their methods.
""".
-spec refused(Method :: binary() | undefined, erlmcp_refusal:refusal(), server()) -> ok.
refused(Method, Refusal, Server) ->
    About = {{undefined, Method, #{}}, arrived(0)},
    ended(?METHOD(?UNREAD_METHOD), About, {refused, Refusal}, 0, none, Server).

observed(Observers, About, Outcome, BytesOut, Answer, Now, #{key := Key}) ->
    case {Observers, not ?NOBODY_LOOKS andalso erlmcp_recent_requests:is_wanted(Outcome)} of
        {[], false} ->
            ok;
        {_, Wanted} ->
            Ended = (request(About))#{server => Key, outcome => Outcome, bytes_out => BytesOut,
                                      ended => Now},
            _ = Wanted andalso erlmcp_recent_requests:add(Ended, {arguments(About), Answer}),
            tell(Observers, Ended)
    end.

%% Parameters without the metadata, which may have tokens.
arguments(#{arguments := Arguments}) -> Arguments;
arguments({{_, _, Params}, _}) when map_size(Params) > 0 -> maps:remove(~"_meta", Params);
arguments(_) -> none.

tell(Observers, Ended) ->
    lists:foreach(fun({Module, State}) -> ok = Module:request_ended(Ended, State) end, Observers).

request({{Id, Method, Params}, {Began, BytesIn, _}}) ->
    #{id => Id, method => Method, target => undefined, revision => undefined, params => Params,
      context => none, began => Began, bytes_in => BytesIn};
request(#{context := Context, id := Id, arrival := {Began, BytesIn, _}}) ->
    #{method := Method, revision := Revision, principal := Principal} = Context,
    Target = maps:get(name, Context, maps:get(uri, Context, undefined)),
    #{id => Id, method => Method, target => Target, revision => Revision, principal => Principal,
      params => #{~"_meta" => maps:get(meta, Context, #{})},
      context => Context, began => Began, bytes_in => BytesIn};
request(#{arrival := {Began, BytesIn, _}} = Subject) ->
    Known = maps:with([id, method, target, revision, principal], Subject),
    Known#{params => #{}, context => none, began => Began, bytes_in => BytesIn}.

-doc "Returns how many requests have ended, and how many of those were faults of the server.".
-spec totals(meter()) -> {Requests :: non_neg_integer(), Faults :: non_neg_integer()}.
%% Faults are read first, so that a fault counted at this moment is not read without its request.
totals({Counters, _, _}) ->
    Faults = counters:get(Counters, ?FAULTS),
    {counters:get(Counters, ?REQUESTS), Faults}.

-doc "Counts a session that opens, and returns the time, in nanoseconds of the monotonic clock.".
-spec session_opened(server()) -> integer().
session_opened(#{meter := {Counters, _, _}}) ->
    ok = counters:add(Counters, ?SESSIONS_OPENED, 1),
    erlang:monotonic_time(nanosecond).

-doc """
Counts a session that ends, with its duration since `opened`, in nanoseconds of the monotonic clock.
`pipe` is the network of a session on standard input and output, or of a client of this node.
""".
-spec session_ended(#{opened := integer(), revision := erlmcp_revision:revision(), _ => _},
                    tcp | pipe, server()) -> ok.
session_ended(#{opened := Opened, revision := Revision}, Network, #{meter := {Counters, _, _}}) ->
    Duration = erlang:monotonic_time(nanosecond) - Opened,
    At = ?DURATION(index({Network, Revision}, durations(), 0)),
    ok = counters:add(Counters, ?SESSIONS_ENDED, 1),
    erlmcp_meter_counts:add_duration(At, Duration, Counters).

durations() ->
    [{Network, Revision} || Network <- [tcp, pipe], Revision <- erlmcp_revision:all()].

index(Wanted, [Wanted | _], Index) -> Index;
index(Wanted, [_ | Others], Index) -> index(Wanted, Others, Index + 1).

-doc "Counts a stream that opens: an HTTP response of events.".
-spec stream_opened(server()) -> ok.
stream_opened(#{meter := {Counters, _, _}}) ->
    counters:add(Counters, ?STREAMS_OPENED, 1).

-doc """
Returns how many sessions and streams were opened, and how many sessions have ended, with the
durations of the ended ones by network and revision.
""".
-spec lasting(meter()) ->
    #{sessions_opened | sessions_ended | streams_opened => non_neg_integer(),
      durations => [{tcp | pipe, erlmcp_revision:revision(), erlmcp_meter_counts:times()}]}.
lasting({Counters, _, _}) ->
    %% Ends are read first, so that none is read without its beginning.
    Ended = counters:get(Counters, ?SESSIONS_ENDED),
    #{sessions_ended => Ended, sessions_opened => counters:get(Counters, ?SESSIONS_OPENED),
      streams_opened => counters:get(Counters, ?STREAMS_OPENED),
      durations => [{Network, Revision,
                     erlmcp_meter_counts:failure(?DURATION(Index), Counters)}
                    || {Index, {Network, Revision}} <- lists:enumerate(0, durations())]}.

-doc "Counts a request that is passed on to the home of its session.".
-spec forwarded(server()) -> ok.
forwarded(#{meter := {Counters, _, _}}) ->
    counters:add(Counters, ?FORWARDED, 1).

-doc "Counts a session that this node has inherited from another home.".
-spec inherited(server()) -> ok.
inherited(#{meter := {Counters, _, _}}) ->
    counters:add(Counters, ?INHERITED, 1).

-doc "Returns how many requests were passed on, and how many sessions were inherited.".
-spec in_cluster(meter()) -> #{forwarded | inherited => non_neg_integer()}.
in_cluster({Counters, _, _}) ->
    #{forwarded => counters:get(Counters, ?FORWARDED),
      inherited => counters:get(Counters, ?INHERITED)}.

-doc """
Counts a connection that a listener has refused when it opened, before it could send a request.
""".
-spec connection_refused(http | tcp, erlmcp_refusal:refusal(), server()) -> ok.
connection_refused(Listener, Refusal, #{meter := {Counters, _, _}}) ->
    Error = ?REFUSED(erlmcp_refusal:number(Refusal)),
    counters:add(Counters, ?CONNECTION(index(Listener, ?LISTENERS, 0), Error), 1).

-doc """
Returns how many connections were refused, by listener and by refusal. Counts of zero are left out.
""".
-spec refused_connections(meter()) -> [{http | tcp, erlmcp_refusal:row(), pos_integer()}].
refused_connections({Counters, _, _}) ->
    [{Listener, Refusal, Count}
     || {Index, Listener} <- lists:enumerate(0, ?LISTENERS),
        #{number := Number} = Refusal <- erlmcp_refusal:table(),
        Count <- [counters:get(Counters, ?CONNECTION(Index, ?REFUSED(Number)))], Count > 0].

-doc """
Returns the row of the definition with the key `Key`. The definition keeps this row until `free/4`
or `free/2`. A key whose row was freed gets that row again, with its counts, unless another
definition has taken it. At most 200 definitions have rows of their own. All other definitions of a
family share one row. Only one process may call this function at a time.
""".
-spec definition_row(family() | resource_template, Key :: binary(), meter()) -> row().
definition_row(resource_template, Key, Meter) ->
    definition_row(resource, Key, Meter);
definition_row(Family, Key, {_, _, Rows} = Meter) ->
    Tag = tag(Family, Key),
    case search(1, Tag, {none, none}, Rows) of
        none ->
            ?OTHERS(family(Family));
        {freed, Index} ->
            ok = moving(Meter, fun() ->
                ok = retire(Index, Meter),
                atomics:put(Rows, Index, Tag)
            end),
            ?OWN(Index);
        {_, Index} ->
            ok = atomics:put(Rows, Index, Tag),
            ?OWN(Index)
    end.

-doc "Returns `true` if a row belongs to one definition, and is not shared by several.".
-spec has_own_row(row()) -> boolean().
has_own_row(Row) -> Row >= ?OWN(1).

family(tool) -> 0;
family(prompt) -> 1;
family(resource) -> 2.

%% A tag has a family and a hash of a key; that of a free row is negative. 0 is a new row.
tag(Family, Key) ->
    ((erlang:phash2({Family, Key}) bsl 27 bor erlang:phash2({Key, Family})) bsl 2)
        bor (family(Family) + 1).

%% The best row: the definition's own, or else a new one, or else one that is free.
search(Index, _, {none, none}, _) when Index > ?ROWS -> none;
search(Index, _, {none, Freed}, _) when Index > ?ROWS -> {freed, Freed};
search(Index, _, {New, _}, _) when Index > ?ROWS -> {new, New};
search(Index, Tag, {New, Freed}, Rows) ->
    case atomics:get(Rows, Index) of
        Tag -> {own, Index};
        Free when Free =:= -Tag -> {own, Index};
        0 when New =:= none -> search(Index + 1, Tag, {Index, Freed}, Rows);
        Free when Free < 0, Freed =:= none -> search(Index + 1, Tag, {New, Index}, Rows);
        _ -> search(Index + 1, Tag, {New, Freed}, Rows)
    end.

-doc "Frees the row of a removed definition, unless another definition has it by now.".
-spec free(family() | resource_template, Key :: binary(), row(), meter()) -> ok.
free(resource_template, Key, Row, Meter) ->
    free(resource, Key, Row, Meter);
free(Family, Key, Row, {_, _, Rows} = Meter) ->
    case has_own_row(Row) andalso atomics:get(Rows, index(Row)) =:= tag(Family, Key) of
        true -> free(Row, Meter);
        false -> ok
    end.

-doc "Frees a row that no definition has any more. A shared row stays as it is.".
-spec free(row(), meter()) -> ok.
free(Row, {_, _, Rows}) when Row >= ?OWN(1) ->
    Index = index(Row),
    atomics:put(Rows, Index, -abs(atomics:get(Rows, Index)));
free(_, _) ->
    ok.

index(Row) -> (Row - ?OWN(1)) div ?ROW_WORDS + 1.

%% The counts of a row that another definition needs go to the removed ones of its family. So no sum
%% of a method falls, and only the figures of the definition itself end.
retire(Index, {Counters, {_, Slots}, Rows} = Meter) ->
    Row = ?OWN(Index),
    ok = add_all(?REMOVED(family_at(Index, Rows)), take(Row, ?ROW_WORDS, Counters), Counters),
    Taken = erlmcp_meter_counts:taken(Slots),
    forget([One || {_, Key} = One <- Taken, {Of, _, _} <- [failure_of(Key)], Of =:= Row], Taken,
           Meter).

family_at(Index, Rows) ->
    abs(atomics:get(Rows, Index)) band 3 - 1.

%% Failures of definitions give their slots back. Their counts go to the same failures of removed
%% definitions. If one of these has no slot yet, it gets the slot of the first. Nothing else counts
%% for them, so only `taken/1` has to find them.
forget(Failures, Taken, {_, {_, Slots}, _} = Meter) ->
    Removed = #{Key => Slot || {Slot, Key} <- Taken, is_removed(failure_of(Key))},
    _ = lists:foldl(fun({Slot, Key}, Known) ->
        Other = removed(failure_of(Key), Meter),
        case Known of
            #{Other := To} ->
                _ = erlmcp_meter_counts:close(Slot, Key, Slots) andalso move(Slot, To, Meter),
                Known;
            #{} ->
                case erlmcp_meter_counts:rename(Slot, Key, Other, Slots) of
                    true -> Known#{Other => Slot};
                    false -> Known
                end
        end
    end, Removed, Failures),
    ok.

removed({Row, Error, Code}, {_, _, Rows}) ->
    key(?REMOVED(family_of(Row, Rows)), Error, Code).

move(Slot, To, {Counters, {_, Slots}, _}) ->
    Counts = take(?OF_DEFINITION(Slot), ?FAILURE_WORDS, Counters),
    ok = add_all(?OF_DEFINITION(To), Counts, Counters),
    ok = counters:put(Counters, ?SEEN(Slot), 0),
    erlmcp_meter_counts:release(Slot, Slots).

family_of(Row, Rows) when Row >= ?OWN(1) -> family_at(index(Row), Rows);
family_of(Row, _) -> (Row - ?OTHERS(0)) div ?ROW_WORDS.

-doc """
Makes room for new failures of definitions if more than half of their slots are taken. Failures that
were not counted since the last sweep lose their slots. Their counts are added to those of removed
definitions.
""".
-spec sweep(server()) -> ok.
sweep(#{meter := {Counters, {_, Slots}, _} = Meter}) ->
    Taken = erlmcp_meter_counts:taken(Slots),
    Sums = [{One, counters:get(Counters, ?OF_DEFINITION(Slot))} || {Slot, _} = One <- Taken],
    Unused = [One || {{Slot, Key} = One, Sum} <- Sums, 2 * length(Taken) > ?SLOTS,
                     not is_removed(failure_of(Key)),
                     Sum =:= counters:get(Counters, ?SEEN(Slot))],
    lists:foreach(fun({{Slot, _}, Sum}) -> counters:put(Counters, ?SEEN(Slot), Sum) end, Sums),
    Unused =:= [] orelse moving(Meter, fun() -> forget(Unused, Taken, Meter) end),
    ok.

moving({_, {_, Slots}, _}, Move) ->
    erlmcp_meter_counts:moving(Slots, Move).

-doc """
Returns the value of `Read`, a fun that reads the meter, as `erlmcp_meter_counts:steady/2` does.
""".
-spec steady(meter(), Read :: fun(() -> Result)) -> Result.
steady({_, {_, Slots}, _}, Read) ->
    erlmcp_meter_counts:steady(Slots, Read).

is_removed({Row, _, _}) ->
    Row >= ?REMOVED(0) andalso Row < ?OWN(1).

take(At, Words, Counters) ->
    lists:map(fun(Word) ->
        Count = counters:get(Counters, Word),
        ok = counters:sub(Counters, Word, Count),
        Count
    end, lists:seq(At, At + Words - 1)).

add_all(At, Counts, Counters) ->
    lists:foreach(fun({Word, Count}) -> ok = counters:add(Counters, Word, Count) end,
                  lists:enumerate(At, Counts)).

-doc "Returns the names of methods with their rows (`erlmcp_meter_counts:methods/0`).".
-spec methods() -> [{Name :: binary(), row()}].
methods() ->
    [{Name, ?METHOD(Index)} || {Name, Index} <- erlmcp_meter_counts:methods()].

-doc """
Returns the rows of definitions, with their families: the shared rows, and each row that a
definition has ever had alone.
""".
-spec used_rows(meter()) -> [{family(), whose(), row()}].
used_rows({_, _, Rows}) ->
    [Row || Family <- ?KINDS,
            Row <- [{Family, other, ?OTHERS(family(Family))},
                    {Family, removed, ?REMOVED(family(Family))}]]
        ++ [{lists:nth(1 + family_at(Index, Rows), ?KINDS), own, ?OWN(Index)}
            || Index <- lists:seq(1, ?ROWS), atomics:get(Rows, Index) =/= 0].

-doc "Returns 200, the most definitions that have rows of their own.".
-spec rows() -> pos_integer().
rows() -> ?ROWS.

-doc "Returns the bytes of all requests of a row, and the times of those that ended well.".
-spec read(row(), meter()) -> erlmcp_meter_counts:figures().
read(Row, {Counters, _, _}) ->
    erlmcp_meter_counts:row(Row, Counters).

-doc """
Returns the failures of all rows. Failures that have found no slot have the row of methods that are
not MCP's, and the code `none`.
""".
-spec failures(meter()) -> [failure()].
failures({Counters, {OfMethods, OfDefinitions}, _}) ->
    Names = #{?REFUSED(Number) => Name
              || #{number := Number, name := Name} <- erlmcp_refusal:table()},
    Known = Names#{?TOOL_ERROR => tool_error, ?CANCELLED => cancelled},
    All = [{?SHARED_FAILURE(Error), {?METHOD(?OTHER_METHOD), Error, 0}} || Error := _ <- Known]
        ++ [{?OF_METHOD(Slot), failure_of(Key)}
            || {Slot, Key} <- erlmcp_meter_counts:taken(OfMethods)]
        ++ [{?OF_DEFINITION(Slot), failure_of(Key)}
            || {Slot, Key} <- erlmcp_meter_counts:taken(OfDefinitions)],
    [{Row, map_get(Error, Known), erlmcp_meter_counts:code(Code), Times}
     || {At, {Row, Error, Code}} <- All,
        {_, Counts} = Times <- [erlmcp_meter_counts:failure(At, Counters)],
        lists:any(fun(Count) -> Count > 0 end, Counts)].
