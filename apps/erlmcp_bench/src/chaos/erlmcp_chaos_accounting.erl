-module(erlmcp_chaos_accounting).
-moduledoc """
What became of requests, counted by whose they were: answered, refused with a code, reported
failed, or wrong. Pure. A request is lost if nobody was told what became of it: it had no answer
when its time was over, or the one before it had none where answers come in their order.
""".

-export([new/0, add/3, counts/2, sent/1, lost/1, code/1, to_map/1]).

-export_type([accounting/0, counts/0, outcome/0]).

-doc """
As an observer of `m:erlmcp_load` is told. What is refused has the `data` of the error beside.
""".
-type outcome() ::
    answered | {refused, Code :: integer() | atom(), Details :: map()} | {failed, Reason :: term()}
    | {wrong, What :: term()}.
-type counts() :: #{
    answered := non_neg_integer(), refused := #{integer() | atom() => pos_integer()},
    failed := #{term() => pos_integer()}, wrong := #{term() => pos_integer()}
}.
-opaque accounting() :: #{erlmcp_chaos_scenario:source() => counts()}.

%% Different things that are wrong, or reasons to fail, that are told apart.
-define(KINDS, 100).

-doc "Nothing yet.".
-spec new() -> accounting().
new() -> #{}.

-doc "One more request.".
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

more(Key, Known) when not is_map_key(Key, Known), map_size(Known) >= ?KINDS -> more(other, Known);
more(Key, Known) -> maps:update_with(Key, fun(Count) -> Count + 1 end, 1, Known).

-doc "Which row of the table of refusals it is: MCP's own codes have that in their `data`.".
-spec code({refused, integer() | atom(), map()}) -> integer() | atom().
code({refused, _, #{~"refusal" := Number}}) when is_integer(Number) -> Number;
code({refused, Code, _}) -> Code.

-doc "What became of the requests of one source.".
-spec counts(erlmcp_chaos_scenario:source(), accounting()) -> counts().
counts(Source, Accounting) ->
    maps:get(Source, Accounting, #{answered => 0, refused => #{}, failed => #{}, wrong => #{}}).

-doc "How many those are.".
-spec sent(counts()) -> non_neg_integer().
sent(#{answered := Answered, refused := Refused, failed := Failed, wrong := Wrong}) ->
    sum([Answered | lists:append([maps:values(Kinds) || Kinds <- [Refused, Failed, Wrong]])]).

sum([]) -> 0;
sum([Count | Counts]) when is_integer(Count) -> Count + sum(Counts).

-doc "How many of them nobody was told of.".
-spec lost(counts()) -> non_neg_integer().
lost(#{failed := Failed}) ->
    sum(maps:values(maps:with([timeout, behind_timeout], Failed))).

-doc "All of it, by source.".
-spec to_map(accounting()) -> #{erlmcp_chaos_scenario:source() => counts()}.
to_map(Accounting) -> Accounting.
