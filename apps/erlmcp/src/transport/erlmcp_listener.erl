-module(erlmcp_listener).
-moduledoc """
Starts a ranch listener whose port may have been another's a moment ago: a listening socket closes
some time after the process that had it, so a server that is restarted on its port must wait for it.
""".

-export([child_spec/2, hard_stop/1, start_link/2]).

%% Milliseconds between two looks at the port, and how many.
-define(LOOK, 20).
-define(LOOKS, 25).
%% Connections that can be being refused at any time, beside some of those that may be served.
-define(REFUSED, 100).

-doc "The child specification of a listener, from ranch's own.".
-spec child_spec(supervisor:child_spec(), SocketOptions :: [gen_tcp:listen_option()]) ->
    supervisor:child_spec().
child_spec(#{start := Start} = Spec, SocketOptions) ->
    Address = [Option || {Key, _} = Option <- SocketOptions, Key =:= ip orelse Key =:= port],
    Spec#{start := {?MODULE, start_link, [Start, Address]}}.

-doc """
Connections at which a listener accepts no more: somewhat above those that may be served, so that
those over that bound are told so, and below what a flood of them could take.
""".
-spec hard_stop(Connections :: pos_integer()) -> pos_integer().
hard_stop(Connections) ->
    Connections + Connections div 8 + ?REFUSED.

-doc false.
-spec start_link({module(), atom(), [term()]}, [gen_tcp:listen_option()]) ->
    supervisor:startlink_ret().
start_link({Module, Function, Arguments}, Address) ->
    ok = wait(Address, ?LOOKS),
    apply(Module, Function, Arguments).

%% Whatever is the matter then, ranch says it.
wait(Address, Left) ->
    case gen_tcp:listen(proplists:get_value(port, Address), [{reuseaddr, true} | Address]) of
        {ok, Socket} ->
            gen_tcp:close(Socket);
        {error, eaddrinuse} when Left > 0 ->
            receive
            after ?LOOK -> wait(Address, Left - 1)
            end;
        {error, _} ->
            ok
    end.
