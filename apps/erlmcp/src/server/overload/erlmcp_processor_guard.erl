-module(erlmcp_processor_guard).
-moduledoc """
Keeps a node whose schedulers are too busy from taking on more work (`m:erlmcp_overload_guard`). The
guard measures repeatedly how long a new process waits for a scheduler. Without a bound nothing is
measured.

Internal.
""".

-behaviour(erlmcp_overload_guard).

-export([state/0, refusal/1, start_link/0]).
-export([bounds/0, expected/2, events/0, open/0, look/2, received/3]).

%% Milliseconds from one look to the next, and the same while there is no bound.
-define(PAUSE, 20).
-define(IDLE_PAUSE, 200).
%% New work is let in again below this percentage of the bound.
-define(LOWER, 50).

-record(reading, {
    %% the new process whose wait is measured
    probe = none :: none | {pid(), Since :: integer()},
    %% milliseconds that the last one waited, or has waited so far
    waited = 0 :: non_neg_integer()
}).

-doc """
Returns `ok` if there is processor time for new work, and otherwise `busy`.
""".
-spec state() -> ok | busy.
state() ->
    case erlmcp_overload_guard:is_over(?MODULE) of
        false -> ok;
        true -> busy
    end.

-doc "Returns the refusal of new work. A client may try again after `RetryAfterMs`.".
-spec refusal(RetryAfterMs :: non_neg_integer()) -> erlmcp_refusal:refusal().
refusal(RetryAfterMs) ->
    erlmcp_overload_guard:refusal(?MODULE, service_unavailable,
                                  ~"the server is short of processor time", RetryAfterMs).

-doc "Starts the guard. The error is that of `erlmcp_overload_guard:start_link/1`.".
-spec start_link() -> gen_server:start_ret().
start_link() ->
    erlmcp_overload_guard:start_link(?MODULE).

-doc "Returns the bound with its default and its meaning.".
-spec bounds() -> [{atom(), Default :: pos_integer() | infinity, What :: binary()}].
bounds() ->
    [{scheduler_wait_ms, infinity, ~"milliseconds that a new process waits for a scheduler"}].

-doc false.
expected(scheduler_wait_ms, infinity) -> ok;
expected(scheduler_wait_ms, Bound) when is_integer(Bound), Bound > 0 -> ok;
expected(scheduler_wait_ms, _) -> {error, ~"a positive integer, or infinity"}.

-doc false.
events() -> {processors_busy, processors_ok, ?LOWER}.

-doc false.
open() ->
    %% The guard itself must not wait for a scheduler.
    _ = process_flag(priority, high),
    #reading{}.

-doc false.
look(#{scheduler_wait_ms := infinity}, Reading) ->
    {reading(infinity, Reading), ?IDLE_PAUSE, Reading#reading{probe = none}};
look(_, #reading{probe = none} = Reading) ->
    {none, ?PAUSE, Reading#reading{probe = probe()}};
look(#{scheduler_wait_ms := Bound}, #reading{probe = {_, Since}} = Reading) ->
    %% A wait that is longer than the bound is reported before it ends.
    case erlmcp_clock:now_ms() - Since of
        Waits when Waits >= Bound ->
            Waiting = Reading#reading{waited = Waits},
            {reading(Bound, Waiting), ?PAUSE, Waiting};
        _ ->
            {none, ?PAUSE, Reading}
    end.

%% The new process has the normal priority, as the processes of requests have.
probe() ->
    Guard = self(),
    Since = erlmcp_clock:now_ms(),
    {spawn_link(fun() -> Guard ! {probed, self(), erlmcp_clock:now_ms() - Since} end), Since}.

-doc false.
received({probed, Probe, Waited}, #{scheduler_wait_ms := Bound}, #reading{probe = {Probe, _}}) ->
    Reading = #reading{waited = Waited},
    {reading(Bound, Reading), Reading};
received(_, _, Reading) ->
    {none, Reading}.

reading(Bound, #reading{waited = Waited}) ->
    {Waited, Bound, #{waited => Waited, limit => Bound}}.
