-module(erlmcp_loopback).
-moduledoc """
Runs a login in the user's browser that redirects to this machine: a listener on 127.0.0.1, open
during the login, waits for the redirect. Any other request is refused without details.

Requests are bounded: 8192 bytes a line, 64 headers, 5 seconds a request, 100 requests a login. The
header `Host` must name this listener, which protects from pages that rebind their own host name to
127.0.0.1.

Source: RFC 8252, section 7.3.

Internal.
""".

-export([check/1, login/3]).

-export_type([options/0, reason/0]).

-doc """
Options of a login.

- `port`: the port to listen on; 0, the default, is any free one. Servers that follow RFC 8252
  accept any port.
- `wanted`: the preferred port, if `port` is not set.
- `path`: the path of the redirect; `/callback` by default.
- `host`: the machine's name in the redirect URI, `127.0.0.1` (the default) or `localhost`.
- `state`: the `state` that the redirect must have; one with another `state` is ignored. Without
  this option the first redirect counts.
- `open`: opens the user's browser; `erlmcp_browser:open/1` by default. It runs in a process of its
  own, and is killed when the login ends.
- `say`: tells the user the URL if `open` failed; a notice of `m:logger` by default.
""".
-type options() :: #{
    port => inet:port_number(),
    wanted => inet:port_number(),
    path => binary(),
    host => binary(),
    state => binary(),
    open => fun((Url :: binary()) -> ok | {error, term()}),
    say => fun((Url :: binary()) -> term())
}.
-doc """
The reason for a failed login.

- `{bad_option, Name}`: an option is unknown, or its value is not allowed.
- `{listen, Why}`: the listener could not be opened, as when the port is in use (`eaddrinuse`).
- `bad_authorize_url`: a browser may not be given the URL of the login (`erlmcp_browser:is_url/1`).
- `{too_many_requests, Max}`: too many requests came that were not the redirect.
- `timeout`: the redirect did not come in time.
""".
-type reason() ::
    {bad_option, atom()}
    | {listen, inet:posix() | system_limit}
    | bad_authorize_url
    | {too_many_requests, Max :: pos_integer()}
    | timeout.

-define(ACCEPTORS, 8).
-define(MAX_REQUESTS, 100).
-define(MAX_LINE_BYTES, 8192).
-define(MAX_HEADERS, 64).
-define(REQUEST_MS, 5000).
%% Milliseconds for which a connection is still read after its answer.
-define(LINGER_MS, 500).
-define(NOTHING, ~"There is nothing here.").

-doc """
Checks the options of a login. The error names an option that is unknown, or whose value is not
allowed.
""".
-spec check(#{atom() => term()}) -> ok | {error, {bad_option, Name :: atom()}}.
check(Options) ->
    case [Name || Name := Value <- Options, not is_option(Name, Value)] of
        [] -> ok;
        [Name | _] -> {error, {bad_option, Name}}
    end.

-doc """
Opens the listener, calls `AuthorizeUrl` with its redirect URI, opens the returned URL in the
browser, and waits for the redirect. `Deadline`, in milliseconds of `erlang:monotonic_time/1`,
bounds the wait. Returns the URL of the redirect with its query unchanged, and the redirect URI. The
caller checks `code`, `error`, `state` and `iss` in the query. An exception in `AuthorizeUrl` closes
the listener and reaches the caller.
""".
-spec login(AuthorizeUrl :: fun((RedirectUri :: binary()) -> Url :: binary()), options(),
            Deadline :: integer()) ->
    {ok, Redirected :: binary(), RedirectUri :: binary()} | {error, reason()}.
login(AuthorizeUrl, Options, Deadline) ->
    maybe
        ok ?= check(Options),
        {ok, Listener} ?= listening(Options),
        try
            login(AuthorizeUrl, maps:merge(defaults(), Options), Deadline, Listener)
        after
            gen_tcp:close(Listener)
        end
    end.

defaults() ->
    #{path => ~"/callback", host => ~"127.0.0.1", open => fun erlmcp_browser:open/1,
      say => fun(Url) -> erlmcp_log:text(notice, "To log in, open ~ts", [Url]) end}.

is_option(wanted, Port) -> is_option(port, Port);
is_option(port, Port) -> is_integer(Port) andalso Port >= 0 andalso Port =< 65535;
is_option(path, <<$/, _/binary>> = Path) ->
    re:run(Path, ~"^[A-Za-z0-9/._~-]{1,256}$", [{capture, none}, dollar_endonly]) =:= match;
is_option(host, Host) -> Host =:= ~"127.0.0.1" orelse Host =:= ~"localhost";
is_option(state, State) -> is_binary(State);
is_option(open, Open) -> is_function(Open, 1);
is_option(say, Say) -> is_function(Say, 1);
is_option(_, _) -> false.

listening(#{port := Port}) when Port > 0 ->
    listen(Port);
listening(Options) ->
    maybe
        {error, _} ?= listen(maps:get(wanted, Options, 0)),
        listen(0)
    end.

%% On Windows, `reuseaddr` would let any other program listen on the same address.
listen(Port) ->
    Reuse = case os:type() of
        {unix, _} -> [{reuseaddr, true}];
        _ -> []
    end,
    Options = [binary, inet, {ip, {127, 0, 0, 1}}, {active, false}, {packet, http_bin},
               {packet_size, ?MAX_LINE_BYTES}, {buffer, 2 * ?MAX_LINE_BYTES}, {backlog, 32},
               {send_timeout, ?REQUEST_MS}, {send_timeout_close, true}],
    case gen_tcp:listen(Port, Reuse ++ Options) of
        {ok, Listener} -> {ok, Listener};
        {error, Why} -> {error, {listen, Why}}
    end.

login(AuthorizeUrl, #{host := Host, path := Path} = Options, Deadline, Listener) ->
    {ok, Port} = inet:port(Listener),
    Origin = <<"http://", Host/binary, $:, (integer_to_binary(Port))/binary>>,
    RedirectUri = <<Origin/binary, Path/binary>>,
    Url = AuthorizeUrl(RedirectUri),
    case erlmcp_browser:is_url(Url) of
        true ->
            %% The redirect that is awaited; `claimed` is 1 once it has come.
            Expected = (maps:with([path, state], Options))#{
                port => Port, claimed => atomics:new(1, [])
            },
            case redirected(Url, Expected, Options, Deadline, Listener) of
                {ok, Target} -> {ok, <<Origin/binary, Target/binary>>, RedirectUri};
                {error, Reason} -> {error, Reason}
            end;
        false ->
            {error, bad_authorize_url}
    end.

redirected(Url, Expected, #{open := Open} = Options, Deadline, Listener) ->
    Login = alias(),
    Seen = counters:new(1, [atomics]),
    _ = [spawn(fun() -> accept(Listener, Expected, Login, Seen) end)
         || _ <- lists:seq(1, ?ACCEPTORS)],
    Opener = spawn(fun() -> Login ! {Login, {opened, opened(Open, Url)}} end),
    try
        await(Login, Url, Options, Deadline)
    after
        exit(Opener, kill),
        unalias(Login),
        flush(Login)
    end.

%% The reason of a crash may contain the URL, so it is not passed on.
opened(Open, Url) ->
    try
        Open(Url)
    catch
        Class:_ -> {error, Class}
    end.

await(Login, Url, #{say := Say} = Options, Deadline) ->
    receive
        {Login, {redirected, Target}} ->
            {ok, Target};
        {Login, too_many_requests} ->
            {error, {too_many_requests, ?MAX_REQUESTS}};
        {Login, {opened, ok}} ->
            await(Login, Url, Options, Deadline);
        {Login, {opened, _}} ->
            _ = Say(Url),
            await(Login, Url, Options, Deadline)
    after remaining_ms(Deadline) ->
        {error, timeout}
    end.

remaining_ms(Deadline) ->
    min(16#ffffffff, max(0, Deadline - erlmcp_clock:now_ms())).

flush(Login) ->
    receive
        {Login, _} -> flush(Login)
    after 0 -> ok
    end.

%% Accepts connections until the listener is closed.
accept(Listener, Expected, Login, Seen) ->
    case gen_tcp:accept(Listener) of
        {ok, Socket} ->
            ok = counters:add(Seen, 1, 1),
            serve(Socket, Expected, Login, counters:get(Seen, 1)),
            accept(Listener, Expected, Login, Seen);
        {error, closed} ->
            ok;
        {error, _} ->
            %% An attempt right after an error, such as a lack of file descriptors, would fail, too.
            receive after 100 -> accept(Listener, Expected, Login, Seen) end
    end.

serve(Socket, _, Login, Count) when Count > ?MAX_REQUESTS ->
    Login ! {Login, too_many_requests},
    gen_tcp:close(Socket);
serve(Socket, Expected, Login, _) ->
    case read(Socket, deadline(?REQUEST_MS)) of
        {ok, Method, Target, Hosts} ->
            {Status, Text, IsRedirect} = decide(Method, Target, Hosts, Expected),
            _ = gen_tcp:send(Socket, response(Status, Text)),
            %% The browser has got its page. The target is unchanged, and has only the characters
            %% that URLs may have.
            _ = IsRedirect andalso (Login ! {Login, {redirected, Target}}),
            ok;
        error ->
            _ = gen_tcp:send(Socket, response(~"400 Bad Request", ?NOTHING)),
            ok
    end,
    finish(Socket).

read(Socket, Deadline) ->
    case gen_tcp:recv(Socket, 0, remaining_ms(Deadline)) of
        {ok, {http_request, Method, {abs_path, Target}, {1, _}}} ->
            headers(Socket, Deadline, ?MAX_HEADERS, Method, Target, []);
        _ ->
            error
    end.

headers(Socket, Deadline, Remaining, Method, Target, Hosts) ->
    case gen_tcp:recv(Socket, 0, remaining_ms(Deadline)) of
        {ok, http_eoh} ->
            {ok, Method, Target, Hosts};
        {ok, {http_header, _, 'Host', _, Host}} when Remaining > 0 ->
            headers(Socket, Deadline, Remaining - 1, Method, Target, [Host | Hosts]);
        {ok, {http_header, _, _, _, _}} when Remaining > 0 ->
            headers(Socket, Deadline, Remaining - 1, Method, Target, Hosts);
        _ ->
            error
    end.

decide(Method, Target, Hosts, #{path := Path, port := Port} = Expected) ->
    case {is_own(Hosts, Port), Method, binary:split(Target, ~"?")} of
        {false, _, _} -> refused(~"403 Forbidden");
        {true, 'GET', [Path, Query]} -> answer(query(Query), Expected);
        _ -> refused(~"404 Not Found")
    end.

is_own([Host], Port) ->
    lists:member(Host, [<<Name/binary, Written/binary>> || Name <- [~"127.0.0.1", ~"localhost"],
                                                           Written <- written(Port)]);
is_own(_, _) ->
    false.

%% Browsers leave out the port of HTTP.
written(80) -> [~"", ~":80"];
written(Port) -> [<<$:, (integer_to_binary(Port))/binary>>].

%% A text with characters that URLs may not have is not a query.
query(Query) ->
    case re:run(Query, ~B|^[!$-;=?-Z_a-z~[\]]*$|, [{capture, none}, dollar_endonly]) of
        match -> erlmcp_query:parameters(Query);
        nomatch -> error
    end.

answer({ok, Query}, Expected) ->
    IsFailure = lists:keymember(~"error", 1, Query),
    case is_expected(Query, Expected) andalso claim(Expected) of
        true when IsFailure -> {~"200 OK", ~"The login did not succeed.", true};
        true -> {~"200 OK", ~"You are logged in.", true};
        false -> refused(~"404 Not Found")
    end;
answer(error, _) ->
    refused(~"404 Not Found").

is_expected(Query, #{state := State}) ->
    [Value || {~"state", Value} <- Query] =:= [State] andalso is_answer(Query);
is_expected(Query, _) ->
    is_answer(Query).

is_answer(Query) ->
    lists:keymember(~"code", 1, Query) orelse lists:keymember(~"error", 1, Query).

claim(#{claimed := Claimed}) ->
    atomics:compare_exchange(Claimed, 1, 0, 1) =:= ok.

refused(Status) ->
    {Status, ?NOTHING, false}.

%% The page contains nothing of the request, and the headers keep the code out of the browser's
%% cache.
response(Status, Text) ->
    Page = [~"<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Login</title><p>",
            Text, ~" You can close this window.</p></html>\n"],
    Fields = [{~"Content-Type", ~"text/html; charset=utf-8"},
              {~"Content-Length", integer_to_binary(iolist_size(Page))},
              {~"Connection", ~"close"},
              {~"Cache-Control", ~"no-store"},
              {~"Referrer-Policy", ~"no-referrer"},
              {~"Content-Security-Policy", ~"default-src 'none'; frame-ancestors 'none'"},
              {~"X-Content-Type-Options", ~"nosniff"}],
    [~"HTTP/1.1 ", Status, ~"\r\n", [[Name, ~": ", Value, ~"\r\n"] || {Name, Value} <- Fields],
     ~"\r\n", Page].

%% Closing a connection with unread bytes at once would reset it, and the browser could lose the
%% page.
finish(Socket) ->
    _ = gen_tcp:shutdown(Socket, write),
    _ = inet:setopts(Socket, [{packet, raw}]),
    drain(Socket, deadline(?LINGER_MS)),
    gen_tcp:close(Socket).

drain(Socket, Deadline) ->
    case gen_tcp:recv(Socket, 0, remaining_ms(Deadline)) of
        {ok, _} -> drain(Socket, Deadline);
        {error, _} -> ok
    end.

deadline(Milliseconds) ->
    erlmcp_clock:now_ms() + Milliseconds.
