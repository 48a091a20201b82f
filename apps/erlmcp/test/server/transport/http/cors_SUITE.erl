-module(cors_SUITE).
-moduledoc """
What pages of other origins can do, as their browser does it (Fetch standard, "HTTP CORS protocol"):
it asks first, and lets a page read only what is answered for its origin. On HTTP/1.1 and HTTP/2.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2]).
-export([browsers_may_ask_first/1, questions_need_no_token/1, other_questions_are_not_answered/1,
         stateless_requests_can_be_read/1, sessions_can_be_read/1, refusals_can_be_read/1,
         challenges_can_be_read/1, heads_that_come_again_keep_apart/1,
         origins_without_a_name_are_told_nothing/1, other_origins_get_what_they_got/1,
         http_sse_can_be_read/1, metadata_can_be_read/1, connections_without_a_place/1]).

-import(erlmcp_test_http, [message/3]).

-define(TIMEOUT, 30_000).
-define(PAGE, ~"https://app.example.com").
-define(LOCAL, ~"http://localhost:6274").
-define(ORIGIN, ~"access-control-allow-origin").
-define(METHODS, ~"access-control-allow-methods").

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, http11}, {group, http2}].

groups() ->
    Cases = [browsers_may_ask_first, questions_need_no_token, other_questions_are_not_answered,
             stateless_requests_can_be_read, sessions_can_be_read, refusals_can_be_read,
             challenges_can_be_read, heads_that_come_again_keep_apart,
             origins_without_a_name_are_told_nothing, other_origins_get_what_they_got,
             http_sse_can_be_read, metadata_can_be_read, connections_without_a_place],
    [{http11, Cases}, {http2, Cases}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, gun], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(http11, Config) -> [{protocol, http} | Config];
init_per_group(http2, Config) -> [{protocol, http2} | Config].

end_per_group(_, _) ->
    ok.

%% "If request's method is not a CORS-safelisted method [...] or its headers are not": before such a
%% request its browser sends OPTIONS, and wants an ok status, the origin, the methods and the
%% headers.
browsers_may_ask_first(Config) ->
    with_server(#{}, fun(Connection) ->
        {204, #{?ORIGIN := ?PAGE, ~"vary" := ~"Origin", ?METHODS := ~"POST, GET, DELETE",
                ~"access-control-allow-headers" := Allowed,
                ~"access-control-max-age" := Seconds} = Headers, <<>>} =
            ask(Connection, ~"/mcp", [{~"origin", ?PAGE}]),
        true = binary_to_integer(Seconds) > 0,
        %% That would be for cookies.
        false = is_map_key(~"access-control-allow-credentials", Headers),
        [true = lists:member(Name, names(Allowed))
         || Name <- [~"content-type", ~"accept", ~"authorization", ~"dpop",
                     ~"mcp-protocol-version", ~"mcp-session-id", ~"mcp-method", ~"mcp-name",
                     ~"last-event-id",
                     %% for headers of the definitions, `Mcp-Param-*`, and those of `authenticate`
                     ~"*"]],
        {204, #{?ORIGIN := ?LOCAL}, <<>>} = ask(Connection, ~"/mcp", [{~"origin", ?LOCAL}]),
        {200, #{?ORIGIN := ?PAGE}, _} = answer(Connection, echo(Connection, page()))
    end, Config).

names(List) ->
    [string:lowercase(string:trim(Name)) || Name <- binary:split(List, ~",", [global])].

%% "A CORS-preflight request never includes credentials."
questions_need_no_token(Config) ->
    with_server(#{authenticate => fun authenticate/1}, fun(Connection) ->
        {204, #{?ORIGIN := ?PAGE}, <<>>} = ask(Connection, ~"/mcp", [{~"origin", ?PAGE}]),
        {401, #{?ORIGIN := ?PAGE}, _} = answer(Connection, echo(Connection, page())),
        {200, #{?ORIGIN := ?PAGE}, _} = answer(Connection, echo(Connection, page(~"ada")))
    end, Config).

other_questions_are_not_answered(Config) ->
    with_server(#{}, fun(Connection) ->
        Page = {~"origin", ?PAGE},
        {405, #{?ORIGIN := ?PAGE}, _} =
            answer(Connection, gun:options(Connection, "/mcp", [Page])),
        {404, #{?ORIGIN := ?PAGE}, _} = ask(Connection, ~"/elsewhere", [Page]),
        {403, _, _} = ask(Connection, ~"/mcp", [Page, {~"host", ~"evil.example.com"}]),
        {405, Headers, _} = ask(Connection, ~"/mcp", []),
        [] = shared(Headers),
        %% With a body it is no browser's.
        With = [Page, {~"access-control-request-method", ~"POST"},
                {~"content-length", ~"1"}],
        {405, _, _} = answer(Connection, gun:request(Connection, "OPTIONS", "/mcp", With, ~"a"))
    end, Config),
    %% Without an endpoint there is nothing to ask about.
    with_server(#{path => none, health => true}, fun(Connection) ->
        {404, #{?ORIGIN := ?PAGE}, _} = ask(Connection, ~"/", [{~"origin", ?PAGE}])
    end, Config).

stateless_requests_can_be_read(Config) ->
    with_server(#{}, fun(Connection) ->
        {200, #{?ORIGIN := ?PAGE, ~"vary" := ~"Origin",
                ~"content-type" := ~"application/json"}, _} =
            answer(Connection, echo(Connection, page())),
        Progress = post(Connection, ~"tools/call", #{name => ~"progress"},
                        (page())#{meta => #{progressToken => 1}}),
        {200, #{?ORIGIN := ?PAGE, ~"content-type" := ~"text/event-stream"}, Events} =
            answer(Connection, Progress),
        [_, _ | _] = erlmcp_test_http:events(Events),
        {202, #{?ORIGIN := ?PAGE}, <<>>} =
            answer(Connection, post(Connection, ~"notifications/cancelled", #{requestId => 7},
                                    (page())#{id => none}))
    end, Config).

%% The session's id is a header, and one that a page sees only where it is said so.
sessions_can_be_read(Config) ->
    with_server(#{}, fun(Connection) ->
        Params = #{protocolVersion => ~"2025-11-25", capabilities => #{},
                   clientInfo => #{name => ~"page", version => ~"1"}},
        New = #{session => {~"", ~"2025-11-25"},
                headers => #{~"origin" => ?PAGE, ~"mcp-session-id" => none}},
        {200, #{?ORIGIN := ?PAGE, ~"mcp-session-id" := Id,
                ~"access-control-expose-headers" := Exposed}, _} =
            answer(Connection, post(Connection, ~"initialize", Params, New)),
        true = lists:member(~"mcp-session-id", names(Exposed)),
        Session = (page())#{session => {Id, ~"2025-11-25"}},
        {202, #{?ORIGIN := ?PAGE}, _} =
            answer(Connection, post(Connection, ~"notifications/initialized", #{},
                                    Session#{id => none})),
        {200, #{?ORIGIN := ?PAGE}, _} =
            answer(Connection, post(Connection, ~"tools/list", #{}, Session)),
        Headers = [{~"origin", ?PAGE}, {~"mcp-session-id", Id}],
        {204, #{?ORIGIN := ?PAGE}, _} =
            answer(Connection, gun:delete(Connection, "/mcp", Headers)),
        {404, #{?ORIGIN := ?PAGE}, _} =
            answer(Connection, post(Connection, ~"tools/list", #{}, Session)),
        {200, #{~"mcp-session-id" := Next}, _} =
            answer(Connection, post(Connection, ~"initialize", Params, New)),
        Stream = gun:get(Connection, "/mcp", [{~"origin", ?PAGE}, {~"mcp-session-id", Next},
                                              {~"accept", ~"text/event-stream"}]),
        {response, nofin, 200, Opened} = gun:await(Connection, Stream, ?TIMEOUT),
        #{?ORIGIN := ?PAGE} = maps:from_list(Opened)
    end, Config).

refusals_can_be_read(Config) ->
    with_server(#{}, fun(Connection) ->
        [{Status, #{?ORIGIN := ?PAGE}, <<"{", _/binary>>} =
             answer(Connection, post(Connection, Method, #{},
                                     #{headers => maps:merge(#{~"origin" => ?PAGE}, Changed)}))
         || {Status, Method, Changed} <-
                [{404, ~"no/such", #{}},
                 {406, ~"tools/list", #{~"accept" => ~"text/html"}},
                 {415, ~"tools/list", #{~"content-type" => ~"text/html"}},
                 {400, ~"tools/list", #{~"mcp-method" => ~"x"}},
                 {403, ~"tools/list", #{~"host" => ~"evil.example.com"}}]],
        Broken = gun:post(Connection, "/mcp", [{~"origin", ?PAGE},
                                               {~"content-type", ~"application/json"}], ~"{"),
        {400, #{?ORIGIN := ?PAGE}, _} = answer(Connection, Broken)
    end, Config).

%% Who asks may be found out in another process; the answer is the page's all the same.
challenges_can_be_read(Config) ->
    with_server(#{authenticate => {process, fun authenticate/1}}, fun(Connection) ->
        {401, #{?ORIGIN := ?PAGE, ~"www-authenticate" := _,
                ~"access-control-expose-headers" := Exposed}, _} =
            answer(Connection, echo(Connection, page())),
        [true = lists:member(Name, names(Exposed))
         || Name <- [~"www-authenticate", ~"retry-after", ~"dpop-nonce"]],
        {200, #{?ORIGIN := ?PAGE}, _} = answer(Connection, echo(Connection, page(~"ada"))),
        {200, Headers, _} = answer(Connection, echo(Connection, token(~"ada"))),
        [] = shared(Headers)
    end, Config).

%% What a head came to before is not another's answer (a connection may be a proxy's).
heads_that_come_again_keep_apart(Config) ->
    with_server(#{}, fun(Connection) ->
        [begin
             {200, Headers, _} = answer(Connection, echo(Connection, Options)),
             Expected = maps:get(?ORIGIN, Headers, none)
         end || _ <- [1, 2, 3],
                {Expected, Options} <- [{?PAGE, page()}, {?PAGE, page()}, {none, #{}}, {none, #{}},
                                        {?LOCAL, #{headers => #{~"origin" => ?LOCAL}}},
                                        {none, #{headers => #{~"origin" => ~"http://localhost"}}}]],
        [{403, #{}, _} = answer(Connection, echo(Connection, elsewhere())) || _ <- [1, 2]]
    end, Config).

%% Those of the loopback and of the same host may enter, and so may all where the option says so.
origins_without_a_name_are_told_nothing(Config) ->
    [with_server(Options, fun(Connection) ->
         [begin
              {200, Headers, _} = answer(Connection, echo(Connection, With)),
              [] = shared(Headers)
          end || With <- [#{}, #{headers => #{~"origin" => Origin}}]],
         {405, Asked, _} = ask(Connection, ~"/mcp", [{~"origin", Origin}]),
         [] = shared(Asked)
     end, Config)
     || {Options, Origin} <- [{#{}, ~"http://localhost:3000"}, {#{}, ~"http://127.0.0.1"},
                              {#{allowed_origins => any}, ~"https://elsewhere.example"},
                              {#{allowed_origins => []}, ~"http://localhost:6274"}]].

other_origins_get_what_they_got(Config) ->
    with_server(#{}, fun(Connection) ->
        [begin
             {403, Headers, _} = ask(Connection, ~"/mcp", [{~"origin", Origin}]),
             [] = shared(Headers),
             {403, Posted, _} =
                 answer(Connection, echo(Connection, #{headers => #{~"origin" => Origin}})),
             [] = shared(Posted)
         end || Origin <- [~"https://elsewhere.example", ~"null", ~"http://app.example.com",
                           ~"https://app.example.com:8443",
                           ~"https://app.example.com, https://elsewhere.example"]]
    end, Config).

http_sse_can_be_read(Config) ->
    with_server(#{sse => #{}}, fun(Connection) ->
        Page = {~"origin", ?PAGE},
        [{204, #{?ORIGIN := ?PAGE, ?METHODS := Methods}, <<>>} = ask(Connection, Path, [Page])
         || {Path, Methods} <- [{~"/mcp", ~"POST, GET, DELETE"}, {~"/sse", ~"GET"},
                                {~"/messages", ~"POST"}]],
        {404, #{?ORIGIN := ?PAGE}, _} =
            answer(Connection, gun:post(Connection, "/messages?sessionId=none",
                                        [Page, {~"content-type", ~"application/json"}], ~"{}")),
        {200, #{?ORIGIN := ?PAGE}, _} = answer(Connection, echo(Connection, page())),
        Stream = gun:get(Connection, "/sse", [Page, {~"accept", ~"text/event-stream"}]),
        {response, nofin, 200, Headers} = gun:await(Connection, Stream, ?TIMEOUT),
        #{?ORIGIN := ?PAGE, ~"vary" := ~"Origin"} = maps:from_list(Headers)
    end, Config).

%% It is public, and for a page that is named as for any other.
metadata_can_be_read(Config) ->
    Path = ~"/.well-known/oauth-protected-resource",
    Resource = #{authorization_servers => [~"https://as.example"]},
    with_server(#{protected_resource => Resource}, fun(Connection) ->
        [begin
             {204, #{?ORIGIN := Told, ?METHODS := ~"GET, HEAD, OPTIONS"}, <<>>} =
                 ask(Connection, Path, [{~"origin", Origin}]),
             {200, #{?ORIGIN := Told}, _} =
                 answer(Connection, gun:get(Connection, Path, [{~"origin", Origin}]))
         end || {Origin, Told} <- [{?PAGE, ?PAGE}, {~"https://elsewhere.example", ~"*"}]]
    end, Config).

connections_without_a_place(Config) ->
    Server = start(#{}, #{connections => 1}),
    Connection = open(Server, Config),
    {200, _, _} = answer(Connection, echo(Connection, page())),
    [begin
         Refused = open(Server, Config),
         {429, Headers, _} = answer(Refused, echo(Refused, Options)),
         Told = maps:get(?ORIGIN, Headers, none),
         ok = gun:close(Refused)
     end || {Options, Told} <- [{page(), ?PAGE}, {#{}, none}, {elsewhere(), none}]],
    ok = gun:close(Connection),
    erlmcp_test_http:stop(Server).

%% What a page sends, and what it gets.

page() ->
    #{headers => #{~"origin" => ?PAGE}}.

page(Token) ->
    #{headers := Headers} = token(Token),
    #{headers => Headers#{~"origin" => ?PAGE}}.

elsewhere() ->
    #{headers => #{~"origin" => ~"https://elsewhere.example"}}.

token(Token) ->
    #{headers => #{~"authorization" => <<"Bearer ", Token/binary>>}}.

authenticate(#{headers := #{~"authorization" := <<"Bearer ", Name/binary>>}}) -> {ok, Name};
authenticate(_) -> {error, ~"a token is needed"}.

shared(Headers) ->
    [Name || <<"access-control-", _/binary>> = Name := _ <- Headers]
        ++ [Name || ~"vary" = Name := _ <- Headers].

ask(Connection, Path, Headers) ->
    Question = [{~"access-control-request-method", ~"POST"},
                {~"access-control-request-headers", ~"content-type,mcp-protocol-version"}],
    answer(Connection, gun:options(Connection, Path, Headers ++ Question)).

echo(Connection, Options) ->
    post(Connection, ~"tools/call", #{name => ~"echo", arguments => #{text => ~"a"}}, Options).

post(Connection, Method, Params, Options) ->
    {Headers, Body} = message(Method, Params, Options),
    gun:post(Connection, "/mcp", Headers, Body).

answer(Connection, Stream) ->
    case gun:await(Connection, Stream, ?TIMEOUT) of
        {response, fin, Status, Headers} ->
            {Status, maps:from_list(Headers), <<>>};
        {response, nofin, Status, Headers} ->
            {ok, Body} = gun:await_body(Connection, Stream, ?TIMEOUT),
            {Status, maps:from_list(Headers), Body}
    end.

with_server(Listener, Test, Config) ->
    Server = start(Listener, #{}),
    Connection = open(Server, Config),
    _ = Test(Connection),
    ok = gun:close(Connection),
    erlmcp_test_http:stop(Server).

start(Listener, Limits) ->
    Http = maps:merge(#{allowed_origins => [?PAGE, ?LOCAL]}, Listener),
    erlmcp_test_http:start((erlmcp_test_http:definitions(self()))#{limits => Limits,
                                                                   listen => [{http, Http}]}).

open(#{port := Port}, Config) ->
    {ok, Connection} = gun:open("127.0.0.1", Port, #{
        protocols => [proplists:get_value(protocol, Config)], retry => 0}),
    {ok, _} = gun:await_up(Connection, ?TIMEOUT),
    Connection.
