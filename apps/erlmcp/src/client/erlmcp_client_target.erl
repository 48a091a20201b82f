-module(erlmcp_client_target).
-moduledoc "Where a client's server is, and which channel leads there. Pure.".

-export([settings/1, place/1, label/2]).

-export_type([target/0]).

-doc """
Where the server is. `http` and its URL; `stdio` and the program to start, with its arguments or
without; `tcp`, a host and a port; `server`, one of this node, by its pid or `id`, without a socket
between. The options are `t:erlmcp_client_options:options/0` and those of the transport's page.
""".
-type target() ::
    {http, Url :: binary(), erlmcp_client_options:options()}
    | {stdio, Command :: binary() | [binary(), ...], erlmcp_client_options:options()}
    | {tcp, Host :: binary() | inet:ip_address(), inet:port_number(),
       erlmcp_client_options:options()}
    | {server, erlmcp:server(), erlmcp_client_options:options()}.

-doc "The settings of a client of this server, if its options are right.".
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

-doc "The target without its options, which may have secrets.".
-spec place(target()) -> tuple().
place(Target) ->
    erlang:delete_element(tuple_size(Target), Target).

-doc """
Returns the kind of a channel and where its server is, for labels: host and port, or a program's
name. Paths and arguments may have secrets.
""".
-spec label(Channel :: module(), Target :: term()) -> [term()].
label(erlmcp_httpc_channel, Url) ->
    case erlmcp_httpc_target:parse(Url) of
        {ok, Parts} ->
            {Scheme, Host, Port} = erlmcp_httpc_target:origin(Parts),
            [Scheme, {Host, Port}];
        error ->
            [http]
    end;
label(erlmcp_stdio_channel, {stdio, [Program | _]}) ->
    [stdio, filename:basename(Program)];
label(erlmcp_stdio_channel, {stdio, Program}) ->
    [stdio, filename:basename(Program)];
label(erlmcp_tcp_channel, {tcp, Host, Port}) ->
    [tcp, {Host, Port}];
label(erlmcp_memory_channel, {server, Server}) ->
    [memory, Server].
