-module(erlmcp_httpc_options).
-moduledoc """
Checks the URL and the options of a channel on HTTP. Pure, except for the fun of `token`, which it
calls.

Internal.
""".

-export([check/2, is_value/1]).

-export_type([settings/0]).

-doc """
Checked options.

- `url`, `headers`: the destination of messages, and the headers of each of them.
- `pool`: the options of the pool that the user has given.
- `auth`: the options of the authorizer, or `none`. They are secrets, so they are in a fun:
  supervisors report the arguments of their children.
""".
-type settings() :: #{
    url := uri_string:uri_map(),
    headers := [{binary(), binary()}],
    pool := map(),
    auth := none | fun(() -> map())
}.

%% Headers that the client sets itself.
-define(RESERVED, [~"accept", ~"connection", ~"content-length", ~"content-type", ~"host",
                   ~"last-event-id", ~"mcp-method", ~"mcp-name", ~"mcp-protocol-version",
                   ~"mcp-session-id", ~"te", ~"trailer", ~"transfer-encoding", ~"upgrade"]).
-define(POOL, [connections, streams, idle_ms, tls, protocols]).
%% The most connections of a pool, whose table has a slot for each from the beginning.
-define(SLOTS, 10_000).

-doc """
Checks a URL and the options (`t:erlmcp_client:http_options/0`), and returns the settings. The error
names a wrong option, and what was expected. It is `{secret, Reason}` if the fun of `token` has
returned `{error, Reason}`.
""".
-spec check(Url :: term(), map()) ->
    {ok, settings()}
    | {error, {bad_option, Key :: term(), Expected :: binary()} | {secret, Reason :: term()}}.
check(Target, Options) ->
    maybe
        {ok, Url} ?= erlmcp_httpc_target:parse(Target),
        ok ?= erlmcp_client_options:first_wrong(Options, fun option/2),
        ok ?= one_authorization(Options),
        ok ?= oauth(Options),
        {ok, Token} ?= token(Options),
        {ok, #{url => Url,
               headers => own(maps:get(headers, Options, [])) ++ Token,
               pool => maps:with(?POOL, Options),
               auth => auth(Options)}}
    else
        error -> {error, {bad_option, url, ~"a binary, a valid http or https URL without a user"}};
        {error, _} = Error -> Error
    end.

option(headers, Headers) ->
    erlmcp_user_term:is_list_of(fun is_own/1, Headers)
        orelse ~"a list of names and values of headers that the client does not send itself";
option(token, Token) ->
    is_function(Token, 0) orelse is_token(Token)
        orelse ~"a binary that a header can hold, or a fun that returns {ok, Token}";
option(auth, Auth) ->
    is_map(Auth) orelse ~"a map";
option(Key, Value) when Key =:= connections; Key =:= streams ->
    is_integer(Value) andalso Value > 0 andalso Value =< ?SLOTS
        orelse ~"an integer from 1 to 10000";
option(transport, Value) ->
    Value =:= sse orelse ~"sse";
option(idle_ms, Value) ->
    erlmcp_user_term:check_wait(Value);
option(tls, Value) ->
    erlmcp_user_term:is_proper_list(Value) orelse ~"a list of options of ssl";
option(protocols, Value) ->
    lists:member(Value, [[http], [http2], [http, http2], [http2, http]])
        orelse ~"a list of http and http2, each at most once";
option(_, _) ->
    ~"no such option of a client on HTTP".

one_authorization(Options) ->
    Given = [token || #{token := _} <- [Options]] ++ [auth || #{auth := _} <- [Options]]
        ++ [headers || #{headers := Headers} <- [Options],
                       lists:keymember(~"authorization", 1, own(Headers))],
    case Given of
        [_, Second | _] -> {error, {bad_option, Second, ~"one of token, auth and authorization"}};
        _ -> ok
    end.

own(Headers) ->
    [{string:lowercase(iolist_to_binary(Name)), iolist_to_binary(Value)}
     || {Name, Value} <- Headers].

is_own({_, _} = Header) ->
    try own([Header]) of
        [{Name, Value}] -> is_name(Name) andalso is_value(Value)
                               andalso not lists:member(Name, ?RESERVED)
    catch
        error:_ -> false
    end;
is_own(_) ->
    false.

is_name(Name) ->
    re:run(Name, "^[!#$%&'*+.^_`|~0-9a-z-]+$", [{capture, none}, dollar_endonly]) =:= match.

%% A fun hides the token from child specifications, and so from a supervisor's reports.
token(#{token := Given}) when is_function(Given) ->
    maybe
        {ok, Token} ?= Given(),
        true ?= is_token(Token),
        token(#{token => Token})
    else
        {error, Reason} ->
            {error, {secret, Reason}};
        _ ->
            {error, {bad_option, token,
                     ~"a fun that returns {ok, Token} for a header, or {error, Reason}"}}
    end;
token(#{token := Token}) -> {ok, [{~"authorization", <<"Bearer ", Token/binary>>}]};
token(_) -> {ok, []}.

is_token(Token) -> is_binary(Token) andalso Token =/= ~"" andalso is_value(Token).

oauth(#{auth := Auth}) ->
    case erlmcp_oauth_options:check(Auth) of
        {ok, _} -> ok;
        {error, {bad_option, Key, Expected}} -> {error, {bad_option, {auth, Key}, Expected}}
    end;
oauth(_) ->
    ok.

auth(#{auth := Auth}) -> fun() -> Auth end;
auth(_) -> none.

-doc "Returns `true` if a header may have this value: it has no line end and no zero byte.".
-spec is_value(iodata()) -> boolean().
is_value(<<C, Rest/binary>>) when C =/= $\r, C =/= $\n, C =/= 0 -> is_value(Rest);
is_value(Value) when is_list(Value) -> is_value(iolist_to_binary(Value));
is_value(Rest) -> Rest =:= <<>>.
