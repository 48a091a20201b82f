-module(erlmcp_meter).
-moduledoc """
The one place that sees the end of every request of a server, whichever transport it came by and
whichever process answers it. It counts the request, without a process, a lock or a table, and tells
those who observe requests, if there are any.

A transport notes the arrival of a message when the whole message is there (`arrived/1`). A request
ends once: with its answer, with a refusal before or after its call began, or because its client has
cancelled it. A refusal of a message that could not be read counts as a request, too. Notifications
and responses do not count, unless they are refused.

Internal.
""".

-include("erlmcp_recent_requests.hrl").

-export([new/0, arrived/1, arrived/2, without_headers/1, row/1]).
-export([ended/4, ended/5, answered/4, refused/3, totals/1]).
-export([definition_row/3, free/2]).
-export([session_opened/1, session_ended/3, stream_opened/1, stream_ended/1, lasting/1]).
-export([methods/0, method_row/1, used_rows/1, read/2, failures/1, rows/0]).

-export_type([meter/0, server/0, arrival/0, about/0, subject/0, outcome/0, ended/0, observer/0,
              row/0, family/0, error/0, figures/0]).

-doc "The counts of a server, and which rows its definitions have.".
-opaque meter() :: {counters:counters_ref(), Slots :: atomics:atomics_ref(),
                    Rows :: atomics:atomics_ref()}.
-doc "A map with the meter of a server, such as the server's context or its part for calls.".
-type server() :: #{key := reference(), meter := meter(), observers := [observer()],
                    tracer := erlmcp_tracer:tracer() | none, atom() => term()}.
-doc """
Those who observe requests. At the end of each request `Module:request_ended(Ended, State)` is
called in the process that answers, which must not wait there.
""".
-type observer() :: {module(), State :: term()}.
-doc """
The arrival of a message: its time, in nanoseconds of the monotonic clock, its bytes, and its
origin, which is `none` if nobody asks for it.
""".
-type arrival() ::
    {Began :: integer(), Bytes :: non_neg_integer(), erlmcp_request_span:origin()}.
-doc """
A request, in the form that the caller has: a call with its arrival, the subject of one, or a
request that has no call.
""".
-type about() ::
    #{arrival := arrival(), context := erlmcp:context(), id := term(), atom() => term()}
    | subject()
    | {erlmcp_engine:asked(), arrival()}.
-doc "The subject of a call, for a process that ends the request in its place.".
-type subject() :: #{
    id := erlmcp_message:id() | task | undefined,
    revision := erlmcp_revision:revision() | undefined,
    method := binary(), target := binary() | undefined, row := row(), arrival := arrival()
}.
-doc "The end of a request. `tool_error` is a result of a tool with `isError`.".
-type outcome() :: ok | tool_error | cancelled | {refused, erlmcp_refusal:refusal()}.
-doc "The end of a request that had no result, or one with `isError`.".
-type error() :: tool_error | cancelled | erlmcp:refusal_name().
-doc """
An ended request, for observers. `target` is the name or the URI that its call is for. `context` is
its call's, and `none` without one. Times are in nanoseconds of the monotonic clock.
""".
-type ended() :: #{
    server := reference(), id := erlmcp_message:id() | task | undefined,
    method := binary() | undefined, target := binary() | undefined,
    revision := erlmcp_revision:revision() | undefined, params := map(),
    context := erlmcp:context() | none,
    outcome := outcome(), began := integer(), ended := integer(),
    bytes_in := non_neg_integer(), bytes_out := non_neg_integer()
}.
-doc "The requests that are counted together: those of a method, or those of a definition.".
-opaque row() :: pos_integer().
-doc "The definitions that the same method is for.".
-type family() :: tool | prompt | resource.
-doc """
The counts of a row: bytes, and the requests with a result: the sum of their nanoseconds, and their
counts by the buckets of `m:erlmcp_histogram`.
""".
-type figures() :: #{
    bytes_in := non_neg_integer(), bytes_out := non_neg_integer(), sum := non_neg_integer(),
    counts := [non_neg_integer()]
}.

%% The most definitions with a row of their own.
-define(ROWS, 200).
%% The counters: those of all requests, the rows of methods, those of definitions, and the failures.
-define(REQUESTS, 1).
-define(FAULTS, 2).
-define(SESSIONS_OPENED, 3).
-define(SESSIONS_ENDED, 4).
-define(STREAMS_OPENED, 5).
-define(STREAMS_ENDED, 6).
%% A row: bytes in, bytes out, nanoseconds, and the buckets.
-define(BUCKETS, 112).
-define(WIDTH, (3 + ?BUCKETS)).
-define(METHOD(Index), (7 + (Index) * ?WIDTH)).
-define(OTHER, 0).
-define(UNREAD, 1).
-define(TASK, 2).
-define(METHODS, #{
    ~"tools/call" => 3, ~"tools/list" => 4, ~"prompts/get" => 5, ~"prompts/list" => 6,
    ~"resources/read" => 7, ~"resources/list" => 8, ~"resources/templates/list" => 9,
    ~"resources/subscribe" => 10, ~"resources/unsubscribe" => 11, ~"subscriptions/listen" => 12,
    ~"completion/complete" => 13, ~"logging/setLevel" => 14, ~"ping" => 15, ~"initialize" => 16,
    ~"server/discover" => 17, ~"tasks/get" => 18, ~"tasks/result" => 19, ~"tasks/list" => 20,
    ~"tasks/cancel" => 21, ~"tasks/update" => 22, ~"skills/list" => 23, ~"skills/get" => 24,
    ~"resources/directory/read" => 25
}).
-define(METHOD_ROWS, 26).
%% The first rows of definitions are those of all definitions of a family without a row.
-define(DEFINITION(Index), ?METHOD(?METHOD_ROWS + (Index))).
-define(FAMILIES, 3).
%% A failure: nanoseconds, and the buckets of OpenTelemetry. Each error has a slot for all rows that
%% find no slot of their own.
-define(FAILURE_BUCKETS, 15).
-define(FAILURE_WIDTH, (1 + ?FAILURE_BUCKETS)).
-define(ERRORS, 92).
-define(SLOTS, 256).
-define(PROBES, 16).
-define(FAILURE(Slot), (?DEFINITION(?FAMILIES + ?ROWS) + (Slot) * ?FAILURE_WIDTH)).
%% The durations of sessions, by network and revision.
-define(DURATION(Index), (?FAILURE(?ERRORS + ?SLOTS) + (Index) * ?FAILURE_WIDTH)).
-define(DURATIONS, 10).
-define(WORDS, (?DURATION(?DURATIONS) - 1)).

-doc "Creates a meter with all counts at zero.".
-spec new() -> meter().
new() ->
    {counters:new(?WORDS, [write_concurrency]), atomics:new(?SLOTS, []), atomics:new(?ROWS, [])}.

-doc "Returns the arrival, now, of a message of `Bytes` bytes.".
-spec arrived(Bytes :: non_neg_integer()) -> arrival().
arrived(Bytes) ->
    arrived(Bytes, none).

-doc "Returns the arrival, now, of a message of `Bytes` bytes from `Origin`.".
-spec arrived(Bytes :: non_neg_integer(), erlmcp_request_span:origin()) -> arrival().
arrived(Bytes, Origin) ->
    {erlang:monotonic_time(nanosecond), Bytes, Origin}.

-doc "Returns an arrival for the process of a call, which needs no headers.".
-spec without_headers(arrival()) -> arrival().
without_headers({Began, Bytes, {http, Version, Peer, _}}) ->
    {Began, Bytes, {http, Version, Peer, #{}}};
without_headers(Arrival) ->
    Arrival.

-doc "Counts the end of a request whose answer nobody may see, as `ended/5` does.".
-spec ended(about(), outcome(), BytesOut :: non_neg_integer(), server()) -> ok.
ended(About, Outcome, BytesOut, Server) ->
    ended(About, Outcome, BytesOut, none, Server).

-doc """
Counts the end of a request, whose answer has `BytesOut` bytes, and tells the server's observers.
`Answer` is for an operator who looks at payloads: a reply, the result of a task, or `none`.
""".
-spec ended(about(), outcome(), BytesOut :: non_neg_integer(), Answer :: term(), server()) -> ok.
ended(About, Outcome, BytesOut, Answer, #{meter := Meter, observers := Observers} = Server) ->
    Now = erlang:monotonic_time(nanosecond),
    {Began, BytesIn, _} = arrival(About),
    Row = row(About),
    {Counters, _, _} = Meter,
    ok = counters:add(Counters, ?REQUESTS, 1),
    ok = counters:add(Counters, Row, BytesIn),
    ok = counters:add(Counters, Row + 1, BytesOut),
    ok = count(Outcome, Row, Now - Began, Meter),
    ok = end_span(Server, About, Outcome, Now),
    observed(Observers, About, Outcome, BytesOut, Answer, Now, Server).

end_span(#{tracer := none}, _, _, _) ->
    ok;
end_span(#{tracer := Tracer}, About, Outcome, Now) ->
    erlmcp_request_span:ended(About, Outcome, Now, Tracer).

arrival(#{arrival := Arrival}) -> Arrival;
arrival({_, Arrival}) -> Arrival.

-doc "Returns the row in which a request is counted: that of its definition, or of its method.".
-spec row(about()) -> row().
row(#{id := task}) -> ?METHOD(?TASK);
row(#{definition := #{row := Row}}) -> Row;
row(#{row := Row}) -> Row;
row(#{context := #{method := Method}}) -> method_row(Method);
row({{_, Method, _}, _}) -> method_row(Method).

-doc "Returns the row of a method, which may be none of MCP, or not known.".
-spec method_row(Method :: binary() | undefined) -> row().
method_row(undefined) -> ?METHOD(?UNREAD);
method_row(Method) ->
    case ?METHODS of
        #{Method := Index} -> ?METHOD(Index);
        #{} -> ?METHOD(?OTHER)
    end.

count(ok, Row, Nanoseconds, {Counters, _, _}) ->
    ok = counters:add(Counters, Row + 2, Nanoseconds),
    counters:add(Counters, Row + 2 + bucket(Nanoseconds), 1);
count({refused, Refusal}, Row, Nanoseconds, {Counters, _, _} = Meter) ->
    _ = erlmcp_refusal:is_fault(Refusal) andalso counters:add(Counters, ?FAULTS, 1),
    failed(erlmcp_refusal:number(Refusal) - 999, Row, Nanoseconds, Meter);
count(tool_error, Row, Nanoseconds, Meter) ->
    failed(0, Row, Nanoseconds, Meter);
count(cancelled, Row, Nanoseconds, Meter) ->
    failed(1, Row, Nanoseconds, Meter).

%% The buckets of `m:erlmcp_histogram`: the first ends with a microsecond, and each decade after it
%% has 13. `Unit` is a tenth of the decade's beginning.
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
bucket(_) -> ?BUCKETS.

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

%% A failure of a row has a slot, which the first one takes.
failed(Error, Row, Nanoseconds, {Counters, Slots, _}) ->
    At = ?FAILURE(slot(Error, Row, Slots)),
    ok = counters:add(Counters, At, Nanoseconds),
    counters:add(Counters, At + coarse_bucket(Nanoseconds), 1).

slot(Error, ?METHOD(?OTHER), _) ->
    Error;
slot(Error, Row, Slots) ->
    Key = Row bsl 7 bor Error,
    probe(?PROBES, erlang:phash2(Key, ?SLOTS), Key, Error, Slots).

probe(0, _, _, Error, _) ->
    Error;
probe(Left, Slot, Key, Error, Slots) ->
    case atomics:get(Slots, Slot + 1) of
        Key ->
            ?ERRORS + Slot;
        0 ->
            case atomics:compare_exchange(Slots, Slot + 1, 0, Key) of
                ok -> ?ERRORS + Slot;
                _ -> probe(Left, Slot, Key, Error, Slots)
            end;
        _ ->
            probe(Left - 1, (Slot + 1) rem ?SLOTS, Key, Error, Slots)
    end.

%% The buckets of OpenTelemetry (`erlmcp_histogram:coarse_bounds/0`). The first refusal of a node on
%% stdio would wait for that module to be loaded.
coarse_bucket(Time) when Time =< 10_000_000 -> 1;
coarse_bucket(Time) when Time =< 20_000_000 -> 2;
coarse_bucket(Time) when Time =< 50_000_000 -> 3;
coarse_bucket(Time) when Time =< 100_000_000 -> 4;
coarse_bucket(Time) when Time =< 200_000_000 -> 5;
coarse_bucket(Time) when Time =< 500_000_000 -> 6;
coarse_bucket(Time) when Time =< 1_000_000_000 -> 7;
coarse_bucket(Time) when Time =< 2_000_000_000 -> 8;
coarse_bucket(Time) when Time =< 5_000_000_000 -> 9;
coarse_bucket(Time) when Time =< 10_000_000_000 -> 10;
coarse_bucket(Time) when Time =< 30_000_000_000 -> 11;
coarse_bucket(Time) when Time =< 60_000_000_000 -> 12;
coarse_bucket(Time) when Time =< 120_000_000_000 -> 13;
coarse_bucket(Time) when Time =< 300_000_000_000 -> 14;
coarse_bucket(_) -> 15.

-doc "Counts a request that is answered with `Reply` now, and returns `Reply`.".
-spec answered(about(), outcome(), Reply, server()) -> Reply when Reply :: erlmcp_reply:reply().
answered(About, Outcome, {reply, _, Bytes} = Reply, Server) ->
    ok = ended(About, Outcome, iolist_size(Bytes), Reply, Server),
    Reply.

-doc """
Counts a request that was refused before its message was read. `Method` is `undefined` if its head
does not tell it.
""".
-spec refused(Method :: binary() | undefined, erlmcp_refusal:refusal(), server()) -> ok.
refused(Method, Refusal, Server) ->
    ended({{undefined, Method, #{}}, arrived(0)}, {refused, Refusal}, 0, Server).

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
request(#{context := #{method := Method, revision := Revision} = Context, id := Id,
          arrival := {Began, BytesIn, _}}) ->
    Target = maps:get(name, Context, maps:get(uri, Context, undefined)),
    #{id => Id, method => Method, target => Target, revision => Revision,
      params => #{~"_meta" => maps:get(meta, Context, #{})},
      context => Context, began => Began, bytes_in => BytesIn};
request(#{arrival := {Began, BytesIn, _}} = Subject) ->
    Known = maps:with([id, method, target, revision], Subject),
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

-doc "Counts a session that ends, with its duration.".
-spec session_ended(#{opened := integer(), revision := erlmcp_revision:revision(), _ => _},
                    tcp | pipe, server()) -> ok.
session_ended(#{opened := Opened, revision := Revision}, Network, #{meter := {Counters, _, _}}) ->
    Duration = erlang:monotonic_time(nanosecond) - Opened,
    At = ?DURATION(index({Network, Revision}, durations(), 0)),
    ok = counters:add(Counters, ?SESSIONS_ENDED, 1),
    ok = counters:add(Counters, At, Duration),
    counters:add(Counters, At + coarse_bucket(Duration), 1).

durations() ->
    [{Network, Revision} || Network <- [tcp, pipe], Revision <- erlmcp_revision:all()].

index(Wanted, [Wanted | _], Index) -> Index;
index(Wanted, [_ | Others], Index) -> index(Wanted, Others, Index + 1).

-doc "Counts a stream that opens: an HTTP response of events.".
-spec stream_opened(server()) -> ok.
stream_opened(#{meter := {Counters, _, _}}) ->
    counters:add(Counters, ?STREAMS_OPENED, 1).

-doc "Counts a stream that ends.".
-spec stream_ended(server()) -> ok.
stream_ended(#{meter := {Counters, _, _}}) ->
    counters:add(Counters, ?STREAMS_ENDED, 1).

-doc """
Returns how many sessions and streams were opened and have ended, and the durations of sessions: the
sum of their nanoseconds, and their counts by coarse buckets.
""".
-spec lasting(meter()) ->
    #{sessions_opened | sessions_ended | streams_opened | streams_ended => non_neg_integer(),
      durations => [{tcp | pipe, erlmcp_revision:revision(), Sum :: non_neg_integer(),
                     Counts :: [non_neg_integer()]}]}.
lasting({Counters, _, _}) ->
    %% Ends are read first, so that none is read without its beginning.
    [Ended, Closed] = [counters:get(Counters, At) || At <- [?SESSIONS_ENDED, ?STREAMS_ENDED]],
    #{sessions_ended => Ended, sessions_opened => counters:get(Counters, ?SESSIONS_OPENED),
      streams_ended => Closed, streams_opened => counters:get(Counters, ?STREAMS_OPENED),
      durations => [{Network, Revision, counters:get(Counters, ?DURATION(Index)),
                     [counters:get(Counters, ?DURATION(Index) + Bucket)
                      || Bucket <- lists:seq(1, ?FAILURE_BUCKETS)]}
                    || {Index, {Network, Revision}} <- lists:enumerate(0, durations())]}.

-doc """
Returns the row of a definition, which keeps it until `free/2`. The same key gets its old row again,
with its counts, unless another definition has needed it. Definitions that find no row share one
with the others of their family. Only one process may call this at a time.
""".
-spec definition_row(family() | resource_template, Key :: binary(), meter()) -> row().
definition_row(resource_template, Key, Meter) ->
    definition_row(resource, Key, Meter);
definition_row(Family, Key, {_, _, Rows} = Meter) ->
    Tag = tag(Family, Key),
    case search(1, Tag, {none, none}, Rows) of
        none ->
            ?DEFINITION(family(Family));
        {own, Index} ->
            ok = atomics:put(Rows, Index, Tag),
            definition_row(Index);
        {new, Index} ->
            ok = atomics:put(Rows, Index, Tag),
            definition_row(Index);
        {freed, Index} ->
            ok = retire(Index, Meter),
            ok = atomics:put(Rows, Index, Tag),
            definition_row(Index)
    end.

definition_row(Index) -> ?DEFINITION(?FAMILIES + Index - 1).

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

-doc "Frees the row of a definition that was removed.".
-spec free(row(), meter()) -> ok.
free(Row, {_, _, Rows}) when Row >= ?DEFINITION(?FAMILIES) ->
    Index = (Row - ?DEFINITION(?FAMILIES)) div ?WIDTH + 1,
    atomics:put(Rows, Index, -abs(atomics:get(Rows, Index)));
free(_, _) ->
    ok.

%% The counts of a row that another definition needs go to the row of all others of its family.
retire(Index, {Counters, Slots, Rows}) ->
    Row = definition_row(Index),
    Others = ?DEFINITION((-atomics:get(Rows, Index)) band 3 - 1),
    ok = move(Row, Others, ?WIDTH, Counters),
    lists:foreach(fun({Slot, Key}) ->
        Error = Key band 127,
        ok = move(?FAILURE(?ERRORS + Slot), ?FAILURE(slot(Error, Others, Slots)),
                  ?FAILURE_WIDTH, Counters)
    end, [Taken || {_, Key} = Taken <- taken(Slots), Key bsr 7 =:= Row]).

move(From, To, Words, Counters) ->
    lists:foreach(fun(Word) ->
        Count = counters:get(Counters, From + Word),
        ok = counters:sub(Counters, From + Word, Count),
        ok = counters:add(Counters, To + Word, Count)
    end, lists:seq(0, Words - 1)).

taken(Slots) ->
    [{Slot, Key} || Slot <- lists:seq(0, ?SLOTS - 1),
                    Key <- [atomics:get(Slots, Slot + 1)], Key =/= 0].

-doc """
Returns the names of methods, with `_OTHER` for all that are not MCP's, `_UNREAD` for requests that
were refused before their method was known, and `_TASK` for the runs of tasks.
""".
-spec methods() -> [{Name :: binary(), row()}].
methods() ->
    [{~"_OTHER", ?METHOD(?OTHER)}, {~"_UNREAD", ?METHOD(?UNREAD)}, {~"_TASK", ?METHOD(?TASK)}
     | lists:sort([{Name, ?METHOD(Index)} || Name := Index <- ?METHODS, Index =/= ?OTHER])].

-doc """
Returns the rows of definitions that have ever been used, with their families. The first three are
of all definitions without a row.
""".
-spec used_rows(meter()) -> [{family(), row()}].
used_rows({_, _, Rows}) ->
    [{Family, ?DEFINITION(family(Family))} || Family <- [tool, prompt, resource]]
        ++ [{lists:nth(abs(Tag) band 3, [tool, prompt, resource]), definition_row(Index)}
            || Index <- lists:seq(1, ?ROWS), Tag <- [atomics:get(Rows, Index)], Tag =/= 0].

-doc "Returns how many definitions have a row of their own at most.".
-spec rows() -> pos_integer().
rows() -> ?ROWS.

-doc "Returns the counts of a row, except those of its failures.".
-spec read(row(), meter()) -> figures().
read(Row, {Counters, _, _}) ->
    #{bytes_in => counters:get(Counters, Row), bytes_out => counters:get(Counters, Row + 1),
      sum => counters:get(Counters, Row + 2),
      counts => [counters:get(Counters, Row + 2 + Bucket) || Bucket <- lists:seq(1, ?BUCKETS)]}.

-doc """
Returns the failures of each row, with the sum of their nanoseconds and their counts by the coarse
buckets of `m:erlmcp_histogram`.
""".
-spec failures(meter()) ->
    [{row(), error(), Sum :: non_neg_integer(), Counts :: [non_neg_integer()]}].
failures({Counters, Slots, _}) ->
    All = [{Error, ?METHOD(?OTHER), Error} || Error <- lists:seq(0, ?ERRORS - 1)]
        ++ [{?ERRORS + Slot, Key bsr 7, Key band 127} || {Slot, Key} <- taken(Slots)],
    Names = #{Number => Name || #{number := Number, name := Name} <- erlmcp_refusal:table()},
    [{Row, failure(Error, Names), counters:get(Counters, ?FAILURE(Slot)), Found}
     || {Slot, Row, Error} <- All,
        Found <- [[counters:get(Counters, ?FAILURE(Slot) + Bucket)
                   || Bucket <- lists:seq(1, ?FAILURE_BUCKETS)]],
        lists:any(fun(Count) -> Count > 0 end, Found)].

failure(0, _) -> tool_error;
failure(1, _) -> cancelled;
failure(Error, Names) -> map_get(Error + 999, Names).
