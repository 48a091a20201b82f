-module(erlmcp_httpd_sse_session).
-moduledoc """
A session of HTTP+SSE: the process that keeps the session's connection (`m:erlmcp_connection`). POST
requests hand it messages. It sends the answers to the stream of the client's GET request, which is
in the process of an HTTP connection.

The stream writes one piece at a time, of at most 65,536 bytes, and confirms it. The session ends if
messages of more than `unread_bytes` together wait for that, or if a piece was not written after
`send_timeout_ms`. A single message may wait, whatever its size. The session also ends with its
stream and with the server. If it was never used, it ends after `unused_session_ms`, or earlier if
another session needs its room. Its calls end with it.

Source: specification 2024-11-05, "Transports / HTTP with SSE".

Internal.
""".

-behaviour(gen_server).

-export([open/4, message/5, claim/1, written/1, close_when_idle/1, forget/2]).
-export([start_link/4]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2, format_status/1]).

-export_type([claim/0]).

%% The most bytes of a piece, and the least bytes to which small messages are joined if enough wait.
-define(PIECE, 65_536).

-doc "The claim to a message, of the session that may take it and the sender that may give it up.".
-opaque claim() :: atomics:atomics_ref().

-record(state, {
    id :: binary(),
    instance :: erlmcp_instance:instance(),
    stream :: erlmcp_call:owner(),
    connection :: erlmcp_connection:connection(),
    %% the timer that runs while the stream writes a piece, and the bytes that follow the piece
    writing :: undefined | reference(),
    rest = <<>> :: binary(),
    %% messages that wait behind them, the last of these, to which more is joined, and the bytes of
    %% all of these
    waiting = queue:new() :: queue:queue(binary()),
    last = <<>> :: binary(),
    size = 0 :: non_neg_integer(),
    %% whether the session ends as soon as no call runs
    closing = false :: boolean()
}).

-doc """
Opens a session for a stream and returns its process and its id, or refuses it. The stream is sent
`{Tag, {write, Bytes}}`, one piece at a time, and calls `written/1` when it has written a piece.
When the server ends the session, the stream is sent all remaining bytes at once. The session is
linked to the stream's process, and ends with `{shutdown, slow_consumer}` if the client does not
read.
""".
-spec open(erlmcp_call:owner(), erlmcp_auth:principal(), inet:ip_address(),
           erlmcp_instance:instance()) ->
    {ok, pid(), Id :: binary()} | {error, erlmcp_refusal:refusal()}.
open(Stream, Principal, Address, Instance) ->
    Id = erlmcp_session_table:new_id(),
    maybe
        Session = #{principal => Principal},
        Tenant = erlmcp_admission:tenant(Principal, Address),
        ok ?= erlmcp_session:reserve({sse, Id}, self(), Session, Tenant, Instance),
        {ok, Pid} ?= start(Id, Stream, {Principal, Address}, Instance),
        {ok, Pid, Id}
    end.

start(Id, Stream, Who, Instance) ->
    try
        case erlmcp_on_demand_sup:start_child(sse_sessions, [Id, Stream, Who], Instance) of
            {ok, Pid} when is_pid(Pid) ->
                {ok, Pid};
            %% The row of this session was already deleted to make room for another session.
            {ok, undefined} ->
                {error, erlmcp_refusal:new(session_invalid, ~"the session has ended")}
        end
    catch
        %% The supervisor of sessions starts after the listeners, and ends before them.
        exit:_ ->
            ok = forget(Id, Instance),
            {error, erlmcp_refusal:new(server_shutting_down, ~"the server starts or stops")}
    end.

-doc """
Hands a message that has arrived to the session `Id`. Returns `gone` if the sender has no such
session, and a refusal if `calls_per_connection` messages already wait for the session. `Owner` has
the pid of the calling process. It is sent `{Tag, taken}` when the session has taken the message, or
`{Tag, gone}` if the session ends before that. If the session is killed, `Owner` may be sent
neither. To give the message up, the caller claims it (`claim/1`).
""".
-spec message(Id :: binary(), {Json :: term(), erlmcp_meter:arrival()},
              Owner :: erlmcp_call:owner(), erlmcp_auth:identity(), erlmcp_instance:instance()) ->
    {ok, claim()} | gone | {error, erlmcp_refusal:refusal()}.
message(Id, Message, Owner, #{principal := Principal} = Identity, Instance) ->
    maybe
        {ok, Pid, _} ?= erlmcp_session_table:find({sse, Id}, Principal, Instance),
        ok ?= erlmcp_session_call:take({sse, Id}, 1, Instance),
        Claim = atomics:new(1, []),
        ok = gen_server:cast(Pid, {message, Message, Identity, Owner, Claim}),
        %% A live session answers every message, even when it ends.
        true ?= is_process_alive(Pid) orelse is_taken(Owner),
        {ok, Claim}
    else
        {error, _} = Error -> Error;
        _ -> gone
    end.

%% Returns `true` if the session took the message before it ended. The owner is sent its answer
%% again.
is_taken({Pid, Tag}) when Pid =:= self() ->
    receive
        {Tag, taken} = Taken ->
            Pid ! Taken,
            true
    after 0 -> false
    end.

-doc """
Claims a message, and returns `true` to the first caller. The session claims a message before it
takes it, and the sender before it refuses it. So a message that was refused is never handled.
""".
-spec claim(claim()) -> boolean().
claim(Claim) ->
    atomics:exchange(Claim, 1, 1) =:= 0.

-doc """
Confirms to the session that its stream has written a piece, once for each piece. The session then
sends the next one, if there is one.
""".
-spec written(pid()) -> ok.
written(Pid) ->
    gen_server:cast(Pid, written).

-doc "Ends a session as soon as none of its calls runs.".
-spec close_when_idle(pid()) -> ok.
close_when_idle(Pid) ->
    gen_server:cast(Pid, close_when_idle).

-doc "Deletes the row of a session. A session that is killed cannot do so itself.".
-spec forget(Id :: binary(), erlmcp_instance:instance()) -> ok.
forget(Id, Instance) ->
    erlmcp_session_table:delete({sse, Id}, Instance).

-doc false.
-spec start_link(erlmcp_instance:instance(), binary(), erlmcp_call:owner(),
                 {erlmcp_auth:principal(), inet:ip_address()}) -> gen_server:start_ret().
start_link(Instance, Id, Stream, Who) ->
    gen_server:start_link(?MODULE, {Instance, Id, Stream, Who}, [{hibernate_after, 1000}]).

-doc false.
init({#{limits := Limits, key := Key} = Instance, Id, {Pid, _} = Stream,
      {Principal, Address}}) ->
    process_flag(trap_exit, true),
    ok = erlmcp_label:set([?MODULE, Address], Key),
    ok = erlmcp_heap:bound_connection(Limits),
    true = link(Pid),
    case erlmcp_session_table:put_process({sse, Id}, self(), Instance) of
        true ->
            wait_to_keep_alive(Limits),
            {ok, #state{id = Id, instance = Instance, stream = Stream,
                        connection = erlmcp_connection:new(events, Instance, Principal, Address)}};
        false ->
            true = unlink(Pid),
            ignore
    end.

-doc false.
handle_call(_, _, State) ->
    {noreply, State}.

-doc false.
handle_cast({message, {Json, Arrival}, Identity, {Pid, Tag}, Claim}, State) ->
    #state{id = Id, instance = Instance, connection = Connection} = State,
    ok = erlmcp_session_table:count_calls({sse, Id}, -1, Instance),
    case claim(Claim) of
        true ->
            Pid ! {Tag, taken},
            said(erlmcp_connection:message(Json, Arrival, Identity, Connection), State);
        false ->
            {noreply, State}
    end;
handle_cast(close, State) ->
    {stop, shutdown, State};
handle_cast(close_when_idle, State) ->
    go_on(State#state{closing = true});
handle_cast(written, #state{writing = Timer} = State) ->
    _ = erlang:cancel_timer(Timer),
    {noreply, write_next(State#state{writing = undefined})}.

-doc false.
handle_info({'EXIT', Pid, _}, #state{stream = {Pid, _}} = State) ->
    {stop, normal, State};
handle_info({timeout, Timer, unread}, #state{writing = Timer} = State) ->
    #state{instance = #{limits := #{send_timeout_ms := Limit}}} = State,
    slow_consumer(Limit, State);
handle_info(keep_alive, #state{instance = #{limits := Limits}} = State) ->
    wait_to_keep_alive(Limits),
    case State of
        #state{writing = undefined} -> {noreply, write(erlmcp_sse:comment(), State)};
        #state{} -> {noreply, State}
    end;
handle_info(Message, #state{connection = Connection} = State) ->
    said(erlmcp_connection:info(Message, Connection), State).

wait_to_keep_alive(#{keep_alive_ms := Interval}) ->
    _ = erlang:send_after(Interval, self(), keep_alive),
    ok.

said({Bytes, Connection}, State) ->
    Next = State#state{connection = Connection},
    case iolist_size(Bytes) of
        0 -> go_on(Next);
        Size -> say(Bytes, Size, Next)
    end.

go_on(#state{closing = true, connection = Connection} = State) ->
    case erlmcp_connection:busy(Connection) of
        true -> {noreply, State};
        false -> {stop, shutdown, State}
    end;
go_on(State) ->
    {noreply, State}.

say(Bytes, _, #state{writing = undefined} = State) ->
    go_on(write(Bytes, State));
say(Bytes, More, #state{size = Size, instance = #{limits := #{unread_bytes := Max}}} = State) ->
    %% A single message may wait, whatever its size.
    if
        Size > 0, Size + More > Max -> slow_consumer(Max, State);
        true -> go_on(wait(Bytes, State#state{size = Size + More}))
    end.

slow_consumer(Limit, #state{instance = #{key := Key}} = State) ->
    ok = erlmcp_slow_consumer:cut(Key, Limit),
    {stop, {shutdown, slow_consumer}, State}.

%% Joins small messages to one binary, since many small binaries take many times their bytes.
wait(Bytes, #state{waiting = Waiting, last = Last} = State) ->
    case <<Last/binary, (iolist_to_binary(Bytes))/binary>> of
        Joined when byte_size(Joined) >= ?PIECE ->
            State#state{waiting = queue:in(Joined, Waiting), last = <<>>};
        Begun ->
            State#state{last = Begun}
    end.

write_next(#state{rest = Rest} = State) when Rest =/= <<>> ->
    write(Rest, State);
write_next(#state{waiting = Waiting, last = Last, size = Size} = State) ->
    case queue:out(Waiting) of
        {{value, Bytes}, Others} ->
            write(Bytes, State#state{waiting = Others, size = Size - byte_size(Bytes)});
        {empty, _} when Last =/= <<>> ->
            write(Last, State#state{last = <<>>, size = 0});
        {empty, _} ->
            State
    end.

write(Bytes, #state{stream = {Pid, Tag}, instance = #{limits := Limits}} = State) ->
    #{send_timeout_ms := Timeout} = Limits,
    {Piece, Rest} = case iolist_to_binary(Bytes) of
        <<First:?PIECE/binary, Others/binary>> -> {First, Others};
        All -> {All, <<>>}
    end,
    Pid ! {Tag, {write, Piece}},
    State#state{writing = erlang:start_timer(Timeout, self(), unread), rest = Rest}.

-doc false.
format_status(Status) ->
    erlmcp_log:without_state(Status).

-doc false.
terminate(Reason, #state{id = Id, instance = Instance, connection = Connection} = State) ->
    ok = forget(Id, Instance),
    ok = erlmcp_connection:close(Connection),
    ok = say_the_rest(Reason, State),
    leave_untaken().

%% If the session ends for the server, it sends what still waits.
say_the_rest(shutdown, #state{stream = {Pid, Tag}, rest = Rest, waiting = Waiting, last = Last}) ->
    Pid ! {Tag, {write, [Rest, queue:to_list(Waiting), Last]}},
    ok;
say_the_rest(_, _) ->
    ok.

leave_untaken() ->
    receive
        {'$gen_cast', {message, _, _, {Pid, Tag}, _}} ->
            Pid ! {Tag, gone},
            leave_untaken()
    after 0 ->
        ok
    end.
