-module(erlmcp_bench_stage_load).
-moduledoc """
Loads a server in a node of its own over real sockets. It measures the cost of a request: that of
the whole node, and that of single functions.
""".

-export([whole/1, metered/3, taken/3]).

-export_type([plan/0, share/0, whole/0]).

-type plan() :: #{
    transport := http1 | tcp, connections := pos_integer(), payload_bytes := non_neg_integer(),
    handler := module(), measure_ms := pos_integer()
}.
-doc """
The cost of one request or one write in microseconds of the processor (`cpu_us`), and in reductions.
`running_us`, `collecting_us` and `ports_us` are the parts of `cpu_us` in which processes ran,
garbage was collected, and ports worked.
""".
-type share() :: #{cpu_us := float(), running_us := float(), collecting_us := float(),
                   ports_us := float(), reductions := float()}.
-doc """
The cost of one request, in the units of `t:share/0`. `answered` requests were measured in `at_us`
microseconds, and their answers had `received` bytes. `write` is the cost of one write, if that was
measured (`whole/1`).
""".
-type whole() :: #{
    cpu_us := float(), running_us := float(), collecting_us := float(), ports_us := float(),
    reductions := float(), answered := pos_integer(), received := pos_integer(),
    at_us := pos_integer(), write => share()
}.

-define(WARM_MS, 1_000).
%% One scheduler: no process waits for another, and no other thread is woken.
-define(FLAGS, ["+S", "1:1"]).
-define(TIMEOUT_MS, 30_000).
%% The fewest requests for a figure: some were in progress at either end.
-define(FEWEST, 100).
%% A measurement of fewer milliseconds is repeated with more of them if it was too short. Loads are
%% stopped before the longest time.
-define(SHORT_MS, 10_000).
-define(LONGEST_MS, 3_600_000).

-doc """
Starts a server and a load as the plan says, and measures the cost of a request. `write` is the cost
of sending as many bytes as an answer has, on a separate connection.

## Errors

- `no_processor_time`: the system does not have Linux's `/proc`.
- `nothing_measured`: there were too few answers or writes, or too little processor time.
- `{not_answered, Counts}`: some requests were refused, failed or wrong.
- Any other error is that of the server or the load, which could not start.
""".
-spec whole(plan()) -> {ok, whole()} | {error, term()}.
whole(#{measure_ms := Milliseconds} = Plan) ->
    with_server(Plan, #{}, fun(Target) ->
        maybe
            {ok, #{received := Received, answered := Answered} = Whole} ?=
                taken(Target, load(Plan), Milliseconds),
            {ok, Write} ?= long_enough(Milliseconds, fun(Time) ->
                sent(Target, max(1, Received div Answered), Time)
            end),
            {ok, Whole#{write => Write}}
        end
    end).

-doc """
Measures the cost of a request on a running server. Measures for `Milliseconds`, or longer if that
is too short for a figure. `Plan` has members of `t:erlmcp_load:plan/0`, and `transport` in place of
the target. Its `warm_ms` are the milliseconds of load before the measurement. The errors are those
of `whole/1`.
""".
-spec taken(erlmcp_bench_target:target(), Plan :: map(), Milliseconds :: pos_integer()) ->
    {ok, whole()} | {error, term()}.
taken(Target, Plan, Milliseconds) ->
    case erlmcp_bench_process:cpu_us(erlmcp_bench_target:os_pid(Target)) of
        undefined ->
            {error, no_processor_time};
        _ ->
            under_load(Target, Plan, Milliseconds, fun(Load, Time) ->
                Before = looked(Target, Load, begin_whole),
                receive after Time -> ok end,
                #{answered := Answered} = Whole = since(Before, looked(Target, Load, whole)),
                shares_of(Answered, Whole, maps:with([answered, received, at_us], Whole))
            end)
    end.

looked(Target, Load, Function) ->
    #{at := At, counts := #{answered := Answered, bytes_in := Received}, server_cpu_us := Cpu} =
        erlmcp_load:peek(Load),
    (node_of(Target, Function))#{answered => Answered, received => Received, at_us => At,
                                 cpu_us => Cpu}.

node_of(Target, Function) ->
    erlmcp_bench_target:call(Target, erlmcp_bench_meter, Function, []).

since(Before, After) ->
    #{Name => Later - map_get(Name, Before) || Name := Later <- After}.

%% Processor time is counted in hundredths of a second, so a short measurement may have none.
shares_of(Count, #{cpu_us := Cpu, awake_ns := Awake} = Taken, More)
  when Count >= ?FEWEST, Cpu > 0, Awake > 0 ->
    {ok, maps:merge(shares(Count, Taken), More)};
shares_of(_, _, _) ->
    nothing.

%% The system gives the processor time, and the node the share of each activity.
shares(Count, #{cpu_us := Cpu, reductions := Reductions, awake_ns := Awake} = Taken) ->
    Share = fun(Of) -> Cpu / Count * map_get(Of, Taken) / Awake end,
    #{cpu_us => Cpu / Count, running_us => Share(running_ns), collecting_us => Share(collecting_ns),
      ports_us => Share(ports_ns), reductions => Reductions / Count}.

%% Another process of the machine reads the bytes, as a client does.
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
    shares_of(Count, since(Before, After), #{}).

drained(Socket) ->
    case gen_tcp:recv(Socket, 0) of
        {ok, _} -> drained(Socket);
        {error, closed} -> gen_tcp:close(Socket)
    end.

-doc """
Measures the cost of each of `Functions` in one request, without the measured functions that it
calls. For the unit `nanoseconds`, a cost is the median time of a call in microseconds, multiplied
by the calls for each request. For `reductions`, it is the mean of a call, multiplied by the same
number. The errors are those of `whole/1` except `no_processor_time`, and in addition
`{no_function, Function}` if a function does not exist.
""".
-spec metered(erlmcp_bench_meter:unit(), Functions :: [mfa(), ...], plan()) ->
    {ok, #{mfa() => float()}} | {error, term()}.
metered(Unit, Functions, #{measure_ms := Milliseconds} = Plan) ->
    Prepare = {erlmcp_bench_meter, install, [Unit, Functions]},
    with_server(Plan, #{prepare => Prepare}, fun(Target) ->
        under_load(Target, load(Plan), Milliseconds, fun(Load, Time) ->
            {Earlier, Before} = readings(Target, Load),
            receive after Time -> ok end,
            case readings(Target, Load) of
                {Later, _} when Later - Earlier < ?FEWEST ->
                    nothing;
                {Later, After} ->
                    {ok, #{Function => per_request(Unit, Entries, map_get(Function, Before),
                                                   Later - Earlier)
                           || Function := Entries <- After}}
            end
        end)
    end).

readings(Target, Load) ->
    #{counts := #{answered := Answered}} = erlmcp_load:peek(Load),
    {Answered, node_of(Target, read)}.

%% Some calls waited for a processor, which is not their own time. So a time is not the mean.
per_request(Unit, Entries, Before, Requests) ->
    Histogram = erlmcp_bench_histogram:from_list(erlmcp_bench_histogram:since(Entries, Before)),
    Each = case Unit of
        nanoseconds -> erlmcp_bench_histogram:percentile(Histogram, 50) / 1_000;
        reductions -> erlmcp_bench_histogram:mean(Histogram)
    end,
    Each * erlmcp_bench_histogram:count(Histogram) / Requests.

with_server(#{handler := Handler}, More, Measure) ->
    Server = #{handler => Handler, listen => [{http, #{port => 0}}, {tcp, #{port => 0}}]},
    maybe
        {ok, Target} ?= erlmcp_bench_target:start(More#{flags => ?FLAGS, server => Server}),
        try
            Measure(Target)
        after
            erlmcp_bench_target:stop(Target)
        end
    end.

load(#{transport := Transport, connections := Connections, payload_bytes := Bytes}) ->
    #{transport => Transport, payload_bytes => Bytes, connections => Connections}.

%% Each connection sends when it is answered, unless the plan says otherwise. The load lasts as long
%% as the fun.
under_load(Target, #{transport := Transport} = Plan, Milliseconds, Measure) ->
    Always = #{target => erlmcp_bench_fleet:address(Target, Transport), loop => {closed, 1},
               duration_ms => ?LONGEST_MS, timeout_ms => ?TIMEOUT_MS,
               server_os_pid => erlmcp_bench_target:os_pid(Target)},
    maybe
        {ok, Load} ?= erlmcp_load:start(maps:merge(Always,
                                                   maps:without([transport, warm_ms], Plan))),
        receive after maps:get(warm_ms, Plan, min(?WARM_MS, Milliseconds)) -> ok end,
        Measured = long_enough(Milliseconds, fun(Time) -> Measure(Load, Time) end),
        ok ?= answered(erlmcp_load:stop(Load)),
        Measured
    end.

%% On a busy machine a short time may be too short.
long_enough(Milliseconds, Measure) ->
    case Measure(Milliseconds) of
        {ok, _} = Measured -> Measured;
        nothing when Milliseconds < ?SHORT_MS -> long_enough(4 * Milliseconds, Measure);
        nothing -> {error, nothing_measured}
    end.

answered(#{refused := Refused, failed := Failed, wrong := 0})
  when Refused =:= #{}, Failed =:= #{} ->
    ok;
answered(Report) ->
    {error, {not_answered, maps:with([refused, failed, wrong_by], Report)}}.
