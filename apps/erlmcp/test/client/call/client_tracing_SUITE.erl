-module(client_tracing_SUITE).
-moduledoc """
The spans of a client's requests, and the trace context that these carry in `_meta`, in both eras
and by all transports.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2]).
-export([a_request_has_a_span/1, errors_are_named/1, cancelled_calls_end_their_spans/1,
         every_request_of_an_operation_has_a_span/1, a_context_is_carried_without_a_tracer/1,
         the_current_context_is_the_parent/1, meta_of_the_caller_wins/1,
         nothing_is_carried_without_a_context/1, baggage_goes_on/1,
         a_tracer_that_crashes_fails_no_call/1]).
-export([any_address_has_a_span/1, pools_have_spans/1, wrong_options_are_refused/1,
         no_secret_is_copied/1]).

-import(erlmcp_test_tracer, [span/1, span/2]).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [{group, stateless_http}, {group, session_http}, {group, tcp}, {group, memory},
     any_address_has_a_span, pools_have_spans, wrong_options_are_refused, no_secret_is_copied].

groups() ->
    Cases = [a_request_has_a_span, errors_are_named, cancelled_calls_end_their_spans,
             every_request_of_an_operation_has_a_span, a_context_is_carried_without_a_tracer,
             the_current_context_is_the_parent, meta_of_the_caller_wins,
             nothing_is_carried_without_a_context, baggage_goes_on,
             a_tracer_that_crashes_fails_no_call],
    [{Name, [], Cases} || Name <- [stateless_http, session_http, tcp, memory]].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(Group, Config) ->
    Self = self(),
    Keeper = spawn(fun() ->
        {ok, Server} = erlmcp:start_server(server()),
        Self ! {started, Server},
        receive stop -> ok = erlmcp:stop_server(Server) end
    end),
    Pid = receive {started, Server} -> Server end,
    [{group, Group}, {keeper, Keeper}, {pid, Pid} | Config].

end_per_group(_, Config) ->
    proplists:get_value(keeper, Config) ! stop.

server() ->
    Tool = fun(Name, Handler) -> #{name => Name, description => Name, handler => Handler} end,
    #{name => ~"upstream", version => ~"1", page_size => 2,
      tools => [Tool(~"meta", fun(_, #{meta := Meta}) -> shown(Meta) end),
                Tool(~"wrong", fun(_, _) -> {error, ~"no"} end),
                Tool(~"slow", fun slow/2)],
      prompts => [#{name => ~"hello", handler => fun(_, _) -> ~"hi" end}],
      resources => [#{uri => ~"test:one", name => ~"one", handler => fun(_, _) -> ~"1" end}],
      listen => [{http, #{}}, {tcp, #{port => 0}}]}.

%% Tells the case that it runs, if that waits for it.
slow(_, _) ->
    _ = [Case ! running || Case <- [whereis(?MODULE)], is_pid(Case)],
    receive after infinity -> ok end.

context() ->
    #{trace_id => ~"4bf92f3577b34da6a3ce929d0e0e4736", span_id => ~"00f067aa0ba902b7",
      sampled => true}.

shown(Meta) ->
    iolist_to_binary(json:encode(maps:with([~"traceparent", ~"tracestate", ~"baggage"], Meta))).

%% The client of a group, with further options.
client(Config, Options) ->
    Server = proplists:get_value(pid, Config),
    [#{url := Url}, #{port := Port}] = erlmcp:listeners(Server),
    Target = case proplists:get_value(group, Config) of
        stateless_http -> {http, Url, Options#{era => stateless}};
        session_http -> {http, Url, Options#{era => session}};
        tcp -> {tcp, ~"127.0.0.1", Port, Options};
        memory -> {server, Server, Options}
    end,
    {ok, Client} = erlmcp_client:start_link(Target),
    Client.

traced(Config) ->
    client(Config, #{trace => {erlmcp_test_tracer, self()}}).

%% The members of `_meta` that the server saw.
carried({ok, #{~"content" := [#{~"text" := Text}]}}) ->
    json:decode(Text).

a_request_has_a_span(Config) ->
    Client = traced(Config),
    Carried = carried(erlmcp_client:call_tool(Client, ~"meta", #{~"password" => ~"secret-7"})),
    #{trace_id := Trace, span_id := Id, kind := client, parent := none, links := [], status := ok,
      attributes := Attributes} =
        Span = span(~"tools/call meta",
                    #{~"mcp.method.name" => ~"tools/call", ~"gen_ai.tool.name" => ~"meta",
                      ~"gen_ai.operation.name" => ~"execute_tool"}),
    Parent = <<"00-", Trace/binary, $-, Id/binary, "-01">>,
    #{~"traceparent" := Parent} = Carried,
    #{~"jsonrpc.request.id" := <<_/binary>>, ~"mcp.protocol.version" := <<_/binary>>} = Attributes,
    ok = network(proplists:get_value(group, Config), Attributes),
    false = is_map_key(~"error.type", Attributes),
    nomatch = string:find(io_lib:format("~0p", [Span]), "secret-7"),
    ok = erlmcp_client:stop(Client).

network(memory, Attributes) ->
    false = is_map_key(~"network.transport", Attributes),
    ok;
network(tcp, #{~"network.transport" := ~"tcp", ~"server.address" := ~"127.0.0.1",
               ~"server.port" := _} = Attributes) ->
    false = is_map_key(~"network.protocol.name", Attributes),
    ok;
network(Group, #{~"network.transport" := ~"tcp", ~"network.protocol.name" := ~"http",
                 ~"server.address" := ~"127.0.0.1", ~"server.port" := Port} = Attributes) when
    is_integer(Port)
->
    HasSession = is_map_key(~"mcp.session.id", Attributes),
    HasSession = Group =:= session_http,
    ok.

errors_are_named(Config) ->
    Client = traced(Config),
    {error, {rpc, _}} = erlmcp_client:call_tool(Client, ~"nothing", #{}),
    #{status := {error, rpc}} =
        span(~"tools/call nothing", #{~"error.type" => ~"-32602",
                                      ~"rpc.response.status_code" => ~"-32602"}),
    {ok, #{~"isError" := true}} = erlmcp_client:call_tool(Client, ~"wrong", #{}),
    #{status := {error, tool_error}, attributes := Attributes} =
        span(~"tools/call wrong", #{~"error.type" => ~"tool_error"}),
    false = is_map_key(~"rpc.response.status_code", Attributes),
    {error, {timeout, 20}} = erlmcp_client:call_tool(Client, ~"slow", #{}, #{timeout => 20}),
    #{status := {error, timeout}} = span(~"tools/call slow", #{~"error.type" => ~"timeout"}),
    ok = erlmcp_client:stop(Client).

cancelled_calls_end_their_spans(Config) ->
    Client = traced(Config),
    true = register(?MODULE, self()),
    {ok, Reference} = erlmcp_client:async(Client, {call_tool, ~"slow", #{}}),
    receive running -> true = unregister(?MODULE) end,
    ok = erlmcp_client:cancel(Client, Reference),
    receive {erlmcp, Reference, {error, cancelled}} -> ok end,
    #{status := {error, cancelled}} =
        span(~"tools/call slow", #{~"error.type" => ~"cancelled"}),
    ok = erlmcp_client:stop(Client).

%% Pages have spans of their own, and so do the requests of the negotiation. A URI is no name.
every_request_of_an_operation_has_a_span(Config) ->
    Client = traced(Config),
    {ok, [_, _, _]} = erlmcp_client:list_tools(Client),
    #{trace_id := One} = span(~"tools/list"),
    #{trace_id := Other} = span(~"tools/list"),
    true = One =/= Other,
    {ok, _} = erlmcp_client:read_resource(Client, ~"test:one"),
    _ = span(~"resources/read", #{~"mcp.resource.uri" => ~"test:one"}),
    {ok, _} = erlmcp_client:get_prompt(Client, ~"hello", #{}),
    #{attributes := Attributes} =
        span(~"prompts/get hello", #{~"gen_ai.prompt.name" => ~"hello"}),
    false = is_map_key(~"gen_ai.operation.name", Attributes),
    First = case proplists:get_value(group, Config) of
        session_http -> ~"initialize";
        _ -> ~"server/discover"
    end,
    #{parent := none} = span(First),
    ok = erlmcp_client:stop(Client).

a_context_is_carried_without_a_tracer(Config) ->
    Client = client(Config, #{}),
    #{~"traceparent" := ~"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"} =
        carried(erlmcp_client:call_tool(Client, ~"meta", #{}, #{trace => context()})),
    %% The tracer of the context makes the span.
    Context = (context())#{tracer => {erlmcp_test_tracer, self()}},
    #{~"traceparent" := Parent} =
        carried(erlmcp_client:call_tool(Client, ~"meta", #{}, #{trace => Context})),
    #{trace_id := ~"4bf92f3577b34da6a3ce929d0e0e4736", span_id := Id, parent := Context} =
        span(~"tools/call meta"),
    Parent = <<"00-4bf92f3577b34da6a3ce929d0e0e4736-", Id/binary, "-01">>,
    ok = erlmcp_client:stop(Client).

the_current_context_is_the_parent(Config) ->
    Client = traced(Config),
    Context = context(),
    none = erlmcp_tracer:set_current(Context),
    Carried = carried(erlmcp_client:call_tool(Client, ~"meta", #{})),
    #{span_id := Id, parent := Context} = span(~"tools/call meta"),
    Parent = <<"00-4bf92f3577b34da6a3ce929d0e0e4736-", Id/binary, "-01">>,
    #{~"traceparent" := Parent} = Carried,
    %% so that calls that are not waited for belong to it, too
    {ok, Reference} = erlmcp_client:async(Client, {call_tool, ~"meta", #{}}),
    receive {erlmcp, Reference, {ok, _}} -> ok end,
    #{parent := Context} = span(~"tools/call meta"),
    Context = erlmcp_tracer:set_current(none),
    none = erlmcp_tracer:current(),
    _ = erlmcp_client:call_tool(Client, ~"meta", #{}),
    #{parent := none} = span(~"tools/call meta"),
    ok = erlmcp_client:stop(Client).

meta_of_the_caller_wins(Config) ->
    Client = traced(Config),
    Parent = ~"00-11111111111111111111111111111111-2222222222222222-00",
    [begin
         #{~"traceparent" := Parent} =
             carried(erlmcp_client:call_tool(Client, ~"meta", #{}, #{meta => #{Key => Parent}})),
         receive
             {span, #{name := ~"tools/call meta"} = Span} -> ct:fail({unexpected, Span})
         after 0 -> ok
         end
     end || Key <- [~"traceparent", traceparent]],
    ok = erlmcp_client:stop(Client).

nothing_is_carried_without_a_context(Config) ->
    Client = client(Config, #{}),
    #{} = Carried = carried(erlmcp_client:call_tool(Client, ~"meta", #{})),
    0 = map_size(Carried),
    ok = erlmcp_client:stop(Client).

baggage_goes_on(Config) ->
    Client = traced(Config),
    Context = (context())#{sampled := false, state => ~"a=1", baggage => ~"b=2"},
    #{~"traceparent" := Parent, ~"tracestate" := ~"a=1", ~"baggage" := ~"b=2"} =
        carried(erlmcp_client:call_tool(Client, ~"meta", #{}, #{trace => Context})),
    <<"00-4bf92f3577b34da6a3ce929d0e0e4736-", _:16/binary, "-00">> = Parent,
    ok = erlmcp_client:stop(Client).

a_tracer_that_crashes_fails_no_call(Config) ->
    Client = client(Config, #{trace => {erlmcp_test_tracer, crash}}),
    #{~"traceparent" := ~"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"} =
        carried(erlmcp_client:call_tool(Client, ~"meta", #{}, #{trace => context()})),
    ok = erlmcp_client:stop(Client).

%% The id of a server of this node may be any term, also one like a host and a port.
any_address_has_a_span(_) ->
    {ok, Server} = erlmcp:start_server((server())#{id => {shop, 1}}),
    [#{port := Port}] = [Listener || #{transport := tcp} = Listener <- erlmcp:listeners(Server)],
    [begin
         {ok, Client} = erlmcp_client:start_link(Target(#{trace => {erlmcp_test_tracer, self()}})),
         {ok, _} = erlmcp_client:call_tool(Client, ~"meta", #{}),
         #{attributes := Attributes} = span(~"tools/call meta"),
         Address = maps:get(~"server.address", Attributes, none),
         ok = erlmcp_client:stop(Client)
     end || {Target, Address} <- [
            {fun(Options) -> {server, {shop, 1}, Options} end, none},
            {fun(Options) -> {tcp, {127, 0, 0, 1}, Port, Options} end, ~"127.0.0.1"},
            {fun(Options) -> {tcp, "localhost", Port, Options} end, ~"localhost"}]],
    ok = erlmcp:stop_server(Server).

pools_have_spans(_) ->
    {ok, Server} = erlmcp:start_server(server()),
    Target = {server, Server, #{trace => {erlmcp_test_tracer, self()}}},
    {ok, Pool} = erlmcp_pool:start_link(#{targets => [Target, Target]}),
    Context = context(),
    none = erlmcp_tracer:set_current(Context),
    {ok, _} = erlmcp_client:call_tool(Pool, ~"meta", #{}),
    #{parent := Context} = span(~"tools/call meta"),
    {ok, Reference} = erlmcp_client:async(Pool, {call_tool, ~"meta", #{}}),
    receive {erlmcp, Reference, {ok, _}} -> ok end,
    #{parent := Context} = span(~"tools/call meta"),
    Context = erlmcp_tracer:set_current(none),
    ok = erlmcp_pool:stop(Pool),
    ok = erlmcp:stop_server(Server).

wrong_options_are_refused(_) ->
    Wrong = fun(Trace) ->
        {error, {bad_option, Key, _}} =
            erlmcp_client:start_link({http, ~"http://localhost:1/", #{trace => Trace}}),
        Key
    end,
    [trace = Wrong(Trace) || Trace <- [true, {erlmcp_client, x}, {1, 2}, []]],
    {trace, endpoint} = Wrong(#{}),
    Endpoint = ~"http://localhost:4318/v1/traces",
    [{trace, Key} = Wrong(maps:merge(#{endpoint => Endpoint}, #{Key => Value}))
     || {Key, Value} <- [{endpoint, ~"localhost"}, {endpoint, ~"ftp://localhost/"},
                         {endpoint, "http://localhost/"}, {ratio, 2}, {ratio, -0.1},
                         {ratio, ~"1"}, {headers, []}, {headers, #{~"a" => ~"b\r\nc: d"}},
                         {headers, #{~"" => ~"b"}}, {headers, #{~"a b" => ~"c"}},
                         {headers, #{~"a:" => ~"b"}}, {headers, #{~"host" => ~"b"}},
                         {headers, #{~"Content-Type" => ~"text/plain"}},
                         {resource, #{~"a" => []}}, {resource, #{a => ~"b"}}, {tls, #{}},
                         {sample, 1}]],
    {ok, Server} = erlmcp:start_server(server()),
    {ok, Client} = erlmcp_client:start_link({server, Server, #{}}),
    {error, {bad_option, trace, _}} = erlmcp_client:ping(Client, #{trace => #{trace_id => ~"1"}}),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp:stop_server(Server).

%% Each call has a copy of its client, and needs no header for a collector.
no_secret_is_copied(_) ->
    {ok, Server} = erlmcp:start_server(server()),
    Options = #{endpoint => ~"http://127.0.0.1:9/", headers => #{~"x-api-key" => ~"key-7"}},
    {ok, Client} = erlmcp_client:start_link({server, Server, #{trace => Options}}),
    {ok, Known} = erlmcp_client_table:find(Client),
    nomatch = string:find(io_lib:format("~0p", [Known]), "key-7"),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp:stop_server(Server).
