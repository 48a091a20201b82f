-module(erlmcp_chaos_drill_node).
-moduledoc """
A drill with eight nodes behind an `m:erlmcp_pool`. One node is killed, and another one is started
in its place, on the same port. Meanwhile each of sixteen callers makes a call every 50 ms, which
the pool may repeat. The drill is over when the pool uses all eight nodes again.

The evidence: the killed node's port refuses a connection.
""".

-behaviour(erlmcp_chaos_scenario).

-export([id/0, title/0, needs/0, bounds/0, harms/0, setup/1, run/1]).

-define(NODES, 8).
-define(SHORT_NODES, 2).
-define(CALLERS, 16).
%% Milliseconds from one call of a caller to the next.
-define(PACE_MS, 50).
-define(CALL_MS, 5_000).
-define(STEADY_MS, 1_000).
-define(LOOK_MS, 10).
%% Milliseconds until the node's port is closed, until the pool has noticed, and until it is whole
%% again.
-define(CLOSED_MS, 2_000).
-define(NOTICE_MS, 30_000).
-define(WHOLE_MS, 120_000).

-doc false.
id() -> ~"drill_node".

-doc false.
title() -> ~"one of eight nodes killed".

-doc false.
needs() -> [].

-doc false.
bounds() -> #{code => none, detect_ms => 1_000, recover_ms => 42_000, load => failed}.

-doc false.
harms() -> [node].

-doc false.
setup(_) ->
    %% The scenario has nodes of its own.
    {ok, #{load => none}}.

-doc false.
run(Context) ->
    Nodes = case erlmcp_chaos_context:is_short(Context) of
        true -> ?SHORT_NODES;
        false -> ?NODES
    end,
    %% The pool is in this node.
    {ok, _} = application:ensure_all_started(erlmcp),
    {ok, Targets} = started(Nodes),
    {ok, Pool} = erlmcp_pool:start_link(
        #{targets => [{http, erlmcp_bench_target:url(Target), #{}} || Target <- Targets]}),
    Callers = [spawn_link(fun() -> caller(Pool, Context) end) || _ <- lists:seq(1, ?CALLERS)],
    _ = erlmcp_chaos_context:await(Context, {answered, Nodes * ?CALLERS}, ?CALL_MS),
    receive after ?STEADY_MS -> ok end,
    Drilled = drill(Targets, Pool, Context),
    ok = ended(Callers),
    ok = erlmcp_pool:stop(Pool),
    ok = lists:foreach(fun erlmcp_bench_target:stop/1, tl(Targets)),
    Drilled.

started(Count) ->
    Targets = [erlmcp_bench_target:start(#{}) || _ <- lists:seq(1, Count)],
    case [Reason || {error, Reason} <- Targets] of
        [] -> {ok, [Target || {ok, Target} <- Targets]};
        [Reason | _] -> {error, Reason}
    end.

drill([Victim | _], Pool, Context) ->
    {Ip, Port} = erlmcp_bench_target:address(http, Victim),
    maybe
        Injected = erlmcp_chaos_context:inject(Context),
        ok ?= killed(Victim, Context),
        %% Recovery begins here.
        Healed = erlmcp_chaos_context:heal(Context),
        ok ?= seen(poll(fun() -> is_closed(Ip, Port) end, ?CLOSED_MS), Victim, Context),
        ok ?= poll(fun() -> state(Pool) =/= closed end, ?NOTICE_MS),
        ok = erlmcp_chaos_context:noticed(Context, member_left_out),
        ok = erlmcp_chaos_context:fact(Context, left_out_after_ms, since_ms(Injected)),
        {ok, Next} ?= erlmcp_bench_target:start(
            #{server => #{handler => erlmcp_bench_fixture, listen => [{http, #{port => Port}}]}}),
        ok = erlmcp_chaos_context:fact(Context, started_after_ms, since_ms(Injected)),
        ok ?= poll(fun() -> state(Pool) =:= closed end, ?WHOLE_MS),
        ok = erlmcp_chaos_context:outcome(Context, probe, answered, Healed),
        ok = erlmcp_chaos_context:fact(Context, full_service_after_ms, since_ms(Injected)),
        _ = erlmcp_chaos_context:await_recovered(Context),
        erlmcp_bench_target:stop(Next)
    end.

killed(#{peer := Peer} = Victim, Context) ->
    OsPid = integer_to_list(erlmcp_bench_target:os_pid(Victim)),
    %% The death of the node must not end this process.
    true = unlink(Peer),
    case erlmcp_chaos_context:harm(Context, node, {ok, ~""}, fun() ->
        erlmcp_chaos_program:run("kill", ["-KILL", OsPid])
    end) of
        {ok, _} ->
            ok;
        {error, _} = Error ->
            ok = erlmcp_bench_target:stop(Victim),
            Error
    end.

seen(ok, _, Context) ->
    erlmcp_chaos_context:seen(Context, node, closed_ports_count, 1, {at_least, 1});
seen({error, not_in_time}, Victim, Context) ->
    ok = erlmcp_bench_target:stop(Victim),
    erlmcp_chaos_context:seen(Context, node, closed_ports_count, 0, {at_least, 1}).

is_closed(Ip, Port) ->
    case gen_tcp:connect(Ip, Port, [], ?CLOSED_MS) of
        {ok, Socket} -> gen_tcp:close(Socket) =/= ok;
        {error, Reason} -> Reason =:= econnrefused
    end.

since_ms(Us) ->
    (erlmcp_chaos_context:now_us() - Us) / 1_000.

%% The state of the first member's circuit breaker: the pool reports them in the order of its
%% targets.
state(Pool) ->
    [#{state := State} | _] = erlmcp_pool:info(Pool),
    State.

poll(Look, Milliseconds) ->
    poll_until(Look, erlang:monotonic_time(millisecond) + Milliseconds).

poll_until(Look, Deadline) ->
    case Look() of
        true ->
            ok;
        false ->
            case erlang:monotonic_time(millisecond) < Deadline of
                true -> receive after ?LOOK_MS -> poll_until(Look, Deadline) end;
                false -> {error, not_in_time}
            end
    end.

%% The callers: a latency begins when its call was due.

caller(Pool, Context) ->
    %% Callers do not all begin in one moment.
    receive after rand:uniform(?PACE_MS) -> ok end,
    call_repeatedly(Pool, erlmcp_chaos_context:now_us(), Context).

call_repeatedly(Pool, Due, Context) ->
    Outcome = outcome(erlmcp_client:call_tool(Pool, ~"echo", #{text => ~"a call of the drill"},
                                              #{timeout => ?CALL_MS, repeatable => true})),
    ok = erlmcp_chaos_context:outcome(Context, load, Outcome, Due),
    Next = Due + ?PACE_MS * 1_000,
    receive
        {stop, From} -> From ! {stopped, self()}
    after max(0, (Next - erlmcp_chaos_context:now_us()) div 1_000) ->
        call_repeatedly(Pool, Next, Context)
    end.

outcome({ok, #{~"content" := [#{~"text" := ~"a call of the drill"}]}}) -> answered;
outcome({ok, _}) -> {wrong, content};
outcome({error, {rpc, #{code := Code} = Error}}) -> {refused, Code, maps:get(data, Error, #{})};
outcome({error, {overload, _}}) -> {failed, overload};
outcome({error, timeout}) -> {failed, timeout};
outcome({error, Reason}) when is_tuple(Reason) -> {failed, element(1, Reason)};
outcome({error, Reason}) -> {failed, Reason}.

ended(Callers) ->
    _ = [Caller ! {stop, self()} || Caller <- Callers],
    _ = [receive {stopped, Caller} -> ok end || Caller <- Callers],
    ok.
