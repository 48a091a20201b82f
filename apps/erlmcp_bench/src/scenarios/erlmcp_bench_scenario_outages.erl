-module(erlmcp_bench_scenario_outages).
-moduledoc """
What faults do to the requests of a scenario: a process that the loads tell every outcome
(`observer` of `m:erlmcp_load`). What comes after a fault was done, and before the next one is,
belongs to it.
""".

-behaviour(gen_server).

-export([start_link/0, begins/3, missing/2, report/1, calm_us/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([outage/0]).

-doc """
When the fault was done, and the first and the last time that something was amiss after it before a
calm, in monotonic microseconds: a request ended without a good answer (`errors`), or was answered
much later than before (`slow`), or connections were missing. And how long the good answers took.
""".
-type outage() :: #{
    fault := term(), at_us := integer(), first_us => integer(), last_us => integer(),
    errors := non_neg_integer(), slow := non_neg_integer(),
    latency := erlmcp_bench_histogram:histogram()
}.

-record(state, {
    %% The slowest answer before the first fault.
    usual_us = 0 :: non_neg_integer(),
    %% The newest first.
    outages = [] :: [outage()]
}).

%% An answer is slow that took longer than this, and than twice the slowest before all faults.
-define(SLOW_US, 250_000).
%% What comes after such a calm is not the fault's doing. It is longer than two looks at the
%% connections are apart: while those are missing nobody may ask.
-define(CALM_US, 2_500_000).

-doc "Starts it, linked to the caller.".
-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link(?MODULE, [], []).

-doc "This fault was done then.".
-spec begins(pid(), Fault :: term(), AtUs :: integer()) -> ok.
begins(Outages, Fault, AtUs) ->
    gen_server:call(Outages, {begins, Fault, AtUs}).

-doc "Connections were missing then. Does not wait.".
-spec missing(pid(), AtUs :: integer()) -> ok.
missing(Outages, AtUs) ->
    gen_server:cast(Outages, {missing, AtUs}).

-doc "How long nothing must be amiss for the service to be whole, in microseconds.".
-spec calm_us() -> pos_integer().
calm_us() -> ?CALM_US.

-doc "The faults in their order.".
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
    case Us > max(?SLOW_US, 2 * State#state.usual_us) of
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
