-module(erlmcp_chaos_journal).
-moduledoc """
Records what happens during a fault. The process receives the outcome of every request, the server's
events, and the marks of the fault's beginning and end. Times are those of
`erlang:monotonic_time/1`, in microseconds.

Detection is the first event or refusal with the fault's code after its injection. For a fault
without a code it is any event, refusal or failure. Recovery is the first reply after the end of the
fault that took no longer than replies took before it.
""".

-behaviour(gen_server).

-export([start_link/1, stop/1]).
-export([tap/2, outcome/5, event/3, mark/2, mark/3, steady/1, fact/3, await/3, report/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([report/0, awaited/0, round/0]).

-type awaited() :: detected | recovered | {answered, More :: pos_integer()}.
-type signal() :: {event, atom()} | {refused, integer()} | {failed, term()}.
-doc """
The record of one injection of the fault and of the time after it. A missing key means that the
event has not happened, or was not awaited.
""".
-type round() :: #{
    injected := integer(), detected => {integer(), signal()}, healed => integer(),
    probed => true,
    %% the first good reply of each source
    good => #{erlmcp_chaos_scenario:source() => integer()},
    %% the last request that was not good
    disturbed => integer()
}.
-type report() :: #{
    accounting := erlmcp_chaos_accounting:accounting(),
    %% microseconds, of the load before the fault
    earlier := #{count := non_neg_integer(), p50 => pos_integer(), p99 => pos_integer(),
                 max => pos_integer()},
    rounds := [round()], events := #{atom() => pos_integer()}, before := [signal()],
    facts := #{atom() => number()}
}.

%% The number of latencies before the fault that are kept.
-define(KEPT, 20_000).

-record(state, {
    code :: integer() | none,
    accounting = erlmcp_chaos_accounting:new(),
    phase = warming :: warming | steady | fault,
    latencies = [] :: [non_neg_integer()],
    kept = 0 :: non_neg_integer(),
    slowest = 0 :: non_neg_integer(),
    %% newest first
    rounds = [] :: [round()],
    events = #{} :: #{atom() => pos_integer()},
    %% errors before any fault was injected
    before = #{} :: #{signal() => []},
    facts = #{} :: #{atom() => number()},
    waiting = [] :: [{reference(), gen_server:from(), awaited()}]
}).

-doc "Starts a journal of the fault with the error code `Code`, linked to the caller.".
-spec start_link(Code :: integer() | none) -> {ok, pid()}.
start_link(Code) ->
    {ok, _} = gen_server:start_link(?MODULE, Code, []).

-doc "Stops the journal.".
-spec stop(pid()) -> ok.
stop(Journal) ->
    gen_server:stop(Journal).

-doc "Returns a process for the `observer` of `m:erlmcp_load`. It records outcomes under `Source`.".
-spec tap(pid(), erlmcp_chaos_scenario:source()) -> pid().
tap(Journal, Source) ->
    spawn_link(fun() -> forward_outcomes(Journal, Source, monitor(process, Journal)) end).

forward_outcomes(Journal, Source, Monitor) ->
    receive
        {erlmcp_load, Outcome, DueUs, DoneUs} ->
            ok = outcome(Journal, Source, Outcome, DueUs, DoneUs),
            forward_outcomes(Journal, Source, Monitor);
        {'DOWN', Monitor, process, Journal, _} ->
            ok
    end.

-doc """
Records the outcome of a request that was due at `DueUs` and ended at `DoneUs`, in monotonic
microseconds.
""".
-spec outcome(pid(), erlmcp_chaos_scenario:source(), erlmcp_chaos_accounting:outcome(),
              DueUs :: integer(), DoneUs :: integer()) -> ok.
outcome(Journal, Source, Outcome, DueUs, DoneUs) ->
    gen_server:cast(Journal, {outcome, Source, Outcome, DueUs, DoneUs}).

-doc "Records an event of the server, at a time in monotonic microseconds.".
-spec event(pid(), Event :: map(), AtUs :: integer()) -> ok.
event(Journal, Event, AtUs) ->
    gen_server:cast(Journal, {event, Event, AtUs}).

-doc "Starts to measure the latencies without a fault.".
-spec steady(pid()) -> ok.
steady(Journal) ->
    gen_server:call(Journal, steady).

-doc "Marks that the fault begins or has ended now. Returns the recorded time.".
-spec mark(pid(), inject | heal) -> integer().
mark(Journal, Mark) ->
    At = erlang:monotonic_time(microsecond),
    ok = mark(Journal, Mark, At),
    At.

-doc "Marks that the fault began or ended at `AtUs`.".
-spec mark(pid(), inject | heal, AtUs :: integer()) -> ok.
mark(Journal, Mark, At) ->
    gen_server:call(Journal, {mark, Mark, At}).

-doc "Records `Value` as the figure `Name` of the fault, for its result.".
-spec fact(pid(), atom(), number()) -> ok.
fact(Journal, Name, Value) ->
    gen_server:cast(Journal, {fact, Name, Value}).

-doc """
Waits until `Awaited` has happened in the newest round, or returns `timeout` after `Milliseconds`.
""".
-spec await(pid(), awaited(), Milliseconds :: non_neg_integer()) -> ok | timeout.
await(Journal, Awaited, Milliseconds) ->
    gen_server:call(Journal, {await, Awaited, Milliseconds}, infinity).

-doc "Returns everything that was recorded.".
-spec report(pid()) -> report().
report(Journal) ->
    gen_server:call(Journal, report, infinity).

-doc false.
init(Code) ->
    {ok, #state{code = Code}}.

-doc false.
handle_call(steady, _, State) ->
    {reply, ok, State#state{phase = steady}};
handle_call({mark, inject, At}, _, #state{rounds = Rounds} = State) ->
    {reply, ok, State#state{phase = fault, rounds = [#{injected => At} | Rounds]}};
handle_call({mark, heal, At}, _, #state{rounds = [Round | Rounds]} = State) ->
    {reply, ok, State#state{rounds = [Round#{healed => At} | Rounds]}};
handle_call({await, {answered, More}, Milliseconds}, From, State) ->
    wait({answered, answered(State) + More}, Milliseconds, From, State);
handle_call({await, Awaited, Milliseconds}, From, State) ->
    wait(Awaited, Milliseconds, From, State);
handle_call(report, _, State) ->
    {reply, report_of(State), State}.

wait(Awaited, Milliseconds, From, #state{waiting = Waiting} = State) ->
    case is_there(Awaited, State) of
        true ->
            {reply, ok, State};
        false ->
            Timer = erlang:start_timer(Milliseconds, self(), waiting),
            {noreply, State#state{waiting = [{Timer, From, Awaited} | Waiting]}}
    end.

answered(#state{accounting = Accounting}) ->
    maps:get(answered, erlmcp_chaos_accounting:counts(load, Accounting)).

is_there({answered, Count}, State) -> answered(State) >= Count;
is_there(detected, #state{rounds = [Round | _]}) -> is_map_key(detected, Round);
is_there(recovered, #state{rounds = [#{healed := _, good := Good} = Round | _]}) ->
    lists:all(fun(Source) -> is_map_key(Source, Good) end, sources_of(Round));
is_there(_, _) -> false.

sources_of(Round) ->
    [load | [probe || is_map_key(probed, Round)]].

-doc false.
handle_cast({outcome, Source, Outcome, DueUs, DoneUs}, State) ->
    #state{accounting = Accounting} = State,
    Counted = State#state{
        accounting = erlmcp_chaos_accounting:add(Source, Outcome, Accounting)},
    {noreply, answer_waiting(happened(Source, Outcome, DueUs, DoneUs, probed(Source, Counted)))};
handle_cast({event, #{event := Name} = Event, AtUs}, #state{events = Events} = State) ->
    Counted = State#state{events = maps:update_with(Name, fun(N) -> N + 1 end, 1, Events)},
    {noreply, answer_waiting(signal({event, Name}, code_of(Event), AtUs, Counted))};
handle_cast({fact, Name, Value}, #state{facts = Facts} = State) ->
    {noreply, State#state{facts = Facts#{Name => Value}}}.

%% In a scenario with probes, one of them must be answered, too.
probed(probe, #state{rounds = [Round | Rounds]} = State) ->
    State#state{rounds = [Round#{probed => true} | Rounds]};
probed(_, State) ->
    State.

%% Returns the code of the refusal that an event stands for.
code_of(#{event := slow_consumer}) -> 1055;
code_of(#{event := memory_full}) -> 1089;
code_of(#{event := processors_busy}) -> 1078;
code_of(#{event := breaker_opened}) -> 1086;
code_of(#{event := draining}) -> 1077;
code_of(#{event := incident}) -> 1079;
code_of(#{}) -> none.

happened(Source, answered, DueUs, DoneUs, State) ->
    good(Source, max(1, DoneUs - DueUs), DoneUs, State);
happened(Source, {refused, _, _} = Refused, _, DoneUs, State) ->
    Code = erlmcp_chaos_accounting:code(Refused),
    signal({refused, Code}, Code, DoneUs, disturbed(Source, DoneUs, State));
happened(Source, {Kind, Reason}, _, DoneUs, State) ->
    signal({Kind, Reason}, none, DoneUs, disturbed(Source, DoneUs, State)).

good(load, Latency, _, #state{phase = steady, kept = Kept} = State) when Kept < ?KEPT ->
    #state{latencies = Latencies, slowest = Slowest} = State,
    State#state{latencies = [Latency | Latencies], kept = Kept + 1,
                slowest = max(Slowest, Latency)};
good(Source, Latency, DoneUs, #state{slowest = Slowest, rounds = [Round | Rounds]} = State) when
    Source =/= fault
->
    case Round of
        #{healed := Healed} when DoneUs >= Healed, (Latency =< Slowest orelse Source =:= probe) ->
            Good = maps:get(good, Round, #{}),
            State#state{rounds = [Round#{good => maps:merge(#{Source => DoneUs}, Good)} | Rounds]};
        #{} ->
            disturbed(Source, DoneUs, State)
    end;
good(_, _, _, State) ->
    State.

disturbed(Source, DoneUs, #state{rounds = [#{healed := Healed} = Round | Rounds]} = State) when
    Source =/= fault, DoneUs >= Healed
->
    State#state{rounds = [Round#{disturbed => DoneUs} | Rounds]};
disturbed(_, _, State) ->
    State.

signal(Signal, _, _, #state{rounds = [], phase = steady, before = Before} = State) when
    map_size(Before) < 100
->
    State#state{before = Before#{Signal => []}};
signal(Signal, Code, AtUs, #state{code = Expected, rounds = [Round | Rounds]} = State) ->
    case Round of
        #{injected := Injected} when AtUs < Injected -> State;
        #{detected := {Earlier, _}} when Earlier =< AtUs -> State;
        #{} when Expected =:= none; Expected =:= Code ->
            State#state{rounds = [Round#{detected => {AtUs, Signal}} | Rounds]};
        #{} -> State
    end;
signal(_, _, _, State) ->
    State.

answer_waiting(#state{waiting = Waiting} = State) ->
    {There, Remaining} = lists:partition(
        fun({_, _, Awaited}) -> is_there(Awaited, State) end, Waiting),
    ok = lists:foreach(fun({Timer, From, _}) ->
                           _ = erlang:cancel_timer(Timer),
                           gen_server:reply(From, ok)
                       end, There),
    State#state{waiting = Remaining}.

-doc false.
handle_info({timeout, Timer, waiting}, #state{waiting = Waiting} = State) ->
    case lists:keytake(Timer, 1, Waiting) of
        {value, {_, From, _}, Remaining} ->
            gen_server:reply(From, timeout),
            {noreply, State#state{waiting = Remaining}};
        false ->
            {noreply, State}
    end;
handle_info(_, State) ->
    {noreply, State}.

report_of(#state{accounting = Accounting, rounds = Rounds, events = Events, before = Before,
                facts = Facts, latencies = Latencies, kept = Kept}) ->
    #{accounting => Accounting, rounds => lists:reverse(Rounds), events => Events,
      before => maps:keys(Before), facts => Facts,
      earlier => quantiles(Kept, lists:sort(Latencies))}.

quantiles(0, []) -> #{count => 0};
quantiles(Count, Sorted) ->
    At = fun(Percent) -> lists:nth(max(1, ceil(Count * Percent / 100)), Sorted) end,
    #{count => Count, p50 => At(50), p99 => At(99), max => lists:last(Sorted)}.
