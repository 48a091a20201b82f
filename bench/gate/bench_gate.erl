-module(bench_gate).
-moduledoc "Prints what enter and leave of `erlmcp_gate` cost; see ../gate.sh.".

-export([main/1]).

%% Visits of a short run, and how many of these there are.
-define(VISITS, 1000).
-define(RUNS, 500).

-doc "The argument is the seconds of a measurement.".
-spec main(number()) -> ok.
main(Seconds) ->
    Schedulers = erlang:system_info(schedulers_online),
    _ = [alone(Name, Bounds) || Schedulers =:= 1, {Name, Bounds, own} <- cases()],
    lists:foreach(fun({Name, Bounds, Whose}) ->
        Visits = together(Bounds, Whose, Schedulers, round(Seconds * 1000)),
        io:format("~-10s ~3b schedulers ~8.2f million/s~n",
                  [Name, Schedulers, Visits / Seconds / 1.0e6])
    end, cases()).

cases() ->
    Principal = #{in_flight => 100_000, in_flight_per_principal => 100_000},
    [{"server", #{in_flight => 100_000}, own},
     {"principal", Principal, own},
     {"one", Principal, one},
     {"rates", Principal#{principal_messages_per_second => 1_000_000_000,
                          messages_per_second => 1_000_000_000}, own}].

alone(Name, Bounds) ->
    Gate = erlmcp_gate:new(Bounds),
    Message = message(0),
    visit(?VISITS, Gate, Message),
    Runs = lists:sort([begin
                           {Took, ok} = timer:tc(fun() -> visit(?VISITS, Gate, Message) end,
                                                 nanosecond),
                           Took / ?VISITS
                       end || _ <- lists:seq(1, ?RUNS)]),
    io:format("~-10s alone ~6b ns, median ~6b ns~n",
              [Name, round(hd(Runs)), round(lists:nth(?RUNS div 2, Runs))]).

together(Bounds, Whose, Processes, Milliseconds) ->
    Gate = erlmcp_gate:new(Bounds),
    Until = erlang:monotonic_time(millisecond) + Milliseconds,
    Pids = [spawn_opt(fun() -> exit({visits, count(0, Until, Gate, message(flow(Whose, Number)))})
                      end, [monitor]) || Number <- lists:seq(1, Processes)],
    lists:sum([receive {'DOWN', Monitor, _, _, {visits, Count}} -> Count end
               || {_, Monitor} <- Pids]).

flow(own, Number) -> Number;
flow(one, _) -> 0.

count(Count, Until, Gate, Message) ->
    visit(?VISITS, Gate, Message),
    case erlang:monotonic_time(millisecond) < Until of
        true -> count(Count + ?VISITS, Until, Gate, Message);
        false -> Count + ?VISITS
    end.

visit(0, _, _) ->
    ok;
visit(Times, Gate, Message) ->
    {ok, Ticket} = erlmcp_gate:enter(Gate, Message),
    ok = erlmcp_gate:leave(Ticket),
    visit(Times - 1, Gate, Message).

message(Flow) ->
    #{flow => Flow, kind => request, bytes => 100}.
