-module(erlmcp_gate_keeper).
-moduledoc """
The process that keeps a gate's books true. Each second it gives back what those held who have died;
it sets right what was taken by somebody who was killed before he could write it down, which shows
when the generation in which it was taken is over; and it closes accounts that are idle.

Internal.
""".

-behaviour(gen_server).

-export([start_link/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

%% Milliseconds between two rounds, and how many times longer than a round the pause after it is.
-define(ROUND, 1000).
-define(PAUSE, 20).
%% Rounds of a generation. What the one before it left must show in all the others but the first.
-define(GENERATION, 4).
%% Rounds between two looks for accounts that are idle.
-define(IDLE, 3).

-record(keeper, {
    books :: erlmcp_gate_counters:books(),
    round = 0 :: non_neg_integer(),
    over :: erlmcp_gate_account:generation(),
    %% what is counted and in no row, by the word that has it, as it was in the last round
    astray = #{} :: #{erlmcp_gate_account:index() => integer()},
    %% words that were nobody's at the last look
    lost = [] :: [erlmcp_gate_account:index()]
}).

-doc "Starts it.".
-spec start_link(erlmcp_gate:gate()) -> gen_server:start_ret().
start_link(Gate) ->
    gen_server:start_link(?MODULE, Gate, []).

-doc false.
init(#{books := Books}) ->
    %% While it looks at the ledger, rows that are taken away there stay, and are in the way of all
    %% who ask. So it does not wait for its turn behind all that have something to do.
    _ = process_flag(priority, high),
    %% Not the generation that one before it may have begun just now.
    {ok, next(0, #keeper{books = Books, over = erlmcp_gate_counters:turn(Books)})}.

-doc false.
handle_call(_, _, Keeper) ->
    {noreply, Keeper}.

-doc false.
handle_cast(_, Keeper) ->
    {noreply, Keeper}.

-doc false.
handle_info(round, #keeper{books = Books, over = Over} = Keeper) ->
    Began = erlang:monotonic_time(millisecond),
    Done = look(audit(erlmcp_gate_audit:sweep(Over, Books), Keeper)),
    Took = erlang:monotonic_time(millisecond) - Began,
    {noreply, next(Took, Done), hibernate};
handle_info(_, Keeper) ->
    {noreply, Keeper}.

next(Took, #keeper{round = Round} = Keeper) ->
    _ = erlang:send_after(max(?ROUND, ?PAUSE * Took), self(), round),
    Keeper#keeper{round = Round + 1}.

audit(_, #keeper{books = Books, round = Round} = Keeper) when Round rem ?GENERATION =:= 0 ->
    Keeper#keeper{over = erlmcp_gate_counters:turn(Books), astray = #{}};
audit(Sums, #keeper{books = Books, round = Round, over = Over, astray = Before} = Keeper) ->
    Astray = erlmcp_gate_audit:astray(Over, Sums, Books),
    Same = case Round rem ?GENERATION of
        1 -> Astray;
        _ -> maps:filter(fun(Index, More) -> maps:get(Index, Before, 0) =:= More end, Astray)
    end,
    case Round rem ?GENERATION of
        ?GENERATION - 1 ->
            ok = erlmcp_gate_audit:correct(Over, Same, Books),
            Keeper#keeper{astray = #{}};
        _ ->
            Keeper#keeper{astray = Same}
    end.

look(#keeper{books = #{accounts := Accounts} = Books, round = Round, lost = Before} = Keeper)
  when Round rem ?IDLE =:= 0 ->
    ok = erlmcp_gate_accounts:close_idle(erlmcp_gate_counters:now(Books), Accounts),
    %% Who had found an account before it was closed has long been done with it at the next look.
    Lost = erlmcp_gate_accounts:lost(Accounts),
    {Free, New} = lists:partition(fun(Index) -> ordsets:is_element(Index, Before) end, Lost),
    _ = [ok = erlmcp_gate_accounts:free(Index, Accounts) || Index <- Free],
    Keeper#keeper{lost = New};
look(Keeper) ->
    Keeper.
