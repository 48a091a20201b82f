-module(erlmcp_breaker).
-moduledoc """
A circuit breaker, without a process: a few atomics that each call reads and changes itself.

A breaker is closed at first. After `failures` failures in a row it opens, and calls are refused.
After `open_ms` it is half-open: one trial call may go ahead. If the call succeeds the breaker
closes, otherwise it opens for twice as long, up to `longest_open_ms`. Each of these times is
lengthened by a random part, up to a tenth.

Source: M. Nygard, "Release It!", Circuit Breaker.

Internal.
""".

-export([new/1, is_options/1, enter/1, leave/3]).
-export([works/1, opens_in/1, spare/2, is_trial/1, state/1, failed/1]).

-export_type([breaker/0, entry/0, state/0]).

-type state() :: closed | open | half_open.
-opaque breaker() :: {atomics:atomics_ref(), Failures :: pos_integer(), First :: pos_integer(),
                      Longest :: pos_integer()}.
-doc """
The state in which a call found its breaker. Two calls have the same one only if the breaker has
neither opened nor closed between them.
""".
-opaque entry() :: integer().

%% The atomics: failures in a row; the time until which the breaker is open, in milliseconds of
%% `since_start_ms/0`; how often it has opened in a row; and the time until which no further trial
%% call may go ahead. A closed breaker has the time of its last opening, negative, and 0 at first.
-define(FAILED, 1).
-define(UNTIL, 2).
-define(OPENED, 3).
-define(TRYING, 4).

-define(DEFAULTS, #{failures => 5, open_ms => 1_000, longest_open_ms => 30_000}).

-doc """
Returns `true` if a term is a map of options of a breaker, whose values are positive integers. Each
option may be absent.
""".
-spec is_options(term()) -> boolean().
is_options(Options) when is_map(Options) ->
    maps:keys(Options) -- maps:keys(?DEFAULTS) =:= []
        andalso lists:all(fun(Value) -> is_integer(Value) andalso Value > 0 end,
                          maps:values(Options));
is_options(_) ->
    false.

-doc """
Creates a closed breaker. By default it opens after 5 failures in a row, for 1 second at first and
for 30 seconds at most, without the random time.
""".
-spec new(erlmcp:breaker()) -> breaker().
new(Options) ->
    #{failures := Failures, open_ms := First, longest_open_ms := Longest} =
        maps:merge(?DEFAULTS, Options),
    {atomics:new(4, [{signed, true}]), Failures, First, Longest}.

-doc """
Returns `{ok, Entry}` if a call may go ahead. Otherwise returns the milliseconds until the breaker
is half-open, or 1 while a trial call is running. After `ok`, the caller reports the outcome of its
call with `leave/3`, or calls `spare/2` if there is no outcome. If a trial call reports nothing,
another call may go ahead after `longest_open_ms`.
""".
-spec enter(breaker()) -> {ok, entry()} | {open, Milliseconds :: pos_integer()}.
enter({Numbers, _, _, Longest} = Breaker) ->
    case atomics:get(Numbers, ?UNTIL) of
        Closed when Closed =< 0 ->
            {ok, Closed};
        Until ->
            Now = since_start_ms(),
            Before = atomics:get(Numbers, ?TRYING),
            case Until =< Now andalso Before =< Now
                 andalso atomics:compare_exchange(Numbers, ?TRYING, Before, Now + Longest) of
                ok -> trial(Until, Breaker);
                _ -> {open, opens_in(Breaker)}
            end
    end.

%% Another trial may have opened the breaker again meanwhile.
trial(Until, {Numbers, _, _, _} = Breaker) ->
    case atomics:get(Numbers, ?UNTIL) of
        Until ->
            {ok, Until};
        _ ->
            ok = atomics:put(Numbers, ?TRYING, 0),
            {open, opens_in(Breaker)}
    end.

-doc """
Reports the outcome of a call. Returns `opened` if the call has opened the breaker, even from the
half-open state, `closed` if the call has closed it, and `ok` otherwise. The outcome has no effect
if the breaker has opened or closed since the call entered.
""".
-spec leave(breaker(), entry(), served | failed) -> ok | opened | closed.
leave({Numbers, _, _, _} = Breaker, Entry, Outcome) ->
    case atomics:get(Numbers, ?UNTIL) of
        Entry -> left(Outcome, Entry, Breaker);
        _ -> ok
    end.

left(served, Entry, {Numbers, _, _, _}) when Entry =< 0 ->
    case atomics:get(Numbers, ?FAILED) of
        0 -> ok;
        _ -> atomics:put(Numbers, ?FAILED, 0)
    end;
left(served, Entry, {Numbers, _, _, _}) ->
    ok = atomics:put(Numbers, ?FAILED, 0),
    case atomics:compare_exchange(Numbers, ?UNTIL, Entry, -Entry) of
        ok ->
            ok = atomics:put(Numbers, ?OPENED, 0),
            ok = atomics:put(Numbers, ?TRYING, 0),
            closed;
        _ ->
            ok
    end;
left(failed, Entry, {Numbers, Most, _, _} = Breaker) ->
    Failed = atomics:add_get(Numbers, ?FAILED, 1),
    %% A trial that has failed opens the breaker again, whatever the count.
    case Entry > 0 orelse Failed >= Most of
        true -> open(Entry, Breaker);
        false -> ok
    end.

%% Opens the breaker, once for several failures at the same time.
open(Entry, {Numbers, _, First, Longest}) ->
    Opened = atomics:get(Numbers, ?OPENED),
    Milliseconds = min(Longest, First bsl min(Opened, 20)),
    %% Jitter only lengthens the time, and keeps nodes from trying at the same moment.
    Until = since_start_ms() + Milliseconds + rand:uniform(max(1, Milliseconds div 10)),
    case atomics:compare_exchange(Numbers, ?UNTIL, Entry, Until) of
        ok ->
            ok = atomics:put(Numbers, ?OPENED, Opened + 1),
            ok = atomics:put(Numbers, ?TRYING, 0),
            opened;
        _ ->
            ok
    end.

-doc """
Returns `true` if `enter/1` would let a call go ahead now: the breaker is closed, or is half-open
and waits for no trial call.
""".
-spec works(breaker()) -> boolean().
works({Numbers, _, _, _}) ->
    case atomics:get(Numbers, ?UNTIL) of
        Closed when Closed =< 0 ->
            true;
        Until ->
            Now = since_start_ms(),
            Until =< Now andalso atomics:get(Numbers, ?TRYING) =< Now
    end.

-doc "Returns the milliseconds until an open breaker is half-open, at least 1.".
-spec opens_in(breaker()) -> pos_integer().
opens_in({Numbers, _, _, _}) ->
    max(1, atomics:get(Numbers, ?UNTIL) - since_start_ms()).

-doc """
Reports that a call that `enter/1` let go ahead has no outcome. If that call was the trial, another
call may be the trial after this report.
""".
-spec spare(breaker(), entry()) -> ok.
spare(_, Entry) when Entry =< 0 ->
    ok;
spare({Numbers, _, _, _}, Entry) ->
    case atomics:get(Numbers, ?UNTIL) of
        Entry -> atomics:put(Numbers, ?TRYING, 0);
        _ -> ok
    end.

-doc "Returns `true` if the call that `enter/1` let go ahead is the trial of a half-open breaker.".
-spec is_trial(entry()) -> boolean().
is_trial(Entry) ->
    Entry > 0.

-doc "Returns `closed`, `open` or `half_open`, the state of a breaker.".
-spec state(breaker()) -> state().
state({Numbers, _, _, _}) ->
    case atomics:get(Numbers, ?UNTIL) of
        Closed when Closed =< 0 -> closed;
        Until ->
            case Until > since_start_ms() of
                true -> open;
                false -> half_open
            end
    end.

-doc "Returns the number of failures in a row.".
-spec failed(breaker()) -> non_neg_integer().
failed({Numbers, _, _, _}) ->
    atomics:get(Numbers, ?FAILED).

%% A time that is always positive: monotonic time may be negative, and 0 means a closed breaker.
since_start_ms() ->
    erlmcp_clock:now_ms() - erlang:system_info(start_time) div 1_000_000 + 1.
