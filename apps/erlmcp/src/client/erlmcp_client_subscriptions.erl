-module(erlmcp_client_subscriptions).
-moduledoc """
The subscriptions that processes have at a client, and the streams that serve them. A value of the
client's process.

In 2026-07-28 each subscription to changes has a stream of its own. In a session all subscriptions
share the notifications of the server. On HTTP those that belong to no call come on the session's
GET stream, which a server need not offer. A process, linked to the client's, opens each stream
again when it ends, unless the server offers none.

Sources: specification 2026-07-28, "Subscriptions"; 2025-11-25, "Resources / Subscriptions",
"Transports / Listening for Messages from the Server".

Internal.
""".

-export([check/1, new/0, is_empty/1, add/4, remove/3, worker_ended/4, restart/2]).
-export([end_all/2, notify_all/4, answer/3, subscribed/4, unwatched/3, stream_event/4,
         stream_is_late/2, is_opening/1]).

-export_type([subscriptions/0, watching/0]).

-record(subscription, {
    pid :: pid(),
    filter :: erlmcp_client:filter(),
    %% The process that serves the subscription: that of its own stream, or one that asks the server
    %% to watch resources.
    worker :: undefined | pid(),
    %% Whether the server was asked, but the subscriber has not been told yet.
    ready = false :: boolean()
}).
-record(subscriptions, {
    all = #{} :: #{reference() => #subscription{}},
    %% The GET stream of a session, for messages that belong to no call. `open` is also one that
    %% takes too long to open. `looking` is none any more: its process finds out whether the session
    %% is lost.
    stream = none :: none | {opening | open | looking, pid()},
    %% How many sessions in a row had no stream, or were lost before they had one.
    missing = 0 :: non_neg_integer(),
    questions = erlmcp_client_questions:new() :: erlmcp_client_questions:questions()
}).

%% The state of a stream's process.
-record(stream, {
    client :: erlmcp_client_connection:client(),
    live :: erlmcp_client_connection:live(),
    %% The subscription that the stream serves; none for a session's stream.
    subscription = none :: none | {reference(), pid(), erlmcp_client:filter()},
    %% The request of a subscription, and whether the server has acknowledged it.
    id = none :: none | integer(),
    %% When it was sent, in nanoseconds, and its bytes, until it is counted.
    sent = none :: none | {Began :: integer(), Bytes :: non_neg_integer()},
    acknowledged = false :: boolean(),
    %% When the acknowledgement must have come, in monotonic milliseconds.
    deadline = 0 :: integer(),
    questions = erlmcp_client_questions:new() :: erlmcp_client_questions:questions(),
    pause = erlmcp_client_backoff:first_ms() :: pos_integer(),
    %% Whether the server has accepted no attempt to open the stream yet, and whether it has
    %% accepted the last one.
    first = true :: boolean(),
    accepted = false :: boolean(),
    %% How many sessions in a row, before this one, had no stream or were lost.
    missing = 0 :: non_neg_integer()
}).

%% Milliseconds within which the server must begin to answer, and acknowledge a subscription.
-define(OPEN, 30_000).
%% Milliseconds in which the streams end by themselves when the client ends.
-define(END, 500).
%% How many pings of a search for a lost session are not answered in time, before the search goes on
%% no more: some servers never answer them.
-define(SILENT, 3).
%% Milliseconds, at most, until a session's stream whose process has crashed is opened again.
-define(CRASHED, 2000).
%% Statuses after which the same request may succeed. Those below 500 are: timeout, an earlier
%% stream that is still open, too early, and too many requests.
-define(IS_TEMPORARY(Status), (Status >= 500 orelse Status =:= 408 orelse Status =:= 409
                               orelse Status =:= 425 orelse Status =:= 429)).

-opaque subscriptions() :: #subscriptions{}.
-doc """
The outcome of asking the server of a session to watch the resources of a subscription. A server
that is away is asked again, and gives no error. After an error, `Watched` are the URIs that the
server watches nevertheless.
""".
-type watching() :: ok | {error, Reason :: term(), Watched :: [binary()]}.
-type server() :: {erlmcp_client_connection:client(), undefined | erlmcp_client_connection:live()}.

-doc "Checks a filter. The error names a wrong member, and what was expected there.".
-spec check(erlmcp_client:filter() | term()) ->
    ok | {error, {bad_option, Key :: term(), Expected :: binary()}}.
check(#{} = Filter) ->
    erlmcp_client_options:first_wrong(Filter, fun filter/2);
check(_) ->
    {error, {bad_option, filter, ~"a map"}}.

filter(resources, Uris) ->
    erlmcp_user_term:is_list_of(fun erlmcp_user_term:is_utf8/1, Uris) orelse ~"a list of URIs";
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

-doc """
Adds a subscription of the process `Pid` to the changes in `Filter`. Returns the reference of the
subscription, which is in each of its events. The reference is also the calling process's monitor of
`Pid`. Before the negotiation the subscription waits for `restart/2`.

In 2026-07-28 a linked process opens a stream for the subscription, unless `Filter` has no keys
except `logs` and `elicitations`. In a session a linked process asks the server to watch the
`resources` of `Filter`, if there are any. If no process is needed, `Pid` gets `subscribed`, as soon
as the session's stream is not being opened any more.

The error is `{overload, Limit}` if the client has `Limit` subscriptions, as its option
`subscriptions` allows.
""".
-spec add(Pid :: pid(), Filter :: erlmcp_client:filter(), server(), subscriptions()) ->
    {ok, reference(), subscriptions()} | {error, {overload, pos_integer()}}.
add(Pid, Filter, {#{settings := #{subscriptions := Limit}}, _} = Server, Subscriptions) ->
    #subscriptions{all = All} = Subscriptions,
    case map_size(All) of
        Limit ->
            {error, {overload, Limit}};
        _ ->
            Reference = monitor(process, Pid),
            Subscription = start(Reference, #subscription{pid = Pid, filter = Filter}, [], old,
                                 Server),
            {ok, Reference, announced(Server, Subscriptions#subscriptions{
                all = All#{Reference => Subscription}})}
    end.

%% Before the negotiation there is nothing to start; `restart/2` does it later. `Age` is that of the
%% session: `new` right after the negotiation.
start(_, Subscription, _, _, {_, undefined}) ->
    Subscription;
start(Reference, #subscription{pid = Pid, filter = Filter} = Subscription, Watched, Age,
      {Client, Live}) ->
    #{revision := Revision} = Live,
    Worker = case {erlmcp_revision:era(Revision), maps:without([logs, elicitations], Filter)} of
        {stateless, Changes} when map_size(Changes) =:= 0 ->
            undefined;
        {stateless, _} ->
            start_stream([erlmcp_client_subscription, Pid], fun open/1,
                         #stream{client = Client, live = Live,
                                 subscription = {Reference, Pid, Filter}});
        {session, #{resources := [_ | _] = Uris}} ->
            Peer = self(),
            spawn_link(fun() ->
                Pause = erlmcp_client_backoff:first_ms(),
                Peer ! {subscribed, self(), watch(Uris, Watched, Pause, {Age, Client, Live})}
            end);
        {session, _} ->
            undefined
    end,
    Subscription#subscription{worker = Worker, ready = Worker =:= undefined}.

%% Asks again, after pauses, while the server is away. A new negotiation ends this process.
watch([], _, _, _) ->
    ok;
watch([Uri | Uris] = Unwatched, Watched, Pause, {Age, Client, Live}) ->
    Request = {~"resources/subscribe", #{~"uri" => Uri}},
    case erlmcp_client_exchange:request(Request, Client, Live) of
        {ok, _, _} ->
            %% A server that has answered knows the session.
            watch(Uris, [Uri | Watched], erlmcp_client_backoff:first_ms(), {old, Client, Live});
        {error, Reason} ->
            case is_away(Reason, Age) of
                true ->
                    ok = found_again(Reason, Client, Live),
                    receive
                    after erlmcp_client_backoff:with_jitter(Pause) ->
                        watch(Unwatched, Watched, erlmcp_client_backoff:next_ms(Pause),
                              {old, Client, Live})
                    end;
                false ->
                    {error, Reason, Watched}
            end
    end.

%% A server that has forgotten a new session would forget the next one, too.
is_away(session_lost, Age) -> Age =:= old;
is_away({http, Status, _, _}, _) -> ?IS_TEMPORARY(Status);
is_away({Kind, _}, _) -> lists:member(Kind, [connect, closed, timeout, overload]);
is_away(_, _) -> false.

found_again(session_lost, Client, Live) ->
    _ = erlmcp_client_connection:renegotiate(Client, Live, erlmcp_clock:now_ms() + ?OPEN),
    ok;
found_again(_, _, _) ->
    ok.

-doc """
Removes the subscription with a reference, ends its process, and sends no event. In a session
another process asks the server to stop watching the resources that no other subscription watches.
That process then sends the calling one `{unwatched, Uris}`, for `unwatched/3`. If `Reference` is
the monitor of a question whose process has ended, removes the question. Does nothing for any other
reference.
""".
-spec remove(Reference :: reference(), server(), subscriptions()) -> subscriptions().
remove(Reference, Server, #subscriptions{all = All, questions = Questions} = Subscriptions) ->
    case maps:take(Reference, All) of
        {#subscription{worker = Worker, filter = Filter}, Others} ->
            _ = demonitor(Reference, [flush]),
            ok = end_worker(Worker),
            ok = unwatch(maps:get(resources, Filter, []), Others, Server),
            Subscriptions#subscriptions{all = Others};
        error ->
            case erlmcp_client_questions:ended(Reference, Questions) of
                {ok, Next} -> Subscriptions#subscriptions{questions = Next};
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
    case {erlmcp_revision:era(Revision), lists:usort(Uris) -- Watched} of
        {session, [_ | _] = Last} ->
            Peer = self(),
            _ = spawn(fun() ->
                _ = [erlmcp_client_exchange:request({~"resources/unsubscribe", #{~"uri" => Uri}},
                                                    Client, Live)
                     || Uri <- Last],
                Peer ! {unwatched, Last}
            end),
            ok;
        _ ->
            ok
    end;
unwatch(_, _, _) ->
    ok.

-doc """
Handles the end of a linked process. If it was the process of the session's stream, another process
opens the stream again, after a pause. Then subscribers get `subscribed`, as at `stream_event/4`. A
subscription stays when its process ends normally. After a crash the subscription is removed, and
the subscriber gets `{ended, {crashed, Why}}`.
""".
-spec worker_ended(pid(), Why :: term(), server(), subscriptions()) -> subscriptions().
worker_ended(Pid, normal, _, #subscriptions{stream = {looking, Pid}} = Subscriptions) ->
    Subscriptions#subscriptions{stream = none};
worker_ended(Pid, Why, Server, #subscriptions{stream = {looking, Pid}} = Subscriptions) ->
    %% The stream is asked for again, and the session looked for if there is none.
    worker_ended(Pid, Why, Server, Subscriptions#subscriptions{stream = {open, Pid}});
worker_ended(Pid, _, Server, #subscriptions{stream = {State, Pid}} = Subscriptions) ->
    %% A process that ends in order has reported before that the server offers no stream.
    case session_stream(Server, fun reopen/1, Subscriptions) of
        none -> announced(Server, Subscriptions#subscriptions{stream = none});
        Next -> Subscriptions#subscriptions{stream = {State, Next}}
    end;
worker_ended(Worker, Why, Server, #subscriptions{all = All} = Subscriptions) ->
    case [One || {_, #subscription{worker = W}} = One <- maps:to_list(All), W =:= Worker] of
        [{Reference, Subscription}] when Why =:= normal ->
            Subscriptions#subscriptions{
                all = All#{Reference := Subscription#subscription{worker = undefined}}};
        [{Reference, #subscription{pid = Pid}}] ->
            _ = deliver(Pid, Reference, {ended, {crashed, Why}}),
            remove(Reference, Server, Subscriptions);
        [] ->
            Subscriptions
    end.

-doc """
Ends the processes of all subscriptions, and kills those that still run after half a second. Sends
the subscribers the event `{ended, Reason}`, except those whose subscriptions have ended already. A
subscriber that does not read its messages gets `{ended, slow_consumer}` instead.
""".
-spec end_all(Reason :: term(), subscriptions()) -> ok.
end_all(Reason, #subscriptions{all = All}) ->
    %% Streams send events themselves, and none may come after the last event.
    Workers = [{Worker, monitor(process, Worker)}
               || _ := #subscription{worker = Worker} <- All, is_pid(Worker)],
    lists:foreach(fun({Worker, _}) -> end_worker(Worker) end, Workers),
    Deadline = erlmcp_clock:now_ms() + ?END,
    lists:foreach(fun(Worker) -> gone(Worker, Deadline) end, Workers),
    lists:foreach(fun({Reference, #subscription{pid = Pid}}) ->
                      %% A stream that asks for its removal has sent the last event itself.
                      receive
                          {unsubscribe, Reference} -> ok
                      after 0 ->
                          deliver(Pid, Reference, {ended, Reason})
                      end
                  end, maps:to_list(All)).

gone({Worker, Monitor}, Deadline) ->
    receive
        {'DOWN', Monitor, process, Worker, _} -> ok
    after max(0, Deadline - erlmcp_clock:now_ms()) ->
        exit(Worker, kill),
        receive {'DOWN', Monitor, process, Worker, _} -> ok end
    end.

-doc """
Ends the processes of all subscriptions and of the session's stream, and starts them again, after a
negotiation. Only a session on HTTP, except HTTP+SSE, has such a stream. Subscribers for which the
server need not be asked get `subscribed`, as described at `add/4`.
""".
-spec restart({erlmcp_client_connection:client(), erlmcp_client_connection:live()},
              subscriptions()) -> subscriptions().
restart(Server, #subscriptions{all = All, stream = Stream} = Subscriptions) ->
    ok = case Stream of
        {_, Old} -> end_worker(Old);
        none -> ok
    end,
    Again = maps:map(fun(Reference, #subscription{worker = Worker} = Subscription) ->
                         ok = end_worker(Worker),
                         start(Reference, Subscription#subscription{ready = false}, [], new, Server)
                     end, All),
    Next = case session_stream(Server, fun open/1, Subscriptions) of
        none -> none;
        Pid -> {opening, Pid}
    end,
    announced(Server, Subscriptions#subscriptions{all = Again, stream = Next}).

session_stream({#{settings := #{rules := http}} = Client,
                #{revision := Revision, generation := 0} = Live}, Begin,
               #subscriptions{missing = Missing}) ->
    case erlmcp_revision:era(Revision) of
        session ->
            start_stream([erlmcp_client_stream], Begin,
                         #stream{client = Client, live = Live, missing = Missing});
        stateless ->
            none
    end;
session_stream(_, _, _) ->
    none.

-doc """
Handles the outcome of the process `Worker`, which has asked the server of a session to watch
resources. After `ok` the subscriber gets `subscribed`, as soon as the session's stream is not being
opened any more. After an error the subscriber gets `{ended, Reason}`, and its subscription is
removed. The server is then asked to stop watching `Watched`, as in `remove/3`. Does nothing for any
other process.
""".
-spec subscribed(Worker :: pid(), watching(), server(), subscriptions()) -> subscriptions().
subscribed(Worker, Outcome, Server, #subscriptions{all = All} = Subscriptions) ->
    case [Reference || Reference := #subscription{worker = W} <- All, W =:= Worker] of
        [Reference] when Outcome =:= ok ->
            #{Reference := Subscription} = All,
            Ready = Subscription#subscription{ready = true, worker = undefined},
            announced(Server, Subscriptions#subscriptions{all = All#{Reference := Ready}});
        [Reference] ->
            {error, Reason, Watched} = Outcome,
            {#subscription{pid = Pid}, Others} = maps:take(Reference, All),
            _ = deliver(Pid, Reference, {ended, Reason}),
            _ = demonitor(Reference, [flush]),
            ok = unwatch(Watched, Others, Server),
            Subscriptions#subscriptions{all = Others};
        [] ->
            Subscriptions
    end.

-doc """
Asks the server of a session once more to watch the resources of each subscription that watches one
of `Uris`. The requests to stop watching `Uris` are over. The server may have handled such a request
after a newer subscription's request to watch the resource. The subscriber gets `subscribed` again.
""".
-spec unwatched(Uris :: [binary()], server(), subscriptions()) -> subscriptions().
unwatched(Uris, {_, #{revision := _}} = Server, #subscriptions{all = All} = Subscriptions) ->
    Subscriptions#subscriptions{all = maps:map(
        fun(Reference, #subscription{filter = Filter, worker = Worker} = Subscription) ->
            Own = maps:get(resources, Filter, []),
            case lists:any(fun(Uri) -> lists:member(Uri, Uris) end, Own) of
                true ->
                    ok = end_worker(Worker),
                    %% Without a process the subscription has been watched already.
                    Watched = [Uri || Worker =:= undefined, Uri <- Own],
                    start(Reference, Subscription, Watched, old, Server);
                false ->
                    Subscription
            end
        end, All)};
%% All subscriptions start again after the next negotiation.
unwatched(_, _, Subscriptions) ->
    Subscriptions.

-doc """
Handles an event from the process of the session's stream: the stream is `open`, the server has
`refused` it, or it is `missing`, as in a session that is lost. In each case the subscribers that
have waited for the stream get `subscribed`. If the stream is open again, all subscribers that wait
for no answer of the server get `subscribed`, since they may have missed changes. Events of an
earlier stream have no effect.
""".
-spec stream_event(pid(), open | refused | missing, server(), subscriptions()) -> subscriptions().
stream_event(Pid, open, Server, #subscriptions{stream = {opening, Pid}} = Subscriptions) ->
    announced(Server, Subscriptions#subscriptions{stream = {open, Pid}, missing = 0});
stream_event(Pid, open, Server, #subscriptions{stream = {open, Pid}, all = All} = Subscriptions) ->
    Asked = [Reference || Reference := #subscription{worker = undefined} <- All],
    deliver_all(subscribed, Asked, Server, Subscriptions#subscriptions{missing = 0});
stream_event(Pid, missing, Server, #subscriptions{stream = {_, Pid}, missing = Before}
             = Subscriptions) ->
    announced(Server, Subscriptions#subscriptions{stream = {looking, Pid}, missing = Before + 1});
stream_event(Pid, refused, Server, #subscriptions{stream = {_, Pid}} = Subscriptions) ->
    announced(Server, Subscriptions#subscriptions{stream = none});
stream_event(_, _, _, Subscriptions) ->
    Subscriptions.

-doc """
Handles the session's stream as an open one, although it has not opened in time. The server may
never open it, and may send changes in other ways. When the stream opens, subscribers get
`subscribed` again, as at `stream_event/4`.
""".
-spec stream_is_late(server(), subscriptions()) -> subscriptions().
stream_is_late(Server, #subscriptions{stream = {opening, Pid}} = Subscriptions) ->
    announced(Server, Subscriptions#subscriptions{stream = {open, Pid}});
stream_is_late(_, Subscriptions) ->
    Subscriptions.

-doc "Returns `true` if the session's stream is being opened.".
-spec is_opening(subscriptions()) -> boolean().
is_opening(#subscriptions{stream = {opening, _}}) -> true;
is_opening(_) -> false.

%% Tells subscribers of a session that their subscriptions are active: the server was asked, and the
%% stream is open.
announced(_, #subscriptions{stream = {opening, _}} = Subscriptions) ->
    Subscriptions;
announced(Server, #subscriptions{all = All} = Subscriptions) ->
    Ready = [Reference || Reference := #subscription{ready = true} <- All],
    Announced = maps:map(fun(_, One) -> One#subscription{ready = false} end, All),
    deliver_all(subscribed, Ready, Server, Subscriptions#subscriptions{all = Announced}).

-doc """
Passes a notification that belongs to no call on to the subscribers whose filters name it. A process
that does not read its messages gets `{ended, slow_consumer}` instead, and its subscription is
removed.
""".
-spec notify_all(Method :: binary(), Params :: map(), server(), subscriptions()) ->
    subscriptions().
notify_all(Method, Params, Server, #subscriptions{all = All} = Subscriptions) ->
    case event(Method, Params) of
        none ->
            Subscriptions;
        Event ->
            Wanting = [Reference || Reference := #subscription{filter = Filter} <- All,
                                    wants(Event, Filter)],
            deliver_all(Event, Wanting, Server, Subscriptions)
    end.

%% Returns the event for a notification, or `none` if subscribers are not told of its method.
event(~"notifications/tools/list_changed", _) -> tools_changed;
event(~"notifications/prompts/list_changed", _) -> prompts_changed;
event(~"notifications/resources/list_changed", _) -> resources_changed;
event(~"notifications/resources/updated", #{~"uri" := Uri}) when is_binary(Uri) ->
    {resource_updated, Uri};
event(~"notifications/message", Params) -> {log, Params};
event(~"notifications/elicitation/complete", #{~"elicitationId" := Id}) when is_binary(Id) ->
    {elicitation_complete, Id};
event(_, _) -> none.

wants({resource_updated, Uri}, Filter) -> lists:member(Uri, maps:get(resources, Filter, []));
wants({log, _}, Filter) -> maps:get(logs, Filter, false);
wants({elicitation_complete, _}, Filter) -> maps:get(elicitations, Filter, false);
wants(Kind, Filter) -> maps:get(Kind, Filter, false).

%% Sends an event to subscribers, and removes those that do not read their messages.
deliver_all(Event, References, Server, #subscriptions{all = All} = Subscriptions) ->
    Cut = [Reference || Reference <- References,
                        #{Reference := #subscription{pid = Pid}} <- [All],
                        deliver(Pid, Reference, Event) =:= cut],
    lists:foldl(fun(Reference, Others) -> remove(Reference, Server, Others) end, Subscriptions,
                Cut).

%% Sends an event to a subscriber. A subscription whose process does not read ends (`cut`).
deliver(Pid, Reference, Event) ->
    case erlmcp_client_mailbox:offer(Pid, {erlmcp, Reference, Event}) of
        ok ->
            ok;
        full ->
            Pid ! {erlmcp, Reference, {ended, slow_consumer}},
            cut
    end.

-doc """
Answers, refuses or drops a request that the server has sent outside of calls, as
`erlmcp_client_questions:ask/3` does.
""".
-spec answer(erlmcp_client_questions:question(),
             {erlmcp_client_connection:client(), erlmcp_client_connection:live()},
             subscriptions()) -> subscriptions().
answer(Question, Server, #subscriptions{questions = Questions} = Subscriptions) ->
    Subscriptions#subscriptions{
        questions = erlmcp_client_questions:ask(Question, Server, Questions)}.

%% The process of a stream ends with the client's process, and the server then sees the end of the
%% stream.
start_stream(Label, Begin, Stream) ->
    spawn_link(fun() ->
        process_flag(trap_exit, true),
        ok = erlmcp_label:set(Label),
        Begin(Stream)
    end).

%% What has made the process before this one crash may come again at once.
reopen(Stream) ->
    again(Stream#stream{pause = ?CRASHED}).

open(#stream{client = #{channel := {Transport, Handle}}} = Stream) ->
    {Id, Outgoing} = outgoing(Stream),
    Deadline = erlmcp_clock:now_ms() + ?OPEN,
    Sent = {erlang:monotonic_time(nanosecond), iolist_size(maps:get(message, Outgoing))},
    Opened = Stream#stream{id = Id, sent = Sent, acknowledged = false, accepted = false},
    case Transport:send(Outgoing#{kind => stream, id => Id, deadline => Deadline}, Handle) of
        {ok, Exchange} ->
            receiving(Exchange, Opened#stream{deadline = erlmcp_clock:now_ms() + ?OPEN});
        {error, Reason} ->
            failed(Reason, Opened)
    end.

%% A request for a subscription is counted once: when the server acknowledges it, or when it ends
%% without that. A session's stream is no request.
counted(Outcome, #stream{id = Id, sent = {Began, Bytes}, client = #{server := Server},
                         live = #{revision := Revision}} = Stream) when Id =/= none ->
    ok = erlmcp_client_meter:ended({~"subscriptions/listen", #{}}, {Server, Revision},
                                   {Began, Bytes, 0}, Outcome),
    Stream#stream{sent = none};
counted(_, Stream) ->
    Stream.

outgoing(#stream{subscription = none, live = #{session := Session, revision := Revision}}) ->
    {none, #{message => [], session => Session, resumes => true,
             headers => erlmcp_request_header:version(Revision)}};
outgoing(#stream{subscription = {_, _, Filter}, client = Client, live = Live}) ->
    #{ids := Ids, identity := Identity} = Client,
    #{revision := Revision, generation := Generation} = Live,
    Id = atomics:add_get(Ids, 1, 1),
    {Message, Headers} = erlmcp_client_request:request(
        Id, {~"subscriptions/listen", #{~"notifications" => wire(Filter)}}, #{},
        {Revision, Identity}),
    {Id, #{message => Message, headers => Headers, session => none, generation => Generation}}.

wire(Filter) ->
    maps:from_list([{Name, true} || {Key, Name} <- [{tools_changed, ~"toolsListChanged"},
                                                    {prompts_changed, ~"promptsListChanged"},
                                                    {resources_changed, ~"resourcesListChanged"}],
                                    maps:get(Key, Filter, false)]
                   ++ [{~"resourceSubscriptions", Uris} || #{resources := Uris} <- [Filter]]).

receiving(Exchange, Stream) ->
    receiving(remaining(Stream), Exchange, Stream).

%% Where there is always something to read, only this ends the wait.
receiving(0, Exchange, Stream) ->
    ok = leave(Exchange, counted({error, timeout}, Stream)),
    again(Stream);
receiving(Remaining, Exchange, #stream{client = Client, questions = Questions} = Stream) ->
    #{channel := {Transport, _}} = Client,
    receive
        {'EXIT', _, _} ->
            leave(Exchange, counted({error, cancelled}, Stream));
        {'DOWN', Monitor, process, _, _} = Message ->
            case erlmcp_client_questions:ended(Monitor, Questions) of
                {ok, Next} -> receiving(Exchange, Stream#stream{questions = Next});
                other -> received(Transport:received(Message, Exchange), Exchange, Stream)
            end;
        Message ->
            received(Transport:received(Message, Exchange), Exchange, Stream)
    after Remaining ->
        receiving(0, Exchange, Stream)
    end.

remaining(#stream{id = Id, acknowledged = false, deadline = Deadline}) when Id =/= none ->
    max(0, Deadline - erlmcp_clock:now_ms());
remaining(_) ->
    infinity.

%% If aborting the exchange does not tell the server, a notification does.
leave(Exchange, #stream{client = #{channel := {Transport, _}} = Client, live = Live, id = Id}) ->
    case Transport:abort(Exchange) of
        false when Id =/= none ->
            Params = #{~"requestId" => Id},
            _ = spawn(fun() ->
                erlmcp_client_one_way:notify(~"notifications/cancelled", Params, Client, Live)
            end),
            ok;
        _ ->
            ok
    end.

received(other, Exchange, Stream) -> receiving(Exchange, Stream);
received({Events, Exchange}, _, Stream) -> events(Events, Exchange, Stream).

events([], Exchange, Stream) ->
    receiving(Exchange, Stream);
events([{failed, Reason} | _], _, Stream) ->
    failed(Reason, Stream);
events([Event | Events], Exchange, #stream{subscription = none} = Stream) ->
    events(Events, Exchange, session_event(Event, Stream));
events([Event | Events], Exchange, Stream) ->
    case subscription_event(Event, Stream) of
        {ok, Next} ->
            events(Events, Exchange, Next);
        again ->
            again(Stream);
        {over, Reason} ->
            %% A process that has read of the end may subscribe again in this one's place.
            ok = unsubscribe(Stream),
            _ = deliver_own({ended, Reason}, Stream),
            ok;
        cut ->
            ok = unsubscribe(Stream),
            leave(Exchange, Stream)
    end.

session_event({headers, _}, #stream{client = #{peer := Peer}} = Stream) ->
    Peer ! {stream, self(), open},
    Stream#stream{pause = erlmcp_client_backoff:first_ms(), first = false, accepted = true};
session_event({message, {notification, Method, Params}}, #stream{client = Client} = Stream) ->
    ok = erlmcp_client_mailbox:notify(Client, Method, Params),
    Stream;
session_event({message, {request, _, _, _} = Request}, Stream) ->
    #stream{client = Client, live = Live, questions = Questions} = Stream,
    Stream#stream{questions = erlmcp_client_questions:ask(Request, {Client, Live}, Questions)};
session_event(_, Stream) ->
    Stream.

subscription_event(
    {message, {notification, ~"notifications/subscriptions/acknowledged", _}}, Stream) ->
    ok = forget(Stream),
    Counted = counted({ok, #{}, #{}}, Stream),
    delivered(subscribed, Counted#stream{acknowledged = true,
                                         pause = erlmcp_client_backoff:first_ms()});
subscription_event({message, {notification, Method, Params}}, Stream) ->
    #stream{client = #{cache := Cache}, subscription = {_, _, Filter}} = Stream,
    ok = erlmcp_client_cache:changed(Method, Params, Cache),
    Event = event(Method, Params),
    case Event =/= none andalso is_asked_for(Event, Filter) of
        true -> delivered(Event, Stream);
        false -> {ok, Stream}
    end;
%% The server does not know the method, so it has no subscriptions, or it refuses this filter.
subscription_event({message, {response, _, {error, #{~"code" := Code} = Error}}}, Stream) when
    Code =:= -32601; Code =:= -32602
->
    Reason = erlmcp_client_exchange:failure(Error),
    _ = counted({error, Reason}, Stream),
    {over, Reason};
subscription_event({message, {response, _, {error, Error}}}, Stream) ->
    _ = counted({error, erlmcp_client_exchange:failure(Error)}, Stream),
    again;
subscription_event({message, {response, _, {ok, _}}}, Stream) ->
    _ = counted({ok, #{}, #{}}, Stream),
    again;
subscription_event(_, Stream) ->
    {ok, Stream}.

%% Changes before the acknowledgement may have been missed, so the cache forgets what the stream is
%% for.
forget(#stream{client = #{cache := Cache}, subscription = {_, _, Filter}}) ->
    Lists = [{Method, #{}} || {Key, Method} <- [
                                  {tools_changed, ~"notifications/tools/list_changed"},
                                  {prompts_changed, ~"notifications/prompts/list_changed"},
                                  {resources_changed, ~"notifications/resources/list_changed"}],
                              maps:get(Key, Filter, false)],
    Resources = [{~"notifications/resources/updated", #{~"uri" => Uri}}
                 || Uri <- maps:get(resources, Filter, [])],
    erlmcp_client_cache:changed(Lists ++ Resources, Cache).

%% On a subscription's own stream the server may name a part of a resource.
is_asked_for({resource_updated, _}, Filter) -> maps:get(resources, Filter, []) =/= [];
is_asked_for(Event, Filter) -> wants(Event, Filter).

delivered(Event, Stream) ->
    case deliver_own(Event, Stream) of
        ok -> {ok, Stream};
        cut -> cut
    end.

deliver_own(Event, #stream{subscription = {Reference, Pid, _}}) ->
    deliver(Pid, Reference, Event).

unsubscribe(#stream{client = Client, subscription = {Reference, _, _}}) ->
    erlmcp_client_connection:unsubscribe(Client, Reference).

failed(Reason, Stream) ->
    lost(Reason, counted({error, Reason}, Stream)).

%% A server that refuses to resume a stream may accept a new one.
lost({http, Status, _, _}, #stream{subscription = none, accepted = false,
                                   client = #{peer := Peer}}) when not ?IS_TEMPORARY(Status) ->
    Peer ! {stream, self(), refused},
    ok;
%% A server that offers no stream may give the same answer as one that has forgotten the session.
%% Calls do not wait until it is known which one this is.
lost(session_lost, #stream{subscription = none, first = true, client = #{peer := Peer}} = Stream) ->
    Peer ! {stream, self(), missing},
    %% From now on the end of the client, or another session, ends this process, too.
    _ = process_flag(trap_exit, false),
    receive
        {'EXIT', _, _} -> ok
    after 0 ->
        look_for_session(?SILENT, Stream)
    end;
lost(session_lost, #stream{subscription = none, client = Client, live = Live} = Stream) ->
    ok = found_again(session_lost, Client, Live),
    again(Stream);
lost(_, Stream) ->
    again(Stream).

%% Without its stream, only an answer of the server tells whether the session is lost. Then another
%% one is opened, after a pause that grows if the server forgets each session at once. A server that
%% is away is asked again.
look_for_session(0, _) ->
    ok;
look_for_session(Silent, #stream{client = Client, live = Live, missing = Before} = Stream) ->
    case erlmcp_client_exchange:request({~"ping", #{}}, Client, Live) of
        {error, session_lost} ->
            receive
            after erlmcp_client_backoff:after_failures(Before + 1) ->
                found_again(session_lost, Client, Live)
            end;
        {error, {timeout, _}} ->
            look_again(Silent - 1, Stream);
        {error, Reason} ->
            case is_away(Reason, old) of
                true -> look_again(Silent, Stream);
                false -> ok
            end;
        {ok, _, _} ->
            ok
    end.

look_again(Silent, #stream{pause = Pause} = Stream) ->
    receive
    after erlmcp_client_backoff:with_jitter(Pause) ->
        look_for_session(Silent, Stream#stream{pause = erlmcp_client_backoff:next_ms(Pause)})
    end.

%% The pause has jitter, so that the clients of a restarted server do not all return at once.
again(#stream{pause = Pause} = Stream) ->
    receive
        {'EXIT', _, _} -> ok
    after erlmcp_client_backoff:with_jitter(Pause) ->
        open(Stream#stream{pause = erlmcp_client_backoff:next_ms(Pause)})
    end.
