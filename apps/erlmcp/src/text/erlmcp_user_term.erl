-module(erlmcp_user_term).
-moduledoc """
Checks of terms that a user gives in options and definitions. Pure.

Internal.
""".

-export([is_utf8/1, is_proper_list/1, is_list_of/2]).
-export([is_wait/1, check_wait/1, longest_wait_ms/0]).

-doc "Returns `true` for a binary in UTF-8.".
-spec is_utf8(term()) -> boolean().
is_utf8(Text) -> is_binary(Text) andalso unicode:characters_to_binary(Text) =:= Text.

-doc """
Returns `true` for a list that ends with `[]`, and `false` for any other term.

## Examples

```erlang
1> [erlmcp_user_term:is_proper_list(Term) || Term <- [[], [1, 2], [1 | 2], 3]].
[true, true, false, false]
```
""".
-spec is_proper_list(term()) -> boolean().
is_proper_list(List) when length(List) >= 0 -> true;
is_proper_list(_) -> false.

-doc "Returns `true` for a proper list, if `Is` returns `true` for each of its elements.".
-spec is_list_of(Is :: fun((term()) -> boolean()), term()) -> boolean().
is_list_of(Is, List) -> is_proper_list(List) andalso lists:all(Is, List).

-doc """
Returns `true` for an integer from 1 to 4,294,967,295 (`longest_wait_ms/0`), and `false` for any
other term.
""".
-spec is_wait(term()) -> boolean().
is_wait(Ms) -> is_integer(Ms) andalso Ms > 0 andalso Ms =< longest_wait_ms().

-doc """
Returns `true` if `is_wait/1` does, and otherwise a text that says what was expected, for an error.
""".
-spec check_wait(term()) -> true | Expected :: binary().
check_wait(Ms) -> is_wait(Ms) orelse ~"milliseconds, 1 to 4294967295".

-doc "Returns 4,294,967,295, the most milliseconds that a process can wait in `receive`.".
-spec longest_wait_ms() -> pos_integer().
longest_wait_ms() -> 16#FFFFFFFF.
