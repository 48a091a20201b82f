-module(erlmcp_memory_guard).
-moduledoc """
Keeps the node from filling its memory (`m:erlmcp_overload_guard`). Five times a second the guard
measures the memory of the machine that is not available, and the used memory of the node's control
groups. Both include other programs. The guard measures the node's own allocated memory only if that
has a bound of its own.

Internal.
""".

-behaviour(erlmcp_overload_guard).

-export([state/0, refusal/1, start_link/0]).
-export([bounds/0, expected/2, events/0, open/0, look/2, received/3]).

%% Milliseconds from one look to the next.
-define(PAUSE, 200).
%% New work is let in again below this percentage of the bound.
-define(LOWER, 95).

-type look() :: #{
    source := machine | group | node, used := non_neg_integer(), limit := pos_integer()
}.

-doc """
Returns `ok` if there is memory for new work, and otherwise `full`.
""".
-spec state() -> ok | full.
state() ->
    case erlmcp_overload_guard:is_over(?MODULE) of
        false -> ok;
        true -> full
    end.

-doc "Returns the refusal of new work. A client may try again after `RetryAfterMs`.".
-spec refusal(RetryAfterMs :: non_neg_integer()) -> erlmcp_refusal:refusal().
refusal(RetryAfterMs) ->
    erlmcp_overload_guard:refusal(?MODULE, resource_exhausted, ~"the server is short of memory",
                                  RetryAfterMs).

-doc "Starts the guard. The error is that of `erlmcp_overload_guard:start_link/1`.".
-spec start_link() -> gen_server:start_ret().
start_link() ->
    erlmcp_overload_guard:start_link(?MODULE).

-doc "Returns every bound with its default and its meaning.".
-spec bounds() -> [{atom(), Default :: pos_integer() | infinity, What :: binary()}].
bounds() ->
    [{memory_percent, 90, ~"percent of the memory of the machine, and of each control group"},
     {memory_bytes, infinity, ~"bytes that the node itself has allocated"}].

-doc false.
expected(memory_bytes, infinity) -> ok;
expected(memory_bytes, Bytes) when is_integer(Bytes), Bytes > 0 -> ok;
expected(memory_bytes, _) -> {error, ~"a positive integer, or infinity"};
expected(memory_percent, Percent) when is_integer(Percent), Percent > 0, Percent =< 100 -> ok;
expected(memory_percent, _) -> {error, ~"an integer of 1 to 100"}.

-doc false.
events() -> {memory_full, memory_ok, ?LOWER}.

-doc false.
open() -> erlmcp_machine:memory_sources("/").

-doc false.
look(Bounds, Sources) ->
    Seen = case looks(Sources, Bounds) of
        [] ->
            none;
        Looks ->
            #{used := Used, limit := Limit} = Fullest = fullest(Looks),
            {Used, Limit, Fullest}
    end,
    {Seen, ?PAUSE, Sources}.

-spec looks([erlmcp_machine:memory_source()], erlmcp_overload_guard:bounds()) -> [look()].
looks(Sources, #{memory_percent := Percent, memory_bytes := Bytes}) ->
    [#{source => node, used => erlang:memory(total), limit => Bytes} || Bytes =/= infinity]
        ++ [#{source => Kind, used => Used, limit => max(1, Total * Percent div 100)}
            || Source <- Sources,
               {ok, #{source := Kind, used := Used, total := Total}} <-
                   [erlmcp_machine:memory(Source)]].

fullest(Looks) ->
    [Fullest | _] = lists:sort(fun(#{used := Used, limit := Limit},
                                   #{used := Other, limit := OtherLimit}) ->
                                   Used * OtherLimit >= Other * Limit
                               end, Looks),
    Fullest.

-doc false.
received(_, _, Sources) ->
    {none, Sources}.
