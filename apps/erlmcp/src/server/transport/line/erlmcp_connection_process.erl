-module(erlmcp_connection_process).
-moduledoc """
The process of a line-framed connection. It takes the bytes that arrive, lets `erlmcp_connection`
answer, and writes the answers that are ready in one piece. The callbacks of the behaviour are what
differs between transports (sockets, pipes, messages). When the input ends, accepted requests are
answered before the process ends. When the transport is lost, the calls end.

Bytes of messages that have begun are counted (`m:erlmcp_unfinished_messages`). While there is no
room for more, nothing is read, if the transport can wait. A client whose message is refused gets
the refusal, and loses the connection unless its `ReceiveTimeout` is `infinity`.

Internal.
""".

-export([run/5]).
-export([resume/2]).

-export_type([transport/0]).

-type transport() :: term().

-doc """
Interprets a message to the connection's process, in that process:

- `{data, Bytes}`: bytes have arrived.
- `passive`: no more is delivered until `c:read_on/1`, so the module must export that callback.
- `end_of_input`: no more will arrive, and answers can still be written.
- `lost`: nothing can be written any more.
- `ignore`: the message has no effect.
- `other`: the message is not from the transport.
""".
-callback received(Message :: term(), transport()) ->
    {data, binary()} | passive | end_of_input | lost | ignore | other.
-doc """
Writes bytes. May wait for the client, as long as the transport allows. After an error the
connection ends.
""".
-callback write(transport(), iodata()) -> ok | {error, term()}.
-doc "Stops reading until `c:read_on/1`.".
-callback pause(transport()) -> ok.
-doc "Resumes reading after `c:pause/1`, or after `passive`.".
-callback read_on(transport()) -> ok.
-doc "Waits a moment for the client to read the last answer, before the transport is closed.".
-callback linger(transport()) -> ok.
-doc """
Closes the transport. Nothing more is written to it. Also called after `lost` and after an error of
`c:write/2`, when the transport may be closed already.
""".
-callback close(transport()) -> ok.

%% A transport without these functions cannot wait, and reads on.
-optional_callbacks([pause/1, read_on/1, linger/1]).

%% Messages that are taken from the mailbox before their answers are written.
-define(GATHER, 64).
%% If this many messages wait, the client does not wait for each answer.
-define(MANY, 16).

%% Every message passes here.
-compile({inline, [joined/2]}).

-record(shell, {
    module :: module(),
    transport :: transport(),
    parent :: pid(),
    connection :: erlmcp_connection:connection(),
    receive_timeout :: timeout(),
    timer :: undefined | reference(),
    input = open :: open | ended,
    busy = false :: boolean(),
    %% the counted bytes of messages that are not handled yet
    held = 0 :: non_neg_integer(),
    %% when the unfinished line began, in milliseconds; `infinity` is greater than any number
    begun = infinity :: integer() | infinity,
    paused = false :: boolean(),
    %% milliseconds without a message after which the process hibernates
    quiet_ms = erlmcp_hibernate_delay:first_ms() :: pos_integer()
}).

-doc """
Serves `Transport` with the callbacks of `Module`, in the calling process, until the connection
ends. The caller must do nothing after this call, since the process hibernates and loses its stack.
A message that has begun must arrive within `ReceiveTimeout` milliseconds. Otherwise its client gets
a refusal, and the connection ends. If `Parent` is linked to the calling process and ends, the
connection ends, and the process exits with the same reason.
""".
-spec run(Module :: module(), Transport :: transport(), Parent :: pid(),
          erlmcp_connection:connection(), ReceiveTimeout :: timeout()) -> ok.
run(Module, Transport, Parent, Connection, ReceiveTimeout) ->
    process_flag(trap_exit, true),
    %% Most connections never handle so much at once that an old heap would be worth its memory.
    ok = erlmcp_heap:slow_connection(true),
    loop(#shell{module = Module, transport = Transport, parent = Parent,
                receive_timeout = ReceiveTimeout, connection = Connection}).

loop(#shell{quiet_ms = Quiet} = Shell) ->
    receive
        Message -> handle(Message, Shell)
    after Quiet ->
        proc_lib:hibernate(?MODULE, resume, [erlmcp_clock:now_ms(), resting(busy(false, Shell))])
    end.

resting(#shell{connection = Connection} = Shell) ->
    ok = erlmcp_connection:rest(Connection),
    Shell.

busy(Busy, #shell{busy = Busy} = Shell) ->
    Shell;
busy(Busy, Shell) ->
    ok = erlmcp_heap:busy_connection(Busy),
    ok = erlmcp_heap:slow_connection(not Busy),
    Shell#shell{busy = Busy}.

-doc false.
-spec resume(Since :: integer(), #shell{}) -> ok.
resume(Since, #shell{quiet_ms = Quiet} = Shell) ->
    Slept = erlmcp_clock:now_ms() - Since,
    loop(Shell#shell{quiet_ms = erlmcp_hibernate_delay:next_ms(Quiet, Slept)}).

handle(Message, Shell) ->
    case gather(Message, {[], 0}, Shell, ?GATHER) of
        {lost, Next} -> stop(Next);
        {last, Ready, Next} -> say_last(Ready, Next);
        {Ready, Left, Next} when Left =< ?GATHER - ?MANY ->
            written(write(Ready, Next), busy(true, Next));
        {Ready, _, Next} ->
            written(write(Ready, Next), Next)
    end.

%% Messages that wait in the mailbox are handled before anything is written, up to `?GATHER` of them
%% and until enough bytes are ready.
gather({'EXIT', Parent, Reason}, Ready, #shell{parent = Parent} = Shell, _) ->
    _ = write(Ready, Shell),
    ok = stop(Shell),
    exit(Reason);
gather(Message, Ready, Shell, Left) ->
    case step(Message, Shell) of
        lost ->
            {lost, Shell};
        {last, Bytes, Next} ->
            {last, joined(Ready, Bytes), Next};
        {Bytes, Next} ->
            More = {_, Size} = joined(Ready, Bytes),
            more(Left > 0 andalso Size < erlmcp_connection:ready_bytes(), More, Next, Left)
    end.

joined({Out, Size}, Bytes) ->
    {[Out, Bytes], Size + iolist_size(Bytes)}.

more(true, Ready, Shell, Left) ->
    receive
        Message -> gather(Message, Ready, Shell, Left - 1)
    after 0 ->
        {Ready, Left, Shell}
    end;
more(false, Ready, Shell, Left) ->
    {Ready, Left, Shell}.

step({timeout, Timer, receive_timeout}, #shell{timer = Timer, connection = Connection} = Shell) ->
    {last, erlmcp_connection:receive_timeout(Connection), Shell};
step({erlmcp_unfinished_messages, {unfinished, Verdict}}, Shell) ->
    verdict(Verdict, Shell);
step(Message, #shell{module = Module, transport = Transport, connection = Connection} = Shell) ->
    case Module:received(Message, Transport) of
        {data, Bytes} ->
            case erlmcp_connection:data(Bytes, Connection) of
                {stranger, Out, Next} ->
                    {last, Out, Shell#shell{connection = Next}};
                {Input, Out, Next} ->
                    answered({Out, Next}, timer(Input, counted(Input, Next, Shell)))
            end;
        end_of_input ->
            {_, Next} = Answer = erlmcp_connection:end_of_input(Connection),
            answered(Answer, timer(complete, counted(complete, Next, Shell#shell{input = ended})));
        lost ->
            lost;
        passive ->
            _ = Shell#shell.paused orelse Module:read_on(Transport),
            {[], Shell};
        ignore ->
            {[], Shell};
        other ->
            {_, Next} = Answer = erlmcp_connection:info(Message, Connection),
            answered(Answer, counted(unfinished, Next, Shell))
    end.

%% A message that arrives in one read is not counted, unless it waits. The age is that of the line
%% or request that arrived first.
counted(Input, Connection, #shell{held = Before} = Shell) ->
    case erlmcp_connection:held(Connection) of
        {0, 0, _} when Before =:= 0 ->
            Shell;
        {Begun, Waiting, WaitingSince} ->
            #shell{begun = Since} = Next = begun(Begun, Input, Shell),
            held(Begun + Waiting, min(Since, WaitingSince), Next)
    end.

begun(0, _, Shell) ->
    Shell#shell{begun = infinity};
begun(_, Input, #shell{begun = Since} = Shell) when Input =:= started; Since =:= infinity ->
    Shell#shell{begun = erlmcp_clock:now_ms()};
begun(_, _, Shell) ->
    Shell.

held(Held, Since, #shell{held = Before, paused = Paused} = Shell) ->
    Next = Shell#shell{held = Held},
    case erlmcp_unfinished_messages:count(owner(), Before, Held, Since) of
        wait when not Paused -> paused(true, Next);
        ok when Held =:= 0, Paused -> paused(false, Next);
        _ -> Next
    end.

owner() ->
    {self(), erlmcp_unfinished_messages}.

%% An input that has ended need not be paused.
paused(Paused, #shell{input = ended} = Shell) ->
    Shell#shell{paused = Paused};
paused(true, Shell) ->
    ok = if_it_waits(pause, Shell),
    Shell#shell{paused = true};
paused(false, Shell) ->
    ok = if_it_waits(read_on, Shell),
    Shell#shell{paused = false}.

if_it_waits(Callback, #shell{module = Module, transport = Transport}) ->
    case erlang:function_exported(Module, Callback, 1) of
        true -> Module:Callback(Transport);
        false -> ok
    end.

verdict(go_on, #shell{paused = true} = Shell) ->
    {[], paused(false, Shell)};
verdict(go_on, Shell) ->
    {[], Shell};
verdict(refused, #shell{connection = Connection, receive_timeout = Timeout} = Shell) ->
    %% The refused message may have ended, and another one have begun.
    case erlmcp_unfinished_messages:is_refused(owner()) of
        true ->
            {Out, Next} = erlmcp_connection:give_up(Connection),
            {_, Freed} = Answer =
                answered({Out, Next}, timer(complete, counted(complete, Next, Shell))),
            case Timeout of
                infinity -> Answer;
                _ -> {last, Out, Freed}
            end;
        false ->
            {[], Shell}
    end.

timer(complete, #shell{timer = undefined} = Shell) ->
    Shell;
timer(unfinished, #shell{timer = Timer} = Shell) when Timer =/= undefined ->
    Shell;
timer(_, #shell{receive_timeout = infinity} = Shell) ->
    Shell;
timer(complete, #shell{timer = Timer} = Shell) ->
    _ = erlang:cancel_timer(Timer),
    Shell#shell{timer = undefined};
timer(_, #shell{timer = Timer, receive_timeout = Timeout} = Shell) ->
    _ = Timer =:= undefined orelse erlang:cancel_timer(Timer),
    Shell#shell{timer = erlang:start_timer(Timeout, self(), receive_timeout)}.

answered({Bytes, Connection}, Shell) ->
    {Bytes, Shell#shell{connection = Connection}}.

write({_, 0}, _) ->
    ok;
write({Out, _}, #shell{module = Module, transport = Transport}) ->
    Module:write(Transport, Out).

written({error, _}, Shell) ->
    stop(Shell);
written(ok, #shell{input = ended, connection = Connection} = Shell) ->
    case erlmcp_connection:busy(Connection) of
        true -> loop(Shell);
        false -> stop(Shell)
    end;
written(ok, Shell) ->
    loop(Shell).

%% Writes the last answer. The client must be able to read it even if it goes on sending.
say_last(Ready, Shell) ->
    case write(Ready, Shell) of
        ok -> ok = if_it_waits(linger, Shell);
        {error, _} -> ok
    end,
    stop(Shell).

stop(#shell{module = Module, transport = Transport, connection = Connection, held = Held}) ->
    ok = erlmcp_unfinished_messages:count(owner(), Held, 0),
    ok = erlmcp_connection:close(Connection),
    Module:close(Transport).
