-module(erlmcp_gate_audit).
-moduledoc """
Whether a gate's books (`m:erlmcp_gate_counters`) are true: what the dead held is given back, and
what is counted of a generation is compared with what is written down of it, and set right. The
gate's keeper (`m:erlmcp_gate_keeper`) says when; no request passes here.

Internal.
""".

-export([sweep/2, astray/3, correct/3]).

%% Processes of the node beside each row with which they are listed, and holders are not asked.
-define(BESIDE, 8).

-doc """
Gives back what the dead held, and adds up what the others hold of a generation, by the word that
counts it.
""".
-spec sweep(erlmcp_gate_account:generation(), erlmcp_gate_counters:books()) ->
    #{erlmcp_gate_account:index() => pos_integer()}.
sweep(Generation, #{ledger := Ledger} = Books) ->
    Rows = erlmcp_gate_permits:rows(Ledger),
    Alive = alive(length(Rows)),
    lists:foldl(fun(Row, Sums) ->
        {Holder, Held, Waits} = erlmcp_gate_counters:holding(Row),
        case is_map_key(Holder, Alive) orelse is_process_alive(Holder) of
            true ->
                add_up(Held, Generation, add_up(Waits, Generation, Sums));
            false ->
                %% What others hold since then is looked at the next time.
                _ = erlmcp_gate_counters:leave_as(Row, Books),
                Sums
        end
    end, #{}, Rows).

%% Those of the node that are there, unless they are many more than the holders. To ask a holder
%% that has signals waiting is to wait for its turn among all busy ones.
alive(Rows) ->
    case erlang:system_info(process_count) =< ?BESIDE * Rows of
        true -> maps:from_keys(processes(), []);
        false -> #{}
    end.

add_up(Shares, Generation, Sums) ->
    lists:foldl(fun({Index, Share}, Sum) ->
        case erlmcp_gate_account:amount(Share, Generation) of
            0 -> Sum;
            Amount -> Sum#{Index => maps:get(Index, Sum, 0) + Amount}
        end
    end, Sums, Shares).

-doc "What is counted of a generation beyond these sums.".
-spec astray(erlmcp_gate_account:generation(), #{erlmcp_gate_account:index() => pos_integer()},
             erlmcp_gate_counters:books()) ->
    #{erlmcp_gate_account:index() => integer()}.
astray(Generation, Sums, #{words := Words} = Books) ->
    #{Index => More || Index <- erlmcp_gate_counters:indexes(Books),
                       More <- [erlmcp_gate_account:held(Words, Index, Generation)
                                - maps:get(Index, Sums, 0)],
                       More =/= 0}.

-doc "Sets right what was astray of a generation that is over.".
-spec correct(erlmcp_gate_account:generation(), #{erlmcp_gate_account:index() => integer()},
              erlmcp_gate_counters:books()) -> ok.
correct(Generation, Astray, #{words := Words} = Books) ->
    maps:foreach(fun(Index, More) ->
                     erlmcp_gate_account:correct(Words, Index, Generation, -More)
                 end, Astray),
    erlmcp_gate_counters:tell_queue(Books).
