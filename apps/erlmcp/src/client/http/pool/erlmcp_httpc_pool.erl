-module(erlmcp_httpc_pool).
-moduledoc """
The connections of a client to one origin: a process that opens and ends them, and the functions
by which calls take and give them back. Taking one that is free asks no process
(`m:erlmcp_httpc_pool_table`); the pool is asked where one has to be opened or waited for.

HTTP/1.1 carries one exchange at a time on a connection, and streams have connections of their
own; with HTTP/2 both share connections, up to the number of streams that the server allows. A
further connection is opened where those there are full. All are closed when they were idle for some
time.

A server that cannot be reached is left alone for a growing pause (`m:erlmcp_client_backoff`), and
who asks meanwhile is told why at once.

Who has a lease of one of gun's monitors its connection: gun does not answer what is sent to a
connection that has just ended; a socket is taken and given back with its lease
(`m:erlmcp_httpc_socket`). A lease is given back `broken` when what was begun on an HTTP/1.1
connection is not over, when its server said that it closes it, and when gun says of an HTTP/2
connection that it takes no more streams. One whose holder dies is found within a second.
""".

-behaviour(gen_server).

-export([start_link/1, handle/1, checkout/3, connection/1, protocol/1, owner/1, give_back/2]).
-export([info/1]).
-export([init/1, handle_continue/2, handle_call/3, handle_cast/2, handle_info/2, terminate/2,
         format_status/1]).

-export_type([options/0, handle/0, lease/0]).

-doc """
- `connections`: how many for calls, at most; 8
- `streams`: how many long streams, at most; 100
- `waiting`: how many calls may wait for a connection; 1000
- `idle_ms`: how long a connection may be idle; 30000
- `connect_timeout`: milliseconds for all of opening one; 10000
- `tls`: options of ssl, which take the place of those of `erlmcp_tls:client_options/2`
- `protocols`: what is offered over TLS. In the clear it is `[http2]` for HTTP/2 and everything else
  for HTTP/1.1
""".
-type options() :: #{
    origin := erlmcp_httpc_opening:origin(),
    connections => pos_integer(),
    streams => pos_integer(),
    waiting => pos_integer(),
    idle_ms => pos_integer(),
    connect_timeout => pos_integer(),
    tls => [ssl:tls_client_option()],
    protocols => [http | http2]
}.
-opaque handle() :: {pid(), erlmcp_httpc_pool_table:slots(), Waiting :: pos_integer()}.
-opaque lease() :: {erlmcp_httpc_pool_table:lease(), handle()}.

-define(DEFAULTS, #{connections => 8, streams => 100, waiting => 1000, idle_ms => 30_000,
                    connect_timeout => 10_000, tls => [], protocols => [http2, http]}).
%% Milliseconds between sweeps, at most.
-define(SWEEP, 1000).
%% Milliseconds to leave a server alone after its first failure, and at most.
-define(FIRST_PAUSE, 100).
-define(LONGEST_PAUSE, 10_000).
%% How long one waits while somebody else tries a server that could not be reached before.
-define(PATIENCE, 500).

-record(state, {
    slots :: erlmcp_httpc_pool_table:slots(),
    settings :: map(),
    fleet :: erlmcp_httpc_pool_connections:fleet(),
    calls = erlmcp_httpc_pool_waiters:new() :: erlmcp_httpc_pool_waiters:waiters(),
    streams = erlmcp_httpc_pool_waiters:new() :: erlmcp_httpc_pool_waiters:waiters(),
    next = 1 :: pos_integer(),
    failures = 0 :: non_neg_integer(),
    why :: term(),
    retry = none :: none | reference(),
    sweep = none :: none | reference()
}).

-doc "Starts a pool, without a connection. Options in a fun are in no report of a supervisor.".
-spec start_link(options() | fun(() -> options())) -> {ok, pid()}.
start_link(Options) when is_function(Options) ->
    start_link(Options());
start_link(Options) ->
    {ok, _} = gen_server:start_link(?MODULE, maps:merge(?DEFAULTS, Options), []).

-doc "What the other functions need; small.".
-spec handle(pid()) -> handle().
handle(Pool) ->
    gen_server:call(Pool, handle).

-doc """
A connection for one exchange of the calling process, or for one long stream. Waits until the
deadline, in milliseconds of `erlang:monotonic_time/1`, where all are taken.

`connect` is why the server could not be reached (`stopped`: the pool was), `overload` that as many
wait as may, or that there are as many streams as may be.
""".
-spec checkout(handle(), erlmcp_httpc_pool_table:kind(), Deadline :: integer()) ->
    {ok, lease()} | {error, {connect, term()} | {overload, pos_integer()} | timeout}.
checkout({Pool, Slots, Limit} = Handle, Kind, Deadline) ->
    try at_once(Kind, Slots, Limit) of
        {ok, Lease} ->
            {ok, {Lease, Handle}};
        {error, _} = Error ->
            Error;
        wait ->
            try gen_server:call(Pool, {wait, Kind, Deadline}, infinity) of
                {ok, Lease} -> {ok, {Lease, Handle}};
                {error, _} = Error -> Error
            catch
                exit:{_, {gen_server, call, _}} -> {error, {connect, stopped}}
            end
    catch
        %% The tables end with the pool.
        error:badarg -> {error, {connect, stopped}}
    end.

%% Nobody overtakes those who wait.
at_once(Kind, Slots, Limit) ->
    case erlmcp_httpc_pool_table:waiting(Kind, Slots) of
        0 when Kind =:= call ->
            case erlmcp_httpc_pool_table:claim(call, self(), Slots) of
                {ok, _} = Claimed -> Claimed;
                none -> refused(Slots)
            end;
        Waiting when Waiting >= Limit ->
            {error, {overload, Limit}};
        _ ->
            refused(Slots)
    end.

refused(Slots) ->
    case erlmcp_httpc_pool_table:refused(now_ms(), Slots) of
        {true, Why, _} ->
            case erlmcp_httpc_pool_table:open(Slots) of
                0 -> {error, {connect, Why}};
                _ -> wait
            end;
        false ->
            wait
    end.

-doc "Gun's process, for `gun:request/6` and its like; or the socket.".
-spec connection(lease()) -> erlmcp_httpc_pool_table:connection().
connection({Lease, _}) ->
    erlmcp_httpc_pool_table:connection(Lease).

-doc "What is spoken on the connection.".
-spec protocol(lease()) -> erlmcp_httpc_pool_table:protocol().
protocol({Lease, _}) ->
    erlmcp_httpc_pool_table:protocol(Lease).

-doc "The pool's process, whose a socket is that nobody has.".
-spec owner(lease()) -> pid().
owner({_, {Pool, _, _}}) ->
    Pool.

-doc "Gives a lease back, once.".
-spec give_back(lease(), reusable | broken) -> ok.
give_back({Lease, {Pool, Slots, _}}, How) ->
    try erlmcp_httpc_pool_table:release({Lease, How}, Slots) of
        tell -> gen_server:cast(Pool, {returned, erlmcp_httpc_pool_table:connection(Lease), How});
        ok -> ok
    catch
        %% The tables end with the pool.
        error:badarg -> ok
    end.

-doc """
How many connections can be taken, leases are out and calls and streams wait, and for how many more
milliseconds the server is left alone because it could not be reached.
""".
-spec info(handle()) -> #{open := non_neg_integer(), busy := non_neg_integer(),
                          waiting := non_neg_integer(), ejected := non_neg_integer()}.
info({_, Slots, _}) ->
    try numbers(Slots)
    catch
        %% The tables end with the pool.
        error:badarg -> #{open => 0, busy => 0, waiting => 0, ejected => 0}
    end.

numbers(Slots) ->
    Ejected = case erlmcp_httpc_pool_table:refused(now_ms(), Slots) of
        {true, _, Left} -> Left;
        false -> 0
    end,
    #{open => erlmcp_httpc_pool_table:open(Slots), busy => erlmcp_httpc_pool_table:busy(Slots),
      waiting => erlmcp_httpc_pool_table:waiting(call, Slots)
                 + erlmcp_httpc_pool_table:waiting(stream, Slots),
      ejected => Ejected}.

-doc false.
init(#{connections := Connections, streams := Streams} = Settings) ->
    %% An end of a connection is a message.
    _ = process_flag(trap_exit, true),
    Slots = erlmcp_httpc_pool_table:new(Connections, Streams),
    {ok, #state{slots = Slots, settings = Settings,
                fleet = erlmcp_httpc_pool_connections:new(Settings, Slots)}}.

-doc false.
handle_continue(progress, State) ->
    {noreply, settle(progress(State))}.

-doc false.
handle_call(handle, _, #state{slots = Slots, settings = #{waiting := Limit}} = State) ->
    {reply, {self(), Slots, Limit}, State};
handle_call({wait, Kind, Deadline}, From, State) ->
    case admitted(Kind, State) of
        ok ->
            {noreply, add(Kind, From, Deadline, State), {continue, progress}};
        {error, _} = Error ->
            {reply, Error, State}
    end;
handle_call(_, _, State) ->
    {reply, {error, unknown}, State}.

admitted(call, #state{slots = Slots, calls = Calls, settings = #{waiting := Limit}}) ->
    case erlmcp_httpc_pool_waiters:size(Calls) < Limit of
        true -> reachable(Slots);
        false -> {error, {overload, Limit}}
    end;
admitted(stream, #state{slots = Slots, streams = Waiters, settings = #{streams := Limit}}) ->
    Streams = erlmcp_httpc_pool_table:kind(stream, Slots),
    case Streams + erlmcp_httpc_pool_waiters:size(Waiters) < Limit of
        true -> reachable(Slots);
        false -> {error, {overload, Limit}}
    end.

reachable(Slots) ->
    case refused(Slots) of
        wait -> ok;
        {error, _} = Error -> Error
    end.

%% One caller may take all its time to try the server again; the others are not to lose theirs.
add(Kind, From, Deadline, #state{next = Number} = State) ->
    Until = case probing(State) of
        true -> min({Deadline, timeout}, {now_ms() + ?PATIENCE, {connect, State#state.why}});
        false -> {Deadline, timeout}
    end,
    Waiters = erlmcp_httpc_pool_waiters:add(From, Kind, Until, Number, waiters(Kind, State)),
    put_waiters(Kind, Waiters, State#state{next = Number + 1}).

probing(#state{failures = Failures, slots = Slots, fleet = Fleet}) ->
    Failures > 0 andalso erlmcp_httpc_pool_table:open(Slots) =:= 0
        andalso erlmcp_httpc_pool_connections:opening(Fleet) > 0.

-doc false.
handle_cast({returned, Gun, broken}, #state{fleet = Fleet} = State) ->
    {noreply, State#state{fleet = erlmcp_httpc_pool_connections:drain(Gun, Fleet)},
     {continue, progress}};
handle_cast({returned, _, reusable}, State) ->
    {noreply, State, {continue, progress}};
handle_cast(_, State) ->
    {noreply, State}.

-doc false.
handle_info({expired, Kind, Number, Error}, State) ->
    {noreply, settle(answer(Kind, Number, {error, Error}, State))};
handle_info({{left, Kind, Number}, _, process, _, _}, State) ->
    {noreply, settle(leave(Kind, Number, State))};
handle_info(sweep, #state{fleet = Fleet} = State) ->
    Swept = erlmcp_httpc_pool_connections:sweep(now_ms(), Fleet),
    {noreply, State#state{fleet = Swept, sweep = none}, {continue, progress}};
handle_info(retry, State) ->
    {noreply, State#state{retry = none}, {continue, progress}};
handle_info(Message, #state{fleet = Fleet} = State) ->
    case erlmcp_httpc_pool_connections:received(Message, Fleet) of
        {opened, Changed} ->
            ok = erlmcp_httpc_pool_table:admit(State#state.slots),
            {noreply, State#state{fleet = Changed, failures = 0}, {continue, progress}};
        {changed, Changed} ->
            {noreply, State#state{fleet = Changed}, {continue, progress}};
        {failed, Why, Changed} ->
            {noreply, failed(Why, State#state{fleet = Changed}), {continue, progress}};
        other ->
            {noreply, State}
    end.

-doc false.
terminate(_, #state{fleet = Fleet}) ->
    erlmcp_httpc_pool_connections:stop(Fleet).

%% Options of TLS may have a key and its password.
-doc false.
format_status(Status) ->
    maps:map(fun(state, #state{failures = Failures}) -> {?MODULE, Failures};
                (_, Value) -> Value
             end, Status).

failed(Why, #state{failures = Before, slots = Slots} = State) ->
    Failures = Before + 1,
    Pause = erlmcp_client_backoff:after_failures(Failures, ?FIRST_PAUSE, ?LONGEST_PAUSE),
    ok = erlmcp_httpc_pool_table:refuse(Why, now_ms() + Pause, Slots),
    left_alone(Why, Pause, State#state{failures = Failures, why = Why}).

%% Who waits for a connection that is there may get it yet.
left_alone(Why, Pause, #state{slots = Slots} = State) ->
    case erlmcp_httpc_pool_table:open(Slots) of
        0 -> answer_all({error, {connect, Why}}, State);
        _ -> retry_in(Pause, State)
    end.

answer_all(Answer, #state{calls = Calls, streams = Streams} = State) ->
    All = [{Kind, Number} || {Kind, Waiters} <- [{call, Calls}, {stream, Streams}],
                             Number <- erlmcp_httpc_pool_waiters:all(Waiters)],
    lists:foldl(fun({Kind, Number}, Acc) -> answer(Kind, Number, Answer, Acc) end, State, All).

%% Gives what is free to those who wait, and opens what they need.
progress(State) ->
    Served = serve(stream, serve(call, State)),
    Calls = erlmcp_httpc_pool_waiters:size(Served#state.calls),
    Streams = erlmcp_httpc_pool_waiters:size(Served#state.streams),
    case Calls + Streams of
        0 -> Served;
        _ -> grow(Calls, Streams, Served)
    end.

serve(Kind, #state{slots = Slots, fleet = Fleet} = State) ->
    %% Said before it is looked for a free one: who gives one back then tells.
    ok = erlmcp_httpc_pool_table:wait(Kind, erlmcp_httpc_pool_waiters:size(waiters(Kind, State)),
                                      Slots),
    case erlmcp_httpc_pool_waiters:first(waiters(Kind, State)) of
        none ->
            State;
        {Number, {Pid, _}} ->
            case erlmcp_httpc_pool_table:claim(erlmcp_httpc_pool_connections:range(Kind, Fleet),
                                               Pid, Slots) of
                {ok, _} = Claimed -> serve(Kind, answer(Kind, Number, Claimed, State));
                none -> State
            end
    end.

grow(Calls, Streams, #state{slots = Slots, fleet = Fleet} = State) ->
    case erlmcp_httpc_pool_table:refused(now_ms(), Slots) of
        {true, Why, Left} ->
            left_alone(Why, Left, State);
        false ->
            Most = case State#state.failures > 0 of
                true -> 1;
                false -> infinity
            end,
            case erlmcp_httpc_pool_connections:grow(#{call => Calls, stream => Streams}, Most,
                                                    Fleet) of
                {ok, Grown} -> State#state{fleet = Grown};
                {failed, Why, Grown} -> failed(Why, State#state{fleet = Grown})
            end
    end.

retry_in(Ms, #state{retry = none} = State) ->
    State#state{retry = erlang:send_after(Ms, self(), retry)};
retry_in(_, State) ->
    State.

answer(Kind, Number, Answer, State) ->
    case erlmcp_httpc_pool_waiters:remove(Number, waiters(Kind, State)) of
        {From, Rest} ->
            ok = gen_server:reply(From, Answer),
            put_waiters(Kind, Rest, State);
        none ->
            State
    end.

leave(Kind, Number, State) ->
    case erlmcp_httpc_pool_waiters:remove(Number, waiters(Kind, State)) of
        {_, Rest} -> put_waiters(Kind, Rest, State);
        none -> State
    end.

waiters(call, #state{calls = Waiters}) -> Waiters;
waiters(stream, #state{streams = Waiters}) -> Waiters.

put_waiters(call, Waiters, State) -> State#state{calls = Waiters};
put_waiters(stream, Waiters, State) -> State#state{streams = Waiters}.

%% After every change: the numbers that are seen from outside, and the next sweep. With nothing open
%% there is none.
settle(#state{slots = Slots, fleet = Fleet, settings = #{idle_ms := Idle}} = State) ->
    [ok = erlmcp_httpc_pool_table:wait(Kind, erlmcp_httpc_pool_waiters:size(waiters(Kind, State)),
                                       Slots)
     || Kind <- [call, stream]],
    case {State#state.sweep, erlmcp_httpc_pool_connections:size(Fleet)} of
        {none, Size} when Size > 0 ->
            After = min(?SWEEP, max(10, Idle div 2)),
            State#state{sweep = erlang:send_after(After, self(), sweep)};
        _ ->
            State
    end.

now_ms() ->
    erlang:monotonic_time(millisecond).
