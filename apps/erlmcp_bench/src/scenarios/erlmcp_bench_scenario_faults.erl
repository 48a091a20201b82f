-module(erlmcp_bench_scenario_faults).
-moduledoc """
The faults of a scenario: their times, and how they are injected. `m:erlmcp_bench_scenario_outages`
assigns failed requests to faults.
""".

-export([timeline/2, act/3]).

-export_type([action/0, event/0]).

-type action() :: {begins | ends, erlmcp_bench_scenarios:fault()}.
-doc "A fault that begins or ends, with its extent, or the reason why it was not injected.".
-type event() :: #{
    event := fault, fault := atom(), state := begins | ends,
    extent => #{atom() => non_neg_integer()}, not_run => term()
}.

-doc """
Returns when each fault of the scenario begins and ends, in milliseconds from the first step.
""".
-spec timeline(erlmcp_bench_scenarios:scenario(), [erlmcp_bench_scenario_plan:step()]) ->
    [{AtMs :: non_neg_integer(), action()}].
timeline(#{faults := Faults}, Steps) ->
    Peak = [Step || #{phase := peak} = Step <- Steps],
    From = lists:min([Ms || #{from_ms := Ms} <- Peak]),
    Until = lists:max([Ms || #{until_ms := Ms} <- Peak]),
    [{From + round(Part * (Until - From)), Action}
     || Fault <- Faults, {Part, Action} <- actions(Fault)].

actions({add_latency, From, To, _} = Fault) -> [{From, {begins, Fault}}, {To, {ends, Fault}}];
actions({_, At, _} = Fault) -> [{At, {begins, Fault}}].

-doc "Begins or ends a fault. `Crowd` is the number of clients in the crowd.".
-spec act(action(), Crowd :: non_neg_integer(),
          #{places := erlmcp_bench_scenario_places:places(), outages := pid()}) -> event().
act({begins, {add_latency, _, _, #{milliseconds := Milliseconds}}}, _, #{places := Places} = Run) ->
    Now = erlang:monotonic_time(microsecond),
    case erlmcp_bench_scenario_places:add_latency(Places, Milliseconds) of
        ok -> begun(add_latency, Now, #{added_ms => Milliseconds}, Run);
        {not_run, Reason} -> (event(add_latency, begins))#{not_run => Reason}
    end;
act({ends, {add_latency, _, _, _}}, _, #{places := Places}) ->
    ok = erlmcp_bench_scenario_places:remove_latency(Places),
    event(add_latency, ends);
act({begins, {drop_clients, _, _}}, Crowd, #{places := Places} = Run) ->
    {ok, Dropped, AtUs} = erlmcp_bench_scenario_places:drop(Places, Crowd),
    begun(drop_clients, AtUs, #{clients => Dropped}, Run);
act({begins, {kill_node, _, _}}, _, #{places := Places} = Run) ->
    {ok, AtUs} = erlmcp_bench_scenario_places:kill(Places),
    begun(kill_node, AtUs, #{nodes => 1}, Run).

begun(Fault, AtUs, Extent, #{outages := Outages}) ->
    ok = erlmcp_bench_scenario_outages:begins(Outages, Fault, AtUs),
    (event(Fault, begins))#{extent => Extent}.

event(Fault, State) ->
    #{event => fault, fault => Fault, state => State}.
