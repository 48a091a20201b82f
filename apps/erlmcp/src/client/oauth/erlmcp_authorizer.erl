-module(erlmcp_authorizer).
-moduledoc """
The authorization of one client at one MCP server: the headers of its requests, and the reaction to
a refusal. Requests read the token from a table in their own process. The process behind it
(`m:erlmcp_oauth_tokens`), linked to the client's, is asked only when a token is missing or ends.

Internal.
""".

-export([start_link/2, handle/1, headers/4, challenged/5, notice/2]).

-export_type([handle/0, reason/0]).

-record(handle, {pid :: pid(), table :: ets:table(), url :: binary()}).
-opaque handle() :: #handle{}.
-doc """
The reason for a failed authorization, in addition to those of a flow.

- `{forbidden, Error}`: the server refuses the request for a reason that no token changes.
- `{insufficient_scope, Scopes}`: the server requires scopes that were asked for already.
- `{too_many_logins, Limit}`: the server refuses one token after another.
- `{crashed, Incident}`: a crash, which the log has under this id.
""".
-type reason() ::
    erlmcp_oauth_flow:reason()
    | {forbidden, Error :: binary() | none}
    | {too_many_logins, pos_integer()}
    | {crashed, Incident :: binary()}
    | {overload, pos_integer()}
    | {store, erlmcp_token_store:reason()}
    | timeout
    | stopped.

-doc """
Starts the authorizer, linked to the calling process. `ServerUrl` is the URL of the MCP server. No
request is made before the server refuses one. Options in a fun do not appear in a supervisor's
reports.
""".
-spec start_link(erlmcp_oauth:options() | fun(() -> erlmcp_oauth:options()),
                 ServerUrl :: binary()) ->
    {ok, pid()} | {error, {bad_option, term(), binary()} | {store, erlmcp_token_store:reason()}}.
start_link(Options, ServerUrl) when is_function(Options) ->
    start_link(Options(), ServerUrl);
start_link(Options, ServerUrl) ->
    maybe
        {ok, Settings} ?= erlmcp_oauth_options:check(Options),
        {ok, _} ?= url(ServerUrl),
        erlmcp_oauth_tokens:start_link(ServerUrl, Settings)
    end.

url(Url) ->
    case erlmcp_oauth_url:canonical(Url) of
        {ok, Canonical} -> {ok, Canonical};
        {error, invalid_url} -> {error, {bad_option, url, ~"an http or https URL"}}
    end.

-doc "Returns the handle for the other functions. It is small, since every call copies it.".
-spec handle(pid()) -> handle().
handle(Pid) ->
    {Table, Url} = gen_server:call(Pid, handle),
    #handle{pid = Pid, table = Table, url = Url}.

-doc """
Returns the authorization headers of a request to the server; none while there is no token. Waits
only for a token that is being renewed. A token is sent to the server's own origin alone.
""".
-spec headers(handle(), Method :: post | get | delete, Url :: binary(), Deadline :: integer()) ->
    {ok, [{binary(), iodata()}]} | {error, reason()}.
headers(#handle{url = ServerUrl} = Handle, Method, Url, Deadline) ->
    case Url =:= ServerUrl orelse erlmcp_oauth_url:same_origin(Url, ServerUrl) of
        true -> current(Handle, Method, Url, Deadline);
        false -> {ok, []}
    end.

current(#handle{pid = Pid} = Handle, Method, Url, Deadline) ->
    case token(Handle) of
        {token, Token, Type, RenewAt, End, Renewable} ->
            Now = erlang:system_time(second),
            if
                Now < RenewAt -> {ok, credentials(Type, Token, Method, Url, Handle)};
                Renewable -> renewed(ask(Pid, renew, Deadline), Handle, Method, Url);
                Now < End -> {ok, credentials(Type, Token, Method, Url, Handle)};
                true -> {ok, []}
            end;
        none ->
            {ok, []};
        stopped ->
            {error, stopped}
    end.

renewed(retry, Handle, Method, Url) ->
    case token(Handle) of
        {token, Token, Type, _, _, _} -> {ok, credentials(Type, Token, Method, Url, Handle)};
        none -> {ok, []};
        stopped -> {error, stopped}
    end;
renewed({error, _} = Error, _, _, _) ->
    Error.

credentials(bearer, Token, _, _, _) ->
    [{~"authorization", [~"Bearer ", Token]}];
credentials(dpop, Token, Method, Url, #handle{table = Table}) ->
    Claims = case looked_up(Table, nonce) of
                 {nonce, Nonce} -> #{access_token => Token, nonce => Nonce};
                 _ -> #{access_token => Token}
             end,
    case looked_up(Table, key) of
        {key, Key} -> [{~"authorization", [~"DPoP ", Token]},
                       {~"dpop", erlmcp_dpop:proof(name(Method), Url, Claims, Key)}];
        stopped -> []
    end.

name(post) -> ~"POST";
name(get) -> ~"GET";
name(delete) -> ~"DELETE".

token(#handle{table = Table}) -> looked_up(Table, token).

%% The table ends with the process.
looked_up(Table, Name) ->
    try ets:lookup(Table, Name) of
        [Row] -> Row;
        [] -> none
    catch
        error:badarg -> stopped
    end.

-doc """
Reports that the server refused a request with the headers `Used`, and waits until a login, a
renewal or a step up is over. After `retry` the request may be sent again with new headers; the
caller bounds how often. `Status` and its headers are those of the refusal. `Reached` is how far
inside the outermost of the server's addresses lies.
""".
-spec challenged(handle(), Used :: [{binary(), iodata()}],
                 {Status :: 401 | 403, #{binary() => binary()}},
                 Reached :: erlmcp_outbound_hosts:depth() | none, Deadline :: integer()) ->
    retry | {error, reason()}.
challenged(#handle{pid = Pid}, Used, {Status, Headers}, Reached, Deadline) ->
    Challenge = challenge(Headers),
    ask(Pid, {challenged, token_digest(Used), Status, Challenge, nonce(Headers), Reached},
        Deadline).

%% Only the digest, which tells whether the token is the current one.
token_digest(Headers) ->
    case lists:keyfind(~"authorization", 1, Headers) of
        {_, Value} ->
            [Token | _] = lists:reverse(binary:split(iolist_to_binary(Value), ~" ")),
            erlmcp_oauth_tokens:digest(Token);
        false -> none
    end.

challenge(#{~"www-authenticate" := Field}) ->
    Known = [Params || #{scheme := Scheme, params := Params} <- erlmcp_challenge:parse(Field),
                       Scheme =:= ~"bearer" orelse Scheme =:= ~"dpop"],
    %% A server with both schemes has the same parameters under both.
    Params = lists:foldl(fun(Params, Above) -> maps:merge(Params, Above) end, #{}, Known),
    #{metadata => maps:get(~"resource_metadata", Params, none),
      scopes => erlmcp_oauth_scope:parse(maps:get(~"scope", Params, ~"")),
      error => error_name(Known, Params)};
challenge(_) ->
    #{metadata => none, scopes => [], error => none}.

%% The other scheme may have another error next to the demand for a nonce.
error_name(Known, Params) ->
    Wanted = ~"use_dpop_nonce",
    case [Wanted || #{~"error" := Error} <- Known, Error =:= Wanted] of
        [] -> erlmcp_oauth_token:error_text(~"error", Params);
        _ -> Wanted
    end.

nonce(#{~"dpop-nonce" := Nonce}) when byte_size(Nonce) =< 1024 -> Nonce;
nonce(_) -> none.

-doc "Reports the headers of a response, whose nonce the next proof needs.".
-spec notice(handle(), #{binary() => binary()}) -> ok.
notice(#handle{pid = Pid, table = Table}, Headers) ->
    case nonce(Headers) of
        none ->
            ok;
        Nonce ->
            case looked_up(Table, nonce) of
                {nonce, Nonce} -> ok;
                _ -> noted(Pid, Nonce)
            end
    end.

%% Waits, so that the next request has the nonce. A nonce that is lost costs that request a second
%% try.
noted(Pid, Nonce) ->
    try
        gen_server:call(Pid, {nonce, Nonce}, 1000)
    catch
        exit:_ -> ok
    end.

ask(Pid, Question, Deadline) ->
    try
        gen_server:call(Pid, Question, max(0, Deadline - erlang:monotonic_time(millisecond)))
    catch
        exit:{timeout, _} -> {error, timeout};
        exit:_ -> {error, stopped}
    end.
