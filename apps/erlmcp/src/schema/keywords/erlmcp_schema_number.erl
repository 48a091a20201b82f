-module(erlmcp_schema_number).
-moduledoc """
JSON numbers, where `1` and `1.0` are the same: exact for integers of any size, and for floats by
their decimal digits. Pure.

Internal.
""".

-export([to_integer/1, is_multiple/2]).

-doc "Converts a number without a fraction to an integer, and returns any other term unchanged.".
-spec to_integer(term()) -> term().
to_integer(N) when is_float(N), trunc(N) == N -> trunc(N);
to_integer(Other) -> Other.

-doc """
Returns `true` if `Number` is a multiple of `Of`, which is greater than 0.

## Examples

```erlang
1> erlmcp_schema_number:is_multiple(0.0075, 0.0001).
true
2> erlmcp_schema_number:is_multiple(1.0e308, 0.123456789).
false
```
""".
-spec is_multiple(Number :: number(), Of :: number()) -> boolean().
is_multiple(N, Of) when is_integer(N), is_integer(Of) ->
    N rem Of =:= 0;
is_multiple(N, Of) ->
    {A, ExponentA} = decimal(N),
    {B, ExponentB} = decimal(Of),
    Least = min(ExponentA, ExponentB),
    shift(A, ExponentA - Least) rem shift(B, ExponentB - Least) =:= 0.

%% {Digits, Exponent}, for the number Digits * 10 ^ Exponent.
decimal(N) when is_integer(N) ->
    {N, 0};
decimal(N) ->
    Short = float_to_binary(N, [short]),
    {Mantissa, Exponent} = case binary:split(Short, ~"e") of
        [Digits, E] -> {Digits, binary_to_integer(E)};
        [Digits] -> {Digits, 0}
    end,
    [Whole, Fraction] = binary:split(Mantissa, ~"."),
    {binary_to_integer(<<Whole/binary, Fraction/binary>>), Exponent - byte_size(Fraction)}.

shift(Digits, Places) ->
    Digits * power(10, Places).

power(_, 0) -> 1;
power(Base, N) when N rem 2 =:= 0 -> power(Base * Base, N div 2);
power(Base, N) -> Base * power(Base, N - 1).
