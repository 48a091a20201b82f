-module(erlmcp_loopback).
-moduledoc """
A login in the user's browser, which comes back to this machine: a listener on 127.0.0.1, open
during the login, waits for the redirect.

The calling process owns the listener, so it always closes with the call. Eight processes accept,
since browsers open connections that they do not use. Requests are bounded: 8192 bytes a line, 64
headers, 5 seconds a request, 100 requests a login.

Source: RFC 8252, section 7.3.

Internal.
""".

-export([login/3]).

-export_type([options/0, reason/0]).

-doc """
Options of a login.

- `port`: the port to listen on; 0, the default, is any free one. Servers that follow RFC 8252 take
  any port.
- `wanted`: the preferred port, if `port` is not set.
- `path`: the path of the redirect; `/callback` by default.
- `host`: the machine's name in the redirect URI, `127.0.0.1` (the default) or `localhost`.
- `state`: the `state` that the redirect must have. A redirect without it is ignored. Without this
  option the first redirect counts.
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

- `{bad_option, Name}`: an option is unknown or of the wrong type.
- `{listen, Why}`: the port is not available (`eaddrinuse`).
- `bad_authorize_url`: a browser may not be given this URL (`erlmcp_browser:is_url/1`).
- `{too_many_requests, Max}`: there were too many other requests than the redirect.
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

-doc """
Opens the listener, passes its URI to `AuthorizeUrl`, opens the returned URL in the browser, and
waits for the redirect. The result is the redirect's URL with its query unchanged: the caller checks
`code`, `error`, `state` and `iss`. `Deadline` is in milliseconds of `erlang:monotonic_time/1`.
""".
-spec login(AuthorizeUrl :: fun((RedirectUri :: binary()) -> Url :: binary()), options(),
            Deadline :: integer()) ->
    {ok, Redirected :: binary(), RedirectUri :: binary()} | {error, reason()}.
login(AuthorizeUrl, Options, Deadline) ->
    maybe
        ok ?= check(maps:to_list(Options)),
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

check([]) ->
    ok;
check([{Name, Value} | Rest]) ->
    case is_option(Name, Value) of
        true -> check(Rest);
        false -> {error, {bad_option, Name}}
    end.

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

%% On Windows, a reused address could be shared with any other program.
listen(Port) ->
    Reuse = case os:type() of
        {unix, _} -> [{reuseaddr, true}];
        _ -> []
    end,
    Options = [{ip, {127, 0, 0, 1}} | Reuse ++ erlmcp_loopback_request:options()],
    case gen_tcp:listen(Port, Options) of
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

%% The reason of a crash may contain the URL.
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
    min(16#ffffffff, max(0, Deadline - erlang:monotonic_time(millisecond))).

flush(Login) ->
    receive
        {Login, _} -> flush(Login)
    after 0 -> ok
    end.

%% Ends when the listener closes.
accept(Listener, Expected, Login, Seen) ->
    case gen_tcp:accept(Listener) of
        {ok, Socket} ->
            ok = counters:add(Seen, 1, 1),
            serve(Socket, Expected, Login, counters:get(Seen, 1)),
            accept(Listener, Expected, Login, Seen);
        {error, closed} ->
            ok;
        {error, _} ->
            %% Without file descriptors, for example, another attempt at once would fail too.
            receive after 100 -> accept(Listener, Expected, Login, Seen) end
    end.

serve(Socket, _, Login, Count) when Count > ?MAX_REQUESTS ->
    Login ! {Login, too_many_requests},
    gen_tcp:close(Socket);
serve(Socket, Expected, Login, _) ->
    erlmcp_loopback_request:serve(Socket, Expected, fun(Target) ->
        Login ! {Login, {redirected, Target}}
    end).
