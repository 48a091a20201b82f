-module(erlmcp_loopback_request).
-moduledoc """
A request to the listener of `m:erlmcp_loopback`, and its answer. It is the redirect of the login,
or any other request, which is refused without details.

The `Host` must be this listener's: a page that rebinds its own name to 127.0.0.1 has another.

Internal.
""".

-export([options/0, serve/3]).

-export_type([expected/0]).

-doc "The redirect that is awaited; `claimed` is 1 once it has come.".
-type expected() :: #{
    path := binary(), port := inet:port_number(), claimed := atomics:atomics_ref(),
    state => binary()
}.

-define(MAX_LINE_BYTES, 8192).
-define(MAX_HEADERS, 64).
-define(REQUEST_MS, 5000).
-define(LINGER_MS, 500).
-define(NOTHING, ~"There is nothing here.").

-doc "Returns the options of the listening socket.".
-spec options() -> [gen_tcp:listen_option()].
options() ->
    [binary, inet, {active, false}, {packet, http_bin}, {packet_size, ?MAX_LINE_BYTES},
     {buffer, 2 * ?MAX_LINE_BYTES}, {backlog, 32}, {send_timeout, ?REQUEST_MS},
     {send_timeout_close, true}].

-doc """
Reads and answers the request, and closes the connection. A request with too long a line gets no
answer. When the browser has its page, `Report` gets the path and the query of the redirect. They
are unchanged, in the characters of a URL.
""".
-spec serve(gen_tcp:socket(), expected(), Report :: fun((Target :: binary()) -> term())) -> ok.
serve(Socket, Expected, Report) ->
    case read(Socket, deadline(?REQUEST_MS)) of
        {ok, Method, Target, Hosts} ->
            {Status, Text, IsRedirect} = decide(Method, Target, Hosts, Expected),
            _ = gen_tcp:send(Socket, response(Status, Text)),
            _ = IsRedirect andalso Report(Target),
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

headers(Socket, Deadline, Left, Method, Target, Hosts) ->
    case gen_tcp:recv(Socket, 0, remaining_ms(Deadline)) of
        {ok, http_eoh} ->
            {ok, Method, Target, Hosts};
        {ok, {http_header, _, 'Host', _, Host}} when Left > 0 ->
            headers(Socket, Deadline, Left - 1, Method, Target, [Host | Hosts]);
        {ok, {http_header, _, _, _, _}} when Left > 0 ->
            headers(Socket, Deadline, Left - 1, Method, Target, Hosts);
        _ ->
            error
    end.

decide(Method, Target, Hosts, #{path := Path, port := Port} = Expected) ->
    case {is_own(Hosts, integer_to_binary(Port)), Method, binary:split(Target, ~"?")} of
        {false, _, _} -> refused(~"403 Forbidden");
        {true, 'GET', [Path, Query]} -> answer(query(Query), Expected);
        _ -> refused(~"404 Not Found")
    end.

is_own([Host], Port) ->
    lists:member(Host, [<<Name/binary, $:, Port/binary>> || Name <- [~"127.0.0.1", ~"localhost"]]);
is_own(_, _) ->
    false.

%% Text in other characters than those of a URL is not a query.
query(Query) ->
    case re:run(Query, ~B|^[!$-;=?-Z_a-z~[\]]*$|, [{capture, none}, dollar_endonly]) of
        match -> uri_string:dissect_query(Query);
        nomatch -> []
    end.

answer(Query, Expected) when is_list(Query) ->
    IsFailure = lists:keymember(~"error", 1, Query),
    case is_expected(Query, Expected) andalso claim(Expected) of
        true when IsFailure -> {~"200 OK", ~"The login did not succeed.", true};
        true -> {~"200 OK", ~"You are logged in.", true};
        false -> refused(~"404 Not Found")
    end;
answer(_, _) ->
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

%% Closing at once would reset a connection with unread bytes, and the browser would lose the page.
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
    erlang:monotonic_time(millisecond) + Milliseconds.

remaining_ms(Deadline) ->
    max(0, Deadline - erlang:monotonic_time(millisecond)).
