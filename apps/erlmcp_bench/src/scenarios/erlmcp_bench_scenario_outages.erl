-module(erlmcp_bench_scenario_outages).
-moduledoc """
What faults do to the requests of a scenario: a process that the loads tell every outcome (`observer`
of `m:erlmcp_load`). What comes after a fault was done, and before the next one is, belongs to it.
""".

-behaviour(gen_server).

-export([start_link/0, stop/1, begins/3, report/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([outage/0]).

-doc """
When the fault was done, when the first request after it ended without a good answer and when the
last one did, in monotonic microseconds; how many those were, and how long the good answers took.
""".
-type outage() :: #{
    fault := term(), at_us := integer(), first_us => integer(), last_us => integer(),
    errors := non_neg_integer(), latency := erlmcp_bench_histogram:histogram()
}.

-doc "Starts it, linked to the caller.".
-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link(?MODULE, [], []).

-doc "Ends it.".
-spec stop(pid()) -> ok.
stop(Outages) ->
    gen_server:stop(Outages).

-doc "This fault was done then.".
-spec begins(pid(), Fault :: term(), AtUs :: integer()) -> ok.
begins(Outages, Fault, AtUs) ->
    gen_server:call(Outages, {begins, Fault, AtUs}).

-doc "The faults in their order.".
-spec report(pid()) -> [outage()].
report(Outages) ->
    gen_server:call(Outages, report).

-doc false.
init([]) ->
    {ok, []}.

-doc false.
handle_call({begins, Fault, AtUs}, _, Outages) ->
    {reply, ok, [#{fault => Fault, at_us => AtUs, errors => 0,
                   latency => erlmcp_bench_histogram:new()} | Outages]};
handle_call(report, _, Outages) ->
    {reply, lists:reverse(Outages), Outages}.

-doc false.
handle_cast(_, Outages) ->
    {noreply, Outages}.

-doc false.
handle_info({erlmcp_load, answered, DueUs, DoneUs}, [#{at_us := AtUs} = Outage | _] = Outages) when
    DoneUs >= AtUs
->
    ok = erlmcp_bench_histogram:record(map_get(latency, Outage), max(1, DoneUs - DueUs)),
    {noreply, Outages};
handle_info({erlmcp_load, answered, _, _}, Outages) ->
    {noreply, Outages};
handle_info({erlmcp_load, _, _, DoneUs}, [#{at_us := AtUs, errors := Errors} = Outage | Earlier])
  when DoneUs >= AtUs ->
    First = min(DoneUs, maps:get(first_us, Outage, DoneUs)),
    Last = max(DoneUs, maps:get(last_us, Outage, DoneUs)),
    {noreply, [Outage#{errors := Errors + 1, first_us => First, last_us => Last} | Earlier]};
handle_info(_, Outages) ->
    {noreply, Outages}.
