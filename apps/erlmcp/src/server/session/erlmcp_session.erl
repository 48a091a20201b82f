-module(erlmcp_session).
-moduledoc """
An HTTP session of the four older revisions. It is a row in the instance's table, which its requests
read. It gets a process when it first needs one (`process/2`). The process owns the session's calls
and streams, which outlive connections (`m:erlmcp_session_streams`). It takes GET, subscriptions to
resources, cancellations and the client's answers.

A session ends on DELETE, with its server, and when it was unused for `session_idle_ms`, unless a
call runs or its own stream is open. In a cluster it goes on at another node when its server ends. A
session that its client never used after `initialize` ends after `unused_session_ms`. It ends
earlier if the server or its tenant has no room for a new session.

Source: specification 2025-11-25, "Transports / Session Management".

Internal.
""".

-behaviour(gen_server).

-export([open/3, reserve/5, process/2, sweep/1, end_for_client/2, delete/2]).
-export([end_all/1, close/1]).
-export([inherit/4, change/3, unavailable/0]).
-export([list/1]).
-export([subscribe/2, undo_subscribe/2, unsubscribe/2]).
-export([open_stream/2, resume_stream/3, written/2, detach/2]).
-export([cancel/2, response/3]).
-export([start_link/3]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2, format_status/1]).

%% `reserve/5` opens every session.
-compile({inline, [reserve/5]}).

%% The most bytes of a client's name and version in a list. Both are the client's.
-define(CLIENT_BYTES, 256).
%% Milliseconds that a session's process has to answer a connection.
-define(ANSWER_MS, 5_000).
%% Sessions that are listed.
-define(LISTED, 100).

-type early() :: {cancel, erlmcp_message:id()} | {detach, erlmcp_call:owner()}.

-record(state, {
    id :: binary(),
    instance :: erlmcp_instance:instance(),
    principal :: erlmcp_auth:principal(),
    calls :: erlmcp_calls:calls(),
    streams :: erlmcp_session_streams:streams(),
    %% the marks of each running call
    marks = #{} :: #{Call :: pid() => erlmcp_call_messages:marks()},
    %% the timers of calls whose clients have lost their connections
    lost = #{} :: #{Call :: pid() => reference()},
    %% cancellations and ends of connections that came while calls began, the last first, and how
    %% many of these calls were not adopted yet
    early = [] :: [{Beginning :: pos_integer(), early()}],
    %% whether a timer runs that drops old events of the streams
    aging = false :: boolean(),
    topics = [tool, prompt, resource] :: [erlmcp_engine:topic()],
    %% the resources to which the client has subscribed again
    repeated = #{} :: #{Uri :: binary() => []},
    %% notifications of changes that wait until the session's own stream has a connection
    missed = #{} :: #{erlmcp_engine:topic() => binary()}
}).

-doc """
Opens a session for a tenant and returns its id. Returns a refusal if the limit of sessions, or that
of the tenant's sessions, is reached, and no session can make room (`reserve/5`). In a cluster, also
returns a refusal in these cases:

- This node may not serve sessions now.
- The id has no room for the client's declaration, and the cluster cannot store it (`change/3`).
- The new session has ended, to make room for another one, before its declaration was stored.
""".
-spec open(erlmcp_engine:session(), erlmcp_gate:tenant(), erlmcp_instance:instance()) ->
    {ok, Id :: binary()} | {error, erlmcp_refusal:refusal()}.
open(Session, Tenant, #{cluster := none} = Instance) ->
    Id = erlmcp_session_table:new_id(),
    case reserve(Id, none, Session, Tenant, Instance) of
        ok -> {ok, Id};
        {error, _} = Refused -> Refused
    end;
open(Session, Tenant, #{cluster := {Module, State}} = Instance) ->
    maybe
        {ok, Id, Incarnation, Changes} ?= Module:open_session(Session, State),
        ok ?= reserve_in(Incarnation, Id, Changes, Session, Tenant, Instance),
        {ok, Id}
    else
        unavailable -> {error, unavailable()};
        {error, _} = Refused -> Refused
    end.

%% Adds the row of a session of the node's incarnation `Incarnation`, and stores the session's
%% changes after that: a session over a limit stores nothing.
reserve_in(Incarnation, Id, Changes, Session, Tenant, Instance) ->
    maybe
        ok ?= reserve(Id, none, Session, Tenant, Instance),
        {failed, Reason} ?= stored_in(Incarnation, Id, Changes, Instance),
        _ = delete(Id, Instance),
        Reason
    end.

%% If that incarnation ended meanwhile, its sessions have been deleted before or after this one was
%% added. If this node has given its sessions up meanwhile, this one has another home, too.
stored_in(Incarnation, Id, [Change | Changes], Instance) ->
    case change(Id, Change, Instance) of
        ok -> stored_in(Incarnation, Id, Changes, Instance);
        {error, _} = Refused -> {failed, Refused};
        ended ->
            case is_now(Incarnation, Instance) of
                true -> {failed, {error, made_room()}};
                false -> {failed, unavailable}
            end
    end;
stored_in(Incarnation, _, [], Instance) ->
    case is_now(Incarnation, Instance) of
        true -> ok;
        false -> {failed, unavailable}
    end.

is_now(Incarnation, #{cluster := {Module, State}}) ->
    is_integer(Incarnation) andalso Module:incarnation(sessions, State) =:= Incarnation.

made_room() ->
    erlmcp_refusal:new(concurrent_limit_exceeded,
                       ~"too many open sessions: this one has made room for another one; try again",
                       #{retry_after_ms => 1000}).

-doc """
Makes this node the home of a session whose home was another one, and counts the session as
inherited. Waits for other nodes. When the client has a stream again, it is notified of all lists
and of the resources that it watches, since it may have missed changes. Returns `unknown` if the
principal has no such session, and `unavailable` if this node cannot be its home now. Returns a
refusal if a limit is reached (`reserve/5`).
""".
-spec inherit(Id :: binary(), erlmcp_auth:principal(), erlmcp_gate:tenant(),
              erlmcp_instance:instance()) ->
    ok | unknown | unavailable | {error, erlmcp_refusal:refusal()}.
inherit(Id, Principal, Tenant, #{cluster := {Module, State}} = Instance) ->
    Incarnation = Module:incarnation(sessions, State),
    maybe
        {ok, Session, Watched} ?= Module:inherit_session(Id, Principal, State),
        %% A copy, since the id may be a part of the head that its client has sent.
        ok ?= reserve_in(Incarnation, binary:copy(Id), [], Session#{inherited => Watched}, Tenant,
                         Instance),
        ok ?= still_inherited(Id, Principal, Instance),
        %% The process subscribes to the resources.
        _ = Watched =:= [] orelse process(Id, Instance),
        erlmcp_meter:inherited(Instance)
    else
        %% Another request inherits it at the same time, and counts it.
        exists -> still_inherited(Id, Principal, Instance);
        Other -> Other
    end.

%% Another request may have inherited the session, and ended it, after this one has read it.
still_inherited(Id, Principal, #{cluster := {Module, State}} = Instance) ->
    case Module:find_session(Id, Principal, State) of
        inherited ->
            ok;
        Other ->
            _ = delete(Id, Instance),
            case Other of
                unknown -> unknown;
                _ -> unavailable
            end
    end.

-doc """
Stores a change of a session for its next home. Returns `ended` if the session has ended. Returns a
refusal if it is not certain that the change was stored. Also returns one if the cluster keeps too
many changes, of all clients or of the session's client. Without a cluster, stores nothing and
returns `ok`.
""".
-spec change(Id :: binary(), erlmcp_server_cluster:change(), erlmcp_instance:instance()) ->
    ok | ended | {error, erlmcp_refusal:refusal()}.
change(_, _, #{cluster := none}) ->
    ok;
change(Id, Change, #{cluster := {Module, State}} = Instance) ->
    maybe
        {ok, _, _, Tenant} ?= erlmcp_session_table:lookup(Id, Instance),
        ok ?= Module:change_session(Id, Tenant, Change, State)
    else
        Missing when Missing =:= error; Missing =:= ended ->
            ended;
        unavailable ->
            {error, unavailable()};
        full ->
            {error, erlmcp_refusal:new(resource_exhausted,
                                       [~"the cluster keeps too many changes of sessions, of this ",
                                        ~"client or of all: end sessions, or try again"],
                                       #{retry_after_ms => 60_000})}
    end.

-doc "Returns the refusal of a node that may not serve sessions now.".
-spec unavailable() -> erlmcp_refusal:refusal().
unavailable() ->
    erlmcp_refusal:new(dependency_unavailable,
                       [~"this node serves no sessions now: it has lost its contact with the ",
                        ~"cluster, or is about to stop; try again"],
                       #{retry_after_ms => 1000}).

-doc """
Adds the row of a session, within the limits. `Pid` is the process of the session, the process that
starts the session, or `none`.

If a limit is reached, the oldest session that was never used ends to make room. It is one of the
same tenant if the tenant's limit is reached, or else one of any tenant. Returns a refusal if there
is no such session. Adds nothing, and returns `exists`, if the session has a row already.
""".
-spec reserve(erlmcp_session_table:session_id(), pid() | none, erlmcp_session_table:session(),
              erlmcp_gate:tenant(), erlmcp_instance:instance()) ->
    ok | exists | {error, erlmcp_refusal:refusal()}.
reserve(Id, Pid, Session, Tenant, #{limits := #{sessions := Max}} = Instance) ->
    %% The row is added first and counted after that. So callers that race for the last free row
    %% never exceed the limit together.
    case erlmcp_session_table:add(Id, Pid, Session, Tenant, Instance) of
        {ok, Count} when Count > Max ->
            case make_room(all, Instance) of
                {ended, Other} when Other =/= Id -> ok;
                %% The new session was itself the only one that is not in use.
                _ -> {error, too_many(~"too many open sessions", Max, Count)}
            end;
        {ok, _} ->
            ok;
        exists ->
            exists;
        {full, Observed} ->
            case make_room({of_tenant, Tenant}, Instance) of
                {ended, _} -> reserve(Id, Pid, Session, Tenant, Instance);
                none -> {error, too_many_of(Tenant, Observed, Instance)}
            end
    end.

too_many_of(Tenant, Observed, #{limits := #{sessions_per_principal := Max}}) ->
    Whose = case Tenant of
        {anonymous, _} -> ~"too many open sessions from this address";
        _ -> ~"too many open sessions of this principal"
    end,
    too_many(Whose, Max, Observed).

too_many(Message, Max, Observed) ->
    erlmcp_refusal:new(concurrent_limit_exceeded, Message,
                       #{limit => Max, observed => Observed, retry_after_ms => 1000}).

make_room(Of, Instance) ->
    maybe
        {ok, {_, Id, _} = Unused} ?= erlmcp_session_table:oldest_unused(Of, Instance),
        case erlmcp_session_table:end_unused(Unused, Instance) of
            {ended, Pid} ->
                _ = Pid =:= none orelse close(Pid),
                {ended, Id};
            used ->
                make_room(Of, Instance)
        end
    end.

-doc """
Returns the process of a session, and starts it if the session has none yet. Returns `ended` if the
session has ended, or if the server is starting or stopping.
""".
-spec process(Id :: binary(), erlmcp_instance:instance()) -> {ok, pid()} | ended.
process(Id, Instance) ->
    case erlmcp_session_table:lookup(Id, Instance) of
        {ok, none, Session, _} -> start(Id, Session, Instance);
        {ok, Pid, _, _} -> {ok, Pid};
        error -> ended
    end.

start(Id, Session, Instance) ->
    %% The process keeps the id, too.
    try erlmcp_on_demand_sup:start_child(sessions, [binary:copy(Id), Session], Instance) of
        {ok, Pid} when is_pid(Pid) -> {ok, Pid};
        %% Another request started the process first, or has just ended the session.
        {ok, undefined} -> process(Id, Instance)
    catch
        %% The server starts or stops.
        exit:_ -> ended
    end.

-doc """
Ends the sessions that were never used within `unused_session_ms`, or within `session_idle_ms` if
that is less. Also ends sessions without a process that were not used for `session_idle_ms`, and
sessions whose process was killed.
""".
-spec sweep(erlmcp_instance:instance()) -> ok.
sweep(Instance) ->
    lists:foreach(fun close/1, erlmcp_session_table:end_overdue(Instance)),
    erlmcp_session_table:delete_idle(Instance).

-doc """
Ends a session because its client wants it. Of several requests that do so at the same time, one
gets `ok`, and the others `ended`. Returns a refusal if it is not certain that the cluster has
stored the end.
""".
-spec end_for_client(Id :: binary(), erlmcp_instance:instance()) ->
    ok | ended | {error, erlmcp_refusal:refusal()}.
end_for_client(Id, #{cluster := none} = Instance) ->
    case delete(Id, Instance) of
        ok -> ok;
        gone -> ended
    end;
end_for_client(Id, Instance) ->
    case change(Id, ended, Instance) of
        {error, _} = Refused ->
            Refused;
        Stored ->
            %% A request that was about to inherit the session may have done this before.
            _ = delete(Id, Instance),
            Stored
    end.

-doc """
Ends a session on this node. No later request finds it here, even before its process has ended.
Returns `gone` if the session has ended before.
""".
-spec delete(Id :: binary(), erlmcp_instance:instance()) -> ok | gone.
delete(Id, Instance) ->
    case erlmcp_session_table:take(Id, Instance) of
        {ok, none} -> ok;
        {ok, Pid} -> close(Pid);
        gone -> gone
    end.

-doc "Ends all sessions of Streamable HTTP on this node, as `delete/2` does.".
-spec end_all(erlmcp_instance:instance()) -> ok.
end_all(Instance) ->
    lists:foreach(fun(Id) -> delete(Id, Instance) end, erlmcp_session_table:open_ids(Instance)).

-doc "Asks the process of a session to end, with its calls and streams.".
-spec close(pid()) -> ok.
close(Pid) ->
    gen_server:cast(Pid, close).

-doc """
Returns the open sessions of Streamable HTTP. The most recently used ones come first, and those that
were never used come last. If there are more than 100 sessions, returns only 100, which may be any
of them. Raises `badarg` if the server has ended.
""".
-spec list(erlmcp_instance:instance()) -> [erlmcp:open_session()].
list(Instance) ->
    Open = [shown(Session) || Session <- erlmcp_session_table:list(?LISTED, Instance)],
    %% A number is less than an atom, so the unused ones are last.
    lists:sort(fun(#{idle_ms := A}, #{idle_ms := B}) -> A =< B end, Open).

%% Whoever has the id of a session may use the session, so a digest of the id is shown.
shown({Id, #{revision := Revision, principal := Principal} = Session, IdleMs, Calls}) ->
    <<Digest:6/binary, _/binary>> = crypto:hash(sha256, Id),
    Client = case Session of
        #{client_info := #{~"name" := Name} = Info} when is_binary(Name) ->
            #{client => erlmcp_printable:beginning(client(Name, Info), ?CLIENT_BYTES)};
        #{} ->
            #{}
    end,
    Client#{id => binary:encode_hex(Digest, lowercase), revision => Revision,
            principal => Principal, idle_ms => IdleMs, calls => Calls}.

client(Name, #{~"version" := Version}) when is_binary(Version) ->
    <<Name/binary, $\s, Version/binary>>;
client(Name, _) ->
    Name.

-doc """
Attaches a connection to the session's own stream. Returns `attached` if the stream has a connection
already, and `closed` if the session has ended. Returns a refusal if the session does not answer
within five seconds.
""".
-spec open_stream(pid(), erlmcp_call:owner()) ->
    ok | {error, attached | closed | erlmcp_refusal:refusal()}.
open_stream(Pid, Owner) ->
    attach(Pid, Owner, {open_stream, Owner}).

-doc """
Attaches a connection to the stream of the event `EventId`, in place of the connection that the
stream has. Sends the new connection the events after `EventId`. Returns `gone` if the stream of a
call does not keep these events any more, or if no stream has sent `EventId`. Returns `closed` or a
refusal as `open_stream/2` does.
""".
-spec resume_stream(pid(), EventId :: binary(), erlmcp_call:owner()) ->
    ok | {error, gone | closed | erlmcp_refusal:refusal()}.
resume_stream(Pid, EventId, Owner) ->
    attach(Pid, Owner, {resume_stream, EventId, Owner}).

attach(Pid, Owner, Request) ->
    case call(Pid, Request) of
        ended ->
            {error, closed};
        late ->
            %% The session may still attach the connection, and send it events that nobody reads.
            %% So it detaches the connection, and notifies the client of all changes again.
            ok = gen_server:cast(Pid, {refused, Owner}),
            {error, late()};
        Answer ->
            Answer
    end.

-doc """
Tells the session's process that a connection has written the event with this key to its client.
""".
-spec written(pid(), erlmcp_session_streams:key()) -> ok.
written(Pid, Key) ->
    gen_server:cast(Pid, {written, Key}).

-doc """
Detaches a connection, which has ended, from its stream, or from the call whose answer it waits for.
The call goes on.
""".
-spec detach(pid(), erlmcp_call:owner()) -> ok.
detach(Pid, Owner) ->
    gen_server:cast(Pid, {detach, Owner}).

-doc """
Subscribes the session to changes of a resource. `IsNew` is `false` if the session has this
subscription already. Returns `ended` if the session has ended. Returns a refusal if the limit
`subscriptions` or `subscriptions_per_principal` is reached. Also returns a refusal if the session
does not answer within five seconds. In this case the session may still make the subscription later.
""".
-spec subscribe(pid(), Uri :: binary()) ->
    {ok, IsNew :: boolean()} | ended | {error, erlmcp_refusal:refusal()}.
subscribe(Pid, Uri) ->
    in_time(call(Pid, {subscribe, Uri})).

-doc """
Ends a new subscription that could not be stored, unless the client has subscribed to the same
resource again since `subscribe/2`. Returns `ended` if the session has ended. Returns a refusal if
the session does not answer within five seconds. In this case the session may still end the
subscription later.
""".
-spec undo_subscribe(pid(), Uri :: binary()) -> ok | ended | {error, erlmcp_refusal:refusal()}.
undo_subscribe(Pid, Uri) ->
    in_time(call(Pid, {undo_subscribe, Uri})).

-doc """
Ends the session's subscription to changes of a resource. Returns `ended` if the session has ended.
Returns a refusal if the session does not answer within five seconds. In this case the session may
still end the subscription later.
""".
-spec unsubscribe(pid(), Uri :: binary()) -> ok | ended | {error, erlmcp_refusal:refusal()}.
unsubscribe(Pid, Uri) ->
    in_time(call(Pid, {unsubscribe, Uri})).

in_time(late) -> {error, late()};
in_time(Answer) -> Answer.

call(Pid, Request) ->
    try
        gen_server:call(Pid, Request, ?ANSWER_MS)
    catch
        exit:{timeout, _} -> late;
        exit:_ -> ended
    end.

late() ->
    erlmcp_refusal:new(timeout, ~"the session did not answer in time",
                       #{limit => ?ANSWER_MS, retry_after_ms => 1000}).

-doc """
Passes the client's answer to the request `Id` on to the call that sent this request. Does nothing
if the session has no process, since such a session has sent no request.
""".
-spec response(pid() | none, Id :: erlmcp_message:id(), {ok, term()} | {error, term()}) -> ok.
response(none, _, _) -> ok;
response(Pid, Id, Outcome) -> gen_server:cast(Pid, {response, Id, Outcome}).

-doc "Ends the call of the request with the id `Id`, if the call runs or is about to run.".
-spec cancel(pid() | none, Id :: erlmcp_message:id()) -> ok.
cancel(none, _) -> ok;
%% The process may keep the id until the call begins.
cancel(Pid, Id) -> gen_server:cast(Pid, {cancel, erlmcp_message:own_id(Id)}).

-doc false.
-spec start_link(erlmcp_instance:instance(), binary(), erlmcp_engine:session()) ->
    gen_server:start_ret().
start_link(Instance, Id, Session) ->
    %% Most data of a session is garbage when its call ends, and without an old heap it is soon
    %% collected.
    gen_server:start_link(?MODULE, {Instance, Id, Session},
                          [{hibernate_after, 100}, {spawn_opt, [{fullsweep_after, 0}]}]).

-doc false.
init({Instance, Id, #{revision := Revision, principal := Principal} = Session}) ->
    process_flag(trap_exit, true),
    #{key := Key, limits := Limits} = Instance,
    ok = erlmcp_label:set([?MODULE, Revision], Key),
    State = #state{id = Id, instance = Instance, principal = Principal,
                   calls = erlmcp_calls:new(Instance),
                   streams = erlmcp_session_streams:new(Revision, home(Id, Instance), Key, Limits)},
    %% Before the process attends: from then on changes are sent to it, and not noted in the row.
    ok = erlmcp_subscriptions:add(State#state.topics, owner(), session, Principal, table(State)),
    case erlmcp_session_table:attend(Id, Instance) of
        {ok, Missed} ->
            after_ms(session_idle_ms, idle, State),
            {ok, inherited(Session, State#state{missed = erlmcp_subscriptions:changed(Missed)})};
        error ->
            ok = unwatch(State),
            ignore
    end.

home(_, #{cluster := none}) ->
    none;
home(Id, #{cluster := {Module, Known} = Cluster}) ->
    case Module:incarnation(sessions, Known) of
        none -> {0, Id, Cluster};
        Incarnation -> {Incarnation, Id, Cluster}
    end.

%% Whatever has changed while the session had no home, its client is notified of it.
inherited(#{inherited := Uris}, #state{topics = Lists} = State) ->
    Watched = [{uri, Uri} || Uri <- Uris, watch({uri, Uri}, State) =:= ok],
    all_missed(State#state{topics = Watched ++ Lists});
inherited(_, State) ->
    State.

all_missed(#state{topics = Topics} = State) ->
    State#state{missed = #{Topic => erlmcp_subscriptions:notification(Topic) || Topic <- Topics}}.

-doc false.
handle_call({open_stream, Owner}, _, #state{streams = Streams} = State) ->
    case erlmcp_session_streams:open(Owner, Streams) of
        {ok, Open} -> {reply, ok, tell_missed(keep(Open, State))};
        {error, attached} -> {reply, {error, attached}, State}
    end;
handle_call({resume_stream, EventId, Owner}, _, #state{streams = Streams} = State) ->
    case erlmcp_session_streams:resume(EventId, Owner, Streams) of
        {ok, Resumed} -> {reply, ok, tell_missed(keep(Resumed, State))};
        {missed, Resumed} -> {reply, ok, tell_missed(keep(Resumed, all_missed(State)))};
        {error, gone} -> {reply, {error, gone}, State}
    end;
handle_call({subscribe, Uri}, _, State) ->
    #state{topics = Topics, repeated = Repeated, instance = Instance} = State,
    #{limits := #{subscriptions := Max}} = Instance,
    case lists:member({uri, Uri}, Topics) of
        true ->
            {reply, {ok, false}, State#state{repeated = Repeated#{Uri => []}}};
        false when length(Topics) >= Max + 3 ->
            {reply, {error, erlmcp_refusal:new(concurrent_limit_exceeded,
                                               ~"too many subscriptions in this session",
                                               #{limit => Max, observed => Max + 1})}, State};
        false ->
            case watch({uri, Uri}, State) of
                ok -> {reply, {ok, true}, State#state{topics = [{uri, Uri} | Topics]}};
                {error, _} = Refused -> {reply, Refused, State}
            end
    end;
handle_call({undo_subscribe, Uri}, _, #state{repeated = Repeated} = State) ->
    case Repeated of
        #{Uri := _} -> {reply, ok, State};
        #{} -> {reply, ok, unsubscribed(Uri, State)}
    end;
handle_call({unsubscribe, Uri}, _, State) ->
    {reply, ok, unsubscribed(Uri, State)}.

unsubscribed(Uri, #state{topics = Topics, repeated = Repeated, missed = Missed} = State) ->
    ok = erlmcp_subscriptions:remove([{uri, Uri}], owner(), session, table(State)),
    State#state{topics = Topics -- [{uri, Uri}], repeated = maps:remove(Uri, Repeated),
                missed = maps:remove({uri, Uri}, Missed)}.

-doc false.
handle_cast({cancel, _} = Cancel, State) ->
    {noreply, handle(Cancel, beginning(State), State)};
handle_cast({response, Id, Outcome}, #state{calls = Calls} = State) ->
    {noreply, State#state{calls = erlmcp_calls:response(Id, Outcome, Calls)}};
handle_cast({written, Key}, #state{streams = Streams} = State) ->
    {noreply, tell_missed(State#state{streams = erlmcp_session_streams:written(Key, Streams)})};
handle_cast({detach, _} = Detach, State) ->
    {noreply, handle(Detach, beginning(State), State)};
handle_cast({refused, Owner}, State) ->
    {noreply, all_missed(handle({detach, Owner}, beginning(State), State))};
handle_cast(close, State) ->
    {stop, normal, State}.

-doc false.
handle_info({erlmcp_adopt, #{entry := {_, Ids, _, _}} = Adoption}, State) ->
    {noreply, handle_early(length(Ids), adopted(Adoption, State))};
handle_info({{erlmcp_call, Call, Marks}, Ending}, State) when
    element(1, Ending) =:= deadline; element(1, Ending) =:= end_call
->
    #state{id = Id, instance = Instance} = State,
    case erlmcp_session_call:give_back(Marks, 1, Id, Instance) of
        given -> {noreply, called(Call, Ending, State)};
        %% The call has answered, or was cancelled.
        already -> {noreply, State}
    end;
handle_info({{erlmcp_call, Call, _}, Message}, State) ->
    {noreply, called(Call, Message, State)};
handle_info({'EXIT', Call, Reason}, State) ->
    #state{calls = Calls, streams = Streams, marks = Marked, lost = Lost} = State,
    Next = case Reason =:= normal andalso has_answered(Call, Marked) of
        true -> State#state{calls = erlmcp_calls:answered(Call, Calls),
                            marks = maps:remove(Call, Marked),
                            streams = erlmcp_session_streams:answered(Call, Streams),
                            lost = without_timer(Call, Lost)};
        false -> answer(Call, erlmcp_calls:exited(Call, Reason, Calls), State)
    end,
    {noreply, handle_early(0, Next)};
handle_info({erlmcp_session, {event, session, Topic, Encoded, Pending}}, State) ->
    ok = erlmcp_subscriptions:received(Pending),
    #state{missed = Missed, streams = Streams} = State,
    Bytes = iolist_to_binary(erlmcp_subscriptions:encoded(session, Encoded)),
    case erlmcp_session_streams:is_open(Streams) of
        true -> {noreply, keep(erlmcp_session_streams:notify(Bytes, Streams), State)};
        %% The client can ask for the task, so its notifications are not kept.
        false when element(1, Topic) =:= task -> {noreply, State};
        %% The client is notified once, when the stream has a connection.
        false -> {noreply, State#state{missed = Missed#{Topic => Bytes}}}
    end;
handle_info({'DOWN', Monitor, process, _, _}, #state{streams = Streams} = State) ->
    {noreply, unattended(erlmcp_session_streams:down(Monitor, Streams), State)};
handle_info({timeout, Timer, {unattended, Call}}, #state{lost = Lost} = State) ->
    case Lost of
        #{Call := Timer} -> {noreply, waited(Call, State#state{lost = maps:remove(Call, Lost)})};
        %% The client has lost its connection again, or the call has ended.
        #{} -> {noreply, State}
    end;
handle_info(expire, #state{streams = Streams} = State) ->
    {Milliseconds, Kept} = erlmcp_session_streams:expire(Streams),
    _ = Milliseconds =:= never orelse erlang:send_after(Milliseconds, self(), expire),
    {noreply, State#state{streams = Kept, aging = Milliseconds =/= never}};
handle_info(idle, #state{id = Id, instance = Instance, calls = Calls, streams = Streams} = State) ->
    Milliseconds = erlmcp_session_table:ms_until_idle(Id, Instance),
    Busy = erlmcp_session_streams:is_open(Streams) orelse erlmcp_calls:count(Calls) > 0,
    if
        Milliseconds =< 0, not Busy ->
            {stop, normal, State};
        Milliseconds =< 0 ->
            after_ms(session_idle_ms, idle, State),
            {noreply, State};
        true ->
            _ = erlang:send_after(Milliseconds, self(), idle),
            {noreply, State}
    end;
handle_info(_, State) ->
    {noreply, State}.

%% A call that has sent its connection the answer itself was given back before.
has_answered(Call, Marked) ->
    case Marked of
        #{Call := Marks} -> erlmcp_call_messages:is_given_back(Marks);
        #{} -> true
    end.

%% A connection sends these messages, and a call's own process sends the call's adoption. So a
%% message may come before the adoption of its call. Then it is kept, and handled again until the
%% calls that were `Beginning` are adopted. The client may use the id of its call again after that.
-spec handle(early(), Beginning :: integer(), #state{}) -> #state{}.
handle({cancel, Id} = Cancel, Beginning, #state{calls = Calls, marks = Marked} = State) ->
    case erlmcp_calls:find(Id, Calls) of
        {ok, Call} ->
            case erlmcp_call_messages:is_given_back(map_get(Call, Marked)) of
                %% It has answered, and its exit signal is on its way.
                true -> State;
                false -> cancelled(Call, erlmcp_calls:cancel(Id, Calls), State)
            end;
        error ->
            keep_early(Cancel, Beginning, State)
    end;
handle({detach, Owner} = Detach, Beginning, #state{streams = Streams} = State) ->
    Detached = unattended(erlmcp_session_streams:detach(Owner, Streams), State),
    keep_early(Detach, Beginning, Detached).

cancelled(Call, {_, OtherCalls} = Cancelled, State) ->
    Next = withdraw(Call, Cancelled, settle(Call, OtherCalls, State)),
    %% A batch goes on with its other calls.
    case erlmcp_calls:ids(Call, OtherCalls) of
        [] -> keep(erlmcp_session_streams:cancel(Call, Next#state.streams), Next);
        _ -> Next
    end.

keep_early(Message, Beginning, #state{early = Early} = State) when Beginning > 0 ->
    #state{instance = #{limits := #{calls_per_connection := Max}}} = State,
    State#state{early = lists:sublist([{Beginning, Message} | Early], Max)};
keep_early(_, _, State) ->
    State.

%% How many calls begin. A call is counted in the session's row before its process starts. The row
%% is read first: a call that ends meanwhile is taken for one that begins, until its exit signal
%% comes.
beginning(#state{id = Id, instance = Instance, calls = Calls, marks = Marked}) ->
    Begun = erlmcp_session_table:running_calls(Id, Instance),
    Begun - lists:sum([length(erlmcp_calls:ids(Call, Calls))
                       || Call := Marks <- Marked,
                          not erlmcp_call_messages:is_given_back(Marks)]).

%% Handles early messages again, after the adoption of `Adopted` calls.
handle_early(_, #state{early = []} = State) ->
    State;
handle_early(Adopted, #state{early = Early} = State) ->
    Most = beginning(State),
    lists:foldr(fun({Beginning, Message}, Before) ->
        handle(Message, min(Beginning - Adopted, Most), Before)
    end, State#state{early = []}, Early).

adopted(#{call := Call, marks := Marks} = Adoption, State) ->
    #state{calls = Calls, streams = Streams, marks = Marked} = State,
    case erlmcp_session_call:has_ended(Call, Marks) of
        true ->
            State;
        false ->
            #{entry := Entry, waiting := Waiting, streams := Reads} = Adoption,
            Expecting = erlmcp_session_streams:expect(Call, Entry, Waiting, Reads, Streams),
            State#state{calls = erlmcp_calls:adopt(Call, Entry, Calls),
                        marks = Marked#{Call => Marks}, streams = Expecting}
    end.

%% Performs a message of a running call.
called(Call, close_connection, #state{streams = Streams} = State) ->
    unattended({[Call], erlmcp_session_streams:close_connection(Call, Streams)}, State);
called(Call, {notification, Bytes, Window}, #state{streams = Streams} = State) ->
    ok = erlmcp_notification_window:written(byte_size(Bytes), Window),
    {_, Next} = erlmcp_session_streams:message(Call, Bytes, Streams),
    keep(Next, State);
called(Call, {request, {Id, _}, Asking, Bytes} = Message, State) ->
    #state{calls = Calls, streams = Streams} = State,
    case erlmcp_session_streams:message(Call, Bytes, Streams) of
        {sent, Next} ->
            {_, _, NextCalls} = erlmcp_calls:message(Call, Message, Calls),
            unattended({[Call], Next}, keep(Next, State#state{calls = NextCalls}));
        {refused, _} ->
            ok = erlmcp_call_messages:response(Asking, Id, {error, no_stream}),
            State
    end;
called(Call, {withdraw, _} = Message, #state{calls = Calls} = State) ->
    {Withdrawn, _, NextCalls} = erlmcp_calls:message(Call, Message, Calls),
    withdraw(Call, {Withdrawn, NextCalls}, State);
called(Call, Message, #state{calls = Calls} = State) ->
    answer(Call, erlmcp_calls:message(Call, Message, Calls), State).

answer(Call, {Withdrawn, Bytes, NextCalls}, State) ->
    Settled = withdraw(Call, {Withdrawn, NextCalls}, settle(Call, NextCalls, State)),
    #state{streams = Streams} = Settled,
    keep(erlmcp_session_streams:answer(Call, iolist_to_binary(Bytes), Streams), Settled).

withdraw(Call, {Withdrawn, NextCalls}, #state{streams = Streams} = State) ->
    keep(erlmcp_session_streams:withdraw(Call, Withdrawn, Streams), State#state{calls = NextCalls}).

%% The time to reconnect is over.
waited(Call, #state{calls = Calls, streams = Streams} = State) ->
    case erlmcp_session_streams:is_attended(Call, Streams) of
        true -> State;
        false -> withdraw(Call, erlmcp_calls:abandon(Call, Calls), State)
    end.

%% Subtracts calls that have ended from the session's running calls, before their clients get the
%% answers.
settle(Call, NextCalls, State) ->
    #state{id = Id, instance = Instance, calls = Calls, marks = Marked, lost = Lost} = State,
    case erlmcp_calls:ids(Call, Calls) -- erlmcp_calls:ids(Call, NextCalls) of
        [] ->
            State#state{calls = NextCalls};
        Ended ->
            {Own, Others} = maps:take(Call, Marked),
            _ = erlmcp_session_call:give_back(Own, length(Ended), Id, Instance),
            State#state{calls = NextCalls, marks = Others, lost = without_timer(Call, Lost)}
    end.

%% A call may have asked a client that has lost its connection. The client has `reconnect_ms` to
%% reconnect, after each loss and each question.
unattended({Calls, Streams}, #state{lost = Lost, instance = #{limits := Limits}} = State) ->
    #{reconnect_ms := Milliseconds} = Limits,
    Started = #{Call => erlang:start_timer(Milliseconds, self(), {unattended, Call})
                || Call <- Calls, not erlmcp_session_streams:is_attended(Call, Streams)},
    Others = lists:foldl(fun without_timer/2, Lost, maps:keys(Started)),
    State#state{streams = Streams, lost = maps:merge(Others, Started)}.

without_timer(Call, Lost) ->
    case maps:take(Call, Lost) of
        {Timer, Others} ->
            _ = erlang:cancel_timer(Timer),
            Others;
        error ->
            Lost
    end.

%% Only as many as the client can be sent now. All of them may be more than the log keeps.
tell_missed(#state{missed = Missed} = State) when map_size(Missed) =:= 0 ->
    State;
tell_missed(#state{missed = Missed, streams = Streams} = State) ->
    case erlmcp_session_streams:has_room(Streams) of
        true ->
            {Topic, Bytes, _} = maps:next(maps:iterator(Missed)),
            Notified = erlmcp_session_streams:notify(Bytes, Streams),
            tell_missed(keep(Notified, State#state{missed = maps:remove(Topic, Missed)}));
        false ->
            State
    end.

keep(Streams, #state{aging = true} = State) ->
    State#state{streams = Streams};
keep(Streams, #state{aging = false} = State) ->
    after_ms(stored_ms, expire, State),
    State#state{streams = Streams, aging = true}.

-doc false.
format_status(Status) ->
    erlmcp_log:without_state(Status).

-doc false.
terminate(Reason, #state{id = Id, principal = Principal, instance = Instance} = State) ->
    ok = erlmcp_session_table:delete(Id, Instance),
    ok = unwatch(State),
    #state{calls = Calls, streams = Streams} = unanswered(last_messages(State)),
    ok = erlmcp_calls:stop(Calls),
    Session = #{id => Id, principal => Principal, instance => Instance},
    Lost = fun(Call, Entry, Before) ->
        %% A server that stops may leave its sessions to other nodes.
        GoesOn = Reason =:= shutdown orelse erlmcp_session_call:is_elsewhere(Session),
        erlmcp_session_streams:end_call(Call, erlmcp_session_call:lost(Entry, Session), GoesOn,
                                        Before)
    end,
    erlmcp_session_streams:close(maps:fold(Lost, Streams, erlmcp_calls:running(Calls))).

%% Adopts the calls that saw the session's row before it was deleted, and sends the answers that
%% have arrived.
last_messages(State) ->
    receive
        {erlmcp_adopt, Adoption} ->
            last_messages(adopted(Adoption, State));
        {{erlmcp_call, Call, _}, {answer, _, _} = Answer} ->
            last_messages(called(Call, Answer, State))
    after 0 ->
        State
    end.

%% Leaves alone the calls that have just sent their answers, or are about to.
unanswered(#state{marks = Marked} = State) ->
    maps:fold(fun(Call, Marks, #state{calls = Calls, streams = Streams} = Left) ->
        case erlmcp_call_messages:give_back(Marks) of
            true ->
                Left;
            false ->
                Left#state{calls = erlmcp_calls:answered(Call, Calls),
                           streams = erlmcp_session_streams:answered(Call, Streams)}
        end
    end, State, Marked).

watch(Topic, #state{id = Id, principal = Principal, instance = Instance} = State) ->
    #{limits := #{subscriptions_per_principal := Max}} = Instance,
    maybe
        {ok, _, _, Tenant} ?= erlmcp_session_table:lookup(Id, Instance),
        {full, Observed} ?= erlmcp_subscriptions:add_counted([Topic], owner(), session,
                                                             {Principal, Tenant}, Max,
                                                             table(State)),
        {error, erlmcp_subscriptions:refusal(Max, Observed)}
    else
        ok -> ok;
        %% The session has just ended, and is about to remove its topics.
        error -> ok
    end.

unwatch(#state{topics = Topics} = State) ->
    erlmcp_subscriptions:remove(Topics, owner(), session, table(State)).

owner() ->
    {self(), erlmcp_session}.

table(#state{instance = Instance}) ->
    erlmcp_instance:subscriptions(Instance).

after_ms(Limit, Message, #state{instance = #{limits := Limits}}) ->
    _ = erlang:send_after(map_get(Limit, Limits), self(), Message),
    ok.
