-module(erlmcp_cluster_turns).
-moduledoc """
Turns bound how many changes of the cluster's store a node has under way. Leases are renewed in the
same log: behind too many changes, a renewal comes too late, and the node loses its sessions. The
changes of one client leave room for those of others.

Internal.
""".

-export([new/0, run/3]).
-export([make/3]).

-export_type([turns/0]).

-opaque turns() :: counters:counters_ref().

%% Changes that are under way at once, and more that wait.
-define(MOST, 64).
-define(MOST_WAITING, 500).
%% Changes of one client that may be under way, and more that may wait, in any case.
-define(LEAST_OF_CLIENT, 10).
%% The words that count the changes of all clients. Behind each are the words of single clients.
%% Clients that have the same word are counted as one.
-define(UNDER_WAY, 1).
-define(CLIENTS, 1024).
-define(WAITING, (?UNDER_WAY + 1 + ?CLIENTS)).
%% Milliseconds until a change without room tries again, and in all.
-define(TURN_MS, 5).
-define(PATIENCE_MS, 1_000).

-doc "Returns turns of which none is taken.".
-spec new() -> turns().
new() ->
    counters:new(?WAITING + ?CLIENTS, []).

-doc """
Calls the fun, which makes a change of `Client`, in a process of its own. Returns the fun's result.
At most 64 changes have a turn and are under way. A change waits if no turn is free for its client.
Returns `no_turn` if none was free within a second. Returns `no_turn` at once if 500 changes wait
already, or too many of this client.

A client may have as many changes under way as turns are still free, and as many waiting as places
to wait are still free. It may always have ten of each, as long as one is free. The change is made
even if the calling process is killed meanwhile. If the fun fails, this function exits with the
reason.
""".
-spec run(Client :: term(), turns(), fun(() -> Result)) -> Result | no_turn.
run(Client, Turns, Do) ->
    %% Nobody kills this process, so what it has counted comes back.
    {_, Monitor} = spawn_monitor(?MODULE, make, [1 + erlang:phash2(Client, ?CLIENTS), Turns, Do]),
    receive
        {'DOWN', Monitor, process, _, {made, Result}} -> Result;
        {'DOWN', Monitor, process, _, Reason} -> exit(Reason)
    end.

-doc false.
-spec make(Client :: pos_integer(), turns(), fun(() -> term())) -> no_return().
make(Client, Turns, Do) ->
    ok = erlmcp_label:set([?MODULE]),
    exit({made, in_turn(Client, Turns, Do)}).

in_turn(Client, Turns, Do) ->
    case takes(?UNDER_WAY, Client, ?MOST, Turns) orelse waits(Client, Turns) of
        true ->
            try
                Do()
            after
                give_back(?UNDER_WAY, Client, Turns)
            end;
        false ->
            no_turn
    end.

waits(Client, Turns) ->
    takes(?WAITING, Client, ?MOST_WAITING, Turns) andalso try
        has_turn(Client, Turns, erlmcp_clock:now_ms() + ?PATIENCE_MS)
    after
        give_back(?WAITING, Client, Turns)
    end.

has_turn(Client, Turns, Until) ->
    receive after ?TURN_MS -> ok end,
    takes(?UNDER_WAY, Client, ?MOST, Turns)
        orelse (erlmcp_clock:now_ms() < Until andalso has_turn(Client, Turns, Until)).

%% Counts a change among those of all clients, and of its own.
takes(Of, Client, Most, Turns) ->
    Left = Most - counters:get(Turns, Of),
    added(Of + Client, max(?LEAST_OF_CLIENT, Left), Turns) andalso
        (added(Of, Most, Turns) orelse begin
             ok = counters:sub(Turns, Of + Client, 1),
             false
         end).

added(Word, Most, Turns) ->
    ok = counters:add(Turns, Word, 1),
    counters:get(Turns, Word) =< Most orelse begin
        ok = counters:sub(Turns, Word, 1),
        false
    end.

give_back(Of, Client, Turns) ->
    ok = counters:sub(Turns, Of + Client, 1),
    counters:sub(Turns, Of, 1).
