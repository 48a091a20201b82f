-module(serve_traces_SUITE).
-moduledoc """
Tests for the traces of `erlmcp serve`: to the collector of `--otlp`, or to the one that
OpenTelemetry's environment variables name.
""".

-import(erlmcp_test_program, [main/1, run/3, serve/2, stop/2, one_line/1]).

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([spans_go_to_the_collector/1, the_environment_is_obeyed/1,
         a_server_on_stdio_sends_the_rest/1, a_wrong_environment_is_no_reason_to_end/1]).
-export([urls_of_collectors/1, values_of_variables/1, wrong_values_are_named/1]).

-define(TRACE, ~"4bf92f3577b34da6a3ce929d0e0e4736").
-define(CALL, ~"tools/call echo").
-define(WAIT, 60_000).

suite() ->
    [{timetrap, {minutes, 3}}].

all() ->
    [spans_go_to_the_collector, the_environment_is_obeyed, a_server_on_stdio_sends_the_rest,
     a_wrong_environment_is_no_reason_to_end, urls_of_collectors, values_of_variables,
     wrong_values_are_named].

init_per_suite(Config) ->
    erlmcp_test_program:init(Config).

end_per_suite(_) ->
    ok.

spans_go_to_the_collector(Config) ->
    Collector = collector(),
    served(["--otlp", Collector], Config, fun(Url) ->
        {0, "hello\n", ""} = main(["call", Url, "echo", "text=hello"]),
        #{path := ~"/v1/traces", resource := #{~"service.name" := ~"everything"}} = called()
    end).

%% The ratio is 0, so only the call with a parent is recorded.
the_environment_is_obeyed(Config) ->
    Variables = [{"OTEL_EXPORTER_OTLP_ENDPOINT", collector() ++ "/otlp/"},
                 {"OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=a%20b"},
                 {"OTEL_SERVICE_NAME", "shop"},
                 {"OTEL_RESOURCE_ATTRIBUTES", "service.name=other,deployment=north"},
                 {"OTEL_TRACES_SAMPLER", "parentbased_traceidratio"},
                 {"OTEL_TRACES_SAMPLER_ARG", "0"}],
    Call = fun(Url, Options) ->
        {0, "hello\n", ""} = main(["call", Url, "echo", "text=hello" | Options])
    end,
    with(Variables, fun() ->
        served([], Config, fun(Url) ->
            Call(Url, []),
            Parent = ["00-", ?TRACE, "-00f067aa0ba902b7-01"],
            Call(Url, ["--header", binary_to_list(iolist_to_binary(["traceparent: ", Parent]))]),
            #{path := ~"/otlp/v1/traces", headers := #{~"x-api-key" := ~"a b"}, spans := Spans,
              resource := #{~"service.name" := ~"shop", ~"deployment" := ~"north"}} = called(),
            [?TRACE] = lists:usort([Trace || #{~"traceId" := Trace} <- Spans])
        end)
    end).

%% Its input ends before the second in which spans are sent.
a_server_on_stdio_sends_the_rest(Config) ->
    Meta = #{~"io.modelcontextprotocol/protocolVersion" => ~"2026-07-28",
             ~"io.modelcontextprotocol/clientCapabilities" => #{}},
    Request = json:encode(#{jsonrpc => ~"2.0", id => 1, method => ~"tools/call",
                            params => #{name => ~"echo", arguments => #{text => ~"hello"},
                                        ~"_meta" => Meta}}),
    {0, _, ""} = run("/bin/sh", ["-c", "printf '%s\\n' \"$1\" | \"$0\" serve everything --stdio "
                                       "--otlp \"$2\"",
                                 proplists:get_value(program, Config),
                                 iolist_to_binary(Request), collector()], Config),
    #{spans := [#{~"attributes" := Attributes}]} = called(),
    [_] = [pipe || #{~"key" := ~"network.transport",
                     ~"value" := #{~"stringValue" := ~"pipe"}} <- Attributes].

a_wrong_environment_is_no_reason_to_end(Config) ->
    Variables = [{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317"},
                 {"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"}],
    {0, "", Warning} = with(Variables, fun() ->
        run("/bin/sh", ["-c", "\"$0\" serve everything --stdio </dev/null",
                        proplists:get_value(program, Config)], Config)
    end),
    one_line(Warning),
    {match, _} = re:run(Warning, "^Warning: no traces are sent: OTEL_EXPORTER_OTLP_PROTOCOL: "),
    {2, "", Why} = main(["serve", "everything", "--otlp", "localhost:4318"]),
    one_line(Why),
    {match, _} = re:run(Why, "^--otlp: expected an http or https URL").

urls_of_collectors(_) ->
    [{Url, Base} = {endpoint(erlmcp_cli_otlp:given(Base)), Base}
     || {Base, Url} <- [{~"http://localhost:4318", ~"http://localhost:4318/v1/traces"},
                        {~"http://localhost:4318/", ~"http://localhost:4318/v1/traces"},
                        {~"https://a.example/otlp", ~"https://a.example/otlp/v1/traces"},
                        {~"https://a.example/otlp/v1/traces", ~"https://a.example/otlp/v1/traces"},
                        {~"https://a.example/otlp?key=1",
                         ~"https://a.example/otlp/v1/traces?key=1"}]],
    %% The variable for traces alone is taken as it is, and before the other one.
    All = [{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://localhost:4318/"},
           {"OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:1"}],
    ~"http://localhost:4318/" = endpoint(environment(All)),
    ~"http://localhost:1/v1/traces" =
        endpoint(environment([{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ""} | tl(All)])),
    none = environment([]),
    none = environment([{"OTEL_SDK_DISABLED", "True"} | All]),
    none = environment([{"OTEL_TRACES_EXPORTER", "none"} | All]),
    ~"http://localhost:4318/" = endpoint(environment([{"OTEL_TRACES_EXPORTER", "otlp"} | All])).

endpoint({ok, #{endpoint := Url}}) -> Url.

values_of_variables(_) ->
    #{ratio := 1, headers := None, resource := None} = options([]),
    0 = map_size(None),
    #{headers := #{~"a" := ~"1=2,3", ~"b" := ~""}} =
        options([{"OTEL_EXPORTER_OTLP_HEADERS", " a = 1=2%2C3 ,,b="}]),
    #{headers := #{~"b" := ~"2"} = Only} =
        options([{"OTEL_EXPORTER_OTLP_HEADERS", "a=1"},
                 {"OTEL_EXPORTER_OTLP_TRACES_HEADERS", "b=2"}]),
    1 = map_size(Only),
    [#{ratio := Ratio} = options([{"OTEL_TRACES_SAMPLER", Sampler}
                                  | [{"OTEL_TRACES_SAMPLER_ARG", Part} || Part =/= none]])
     || {Sampler, Part, Ratio} <- [{"parentbased_always_on", none, 1},
                                   {"parentbased_always_off", none, 0},
                                   {"parentbased_traceidratio", none, 1},
                                   {"parentbased_traceidratio", "1", 1},
                                   {"parentbased_traceidratio", "0.25", 0.25}]].

options(Variables) ->
    {ok, Options} = environment([{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:1"}
                                 | Variables]),
    Options.

wrong_values_are_named(_) ->
    Base = {"OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:1"},
    [begin
         {error, Sentence} = environment([{Name, Value}, Base, Also]),
         {Name, Value, {match, _}} = {Name, Value, re:run(Sentence, ["^", Name, ": expected "])},
         nomatch = string:find(Sentence, "secret-7")
     end || {Name, Value, Also} <- [
         {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "localhost:4318", {"A", "1"}},
         {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc", {"A", "1"}},
         {"OTEL_EXPORTER_OTLP_HEADERS", "secret-7", {"A", "1"}},
         {"OTEL_EXPORTER_OTLP_HEADERS", "=secret-7", {"A", "1"}},
         {"OTEL_EXPORTER_OTLP_HEADERS", "a=secret-7%zz", {"A", "1"}},
         {"OTEL_EXPORTER_OTLP_HEADERS", "a=secret-7%0D%0Ab: c", {"A", "1"}},
         {"OTEL_EXPORTER_OTLP_TRACES_HEADERS", "a=secret-7%0D%0Ab: c",
          {"OTEL_EXPORTER_OTLP_HEADERS", "a=b"}},
         {"OTEL_RESOURCE_ATTRIBUTES", "a", {"A", "1"}},
         {"OTEL_RESOURCE_ATTRIBUTES", "a\"b=1", {"A", "1"}},
         {"OTEL_TRACES_SAMPLER", "always_on", {"A", "1"}},
         {"OTEL_TRACES_SAMPLER_ARG", "1.1", {"OTEL_TRACES_SAMPLER", "parentbased_traceidratio"}},
         {"OTEL_TRACES_SAMPLER_ARG", "x", {"OTEL_TRACES_SAMPLER", "parentbased_traceidratio"}}]].

environment(Variables) ->
    with(Variables, fun erlmcp_cli_otlp:environment/0).

with(Variables, Run) ->
    _ = [os:putenv(Name, Value) || {Name, Value} <- Variables],
    try
        Run()
    after
        [os:unsetenv(Name) || {Name, _} <- Variables]
    end.

served(Options, Config, Run) ->
    {Server, Url, _} = serve(["--port", "0" | Options], Config),
    try
        Run(Url)
    after
        0 = stop("TERM", Server)
    end.

%% Starts a collector that tells the case of each request, and returns its URL.
collector() ->
    Case = self(),
    _ = spawn_link(fun() ->
        {ok, Listener} = gen_tcp:listen(0, [binary, {active, false}, {ip, {127, 0, 0, 1}},
                                            {packet, http_bin}]),
        {ok, Port} = inet:port(Listener),
        Case ! {collector, "http://127.0.0.1:" ++ integer_to_list(Port)},
        collect(Listener, Case)
    end),
    receive {collector, Url} -> Url end.

collect(Listener, Case) ->
    {ok, Socket} = gen_tcp:accept(Listener),
    {ok, {http_request, 'POST', {abs_path, Path}, _}} = gen_tcp:recv(Socket, 0, ?WAIT),
    #{~"content-length" := Length} = Headers = headers(Socket, #{}),
    ok = inet:setopts(Socket, [{packet, raw}]),
    {ok, Body} = gen_tcp:recv(Socket, binary_to_integer(Length), ?WAIT),
    ok = gen_tcp:send(Socket, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
    #{~"resourceSpans" := [#{~"resource" := #{~"attributes" := Attributes},
                             ~"scopeSpans" := [#{~"spans" := Spans}]}]} = json:decode(Body),
    Resource = #{Key => Value || #{~"key" := Key, ~"value" := #{~"stringValue" := Value}}
                                     <- Attributes},
    Case ! {collected, #{path => Path, headers => Headers, resource => Resource, spans => Spans}},
    collect(Listener, Case).

headers(Socket, Headers) ->
    case gen_tcp:recv(Socket, 0, ?WAIT) of
        {ok, {http_header, _, Name, _, Value}} when is_atom(Name) ->
            headers(Socket, Headers#{string:lowercase(atom_to_binary(Name)) => Value});
        {ok, {http_header, _, Name, _, Value}} ->
            headers(Socket, Headers#{string:lowercase(Name) => Value});
        {ok, http_eoh} ->
            Headers
    end.

%% The first request to the collector that has the span of a call.
called() ->
    receive
        {collected, #{spans := Spans} = Request} ->
            case [Span || #{~"name" := ?CALL} = Span <- Spans] of
                [_ | _] -> Request;
                [] -> called()
            end
    after ?WAIT -> ct:fail(nothing_collected)
    end.
