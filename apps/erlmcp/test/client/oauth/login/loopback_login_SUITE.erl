-module(loopback_login_SUITE).
-moduledoc "A login that comes back to 127.0.0.1 (RFC 8252, section 7.3), over real sockets.".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0]).
-export([a_redirect_is_given_back/1, a_refusal_is_given_back/1, other_requests_are_refused/1,
         one_redirect_is_served/1,
         other_hosts_are_refused/1, a_redirect_without_the_state_is_not_the_login_s/1,
         silent_connections_do_not_block/1, bounds_hold/1, requests_have_a_number/1,
         the_deadline_is_kept/1, a_port_may_be_given/1, the_port_of_http_is_left_out/1,
         the_listener_goes_with_the_caller/1,
         the_url_is_said_where_no_browser_opens/1, bad_options_are_refused/1,
         only_web_addresses_are_opened/1, a_browser_is_opened/1, any_request_is_survived/1,
         a_page_comes_however_much_is_sent/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    erlmcp_test_suite:cases(?MODULE).

deadline(Milliseconds) ->
    erlang:monotonic_time(millisecond) + Milliseconds.

%% The authorization URL names the redirect's, and the browser, a function of the listener's port,
%% finds it there. What the login gave, and what the browser saw.
login(Browser, Options) ->
    Self = self(),
    Open = fun(<<"https://as.example/?redirect_uri=", RedirectUri/binary>>) ->
        #{port := Port} = uri_string:parse(RedirectUri),
        _ = spawn(fun() -> Self ! {saw, seen(Browser, Port)} end),
        ok
    end,
    case erlmcp_loopback:login(fun authorize_url/1, Options#{open => Open}, deadline(20000)) of
        {error, {Never, _}} = Result when Never =:= bad_option; Never =:= listen ->
            {Result, nothing};
        Result ->
            receive
                {saw, {ok, Saw}} -> {Result, Saw};
                {saw, Crash} -> ct:fail({Result, Crash})
            after 20000 ->
                ct:fail({Result, no_browser})
            end
    end.

seen(Browser, Port) ->
    try
        {ok, Browser(Port)}
    catch
        error:Reason:Stack -> {crash, Reason, Stack}
    end.

authorize_url(RedirectUri) ->
    <<"https://as.example/?redirect_uri=", RedirectUri/binary>>.

connect(Port) ->
    gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}, {packet, raw}]).

%% The whole answer, until the server closes.
ask(Port, Request) ->
    {ok, Socket} = connect(Port),
    ok = gen_tcp:send(Socket, Request),
    Answer = answer(Socket, []),
    ok = gen_tcp:close(Socket),
    Answer.

answer(Socket, Read) ->
    case gen_tcp:recv(Socket, 0, 10000) of
        {ok, Bytes} -> answer(Socket, [Read, Bytes]);
        {error, closed} -> iolist_to_binary(Read)
    end.

get(Port, Target) ->
    get(Port, Target, [~"Host: 127.0.0.1:", integer_to_binary(Port), ~"\r\n"]).

get(Port, Target, Fields) ->
    ask(Port, [~"GET ", Target, ~" HTTP/1.1\r\n", Fields, ~"\r\n"]).

status(Port, Target) ->
    status(get(Port, Target)).

status(<<"HTTP/1.1 ", Status:3/binary, _/binary>>) -> Status.

%% The listener closes with the process that called, not before that is known to have ended.
await_closed(Port) ->
    await_closed(Port, 1000).

await_closed(Port, Tries) when Tries > 0 ->
    case connect(Port) of
        {error, econnrefused} ->
            ok;
        {ok, Socket} ->
            ok = gen_tcp:close(Socket),
            await_closed(Port, Tries - 1);
        {error, econnreset} ->
            await_closed(Port, Tries - 1)
    end.

a_redirect_is_given_back(_) ->
    {{ok, Redirected, RedirectUri}, Page} =
        login(fun(Port) -> get(Port, ~"/callback?code=a%20b&state=s&iss=i") end, #{}),
    #{scheme := ~"http", host := ~"127.0.0.1", path := ~"/callback", port := Port} =
        uri_string:parse(RedirectUri),
    Redirected = <<RedirectUri/binary, "?code=a%20b&state=s&iss=i">>,
    [Head, Body] = binary:split(Page, ~"\r\n\r\n"),
    {match, _} = re:run(Head, ~"^HTTP/1.1 200 OK\r\n"),
    {match, _} = re:run(Head, ~"(?i)\r\ncache-control: no-store\r\n"),
    {match, [Length]} = re:run(Head, ~"(?i)content-length: ([0-9]+)", [{capture, [1], binary}]),
    true = binary_to_integer(Length) =:= byte_size(Body),
    {match, _} = re:run(Body, ~"You are logged in. You can close this window."),
    ok = await_closed(Port),
    {messages, []} = process_info(self(), messages).

a_refusal_is_given_back(_) ->
    {{ok, Redirected, RedirectUri}, Page} =
        login(fun(Port) -> get(Port, ~"/callback?error=access_denied&error_description=%3Cb%3E")
              end, #{}),
    Redirected = <<RedirectUri/binary, "?error=access_denied&error_description=%3Cb%3E">>,
    {match, _} = re:run(Page, ~"did not succeed"),
    nomatch = re:run(Page, ~"access_denied|<b>").

other_requests_are_refused(_) ->
    {{ok, _, _}, [Targets, Methods, ~"200"]} = login(fun(Port) ->
        Host = [~"Host: 127.0.0.1:", integer_to_binary(Port), ~"\r\n"],
        [[status(Port, Target) || Target <- [~"/", ~"/favicon.ico", ~"/callback", ~"/callback?",
                                             ~"/callback?state=s", ~"/callback/?code=c",
                                             ~"/Callback?code=c", ~"//callback?code=c",
                                             ~"/callback?code=\"c\"", ~"/callback?code=\xe9"]],
         [status(ask(Port, [Method, ~" /callback?code=c HTTP/1.1\r\n", Host, ~"\r\n"]))
          || Method <- [~"POST", ~"HEAD", ~"OPTIONS", ~"get", ~"BREW"]],
         status(Port, ~"/callback?code=c")]
    end, #{}),
    [~"404"] = lists:usort(Targets ++ Methods).

%% Both were accepted before the first was answered: connections are accepted in their order.
one_redirect_is_served(_) ->
    {{ok, Redirected, _}, [~"200", ~"404"]} = login(fun(Port) ->
        Browsers = [Socket || _ <- [1, 2], {ok, Socket} <- [connect(Port)]],
        ~"404" = status(Port, ~"/"),
        [begin
             ok = gen_tcp:send(Browser, [~"GET /callback?code=", Code,
                                         ~" HTTP/1.1\r\nHost: 127.0.0.1:",
                                         integer_to_binary(Port), ~"\r\n\r\n"]),
             status(answer(Browser, []))
         end || {Browser, Code} <- lists:zip(Browsers, [~"first", ~"second"])]
    end, #{}),
    {match, _} = re:run(Redirected, ~"code=first$").

other_hosts_are_refused(_) ->
    {{ok, _, _}, _} = login(fun(Port) ->
        Own = integer_to_binary(Port),
        Try = fun(Fields) -> status(get(Port, ~"/callback?code=evil", Fields)) end,
        [~"403"] = lists:usort([Try(Fields) || Fields <- [
            ~"", ~"Host: evil.example\r\n", [~"Host: evil.example:", Own, ~"\r\n"],
            ~"Host: 127.0.0.1\r\n", ~"Host: 127.0.0.1:1\r\n", [~"Host: [::1]:", Own, ~"\r\n"],
            [~"Host: 127.0.0.1:", Own, ~"\r\nHost: evil.example\r\n"],
            [~"Host: 127.0.0.1.evil.example:", Own, ~"\r\n"]]]),
        ~"200" = status(get(Port, ~"/callback?code=c", [~"Host: localhost:", Own, ~"\r\n"]))
    end, #{}).

a_redirect_without_the_state_is_not_the_login_s(_) ->
    {{ok, Redirected, _}, _} = login(fun(Port) ->
        [~"404"] = lists:usort([status(Port, <<"/callback?code=evil", State/binary>>)
                                || State <- [~"", ~"&state=", ~"&state=T", ~"&state=s%20",
                                             ~"&state=s%201&state=t"]]),
        ~"404" = status(Port, ~"/callback?state=s%201"),
        ~"404" = status(Port, ~"/callback?state=%26%23"),
        status(Port, ~"/callback?state=s%201&code=c")
    end, #{state => ~"s 1"}),
    {match, _} = re:run(Redirected, ~"code=c$").

%% Bytes that nobody reads would reset the connection, and the browser could lose the page that says
%% what became of the login. What follows the request is no header, and has no lines.
a_page_comes_however_much_is_sent(_) ->
    {{ok, _, _}, _} = login(fun(Port) ->
        {ok, Socket} = connect(Port),
        ok = gen_tcp:send(Socket, [~"GET /callback?code=c HTTP/1.1\r\nHost: 127.0.0.1:",
                                   integer_to_binary(Port), ~"\r\n\r\n"]),
        [ok = gen_tcp:send(Socket, binary:copy(~"x", 20_000)) || _ <- lists:seq(1, 10)],
        {match, _} = re:run(answer(Socket, []), ~"^HTTP/1.1 200 OK.*</html>\n$", [dotall]),
        gen_tcp:close(Socket)
    end, #{}).

silent_connections_do_not_block(_) ->
    Before = erlang:monotonic_time(millisecond),
    {{ok, _, _}, _} = login(fun(Port) ->
        Silent = [Socket || _ <- lists:seq(1, 7), {ok, Socket} <- [connect(Port)]],
        Answer = status(Port, ~"/callback?code=c"),
        [ok = gen_tcp:close(Socket) || Socket <- Silent],
        Answer
    end, #{}),
    true = erlang:monotonic_time(millisecond) - Before < 4000.

bounds_hold(_) ->
    {{ok, _, _}, _} = login(fun(Port) ->
        Host = [~"Host: 127.0.0.1:", integer_to_binary(Port), ~"\r\n"],
        Header = fun(Count) -> [Host, lists:duplicate(Count, ~"X: y\r\n")] end,
        %% A line that is too long closes the connection.
        ~"" = get(Port, [~"/callback?code=", binary:copy(~"x", 10000)], Header(0)),
        ~"404" = status(get(Port, [~"/x?", binary:copy(~"x", 7000)], Header(0))),
        ~"400" = status(get(Port, ~"/callback?code=c", Header(64))),
        ~"404" = status(get(Port, ~"/x", Header(63))),
        ~"" = get(Port, ~"/callback?code=c",
                  [Host, ~"X: ", binary:copy(~"y", 10000), ~"\r\n"]),
        %% A request that does not end is cut off.
        {ok, Socket} = connect(Port),
        ok = gen_tcp:send(Socket, ~"GET /callback?code=c HTTP/1.1\r\n"),
        ~"400" = status(answer(Socket, [])),
        status(Port, ~"/callback?code=c")
    end, #{}).

requests_have_a_number(_) ->
    Knock = fun(Port, Times) ->
        [ok = gen_tcp:close(Socket) || _ <- lists:seq(1, Times), {ok, Socket} <- [connect(Port)]]
    end,
    {{ok, _, _}, _} = login(fun(Port) ->
        _ = Knock(Port, 99),
        status(Port, ~"/callback?code=c")
    end, #{}),
    {{error, {too_many_requests, 100}}, _} = login(fun(Port) -> Knock(Port, 101) end, #{}).

the_deadline_is_kept(_) ->
    Self = self(),
    {error, timeout} = erlmcp_loopback:login(
        fun(Uri) -> Self ! {uri, Uri}, ~"https://as.example" end,
        #{open => fun(_) -> receive after infinity -> ok end end}, deadline(1000)),
    Port = receive {uri, Uri} -> maps:get(port, uri_string:parse(Uri)) end,
    ok = await_closed(Port),
    {messages, []} = process_info(self(), messages),
    {error, timeout} = erlmcp_loopback:login(fun authorize_url/1, #{open => fun(_) -> ok end},
                                             deadline(-1)).

a_port_may_be_given(_) ->
    {ok, Taken} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}]),
    {ok, Port} = inet:port(Taken),
    Options = #{port => Port, path => ~"/oauth/cb", host => ~"localhost"},
    {{error, {listen, eaddrinuse}}, nothing} = login(fun(_) -> ok end, Options),
    ok = gen_tcp:close(Taken),
    RedirectUri = iolist_to_binary([~"http://localhost:", integer_to_binary(Port), ~"/oauth/cb"]),
    %% Twice, as the port is the same the next time.
    [{{ok, <<RedirectUri:(byte_size(RedirectUri))/binary, "?code=c">>, RedirectUri}, _} =
         login(fun(_) -> status(Port, ~"/oauth/cb?code=c") end, Options) || _ <- [1, 2]].

%% "If the port is equal to the default port for a scheme, the normal form is to omit the port
%% subcomponent" (RFC 9110, section 4.2.3), and so browsers do in `Host`.
the_port_of_http_is_left_out(_) ->
    case login_on_80(1000) of
        {{error, {listen, eacces}}, nothing} ->
            {skip, "needs root"};
        {{error, {listen, eaddrinuse}}, nothing} ->
            {skip, "needs port 80"};
        {{ok, Redirected, RedirectUri}, Statuses} ->
            RedirectUri = ~"http://127.0.0.1:80/callback",
            Redirected = ~"http://127.0.0.1:80/callback?code=c",
            [~"403", ~"403", ~"404", ~"404", ~"200"] = Statuses
    end.

%% Another run of this case may have the port meanwhile.
login_on_80(Tries) ->
    Browser = fun(80) ->
        [status(get(80, Target, [~"Host: ", Host, ~"\r\n"]))
         || {Target, Host} <- [{~"/", ~"evil.example"}, {~"/", ~"127.0.0.1:8080"},
                               {~"/", ~"localhost"}, {~"/", ~"127.0.0.1:80"},
                               {~"/callback?code=c", ~"127.0.0.1"}]]
    end,
    case login(Browser, #{port => 80}) of
        {{error, {listen, eaddrinuse}}, nothing} when Tries > 0 ->
            receive after 20 -> login_on_80(Tries - 1) end;
        Outcome ->
            Outcome
    end.

the_listener_goes_with_the_caller(_) ->
    Self = self(),
    Start = fun(AuthorizeUrl) ->
        spawn_monitor(fun() ->
            erlmcp_loopback:login(fun(Uri) -> Self ! {uri, Uri}, AuthorizeUrl(Uri) end,
                                  #{open => fun(_) -> ok end}, deadline(60000))
        end)
    end,
    {Waiting, Ref} = Start(fun authorize_url/1),
    Port = receive {uri, Uri} -> maps:get(port, uri_string:parse(Uri)) end,
    ~"404" = status(Port, ~"/"),
    exit(Waiting, kill),
    receive {'DOWN', Ref, process, Waiting, killed} -> ok end,
    await_closed(Port),
    {Crashing, Other} = Start(fun(_) -> exit(crash) end),
    receive {'DOWN', Other, process, Crashing, crash} -> ok end,
    await_closed(receive {uri, Second} -> maps:get(port, uri_string:parse(Second)) end).

the_url_is_said_where_no_browser_opens(_) ->
    Self = self(),
    [begin
         {ok, _, _} = erlmcp_loopback:login(
             fun authorize_url/1,
             #{open => Open,
               say => fun(<<"https://as.example/?redirect_uri=", Uri/binary>> = Url) ->
                   Self ! {said, Url},
                   #{port := Port} = uri_string:parse(Uri),
                   status(Port, ~"/callback?code=c")
               end}, deadline(10000)),
         receive {said, _} -> ok after 0 -> ct:fail(not_said) end
     end || Open <- [fun(_) -> {error, no_browser} end, fun(_) -> error(crash) end]].

bad_options_are_refused(_) ->
    [{Name, {{error, {bad_option, Name}}, nothing}} =
         {Name, login(fun(_) -> ok end, #{Name => Value})}
     || {Name, Value} <- [{port, 65536}, {port, -1}, {port, ~"1"}, {path, ~"callback"}, {path, ~""},
                          {path, ~"/a?b"}, {path, ~"/a b"}, {path, ~"/a\n"}, {path, "/a"},
                          {host, ~"0.0.0.0"}, {host, ~"example.com"}, {state, "s"},
                          {say, fun() -> ok end}, {other, 1}]],
    {error, {bad_option, open}} =
        erlmcp_loopback:login(fun authorize_url/1, #{open => 1}, deadline(0)).

only_web_addresses_are_opened(_) ->
    Opened = fun(_) -> error(opened) end,
    [{Url, {error, bad_authorize_url}} =
         {Url, erlmcp_loopback:login(fun(_) -> Url end, #{open => Opened}, deadline(0))}
     || Url <- [~"", ~"file:///etc/passwd", ~"javascript:alert(1)", ~"--help", ~"HTTP://a.example",
                ~"https://", ~"https://a.example/ b", ~"https://a.example/\n",
                ~"https://a.example/\"",
                ~"https://a.example/`id`", ~"https://a.example/é", ~"https://a.example/<",
                <<"https://a.example/", (binary:copy(~"x", 16384))/binary>>]],
    true = erlmcp_browser:is_url(~"https://a.example/b?c=d%20&e=[~$(id);']#@!*+,").

%% A stand-in for xdg-open writes what it is given. No `$` is left, since others of these programs
%% put the URL into code of a shell.
a_browser_is_opened(Config) ->
    Folder = filename:join(proplists:get_value(priv_dir, Config), "bin"),
    Program = filename:join(Folder, "xdg-open"),
    Given = filename:join(Folder, "given"),
    ok = filelib:ensure_dir(Program),
    Before = [{Name, os:getenv(Name)} || Name <- ["PATH", "DISPLAY", "WAYLAND_DISPLAY"]],
    Url = ~"https://a.example/$b?c=d&e=$(touch%20x);'f'",
    Written = ~"https://a.example/%24b?c=d&e=%24(touch%20x);'f'|",
    try
        true = os:putenv("PATH", Folder),
        true = os:putenv("DISPLAY", ":0"),
        {error, no_browser} = erlmcp_browser:open(Url),
        Script = fun(Exit) ->
            ok = file:write_file(Program, ["#!/bin/sh\necho noise\nprintf '%s|' \"$@\" > '", Given,
                                           "'\nexit ", Exit, "\n"]),
            ok = file:change_mode(Program, 8#755)
        end,
        Script("0"),
        ok = erlmcp_browser:open(Url),
        {ok, Written} = file:read_file(Given),
        Script("3"),
        {error, {exit_status, ~"3"}} = erlmcp_browser:open(Url),
        true = os:unsetenv("DISPLAY"),
        true = os:unsetenv("WAYLAND_DISPLAY"),
        {error, no_browser} = erlmcp_browser:open(Url),
        {messages, []} = process_info(self(), messages)
    after
        [case Value of
             false -> os:unsetenv(Name);
             _ -> os:putenv(Name, Value)
         end || {Name, Value} <- Before]
    end.

any_request_is_survived(_) ->
    Parts = [~"GET ", ~"/callback", ~"?", ~"code=c", ~"%", ~"%ff", ~"&", ~"=", ~"&state=", ~"+",
             ~" HTTP/1.1", ~"\r\n", ~"Host: ", ~"127.0.0.1", ~":", <<255>>, ~"\n", ~" ", ~"#"],
    Soup = ?LET(Chosen, list(oneof([binary() | Parts])), iolist_to_binary(Chosen)),
    {{ok, _, _}, ~"200"} = login(fun(Port) ->
        {ok, Requests} = proper_gen:pick(vector(45, Soup)),
        %% As a request, and as the query of one that is in order.
        [_ = ask(Port, [Request, ~"\r\n\r\n"]) || Request <- Requests],
        [_ = get(Port, [~"/callback?", Request]) || Request <- Requests],
        status(Port, ~"/callback?code=c&state=of%20this")
    end, #{state => ~"of this"}).
