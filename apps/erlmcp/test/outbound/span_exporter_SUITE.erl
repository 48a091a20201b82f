-module(span_exporter_SUITE).
-moduledoc """
Spans on their way to a collector: batches, retries, bounds, and what is told of those that are
dropped.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([log/2]).
-export([spans_are_sent_as_json/1, spans_have_their_own_attributes/1,
         spans_of_one_request_keep_apart/1, spans_of_all_schedulers_are_sent/1, headers_are_sent/1,
         the_ratio_decides/1, children_follow/1]).
-export([a_busy_collector_is_asked_again/1, a_refusal_is_final/1, rejected_spans_are_counted/1,
         nobody_listens/1]).
-export([a_buffer_is_bounded/1, a_full_request_is_sent_at_once/1, drops_are_told/1,
         a_redirect_is_told_without_its_place/1,
         killed_writers_leave_no_trace/1]).
-export([users_share_a_buffer/1, the_last_user_sends_the_rest/1, the_exporter_is_started_again/1,
         spans_of_a_killed_exporter_are_dropped/1, an_exporter_that_crashes_sends_the_rest/1,
         the_application_sends_the_rest/1, no_secret_is_shown/1]).

-define(PATH, ~"/v1/traces").
-define(LIMIT, 10_000).
-define(WAIT, 20_000).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    erlmcp_test_suite:cases(?MODULE).

init_per_suite(Config) ->
    erlmcp_test_applications:start([cowboy, erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    {ok, _} = application:ensure_all_started(erlmcp),
    Peer = erlmcp_test_oauth:start(),
    Self = self(),
    ok = erlmcp_test_oauth:change(Peer, ?PATH, fun(Request) -> told(Self, Request) end),
    [{peer, Peer} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_oauth:stop(erlmcp_test_suite:peer(Config)).

%% The collector tells the case of each request, and answers what the case says.
told(Case, Request) ->
    Case ! {collected, self(), Request},
    receive
        {answer, Answer} -> Answer
    after ?WAIT -> {500, #{}, ~""}
    end.

collected() ->
    collected({200, #{~"content-type" => ~"application/json"}, ~"{}"}).

collected(Answer) ->
    receive
        {collected, Collector, #{body := Body} = Request} ->
            At = erlang:monotonic_time(millisecond),
            Collector ! {answer, Answer},
            Request#{spans => spans(json:decode(Body)), at => At}
    after ?WAIT -> ct:fail(nothing_collected)
    end.

spans(#{~"resourceSpans" := [#{~"scopeSpans" := [#{~"spans" := Spans}]}]}) -> Spans.

names(#{spans := Spans}) -> lists:sort([Name || #{~"name" := Name} <- Spans]).

options(Config) ->
    Peer = erlmcp_test_suite:peer(Config),
    #{endpoint => erlmcp_test_oauth:url(Peer, ?PATH)}.

tracer(Options) ->
    {ok, Tracer} = erlmcp_trace_options:tracer(Options, {~"shop", ~"1.2.3"}),
    Tracer.

span(Name, Tracer) ->
    span(Name, none, Tracer).

span(Name, Parent, Tracer) ->
    {Context, Span} = started(Name, Parent, Tracer),
    ok = erlmcp_span:finish(Span, {7, tool_error}, erlang:monotonic_time(nanosecond)),
    Context.

started(Name, Parent, Tracer) ->
    About = {Name, undefined, '2026-07-28', none},
    Start = {server, [], About, erlang:monotonic_time(nanosecond)},
    erlmcp_span:start({Parent, none}, Start, Tracer).

counts({_, Config}) ->
    erlmcp_otlp_tracer:counts(Config).

eventually(Is) ->
    eventually(Is, erlang:monotonic_time(millisecond) + ?WAIT).

eventually(Is, Deadline) ->
    case Is() of
        true ->
            ok;
        false ->
            true = erlang:monotonic_time(millisecond) < Deadline,
            receive after 20 -> eventually(Is, Deadline) end
    end.

%% Waits until the counts of a tracer are these.
await_counts(Counts, Tracer) ->
    eventually(fun() -> counts(Tracer) =:= Counts end).

spans_are_sent_as_json(Config) ->
    Before = erlang:system_time(nanosecond),
    Tracer = tracer((options(Config))#{resource => #{~"region" => ~"north", ~"shard" => 7,
                                                     ~"service.version" => ~"7"}}),
    #{trace_id := Trace, span_id := Id} = span(~"tools/call add", Tracer),
    #{method := ~"POST", headers := #{~"content-type" := ~"application/json"}, body := Body,
      spans := [Span]} = collected(),
    #{~"traceId" := Trace, ~"spanId" := Id, ~"name" := ~"tools/call add", ~"kind" := 2,
      ~"startTimeUnixNano" := Began, ~"endTimeUnixNano" := Ended,
      ~"attributes" := Attributes} = Span,
    false = is_map_key(~"parentSpanId", Span),
    true = Before - 1000 =< binary_to_integer(Began),
    true = binary_to_integer(Began) =< binary_to_integer(Ended),
    true = binary_to_integer(Ended) =< erlang:system_time(nanosecond),
    #{~"mcp.protocol.version" := ~"2026-07-28", ~"jsonrpc.request.id" := ~"7",
      ~"error.type" := ~"tool_error"} =
        #{Key => Value || #{~"key" := Key, ~"value" := #{~"stringValue" := Value}} <- Attributes},
    #{~"resourceSpans" := [#{~"resource" := #{~"attributes" := Resource},
                             ~"scopeSpans" := [#{~"scope" := #{~"name" := ~"erlmcp"}}]}]} =
        json:decode(Body),
    #{~"service.name" := #{~"stringValue" := ~"shop"}, ~"region" := #{~"stringValue" := ~"north"},
      ~"service.version" := #{~"stringValue" := ~"7"}, ~"shard" := #{~"intValue" := ~"7"}} =
        #{Key => Value || #{~"key" := Key, ~"value" := Value} <- Resource},
    await_counts(#{waiting => 0, sent => 1, dropped => 0}, Tracer).

%% Spans of one request that are about the same are encoded once.
spans_have_their_own_attributes(Config) ->
    Tracer = tracer(options(Config)),
    Names = [<<"name ", (integer_to_binary(N rem 7))/binary>> || N <- lists:seq(1, 100)],
    together(fun() -> [_ = span(Name, Tracer) || Name <- Names] end),
    #{spans := Spans} = collected(),
    true = lists:sort(Names) =:= lists:sort([method(Span) || Span <- Spans]).

%% The exporter sends spans once a second, and those of `Add` at the same time.
together(Add) ->
    ok = sys:suspend(erlmcp_span_exporter),
    try
        Add()
    after
        ok = sys:resume(erlmcp_span_exporter)
    end.

method(#{~"name" := Name, ~"attributes" := Attributes}) ->
    [Name] = [Value || #{~"key" := ~"mcp.method.name",
                         ~"value" := #{~"stringValue" := Value}} <- Attributes],
    Name.

%% The parts that spans have in common are encoded once, and each span has its own, as a tracer of
%% the user gets them.
spans_of_one_request_keep_apart(Config) ->
    Tracer = tracer(options(Config)),
    Http = [{http, Version, {Address, Port}, Session}
            || Version <- ['HTTP/1.1', 'HTTP/2'],
               Address <- [{127, 0, 0, 1}, {8193, 3512, 0, 0, 0, 0, 0, 1}], Port <- [80, 54321],
               Session <- [none, ~"session-7"]],
    Servers = [{server, {Method, Target, Revision, Client}}
               || {Method, Target} <- [{~"tools/call", ~"add"},
                                       {~"tools/call", {unknown, ~"a\"b\\c\n\0"}},
                                       {~"resources/read", <<"a:", 228/utf8>>},
                                       {~"tools/list", undefined}],
                  Revision <- ['2026-07-28', '2025-03-26', undefined],
                  Client <- [none, {lines, local}, {lines, {127, 0, 0, 1}} | Http]],
    Ends = [{Id, Outcome} || Id <- [7, ~"a\"b\\c\n\0", undefined],
                             Outcome <- [ok, tool_error, {refused, timeout, -32000},
                                         {refused, timeout, -32001}]],
    Clients = [{client, {~"tools/call", ~"add"}}],
    Attributes = [#{~"server.port" => 80}, #{~"server.address" => ~"a\"b", ~"server.port" => 81}],
    Results = [{Id, Status, Of} || Id <- [7, ~"8"], Status <- [ok, {error, rpc}],
                                   Of <- Attributes],
    Expected = maps:from_list(
        [finished(Of, Last, Tracer) || Of <- Servers, Last <- Ends]
        ++ [finished(Of, Last, Tracer) || Of <- Clients, Last <- Results]),
    Spans = all_collected(map_size(Expected)),
    Expected = maps:from_list([{Id, encoded(Span)} || #{~"spanId" := Id} = Span <- Spans]),
    true = map_size(Expected) =:= length(Spans).

%% Ends a span, and returns its id with all that it has to show.
finished({Kind, About}, Last, Tracer) ->
    Now = erlang:monotonic_time(nanosecond),
    {#{span_id := Id}, Span} = erlmcp_span:start({none, none}, {Kind, [], About, Now}, Tracer),
    ok = erlmcp_span:finish(Span, Last, Now),
    {Status, Attributes} = erlmcp_span:ended(Last),
    {Id, {Kind, erlmcp_span:name(About), Status,
          maps:merge(erlmcp_span:attributes(About), Attributes)}}.

encoded(#{~"kind" := Kind, ~"name" := Name, ~"attributes" := Attributes} = Span) ->
    Status = case Span of
        #{~"status" := #{~"code" := 2, ~"message" := Error}} ->
            {error, binary_to_existing_atom(Error)};
        #{} -> ok
    end,
    Values = [{Key, value(Value)} || #{~"key" := Key, ~"value" := Value} <- Attributes],
    true = length(Values) =:= map_size(maps:from_list(Values)),
    {map_get(Kind, #{2 => server, 3 => client}), Name, Status, maps:from_list(Values)}.

value(#{~"stringValue" := Text}) -> Text;
value(#{~"intValue" := Digits}) -> binary_to_integer(Digits).

all_collected(More) when More > 0 ->
    #{spans := Spans} = collected(),
    Spans ++ all_collected(More - length(Spans));
all_collected(0) ->
    [].

spans_of_all_schedulers_are_sent(Config) ->
    Tracer = tracer(options(Config)),
    Names = [<<"of ", (integer_to_binary(N))/binary>>
             || N <- lists:seq(1, erlang:system_info(schedulers))],
    Writers = [element(2, spawn_opt(fun() -> _ = span(Name, Tracer) end,
                                    [monitor, {scheduler, N}]))
               || {N, Name} <- lists:enumerate(Names)],
    [receive {'DOWN', Writer, process, _, normal} -> ok end || Writer <- Writers],
    true = lists:sort(Names) =:=
        lists:sort([Name || #{~"name" := Name} <- all_collected(length(Names))]).

headers_are_sent(Config) ->
    Tracer = tracer((options(Config))#{headers => #{~"x-api-key" => ~"key-7"}}),
    _ = span(~"a", Tracer),
    #{headers := #{~"x-api-key" := ~"key-7"}} = collected().

%% The part of roots that is recorded is near the ratio; of 4,000 at 0.25, 800 to 1,200 is ten
%% times the deviation.
the_ratio_decides(Config) ->
    Sampled = fun(Ratio) ->
        Tracer = tracer((options(Config))#{ratio => Ratio}),
        length([ok || _ <- lists:seq(1, 4000), not erlmcp_span:is_unsampled(none, Tracer)])
    end,
    0 = Sampled(0),
    4000 = Sampled(1),
    Quarter = Sampled(0.25),
    true = Quarter > 800 andalso Quarter < 1200.

start(Parent, Tracer) ->
    {Context, _} = started(~"a", Parent, Tracer),
    Context.

%% A span with a parent is recorded if its parent is, whatever the ratio.
children_follow(Config) ->
    Parent = #{trace_id => ~"4bf92f3577b34da6a3ce929d0e0e4736", span_id => ~"00f067aa0ba902b7",
               sampled => true, state => ~"a=1", baggage => ~"b=2"},
    None = tracer((options(Config))#{ratio => 0}),
    #{span_id := Child, sampled := true, state := ~"a=1", baggage := ~"b=2"} =
        start(Parent, None),
    true = Child =/= ~"00f067aa0ba902b7",
    #{sampled := false} = start(Parent#{sampled := false}, tracer((options(Config))#{ratio => 1})).

a_busy_collector_is_asked_again(Config) ->
    Tracer = tracer(options(Config)),
    _ = span(~"a", Tracer),
    #{body := Body, at := Since} = collected({503, #{~"retry-after" => ~"1"}, ~""}),
    #{body := Body, at := Again} = collected({429, #{}, ~""}),
    true = Again - Since >= 1000,
    #{body := Body} = collected(),
    await_counts(#{waiting => 0, sent => 1, dropped => 0}, Tracer).

a_refusal_is_final(Config) ->
    Tracer = tracer(options(Config)),
    _ = span(~"a", Tracer),
    _ = collected({400, #{}, ~""}),
    await_counts(#{waiting => 0, sent => 0, dropped => 1}, Tracer),
    _ = span(~"b", Tracer),
    [~"b"] = names(collected()).

rejected_spans_are_counted(Config) ->
    Tracer = tracer(options(Config)),
    together(fun() -> [_ = span(~"a", Tracer) || _ <- lists:seq(1, 3)] end),
    _ = collected({200, #{~"content-type" => ~"application/json"},
                   ~B'{"partialSuccess":{"rejectedSpans":"2","errorMessage":"too old"}}'}),
    await_counts(#{waiting => 0, sent => 1, dropped => 2}, Tracer).

%% A request goes on while its collector is not there, and its spans arrive when it is.
nobody_listens(_) ->
    Port = erlmcp_test_port:unused(),
    Tracer = tracer(#{endpoint => <<"http://127.0.0.1:", (integer_to_binary(Port))/binary, "/">>}),
    _ = span(~"a", Tracer),
    eventually(fun() -> is_sending() end),
    #{waiting := 1} = counts(Tracer),
    _ = span(~"b", Tracer),
    #{waiting := 2, dropped := 0} = counts(Tracer).

%% Some process of the exporter has asked, and waits to ask again.
is_sending() ->
    #{} = Outlets = sys:get_state(erlmcp_span_exporter),
    lists:any(fun(Outlet) -> lists:any(fun({timer, _}) -> true; (_) -> false end,
                                       tuple_to_list(Outlet))
              end, maps:values(Outlets)).

a_buffer_is_bounded(Config) ->
    Tracer = tracer(options(Config)),
    together(fun() ->
        [_ = span(~"a", Tracer) || _ <- lists:seq(1, ?LIMIT)],
        #{waiting := ?LIMIT, dropped := 0} = counts(Tracer),
        _ = span(~"a", Tracer),
        #{waiting := ?LIMIT, dropped := 1} = counts(Tracer)
    end),
    %% Those that are being sent still count.
    receive
        {collected, Collector, #{body := Body}} ->
            Sent = length(spans(json:decode(Body))),
            true = Sent >= 2000 andalso Sent < 2000 + ?LIMIT div 16,
            _ = span(~"a", Tracer),
            #{waiting := ?LIMIT, dropped := 2} = counts(Tracer),
            Collector ! {answer, {200, #{}, ~""}},
            _ = all_collected(?LIMIT - Sent)
    end,
    await_counts(#{waiting => 0, sent => ?LIMIT, dropped => 2}, Tracer).

a_full_request_is_sent_at_once(Config) ->
    Tracer = tracer(options(Config)),
    ok = sys:suspend(erlmcp_span_exporter),
    [_ = span(~"a", Tracer) || _ <- lists:seq(1, 2000)],
    {messages, Messages} = process_info(whereis(erlmcp_span_exporter), messages),
    [_] = [full || {erlmcp_span_buffer, full, _} <- Messages],
    ok = sys:resume(erlmcp_span_exporter),
    #{spans := Spans} = collected(),
    2000 = length(Spans).

drops_are_told(Config) ->
    ok = logger:add_handler(?MODULE, ?MODULE, #{config => self()}),
    Self = self(),
    {ok, Server} = erlmcp:start_server(#{name => ~"s", version => ~"1",
                                         on_event => fun(Event) -> Self ! {event, Event} end}),
    #{endpoint := Url} = Options = options(Config),
    Tracer = tracer(Options#{endpoint := <<Url/binary, "?key=secret-7">>}),
    _ = span(~"a", Tracer),
    _ = collected({404, #{}, ~""}),
    {ok, {_, _, Port}} = erlmcp_oauth_url:origin(Url),
    Collector = <<"localhost:", (integer_to_binary(Port))/binary>>,
    receive
        {event, #{event := spans_dropped, collector := Collector, spans := 1,
                  why := {status, 404}}} -> ok
    after ?WAIT -> ct:fail(no_event)
    end,
    receive
        {logged, warning, #{what := spans_dropped, collector := Collector, spans := 1}} -> ok
    after ?WAIT -> ct:fail(no_report)
    end,
    ok = logger:remove_handler(?MODULE),
    ok = erlmcp:stop_server(Server).

%% Its URL has the key of the endpoint.
a_redirect_is_told_without_its_place(Config) ->
    ok = logger:add_handler(?MODULE, ?MODULE, #{config => self()}),
    #{endpoint := Url} = Options = options(Config),
    Tracer = tracer(Options#{endpoint := <<Url/binary, "?key=secret-7">>}),
    _ = span(~"a", Tracer),
    _ = collected({301, #{~"location" => ~"https://localhost/v1/traces?key=secret-7"}, ~""}),
    receive
        {logged, warning, #{what := spans_dropped, why := redirect}} -> ok;
        {logged, warning, #{what := spans_dropped} = Report} -> ct:fail(Report)
    after ?WAIT -> ct:fail(no_report)
    end,
    ok = logger:remove_handler(?MODULE).

log(#{level := Level, msg := {report, #{} = Report}}, #{config := Case}) ->
    Case ! {logged, Level, Report};
log(_, _) ->
    ok.

%% A writer that dies between counting its span and inserting it takes no place for ever.
killed_writers_leave_no_trace(_) ->
    {ok, {Buffer, _}} = erlmcp_span_exporter:use(
        #{endpoint => ~"http://127.0.0.1:9/", headers => #{}, tls => [],
          scope => #{resource => #{}, version => ~"1"}}),
    {_, Counts, _} = Buffer,
    ok = atomics:add(Counts, 1, 3),
    #{waiting := 3} = erlmcp_span_buffer:counts(Buffer),
    eventually(fun() ->
        erlmcp_span_buffer:counts(Buffer) =:= #{waiting => 0, sent => 0, dropped => 0}
    end).

users_share_a_buffer(Config) ->
    Self = self(),
    Options = options(Config),
    Tracer = tracer(Options),
    Other = spawn(fun() ->
        OtherTracer = tracer(Options),
        Self ! uses,
        receive add -> ok end,
        _ = span(~"b", OtherTracer),
        Self ! added,
        receive stop -> ok end
    end),
    receive uses -> ok end,
    together(fun() ->
        _ = span(~"a", Tracer),
        Other ! add,
        receive added -> ok end
    end),
    [~"a", ~"b"] = names(collected()),
    exit(Other, kill).

%% The rest is sent at once when the last user ends, and then nothing is left of the collector.
the_last_user_sends_the_rest(Config) ->
    Before = length(ets:tab2list(erlmcp_span_exporter)),
    Options = options(Config),
    User = spawn_monitor(fun() -> _ = span(~"a", tracer(Options)) end),
    receive {'DOWN', _, process, _, normal} -> User end,
    [~"a"] = names(collected()),
    eventually(fun() ->
        length(ets:tab2list(erlmcp_span_exporter)) =< Before
    end).

%% It does not tell of a dropped span again, and tells why those were dropped that the one before it
%% did not tell of.
the_exporter_is_started_again(Config) ->
    ok = restarted(),
    ok = logger:add_handler(?MODULE, ?MODULE, #{config => self()}),
    Tracer = tracer(options(Config)),
    ok = refused(Tracer),
    ok = told_of_one(),
    Pid = whereis(erlmcp_span_exporter),
    %% A minute has not passed since.
    ok = refused(Tracer),
    await_counts(#{waiting => 0, sent => 0, dropped => 2}, Tracer),
    exit(Pid, kill),
    ok = told_of_one(),
    true = Pid =/= whereis(erlmcp_span_exporter),
    ok = refused(Tracer),
    await_counts(#{waiting => 0, sent => 0, dropped => 3}, Tracer),
    ok = logger:remove_handler(?MODULE).

refused(Tracer) ->
    _ = span(~"a", Tracer),
    [~"a"] = names(collected({404, #{}, ~""})),
    ok.

told_of_one() ->
    receive
        {logged, warning, #{what := spans_dropped} = Report} ->
            #{spans := 1, why := {status, 404}} = Report,
            ok
    after ?WAIT -> ct:fail(no_report)
    end.

%% Those that it was sending, and that nobody else has.
spans_of_a_killed_exporter_are_dropped(Config) ->
    ok = restarted(),
    ok = logger:add_handler(?MODULE, ?MODULE, #{config => self()}),
    Tracer = tracer(options(Config)),
    _ = span(~"a", Tracer),
    Collector = receive {collected, Pid, _} -> Pid after ?WAIT -> ct:fail(nothing_collected) end,
    true = exit(whereis(erlmcp_span_exporter), kill),
    await_counts(#{waiting => 0, sent => 0, dropped => 1}, Tracer),
    Collector ! {answer, {200, #{}, ~""}},
    #{endpoint := Url} = options(Config),
    {ok, {_, _, Port}} = erlmcp_oauth_url:origin(Url),
    Name = <<"localhost:", (integer_to_binary(Port))/binary>>,
    receive
        {logged, warning, #{what := spans_dropped, collector := Name} = Report} ->
            #{spans := 1, why := crashed} = Report
    after ?WAIT -> ct:fail(no_report)
    end,
    ok = logger:remove_handler(?MODULE),
    %% Those that waited are sent.
    _ = span(~"b", Tracer),
    [~"b"] = names(collected()),
    await_counts(#{waiting => 0, sent => 1, dropped => 1}, Tracer).

%% The next one knows that they were sent.
an_exporter_that_crashes_sends_the_rest(Config) ->
    ok = restarted(),
    Tracer = tracer(options(Config)),
    ok = sys:suspend(erlmcp_span_exporter),
    _ = span(~"a", Tracer),
    Pid = whereis(erlmcp_span_exporter),
    spawn_link(fun() -> ok = gen_server:stop(Pid, crash, ?WAIT) end),
    [~"a"] = names(collected()),
    await_counts(#{waiting => 0, sent => 1, dropped => 0}, Tracer).

%% The exporter may crash once in five seconds, and may have in the case before.
restarted() ->
    ok = application:stop(erlmcp),
    application:start(erlmcp).

the_application_sends_the_rest(Config) ->
    Tracer = tracer(options(Config)),
    _ = span(~"a", Tracer),
    Self = self(),
    spawn_link(fun() -> ok = application:stop(erlmcp), Self ! stopped end),
    [~"a"] = names(collected()),
    receive stopped -> ok end,
    %% A server may end after the application.
    _ = span(~"b", Tracer).

no_secret_is_shown(Config) ->
    _ = tracer((options(Config))#{headers => #{~"x-api-key" => ~"key-7"}}),
    Status = io_lib:format("~p", [sys:get_status(erlmcp_span_exporter)]),
    nomatch = string:find(Status, "key-7").
