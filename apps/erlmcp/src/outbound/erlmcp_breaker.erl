-module(erlmcp_breaker).
-moduledoc """
A circuit breaker: a few numbers that every call reads and changes itself. No process.

It is closed; after `failures` in a row it opens, and no call may go there; when its time has passed
it is half-open: one call may try, and closes it again or opens it for twice as long.

Source: M. Nygard, "Release It!", Circuit Breaker.

Internal.
""".

-export([new/1, is_options/1, enter/1, leave/2]).
-export([works/1, opens_in/1, spare/1, state/1, failed/1]).

-export_type([breaker/0, state/0]).

-type state() :: closed | open | half_open.
-opaque breaker() :: {atomics:atomics_ref(), Failures :: pos_integer(), First :: pos_integer(),
                      Longest :: pos_integer()}.

%% Failures in a row, milliseconds of `since_start_ms/0` until which it is open (0: closed), how
%% often it has opened in a row, and until when a call that tries it keeps others away.
-define(FAILED, 1).
-define(UNTIL, 2).
-define(OPENED, 3).
-define(TRYING, 4).

-define(DEFAULTS, #{failures => 5, open_ms => 1_000, longest_open_ms => 30_000}).

-doc "Whether these are options of a breaker.".
-spec is_options(term()) -> boolean().
is_options(Options) when is_map(Options) ->
    maps:keys(Options) -- maps:keys(?DEFAULTS) =:= []
        andalso lists:all(fun(Value) -> is_integer(Value) andalso Value > 0 end,
                          maps:values(Options));
is_options(_) ->
    false.

-doc "A breaker that is closed.".
-spec new(erlmcp:breaker()) -> breaker().
new(Options) ->
    #{failures := Failures, open_ms := First, longest_open_ms := Longest} =
        maps:merge(?DEFAULTS, Options),
    {atomics:new(4, [{signed, true}]), Failures, First, Longest}.

-doc """
Whether a call may go there, or the milliseconds until one may. What came of it has to be told to
`leave/2`; of all that find it half-open one may try, and keeps the others away for a while, since
it may die on the way.
""".
-spec enter(breaker()) -> ok | {open, Milliseconds :: pos_integer()}.
enter({Numbers, _, _, Longest} = Breaker) ->
    case atomics:get(Numbers, ?UNTIL) of
        0 ->
            ok;
        Until ->
            Now = since_start_ms(),
            Before = atomics:get(Numbers, ?TRYING),
            case Until =< Now andalso Before =< Now
                 andalso atomics:compare_exchange(Numbers, ?TRYING, Before, Now + Longest) of
                ok -> ok;
                _ -> {open, opens_in(Breaker)}
            end
    end.

-doc "A call has ended that might enter: it was served, or it failed. Whether this opened it.".
-spec leave(breaker(), served | failed) -> ok | opened | closed.
leave({Numbers, _, _, _}, served) ->
    Closed = atomics:get(Numbers, ?UNTIL) =/= 0,
    [ok = atomics:put(Numbers, Number, 0) || Number <- [?FAILED, ?OPENED, ?UNTIL, ?TRYING],
                                             atomics:get(Numbers, Number) =/= 0],
    case Closed of
        true -> closed;
        false -> ok
    end;
leave({Numbers, Most, _, _} = Breaker, failed) ->
    case atomics:add_get(Numbers, ?FAILED, 1) >= Most of
        true -> open(Breaker);
        false -> ok
    end.

%% Those that fail together open it once.
open({Numbers, _, First, Longest}) ->
    Now = since_start_ms(),
    Before = atomics:get(Numbers, ?UNTIL),
    Opened = atomics:get(Numbers, ?OPENED),
    Milliseconds = min(Longest, First bsl min(Opened, 20)),
    %% Never sooner, and not all of all nodes at once.
    Until = Now + Milliseconds + rand:uniform(max(1, Milliseconds div 10)),
    case Before =< Now andalso atomics:compare_exchange(Numbers, ?UNTIL, Before, Until) of
        ok ->
            ok = atomics:put(Numbers, ?OPENED, Opened + 1),
            ok = atomics:put(Numbers, ?TRYING, 0),
            opened;
        _ ->
            ok
    end.

-doc "Whether a call would find it closed, or half-open and not tried.".
-spec works(breaker()) -> boolean().
works({Numbers, _, _, _}) ->
    case atomics:get(Numbers, ?UNTIL) of
        0 ->
            true;
        Until ->
            Now = since_start_ms(),
            Until =< Now andalso atomics:get(Numbers, ?TRYING) =< Now
    end.

-doc "Milliseconds until it is half-open, 1 at least.".
-spec opens_in(breaker()) -> pos_integer().
opens_in({Numbers, _, _, _}) ->
    max(1, atomics:get(Numbers, ?UNTIL) - since_start_ms()).

-doc "Who might enter did not go there: another may try.".
-spec spare(breaker()) -> ok.
spare({Numbers, _, _, _}) ->
    atomics:put(Numbers, ?TRYING, 0).

-doc "Its state.".
-spec state(breaker()) -> state().
state({Numbers, _, _, _}) ->
    case atomics:get(Numbers, ?UNTIL) of
        0 -> closed;
        Until ->
            case Until > since_start_ms() of
                true -> open;
                false -> half_open
            end
    end.

-doc "The calls that failed in a row.".
-spec failed(breaker()) -> non_neg_integer().
failed({Numbers, _, _, _}) ->
    atomics:get(Numbers, ?FAILED).

%% Monotonic time may be negative, and 0 is a breaker that is closed.
since_start_ms() ->
    erlang:monotonic_time(millisecond) - erlang:system_info(start_time) div 1_000_000 + 1.
