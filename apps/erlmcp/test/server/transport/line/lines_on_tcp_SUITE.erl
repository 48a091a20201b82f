-module(lines_on_tcp_SUITE).
-moduledoc "Newline-framed JSON-RPC over TCP: the rules of stdio on a socket, and its limits.".

-export([suite/0, all/0]).
-export([pipelined_requests_are_all_answered/1, messages_may_come_in_any_pieces/1,
         eras_share_a_listener/1, eras_interleave_on_a_connection/1,
         half_closed_clients_are_answered/1, unterminated_last_line_is_a_message/1,
         lost_sockets_end_their_calls/1, slow_calls_delay_nobody/1,
         requests_in_flight_are_bounded/1, ids_in_flight_are_refused/1, ids_keep_their_type/1,
         deadlines_are_kept/1, heaps_are_bounded/1,
         crashes_cost_one_error/1, messages_are_bounded_in_bytes/1,
         oversize_is_refused_before_it_ends/1, nesting_is_bounded/1, members_are_bounded/1,
         unreadable_lines_are_parse_errors/1, non_messages_are_invalid_requests/1,
         notifications_and_responses_are_not_answered/1,
         refused_notifications_and_responses_are_not_answered/1, sessions_hear_of_changes/1,
         answers_are_one_line/1, large_answers_arrive_whole/1,
         unfinished_messages_are_bounded_in_time/1, clients_that_do_not_read_are_dropped/1,
         unread_answers_are_bounded_in_time/1, what_the_system_gives_up_is_lost/1,
         the_system_waits_longer_than_the_process/1,
         old_heaps_are_for_busy_connections/1,
         connections_live_when_a_neighbour_dies/1, clients_that_vanish_are_found/1]).

-import(erlmcp_test_line, [serve/1, connect/1, send/2, recv/1, recv_line/1, recv_many/2,
                           rest/1, is_quiet/1, ask/4, ask_stateless/4, initialize/2, request/3,
                           stateless/3, notification/2, result/1, code/1, echo_tool/0,
                           waiting_tool/1, await_call/0]).

-define(PATIENCE, 30_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [pipelined_requests_are_all_answered, messages_may_come_in_any_pieces, eras_share_a_listener,
     eras_interleave_on_a_connection, half_closed_clients_are_answered,
     unterminated_last_line_is_a_message, lost_sockets_end_their_calls, slow_calls_delay_nobody,
     requests_in_flight_are_bounded, ids_in_flight_are_refused, ids_keep_their_type,
     deadlines_are_kept, heaps_are_bounded, crashes_cost_one_error, messages_are_bounded_in_bytes,
     oversize_is_refused_before_it_ends, nesting_is_bounded, members_are_bounded,
     unreadable_lines_are_parse_errors, non_messages_are_invalid_requests,
     notifications_and_responses_are_not_answered,
     refused_notifications_and_responses_are_not_answered, sessions_hear_of_changes,
     answers_are_one_line, large_answers_arrive_whole,
     unfinished_messages_are_bounded_in_time, clients_that_do_not_read_are_dropped,
     unread_answers_are_bounded_in_time, what_the_system_gives_up_is_lost,
     the_system_waits_longer_than_the_process,
     old_heaps_are_for_busy_connections,
     connections_live_when_a_neighbour_dies, clients_that_vanish_are_found].

%% 2026-07-28, Messages: "Result responses MUST include the same ID as the request they correspond
%% to." 1,000 requests in one write, without waiting: each is answered once.
pipelined_requests_are_all_answered(_) ->
    Socket = connect(serve(#{})),
    Ids = lists:seq(1, 1000),
    ok = gen_tcp:send(Socket, [[json:encode(pipelined(Id)), $\n] || Id <- Ids]),
    Answers = recv_many(Socket, 1000),
    Ids = lists:sort([Id || #{~"id" := Id, ~"result" := #{}} <- Answers]),
    [] = [Answer || #{~"id" := Id, ~"result" := Result} = Answer <- Answers,
                    Id rem 4 =:= 0, text(Result) =/= integer_to_binary(Id)],
    [] = rest(Socket).

pipelined(Id) when Id rem 4 =:= 0 -> call(Id, ~"echo", #{~"text" => integer_to_binary(Id)});
pipelined(Id) when Id rem 4 =:= 1 -> request(Id, ~"ping", #{});
pipelined(Id) when Id rem 4 =:= 2 -> stateless(Id, ~"tools/list", #{});
pipelined(Id) -> stateless(Id, ~"server/discover", #{}).

%% A stream has no packets: what is cut anywhere, or comes at once, is the same messages.
messages_may_come_in_any_pieces(_) ->
    Socket = connect(serve(#{})),
    Call = json:encode(call(1, ~"echo", #{~"text" => ~"zwölf"})),
    Line = iolist_to_binary([Call, ~"\r\n \t\n\n"]),
    [ok = gen_tcp:send(Socket, <<Byte>>) || <<Byte>> <= Line],
    ~"zwölf" = text(result(recv(Socket))),
    <<Head:20/binary, Tail/binary>> = Line,
    ok = gen_tcp:send(Socket, [Line, Head]),
    ~"zwölf" = text(result(recv(Socket))),
    ok = gen_tcp:send(Socket, Tail),
    ~"zwölf" = text(result(recv(Socket))),
    [] = rest(Socket).

%% 2026-07-28, Versioning: "A dual-era server MAY serve both eras concurrently on the same endpoint
%% or process."
eras_share_a_listener(_) ->
    Server = serve(#{}),
    Old = connect(Server),
    New = connect(Server),
    #{~"protocolVersion" := ~"2024-11-05"} = initialize(Old, ~"2024-11-05"),
    #{~"supportedVersions" := [~"2026-07-28"]} =
        result(ask_stateless(New, 1, ~"server/discover", #{})),
    Listed = result(ask(Old, 1, ~"tools/list", #{})),
    #{~"resultType" := ~"complete"} = result(ask_stateless(New, 2, ~"tools/list", #{})),
    false = is_map_key(~"resultType", Listed),
    %% Without a session, what a session may ask is refused.
    -32600 = code(ask(New, 3, ~"tools/list", #{})).

%% 2026-07-28, Statelessness: "clients may interleave unrelated requests on the same transport".
eras_interleave_on_a_connection(_) ->
    Socket = connect(serve(#{tools => [echo_tool(), revision_tool()]})),
    Call = #{~"name" => ~"revision", ~"arguments" => #{}},
    ~"2026-07-28" = text(result(ask_stateless(Socket, 1, ~"tools/call", Call))),
    _ = initialize(Socket, ~"2025-06-18"),
    [begin
         ~"2025-06-18" = text(result(ask(Socket, N, ~"tools/call", Call))),
         ~"2026-07-28" = text(result(ask_stateless(Socket, -N, ~"tools/call", Call)))
     end || N <- lists:seq(1, 20)],
    %% "Servers MUST NOT rely on prior requests over the same connection to establish context":
    %% the session's level is not the stateless request's, and a method of one is none of the other.
    -32601 = code(ask_stateless(Socket, 100, ~"ping", #{})),
    -32601 = code(ask(Socket, 101, ~"no/such", #{})),
    #{~"resultType" := ~"complete"} = result(ask(Socket, 102, ~"server/discover", #{
        ~"_meta" => erlmcp_test_line:meta()})).

revision_tool() ->
    #{name => ~"revision",
      handler => fun(_, #{revision := Revision}) -> atom_to_binary(Revision) end}.

%% A client that has nothing more to send still reads its answers.
half_closed_clients_are_answered(_) ->
    Socket = connect(serve(#{tools => [echo_tool(), waiting_tool(~"wait")]})),
    _ = initialize(Socket, ~"2025-11-25"),
    send(Socket, call(1, ~"wait", #{})),
    send(Socket, call(2, ~"echo", #{~"text" => ~"early"})),
    Call = await_call(),
    ok = erlmcp_test_line:end_of_input(Socket),
    #{~"id" := 2} = recv(Socket),
    Call ! {answer, ~"late"},
    #{~"id" := 1, ~"result" := Result} = recv(Socket),
    ~"late" = text(Result),
    {error, closed} = erlmcp_test_line:recv_line(Socket, ?PATIENCE).

%% The last message needs no newline after it.
unterminated_last_line_is_a_message(_) ->
    Socket = connect(serve(#{})),
    ok = gen_tcp:send(Socket, json:encode(request(1, ~"ping", #{}))),
    [#{~"id" := 1, ~"result" := #{}}] = rest(Socket).

%% The client does not read the answer any more, so the work ends. (A mere end of input is no loss.)
lost_sockets_end_their_calls(_) ->
    Socket = connect(serve(#{tools => [waiting_tool(~"wait")]})),
    send(Socket, stateless(1, ~"tools/call", #{~"name" => ~"wait"})),
    Monitor = monitor(process, await_call()),
    erlmcp_test_line:reset(Socket),
    down(Monitor).

%% Head-of-line blocking: one slow call, and everything after it is answered before it.
slow_calls_delay_nobody(_) ->
    Socket = connect(serve(#{tools => [echo_tool(), waiting_tool(~"wait")]})),
    _ = initialize(Socket, ~"2025-11-25"),
    send(Socket, call(0, ~"wait", #{})),
    Call = await_call(),
    [#{~"result" := #{}} = ask(Socket, N, ~"tools/call", echo(~"quick")) || N <- lists:seq(1, 50)],
    Call ! {answer, ~"slow"},
    #{~"id" := 0} = recv(Socket).

%% Refusals, 1060: without a queue, all requests run at the limit. One more is refused with its id
%% and a time to come back, and the others are not disturbed. Requests without a call are not
%% counted.
requests_in_flight_are_bounded(_) ->
    Socket = connect(serve(#{tools => [echo_tool(), waiting_tool(~"wait")],
                             limits => #{calls_per_connection => 3, queue_per_connection => 0}})),
    _ = initialize(Socket, ~"2025-11-25"),
    [send(Socket, call(N, ~"wait", #{})) || N <- [1, 2, 3]],
    Calls = [await_call() || _ <- [1, 2, 3]],
    #{~"error" := #{~"code" := 1060, ~"message" := _, ~"data" := Data}} =
        ask(Socket, 4, ~"tools/call", echo(~"")),
    #{~"refusal" := 1060, ~"name" := ~"concurrent_limit_exceeded", ~"retryAfterMs" := Retry,
      ~"limit" := 3, ~"observed" := 4} = Data,
    true = Retry > 0,
    #{~"tools" := [_, _]} = result(ask(Socket, 5, ~"tools/list", #{})),
    [Call ! {answer, ~"done"} || Call <- Calls],
    [1, 2, 3] = lists:sort([Id || #{~"id" := Id, ~"result" := _} <- recv_many(Socket, 3)]),
    #{~"result" := _} = ask(Socket, 6, ~"tools/call", echo(~"")).

%% 2026-07-28, Messages: "The request ID MUST NOT match the ID of any other request the sender has
%% issued and not yet received a response for." The first keeps its answer; then its id is free.
ids_in_flight_are_refused(_) ->
    Socket = connect(serve(#{tools => [echo_tool(), waiting_tool(~"wait")]})),
    _ = initialize(Socket, ~"2025-11-25"),
    send(Socket, call(~"a", ~"wait", #{})),
    Call = await_call(),
    -32600 = code(ask(Socket, ~"a", ~"tools/call", echo(~"second"))),
    Call ! {answer, ~"first"},
    #{~"id" := ~"a", ~"result" := Result} = recv(Socket),
    ~"first" = text(Result),
    #{~"result" := _} = ask(Socket, ~"a", ~"tools/call", echo(~"third")).

%% "The same ID": "1" is not 1, and an integer of any size is itself.
ids_keep_their_type(_) ->
    Socket = connect(serve(#{tools => [waiting_tool(~"wait")]})),
    _ = initialize(Socket, ~"2025-11-25"),
    Ids = [1, ~"1", 0, -1, ~"", ~"ö\n\"", 9007199254740993, 1 bsl 200],
    [send(Socket, call(Id, ~"wait", #{})) || Id <- Ids],
    Calls = [await_call() || _ <- Ids],
    [Call ! {answer, ~""} || Call <- Calls],
    true = lists:sort(Ids) =:= lists:sort([Id || #{~"id" := Id, ~"result" := _}
                                                     <- recv_many(Socket, length(Ids))]).

%% A call ends at its deadline (1069), a tool's own one before the server's.
deadlines_are_kept(_) ->
    Wait = waiting_tool(~"wait"),
    Socket = connect(serve(#{tools => [Wait, Wait#{name := ~"short", timeout_ms => 1000}],
                             limits => #{call_timeout_ms => 1500}})),
    _ = initialize(Socket, ~"2025-11-25"),
    [begin
         send(Socket, call(Name, Name, #{})),
         Monitor = monitor(process, await_call()),
         #{~"id" := Name, ~"error" := #{~"code" := 1069, ~"data" := Data}} = recv(Socket),
         #{~"refusal" := 1069, ~"name" := ~"timeout"} = Data,
         down(Monitor)
     end || Name <- [~"wait", ~"short"]],
    true = is_quiet(Socket).

%% A call that takes more memory than it may is ended (1089), and nothing else is.
heaps_are_bounded(_) ->
    Hungry = #{name => ~"hungry",
               handler => fun(_, _) -> integer_to_binary(length(lists:seq(1, 10_000_000))) end},
    Socket = connect(serve(#{tools => [Hungry, echo_tool(), waiting_tool(~"wait")],
                             limits => #{call_heap_bytes => 1_000_000}})),
    _ = initialize(Socket, ~"2025-11-25"),
    send(Socket, call(1, ~"wait", #{})),
    Call = await_call(),
    1089 = code(ask(Socket, 2, ~"tools/call", #{~"name" => ~"hungry"})),
    #{~"result" := _} = ask(Socket, 3, ~"tools/call", echo(~"")),
    Call ! {answer, ~""},
    #{~"id" := 1, ~"result" := _} = recv(Socket).

%% Whatever a handler does, its caller gets one error without a stack, a pid or a path.
crashes_cost_one_error(_) ->
    Ways = #{~"error" => fun() -> error(secret) end, ~"exit" => fun() -> exit(secret) end,
             ~"throw" => fun() -> throw(secret) end,
             ~"killed" => fun() -> exit(self(), kill), receive never -> ok end end,
             ~"linked" => fun() -> spawn_link(fun() -> exit(secret) end),
                                   receive never -> ok end end,
             ~"tuple" => fun() -> {secret} end, ~"pid" => fun() -> #{secret => self()} end,
             ~"utf8" => fun() -> <<"secret", 255>> end,
             ~"content" => fun() -> [secret] end,
             ~"error_utf8" => fun() -> {error, <<"secret", 255>>} end},
    Tools = [#{name => Name, handler => fun(_, _) -> Way() end} || Name := Way <- Ways],
    Socket = connect(serve(#{tools => Tools})),
    _ = initialize(Socket, ~"2025-11-25"),
    [begin
         send(Socket, call(Name, Name, #{})),
         Line = recv_line(Socket),
         #{~"id" := Name, ~"error" := #{~"code" := Code}} = json:decode(Line),
         {Name, true} = {Name, lists:member(Code, [-32603, 1089])},
         {Name, nomatch} = {Name, binary:match(Line, [~"secret", ~"<0.", ~".erl", ~"SUITE"])}
     end || Name <- maps:keys(Ways)],
    [] = rest(Socket).

%% Refusals, 1068: a message of as many bytes as there may be is read; with one more it is refused
%% without an id, which was not read. The next message is served.
messages_are_bounded_in_bytes(_) ->
    Socket = connect(serve(#{limits => #{message_bytes => 1000}})),
    Fitting = padded_ping(1, 1000),
    1000 = byte_size(Fitting),
    send(Socket, Fitting),
    #{~"id" := 1, ~"result" := #{}} = recv(Socket),
    send(Socket, padded_ping(2, 1001)),
    #{~"error" := #{~"code" := 1068, ~"data" := Data}} = Refused = recv(Socket),
    #{~"refusal" := 1068, ~"name" := ~"message_too_large", ~"limit" := 1000,
      ~"observed" := 1001} = Data,
    false = is_map_key(~"id", Refused),
    true = is_quiet(Socket),
    [] = rest(Socket).

padded_ping(Id, Bytes) ->
    Ping = iolist_to_binary(json:encode(request(Id, ~"ping", #{}))),
    <<Ping/binary, (binary:copy(~" ", Bytes - byte_size(Ping)))/binary>>.

%% A peer that never ends its line is refused once, as soon as the line is over the bound. Further
%% bytes are not kept.
oversize_is_refused_before_it_ends(_) ->
    Socket = connect(serve(#{limits => #{message_bytes => 1000}})),
    true = is_quiet(Socket),
    ok = gen_tcp:send(Socket, binary:copy(~"x", 2000)),
    1068 = code(recv(Socket)),
    [ok = gen_tcp:send(Socket, binary:copy(~"x", 100_000)) || _ <- lists:seq(1, 10)],
    ok = gen_tcp:send(Socket, ~"\n"),
    true = is_quiet(Socket),
    [] = rest(Socket).

%% At the depth that there may be the message is read; one deeper it is none.
nesting_is_bounded(_) ->
    Socket = connect(serve(#{limits => #{depth => 10}})),
    %% The message and its params are two.
    #{~"id" := 1, ~"result" := #{}} = ask(Socket, 1, ~"ping", #{~"x" => nested(8)}),
    send(Socket, request(2, ~"ping", #{~"x" => nested(9)})),
    #{~"error" := #{~"code" := -32700, ~"data" := #{~"limit" := 10}}} = Refused = recv(Socket),
    false = is_map_key(~"id", Refused),
    true = is_quiet(Socket).

nested(0) -> 0;
nested(Depth) -> [nested(Depth - 1)].

%% The object members of a message are bounded in the same way, at every depth.
members_are_bounded(_) ->
    Socket = connect(serve(#{limits => #{members => 20}})),
    %% Four of the message itself.
    #{~"id" := 1, ~"result" := #{}} = ask(Socket, 1, ~"ping", members(16)),
    send(Socket, request(2, ~"ping", members(17))),
    #{~"error" := #{~"code" := -32700, ~"data" := #{~"limit" := 20}}} = Refused = recv(Socket),
    false = is_map_key(~"id", Refused),
    send(Socket, request(3, ~"ping", #{~"x" => [members(8), members(8)]})),
    -32700 = code(recv(Socket)),
    true = is_quiet(Socket).

members(Count) ->
    #{integer_to_binary(N) => N || N <- lists:seq(1, Count)}.

%% 2026-07-28, Transports: "JSON-RPC messages MUST be UTF-8 encoded"; "Error responses MUST include
%% the same ID as the request they correspond to (except in error cases where the ID could not be
%% read due a malformed request)."
unreadable_lines_are_parse_errors(_) ->
    Socket = connect(serve(#{})),
    true = is_quiet(Socket),
    [begin
         send(Socket, Line),
         #{~"jsonrpc" := ~"2.0", ~"error" := #{~"code" := -32700}} = Refused = recv(Socket),
         {Line, false} = {Line, is_map_key(~"id", Refused)}
     end || Line <- unreadable()],
    true = is_quiet(Socket),
    [] = rest(Socket).

unreadable() ->
    [~"hello", ~"{", ~"}", ~"{]", ~"nul", ~"GET /", <<0>>, <<255, 254>>,
     ~'{"jsonrpc":"2.0","id":1,"method":"ping"', ~'{"jsonrpc":"2.0","id":1,"method":"ping"}}',
     ~'{"jsonrpc":"2.0","id":1,"method":"ping"} {}', ~'{"jsonrpc":"2.0","id":01,"method":"ping"}',
     ~'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}', ~'{"jsonrpc":"2.0","id":NaN}',
     ~"{'jsonrpc':'2.0','id':1,'method':'ping'}", ~'{"jsonrpc":"2.0","id":1e999,"method":"ping"}',
     ~B'{"jsonrpc":"2.0","id":"\ud800","method":"ping"}',
     <<"{\"jsonrpc\":\"2.0\",\"id\":\"", 16#c3, 16#28, "\",\"method\":\"ping\"}">>,
     <<"{\"jsonrpc\":\"2.0\",\"id\":\"", 16#ed, 16#a0, 16#80, "\",\"method\":\"ping\"}">>,
     <<"{\"jsonrpc\":\"2.0\",\"id\":\"", 16#c0, 16#80, "\",\"method\":\"ping\"}">>,
     <<16#ef, 16#bb, 16#bf, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}">>,
     iolist_to_binary([~'{"jsonrpc":"2.0","method":"ping","id":', lists:duplicate(500, $1), $}]),
     binary:copy(~"[", 100)].

%% JSON that is no message is answered with -32600, with the id where there is one.
non_messages_are_invalid_requests(_) ->
    Socket = connect(serve(#{})),
    true = is_quiet(Socket),
    [begin
         send(Socket, Json),
         #{~"jsonrpc" := ~"2.0", ~"error" := #{~"code" := Code}} = Refused = recv(Socket),
         {Json, Expected, Id} = {Json, Code, maps:get(~"id", Refused, none)}
     end || {Json, Expected, Id} <- non_messages()],
    true = is_quiet(Socket),
    [] = rest(Socket).

non_messages() ->
    Ping = request(7, ~"ping", #{}),
    [{~"1", -32600, none}, {~"null", -32600, none}, {~'"ping"', -32600, none},
     {~"[]", -32600, none}, {~"{}", -32600, none},
     {maps:remove(~"jsonrpc", Ping), -32600, 7}, {Ping#{~"jsonrpc" := ~"1.0"}, -32600, 7},
     {Ping#{~"jsonrpc" := 2.0}, -32600, 7}, {maps:remove(~"method", Ping), -32600, 7},
     {Ping#{~"method" := 1}, -32600, 7}, {Ping#{~"method" := null}, -32600, 7},
     %% "Unlike base JSON-RPC, the ID MUST NOT be null"; "MUST include a string or integer ID".
     {Ping#{~"id" := null}, -32600, none}, {Ping#{~"id" := 1.5}, -32600, none},
     {Ping#{~"id" := true}, -32600, none}, {Ping#{~"id" := [7]}, -32600, none},
     {Ping#{~"id" := #{}}, -32600, none},
     {Ping#{~"params" := []}, -32602, 7}, {Ping#{~"params" := null}, -32602, 7},
     {Ping#{~"params" := 1}, -32602, 7}].

%% 2026-07-28, Messages: "The receiver MUST NOT send a response" to a notification. A response to
%% nothing that we asked is accepted.
notifications_and_responses_are_not_answered(_) ->
    Socket = connect(serve(#{})),
    [send(Socket, Message)
     || Message <- [notification(~"notifications/initialized", #{}),
                    notification(~"notifications/no_such", #{}), notification(~"tools/call", #{}),
                    notification(~"ping", #{}),
                    notification(~"notifications/roots/list_changed", #{}),
                    #{~"jsonrpc" => ~"2.0", ~"method" => ~"notifications/progress"},
                    #{~"jsonrpc" => ~"2.0", ~"id" => 1, ~"result" => #{}},
                    #{~"jsonrpc" => ~"2.0", ~"id" => ~"x",
                      ~"error" => #{~"code" => 1, ~"message" => ~""}},
                    #{~"jsonrpc" => ~"2.0", ~"error" => #{~"code" => 1, ~"message" => ~""}}]],
    [] = rest(Socket).

%% Nor are they if they are over a rate. The client may have a request with the id of a response.
refused_notifications_and_responses_are_not_answered(_) ->
    Socket = connect(serve(#{limits => #{messages_per_day => 1}})),
    #{~"result" := #{}} = ask(Socket, 1, ~"ping", #{}),
    Notification = notification(~"notifications/progress", #{}),
    Responses = [#{~"jsonrpc" => ~"2.0", ~"id" => 7, ~"result" => #{}},
                 #{~"jsonrpc" => ~"2.0", ~"id" => 7,
                   ~"error" => #{~"code" => 1, ~"message" => ~""}},
                 #{~"jsonrpc" => ~"2.0", ~"error" => #{~"code" => 1, ~"message" => ~""}}],
    %% Responses count apart, and this one enters.
    send(Socket, hd(Responses)),
    [send(Socket, Message) || Message <- [Notification, [Notification | Responses] | Responses]],
    send(Socket, [Notification, request(8, ~"ping", #{}) | Responses]),
    %% What only looks like a response is answered.
    [send(Socket, Message)
     || Message <- [#{~"jsonrpc" => ~"2.0", ~"id" => 9}, #{~"id" => 10, ~"result" => #{}},
                    #{~"jsonrpc" => ~"2.0", ~"id" => 11, ~"result" => #{}, ~"error" => #{}},
                    #{~"error" => 1}]],
    [[#{~"id" := 8, ~"error" := #{~"code" := 1056}}] | Answers] = rest(Socket),
    [9, 10, 11, none] = [maps:get(~"id", Answer, none) || #{~"error" := _} = Answer <- Answers].

%% 2025-11-25, Tools: "When the list of available tools changes, servers that declared the
%% listChanged capability SHOULD send a notification". A connection without a session has declared
%% nothing and is sent nothing.
sessions_hear_of_changes(_) ->
    Server = serve(#{resources => [#{uri => Uri, name => Uri, handler => fun(_, _) -> ~"" end}
                                   || Uri <- [~"a://one", ~"a://two"]]}),
    Session = connect(Server),
    Fresh = connect(Server),
    Stateless = connect(Server),
    #{~"capabilities" := #{~"tools" := #{~"listChanged" := true},
                           ~"prompts" := #{~"listChanged" := true},
                           ~"resources" := #{~"listChanged" := true}}} =
        initialize(Session, ~"2025-11-25"),
    %% A further subscription makes no change known twice.
    [#{~"result" := #{}} = ask(Session, Id, ~"resources/subscribe", #{~"uri" => Uri})
     || {Id, Uri} <- [{1, ~"a://one"}, {2, ~"a://two"}, {3, ~"a://one"}]],
    true = is_quiet(Session),
    true = is_quiet(Fresh),
    _ = ask_stateless(Stateless, 1, ~"tools/list", #{}),
    [begin
         ok = erlmcp:add(Server, Kind, Definition),
         Changed = recv(Session),
         Changed = #{~"jsonrpc" => ~"2.0", ~"method" => Method},
         ok = erlmcp:remove(Server, Kind, Key),
         Changed = recv(Session)
     end || {Kind, Key, Definition, Method} <- changes()],
    %% A change that was refused is none.
    {error, not_found} = erlmcp:remove(Server, tool, ~"no such"),
    {error, _} = erlmcp:add(Server, tool, echo_tool()),
    [] = rest(Session),
    [] = rest(Fresh),
    [] = rest(Stateless).

changes() ->
    Handler = fun(_, _) -> ~"" end,
    [{tool, ~"t", #{name => ~"t", handler => Handler}, ~"notifications/tools/list_changed"},
     {prompt, ~"p", #{name => ~"p", handler => Handler}, ~"notifications/prompts/list_changed"},
     {resource, ~"a://r", #{uri => ~"a://r", name => ~"r", handler => Handler},
      ~"notifications/resources/list_changed"},
     {resource_template, ~"b://{r}", #{uri_template => ~"b://{r}", name => ~"r",
                                       handler => Handler},
      ~"notifications/resources/list_changed"}].

%% 2026-07-28, stdio: "Messages are delimited by newlines, and MUST NOT contain embedded newlines."
answers_are_one_line(_) ->
    Text = <<"a\nb\r\nc\r", 0, 1, 16#7f, "\x{2028}\x{2029}\x{85}"/utf8, "\\n\"">>,
    Socket = connect(serve(#{name => Text, instructions => Text})),
    send(Socket, stateless(Text, ~"tools/call", echo(Text))),
    Line = recv_line(Socket),
    [_] = binary:matches(Line, [~"\n", ~"\r"]),
    #{~"id" := Text, ~"result" := Result} = json:decode(Line),
    Text = text(Result),
    #{~"serverInfo" := #{~"name" := Text}, ~"instructions" := Text} =
        initialize(Socket, ~"2025-11-25"),
    [] = rest(Socket).

%% An answer larger than any buffer, to a client that reads it late.
large_answers_arrive_whole(_) ->
    Large = #{name => ~"large", handler => fun(_, _) -> binary:copy(~"0123456789", 800_000) end},
    Socket = connect(serve(#{tools => [Large]})),
    [send(Socket, stateless(Id, ~"tools/call", #{~"name" => ~"large"})) || Id <- [1, 2, 3]],
    Answers = rest(Socket),
    [8_000_000, 8_000_000, 8_000_000] =
        [byte_size(text(Result)) || #{~"result" := Result} <- Answers].

%% `receive_timeout_ms`: a message that was begun has so long to arrive. Between messages a client
%% may be silent for as long as it likes.
unfinished_messages_are_bounded_in_time(_) ->
    Server = serve(#{limits => #{receive_timeout_ms => 100}}),
    Silent = connect(Server),
    Slow = connect(Server),
    ok = gen_tcp:send(Slow, ~'{"jsonrpc":"2.0",'),
    ok = closes(Slow),
    true = is_quiet(Silent).

closes(Socket) ->
    case erlmcp_test_line:recv_line(Socket, ?PATIENCE) of
        {ok, _} -> closes(Socket);
        {error, closed} -> ok
    end.

%% `send_timeout_ms`: a client that goes on asking and never reads is dropped, with its calls.
clients_that_do_not_read_are_dropped(_) ->
    Server = serve(#{tools => [waiting_tool(~"wait")], limits => #{send_timeout_ms => 100}}),
    Socket = connect(Server),
    ok = inet:setopts(Socket, [{send_timeout, ?PATIENCE}]),
    send(Socket, stateless(0, ~"tools/call", #{~"name" => ~"wait"})),
    Monitor = monitor(process, await_call()),
    Dropped = ask_until_dropped(Socket, [json:encode(request(binary:copy(~"x", 100_000), ~"ping",
                                                             #{})), $\n]),
    true = Dropped =/= timeout,
    down(Monitor).

ask_until_dropped(Socket, Line) ->
    case gen_tcp:send(Socket, Line) of
        ok -> ask_until_dropped(Socket, Line);
        {error, Reason} -> Reason
    end.

%% This also holds for a client with one request whose answer is larger than the socket holds.
unread_answers_are_bounded_in_time(_) ->
    Server = serve(#{tools => [large_tool(), waiting_tool(~"wait")],
                     limits => #{send_timeout_ms => 100}}),
    Socket = connect(Server),
    send(Socket, stateless(0, ~"tools/call", #{~"name" => ~"wait"})),
    Monitor = monitor(process, await_call()),
    send(Socket, stateless(1, ~"tools/call", #{~"name" => ~"large"})),
    down(Monitor).

large_tool() ->
    #{name => ~"large", handler => fun(_, _) -> binary:copy(~"0123456789", 2_000_000) end}.

%% A client that has vanished is no client that has ended its input: its calls end. When the system
%% gives up a connection on which bytes are left to write, OTP reports the end of the input.
what_the_system_gives_up_is_lost(_) ->
    on_linux(fun is_lost/0).

on_linux(Run) ->
    case os:type() of
        {unix, linux} -> Run();
        _ -> {skip, "needs Linux"}
    end.

is_lost() ->
    Socket = connect(serve(#{tools => [large_tool(), waiting_tool(~"wait")]})),
    send(Socket, stateless(0, ~"tools/call", #{~"name" => ~"wait"})),
    Monitor = monitor(process, await_call()),
    %% TCP_USER_TIMEOUT, RFC 5482
    ok = inet:setopts(erlmcp_test_http:other_side(Socket), [{raw, 6, 18, <<50:32/native>>}]),
    send(Socket, stateless(1, ~"tools/call", #{~"name" => ~"large"})),
    down(Monitor).

%% Otherwise nobody would say why a client that does not read has lost its connection. Linux takes a
%% signed number.
the_system_waits_longer_than_the_process(_) ->
    on_linux(fun() ->
        [begin
             Socket = connect(serve(#{limits => #{send_timeout_ms => Milliseconds}})),
             #{} = result(ask_stateless(Socket, 1, ~"tools/list", #{})),
             {ok, [{raw, 6, 18, <<Waits:32/native-signed>>}]} =
                 inet:getopts(erlmcp_test_http:other_side(Socket), [{raw, 6, 18, 4}])
         end || {Milliseconds, Waits} <- [{100, 1_100}, {4_294_967_295, 2_147_483_647}]]
    end).

%% A connection with small messages has one heap and no old one, until it has much at once; and
%% again when it is quiet.
old_heaps_are_for_busy_connections(_) ->
    Who = #{name => ~"who", quick => true,
            handler => fun(_, _) -> list_to_binary(pid_to_list(self())) end},
    Socket = connect(serve(#{tools => [echo_tool(), Who]})),
    Asked = text(result(ask_stateless(Socket, 1, ~"tools/call", #{~"name" => ~"who"}))),
    Connection = list_to_pid(binary_to_list(Asked)),
    0 = sweeps_after(Connection),
    asked_much(Socket, Connection),
    quiet(Connection),
    [] = rest(Socket).

%% Until many of its calls end at once.
asked_much(Socket, Connection) ->
    Many = 200,
    Calls = [[json:encode(call(Id, ~"echo", #{~"text" => ~"x"})), $\n]
             || Id <- lists:seq(1, Many)],
    ok = gen_tcp:send(Socket, Calls),
    _ = recv_many(Socket, Many),
    sweeps_after(Connection) > 0 orelse asked_much(Socket, Connection).

quiet(Connection) ->
    case sweeps_after(Connection) of
        0 -> ok;
        _ -> receive after 20 -> quiet(Connection) end
    end.

sweeps_after(Pid) ->
    {garbage_collection, Settings} = process_info(Pid, garbage_collection),
    proplists:get_value(fullsweep_after, Settings).

%% A connection that is lost in the middle of its calls disturbs no other.
connections_live_when_a_neighbour_dies(_) ->
    Server = serve(#{tools => [waiting_tool(~"wait")]}),
    Lost = connect(Server),
    Kept = connect(Server),
    [send(Socket, stateless(1, ~"tools/call", #{~"name" => ~"wait"})) || Socket <- [Lost]],
    LostCall = await_call(),
    send(Kept, stateless(1, ~"tools/call", #{~"name" => ~"wait"})),
    KeptCall = await_call(),
    Monitor = monitor(process, LostCall),
    erlmcp_test_line:reset(Lost),
    down(Monitor),
    KeptCall ! {answer, ~"kept"},
    [#{~"id" := 1, ~"result" := Result}] = rest(Kept),
    ~"kept" = text(Result).

call(Id, Name, Arguments) ->
    stateless(Id, ~"tools/call", #{~"name" => Name, ~"arguments" => Arguments}).

echo(Text) ->
    #{~"name" => ~"echo", ~"arguments" => #{~"text" => Text}}.

text(#{~"content" := [#{~"type" := ~"text", ~"text" := Text}]}) -> Text.

down(Monitor) ->
    receive
        {'DOWN', Monitor, process, _, _} -> ok
    after ?PATIENCE ->
        error(still_there)
    end.

%% A client that loses its power or its network ends nothing. The system's probes find that out.
clients_that_vanish_are_found(_) ->
    Socket = connect(serve(#{})),
    #{} = result(ask_stateless(Socket, 1, ~"tools/list", #{})),
    {ok, [{keepalive, true}]} = inet:getopts(erlmcp_test_http:other_side(Socket), [keepalive]).
