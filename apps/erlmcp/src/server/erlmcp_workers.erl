-module(erlmcp_workers).
-moduledoc """
A pool of workers for handlers that need something scarce, such as a connection to a database. Each
worker serves one call at a time; calls wait for one in their order. The process lends them, and
starts one anew that has ended, or whose call was ended with it: nobody knows what state that is in.

What waits is bounded by `queue` and by the calls' own deadlines: who will not have a worker in time
is refused at once, as far as that can be told from how long workers were used lately.
""".

-behaviour(gen_server).

-export([start_link/3, borrow/3, give_back/2]).
-export([is_options/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([options/0, loan/0]).

-doc """
- `size`: the workers.
- `start`: makes one, see `t:erlmcp_worker:start/0`; it runs in a process that the worker may be
  linked to. `{error, Reason}`, or a crash, is tried again with a growing pause.
- `stop`: ends one; by default a worker that is a process is sent `shutdown`, and others nothing.
- `queue`: calls that may wait for a worker, 100.
""".
-type options() :: #{
    size := pos_integer(), start := erlmcp_worker:start(), stop => erlmcp_worker:stop(),
    queue => non_neg_integer()
}.
-opaque loan() :: {pid(), reference()}.
%% Milliseconds before a worker that could not be started, or has ended, is started again.
-define(PAUSE, 100).
-define(LONGEST_PAUSE, 10_000).
%% Milliseconds that a worker may take to stop.
-define(STOP, 5_000).
%% The weight of the newest loan in the mean time that a worker is used.
-define(WEIGHT, 0.2).

-doc "Whether these are options.".
-spec is_options(term()) -> boolean().
is_options(#{size := Size, start := Start} = Options) ->
    Queue = maps:get(queue, Options, 0),
    maps:keys(Options) -- [size, start, stop, queue] =:= []
        andalso is_integer(Size) andalso Size > 0 andalso is_function(Start, 0)
        andalso is_integer(Queue) andalso Queue >= 0
        andalso is_function(maps:get(stop, Options, fun stop/1), 1);
is_options(_) ->
    false.

-doc "Starts the pool of this name of an instance.".
-spec start_link(atom(), options(), erlmcp_instance:instance()) -> gen_server:start_ret().
start_link(Name, Options, Instance) ->
    gen_server:start_link(?MODULE, {Name, Options, Instance}, []).

-doc """
A worker for the calling process, which waits for it; `Deadline` is in monotonic milliseconds. It is
to be given back; if the process ends before, the pool sees to it.
""".
-spec borrow(Name :: atom(), Deadline :: integer(), erlmcp_instance:of_calls()) ->
    {ok, loan(), Worker :: term()} | {error, erlmcp_refusal:refusal()}.
borrow(Name, Deadline, Instance) ->
    Pool = erlmcp_instance:supervisor({workers, Name}, Instance),
    try gen_server:call(Pool, {borrow, Deadline}, infinity) of
        {lent, Monitor, Worker} -> {ok, {Pool, Monitor}, Worker};
        {error, Refusal} -> {error, Refusal}
    catch
        %% The pool begins anew.
        exit:{_, {gen_server, call, _}} -> {error, unavailable()}
    end.

-doc "Gives a worker back.".
-spec give_back(loan(), good | doubtful) -> ok.
give_back({Pool, Monitor}, State) ->
    gen_server:cast(Pool, {back, Monitor, State}).

-doc false.
init({Name, #{size := Size, start := Start} = Options, Instance}) ->
    process_flag(trap_exit, true),
    ok = erlmcp_instance:put_supervisor({workers, Name}, self(), Instance),
    Pool = #{name => Name, size => Size, start => Start,
             stop => maps:get(stop, Options, fun stop/1), queue => maps:get(queue, Options, 100),
             %% workers that start, or stop to start anew, are ready, and are lent; those that wait,
             %% oldest first
             starting => #{}, ready => [], lent => #{}, waiting => queue:new(),
             %% milliseconds that a worker is used, and until one is started again
             used => 0, pause => ?PAUSE},
    {ok, lists:foldl(fun(_, Next) -> begun(Next) end, Pool, lists:seq(1, Size))}.

stop(Worker) when is_pid(Worker) -> exit(Worker, shutdown);
stop(_) -> ok.

begun(#{start := Start, stop := Stop, starting := Starting} = Pool) ->
    Pool#{starting := Starting#{erlmcp_worker:start_link(Start, Stop) => true}}.

-doc false.
handle_call({borrow, _}, {Borrower, _}, #{ready := [{Pid, Worker} | Ready], lent := Lent} = Pool) ->
    Monitor = monitor(process, Borrower),
    {reply, {lent, Monitor, Worker},
     Pool#{ready := Ready, lent := Lent#{Monitor => {Pid, Worker, now_ms()}}}};
handle_call({borrow, Deadline}, {Borrower, _} = From, #{waiting := Waiting} = Pool) ->
    case waits(Deadline, Pool) of
        ok ->
            Monitor = monitor(process, Borrower),
            {noreply, Pool#{waiting := queue:in({Monitor, From}, Waiting)}};
        {error, _} = Error ->
            {reply, Error, Pool}
    end.

%% Whether a call may wait.
waits(Deadline, #{waiting := Waiting, queue := Max, size := Size, used := Used} = Pool) ->
    Length = queue:len(Waiting),
    Milliseconds = ceil(Used * (Length + 1) / Size),
    case {is_dead(Pool), Deadline - now_ms()} of
        {true, _} ->
            {error, unavailable()};
        {false, _} when Length >= Max ->
            {error, erlmcp_refusal:new(queue_cap_exceeded, ~"too many calls wait for a worker",
                                       #{limit => Max, observed => Length + 1,
                                         retry_after_ms => max(1, Milliseconds)})};
        {false, Left} when Milliseconds > Left ->
            {error, erlmcp_refusal:new(backpressure_active,
                                       ~"no worker will be free before the deadline",
                                       #{retry_after_ms => Milliseconds})};
        {false, _} ->
            ok
    end.

%% There is no worker, and the last one could not be started.
is_dead(#{starting := Starting, ready := Ready, lent := Lent}) ->
    map_size(Starting) =:= 0 andalso Ready =:= [] andalso map_size(Lent) =:= 0.

unavailable() ->
    erlmcp_refusal:new(dependency_unavailable, ~"what this call needs is not there now",
                       #{retry_after_ms => 1000}).

-doc false.
handle_cast({back, Monitor, State}, #{lent := Lent} = Pool) ->
    case Lent of
        #{Monitor := _} ->
            true = demonitor(Monitor, [flush]),
            {noreply, returned(Monitor, State, Pool)};
        #{} ->
            {noreply, Pool}
    end.

returned(Monitor, State, #{lent := Lent, used := Used} = Pool) ->
    {{Pid, Worker, Since}, Others} = maps:take(Monitor, Lent),
    Next = Pool#{lent := Others, used := Used + ?WEIGHT * (now_ms() - Since - Used)},
    case State of
        good ->
            lend(Pid, Worker, Next);
        doubtful ->
            ok = erlmcp_worker:stop(Pid),
            _ = erlang:send_after(?STOP, self(), {kill, Pid}),
            #{starting := Starting} = Next,
            Next#{starting := Starting#{Pid => true}}
    end.

lend(Pid, Worker, #{waiting := Waiting, ready := Ready, lent := Lent} = Pool) ->
    case queue:out(Waiting) of
        {{value, {Monitor, From}}, Rest} ->
            gen_server:reply(From, {lent, Monitor, Worker}),
            Pool#{waiting := Rest, lent := Lent#{Monitor => {Pid, Worker, now_ms()}}};
        {empty, _} ->
            Pool#{ready := [{Pid, Worker} | Ready]}
    end.

-doc false.
handle_info({ready, Pid, Worker}, #{starting := Starting} = Pool) when is_map_key(Pid, Starting) ->
    {noreply, lend(Pid, Worker, Pool#{starting := maps:remove(Pid, Starting), pause := ?PAUSE})};
handle_info({'DOWN', Monitor, process, _, Reason}, #{lent := Lent} = Pool) when
    is_map_key(Monitor, Lent)
->
    State = case Reason of
        normal -> good;
        _ -> doubtful
    end,
    {noreply, returned(Monitor, State, Pool)};
handle_info({'DOWN', Monitor, process, _, _}, #{waiting := Waiting} = Pool) ->
    {noreply, Pool#{waiting := queue:filter(fun({One, _}) -> One =/= Monitor end, Waiting)}};
handle_info({'EXIT', Pid, Reason}, Pool) ->
    {noreply, ended(Pid, Reason, Pool)};
handle_info({kill, Pid}, Pool) ->
    true = exit(Pid, kill),
    {noreply, Pool};
handle_info(start, Pool) ->
    {noreply, begun(Pool)};
handle_info(_, Pool) ->
    {noreply, Pool}.

%% One that ended by itself is started again after a pause, one that was stopped at once.
ended(Pid, Reason, #{name := Name, starting := Starting, ready := Ready, pause := Pause} = Pool) ->
    %% One that ends while it is lent is not given back.
    Lent = maps:filter(fun(_, {One, _, _}) -> One =/= Pid end, map_get(lent, Pool)),
    Left = Pool#{starting := maps:remove(Pid, Starting), ready := lists:keydelete(Pid, 1, Ready),
                 lent := Lent},
    case Reason of
        normal ->
            begun(Left);
        _ ->
            logger:warning(#{what => worker_ended, workers => Name, reason => Reason,
                             again_in_ms => Pause}),
            _ = erlang:send_after(Pause, self(), start),
            refuse_waiting(Left#{pause := min(?LONGEST_PAUSE, Pause * 2)})
    end.

%% Nobody waits for what is not there.
refuse_waiting(#{waiting := Waiting} = Pool) ->
    case is_dead(Pool) of
        true ->
            ok = lists:foreach(fun({Monitor, From}) ->
                true = demonitor(Monitor, [flush]),
                gen_server:reply(From, {error, unavailable()})
            end, queue:to_list(Waiting)),
            Pool#{waiting := queue:new()};
        false ->
            Pool
    end.

now_ms() ->
    erlang:monotonic_time(millisecond).
