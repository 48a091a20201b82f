-module(gate_properties_SUITE).
-moduledoc """
Properties of a gate, over its face. Never more requests are in flight than the limit says, and none
overtakes an earlier one of its tenant. The permits of the dead come back, and nothing leaks
whenever holders are killed. A drained gate is empty.

The state machine gives random commands to processes that enter, wait, leave and are killed. After
each command it compares their answers and the gate's counters with a model.
""".

-behaviour(proper_statem).

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([the_gate_does_what_its_model_does/1, never_more_than_the_limit/1,
         nothing_leaks_after_100_000_kills/1]).
%% The state machine.
-export([initial_state/0, command/1, precondition/2, next_state/3, postcondition/3]).
-export([enter/2, leave/1, kill/1, limit/1, drain/0, look/0]).
%% A process that a killed one has started.
-export([leave_later/1]).

-import(erlmcp_test_gate, [request/1, entered/1, refused/1, visit/3, processes/1, looks/2,
                           looks_for_all/2, stop/1, await_end/1, together/1]).

%% Limits of the state machine's gate.
-define(IN_FLIGHT, 3).
-define(QUEUE, 5).
-define(QUEUE_OF_ONE, 3).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [the_gate_does_what_its_model_does, never_more_than_the_limit,
     nothing_leaks_after_100_000_kills].

%% A process that is killed soon cannot load a module first: no kill would come to the gate's code.
init_per_suite(Config) ->
    _ = application:load(erlmcp),
    {ok, Modules} = application:get_key(erlmcp, modules),
    ok = code:ensure_modules_loaded(Modules),
    Config.

end_per_suite(_) ->
    ok.

init_per_testcase(_, Config) ->
    process_flag(trap_exit, true),
    Config.

end_per_testcase(_, _) ->
    ok.

the_gate_does_what_its_model_does(_) ->
    ok = erlmcp_test_property:holds(?FORALL(Commands, more_commands(3, commands(?MODULE)),
        begin
            Gate = begin_gate(),
            {_, _, Result} = run_commands(?MODULE, Commands),
            Empty = is_empty(Gate),
            ok = end_gate(),
            ?WHENFAIL(ct:log("~p, empty: ~p", [Result, Empty]), Result =:= ok andalso Empty)
        end), 100).

%% The model is the state after the last command: the clients in flight and the waiting ones, in the
%% order in which they came. A client is a number.

initial_state() ->
    #{in_flight => [], waiting => [], limit => ?IN_FLIGHT, draining => false}.

command(_) ->
    frequency([{8, {call, ?MODULE, enter, [client(), tenant()]}},
               {5, {call, ?MODULE, leave, [client()]}},
               {2, {call, ?MODULE, kill, [client()]}},
               {1, {call, ?MODULE, limit, [range(1, ?IN_FLIGHT)]}},
               {1, {call, ?MODULE, look, []}},
               {1, {call, ?MODULE, drain, []}}]).

client() -> range(1, 12).
tenant() -> oneof([ada, bob, eve]).

precondition(_, _) -> true.

%% While the commands are made there is no result yet.
next_state(_, #{now := Now}, _) -> Now;
next_state(Before, _, _) -> Before.

postcondition(Before, {call, _, Command, Arguments}, Result) ->
    #{answer := Answer, now := Now, held := Held} = Result,
    {Expected, After} = expected(Command, Arguments, Before),
    Expected =:= Answer andalso granted(After, Now) andalso Held =:= held(Now).

%% The answer of a command, and the state after it and before others get their turns.
expected(enter, [Client, Tenant], #{in_flight := InFlight, waiting := Waiting, limit := Limit,
                                 draining := Draining} = Before) ->
    Own = length([T || {_, T} <- Waiting, T =:= Tenant]),
    case lists:keymember(Client, 1, InFlight ++ Waiting) of
        true ->
            {none, Before};
        false when Draining ->
            {server_shutting_down, Before};
        false when length(InFlight) < Limit - length(Waiting) ->
            {in_flight, Before#{in_flight := InFlight ++ [{Client, Tenant}]}};
        false when Own >= ?QUEUE_OF_ONE ->
            {queue_tenant_cap_exceeded, Before};
        false when length(Waiting) >= ?QUEUE ->
            {queue_cap_exceeded, Before};
        false ->
            {waits, Before#{waiting := Waiting ++ [{Client, Tenant}]}}
    end;
expected(Gone, [Client], #{in_flight := InFlight, waiting := Waiting} = Before) when
    Gone =:= leave; Gone =:= kill
->
    {none, Before#{in_flight := lists:keydelete(Client, 1, InFlight),
                   waiting := lists:keydelete(Client, 1, Waiting)}};
expected(limit, [Limit], Before) ->
    {none, Before#{limit := Limit}};
expected(look, [], Before) ->
    {none, Before};
expected(drain, [], Before) ->
    {none, Before#{draining := true}}.

%% As many got their turns as the limit allows, and of each tenant the ones that came first.
granted(#{in_flight := InFlight, waiting := Waiting, limit := Limit, draining := Draining},
        #{in_flight := Now, waiting := Still, limit := Limit, draining := Draining}) ->
    Granted = Now -- InFlight,
    InFlight -- Now =:= []
        andalso Waiting -- Granted =:= Still
        andalso length(Granted) =:= max(0, min(length(Waiting), Limit - length(InFlight)))
        andalso lists:all(fun(Tenant) ->
                              lists:prefix([Client || {Client, T} <- Granted, T =:= Tenant],
                                           [Client || {Client, T} <- Waiting, T =:= Tenant])
                          end, [ada, bob, eve]);
granted(_, _) ->
    false.

held(#{in_flight := InFlight, waiting := Waiting}) ->
    Of = fun(Tenant) -> length([T || {_, T} <- Waiting, T =:= Tenant]) end,
    [length(InFlight), length(Waiting), 100 * length(Waiting), Of(ada), Of(bob), Of(eve),
     length(InFlight) + length(Waiting)].

%% The gate and its clients, in the process that runs the commands.

begin_gate() ->
    Gate = erlmcp_gate:new(#{in_flight => ?IN_FLIGHT, queue => ?QUEUE,
                             queue_per_principal => ?QUEUE_OF_ONE, queue_ms => 50_000}),
    _ = put(?MODULE, (initial_state())#{gate => Gate, processes => processes(Gate),
                                        clients => #{}}),
    Gate.

%% All clients leave, and then nothing is held.
is_empty(Gate) ->
    #{clients := Clients} = get(?MODULE),
    _ = drain(),
    _ = [leave(Client) || Client <- lists:sort(maps:keys(Clients))],
    _ = [leave(Client) || Client <- lists:sort(maps:keys(Clients))],
    lists:all(fun(Count) -> Count =:= 0 end, counts(Gate)) andalso erlmcp_gate:calls(Gate) =:= [].

end_gate() ->
    #{processes := {Permits, Queue}, clients := Clients} = erase(?MODULE),
    stop([Permits, Queue | maps:values(Clients)]).

enter(Client, Tenant) ->
    #{gate := Gate, clients := Clients} = There = get(?MODULE),
    #{in_flight := InFlight, waiting := Waiting} = There,
    case Clients of
        #{Client := _} ->
            settled(none);
        #{} ->
            Self = self(),
            Pid = spawn_link(fun() -> client(Client, Tenant, Gate, Self) end),
            One = {Client, Tenant},
            receive
                {Client, in_flight} ->
                    _ = put(?MODULE, There#{clients := Clients#{Client => Pid},
                                            in_flight := InFlight ++ [One]}),
                    settled(in_flight);
                {Client, waits} ->
                    _ = put(?MODULE, There#{clients := Clients#{Client => Pid},
                                            waiting := Waiting ++ [One]}),
                    settled(waits);
                {Client, Refused} ->
                    settled(Refused)
            end
    end.

client(Client, Tenant, Gate, Runner) ->
    case erlmcp_gate:enter(Gate, request(Tenant)) of
        {ok, Permit} ->
            Waits = erlmcp_gate:waits(Permit),
            Runner ! {Client, case Waits of true -> waits; false -> in_flight end},
            inside(Client, erlmcp_gate:await(Permit, 50_000), Waits, Permit, Runner);
        Refused ->
            Runner ! {Client, refused(Refused)}
    end.

inside(Client, {ok, _}, Waited, Permit, Runner) ->
    _ = Waited andalso (Runner ! {Client, granted}),
    receive
        leave ->
            ok = erlmcp_gate:leave(Permit),
            Runner ! {Client, left}
    end;
inside(_, {refuse, _}, true, _, _) ->
    %% Another process has left for it.
    ok.

leave(Client) ->
    case get(?MODULE) of
        #{clients := #{Client := Pid}, in_flight := InFlight} ->
            case lists:keymember(Client, 1, InFlight) of
                true ->
                    Pid ! leave,
                    receive {Client, left} -> ok end,
                    gone(Client);
                false ->
                    %% It waits, and reads no message: to end is to leave.
                    kill(Client)
            end;
        _ ->
            settled(none)
    end.

kill(Client) ->
    case get(?MODULE) of
        #{clients := #{Client := Pid}, processes := {Permits, Queue}} ->
            ok = stop([Pid]),
            ok = looks(Permits, 1),
            %% The queue sends itself this every tenth of a second.
            Queue ! timer,
            gone(Client);
        _ ->
            settled(none)
    end.

gone(Client) ->
    #{clients := Clients, in_flight := InFlight, waiting := Waiting} = There = get(?MODULE),
    _ = put(?MODULE, There#{clients := maps:remove(Client, Clients),
                            in_flight := lists:keydelete(Client, 1, InFlight),
                            waiting := lists:keydelete(Client, 1, Waiting)}),
    settled(none).

limit(Limit) ->
    #{gate := Gate} = There = get(?MODULE),
    ok = erlmcp_gate:limit(Gate, Limit),
    _ = put(?MODULE, There#{limit := Limit}),
    settled(none).

drain() ->
    #{gate := Gate} = There = get(?MODULE),
    ok = erlmcp_gate:drain(Gate),
    _ = put(?MODULE, There#{draining := true}),
    settled(none).

look() ->
    #{processes := {Permits, _}} = get(?MODULE),
    ok = looks(Permits, 1),
    settled(none).

%% Waits until all waiting clients are in the queue, and the granted ones have told it.
settled(Answer) ->
    #{gate := Gate, clients := Clients, processes := {_, Queue}} = get(?MODULE),
    ok = granted(),
    #{waiting := Waiting} = There = get(?MODULE),
    Wait = fun() -> lists:all(fun({Client, _}) -> waits(map_get(Client, Clients)) end, Waiting) end,
    case Wait() andalso is_tuple(sys:get_state(Queue)) andalso Wait() of
        true ->
            #{answer => Answer, held => counts(Gate),
              now => maps:with([in_flight, waiting, limit, draining], There)};
        false ->
            receive after 1 -> settled(Answer) end
    end.

%% The client has asked the queue, and has no answer yet.
waits(Pid) ->
    process_info(Pid, [status, current_function, message_queue_len])
        =:= [{status, waiting}, {current_function, {erlmcp_gate_queue, answered, 4}},
             {message_queue_len, 0}].

granted() ->
    receive
        {Client, granted} ->
            #{in_flight := InFlight, waiting := Waiting} = There = get(?MODULE),
            {value, One, Still} = lists:keytake(Client, 1, Waiting),
            _ = put(?MODULE, There#{in_flight := InFlight ++ [One], waiting := Still}),
            granted()
    after 0 -> ok
    end.

counts(Gate) ->
    Counters = [in_flight, waiting, waiting_bytes, {waiting, ada}, {waiting, bob}, {waiting, eve}],
    [erlmcp_gate:held(Gate, Counter) || Counter <- Counters]
        ++ [length(erlmcp_gate:calls(Gate))].

%% The limits of the server and of a tenant hold during a look at the permits. There is only one
%% look: here no second would pass between three looks, which give back shares without a row.
never_more_than_the_limit(_) ->
    ok = erlmcp_test_property:holds(?FORALL({Limit, OfOne, Processes},
                                            {integer(1, 6), oneof([integer(1, 3), infinity]),
                                             integer(2, 16)},
        begin
            Gate = erlmcp_gate:new(#{in_flight => Limit, in_flight_per_principal => OfOne}),
            {Permits, Queue} = processes(Gate),
            Inside = atomics:new(3, []),
            Run = fun(Tenant) -> [visit(Gate, Tenant, Inside) || _ <- lists:seq(1, 200)] end,
            Look = fun() -> ok = looks(Permits, 1), [] end,
            Most = lists:append(together([Look | [fun() -> Run(1 + N rem 2) end
                                                  || N <- lists:seq(1, Processes)]])),
            true = lists:max([0 | [All || {All, _} <- Most]]) =< Limit,
            true = lists:max([0 | [One || {_, One} <- Most]]) =< OfOne,
            %% Some have entered, and all have left.
            true = length(Most) > 0,
            [0, 0, 0] = [erlmcp_gate:held(Gate, Counter)
                         || Counter <- [in_flight, {principal, 1}, {principal, 2}]],
            ok = stop([Permits, Queue]),
            true
        end), 40).

%% The kills come at any time, also during a look. Half of them are in a gate with room for all, so
%% that most holders are killed as they enter or leave. The other half are in a gate where most wait
%% or are refused.
nothing_leaks_after_100_000_kills(_) ->
    ok = nothing_leaks(50_000, 2_000, 0),
    ok = nothing_leaks(50_000, 60, 1_000).

nothing_leaks(Kills, Room, Waits) ->
    Gate = erlmcp_gate:new(#{in_flight => Room, in_flight_per_principal => Room,
                             queue => Room div 3, queue_per_principal => Room div 6,
                             connections => Room, connections_per_address => Room div 2,
                             connections_per_principal => Room div 2}),
    {Permits, Queue} = processes(Gate),
    Stays = entered(erlmcp_gate:enter(Gate, request(stays))),
    Entered = counters:new(2, []),
    ok = killed(Kills, [], Permits, {Gate, Entered}),
    %% The kills have come to requests that were in flight, and to some that waited.
    [InFlight, Waited] = [counters:get(Entered, Index) || Index <- [1, 2]],
    ct:log("~b were in flight at once, and ~b waited", [InFlight, Waited]),
    [true, true] = [InFlight >= 1_000, Waited >= Waits],
    %% The last permits that were handed over may still be held by the living, who leave.
    lists:foreach(fun(Pid) -> await_end(Pid) end, leaving()),
    ok = looks_for_all(Permits, Queue),
    Counters = [in_flight, asking, connections, waiting, waiting_bytes]
        ++ [{Kind, Of} || Kind <- [principal, waiting, connections, address, tool],
                          Of <- [1, 2, 3]],
    [{in_flight, 1}] = [{Counter, Held} || Counter <- Counters,
                                           Held <- [erlmcp_gate:held(Gate, Counter)], Held =/= 0],
    true = erlmcp_gate:calls(Gate) =:= [self()],
    %% The whole limit is free for others, and no more than that.
    Rest = [entered(erlmcp_gate:enter(Gate, request(N))) || N <- lists:seq(2, Room)],
    false = lists:any(fun erlmcp_gate:waits/1, Rest),
    true = erlmcp_gate:waits(entered(erlmcp_gate:enter(Gate, request(last)))),
    [ok = erlmcp_gate:leave(Permit) || Permit <- [Stays | Rest]],
    stop([Permits, Queue]).

%% A hundred live at a time.
killed(0, Living, _, _) ->
    lists:foreach(fun(Pid) -> exit(Pid, kill), await_end(Pid) end, Living);
killed(Kills, Living, Permits, Of) when length(Living) < 100, Kills > length(Living) ->
    Kind = rand:uniform(5),
    killed(Kills, [spawn(fun() -> live(Kind, 1 + Kind rem 3, Of) end) | Living], Permits, Of);
killed(Kills, Living, Permits, Of) ->
    Monitors = [begin
                    _ = rand:uniform(15) =:= 1 andalso erlang:yield(),
                    Monitor = monitor(process, Pid),
                    true = exit(Pid, kill),
                    Monitor
                end || Pid <- Living],
    _ = Kills rem 500 =:= 0 andalso (Permits ! look),
    ok = lists:foreach(fun(Monitor) -> receive {'DOWN', Monitor, _, _, _} -> ok end end, Monitors),
    killed(Kills - length(Living), [], Permits, Of).

%% Kind 3 asks its client, kind 4 hands its permit over, and 5 leaves none.
live(Kind, Tenant, {Gate, Entered}) ->
    _ = [erlmcp_gate:connect(Gate, #{address => Tenant}), erlmcp_gate:connect_tenant(Gate, Tenant)],
    lives(Kind, Tenant, Gate, Entered).

lives(Kind, Tenant, Gate, Entered) ->
    %% The process's turn ends anywhere in the rest of this function: kills come between two turns.
    _ = erlang:bump_reductions(3_800 + rand:uniform(200)),
    maybe
        {ok, Permit} ?= erlmcp_gate:enter(Gate, request(Tenant)),
        ok = counters:add(Entered, case erlmcp_gate:waits(Permit) of false -> 1; true -> 2 end, 1),
        {ok, Admitted} ?= erlmcp_gate:await(Permit, 1000),
        Tool = erlmcp_gate:enter_definition(Gate, [{{definition, {tool, Tenant}}, {at_once, 2}}]),
        ok = asked(Kind, Admitted, Tenant),
        ok = left(Kind, Admitted),
        _ = [left(Kind, Given) || {ok, Given} <- [Tool]]
    end,
    lives(Kind, Tenant, Gate, Entered).

asked(3, Permit, Tenant) ->
    %% The process's next turn ends in one of these two.
    true = erlang:yield(),
    _ = erlang:bump_reductions(3_950 + rand:uniform(50)),
    ok = erlmcp_gate:pause(Permit),
    erlmcp_gate:resume(Permit, Tenant);
asked(_, _, _) ->
    ok.

left(4, Permit) ->
    Other = spawn(?MODULE, leave_later, [Permit]),
    erlmcp_gate:hand_over(Permit, Other);
left(5, _) ->
    ok;
left(_, Permit) ->
    ok = erlmcp_gate:leave(Permit),
    erlmcp_gate:leave(Permit).

leave_later(Permit) ->
    receive after 0 -> erlmcp_gate:leave(Permit) end.

%% The processes of `leave_later/1`.
leaving() ->
    [Pid || Pid <- processes(),
            process_info(Pid, initial_call) =:= {initial_call, {?MODULE, leave_later, 1}}].
