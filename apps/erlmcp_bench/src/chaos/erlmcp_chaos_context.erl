-module(erlmcp_chaos_context).
-moduledoc """
The functions that a scenario calls while it runs: they mark its steps, record figures and outcomes,
and wait.
""".

-export([inject/1, harm/4, seen/5, heal/1]).
-export([observer/2, outcome/4, outcome/5, noticed/2, fact/3, counts/2, lost_connections/1]).
-export([await/3, await_detected/1, await_recovered/1, call/4, until/1]).
-export([private/1, is_short/1, now_us/0]).

-export_type([context/0]).

-type context() :: erlmcp_chaos_scenario:context().

%% Waits last up to this many times the bound, so that a late reply counts as late, and not as lost.
-define(PATIENCE, 20).
-define(LEAST_MS, 10_000).
%% Milliseconds between two polls of a state that sends no message.
-define(LOOK_MS, 5).

-doc """
Reports the step `inject` to the option `on_progress`, and marks the beginning of the fault. Returns
the marked time in monotonic microseconds. The scenario must do the harm right after this call.
""".
-spec inject(context()) -> AtUs :: integer().
inject(#{journal := Journal, tell := Tell}) ->
    %% This comes first, since the time that it takes does not belong to the fault.
    _ = Tell(inject),
    erlmcp_chaos_journal:mark(Journal, inject).

-doc """
Does the harm `Harm` by calling `Do`, and returns the result. A test suite may take the harm out:
then `Do` is not called, and the result is `Unharmed`.
""".
-spec harm(context(), Harm :: atom(), Unharmed :: Value, Do :: fun(() -> Value)) -> Value.
harm(#{harm := Way}, Harm, Unharmed, Do) ->
    Way(Harm, Unharmed, Do).

-doc """
Records `Value` as the figure `Figure` that shows the harm `Harm`. The name of the figure ends with
the unit. Returns `ok` if the value is within the bound `Limit`, and `unseen` if it is not.
""".
-spec seen(context(), Harm :: atom(), Figure :: atom(), Value :: number(),
           erlmcp_chaos_verdict:limit()) -> ok | unseen.
seen(#{journal := Journal}, Harm, Figure, Value, Limit) ->
    ok = erlmcp_chaos_journal:seen(Journal, Harm, Figure, Value, Limit),
    case erlmcp_chaos_verdict:is_within(Value, Limit) of
        true -> ok;
        false -> unseen
    end.

-doc """
Marks the end of the fault, and reports the step `heal` to the option `on_progress`. Returns the
marked time in monotonic microseconds. The harm must have ended right before this call.
""".
-spec heal(context()) -> AtUs :: integer().
heal(#{journal := Journal, tell := Tell}) ->
    At = erlmcp_chaos_journal:mark(Journal, heal),
    _ = Tell(heal),
    At.

-doc """
Starts a process that is linked to the caller, and returns it. The process can be the `observer` of
a load that the scenario itself starts. The outcomes of that load's requests count under `Source`.
""".
-spec observer(context(), Source :: erlmcp_chaos_scenario:source()) -> pid().
observer(#{journal := Journal}, Source) ->
    erlmcp_chaos_journal:tap(Journal, Source).

-doc """
Records the outcome of a request that was sent at `SentUs`, in monotonic microseconds, and that ends
at the time of this call.
""".
-spec outcome(context(), erlmcp_chaos_scenario:source(), erlmcp_chaos_accounting:outcome(),
              SentUs :: integer()) -> ok.
outcome(Context, Source, Outcome, SentUs) ->
    outcome(Context, Source, Outcome, SentUs, now_us()).

-doc """
Records the outcome of a request that was sent at `SentUs` and ended at `DoneUs`, in monotonic
microseconds.
""".
-spec outcome(context(), erlmcp_chaos_scenario:source(), erlmcp_chaos_accounting:outcome(),
              SentUs :: integer(), DoneUs :: integer()) -> ok.
outcome(#{journal := Journal}, Source, Outcome, SentUs, DoneUs) ->
    erlmcp_chaos_journal:outcome(Journal, Source, Outcome, SentUs, DoneUs).

-doc "Records an event `Name` at the current time, as if the server had reported it.".
-spec noticed(context(), Name :: atom()) -> ok.
noticed(#{journal := Journal}, Name) ->
    erlmcp_chaos_journal:event(Journal, #{event => Name}, now_us()).

-doc """
Records `Value` as the figure `Name` of the fault. The name ends with the unit. A later value of the
same figure replaces the earlier one.
""".
-spec fact(context(), Name :: atom(), Value :: number()) -> ok.
fact(#{journal := Journal}, Name, Value) ->
    erlmcp_chaos_journal:fact(Journal, Name, Value).

-doc "Returns how many requests of `Source` have had each outcome until now.".
-spec counts(context(), Source :: erlmcp_chaos_scenario:source()) ->
    erlmcp_chaos_accounting:counts().
counts(#{journal := Journal}, Source) ->
    #{accounting := Accounting} = erlmcp_chaos_journal:report(Journal),
    erlmcp_chaos_accounting:counts(Source, Accounting).

-doc """
Returns how many connections of the load have ended unexpectedly until now. Fails if the scenario
runs without a load.
""".
-spec lost_connections(context()) -> non_neg_integer().
lost_connections(#{load := Load}) ->
    #{counts := #{lost := Lost}} = erlmcp_load:peek(Load),
    Lost.

-doc """
Waits until `Awaited` has happened, as `erlmcp_chaos_journal:await/3` does, and returns `ok` then.
Returns `timeout` after `Milliseconds`.
""".
-spec await(context(), Awaited :: erlmcp_chaos_journal:awaited(),
            Milliseconds :: non_neg_integer()) -> ok | timeout.
await(#{journal := Journal}, Awaited, Milliseconds) ->
    erlmcp_chaos_journal:await(Journal, Awaited, Milliseconds).

-doc """
Waits until the fault is detected, and returns `ok` then. Returns `timeout` after twenty times the
bound `detect_ms`, or after ten seconds if that is longer. The option `patience_ms` replaces these
times. Without this option, the bound must not be `none`.
""".
-spec await_detected(context()) -> ok | timeout.
await_detected(#{bounds := #{detect_ms := Bound}} = Context) ->
    await(Context, detected, patience(Bound, Context)).

-doc """
Waits until the server has recovered (`erlmcp_chaos_journal:recovered_at/1`), and returns `ok` then.
Returns `timeout` after twenty times the bound `recover_ms`, or after ten seconds if that is longer.
The option `patience_ms` replaces these times.
""".
-spec await_recovered(context()) -> ok | timeout.
await_recovered(#{bounds := #{recover_ms := Bound}} = Context) ->
    await(Context, recovered, patience(Bound, Context)).

patience(_, #{options := #{patience_ms := Milliseconds}}) -> Milliseconds;
patience(Bound, #{}) -> max(?LEAST_MS, Bound * ?PATIENCE).

-doc """
Calls a function in the server's node, and returns its value, as `erlmcp_bench_target:call/4` does.
""".
-spec call(context(), module(), atom(), [term()]) -> term().
call(#{target := Target}, Module, Function, Arguments) ->
    erlmcp_bench_target:call(Target, Module, Function, Arguments).

-doc """
Calls `Is` again and again until its value is `true`, and returns `ok` then. If that takes more than
ten seconds, the function returns `timeout`.
""".
-spec until(Is :: fun(() -> boolean())) -> ok | timeout.
until(Is) ->
    until(Is, erlang:monotonic_time(millisecond) + ?LEAST_MS).

until(Is, End) ->
    case Is() of
        true ->
            ok;
        false ->
            case erlang:monotonic_time(millisecond) < End of
                true -> receive after ?LOOK_MS -> until(Is, End) end;
                false -> timeout
            end
    end.

-doc "Returns the term `private` of the scenario's setup, or `none` if the setup has no such term.".
-spec private(context()) -> term().
private(#{private := Private}) -> Private.

-doc "Returns `true` if the options ask for a shorter run.".
-spec is_short(context()) -> boolean().
is_short(#{options := #{short := Short}}) -> Short.

-doc "Returns the time as the journal records it, in monotonic microseconds.".
-spec now_us() -> integer().
now_us() -> erlang:monotonic_time(microsecond).
