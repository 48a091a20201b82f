-module(erlmcp_session_forward).
-moduledoc """
Passes a request of an HTTP session on to the node that is the session's home. A request is passed
on if its session is not this node's, or if it must wait for the cluster before it is answered
(`place/4`).

Such a request has a process of its own on the node where it came in. For the connection that
process stands for the session, and for the session it stands for the connection. On the home,
another process handles the request (`erlmcp_session_request:visit/1`).

The request waits for up to two seconds while no home can be reached. It waits for up to 300
milliseconds while this node may serve no sessions. If the home dies before it has sent anything,
and the request is safe to repeat, the request waits for the next home. Otherwise the client gets an
error, as it does if the home has not begun with the request after five seconds. A stream that GET
has opened ends instead.

The connection is sent `t:erlmcp_call_messages:to_waiting/0` and, in addition:

- `{forwarded, attached}`: the session's stream is open.
- `{forwarded, accepted}`: the home has taken a message that has no answer.
- `{forwarded, ended}`: DELETE has ended the session.
- `{forwarded, {refused, Refusal, Reply}}`: a message was refused. The refusal is counted.
- `{forwarded, {refuse, Refusal}}`: GET or DELETE is refused.
- `{forwarded, {gone, Id}}`: the session has ended while the message began a call.

Internal.
""".

-behaviour(gen_server).

-export([place/4, start/2]).
-export([init/2]).
-export([init/1, handle_continue/2, handle_call/3, handle_cast/2, handle_info/2, terminate/2,
         format_status/1]).

-export_type([request/0, home/0]).

%% Milliseconds that a request waits for another home.
-define(WAIT, 2_000).
%% Milliseconds that a request waits until this node may serve sessions again.
%% A busy node may soon renew its lease.
-define(LAPSE, 300).
%% Milliseconds between two looks of a request that waits.
-define(LOOK, 50).
%% Milliseconds that a home may take to begin with a request.
-define(VISIT, 5_000).
%% Milliseconds in which the last messages of a session that has ended arrive.
-define(LAST, 1_000).
%% The version of the messages of a session.
-define(VERSION, 1).
%% Headers that the home needs: of the revision, the trace and the session.
-define(HEADERS, [~"mcp-protocol-version", ~"mcp-session-id", ~"traceparent", ~"tracestate",
                  ~"baggage"]).

-doc """
Where the home of a session is. It is `here` if this node has the session, and `unavailable` if this
node may serve no sessions now. Otherwise it is as `c:erlmcp_server_cluster:find_session/3` says.
""".
-type home() :: here | {away, node(), Watch :: pid()} | inherited | unseen | unavailable.
-doc """
A request, as its connection has it: the decoded message with its arrival, GET with its
`Last-Event-ID` or `none`, or DELETE. `home` is what `place/4` has found. `from` has the version of
HTTP and the client's address. `waiting` is the owner that waits for the answer, and `streams` is
`true` if the client reads streams.
""".
-type request() :: #{
    session := binary(), home := home(),
    asks := {message, Json :: term(), erlmcp_meter:arrival()} | {get, binary() | none} | delete,
    context := erlmcp_engine:request_context(), tenant := erlmcp_gate:tenant(),
    from := {Version :: atom(), Peer :: tuple()},
    waiting := erlmcp_call:owner(), streams := boolean()
}.

-record(state, {
    %% of an open stream only some members
    request :: request() | #{asks := {get, _}, waiting := erlmcp_call:owner()},
    instance :: erlmcp_instance:instance(),
    permit = none :: none | erlmcp_gate:permit(),
    %% the permit to wait for another home, and until when
    waiting = none :: none | erlmcp_gate:permit(),
    until = none :: none | integer(),
    %% until when the request waits for this node's lease
    lapsed = none :: none | integer(),
    %% the visit that goes on, or the session's process with its monitor
    at = nowhere :: nowhere | {visit, reference()} | {session, pid(), reference()},
    %% the tag of the session's messages. Each visit has its own: a home that was given up may only
    %% have stood still, and may answer after the request has gone to the next one.
    tag = none :: none | {?MODULE, Version :: pos_integer(), reference()},
    %% the monitor of the process that ends when the home has died
    watch = none :: none | reference(),
    timer = none :: none | reference(),
    %% whether the connection was sent something of a stream
    streaming = false :: boolean(),
    %% confirmations of events that came before the session's process was known
    written = [] :: [erlmcp_session_streams:key()],
    %% whether the connection has ended, or waits no more
    detached = false :: boolean()
}).

-doc """
Decides where a request of the session `Id` is handled. `Asks` is the decoded message, `get` or
`delete`. Returns `here` if the connection of the request handles it, with the session if one was
found. Returns `away`, with the session's home, if the request is passed on. Without a cluster,
every request is handled here. In a cluster, a stateless request and a request of a session that
does not exist are handled here.
""".
-spec place(Asks :: term(), Id :: binary(), erlmcp_engine:request_context(),
            erlmcp_instance:instance()) ->
    here | {here, erlmcp_session_request:session()} | {away, home()}.
place(_, _, _, #{cluster := none}) ->
    here;
place(Asks, Id, #{principal := Principal} = Context, #{cluster := {Module, State}} = Instance) ->
    maybe
        session ?= era(Asks, Context),
        true ?= is_integer(Module:incarnation(sessions, State)),
        {{_, _, _} = Session, false} ?=
            {erlmcp_session_request:find(Id, Principal, Instance), waits(Asks)},
        {here, Session}
    else
        stateless ->
            here;
        false ->
            {away, unavailable};
        {unknown, _} ->
            case Module:find_session(Id, Principal, State) of
                unknown -> here;
                Home -> {away, Home}
            end;
        {_, true} ->
            {away, here}
    end.

era(Asks, _) when is_atom(Asks) -> session;
era(Json, Context) -> erlmcp_engine:era(Json, Context).

%% Whether a request is answered only after all nodes know what it changes.
waits(delete) -> true;
waits(Batch) when is_list(Batch) -> lists:any(fun waits/1, Batch);
waits(#{~"method" := ~"logging/setLevel"}) -> true;
waits(#{~"method" := ~"resources/subscribe"}) -> true;
waits(#{~"method" := ~"resources/unsubscribe"}) -> true;
waits(_) -> false.

-doc """
Starts the process of a request that is passed on. The process is linked to the calling process,
which is the connection. The new process sends the answer or the refusal to the owner `waiting` of
the request.
""".
-spec start(request(), erlmcp_instance:instance()) -> pid().
start(Request, #{key := Key}) ->
    proc_lib:spawn_link(?MODULE, init, [Request, Key]).

-doc false.
-spec init(request(), Key :: reference()) -> no_return().
init(#{context := Context} = Request, Key) ->
    process_flag(trap_exit, true),
    ok = erlmcp_label:set([?MODULE], Key),
    %% Read without a copy.
    {ok, Instance} = erlmcp_instance:find(Key),
    #{headers := Headers} = Context,
    Kept = Request#{context := Context#{headers := maps:with(?HEADERS, Headers)}},
    gen_server:enter_loop(?MODULE, [{hibernate_after, 100}],
                          #state{request = Kept, instance = Instance}, {continue, enter}).

-doc false.
init(State) ->
    {ok, State}.

-doc false.
handle_continue(enter, #state{request = #{asks := Asks, home := Home, tenant := Tenant},
                              instance = Instance} = State) ->
    Permit = case Asks of
        {message, Json, {_, Bytes, _}} -> erlmcp_admission:forward(Json, Bytes, Tenant, Instance);
        _ -> erlmcp_gate:forward(Tenant, 0, map_get(gate, Instance))
    end,
    case Permit of
        {ok, Given} -> go(Home, State#state{permit = Given});
        {refuse, Refusal} -> refuse(Refusal, State)
    end.

%% Finds the home again, and sends the request there.
go(#state{request = Request, instance = Instance} = State) ->
    #{session := Id, context := #{principal := Principal}} = Request,
    #{cluster := {Module, Known}} = Instance,
    case is_integer(Module:incarnation(sessions, Known))
            andalso erlmcp_session_request:find(Id, Principal, Instance) of
        false -> go(unavailable, State);
        unknown -> go(Module:find_session(Id, Principal, Known), State);
        _ -> go(here, State)
    end.

%% Sends the request to the home. Waits if it cannot be reached.
go({away, Node, Watch}, State) ->
    case lists:member(Node, [node() | nodes()]) of
        true -> visit(Node, State#state{watch = monitor(process, Watch)});
        false -> wait(State)
    end;
go(here, State) ->
    visit(node(), State);
go(inherited, State) ->
    visit(node(), State);
go(unknown, State) ->
    refuse(erlmcp_session_request:gone(), State);
go(unavailable, #state{lapsed = none, instance = #{gate := Gate}} = State) ->
    %% A node that has given its sessions up gets none back.
    case erlmcp_gate:is_lame(Gate) of
        true -> refuse(erlmcp_session:unavailable(), State);
        false -> go(unavailable, State#state{lapsed = erlmcp_clock:now_ms() + ?LAPSE})
    end;
go(unavailable, #state{lapsed = Until} = State) ->
    wait(erlmcp_session:unavailable(), Until, State);
%% If nobody hears of the home, it was one of another cluster with the same secret.
go(unseen, State) ->
    wait(erlmcp_session_request:gone(), State).

visit(Node, #state{request = Request, instance = #{id := Server} = Instance} = State) ->
    ok = erlmcp_meter:forwarded(Instance),
    #{session := Id, asks := Asks, context := #{headers := Headers} = Context, tenant := Tenant,
      from := From, streams := Streams} = Request,
    Asked = case Asks of
        {message, Json, {_, Bytes, _}} -> {message, Json, Bytes};
        _ -> Asks
    end,
    Tag = {?MODULE, ?VERSION, make_ref()},
    Visit = #{server => Server, session => Id, asks => Asked,
              identity => maps:without([headers, header_era, header_values, meta], Context),
              headers => Headers, tenant => Tenant, from => From, waiting => {self(), Tag},
              streams => Streams},
    Ref = erlang:spawn_request(Node, erlmcp_session_request, visit, [{visit, 1, Visit}],
                               [monitor, {reply, error_only}]),
    {noreply, in_time(?VISIT, (without_waiting(State))#state{at = {visit, Ref}, tag = Tag})}.

in_time(Milliseconds, #state{timer = Timer} = State) ->
    _ = Timer =:= none orelse erlang:cancel_timer(Timer),
    State#state{timer = erlang:start_timer(Milliseconds, self(), late)}.

%% The session's home is dead, or is about to be known as dead, or cannot be reached.
wait(State) ->
    wait(lost(~"the node of this session cannot be reached"), State).

%% `Late` is the refusal of a request that has waited for too long.
wait(Late, #state{until = none} = State) ->
    wait(Late, State#state{until = erlmcp_clock:now_ms() + ?WAIT});
wait(Late, #state{until = Until} = State) ->
    wait(Late, Until, State).

wait(Late, Until, #state{waiting = none, request = Request,
                         instance = #{gate := Gate}} = State) ->
    case erlmcp_gate:wait_for_cluster(sharing(Request), Gate) of
        {ok, Permit} -> wait(Late, Until, State#state{waiting = Permit});
        {refuse, Refusal} -> refuse(Refusal, State)
    end;
wait(Late, Until, State) ->
    case erlmcp_clock:now_ms() < Until of
        true ->
            _ = erlang:send_after(?LOOK, self(), go),
            {noreply, State};
        false ->
            refuse(Late, State)
    end.

%% A request that waits may need an answer of its client, or its notification, in order to end.
sharing(#{asks := {message, Json, _}, tenant := Tenant}) ->
    case erlmcp_admission:is_request(Json) of
        true -> Tenant;
        false -> none
    end;
sharing(#{tenant := Tenant}) ->
    Tenant.

without_waiting(#state{waiting = none} = State) ->
    State;
without_waiting(#state{waiting = Permit} = State) ->
    ok = erlmcp_gate:leave(Permit),
    State#state{waiting = none}.

lost(Message) ->
    erlmcp_refusal:new(dependency_unavailable, Message, #{retry_after_ms => 1000}).

%% The home has died, or the connection to it was lost, before the request was answered.
failed(#state{request = Request, instance = Instance, streaming = Streaming} = State) ->
    case not Streaming andalso may_run_twice(Request, Instance) of
        true -> wait(forget(State));
        false -> give_up(~"the node of this session has ended: the request may have run", State)
    end.

%% Ends a stream of the session, whose client opens it again, or refuses the request.
give_up(_, #state{request = #{asks := {get, _}}, streaming = true} = State) ->
    tell(cancelled, State);
give_up(Message, State) ->
    refuse(lost(Message), State).

forget(#state{at = At, watch = Watch, timer = Timer} = State) ->
    _ = case At of
        {visit, Ref} -> demonitor(Ref, [flush]);
        {session, _, Ref} -> demonitor(Ref, [flush]);
        nowhere -> true
    end,
    _ = Watch =:= none orelse demonitor(Watch, [flush]),
    _ = Timer =:= none orelse erlang:cancel_timer(Timer),
    State#state{at = nowhere, tag = none, watch = none, timer = none}.

%% Whether a request that may have run can be sent again.
may_run_twice(#{asks := {message, Json, _}, context := #{principal := Principal}}, Instance) ->
    Catalog = erlmcp_published_catalog:catalog(Instance),
    lists:all(fun(Message) -> is_repeatable(Message, Principal, Catalog) end,
              case Json of
                  [_ | _] -> Json;
                  _ -> [Json]
              end);
may_run_twice(#{asks := {get, _}}, _) ->
    true;
may_run_twice(#{asks := delete}, _) ->
    false.

is_repeatable(#{~"method" := ~"tools/call", ~"params" := #{~"name" := Name} = Params}, Principal,
              Catalog) when is_binary(Name), not is_map_key(~"task", Params) ->
    case erlmcp_catalog:tool(Name, Principal, Catalog) of
        {ok, #{wire := #{~"annotations" := #{~"readOnlyHint" := true}}}} -> true;
        {ok, #{wire := #{~"annotations" := #{~"idempotentHint" := true}}}} -> true;
        _ -> false
    end;
is_repeatable(#{~"method" := ~"tools/call"}, _, _) ->
    false;
is_repeatable(_, _, _) ->
    true.

%% Messages to the connection.

refuse(Refusal, #state{request = #{asks := {message, Json, Arrival}, context := Context},
                       instance = Instance, streaming = Streaming} = State) ->
    {Id, _, _} = Asked = erlmcp_admission:summary(Json),
    ok = erlmcp_meter:ended({Asked, Arrival}, {refused, Refusal}, 0, Instance),
    {reply, Status, Bytes} = Reply = case erlmcp_refusal:name(Refusal) of
        session_invalid -> erlmcp_reply:refuse(Id, Refusal);
        _ -> erlmcp_admission:refused(Id, Refusal, Json, Context, true)
    end,
    case Streaming of
        true -> tell({answer, Status, Bytes}, State);
        false -> tell({forwarded, {refused, Refusal, Reply}}, State)
    end;
refuse(Refusal, State) ->
    tell({forwarded, {refuse, Refusal}}, State).

%% Sends the connection the last message, and ends.
tell(Message, State) ->
    ok = send(Message, State),
    {stop, normal, forget(State)}.

send(_, #state{detached = true}) ->
    ok;
send(Message, #state{request = #{waiting := {Pid, Tag}}}) ->
    Pid ! {Tag, Message},
    ok.

attached(#state{request = #{asks := {get, _}} = Request, streaming = false} = State) ->
    ok = send({forwarded, attached}, State),
    %% A stream may stay open for long, and keeps nothing of its head. Its connection is counted.
    ok = erlmcp_gate:leave(State#state.permit),
    State#state{request = maps:with([asks, waiting], Request), streaming = true, permit = none};
attached(State) ->
    State#state{streaming = true}.

%% The outcome of a visit.

visited({reply, Status, Bytes}, State) ->
    tell({answer, Status, Bytes}, State);
visited(accepted, State) ->
    tell({forwarded, accepted}, State);
visited({session, Pid}, State) ->
    {noreply, in_session(Pid, State)};
visited({attached, Pid}, State) ->
    {noreply, in_session(Pid, attached(State))};
visited(ended, State) ->
    tell({forwarded, ended}, State);
visited({refused, _, _} = Refused, State) ->
    tell({forwarded, Refused}, State);
visited({gone, _} = Gone, State) ->
    tell({forwarded, Gone}, State);
visited({refuse, Refusal}, State) ->
    refuse(Refusal, State);
visited(unknown, State) ->
    refuse(erlmcp_session_request:gone(), State);
visited(Elsewhere, State) when Elsewhere =:= moved; Elsewhere =:= unavailable ->
    wait(forget(State));
visited(unsupported, State) ->
    refuse(lost(~"the node of this session has another release"), State).

in_session(Pid, #state{written = Written, timer = Timer} = State) ->
    _ = Timer =:= none orelse erlang:cancel_timer(Timer),
    lists:foreach(fun(Key) -> erlmcp_session:written(Pid, Key) end, lists:reverse(Written)),
    State#state{at = {session, Pid, monitor(process, Pid)}, until = none, timer = none,
                written = []}.

-doc false.
handle_call(_, _, State) ->
    {noreply, State}.

-doc false.
handle_cast({written, Key}, #state{at = {session, Pid, _}} = State) ->
    ok = erlmcp_session:written(Pid, Key),
    {noreply, State};
handle_cast({written, Key}, #state{written = Written} = State) ->
    {noreply, State#state{written = [Key | Written]}};
handle_cast({detach, _}, State) ->
    detach(State).

%% The connection waits no more. A visit may still begin a call, which has to know that.
detach(#state{at = {session, Pid, _}, tag = Tag} = State) ->
    ok = erlmcp_session:detach(Pid, {self(), Tag}),
    {stop, normal, State};
detach(#state{at = {visit, _}} = State) ->
    {noreply, State#state{detached = true}};
detach(State) ->
    {stop, normal, State}.

-doc false.
handle_info(go, State) ->
    go(State);
handle_info({Tag, {stream, _, _, More} = Event}, #state{tag = Tag} = State) ->
    Attached = attached(State),
    case More of
        more ->
            ok = send(Event, Attached),
            {noreply, Attached};
        last ->
            tell(Event, Attached)
    end;
handle_info({Tag, Last}, #state{tag = Tag} = State) ->
    tell(Last, State);
handle_info({'DOWN', Ref, process, _, {erlmcp_visited, Outcome}},
            #state{at = {visit, Ref}} = State) ->
    case visited(Outcome, State#state{at = nowhere}) of
        {noreply, #state{detached = true} = Next} -> detach(Next);
        Next -> Next
    end;
handle_info({'DOWN', Ref, process, _, _}, #state{at = {visit, Ref}} = State) ->
    failed(State);
handle_info({spawn_reply, Ref, error, _}, #state{at = {visit, Ref}} = State) ->
    failed(State);
handle_info({'DOWN', Ref, process, _, noconnection}, #state{at = {session, _, Ref}} = State) ->
    failed(State);
%% The session has ended. What it and its calls have sent before may still come.
handle_info({'DOWN', Ref, process, _, _}, #state{at = {session, _, Ref}} = State) ->
    {noreply, in_time(?LAST, State)};
handle_info({'DOWN', Watch, process, _, _}, #state{watch = Watch} = State) ->
    failed(State);
handle_info({timeout, Timer, late}, #state{timer = Timer} = State) ->
    give_up(~"the node of this session does not answer: the request may have run", State);
%% The connection has ended, or the request there.
handle_info({'EXIT', _, _}, State) ->
    detach(State#state{detached = true});
handle_info(_, State) ->
    {noreply, State}.

-doc false.
format_status(Status) ->
    erlmcp_log:without_state(Status).

-doc false.
terminate(_, #state{permit = Permit} = State) ->
    _ = without_waiting(State),
    _ = Permit =:= none orelse erlmcp_gate:leave(Permit),
    ok.
