-module(erlmcp_cluster_turns).
-moduledoc """
Turns bound how many changes of the cluster's store a node has under way. Leases are renewed in the
same log: behind too many changes, a renewal comes too late, and the node loses its sessions. A
client whose changes wait leaves room for those of others.

Internal.
""".

-export([new/0, run/3]).
-export([make/3]).

-export_type([turns/0]).

-opaque turns() :: counters:counters_ref().

%% Changes that are under way at once, and more that wait.
-define(MOST, 64).
-define(MOST_WAITING, 500).
%% Changes of one client that may wait in any case, and words that count those of clients. Clients
%% that have the same word are counted as one.
-define(LEAST_OF_CLIENT, 10).
-define(CLIENTS, 1024).
%% Milliseconds until a change without room tries again, and in all.
-define(TURN_MS, 5).
-define(PATIENCE_MS, 1_000).

-doc "Returns turns of which none is taken.".
-spec new() -> turns().
new() ->
    counters:new(2 + ?CLIENTS, []).

-doc """
Calls a fun that makes a change of a client, in a process of its own, when fewer than 64 others are
under way. Returns the fun's result, or `no_turn` if no turn was free within a second, or 500 others
wait. A client may have as many changes waiting as could still wait, and ten in any case. The change
is made even if the calling process is killed meanwhile. If the fun fails, this function exits with
the reason.
""".
-spec run(Client :: term(), turns(), fun(() -> Result)) -> Result | no_turn.
run(Client, Turns, Do) ->
    %% Nobody kills this process, so what it has counted comes back.
    {_, Monitor} = spawn_monitor(?MODULE, make, [erlang:phash2(Client, ?CLIENTS), Turns, Do]),
    receive
        {'DOWN', Monitor, process, _, {made, Result}} -> Result;
        {'DOWN', Monitor, process, _, Reason} -> exit(Reason)
    end.

-doc false.
-spec make(Client :: non_neg_integer(), turns(), fun(() -> term())) -> no_return().
make(Client, Turns, Do) ->
    ok = erlmcp_label:set([?MODULE]),
    exit({made, in_turn(Client, Turns, Do)}).

in_turn(Client, Turns, Do) ->
    case takes(Turns) orelse waits(Client, Turns) of
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

waits(Client, Turns) ->
    Left = ?MOST_WAITING - counters:get(Turns, 2),
    waits(3 + Client, max(?LEAST_OF_CLIENT, Left), Turns, fun() ->
        waits(2, ?MOST_WAITING, Turns, fun() ->
            has_turn(Turns, erlmcp_clock:now_ms() + ?PATIENCE_MS)
        end)
    end).

waits(Word, Most, Turns, Wait) ->
    added(Word, Most, Turns) andalso try
        Wait()
    after
        counters:sub(Turns, Word, 1)
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
