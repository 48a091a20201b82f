-module(erlmcp_httpc_pool_waiters).
-moduledoc """
The queue of processes that wait for a connection, first come, first served. Each has a timer and a
monitor of the pool's process, which owns this value.

Internal.
""".

-export([new/0, size/1, add/5, first/1, remove/2, all/1]).
-export_type([waiters/0, waiter/0, from/0]).

-type from() :: {pid(), term()}.
-opaque waiter() :: {from(), Monitor :: reference(), Timer :: reference()}.
-opaque waiters() :: gb_trees:tree(integer(), waiter()).

-doc "Returns an empty queue.".
-spec new() -> waiters().
new() ->
    gb_trees:empty().

-doc "Returns the number of waiting processes.".
-spec size(waiters()) -> non_neg_integer().
size(Waiters) ->
    gb_trees:size(Waiters).

-doc """
Adds a waiting process under a `Number` that is greater than all before it. When its time is over,
the calling process gets `{expired, Kind, Number, Error}`; when it dies, `{{left, Kind, Number}, _,
_, _, _}`.
""".
-spec add(from(), Kind :: atom(), {Until :: integer(), Error :: term()}, Number :: integer(),
          waiters()) -> waiters().
add({Pid, _} = From, Kind, {Until, Error}, Number, Waiters) ->
    Monitor = monitor(process, Pid, [{tag, {left, Kind, Number}}]),
    Timer = erlang:send_after(Until, self(), {expired, Kind, Number, Error}, [{abs, true}]),
    gb_trees:insert(Number, {From, Monitor, Timer}, Waiters).

-doc "Returns the number and the address of the first waiting process.".
-spec first(waiters()) -> {integer(), from()} | none.
first(Waiters) ->
    case gb_trees:is_empty(Waiters) of
        true ->
            none;
        false ->
            {Number, {From, _, _}} = gb_trees:smallest(Waiters),
            {Number, From}
    end.

-doc "Removes a waiting process and returns its address; `none` if it does not wait any more.".
-spec remove(integer(), waiters()) -> {from(), waiters()} | none.
remove(Number, Waiters) ->
    case gb_trees:take_any(Number, Waiters) of
        {{From, Monitor, Timer}, Rest} ->
            true = demonitor(Monitor, [flush]),
            _ = erlang:cancel_timer(Timer, [{async, true}, {info, false}]),
            {From, Rest};
        error ->
            none
    end.

-doc "Returns the numbers of all waiting processes.".
-spec all(waiters()) -> [integer()].
all(Waiters) ->
    gb_trees:keys(Waiters).
