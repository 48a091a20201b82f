-module(erlmcp_workers).
-moduledoc """
A pool of workers for handlers that need something scarce, such as a connection to a database. Each
worker serves one call at a time, and calls wait for a worker in their order. The pool's process
replaces a worker that has ended, or whose call has crashed or was killed. Each worker has a process
of its own, in which the funs `start` and `stop` run.

Internal.
""".

-behaviour(gen_server).

%% Costs little more than calls of functions, as the table does.
-compile({inline, [lent/3]}).

-export([is_options/1, start_link/3, borrow/3, give_back/2, pool/2, info/2, shared_name/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([loan/0, pool/0]).

%% A claim that the call took itself, or a loan by the process.
-opaque loan() :: {pool(), {taken, erlmcp_worker_table:claim()} | {lent, Monitor :: reference()}}.
-doc "A pool: its process, and the table of its workers.".
-type pool() :: {pid(), erlmcp_worker_table:seats()}.
%% Milliseconds, at first and at most, before a worker is started again that has ended or could not
%% be started.
-define(PAUSE, 100).
-define(LONGEST_PAUSE, 10_000).
%% Milliseconds that a worker may take to stop.
-define(STOP, 5_000).
%% Milliseconds between two updates of the monitored calls.
-define(LOOK, 500).

-doc """
Returns `true` if a term is valid as options of a pool: a map with `size`, 1 or more, and `start`, a
fun without arguments. It may have `stop`, a fun of one argument, and `queue`, 0 or more, but no
other key.
""".
-spec is_options(term()) -> boolean().
is_options(#{size := Size, start := Start} = Options) ->
    Queue = maps:get(queue, Options, 0),
    maps:keys(Options) -- [size, start, stop, queue] =:= []
        andalso is_integer(Size) andalso Size > 0 andalso is_function(Start, 0)
        andalso is_integer(Queue) andalso Queue >= 0
        andalso is_function(maps:get(stop, Options, fun stop/1), 1);
is_options(_) ->
    false.

-doc """
Starts the pool `Name` of an instance, and does not wait until its workers have started. A worker
that cannot be started is tried again later.
""".
-spec start_link(atom(), erlmcp:workers(), erlmcp_instance:instance()) -> gen_server:start_ret().
start_link(Name, Options, Instance) ->
    gen_server:start_link(?MODULE, {Name, Options, Instance}, []).

-doc """
Lends a worker of the pool `Name` to the calling process, and waits until one is free. The pool
takes the worker back if the caller ends before it gives the worker back.

Returns a refusal if the pool does not run, or has no worker and starts none. The call is refused,
too, if as many calls wait as the option `queue` allows, or if probably no worker will be free
before `Deadline`. `Deadline` is in monotonic milliseconds, and does not end the wait itself.
""".
-spec borrow(Name :: atom(), Deadline :: integer(), erlmcp_instance:instance()) ->
    {ok, loan(), Worker :: term()} | {error, erlmcp_refusal:refusal()}.
borrow(Name, Deadline, Instance) ->
    case pool(Name, Instance) of
        {ok, {Process, Seats} = Pool} ->
            try lent(Process, Seats, Deadline) of
                {error, _} = Refused -> Refused;
                {How, Worker} -> {ok, {Pool, How}, Worker}
            catch
                %% The pool restarts.
                error:badarg -> {error, unavailable()};
                exit:{_, {gen_server, call, _}} -> {error, unavailable()}
            end;
        gone ->
            {error, unavailable()}
    end.

lent(Process, Seats, Deadline) ->
    case erlmcp_worker_table:borrow(self(), Seats) of
        {ok, Claim, Worker} -> {{taken, Claim}, Worker};
        none -> gen_server:call(Process, {borrow, Deadline}, infinity)
    end.

-doc """
Gives a worker back to its pool. A `good` worker is lent again. The pool replaces a `doubtful`
worker, such as one whose call has crashed. Has no effect if the worker or the pool has ended.
""".
-spec give_back(loan(), good | doubtful) -> ok.
give_back({{Process, _}, {lent, Monitor}}, State) ->
    gen_server:cast(Process, {back, Monitor, State});
give_back({{Process, _}, {taken, Claim}}, doubtful) ->
    gen_server:cast(Process, {doubtful, Claim});
give_back({{Process, Seats}, {taken, Claim}}, good) ->
    try
        case erlmcp_worker_table:give_back(Claim, Seats) of
            true -> gen_server:cast(Process, lend);
            false -> ok
        end
    catch
        %% The pool has ended, and its workers with it.
        error:badarg -> ok
    end.

-doc """
Returns the pool `Name`, or `gone` if its server has ended or has not started the pool yet. The
process of the returned pool, and its table, may have ended.
""".
-spec pool(Name :: atom(), erlmcp_instance:instance()) -> {ok, pool()} | gone.
pool(Name, #{key := Key}) ->
    erlmcp_instance:find(shared_name(Name, Key)).

-doc "Returns the counts of the pool `Name`. All of them are 0 while the pool does not run.".
-spec info(Name :: atom(), erlmcp_instance:instance()) -> erlmcp:workers_info().
info(Name, Instance) ->
    None = #{size => 0, ready => 0, taken => 0, waiting => 0},
    Counts = case pool(Name, Instance) of
        {ok, {_, Seats}} ->
            try
                erlmcp_worker_table:counts(Seats)
            catch
                %% The table ends with its process.
                error:badarg -> None
            end;
        gone ->
            None
    end,
    Counts#{name => Name}.

-doc "Returns the name under which the pool `Name` of the server with the key `Key` is shared.".
-spec shared_name(Name :: atom(), Key :: reference()) -> term().
shared_name(Name, Key) ->
    {Key, workers, Name}.

-doc false.
init({Name, #{size := Size, start := Start} = Options, #{key := Key}}) ->
    process_flag(trap_exit, true),
    ok = erlmcp_label:set([?MODULE, Name], Key),
    Seats = erlmcp_worker_table:new(Size),
    _ = erlmcp_instance:share(shared_name(Name, Key), {self(), Seats}),
    Pool = #{name => Name, server => Key, size => Size, start => Start, seats => Seats,
             stop => maps:get(stop, Options, fun stop/1), queue => maps:get(queue, Options, 100),
             %% the seats of workers that start, or stop before a restart, and of the others; the
             %% waiting calls, oldest first, and their number; the loans to calls that had waited;
             %% and the monitors of claims that calls took themselves
             starting => #{}, ready => #{}, waiting => queue:new(), length => 0, lent => #{},
             watched => #{},
             %% milliseconds until a worker is started again
             pause => ?PAUSE},
    look_later(),
    {ok, lists:foldl(fun begun/2, Pool, lists:seq(1, Size))}.

stop(Worker) when is_pid(Worker) -> exit(Worker, shutdown);
stop(_) -> ok.

look_later() ->
    erlang:send_after(?LOOK, self(), look).

begun(Number, #{starting := Starting} = Pool) ->
    Pool#{starting := Starting#{start_worker(Pool) => Number}}.

-doc false.
handle_call({borrow, Deadline}, {Borrower, _} = From, Pool) ->
    #{waiting := Waiting, length := Length, seats := Seats} = Pool,
    maybe
        %% A worker may have become free since the call looked.
        0 ?= Length,
        {ok, Claim, Worker} ?= erlmcp_worker_table:take(Borrower, Seats),
        {reply, {{taken, Claim}, Worker}, Pool}
    else
        _ ->
            case waits(Deadline, Pool) of
                ok ->
                    Monitor = monitor(process, Borrower),
                    {noreply, wait(queue:in({Monitor, From}, Waiting), Length + 1, Pool)};
                {error, _} = Error ->
                    {reply, Error, Pool}
            end
    end.

%% Decides whether a call may wait.
waits(Deadline, #{length := Length, queue := Max, size := Size, seats := Seats} = Pool) ->
    Milliseconds = ceil(erlmcp_worker_table:used_ms(Seats) * (Length + 1) / Size),
    case {is_dead(Pool), Deadline - erlmcp_clock:now_ms()} of
        {true, _} ->
            {error, unavailable()};
        {false, _} when Length >= Max ->
            {error, erlmcp_refusal:new(queue_cap_exceeded, ~"too many calls wait for a worker",
                                       #{limit => Max, observed => Length + 1,
                                         retry_after_ms => max(1, Milliseconds)})};
        {false, Time} when Milliseconds > Time ->
            {error, erlmcp_refusal:new(backpressure_active,
                                       ~"no worker will be free before the deadline",
                                       #{retry_after_ms => Milliseconds})};
        {false, _} ->
            ok
    end.

%% The pool has no worker, and its last start has failed.
is_dead(#{starting := Starting, ready := Ready}) ->
    map_size(Starting) =:= 0 andalso map_size(Ready) =:= 0.

unavailable() ->
    erlmcp_refusal:new(dependency_unavailable, ~"a dependency of this call is not available now",
                       #{retry_after_ms => 1000}).

wait(Waiting, Length, Pool) ->
    Next = waiting(Waiting, Length, Pool),
    case Length of
        %% From now on calls tell the process when they give a worker back. The other calls that
        %% have a worker are monitored, and free workers are lent.
        1 -> lend(look(Next));
        _ -> Next
    end.

waiting(Waiting, Length, #{seats := Seats} = Pool) ->
    ok = erlmcp_worker_table:await(Length, Seats),
    Pool#{waiting := Waiting, length := Length}.

%% Gives free workers to waiting calls.
lend(#{length := Length, seats := Seats} = Pool) ->
    maybe
        true ?= Length > 0,
        {ok, Claim, Worker} ?= erlmcp_worker_table:take(self(), Seats),
        lend(give(Claim, Worker, Pool))
    else
        _ -> Pool
    end.

%% Gives a worker that the process has taken to a waiting call, or makes it free if none waits.
give(Claim, Worker, #{waiting := Waiting, length := Length, seats := Seats, lent := Lent} = Pool) ->
    case queue:out(Waiting) of
        {{value, {Monitor, From}}, Rest} ->
            gen_server:reply(From, {{lent, Monitor}, Worker}),
            Loan = {Claim, Worker, erlmcp_worker_table:now_us()},
            waiting(Rest, Length - 1, Pool#{lent := Lent#{Monitor => Loan}});
        {empty, _} ->
            ok = erlmcp_worker_table:leave(Claim, Seats),
            Pool
    end.

%% Monitors the calls that have a worker now, and no others.
look(#{seats := Seats, watched := Watched} = Pool) ->
    Taken = erlmcp_worker_table:taken(self(), Seats),
    maps:foreach(fun(_, Monitor) -> demonitor(Monitor, [flush]) end,
                 maps:without(maps:keys(Taken), Watched)),
    Watch = fun(Claim, Borrower) ->
        case Watched of
            #{Claim := Monitor} -> Monitor;
            #{} -> monitor(process, Borrower)
        end
    end,
    ok = erlmcp_worker_table:mend(Seats),
    Pool#{watched := maps:map(Watch, Taken)}.

-doc false.
handle_cast({back, Monitor, State}, #{lent := Lent} = Pool) ->
    case maps:take(Monitor, Lent) of
        {Loan, Others} ->
            true = demonitor(Monitor, [flush]),
            {noreply, returned(Loan, State, Pool#{lent := Others})};
        error ->
            %% The worker has ended.
            {noreply, Pool}
    end;
handle_cast({doubtful, Claim}, Pool) ->
    {noreply, doubtful(Claim, Pool)};
handle_cast(lend, Pool) ->
    {noreply, lend(Pool)}.

returned({Claim, Worker, Since}, State, #{seats := Seats} = Pool) ->
    ok = erlmcp_worker_table:used(Since, Seats),
    case State of
        good -> give(Claim, Worker, Pool);
        doubtful -> doubtful(Claim, Pool)
    end.

%% Stops a worker and starts another one, unless the worker has ended before.
doubtful(Claim, #{seats := Seats, ready := Ready, starting := Starting} = Pool) ->
    case erlmcp_worker_table:withdraw(Claim, Seats) of
        true ->
            Pid = erlmcp_worker_table:worker(Claim),
            {Number, Others} = maps:take(Pid, Ready),
            Pid ! stop,
            _ = erlang:send_after(?STOP, self(), {kill, Pid}),
            Pool#{ready := Others, starting := Starting#{Pid => Number}};
        false ->
            Pool
    end.

-doc false.
handle_info({ready, Pid, Worker}, #{starting := Starting} = Pool) when is_map_key(Pid, Starting) ->
    #{ready := Ready, seats := Seats} = Pool,
    {Number, Others} = maps:take(Pid, Starting),
    ok = erlmcp_worker_table:seat(Number, Pid, Worker, Seats),
    {noreply, lend(Pool#{starting := Others, ready := Ready#{Pid => Number}, pause := ?PAUSE})};
handle_info({'DOWN', Monitor, process, _, Reason}, #{lent := Lent} = Pool) when
    is_map_key(Monitor, Lent)
->
    {Loan, Others} = maps:take(Monitor, Lent),
    State = case Reason of
        normal -> good;
        _ -> doubtful
    end,
    {noreply, returned(Loan, State, Pool#{lent := Others})};
handle_info({'DOWN', Monitor, process, _, Reason}, Pool) ->
    #{watched := Watched, waiting := Waiting} = Pool,
    case [Claim || Claim := Other <- Watched, Other =:= Monitor] of
        [Claim] ->
            {noreply, dead(Claim, Reason, Pool#{watched := maps:remove(Claim, Watched)})};
        [] ->
            Others = queue:filter(fun({One, _}) -> One =/= Monitor end, Waiting),
            {noreply, waiting(Others, queue:len(Others), Pool)}
    end;
handle_info({'EXIT', Pid, Reason}, Pool) ->
    #{starting := Starting, ready := Ready, lent := Lent, seats := Seats} = Pool,
    case {Starting, Ready} of
        {#{Pid := Number}, _} ->
            {noreply, ended(Number, Reason, Pool#{starting := maps:remove(Pid, Starting)})};
        {_, #{Pid := Number}} ->
            %% A worker that ends during a loan is not given back.
            ok = erlmcp_worker_table:unseat(Number, Pid, Seats),
            Loans = #{Monitor => Loan || Monitor := {Claim, _, _} = Loan <- Lent,
                                         erlmcp_worker_table:worker(Claim) =/= Pid},
            Next = Pool#{ready := maps:remove(Pid, Ready), lent := Loans},
            {noreply, ended(Number, Reason, Next)};
        {_, _} ->
            {noreply, Pool}
    end;
handle_info({kill, Pid}, Pool) ->
    true = exit(Pid, kill),
    {noreply, Pool};
handle_info({start, Number}, Pool) ->
    {noreply, begun(Number, Pool)};
handle_info(look, Pool) ->
    look_later(),
    {noreply, lend(look(Pool))};
handle_info(_, Pool) ->
    {noreply, Pool}.

%% The call of a claim has ended.
dead(Claim, normal, #{seats := Seats} = Pool) ->
    _ = erlmcp_worker_table:is_taken(Claim, Seats)
        andalso erlmcp_worker_table:leave(Claim, Seats),
    lend(Pool);
dead(Claim, _, Pool) ->
    doubtful(Claim, Pool).

%% A worker that was stopped is replaced at once, one that ended by itself after a pause.
ended(Number, normal, Pool) ->
    begun(Number, Pool);
ended(Number, Reason, #{name := Name, server := Key, pause := Pause} = Pool) ->
    ok = erlmcp_log:report(warning, #{what => worker_ended, workers => Name, reason => Reason,
                                      again_in_ms => Pause}, Key),
    _ = erlang:send_after(Pause, self(), {start, Number}),
    refuse_waiting(Pool#{pause := min(?LONGEST_PAUSE, Pause * 2)}).

%% Refuses the waiting calls if the pool has no worker.
refuse_waiting(#{waiting := Waiting} = Pool) ->
    case is_dead(Pool) of
        true ->
            ok = lists:foreach(fun({Monitor, From}) ->
                true = demonitor(Monitor, [flush]),
                gen_server:reply(From, {error, unavailable()})
            end, queue:to_list(Waiting)),
            waiting(queue:new(), 0, Pool);
        false ->
            Pool
    end.

%% The process of a worker. The pool is sent `{ready, Pid, Worker}`; the process ends with the
%% worker, or with `{start, Reason}` where there is none, and when it is sent `stop`.
start_worker(#{name := Name, server := Key, start := Start, stop := Stop}) ->
    Pool = self(),
    spawn_link(fun() ->
        ok = erlmcp_label:set([erlmcp_worker, Name], Key),
        started(Start, Stop, Pool)
    end).

started(Start, Stop, Pool) ->
    process_flag(trap_exit, true),
    try Start() of
        {ok, Worker} ->
            _ = is_pid(Worker) andalso monitor(process, Worker),
            Pool ! {ready, self(), Worker},
            until_end(Worker, Stop, Pool);
        {error, Reason} ->
            exit({start, Reason});
        _ ->
            exit({start, bad_return})
    catch
        error:Reason:Stack -> exit({start, {Reason, Stack}});
        throw:Reason:Stack -> exit({start, {Reason, Stack}})
    end.

until_end(Worker, Stop, Pool) ->
    receive
        stop -> Stop(Worker);
        {'EXIT', Pool, _} -> Stop(Worker);
        {'DOWN', _, process, Worker, Reason} -> exit({worker, Reason});
        %% Other processes that the start has linked or monitored may end.
        _ -> until_end(Worker, Stop, Pool)
    end.
