-module(erlmcp_client_connection).
-moduledoc """
The process of one client. It owns the channel to the server and negotiates the revision. If the
revision has sessions, it opens one. It publishes the outcome, which all calls read. A call asks
this process only while no outcome is published, or when the published one has proved wrong.

Sources: specification 2026-07-28, "Versioning and Compatibility"; 2025-11-25, "Lifecycle".

Internal.
""".

-behaviour(gen_statem).

-export([start_link/1, stop/1, live/2, renegotiate/3, subscribe/3, unsubscribe/2]).
-export([info/1]).
-export([init/1, callback_mode/0, handle_event/4, terminate/3, format_status/1]).

-export_type([client/0, live/0]).

-doc "The part of a client that never changes, which every call reads from the table.".
-type client() :: #{
    peer := pid(),
    channel := erlmcp_channel:channel(),
    settings := erlmcp_client_options:settings(),
    identity := erlmcp_client_request:identity(),
    server := erlmcp_client_meter:server(),
    ids := atomics:atomics_ref(),
    calls := erlmcp_client_calls:calls(),
    tracer => erlmcp_tracer:tracer(),
    tools := ets:table(),
    questions := ets:table(),
    cache := erlmcp_client_cache:cache()
}.
-doc """
The outcome of the last negotiation with the server. `epoch` is the number of the negotiation, and
`session` the id of an HTTP session. `generation` is the number of the channel's connection. On HTTP
it is 0, except with HTTP+SSE.
""".
-type live() :: #{
    epoch := non_neg_integer(),
    revision := erlmcp_revision:revision(),
    session := binary() | none,
    generation := non_neg_integer(),
    capabilities := map(),
    server_info := map(),
    instructions => binary()
}.

%% Milliseconds between two searches for calls that were killed.
-define(SWEEP, 1000).
%% Milliseconds that a session's GET stream may take to open before calls begin without it.
-define(STREAM, 2000).

-record(peer, {
    client :: client(),
    channel :: pid(),
    %% The monitor of the table's process. Without the table no call finds the client.
    table :: reference(),
    live :: undefined | live(),
    epoch = 0 :: non_neg_integer(),
    %% The process that negotiates, and the callers that wait for its outcome.
    negotiator :: undefined | pid(),
    waiting = [] :: [gen_statem:from()],
    %% The outcome of the negotiation while the session's stream opens. It is published after that,
    %% since requests of the server during the first calls could be lost otherwise.
    pending :: undefined | live(),
    %% Whether the channel's connection is up. Except for HTTP+SSE, it always is on HTTP, which
    %% connects for each request.
    way = up :: up | down,
    generation = 0 :: non_neg_integer(),
    %% With the option `auto`, the era that the next negotiation tries first: that of the last one,
    %% or on lines one that `next_guess/2` has chosen.
    guess = unknown :: erlmcp_revision:era() | unknown,
    subscriptions :: erlmcp_client_subscriptions:subscriptions(),
    %% Requests of the server that came before the session was open, and the number of failed
    %% negotiations in a row.
    early = [] :: [erlmcp_client_questions:question()],
    failures = 0 :: non_neg_integer()
}).

-doc """
Starts a client with checked options, linked to the calling process, and does not wait for the
negotiation. `Name` is a name as in `gen_statem:start_link/4`, or `none`. The error is
`{already_started, Pid}` if a process has the name. It is `{shutdown, Reason}` if the application
does not run, or if the channel does not start (`c:erlmcp_channel:open/2`).
""".
-spec start_link({Name :: term(), erlmcp_client_options:settings()}) -> gen_statem:start_ret().
start_link({none, Settings}) ->
    gen_statem:start_link(?MODULE, Settings, []);
start_link({Name, Settings}) ->
    gen_statem:start_link(Name, ?MODULE, Settings, []).

-doc """
Unlinks a client from the calling process, stops the client in order, and waits for its end. First
its calls and subscriptions end, then its session, and then its channel. Does nothing if the client
has ended already.
""".
-spec stop(pid() | atom()) -> ok.
stop(Client) ->
    case erlmcp_client_table:find(Client) of
        {ok, #{peer := Peer}} ->
            unlink(Peer),
            try
                gen_statem:stop(Peer, shutdown, infinity)
            catch
                %% The client has ended by itself meanwhile.
                exit:_ -> ok
            end;
        {error, stopped} ->
            ok
    end.

-doc """
Returns the outcome of the negotiation with the server. While there is none, waits for one, at most
until `Deadline`, in monotonic milliseconds. The error is `timeout` after `Deadline`, `stopped` if
the client has ended, or else the reason why the negotiation or the connection failed.
""".
-spec live(client(), Deadline :: integer()) -> {ok, live()} | {error, term()}.
live(#{peer := Peer}, Deadline) ->
    case erlmcp_client_table:live(Peer) of
        #{} = Live -> {ok, Live};
        none -> ask(Peer, ready, Deadline);
        stopped -> {error, stopped}
    end.

-doc """
Reports that `Live` has proved wrong, as when its session ended, and waits for another outcome, as
`live/2` does. If another one has replaced `Live` already, returns that one at once.
""".
-spec renegotiate(client(), Live :: live(), Deadline :: integer()) ->
    {ok, live()} | {error, term()}.
renegotiate(#{peer := Peer}, #{epoch := Epoch}, Deadline) ->
    ask(Peer, {lost, Epoch}, Deadline).

ask(Peer, Question, Deadline) ->
    Remaining = max(0, Deadline - erlmcp_clock:now_ms()),
    try
        gen_statem:call(Peer, Question, {clean_timeout, Remaining})
    catch
        exit:{timeout, _} -> {error, timeout};
        exit:_ -> {error, stopped}
    end.

-doc """
Subscribes the process `Subscriber`, as described at `erlmcp_client:subscribe/2`. `Filter` is
checked already. Waits for the client's process. The error is `{overload, Limit}` if the client has
`Limit` subscriptions already, `timeout` after five seconds, and `stopped` if the client has ended.
""".
-spec subscribe(client(), Subscriber :: pid(), Filter :: erlmcp_client:filter()) ->
    {ok, reference()} | {error, term()}.
subscribe(#{peer := Peer}, Subscriber, Filter) ->
    Deadline = erlmcp_clock:now_ms() + 5000,
    ask(Peer, {subscribe, Subscriber, Filter, Deadline}, Deadline).

-doc """
Asks the client's process to end a subscription, and does not wait. The subscriber gets no event
`ended`. Has no effect if the reference is unknown, or the client has ended.
""".
-spec unsubscribe(client(), reference()) -> ok.
unsubscribe(#{peer := Peer}, Reference) ->
    Peer ! {unsubscribe, Reference},
    ok.

-doc "Returns what `erlmcp_client:info/1` returns for a client.".
-spec info(client()) -> map().
info(#{peer := Peer, calls := Calls, cache := Cache} = Client) ->
    Server = case erlmcp_client_table:live(Peer) of
        #{revision := Revision, session := Session} ->
            #{revision => Revision, session => Session =/= none};
        _ ->
            #{}
    end,
    Server#{calls => erlmcp_client_calls:running(Calls),
            dropped_notifications => erlmcp_client_mailbox:dropped(Client),
            cache => erlmcp_client_cache:info(Cache)}.

-doc false.
callback_mode() -> handle_event_function.

-doc false.
init(#{transport := Transport, target := Target} = Settings) ->
    process_flag(trap_exit, true),
    maybe
        {ok, Table} ?= erlmcp_client_table:join(),
        {ok, Tracer} ?= tracer(Settings),
        %% Each call has a copy of the settings, and needs no headers for a collector.
        opened(Transport, Target, maps:remove(trace, Settings), Tracer, Table)
    else
        {error, Reason} -> {stop, {shutdown, Reason}}
    end.

tracer(#{trace := Trace, info := #{name := Name, version := Version}}) ->
    maybe
        {ok, Tracer} ?= erlmcp_trace_options:tracer(Trace, {Name, Version}),
        {ok, #{tracer => Tracer}}
    end;
tracer(_) ->
    {ok, #{}}.

opened(Transport, Target, Settings, Tracer, Table) ->
    %% The atomics: the last request id, the unread notifications, the dropped notifications, and
    %% four numbers of questions (`m:erlmcp_client_questions`).
    Counters = atomics:new(7, []),
    Own = [limits, connect_timeout, calls, subscriptions, options],
    case Transport:open(Target, maps:with(Own, Settings)) of
        {ok, Channel, Handle} ->
            ok = erlmcp_label:set([erlmcp_client | erlmcp_client_options:label(Target)]),
            Client = Tracer#{
                peer => self(), channel => {Transport, Handle}, settings => Settings,
                identity => identity(Settings), ids => Counters,
                server => erlmcp_client_table:server(Target),
                calls => erlmcp_client_calls:new(),
                tools => erlmcp_client_tools:new(),
                questions => erlmcp_client_questions:table(),
                cache => erlmcp_client_cache:new(maps:get(cache, Settings))
            },
            ok = erlmcp_client_table:publish(self(), Client),
            Peer = #peer{client = Client, channel = Channel, table = Table,
                         way = first_way(Settings),
                         subscriptions = erlmcp_client_subscriptions:new()},
            {ok, serving, negotiate_if_needed(Peer), {{timeout, sweep}, ?SWEEP, look}};
        {error, Reason} ->
            {stop, {shutdown, Reason}}
    end.

%% A line channel connects by itself, and reports when its connection is up.
first_way(#{rules := http}) -> up;
first_way(#{rules := line}) -> down.

identity(#{info := Info, inputs := Inputs, capabilities := Given, tasks := Tasks}) ->
    Own = maps:merge(erlmcp_client_inputs:capabilities(Inputs),
                     erlmcp_client_operation:members(Given)),
    Extensions = erlmcp_client_operation:members(maps:get(~"extensions", Own, #{})),
    #{info => Info,
      capabilities => case Tasks of
          true -> Own#{~"extensions" => Extensions#{erlmcp_extension:tasks() => #{}}};
          false -> Own
      end}.

-doc false.
handle_event({call, From}, ready, _, #peer{live = undefined} = Peer) ->
    {keep_state, wait(From, Peer)};
handle_event({call, From}, ready, _, #peer{live = Live}) ->
    {keep_state_and_data, {reply, From, {ok, Live}}};
handle_event({call, From}, {lost, Epoch}, _, #peer{live = #{epoch := Epoch}} = Peer) ->
    {keep_state, wait(From, forget(Peer))};
handle_event({call, From}, {lost, _}, State, Peer) ->
    handle_event({call, From}, ready, State, Peer);
handle_event({call, From}, {subscribe, Subscriber, Filter, Deadline}, _, Peer) ->
    #peer{subscriptions = Subscriptions} = Peer,
    maybe
        %% The caller of a late one could not end it.
        true ?= erlmcp_clock:now_ms() < Deadline orelse {error, timeout},
        {ok, Reference, Next} ?=
            erlmcp_client_subscriptions:add(Subscriber, Filter, server(Peer), Subscriptions),
        {keep_state, negotiate_if_needed(Peer#peer{subscriptions = Next}),
         {reply, From, {ok, Reference}}}
    else
        {error, _} = Error -> {keep_state_and_data, {reply, From, Error}}
    end;
handle_event(info, {unsubscribe, Reference}, _, Peer) ->
    #peer{subscriptions = Subscriptions} = Peer,
    Next = erlmcp_client_subscriptions:remove(Reference, server(Peer), Subscriptions),
    {keep_state, Peer#peer{subscriptions = Next}};
handle_event(info, {negotiated, Pid, Outcome}, _, #peer{negotiator = Pid} = Peer) ->
    negotiated(Outcome, Peer#peer{negotiator = undefined});
handle_event({timeout, stream}, late, _, #peer{pending = #{} = Live} = Peer) ->
    #peer{subscriptions = Subscriptions} = Peer,
    Next = erlmcp_client_subscriptions:stream_is_late(server(Peer), Subscriptions),
    {keep_state, published(Live, Peer#peer{subscriptions = Next})};
handle_event({timeout, again}, look, _, #peer{subscriptions = Subscriptions} = Peer) ->
    case erlmcp_client_subscriptions:is_empty(Subscriptions) of
        false -> {keep_state, negotiate_if_needed(Peer)};
        true -> keep_state_and_data
    end;
handle_event(info, {notification, {Method, Params}, Weight}, _, #peer{client = Client} = Peer) ->
    ok = erlmcp_client_mailbox:has_read(Weight, Client),
    {keep_state, notification(Method, Params, Peer)};
handle_event(info, {erlmcp_channel, Channel, Event}, _, #peer{channel = Channel} = Peer) ->
    way(Event, Peer);
handle_event(info, {'EXIT', Channel, Reason}, _, #peer{channel = Channel}) ->
    {stop, {shutdown, {channel, Reason}}};
handle_event(info, {'EXIT', Pid, Reason}, _, #peer{negotiator = Pid} = Peer) ->
    negotiated({error, {crashed, Reason}}, Peer#peer{negotiator = undefined});
handle_event(info, {'EXIT', Pid, Why}, _, #peer{subscriptions = Subscriptions} = Peer) ->
    Next = erlmcp_client_subscriptions:worker_ended(Pid, Why, server(Peer), Subscriptions),
    settled(Peer#peer{subscriptions = Next}, []);
handle_event(info, {'DOWN', Table, process, _, _}, _, #peer{table = Table}) ->
    {stop, {shutdown, {not_started, erlmcp}}};
handle_event(info, {'DOWN', Monitor, process, _, _}, _, Peer) ->
    #peer{subscriptions = Subscriptions} = Peer,
    Next = erlmcp_client_subscriptions:remove(Monitor, server(Peer), Subscriptions),
    {keep_state, Peer#peer{subscriptions = Next}};
handle_event(info, {subscribed, Pid, Outcome}, _, #peer{subscriptions = Subscriptions} = Peer) ->
    Next = erlmcp_client_subscriptions:subscribed(Pid, Outcome, server(Peer), Subscriptions),
    {keep_state, Peer#peer{subscriptions = Next}};
handle_event(info, {unwatched, Uris}, _, #peer{subscriptions = Subscriptions} = Peer) ->
    Next = erlmcp_client_subscriptions:unwatched(Uris, server(Peer), Subscriptions),
    {keep_state, Peer#peer{subscriptions = Next}};
handle_event(info, {stream, Pid, State}, _, #peer{subscriptions = Subscriptions} = Peer) ->
    Next = erlmcp_client_subscriptions:stream_event(Pid, State, server(Peer), Subscriptions),
    settled(Peer#peer{subscriptions = Next}, []);
handle_event({timeout, sweep}, look, _, #peer{client = #{calls := Calls}} = Peer) ->
    ok = erlmcp_client_calls:sweep(Calls, kind(Peer)),
    {keep_state_and_data, {{timeout, sweep}, ?SWEEP, look}};
handle_event(_, _, _, _) ->
    keep_state_and_data.

-doc false.
terminate(_, _, #peer{client = #{peer := Self, channel := {Transport, Handle}, calls := Calls},
                      channel = Channel, subscriptions = Subscriptions,
                      negotiator = Negotiator} = Peer) ->
    ok = erlmcp_client_table:leave(Self),
    ok = erlmcp_client_calls:stop_all(Calls, kind(Peer)),
    ok = erlmcp_client_handshake:abandon(Negotiator, stopped, Peer#peer.client),
    ok = erlmcp_client_subscriptions:end_all(stopped, Subscriptions),
    %% The session exists although calls may not use it yet.
    case server(Peer) of
        {_, #{session := Session, revision := Revision}} when Session =/= none ->
            Headers = erlmcp_request_header:version(Revision),
            Deadline = erlmcp_clock:now_ms() + 2000,
            ok = Transport:leave(Session, Headers, Deadline, Handle);
        _ ->
            ok
    end,
    case is_process_alive(Channel) of
        true -> Transport:close(Channel);
        false -> ok
    end.

%% Headers and tokens are secrets, which the printed state must not have.
-doc false.
format_status(Status) ->
    maps:map(fun(data, #peer{epoch = Epoch, way = Way}) -> {peer, Epoch, Way};
                (_, Value) -> Value
             end, Status).

kind(#peer{client = #{server := Server}, live = undefined}) -> {Server, none};
kind(#peer{client = #{server := Server}, live = #{revision := Revision}}) -> {Server, Revision}.

%% The client, and the outcome with which subscriptions ask the server. They are started at the
%% negotiation, and later ones at once, also while the session's stream opens.
server(#peer{client = Client, live = undefined, pending = Pending}) -> {Client, Pending};
server(#peer{client = Client, live = Live}) -> {Client, Live}.

wait(From, #peer{waiting = Waiting, client = #{settings := #{calls := Limit}}} = Peer) ->
    Living = case length(Waiting) < Limit of
        true -> Waiting;
        %% Those that have given up need no answer.
        false -> [Other || {Pid, _} = Other <- Waiting, is_process_alive(Pid)]
    end,
    negotiate_if_needed(Peer#peer{waiting = [From | Living]}).

%% Negotiates unless there is an outcome, or one is on its way.
negotiate_if_needed(#peer{live = undefined, negotiator = undefined, pending = undefined, way = up}
                    = Peer) ->
    negotiate(Peer);
negotiate_if_needed(Peer) ->
    Peer.

negotiate(#peer{client = Client, epoch = Epoch, generation = Generation, guess = Guess} = Peer) ->
    Self = self(),
    Next = Epoch + 1,
    Pid = spawn_link(fun() ->
        Self ! {negotiated, self(),
                erlmcp_client_handshake:run(Client, {Next, Generation}, Guess)}
    end),
    Peer#peer{negotiator = Pid, epoch = Next}.

forget(#peer{client = #{peer := Self}} = Peer) ->
    ok = erlmcp_client_table:publish_live(Self, none),
    Peer#peer{live = undefined, pending = undefined}.

negotiated({ok, #{revision := Revision} = Live}, #peer{client = Client} = Peer) ->
    #peer{subscriptions = Subscriptions} = Peer,
    Renewed = erlmcp_client_subscriptions:restart({Client, Live}, Subscriptions),
    Next = lists:foldr(fun(Question, Acc) ->
                           erlmcp_client_subscriptions:answer(Question, {Client, Live}, Acc)
                       end, Renewed, Peer#peer.early),
    settled(Peer#peer{pending = Live, subscriptions = Next, early = [], failures = 0,
                      guess = erlmcp_revision:era(Revision)},
            [{{timeout, stream}, ?STREAM, late}]);
negotiated({error, _} = Error, #peer{waiting = Waiting, failures = Before} = Peer) ->
    gen_statem:reply([{reply, From, Error} || From <- lists:reverse(Waiting)]),
    %% Calls start the next negotiation. For subscribers, which make none, a timer starts it.
    Failures = Before + 1,
    {keep_state, Peer#peer{waiting = [], early = [], failures = Failures},
     {{timeout, again}, erlmcp_client_backoff:after_failures(Failures), look}}.

settled(#peer{pending = #{} = Live, subscriptions = Subscriptions} = Peer, Timer) ->
    case erlmcp_client_subscriptions:is_opening(Subscriptions) of
        true -> {keep_state, Peer, Timer};
        false -> {keep_state, published(Live, Peer), {{timeout, stream}, cancel}}
    end;
settled(Peer, _) ->
    {keep_state, Peer}.

published(Live, #peer{client = #{peer := Self}, waiting = Waiting} = Peer) ->
    ok = erlmcp_client_table:publish_live(Self, Live),
    gen_statem:reply([{reply, From, {ok, Live}} || From <- lists:reverse(Waiting)]),
    Peer#peer{live = Live, pending = undefined, waiting = []}.

way({up, Generation}, #peer{negotiator = Pid, client = Client} = Peer) ->
    ok = erlmcp_client_handshake:abandon(Pid, {closed, unprocessed}, Client),
    {keep_state, negotiate(forget(Peer#peer{way = up, generation = Generation}))};
way({down, Reason}, #peer{negotiator = Pid, client = Client} = Peer) ->
    Error = case Reason of
        {connect, _} -> Reason;
        _ -> {connect, Reason}
    end,
    ok = erlmcp_client_handshake:abandon(Pid, lost(Reason), Client),
    ok = erlmcp_client_questions:withdraw_all(Client),
    negotiated({error, Error}, (forget(Peer))#peer{way = down, negotiator = undefined,
                                                   guess = next_guess(Pid, Peer)});
way({message, {request, _, _, _} = Request}, #peer{client = Client, live = #{} = Live} = Peer) ->
    #peer{subscriptions = Subscriptions} = Peer,
    Next = erlmcp_client_subscriptions:answer(Request, {Client, Live}, Subscriptions),
    {keep_state, Peer#peer{subscriptions = Next}};
way({message, {request, _, _, _} = Request}, #peer{early = Early} = Peer) ->
    {keep_state, Peer#peer{early = erlmcp_client_questions:keep(Request, Early)}};
way({message, {notification, Method, Params}}, Peer) ->
    {keep_state, notification(Method, Params, Peer)};
way(_, _) ->
    keep_state_and_data.

%% Some older servers end when they are asked `server/discover`. So the negotiation after one that
%% the end of the connection has interrupted begins with the other request. A server that has been
%% stateless is none of them.
next_guess(undefined, #peer{guess = Guess}) -> Guess;
next_guess(_, #peer{guess = stateless}) -> stateless;
next_guess(_, #peer{guess = unknown}) -> session;
next_guess(_, #peer{guess = session}) -> unknown.

%% The reason with which the requests on the connection fail.
lost({connect, _} = Reason) -> Reason;
lost({too_large, _} = Reason) -> Reason;
lost(Reason) -> {closed, Reason}.

%% The server withdraws one of its requests. The notification may come on any stream.
notification(~"notifications/cancelled", #{~"requestId" := Id}, #peer{client = Client} = Peer) ->
    #peer{epoch = Epoch, early = Early} = Peer,
    ok = erlmcp_client_questions:withdraw({Epoch, Id}, Client),
    Peer#peer{early = [Question || Question <- Early, element(2, Question) =/= Id]};
notification(Method, Params, #peer{client = Client, subscriptions = Subscriptions} = Peer) ->
    #{cache := Cache} = Client,
    ok = erlmcp_client_cache:changed(Method, Params, Cache),
    Next = erlmcp_client_subscriptions:notify_all(Method, Params, server(Peer), Subscriptions),
    Peer#peer{subscriptions = Next}.
