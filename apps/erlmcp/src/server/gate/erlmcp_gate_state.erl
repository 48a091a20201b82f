-module(erlmcp_gate_state).
-moduledoc """
The places of a gate, in two of its words. All who enter look at the first one: it says whether
nobody may enter any more, which generation it is, how many places there are, and how many are in
the queue. The second one counts those in flight, and its mark says whether the gate's queue is to
be told of a free place, so that who leaves looks at nothing else.

Who enters reads both by adding nothing: `atomics:get/2` waits for all writes before it, and the
second one is to be changed next, beside which the first one is.

Internal.
""".

-include("erlmcp_gate_account.hrl").

-export([new/1, is_draining/1, drain/1, limit/1, limit/2, generation/1, turn/1]).
-export([enter/2, take_place/2, take_freed/2, give_place/3]).
-export([queued/2, call_queue/2, was_called/2]).

%% Every request passes here twice.
-compile({inline, [place/4, was_called/3]}).

-define(STATE, 9).
-define(DRAINING, 2#1).
-define(GENERATION, 2#10).
-define(LIMIT_AT, 2).
-define(QUEUED_AT, 30).
-define(MOST, (1 bsl 28 - 1)).
-define(GENERATION_OF(State), (((State) bsr 1) band 1)).
-define(LIMIT_OF(State), (((State) bsr ?LIMIT_AT) band ?MOST)).
-define(QUEUED_OF(State), ((State) bsr ?QUEUED_AT)).

-doc "Any number of requests may be in flight, until `limit/2`.".
-spec new(erlmcp_gate_account:words()) -> ok.
new(Words) ->
    atomics:put(Words, ?STATE, erlmcp_gate_account:most() bsl ?LIMIT_AT).

-doc "Whether nobody may enter any more.".
-spec is_draining(erlmcp_gate_account:words()) -> boolean().
is_draining(Words) ->
    atomics:get(Words, ?STATE) band ?DRAINING =/= 0.

-doc "Nobody may enter any more.".
-spec drain(erlmcp_gate_account:words()) -> ok.
drain(Words) ->
    _ = change(fun(State) -> State bor ?DRAINING end, Words),
    ok.

%% Gives what the first word was.
change(Change, Words) ->
    change(Change, Words, atomics:get(Words, ?STATE)).

change(Change, Words, State) ->
    case atomics:compare_exchange(Words, ?STATE, State, Change(State)) of
        ok -> State;
        Other -> change(Change, Words, Other)
    end.

-doc "How many requests may be in flight.".
-spec limit(erlmcp_gate_account:words()) -> pos_integer().
limit(Words) ->
    ?LIMIT_OF(atomics:get(Words, ?STATE)).

-doc "From now on so many may.".
-spec limit(pos_integer(), erlmcp_gate_account:words()) -> ok.
limit(Limit, Words) ->
    Places = min(Limit, erlmcp_gate_account:most()),
    _ = change(fun(State) ->
                   State band bnot (?MOST bsl ?LIMIT_AT) bor (Places bsl ?LIMIT_AT)
               end, Words),
    ok.

-doc "Which generation it is.".
-spec generation(erlmcp_gate_account:words()) -> erlmcp_gate_account:generation().
generation(Words) ->
    ?GENERATION_OF(atomics:get(Words, ?STATE)).

-doc "The other generation begins; gives the one that is over. The keeper alone changes it.".
-spec turn(erlmcp_gate_account:words()) -> erlmcp_gate_account:generation().
turn(Words) ->
    ?GENERATION_OF(change(fun(State) -> State bxor ?GENERATION end, Words)).

-doc "Takes a place (`take_place/2`), where one may still enter.".
-spec enter(InFlight :: erlmcp_gate_account:index(), erlmcp_gate_account:words()) ->
    erlmcp_gate_account:share() | {full, Limit :: pos_integer(), pos_integer()} | draining.
enter(InFlight, Words) ->
    case atomics:add_get(Words, ?STATE, 0) of
        State when State band ?DRAINING =/= 0 -> draining;
        State -> place(InFlight, ?LIMIT_OF(State) - ?QUEUED_OF(State), State, Words)
    end.

-doc """
Takes a place in flight, where one is left when all that are in the queue have theirs: nobody
overtakes them.
""".
-spec take_place(InFlight :: erlmcp_gate_account:index(), erlmcp_gate_account:words()) ->
    erlmcp_gate_account:share() | {full, Limit :: pos_integer(), pos_integer()}.
take_place(InFlight, Words) ->
    State = atomics:add_get(Words, ?STATE, 0),
    place(InFlight, ?LIMIT_OF(State) - ?QUEUED_OF(State), State, Words).

-doc "Takes one for who is first in the queue.".
-spec take_freed(InFlight :: erlmcp_gate_account:index(), erlmcp_gate_account:words()) ->
    erlmcp_gate_account:share() | {full, Limit :: pos_integer(), pos_integer()}.
take_freed(InFlight, Words) ->
    State = atomics:add_get(Words, ?STATE, 0),
    place(InFlight, ?LIMIT_OF(State), State, Words).

%% The queue is looked at first. When the place is taken at the first try nothing has changed since
%% of what is in flight, and so those that were in the queue then have got theirs, or find them. At
%% a later one it may overtake who came to the queue meanwhile.
place(InFlight, Most, State, Words) ->
    case atomics:add_get(Words, InFlight, 0) of
        Word when ?IS_FULL(Word, 1, Most) ->
            {full, ?LIMIT_OF(State), ?HELD(Word) + 1};
        Word ->
            Share = ?SHARE(1, ?GENERATION_OF(State)),
            case atomics:compare_exchange(Words, InFlight, Word, Word + Share) of
                ok -> Share;
                _ -> another_try(InFlight, Most, State, Words)
            end
    end.

another_try(InFlight, Most, State, Words) ->
    place(InFlight, Most, State, Words).

-doc "Gives back a place; whether the queue wanted to be told of that, and does not any more.".
-spec give_place(InFlight :: erlmcp_gate_account:index(), erlmcp_gate_account:share(),
                 erlmcp_gate_account:words()) -> boolean().
give_place(InFlight, Share, Words) ->
    case atomics:add_get(Words, InFlight, -Share) of
        Word when ?IS_BELOW_ZERO(Word) ->
            %% It was corrected by what it still had.
            ok = atomics:add(Words, InFlight, Share),
            was_called(InFlight, Words);
        Word ->
            was_called(InFlight, Word, Words)
    end.

-doc "So many are in the queue.".
-spec queued(non_neg_integer(), erlmcp_gate_account:words()) -> ok.
queued(Count, Words) ->
    _ = change(fun(State) ->
                   State band (1 bsl ?QUEUED_AT - 1) bor (Count bsl ?QUEUED_AT)
               end, Words),
    ok.

-doc "The queue wants to be told, once, when there is a place.".
-spec call_queue(InFlight :: erlmcp_gate_account:index(), erlmcp_gate_account:words()) -> ok.
call_queue(InFlight, Words) ->
    call_queue(InFlight, Words, atomics:get(Words, InFlight)).

%% A count that is below zero has borrowed the mark, for a moment; the queue looks again by itself.
call_queue(_, _, Word) when ?IS_BELOW_ZERO(Word); Word band ?MARK =/= 0 ->
    ok;
call_queue(InFlight, Words, Word) ->
    case atomics:compare_exchange(Words, InFlight, Word, Word + ?MARK) of
        ok -> ok;
        Other -> call_queue(InFlight, Words, Other)
    end.

-doc "Whether it wants that; from now on it does not. Of several who ask one alone hears `true`.".
-spec was_called(InFlight :: erlmcp_gate_account:index(), erlmcp_gate_account:words()) -> boolean().
was_called(InFlight, Words) ->
    case atomics:get(Words, InFlight) of
        %% As it has borrowed the mark nobody may take that: who gives it back looks once more.
        Word when ?IS_BELOW_ZERO(Word) -> false;
        Word -> was_called(InFlight, Word, Words)
    end.

was_called(_, Word, _) when Word band ?MARK =:= 0 ->
    false;
was_called(InFlight, Word, Words) ->
    case atomics:compare_exchange(Words, InFlight, Word, Word - ?MARK) of
        ok -> true;
        _ -> was_called(InFlight, Words)
    end.
