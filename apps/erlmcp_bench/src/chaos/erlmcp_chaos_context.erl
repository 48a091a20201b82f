-module(erlmcp_chaos_context).
-moduledoc "What a scenario does while it runs: it marks, tells what it saw, and waits.".

-export([inject/1, heal/1, observer/2, outcome/4, outcome/5, noticed/2, fact/3]).
-export([await/3, await_detected/1, await_recovered/1, call/4, until/1]).
-export([private/1, is_short/1, now_us/0]).

-export_type([context/0]).

-type context() :: erlmcp_chaos_scenario:context().

%% How much longer is waited for something than it may take: late is late, and not lost.
-define(PATIENCE, 20).
-define(LEAST_MS, 20_000).
%% Milliseconds between two looks at what nobody tells.
-define(LOOK_MS, 5).

-doc "Call it right before the harm is done.".
-spec inject(context()) -> AtUs :: integer().
inject(#{journal := Journal, tell := Tell}) ->
    %% First: the time that it takes is not the fault's.
    _ = Tell(inject),
    erlmcp_chaos_journal:mark(Journal, inject).

-doc "Call it right after the harm has ended.".
-spec heal(context()) -> AtUs :: integer().
heal(#{journal := Journal, tell := Tell}) ->
    At = erlmcp_chaos_journal:mark(Journal, heal),
    _ = Tell(heal),
    At.

-doc "A process for the `observer` of a further load.".
-spec observer(context(), erlmcp_chaos_scenario:source()) -> pid().
observer(#{journal := Journal}, Source) ->
    erlmcp_chaos_journal:tap(Journal, Source).

-doc "A request that was sent then came to this, now.".
-spec outcome(context(), erlmcp_chaos_scenario:source(), erlmcp_chaos_accounting:outcome(),
              SentUs :: integer()) -> ok.
outcome(Context, Source, Outcome, SentUs) ->
    outcome(Context, Source, Outcome, SentUs, now_us()).

-doc "The same, with the time at which it did.".
-spec outcome(context(), erlmcp_chaos_scenario:source(), erlmcp_chaos_accounting:outcome(),
              SentUs :: integer(), DoneUs :: integer()) -> ok.
outcome(#{journal := Journal}, Source, Outcome, SentUs, DoneUs) ->
    erlmcp_chaos_journal:outcome(Journal, Source, Outcome, SentUs, DoneUs).

-doc "The fault was noticed now, by something of this name.".
-spec noticed(context(), atom()) -> ok.
noticed(#{journal := Journal}, Name) ->
    erlmcp_chaos_journal:event(Journal, #{event => Name}, now_us()).

-doc "A figure of this fault, whose name ends with its unit.".
-spec fact(context(), atom(), number()) -> ok.
fact(#{journal := Journal}, Name, Value) ->
    erlmcp_chaos_journal:fact(Journal, Name, Value).

-doc "Waits for something to be there, so many milliseconds at most.".
-spec await(context(), erlmcp_chaos_journal:awaited(), Milliseconds :: non_neg_integer()) ->
    ok | timeout.
await(#{journal := Journal}, Awaited, Milliseconds) ->
    erlmcp_chaos_journal:await(Journal, Awaited, Milliseconds).

-doc "Waits until the fault was noticed: much longer than that may take.".
-spec await_detected(context()) -> ok | timeout.
await_detected(#{bounds := #{detect_ms := Bound}} = Context) ->
    await(Context, detected, patience(Bound)).

-doc "Waits for the first good reply after the fault: much longer than that may take.".
-spec await_recovered(context()) -> ok | timeout.
await_recovered(#{bounds := #{recover_ms := Bound}} = Context) ->
    await(Context, recovered, patience(Bound)).

patience(Bound) -> max(?LEAST_MS, Bound * ?PATIENCE).

-doc "Calls a function in the server's node.".
-spec call(context(), module(), atom(), [term()]) -> term().
call(#{target := Target}, Module, Function, Arguments) ->
    erlmcp_bench_target:call(Target, Module, Function, Arguments).

-doc "Looks until something is so, for as long as for what may take its time.".
-spec until(fun(() -> boolean())) -> ok | timeout.
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

-doc "What `setup/1` left.".
-spec private(context()) -> term().
private(#{private := Private}) -> Private.

-doc "Whether less of it is to do.".
-spec is_short(context()) -> boolean().
is_short(#{options := #{short := Short}}) -> Short.

-doc "The time as it is written down.".
-spec now_us() -> integer().
now_us() -> erlang:monotonic_time(microsecond).
