-module(erlmcp_gate_account).
-moduledoc """
What is held of a bound: one word of an `atomics` array, read and changed by those who take and give
back, with nobody between them. Taking is one compare-and-exchange, so that never more than the
limit is held, and never less is refused.

A taker may be killed after it took and before anyone knows that it did. So a word has two counts,
one for each of two generations that take turns: nothing is added to the count of the generation
that is over, which shows what of it nobody has any more. An idle word can be closed, once and for
all, while others try to take from it.

Internal.
""".

-include("erlmcp_gate_account.hrl").

-export([take/4, give/3, close/2, reset/2, most/0]).
-export([held/2, held/3, amount/2, correct/4]).

-export_type([words/0, index/0, generation/0]).

-type words() :: atomics:atomics_ref().
-type index() :: pos_integer().
-type generation() :: 0 | 1.
-doc "An amount, as it is counted in a generation.".
-type share() :: pos_integer().

-export_type([share/0]).

%% Of an account's word the mark says that it is closed. Nothing is held of it then.
-define(CLOSED, ?MARK).

-doc """
Takes an amount, if no more than the limit is held then. What was taken is given back with the
share.
""".
-spec take(words(), index(), {pos_integer(), generation()}, Limit :: integer()) ->
    {ok, share()} | {full, Observed :: pos_integer()} | closed.
take(Words, Index, {Amount, Generation} = Wanted, Limit) ->
    %% It is read by adding nothing: it is to be changed next.
    case atomics:add_get(Words, Index, 0) of
        ?CLOSED ->
            closed;
        Word when ?IS_FULL(Word, Amount, Limit) ->
            {full, ?HELD(Word) + Amount};
        Word ->
            Share = ?SHARE(Amount, Generation),
            case atomics:compare_exchange(Words, Index, Word, Word + Share) of
                ok -> {ok, Share};
                _ -> take(Words, Index, Wanted, Limit)
            end
    end.

-doc "Gives back a share.".
-spec give(words(), index(), share()) -> ok.
give(Words, Index, Share) ->
    case atomics:add_get(Words, Index, -Share) of
        %% It was corrected by what it still had.
        Word when ?IS_BELOW_ZERO(Word) -> atomics:add(Words, Index, Share);
        _ -> ok
    end.

-doc "Closes a word of which nothing is held.".
-spec close(words(), index()) -> boolean().
close(Words, Index) ->
    atomics:compare_exchange(Words, Index, 0, ?CLOSED) =:= ok.

-doc "Opens a closed or new word, of which nothing is held.".
-spec reset(words(), index()) -> ok.
reset(Words, Index) ->
    atomics:put(Words, Index, 0).

-doc "More than this cannot be held.".
-spec most() -> pos_integer().
most() ->
    ?BELOW_ZERO - 1.

-doc "How much is held.".
-spec held(words(), index()) -> non_neg_integer().
held(Words, Index) ->
    held(Words, Index, 0) + held(Words, Index, 1).

-doc "How much of it was taken in generations of this number.".
-spec held(words(), index(), generation()) -> non_neg_integer().
held(Words, Index, Generation) ->
    ?COUNT(atomics:get(Words, Index) bsr (?BITS * Generation)).

-doc "What a share is of a generation: its amount, or 0 for the other one.".
-spec amount(share(), generation()) -> non_neg_integer().
amount(Share, Generation) ->
    ?COUNT(Share bsr (?BITS * Generation)).

-doc "Sets right the count of a generation that is over: so much more of it is held, or less.".
-spec correct(words(), index(), generation(), integer()) -> ok.
correct(Words, Index, Generation, More) ->
    Share = ?SHARE(More, Generation),
    case atomics:add_get(Words, Index, Share) of
        %% It was given back just before.
        Word when More < 0, ?IS_BELOW_ZERO(Word) -> atomics:sub(Words, Index, Share);
        _ -> ok
    end.
