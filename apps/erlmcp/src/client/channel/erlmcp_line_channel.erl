-module(erlmcp_line_channel).
-moduledoc """
A channel of one message a line, both ways: its process, and what the ways (TCP, the pipes of a
child, messages to a local server) have in common. The behaviour is what a way has of its own.

The process connects, and again with a growing pause when the connection ended; it reads, and it
knows which exchange waits for what (`m:erlmcp_line_inbox`). A second process writes, for a server
that does not read must not keep us from reading. Senders never wait: what they send is kept, within
`unsent_bytes`, until it can be written, and is left out if its sender has ended, aborted it, or
passed its deadline by then.

What is sent while a connection is being made waits for it. In the pause after a failure it fails at
once with `{connect, Why}`. When a connection ends, what was written fails with `{closed, Why}`, and
what was not with `{closed, unprocessed}`. The owner is told `{down, {connect, Why}}` of each
attempt that failed, too.

Internal.
""".

-export([open/3, send/2, received/2, abort/1, leave/4, close/1]).
-export([reserve/2, release/2]).

-export_type([handle/0, exchange/0, way/0, prepared/0]).

-opaque exchange() :: {pid(), erlmcp_line_exchanges:ref()}.
-type way() :: term().
-type prepared() :: term().

-doc "Reaches the server, at most within `connect_timeout`. Runs in a process that ends after it.".
-callback connect(Target :: term(), erlmcp_channel:settings()) ->
    {ok, prepared()} | {error, Why :: term()}.
-doc "Takes the connection over, in the channel's process; what it reads comes as messages.".
-callback activate(prepared(), erlmcp_channel:settings()) -> {ok, way()} | {error, Why :: term()}.
-doc "What a message to the channel's process means; `other` for one that is not the way's.".
-callback arrived(Message :: term(), way()) ->
    {data, binary(), way()} | {ended, Why :: term(), way()} | {ignore, way()} | other.
-doc "Writes, in the writer's process; may wait. `gone`: `arrived/2` will hear why it cannot.".
-callback deliver(iodata(), way()) -> ok | gone | {error, Why :: term()}.
-doc "Leaves the connection at once; what that takes longer goes on without us.".
-callback drop(way()) -> ok.
-doc "Ends the connection in order, and waits for that.".
-callback finish(way()) -> ok.
-doc "Whether an option of the way's own may have this value; what it may have otherwise.".
-callback option(Key :: term(), Value :: term()) -> true | Expected :: binary().
-doc "What logs say of the target; no secrets.".
-callback about(Target :: term()) -> map().

%% Bytes that may wait to be written, and what a message takes beside its own.
-define(UNSENT, 16_777_216).
-define(OVERHEAD, 128).

-opaque handle() :: {pid(), atomics:atomics_ref()}.

-doc """
Starts the channel of a way, whose options are `options`. As many exchanges may be open as `calls`
and `subscriptions` of the settings come to.
""".
-spec open(module(), Target :: term(), erlmcp_channel:settings()) ->
    {ok, pid(), handle()} | {error, {bad_option, Key :: term(), Expected :: binary()} | term()}.
open(Module, Target, #{options := Options} = Settings) ->
    Wrong = [{Key, Expected} || Key := Value <- Options,
                                Expected <- [Module:option(Key, Value)], Expected =/= true],
    case Wrong of
        [] -> started(Module, Target, Settings);
        [{Key, Expected} | _] -> {error, {bad_option, Key, Expected}}
    end.

started(Module, Target, Settings) ->
    Unsent = atomics:new(1, [{signed, true}]),
    %% Commands and environments have secrets: a fun hides them from logs.
    Given = fun() -> {Module, Target, Settings, Unsent} end,
    case erlmcp_line_channel_process:start(self(), Given) of
        {ok, Pid} -> {ok, Pid, {Pid, Unsent}};
        {error, _} = Error -> Error
    end.

-doc """
Sends. Beside what every channel knows, `token` is the progress token whose notifications belong to
the exchange, and `generation` the only connection that it may go to: on another one it would be
without the session that it needs, and fails with `{closed, unprocessed}`.
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
        {ok, {Pid, Ref}}
    end.

-doc "Counts a line that waits to be written. One may wait, whatever its size.".
-spec reserve(binary(), atomics:atomics_ref()) -> ok | {error, {overload, pos_integer()}}.
reserve(Line, Unsent) ->
    Size = size_of(Line),
    case atomics:add_get(Unsent, 1, Size) of
        Waiting when Waiting > ?UNSENT, Waiting > Size ->
            ok = atomics:sub(Unsent, 1, Size),
            {error, {overload, ?UNSENT}};
        _ ->
            ok
    end.

-doc "It waits no more.".
-spec release(binary(), atomics:atomics_ref()) -> ok.
release(Line, Unsent) ->
    atomics:sub(Unsent, 1, size_of(Line)).

size_of(Line) ->
    byte_size(Line) + ?OVERHEAD.

-doc "What a message means for an exchange.".
-spec received(term(), exchange()) -> {[erlmcp_channel:event()], exchange()} | other.
received({Ref, {message, {response, _, _}} = Event}, {_, Ref} = Exchange) ->
    over(Ref),
    {[Event], Exchange};
received({Ref, {message, _} = Event}, {_, Ref} = Exchange) ->
    {[Event], Exchange};
received({Ref, Event}, {_, Ref} = Exchange) ->
    over(Ref),
    {[Event], Exchange};
received({'DOWN', Ref, process, _, Why}, {_, Ref} = Exchange) ->
    over(Ref),
    {[{failed, {closed, Why}}], Exchange};
received(_, _) ->
    other.

over(Ref) ->
    _ = unalias(Ref),
    demonitor(Ref, [flush]).

-doc "Ends an exchange; `false`, for the server does not learn of it.".
-spec abort(exchange()) -> false.
abort({Pid, Ref}) ->
    over(Ref),
    forget(Ref),
    Pid ! {abort, Ref},
    false.

forget(Ref) ->
    receive
        {Ref, _} -> forget(Ref)
    after 0 ->
        ok
    end.

-doc "Nothing: a session of a line channel ends with its connection.".
-spec leave(binary() | none, [{binary(), iodata()}], integer(), handle()) -> ok.
leave(_, _, _, _) ->
    ok.

-doc "Ends the channel in order, and waits for that: the way has its bounds.".
-spec close(pid()) -> ok.
close(Pid) ->
    Monitor = monitor(process, Pid),
    unlink(Pid),
    Pid ! {close, self()},
    receive
        {'DOWN', Monitor, process, Pid, _} -> ok
    end.
