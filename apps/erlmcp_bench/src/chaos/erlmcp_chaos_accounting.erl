-module(erlmcp_chaos_accounting).
-moduledoc """
Counts the outcomes of requests by their source: answered, refused with a code, failed, or wrong.
Pure.

A request is lost if its sender never learns its outcome: it timed out, or waited behind one that
did, on a connection with ordered answers.
""".

-export([new/0, add/3, counts/2, sent/1, lost/1, code/1, to_map/1]).

-export_type([accounting/0, counts/0, outcome/0]).

-doc """
The outcome of a request, as an observer of `m:erlmcp_load` receives it. `Details` of a refusal is
the `data` of its error, or otherwise an empty map. If a tool has returned an error, `Code` is
`tool_error`, and `Details` is the result of the tool.
""".
-type outcome() ::
    answered | {refused, Code :: integer() | atom(), Details :: map()} | {failed, Reason :: term()}
    | {wrong, What :: term()}.
-type counts() :: #{
    answered := non_neg_integer(), refused := #{integer() | atom() => pos_integer()},
    failed := #{term() => pos_integer()}, wrong := #{term() => pos_integer()}
}.
-opaque accounting() :: #{erlmcp_chaos_scenario:source() => counts()}.

%% The most codes, reasons or kinds that have separate counts.
-define(KINDS, 100).

-doc "Returns empty counts.".
-spec new() -> accounting().
new() -> #{}.

-doc """
Counts a request by its source and its outcome. Each source has separate counts for its first
hundred codes of refusals, first hundred reasons of failures, and first hundred kinds of wrong
answers. Any further code, reason or kind counts as `other`.
""".
-spec add(erlmcp_chaos_scenario:source(), outcome(), accounting()) -> accounting().
add(Source, Outcome, Accounting) ->
    Accounting#{Source => counted(Outcome, counts(Source, Accounting))}.

counted(answered, #{answered := Answered} = Counts) ->
    Counts#{answered := Answered + 1};
counted({refused, _, _} = Refused, #{refused := Codes} = Counts) ->
    Counts#{refused := more(code(Refused), Codes)};
counted({failed, Reason}, #{failed := Reasons} = Counts) ->
    Counts#{failed := more(Reason, Reasons)};
counted({wrong, What}, #{wrong := Kinds} = Counts) ->
    Counts#{wrong := more(What, Kinds)}.

more(Key, Counted) when
    Key =/= other, not is_map_key(Key, Counted), map_size(Counted) >= ?KINDS
->
    more(other, Counted);
more(Key, Counted) ->
    maps:update_with(Key, fun(Count) -> Count + 1 end, 1, Counted).

-doc """
Returns the code by which a refusal is counted: the `refusal` of its details, which is erlmcp's own
code, or else the code of the error.
""".
-spec code({refused, integer() | atom(), map()}) -> integer() | atom().
code({refused, _, #{~"refusal" := Number}}) when is_integer(Number) -> Number;
code({refused, Code, _}) -> Code.

-doc """
Returns how many requests of one source have had each outcome. A source without requests has empty
counts.
""".
-spec counts(erlmcp_chaos_scenario:source(), accounting()) -> counts().
counts(Source, Accounting) ->
    maps:get(Source, Accounting, #{answered => 0, refused => #{}, failed => #{}, wrong => #{}}).

-doc "Returns the sum of the counts of a source: how many of its requests have an outcome.".
-spec sent(counts()) -> non_neg_integer().
sent(#{answered := Answered, refused := Refused, failed := Failed, wrong := Wrong}) ->
    sum([Answered | lists:append([maps:values(Kinds) || Kinds <- [Refused, Failed, Wrong]])]).

sum([]) -> 0;
sum([Count | Counts]) when is_integer(Count) -> Count + sum(Counts).

-doc """
Returns how many requests of a source were lost. A lost request timed out, or waited behind such a
request on its connection.
""".
-spec lost(counts()) -> non_neg_integer().
lost(#{failed := Failed}) ->
    sum(maps:values(maps:with([timeout, behind_timeout], Failed))).

-doc "Returns all counts, by source.".
-spec to_map(accounting()) -> #{erlmcp_chaos_scenario:source() => counts()}.
to_map(Accounting) -> Accounting.
