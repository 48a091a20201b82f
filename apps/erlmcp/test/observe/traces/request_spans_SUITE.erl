-module(request_spans_SUITE).
-moduledoc """
The spans of a server's requests, and the trace context of its handlers, in both eras, by all
transports, and for quick calls.
""".

-export([log/2]).
-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([the_context_of_meta_is_the_parent/1, handlers_have_the_context/1,
         a_request_without_a_parent_begins_a_trace/1, errors_are_named/1,
         every_method_has_a_span/1, cancelled_calls_end_their_spans/1, calls_end_late/1,
         upstreams_belong_to_the_trace/1, invalid_contexts_are_ignored/1, no_secret_is_shown/1]).
-export([headers_are_a_link/1, headers_are_the_parent_without_meta/1,
         unknown_methods_have_one_name/1, unknown_tools_are_in_no_name/1,
         requests_that_cannot_be_read_have_no_span/1]).
-export([tasks_begin_a_trace_with_a_link/1, cancelled_tasks_end_their_spans/1]).
-export([ids_are_random_hexadecimal_digits/1, unsampled_requests_have_no_context/1,
         unsampled_requests_have_no_ids/1, handlers_have_their_own_random_numbers/1,
         waiting_spans_keep_no_request/1, unsampled_parents_are_followed/1,
         without_a_tracer_there_is_no_context/1, a_tracer_that_crashes_fails_no_request/1,
         a_tracer_that_crashes_is_logged_without_its_arguments/1,
         wrong_options_are_refused/1, a_batch_has_a_span_for_each_request/1]).

-import(erlmcp_test_tracer, [span/1, span/2]).

-define(TRACE_ID, ~"4bf92f3577b34da6a3ce929d0e0e4736").
-define(PARENT, ~"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [{group, stateless_http}, {group, session_http}, {group, tcp}, {group, memory},
     headers_are_a_link, headers_are_the_parent_without_meta, unknown_methods_have_one_name,
     unknown_tools_are_in_no_name, requests_that_cannot_be_read_have_no_span,
     tasks_begin_a_trace_with_a_link, cancelled_tasks_end_their_spans,
     ids_are_random_hexadecimal_digits, unsampled_requests_have_no_context,
     unsampled_requests_have_no_ids, handlers_have_their_own_random_numbers,
     waiting_spans_keep_no_request, unsampled_parents_are_followed,
     without_a_tracer_there_is_no_context, a_tracer_that_crashes_fails_no_request,
     a_tracer_that_crashes_is_logged_without_its_arguments,
     wrong_options_are_refused, a_batch_has_a_span_for_each_request].

groups() ->
    Cases = [the_context_of_meta_is_the_parent, handlers_have_the_context,
             a_request_without_a_parent_begins_a_trace, errors_are_named, every_method_has_a_span,
             cancelled_calls_end_their_spans, calls_end_late, upstreams_belong_to_the_trace,
             invalid_contexts_are_ignored, no_secret_is_shown],
    [{Name, [], Cases} || Name <- [stateless_http, session_http, tcp, memory]].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(Group, Config) ->
    [{group, Group} | Config].

end_per_group(_, _) ->
    ok.

init_per_testcase(_, Config) ->
    [{server, start(#{trace => {erlmcp_test_tracer, self()}})} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_http:stop(erlmcp_test_suite:server(Config)).

start(Options) ->
    erlmcp_test_http:start(maps:merge(
        #{tools => [tool(~"trace", fun trace/2), (tool(~"quick", fun trace/2))#{quick => true},
                    tool(~"wrong", fun(_, _) -> {error, ~"no"} end),
                    tool(~"crash", fun(_, _) -> error(planted) end),
                    (tool(~"late", fun slow/2))#{timeout_ms => 20},
                    tool(~"slow", fun slow/2),
                    (tool(~"task", fun trace/2))#{task => required},
                    (tool(~"long", fun slow/2))#{task => required}],
          prompts => [#{name => ~"hello", arguments => [#{name => ~"who"}],
                        handler => fun(_, _) -> ~"hi" end}],
          resources => [#{uri => ~"test:one", name => ~"one", handler => fun(_, _) -> ~"1" end}],
          listen => [{http, #{}}, {tcp, #{port => 0}}]}, Options)).

tool(Name, Handler) ->
    #{name => Name, description => Name, handler => Handler,
      input_schema => #{type => object}}.

%% What the handler has of its trace.
trace(Arguments, Context) ->
    Trace = maps:get(trace, Context, none),
    Trace = case erlmcp_tracer:current() of
        #{sampled := false} when Trace =:= none -> none;
        Current -> Current
    end,
    Called = case Arguments of
        #{~"upstream" := Name} ->
            {ok, _} = erlmcp_client:call_tool(binary_to_existing_atom(Name), ~"trace", #{});
        #{} ->
            none
    end,
    Metadata = case logger:get_process_metadata() of
        undefined -> #{};
        Known -> maps:with([trace_id, span_id], Known)
    end,
    Shown = case Trace of
        none -> #{};
        #{} -> maps:with([trace_id, span_id, sampled], Trace)
    end,
    json_text(#{trace => Shown, log => Metadata, called => Called =/= none,
                process => list_to_binary(pid_to_list(self())),
                meta => maps:with([~"traceparent"], map_get(meta, Context))}).

json_text(Term) ->
    iolist_to_binary(json:encode(Term)).

%% Tells the case that it runs, if that waits for it.
slow(_, _) ->
    _ = [Case ! running || Case <- [whereis(?MODULE)], is_pid(Case)],
    receive after infinity -> ok end.

client(Config) ->
    client(Config, #{}).

client(Config, Options) ->
    #{pid := Pid} = erlmcp_test_suite:server(Config),
    [#{url := Url}, #{port := Port}] = erlmcp:listeners(Pid),
    {ok, Client} = erlmcp_client:start_link(case proplists:get_value(group, Config) of
        stateless_http -> {http, Url, Options#{era => stateless}};
        session_http -> {http, Url, Options#{era => session}};
        tcp -> {tcp, ~"127.0.0.1", Port, Options};
        _ -> {server, Pid, Options}
    end),
    Client.

parent() ->
    #{meta => #{~"traceparent" => ?PARENT, ~"tracestate" => ~"a=1", ~"baggage" => ~"b=2"}}.

text({ok, #{~"content" := [#{~"text" := Text}]}}) ->
    json:decode(Text).

the_context_of_meta_is_the_parent(Config) ->
    Client = client(Config),
    [begin
         {ok, _} = erlmcp_client:call_tool(Client, Tool, #{}, parent()),
         #{kind := server, trace_id := ?TRACE_ID, span_id := Id, links := [], status := ok,
           state := ~"a=1", baggage := ~"b=2", sampled := true,
           parent := #{trace_id := ?TRACE_ID, span_id := ~"00f067aa0ba902b7", sampled := true},
           attributes := Attributes} =
             span(<<"tools/call ", Tool/binary>>,
                  #{~"mcp.method.name" => ~"tools/call", ~"gen_ai.tool.name" => Tool,
                    ~"gen_ai.operation.name" => ~"execute_tool"}),
         true = Id =/= ~"00f067aa0ba902b7",
         #{~"jsonrpc.request.id" := <<_/binary>>} = Attributes,
         false = is_map_key(~"error.type", Attributes),
         ok = origin(proplists:get_value(group, Config), Attributes)
     end || Tool <- [~"trace", ~"quick", ~"quick"]],
    ok = erlmcp_client:stop(Client).

origin(stateless_http, #{~"network.transport" := ~"tcp", ~"network.protocol.name" := ~"http",
                         ~"network.protocol.version" := ~"1.1", ~"client.port" := Port,
                         ~"client.address" := ~"127.0.0.1",
                         ~"mcp.protocol.version" := ~"2026-07-28"} = Attributes) ->
    true = is_integer(Port),
    false = is_map_key(~"mcp.session.id", Attributes),
    ok;
origin(session_http, #{~"network.transport" := ~"tcp", ~"network.protocol.name" := ~"http",
                       ~"client.address" := ~"127.0.0.1", ~"mcp.session.id" := <<_:16/binary>>,
                       ~"mcp.protocol.version" := ~"2025-11-25"}) ->
    ok;
origin(tcp, #{~"network.transport" := ~"tcp", ~"client.address" := ~"127.0.0.1"} = Attributes) ->
    false = is_map_key(~"network.protocol.name", Attributes),
    ok;
origin(memory, #{~"network.transport" := ~"pipe"} = Attributes) ->
    false = is_map_key(~"client.address", Attributes),
    ok.

handlers_have_the_context(Config) ->
    Client = client(Config),
    [begin
         #{~"trace" := #{~"trace_id" := ?TRACE_ID, ~"span_id" := Id, ~"sampled" := true},
           ~"log" := #{~"trace_id" := ?TRACE_ID, ~"span_id" := Id}, ~"process" := Process} =
             text(erlmcp_client:call_tool(Client, Tool, #{}, parent())),
         #{span_id := Id} = span(<<"tools/call ", Tool/binary>>),
         %% The connection's process, in which quick calls run, has forgotten it.
         ok = has_forgotten(list_to_pid(binary_to_list(Process)))
     end || Tool <- [~"trace", ~"quick"]],
    Text = text(erlmcp_client:call_tool(Client, ~"quick", #{})),
    #{~"trace" := #{~"trace_id" := Other}} = Text,
    true = Other =/= ?TRACE_ID,
    ok = erlmcp_client:stop(Client).

has_forgotten(Process) ->
    case process_info(Process, dictionary) of
        undefined ->
            ok;
        {dictionary, Dictionary} ->
            [] = [Key || {Key, _} <- Dictionary, Key =:= erlmcp_tracer
                                                     orelse Key =:= '$logger_metadata$'],
            ok
    end.

a_request_without_a_parent_begins_a_trace(Config) ->
    Client = client(Config),
    #{~"trace" := #{~"trace_id" := One}} = text(erlmcp_client:call_tool(Client, ~"trace", #{})),
    #{trace_id := One, parent := none} = span(~"tools/call trace"),
    #{~"trace" := #{~"trace_id" := Other}} = text(erlmcp_client:call_tool(Client, ~"trace", #{})),
    true = One =/= Other,
    ok = erlmcp_client:stop(Client).

errors_are_named(Config) ->
    Client = client(Config),
    {ok, #{~"isError" := true}} = erlmcp_client:call_tool(Client, ~"wrong", #{}),
    #{status := {error, tool_error}, attributes := Wrong} =
        span(~"tools/call wrong", #{~"error.type" => ~"tool_error"}),
    false = is_map_key(~"rpc.response.status_code", Wrong),
    {error, {rpc, _}} = erlmcp_client:call_tool(Client, ~"crash", #{}),
    #{status := {error, internal_error}} =
        span(~"tools/call crash", #{~"error.type" => ~"-32603",
                                    ~"rpc.response.status_code" => ~"-32603"}),
    {error, {rpc, #{code := Code}}} = erlmcp_client:call_tool(Client, ~"late", #{}),
    Late = integer_to_binary(Code),
    #{status := {error, timeout}} = span(~"tools/call late", #{~"error.type" => Late}),
    ok = erlmcp_client:stop(Client).

every_method_has_a_span(Config) ->
    Client = client(Config),
    {ok, _} = erlmcp_client:list_tools(Client),
    #{kind := server, attributes := #{~"jsonrpc.request.id" := <<_/binary>>}} =
        span(~"tools/list"),
    {ok, _} = erlmcp_client:get_prompt(Client, ~"hello", #{}),
    _ = span(~"prompts/get hello", #{~"gen_ai.prompt.name" => ~"hello"}),
    {ok, _} = erlmcp_client:read_resource(Client, ~"test:one"),
    _ = span(~"resources/read", #{~"mcp.resource.uri" => ~"test:one"}),
    First = case proplists:get_value(group, Config) of
        session_http -> ~"initialize";
        _ -> ~"server/discover"
    end,
    #{parent := none} = span(First),
    %% An answer that needs no call has the parent of its request, too.
    {ok, _} = erlmcp_client:list_prompts(Client, (parent())#{fresh => true}),
    #{trace_id := ?TRACE_ID} = span(~"prompts/list"),
    ok = erlmcp_client:stop(Client).

cancelled_calls_end_their_spans(Config) ->
    Client = client(Config),
    true = register(?MODULE, self()),
    {ok, Reference} = erlmcp_client:async(Client, {call_tool, ~"slow", #{}}),
    receive running -> true = unregister(?MODULE) end,
    ok = erlmcp_client:cancel(Client, Reference),
    #{status := {error, cancelled}} =
        span(~"tools/call slow", #{~"error.type" => ~"cancelled"}),
    ok = erlmcp_client:stop(Client).

%% The time of a span is that of its request.
calls_end_late(Config) ->
    Client = client(Config),
    {error, {rpc, _}} = erlmcp_client:call_tool(Client, ~"late", #{}),
    #{began := Began, ended := Ended} = span(~"tools/call late"),
    true = Ended - Began >= 20_000_000,
    ok = erlmcp_client:stop(Client).

%% The call of an upstream is a child of the request, and the upstream's request a child of that.
upstreams_belong_to_the_trace(Config) ->
    Client = client(Config),
    Upstream = start(#{}),
    #{pid := Pid} = Upstream,
    {ok, Behind} = erlmcp_client:start_link({server, Pid, #{}}),
    true = register(warehouse, Behind),
    {ok, pong} = erlmcp_client:ping(Behind),
    #{~"called" := true} =
        text(erlmcp_client:call_tool(Client, ~"trace", #{~"upstream" => ~"warehouse"}, parent())),
    #{kind := client, trace_id := ?TRACE_ID, parent := #{span_id := Id}} =
        span(~"tools/call trace"),
    #{kind := server, trace_id := ?TRACE_ID, span_id := Id} = span(~"tools/call trace"),
    ok = erlmcp_client:stop(Behind),
    ok = erlmcp_test_http:stop(Upstream),
    ok = erlmcp_client:stop(Client).

invalid_contexts_are_ignored(Config) ->
    Client = client(Config),
    [begin
         {ok, _} = erlmcp_client:call_tool(Client, ~"trace", #{}, #{meta => Meta}),
         #{parent := none} = span(~"tools/call trace")
     end || Meta <- [#{~"traceparent" => ~"00-xyz"}, #{~"traceparent" => 7},
                     #{~"traceparent" => #{~"a" => []}, ~"tracestate" => []},
                     #{~"traceparent" => binary:copy(~"0", 100_000)}]],
    ok = erlmcp_client:stop(Client).

no_secret_is_shown(Config) ->
    Client = client(Config),
    Secret = #{~"password" => ~"secret-7"},
    [begin
         _ = erlmcp_client:call_tool(Client, Tool, Secret, parent()),
         Span = span(<<"tools/call ", Tool/binary>>),
         nomatch = string:find(io_lib:format("~0p", [Span]), "secret-7")
     end || Tool <- [~"trace", ~"quick", ~"wrong", ~"crash"]],
    {error, {rpc, _}} = erlmcp_client:get_prompt(Client, ~"hello", #{~"who" => [~"secret-7"]}),
    Refused = span(~"prompts/get"),
    nomatch = string:find(io_lib:format("~0p", [Refused]), "secret-7"),
    ok = erlmcp_client:stop(Client).

%% HTTP alone.

headers_are_a_link(Config) ->
    Server = erlmcp_test_suite:server(Config),
    Header = ~"00-11111111111111111111111111111111-2222222222222222-00",
    _ = erlmcp_test_http:call(Server, ~"tools/call", #{name => ~"trace"},
                              #{headers => #{~"traceparent" => Header},
                                meta => #{~"traceparent" => ?PARENT}}),
    #{trace_id := ?TRACE_ID, links := [#{trace_id := ~"11111111111111111111111111111111",
                                       span_id := ~"2222222222222222"}]} =
        span(~"tools/call trace").

headers_are_the_parent_without_meta(Config) ->
    Server = erlmcp_test_suite:server(Config),
    [begin
         _ = erlmcp_test_http:call(Server, Method, Params,
                                   #{headers => #{~"traceparent" => ?PARENT,
                                                  ~"baggage" => ~"b=2"}}),
         #{trace_id := ?TRACE_ID, links := [], baggage := ~"b=2"} = span(Name)
     end || {Method, Params, Name} <- [{~"tools/call", #{name => ~"trace"}, ~"tools/call trace"},
                                       {~"tools/list", #{}, ~"tools/list"}]].

unknown_methods_have_one_name(Config) ->
    Server = erlmcp_test_suite:server(Config),
    _ = erlmcp_test_http:call(Server, ~"tools/invent", #{}, #{}),
    _ = span(~"_OTHER", #{~"mcp.method.name" => ~"_OTHER", ~"error.type" => ~"-32601"}).

unknown_tools_are_in_no_name(Config) ->
    Server = erlmcp_test_suite:server(Config),
    _ = erlmcp_test_http:call(Server, ~"tools/call", #{name => ~"nothing"}, #{}),
    _ = span(~"tools/call", #{~"gen_ai.tool.name" => ~"nothing", ~"error.type" => ~"-32602"}).

requests_that_cannot_be_read_have_no_span(Config) ->
    Server = erlmcp_test_suite:server(Config),
    #{status := 400} =
        erlmcp_test_http:post(Server, [{~"content-type", ~"application/json"},
                                       {~"accept", ~"application/json, text/event-stream"}], ~"{"),
    _ = erlmcp_test_http:call(Server, ~"tools/list", #{}, #{}),
    _ = span(~"tools/list"),
    ok = erlmcp_test_tracer:none().

%% Tasks.

tasks_begin_a_trace_with_a_link(Config) ->
    Client = client(Config, #{tasks => true}),
    #{~"trace" := #{~"trace_id" := Own, ~"span_id" := Id}, ~"log" := #{~"trace_id" := Own}} =
        text(erlmcp_client:call_tool(Client, ~"task", #{}, parent())),
    #{kind := internal, trace_id := Own, span_id := Id, parent := none,
      links := [#{trace_id := ?TRACE_ID, span_id := Submission}]} =
        span_of_kind(internal, ~"tools/call task"),
    #{kind := server, trace_id := ?TRACE_ID, span_id := Submission, status := ok} =
        span_of_kind(server, ~"tools/call task"),
    ok = erlmcp_client:stop(Client).

span_of_kind(Kind, Name) ->
    receive
        {span, #{kind := Kind, name := Name} = Span} -> Span
    after 20_000 -> ct:fail({no_span, Kind, Name})
    end.

cancelled_tasks_end_their_spans(Config) ->
    Client = client(Config, #{tasks => true}),
    true = register(?MODULE, self()),
    {ok, Task} = erlmcp_client:call_tool(Client, ~"long", #{}, #{task => handle}),
    receive running -> true = unregister(?MODULE) end,
    {ok, _} = erlmcp_client:cancel_task(Client, Task),
    #{status := {error, cancelled}} = span_of_kind(internal, ~"tools/call long"),
    ok = erlmcp_client:stop(Client).

%% Recording.

unsampled_requests_have_no_context(_) ->
    Server = #{pid := Pid} = start(#{trace => #{endpoint => ~"http://127.0.0.1:9/", ratio => 0}}),
    Upstream = #{pid := Behind} = start(#{}),
    {ok, Client} = erlmcp_client:start_link({server, Pid, #{}}),
    {ok, Warehouse} = erlmcp_client:start_link({server, Behind, #{}}),
    true = register(warehouse, Warehouse),
    [begin
         Empty = #{},
         #{~"trace" := Empty, ~"log" := Empty, ~"called" := true} =
             text(erlmcp_client:call_tool(Client, Tool, #{~"upstream" => ~"warehouse"}))
     end || Tool <- [~"trace", ~"quick"]],
    ok = erlmcp_client:stop(Warehouse),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_http:stop(Upstream),
    ok = erlmcp_test_http:stop(Server).

%% Each digit may stand at each place: of 2,000 ids, one in 10^53 runs lacks one somewhere.
ids_are_random_hexadecimal_digits(_) ->
    Roots = [erlmcp_span_ids:root() || _ <- lists:seq(1, 2000)],
    {Traces, Spans} = lists:unzip(Roots),
    [begin
         Ids = lists:usort(Given),
         2000 = length(Ids),
         [~"0123456789abcdef" =
              iolist_to_binary(lists:usort([binary:at(Id, Place) || Id <- Ids]))
          || Place <- lists:seq(0, Size - 1)]
     end || {Size, Given} <- [{32, Traces}, {16, Spans},
                              {16, [erlmcp_span_ids:span() || _ <- Roots]}]].

%% Random ids take time and memory, so a process makes none before they are asked for.
unsampled_requests_have_no_ids(_) ->
    Keys = fun(_, _) ->
        json_text([Key || {Key, _} <- get(), Key =:= erlmcp_span_ids])
    end,
    Tools = [(tool(~"keys", Keys))#{quick => true}],
    [begin
         #{pid := Pid} = Server =
             start(#{tools => Tools,
                     trace => #{endpoint => ~"http://127.0.0.1:9/", ratio => Ratio}}),
         {ok, Client} = erlmcp_client:start_link({server, Pid, #{}}),
         Expected = text(erlmcp_client:call_tool(Client, ~"keys", #{})),
         ok = erlmcp_client:stop(Client),
         ok = erlmcp_test_http:stop(Server)
     end || {Ratio, Expected} <- [{0, []}, {1, [~"erlmcp_span_ids"]}]].

%% A quick handler runs in the process that makes the ids, and may set a seed there.
handlers_have_their_own_random_numbers(_) ->
    Seeds = fun(_, _) ->
        #{trace_id := Trace} = erlmcp_tracer:current(),
        Numbers = [rand:uniform(1_000_000) || _ <- [1, 2]],
        _ = rand:seed(exsss, 42),
        json_text([Trace | Numbers])
    end,
    #{pid := Pid} = Server =
        start(#{tools => [(tool(~"seeds", Seeds))#{quick => true}],
                trace => #{endpoint => ~"http://127.0.0.1:9/", ratio => 1}}),
    Seconds = [begin
                   {ok, Client} = erlmcp_client:start_link({server, Pid, #{}}),
                   _ = erlmcp_client:call_tool(Client, ~"seeds", #{}),
                   Second = text(erlmcp_client:call_tool(Client, ~"seeds", #{})),
                   ok = erlmcp_client:stop(Client),
                   Second
               end || _ <- [1, 2]],
    [[One | Numbers], [Other | Numbers]] = Seconds,
    true = One =/= Other,
    ok = erlmcp_test_http:stop(Server).

%% A span that waits has no part of its request that would keep the rest in memory.
waiting_spans_keep_no_request(_) ->
    Server = start(#{trace => #{endpoint => ~"http://127.0.0.1:9/", ratio => 1}}),
    Call = fun(Method, Params) ->
        erlmcp_test_http:call(Server, Method, Params,
                              #{id => binary:copy(~"i", 100),
                                meta => #{traceparent => ?PARENT, tracestate => ~"a=1"}})
    end,
    ok = sys:suspend(erlmcp_span_exporter),
    try
        #{status := 200} = Call(~"tools/call", #{name => ~"trace", arguments =>
                                                 #{text => binary:copy(~"x", 5000)}}),
        #{messages := [_]} = Call(~"resources/read", #{uri => binary:copy(~"x", 1000)}),
        %% Spans of earlier cases may still wait for their collector.
        [_, _] = [true = kept(Span) < 1000
                  || Table <- tuple_to_list(persistent_term:get(erlmcp_span_buffer)),
                     {_, {{?TRACE_ID, _, _}, _, _, _, _, _, _, _} = Span} <- ets:tab2list(Table)]
    after
        ok = sys:resume(erlmcp_span_exporter)
    end,
    ok = erlmcp_test_http:stop(Server).

%% The bytes of the binaries that a term keeps in memory. Ids that were generated are parts of one,
%% which is smaller than the requests here.
kept(Bytes) when is_binary(Bytes) ->
    case binary:referenced_byte_size(Bytes) of
        Generated when Generated =< 4096, byte_size(Bytes) =< 32 -> byte_size(Bytes);
        Referenced -> Referenced
    end;
kept(Tuple) when is_tuple(Tuple) -> kept(tuple_to_list(Tuple));
kept(List) when is_list(List) -> lists:sum([kept(Part) || Part <- List]);
kept(_) -> 0.

%% The upstream of a request that is not recorded learns that.
unsampled_parents_are_followed(Config) ->
    Client = client(Config),
    Unsampled = <<(binary:part(?PARENT, 0, 53))/binary, "00">>,
    #{~"trace" := #{~"trace_id" := ?TRACE_ID, ~"sampled" := false},
      ~"log" := #{~"trace_id" := ?TRACE_ID}} =
        text(erlmcp_client:call_tool(Client, ~"trace", #{},
                                     #{meta => #{~"traceparent" => Unsampled}})),
    #{pid := Pid} = Server = start(#{trace => #{endpoint => ~"http://127.0.0.1:9/", ratio => 0}}),
    {ok, Warehouse} = erlmcp_client:start_link({server, Pid, #{}}),
    true = register(warehouse, Warehouse),
    _ = erlmcp_client:call_tool(Client, ~"trace", #{~"upstream" => ~"warehouse"},
                                #{meta => #{~"traceparent" => Unsampled}}),
    ok = erlmcp_client:stop(Warehouse),
    ok = erlmcp_test_http:stop(Server),
    ok = erlmcp_client:stop(Client).

without_a_tracer_there_is_no_context(_) ->
    Server = #{pid := Pid} = start(#{}),
    {ok, Client} = erlmcp_client:start_link({server, Pid, #{}}),
    [begin
         Empty = #{},
         #{~"trace" := Empty, ~"log" := Empty} =
             text(erlmcp_client:call_tool(Client, Tool, #{}, parent()))
     end || Tool <- [~"trace", ~"quick"]],
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_http:stop(Server).

%% Nor does one that returns something else than a span.
a_tracer_that_crashes_fails_no_request(_) ->
    [begin
         Server = #{pid := Pid} = start(#{trace => {erlmcp_test_tracer, Fault}}),
         {ok, Client} = erlmcp_client:start_link({server, Pid, #{}}),
         {ok, _} = erlmcp_client:call_tool(Client, ~"trace", #{}, parent()),
         {ok, _} = erlmcp_client:list_tools(Client),
         ok = erlmcp_client:stop(Client),
         ok = erlmcp_test_http:stop(Server)
     end || Fault <- [crash, nonsense]].

%% Its configuration may have keys, and a span has what came with the request.
a_tracer_that_crashes_is_logged_without_its_arguments(_) ->
    ok = logger:add_handler(?MODULE, ?MODULE, #{config => self()}),
    Server = #{pid := Pid} = start(#{trace => {erlmcp_test_tracer, {crash, ~"secret-7"}}}),
    {ok, Client} = erlmcp_client:start_link({server, Pid, #{}}),
    {ok, _} = erlmcp_client:call_tool(Client, ~"trace", #{}),
    receive
        {logged, #{reason := function_clause, stacktrace := [{lists, last, 1, _} | _]}} -> ok;
        {logged, Report} -> ct:fail(Report)
    after 20_000 -> ct:fail(no_report)
    end,
    ok = logger:remove_handler(?MODULE),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_http:stop(Server).

log(#{msg := {report, #{what := tracer_failed} = Report}}, #{config := Case}) ->
    Case ! {logged, Report};
log(_, _) ->
    ok.

wrong_options_are_refused(_) ->
    Wrong = fun(Trace) ->
        {error, {bad_option, Key, _}} =
            erlmcp:start_server(#{name => ~"s", version => ~"1", trace => Trace}),
        Key
    end,
    trace = Wrong(true),
    trace = Wrong({lists, x}),
    {trace, endpoint} = Wrong(#{}),
    {trace, ratio} = Wrong(#{endpoint => ~"http://localhost:4318/", ratio => 1.1}).

a_batch_has_a_span_for_each_request(Config) ->
    Server = erlmcp_test_suite:server(Config),
    Session = erlmcp_test_http:initialize(Server, ~"2025-03-26"),
    Call = fun(Id) ->
        #{jsonrpc => ~"2.0", id => Id, method => ~"tools/call",
          params => #{name => ~"trace", '_meta' => #{traceparent => ?PARENT}}}
    end,
    {Name, _} = Session,
    _ = erlmcp_test_http:post(Server, [{~"content-type", ~"application/json"},
                                       {~"accept", ~"application/json, text/event-stream"},
                                       {~"mcp-session-id", Name}],
                              json:encode([Call(1), Call(2)])),
    [#{trace_id := ?TRACE_ID} = span(~"tools/call trace", #{~"jsonrpc.request.id" => Id})
     || Id <- [~"1", ~"2"]].
