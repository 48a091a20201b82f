-module(erlmcp_chaos_journal).
-moduledoc """
A process that records what happens during a fault: the outcome of every request, the server's
events, and the fault's beginning and end.

Detection is the first event or refusal with the fault's code after its injection. For a fault
without a code it is the first event, refusal, failure or wrong answer of any kind.

The load has recovered when a hundred of its requests in a row are answered as fast as before the
fault. Then their 99th percentile is at most 1.2 times the earlier one, or ten milliseconds if that
is longer. The load has recovered at the first of these hundred answers. The count begins again with
each later request that is not answered.
""".

-behaviour(gen_server).

-export([start_link/1, stop/1]).
-export([tap/2, outcome/5, event/3, mark/2, mark/3, steady/1, fact/3, seen/5, await/3, report/1]).
-export([recovered_at/1, answers/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([report/0, awaited/0, round/0]).

-type awaited() :: detected | recovered | {answered, More :: pos_integer()}.
-type signal() ::
    {event, atom()} | {refused, integer() | atom()} | {failed, term()} | {wrong, term()}.
-doc """
The record of one injection of the fault and of the time after it. All times are in monotonic
microseconds. A missing key means that the event has not happened.

- `detected` has the time of the detection, and the signal that showed the fault.
- `probed`: a probe has ended in this round.
- `good` is the time of the first good reply to a probe after the end of the fault.
- `settled` is the time at which the load has recovered.
""".
-type round() :: #{
    injected := integer(), detected => {integer(), signal()}, healed => integer(),
    probed => true,
    %% the first good reply of a probe, and the first of the replies that showed the load settled
    good => integer(), settled => integer()
}.
-type report() :: #{
    accounting := erlmcp_chaos_accounting:accounting(),
    %% microseconds, of the load before the fault; and how long a quick answer may take after it
    earlier := #{count := non_neg_integer(), quick := pos_integer(), p50 => pos_integer(),
                 p99 => pos_integer(), max => pos_integer()},
    rounds := [round()], events := #{atom() => pos_integer()}, before := [signal()],
    facts := #{atom() => number()},
    %% the worst of all rounds
    seen := #{Harm :: atom() => #{Figure :: atom() => {number(), erlmcp_chaos_verdict:limit()}}}
}.

%% Replies of the load that show it settled, and how many of them may be slow: the 99th percentile
%% is that of the others.
-define(WINDOW, 100).
-define(SLOW, 1).
%% An answer is as quick as before within this factor, or below this time in microseconds, where the
%% differences are noise.
-define(FACTOR, 1.2).
-define(NOISE_US, 10_000).

%% The number of latencies before the fault that are kept.
-define(KEPT, 20_000).

-record(state, {
    code :: integer() | none,
    accounting = erlmcp_chaos_accounting:new(),
    phase = warming :: warming | steady | fault,
    latencies = [] :: [non_neg_integer()],
    kept = 0 :: non_neg_integer(),
    quick = ?NOISE_US :: pos_integer(),
    %% the newest replies of the load after the newest fault: when, and whether it was slow
    window = queue:new() :: queue:queue({integer(), boolean()}),
    %% newest first
    rounds = [] :: [round()],
    events = #{} :: #{atom() => pos_integer()},
    %% errors before any fault was injected
    before = #{} :: #{signal() => []},
    facts = #{} :: #{atom() => number()},
    seen = #{} :: map(),
    waiting = [] :: [{reference(), gen_server:from(), awaited()}],
    taps = [] :: [pid()]
}).

-doc """
Starts a journal that is linked to the caller. `Code` is the code of the fault's refusals, or `none`
if the fault has no such code.
""".
-spec start_link(Code :: integer() | none) -> {ok, pid()}.
start_link(Code) ->
    {ok, _} = gen_server:start_link(?MODULE, Code, []).

-doc "Stops the journal.".
-spec stop(pid()) -> ok.
stop(Journal) ->
    gen_server:stop(Journal).

-doc """
Starts a process that is linked to the caller, and returns it. The process can be the `observer` of
a load. Then it records the outcomes of the load's requests in the journal, under `Source`.
""".
-spec tap(pid(), Source :: erlmcp_chaos_scenario:source()) -> pid().
tap(Journal, Source) ->
    Tap = spawn_link(fun() -> forward_outcomes(Journal, Source, monitor(process, Journal)) end),
    ok = gen_server:cast(Journal, {tap, Tap}),
    Tap.

forward_outcomes(Journal, Source, Monitor) ->
    receive
        {erlmcp_load, Outcome, DueUs, DoneUs} ->
            ok = outcome(Journal, Source, Outcome, DueUs, DoneUs),
            forward_outcomes(Journal, Source, Monitor);
        {forwarded, Asker} ->
            Asker ! {forwarded, self()},
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

-doc "Records an event that the server reported at `AtUs`, in monotonic microseconds.".
-spec event(pid(), Event :: map(), AtUs :: integer()) -> ok.
event(Journal, Event, AtUs) ->
    gen_server:cast(Journal, {event, Event, AtUs}).

-doc """
Starts to measure how fast the load is answered before the fault. From this call until the fault
begins, every event, refusal, failure or wrong answer is a broken promise. A second call discards
what was measured since the first one.
""".
-spec steady(pid()) -> ok.
steady(Journal) ->
    gen_server:call(Journal, steady).

-doc """
Marks that the fault begins now (`inject`), or has ended now (`heal`). Returns the marked time in
monotonic microseconds.
""".
-spec mark(pid(), inject | heal) -> integer().
mark(Journal, Mark) ->
    At = erlang:monotonic_time(microsecond),
    ok = mark(Journal, Mark, At),
    At.

-doc """
Marks that the fault began (`inject`) or ended (`heal`) at `AtUs`, in monotonic microseconds. Each
beginning starts a round, and an end belongs to the newest round.
""".
-spec mark(pid(), inject | heal, AtUs :: integer()) -> ok.
mark(Journal, Mark, At) ->
    gen_server:call(Journal, {mark, Mark, At}).

-doc """
Records `Value` as the figure `Name` of the fault, for the fault's result. A later value of the same
figure replaces the earlier one.
""".
-spec fact(pid(), Name :: atom(), Value :: number()) -> ok.
fact(Journal, Name, Value) ->
    gen_server:cast(Journal, {fact, Name, Value}).

-doc """
Records `Value` as the figure `Figure` that shows the harm `Harm`. `Limit` is the bound of the
figure. If the figure has several values, the journal keeps the worst one: the lowest for
`at_least`, and the highest for `at_most`.
""".
-spec seen(pid(), Harm :: atom(), Figure :: atom(), Value :: number(),
           Limit :: erlmcp_chaos_verdict:limit()) -> ok.
seen(Journal, Harm, Figure, Value, Limit) ->
    gen_server:cast(Journal, {seen, Harm, Figure, {Value, Limit}}).

-doc """
Waits until `Awaited` has happened, and returns `ok` then. Returns `timeout` after `Milliseconds`.

- `detected`: the fault of the newest round is detected.
- `recovered`: the server has recovered from the fault of the newest round.
- `{answered, More}`: `More` further requests of the load are answered. Refusals, failures and wrong
  answers do not count.
""".
-spec await(pid(), Awaited :: awaited(), Milliseconds :: non_neg_integer()) -> ok | timeout.
await(Journal, Awaited, Milliseconds) ->
    gen_server:call(Journal, {await, Awaited, Milliseconds}, infinity).

-doc "Returns how many answers in a row show that the load has recovered.".
-spec answers() -> pos_integer().
answers() -> ?WINDOW.

-doc """
Returns everything that was recorded, including all outcomes that the processes of `tap/2` have
received until now.
""".
-spec report(pid()) -> report().
report(Journal) ->
    Taps = gen_server:call(Journal, taps, infinity),
    _ = [Tap ! {forwarded, self()} || Tap <- Taps],
    _ = [receive {forwarded, Tap} -> ok end || Tap <- Taps],
    gen_server:call(Journal, report, infinity).

-doc false.
init(Code) ->
    {ok, #state{code = Code}}.

-doc false.
handle_call(steady, _, State) ->
    {reply, ok, State#state{phase = steady, latencies = [], kept = 0, before = #{}}};
handle_call({mark, inject, At}, _, #state{rounds = Rounds} = State) ->
    {reply, ok, State#state{phase = fault, quick = quick(State), window = queue:new(),
                            rounds = [#{injected => At} | Rounds]}};
handle_call({mark, heal, At}, _, #state{rounds = [Round | Rounds]} = State) ->
    {reply, ok, State#state{rounds = [Round#{healed => At} | Rounds]}};
handle_call({await, {answered, More}, Milliseconds}, From, State) ->
    wait({answered, answered(State) + More}, Milliseconds, From, State);
handle_call({await, Awaited, Milliseconds}, From, State) ->
    wait(Awaited, Milliseconds, From, State);
handle_call(taps, _, #state{taps = Taps} = State) ->
    {reply, Taps, State};
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
is_there(recovered, #state{rounds = [Round | _]}) -> recovered_at(Round) =/= not_recovered;
is_there(_, _) -> false.

-doc """
Returns the time at which the server had recovered in a round, in monotonic microseconds. The load
must have recovered. If the round has probes, one of them must also have had a good reply after the
end of the fault. Until then the function returns `not_recovered`.
""".
-spec recovered_at(round()) -> {ok, integer()} | not_recovered.
recovered_at(#{settled := Settled, good := Good}) -> {ok, max(Settled, Good)};
recovered_at(#{settled := Settled} = Round) when not is_map_key(probed, Round) -> {ok, Settled};
recovered_at(#{}) -> not_recovered.

-doc false.
handle_cast({outcome, Source, Outcome, DueUs, DoneUs}, State) ->
    #state{accounting = Accounting} = State,
    Counted = State#state{
        accounting = erlmcp_chaos_accounting:add(Source, Outcome, Accounting)},
    {noreply, answer_waiting(happened(Source, Outcome, DueUs, DoneUs, probed(Source, Counted)))};
handle_cast({event, #{event := Name} = Event, AtUs}, #state{events = Events} = State) ->
    Counted = State#state{events = maps:update_with(Name, fun(N) -> N + 1 end, 1, Events)},
    {noreply, answer_waiting(signal({event, Name}, code_of(Event), AtUs, Counted))};
handle_cast({tap, Tap}, #state{taps = Taps} = State) ->
    {noreply, State#state{taps = [Tap | Taps]}};
handle_cast({fact, Name, Value}, #state{facts = Facts} = State) ->
    {noreply, State#state{facts = Facts#{Name => Value}}};
handle_cast({seen, Harm, Figure, Saw}, #state{seen = Seen} = State) ->
    Figures = maps:get(Harm, Seen, #{}),
    Worst = worse(Saw, maps:get(Figure, Figures, Saw)),
    {noreply, State#state{seen = Seen#{Harm => Figures#{Figure => Worst}}}}.

worse({Value, {at_least, _} = Limit}, {Other, _}) -> {min(Value, Other), Limit};
worse({Value, {at_most, _} = Limit}, {Other, _}) -> {max(Value, Other), Limit}.

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
    State#state{latencies = [Latency | State#state.latencies], kept = Kept + 1};
good(load, Latency, DoneUs, #state{rounds = [#{healed := Healed} = Round | _]} = State) when
    DoneUs >= Healed, not is_map_key(settled, Round)
->
    #state{window = Window, quick = Quick} = State,
    settled(State#state{window = newest(queue:in({DoneUs, Latency > Quick}, Window))});
good(probe, _, DoneUs, #state{rounds = [#{healed := Healed} = Round | Rounds]} = State) when
    DoneUs >= Healed, not is_map_key(good, Round)
->
    State#state{rounds = [Round#{good => DoneUs} | Rounds]};
good(_, _, _, State) ->
    State.

newest(Window) ->
    case queue:len(Window) > ?WINDOW of
        true -> queue:drop(Window);
        false -> Window
    end.

settled(#state{window = Window, rounds = [Round | Rounds]} = State) ->
    Slow = length([slow || {_, true} <- queue:to_list(Window)]),
    case queue:len(Window) of
        ?WINDOW when Slow =< ?SLOW ->
            {First, _} = queue:get(Window),
            State#state{rounds = [Round#{settled => First} | Rounds]};
        _ ->
            State
    end.

disturbed(load, DoneUs, #state{rounds = [#{healed := Healed} = Round | Rounds]} = State) when
    DoneUs >= Healed
->
    State#state{window = queue:new(), rounds = [maps:remove(settled, Round) | Rounds]};
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
                 facts = Facts, seen = Seen} = State) ->
    #{accounting => Accounting, rounds => lists:reverse(Rounds), events => Events,
      before => maps:keys(Before), facts => Facts, seen => Seen,
      earlier => (earlier(State))#{quick => quick(State)}}.

%% How long an answer may take that is as quick as those before the fault.
quick(#state{rounds = [_ | _], quick = Quick}) -> Quick;
quick(#state{} = State) ->
    max(?NOISE_US, ceil(?FACTOR * maps:get(p99, earlier(State), 0))).

earlier(#state{kept = 0}) -> #{count => 0};
earlier(#state{kept = Count, latencies = Latencies}) ->
    Sorted = lists:sort(Latencies),
    At = fun(Percent) -> lists:nth(max(1, ceil(Count * Percent / 100)), Sorted) end,
    #{count => Count, p50 => At(50), p99 => At(99), max => lists:last(Sorted)}.
