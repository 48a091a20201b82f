-module(erlmcp_client_listen).
-moduledoc """
The process of one subscription in 2026-07-28. It keeps the subscription's stream open, opens it
again with a growing pause when it ends, and sends changes to the subscriber.

Source: specification 2026-07-28, "Subscriptions".

Internal.
""".

-export([run/5]).

%% Milliseconds until the server must have acknowledged.
-define(ACKNOWLEDGE, 30_000).

-record(listen, {
    reference :: reference(),
    subscriber :: pid(),
    filter :: map(),
    client :: erlmcp_client_connection:client(),
    live :: erlmcp_client_connection:live(),
    id :: undefined | integer(),
    acknowledged = false :: boolean(),
    pause = erlmcp_client_backoff:first_ms() :: pos_integer()
}).

-doc """
Listens until the subscriber stops reading, or the server turns out to have no subscriptions. The
process is linked to the client's, whose exit signal ends it; the server is told then.
""".
-spec run(reference(), pid(), erlmcp_client:filter(),
          erlmcp_client_connection:client(), erlmcp_client_connection:live()) -> ok.
run(Reference, Subscriber, Filter, Client, Live) ->
    process_flag(trap_exit, true),
    listen(#listen{reference = Reference, subscriber = Subscriber, client = Client, live = Live,
                   filter = wire(Filter)}).

wire(Filter) ->
    maps:from_list([{Name, true} || {Key, Name} <- [{tools_changed, ~"toolsListChanged"},
                                                    {prompts_changed, ~"promptsListChanged"},
                                                    {resources_changed, ~"resourcesListChanged"}],
                                    maps:get(Key, Filter, false)]
                   ++ [{~"resourceSubscriptions", Uris} || #{resources := Uris} <- [Filter]]).

listen(#listen{client = #{channel := {Transport, Handle}} = Client} = Listen) ->
    #{ids := Ids, identity := Identity} = Client,
    #listen{live = #{revision := Revision, generation := Generation}, filter = Filter} = Listen,
    Id = atomics:add_get(Ids, 1, 1),
    {Message, Headers} = erlmcp_client_request:request(
        Id, {~"subscriptions/listen", #{~"notifications" => Filter}}, #{}, {Revision, Identity}),
    Outgoing = #{kind => stream, id => Id, message => Message, headers => Headers,
                 session => none, generation => Generation,
                 deadline => erlang:monotonic_time(millisecond) + ?ACKNOWLEDGE},
    case Transport:send(Outgoing, Handle) of
        {ok, Exchange} ->
            receiving(Exchange, Listen#listen{id = Id, acknowledged = false});
        {error, Reason} ->
            again(Reason, Listen)
    end.

receiving(Exchange, #listen{client = #{channel := {Transport, _}}} = Listen) ->
    receive
        {'EXIT', _, _} ->
            leave(Exchange, Listen);
        Message ->
            case Transport:received(Message, Exchange) of
                other -> receiving(Exchange, Listen);
                {Events, Next} -> events(Events, Next, Listen)
            end
    after silence(Listen) ->
        ok = leave(Exchange, Listen),
        again(timeout, Listen)
    end.

%% On a channel where aborting the exchange does not close a stream, a notification tells the
%% server.
leave(Exchange, #listen{client = #{channel := {Transport, _}} = Client, live = Live, id = Id}) ->
    case Transport:abort(Exchange) of
        true ->
            ok;
        false ->
            Params = #{~"requestId" => Id},
            _ = spawn(fun() ->
                erlmcp_client_exchange:tell(~"notifications/cancelled", Params, Client, Live)
            end),
            ok
    end.

silence(#listen{acknowledged = true}) -> infinity;
silence(_) -> ?ACKNOWLEDGE.

events([], Exchange, Listen) ->
    receiving(Exchange, Listen);
events([{message, {notification, ~"notifications/subscriptions/acknowledged", _}} | Events],
       Exchange, Listen) ->
    Begun = Listen#listen{acknowledged = true, pause = erlmcp_client_backoff:first_ms()},
    next(subscribed, Events, Exchange, Begun);
events([{message, {notification, Method, Params}} | Events], Exchange, Listen) ->
    #listen{client = #{cache := Cache}} = Listen,
    ok = erlmcp_client_cache:changed(Method, Params, Cache),
    case erlmcp_client_subscriptions:event(Method, Params) of
        none -> events(Events, Exchange, Listen);
        Event -> next(Event, Events, Exchange, Listen)
    end;
events([{message, {response, _, {ok, _}}} | _], _, Listen) ->
    again(ended, Listen);
events([{message, {response, _, {error, #{~"code" := -32601} = Error}}} | _], _, Listen) ->
    finished({rpc, Error}, Listen);
events([{message, {response, _, {error, Error}}} | _], _, Listen) ->
    again({rpc, Error}, Listen);
events([{failed, Reason} | _], _, Listen) ->
    again(Reason, Listen);
events([_ | Events], Exchange, Listen) ->
    events(Events, Exchange, Listen).

next(Event, Events, Exchange, Listen) ->
    #listen{client = Client, reference = Reference, subscriber = Pid} = Listen,
    case erlmcp_client_subscriptions:deliver(Pid, Reference, Event) of
        ok ->
            events(Events, Exchange, Listen);
        cut ->
            ok = erlmcp_client_connection:unsubscribe(Client, Reference),
            leave(Exchange, Listen)
    end.

finished(Reason, #listen{subscriber = Pid, reference = Reference, client = Client}) ->
    _ = erlmcp_client_subscriptions:deliver(Pid, Reference, {ended, Reason}),
    erlmcp_client_connection:unsubscribe(Client, Reference).

%% The server may be down for long, hence the jitter: its clients do not all return at once.
again(_, #listen{pause = Pause} = Listen) ->
    receive
        {'EXIT', _, _} -> ok
    after erlmcp_client_backoff:with_jitter(Pause) ->
        listen(Listen#listen{pause = erlmcp_client_backoff:next_ms(Pause)})
    end.
