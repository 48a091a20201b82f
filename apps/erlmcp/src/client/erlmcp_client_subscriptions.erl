-module(erlmcp_client_subscriptions).
-moduledoc """
Who of a client's users wants to hear of which changes, kept by the client's own process. In
2026-07-28 each subscription has a stream of its own (`m:erlmcp_client_listen`); in a session all
share what the server sends, and the resources that they watch are counted, so that the server is
asked for each of them once.

Sources: specification 2026-07-28, "Subscriptions"; 2025-11-25, "Resources / Subscriptions".

Internal.
""".

-export([check/1, new/0, is_empty/1, add/4, remove/3, ended/2, renewed/2]).
-export([end_all/2, heard/3, asked/3, subscribed/3, stream/3, is_opening/1]).
-export([event/2, deliver/3]).

-export_type([subscriptions/0]).

-record(subscription, {
    pid :: pid(),
    filter :: erlmcp_client:filter(),
    %% What makes it heard: a stream of its own, or a process that asks for resources.
    worker :: undefined | pid(),
    asked = false :: boolean()
}).
-record(subscriptions, {
    all = #{} :: #{reference() => #subscription{}},
    %% The stream on which a session's server says what belongs to no call.
    stream = none :: none | {opening | open, pid()},
    questions = erlmcp_client_questions:new() :: erlmcp_client_questions:questions()
}).

-opaque subscriptions() :: #subscriptions{}.
-type server() :: {erlmcp_client_connection:client(), undefined | erlmcp_client_connection:live()}.

-doc "Whether a filter is one.".
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
    ~"nothing that can be subscribed to".

-doc "No subscriptions.".
-spec new() -> subscriptions().
new() ->
    #subscriptions{}.

-doc "Whether there are none.".
-spec is_empty(subscriptions()) -> boolean().
is_empty(#subscriptions{all = All}) ->
    map_size(All) =:= 0.

-doc "One more, for a process that is monitored from now on.".
-spec add(pid(), erlmcp_client:filter(), server(), subscriptions()) ->
    {ok, reference(), subscriptions()} | {error, {overload, pos_integer()}}.
add(Pid, Filter, {#{settings := #{subscriptions := Limit}}, _} = Server, Subscriptions) ->
    #subscriptions{all = All} = Subscriptions,
    case map_size(All) of
        Limit ->
            {error, {overload, Limit}};
        _ ->
            Reference = monitor(process, Pid),
            Subscription = begun(Reference, #subscription{pid = Pid, filter = Filter}, Server),
            {ok, Reference, announced(Subscriptions#subscriptions{
                all = All#{Reference => Subscription}})}
    end.

%% Before the server is known, nothing; `renewed/2` comes then.
begun(_, Subscription, {_, undefined}) ->
    Subscription;
begun(Reference, #subscription{pid = Pid, filter = Filter} = Subscription, {Client, Live}) ->
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

-doc "One less: unsubscribed, or its process has ended.".
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

%% What no other one watches.
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

-doc "A linked process has ended: a question's, a stream's, or that of a subscription.".
-spec ended(pid(), subscriptions()) -> subscriptions().
ended(Pid, #subscriptions{stream = {_, Pid}} = Subscriptions) ->
    announced(Subscriptions#subscriptions{stream = none});
ended(Pid, #subscriptions{all = All} = Subscriptions) ->
    Subscriptions#subscriptions{all = maps:map(
        fun(_, #subscription{worker = Worker} = Subscription) when Worker =:= Pid ->
                Subscription#subscription{worker = undefined};
           (_, Subscription) ->
                Subscription
        end, All)}.

-doc "Tells every subscriber that nothing more comes.".
-spec end_all(Reason :: term(), subscriptions()) -> ok.
end_all(Reason, #subscriptions{all = All}) ->
    lists:foreach(fun({Reference, #subscription{pid = Pid}}) ->
                      deliver(Pid, Reference, {ended, Reason})
                  end, maps:to_list(All)).

-doc "The server is known, or known anew: everything is asked for again.".
-spec renewed({erlmcp_client_connection:client(), erlmcp_client_connection:live()},
              subscriptions()) -> subscriptions().
renewed(Server, #subscriptions{all = All, stream = Stream} = Subscriptions) ->
    ok = case Stream of
        {_, Old} -> end_worker(Old);
        none -> ok
    end,
    Again = maps:map(fun(Reference, #subscription{worker = Worker} = Subscription) ->
                         ok = end_worker(Worker),
                         begun(Reference, Subscription#subscription{asked = false}, Server)
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

-doc "What came of asking a session's server to watch resources.".
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

-doc "The session's stream is open, or open anew; or there is none.".
-spec stream(pid(), open | refused, subscriptions()) -> subscriptions().
stream(Pid, open, #subscriptions{stream = {opening, Pid}} = Subscriptions) ->
    announced(Subscriptions#subscriptions{stream = {open, Pid}});
stream(Pid, open, #subscriptions{stream = {open, Pid}, all = All} = Subscriptions) ->
    lists:foreach(fun({Reference, #subscription{pid = Subscriber}}) ->
                      deliver(Subscriber, Reference, subscribed)
                  end, maps:to_list(All)),
    Subscriptions;
stream(Pid, refused, #subscriptions{stream = {_, Pid}} = Subscriptions) ->
    announced(Subscriptions#subscriptions{stream = none});
stream(_, _, Subscriptions) ->
    Subscriptions.

-doc "Whether the session's stream is on its way.".
-spec is_opening(subscriptions()) -> boolean().
is_opening(#subscriptions{stream = {opening, _}}) -> true;
is_opening(_) -> false.

%% In a session a subscription stands when the server was asked and its stream is there.
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

-doc "Tells the subscribers of a session of a notification that came for nobody in particular.".
-spec heard(Method :: binary(), Params :: map(), subscriptions()) -> subscriptions().
heard(Method, Params, #subscriptions{all = All} = Subscriptions) ->
    case event(Method, Params) of
        none ->
            Subscriptions;
        Event ->
            Cut = [Reference || Reference := #subscription{filter = Filter, pid = Pid} <- All,
                                wants(Event, Filter), deliver(Pid, Reference, Event) =:= cut],
            lists:foreach(fun(Reference) -> demonitor(Reference, [flush]) end, Cut),
            Subscriptions#subscriptions{all = maps:without(Cut, All)}
    end.

-doc "The event that a notification is; `none` for one that no subscriber is told of.".
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

-doc "Sends a subscriber an event, or cuts it off if it does not read.".
-spec deliver(pid(), reference(), erlmcp_client:event()) -> ok | cut.
deliver(Pid, Reference, Event) ->
    case erlmcp_client_mailbox:offer(Pid, {erlmcp, Reference, Event}) of
        ok ->
            ok;
        full ->
            Pid ! {erlmcp, Reference, {ended, slow_consumer}},
            cut
    end.

-doc "Answers a request that the server sent on no call's stream.".
-spec asked(erlmcp_message:message(),
            {erlmcp_client_connection:client(), erlmcp_client_connection:live()},
            subscriptions()) -> subscriptions().
asked(Request, Server, #subscriptions{questions = Questions} = Subscriptions) ->
    Asked = erlmcp_client_questions:ask(Request, Server, Questions),
    Subscriptions#subscriptions{questions = Asked}.
