-module(erlmcp_console).
-moduledoc """
The console of a server: a page that says whether the server is well, since when, and why not. It is
a page of a listener (`m:erlmcp_page`), and needs the application `erlmcp_console`:

```erlang
{ok, _} = application:ensure_all_started(erlmcp_console),
{ok, Server} = erlmcp:start_server(#{
    name => ~"greeter", version => ~"1.0.0",
    listen => [{http, #{port => 8080, pages => #{~"/console" => erlmcp_console:page(#{})}}}]
}).
```

The page is then at `http://127.0.0.1:8080/console`. Only programs of the same machine may see it,
unless it has a `token`.
""".

-behaviour(erlmcp_page).

-export([page/1, token/0]).
-export([handle/2]).

-export_type([options/0]).

-doc """
The options of the console. A value in parentheses is the default.

- `token`: the secret that browsers must send, at least 16 bytes (none). A person who has the token
  may see the console from any machine, and act in it. `token/0` generates one.
- `latency_ms`: a time in milliseconds (150). The server is not well if more than one in twenty
  recent requests took longer than this time. Fewer than 20 recent requests do not count.
- `payloads`: `true` shows the arguments and results of recent requests, without secrets (`false`).
- `redact`: secrets of your own, in addition to those that are known by their names and forms. Each
  is the name of a member, or a JSON pointer that begins at the arguments or at the result (`[]`).
""".
-type options() :: #{token => binary(), latency_ms => pos_integer(), payloads => boolean(),
                     redact => [binary()]}.

-define(LATENCY_MS, 150).
-define(TOKEN_BYTES, 16).

%% The page loads its own files and nothing else, and is part of no other page.
-define(HEADERS, #{
    ~"content-security-policy" =>
        <<"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
          "img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'self'">>,
    ~"x-content-type-options" => ~"nosniff",
    ~"x-frame-options" => ~"DENY",
    ~"referrer-policy" => ~"same-origin",
    ~"cross-origin-opener-policy" => ~"same-origin",
    ~"cross-origin-resource-policy" => ~"same-origin"}).

-doc """
Returns the console as a value of a listener's option `pages`.

## Errors

Raises `{bad_option, Key, Expected}` for an option that is unknown or has a wrong value.

## Examples

```erlang
1> erlmcp_console:page(#{}).
{erlmcp_console, #{token => none, latency_ms => 150, payloads => false, redact => []}}
2> catch erlmcp_console:page(#{token => ~"short"}).
{'EXIT', {{bad_option, token, ~"a binary of at least 16 bytes"}, _}}
```
""".
-spec page(options()) -> erlmcp_page:page().
page(Options) ->
    _ = [error({bad_option, Key, Expected})
         || Key := Value <- Options, {error, Expected} <- [checked(Key, Value)]],
    {?MODULE, maps:merge(#{token => none, latency_ms => ?LATENCY_MS, payloads => false,
                           redact => []}, Options)}.

checked(token, Token) when is_binary(Token), byte_size(Token) >= ?TOKEN_BYTES -> ok;
checked(token, _) -> {error, ~"a binary of at least 16 bytes"};
checked(latency_ms, Milliseconds) when is_integer(Milliseconds), Milliseconds > 0 -> ok;
checked(latency_ms, _) -> {error, ~"a positive integer"};
checked(payloads, Shown) when is_boolean(Shown) -> ok;
checked(payloads, _) -> {error, ~"true or false"};
checked(redact, Rules) ->
    case is_list(Rules) andalso lists:all(fun erlmcp_redaction:is_rule/1, Rules) of
        true -> ok;
        false -> {error, ~"a list of names and JSON pointers, which are binaries"}
    end;
checked(_, _) -> {error, ~"no option of that name"}.

-doc "Returns a new random token, which can stand in a URL.".
-spec token() -> binary().
token() ->
    base64:encode(crypto:strong_rand_bytes(24), #{mode => urlsafe, padding => false}).

-doc false.
handle(#{method := Method, headers := Headers} = Request, #{token := Token} = Options) ->
    Answer = case erlmcp_console_access:origin(Request) of
        other -> foreign();
        none when Method =:= ~"POST" -> foreign();
        _ ->
            case erlmcp_console_access:check(Request, Token, erlang:system_time(second)) of
                ok -> entered(Request, Options);
                {denied, Why} -> denied(Why, Request, Headers, Token)
            end
    end,
    with_headers(Answer).

with_headers({stream, Headers, Fun}) -> {stream, maps:merge(?HEADERS, Headers), Fun};
with_headers({Status, Headers, Body}) -> {Status, maps:merge(?HEADERS, Headers), Body}.

%% A request that may not see the page. The page of the login needs its style.
denied(elsewhere, _, _, _) ->
    text(403, <<"This console has no token, and so only programs of its own machine may see it. "
                "Start it with a token, as `erlmcp serve --console --host` does.\n">>);
denied(token, #{below := ~"/style.css" = Below}, Headers, _) ->
    erlmcp_console_files:find(Below, Headers);
denied(token, #{below := ~"/icon.svg" = Below}, Headers, _) ->
    erlmcp_console_files:find(Below, Headers);
denied(token, #{method := ~"POST", below := ~"/login", body := Body} = Request, Headers, Token) ->
    login(query(~"token", Body), Request, Headers, Token);
denied(token, #{method := Method, below := Below, query := Query} = Request, Headers, Token) when
    Below =:= ~""; Below =:= ~"/"
->
    case Method =/= ~"POST" andalso query(~"token", Query) of
        Given when is_binary(Given) -> login(Given, Request, Headers, Token);
        _ -> login_page(401, Headers)
    end;
denied(token, _, _, _) ->
    text(401, ~"The console demands its token.\n").

login(Given, Request, Headers, Token) ->
    case is_binary(Given) andalso erlmcp_console_access:login(Given, Request, Token) of
        {ok, SetCookie} ->
            ok = log(Request, #{action => login}),
            {303, #{~"set-cookie" => SetCookie, ~"location" => own(Request),
                    ~"cache-control" => ~"no-store"}, ~""};
        _ ->
            ok = log(Request, #{action => login_denied}),
            login_page(403, Headers)
    end.

%% The path of the page itself.
own(#{path := Path, below := Below}) ->
    [binary:part(Path, 0, byte_size(Path) - byte_size(Below)), $/].

login_page(Status, Headers) ->
    {200, Of, Bytes} = erlmcp_console_files:find(~"/login.html",
                                                 maps:remove(~"if-none-match", Headers)),
    {Status, Of#{~"cache-control" := ~"no-store"}, Bytes}.

query(Name, Query) ->
    case erlmcp_query:parameters(Query) of
        {ok, Pairs} -> proplists:get_value(Name, Pairs, none);
        error -> none
    end.

%% A request that may see the page. The form of the login may be open in several windows.
entered(#{method := ~"POST", below := ~"/login"} = Request, _) ->
    {303, #{~"location" => own(Request)}, ~""};
entered(#{method := ~"POST"} = Request, _) ->
    act(Request);
%% A redirect removes a token from the URL.
entered(#{below := ~"", path := Path}, _) ->
    {308, #{~"location" => [Path, $/]}, ~""};
entered(#{below := ~"/", query := Query, path := Path}, _) when Query =/= ~"" ->
    {303, #{~"location" => Path}, ~""};
entered(#{below := ~"/feed", server := Server}, Options) ->
    feed(Server, Options);
entered(#{below := ~"/tools", server := Server}, _) ->
    case erlmcp_console_try:tools(Server) of
        {ok, Tools} -> json(200, #{tools => Tools});
        {error, Words} -> json(503, #{error => Words})
    end;
entered(#{below := ~"/payload", query := Query} = Request, #{payloads := true, redact := Rules}) ->
    case payload(query(~"id", Query), Request, Rules) of
        {ok, Payload} -> json(200, Payload);
        gone -> json(404, #{error => ~"This payload is not kept any more."})
    end;
entered(#{below := Below, headers := Headers}, _) ->
    case erlmcp_console_files:find(Below, Headers) of
        none -> text(404, ~"There is no such part of the console.\n");
        Found -> Found
    end.

%% The log says who has seen a payload, as it says who has acted.
payload(<<Digits/binary>>, #{server := Server} = Request, Rules) when byte_size(Digits) =< 20 ->
    maybe
        {Id, []} ?= string:to_integer(binary_to_list(Digits)),
        {ok, _, #{key := Key}} ?= erlmcp_registry:whereis(Server),
        {ok, Payload} ?= erlmcp_recent_requests:payload(Id, Key, Rules),
        ok = log(Request, #{action => payload, request => Id}),
        {ok, #{Part => part(Kept) || Part := Kept <- Payload}}
    else
        _ -> gone
    end;
payload(_, _, _) ->
    gone.

%% A page that read the JSON would round integers above 2^53.
part({omitted, Bytes}) -> #{omitted => Bytes};
part(Json) -> #{text => iolist_to_binary(json:format(json:decode(Json)))}.

act(#{body := Body} = Request) ->
    try json:decode(Body) of
        Term -> action(Request, Term)
    catch
        error:_ -> json(400, #{error => ~"JSON was expected"})
    end.

action(#{below := ~"/cancel", server := Server} = Request, #{~"id" := Id}) when is_binary(Id) ->
    Outcome = erlmcp:cancel(Server, Id),
    ok = log(Request, #{action => cancel, call => Id, outcome => Outcome}),
    case Outcome of
        ok -> json(200, #{});
        {error, not_found} -> json(404, #{error => ~"The call has ended already."})
    end;
action(#{below := ~"/call", server := Server} = Request,
       #{~"tool" := Tool, ~"arguments" := #{} = Arguments}) when is_binary(Tool)
->
    case erlmcp_console_try:call(Tool, Arguments, Server) of
        {ok, Stream} ->
            ok = log(Request, #{action => call, tool => Tool}),
            {stream, #{~"content-type" => ~"application/x-ndjson", ~"cache-control" => ~"no-store",
                       ~"x-accel-buffering" => ~"no"}, Stream};
        full ->
            json(503, #{error => ~"Twenty calls of the console run already."})
    end;
action(#{below := ~"/answer"} = Request, Answer) ->
    case erlmcp_console_try:answer(Answer) of
        ok ->
            ok = log(Request, #{action => answer}),
            json(200, #{});
        error ->
            json(400, #{error => ~"No question waits for this answer."})
    end;
action(_, _) ->
    json(400, #{error => ~"no such action, or a member of it is missing or wrong"}).

foreign() ->
    json(403, #{error => ~"This request does not come from the console's own page."}).

%% Actions stand in the log, without arguments and tokens.
log(#{peer := {Ip, _}, principal := Principal, server := Server}, Action) ->
    erlmcp_log:report(notice, Action#{what => console_action, server => Server,
                                      principal => Principal,
                                      peer => unicode:characters_to_binary(inet:ntoa(Ip))}).

feed(Server, Options) ->
    case erlmcp_console_collector:watch(Server, maps:with([latency_ms, payloads, redact],
                                                          Options)) of
        {ok, Watch, Hello} ->
            {stream, #{~"content-type" => ~"text/event-stream", ~"cache-control" => ~"no-store",
                       ~"x-accel-buffering" => ~"no"},
             fun(Send) ->
                 ok = Send([~"event: hello\ndata: ", Hello, ~"\n\n"]),
                 snapshots(Watch, Send)
             end};
        {error, full} ->
            json(503, #{error => ~"Too many pages show the console."});
        {error, not_found} ->
            json(503, #{error => ~"The server does not run."})
    end.

%% Ends with the collector; the page then opens another stream.
snapshots(Watch, Send) ->
    Monitor = erlmcp_console_collector:ask(Watch),
    receive
        {erlmcp_console, snapshot, Json} ->
            true = demonitor(Monitor, [flush]),
            ok = Send([~"event: snapshot\ndata: ", Json, ~"\n\n"]),
            snapshots(Watch, Send);
        {'DOWN', Monitor, process, _, _} ->
            ok
    end.

json(Status, Term) ->
    {Status, #{~"content-type" => ~"application/json", ~"cache-control" => ~"no-store"},
     json:encode(Term)}.

text(Status, Text) ->
    {Status, #{~"content-type" => ~"text/plain; charset=utf-8", ~"cache-control" => ~"no-store"},
     Text}.
