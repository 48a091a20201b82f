-module(erlmcp_session).
-moduledoc """
An HTTP session of the older revisions: the process that guards the session's running calls, since
there a lost connection does not cancel a call, and that feeds its GET stream. Requests do not pass
through it; they read the session's row in the instance's table.

It ends on DELETE, and when the session was unused for `session_idle_ms`.

Source: specification 2025-11-25, "Transports / Session Management".
""".

-behaviour(gen_server).

-export([open/2, close/1, attach/2, detach/2, subscribe/2, unsubscribe/2]).
-export([take_calls/3, adopt/3, cancel/2, asked/4, response/3]).
-export([start_link/3]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

-export_type([guard/0]).

-doc "A session as the guard of calls: its id, its process, and what it belongs to.".
-type guard() :: {Id :: binary(), pid(), erlmcp_instance:instance()}.
-type running() :: erlmcp_message:id() | {batch, [erlmcp_message:id()]}.

-record(state, {
    id :: binary(),
    instance :: erlmcp_instance:instance(),
    %% what runs: the ids of a call or of a batch's calls, and whose stream waits for it
    calls = #{} :: #{pid() => {running(), erlmcp_call:owner()}},
    %% requests to the client, and the calls that wait for their answers
    asked = #{} :: #{erlmcp_message:id() => {Asking :: pid(), Running :: pid()}},
    topics = [tool, prompt, resource] :: [erlmcp_engine:topic()],
    %% the open GET stream, and what changed while there was none
    stream :: undefined | {erlmcp_call:owner(), Monitor :: reference()},
    missed = #{} :: #{erlmcp_engine:topic() => binary()}
}).

-doc "Opens a session and gives its id, or refuses it: there are as many as there may be.".
-spec open(erlmcp_engine:session(), erlmcp_instance:instance()) ->
    {ok, Id :: binary()} | {error, erlmcp_refusal:refusal()}.
open(Session, #{limits := #{sessions := Max}} = Instance) ->
    Id = base64:encode(crypto:strong_rand_bytes(24), #{mode => urlsafe}),
    %% The row takes the place; of those that race for the last one none gets in beyond it.
    ok = erlmcp_instance:put_session(Id, self(), Session, Instance),
    case erlmcp_instance:count_sessions(Instance) of
        Count when Count > Max ->
            ok = erlmcp_instance:delete_session(Id, Instance),
            {error, erlmcp_refusal:new(concurrent_limit_exceeded, ~"too many open sessions",
                                       #{limit => Max, observed => Count,
                                         retry_after_ms => 1000})};
        _ ->
            Supervisor = erlmcp_instance:session_supervisor(Instance),
            {ok, _} = supervisor:start_child(Supervisor, [Id, Session]),
            {ok, Id}
    end.

-doc "Ends a session with all that runs in it.".
-spec close(pid()) -> ok.
close(Pid) ->
    gen_server:cast(Pid, close).

-doc "Makes a GET stream the session's; a session has one at a time.".
-spec attach(pid(), erlmcp_call:owner()) -> ok | {error, attached | closed}.
attach(Pid, Owner) ->
    try
        gen_server:call(Pid, {attach, Owner})
    catch
        exit:_ -> {error, closed}
    end.

-doc "The GET stream is over.".
-spec detach(pid(), erlmcp_call:owner()) -> ok.
detach(Pid, Owner) ->
    gen_server:cast(Pid, {detach, Owner}).

-doc "Tells the session's client of changes of a resource; there is a limit of them.".
-spec subscribe(pid(), Uri :: binary()) -> ok | {error, erlmcp_refusal:refusal()}.
subscribe(Pid, Uri) ->
    call(Pid, {subscribe, Uri}).

-doc "Ends that.".
-spec unsubscribe(pid(), Uri :: binary()) -> ok | {error, erlmcp_refusal:refusal()}.
unsubscribe(Pid, Uri) ->
    call(Pid, {unsubscribe, Uri}).

call(Pid, Request) ->
    try
        gen_server:call(Pid, Request)
    catch
        exit:_ -> {error, erlmcp_refusal:new(session_invalid, ~"the session has ended")}
    end.

-doc "Takes places for calls of a session, or says that there are none left.".
-spec take_calls(Id :: binary(), Count :: non_neg_integer(), erlmcp_instance:instance()) ->
    ok | {error, erlmcp_refusal:refusal()}.
take_calls(Id, Count, #{limits := #{calls_per_connection := Max}} = Instance) ->
    case erlmcp_instance:take_calls(Id, Count, Max, Instance) of
        ok ->
            ok;
        full ->
            {error, erlmcp_refusal:new(concurrent_limit_exceeded,
                                       ~"too many requests in flight in this session",
                                       #{limit => Max, observed => Max + 1,
                                         retry_after_ms => 1000})}
    end.

-doc """
Called by the process of a call or batch: the session guards it from now on. `ended` if there is no
session any more. Its row goes before its process: one that is there after the process was told
will still see the call.
""".
-spec adopt(guard(), running(), erlmcp_call:owner()) -> ok | ended.
adopt({Id, Pid, Instance}, Running, Owner) ->
    try
        true = link(Pid),
        ok = gen_server:cast(Pid, {adopt, self(), Running, Owner}),
        case erlmcp_instance:has_session(Id, Instance) of
            true ->
                ok;
            false ->
                unlink(Pid),
                ended
        end
    catch
        error:noproc -> ended
    end.

-doc """
A call asked the client something; the answer is for it. `Running` is what the session guards: the
call itself, or its batch.
""".
-spec asked(pid(), erlmcp_message:id(), Asking :: pid(), Running :: pid()) -> ok.
asked(Pid, Id, Asking, Running) ->
    gen_server:cast(Pid, {asked, Id, Asking, Running}).

-doc "The client answered.".
-spec response(pid(), erlmcp_message:id(), {ok, term()} | {error, term()}) -> ok.
response(Pid, Id, Outcome) ->
    gen_server:cast(Pid, {response, Id, Outcome}).

-doc "Ends the call of this id, if it runs.".
-spec cancel(pid(), erlmcp_message:id()) -> ok.
cancel(Pid, Id) ->
    gen_server:cast(Pid, {cancel, Id}).

-doc false.
-spec start_link(erlmcp_instance:instance(), binary(), erlmcp_engine:session()) ->
    gen_server:start_ret().
start_link(Instance, Id, Session) ->
    gen_server:start_link(?MODULE, {Instance, Id, Session}, [{hibernate_after, 1000}]).

-doc false.
init({Instance, Id, Session}) ->
    process_flag(trap_exit, true),
    ok = erlmcp_instance:put_session(Id, self(), Session, Instance),
    State = #state{id = Id, instance = Instance},
    ok = erlmcp_subscriptions:add(State#state.topics, owner(), session, table(State)),
    wait_idle(idle_ms(State)),
    {ok, State}.

-doc false.
handle_call({attach, _}, _, #state{stream = {_, _}} = State) ->
    {reply, {error, attached}, State};
handle_call({attach, {Pid, Tag} = Owner}, _, #state{missed = Missed, topics = Topics} = State) ->
    %% Anew: what an earlier stream left unread is not this one's fault.
    ok = erlmcp_subscriptions:add(Topics, owner(), session, table(State)),
    _ = [Pid ! {Tag, {notification, Bytes}} || _ := Bytes <- Missed],
    {reply, ok, State#state{stream = {Owner, monitor(process, Pid)}, missed = #{}}};
handle_call({subscribe, Uri}, _, #state{topics = Topics, instance = Instance} = State) ->
    #{limits := #{subscriptions := Max}} = Instance,
    case lists:member({uri, Uri}, Topics) of
        true ->
            {reply, ok, State};
        false when length(Topics) >= Max + 3 ->
            {reply, {error, erlmcp_refusal:new(concurrent_limit_exceeded,
                                               ~"too many subscriptions in this session",
                                               #{limit => Max, observed => Max + 1})}, State};
        false ->
            ok = erlmcp_subscriptions:add([{uri, Uri}], owner(), session, table(State)),
            {reply, ok, State#state{topics = [{uri, Uri} | Topics]}}
    end;
handle_call({unsubscribe, Uri}, _, #state{topics = Topics, missed = Missed} = State) ->
    ok = erlmcp_subscriptions:remove([{uri, Uri}], owner(), session, table(State)),
    {reply, ok, State#state{topics = Topics -- [{uri, Uri}],
                            missed = maps:remove({uri, Uri}, Missed)}}.

-doc false.
handle_cast({adopt, Call, Id, Owner}, #state{calls = Calls} = State) ->
    {noreply, State#state{calls = Calls#{Call => {Id, Owner}}}};
handle_cast({cancel, Id}, #state{calls = Calls} = State) ->
    case [{Call, What} || Call := {What, _} <- Calls, is_or_has(What, Id)] of
        [{Batch, {batch, _}} | _] ->
            ok = erlmcp_batch:cancel(Batch, Id),
            {noreply, State};
        [{Call, What} | _] ->
            {_, {Pid, Tag}} = maps:get(Call, Calls),
            end_call(Call),
            Pid ! {Tag, cancelled},
            {noreply, forget(What, Call, State#state{calls = maps:remove(Call, Calls)})};
        [] ->
            {noreply, State}
    end;
handle_cast({asked, Id, Asking, Running}, #state{asked = Asked, calls = Calls} = State) when
    is_map_key(Running, Calls)
->
    {noreply, State#state{asked = Asked#{Id => {Asking, Running}}}};
handle_cast({asked, Id, Asking, _}, State) ->
    Asking ! {erlmcp_response, Id, {error, cancelled}},
    {noreply, State};
handle_cast({response, Id, Outcome}, #state{asked = Asked} = State) ->
    case maps:take(Id, Asked) of
        {{Asking, _}, Rest} ->
            Asking ! {erlmcp_response, Id, Outcome},
            {noreply, State#state{asked = Rest}};
        error ->
            {noreply, State}
    end;
handle_cast({detach, Owner}, #state{stream = {Owner, Monitor}} = State) ->
    true = demonitor(Monitor, [flush]),
    {noreply, State#state{stream = undefined}};
handle_cast({detach, _}, State) ->
    {noreply, State};
handle_cast(close, State) ->
    {stop, normal, State}.

-doc false.
handle_info({'EXIT', Call, Reason}, #state{calls = Calls} = State) ->
    case maps:take(Call, Calls) of
        {{What, {Pid, Tag}}, Rest} ->
            _ = Reason =/= normal andalso (Pid ! {Tag, {'EXIT', Call, Reason}}),
            {noreply, forget(What, Call, State#state{calls = Rest})};
        error ->
            {noreply, State}
    end;
handle_info({call, {deadline, Call}}, #state{calls = Calls} = State) ->
    case maps:take(Call, Calls) of
        {{What, {Pid, Tag}}, Rest} ->
            end_call(Call),
            Pid ! {Tag, {deadline, Call}},
            {noreply, forget(What, Call, State#state{calls = Rest})};
        error ->
            {noreply, State}
    end;
handle_info({erlmcp_session, {event, session, _, _, _} = Event},
            #state{stream = {{Pid, Tag}, _}} = State) ->
    %% Received is what the stream has written.
    Pid ! {Tag, Event},
    {noreply, State};
handle_info({erlmcp_session, {event, session, Topic, Encoded, Pending}},
            #state{missed = Missed} = State) ->
    %% What changes while no stream is open is told when one is, once.
    ok = erlmcp_subscriptions:received(Pending),
    Bytes = iolist_to_binary(erlmcp_subscriptions:encoded(session, Encoded)),
    {noreply, State#state{missed = Missed#{Topic => Bytes}}};
handle_info({'DOWN', Monitor, process, _, _}, #state{stream = {_, Monitor}} = State) ->
    {noreply, State#state{stream = undefined}};
handle_info(idle, #state{id = Id, instance = Instance} = State) ->
    Left = idle_ms(State) - (now_ms() - erlmcp_instance:last_used(Id, Instance)),
    case State of
        #state{stream = undefined, calls = Calls} when Left =< 0, map_size(Calls) =:= 0 ->
            {stop, normal, State};
        _ when Left =< 0 ->
            wait_idle(idle_ms(State)),
            {noreply, State};
        _ ->
            wait_idle(Left),
            {noreply, State}
    end;
handle_info(_, State) ->
    {noreply, State}.

forget(What, Call, #state{id = Id, instance = Instance, asked = Asked} = State) ->
    ok = erlmcp_instance:count_calls(Id, -calls_in(What), Instance),
    State#state{asked = maps:filter(fun(_, {_, Running}) -> Running =/= Call end, Asked)}.

calls_in({batch, Ids}) -> length(Ids);
calls_in(_) -> 1.

-doc false.
terminate(_, #state{id = Id, instance = Instance, topics = Topics, stream = Stream} = State) ->
    ok = erlmcp_instance:delete_session(Id, Instance),
    ok = erlmcp_subscriptions:remove(Topics, owner(), session, table(State)),
    #state{calls = Calls} = last_adopted(State),
    _ = [begin end_call(Call), Pid ! {Tag, cancelled} end || Call := {_, {Pid, Tag}} <- Calls],
    _ = [Pid ! {Tag, cancelled} || {{Pid, Tag}, _} <- [Stream]],
    ok.

%% Those that were adopted while the row was still there.
last_adopted(#state{calls = Calls} = State) ->
    receive
        {'$gen_cast', {adopt, Call, Running, Owner}} ->
            last_adopted(State#state{calls = Calls#{Call => {Running, Owner}}})
    after 0 ->
        State
    end.

owner() ->
    {self(), erlmcp_session}.

table(#state{instance = Instance}) ->
    erlmcp_instance:subscriptions(Instance).

is_or_has({batch, Ids}, Id) -> lists:member(Id, Ids);
is_or_has(Running, Id) -> Running =:= Id.

end_call(Call) ->
    unlink(Call),
    exit(Call, kill).

wait_idle(Milliseconds) ->
    _ = erlang:send_after(Milliseconds, self(), idle),
    ok.

idle_ms(#state{instance = #{limits := #{session_idle_ms := Milliseconds}}}) ->
    Milliseconds.

now_ms() ->
    erlang:monotonic_time(millisecond).
