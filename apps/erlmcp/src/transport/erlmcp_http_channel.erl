-module(erlmcp_http_channel).
-moduledoc """
The channel to a server's URL, by HTTP/1.1 and HTTP/2: its process is a supervisor of what it needs,
and each message is an `m:erlmcp_http_exchange` in the process that sends it.
""".

-behaviour(erlmcp_channel).
-behaviour(supervisor).

-export([open/2, send/2, received/2, abort/1, leave/4, close/1]).
-export([init/1]).

-doc """
Starts the pool of connections to a URL's origin, and, with the option `auth`, its authorizer. The
options are those of `erlmcp_http_options:check/2`.
""".
-spec open(Target :: term(), erlmcp_channel:settings()) ->
    {ok, pid(), erlmcp_channel:handle()}
    | {error, {bad_option, Key :: term(), Expected :: binary()} | term()}.
open(Target, #{options := Options, limits := Limits} = Settings) ->
    maybe
        {ok, #{url := Url, headers := Headers, pool := Own, auth := Auth}} ?=
            erlmcp_http_options:check(Target, Options),
        #{connect_timeout := ConnectTimeout} = Settings,
        Pool = waiting(Settings, Own#{origin => erlmcp_http_target:origin(Url),
                                      connect_timeout => ConnectTimeout}),
        {ok, Pid} ?= started(supervisor:start_link(?MODULE, {Pool, Target, Auth})),
        Children = #{Id => Child || {Id, Child, _, _} <- supervisor:which_children(Pid)},
        {ok, Pid, #{pool => erlmcp_http_pool:handle(maps:get(pool, Children)), url => Url,
                    path => erlmcp_http_target:path(Url), limits => Limits,
                    headers => [{~"host", erlmcp_http_target:authority(Url)} | Headers],
                    authorizer => authorizer(Children)}}
    end.

%% All calls may have to wait for a connection.
waiting(#{calls := Calls}, Pool) -> Pool#{waiting => Calls};
waiting(#{}, Pool) -> Pool.

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
-spec abort(erlmcp_http_exchange:exchange()) -> true.
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
