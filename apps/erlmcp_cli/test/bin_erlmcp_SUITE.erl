-module(bin_erlmcp_SUITE).
-moduledoc "`bin/erlmcp` as its users meet it: a program with arguments, output and exit status.".

-import(erlmcp_test_program, [erlmcp/2, main/1, run/3, serve/2, stop/2, url/1, one_line/1]).

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2]).
-export([version_is_printed/1, help_names_every_command/1, wrong_use_exits_2/1,
         arguments_that_are_no_text_exit_2/1,
         wrong_use_says_what_is_right/1, unknown_module_exits_1/1, unusable_host_exits_1/1,
         nobody_there_exits_3/1,
         not_an_mcp_endpoint_exits_1/1, sigterm_ends_serve_with_0/1, sigterm_waits_for_answers/1,
         a_second_sigterm_does_not/1, sigint_ends_serve/1,
         tcp_is_served_too/1, sse_is_served_too/1, clients_behind_a_proxy_are_told_apart/1,
         wrong_proxies_exit_1/1, ipv6_is_served/1, stdio_is_served/1,
         stdio_stdout_is_clean/1, other_folder_is_kept/1]).
-export([pasted_curl_works/1, pasted_commands_work/1, list_shows_what_is_offered/1,
         list_json_is_json/1, call_prints_text/1, call_prints_unicode/1, call_describes_media/1,
         call_prints_structure/1, call_json_is_the_result/1, tool_error_exits_1/1,
         crash_exits_1/1, unknown_tool_exits_1/1, bad_arguments_exit_2/1, deadline_exits_4/1,
         port_in_use_exits_1/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [version_is_printed, help_names_every_command, wrong_use_exits_2,
     arguments_that_are_no_text_exit_2,
     wrong_use_says_what_is_right, unknown_module_exits_1, unusable_host_exits_1,
     nobody_there_exits_3, not_an_mcp_endpoint_exits_1, sigterm_ends_serve_with_0,
     sigterm_waits_for_answers, a_second_sigterm_does_not, sigint_ends_serve, tcp_is_served_too,
     sse_is_served_too, clients_behind_a_proxy_are_told_apart, wrong_proxies_exit_1,
     ipv6_is_served, stdio_is_served, stdio_stdout_is_clean,
     other_folder_is_kept, {group, served}].

groups() ->
    [{served, [pasted_curl_works, pasted_commands_work, list_shows_what_is_offered,
               list_json_is_json, call_prints_text, call_prints_unicode, call_describes_media,
               call_prints_structure, call_json_is_the_result, tool_error_exits_1,
               crash_exits_1, unknown_tool_exits_1, bad_arguments_exit_2, deadline_exits_4,
               port_in_use_exits_1]}].

init_per_suite(Config) -> erlmcp_test_program:init(Config).

end_per_suite(_) ->
    ok.

init_per_group(served, Config) -> erlmcp_test_program:serve_for_group(["--port", "0"], Config).

end_per_group(served, Config) -> erlmcp_test_program:end_group(Config).

version_is_printed(Config) ->
    {0, Out, ""} = erlmcp(["version"], Config),
    {match, _} = re:run(Out, "^erlmcp [0-9]+\\.[0-9]+\\.[0-9]+ \\(OTP [0-9]+\\)\n$").

help_names_every_command(Config) ->
    {0, Help, ""} = erlmcp(["help"], Config),
    {0, Help, ""} = erlmcp(["--help"], Config),
    [{match, _} = re:run(Help, "^  " ++ Command ++ " +[a-z]", [multiline])
     || Command <- ["serve", "list", "call", "read", "prompt", "complete", "listen", "ping",
                    "doctor", "metrology", "compare", "baseline", "version", "help"]],
    {0, Serve, ""} = erlmcp(["help", "serve"], Config),
    {0, Serve, ""} = erlmcp(["serve", "--help"], Config),
    [{match, _} = re:run(Serve, Option)
     || Option <- ["--port", "--host", "--sse", "--tcp", "--stdio", "8080", "127\\.0\\.0\\.1"]].

wrong_use_exits_2(Config) ->
    [{2, "", [_ | _]} = erlmcp(Arguments, Config)
     || Arguments <- [[], ["no_such_command"], ["serve"], ["list", "not a url"]]],
    [{2, "", [_ | _]} = main(Arguments)
     || Arguments <- [["serve", "everything", "--port", "x"],
                      ["serve", "everything", "--port", "65536"], ["list"],
                      ["list", "ftp://127.0.0.1/"], ["call", "http://127.0.0.1:1/mcp"],
                      ["call", "http://127.0.0.1:1/mcp", "echo", "{}", "--timeout", "0"]]].

arguments_that_are_no_text_exit_2(Config) ->
    [{2, "", Why} =
         run("/usr/bin/env", ["LC_ALL=C.UTF-8", proplists:get_value(program, Config) | Arguments],
             Config)
     || {Why, Arguments} <- [{"argument 1 is not UTF-8\n", [<<255>>]},
                             {"argument 4 is not UTF-8\n",
                              ["call", "http://127.0.0.1:1/mcp", "echo",
                               <<"text=", 255, "a", 16#c3>>]}]].

%% An error names the existing choices, and the help.
wrong_use_says_what_is_right(Config) ->
    {2, "", Missing} = erlmcp(["call", "http://127.0.0.1:1/mcp"], Config),
    {match, _} = re:run(Missing, "tool\\. See `erlmcp help call`\\.\n$"),
    {2, "", Era} = erlmcp(["list", "http://127.0.0.1:1/mcp", "--era", "2024-01-01"], Config),
    {match, _} = re:run(Era, "choices: auto, stateless, session, .*2024-11-05"),
    {2, "", Page} = erlmcp(["report", "folder", "--page", "x"], Config),
    {match, _} = re:run(Page, "choices: report, performance, capacity\\. See `erlmcp help report`"),
    {2, "", Command} = erlmcp(["no_such_command"], Config),
    {match, _} = re:run(Command, "See `erlmcp help`\\."),
    [one_line(Why) || Why <- [Missing, Era, Page, Command]].

unknown_module_exits_1(Config) ->
    %% `lists` is there, but is no server; a path is not a name. The message says what is wrong.
    Missing = "no compiled module of this name is in the code path",
    [begin
         {1, "", Why} = erlmcp(["serve", Name], Config),
         one_line(Why),
         {match, _} = re:run(Why, Said)
     end || {Name, Said} <- [
         {"no_such_module", Missing}, {"../everything", ""}, {"everything ", ""},
         {"lists", "^lists: this module has no -behaviour\\(erlmcp_server\\)"}]].

unusable_host_exits_1(Config) ->
    {1, "", Why} = erlmcp(["serve", "everything", "--host", "256.1.1.1"], Config),
    one_line(Why).

nobody_there_exits_3(Config) ->
    Port = erlmcp_test_port:unused(),
    [begin
         {3, "", Why} = erlmcp(Command, Config),
         one_line(Why),
         {match, _} = re:run(Why, "connection refused")
     end || Url <- ["http://127.0.0.1:" ++ integer_to_list(Port) ++ "/mcp"],
            Command <- [["list", Url], ["call", Url, "echo"]]].

not_an_mcp_endpoint_exits_1(Config) ->
    {ok, Socket} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}, {active, false}]),
    {ok, Port} = inet:port(Socket),
    Page = spawn_link(fun() -> pages(Socket) end),
    {1, "", Why} = erlmcp(["list", "http://127.0.0.1:" ++ integer_to_list(Port)], Config),
    one_line(Why),
    {match, _} = re:run(Why, "HTTP 404"),
    unlink(Page),
    exit(Page, kill).

%% A page of another kind for each request, on a connection of its own.
pages(Socket) ->
    {ok, Connection} = gen_tcp:accept(Socket),
    {ok, _} = gen_tcp:recv(Connection, 0),
    ok = gen_tcp:send(Connection, "HTTP/1.1 404 Not Found\r\ncontent-type: text/html\r\n"
                                  "connection: close\r\ncontent-length: 2\r\n\r\nno"),
    ok = gen_tcp:shutdown(Connection, write),
    pages(Socket).

sigterm_ends_serve_with_0(Config) ->
    {Server, _, _} = serve(["--port", "0"], Config),
    0 = stop("TERM", Server).

%% "`erlmcp serve` does so when it gets SIGTERM"
sigterm_waits_for_answers(Config) ->
    {Server, Socket} = slowly(1000, Config),
    0 = stop("TERM", Server),
    {ok, Line} = gen_tcp:recv(Socket, 0, 30_000),
    #{~"id" := 7, ~"result" := #{}} = json:decode(Line).

a_second_sigterm_does_not(Config) ->
    {Server, Socket} = slowly(600_000, Config),
    {os_pid, Pid} = erlang:port_info(Server, os_pid),
    "" = os:cmd("kill -TERM " ++ integer_to_list(Pid)),
    until_refused(Socket),
    0 = stop("TERM", Server).

%% A server with a call that takes so long.
slowly(Milliseconds, Config) ->
    {Server, _, Output} = serve(["--port", "0", "--tcp", "0", "--drain", "600"], Config),
    {match, [Port]} = re:run(Output, "tcp://127\\.0\\.0\\.1:([0-9]+) ",
                             [{capture, all_but_first, list}]),
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, list_to_integer(Port),
                                   [binary, {active, false}, {packet, line}]),
    Slow = line(7, ~"tools/call", #{name => ~"slow_tool", arguments => #{ms => Milliseconds}}),
    %% A request after an accepted one is answered too.
    ok = gen_tcp:send(Socket, [Slow, discover()]),
    {ok, Line} = gen_tcp:recv(Socket, 0, 30_000),
    [#{~"id" := 1, ~"result" := #{}}] = answers(discover(), Line),
    {Server, Socket}.

until_refused(Socket) ->
    ok = gen_tcp:send(Socket, discover()),
    {ok, Line} = gen_tcp:recv(Socket, 0, 30_000),
    case json:decode(Line) of
        #{~"result" := #{}} -> until_refused(Socket);
        #{~"error" := #{~"code" := 1077}} -> ok
    end.

sigint_ends_serve(Config) ->
    {Server, _, _} = serve(["--port", "0"], Config),
    %% 128 + SIGINT
    130 = stop("INT", Server).

tcp_is_served_too(Config) ->
    {Server, _, Output} = serve(["--port", "0", "--tcp", "0"], Config),
    {match, [Port]} = re:run(Output, "tcp://127\\.0\\.0\\.1:([0-9]+) ",
                             [{capture, all_but_first, list}]),
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, list_to_integer(Port),
                                   [binary, {active, false}, {packet, line}]),
    ok = gen_tcp:send(Socket, discover()),
    {ok, Line} = gen_tcp:recv(Socket, 0, 30_000),
    [#{~"id" := 1, ~"result" := #{}}] = answers(discover(), Line),
    ok = gen_tcp:close(Socket),
    0 = stop("TERM", Server).

sse_is_served_too(Config) ->
    {Server, Url, Output} = serve(["--port", "0", "--sse"], Config),
    {match, [Sse]} = re:run(Output, "^ *(http://[^ ]+) \\(HTTP\\+SSE",
                            [multiline, {capture, all_but_first, list}]),
    #{port := Port} = uri_string:parse(Sse),
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}]),
    ok = gen_tcp:send(Socket, "GET /sse HTTP/1.1\r\nhost: localhost\r\n\r\n"),
    ok = read_until(Socket, ~"event: endpoint\ndata: /messages?sessionId=", <<>>),
    {0, "hello\n", ""} = erlmcp(["call", Url, "echo", "{\"text\":\"hello\"}"], Config),
    ok = gen_tcp:close(Socket),
    0 = stop("TERM", Server).

read_until(Socket, Wanted, Read) ->
    case binary:match(Read, Wanted) of
        nomatch ->
            {ok, Bytes} = gen_tcp:recv(Socket, 0, 30_000),
            read_until(Socket, Wanted, <<Read/binary, Bytes/binary>>);
        _ ->
            ok
    end.

%% The header of the PROXY protocol is no request to who does not take it.
clients_behind_a_proxy_are_told_apart(Config) ->
    {Server, Url, Output} = serve(["--port", "0", "--tcp", "0", "--trusted-proxy", "::1",
                                 "--trusted-proxy", "127.0.0.0/8", "--proxy-protocol"], Config),
    {match, [Lines]} = re:run(Output, "tcp://127\\.0\\.0\\.1:([0-9]+) ",
                              [{capture, all_but_first, list}]),
    #{port := Http} = uri_string:parse(Url),
    Header = ~"PROXY TCP4 203.0.113.1 203.0.113.1 1 2\r\n",
    Reply = fun(Port, Request) ->
        {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}]),
        ok = gen_tcp:send(Socket, Request),
        Answer = gen_tcp:recv(Socket, 0, 30_000),
        ok = gen_tcp:close(Socket),
        Answer
    end,
    {ok, <<"{\"jsonrpc\"", _/binary>>} = Reply(list_to_integer(Lines), [Header, discover()]),
    Get = ~"GET /mcp HTTP/1.1\r\nhost: localhost\r\n\r\n",
    {ok, <<"HTTP/1.1 405 ", _/binary>>} = Reply(Http, [Header, Get]),
    {error, closed} = Reply(Http, Get),
    0 = stop("TERM", Server).

wrong_proxies_exit_1(Config) ->
    [begin
         {1, "", Why} = erlmcp(["serve", "everything", "--port", "0" | Options], Config),
         one_line(Why),
         {match, _} = re:run(Why, Says)
     end || {Options, Says} <- [
         {["--trusted-proxy", "10.0.0.1/8"], "--trusted-proxy 10.0.0.1/8: expected 10.0.0.0/8, "},
         {["--trusted-proxy", "proxy"], "--trusted-proxy proxy: expected an IP address, or "},
         {["--proxy-protocol"], "--proxy-protocol: expected --trusted-proxy too"}]].

ipv6_is_served(Config) ->
    case gen_tcp:listen(0, [inet6, {ip, {0, 0, 0, 0, 0, 0, 0, 1}}]) of
        {ok, Socket} ->
            ok = gen_tcp:close(Socket),
            served_on_ipv6(Config);
        {error, _} ->
            %% A machine without IPv6 is told so.
            {1, "", Why} = erlmcp(["serve", "everything", "--port", "0", "--host", "::1"], Config),
            one_line(Why)
    end.

served_on_ipv6(Config) ->
    {Server, Url, _} = serve(["--port", "0", "--host", "::1"], Config),
    {match, _} = re:run(Url, "^http://\\[::1\\]:"),
    {0, "hello\n", ""} = erlmcp(["call", Url, "echo", "{\"text\":\"hello\"}"], Config),
    {3, "", Why} = erlmcp(["list", ["https" | string:prefix(Url, "http")]], Config),
    one_line(Why),
    {match, _} = re:run(Why, "TLS"),
    0 = stop("TERM", Server).

stdio_is_served(Config) ->
    {0, Out, _} = piped(discover(), Config),
    [#{~"id" := 1, ~"result" := #{}}] = answers(discover(), Out).

stdio_stdout_is_clean(Config) ->
    %% A crash is logged; the log goes elsewhere.
    Calls = [call_line(1, crash), call_line(2, echo)],
    {0, Out, Log} = piped(Calls, Config),
    [1, 2] = lists:sort([Id || #{~"id" := Id} <- answers(Calls, Out)]),
    {match, _} = re:run(Log, "asked_to_crash").

other_folder_is_kept(Config) ->
    Folder = proplists:get_value(priv_dir, Config),
    Link = filename:join(Folder, "linked"),
    ok = file:make_symlink(proplists:get_value(program, Config), Link),
    {0, Out, _} = run("/bin/sh", ["-c", "cd \"$1\" && ./linked version && pwd", "-", Folder],
                      Config),
    {match, _} = re:run(Out, "^erlmcp "),
    {ok, []} = {ok, filelib:wildcard("erl_crash.dump", Folder)}.

pasted_curl_works(Config) ->
    {match, [Curl]} = re:run(proplists:get_value(output, Config), "^ *(curl (?:.*\\\\\n)*.*)$",
                             [multiline, {capture, all_but_first, list}]),
    {0, Out, _} = run("/bin/sh", ["-c", Curl], Config),
    Answer = json:decode(unicode:characters_to_binary(Out)),
    #{~"result" := #{~"content" := [#{~"text" := ~"hello"}]}} = Answer,
    ok = erlmcp_test_schema:result(Answer, ~"tools/call", ~"2026-07-28").

pasted_commands_work(Config) ->
    {match, Commands} = re:run(proplists:get_value(output, Config), "^ *(.*/bin/erlmcp .*)$",
                               [multiline, global, {capture, all_but_first, list}]),
    [{0, "hello\n", ""}, {0, [_ | _], ""}] =
        [run("/bin/sh", ["-c", Command], Config) || [Command] <- Commands].

list_shows_what_is_offered(Config) ->
    {0, Out, ""} = erlmcp(["list", url(Config)], Config),
    [{match, _} = re:run(Out, Line, [multiline])
     || Line <- ["^everything [0-9.]+$", "^Tools$", "^  echo  +Returns its text$", "^Resources$",
                 "^  test://static-text  +[A-Z]", "^Resource templates$",
                 "^  test://template/\\{id\\}/data  +[A-Z]", "^Prompts$",
                 "^  test_prompt_with_arguments  +[A-Z].*\n      arg1=string arg2=string$"]].

list_json_is_json(Config) ->
    {0, Out, ""} = erlmcp(["list", url(Config), "--json"], Config),
    #{~"tools" := [#{~"name" := ~"echo", ~"inputSchema" := #{}} | _], ~"resources" := [_ | _],
      ~"resourceTemplates" := [_], ~"prompts" := [_ | _]} =
        json:decode(unicode:characters_to_binary(Out)).

call_prints_text(Config) ->
    {0, "some text\n", ""} =
        erlmcp(["call", url(Config), "echo", "{\"text\":\"some text\"}"], Config),
    {0, "This is a simple text response for testing.\n", ""} =
        erlmcp(["call", url(Config), "test_simple_text"], Config),
    %% An answer as an event stream has the same output.
    {0, "Progress was reported three times.\n", ""} =
        erlmcp(["call", url(Config), "test_tool_with_progress"], Config).

call_prints_unicode(Config) ->
    Arguments = unicode:characters_to_binary("{\"text\":\"Grüße, 世界\"}"),
    Call = ["call", url(Config), "echo", Arguments],
    {0, "Grüße, 世界\n", ""} = erlmcp(Call, Config),
    {0, "Grüße, 世界\n", ""} =
        run("/usr/bin/env", ["LC_ALL=C", proplists:get_value(program, Config) | Call], Config),
    %% A control character is shown and not sent to the terminal.
    {0, "a␛[31m\n", ""} =
        erlmcp(["call", url(Config), "echo", "{\"text\":\"a\\u001b[31m\"}"], Config).

call_describes_media(Config) ->
    {0, "[image image/png 70 bytes]\n", ""} =
        erlmcp(["call", url(Config), "test_image_content"], Config),
    {0, "[audio audio/wav 44 bytes]\n", ""} = main(["call", url(Config), "test_audio_content"]),
    {0, "[resource test://embedded-resource text/plain]\nThis is an embedded resource content.\n",
     ""} = main(["call", url(Config), "test_embedded_resource"]),
    {0, "[link test://static-text static-text]\n", ""} =
        main(["call", url(Config), "resource_link"]).

call_prints_structure(Config) ->
    {0, Out, ""} = erlmcp(["call", url(Config), "system_info"], Config),
    #{~"schedulers" := Schedulers} = json:decode(unicode:characters_to_binary(Out)),
    true = is_integer(Schedulers).

call_json_is_the_result(Config) ->
    {0, Out, ""} = erlmcp(["call", url(Config), "add", "{\"a\":1,\"b\":2.5}", "--json"], Config),
    #{~"content" := [#{~"type" := ~"text", ~"text" := ~"3.5"}], ~"resultType" := ~"complete"} =
        Result = json:decode(unicode:characters_to_binary(Out)),
    is_result(Result).

tool_error_exits_1(Config) ->
    {1, "", "This tool intentionally returns an error for testing\n"} =
        erlmcp(["call", url(Config), "test_error_handling"], Config),
    {1, Out, ""} = erlmcp(["call", url(Config), "test_error_handling", "--json"], Config),
    #{~"isError" := true} = Result = json:decode(unicode:characters_to_binary(Out)),
    is_result(Result).

is_result(Result) ->
    Message = #{~"jsonrpc" => ~"2.0", ~"id" => 1, ~"result" => Result},
    erlmcp_test_schema:result(Message, ~"tools/call", ~"2026-07-28").

crash_exits_1(Config) ->
    {1, "", Why} = erlmcp(["call", url(Config), "crash"], Config),
    nomatch = re:run(Why, "asked_to_crash"),
    one_line(Why).

unknown_tool_exits_1(Config) ->
    {1, "", Why} = erlmcp(["call", url(Config), "no such tool\r\nx: y"], Config),
    one_line(Why),
    {match, _} = re:run(Why, "^error -32602 \\(tool_not_found\\): ", [unicode]).

bad_arguments_exit_2(Config) ->
    {2, "", Array} = erlmcp(["call", url(Config), "echo", "[]"], Config),
    one_line(Array),
    [begin
         {2, "", Why} = main(["call", url(Config), "echo", Arguments]),
         one_line(Why)
     end || Arguments <- ["1", "nonsense", ""]].

deadline_exits_4(Config) ->
    {4, "", Why} = erlmcp(["call", url(Config), "slow_tool", "{\"ms\":60000}", "--timeout", "1"],
                          Config),
    one_line(Why),
    {match, _} = re:run(Why, "no answer in time").

port_in_use_exits_1(Config) ->
    #{port := Port} = uri_string:parse(url(Config)),
    {1, "", Why} = erlmcp(["serve", "everything", "--port", integer_to_list(Port)], Config),
    one_line(Why),
    {match, _} = re:run(Why, "port " ++ integer_to_list(Port) ++ " .* in use").

discover() -> line(1, ~"server/discover", #{}).

%% The messages in these lines, which answer those, checked by their revision's schema.
answers(Requests, Lines) ->
    Exchange = make_ref(),
    [ok = erlmcp_test_wire:sent(Exchange, #{}, Line)
     || Line <- binary:split(iolist_to_binary(Requests), ~"\n", [global, trim])],
    [erlmcp_test_wire:received(Exchange, json:decode(Line))
     || Line <- binary:split(unicode:characters_to_binary(Lines), ~"\n", [global, trim])].

call_line(Id, Tool) -> line(Id, ~"tools/call", #{name => Tool, arguments => #{}}).

line(Id, Method, Params) ->
    Meta = #{~"io.modelcontextprotocol/protocolVersion" => ~"2026-07-28",
             ~"io.modelcontextprotocol/clientCapabilities" => #{}},
    [json:encode(#{jsonrpc => ~"2.0", id => Id, method => Method,
                   params => Params#{~"_meta" => Meta}}), $\n].

piped(Input, Config) ->
    File = filename:join(proplists:get_value(priv_dir, Config), "stdin"),
    ok = file:write_file(File, Input),
    run("/bin/sh", ["-c", "cat \"$1\" | \"$2\" serve everything --stdio", "-", File,
                    proplists:get_value(program, Config)], Config).
