-module(erlmcp_line_channel).
-moduledoc """
A channel that sends and receives one message per line. Its transports are TCP, the pipes of a child
process, and messages to a server of this node. They implement the behaviour of this module.

The channel's process connects and reads. When the connection ends it connects again, after a pause
that grows with each failure. A second process writes, so that a server that does not read its input
cannot stop the channel from reading. Senders never wait: up to 16 MiB of unsent lines are queued. A
queued line is dropped if its exchange has ended, or its deadline has passed.

Internal.
""".

-behaviour(erlmcp_channel).
-behaviour(gen_server).

-export([open/2, send/2, received/2, received_bytes/1, abort/1, leave/4, close/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2, format_status/1]).

-export_type([target/0, handle/0, exchange/0, connection/0, prepared/0]).

-doc "The address of a server, whose first element names the transport.".
-type target() ::
    {stdio, Command :: binary() | string() | [binary() | string()]}
    | {tcp, inet:ip_address() | binary() | string(), inet:port_number()}
    | {server, erlmcp:server()}.
-opaque handle() :: {pid(), atomics:atomics_ref()}.
-opaque exchange() :: {pid(), erlmcp_line_exchanges:ref(), Received :: non_neg_integer()}.
-type connection() :: term().
-type prepared() :: term().

-doc """
Checks a target, and returns it in the form that the other callbacks get. The error names the wrong
part, and what was expected there.
""".
-callback target(target()) ->
    {ok, target()} | {error, {bad_option, Key :: term(), Expected :: binary()}}.
-doc """
Returns `true` if the option `Key` of the transport may have the value `Value`, or else a text that
says what was expected.
""".
-callback option(Key :: term(), Value :: term()) -> true | Expected :: binary().
-doc "Returns a description of the target for logs, without secrets.".
-callback about(target()) -> map().
-doc """
Connects to the server within `connect_timeout`, and returns a term for `c:activate/2`. The callback
runs in a process that ends afterwards, and gives ports that it has opened to `Channel`. `Why`
becomes the reason `{connect, Why}` of calls.
""".
-callback connect(target(), Channel :: pid(), erlmcp_channel:settings()) ->
    {ok, prepared()} | {error, Why :: term()}.
-doc """
Takes the connection over in the channel's process, which gets its bytes as messages from then on.
An error counts as a failed attempt to connect, as one of `c:connect/2` does.
""".
-callback activate(prepared(), erlmcp_channel:settings()) ->
    {ok, connection()} | {error, Why :: term()}.
-doc """
Interprets a message to the channel's process. Each result except `other` has the connection after
the message.

- `data`: the message has bytes that the server has sent.
- `ended`: the connection has ended. The channel calls `c:drop/1`. Exchanges whose lines were
  written fail with `{closed, Why}`, or with `Why` itself if it is `{connect, _}`. The other
  exchanges fail with `{closed, unprocessed}`.
- `ignore`: the message belongs to the connection, and the channel has nothing to do.
- `other`: the message does not belong to the connection.
""".
-callback arrived(Message :: term(), connection()) ->
    {data, binary(), connection()} | {ended, Why :: term(), connection()} | {ignore, connection()}
    | other.
-doc """
Writes bytes. The callback runs in the writer's process, and may wait. After 30 seconds, and after
an error, the channel kills that process and calls `c:drop/1`. `gone` means that the connection has
ended, and that a message for `c:arrived/2` has the reason.
""".
-callback deliver(iodata(), connection()) -> ok | gone | {error, Why :: term()}.
-doc """
Closes the connection, which may have ended already. Does not wait for the end of the server's
program.
""".
-callback drop(connection()) -> ok.
-doc """
Ends the connection in the order of the specification. The callback runs in the channel's process,
which ends afterwards. If the channel has started the server's program, the callback waits for its
end, for a bounded time.
""".
-callback finish(connection()) -> ok.

%% The most bytes that may wait to be written, and the bytes that are counted for each line in
%% addition to its own.
-define(UNSENT, 16_777_216).
-define(OVERHEAD, 128).
%% The most bytes that are written in one piece, unless a single line is longer.
-define(PIECE, 262_144).
%% Milliseconds in which a server has to read one piece.
-define(WRITE_TIMEOUT, 30_000).
%% Milliseconds: the pause after the first failure, the longest pause, and the least lifetime of a
%% connection whose end is not a failure.
-define(FIRST_PAUSE, 100).
-define(LAST_PAUSE, 30_000).
-define(STEADY, 10_000).
-define(DEFAULT_CALLS, 1000).
-define(DEFAULT_SUBSCRIPTIONS, 100).

-record(state, {
    module :: module(),
    target :: term(),
    settings :: erlmcp_channel:settings(),
    owner :: pid(),
    unsent :: atomics:atomics_ref(),
    most :: pos_integer(),
    phase = connecting :: connecting | up | {paused, Why :: term()},
    generation = 0 :: non_neg_integer(),
    since = 0 :: integer(),
    failures = 0 :: non_neg_integer(),
    connector :: pid() | undefined,
    %% These fields are set only while a connection is up.
    connection :: connection() | undefined,
    inbox :: erlmcp_line_inbox:inbox() | undefined,
    writer :: pid() | undefined,
    writing = none :: none | {Timer :: reference(), [waiting()]},
    exchanges = erlmcp_line_exchanges:new() :: erlmcp_line_exchanges:exchanges(),
    queue = queue:new() :: queue:queue(waiting()),
    %% The open exchanges whose line is not written yet.
    unwritten = #{} :: #{erlmcp_line_exchanges:ref() => true}
}).

%% `own` is a response of the channel itself.
-type waiting() :: {erlmcp_line_exchanges:ref() | own, Line :: binary()}.

-doc """
Checks the target and the options of its transport, and starts the channel. The channel connects in
the background, and again when a connection ends. The settings `calls` and `subscriptions` bound the
open exchanges. The error for a wrong option is `{bad_option, Key, Expected}`.
""".
-spec open(target(), erlmcp_channel:settings()) ->
    {ok, pid(), handle()} | {error, {bad_option, Key :: term(), Expected :: binary()} | term()}.
open(Target, #{options := Options} = Settings) ->
    Module = transport(Target),
    maybe
        {ok, Checked} ?= Module:target(Target),
        ok ?= erlmcp_client_options:first_wrong(Options, fun Module:option/2),
        started(Module, Checked, Settings)
    end.

transport({stdio, _}) -> erlmcp_stdio_channel;
transport({tcp, _, _}) -> erlmcp_tcp_channel;
transport({server, _}) -> erlmcp_memory_channel.

started(Module, Target, Settings) ->
    Unsent = atomics:new(1, [{signed, true}]),
    %% A command and an environment may have secrets, which a fun hides from logs.
    Given = fun() -> {Module, Target, Settings, Unsent} end,
    %% The process links itself later: a gen_server logs a crash of its parent as a crash of its
    %% own.
    case gen_server:start(?MODULE, {self(), Given}, []) of
        {ok, Pid} -> {ok, Pid, {Pid, Unsent}};
        {error, _} = Error -> Error
    end.

-doc """
Queues a message, and does not wait. The error is `{overload, Bytes}` if more than 16 MiB of lines
would be unsent.

The exchange fails with `{closed, unprocessed}` if the connection `generation`, which the message
must go to, is not up. It fails with `{connect, Why}` if no connection can be opened, and with
`timeout` if the deadline passes before the line is written. A request or a stream fails with
`{overload, Limit}` if too many exchanges are open. It fails with `{protocol, What}` if another one
has its id or token.
""".
-spec send(erlmcp_channel:outgoing(), handle()) ->
    {ok, exchange()} | {error, erlmcp_channel:reason()}.
send(#{kind := Kind, id := Id, message := Message, deadline := Deadline} = Outgoing,
     {Pid, Unsent}) ->
    Line = iolist_to_binary([Message, $\n]),
    maybe
        ok ?= reserve(Line, Unsent),
        Ref = monitor(process, Pid, [{alias, explicit_unalias}]),
        Exchange = #{pid => self(), kind => Kind, id => Id,
                     token => maps:get(token, Outgoing, none), deadline => Deadline},
        Pid ! {send, Ref, Exchange, maps:get(generation, Outgoing, any), Line},
        {ok, {Pid, Ref, 0}}
    end.

%% Counts a line that waits to be written. A line of any size may wait if no other does.
reserve(Line, Unsent) ->
    Size = size_of(Line),
    case atomics:add_get(Unsent, 1, Size) of
        Waiting when Waiting > ?UNSENT, Waiting > Size ->
            ok = atomics:sub(Unsent, 1, Size),
            {error, {overload, ?UNSENT}};
        _ ->
            ok
    end.

release(Line, Unsent) ->
    atomics:sub(Unsent, 1, size_of(Line)).

size_of(Line) ->
    byte_size(Line) + ?OVERHEAD.

-doc """
Returns the events that a message has for the exchange; `other` if the message does not belong to
the exchange.
""".
-spec received(term(), exchange()) -> {[erlmcp_channel:event()], exchange()} | other.
received({Ref, {message, Message} = Event, Bytes}, {Pid, Ref, Received}) ->
    _ = is_response(Message) andalso over(Ref),
    {[Event], {Pid, Ref, Received + Bytes}};
received({Ref, Event}, {_, Ref, _} = Exchange) ->
    over(Ref),
    {[Event], Exchange};
received({'DOWN', Ref, process, _, Why}, {_, Ref, _} = Exchange) ->
    over(Ref),
    {[{failed, {closed, Why}}], Exchange};
received(_, _) ->
    other.

is_response({response, _, _}) -> true;
is_response(_) -> false.

-doc "Returns how many bytes of messages the exchange has received until now.".
-spec received_bytes(exchange()) -> non_neg_integer().
received_bytes({_, _, Received}) ->
    Received.

over(Ref) ->
    _ = unalias(Ref),
    demonitor(Ref, [flush]).

-doc "Ends an exchange early. Returns `false`, since the server is not told.".
-spec abort(exchange()) -> false.
abort({Pid, Ref, _}) ->
    over(Ref),
    forget(Ref),
    Pid ! {abort, Ref},
    false.

forget(Ref) ->
    receive
        {Ref, _} -> forget(Ref);
        {Ref, _, _} -> forget(Ref)
    after 0 ->
        ok
    end.

-doc "Does nothing: a session of a line channel ends with its connection.".
-spec leave(binary() | none, [{binary(), iodata()}], integer(), handle()) -> ok.
leave(_, _, _, _) ->
    ok.

-doc "Ends the channel in order, and waits for its end. Each transport bounds the time.".
-spec close(pid()) -> ok.
close(Pid) ->
    Monitor = monitor(process, Pid),
    unlink(Pid),
    Pid ! {close, self()},
    receive
        {'DOWN', Monitor, process, Pid, _} -> ok
    end.

-doc false.
init({Owner, Given}) ->
    process_flag(trap_exit, true),
    true = link(Owner),
    {Module, Target, Settings, Unsent} = Given(),
    ok = erlmcp_label:set([erlmcp_channel | erlmcp_client_options:label(Target)]),
    Most = maps:get(calls, Settings, ?DEFAULT_CALLS)
        + maps:get(subscriptions, Settings, ?DEFAULT_SUBSCRIPTIONS),
    {ok, connect(#state{module = Module, target = Target, settings = Settings, owner = Owner,
                        unsent = Unsent, most = Most})}.

connect(#state{module = Module, target = Target, settings = Settings} = State) ->
    Channel = self(),
    Connector = spawn_link(fun() ->
        Channel ! {connected, self(), Module:connect(Target, Channel, Settings)}
    end),
    State#state{phase = connecting, connector = Connector}.

-doc false.
handle_call(_, _, State) ->
    {noreply, State}.

-doc false.
handle_cast(_, State) ->
    {noreply, State}.

-doc false.
handle_info({send, Ref, Exchange, Generation, Line}, State) ->
    {noreply, write_next(accept(Ref, Exchange, Generation, Line, State))};
handle_info({abort, Ref}, #state{exchanges = Exchanges} = State) ->
    case erlmcp_line_exchanges:remove(Ref, Exchanges) of
        {_, Rest} -> {noreply, State#state{exchanges = Rest}};
        none -> {noreply, State}
    end;
handle_info({written, Writer, Outcome}, #state{writer = Writer} = State) ->
    case Outcome of
        ok -> {noreply, write_next(written(State))};
        gone -> {noreply, State};
        {error, Why} -> {noreply, ended(Why, State)}
    end;
handle_info({timeout, Timer, write}, #state{writing = {Timer, _}} = State) ->
    {noreply, ended(write_timeout, State)};
handle_info({timeout, _, connect}, #state{phase = {paused, _}} = State) ->
    {noreply, connect(State)};
handle_info({connected, Connector, Outcome}, #state{connector = Connector} = State) ->
    {noreply, connected(Outcome, State#state{connector = undefined})};
handle_info({close, _}, State) ->
    {stop, normal, State};
handle_info({'EXIT', Owner, _}, #state{owner = Owner} = State) ->
    {stop, {shutdown, owner}, State};
handle_info({'EXIT', Connector, Reason}, #state{connector = Connector} = State) ->
    {noreply, connected({error, Reason}, State#state{connector = undefined})};
handle_info({'EXIT', Writer, Reason}, #state{writer = Writer} = State) ->
    {noreply, ended(Reason, State)};
handle_info({'DOWN', Monitor, process, _, _} = Message, #state{exchanges = Exchanges} = State) ->
    case erlmcp_line_exchanges:by_monitor(Monitor, Exchanges) of
        {ok, Ref} -> handle_info({abort, Ref}, State);
        none -> arrived(Message, State)
    end;
handle_info(Message, #state{owner = Owner} = State) ->
    %% Megabytes of lines may wait here, and the end of the channel does not wait for them.
    receive
        {close, _} -> {stop, normal, State};
        {'EXIT', Owner, _} -> {stop, {shutdown, owner}, State}
    after 0 ->
        arrived(Message, State)
    end.

connected({ok, Prepared}, #state{module = Module, settings = Settings} = State) ->
    case Module:activate(Prepared, Settings) of
        {ok, Connection} -> up(Connection, State);
        {error, Why} -> failed(Why, State)
    end;
connected({error, Why}, State) ->
    failed(Why, State).

up(Connection, #state{module = Module, target = Target, settings = #{limits := Limits}} = State) ->
    #state{owner = Owner, generation = Before} = State,
    Channel = self(),
    Generation = Before + 1,
    Writer = spawn_link(fun() ->
        ok = erlmcp_label:set([erlmcp_channel_writer, Channel]),
        writer(Module, Connection, Channel)
    end),
    Owner ! {erlmcp_channel, self(), {up, Generation}},
    write_next(State#state{
        phase = up, connection = Connection, writer = Writer, generation = Generation,
        since = erlmcp_clock:now_ms(),
        inbox = erlmcp_line_inbox:new({Owner, Channel}, Limits, Module:about(Target))}).

writer(Module, Connection, Channel) ->
    receive
        {write, Bytes} ->
            Channel ! {written, self(), Module:deliver(Bytes, Connection)},
            writer(Module, Connection, Channel)
    end.

%% The server could not be reached, so nothing was sent.
failed(Why, #state{owner = Owner} = State) ->
    Owner ! {erlmcp_channel, self(), {down, {connect, Why}}},
    pause(Why, fail_all(fun(_) -> {connect, Why} end, State)).

arrived(_, #state{phase = Phase} = State) when Phase =/= up ->
    {noreply, State};
arrived(Message, #state{module = Module, connection = Connection} = State) ->
    case Module:arrived(Message, Connection) of
        {data, Bytes, Next} -> {noreply, data(Bytes, State#state{connection = Next})};
        {ended, Why, Next} -> {noreply, ended(Why, State#state{connection = Next})};
        {ignore, Next} -> {noreply, State#state{connection = Next}};
        other -> {noreply, State}
    end.

data(Bytes, #state{exchanges = Exchanges, inbox = Inbox} = State) ->
    case erlmcp_line_inbox:push(Bytes, Exchanges, Inbox) of
        {too_large, _} = Reason ->
            ended(Reason, State);
        {Replies, Left, Next} ->
            write_next(lists:foldl(fun answer/2, State#state{exchanges = Left, inbox = Next},
                                   Replies))
    end.

%% A server that sends requests but does not read the answers gets no further ones.
answer(Reply, #state{unsent = Unsent} = State) ->
    Line = iolist_to_binary([Reply, $\n]),
    case reserve(Line, Unsent) of
        ok -> enqueue({own, Line}, State);
        {error, _} -> State
    end.

enqueue(Waiting, #state{queue = Queue} = State) ->
    State#state{queue = queue:in(Waiting, Queue)}.

accept(Ref, Exchange, Generation, Line, #state{phase = Phase, exchanges = Exchanges} = State) ->
    maybe
        ok ?= fits(Generation, State),
        ok ?= has_room(Exchange, State),
        {ok, Added} ?= erlmcp_line_exchanges:add(Ref, Exchange, Exchanges),
        ok ?= case Phase of
            {paused, Why} ->
                %% Removing it also removes its monitor.
                _ = erlmcp_line_exchanges:remove(Ref, Added),
                {connect, Why};
            _ ->
                ok
        end,
        #state{unwritten = Unwritten} = State,
        enqueue({Ref, Line}, State#state{exchanges = Added, unwritten = Unwritten#{Ref => true}})
    else
        Reason ->
            Ref ! {Ref, {failed, refused(Reason)}},
            unsent({Ref, Line}, State)
    end.

refused(taken) -> {protocol, ~"id or progress token: another exchange has it"};
refused(Reason) -> Reason.

fits(any, _) -> ok;
fits(Generation, #state{phase = up, generation = Generation}) -> ok;
fits(_, _) -> {closed, unprocessed}.

%% Notifications and responses may end exchanges in the server, so they are never refused.
has_room(#{kind := Kind}, _) when Kind =:= notification; Kind =:= response ->
    ok;
has_room(_, #state{exchanges = Exchanges, most = Most}) ->
    case erlmcp_line_exchanges:count(Exchanges) of
        Count when Count < Most -> ok;
        _ -> {overload, Most}
    end.

unsent({_, Line}, #state{unsent = Unsent} = State) ->
    ok = release(Line, Unsent),
    State.

write_next(#state{phase = up, writing = none, writer = Writer} = State) ->
    case take(0, [], State) of
        {[], Next} ->
            Next;
        {Taken, Next} ->
            Writer ! {write, [Line || {_, Line} <- Taken]},
            Next#state{writing = {erlang:start_timer(?WRITE_TIMEOUT, self(), write), Taken}}
    end;
write_next(State) ->
    State.

take(Size, Taken, #state{queue = Queue} = State) ->
    case queue:out(Queue) of
        {{value, {_, Line} = Waiting}, Rest} when Size =:= 0; Size + byte_size(Line) =< ?PIECE ->
            Next = State#state{queue = Rest},
            case is_wanted(Waiting, Next) of
                {true, Wanted} -> take(Size + byte_size(Line), [Waiting | Taken], Wanted);
                {false, Unwanted} -> take(Size, Taken, unsent(Waiting, Unwanted))
            end;
        _ ->
            {lists:reverse(Taken), State}
    end.

is_wanted({own, _}, State) ->
    {true, State};
is_wanted({Ref, _}, #state{exchanges = Exchanges, unwritten = Unwritten} = State) ->
    Next = State#state{unwritten = maps:remove(Ref, Unwritten)},
    Now = erlmcp_clock:now_ms(),
    case erlmcp_line_exchanges:find(Ref, Exchanges) of
        {ok, #{deadline := Deadline}} when Deadline >= Now -> {true, Next};
        {ok, _} -> {false, fail(Ref, timeout, Next)};
        none -> {false, Next}
    end.

written(#state{writing = {Timer, Taken}} = State) ->
    _ = erlang:cancel_timer(Timer),
    lists:foldl(fun sent/2, State#state{writing = none}, Taken).

sent({Ref, _} = Waiting, #state{exchanges = Exchanges} = State) ->
    Next = unsent(Waiting, State),
    case Ref =/= own andalso erlmcp_line_exchanges:find(Ref, Exchanges) of
        {ok, #{kind := Kind}} when Kind =:= notification; Kind =:= response ->
            {_, Rest} = erlmcp_line_exchanges:remove(Ref, Exchanges),
            Ref ! {Ref, sent},
            Next#state{exchanges = Rest};
        _ ->
            Next
    end.

fail(Ref, Reason, #state{exchanges = Exchanges, unwritten = Unwritten} = State) ->
    {_, Rest} = erlmcp_line_exchanges:remove(Ref, Exchanges),
    Ref ! {Ref, {failed, Reason}},
    State#state{exchanges = Rest, unwritten = maps:remove(Ref, Unwritten)}.

%% `Reason` is a fun that gets `true` if the line of the exchange was written, and returns the
%% reason for it.
fail_all(Reason, #state{exchanges = Exchanges, queue = Queue} = State) ->
    Failed = lists:foldl(fun(Ref, #state{unwritten = Unwritten} = Left) ->
                             fail(Ref, Reason(not is_map_key(Ref, Unwritten)), Left)
                         end, State, erlmcp_line_exchanges:all(Exchanges)),
    queue:fold(fun unsent/2, Failed#state{queue = queue:new(), unwritten = #{}}, Queue).

ended(Why, #state{module = Module, connection = Connection, owner = Owner} = State) ->
    ok = Module:drop(Connection),
    Reason = case Why of
        {too_large, _} -> Why;
        {connect, _} -> Why;
        _ -> {closed, Why}
    end,
    Owner ! {erlmcp_channel, self(), {down, Why}},
    Next = fail_all(fun(true) -> Reason; (false) -> {closed, unprocessed} end,
                    stop_writer(State)),
    Lasted = erlmcp_clock:now_ms() - State#state.since,
    Failures = case Lasted >= ?STEADY of
        true -> 0;
        false -> State#state.failures
    end,
    pause(Why, Next#state{connection = undefined, inbox = undefined, failures = Failures}).

stop_writer(#state{writer = Writer, writing = Writing} = State) ->
    unlink(Writer),
    exit(Writer, kill),
    Next = State#state{writer = undefined, writing = none},
    case Writing of
        none ->
            Next;
        {Timer, Taken} ->
            _ = erlang:cancel_timer(Timer),
            lists:foldl(fun unsent/2, Next, Taken)
    end.

pause(Why, #state{failures = Before} = State) ->
    Failures = Before + 1,
    Pause = erlmcp_client_backoff:after_failures(Failures, ?FIRST_PAUSE, ?LAST_PAUSE),
    _ = erlang:start_timer(Pause, self(), connect),
    State#state{phase = {paused, Why}, failures = Failures}.

-doc false.
terminate(_, #state{phase = up, module = Module, connection = Connection} = State) ->
    _ = fail_all(fun(_) -> {closed, stopped} end, stop_writer(State)),
    Module:finish(Connection);
terminate(_, #state{connector = Connector} = State) ->
    _ = fail_all(fun(_) -> {closed, stopped} end, State),
    _ = is_pid(Connector) andalso exit(Connector, kill),
    ok.

%% A command and an environment may have secrets.
-doc false.
format_status(Status) ->
    maps:map(fun(state, #state{module = Module, phase = Phase}) -> {Module, Phase};
                (message, _) -> hidden;
                (_, Value) -> Value
             end, Status).
