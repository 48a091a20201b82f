-module(erlmcp_httpc_sse_process).
-moduledoc """
The process of a client's stream of HTTP+SSE, the transport of 2024-11-05. Few servers have it, so
the process sleeps until it is asked to open the stream. Then it keeps the stream open, with a
growing pause between failures, and knows the URL for messages. It passes received messages to
exchanges (`m:erlmcp_httpc_sse_exchange`), as a line channel does.

A session is its stream: each opened stream is a generation of its own. The owner gets `up` and
`down` for streams that were not opened by `open/2`.

Source: specification 2024-11-05, "Transports / HTTP with SSE"; 2025-11-25, "Transports / Backwards
Compatibility".

Internal.
""".

-behaviour(gen_server).

-export([start_link/3, open/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, format_status/1]).

%% Milliseconds: the first pause after a failure, the longest, and the life of a stream whose end
%% does not count as a failure.
-define(FIRST_PAUSE, 100).
-define(LAST_PAUSE, 30_000).
-define(STEADY, 10_000).

-record(state, {
    owner :: pid(),
    %% The channel that messages to the owner name.
    channel :: pid(),
    route :: erlmcp_httpc_exchange:route(),
    connect_timeout :: pos_integer(),
    most :: pos_integer(),
    phase = idle :: idle | {opening, Timer :: reference()} | {up, Path :: binary()} | paused,
    %% The caller that waits for the stream being opened; without one, the owner is told.
    opener = none :: none | gen_server:from(),
    stream = none :: none | erlmcp_httpc_exchange:exchange(),
    generation = 0 :: non_neg_integer(),
    since = 0 :: integer(),
    failures = 0 :: non_neg_integer(),
    exchanges = erlmcp_line_exchanges:new() :: erlmcp_line_exchanges:exchanges(),
    inbox :: undefined | erlmcp_line_inbox:inbox()
}).

-doc "Starts the process for an owner and its channel. At most `Most` exchanges may be open.".
-spec start_link({Owner :: pid(), Channel :: pid()}, fun(() -> erlmcp_httpc_exchange:route()),
                 {ConnectTimeout :: pos_integer(), Most :: pos_integer()}) ->
    gen_server:start_ret().
start_link(Who, Route, Bounds) ->
    gen_server:start_link(?MODULE, {Who, Route, Bounds}, []).

-doc "Opens the stream, anew if there is one, and returns its generation.".
-spec open(pid(), Deadline :: integer()) ->
    {ok, Generation :: pos_integer()} | {error, erlmcp_channel:reason()}.
open(Pid, Deadline) ->
    try
        gen_server:call(Pid, open, max(0, Deadline - erlang:monotonic_time(millisecond)))
    catch
        exit:{timeout, _} -> {error, timeout}
    end.

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
    Deadline = erlang:monotonic_time(millisecond) + Timeout,
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
    %% The answers are dropped: this server asks more than its client takes.
    {_, Left, Next} = erlmcp_line_inbox:take(Data, Exchanges, Inbox),
    events(Events, State#state{exchanges = Left, inbox = Next});
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
                since = erlang:monotonic_time(millisecond),
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

%% The stream is over, or could not be opened.
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
    None = lists:foldl(fun(Ref, Left) ->
                           {_, Rest} = erlmcp_line_exchanges:remove(Ref, Left),
                           Ref ! {Ref, {failed, Reason}},
                           Rest
                       end, Exchanges, erlmcp_line_exchanges:all(Exchanges)),
    State#state{phase = idle, stream = none, exchanges = None, inbox = undefined}.

pause(#state{since = Since, failures = Before} = State) ->
    Now = erlang:monotonic_time(millisecond),
    Failures = case Since =/= 0 andalso Now - Since >= ?STEADY of
        true -> 0;
        false -> Before
    end,
    Pause = min(?LAST_PAUSE, ?FIRST_PAUSE bsl min(Failures, 16)),
    _ = erlang:start_timer(erlmcp_client_backoff:with_jitter(Pause), self(), open),
    State#state{phase = paused, failures = Failures + 1, since = Now}.

%% Headers are secrets.
-doc false.
format_status(Status) ->
    maps:map(fun(state, #state{phase = Phase}) -> Phase;
                (message, _) -> hidden;
                (_, Value) -> Value
             end, Status).
