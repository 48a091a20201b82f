-module(erlmcp_console_view).
-moduledoc """
Keeps the console's knowledge of one server: the last reading, the last quarter of an hour, the
verdict, and marks of changes. A view is a value that gets readings and events, and is shown as two
messages for the page. Pure.
""".

-export([new/0, with/2, next/2, event/2, code_loaded/3, ended/1, hello/1, snapshot/1]).
-export([judgement/1, is_growing/1]).

-export_type([view/0, reading/0, options/0]).

-doc """
A reading of a server: its meter, the state that `erlmcp:info/1` has, the node, running calls and
recent requests. `at` is a system time in milliseconds. `troubles` are errors of the machine, such
as a full disk, that were logged. `places` say where the node grows. `server` has the name and the
version of the server, its listeners, and its node.
""".
-type reading() :: #{
    at := integer(), metrics := erlmcp:metrics(), info := erlmcp:info(),
    node := erlmcp_console_node:reading(), calls := [erlmcp:running_call()],
    requests := [erlmcp_recent_requests:row()],
    troubles := [erlmcp_console_log:row()], places := erlmcp_console_places:places(),
    server := #{atom() => term()}
}.
-doc "`latency_ms`: the longest time, in milliseconds, that 95 of 100 requests may take.".
-type options() :: #{latency_ms := pos_integer()}.
-opaque view() :: #{
    options := options(),
    %% the newest first: the last reading, and then one for each five seconds of the last minute
    readings := [reading()],
    history := erlmcp_console_history:history(),
    verdict := erlmcp_console_verdict:verdict() | none,
    marks := [mark()],
    incidents := [incident()],
    %% the version of a server that has ended, if this one has its id
    version := binary() | none,
    snapshot := map() | none
}.
-type incident() :: #{
    at := integer(), id := binary(), what := binary(), method := binary() | null,
    target := binary() | null
}.
-type mark() :: #{at := integer(), kind := atom(), words := binary()}.

-define(COLUMNS, [at, requests, faults, refusals, tool_errors, p50_ms, p95_ms, p99_ms, in_flight,
                  waiting, connections, sessions, memory, processors]).
%% Milliseconds between two readings that are kept, as readings are a little early or late, and how
%% many are kept.
-define(STEP_MS, 4_500).
-define(READINGS, 13).
%% The shortest time in milliseconds whose rates say something. A page that is opened makes a
%% reading, and the next one may come milliseconds later: all that time, the node was at work.
-define(LEAST_MS, 500).
-define(QUARTER_MS, 900_000).
-define(MARKS, 100).
-define(INCIDENTS, 20).
-define(LATENCY_MS, 150).
%% Rows of a list, and frames of a stack.
-define(CALLS, 50).
-define(FRAMES, 12).
%% Bytes of a text.
-define(TEXT_BYTES, 800).
%% The most breakers, pools of workers, and pools of clients with their members, that are shown; the
%% most targets of a breaker, or modules of a mark.
-define(DEPENDENCIES, 20).
-define(TARGETS, 3).

-doc "Returns a view of a server that has not been read yet.".
-spec new() -> view().
new() ->
    #{options => #{latency_ms => ?LATENCY_MS}, readings => [],
      history => erlmcp_console_history:new(),
      verdict => none, marks => [], incidents => [], version => none, snapshot => none}.

-doc "Returns the view with the options of the page that shows it.".
-spec with(options(), view()) -> view().
with(Options, View) ->
    View#{options := Options}.

-doc """
Adds a reading: the view gets a point of its history, a verdict and a snapshot. The first reading
only begins the view.
""".
-spec next(reading(), view()) -> view().
next(#{at := At} = Reading, #{readings := [], version := Version, marks := Marks} = View) ->
    #{metrics := #{started_ms := Started}} = Reading,
    Start = started(Started, Version, version(Reading)),
    View#{readings := [Reading], verdict := erlmcp_console_verdict:new(max(Started, At - 1)),
          marks := [Start || At - Started < ?QUARTER_MS] ++ Marks};
next(Reading, #{readings := [Before | Kept], history := History, verdict := Verdict,
                marks := Marks, options := Options} = View) ->
    #{at := At, metrics := Metrics, node := Node} = Reading,
    #{metrics := MetricsBefore, node := NodeBefore} = Earlier = earlier(At, [Before | Kept]),
    #{metrics := MetricsOfMinute, node := NodeOfMinute} = lists:last([Before | Kept]),
    Second = erlmcp_console_window:between(MetricsBefore, Metrics),
    Minute = erlmcp_console_window:between(MetricsOfMinute, Metrics),
    Processors = processors(Earlier, Reading),
    Point = point(At, Second, Metrics, Node, Processors),
    Bounds = bounds(At, Metrics, Node),
    Upstreams = erlmcp_console_window:upstreams(upstreams(NodeOfMinute), upstreams(Node)),
    Facts = erlmcp_console_facts:facts(Reading, [Before | Kept], Minute,
                                       judged(Reading, Bounds, Processors, Upstreams, Options)),
    Next = erlmcp_console_verdict:next(Facts, At, Verdict),
    AllMarks = lists:sublist(version_marks(Before, Reading)
                                 ++ catalog_marks(Before, Reading, Marks) ++ Marks, ?MARKS),
    View#{readings := [Reading | kept(Before, Kept)],
          history := erlmcp_console_history:add(Point, History), verdict := Next,
          marks := [Mark || #{at := Then} = Mark <- AllMarks, At - Then < ?QUARTER_MS],
          snapshot := (shown(Reading, NodeBefore, Point, Minute, Bounds, Next, Processors))#{
              upstreams => shown_upstreams(Node, Upstreams, Minute)}}.

%% The newest of the readings that are old enough, or else the oldest.
earlier(At, Readings) ->
    case [Reading || #{at := Then} = Reading <- Readings, At - Then >= ?LEAST_MS] of
        [Newest | _] -> Newest;
        [] -> lists:last(Readings)
    end.

processors(#{at := Then, node := Before}, #{at := At, node := Node}) when At - Then >= ?LEAST_MS ->
    erlmcp_console_node:processors(Before, Node);
processors(_, _) ->
    undefined.

%% The reading before this one is kept if it is a step younger than the last one that was.
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
     share(Processors)].

rate(Count, Seconds) -> rounded(Count / Seconds).

share(undefined) -> null;
share(Share) -> rounded(Share).

rounded(Number) -> round(Number * 1000) / 1000.

%% The bounds of the server, and then those of the node.
bounds(At, #{bounds := OfServer}, #{bounds := OfNode}) ->
    [Bound#{name => atom_to_binary(Name),
            forecast_ms => case Bound of
                               #{forecast := #{at := Met}} -> max(0, Met - At);
                               #{} -> none
                           end}
     || Bounds <- [OfServer, OfNode], Name := Bound <- maps:iterator(Bounds, ordered)].

upstreams(#{upstreams := Upstreams}) -> Upstreams.

judged(#{info := #{breakers := Breakers}, metrics := Metrics, node := Node}, Bounds, Processors,
       Upstreams, #{latency_ms := Latency}) ->
    %% The adaptive limit of requests in flight is met whenever the machine is fully used.
    #{bounds => [Bound || #{name := Name} = Bound <- Bounds, Name =/= ~"in_flight"],
      %% A half-open breaker counts as open: its last call has failed.
      open_breakers => [{opened(Breaker), Targets}
                        || #{state := Is, targets := Targets} = Breaker <- Breakers,
                           Is =/= closed],
      pools => [{text(Name), Open, length(Members)}
                || {Name, Members} <- pools(Node),
                   Open <- [length([open || #{state := Is} <- Members, Is =/= closed])],
                   Open > 0],
      upstreams => Upstreams, cluster => cluster(Metrics),
      processors => Processors, latency_ms => Latency}.

%% The nodes of the server's cluster, if it has one.
cluster(#{cluster := #{lease_ms := Left, majority := Majority, nodes := Nodes}}) ->
    #{lease => Left, majority => Majority,
      nodes => [#{node => atom_to_binary(Node), state => State, leads => Leads,
                  lease => maps:get(lease_ms, Of, null), sessions => maps:get(sessions, Of, null),
                  forwarded => maps:get(forwarded, Of, null),
                  inherited => maps:get(inherited, Of, null)}
                || #{node := Node, state := State, leads := Leads} = Of <- Nodes]};
cluster(_) ->
    null.

%% A breaker that definitions share has a name of its own.
opened(#{name := Name}) when is_binary(Name) -> text(Name);
opened(#{name := Name, targets := Targets}) ->
    Shown = lists:join(~", ", [text(Target) || Target <- lists:sublist(Targets, ?TARGETS)]),
    iolist_to_binary([Shown, [~", ..." || length(Targets) > ?TARGETS], ~" (", text(Name), ~")"]).

names() ->
    #{Number => Name || #{number := Number, name := Name} <- erlmcp_refusal:table()}.

started(At, none, _) -> mark(At, start, ~"The server started.");
started(At, Same, Same) -> mark(At, start, ~"The server started again.");
started(At, Old, New) -> mark(At, deploy, [~"The server started again: ", versions(Old, New)]).

versions(Old, New) -> [~"version ", New, ~" in place of ", Old, ~"."].

version(#{server := Server}) -> text(maps:get(~"version", Server, ~"unknown")).

version_marks(Before, #{at := At} = Reading) ->
    case {version(Before), version(Reading)} of
        {Same, Same} -> [];
        {Old, New} -> [mark(At, deploy, [~"The server changed: ", versions(Old, New)])]
    end.

%% No event tells that a definition was added or removed, but one does that all were replaced.
catalog_marks(#{at := Since, metrics := Before}, #{at := At, metrics := Now}, Marks) ->
    case {names_of(Before), names_of(Now)} of
        {Names, Names} ->
            [];
        {Old, New} ->
            IsTold = lists:any(fun(#{kind := Kind, at := Then}) ->
                Kind =:= deploy andalso Then >= Since
            end, Marks),
            [mark(At, catalog, [~"The definitions changed: ", integer_to_binary(length(New -- Old)),
                                ~" added, ", integer_to_binary(length(Old -- New)),
                                ~" removed."]) || not IsTold]
    end.

names_of(Metrics) ->
    lists:sort([{Kind, Name} || Kind <- [tools, resources, prompts],
                                #{name := Name} <- maps:get(Kind, Metrics)]).

mark(At, Kind, Words) ->
    #{at => At, kind => Kind, words => iolist_to_binary(Words)}.

-doc """
Adds a mark: the code of these modules was replaced at `At`, in milliseconds of system time.
""".
-spec code_loaded([module(), ...], At :: integer(), view()) -> view().
code_loaded(Modules, At, View) ->
    Shown = lists:join(~", ", [text(Module) || Module <- lists:sublist(Modules, ?TARGETS)]),
    Others = case length(Modules) - ?TARGETS of
        More when More > 0 -> [~" and ", integer_to_binary(More), ~" more"];
        _ -> []
    end,
    add_mark(mark(At, deploy, [~"Code was loaded: ", Shown, Others, ~"."]), View).

-doc """
Returns the view of a server that has ended. It is meant for a server that starts with the same id.
The view keeps its history, marks and incidents.
""".
-spec ended(view()) -> view().
ended(#{readings := []} = View) -> View;
ended(#{readings := [Last | _]} = View) ->
    View#{readings := [], version := version(Last), snapshot := none}.

-doc """
Adds an event of the server: a mark on the axis of time, or an incident. Some events add neither,
such as those that concern one client alone.
""".
-spec event(erlmcp:event(), view()) -> view().
event(#{event := incident, at := At, incident := Id} = Event, #{incidents := Incidents} = View) ->
    Incident = #{at => At, id => text(Id), what => text(atom_to_binary(maps:get(what, Event))),
                 method => or_null(maps:get(method, Event, undefined)),
                 target => or_null(maps:get(target, Event, undefined))},
    View#{incidents := lists:sublist([Incident | Incidents], ?INCIDENTS)};
event(#{at := At} = Event, View) ->
    case words(Event) of
        {Kind, Words} -> add_mark(mark(At, Kind, Words), View);
        none -> View
    end.

add_mark(Mark, #{marks := Marks} = View) ->
    View#{marks := lists:sublist([Mark | Marks], ?MARKS)}.

words(#{event := lame}) ->
    {drain, ~"The server is about to be drained: it is not ready, and still serves."};
words(#{event := draining}) -> {drain, ~"The server is being drained."};
words(#{event := drained}) -> {drain, ~"The server was drained."};
words(#{event := reloaded, added := Added, removed := Removed, changed := Changed}) ->
    {deploy, [~"The definitions were replaced: ", text(Added), ~" added, ", text(Removed),
              ~" removed, ", text(Changed), ~" changed."]};
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
words(#{event := error_budget_changed}) ->
    none;
%% The page shows these elsewhere, or they concern one client at most.
words(#{event := Event}) when
    Event =:= incident; Event =:= not_quick; Event =:= slow_consumer; Event =:= spans_dropped
->
    none;
words(#{event := Event}) ->
    {change, [~"Event: ", binary:replace(atom_to_binary(Event), ~"_", ~" ", [global]), ~"."]}.

shown(#{at := At, metrics := Metrics, info := Info, node := Node, calls := Calls,
        server := Server, requests := Recently}, NodeBefore, Point, Minute, Bounds, Verdict,
      Processors) ->
    #{seconds := Seconds, methods := Methods, refusals := Recent} = Minute,
    #{requests := Requests, faults := Faults, refusals := Refusals, streams := Streams,
      sessions := #{open := Open, opened := Opened, ended := Ended}, tasks := #{running := Tasks},
      started_ms := Started, cache := Cache} = Metrics,
    #{state := State, concurrency_limit := Concurrency, breakers := Breakers,
      workers := Workers, error_budget := #{zone := Zone, windows := Windows},
      mounts := Mounts} = Info,
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
      breakers => [breaker(Breaker) || Breaker <- worst(Breakers)],
      workers => [Pool#{name := text(Name)}
                  || #{name := Name} = Pool <- lists:sublist(Workers, ?DEPENDENCIES)],
      pools => [pool(Pool) || Pool <- pools(Node)],
      cluster => cluster(Metrics),
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

%% What is there now, and the last minute.
shown_upstreams(Node, Rows, #{seconds := Seconds}) ->
    [(row(Row, Seconds))#{running => Running, connections => Connections, waiting => Waiting}
     || {#{calls := Running, connections := Connections, waiting := Waiting}, Row}
            <- lists:zip(upstreams(Node), Rows)].

shown_bound(#{name := Name, used := Used, limit := Limit} = Bound) ->
    #{name => Name, used => Used,
      limit => case Limit of infinity -> null; _ -> Limit end,
      forecast => maps:get(forecast, Bound, null)}.

call(#{id := Id, method := Method, target := Target, principal := Principal, age_ms := Age,
       stack := Stack}) ->
    #{id => Id, method => text(Method), target => or_null(Target), principal => text(Principal),
      age => Age, stack => [frame(Frame) || Frame <- lists:sublist(Stack, ?FRAMES)]}.

%% Those that are not closed first.
worst(Breakers) ->
    {Closed, Others} = lists:partition(fun(#{state := State}) -> State =:= closed end, Breakers),
    lists:sublist(Others ++ Closed, ?DEPENDENCIES).

breaker(#{name := Name, targets := Targets, state := State, failed := Failed}) ->
    #{name => text(Name), state => State, failed => Failed, targets => length(Targets),
      first => text(hd(Targets))}.

pools(#{pools := Pools}) -> lists:sublist(Pools, ?DEPENDENCIES).

pool({Name, Members}) ->
    #{name => text(Name), size => length(Members),
      members => [#{target => place(erlmcp_client_options:label(Target)), state => State,
                    calls => Calls, failed => Failed}
                  || #{target := Target, state := State, calls := Calls, failed := Failed}
                         <- worst(Members)]}.

%% Without the path and the query of a URL, and without the arguments of a program.
place([memory, Server]) -> bounded([~"server ", text(Server)]);
place([Scheme, {Host, Port}]) -> bounded([text(Scheme), ~"://", host(Host), $:, text(Port)]);
place([Kind | Names]) -> bounded(lists:join($\s, [text(Kind) | [host(Name) || Name <- Names]])).

host(Address) when tuple_size(Address) =:= 4 -> inet:ntoa(Address);
host(Address) when tuple_size(Address) =:= 8 -> [$[, inet:ntoa(Address), $]];
host(Name) when is_list(Name) -> text(unicode:characters_to_binary(Name));
host(Name) -> text(Name).

request(#{id := Id, payload := HasPayload, at := At, method := Method, target := Target,
          principal := Principal, took_us := Took,
          error := Error, trace := Trace, bytes_in := In, bytes_out := Out}) ->
    #{id => Id, payload => HasPayload, at => At, method => or_null(Method),
      target => or_null(Target), principal => text(Principal), took => Took / 1000,
      bytes_in => In, bytes_out => Out,
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

%% A text of at most 200 characters, whatever the term is. A character may have any number of marks,
%% so the bytes have a bound, too.
text(Term) when is_binary(Term) ->
    Start = erlmcp_printable:beginning(Term, ?TEXT_BYTES),
    case unicode:characters_to_binary(Start) of
        Start -> bounded(Start);
        _ -> bounded(io_lib:format("~0P", [Term, 20]))
    end;
text(Term) ->
    bounded(io_lib:format("~0tP", [Term, 20])).

bounded(Text) ->
    erlmcp_printable:beginning(unicode:characters_to_binary(string:slice(Text, 0, 200)),
                               ?TEXT_BYTES).

machine(#{memory := Memory, schedulers := Schedulers, run_queue := Queue,
          collections := Collections, reductions := Reductions, at_ms := At},
        #{collections := CollectionsBefore, reductions := ReductionsBefore, at_ms := Before},
        Processors) ->
    Seconds = max(0.001, (At - Before) / 1000),
    #{memory => maps:with([total, processes, binary, ets, code, atom], Memory),
      schedulers => Schedulers, run_queue => Queue, processors => share(Processors),
      collections => rate(Collections - CollectionsBefore, Seconds),
      reductions => rate(Reductions - ReductionsBefore, Seconds)}.

-doc """
Returns the first message for a page. `columns` has the names of a point's values. `points` has one
list for each name, with the values of the last quarter of an hour, oldest first. Without points it
is empty. `latency_ms` is the page's option. `snapshot` is the last snapshot, or `null` before the
second reading.
""".
-spec hello(view()) -> map().
hello(#{history := History, options := #{latency_ms := Latency}} = View) ->
    #{columns => ?COLUMNS, points => erlmcp_console_history:columns(History),
      latency_ms => Latency, snapshot => snapshot(View)}.

-doc "Returns the snapshot that the page shows now; `null` before the second reading.".
-spec snapshot(view()) -> map() | null.
snapshot(#{snapshot := none}) -> null;
snapshot(#{snapshot := Snapshot, marks := Marks, incidents := Incidents}) ->
    Snapshot#{marks => Marks, incidents => Incidents}.

-doc "Returns the verdict; `none` before the second reading.".
-spec judgement(view()) -> erlmcp_console_verdict:verdict() | none.
judgement(#{snapshot := none}) -> none;
judgement(#{verdict := Verdict}) -> Verdict.

-doc "Returns `true` if memory, processes, ports or atoms of the node have begun to grow.".
-spec is_growing(view()) -> boolean().
is_growing(#{readings := Readings}) ->
    erlmcp_console_growth:is_suspected(Readings).
