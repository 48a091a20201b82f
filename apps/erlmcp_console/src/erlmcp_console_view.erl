-module(erlmcp_console_view).
-moduledoc """
Keeps the console's knowledge of one server: the last reading, the last quarter of an hour, the
verdict, forecasts, and marks of changes. A view is a value that gets readings and events, and is
shown as two messages for the page. Pure.
""".

-export([new/0, with/2, next/2, event/2, hello/1, snapshot/1]).

-export_type([view/0, reading/0, options/0]).

-doc """
A reading of a server at a time in milliseconds. It has the server's meter, the state that
`erlmcp:info/1` has, the node, running calls and recent requests. `server` is what does not change.
""".
-type reading() :: #{
    at := integer(), metrics := erlmcp:metrics(), info := erlmcp:info(),
    node := erlmcp_console_node:reading(), calls := [erlmcp:running_call()],
    requests := [erlmcp_recent_requests:row()],
    server := #{atom() => term()}
}.
-doc "`latency_ms`: the bound of the time that 95 of 100 requests take.".
-type options() :: #{latency_ms := pos_integer()}.
-opaque view() :: #{
    options := options(),
    %% the newest first: the last reading, and then one for each ten seconds of the last minute
    readings := [reading()],
    history := erlmcp_console_history:history(),
    verdict := erlmcp_console_verdict:verdict() | none,
    marks := [mark()],
    incidents := [incident()],
    open_breakers := [Target :: binary()],
    snapshot := map() | none
}.
-type incident() :: #{
    at := integer(), id := binary(), what := binary(), method := binary() | null,
    target := binary() | null
}.
-type mark() :: #{at := integer(), kind := atom(), words := binary()}.

-define(COLUMNS, [at, requests, faults, refusals, tool_errors, p50_ms, p95_ms, p99_ms, in_flight,
                  waiting, connections, sessions, memory, processors]).
%% Milliseconds between two readings that are kept, and how many are.
-define(STEP_MS, 10_000).
-define(READINGS, 7).
-define(QUARTER_MS, 900_000).
-define(MARKS, 100).
-define(INCIDENTS, 20).
-define(LATENCY_MS, 150).
%% Rows of a list, and frames of a stack.
-define(CALLS, 50).
-define(FRAMES, 12).

-doc "Returns a view of a server that has not been read yet.".
-spec new() -> view().
new() ->
    #{options => #{latency_ms => ?LATENCY_MS}, readings => [],
      history => erlmcp_console_history:new(),
      verdict => none, marks => [], incidents => [], open_breakers => [], snapshot => none}.

-doc "Returns the view with the options of the page that shows it.".
-spec with(options(), view()) -> view().
with(Options, View) ->
    View#{options := Options}.

-doc "Adds a reading.".
-spec next(reading(), view()) -> view().
next(#{at := At} = Reading, #{readings := []} = View) ->
    #{metrics := #{started_ms := Started}} = Reading,
    Start = mark(Started, start, ~"The server started."),
    View#{readings := [Reading], verdict := erlmcp_console_verdict:new(max(Started, At - 1)),
          marks := [Start || At - Started < ?QUARTER_MS]};
next(Reading, #{readings := [Before | Kept], history := History, verdict := Verdict,
                marks := Marks, open_breakers := Breakers, options := Options} = View) ->
    #{at := At, metrics := Metrics, info := Info, node := Node} = Reading,
    #{metrics := MetricsBefore, node := NodeBefore} = Before,
    #{metrics := MetricsOfMinute} = lists:last([Before | Kept]),
    Second = erlmcp_console_window:between(MetricsBefore, Metrics),
    Minute = erlmcp_console_window:between(MetricsOfMinute, Metrics),
    Processors = erlmcp_console_node:processors(NodeBefore, Node),
    Used = used(Metrics, Node),
    Point = point(At, Second, Metrics, Node, Processors),
    Now = erlmcp_console_history:add(Point, #{Name => Value || {Name, Value, _} <- Used}, History),
    Bounds = [bound(Bound, At, Now) || Bound <- Used],
    Facts = (facts(Minute, Info, Bounds, Processors, Options))#{open_breakers => Breakers},
    Next = erlmcp_console_verdict:next(Facts, At, Verdict),
    AllMarks = lists:sublist(catalog_marks(Before, Reading) ++ Marks, ?MARKS),
    View#{readings := [Reading | kept(Before, Kept)], history := Now, verdict := Next,
          marks := [Mark || #{at := Then} = Mark <- AllMarks, At - Then < ?QUARTER_MS],
          snapshot := shown(Reading, NodeBefore, Point, Minute, Bounds, Next, Processors)}.

%% The reading before this one is kept if it is ten seconds younger than the last one that was.
kept(Before, []) -> [Before];
kept(#{at := At} = Before, [#{at := Then} | _] = Kept) when At - Then >= ?STEP_MS ->
    [Before | lists:sublist(Kept, ?READINGS - 1)];
kept(_, Kept) -> Kept.

point(At, Second, Metrics, #{memory := #{total := Memory}}, Processors) ->
    #{seconds := Seconds, requests := Requests, faults := Faults, refusals := Refusals,
      tool_errors := Errors,
      latency := #{p50_us := P50, p95_us := P95, p99_us := P99}} = Second,
    #{in_flight := InFlight, waiting := Waiting, connections := Connections,
      sessions := #{open := Sessions}} = Metrics,
    [At, rate(Requests, Seconds), rate(Faults, Seconds),
     rate(lists:sum(maps:values(Refusals)), Seconds), rate(Errors, Seconds),
     P50 / 1000, P95 / 1000, P99 / 1000, InFlight, Waiting, Connections, Sessions, Memory,
     rounded(Processors)].

rate(Count, Seconds) -> rounded(Count / Seconds).

rounded(Number) -> round(Number * 1000) / 1000.

%% What is used of each bound.
used(#{bounds := Bounds}, #{machine_memory := Memory, tables := Tables}) ->
    [{atom_to_binary(Name), Used, Limit}
     || Name := #{used := Used, limit := Limit} <- Bounds]
        ++ [{~"memory", Used, Limit} || {Used, Limit} <- [Memory]]
        ++ [{atom_to_binary(Name), Used, Limit} || Name := {Used, Limit} <- Tables].

bound({Name, Used, Limit}, At, History) ->
    Forecast = erlmcp_console_forecast:forecast(erlmcp_console_history:hour(Name, History), Limit),
    #{name => Name, used => Used, limit => Limit, forecast => Forecast,
      forecast_ms => case Forecast of
                         #{at := Met} -> max(0, Met - At);
                         none -> none
                     end}.

facts(Minute, Info, Bounds, Processors, #{latency_ms := Latency}) ->
    #{requests := Requests, refusals := Refusals, tools := Tools,
      latency := #{p95_us := P95}} = Minute,
    #{state := State, error_budget := #{windows := Windows}, mounts := Mounts} = Info,
    Names = names(),
    #{state => State, windows => Windows, requests => Requests,
      refused => [{Code, maps:get(Code, Names, other), Count} || Code := Count <- Refusals],
      tools => Tools, p95_us => P95,
      %% The adaptive limit of requests in flight is met whenever the machine is fully used.
      bounds => [Bound || #{name := Name} = Bound <- Bounds, Name =/= ~"in_flight"],
      mounts_gone => [Prefix || #{prefix := Prefix, running := false} <- Mounts],
      processors => Processors, latency_ms => Latency}.

names() ->
    #{Number => Name || #{number := Number, name := Name} <- erlmcp_refusal:table()}.

%% No event tells that the definitions changed.
catalog_marks(#{metrics := Before}, #{at := At, metrics := Now}) ->
    case {names_of(Before), names_of(Now)} of
        {Names, Names} ->
            [];
        {Old, New} ->
            [mark(At, catalog, [~"The definitions changed: ", integer_to_binary(length(New -- Old)),
                                ~" added, ", integer_to_binary(length(Old -- New)),
                                ~" removed."])]
    end.

names_of(Metrics) ->
    lists:sort([{Kind, Name} || Kind <- [tools, resources, prompts],
                                #{name := Name} <- maps:get(Kind, Metrics)]).

mark(At, Kind, Words) ->
    #{at => At, kind => Kind, words => iolist_to_binary(Words)}.

-doc "Adds an event of the server: a mark on the axis of time, an open breaker or an incident.".
-spec event(erlmcp:event(), view()) -> view().
event(#{event := incident, at := At, incident := Id} = Event, #{incidents := Incidents} = View) ->
    Incident = #{at => At, id => text(Id), what => text(atom_to_binary(maps:get(what, Event))),
                 method => or_null(maps:get(method, Event, undefined)),
                 target => or_null(maps:get(target, Event, undefined))},
    View#{incidents := lists:sublist([Incident | Incidents], ?INCIDENTS)};
event(#{event := breaker_opened, target := Target} = Event, #{open_breakers := Open} = View) ->
    marked(Event, View#{open_breakers := lists:usort([text(Target) | Open])});
event(#{event := breaker_closed, target := Target} = Event, #{open_breakers := Open} = View) ->
    marked(Event, View#{open_breakers := lists:delete(text(Target), Open)});
event(Event, View) ->
    marked(Event, View).

marked(#{at := At} = Event, #{marks := Marks} = View) ->
    case words(Event) of
        {Kind, Words} -> View#{marks := lists:sublist([mark(At, Kind, Words) | Marks], ?MARKS)};
        none -> View
    end.

words(#{event := draining}) -> {drain, ~"The server is being drained."};
words(#{event := drained}) -> {drain, ~"The server was drained."};
words(#{event := reloaded}) -> {catalog, ~"The definitions were reloaded."};
words(#{event := memory_full}) -> {state, ~"Memory is full."};
words(#{event := memory_ok}) -> {state, ~"There is memory again."};
words(#{event := processors_busy}) -> {state, ~"The processors are too busy."};
words(#{event := processors_ok}) -> {state, ~"The processors have time again."};
words(#{event := breaker_opened, target := Target}) ->
    {breaker, [~"The breaker of ", text(Target), ~" opened."]};
words(#{event := breaker_closed, target := Target}) ->
    {breaker, [~"The breaker of ", text(Target), ~" closed."]};
%% Of the windows this is the middle one. The shorter one goes up and down with each fault.
words(#{event := error_budget_changed, window := 60, from := From, to := To}) ->
    {zone, [~"The error budget went from ", atom_to_binary(From), ~" to ", atom_to_binary(To),
            ~"."]};
words(_) ->
    none.

shown(#{at := At, metrics := Metrics, info := Info, node := Node, calls := Calls,
        server := Server, requests := Recently}, NodeBefore, Point, Minute, Bounds, Verdict,
      Processors) ->
    #{seconds := Seconds, methods := Methods, refusals := Recent} = Minute,
    #{requests := Requests, faults := Faults, refusals := Refusals, streams := Streams,
      sessions := #{open := Open, opened := Opened, ended := Ended}, tasks := #{running := Tasks},
      started_ms := Started, cache := Cache} = Metrics,
    #{state := State, concurrency_limit := Concurrency,
      error_budget := #{zone := Zone, windows := Windows}, mounts := Mounts} = Info,
    Names = names(),
    #{at => At,
      server => Server#{started => Started, state => State,
                        mounts => [#{prefix => Prefix, running => Runs}
                                   || #{prefix := Prefix, running := Runs} <- Mounts]},
      verdict => verdict(Verdict),
      point => Point,
      seconds => rounded(Seconds),
      concurrency_limit => Concurrency,
      zone => Zone,
      windows => Windows,
      totals => #{requests => Requests, faults => Faults,
                  refusals => lists:sum(maps:values(Refusals))},
      refusals => [#{code => Code, name => maps:get(Code, Names, other), count => Count,
                     recent => maps:get(Code, Recent, 0)} || Code := Count <- Refusals],
      methods => [row(Row, Seconds) || #{total := Total} = Row <- Methods, Total > 0],
      definitions => [(row(Row, Seconds))#{kind => Kind}
                      || {Kind, Key} <- [{tool, tools}, {resource, resources}, {prompt, prompts}],
                         Row <- maps:get(Key, Minute)],
      bounds => [shown_bound(Bound) || Bound <- Bounds],
      calls => [call(Call) || Call <- lists:sublist(Calls, ?CALLS)],
      requests => [request(Request) || Request <- Recently],
      sessions => #{open => Open, opened => Opened, ended => Ended},
      streams => Streams, tasks => Tasks, cache => Cache,
      machine => machine(Node, NodeBefore, Processors)}.

verdict(#{well := Well, since := Since, causes := Causes}) ->
    #{well => Well, since => Since,
      causes => [#{key => text(Key), words => Words, link => Link, since => Begun}
                 || #{key := Key, words := Words, link := Link, since := Begun} <- Causes]}.

row(#{name := Name, total := Total, calls := Calls, errors := Errors, refusals := Refusals,
      p50_us := P50, p95_us := P95, p99_us := P99}, Seconds) ->
    #{name => text(Name), total => Total, rate => rate(Calls, Seconds), calls => Calls,
      errors => Errors, refusals => Refusals, p50 => P50 / 1000, p95 => P95 / 1000,
      p99 => P99 / 1000}.

shown_bound(#{name := Name, used := Used, limit := Limit, forecast := Forecast}) ->
    #{name => Name, used => Used,
      limit => case Limit of infinity -> null; _ -> Limit end,
      forecast => case Forecast of
                      none -> null;
                      #{at := At, earliest := Earliest, latest := Latest, per_hour := PerHour} ->
                          #{at => At, earliest => Earliest, latest => Latest,
                            per_hour => rounded(PerHour)}
                  end}.

call(#{id := Id, method := Method, target := Target, principal := Principal, age_ms := Age,
       stack := Stack}) ->
    #{id => Id, method => text(Method), target => or_null(Target), principal => text(Principal),
      age => Age, stack => [frame(Frame) || Frame <- lists:sublist(Stack, ?FRAMES)]}.

request(#{at := At, method := Method, target := Target, principal := Principal, took_us := Took,
          error := Error, trace := Trace, bytes_in := In, bytes_out := Out}) ->
    #{at => At, method => or_null(Method), target => or_null(Target),
      principal => text(Principal), took => Took / 1000, bytes_in => In, bytes_out => Out,
      error => case Error of none -> null; _ -> Error end,
      trace => case Trace of none -> null; _ -> text(Trace) end}.

or_null(undefined) -> null;
or_null(Text) -> text(Text).

frame({Module, Function, Arity, Place}) when is_integer(Arity) ->
    bounded(io_lib:format("~ts:~ts/~b~ts", [Module, Function, Arity, line(Place)]));
frame(Other) ->
    text(Other).

line(Place) ->
    case proplists:get_value(line, Place) of
        undefined -> "";
        Line -> [$\s, filename:basename(proplists:get_value(file, Place, "")), $:,
                 integer_to_list(Line)]
    end.

%% A text of at most 200 characters, whatever the term is.
text(Term) when is_binary(Term) ->
    case unicode:characters_to_binary(Term) of
        Text when is_binary(Text) -> bounded(Text);
        _ -> bounded(io_lib:format("~0P", [Term, 20]))
    end;
text(Term) ->
    bounded(io_lib:format("~0tP", [Term, 20])).

bounded(Text) -> unicode:characters_to_binary(string:slice(Text, 0, 200)).

machine(#{memory := Memory, tables := Tables, schedulers := Schedulers, run_queue := Queue,
          collections := Collections, reductions := Reductions, at_ms := At,
          machine_memory := Machine},
        #{collections := CollectionsBefore, reductions := ReductionsBefore, at_ms := Before},
        Processors) ->
    Seconds = max(0.001, (At - Before) / 1000),
    #{memory => maps:with([total, processes, binary, ets, code, atom], Memory),
      machine_memory => case Machine of
                            none -> null;
                            {Used, Limit} -> #{used => Used, limit => Limit}
                        end,
      tables => #{Name => #{used => Used, limit => Limit} || Name := {Used, Limit} <- Tables},
      schedulers => Schedulers, run_queue => Queue, processors => rounded(Processors),
      collections => rate(Collections - CollectionsBefore, Seconds),
      reductions => rate(Reductions - ReductionsBefore, Seconds)}.

-doc """
Returns the first message for a page. It has the points of the last quarter of an hour, as columns,
and the last snapshot, which is `null` before the second reading.
""".
-spec hello(view()) -> map().
hello(#{history := History, options := #{latency_ms := Latency}} = View) ->
    #{columns => ?COLUMNS, points => erlmcp_console_history:columns(History),
      latency_ms => Latency, snapshot => snapshot(View)}.

-doc "Returns what the page shows now; `null` before the second reading.".
-spec snapshot(view()) -> map() | null.
snapshot(#{snapshot := none}) -> null;
snapshot(#{snapshot := Snapshot, marks := Marks, incidents := Incidents,
           open_breakers := Breakers}) ->
    Snapshot#{marks => Marks, incidents => Incidents, open_breakers => Breakers}.
