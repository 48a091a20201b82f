-module(erlmcp_subscriptions).
-moduledoc """
The subscribers of a server by topic, in a table, and the functions that publish changes to them. A
change is encoded once, and sent to the subscribers whose principals may see it.

A subscriber `{Pid, Tag}` is sent `{Tag, {event, Subscription, Topic, Encoded, Pending}}`. It calls
`received/1` with `Pending` when it is about to write or keep the event. If the topic is a list or a
resource, the subscriber is sent no other event of it until then. Its client reads the newest state
after the event. About 1,000 events of a task may wait for a subscriber, and later ones are left
out.

Topics that clients name, which are resources and tasks, are counted for the client's tenant
(`m:erlmcp_tenant_counts`).

Internal.
""".

-export([new/0, add/5, add_counted/6, refusal/2, remove/4, remove_task/2, session/2]).
-export([publish/3, publish/4, pass_on/3, received/1, encoded/2, sweep/1, close/1]).
-export([bit/1, changed/1, notification/1, watched/1]).

-export_type([subscription/0, notifications/0, pending/0, listed/0]).

-doc "A kind of list, of whose changes sessions are notified.".
-type listed() :: tool | prompt | resource.

-doc "`session`, or the id of the request that opened a stateless subscription.".
-type subscription() :: session | erlmcp_message:id().
-doc "The notification for sessions, and the one for stateless subscriptions.".
-type notifications() ::
    {{Method :: binary(), Params :: map()}, {Method :: binary(), Params :: map()}}.

-doc "The counter of the messages of one topic that wait for a subscriber.".
-opaque pending() :: {counters:counters_ref(), pos_integer()}.

%% The most events of a task that wait for a subscriber. A few more may wait if several processes
%% publish at the same moment. The specification allows that: clients can ask for the task.
-define(PENDING, 1000).

%% A row is `{{Topic, Owner, Subscription}, Pending, Principal, Counted}`. `Counted` is
%% `{tenant, Tenant}` for a topic that a client has named, so that the rows of a process that was
%% killed can be subtracted, too, and `none` otherwise. A session subscribes to the three lists with
%% one row, `lists`. The table also has the counts of the tenants.

%% The lists, each with the number of the counter that a session has for it.
-define(LISTS, #{tool => 1, prompt => 2, resource => 3}).

-doc "Makes a table without subscribers. It belongs to the calling process.".
-spec new() -> ets:table().
new() ->
    ets:new(erlmcp_subscriptions, [ordered_set, public, {read_concurrency, true},
                                   {write_concurrency, auto}]).

-doc "Returns the bit that stands for a list in the number which `changed/1` gets.".
-spec bit(listed()) -> pos_integer().
bit(List) ->
    1 bsl map_get(List, ?LISTS).

-doc """
Returns the lists whose bits are set in a number, each with the encoded notification of its change.
""".
-spec changed(non_neg_integer()) -> #{listed() => Notification :: binary()}.
changed(Bits) ->
    #{List => notification(List) || List := _ <- ?LISTS, Bits band bit(List) =/= 0}.

-doc "Returns the encoded notification for a session that a list or a resource has changed.".
-spec notification(listed() | {uri, binary()}) -> binary().
notification(Topic) ->
    iolist_to_binary(erlmcp_message:notification(method(Topic), params(Topic))).

-doc """
Adds a subscriber, with its principal, to topics, and counts them for no tenant. A session that is
added to one list is added to all three.
""".
-spec add([erlmcp_engine:topic()], erlmcp_call:owner(), subscription(), erlmcp_auth:principal(),
          ets:table()) -> ok.
add(Topics, Owner, Subscription, Principal, Table) ->
    true = ets:insert(Table, [{{Key, Owner, Subscription}, pending(Key), Principal, none}
                              || Key <- keys(Topics, Subscription)]),
    ok.

-doc """
Adds a subscriber to topics that it does not have yet. Resources and tasks count for the client's
tenant, and lists do not. If the tenant would have more than `Max` resources and tasks, adds
nothing. Then returns `{full, Observed}`, with the number that the tenant would have.
""".
-spec add_counted([erlmcp_engine:topic()], erlmcp_call:owner(), subscription(),
                  {erlmcp_auth:principal(), erlmcp_gate:tenant()}, Max :: pos_integer(),
                  ets:table()) -> ok | {full, Observed :: pos_integer()}.
add_counted(Topics, Owner, Subscription, {Principal, Tenant}, Max, Table) ->
    {Named, Lists} = lists:partition(fun is_tuple/1, lists:usort(Topics)),
    Count = length(Named),
    case Count =:= 0 orelse erlmcp_tenant_counts:take({tenant, Tenant}, Count, Max, Table) of
        {full, _} = Full ->
            Full;
        _ ->
            ok = add(Lists, Owner, Subscription, Principal, Table),
            true = ets:insert(Table, [{{Topic, Owner, Subscription}, pending(Topic), Principal,
                                       {tenant, Tenant}} || Topic <- Named]),
            ok
    end.

-doc """
Returns the refusal of a client whose tenant would have `Observed` subscriptions, of which `Max` are
allowed.
""".
-spec refusal(Max :: pos_integer(), Observed :: pos_integer()) -> erlmcp_refusal:refusal().
refusal(Max, Observed) ->
    erlmcp_refusal:new(concurrent_limit_exceeded, ~"too many subscriptions of one client",
                       #{limit => Max, observed => Observed, retry_after_ms => 1000}).

%% If several processes delete a row, one of them subtracts it from its tenant's count.
delete(Key, Table) ->
    case ets:take(Table, Key) of
        [{_, _, _, {tenant, _} = Counted}] -> erlmcp_tenant_counts:give_back(Counted, 1, Table);
        _ -> ok
    end.

pending(lists) -> counters:new(map_size(?LISTS), []);
pending(_) -> counters:new(1, []).

keys(Topics, session) ->
    case lists:partition(fun(Topic) -> is_map_key(Topic, ?LISTS) end, Topics) of
        {[], Others} -> Others;
        {_, Others} -> [lists | Others]
    end;
keys(Topics, _) ->
    Topics.

-doc """
Removes a subscriber from topics. A session that is removed from one list is removed from all three.
""".
-spec remove([erlmcp_engine:topic()], erlmcp_call:owner(), subscription(), ets:table()) -> ok.
remove(Topics, Owner, Subscription, Table) ->
    lists:foreach(fun(Key) -> delete({Key, Owner, Subscription}, Table) end,
                  keys(Topics, Subscription)).

-doc "Removes the subscriptions of sessions to a task.".
-spec remove_task(Id :: binary(), ets:table()) -> ok.
remove_task(Id, Table) ->
    true = ets:match_delete(Table, {{{task, '_', Id}, '_', session}, '_', '_', '_'}),
    ok.

-doc "Publishes to the subscribers in `Audience` that `Topic`, a list or a resource, has changed.".
-spec publish(erlmcp_engine:topic(), Audience :: erlmcp_definition:audience(), ets:table()) -> ok.
publish(Topic, Audience, Table) ->
    Notification = {method(Topic), params(Topic)},
    publish(Topic, Audience, fun() -> {Notification, Notification} end, Table).

-doc """
Publishes to the subscribers in `Audience` that `Topic` has changed, with the notifications that the
fun returns. The fun is called only if there are subscribers.
""".
-spec publish(erlmcp_engine:topic(), Audience :: erlmcp_definition:audience(),
              fun(() -> notifications()), ets:table()) -> ok.
publish(Topic, Audience, Notifications, Table) ->
    case subscribers(Topic, Audience, Table) of
        [] ->
            ok;
        Subscribers ->
            Encoded = encode(Notifications()),
            lists:foreach(fun(Subscriber) -> tell(Subscriber, Topic, Encoded, Table) end,
                          Subscribers)
    end.

%% The subscribers of a topic, each with its row and the number of its counter there.
subscribers(Topic, Audience, Table) ->
    case ?LISTS of
        #{Topic := Counter} ->
            rows(Topic, 1, Audience, Table) ++ rows(lists, Counter, Audience, Table);
        #{} ->
            rows(Topic, 1, Audience, Table)
    end.

rows(Key, Counter, all, Table) ->
    ets:select(Table, [{{{Key, '_', '_'}, '$1', '_', '_'}, [],
                        [{{{element, 1, '$_'}, '$1', Counter}}]}]);
rows(Key, Counter, Audience, Table) ->
    Match = [{{{Key, '_', '_'}, '$1', '$2', '_'}, [],
              [{{'$2', {{{element, 1, '$_'}, '$1', Counter}}}}]}],
    [Row || {Principal, Row} <- ets:select(Table, Match),
            erlmcp_definition:sees(Principal, Audience)].

-doc "Sends an encoded notification to the sessions that subscribe to a topic.".
-spec pass_on(erlmcp_engine:topic(), Notification :: binary(), ets:table()) -> ok.
pass_on(Topic, Notification, Table) ->
    lists:foreach(
        fun({{_, _, session}, _, _} = Subscriber) ->
                tell(Subscriber, Topic, {Notification, ~"", ~""}, Table);
           (_) ->
                ok
        end, subscribers(Topic, all, Table)).

-doc "Returns the URIs of the resources that have subscribers.".
-spec watched(ets:table()) -> [Uri :: binary()].
watched(Table) ->
    lists:usort(ets:select(Table, [{{{{uri, '$1'}, '_', '_'}, '_', '_', '_'}, [], ['$1']}])).

-doc """
Returns the session of the process `Pid`, as a subscriber `{Pid, Tag}`. `Pid` is the process of a
session, or of a connection on lines. Returns `none` if the session has ended, or if `Pid` has none.
""".
-spec session(Pid :: pid(), ets:table()) -> erlmcp_call:owner() | none.
session(Pid, Table) ->
    %% A session has this row from its beginning.
    case ets:select(Table, [{{{lists, {Pid, '$1'}, session}, '_', '_', '_'}, [], ['$1']}]) of
        [Tag] -> {Pid, Tag};
        [] -> none
    end.

tell({{_, {Pid, Tag}, Subscription} = Key, Pending, Counter}, Topic, Encoded, Table) ->
    case is_process_alive(Pid) andalso counters:get(Pending, Counter) < may_wait(Topic) of
        true ->
            ok = counters:add(Pending, Counter, 1),
            Pid ! {Tag, {event, Subscription, Topic, Encoded, {Pending, Counter}}},
            ok;
        false ->
            %% A process that was killed could not delete its rows.
            is_process_alive(Pid) orelse delete(Key, Table),
            ok
    end.

may_wait({task, _, _}) -> ?PENDING;
may_wait(_) -> 1.

-doc """
Sends `{Tag, {closing, Subscription}}` to all subscribers, since the server drains or ends. The
connection of a stateless subscription then answers the request that opened it.
""".
-spec close(ets:table()) -> ok.
close(Table) ->
    Open = lists:usort(ets:select(Table, [{{{'_', '$1', '$2'}, '_', '_', '_'}, [],
                                           [{{'$1', '$2'}}]}])),
    lists:foreach(fun({{Pid, Tag}, Subscription}) -> Pid ! {Tag, {closing, Subscription}} end,
                  Open).

-doc "Removes the rows of subscribers that were killed.".
-spec sweep(ets:table()) -> ok.
sweep(Table) ->
    Keys = ets:select(Table, [{{'$1', '_', '_', '_'}, [], ['$1']}]),
    lists:foreach(fun({_, {Pid, _}, _} = Key) ->
                      is_process_alive(Pid) orelse delete(Key, Table)
                  end, Keys).

-doc """
Records that a subscriber is about to write or keep an event, so that the subscriber is sent the
next one.
""".
-spec received(pending()) -> ok.
received({Pending, Counter}) ->
    counters:sub(Pending, Counter, 1).

%% Returns the notification for sessions, and that for stateless subscriptions in two parts, before
%% and after the subscription's id.
encode({{SessionMethod, SessionParams}, {Method, Params}}) ->
    Notification = iolist_to_binary(erlmcp_message:notification(SessionMethod, SessionParams)),
    Mark = ~"@subscription@",
    Meta = #{~"_meta" => #{~"io.modelcontextprotocol/subscriptionId" => Mark}},
    Around = iolist_to_binary(erlmcp_message:notification(Method, maps:merge(Params, Meta))),
    [Before, After] = binary:split(Around, <<$", Mark/binary, $">>),
    {Notification, Before, After}.

-doc """
Returns the bytes of an event for a subscription. `Encoded` is the notification for sessions, and
the two parts of that for stateless subscriptions, before and after the subscription's id.
""".
-spec encoded(subscription(), Encoded :: {binary(), binary(), binary()}) -> iodata().
encoded(session, {Notification, _, _}) -> Notification;
encoded(Id, {_, Before, After}) -> [Before, json:encode(Id), After].

method(tool) -> ~"notifications/tools/list_changed";
method(prompt) -> ~"notifications/prompts/list_changed";
method(resource) -> ~"notifications/resources/list_changed";
method({uri, _}) -> ~"notifications/resources/updated".

params({uri, Uri}) -> #{~"uri" => Uri};
params(_) -> #{}.
