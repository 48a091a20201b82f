-module(bench_gate).
-moduledoc "Prints what enter and leave of `erlmcp_gate` cost; see ../gate.sh.".

-export([main/2]).

%% Visits of a short run, and how many of these there are.
-define(VISITS, 1000).
-define(RUNS, 500).
-define(LONG_MS, 60_000).

-doc "The seconds of a measurement, and what is measured: a name, or `all`.".
-spec main(number(), string()) -> ok.
main(Seconds, Wanted) ->
    Schedulers = erlang:system_info(schedulers_online),
    Cases = [Case || {Name, _, _} = Case <- cases(), Wanted =:= "all" orelse Name =:= Wanted],
    _ = [alone(Name, Visits) || Schedulers =:= 1, {Name, own, Visits} <- Cases],
    lists:foreach(fun({Name, Whose, Visits}) ->
        Count = together(Visits, Whose, Schedulers, round(Seconds * 1000)),
        io:format("~-10s ~3b schedulers ~8.2f million/s~n",
                  [Name, Schedulers, Count / Seconds / 1.0e6])
    end, Cases).

%% Each case has its name, whether each process is a tenant of its own or all are one, and a fun of
%% the number of processes that returns a fun of the tenant that returns the visit.
cases() ->
    Principal = #{in_flight => 100_000, in_flight_per_principal => 100_000},
    [{"server", own, enters(#{in_flight => 100_000})},
     {"principal", own, enters(Principal)},
     {"one", one, enters(Principal)},
     {"rates", own, enters(Principal#{principal_messages_per_second => 1_000_000_000,
                                      messages_per_second => 1_000_000_000})},
     {"waits", own, fun waits/1},
     {"rows", own, fun rows/1}].

enters(Bounds) ->
    fun(_) ->
        Gate = erlmcp_gate:new(Bounds),
        fun(Tenant) ->
            Message = message(Tenant),
            fun() ->
                {ok, Permit} = erlmcp_gate:enter(Gate, Message),
                ok = erlmcp_gate:leave(Permit)
            end
        end
    end.

%% Each process has a permit, and gives it back when it waits for the next one.
waits(Processes) ->
    Gate = erlmcp_gate:new(#{in_flight => Processes, queue => 2 * Processes,
                             queue_ms => ?LONG_MS}),
    {ok, _} = erlmcp_gate_permits:start_link(Gate),
    {ok, _} = erlmcp_gate_queue:start_link(Gate),
    fun(Tenant) ->
        Message = message(Tenant),
        _ = put(permit, admitted(Gate, Message)),
        fun() ->
            {ok, Entered} = erlmcp_gate:enter(Gate, Message),
            ok = erlmcp_gate:leave(get(permit)),
            {ok, Permit} = erlmcp_gate:await(Entered, ?LONG_MS),
            put(permit, Permit)
        end
    end.

admitted(Gate, Message) ->
    {ok, Entered} = erlmcp_gate:enter(Gate, Message),
    {ok, Permit} = erlmcp_gate:await(Entered, ?LONG_MS),
    Permit.

rows(_) ->
    Permits = erlmcp_gate_permits:new(erlmcp_gate_counters:new(1)),
    fun(_) ->
        fun() ->
            Id = erlmcp_gate_permits:add(0, [], Permits),
            ok = erlmcp_gate_permits:hand_over(Id, self()),
            ok = erlmcp_gate_permits:leave(Id, Permits)
        end
    end.

alone(Name, Visits) ->
    Visit = (Visits(1))(0),
    visit(?VISITS, Visit),
    Runs = lists:sort([begin
                           {Took, ok} = timer:tc(fun() -> visit(?VISITS, Visit) end, nanosecond),
                           Took / ?VISITS
                       end || _ <- lists:seq(1, ?RUNS)]),
    io:format("~-10s alone ~6b ns, median ~6b ns~n",
              [Name, round(hd(Runs)), round(lists:nth(?RUNS div 2, Runs))]).

together(Visits, Whose, Processes, Milliseconds) ->
    Made = Visits(Processes),
    Until = erlang:monotonic_time(millisecond) + Milliseconds,
    Pids = [spawn_opt(fun() -> exit({visits, count(0, Until, Made(tenant(Whose, Number)))}) end,
                      [monitor]) || Number <- lists:seq(1, Processes)],
    lists:sum([receive {'DOWN', Monitor, _, _, {visits, Count}} -> Count end
               || {_, Monitor} <- Pids]).

tenant(own, Number) -> Number;
tenant(one, _) -> 0.

count(Count, Until, Visit) ->
    visit(?VISITS, Visit),
    case erlang:monotonic_time(millisecond) < Until of
        true -> count(Count + ?VISITS, Until, Visit);
        false -> Count + ?VISITS
    end.

visit(0, _) ->
    ok;
visit(Times, Visit) ->
    _ = Visit(),
    visit(Times - 1, Visit).

message(Tenant) ->
    #{tenant => Tenant, kind => request, bytes => 100}.
