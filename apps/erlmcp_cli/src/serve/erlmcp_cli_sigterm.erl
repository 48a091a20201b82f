-module(erlmcp_cli_sigterm).
-moduledoc """
Handles SIGTERM in `erlmcp serve`: the server is drained before the node stops. The node stops even
if the drain fails. A second SIGTERM stops the node at once.
""".

-behaviour(gen_event).

-export([drain/2]).
-export([init/1, handle_event/2, handle_call/2]).

-doc """
Makes a later SIGTERM drain `Server`, and then stop the node. A node may call this function once.
""".
-spec drain(erlmcp:server(), erlmcp:drain_options()) -> ok.
drain(Server, Options) ->
    ok = gen_event:swap_handler(erl_signal_server, {erl_signal_handler, []},
                                {?MODULE, {Server, Options}}).

-doc false.
init({Drain, _}) ->
    {ok, Drain}.

-doc false.
handle_event(sigterm, {Server, Options}) ->
    %% The drain runs in a process of its own, so that this one can handle the next signal.
    _ = proc_lib:spawn(fun() ->
        try
            erlmcp:drain(Server, Options)
        after
            init:stop()
        end
    end),
    {ok, at_once};
handle_event(sigterm, at_once) ->
    ok = init:stop(),
    {ok, at_once};
handle_event(Signal, State) ->
    {ok, _} = erl_signal_handler:handle_event(Signal, State),
    {ok, State}.

-doc false.
handle_call(_, State) ->
    {ok, ok, State}.
