-module(erlmcp_memory_guard).
-moduledoc """
Keeps the node from filling the memory that it has: five times a second a process looks how much is
used, and above a bound new work is refused until it is well under the bound again. One process for
the node; who asks (`state/0`) reads a word.

Looked at is what the kernel would end processes for, or swap: the machine's memory that is not
available, and, where the node is in control groups with a bound, what they hold. Both count what is
beside the node, since it fills the same memory. What the node itself has allocated is looked at
only where it has a bound of its own.

The bounds are the node's, and so in the environment of the application (`bounds/0`). They are read
at each look, and may be changed while the node runs.
""".

-behaviour(gen_server).

-export([state/0, refusal/1, bounds/0, start_link/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

%% Milliseconds from one look to the next.
-define(PAUSE, 200).
%% New work is let in again under so many percent of the bound.
-define(LOWER, 95).

%% Words of the atomics.
-define(FULL, 1).
-define(USED, 2).
-define(LIMIT, 3).

-record(state, {
    words :: atomics:atomics_ref(),
    places :: [erlmcp_machine:place()],
    bounds :: bounds()
}).

-type bounds() :: #{memory_percent := 1..100, memory_bytes := pos_integer() | infinity}.
-type look() :: #{
    source := machine | group | node, used := non_neg_integer(), limit := pos_integer()
}.

-doc "Whether there is room for new work. One read.".
-spec state() -> ok | full.
state() ->
    case persistent_term:get(?MODULE, none) of
        none ->
            ok;
        Words ->
            case atomics:get(Words, ?FULL) of
                0 -> ok;
                1 -> full
            end
    end.

-doc "What new work is refused with, and when to come back.".
-spec refusal(RetryAfterMs :: non_neg_integer()) -> erlmcp_refusal:refusal().
refusal(RetryAfterMs) ->
    Details = case persistent_term:get(?MODULE, none) of
        none -> #{};
        Words -> #{limit => atomics:get(Words, ?LIMIT), observed => atomics:get(Words, ?USED)}
    end,
    erlmcp_refusal:new(resource_exhausted, ~"the server is short of memory",
                       Details#{retry_after_ms => RetryAfterMs}).

-doc "Every bound, its default, and what it bounds.".
-spec bounds() -> [{atom(), Default :: pos_integer() | infinity, What :: binary()}].
bounds() ->
    [{memory_percent, 90, ~"percent of the memory of the machine, and of each control group"},
     {memory_bytes, infinity, ~"bytes that the node itself has allocated"}].

-doc "Starts the guard.".
-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

-doc false.
init([]) ->
    process_flag(trap_exit, true),
    case wrong(given()) of
        [] ->
            _ = erlang:send_after(?PAUSE, self(), look),
            {ok, looked(#state{words = words(), places = erlmcp_machine:places("/"),
                               bounds = given()})};
        [{Name, _} | _] ->
            {stop, {bad_option, Name, expected(Name)}}
    end.

words() ->
    case persistent_term:get(?MODULE, none) of
        none ->
            Words = atomics:new(3, []),
            ok = persistent_term:put(?MODULE, Words),
            Words;
        Words ->
            Words
    end.

given() ->
    #{Name => application:get_env(erlmcp, Name, Default) || {Name, Default, _} <- bounds()}.

wrong(Given) ->
    [{Name, Value} || Name := Value <- Given, not is_bound(Name, Value)].

is_bound(memory_bytes, infinity) -> true;
is_bound(memory_bytes, Bytes) -> is_integer(Bytes) andalso Bytes > 0;
is_bound(memory_percent, Percent) -> is_integer(Percent) andalso Percent > 0 andalso Percent =< 100.

expected(memory_bytes) -> ~"a positive integer, or infinity";
expected(memory_percent) -> ~"an integer of 1 to 100".

-doc false.
handle_call(_, _, State) ->
    {noreply, State}.

-doc false.
handle_cast(_, State) ->
    {noreply, State}.

-doc false.
handle_info(look, State) ->
    _ = erlang:send_after(?PAUSE, self(), look),
    {noreply, looked(rebounded(State))};
handle_info(_, State) ->
    {noreply, State}.

%% One that is changed to something wrong stays as it was.
rebounded(#state{bounds = Bounds} = State) ->
    Given = given(),
    Wrong = [Name || {Name, _} <- wrong(Given)],
    State#state{bounds = maps:merge(Bounds, maps:without(Wrong, Given))}.

looked(#state{words = Words, places = Places, bounds = Bounds} = State) ->
    case looks(Places, Bounds) of
        [] -> ok;
        Looks -> keep(fullest(Looks), Words)
    end,
    State.

-spec looks([erlmcp_machine:place()], bounds()) -> [look()].
looks(Places, #{memory_percent := Percent, memory_bytes := Bytes}) ->
    [#{source => node, used => erlang:memory(total), limit => Bytes} || Bytes =/= infinity]
        ++ [#{source => Source, used => Used, limit => max(1, Total * Percent div 100)}
            || Place <- Places,
               {ok, #{source := Source, used := Used, total := Total}} <-
                   [erlmcp_machine:memory(Place)]].

fullest(Looks) ->
    [Fullest | _] = lists:sort(fun(#{used := Used, limit := Limit},
                                   #{used := Other, limit := OtherLimit}) ->
                                   Used * OtherLimit >= Other * Limit
                               end, Looks),
    Fullest.

keep(#{used := Used, limit := Limit} = Look, Words) ->
    ok = atomics:put(Words, ?USED, Used),
    ok = atomics:put(Words, ?LIMIT, Limit),
    case atomics:get(Words, ?FULL) of
        0 when Used >= Limit ->
            ok = atomics:put(Words, ?FULL, 1),
            logger:warning(Look#{what => memory_full}),
            erlmcp_event:broadcast(memory_full, Look);
        1 when Used * 100 < Limit * ?LOWER ->
            ok = atomics:put(Words, ?FULL, 0),
            logger:notice(Look#{what => memory_ok}),
            erlmcp_event:broadcast(memory_ok, Look);
        _ ->
            ok
    end.

%% Without somebody who looks nothing is refused.
-doc false.
terminate(_, #state{words = Words}) ->
    atomics:put(Words, ?FULL, 0).
