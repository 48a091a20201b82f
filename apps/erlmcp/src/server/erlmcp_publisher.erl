-module(erlmcp_publisher).
-moduledoc """
The process that holds a server's catalog and is alone in changing it. Readers take the published
value (`catalog/1`), which is a persistent term: no copy, no lock, no message. A change is published
whole, and the open sessions are told.
""".

-behaviour(gen_server).

-export([start_link/2, catalog/1, change/2]).
-export([init/1, handle_call/3, handle_cast/2, terminate/2]).

-doc "Starts the publisher of an instance with the catalog that it begins with.".
-spec start_link(erlmcp_instance:instance(), erlmcp_catalog:catalog()) -> gen_server:start_ret().
start_link(Instance, Catalog) ->
    gen_server:start_link(?MODULE, {Instance, Catalog}, []).

-doc "The catalog as it is now.".
-spec catalog(erlmcp_instance:instance()) -> erlmcp_catalog:catalog().
catalog(#{key := Key}) ->
    persistent_term:get({?MODULE, Key}).

-doc "Adds or removes a definition. Lists, calls and sessions see it at once.".
-spec change(pid(), {add, erlmcp_definition:kind(), erlmcp_definition:source()}
                    | {remove, erlmcp_definition:kind(), binary()}) -> ok | {error, term()}.
change(Publisher, Change) ->
    gen_server:call(Publisher, Change).

-doc false.
init({#{key := Key} = Instance, Catalog}) ->
    process_flag(trap_exit, true),
    %% After a crash the last published catalog stands, with what was added since the start.
    case persistent_term:get({?MODULE, Key}, undefined) of
        undefined -> persistent_term:put({?MODULE, Key}, Catalog);
        _ -> ok
    end,
    {ok, Instance}.

-doc false.
handle_call({add, Kind, Given}, _, Instance) ->
    Source = erlmcp_visibility:guarded(Kind, Given),
    publish(Kind, erlmcp_catalog:add(Kind, Source, catalog(Instance)),
            fun() -> erlmcp_definition:audience(Source) end, Instance);
handle_call({remove, Kind, Key}, _, Instance) ->
    Catalog = catalog(Instance),
    publish(Kind, erlmcp_catalog:remove(Kind, Key, Catalog),
            fun() -> erlmcp_catalog:audience(Kind, Key, Catalog) end, Instance).

%% Those who may not see a definition do not hear that it comes or goes.
publish(Kind, {ok, Catalog}, Audience, #{key := Key} = Instance) ->
    persistent_term:put({?MODULE, Key}, Catalog),
    ok = erlmcp_subscriptions:publish(topic(Kind), Audience(),
                                      erlmcp_instance:subscriptions(Instance)),
    {reply, ok, Instance};
publish(_, {error, _} = Error, _, Instance) ->
    {reply, Error, Instance}.

topic(resource_template) -> resource;
topic(Kind) -> Kind.

-doc false.
handle_cast(_, Instance) ->
    {noreply, Instance}.

-doc false.
terminate({Error, Stack}, _) when Error =/= shutdown, is_list(Stack) ->
    ok;
terminate(_, #{key := Key}) ->
    _ = persistent_term:erase({?MODULE, Key}),
    ok.
