-module(login).
-moduledoc """
Tests logins: erlmcp's client logs in at an authorization server and calls erlmcp's server with its
tokens. The checks are login, more scopes, renewal and revocation. Each prints a line, `ok - WHAT`
or `not ok - WHAT: WHY`. The last line is `N passed, N failed`.
""".

-export([main/1]).

-define(TIMEOUT, 10_000).
-define(CALLBACK, ~"http://127.0.0.1:9/callback").

-doc "Runs the checks. The arguments are the issuer and the number of checks.".
-spec main([string()]) -> no_return().
main([Given, Expected]) ->
    ok = logger:set_primary_config(level, error),
    {ok, _} = application:ensure_all_started([erlmcp, inets]),
    Issuer = list_to_binary(Given),
    Visits = [fun() -> opaque(Issuer, '2026-07-28') end, fun() -> opaque(Issuer, '2025-11-25') end,
              fun() -> signed(Issuer) end, fun() -> bound(Issuer) end],
    Outcomes = lists:append([Visit() || Visit <- Visits]),
    Passed = length([ok || ok <- Outcomes]),
    Failed = case length(Outcomes) - Passed of
        0 -> missed(Passed, list_to_integer(Expected));
        Some -> Some
    end,
    io:format("~b passed, ~b failed~n", [Passed, Failed]),
    halt(min(1, Failed)).

missed(Checks, Checks) ->
    0;
missed(Passed, Expected) ->
    io:format("not ok - login: ~b checks, expected ~b~n", [Passed, Expected]),
    1.

%% Tokens that the server must introspect: a revocation takes effect at the next call.
opaque(Issuer, Era) ->
    Tokens = [{introspection, #{uri => <<Issuer/binary, "/token/introspection">>, issuer => Issuer,
                                client_id => ~"files", client_secret => ~"of the resource server",
                                cache_s => 0}}],
    with(~"/mcp", #{tokens => Tokens}, #{}, Era, fun(Call, Logins) ->
        Check = fun(What, Fun) -> check(io_lib:format("opaque ~s: ~s", [Era, What]), Fun) end,
        [Check("login", fun() ->
             {ok, [Issuer, ~"ada", ~"files:read"]} = Call(~"whoami"),
             1 = Logins()
         end),
         Check("the next call has the token", fun() ->
             {ok, _} = Call(~"whoami"),
             1 = Logins()
         end),
         Check("step-up", fun() ->
             {ok, [_, ~"ada", ~"files:read files:write"]} = Call(~"write"),
             2 = Logins()
         end),
         Check("what was allowed before still is", fun() ->
             {ok, [_, ~"ada", ~"files:read files:write"]} = Call(~"whoami"),
             2 = Logins()
         end),
         Check("a token that is taken back is renewed without the user", fun() ->
             forget(Issuer, ~"access"),
             {ok, [_, ~"ada", ~"files:read files:write"]} = Call(~"write"),
             2 = Logins()
         end),
         Check("a login that is taken back is made again", fun() ->
             forget(Issuer, ~"all"),
             {ok, [_, ~"ada", _]} = Call(~"whoami"),
             3 = Logins()
         end)]
    end).

%% Tokens that the server verifies with the issuer's keys.
signed(Issuer) ->
    with(~"/jwt", jwt(Issuer), #{}, '2026-07-28', fun(Call, Logins) ->
        [check("signed: login", fun() ->
             {ok, [Issuer, ~"ada", ~"files:read"]} = Call(~"whoami"),
             1 = Logins()
         end),
         check("signed: step-up", fun() ->
             {ok, [Issuer, ~"ada", ~"files:read files:write"]} = Call(~"write"),
             2 = Logins()
         end)]
    end).

%% Tokens that are bound to a key of the client, with a nonce of the server.
bound(Issuer) ->
    Options = (jwt(Issuer))#{dpop => required, dpop_nonce => true},
    with(~"/jwt", Options, #{dpop => true}, '2026-07-28', fun(Call, Logins) ->
        [check("bound: login", fun() ->
             {ok, [Issuer, ~"ada", ~"files:read"]} = Call(~"whoami"),
             1 = Logins()
         end),
         check("bound: step-up", fun() ->
             {ok, [Issuer, ~"ada", ~"files:read files:write"]} = Call(~"write"),
             2 = Logins()
         end)]
    end).

jwt(Issuer) ->
    #{tokens => [{jwt, #{issuer => Issuer, jwks => {uri, <<Issuer/binary, "/jwks">>}}}]}.

%% A server with these options of `bearer`, and a client whose user has a browser.
with(Path, Bearer, Auth, Era, Fun) ->
    Say = fun(_, #{principal := {From, Subject}, scopes := Scopes}) ->
        lists:join($|, [From, Subject, lists:join($\s, lists:sort(Scopes))])
    end,
    Whoami = #{name => ~"whoami", handler => fun(A, C) -> iolist_to_binary(Say(A, C)) end},
    {ok, Server} = erlmcp:start_server(#{
        name => ~"files", version => ~"1.0.0",
        tools => [Whoami, Whoami#{name => ~"write", scopes => [~"files:write"]}],
        listen => [{http, #{path => Path, authenticate => {bearer, Bearer},
                            scopes => [~"files:read"]}}]}),
    [#{url := Url}] = erlmcp:listeners(Server),
    Logins = counters:new(1, []),
    Browser = fun(Login) ->
        ok = counters:add(Logins, 1, 1),
        browse(Login, #{}, 20)
    end,
    {ok, Client} = erlmcp_client:start_link({http, Url, #{
        era => Era, timeout => ?TIMEOUT, auth => Auth#{redirect_uri => ?CALLBACK,
                                                       browser => Browser}}}),
    Call = fun(Tool) ->
        case erlmcp_client:call_tool(Client, Tool, #{}) of
            {ok, #{~"content" := [#{~"text" := Text}]}} ->
                {ok, binary:split(Text, ~"|", [global])};
            Other ->
                Other
        end
    end,
    Outcomes = Fun(Call, fun() -> counters:get(Logins, 1) end),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp:stop_server(Server),
    Outcomes.

check(What, Fun) ->
    try Fun() of
        _ ->
            io:format("ok - ~ts~n", [What]),
            ok
    catch
        Class:Reason ->
            io:format("not ok - ~ts: ~0tP~n", [What, {Class, Reason}, 30]),
            failed
    end.

forget(Issuer, What) ->
    {ok, {{_, 204, _}, _, _}} = request(<<Issuer/binary, "/forget/", What/binary>>, #{}).

%% A browser with cookies, which stops when it is redirected to the client.
browse(Url, Cookies, Redirects) when Redirects > 0 ->
    case request(Url, Cookies) of
        {ok, {{_, Status, _}, Headers, _}} when Status =:= 302; Status =:= 303 ->
            Next = resolved(proplists:get_value("location", Headers), Url),
            case string:prefix(Next, ?CALLBACK) of
                nomatch -> browse(Next, maps:merge(Cookies, given(Headers)), Redirects - 1);
                _ -> {ok, Next}
            end;
        {ok, {{_, Status, _}, _, _}} ->
            {error, {status, Status}};
        {error, _} = Error ->
            Error
    end.

request(Url, Cookies) ->
    Cookie = lists:join("; ", [[Name, $=, Value] || Name := Value <- Cookies]),
    httpc:request(get, {binary_to_list(Url), [{"cookie", lists:flatten(Cookie)}]},
                  [{autoredirect, false}, {timeout, ?TIMEOUT}], [{body_format, binary}]).

resolved(Location, Url) ->
    list_to_binary(uri_string:resolve(Location, binary_to_list(Url))).

given(Headers) ->
    #{Name => Value
      || {"set-cookie", Cookie} <- Headers,
         [Pair | _] <- [string:split(Cookie, ";")],
         [Name, Value] <- [string:split(Pair, "=")]}.
