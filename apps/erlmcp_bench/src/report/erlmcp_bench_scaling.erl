-module(erlmcp_bench_scaling).
-moduledoc """
Sweeps: the same load is repeated while one thing changes, with a result for each point. They feed
the figures of scaling and overload in reports, and the model of `m:erlmcp_bench_capacity`.

| sweep | what changes |
| --- | --- |
| `scaling_schedulers` | the server's schedulers, at most as many as this node has |
| `scaling_nodes` | servers on this machine, each in a node of its own |
| `scaling_connections` | connections, each with one request at a time |
| `scaling_payload` | bytes of the echoed text |
| `overload` | the offered rate of calls that compute, in percent of the server's capacity |

Except in `overload`, connections send their next request when they are answered. So each point
shows the capacity of a server that shares the machine's cores with the generator.
""".

-behaviour(erlmcp_bench_run).

-export([measured/2, model/1]).

%% Connections to each server.
-define(CONNECTIONS, 32).
%% Fewer connections than the descriptors that most systems allow a process. An overload needs many,
%% since a connection with a waiting request is not free for the next due one.
-define(OPEN_CONNECTIONS, 500).
%% Connections come from many addresses, as those of clients do: a single client does not get the
%% whole server.
-define(ADDRESSES, [{127, 0, 1, N} || N <- lists:seq(1, 64)]).
-define(PAYLOAD_BYTES, 64).
-define(WARMUP_MS, 1_000).
%% The timeout for an overloaded server: a client would leave after it.
-define(TIMEOUT_MS, 2_000).
%% Connections that keep every core busy without refusals, which measures the capacity.
-define(BUSY, 8).
%% Microseconds that a call of the overloaded tool computes. A call that costs less than its refusal
%% cannot be protected (docs/overload.md).
-define(BURN_US, 1_000).

-doc "Describes what the sweeps among `Results` predict for more schedulers, nodes and machines.".
-spec model([erlmcp_bench_result:result()]) -> unicode:chardata().
model(Results) ->
    [[Title, ": ", erlmcp_bench_capacity:describe(Model), $\n]
     || #{title := Title} = Model <- erlmcp_bench_capacity:models([{~"", Result}
                                                                   || Result <- Results])].

-doc """
Runs a sweep with the given options. `duration_s` is the time of each point. `connections` is the
number of connections to each server, except in `scaling_connections` and `overload`, which have
numbers of their own. `transports` may name `http1`, which is the default, and `tcp`. Points with
more schedulers than this node has are left out.
""".
-spec measured(erlmcp_bench_workloads:workload(), erlmcp_bench_run:options()) ->
    erlmcp_bench_run:measured().
measured(Workload, Options) ->
    erlmcp_bench_run:each(maps:get(transports, Options, [http1]), fun(Transport, With) ->
        swept(Workload#{transport => Transport}, With)
    end, Options).

%% Each point starts its own servers.
swept(#{varies := Varies, points := Points} = Workload, Options)
  when Varies =:= schedulers; Varies =:= nodes ->
    Most = erlang:system_info(schedulers),
    Possible = [Point || Point <- Points, Varies =:= nodes orelse Point =< Most],
    erlmcp_bench_run:each(Possible, fun(Point, With) ->
        {Count, Flags} = servers(Varies, Point),
        with_fleet(Count, Flags, fun(Fleet) -> point(Fleet, Point, Workload, With) end, Workload)
    end, Options);
%% The capacity is measured first, and the offered rates are parts of it.
swept(#{varies := offered_percent, id := Id, transport := Transport} = Workload, Options) ->
    Plan = overload_plan({closed, 1}, #{connections => ?BUSY}, Workload, Options),
    with_fleet(1, [], fun(Fleet) ->
        case erlmcp_bench_fleet:loaded(Fleet, Transport, Plan) of
            {ok, #{answered := 0}} ->
                {[], [{Id, nothing_answered}]};
            {ok, #{answered := Answered, duration_s := Seconds}} ->
                points(Fleet, Workload#{carried => Answered / Seconds}, Options);
            {error, Reason} ->
                {[], [{Id, Reason}]}
        end
    end, Workload);
swept(Workload, Options) ->
    with_fleet(1, [], fun(Fleet) -> points(Fleet, Workload, Options) end, Workload).

points(Fleet, #{points := Points} = Workload, Options) ->
    erlmcp_bench_run:each(Points, fun(Point, With) -> point(Fleet, Point, Workload, With) end,
                          Options).

with_fleet(Count, Flags, Measure, #{id := Id}) ->
    case erlmcp_bench_fleet:with(Count, Flags, Measure) of
        {ok, Measured} -> Measured;
        {error, Reason} -> {[], [{Id, Reason}]}
    end.

servers(schedulers, Point) ->
    Schedulers = integer_to_list(Point),
    {1, ["+S", Schedulers ++ ":" ++ Schedulers]};
servers(nodes, Point) ->
    {Point, []}.

point(Fleet, Point, #{id := Id, varies := Varies, transport := Transport} = Workload, Options) ->
    {Plan, Fields} = planned(Point, Workload, Options),
    {_, Shortened} = erlmcp_bench_run:seconds(Workload, Options),
    Command = #{command_line => Line || #{command_line := <<Line/binary>>} <- [Options]},
    #{connections := Connections} = Plan,
    %% A sweep with numbers of its own has these in both plans.
    {#{connections := Own}, _} = planned(Point, Workload, maps:remove(connections, Options)),
    Base = #{workload_id => name(Id, Varies, Point), benchmark => ~"scaling", sweep => Id,
             Varies => Point, transport => Transport, era => ~"stateless", scope => scope(Fleet),
             connections => Connections * length(Fleet),
             shortened => Shortened orelse Connections < Own},
    outcome(erlmcp_bench_fleet:loaded(Fleet, Transport, Plan),
            maps:merge(Command, maps:merge(Base, Fields))).

name(Id, offered_percent, Percent) ->
    <<Id/binary, "_", (integer_to_binary(Percent))/binary, "_percent">>;
name(Id, _, Point) ->
    <<Id/binary, "_", (integer_to_binary(Point))/binary>>.

%% The generator's plan for a point, and additional fields of its result.
planned(Percent, #{varies := offered_percent, carried := Carried} = Workload, Options) ->
    Offered = max(1, round(Carried * Percent / 100)),
    Plan = overload_plan({open, Offered, poisson}, #{connections => ?OPEN_CONNECTIONS}, Workload,
                         Options),
    {Plan, #{offered_msg_per_s => Offered}};
planned(Point, #{varies := Varies} = Workload, Options)
  when Varies =:= connections; Varies =:= payload_bytes ->
    {plan({closed, 1}, #{Varies => Point}, Workload, Options), #{}};
planned(_, Workload, Options) ->
    {plan({closed, 1}, #{}, Workload, Options), #{}}.

overload_plan(Loop, Connections, Workload, Options) ->
    Burn = {~"tools/call", #{~"name" => ~"burn", ~"arguments" => #{~"us" => ?BURN_US}}},
    plan(Loop, Connections#{requests => [{1, Burn}], timeout_ms => ?TIMEOUT_MS}, Workload, Options).

plan(Loop, More, Workload, Options) ->
    {Seconds, _} = erlmcp_bench_run:seconds(Workload, Options),
    Milliseconds = ceil(1_000 * Seconds),
    maps:merge(#{loop => Loop, connections => maps:get(connections, Options, ?CONNECTIONS),
                 payload_bytes => ?PAYLOAD_BYTES, duration_ms => Milliseconds,
                 warmup_ms => min(?WARMUP_MS, Milliseconds), sources => ?ADDRESSES}, More).

outcome({ok, #{answered := Answered} = Report}, #{workload_id := Name} = Base)
  when Answered > 0 ->
    {[erlmcp_bench_result:from_load(maps:merge(rates(Base, Report), Base), Report)],
     [{Name, Wrong} || Wrong <- wrong(Base, Report)]};
outcome({ok, _}, #{workload_id := Name}) ->
    {[], [{Name, nothing_answered}]};
outcome({error, Reason}, #{workload_id := Name}) ->
    {[], [{Name, Reason}]}.

scope([_]) -> ~"per_node";
scope([_, _ | _]) -> ~"per_cluster".

%% The outcomes of the offered requests.
rates(#{offered_msg_per_s := _}, #{duration_s := Seconds, refused := Refused} = Report) ->
    #{refused_msg_per_s => lists:sum(maps:values(Refused)) / Seconds,
      failed_msg_per_s => (lists:sum(maps:values(maps:get(failed, Report)))
                              + maps:get(wrong, Report) + maps:get(unsent, Report)) / Seconds};
rates(_, _) ->
    #{}.

%% Without an overload, refusals and failures are errors.
wrong(#{offered_msg_per_s := _}, #{wrong := Wrong}) ->
    [{wrong, Wrong} || Wrong > 0];
wrong(_, #{wrong := Wrong, refused := Refused, failed := Failed}) ->
    [{wrong, Wrong} || Wrong > 0] ++ [{refused, Refused} || Refused =/= #{}]
        ++ [{failed, Failed} || Failed =/= #{}].
