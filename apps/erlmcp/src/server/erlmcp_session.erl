-module(erlmcp_session).
-moduledoc """
An HTTP session of the older revisions: the process that guards the session's running calls, since
there a lost connection does not cancel a call, and that feeds its GET stream. Requests do not pass
through it; they read the session's row in the instance's table.

It ends on DELETE, and when the session was unused for `session_idle_ms`.

Source: specification 2025-11-25, "Transports / Session Management".
""".

-behaviour(gen_server).

-export([open/2, close/1, attach/2, detach/2, adopt/4, cancel/2]).
-export([start_link/3]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

-type running() :: erlmcp_message:id() | {batch, [erlmcp_message:id()]}.

-record(state, {
    id :: binary(),
    instance :: erlmcp_instance:instance(),
    %% what runs: the ids of a call or of a batch's calls, and whose stream waits for it
    calls = #{} :: #{pid() => {running(), erlmcp_call:owner()}},
    %% the open GET stream, and what changed while there was none
    stream :: undefined | {erlmcp_call:owner(), Monitor :: reference()},
    changed = #{} :: #{erlmcp_definition:kind() => true}
}).

-doc "Opens a session and gives its id, or refuses it: there are as many as there may be.".
-spec open(erlmcp_engine:session(), erlmcp_instance:instance()) ->
    {ok, Id :: binary()} | {error, erlmcp_refusal:refusal()}.
open(Session, #{limits := #{sessions := Max}} = Instance) ->
    case erlmcp_instance:count_sessions(Instance) of
        Count when Count >= Max ->
            {error, erlmcp_refusal:new(concurrent_limit_exceeded, ~"too many open sessions",
                                       #{limit => Max, observed => Count + 1,
                                         retry_after_ms => 1000})};
        _ ->
            Id = base64:encode(crypto:strong_rand_bytes(24), #{mode => urlsafe}),
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

-doc "Called by the process of a call or batch: the session guards it from now on.".
-spec adopt(pid(), Call :: pid(), running(), erlmcp_call:owner()) -> ok.
adopt(Pid, Call, Id, Owner) ->
    gen_server:cast(Pid, {adopt, Call, Id, Owner}).

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
    wait_idle(idle_ms(State)),
    {ok, State}.

-doc false.
handle_call({attach, _}, _, #state{stream = {_, _}} = State) ->
    {reply, {error, attached}, State};
handle_call({attach, {Pid, _} = Owner}, _, #state{changed = Changed} = State) ->
    _ = [send(Owner, Kind) || Kind := true <- Changed],
    {reply, ok, State#state{stream = {Owner, monitor(process, Pid)}, changed = #{}}}.

-doc false.
handle_cast({adopt, Call, Id, Owner}, #state{calls = Calls} = State) ->
    {noreply, State#state{calls = Calls#{Call => {Id, Owner}}}};
handle_cast({cancel, Id}, #state{calls = Calls} = State) ->
    case [{Call, What} || Call := {What, _} <- Calls, is_or_has(What, Id)] of
        [{Batch, {batch, _}} | _] ->
            ok = erlmcp_batch:cancel(Batch, Id),
            {noreply, State};
        [{Call, _} | _] ->
            {_, {Pid, Tag}} = maps:get(Call, Calls),
            end_call(Call),
            Pid ! {Tag, cancelled},
            {noreply, State#state{calls = maps:remove(Call, Calls)}};
        [] ->
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
        {{_, {Pid, Tag}}, Rest} ->
            Reason =/= normal andalso (Pid ! {Tag, {'EXIT', Call, Reason}}),
            {noreply, State#state{calls = Rest}};
        error ->
            {noreply, State}
    end;
handle_info({call, {deadline, Call}}, #state{calls = Calls} = State) ->
    case maps:take(Call, Calls) of
        {{_, {Pid, Tag}}, Rest} ->
            end_call(Call),
            Pid ! {Tag, {deadline, Call}},
            {noreply, State#state{calls = Rest}};
        error ->
            {noreply, State}
    end;
handle_info({erlmcp_changed, Kind}, #state{stream = {Owner, _}} = State) ->
    send(Owner, Kind),
    {noreply, State};
handle_info({erlmcp_changed, Kind}, #state{changed = Changed} = State) ->
    {noreply, State#state{changed = Changed#{Kind => true}}};
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

-doc false.
terminate(_, #state{id = Id, instance = Instance, calls = Calls, stream = Stream}) ->
    ok = erlmcp_instance:delete_session(Id, Instance),
    _ = [begin end_call(Call), Pid ! {Tag, cancelled} end || Call := {_, {Pid, Tag}} <- Calls],
    _ = [Pid ! {Tag, cancelled} || {{Pid, Tag}, _} <- [Stream]],
    ok.

send({Pid, Tag}, Kind) ->
    Pid ! {Tag, {notification, iolist_to_binary(erlmcp_catalog:changed(Kind))}},
    ok.

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
