-module(erlmcp_changes).
-moduledoc """
Notifies the clients of a server that something has changed: a list, a resource or a task. The
calling process sends the change to the subscribers of this node. A server in a cluster also passes
it on to its other nodes, which send it to their subscribers.

Only data is passed on. Each other node decides by its own definitions which of its clients may be
notified of a list or a resource.

Internal.
""".

-export([list_changed/3, resource_updated/2, task_changed/3, heard/2]).

-export_type([change/0, whose/0]).

-define(IS_LISTED(List), (List =:= tool orelse List =:= prompt orelse List =:= resource)).

-doc """
A change, as the nodes of a cluster pass it on. A list has changed for all principals, or only for
those that may see one of the named definitions. `missed` means that there were changes which this
node does not know.
""".
-type change() ::
    {list, erlmcp_subscriptions:listed(), all | [{erlmcp_definition:kind(), Key :: binary()}, ...]}
    | {resource, Uri :: binary()}
    | {task, erlmcp_engine:topic(), erlmcp_subscriptions:notifications()}
    | missed.
-doc """
The principals that may see a changed definition: all, or those for which its `visible` fun returns
`true`. With the fun, the definition is named by its kind and its key.
""".
-type whose() :: all | {fun((erlmcp_auth:principal()) -> boolean()), erlmcp_definition:kind(),
                        Key :: binary()}.

-doc """
Notifies clients that `List` has changed. `Whose` has the principals of each changed definition. A
principal that may see none of these definitions is not notified.
""".
-spec list_changed(erlmcp_subscriptions:listed(), [whose(), ...], erlmcp_instance:instance()) -> ok.
list_changed(List, Whose, Instance) ->
    IsAll = lists:member(all, Whose),
    ok = notify(List, case IsAll of
        true -> all;
        false -> audience([Visible || {Visible, _, _} <- Whose])
    end, Instance),
    pass_on(fun() ->
        {list, List, case IsAll of
            true -> all;
            false -> [{Kind, Key} || {_, Kind, Key} <- Whose]
        end}
    end, Instance).

audience(Audiences) ->
    fun(Principal) ->
        lists:any(fun(Visible) -> erlmcp_definition:sees(Principal, Visible) end, Audiences)
    end.

notify(List, Audience, Instance) ->
    ok = erlmcp_session_table:note_change(List, Audience, Instance),
    erlmcp_subscriptions:publish(List, Audience, erlmcp_instance:subscriptions(Instance)).

-doc """
Deletes the cached contents of a resource, and notifies the clients that subscribe to it and may see
it.
""".
-spec resource_updated(Uri :: binary(), erlmcp_instance:instance()) -> ok.
resource_updated(Uri, Instance) ->
    ok = erlmcp_result_cache:forget(Uri, Instance),
    ok = notify_of_resource(Uri, Instance),
    pass_on(fun() -> {resource, Uri} end, Instance).

notify_of_resource(Uri, Instance) ->
    Audience = erlmcp_catalog:audience(Uri, erlmcp_published_catalog:catalog(Instance)),
    erlmcp_subscriptions:publish({uri, Uri}, Audience, erlmcp_instance:subscriptions(Instance)).

-doc """
Notifies the clients that subscribe to the task of `Topic`, with the notifications that the fun
`Notifications` returns. A server in a cluster calls this fun even if nobody subscribes here.
""".
-spec task_changed(erlmcp_engine:topic(), fun(() -> erlmcp_subscriptions:notifications()),
                   erlmcp_instance:instance()) -> ok.
task_changed(Topic, Notifications, Instance) ->
    ok = erlmcp_subscriptions:publish(Topic, all, Notifications,
                                      erlmcp_instance:subscriptions(Instance)),
    pass_on(fun() -> {task, Topic, Notifications()} end, Instance).

pass_on(_, #{cluster := none}) ->
    ok;
pass_on(Change, #{cluster := {Module, State}}) ->
    Module:publish(Change(), State).

-doc """
Notifies the clients of this node of a `t:change/0` on another node. Deletes the cached contents of
a changed resource. After missed changes, deletes all cached results, and notifies of all lists and
of all resources that have subscribers. A change in a form of a later release has no effect.
""".
-spec heard(Change :: term(), erlmcp_instance:instance()) -> ok.
heard({list, List, all}, Instance) when ?IS_LISTED(List) ->
    notify(List, all, Instance);
heard({list, List, Names}, Instance) when ?IS_LISTED(List), is_list(Names) ->
    Catalog = erlmcp_published_catalog:catalog(Instance),
    case [erlmcp_definition:audience(Definition)
          || {Kind, Key} <- Names,
             {ok, Definition} <- [erlmcp_catalog:definition(Kind, Key, Catalog)]] of
        [] -> ok;
        Audiences -> notify(List, audience(Audiences), Instance)
    end;
heard({resource, Uri}, Instance) ->
    ok = erlmcp_result_cache:forget(Uri, Instance),
    notify_of_resource(Uri, Instance);
heard({task, Topic, Notifications}, Instance) ->
    erlmcp_subscriptions:publish(Topic, all, fun() -> Notifications end,
                                 erlmcp_instance:subscriptions(Instance));
heard(missed, Instance) ->
    %% Anything may have changed. A client that is notified in vain reads what it knows.
    ok = erlmcp_result_cache:forget(Instance),
    lists:foreach(fun(List) -> ok = notify(List, all, Instance) end, [tool, prompt, resource]),
    lists:foreach(fun(Uri) -> ok = notify_of_resource(Uri, Instance) end,
                  erlmcp_subscriptions:watched(erlmcp_instance:subscriptions(Instance)));
heard(_, _) ->
    ok.
