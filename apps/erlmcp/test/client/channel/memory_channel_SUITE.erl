-module(memory_channel_SUITE).
-moduledoc "The channel to a server of the same node.".

-export([suite/0, all/0]).
-export([both_eras_are_spoken/1, a_server_is_found_by_its_id/1, many_callers_are_served/1,
         large_messages_go_both_ways/1, progress_comes_before_the_response/1,
         the_server_asks_in_a_session/1, the_principal_is_the_option/1,
         a_server_that_is_not_there/1, a_server_that_ends/1, closing_ends_the_calls/1]).

-import(erlmcp_test_channel, [open/2, open/3, up/1, down/1, owned/1, send/3, send/4, request/4,
                              notify/3, events/2, outcome/2, ask/4]).
-import(erlmcp_test_line, [serve/1, waiting_tool/1, await_call/0]).

-define(PATIENCE, 30_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [both_eras_are_spoken, a_server_is_found_by_its_id, many_callers_are_served,
     large_messages_go_both_ways, progress_comes_before_the_response,
     the_server_asks_in_a_session, the_principal_is_the_option,
     a_server_that_is_not_there, a_server_that_ends, closing_ends_the_calls].

both_eras_are_spoken(_) ->
    Channel = connected(serve(#{})),
    {ok, #{~"supportedVersions" := [~"2026-07-28"]}} =
        stateless(Channel, 1, ~"server/discover", #{}),
    initialize(Channel, #{}),
    {ok, #{~"tools" := [_]}} = ask(Channel, 2, ~"tools/list", #{}).

a_server_is_found_by_its_id(_) ->
    _ = serve(#{id => {?MODULE, mine}}),
    Channel = connected({?MODULE, mine}),
    {ok, #{}} = ask(Channel, 1, ~"ping", #{}).

many_callers_are_served(_) ->
    Channel = connected(serve(#{})),
    Test = self(),
    Callers = [spawn_link(fun() ->
        Text = integer_to_binary(Caller),
        [Text = text(stateless(Channel, Caller * 100 + N, ~"tools/call", echo(Text)))
         || N <- lists:seq(1, 20)],
        Test ! {done, self()}
    end) || Caller <- lists:seq(1, 50)],
    [receive {done, Caller} -> ok after ?PATIENCE * 4 -> error(not_done) end || Caller <- Callers].

large_messages_go_both_ways(_) ->
    Channel = connected(serve(#{})),
    Text = binary:copy(~"x", 900_000),
    Text = text(stateless(Channel, 1, ~"tools/call", echo(Text))).

progress_comes_before_the_response(_) ->
    Tool = #{name => ~"work", handler => fun(_, Context) ->
        [ok = erlmcp:progress(Context, N, #{}) || N <- [1, 2, 3]],
        ~"done"
    end},
    Channel = connected(serve(#{tools => [Tool]})),
    Request = erlmcp_test_line:stateless(1, ~"tools/call",
        #{~"name" => ~"work", ~"_meta" => #{~"progressToken" => ~"t"}}),
    {{ok, _}, Seen} = outcome(send(Channel, request, Request, #{token => ~"t"}), []),
    [1, 2, 3] = [At || {notification, _, #{~"progress" := At}} <- Seen].

the_server_asks_in_a_session(_) ->
    Tool = #{name => ~"ask", handler => fun(_, Context) ->
        case Context of
            #{input := #{~"roots" := #{~"roots" := Roots}}} -> integer_to_binary(length(Roots));
            #{} -> {input_required, #{~"roots" => erlmcp_input:roots()}, ~""}
        end
    end},
    Channel = connected(serve(#{tools => [Tool]})),
    initialize(Channel, #{~"roots" => #{}}),
    Call = request(Channel, 1, ~"tools/call", #{~"name" => ~"ask"}),
    {request, Id, ~"roots/list", _} = owned(Channel),
    Answer = #{~"jsonrpc" => ~"2.0", ~"id" => Id,
               ~"result" => #{~"roots" => [#{~"uri" => ~"file:///a"}]}},
    [sent] = events(send(Channel, response, Answer), 1),
    {Outcome, []} = outcome(Call, []),
    ~"1" = text(Outcome).

the_principal_is_the_option(_) ->
    Tool = #{name => ~"who", handler => fun(_, #{principal := Principal}) -> Principal end},
    Server = serve(#{tools => [Tool]}),
    Channel = open(erlmcp_line_channel, {server, Server}, #{principal => ~"ada"}),
    1 = up(Channel),
    ~"ada" = text(stateless(Channel, 1, ~"tools/call", #{~"name" => ~"who"})).

a_server_that_is_not_there(_) ->
    Channel = open(erlmcp_line_channel, {server, {?MODULE, later}}),
    {connect, no_server} = down(Channel),
    {{failed, {connect, no_server}}, []} = outcome(request(Channel, 1, ~"ping", #{}), []),
    _ = serve(#{id => {?MODULE, later}}),
    1 = up(Channel),
    {ok, #{}} = ask(Channel, 1, ~"ping", #{}).

a_server_that_ends(_) ->
    Server = serve(#{tools => [waiting_tool(~"wait")]}),
    Channel = connected(Server),
    Call = send(Channel, request, call(~"wait")),
    Monitor = monitor(process, await_call()),
    ok = erlmcp:stop_server(Server),
    {{failed, {closed, closed}}, []} = outcome(Call, []),
    closed = down(Channel),
    receive {'DOWN', Monitor, process, _, _} -> ok after ?PATIENCE -> error(runs_on) end.

closing_ends_the_calls(_) ->
    {Module, Pid, _} = Channel = connected(serve(#{tools => [waiting_tool(~"wait")]})),
    Call = send(Channel, request, call(~"wait")),
    Monitor = monitor(process, await_call()),
    ok = Module:close(Pid),
    {{failed, {closed, stopped}}, []} = outcome(Call, []),
    receive {'DOWN', Monitor, process, _, _} -> ok after ?PATIENCE -> error(runs_on) end.

connected(Server) ->
    Channel = open(erlmcp_line_channel, {server, Server}),
    1 = up(Channel),
    Channel.

call(Name) -> erlmcp_test_line:stateless(1, ~"tools/call", #{~"name" => Name}).

initialize(Channel, Capabilities) ->
    #{~"params" := Params} = Request = erlmcp_test_line:initialize_request(0, ~"2025-11-25"),
    {{ok, #{~"protocolVersion" := _}}, []} =
        outcome(send(Channel, request,
                     Request#{~"params" := Params#{~"capabilities" := Capabilities}}), []),
    [sent] = events(notify(Channel, ~"notifications/initialized", #{}), 1).

stateless(Channel, Id, Method, Params) ->
    {Outcome, []} =
        outcome(send(Channel, request, erlmcp_test_line:stateless(Id, Method, Params)), []),
    Outcome.

echo(Text) -> #{~"name" => ~"echo", ~"arguments" => #{~"text" => Text}}.
text({ok, #{~"content" := [#{~"text" := Text}]}}) -> Text.
