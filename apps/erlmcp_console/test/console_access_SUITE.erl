-module(console_access_SUITE).
-moduledoc """
Who may see the console, and act in it, over real sockets: programs of this machine and nobody
behind a proxy, or whoever has the token; and nobody from another page.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, log/2]).
-export([this_machine_needs_no_token/1, a_proxy_is_not_this_machine/1, a_token_is_demanded/1,
         a_token_is_exchanged_for_a_cookie/1, cookies_are_of_their_token_and_time/1,
         programs_bring_the_token_themselves/1, bytes_that_are_no_text_are_no_token/1,
         actions_are_of_the_page/1, an_allowed_origin_sees_nothing/1,
         other_pages_load_nothing/1, a_proxy_may_end_tls/1,
         it_is_used_on_http2/1, a_second_login_is_no_error/1, actions_are_checked/1,
         actions_are_logged_without_secrets/1, every_answer_has_its_policy/1,
         only_files_of_the_page_are_found/1, viewers_are_bounded/1, options_are_checked/1]).

-import(erlmcp_test_console, [start/1, start/2, get/2, get/3, post/3, post/4]).

-define(TOKEN, ~"the-token-of-the-console").

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [this_machine_needs_no_token, a_proxy_is_not_this_machine, a_token_is_demanded,
     a_token_is_exchanged_for_a_cookie, cookies_are_of_their_token_and_time,
     programs_bring_the_token_themselves, bytes_that_are_no_text_are_no_token,
     actions_are_of_the_page, an_allowed_origin_sees_nothing,
     other_pages_load_nothing, a_proxy_may_end_tls,
     it_is_used_on_http2, a_second_login_is_no_error, actions_are_checked,
     actions_are_logged_without_secrets, every_answer_has_its_policy,
     only_files_of_the_page_are_found, viewers_are_bounded, options_are_checked].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, erlmcp_console], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

this_machine_needs_no_token(_) ->
    Server = start(#{}),
    {308, #{~"location" := ~"/console/"}, _} = get(~"/console", Server),
    {200, #{~"content-type" := ~"text/html; charset=utf-8"}, Page} = get(~"/console/", Server),
    {_, _} = binary:match(Page, ~"<title>erlmcp console</title>"),
    {200, _, _} = get(~"/console/app.js", Server),
    %% A token that nobody asked for does not stay in the URL.
    {303, #{~"location" := ~"/console/"}, _} = get(~"/console/?token=x", Server),
    erlmcp_test_http:stop(Server).

a_proxy_is_not_this_machine(_) ->
    Server = start(#{}),
    [{403, _, <<"This console has no token", _/binary>>} =
         get(Path, [{Header, ~"192.0.2.7"}], Server)
     || Header <- [~"X-Forwarded-For", ~"Forwarded", ~"X-Real-IP", ~"Via"],
        Path <- [~"/console", ~"/console/", ~"/console/feed", ~"/console/app.js"]],
    erlmcp_test_http:stop(Server).

a_token_is_demanded(_) ->
    Server = start(#{}, #{token => ?TOKEN}),
    [{401, _, _} = get(Path, Server)
     || Path <- [~"/console", ~"/console/", ~"/console/feed", ~"/console/tools",
                 ~"/console/app.js"]],
    {401, _, Page} = get(~"/console/", Server),
    {_, _} = binary:match(Page, ~"name=\"token\""),
    [{403, _, _} = get(<<"/console?token=", Wrong/binary>>, Server)
     || Wrong <- [~"", ~"the-token-of-the-consol", ~"the-token-of-the-console2", ~"%00"]],
    [{401, _, _} = post(Path, #{id => ~"1"}, Server)
     || Path <- [~"/console/cancel", ~"/console/call", ~"/console/answer"]],
    %% The page that asks for it has its style, and nothing else.
    {200, _, _} = get(~"/console/style.css", Server),
    erlmcp_test_http:stop(Server).

a_token_is_exchanged_for_a_cookie(_) ->
    Server = start(#{}, #{token => ?TOKEN}),
    Logins = [fun() -> get([~"/console/?token=", ?TOKEN], Server) end,
              fun() -> get([~"/console?token=", ?TOKEN], Server) end,
              fun() -> post(~"/console/login", [{~"Origin", origin(Server)}],
                            [~"token=", ?TOKEN], Server) end],
    [begin
         {303, #{~"location" := ~"/console/", ~"set-cookie" := SetCookie}, _} = Login(),
         nomatch = binary:match(SetCookie, ?TOKEN),
         [Cookie | Attributes] = binary:split(SetCookie, ~"; ", [global]),
         [~"Path=/console", ~"Max-Age=43200", ~"HttpOnly", ~"SameSite=Strict"] = Attributes,
         {200, _, _} = get(~"/console/", [{~"Cookie", Cookie}], Server),
         {200, _, _} = get(~"/console/app.js", [{~"Cookie", [~"a=b; ", Cookie]}], Server),
         {401, _, _} = get(~"/console/", [{~"Cookie", <<Cookie/binary, "A">>}], Server)
     end || Login <- Logins],
    %% A form of another page gets none.
    {403, Headers, _} = post(~"/console/login", [{~"Origin", ~"http://127.0.0.1:1"}],
                             [~"token=", ?TOKEN], Server),
    false = is_map_key(~"set-cookie", Headers),
    {403, _, _} = post(~"/console/login", [], [~"token=", ?TOKEN], Server),
    erlmcp_test_http:stop(Server).

cookies_are_of_their_token_and_time(_) ->
    Request = #{path => ~"/console", below => ~"", scheme => ~"https", headers => #{}},
    {ok, SetCookie} = erlmcp_console_access:login(?TOKEN, Request, ?TOKEN),
    [Cookie | Attributes] = binary:split(iolist_to_binary(SetCookie), ~"; ", [global]),
    ~"Secure" = lists:last(Attributes),
    With = Request#{headers := #{~"cookie" => Cookie}, peer => {{127, 0, 0, 1}, 1}},
    Now = erlang:system_time(second),
    Check = fun(Token, At) -> erlmcp_console_access:check(With, Token, At) end,
    ok = Check(?TOKEN, Now),
    ok = Check(?TOKEN, Now + 43_200 - 5),
    {denied, token} = Check(?TOKEN, Now + 43_200 + 5),
    {denied, token} = Check(~"another-token-of-16", Now),
    %% Who writes a later end into a cookie has no signature for it.
    [Name, Value] = binary:split(Cookie, ~"="),
    [_, Mac] = binary:split(Value, ~"."),
    [{denied, token} = erlmcp_console_access:check(
         With#{headers := #{~"cookie" => <<Name/binary, "=", Forged/binary>>}}, ?TOKEN, Now)
     || Forged <- [<<"99999999999.", Mac/binary>>, ~"99999999999.", ~".", ~"", ~"x.y",
                   <<"999999999999999999999.", Mac/binary>>]].

programs_bring_the_token_themselves(_) ->
    Server = start(#{}, #{token => ?TOKEN}),
    {200, _, _} = get(~"/console/app.js", [{~"Authorization", [~"Bearer ", ?TOKEN]}], Server),
    [{401, _, _} = get(~"/console/app.js", [{~"Authorization", Value}], Server)
     || Value <- [~"Bearer", ~"Bearer x", ?TOKEN, [~"Basic ", ?TOKEN]]],
    erlmcp_test_http:stop(Server).

%% HTTP lets every byte from 0x80 into the value of a header.
bytes_that_are_no_text_are_no_token(_) ->
    Server = start(#{}, #{token => ?TOKEN}),
    [{401, _, _} = get(~"/console/", [{Header, Value}], Server)
     || {Header, Value} <- [{~"Authorization", <<"Bearer", 255, ?TOKEN/binary>>},
                            {~"Authorization", <<255, "earer ", ?TOKEN/binary>>},
                            {~"Authorization", <<"Bearer ", 255>>},
                            {~"Cookie", <<255, "=1">>}, {~"Cookie", <<"a=1; ", 255>>}]],
    {303, #{~"set-cookie" := SetCookie}, _} = get([~"/console/?token=", ?TOKEN], Server),
    [Cookie | _] = binary:split(SetCookie, ~"; "),
    {200, _, _} = get(~"/console/", [{~"Cookie", [255, ~"=1; ", Cookie]}], Server),
    {401, _, _} = get(~"/console/?token=%26%23", Server),
    erlmcp_test_http:stop(Server).

actions_are_of_the_page(_) ->
    Server = start(#{}),
    {404, _, _} = post(~"/console/cancel", #{id => ~"1"}, Server),
    [{403, _, _} = post(~"/console/cancel", Headers, #{id => ~"1"}, Server)
     || Headers <- [[], [{~"Origin", ~"null"}], [{~"Origin", ~"http://127.0.0.1"}],
                    [{~"Origin", ~"https://example.com"}],
                    [{~"Origin", origin(Server)}, {~"Sec-Fetch-Site", ~"cross-site"}],
                    [{~"Origin", origin(Server)}, {~"Sec-Fetch-Site", ~"same-site"}]]],
    %% What acts is not done by a GET.
    [{404, _, _} = get(Path, Server)
     || Path <- [~"/console/cancel", ~"/console/call", ~"/console/answer"]],
    erlmcp_test_http:stop(Server).

%% Its listener lets it call the server, and so it could read what the console answers.
an_allowed_origin_sees_nothing(_) ->
    Origin = ~"https://app.example.com",
    Pages = #{~"/console" => erlmcp_console:page(#{})},
    Server = erlmcp_test_http:start(#{
        listen => [{http, #{pages => Pages, allowed_origins => [Origin]}}]}),
    [{403, _, _} = get(Path, [{~"Origin", Origin}], Server)
     || Path <- [~"/console/", ~"/console/feed", ~"/console/tools", ~"/console/payload?id=1"]],
    {200, _, _} = get(~"/console/", [{~"Origin", origin(Server)}], Server),
    erlmcp_test_http:stop(Server).

%% An image or a frame has no `Origin`, and would hold a place of the listener's pages.
other_pages_load_nothing(_) ->
    Server = start(#{}),
    Get = fun(Path, Site, For) ->
        {Status, _, _} = get(Path, [{~"Sec-Fetch-Site", Site}, {~"Sec-Fetch-Dest", For}], Server),
        Status
    end,
    [403 = Get(Path, Site, For)
     || Path <- [~"/console/", ~"/console/feed", ~"/console/tools", ~"/console/app.js"],
        Site <- [~"cross-site", ~"same-site"], For <- [~"image", ~"iframe", ~"script", ~"empty"]],
    [200 = Get(~"/console/", Site, ~"document")
     || Site <- [~"cross-site", ~"same-site", ~"same-origin", ~"none"]],
    200 = Get(~"/console/tools", ~"same-origin", ~"empty"),
    200 = Get(~"/console/icon.svg", ~"none", ~"image"),
    erlmcp_test_http:stop(Server),
    %% A link with the token, as in a mail.
    WithToken = start(#{}, #{token => ?TOKEN}),
    {303, #{~"set-cookie" := _}, _} =
        get([~"/console/?token=", ?TOKEN],
            [{~"Sec-Fetch-Site", ~"cross-site"}, {~"Sec-Fetch-Dest", ~"document"}], WithToken),
    erlmcp_test_http:stop(WithToken).

%% The browser's URL is https, and this program sees http.
a_proxy_may_end_tls(_) ->
    Pages = #{~"/console" => erlmcp_console:page(#{token => ?TOKEN})},
    Server = erlmcp_test_http:start(#{
        listen => [{http, #{pages => Pages, allowed_hosts => [~"mcp.example.com"],
                            trusted_proxies => [~"127.0.0.1"]}}]}),
    Proxied = fun(Origin, Site) ->
        [{~"Host", ~"mcp.example.com"}, {~"Origin", Origin}, {~"Sec-Fetch-Site", Site},
         {~"X-Forwarded-For", ~"192.0.2.7"}, {~"X-Forwarded-Proto", ~"https"}]
    end,
    Own = Proxied(~"https://mcp.example.com", ~"same-origin"),
    {303, #{~"set-cookie" := SetCookie}, _} =
        post(~"/console/login", Own, [~"token=", ?TOKEN], Server),
    [Cookie | Attributes] = binary:split(SetCookie, ~"; ", [global]),
    ~"Secure" = lists:last(Attributes),
    {404, _, _} = post(~"/console/cancel", [{~"Cookie", Cookie} | Own], #{id => ~"1"}, Server),
    [{403, _, _} = post(~"/console/cancel", [{~"Cookie", Cookie} | Proxied(Origin, Site)],
                        #{id => ~"1"}, Server)
     || {Origin, Site} <- [{~"https://mcp.example.com", ~"cross-site"},
                           {~"https://mcp.example.com:8443", ~"same-origin"},
                           {~"https://example.com", ~"same-origin"}]],
    erlmcp_test_http:stop(Server).

%% A browser has no `Host` there.
it_is_used_on_http2(_) ->
    {ok, _} = application:ensure_all_started(gun),
    #{port := Port} = Server = start(#{}),
    {ok, Connection} = gun:open("127.0.0.1", Port, #{protocols => [http2], retry => 0}),
    {ok, http2} = gun:await_up(Connection, 10_000),
    Stream = gun:post(Connection, ~"/console/cancel", [{~"origin", origin(Server)}],
                      ~'{"id": "1"}'),
    {response, nofin, 404, _} = gun:await(Connection, Stream, 10_000),
    ok = gun:close(Connection),
    erlmcp_test_http:stop(Server).

%% As when the form is open in two windows.
a_second_login_is_no_error(_) ->
    Server = start(#{}, #{token => ?TOKEN}),
    {303, #{~"location" := ~"/console/"}, _} =
        post(~"/console/login", [{~"Origin", origin(Server)},
                                 {~"Authorization", [~"Bearer ", ?TOKEN]}],
             [~"token=", ?TOKEN], Server),
    erlmcp_test_http:stop(Server).

actions_are_checked(_) ->
    Server = start(#{}),
    [{400, _, _} = post(Path, [{~"Origin", origin(Server)}], Body, Server)
     || {Path, Body} <- [{~"/console/cancel", ~""}, {~"/console/cancel", ~"{"},
                         {~"/console/cancel", ~"[]"}, {~"/console/cancel", ~"{}"},
                         {~"/console/cancel", ~"{\"id\": 1}"}, {~"/console/none", ~"{}"},
                         {~"/console/call", ~"{\"tool\": \"a\"}"},
                         {~"/console/call", ~"{\"tool\": \"a\", \"arguments\": []}"},
                         {~"/console/answer", ~"{}"},
                         {~"/console/answer",
                          ~B|{"call": "a", "question": "1", "action": "x"}|},
                         {~"/console/answer",
                          ~B|{"call": "a", "question": "1", "action": "accept"}|}]],
    erlmcp_test_http:stop(Server).

actions_are_logged_without_secrets(_) ->
    Server = start(#{tools => [#{name => ~"echo", handler => fun(_, _) -> ~"done" end}]},
                   #{token => ?TOKEN}),
    ok = logger:add_handler(?MODULE, ?MODULE, #{test => self()}),
    With = [{~"Origin", origin(Server)}, {~"Authorization", [~"Bearer ", ?TOKEN]}],
    {303, _, _} = get([~"/console/?token=", ?TOKEN], Server),
    {403, _, _} = get(~"/console/?token=not-the-secret-one", Server),
    {404, _, _} = post(~"/console/cancel", With, #{id => ~"17"}, Server),
    {200, _, _} = post(~"/console/call", With,
                       #{tool => ~"echo", arguments => #{password => ~"hunter2"}}, Server),
    Logged = [receive {logged, Report} -> Report after 5_000 -> ct:fail(not_logged) end
              || _ <- lists:seq(1, 4)],
    ok = logger:remove_handler(?MODULE),
    [login, login_denied, cancel, call] = [Action || #{action := Action} <- Logged],
    [#{what := console_action, peer := ~"127.0.0.1", server := _} = Report || Report <- Logged],
    Text = unicode:characters_to_binary(io_lib:format("~0tp", [Logged])),
    [nomatch = binary:match(Text, Secret)
     || Secret <- [?TOKEN, ~"not-the-secret-one", ~"hunter2"]],
    erlmcp_test_http:stop(Server).

log(#{msg := {report, #{what := console_action} = Report}}, #{test := Test}) ->
    Test ! {logged, Report};
log(_, _) ->
    ok.

every_answer_has_its_policy(_) ->
    Server = start(#{}),
    [begin
         {_, Headers, _} = Answer,
         #{~"content-security-policy" := Policy, ~"x-content-type-options" := ~"nosniff",
           ~"x-frame-options" := ~"DENY", ~"referrer-policy" := ~"same-origin",
           ~"cross-origin-opener-policy" := ~"same-origin",
           ~"cross-origin-resource-policy" := ~"same-origin"} = Headers,
         {0, _} = binary:match(Policy, ~"default-src 'none'; "),
         {_, _} = binary:match(Policy, ~"frame-ancestors 'none'"),
         nomatch = re:run(Policy, "unsafe|https?:|\\*")
     end || Answer <- [get(~"/console/", Server), get(~"/console/app.js", Server),
                       get(~"/console/none", Server), get(~"/console/tools", Server),
                       get(~"/console/", [{~"Via", ~"1"}], Server),
                       post(~"/console/cancel", #{id => ~"1"}, Server)]],
    erlmcp_test_http:stop(Server).

only_files_of_the_page_are_found(_) ->
    Server = start(#{}),
    [{404, _, _} = get([~"/console", Path], Server)
     || Path <- [~"/none", ~"/../erlmcp_console.app", ~"/..%2fapp.js", ~"/uplot", ~"/uplot/",
                 ~"/uplot/LICENSE", ~"/index.html", ~"//app.js", ~"/app.js/"]],
    {200, #{~"etag" := Tag}, _} = get(~"/console/app.js", Server),
    {304, _, ~""} = get(~"/console/app.js", [{~"If-None-Match", Tag}], Server),
    {200, _, _} = get(~"/console/app.js", [{~"If-None-Match", ~"\"x\""}], Server),
    erlmcp_test_http:stop(Server).

viewers_are_bounded(_) ->
    Server = start(#{}),
    Open = [erlmcp_test_console:events(~"/console/feed", Server) || _ <- lists:seq(1, 90)],
    {503, _, Words} = get(~"/console/feed", Server),
    #{~"error" := _} = json:decode(Words),
    %% Files and actions still have room.
    {200, _, _} = get(~"/console/", Server),
    [First | Others] = Open,
    ok = erlmcp_test_http:close(First),
    ok = until_200(~"/console/feed", Server),
    ok = lists:foreach(fun erlmcp_test_http:close/1, Others),
    erlmcp_test_http:stop(Server).

until_200(Path, Server) ->
    Socket = erlmcp_test_console:open(Path, Server),
    {Status, _} = erlmcp_test_http:head(Socket),
    ok = erlmcp_test_http:close(Socket),
    case Status of
        200 -> ok;
        503 -> receive after 20 -> until_200(Path, Server) end
    end.

options_are_checked(_) ->
    erlmcp_test_doctests:run([erlmcp_console]),
    [{bad_option, Key, _} =
         try erlmcp_console:page(#{Key => Value}) catch error:Reason -> Reason end
     || {Key, Value} <- [{token, ~"fifteen-bytes--"}, {token, "a-list-of-sixteen"},
                         {latency_ms, 0}, {latency_ms, 1.5}, {other, 1}, {payloads, yes},
                         {redact, ~"ssn"}, {redact, [~"ssn", ~"/a~2"]}, {redact, [ssn]}]],
    {erlmcp_console, #{token := ~"sixteen-bytes---"}} =
        erlmcp_console:page(#{token => ~"sixteen-bytes---"}),
    true = byte_size(erlmcp_console:token()) >= 32,
    true = erlmcp_console:token() =/= erlmcp_console:token().

origin(#{port := Port}) -> <<"http://127.0.0.1:", (integer_to_binary(Port))/binary>>.
