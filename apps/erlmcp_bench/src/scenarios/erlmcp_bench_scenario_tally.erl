-module(erlmcp_bench_scenario_tally).
-moduledoc """
A process that adds up the counters of a scenario's loads: in total for metrics, for each step, and
since the last `look/1` for display.
""".

-behaviour(gen_server).

-export([start_link/0, step/2, started/4, stopping/2, ended/3, look/1, bytes/1, steps/1]).
-export([families/1]).
-export([init/1, handle_call/3, handle_cast/2]).

-export_type([look/0, bytes/0]).

-doc """
The sums since the last call of `look/1`. `connections` is the number of open connections in all
loads, except those that are being stopped.
""".
-type look() :: #{
    sums := erlmcp_bench_scenario_sums:sums(), connections := non_neg_integer()
}.
-doc """
The bytes that each endpoint has received from its clients, and the bytes that it has sent to them.
""".
-type bytes() :: #{Endpoint :: binary() => {non_neg_integer(), non_neg_integer()}}.

-record(state, {
    step = 1 :: pos_integer(),
    %% Each load with its endpoint and its sums at the last reading. Loads that are being stopped
    %% are not read any more.
    loads = #{} :: #{term() => {erlmcp_load_sample:meters(), last()}},
    stopping = #{} :: #{term() => last()},
    connections = 0 :: non_neg_integer(),
    total = erlmcp_bench_scenario_sums:none() :: erlmcp_bench_scenario_sums:sums(),
    unseen = erlmcp_bench_scenario_sums:none() :: erlmcp_bench_scenario_sums:sums(),
    of_steps = #{} :: #{pos_integer() => erlmcp_bench_scenario_sums:sums()},
    bytes = #{} :: bytes()
}).

-type last() :: {Endpoint :: binary(), erlmcp_bench_scenario_sums:sums()}.

-doc "Starts the process, linked to the caller.".
-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link(?MODULE, [], []).

-doc """
Begins the step `Number`. Counts until now belong to the step before, and later ones to `Number`.
The last counts of a load that is being stopped belong to the step in which `ended/3` adds them.
""".
-spec step(pid(), Number :: pos_integer()) -> ok.
step(Tally, Number) ->
    call(Tally, {step, Number}).

-doc "Adds a load on `Endpoint` that has started, under the new `Id`.".
-spec started(pid(), Id :: term(), Endpoint :: binary(), erlmcp_load:load()) -> ok.
started(Tally, Id, Endpoint, Load) ->
    call(Tally, {started, Id, Endpoint, erlmcp_load:meters(Load)}).

-doc "Marks the load `Id`, which is about to be stopped, so that it is not read any more.".
-spec stopping(pid(), Id :: term()) -> ok.
stopping(Tally, Id) ->
    call(Tally, {stopping, Id}).

-doc "Adds the final report of the load `Id`, which `stopping/2` has marked.".
-spec ended(pid(), Id :: term(), erlmcp_load:report()) -> ok.
ended(Tally, Id, Report) ->
    call(Tally, {ended, Id, Report}).

-doc """
Returns the sums since the last call of this function, the number of open connections, and the bytes
of each endpoint that has had a load.
""".
-spec look(pid()) -> {look(), bytes()}.
look(Tally) ->
    call(Tally, look).

-doc "Returns the bytes of each endpoint that has had a load.".
-spec bytes(pid()) -> bytes().
bytes(Tally) ->
    call(Tally, bytes).

-doc """
Returns the sums of each step that has any, under its number. Counts of a running load are included
as far as another function of this module has read them.
""".
-spec steps(pid()) -> #{pos_integer() => erlmcp_bench_scenario_sums:sums()}.
steps(Tally) ->
    call(Tally, steps).

-doc "Returns the metrics of the load generator: those of all loads together.".
-spec families(pid()) -> [erlmcp_bench_prometheus:family()].
families(Tally) ->
    {Total, Connections} = call(Tally, total),
    #{sent := Sent, latency := Entries} = Total,
    [#{name => ~"mcp_client_requests_total", type => counter,
       help => ~"Requests that have ended, by outcome.",
       series => [{[{~"outcome", atom_to_binary(Outcome)}], map_get(Outcome, Total)}
                  || Outcome <- [answered, refused, failed, wrong]]},
     #{name => ~"mcp_client_messages_sent_total", type => counter,
       help => ~"Requests that were sent.", series => [{[], Sent}]},
     #{name => ~"mcp_client_messages_errors_total", type => counter,
       help => ~"Due requests without a good answer; unsent ones found no connection.",
       series => [{[{~"error", atom_to_binary(Error)}], map_get(Error, Total)}
                  || Error <- [refused, failed, wrong, unsent]]},
     #{name => ~"mcp_client_connections_active", type => gauge,
       help => ~"Open connections.", series => [{[], Connections}]},
     #{name => ~"mcp_client_request_duration_ms", type => histogram,
       help => ~"Milliseconds from when a request was due to its answer.",
       series => [{[], erlmcp_bench_prometheus:histogram(
                           Entries, erlmcp_bench_scenario_sums:total_us(Total))}]}].

call(Tally, Request) ->
    gen_server:call(Tally, Request, infinity).

-doc false.
init([]) ->
    %% A scenario waits for each reading, and its loads must not delay it.
    _ = process_flag(priority, high),
    {ok, #state{}}.

-doc false.
handle_call({step, Number}, _, State) ->
    {reply, ok, (read_loads(State))#state{step = Number}};
handle_call({started, Id, Endpoint, Meters}, _, #state{loads = Loads} = State) ->
    Last = {Endpoint, erlmcp_bench_scenario_sums:none()},
    {reply, ok, State#state{loads = Loads#{Id => {Meters, Last}}}};
handle_call({stopping, Id}, _, #state{loads = Loads, stopping = Stopping} = State) ->
    {{_, Last}, Others} = maps:take(Id, Loads),
    {reply, ok, State#state{loads = Others, stopping = Stopping#{Id => Last}}};
handle_call({ended, Id, Report}, _, #state{stopping = Stopping} = State) ->
    {{Endpoint, Before}, Others} = maps:take(Id, Stopping),
    More = erlmcp_bench_scenario_sums:since(erlmcp_bench_scenario_sums:of_report(Report), Before),
    {reply, ok, counted(More, with_bytes(Endpoint, More, State#state{stopping = Others}))};
handle_call(look, _, State) ->
    #state{unseen = Unseen, connections = Connections, bytes = Bytes} = Current =
        read_loads(State),
    {reply, {#{sums => Unseen, connections => Connections}, Bytes},
     Current#state{unseen = erlmcp_bench_scenario_sums:none()}};
handle_call(total, _, State) ->
    #state{total = Total, connections = Connections} = Current = read_loads(State),
    {reply, {Total, Connections}, Current};
handle_call(bytes, _, State) ->
    #state{bytes = Bytes} = Current = read_loads(State),
    {reply, Bytes, Current};
handle_call(steps, _, #state{of_steps = OfSteps} = State) ->
    {reply, OfSteps, State}.

-doc false.
handle_cast(_, State) ->
    {noreply, State}.

read_loads(#state{loads = Loads} = State) when map_size(Loads) =:= 0 ->
    State#state{connections = 0};
read_loads(#state{loads = Loads} = State) ->
    {Mores, Read} = maps:fold(fun(Id, {Meters, {Endpoint, Before}}, {Mores, Sum}) ->
        #{counts := #{connections := Connections}} = Counters = erlmcp_load_sample:read(Meters),
        Now = erlmcp_bench_scenario_sums:of_counters(Counters),
        More = erlmcp_bench_scenario_sums:since(Now, Before),
        #state{loads = Others, connections = Open} = Counted = with_bytes(Endpoint, More, Sum),
        {[More | Mores], Counted#state{loads = Others#{Id := {Meters, {Endpoint, Now}}},
                                       connections = Open + Connections}}
    end, {[], State#state{connections = 0}}, Loads),
    counted(erlmcp_bench_scenario_sums:sum(Mores), Read).

%% An endpoint receives what its clients send.
with_bytes(Endpoint, #{bytes_in := In, bytes_out := Out}, #state{bytes = Bytes} = State) ->
    State#state{bytes = maps:update_with(Endpoint, fun({Received, Sent}) ->
                                                       {Received + Out, Sent + In}
                                                   end, {Out, In}, Bytes)}.

counted(More, #state{step = Step, of_steps = OfSteps, total = Total, unseen = Unseen} = State) ->
    Add = fun(Sums) -> erlmcp_bench_scenario_sums:add(More, Sums) end,
    State#state{total = Add(Total), unseen = Add(Unseen),
                of_steps = maps:update_with(Step, Add, More, OfSteps)}.
