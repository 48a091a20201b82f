-module(erlmcp_gate_seat).
-moduledoc """
Where a process that enters a gate for one request after the other has the place of the one that it
is at, in a word of its own: a row that is written for each, and taken away, costs more
(`bench/gate.sh`).
The seat has one row in the ledger, `{Holder, Seat}`, from a request of its process until that
rests or ends; an idle connection of HTTP/1.1 or of lines has none. A process has a seat at one
gate.

The word has the share of the place, or none, and above it a number that is another one whenever the
seat is free again. So who leaves names the word as it was, and a ticket that has left says nothing
of the next request. Its process alone takes a seat; anyone may clear it, and who does gives back
the share.

Internal.
""".

-export([take/2, leave/1, give_up/1, clear/1, held/1]).

%% Every request passes here twice.
-compile({inline, [take/3]}).

-export_type([seat/0, taken/0]).

-opaque seat() :: atomics:atomics_ref().
-type taken() :: {seat(), pos_integer()}.

%% A share of one place is below this.
-define(SHARE, (1 bsl 30 - 1)).
%% The word is a small integer.
-define(WORD, (1 bsl 58 - 1)).
-define(FREE(Word), ((((Word) bor ?SHARE) + 1) band ?WORD)).

-doc """
The calling process's seat, with the share of a place in it; `none` where it is taken, or is at
another gate.
""".
-spec take(erlmcp_gate_account:share(), ets:table()) -> taken() | none.
take(Share, Ledger) ->
    case get(?MODULE) of
        {Ledger, Seat} ->
            %% As it is nobody else's, to add nothing is the cheapest way to read it.
            case atomics:add_get(Seat, 1, 0) of
                Word when Word band ?SHARE =:= 0 -> take(Share, Seat, Word);
                _ -> none
            end;
        undefined ->
            Seat = atomics:new(1, []),
            true = ets:insert(Ledger, {self(), Seat}),
            undefined = put(?MODULE, {Ledger, Seat}),
            take(Share, Seat, 0);
        _ ->
            none
    end.

take(Share, Seat, Free) ->
    Word = Free bor Share,
    ok = atomics:put(Seat, 1, Word),
    {Seat, Word}.

-doc "The seat is free again; gives the share, which who called has to give back, if it was in it.".
-spec leave(taken()) -> erlmcp_gate_account:share() | none.
leave({Seat, Word}) ->
    case atomics:compare_exchange(Seat, 1, Word, ?FREE(Word)) of
        ok -> Word band ?SHARE;
        _ -> none
    end.

-doc "The calling process has no seat there any more, unless there is something in it.".
-spec give_up(ets:table()) -> ok.
give_up(Ledger) ->
    case get(?MODULE) of
        {Ledger, Seat} ->
            %% What is in it is for the gate's keeper, if nobody leaves.
            case held(Seat) of
                none ->
                    true = ets:delete(Ledger, self()),
                    _ = erase(?MODULE),
                    ok;
                _ ->
                    ok
            end;
        _ ->
            ok
    end.

-doc "Clears the seat of somebody who takes it no more. Gives the share that was still in it.".
-spec clear(seat()) -> erlmcp_gate_account:share() | none.
clear(Seat) ->
    case atomics:get(Seat, 1) of
        Word when Word band ?SHARE =:= 0 -> none;
        Word -> leave({Seat, Word})
    end.

-doc "The share that is in it.".
-spec held(seat()) -> erlmcp_gate_account:share() | none.
held(Seat) ->
    case atomics:get(Seat, 1) band ?SHARE of
        0 -> none;
        Share -> Share
    end.
