-module(erlmcp_cluster_turns).
-moduledoc """
Turns bound how many changes of the cluster's store a node has under way. Leases are renewed in the
same log: behind too many changes, a renewal comes too late, and the node loses its sessions.

Internal.
""".

-export([new/0, run/2]).
-export([make/2]).

-export_type([turns/0]).

-opaque turns() :: counters:counters_ref().

%% Changes that are under way at once, and more that wait.
-define(MOST, 64).
-define(MOST_WAITING, 500).
%% Milliseconds until a change without room tries again, and in all.
-define(TURN_MS, 5).
-define(PATIENCE_MS, 1_000).

-doc "Returns turns of which none is taken.".
-spec new() -> turns().
new() ->
    counters:new(2, []).

-doc """
Calls a fun that makes a change, in a process of its own, when fewer than 64 others are under way.
Returns the fun's result, or `no_turn` if no turn was free within a second, or 500 others wait. The
change is made even if the calling process is killed meanwhile. If the fun fails, this function
exits with the reason.
""".
-spec run(turns(), fun(() -> Result)) -> Result | no_turn.
run(Turns, Do) ->
    %% Nobody kills this process, so what it has counted comes back.
    {_, Monitor} = spawn_monitor(?MODULE, make, [Turns, Do]),
    receive
        {'DOWN', Monitor, process, _, {made, Result}} -> Result;
        {'DOWN', Monitor, process, _, Reason} -> exit(Reason)
    end.

-doc false.
-spec make(turns(), fun(() -> term())) -> no_return().
make(Turns, Do) ->
    ok = erlmcp_label:set([?MODULE]),
    exit({made, in_turn(Turns, Do)}).

in_turn(Turns, Do) ->
    case takes(Turns) orelse waits(Turns) of
        true ->
            try
                Do()
            after
                counters:sub(Turns, 1, 1)
            end;
        false ->
            no_turn
    end.

takes(Turns) ->
    added(1, ?MOST, Turns).

waits(Turns) ->
    added(2, ?MOST_WAITING, Turns) andalso try
        has_turn(Turns, erlmcp_clock:now_ms() + ?PATIENCE_MS)
    after
        counters:sub(Turns, 2, 1)
    end.

added(Word, Most, Turns) ->
    ok = counters:add(Turns, Word, 1),
    counters:get(Turns, Word) =< Most orelse begin
        ok = counters:sub(Turns, Word, 1),
        false
    end.

has_turn(Turns, Until) ->
    receive after ?TURN_MS -> ok end,
    takes(Turns) orelse (erlmcp_clock:now_ms() < Until andalso has_turn(Turns, Until)).
