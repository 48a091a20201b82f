-module(erlmcp_gate_accounts).
-moduledoc """
The accounts of a gate: who or what has bounds of its own, each with a few words of the gate's array
(`m:erlmcp_gate_account`, `m:erlmcp_rate`). They are as many as the array has places for; one that
is idle makes room for another.

An account is found in a table, by everybody. It is opened by who needs it first, and closed by the
gate's keeper: its first word decides whether it is.

Internal.
""".

-export([new/2, find/2, known/2, take/5]).
-export([indexes/1, close_idle/2, free/2, lost/1]).

-export_type([accounts/0, key/0]).

-type key() :: {Kind :: atom(), term()}.
-type accounts() :: #{
    words := erlmcp_gate_account:words(), table := ets:table(), free := ets:table(),
    first := pos_integer(), places := pos_integer()
}.

%% The words of an account: what is held, and a rate for each period. So far apart that two accounts
%% share no line of a processor's cache.
-define(STRIDE, 8).

-doc """
Accounts for so many, and the array of their words, which begins with so many words for others. The
tables belong to the calling process.
""".
-spec new(Places :: pos_integer(), Before :: non_neg_integer()) -> accounts().
new(Places, Before) ->
    Free = ets:new(erlmcp_free_accounts, [public, ordered_set]),
    true = ets:insert(Free, {next, 0}),
    #{words => atomics:new(Before + ?STRIDE * Places, [{signed, true}]),
      %% Without `read_concurrency`, which makes each look dearer: its locks are many as it is.
      table => ets:new(erlmcp_gate_accounts, [public, {write_concurrency, auto}]),
      free => Free, first => Before + 1, places => Places}.

-doc "The account of this key: the index of its first word. `full` where no other can be opened.".
-spec find(key(), accounts()) -> {ok, erlmcp_gate_account:index()} | full.
find(Key, #{table := Table} = Accounts) ->
    case ets:lookup(Table, Key) of
        [{_, Index}] -> {ok, Index};
        [] -> open(Key, Accounts)
    end.

open(Key, #{table := Table, words := Words} = Accounts) ->
    case place(Accounts) of
        {ok, Index} ->
            ok = erlmcp_rate:reset(Words, Index),
            ok = erlmcp_gate_account:reset(Words, Index),
            case ets:insert_new(Table, {Key, Index}) of
                true ->
                    {ok, Index};
                false ->
                    ok = free(Index, Accounts),
                    find(Key, Accounts)
            end;
        full ->
            full
    end.

%% What was used before comes first, so that what was never used stays untouched.
place(#{free := Free, first := First, places := Places} = Accounts) ->
    case ets:first(Free) of
        next ->
            %% Stays one above what there is when all are in use.
            case ets:update_counter(Free, next, {2, 1, Places, Places + 1}) of
                Place when Place =< Places -> {ok, First + ?STRIDE * (Place - 1)};
                _ -> full
            end;
        Index ->
            case ets:take(Free, Index) of
                [_] -> {ok, Index};
                [] -> place(Accounts)
            end
    end.

-doc "The account of this key, if there is one.".
-spec known(key(), accounts()) -> {ok, erlmcp_gate_account:index()} | none.
known(Key, #{table := Table}) ->
    case ets:lookup(Table, Key) of
        [{_, Index}] -> {ok, Index};
        [] -> none
    end.

-doc "Counts a message in rates of an account, and takes one of what it holds.".
-spec take(key(), {[erlmcp_rate:rate()], Now :: pos_integer()}, erlmcp_gate_account:generation(),
           Limit :: non_neg_integer(), accounts()) ->
    {ok, {erlmcp_gate_account:index(), erlmcp_gate_account:share()}}
    | {full, Observed :: pos_integer()}
    | {wait, erlmcp_rate:rate(), Milliseconds :: pos_integer()}
    | full.
take(Key, {Rates, Now} = Counted, Generation, Limit, #{words := Words} = Accounts) ->
    maybe
        {ok, Index} ?= find(Key, Accounts),
        ok ?= erlmcp_rate:take_all(Rates, Words, Index, Now),
        case erlmcp_gate_account:take(Words, Index, {1, Generation}, Limit) of
            {ok, Share} ->
                {ok, {Index, Share}};
            {full, _} = Full ->
                Full;
            closed ->
                ok = forget(Key, Index, Accounts),
                take(Key, Counted, Generation, Limit, Accounts)
        end
    end.

%% One that is closed is not found again.
forget(Key, Index, #{table := Table}) ->
    true = ets:delete_object(Table, {Key, Index}),
    ok.

-doc "The first words of all accounts.".
-spec indexes(accounts()) -> [erlmcp_gate_account:index()].
indexes(#{table := Table}) ->
    ets:select(Table, [{{'_', '$1'}, [], ['$1']}]).

-doc """
Closes every account of which nothing is held and whose rates have no past. Its words are `lost/1`
then; they must not be another account's before all who had found them are done with them.
""".
-spec close_idle(Now :: pos_integer(), accounts()) -> ok.
close_idle(Now, #{table := Table, words := Words} = Accounts) ->
    ets:foldl(fun({Key, Index}, ok) ->
        case is_idle(Index, Now, Words) andalso erlmcp_gate_account:close(Words, Index) of
            true -> forget(Key, Index, Accounts);
            false -> ok
        end
    end, ok, Table).

is_idle(Index, Now, Words) ->
    erlmcp_gate_account:held(Words, Index) =:= 0
        andalso erlmcp_rate:is_idle(Words, Index, Now).

-doc "These words can be another account's.".
-spec free(erlmcp_gate_account:index(), accounts()) -> ok.
free(Index, #{free := Free}) ->
    true = ets:insert(Free, {Index}),
    ok.

-doc """
The words that are in use and are nobody's: their account was closed, or who wants to open one is
doing it just now, or was killed.
""".
-spec lost(accounts()) -> [erlmcp_gate_account:index()].
lost(#{table := Table, free := Free, first := First, places := Places}) ->
    [{next, Next}] = ets:lookup(Free, next),
    Used = [First + ?STRIDE * (Place - 1) || Place <- lists:seq(1, min(Next, Places))],
    Known = ordsets:from_list([Index || {_, Index} <- ets:tab2list(Table)]
                              ++ [Index || {Index} <- ets:tab2list(Free)]),
    ordsets:subtract(Used, Known).
