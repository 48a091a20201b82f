-module(erlmcp_bench_scenario_outages).
-moduledoc """
Measures what faults do to the requests of a scenario. The loads send this process the outcome of
each request that they have sent (`observer` of `t:erlmcp_load:plan/0`). An outcome after a fault,
and before the next one, belongs to the fault.
""".

-behaviour(gen_server).

-export([start_link/0, begins/3, missing/2, report/1, calm_us/0, slow_us/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([outage/0]).

-doc """
The effects of a fault that was injected at `at_us`. The first error after that came at `first_us`.
The last error before the first calm (`calm_us/0`) came at `last_us`. Both are missing if no error
came. Times are in monotonic microseconds.

An error is a sent request without a good answer (counted in `errors`), a slow answer (counted in
`slow`), or a missing connection. An answer is slow if it took more than 250 ms, and more than twice
the time of the slowest answer before all faults. `latency` has the times of all good answers, also
of slow ones.
""".
-type outage() :: #{
    fault := term(), at_us := integer(), first_us => integer(), last_us => integer(),
    errors := non_neg_integer(), slow := non_neg_integer(),
    latency := erlmcp_bench_histogram:histogram()
}.

-record(state, {
    %% The slowest answer before the first fault.
    usual_us = 0 :: non_neg_integer(),
    %% Newest first.
    outages = [] :: [outage()]
}).

%% A slow answer took longer than this, and than twice the slowest answer before all faults.
-define(SLOW_US, 250_000).
%% After this time without an error, later errors do not belong to the fault. It is longer than the
%% time between two counts of the connections, since clients without connections send no requests.
-define(CALM_US, 2_500_000).

-doc "Starts the process, linked to the calling one.".
-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link(?MODULE, [], []).

-doc "Records that a fault was injected at `AtUs`, in monotonic microseconds.".
-spec begins(pid(), Fault :: term(), AtUs :: integer()) -> ok.
begins(Outages, Fault, AtUs) ->
    gen_server:call(Outages, {begins, Fault, AtUs}).

-doc """
Records that connections were missing at `AtUs`, in monotonic microseconds. Has no effect if no
fault was recorded, or if the latest one began after `AtUs`. Does not wait.
""".
-spec missing(pid(), AtUs :: integer()) -> ok.
missing(Outages, AtUs) ->
    gen_server:cast(Outages, {missing, AtUs}).

-doc """
Returns the length of a calm in microseconds. A calm is a time without an error, after which the
service counts as recovered.
""".
-spec calm_us() -> pos_integer().
calm_us() -> ?CALM_US.

-doc """
Returns the microseconds beyond which an answer is slow. `UsualUs` is the time of the slowest answer
before all faults, in microseconds.
""".
-spec slow_us(UsualUs :: non_neg_integer()) -> pos_integer().
slow_us(UsualUs) when is_integer(UsualUs) -> max(?SLOW_US, 2 * UsualUs).

-doc "Returns the outages in the order of their faults.".
-spec report(pid()) -> [outage()].
report(Outages) ->
    gen_server:call(Outages, report).

-doc false.
init([]) ->
    {ok, #state{}}.

-doc false.
handle_call({begins, Fault, AtUs}, _, #state{outages = Outages} = State) ->
    New = #{fault => Fault, at_us => AtUs, errors => 0, slow => 0,
            latency => erlmcp_bench_histogram:new()},
    {reply, ok, State#state{outages = [New | Outages]}};
handle_call(report, _, #state{outages = Outages} = State) ->
    {reply, lists:reverse(Outages), State}.

-doc false.
handle_cast({missing, AtUs}, State) ->
    {noreply, amiss(none, AtUs, State)}.

-doc false.
handle_info({erlmcp_load, answered, DueUs, DoneUs}, #state{outages = []} = State) ->
    {noreply, State#state{usual_us = max(State#state.usual_us, DoneUs - DueUs)}};
handle_info({erlmcp_load, answered, DueUs, DoneUs}, #state{outages = [Outage | _]} = State) ->
    Us = max(1, DoneUs - DueUs),
    ok = case Outage of
        #{at_us := AtUs, latency := Latency} when DoneUs >= AtUs ->
            erlmcp_bench_histogram:record(Latency, Us);
        #{} ->
            ok
    end,
    case Us > slow_us(State#state.usual_us) of
        true -> {noreply, amiss(slow, DoneUs, State)};
        false -> {noreply, State}
    end;
handle_info({erlmcp_load, _, _, DoneUs}, State) ->
    {noreply, amiss(errors, DoneUs, State)};
handle_info(_, State) ->
    {noreply, State}.

amiss(What, AtUs, #state{outages = [#{at_us := Since} = Outage | Earlier]} = State)
  when AtUs >= Since ->
    Times = case Outage of
        #{last_us := Last} when AtUs > Last + ?CALM_US -> Outage;
        #{last_us := Last} -> Outage#{last_us := max(AtUs, Last)};
        #{} -> Outage#{first_us => AtUs, last_us => AtUs}
    end,
    Counted = case Times of
        #{What := Count} -> Times#{What := Count + 1};
        #{} -> Times
    end,
    State#state{outages = [Counted | Earlier]};
amiss(_, _, State) ->
    State.
