-module(erlmcp_shared).
-moduledoc """
What all processes of a server read and none has a copy of: its instance, the settings of its
listeners, and its pools of workers, each written again where it begins anew; and its catalog, which
`m:erlmcp_published` writes. They are persistent
terms, which are handed on as they are, to a process that starts too, so that a connection costs
what is its own.

The process writes nothing and answers nobody; with the server's end it takes them away. It ends
after all that read them.
""".

-behaviour(gen_server).

-export([put/2, find/1, start_link/1]).
-export([init/1, handle_call/3, handle_cast/2, terminate/2]).

-doc "Shares a term under a name that is the node's only one; gives it as it is shared.".
-spec put(Name :: term(), Term) -> Term when Term :: dynamic().
put(Name, Term) ->
    ok = persistent_term:put({?MODULE, Name}, Term),
    persistent_term:get({?MODULE, Name}).

-doc "The term of this name; `gone` when its server has ended.".
-spec find(Name :: term()) -> {ok, Term :: dynamic()} | gone.
find(Name) ->
    case persistent_term:get({?MODULE, Name}, ?MODULE) of
        ?MODULE -> gone;
        Term -> {ok, Term}
    end.

-doc "Starts the process that takes away what is shared under these names.".
-spec start_link(Names :: [term()]) -> gen_server:start_ret().
start_link(Names) ->
    gen_server:start_link(?MODULE, Names, [{hibernate_after, 0}]).

-doc false.
init(Names) ->
    process_flag(trap_exit, true),
    {ok, Names}.

-doc false.
handle_call(_, _, Names) ->
    {noreply, Names}.

-doc false.
handle_cast(_, Names) ->
    {noreply, Names}.

-doc false.
terminate(_, Names) ->
    lists:foreach(
        fun(Name) ->
            _ = persistent_term:erase({?MODULE, Name}),
            %% The server's key is one of them.
            ok = erlmcp_published:erase(Name),
            erlmcp_log:forget(Name)
        end, Names).
