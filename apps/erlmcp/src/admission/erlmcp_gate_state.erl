-module(erlmcp_gate_state).
-moduledoc """
What all who enter and leave a gate look at: one word among its words, since each look at one is a
barrier. It says whether nobody may enter any more, which generation it is, whether the gate's queue
is to be told of a free place, how many places there are, and how many are in the queue. Places are
taken here, of the word that counts those in flight.
""".

-export([new/1, is_draining/1, drain/1, limit/1, limit/2, generation/1, turn/1]).
-export([enter/2, take_place/2, take_freed/2]).
-export([queued/2, call_queue/1, is_called/1, was_called/1]).

%% Every request passes here twice.
-compile({inline, [take_place/4]}).

-define(STATE, 1).
-define(DRAINING, 2#1).
-define(GENERATION, 2#10).
-define(CALLED, 2#100).
-define(LIMIT_AT, 3).
-define(QUEUED_AT, 31).
-define(MOST, (1 bsl 28 - 1)).
-define(GENERATION_OF(State), (((State) bsr 1) band 1)).
-define(LIMIT_OF(State), (((State) bsr ?LIMIT_AT) band ?MOST)).
-define(QUEUED_OF(State), ((State) bsr ?QUEUED_AT)).

-doc "It is the first word; any number of requests may be in flight, until `limit/2`.".
-spec new(erlmcp_account:words()) -> ok.
new(Words) ->
    atomics:put(Words, ?STATE, erlmcp_account:most() bsl ?LIMIT_AT).

-doc "Whether nobody may enter any more.".
-spec is_draining(erlmcp_account:words()) -> boolean().
is_draining(Words) ->
    atomics:get(Words, ?STATE) band ?DRAINING =/= 0.

-doc "Nobody may enter any more.".
-spec drain(erlmcp_account:words()) -> ok.
drain(Words) ->
    _ = change(fun(State) -> State bor ?DRAINING end, Words),
    ok.

%% Gives what it was.
change(Change, Words) ->
    change(Change, Words, atomics:get(Words, ?STATE)).

change(Change, Words, State) ->
    case atomics:compare_exchange(Words, ?STATE, State, Change(State)) of
        ok -> State;
        Other -> change(Change, Words, Other)
    end.

-doc "How many requests may be in flight.".
-spec limit(erlmcp_account:words()) -> pos_integer().
limit(Words) ->
    ?LIMIT_OF(atomics:get(Words, ?STATE)).

-doc "From now on so many may.".
-spec limit(pos_integer(), erlmcp_account:words()) -> ok.
limit(Limit, Words) ->
    Places = min(Limit, erlmcp_account:most()),
    _ = change(fun(State) ->
                   State band bnot (?MOST bsl ?LIMIT_AT) bor (Places bsl ?LIMIT_AT)
               end, Words),
    ok.

-doc "Which generation it is.".
-spec generation(erlmcp_account:words()) -> erlmcp_account:generation().
generation(Words) ->
    ?GENERATION_OF(atomics:get(Words, ?STATE)).

-doc "The other generation begins; gives the one that is over. The keeper alone changes it.".
-spec turn(erlmcp_account:words()) -> erlmcp_account:generation().
turn(Words) ->
    ?GENERATION_OF(change(fun(State) -> State bxor ?GENERATION end, Words)).

-doc "Takes a place (`take_place/2`), where one may still enter. `InFlight` counts places.".
-spec enter(InFlight :: erlmcp_account:index(), erlmcp_account:words()) ->
    {ok, erlmcp_account:share()} | {full, Limit :: pos_integer(), pos_integer()} | draining.
enter(InFlight, Words) ->
    case atomics:get(Words, ?STATE) of
        State when State band ?DRAINING =/= 0 -> draining;
        State -> take_place(InFlight, ?QUEUED_OF(State), State, Words)
    end.

-doc """
Takes a place in flight, where one is left when all that are in the queue have theirs: nobody
overtakes them.
""".
-spec take_place(InFlight :: erlmcp_account:index(), erlmcp_account:words()) ->
    {ok, erlmcp_account:share()} | {full, Limit :: pos_integer(), pos_integer()}.
take_place(InFlight, Words) ->
    State = atomics:get(Words, ?STATE),
    take_place(InFlight, ?QUEUED_OF(State), State, Words).

-doc "Takes one for who is first in the queue.".
-spec take_freed(InFlight :: erlmcp_account:index(), erlmcp_account:words()) ->
    {ok, erlmcp_account:share()} | {full, Limit :: pos_integer(), pos_integer()}.
take_freed(InFlight, Words) ->
    take_place(InFlight, 0, atomics:get(Words, ?STATE), Words).

%% The queue is looked at first. When the place is taken at the first try nothing has changed since
%% of what is in flight, and so those that were in the queue then have got theirs, or find them. At
%% a later one it may overtake who came to the queue meanwhile.
take_place(InFlight, Queued, State, Words) ->
    Limit = ?LIMIT_OF(State),
    Amount = {1, ?GENERATION_OF(State)},
    case erlmcp_account:take(Words, InFlight, Amount, Limit - Queued) of
        {ok, _} = Taken -> Taken;
        {full, Observed} -> {full, Limit, Observed}
    end.

-doc "So many are in the queue.".
-spec queued(non_neg_integer(), erlmcp_account:words()) -> ok.
queued(Count, Words) ->
    _ = change(fun(State) ->
                   State band (1 bsl ?QUEUED_AT - 1) bor (Count bsl ?QUEUED_AT)
               end, Words),
    ok.

-doc "The queue wants to be told, once, when there is a place.".
-spec call_queue(erlmcp_account:words()) -> ok.
call_queue(Words) ->
    _ = change(fun(State) -> State bor ?CALLED end, Words),
    ok.

-doc "Whether it wants that.".
-spec is_called(erlmcp_account:words()) -> boolean().
is_called(Words) ->
    atomics:get(Words, ?STATE) band ?CALLED =/= 0.

-doc "The same; from now on it does not. Of several who ask one alone hears `true`.".
-spec was_called(erlmcp_account:words()) -> boolean().
was_called(Words) ->
    change(fun(State) -> State band bnot ?CALLED end, Words) band ?CALLED =/= 0.
