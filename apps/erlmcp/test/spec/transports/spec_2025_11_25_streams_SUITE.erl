-module(spec_2025_11_25_streams_SUITE).
-moduledoc "Specification 2025-11-25, \"Streamable HTTP\", \"Cancellation\": a session's streams.".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([progress_comes_on_the_stream_of_its_call/1, get_needs_a_session/1,
         get_must_accept_a_stream/1, get_stream_begins_with_bytes/1, get_stream_tells_of_changes/1,
         changes_wait_for_the_stream/1, changes_are_sent_on_one_stream_only/1,
         one_get_stream_at_a_time/1, delete_ends_the_get_stream/1]).
-export([cancelled_ends_the_call/1, cancelled_ends_a_stream_without_response/1,
         cancelled_of_another_session_is_ignored/1, disconnect_does_not_cancel/1,
         delete_ends_the_running_calls/1, call_that_meets_delete_is_answered/1]).

-import(erlmcp_test_suite, [server/1]).
-import(erlmcp_test_http, [call/4, start_call/4, message/3, connect/1, send/4, close/1, response/1,
                           head/1, chunk/1, event/1, initialize/2, delete/2, get_stream/2,
                           get_stream/3, running/0, finish/2, ended/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    erlmcp_test_suite:cases(?MODULE).

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    [{server, start(#{})} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_http:stop(server(Config)).

start(Limits) ->
    erlmcp_test_http:start((erlmcp_test_http:definitions(self()))#{limits => Limits}).

revisions() ->
    [~"2024-11-05", ~"2025-03-26", ~"2025-06-18", ~"2025-11-25"].

in_session(Server, Session, Method, Params) ->
    call(Server, Method, Params, #{session => Session}).

%% "The server MAY send JSON-RPC requests and notifications before sending the JSON-RPC response.
%% These messages SHOULD relate to the originating client request." "After the JSON-RPC response has
%% been sent, the server SHOULD terminate the SSE stream."
progress_comes_on_the_stream_of_its_call(Config) ->
    Server = server(Config),
    [begin
         Session = initialize(Server, Revision),
         {Socket, Head} = get_stream(Server, Session),
         {200, _} = Head,
         #{headers := #{~"content-type" := ~"text/event-stream", ~"x-accel-buffering" := ~"no"},
           messages := Messages} =
             in_session(Server, Session, ~"tools/call",
                        #{name => ~"progress", '_meta' => #{progressToken => ~"t"}}),
         [1, 2, 3] = [maps:get(~"progress", Params)
                      || #{~"method" := ~"notifications/progress",
                           ~"params" := #{~"progressToken" := ~"t"} = Params} <- Messages],
         [_, _, _, #{~"id" := 1, ~"result" := #{}}] = Messages,
         #{status := 200, messages := [#{~"result" := #{}}]} =
             in_session(Server, Session, ~"tools/call", #{name => ~"progress"}),
         %% Nothing of it comes on the other stream, which ends empty.
         #{status := 204} = delete(Server, Session),
         fin = event(Socket),
         close(Socket)
     end || Revision <- revisions()].

%% "The server MUST either return Content-Type: text/event-stream in response to this HTTP GET, or
%% else return HTTP 405 Method Not Allowed."
get_needs_a_session(Config) ->
    Socket = connect(server(Config)),
    ok = send(Socket, ~"GET", [{~"accept", ~"text/event-stream"}], ~""),
    #{status := 405} = response(Socket),
    close(Socket),
    Session = initialize(server(Config), ~"2025-11-25"),
    {Stream, {200, #{~"content-type" := ~"text/event-stream", ~"x-accel-buffering" := ~"no"}}} =
        get_stream(server(Config), Session),
    close(Stream).

%% "The client MUST include an Accept header, listing text/event-stream as a supported content
%% type."
get_must_accept_a_stream(Config) ->
    Session = initialize(server(Config), ~"2025-11-25"),
    [begin
         {Socket, {406, _}} = get_stream(server(Config), Session, [{~"accept", Accept}]),
         close(Socket)
     end || Accept <- [~"application/json", ~"text/html", ~"*/*;q=0"]],
    {Stream, {200, _}} = get_stream(server(Config), Session, [{~"accept", ~"*/*"}]),
    close(Stream).

%% A proxy may keep the headers until a first byte comes with them, and some clients wait for the
%% headers: nginx, which speaks HTTP/2 to the server, and the Go SDK.
get_stream_begins_with_bytes(Config) ->
    {Stream, {200, _}} = get_stream(server(Config), initialize(server(Config), ~"2025-11-25")),
    ~":\n\n" = chunk(Stream),
    close(Stream).

changes() ->
    Handler = fun(_, _) -> ~"new" end,
    [{tool, ~"new", #{name => ~"new", handler => Handler}, ~"notifications/tools/list_changed"},
     {prompt, ~"new", #{name => ~"new", handler => Handler}, ~"notifications/prompts/list_changed"},
     {resource, ~"new://1", #{uri => ~"new://1", name => ~"n", handler => Handler},
      ~"notifications/resources/list_changed"},
     {resource_template, ~"new://{id}",
      #{uri_template => ~"new://{id}", name => ~"n", handler => Handler},
      ~"notifications/resources/list_changed"}].

%% "When the list of available tools changes, servers that declared the listChanged capability
%% SHOULD send a notification", on the GET stream.
get_stream_tells_of_changes(Config) ->
    #{pid := Pid} = Server = server(Config),
    {Stream, {200, _}} = get_stream(Server, initialize(Server, ~"2025-11-25")),
    [begin
         ok = erlmcp:add(Pid, Kind, Definition),
         {event, #{~"jsonrpc" := ~"2.0", ~"method" := Method} = Added} = event(Stream),
         false = is_map_key(~"id", Added),
         ok = erlmcp:remove(Pid, Kind, Key),
         {event, #{~"method" := Method}} = event(Stream),
         %% What changes nothing tells nothing: the next event is the next change's.
         {error, not_found} = erlmcp:remove(Pid, Kind, Key)
     end || {Kind, Key, Definition, Method} <- changes()],
    close(Stream).

changes_wait_for_the_stream(Config) ->
    #{pid := Pid} = Server = server(Config),
    Session = initialize(Server, ~"2025-11-25"),
    [begin
         ok = erlmcp:add(Pid, Kind, Definition),
         ok = erlmcp:remove(Pid, Kind, Key)
     end || {Kind, Key, Definition, _} <- changes(), Kind =:= tool orelse Kind =:= prompt],
    {Stream, {200, _}} = get_stream(Server, Session),
    %% Each once: a list that changed twice is read once.
    [~"notifications/prompts/list_changed", ~"notifications/tools/list_changed"] =
        lists:sort([Method || _ <- [1, 2], {event, #{~"method" := Method}} <- [event(Stream)]]),
    #{status := 204} = delete(Server, Session),
    fin = event(Stream),
    close(Stream).

%% "The server MUST send each of its JSON-RPC messages on only one of the connected streams; that
%% is, it MUST NOT broadcast the same message across multiple streams."
changes_are_sent_on_one_stream_only(Config) ->
    #{pid := Pid} = Server = server(Config),
    Session = initialize(Server, ~"2025-11-25"),
    {Get, {200, _}} = get_stream(Server, Session),
    Post = connect(Server),
    {Headers, Body} = message(~"tools/call", #{name => ~"stream", '_meta' => #{progressToken => 1}},
                              #{session => Session}),
    ok = send(Post, ~"POST", Headers, Body),
    {200, _} = head(Post),
    {event, #{~"method" := ~"notifications/progress"}} = event(Post),
    {event, #{~"method" := ~"notifications/message"}} = event(Post),
    {Call, _} = running(),
    [{tool, _, New, Changed} | _] = changes(),
    ok = erlmcp:add(Pid, tool, New),
    {event, #{~"method" := Changed}} = event(Get),
    finish(Call, ~"over"),
    {event, #{~"id" := 1, ~"result" := #{}}} = event(Post),
    fin = event(Post),
    close(Post),
    close(Get).

%% A session has one stream at a time; the one that was closed can be opened anew.
one_get_stream_at_a_time(Config) ->
    #{pid := Pid} = Server = server(Config),
    Session = initialize(Server, ~"2025-11-25"),
    {First, {200, _}} = get_stream(Server, Session),
    {Second, {409, _}} = get_stream(Server, Session),
    close(Second),
    {Other, {200, _}} = get_stream(Server, initialize(Server, ~"2025-11-25")),
    close(Other),
    close(First),
    Again = reopened(Server, Session, 1500),
    [{tool, _, New, Changed} | _] = changes(),
    ok = erlmcp:add(Pid, tool, New),
    {event, #{~"method" := Changed}} = event(Again),
    close(Again).

%% The server sees the close when it does; nothing tells the client.
reopened(Server, Session, Tries) when Tries > 0 ->
    case get_stream(Server, Session) of
        {Socket, {200, _}} ->
            Socket;
        {Socket, {409, _}} ->
            close(Socket),
            receive after 20 -> reopened(Server, Session, Tries - 1) end
    end.

%% "The server MAY close the SSE stream at any time": when its session ends.
delete_ends_the_get_stream(Config) ->
    Session = initialize(server(Config), ~"2025-11-25"),
    {Stream, {200, _}} = get_stream(server(Config), Session),
    #{status := 204} = delete(server(Config), Session),
    fin = event(Stream),
    close(Stream).

cancel(Server, Session, Id) ->
    Params = #{requestId => Id, reason => ~"why"},
    #{status := 202} =
        call(Server, ~"notifications/cancelled", Params, #{session => Session, id => none}),
    ok.

%% "Receivers of cancellation notifications SHOULD: stop processing the cancelled request; free
%% associated resources; not send a response for the cancelled request."
cancelled_ends_the_call(Config) ->
    Server = server(Config),
    [begin
         Session = initialize(Server, Revision),
         {Socket, Call} = start_call(Server, Session, ~"wait", 7),
         {Beside, Other} = start_call(Server, Session, ~"wait", ~"7"),
         %% Of an unknown id, or one of another type, it is ignored.
         ok = cancel(Server, Session, 8),
         ok = cancel(Server, Session, 7),
         _ = ended(Call),
         #{status := 200, messages := []} = response(Socket),
         close(Socket),
         finish(Other, ~"undisturbed"),
         #{messages := [#{~"id" := ~"7", ~"result" := #{}}]} = response(Beside),
         close(Beside),
         %% It comes late: the call has ended.
         ok = cancel(Server, Session, ~"7")
     end || Revision <- revisions()].

cancelled_ends_a_stream_without_response(Config) ->
    Server = server(Config),
    Session = initialize(Server, ~"2025-11-25"),
    {Socket, Call} = start_call(Server, Session, ~"stream", 7),
    {200, _} = head(Socket),
    {event, #{~"method" := ~"notifications/progress"}} = event(Socket),
    {event, #{~"method" := ~"notifications/message"}} = event(Socket),
    ok = cancel(Server, Session, 7),
    _ = ended(Call),
    fin = event(Socket),
    close(Socket).

%% "Cancellation notifications MUST only reference requests that were previously issued in the same
%% direction", in the same session.
cancelled_of_another_session_is_ignored(Config) ->
    Server = server(Config),
    Session = initialize(Server, ~"2025-11-25"),
    {Socket, Call} = start_call(Server, Session, ~"wait", 7),
    Other = initialize(Server, ~"2025-11-25"),
    {Beside, Cancelled} = start_call(Server, Other, ~"wait", 7),
    ok = cancel(Server, Other, 7),
    _ = ended(Cancelled),
    finish(Call, ~"undisturbed"),
    #{messages := [#{~"id" := 7, ~"result" := #{}}]} = response(Socket),
    close(Socket),
    close(Beside).

%% "Disconnection SHOULD NOT be interpreted as the client cancelling its request."
disconnect_does_not_cancel(Config) ->
    Server = server(Config),
    Session = initialize(Server, ~"2025-11-25"),
    {Socket, Call} = start_call(Server, Session, ~"wait", 7),
    {Streaming, Streamed} = start_call(Server, Session, ~"stream", 8),
    Monitors = [monitor(process, Pid) || Pid <- [Call, Streamed]],
    close(Socket),
    close(Streaming),
    %% Time for the server to notice, and to be wrong.
    receive
        {'DOWN', _, process, _, _} = Down -> error(Down)
    after 300 -> ok
    end,
    finish(Call, ~"done"),
    finish(Streamed, ~"done"),
    [receive {'DOWN', Monitor, process, _, normal} -> ok after 30_000 -> error(alive) end
     || Monitor <- Monitors],
    #{status := 200} = in_session(Server, Session, ~"tools/list", #{}).

%% Each client gets an answer, in the stream of its call if there is one.
delete_ends_the_running_calls(Config) ->
    Server = server(Config),
    Session = initialize(Server, ~"2025-11-25"),
    {Socket, Call} = start_call(Server, Session, ~"wait", 7),
    {Streaming, Streamed} = start_call(Server, Session, ~"stream", 8),
    {200, _} = head(Streaming),
    {event, #{~"method" := ~"notifications/progress"}} = event(Streaming),
    {event, #{~"method" := ~"notifications/message"}} = event(Streaming),
    #{status := 204} = delete(Server, Session),
    _ = ended(Call),
    _ = ended(Streamed),
    {event, #{~"id" := 8, ~"error" := _}} = event(Streaming),
    fin = event(Streaming),
    close(Streaming),
    #{status := 200, messages := [#{~"id" := 7, ~"error" := Error}]} = response(Socket),
    #{~"message" := ~"the session has ended, and this request with it"} = Error,
    close(Socket).

%% Either it was served, or ended with its session, or came too late; it never waits for nothing.
call_that_meets_delete_is_answered(Config) ->
    Server = server(Config),
    Sockets = [connect(Server) || _ <- lists:seq(1, 8)],
    Deleting = connect(Server),
    [begin
         {Id, _} = Session = initialize(Server, ~"2025-11-25"),
         {Headers, Body} = message(~"tools/call", #{name => ~"progress"}, #{session => Session}),
         [ok = send(Socket, ~"POST", Headers, Body) || Socket <- Sockets],
         ok = send(Deleting, ~"DELETE", [{~"mcp-session-id", Id}], ~""),
         [case response(Socket) of
              #{status := 200, messages := [#{~"id" := 1, ~"result" := _}]} -> ok;
              #{status := 200, messages := [#{~"id" := 1, ~"error" := _}]} -> ok;
              #{status := 404, messages := [#{~"id" := 1, ~"error" := _}]} -> ok
          end || Socket <- Sockets],
         #{status := 204} = response(Deleting)
     end || _ <- lists:seq(1, 1_000)],
    [close(Socket) || Socket <- [Deleting | Sockets]].
