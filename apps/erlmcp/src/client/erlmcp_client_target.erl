-module(erlmcp_client_target).
-moduledoc "The target of a client: the server's address, and the channel that leads there. Pure.".

-export([settings/1, place/1]).

-export_type([target/0]).

-doc """
The address of the server. `http` has its URL; `stdio` the program to start, with or without
arguments; `tcp` a host and a port. `server` names one of this node by its pid or `id`, reached
without a socket. The options are `t:erlmcp_client_options:options/0` and those of the transport's
page.
""".
-type target() ::
    {http, Url :: binary(), erlmcp_client_options:options()}
    | {stdio, Command :: binary() | [binary(), ...], erlmcp_client_options:options()}
    | {tcp, Host :: binary() | inet:ip_address(), inet:port_number(),
       erlmcp_client_options:options()}
    | {server, erlmcp:server(), erlmcp_client_options:options()}.

-doc "Checks the options of a target, and returns the settings of a client of this server.".
-spec settings(target()) -> {ok, erlmcp_client_options:settings()} | {error, term()}.
settings({http, Url, Options}) ->
    erlmcp_client_options:check(http, erlmcp_httpc_channel, Url, Options);
settings({stdio, Command, Options}) ->
    erlmcp_client_options:check(line, erlmcp_stdio_channel, {stdio, Command}, Options);
settings({tcp, Host, Port, Options}) ->
    erlmcp_client_options:check(line, erlmcp_tcp_channel, {tcp, Host, Port}, Options);
settings({server, Server, Options}) ->
    erlmcp_client_options:check(line, erlmcp_memory_channel, {server, Server}, Options);
settings(_) ->
    {error, {bad_option, target, ~"{http | stdio | tcp | server, ...}"}}.

-doc "Returns the target without its options, which may hold secrets.".
-spec place(target()) -> tuple().
place(Target) ->
    erlang:delete_element(tuple_size(Target), Target).
