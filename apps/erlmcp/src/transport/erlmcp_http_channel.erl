-module(erlmcp_http_channel).
-moduledoc """
The channel to a server's URL, by HTTP/1.1 and HTTP/2: its process is a supervisor of what it needs, and
each message is an `m:erlmcp_http_exchange` in the process that sends it.
""".

-behaviour(erlmcp_channel).
-behaviour(supervisor).

-export([open/2, send/2, received/2, abort/1, leave/4, close/1]).
-export([init/1]).

%% What a client's own headers must leave alone.
-define(RESERVED, [~"accept", ~"connection", ~"content-length", ~"content-type", ~"host",
                   ~"last-event-id", ~"mcp-method", ~"mcp-name", ~"mcp-protocol-version",
                   ~"mcp-session-id", ~"te", ~"trailer", ~"transfer-encoding", ~"upgrade"]).

-doc """
Starts the pool of connections to a URL's origin, and, with the option `auth`, its authorizer.

## Errors

* `{bad_option, url}`: it is no `http` or `https` URL, or has a user in it
* `{bad_option, headers}`, `{bad_option, token}`: no headers, or some that the client sends itself
* `{bad_option, Key, Expected}`: an option of `auth`, see `t:erlmcp_oauth_options:options/0`
""".
-spec open(Target :: term(), erlmcp_channel:settings()) ->
    {ok, pid(), erlmcp_channel:handle()} | {error, term()}.
open(Target, #{options := Options, limits := Limits, connect_timeout := ConnectTimeout}) ->
    maybe
        {ok, Url} ?= url(Target),
        {ok, Own} ?= own_headers(maps:get(headers, Options, [])),
        {ok, Authorization} ?= authorization(maps:get(token, Options, none)),
        {ok, Auth} ?= auth(Options, Own),
        Pool = (maps:with([connections, streams, idle_ms, tls, protocols], Options))
            #{origin => erlmcp_http_target:origin(Url), connect_timeout => ConnectTimeout},
        {ok, Pid} ?= started(supervisor:start_link(?MODULE, {Pool, Target, Auth})),
        Children = #{Id => Child || {Id, Child, _, _} <- supervisor:which_children(Pid)},
        {ok, Pid, #{pool => erlmcp_http_pool:handle(maps:get(pool, Children)), url => Url,
                    path => erlmcp_http_target:path(Url), limits => Limits,
                    headers => Authorization ++ Own, authorizer => authorizer(Children)}}
    end.

started({error, {shutdown, {failed_to_start_child, _, Reason}}}) -> {error, Reason};
started(Other) -> Other.

authorizer(#{authorizer := Pid}) -> erlmcp_authorizer:handle(Pid);
authorizer(#{}) -> none.

-doc false.
-spec init({map(), Url :: binary(), none | fun(() -> map())}) ->
    {ok, {supervisor:sup_flags(), [supervisor:child_spec()]}}.
init({Pool, Url, Auth}) ->
    %% Handles are out among the calls, so nothing here can begin anew.
    {ok, {#{strategy => one_for_all, intensity => 0},
          [#{id => pool, start => {erlmcp_http_pool, start_link, [Pool]}}
           | [#{id => authorizer, start => {erlmcp_http_authorization, start_link, [Auth, Url]}}
              || Auth =/= none]]}}.

url(Target) ->
    case erlmcp_http_target:parse(Target) of
        {ok, Url} -> {ok, Url};
        error -> {error, {bad_option, url}}
    end.

own_headers(Headers) ->
    try
        Own = [{string:lowercase(iolist_to_binary(Name)), iolist_to_binary(Value)}
               || {Name, Value} <- Headers],
        true = length(Own) =:= length(Headers),
        true = lists:all(fun({Name, Value}) -> is_header(Name, Value) end, Own),
        {ok, Own}
    catch
        error:_ -> {error, {bad_option, headers}}
    end.

is_header(Name, Value) ->
    re:run(Name, "^[!#$%&'*+.^_`|~0-9a-z-]+$", [{capture, none}, dollar_endonly]) =:= match
        andalso is_value(Value) andalso not lists:member(Name, ?RESERVED).

is_value(Value) ->
    binary:match(Value, [~"\r", ~"\n", ~"\0"]) =:= nomatch.

authorization(none) ->
    {ok, []};
authorization(Token) when is_binary(Token) ->
    case Token =/= ~"" andalso is_value(Token) of
        true -> {ok, [{~"authorization", <<"Bearer ", Token/binary>>}]};
        false -> {error, {bad_option, token}}
    end;
authorization(_) ->
    {error, {bad_option, token}}.

%% In a fun: it has secrets, and would be in the supervisor's reports.
auth(#{auth := _, token := _}, _) ->
    {error, {bad_option, auth, ~"no token beside it"}};
auth(#{auth := Options}, Own) ->
    case lists:keymember(~"authorization", 1, Own) of
        true -> {error, {bad_option, auth, ~"no header authorization beside it"}};
        false -> {ok, fun() -> Options end}
    end;
auth(#{}, _) ->
    {ok, none}.

-doc "Sends a message, or asks for a session's stream.".
-spec send(erlmcp_channel:outgoing(), erlmcp_http_exchange:route()) ->
    {ok, erlmcp_http_exchange:exchange()} | {error, erlmcp_channel:reason()}.
send(Outgoing, Route) ->
    erlmcp_http_exchange:start(Outgoing, Route).

-doc "What a message of gun's means.".
-spec received(term(), erlmcp_http_exchange:exchange()) ->
    {[erlmcp_channel:event()], erlmcp_http_exchange:exchange()} | other.
received(Message, Exchange) ->
    erlmcp_http_exchange:received(Message, Exchange).

-doc "Closes the stream.".
-spec abort(erlmcp_http_exchange:exchange()) -> boolean().
abort(Exchange) ->
    erlmcp_http_exchange:abort(Exchange).

-doc "Ends a session by DELETE, whatever the server says to it.".
-spec leave(binary() | none, [{binary(), iodata()}], integer(), erlmcp_http_exchange:route()) -> ok.
leave(none, _, _, _) ->
    ok;
leave(Session, Headers, Deadline, Route) ->
    erlmcp_http_exchange:delete(Session, Headers, Deadline, Route).

-doc "Closes the connections.".
-spec close(pid()) -> ok.
close(Pid) ->
    gen_server:stop(Pid, normal, infinity).
