-module(spec_2026_07_28_stdio_SUITE).
-moduledoc """
Specification 2026-07-28, "Transports / stdio": `bin/erlmcp` as a client launches it, with a pipe
for each of its streams.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([stdout_is_messages_only/1, lines_have_no_newlines_in_them/1, eras_share_a_process/1,
         what_was_accepted_is_answered/1, end_of_input_ends_the_process/1,
         unterminated_last_line_is_a_message/1, sigterm_ends_the_process/1,
         sigterm_ends_it_while_calls_run/1, sigterm_ends_it_while_nobody_reads/1,
         cancelled_requests_are_not_answered/1,
         what_a_cancelled_call_asked_is_taken_back/1, oversize_is_refused_before_it_ends/1,
         garbage_is_a_parse_error/1, logs_go_to_stderr/1, closed_stdout_ends_the_process/1,
         large_answers_arrive_whole/1, thousand_at_once_are_answered/1, late_readers_miss_nothing/1,
         unread_stderr_holds_up_nothing/1,
         unread_logs_are_dropped/1, handlers_print_elsewhere/1,
         handlers_print_elsewhere_with_any_logger/1, the_client_is_the_listeners_principal/1]).

-define(PATIENCE, 30_000).
%% Milliseconds that a process which is asked to end may take. It takes some 30, on a machine that
%% does nothing else.
-define(PROMPTLY, 20_000).
-define(META, #{~"io.modelcontextprotocol/protocolVersion" => ~"2026-07-28",
                ~"io.modelcontextprotocol/clientCapabilities" => #{}}).

-record(server, {port :: port(), input :: file:fd() | closed, stderr :: file:filename()}).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [stdout_is_messages_only, lines_have_no_newlines_in_them, eras_share_a_process,
     what_was_accepted_is_answered, end_of_input_ends_the_process,
     unterminated_last_line_is_a_message, sigterm_ends_the_process,
     sigterm_ends_it_while_calls_run, sigterm_ends_it_while_nobody_reads,
     cancelled_requests_are_not_answered, what_a_cancelled_call_asked_is_taken_back,
     oversize_is_refused_before_it_ends,
     garbage_is_a_parse_error, logs_go_to_stderr, closed_stdout_ends_the_process,
     large_answers_arrive_whole, thousand_at_once_are_answered, late_readers_miss_nothing,
     unread_stderr_holds_up_nothing,
     unread_logs_are_dropped, handlers_print_elsewhere, handlers_print_elsewhere_with_any_logger,
     the_client_is_the_listeners_principal].

init_per_suite(Config) ->
    Source = proplists:get_value(source, erlmcp:module_info(compile)),
    Program = program(filename:dirname(Source)),
    %% It builds first where that is due.
    "erlmcp " ++ _ = os:cmd(Program ++ " version 2>/dev/null"),
    [{program, Program} | Config].

program(Folder) ->
    Program = filename:join([Folder, "bin", "erlmcp"]),
    case filelib:is_regular(Program) of
        true -> Program;
        false when Folder =/= "/" -> program(filename:dirname(Folder))
    end.

end_per_suite(_) ->
    ok.

%% "The server MUST NOT write anything to its stdout that is not a valid MCP message."; "The server
%% MUST NOT write JSON-RPC requests to stdout." Also before the first message, and at the end.
stdout_is_messages_only(Config) ->
    Server = launch(Config),
    send(Server, [stateless(1, ~"server/discover", #{}), stateless(2, ~"tools/list", #{}),
                  initialize(3, ~"2025-11-25"),
                  notification(~"notifications/initialized", #{})]),
    send(Server, [call(4, ~"echo", #{~"text" => ~"x"}), call(5, ~"crash", #{}),
                  call(6, ~"test_tool_with_progress", #{}, #{~"progressToken" => 1}),
                  call(7, ~"no such", #{}), ~"garbage", request(8, ~"ping", #{}),
                  stateless(9, ~"prompts/list", #{}), stateless(10, ~"resources/list", #{}),
                  stateless(11, ~"no/such", #{})]),
    {0, Messages} = finish(Server),
    [true = is_message(Message) || Message <- Messages],
    true = lists:seq(1, 11) =:= lists:sort([Id || #{~"id" := Id} <- Messages]),
    [0, 50, 100] = [Progress || #{~"method" := ~"notifications/progress",
                                  ~"params" := #{~"progress" := Progress}} <- Messages].

is_message(#{~"jsonrpc" := ~"2.0", ~"id" := _, ~"result" := #{}}) -> true;
is_message(#{~"jsonrpc" := ~"2.0", ~"error" := #{~"code" := _, ~"message" := _}}) -> true;
is_message(#{~"jsonrpc" := ~"2.0", ~"method" := _} = Message) -> not is_map_key(~"id", Message).

%% "Messages are delimited by newlines, and MUST NOT contain embedded newlines."
lines_have_no_newlines_in_them(Config) ->
    Text = <<"a\nb\r\nc\r", 0, "\x{2028}\x{85}"/utf8, "\\n">>,
    Server = launch(Config),
    send(Server, [call(Text, ~"echo", #{~"text" => Text})]),
    %% Each line that comes is decoded for itself.
    {0, [#{~"id" := Text, ~"result" := Result}]} = finish(Server),
    Text = text(Result).

%% Versioning: "A dual-era server MAY serve both eras concurrently on the same endpoint or process."
eras_share_a_process(Config) ->
    Server = launch(Config),
    #{~"result" := #{~"supportedVersions" := [~"2026-07-28"]}} =
        ask(Server, stateless(1, ~"server/discover", #{})),
    #{~"error" := #{~"code" := -32600}} = ask(Server, request(2, ~"tools/list", #{})),
    #{~"result" := #{~"protocolVersion" := ~"2025-03-26"}} =
        ask(Server, initialize(3, ~"2025-03-26")),
    [begin
         #{~"result" := Old} = ask(Server, request(4, ~"tools/list", #{})),
         false = is_map_key(~"resultType", Old),
         #{~"result" := #{~"resultType" := ~"complete"}} =
             ask(Server, stateless(5, ~"tools/list", #{})),
         send(Server, [[request(6, ~"ping", #{})]]),
         [#{~"id" := 6}] = receive_message(Server)
     end || _ <- [1, 2, 3]],
    {0, []} = finish(Server).

%% A client that closes our input still gets the answers to what it sent; then the process ends.
what_was_accepted_is_answered(Config) ->
    Server = launch(Config),
    #{~"id" := 0} = ask(Server, stateless(0, ~"tools/list", #{})),
    send(Server, [call(Id, ~"slow_tool", #{~"ms" => 300}) || Id <- [1, 2, 3]]),
    {0, Answers} = within(300 + ?PROMPTLY, fun() -> finish(Server) end),
    [1, 2, 3] = lists:sort([Id || #{~"id" := Id, ~"result" := _} <- Answers]).

%% "Servers SHOULD exit promptly when their standard input is closed or reads return end-of-file."
end_of_input_ends_the_process(Config) ->
    Idle = launch(Config),
    #{~"id" := 1} = ask(Idle, stateless(1, ~"tools/list", #{})),
    {0, []} = within(?PROMPTLY, fun() -> finish(Idle) end),
    %% Also before it was sent anything.
    {0, []} = finish(launch(Config)).

%% The last message needs no newline after it.
unterminated_last_line_is_a_message(Config) ->
    Server = launch(Config),
    write(Server, json:encode(stateless(1, ~"tools/list", #{}))),
    {0, [#{~"id" := 1, ~"result" := _}]} = finish(Server).

%% "forced termination typically escalates from SIGTERM": the process ends as if asked nicely.
sigterm_ends_the_process(Config) ->
    Server = launch(Config),
    #{~"id" := 1} = ask(Server, stateless(1, ~"tools/list", #{})),
    {0, []} = within(?PROMPTLY, fun() -> terminate(Server) end).

%% It does not wait for the calls that run.
sigterm_ends_it_while_calls_run(Config) ->
    Server = launch(Config),
    send(Server, [call(1, ~"slow_tool", #{~"ms" => 60_000})]),
    #{~"id" := 2} = ask(Server, stateless(2, ~"tools/list", #{})),
    {0, []} = within(?PROMPTLY, fun() -> terminate(Server) end).

within(Limit, Act) ->
    Start = erlang:monotonic_time(millisecond),
    Result = Act(),
    Took = erlang:monotonic_time(millisecond) - Start,
    {_, true} = {Took, Took < Limit},
    Result.

%% What nobody reads does not keep the process; its status may say that something was lost.
sigterm_ends_it_while_nobody_reads(Config) ->
    Stdout = fifo(Config),
    Told = fifo(Config),
    Server = launch(Config, #{
        script => "\"$@\" <\"$IN\" >\"$OUT\" 2>\"$ERR\" & echo $! >\"$TOLD\"; wait $!;"
                  " echo ended >\"$TOLD\"",
        env => [{"OUT", Stdout}, {"TOLD", Told}]}),
    {ok, Output} = file:open(Stdout, [raw, read]),
    Pid = told(Told),
    %% More than a pipe holds; when the first of it was read, the rest waits.
    send(Server, [call(Id, ~"echo", #{~"text" => binary:copy(~"x", 100_000)}) || Id <- [1, 2, 3]]),
    {ok, [_ | _]} = file:read(Output, 1000),
    "" = os:cmd("kill -TERM " ++ Pid),
    "ended" = told(Told),
    ok = file:close(Output).

%% A line that a script writes.
told(Fifo) ->
    Port = open_port({spawn_executable, "/bin/cat"}, [{args, [Fifo]}, {line, 100}]),
    receive
        {Port, {data, {eol, Line}}} -> Line
    after ?PATIENCE ->
        ct:fail(still_running)
    end.

%% "Servers SHOULD stop work on a cancelled request as soon as practical and MUST NOT send any
%% further messages for it." If it still ran, the process would wait for it before it ends.
cancelled_requests_are_not_answered(Config) ->
    Server = launch(Config),
    send(Server, [call(~"cancelled", ~"slow_tool", #{~"ms" => 60_000}),
                  call(~"kept", ~"slow_tool", #{~"ms" => 100}),
                  notification(~"notifications/cancelled", #{~"requestId" => ~"cancelled"}),
                  notification(~"notifications/cancelled", #{~"requestId" => ~"unknown"})]),
    {0, [#{~"id" := ~"kept", ~"result" := _}]} = finish(Server).

%% 2025-11-25, Lifecycle: a sender that stops waiting for a response "SHOULD issue a cancellation
%% notification for that request"; 2026-07-28, where nothing is asked on the way, has none.
what_a_cancelled_call_asked_is_taken_back(Config) ->
    Server = launch(Config),
    #{~"params" := Opening} = Initialize = initialize(1, ~"2025-11-25"),
    Able = Opening#{~"capabilities" := #{~"elicitation" => #{}}},
    #{~"result" := _} = ask(Server, Initialize#{~"params" := Able}),
    send(Server, [request(2, ~"tools/call", #{~"name" => ~"test_elicitation",
                                              ~"arguments" => #{~"message" => ~"Who?"}})]),
    #{~"method" := ~"elicitation/create", ~"id" := Id} = receive_message(Server),
    send(Server, [notification(~"notifications/cancelled", #{~"requestId" => 2})]),
    #{~"method" := ~"notifications/cancelled", ~"params" := #{~"requestId" := Id}} =
        receive_message(Server),
    %% The answer comes too late, and is nothing to anybody.
    send(Server, [#{~"jsonrpc" => ~"2.0", ~"id" => Id,
                    ~"result" => #{~"action" => ~"decline"}}]),
    #{~"result" := #{}} = ask(Server, request(3, ~"ping", #{})),
    {0, []} = finish(Server).

%% Refusals, 1068: refused as soon as it is over the limit, without an id, and the next message is
%% served. A message of the limit's size is one.
oversize_is_refused_before_it_ends(Config) ->
    Server = launch(Config),
    {message_bytes, Limit, _} = lists:keyfind(message_bytes, 1, erlmcp_server_options:limits()),
    Fitting = iolist_to_binary(json:encode(stateless(1, ~"tools/list", #{}))),
    send(Server, [[Fitting, binary:copy(~" ", Limit - byte_size(Fitting))]]),
    #{~"id" := 1, ~"result" := _} = receive_message(Server),
    write(Server, binary:copy(~"x", Limit + 1)),
    #{~"error" := #{~"code" := 1068, ~"data" := #{~"limit" := Limit}}} = Refused =
        receive_message(Server),
    false = is_map_key(~"id", Refused),
    write(Server, binary:copy(~"x", 100_000)),
    write(Server, ~"\n"),
    #{~"id" := 2, ~"result" := _} = ask(Server, stateless(2, ~"tools/list", #{})),
    {0, []} = finish(Server).

%% Messages: an error has its request's id, "except in error cases where the ID could not be read
%% due a malformed request". Blank lines are nothing.
garbage_is_a_parse_error(Config) ->
    Server = launch(Config),
    Lines = [~"hello", ~"{", <<255, 254>>, ~'{"jsonrpc":"2.0","id":1,"method":"ping"',
             <<"{\"jsonrpc\":\"2.0\",\"id\":\"", 16#c3, 16#28, "\",\"method\":\"ping\"}">>,
             %% Nobody but its client can write here, and what a script prints ends no server.
             ~"GET / HTTP/1.1"],
    send(Server, [~"", ~"  ", ~"\r" | Lines]),
    #{~"id" := 1} = ask_after(length(Lines), Server),
    {0, []} = finish(Server).

ask_after(0, Server) ->
    ask(Server, stateless(1, ~"tools/list", #{}));
ask_after(Refusals, Server) ->
    #{~"error" := #{~"code" := -32700}} = Refused = receive_message(Server),
    false = is_map_key(~"id", Refused),
    ask_after(Refusals - 1, Server).

%% "The server MAY write UTF-8 strings to stderr for any logging purposes".
logs_go_to_stderr(Config) ->
    Server = launch(Config),
    #{~"error" := #{~"code" := -32603, ~"data" := #{~"incident" := Incident}}} =
        ask(Server, call(1, ~"crash", #{})),
    {0, []} = finish(Server),
    {ok, Log} = file:read_file(Server#server.stderr),
    %% With what the client was given to find it.
    {_, _} = binary:match(Log, Incident),
    {_, _} = binary:match(Log, ~"asked_to_crash").

%% A client that no longer reads is gone, even if our input is open still.
closed_stdout_ends_the_process(Config) ->
    Told = fifo(Config),
    Server = launch(Config, #{script => "\"$@\" <\"$IN\" 2>\"$ERR\"; echo $? >\"$TOLD\"",
                              env => [{"TOLD", Told}]}),
    #{~"id" := 1} = ask(Server, stateless(1, ~"tools/list", #{})),
    true = port_close(Server#server.port),
    send(Server, [stateless(2, ~"tools/list", #{})]),
    "0" = told(Told).

%% What was written leaves before the process ends, however much it is.
large_answers_arrive_whole(Config) ->
    Server = launch(Config),
    Text = binary:copy(~"0123456789", 300_000),
    send(Server, [call(Id, ~"echo", #{~"text" => Text}) || Id <- [1, 2, 3]]),
    {0, Answers} = finish(Server),
    [1, 2, 3] = lists:sort([Id || #{~"id" := Id, ~"result" := Result} <- Answers,
                                  text(Result) =:= Text]).

%% All that is sent at once is answered, however much may run at once.
thousand_at_once_are_answered(Config) ->
    Server = launch(Config),
    Ids = lists:seq(1, 1000),
    send(Server, [call(Id, ~"echo", #{~"text" => ~"x"}) || Id <- Ids]),
    {0, Answers} = finish(Server),
    true = Ids =:= lists:sort([Id || #{~"id" := Id, ~"result" := _} <- Answers]).

%% Also to a client that reads them late.
late_readers_miss_nothing(Config) ->
    Server = launch(Config, #{script => "\"$@\" <\"$IN\" 2>\"$ERR\" | { sleep 1; cat; }"}),
    send(Server, [call(Id, ~"echo", #{~"text" => binary:copy(~"x", 100_000)}) || Id <- [1, 2, 3]]),
    {0, Answers} = finish(Server),
    [1, 2, 3] = lists:sort([Id || #{~"id" := Id, ~"result" := _} <- Answers]).

%% "The client MAY capture, forward, or ignore the server's stderr output": one that never reads it
%% is served all the same.
unread_stderr_holds_up_nothing(Config) ->
    Server = launch_unread("everything", [], Config),
    %% Each logs about a kilobyte; a pipe holds 64.
    [#{~"id" := Id, ~"error" := #{~"code" := -32603}} = ask(Server, call(Id, ~"crash", #{}))
     || Id <- lists:seq(1, 300)],
    #{~"id" := ~"after", ~"result" := _} = ask(Server, stateless(~"after", ~"tools/list", #{})),
    ok = terminate_unread(Server).

%% Nor does a handler wait that logs more at once than the writer of the log keeps up with.
unread_logs_are_dropped(Config) ->
    Server = launch_unread("erlmcp_test_noisy", noisy_path(), Config),
    #{~"result" := _} = ask(Server, call(1, ~"flood", #{})),
    ok = terminate_unread(Server).

%% OTP 27 says with 255 that it could not write to stderr what it had to. Later ones drop it.
terminate_unread(Server) ->
    {Status, []} = terminate(Server),
    true = lists:member(Status, [0, 255]),
    ok.

launch_unread(Module, Environment, Config) ->
    Stderr = fifo(Config),
    launch(Config, #{script => "exec \"$@\" <\"$IN\" 2>\"$UNREAD\"",
                     command => command(Module, Config),
                     env => [{"UNREAD", Stderr} | Environment],
                     opened => fun() -> {ok, _} = file:open(Stderr, [raw, read]) end}).

%% Whatever the user's code and its libraries print, it does not become a message.
handlers_print_elsewhere(Config) ->
    Server =
        launch(Config, #{command => command("erlmcp_test_noisy", Config), env => noisy_path()}),
    Log = prints_elsewhere([~"display"], Server),
    {_, _} = binary:match(Log, ~"displayed").

%% The same in a node that somebody else set up: OTP's logger writes to standard output unless it is
%% told otherwise. (There, erlang:display/1 cannot be kept from it.)
handlers_print_elsewhere_with_any_logger(Config) ->
    Log = prints_elsewhere([], launch_node(Config)),
    {_, _} = binary:match(Log, ~"noise after the start").

noisy_path() ->
    [{"ERL_AFLAGS", "-pa " ++ filename:dirname(code:which(erlmcp_test_noisy))}].

launch_node(Config) ->
    Folders =
        [filename:dirname(code:which(erlmcp_test_noisy)), filename:dirname(code:which(erlmcp))],
    Erl = os:find_executable("erl"),
    launch(Config, #{command => [Erl, "-noinput", "-pa" | Folders] ++ ["-s", "erlmcp_test_noisy"]}).

the_client_is_the_listeners_principal(Config) ->
    Server = launch_node(Config),
    #{~"result" := Stateless} = ask(Server, call(1, ~"whoami", #{})),
    #{~"result" := #{}} = ask(Server, initialize(2, ~"2025-11-25")),
    #{~"result" := Session} =
        ask(Server, request(3, ~"tools/call", #{~"name" => ~"whoami", ~"arguments" => #{}})),
    [~"parent", ~"parent"] = [text(Result) || Result <- [Stateless, Session]],
    {0, []} = finish(Server).

prints_elsewhere(More, Server) ->
    Quiet = [~"io", ~"user", ~"spawned", ~"logger", ~"application", ~"reads" | More],
    %% One after the other: `erlang:display/1` writes its octets one by one.
    Answers = [ask(Server, Message)
               || Message <- [call(Name, Name, #{}) || Name <- [~"crash" | Quiet]]
                             ++ [stateless(~"read", ~"resources/read",
                                           #{~"uri" => ~"noise://here"})]],
    {0, Rest} = finish(Server),
    Lines = Answers ++ Rest,
    [] = [Noise || {not_a_message, Noise} <- Lines],
    [] = Quiet -- [Id || #{~"id" := Id, ~"result" := #{~"content" := [#{~"text" := ~"quiet"}]}}
                             <- Lines],
    %% And two that are none of those.
    true = length(Lines) =:= length(Quiet) + 2,
    {ok, Log} = file:read_file(Server#server.stderr),
    [{Noise, {_, _}} = {Noise, binary:match(Log, Noise)}
     || Noise <- [~"noise by format", ~"noise by put_chars", ~"noise on user\n",
                  ~"noise on user's process", ~"noise in the log", ~"noise in the old log",
                  ~"noise on the group leader", ~"noise_in_a_crash"]],
    Log.

%% A server with a pipe for each of its streams. Its standard input is a FIFO, which can be closed
%% without closing the others. `script` runs the `command` with it; `opened` opens the FIFOs that
%% the script has beside it.
launch(Config) ->
    launch(Config, #{}).

launch(Config, Given) ->
    #{script := Script, command := Command, env := Environment, opened := Open} =
        maps:merge(#{script => "exec \"$@\" <\"$IN\" 2>\"$ERR\"",
                     command => command("everything", Config), env => [],
                     opened => fun() -> ok end},
                   Given),
    Stdin = fifo(Config),
    Stderr = fresh(Config, "stderr"),
    Port = open_port({spawn_executable, "/bin/sh"},
                     [{args, ["-c", Script, "sh" | Command]}, {line, 65536}, binary, exit_status,
                      {env, [{"IN", Stdin}, {"ERR", Stderr} | Environment]}]),
    {ok, Input} = file:open(Stdin, [raw, write, binary]),
    _ = Open(),
    #server{port = Port, input = Input, stderr = Stderr}.

command(Module, Config) ->
    [proplists:get_value(program, Config), "serve", Module, "--stdio"].

fifo(Config) ->
    Name = fresh(Config, "fifo"),
    "" = os:cmd("mkfifo " ++ Name),
    Name.

fresh(Config, Kind) ->
    filename:join(proplists:get_value(priv_dir, Config),
                  Kind ++ integer_to_list(erlang:unique_integer([positive]))).

write(#server{input = Input}, Bytes) ->
    ok = file:write(Input, Bytes).

%% A map is encoded; bytes go out as they are.
send(Server, Messages) ->
    Lines = [iolist_to_binary(line(Message)) || Message <- Messages],
    [ok = erlmcp_test_wire:sent(Server#server.port, #{}, Line) || Line <- Lines],
    write(Server, [[Line, $\n] || Line <- Lines]).

line(Message) when is_map(Message) -> json:encode(Message);
line([Message | _] = Batch) when is_map(Message) -> json:encode(Batch);
line(Bytes) -> Bytes.

ask(Server, #{~"id" := Id} = Request) ->
    send(Server, [Request]),
    #{~"id" := Id} = receive_message(Server).

receive_message(#server{port = Port} = Server) ->
    receive_message(Port, [], Server).

receive_message(Port, Parts, Server) ->
    receive
        {Port, {data, {noeol, Part}}} ->
            receive_message(Port, [Part | Parts], Server);
        {Port, {data, {eol, Part}}} ->
            message(Port, Parts, Part);
        {Port, {exit_status, Status}} ->
            ct:fail({ended, Status, file:read_file(Server#server.stderr)})
    after ?PATIENCE ->
        ct:fail({no_message, Parts})
    end.

message(Port, Parts, Last) ->
    Line = iolist_to_binary(lists:reverse(Parts, [Last])),
    try json:decode(Line) of
        Message -> erlmcp_test_wire:received(Port, Message)
    catch
        error:_ -> {not_a_message, Line}
    end.

%% Closes its input: its exit status, and all that it still had to say.
finish(#server{input = Input} = Server) ->
    ok = file:close(Input),
    until_exit(Server, []).

%% The same with a signal.
terminate(#server{port = Port} = Server) ->
    {os_pid, Pid} = erlang:port_info(Port, os_pid),
    "" = os:cmd("kill -TERM " ++ integer_to_list(Pid)),
    until_exit(Server, []).

until_exit(#server{port = Port} = Server, Parts) ->
    receive
        {Port, {data, {noeol, Part}}} ->
            until_exit(Server, [Part | Parts]);
        {Port, {data, {eol, Part}}} ->
            Message = message(Port, Parts, Part),
            {Status, Messages} = until_exit(Server, []),
            {Status, [Message | Messages]};
        {Port, {exit_status, Status}} ->
            %% No line without an end.
            [] = Parts,
            {Status, []}
    after ?PATIENCE ->
        ct:fail(still_running)
    end.

request(Id, Method, Params) ->
    #{~"jsonrpc" => ~"2.0", ~"id" => Id, ~"method" => Method, ~"params" => Params}.

stateless(Id, Method, Params) ->
    request(Id, Method, Params#{~"_meta" => ?META}).

call(Id, Name, Arguments) ->
    call(Id, Name, Arguments, #{}).

call(Id, Name, Arguments, Meta) ->
    request(Id, ~"tools/call", #{~"name" => Name, ~"arguments" => Arguments,
                                 ~"_meta" => maps:merge(?META, Meta)}).

notification(Method, Params) ->
    #{~"jsonrpc" => ~"2.0", ~"method" => Method, ~"params" => Params}.

initialize(Id, Version) ->
    request(Id, ~"initialize", #{~"protocolVersion" => Version, ~"capabilities" => #{},
                                 ~"clientInfo" => #{~"name" => ~"n", ~"version" => ~"1"}}).

text(#{~"content" := [#{~"type" := ~"text", ~"text" := Text}]}) -> Text.
