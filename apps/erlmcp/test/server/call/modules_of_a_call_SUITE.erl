-module(modules_of_a_call_SUITE).
-moduledoc """
The modules of the library that one `tools/call` of an ordinary tool passes over HTTP/1.1, from the
first byte of the request to the last of its response. They are few enough to be read in a row.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([a_call_passes_few_modules/1, a_new_head_passes_those_that_check_it_too/1]).

%% Modules that a call may pass: fewer than 30.
-define(MOST, 29).
%% And those that check a head which the connection has not seen yet: what it asks for, where it
%% comes from, its identity, the client's declaration, and the bound of the connection's memory.
-define(MOST_OF_NEW, 37).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [a_call_passes_few_modules, a_new_head_passes_those_that_check_it_too].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

%% What the server does after the response is a part of the call: the next one comes after it.
a_call_passes_few_modules(_) ->
    [traced(fun(Trace, Socket) ->
         ok = ask([1, 2], Order, Socket),
         _ = passed(Trace),
         ok = ask([3, 4], Order, Socket),
         few(?MOST, passed(Trace))
     end) || Order <- [id_first, id_behind]].

a_new_head_passes_those_that_check_it_too(_) ->
    [traced(fun(Trace, Socket) ->
         ok = ask([1], Order, Socket),
         few(?MOST_OF_NEW, passed(Trace))
     end) || Order <- [id_first, id_behind]].

few(Most, Modules) ->
    ct:pal("~b modules: ~p", [length(Modules), Modules]),
    %% Those at both ends, or nothing was traced.
    [] = [erlmcp_httpd_http1, erlmcp_engine, erlmcp_call, erlmcp_result] -- Modules,
    length(Modules) =< Most orelse ct:fail("~b modules where ~b are the most: ~p",
                                           [length(Modules), Most, Modules]).

%% The process of the connection, and those that it starts. Calls inside of a module are traced too:
%% that of the connection's process is called from no other one.
traced(Test) ->
    Trace = trace:session_create(?MODULE, self(), []),
    {ok, Modules} = application:get_key(erlmcp, modules),
    [{module, _} = code:ensure_loaded(Module) || Module <- Modules],
    [_ = trace:function(Trace, {Module, '_', '_'}, true, [local]) || Module <- Modules],
    Tool = #{name => ~"echo", description => ~"Returns its text",
             input_schema => #{text => string}, handler => fun(#{~"text" := Text}, _) -> Text end},
    Server = erlmcp_test_http:start(#{tools => [Tool]}),
    _ = trace:process(Trace, new_processes, true, [call, set_on_spawn]),
    Socket = erlmcp_test_http:connect(Server),
    %% The connection is accepted then, and has seen no head that it keeps.
    ok = erlmcp_test_http:send(Socket, ~"GET", [], ~""),
    #{status := 405} = erlmcp_test_http:response(Socket),
    %% Processes that others start meanwhile, such as those of a guard, are no part of a call.
    _ = trace:process(Trace, new_processes, false, [call, set_on_spawn]),
    _ = passed(Trace),
    Test(Trace, Socket),
    ok = erlmcp_test_http:close(Socket),
    ok = erlmcp_test_http:stop(Server),
    true = trace:session_destroy(Trace),
    _ = modules(#{}),
    ok.

passed(Trace) ->
    Delivered = trace:delivered(Trace, all),
    receive {trace_delivered, all, Delivered} -> ok end,
    modules(#{}).

modules(Passed) ->
    receive
        {trace, _, call, {Module, _, _}} -> modules(Passed#{counted(Module) => []})
    after 0 ->
        lists:sort(maps:keys(Passed))
    end.

%% A compiled schema is one fun, whichever keywords it is made of.
counted(Module) ->
    case atom_to_list(Module) of
        "erlmcp_schema_" ++ _ -> erlmcp_schema;
        _ -> Module
    end.

ask(Ids, Order, Socket) ->
    lists:foreach(fun(Id) ->
        ok = erlmcp_test_http:send(Socket, ~"POST",
                                   [{~"accept", ~"application/json, text/event-stream"},
                                    {~"content-type", ~"application/json"},
                                    {~"mcp-protocol-version", ~"2026-07-28"},
                                    {~"mcp-method", ~"tools/call"}, {~"mcp-name", ~"echo"}],
                                   body(Order, Id)),
        #{status := 200, messages := [#{~"id" := Id}]} = erlmcp_test_http:response(Socket)
    end, Ids).

%% As clients write it: the server admits a request before it is decoded if its id comes first.
body(id_first, Id) ->
    [~B'{"jsonrpc":"2.0","id":', integer_to_binary(Id), ~B',"method":"tools/call","params":',
     params(), $}];
body(id_behind, Id) ->
    [~B'{"method":"tools/call","params":', params(), ~B',"jsonrpc":"2.0","id":',
     integer_to_binary(Id), $}].

params() ->
    [~B'{"name":"echo","arguments":{"text":"hi"},"_meta":{',
     ~B'"io.modelcontextprotocol/protocolVersion":"2026-07-28",',
     ~B'"io.modelcontextprotocol/clientInfo":{"name":"test","version":"1"},',
     ~B'"io.modelcontextprotocol/clientCapabilities":{}}}'].
