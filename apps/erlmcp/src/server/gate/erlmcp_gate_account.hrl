%% The word that counts what is held of a bound (`m:erlmcp_gate_account`), for those who change one
%% without a call.

%% Two counts of 29 bits, and a mark above them, are a small integer.
-define(BITS, 29).
-define(COUNT(Word), ((Word) band (1 bsl ?BITS - 1))).
-define(MARK, (1 bsl (2 * ?BITS))).
%% A count is never so high; one that looks so went below zero.
-define(BELOW_ZERO, (1 bsl (?BITS - 1))).

-define(HELD(Word), (?COUNT(Word) + ?COUNT((Word) bsr ?BITS))).
%% The share that an amount is in a generation.
-define(SHARE(Amount, Generation), ((Amount) bsl (?BITS * (Generation)))).
-define(IS_FULL(Word, Amount, Limit),
        (?HELD(Word) + (Amount) > (Limit) orelse ?HELD(Word) + (Amount) >= ?BELOW_ZERO)).
-define(IS_BELOW_ZERO(Word),
        ((Word) < 0 orelse ?COUNT(Word) >= ?BELOW_ZERO
             orelse ?COUNT((Word) bsr ?BITS) >= ?BELOW_ZERO)).
