-module(erlmcp_console_access).
-moduledoc """
Decides which requests may see the console and act in it. Without a token these are the requests of
programs on the same machine, unless they came through a proxy. With a token each browser has to
send the token once. The browser gets a cookie for it that holds for twelve hours, and that other
sites cannot use. Other programs send the token as a bearer token with each request.

An action is a POST of the console's own page, as its `Origin` says. A page of another origin gets
nothing, even if the listener allows its origin.
""".

-export([check/3, login/3, origin/1]).

-export_type([token/0]).

-type token() :: binary() | none.

%% Seconds that a cookie holds.
-define(HOLDS, 43_200).
%% Headers that a proxy adds: the client is not on this machine, although the proxy is.
-define(PROXIED, [~"forwarded", ~"x-forwarded-for", ~"x-real-ip", ~"via"]).

-doc """
Returns `ok` if a request may see the page. `Now` is in seconds of system time. `{denied, token}`
means that the request needs the token. `{denied, elsewhere}` means that the console has no token,
and the client is on another machine, or came through a proxy.
""".
-spec check(erlmcp_page:request(), token(), Now :: integer()) -> ok | {denied, token | elsewhere}.
check(#{peer := {Ip, _}, headers := Headers}, none, _) ->
    case erlmcp_listener:is_loopback(Ip) andalso maps:with(?PROXIED, Headers) =:= #{} of
        true -> ok;
        false -> {denied, elsewhere}
    end;
check(#{headers := Headers}, Token, Now) ->
    case has_token(Headers, Token) orelse has_cookie(Headers, Token, Now) of
        true -> ok;
        false -> {denied, token}
    end.

%% Programs need no cookie. The functions of `string` need UTF-8, and a header may have any bytes.
has_token(#{~"authorization" := <<Scheme:7/binary, Given/binary>>}, Token) ->
    cowboy_bstr:to_lower(Scheme) =:= ~"bearer " andalso is_same(Given, Token);
has_token(_, _) ->
    false.

has_cookie(#{~"cookie" := Cookies}, Token, Now) ->
    Name = name(Token),
    lists:any(fun(Cookie) ->
        case binary:split(Cookie, ~"=") of
            [Name, Value] -> is_valid(Value, Token, Now);
            _ -> false
        end
    end, binary:split(Cookies, [~";", ~" "], [global]));
has_cookie(_, _, _) ->
    false.

is_valid(Value, Token, Now) ->
    case binary:split(Value, ~".") of
        [Until, Mac] when byte_size(Until) =< 12 ->
            is_same(Mac, mac(Until, Token)) andalso binary_to_integer(Until) > Now;
        _ ->
            false
    end.

mac(Until, Token) ->
    base64:encode(crypto:mac(hmac, sha256, Token, [~"erlmcp console ", Until]),
                  #{mode => urlsafe, padding => false}).

%% The comparison takes as long for every text of the same length.
is_same(One, Other) ->
    crypto:hash_equals(crypto:hash(sha256, One), crypto:hash(sha256, Other)).

%% Consoles of one host have the same cookies, whatever their ports are.
name(Token) ->
    Hash = binary:encode_hex(crypto:hash(sha256, [~"erlmcp console ", Token]), lowercase),
    <<"erlmcp_console_", (binary:part(Hash, 0, 8))/binary>>.

-doc """
Exchanges the token `Given` for a cookie. Returns the value of `Set-Cookie` for the page at the path
of the request. Returns `denied` if the token is wrong, or the console has none.
""".
-spec login(Given :: binary(), erlmcp_page:request(), token()) ->
    {ok, SetCookie :: iodata()} | denied.
login(_, _, none) ->
    denied;
login(Given, #{path := Path, below := Below, scheme := Scheme, headers := Headers}, Token) ->
    case is_same(Given, Token) of
        true ->
            Until = integer_to_binary(erlang:system_time(second) + ?HOLDS),
            %% A client that lies here keeps its own cookie to itself.
            Outside = maps:get(~"x-forwarded-proto", Headers, Scheme),
            Own = binary:part(Path, 0, byte_size(Path) - byte_size(Below)),
            {ok, [name(Token), $=, Until, $., mac(Until, Token), ~"; Path=", Own, ~"; Max-Age=",
                  integer_to_binary(?HOLDS), ~"; HttpOnly; SameSite=Strict",
                  [~"; Secure" || lists:member(~"https", [Scheme, Outside])]]};
        false ->
            denied
    end.

-doc """
Returns `own` if a page of the same origin has sent a request, as its `Origin` says. Returns `other`
if a page of another origin has sent the request, as its `Origin` or `Sec-Fetch-Site` says. Returns
`none` for any other request, such as that of a link that a person follows.
""".
-spec origin(erlmcp_page:request()) -> own | other | none.
origin(#{headers := #{~"origin" := Origin} = Headers, scheme := Scheme} = Request) ->
    Authority = authority(Request),
    %% Behind a proxy that ends TLS, this program does not know the scheme of the browser's URL.
    case {binary:split(Origin, ~"://"), Headers} of
        {[_, Authority], #{~"sec-fetch-site" := ~"same-origin"}} -> own;
        {[Scheme, Authority], _} when not is_map_key(~"sec-fetch-site", Headers) -> own;
        _ -> other
    end;
%% A browser sends no `Origin` when a page loads an image, a script or a frame.
origin(#{headers := #{~"sec-fetch-site" := Site, ~"sec-fetch-dest" := For}}) when
    Site =/= ~"same-origin", Site =/= ~"none", For =/= ~"document"
->
    other;
origin(_) ->
    none.

%% Requests of HTTP/2 need no `Host`.
authority(#{headers := #{~"host" := Host}}) -> Host;
authority(#{scheme := ~"http", host := Host, port := 80}) -> Host;
authority(#{scheme := ~"https", host := Host, port := 443}) -> Host;
authority(#{host := Host, port := Port}) -> <<Host/binary, $:, (integer_to_binary(Port))/binary>>.
