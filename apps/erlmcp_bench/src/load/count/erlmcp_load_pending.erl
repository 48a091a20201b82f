-module(erlmcp_load_pending).
-moduledoc """
The requests of a connection that wait for their end, and those that timed out. Pure.

A reply with an unknown id is a stray. It may belong to a waiting request, so a request that times
out after a stray counts as answered wrongly.
""".

-export([new/0, add/5, count/1, oldest/1, take/2, drop/2, stray/1, overdue/2, give_up/2, clear/1]).

-export_type([pending/0]).

-record(pending, {
    %% The kind of each request, the time when it was due, and its deadline.
    requests = #{} :: #{erlmcp_load_wire:tag() => {Kind :: pos_integer(), Due :: integer(),
                                                  Deadline :: integer()}},
    %% Requests that timed out and may still be answered.
    overdue = gb_sets:new() :: gb_sets:set(erlmcp_load_wire:tag()),
    strays = 0 :: non_neg_integer()
}).

-opaque pending() :: #pending{}.

%% The most requests that are remembered after their timeout.
-define(OVERDUE, 1000).

-doc "Returns the state of a new connection.".
-spec new() -> pending().
new() -> #pending{}.

-doc """
Adds a request that was sent, with its kind (`erlmcp_load_plan:kind/1`). `Due` is the time at which
the request was due, and `Deadline` the time at which it times out. Times are in monotonic
microseconds.
""".
-spec add(erlmcp_load_wire:tag(), Kind :: pos_integer(), Due :: integer(), Deadline :: integer(),
          pending()) -> pending().
add(Tag, Kind, Due, Deadline, #pending{requests = Requests} = Pending) ->
    Pending#pending{requests = Requests#{Tag => {Kind, Due, Deadline}}}.

-doc "Returns how many requests wait for their end.".
-spec count(pending()) -> non_neg_integer().
count(#pending{requests = Requests}) -> map_size(Requests).

-doc "Returns the oldest request that waits for its end, or `none` if no request waits.".
-spec oldest(pending()) -> erlmcp_load_wire:tag() | none.
oldest(#pending{requests = Requests}) when map_size(Requests) =:= 0 -> none;
oldest(#pending{requests = Requests}) -> lists:min(maps:keys(Requests)).

-doc """
Removes the request that a reply answers. Returns the kind of the request, and the time at which it
was due, in monotonic microseconds. Returns `late` if the request has already timed out. Returns
`stray` if there is no such request, and then counts the reply as `stray/1` does.
""".
-spec take(erlmcp_load_wire:tag(), pending()) ->
    {{Kind :: pos_integer(), Due :: integer()} | late | stray, pending()}.
take(Tag, #pending{requests = Requests, overdue = Overdue} = Pending) ->
    case Requests of
        #{Tag := {Kind, Due, _}} ->
            {{Kind, Due}, Pending#pending{requests = maps:remove(Tag, Requests)}};
        #{} ->
            case gb_sets:is_element(Tag, Overdue) of
                true -> {late, Pending#pending{overdue = gb_sets:delete(Tag, Overdue)}};
                false -> {stray, stray(Pending)}
            end
    end.

-doc """
Removes a request that has ended. Returns the time at which the request was due, in monotonic
microseconds, or `none` if no such request waits.
""".
-spec drop(erlmcp_load_wire:tag(), pending()) -> {Due :: integer(), pending()} | none.
drop(Tag, #pending{requests = Requests} = Pending) ->
    case maps:take(Tag, Requests) of
        {{_, Due, _}, Others} -> {Due, Pending#pending{requests = Others}};
        error -> none
    end.

-doc "Counts a reply that answers no request.".
-spec stray(pending()) -> pending().
stray(#pending{strays = Strays} = Pending) ->
    Pending#pending{strays = Strays + 1}.

-doc """
Returns the requests whose deadlines have come by `Now`, oldest first. `Next` is the first deadline
of the other requests, or `none` if no other request waits. Times are in monotonic microseconds.
""".
-spec overdue(Now :: integer(), pending()) ->
    {[erlmcp_load_wire:tag()], Next :: integer() | none}.
overdue(Now, #pending{requests = Requests}) ->
    %% All requests have the same timeout, so deadlines are in the order of the tags.
    {Over, Others} = lists:splitwith(fun({_, {_, _, Deadline}}) -> Deadline =< Now end,
                                     lists:sort(maps:to_list(Requests))),
    Next = case Others of
        [{_, {_, _, Deadline}} | _] -> Deadline;
        [] -> none
    end,
    {[Tag || {Tag, _} <- Over], Next}.

-doc """
Returns the outcome of a request that timed out. The caller must then remove the request with
`drop/2`.

The outcome is `{wrong, id}` if there is a stray, which may be the reply to this request. Each stray
counts for one request. Otherwise the outcome is `{failed, timeout}`, and the request is remembered,
so that `take/2` knows a late reply. If a thousand requests are remembered already, the oldest one
is forgotten.
""".
-spec give_up(erlmcp_load_wire:tag(), pending()) ->
    {erlmcp_load_reply:outcome(), pending()}.
give_up(Tag, #pending{strays = 0, overdue = Overdue} = Pending) ->
    Remembered = case gb_sets:size(Overdue) < ?OVERDUE of
        true -> Overdue;
        false -> element(2, gb_sets:take_smallest(Overdue))
    end,
    {{failed, timeout}, Pending#pending{overdue = gb_sets:add_element(Tag, Remembered)}};
give_up(_, #pending{strays = Strays} = Pending) ->
    {{wrong, id}, Pending#pending{strays = Strays - 1}}.

-doc """
Forgets all requests and strays. Returns when the waiting requests were due, in monotonic
microseconds.
""".
-spec clear(pending()) -> {[integer()], pending()}.
clear(#pending{requests = Requests}) ->
    {[Due || _ := {_, Due, _} <- Requests], new()}.
