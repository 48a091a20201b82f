-module(erlmcp_client_target).
-moduledoc """
The target of a client: the server's address, and the channel that leads there. Pure.

Internal.
""".

-export([settings/1, place/1, label/1]).

-doc "Checks the options of a target, and returns the settings of a client of this server.".
-spec settings(erlmcp_client:target()) -> {ok, erlmcp_client_options:settings()} | {error, term()}.
settings({http, Url, Options}) ->
    erlmcp_client_options:check(http, erlmcp_httpc_channel, Url, Options);
settings({stdio, Command, Options}) ->
    erlmcp_client_options:check(line, erlmcp_line_channel, {stdio, Command}, Options);
settings({tcp, Host, Port, Options}) ->
    erlmcp_client_options:check(line, erlmcp_line_channel, {tcp, Host, Port}, Options);
settings({server, Server, Options}) ->
    erlmcp_client_options:check(line, erlmcp_line_channel, {server, Server}, Options);
settings(_) ->
    {error, {bad_option, target, ~"{http | stdio | tcp | server, ...}"}}.

-doc "Returns the target without its options, which may hold secrets.".
-spec place(erlmcp_client:target()) -> tuple().
place(Target) ->
    erlang:delete_element(tuple_size(Target), Target).

-doc """
Returns the kind of a channel's target and where its server is, for labels: host and port, or a
program's name. Paths and arguments may have secrets.
""".
-spec label(Target :: term()) -> [term()].
label({stdio, [Program | _]}) when not is_integer(Program) ->
    [stdio, filename:basename(Program)];
label({stdio, Program}) ->
    [stdio, filename:basename(Program)];
label({tcp, Host, Port}) ->
    [tcp, {Host, Port}];
label({server, Server}) ->
    [memory, Server];
label(Url) ->
    case erlmcp_httpc_target:parse(Url) of
        {ok, Parts} ->
            {Scheme, Host, Port} = erlmcp_httpc_target:origin(Parts),
            [Scheme, {Host, Port}];
        error ->
            [http]
    end.
