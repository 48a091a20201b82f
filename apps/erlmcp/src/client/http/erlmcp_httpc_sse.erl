-module(erlmcp_httpc_sse).
-moduledoc """
The client of HTTP+SSE, the transport of 2024-11-05: a process that keeps a stream open after
`open/2`, and the exchanges of messages. The process that sends a message makes a POST request for
it; the answer comes on the stream.

A session ends with its stream, so each opened stream has a generation of its own. The owner gets
`down` at the end of a stream, and after each failure to open it again. It gets `up` when the stream
is open again.

Source: specification 2024-11-05, "Transports / HTTP with SSE"; 2025-11-25, "Transports / Backwards
Compatibility".

Internal.
""".

-behaviour(gen_server).

-export([start_link/3, open/2]).
-export([start/2, received/2, received_bytes/1, abort/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, format_status/1]).

-export_type([exchange/0, handle/0]).

%% Milliseconds: the pause after the first failure, the longest pause, and the least lifetime of a
%% stream whose end is not a failure.
-define(FIRST_PAUSE, 100).
-define(LAST_PAUSE, 30_000).
-define(STEADY, 10_000).

-record(state, {
    owner :: pid(),
    %% The channel's process, which messages to the owner name.
    channel :: pid(),
    route :: erlmcp_httpc_exchange:route(),
    connect_timeout :: pos_integer(),
    most :: pos_integer(),
    phase = idle :: idle | {opening, Timer :: reference()} | {up, Path :: binary()} | paused,
    %% The caller that waits until the stream is open; without one, the owner is told.
    opener = none :: none | gen_server:from(),
    stream = none :: none | erlmcp_httpc_exchange:exchange(),
    generation = 0 :: non_neg_integer(),
    %% The time since when the stream has been open; `none` after its end.
    since = none :: none | integer(),
    failures = 0 :: non_neg_integer(),
    exchanges = erlmcp_line_exchanges:new() :: erlmcp_line_exchanges:exchanges(),
    inbox :: undefined | erlmcp_line_inbox:inbox()
}).

-record(exchange, {
    process :: pid(),
    ref :: erlmcp_line_exchanges:ref(),
    generation :: pos_integer(),
    %% The POST request of the message; `taken` once the server has accepted it.
    post = taken :: taken | erlmcp_httpc_exchange:exchange(),
    %% A response that came on the stream before the POST was answered. The exchange goes on until
    %% then, since the POST still has its connection.
    response = none :: none | erlmcp_channel:event(),
    %% The bytes of the messages that have come on the stream.
    received = 0 :: non_neg_integer()
}).

-opaque exchange() :: #exchange{}.
-doc """
The process of the stream, and the route of the POST requests. In each POST request, the path that
the stream announces replaces the route's path.
""".
-type handle() :: {pid(), erlmcp_httpc_exchange:route()}.

-doc """
Starts the process, without a stream. The events `up` and `down` go to `Owner`, and name `Channel`
as their source. The fun returns the channel's route. At most `Most` exchanges may be open. The
connection for a stream, and then the stream's first event, may each take `ConnectTimeout`
milliseconds.
""".
-spec start_link({Owner :: pid(), Channel :: pid()}, fun(() -> erlmcp_httpc_exchange:route()),
                 {ConnectTimeout :: pos_integer(), Most :: pos_integer()}) ->
    gen_server:start_ret().
start_link(OwnerAndChannel, Route, Bounds) ->
    gen_server:start_link(?MODULE, {OwnerAndChannel, Route, Bounds}, []).

-doc """
Opens an HTTP+SSE stream at the channel's URL, in place of an earlier stream of the process. Waits
until the stream is open, at most until `Deadline`, in monotonic milliseconds. Returns the
generation of the stream. Each message for this stream must carry that generation. A stream that
ends later is opened again with a new generation, and the channel's owner is told. The error says
why the stream could not be opened, or is `timeout`. Exits if the process has ended.
""".
-spec open(pid(), Deadline :: integer()) ->
    {ok, Generation :: pos_integer()} | {error, erlmcp_channel:reason()}.
open(Pid, Deadline) ->
    try
        gen_server:call(Pid, open, max(0, Deadline - erlmcp_clock:now_ms()))
    catch
        exit:{timeout, _} -> {error, timeout}
    end.

-doc """
Sends a message to the session of the stream that has the message's `generation`. The events of the
exchange come to the calling process, in messages for `received/2`. Waits as
`erlmcp_httpc_exchange:start/2` does, and has the same errors.

In addition, `{closed, unprocessed}` may mean that the stream of this generation is not open.
`{overload, Limit}` may mean that `Limit` exchanges are open already. `{protocol, What}` may mean
that another exchange has the message's id or progress token.
""".
-spec start(erlmcp_channel:outgoing(), handle()) ->
    {ok, exchange()} | {error, erlmcp_channel:reason()}.
start(#{kind := Kind, id := Id, deadline := Deadline, generation := Generation} = Outgoing,
      {Pid, Route}) ->
    Ref = monitor(process, Pid, [{alias, explicit_unalias}]),
    Exchange = #{pid => self(), kind => Kind, id => Id, token => maps:get(token, Outgoing, none),
                 deadline => Deadline},
    Pid ! {open, Ref, Exchange, Generation},
    receive
        {Ref, {opened, Path}} ->
            post(Outgoing, Route#{path := Path},
                 #exchange{process = Pid, ref = Ref, generation = Generation});
        {Ref, {failed, Reason}} ->
            ok = over(Ref),
            {error, Reason};
        {'DOWN', Ref, process, _, _} ->
            ok = over(Ref),
            {error, {closed, unprocessed}}
    after max(0, Deadline - erlmcp_clock:now_ms()) ->
        ok = leave(Pid, Ref),
        {error, timeout}
    end.

%% The response of the POST only acknowledges the message. The answer comes on the stream.
post(#{kind := Kind} = Outgoing, Route, #exchange{process = Pid, ref = Ref} = X) ->
    Kept = maps:with([message, headers, deadline, caller, cancel], Outgoing),
    Taken = Kept#{kind => posted(Kind), id => none, session => none},
    case erlmcp_httpc_exchange:start(Taken, Route) of
        {ok, Post} when Kind =:= request; Kind =:= stream ->
            {ok, X#exchange{post = Post}};
        {ok, Post} ->
            ok = over(Ref),
            {ok, X#exchange{post = Post}};
        {error, _} = Error ->
            ok = leave(Pid, Ref),
            Error
    end.

%% The messages of a stream come on the stream of the session, so its POST is no stream.
posted(stream) -> request;
posted(Kind) -> Kind.

over(Ref) ->
    _ = unalias(Ref),
    true = demonitor(Ref, [flush]),
    ok.

leave(Pid, Ref) ->
    ok = over(Ref),
    ok = forget(Ref),
    Pid ! {abort, Ref},
    ok.

forget(Ref) ->
    receive
        {Ref, _} -> forget(Ref);
        {Ref, _, _} -> forget(Ref)
    after 0 ->
        ok
    end.

-doc """
Returns what a message of the mailbox means for the exchange: its new events, in order, and its next
state. Returns `other` if the message does not belong to the exchange.
""".
-spec received(term(), exchange()) -> {[erlmcp_channel:event()], exchange()} | other.
received({Ref, {message, _} = Event, Bytes}, #exchange{ref = Ref, received = Received} = X) ->
    stream_event(Event, X#exchange{received = Received + Bytes});
received({Ref, Event}, #exchange{ref = Ref} = X) ->
    stream_event(Event, X);
received({'DOWN', Ref, process, _, Why}, #exchange{ref = Ref} = X) ->
    stream_event({failed, {closed, Why}}, X);
received(_, #exchange{post = taken}) ->
    other;
received(Message, #exchange{post = Post} = X) ->
    case erlmcp_httpc_exchange:received(Message, Post) of
        {Events, Next} -> posted(Events, X#exchange{post = Next});
        other -> other
    end.

-doc "Returns how many bytes of messages the exchange has received until now.".
-spec received_bytes(exchange()) -> non_neg_integer().
received_bytes(#exchange{received = Received}) ->
    Received.

stream_event({message, {response, _, _}} = Event, #exchange{ref = Ref, post = Post} = X) ->
    ok = over(Ref),
    case Post of
        taken -> {[Event], X};
        _ -> {[], X#exchange{response = Event}}
    end;
stream_event({message, _} = Event, X) ->
    {[Event], X};
stream_event({failed, _} = Event, #exchange{ref = Ref} = X) ->
    ok = over(Ref),
    {[Event], unposted(X)}.

unposted(#exchange{post = taken} = X) ->
    X;
unposted(#exchange{post = Post} = X) ->
    _ = erlmcp_httpc_exchange:abort(Post),
    X#exchange{post = taken}.

posted([], X) ->
    {[], X};
posted([sent | _], #exchange{response = none} = X) ->
    {[sent], X#exchange{post = taken}};
posted([Event | _], #exchange{response = Response} = X) when
    Response =/= none, Event =:= sent orelse element(1, Event) =:= failed
->
    {[Response], X#exchange{post = taken, response = none}};
posted([{failed, {http, 404, _, _}} | _], #exchange{process = Pid, generation = G} = X) ->
    %% The server no longer knows the session of the stream, so the stream is useless.
    Pid ! {lost, G},
    failed({closed, unprocessed}, X);
posted([{failed, Reason} | _], X) ->
    failed(Reason, X);
posted([_ | Events], X) ->
    posted(Events, X).

failed(Reason, #exchange{process = Pid, ref = Ref} = X) ->
    ok = leave(Pid, Ref),
    {[{failed, Reason}], X#exchange{post = taken}}.

-doc "Ends an exchange early. Returns `false`, since the server is not told.".
-spec abort(exchange()) -> false.
abort(#exchange{process = Pid, ref = Ref} = X) ->
    _ = unposted(X),
    ok = leave(Pid, Ref),
    false.

-doc false.
init({{Owner, Channel}, Route, {ConnectTimeout, Most}}) ->
    ok = erlmcp_label:set([?MODULE, Owner]),
    {ok, #state{owner = Owner, channel = Channel, route = Route(), most = Most,
                connect_timeout = ConnectTimeout}, hibernate}.

-doc false.
handle_call(open, From, State) ->
    {noreply, opening((end_exchanges(renewed, State))#state{opener = From})}.

-doc false.
handle_cast(_, State) ->
    {noreply, State}.

-doc false.
handle_info({open, Ref, Exchange, Generation}, State) ->
    {noreply, accept(Ref, Exchange, Generation, State)};
handle_info({abort, Ref}, #state{exchanges = Exchanges} = State) ->
    case erlmcp_line_exchanges:remove(Ref, Exchanges) of
        {_, Rest} -> {noreply, State#state{exchanges = Rest}};
        none -> {noreply, State}
    end;
handle_info({lost, Generation}, #state{phase = {up, _}, generation = Generation} = State) ->
    {noreply, ended({closed, session_lost}, State)};
handle_info({timeout, Timer, endpoint}, #state{phase = {opening, Timer}} = State) ->
    {noreply, ended({connect, timeout}, State)};
handle_info({timeout, _, open}, #state{phase = paused} = State) ->
    {noreply, opening(State)};
handle_info({'DOWN', Monitor, process, _, _} = Message, #state{exchanges = Exchanges} = State) ->
    case erlmcp_line_exchanges:by_monitor(Monitor, Exchanges) of
        {ok, Ref} -> handle_info({abort, Ref}, State);
        none -> {noreply, arrived(Message, State)}
    end;
handle_info(Message, State) ->
    {noreply, arrived(Message, State)}.

arrived(_, #state{stream = none} = State) ->
    State;
arrived(Message, #state{stream = Stream} = State) ->
    case erlmcp_httpc_exchange:received(Message, Stream) of
        {Events, Next} -> events(Events, State#state{stream = Next});
        other -> State
    end.

opening(#state{route = Route, connect_timeout = Timeout} = State) ->
    Deadline = erlmcp_clock:now_ms() + Timeout,
    Outgoing = #{kind => stream, id => none, message => ~"", headers => [], session => none,
                 deadline => Deadline, named => true},
    case erlmcp_httpc_exchange:start(Outgoing, Route) of
        {ok, Stream} ->
            Timer = erlang:start_timer(Timeout, self(), endpoint),
            State#state{phase = {opening, Timer}, stream = Stream};
        {error, Reason} ->
            ended(Reason, State)
    end.

events([], State) ->
    State;
events([{failed, Reason} | _], State) ->
    ended(Reason, State#state{stream = none});
events([{named, ~"endpoint", Data} | Events], #state{phase = {opening, Timer}} = State) ->
    #state{route = #{path := Path, url := Url}} = State,
    case erlmcp_httpc_target:resolve_redirect(Data, Path, Url) of
        {ok, Endpoint} ->
            _ = erlang:cancel_timer(Timer),
            events(Events, up(Endpoint, State));
        _ ->
            ended({protocol, ~"event endpoint: expected a URL of the stream's origin"}, State)
    end;
events([{named, _, _} | _], #state{phase = {opening, _}} = State) ->
    ended({protocol, ~"events: expected endpoint as the first one"}, State);
events([{named, ~"message", Data} | Events], State) ->
    #state{exchanges = Exchanges, inbox = Inbox} = State,
    %% Refusals are dropped: this server sends more requests than its client reads.
    {_, Rest, Next} = erlmcp_line_inbox:take(Data, Exchanges, Inbox),
    events(Events, State#state{exchanges = Rest, inbox = Next});
events([_ | Events], State) ->
    events(Events, State).

up(Endpoint, #state{owner = Owner, channel = Channel, opener = Opener} = State) ->
    #state{generation = Before, route = #{limits := Limits, url := Url}} = State,
    Generation = Before + 1,
    ok = case Opener of
        none ->
            Owner ! {erlmcp_channel, Channel, {up, Generation}},
            ok;
        _ ->
            gen_server:reply(Opener, {ok, Generation})
    end,
    About = #{transport => sse, server => erlmcp_httpc_target:authority(Url)},
    State#state{phase = {up, Endpoint}, opener = none, generation = Generation,
                since = erlmcp_clock:now_ms(),
                inbox = erlmcp_line_inbox:new({Owner, Channel}, Limits, About)}.

accept(Ref, #{kind := Kind} = Exchange, Generation,
       #state{phase = {up, Path}, generation = Generation} = State) ->
    #state{exchanges = Exchanges, most = Most} = State,
    case Kind =:= request orelse Kind =:= stream of
        false ->
            Ref ! {Ref, {opened, Path}},
            State;
        true ->
            maybe
                true ?= erlmcp_line_exchanges:count(Exchanges) < Most,
                {ok, Added} ?= erlmcp_line_exchanges:add(Ref, Exchange, Exchanges),
                Ref ! {Ref, {opened, Path}},
                State#state{exchanges = Added}
            else
                Refused ->
                    Ref ! {Ref, {failed, refused(Refused, Most)}},
                    State
            end
    end;
accept(Ref, _, _, State) ->
    Ref ! {Ref, {failed, {closed, unprocessed}}},
    State.

refused(false, Most) -> {overload, Most};
refused(taken, _) -> {protocol, ~"id or progress token: another exchange has it"}.

%% The stream has ended, or could not be opened.
ended(Reason, #state{phase = Phase, opener = none, owner = Owner, channel = Channel} = State) ->
    Why = case {Phase, Reason} of
        {{up, _}, {closed, Closed}} -> Closed;
        {{up, _}, _} -> Reason;
        {_, {connect, _}} -> Reason;
        {_, _} -> {connect, Reason}
    end,
    Owner ! {erlmcp_channel, Channel, {down, Why}},
    pause(end_exchanges(Why, State));
ended(Reason, #state{opener = Opener} = State) ->
    gen_server:reply(Opener, {error, Reason}),
    end_exchanges(Reason, State#state{opener = none}).

end_exchanges(Why, #state{stream = Stream, exchanges = Exchanges} = State) ->
    _ = Stream =/= none andalso erlmcp_httpc_exchange:abort(Stream),
    Reason = case Why of
        {too_large, _} -> Why;
        _ -> {closed, Why}
    end,
    None = lists:foldl(fun(Ref, Open) ->
                           {_, Rest} = erlmcp_line_exchanges:remove(Ref, Open),
                           Ref ! {Ref, {failed, Reason}},
                           Rest
                       end, Exchanges, erlmcp_line_exchanges:all(Exchanges)),
    State#state{phase = idle, stream = none, exchanges = None, inbox = undefined}.

pause(#state{since = Since, failures = Before} = State) ->
    Failures = case Since =/= none andalso erlmcp_clock:now_ms() - Since >= ?STEADY of
        true -> 0;
        false -> Before
    end,
    Pause = min(?LAST_PAUSE, ?FIRST_PAUSE bsl min(Failures, 16)),
    _ = erlang:start_timer(erlmcp_client_backoff:with_jitter(Pause), self(), open),
    State#state{phase = paused, failures = Failures + 1, since = none}.

%% Headers are secrets.
-doc false.
format_status(Status) ->
    maps:map(fun(state, #state{phase = Phase}) -> Phase;
                (message, _) -> hidden;
                (_, Value) -> Value
             end, Status).
