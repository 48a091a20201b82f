-module(erlmcp_httpc_pool).
-moduledoc """
The pool of a client's connections to one origin. Its process opens and closes them. A call borrows
a free connection without asking a process (`m:erlmcp_httpc_pool_table`). The pool's process is
asked for each long stream, and if a call has to wait for a connection.

On HTTP/1.1 a connection carries one exchange at a time, and long streams have connections of their
own. On HTTP/2 calls and streams share connections, up to the number of streams that the server
allows. Idle connections are closed after `idle_ms`.

A message without a response, such as the answer to a question of the server, may be what a call
waits for. It uses a connection for calls if no call waits for one, and the pool has two more
connections for such messages.

If the server cannot be reached, no connection is tried during a pause, which grows with each
failure. If none is open, calls fail at once in this pause, with the reason.

Internal.
""".

-behaviour(gen_server).

-export([start_link/1, handle/1, checkout/4, connection/1, protocol/1, owner/1, outermost/1,
         give_back/2]).
-export([info/1]).
-export([init/1, handle_continue/2, handle_call/3, handle_cast/2, handle_info/2, terminate/2,
         format_status/1]).

-export_type([origin/0, options/0, handle/0, loan/0]).

-type origin() :: {http | https, Host :: binary() | string() | inet:ip_address(),
                   inet:port_number()}.
-doc """
Options of a pool, with their defaults.

- `origin`: the scheme, the host and the port of the server; it has no default
- `connections`: the most connections for calls; 8
- `streams`: the most long streams; 100
- `waiting`: the most calls that may wait for a connection, and the most messages; 1000
- `idle_ms`: milliseconds after which an idle connection is closed; 30000
- `connect_timeout`: milliseconds to open a connection; 10000
- `tls`: options of `m:ssl`, which override those of `erlmcp_tls:client_options/2`
- `protocols`: the protocols to offer over TLS, `[http2, http]`; in the clear, `[http2]` means
  HTTP/2 and any other value HTTP/1.1
""".
-type options() :: #{
    origin := origin(),
    connections => pos_integer(),
    streams => pos_integer(),
    waiting => pos_integer(),
    idle_ms => pos_integer(),
    connect_timeout => pos_integer(),
    tls => [ssl:tls_client_option()],
    protocols => [http | http2]
}.
-opaque handle() :: {pid(), erlmcp_httpc_pool_table:slots(), Waiting :: pos_integer()}.
-opaque loan() :: {erlmcp_httpc_pool_table:loan(), handle()}.

-define(DEFAULTS, #{connections => 8, streams => 100, waiting => 1000, idle_ms => 30_000,
                    connect_timeout => 10_000, tls => [], protocols => [http2, http]}).
%% The most milliseconds between two sweeps.
-define(SWEEP, 1000).
%% Milliseconds of the pause after the first failure, and of the longest pause.
-define(FIRST_PAUSE, 100).
-define(LONGEST_PAUSE, 10_000).
%% The connections for messages without a response, in addition to those for calls and streams.
-define(FOR_MESSAGES, 2).
%% The most milliseconds that a call waits while another one tries a server that could not be
%% reached before.
-define(PATIENCE, 500).

%% In the order in which they are served.
-define(KINDS, [call, message, stream]).

-type waiters() :: gb_trees:tree(pos_integer(), waiter()).
-type waiter() :: {from(), Monitor :: reference(), Timer :: reference()}.
%% A process that waits, and the alias that its answer is sent to.
-type from() :: {pid(), reference()}.

-record(state, {
    slots :: erlmcp_httpc_pool_table:slots(),
    settings :: map(),
    connections :: erlmcp_httpc_pool_connections:connections(),
    %% Those that wait, by a number that grows: the first one of its kind is served first.
    calls = gb_trees:empty() :: waiters(),
    streams = gb_trees:empty() :: waiters(),
    messages = gb_trees:empty() :: waiters(),
    next = 1 :: pos_integer(),
    failures = 0 :: non_neg_integer(),
    why :: term(),
    retry = none :: none | reference(),
    sweep = none :: none | reference()
}).

-doc """
Starts a pool without connections. The options may be a fun, so that a supervisor's reports do not
show them.
""".
-spec start_link(options() | fun(() -> options())) -> {ok, pid()}.
start_link(Options) when is_function(Options) ->
    start_link(Options());
start_link(Options) ->
    {ok, _} = gen_server:start_link(?MODULE, maps:merge(?DEFAULTS, Options), []).

-doc "Returns the handle for the other functions, a small term.".
-spec handle(pid()) -> handle().
handle(Pool) ->
    gen_server:call(Pool, handle).

-doc """
Lends a connection to the calling process, for one exchange or for one long stream; `give_back/2`
ends the loan. Waits while all connections are taken. The error is `timeout` after `Deadline`, in
milliseconds of `erlang:monotonic_time/1`.

`{connect, Why}` says why the server could not be reached. `{connect, stopped}` means that the pool
has ended. `{overload, Limit}` means that `Limit` calls wait already, or `Limit` messages, or that
`Limit` streams are open or wait. `cancelled` means that one of the messages of `caller` and
`cancel` (`t:erlmcp_channel:outgoing/0`) has come, before this call or while it waited.
""".
-spec checkout(handle(), erlmcp_httpc_pool_table:kind(), Deadline :: integer(),
               #{caller => reference(), cancel => reference()}) ->
    {ok, loan()} | {error, {connect, term()} | {overload, pos_integer()} | timeout | cancelled}.
checkout(Handle, Kind, Deadline, Ends) ->
    %% The process may have waited for a login, and heard nothing meanwhile.
    case map_size(Ends) > 0 andalso erlmcp_channel:is_given_up(Ends) of
        true -> {error, cancelled};
        false -> lent(Handle, Kind, Deadline, Ends)
    end.

lent({_, Slots, Limit} = Handle, Kind, Deadline, Ends) ->
    try at_once(Kind, Slots, Limit) of
        {ok, Loan} -> {ok, {Loan, Handle}};
        {error, _} = Error -> Error;
        wait -> wait(Kind, Deadline, Ends, Handle)
    catch
        %% The tables end with the pool.
        error:badarg -> {error, {connect, stopped}}
    end.

%% A free connection goes first to the processes that wait already.
at_once(stream, Slots, _) ->
    refused(Slots);
at_once(call, Slots, Limit) ->
    case erlmcp_httpc_pool_table:waiting(call, Slots) of
        0 ->
            claimed(call, Slots);
        Waiting when Waiting >= Limit ->
            {error, {overload, Limit}};
        _ ->
            refused(Slots)
    end;
at_once(message, Slots, _) ->
    case erlmcp_httpc_pool_table:waiting(call, Slots) of
        0 -> claimed(message, Slots);
        _ -> refused(Slots)
    end.

claimed(Kind, Slots) ->
    case erlmcp_httpc_pool_table:claim(Kind, self(), Slots) of
        {ok, _} = Claimed -> Claimed;
        none -> refused(Slots)
    end.

refused(Slots) ->
    case erlmcp_httpc_pool_table:refusal(erlmcp_clock:now_ms(), Slots) of
        {true, Why, _} ->
            case erlmcp_httpc_pool_table:open(Slots) of
                0 -> {error, {connect, Why}};
                _ -> wait
            end;
        false ->
            wait
    end.

wait(Kind, Deadline, Ends, {Pool, _, _} = Handle) ->
    Caller = maps:get(caller, Ends, none),
    Cancel = maps:get(cancel, Ends, none),
    Ref = monitor(process, Pool, [{alias, reply_demonitor}]),
    Pool ! {wait, {self(), Ref}, Kind, Deadline},
    receive
        {Ref, {ok, Loan}} -> {ok, {Loan, Handle}};
        {Ref, {error, _} = Error} -> Error;
        {'DOWN', Ref, process, _, _} -> {error, {connect, stopped}};
        {'DOWN', Caller, process, _, _} -> leave(Ref, Kind, Handle);
        {erlmcp_cancel, Cancel} -> leave(Ref, Kind, Handle)
    end.

%% Stops waiting. A connection that was lent in the meantime is given back.
leave(Ref, Kind, {Pool, _, _} = Handle) ->
    ok = try
        gen_server:call(Pool, {leave, {self(), Ref}, Kind}, infinity)
    catch
        exit:{_, {gen_server, call, _}} -> ok
    end,
    true = demonitor(Ref, [flush]),
    receive
        {Ref, {ok, Loan}} -> give_back({Loan, Handle}, reusable);
        {Ref, {error, _}} -> ok
    after 0 ->
        ok
    end,
    {error, cancelled}.

-doc """
Returns the connection of a loan: either gun's process, for `gun:request/6` and similar functions,
or the socket.
""".
-spec connection(loan()) -> erlmcp_httpc_pool_table:connection().
connection({Loan, _}) ->
    erlmcp_httpc_pool_table:connection(Loan).

-doc "Returns the protocol of the loan's connection.".
-spec protocol(loan()) -> erlmcp_httpc_pool_table:protocol().
protocol({Loan, _}) ->
    erlmcp_httpc_pool_table:protocol(Loan).

-doc "Returns the pool's process, which owns the sockets that are not lent.".
-spec owner(loan()) -> pid().
owner({_, {Pool, _, _}}) ->
    Pool.

-doc """
Returns the depth (`t:erlmcp_outbound_hosts:depth/0`) of the outermost address that the pool's
connections have reached. Returns `none` if they have reached no address yet.
""".
-spec outermost(handle()) -> erlmcp_outbound_hosts:depth() | none.
outermost({_, Slots, _}) ->
    erlmcp_httpc_pool_table:outermost(Slots).

-doc """
Gives a loan back; the caller does this once. `How` is `broken` if the connection must not be lent
again, and otherwise `reusable`.
""".
-spec give_back(loan(), How :: reusable | broken) -> ok.
give_back({Loan, {Pool, Slots, _}}, How) ->
    try erlmcp_httpc_pool_table:release({Loan, How}, Slots) of
        tell -> gen_server:cast(Pool, {returned, erlmcp_httpc_pool_table:connection(Loan), How});
        ok -> ok
    catch
        %% The tables end with the pool.
        error:badarg -> ok
    end.

-doc """
Returns the counts of a pool: usable connections (`open`), loans (`busy`), and waiting calls,
streams and messages (`waiting`). `ejected` is the milliseconds until an unreachable server is tried
again; 0 if the server may be tried now. All are 0 if the pool has ended.
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
    Ejected = case erlmcp_httpc_pool_table:refusal(erlmcp_clock:now_ms(), Slots) of
        {true, _, Pause} -> Pause;
        false -> 0
    end,
    #{open => erlmcp_httpc_pool_table:open(Slots), busy => erlmcp_httpc_pool_table:busy(Slots),
      waiting => lists:sum([erlmcp_httpc_pool_table:waiting(Kind, Slots) || Kind <- ?KINDS]),
      ejected => Ejected}.

-doc false.
init(#{connections := Connections, streams := Streams, origin := Origin} = Settings) ->
    {Scheme, Host, Port} = Origin,
    ok = erlmcp_label:set([?MODULE, Scheme, {Host, Port}]),
    %% The end of a connection's process comes as an exit message.
    _ = process_flag(trap_exit, true),
    Slots = erlmcp_httpc_pool_table:new(Connections, ?FOR_MESSAGES, Streams),
    Own = Settings#{messages => ?FOR_MESSAGES},
    {ok, #state{slots = Slots, settings = Settings,
                connections = erlmcp_httpc_pool_connections:new(Own, Slots)}}.

-doc false.
handle_continue(progress, State) ->
    {noreply, settle(progress(State))}.

-doc false.
handle_call(handle, _, #state{slots = Slots, settings = #{waiting := Limit}} = State) ->
    {reply, {self(), Slots, Limit}, State};
handle_call({leave, From, Kind}, _, State) ->
    Numbers = [Number || {Number, {Waiter, _, _}} <- gb_trees:to_list(waiters(Kind, State)),
                         Waiter =:= From],
    Left = lists:foldl(fun(Number, Acc) -> remove_waiter(Kind, Number, Acc) end, State, Numbers),
    {reply, ok, settle(Left)};
handle_call(_, _, State) ->
    {reply, {error, unknown}, State}.

admitted(stream, #state{slots = Slots, streams = Waiters, settings = #{streams := Limit}}) ->
    Streams = erlmcp_httpc_pool_table:count_loans(stream, Slots),
    case Streams + gb_trees:size(Waiters) < Limit of
        true -> reachable(Slots);
        false -> {error, {overload, Limit}}
    end;
admitted(Kind, #state{slots = Slots, settings = #{waiting := Limit}} = State) ->
    case gb_trees:size(waiters(Kind, State)) < Limit of
        true -> reachable(Slots);
        false -> {error, {overload, Limit}}
    end.

reachable(Slots) ->
    case refused(Slots) of
        wait -> ok;
        {error, _} = Error -> Error
    end.

%% The call that tries the server again may wait until its deadline; the others fail after a shorter
%% time.
add(Kind, {Pid, _} = From, Deadline, #state{next = Number} = State) ->
    {Until, Error} = case probing(State) of
        true -> min({Deadline, timeout},
                    {erlmcp_clock:now_ms() + ?PATIENCE, {connect, State#state.why}});
        false -> {Deadline, timeout}
    end,
    Monitor = monitor(process, Pid, [{tag, {caller_died, Kind, Number}}]),
    Timer = erlang:send_after(Until, self(), {expired, Kind, Number, Error}, [{abs, true}]),
    Waiters = gb_trees:insert(Number, {From, Monitor, Timer}, waiters(Kind, State)),
    put_waiters(Kind, Waiters, State#state{next = Number + 1}).

probing(#state{failures = Failures, slots = Slots, connections = Connections}) ->
    Failures > 0 andalso erlmcp_httpc_pool_table:open(Slots) =:= 0
        andalso erlmcp_httpc_pool_connections:opening(Connections) > 0.

-doc false.
handle_cast({returned, Gun, broken}, #state{connections = Connections} = State) ->
    {noreply, State#state{connections = erlmcp_httpc_pool_connections:drain(Gun, Connections)},
     {continue, progress}};
handle_cast({returned, _, reusable}, State) ->
    {noreply, State, {continue, progress}};
handle_cast(_, State) ->
    {noreply, State}.

-doc false.
handle_info({wait, From, Kind, Deadline}, State) ->
    case admitted(Kind, State) of
        ok ->
            {noreply, add(Kind, From, Deadline, State), {continue, progress}};
        {error, _} = Error ->
            ok = reply(From, Error),
            {noreply, State}
    end;
handle_info({expired, Kind, Number, Error}, State) ->
    {noreply, settle(answer(Kind, Number, {error, Error}, State))};
handle_info({{caller_died, Kind, Number}, _, process, _, _}, State) ->
    {noreply, settle(remove_waiter(Kind, Number, State))};
handle_info(sweep, #state{connections = Connections} = State) ->
    Swept = erlmcp_httpc_pool_connections:sweep(erlmcp_clock:now_ms(), Connections),
    {noreply, State#state{connections = Swept, sweep = none}, {continue, progress}};
handle_info(retry, State) ->
    {noreply, State#state{retry = none}, {continue, progress}};
handle_info(Message, #state{connections = Connections} = State) ->
    case erlmcp_httpc_pool_connections:received(Message, Connections) of
        {opened, Changed} ->
            ok = erlmcp_httpc_pool_table:admit(State#state.slots),
            {noreply, State#state{connections = Changed, failures = 0}, {continue, progress}};
        {changed, Changed} ->
            {noreply, State#state{connections = Changed}, {continue, progress}};
        {failed, Why, Changed} ->
            {noreply, failed(Why, State#state{connections = Changed}), {continue, progress}};
        other ->
            {noreply, State}
    end.

-doc false.
terminate(_, #state{connections = Connections}) ->
    erlmcp_httpc_pool_connections:stop(Connections).

%% Options of TLS may contain a key and its password.
-doc false.
format_status(Status) ->
    maps:map(fun(state, #state{failures = Failures}) -> {?MODULE, Failures};
                (_, Value) -> Value
             end, Status).

failed(Why, #state{failures = Before, slots = Slots} = State) ->
    Failures = Before + 1,
    Pause = erlmcp_client_backoff:after_failures(Failures, ?FIRST_PAUSE, ?LONGEST_PAUSE),
    ok = erlmcp_httpc_pool_table:refuse(Why, erlmcp_clock:now_ms() + Pause, Slots),
    back_off(Why, Pause, State#state{failures = Failures, why = Why}).

%% Waiting processes may still get another connection, if one is open.
back_off(Why, Pause, #state{slots = Slots} = State) ->
    case erlmcp_httpc_pool_table:open(Slots) of
        0 -> answer_all({error, {connect, Why}}, State);
        _ -> retry_in(Pause, State)
    end.

answer_all(Answer, State) ->
    All = [{Kind, Number} || Kind <- ?KINDS, Number <- gb_trees:keys(waiters(Kind, State))],
    lists:foldl(fun({Kind, Number}, Acc) -> answer(Kind, Number, Answer, Acc) end, State, All).

%% Lends free connections to the waiting processes, and opens more connections if they need them.
progress(State) ->
    Served = lists:foldl(fun serve/2, State, ?KINDS),
    Waiting = #{Kind => gb_trees:size(waiters(Kind, Served)) || Kind <- ?KINDS},
    case lists:sum(maps:values(Waiting)) of
        0 -> Served;
        _ -> grow(Waiting, Served)
    end.

serve(Kind, #state{slots = Slots, connections = Connections} = State) ->
    %% This number is written before the search for a free connection. So a process that gives one
    %% back later sees it, and tells the pool.
    ok = publish(Kind, State),
    case gb_trees:is_empty(waiters(Kind, State)) of
        true ->
            State;
        false ->
            {Number, {{Pid, _}, _, _}} = gb_trees:smallest(waiters(Kind, State)),
            Range = erlmcp_httpc_pool_connections:range(Kind, Connections),
            case erlmcp_httpc_pool_table:claim(Range, Pid, Slots) of
                {ok, _} = Claimed -> serve(Kind, answer(Kind, Number, Claimed, State));
                none -> State
            end
    end.

grow(Waiting, #state{slots = Slots, connections = Connections} = State) ->
    case erlmcp_httpc_pool_table:refusal(erlmcp_clock:now_ms(), Slots) of
        {true, Why, Pause} ->
            back_off(Why, Pause, State);
        false ->
            Most = case State#state.failures > 0 of
                true -> 1;
                false -> infinity
            end,
            case erlmcp_httpc_pool_connections:grow(Waiting, Most, Connections) of
                {ok, Grown} -> State#state{connections = Grown};
                {failed, Why, Grown} -> failed(Why, State#state{connections = Grown})
            end
    end.

retry_in(Ms, #state{retry = none} = State) ->
    State#state{retry = erlang:send_after(Ms, self(), retry)};
retry_in(_, State) ->
    State.

answer(Kind, Number, Answer, State) ->
    case remove(Kind, Number, State) of
        {From, Next} ->
            %% The answered process does not wait any more when it looks.
            ok = publish(Kind, Next),
            ok = reply(From, Answer),
            Next;
        none ->
            State
    end.

reply({_, Ref}, Answer) ->
    Ref ! {Ref, Answer},
    ok.

remove_waiter(Kind, Number, State) ->
    case remove(Kind, Number, State) of
        {_, Next} -> Next;
        none -> State
    end.

remove(Kind, Number, State) ->
    case gb_trees:take_any(Number, waiters(Kind, State)) of
        {{From, Monitor, Timer}, Rest} ->
            true = demonitor(Monitor, [flush]),
            _ = erlang:cancel_timer(Timer, [{async, true}, {info, false}]),
            {From, put_waiters(Kind, Rest, State)};
        error ->
            none
    end.

waiters(call, #state{calls = Waiters}) -> Waiters;
waiters(stream, #state{streams = Waiters}) -> Waiters;
waiters(message, #state{messages = Waiters}) -> Waiters.

put_waiters(call, Waiters, State) -> State#state{calls = Waiters};
put_waiters(stream, Waiters, State) -> State#state{streams = Waiters};
put_waiters(message, Waiters, State) -> State#state{messages = Waiters}.

%% Called after every change: publishes the numbers of waiting processes, and plans the next sweep,
%% if there are connections.
settle(#state{connections = Connections, settings = #{idle_ms := Idle}} = State) ->
    [ok = publish(Kind, State) || Kind <- ?KINDS],
    case {State#state.sweep, erlmcp_httpc_pool_connections:size(Connections)} of
        {none, Size} when Size > 0 ->
            After = min(?SWEEP, max(10, Idle div 2)),
            State#state{sweep = erlang:send_after(After, self(), sweep)};
        _ ->
            State
    end.

%% The number of waiting processes is in the table, which every process reads.
publish(Kind, #state{slots = Slots} = State) ->
    erlmcp_httpc_pool_table:wait(Kind, gb_trees:size(waiters(Kind, State)), Slots).
