-module(gate_sweep_SUITE).
-moduledoc """
What the gate's keeper gives back in one look at its ledger, however many holders there are and
however many other processes.
""".

-export([suite/0, all/0]).
-export([few_holders_among_many_processes/1, many_holders/1,
         what_was_handed_over_meanwhile_stays/1]).

%% Holders of each kind: those that live, and those that have ended.
-define(FEW, 3).
-define(MANY, 300).
%% Processes that hold nothing.
-define(OTHERS, 1_000).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [few_holders_among_many_processes, many_holders, what_was_handed_over_meanwhile_stays].

few_holders_among_many_processes(_) ->
    Others = [spawn_link(fun() -> receive stop -> ok end end) || _ <- lists:seq(1, ?OTHERS)],
    ok = swept(?FEW),
    lists:foreach(fun(Other) -> Other ! stop end, Others).

many_holders(_) ->
    swept(?MANY).

%% The row was read before, and its holder is no more.
what_was_handed_over_meanwhile_stays(_) ->
    Books = erlmcp_gate_counters:new(1),
    {ok, Held} = erlmcp_gate_counters:take_place(Books),
    Id = erlmcp_gate_counters:write(Held, Books),
    #{ledger := Ledger} = Books,
    [Read] = erlmcp_gate_permits:rows(Ledger),
    {Other, Monitor} = spawn_monitor(fun() -> receive stop -> ok end end),
    ok = erlmcp_gate_counters:hand_over(Id, Other, Books),
    false = erlmcp_gate_counters:leave_as(Read, Books),
    true = erlmcp_gate_counters:is_written(Id, Books),
    [Now] = erlmcp_gate_permits:rows(Ledger),
    true = erlmcp_gate_counters:leave_as(Now, Books),
    [] = erlmcp_gate_permits:rows(Ledger),
    Other ! stop,
    receive {'DOWN', Monitor, process, Other, normal} -> ok end.

swept(Count) ->
    Gate = erlmcp_gate:new(#{in_flight => 3 * Count}),
    {ok, Keeper} = erlmcp_gate_keeper:start_link(Gate),
    Living = [holder(Gate) || _ <- lists:seq(1, Count)],
    Dead = [holder(Gate) || _ <- lists:seq(1, Count)],
    Both = 2 * Count,
    Both = erlmcp_gate:held(Gate, in_flight),
    lists:foreach(fun({Pid, Monitor}) ->
                      exit(Pid, kill),
                      receive {'DOWN', Monitor, process, Pid, killed} -> ok end
                  end, Dead),
    Keeper ! round,
    _ = sys:get_state(Keeper),
    Count = erlmcp_gate:held(Gate, in_flight),
    lists:foreach(fun({Pid, Monitor}) ->
                      Pid ! leave,
                      receive {'DOWN', Monitor, process, Pid, normal} -> ok end
                  end, Living),
    0 = erlmcp_gate:held(Gate, in_flight),
    unlink(Keeper),
    true = exit(Keeper, kill),
    ok.

holder(Gate) ->
    Self = self(),
    {Pid, _} = Holder = spawn_monitor(fun() ->
        {ok, Ticket} = erlmcp_gate:enter(Gate, #{flow => ada, kind => request, bytes => 100}),
        Self ! {holds, self()},
        receive leave -> erlmcp_gate:leave(Ticket) end
    end),
    receive {holds, Pid} -> Holder end.
