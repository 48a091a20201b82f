-module(erlmcp_gate_permits).
-moduledoc """
Who holds what of a gate's accounts: a row for each ticket, and one for each process that has a seat
(`m:erlmcp_gate_seat`). What was taken is written here, and is given back by who takes the row away,
so that it is given back once, by whomever. The rows of those who died are found by the gate's
keeper.

Internal.
""".

-export([new/0, write/4, has/2, take_as/2, take_seat/2, hand_over/3, add/3, replace/3, rows/1]).

-export_type([ledger/0, id/0, shares/0, row/0]).

-type ledger() :: ets:table().
-doc "The number of a ticket; of one that was in a seat, what it was there.".
-type id() :: integer() | erlmcp_gate_seat:taken().
-type shares() :: [{erlmcp_gate_account:index(), erlmcp_gate_account:share()}].
-doc "`Waits` is held as long as it waits.".
-type ticket() :: {id(), Holder :: pid(), Held :: shares(), Waits :: shares()}.
-type row() :: ticket() | {Holder :: pid(), erlmcp_gate_seat:seat()}.

-doc "A ledger; it belongs to the calling process.".
-spec new() -> ledger().
new() ->
    ets:new(erlmcp_gate_permits, [public, {write_concurrency, auto}]).

-doc "The calling process holds this. Gives the number.".
-spec write(id(), shares(), Waits :: shares(), ledger()) -> id().
write(Id, Held, Waits, Ledger) ->
    true = ets:insert(Ledger, {Id, self(), Held, Waits}),
    Id.

-doc "Whether there is a row of this number.".
-spec has(id(), ledger()) -> boolean().
has(Id, Ledger) ->
    ets:member(Ledger, Id).

-doc "Takes a row away as it was read, if it is still that; whether it was.".
-spec take_as(ticket(), ledger()) -> boolean().
take_as({Id, Holder, Held, Waits}, Ledger) ->
    ets:select_delete(Ledger, [{{Id, Holder, '$1', '$2'},
                                [{'=:=', '$1', {const, Held}}, {'=:=', '$2', {const, Waits}}],
                                [true]}]) =:= 1.

-doc "Takes away the row of a seat; whether it was there.".
-spec take_seat({Holder :: pid(), erlmcp_gate_seat:seat()}, ledger()) -> boolean().
take_seat({_, _} = Row, Ledger) ->
    %% Its process may have another one since.
    ets:select_delete(Ledger, [{Row, [], [true]}]) =:= 1.

-doc "Another process holds it.".
-spec hand_over(id(), pid(), ledger()) -> boolean().
hand_over(Id, Pid, Ledger) ->
    ets:update_element(Ledger, Id, {2, Pid}).

-doc "More is held; only the holder says so. `false` where the row is gone.".
-spec add(id(), shares(), ledger()) -> boolean().
add(Id, More, Ledger) ->
    try ets:lookup_element(Ledger, Id, 3) of
        Held -> ets:update_element(Ledger, Id, {3, More ++ Held})
    catch
        error:badarg -> false
    end.

-doc """
What waited holds this now, and nothing for waiting; only who waits, or its queue, says so. `false`
where the row is gone.
""".
-spec replace(id(), shares(), ledger()) -> boolean().
replace(Id, Held, Ledger) ->
    ets:update_element(Ledger, Id, [{3, Held}, {4, []}]).

-doc """
All rows that are there the whole time, and some of those that come or go meanwhile. What is taken
away meanwhile stays in its table until this is over, so a caller should not be kept from it.
""".
-spec rows(ledger()) -> [row()].
rows(Ledger) ->
    ets:tab2list(Ledger).
