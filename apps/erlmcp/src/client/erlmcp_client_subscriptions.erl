-module(erlmcp_client_subscriptions).
-moduledoc """
The subscriptions of a client's users, kept by the client's process. In 2026-07-28 each subscription
has a stream of its own (`m:erlmcp_client_listen`). In a session all share the messages of the
server. Their resources are counted there, so that the server is asked to watch each of them once.

Sources: specification 2026-07-28, "Subscriptions"; 2025-11-25, "Resources / Subscriptions".

Internal.
""".

-export([check/1, new/0, is_empty/1, add/4, remove/3, worker_ended/2, restart/2]).
-export([end_all/2, notify_all/3, answer/3, subscribed/3, stream_event/3, is_opening/1]).
-export([event/2, deliver/3]).

-export_type([subscriptions/0]).

-record(subscription, {
    pid :: pid(),
    filter :: erlmcp_client:filter(),
    %% The process that serves it: its own stream's, or one that asks the server to watch resources.
    worker :: undefined | pid(),
    asked = false :: boolean()
}).
-record(subscriptions, {
    all = #{} :: #{reference() => #subscription{}},
    %% The stream on which a session's server sends messages that belong to no call.
    stream = none :: none | {opening | open, pid()},
    questions = erlmcp_client_questions:new() :: erlmcp_client_questions:questions()
}).

-opaque subscriptions() :: #subscriptions{}.
-type server() :: {erlmcp_client_connection:client(), undefined | erlmcp_client_connection:live()}.

-doc "Checks a filter, and returns its first wrong member if there is one.".
-spec check(erlmcp_client:filter() | term()) ->
    ok | {error, {bad_option, Key :: term(), Expected :: binary()}}.
check(#{} = Filter) ->
    case [{Key, Expected} || Key := Value <- Filter,
                             Expected <- [filter(Key, Value)], Expected =/= true] of
        [] -> ok;
        [{Key, Expected} | _] -> {error, {bad_option, Key, Expected}}
    end;
check(_) ->
    {error, {bad_option, filter, ~"a map"}}.

filter(resources, Uris) ->
    is_list(Uris) andalso lists:all(fun is_binary/1, Uris) orelse ~"a list of URIs";
filter(Key, Value) when
    Key =:= tools_changed; Key =:= prompts_changed; Key =:= resources_changed; Key =:= logs;
    Key =:= elicitations
->
    is_boolean(Value) orelse ~"a boolean";
filter(_, _) ->
    ~"no such kind of change".

-doc "Returns an empty set of subscriptions.".
-spec new() -> subscriptions().
new() ->
    #subscriptions{}.

-doc "Returns `true` if there are no subscriptions.".
-spec is_empty(subscriptions()) -> boolean().
is_empty(#subscriptions{all = All}) ->
    map_size(All) =:= 0.

-doc "Adds a subscription of the process `Pid`, which is monitored from now on.".
-spec add(pid(), erlmcp_client:filter(), server(), subscriptions()) ->
    {ok, reference(), subscriptions()} | {error, {overload, pos_integer()}}.
add(Pid, Filter, {#{settings := #{subscriptions := Limit}}, _} = Server, Subscriptions) ->
    #subscriptions{all = All} = Subscriptions,
    case map_size(All) of
        Limit ->
            {error, {overload, Limit}};
        _ ->
            Reference = monitor(process, Pid),
            Subscription = start(Reference, #subscription{pid = Pid, filter = Filter}, Server),
            {ok, Reference, announced(Subscriptions#subscriptions{
                all = All#{Reference => Subscription}})}
    end.

%% Before the server is known there is nothing to begin; `renewed/2` follows.
start(_, Subscription, {_, undefined}) ->
    Subscription;
start(Reference, #subscription{pid = Pid, filter = Filter} = Subscription, {Client, Live}) ->
    #{revision := Revision} = Live,
    Worker = case {erlmcp_revision:era(Revision), maps:without([logs, elicitations], Filter)} of
        {stateless, Changes} when map_size(Changes) =:= 0 ->
            undefined;
        {stateless, _} ->
            spawn_link(fun() ->
                ok = erlmcp_label:set([erlmcp_client_listen, Pid]),
                erlmcp_client_listen:run(Reference, Pid, Filter, Client, Live)
            end);
        {session, #{resources := [_ | _] = Uris}} ->
            Peer = self(),
            spawn_link(fun() ->
                Outcome = watch(Uris, ~"resources/subscribe", Client, Live),
                Peer ! {subscribed, self(), Outcome}
            end);
        {session, _} ->
            undefined
    end,
    Subscription#subscription{worker = Worker, asked = Worker =:= undefined}.

watch([], _, _, _) ->
    ok;
watch([Uri | Uris], Method, Client, Live) ->
    case erlmcp_client_exchange:request({Method, #{~"uri" => Uri}}, Client, Live) of
        {ok, _, _} -> watch(Uris, Method, Client, Live);
        {error, _} = Error -> Error
    end.

-doc "Removes a subscription that was ended, or whose process has died.".
-spec remove(reference(), server(), subscriptions()) -> subscriptions().
remove(Reference, Server, #subscriptions{all = All, questions = Questions} = Subscriptions) ->
    case maps:take(Reference, All) of
        {#subscription{worker = Worker, filter = Filter}, Left} ->
            _ = demonitor(Reference, [flush]),
            ok = end_worker(Worker),
            ok = unwatch(maps:get(resources, Filter, []), Left, Server),
            Subscriptions#subscriptions{all = Left};
        error ->
            case erlmcp_client_questions:ended(Reference, Questions) of
                {ok, Left} -> Subscriptions#subscriptions{questions = Left};
                other -> Subscriptions
            end
    end.

end_worker(undefined) ->
    ok;
end_worker(Worker) ->
    unlink(Worker),
    exit(Worker, shutdown),
    ok.

%% Unsubscribes from the resources that no other subscription watches.
unwatch(Uris, Others, {Client, #{revision := Revision} = Live}) when Uris =/= [] ->
    Watched = lists:append([maps:get(resources, Filter, [])
                            || _ := #subscription{filter = Filter} <- Others]),
    case {erlmcp_revision:era(Revision), Uris -- Watched} of
        {session, [_ | _] = Last} ->
            _ = spawn(fun() -> watch(Last, ~"resources/unsubscribe", Client, Live) end),
            ok;
        _ ->
            ok
    end;
unwatch(_, _, _) ->
    ok.

-doc "Removes a linked process that has ended: a question's, a stream's, or a subscription's.".
-spec worker_ended(pid(), subscriptions()) -> subscriptions().
worker_ended(Pid, #subscriptions{stream = {_, Pid}} = Subscriptions) ->
    announced(Subscriptions#subscriptions{stream = none});
worker_ended(Pid, #subscriptions{all = All} = Subscriptions) ->
    Subscriptions#subscriptions{all = maps:map(
        fun(_, #subscription{worker = Worker} = Subscription) when Worker =:= Pid ->
                Subscription#subscription{worker = undefined};
           (_, Subscription) ->
                Subscription
        end, All)}.

-doc "Tells every subscriber that its subscription has ended.".
-spec end_all(Reason :: term(), subscriptions()) -> ok.
end_all(Reason, #subscriptions{all = All}) ->
    lists:foreach(fun({Reference, #subscription{pid = Pid}}) ->
                      deliver(Pid, Reference, {ended, Reason})
                  end, maps:to_list(All)).

-doc "Begins all subscriptions again after a negotiation with the server.".
-spec restart({erlmcp_client_connection:client(), erlmcp_client_connection:live()},
              subscriptions()) -> subscriptions().
restart(Server, #subscriptions{all = All, stream = Stream} = Subscriptions) ->
    ok = case Stream of
        {_, Old} -> end_worker(Old);
        none -> ok
    end,
    Again = maps:map(fun(Reference, #subscription{worker = Worker} = Subscription) ->
                         ok = end_worker(Worker),
                         start(Reference, Subscription#subscription{asked = false}, Server)
                     end, All),
    announced(Subscriptions#subscriptions{all = Again, stream = opened(Server)}).

opened({#{settings := #{rules := http}} = Client,
        #{revision := Revision, generation := 0} = Live}) ->
    case erlmcp_revision:era(Revision) of
        session -> {opening, spawn_link(fun() ->
            ok = erlmcp_label:set([erlmcp_client_stream]),
            erlmcp_client_stream:run(Client, Live)
        end)};
        stateless -> none
    end;
opened(_) ->
    none.

-doc "Takes the outcome of asking a session's server to watch resources.".
-spec subscribed(pid(), ok | {error, term()}, subscriptions()) -> subscriptions().
subscribed(Worker, Outcome, #subscriptions{all = All} = Subscriptions) ->
    case [Reference || Reference := #subscription{worker = W} <- All, W =:= Worker] of
        [Reference] when Outcome =:= ok ->
            #{Reference := Subscription} = All,
            announced(Subscriptions#subscriptions{
                all = All#{Reference := Subscription#subscription{asked = true}}});
        [Reference] ->
            {error, Reason} = Outcome,
            #{Reference := #subscription{pid = Pid}} = All,
            _ = deliver(Pid, Reference, {ended, Reason}),
            _ = demonitor(Reference, [flush]),
            Subscriptions#subscriptions{all = maps:remove(Reference, All)};
        [] ->
            Subscriptions
    end.

-doc "Takes the news of a session's stream: it is open, open again, or refused.".
-spec stream_event(pid(), open | refused, subscriptions()) -> subscriptions().
stream_event(Pid, open, #subscriptions{stream = {opening, Pid}} = Subscriptions) ->
    announced(Subscriptions#subscriptions{stream = {open, Pid}});
stream_event(Pid, open, #subscriptions{stream = {open, Pid}, all = All} = Subscriptions) ->
    lists:foreach(fun({Reference, #subscription{pid = Subscriber}}) ->
                      deliver(Subscriber, Reference, subscribed)
                  end, maps:to_list(All)),
    Subscriptions;
stream_event(Pid, refused, #subscriptions{stream = {_, Pid}} = Subscriptions) ->
    announced(Subscriptions#subscriptions{stream = none});
stream_event(_, _, Subscriptions) ->
    Subscriptions.

-doc "Returns `true` if the session's stream is being opened.".
-spec is_opening(subscriptions()) -> boolean().
is_opening(#subscriptions{stream = {opening, _}}) -> true;
is_opening(_) -> false.

%% In a session a subscription stands when the server was asked and its stream is open.
announced(#subscriptions{stream = {opening, _}} = Subscriptions) ->
    Subscriptions;
announced(#subscriptions{all = All} = Subscriptions) ->
    Subscriptions#subscriptions{all = maps:map(
        fun(Reference, #subscription{pid = Pid, asked = true} = Subscription) ->
                _ = deliver(Pid, Reference, subscribed),
                Subscription#subscription{asked = false};
           (_, Subscription) ->
                Subscription
        end, All)}.

-doc "Tells the subscribers of a session of a notification that belongs to no call.".
-spec notify_all(Method :: binary(), Params :: map(), subscriptions()) -> subscriptions().
notify_all(Method, Params, #subscriptions{all = All} = Subscriptions) ->
    case event(Method, Params) of
        none ->
            Subscriptions;
        Event ->
            Cut = [Reference || Reference := #subscription{filter = Filter, pid = Pid} <- All,
                                wants(Event, Filter), deliver(Pid, Reference, Event) =:= cut],
            lists:foreach(fun(Reference) -> demonitor(Reference, [flush]) end, Cut),
            Subscriptions#subscriptions{all = maps:without(Cut, All)}
    end.

-doc "Returns the event of a notification; `none` if subscribers are not told of its method.".
-spec event(Method :: binary(), Params :: map()) -> erlmcp_client:event() | none.
event(~"notifications/tools/list_changed", _) -> tools_changed;
event(~"notifications/prompts/list_changed", _) -> prompts_changed;
event(~"notifications/resources/list_changed", _) -> resources_changed;
event(~"notifications/resources/updated", #{~"uri" := Uri}) -> {resource_updated, Uri};
event(~"notifications/message", Params) -> {log, Params};
event(~"notifications/elicitation/complete", #{~"elicitationId" := Id}) ->
    {elicitation_complete, Id};
event(_, _) -> none.

wants({resource_updated, Uri}, Filter) -> lists:member(Uri, maps:get(resources, Filter, []));
wants({log, _}, Filter) -> maps:get(logs, Filter, false);
wants({elicitation_complete, _}, Filter) -> maps:get(elicitations, Filter, false);
wants(Kind, Filter) -> maps:get(Kind, Filter, false).

-doc "Sends a subscriber an event, or ends the subscription if its process does not read.".
-spec deliver(pid(), reference(), erlmcp_client:event()) -> ok | cut.
deliver(Pid, Reference, Event) ->
    case erlmcp_client_mailbox:offer(Pid, {erlmcp, Reference, Event}) of
        ok ->
            ok;
        full ->
            Pid ! {erlmcp, Reference, {ended, slow_consumer}},
            cut
    end.

-doc "Answers a request that the server sent outside of any call's stream.".
-spec answer(erlmcp_message:message(),
             {erlmcp_client_connection:client(), erlmcp_client_connection:live()},
             subscriptions()) -> subscriptions().
answer(Request, Server, #subscriptions{questions = Questions} = Subscriptions) ->
    Asked = erlmcp_client_questions:ask(Request, Server, Questions),
    Subscriptions#subscriptions{questions = Asked}.
