-module(pages_SUITE).
-moduledoc """
The pages of a listener (`m:erlmcp_page`), beside its endpoint and on a listener of their own: on
HTTP/1.1, in the clear and over TLS, and on HTTP/2. Each page is a fun, which a case gives as the
state of the page.
""".

-behaviour(erlmcp_page).

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2]).
-export([pages_are_answered/1, paths_are_routed/1, other_methods_are_refused/1,
         bodies_are_bounded/1, a_crash_is_an_incident/1, memory_is_bounded/1, time_is_bounded/1,
         headers_are_checked/1, hosts_and_origins_are_checked/1, identities_are_asked_for/1,
         hundred_run_at_once/1, streams_come_in_pieces/1, a_stream_ends_with_its_client/1,
         a_stream_ends_with_its_server/1, a_stream_that_is_not_read_ends/1,
         a_stream_ends_with_its_token/1,
         a_stream_that_crashes_is_cut/1, pages_need_no_permit/1, a_listener_may_have_only_pages/1]).
-export([requests_behind_a_page_are_answered/1, no_body_arrives_in_time/1,
         a_stream_of_the_refused_goes_on/1, pages_that_begin_together_are_answered/1]).
-export([handle/2]).

-import(erlmcp_test_http, [connect/1, write/2, message/3, stop/1, ended/1]).

-define(TIMEOUT, 30_000).
-define(ORIGIN, ~"https://app.example.com").
-define(TYPE, ~"content-type").

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, clear}, {group, tls}, {group, http2}].

groups() ->
    Cases = [pages_are_answered, paths_are_routed, other_methods_are_refused, bodies_are_bounded,
             a_crash_is_an_incident, memory_is_bounded, time_is_bounded, headers_are_checked,
             hosts_and_origins_are_checked, identities_are_asked_for, hundred_run_at_once,
             streams_come_in_pieces, a_stream_ends_with_its_client, a_stream_that_is_not_read_ends,
             a_stream_ends_with_its_token, a_stream_that_crashes_is_cut, pages_need_no_permit,
             a_listener_may_have_only_pages, a_stream_ends_with_its_server],
    Http1 = Cases ++ [requests_behind_a_page_are_answered, no_body_arrives_in_time],
    Slow = [a_stream_of_the_refused_goes_on],
    Clear = Http1 ++ Slow ++ [pages_that_begin_together_are_answered],
    [{clear, Clear}, {tls, Http1}, {http2, Cases ++ Slow}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, ssl, gun], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(tls, Config) ->
    [{listener, #{tls => erlmcp_test_http:shown()}}, {protocol, http}, {transport, tls} | Config];
init_per_group(clear, Config) ->
    [{listener, #{}}, {protocol, http}, {transport, tcp} | Config];
init_per_group(http2, Config) ->
    [{listener, #{}}, {protocol, http2}, {transport, tcp} | Config].

end_per_group(_, _) ->
    ok.

handle(Request, Fun) ->
    Fun(Request).

pages_are_answered(Config) ->
    Test = self(),
    Page = fun(#{method := Method, body := Body} = Request) ->
        Test ! {Method, Request},
        {201, #{?TYPE => ~"text/plain", ~"x-name" => [~"a", "b"]}, [~"got ", Body]}
    end,
    Server = serve(#{}, #{~"/page" => Page}, Config),
    #{pid := Pid} = Server,
    Connection = open(Server, Config),
    {201, #{?TYPE := ~"text/plain", ~"x-name" := ~"ab", ~"content-length" := ~"4",
            ~"cache-control" := ~"no-store", ~"x-content-type-options" := ~"nosniff",
            ~"date" := _}, ~"got "} = ask(Connection, ~"GET", ~"/page?a=1&b", [{~"x-my", ~"1"}]),
    Scheme = scheme(Config),
    #{path := ~"/page", below := ~"", query := ~"a=1&b", scheme := Scheme,
      host := ~"127.0.0.1", peer := {{127, 0, 0, 1}, _}, principal := anonymous, body := ~"",
      headers := #{~"x-my" := ~"1"}, server := Id} = received(~"GET"),
    Listeners = erlmcp:listeners(Pid),
    Listeners = erlmcp:listeners(Id),
    {201, _, ~"got bytes"} = ask(Connection, ~"POST", ~"/page/below/it", [], ~"bytes"),
    #{path := ~"/page/below/it", below := ~"/below/it", query := ~""} = received(~"POST"),
    {201, Headers, ~""} = ask(Connection, ~"HEAD", ~"/page", []),
    #{?TYPE := ~"text/plain"} = Headers,
    _ = received(~"HEAD"),
    %% The endpoint is on the same connection.
    {200, _, _} = list_tools(Connection),
    {201, _, _} = ask(Connection, ~"GET", ~"/page", []),
    ok = close(Connection),
    stop(Server).

paths_are_routed(Config) ->
    Named = fun(Name) -> fun(#{below := Below}) -> {200, #{}, [Name, $|, Below]} end end,
    Server = serve(#{}, #{~"/" => Named(~"root"), ~"/a" => Named(~"a"), ~"/a/b" => Named(~"b"),
                          ~"/mcp/c" => Named(~"c")}, Config),
    Connection = open(Server, Config),
    [{200, _, Answer} = ask(Connection, ~"GET", Path, [])
     || {Path, Answer} <- [{~"/", ~"root|"}, {~"/a", ~"a|"}, {~"/a/", ~"a|/"}, {~"/a/c", ~"a|/c"},
                           {~"/a/b", ~"b|"}, {~"/a/b/c/d", ~"b|/c/d"}, {~"/a/bc", ~"a|/bc"},
                           {~"/mcp/c", ~"c|"}]],
    [{404, _, _} = ask(Connection, ~"GET", Path, [])
     || Path <- [~"/ab", ~"/A", ~"/b", ~"//", ~"//a", ~"/mcp/", ~"/mcp/d"]],
    {405, _, _} = ask(Connection, ~"GET", ~"/mcp", []),
    ok = close(Connection),
    stop(Server).

other_methods_are_refused(Config) ->
    Server = serve(#{}, #{~"/page" => fun no_page/1}, Config),
    Connection = open(Server, Config),
    [{405, #{~"allow" := ~"GET, HEAD, POST"}, _} = ask(Connection, Method, ~"/page", [])
     || Method <- [~"PUT", ~"DELETE", ~"OPTIONS", ~"BREW"]],
    {200, _, _} = list_tools(Connection),
    ok = close(Connection),
    stop(Server).

no_page(_) ->
    error(a_page_was_run).

bodies_are_bounded(Config) ->
    Size = fun(#{body := Body}) -> {200, #{}, integer_to_binary(byte_size(Body))} end,
    Server = serve(#{}, #{~"/page" => Size}, Config),
    Connection = open(Server, Config),
    {200, _, ~"65536"} = ask(Connection, ~"POST", ~"/page", [], binary:copy(~"a", 65_536)),
    {413, _, Refused} = ask(Connection, ~"POST", ~"/page", [], binary:copy(~"a", 65_537)),
    #{~"error" := #{~"data" := #{~"limit" := 65_536, ~"observed" := 65_537}}} =
        json:decode(Refused),
    %% Without an announced length, it is refused while it arrives.
    {200, _, ~"65536"} = ask_in_parts(Connection, [binary:copy(~"a", 32_768) || _ <- [1, 2]]),
    {413, _, _} = ask_in_parts(Connection, [binary:copy(~"a", 32_768), binary:copy(~"a", 32_769)]),
    ok = close(Connection),
    stop(Server).

a_crash_is_an_incident(Config) ->
    Server = serve(#{}, #{~"/error" => fun(_) -> error(secret_reason) end,
                          ~"/throw" => fun(_) -> throw(secret_reason) end,
                          ~"/exit" => fun(_) -> exit(secret_reason) end,
                          ~"/killed" => fun(_) -> exit(self(), kill), receive never -> ok end end,
                          ~"/other" => fun(_) -> secret_reason end,
                          ~"/status" => fun(_) -> {600, #{}, ~""} end,
                          ~"/body" => fun(_) -> {200, #{}, secret_reason} end}, Config),
    Connection = open(Server, Config),
    [begin
         {500, _, Body} = ask(Connection, ~"GET", Path, []),
         #{~"error" := #{~"data" := #{~"incident" := <<_:16/binary>>}}} = json:decode(Body),
         nomatch = binary:match(Body, ~"secret")
     end || Path <- [~"/error", ~"/throw", ~"/exit", ~"/killed", ~"/other", ~"/status", ~"/body"]],
    {200, _, _} = list_tools(Connection),
    ok = close(Connection),
    stop(Server).

memory_is_bounded(Config) ->
    Server = serve(#{call_heap_bytes => 10_000_000},
                   #{~"/page" => fun(_) -> {200, #{}, integer_to_binary(length(hog([])))} end},
                   Config),
    Connection = open(Server, Config),
    {500, _, Body} = ask(Connection, ~"GET", ~"/page", []),
    #{~"error" := #{~"data" := #{~"incident" := _}}} = json:decode(Body),
    ok = close(Connection),
    stop(Server).

hog(List) -> hog([make_ref() | List]).

time_is_bounded(Config) ->
    Server = serve(#{call_timeout_ms => 1000}, #{~"/page" => waiting(self())}, Config),
    Connection = open(Server, Config),
    {503, _, Body} = ask(Connection, ~"GET", ~"/page", []),
    #{~"error" := #{~"data" := #{~"incident" := _, ~"limit" := 1000}}} = json:decode(Body),
    %% On a busy machine the page may not have begun.
    receive
        {running, Pid} -> _ = ended(Pid)
    after 0 ->
        ok
    end,
    {200, _, _} = list_tools(Connection),
    ok = close(Connection),
    stop(Server).

%% The bytes of a header may be a client's.
headers_are_checked(Config) ->
    Page = fun(#{body := Header}) ->
        [Name, Value] = binary:split(Header, ~"="),
        {200, #{Name => Value}, ~""}
    end,
    Server = serve(#{}, #{~"/page" => Page}, Config),
    Connection = open(Server, Config),
    Ask = fun(Header) ->
        {Status, Headers, _} = ask(Connection, ~"POST", ~"/page", [], Header),
        {Status, Headers}
    end,
    {200, #{~"x-a" := ~"b c"}} = Ask(~"x-a=b c"),
    [{500, _} = Ask(Header)
     || Header <- [~"x-a=b\r\nset-cookie: c", ~"x-a=b\nc", ~"x-a=b\0", ~"x-a: b\r\nx-b=c", ~"X-A=b",
                   ~"=a", ~"x a=b", ~"content-length=3", ~"transfer-encoding=chunked",
                   ~"connection=close"]],
    {200, _, _} = list_tools(Connection),
    ok = close(Connection),
    stop(Server).

hosts_and_origins_are_checked(Config) ->
    Server = serve(#{}, #{~"/page" => {?MODULE, fun(_) -> {200, #{}, ~"page"} end}},
                   #{allowed_origins => [?ORIGIN]}, Config),
    Connection = open(Server, Config),
    {403, _, _} = ask(Connection, ~"GET", ~"/page", [{~"host", ~"evil.example.com"}]),
    {403, _, _} = ask(Connection, ~"GET", ~"/page", [{~"origin", ~"https://evil.example.com"}]),
    {200, #{~"access-control-allow-origin" := ?ORIGIN}, ~"page"} =
        ask(Connection, ~"GET", ~"/page", [{~"origin", ?ORIGIN}]),
    {200, Headers, ~"page"} = ask(Connection, ~"GET", ~"/page", []),
    false = is_map_key(~"access-control-allow-origin", Headers),
    ok = close(Connection),
    stop(Server).

identities_are_asked_for(Config) ->
    Page = fun(#{principal := Principal}) ->
        {200, #{}, io_lib:format("~p", [Principal])}
    end,
    Listener = #{authenticate => {process, fun authenticate/1}, scopes => [~"look"]},
    Server = serve(#{}, #{~"/open" => {?MODULE, Page}, ~"/also" => {?MODULE, Page, #{}},
                          ~"/mine" => {?MODULE, Page, #{authenticate => true}}}, Listener, Config),
    Connection = open(Server, Config),
    [{200, _, ~"anonymous"} = ask(Connection, ~"GET", Path, []) || Path <- [~"/open", ~"/also"]],
    {401, #{~"www-authenticate" := _}, _} = ask(Connection, ~"GET", ~"/mine", []),
    {403, _, _} = ask(Connection, ~"GET", ~"/mine", [{~"authorization", ~"Bearer eve"}]),
    {200, _, ~"<<\"ada\">>"} =
        ask(Connection, ~"GET", ~"/mine", [{~"authorization", ~"Bearer ada"}]),
    {200, _, ~"<<\"ada\">>"} =
        ask(Connection, ~"POST", ~"/mine", [{~"authorization", ~"Bearer ada"}], ~"body"),
    ok = close(Connection),
    stop(Server).

authenticate(#{headers := #{~"authorization" := ~"Bearer ada"}}) ->
    {ok, ~"ada", #{scopes => [~"look"]}};
authenticate(#{headers := #{~"authorization" := ~"Bearer short"}}) ->
    {ok, ~"short", #{scopes => [~"look"], expires_at => erlang:system_time(second) + 1}};
authenticate(#{headers := #{~"authorization" := _}}) ->
    {ok, ~"eve", #{scopes => []}};
authenticate(_) ->
    {error, ~"a token is needed"}.

hundred_run_at_once(Config) ->
    Server = serve(#{}, #{~"/page" => waiting(self()), ~"/free" => fun no_page/1}, Config),
    Connections = [open(Server, Config) || _ <- lists:seq(1, 101)],
    {Hundred, [Last]} = lists:split(100, Connections),
    Waiting = [{Connection, start(Connection, ~"GET", ~"/page", [])} || Connection <- Hundred],
    [First, Second | Others] = Pages = [running() || _ <- Waiting],
    {503, #{~"retry-after" := ~"1"}, Body} = ask(Last, ~"GET", ~"/page", []),
    #{~"error" := #{~"data" := #{~"limit" := 100}}} = json:decode(Body),
    %% The places are those of all pages of the listener. The endpoint needs none.
    {503, _, _} = ask(Last, ~"GET", ~"/free", []),
    {200, _, _} = list_tools(Last),
    %% A place is free after its page, whether the page has answered or was killed.
    true = exit(First, kill),
    _ = ended(First),
    Again = start(Last, ~"GET", ~"/page", []),
    Next = running(),
    ok = finish(Next),
    {200, _, ~"done"} = answer(Last, Again),
    ok = finish(Second),
    _ = ended(Second),
    AndAgain = start(Last, ~"GET", ~"/page", []),
    AfterIt = running(),
    [ok = finish(Page) || Page <- [AfterIt | Others]],
    {200, _, ~"done"} = answer(Last, AndAgain),
    Statuses = [Status || {Connection, Stream} <- Waiting,
                          {Status, _, _} <- [answer(Connection, Stream)]],
    [500 | Rest] = lists:reverse(lists:sort(Statuses)),
    [200] = lists:usort(Rest),
    100 = length(Pages),
    [ok = close(Connection) || Connection <- Connections],
    stop(Server).

%% Each takes the place of one that has just ended, and another takes it first now and then.
pages_that_begin_together_are_answered(Config) ->
    Server = serve(#{}, #{~"/page" => fun(_) -> {200, #{}, ~"page"} end}, Config),
    Ask = binary:copy(iolist_to_binary(request(~"GET", ~"/page", [], ~"")), 20),
    Clients = [spawn_monitor(fun() ->
        {http, Socket} = Connection = open(Server, Config),
        [begin
             ok = write(Socket, Ask),
             [{200, _, ~"page"} = answer(Connection, ~"GET") || _ <- lists:seq(1, 20)]
         end || _ <- lists:seq(1, 100)],
        ok = close(Connection)
    end) || _ <- lists:seq(1, 16)],
    [receive {'DOWN', Monitor, process, Pid, Reason} -> normal = Reason end
     || {Pid, Monitor} <- Clients],
    stop(Server).

streams_come_in_pieces(Config) ->
    Test = self(),
    Page = fun(_) ->
        {stream, #{?TYPE => ~"text/event-stream"}, fun(Send) ->
            Test ! {running, self()},
            pieces(Send)
        end}
    end,
    Server = serve(#{call_timeout_ms => 2000}, #{~"/page" => Page}, Config),
    Connection = open(Server, Config),
    Stream = start(Connection, ~"GET", ~"/page", []),
    {200, #{?TYPE := ~"text/event-stream"}} = head(Connection, Stream),
    Pid = running(),
    [begin
         Pid ! {send, Piece},
         Piece = part(Connection, Stream)
     end || Piece <- [~"one", ~"two", ~"three"]],
    %% A stream has no deadline.
    receive after 2100 -> ok end,
    Pid ! {send, ~"four"},
    ~"four" = part(Connection, Stream),
    Pid ! stop,
    ~"" = part(Connection, Stream),
    {200, _, _} = list_tools(Connection),
    %% HEAD has the head of the stream, and does not begin it.
    {200, Headers, ~""} = ask(Connection, ~"HEAD", ~"/page", []),
    #{?TYPE := ~"text/event-stream"} = Headers,
    {200, _, _} = list_tools(Connection),
    receive {running, _} -> error(a_stream_was_begun) after 0 -> ok end,
    ok = close(Connection),
    stop(Server).

pieces(Send) ->
    receive
        {send, Piece} ->
            ok = Send([Piece]),
            pieces(Send);
        stop ->
            done
    end.

a_stream_ends_with_its_client(Config) ->
    Test = self(),
    Page = fun(_) ->
        {stream, #{}, fun(Send) ->
            Test ! {running, self()},
            pieces(Send)
        end}
    end,
    Server = serve(#{}, #{~"/page" => Page}, Config),
    Connection = open(Server, Config),
    Stream = start(Connection, ~"GET", ~"/page", []),
    {200, _} = head(Connection, Stream),
    Pid = running(),
    ok = close(Connection),
    _ = ended(Pid),
    stop(Server).

%% The page sends a little more than what the sockets hold, and waits.
a_stream_that_is_not_read_ends(Config) ->
    Test = self(),
    Piece = binary:copy(~"a", 100_000),
    Page = fun(_) ->
        {stream, #{}, fun(Send) ->
            Test ! {running, self()},
            endless(Send, Piece, Test, 1)
        end}
    end,
    Server = serve(#{send_timeout_ms => 500}, #{~"/page" => Page}, Config),
    Connection = open(Server, Config),
    _ = start_unread(Connection, ~"/page"),
    Pid = running(),
    _ = ended(Pid),
    Sent = sent(0),
    true = Sent < 200,
    ok = close(Connection),
    stop(Server).

endless(Send, Piece, Test, Number) ->
    ok = Send(Piece),
    Test ! {sent, Number},
    endless(Send, Piece, Test, Number + 1).

sent(Last) ->
    receive {sent, Number} -> sent(Number) after 0 -> Last end.

a_stream_ends_with_its_token(Config) ->
    Page = fun(_) -> {stream, #{}, fun(Send) -> pieces(Send) end} end,
    Server = serve(#{}, #{~"/page" => {?MODULE, Page, #{authenticate => true}}},
                   #{authenticate => fun authenticate/1}, Config),
    Connection = open(Server, Config),
    Stream = start(Connection, ~"GET", ~"/page", [{~"authorization", ~"Bearer short"}]),
    {200, _} = head(Connection, Stream),
    ~"" = part(Connection, Stream),
    ok = close(Connection),
    stop(Server).

%% It would hold the server up otherwise until the connection is killed.
a_stream_ends_with_its_server(Config) ->
    Test = self(),
    Page = fun(_) ->
        {stream, #{}, fun(Send) ->
            Test ! {running, self()},
            pieces(Send)
        end}
    end,
    Server = serve(#{}, #{~"/page" => Page}, Config),
    Connection = open(Server, Config),
    Stream = start(Connection, ~"GET", ~"/page", []),
    {200, _} = head(Connection, Stream),
    Pid = running(),
    Pauses = erlmcp_test_pauses:start(),
    Began = erlang:monotonic_time(millisecond),
    stop(Server),
    _ = ended(Pid),
    Took = erlang:monotonic_time(millisecond) - Began,
    true = Took < 3_000 + erlmcp_test_pauses:total_ms(Pauses),
    ok = erlmcp_test_pauses:stop(Pauses),
    ~"" = part(Connection, Stream),
    ok = close(Connection).

a_stream_that_crashes_is_cut(Config) ->
    Page = fun(_) -> {stream, #{}, fun(Send) -> ok = Send(~"one"), error(on_purpose) end} end,
    Server = serve(#{}, #{~"/page" => Page}, Config),
    Connection = open(Server, Config),
    Stream = start(Connection, ~"GET", ~"/page", []),
    {200, _} = head(Connection, Stream),
    ~"one" = part(Connection, Stream),
    cut = part(Connection, Stream),
    ok = close(Connection),
    stop(Server).

%% A connection that gets no permit of the gate is answered pages, and nothing else.
pages_need_no_permit(Config) ->
    Server = serve(#{connections => 1}, #{~"/page" => fun(#{body := Body}) ->
        {200, #{}, [~"page", Body]}
    end}, Config),
    Held = open(Server, Config),
    {200, _, _} = list_tools(Held),
    Refused = open(Server, Config),
    {200, _, ~"page"} = ask(Refused, ~"GET", ~"/page", []),
    {200, _, ~"pagebytes"} = ask_in_parts(Refused, [~"byt", ~"es"]),
    {200, _, ~""} = ask(Refused, ~"HEAD", ~"/page", []),
    {429, _, _} = list_tools(Refused),
    ok = close(Refused),
    {200, _, _} = list_tools(Held),
    ok = close(Held),
    stop(Server).

%% A connection without a permit ends after five seconds, but not while it streams a page.
a_stream_of_the_refused_goes_on(Config) ->
    Test = self(),
    Page = fun(_) -> {stream, #{}, fun(Send) -> Test ! {running, self()}, pieces(Send) end} end,
    Server = serve(#{connections => 1}, #{~"/page" => Page}, Config),
    Held = open(Server, Config),
    {200, _, _} = list_tools(Held),
    Refused = open(Server, Config),
    Stream = start(Refused, ~"GET", ~"/page", []),
    {200, _} = head(Refused, Stream),
    Pid = running(),
    receive after 5_500 -> ok end,
    Pid ! {send, ~"later"},
    ~"later" = part(Refused, Stream),
    Pid ! stop,
    ~"" = part(Refused, Stream),
    %% After the page it ends by itself.
    case Refused of
        {http, Socket} -> ok = erlmcp_test_http:closed(Socket);
        {http2, Connection} -> _ = ended(Connection)
    end,
    {200, _, _} = list_tools(Held),
    ok = close(Held),
    stop(Server).

a_listener_may_have_only_pages(Config) ->
    Pages = #{~"/page" => {?MODULE, fun(_) -> {200, #{}, ~"page"} end}},
    Listener = proplists:get_value(listener, Config),
    {ok, Pid} = erlmcp:start_server(
        #{name => ~"test", version => ~"1",
          listen => [{http, Listener#{path => none, pages => Pages}}]}),
    [#{pages := [Url], port := Port} = Address] = erlmcp:listeners(Pid),
    false = is_map_key(url, Address),
    Root = <<(scheme(Config))/binary, "://127.0.0.1:", (integer_to_binary(Port))/binary>>,
    Url = <<Root/binary, "/page">>,
    Server = #{pid => Pid, port => Port, url => Root},
    Connection = open(Server, Config),
    {200, _, ~"page"} = ask(Connection, ~"GET", ~"/page", []),
    {404, _, _} = list_tools(Connection),
    %% It stays open while the server drains, and tells of it.
    {ok, _} = erlmcp:drain(Pid, 0),
    {200, _, ~"page"} = ask(Connection, ~"GET", ~"/page", []),
    New = open(Server, Config),
    {200, _, ~"page"} = ask(New, ~"GET", ~"/page", []),
    [ok = close(Open) || Open <- [Connection, New]],
    stop(Server).

requests_behind_a_page_are_answered(Config) ->
    Server = serve(#{}, #{~"/page" => fun(#{body := Body}) -> {200, #{}, [~"page ", Body]} end,
                          ~"/stream" => fun(_) ->
                              {stream, #{}, fun(Send) -> Send(~"a"), Send(~"b") end}
                          end}, Config),
    {http, Socket} = Connection = open(Server, Config),
    {Headers, Body} = message(~"tools/list", #{}, #{}),
    List = request(~"POST", ~"/mcp", Headers, Body),
    Page = request(~"POST", ~"/page", [], ~"one"),
    Head = request(~"HEAD", ~"/stream", [], ~""),
    Stream = request(~"GET", ~"/stream", [], ~""),
    ok = write(Socket, [Page, List, Stream, List, Head, List, Page]),
    {200, _, ~"page one"} = answer(Connection, ~"POST"),
    {200, _, <<"{", _/binary>>} = answer(Connection, ~"POST"),
    {200, _, ~"ab"} = answer(Connection, ~"GET"),
    {200, _, <<"{", _/binary>>} = answer(Connection, ~"POST"),
    {200, _, ~""} = answer(Connection, ~"HEAD"),
    {200, _, <<"{", _/binary>>} = answer(Connection, ~"POST"),
    {200, _, ~"page one"} = answer(Connection, ~"POST"),
    ok = close(Connection),
    stop(Server).

no_body_arrives_in_time(Config) ->
    Server = serve(#{receive_timeout_ms => 2_500}, #{~"/page" => fun no_page/1}, Config),
    {http, Socket} = Connection = open(Server, Config),
    ok = write(Socket, request(~"POST", ~"/page", [{~"content-length", ~"5"}], ~"four")),
    {408, _, _} = answer(Connection, ~"POST"),
    ok = close(Connection),
    stop(Server).

%% The server.

serve(Limits, Pages, Config) ->
    serve(Limits, #{Path => {?MODULE, Page} || Path := Page <- Pages}, #{}, Config).

serve(Limits, Pages, Options, Config) ->
    Listener = maps:merge(proplists:get_value(listener, Config), Options),
    erlmcp_test_http:start((erlmcp_test_http:definitions(self()))#{
        limits => Limits, listen => [{http, Listener#{pages => Pages}}]}).

%% A page that tells its test that it runs, and waits.
waiting(Test) ->
    fun(_) ->
        Test ! {running, self()},
        receive finish -> {200, #{}, ~"done"} end
    end.

running() ->
    receive
        {running, Pid} -> Pid
    after ?TIMEOUT ->
        error(no_page_runs)
    end.

finish(Pid) ->
    Pid ! finish,
    ok.

received(Method) ->
    receive
        {Method, Request} -> Request
    after ?TIMEOUT ->
        error(no_page_was_run)
    end.

scheme(Config) ->
    case proplists:get_value(transport, Config) of
        tls -> ~"https";
        tcp -> ~"http"
    end.

%% Its client, on either protocol.

open(#{port := Port} = Server, Config) ->
    case proplists:get_value(protocol, Config) of
        http2 ->
            {ok, Connection} = gun:open("127.0.0.1", Port, #{protocols => [http2], retry => 0}),
            {ok, _} = gun:await_up(Connection, ?TIMEOUT),
            {http2, Connection};
        http ->
            {http, connect(Server)}
    end.

close({http, Socket}) -> erlmcp_test_http:close(Socket);
close({http2, Connection}) -> gun:close(Connection).

ask(Connection, Method, Path, Headers) ->
    ask(Connection, Method, Path, Headers, ~"").

ask(Connection, Method, Path, Headers, Body) ->
    answer(Connection, start(Connection, Method, Path, Headers, Body)).

start(Connection, Method, Path, Headers) ->
    start(Connection, Method, Path, Headers, ~"").

start({http, Socket}, Method, Path, Headers, Body) ->
    ok = write(Socket, request(Method, Path, Headers, Body)),
    Method;
start({http2, Connection}, Method, Path, Headers, Body) ->
    gun:request(Connection, Method, Path, Headers, Body).

%% A request whose client reads nothing of the response.
start_unread({http2, Connection}, Path) ->
    gun:request(Connection, ~"GET", Path, [], ~"", #{flow => 1});
start_unread(Connection, Path) ->
    start(Connection, ~"GET", Path, []).

%% A body without an announced length.
ask_in_parts({http, Socket} = Connection, Parts) ->
    ok = write(Socket, request(~"POST", ~"/page", [{~"transfer-encoding", ~"chunked"}], ~"")),
    [ok = write(Socket, [integer_to_binary(byte_size(Part), 16), ~"\r\n", Part, ~"\r\n"])
     || Part <- Parts],
    ok = write(Socket, ~"0\r\n\r\n"),
    answer(Connection, ~"POST");
ask_in_parts({http2, Connection} = Opened, Parts) ->
    Stream = gun:headers(Connection, ~"POST", ~"/page", []),
    [ok = gun:data(Connection, Stream, nofin, Part) || Part <- Parts],
    ok = gun:data(Connection, Stream, fin, ~""),
    answer(Opened, Stream).

list_tools(Connection) ->
    {Headers, Body} = message(~"tools/list", #{}, #{}),
    ask(Connection, ~"POST", ~"/mcp", Headers, Body).

request(Method, Path, Headers, Body) ->
    Known = #{~"content-length" => integer_to_binary(byte_size(Body)) || Body =/= ~""},
    All = maps:merge(Known#{~"host" => ~"127.0.0.1"}, maps:from_list(Headers)),
    [Method, $\s, Path, ~" HTTP/1.1\r\n", [[Name, ~": ", Value, ~"\r\n"] || Name := Value <- All],
     ~"\r\n", Body].

head({http, Socket}, _) ->
    erlmcp_test_http:head(Socket);
head({http2, Connection}, Stream) ->
    {response, nofin, Status, Headers} = gun:await(Connection, Stream, ?TIMEOUT),
    {Status, maps:from_list(Headers)}.

answer({http, Socket}, Method) ->
    {Status, Headers} = erlmcp_test_http:head(Socket),
    Body = case Method of
        ~"HEAD" -> ~"";
        _ -> erlmcp_test_http:body(Socket, Headers)
    end,
    {Status, Headers, Body};
answer({http2, Connection}, Stream) ->
    case gun:await(Connection, Stream, ?TIMEOUT) of
        {response, fin, Status, Headers} ->
            {Status, maps:from_list(Headers), ~""};
        {response, nofin, Status, Headers} ->
            {ok, Body} = gun:await_body(Connection, Stream, ?TIMEOUT),
            {Status, maps:from_list(Headers), Body}
    end.

%% The next part of a body, which is empty at its end.
part({http, Socket}, _) ->
    try
        erlmcp_test_http:chunk(Socket)
    catch
        error:{badmatch, {error, closed}} -> cut
    end;
part({http2, Connection}, Stream) ->
    case gun:await(Connection, Stream, ?TIMEOUT) of
        {data, _, Data} -> Data;
        {error, {stream_error, _}} -> cut
    end.
