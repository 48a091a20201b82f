-module(erlmcp_shared).
-moduledoc """
What all processes of a server read and none has a copy of: its instance, the settings of its
listeners, and its pools of workers, each written again where it begins anew; and its catalog, which
`m:erlmcp_published_catalog` writes. They are persistent
terms, which are handed on as they are, to a process that starts too, so that a connection costs
what is its own.

The process writes nothing and answers nobody; with the server's end it takes them away. It ends
after all that read them.
""".

-behaviour(gen_server).

-export([put/2, find/1, start_link/2]).
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

-doc """
Starts the process that takes away what is shared under the key of a server and these other names,
and what stands elsewhere under its key alone.
""".
-spec start_link(Server :: reference(), Names :: [term()]) -> gen_server:start_ret().
start_link(Key, Names) ->
    gen_server:start_link(?MODULE, {Key, Names}, [{hibernate_after, 0}]).

-doc false.
init(Shared) ->
    process_flag(trap_exit, true),
    {ok, Shared}.

-doc false.
handle_call(_, _, Shared) ->
    {noreply, Shared}.

-doc false.
handle_cast(_, Shared) ->
    {noreply, Shared}.

-doc false.
terminate(_, {Key, Names}) ->
    lists:foreach(fun(Name) -> persistent_term:erase({?MODULE, Name}) end, [Key | Names]),
    ok = erlmcp_published_catalog:erase(Key),
    erlmcp_log:forget(Key).
