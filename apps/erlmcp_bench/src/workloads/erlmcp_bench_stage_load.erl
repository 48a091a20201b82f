-module(erlmcp_bench_stage_load).
-moduledoc """
A server under load over real sockets, with one scheduler, so that none of its processes waits for
another and no other thread is woken: what its node takes for a request as a whole, and what functions
of it take.
""".

-export([whole/1, metered/3]).

-export_type([plan/0, share/0, whole/0]).

-type plan() :: #{
    transport := http1 | tcp, connections := pos_integer(), payload_bytes := non_neg_integer(),
    measure_ms := pos_integer()
}.
-doc """
Of one request, or of one write: microseconds of the processor, those of them in which processes ran,
garbage was collected and ports were at work, and reductions.
""".
-type share() :: #{cpu_us := float(), running_us := float(), collecting_us := float(),
                   ports_us := float(), reductions := float()}.
-doc "Of one request, with how many there were, in how many microseconds.".
-type whole() :: #{
    cpu_us := float(), running_us := float(), collecting_us := float(), ports_us := float(),
    reductions := float(), answered := pos_integer(), at_us := pos_integer(), write := share()
}.

-define(WARM_MS, 1_000).
-define(FLAGS, ["+S", "1:1"]).
-define(TIMEOUT_MS, 30_000).

-doc """
What a request takes; `write` is what it takes to send as many bytes as an answer has, again and
again, on a connection of its own.
""".
-spec whole(plan()) -> {ok, whole()} | {error, term()}.
whole(#{measure_ms := Milliseconds} = Plan) ->
    with_load(#{}, Plan, fun(Target, Load) ->
        Before = looked(Target, Load, begin_whole),
        ok = measuring(Plan),
        since(Before, looked(Target, Load, whole))
    end, fun(Target, #{answered := Answered, received := Received} = Whole) ->
        Write = sent(Target, max(1, Received div Answered), Milliseconds),
        maps:merge(maps:with([answered, at_us], Whole), (shares(Answered, Whole))#{write => Write})
    end).

looked(Target, Load, Function) ->
    #{at := At, counts := #{answered := Answered, bytes_in := Received}, server_cpu_us := Cpu} =
        erlmcp_load:peek(Load),
    (node_of(Target, Function))#{answered => Answered, received => Received, at_us => At,
                                 cpu_us => Cpu}.

node_of(Target, Function) ->
    erlmcp_bench_target:call(Target, erlmcp_bench_meter, Function, []).

since(Before, After) ->
    #{Name => Later - map_get(Name, Before) || Name := Later <- After}.

%% The system says how much it was, and the node which part of that was what.
shares(Count, #{cpu_us := Cpu, reductions := Reductions, awake_ns := Awake} = Taken) ->
    Share = fun(Of) -> Cpu / Count * map_get(Of, Taken) / max(1, Awake) end,
    #{cpu_us => Cpu / Count, running_us => Share(running_ns), collecting_us => Share(collecting_ns),
      ports_us => Share(ports_ns), reductions => Reductions / Count}.

%% It is read as a client reads it, by another process of the machine.
sent(Target, Bytes, Milliseconds) ->
    OsPid = erlmcp_bench_target:os_pid(Target),
    {ok, Listener} = gen_tcp:listen(0, [binary, {ip, {127, 0, 0, 1}}, {active, false}]),
    {ok, Port} = inet:port(Listener),
    {Reader, Monitor} = spawn_monitor(fun() ->
        {ok, Socket} = gen_tcp:accept(Listener),
        ok = drained(Socket)
    end),
    Look = fun() -> (node_of(Target, whole))#{cpu_us => erlmcp_bench_process:cpu_us(OsPid)} end,
    Before = Look(),
    Count = erlmcp_bench_target:call(Target, erlmcp_bench_meter, send, [Port, Bytes, Milliseconds],
                                     Milliseconds + ?TIMEOUT_MS),
    After = Look(),
    receive {'DOWN', Monitor, process, Reader, normal} -> ok end,
    ok = gen_tcp:close(Listener),
    shares(Count, since(Before, After)).

drained(Socket) ->
    case gen_tcp:recv(Socket, 0) of
        {ok, _} -> drained(Socket);
        {error, closed} -> gen_tcp:close(Socket)
    end.

-doc """
What these functions take of a request, without each other: of the times the median, times how often
a request calls the function; of the reductions the mean.
""".
-spec metered(erlmcp_bench_meter:unit(), [mfa(), ...], plan()) ->
    {ok, #{mfa() => float()}} | {error, term()}.
metered(Unit, Functions, Plan) ->
    with_load(#{prepare => {erlmcp_bench_meter, install, [Unit, Functions]}}, Plan,
              fun(Target, Load) ->
                  {Earlier, Before} = readings(Target, Load),
                  ok = measuring(Plan),
                  {Later, After} = readings(Target, Load),
                  #{Function => per_request(Unit, erlmcp_bench_histogram:since(Entries, Known),
                                            Later - Earlier)
                    || Function := Entries <- After, Known <- [map_get(Function, Before)]}
              end, fun(_, Measured) -> Measured end).

readings(Target, Load) ->
    #{counts := #{answered := Answered}} = erlmcp_load:peek(Load),
    {Answered, node_of(Target, read)}.

%% A few of them waited for a processor meanwhile, which is no time of theirs: so not the mean.
per_request(Unit, Entries, Requests) ->
    Histogram = erlmcp_bench_histogram:from_list(Entries),
    Each = case Unit of
        nanoseconds -> erlmcp_bench_histogram:percentile(Histogram, 50) / 1_000;
        reductions -> erlmcp_bench_histogram:mean(Histogram)
    end,
    Each * erlmcp_bench_histogram:count(Histogram) / max(1, Requests).

%% A server of its own, under load while the first fun looks, and without any for the second.
with_load(More, Plan, Measure, Then) ->
    maybe
        {ok, Target} ?= erlmcp_bench_target:start(More#{flags => ?FLAGS}),
        try
            maybe
                {ok, Load} ?= erlmcp_load:start(load(Target, Plan)),
                receive after ?WARM_MS -> ok end,
                Measured = Measure(Target, Load),
                ok ?= answered(erlmcp_load:stop(Load)),
                {ok, Then(Target, Measured)}
            end
        after
            erlmcp_bench_target:stop(Target)
        end
    end.

%% It would last longer than it is measured, and is stopped.
load(Target, #{transport := Transport, connections := Connections, payload_bytes := Bytes,
               measure_ms := Milliseconds}) ->
    #{target => erlmcp_bench_fleet:address(Target, Transport), era => stateless,
      payload_bytes => Bytes, connections => Connections, loop => {closed, 1},
      duration_ms => 10 * (Milliseconds + ?WARM_MS), timeout_ms => ?TIMEOUT_MS,
      server_os_pid => erlmcp_bench_target:os_pid(Target)}.

measuring(#{measure_ms := Milliseconds}) ->
    receive after Milliseconds -> ok end.

answered(#{refused := Refused, failed := Failed, wrong := 0, answered := Answered})
  when Refused =:= #{}, Failed =:= #{}, Answered > 0 ->
    ok;
answered(Report) ->
    {error, {not_answered, maps:with([refused, failed, wrong_by, answered], Report)}}.
